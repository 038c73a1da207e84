"""The HTML page as it is written: what it holds, what it leaves out, and that untrusted text stays text."""

import base64
import hashlib
import html
import itertools
import json
import math
import re
import shutil
import zlib
from collections.abc import Sequence
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lexbench.commands import main
from lexbench.core.method_key import parse_label
from lexbench.core.record import Sample
from lexbench.parts.web.page import about, data, headlines, page, safety, samples
from lexbench.report.grid import GridEntry
from lexbench.stats import records
from lexbench.stats.differences import paired_differences
from lexbench.stats.records import LoadedCells
from lexbench.stats.rescore import samples_by_cell
from lexbench.stats.summaries import curve_summaries
from lexbench.stats.tables import build_tables
from lexbench.store.format import FinishedCell
from tests.report.fake_run import LENGTHS, cell, fake_cells, fake_run, finished, keep, likelihood_sample

HOSTILE = "</script><script>alert(1)</script><!--<img src=x onerror=alert(1)>\u202e"
INERT = ("application/json", "text/plain")


class Parsed(HTMLParser):
    """Elements with their attributes, and the text inside scripts and styles."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.contents: list[tuple[str, dict[str, str | None], str]] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attributes)))
        if tag in ("script", "style"):
            self.contents.append((*self.elements[-1], ""))

    def handle_data(self, text: str) -> None:
        if self.elements and self.cdata_elem:
            self.contents[-1] = (*self.contents[-1][:2], self.contents[-1][2] + text)
        else:
            self.text += text

    @property
    def policy(self) -> dict[str, str]:
        """Directives and their sources."""
        [stated] = [each["content"] for tag, each in self.elements if each.get("http-equiv")]
        return dict(directive.split(" ", 1) for directive in (stated or "").split("; "))

    @property
    def data(self) -> dict[str, Any]:
        """What the page's scripts read."""
        [content] = [text for _, attributes, text in self.contents if attributes.get("id") == "data"]
        return dict(json.loads(content))

    def samples(self, of: str) -> dict[str, Any]:
        """The samples of a cell, unpacked."""
        [packed] = [text for _, attributes, text in self.contents if attributes.get("id") == f"samples-{of}"]
        return dict(json.loads(zlib.decompress(base64.b64decode(packed))))


@pytest.fixture(scope="module")
def cells() -> list[FinishedCell]:
    return fake_cells()


@pytest.fixture(scope="module")
def parsed(cells: list[FinishedCell]) -> Parsed:
    return Parsed(page.render_page(LoadedCells(cells, [], []), [Path("runs/fake")]))


def entry(found: Sequence[dict[str, Any]], setting: dict[str, Any], method: str, length: int) -> dict[str, Any]:
    place = {"method": setting["methods"].index(method), "length": setting["lengths"].index(length)}
    [one] = [each for each in found if all(each[key] == value for key, value in place.items())]
    return one


# What it shows --------------------------------------------------------------------------------------------------------


def test_values_are_those_of_the_records(parsed: Parsed, cells: list[FinishedCell]) -> None:
    seen = 0
    settings = {setting["label"]: setting for setting in parsed.data["settings"]}
    for each in cells:
        setting = settings[each.cell.task]
        for record in records.records_of(each):
            if record.metric is None:
                continue
            [metric] = [one for one in setting["metrics"] if one["metric"] == record.metric]
            found = entry(metric["values"], setting, str(each.cell.method), each.cell.length)
            for side in ("value", "low", "high"):
                assert found[side] == pytest.approx(getattr(record, side), rel=1e-5)
            assert (found["n"], found["clusters"]) == (record.n, record.clusters)
            seen += 1
    assert seen > 100


def test_a_refused_cell_says_why_and_has_no_value(parsed: Parsed) -> None:
    [setting] = [each for each in parsed.data["settings"] if each["label"] == "last_segment"]
    found = entry(setting["metrics"][0]["values"], setting, "rerope", 2048)
    assert (found["value"], found["text"]) == (None, "refused")
    assert found["notes"] == ["refused: out of memory at batch 1: 2048 tokens need 61 GiB, a smaller model may fit"]


