"""By which weights a layer's own attention function mixes values, and whether the config has them so.

It is given queries and keys of known products, and values that are one-hot by span of keys: what comes out is the
weight of each span. Spans end where a window or a chunk does, so that a single key too many or too few shows.
"""

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lexbench.backends.hf.exact.attention_seams import AttentionCall
from lexbench.backends.rope_causes import RopeMismatch
from lexbench.checkpoints.layer_scores import LayerScores
from lexbench.core.attention import Floats, Positions, Segments, Window
from lexbench.core.record import Refused

WEIGHT_SLACK = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
"""Largest error of a weight, by the dtype in which the function is asked."""
LARGEST_PRODUCTS = (1.5, 20.0)
"""Largest product of a query and a key, scaled: small, and so large that a cap shows."""
LEAST_BIAS = -1e4
"""A bias below it hides a key."""
KNOWN_OPTIONS = {
    *("scaling", "dropout", "sliding_window", "softcap", "s_aux", "is_causal", "position_ids", "use_cache"),
    *("output_attentions", "input_ids", "cache_position", "cu_seq_lens_q", "cu_seq_lens_k", "max_length_q"),
    *("max_length_k", "return_dict", "output_hidden_states", "past_key_values", "position_embeddings"),
}
"""Options of an attention function that are understood here, or change no weight."""


@dataclass(frozen=True, eq=False)
class WantedWeights:
    """The weights that a layer should give, as its config has them."""

    scores: LayerScores
    view: Window | Segments | None
    sinks: Floats | None
    """[H] learned logits without a key."""
    other_views: tuple[Window | Segments, ...] = ()
    """What other layers see."""

    def at(
        self,
        products: Floats,
        ends: Positions,
        scale: float | None = None,
        cap: float | None = None,
        view: Any = ...,
        sinks: Any = ...,
    ) -> Floats:
        """[H, T, K] weights of products [H, T, K] before any scale, of queries at the positions `ends`."""
        scores = products * (self.scores.scale if scale is None else scale)
        cap = self.scores.cap if cap is None else cap
        if cap and np.isfinite(cap):
            scores = cap * np.tanh(scores / cap)
        keys = np.arange(products.shape[2])
        allowed = keys <= ends[:, None]
        seen = self.view if view is ... else view
        if seen is not None:
            allowed = allowed & seen.allowed(ends, keys)
        scores = np.where(allowed, scores, -np.inf)
        held = self.sinks if sinks is ... else sinks
        more = np.full((len(scores), 1, 1), -np.inf) if held is None else held[:, None, None]
        top = np.maximum(scores.max(-1, keepdims=True), more)
        shares = np.exp(scores - top)
        return np.asarray(shares / (shares.sum(-1, keepdims=True) + np.exp(more - top)))


def check_options(call: AttentionCall, place: str) -> None:
    """Refused where a call has an option, or a mask, by which other things count than positions and products."""
    unknown = [name for name, value in call.options.items() if name not in KNOWN_OPTIONS and isinstance(value, Tensor)]
    if unknown:
        raise Refused(f"{place} gives its attention function {unknown[0]}, which is not understood here")
    mask = call.mask
    if isinstance(mask, Tensor) and mask.is_floating_point() and not ((mask == 0) | (mask < LEAST_BIAS)).all():
        raise Refused(f"{place} adds a bias of its own to the scores, which is not understood here")
    if any(isinstance(each, nn.Conv1d) for each in call.module.modules()):
        raise Refused(f"{place} mixes tokens by a convolution before its attention: only a part of it would be read")


