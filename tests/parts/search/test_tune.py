"""`lexbench tune`: it finds what is planted, counts as published, resumes, ends in time, and excludes what is dear."""

import csv
import itertools
import json
import math
import re
import shutil
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import yaml
from scipy import stats

from lexbench import Attention, Model, Refused
from lexbench.backends.chance import Chance
from lexbench.checkpoints.checkpoint import read_model
from lexbench.core import console, objects, registry
from lexbench.core.method_key import parse_label
from lexbench.core.record import Deferred
from lexbench.core.task import Generate, GenerateAnswer, Loglikelihood, LoglikelihoodAnswer
from lexbench.methods import export
from lexbench.methods.composition import method_config
from lexbench.parts.search.journal import describe_changes
from lexbench.parts.search.tune import bench
from lexbench.parts.search.tune.halving import halve_entrants, rung_counts
from lexbench.parts.search.tune.page import ranking_markdown, terminal_text
from lexbench.parts.search.tune.ranking import CandidateOutcomes, Finalist, rank_finalists
from lexbench.parts.search.tune.result import TuneResult
from lexbench.parts.search.tune.search import TuneSearch
from lexbench.parts.search.tune.settings import TuneSettings
from lexbench.parts.search.tune.space import Candidate, CandidateDraws, ParameterRange, parameters_of
from lexbench.parts.search.tune.tune import tune
from lexbench.report.doctor import examine_runs
from lexbench.runner import answers
from lexbench.stats.intervals import Interval
from lexbench.stats.pairs import Outcome, PairedDifference
from lexbench.store.store import Store

BEST = 9.0
"""Of the fake: what the slowest pair's frequency must be divided by."""
SPACE = {"pi": {"factor": {"low": 0.5, "high": 4, "of": "stretch", "log": True}}}


class Fake(Chance):
    """A text costs how far the slowest pair is from the planted divisor, and what its document costs all alike.

    Needles are found where pairs are slowed; what scales attention costs 0.5 nats inside the trained length.
    """

    asked: tuple[tuple[str, str, int, int], ...] = ()
    now = 0.0
    dies_after: float = math.inf
    loading: float = 0.0
    last: Attention = Attention()

    def __init__(self, model: Model) -> None:
        super().__init__(model)
        Fake.now += Fake.loading

    def attend(self, attention: Attention) -> None:
        if attention.mask is not None:
            raise Refused("fake cannot realise mask")
        own = self.model.inv_freq()
        self.divisor = float((own / (own if attention.inv_freq is None else attention.inv_freq))[-1])
        self.last = attention

    def score(self, question: Loglikelihood) -> LoglikelihoodAnswer:
        self._count(question.cluster, question.length, question.index)
        inside = question.length <= self.model.trained_length
        loss = 0.5 * (self.last.scale is not None) if inside else math.log(self.divisor / BEST) ** 2
        targets = np.arange(question.length - question.first_target)
        of_text, of_loss = (0.4 + 0.3 * np.cos(step * targets) for step in (1, 2))  # no two cells are proportional
        return LoglikelihoodAnswer(
            nll=(worth(question.cluster) + of_text + loss * of_loss / of_loss.mean()).astype(np.float32)
        )

    def write(self, question: Generate) -> GenerateAnswer:
        self._count("needle", question.length, question.index)
        found = question.length <= self.model.trained_length or self.divisor > 2
        return GenerateAnswer(
            tokens=np.zeros(1, np.int64), text=question.answer if found else " nothing", hit_room=False
        )

    def _count(self, what: str, length: int, index: int) -> None:
        if len(Fake.asked) >= Fake.dies_after:
            raise KeyboardInterrupt
        Fake.asked += ((json.dumps(self.last.as_data()), what, length, index),)
        Fake.now += 1


def worth(cluster: str) -> float:
    """Between 0 and 1, of a document's name."""
    return sum(cluster.encode()) % 97 / 97


@pytest.fixture(autouse=True)
def _fake_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("fake_backend")
    module.Fake = Fake  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "fake_backend", module)
    monkeypatch.setattr(Fake, "asked", ())
    monkeypatch.setattr(Fake, "now", 0.0)


@pytest.fixture(scope="module")
def lexlet() -> Model:
    return read_model(registry.read_named_config("model", "lexlet"))


def run(model: Model, out: Path, backend: str = "fake_backend.Fake", **changed: Any) -> TuneResult:
    asked: dict[str, Any] = {
        "length": 1024,
        "budget": 4,
        "methods": ("pi",),
        "n": 8,
        "first": 2,
        "needles": ("passkey",),
        "space": SPACE,
        "out": str(out),
    }
    return tune(
        model=model,
        corpus={**registry.read_named_config("corpus", "synthetic"), "count": 20, "words": 600, "name": "synthetic"},
        backend={"_target_": backend, "name": "fake"},
        settings=TuneSettings(**{**asked, **changed}),
    )


# halving


def test_rungs_are_those_of_hyperband() -> None:
    """Li et al. 2018, table 1: R = 81, eta = 3, brackets s = 4 to 0 by the least resource."""
    assert rung_counts(1, 81, 3) == (1, 3, 9, 27, 81)
    assert rung_counts(9, 81, 3) == (9, 27, 81)
    assert rung_counts(81, 81, 3) == (81,)
    assert rung_counts(4, 32, 2) == (4, 8, 16, 32)
    assert rung_counts(4, 10, 2) == (5, 10)


def test_successive_halving_measures_as_many_as_published() -> None:
    """The bracket s = 4 of the same table: 81, 27, 9, 3, 1 entrants on 1, 3, 9, 27, 81 units; the best one is 80."""
    seen: list[tuple[int, int]] = []

    def measure(entrant: int, count: int) -> int:
        seen.append((entrant, count))
        return 80 - entrant

    halve_entrants(range(81), rung_counts(1, 81, 3), 3, measure)
    assert Counter(count for _, count in seen) == {1: 81, 3: 27, 9: 9, 27: 3, 81: 1}
    assert seen[-1] == (80, 81)
    assert [entrant for entrant, count in seen if count == 3] == list(range(80, 53, -1))  # the best ones first
    # Every rung asks only what the one before did not: 81 + 27 * 2 + 9 * 6 + 3 * 18 + 54
    asked = {entrant: max(count for one, count in seen if one == entrant) for entrant in range(81)}
    assert sum(asked.values()) == 81 + 54 + 54 + 54 + 54


def test_halving_in_the_narrow_sense_ends_with_one() -> None:
    """Jamieson and Talwalkar 2016: |S_k| = floor(n / 2^k), ceil(log2 n) rounds; 11 arms give 11, 5, 2, 1."""
    seen: list[int] = []
    halve_entrants(range(11), (1, 2, 4, 8), 2, lambda entrant, count: seen.append(count) or entrant)  # type: ignore[func-returns-value]
    assert Counter(seen) == {1: 11, 2: 5, 4: 2, 8: 1}


def test_who_is_out_goes_no_further_and_who_is_kept_does() -> None:
    seen: list[tuple[int, int]] = []

    def measure(entrant: int, count: int) -> int | None:
        seen.append((entrant, count))
        return None if entrant < 6 else entrant

    halve_entrants(range(8), (1, 2, 4), 2, measure, keep=lambda entrant: entrant == 7)
    assert seen[8:] == [(6, 2), (7, 2), (6, 4), (7, 4)]


# what is drawn


def test_ranges_follow_model_and_length(lexlet: Model) -> None:
    common = {"factor": {"low": 0.5, "high": 4, "of": "stretch", "least": 1, "log": True}}
    window = {"low": 0.125, "high": 0.9375, "of": "trained_length"}
    space: dict[str, Any] = {"rerope": {"window": window}, "abf": {"base": [1e5, 1e6]}}

    def read(name: str, length: int = 1024, **given: Any) -> Any:
        return parameters_of({**method_config(name), **given}, space, common, lexlet, length)

    assert read("ntk") == {"factor": ParameterRange(2.0, 16.0, True, False)}
    assert read("ntk", 384) == {"factor": ParameterRange(1.0, 6.0, True, False)}
    assert read("rerope") == {"window": ParameterRange(32, 240, False, True)}
    assert read("abf") == {"base": (1e5, 1e6)}
    assert read("ntk", factor=8.0) == read("resonance") == {}
    assert parameters_of(method_config("yarn+log_n"), space, common, lexlet, 1024) == {}


