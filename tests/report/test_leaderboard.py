"""The leaderboard ranks rows, says which cannot be told from the best, and mixes nothing."""

import csv
import json
import math
import re
from collections.abc import Sequence
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from markdown_it import MarkdownIt
from numpy.typing import ArrayLike
from scipy.stats import binomtest, t

from lexbench.core.method_key import MethodKey, parse_label
from lexbench.core.record import Sample
from lexbench.report.formats import markdown_columns
from lexbench.report.leaderboard.best import difference_from_best, mark_best_rows
from lexbench.report.leaderboard.boards import Board, BoardValue
from lexbench.report.leaderboard.leaderboard import boards_by_method, boards_by_model, leaderboard_text
from lexbench.report.leaderboard.page import FORMAT_WRITERS
from lexbench.stats.intervals import wilson_interval
from lexbench.stats.pairs import Outcome
from lexbench.stats.records import records_of
from lexbench.stats.summaries import EFFECTIVE_LENGTH_RULES, curve_summaries
from lexbench.stats.tables import build_tables
from lexbench.store.format import FinishedCell
from tests.report.fake_run import cell, fake_cells, finished, keep

REFERENCE = Path(__file__).parents[2] / "results" / "reference"


def text(index: int, nll: ArrayLike, **changed: Any) -> Sample:
    losses = np.array(nll, np.float32)
    values = {"cluster": str(index), "tokens": 20, "nll": losses, "bytes": 10, "words": 2, **changed}
    return Sample(index=index, **values)


def texts(method: str, length: int, *losses: ArrayLike, **changed: Any) -> FinishedCell:
    samples = [text(index, loss, tokens=length) for index, loss in enumerate(losses)]
    return FinishedCell(cell("last_segment", method, length, n=len(losses), **changed), samples)


def answers(method: str, length: int, right: Sequence[float], task: str = "passkey", **changed: Any) -> FinishedCell:
    samples = [
        Sample(index=index, cluster=str(index), tokens=length, scores={"accuracy": float(each)})
        for index, each in enumerate(right)
    ]
    return FinishedCell(cell(task, method, length, n=len(right), **changed), samples)


def boards(found: Sequence[FinishedCell], rows: str = "method", columns: str = "length") -> list[Board]:
    make = boards_by_method if rows == "method" else boards_by_model
    return make(build_tables(found), {each.cell.id: each.samples for each in found}, columns)


def board(found: Sequence[FinishedCell], rows: str = "method", columns: str = "length") -> Board:
    [made] = boards(found, rows, columns)
    return made


def column(made: Board, name: str) -> dict[str, BoardValue]:
    return {str(row): made.entries[row, name] for row in made.rows if (row, name) in made.entries}


def test_a_row_is_level_with_the_best_unless_the_paired_test_with_holm_says_otherwise() -> None:
    right = {"none": 12, "ntk": 11, "pi": 2, "yarn": 6}
    found = [answers(method, 512, [index < hits for index in range(12)]) for method, hits in right.items()]
    here = column(board(found), "512")
    # McNemar's exact test of 1, 10 and 6 answers that only the best has; Holm: 3, 2 and 1 times, ascending
    p = {row: binomtest(count, count).pvalue for row, count in (("ntk", 1), ("pi", 10), ("yarn", 6))}
    assert here["none"].mark.best and not here["none"].mark.level and here["none"].mark.p_holm is None
    assert here["pi"].mark.p_holm == pytest.approx(3 * p["pi"])
    assert here["yarn"].mark.p_holm == pytest.approx(2 * p["yarn"])  # 0.0625: of the test alone 0.031 would do
    assert here["ntk"].mark.p_holm == 1.0
    assert [row for row, entry in here.items() if entry.mark.level] == ["ntk", "yarn"]
    assert list(here) == ["none", "ntk", "yarn", "pi"]


def test_of_likelihoods_the_lowest_is_best_and_ties_are_shared() -> None:
    losses = {"none": 3.0, "ntk": 2.0, "pi": 2.0}
    found = [texts(method, 512, *[[loss + 0.1 * index] for index in range(8)]) for method, loss in losses.items()]
    here = column(board(found), "512")
    assert list(here) == ["ntk", "pi", "none"]
    assert [entry.mark.best for entry in here.values()] == [True, True, False]
    assert not any(entry.mark.level for entry in here.values())  # 8 of 8 texts are worse: p is 2 / 2^8, times 2
    assert here["none"].mark.p_holm == pytest.approx(2 * 2 / 2**8)


def test_a_column_in_which_all_are_alike_has_no_best() -> None:
    here = column(board([answers(method, 512, [1, 1, 0]) for method in ("none", "pi")]), "512")
    assert not any(entry.mark.best or entry.mark.level for entry in here.values())


def test_too_few_clusters_to_tell_anything_are_said() -> None:
    made = board([answers(method, 512, [hit] * 5) for method, hit in (("none", 1), ("pi", 0))])
    assert made.entries[parse_label("pi"), "512"].mark.level  # p is 2 / 2^5
    assert "At 512 (2x), 5 documents or haystacks are too few to tell any row from the best." in made.remarks
    enough = board([answers(method, 512, [hit] * 6) for method, hit in (("none", 1), ("pi", 0))])
    assert not enough.entries[parse_label("pi"), "512"].mark.level and not any(
        "too few" in said for said in enough.remarks
    )


def test_rows_that_were_asked_other_questions_are_not_tested() -> None:
    other = FinishedCell(
        cell("passkey", "pi", 512, n=8),
        [Sample(index=i, cluster=f"other {i}", tokens=512, scores={"accuracy": 0.0}) for i in range(8)],
    )
    made = board([answers("none", 512, [1] * 8), other])
    assert (
        made.entries[parse_label("pi"), "512"].mark.p_holm is None
        and not made.entries[parse_label("pi"), "512"].mark.level
    )
    assert "At 512 (2x) not tested, as the questions are not those of the best: pi." in made.remarks


