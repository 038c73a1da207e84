"""Essays and a manual, out of two packages of Debian: many long documents, the same for everybody."""

import html
import re
from collections.abc import Iterator
from dataclasses import dataclass

from lexbench.core.errors import ConfigError
from lexbench.corpora import Document, hash_documents
from lexbench.parts.debian.packages import REFERENCE_LANGUAGES, files_of

ESSAY_FILE_PATTERN = re.compile(r"(sec|append|vol|intro|10years).*\.html")
"""Names of the essays. The other pages of their package are lists of links and books."""
CHAPTER_FILE_PATTERN = re.compile(r"ch.*\.html")
PAGE_END_PATTERN = re.compile(r"<div (?:id=\"book-navigation|class=\"navfooter\")|</body>")
"""The end of a page's text, before its links to other pages."""
PAGE_HEADER_PATTERN = re.compile(r"<div class=\"navheader\">.*?</div>", re.DOTALL)
CODE_BLOCK_PATTERN = re.compile(r"<pre\b[^>]*>(.*?)</pre>", re.DOTALL)
WHITE_SPACE_PATTERN = re.compile(r"[ \t\r\n\f\xa0]{2,}|[\t\r\n\f\xa0]")
HTML_TAG_PATTERN = re.compile(r"<(/?[A-Za-z][A-Za-z0-9]*)[^>]*>")
LINE_BREAKS_PATTERN = re.compile(r"[ \t]*\n[ \t\n]*")
CELL_BREAK_PATTERN = re.compile(r" *\t *")
WHITE_SPACE_OF_TAG = {
    **dict.fromkeys(("p", "blockquote", "h1", "h2", "h3", "h4", "table", "ul", "ol", "dl", "hr", "center"), "\n\n"),
    **dict.fromkeys(("br", "div", "li", "tr", "dt", "dd"), "\n"),
    "/td": "\t",
    "/th": "\t",
}
"""White space that replaces a tag of HTML."""


@dataclass(frozen=True)
class Manuals:
    """Essays of the Anarchist FAQ and chapters of the Debian Reference; needs packages of Debian: `make texts`.

    A document is an essay or a chapter. English has 131 essays and 12 chapters, every other language the 12 chapters.

    Args:
        language: en, de, es, fr, id, it, ja, pt, pt-br, zh-cn or zh-tw.
    """

    language: str = "en"

    def __post_init__(self) -> None:
        if self.language not in REFERENCE_LANGUAGES:
            raise ConfigError(f"corpus.language must be one of {', '.join(REFERENCE_LANGUAGES)}, got {self.language!r}")

    def documents(self) -> Iterator[Document]:
        """Essays, then chapters, each in the order of their names; ConfigError without the packages."""
        if self.language == "en":
            yield from _pages("anarchism", "usr/share/doc/anarchism/html", ESSAY_FILE_PATTERN)
        yield from _pages(f"debian-reference-{self.language}", "usr/share/debian-reference", CHAPTER_FILE_PATTERN)

    def fingerprint(self) -> str:
        """Hash of the texts."""
        return hash_documents(self.documents())


def _pages(package: str, under: str, wanted: re.Pattern[str]) -> Iterator[Document]:
    for name, content in files_of(package, under).items():
        if wanted.fullmatch(name):
            yield Document(f"{package}/{name}", text_of_page(content.decode()))


def text_of_page(page: str) -> str:
    """The text of a page of HTML, by rules that no version of Python changes.

    The body only, without its links to other pages. White space is one space, and that of HTML and U+00A0 alone is
    white space. A tag of a block begins a paragraph or a line, a cell of a table ends with a tab, all other tags are
    left out. Text in `pre` stays as it is.
    """
    body = PAGE_END_PATTERN.split(page.partition("<body>")[2], maxsplit=1)[0]
    pieces = CODE_BLOCK_PATTERN.split(PAGE_HEADER_PATTERN.sub("", body))
    parts = [_text(piece) if place % 2 else _prose(piece) for place, piece in enumerate(pieces)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _prose(piece: str) -> str:
    text = CELL_BREAK_PATTERN.sub("\t", _text(WHITE_SPACE_PATTERN.sub(" ", piece)))
    return LINE_BREAKS_PATTERN.sub(lambda gap: "\n\n" if gap.group().count("\n") > 1 else "\n", text).strip(" \t\n")


def _text(piece: str) -> str:
    text = HTML_TAG_PATTERN.sub(lambda tag: WHITE_SPACE_OF_TAG.get(tag.group(1).lower(), ""), piece)
    return html.unescape(text).replace("\xa0", " ").strip("\n")
