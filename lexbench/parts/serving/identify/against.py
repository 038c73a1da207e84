"""Compare a server with another one, or with a checkpoint, on the same texts and without a pack.

A checkpoint is asked under its own setup and in other precisions, so that the rule of a pack holds: more than 3 times
what rounding explains is a difference. Of two servers no rounding is known: `differences.py` has the rule.
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
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
from lexbench.parts.serving.identify.differences import (
    MIN_DIFFERENCE_NATS,
    NEAR_SHARE,
    ROUNDING_NATS,
    ServerComparison,
    ServerDifferences,
    compare_differences,
)
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
from lexbench.parts.serving.identify.pack import ReferencePack, continue_texts, text_losses
from lexbench.parts.serving.identify.prefixes import is_text, prefix_places, prefix_question
from lexbench.parts.serving.identify.probes import slips_of_prefixes, slips_of_written
from lexbench.parts.serving.identify.readings import KeptReadings
from lexbench.parts.serving.identify.setups import OWN_SETUP_LABEL, AttentionSetup
from lexbench.parts.serving.openai.backend import OpenAI
from lexbench.parts.serving.openai.dialect import NEXT_TOKEN_COUNTS
from lexbench.runner.backend_pool import backend_for_job

N_COMPARED_TEXTS = 4
N_LONGER_PREFIXES = 8
"""Prefixes of the far text, from the length of the others to its own."""
N_SHORT_PREFIXES = 4
"""Prefixes at the very beginning of a text, where BOS and what stands in front of a prompt show."""


def compare_with_checkpoint(model: Model, backend: Mapping[str, Any], server: Mapping[str, Any]) -> Identification:
    """Compare a server's rotary angles with the checkpoint's config.

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
    return identify_served(pack, lambda _: _open(model, server, pack.longest))


