"""Compare a server with another one, or with a checkpoint, on the same texts and without a pack.

A checkpoint is asked under its own setup and in other precisions, so that the rule of a pack holds: more than 3 times
what rounding explains is a difference. Of two servers no rounding is known. What they differ by near the beginning of
texts stands for it, where that is at most 0.1 nats, as an honest server of bfloat16 differs by; another rotation moves
further targets more.
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lexbench.backends import Backend
from lexbench.core.attention import Attention
from lexbench.core.errors import ConfigError
from lexbench.core.model import Model
from lexbench.core.record import Deferred, Refused
from lexbench.core.task import Tokens
from lexbench.parts.serving.identify.ask import PROMPT_ROUTE
from lexbench.parts.serving.identify.decide import identify_served
from lexbench.parts.serving.identify.identify import MAX_DISTANCE_IN_NOISE, Identification
from lexbench.parts.serving.identify.make import (
    DEFAULT_TEXT_TOKENS,
    N_CHAT_PREFIXES,
    N_FAR_PREFIXES,
    N_FAR_TARGETS,
    N_OPENING_TARGETS,
    N_PREFIXES,
    N_WRITTEN_TOKENS,
    far_length,
)
from lexbench.parts.serving.identify.measure import TextPlan, measure_texts, texts_job, texts_of_job
from lexbench.parts.serving.identify.pack import Nats, ReferencePack, text_losses
from lexbench.parts.serving.identify.prefixes import prefix_places, prefix_question
from lexbench.parts.serving.identify.readings import KeptReadings
from lexbench.parts.serving.identify.setups import OWN_SETUP_LABEL, AttentionSetup
from lexbench.parts.serving.openai.backend import OpenAI
from lexbench.runner.backend_pool import backend_for_job

N_COMPARED_TEXTS = 4
MIN_DIFFERENCE_NATS, MAX_NEAR_DIFFERENCE_NATS = 0.005, 0.1
"""Difference near the beginning of texts that stands for rounding, at least and at most."""
NEAR_SHARE = 0.125
"""Share of the targets of a text that are near its beginning."""
MAX_GROWTH = 2.0
"""Growth of a difference from the beginning of texts to their end, at most, where it is not of the rotation."""


@dataclass(frozen=True, kw_only=True)
class ServerComparison:
    """Difference of two servers, and its verdict."""

    same: bool
    verdict: str
    near: float
    """Root of the mean of squared differences near the beginning of texts, nats."""
    distance: float
    """The same behind the beginning."""
    far: float | None
    """The same at the end of the far text; None: there is none."""
    length: int
    """Tokens of the longest text."""
    route: str
    """The log-probabilities that were compared."""


def compare_with_checkpoint(model: Model, backend: Mapping[str, Any], server: Mapping[str, Any]) -> Identification:
    """Whether a server turns as the checkpoint's config says.

    Args:
        model: with its checkpoint.
        backend: config of `hf`.
        server: config of the server's backend.
    """
    length, config = _length(model), {**backend, "dtype": "float32", "chat": bool(server.get("chat"))}
    own = [AttentionSetup(OWN_SETUP_LABEL, Attention())]

    def measured(length: int, n: int, plan: TextPlan) -> ReferencePack:
        return measure_texts(texts_job(model, None, config, length, n, 0), config, own, plan, KeptReadings(None))

    part, far = length // 4, far_length(model, length, N_COMPARED_TEXTS)
    opening = min(N_OPENING_TARGETS, part)
    prefixes = min(N_CHAT_PREFIXES if config["chat"] else N_PREFIXES, part)
    plan = TextPlan(opening, length - length // 2, prefixes, part, min(N_WRITTEN_TOKENS, part))
    pack = measured(length, N_COMPARED_TEXTS, plan)
    if far > length:
        pack = replace(pack, far=measured(far, 1, TextPlan(0, N_FAR_TARGETS, N_FAR_PREFIXES, far - N_FAR_TARGETS, 0)))
    return identify_served(pack, lambda longest: _open(model, server, longest))


def compare_servers(model: Model, one: Mapping[str, Any], other: Mapping[str, Any]) -> ServerComparison:
    """Compare two servers of one model, as both give log-probabilities of prompts, or of next tokens.

    Args:
        model: whose tokenizer both have.
        one: config of the first server's backend.
        other: config of the second one's.
    """
    length = _length(model)
    far = far_length(model, length, N_COMPARED_TEXTS)
    with _open(model, one, far) as first, _open(model, other, far) as second:
        pair = first, second
        texts = texts_of_job(texts_job(model, None, one, length, N_COMPARED_TEXTS, 0), first.tokenizer)
        try:
            moved, route = _difference_of_prompts(pair, texts, length - 1), PROMPT_ROUTE
        except Deferred:
            raise
        except Refused:
            moved, route = _difference_of_next_tokens(pair, texts, length // N_PREFIXES), "likeliest next tokens"
        begin = max(1, int(NEAR_SHARE * moved.shape[1]))
        at_far = None
        if far > length:
            text = texts_of_job(texts_job(model, None, one, far, 1, 0), first.tokenizer)
            if route == PROMPT_ROUTE:
                at_far = _difference_of_prompts(pair, text, N_FAR_TARGETS)
            else:
                at_far = _difference_of_next_tokens(pair, text, far - N_FAR_TARGETS)
    return compare_differences(moved[:, :begin], moved[:, begin:], at_far, max(far, length), route)


def compare_differences(near: Nats, behind: Nats, far: Nats | None, length: int, route: str) -> ServerComparison:
    """The verdict on differences (nats, NaN where a server does not tell) near the beginning of texts and behind it."""
    sizes = [_rms(each) for each in (near, behind)]
    at_far = None if far is None else _rms(far)
    allowed = MAX_DISTANCE_IN_NOISE * min(max(sizes[0], MIN_DIFFERENCE_NATS), MAX_NEAR_DIFFERENCE_NATS)
    most = max(sizes[1], at_far or 0.0)
    said = f"{sizes[0]:.2g} nats apart near the beginning of texts, {sizes[1]:.2g} behind it"
    said += "" if at_far is None else f", {at_far:.2g} at {length} tokens"
    if most <= allowed:
        verdict = f"the same up to {length} tokens: {said}"
    elif most > MAX_GROWTH * sizes[0]:
        verdict = f"not the same, and further apart with every token, as another rotation, window or cut is: {said}"
    else:
        verdict = f"not the same from the first tokens on, as other weights, precisions or templates are: {said}"
    return ServerComparison(
        same=most <= allowed, verdict=verdict, near=sizes[0], distance=sizes[1], far=at_far, length=length, route=route
    )


def _length(model: Model) -> int:
    """Tokens of a text."""
    return min(2 * model.trained_length, DEFAULT_TEXT_TOKENS)


def _open(model: Model, config: Mapping[str, Any], longest: int) -> AbstractContextManager[Backend]:
    """A server for one block."""
    return backend_for_job(model, config, longest)


def _difference_of_prompts(pair: tuple[Backend, Backend], texts: Tokens, targets: int) -> Nats:
    """[texts, targets] nats of the last targets, first server minus second; Refused where one gives none."""
    one, other = (text_losses(each, texts, 0, targets) for each in pair)
    return one - other


def _difference_of_next_tokens(pair: tuple[Backend, Backend], texts: Tokens, first: int) -> Nats:
    """[texts, prefixes x tokens] nats of tokens that both servers tell, first server minus second; else NaN."""
    told = []
    for backend in pair:
        assert isinstance(backend, OpenAI), "both are servers"
        if backend.asks_in_chat:
            raise ConfigError("two servers are compared by completions: set backend.chat=false")
        count = N_PREFIXES if len(texts) > 1 else N_FAR_PREFIXES
        questions = [
            [
                prefix_question(backend.tokenizer, text, place, {})
                for place in prefix_places(backend.tokenizer, text, max(1, first), count, chat=False).tolist()
            ]
            for text in texts
        ]
        told.append(backend.likeliest_next_tokens(questions))
    rows = []
    for pairs in zip(*told, strict=True):
        row = []
        for one, other in zip(*pairs, strict=True):
            moved = [one.nats[own] - other.nats[own] for own in one.nats.keys() & other.nats.keys()]
            row.append(np.sqrt(np.mean(np.square(moved))) if moved else np.nan)
        rows.append(row)
    return np.array(rows)


def _rms(nats: Nats) -> float:
    """Root of the mean square of what is told; Refused where nothing is."""
    if not np.isfinite(nats).any():
        raise Refused("the servers tell no token in common: they serve other models")
    return float(np.sqrt(np.nanmean(np.square(nats))))
