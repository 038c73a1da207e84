"""Compares an engine's tables of cos and sin with those of the definition, to prove that it rotates correctly."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lexbench.core.attention import Attention, Positions
from lexbench.core.model import Model
from lexbench.kernels.reference import Angles
from lexbench.methods.scaled import ropes_of_model
from lexbench.parts.serving.vllm.engine import CosSinTable

ROUNDING_OF_DTYPE = {"float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}
"""Rounding of cos and sin, which the engine stores in the dtype of the weights."""
N_COMPARED_POSITIONS = 65
"""Number of positions to compare, evenly spread."""


def own_angles(model: Model, length: int) -> list[Angles]:
    """The model's own angles at a length, one for each kind of layer; empty if its facts have no angles.

    Refused if a model scales its RoPE in a way that is not known here.
    """
    return [Angles(*rope.own(length), model.rotary_layout) for rope in ropes_of_model(model)]


@dataclass(frozen=True, eq=False)
class ExpectedAngles:
    """The angles that an engine's tables must have under an Attention."""

    attention: Attention
    own: Sequence[Angles]
    """The model's own angles, by kind of layer."""
    longest: int
    """Positions that the engine must have."""
    dtype: str
    """Dtype of the engine's cos and sin."""

    @property
    def places(self) -> Positions:
        """Positions to compare: spread over the table, and all of `keep_first`."""
        spread = np.linspace(0, self.longest - 1, N_COMPARED_POSITIONS).astype(np.int64)
        first = self.attention.keep_first or 0
        return np.unique([*spread, *range(min(first + 1, self.longest))])

    def find_difference(self, tables: Sequence[CosSinTable]) -> str | None:
        """Difference of the tables at `places` from the definition, or why there is none; None if they agree."""
        if tables and not self.own:
            return "it rotates, and the facts of the model have no base: give model.rope_base=..."
        if self.own and not tables:
            return "it has no table of cos and sin to compare"
        # Kinds of layers may have different tables: each table must match one kind, and each kind one table.
        faults = [[self._difference_of_kind(table, own) for own in self.own] for table in tables]
        unmatched = [each for each in (*faults, *zip(*faults, strict=True)) if None not in each]
        return str(unmatched[0][0]) if unmatched else None

    def _difference_of_kind(self, table: CosSinTable, own: Angles) -> str | None:
        """Difference of a table from the angles of one kind of layer; None if it agrees."""
        places = self.places
        if table.rows is not None and table.rows < self.longest:
            return f"its table ({table.kind}) ends at {table.rows} positions, asked for {self.longest}"
        if table.halves != (own.layout == "half"):
            return f"{table.kind} pairs other dimensions than the {own.layout} layout"
        angles, scale = own.angles_and_scale(self.attention, places, places)
        if table.cos.shape != angles.shape:
            return f"{table.kind} rotates {table.cos.shape[1]} pairs, not {angles.shape[1]}"
        slack = scale * (angles * 2.0**-20 + 1e-6 + ROUNDING_OF_DTYPE[self.dtype])  # angles are float32 in the engine
        errors = np.maximum(abs(table.cos - scale * np.cos(angles)), abs(table.sin - scale * np.sin(angles)))
        if (errors <= slack).all():
            return None
        row, pair = np.unravel_index(np.argmax(errors - slack), errors.shape)
        return (
            f"cos and sin of pair {pair} at position {places[row]} differ by {errors[row, pair]:.1e} "
            f"({table.kind}; rounding explains {slack[row, pair]:.0e})"
        )
