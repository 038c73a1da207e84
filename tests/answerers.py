"""Answerers that no model is: flawless, uniform, and one that only repeats."""

import math

import numpy as np

from lexbench import (
    Answer,
    AnyQuestion,
    Choose,
    ChooseAnswer,
    ClassifyTokens,
    ClassifyTokensAnswer,
    Generate,
    GenerateAnswer,
    Loglikelihood,
    LoglikelihoodAnswer,
    ProbeAttention,
    Tokenizer,
)
from lexbench.core.task import Tokens


def asked_tokens(question: AnyQuestion) -> Tokens:
    """Tokens before the answer."""
    return question.prompt if isinstance(question, Generate | Choose) else question.tokens


def written(text: str, tokenizer: Tokenizer, room: int | None = None) -> GenerateAnswer:
    """An answer of this text, which ends by itself unless it fills the room."""
    tokens = tokenizer.encode(text).ids
    return GenerateAnswer(tokens=tokens, text=text, hit_room=room is not None and len(tokens) >= room)


def perfect(question: AnyQuestion, tokenizer: Tokenizer) -> Answer:
    """What a flawless model answers."""
    if isinstance(question, Generate):
        return written(question.answer, tokenizer)
    if isinstance(question, Choose):
        nll = np.full(len(question.options), 9.0)
        nll[question.expected] = 0.0
        return ChooseAnswer(nll=nll)
    if isinstance(question, ClassifyTokens):
        right = question.tokens[question.places][:, None] == question.options[None, :]
        return ClassifyTokensAnswer(nll=np.where(right, 0.0, 9.0).astype(np.float32))
    assert isinstance(question, Loglikelihood)
    return LoglikelihoodAnswer(nll=np.zeros(question.length - question.first_target, np.float32))


def uniform(question: AnyQuestion, tokenizer: Tokenizer, rng: np.random.Generator) -> Answer:
    """What a model without any knowledge answers: random tokens, ln V each."""
    each = math.log(tokenizer.vocabulary)
    if isinstance(question, Generate):
        tokens = rng.integers(0, tokenizer.vocabulary, question.max_new_tokens)
        return GenerateAnswer(tokens=tokens, text=tokenizer.decode(tokens), hit_room=True)
    if isinstance(question, Choose):
        return ChooseAnswer(nll=np.array([each * len(option) for option in question.options]))
    if isinstance(question, ClassifyTokens):
        return ClassifyTokensAnswer(nll=np.full((len(question.places), len(question.options)), each, np.float32))
    assert not isinstance(question, ProbeAttention)
    return LoglikelihoodAnswer(nll=np.full(question.length - question.first_target, each, np.float32))
