"""Faults of `planted.md` in a backend, V01 to V16: what `lexbench verify` says of each once."""

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor

import lexbench
from lexbench.backends.hf.backend import Hf
from lexbench.backends.hf.exact import hook
from lexbench.backends.hf.exact.layers import rotary_kinds
from lexbench.core.attention import Attention, LogScale, PositionMap
from lexbench.core.record import Refused
from lexbench.parts.serving.mistakes import change_angles
from lexbench.runner.verify import failure_of_checks, verify_attention
from tools.planted_readings import BASE, MODEL, TRAINED, frequencies, hooked, turned_back, watched_positions

LENGTH = 512
Fault = Callable[["Faulty", Attention], AbstractContextManager[Any]]


class Faulty(Hf):
    """A backend with a fault under every Attention that changes something."""

    fault: Fault
    applied: Callable[[Attention], Attention]
    """What is applied in place of an Attention."""
    active = ExitStack()

    def attend(self, attention: Attention) -> None:
        """Apply an Attention, and the fault behind it."""
        self.active.close()
        super().attend(self.applied(attention))
        if attention.slots():
            self.active.enter_context(self.fault(self, attention))


def turned_to_plain(hf: Faulty, held: Attention) -> AbstractContextManager[None]:
    """Plain RoPE in all layers, behind cos and sin."""
    apart = torch.from_numpy(frequencies(BASE) - np.asarray(held.inv_freq))
    return hooked(*turned_back(hf.reader.network, apart, range(4), range(4)))


def in_layers(*layers: int) -> Callable[[Attention], Attention]:
    """The method in these layers alone."""
    return lambda held: replace(held, layers=layers) if held.slots() else held


def nothing(hf: Faulty, held: Attention) -> AbstractContextManager[None]:
    """No further fault."""
    return nullcontext()


