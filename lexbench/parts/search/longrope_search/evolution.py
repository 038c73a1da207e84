"""Evolutionary search of rotary rescale factors: the search space, the search, and a journal to resume it."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from lexbench.core.attention import Floats
from lexbench.core.console import Lines, must_hide_bar
from lexbench.core.errors import ConfigError
from lexbench.core.record import Refused
from lexbench.core.values import has_type
from lexbench.parts.search.journal import resume_journal

MAX_FACTOR_OF_RULE = {"longrope": 1.25, "longrope2": 2.0}
"""Highest factor by rule, in multiples of s."""
MAX_BREEDING_DRAWS = 64
"""Draws before a crossover is replaced by a mutation, and before a mutation may repeat an old candidate."""


@dataclass(frozen=True)
class FactorCandidate:
    """Factors of all pairs, and a number of first tokens: a point of the search space."""

    factors: tuple[float, ...]
    """[pairs] divisors of the frequencies, non-decreasing."""
    start_tokens: int = 0
    """Number of first tokens with the model's own frequencies."""


@dataclass(frozen=True, kw_only=True)
class EvolutionSettings:
    """Settings of a search (LongRoPE, arXiv 2402.13753, section 3.2; LongRoPE2, arXiv 2502.20082, section 3).

    Args:
        rule: longrope (every pair free in [1, 1.25 s]), or longrope2 (pairs from the critical one on in [s, 2 s],
            pairs before it by NTK: factor of the critical pair c to the power p / c).
        critical_pair: c of longrope2, counted from 0; None: the first pair with a period above the trained length.
        ceiling: highest factor, in multiples of s; None: the rule's.
        step: grid of factors for mutations.
        start_tokens: choices for the number of first tokens with the model's own frequencies; LongRoPE uses
            0, 1, 2, 4, 8, 12, 16, 20, 24, 28, 32, 64, 128, 256, its released search only 0.
        population: size of the first generation: the seeds and mutations of them.
        iterations: generations after the first; a larger number continues an old journal.
        parents: best candidates kept in each generation.
        mutations: children of one parent per iteration.
        crossovers: children of two parents per iteration.
        probability: that a factor is mutated, or comes from the second parent.
        seed: of all draws, and of the texts.
    """

    rule: str = "longrope"
    critical_pair: int | None = None
    ceiling: float | None = None
    step: float = 0.01
    start_tokens: tuple[int, ...] = (0,)
    population: int = 64
    iterations: int = 40
    parents: int = 32
    mutations: int = 16
    crossovers: int = 16
    probability: float = 0.3
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (("population", 2), ("iterations", 0), ("parents", 2), ("mutations", 0), ("crossovers", 0)):
            if (value := getattr(self, name)) < least:
                usual = type(self).__dataclass_fields__[name].default
                raise ConfigError(f"search's {name} must be at least {least}, got {value}: e.g. {name}={usual}")
        if self.parents > self.population:
            raise ConfigError(
                f"search's parents must be at most the population {self.population}, got {self.parents}: lower parents"
            )
        if self.rule not in MAX_FACTOR_OF_RULE:
            raise ConfigError(
                f"search's rule must be one of {', '.join(MAX_FACTOR_OF_RULE)}, got {self.rule}: e.g. rule=longrope"
            )
        if self.critical_pair is not None and self.rule != "longrope2":
            raise ConfigError(f"search's critical_pair needs rule=longrope2, got rule={self.rule}: leave it out")
        if self.ceiling is not None and not 1 <= self.ceiling < math.inf:
            raise ConfigError(f"search's ceiling must be finite and at least 1, got {self.ceiling}: multiples of s")
        if not 0 < self.step <= 1:
            raise ConfigError(f"search's step must be above 0 and at most 1, got {self.step}: the paper uses 0.01")
        if not 0 < self.probability <= 1:
            raise ConfigError(
                f"search's probability must be above 0 and at most 1, got {self.probability}: e.g. probability=0.3"
            )
        given: Any = self.start_tokens
        listed = isinstance(given, Sequence) and all(isinstance(number, int) and number >= 0 for number in given)
        if not listed or not given or len(set(given)) < len(given):
            shown = [*given] if isinstance(given, tuple) else given
            raise ConfigError(
                f"search's start_tokens must be different whole numbers of at least 0, got {shown}: "
                "e.g. start_tokens=[0,4]"
            )

    def space(self, pairs: int, factor: float, critical_pair: int) -> "FactorSpace":
        """The search space of a model, extended by `factor`; `critical_pair` is the theoretical default."""
        highest = factor * (MAX_FACTOR_OF_RULE[self.rule] if self.ceiling is None else self.ceiling)
        if self.rule == "longrope":
            return FactorSpace(pairs, 1.0, highest, 0, self.step, self.start_tokens)
        first = critical_pair if self.critical_pair is None else self.critical_pair
        if not 1 <= first < pairs:
            raise ConfigError(
                f"search's critical_pair must be from 1 to {pairs - 1}, of {pairs} pairs, got {first}: or rule=longrope"
            )
        return FactorSpace(pairs, factor, highest, first, self.step, self.start_tokens)


