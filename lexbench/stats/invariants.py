"""Rules that every finished cell keeps, whatever was measured: one that breaks a rule is not shown, ranked or compared.

    identity     the shown length, seed, n, trained length, dtype and kernel are those of the identity, and the shown
                 model, method, task and backend begin with its names
    refusal      a refused cell has no samples; a measured one has some, each index once, as many as its file says were
                 asked. Older files do not say so: there n of a task of lexbench (LongBench, whose data may hold fewer:
                 at most n; LongPPL asks several windows of a document)
    questions    cells that were asked the same (task, corpus, texts' start, length, seed, n) hold the same questions:
                 indices, clusters and depths, and where they were answered tokens, targets, bytes and words
    samples      no longer than the length, nor shorter if they fill it, with as many targets as the identity states;
                 scores, chances and depths in [0, 1]; every number finite, unless the sample failed; negative
                 log-likelihoods and floors at least 0: probabilities are at most 1; what one sample has of scores and
                 likelihoods, all have that did not fail

Checksums of a cell's file and the hash of its identity are verified where it is read (`lexbench.store.format`).
"""

import functools
import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lexbench.core import registry
from lexbench.core.groups import group_by_key
from lexbench.core.method_key import MethodKey
from lexbench.core.record import Cell, Sample
from lexbench.core.text import plain_text
from lexbench.core.values import is_whole
from lexbench.metrics import metric_named
from lexbench.metrics.of_task import metrics_of_task
from lexbench.stats.metrics import facts_of
from lexbench.store.format import FinishedCell

TASKS_WITH_FEWER_QUESTIONS, TASKS_WITH_MORE_QUESTIONS = ("longbench", "longbench_e"), ("long_ppl",)
"""Tasks with less than one question for each of n where their data hold less, and with more."""
LENGTH_SETTING_NAMES = ("at", "length", "set_to")
"""Names in an identity of the length that a method is set to: of a run, a tune and an import."""
MAX_POSSIBLE_AMOUNT = 1e30
MAX_NEGATIVE_NLL_NATS = 1e-3
"""Nats: how far below 0 log-softmax in half precision may fall."""


class UndeclaredMetric(str):
    """Fault of a value that is no share, of a metric whose facts are not known here: its cell may be sound."""


def sample_faults(sample: Sample, length: int | None = None) -> Iterator[str]:
    """Faults of a sample, in words; none for a good one."""
    if length is not None and sample.tokens > length:
        yield f"{sample.tokens} tokens, more than the length"
    for name, share in (("chance", sample.chance), ("depth", sample.depth)):
        if share is not None and not 0 <= share <= 1:
            yield f"{name} {share:g}, which must be in [0, 1]"
    for name, floor in sample.floors.items():
        if not (math.isfinite(floor) and floor >= 0):
            yield f"{name} floor {floor:g}, which must be finite and at least 0"
    if sample.failed is not None:  # it has no answer to judge
        if not sample.failed:
            yield "failed without a reason"
        return
    for name, value in sample.scores.items():
        if metric_named(name) is None and not is_possible_amount(name, value):
            yield UndeclaredMetric(f"{name} {value:g}, a metric that no task here states")
        elif not is_possible_amount(name, value):
            least, most = possible_range(name)
            within = "finite" if math.isinf(most) else f"in [{least:g}, {most:g}]"
            yield f"{name} {value:g}, which must be {within}"
    if sample.nll is not None and not _is_possible_nll(sample.nll):
        least = float(np.nan_to_num(sample.nll, nan=-math.inf).min())
        yield f"a negative log-likelihood of {least:g}, which must be finite and at least 0"


def is_possible_amount(metric: str, amount: float) -> bool:
    """Whether one answer may have this score, measure, or sum of nats (`nll`): none is beyond 1e30."""
    least, most = possible_range(metric)
    return least <= amount <= most and abs(amount) <= MAX_POSSIBLE_AMOUNT


def possible_range(metric: str) -> tuple[float, float]:
    """Least and greatest value of one answer."""
    return facts_of(metric).limits or (-math.inf, math.inf)


def _is_possible_nll(nll: NDArray[np.float32]) -> bool:
    """Whether these are negative logarithms of probabilities: NaN and infinity make one of the comparisons false."""
    return len(nll) == 0 or bool(nll.min() >= -MAX_NEGATIVE_NLL_NATS and nll.max() < math.inf)


