"""Labels are made last: whatever a method is called, numbers, order, stars, notes and verdicts are the same.

Every label is replaced by a random token where it is made; put back into the text, nothing else has changed. And any
method, whatever its name and its parameters, stands once in each output, and comes back from it as the same key.
"""

import hashlib
import json
import re
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from lexbench.api import Run
from lexbench.core import method_key
from lexbench.core.method_key import MethodKey, parse_label
from lexbench.parts.web.page import data, headlines
from lexbench.report.check import comparison, formats
from lexbench.report.check.check import check_runs
from lexbench.report.check.text import check_as_markdown as check_markdown
from lexbench.report.formats import escape_markdown, grid_markdown
from lexbench.report.leaderboard.leaderboard import leaderboard_text
from lexbench.report.report import write_report
from lexbench.report.tables import headline_tables, table_grid, terminal_tables
from lexbench.report.versus import write_versus
from lexbench.stats import baseline
from lexbench.stats.compare import compare_runs
from lexbench.store.format import FinishedCell
from lexbench.store.store import Store
from tests.core.test_method_key import KEYS
from tests.report.fake_run import fake_cells, finished, keep

NAMES = ("none", "ntk", "pi", "rerope", "yarn(factor=8.0)", "ntk(factor=8.0)")


def token(key: MethodKey) -> str:
    """Letters that say nothing of a method; their order is not that of labels."""
    digest = hashlib.sha256(f"{key.text} in random order".encode()).hexdigest()
    return "q" + "".join(chr(ord("a") + int(digit, 16)) for digit in digest[:20])


def outputs(folder: Path) -> dict[str, str]:
    """The texts of one run folder, by command."""
    cells = Store(folder).load()
    ids = [each.cell.id for each in cells]
    baseline.update_baseline([folder], folder.parent / "baseline.json")
    none, pi = (str(parse_label(name)) for name in ("none", "pi"))
    measured = data.PageData.of(cells)
    found = check_runs([folder], folder.parent / "baseline.json")
    page = [*headlines.context_headlines(measured), *headlines.metric_headlines(measured), data.settings_data(measured)]
    report = write_report([folder], folder.parent / "report", figures=0)
    return {
        "terminal": terminal_tables([(folder, ids)]),
        "report": report.read_text(),
        **{file.name: file.read_text() for file in sorted((report.parent / "tables").iterdir())},
        "leaderboard": leaderboard_text([folder]),
        "summaries": leaderboard_text([folder], columns="summary", form="json"),
        "compare": comparison.comparison_markdown(compare_runs(folder, folder, [f"method={none}"], [f"method={pi}"])),
        "check": check_markdown(found) + json.dumps(formats.check_data(found)),
        "page": json.dumps(page, default=vars),
        "versus": write_versus(folder, ids, parse_label("pi"), folder.parent / "versus").text,
        "python": Run(folder).table("last_segment").to_csv(),
    }


def flat(text: str, labels: Iterable[tuple[str, str]] = ()) -> str:
    """A text with labels in place of their tokens, and without what aligns its columns."""
    for shown, label in labels:
        text = text.replace(shown, label)
    return re.sub(r"-{2,}:?", "--", re.sub(r"[ \n]+", " ", text))


def whole_run(folder: Path) -> None:
    """A run with a method, its deployed form inside the trained length, failures and refusals."""
    cells = fake_cells(n=16)
    [inside] = [each for each in cells if each.cell.task == "last_segment" and each.cell.method == parse_label("ntk")][
        1:2
    ]
    priced = finished("last_segment", "pi", 256, n=16)
    identity = {**inside.cell.identity, "method": {"name": "ntk", "factor": 8.0}, "attention": {"scale": 1.5}}
    cell = replace(inside.cell, method=parse_label("ntk(factor=8.0)"), identity=identity)
    keep(folder, [*cells, FinishedCell(cell, priced.samples)])


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
def test_random_labels_change_nothing_but_themselves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole_run(tmp_path / "plain" / "run")
    usual = outputs(tmp_path / "plain" / "run")
    assert "factor 8 at 256" in usual["summaries"] and "ntk(factor=8.0)" in usual["report"]
    monkeypatch.setattr(method_key, "label_of", token)
    whole_run(tmp_path / "token" / "run")
    keys = [parse_label(name) for name in NAMES]
    back = [(token(key), key.text) for key in keys]
    back += [(token(key), escape_markdown(key.text)) for key in keys]
    told = outputs(tmp_path / "token" / "run")
    assert any(shown in told["report"] for shown, _ in back)
    for name, text in told.items():
        expected = usual[name].replace(str(tmp_path / "plain"), str(tmp_path / "token"))
        expected = expected.replace("/plain/", "/token/")
        assert sorted_words(flat(text, back)) == sorted_words(flat(expected)), name