def test_depths_are_means_of_their_strata(parsed: Parsed, cells: list[FinishedCell]) -> None:
    [setting] = [each for each in parsed.data["settings"] if each["label"] == "passkey"]
    [cell] = [
        each for each in cells if (each.cell.task, str(each.cell.method), each.cell.length) == ("passkey", "none", 512)
    ]
    strata = entry(setting["metrics"][0]["depths"], setting, "none", 512)["strata"]
    assert len(strata) == 8
    for place, (n, value, low, high) in enumerate(strata):
        inside = [each.scores["accuracy"] for each in cell.samples if place <= 8 * (each.depth or 0) < place + 1]
        assert n == len(inside) == 4
        assert value == pytest.approx(np.mean(inside), rel=1e-5)
        assert low <= value <= high


def test_paired_differences_are_those_of_the_report(parsed: Parsed, cells: list[FinishedCell]) -> None:
    known = {each.cell.id: each.samples for each in cells}
    table = next(each for each in build_tables(cells) if each.metric == "nll")
    found = paired_differences(table, known)
    assert found is not None
    [setting] = [each for each in parsed.data["settings"] if each["label"] == "last_segment"]
    for (method, length), each in found.entries.items():
        row = entry(setting["metrics"][0]["paired"]["rows"], setting, str(method), length)
        if each.difference is None:
            assert "value" not in row and row["why"]
        else:
            assert row["value"] == pytest.approx(each.difference, rel=1e-5)
            assert row["significant"] == each.significant
            assert float(row["text"]) == pytest.approx(each.difference, abs=5e-4)


def test_the_same_attention_has_no_difference_on_the_page() -> None:
    own, other = (cell("last_segment", method, 512) for method in ("none", "own"))
    other = replace(other, identity={**other.identity, "attention": {}})
    made = [FinishedCell(each, [plain(index, 1.0) for index in range(4)]) for each in (own, other)]
    [setting] = data.settings_data(data.PageData.of(made))
    [row] = setting["metrics"][0]["paired"]["rows"]
    assert row["text"] == "same attention" and "value" not in row


def test_sections_without_content_are_not_there(parsed: Parsed) -> None:
    """The made-up run has refusals; a run of one method without any has nothing to miss and nothing to compare."""
    whole = {attributes.get("id") for tag, attributes in parsed.elements if tag == "section"}
    made = [
        FinishedCell(cell("last_segment", "none", at), [plain(index, 3.0) for index in range(4)]) for at in (256, 512)
    ]
    made = [replace(each, cell=replace(each.cell, n=4)) for each in made]
    few = Parsed(page.render_page(LoadedCells(made, [], []), [Path("runs/fake")]))
    assert whole - {attributes.get("id") for tag, attributes in few.elements if tag == "section"} == {"missing"}
    assert "#missing" not in {attributes.get("href") for tag, attributes in few.elements if tag == "a"}


def test_places_are_those_of_the_paired_test() -> None:
    """Of 12 texts yarn is 0.1 nats worse than none on each: p = 2 / 2^12; ntk is worse on one half: p is near 1.

    All intervals hold one another's values, as levels of texts are 2 nats apart: so they rank nothing.
    """
    worse = {"none": [0.0] * 12, "yarn": [0.1] * 12, "ntk": [0.101, -0.099] * 6}
    made = [
        FinishedCell(cell("last_segment", name, 512, n=12), [plain(at, 2.0 + (at % 3) + more[at]) for at in range(12)])
        for name, more in worse.items()
    ]
    table = next(each for each in build_tables(made) if each.metric == "nll")
    samples = {each.cell.id: each.samples for each in made}
    found = {str(method): place for (method, _), place in data.places(table, samples).items()}
    assert found == {"none": "1st", "ntk": "tied", "yarn": "behind"}
    here = {str(record.method): record for record in table.at(512)}
    assert here["none"].high is not None and here["none"].high > (here["yarn"].value or 0.0)