def test_a_method_without_parameters_has_no_range(lexlet: Model) -> None:
    with pytest.raises(ValueError, match=r"^unknown parameter space.none.factor: none has no parameters$"):
        parameters_of(method_config("none"), {"none": {"factor": [1]}}, {}, lexlet, 1024)


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ({"fctor": [1]}, "unknown parameter space.ntk.fctor: choose from factor"),
        ({"factor": 8}, "space.ntk.factor must be a list of choices or"),
        ({"factor": {"low": 1}}, "space.ntk.factor must be a list of choices or"),
        ({"factor": {"low": 1, "high": 2, "step": 3}}, "space.ntk.factor must be a list of choices or"),
        ({"factor": {"low": 2, "high": 2}}, "must have low below high"),
        ({"factor": {"low": 0, "high": 2, "log": True}}, "and above 0 with log"),
        ({"factor": {"low": "a", "high": 2}}, "finite numbers"),
        ({"factor": {"low": 1, "high": 2, "of": "depth"}}, "must be of stretch, trained_length, length, rope_base"),
    ],
)
def test_a_range_that_is_none_is_said(entry: dict[str, Any], said: str, lexlet: Model) -> None:
    with pytest.raises(ValueError, match=said) as caught:
        parameters_of(method_config("ntk"), {"ntk": entry}, {}, lexlet, 1024)
    assert "\n" not in str(caught.value)


def test_the_same_seed_and_results_give_the_same_draws_within_the_ranges() -> None:
    asked = [
        ({"name": "a"}, {"x": ParameterRange(2, 9, True, True), "y": ParameterRange(0, 1, False, False)}),
        ({"name": "b"}, {}),
    ]

    def drawn(seed: int) -> list[dict[str, Any]]:
        draws = CandidateDraws(asked, seed)
        draws.report_default(0, [(2, 0.5)], True)
        found = []
        for number in range(30):
            config, trial = draws.draw_config() or ({}, None)
            draws.report_draw(trial, [(2, config["y"])] if number % 3 else [], bool(number % 2))
            found.append(config)
        return found

    once = drawn(0)
    assert once == drawn(0) != drawn(1)
    assert all(config["name"] == "a" and config["x"] in range(2, 10) and 0 <= config["y"] <= 1 for config in once)
    assert all(config["y"] == float(f"{config['y']:.3g}") for config in once)
    assert CandidateDraws(asked[1:], 0).draw_config() is None


def test_draws_come_nearer_to_what_did_well() -> None:
    """Of 40 draws, those of the second half are nearer to the optimum of (y - 0.2)^2 than uniform ones (0.34)."""
    draws, found = CandidateDraws([({"name": "a"}, {"y": ParameterRange(0, 1, False, False)})], 0), []
    for _ in range(40):
        config, trial = draws.draw_config() or ({}, None)
        draws.report_draw(trial, [(1, (config["y"] - 0.2) ** 2)], True)
        found.append(abs(config["y"] - 0.2))
    assert np.mean(found[20:]) < 0.34 / 2


def test_candidates_that_cannot_be_have_a_reason(lexlet: Model) -> None:
    invalid = Candidate.of({**method_config("yarn"), "beta_fast": 0.5}, lexlet, 1024)
    assert invalid.attention is None and invalid.label == "yarn(beta_fast=0.5)"
    assert (invalid.reason or "").startswith("invalid: yarn needs 0 < beta_slow < beta_fast")
    refused = Candidate.of(method_config("ntk"), Model(name="nope", trained_length=256, head_dim=32), 1024)
    assert (refused.reason or "").startswith("refused: nope has no rotary positions")


def test_by_default_methods_that_hide_no_key_are_taken(lexlet: Model) -> None:
    moves = {
        name
        for name in registry.registered_names("method")
        if Candidate.of(method_config(name), lexlet, 1024).changes_positions
    }
    assert {"yarn", "ntk", "rerope", "self_extend", "dca", "longrope2"} < moves
    assert not moves & {"none", "log_n", "bca", "sliding_window", "streaming_llm", "lambda_mask", "attention_buckets"}


# ranking


def text(index: int, nll: float, targets: int = 4, cluster: str | None = None) -> Outcome:
    return Outcome(index=index, cluster=cluster or str(index), amount=nll * targets, targets=targets)


def needle(index: int, found: float) -> Outcome:
    return Outcome(index=index, cluster=str(index), amount=found)


def measured(losses: list[float], found: list[float], inside: list[float]) -> CandidateOutcomes:
    return CandidateOutcomes(
        text=[text(index, nll) for index, nll in enumerate(losses)],
        needles=[needle(index, each) for index, each in enumerate(found)],
        inside=[text(index, nll) for index, nll in enumerate(inside)],
    )


def test_the_loss_weighs_text_by_targets_and_needles_by_their_worth() -> None:
    uneven = CandidateOutcomes(
        text=[text(0, 2.0, 1), text(1, 1.0, 3)], needles=[needle(0, 1.0), needle(1, 0.0)], inside=[]
    )
    assert uneven.loss(1.0) == pytest.approx((2 + 3) / 4 + 0.5)
    assert uneven.loss(0.2) == pytest.approx(1.25 + 0.1)
    assert CandidateOutcomes(text=uneven.text, needles=[], inside=[]).loss(1.0) == pytest.approx(1.25)


def candidates(*names: str) -> list[Candidate]:
    return [Candidate({"name": name}, parse_label(name), None, None) for name in names]


def test_rows_are_ranked_and_those_above_the_price_come_last() -> None:
    none = measured([4.0] * 6, [0.0] * 6, [1.0] * 6)
    dear = measured([1.0] * 6, [1.0] * 6, [1.03] * 6)
    near = measured([2.0] * 6, [1.0] * 6, [1.019] * 6)
    far = measured([2.5] * 6, [0.5] * 6, [0.9] * 6)
    rows = rank_finalists(
        list(zip(candidates("none", "dear", "near", "far"), (none, dear, near, far), strict=True)), none, 0.02, 1
    )
    assert [row.candidate.label for row in rows] == ["near", "far", "none", "dear"]
    assert [row.dear for row in rows] == [False, False, False, True]
    assert not any(row.doubtful for row in rows)
    assert [row.loss for row in rows] == pytest.approx([2.0, 3.0, 5.0, 1.0])
    assert [row.behind.difference for row in rows] == pytest.approx([0.0, 1.0, 3.0, -1.0])
    assert [row.text.difference for row in rows] == pytest.approx([-2.0, -1.5, 0.0, -3.0])
    assert [row.needles and row.needles.difference for row in rows] == pytest.approx([1.0, 0.5, 0.0, 1.0])
    assert [row.inside.difference for row in rows] == pytest.approx([0.019, -0.1, 0.0, 0.03], abs=1e-9)
    # 12 clusters that all say the same: 2 of 4096 signs are as far from 0, and Holm doubles the smaller of two; those
    # of none differ in size, so Student's t with 0.75 sqrt(12) degrees of freedom decides
    parts = [2 / 6] * 6 + [1 / 6] * 6
    skewed = 2 * stats.t.sf(stats.ttest_1samp(parts, 0).statistic, 0.75 * math.sqrt(12))
    assert [row.behind.p_holm for row in rows] == [None, 2 * 2 / 2**12, pytest.approx(skewed), None]
    assert not any(row.tied for row in rows)


def test_the_p_value_flips_texts_and_needles_alike() -> None:
    """Against all 2^7 signs, by hand: T = mean of text gaps - worth * mean of needle gaps."""
    gaps, found, worth_ = [0.3, -0.1, 0.2, 0.05], [1.0, 0.0, 1.0], 0.4
    best = measured([1.0, 2.0, 3.0, 1.5], [0.0, 1.0, 0.0], [1.0])
    other = measured([1.0 + gaps[0], 2.0 + gaps[1], 3.0 + gaps[2], 1.5 + gaps[3]], [1.0, 1.0, 1.0], [1.0])
    parts = [*(gap / 4 for gap in gaps), *(-worth_ * each / 3 for each in found)]
    truth = sum(parts)
    flips = [
        sum(s * each for s, each in zip(signs, parts, strict=True)) for signs in itertools.product((1, -1), repeat=7)
    ]
    rows = rank_finalists(list(zip(candidates("best", "other"), (best, other), strict=True)), best, 0.02, worth_)
    behind = next(row.behind for row in rows if row.behind.difference)
    sign = 1 if rows[1].candidate.label == "other" else -1
    assert behind.difference == pytest.approx(sign * truth)
    flipped = np.mean([abs(each) >= abs(truth) - 1e-12 for each in flips])
    skewed = 2 * stats.t.sf(abs(float(stats.ttest_1samp(parts, 0).statistic)), 0.75 * math.sqrt(7))
    assert (behind.p, behind.p_flips) == pytest.approx((max(flipped, skewed), flipped))


