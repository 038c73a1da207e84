"""The rotary modules of a loaded model, and cos and sin as they give them.

Known are rotary modules of transformers, called with (x, positions), and tables of other trainers and engines
(`rope_tables`).
"""

import copy
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from lexbench.backends.hf.exact.layers import as_cos_sin, call_rotary, rotary_frequencies, rotary_kinds
from lexbench.backends.hf.exact.network import tower_candidates
from lexbench.backends.rope_causes import RopeMismatch, WantedRope
from lexbench.backends.rope_reading import ROUNDING_OF_DTYPE, RopeReading
from lexbench.backends.rope_tables import RopeTable, tables_of
from lexbench.core.attention import Floats, Positions
from lexbench.core.model import Model
from lexbench.core.record import Refused

OTHER_TOWERS = re.compile("vision|visual|image|audio")
"""Names of modules whose positions are not those of a text."""


@dataclass(frozen=True, eq=False)
class RotaryModule:
    """A rotary module, and the layers that it rotates."""

    place: str
    """Dotted name inside the model, or the name of the class."""
    module: Any
    kind: str | None
    """Kind of layers that it rotates; None: all, or not known."""
    table: RopeTable | None = None
    """Table of cos and sin that the module holds; None: the module is called for them."""
    called_with: str | None = None
    """Kind of layers as an argument of the call, where the module holds angles of several kinds."""
    dtype: torch.dtype | None = None
    """Dtype of the model's weights; None: the dtype of its frequencies."""


def rotary_modules(given: Any, model: Model) -> Iterator[RotaryModule]:
    """The rotary modules of a model, or of each kind of layers."""
    if isinstance(given, Mapping | nn.ModuleDict):
        for kind, module in given.items():
            yield from (
                replace(each, kind=each.kind or kind) for each in _rotation_of_module(type(module).__name__, module)
            )
        return
    dtype = _angle_dtype(given)
    types = model.layer_types or ()
    root = tower_candidates(given)[0] if isinstance(given, PreTrainedModel) else given
    for name, module in root.named_modules() if isinstance(root, nn.Module) else [("", root)]:
        if OTHER_TOWERS.search(name):
            continue
        layer = _layer_of_module(root, name, len(types))
        kind = None if layer is None else types[layer]
        for each in _rotation_of_module(f"{name} ({type(module).__name__})" if name else type(module).__name__, module):
            if each.called_with is None or each.called_with in types:  # else of a kind that no layer has
                yield replace(each, kind=each.kind or kind, dtype=dtype)


def _layer_of_module(root: nn.Module, name: str, count: int) -> int | None:
    """The layer that a module belongs to: its number in a list of as many modules as there are layers."""
    parts = name.split(".")
    for depth, part in enumerate(parts):
        held = root.get_submodule(".".join(parts[:depth])) if part.isdecimal() else None
        if isinstance(held, nn.ModuleList | nn.ModuleDict) and len(held) == count:
            return int(part)
    return None


def _rotation_of_module(place: str, module: Any) -> Iterator[RotaryModule]:
    """The rotation of a module itself, without the modules inside it."""
    if tables := tables_of(module):
        yield from (RotaryModule(place, module, None, table) for table in tables)
    elif isinstance(module, nn.Module):
        yield from (RotaryModule(place, module, kind, called_with=kind) for kind in rotary_kinds(module))


def read_module(module: RotaryModule, candidates: list[WantedRope], places: Positions) -> RopeReading:
    """Cos and sin of each pair at the positions."""
    read = _call_module(module, places) if module.table is None else _look_up_rows(module, module.table, places)
    dtype = str(read[0].dtype).removeprefix("torch.")
    if dtype not in ROUNDING_OF_DTYPE:
        raise Refused(
            f"{module.place} holds cos and sin in {dtype}: give a module in one of {', '.join(ROUNDING_OF_DTYPE)}"
        )
    values = [each.double().cpu().numpy() for each in read]
    counts = list(dict.fromkeys(len(each.inv_freq) for each in candidates))
    width = values[0].shape[1]
    if width not in (each for count in counts for each in (count, 2 * count)):
        cause = "another number of rotated dimensions"
        raise RopeMismatch(
            f"{module.place} holds {width} numbers a position, for {width // 2} or {width} pairs; "
            f"{candidates[0].label} has {counts[0]} pairs. Likely cause: {cause}",
            cause,
        )
    once = _each_pair_once(values) if width // 2 in counts else None
    if once is None and width not in counts:
        raise Refused(f"{module.place} repeats its pairs neither in halves nor side by side: no layout known here")
    cos, sin = once or values
    return RopeReading(places, cos, sin, dtype)


def _each_pair_once(values: list[Floats]) -> list[Floats] | None:
    """Each pair once, of tables in which it stands twice, in two halves or side by side; None if it does not."""
    half = values[0].shape[1] // 2
    for first, second in ((slice(half), slice(half, None)), (slice(0, None, 2), slice(1, None, 2))):
        if all(np.array_equal(each[:, first], each[:, second], equal_nan=True) for each in values):
            return [each[:, first] for each in values]
    return None


def _look_up_rows(module: RotaryModule, table: RopeTable, places: Positions) -> tuple[Tensor, Tensor]:
    """[n, width] rows of a table; RopeMismatch if it ends before."""
    if table.cos.is_meta:
        raise Refused(f"{module.place} is on the meta device: load its weights first")
    if len(table.cos) <= places[-1]:
        cause = "table of cos and sin too short"
        raise RopeMismatch(
            f"{module.place} has a table of {len(table.cos):,} positions, asked for {places[-1] + 1:,}. "
            f"Likely cause: {cause}",
            cause,
            position=len(table.cos),
        )
    rows = torch.from_numpy(places).to(table.cos.device)
    return table.cos[rows], table.sin[rows]


@torch.no_grad()
def _call_module(module: RotaryModule, places: Positions) -> tuple[Tensor, Tensor]:
    """[n, width] cos and sin that a module of transformers' kind returns for the dtype of the model."""
    kind = module.called_with
    held = rotary_frequencies(module.module, kind)
    if held.is_meta:
        raise Refused(f"{module.place} is on the meta device: load its weights first")
    rotary = copy.deepcopy(module.module)  # those of dynamic and longrope change when they are called
    x = torch.zeros(1, dtype=module.dtype or held.dtype, device=held.device)
    try:
        # As in a fresh process: from the shortest text on.
        for at in (places[:1], places):
            made = as_cos_sin(call_rotary(rotary, x, torch.from_numpy(at)[None].to(held.device), kind))
    except (TypeError, ValueError, RuntimeError, IndexError, AttributeError) as error:
        said = " ".join(f"{type(error).__name__}: {error}".split())[:120]
        raise Refused(f"{module.place} cannot be called with (x, positions): {said}") from None
    if made is None:
        raise Refused(f"{module.place} does not return cos and sin")
    return made[0][0], made[1][0]


def _angle_dtype(given: Any) -> torch.dtype | None:
    """Dtype of a model's weights, where that is one in which angles may be held."""
    weights = given.parameters() if isinstance(given, nn.Module) else ()
    return next((each.dtype for each in weights if str(each.dtype).removeprefix("torch.") in ROUNDING_OF_DTYPE), None)
