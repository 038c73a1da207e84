"""Find the context that a server cuts off."""

import math

import numpy as np

from lexbench.backends import Backend
from lexbench.core.record import Deferred, Refused
from lexbench.core.task import Tokens
from lexbench.parts.serving.identify.ask import N_END_TARGETS, ServedPack
from lexbench.parts.serving.identify.identify import Identification, noise_rms
from lexbench.parts.serving.identify.pack import Nats, loglikelihood_question, question_nats
from lexbench.parts.serving.identify.prefixes import prefix_question
from lexbench.parts.serving.identify.setups import window_size
from lexbench.parts.serving.openai.backend import OpenAI

MAX_CUT_SHARE = 0.9
"""Share of a text, up to which the part of it that is read is searched for."""
MAX_CUT_IN_WINDOWS = 1.2
"""Size of a cut that may be named as a window, in sizes of it; several layers of a window reach further."""
MIN_CUT_TOLERANCE_NATS = 0.002
"""Nats between two answers to the same question, at most, where a server gives the same one twice."""


def find_cut(served: ServedPack, backend: Backend, found: Identification) -> str:
    """A sentence on the context that a server cuts off; empty: it was seen to read more than 9/10 of a text.

    A server that reads only the last N tokens answers to a longer text exactly as to its last N, and to these
    otherwise than to fewer: found by halving, with no reference. Where it reads all, that takes one request.
    Windows in all layers hide the beginning, too: where the checkpoint itself answers so, nothing is asked, and where a
    window is named, what several layers of it reach is no cut.
    """
    if served.reference.about.get("ignores_beginning"):
        return ""
    text, whole = served.last_text, served.last_nats
    noise = noise_rms(served.reference.noise)

    def moved(size: int) -> float:
        return _rms(_nats_of_end(served, backend, text[len(text) - size :]) - whole)

    high, low = int(MAX_CUT_SHARE * len(text)), len(backend.tokenizer.prefix) + N_END_TARGETS + 1
    if high <= low:
        return ""
    try:
        first, allowed = moved(high), MIN_CUT_TOLERANCE_NATS
        if allowed < first <= noise:  # a server whose answers to the same question differ
            allowed = max(allowed, 2 * moved(len(text)))
        if first > allowed or moved(low) <= allowed:
            return ""
        while high - low > 1:
            middle = (high + low) // 2
            low, high = (low, middle) if moved(middle) <= allowed else (middle, high)
    except Deferred:
        raise
    except Refused:  # a text of these tokens cannot be sent
        return ""
    size = high - len(backend.tokenizer.prefix)  # what is cut begins behind BOS: one token more had to be sent
    if size > MAX_CUT_IN_WINDOWS * (window_size(found.verdict) or math.inf):
        return ""
    if not _other_prefixes_agree(served, backend, high, allowed):
        return ""
    return f"your server reads only the last {size} of {len(text)} tokens"


def ignores_beginning(backend: Backend, text: Tokens, last: Nats) -> bool:
    """Whether a checkpoint gives these nats of a text's last tokens without its beginning, too."""
    sent = _text_of_end(backend, text[-int(MAX_CUT_SHARE * len(text)) :])
    if len(sent) <= len(last):
        return False
    [part] = question_nats(backend, [loglikelihood_question(sent, len(sent) - len(last))])
    return _rms(part - last) <= MIN_CUT_TOLERANCE_NATS


def _text_of_end(backend: Backend, tokens: Tokens) -> Tokens:
    """The last tokens of a text, the first as BOS where texts begin so."""
    return np.concatenate([backend.tokenizer.prefix, tokens[len(backend.tokenizer.prefix) :]]).astype(np.int64)


def _other_prefixes_agree(served: ServedPack, backend: Backend, size: int, allowed: float) -> bool:
    """Whether the other prefixes of the last text are answered by their last tokens alone, too.

    The tokens behind one prefix may be likely by its last words, whatever stands before.
    """
    if served.prefixes is None or served.asked is None:
        return True
    for column, place in enumerate(served.asked.places[-1, :-1].tolist()):
        text = served.reference.tokens[-1, :place][-size:]
        moved = _nats_of_end(served, backend, text, column) - served.prefixes.nats[-1, column]
        if place > size and _rms(moved) > allowed:
            return False
    return True


def _nats_of_end(served: ServedPack, backend: Backend, tokens: Tokens, column: int = -1) -> Nats:
    """Nats at the end of a text (behind a prefix of it) whose last tokens alone are sent."""
    sent = _text_of_end(backend, tokens)
    if served.prefixes is None:
        last: Nats = question_nats(backend, [loglikelihood_question(sent, len(sent) - len(served.last_nats))])[0]
        return last
    assert isinstance(backend, OpenAI) and served.asked is not None, "the route is by next tokens"
    [[found]] = backend.likeliest_next_tokens(
        [[prefix_question(backend.tokenizer, sent, len(sent), served.asked.frame)]]
    )
    nats: Nats = np.array([found.nats.get(own, np.nan) for own in served.asked.ids[-1, column].tolist()])
    return nats


def _rms(nats: Nats) -> float:
    """Root of the mean square; infinite where nothing is told of both."""
    return float(np.sqrt(np.nanmean(np.square(nats)))) if np.isfinite(nats).any() else np.inf