def test_the_mean_is_of_nats_and_exponentiated_once() -> None:
    found = [texts("none", 512, [1.0, 1.0], [3.0, 3.0]), texts("none", 1024, [2.0, 2.0], [5.0, 5.0])]
    made = board(found)
    mean = made.entries[parse_label("none"), "mean"]
    assert mean.value == 0.5 * (2.0 + 3.5)
    # two documents at both lengths, means 1.5 and 4.0: Student's error is 1.25, the lower end below 0
    ends = (0.0, 2.75 + 1.25 * t.ppf(0.975, 1))
    assert (mean.low, mean.high) == pytest.approx(ends)
    assert (mean.n, mean.clusters) == (4, 2)
    perplexity = made.entries[parse_label("none"), "perplexity"]
    assert [perplexity.value, perplexity.low, perplexity.high] == pytest.approx([math.exp(x) for x in (2.75, *ends)])
    assert [each.head for each in made.columns] == ["512 (2x)", "1024 (4x)", "mean of 2", "its perplexity"]


def test_the_mean_of_scores_has_a_width_where_all_are_right() -> None:
    made = board([answers("none", length, [1] * 10) for length in (512, 1024)])
    mean = made.entries[parse_label("none"), "mean"]
    # two independent lengths of the same weight: distances to Wilson's ends, by Pythagoras
    assert mean.value == mean.high == 1.0
    assert mean.low == pytest.approx(1 - math.sqrt(2) * 0.5 * (1 - wilson_interval(10, 10).low))


def test_the_mean_goes_over_lengths_beyond_the_trained_one_that_all_rows_share() -> None:
    found = [answers("none", length, [1, 1, 0, 0]) for length in (128, 256, 512, 1024, 2048)]
    found += [answers("pi", length, [1, 0, 0, 0]) for length in (128, 256, 512, 1024)]
    found += [FinishedCell(cell("passkey", "pi", 2048, n=4), [], "out of memory")]
    found += [FinishedCell(cell("passkey", "yarn", length, n=4), [], "no kernel") for length in (512, 1024)]
    made = board(found)
    assert {row: entry.value for row, entry in column(made, "mean").items()} == {"none": 0.5, "pi": 0.25}
    said = (
        "Mean: over 512, 1024, 2 of 3 lengths beyond the trained length, each with the same weight; 2048 is lacking in"
    )
    assert f"{said} pi." in made.remarks
    assert made.remarks[0] == "Rows by the mean, best first; last, without a value: yarn."
    assert list(map(str, made.rows)) == ["none", "pi", "yarn"]


def test_without_a_shared_length_there_is_no_mean_and_no_rank() -> None:
    made = board([answers("yarn", 512, [1, 1]), answers("pi", 1024, [1, 0])])
    assert list(map(str, made.rows)) == ["pi", "yarn"] and made.remarks[0] == "Rows by name."
    said = "No mean: none of 2 lengths beyond the trained length has a value in every row"
    assert f"{said}; 512 is lacking in pi; 1024 is lacking in yarn." in made.remarks
    assert {each.name for each in made.columns} == {"512", "1024"}


def test_inside_the_trained_length_alone_the_mean_is_of_all_lengths() -> None:
    made = board([answers("none", length, [1, 0]) for length in (128, 256)])
    assert "Mean: over 128, 256, 2 of 2 lengths measured, each with the same weight." in made.remarks


def outcome(index: int, cluster: str, amount: float | None, targets: int | None = None) -> Outcome:
    return Outcome(index=index, cluster=cluster, amount=amount, targets=targets)


def test_means_are_compared_as_means_whatever_a_length_weighs() -> None:
    # 512: (3 + 1 - 2 - 0) / 4 targets = 0.5; 1024: (5 - 2) / 1 target = 3; each length counts a half
    best = [[outcome(0, "a", 2.0, 3), outcome(1, "b", 0.0, 1)], [outcome(0, "a", 2.0, 1)]]
    other = [[outcome(0, "a", 3.0, 3), outcome(1, "b", 1.0, 1)], [outcome(0, "a", 5.0, 1)]]
    found = difference_from_best(best, other, "nll")
    assert found.difference == pytest.approx(0.5 * 0.5 + 0.5 * 3.0)
    assert (found.pairs, found.clusters) == (3, 2)
    # a failed side leaves the pair out: then 512 is (3 - 2) / 3
    other[0][1] = outcome(1, "b", None)
    assert difference_from_best(best, other, "nll").difference == pytest.approx(0.5 / 3 + 0.5 * 3.0)


def test_documents_that_stand_at_both_lengths_are_one_cluster_of_the_test() -> None:
    # Six documents, better at both lengths: 6 signs, not 12
    found = [answers(method, length, [hit] * 6) for method, hit in (("none", 1), ("pi", 0)) for length in (512, 1024)]
    assert column(board(found), "mean")["pi"].mark.p_holm == 2 / 2**6
    # What a row wins at one length and loses at the other cancels, document by document
    odd = [1, 0, 1, 0, 1, 0, 1, 0]
    even = [1 - each for each in odd]
    mixed = [answers("none", 512, [1] * 8), answers("none", 1024, odd), answers("pi", 512, even)]
    mixed += [answers("pi", 1024, [1] * 7 + [0])]
    entry = column(board(mixed), "mean")["pi"]
    # none - pi: at 512 4 documents of 8, at 1024 -3 of them: 1, -0.5, ... each over 2 lengths of 8
    gaps = [(1 - e) + (o - x) for e, o, x in zip(even, odd, [1] * 7 + [0], strict=True)]
    signs = [[1 if bit >> place & 1 else -1 for place in range(8)] for bit in range(256)]
    observed = abs(sum(gaps))
    expected = sum(abs(sum(s * g for s, g in zip(sign, gaps, strict=True))) >= observed for sign in signs) / 256
    assert entry.mark.p_holm == expected


