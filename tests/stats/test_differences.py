"""Differences are paired: what both methods share of a question cancels."""

import csv as reader
import io
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import ArrayLike
from scipy.stats import binomtest, t

from lexbench.core.method_key import parse_label
from lexbench.core.record import Sample
from lexbench.report import formats
from lexbench.report.notes import note_text
from lexbench.report.report import write_report
from lexbench.report.tables import difference_grid, difference_rows
from lexbench.report.tables import differences_page as page
from lexbench.stats.differences import Difference, Differences, paired_differences
from lexbench.stats.intervals import Interval
from lexbench.stats.notes import Note, NoteKind
from lexbench.stats.records import load_cells, records_of
from lexbench.stats.rescore import samples_by_cell
from lexbench.stats.tables import build_tables
from lexbench.store.format import FinishedCell
from tests.report.fake_run import cell, fake_cells, finished, keep
from tests.stats.bootstrap_t import bootstrap_t

REFERENCE = Path(__file__).parents[2] / "results/reference/lexlet"


def markdown(found: Differences) -> str:
    return formats.grid_markdown(difference_grid(found))


def compared(cells: Sequence[FinishedCell], metric: str, baseline: str = "none") -> Differences:
    """Differences of the one table of a metric."""
    [table] = [table for table in build_tables(cells) if table.metric == metric]
    found = paired_differences(table, samples_by_cell(cells), parse_label(baseline))
    assert found is not None
    return found


def one(cells: Sequence[FinishedCell], metric: str) -> Difference:
    """The only difference of the cells."""
    [entry] = compared(cells, metric).entries.values()
    return entry


def text(index: int, nll: ArrayLike, cluster: str | None = None, **changed: Any) -> Sample:
    losses = np.array(nll, np.float32)
    values = {"cluster": cluster or str(index), "tokens": 20, "nll": losses, "bytes": 10, "words": 2, **changed}
    return Sample(index=index, **values)


def said(index: int, accuracy: float, **changed: Any) -> Sample:
    values = {"cluster": str(index), "tokens": 20, "scores": {"accuracy": accuracy}, **changed}
    return Sample(index=index, **values)


def texts(method: str, *samples: Sample, length: int = 512) -> FinishedCell:
    return FinishedCell(cell("last_segment", method, length, n=len(samples)), list(samples))


def answers(method: str, *samples: Sample, length: int = 512, n: int | None = None) -> FinishedCell:
    return FinishedCell(cell("passkey", method, length, n=n or len(samples)), list(samples))


def test_nats_are_weighted_by_tokens_and_resampled_by_document() -> None:
    # 6 and 4 nats against 3 and 6, over 3 and 1 targets: (-3 + 2) / 4; residuals -2.25 and 2.25 over 4 targets
    entry = one([texts("none", text(0, [1, 2, 3]), text(1, [4])), texts("pi", text(0, [1, 1, 1]), text(1, [6]))], "nll")
    assert (entry.baseline_value, entry.value, entry.difference) == (2.5, 2.25, -0.25)
    reach = t.ppf(0.975, 1) * 2 * 2.25 / 4
    assert entry.interval and entry.interval.kind == "cluster_bootstrap"
    assert (entry.low, entry.high) == pytest.approx((-0.25 - reach, -0.25 + reach))
    assert (entry.pairs, entry.clusters, entry.failed, entry.unpaired) == (2, 2, 0, 0)
    assert entry.p == 1.0  # 1, 5, 5 and 1 over 4


