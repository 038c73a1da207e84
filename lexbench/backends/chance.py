"""Backend without a model: random tokens and uniform likelihoods. The floor of every table, a dry run of every task."""

import hashlib
import math

import numpy as np

from lexbench.backends import Backend
from lexbench.checkpoints.checkpoint import folder_of
from lexbench.checkpoints.tokenizer import load_tokenizer
from lexbench.core.attention import Attention
from lexbench.core.model import Model
from lexbench.core.record import Refused
from lexbench.core.task import (
    Choose,
    ChooseAnswer,
    ClassifyTokens,
    ClassifyTokensAnswer,
    Generate,
    GenerateAnswer,
    Loglikelihood,
    LoglikelihoodAnswer,
    ProbeAttention,
    ProbeAttentionAnswer,
)


class Chance(Backend):
    """Answers without weights; needs only the tokenizer in the model's folder.

    Args:
        model: with the folder or hub name in `path`.
    """

    name = "chance"
    dtype = "none"
    kernel = "none"
    revision = "chance"
    device = "cpu"

    def __init__(self, model: Model) -> None:
        self.model = model
        self.version = f"numpy {np.__version__}"
        self.tokenizer = load_tokenizer(folder_of(model, weights=False), model.bos)
        self._vocabulary = model.vocabulary or self.tokenizer.vocabulary

    def attend(self, attention: Attention) -> None:
        """Accept every Attention: the answers do not depend on it."""

    def write(self, question: Generate) -> GenerateAnswer:
        """Write `max_new_tokens` uniformly drawn tokens, seeded by the question's index and prompt.

        All options are equally likely; each taught token has a uniformly drawn rank.
        """
        # In one order of bytes, so that answers are the same on every machine.
        key = hashlib.sha256(f"{question.index}:".encode() + question.prompt.astype("<i8").tobytes()).digest()
        rng = np.random.default_rng(np.frombuffer(key, dtype="<u4"))
        known = min(self._vocabulary, self.tokenizer.vocabulary)  # ids that the tokenizer can decode
        tokens = rng.integers(0, known, question.max_new_tokens)
        return GenerateAnswer(
            tokens=tokens,
            text=self.tokenizer.decode(tokens),
            hit_room=True,
            option_nll=np.full(len(question.options), math.log(len(question.options))) if question.options else None,
            taught_ranks=rng.integers(0, known, len(question.options[question.expected])) if question.options else None,
        )

    def choose(self, question: Choose) -> ChooseAnswer:
        """NLL of ln k nats for each of k options of any length: all are equally likely."""
        return ChooseAnswer(nll=np.full(len(question.options), math.log(len(question.options))))

    def mark(self, question: ClassifyTokens) -> ClassifyTokensAnswer:
        """NLL of ln V nats for every option at every place; V is the size of the vocabulary."""
        shape = (len(question.places), len(question.options))
        return ClassifyTokensAnswer(nll=np.full(shape, math.log(self._vocabulary), dtype=np.float32))

    def score(self, question: Loglikelihood) -> LoglikelihoodAnswer:
        """NLL of ln V nats for every target; V is the size of the vocabulary."""
        targets = question.length - question.first_target
        return LoglikelihoodAnswer(nll=np.full(targets, math.log(self._vocabulary), dtype=np.float32))

    def probe(self, question: ProbeAttention) -> ProbeAttentionAnswer:
        """Always Refused: there is no attention."""
        raise Refused("chance has no attention to probe: use another backend")