def test_methods_stand_by_their_mean_past_the_trained_length() -> None:
    """Over lengths that all have: `early` leads at 512 alone, and `late`'s best length is one that `early` lacks."""
    losses = {("none", 512): 3.0, ("none", 1024): 4.0, ("early", 512): 1.0, ("late", 512): 2.0, ("late", 1024): 0.5}
    made = [
        FinishedCell(cell("last_segment", method, length), [plain(index, loss) for index in range(4)])
        for (method, length), loss in losses.items()
    ]
    made.append(FinishedCell(cell("last_segment", "early", 1024), [], "too long"))
    table = next(each for each in build_tables(made) if each.metric == "nll")
    assert data.lengths_past_trained(table) == [512]
    assert list(map(str, data.rank_methods(table))) == ["early", "late", "none"]
    assert data.ranking_measure(table) == "the mean past the trained length"
    assert data.ranking_measure(replace(table, metric="entropy")) is None  # neither side is better
    inside = FinishedCell(cell("last_segment", "none", 128), [plain(index, 1.0) for index in range(4)])
    assert data.ranking_measure(next(iter(build_tables([inside])))) == "the mean over the lengths that all share"


def plain(index: int, loss: float) -> Sample:
    return Sample(index=index, cluster=str(index), tokens=512, nll=np.full(4, loss, np.float32), bytes=9, words=2)


def test_the_headline_names_the_best_and_what_cannot_be_told_from_it(cells: list[FinishedCell]) -> None:
    nll, passkey = headlines.metric_headlines(data.PageData.of(cells))
    means = {}
    for method in ("none", "ntk", "pi", "rerope", "yarn(factor=8.0)"):
        values = [
            np.mean(np.concatenate([s.nll for s in each.samples if s.nll is not None], dtype=np.float64))
            for each in cells
            if (each.cell.task, str(each.cell.method)) == ("last_segment", method) and each.cell.length in (512, 1024)
        ]
        means[method] = np.mean(values)
    best = min(means, key=means.__getitem__)
    assert nll["sentence"].startswith(f"{best} has the lowest mean past 256 tokens, {means[best]:.3f} [")
    assert f"where the unmodified model has {means['none']:.3f} [" in nll["sentence"]
    shown = {row["method"].replace("unmodified (none)", "none"): row["entries"][0] for row in nll["rows"]}
    assert list(shown) == [*sorted(means, key=means.__getitem__)[:3], "none"]
    assert {row: entry.text for row, entry in shown.items()} == {row: f"{means[row]:.3f}" for row in shown}
    assert [entry.best for entry in shown.values()] == [True, False, False, False]
    column = nll["columns"][0]
    assert (column["head"], column["unit"]) == ("mean past 256", "512 to 1,024, 2 lengths")
    assert all(
        each["means"] in headlines.MEANING_OF_COLUMN.values() for each in nll["columns"]
    )  # hover and legend say one thing
    assert passkey["label"] == "copied whole"


def test_the_page_begins_with_the_likelihoods_whatever_the_names_of_other_tasks() -> None:
    made = [
        FinishedCell(cell("last_segment", "none", at), [plain(index, 3.0) for index in range(4)]) for at in (256, 512)
    ]
    made += [
        FinishedCell(cell(task, "none", 512), [Sample(index=0, cluster="0", tokens=512, scores={"accuracy": 1.0})])
        for task in ("distractor_qa", "passkey")
    ]
    names = [group[0].cell.task for group in data.PageData.of(made).settings]
    assert names == ["last_segment", "distractor_qa", "passkey"]


def test_summaries_of_a_few_methods_are_those_of_all(cells: list[FinishedCell]) -> None:
    known = samples_by_cell(cells)
    for table in build_tables(cells):
        few = headlines._restrict_table(table, [parse_label("none"), parse_label("pi")])
        whole = [each for each in curve_summaries(table, known) if str(each.method) in ("none", "pi")]
        assert [each for each in curve_summaries(few, known) if str(each.method) in ("none", "pi")] == whole


