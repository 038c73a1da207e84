"""Answerers that no model is: flawless, uniform, and one that only repeats."""

import math

import numpy as np

from lexbench import Answer, AnyQuestion, Choose, Chosen, Mark, Marked, Probe, Score, Scored, Tokenizer, Write, Written
from lexbench.core.task import Tokens


def asked_tokens(question: AnyQuestion) -> Tokens:
    """Tokens before the answer."""
    return question.prompt if isinstance(question, Write | Choose) else question.tokens


def written(text: str, tokenizer: Tokenizer, room: int | None = None) -> Written:
    """An answer of this text, which ends by itself unless it fills the room."""
    tokens = tokenizer.encode(text).ids
    return Written(tokens=tokens, text=text, hit_room=room is not None and len(tokens) >= room)


def perfect(question: AnyQuestion, tokenizer: Tokenizer) -> Answer:
    """What a flawless model answers."""
    if isinstance(question, Write):
        return written(question.answer, tokenizer)
    if isinstance(question, Choose):
        nll = np.full(len(question.options), 9.0)
        nll[question.expected] = 0.0
        return Chosen(nll=nll)
    if isinstance(question, Mark):
        right = question.tokens[question.places][:, None] == question.options[None, :]
        return Marked(nll=np.where(right, 0.0, 9.0).astype(np.float32))
    assert isinstance(question, Score)
    return Scored(nll=np.zeros(question.length - question.start, np.float32))


def uniform(question: AnyQuestion, tokenizer: Tokenizer, rng: np.random.Generator) -> Answer:
    """What a model without any knowledge answers: random tokens, ln V each."""
    each = math.log(tokenizer.vocabulary)
    if isinstance(question, Write):
        tokens = rng.integers(0, tokenizer.vocabulary, question.room)
        return Written(tokens=tokens, text=tokenizer.decode(tokens), hit_room=True)
    if isinstance(question, Choose):
        return Chosen(nll=np.array([each * len(option) for option in question.options]))
    if isinstance(question, Mark):
        return Marked(nll=np.full((len(question.places), len(question.options)), each, np.float32))
    assert not isinstance(question, Probe)
    return Scored(nll=np.full(question.length - question.start, each, np.float32))