def test_the_interval_of_the_loss_is_put_together_from_both_parts() -> None:
    """By hand, from those of text and needles: where none is the best, they are the row's own. That of the needles,
    all lost, reaches to the right only: l = 6 / (6 + 1.96^2), and the far end is -(1 - sqrt(2) (1 - l))."""
    none = measured([1.0] * 6, [1.0] * 6, [1.0] * 6)
    other = measured([1.3, 1.1, 1.0, 1.2, 1.0, 2.4], [0.0] * 6, [1.0] * 6)
    row = rank_finalists(list(zip(candidates("none", "other"), (none, other), strict=True)), none, 0.02, 0.4)[1]
    assert row.text.interval and row.text.difference == pytest.approx(2 / 6)
    end = -(1 - math.sqrt(2) * (1 - 6 / (6 + 1.959964**2)))
    low = 2 / 6 + 0.4 - math.hypot(2 / 6 - row.text.interval.low, 0.4 * (end + 1))
    high = 2 / 6 + 0.4 + (row.text.interval.high - 2 / 6)
    assert row.behind.interval
    assert (row.behind.interval.low, row.behind.interval.high) == pytest.approx((low, high))


@pytest.mark.slow
def test_the_interval_of_the_loss_covers_as_often_as_it_says() -> None:
    """300 draws of 40 texts and 40 needles; a percentile interval of 40 clusters is a little too narrow."""
    rng, hits, trials = np.random.default_rng(0), 0, 300
    for _ in range(trials):
        best = measured([2.0] * 40, [0.0] * 40, [1.0] * 2)
        gains = rng.random(40) < 0.5
        other = measured(list(2.3 + 0.2 * rng.standard_normal(40)), list(gains.astype(float)), [1.0] * 2)
        rows = rank_finalists(list(zip(candidates("best", "other"), (best, other), strict=True)), best, 0.02, 0.4)
        behind = next(row.behind for row in rows if row.behind.difference)
        sign = 1 if rows[1].candidate.label == "other" else -1
        assert behind.interval is not None
        hits += behind.interval.low <= sign * (0.3 - 0.4 * 0.5) <= behind.interval.high
    assert 0.90 <= hits / trials <= 0.98


def test_a_price_whose_interval_reaches_above_the_stated_one_is_doubtful() -> None:
    none = measured([2.0] * 4, [], [1.0] * 4)
    found = measured([1.0] * 4, [], [1.0, 1.0, 1.0, 1.06])  # 0.015 on average; a resample has the dear one twice
    rows = rank_finalists(list(zip(candidates("found", "none"), (found, none), strict=True)), none, 0.02, 1.0)
    assert [(row.candidate.label, row.dear, row.doubtful) for row in rows] == [
        ("found", False, True),
        ("none", False, False),
    ]


def test_what_is_too_dear_may_be_in_doubt_as_well() -> None:
    none = measured([2.0] * 4, [], [1.0] * 4)
    far = measured([1.0] * 4, [], [1.06] * 4)
    near = measured([1.5] * 4, [], [1.0, 1.0, 1.0, 1.2])  # 0.05 on average; one resample in three lacks the dear one
    rows = rank_finalists(list(zip(candidates("far", "near", "none"), (far, near, none), strict=True)), none, 0.02, 1.0)
    assert [(row.candidate.label, row.dear, row.doubtful) for row in rows] == [
        ("none", False, False),
        ("far", True, False),
        ("near", True, True),
    ]


def test_what_is_compared_with_itself_has_no_interval() -> None:
    """By definition a difference from itself is 0; Newcombe's interval of right answers has a width even then."""
    none = measured([1.0, 2.0, 3.0], [1.0, 0.0, 1.0], [1.0] * 3)
    found = measured([0.5, 1.5, 2.0], [1.0, 0.0, 1.0], [1.0] * 3)
    best, second = rank_finalists(list(zip(candidates("none", "found"), (none, found), strict=True)), none, 0.02, 1.0)
    assert (best.candidate.label, second.candidate.label) == ("found", "none")
    assert (best.behind.difference, best.behind.interval) == (0.0, None)
    assert second.needles and (second.needles.difference, second.needles.interval) == (0.0, None)
    assert best.needles and best.needles.difference == 0.0 and best.needles.interval  # another one may differ elsewhere


def test_two_alike_are_not_told_apart() -> None:
    rng = np.random.default_rng(1)
    best, other = (measured(list(2 + 0.1 * rng.standard_normal(12)), [1.0] * 12, [1.0] * 12) for _ in range(2))
    none = measured([4.0] * 12, [0.0] * 12, [1.0] * 12)
    rows = rank_finalists(list(zip(candidates("none", "a", "b"), (none, best, other), strict=True)), none, 0.02, 1.0)
    assert [row.tied for row in rows] == [False, True, False]


@pytest.mark.parametrize(
    ("p", "interval", "rival", "tied"),
    [
        (0.01, Interval(0.1, 0.2, ""), True, False),
        (0.01, Interval(-0.1, 0.2, ""), True, True),
        (0.06, Interval(0.1, 0.2, ""), True, True),
        (0.01, None, True, True),
        (None, Interval(0.1, 0.2, ""), True, True),
        (None, None, True, True),
        (None, Interval(0.1, 0.2, ""), False, False),
    ],
)
def test_a_finalist_is_behind_where_both_test_and_interval_say_so(
    p: float | None, interval: Interval | None, rival: bool, tied: bool
) -> None:
    behind = PairedDifference(difference=0.15, interval=interval, p_holm=p)
    [candidate] = candidates("other")
    text, inside = PairedDifference(), PairedDifference()
    row = Finalist(candidate=candidate, loss=1, text=text, needles=None, inside=inside, behind=behind, rival=rival)
    assert row.tied is tied


def test_of_one_text_nobody_is_better() -> None:
    """One cluster has neither an interval nor signs to flip."""
    none, found = measured([2.0], [], [1.0]), measured([1.0], [], [1.0])
    rows = rank_finalists(list(zip(candidates("found", "none"), (found, none), strict=True)), none, 0.02, 1.0)
    assert [(row.candidate.label, row.tied) for row in rows] == [("found", False), ("none", True)]


# the whole


@pytest.mark.slow
def test_the_planted_optimum_is_found_and_measured_afresh(lexlet: Model, tmp_path: Path) -> None:
    result = run(lexlet, tmp_path, budget=24)
    best = result.rows[0].candidate
    factor = best.config["factor"]
    assert abs(math.log(factor / BEST)) < abs(math.log(4 / BEST)) / 2  # the default is 4
    assert result.winner is best and result.rounds == 6  # of 2^2 candidates, so that one comes to 8 questions
    ranked = [row.loss for row in result.rows if not row.dear]
    assert ranked == sorted(ranked)
    none = next(row for row in result.rows if row.candidate.label == "none")
    assert result.rows[0].text.difference == pytest.approx(
        math.log(factor / BEST) ** 2 - math.log(1 / BEST) ** 2, abs=1e-6
    )
    assert none.loss - result.rows[0].loss == pytest.approx(1 - (result.rows[0].text.difference or 0), abs=1e-6)
    assert result.fresh == 8 and result.needles == "passkey"


@pytest.mark.slow
def test_rounds_ask_what_can_be_counted_by_hand(lexlet: Model, tmp_path: Path) -> None:
    """4 candidates on 2, 2 on 4, 1 on 8 questions: 4 * 2 + 2 * 2 + 4 of each of three kinds.

    Fresh: 5 finalists * 8 * 3. None: 8 inside, 2 of text, 2 needles, and 8 needles inside to see what it can do.
    """
    result = run(lexlet, tmp_path)
    search = 3 * (4 * 2 + 2 * 2 + 4)
    assert len(Fake.asked) == search + 8 + 2 + 2 + 8 + 3 * 8 * 5 == result.answers
    assert [tried.asked for tried in result.tried] == [8, 4, 2, 2, 2]
    assert max(Counter(Fake.asked).values()) == 2  # an index of the search, and the same one of the fresh seed


