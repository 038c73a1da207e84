"""The gate: what is lost beyond tolerance and chance, by numbers from other routes; what no test can say, by rule."""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from junitparser import Error, Failure, JUnitXml, Skipped
from scipy.stats import binom, binomtest, permutation_test, t, ttest_ind

from lexbench.core.errors import ConfigError
from lexbench.core.method_key import MethodKey
from lexbench.report import notes
from lexbench.report.check.check import Check, check_runs, tolerances_of
from lexbench.report.check.formats import check_command, check_data, github_annotations, junit_xml
from lexbench.report.check.text import check_as_markdown, is_amber, reason_text, terminal_text, verdict_line
from lexbench.report.notes import change_text
from lexbench.stats import baseline
from lexbench.stats.cell_outcomes import CellOutcomes, SettingChange, outcomes_of_cell
from lexbench.stats.intervals import cluster_sums, guard_against_skew, unpaired_interval, unpaired_p
from lexbench.stats.notes import NoteKind
from lexbench.stats.regressions import Verdict, VerdictStatus, judge_cells
from lexbench.store.format import FinishedCell
from lexbench.store.store import Store
from tests.report.outcomes import answers, folder, refused, right, texts

REFERENCE = Path(__file__).parent.parents[2] / "results/reference/lexlet"


def judged(
    old: Sequence[FinishedCell], new: Sequence[FinishedCell], tolerances: Mapping[str, float] | None = None
) -> list[Verdict]:
    sides = [[outcomes_of_cell(each, ["nll", "accuracy"]) for each in side] for side in (old, new)]
    verdicts, _ = judge_cells(sides[0], sides[1], tolerances or {})
    return verdicts


def one(old: FinishedCell, new: FinishedCell, **tolerances: float) -> Verdict:
    [verdict] = judged([old], [new], tolerances)
    return verdict


# The same questions


def test_the_p_value_of_answers_that_were_right_is_a_coin_s() -> None:
    verdict = one(answers("yarn", right(16, 16)), answers("yarn", right(10, 16)), accuracy=0)
    assert verdict.p == verdict.p_holm == binomtest(6, 6, alternative="greater").pvalue == 1 / 64
    assert (verdict.status.value, verdict.tolerance) == ("regressed", 0)
    assert verdict.found is not None
    assert (verdict.found.baseline_value, verdict.found.value, verdict.found.difference) == (1.0, 0.625, -0.375)
    fewer = one(answers("yarn", right(16, 16)), answers("yarn", right(12, 16)), accuracy=0)
    assert (fewer.p, fewer.status.value) == (1 / 16, "held")
    assert reason_text(fewer) == "a loss beyond the tolerance, not significant"


def test_the_tolerance_is_given_to_every_question_before_the_test() -> None:
    """Against scipy's exact paired permutation test of losses less the tolerance."""
    rng = np.random.default_rng(3)
    for tolerance, mean in ((0.02, 0.05), (0.0, 0.02), (0.1, 0.13)):
        before = rng.normal(3, 0.5, 12)
        after = before + rng.normal(mean, 0.04, 12)
        verdict = one(texts("pi", before.tolist()), texts("pi", after.tolist()), nll=tolerance)
        stored = [np.float32(side).astype(np.float64) for side in (before, after)]
        beyond = stored[1] - stored[0] - tolerance
        expected = permutation_test(
            (beyond,), np.sum, permutation_type="samples", alternative="greater", n_resamples=5000
        )
        flips = expected.pvalue if beyond.mean() > 0 else 1.0
        assert verdict.p == pytest.approx(guard_against_skew(flips, beyond), rel=1e-9)
        assert verdict.found is not None and verdict.found.p_flips == pytest.approx(flips, rel=1e-9)
        assert verdict.found is not None and verdict.found.difference == pytest.approx((stored[1] - stored[0]).mean())


def test_a_loss_within_the_tolerance_holds_however_certain_it_is() -> None:
    before = [3.0 + index / 10 for index in range(12)]
    within = one(texts("pi", before), texts("pi", [loss + 0.015 for loss in before]))
    assert (within.status.value, within.p, within.tolerance) == ("held", 1.0, 0.02)
    beyond = one(texts("pi", before), texts("pi", [loss + 0.025 for loss in before]))
    assert (beyond.status.value, beyond.p) == ("regressed", 2.0**-12)
    assert one(texts("pi", before), texts("pi", [loss + 0.025 for loss in before]), nll=0.03).status.value == "held"


def test_holm_counts_every_comparison_of_the_check() -> None:
    lengths = (512, 1024, 2048)
    before = [texts("pi", [3.0] * 10, length) for length in lengths]
    after = [texts("pi", [3.0 + (0.1 if length > 512 else 0.0)] * 10, length) for length in lengths]
    found = judged(before, after)
    assert [(each.cell.length, each.status.value, each.p, each.p_holm) for each in found] == [
        (512, "held", 1.0, 1.0),
        (1024, "regressed", 2.0**-10, 3 * 2.0**-10),
        (2048, "regressed", 2.0**-10, 3 * 2.0**-10),
    ]


