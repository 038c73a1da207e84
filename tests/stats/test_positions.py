"""By position: what a token has before it decides where it is counted."""

import csv as reader
import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import ArrayLike
from scipy.stats import t

import lexbench
from lexbench import ClassifyTokens, ClassifyTokensAnswer, Loglikelihood, LoglikelihoodAnswer, Sample
from lexbench.checkpoints.tokenizer import FastTokenizer
from lexbench.core.method_key import parse_label
from lexbench.corpora.synthetic import Synthetic
from lexbench.report import formats
from lexbench.report.looks import looks_of_methods
from lexbench.report.plots.position_plots import plot_by_position
from lexbench.report.report import write_report
from lexbench.report.tables import collapse_grid
from lexbench.stats import positions
from lexbench.stats.intervals import cluster_bootstrap
from lexbench.stats.positions import PositionCurve, bin_edges, collapse_position, curves_by_position
from lexbench.stats.tables import Table, build_tables
from lexbench.store.format import FinishedCell
from lexbench.taskkit.scoring import score_marks
from tests.report.fake_run import cell, finished, keep
from tests.stats.bootstrap_t import bootstrap_t

TRAINED = 256


def markdown(table: Table, found: list[PositionCurve]) -> str:
    grid = collapse_grid(table, found)
    assert grid is not None
    return formats.grid_markdown(grid)


def prefix(index: int, nll: ArrayLike, **changed: Any) -> Sample:
    """A window whose first token, BOS, is no target."""
    losses = np.asarray(nll, np.float32)
    values = {"cluster": str(index), "tokens": len(losses) + 1, "nll": losses, "bytes": 10, "words": 2, **changed}
    return Sample(index=index, **values)


def stepped(length: int, *levels: tuple[int, float]) -> list[float]:
    """NLL of positions 1 to length - 1: each level from its position on."""
    return [[level for begin, level in levels if begin <= position][-1] for position in range(1, length)]


def cells(samples: dict[str, Sequence[Sample]], length: int = 1024, task: str = "prefix") -> list[FinishedCell]:
    return [FinishedCell(cell(task, method, length, n=len(each)), list(each)) for method, each in samples.items()]


def table_of(found: Sequence[FinishedCell], metric: str = "nll") -> tuple[Table, dict[str, list[Sample]]]:
    [table] = [table for table in build_tables(found) if table.metric == metric]
    return table, {each.cell.id: each.samples for each in found}


def curves(found: Sequence[FinishedCell], metric: str = "nll") -> list[PositionCurve]:
    return curves_by_position(*table_of(found, metric))


def test_bins_grow_with_the_position_and_one_begins_at_the_trained_length() -> None:
    # 256 2^(k / 4): ... 16 19 23 27 32 38 45 54 64 76 91 108 128 152 181 215 256, of which those 16 apart remain
    inside = [0, 16, 32, 54, 76, 108, 128, 152, 181, 215, 256]
    assert bin_edges(1024, 256).tolist() == [*inside, 304, 362, 431, 512, 609, 724, 861, 1024]
    assert bin_edges(256, 256).tolist() == inside
    assert bin_edges(300, 256).tolist() == [*inside, 300]
    assert bin_edges(20, 256).tolist() == [0, 20]


@pytest.mark.parametrize(
    ("length", "trained"), [(1000, 300), (4096, 100), (272, 256), (271, 256), (90, 40), (64, 2048)]
)
def test_no_bin_has_less_than_sixteen_positions(length: int, trained: int) -> None:
    edges = bin_edges(length, trained)
    assert (edges[0], edges[-1]) == (0, length)
    assert np.diff(edges).min() >= 16
    assert (trained in edges) == (trained + 16 <= length)


def test_a_target_counts_where_its_position_lies() -> None:
    # NLL = position: a bin's mean is that of its first and last position; BOS at 0 is no target
    [curve] = curves(cells({"none": [prefix(0, np.arange(1, 1024))]}))
    middles = [(begin + end - 1) / 2 for begin, end in zip(curve.edges, curve.edges[1:], strict=False)]
    assert [each.value for each in curve.values] == [8.0, *middles[1:]]
    assert curve.targets.tolist() == [15, *np.diff(curve.edges)[1:]]
    assert (curve.level.value, curve.beyond.value) == ((128 + 255) / 2, (256 + 1023) / 2)


