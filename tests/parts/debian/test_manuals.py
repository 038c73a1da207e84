"""Text out of HTML, by rules, and in the real packages beside Python's own parser."""

from html.parser import HTMLParser
from pathlib import Path

import pytest

import lexbench
from lexbench.parts.debian.manuals import Manuals, text_of_page
from lexbench.parts.debian.packages import REFERENCE_LANGUAGES, files_of
from tests.parts.debian import debs

PAGE = """<?xml version="1.0"?><html><head><title>Not me</title></head>
<body>
  <div class="navheader"><table><tr><th>Home</th></tr></table><hr/></div>
  <div class="chapter"><h1 class="a
b">A&#160;title</h1>
<p>Some <b>bold</b>
   words &lt;here&gt;.</p><p>Next</p>
<ul><li>one</li><li>two<br/>three</li></ul>
<pre class="screen">  $ ls   -l
     &amp; more
</pre>
<table><tr><td> a </td><td>b</td></tr> <tr><td><code>c</code></td><td>d</td></tr></table>
  </div>
  <div class="navfooter"><hr/>Up</div>
</body></html>"""
TEXT = """A title

Some bold words <here>.

Next

one
two
three

  $ ls   -l
     & more

a\tb
c\td
"""


def test_blocks_lines_and_cells_are_kept_and_navigation_is_left_out() -> None:
    assert text_of_page(PAGE) == TEXT


def test_documents_are_essays_then_chapters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    debs.put_all(tmp_path, monkeypatch)
    names = [document.name for document in lexbench.corpus("manuals").documents()]
    essays = ["anarchism/secA1.html", "anarchism/secB2.html"]
    assert names == [*essays, *(f"debian-reference-en/ch0{each}.en.html" for each in (1, 2))]


def test_an_unknown_language_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"^corpus.language must be one of en, de, .* got 'ru'$"):
        Manuals(language="ru")


class Reader(HTMLParser):
    """All characters of a body that are no white space, without navigation."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.depths = {"body": 0, "navigation": 0}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.depths["body"] += tag == "body"
        named = {dict(attrs).get("class"), (dict(attrs).get("id") or "")[:15]}
        inside = self.depths["navigation"] > 0
        if tag == "div" and (inside or named & {"navheader", "navfooter", "book-navigation"}):
            self.depths["navigation"] += 1

    def handle_endtag(self, tag: str) -> None:
        self.depths["body"] -= tag == "body"
        if tag == "div" and self.depths["navigation"]:
            self.depths["navigation"] -= 1

    def handle_data(self, data: str) -> None:
        if self.depths == {"body": 1, "navigation": 0}:
            self.found.extend(data.split())


@pytest.mark.slow
def test_the_real_pages_hold_the_characters_that_pythons_parser_finds() -> None:
    debs.need_real()
    pages = {"anarchism": debs.ESSAYS, **{f"debian-reference-{each}": debs.CHAPTERS for each in ("en", "ja", "pt-br")}}
    for package, under in pages.items():
        for name, content in files_of(package, under).items():
            if name.endswith(".html"):
                reader = Reader()
                reader.feed(content.decode())
                reader.close()
                assert "".join(text_of_page(content.decode()).split()) == "".join(reader.found), f"{package}/{name}"


@pytest.mark.slow
def test_every_language_has_twelve_chapters_and_english_the_essays() -> None:
    """The package of essays has 143 pages: 12 of them are contents, news, contact, and lists of links and books."""
    debs.need_real()
    counts = {each: len(list(Manuals(language=each).documents())) for each in REFERENCE_LANGUAGES}
    assert counts == {each: 12 + (131 if each == "en" else 0) for each in REFERENCE_LANGUAGES}
    assert Manuals().fingerprint() == "0d6d1badbb089002"
