"""Passkey retrieval: find a number that is hidden in noise."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lexbench import Answer, AnyQuestion, Sample, Task, Tokenizer, Write, Written
from lexbench.taskkit import haystack, matching
from lexbench.taskkit.prompt import around, bos_and_chat, check_at_least, check_length, room_for
from lexbench.taskkit.scoring import score_written

HEADER = "A pass key is hidden in this text. Remember it.\n"
NEEDLE = " The pass key is {key}. Remember it. {key} is the pass key."
ASK = "\nWhat is the pass key? The pass key is"


@dataclass(frozen=True)
class Passkey(Task):
    """Find one random number in repeated noise (Mohtashami and Jaggi, arXiv 2305.16300; the wording is ours).

        A pass key is hidden in this text. Remember it.          <- header
        The grass is green. ... The pass key is 40213. Remember it. 40213 is the pass key. ... back again.
        What is the pass key? The pass key is                    <- the model writes " 40213"

    Constant over lengths: the number of digits, the wording, one needle. Only the noise grows. Each sample draws its
    key and depth from its own seed; keys are uniform. The noise repeats the same five sentences, and the needle is
    inserted between two of them: at the end nearest to the depth, which near the least length may lie in another
    stratum. Chance: one key in 9 * 10^(digits - 1), for a guess of any key. The key is the only number in the text, so
    a model that copies any number from there is right; `niah_multikey_1` has other numbers.

    Scores: `accuracy` (strict): the answer begins with the key, quoted or not, and lists no other number. `contains`:
    the key occurs anywhere in the answer. Only new tokens are scored, so echoing the prompt earns nothing.

    Args:
        digits: of the key; the first digit is never 0.
        strata: stratify depths into this many equal parts; sample i lies in part i modulo strata.
        room: tokens to write; None: the key's tokens and four more.
        needle: False is the control: the same prompt without the needle, so that no model can know the key.
    """

    form: ClassVar[tuple[str, ...]] = ("needle", "room")
    version: ClassVar[int] = 2
    digits: int = 5
    strata: int = 8
    room: int | None = None
    needle: bool = True

    def __post_init__(self) -> None:
        check_at_least("passkey", self, digits=1, strata=1, room=1)
        if self.digits > 18:
            raise ValueError(f"passkey's digits must be at most 18, got {self.digits}: a key is a 64-bit integer")

    def protocol(self, tokenizer: Tokenizer) -> str:
        """What is hidden and how the answer is scored."""
        control = "" if self.needle else ", control without the needle"
        start = bos_and_chat(tokenizer)
        return f"passkey of {self.digits} digits in noise{control}, strict: the key comes first, greedy, {start}"

    def questions(self, tokenizer: Tokenizer, length: int, n: int, seed: int) -> Sequence[AnyQuestion]:
        """One prompt of exactly length - room tokens per sample."""
        return [self._question(tokenizer, length, seed, index) for index in range(n)]

    def _question(self, tokenizer: Tokenizer, length: int, seed: int, index: int) -> Write:
        rng = self.rng(length, seed, index)
        # The first digit is never 0, so every key has as many digits.
        low = 10 ** (self.digits - 1)
        key = str(rng.integers(low, 10 * low))
        depth = haystack.stratified(index, self.strata, rng)
        needle = tokenizer.encode(NEEDLE.format(key=key)).ids if self.needle else np.empty(0, np.int64)
        before, after = around(tokenizer, False, [HEADER], ASK, "")
        room = room_for("passkey", len(tokenizer.encode(f" {key}").ids), self.room, 4)
        fixed = len(before) + len(needle) + len(after) + room
        check_length("passkey", fixed, length)
        noise = haystack.noise(tokenizer, length - fixed, str(index))
        body, depths = haystack.insert(noise, [needle], [depth], self.strata)
        return Write(
            index=index,
            cluster=noise.name,
            prompt=np.concatenate([before, body, after]),
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