def cell_faults(finished: FinishedCell) -> list[str]:
    """Faults of a cell by itself, in words; empty for a good one."""
    cell, samples = finished.cell, finished.samples
    found = list(wrongly_shown_settings(cell))
    if finished.refused is not None:
        return found + (["samples, though it is refused"] if samples else [])
    if finished.asked is not None:
        if not samples or len(samples) != finished.asked:
            found.append(f"{len(samples)} of {finished.asked} samples")
    elif not samples or _has_wrong_count(cell.task_name, len(samples), cell.n):
        found.append(f"{len(samples)} of {cell.n} samples")
    indices = {sample.index for sample in samples}
    if len(indices) < len(samples):
        found.append("an index twice")
    return found + unfinished_cell_faults(cell, samples)


def unfinished_cell_faults(cell: Cell, samples: Sequence[Sample]) -> list[str]:
    """Faults of a cell's samples, though more samples may come, in words."""
    metrics_of_task(cell.task_name)  # they state their range
    told = [(one.index, fault) for one in samples for fault in sample_faults(one, cell.length)]
    found = [type(fault)(f"sample {index} with {fault}") for index, fault in told]
    task = cell.identity.get("task")
    stated = task.get("targets") if isinstance(task, dict) and task.get("name") in _core_task_names() else None
    if is_whole(stated, 1) and (odd := next((n for one in samples if (n := targets_of(one)) not in (None, stated)), 0)):
        found.append(f"{odd} targets, though its identity says {stated}")
    if is_whole(stated, 1) and isinstance(task, dict) and task["name"] == "last_segment":
        # Its questions fill the length.
        short = [one.tokens for one in samples if one.tokens < cell.length]
        found += [f"{short[0]} tokens, though its questions have {cell.length}"] if short else []
    return found + ([fault] if (fault := score_keys_differ(samples)) else [])


def targets_of(sample: Sample) -> int | None:
    """Number of targets of a likelihood that was answered; None of any other sample."""
    return None if sample.nll is None or sample.failed is not None else len(sample.nll)


def score_keys_differ(samples: Iterable[Sample]) -> str | None:
    """Name a score or likelihood that one answered sample has and another lacks; None where all agree."""
    answered = [(sample.index, amount_names(sample)) for sample in samples if sample.failed is None]
    for index, amounts in answered:
        if lacking := sorted(answered[0][1] ^ amounts):
            one, other = (index, answered[0][0]) if lacking[0] in amounts else (answered[0][0], index)
            return f"{lacking[0]} for sample {one} and not for sample {other}"
    return None


def amount_names(sample: Sample) -> frozenset[str]:
    """The names of what a sample is worth: its scores, and `nll`."""
    return frozenset(sample.scores) | ({"nll"} if sample.nll is not None else frozenset())


def _has_wrong_count(task: str, count: int, n: int) -> bool:
    """Whether a task of lexbench has too few or too many samples; one of the user's own may ask any number."""
    few, many = (
        count < n and task not in TASKS_WITH_FEWER_QUESTIONS,
        count > n and task not in TASKS_WITH_MORE_QUESTIONS,
    )
    return task in _core_task_names() and (few or many)


@functools.cache
def _core_task_names() -> frozenset[str]:
    """Names of the tasks of lexbench."""
    return frozenset(registry.registered_names("task"))


def wrongly_shown_settings(cell: Cell) -> Iterator[str]:
    """Yield a sentence for each stored setting that differs from the cell's identity, where that states it."""
    known = cell.identity
    model, backend = known.get("model"), known.get("backend")
    pairs = [(name, getattr(cell, name), known.get(name)) for name in ("length", "seed", "n")]
    if isinstance(model, dict):
        pairs.append(("trained_length", cell.trained_length, model.get("trained_length")))
    if isinstance(backend, dict):
        pairs += [(name, getattr(cell, name), backend.get(name)) for name in ("dtype", "kernel")]
    for name, shown, asked in pairs:
        if asked is not None and shown != asked:
            yield f"{name} {shown}, though its identity says {asked}"
    for name in ("model", "method", "task", "backend"):
        part = known.get(name)
        asked = part.get("name") if isinstance(part, dict) else None
        if isinstance(part, dict) and isinstance(asked, str) and not _shows(getattr(cell, name), asked, part):
            yield f"{name} {getattr(cell, name)}, though its identity says {asked}"


def _shows(shown: MethodKey | str, name: str, part: Mapping[str, Any]) -> bool:
    """Whether what a cell shows has the name of a part of its identity, and the length that the part is set to."""
    if isinstance(shown, MethodKey):
        fits = shown.at is None or shown.at in [part.get(each) for each in LENGTH_SETTING_NAMES]
        return fits and name in (shown.bare, shown.text)
    return shown == name or shown.startswith(f"{name}(")