def test_lengths_of_summaries_are_said_in_words() -> None:
    from lexbench.stats.summaries import SummaryValue

    row = parse_label("a")

    def said(name: str, value: float, low: float | None, high: float | None, longest: int = 2048) -> GridEntry:
        return headlines._length_entry(
            SummaryValue(method=row, name=name, value=value, low=low, high=high, unit="tokens", notes=(), limit=2048),
            longest,
        )

    assert said("effective_length", math.inf, 1024, math.inf) == GridEntry(text="≥ 2,048", ends=("1,024", "≥ 2,048"))
    assert said("collapse", math.inf, math.inf, math.inf) == GridEntry(text="never")
    assert said("collapse", math.inf, math.inf, math.inf, longest=4096) == GridEntry(text="> 2,048")
    assert said("collapse", 1024, None, None) == GridEntry(text="1,024", more="no interval")


def test_refusals_of_one_reason_stand_together(cells: list[FinishedCell]) -> None:
    found = about.refused_cells(data.PageData.of(cells))
    assert [(each["task"], tuple(each["methods"]), each["lengths"]) for each in found] == [
        ("last_segment", ("rerope",), [2048]),
        ("passkey", ("none",), [128]),
        ("passkey", ("rerope",), [2048]),
    ]


def test_failed_truncated_and_missing_samples_are_counted(cells: list[FinishedCell]) -> None:
    fewer = [
        replace(each, samples=each.samples[:30]) if str(each.cell.method) == "yarn(factor=8.0)" else each
        for each in cells
    ]
    found = about.incomplete_cells(data.PageData.of(fewer))
    counts = {(each["task"], each["method"], each["length"]): each for each in found}
    one = counts["last_segment", "ntk", 1024]
    assert (one["failed"], one["truncated"], one["missing"]) == (1, 0, 0)
    assert one["reasons"] == "the server closed the connection (1)"
    assert counts["passkey", "pi", 2048]["truncated"] == 1
    assert counts["passkey", "yarn(factor=8.0)", 128]["missing"] == 2
    assert len(found) == 2 * (1 + 1 + len(LENGTHS))


def test_what_was_run_names_protocol_lengths_and_backend(parsed: Parsed) -> None:
    text = " ".join(parsed.text.split())
    for said in (
        "NLL of the same last 64 tokens, context grows, token-weighted, BOS",
        "128 · 256 · 512 · 1,024 · 2,048",
    ):
        assert said in text
    assert "5 methods, 2 tasks, 50 cells, 1,504 samples, 3 refusals" in text


def test_jobs_of_one_provenance_and_configuration_stand_together(tmp_path: Path) -> None:
    (tmp_path / "jobs").mkdir()
    for number, method in enumerate(("none", "yarn", "yarn")):
        config = {"model": {"name": "lexlet"}, "method": [{"name": method}], "task": [{"name": "passkey"}]}
        job = {"config": config, "provenance": {"git": "abc", "cores": 2}}
        (tmp_path / "jobs" / f"{number}.json").write_text(json.dumps(job))
    (tmp_path / "jobs" / "broken.json").write_text('{"config": 7')
    (tmp_path / "jobs" / "empty.json").write_text("[]")
    provenances, configurations, problems = about.read_jobs([tmp_path])
    assert provenances == [{"git": "abc", "cores": 2, "jobs": 3}]
    assert configurations == [
        {"model": {"name": "lexlet"}, "methods": [{"name": "none"}, {"name": "yarn"}], "tasks": [{"name": "passkey"}]}
    ]
    assert ["broken.json" in problems[0], "empty.json" in problems[1], len(problems)] == [True, True, 2]


# Samples --------------------------------------------------------------------------------------------------------------


