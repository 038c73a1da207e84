"""No model at all: random answers and uniform likelihoods. The floor of every task, and the dry run of a suite."""

import hashlib
import math

import numpy as np

from lexbench.attention import Attention
from lexbench.checkpoint import locate
from lexbench.model import Model
from lexbench.record import Refused
from lexbench.task import Probe, Probed, Score, Scored, Write, Written
from lexbench.tokenizer import load_tokenizer


class Chance:
    """Knows a model's vocabulary and tokenizer, not its weights.

    Args:
        model: facts, with the folder in `path`.
    """

    name = "chance"
    version = "1"
    dtype = "none"
    kernel = "none"
    revision = "chance"

    def __init__(self, model: Model) -> None:
        if model.path is None:
            raise ValueError(f"model {model.name} has no tokenizer: give model.path=DIR")
        self.model = model
        self.tokenizer = load_tokenizer(locate(model.path, model.revision, weights=False), model.bos)
        self._vocabulary = model.vocabulary or self.tokenizer.vocabulary

    def attend(self, attention: Attention) -> None:
        """Any."""

    def write(self, question: Write) -> Written:
        """Random tokens that fill the room; the same ones for the same question."""
        prompt = np.asarray(question.prompt, dtype="<i8").tobytes()
        seed = int.from_bytes(hashlib.sha256(prompt).digest()[:8], "big")
        tokens = np.random.default_rng(seed).integers(self.tokenizer.vocabulary, size=question.room)
        return Written(tokens=tokens, text=self.tokenizer.decode(tokens), hit_room=True)

    def score(self, question: Score) -> Scored:
        """ln(vocabulary) for every target."""
        return Scored(nll=np.full(question.length - question.start, math.log(self._vocabulary), dtype=np.float32))

    def probe(self, question: Probe) -> Probed:
        """There is no attention to measure."""
        raise Refused("chance has no attention to probe")
