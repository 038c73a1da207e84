"""The search: rounds of successive halving, then finalists on fresh questions."""

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from tqdm import tqdm

from lexbench.core.console import Lines, without_bar
from lexbench.core.record import Refused
from lexbench.core.task import Choose, Mark, Write
from lexbench.methods.composition import method_config
from lexbench.parts.search.tune.bench import Bench, Part, TimeUp
from lexbench.parts.search.tune.halving import halve, rungs
from lexbench.parts.search.tune.ranking import Finalist, Measured, price_of, rank
from lexbench.parts.search.tune.settings import Settings
from lexbench.parts.search.tune.space import Candidate, Draws
from lexbench.runner.job import Job
from lexbench.stats import floors
from lexbench.stats.pairs import Paired, outcomes, paired
from lexbench.stats.wording import several, some

FINALISTS = 4
"""Number of finalists, besides `none` and the best candidate that can be exported."""
ABLE, TRIED = 0.5, 8
"""Needles count if the model finds this share (above chance) of so many of them within its trained length."""
MORE = 4
"""Fresh questions at most, in units of `n`."""
SHOWN = 3
"""Reasons that are said where no candidate can be measured."""
DRAWS = 20
"""Draws of old candidates in a row after which the space counts as exhausted."""


class LeftOut(Enum):
    """Reasons for which a candidate is not measured to the end, in the words of a count before them."""

    PRICE = "cost more than the price"
    EXPORT = "cannot be exported"
    SAME = "equal another candidate"
    UNABLE = "cannot be set or run on this model"
    FAILED = "have no finite likelihood"
    BUDGET = "were not reached within the budget"


@dataclass(eq=False)
class Tried:
    """A candidate and its results in the search."""

    candidate: Candidate
    curve: list[tuple[int, float]] = field(default_factory=list)
    """(cumulative questions, loss) after each rung."""
    price: Paired | None = None
    """Price inside the trained length, after the last rung."""
    out: str | None = None
    """Why it was dropped or never measured."""
    left_out: LeftOut | None = None
    """The kind of that reason."""

    def leave_out(self, kind: LeftOut, why: str) -> None:
        """Drop the candidate."""
        self.left_out, self.out = kind, why

    @property
    def asked(self) -> int:
        """Cumulative questions of each kind at its last finished rung."""
        return self.curve[-1][0] if self.curve else 0

    def above(self, price: float) -> bool:
        """Whether its price is above this one."""
        return bool(self.price and (self.price.difference or 0.0) > price)


