"""Result of a tune."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lexbench.core.model import Model
from lexbench.parts.search.tune.ranking import Finalist
from lexbench.parts.search.tune.search import TriedCandidate
from lexbench.parts.search.tune.settings import TuneSettings
from lexbench.parts.search.tune.space import Candidate


@dataclass(frozen=True, kw_only=True)
class TuneResult:
    """Result of `tune`."""

    model: Model
    settings: TuneSettings
    length: int
    needles: str | None
    """Task of the needles; None if the model finds none."""
    rows: Sequence[Finalist]
    """Finalists on fresh questions, best first; empty if no time was left."""
    fresh: int
    """Number of fresh questions of each kind."""
    planned: int
    """Number that tells the best two apart, as far as the search could say and within 4 times `n`."""
    seen: int
    """Number of fresh texts from documents that the search has read in other places."""
    tried: Sequence[TriedCandidate]
    """All candidates of the search, best first."""
    rounds: int
    answers: int
    seconds: float
    """Seconds spent, including earlier commands."""
    file: Path
    unspoken: str | None = None
    """Sentence that the model has not learned the language of the text inside its trained length; None: it has."""
    floored: str | None = None
    """Floor, in words, that the winner does not beat on the text at the length; None: it does."""

    @property
    def winner(self) -> Candidate | None:
        """The best finalist within the price; without finalists, the best candidate of the search.

        None where nothing is within the price, and where the model has not learned its language.
        """
        if self.unspoken:
            return None
        if self.rows:
            return None if self.rows[0].dear else self.rows[0].candidate
        price = self.settings.price
        able = (
            tried.candidate
            for tried in self.tried
            if tried.curve and not tried.out and not tried.costs_more_than(price)
        )
        return next(able, None)
