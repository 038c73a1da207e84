"""Installs an Attention into a transformers model, and removes it.

- `inv_freq`, `scale` and `dynamic`: replace the model's rotary module with a changed copy; the stock attention stays.
- Slots that change scores: also register our attention function with transformers (`hook`).
- Slots that rotate keys at other positions than their own (`UNROTATED`): also replace the rotary module with
  IdentityRotary. Queries and keys then arrive unrotated, the cache holds unrotated keys, and our attention function
  rotates them by the model's own `apply_rotary_pos_emb`.
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
from transformers import AttentionInterface, AttentionMaskInterface, DynamicCache, PreTrainedModel

from lexbench.backends.hf import evidence
from lexbench.backends.hf.hook import Hook, IdentityRotary, LayerAttention, Unrealisable, Watch, plain_mask
from lexbench.backends.hf.memory import is_out_of_memory
from lexbench.backends.hf.network import towers
from lexbench.core.attention import Attention, Floats, Line, Positions, Remap, Window
from lexbench.core.model import Model
from lexbench.core.record import Refused
from lexbench.kernels.reference import Angles

TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 4e-2}
"""Largest difference of logits computed in two ways, as a fraction of their standard deviation."""
ROTARY = ("inv_freq", "scale", "keep_first", "head_ratios", "dynamic", "remap")
"""Slots that need a rotary module."""
UNROTATED = ("keep_first", "head_ratios", "remap")
"""Slots that need unrotated vectors: they rotate at other positions, or not all tokens alike."""
SCORES = (*UNROTATED, "query_scale", "mask", "bias", "layers")
"""Slots that the stock attention does not have."""
PROBES = "probes"
"""Named in a refusal in place of a slot, when attention is only probed."""
_numbers = itertools.count()


@dataclass(frozen=True)
class Placement:
    """An Attention prepared and checked for one model, ready to install."""

    attention: Attention
    rotary: nn.Module | None
    """Rotary module to install; None if the model has none."""
    hook: Hook | None = None
    """Our attention function; None: the stock one."""

    @property
    def grows(self) -> bool:
        """Whether frequencies depend on the longest input so far (`dynamic`, `longrope` of transformers).

        Such a module changes itself at each call, so every question gets a fresh copy.
        """
        kind = str(getattr(self.rotary, "rope_type", "default"))
        return "dynamic" in kind or "longrope" in kind


class AttentionInstaller:
    """Installs Attentions into one loaded model, and removes them.

    Args:
        network: a causal language model of transformers, on its device.
        name: of the model, for error messages.
        trained_length: cos and sin are compared with the method's numbers up to 4 times this length.
        end: number of positions in the model's table; None if it has no table.
        tower: the module that makes last hidden states of tokens; None: the innermost that could.
    """

    def __init__(self, network: Any, name: str, trained_length: int, end: int | None = None, tower: Any = None) -> None:
        self._network = network
        self._base = towers(network)[0] if tower is None else tower
        self._config = network.config.get_text_config()
        self._name = name
        self._trained_length = trained_length
        self._end = end
        models = [module for module in self._base.modules() if isinstance(module, PreTrainedModel)]
        self._kernels = [(model.config, model.config._attn_implementation) for model in (self._base, *models)]
        # A registry name of its own: several networks in one process may have different methods.
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
        """Prepare an Attention, and a probe if `watch` is given; Refused names slots that do not fit this model."""
        if _stated(self._config, "num_hidden_layers") is None:
            if wanted := attention.slots() or ([PROBES] if watch else []):
                raise self._refusal(wanted, "its config does not state one number of layers")
            return Placement(attention, self._own.rotary)
        for part in attention.parts():
            self._check(part)
        if self._own.grows and attention.layers is not None:
            raise self._refusal(["layers"], "its own angles change with length")
        self._check_sizes(attention)
        rotaries: dict[Any, nn.Module | None] = {}
        kinds: dict[str, LayerAttention] = {}
        layers = []
        for part in (attention.at(layer) for layer in range(self._config.num_hidden_layers)):
            frequencies = None if part.inv_freq is None else part.inv_freq.tobytes()
            angles, kind = (frequencies, part.scale, part.dynamic), json.dumps(part.as_data())
            if angles not in rotaries:
                rotaries[angles] = self._changed(part)
            layers.append(kinds.setdefault(kind, LayerAttention(part, rotaries[angles])))
        first = layers[0].rotary
        wanted = self._wanted(attention)
        if not wanted and watch is None:
            return Placement(attention, first)
        rotated = len(rotaries) == 1 and not set(UNROTATED) & set(wanted)
        self._check_hook(wanted or [PROBES], rotated)
        hook = Hook(layers, self._stock, rotated, self._window, watch=watch)
        return Placement(attention, first if rotated else self._identity(), hook)

    def put(self, placement: Placement) -> None:
        """Install a placement; replaces the previous one."""
        self._placement = placement
        if placement.hook is not None:
            AttentionInterface.register(self._registered, placement.hook)
            AttentionMaskInterface.register(self._registered, plain_mask)
            if self._base.config._attn_implementation != self._registered:
                self._base.set_attn_implementation(self._registered)
        else:
            self._unhook()
        self.begin()

    def begin(self, prompt: int | None = None) -> None:
        """Reset state of earlier questions; call it before each question, with the length of its prompt."""
        placement = self._placement
        self._install(copy.deepcopy(placement.rotary) if placement.grows else placement.rotary)
        if placement.hook is not None:
            placement.hook.begin(prompt)

    def remove(self) -> None:
        """Restore the original model."""
        self._placement = self._own
        self._install(self._original)
        self._unhook()

    def explain(self, obstacle: Unrealisable) -> Refused:
        """The refusal for an obstacle found while answering; adds the slots."""
        return self._refusal(self._wanted(self._placement.attention) or [PROBES], str(obstacle))

    # the model's modules

    def _install(self, rotary: nn.Module | None) -> None:
        if rotary is not None and self._place:
            parent, _, leaf = self._place.rpartition(".")
            setattr(self._base.get_submodule(parent), leaf, rotary)

    def _unhook(self) -> None:
        for config, kernel in self._kernels:
            if config._attn_implementation == self._registered:
                config._attn_implementation = kernel
        for registry in (AttentionInterface, AttentionMaskInterface):
            # transformers has no public unregister; an entry left behind would keep the model in memory.
            registry._global_mapping.pop(self._registered, None)

    def _identity(self) -> IdentityRotary | None:
        """IdentityRotary of the width that the model's code expects; None if the model has no rotary module."""
        if self._stock is None:
            return None
        cos, _ = self._cos_sin(copy.deepcopy(self._stock), np.zeros(1, dtype=np.int64))
        return IdentityRotary(cos.shape[-1])

    def _changed(self, attention: Attention) -> nn.Module | None:
        """A copy of the rotary module with the Attention's frequencies and scale, checked against them."""
        if attention.inv_freq is None and attention.scale is None and attention.dynamic is None:
            return self._own.rotary
        changed: Any = copy.deepcopy(self._stock)
        if attention.dynamic is not None:  # the attributes that transformers' dynamic NTK reads
            changed.config = copy.deepcopy(changed.config)
            changed.config.max_position_embeddings = attention.dynamic.trained_length
            changed.config.rope_parameters |= {"rope_type": "dynamic", "factor": attention.dynamic.factor}
            changed.rope_type = "dynamic"
            changed.max_seq_len_cached = changed.original_max_seq_len = attention.dynamic.trained_length
            return cast(nn.Module, changed)
        if attention.inv_freq is not None:
            changed.rope_type = "default"  # any other type lets transformers recompute inv_freq
            frequencies = torch.from_numpy(attention.inv_freq.copy()).to(changed.inv_freq.device, torch.float32)
            changed.inv_freq = frequencies
            changed.original_inv_freq = frequencies.clone()
        if attention.scale is not None:
            changed.attention_scaling = attention.scale
        self._compare(changed, attention, 4 * self._trained_length)
        return cast(nn.Module, changed)

    # checks

    def _wanted(self, attention: Attention) -> list[str]:
        """Slots used in any layer that the stock attention does not have."""
        used = {*attention.slots(), *(slot for part in attention.parts() for slot in part.slots())}
        return [slot for slot in SCORES if slot in used]

    def _refusal(self, slots: Sequence[str], why: str) -> Refused:
        return Refused(f"hf cannot realise {', '.join(slots)} on {self._name}: {why}")

    def _check(self, attention: Attention) -> None:
        """Refused or ValueError if slots and model do not fit, as far as known without running the model."""
        assert attention.mixture is None, "the backend splits a mixture into passes"
        rotary = [slot for slot in ROTARY if slot in attention.slots()]
        if rotary and self._stock is None:
            raise self._refusal(rotary, "it has no rotary module with one table of frequencies")
        kind = str(getattr(self._stock, "rope_type", "default"))
        if self._own.grows and attention.slots() and attention.inv_freq is None:
            raise self._refusal(attention.slots(), f"its own angles change with length ({kind})")
        if attention.dynamic is not None and kind != "default":
            raise self._refusal(["dynamic"], f"it already scales its angles ({kind})")

    def _check_sizes(self, attention: Attention) -> None:
        heads = _stated(self._config, "num_attention_heads")
        if heads is None:  # no attention at all, or layers that differ in it
            if attention.slots():
                raise self._refusal(attention.slots(), "its config does not state one number of attention heads")
            return
        attention.check_fits(
            self._name,
            pairs=None if self._stock is None else len(cast(Tensor, self._stock.inv_freq)),
            heads=heads,
            kv_heads=_stated(self._config, "num_key_value_heads") or heads,
            layers=self._config.num_hidden_layers,
        )

    def realised(self, placement: Placement, model: Model, length: int) -> float | None:
        """Largest difference between the installed computation and the formula, up to position `length`.

        Compares attention weights if our attention function is installed (call it after a forward pass), else cos and
        sin. None if these depend on the input.
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
        """Largest difference between the module's cos and sin and those of the frequencies and scale.

        Asserts that it is within float32 rounding.
        """
        frequencies = attention.inv_freq
        if frequencies is None:
            frequencies = rotary.inv_freq.double().cpu().numpy()  # type: ignore[operator]
        scale = float(rotary.attention_scaling)  # type: ignore[arg-type]
        places = np.unique(np.linspace(0, length, 9).astype(np.int64))
        angles = places[:, None] * frequencies
        slack = scale * (angles * 2.0**-23 + 1e-6)
        largest = 0.0
        for values, function in zip(self._cos_sin(rotary, places), (np.cos, np.sin), strict=True):
            # The half layout repeats the row of all pairs, the interleaved layout repeats each pair.
            halves, twins = values[:, : len(frequencies)], values[:, :: max(1, values.shape[1] // len(frequencies))]
            errors = [abs(part - scale * function(angles)) for part in (halves, twins)]
            right = [float(error.max()) for error in errors if (error <= slack).all()]
            assert right, f"rotary module of {self._name} does not rotate by the method's angles"
            largest = max(largest, min(right))
        return largest

    def _cos_sin(self, rotary: nn.Module, places: Positions) -> list[Floats]:
        """Cos and sin at the positions, each [n, width]."""
        device = self._network.device
        made = rotary(torch.zeros(1, device=device), torch.from_numpy(places)[None].to(device))
        if not (isinstance(made, tuple) and len(made) == 2 and not made[0].is_complex()):
            raise self._refusal(["inv_freq"], "its rotary module does not return cos and sin")
        return [values[0].double().cpu().numpy() for values in made]

    def _check_hook(self, slots: Sequence[str], rotated: bool) -> None:
        """Refused unless our attention function with an empty Attention gives the model's own logits; tried once."""
        if rotated not in self._obstacles:
            before, learning = self._placement, self._network.training
            self._network.eval()
            try:
                self._obstacles[rotated] = self._try_hook(rotated)
            except Unrealisable as obstacle:
                self._obstacles[rotated] = str(obstacle)
            except Exception as error:  # whatever a family's code raises that needs attention of its own
                if is_out_of_memory(error):
                    raise
                said = " ".join(f"{type(error).__name__}: {error}".split())[:120]
                self._obstacles[rotated] = f"its code does not run with our attention function ({said})"
            finally:
                self._network.train(learning)
                self.put(before)
        if why := self._obstacles[rotated]:
            raise self._refusal(slots, why)

    @torch.inference_mode()
    def _try_hook(self, rotated: bool) -> str | None:
        """Why our attention function does not fit, or None.

        Compares logits of a stock forward pass with ours, read in three pieces with a cache.
        """
        layers = self._config.num_hidden_layers
        limit = min(24, self._end or 24, self._window or 24)
        tokens = (torch.arange(limit) * 7919 % self._config.vocab_size)[None].to(self._network.device)
        self.put(self._own)
        expected = self._network(input_ids=tokens, use_cache=False).logits.double()
        # An Attention that changes nothing and yet needs our function: a window or a remap beyond every text.
        if rotated or self._stock is None:
            nothing = Attention(mask=Window(1 << 40))
        else:
            nothing = Attention(remap=Remap(1 << 40, Line(), Line()))
        hook = Hook([LayerAttention(nothing, self._stock)] * layers, self._stock, rotated, self._window)
        self.put(Placement(nothing, self._own.rotary if rotated else self._identity(), hook))
        cache = DynamicCache(config=self._config)
        pieces = tokens.split([limit - 3, 1, 2], dim=1)
        got = [
            self._network(input_ids=piece, past_key_values=cache, use_cache=True).logits.double() for piece in pieces
        ]
        if hook.calls != len(pieces) * layers:
            return "its attention does not use transformers' registry of attention functions"
        if len(hook.modules) != layers:
            return "it runs layers several times for a text, each time with other weights of attention"
        error = torch.cat(got, dim=1) - expected
        if not error.std() <= TOLERANCE[self._network.dtype] * expected.std():
            return "our attention function without a method does not reproduce its logits"
        return None


def _stated(config: Any, name: str) -> int | None:
    """A size in a config; None if it has none, or not one for all layers."""
    try:
        return cast(int | None, getattr(config, name, None))
    except RuntimeError:  # transformers' error for a size that layers differ in
        return None


def _window(config: Any) -> int | None:
    """Size of the smallest sliding or chunked window of any layer; None if all layers have full attention."""
    kinds = getattr(config, "layer_types", None)
    if kinds is not None and set(kinds) <= {"full_attention"}:
        return None
    sizes = [_stated(config, name) for name in ("sliding_window", "attention_chunk_size")]
    return min((size for size in sizes if size), default=None)
