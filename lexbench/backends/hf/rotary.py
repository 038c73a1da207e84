"""How an Attention enters a model of transformers, and leaves it again.

`inv_freq`, `scale` and `dynamic` replace the model's rotary module by a changed copy: the stock attention goes on. The
slots of the scores replace the attention function in transformers' registry (`hook`). Where some keys must be rotated
at other positions than their own, the rotary module becomes one that turns by nothing, so that queries and keys
arrive, and keys are cached, as they are before rotation; the model's own rotary module gives the angles and its own
`apply_rotary_pos_emb` turns, whatever its layout and share of rotated dimensions.
"""

import copy
import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, DynamicCache

from lexbench.backends.hf import evidence
from lexbench.backends.hf.hook import Held, Hook, Still, Unrealisable, Watch, plain_mask
from lexbench.core.attention import Attention, Floats, Line, Positions, Remap, Window
from lexbench.core.model import Model
from lexbench.core.record import Refused
from lexbench.kernels.reference import Angles

TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 4e-2}
"""Of logits of one model computed on two ways: their difference as a share of their spread."""
ROTARY = ("inv_freq", "scale", "keep_first", "head_ratios", "dynamic", "remap")
"""Slots that mean nothing without a rotary module."""
UNTURNED = ("keep_first", "head_ratios", "remap")
"""Slots that rotate a vector at another position than its own, or otherwise than its neighbour."""
SCORES = (*UNTURNED, "query_scale", "mask", "bias", "layers")
"""Slots that the stock attention cannot express."""
PROBES = "probes"
"""What stands for a slot where attention is only watched."""
_numbers = itertools.count()


@dataclass(frozen=True)
class Placement:
    """An Attention made ready for one model, to be put in without further checks."""

    attention: Attention
    rotary: nn.Module | None
    """Rotary module to install; None: the model has none."""
    hook: Hook | None = None
    """The attention function; None: the stock one."""

    @property
    def grows(self) -> bool:
        """Whether frequencies follow the longest input so far: each question gets a copy of its own."""
        kind = str(getattr(self.rotary, "rope_type", "default"))
        return "dynamic" in kind or "longrope" in kind


