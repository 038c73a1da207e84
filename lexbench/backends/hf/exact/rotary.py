"""Installs an Attention into a transformers model, and removes it.

- `inv_freq`, `scale` and `dynamic`: replace the model's rotary module with a changed copy; the stock attention stays.
  Kinds of layers may have frequencies of their own in it.
- Slots that change scores: also register our attention function with transformers (`hook`).
- Slots that rotate keys at other positions than their own (`UNROTATED_VECTOR_SLOTS`): also replace the rotary module
  with IdentityRotary. Queries and keys then arrive unrotated, the cache holds unrotated keys, and our attention
  function rotates them as the layer's own code does (`layers`).
"""

import copy
import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from lexbench.backends.eval_mode import in_eval_mode
from lexbench.backends.hf.exact import evidence, layers
from lexbench.backends.hf.exact.hook import Hook, LayerAttention, Unrealisable, Watch
from lexbench.backends.hf.exact.layers import (
    IdentityRotary,
    Recorder,
    Turn,
    as_cos_sin,
    attribute_of_kind,
    call_rotary,
    changes_nothing,
    rope_types,
    rotary_kinds,
    small_windows,
    stated_size,
    turn_of,
    types_of,
    views_of,
    without_attention,
)
from lexbench.backends.hf.exact.memory import probe_forward
from lexbench.backends.hf.exact.network import tower_candidates
from lexbench.core.attention import Attention, Floats, PositionMap, Positions, Remap, Window, count_bands
from lexbench.core.memory import is_out_of_memory
from lexbench.core.model import Model
from lexbench.core.record import Refused
from lexbench.kernels.fast import Form
from lexbench.kernels.reference import Angles
from lexbench.methods.scaled import ropes_of_model

LOGITS_TOLERANCE_OF_DTYPE = {torch.float64: 1e-6, torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 4e-2}
"""Largest difference of logits computed in two ways, as a fraction of their standard deviation."""
ROTARY_MODULE_SLOTS = ("inv_freq", "scale", "dynamic")
"""Slots that a rotary module holds."""
NEEDS_ROTARY_SLOTS = ("inv_freq", "scale", "keep_first", "head_ratios", "dynamic", "remap")
"""Slots that need a rotary module."""
UNROTATED_VECTOR_SLOTS = ("keep_first", "head_ratios", "remap")
"""Slots that need unrotated vectors: they rotate to other positions, or some tokens otherwise than others."""
BEYOND_STOCK_SLOTS = (*UNROTATED_VECTOR_SLOTS, "query_scale", "mask", "bias", "cache", "layers")
"""Slots that the stock attention does not have."""
PROBES_LABEL = "probes"
"""Named in a refusal in place of a slot, when attention is only probed."""
ALWAYS_LEXBENCH_LABEL = "backend.attention=lexbench"
"""Named in a refusal in place of a slot, when our attention function is asked for without one."""
UNREGISTERED_REASON = "its attention does not use transformers' registry of attention functions"
"""Why our attention function cannot take over some layers."""
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
        return any("dynamic" in kind or "longrope" in kind for kind in rope_types(self.rotary))

    def switches(self, begin: int, end: int) -> bool:
        """Whether `longrope` turns from its short to its long factors while a text grows from `begin` to `end` tokens.

        Keys that were rotated before are then of no use: what transformers generates of Phi-3 reads the text again.
        """
        if "longrope" not in rope_types(self.rotary):
            return False
        ropes = cast(Any, self.rotary).config.rope_parameters
        # Without a rope_type of its own, it is a dict of kinds of layers.
        kinds = [ropes] if "rope_type" in ropes else [*ropes.values()]
        longropes = [rope for rope in kinds if rope["rope_type"] == "longrope"]
        return any(begin <= rope["original_max_position_embeddings"] < end for rope in longropes)


