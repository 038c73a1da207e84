"""The HTML page in a real browser: chromium, headless, with the page's own policy, and no network."""

import functools
import http.server
import json
import re
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from lexbench.core import registry
from lexbench.core.method_key import parse_label
from lexbench.core.record import Sample
from lexbench.parts.web.page import page
from lexbench.report import looks
from lexbench.stats import records
from lexbench.stats.intervals import adjust_by_holm
from lexbench.stats.pairs import outcomes_of_samples, paired_difference
from lexbench.stats.tables import Table, build_tables
from lexbench.store.format import FinishedCell
from tests.report import fake_run

pytestmark = pytest.mark.slow
sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install -e '.[dev]'")

LEXLET = Path(__file__).parents[3] / "results" / "reference" / "lexlet"
EVIL = (
    '<img src=x onerror="window.planted=1">',
    "</script><script>window.planted=1</script>",
    "<!--<script>",
    '"><svg onload=window.planted=1>',
    '<a href="javascript:window.planted=1">x</a>',
    "javascript:window.planted=1",
    "{{ 7 * 7 }}${window.planted=1}%{text}",
    "<b>bold</b> &lt;b&gt; <style>*{display:none}</style><base href=//elsewhere.example/>",
    "safe\u202egnp.exe\u2066\u200e",
    "][|`'\\\n\u2028\x00\x1b[31m",
)


def with_prompt(finished: FinishedCell) -> FinishedCell:
    """Samples as the runner keeps them: the question, the key inside it."""
    if not finished.cell.task.startswith("passkey"):
        return finished
    noise = "The grass is green. The sky is blue. "
    samples = [
        replace(each, prompt=f"{noise * 40}The pass key is {each.facts['expected']}.{noise * 40}What is the pass key?")
        for each in finished.samples
    ]
    return FinishedCell(finished.cell, samples, finished.refused)


@dataclass
class Tab:
    """A page that is watched: every request, and every word on the console."""

    tab: Any
    said: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    sent: list[str] = field(default_factory=list)
    """Of what was asked, what the policy let through."""

    def text(self, selector: str) -> str:
        """What is read there."""
        return str(self.tab.locator(selector).inner_text())

    def walk(self, *keys: str) -> None:
        """Press keys, one after another."""
        for key in keys:
            self.tab.keyboard.press(key)

    def method(self, name: str) -> Any:
        """Its box in the list of methods."""
        return self.tab.locator("#method-list").get_by_role("checkbox", name=re.compile(rf"^(unmodified \()?{name}\b"))

    def reads(self) -> None:
        """Until the samples of the cell that was picked are there."""
        self.waits("document.getElementById('sample').getAttribute('aria-busy') === 'false'")

    def waits(self, condition: str) -> None:
        """Until something holds in the page, within 10 seconds; wait_for_function needs eval, which is forbidden."""
        deadline = time.monotonic() + 120
        while not self.tab.evaluate(condition):
            assert time.monotonic() < deadline, condition
            self.tab.wait_for_timeout(20)


def opened(chromium: Any, address: str, **context: Any) -> Tab:
    """A new tab, in which nothing but the address and what lies below it is answered."""
    tab = chromium.new_context(viewport={"width": 1280, "height": 900}, **context).new_page()
    watched = Tab(tab)
    tab.on("console", lambda message: watched.said.append(f"{message.type}: {message.text}"))
    tab.on("pageerror", lambda error: watched.said.append(f"error: {error}"))
    tab.on("request", lambda request: watched.asked.append(request.url))
    below = address.rsplit("/", 1)[0]

    def answer(route: Any) -> None:
        watched.sent.append(route.request.url)
        if route.request.url.startswith(below):
            route.continue_()
        else:
            route.abort()

    tab.route("**/*", answer)
    tab.goto(address)
    tab.wait_for_selector("#curve-chart .curve .point")
    tab.wait_for_selector("#sample[aria-busy=false]")
    return watched


@pytest.fixture(scope="module")
def cells() -> list[FinishedCell]:
    """A made-up run."""
    return [with_prompt(each) for each in fake_run.fake_cells()]


