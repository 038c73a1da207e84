"""The attention function that computes an Attention's scores inside a model of transformers."""

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lexbench.core.attention import Attention
from lexbench.core.record import Refused
from lexbench.kernels import fast, rotations
from lexbench.kernels.dense import Rotate
from lexbench.kernels.logits import Logits

kernel = fast.attend
"""Computes all attention that the stock kernel cannot."""
Watch = Callable[[int, Tensor, Tensor, Logits], None]
"""(layer, queries [1, H, T, D], keys [1, KV, K, D], how they become logits)"""


class Unrealisable(Refused):
    """Why the scores of a model cannot be computed by us; the slots are named where they are known."""


class Still(nn.Module):
    """A rotary module that turns by nothing: cos 1, sin 0."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width

    def forward(self, x: Tensor, position_ids: Tensor, layer_type: str | None = None) -> tuple[Tensor, Tensor]:
        """Cos and sin, [1, T, width]."""
        shape = (1, position_ids.shape[-1], self.width)
        return x.new_ones(shape), x.new_zeros(shape)


@dataclass(frozen=True)
class Held:
    """What holds for one layer: its Attention, and the rotary module with the Attention's frequencies and scale."""

    attention: Attention
    rotary: nn.Module | None


@dataclass
class Hook:
    """The attention function of one Attention, as transformers calls it."""

    layers: Sequence[Held]
    stock: nn.Module | None
    """The model's own rotary module."""
    turned: bool
    """Queries and keys arrive rotated; else as they are before rotation, and are cached so."""
    window: int | None = None
    """Tokens that some layers of the model see, which this function does not imitate."""
    prompt: int | None = None
    """Tokens of the question before its answer; None: the first forward pass is the prompt."""
    watch: Watch | None = None
    """Shown every layer's queries and keys before they meet."""
    calls: int = 0

    def __post_init__(self) -> None:
        self.modules: dict[int, nn.Module] = {}
        """The attention module of each layer that has asked."""
        self.shapes: dict[int, tuple[int, int, int]] = {}
        """Its heads, key heads and head_dim."""
        self.ratios: dict[tuple[int, int], tuple[float, ...]] = {}
        """By layer and row of the batch, what `head_ratios` came to."""

    def begin(self, prompt: int | None) -> None:
        """Before each question."""
        self.prompt = prompt
        self.ratios.clear()

    def __call__(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        scaling: float | None = None,
        softcap: float | None = None,
        s_aux: Tensor | None = None,
        position_ids: Tensor | None = None,
        dropout: float = 0.0,
        **unused: Any,
    ) -> tuple[Tensor, None]:
        """[B, T, H, D] attended values, and no weights."""
        self.calls += 1
        total, layer = key.shape[2], int(module.layer_idx)  # type: ignore[arg-type]
        self.modules[layer], self.shapes[layer] = module, (query.shape[1], key.shape[1], key.shape[3])
        for what, given in (("capped scores", softcap), ("learned sinks", s_aux), ("dropout", dropout or None)):
            if given is not None:
                raise Unrealisable(f"its attention has {what}")
        if self.window is not None and total > self.window:
            raise Unrealisable(f"its layers see {self.window} tokens, asked for {total}")
        rows = _rows(attention_mask, query, total)
        if self.layers[layer].attention.head_ratios is not None and attention_mask is None:
            rows = [(slice(row, row + 1), (0, total)) for row in range(len(query))]
        if layer == 0:
            _check_positions(position_ids, key, rows)
        scaling = scaling if scaling is not None else 1 / math.sqrt(query.shape[3])
        mixed = torch.zeros(*query.shape[:3], value.shape[3], dtype=query.dtype, device=query.device)
        for row, (begin, end) in rows:
            asked = slice(max(0, begin + query.shape[2] - total), query.shape[2] + end - total)
            mixed[row, :, asked] = self._attend(
                module,
                layer,
                query[row, :, asked],
                key[row, :, begin:end],
                value[row, :, begin:end],
                scaling,
                row.start,
            )
        return mixed.transpose(1, 2).contiguous(), None

    def _attend(
        self, module: nn.Module, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float, row: int | None
    ) -> Tensor:
        held = self.layers[layer]
        total, asked = key.shape[2], query.shape[2]
        positions = torch.arange(total - asked, total, device=query.device)
        rotate = still if self.turned else rotation(module, held.rotary)
        if held.attention.keep_first is not None:
            rotate = rotations.keeping_first(held.attention.keep_first, rotation(module, self.stock), rotate)
        ratios = None
        if held.attention.head_ratios is not None:
            name = (layer, row or 0)
            if asked == total:
                place = min(self.prompt or total, total)
                asking, known = query[:, :, place - 1 : place], key[:, :, :place]
                self.ratios[name] = rotations.ranked_ratios(asking, known, rotate, scaling, held.attention.head_ratios)
            if name not in self.ratios:
                raise Unrealisable("its cache holds a prompt that was read before: read each prompt anew, at once")
            ratios = self.ratios[name]
        if self.watch is not None:
            logits = Logits(attention=held.attention, rotate=rotate, ratios=ratios, scaling=scaling)
            self.watch(layer, query, key, logits)
        if ratios is not None:
            rotate = rotations.per_head(ratios, rotate)
        return kernel(query, key, value, positions, held.attention, rotate, scaling)


