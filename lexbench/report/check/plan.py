"""Plan a baseline: the smallest loss that each of its cells can show, before it is written."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lexbench.core.errors import ConfigError
from lexbench.core.record import Cell
from lexbench.core.text import count_with_noun, plain_text
from lexbench.report import formats
from lexbench.report.grid import Grid, Line
from lexbench.report.sheet import Block, Paragraph, Remark
from lexbench.report.wording import format_metric_value, short_unit
from lexbench.stats import baseline
from lexbench.stats.cell_outcomes import CellOutcomes
from lexbench.stats.intervals import SIGNIFICANCE_LEVEL
from lexbench.stats.metrics import display_factor
from lexbench.stats.pairs import Outcome
from lexbench.stats.reach import FOUND_SHARE, LOSS_SPREAD, MAX_LOSS_SPREAD_NATS, smallest_found_loss
from lexbench.stats.regressions import compared_metrics, tolerance_of

MAX_BLIND_SHARE = 1 / 3
"""Share of comparisons of a baseline that may be blind."""


@dataclass(frozen=True, kw_only=True)
class PlannedComparison:
    """A comparison that checks with a baseline will make."""

    cell: Cell
    metric: str
    value: float
    """Value of the baseline, in the metric's own unit."""
    smallest: float | None
    """The smallest loss that is found in nine runs of ten, in nats per token or points; None: not even that of all."""


def plan_baseline(cells: Sequence[CellOutcomes], tolerances: Mapping[str, float]) -> list[PlannedComparison]:
    """The comparisons of a baseline, each with the smallest loss that it finds, in the order of the cells."""
    asked = [
        (each.cell, metric, each.outcomes[metric])
        for each in cells
        if each.refused is None
        for metric in compared_metrics(each, tolerances)
    ]
    return [_plan_comparison(cell, metric, outcomes, tolerances, len(asked)) for cell, metric, outcomes in asked]


def _plan_comparison(
    cell: Cell, metric: str, outcomes: Sequence[Outcome], tolerances: Mapping[str, float], comparisons: int
) -> PlannedComparison:
    used = [each for each in outcomes if each.amount is not None]
    value = sum(each.amount or 0.0 for each in used) / (sum(each.units for each in used) or 1.0)
    scale, level = display_factor(metric), SIGNIFICANCE_LEVEL / comparisons
    size = smallest_found_loss(used, metric, tolerance_of(tolerances, metric, cell.length) / scale, level)
    return PlannedComparison(cell=cell, metric=metric, value=value, smallest=None if size is None else scale * size)


def update_text(folders: Sequence[Path], file: Path, tolerances: Mapping[str, float], allow_blind: bool) -> str:
    """Write a baseline, and say what checks with it will find.

    ConfigError where more than a third of its comparisons are blind and `allow_blind` is not set; then nothing is
    written.
    """
    cells = baseline.baseline_cells(folders)
    plan = plan_baseline(cells, tolerances)
    blind = [each for each in plan if each.smallest is None]
    if len(blind) > MAX_BLIND_SHARE * len(plan) and not allow_blind:
        first = blind[0]
        value = f"{format_metric_value(first.metric, first.value)}{short_unit(first.metric)}"
        raise ConfigError(
            f"baseline would be blind in {len(blind)} of {count_with_noun(len(plan), 'comparison')}, where not "
            f"even the loss of all would be found (as {plain_text(first.cell.task)} {plain_text(first.cell.method)} at "
            f"{first.cell.length}, {value} with n = {first.cell.n}): raise n, measure where the model can do the task, "
            "or give --blind"
        )
    written = baseline.write_baseline(cells, folders, file)
    refused = sum(each.refused is not None for each in written.cells)
    head = (
        f"{file}: {count_with_noun(len(written.cells), 'cell')}, {refused} of them refused, {file.stat().st_size} bytes"
    )
    sheet: list[Block] = [Paragraph(head)]
    sheet += [_plan_grid(plan), *map(Remark, _plan_notes(plan))] if plan else []
    return formats.sheet_text(sheet).rstrip()


def _plan_grid(plan: Sequence[PlannedComparison]) -> Grid:
    """The smallest loss that is found, a row a task and method, a column a length."""
    lengths = sorted({each.cell.length for each in plan})
    rows: dict[str, dict[int, str]] = {}
    for each in plan:
        seed = f" seed {each.cell.seed}" if each.cell.seed else ""
        name = f"{each.cell.task} {each.metric}{short_unit(each.metric)}: {each.cell.method}{seed}"
        rows.setdefault(name, {})[each.cell.length] = "none" if each.smallest is None else f"{each.smallest:.2g}"
    made: list[Line] = [[name, *(found.get(length, "") for length in lengths)] for name, found in rows.items()]
    return Grid(head=["smallest loss found", *map(str, lengths)], rows=made)


def _plan_notes(plan: Sequence[PlannedComparison]) -> list[str]:
    found = f"found in {FOUND_SHARE:.0%} of runs, of {count_with_noun(len(plan), 'comparison')} together"
    most = f"{MAX_LOSS_SPREAD_NATS:g} at most"
    spread = f"a loss in nats is taken to differ between texts by {LOSS_SPREAD:g} of its mean, {most}"
    blind = sum(each.smallest is None for each in plan)
    more = [f"none: not even the loss of all would be found, in {blind} of them"] if blind else []
    return [f"{found}; {spread}", *more]