def check_weights(call: AttentionCall, wanted: WantedWeights, place: str) -> None:
    """RopeMismatch unless the call's function mixes values by the weights that are wanted, for its last keys.

    Args:
        call: of a text whose last tokens it has as queries.
        wanted: weights.
        place: name of the layer, for messages.
    """
    tokens, total = call.query.shape[2], call.key.shape[2]
    ends = np.arange(total - tokens, total)
    spans = _spans(wanted.view, ends, total, call.value.shape[3])
    for largest in LARGEST_PRODUCTS if tokens > 1 else LARGEST_PRODUCTS[:1]:  # a cap is the same for one token
        asked = _Asked(call, spans, largest / wanted.scores.scale)
        try:
            found = asked.weights()
        except (RuntimeError, TypeError, ValueError, NotImplementedError, AttributeError) as error:
            said = " ".join(f"{type(error).__name__}: {error}".split())[:120]
            raise Refused(f"the attention function of {place} cannot be asked by itself: {said}") from None
        right = _by_span(wanted.at(asked.products, ends), spans)
        slack = WEIGHT_SLACK[asked.dtype] + total * 2.0**-24 * right  # a sum over keys, each rounded
        off = np.nan_to_num(abs(found - right), nan=np.inf)
        if (off > slack).any():
            head, row, span = np.unravel_index(np.argmax(off), off.shape)
            last = [*spans, total][span + 1] - 1
            cause = _likely_cause(asked, found, wanted, ends, spans, slack)
            raise RopeMismatch(
                f"{place} does not weigh keys as its config says: the query at position {ends[row]:,} gives keys "
                f"{spans[span]:,} to {last:,} a weight of {found[head, row, span]:.4g} in head {head}, "
                f"not {right[head, row, span]:.4g}. Likely cause: {cause or 'none known'}",
                cause,
                None,
                int(ends[row]),
                float(off[head, row, span]),
                place,
            )


def _spans(view: Window | Segments | None, ends: Positions, total: int, most: int) -> list[int]:
    """Begins of spans of keys: what each query sees first, and the keys around it, by themselves."""
    cuts = {0, 1, *(int(each) for each in ends)}
    for end in ends:
        begin = int(end) - view.size + 1 if isinstance(view, Window) else 0
        if isinstance(view, Segments):
            begin = int(end) // view.size * view.size
        cuts |= {begin - 1, begin, begin + 1}
    found = sorted(each for each in cuts if 0 <= each < total)
    while len(found) > most:  # heads of few dimensions: the first keys together
        found.pop(1)
    return found


def _by_span(weights: Floats, spans: list[int]) -> Floats:
    return np.asarray(np.add.reduceat(weights, spans, axis=2))