@pytest.mark.slow
def test_equal_rows_are_shown_as_behind_as_often_as_the_legend_says() -> None:
    """Up to one column in eight of 10 rows; of 2 rows the test keeps its level."""
    shares = {}
    for rows in (2, 10):
        behind = 0
        for seed in range(120):
            drawn = np.random.default_rng([rows, seed]).normal(3, 1, (rows, 13))
            found = [texts(f"m{row}", 512, *[[each] for each in losses]) for row, losses in enumerate(drawn)]
            first = records_of(found[0])[0]
            records = {
                str(each.cell.method): replace(first, cell=each.cell.id, value=float(losses.mean()))
                for each, losses in zip(found, drawn, strict=True)
            }
            samples = {each.cell.id: each.samples for each in found}
            made = mark_best_rows({row: [record] for row, record in records.items()}, records, samples)
            behind += any(not mark.best and not mark.level for mark in made.values())
        shares[rows] = behind / 120
    assert shares[2] <= 0.1
    assert 0 < shares[10] <= 1 / 8 + 0.03


def test_everything_a_reader_must_know_stands_in_the_entries() -> None:
    made = {each.about["task"]: each for each in boards(fake_cells())}
    passkey, segment = made["passkey"], made["last_segment"]
    assert passkey.entries[parse_label("none"), "128"].shown == "refused"
    assert "passkey needs at least 145 tokens" in passkey.entries[parse_label("none"), "128"].notes[0]
    assert passkey.entries[parse_label("ntk"), "1024"].failed == 1
    assert passkey.entries[parse_label("ntk"), "1024"].notes == ("1 of 32 samples failed, counted as 0",)
    assert segment.entries[parse_label("ntk"), "1024"].notes == ("1 of 32 samples failed, left out of the value",)
    assert (
        passkey.entries[parse_label("pi"), "2048"].more == "3% cut"
        and passkey.entries[parse_label("pi"), "1024"].more == "0% cut"
    )
    assert "Realised tokens: 2008 to 2048 at 2048 (8x)." in passkey.remarks
    assert all(entry.ends for board in made.values() for entry in board.entries.values() if entry.value is not None)
    for each in build_tables(fake_cells()):
        if each.metric in ("nll", "accuracy"):
            entries = made[each.cell.task].entries
            for (row, length), record in each.entries.items():
                shown = entries[row, str(length)]
                assert (shown.value, shown.low, shown.high) == (record.value, record.low, record.high)


def test_truncated_shares_are_of_all_samples_and_of_all_lengths_of_a_mean() -> None:
    samples = [
        Sample(index=i, cluster=str(i), tokens=512, scores={"accuracy": 1.0}, truncated=i == 0) for i in range(3)
    ]
    samples.append(Sample(index=3, cluster="3", tokens=512, failed="no answer"))
    found = [FinishedCell(cell("passkey", "none", length, n=4), samples) for length in (512, 1024)]
    found += [answers("none", 2048, [1, 1, 1, 1])]
    made = board(found)
    assert [made.entries[parse_label("none"), name].more for name in ("512", "2048", "mean")] == [
        "25% cut",
        "0% cut",
        "17% cut",
    ]  # 2 of 12
    assert [made.entries[parse_label("none"), "mean"].truncated, made.entries[parse_label("none"), "mean"].failed] == [
        2,
        2,
    ]
    assert made.entries[parse_label("none"), "mean"].notes == ("2 of 12 samples failed, counted as 0",)


def test_one_board_holds_one_setting() -> None:
    found = [answers("none", 512, [1, 0], seed=seed) for seed in (0, 1)]
    found += [answers("pi", 512, [1, 1], protocol="another", seed=0)]
    made = boards(found)
    assert sorted((each.caption.split("\n")[0], each.about["seed"], tuple(map(str, each.rows))) for each in made) == [
        ("another", 0, ("pi",)),
        ("passkey of 5 digits in noise, strict: the key comes first, greedy, BOS", 0, ("none",)),
        ("passkey of 5 digits in noise, strict: the key comes first, greedy, BOS", 1, ("none",)),
    ]


def models(*given: tuple[str, int, Sequence[int]], **changed: Any) -> list[FinishedCell]:
    """Texts of models by name, trained length and lengths: NLL 1, 2, ... by model, 10 bytes a text of 2 tokens."""
    return [
        texts("none", length, [place, place], [place, place], model=name, trained_length=trained, **changed)
        for place, (name, trained, lengths) in enumerate(given, 1)
        for length in lengths
    ]


def test_models_are_compared_by_bits_per_byte_and_not_tested() -> None:
    made = board(models(("a", 256, (256, 512)), ("b", 256, (256, 512))), rows="model")
    assert (made.corner, made.about["metric"], made.rows) == ("model", "bits_per_byte", ["a", "b"])
    # 2 tokens of 1 or 2 nats each in 10 bytes
    bits = [made.entries[row, "512"].value for row in ("a", "b")]
    assert bits == pytest.approx([2 / (10 * math.log(2)), 4 / (10 * math.log(2))])
    here = column(made, "512")
    assert here["a"].mark.best and not here["b"].mark.level and here["b"].mark.p_holm is None
    assert made.caption.endswith("trained lengths: a 256, b 256")
    assert [each.name for each in made.columns] == ["256", "512"]


def test_the_mean_of_bits_per_byte_is_of_bits() -> None:
    found = models(("a", 256, (512, 1024)), ("b", 256, (512, 1024)))
    made = board(found, rows="model")
    assert made.entries["b", "mean"].value == pytest.approx(4 / (10 * math.log(2)))
    assert made.entries["b", "mean"].low == pytest.approx(4 / (10 * math.log(2)))
    assert [each.name for each in made.columns] == ["512", "1024", "mean"]


