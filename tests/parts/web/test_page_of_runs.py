"""What the HTML page says of a run, as tables, plots and boards do."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lexbench import run
from lexbench.core.method_key import parse_label
from lexbench.core.record import Sample
from lexbench.parts.web.page import data, headlines, page
from lexbench.parts.web.page.page import write_page
from lexbench.report import looks, select
from lexbench.report.plots.style import MARKER_OF_SHAPE
from lexbench.stats.tables import build_tables
from lexbench.store.format import FinishedCell
from tests.report.fake_run import cell, finished, keep
from tests.report.test_method_looks import METHODS, made
from tests.stats.test_floors import guessed, spoken


def test_a_page_refuses_a_method_to_highlight_that_is_not_there(tmp_path: Path) -> None:
    run("lexlet", ["yarn+log_n"], "passkey", [512], backend="chance", n=2, results=tmp_path, quiet=True)
    write_page([tmp_path], tmp_path / "page.html", highlight=["log_n", "yarn+log_n"])
    with pytest.raises(ValueError, match="did you mean log_n"):
        write_page([tmp_path], tmp_path / "other.html", highlight=["log"])


def test_of_many_cells_the_page_shows_the_first_tables_and_counts_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    every = [finished(task, "none", 512, n=4, seed=seed) for seed in range(4) for task in ("passkey", "recall")]
    keep(tmp_path, every)
    monkeypatch.setattr(select, "MAX_TABLES_OF_MANY_CELLS", 3)
    tables = len(build_tables(every))
    for large, asked, count in ((8, None, tables), (7, None, 3), (7, 5, 5)):
        monkeypatch.setattr(select, "MAX_CELLS_WITH_ALL_TABLES", large)
        text = write_page([tmp_path], tmp_path / f"{large} {asked}.html", tables=asked).read_text()
        assert (f"{tables} tables: only {count} are shown" in text) == (count < tables)


def test_a_text_that_only_this_machine_has_is_said_so() -> None:
    one = finished("last_segment", "none", 512)
    cell = replace(one.cell, corpus="a label of any text", identity={**one.cell.identity, "corpus": {"name": "pydoc"}})
    shown = page.template_environment().from_string("{{ cell|corpus }}").render(cell=cell)
    assert shown == ", corpus a label of any text (this machine&#39;s text)"


def test_the_page_names_no_best_of_methods_at_chance() -> None:
    cells = [guessed(name, count, length=at) for name, count in (("none", 6), ("ntk", 8)) for at in (512, 1024)]
    [found] = headlines.metric_headlines(data.PageData.of(cells))
    assert found["sentence"] == "Past 256 tokens no method can be told from another: every method is at chance (0.25)."
    assert not any(entry.best or entry.star for row in found["rows"] for entry in row["entries"])


def test_the_page_says_where_all_others_tie_with_the_highest() -> None:
    """Two methods with 14 and 13 right answers of 32 are both above chance; one question that changed tells nothing."""
    cells = [guessed(name, count, length=at) for name, count in (("none", 14), ("ntk", 13)) for at in (512, 1024)]
    [found] = headlines.metric_headlines(data.PageData.of(cells))
    assert found["sentence"].startswith("unmodified (none) has the highest mean past 256 tokens, 0.44 [")
    assert found["sentence"].endswith("]; all others are tied with it.")


def test_a_text_in_another_language_is_said_by_the_page() -> None:
    cells = [spoken(name, loss, at) for name in ("none", "pi") for at, loss in ((256, 6.5), (512, 7.3))]
    [found] = headlines.metric_headlines(data.PageData.of(cells))
    assert found["sentence"].startswith("lexlet does not speak this text: none has 6.500 nats per token at 256 tokens")


def test_pages_and_figures_take_the_same_looks() -> None:
    table = made({"none": (2.0, 2.5), "pi": (2.0, 2.2), "yarn": (2.0, 2.1), "mine": (2.0, 3.5)})
    samples = [
        FinishedCell(
            cell("last_segment", str(name), 256, n=1),
            [Sample(index=0, cluster="0", tokens=256, nll=np.ones(4, np.float32))],
        )
        for name in table.methods
    ]
    [setting] = data.settings_data(data.PageData.of(samples))
    rules = dict(re.findall(r"\.hue-(\d) \{ color: light-dark\((#\w+),", page.hue_rules()))
    for name, shown in zip(setting["methods"], setting["looks"], strict=True):
        look = looks.looks_of_methods(table.methods)[parse_label(name)]
        assert rules[str(shown["hue"])] == look.colour and shown["mark"] == look.marker
        assert f'"{shown["mark"]}"' in f'"{look.marker}"' and shown["front"] == (name == "mine")
    script = (Path(page.__file__).parent / "charts.js").read_text()
    assert all(re.search(rf'"?{marker}"?: "M', script) for marker in MARKER_OF_SHAPE)


def test_ones_own_method_is_in_the_summary_however_bad_it_is() -> None:
    losses = {name: 2.0 + place / 100 for place, name in enumerate(METHODS[:9])} | {
        "none": 3.0,
        "mine": 9.0,
        "yarn": 8.0,
    }
    cells = [
        FinishedCell(
            cell("last_segment", name, length, n=1),
            [Sample(index=0, cluster="0", tokens=length, nll=np.full(4, loss, np.float32))],
        )
        for name, loss in losses.items()
        for length in (256, 512)
    ]
    [told] = headlines.metric_headlines(data.PageData.of(cells, ["yarn"]))
    assert [str(row["method"]) for row in told["rows"]] == [*METHODS[:3], "yarn", "mine", "unmodified (none)"]