def test_a_sample_is_shown_with_all_that_a_reader_needs() -> None:
    sample = Sample(
        index=0,
        cluster="0",
        tokens=128,
        scores={"accuracy": 0.0},
        prompt="The key is 12.",
        output=" 13",
        hit_room=True,
        depth=0.0,
        statistics={"option_nll": np.array([1.25, 0.5], np.float32)},
        facts={"expected": ["12", ["34"]], "depth": 0.0, "keys": ["a"]},
    )
    found = json.loads(samples.samples_json(FinishedCell(cell("passkey", "none", 128), [sample])))
    assert found == {
        "cell": cell("passkey", "none", 128).id,
        "samples": [
            {
                "index": 0,
                "cluster": "0",
                "tokens": 128,
                "scores": {"accuracy": 0.0},
                "prompt": "The key is 12.",
                "output": " 13",
                "hit_room": True,
                "depth": 0.0,
                "expected": ["12", "34"],
                "facts": {"keys": '["a"]'},
                "options": [1.25, 0.5],
            }
        ],
    }


def test_nll_is_summed_up_and_not_kept_in_full() -> None:
    losses = np.arange(200, dtype=np.float32)
    sample = replace(likelihood_sample(0, 256, 0.0), nll=losses)
    [row] = json.loads(samples.samples_json(FinishedCell(cell("last_segment", "none", 256), [sample])))["samples"]
    nll = row["nll"]
    assert (nll["targets"], nll["first"], nll["mean"], nll["median"], nll["largest"]) == (200, 56, 99.5, 99.5, 199.0)
    assert len(nll["curve"]) == 64
    begins = [place * 200 // 64 for place in range(65)]
    assert nll["curve"] == [(low + high - 1) / 2 for low, high in itertools.pairwise(begins)]
    assert len(samples._stretch_means([3.0])) == 1 and samples._stretch_means([]) == []


def test_numbers_that_json_has_not_are_texts() -> None:
    sample = Sample(index=0, cluster="0", tokens=9, scores={"entropy": math.nan, "first_mass": math.inf})
    found = json.loads(samples.samples_json(FinishedCell(cell("passkey", "none", 128), [sample])))
    assert found["samples"][0]["scores"] == {"entropy": "nan", "first_mass": "inf"}


def test_all_samples_are_embedded_where_they_fit(parsed: Parsed, cells: list[FinishedCell]) -> None:
    assert parsed.data["kept"] is None
    for each in cells:
        if each.samples:
            assert parsed.samples(each.cell.id) == json.loads(samples.samples_json(each))


def test_beyond_the_budget_the_first_of_each_cell_are_embedded(cells: list[FinishedCell]) -> None:
    few = [each for each in cells if each.cell.task == "passkey"]
    whole, kept = samples.embed_samples(few)
    size = sum(map(len, whole.values()))
    assert kept is None
    for budget, expected in ((size, None), (size - 1, 16), (size // 2, 8), (10, 0)):
        found, kept = samples.embed_samples(few, budget)
        assert kept == expected
        assert sum(map(len, found.values())) <= budget
        for name, packed in found.items():
            rows = json.loads(zlib.decompress(base64.b64decode(packed)))["samples"]
            [every] = [each.samples for each in few if each.cell.id == name]
            assert len(rows) == min(len(every), kept or len(every))
            assert [row["index"] for row in rows] == [sample.index for sample in every[: len(rows)]]


def test_a_page_that_does_not_hold_all_says_so(cells: list[FinishedCell]) -> None:
    few = [each for each in cells if each.cell.task == "passkey"]
    size = sum(map(len, samples.embed_samples(few)[0].values()))
    shown = Parsed(page.render_page(LoadedCells(few, [], []), [Path("runs/fake")], budget=size - 1))
    assert shown.data["kept"] == 16
    text = " ".join(shown.text.split())
    assert "This page holds the first 16 samples of each cell. All of them: lexbench view runs/fake" in text


# Safety ---------------------------------------------------------------------------------------------------------------


def test_hidden_characters_are_written_out() -> None:
    assert safety.make_visible("a\u202eb\x1b[0m\tc\n\ud800\u2066") == "a⟨U+202E⟩b⟨U+001B⟩[0m\tc\n⟨U+D800⟩⟨U+2066⟩"
    assert safety.make_visible("שלום 你好 é 🙂") == "שלום 你好 é 🙂"


@pytest.mark.parametrize(
    "text", ["\\u001b", "\\\x1b", "\\\\\x00", '"\x07"', "\x7f\u200f", "\n\t\\n", HOSTILE, "\u2028&"]
)
def test_json_holds_the_text_as_it_is_seen_and_no_tag(text: str) -> None:
    dumped = safety.script_json({text: [text]})
    assert json.loads(dumped) == {safety.make_visible(text): [safety.make_visible(text)]}
    assert "<" not in dumped
    assert not safety.HIDDEN_CHARACTERS_PATTERN.search(dumped)


def test_the_policy_allows_what_the_page_holds_and_nothing_else(parsed: Parsed) -> None:
    def hashed(text: str) -> str:
        return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"

    run = [text for tag, attributes, text in parsed.contents if tag == "script" and attributes.get("type") not in INERT]
    styles = [text for tag, _, text in parsed.contents if tag == "style"]
    policy = parsed.policy
    assert policy["script-src"].split() == [hashed(text) for text in run]
    assert set(policy["style-src"].split()) == {hashed(text) for text in styles}
    assert len(run) == len(page.PAGE_SCRIPTS)
    assert {name: policy[name] for name in policy if name not in ("script-src", "style-src")} == {
        "default-src": "'none'",
        "img-src": "data:",
        "connect-src": "'none'",
        "base-uri": "'none'",
        "form-action": "'none'",
    }


def addresses(shown: Parsed) -> set[str | None]:
    names = ("src", "href", "action", "data", "srcset", "poster")
    return {value for _, attributes in shown.elements for name, value in attributes.items() if name in names}


def test_it_asks_for_nothing_outside_itself(parsed: Parsed) -> None:
    outside = {each for each in addresses(parsed) if not (each or "").startswith("#")}
    assert outside == {"data:,"}
    [style] = [text for tag, _, text in parsed.contents if tag == "style" and text]
    assert "url(" not in style and "@import" not in style


@pytest.mark.slow
def test_untrusted_text_makes_no_element_and_no_attribute(tmp_path: Path) -> None:
    """The same run twice, named plainly and with attacks: both pages have the same elements."""

    def shown(name: str) -> Parsed:
        folder = tmp_path / hashlib.sha256(name.encode()).hexdigest()[:8]
        made = []
        for each in fake_cells(losses={"none": 0.0, "pi": 0.0}):
            changed: dict[str, Any] = dict.fromkeys(("model", "protocol", "backend", "dtype", "kernel", "corpus"), name)
            method = str(each.cell.method) if str(each.cell.method) == "none" else name
            this = replace(each.cell, task=f"{name} {each.cell.task}", method=parse_label(method), **changed)
            identity = {**this.identity, "method": {"name": method}, "task": {"name": this.task}}
            identity["backend"] = dict.fromkeys(("name", "dtype", "kernel"), name)
            identity["model"] = {**this.identity["model"], "name": name}
            rows = [
                replace(one, prompt=name, output=name, cluster=name, facts={name: name, "expected": name})
                for one in each.samples
            ]
            rows = [replace(one, failed=name, scores={}) if one.index == 2 else one for one in rows]
            made.append(FinishedCell(replace(this, identity=identity), rows, name if each.refused else None))
        keep(folder, made)
        (folder / "jobs").mkdir()
        job = {
            "config": {"model": name, "method": [name], "task": [name]},
            "provenance": {"git": name, "packages": {"a": name}},
        }
        (folder / "jobs" / "a.json").write_text(json.dumps(job))
        return Parsed(page.render_page(records.load_cells([folder]), [folder]))

    tame, wild = shown("tame"), shown(HOSTILE)
    assert [tag for tag, _ in wild.elements] == [tag for tag, _ in tame.elements]
    for (tag, attributes), (_, others) in zip(wild.elements, tame.elements, strict=True):
        assert attributes.keys() == others.keys(), tag
        assert not any(name.startswith("on") or name == "style" for name in attributes)
    assert addresses(wild) == addresses(tame)
    assert "alert(1)" in wild.text
    assert "\u202e" not in wild.text
    assert json.dumps(wild.data).count("alert(1)") > 10


def test_text_of_a_job_is_read_as_it_is(tmp_path: Path) -> None:
    keep(tmp_path, [finished("passkey", "none", 512)])
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "a.json").write_text(json.dumps({"config": {"note": "a &lt; b <i>"}, "provenance": {}}))
    shown = Parsed(page.render_page(records.load_cells([tmp_path]), [tmp_path]))
    assert '"note": "a &lt; b <i>"' in shown.text


# Files ----------------------------------------------------------------------------------------------------------------


def test_the_page_is_written_beside_the_run(tmp_path: Path) -> None:
    keep(tmp_path, [finished("passkey", "none", 512)])
    assert page.write_page([tmp_path]) == tmp_path / "report" / "report.html"
    out = page.write_page([tmp_path], tmp_path / "elsewhere" / "page.html")
    assert out.read_text(encoding="utf-8").startswith("<!doctype html>")


def test_damaged_files_are_named_and_the_rest_is_shown(tmp_path: Path) -> None:
    store = fake_run(tmp_path, tasks=["passkey"])
    [damaged, *_] = sorted((tmp_path / "cells").glob("*.parquet"))
    damaged.write_bytes(b"PAR1 not")
    begun = cell("passkey", "ntk", 4096)
    store.append(begun, finished("passkey", "ntk", 2048).samples[0])
    text = " ".join(Parsed(page.write_page([tmp_path]).read_text(encoding="utf-8")).text.split())
    assert f"cell {damaged} cannot be read" in text
    assert "1 cell unfinished, not shown" in text
    assert "passkey under ntk at 4,096 tokens, lexlet" in text
    assert "24 cells" in text


def test_a_run_without_scores_has_a_page() -> None:
    for loaded in (
        LoadedCells([], [cell("passkey", "none", 512)], []),
        LoadedCells([finished("passkey", "none", 128)], [], []),
    ):
        shown = Parsed(page.render_page(loaded, [Path("runs/new")], served=True))
        assert "No scores yet" in shown.text


def test_no_run_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="holds no cells"):
        page.write_page([tmp_path])


def test_the_served_page_embeds_no_samples_and_may_ask_its_server(cells: list[FinishedCell]) -> None:
    content = page.render_page(LoadedCells(cells, [], []), [Path("runs/fake")], served=True)
    shown = Parsed(content)
    assert not any(attributes.get("type") == "text/plain" for _, attributes in shown.elements)
    assert "data-served" in dict(shown.elements)["body"]
    assert ("section", {"id": "progress", "hidden": None}) in shown.elements
    assert shown.policy["connect-src"] == "'self'"
    live = Path(page.__file__).parent / page.LIVE_SCRIPT
    scripts = [
        text for tag, attributes, text in shown.contents if tag == "script" and attributes.get("type") not in INERT
    ]
    assert len(scripts) == len(page.PAGE_SCRIPTS) + live.is_file()
    stated = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', content)
    assert stated and html.unescape(stated[1]).startswith("default-src 'none'")


@pytest.mark.slow
def test_how_a_price_was_set_stands_beside_it(tmp_path: Path) -> None:
    """The headline of results/README.md says the same: YaRN's factor is 8, streaming has none."""
    root = Path(__file__).parents[3]
    run = shutil.copytree(root / "results" / "reference" / "lexlet", tmp_path / "run")
    assert main.main(["report", str(run), "--html"]) == 0
    [made] = run.rglob("report.html")
    summary = made.read_text().rpartition("<h3>Context beyond 256 tokens")[2].partition("</table>")[0]
    rows = dict(re.findall(r'<th scope="row">([\w-]+)</th>(.*?)</tr>', summary, re.DOTALL))
    assert "<small>factor 8 at 256</small>" in rows["yarn"] and "factor" not in rows["streaming_llm"]