def test_models_of_other_trained_lengths_stand_under_multiples() -> None:
    made = board(models(("a", 256, (256, 512)), ("b", 512, (512, 1024, 4096))), rows="model")
    assert [(each.name, each.length, each.multiple) for each in made.columns] == [
        ("1x", None, 1.0),
        ("2x", None, 2.0),
        ("8x", None, 8.0),
    ]
    assert ("a", "8x") not in made.entries
    lengths = board(models(("a", 256, (256, 512)), ("b", 512, (256, 512))), rows="model")
    assert [(each.name, each.head, each.multiple) for each in lengths.columns] == [
        ("256", "256", None),
        ("512", "512", None),
        ("mean", "mean of 2", None),
    ]


def test_models_that_cannot_stand_in_one_table_are_refused_with_both_sides() -> None:
    one = models(("a", 256, (512,)))
    with pytest.raises(ValueError, match="--rows model needs two models, these runs hold a alone"):
        boards(one, rows="model")
    with pytest.raises(ValueError, match=r"no task is measured on two models .*\(a has last_segment; b has passkey\)"):
        boards([*one, answers("none", 512, [1, 0], model="b")], rows="model")
    mixed = [*one, *models(("b", 256, (512,)), protocol="another protocol")]
    with pytest.raises(ValueError, match="not one setting on a and b, which differ in protocol: a 'NLL of the same"):
        boards(mixed, rows="model")
    with pytest.raises(ValueError, match="b 'another protocol'; no table mixes them: measure both alike"):
        boards(mixed, rows="model")
    with pytest.raises(ValueError, match="differ in corpus: a 'stdlib' and b 'books'"):
        boards([*one, *models(("b", 256, (512,)), corpus="books")], rows="model")
    prints = [
        texts("none", 512, [1.0], [2.0], model=name, identity={"model": name, "corpus": {"fingerprint": place}})
        for place, name in enumerate(("a", "b"))
    ]  # the same name of a corpus, and another text in it
    with pytest.raises(ValueError, match="differ in parameters or data; no table mixes them"):
        boards(prints, rows="model")
    with pytest.raises(ValueError, match=r"share no length and no multiple .* \(a at 512; b at 4096\)"):
        boards([*one, *models(("b", 256, (4096,)))], rows="model")
    without = [texts("none", 512, [1.0], [2.0], model="b")]
    without = [FinishedCell(each.cell, [text(i, [1.0], bytes=None) for i in range(2)]) for each in without]
    with pytest.raises(ValueError, match="last_segment on b has no bits per byte, and NLL per token cannot"):
        boards([*one, *without], rows="model")


def test_summaries_stand_as_they_are_and_lengths_beyond_all_measured_say_so() -> None:
    found = fake_cells(("last_segment",))
    made = board(found, columns="summary")
    [table] = [each for each in build_tables(found) if each.metric == "nll"]
    expected = {
        (each.method, each.name): each for each in curve_summaries(table, {f.cell.id: f.samples for f in found})
    }
    assert set(expected) == set(made.entries)
    for place, entry in made.entries.items():
        row, name = place
        assert isinstance(row, MethodKey)
        each = expected[row, name]
        assert (entry.value, entry.low, entry.high) == (each.value, each.low, each.high)
    assert made.entries[parse_label("yarn(factor=8.0)"), "collapse"].shown == "> 2048"
    areas = [made.entries[row, "area_beyond"].value for row in made.rows]
    assert areas == sorted(areas, key=lambda area: area or 0.0) and made.remarks[0].startswith("Rows by area beyond")
    best = {name: [row for row in made.rows if made.entries[row, name].mark.best] for name in ("area", "context_gain")}
    assert best["context_gain"] == [] and best["area"] == [made.rows[0]]
    assert "effective length (tokens): up to it every length is within 0.1 nats" in " ".join(made.remarks)


def test_a_row_that_ran_out_of_memory_gains_no_mark() -> None:
    def made(**curves: Sequence[float]) -> Board:
        lengths = (256, 512, 1024, 2048)
        found = [
            texts(row, n, *[[loss, loss]] * 8)
            if loss
            else FinishedCell(cell("last_segment", row, n, n=8), [], "no memory")
            for row, curve in curves.items()
            for n, loss in zip(lengths, curve, strict=True)
        ]
        return board(found, columns="summary")

    def collapse(made: Board) -> dict[str, tuple[str, bool]]:
        entries = {str(row): made.entries[row, "collapse"] for row in sorted(made.rows, key=str)}
        return {row: (entry.shown, entry.mark.best) for row, entry in entries.items()}

    later = made(none=(3, 4, 4, 4), pi=(3, 3, 3, 4), yarn=(3, 3, 0, 0))
    assert collapse(later) == {"none": ("512", False), "pi": ("2048", True), "yarn": ("> 512", False)}
    assert "refused at 1024, 2048" in later.entries[parse_label("yarn"), "collapse"].notes
    sooner = made(none=(3, 4, 4, 4), pi=(3, 4, 4, 4), yarn=(3, 3, 0, 0))  # yarn may be the best, and nobody knows
    assert collapse(sooner) == {"none": ("512", False), "pi": ("512", False), "yarn": ("> 512", False)}
    held = made(none=(3, 3, 3, 3), pi=(3, 3, 3, 4), yarn=(3, 3, 3, 0))
    assert collapse(held) == {"none": ("> 2048", True), "pi": ("2048", False), "yarn": ("> 1024", False)}
    most = made(none=(3, 3, 3, 3), pi=(3, 3, 3, 0), yarn=(3, 3, 3, 0))
    assert not any("refused" in remark for remark in most.remarks)  # it holds of two rows, and not of all


def test_what_the_baseline_is_stands_in_its_own_entry() -> None:
    made = board([texts("none", n, [3.0], [3.1]) for n in (256, 512)], columns="summary")
    assert made.entries[parse_label("none"), "price"].notes == ("the baseline",)
    assert not any("the baseline" in remark for remark in made.remarks)


