"""What a verdict costs that stops as soon as it is decided (`lexbench run n=auto`), beside a fixed number of questions.

    python -m tools.verdicts

200 planted comparisons with fixed seeds: losses (nats per token) and keys (right or wrong), one question a text and
eight, true differences of 0, half, once, twice and four times the size that a plan of a fixed number detects in nine
runs of ten (`stats.reach`), ten of each, to either side in turn. The margin is half that size, or all of it. Every
rule sees the same draws:

    stopping    rounds of 8, 12, 16, 24, ... questions, up to a budget of so many times the plan
    fixed       Student's interval of the mean over texts, once: better or worse where it leaves out 0, equal where it
                lies within the margin (`paired_difference` asks more: its fixed n would be larger)

A verdict is right where it is true: the true side, or equal where the true difference is below the margin. *Fixed n of
equal power*: the least fixed number, to a tenth of a plan, that gives as many right verdicts. A budget that ended is no
verdict, and counts whole. Then families of twelve comparisons of which none differs, and SmolLM2's committed board, in
the order in which its texts were asked.
"""

import argparse
import functools
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from lexbench.core.groups import group_by_key
from lexbench.runner.stopping_rule import StoppingRule
from lexbench.stats.certificates import MAX_COUNTED_LOSS_MARGINS
from lexbench.stats.intervals import SIGNIFICANCE_LEVEL
from lexbench.stats.metrics import better_direction
from lexbench.stats.pairs import Outcome, PairedDifference, question_gaps
from lexbench.stats.reach import smallest_found_difference
from lexbench.stats.stopping import (
    Decision,
    StoppingVerdict,
    cluster_gains,
    decide,
    decide_gains,
    log_wealth,
    round_ends,
)

sys.path.insert(0, str(Path(__file__).parents[1]))

from tools import smollm2_page

Floats = NDArray[np.float64]
SIZES = (0.0, 0.5, 1.0, 2.0, 4.0)
"""True differences, in detectable sizes of the plan."""
COMPARISONS = 10
"""Of each kind and size."""
DETECTED = {"nll": 0.02, "accuracy": 0.1}
"""The plan's detectable size, in nats per token, and as a share of answers."""
MARGIN_SHARES = (0.5, 1.0)
"""Margins, in detectable sizes."""
DOCUMENT_SPREAD, WINDOW_SPREAD = 0.05, 0.1
"""Standard deviations of a difference of nats between documents, and between windows of one."""
CHANGED, SHARED = 0.2, 0.2
"""Share of answers that differ without a true difference; share of texts whose questions all go one way."""
BUDGETS = (1, 2, 4, 8, 16)
"""In plans."""
FIXED = tuple(float(each) for each in np.arange(0.5, 16.0, 0.1).round(1))
"""Fixed numbers that are tried, in plans."""
NOISES: tuple[Callable[[np.random.Generator, int], Floats], ...] = (
    lambda rng, count: rng.normal(size=count),
    lambda rng, count: rng.standard_t(4, size=count) / math.sqrt(2),
    lambda rng, count: rng.exponential(size=count) - 1,
)
"""Differences between documents: normal, with far ones on both sides, with a tail on one."""


