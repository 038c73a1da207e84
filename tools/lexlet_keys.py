"""Keys of lexlet by all scores, from stored samples: what the page of keys and the sentences of README read."""

from pathlib import Path

from lexbench.stats.intervals import adjust_by_holm, wilson_interval
from lexbench.stats.pairs import PairedDifference, outcomes_of_samples, paired_difference
from lexbench.stats.records import records_of
from lexbench.store.format import FinishedCell
from tools import keep_samples, recompute

REFERENCE = Path(__file__).parents[1] / "results" / "reference"
LOSSES = REFERENCE / "samples" / "lexlet.parquet"
"""Losses of 37 methods, and their keys by the task's version 2."""
LENGTHS = (128, 256, 512, 1024, 2048)
TRAINED, LONG = 256, 2048
N_KEYS, N_OPTIONS = 32, 32
METRICS = {"loss": "nll", "copied whole": "accuracy", "digits in place": "in_place"}
"""Names of lexbench for those of the page, where they differ."""


class Lexlet:
    """Cells of losses and of keys; methods are named by their labels."""

    def __init__(self) -> None:
        cells = [each for each in keep_samples.read_cells(LOSSES) if each.cell.task == "last_segment"]
        cells += keep_samples.read_cells(recompute.MEASURED_KEYS)
        self.cells = {(each.cell.task, str(each.cell.method), each.cell.length): each for each in cells}
        self.compared = recompute.compared_methods(near=False, without_hiding=False)
        self.near = recompute.compared_methods(near=True, without_hiding=False)
        found = {name for task, name, length in self.cells if (task, length) == ("passkey", LONG)}
        self.methods = sorted(found, key=self._order)
        self.set_for_long = sorted(
            {name for task, name, length in self.cells if (task, length) == ("passkey", TRAINED) and "(" in name}
        )

    def _order(self, method: str) -> tuple[float, float, float, str]:
        scores = [-self.count(name, method) for name in ("chosen", "copied whole", "digits in place")]
        return scores[0], scores[1], scores[2], method

    def cell(self, metric: str, method: str, length: int = LONG) -> FinishedCell:
        """The cell that tells a metric."""
        return self.cells["last_segment" if metric == "loss" else "passkey", method, length]

    def loss(self, method: str, length: int = LONG) -> float:
        """Mean nats per token."""
        return recompute.lexlet_keys("loss", method, length).mean

    def count(self, metric: str, method: str, length: int = LONG) -> int:
        """Keys of 32, or digits of 160."""
        return round(float(recompute.lexlet_keys(metric, method, length).sums.sum()))

    def gap(self, metric: str, one: tuple[str, int], other: tuple[str, int]) -> PairedDifference:
        """A method at a length minus another."""
        name = METRICS.get(metric, metric)
        sides = [outcomes_of_samples(self.cell(metric, *each).samples, name) for each in (other, one)]
        return paired_difference(sides[0], sides[1], name)

    def ends(self, metric: str, method: str, length: int = LONG) -> tuple[float, float, float]:
        """A value and its interval, which every report of lexbench has."""
        if metric == "a number written":
            share = self.count(metric, method, length)
            found = wilson_interval(share, N_KEYS)
            return share / N_KEYS, found.low, found.high
        name = METRICS.get(metric, metric)
        (record,) = (
            each for each in records_of(self.cell(metric, method, length)) if each.metric == name and each.part is None
        )
        assert record.value is not None and record.low is not None and record.high is not None
        return record.value, record.low, record.high

    def text(self, metric: str, method: str, length: int = LONG) -> str:
        """`27 of 32 [68, 93 %]`, or a loss; nothing where none was measured."""
        if metric == "loss" and method not in self.compared:
            return ""
        if metric == "by other keys":
            return f"{recompute.lexlet_keys(metric, method, length).sums.sum():.1f} of 160"
        value, low, high = self.ends(metric, method, length)
        if metric in ("loss", "forced"):
            return f"{value:.3f} [{low:.3f}, {high:.3f}]"
        of = 5 * N_KEYS if metric == "digits in place" else N_KEYS
        return f"{round(value * of)} of {of} [{100 * low:.0f}, {100 * high:.0f} %]"

    def above_chance(self) -> list[str]:
        """Methods that choose more keys at 8T than a guess among the options, after Holm's correction over all."""
        p = [recompute.tail_of_guesses(self.count("chosen", each), N_KEYS, 1 / N_OPTIONS) for each in self.methods]
        return [name for name, each in zip(self.methods, adjust_by_holm(p), strict=True) if each <= 0.05]


def answers_of_both_versions() -> tuple[int, int]:
    """Answers to versions 2 and 3 of the task, and those of them that differ or score otherwise."""
    sides = [
        {
            (str(each.cell.method), each.cell.length, one.index): (one.output, one.scores["accuracy"], one.cluster)
            for each in keep_samples.read_cells(file)
            if each.cell.task == "passkey"
            for one in each.samples
        }
        for file in (LOSSES, recompute.MEASURED_KEYS)
    ]
    shared = sides[0].keys() & sides[1].keys()
    return len(shared), sum(sides[0][key] != sides[1][key] for key in shared)
