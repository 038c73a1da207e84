"""How an Attention enters a model of transformers, and leaves it again.

`inv_freq` and `scale` replace the model's rotary module by a changed copy: the stock attention goes on. The slots of
the scores replace the attention function in transformers' registry. There the rotary module is one that turns by
nothing, so that queries and keys arrive, and keys are cached, as they are before rotation; the model's own rotary
module gives the angles and its own `apply_rotary_pos_emb` turns, whatever its layout and share of rotated dimensions.
"""

import copy
import itertools
import math
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from transformers import AttentionInterface, DynamicCache

from lexbench.attention import Attention, Floats, Line, Positions, Remap, Window
from lexbench.kernels import dense
from lexbench.record import Refused

TOLERANCE = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 4e-2}
"""Of logits of one model computed on two ways: their difference as a share of their spread."""
ROTARY = ("inv_freq", "scale", "remap")
"""Slots that mean nothing without a rotary module."""
SCORES = ("query_scale", "remap", "mask", "bias", "layers")
"""Slots that the stock attention cannot express."""
_numbers = itertools.count()


class Still(nn.Module):
    """A rotary module that turns by nothing: cos 1, sin 0."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width

    def forward(self, x: Tensor, position_ids: Tensor, layer_type: str | None = None) -> tuple[Tensor, Tensor]:
        """Cos and sin, [1, T, width]."""
        shape = (1, position_ids.shape[-1], self.width)
        return x.new_ones(shape), x.new_zeros(shape)


class Unrealisable(Exception):  # noqa: N818 (becomes a refusal where the slots are known)
    """Why the scores of a model cannot be computed by us."""


@dataclass
class Hook:
    """The attention function of one Attention, as transformers calls it."""

    attention: Attention
    changed: nn.Module | None
    """Rotary module of the layers for which the Attention holds."""
    stock: nn.Module | None
    window: int | None
    """Tokens that some layers of the model see, which this function does not imitate."""
    calls: int = 0

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
        **unused: Any,
    ) -> tuple[Tensor, None]:
        """[B, T, H, D] attended values, and no weights."""
        self.calls += 1
        for what, given in (
            ("capped scores", softcap),
            ("learned sinks", s_aux),
            ("a mask of its own", attention_mask),
        ):
            if given is not None:
                raise Unrealisable(f"its attention has {what}")
        total, asked = key.shape[2], query.shape[2]
        if self.window is not None and total > self.window:
            raise Unrealisable(f"its layers see {self.window} tokens, asked for {total}")
        held = self.attention.layers is None or module.layer_idx in self.attention.layers
        rotary = self.changed if held else self.stock
        positions = torch.arange(total - asked, total, device=query.device)
        mixed = dense.attend(
            query,
            key,
            value,
            positions,
            self.attention if held else Attention(),
            _rotate_by(rotary, module),
            scaling if scaling is not None else 1 / math.sqrt(query.shape[3]),
        )
        return mixed.transpose(1, 2).contiguous(), None


def _rotate_by(rotary: nn.Module | None, module: nn.Module) -> dense.Rotate:
    """Rotation as the model's own code does it, at any positions."""
    if rotary is None:
        return lambda vectors, positions: vectors
    apply: Callable[..., tuple[Tensor, Tensor]] = vars(sys.modules[type(module).__module__])["apply_rotary_pos_emb"]

    def rotate(vectors: Tensor, positions: Tensor) -> Tensor:
        cos, sin = rotary(vectors, positions[None])
        width = cos.shape[-1]
        turned, _ = apply(vectors[..., :width], vectors[:, :0, :, :width], cos, sin)
        return torch.cat([turned, vectors[..., width:]], dim=-1)

    return rotate


