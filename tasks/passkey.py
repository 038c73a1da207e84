"""Passkey retrieval: a number hidden in noise, asked for at the end."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lexbench import Answer, AnyQuestion, Refused, Sample, Task, Tokenizer, Write, Written
from lexbench.taskkit import haystack, matching
from lexbench.taskkit.scoring import score_written

HEADER = "A pass key is hidden in this text. Remember it.\n"
NEEDLE = " The pass key is {key}. Remember it. {key} is the pass key."
ASK = "\nWhat is the pass key? The pass key is"


@dataclass(frozen=True)
class Passkey(Task):
    """Find one random number in repeated noise (the task of Mohtashami and Jaggi, arXiv 2305.16300; words our own).

    Held constant over lengths: the key's digits, the wording, one needle; only the noise grows. Chance is one key in
    9 * 10^(digits - 1). Keys are uniform and drawn anew for each sample; key and depth come from the sample's own seed.
    The noise is always the same, and the needle stands between two of its sentences.

        A pass key is hidden in this text. Remember it.          <- header
        The grass is green. ... The pass key is 40213. Remember it. 40213 is the pass key. ... back again.
        What is the pass key? The pass key is                    <- the model writes " 40213"

    Scores: `accuracy`, strict: what is written begins with the key, in quotes or not, and lists no other number;
    `contains`, as others score: the key stands somewhere in what was written. Only new tokens are scored, so an echo of
    the prompt gives nothing.

    Args:
        digits: of the key, the first is never 0.
        strata: depths are stratified into this many equal parts, sample i in part i modulo strata.
        room: tokens to write; None: those of a key, and four more.
        needle: False is the control: the same prompt without the needle, where no model can find the key.
    """

    form: ClassVar[tuple[str, ...]] = ("needle", "room")
    version: ClassVar[int] = 2
    digits: int = 5
    strata: int = 8
    room: int | None = None
    needle: bool = True

    def __post_init__(self) -> None:
        for name in ("digits", "strata", "room"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"passkey's {name} must be at least 1, got {value}")
        if self.digits > 18:
            raise ValueError(f"passkey's digits must be at most 18, got {self.digits}: a key is one whole number")

    def protocol(self, tokenizer: Tokenizer) -> str:
        """One line: what is asked and how it is scored."""
        control = "" if self.needle else ", control without the needle"
        start = "BOS" if tokenizer.prefix else "no BOS"
        return f"passkey of {self.digits} digits in noise{control}, strict: the key comes first, greedy, {start}"

    def questions(self, tokenizer: Tokenizer, length: int, n: int, seed: int) -> Sequence[AnyQuestion]:
        """Prompts of exactly length - room tokens, one a sample."""
        return [self._question(tokenizer, length, seed, index) for index in range(n)]

    def _question(self, tokenizer: Tokenizer, length: int, seed: int, index: int) -> Write:
        rng = self.rng(length, seed, index)
        low = 10 ** (self.digits - 1)
        key = str(rng.integers(low, 10 * low))
        depth = haystack.stratified(index, self.strata, rng)
        needle = tokenizer.encode(NEEDLE.format(key=key)).ids if self.needle else np.empty(0, np.int64)
        header = np.concatenate([np.asarray(tokenizer.prefix, np.int64), tokenizer.encode(HEADER).ids])
        ask = tokenizer.encode(ASK).ids
        least = len(tokenizer.encode(f" {key}").ids)
        room = self.room or least + 4
        if room < least:
            raise Refused(f"passkey's key has {least} tokens, its room {room}: raise room")
        space = length - room - len(header) - len(needle) - len(ask)
        if space < 0:
            raise Refused(f"passkey needs at least {length - space} tokens, asked for {length}: raise length")
        noise = haystack.noise(tokenizer, space, str(index))
        body, depths = haystack.insert(noise, [needle], [depth], self.strata)
        return Write(
            index=index,
            cluster=noise.name,
            prompt=np.concatenate([header, body, ask]),
            room=room,
            answer=f" {key}",
            chance=1 / (9 * low),
            facts={"expected": key, "depth": depths[0]},
        )

    def score(self, question: AnyQuestion, answer: Answer) -> Sample:
        """Strict and lenient accuracy."""
        assert isinstance(question, Write) and isinstance(answer, Written)
        key = question.facts["expected"]
        return score_written(
            question,
            answer,
            {"accuracy": matching.strict(answer.text, [key], r"\d+"), "contains": float(key in answer.text)},
        )