def compare_servers(model: Model, one: Mapping[str, Any], other: Mapping[str, Any]) -> ServerComparison:
    """Compare two servers of one model, as both give log-probabilities of prompts, or of next tokens.

    Args:
        model: whose tokenizer both have.
        one: config of the first server's backend.
        other: config of the second one's.

    Raises Refused where one contradicts itself.
    """
    length = _length(model)
    far = far_length(model, length, N_COMPARED_TEXTS)
    with _open(model, one, far) as first, _open(model, other, far) as second:
        pair = first, second
        for each in pair:
            assert isinstance(each, OpenAI), "both are servers"
            each.check_consistent()
        texts = texts_of_job(texts_job(model, None, one, length, N_COMPARED_TEXTS, 0), first.tokenizer)
        try:
            found, route = _differences_of_prompts(pair, texts, length - 1), PROMPT_ROUTE
        except Deferred:
            raise
        except Refused:
            found, route = _differences_of_next_tokens(pair, texts, length // N_PREFIXES), "likeliest next tokens"
        longer = None
        if far > length:  # at all places, as the far text is one of each length up to its own
            text = texts_of_job(texts_job(model, None, one, far, 1, 0), first.tokenizer)
            if route == PROMPT_ROUTE:
                longer = _differences_of_prompts(pair, text, far - 1)
            else:
                longer = _differences_of_next_tokens(pair, text, length)
        at_far = None if longer is None else longer.at_end(far - N_FAR_TARGETS)
        faults = _faults_of_writing(pair, texts, found)
    dtype = str(one.get("dtype", "unknown"))
    return compare_differences(found, at_far, max(far, length), route, dtype, faults, longer)


def _length(model: Model) -> int:
    """Tokens of a text."""
    return min(2 * model.trained_length, DEFAULT_TEXT_TOKENS)


def _open(model: Model, config: Mapping[str, Any], longest: int) -> AbstractContextManager[Backend]:
    """A server for one block."""
    return backend_for_job(model, config, longest)


def _differences_of_prompts(pair: tuple[Backend, Backend], texts: Tokens, targets: int) -> ServerDifferences:
    """Differences of the last targets; Refused where one server gives no likelihoods of prompts."""
    one, other = (text_losses(each, texts, 0, targets) for each in pair)
    return ServerDifferences(
        nats=one,
        moved=one - other,
        ids=texts[:, -targets:],
        opening=min(N_OPENING_TARGETS, targets),
        near=max(1, int(NEAR_SHARE * targets)),
    )


def _differences_of_next_tokens(pair: tuple[Backend, Backend], texts: Tokens, first: int) -> ServerDifferences:
    """Differences of the tokens that both servers tell behind prefixes."""
    told, asked_lengths = [], list[list[int]]()
    short = [*range(2, 2 + N_SHORT_PREFIXES)] if len(texts) > 1 else []
    count = N_PREFIXES if len(texts) > 1 else N_LONGER_PREFIXES
    for backend in pair:
        assert isinstance(backend, OpenAI), "both are servers"
        if backend.asks_in_chat:
            raise ConfigError("two servers are compared by completions: set backend.chat=false")
        questions = []
        for text in texts:
            places = prefix_places(backend.tokenizer, text, max(1, first), count, chat=False).tolist()
            sendable = [place for place in short if is_text(backend.tokenizer, text[:place])] or short[-1:]
            padded = [*sendable, *[sendable[-1]] * (len(short) - len(sendable))] if short else []
            questions.append([prefix_question(backend.tokenizer, text, place, {}) for place in (*padded, *places)])
            asked_lengths.append([*padded, *places])
        told.append(backend.likeliest_next_tokens(questions))
    shape = len(texts), len(short) + count, max(NEXT_TOKEN_COUNTS)
    nats, moved, ids = np.full(shape, np.nan), np.full(shape, np.nan), np.zeros(shape, np.int64)
    slips, lengths = np.zeros((2, *shape[:2])), np.array(asked_lengths[: len(texts)])
    for row, (of_one, of_other) in enumerate(zip(*told, strict=True)):
        for column, (one, other) in enumerate(zip(of_one, of_other, strict=True)):
            slips[:, row, column] = one.written, other.written
            for place, own in enumerate(sorted(one.nats.keys() & other.nats.keys())[: shape[2]]):
                nats[row, column, place], ids[row, column, place] = one.nats[own], own
                moved[row, column, place] = one.nats[own] - other.nats[own]
    near = len(short) + max(1, int(NEAR_SHARE * count))
    return ServerDifferences(
        nats=nats.reshape(shape[0], -1),
        moved=moved.reshape(shape[0], -1),
        ids=ids.reshape(shape[0], -1),
        opening=max(1, len(short)) * shape[2],
        near=near * shape[2],
        places=np.repeat(lengths, shape[2], axis=1),
        slips=slips,
    )


def _faults_of_writing(pair: tuple[Backend, Backend], texts: Tokens, found: ServerDifferences) -> list[str]:
    """What each server writes that it should not, a sentence each: at temperature 0 it is the likeliest token."""
    bounded = min(found.rms_near, max(ROUNDING_NATS.values()))
    said, allowed = list[str](), MAX_DISTANCE_IN_NOISE * max(MIN_DIFFERENCE_NATS, bounded)
    written = list[Tokens | None]()
    for name, backend in zip(("first", "second"), pair, strict=True):
        assert isinstance(backend, OpenAI), "both are servers"
        try:
            backend.check_greedy()
        except Refused as refusal:
            said.append(f"the {name} server writes nothing that can be compared: {refusal.reason}")
            written.append(None)
            continue
        try:
            written.append(continue_texts(backend, texts, N_WRITTEN_TOKENS))
        except Deferred:
            raise
        except Refused:  # the beginning of a text cannot be sent as text
            written.append(None)
    for place, (name, backend) in enumerate(zip(("first", "second"), pair, strict=True)):
        own, other = written[place], written[1 - place]
        if found.slips is not None:
            fault = slips_of_prefixes(found.slips[place], allowed)
        elif own is None or other is None:
            continue
        else:
            fault = slips_of_written(backend, texts, other, own, allowed)
        said += [f"the {name} server: {fault}"] if fault else []
    return said