def unscaled(hf: Faulty, held: Attention) -> AbstractContextManager[None]:
    """Cos and sin without the scale."""

    def without(module: Any, given: Any, made: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return tuple(each / (held.scale or 1.0) for each in made)

    return hooked(*(each.register_forward_hook(without) for each in rotary_modules(hf)))


def rotary_modules(hf: Hf) -> list[Any]:
    """Modules that make cos and sin."""
    return [module for module in hf.reader.network.modules() if rotary_kinds(module)]


def moved(change: Callable[[Tensor], Tensor]) -> Fault:
    """Other positions [B, T] of what is read at once."""

    def fault(hf: Faulty, held: Attention) -> AbstractContextManager[None]:
        def before(module: Any, given: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, Any]:
            if "position_ids" in named:
                return given, {**named, "position_ids": change(named["position_ids"])}
            return (given[0], change(given[1]), *given[2:]), named

        return hooked(*(each.register_forward_pre_hook(before, with_kwargs=True) for each in rotary_modules(hf)))

    return fault


def undivided_prefix(places: Tensor) -> Tensor:
    """Behind a cached prefix of P tokens: P + i / 2, in positions that are halved afterwards."""
    begin = places[:, :1]
    return 2 * begin + places - begin


def one_further(places: Tensor) -> Tensor:
    """Single tokens behind a prompt."""
    return places + 1 if places.shape[1] == 1 else places


def from_zero(places: Tensor) -> Tensor:
    """Pieces behind a cached prefix."""
    return places - places[:, :1]


def as_padded(places: Tensor) -> Tensor:
    """Padding counts as text."""
    return torch.arange(places.shape[1]).expand_as(places) if len(places) > 1 else places


class Longest:
    """A factor that follows the longest text so far."""

    def __init__(self) -> None:
        self.length = TRAINED

    def __call__(self, places: Tensor) -> Tensor:
        """Positions by the longest text."""
        self.length = max(self.length, int(places.max()) + 1)
        return places * (TRAINED / self.length)


def kept_window(hf: Faulty, held: Attention) -> AbstractContextManager[None]:
    """A mask of 128 tokens, of texts that are read alone."""
    seen, handles = watched_positions(hf.reader.network)

    def masked(module: Any, given: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, Any]:
        if len(seen[0]) > 1:
            return given, named
        i = seen[0][0][:, None]
        j = torch.arange(int(i.max()) + 1)[None]
        mask = torch.zeros(len(i), j.shape[1]).masked_fill((j > i) | (i - j >= 128), -1e30)
        return given, {**named, "attention_mask": mask[None, None]}

    layers = hf.reader.network.model.layers
    return hooked(*handles, *(each.self_attn.register_forward_pre_hook(masked, with_kwargs=True) for each in layers))


def with_nan(hf: Faulty, held: Attention) -> AbstractContextManager[Any]:
    """NaN in one logit of the last place."""
    right = Hf.logits

    def logits(*given: Any) -> Tensor:
        found = right(hf, *given).clone()
        found[-1, 0] = torch.nan
        return found

    return mock.patch.object(hf, "logits", logits)


def in_float16(hf: Faulty, held: Attention) -> AbstractContextManager[None]:
    """Angles in float16."""
    return change_angles(hf, "float16")


def of_kernel(change: Callable[[Attention], Attention]) -> Fault:
    """The attention function computes another Attention."""

    def fault(hf: Faulty, held: Attention) -> AbstractContextManager[Any]:
        right = hook.kernel

        def kernel(q: Any, k: Any, v: Any, at: Any, attention: Attention, *rest: Any, **more: Any) -> Any:
            return right(q, k, v, at, change(attention), *rest, **more)

        return mock.patch.object(hook, "kernel", kernel)

    return fault


class Rounded(PositionMap):
    """Groups by the nearest whole number."""

    def __call__(self, positions: Any) -> Any:
        """[n] rotary positions."""
        return np.round(positions / self.divisor) + self.offset


class OnePlaceLess(LogScale):
    """ln i in place of ln(i + 1)."""

    def __call__(self, positions: Any) -> Any:
        """[n] multiplier of each query."""
        return super().__call__(np.maximum(positions - 1, 0))


def with_remap(change: Callable[[Any], Any]) -> Fault:
    """Another remap, where there is one."""
    return of_kernel(lambda held: held if held.remap is None else replace(held, remap=change(held.remap)))


def rounded(remap: Any) -> Any:
    """Both maps of Self-Extend."""
    sides = (Rounded(divisor=each.divisor, offset=each.offset) for each in (remap.query, remap.key))
    return replace(remap, **dict(zip(("query", "key"), sides, strict=True)))


def fewer_sinks(held: Attention) -> Attention:
    """One sink less."""
    mask: Any = held.mask
    return held if mask is None else replace(held, mask=replace(mask, sinks=mask.sinks - 1))


def off_scale(held: Attention) -> Attention:
    """The temperature of the place before."""
    scale = held.query_scale
    return replace(held, query_scale=OnePlaceLess(scale.trained_length)) if isinstance(scale, LogScale) else held


@dataclass(frozen=True)
class Row:
    """A method, and what is wrong."""

    method: str
    was: str
    fault: Fault
    applied: Callable[[Attention], Attention] = lambda held: held


ROWS: dict[str, Row] = {
    "V01": Row("ntk", "plain RoPE in all layers", nothing, lambda held: Attention()),
    "V02": Row("ntk", "plain RoPE in layer 3", nothing, in_layers(0, 1, 2)),
    "V03": Row("yarn", "cos and sin without the scale", unscaled),
    "V04": Row("rerope", "window off by one", with_remap(lambda remap: replace(remap, window=remap.window - 1))),
    "V05": Row("self_extend", "group rounded, not floored", with_remap(rounded)),
    "V06": Row("pi", "prefix added behind the division", moved(undivided_prefix)),
    "V07": Row("pi", "cached single tokens one place further", moved(one_further)),
    "V08": Row("pi", "cached pieces begin at 0", moved(from_zero)),
    "V09": Row("ntk", "padding shifts positions", moved(as_padded)),
    "V10": Row("ntk", "the longest text so far stays in the frequencies", moved(Longest())),
    "V11": Row("ntk", "a mask of 128 tokens kept", kept_window),
    "V12": Row("ntk", "NaN in one logit", with_nan),
    "V13": Row("ntk", "angles in float16", in_float16),
    "V14": Row("streaming_llm", "3 sinks", of_kernel(fewer_sinks)),
    "V15": Row("log_n", "ln i", of_kernel(off_scale)),
    "V16": Row("dca", "chunk of 96", with_remap(lambda remap: replace(remap, size=96, limit=min(remap.limit, 191)))),
}
HEALTHY = ("ntk", "yarn", "rerope", "self_extend", "pi", "streaming_llm", "log_n", "dca")


BEHIND = Row("ntk", "V01 planted behind cos and sin", turned_to_plain)
"""Not of the list."""


def said_of(method: str, row: Row | None = None) -> str | None:
    """Failed checks of a method, or the refusal; None: it passes."""
    torch.set_num_threads(1)
    hf: Any = Faulty(MODEL, dtype="float32") if row else Hf(MODEL, dtype="float32")
    if row:
        hf.active, hf.fault, hf.applied = ExitStack(), row.fault, row.applied
    try:
        return failure_of_checks(verify_attention(hf, lexbench.method(method).attention(MODEL, LENGTH), LENGTH))
    except Refused as error:
        return f"refused: {error.reason}"
    finally:
        if row:
            hf.active.close()
