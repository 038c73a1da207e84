"""Look for faults by the length of a prompt: a text at 64 lengths, and three others where something stands out.

The first text only says whether it is worth to ask more; faults are named by the others alone, so that no number is
both what made us look and what proves.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lexbench.backends import Backend
from lexbench.core.attention import Attention
from lexbench.core.errors import ConfigError
from lexbench.core.model import Model
from lexbench.core.record import Refused
from lexbench.core.values import is_whole
from lexbench.parts.serving.identify.measure import texts_job, texts_of_job
from lexbench.parts.serving.openai.backend import OpenAI
from lexbench.parts.serving.phases.ask import ask_prompts, nats_lost
from lexbench.parts.serving.phases.find import (
    MIN_APART_NATS,
    LengthClass,
    LengthFault,
    PhaseReadings,
    find_fault_of_caches,
    find_faults,
    length_classes,
    nats_moved_again,
    stands_out,
    visible_nats,
)
from lexbench.parts.serving.phases.prompts import (
    N_LENGTHS,
    PhaseQuestion,
    can_be_text,
    length_range,
    questions_of_text,
)
from lexbench.runner.backend_pool import backend_for_job

N_PROVING_TEXTS = 3
"""Texts of another seed, by which faults are named: of one length of 64, p is 1 / 64^3."""
SPARE_TEXTS = 3
"""Texts to choose from, beside those that are asked at all lengths."""

MAX_LOST_NATS = 3.0
"""Nats that a lost part of a prompt costs, from which it costs no less than any other."""


@dataclass(frozen=True, kw_only=True)
class Phases:
    """What was found over the lengths of a range."""

    shortest: int
    longest: int
    """Tokens of the prompts."""
    asked: int
    """Prompts, those that were asked again counted once."""
    again: bool
    """Whether each was asked again."""
    visible: float
    """Nats: a change at a single length that would have been seen."""
    faults: Sequence[LengthFault]

    @property
    def text(self) -> str:
        """The faults, or that there is none and what would have been seen."""
        range_said = f"{self.asked} prompts of {self.shortest} to {self.longest} tokens"
        if self.faults:
            return "\n".join([each.words for each in self.faults] + [f"told by {range_said}"])
        again = "" if self.again else "; no prompt was asked again, as from a cache"
        return (
            f"no fault by length found in {range_said}: a change of {MIN_APART_NATS:g} nats at a residue of 2 to 32, "
            f"or of {self.visible:.2g} at one length or behind an edge, would have been seen{again}"
        )


def find_phases(
    model: Model,
    config: Mapping[str, Any],
    *,
    length: int | None,
    n: int,
    chunk: int | None = None,
    page: int | None = None,
    seed: int = 0,
) -> Phases:
    """Ask a server or a checkpoint the same questions at 64 lengths.

    Args:
        model: with its tokenizer; of a checkpoint with weights.
        config: of the backend, hf or openai.
        length: tokens of the longest prompt; None: one fewer than the trained length.
        n: prompts of the first look, 64 of each text.
        chunk: tokens that the engine reads at once, an edge of which the range goes across.
        page: tokens of a block of its cache; alike.
        seed: of the texts.

    Raises ConfigError for wrong settings, Refused where answers cannot be compared.
    """
    if n < N_LENGTHS or n % N_LENGTHS:
        raise ConfigError(f"n must be a multiple of {N_LENGTHS}, one prompt of each length, got {n}: e.g. n=128")
    sizes = [_checked_size(name, size) for name, size in (("chunk", chunk), ("page", page)) if size is not None]
    lengths = length_range(length or model.trained_length - 1, sizes)
    classes = length_classes(lengths, sizes)
    with backend_for_job(model, config, lengths[-1] + 1) as backend:
        if not isinstance(backend, OpenAI):
            backend.attend(Attention())
        elif backend.asks_in_chat:
            raise ConfigError("phases asks by completions, whose lengths are exact: set backend.chat=false")
        asked = _PhaseAsker(model, config, backend, lengths)
        first, again = asked.readings(n // N_LENGTHS, seed)
        visible, faults = visible_nats(first), list[LengthFault]()
        looks = [first, *([] if again is None else [again])]
        moved = again is not None and nats_moved_again(first, again) >= MIN_APART_NATS
        if moved or any(stands_out(each, classes) for each in looks):
            faults = _proven_faults(*asked.readings(N_PROVING_TEXTS, seed + 1), classes)
    return Phases(
        shortest=lengths[0],
        longest=lengths[-1],
        asked=asked.count,
        again=again is not None,
        visible=visible,
        faults=faults,
    )


def _checked_size(name: str, size: Any) -> int:
    if not is_whole(size, 2):
        raise ConfigError(f"{name} must be a whole number of at least 2 tokens, got {size}: e.g. {name}=16")
    return int(size)


@dataclass(eq=False)
class _PhaseAsker:
    """Asks texts at all lengths, and counts what it has asked."""

    model: Model
    config: Mapping[str, Any]
    backend: Backend
    lengths: range
    count: int = 0

    def readings(self, texts: int, seed: int) -> tuple[PhaseReadings, PhaseReadings | None]:
        """What is told of so many texts, and of the same prompts asked again; None of a checkpoint."""
        questions, again = self._questions(texts, seed), isinstance(self.backend, OpenAI)
        prompts = [question.prompt(length) for question in questions for length in self.lengths]
        told = ask_prompts(self.backend, prompts, again)
        self.count += len(prompts)
        rows = [told[begin : begin + N_LENGTHS] for begin in range(0, len(told), N_LENGTHS)]
        first = PhaseReadings.of([[each[0] for each in row] for row in rows], [each.follows for each in questions])
        return first, first.with_told([[each[1] for each in row] for row in rows]) if again else None

    def _questions(self, texts: int, seed: int) -> list[PhaseQuestion]:
        """Questions of so many texts, those of more whose answers need their prompts most."""
        tokenizer, longest = self.backend.tokenizer, self.lengths[-1]
        job = texts_job(self.model, None, self.config, longest, texts + SPARE_TEXTS, seed)
        needs_text = isinstance(self.backend, OpenAI) and not self.backend.takes_ids
        found = list[tuple[float, PhaseQuestion]]()
        for text in texts_of_job(job, tokenizer):
            tried = questions_of_text(tokenizer, text, longest)
            if tried := [each for each in tried if not needs_text or can_be_text(tokenizer, each, self.lengths)]:
                falls = self._nats_needed(tried)
                best = int(np.argmax(falls))
                found.append((falls[best], tried[best]))
        if len(found) < texts:
            raise Refused(
                "the server takes prompts as text only, and few texts of these lengths have exactly its tokens: take "
                "another length, or a server that takes ids"
            )
        return [each for _, each in sorted(found, key=lambda pair: -pair[0])[:texts]]

    def _nats_needed(self, tried: Sequence[PhaseQuestion]) -> list[float]:
        """Nats that the likeliest answer to each question loses where a part of its prompt is lost."""
        parts = [each.parts for each in tried]
        told = [each for [each] in ask_prompts(self.backend, [part for row in parts for part in row], False)]
        self.count += len(told)
        rows = [told[begin : begin + len(parts[0])] for begin in range(0, len(told), len(parts[0]))]
        return [sum(min(nats_lost(whole, other), MAX_LOST_NATS) for other in rest) for whole, *rest in rows]


def _proven_faults(
    first: PhaseReadings, again: PhaseReadings | None, classes: Sequence[LengthClass]
) -> list[LengthFault]:
    """Faults of the prompts, and of those that were asked again."""
    found = find_faults(first, classes)
    if again is None:
        return found
    known = {each.label for each in found}
    if later := [each for each in find_faults(again, classes) if each.label not in known]:
        return found + [replace(each, label=f"{each.label} and the prompt is asked again") for each in later]
    cached = find_fault_of_caches(first, again)
    return found if cached is None else [*found, cached]