class AttentionInstaller:
    """Installs Attentions into one loaded model, and removes them.

    Args:
        network: a causal language model of transformers, on its device.
        name: of the model, for error messages.
        trained_length: cos and sin are compared with the method's numbers up to 4 times this length.
        end: number of positions in the model's table; None if it has no table.
        tower: the module that makes last hidden states of tokens; None: the innermost that could.
        form: what computes windows and far keys.
    """

    def __init__(
        self,
        network: Any,
        name: str,
        trained_length: int,
        end: int | None = None,
        tower: Any = None,
        form: Form = "merged",
    ) -> None:
        self._network = network
        self._base = tower_candidates(network)[0] if tower is None else tower
        self._config = network.config.get_text_config()
        self._name = name
        self.always = False
        """Whether our attention function is used also where an Attention changes no scores."""
        self._form = form
        self._trained_length = trained_length
        self._end = end
        # Towers inside have configs of their own, each with its kernel, which `set_attn_implementation` changes.
        models = [module for module in self._base.modules() if isinstance(module, PreTrainedModel)]
        self._kernels = [(model.config, model.config._attn_implementation) for model in (self._base, *models)]
        # A registry name of its own: several networks in one process may have different methods.
        self._registered = f"lexbench_{next(_numbers)}"
        places = [place for place, module in self._base.named_modules() if rotary_kinds(module)]
        # Of several modules with frequencies it is not known which layers use which: none is changed.
        self._place = places[0] if len(places) == 1 else None
        self._original: nn.Module | None = self._base.get_submodule(self._place) if self._place else None
        # As loaded: modules of dynamic and longrope change their own frequencies when they are called.
        self._stock = _as_loaded(self._original)
        self._kinds = self._kinds_of_layers()
        self._own = Placement(Attention(), self._original)
        if self._own.grows:
            self._own = Placement(Attention(), self._stock)
        self._placement = self._own
        self._attends: frozenset[int] | None = None
        self._turns: dict[int, Turn | None] = {}
        self._erases: bool | None = None
        self._obstacles: dict[bool, str | None] = {}

    def check_rope(self, model: Model, attention: Attention) -> None:
        """Refused where an Attention sets angles, and the loaded module's own are not those of the model's facts.

        The method computed them from these facts: types with a rule of their own in code, which config.json does not
        state in the usual names, would get wrong ones.
        """
        used = [
            slot for slot in ROTARY_MODULE_SLOTS if any(getattr(part, slot) is not None for part in attention.parts())
        ]
        if not used or self._stock is None or model.frequencies is not None:
            return
        try:
            found = {rope.kind: rope.own(1) for rope in ropes_of_model(model)}
        except Refused:  # the method says so itself
            return
        for kind in rotary_kinds(self._stock):
            expected = found.get(kind) or (next(iter(found.values())) if len(found) == 1 else None)
            if kind in self._kinds and expected is not None and (why := self._otherwise(kind, *expected)):
                raise self._refusal(used, f"{why}: its code does not follow its config.json")

    def _otherwise(self, kind: str | None, inv_freq: Floats, scale: float) -> str | None:
        """Difference of the stock module's angles from these, in words; None: they are equal."""
        of = f" of {kind} layers" if kind else ""
        own = layers.rotary_frequencies(self._stock, kind).double().cpu().numpy()
        if len(own) != len(inv_freq):
            return f"its rotary module{of} turns {len(own)} pairs, its config says {len(inv_freq)}"
        if not np.allclose(own, inv_freq, rtol=1e-3, atol=1e-12):
            pair = int(np.argmax(abs(own - inv_freq) / np.maximum(inv_freq, 1e-12)))
            return f"pair {pair}{of} turns by {own[pair]:.3g} a token, by its config {inv_freq[pair]:.3g}"
        if not np.isclose(layers.rotary_scale(self._stock, kind), scale, rtol=1e-3):
            return (
                f"its rotary module{of} scales by {layers.rotary_scale(self._stock, kind):.4g}, its config says "
                f"{scale:.4g}"
            )
        return None

    def prepare(self, attention: Attention, watch: Watch | None = None, always: bool = False) -> Placement:
        """Prepare an Attention, and a probe if `watch` is given; Refused names slots that do not fit this model.

        With `always`, our attention function also where the stock one would do.
        """
        if stated_size(self._config, "num_hidden_layers") is None:
            if wanted := attention.slots() or ([PROBES_LABEL] if watch else []):
                raise self._refusal(wanted, "its config does not state one number of layers")
            return Placement(attention, self._own.rotary)
        for part in attention.parts():
            self._check(part)
        if self._own.grows and any(part.inv_freq is None for part in attention.parts() if attention.layers is not None):
            raise self._refusal(["layers"], "its own angles change with length")
        parts = [attention.at(layer) for layer in range(self._config.num_hidden_layers)]
        self._check_sizes(attention, parts)
        by_kind: dict[str | None, dict[Any, Attention]] = {}
        for kind, part in zip(self._kinds, parts, strict=True):
            by_kind.setdefault(kind, {}).setdefault(_rotary_values(part), part)
        # The model's own attention suffices where all layers of a kind have the same angles.
        one_each = all(len(different) == 1 for different in by_kind.values())
        wanted = self._slots_beyond_stock(attention)
        if one_each and None not in by_kind and wanted == ["layers"]:
            wanted = []  # the stock attention takes frequencies by kinds of layers
        # One module rotates for all layers, before our function sees their vectors; else each layer's own module,
        # inside it.
        alike = {kind: next(iter(different.values())) for kind, different in by_kind.items()}
        rotated = one_each and not set(UNROTATED_VECTOR_SLOTS) & set(wanted)
        rotated = rotated and not any(keeping.needs_rotation for keeping in attention.keepings)
        if rotated and any(part.scale not in (None, 1.0) for part in parts) and self._erases_scale():
            # A norm behind the rotation takes the scale away: rotate behind the norm, in our function.
            rotated, wanted = False, [*wanted, "scale"]
        changed = self._changed_rotary(alike) if rotated else None
        if not (wanted or always or self.always) and watch is None and rotated:
            return Placement(attention, changed)
        self._check_hook(wanted or ([PROBES_LABEL] if watch else [ALWAYS_LEXBENCH_LABEL]), rotated)
        banded = any(count_bands(part.remap) > 1 for part in parts)
        if banded and any(turn is not None and not turn.known for turn in self._turns.values()):
            raise self._refusal(
                ["remap"], "bands of pairs need to know how its layers pair dimensions: that is not known"
            )
        if watch is not None and self._attends is not None:
            raise self._refusal([PROBES_LABEL], UNREGISTERED_REASON)
        views = views_of(self._config)
        rotating = [
            rotated or layer not in self._turns or self._turns[layer] is not None for layer in range(len(parts))
        ]
        if any(part.slots() for part in parts) and all(map(changes_nothing, parts, views, rotating)):
            size = max((view.size for view in views if view is not None), default=0)
            raise self._refusal(
                wanted, f"its layers with positions see {size} tokens at most, where it changes nothing"
            )
        held_layers = self._layers_of_hook(parts, rotated, changed)
        hook = Hook(held_layers, self._stock, rotated, self._attends, watch=watch, form=self._form)
        return Placement(attention, changed if rotated else self._identity(), hook)

    def _layers_of_hook(
        self, parts: Sequence[Attention], rotated: bool, changed: nn.Module | None
    ) -> list[LayerAttention]:
        """The layers as our attention function holds them; `changed` rotates before it if `rotated`.

        Equal layers share one object and one module: the hook keeps what it makes by their ids.
        """
        rotaries: dict[Any, nn.Module | None] = {}
        same: dict[Any, LayerAttention] = {}
        found = []
        for layer, (part, kind, view) in enumerate(zip(parts, self._kinds, views_of(self._config), strict=True)):
            angles, turn, rotary = (kind, _rotary_values(part)), None if rotated else self._turns.get(layer), changed
            if turn is not None and self._form == "triton":
                turn = replace(turn, fused=True)
            if not rotated:
                if angles not in rotaries:
                    rotaries[angles] = self._changed_rotary({kind: part})
                rotary = rotaries[angles]
            held = LayerAttention(part, rotary, kind, turn, view)
            found.append(same.setdefault((json.dumps(part.as_data()), kind, turn, view), held))
        return found

    def put(self, placement: Placement) -> None:
        """Install a placement; replaces the previous one."""
        self._placement = placement
        if placement.hook is not None:
            AttentionInterface.register(self._registered, placement.hook)
            AttentionMaskInterface.register(self._registered, placement.hook.mask)
            # Once: it goes through all models inside.
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
        return self._refusal(self._slots_beyond_stock(self._placement.attention) or [PROBES_LABEL], str(obstacle))

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
        """IdentityRotary of the shapes that the model's code expects; None if the model has no rotary module."""
        if self._stock is None:
            return None
        first = torch.zeros(1, 1, dtype=torch.int64, device=self._network.device)
        x, stock = torch.zeros(1, device=first.device), copy.deepcopy(self._stock)
        return IdentityRotary({kind: call_rotary(stock, x, first, kind) for kind in rotary_kinds(stock)})

    def _kinds_of_layers(self) -> list[str | None]:
        """The kind of layers of the rotary module, for each layer; None where it has one for all."""
        count = stated_size(self._config, "num_hidden_layers") or 0
        if self._stock is None or rotary_kinds(self._stock) == [None]:
            return [None] * count
        found = types_of(self._config)
        return [None] * count if found is None else [*found]

    def _changed_rotary(self, parts: Mapping[str | None, Attention]) -> nn.Module | None:
        """A copy of the rotary module with each kind's frequencies and scale, checked against them."""
        if all(_rotary_values(part) == _rotary_values(Attention()) for part in parts.values()):
            return self._own.rotary
        changed: Any = copy.deepcopy(self._stock)
        for kind, attention in parts.items():
            if attention.dynamic is not None:  # the attributes that transformers' dynamic NTK reads
                changed.config = copy.deepcopy(changed.config)
                changed.config.max_position_embeddings = attention.dynamic.trained_length
                changed.config.rope_parameters |= {"rope_type": "dynamic", "factor": attention.dynamic.factor}
                changed.rope_type = "dynamic"
                changed.max_seq_len_cached = changed.original_max_seq_len = attention.dynamic.trained_length
                return cast(nn.Module, changed)
            if kind not in rotary_kinds(changed):  # layers without rotation
                continue
            if attention.inv_freq is not None:
                # Any other type lets transformers recompute inv_freq.
                changed.rope_type = "default" if kind is None else {**changed.rope_type, kind: "default"}
                device = layers.rotary_frequencies(changed, kind).device
                values = torch.from_numpy(attention.inv_freq.copy()).to(device, torch.float32)
                setattr(changed, attribute_of_kind(kind, "inv_freq"), values)
                # transformers goes back to this copy on short texts.
                setattr(changed, attribute_of_kind(kind, "original_inv_freq"), values.clone())
            if attention.scale is not None:
                setattr(changed, attribute_of_kind(kind, "attention_scaling"), attention.scale)
            self._compare(changed, kind, attention, 4 * self._trained_length)
        return cast(nn.Module, changed)

    # checks

    def _slots_beyond_stock(self, attention: Attention) -> list[str]:
        """Slots used in any layer that the stock attention does not have."""
        used = {*attention.slots(), *(slot for part in attention.parts() for slot in part.slots())}
        return [slot for slot in BEYOND_STOCK_SLOTS if slot in used]

    def _refusal(self, slots: Sequence[str], why: str) -> Refused:
        return Refused(f"hf cannot realise {', '.join(slots)} on {self._name}: {why}")

    def _check(self, attention: Attention) -> None:
        """Refused or ConfigError if slots and model do not fit, as far as known without running the model."""
        assert attention.mixture is None, "the backend splits a mixture into passes"
        rotary = [slot for slot in NEEDS_ROTARY_SLOTS if slot in attention.slots()]
        if rotary and self._stock is None:
            raise self._refusal(rotary, "it has no rotary module with one table of frequencies")
        kind = ", ".join(dict.fromkeys(rope_types(self._stock)))
        if self._own.grows and attention.slots() and attention.inv_freq is None:
            raise self._refusal(attention.slots(), f"its own angles change with length ({kind})")
        if attention.growing is not None:
            raise self._refusal(["growing"], "its keys are rotated once, not for each query: use backend=native")
        if attention.dynamic is not None and kind != "default":
            raise self._refusal(["dynamic"], f"it already scales its angles ({kind})")

    def _check_sizes(self, attention: Attention, parts: Sequence[Attention]) -> None:
        heads = stated_size(self._config, "num_attention_heads")
        if heads is None:  # no attention at all, or layers that differ in it
            if attention.slots():
                raise self._refusal(attention.slots(), "its config does not state one number of attention heads")
            return
        count = len(parts)
        kv_heads = stated_size(self._config, "num_key_value_heads")
        attention.check_fits(self._name, pairs=None, heads=heads, kv_heads=kv_heads or heads, layers=count)
        for kind, part in zip(self._kinds, parts, strict=True):
            if self._stock is not None and kind in rotary_kinds(self._stock):
                pairs = len(layers.rotary_frequencies(self._stock, kind))
                part.check_fits(self._name, pairs=pairs, heads=heads, kv_heads=kv_heads or heads, layers=count)

    def difference_from_method(self, placement: Placement, model: Model, length: int) -> float | None:
        """Largest difference between the installed computation and the formula, up to position `length`.

        Compares attention weights if our attention function is installed (call it after a forward pass), else cos and
        sin. None if these depend on the input.
        """
        hook, rotary = placement.hook, copy.deepcopy(placement.rotary)
        errors = []
        if hook is not None:
            own = {id(held): self._own_angles(model, held) for held in hook.layers}
            errors.append(evidence.weights_difference(hook, own, self._network.device, length))
        if hook is None or hook.rotated:
            if rotary is None or placement.grows:
                return errors[0] if errors else None
            for layer, kind in enumerate(self._kinds):
                if kind in rotary_kinds(rotary) and kind not in self._kinds[:layer]:
                    errors.append(self._compare(rotary, kind, placement.attention.at(layer), length))
        return max(errors)

    def _own_angles(self, model: Model, held: LayerAttention) -> Angles:
        """Angles and scale of a layer's own rotation, as the queries of our attention function show it."""
        if self._stock is None or held.turn is None:
            return Angles(np.empty(0))
        inv_freq = layers.rotary_frequencies(self._stock, held.kind).double().cpu().numpy()
        plain = held.kind is None and model.rope_base is not None and model.rope_scaling is None
        scale = layers.rotary_scale(self._stock, held.kind)
        return Angles(model.inv_freq() if plain else inv_freq, scale, held.turn.layout, held.turn.offset)

    def _compare(self, rotary: nn.Module, kind: str | None, attention: Attention, length: int) -> float:
        """Largest difference between the module's cos and sin and those of the frequencies and scale.

        Refused where it is above float32 rounding.
        """
        frequencies = attention.inv_freq
        if frequencies is None:
            frequencies = layers.rotary_frequencies(rotary, kind).double().cpu().numpy()
        scale = layers.rotary_scale(rotary, kind)
        places = np.unique(np.linspace(0, length, 9).astype(np.int64))
        angles = places[:, None] * frequencies
        # In float32 a frequency and its product with the position are each off by 2^-24 of themselves at most.
        slack = scale * (angles * 2.0**-23 + 1e-6)
        largest = 0.0
        for values, function in zip(self._cos_sin(rotary, places, kind), (np.cos, np.sin), strict=True):
            # The half layout repeats the row of all pairs, the interleaved layout repeats each pair.
            halves, twins = values[:, : len(frequencies)], values[:, :: max(1, values.shape[1] // len(frequencies))]
            errors = [abs(part - scale * function(angles)) for part in (halves, twins)]
            right = [float(error.max()) for error in errors if (error <= slack).all()]
            if not right:
                slots = attention.slots() or ["inv_freq"]
                raise self._refusal(slots, "its rotary module does not rotate by the angles it is given")
            largest = max(largest, min(right))
        return largest

    def _cos_sin(self, rotary: nn.Module, places: Positions, kind: str | None) -> list[Floats]:
        """Cos and sin at the positions, each [n, width]."""
        device = self._network.device
        found = as_cos_sin(
            call_rotary(rotary, torch.zeros(1, device=device), torch.from_numpy(places)[None].to(device), kind)
        )
        if found is None:
            raise self._refusal(["inv_freq"], "its rotary module does not return cos and sin")
        return [values[0].double().cpu().numpy() for values in found]

    def _check_hook(self, slots: Sequence[str], rotated: bool) -> None:
        """Refused unless our attention function with an empty Attention gives the model's own logits; tried once."""
        if rotated not in self._obstacles:
            before = self._placement
            try:
                with in_eval_mode(self._network):  # dropout would part the two passes that are compared
                    self._obstacles[rotated] = self._try_hook(rotated)
            except Unrealisable as obstacle:
                self._obstacles[rotated] = str(obstacle)
            except Exception as error:  # whatever a family's code raises that needs attention of its own
                if is_out_of_memory(error):
                    raise
                said = " ".join(f"{type(error).__name__}: {error}".split())[:120]
                self._obstacles[rotated] = f"its code does not run with our attention function ({said})"
            finally:
                self.put(before)
        if why := self._obstacles[rotated]:
            raise self._refusal(slots, why)

    @torch.inference_mode()
    def _try_hook(self, rotated: bool) -> str | None:
        """Why our attention function does not fit, or None.

        Compares logits of a stock forward pass with ours, read in three pieces with a cache, and with windows that are
        shorter than the text.
        """
        count, idle = self._config.num_hidden_layers, without_attention(self._config)
        limit = min(24, self._end or 24)
        # Multiples of a prime: ids from all parts of the vocabulary.
        tokens = (torch.arange(limit) * 7919 % self._config.vocab_size)[None].to(self._network.device)
        if not rotated and (why := self._trace(tokens[:, :6])):
            return why
        with small_windows(self._config, self._base.config):
            self.put(self._own)
            expected = self._network(input_ids=tokens, use_cache=False).logits.double()
            # An Attention that changes nothing and yet needs our function: a window or a remap beyond every text.
            if rotated or self._stock is None:
                nothing = Attention(mask=Window(1 << 40))
            else:
                nothing = Attention(remap=Remap(1 << 40, PositionMap(), PositionMap()))
            stock = self._fixed_rotary(tokens)
            known = zip(self._kinds, views_of(self._config), strict=True)
            held = [
                LayerAttention(nothing, stock, kind, self._turns.get(layer), view)
                for layer, (kind, view) in enumerate(known)
            ]
            hook = Hook(held, stock, rotated, frozenset(range(count)) - idle)
            self.put(Placement(nothing, self._own.rotary if rotated else self._identity(), hook))
            if idle:
                got, pieces = [self._network(input_ids=tokens, use_cache=False).logits.double()], [tokens]
            else:
                cache = new_full_cache(self._config)
                # What a text is continued by: a prompt, a single token, several at once.
                pieces = tokens.split([limit - 3, 1, 2], dim=1)
                got = [
                    self._network(input_ids=piece, past_key_values=cache, use_cache=True).logits.double()
                    for piece in pieces
                ]
        # Each layer calls our function once in each pass: fewer calls leave some to another attention.
        if not hook.modules or hook.calls != len(pieces) * (count - len(idle)):
            return UNREGISTERED_REASON
        if set(hook.modules) != set(range(count)) - idle:
            return "it runs layers several times for a text, each time with other weights of attention"
        error = torch.cat(got, dim=1) - expected
        if not error.std() <= LOGITS_TOLERANCE_OF_DTYPE[self._network.dtype] * expected.std():
            return "our attention function without a method does not reproduce its logits"
        self._attends = frozenset(hook.modules) if idle else None
        return None

    @torch.inference_mode()
    def _erases_scale(self) -> bool:
        """Whether a layer norms its queries after rotation, which undoes a scale of cos and sin (Llama 4)."""
        if self._erases is None:
            before = self._placement
            tokens = (torch.arange(2) * 7919 % self._config.vocab_size)[None].to(self._network.device)
            doubled: Any = copy.deepcopy(self._stock)
            for kind in rotary_kinds(doubled):
                setattr(doubled, attribute_of_kind(kind, "attention_scaling"), 2 * layers.rotary_scale(doubled, kind))
            seen = []
            try:
                for rotary in (copy.deepcopy(self._stock), doubled, self._identity()):
                    recorder = Recorder()
                    self.put(Placement(Attention(), rotary, cast(Any, recorder)))
                    with probe_forward():
                        self._network(input_ids=tokens, use_cache=False)
                    seen.append({layer: queries for layer, (_, queries) in recorder.seen.items()})
            finally:
                self.put(before)
            once, twice, never = seen
            both = once.keys() & twice.keys() & never.keys()
            # Layers without rotation are the same in all three.
            turning = [layer for layer in both if not torch.equal(once[layer], never[layer])]
            self._erases = any(torch.allclose(once[layer], twice[layer], rtol=1e-2) for layer in turning)
        return self._erases

    def _fixed_rotary(self, tokens: Tensor) -> nn.Module | None:
        """The model's rotary module, with the angles of a text as long as this one for any positions."""
        if not self._own.grows:
            return self._stock
        fixed: Any = copy.deepcopy(self._stock)
        places = torch.arange(tokens.shape[1], device=tokens.device)[None]
        for kind in rotary_kinds(fixed):
            call_rotary(fixed, torch.zeros(1, device=places.device), places, kind)
        fixed.rope_type = dict.fromkeys(fixed.rope_type, "default") if isinstance(fixed.rope_type, dict) else "default"
        return cast(nn.Module, fixed)

    def _trace(self, tokens: Tensor) -> str | None:
        """Find how each layer rotates its queries; why it cannot be told, or None."""
        if self._stock is None:
            return None
        seen = []
        for rotary in (copy.deepcopy(self._stock), self._identity()):
            recorder = Recorder()
            self.put(Placement(Attention(), rotary, cast(Any, recorder)))
            self._network(input_ids=tokens, use_cache=False)
            seen.append(recorder.seen)
        places = torch.arange(tokens.shape[1], device=tokens.device)[None]
        after, before = seen
        for layer in after.keys() & before.keys():
            (module, turned), (_, unturned), kind = after[layer], before[layer], self._kinds[layer]
            self._turns[layer] = None
            if torch.equal(turned, unturned):
                continue
            if kind not in rotary_kinds(self._stock):
                return f"layer {layer} rotates by angles of another kind of layers"
            made = call_rotary(copy.deepcopy(self._stock), turned, places.to(turned.device), kind)
            pairs, tolerance = (
                len(layers.rotary_frequencies(self._stock, kind)),
                LOGITS_TOLERANCE_OF_DTYPE[self._network.dtype],
            )
            turn = turn_of(module, unturned, turned, made, pairs, tolerance)
            if turn is None:
                return f"how layer {layer} rotates its queries is not known here"
            self._turns[layer] = turn
        return None


def _as_loaded(rotary: nn.Module | None) -> nn.Module | None:
    """A copy with the frequencies that the module was loaded with: those of a text of one token."""
    stock = copy.deepcopy(rotary)
    if stock is not None and Placement(Attention(), stock).grows:
        for kind in rotary_kinds(stock):
            first = torch.zeros(1, 1, dtype=torch.int64, device=layers.rotary_frequencies(stock, kind).device)
            call_rotary(stock, torch.zeros(1, device=first.device), first, kind)
    return stock


def _rotary_values(part: Attention) -> tuple[Any, ...]:
    """Values of an Attention that a rotary module holds: frequencies in bytes, scale, dynamic; to compare two."""
    return None if part.inv_freq is None else part.inv_freq.tobytes(), part.scale, part.dynamic


def new_full_cache(config: Any) -> DynamicCache:
    """An empty cache that keeps all keys, also of layers with a window, which our attention function masks."""
    cache = DynamicCache(config=config)
    cache.layers = [DynamicLayer() if type(layer) is DynamicSlidingWindowLayer else layer for layer in cache.layers]
    return cache
