"""The search: rounds of successive halving, then finalists on fresh questions."""

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from tqdm import tqdm

from lexbench.core.console import Lines, must_hide_bar
from lexbench.core.record import Refused
from lexbench.core.task import Choose, ClassifyTokens, Generate
from lexbench.core.text import count_with_noun, join_first_few
from lexbench.methods.composition import method_config
from lexbench.parts.search.tune.bench import CandidateBench, TaskAtLength, TimeBudgetSpent
from lexbench.parts.search.tune.halving import halve_entrants, rung_counts
from lexbench.parts.search.tune.ranking import CandidateOutcomes, Finalist, price_of_candidate, rank_finalists
from lexbench.parts.search.tune.settings import TuneSettings
from lexbench.parts.search.tune.space import Candidate, CandidateDraws
from lexbench.report.notes import note_text
from lexbench.runner.job import Job
from lexbench.stats import floors
from lexbench.stats.pairs import PairedDifference, outcomes_of_samples, paired_difference

N_FINALISTS = 4
"""Number of finalists, besides `none` and the best candidate that can be exported."""
MIN_NEEDLES_FOUND_SHARE, N_NEEDLES_TRIED = 0.5, 8
"""Needles count if the model finds this share (above chance) of so many of them within its trained length."""
MAX_FRESH_MULTIPLE = 4
"""Fresh questions at most, in units of `n`."""
MAX_SHOWN_REASONS = 3
"""Most reasons in the message that no candidate can be measured."""
MAX_DUPLICATE_DRAWS = 20
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
class TriedCandidate:
    """A candidate and its results in the search."""

    candidate: Candidate
    curve: list[tuple[int, float]] = field(default_factory=list)
    """(cumulative questions, loss) after each rung."""
    price: PairedDifference | None = None
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

    def costs_more_than(self, price: float) -> bool:
        """Whether its price is above this one."""
        return bool(self.price and (self.price.difference or 0.0) > price)