@pytest.mark.slow
def test_all_candidates_have_the_same_questions_and_fresh_ones_are_others(lexlet: Model, tmp_path: Path) -> None:
    result = run(lexlet, tmp_path)
    searched = {file.stem for file in (tmp_path / "search/cells").glob("[!.]*")}
    fresh = {file.stem for file in (tmp_path / "final/cells").glob("[!.]*")}
    assert not searched & fresh and len(fresh) == 3 * 5
    texts: dict[str, list[str]] = {}
    for attention, cluster, length, _ in Fake.asked:
        if length == 1024 and cluster != "needle":
            texts.setdefault(attention, []).append(cluster)
    first = {tuple(asked[:2]) for asked in texts.values()}
    last = {tuple(asked[-8:]) for asked in texts.values() if len(asked) > 8}
    assert len(first) == 1 and len(last) == 1
    read = {cluster for asked in texts.values() for cluster in asked[:-8]}
    assert result.seen == sum(cluster in read for cluster in next(iter(last))) or len(read) < 8


@pytest.mark.slow
def test_an_interrupted_tune_ends_as_an_undisturbed_one_and_asks_nothing_twice(
    lexlet: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = run(lexlet, tmp_path / "whole", budget=8)
    before = len(Fake.asked)
    monkeypatch.setattr(Fake, "asked", ())
    for more in (3, 30, 70, 150):
        monkeypatch.setattr(Fake, "dies_after", more)
        with pytest.raises(KeyboardInterrupt):
            run(lexlet, tmp_path / "parts", budget=8)
    monkeypatch.setattr(Fake, "dies_after", math.inf)
    again = run(lexlet, tmp_path / "parts", budget=8)
    assert len(Fake.asked) == before
    assert ranking_markdown(again) == ranking_markdown(whole)
    for name in ("result.md", "result.csv", "candidates.csv", "settings.json"):
        assert (tmp_path / "parts" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    run(lexlet, tmp_path / "parts", budget=8)
    assert len(Fake.asked) == before
    longer = run(lexlet, tmp_path / "parts", budget=12)
    assert len(longer.tried) == len(whole.tried) + 4
    assert {each.candidate.label for each in whole.tried} < {each.candidate.label for each in longer.tried}


@pytest.mark.slow
def test_a_cell_of_a_tune_that_was_killed_after_its_last_answer_is_finished_by_the_next(
    lexlet: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = run(lexlet, tmp_path / "whole", budget=2)
    finish, asked = Store.finish, len(Fake.asked)

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Store, "finish", killed)
    with pytest.raises(KeyboardInterrupt):
        run(lexlet, tmp_path / "parts", budget=2)
    # Of another cell there are the 2 answers that tell whether the model speaks the text.
    left = max((tmp_path / "parts/search/cells").glob("*.jsonl"), key=lambda file: len(file.read_text().splitlines()))
    monkeypatch.setattr(Store, "finish", finish)
    again = run(lexlet, tmp_path / "parts", budget=2)
    assert left.with_suffix(".parquet").exists() and not left.exists()
    assert len(Fake.asked) == 2 * asked and ranking_markdown(again) == ranking_markdown(whole)
    assert (examine_runs([tmp_path / "parts"]).faults, examine_runs([tmp_path / "parts/final"]).unfinished) == ([], 0)


@pytest.mark.slow
def test_a_candidate_whose_backend_was_away_is_measured_by_the_next_tune(
    lexlet: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    score = Fake.score

    def away(self: Fake, question: Loglikelihood) -> LoglikelihoodAnswer:
        if self.last.scale is not None:
            raise Deferred("the server is away")
        return score(self, question)

    monkeypatch.setattr(Fake, "score", away)
    methods = ("pi", "yarn")
    before = {each.candidate.label: each.out for each in run(lexlet, tmp_path, budget=2, methods=methods).tried}
    assert before["yarn"] == "refused: the server is away"
    monkeypatch.setattr(Fake, "score", score)
    after = {each.candidate.label: each.out for each in run(lexlet, tmp_path, budget=2, methods=methods).tried}
    assert after["yarn"] == "too dear inside the trained length"  # Fake: 0.5 nats, where 0.02 are allowed
    assert examine_runs([tmp_path]).faults == []


@pytest.mark.slow
def test_where_no_bar_is_drawn_each_round_has_a_line_with_the_best_so_far(
    lexlet: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    result = run(lexlet, tmp_path / "one", budget=6)
    plan, *lines = capsys.readouterr().err.splitlines()
    assert plan == f"tune: lexlet at 1024 tokens, 1 method, budget 6, into {tmp_path / 'one'}"
    assert len(lines) == result.rounds == 2
    best = next(tried for tried in result.tried if tried.candidate.label != "none")
    assert re.fullmatch(
        rf"\d\d:\d\d, round 2, 6 candidates measured, best {re.escape(best.candidate.label)} "
        rf"with loss {best.curve[-1][1]:.4f}",
        lines[-1],
    )
    monkeypatch.setattr(console, "LINE_INTERVAL_SECONDS", 0.0)
    run(lexlet, tmp_path / "two", budget=6)
    assert ", round 1, 2 questions: pi(factor=4); 0 candidates measured\n" in capsys.readouterr().err.replace(
        "pi;", "pi(factor=4);"
    )
    monkeypatch.setenv("TQDM_DISABLE", "1")
    run(lexlet, tmp_path / "three", budget=6)
    assert capsys.readouterr().err == ""


@pytest.mark.slow
def test_another_seed_draws_other_candidates(lexlet: Model, tmp_path: Path) -> None:
    one, two = (run(lexlet, tmp_path / str(seed), seed=seed) for seed in (0, 1))
    assert {each.candidate.label for each in one.tried} != {each.candidate.label for each in two.tried}


@pytest.fixture
def second_a_question(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every answer takes a second, all else none."""
    clock = SimpleNamespace(monotonic=lambda: Fake.now)
    monkeypatch.setattr(bench, "time", clock)
    monkeypatch.setattr("lexbench.parts.search.tune.tune.time", clock)


@pytest.mark.slow
@pytest.mark.usefixtures("second_a_question")
def test_a_budget_of_time_is_kept_and_more_of_it_goes_on(lexlet: Model, tmp_path: Path) -> None:
    result = run(lexlet, tmp_path, budget="120s")
    assert len(Fake.asked) <= 120 and result.seconds <= 120
    assert result.rows and 2 <= result.fresh <= 8  # 40 seconds for up to 6 finalists of 3 answers a question
    final = [json.loads(line)["seconds"] for line in (tmp_path / "final/costs.jsonl").read_text().splitlines()]
    assert 30 < sum(final) <= 40
    asked, table = Fake.asked, ranking_markdown(result)
    assert ranking_markdown(run(lexlet, tmp_path, budget="120s")) == table
    assert Fake.asked == asked
    longer = run(lexlet, tmp_path, budget="6min")
    assert Fake.asked[: len(asked)] == asked and 180 < len(Fake.asked) <= 360
    assert len(longer.tried) > len(result.tried) and longer.fresh == 8


@pytest.mark.slow
@pytest.mark.usefixtures("second_a_question")
def test_a_tune_that_has_ended_asks_nothing_though_its_model_loads_faster_now(
    lexlet: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Fake, "loading", 20.0)
    table, asked = ranking_markdown(run(lexlet, tmp_path, budget="120s")), Fake.asked
    assert len(asked) <= 100
    monkeypatch.setattr(Fake, "loading", 0.0)
    assert ranking_markdown(run(lexlet, tmp_path, budget="120s")) == table
    assert Fake.asked == asked


@pytest.mark.everyday("64.5")
@pytest.mark.usefixtures("second_a_question")
@pytest.mark.parametrize("seconds", [61.5, 64.5, 67.5])
def test_the_search_stops_between_two_questions(seconds: float, lexlet: Model, tmp_path: Path) -> None:
    run(lexlet, tmp_path, budget=f"{seconds}s")
    costs = (tmp_path / "search/costs.jsonl").read_text().splitlines()
    assert sum(json.loads(line)["seconds"] for line in costs) == seconds * 2 / 3


@pytest.mark.usefixtures("second_a_question")
def test_the_seconds_of_an_answer_are_on_disk_before_the_next_question(
    lexlet: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command that is killed must not spend them twice."""
    ask, spent = answers.answer_question, list[tuple[int, float]]()

    def noted(*given: Any) -> Any:
        spent.append((len(spent), bench.seconds_spent(tmp_path / "search")))
        return ask(*given)

    monkeypatch.setattr(bench, "answer_question", noted)
    run(lexlet, tmp_path, budget="61.5s")
    searched = spent[:20]  # the first are all of the search
    assert [seconds for _, seconds in searched] == [answers for answers, _ in searched]


@pytest.mark.usefixtures("second_a_question")
def test_a_budget_that_ends_early_leaves_the_ranking_so_far(lexlet: Model, tmp_path: Path) -> None:
    with pytest.raises(Refused, match="budget ended before a candidate was measured: raise budget"):
        run(lexlet, tmp_path / "nothing", budget="12s")
    result = run(lexlet, tmp_path / "some", budget="38s")  # 8 needles, 2 * 3 of none, 6 of each of 2 candidates
    assert not result.rows or result.fresh < 8
    assert result.winner is not None
    assert "BUDGET" in ranking_markdown(result).upper()


@pytest.mark.slow
def test_what_is_too_dear_inside_the_trained_length_is_out_and_shown(lexlet: Model, tmp_path: Path) -> None:
    space: dict[str, Any] = {"yarn": {}, "pi": {}}
    asked: dict[str, Any] = {"methods": ("yarn", "pi"), "space": space, "budget": 2}
    strict = run(lexlet, tmp_path / "strict", **asked)
    assert strict.winner is not None and strict.winner.label == "pi"
    yarn = next(tried for tried in strict.tried if tried.candidate.label == "yarn")
    assert yarn.out == "too dear inside the trained length" and yarn.price is not None
    assert yarn.price.difference == pytest.approx(0.5)
    written = (tmp_path / "strict/result.md").read_text()
    assert "| +0.500 [+0.500, +0.500] | too dear inside the trained length |" in " ".join(written.split())
    lax = run(lexlet, tmp_path / "lax", price=0.6, **asked)
    assert {row.candidate.label for row in lax.rows} == {"none", "yarn", "pi"} and not lax.rows[0].dear


@pytest.mark.slow
def test_where_nothing_within_the_price_beats_none_what_lies_above_it_is_shown(
    lexlet: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Inside, yarn loses 0.8 nats on 2 texts of 8: 0.2 on average, and one resample in ten has neither."""

    def score(self: Fake, question: Loglikelihood) -> LoglikelihoodAnswer:
        self._count(question.cluster, question.length, question.index)
        yarn = self.last.scale is not None
        loss = 0.8 * (yarn and question.index % 4 == 0) if question.length == 256 else 0.9 - 0.8 * yarn
        return LoglikelihoodAnswer(nll=np.full(question.length - question.first_target, loss, dtype=np.float32))

    monkeypatch.setattr(Fake, "score", score)
    result = run(lexlet, tmp_path, methods=("yarn",), space={}, budget=1)
    assert [(row.candidate.label, row.dear) for row in result.rows] == [("none", False), ("yarn", True)]
    table = ranking_markdown(result)
    first = table.splitlines()[0]
    assert first.startswith(
        "Keep lexlet at 1024 tokens, 4 times the trained length, unmodified: no method that costs at"
    )
    assert "most 0.02 nats per token on texts of 256 tokens beats it. Above the price inside the trained" in first
    assert "length: yarn +0.200 [" in first and "Left out of 1 candidate: 1 cost more than the price." in first
    assert "| 2. yarn too dear ~ |" in " ".join(table.split())
    assert table.count("~") == 2  # and the legend's
    assert "\n8 fresh questions of each kind" in table and "2 candidates measured in 1 round, " in table


@pytest.mark.slow
def test_nothing_wins_on_a_text_that_the_model_does_not_speak(
    lexlet: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Inside the trained length it has 9 nats, and a uniform guess among its tokens less; beyond it pi is better."""

    def score(self: Fake, question: Loglikelihood) -> LoglikelihoodAnswer:
        nll = 9.0 if question.length == 256 else 10.0 - bool(self.last.slots())
        return LoglikelihoodAnswer(nll=np.full(question.length - question.first_target, nll, dtype=np.float32))

    assert math.log(lexlet.vocabulary or 0) < 9.0
    monkeypatch.setattr(Fake, "score", score)
    result = run(lexlet, tmp_path, methods=("pi",), space={}, budget=1)
    # Asked first: nothing else was measured, no needle and no other method.
    assert result.winner is None and not result.rows and not Fake.asked  # which `score` above does not fill
    assert result.answers == 8
    said = "Nothing is recommended for lexlet at 1024 tokens, 4 times the trained length: lexlet does not speak this "
    said += "text: none has 9.000"
    assert terminal_text(result).splitlines()[0].endswith("Give a text that it speaks: corpus=FILE.")
    page = (tmp_path / "result.md").read_text()
    assert said in terminal_text(result) and said in page and "lexbench.extend" not in page
    assert not re.search(r"\bbest\b", terminal_text(result), re.IGNORECASE)
    kept = json.loads((tmp_path / "result.json").read_text())
    assert kept["winner"] is None and not kept["exports"] and kept["unspoken"] == result.unspoken


@pytest.mark.slow
def test_a_text_that_is_refused_says_so_and_replaces_no_ranking(
    lexlet: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An earlier version believed what a later one refuses; the files of the ranking stay, byte for byte."""
    names = ("result.md", "result.csv", "candidates.csv", "result.json")
    assert run(lexlet, tmp_path / "old", methods=("pi",), space={}, budget=1).rows
    before = {name: (tmp_path / "old" / name).read_bytes() for name in names}
    assert all(before.values())
    monkeypatch.setattr(TuneSearch, "why_silent", lambda _: "lexlet does not speak this text")
    with pytest.raises(Refused, match="holds a ranking, and this tune has none: lexlet does not speak this text"):
        run(lexlet, tmp_path / "old", methods=("pi",), space={}, budget=1)
    assert {name: (tmp_path / "old" / name).read_bytes() for name in names} == before
    run(lexlet, tmp_path / "new", methods=("pi",), space={}, budget=1)
    [row] = csv.DictReader((tmp_path / "new/candidates.csv").read_text().splitlines())
    assert row["method"] == "none" and row["became"] == "not ranked: the model does not speak the text"
    run(lexlet, tmp_path / "new", methods=("pi",), space={}, budget=1)  # no ranking there: written again
    monkeypatch.undo()
    assert "finalist" in before["candidates.csv"].decode()


@pytest.mark.slow
@pytest.mark.usefixtures("second_a_question")
def test_an_ended_tune_of_another_version_is_told_apart_from_a_spent_budget(lexlet: Model, tmp_path: Path) -> None:
    assert run(lexlet, tmp_path, budget="120s").rows
    before, asked = (tmp_path / "result.csv").read_bytes(), Fake.asked
    for name in ("search", "final"):  # their cells have other identities in this version: as if there were none
        shutil.rmtree(tmp_path / name)
    with pytest.raises(Refused, match=r"a tune that has ended, but no sample .* the files stay, give another out="):
        run(lexlet, tmp_path, budget="120s")
    assert (tmp_path / "result.csv").read_bytes() == before and Fake.asked == asked


@pytest.mark.slow
def test_a_winner_whose_text_is_at_its_floor_is_said(
    lexlet: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the length pi has 7 nats, less than none, and more than pairs of tokens counted."""

    def score(self: Fake, question: Loglikelihood) -> LoglikelihoodAnswer:
        nll = 1.0 if question.length == 256 else 8.0 - bool(self.last.slots())
        return LoglikelihoodAnswer(nll=np.full(question.length - question.first_target, nll, dtype=np.float32))

    monkeypatch.setattr(Fake, "score", score)
    result = run(lexlet, tmp_path, methods=("pi",), space={}, budget=1)
    assert result.winner is not None and result.winner.label == "pi"
    assert re.search(r"^Deploy pi for .* Its text is no better there than the bigram floor \(", terminal_text(result))


@pytest.mark.slow
def test_both_run_folders_say_what_they_are_measured_with(lexlet: Model, tmp_path: Path) -> None:
    run(lexlet, tmp_path)
    for name, seed in (("search", 0), ("final", 1)):
        (file,) = (tmp_path / name / "jobs").iterdir()
        page = json.loads(file.read_text())
        assert page["config"]["seeds"] == [seed] and page["config"]["lengths"] == [256, 1024]
        assert [method["name"] for method in page["config"]["method"]] == ["none", "pi"]
        assert page["provenance"]["model_revision"] == "chance" and page["provenance"]["python"]


@pytest.mark.slow
def test_a_method_is_priced_as_it_is_deployed(lexlet: Model, tmp_path: Path) -> None:
    """Left to itself pi is no change at 256 tokens; deployed for 1024 it divides by 4 there as well."""
    run(lexlet, tmp_path, budget=1)
    inside = {attention for attention, what, length, _ in Fake.asked if length == 256 and what != "needle"}
    assert inside == {"{}", json.dumps(Attention(inv_freq=lexlet.inv_freq() / 4).as_data())}


@pytest.mark.slow
def test_refused_invalid_and_equal_candidates_are_recorded(lexlet: Model, tmp_path: Path) -> None:
    result = run(
        lexlet,
        tmp_path,
        methods=("bca", "pi", "ntk", "dynamic_ntk", {"name": "longrope", "long_factors": (1.0, 2.0)}, "none"),
        budget=10,
        space={"bca": {}, "ntk": {"factor": [0.5, -1]}},
    )
    out = {tried.candidate.label: tried.out for tried in result.tried}
    assert out["bca"] == "refused: fake cannot realise mask"
    assert out["dynamic_ntk"] == "same as ntk"
    assert "longrope(long_factors=(1.0, 2.0))" in out
    assert str(out["longrope(long_factors=(1.0, 2.0))"]).startswith(("refused: ", "invalid: "))
    assert str(out["ntk(factor=0.5)"]).startswith("invalid: ntk's factor must be finite and at least 1, got 0.5")
    assert not result.rows[0].candidate.label.startswith("bca")


@pytest.mark.slow
def test_all_of_the_folder_says_the_same(lexlet: Model, tmp_path: Path) -> None:
    result = run(lexlet, tmp_path)
    data = json.loads((tmp_path / "result.json").read_text())
    with (tmp_path / "result.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    with (tmp_path / "candidates.csv").open() as stream:
        tried = list(csv.DictReader(stream))
    labels = [row.candidate.label for row in result.rows]
    assert data["winner"] == labels[0]
    assert [row["method"] for row in rows] == [row["method"] for row in data["ranking"]] == labels
    assert [float(row["loss"]) for row in rows] == [row.loss for row in result.rows]
    assert [float(row["behind_difference"]) for row in rows] == [row.behind.difference for row in result.rows]
    assert [row["method"] for row in tried] == [each.candidate.label for each in result.tried]
    assert ranking_markdown(result) in (tmp_path / "result.md").read_text()


def test_the_winner_is_ready_to_paste(lexlet: Model, tmp_path: Path) -> None:
    result = run(lexlet, tmp_path)
    page, winner = (tmp_path / "result.md").read_text(), result.winner
    assert winner is not None and winner.method is not None
    data = json.loads((tmp_path / "result.json").read_text())["exports"]
    for target in export.EXPORT_TARGETS:
        pasted = export.export_text(winner.method, winner.label, lexlet, 1024, target)
        assert f"\n{pasted}\n```" in page and data[target] == {"text": pasted, "refused": ""}
    assert f"with lexbench.extend(network, 'pi', factor={winner.config['factor']}, length=1024):" in page


@pytest.mark.slow
def test_beside_a_winner_that_cannot_be_exported_stands_the_best_that_can(
    lexlet: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def score(self: Fake, question: Loglikelihood) -> LoglikelihoodAnswer:
        """Best under any remap, the better the narrower; ntk is the worst of all and pi next to it."""
        self._count(question.cluster, question.length, question.index)
        remap = self.last.remap
        loss = 5.0 - self.divisor / 100 if remap is None else getattr(remap, "window", 0) / 1000
        return LoglikelihoodAnswer(
            nll=np.full(question.length - question.first_target, loss * (question.length > 256), dtype=np.float32)
        )

    monkeypatch.setattr(Fake, "score", score)
    space = {"rerope": {"window": [16, 32, 64, 96, 112, 144]}, "ntk_old": {}, "pi": {}}
    methods = ("rerope", "ntk_old", "pi")
    result = run(lexlet, tmp_path, methods=methods, space=space, budget=12, n=4, first=1)
    assert result.winner is not None and result.winner.label.startswith("rerope")
    assert [row.candidate.label.startswith("rerope") for row in result.rows] == [True, True, True, False, False]
    asked = {tried.candidate.label: tried.asked for tried in result.tried}
    assert asked["pi"] == 4 and asked["ntk_old"] == 1  # pi went on, though half of the ReRoPEs beat it
    assert sum(each == 4 for each in asked.values()) == 1 + result.rounds
    page = (tmp_path / "result.md").read_text()
    assert page.count("The best one that can: pi.") == len(export.EXPORT_TARGETS)
    pi = next(row.candidate for row in result.rows if row.candidate.label == "pi")
    assert pi.method is not None
    assert export.export_text(pi.method, "pi", lexlet, 1024, "vllm") in page


@pytest.mark.slow
def test_where_only_what_is_worse_than_none_can_be_exported_none_is_advised(
    lexlet: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def score(self: Fake, question: Loglikelihood) -> LoglikelihoodAnswer:
        loss = 1.0 if self.last.remap else 2.0 if not self.last.slots() else 4.0
        loss = loss if question.length > 256 else 0.5 * (self.last.scale is not None)
        return LoglikelihoodAnswer(nll=np.full(question.length - question.first_target, loss, dtype=np.float32))

    monkeypatch.setattr(Fake, "score", score)
    run(lexlet, tmp_path, methods=("rerope", "pi", "yarn"), space={}, budget=3, worth=0.0)
    page = (tmp_path / "result.md").read_text()
    assert page.count("can be exported: serve the model itself.") == len(export.EXPORT_TARGETS)
    assert page.count("above the price inside the trained length: yarn +0.500 [+0.500, +0.500].") == len(
        export.EXPORT_TARGETS
    )
    assert "```json" not in page


@pytest.mark.slow
def test_a_method_of_ones_own_is_tried_as_it_is_or_in_a_range_of_ones_own(
    lexlet: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "mine/method"
    folder.mkdir(parents=True)
    (folder / "a|b.yaml").write_text("_target_: lexbench.methods.pi.Pi\nfactor: 8\n")
    monkeypatch.setenv("LEXBENCH_CONFIG_PATH", str(tmp_path / "mine"))
    alone = run(lexlet, tmp_path / "alone", methods=("a|b",), space={}, budget=3)
    assert [tried.candidate.label for tried in alone.tried] == ["a|b", "none"]
    assert r"Deploy a\|b for" in ranking_markdown(alone) and r"| 1. a\|b" in ranking_markdown(alone)


@pytest.mark.slow
def test_a_model_that_finds_no_needles_is_judged_by_text_alone(
    lexlet: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Fake, "write", Chance.write)
    result = run(lexlet, tmp_path / "none")
    assert result.needles is None and all(row.needles is None for row in result.rows)
    assert "the model finds none inside its trained length" in ranking_markdown(result)
    assert result.rows[0].loss == pytest.approx(result.rows[0].text.value)
    monkeypatch.setattr(Fake, "asked", ())
    assert run(lexlet, tmp_path / "worthless", worth=0.0).needles is None
    assert not any(what == "needle" for _, what, _, _ in Fake.asked)


@pytest.mark.slow
def test_where_none_is_best_its_needles_have_no_interval(
    lexlet: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def score(self: Fake, question: Loglikelihood) -> LoglikelihoodAnswer:
        loss = float(question.length > 256 and bool(self.last.slots()))
        return LoglikelihoodAnswer(nll=np.full(question.length - question.first_target, loss, dtype=np.float32))

    monkeypatch.setattr(Fake, "score", score)
    result = run(lexlet, tmp_path, methods=("abf",), space={}, budget=1, worth=0.0001)
    assert result.winner is not None and result.winner.label == "none"
    assert terminal_text(result).startswith("Keep lexlet at 1024 tokens, 4 times the trained length, unmodified: ")
    [row] = [line for line in ranking_markdown(result).splitlines() if line.startswith("| 1. the unmodified model")]
    assert [cell.strip() for cell in row.split("|")][5] == "0.00, 0"


def test_a_tune_without_needles_says_that_none_were_used(lexlet: Model, tmp_path: Path) -> None:
    page = ranking_markdown(run(lexlet, tmp_path, methods=("pi",), space={}, budget=1, needles=()))
    assert "needles: not used." in page and "the model finds none" not in page


@pytest.mark.slow
def test_finalists_that_all_fail_on_fresh_texts_are_said(
    lexlet: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond the trained length the model has no likelihood, and pi none on what the search has not read."""
    fresh: list[int] = []

    def score(self: Fake, question: Loglikelihood) -> LoglikelihoodAnswer:
        wild = question.length > 256 and (not self.last.slots() or bool(fresh))
        return LoglikelihoodAnswer(
            nll=np.full(question.length - question.first_target, math.nan if wild else 1.0, dtype=np.float32)
        )

    monkeypatch.setattr(Fake, "score", score)

    def planned(self: TuneSearch) -> int:
        fresh.append(8)
        return 8

    monkeypatch.setattr(TuneSearch, "planned_questions", planned)
    with pytest.raises(Refused, match="no finalist has finite likelihoods of all fresh texts: use another dtype"):
        run(lexlet, tmp_path, methods=("pi",), space={}, budget=1)


@pytest.mark.slow
def test_without_fresh_questions_what_is_too_dear_is_not_advised(
    lexlet: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """yarn loses 0.8 nats inside on 2 texts of 8: 0.2, with an interval around the price; rerope is free."""

    def score(self: Fake, question: Loglikelihood) -> LoglikelihoodAnswer:
        self._count(question.cluster, question.length, question.index)
        loss = 0.8 * (self.last.scale is not None and question.index % 4 == 0) if question.length == 256 else 1.0
        loss -= 0.5 * (self.last.remap is not None and question.length > 256)
        return LoglikelihoodAnswer(nll=np.full(question.length - question.first_target, loss, dtype=np.float32))

    monkeypatch.setattr(Fake, "score", score)
    monkeypatch.setattr(TuneSearch, "rank_on_fresh_questions", lambda self, bench, questions: ([], 0))
    result = run(lexlet, tmp_path, methods=("rerope", "yarn"), space={}, budget=2, worth=0.0)
    prices = {tried.candidate.label: tried.price and tried.price.difference for tried in result.tried}
    assert prices["yarn"] == pytest.approx(0.2) and not result.rows
    assert result.winner is not None and result.winner.label == "rerope"
    assert "The best one that can: yarn" not in (tmp_path / "result.md").read_text()


@pytest.mark.slow
def test_a_candidate_without_finite_likelihood_is_out(
    lexlet: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def score(self: Fake, question: Loglikelihood) -> LoglikelihoodAnswer:
        wild = self.divisor == 4 and question.length > 256
        return LoglikelihoodAnswer(
            nll=np.full(question.length - question.first_target, math.nan if wild else 1.0, dtype=np.float32)
        )

    monkeypatch.setattr(Fake, "score", score)
    result = run(lexlet, tmp_path)
    default = next(tried for tried in result.tried if tried.candidate.label == "pi")
    assert default.out == "2 of 4 texts have no finite likelihood"


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"budget": "soon"}, "budget must be a time or a number of candidates, got soon: give budget=30min"),
        ({"budget": 0}, "budget must be a time or a number of candidates, got 0"),
        ({"budget": True}, "budget must be a time or a number of candidates, got True"),
        ({"budget": None}, "tune needs a budget: give budget=30min"),
        ({"length": None}, "^tune needs a length above the trained length 256: .* give length=1024"),
        ({"length": 256}, "a length above the trained length 256, got 256"),
        ({"price": -0.01}, "price must be finite and at least 0 nats, got -0.01: e.g. price=0.02"),
        ({"worth": math.nan}, "worth must be finite and at least 0 nats, got nan: e.g. worth=1"),
        ({"eta": 1}, "tune's eta must be at least 2, got 1: e.g. eta=2"),
        ({"n": 1}, "tune's n must be at least 2, got 1: e.g. n=32"),
        ({"first": 0}, "tune's first must be at least 1, got 0: e.g. first=4"),
        ({"out": ""}, "needs a folder for its results: give out=runs/tune_lexlet_1024"),
        ({"methods": ("yran",)}, "unknown method 'yran': did you mean yarn"),
        ({"methods": ({"name": "yarn", "fctor": 8},)}, "unknown parameter method.fctor"),
        ({"methods": "yarn"}, r"methods must be a list, got 'yarn': e.g. methods=\[yarn\]"),
        ({"space": {"yran": {}}}, "unknown method 'yran'"),
        ({"space": {"pi": {"fctor": [1]}}}, "unknown parameter space.pi.fctor"),
        ({"space": {"pi": 8}}, "space of pi must be a mapping of parameters to ranges, got 8"),
        ({"needles": ("paskey",)}, "unknown task 'paskey'"),
        ({"needles": (5,)}, r"needles must name a task, got 5: e.g. needles=\[needle,passkey\]"),
        ({"needles": ({"options": 4},)}, r"needles must name a task, got {'options': 4}: e.g. needles="),
        ({"needles": None}, r"needles must be a list, got None: e.g. needles=\[needle\]"),
        ({"needles": ("quick",)}, "needles must name a single task, got the suite quick: e.g. needles="),
        (
            {"needles": ("passkey", "last_segment")},
            "needles must give an accuracy, got last_segment, which gives likelih",
        ),
        ({"nll": 5}, "nll must name a task, got 5: e.g. nll=last_segment"),
        ({"nll": None}, "nll must name a task, got None"),
        ({"nll": "quick"}, "nll must name a single task, got the suite quick: e.g. nll=last_segment"),
        ({"nll": "passkey"}, "nll must give likelihoods, got passkey, which gives accuracy.*: e.g. nll=last_segment"),
        ({"nll": "offset"}, "nll must leave positions to methods, got offset.*: e.g. nll=last_segment"),
        ({"methods": (5,)}, "got 5"),
        ({"methods": ()}, r"methods must be a list, got \(\): e.g. methods=\[yarn\]"),
        ({"methods": ("none",)}, r"tune needs a method besides none, .*: e.g. methods=\[yarn\]"),
        ({"space": 5}, "space must be a mapping of methods to parameters, got 5"),
    ],
)
def test_what_cannot_be_tuned_is_said_in_one_line(
    changed: dict[str, Any], said: str, lexlet: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Fake, "__init__", lambda self, model: pytest.fail("a model is loaded"))
    with pytest.raises(ValueError, match=said) as caught:
        run(lexlet, **{"out": tmp_path / "new", **changed})
    assert "\n" not in str(caught.value) and not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_text_file_of_few_places_is_enough(lexlet: Model, tmp_path: Path) -> None:
    """Where it has fewer places than `n`, all candidates get half as many questions, or a quarter."""
    (tmp_path / "book.txt").write_text(" ".join(f"Word {number} follows word {number - 1}." for number in range(1200)))
    asked = TuneSettings(
        length=1024, budget=1, methods=("pi",), n=256, first=2, needles=("passkey",), out=str(tmp_path / "o")
    )
    config = {**registry.read_named_config("corpus", "files"), "path": str(tmp_path / "book.txt"), "name": "files"}
    result = tune(
        model=lexlet, corpus=config, backend={"_target_": "fake_backend.Fake", "name": "fake"}, settings=asked
    )
    assert result.settings.n in (8, 16, 32, 64, 128) and result.rows
    answer = terminal_text(result).splitlines()[0]
    assert "all texts are of one document, which has no interval" in answer
    assert "For more certainty give more documents: corpus=FOLDER." in answer


def test_a_text_without_questions_leaves_no_folder(lexlet: Model, tmp_path: Path) -> None:
    with pytest.raises(Refused):
        run(lexlet, tmp_path / "new", nll={"name": "last_segment", "targets": 300})
    assert not list(tmp_path.iterdir())


def test_a_model_without_a_checkpoint_is_said(tmp_path: Path) -> None:
    facts = Model(name="facts", trained_length=256, head_dim=32, rope_base=1e4)
    with pytest.raises(ValueError, match=r"model facts has no checkpoint to run: give model.path=DIR"):
        run(facts, tmp_path)


@pytest.mark.slow
def test_a_folder_serves_one_tune_only(lexlet: Model, tmp_path: Path) -> None:
    run(lexlet, tmp_path)
    with pytest.raises(
        ValueError, match=r"holds another tune, with price 0.02, now 0.1; n 8, now 4: give another out="
    ):
        run(lexlet, tmp_path, price=0.1, n=4)


def test_of_settings_in_settings_only_those_that_differ_are_named() -> None:
    before = {"n": 8, "space": {"yarn": {"beta_fast": {"low": 4, "high": 64}}, "pi": {"factor": [2]}}}
    now = {"n": 8, "space": {"yarn": {"beta_fast": {"low": 16, "high": 64}}, "pi": {"factor": [2]}, "ntk": {"a": 1}}}
    assert describe_changes(before, now) == "space.yarn.beta_fast.low 4, now 16; space.ntk None, now {'a': 1}"
    assert describe_changes(before, before) == ""
    assert describe_changes({"seeds": [2] * 100}, {"seeds": [3]}) == f"seeds [{'2, ' * 19}2, ..., now [3]"


@pytest.mark.parametrize("content", ["{", "[1]", "[]", "null", '"n"'])
def test_a_folder_whose_settings_are_none_is_said_before_a_model_is_loaded(
    content: str, lexlet: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Fake, "__init__", lambda self, model: pytest.fail("a model is loaded"))
    (tmp_path / "settings.json").write_text(content)
    with pytest.raises(ValueError, match=r"settings.json must be .*JSON.*: remove"):
        run(lexlet, tmp_path)
    assert (tmp_path / "settings.json").read_text() == content


def test_what_a_folder_has_spent_leaves_out_lines_that_are_no_cost(tmp_path: Path) -> None:
    assert bench.seconds_spent(tmp_path / "new") == bench.seconds_spent(tmp_path) == 0
    (tmp_path / "cells").mkdir()
    (tmp_path / "cells/a.jsonl").write_text("")
    rows = [
        {"cell": name, "seconds": s, "tokens": 3, "peak_bytes": 1} for name, s in (("a", 1.5), ("a", 0.25), ("b", 2))
    ]
    lines = [*map(json.dumps, rows), '{"cell": "a"}', "[1]", '{"cell": "b", "sec']
    (tmp_path / "costs.jsonl").write_text("\n".join(lines))
    assert bench.seconds_spent(tmp_path) == 1.5 + 0.25 + 2


@pytest.mark.parametrize(("text_", "seconds"), [("90s", 90), ("30min", 1800), ("1.5h", 5400), ("2 h", 7200)])
def test_budgets_are_times(text_: str, seconds: float) -> None:
    assert TuneSettings(budget=text_).seconds == seconds and TuneSettings(budget=text_).candidates is None
    assert TuneSettings(budget="40").candidates == TuneSettings(budget=40).candidates == 40


@pytest.mark.slow
def test_the_commands_settings_are_the_defaults_and_its_space_fits_all_methods(lexlet: Model) -> None:
    config = yaml.safe_load((registry.command_config_folder("tune") / "tune.yaml").read_text())
    names = set(config) - {"defaults", "hydra"}
    built = objects.build_object(
        {"_target_": "lexbench.parts.search.tune.settings.TuneSettings", **{name: config[name] for name in names}},
        "tune",
    )
    plain = TuneSettings()
    for name in names - {"space", "common"}:
        assert getattr(built, name) == getattr(plain, name)
    assert names | {"to"} == set(TuneSettings.__dataclass_fields__)  # an option, not a setting
    for method in registry.registered_names("method"):
        for length in (512, 1024, 4096):
            drawn = parameters_of(method_config(method), built.space, built.common, lexlet, length)
            assert all(isinstance(each, ParameterRange) and each.low < each.high for each in drawn.values())
            for end in ("low", "high"):
                Candidate.of(
                    {**method_config(method), **{name: getattr(each, end) for name, each in drawn.items()}},
                    lexlet,
                    length,
                )
    assert set(built.space) <= set(registry.registered_names("method"))


@pytest.mark.slow
def test_the_embedded_model_is_told_to_take_rerope(lexlet: Model, tmp_path: Path) -> None:
    """At twice its length lexlet collapses; ReRoPE holds text and needles, pi and a critical base lose both."""
    settings = TuneSettings(
        length=512,
        budget=3,
        methods=("critical_base", "pi", "rerope"),
        n=8,
        needles=("passkey",),
        out=str(tmp_path),
        space={},
    )
    backend = {**registry.read_named_config("backend", "hf"), "name": "hf"}
    result = tune(
        model=lexlet,
        corpus={**registry.read_named_config("corpus", "stdlib"), "name": "stdlib"},
        backend=backend,
        settings=settings,
    )
    assert result.winner is not None and result.winner.label == "rerope"
    best = result.rows[0]
    assert best.text.difference is not None and best.text.difference < -0.1
    assert best.needles is not None and best.needles.value == 1.0
    assert abs(best.inside.difference or 0.0) <= 0.02
    out = {tried.candidate.label: tried.out for tried in result.tried}
    assert out["critical_base"] == out["pi"] == "too dear inside the trained length"


# deployment


@pytest.mark.slow
def test_a_target_is_offered_only_what_it_can_express(lexlet: Model, tmp_path: Path) -> None:
    methods = ({"name": "pi", "factor": BEST}, {"name": "rerope", "window": 64}, {"name": "log_n"})
    result = run(lexlet, tmp_path, methods=methods, budget=3, to="vllm")
    became = {tried.candidate.label: tried.out for tried in result.tried}
    assert became["pi(factor=9.0)"] is None
    for label in ("rerope(window=64)", "log_n"):
        assert (became[label] or "").startswith("cannot be deployed: vllm cannot express ")
    said = terminal_text(result)
    answer = said.splitlines()[0]
    assert answer.startswith(
        "Deploy pi(factor=9.0) for lexlet at 1024 tokens, 4 times the trained length. Against the "
    )
    assert re.search(
        r"gains \+\d\.\d+ \[\+.*\] nats per token of text and \+100 \[.*\] points of needles, of which", answer
    )
    assert "as deployed it costs 0.000 [0.000, 0.000] nats at 256 tokens (the limit is 0.02)." in answer
    assert "How sure: on 8 fresh questions of each kind it is better than the 1 other finalist within" in answer
    assert answer.endswith("Left out of 3 candidates: 2 cannot be exported to vllm.")
    assert "\nPaste:\nvllm serve" in said and "\n| method " in said  # tables as those of a run
    assert len(said.splitlines()) <= 24  # one screen
    unsure = [replace(row, behind=replace(row.behind, interval=Interval(-0.1, 0.2, ""))) for row in result.rows]
    answer = terminal_text(replace(result, rows=unsure)).splitlines()[0]
    # Both gains exclude 0 in the same line, so the reason stands there, too.
    assert (
        "not told apart from the unmodified model, as the interval of its loss behind the best, of text and needles "
        "together, holds 0, though that of text and of needles alone excludes it. For more certainty: about " in answer
    )
    flat = [replace(row, behind=replace(row.behind, p_holm=0.06)) for row in result.rows]
    answer = terminal_text(replace(result, rows=flat)).splitlines()[0]
    assert (
        "not told apart from the unmodified model, as p is 0.06 after Holm's correction for 1 comparison, though"
        in answer
    )
    assert "no other finalist is within the price." in terminal_text(replace(result, rows=result.rows[:1]))
    reropes = tuple({"name": "rerope", "window": window} for window in (16, 32, 64, 128))
    with pytest.raises(Refused, match=r"measure no candidate: (rerope\(window=\d+\) [^;]*; ){2}[^;]* and 1 more$"):
        run(lexlet, tmp_path / "none", methods=reropes, budget=4, to="vllm")
    with pytest.raises(ValueError, match="tune's to must be one of transformers, vllm"):
        TuneSettings(to="tgi")


def test_fresh_questions_are_as_many_as_tell_the_best_two_apart() -> None:
    """By the formula of two paired samples: (1.96 + 0.84)^2 (error / difference)^2 times the questions."""

    def losses(gaps: list[float]) -> SimpleNamespace:
        texts = [Outcome(index=place, cluster=str(place), amount=gap, targets=1) for place, gap in enumerate(gaps)]
        return SimpleNamespace(losses=lambda worth: texts)

    def planned(gaps: list[float], n: int = 8) -> int:
        names = ("none", "one", "two")
        measured = {"one": losses([0.0] * len(gaps)), "two": losses(gaps)}
        search = SimpleNamespace(
            settings=SimpleNamespace(n=n, worth=1.0),
            tried=[SimpleNamespace(candidate=name, asked=len(gaps)) for name in names],
            bench=None,
            _choose_finalists=lambda: list(names),
            measure_candidate=lambda bench, candidate, count: measured[candidate],
        )
        return TuneSearch.planned_questions(search)  # type: ignore[arg-type]

    gaps = [0.1, 0.5, -0.2, 0.4, 0.0, 0.3, -0.1, 0.2]
    error = np.std(gaps, ddof=1) / math.sqrt(8)
    assert planned(gaps) == math.ceil(2.8**2 * (error / np.mean(gaps)) ** 2 * 8) == 21
    assert planned([0.2] * 8) == 8  # always alike: enough as it is
    assert planned([0.1, -0.09] * 4) == 32  # no more than 4 times as many