def test_questions_of_one_document_are_one_observation() -> None:
    """Four documents of four texts: all of them lose, and no p is below 2^-4."""

    def four(cells: FinishedCell) -> FinishedCell:
        return FinishedCell(cells.cell, [replace(each, cluster=str(each.index // 4)) for each in cells.samples])

    verdict = one(four(texts("pi", [3.0] * 16)), four(texts("pi", [3.5] * 16)))
    assert (verdict.p, verdict.found and verdict.found.min_p, verdict.found and verdict.found.clusters) == (
        1 / 16,
        1 / 16,
        4,
    )


def test_an_unchanged_run_holds_without_noise() -> None:
    cells = [texts("pi", [3.0, 3.5, 4.0]), answers("pi", right(2, 3))]
    for verdict in judged(cells, cells, {"nll": 0, "accuracy": 0}):
        assert verdict.found is not None
        assert (verdict.status.value, reason_text(verdict), verdict.p, verdict.found.difference) == (
            "held",
            "",
            1.0,
            0.0,
        )


def test_what_kernels_differ_by_is_no_loss_even_without_tolerance() -> None:
    before = [3.0 + index / 10 for index in range(12)]
    verdict = one(texts("pi", before), texts("pi", [loss * (1 + 5e-7) for loss in before]), nll=0)
    assert (verdict.status.value, verdict.p, verdict.found and verdict.found.difference) == ("held", 1.0, 0.0)


def test_a_gain_beyond_the_tolerance_is_said_and_fails_nothing() -> None:
    verdict = one(answers("yarn", right(4, 16)), answers("yarn", right(16, 16)))
    assert verdict.status.value == "improved"
    assert one(texts("pi", [3.0] * 8), texts("pi", [2.0] * 8)).status.value == "improved"
    assert one(texts("pi", [3.0] * 8), texts("pi", [2.99] * 8)).status.value == "held"


# Other questions


def test_another_seed_is_compared_by_welch_s_test() -> None:
    rng = np.random.default_rng(5)
    before, after = (rng.normal(mean, 0.25, 20).astype(np.float32).astype(np.float64) for mean in (3.0, 3.4))
    verdict = one(texts("pi", before.tolist()), texts("pi", after.tolist(), seed=1))
    expected = ttest_ind(after - 0.02, before, equal_var=False, alternative="greater")
    assert verdict.p == pytest.approx(expected.pvalue, rel=1e-6)
    ends = ttest_ind(after, before, equal_var=False).confidence_interval(0.95)
    assert verdict.found is not None and verdict.found.interval is not None
    assert (verdict.found.interval.low, verdict.found.interval.high) == pytest.approx((ends.low, ends.high), rel=1e-6)
    assert verdict.found.interval.kind == "welch"
    assert verdict.unpaired and change_text(verdict.unpaired) == "seed 0 -> 1"
    assert verdict.status.value == "regressed"


def test_unpaired_scores_have_a_width_where_all_are_right() -> None:
    verdict = one(answers("yarn", right(16, 16)), answers("yarn", right(6, 16), seed=1))
    sides = [[*right(16, 16), 1, 0], [*right(6, 16), 1, 0]]  # Agresti and Caffo: one more of each
    expected = ttest_ind(sides[0], np.array(sides[1]) + 0.02, equal_var=False, alternative="greater")
    assert verdict.p == pytest.approx(expected.pvalue, rel=1e-9)
    assert verdict.found is not None and verdict.found.difference == -0.625  # of the answers themselves
    same = one(answers("yarn", right(16, 16)), answers("yarn", right(16, 16), seed=1))
    assert same.status.value == "held" and same.found and same.found.interval
    half = same.found.interval.high
    share = 17 / 18
    assert half == pytest.approx(t.ppf(0.975, 34) * math.sqrt(2 * share * (1 - share) / 17))


def test_unpaired_ratios_weigh_clusters_by_their_units() -> None:
    """Against the delta method written out for two clusters a side."""
    left = cluster_sums([3.0, 4.0], [2.0, 1.0], ["a", "b"])
    right_ = cluster_sums([8.0, 4.0], [2.0, 2.0], ["a", "b"])
    # 7/3 and 12/4; residuals 3 - 14/3 = -5/3, 4 - 7/3 = 5/3 and 8 - 6 = 2, 4 - 6 = -2
    variances = [2 * 2 * (5 / 3) ** 2 / 9, 2 * 2 * 4 / 16]
    error, freedom = math.sqrt(sum(variances)), sum(variances) ** 2 / sum(each**2 for each in variances)
    assert unpaired_p(left, right_, 0.1) == pytest.approx(t.sf((2 / 3 - 0.1) / error, freedom))
    ends = unpaired_interval(left, right_)
    assert ends is not None
    reach = t.ppf(0.975, freedom) * error
    assert (ends.low, ends.high) == pytest.approx((2 / 3 - reach, 2 / 3 + reach))
    assert unpaired_p(left[:1], right_, 0) is None and unpaired_interval([[1, 1], [1, 1]], [[2, 1], [2, 1]]) is None


def test_no_loss_on_other_questions_is_beyond_100_points() -> None:
    """Compare 3 right answers with 3 wrong ones: with a right and a wrong one added, scipy's interval holds -1.25."""
    sides = ([1.0, 1.0, 1.0, 1.0, 0.0], [0.0, 0.0, 0.0, 1.0, 0.0])
    ends = ttest_ind(sides[1], sides[0], equal_var=False).confidence_interval()
    assert ends.low == pytest.approx(-1.25, abs=0.01) and ends.high < 1
    found = one(answers("yarn", right(3, 3)), answers("yarn", right(0, 3), seed=1)).found
    assert found is not None and (found.low, found.high) == pytest.approx((-1.0, ends.high))


def test_another_state_of_the_corpus_is_other_questions_and_another_place_is_not() -> None:
    old = texts("pi", [3.0] * 8)
    newer = {"corpus": {"name": "stdlib", "fingerprint": "99ff"}}
    verdict = one(old, texts("pi", [3.1, 3.2] * 4, identity=newer))
    assert verdict.unpaired and change_text(verdict.unpaired) == "corpus.fingerprint 20f4 -> 99ff"
    here = {"corpus": {"name": "files", "path": "/home/a", "fingerprint": "20f4"}}
    there = {"corpus": {"name": "files", "path": "/runner/b", "fingerprint": "20f4"}}
    moved = one(
        texts("pi", [3.0] * 8, corpus="files(path='/home/a')", identity=here),
        texts("pi", [3.5] * 8, corpus="files(path='/runner/b')", identity=there),
    )
    assert (moved.unpaired, moved.p, moved.status.value) == (None, 2.0**-8, "regressed")
    renamed = one(
        old, texts("pi", [3.0] * 8, corpus="mine", identity={"corpus": {"name": "mine", "fingerprint": "20f4"}})
    )
    assert renamed.status.value == "held"


def test_seeds_are_paired_with_themselves_first() -> None:
    old = [texts("pi", [3.0 + seed] * 8, seed=seed) for seed in (0, 1)]
    new = [texts("pi", [3.0 + seed] * 8, seed=seed) for seed in (1, 2)]
    found = judged(old, new)
    assert [(each.cell.seed, each.unpaired) for each in found] == [(1, None), (2, SettingChange("seed", "0", "2"))]


# By rule


def test_what_is_no_longer_answered_is_regressed() -> None:
    verdict = one(answers("yarn", right(4, 8)), refused("yarn"))
    assert (verdict.status.value, reason_text(verdict)) == (
        "regressed",
        "refused, and measured in the baseline: out of memory",
    )
    failed = texts("pi", [3.0] * 8)
    lost = [
        replace(each, failed="no finite likelihood", nll=None) if each.index < 2 else each for each in failed.samples
    ]
    verdict = one(texts("pi", [3.0] * 8), FinishedCell(failed.cell, lost))
    assert verdict.status.value == "regressed"
    assert reason_text(verdict) == "2 questions of 8 failed that the baseline answers: no finite likelihood"
    every = [replace(each, failed="the server is gone", nll=None) for each in failed.samples]
    assert one(texts("pi", [3.0] * 8), FinishedCell(failed.cell, every)).status.value == "regressed"
    unlike = FinishedCell(texts("pi", [3.0] * 8, seed=1).cell, lost)
    assert one(texts("pi", [3.0] * 8), unlike).status.value == "regressed"
    assert one(FinishedCell(failed.cell, lost), FinishedCell(failed.cell, lost)).status.value == "held"


def test_a_failed_answer_scores_nothing_and_is_tested_like_any_other() -> None:
    base = answers("yarn", right(14, 14))
    failed = [replace(each, failed="timeout", scores={}) if each.index < 10 else each for each in base.samples]
    verdict = one(base, FinishedCell(base.cell, failed))
    assert (verdict.status.value, verdict.p, verdict.found and verdict.found.value) == ("regressed", 2.0**-10, 4 / 14)
    one_lost = [replace(each, failed="timeout", scores={}) if each.index < 1 else each for each in base.samples]
    assert one(base, FinishedCell(base.cell, one_lost)).status.value == "held"
    all_lost = [replace(each, failed="timeout", scores={}) for each in base.samples]
    verdict = one(base, FinishedCell(base.cell, all_lost))
    assert (verdict.status.value, verdict.p) == ("regressed", 2.0**-14)


def test_a_likelihood_that_is_not_a_number_has_failed() -> None:
    verdict = one(texts("pi", [3.0] * 8), texts("pi", [math.nan] * 8))
    assert (verdict.status.value, verdict.p) == ("regressed", None)


def test_refusals_that_stay_hold_and_those_that_end_are_new() -> None:
    beside = answers("none", right(8, 8))
    _, both = judged([beside, refused("yarn")], [beside, refused("yarn", reason="too short")])
    assert (both.status.value, reason_text(both)) == ("held", "refused, as in the baseline: too short")
    _, ended = judged([beside, refused("yarn")], [beside, answers("yarn", right(4, 8))])
    assert (ended.status.value, reason_text(ended)) == ("new", "refused in the baseline: out of memory")
    for run in (refused("yarn"), answers("yarn", right(4, 8))):
        with pytest.raises(ValueError, match=r"^baseline has refused all cells that both hold \(out of memory\): "):
            judged([refused("yarn")], [run])


@pytest.mark.parametrize(
    ("changed", "reason", "status"),
    [
        ({"protocol": "NLL of other tokens"}, "protocol NLL of the same last 64 tokens, ", "changed"),
        ({"identity": {"task": {"name": "last_segment", "version": 2}}}, "task.version 1 -> 2", "changed"),
        ({"identity": {"model": {"name": "lexlet", "begins_with": [1]}}}, "model.begins_with [0] -> [1]", "changed"),
        (
            {"corpus": "pydoc", "identity": {"corpus": {"name": "pydoc", "fingerprint": "1"}}},
            "corpus stdlib -> pydoc",
            "not comparable",
        ),
        (
            {"protocol": "64 tokens", "corpus": "pydoc", "identity": {"corpus": {"name": "pydoc", "fingerprint": "1"}}},
            "protocol NLL of the same last 64 tokens, ",
            "not comparable",
        ),
    ],
)
def test_questions_of_another_kind_are_not_compared(changed: dict[str, Any], reason: str, status: str) -> None:
    old = texts("pi", [3.0] * 8, identity={"model": {"name": "lexlet", "begins_with": [0]}})
    verdict = one(old, texts("pi", [3.0] * 8, **changed))
    assert verdict.status.value == status and reason_text(verdict).startswith(reason)


def test_what_only_a_newer_version_knows_of_a_task_does_not_part_it() -> None:
    newer = {"task": {"name": "last_segment", "version": 1, "chat": False}}
    assert one(texts("pi", [3.0] * 8), texts("pi", [3.0] * 8, version="0.2.0", identity=newer)).status.value == "held"


def test_another_question_under_the_same_name_is_a_change() -> None:
    new = texts("pi", [3.0] * 8)
    odd = [replace(each, bytes=17) if each.index == 3 else each for each in new.samples]
    verdict = one(texts("pi", [3.0] * 8), FinishedCell(new.cell, odd))
    assert verdict.status.value == "changed"
    assert reason_text(verdict).startswith("question 3 is another one, though task version, seed and corpus agree")


def test_questions_that_were_left_out_are_not_comparable() -> None:
    verdict = one(texts("pi", [3.0] * 8), texts("pi", [3.0] * 6))
    assert verdict.status.value == "not comparable"
    assert reason_text(verdict).startswith("2 of the baseline's 8 questions are missing: run with n=8")
    assert one(texts("pi", [3.0] * 6), texts("pi", [3.0] * 8)).status.value == "held"


def test_fewer_questions_of_another_seed_are_not_comparable() -> None:
    """A passkey that fell from 100 to 0 was said to hold where it was asked twice, with another seed."""
    for after in (right(0, 2), right(2, 2), right(11, 11)):
        verdict = one(answers("yarn", right(12, 12)), answers("yarn", after, seed=1))
        assert verdict.status.value == "not comparable"
        missing = 12 - len(after)
        assert (
            reason_text(verdict) == f"{missing} of the baseline's 12 questions are missing: run with n=12, or --update"
        )
    assert one(answers("yarn", right(12, 12)), answers("yarn", right(12, 12), seed=1)).status.value == "held"
    assert one(answers("yarn", right(12, 12)), answers("yarn", right(20, 20), seed=1)).status.value == "held"
    other = {"corpus": {"name": "stdlib", "fingerprint": "99ff"}}
    assert one(texts("pi", [3.0] * 8), texts("pi", [3.0] * 7, identity=other)).status.value == "not comparable"


def test_fewer_questions_never_hold_even_where_nothing_is_compared_by_default() -> None:
    old, new = (answers("yarn", [0.5] * n, metric="resolution") for n in (8, 6))
    beside = answers("none", right(8, 8))
    _, found = judged([beside, old], [beside, new])
    assert (found.status.value, found.metric) == ("not comparable", None)
    assert reason_text(found) == "2 of the baseline's 8 questions are missing: run with n=8, or --update"


def test_a_loss_that_other_questions_cannot_prove_does_not_hold() -> None:
    old = answers("yarn", right(16, 16))
    seed = one(old, answers("yarn", right(14, 16), seed=1))
    assert (seed.status.value, seed.found and seed.found.difference) == ("not comparable", -0.125)
    assert seed.p is not None and seed.p > 0.05
    lost = "a loss beyond the tolerance, not significant on different questions"
    assert reason_text(seed) == f"{lost}: run with seed=0, or raise n"
    other = {"corpus": {"name": "stdlib", "fingerprint": "99ff"}}
    corpus = one(texts("pi", [3.0, 3.4] * 4), texts("pi", [3.1, 3.4] * 4, identity=other))
    assert (corpus.status.value, reason_text(corpus)) == (
        "not comparable",
        f"{lost}: run on the baseline's corpus, or raise n",
    )
    within = one(old, answers("yarn", right(14, 16), seed=1), accuracy=15)
    assert within.status.value == "held"


def test_cells_that_vanished_are_not_comparable_and_new_ones_fail_nothing() -> None:
    found = judged(
        [texts("pi", [3.0] * 8), texts("ntk", [3.0] * 8)], [texts("pi", [3.0] * 8), texts("yarn", [9.0] * 8)]
    )
    assert {str(each.cell.method): each.status.value for each in found} == {
        "ntk": "not comparable",
        "pi": "held",
        "yarn": "new",
    }


def test_a_loss_that_no_test_could_show_is_not_comparable_and_one_within_tolerance_holds() -> None:
    verdict = one(texts("pi", [3.0] * 4), texts("pi", [3.03] * 4))
    assert (verdict.status.value, verdict.p, verdict.found and verdict.found.min_p) == (
        "not comparable",
        1 / 16,
        1 / 16,
    )
    assert reason_text(verdict) == (
        "a loss beyond the tolerance, and 4 clusters are too few to test it among 1 comparison: raise n"
    )
    assert one(texts("pi", [3.0] * 4), texts("pi", [3.01] * 4)).status.value == "held"
    assert one(texts("pi", [3.0] * 5), texts("pi", [3.5] * 5)).status.value == "regressed"  # 1/32
    single = one(texts("pi", [3.0]), texts("pi", [3.5], seed=1))
    assert (single.status.value, single.found and single.found.min_p) == ("not comparable", 1.0)


def test_a_loss_beyond_the_floor_is_judged_as_any_other() -> None:
    """Both sides worse than counting words: the loss goes on growing, a score at chance cannot fall."""

    def worse_than_counting(nats: Sequence[float]) -> FinishedCell:
        made = texts("yarn", nats)
        return replace(made, samples=[replace(each, floors={"bigram": 1.5}) for each in made.samples])

    # 4 clusters: the smallest p is 1/16, above 0.05.
    verdict = one(worse_than_counting([3, 3.1, 3.2, 3.3]), worse_than_counting([8, 8.1, 8.2, 8.3]))
    assert (verdict.status.value, verdict.p) == ("not comparable", 1 / 16)
    assert reason_text(verdict).startswith("a loss beyond the tolerance, and 4 clusters are too few")
    within = one(worse_than_counting([3, 3.1, 3.2, 3.3]), worse_than_counting([3.01, 3.11, 3.21, 3.31]))
    assert (within.status.value, reason_text(within)) == (
        "held",
        "cannot be told: both are worse than the bigram floor (1.500)",
    )
    sides = [answers("yarn", scores) for scores in ([0, 0, 0, 1], [0, 0, 0, 0])]
    guessed = [replace(side, samples=[replace(each, chance=0.25) for each in side.samples]) for side in sides]
    assert reason_text(one(*guessed)).startswith("cannot be told: both")


def test_scores_beside_the_headline_are_compared_where_they_are_named() -> None:
    def both(contains: int) -> FinishedCell:
        cells = answers("yarn", right(8, 8))
        given = zip(cells.samples, right(contains, 8), strict=True)
        return FinishedCell(
            cells.cell, [replace(each, scores={**each.scores, "contains": part}) for each, part in given]
        )

    assert [each.metric for each in judged([both(8)], [both(0)])] == ["accuracy"]
    found = judged([both(8)], [both(0)], {"contains": 5})
    assert [(each.metric, each.status.value, each.tolerance) for each in found] == [
        ("accuracy", "held", 2.0),
        ("contains", "regressed", 5),
    ]


def test_measures_are_compared_only_where_a_tolerance_is_given() -> None:
    old, new = (answers("yarn", [level + i / 1000 for i in range(8)], metric="resolution") for level in (0.5, 0.3))
    with pytest.raises(ValueError, match="no likelihood and no score: give e"):
        judged([old], [new])
    [verdict] = judged([old], [new], {"resolution": 0.1})
    assert (verdict.status.value, verdict.p) == ("regressed", 2.0**-8)
    assert judged([old], [new], {"resolution": 0.3})[0].status.value == "held"


def test_a_measure_named_for_one_length_is_compared_there_alone() -> None:
    old, new = (
        [answers("yarn", [level] * 8, length=length, metric="resolution") for length in (64, 128)]
        for level in (1.0, 0.05)
    )
    found = judged(old, new, {"resolution@64": 0.01})
    assert [(each.cell.length, each.metric, each.status.value) for each in found] == [
        (64, "resolution", "regressed"),
        (128, None, "held"),
    ]
    assert reason_text(found[1]) == "nothing that is compared by default"
    both = judged(old, new, {"resolution": 0.01, "resolution@64": 2.0})
    assert [each.status.value for each in both] == ["held", "regressed"]


@pytest.mark.parametrize("points", [7, 14, 28, 55, 56])
def test_a_loss_of_just_the_tolerance_holds(points: int) -> None:
    """In floats 100 (0.93 - 0.86) is 7.000000000000001."""
    old, new = (answers("yarn", [share] * 4) for share in (0.93, (93 - points) / 100))
    verdict = one(old, new, accuracy=points)
    assert (verdict.status.value, reason_text(verdict)) == ("held", "")
    assert one(old, new, accuracy=points - 0.01).status.value == "not comparable"  # 4 clusters are too few


@pytest.mark.parametrize(
    ("tolerances", "said"),
    [
        ({"perplexity": 1.0}, r"unknown metric perplexity \(it follows from nll\): choose from nll"),
        ({"rouge": 1.0}, "unknown metric rouge: choose from nll"),
        ({"nll": -1.0}, r"tolerance of nll must be 0 or from 1e-09 to 1e\+09, got -1: e.g. nll=0.02"),
        ({"nll": math.inf}, "from 1e-09"),
        ({"nll": 1e300}, "from 1e-09"),  # of which `power` takes the square
        ({"nll": 1e-300}, "from 1e-09"),
    ],
)
def test_tolerances_that_make_no_sense(tolerances: dict[str, float], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        judged([texts("pi", [3.0] * 8)], [texts("pi", [3.0] * 8)], tolerances)


def test_tolerances_as_words() -> None:
    assert tolerances_of(["nll=0.02", "accuracy=2"]) == {"nll": 0.02, "accuracy": 2.0}
    assert tolerances_of(["nll@512=150"]) == {"nll@512": 150.0}  # nats, of which as many can be lost
    with pytest.raises(ValueError, match="tolerance accuracy@512 must be below 100 points"):
        tolerances_of(["accuracy@512=100"])
    for word in ("nll", "nll=", "=2", "nll=two", "nll=nan"):
        with pytest.raises(ValueError, match="must be METRIC=NUMBER"):
            tolerances_of([word])
    with pytest.raises(ValueError, match=r"tolerance nll is given twice, 0.02 and 0.5: give it once"):
        tolerances_of(["nll=0.02", "nll@512=0.1", "nll=0.5"])


# The baseline file


def gate(path: Path, old: Sequence[FinishedCell], new: Sequence[FinishedCell], **settings: Any) -> Check:
    """A check through files."""
    baseline.update_baseline(folder(path / "old", *old), path / "baseline.json")
    return check_runs(folder(path / "new", *new), path / "baseline.json", settings.get("tolerances"))


def same(left: CellOutcomes, right_: CellOutcomes) -> bool:
    return (left.id, left.cell, left.outcomes, left.refused) == (
        right_.id,
        right_.cell,
        right_.outcomes,
        right_.refused,
    )


def test_a_baseline_keeps_every_outcome(tmp_path: Path) -> None:
    nats = texts("pi", [1 / 3, 2 / 3, 3.0])
    failed = answers("pi", [1.0, 0.5, 0.0])
    failed.samples[1] = replace(failed.samples[1], failed="gone", scores={}, truncated=True)
    cells = [nats, failed, refused("yarn")]
    written = baseline.update_baseline(folder(tmp_path / "run", *cells), tmp_path / "b.json")
    expected = {each.id: each for each in map(outcomes_of_cell, cells)}
    assert len(written.cells) == 3
    for each in written.cells:
        if "nll" in each.outcomes:
            for got, want in zip(each.outcomes["nll"], expected[each.id].outcomes["nll"], strict=True):
                assert got.amount == pytest.approx(want.amount, rel=1e-8)
                assert replace(got, amount=None) == replace(want, amount=None)
        else:
            assert same(each, expected[each.id])
            assert all(isinstance(got.failed, bool) for found in each.outcomes.values() for got in found)


def test_the_same_run_gives_the_same_bytes_with_provenance_once(tmp_path: Path) -> None:
    cells = [texts("pi", [3.0] * 8), texts("ntk", [3.0] * 8)]
    for name in ("one", "two"):
        folder(tmp_path / name, *(cells if name == "one" else cells[::-1]))
        for job, machine in (("a", "Y"), ("b", "X"), ("c", "X")):
            (tmp_path / name / "jobs").mkdir(exist_ok=True)
            said = {"config": {"method": job}, "provenance": {"processor": machine, "lexbench": "0.1.0"}}
            (tmp_path / name / "jobs" / f"{job}.json").write_text(json.dumps(said))
        baseline.update_baseline([tmp_path / name], tmp_path / f"{name}.json")
    assert (tmp_path / "one.json").read_bytes() == (tmp_path / "two.json").read_bytes()
    page = json.loads((tmp_path / "one.json").read_text())
    assert page["measured"] == [{"lexbench": "0.1.0", "processor": machine} for machine in ("X", "Y")]
    assert (len(page["cells"]), len(page["questions"])) == (2, 1)  # both cells asked the same


def test_a_run_holds_against_its_own_baseline(tmp_path: Path) -> None:
    cells = [texts("pi", [1 / 3, 2 / 3, 1 / 7]), answers("pi", [1 / 3, 0.7]), refused("yarn")]
    found = gate(tmp_path, cells, cells, tolerances={"nll": 0, "accuracy": 0})
    assert found.code == 0
    assert [(each.status.value, each.found and each.found.difference) for each in found.verdicts] == [
        ("held", 0.0),
        ("held", 0.0),
        ("held", None),
    ]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "does not exist: write it with lexbench check RUN --baseline .*/b.json --update$"),
        ("{", "cannot be read"),
        ("[]", "cannot be read"),
        (
            '{"schema": 1}',
            r"cannot be read \(KeyError: 'cells'\): "
            r"write it again with lexbench check RUN --baseline .*/b.json --update$",
        ),
        ('{"schema": 1, "cells": [{"id": 1}], "questions": {}, "measured": []}', "cannot be read"),
        ('{"schema": 99, "cells": [], "measured": []}', "written by a newer version of lexbench: use that version"),
    ],
)
def test_what_is_no_baseline_is_named(tmp_path: Path, content: str | None, said: str) -> None:
    file = tmp_path / "b.json"
    if content is not None:
        file.write_text(content)
    with pytest.raises(ValueError, match=rf"baseline .*b\.json .*{said}"):
        check_runs(folder(tmp_path / "run", texts("pi", [3.0])), file)


def test_a_cell_that_a_merge_has_left_twice_is_named(tmp_path: Path) -> None:
    run, file = folder(tmp_path / "run", texts("pi", [3.0])), tmp_path / "b.json"
    baseline.update_baseline(run, file)
    page = json.loads(file.read_text())
    file.write_text(json.dumps({**page, "cells": page["cells"] * 2}))
    with pytest.raises(ValueError, match=r"cannot be read \(ConfigError: a cell stands there twice\): write it again"):
        check_runs(run, file)


def test_half_a_run_makes_no_baseline(tmp_path: Path) -> None:
    whole = folder(tmp_path / "run", texts("pi", [3.0]), texts("ntk", [3.0]))
    broken = sorted((tmp_path / "run/cells").glob("[!.]*"))[0]
    content = broken.read_bytes()
    broken.write_bytes(content[: len(content) // 2])
    with pytest.raises(ValueError, match=f"run cannot become a baseline: cell .*{broken.name} cannot be read"):
        baseline.update_baseline(whole, tmp_path / "b.json")
    broken.unlink()
    begun = texts("yarn", [3.0])
    Store(tmp_path / "run").append(begun.cell, begun.samples[0])
    with pytest.raises(ValueError, match="run has 1 unfinished cell"):
        baseline.update_baseline(whole, tmp_path / "b.json")
    assert not (tmp_path / "b.json").exists()


def test_an_update_replaces_a_baseline_whole_or_damaged_and_nothing_else(tmp_path: Path) -> None:
    run, file = folder(tmp_path / "run", texts("pi", [3.0])), tmp_path / "b.json"
    baseline.update_baseline(run, file)
    written = file.read_bytes()
    laid_out = json.dumps(json.loads(written), indent=2).encode()
    for before in (written, written[: len(written) // 2], laid_out, b""):
        file.write_bytes(before)
        baseline.update_baseline(run, file)
        assert file.read_bytes() == written
    for other in (b"# A readme\n", b'{"name": "mine"}\n', b"\xff\x00"):
        file.write_bytes(other)
        with pytest.raises(ValueError, match=r"baseline .*b.json is no baseline, and --update would replace it: give"):
            baseline.update_baseline(run, file)
        assert file.read_bytes() == other


def test_a_folder_with_two_runs_of_one_name_is_refused_with_what_differs(tmp_path: Path) -> None:
    twin = texts("pi", [4.0] * 8, identity={"model": {"name": "lexlet", "revision": "b"}})
    run = folder(tmp_path / "run", texts("pi", [3.0] * 8), twin)
    said = "the run holds 2 cells of pi last_segment at 512, seed 0, which differ in model.revision: give a folder"
    with pytest.raises(ValueError, match=said):
        baseline.update_baseline(run, tmp_path / "b.json")


def test_unfinished_cells_and_broken_files_are_said(tmp_path: Path) -> None:
    cells = [texts(method, [3.0] * 8) for method in ("ntk", "pi", "yarn")]
    baseline.update_baseline(folder(tmp_path / "old", *cells), tmp_path / "b.json")
    run = folder(tmp_path / "new", cells[0], cells[1])
    Store(run[0]).append(cells[2].cell, cells[2].samples[0])
    (tmp_path / "new/cells" / f"{cells[1].cell.id}.parquet").write_bytes(b"PAR1")
    found = check_runs(run, tmp_path / "b.json")
    assert found.code == 2
    assert {str(each.cell.method): reason_text(each) for each in found.of(VerdictStatus.NOT_COMPARABLE)} == {
        "pi": "the run has no such cell: run what the baseline was made from, or --update",
        "yarn": "unfinished: repeat the run command to finish it",
    }
    assert "not readable: cell " in terminal_text(found)


def test_no_word_of_a_reason_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a reason: the same marks; in other words: an unfinished cell is known all the same."""
    monkeypatch.setitem(notes.WORDS_OF_NOTE, NoteKind.NO_SUCH_CELL, "qqq")
    base = [answers("yarn", right(8, 8)), texts("pi", [3.0] * 8), texts("ntk", [3.0] * 8)]
    run = folder(tmp_path / "new", answers("yarn", right(7, 8)), base[1])
    baseline.update_baseline(folder(tmp_path / "old", *base), tmp_path / "b.json")
    Store(run[0]).append(base[2].cell, base[2].samples[0])
    found = check_runs(run, tmp_path / "b.json")
    [unfinished] = found.of(VerdictStatus.NOT_COMPARABLE)
    assert reason_text(unfinished) == "unfinished: repeat the run command to finish it"
    silent = [replace(each, reason=None) for each in found.verdicts]
    other = Check(baseline="b.json", verdicts=silent, changes=[], alterations=[], problems=[], measured=[])
    tables = [
        [line for line in check_as_markdown(each).splitlines() if line.startswith("|")] for each in (found, other)
    ]
    assert tables[0] == tables[1] and any("-12.5 ~" in line for line in tables[0])


def test_no_cell_in_common_is_said_with_names(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match="it holds yarn last_segment on lexlet, the baseline pi last_segment on lexlet"
    ):
        gate(tmp_path, [texts("pi", [3.0] * 8)], [texts("yarn", [3.0] * 8)])


# What it says


@pytest.fixture
def mixed(tmp_path: Path) -> Check:
    """A regression, a gain, a loss that is not significant, a new cell, one that vanished."""
    old = [
        answers("yarn", right(16, 16)),
        answers("ntk", right(2, 16)),
        answers("pi", right(16, 16)),
        answers("none", right(3, 16)),
    ]
    new = [
        answers("yarn", right(2, 16), identity={"attention": {"scale": 2.0}}),
        answers("ntk", right(16, 16)),
        answers("pi", right(14, 16)),
        answers("rerope", right(3, 16)),
    ]
    return gate(tmp_path, old, new)


def test_the_terminal_shows_one_table_and_what_it_takes(mixed: Check) -> None:
    assert mixed.code == 1
    shown = terminal_text(mixed)
    # 14 of 16 flips: 2^-14, times 3 comparisons; the intervals are Newcombe's of 14 and 2 of 16 lost and none gained
    expected = f"""\
REGRESSED: 1 held, 1 improved, 1 regressed, 1 not comparable, 1 new

| run minus baseline                | {"512":>12} |
| --------------------------------- | {"-" * 11}: |
| passkey accuracy (points): none   | {"?":>12} |
| passkey accuracy (points): ntk    | {"+87.5 gained":>12} |
| passkey accuracy (points): pi     | {"-12.5 ~":>12} |
| passkey accuracy (points): rerope | {"new":>12} |
| passkey accuracy (points): yarn   | {"-87.5 LOST":>12} |

lost: passkey accuracy of yarn on lexlet at 512: 100.0 -> 12.5 points (-87.5 [-96.5, -57.0], tolerance 2, p """
    assert shown.startswith(expected)
    assert "not comparable: passkey accuracy of none on lexlet at 512: the run has no such cell" in shown
    assert (
        "~ passkey accuracy of pi on lexlet at 512: 100.0 -> 87.5 points (-12.5 [-36.0, +8.9], tolerance 2, p 0.5 "
        in shown
    )
    assert "gained, --update keeps it: passkey accuracy of ntk on lexlet at 512: 12.5 -> 100.0 points" in shown
    assert "new: passkey accuracy of rerope on lexlet at 512: not in the baseline" in shown
    said = "scale is 2, was 515.1; --update or --allow-changed accepts it"
    assert f"another method under the same name: yarn on lexlet at 512: {said}" in shown
    assert "3 comparisons with " in shown and "tolerance accuracy 2 points; level 0.05 in all" in shown


@pytest.mark.slow
def test_a_long_table_shows_what_has_changed(tmp_path: Path) -> None:
    methods = [f"method{index}" for index in range(30)]
    old = [texts(method, [3.0] * 12) for method in methods]
    new = [texts(method, [3.0 + (method == "method7")] * 12) for method in methods]
    shown = terminal_text(gate(tmp_path, old, new))
    assert shown.count("last_segment nll (nats per token)") == 1 and "29 rows held or new, not shown" in shown
    assert "| last_segment nll (nats per token): method7 | +1.000 LOST |" in shown


@pytest.mark.slow
def test_many_names_are_cut_short(tmp_path: Path) -> None:
    base = [texts("none", [3.0] * 12)]
    more = [texts(f"method{index:02}", [3.0] * 12) for index in range(30)]
    shown = terminal_text(gate(tmp_path, base, base + more))
    places = "; ".join(f"last_segment nll of method{index:02} on lexlet at 512" for index in range(6))
    assert f"new: {places} and 24 more: not in the baseline\n" in shown
    assert "31 rows held or new, not shown" in shown


def test_two_corpora_of_one_task_have_a_row_and_a_name_each(tmp_path: Path) -> None:
    def sides(loss: float) -> list[FinishedCell]:
        corpora = [("stdlib", 3.0), ("packages", loss)]
        return [texts("pi", [each] * 12, corpus=name, identity={"corpus": {"name": name}}) for name, each in corpora]

    found = gate(tmp_path, sides(3.0), sides(3.5))
    shown = terminal_text(found)
    assert re.search(r"\| last_segment on stdlib nll \(nats per token\): pi +\| +0\.000 \|", shown)
    assert re.search(r"\| last_segment on packages nll \(nats per token\): pi +\| \+0\.500 LOST \|", shown)
    assert "lost: last_segment on packages nll of pi on lexlet at 512: " in shown
    [suite] = JUnitXml.fromstring(junit_xml(found))
    assert sorted(case.classname for case in suite) == [
        "lexlet.last_segment on packages",
        "lexlet.last_segment on stdlib",
    ]
    assert [row["task"] for row in check_data(found)["verdicts"] if row["status"] == "regressed"] == [
        "last_segment on packages"
    ]


def test_too_few_clusters_are_said_even_where_all_holds(tmp_path: Path) -> None:
    lengths = (512, 1024, 2048)
    cells = [texts("pi", [3.0] * 5, length) for length in lengths]
    found = gate(tmp_path, cells, cells)
    assert found.code == 0
    few = "no power: with 5 clusters no p is below 0.031, too much for 3 comparisons: raise n"
    assert f"{few} (last_segment nll of pi on lexlet at 512, 1024, 2048)" in terminal_text(found)
    enough = [texts("pi", [3.0] * 6, length) for length in lengths]  # 3 / 64 < 0.05
    assert "no power" not in terminal_text(gate(tmp_path / "more", enough, enough))


def test_a_pass_says_the_smallest_loss_that_it_finds(tmp_path: Path) -> None:
    """Sign flips of 12 answers: m lost have 2^-m one-sided. Of a loss of 12 q answers m are lost in 9 of 10 runs."""
    for comparisons, lost in ((1, 5), (2, 6)):
        cells = [answers("yarn", right(12, 12), length) for length in (512, 1024)[:comparisons]]
        found = gate(tmp_path / str(comparisons), cells, cells)
        size = found.smallest["accuracy"] / 100
        p = [binomtest(each, each, alternative="greater").pvalue for each in (lost - 1, lost)]
        assert p[1] <= 0.05 / comparisons < p[0] and binom.sf(lost - 1, 12, size) == pytest.approx(0.9)
        # 12 answers find no loss of 25 points.
        assert f"would have found one of {100 * size:.2g} points of accuracy" in verdict_line(found) and is_amber(found)
    many = [answers("yarn", right(64, 64))]
    assert not is_amber(gate(tmp_path / "many", many, many))


def test_other_questions_are_said(tmp_path: Path) -> None:
    found = gate(tmp_path, [texts("pi", [3.0, 3.1] * 4)], [texts("pi", [3.1, 3.0] * 4, seed=3)])
    place = "last_segment nll of pi on lexlet at 512, seed 3"
    said = f"other questions, compared unpaired, with less power: {place}: seed 0 -> 3"
    assert said in terminal_text(found)


def test_fewer_questions_fail_the_check_in_every_form(tmp_path: Path) -> None:
    file = tmp_path / "b.json"
    baseline.update_baseline(folder(tmp_path / "old", answers("yarn", right(12, 12)), texts("pi", [3.0] * 12)), file)
    run = folder(tmp_path / "new", answers("yarn", right(0, 2), seed=1), texts("pi", [3.0] * 12))
    said, code = check_command(run, file, github=True, junit_file=tmp_path / "c.xml", markdown_file=tmp_path / "c.md")
    assert code == 2 and said.startswith("NOT COMPARABLE: 1 held, 1 not comparable\n")
    reason = "10 of the baseline's 12 questions are missing: run with n=12, or --update"
    assert f"not comparable: passkey accuracy of yarn on lexlet at 512, seed 1: {reason}" in said
    assert said.splitlines()[-1].startswith("::error title=") and said.splitlines()[-1].endswith(reason)
    assert JUnitXml.fromfile(str(tmp_path / "c.xml")).errors == 1
    assert "NOT COMPARABLE" in (tmp_path / "c.md").read_text()
    page = json.loads(check_command(run, file, as_data=True)[0])
    assert (page["verdict"], page["code"]) == ("not comparable", 2)
    assert [row["reason"] for row in page["verdicts"] if row["status"] == "not comparable"] == [reason]


def test_annotations_name_lengths_and_methods_and_are_escaped(mixed: Check) -> None:
    lines = github_annotations(mixed)
    kinds = [line.split(" ")[0] for line in lines]
    assert kinds == ["::error", "::error", "::error", "::warning", "::notice", "::notice"]
    head = "::error title=lexbench check%3A regressed::lost: "
    assert lines[0].startswith(head + "passkey accuracy of yarn on lexlet at 512: 100.0 -> 12.5 points")
    odd = replace(
        mixed.verdicts[1], cell=replace(mixed.verdicts[1].cell, method=MethodKey.of_method("50%\r\n::error::x##[y]"))
    )
    [line] = github_annotations(
        Check(baseline="b", verdicts=[odd], changes=[], alterations=[], problems=[], measured=[])
    )
    assert "passkey accuracy of '50%25\\r\\n::error::x#\\x23[y]' on lexlet at 512" in line
    assert len(line.splitlines()) == 1


def test_annotations_are_ten_of_a_kind_at_most(tmp_path: Path) -> None:
    old = [texts(f"method{index}", [3.0] * 12) for index in range(13)]
    new = [texts(f"method{index}", [4.0] * 12) for index in range(13)]
    lines = github_annotations(gate(tmp_path, old, new))
    assert len(lines) == 10 and lines[-1].endswith("::and 4 more, see the log")


def test_junit_can_be_read_back(mixed: Check, tmp_path: Path) -> None:
    file = tmp_path / "check.xml"
    file.write_bytes(junit_xml(mixed))
    [suite] = JUnitXml.fromfile(str(file))
    assert (suite.tests, suite.failures, suite.errors, suite.skipped) == (6, 2, 1, 1)
    cases = {case.name: case for case in suite}
    broken = cases["accuracy of yarn at 512, seed 0"]
    assert broken.classname == "lexlet.passkey"
    [result] = broken.result
    assert isinstance(result, Failure) and result.message.startswith("100.0 -> 12.5 points (-87.5")
    assert cases["attention of yarn"].result[0].message == "scale is 2, was 515.1"
    kinds = {name: [type(each) for each in case.result] for name, case in cases.items()}
    assert kinds["accuracy of none at 512, seed 0"] == [Error]
    assert kinds["accuracy of rerope at 512, seed 0"] == [Skipped]
    assert kinds["accuracy of pi at 512, seed 0"] == []


def test_names_of_others_can_do_nothing(tmp_path: Path) -> None:
    name = "a|b\n\x1b[31m<script>`[x](y)\x00"
    old, new = answers(name, right(16, 16)), answers(name, right(2, 16))
    found = gate(tmp_path, [old], [new])
    clean = r"'a|b\n\x1b[31m<script>`[x](y)\x00'"
    safe = r"'a\|b\\n\\x1b[31m\<script>\`[x]\(y)\\x00'"
    assert "\x1b" not in terminal_text(found) and f"passkey accuracy of {clean} on lexlet at 512" in terminal_text(
        found
    )
    shown = check_as_markdown(found)
    assert f"| passkey accuracy (points): {safe} | -87.5 LOST |" in shown
    assert f"- lost: passkey accuracy of {safe} on lexlet at 512: 100.0 -> 12.5 points" in shown
    file = tmp_path / "x.xml"
    file.write_bytes(junit_xml(found))
    [suite] = JUnitXml.fromfile(str(file))
    assert [case.name for case in suite] == [f"accuracy of {clean} at 512, seed 0"]


def test_all_of_it_as_data(mixed: Check) -> None:
    page = json.loads(json.dumps(check_data(mixed), allow_nan=False))
    assert (page["verdict"], page["code"], page["comparisons"], page["level"]) == ("regressed", 1, 3, 0.05)
    [row] = [row for row in page["verdicts"] if row["method"] == "yarn"]
    values = {
        name: row[name] for name in ("status", "metric", "unit", "baseline_value", "value", "difference", "length")
    }
    assert values == {
        "status": "regressed",
        "metric": "accuracy",
        "unit": "points",
        "baseline_value": 100.0,
        "value": 12.5,
        "difference": -87.5,
        "length": 512,
    }
    assert row["p_holm"] == pytest.approx(3 * row["p"])
    assert (row["pairs"], row["clusters"], row["tolerance"]) == (16, 16, 2.0)


# The command


def test_the_command_writes_a_baseline_then_holds_then_fails(tmp_path: Path) -> None:
    run = folder(tmp_path / "run", *(answers("yarn", right(16, 16), length) for length in (512, 1024)))
    file = tmp_path / "deep/b.json"
    said, code = check_command(run, file, update=True)
    assert code == 0 and said.startswith(f"{file}: 2 cells, 0 of them refused, {file.stat().st_size} bytes\n")
    assert check_command(run, file)[1] == 0
    worse = folder(tmp_path / "worse", answers("yarn", right(16, 16)), answers("yarn", right(3, 16), 1024))
    said, code = check_command(worse, file, github=True, junit_file=tmp_path / "c.xml", markdown_file=tmp_path / "c.md")
    assert code == 1
    assert said.splitlines()[-1].startswith("::error title=") and "of yarn on lexlet at 1024" in said.splitlines()[-1]
    assert (tmp_path / "c.md").read_text().startswith("## lexbench check: REGRESSED: 1 held, 1 regressed\n")
    assert JUnitXml.fromfile(str(tmp_path / "c.xml")).failures == 1
    assert json.loads(check_command(worse, file, as_data=True)[0])["code"] == 1
    assert check_command(worse, file, tolerance=["accuracy=90"])[1] == 0


def test_an_update_refuses_a_gate_that_finds_nothing(tmp_path: Path) -> None:
    """Four texts have no p below 2^-4; 3 right answers of 12 no p below 2^-3, though 12 clusters would have one."""
    file = tmp_path / "b.json"
    for cells in ([texts("pi", [3.0] * 4)], [answers("pi", right(3, 12))]):
        run = folder(tmp_path / cells[0].cell.task, *cells)
        with pytest.raises(ConfigError, match="blind in 1 of 1 comparison, where not even the loss of all"):
            check_command(run, file, update=True)
        assert not file.exists()
    said, _ = check_command(run, file, update=True, allow_blind=True)
    assert said.endswith("none: not even the loss of all would be found, in 1 of them") and file.exists()
    with pytest.raises(ConfigError, match="give it with --update"):
        check_command(run, file, allow_blind=True)
    # A third may be blind.
    mixed_cells = [answers("pi", right(16, 16)), answers("ntk", right(16, 16)), answers("yarn", right(3, 16))]
    assert check_command(folder(tmp_path / "third", *mixed_cells), file, update=True)[1] == 0


def test_refused_cells_take_no_power(tmp_path: Path) -> None:
    """Six texts: 2^-6 is below 0.05 / 3, and not below 0.05 / 4."""
    cells = [answers("pi", right(6, 6), length) for length in (256, 512, 1024)]
    short = [refused("pi", length) for length in (64, 128)]
    file = tmp_path / "b.json"
    assert check_command(folder(tmp_path / "three", *cells, *short), file, update=True)[1] == 0
    more = answers("pi", right(6, 6), 2048)
    with pytest.raises(ConfigError, match="blind in 4 of 4 comparisons"):
        check_command(folder(tmp_path / "four", *cells, more, *short), file, update=True)


def test_what_fails_now_is_counted_beside_what_failed_before_on_other_questions() -> None:
    """Of another seed one more failure than before is a loss; as many are none."""

    def failing(count: int, seed: int) -> FinishedCell:
        made = texts("pi", [3.0 + place / 20 for place in range(8)], seed=seed)
        gone = [replace(each, nll=None, failed="gone") if each.index < count else each for each in made.samples]
        return FinishedCell(made.cell, gone)

    same, more = one(failing(2, 0), failing(2, 1)), one(failing(2, 0), failing(3, 1))
    assert same.status.value in ("held", "not comparable") and "failed" not in reason_text(same)
    assert more.status.value == "regressed" and "1 question of 8 failed that the baseline answers" in reason_text(more)


def test_how_many_clusters_a_loss_needs_grows_with_the_comparisons() -> None:
    """Six documents allow 2^-6: below 0.05 alone and among three, above 0.05 / 4."""
    lengths = (512, 1024, 2048, 4096)
    for count, status in ((1, "regressed"), (3, "regressed"), (4, "not comparable")):
        before = [texts("pi", [3.0] * 6, length) for length in lengths[:count]]
        after = [texts("pi", [3.5 if length == 512 else 3.0] * 6, length) for length in lengths[:count]]
        first, *rest = judged(before, after)
        assert (first.status.value, {each.status.value for each in rest}) == (status, {"held"} if rest else set())
        if status == "not comparable":
            assert reason_text(first) == (
                "a loss beyond the tolerance, and 6 clusters are too few to test it among 4 comparisons: raise n"
            )


def test_a_loss_of_exactly_the_tolerance_is_within_it() -> None:
    for seed in (0, 1):
        before, after = answers("yarn", right(8, 8)), answers("yarn", right(7, 8), seed=seed)
        verdict = one(before, after, accuracy=12.5)
        found = verdict.found
        assert found is not None
        assert (verdict.status.value, verdict.p, found.p_flips, found.p_gain) == ("held", 1.0, 1.0, 1.0)


def test_the_standard_error_of_a_difference_is_that_of_its_clusters() -> None:
    before, gaps = [3.0, 3.2, 3.4, 3.1, 2.9], np.array([0.5, 0.25, 0.75, 1.0, 0.0])
    verdict = one(texts("pi", before), texts("pi", (np.array(before) + gaps).tolist()))
    assert verdict.found is not None
    assert verdict.found.error == pytest.approx(gaps.std(ddof=1) / math.sqrt(5), rel=1e-5)
    assert one(texts("pi", [3.0]), texts("pi", [3.5])).found.error == 0.0  # type: ignore[union-attr]


def test_a_gain_counts_from_the_tolerance_on_as_a_loss_does() -> None:
    before = [3.0 + place / 10 for place in range(12)]
    for change, status in ((-0.03, "improved"), (-0.015, "held"), (0.015, "held"), (0.03, "regressed")):
        verdict = one(texts("pi", before), texts("pi", [loss + change for loss in before]))
        assert verdict.status.value == status, change
    assert one(answers("yarn", right(0, 12)), answers("yarn", right(12, 12)), accuracy=60).status.value == "improved"