def questions_differ(cells: Iterable[FinishedCell]) -> dict[str, str]:
    """Fault of each cell whose questions differ from those of most cells with the same settings, by cell id."""
    measured = (each for each in cells if each.refused is None and not each.deferred)
    found = {}
    for group in group_by_key(measured, question_key).values():
        if len(group) < 2:
            continue
        questions = [_question_places(each) for each in group]
        counts = Counter(questions)
        # Longest first: cells cut short by the same fault must not outvote a whole one.
        most = max(counts, key=lambda asked: (len(asked), counts[asked]))
        sizes = _usual_sizes(group)
        for each, asked in zip(group, questions, strict=True):
            if asked != most:
                missing = len({index for index, *_ in most} - {index for index, *_ in asked})
                said = f"{missing} of {len(most)} questions missing" if missing else "other questions"
                found[each.cell.id] = f"{said} than cells that were asked the same"
            elif said := next(_other_sizes(each, sizes), ""):
                found[each.cell.id] = f"{said} in cells that were asked the same"
    return found


QUESTION_SIZE_FIELDS = ("tokens", "targets", "bytes", "words")
"""Numbers that follow from a question, whatever is answered."""


def _sizes(sample: Sample) -> tuple[int | None, ...] | None:
    """The `QUESTION_SIZE_FIELDS` of a sample; None where it failed, or has lost a part of its question."""
    whole = sample.failed is None and not sample.truncated
    return (sample.tokens, targets_of(sample), sample.bytes, sample.words) if whole else None


def _usual_sizes(cells: Sequence[FinishedCell]) -> dict[int, tuple[int | None, ...]]:
    """Sizes that most answered samples of cells have, by index; of two equally frequent sizes the larger."""
    if len({tuple(map(_sizes, each.samples)) for each in cells}) == 1:
        return {}  # nearly always: none differs
    found: dict[int, Counter[tuple[int | None, ...]]] = {}
    for sample in (one for each in cells for one in each.samples):
        if sizes := _sizes(sample):
            found.setdefault(sample.index, Counter())[sizes] += 1
    return {
        index: max(counts, key=lambda sizes: (counts[sizes], [-1 if size is None else size for size in sizes]))
        for index, counts in found.items()
    }


def _other_sizes(finished: FinishedCell, usual: Mapping[int, tuple[int | None, ...]]) -> Iterator[str]:
    """Faults of samples whose sizes are not those of their question, in words."""
    for sample in finished.samples if usual else ():
        for name, own, other in zip(
            QUESTION_SIZE_FIELDS, _sizes(sample) or (), usual.get(sample.index, ()), strict=False
        ):
            if own != other:
                yield f"sample {sample.index} with {own} {name}, which is {other}"


def question_key(finished: FinishedCell) -> str:
    """Key of the settings that decide a cell's questions: cells with equal keys hold equal questions."""
    known, cell = finished.cell.identity, finished.cell
    model = known.get("model")
    start = model.get("begins_with") if isinstance(model, dict) else None
    asked = [cell.model, start, known.get("task", cell.task), known.get("corpus", cell.corpus), cell.length, cell.seed]
    return json.dumps([*asked, cell.n, cell.protocol], sort_keys=True, default=str)


def _question_places(finished: FinishedCell) -> tuple[tuple[int, str, float | None], ...]:
    """Index, cluster and depth of each question."""
    return tuple((sample.index, sample.cluster, sample.depth) for sample in finished.samples)


def record_problems(cells: Iterable[FinishedCell]) -> dict[str, str]:
    """Faults of each faulty cell of one folder, in one line, by cell id."""
    known = list(cells)
    found = {each.cell.id: cell_faults(each) for each in known}
    # A cell that is wrong by itself has no say in what the others were asked.
    for name, said in questions_differ(each for each in known if not found[each.cell.id]).items():
        found[name].append(said)
    return {each.cell.id: fault_line(each, found[each.cell.id]) for each in known if found[each.cell.id]}


def fault_line(finished: FinishedCell, said: Sequence[str]) -> str:
    """A cell's faults in one line, with the remedy."""
    cell = finished.cell
    more = f", and {len(said) - 1} more faults" if len(said) > 1 else ""
    name = f"{cell.id} ({plain_text(f'{cell.method} {cell.task}')} at {cell.length}, seed {cell.seed})"
    remedy = remedy_of(said[0], f"cells/{cell.id}.parquet", "run the same command again")
    return f"cell {name} has {plain_text(said[0])}{more}: {remedy}"


def remedy_of(fault: str, file: object, again: str) -> str:
    """What to do about a fault of a cell."""
    if isinstance(fault, UndeclaredMetric):
        return "give the folder of its task by LEXBENCH_CONFIG_PATH=DIR"
    return f"delete {file} and {again}"