@pytest.mark.parametrize("name", ["prefix", "non_overlapping", "sliding"])
def test_positions_are_those_of_the_tasks_own_windows(tokenizer: FastTokenizer, name: str) -> None:
    task = lexbench.task(name, corpus=Synthetic(count=4, words=600), document_tokens=400)
    questions = [each for each in task.questions(tokenizer, 160, 3, 0) if isinstance(each, Loglikelihood)]
    answered = [
        task.score(
            question, LoglikelihoodAnswer(nll=np.arange(question.first_target, question.length, dtype=np.float32))
        )
        for question in questions
    ]
    [curve] = curves(cells({"none": answered}, length=160))
    for begin, end, each in zip(curve.edges[1:], curve.edges[2:], curve.values[1:], strict=False):
        assert begin <= each.value <= end - 1
    assert sum(curve.targets) == sum(question.length - question.first_target for question in questions)
    assert curve.samples == len(questions)


def test_bins_weight_by_targets_and_resample_clusters_as_everything_does() -> None:
    rng = np.random.default_rng(0)
    answered = [
        prefix(i, rng.gamma(2.0, 1.0 + i % 3, 40 * (i % 5) + 600), cluster=str(i // 2), tokens=1024) for i in range(24)
    ]
    [curve] = curves(cells({"none": answered}))
    assert (curve.samples, curve.clusters) == (24, 12)
    for number in (-1, -3):
        begin, end = curve.edges[number - 1], curve.edges[number]
        inside = [
            each.nll[max(0, begin - first) : end - first].astype(float)
            for each in answered
            if each.nll is not None and (first := each.tokens - len(each.nll))
        ]
        sums, targets = [each.sum() for each in inside], [len(each) for each in inside]
        expected = cluster_bootstrap(sums, targets, [each.cluster for each in answered])
        value = curve.values[number]
        assert expected is not None
        assert value.value == pytest.approx(sum(sums) / sum(targets))
        ends = pytest.approx([expected.low, expected.high], abs=0.01 * (expected.high - expected.low))  # between draws
        assert [value.low, value.high] == ends
        assert curve.targets[number] == sum(targets)


def test_the_interval_of_the_level_is_that_of_documents_studentised() -> None:
    rng = np.random.default_rng(3)
    losses = [rng.gamma(2.0, 1.0, 1023) + rng.normal() for _ in range(40)]
    [curve] = curves(cells({"none": [prefix(i, nll) for i, nll in enumerate(losses)]}))
    for estimate, part in ((curve.level, slice(127, 255)), (curve.beyond, slice(255, None))):
        means = np.array([nll[part].mean() for nll in losses])
        low, high = bootstrap_t(means)
        assert estimate.value == pytest.approx(means.mean(), rel=1e-6)
        assert [estimate.low, estimate.high] == pytest.approx([low, high], abs=0.04 * float(high - low))


def test_nll_that_rises_at_the_trained_length_and_stays_collapses_there() -> None:
    answered = [prefix(i, stepped(1024, (0, 2.0 + i), (256, 4.0 + i))) for i in range(4)]
    [curve] = curves(cells({"none": answered}))
    assert curve.collapse is not None
    assert (curve.collapse.value, curve.collapse.low, curve.collapse.high) == (256, 256, 256)
    assert (curve.level.value, curve.beyond.value) == (3.5, 5.5)  # means of 2 to 5, and of 4 to 7


@pytest.mark.parametrize(
    ("levels", "expected"),
    [
        ([(0, 9.0), (64, 1.0)], math.inf),  # what is bad early does not stay
        ([(0, 1.0), (256, 1.5)], math.inf),  # 0.5 is not more than 0.5
        ([(0, 1.0), (256, 1.5625)], 256),
        ([(0, 1.0), (256, 3.0), (512, 1.25), (609, 3.0)], 609),  # a relapse: only what stays counts
        ([(0, 1.0), (256, 3.0), (861, 1.0)], math.inf),  # it recovers
        ([(0, 5.0)], math.inf),  # bad everywhere: the level says so
        ([(0, 1.0), (215, 9.0)], 215),  # inside: (87 * 1 + 41 * 9) / 128 = 3.56 in range
    ],
    ids=str,
)
def test_a_collapse_is_where_nll_begins_to_stay_above(levels: list[tuple[int, float]], expected: float) -> None:
    [curve] = curves(cells({"none": [prefix(0, stepped(1024, *levels))]}))
    assert curve.collapse is not None
    assert curve.collapse.value == expected
    assert math.isnan(curve.collapse.low)  # one document


def test_the_interval_of_a_collapse_may_reach_to_never() -> None:
    # both drawn: (2 + 0) / 2 above the level; the first twice: 2 above; the second twice, a quarter of all draws: never
    answered = [prefix(0, stepped(1024, (0, 1.0), (512, 3.0))), prefix(1, stepped(1024, (0, 1.0)))]
    [curve] = curves(cells({"none": answered}))
    assert curve.collapse is not None
    assert (curve.collapse.value, curve.collapse.low, curve.collapse.high) == (512, 512, math.inf)


def test_a_bin_without_targets_decides_nothing() -> None:
    values = np.array([[1.0, 9.0, np.nan, 9.0], [1.0, np.nan, 9.0, np.nan], [1.0, 9.0, np.nan, 1.0], [np.nan] * 4])
    begins = np.array([0, 16, 32, 48])
    assert collapse_position(values, np.ones(4), begins).tolist() == [16, 32, math.inf, math.inf]
    assert np.isnan(collapse_position(values, np.full(4, np.nan), begins)).all()


def test_there_is_no_collapse_without_targets_on_both_sides_of_the_trained_length() -> None:
    [inside] = curves(cells({"none": [prefix(0, np.ones(255))]}, length=256))
    assert inside.collapse is None
    assert math.isnan(inside.beyond.value)
    assert collapse_grid(table_of(cells({"none": [prefix(0, np.ones(255))]}, length=256))[0], [inside]) is None
    [late] = curves(cells({"none": [prefix(0, np.ones(600), tokens=1024)]}))
    assert late.collapse is None  # positions from 424 on


def test_a_failed_sample_is_left_out() -> None:
    bad = prefix(1, [math.nan] * 1023, failed="no finite likelihood")
    lost = Sample(index=2, cluster="2", tokens=1024, failed="died")
    [curve] = curves(cells({"none": [prefix(0, np.ones(1023)), bad, lost]}))
    assert (curve.samples, curve.clusters, curve.level.value, sum(curve.targets)) == (1, 1, 1.0, 1023)


def test_only_targets_all_over_the_window_make_a_curve() -> None:
    def narrow(length: int, targets: int = 64) -> FinishedCell:
        return cells({"none": [prefix(0, np.ones(targets), tokens=length)]}, length, "last_segment")[0]

    assert curves([narrow(128), narrow(1024)]) == []
    assert curves([narrow(128)]) == []  # exactly half
    assert len(curves([narrow(127)])) == 1
    assert curves([narrow(127), narrow(1024)]) == []  # short windows alone tell nothing of long ones
    here_and_there = prefix(0, np.ones(700), tokens=1024, facts={"targets": [1, 5, 9]})
    assert curves(cells({"none": [here_and_there]})) == []
    assert curves([finished("passkey", "none", 512, n=4)], "accuracy") == []
    assert curves(cells({"none": [prefix(0, np.ones(1023))]}), "perplexity") == []


def test_every_length_and_method_has_a_curve_and_refusals_have_none() -> None:
    found = [
        *cells({"pi": [prefix(0, np.ones(511))], "none": [prefix(0, np.ones(511))]}, 512),
        *cells({"pi": [prefix(0, np.ones(1023))]}),
        FinishedCell(cell("prefix", "none", 1024, n=1), [], "out of memory"),
    ]
    assert [(str(each.method), each.length) for each in curves(found)] == [("none", 512), ("pi", 512), ("pi", 1024)]


def marked(index: int, right: Sequence[int], step: int = 16, length: int = 1024, failed: bool = False) -> Sample:
    """Places every `step` tokens; 1 where the mark is right."""
    places = np.arange(step, length, step)[: len(right)]
    tokens = np.full(length, 7)
    tokens[places] = 1
    nll = np.where(np.asarray(right)[:, None] == 1, [[9.0, 0.0]], [[0.0, 9.0]]).astype(np.float32)
    question = ClassifyTokens(index=index, cluster=str(index), tokens=tokens, places=places, options=np.array([0, 1]))
    nll[-1] = math.nan if failed else nll[-1]
    return score_marks(question, ClassifyTokensAnswer(nll=nll))


def test_marks_by_their_places_show_where_a_model_loses_count() -> None:
    # 63 places 16, 32, ..., 1008: all right before 512, every other one wrong from there on
    answered = [marked(i, [int(p < 512 or p % 32 == 0) for p in range(16, 1024, 16)]) for i in range(3)]
    [curve] = curves(cells({"none": answered}, task="parity"), "accuracy")
    by_bin = dict(zip(curve.edges[:-1].tolist(), curve.values, strict=True))
    assert {by_bin[begin].value for begin in (16, 128, 256, 431)} == {1.0}
    assert by_bin[512].value == 4 / 7  # 512 528 544 560 576 592 608: every second right
    assert by_bin[861].value == 5 / 10  # 864 ... 1008
    assert math.isnan(by_bin[0].value)
    assert (curve.level.value, curve.collapse) == (1.0, None)
    assert curve.beyond.value == pytest.approx((16 + 16) / 48)


def test_marks_of_a_failed_sample_are_wrong() -> None:
    answered = [marked(0, [1] * 63), marked(1, [1] * 63, failed=True)]
    [curve] = curves(cells({"none": answered}, task="parity"), "accuracy")
    assert (curve.beyond.value, curve.samples) == (0.5, 2)


def shown() -> tuple[Table, dict[str, list[Sample]]]:
    return table_of(
        [
            *cells(
                {
                    "none": [prefix(i, stepped(1024, (0, 2.0), (362, 4.0 + i))) for i in range(2)],
                    "yarn": [prefix(i, np.full(1023, 2.25 + i / 2)) for i in range(2)],
                }
            ),
            *cells({"none": [prefix(i, np.full(511, 1.0)) for i in range(2)]}, 512),
        ]
    )


def test_the_table_reads_as_it_should() -> None:
    table, samples = shown()
    beyond = (2 * 106 + 4.5 * 662) / 768  # positions 256 to 361, and 362 to 1023
    reach = t.ppf(0.975, 1) * 0.5 * 662 / 768  # either text alone
    assert reach > beyond  # no NLL is below 0
    ends = f"[0.000, {2.5 + t.ppf(0.975, 1) / 4:.3f}]"
    found = curves_by_position(table, samples)
    assert markdown(table, found) == (
        "| method |    NLL at 128 to 255 |   NLL at 256 to 1023 |       collapse |\n"
        "| ------ | -------------------: | -------------------: | -------------: |\n"
        f"| none   | 2.000 [2.000, 2.000] | {beyond:.3f} [0.000, {beyond + reach:.3f}] | 362 [362, 362] |\n"
        f"| yarn   | 2.500 {ends} | 2.500 {ends} |          never |\n"
    )


def test_the_numbers_say_never_where_there_is_no_collapse_and_hold_every_length() -> None:
    table, samples = shown()
    text = formats.rows_as_csv(positions.rows_of(table, curves_by_position(table, samples)))
    rows = list(reader.DictReader(io.StringIO(text)))
    assert [(row["method"], row["length"], row["collapse_position"]) for row in rows] == [
        ("none", "512", "never"),
        ("none", "1024", "362"),
        ("yarn", "1024", "never"),
    ]
    assert (rows[1]["in_range"], rows[1]["collapse_position_low"], rows[1]["clusters"]) == ("2.0", "362", "2")


@pytest.mark.slow
def test_the_figure_stands_beside_its_numbers_the_same_bytes_every_time(tmp_path: Path) -> None:
    table, samples = shown()
    found = curves_by_position(table, samples)
    for name in ("a", "b"):
        plot_by_position(table, found, tmp_path / name)
    for suffix in (".svg", ".png", ".csv"):
        assert (tmp_path / f"a{suffix}").read_bytes() == (tmp_path / f"b{suffix}").read_bytes()
    rows = list(reader.DictReader((tmp_path / "a.csv").open()))
    assert len(rows) == sum(int((curve.targets > 0).sum()) for curve in found)
    row = next(row for row in rows if (row["method"], row["length"], row["begin"]) == ("none", "1024", "362"))
    reach = t.ppf(0.975, 1) * 0.5
    assert [float(row[name]) for name in ("value", "low", "high")] == pytest.approx([4.5, 0.0, 4.5 + reach])
    assert (row["end"], row["targets"]) == ("431", str(2 * 69))
    picture = (tmp_path / "a.svg").read_text()
    assert "<!-- collapses here -->" in picture and "<!-- trained length -->" in picture


@pytest.mark.slow
@pytest.mark.parametrize("methods", [["none"], [f"m{number}" for number in range(12)]], ids=len)
def test_one_method_and_many_can_be_drawn(tmp_path: Path, methods: list[str]) -> None:
    found = cells({method: [prefix(0, np.ones(299))] for method in methods}, 300)
    plot_by_position(table_of(found)[0], curves(found), tmp_path / "a")
    picture = (tmp_path / "a.svg").read_text()
    shown = {"none": "unmodified (none)"}
    assert all(f"<!-- {shown.get(method, method)} -->" in picture for method in methods)
    assert ("grey: the methods of the other panels" in picture) == (len(methods) > 8)


def test_a_method_keeps_its_colour_where_another_is_refused(tmp_path: Path) -> None:
    found = cells({method: [prefix(0, np.ones(1023))] for method in ("none", "yarn")})
    found.append(FinishedCell(cell("prefix", "pi", 1024, n=1), [], "no"))
    plot_by_position(table_of(found)[0], curves(found), tmp_path / "a")
    picture = (tmp_path / "a.svg").read_text().lower()
    known = looks_of_methods([parse_label("yarn"), parse_label("pi")])
    assert known[parse_label("yarn")].colour.lower() in picture
    assert known[parse_label("pi")].colour.lower() not in picture


def test_marks_are_drawn_with_their_chance(tmp_path: Path) -> None:
    found = cells({"none": [marked(0, [1] * 63)], "pi": [marked(0, [0] * 63)]}, task="parity")
    plot_by_position(table_of(found, "accuracy")[0], curves(found, "accuracy"), tmp_path / "a")
    picture = (tmp_path / "a.svg").read_text()
    assert "<!-- chance -->" in picture and "<!-- collapses here -->" not in picture


@pytest.mark.usefixtures("undrawn")
def test_a_report_shows_positions_of_what_has_them(tmp_path: Path) -> None:
    table, samples = shown()
    named = {each.cell: str(each.method) for each in table.entries.values()}
    found = [
        FinishedCell(cell("prefix", named[name], 512 if each[0].tokens == 512 else 1024, n=2), each)
        for name, each in samples.items()
    ]
    keep(tmp_path / "run", [*found, *(finished("last_segment", "none", length, n=4) for length in (256, 512))])
    page = write_report([tmp_path / "run"]).read_text()
    assert page.count("#### By position, at 1024 tokens\n") == 1
    assert markdown(table, curves_by_position(table, samples)) in page
    assert "](plots/lexlet-prefix-nll-by-position.svg)" in page and "](tables/lexlet-prefix-nll-collapse.csv)" in page
    assert not list((tmp_path / "run/report").rglob("*last_segment*position*"))