class Placed:
    """What brings Attentions into one loaded model.

    Args:
        network: a causal language model of transformers, on its device.
        name: of the model, for refusals.
        trained_length: up to four times of it, cos and sin are compared with the method's numbers.
        end: rows of the table of positions, where the model has one.
    """

    def __init__(self, network: Any, name: str, trained_length: int, end: int | None) -> None:
        self._network = network
        self._base = network.base_model
        self._config = network.config.get_text_config()
        self._name = name
        self._trained_length = trained_length
        self._end = end
        self._kernel = network.config._attn_implementation
        self._registered = f"lexbench_{next(_numbers)}"
        places = [place for place, module in self._base.named_modules() if hasattr(module, "inv_freq")]
        self._place = places[0] if len(places) == 1 else None
        self._stock: nn.Module | None = self._base.get_submodule(self._place) if self._place else None
        self._fresh = copy.deepcopy(self._stock)
        kind = getattr(self._stock, "rope_type", "default")
        self._stateful = kind if "dynamic" in kind or kind == "longrope" else None
        """The rope type, where frequencies follow the longest input seen so far."""
        self._window = _window(self._config)
        self._obstacle: str | None = None
        self._checked = False

    def begin(self) -> None:
        """Before each question: forget what earlier inputs did to frequencies that follow the length."""
        if self._stateful and self._place and self._base.get_submodule(self._place) is self._stock:
            self._stock = copy.deepcopy(self._fresh)
            self._install(self._stock)

    def attend(self, attention: Attention) -> None:
        """Put the model under this Attention, an empty one gives the stock model; Refused names the slot."""
        self._remove()
        if not attention.slots():
            return
        self._check(attention)
        with ExitStack() as undo:
            undo.callback(self._remove)
            changed = self._changed(attention)
            wanted = [slot for slot in SCORES if slot in attention.slots()]
            if wanted:
                self._check_hook(wanted)
                self._hook(Hook(attention, changed, self._stock, self._window))
            else:
                self._install(changed)
            undo.pop_all()

    def explain(self, obstacle: Unrealisable, attention: Attention) -> Refused:
        """The refusal that an obstacle makes, met while answering."""
        wanted = [slot for slot in SCORES if slot in attention.slots()]
        return self._refusal(wanted, str(obstacle))

    # the model's modules

    def _install(self, rotary: nn.Module | None) -> None:
        if rotary is not None and self._place:
            parent, _, leaf = self._place.rpartition(".")
            setattr(self._base.get_submodule(parent), leaf, rotary)

    def _remove(self) -> None:
        self._install(self._stock)
        self._set_kernel(self._kernel)

    def _hook(self, hook: Hook) -> None:
        AttentionInterface.register(self._registered, hook)
        self._set_kernel(self._registered)
        if self._stock is not None:
            cos, _ = self._turns(self._stock, np.zeros(1, dtype=np.int64))
            self._install(Still(cos.shape[-1]))

    def _set_kernel(self, kernel: str) -> None:
        if self._network.config._attn_implementation != kernel:
            self._network.set_attn_implementation(kernel)

    def _changed(self, attention: Attention) -> nn.Module | None:
        """A copy of the rotary module with the Attention's frequencies and scale, checked."""
        if attention.inv_freq is None and attention.scale is None:
            return self._stock
        changed: Any = copy.deepcopy(self._fresh)
        if attention.inv_freq is not None:
            changed.rope_type = "default"  # else transformers goes on with updates of its own
            frequencies = torch.from_numpy(attention.inv_freq.copy()).to(changed.inv_freq.device, torch.float32)
            changed.inv_freq = frequencies
            changed.original_inv_freq = frequencies.clone()
        if attention.scale is not None:
            changed.attention_scaling = attention.scale
        self._compare(changed, attention)
        return cast(nn.Module, changed)

    # checks

    def _refusal(self, slots: Sequence[str], why: str) -> Refused:
        return Refused(f"hf cannot realise {', '.join(slots)} on {self._name}: {why}")

    def _check(self, attention: Attention) -> None:
        """Refused or ValueError where the slots and the model do not fit, seen without running it."""
        turning = [slot for slot in ROTARY if slot in attention.slots()]
        if turning and self._stock is None:
            raise self._refusal(turning, "it has no rotary module with one table of frequencies")
        if self._stateful and (attention.inv_freq is None or attention.layers is not None):
            raise self._refusal(attention.slots(), f"its own angles change with length ({self._stateful})")
        heads, layers = self._config.num_attention_heads, self._config.num_hidden_layers
        if attention.bias is not None and len(attention.bias.slopes) != heads:
            raise ValueError(f"bias needs a slope for each of {heads} heads, got {len(attention.bias.slopes)}")
        if attention.layers is not None and not set(attention.layers) <= set(range(layers)):
            raise ValueError(f"layers must be among 0 to {layers - 1}, got {attention.layers}")
        if attention.inv_freq is not None and self._stock is not None:
            pairs, given = len(cast(Tensor, self._stock.inv_freq)), len(attention.inv_freq)
            if given != pairs:
                raise ValueError(f"inv_freq needs {pairs} pairs on {self._name}, got {given}: check model.rotary_dim")

    def _compare(self, rotary: nn.Module, attention: Attention) -> None:
        """The module's cos and sin are those of the frequencies and the scale, as exactly as float32 allows."""
        frequencies = attention.inv_freq
        if frequencies is None:
            frequencies = rotary.inv_freq.double().cpu().numpy()  # type: ignore[operator]
        scale = float(rotary.attention_scaling)  # type: ignore[arg-type]
        places = np.array([0, 1, self._trained_length, 4 * self._trained_length])
        angles = places[:, None] * frequencies
        slack = scale * (angles * 2.0**-23 + 1e-6)
        for values, turn in zip(self._turns(rotary, places), (np.cos, np.sin), strict=True):
            # Half layouts repeat all pairs, interleaved ones each pair.
            halves, twins = values[:, : len(frequencies)], values[:, :: max(1, values.shape[1] // len(frequencies))]
            right = [(abs(part - scale * turn(angles)) <= slack).all() for part in (halves, twins)]
            assert any(right), f"rotary module of {self._name} does not turn by the method's angles"

    def _turns(self, rotary: nn.Module, places: Positions) -> list[Floats]:
        """Cos and sin of the positions, each [n, width]."""
        device = self._network.device
        made = rotary(torch.zeros(1, device=device), torch.from_numpy(places)[None].to(device))
        return [values[0].double().cpu().numpy() for values in made]

    def _check_hook(self, slots: Sequence[str]) -> None:
        """Refused unless our attention, asked for nothing, gives the model's own logits; tried once."""
        if not self._checked:
            self._checked = True
            try:
                self._obstacle = self._try_hook()
            except Unrealisable as obstacle:
                self._obstacle = str(obstacle)
        if self._obstacle:
            raise self._refusal(slots, self._obstacle)

    @torch.inference_mode()
    def _try_hook(self) -> str | None:
        """Why our attention does not fit, or None: a forward pass in three pieces with a cache against a stock one."""
        limit = min(24, self._end or 24, self._window or 24)
        tokens = (torch.arange(limit) * 7919 % self._config.vocab_size)[None].to(self._network.device)
        self.begin()
        expected = self._network(tokens, use_cache=False).logits.double()
        if self._stock is None:
            nothing = Attention(mask=Window(1 << 40))
        else:
            nothing = Attention(remap=Remap(1 << 40, Line(), Line()))
        hook = Hook(nothing, self._stock, self._stock, self._window)
        self._hook(hook)
        cache = DynamicCache(config=self._config)
        pieces = tokens.split([limit - 3, 1, 2], dim=1)
        got = [self._network(piece, past_key_values=cache, use_cache=True).logits.double() for piece in pieces]
        self._remove()
        if hook.calls != len(pieces) * self._config.num_hidden_layers:
            return "its attention does not go through transformers' registry"
        error = torch.cat(got, dim=1) - expected
        if not error.std() <= TOLERANCE[self._network.dtype] * expected.std():
            return "our attention, asked for nothing, does not give its logits"
        return None


def _window(config: Any) -> int | None:
    """Tokens that layers with a sliding or chunked window see; None where all layers see everything."""
    kinds = getattr(config, "layer_types", None)
    if kinds is not None and set(kinds) <= {"full_attention"}:
        return None
    sizes = [getattr(config, name, None) for name in ("sliding_window", "attention_chunk_size")]
    return min((size for size in sizes if size), default=None)