@pytest.fixture(scope="module")
def file(cells: list[FinishedCell], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its page."""
    folder = tmp_path_factory.mktemp("run")
    fake_run.keep(folder, cells)
    return page.write_page([folder])


@pytest.fixture
def theme() -> str:
    """Of most tests; colours are tested in both."""
    return "light"


in_both_themes = pytest.mark.parametrize("theme", ["light", "dark"])


@pytest.fixture
def tab(theme: str, chromium: Any, file: Path) -> Iterator[Tab]:
    """The page; at the end nothing was said, and nothing was asked but the file."""
    watched = opened(chromium, file.as_uri(), color_scheme=theme)
    yield watched
    assert watched.said == []
    assert {address.split("#")[0] for address in watched.asked} <= {file.as_uri(), "data:,"}
    watched.tab.context.close()


def table_of(cells: list[FinishedCell], task: str, metric: str) -> Table:
    return next(each for each in build_tables(cells) if each.cell.task == task and each.metric == metric)


def test_curves_show_the_baseline_and_the_best_and_any_method_that_is_chosen(tab: Tab) -> None:
    assert tab.tab.locator("#setting option").all_inner_texts() == ["last_segment", "passkey"]
    checked = tab.tab.locator("#method-list label:has(:checked) .name").all_inner_texts()
    assert checked == ["unmodified (none)", "rerope", "yarn(factor=8.0)", "pi", "ntk"]  # by their losses
    tab.tab.click("#pick-none")
    assert tab.tab.locator("#curve-chart .curve .point").count() == 0
    tab.method("pi").check()
    levels = tab.tab.locator("#curve-chart .panel:not(.differences)")
    assert levels.locator(".curve .point").count() == 5
    assert tab.tab.locator("#curve-chart .differences .zero").count() == 1  # and differences beside them
    assert tab.tab.locator("#curve-table tbody tr").count() == 5
    tab.tab.select_option("#table-rows", "chosen")
    assert tab.tab.locator("#curve-table tbody tr").count() == 1


def test_the_table_sorts_filters_and_says_who_is_tied_for_the_first_place(tab: Tab, cells: list[FinishedCell]) -> None:
    """By hand: tied are those whose paired test against the best has p above 0.05 after Holm's correction."""
    table = table_of(cells, "last_segment", "nll")
    assert tab.tab.locator("#curve-table th[aria-sort=ascending], #curve-table th[aria-sort=descending]").count() == 0
    assert "Rows by the mean past the trained length, the best first" in tab.tab.inner_text("#table-help")
    tab.tab.locator("#curve-table thead button", has_text="512").click()
    rows = tab.tab.locator("#curve-table tbody tr")
    shown = rows.locator("th").all_inner_texts()
    shown = [name.replace("unmodified (none)", "none") for name in shown]
    here = {str(record.method): record for record in table.at(512)}
    assert shown == sorted(here, key=lambda method: here[method].value or 0)
    heads = tab.tab.locator("#curve-table thead th")

    def orders() -> list[str | None]:
        return [heads.nth(column).get_attribute("aria-sort") for column in range(heads.count())]

    assert orders() == ["none", None, "none", "none", "ascending", "none", "none"]  # losses, the best first
    answers = {
        str(each.cell.method): outcomes_of_samples(each.samples, "nll")
        for each in cells
        if each.cell.id in {record.cell for record in here.values()}
    }
    first, *others = shown
    tested = adjust_by_holm([paired_difference(answers[first], answers[name], "nll").p or 0.0 for name in others])
    places = ["tied for 1st of 5" if p > 0.05 else "behind" for p in tested]
    first_place = "tied for 1st of 5" if "tied for 1st of 5" in places else "1st of 5"
    assert [row.split("\t")[1].strip() for row in rows.all_inner_texts()] == [first_place, *places]
    assert "paired test" in (heads.nth(1).get_attribute("title") or "")
    tab.tab.locator("#curve-table thead button", has_text="512").click()
    assert rows.first.locator("th").inner_text().replace("unmodified (none)", "none") == shown[-1]
    assert orders()[4] == "descending"
    tab.tab.locator("#curve-table thead button", has_text="method").click()
    names = [name.replace("unmodified (none)", "none") for name in rows.locator("th").all_inner_texts()]
    assert names == sorted(here) and orders()[0] == "ascending"
    tab.tab.fill("#table-filter", "YARN")
    assert rows.locator("th").all_inner_texts() == ["yarn(factor=8.0)"]
    tab.tab.fill("#table-filter", "")
    tab.tab.select_option("#setting", label="passkey")  # a score: the best first is the highest first
    tab.tab.locator("#curve-table thead button", has_text="512").click()
    found = {str(record.method): record.value or 0 for record in table_of(cells, "passkey", "accuracy").at(512)}
    names = [name.replace("unmodified (none)", "none") for name in rows.locator("th").all_inner_texts()]
    values = [found[name] for name in names]
    assert values == sorted(values, reverse=True) and values[0] > values[-1] and orders()[4] == "descending"


@in_both_themes
def test_a_chart_is_saved_as_a_picture_of_its_own(tab: Tab, tmp_path: Path) -> None:
    for kind, start in (("SVG", b"<svg"), ("PNG", b"\x89PNG")):
        with tab.tab.expect_download() as download:
            tab.tab.locator("#curve-chart + .export button", has_text=kind).click()
        assert download.value.suggested_filename == f"last-segment-NLL-nats-per-token-.{kind.lower()}"
        download.value.save_as(tmp_path / kind)
        assert (tmp_path / kind).read_bytes().startswith(start)
    text = (tmp_path / "SVG").read_text()
    ElementTree.fromstring(text)
    assert "length (multiples of the trained length)" in text and "currentColor" not in text and "var(" not in text
    assert tab.said == []


def test_two_methods_answer_one_question_side_by_side(tab: Tab, cells: list[FinishedCell]) -> None:
    tab.tab.select_option("#setting", "1")
    tab.tab.focus("#curve-chart")
    tab.walk("Home", "End", "Enter")  # none at 2048 tokens
    tab.reads()
    tab.tab.select_option("#sample-beside", label="ntk")
    tab.waits("document.querySelector('#beside-sample h3')")
    tab.tab.click("#next")
    tab.waits("document.querySelector('#beside-sample p').textContent.includes('sample 1 ')")
    found = {
        str(each.cell.method): each.samples[1]
        for each in cells
        if each.cell.length == 2048 and each.cell.task == "passkey" and each.samples
    }
    for article, method in (("#sample", "none"), ("#beside-sample", "ntk")):
        word = "Right" if found[method].scores["accuracy"] == 1 else "Wrong"
        assert tab.text(f"{article} p >> nth=0").startswith(f"{word} sample 1 ")
        assert (found[method].output or "").strip() in tab.text(article)
    tab.tab.select_option("#sample-beside", label="rerope")  # refused at 2048
    tab.waits("document.getElementById('beside-sample').textContent.startsWith('Refused: out of memory')")


def test_every_metric_and_axis_can_be_drawn(tab: Tab) -> None:
    for setting in ("0", "1"):
        tab.tab.select_option("#setting", setting)
        for place in range(tab.tab.locator("#metric option").count()):
            tab.tab.select_option("#metric", str(place))
            for unit, scale in (("tokens", "linear"), ("multiples", "log")):
                tab.tab.select_option("#unit", unit)
                tab.tab.select_option("#xscale", scale)
                if tab.tab.is_enabled("#yscale"):
                    tab.tab.select_option("#yscale", scale)
                assert tab.tab.locator("#curve-chart .curve .point").count() >= 20
    ticks = tab.tab.locator("#curve-chart .panel:not(.differences) .xtick text").all_text_contents()
    assert ticks == ["0.5x", "1x", "2x", "4x", "8x"]


def test_keys_walk_along_the_points_and_say_value_interval_and_n(tab: Tab, cells: list[FinishedCell]) -> None:
    table = table_of(cells, "last_segment", "nll")
    tab.tab.focus("#curve-chart")
    tab.walk("ArrowRight", "ArrowDown", "End")
    refused = tab.text("#curve-said")
    assert refused.startswith("rerope at 2,048 tokens (8x): refused")
    assert "out of memory at batch 1" in refused
    assert tab.tab.locator("#curve-chart path.refused").count() > 0  # a cross above the lengths that a method refused
    tab.walk("ArrowLeft")
    record = table.entries[parse_label("rerope"), 1024]
    expected = (
        f"rerope at 1,024 tokens (4x): {record.value:.3f} [{record.low:.3f}, {record.high:.3f}], n 32 in 8 clusters"
    )
    assert tab.text("#curve-said") == expected
    assert f"{record.value:.3f} [{record.low:.3f}, {record.high:.3f}]" in tab.text("#curve-chart .tip")
    assert tab.tab.get_attribute("#curve-said", "aria-live") == "polite"


def test_a_pointer_over_a_point_shows_it_and_a_click_reads_its_samples(tab: Tab, cells: list[FinishedCell]) -> None:
    tab.tab.select_option("#setting", "1")
    tab.tab.click("#pick-none")
    tab.method("none").check()
    point = tab.tab.locator("#curve-chart .panel:not(.differences) .curve .point").nth(
        1
    )  # the first is 256 tokens: 128 are refused
    point.scroll_into_view_if_needed()
    box = point.bounding_box()
    tab.tab.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    record = table_of(cells, "passkey", "accuracy").entries[parse_label("none"), 512]
    tab.waits("!document.querySelector('#curve-chart .tip').hidden")
    shown = tab.text("#curve-chart .tip")
    assert f"{record.value:.2f} [{record.low:.2f}, {record.high:.2f}]" in shown
    assert "n 32" in shown
    tab.tab.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    tab.waits("document.getElementById('sample-length').value === '2'")
    assert tab.tab.input_value("#sample-method") == "0"


def test_depth_maps_hold_the_mean_scores_of_each_stratum(tab: Tab, cells: list[FinishedCell]) -> None:
    links = tab.tab.locator("nav a[href='#depths']")
    assert not tab.tab.is_visible("#depths") and not links.is_visible()  # likelihoods have no depth
    tab.tab.select_option("#setting", "1")
    assert tab.tab.is_visible("#depths") and links.is_visible()
    assert tab.tab.locator("#depth-chart .title").count() == 5
    [cell] = [
        each for each in cells if (each.cell.task, str(each.cell.method), each.cell.length) == ("passkey", "none", 512)
    ]
    deepest = [each.scores["accuracy"] for each in cell.samples if (each.depth or 0) >= 7 / 8]
    said = tab.tab.evaluate("fields[7][2].said")
    assert said.startswith(f"none, 512 tokens, depth 0.88 to 1.00: {sum(deepest) / len(deepest):.2f} ")
    tab.tab.click("#depths summary")
    row = tab.tab.locator("#depth-table tbody tr", has_text="none, 0.88 to 1.00")
    assert row.locator("td").nth(2).inner_text().split("\n")[0] == f"{sum(deepest) / len(deepest):.2f}"
    tab.tab.focus("#depth-chart")
    tab.walk("ArrowRight", "End")
    assert tab.text("#depth-said").startswith("none, 2,048 tokens, depth 0.00 to 0.13:")
    tab.walk("Enter")
    tab.waits("document.activeElement.id === 'sample'")
    assert tab.tab.input_value("#sample-length") == "4"


def test_the_paired_table_is_that_of_the_report(tab: Tab, cells: list[FinishedCell]) -> None:
    from lexbench.stats.differences import paired_differences

    found = paired_differences(table_of(cells, "last_segment", "nll"), {each.cell.id: each.samples for each in cells})
    assert found is not None
    each = found.entries[parse_label("pi"), 2048]
    row = tab.tab.locator("#paired-table tbody tr", has=tab.tab.locator("th", has_text=re.compile("^pi$")))
    text = row.locator("td").nth(4).inner_text().split()
    assert text[0].rstrip("*0123456789") == f"{each.difference:+.3f}".rstrip("0123456789")
    assert text[0].startswith(f"{each.difference:+.3f}")
    assert ("*" in text[0]) == each.significant
    tab.tab.click("#pick-none")
    assert tab.tab.locator("#paired-table tbody tr").count() == 1
    tab.tab.check("#paired-all")
    assert tab.tab.locator("#paired-table tbody tr").count() == 5


def test_a_difference_that_cannot_be_told_says_why_in_the_paired_table(tab: Tab) -> None:
    """Inside the trained length both methods find every key."""
    tab.tab.select_option("#setting", "1")
    row = tab.tab.locator("#paired-table tbody tr", has=tab.tab.locator("th", has_text=re.compile("^pi$")))
    mark = row.locator("td").nth(1).locator("sup").inner_text()
    said = tab.tab.locator("#paired-table ol.notes li").nth(int(mark) - 1).inner_text()
    assert said == "cannot be told: both at the ceiling (1.00)"


def test_samples_are_read_with_what_is_expected_marked(tab: Tab, cells: list[FinishedCell]) -> None:
    tab.tab.select_option("#setting", "1")
    tab.tab.focus("#curve-chart")
    tab.walk("Home", "End", "Enter")  # none at 2048 tokens
    tab.reads()
    [cell] = [
        each for each in cells if (each.cell.task, str(each.cell.method), each.cell.length) == ("passkey", "none", 2048)
    ]
    assert tab.tab.locator("#sample mark").first.inner_text() == "40000"
    assert tab.text("#sample-place") == "1 of 32"
    assert f"depth {cell.samples[0].depth:.2f}" in tab.text("#sample p >> nth=0")
    tab.walk("ArrowRight", "ArrowRight", "ArrowRight", "ArrowLeft")
    assert tab.text("#sample-place") == "3 of 32"
    assert tab.tab.locator("#sample mark").first.inner_text() == "40002"
    wrong = [each.index for each in cell.samples if each.scores["accuracy"] == 0]
    tab.tab.select_option("#sample-filter", "wrong")
    assert tab.text("#sample-place") == f"1 of {len(wrong)} wrong"
    assert f"Wrong sample {wrong[0]} " in tab.text("#sample p >> nth=0")
    tab.tab.select_option("#sample-filter", "failed")
    assert tab.text("#sample") == "No sample of this cell is failed."


def test_the_nll_of_a_sample_is_summed_up_and_drawn(tab: Tab, cells: list[FinishedCell]) -> None:
    tab.tab.focus("#curve-chart")
    tab.walk("Home", "Enter")  # none at 128 tokens
    tab.reads()
    tab.waits("document.querySelector('#sample .sample-chart .line')")
    [cell] = [
        each
        for each in cells
        if (each.cell.task, str(each.cell.method), each.cell.length) == ("last_segment", "none", 128)
    ]
    losses = cell.samples[0].nll
    assert losses is not None
    assert f"64 targets: mean {losses.mean():.4f}".rstrip("0") in tab.text("#sample")


def test_the_address_stays_until_something_is_chosen(tab: Tab) -> None:
    tab.tab.get_by_role("link", name="Differences").click()
    tab.tab.reload()
    tab.tab.wait_for_selector("#sample > *")
    assert tab.tab.evaluate("location.hash") == "#paired"


def test_the_address_brings_back_what_was_chosen(tab: Tab) -> None:
    tab.tab.select_option("#setting", "1")
    tab.method("ntk").uncheck()
    tab.tab.focus("#curve-chart")
    tab.walk("Home", "ArrowRight", "Enter")
    tab.reads()
    tab.walk("ArrowRight", "ArrowRight")
    tab.waits("document.getElementById('sample-place').textContent === '3 of 32'")
    before = [tab.tab.input_value(f"#{each}") for each in ("setting", "metric", "sample-method", "sample-length")]
    tab.tab.reload()
    tab.waits("document.getElementById('sample-place').textContent === '3 of 32'")
    assert [
        tab.tab.input_value(f"#{each}") for each in ("setting", "metric", "sample-method", "sample-length")
    ] == before
    assert not tab.method("ntk").is_checked()


def luminance(colour: str) -> float:
    """Relative luminance of an rgb(...) colour (WCAG 2.2)."""
    parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@in_both_themes
def test_text_and_lines_have_the_contrast_of_wcag_aa_in_both_themes(tab: Tab) -> None:
    def colours(selector: str) -> list[list[str]]:
        """Text colour, and the colour behind it, of all that is shown."""
        code = """all => all.filter(e => e.offsetParent && e.textContent.trim()).map(e => {
            let behind = e;
            const clear = "rgba(0, 0, 0, 0)";
            const seen = (each) => each === document.body || getComputedStyle(each).backgroundColor !== clear;
            while (!seen(behind)) behind = behind.parentElement;
            return [getComputedStyle(e).color, getComputedStyle(behind).backgroundColor, e.tagName];
        })"""
        return list(tab.tab.eval_on_selector_all(selector, code))

    texts = colours(
        "p, a, h1, h2, h3, th, td, small, label, button:enabled, select, dt, dd, mark, b, summary, .outcome"
    )
    assert len(texts) > 100
    for ink, paper, tag in texts:
        assert contrast(ink, paper) >= 4.5, f"{tag}: {ink} on {paper}"
    paper = tab.tab.evaluate("getComputedStyle(document.body).backgroundColor")
    for slot in range(9):
        ink = tab.tab.evaluate(
            """name => { const probe = make("span", { class: name }); document.body.append(probe);
            const ink = getComputedStyle(probe).color; probe.remove(); return ink; }""",
            f"hue-{slot}",
        )
        assert contrast(ink, paper) >= 3, f"line {slot}: {ink} on {paper}"


@in_both_themes
def test_the_theme_switch_changes_page_and_charts(tab: Tab) -> None:
    paper = "getComputedStyle(document.body).backgroundColor"
    ink = "getComputedStyle(document.querySelector('#curve-chart .xtick text')).fill"
    tab.tab.select_option("#theme", "dark")
    dark = tab.tab.evaluate(paper), tab.tab.evaluate(ink)
    tab.tab.select_option("#theme", "light")
    light = tab.tab.evaluate(paper), tab.tab.evaluate(ink)
    assert luminance(dark[0]) < 0.05 < 0.9 < luminance(light[0])
    assert luminance(light[1]) < 0.05 < 0.7 < luminance(dark[1])


def test_every_control_has_a_name_and_is_reached_by_the_tab_key(tab: Tab) -> None:
    code = """all => all.filter(e => e.offsetParent).filter(
        e => !(e.labels?.length || e.getAttribute("aria-label") || (e.tagName === "BUTTON" && e.textContent.trim()))
    ).map(e => e.outerHTML)"""
    assert tab.tab.eval_on_selector_all("select, input, button", code) == []
    wanted = {"theme", "setting", "metric", "unit", "curve-chart", "pick-all", "sample-method", "next", "sample"}
    reached = set()
    for _ in range(80):
        tab.walk("Tab")
        reached.add(tab.tab.evaluate("document.activeElement.id"))
    assert wanted <= reached


def test_a_narrow_screen_scrolls_only_down(chromium: Any, file: Path) -> None:
    watched = opened(chromium, file.as_uri())
    watched.tab.set_viewport_size({"width": 360, "height": 740})
    watched.tab.select_option("#setting", "1")
    watched.tab.wait_for_timeout(300)
    wide, room = watched.tab.evaluate("[document.documentElement.scrollWidth, document.documentElement.clientWidth]")
    assert wide <= room
    lines = """all => Object.fromEntries(all.map(each => {
        const range = document.createRange();
        range.selectNodeContents(each);
        return [each.textContent, new Set([...range.getClientRects()].map(box => box.top)).size];
    }))"""
    names = watched.tab.eval_on_selector_all("#curve-table tbody th bdi", lines)
    assert names.keys() >= {"unmodified (none)", "yarn(factor=8.0)"}
    assert set(names.values()) <= {1, 2}  # a name is broken between words alone
    assert watched.tab.locator("#curve-table .scroll.wide").count() == 1  # it says that it scrolls
    cut = """all => all.flatMap(each => [...each.querySelectorAll("thead th")])
        .map(head => head.getBoundingClientRect())
        .map(box => [box.left, box.right]).filter(([left, right]) => left < innerWidth - 18 && right > innerWidth)"""
    assert watched.tab.eval_on_selector_all("#curve-table table", cut) == []  # no number stands across the edge
    assert watched.said == []


@pytest.mark.parametrize(("width", "height"), [(390, 844), (1400, 900)])
def test_the_first_screen_has_one_sentence_and_a_curve_below_it(
    width: int, height: int, chromium: Any, file: Path
) -> None:
    watched = opened(chromium, file.as_uri())
    watched.tab.set_viewport_size({"width": width, "height": height})
    watched.tab.wait_for_timeout(300)
    tops = "ids => ids.map(id => document.getElementById(id).getBoundingClientRect().top)"
    sentence, curve, tables = watched.tab.evaluate(tops, ["sentence", "curve-chart", "summary"])
    assert 0 < sentence < curve < tables and curve < 0.6 * height
    assert watched.text("#sentence").count(". ") == 0 and watched.text("#sentence").endswith(".")
    for column in watched.tab.locator("#summary thead th:not(:first-child)").all():
        assert column.get_attribute("title") in watched.tab.locator("#summary dd").all_text_contents()


@pytest.mark.parametrize("right", [True, False])
def test_labels_of_a_chart_that_begins_at_the_trained_length_do_not_cross(
    right: bool, chromium: Any, cells: list[FinishedCell], tmp_path: Path
) -> None:
    """The trained length has its name above all points where no answer is right."""
    guessed = [
        replace(
            each, samples=[replace(one, chance=0.1, scores=one.scores if right else none(one)) for one in each.samples]
        )
        for each in cells
        if each.cell.task == "passkey" and each.cell.length >= each.cell.trained_length
    ]
    fake_run.keep(tmp_path, guessed)
    watched = opened(chromium, page.write_page([tmp_path]).as_uri())
    code = "all => Object.fromEntries(all.map(each => [each.textContent, each.getBoundingClientRect().toJSON()]))"
    boxes = watched.tab.eval_on_selector_all("#curve-chart text.quiet", code)
    trained, chance = boxes["trained length"], boxes["chance"]
    watched.tab.context.close()
    if right:
        assert trained["top"] < chance["top"] < chance["bottom"] < trained["bottom"]  # beside one another
        assert trained["right"] <= chance["left"]
    else:
        assert trained["bottom"] < chance["top"]


def none(sample: Sample) -> dict[str, float]:
    """Scores of a wrong answer."""
    return dict.fromkeys(sample.scores, 0.0)


def test_it_prints_in_light_on_paper(chromium: Any, file: Path, tmp_path: Path) -> None:
    watched = opened(chromium, file.as_uri(), color_scheme="dark")
    watched.tab.pdf(path=str(tmp_path / "page.pdf"), format="A4")
    assert (tmp_path / "page.pdf").read_bytes().startswith(b"%PDF")
    dark = watched.tab.evaluate("getComputedStyle(document.body).backgroundColor")
    assert luminance(dark) < 0.05  # afterwards it is as it was
    assert watched.said == []


def evil_cells() -> list[FinishedCell]:
    """A run whose every name, text and reason is an attack."""
    made = []
    for place, evil in enumerate(EVIL):
        changed: dict[str, Any] = {"model": EVIL[1], "protocol": evil, "corpus": evil, "backend": evil, "version": evil}
        for method in ("none", evil):
            for length in (128, 512):
                shape = "passkey" if place % 2 else "last_segment"
                finished = fake_run.finished(shape, "pi", length, n=8)
                cell = replace(finished.cell, task=evil, method=parse_label(method), **changed)
                cell = replace(
                    cell,
                    identity={
                        **cell.identity,
                        "task": {"name": evil},
                        "method": {"name": method},
                        "model": {"name": EVIL[1]},
                        "backend": {"name": evil},
                    },
                )
                samples = [
                    replace(
                        each,
                        cluster=f"{evil} {each.index}",
                        prompt=f"{evil} {evil}",
                        output=evil,
                        failed=evil if each.index == 1 else None,
                        parts=(evil,),
                        facts={"expected": [evil, "pass"], evil: evil},
                    )
                    for each in finished.samples
                ]
                refused = evil if length == 128 and method != "none" else None
                made.append(FinishedCell(cell, [] if refused else samples, refused))
    return made


def test_planted_scripts_do_not_run(chromium: Any, tmp_path: Path) -> None:
    fake_run.keep(tmp_path, evil_cells())
    (tmp_path / "jobs").mkdir()
    job = {
        "config": {"model": {"name": EVIL[0], EVIL[1]: EVIL}, "method": [EVIL], "task": [EVIL]},
        "provenance": {EVIL[2]: EVIL[1], "git": EVIL[0]},
    }
    (tmp_path / "jobs" / "a.json").write_text(json.dumps(job))
    file = page.write_page([tmp_path])
    watched = opened(chromium, file.as_uri())
    tab = watched.tab
    for setting in range(len(EVIL)):
        tab.select_option("#setting", str(setting))
        tab.click("#pick-all")
        tab.focus("#curve-chart")
        watched.walk("Home", "ArrowRight", "Enter")
        for choice in range(2):
            tab.select_option("#sample-method", str(choice))
            tab.select_option("#sample-length", "1")
            watched.reads()
            assert tab.locator("#sample .text-block").count() or "Refused" in tab.inner_text("#sample")
            watched.walk("ArrowRight")
        for details in tab.locator("details:not([open]) > summary").all():
            if details.is_visible():
                details.click()
        point = tab.locator("#curve-chart .curve .point").last
        point.scroll_into_view_if_needed()
        point.hover(force=True)
    tab.wait_for_timeout(300)
    assert tab.evaluate("window.planted") is None
    assert watched.said == []
    assert {address.split("#")[0] for address in watched.asked} <= {file.as_uri(), "data:,"}
    assert tab.locator("main img, main svg a, main a[href^='javascript']").count() == 0
    assert EVIL[0] in tab.inner_text("#missing")
    shown = tab.evaluate("document.body.textContent")
    assert "\u202e" not in shown.split("window.planted")[0] + tab.inner_text("main")
    assert "\u27e8U+202E\u27e9" in shown


def test_the_policy_holds_against_a_script_that_got_in(chromium: Any, file: Path) -> None:
    """The watch would notice: what escaping should have kept out is stopped, and said."""
    watched = opened(chromium, file.as_uri())
    watched.tab.evaluate(
        """() => {
            const script = document.createElement("script");
            script.textContent = "window.planted = 1";
            document.head.append(script);
            const image = document.createElement("img");
            image.setAttribute("onerror", "window.planted = 1");
            image.src = "https://elsewhere.example/x.png";
            document.body.append(image);
            const style = document.createElement("style");
            style.textContent = "* { display: none }";
            document.head.append(style);
            fetch("https://elsewhere.example/").catch(() => {});
        }"""
    )
    watched.tab.wait_for_timeout(300)
    assert watched.tab.evaluate("window.planted") is None
    for directive in ("script-src", "img-src", "style-src", "connect-src"):
        assert any(directive in line for line in watched.said), directive
    assert not any("elsewhere" in address for address in watched.sent)


def test_the_reference_run_opens_clean(chromium: Any, tmp_path: Path) -> None:
    watched = opened(chromium, page.write_page([LEXLET], tmp_path / "page.html").as_uri())
    for setting in range(watched.tab.locator("#setting option").count()):
        watched.tab.select_option("#setting", str(setting))
        for metric in range(watched.tab.locator("#metric option").count()):
            watched.tab.select_option("#metric", str(metric))
        watched.reads()
    assert watched.said == []


def test_the_served_page_fetches_the_samples_of_the_cell_that_is_picked(
    chromium: Any, cells: list[FinishedCell], tmp_path: Path
) -> None:
    fake_run.keep(tmp_path, cells)
    loaded = records.load_cells([tmp_path])
    (tmp_path / "index.html").write_text(page.render_page(loaded, [tmp_path], served=True))
    (tmp_path / "samples").mkdir()
    for each in loaded.finished:
        (tmp_path / "samples" / f"{each.cell.id}.json").write_text(page.samples.samples_json(each))
    handler = functools.partial(Quiet, directory=str(tmp_path))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        watched = opened(chromium, f"http://127.0.0.1:{server.server_port}/index.html")
        watched.tab.select_option("#setting", "1")
        watched.tab.focus("#curve-chart")
        watched.walk("Home", "End", "Enter")
        watched.reads()
        assert watched.tab.locator("#sample-place").inner_text() == "1 of 32"
        server.shutdown()
    [cell] = [
        each.cell
        for each in cells
        if (each.cell.task, str(each.cell.method), each.cell.length) == ("passkey", "none", 2048)
    ]
    fetched = [address.rsplit("/", 2)[1:] for address in watched.asked if "/samples/" in address]
    assert fetched[-1] == ["samples", f"{cell.id}.json"]
    assert len(fetched) <= 3
    assert not any("Content Security Policy" in line for line in watched.said)


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Says nothing about what it serves."""

    def log_message(self, *_: Any) -> None:
        return


def test_many_methods_have_panels_in_each_of_which_the_baseline_is_whole(
    chromium: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = registry.registered_names("method")
    families = [[name for name in known if looks.family_of(name) == family] for family in looks.METHOD_FAMILIES]
    names = ["none", "mine", *(name for members in families for name in members[:2])]
    losses = {name: 0.01 * place for place, name in enumerate(names)} | {"none": 7.0, "critical_base": 20.0}
    monkeypatch.setattr(fake_run, "LOSS", losses)  # nats for each doubling past the trained length
    made = fake_run.fake_cells(tasks=("last_segment",), losses=losses, n=8)
    fake_run.keep(tmp_path, made)
    watched = opened(chromium, page.write_page([tmp_path]).as_uri())
    assert watched.tab.evaluate("chosen.methods.map((method) => setting().methods[method])")[:2] == ["none", "mine"]
    watched.tab.locator("#pick-all").click()
    panels = watched.tab.locator("#curve-chart .panel")
    assert panels.count() >= 2 * len(looks.METHOD_FAMILIES)  # differences, and levels beside them
    panels = watched.tab.locator("#curve-chart .panel:not(.differences)")
    told = watched.text("#curve-said")
    assert "A panel for each family of methods" in told and "the value axis is compressed" in told
    assert panels.locator(".curve.hue-0").count() == panels.count()  # one baseline a panel, nowhere cut off
    assert panels.locator(".arrow.hue-0").count() == 0 < panels.locator(".arrow").count()
    red, green, blue = (int(looks.HIGHLIGHT_COLOUR[place : place + 2], 16) for place in (1, 3, 5))
    front = panels.locator(".curve.front")
    assert front.count() == panels.count()
    assert {front.nth(place).evaluate("e => getComputedStyle(e).color") for place in range(front.count())} == {
        f"rgb({red}, {green}, {blue})"
    }
    assert watched.said == []