class Placed:
    """What brings Attentions into one loaded model.

    Args:
        network: a causal language model of transformers, on its device.
        name: of the model, for refusals.
        trained_length: up to four times of it, cos and sin are compared with the method's numbers.
        end: rows of the table of positions, where the model has one.
    """

    def __init__(self, network: Any, name: str, trained_length: int, end: int | None = None) -> None:
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
        self._original: nn.Module | None = self._base.get_submodule(self._place) if self._place else None
        self._stock = copy.deepcopy(self._original)
        self._own = Placement(Attention(), self._original)
        if self._own.grows:
            self._own = Placement(Attention(), self._stock)
        self._placement = self._own
        self._window = _window(self._config)
        self._obstacles: dict[bool, str | None] = {}

    def prepare(self, attention: Attention, watch: Watch | None = None) -> Placement:
        """An Attention made ready, and whoever watches it; Refused names the slots that do not fit this model."""
        for part in attention.parts():
            self._check(part)
        if self._own.grows and attention.layers is not None:
            raise self._refusal(["layers"], "its own angles change with length")
        self._check_sizes(attention)
        rotaries: dict[Any, nn.Module | None] = {}
        kinds: dict[str, Held] = {}
        held = []
        for part in (attention.at(layer) for layer in range(self._config.num_hidden_layers)):
            frequencies = None if part.inv_freq is None else part.inv_freq.tobytes()
            turn, kind = (frequencies, part.scale, part.dynamic), json.dumps(part.as_data())
            if turn not in rotaries:
                rotaries[turn] = self._changed(part)
            held.append(kinds.setdefault(kind, Held(part, rotaries[turn])))
        first = held[0].rotary
        wanted = self._wanted(attention)
        if not wanted and watch is None:
            return Placement(attention, first)
        turned = len(rotaries) == 1 and not set(UNTURNED) & set(wanted)
        self._check_hook(wanted or [PROBES], turned)
        hook = Hook(held, self._stock, turned, self._window, watch=watch)
        return Placement(attention, first if turned else self._still(), hook)

    def put(self, placement: Placement) -> None:
        """Put this in place of what is there."""
        self._placement = placement
        if placement.hook is not None:
            AttentionInterface.register(self._registered, placement.hook)
            AttentionMaskInterface.register(self._registered, plain_mask)
            self._set_kernel(self._registered)
        else:
            self._unhook()
        self.begin()

    def begin(self, prompt: int | None = None) -> None:
        """Before each question, of so many tokens before its answer: forget what earlier ones left behind."""
        placement = self._placement
        self._install(copy.deepcopy(placement.rotary) if placement.grows else placement.rotary)
        if placement.hook is not None:
            placement.hook.begin(prompt)

    def remove(self) -> None:
        """Give the model back as it came."""
        self._placement = self._own
        self._install(self._original)
        self._unhook()

    def explain(self, obstacle: Unrealisable) -> Refused:
        """The refusal that an obstacle makes, met while answering."""
        return self._refusal(self._wanted(self._placement.attention) or [PROBES], str(obstacle))

    # the model's modules

    def _install(self, rotary: nn.Module | None) -> None:
        if rotary is not None and self._place:
            parent, _, leaf = self._place.rpartition(".")
            setattr(self._base.get_submodule(parent), leaf, rotary)

    def _unhook(self) -> None:
        self._set_kernel(self._kernel)
        for registry in (AttentionInterface, AttentionMaskInterface):  # which would keep the model alive
            registry._global_mapping.pop(self._registered, None)

    def _set_kernel(self, kernel: str) -> None:
        if self._network.config._attn_implementation != kernel:
            self._network.set_attn_implementation(kernel)

    def _still(self) -> Still | None:
        """Turns by nothing, in the width that the model's code expects; None without a rotary module."""
        if self._stock is None:
            return None
        cos, _ = self._turns(copy.deepcopy(self._stock), np.zeros(1, dtype=np.int64))
        return Still(cos.shape[-1])

    def _changed(self, attention: Attention) -> nn.Module | None:
        """A copy of the rotary module with the Attention's frequencies and scale, checked."""
        if attention.inv_freq is None and attention.scale is None and attention.dynamic is None:
            return self._own.rotary
        changed: Any = copy.deepcopy(self._stock)
        if attention.dynamic is not None:
            changed.config = copy.deepcopy(changed.config)
            changed.config.max_position_embeddings = attention.dynamic.trained_length
            changed.config.rope_parameters |= {"rope_type": "dynamic", "factor": attention.dynamic.factor}
            changed.rope_type = "dynamic"
            changed.max_seq_len_cached = changed.original_max_seq_len = attention.dynamic.trained_length
            return cast(nn.Module, changed)
        if attention.inv_freq is not None:
            changed.rope_type = "default"  # else transformers goes on with updates of its own
            frequencies = torch.from_numpy(attention.inv_freq.copy()).to(changed.inv_freq.device, torch.float32)
            changed.inv_freq = frequencies
            changed.original_inv_freq = frequencies.clone()
        if attention.scale is not None:
            changed.attention_scaling = attention.scale
        self._compare(changed, attention, 4 * self._trained_length)
        return cast(nn.Module, changed)

    # checks

    def _wanted(self, attention: Attention) -> list[str]:
        """Slots in use, in any layer, that the stock attention cannot express."""
        used = {*attention.slots(), *(slot for part in attention.parts() for slot in part.slots())}
        return [slot for slot in SCORES if slot in used]

    def _refusal(self, slots: Sequence[str], why: str) -> Refused:
        return Refused(f"hf cannot realise {', '.join(slots)} on {self._name}: {why}")

    def _check(self, attention: Attention) -> None:
        """Refused or ValueError where the slots and the model do not fit, seen without running it."""
        assert attention.mixture is None, "several passes are the backend's affair"
        turning = [slot for slot in ROTARY if slot in attention.slots()]
        if turning and self._stock is None:
            raise self._refusal(turning, "it has no rotary module with one table of frequencies")
        kind = str(getattr(self._stock, "rope_type", "default"))
        if self._own.grows and attention.slots() and attention.inv_freq is None:
            raise self._refusal(attention.slots(), f"its own angles change with length ({kind})")
        if attention.dynamic is not None and kind != "default":
            raise self._refusal(["dynamic"], f"it already scales its angles ({kind})")

    def _check_sizes(self, attention: Attention) -> None:
        heads = self._config.num_attention_heads
        attention.check_fits(
            self._name,
            pairs=None if self._stock is None else len(cast(Tensor, self._stock.inv_freq)),
            heads=heads,
            kv_heads=getattr(self._config, "num_key_value_heads", None) or heads,
            layers=self._config.num_hidden_layers,
        )

    def realised(self, placement: Placement, model: Model, length: int) -> float | None:
        """Largest difference of what is computed in place to the formula, up to a position or over a text of `length`.

        Of attention weights where the placement has scores of its own and has been asked already, else of cos and sin.
        None where these follow the input.
        """
        if placement.hook is not None:
            return evidence.of_weights(placement.hook, self._own_angles(model), self._network.device, length)
        rotary = copy.deepcopy(placement.rotary)
        if rotary is None or placement.grows:
            return None
        return self._compare(rotary, placement.attention, length)

    def _own_angles(self, model: Model) -> Angles:
        if self._stock is None:
            return Angles(np.empty(0))
        inv_freq = cast(Tensor, self._stock.inv_freq).double().cpu().numpy()
        plain = model.rope_base is not None and model.rope_scaling is None
        scale = float(cast(Any, self._stock).attention_scaling)
        return Angles(model.inv_freq() if plain else inv_freq, scale, model.rotary_layout)

    def _compare(self, rotary: nn.Module, attention: Attention, length: int) -> float:
        """Largest difference of the module's cos and sin to those of the frequencies and the scale.

        Asserts that it is as small as float32 allows.
        """
        frequencies = attention.inv_freq
        if frequencies is None:
            frequencies = rotary.inv_freq.double().cpu().numpy()  # type: ignore[operator]
        scale = float(rotary.attention_scaling)  # type: ignore[arg-type]
        places = np.unique(np.linspace(0, length, 9).astype(np.int64))
        angles = places[:, None] * frequencies
        slack = scale * (angles * 2.0**-23 + 1e-6)
        largest = 0.0
        for values, turn in zip(self._turns(rotary, places), (np.cos, np.sin), strict=True):
            # Half layouts repeat all pairs, interleaved ones each pair.
            halves, twins = values[:, : len(frequencies)], values[:, :: max(1, values.shape[1] // len(frequencies))]
            errors = [abs(part - scale * turn(angles)) for part in (halves, twins)]
            right = [float(error.max()) for error in errors if (error <= slack).all()]
            assert right, f"rotary module of {self._name} does not turn by the method's angles"
            largest = max(largest, min(right))
        return largest

    def _turns(self, rotary: nn.Module, places: Positions) -> list[Floats]:
        """Cos and sin of the positions, each [n, width]."""
        device = self._network.device
        made = rotary(torch.zeros(1, device=device), torch.from_numpy(places)[None].to(device))
        if not (isinstance(made, tuple) and len(made) == 2 and not made[0].is_complex()):
            raise self._refusal(["inv_freq"], "its rotary module gives no cos and sin")
        return [values[0].double().cpu().numpy() for values in made]

    def _check_hook(self, slots: Sequence[str], turned: bool) -> None:
        """Refused unless our attention, asked for nothing, gives the model's own logits; tried once in each way."""
        if turned not in self._obstacles:
            before, learning = self._placement, self._network.training
            self._network.eval()
            try:
                self._obstacles[turned] = self._try_hook(turned)
            except Unrealisable as met:
                self._obstacles[turned] = str(met)
            finally:
                self._network.train(learning)
                self.put(before)
        if obstacle := self._obstacles[turned]:
            raise self._refusal(slots, obstacle)

    @torch.inference_mode()
    def _try_hook(self, turned: bool) -> str | None:
        """Why our attention does not fit, or None: a forward pass in three pieces with a cache against a stock one."""
        layers = self._config.num_hidden_layers
        limit = min(24, self._end or 24, self._window or 24)
        tokens = (torch.arange(limit) * 7919 % self._config.vocab_size)[None].to(self._network.device)
        self.put(self._own)
        expected = self._network(tokens, use_cache=False).logits.double()
        if turned or self._stock is None:
            nothing = Attention(mask=Window(1 << 40))
        else:
            nothing = Attention(remap=Remap(1 << 40, Line(), Line()))
        hook = Hook([Held(nothing, self._stock)] * layers, self._stock, turned, self._window)
        self.put(Placement(nothing, self._own.rotary if turned else self._still(), hook))
        cache = DynamicCache(config=self._config)
        pieces = tokens.split([limit - 3, 1, 2], dim=1)
        got = [self._network(piece, past_key_values=cache, use_cache=True).logits.double() for piece in pieces]
        if hook.calls != len(pieces) * layers:
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
