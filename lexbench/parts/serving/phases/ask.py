"""Ask for the likeliest next tokens behind prompts: of a server by its log-probabilities or its words alone, of a
checkpoint from its whole vocabulary."""

import zlib
from collections.abc import Mapping, Sequence

import numpy as np

from lexbench.backends import Backend
from lexbench.core.record import Refused
from lexbench.core.task import ClassifyTokens, ClassifyTokensAnswer, Generate, Tokens
from lexbench.parts.serving.openai.backend import OpenAI
from lexbench.parts.serving.openai.replies import NoLikelihoods
from lexbench.runner.answers import answer_question

MIN_UNTOLD_NATS = 2.0
"""Nats of a token that a server does not tell, at least; it has no fewer than the least likely one that is told."""
Told = Mapping[int, float]
"""Nats by id of the likeliest next tokens; of a server that gives none, 0 of what it has written."""
N_TOLD = 20
"""Likeliest tokens that are kept, as many as most servers tell."""


def ask_prompts(backend: Backend, prompts: Sequence[Tokens], again: bool) -> list[list[Told]]:
    """Ask what is told behind each prompt, and once more behind the same one where `again` is set.

    Raises Refused where the server writes nothing that can be compared.
    """
    if isinstance(backend, OpenAI):
        return _ask_server(backend, prompts, 2 if again else 1)
    vocabulary = np.arange(min(backend.tokenizer.vocabulary, backend.model.vocabulary or backend.tokenizer.vocabulary))
    asked = [
        # The last token is not read: its place is asked about.
        ClassifyTokens(
            index=0,
            cluster="",
            tokens=np.append(prompt, prompt[:1]),
            places=np.array([len(prompt)]),
            options=vocabulary,
        )
        for prompt in prompts
    ]
    # One by one: in a batch, short prompts are filled up to the longest.
    return [[_likeliest(answer_question(backend, question))] for question in asked]


def _likeliest(answer: object) -> Told:
    assert isinstance(answer, ClassifyTokensAnswer)
    nats = answer.nll[0].astype(np.float64)
    if not np.isfinite(nats).any():
        raise Refused("the model gives likelihoods that are no numbers")
    return {int(own): float(nats[own]) for own in np.argsort(nats, kind="stable")[:N_TOLD]}


def _ask_server(backend: OpenAI, prompts: Sequence[Tokens], times: int) -> list[list[Told]]:
    asked = [[Generate(index=0, cluster="", prompt=prompt, max_new_tokens=1)] * times for prompt in prompts]
    try:
        return [[each.nats for each in told] for told in backend.likeliest_next_tokens(asked)]
    except NoLikelihoods:
        # A token without likelihood counts as the only one.
        return [[{zlib.crc32(each.encode()): 0.0} for each in told] for told in backend.next_texts(asked)]


def value_of(told: Told, own: int) -> float:
    """Log-probability of a token; of one that is not told, what it has at most."""
    return -told[own] if own in told else -max([*told.values(), MIN_UNTOLD_NATS])


def nats_lost(told: Told, other: Told) -> float:
    """Nats by which the likeliest token of one prompt is less likely behind another."""
    own = min(told, key=told.__getitem__, default=None)
    return 0.0 if own is None else value_of(told, own) - value_of(other, own)