class TuneSearch:
    """Rounds of successive halving: first the methods with their defaults, then draws near the best ones."""

    def __init__(
        self, bench: CandidateBench, job: Job, settings: TuneSettings, length: int, ended: bool = False
    ) -> None:
        self.ended = ended
        """Whether a tune with this budget has ended in the folder, so that nothing more is measured."""
        self.bench, self.settings, self.length, self.model = bench, settings, length, job.model
        self.none = Candidate.of(method_config("none"), job.model, length)
        text, *self._choices = job.tasks
        self.text = TaskAtLength(text, length, "nll")
        self.inside = TaskAtLength(text, job.model.trained_length, "nll")
        self.needles: TaskAtLength | None = None
        self.tried = [TriedCandidate(self.none)]
        self.rounds = 0
        self._entered = 0
        self._counts = rung_counts(min(settings.first, settings.n), settings.n, settings.eta)
        self._known = {json.dumps({}): "none"}
        """Labels of candidates by their Attention, to find duplicates."""
        self._bar = tqdm(disable=must_hide_bar(), dynamic_ncols=True, bar_format="{elapsed} {desc}")

    def why_silent(self) -> str | None:
        """Sentence that the model has not learned the text's language, by few questions; None: it has, or time is over.

        Asked before the search, which would spend its whole budget on such a text.
        """
        said = None
        self._bar.set_description_str("does the model speak the text?")
        try:
            for count in self._counts:
                self.bench.outcomes(self.none, self.inside, count)
                if (said := self.unspoken(self.bench)) is None:
                    return None
        except TimeBudgetSpent:
            return None
        self._bar.close()
        return said

    def unspoken(self, *benches: CandidateBench) -> str | None:
        """Sentence that the model has not learned the text's language, by all its samples at the trained length."""
        samples = [each for bench in benches for each in bench.samples(self.none, self.inside)]
        found, levels = outcomes_of_samples(samples, "nll"), floors.floors_of_samples(samples, "nll")
        unspoken = floors.language_not_learned_by_outcomes(
            self.model.name, self.none.key, self.inside.length, found, levels
        )
        return note_text(unspoken) if unspoken else None

    def run(self, configs: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]) -> None:
        """Search until the budget is spent or nothing new can be drawn."""
        for part in (self.text, self.inside):
            self.bench.questions(part)
        draws = CandidateDraws(configs, self.settings.seed)
        self._lines = Lines(
            f"tune: {self.model.name} at {self.length} tokens, {count_with_noun(len(configs), 'method')}, "
            f"budget {self.settings.budget}, into {self.settings.out}"
        )
        try:
            self.needles = self._choose_needles()
            entrants = self._default_entrants(configs)
            while entrants := self._fill_round(entrants, draws):
                self.rounds += 1
                if not self.tried[0].curve:
                    self._measure(self.tried[0], self._counts[0])  # `none`, the baseline
                halve_entrants(
                    [tried for tried, _ in entrants],
                    self._counts,
                    self.settings.eta,
                    self._measure,
                    lambda tried: bool(tried.candidate.export_targets(self.model, self.length)),
                )
                self._learn(entrants, draws)
                entrants = []
                self._lines.show(f"round {self.rounds}, {self._state_sentence()}", due=True)
        except TimeBudgetSpent:
            if not any(tried.price for tried in self.tried[1:]):
                raise Refused(self._why_nothing_is_measured()) from None
        finally:
            self._bar.close()
        if not any(tried.price for tried in self.tried[1:]):
            reasons = [f"{tried.candidate.label} ({tried.out})" for tried in self.tried[1:]]
            said = join_first_few(reasons, MAX_SHOWN_REASONS, "; ") if reasons else "no method but none was given"
            raise Refused(f"tune can measure no candidate: {said}")

    def _why_nothing_is_measured(self) -> str:
        if self.ended:
            return (
                f"{self.settings.out} holds a tune that has ended, but no sample of its candidates that this version "
                "of lexbench and its tasks would measure: the files stay, give another out="
            )
        return "tune's budget ended before a candidate was measured: raise budget"

    def _choose_needles(self) -> TaskAtLength | None:
        """The first needle task that the model can do within its trained length."""
        if self.settings.worth == 0:
            return None
        for task in self._choices:
            inside, beyond = (TaskAtLength(task, length, "accuracy") for length in (self.inside.length, self.length))
            try:
                found = self.bench.outcomes(self.none, inside, N_NEEDLES_TRIED)
                self.bench.questions(beyond)
            except Refused:
                continue
            questions = [
                each
                for each in self.bench.questions(inside)[:N_NEEDLES_TRIED]
                if isinstance(each, Generate | Choose | ClassifyTokens)
            ]
            share = sum(each.amount or 0.0 for each in found) / len(found)
            guessed = sum(each.chance or 0.0 for each in questions) / len(found)
            # Above chance, as a share of what is left above chance.
            if share - guessed >= MIN_NEEDLES_FOUND_SHARE * (1 - guessed):
                return beyond
        return None

    def _default_entrants(self, configs: Sequence[tuple[Mapping[str, Any], Any]]) -> list[tuple[TriedCandidate, Any]]:
        """Methods with their defaults and their place among the configs, as many as the budget allows."""
        entered = [
            (tried, place) for place, (config, _) in enumerate(configs) if (tried := self._enter_candidate(config))
        ]
        most = self.settings.candidates or len(entered)
        for tried, _ in entered[most:]:
            tried.leave_out(LeftOut.BUDGET, "not measured: the budget allows no more candidates")
        return entered[:most]

    def _fill_round(
        self, entrants: list[tuple[TriedCandidate, Any]], draws: CandidateDraws
    ) -> list[tuple[TriedCandidate, Any]]:
        """Fill a round with draws until it holds enough entrants for one of them to be measured on the last rung."""
        most = self.settings.candidates
        # One of eta^(rungs - 1) entrants reaches the last rung.
        size = self.settings.eta ** (len(self._counts) - 1)
        size = size if most is None else min(size, most - self._entered)
        misses = 0
        while len(entrants) < size and misses < MAX_DUPLICATE_DRAWS and (drawn := draws.draw_config()):
            config, trial = drawn
            if tried := self._enter_candidate(config):
                entrants.append((tried, trial))
                misses = 0
            else:
                # A duplicate says nothing; told as dropped, so that the estimator moves on.
                draws.report_draw(trial, (), False)
                misses += 1
        self._entered += len(entrants)
        return entrants

    def _enter_candidate(self, config: Mapping[str, Any]) -> TriedCandidate | None:
        """Add a candidate; None if it cannot be measured or is a duplicate."""
        candidate = Candidate.of(config, self.model, self.length)
        tried = TriedCandidate(candidate)
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
                pasted, why = candidate.export_text(self.settings.to, self.model, self.length)
                if pasted is None:
                    tried.leave_out(LeftOut.EXPORT, f"cannot be deployed: {why}")
        self.tried.append(tried)
        return None if tried.out else tried

    def _measure(self, tried: TriedCandidate, count: int) -> tuple[bool, float] | None:
        """Sort key of a candidate after so many questions: whether its price is too high, then loss; None: dropped."""
        doing = f"round {self.rounds}, {count} questions: {tried.candidate.label}"
        self._bar.set_description_str(doing)
        self._lines.show(f"{doing}; {self._state_sentence()}", due=False)
        none = CandidateOutcomes(text=(), needles=(), inside=self.bench.outcomes(self.none, self.inside, count))
        if any(outcome.failed for outcome in none.inside):
            raise Refused(f"{self.model.name} has no finite likelihood inside its trained length: use another dtype")
        price = self.settings.price
        try:
            inside = self.bench.outcomes(tried.candidate, self.inside, count)
            paid = price_of_candidate(none, CandidateOutcomes(text=(), needles=(), inside=inside))
            dear = paid.difference is None or paid.difference > price
            if dear and paid.interval is not None and paid.interval.low > price:
                tried.price = paid
                tried.leave_out(LeftOut.PRICE, "too dear inside the trained length")
                return None
            found = self.measure_candidate(self.bench, tried.candidate, count)
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

    def measure_candidate(self, bench: CandidateBench, candidate: Candidate, count: int) -> CandidateOutcomes:
        """Outcomes for loss and price."""
        return CandidateOutcomes(
            inside=bench.outcomes(candidate, self.inside, count),
            text=bench.outcomes(candidate, self.text, count),
            needles=bench.outcomes(candidate, self.needles, count) if self.needles else (),
        )

    def _learn(self, entrants: Sequence[tuple[TriedCandidate, Any]], draws: CandidateDraws) -> None:
        for tried, drawn in entrants:
            curve = () if tried.out else tried.curve
            through = tried.asked == self._counts[-1]
            if isinstance(drawn, int):
                draws.report_default(drawn, curve, through)
            else:
                draws.report_draw(drawn, curve, through)

    def ranked_candidates(self) -> list[TriedCandidate]:
        """Candidates by rung reached, then loss; dropped ones last."""

        def standing(tried: TriedCandidate) -> tuple[bool, int, bool, float]:
            loss = tried.curve[-1][1] if tried.curve else math.inf
            return tried.out is not None, -tried.asked, tried.costs_more_than(self.settings.price), loss

        return sorted(self.tried, key=standing)

    def _state_sentence(self) -> str:
        """State the number of measured candidates, and the best so far."""
        measured = [tried for tried in self.ranked_candidates() if tried.curve and tried.candidate is not self.none]
        said = f"{count_with_noun(len(measured), 'candidate')} measured"
        if not measured or measured[0].out:
            return said
        return f"{said}, best {measured[0].candidate.label} with loss {measured[0].curve[-1][1]:.4f}"

    def planned_questions(self) -> int:
        """Fresh questions that tell the best two candidates apart in four of five cases, if they differ as here.

        n = (1.96 + 0.84)^2 (error / difference)^2 times the questions so far; at least `n`, at most 4 times as many.
        """
        best, least = self._choose_finalists()[1:3], self.settings.n
        counts = [tried.asked for tried in self.tried if tried.candidate in best]
        if len(best) < 2:
            return least
        count = min(counts)
        one, other = (self.measure_candidate(self.bench, each, count).losses(self.settings.worth) for each in best)
        apart = paired_difference(one, other, "nll")
        if not apart.difference or not apart.error:
            return least
        needed = math.ceil(2.8**2 * (apart.error / apart.difference) ** 2 * count)
        return max(least, min(needed, MAX_FRESH_MULTIPLE * least))

    def rank_on_fresh_questions(self, bench: CandidateBench, questions: int) -> tuple[list[Finalist], int]:
        """Rows of the finalists on fresh questions, and the number of questions; each one runs for all finalists."""
        left = self._choose_finalists()
        settings, fresh = self.settings, 0
        try:
            for count in range(1, questions + 1):
                left = [candidate for candidate in left if self._can_answer(bench, candidate, count)]
                fresh = count
        except TimeBudgetSpent:
            pass
        if not fresh or self.none not in left:
            return [], 0
        found = [(candidate, self.measure_candidate(bench, candidate, fresh)) for candidate in left]
        finite = [(candidate, measured) for candidate, measured in found if not measured.failed]
        if not finite:
            raise Refused("no finalist has finite likelihoods of all fresh texts: use another dtype")
        return rank_finalists(finite, found[0][1], settings.price, settings.worth), fresh

    def _choose_finalists(self) -> list[Candidate]:
        """`none`, the best candidates, and the best one that can be exported."""
        standing = [tried.candidate for tried in self.ranked_candidates() if tried.curve and not tried.out]
        standing = [candidate for candidate in standing if candidate is not self.none]
        able = (candidate for candidate in standing if candidate.export_targets(self.model, self.length))
        return list(dict.fromkeys([self.none, *standing[:N_FINALISTS], *itertools.islice(able, 1)]))

    def _can_answer(self, bench: CandidateBench, candidate: Candidate, count: int) -> bool:
        """Whether the backend answers the first `count` fresh questions."""
        try:
            self.measure_candidate(bench, candidate, count)
        except Refused:
            return False
        return True
