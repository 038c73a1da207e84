"""The documentation's site: it builds strictly, asks for nothing from outside, and lacks no link and no method."""

import os
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag

import pytest
from playwright.sync_api import Browser

from lexbench.commands import main
from lexbench.core import registry
from lexbench.core.files import lock_file

ROOT = Path(__file__).parent.parent
LOADED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "video": "src", "object": "data"}
"""Elements that make a browser fetch something, and the attribute that says what."""
pytestmark = pytest.mark.slow


class Page(HTMLParser):
    """What a page links, loads and can be linked at."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.places: set[str] = {""}
        self.feed(file.read_text())

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attributes}
        self.places |= {given.get("id", ""), given.get("name", "")}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        if tag == "link":  # also what is only announced: preconnect, prefetch, canonical
            self.loaded.append(given.get("href", ""))
        if tag in LOADED and LOADED[tag] in given:
            self.loaded.append(given[LOADED[tag]])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site, which all workers of a test run share."""
    own = tmp_path_factory.getbasetemp()
    shared = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own
    folder, built = shared / "site", shared / "site.built"
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-d", str(folder)]
    with (shared / "site.lock").open("w") as lock:
        lock_file(lock.fileno(), wait=True)
        if not built.exists():
            done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
            assert done.returncode == 0 and not done.stderr, done.stdout + done.stderr
            built.touch()
    return folder


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    return {file.resolve(): Page(file) for file in site.rglob("*.html")}


def test_nothing_is_loaded_from_outside(site: Path, pages: dict[Path, Page]) -> None:
    assert len(pages) > 15
    for file, page in pages.items():
        for address in page.loaded:
            assert not address.startswith(("http:", "https:", "//")), f"{file} loads {address}"
            here = site / address.lstrip("/") if file.name == "404.html" else file.parent / address
            assert here.exists(), f"{file} loads {address}"
    own = [site / "assets" / name for name in ("style.css", "iframe-worker.js")]
    assert not [file for file in own if "http" in file.read_text()]


def test_all_links_of_the_site_lead_somewhere(pages: dict[Path, Page]) -> None:
    for file, page in pages.items():
        for link in page.links:
            address, place = urldefrag(unquote(link))
            if address.startswith(("http:", "https:", "javascript:")) or file.name == "404.html":
                continue
            target = (file.parent / address).resolve() if address else file
            assert target.exists(), f"{file} links {link}"
            assert target not in pages or place in pages[target].places, f"{file} links {link}"


def test_the_galleries_hold_every_method_encoding_and_task(site: Path) -> None:
    methods = (site / "gallery" / "methods.html").read_text()
    for name in registry.registered_names("method"):
        assert f'id="{name}"' in methods and f'src="method-{name}.svg"' in methods
        assert "<path" in (site / "gallery" / f"method-{name}.svg").read_text()
    encodings = (site / "gallery" / "encodings.html").read_text()
    for name in registry.registered_names("encoding"):
        assert f'id="{name}"' in encodings
        assert "<path" in (site / "gallery" / f"encoding-{name}.svg").read_text()
    tasks = (site / "gallery" / "tasks.html").read_text()
    for name in registry.registered_names("task"):
        assert f"task={name}<" in tasks or f"<code>{name}</code>" in tasks


def test_the_page_of_commands_has_them_all(site: Path) -> None:
    page = (site / "commands.html").read_text()
    assert [name for name in main.COMMANDS_BY_NAME if f'id="{name}"' not in page] == []


def test_a_phone_shows_drawings_large_enough_to_read_and_scrolls_only_down(site: Path, chromium: Browser) -> None:
    context = chromium.new_context(viewport={"width": 390, "height": 844})
    page = context.new_page()
    page.goto((site / "index.html").as_uri())
    box = page.locator(".drawing").first.bounding_box()
    across = page.evaluate("document.documentElement.scrollWidth")
    context.close()
    assert box and box["width"] > 600  # letters of 9 points are drawn for 864 pixels
    assert across == 390


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_browser_opens_it_from_a_folder_without_a_network(site: Path, scheme: str, chromium: Browser) -> None:
    context = chromium.new_context(color_scheme=scheme)  # type: ignore[arg-type]
    page = context.new_page()
    faults: list[str] = []
    page.on("request", lambda each: faults.append(each.url) if each.url.startswith("http") else None)
    page.on("console", lambda each: faults.append(each.text) if each.type == "error" else None)
    page.on("pageerror", lambda error: faults.append(str(error)))
    for name in ("index", "protocols", "gallery/methods", "gallery/encodings", "commands"):
        page.goto((site / f"{name}.html").as_uri())
        page.wait_for_load_state("networkidle")
    dark = page.evaluate("document.body.dataset.mdColorScheme")
    page.click("input[name=query]")
    page.keyboard.type("sign flips")
    page.wait_for_selector(".md-search-result__list a")
    first = page.locator(".md-search-result__list a").first.get_attribute("href") or ""
    context.close()
    assert dark == ("slate" if scheme == "dark" else "default")
    assert "statistics.html" in first
    assert faults == []