def test_scores_differ_in_points() -> None:
    base = [said(i, float(i < 3)) for i in range(8)]
    better = [said(i, float(i < 7)) for i in range(8)]
    entry = one([answers("none", *base), answers("pi", *better)], "accuracy")
    assert (entry.baseline_value, entry.value, entry.difference) == (37.5, 87.5, 50.0)
    assert entry.p == binomtest(4, 4).pvalue == 0.125  # McNemar's exact test
    gained, lost = (binomtest(k, 8).proportion_ci(method="wilson") for k in (4, 0))  # of 8, by Newcombe
    ends = [0.5 - math.hypot(0.5 - gained.low, lost.high), 0.5 + (gained.high - 0.5)]
    assert [entry.low, entry.high] == pytest.approx([100 * end for end in ends])
    back = compared([answers("none", *base), answers("pi", *better)], "accuracy", "pi").entries[
        parse_label("none"), 512
    ]
    assert (back.difference, back.p) == (-50.0, 0.125)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("given", "comparisons"),
    # 4 methods (5 on record), 5 lengths, 5 metrics; of the fake ones 1 refused, 1 with a failure, and in 4 metrics 5
    # apart or refused
    [(fake_cells, 20 - 1 - 1 + 4 * (20 - 5)), (lambda: load_cells([REFERENCE]).finished, 5 * 5 * 5)],
    ids=["fake", "reference"],
)
def test_a_difference_is_that_of_the_records(given: Callable[[], list[FinishedCell]], comparisons: int) -> None:
    cells = given()
    known = {(r.cell, r.metric): r for each in cells for r in records_of(each)}
    count = 0
    for table in build_tables(cells):
        found = paired_differences(table, samples_by_cell(cells))
        for entry in found.entries.values() if found else ():
            if entry.difference is None or (entry.failed and table.metric == "nll"):
                continue
            value, base = (known[name, table.metric].value for name in (entry.cell, entry.baseline_cell or ""))
            assert value is not None and base is not None
            scale = 1.0 if table.metric == "nll" else 100.0
            assert entry.difference == pytest.approx(scale * (value - base), rel=1e-9, abs=1e-5)  # rounding is none
            assert (entry.value, entry.baseline_value) == pytest.approx((scale * value, scale * base), rel=1e-12)
            count += 1
    assert count == comparisons


@pytest.mark.parametrize(("task", "metric"), [("last_segment", "nll"), ("passkey", "accuracy")])
def test_identical_samples_differ_by_exactly_nothing(task: str, metric: str) -> None:
    base = finished(task, "none", 1024)
    entry = one([base, FinishedCell(cell(task, "pi", 1024), base.samples)], metric)
    assert (entry.difference, entry.p, entry.significant) == (0.0, 1.0, False)
    width = 0.0 if metric == "nll" else 100 * binomtest(0, entry.clusters).proportion_ci(method="wilson").high
    assert (entry.low, entry.high) == pytest.approx((-width, width))


def test_rounding_is_no_difference() -> None:
    cells = [probed("none", [100.0, 200.0, 300.0]), probed("pi", [100.00005, 200.0001, 300.0002])]
    [entry] = compared(cells, "attention_distance").entries.values()
    assert (entry.difference, entry.low, entry.high, entry.p) == (0.0, 0.0, 0.0, 1.0)


