"""Cells to be measured, as a plan makes them."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from lexbench.core.attention import Attention
from lexbench.core.method_key import parse_label
from lexbench.core.record import Cell
from lexbench.runner.cells import Component, MethodComponent, OpenCell, PlannedCell, Workload
from tests.report.fake_run import cell


def open_cell(method: str, length: int, task: str = "passkey", attention: Mapping[str, Any] | None = None) -> OpenCell:
    """A cell of 32 samples; `attention` is the one of its identity."""
    made = cell(task, method, length)
    step = PlannedCell(
        MethodComponent.of(method, None, parse_label(method)),
        Component(task, None, task),
        length,
        0,
        Attention(),
        None,
        Workload(),
    )
    values = {each.name: getattr(made, each.name) for each in fields(Cell)}
    return OpenCell(**{**values, "identity": {**made.identity, "attention": attention}}, step=step)