def test_summaries_say_what_failed_and_what_was_truncated() -> None:
    changed = [texts("none", n, *[[3.0, 3.0]] * 16) for n in (256, 512, 1024)]
    for each in [texts("pi", n, *[[3.0, 3.0]] * 16) for n in (256, 512, 1024)]:
        lost = [replace(one, nll=None, failed="gone") for one in each.samples[:3]]
        last = replace(each.samples[-1], truncated=each.cell.length == 512)
        changed.append(FinishedCell(each.cell, [*lost, *each.samples[3:-1], last]))
    made = board(changed, columns="summary")
    for name in ("effective_length", "area", "price"):
        entry, whole = (made.entries[parse_label(row), name] for row in ("pi", "none"))
        assert (entry.n, entry.failed, entry.truncated) == (39, 9, 1)
        assert "over all lengths 9 of 48 samples failed, left out of the value" in entry.notes
        assert "over all lengths 1 of 48 samples truncated" in entry.notes
        assert (whole.n, whole.failed, whole.truncated) == (48, 0, 0)
    scored = [answers(row, n, [1, 1, 0, 0]) for row in ("none", "pi") for n in (256, 512)]
    lost = [replace(one, failed="gone", scores={}) if one.index == 3 else one for one in scored[-1].samples]
    entry = board([*scored[:-1], FinishedCell(scored[-1].cell, lost)], columns="summary").entries[
        parse_label("pi"), "area"
    ]
    assert (entry.n, entry.failed) == (8, 1)
    assert "over all lengths 1 of 8 samples failed, counted as 0" in entry.notes


def test_scores_are_shares_as_data_on_every_board(tmp_path: Path) -> None:
    keep(
        tmp_path,
        [answers(row, n, [1.0, 1.0, right]) for row, right in (("none", 0.0), ("pi", 1.0)) for n in (256, 512)],
    )
    for by, column, shown in (("length", "512", "0.67"), ("summary", "area_beyond", "66.7")):
        [made] = json.loads(leaderboard_text([tmp_path], columns=by, form="json"))["boards"]
        [entry] = [each for each in made["entries"] if (each["row"], each["column"]) == ("none", column)]
        assert (entry["value"], entry["shown"]) == (pytest.approx(2 / 3), shown)
        assert 0 <= entry["low"] < 2 / 3 < entry["high"] <= 1
        lines = csv.DictReader(leaderboard_text([tmp_path], columns=by, form="csv").splitlines())
        assert [float(line["value"]) for line in lines if (line["method"], line["column"]) == ("none", column)] == [
            pytest.approx(2 / 3)
        ]


def test_costs_stand_among_the_summaries_of_a_run_that_has_them(tmp_path: Path) -> None:
    found = [texts(row, n, *[[3.0, 3.0]] * 8) for row in ("none", "pi") for n in (256, 512)]
    keep(tmp_path, found)  # 1.5 seconds and as many tokens as the length

    def shown() -> tuple[dict[tuple[str, str], dict[str, Any]], str]:
        [made] = json.loads(leaderboard_text([tmp_path], columns="summary", form="json"))["boards"]
        return {(each["row"], each["column"]): each for each in made["entries"]}, " ".join(made["remarks"])

    entries, remarks = shown()
    assert not any(column.endswith("per_token") for _, column in entries)
    assert "seconds per token: not shown, timed once at 512: a comparison needs two timings of a cell." in remarks
    assert "bytes per token: not shown, peaks were not counted cell by cell" in remarks
    timed = [
        {"cell": each.cell.id, "seconds": 2, "tokens": 512, "peak_bytes": None, "timings": [[0.5, 256], [1.0, 256]]}
        for each in found
    ]
    (tmp_path / "costs.jsonl").write_text("\n".join(map(json.dumps, timed)))
    entries, remarks = shown()
    seconds = entries["pi", "seconds_per_token"]
    assert (seconds["value"], seconds["shown"]) == (1.5 / 512, "0.00293")
    assert (seconds["low"], seconds["high"]) == pytest.approx((0.5 / 256, 1.0 / 256))
    assert (seconds["failed"], seconds["n"], seconds["best"]) == (None, None, False)
    assert "at 512; wall clock, each cell's answers timed one by one: compare inside one run only" in remarks
    rows = [
        {"cell": each.cell.id, "seconds": 1, "tokens": 9, "peak_bytes": 7 + 64 * each.cell.length, "own_peak": True}
        for each in found
    ]
    (tmp_path / "costs.jsonl").write_text("\n".join(map(json.dumps, rows)))
    memory = [shown()[0][row, "bytes_per_token"] for row in ("none", "pi")]
    assert [(each["value"], each["shown"]) for each in memory] == [(64.0, "64")] * 2
    (tmp_path / "costs.jsonl").unlink()
    assert not any(column.endswith("per_token") for _, column in shown()[0])


def test_counts_of_one_are_singular_and_narrow_columns_are_markdown() -> None:
    made = board([texts(row, n, [loss, loss]) for row, loss in (("none", 3.0), ("pi", 4.0)) for n in (512, 1024)])
    assert "At mean of 2, 1 document or haystack is too few to tell any row from the best." in made.remarks
    one = FinishedCell(cell("last_segment", "none", 512, n=16), [text(0, [3.0, 3.0])])
    assert "1 sample of 16 asked" in board([one]).entries[parse_label("none"), "512"].notes
    assert markdown_columns(["m", "1"], [["a", "2"]])[1] == "| --- | --: |"