@dataclass(frozen=True, eq=False)
class _Asked:
    """Queries and keys whose products are known."""

    call: AttentionCall
    spans: list[int]
    largest: float
    """Largest product of a query and a key."""

    @property
    def dtype(self) -> torch.dtype:
        """float32, or the half precision of a kernel that knows no other."""
        kernel = str(getattr(getattr(self.call.module, "config", None), "_attn_implementation", ""))
        return self.call.query.dtype if "flash" in kernel else torch.float32

    @property
    def _of_keys(self) -> Floats:
        """[KV, K] share of the largest product: others in each head; single keys have more than long spans."""
        heads, total = self.call.key.shape[1:3]
        sizes = np.diff([*self.spans, total])
        steps = np.where(sizes == 1, 1.0, 0.875) - 0.0625 * (np.arange(len(sizes)) % 3)
        steps_of_keys: Floats = np.repeat(steps, sizes)
        return np.asarray(steps_of_keys[None] * (1 - 0.125 * (np.arange(heads) % 5))[:, None])

    @property
    def _of_queries(self) -> Floats:
        """[H] largest product of each head, as the dtype holds it."""
        exact = torch.from_numpy(self.largest * (1 - 0.0625 * (np.arange(self.call.query.shape[1]) % 3)))
        return np.asarray(exact.to(self.dtype).double().numpy())

    @property
    def products(self) -> Floats:
        """[H, T, K] products, of heads that share keys with their neighbours."""
        return self.products_with(lambda keys, times: np.repeat(keys, times[0], axis=0))

    def products_with(self, spread: Callable[[Floats, tuple[int, int]], Floats]) -> Floats:
        """[H, T, K] products, of keys [KV, K] that are spread over all heads."""
        query, key = self.call.query, self.call.key
        keys = spread(self._of_keys, (query.shape[1] // key.shape[1], 1))
        whole = self._of_queries[:, None] * keys
        return np.repeat(whole[:, None], query.shape[2], axis=1)

    def weights(self) -> Floats:
        """[H, T, spans] weights that the function gives."""
        call = self.call
        query, key, value = (
            torch.zeros(each.shape, dtype=self.dtype, device=each.device) for each in (call.query, call.key, call.value)
        )
        query[..., 0] = torch.from_numpy(self._of_queries).to(query)[None, :, None]
        key[..., 0] = torch.from_numpy(self._of_keys).to(key)
        bounds = [*self.spans, key.shape[2]]
        for span, (begin, end) in enumerate(itertools.pairwise(bounds)):
            value[:, :, begin:end, span] = 1.0
        with torch.no_grad():
            made = call.attend(query, key, value)
        return np.asarray(made[0].transpose(0, 1)[..., : len(self.spans)].double().cpu().numpy())


def _likely_cause(
    asked: _Asked, found: Floats, wanted: WantedWeights, ends: Positions, spans: list[int], slack: Floats
) -> str | None:
    """What else gives these weights; None where nothing known does."""
    view, scores = wanted.view, wanted.scores

    def fits(**other: Any) -> bool:
        made = _by_span(wanted.at(asked.products, ends, **other), spans)
        return bool((abs(found - made) <= slack).all())

    if wanted.sinks is not None and fits(sinks=None):
        return "sinks dropped: the weights of the keys are 1 together"
    if view is not None:
        kind = "chunk" if isinstance(view, Segments) else "window"
        if fits(view=None):
            return f"{kind} dropped: it sees all keys, not {view.size:,}"
        for size in (view.size - 1, view.size + 1, view.size // 2, 2 * view.size):
            if size > 0 and fits(view=type(view)(size)):
                return f"another {kind}: {size:,} keys, not {view.size:,}"
        if isinstance(view, Segments) and fits(view=Window(view.size)):
            return f"a window of {view.size:,} keys in place of a chunk"
    for other in wanted.other_views:
        if fits(view=other):
            return f"it sees {other.size:,} keys, as other layers do, not {f'{view.size:,}' if view else 'all'}"
    repeats = asked.call.query.shape[1] // asked.call.key.shape[1]
    if repeats > 1 and (abs(found - _by_span(wanted.at(asked.products_with(np.tile), ends), spans)) <= slack).all():
        return "heads read the keys of other heads: keys are tiled, not repeated"
    if scores.cap and fits(cap=np.inf):
        return f"cap of {scores.cap:g} on the scores dropped"
    return _of_scale(asked, found, wanted, spans)


def _of_scale(asked: _Asked, found: Floats, wanted: WantedWeights, spans: list[int]) -> str | None:
    """The cause of another scale: the log of a ratio of two weights, over the difference of their products.

    None where the same scale does not give all ratios.
    """
    sizes = np.diff([*spans, asked.call.key.shape[2]])
    products = asked.products[:, -1][:, spans]
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log(found[:, -1] / sizes)
        scales = (logs - logs[:, -1:]) / (products - products[:, -1:])
    told = np.isfinite(scales)
    if not told.any() or np.ptp(scales[told]) > 2e-2 * abs(np.median(scales[told])):
        return None
    scale, own, latent = float(np.median(scales[told])), wanted.scores.scale, wanted.scores.latent
    if math.isclose(scale, own, rel_tol=1e-3):  # right weights of keys beside each other: another share of all
        return None if wanted.sinks is None else _of_sinks(asked, found, wanted, spans)
    head_dim = asked.call.query.shape[3]
    named = [
        (own / latent**2, "scale of latent attention without mscale^2"),
        (own / latent, "scale of latent attention times mscale once, not mscale^2"),
        (own * latent**2, "mscale^2 of latent attention applied twice"),
        (1.0, "scale of the softmax dropped"),
        (head_dim**-0.5, "scale of a plain head in place of the layer's own"),
        (own * own, "scale of the softmax applied twice"),
    ]
    fitting = (words for each, words in named if np.isclose(each, scale, rtol=1e-3) and not np.isclose(each, own))
    said = next(fitting, "another scale of the softmax")
    return f"{said}: {scale:.4g}, not {own:.4g}"


def _of_sinks(asked: _Asked, found: Floats, wanted: WantedWeights, spans: list[int]) -> str | None:
    """The cause of other sinks: the share that the keys leave them tells each head's logit."""
    held = np.asarray(wanted.sinks)
    last = np.array([asked.call.key.shape[2] - 1])
    shares = (found[:, -1].sum(1), _by_span(wanted.at(asked.products[:, -1:], last), spans)[:, -1].sum(1))
    if any(((each <= 0) | (each >= 1)).any() for each in shares):
        return None
    got, expected = (np.log((1 - each) / each) for each in shares)
    read = held + got - expected
    head = int(np.argmax(abs(read - held)))
    owners = np.flatnonzero(np.isclose(held, read[head], atol=1e-2))
    if len(owners) and np.allclose(np.sort(read), np.sort(held), atol=1e-2):
        return f"sinks of other heads: head {head} has that of head {owners[0]}"
    return f"other sinks: that of head {head} is {read[head]:.4g}, not {held[head]:.4g}"
