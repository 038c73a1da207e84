"""Parts of a cell's samples stand beside the whole, and never enter it."""

import csv as reader
import io
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lexbench.core.method_key import parse_label
from lexbench.core.record import Record, Sample
from lexbench.report import formats
from lexbench.report.plots.heatmaps import depth_strata
from lexbench.report.report import write_report
from lexbench.report.tables import part_records, parts_grid, parts_of, table_grid, terminal_tables
from lexbench.stats.differences import paired_differences
from lexbench.stats.records import number_sort_key, records_of
from lexbench.stats.records import rows_of as as_rows
from lexbench.stats.tables import Table, build_tables
from lexbench.store.format import FinishedCell
from tests.report.fake_run import cell, keep

SHORT, LONG = "words 0-4k", "words 4-8k"


def bucketed(method: str, scores: Sequence[float], where: Sequence[tuple[str, ...]], length: int = 512) -> FinishedCell:
    """An answered document a sample, each in its parts."""
    samples = [
        Sample(index=i, cluster=str(i), tokens=length, scores={"qa_f1": score}, parts=part)
        for i, (score, part) in enumerate(zip(scores, where, strict=True))
    ]
    return FinishedCell(cell("passkey_like_qa", method, length, n=len(samples)), samples)


def table_of(*found: FinishedCell) -> Table:
    [table] = build_tables(found)
    return table


def rows_of(found: FinishedCell) -> dict[tuple[str | None, str | None], Record]:
    return {(record.metric, record.part): record for record in records_of(found)}


def test_a_part_is_its_samples_and_the_whole_all_of_them() -> None:
    found = rows_of(bucketed("none", [1.0, 0.0, 1.0, 1.0], [(SHORT,), (SHORT, "code"), (LONG,), ()]))
    values = {part: (record.value, record.n) for (_, part), record in found.items()}
    assert values == {None: (0.75, 4), "code": (0.0, 1), SHORT: (0.5, 2), LONG: (1.0, 1)}
    assert list(values) == [None, "code", SHORT, LONG]


def test_parts_of_a_table_are_those_of_its_metric_in_their_order() -> None:
    this = bucketed("none", [1.0, 0.0], [("words 16-32k",), ("words 4-8k",)])
    both = replace(this, samples=[replace(each, scores={**each.scores, "rouge_l": 0.25}) for each in this.samples])
    made = {table.metric: table for table in build_tables([both])}
    values = {
        metric: {part: record.value for part, record in table.parts[parse_label("none"), 512].items()}
        for metric, table in made.items()
    }
    assert values == {
        "qa_f1": {"words 4-8k": 0.0, "words 16-32k": 1.0},
        "rouge_l": {"words 4-8k": 0.25, "words 16-32k": 0.25},
    }
    assert [record.part for record in records_of(this)] == [None, "words 4-8k", "words 16-32k"]


def test_a_part_has_the_metrics_of_the_whole_whatever_failed_in_it() -> None:
    this = bucketed("none", [1.0, 0.0, 0.0], [(SHORT,), (LONG,), (LONG,)])
    failed = [replace(each, failed="died", scores={}) for each in this.samples[1:]]
    found = rows_of(replace(this, samples=[this.samples[0], *failed]))
    assert {place: (record.value, record.failed) for place, record in found.items()} == {
        ("qa_f1", None): (pytest.approx(1 / 3), 2),
        ("qa_f1", SHORT): (1.0, 0),
        ("qa_f1", LONG): (0.0, 2),
    }


def test_likelihoods_have_parts_too_and_one_without_any_has_no_value() -> None:
    def text(index: int, nll: float, part: str, failed: str | None = None) -> Sample:
        losses = None if failed else np.array([nll, nll], np.float32)
        return Sample(index=index, cluster=str(index), tokens=9, nll=losses, parts=(part,), failed=failed)

    samples = [text(0, 1.0, SHORT), text(1, 3.0, SHORT), text(2, 0.0, LONG, "died")]
    found = rows_of(FinishedCell(cell("last_segment", "none", 256, n=3), samples))
    shown = {place: (each.value, each.n, each.failed) for place, each in found.items() if place[0] == "nll"}
    assert shown == {("nll", None): (2.0, 2, 1), ("nll", SHORT): (2.0, 2, 0), ("nll", LONG): (None, 0, 1)}