@dataclass(frozen=True)
class FactorSpace:
    """Non-decreasing factors; the first free pair determines the pairs before it."""

    pairs: int
    low: float
    high: float
    """Bounds of the free pairs."""
    first: int
    """The first free pair."""
    step: float
    start_tokens: tuple[int, ...]

    def nearest_candidate(self, factors: Floats) -> FactorCandidate:
        """The nearest candidate to any factors, with the first choice of start tokens."""
        free = np.maximum.accumulate(np.clip(factors[self.first :], self.low, self.high))
        return self._complete_candidate(free, self.start_tokens[0])

    def mutate_factors(self, parent: FactorCandidate, probability: float, rng: np.random.Generator) -> FactorCandidate:
        """A mutation: redraws some factors in turn, each from the grid between its neighbours."""
        free = np.array(parent.factors[self.first :])
        for place in np.flatnonzero(rng.random(len(free)) < probability):
            left = free[place - 1] if place else self.low
            right = free[place + 1] if place + 1 < len(free) else self.high
            # From the grid between both neighbours, so that factors never decrease.
            steps = math.ceil(left / self.step), math.floor(right / self.step)
            if steps[0] <= steps[1]:
                drawn = int(rng.integers(steps[0], steps[1] + 1))
                # Rounded: multiples of 0.01 are not exact, and equal candidates would be measured twice.
                free[place] = min(max(round(drawn * self.step, 12), left), right)
        start = parent.start_tokens
        if len(self.start_tokens) > 1 and rng.random() < probability:
            start = int(rng.choice(self.start_tokens))
        return self._complete_candidate(free, start)

    def cross_factors(
        self, one: FactorCandidate, two: FactorCandidate, probability: float, rng: np.random.Generator
    ) -> FactorCandidate | None:
        """A crossover: the first parent with some factors of the second; None if the factors would decrease."""
        ours, theirs = (np.array(parent.factors[self.first :]) for parent in (one, two))
        free = np.where(rng.random(len(ours)) < probability, theirs, ours)
        start = one.start_tokens
        if len(self.start_tokens) > 1 and rng.random() < probability:
            start = two.start_tokens
        return self._complete_candidate(free, start) if (np.diff(free) >= 0).all() else None

    def _complete_candidate(self, free: Floats, start_tokens: int) -> FactorCandidate:
        # LongRoPE2, section 3: pairs before the critical one c turn by NTK, lambda_p = lambda_c ^ (p / c).
        fixed = free[0] ** (np.arange(self.first) / max(self.first, 1))
        return FactorCandidate(tuple(np.concatenate([fixed, free]).tolist()), start_tokens)


class EvaluationJournal:
    """File of all evaluations: a header line with everything they depend on, then a JSON line for each."""

    def __init__(self, file: Path, header: Mapping[str, Any]) -> None:
        """Open or resume a file; ConfigError, with the changes, if the header differs."""
        self.file = file
        self.known: dict[FactorCandidate, float] = dict(map(self._read_evaluation, resume_journal(file, header)))

    def add(self, candidate: FactorCandidate, nll: float) -> None:
        """Store one evaluation."""
        row = {"factors": candidate.factors, "start_tokens": candidate.start_tokens, "nll": nll}
        with self.file.open("ab") as stream:
            stream.write(json.dumps(row).encode() + b"\n")
        self.known[candidate] = nll

    def _read_evaluation(self, row: Mapping[str, Any]) -> tuple[FactorCandidate, float]:
        factors, start, nll = row.get("factors"), row.get("start_tokens"), row.get("nll")
        numbers = [*(factors if isinstance(factors, list) else [None]), nll]
        if not isinstance(start, int) or any(not has_type(each, float) or math.isnan(each) for each in numbers):
            raise ConfigError(f"journal {self.file} has a malformed line: remove it, or give another out=")
        return FactorCandidate(tuple(factors or ()), start), float(nll or 0.0)


@dataclass(frozen=True)
class EvolutionResult:
    """Result of a search."""

    best: FactorCandidate
    nll: float
    """Mean NLL of the best candidate, in nats per token."""
    curve: tuple[float, ...]
    """Lowest NLL so far in nats per token, after the first generation and after each iteration."""
    evaluations: int
    """Number of different candidates evaluated."""