def plain_mask(attention_mask: Tensor | None, **unused: Any) -> Tensor | None:
    """What transformers asks for instead of a mask: [B, K] which tokens are no padding; None where none are."""
    return None if attention_mask is None or bool(attention_mask.all()) else attention_mask


def _rows(mask: Tensor | None, query: Tensor, total: int) -> list[tuple[slice, tuple[int, int]]]:
    """Rows of the batch that can be computed together, with where their text begins and ends."""
    if mask is None:
        return [(slice(None), (0, total))]
    if mask.dim() != 2 or mask.shape[1] != total:
        raise Unrealisable("its attention has a mask of its own")
    found = []
    for row, real in enumerate(mask.bool().cpu()):
        places = real.nonzero()[:, 0]
        begin, end = (int(places[0]), int(places[-1]) + 1) if len(places) else (total, total)
        if end - begin != len(places) or (end < total and query.shape[2] < total):
            raise Unrealisable("a row of the batch has padding inside its text: pad on the left")
        if begin < end:
            found.append((slice(row, row + 1), (begin, end)))
    return found


def _check_positions(position_ids: Tensor | None, key: Tensor, rows: list[tuple[slice, tuple[int, int]]]) -> None:
    """Positions count up to the last key of each row; else keys are packed, or a cache has empty places."""
    total = key.shape[2]
    if position_ids is None:
        if not bool(key[:, :, -1].any()):
            raise Unrealisable("its cache has empty places: give a plain cache")
        return
    for row, (begin, end) in rows:
        last = int(position_ids[row if len(position_ids) > 1 else slice(None)].max())
        if last not in (end - begin - 1, total - 1):
            raise Unrealisable(f"its positions end at {last} with {end - begin} keys: give one text a row, plain cache")


# how vectors are turned


def still(vectors: Tensor, positions: Tensor) -> Tensor:
    """No rotation."""
    return vectors


def rotation(module: nn.Module, rotary: nn.Module | None) -> Rotate:
    """Rotation as the model's own code does it, at any positions."""
    if rotary is None:
        return still
    apply: Callable[..., tuple[Tensor, Tensor]] = vars(sys.modules[type(module).__module__])["apply_rotary_pos_emb"]

    def rotate(vectors: Tensor, positions: Tensor) -> Tensor:
        cos, sin = (turn.to(vectors.device) for turn in rotary(vectors, positions[None]))
        width = cos.shape[-1]
        turned, _ = apply(vectors[..., :width], vectors[:, :0, :, :width], cos, sin)
        return torch.cat([turned, vectors[..., width:]], dim=-1)

    return rotate