@dataclass(frozen=True)
class Kind:
    """Comparisons of one metric, with so many questions a text."""

    metric: str
    questions: int
    share: float = 1.0
    """Margin, in sizes that the plan detects."""

    @property
    def detected(self) -> float:
        """The difference that the plan detects."""
        return DETECTED[self.metric]

    @property
    def margin(self) -> float:
        """The difference that does not matter."""
        return self.share * self.detected

    @property
    def variance(self) -> float:
        """Between the mean differences of texts, where the true difference is 0."""
        if self.metric == "nll":
            return DOCUMENT_SPREAD**2 + (WINDOW_SPREAD**2 / self.questions if self.questions > 1 else 0.0)
        return CHANGED * (SHARED + (1 - SHARED) / self.questions) if self.questions > 1 else CHANGED

    @functools.cached_property
    def plan(self) -> int:
        """The least number of questions that detects the size."""
        return next(
            texts * self.questions
            for texts in range(8, 10_000)
            if (
                smallest_found_difference(
                    PairedDifference(
                        pairs=texts * self.questions,
                        clusters=texts,
                        error=math.sqrt(self.variance / texts),
                        balanced=self.metric == "accuracy" and self.questions == 1,
                    ),
                    self.metric,
                )
                or math.inf
            )
            <= self.detected
        )

    def budget(self, plans: int) -> int:
        """The number of questions at which a run of so many plans ends: the next round."""
        return next(end for end in round_ends(1 << 20) if end >= plans * self.plan)

    def draw(self, size: float, place: int, count: int) -> Floats:
        """[count] gains of questions, text by text; their mean is `size` detectable ones, to one side or the other."""
        rng = np.random.default_rng([self.metric == "nll", self.questions, round(2 * size), place])
        true, texts = (-1) ** place * size * self.detected, math.ceil(count / self.questions)
        if self.metric == "nll":
            # As losses do on the committed runs, a true one differs between texts by half of it.
            spread = math.hypot(DOCUMENT_SPREAD, min(abs(true) / 2, 0.25))
            found = np.repeat(true + spread * NOISES[place % len(NOISES)](rng, texts), self.questions)
            if self.questions > 1:
                found = found + WINDOW_SPREAD * rng.normal(size=len(found))
            return np.asarray(found)
        changed = max(CHANGED, abs(true))
        single, whole = (np.repeat(rng.random(texts * self.questions // each), each) for each in (1, self.questions))
        drawn = np.where(np.repeat(rng.random(texts) < SHARED, self.questions), whole, single)
        return np.asarray((drawn < (changed + true) / 2) * 1.0 - (drawn > 1 - (changed - true) / 2))


def sides(kind: Kind, gains: Floats) -> tuple[list[Outcome], list[Outcome]]:
    """Outcomes of the baseline and of the method, of gains of questions."""
    side = better_direction(kind.metric)
    base, texts = (3.0 if kind.metric == "nll" else 0.0), [f"{place // kind.questions}" for place in range(len(gains))]
    pairs = [(base, base + side * float(gain)) for gain in gains]
    made = [
        [Outcome(index=place, cluster=texts[place], amount=pair[which]) for place, pair in enumerate(pairs)]
        for which in (0, 1)
    ]
    return made[0], made[1]


def stop(kind: Kind, gains: Floats, budget: int, level: float = SIGNIFICANCE_LEVEL) -> tuple[StoppingVerdict, int]:
    """Verdict of a run in rounds, and its questions."""
    gaps = question_gaps(*sides(kind, gains[:budget]))
    bound = MAX_COUNTED_LOSS_MARGINS * kind.margin if kind.metric == "nll" else None
    for end in round_ends(budget):
        found = cluster_gains(gaps[:end], kind.metric)
        # No verdict without a bet that has won; asked first, as an interval takes eighty of them.
        won = [is_won(side * found, centre, bound, level) for side in (1, -1) for centre in (0.0, -kind.margin)]
        if won[0] or won[2] or (won[1] and won[3]):
            decision = decide_gains(found, kind.metric, kind.margin, level)
            if decision.verdict is not StoppingVerdict.OPEN:
                return decision.verdict, end
    return StoppingVerdict.OPEN, budget


def is_won(gains: Floats, centre: float, bound: float | None, level: float = SIGNIFICANCE_LEVEL) -> bool:
    """Whether the bet that gains lie above a centre has ever won what one of two sides needs."""
    return bool(log_wealth(gains, centre, bound).max() >= math.log(2 / level))


def judge_once(kind: Kind, gains: Floats) -> StoppingVerdict:
    """Verdict of a fixed number of questions, by Student's interval over texts."""
    means = gains.reshape(-1, kind.questions).mean(axis=1)
    middle, half = means.mean(), stdtrit(len(means) - 1, 0.975) * means.std(ddof=1) / math.sqrt(len(means))
    if abs(middle) > half:
        return StoppingVerdict.BETTER if middle > 0 else StoppingVerdict.WORSE
    return StoppingVerdict.EQUAL if abs(middle) + half < kind.margin else StoppingVerdict.OPEN


def is_right(verdict: StoppingVerdict, size: float, place: int, share: float) -> bool | None:
    """Whether a verdict is true; None: there is none."""
    if verdict is StoppingVerdict.OPEN:
        return None
    if verdict is StoppingVerdict.EQUAL:
        return size < share
    return size > 0 and verdict is (StoppingVerdict.WORSE if place % 2 else StoppingVerdict.BETTER)


def planted(share: float) -> Iterator[tuple[Kind, float, int, Floats]]:
    """Kind, size, number and gains of each comparison."""
    for metric in ("nll", "accuracy"):
        for questions in (1, 8):
            kind = Kind(metric, questions, share)
            for size in SIZES:
                for place in range(COMPARISONS):
                    yield kind, size, place, kind.draw(size, place, kind.budget(max(BUDGETS)))


Row = tuple[Kind, float, bool | None, int]
"""Kind, size, whether right, questions."""


@functools.cache
def stopping_rows(share: float) -> tuple[Row, ...]:
    """What runs with the largest budget say."""
    found = []
    for kind, size, place, gains in planted(share):
        verdict, asked = stop(kind, gains, kind.budget(max(BUDGETS)))
        found.append((kind, size, is_right(verdict, size, place, share), asked))
    return tuple(found)


def cut(rows: Sequence[Row], plans: int) -> list[Row]:
    """The rows of a smaller budget: what comes later is undecided."""
    budgets = [kind.budget(plans) for kind, _, _, _ in rows]
    return [
        (kind, size, right if asked <= budget else None, min(asked, budget))
        for (kind, size, right, asked), budget in zip(rows, budgets, strict=True)
    ]


@functools.cache
def drawn_once(share: float) -> list[tuple[Kind, float, int, Floats]]:
    """The planted comparisons, kept: fixed numbers are tried many times."""
    return list(planted(share))


@functools.cache
def fixed_rows(plans: float, share: float) -> tuple[Row, ...]:
    """What fixed numbers of so many plans say."""
    found = []
    for kind, size, place, gains in drawn_once(share):
        count = kind.questions * math.ceil(plans * kind.plan / kind.questions)
        found.append((kind, size, is_right(judge_once(kind, gains[:count]), size, place, share), count))
    return tuple(found)


def n_right(rows: Sequence[Row]) -> int:
    """Right verdicts."""
    return sum(right is True for _, _, right, _ in rows)


def mean_plans(rows: Sequence[Row]) -> float:
    """Mean questions, in plans of their kind."""
    return float(np.mean([asked / kind.plan for kind, _, _, asked in rows]))


def equal_power(rows: Sequence[Row], share: float) -> float:
    """The least of `FIXED`, in plans, with as many right verdicts; inf where none has."""
    return next((plans for plans in FIXED if n_right(fixed_rows(plans, share)) >= n_right(rows)), math.inf)


def print_planted(share: float) -> None:
    """Print the tables of the planted comparisons with a margin of so many detectable sizes."""
    print(f"\nMargin: {share:g} times the size that the plan detects.\n")
    print("| budget, plans | right | wrong | undecided | mean questions, plans | fixed n of equal power | share |")
    print("| ---: |" + " ---: |" * 6)
    rows, fixed = list[Row](), math.inf
    for plans in BUDGETS:
        rows = cut(stopping_rows(share), plans)
        fixed, mean = equal_power(rows, share), mean_plans(rows)
        counts = [n_right(rows), *(sum(right is one for _, _, right, _ in rows) for one in (False, None))]
        print(f"| {plans} | {' | '.join(map(str, counts))} | {mean:.2f} | {fixed:g} | {mean / fixed:.2f} |", flush=True)
    once = fixed_rows(min(fixed, FIXED[-1]), share)
    print(f"\n| size | right, wrong, undecided | mean questions, plans | fixed, {fixed:g} plans |")
    print("| ---: | ---: | ---: | ---: |")
    for size in SIZES:
        shown = [_counts([row for row in found if row[1] == size]) for found in (rows, once)]
        mean = mean_plans([row for row in rows if row[1] == size])
        print(f"| {size:g} | {shown[0]} | {mean:.2f} | {shown[1]} |", flush=True)
    print("\n| kind | plan, questions | right, wrong, undecided | mean questions |\n| --- | ---: | ---: | ---: |")
    for kind, own in group_by_key(rows, lambda row: (row[0].metric, row[0].questions)).items():
        asked = np.mean([row[3] for row in own])
        print(f"| {kind[0]}, {kind[1]} a text | {own[0][0].plan} | {_counts(own)} | {asked:.0f} |", flush=True)


def _counts(rows: Sequence[Row]) -> str:
    return ", ".join(f"{sum(right is one for _, _, right, _ in rows)}" for one in (True, False, None))


def print_families(families: int, comparisons: int = 12) -> None:
    """Print how many families of comparisons, of which none differs, have one that is called better or worse."""
    print("\n| families of 12, no true difference | with a verdict of better or worse |\n| --- | ---: |")
    for metric in ("accuracy", "nll"):
        kind, wrong = Kind(metric, 1), 0
        for family in range(families):
            drawn = (kind.draw(0.0, 1000 + comparisons * family + one, kind.budget(4)) for one in range(comparisons))
            told = (stop(kind, each, kind.budget(4), SIGNIFICANCE_LEVEL / comparisons)[0] for each in drawn)
            wrong += any(each in (StoppingVerdict.BETTER, StoppingVerdict.WORSE) for each in told)
        print(f"| {metric}, 1 a text | {wrong} of {families} |", flush=True)


def print_board() -> None:
    """Print both verdicts on each comparison of the committed board with `none`, and what each costs."""
    found = [
        (metric, pair, each, [cells[name, pair[2]].outcomes for name in pair[:2]])
        for metric in smollm2_page.SCORES
        for cells in [smollm2_page.measured(metric)]
        for pair, each in smollm2_page.comparisons(cells, metric).items()
        if pair[0] == "none"
    ]
    print("\n| metric | length | method | texts | fixed | stopping | questions | interval, whenever it stops |")
    print("| --- | ---: | --- | ---: | --- | --- | ---: | --- |")
    asked = 0
    for metric, (_, method, length), each, (before, after) in found:
        told, end = stop_board(before, after, metric, SIGNIFICANCE_LEVEL / len(found))
        side, scale, digits = better_direction(metric), *((1.0, "+.3f") if metric == "nll" else (100.0, "+.1f"))
        ends = ", ".join(format(scale * side * one, digits) for one in (told.low, told.high)[::side])
        better = side * (each.difference or 0.0) > 0
        star = (
            (StoppingVerdict.BETTER if better else StoppingVerdict.WORSE)
            if smollm2_page.told(each)
            else "not told apart"
        )
        print(
            f"| {smollm2_page.WORDS[metric]} | {length:,} | {method} | {each.clusters} | {star} | {told.verdict} | "
            f"{end} of {len(before)} | [{ends}] |"
        )
        asked += end
    print(f"\n{len(found)} comparisons; questions of the methods: {asked} of {sum(len(row[3][0]) for row in found)}.")


def stop_board(before: Sequence[Outcome], after: Sequence[Outcome], metric: str, level: float) -> tuple[Decision, int]:
    """The decision of rounds on the board's questions within the margin of `check`, and how many it takes."""
    margin, found, end = StoppingRule().margin(metric, 0), decide_gains(np.zeros(0), metric, 1.0, level), 0
    for end in round_ends(len(before)):
        found = decide(before[:end], after[:end], metric, margin, level)
        if found.verdict is not StoppingVerdict.OPEN:
            break
    return found, end


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--families", type=int, default=40)
    asked = parser.parse_args()
    for share in MARGIN_SHARES:
        print_planted(share)
    print_families(asked.families)
    print_board()


if __name__ == "__main__":
    main()