def search_factors(
    evaluate: Callable[[FactorCandidate], float],
    space: FactorSpace,
    seeds: Sequence[Floats],
    settings: EvolutionSettings,
    journal: Path,
    identity: Mapping[str, Any],
) -> EvolutionResult:
    """Search the candidate with the lowest NLL by evolution from the seeds.

    Draws depend only on the seed and the values so far, and the journal keeps these: an interrupted search, started
    again, gives the same result.

    Args:
        evaluate: deterministic mean NLL of a candidate, in nats; inf if it has none.
        space: the search space.
        seeds: [pairs] factors each, moved into the space.
        settings: of the evolution.
        journal: file of all evaluations.
        identity: everything that values depend on: model, length, questions, ...

    Raises ConfigError if the journal belongs to another search, Refused if no candidate has a finite value.
    """
    config = {f.name: getattr(settings, f.name) for f in fields(settings) if f.name != "iterations"}
    begun = list(dict.fromkeys(space.nearest_candidate(seed) for seed in seeds))
    kept = EvaluationJournal(journal, {**identity, **config, "seeds": [seed.factors for seed in begun]})
    breed = _Breed(space, settings)
    born = breed.first_generation(begun)
    population: list[tuple[float, FactorCandidate]] = []
    curve: list[float] = []
    total = len(born) + settings.iterations * (settings.mutations + settings.crossovers)
    lines = Lines(f"search: {total:,} candidates at most, in {settings.iterations + 1} generations into {journal}")
    done = measured = 0
    with tqdm(total=total, unit="candidate", disable=must_hide_bar(), dynamic_ncols=True, desc="search") as bar:
        for iteration in range(settings.iterations + 1):
            if iteration:
                born = breed.children([candidate for _, candidate in population])
            for candidate in born:
                if candidate not in kept.known:
                    value = float(evaluate(candidate))
                    kept.add(candidate, value if math.isfinite(value) else math.inf)
                    measured += 1
                population.append((kept.known[candidate], candidate))
                done += 1
                bar.update()
                said = f"generation {iteration} of {settings.iterations}, {done:,} of {total:,} candidates"
                lowest = min(value for value, _ in population)
                ends = candidate is born[-1]
                lines.show(f"{said}, best NLL {lowest:.4f}", due=ends, done=measured, left=total - done)
            population = sorted(population, key=lambda pair: pair[0])[: settings.parents]
            curve.append(population[0][0])
            bar.set_postfix(nll=f"{curve[-1]:.4f}")
    nll, best = population[0]
    if not math.isfinite(nll):
        raise Refused("search found no candidate with a finite likelihood: use another dtype or a shorter length")
    return EvolutionResult(best, nll, tuple(curve), len(breed.seen))


class _Breed:
    """Draws the candidates of each generation, new ones as long as the space has any."""

    def __init__(self, space: FactorSpace, settings: EvolutionSettings) -> None:
        self.space, self.settings = space, settings
        self.rng = np.random.default_rng(settings.seed)
        self.seen: set[FactorCandidate] = set()

    def first_generation(self, seeds: Sequence[FactorCandidate]) -> list[FactorCandidate]:
        """The first generation: the seeds, and mutations of each in turn."""
        self.seen.update(seeds)
        rest = range(self.settings.population - len(seeds))
        return [*seeds, *(self._new_mutant(seeds[number % len(seeds)]) for number in rest)]

    def children(self, parents: Sequence[FactorCandidate]) -> list[FactorCandidate]:
        """The next generation: mutations and crossovers of the parents."""
        mutants = [
            self._new_mutant(parents[int(self.rng.integers(len(parents)))]) for _ in range(self.settings.mutations)
        ]
        return [*mutants, *(self._new_child(parents) for _ in range(self.settings.crossovers))]

    def _new_mutant(self, parent: FactorCandidate) -> FactorCandidate:
        for _ in range(MAX_BREEDING_DRAWS):
            candidate = self.space.mutate_factors(parent, self.settings.probability, self.rng)
            if candidate not in self.seen:
                break
        self.seen.add(candidate)
        return candidate

    def _new_child(self, parents: Sequence[FactorCandidate]) -> FactorCandidate:
        # Sorted, because the parents stand in order: the first of the two is the better one.
        one, two = (parents[place] for place in sorted(self.rng.choice(len(parents), 2, replace=False).tolist()))
        for _ in range(MAX_BREEDING_DRAWS):
            candidate = self.space.cross_factors(one, two, self.settings.probability, self.rng)
            if candidate is not None and candidate not in self.seen:
                self.seen.add(candidate)
                return candidate
        return self._new_mutant(one)