def test_what_both_methods_share_cancels() -> None:
    rng = np.random.default_rng(0)
    hard = [rng.integers(0, 40, 8) / 4 for _ in range(12)]  # exact in float32
    base = [text(i, nll, cluster=str(i // 2)) for i, nll in enumerate(hard)]
    moved = [text(i, nll + 0.25, cluster=str(i // 2)) for i, nll in enumerate(hard)]
    entry = one([texts("none", *base), texts("pi", *moved)], "nll")
    assert (entry.difference, entry.low, entry.high) == (0.25, 0.25, 0.25)
    assert (entry.pairs, entry.clusters) == (12, 6)
    assert entry.p == 2 / 2**6


def test_the_interval_is_that_of_documents_studentised() -> None:
    rng = np.random.default_rng(1)
    sizes = rng.integers(5, 60, 120)
    base = [rng.gamma(2.0, 1.5, size) for size in sizes]
    moved = [nll + rng.normal(0.3 * rng.normal(), 0.4, len(nll)) for nll in base]
    cells = [
        texts(method, *[text(i, nll, cluster=str(i // 3)) for i, nll in enumerate(losses)])
        for method, losses in (("none", base), ("pi", moved))
    ]
    gaps = np.array([new.sum() - old.sum() for old, new in zip(base, moved, strict=True)]).reshape(40, 3).sum(axis=1)
    units = sizes.reshape(40, 3).sum(axis=1).astype(float)

    entry = one(cells, "nll")
    assert (entry.pairs, entry.clusters) == (120, 40)
    assert entry.difference == pytest.approx(gaps.sum() / units.sum(), rel=1e-6)
    low, high = bootstrap_t(gaps, units)
    assert [entry.low, entry.high] == pytest.approx([low, high], abs=0.04 * (high - low))


@pytest.mark.parametrize("side", ["none", "pi"])
def test_a_pair_with_a_failed_side_leaves_the_likelihood_and_is_counted(side: str) -> None:
    whole = {"none": [text(i, [i, 2.0]) for i in range(4)], "pi": [text(i, [i, 1.0 + i]) for i in range(4)]}
    bad = replace(whole[side][3], nll=np.array([np.nan, 1], np.float32), failed="no finite likelihood")
    failed = {**whole, side: [*whole[side][:3], bad]}
    entry = one([texts(method, *samples) for method, samples in failed.items()], "nll")
    kept = one([texts(method, *samples[:3]) for method, samples in whole.items()], "nll")
    assert (entry.pairs, entry.failed, kept.pairs) == (3, 1, 3)
    assert (entry.difference, entry.value, entry.low) == (kept.difference, kept.value, kept.low)
    assert entry.difference == 0.0  # 1 + 0, 1 + 1, 1 + 2 against 2 each


def test_a_likelihood_that_is_missing_is_counted_as_failed() -> None:
    entry = one(
        [texts("none", text(0, [1]), text(1, [2])), texts("pi", text(0, [1]), replace(text(1, [2]), nll=None))], "nll"
    )
    assert (entry.pairs, entry.failed, entry.difference) == (1, 1, 0.0)


def test_a_failed_side_scores_nothing_and_is_counted() -> None:
    base = [said(0, 1.0), said(1, 1.0), said(2, 0.0), said(3, 0.0, failed="died", scores={})]
    other = [said(0, 1.0), said(1, 0.0, failed="died", scores={}), said(2, 1.0), said(3, 1.0)]
    entry = one([answers("none", *base), answers("pi", *other)], "accuracy")
    assert (entry.baseline_value, entry.value, entry.difference) == (50.0, 75.0, 25.0)
    assert (entry.pairs, entry.failed) == (4, 2)


def test_samples_without_the_other_side_are_left_out_and_counted() -> None:
    base = [said(0, 1.0), said(2, 1.0), said(3, 0.0)]
    other = [said(1, 1.0), said(3, 1.0), said(2, 1.0)]
    entry = one([answers("none", *base, n=4), answers("pi", *other, n=4)], "accuracy")
    assert (entry.pairs, entry.unpaired) == (2, 2)
    assert (entry.baseline_value, entry.difference) == (50.0, 50.0)


@pytest.mark.parametrize(
    "changed",
    [{"cluster": "other"}, {"depth": 0.5}, {"bytes": 11}, {"words": 3}, {"nll": np.ones(2, np.float32)}],
    ids=str,
)
def test_samples_of_different_questions_are_never_paired(changed: dict[str, Any]) -> None:
    base = texts("none", text(0, [1.0], depth=0.25), text(1, [1.0], depth=0.25))
    strange = replace(base.samples[1], **changed)
    entry = one([base, texts("pi", base.samples[0], strange)], "nll")
    assert (entry.difference, entry.p, entry.pairs) == (None, None, 0)
    assert entry.apart and note_text(entry.apart) == "sample 1 is not the question that none was asked: run both anew"


def test_what_is_not_known_of_a_failed_sample_parts_no_pair() -> None:
    base = answers("none", said(0, 1.0, depth=0.2), said(1, 1.0, depth=0.4))
    other = answers("pi", said(0, 1.0, depth=0.2), said(1, 0.0, failed="died", scores={}))
    assert one([base, other], "accuracy").difference == -50.0


def test_refused_cells_stay_with_their_reason_and_are_not_tested() -> None:
    cells = fake_cells(["passkey"])  # none is refused at 128, rerope at 2048
    found = compared(cells, "accuracy")
    assert len(found.entries) == 4 * 5
    assert str(found.entries[parse_label("rerope"), 2048].refused).startswith("out of memory")
    assert found.entries[parse_label("pi"), 128].apart == Note(NoteKind.BASELINE_REFUSED, (parse_label("none"), 128))
    tested = [entry for entry in found.entries.values() if entry.p is not None]
    assert len(tested) == 20 - 4 - 1
    least = min(tested, key=lambda entry: entry.p or 0.0)
    assert least.p_holm == pytest.approx(15 * (least.p or 0.0))
    assert {entry.significant for entry in tested} == {True, False}
    for entry in tested:
        assert entry.significant == ((entry.p_holm or 0.0) <= 0.05)
        assert (entry.p or 0.0) <= (entry.p_holm or 0.0)


def test_a_length_at_which_the_baseline_was_not_measured_has_no_pairs() -> None:
    cells = [answers("none", said(0, 1.0)), answers("pi", said(0, 1.0)), answers("pi", said(0, 1.0), length=1024)]
    found = compared(cells, "accuracy")
    why = found.entries[parse_label("pi"), 1024].apart
    assert why and note_text(why) == "none is not measured at 1024"
    assert found.entries[parse_label("pi"), 512].difference == 0.0


def test_a_cell_whose_answers_all_failed_has_no_difference() -> None:
    lost = [said(i, 0.0, failed="died", scores={}) for i in range(2)]
    for left, right in ((lost, [said(0, 1.0), said(1, 1.0)]), ([said(0, 1.0), said(1, 1.0)], lost)):
        entry = one([answers("none", *left), answers("pi", *right)], "accuracy")
        assert (entry.difference, entry.p, entry.pairs, entry.failed) == (None, None, 0, 2)
    gone = [text(0, [np.nan], failed="no"), text(1, [np.nan], failed="no")]
    entry = one([texts("none", text(0, [1]), text(1, [1])), texts("pi", *gone)], "nll")
    assert (entry.difference, entry.pairs, entry.failed) == (None, 0, 2)


def test_a_cell_that_lacks_its_neighbours_score_has_no_pairs() -> None:
    own = [said(index, 1.0) for index in range(4)]
    other = [replace(each, scores={"contains": 1.0}) for each in own]
    beside = [answers("none", *own), answers("pi", *own), answers("none", *own, length=1024)]
    found = compared([*beside, answers("pi", *other, length=1024)], "accuracy").entries
    assert (found[parse_label("pi"), 512].pairs, found[parse_label("pi"), 512].difference) == (4, 0.0)
    assert (found[parse_label("pi"), 1024].pairs, found[parse_label("pi"), 1024].difference) == (0, None)


def test_only_nll_and_scores_are_compared_and_only_where_there_are_two_methods() -> None:
    cells = fake_cells()
    samples = samples_by_cell(cells)
    assert [table.metric for table in build_tables(cells) if paired_differences(table, samples)] == [
        "nll",
        "accuracy",
        "contains",
        "in_place",
        "reached",
    ]
    for alone in ("none", "pi"):
        few = [each for each in cells if str(each.cell.method) == alone]
        assert not any(paired_differences(table, samples) for table in build_tables(few))
    refused = [FinishedCell(cell("passkey", method, 16), [], "too short") for method in ("none", "pi")]
    assert not any(paired_differences(table, {}) for table in build_tables(refused))


def test_methods_of_another_seed_meet_no_baseline() -> None:
    base = answers("none", said(0, 1.0))
    other = FinishedCell(cell("passkey", "pi", 512, n=1, seed=1), [said(0, 1.0)])
    assert not any(paired_differences(table, {}) for table in build_tables([base, other]))


def mixed() -> list[FinishedCell]:
    """Cells with whatever may befall a comparison."""
    right = [said(i, 1.0) for i in range(12)]
    haystack = [said(i, 1.0, cluster="a") for i in range(12)]
    lost = said(3, 0.0, cluster="a", failed="died", scores={}, truncated=True)
    return [
        FinishedCell(cell("passkey", "none", 128, n=12), [], "too short:\nraise length"),
        answers("none", *[said(i, float(i < 6)) for i in range(12)], length=256),
        answers("none", *[said(i, 0.0) for i in range(12)]),
        answers("none", *haystack, length=1024),
        answers("abf", *right, length=128),
        FinishedCell(cell("passkey", "abf", 256, n=12), [], "no base"),
        answers("pi", *[said(i, float(i < 5)) for i in range(12)], length=256),
        answers("pi", *right),
        answers("pi", *haystack[:3], lost, *haystack[4:11], length=1024, n=12),
    ]


def test_a_table_reads_as_it_should() -> None:
    # Newcombe at 12 of 12: 1 - sqrt 2 z^2 / (12 + z^2) = 0.657, p 2 / 2^12; at 0 and 1 of 12: Wilson's [0, 0.243] and
    # [0.015, 0.354], -1/12 -+ sqrt(0.271^2), sqrt(0.243^2 + 0.068^2)
    assert markdown(compared(mixed(), "accuracy")) == (
        "| method       |   128 (0.5x) |            256 (1x) |                512 (2x) |            1024 (4x) |\n"
        "| ------------ | -----------: | ------------------: | ----------------------: | -------------------: |\n"
        "| none (value) |  refused (1) |                50.0 |                     0.0 |                100.0 |\n"
        "| abf          | no pairs (2) |         refused (3) |                         |                      |\n"
        "| pi           |              | -8.3 [-35.4, +16.9] | +100.0* [+65.7, +100.0] | -9.1 (4, 5, 6, 7, 8) |\n"
        "\n"
        "(1) refused: too short: raise length  \n"
        "(2) no pairs: none is refused at 128  \n"
        "(3) refused: no base  \n"
        "(4) 11 pairs in 1 cluster  \n"
        "(5) 1 pair failed, a failed side counts 0  \n"
        "(6) 1 pair truncated  \n"
        "(7) 1 sample on one side only, left out  \n"
        "(8) no interval: 1 cluster  \n"
        "12 pairs in 12 clusters per entry, unless a note says otherwise.\n"
    )


def test_nats_are_shown_to_thousandths_and_failures_left_out_are_said() -> None:
    cells = fake_cells(["last_segment"])
    found = compared(cells, "nll")
    shown = markdown(found)
    entry = found.entries[parse_label("pi"), 1024]
    assert f" {entry.difference:+.3f} [{entry.low:+.3f}, {entry.high:+.3f}]" in shown
    [ntk] = [line for line in shown.splitlines() if line.startswith("| ntk")]
    assert ntk.split("|")[5].strip().endswith("(1, 2)")
    assert "(1) 31 pairs in 8 clusters  \n(2) 1 pair failed, left out  \n" in shown
    assert "32 pairs in 8 clusters per entry" in shown
    assert (
        "\nNo entry can be significant: with 8 clusters no p is below 0.0078, before correction for 19 comparisons.\n"
        in shown
    )


def attending(attention: dict[str, Any] | None, each: FinishedCell) -> FinishedCell:
    return replace(each, cell=replace(each.cell, identity={**each.cell.identity, "attention": attention}))


def test_the_same_attention_is_not_tested_and_no_member_of_the_family() -> None:
    # Of 8 answers all and 6 are gained: p is 2 / 2^8 and 2 / 2^6. Holm's factors are 2 and 1; among three 3 and 2.
    base, every = [said(i, 0.0) for i in range(8)], [said(i, 1.0) for i in range(8)]
    cells = [
        answers("none", *base),
        answers("ntk", *every),
        answers("yarn", *[said(i, float(i < 6)) for i in range(8)]),
        attending({}, answers("pi", *every)),  # no such gain is possible: never starred, whatever the samples say
    ]
    found = compared(cells, "accuracy")
    entries = {str(method): entry for (method, _), entry in found.entries.items()}
    assert [entries[name].p_holm for name in ("ntk", "yarn")] == [2 * 2 / 2**8, 2 / 2**6]
    assert entries["yarn"].significant
    same = entries["pi"]
    assert (same.same_attention, same.p, same.p_holm, same.significant, same.interval) == (True, *[None] * 4)
    [row] = [row for row in difference_rows([found]) if row["method"] == "pi"]
    assert (row["apart"], row["p"], row["significant"], row["difference"]) == ("same attention", None, None, 100.0)
    shown = markdown(found)
    [line] = [line for line in shown.splitlines() if line.startswith("| pi")]
    assert line.split("|")[2].strip() == "same attention (1)"
    assert "(1) its attention at this length is that of none: no difference by construction, not tested" in shown
    few = [replace(each, samples=each.samples[:5]) for each in cells]
    assert "before correction for 2 comparisons" in markdown(compared(few, "accuracy"))


def test_an_attention_that_is_not_known_is_no_same_one() -> None:
    cells = [attending(None, answers(name, *[said(i, 1.0) for i in range(8)])) for name in ("none", "served")]
    assert (one(cells, "accuracy").apart, one(cells, "accuracy").p) == (None, 1.0)


@pytest.mark.parametrize(("clusters", "told"), [(5, True), (6, False)])
def test_too_few_clusters_for_any_mark_are_said(clusters: int, told: bool) -> None:
    # one comparison: 2 / 2^5 = 0.0625 is above 0.05, 2 / 2^6 = 0.031 is not
    cells = [answers(method, *[said(i, float(method != "none")) for i in range(clusters)]) for method in ("none", "pi")]
    shown = markdown(compared(cells, "accuracy"))
    assert ("No entry can be significant" in shown, "+100.0*" in shown) == (told, not told)


def test_a_difference_that_rounds_to_nothing_has_no_sign() -> None:
    gaps = [-(2.0**-12), 2.0**-13, -(2.0**-13)]
    cells = [
        texts("none", *[text(i, [2.0]) for i in range(3)]),
        texts("pi", *[text(i, [2 + g]) for i, g in enumerate(gaps)]),
    ]
    assert one(cells, "nll").difference == -(2.0**-12) / 3
    assert "| 0.000 [-0.001, 0.000] |" in markdown(compared(cells, "nll"))


def test_the_numbers_hold_every_comparison_in_full_precision() -> None:
    cells = mixed()
    found = compared(cells, "accuracy")
    rows = list(reader.DictReader(io.StringIO(formats.rows_as_csv(difference_rows([found])))))
    assert [(row["method"], int(row["length"])) for row in rows] == [
        (str(method), length) for method, length in found.entries
    ]
    for row in rows:
        entry = found.entries[parse_label(row["method"]), int(row["length"])]
        for name in (
            "difference",
            "baseline_value",
            "value",
            "low",
            "high",
            "p",
            "p_holm",
            "refused",
            "failed",
        ):
            assert row[name] == ("" if getattr(entry, name) is None else str(getattr(entry, name))), name
        assert row["apart"] == (note_text(entry.apart) if entry.apart else "")
        assert (row["baseline"], row["unit"], float(row["multiple"])) == ("none", "points", entry.length / 256)


def test_every_setting_has_its_heading_once() -> None:
    cells = fake_cells()
    samples = samples_by_cell(cells)
    whole = page([found for table in build_tables(cells) if (found := paired_differences(table, samples))])
    assert [line for line in whole.splitlines() if line.startswith("#")] == [
        "# Paired differences to none",
        "## last_segment on lexlet",
        "### nll (nats per token)",
        "## passkey on lexlet",
        "### accuracy (points)",
        "### contains (points)",
        "### in_place (points)",
        "### reached (points)",
    ]
    assert whole.count("\n| none (value)") == 5


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
def test_a_report_holds_differences_where_none_and_another_method_were_run(tmp_path: Path) -> None:
    whole = mixed()[:-1]  # the last one lacks a question, and no report shows it
    keep(tmp_path / "both", whole)
    report = write_report([tmp_path / "both"]).read_text()
    shown = tmp_path / "both/report/tables/differences.md"
    assert markdown(compared(whole, "accuracy")) in shown.read_text()
    assert len(shown.with_suffix(".csv").read_text().splitlines()) == 1 + 4
    assert "](tables/differences.md)" in report and "](tables/differences.csv)" in report
    keep(tmp_path / "alone", mixed()[:4])
    assert "differences" not in write_report([tmp_path / "alone"]).read_text()
    assert not (tmp_path / "alone/report/tables/differences.md").exists()


def test_pairs_that_all_failed_are_said_and_nothing_else() -> None:
    lost = [said(i, 0.0, failed="died", scores={}) for i in range(2)]
    cells = [answers(name, said(0, 1.0), said(1, 1.0)) for name in ("none", "yarn")] + [answers("pi", *lost)]
    shown = markdown(compared(cells, "accuracy"))
    assert [line.split()[-4:] for line in shown.splitlines() if line.startswith("| pi ")] == [
        ["no", "pairs", "(1)", "|"]
    ]
    same = "(2) cannot be told: both at the ceiling (1.00)"
    assert shown.split("\n\n")[1].startswith(
        f"(1) 2 pairs failed, left out  \n{same}  \n2 pairs in 2 clusters per entry"
    )


def probed(method: str, values: Sequence[float], **changed: Any) -> FinishedCell:
    samples = [said(i, 0.0, scores={"attention_distance": value}) for i, value in enumerate(values)]
    samples[-1] = replace(samples[-1], **changed)
    return FinishedCell(cell("resolution", method, 512, n=len(samples)), samples)


def test_measures_of_attention_are_compared_in_their_own_units() -> None:
    cells = [probed("none", [100.0, 200.0, 300.0]), probed("pi", [101.0, 201.0, 301.0])]
    found = compared(cells, "attention_distance")
    [entry] = found.entries.values()
    assert (entry.baseline_value, entry.value, entry.difference) == (200.0, 201.0, 1.0)
    # each is 1 larger: for a score that is all or nothing, and Newcombe's
    assert entry.interval == Interval(1.0, 1.0, "cluster_bootstrap")
    shown = page([found])
    assert "### attention_distance (as measured)" in shown
    assert re.search(
        r"\| none \(value\) \| +200 \|\n\| pi +\| \+1\.0 \[\+1\.0, \+1\.0\] \|", shown
    )  # as many digits as 200.0


def test_a_failed_side_has_no_measure() -> None:
    cells = [probed("none", [1.0, 2.0, 3.0]), probed("pi", [2.0, 4.0, 9.0], failed="no", scores={})]
    entry = one(cells, "attention_distance")
    assert (entry.pairs, entry.failed, entry.difference) == (2, 1, 1.5)
    assert "1 pair failed, left out" in markdown(compared(cells, "attention_distance"))