def test_parts_are_sorted_by_their_numbers() -> None:
    names = ["code", "tokens 4-8k", "words 0-4k", "words 4-8k", "words 8k+", "words 16-32k"]
    assert sorted(sorted(names), key=number_sort_key) == names != sorted(names)


def example() -> list[FinishedCell]:
    where = [(SHORT,), (SHORT,), (SHORT,), (SHORT,), (LONG,)]
    none, yarn = bucketed("none", [1, 1, 0, 0, 0], where), bucketed("yarn", [1, 1, 1, 0, 1], where)
    cut = replace(none.samples[4], truncated=True)
    return [replace(none, samples=[*none.samples[:4], cut]), yarn]


def test_the_table_of_parts_reads_as_it_should() -> None:
    refused = FinishedCell(cell("passkey_like_qa", "pi", 512, n=5), [], "no\nmemory")
    longer = bucketed("none", [1, 1, 1, 1, 1], [(SHORT,)] * 5, length=1024)
    # Wilson of 2 and 3 of 4, 0 and 1 of 1, 5 of 5
    assert formats.grid_markdown(parts_grid(table_of(*example(), refused, longer))) == (
        "| method | length |                       words 0-4k |                       words 4-8k |\n"
        "| ------ | -----: | -------------------------------: | -------------------------------: |\n"
        "| none   |    512 |     0.50 [0.15, 0.85] n 4 0% cut |   0.00 [0.00, 0.79] n 1 100% cut |\n"
        "| pi     |    512 |                      refused (1) |                      refused (1) |\n"
        "| yarn   |    512 | **0.75** [0.30, 0.95] n 4 0% cut | **1.00** [0.21, 1.00] n 1 0% cut |\n"
        "| none   |   1024 |     1.00 [0.57, 1.00] n 5 0% cut |                                  |\n"
        "\n"
        "(1) refused: no memory  \n"
        "n: samples of the part.  \n"
        "cut: share of the samples that were truncated.\n"
    )


def test_the_whole_never_sees_parts() -> None:
    found = example()
    bare = [replace(each, samples=[replace(sample, parts=()) for sample in each.samples]) for each in found]
    with_parts, without = table_of(*found), table_of(*bare)
    assert parts_of(without) == []
    assert formats.grid_markdown(table_grid(with_parts)) == formats.grid_markdown(table_grid(without))
    assert list(with_parts.entries.values()) == list(without.entries.values())
    assert {record.part for record in with_parts.entries.values()} == {None}
    samples = {each.cell.id: each.samples for each in found}
    changed = [paired_differences(table, samples) for table in (with_parts, without)]
    assert changed[0] is not None and changed[1] is not None
    assert changed[0].entries == changed[1].entries
    deep = {name: [replace(each, depth=0.5) for each in some] for name, some in samples.items()}
    assert list(depth_strata(with_parts, deep)) == list(depth_strata(without, deep))


def test_a_terminal_shows_the_whole(tmp_path: Path) -> None:
    found = example()
    keep(tmp_path, found)
    page = terminal_tables([(tmp_path, [each.cell.id for each in found])])
    assert formats.sheet_text([table_grid(table_of(*found))]).rstrip() in page
    assert SHORT not in page


def test_the_numbers_have_a_line_a_part_with_its_name() -> None:
    table = table_of(*example())
    rows = list(reader.DictReader(io.StringIO(formats.rows_as_csv(as_rows(part_records(table))))))
    assert [(row["method"], row["part"], row["value"], row["n"], row["truncated"]) for row in rows] == [
        ("none", SHORT, "0.5", "4", "0"),
        ("none", LONG, "0.0", "1", "1"),
        ("yarn", SHORT, "0.75", "4", "0"),
        ("yarn", LONG, "1.0", "1", "0"),
    ]


@pytest.mark.usefixtures("undrawn")
def test_a_report_holds_parts_where_there_are_some(tmp_path: Path) -> None:
    keep(tmp_path / "run", example())
    page = write_report([tmp_path / "run"]).read_text()
    assert formats.grid_markdown(parts_grid(table_of(*example()))) in page
    assert "](tables/lexlet-passkey_like_qa-qa_f1-by-part.csv)" in page