TASKS = {"last_segment": "last_segment(q=hxkw)", "passkey": "passkey(q=bzrv)"}
"""Labels of tasks at random behind their names, which a cell's identity states and `stats.invariants` compares."""


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
def test_random_labels_of_tasks_change_nothing_but_themselves(tmp_path: Path) -> None:
    cells = fake_cells(n=16)
    keep(tmp_path / "plain" / "run", cells)
    other = [replace(each, cell=replace(each.cell, task=TASKS[each.cell.task])) for each in cells]
    keep(tmp_path / "token" / "run", other)
    usual, told = outputs(tmp_path / "plain" / "run"), outputs(tmp_path / "token" / "run")
    forms = str, escape_markdown, lambda text: re.sub(r"\W+", "-", text).strip("-")  # the last one names files
    back = [(shown(label), shown(name)) for name, label in TASKS.items() for shown in forms]
    assert [flat(name, back) for name in told] == list(usual)
    assert any(shown(TASKS["last_segment"]) in told["report"] for shown in forms)
    for name, text in told.items():
        plain = usual[flat(name, back)].replace(str(tmp_path / "plain"), str(tmp_path / "token"))
        # Links of the page are hashes of what they lead to.
        one, two = (re.sub(r'"[0-9a-f]{8}"', '""', each) for each in (text, plain.replace("/plain/", "/token/")))
        assert flat(one, back).split(" ") == flat(two).split(" "), name


def sorted_words(text: str) -> list[str]:
    return text.split(" ")


def shown_methods(markdown: str) -> list[str]:
    """The first entries of all rows of tables, as they were before they were escaped."""
    rows = [re.split(r"(?<!\\)\|", line)[1].strip() for line in markdown.splitlines() if line.startswith("| ")]
    return [re.sub(r"\\([\\`*|~$&_<(])", r"\1", each.replace("&#36;", "$")) for each in rows]


def shown_once(keys: Sequence[MethodKey]) -> None:
    """Every output of a run of these methods shows each once, in words that give its key back."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "run"
        base = finished("last_segment", "none", 512, n=2)
        cells = [base]
        for key in keys:
            stated = {"name": key.bare, "key": key.as_data(), "at": key.at}
            identity = {**base.cell.identity, "method": stated}
            cells.append(FinishedCell(replace(base.cell, method=key, identity=identity), base.samples))
        keep(folder, cells)
        loaded = Store(folder).load()
        assert {each.cell.method for each in loaded} == {parse_label("none"), *keys}
        wanted = Counter(str(key) for key in keys)
        baseline.update_baseline([folder], Path(place) / "b.json")
        found = check_runs([folder], Path(place) / "b.json")
        [setting] = data.settings_data(data.PageData.of(loaded))
        boards = json.loads(leaderboard_text([folder], form="json"))["boards"]
        outputs = {
            "report": shown_methods(grid_markdown(table_grid(headline_tables(loaded)[0]))),
            "leaderboard": boards[0]["rows"],
            "check": [each["method"] for each in formats.check_data(found)["verdicts"]],
            "page": setting["methods"],
            "python": Run(folder).table("last_segment", "nll").index.get_level_values("method").tolist(),
        }
        for name, labels in outputs.items():
            counted = Counter(labels)
            assert {label: counted[label] for label in wanted} == wanted, name
        for key in keys[:2]:
            two = compare_runs(folder, folder, ["method=none"], [f"method={key}"])
            assert [each.other for each in two.changes if each.name == "method"] == [str(key)]
        assert [parse_label(label) for label in wanted] == list(keys)


def different_methods(least: int, most: int) -> st.SearchStrategy[list[MethodKey]]:
    key = KEYS.map(lambda key: replace(key, twin=1)).filter(lambda key: key != parse_label("none"))
    return st.lists(key, min_size=least, max_size=most, unique_by=lambda key: key.text)


@settings(max_examples=3, deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.generate])
@given(different_methods(5, 10))
def test_any_method_stands_once_in_every_output(keys: list[MethodKey]) -> None:
    shown_once(keys)


@pytest.mark.slow
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.generate])
@given(different_methods(16, 20))  # many in a run: what each run takes is paid less often
def test_a_thousand_methods_stand_once_in_every_output(keys: list[MethodKey]) -> None:
    shown_once(keys)