def test_summaries_of_models_leave_out_what_depends_on_the_tokenizer() -> None:
    found = [finished("last_segment", "none", n, model=name) for name in ("a", "b") for n in (128, 256, 512)]
    made = board(found, rows="model", columns="summary")
    assert [each.name for each in made.columns] == ["effective_length", "collapse"]
    assert made.remarks[-1].startswith("Nats per token of models with other tokenizers")
    assert "neither ranked nor marked" in made.remarks[-1]
    flat = [texts("none", n, *[[3.0, 3.0]] * 8, model="b") for n in (128, 256, 512)]
    flat += [texts("none", n, *[[loss] * 2] * 8, model="a") for n, loss in ((128, 3.0), (256, 3.0), (512, 4.0))]
    apart = board(flat, rows="model", columns="summary")
    assert [apart.entries[row, "effective_length"].shown for row in "ab"] == ["256", "> 512"]
    assert list(map(str, apart.rows)) == ["a", "b"] and apart.remarks[0] == "Rows by name."
    assert not any(entry.mark.best for entry in apart.entries.values())


# Formats

NASTY = "a|b\\!c$d&e_f<script>alert(1)</script>`g`*h*~^#%{}[x](y)"


@pytest.fixture
def nasty(tmp_path: Path) -> Path:
    """Methods and tasks whose names try to be markup; one of them begins with a bracket, one ends with a backslash."""
    names = {"none": 1.0, NASTY: 1.0, "[0pt]": 0.0, "end\\": 0.0}
    protocol = f"protocol {NASTY}\n## heading"
    cells = [
        answers(name, length, [right] * 8, task=f"passkey {NASTY}", protocol=protocol)
        for name, right in names.items()
        for length in (512, 1024)
    ]
    cells.append(FinishedCell(cell(f"passkey {NASTY}", NASTY, 2048, n=8, protocol=protocol), [], NASTY))
    keep(tmp_path / "nasty", cells)
    return tmp_path / "nasty"


def test_markdown_renders_names_as_they_are(nasty: Path) -> None:
    page = leaderboard_text([nasty])
    rendered = MarkdownIt("commonmark", {"html": True}).enable("table").render(page)
    assert "<script" not in rendered and "<em>h" not in rendered and "<a " not in rendered and "<code>g" not in rendered
    shown = Rendered.of(rendered)
    labels = [row[0] for row in shown.rows if row]
    assert labels[0] == "method" and sorted(labels[1:]) == sorted(["none", NASTY, "[0pt]", "end\\"])
    assert {len(row) for row in shown.rows} == {5}
    assert f"passkey {NASTY} on lexlet: accuracy" in shown.headings and "heading" not in shown.headings
    assert f"refused: {NASTY}" in shown.everything
    plain = re.search(r"^## .*$", page, re.MULTILINE)
    assert plain and "$" not in plain[0]  # two of them are mathematics on some pages


def test_latex_escapes_every_character_that_is_not_text(nasty: Path) -> None:
    page = leaderboard_text([nasty], form="latex")
    escaped = (
        r"a\textbar{}b\textbackslash{}!c\$d\&e\_f\textless{}script\textgreater{}alert(1)\textless{}/script\textgreater{}"
        r"`g`*h*\textasciitilde{}\textasciicircum{}\#\%\{\}{[}x{]}(y)"
    )
    assert f"\\caption{{passkey {escaped} on lexlet: accuracy}}" in page
    rows = [line for line in page.splitlines() if line.endswith(r" \\")]
    assert len(rows) == 1 + 4 and all(len(re.findall(r"(?<!\\)&", row)) == 4 for row in rows)
    assert any(row.startswith("{[}0pt{]} & ") for row in rows)
    body = re.sub(r"\\[{}$]", "", "\n".join(line for line in page.splitlines() if not line.startswith("%")))
    assert body.count("{") == body.count("}") and body.count("$") % 2 == 0
    assert page.count("\\toprule") == page.count("\\bottomrule") == page.count("\\midrule") == 1
    assert "\\textbf{1.00}" in page


