"""Attention of one token of each text, in a step that can be recorded once and repeated, as a CUDA graph does.

It computes what `decode.attend` computes, from the same calls at every step: keys and values stand in buffers of fixed
size, and what changes, positions and the ends of ranges, stands in tables on the device with one row a step. A counter,
on the device too, tells the row.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lexbench.core.attention import Attention, Positions
from lexbench.kernels import decode, flash
from lexbench.kernels.chunked import Places
from lexbench.kernels.decode import DecodeStep, Views
from lexbench.kernels.fast import Form
from lexbench.kernels.heads import Rotate

Numbers = Callable[[Positions], "np.ndarray[Any, np.dtype[Any]]"]
"""Function from [B] numbers of tokens, with the one being read, to [B] numbers or [B, n] rows: positions, columns."""


@dataclass
class Loop(DecodeStep):
    """Numbers that all layers share while they read `count` tokens of each text, one in each step.

    `lengths` are those of the first step. A pass over the layers begins with `begin` and ends with `end`.
    """

    total: int = 0
    """Number of columns up to and with the token of the first step: texts are padded on the left."""
    count: int = 1
    """Number of steps."""
    done: int = 0
    """Number of steps that were taken, as counted by the code that repeats them."""
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    def __post_init__(self) -> None:
        self.number = torch.zeros(1, dtype=torch.int64, device=self.device)
        """[1] steps that are done."""
        self._tables: dict[Any, Tensor] = {}

    def begin(self) -> None:
        """Forget what was made for the step before."""
        self.memo.clear()

    def end(self) -> None:
        """Go on to the next row of the tables."""
        self.number += 1

    def of(self, name: Any, make: Numbers) -> Tensor:
        """[B] numbers of this step; those of all steps are made when they are first asked for."""
        if name not in self._tables:
            self._tables[name] = self._all_steps(make)
        return self.make_once((Loop, name), lambda: self._tables[name].index_select(0, self.number)[0])

    def _all_steps(self, make: Numbers) -> Tensor:
        """[count, B] numbers of all steps."""
        rows = [np.asarray(make(self.lengths + number)) for number in range(self.count)]
        return torch.from_numpy(np.stack(rows)).to(self.device)

    def places(self, line: Places, device: torch.device) -> Tensor:
        """[B] or [B, bands] rotary positions of the tokens being read."""
        return self.of(line, lambda lengths: line(lengths - 1))

    @property
    def column(self) -> Tensor:
        """[1] column of the tokens being read."""
        last = self.total - self.lengths
        return self.of("column", lambda lengths: lengths + last - 1)[:1]

    def edge(self, edge: decode.Edge) -> Tensor:
        """[B] columns of an edge of a range of keys."""
        pads = self.total - self.lengths
        return self.of(edge, lambda lengths: edge(lengths - 1) + pads)


def attend(
    queries: Tensor,
    kept: Views,
    loop: Loop,
    attention: Attention,
    rotate: Rotate | None,
    scaling: float,
    sinks: Tensor | None = None,
    form: Form = "merged",
) -> Tensor:
    """Attend as `decode.attend`, with the same arguments; in form triton, of half precision, by `triton_decode`."""
    reaches = decode.key_ranges(attention)
    assert reaches is not None, "the caller has asked for the ranges"
    queries = decode.scale_queries(queries, loop, attention)
    ranges = []
    for reach in reaches:
        asking, keys = decode.rotate_for_range(queries, kept, loop, reach, rotate)
        # Now: the first step rotates all keys at once, and later ones, which may be recorded, the token's alone.
        loop.places(reach.key, queries.device)
        ranges.append((asking, keys, loop.edge(reach.begin), loop.edge(reach.end)))
    if form == "triton" and queries.dtype in (torch.bfloat16, torch.float16):
        from lexbench.kernels import triton_check, triton_decode

        if triton_check.ranges_agree(queries, kept.values, min(len(ranges), triton_decode.MAX_RANGES)):
            return triton_decode.attend(ranges, kept.values, scaling, sinks)
    places = loop.make_once("columns", lambda: torch.arange(kept.values.shape[2], device=queries.device))
    found = [
        flash.attend_to_all(asking, keys, kept.values, scaling, (places >= begin[:, None]) & (places < end[:, None]))
        for asking, keys, begin, end in ranges
    ]
    return decode.merge_parts(found, sinks).to(queries.dtype)