class Search:
    """Rounds of successive halving: first the methods with their defaults, then draws near the best ones."""

    def __init__(self, bench: Bench, job: Job, settings: Settings, length: int) -> None:
        self.bench, self.settings, self.length, self.model = bench, settings, length, job.model
        self.none = Candidate.of(method_config("none"), job.model, length)
        text, *self._choices = job.tasks
        self.text = Part(text, length, "nll")
        self.inside = Part(text, job.model.trained_length, "nll")
        self.needles: Part | None = None
        self.tried = [Tried(self.none)]
        self.rounds = 0
        self._entered = 0
        self._counts = rungs(min(settings.first, settings.n), settings.n, settings.eta)
        self._known = {json.dumps({}): "none"}
        """Labels of candidates by their Attention, to find duplicates."""
        self._bar = tqdm(disable=without_bar(), dynamic_ncols=True, bar_format="{elapsed} {desc}")

    def why_silent(self) -> str | None:
        """Say that the model does not speak the text, by as few questions as tell it does; None: it speaks, or no time.

        Asked before the search, which would spend its whole budget on such a text.
        """
        said = None
        self._bar.set_description_str("does the model speak the text?")
        try:
            for count in self._counts:
                self.bench.outcomes(self.none, self.inside, count)
                if (said := self.unspoken(self.bench)) is None:
                    return None
        except TimeUp:
            return None
        self._bar.close()
        return said

    def unspoken(self, *benches: Bench) -> str | None:
        """Say that the model does not speak the text inside its trained length, by all samples of `none` there."""
        samples = [each for bench in benches for each in bench.samples(self.none, self.inside)]
        found, levels = outcomes(samples, "nll"), floors.of_samples(samples, "nll")
        return floors.unspoken_outcomes(self.model.name, self.none.key, self.inside.length, found, levels)

    def run(self, configs: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]) -> None:
        """Search until the budget is spent or nothing new can be drawn."""
        for part in (self.text, self.inside):
            self.bench.questions(part)
        draws = Draws(configs, self.settings.seed)
        self._lines = Lines(
            f"tune: {self.model.name} at {self.length} tokens, {several(len(configs), 'method')}, "
            f"budget {self.settings.budget}, into {self.settings.out}"
        )
        try:
            self.needles = self._needles()
            entrants = self._defaults(configs)
            while entrants := self._filled(entrants, draws):
                self.rounds += 1
                if not self.tried[0].curve:
                    self._measure(self.tried[0], self._counts[0])  # `none`, the baseline
                halve(
                    [tried for tried, _ in entrants],
                    self._counts,
                    self.settings.eta,
                    self._measure,
                    lambda tried: bool(tried.candidate.targets(self.model, self.length)),
                )
                self._learn(entrants, draws)
                entrants = []
                self._lines.show(f"round {self.rounds}, {self._standing()}", due=True)
        except TimeUp:
            if not any(tried.price for tried in self.tried[1:]):
                raise Refused("tune's budget ended before a candidate was measured: raise budget") from None
        finally:
            self._bar.close()
        if not any(tried.price for tried in self.tried[1:]):
            reasons = [f"{tried.candidate.label} ({tried.out})" for tried in self.tried[1:]]
            said = some(reasons, SHOWN, "; ") if reasons else "no method but none was given"
            raise Refused(f"tune can measure no candidate: {said}")

    def _needles(self) -> Part | None:
        """The first needle task that the model can do within its trained length."""
        if self.settings.worth == 0:
            return None
        for task in self._choices:
            inside, beyond = (Part(task, length, "accuracy") for length in (self.inside.length, self.length))
            try:
                found = self.bench.outcomes(self.none, inside, TRIED)
                self.bench.questions(beyond)
            except Refused:
                continue
            questions = [
                each for each in self.bench.questions(inside)[:TRIED] if isinstance(each, Write | Choose | Mark)
            ]
            share = sum(each.amount or 0.0 for each in found) / len(found)
            guessed = sum(each.chance or 0.0 for each in questions) / len(found)
            # Above chance, as a share of what is left above chance.
            if share - guessed >= ABLE * (1 - guessed):
                return beyond
        return None

    def _defaults(self, configs: Sequence[tuple[Mapping[str, Any], Any]]) -> list[tuple[Tried, Any]]:
        """Methods with their defaults and their place among the configs, as many as the budget allows."""
        entered = [(tried, place) for place, (config, _) in enumerate(configs) if (tried := self._enter(config))]
        most = self.settings.candidates or len(entered)
        for tried, _ in entered[most:]:
            tried.leave_out(LeftOut.BUDGET, "not measured: the budget allows no more candidates")
        return entered[:most]

    def _filled(self, entrants: list[tuple[Tried, Any]], draws: Draws) -> list[tuple[Tried, Any]]:
        """Fill a round with draws, until it is large enough that one entrant reaches the last rung."""
        most = self.settings.candidates
        # One of eta^(rungs - 1) entrants reaches the last rung.
        size = self.settings.eta ** (len(self._counts) - 1)
        size = size if most is None else min(size, most - self._entered)
        misses = 0
        while len(entrants) < size and misses < DRAWS and (drawn := draws.draw()):
            config, trial = drawn
            if tried := self._enter(config):
                entrants.append((tried, trial))
                misses = 0
            else:
                # A duplicate says nothing; told as dropped, so that the estimator moves on.
                draws.learn(trial, (), False)
                misses += 1
        self._entered += len(entrants)
        return entrants

    def _enter(self, config: Mapping[str, Any]) -> Tried | None:
        """Add a candidate; None if it cannot be measured or is a duplicate."""
        candidate = Candidate.of(config, self.model, self.length)
        tried = Tried(candidate)
        if candidate.reason is not None:
            tried.leave_out(LeftOut.UNABLE, candidate.reason)
        if candidate.attention is not None:
            # Parameters may round to the same Attention, or do nothing at this length.
            key = json.dumps(candidate.attention.as_data(), sort_keys=True)
            twin = self._known.get(key)
            self._known.setdefault(key, candidate.label)
            if twin == candidate.label:
                return None
            if twin:
                tried.leave_out(LeftOut.SAME, f"same as {twin}")
            elif self.settings.to is not None:
                pasted, why = candidate.exported(self.settings.to, self.model, self.length)
                if pasted is None:
                    tried.leave_out(LeftOut.EXPORT, f"cannot be deployed: {why}")
        self.tried.append(tried)
        return None if tried.out else tried

    def _measure(self, tried: Tried, count: int) -> tuple[bool, float] | None:
        """Sort key of a candidate after so many questions: whether its price is too high, then loss; None: dropped."""
        doing = f"round {self.rounds}, {count} questions: {tried.candidate.label}"
        self._bar.set_description_str(doing)
        self._lines.show(f"{doing}; {self._standing()}", due=False)
        none = Measured(text=(), needles=(), inside=self.bench.outcomes(self.none, self.inside, count))
        if any(outcome.failed for outcome in none.inside):
            raise Refused(f"{self.model.name} has no finite likelihood inside its trained length: use another dtype")
        price = self.settings.price
        try:
            inside = self.bench.outcomes(tried.candidate, self.inside, count)
            paid = price_of(none, Measured(text=(), needles=(), inside=inside))
            dear = paid.difference is None or paid.difference > price
            if dear and paid.interval is not None and paid.interval.low > price:
                tried.price = paid
                tried.leave_out(LeftOut.PRICE, "too dear inside the trained length")
                return None
            found = self.measured(self.bench, tried.candidate, count)
        except Refused as refusal:
            tried.leave_out(LeftOut.UNABLE, f"refused: {refusal.reason}")
            return None
        if found.failed:
            texts = len(found.text) + len(found.inside)
            tried.leave_out(LeftOut.FAILED, f"{found.failed} of {texts} texts have no finite likelihood")
            return None
        tried.price = paid
        tried.curve.append((count, found.loss(self.settings.worth)))
        return dear, tried.curve[-1][1]

    def measured(self, bench: Bench, candidate: Candidate, count: int) -> Measured:
        """Outcomes for loss and price."""
        return Measured(
            inside=bench.outcomes(candidate, self.inside, count),
            text=bench.outcomes(candidate, self.text, count),
            needles=bench.outcomes(candidate, self.needles, count) if self.needles else (),
        )

    def _learn(self, entrants: Sequence[tuple[Tried, Any]], draws: Draws) -> None:
        for tried, drawn in entrants:
            curve = () if tried.out else tried.curve
            through = tried.asked == self._counts[-1]
            if isinstance(drawn, int):
                draws.learn_default(drawn, curve, through)
            else:
                draws.learn(drawn, curve, through)

    def ranked(self) -> list[Tried]:
        """Candidates by rung reached, then loss; dropped ones last."""

        def standing(tried: Tried) -> tuple[bool, int, bool, float]:
            loss = tried.curve[-1][1] if tried.curve else math.inf
            return tried.out is not None, -tried.asked, tried.above(self.settings.price), loss

        return sorted(self.tried, key=standing)

    def _standing(self) -> str:
        """State the number of measured candidates, and the best so far."""
        measured = [tried for tried in self.ranked() if tried.curve and tried.candidate is not self.none]
        said = f"{several(len(measured), 'candidate')} measured"
        if not measured or measured[0].out:
            return said
        return f"{said}, best {measured[0].candidate.label} with loss {measured[0].curve[-1][1]:.4f}"

    def planned(self) -> int:
        """Fresh questions that tell the best two candidates apart in four of five cases, if they differ as here.

        n = (1.96 + 0.84)^2 (error / difference)^2 times the questions so far; at least `n`, at most 4 times as many.
        """
        best, least = self._finalists()[1:3], self.settings.n
        counts = [tried.asked for tried in self.tried if tried.candidate in best]
        if len(best) < 2:
            return least
        count = min(counts)
        one, other = (self.measured(self.bench, each, count).losses(self.settings.worth) for each in best)
        apart = paired(one, other, "nll")
        if not apart.difference or not apart.error:
            return least
        needed = math.ceil(2.8**2 * (apart.error / apart.difference) ** 2 * count)
        return max(least, min(needed, MORE * least))

    def final(self, bench: Bench, questions: int) -> tuple[list[Finalist], int]:
        """Rows of the finalists on fresh questions, and the number of questions; each one runs for all finalists."""
        left = self._finalists()
        settings, fresh = self.settings, 0
        try:
            for count in range(1, questions + 1):
                left = [candidate for candidate in left if self._holds(bench, candidate, count)]
                fresh = count
        except TimeUp:
            pass
        if not fresh or self.none not in left:
            return [], 0
        found = [(candidate, self.measured(bench, candidate, fresh)) for candidate in left]
        finite = [(candidate, measured) for candidate, measured in found if not measured.failed]
        if not finite:
            raise Refused("no finalist has finite likelihoods of all fresh texts: use another dtype")
        return rank(finite, found[0][1], settings.price, settings.worth), fresh

    def _finalists(self) -> list[Candidate]:
        """`none`, the best candidates, and the best one that can be exported."""
        standing = [tried.candidate for tried in self.ranked() if tried.curve and not tried.out]
        standing = [candidate for candidate in standing if candidate is not self.none]
        able = (candidate for candidate in standing if candidate.targets(self.model, self.length))
        return list(dict.fromkeys([self.none, *standing[:FINALISTS], *itertools.islice(able, 1)]))

    def _holds(self, bench: Bench, candidate: Candidate, count: int) -> bool:
        """Whether the backend answers the first `count` fresh questions."""
        try:
            self.measured(bench, candidate, count)
        except Refused:
            return False
        return True