class Rendered(HTMLParser):
    """What a browser would see of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.headings: list[str] = []
        self.tags: list[str] = []
        self.open: str | None = None
        self.everything = ""

    @classmethod
    def of(cls, page: str) -> "Rendered":
        found = cls()
        found.feed(page)
        return found

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        assert not any(name.startswith("on") or name in ("src", "href") for name, _ in attrs)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
        self.open = tag if tag in ("td", "th", "h2") else self.open
        if tag == "h2":
            self.headings.append("")

    def handle_endtag(self, tag: str) -> None:
        self.open = None if tag in ("td", "th", "h2") else self.open

    def handle_data(self, data: str) -> None:
        self.everything += data
        if self.open in ("td", "th"):
            self.rows[-1][-1] += data
        if self.open == "h2":
            self.headings[-1] += data


def test_html_is_one_page_without_scripts_or_requests(nasty: Path) -> None:
    page = leaderboard_text([nasty], form="html", published=["yarn-2"])
    shown = Rendered.of(page)
    assert not {"script", "link", "img", "iframe", "a", "form"} & set(shown.tags)
    assert "default-src 'none'" in page and page.startswith("<!doctype html>")
    assert shown.headings == [
        "lexlet at 1,024 tokens, 4x its trained length",
        "By length",
        f"passkey {NASTY} on lexlet: accuracy",
        "Published: yarn-2",
    ]
    assert NASTY in [row[0] for row in shown.rows]
    assert f"refused: {NASTY}" in shown.everything


@pytest.mark.slow
def test_json_and_csv_hold_the_records_in_full_precision(tmp_path: Path) -> None:
    cells = fake_cells()
    keep(tmp_path, cells)
    whole = json.loads(leaderboard_text([tmp_path], form="json"), parse_constant=lambda name: pytest.fail(name))
    assert set(whole) == {"rows", "columns", "unreadable", "unfinished", "boards", "published"}
    lines = list(csv.DictReader(leaderboard_text([tmp_path], form="csv").splitlines()))
    by_place = {(line["task"], line["method"], line["column"]): line for line in lines}
    checked = 0
    for table in build_tables(cells):
        if table.metric not in ("nll", "accuracy"):
            continue
        [made] = [each for each in whole["boards"] if each["about"]["task"] == table.cell.task]
        entries = {(each["row"], each["column"]): each for each in made["entries"]}
        for (row, length), record in table.entries.items():
            data, line = entries[str(row), str(length)], by_place[table.cell.task, str(row), str(length)]
            assert (data["value"], data["low"], data["high"]) == (record.value, record.low, record.high)
            assert (data["n"], data["clusters"], data["failed"]) == (record.n, record.clusters, record.failed)
            assert line["value"] == ("" if record.value is None else repr(record.value))
            assert (line["length"], line["refused"]) == (str(length), record.refused or "")
            checked += 1
    assert checked == len(cells) and all(line["kind"] == "entry" for line in lines)
    infinite = json.loads(leaderboard_text([tmp_path], columns="summary", form="json"))
    shown = [each for made in infinite["boards"] for each in made["entries"] if each["shown"] == "> 2048"]
    assert shown and all(each["value"] is None for each in shown)


@pytest.mark.parametrize("form", sorted(FORMAT_WRITERS))
def test_marks_stand_in_every_format(form: str, tmp_path: Path) -> None:
    keep(tmp_path, [answers(name, 512, [right] * 5) for name, right in (("none", 1.0), ("pi", 0.0))])
    page = leaderboard_text([tmp_path], form=form)
    expected = {
        "markdown": "**1.00** [0.57, 1.00]",
        "latex": r"0.00$^{\approx}$ {\scriptsize {[}0.00, 0.43{]}}",
        "html": "<td>0.00<sup>≈</sup> <small>[0.00, 0.43]</small></td>",
        "json": '"level": true',
        "csv": "False,True,0.0625",
    }
    assert expected[form] in page


# What can be wrong


@pytest.mark.slow
def test_published_tables_stand_below_ours_and_share_nothing_with_them(tmp_path: Path) -> None:
    keep(tmp_path, fake_cells(("last_segment",)))
    alone = leaderboard_text([tmp_path])
    page = leaderboard_text([tmp_path], published=["rerope-readme", "dca-1"])
    assert page.startswith(alone.rstrip())
    below = page.removeprefix(alone.rstrip())
    assert "## Published: rerope-readme" in below
    assert "Protocol: NLL of the same last 4096 tokens, only the context before them grows." in below
    assert re.search(r"\| RoPE +\| 1\.4967 \| 8\.8615 \|", below)
    assert "(not read in the original)" in below
    data = json.loads(leaderboard_text([tmp_path], form="json", published=["rerope-readme"]))
    assert data["published"][0]["figures"][0]["value"] == "1.4967"
    with pytest.raises(ValueError, match="do not join ours in one CSV"):
        leaderboard_text([tmp_path], form="csv", published=["rerope-readme"])


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"form": "pdf"}, "unknown format 'pdf': choose from markdown, csv, latex, json, html"),
        ({"rows": "task"}, "unknown rows 'task': choose from method, model"),
        ({"columns": "depth"}, "unknown columns 'depth': choose from length, summary"),
        ({"tasks": ["needle"]}, "unknown task 'needle' in these runs: choose from last_segment, passkey"),
        ({"published": ["yarn2"]}, "unknown published table 'yarn2': did you mean yarn-2"),
        ({"tasks": ["passky"]}, "unknown task 'passky' in these runs: did you mean passkey? choose from last_segment"),
        (
            {"rule": "fixed"},
            "--rule and --margin are of the effective length, which is a summary: add --columns summary",
        ),
        ({"margin": 0.2}, "--rule and --margin are of the effective length, which is a summary: add --columns summary"),
        *(
            (
                {"margin": margin, "columns": columns},
                f"--margin must be a finite number of at least 0, got {margin:g}: ",
            )
            for margin in (-1.0, math.nan)
            for columns in ("summary", "length")
        ),
        ({"margin": 1.0, "columns": "summary"}, "choose tasks of one kind with --task"),
        ({"rows": "model"}, "--rows model needs two models, these runs hold lexlet alone"),
    ],
)
def test_a_wrong_word_is_answered_with_the_choices(given: dict[str, Any], said: str, tmp_path: Path) -> None:
    keep(tmp_path, [answers("none", 512, [1, 0]), texts("none", 512, [1.0], [2.0])])
    with pytest.raises(ValueError, match=re.escape(said)) as raised:
        leaderboard_text([tmp_path], **given)
    assert "\n" not in str(raised.value)


def test_tasks_are_chosen_with_or_without_their_parameters(tmp_path: Path) -> None:
    cells = [answers("none", 512, [1, 0], task="passkey(digits=7)"), answers("none", 512, [1, 0], task="passkey")]
    keep(tmp_path, [*cells, texts("none", 512, [1.0], [2.0])])

    def shown(*tasks: str) -> list[str]:
        return [
            each["about"]["task"]
            for each in json.loads(leaderboard_text([tmp_path], tasks=tasks, form="json"))["boards"]
        ]

    assert shown() == ["last_segment", "passkey", "passkey(digits=7)"]
    assert shown("passkey") == ["passkey", "passkey(digits=7)"]
    assert shown("passkey(digits=7)", "last_segment") == ["last_segment", "passkey(digits=7)"]


def test_a_run_without_anything_to_show_says_why(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="holds no cells"):
        leaderboard_text([tmp_path])
    store = keep(tmp_path / "run", [answers("none", 512, [1, 0])])
    begun = cell("passkey", "pi", 512)
    store.append(begun, Sample(index=0, cluster="0", tokens=4, scores={"accuracy": 1.0}))
    page = leaderboard_text([tmp_path / "run"])
    assert "**Unfinished, not shown: pi passkey at 512 on lexlet. Repeat the command to resume.**" in page
    [file] = (tmp_path / "run" / "cells").glob("*.parquet")
    file.unlink()
    with pytest.raises(ValueError, match=r"no cell of .*run can be shown: the run is unfinished"):
        leaderboard_text([tmp_path / "run"])


@pytest.mark.parametrize("form", sorted(FORMAT_WRITERS))
def test_a_corrupt_or_newer_file_is_named_and_the_rest_is_shown(form: str, tmp_path: Path) -> None:
    cells = [answers(name, 512, [1, 0]) for name in ("none", "pi", "yarn")]
    keep(tmp_path, cells)
    torn, newer = (tmp_path / "cells" / f"{each.cell.id}.parquet" for each in cells[1:])
    torn.write_bytes(torn.read_bytes()[:200])
    written = pq.read_table(newer)
    pq.write_table(written.append_column("mood", written.column("output")), newer)
    page = leaderboard_text([tmp_path], form=form).replace("\\_", "_")
    assert torn.name in page and newer.name in page and "written by a newer version" in page
    assert "none" in page and "yarn" not in page
    (tmp_path / "cells" / f"{cells[0].cell.id}.parquet").unlink()
    with pytest.raises(ValueError, match=r"can be shown: cell .*\.parquet"):
        leaderboard_text([tmp_path], form=form)


def test_the_name_of_a_folder_is_no_markup_either(tmp_path: Path) -> None:
    folder = tmp_path / "run <i>now & then"
    keep(folder, [answers(name, 512, [1, 0]) for name in ("none", "pi")])
    next((folder / "cells").glob("*.parquet")).write_bytes(b"torn")
    for form in ("html", "markdown"):
        page = leaderboard_text([folder], form=form)
        shown = Rendered.of(page if form == "html" else MarkdownIt().render(page))
        assert "i" not in shown.tags[shown.tags.index("strong") :] and "run <i>now & then" in shown.everything


def test_a_run_of_refusals_alone_is_a_board_of_refusals(tmp_path: Path) -> None:
    keep(tmp_path, [FinishedCell(cell("passkey", name, 512, n=4), [], "too short") for name in ("none", "pi")])
    page = leaderboard_text([tmp_path])
    assert page.count("refused (1)") == 2 and "(1) refused: too short" in page and "nothing scored" in page
    with pytest.raises(ValueError, match="no curve to sum up: take --columns length"):
        leaderboard_text([tmp_path], columns="summary")


def test_measures_without_a_better_side_have_no_best() -> None:
    found = [
        FinishedCell(
            cell("resolution", name, 512, n=4),
            [Sample(index=i, cluster=str(i), tokens=512, scores={"entropy": value + i}) for i in range(4)],
        )
        for name, value in (("yarn", 1.0), ("none", 2.0))
    ]
    made = board(found)
    assert list(map(str, made.rows)) == ["none", "yarn"] and made.remarks[0] == "Rows by name."
    assert not any(entry.mark.best for entry in made.entries.values())


@pytest.mark.slow
def test_the_rule_of_the_effective_length_is_a_choice(tmp_path: Path) -> None:
    keep(tmp_path, fake_cells(tasks=["last_segment", "passkey"]))

    def said(rule: str) -> str:
        return leaderboard_text([tmp_path], columns="summary", tasks=["passkey"], rule=rule)

    assert "at least 85.6 points" in said("fixed")
    assert "within 15 points" in said("any") and "rule any" in said("any")
    likelihood = {
        rule: leaderboard_text([tmp_path], columns="summary", tasks=["last_segment"], rule=rule)
        for rule in EFFECTIVE_LENGTH_RULES
    }
    remark = "The fixed threshold, RULER's, is one of scores: effective length by the monotone rule here."
    assert remark not in likelihood["monotone"] and remark not in said("fixed")
    assert likelihood["fixed"].replace(f"{remark}  \n", "") == likelihood["monotone"]
    wider = leaderboard_text([tmp_path], columns="summary", tasks=["passkey"], margin=40.0)
    assert "within 40 points" in wider and "within 15 points" not in wider
    assert "within 0.3 nats" in leaderboard_text([tmp_path], columns="summary", tasks=["last_segment"], margin=0.3)
    with pytest.raises(ValueError, match="unknown rule 'best': choose from monotone, any, fixed"):
        said("best")


def scored_half(method: str, length: int, right: int) -> FinishedCell:
    """16 answers whose chance is 0.5, the first ones right."""
    samples = [
        Sample(index=i, cluster=str(i), tokens=length, scores={"accuracy": float(i < right)}, chance=0.5)
        for i in range(16)
    ]
    return FinishedCell(cell("parity", method, length, n=16), samples)


def test_an_area_that_reaches_chance_is_not_the_best() -> None:
    guesses = [
        scored_half(method, length, right) for length in (256, 512) for method, right in (("none", 9), ("pi", 8))
    ]
    made = board(guesses, columns="summary")
    assert made.entries[parse_label("none"), "area"].value is not None
    assert not any(made.entries[parse_label(row), "area"].mark.best for row in ("none", "pi"))
    sure = [scored_half(method, length, right) for length in (256, 512) for method, right in (("none", 16), ("pi", 8))]
    made = board(sure, columns="summary")
    assert made.entries[parse_label("none"), "area"].mark.best and not made.entries[parse_label("pi"), "area"].mark.best


def test_a_row_that_failed_or_was_refused_everywhere_has_no_summary() -> None:
    short, long = (scored_half(method, length, 16) for method, length in (("none", 128), ("none", 256)))
    lost = [replace(each, failed="CUDA out of memory", scores={}) for each in scored_half("ntk", 256, 0).samples]
    odd = [
        FinishedCell(scored_half("ntk", 256, 0).cell, lost),
        FinishedCell(scored_half("ntk", 128, 0).cell, [], "too short"),
    ]
    made = board([short, long, *odd], columns="summary")
    assert made.entries[parse_label("ntk"), "area"].value is None
    assert made.entries[parse_label("none"), "area"].value == 1.0
