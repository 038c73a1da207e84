"""Damages of cells that no rule of `stats.invariants` shows: answers, questions and numbers that do not fit together.

They are looked for by `doctor` alone: each costs more than reading the cell, and some only make a cell improbable.

    by itself     checksums of samples; scores against the stored answer; an answer that is missing; likelihoods that
                  are all equal, or beyond what a network can give; floors that no vocabulary has; facts whose answer
                  stands in the prompts of other questions
    together      cells that were asked the same hold the same prompts, chances and floors; one task has one protocol
                  and the same scores; likelihoods of the same targets under two methods rise and fall together; a cell
                  that asked fewer of the same questions holds the same ones
"""

import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lexbench.core.groups import group_by_key
from lexbench.core.record import Sample, expected_texts
from lexbench.core.values import is_whole
from lexbench.stats.invariants import amount_names, question_key
from lexbench.stats.rescored import score_faults
from lexbench.store.checksum import has_changed
from lexbench.store.format import FinishedCell

MAX_NLL_NATS = 1e4
"""More than any logit in half precision gives for a token beside others."""
MIN_COMPARED_TARGETS = 8
"""Targets from which equal likelihoods are no chance."""
MIN_SHIFTED_TARGETS = 64
"""Targets of a cell from which no chance makes two methods agree better at other places than at their own."""
SPIKE_QUANTILE = 0.9
"""Likelihoods above it count as it: a few that are far out would decide alone."""
MAX_NEIGHBOURS = 6
"""Cells on either side with which one is compared, of those with the same targets."""
MIN_COMPARED_SAMPLES = 3
HIGH_CORRELATION, HIGHER_BY = 0.5, 0.3
"""Correlation of two methods' likelihoods of the same targets, and how much less it is at their own places where they
are shifted against each other."""
SCALED_CORRELATION, MAX_SCALE = 0.95, 1.8
"""Correlation above which two methods' likelihoods differ by a factor, if that is beyond this."""
OWN_SHARE, OTHER_SHARE = 0.2, 0.9
"""Shares of samples whose expected answer stands in their own prompt, at most, and in another's, at least, where facts
and prompts are exchanged."""


def damages_by_cell(cells: Iterable[FinishedCell]) -> dict[str, list[str]]:
    """Damages of each cell of one folder that has some, in words, by cell id."""
    known = [each for each in cells if each.refused is None and not each.deferred and each.samples]
    found = {each.cell.id: list(cell_damages(each)) for each in known}
    for name, said in [*_differences(known), *_shifted_or_scaled(known), *_smaller_cells(known)]:
        found[name].append(said)
    return {name: said for name, said in found.items() if said}


def cell_damages(finished: FinishedCell) -> Iterator[str]:
    """Damages of a cell by itself."""
    samples = finished.samples
    for sample in samples:
        for fault in sample_damages(sample):
            yield f"sample {sample.index} with {fault}"
        for fault in score_faults(finished.cell, sample):
            yield f"sample {sample.index} with {fault}"
    yield from _floor_faults(samples)
    yield from _target_count_faults(samples)
    if (odd := _exchanged_prompts(samples)) is not None:
        yield f"sample {odd} with an expected answer that stands in the prompt of another one"


def sample_damages(sample: Sample) -> Iterator[str]:
    """Damages of a sample by itself."""
    if has_changed(sample):
        yield "another checksum than when it was scored"
    if sample.failed is None and sample.hit_room is not None and sample.output is None:
        yield "no output, though it was written"
    if sample.failed is not None and not sample.statistics and any(sample.scores.values()):
        yield "a score above 0, though it failed"
    if sample.failed is not None and sample.nll is not None and bool(np.isfinite(sample.nll).all()):
        yield "finite likelihoods, though it failed"
    if sample.failed is None and sample.nll is not None:
        yield from _likelihood_damages(sample, sample.nll)
    yield from _mark_damages(sample)


def _likelihood_damages(sample: Sample, nll: NDArray[np.float32]) -> Iterator[str]:
    if len(nll) >= sample.tokens:
        yield f"{len(nll)} targets of {sample.tokens} tokens"
    if len(nll) and float(nll.max()) > MAX_NLL_NATS:
        yield f"a negative log-likelihood of {nll.max():g}, beyond what a network gives"
    if len(nll) >= MIN_COMPARED_TARGETS and bool((nll == nll[0]).all()) and not _is_uniform(float(nll[0])):
        yield f"{len(nll)} equal likelihoods"


def _is_uniform(nats: float) -> bool:
    """Whether these are the nats of a guess among a whole number of tokens, at least 2."""
    choices = math.exp(nats) if nats < math.log(1e9) else math.inf
    return 1.5 < choices < math.inf and abs(choices - round(choices)) <= 1e-5 * choices + 1e-3


def _mark_damages(sample: Sample) -> Iterator[str]:
    """Scores of marks and of divergences against the statistics that they are means of."""
    right, apart = sample.statistics.get("right"), sample.statistics.get("divergence")
    due: dict[str, float] = {}
    if right is not None and len(right):
        due = {"accuracy": float(right.mean(dtype=np.float64)), "exact": float(bool((right == 1).all()))}
    elif apart is not None and len(apart) and sample.failed is None:
        due = {"kld": float(apart.mean(dtype=np.float64))}
    for name, value in due.items():
        if name not in sample.scores:
            yield f"no {name}, though its statistics give one"
        elif not math.isclose(sample.scores[name], value, rel_tol=1e-4, abs_tol=1e-4):
            yield f"{name} {sample.scores[name]:g}, though its statistics give {value:g}"


def _floor_faults(samples: Sequence[Sample]) -> Iterator[str]:
    """A uniform guess is among a whole number of tokens, the same for all samples."""
    uniform = {sample.floors["uniform"] for sample in samples if "uniform" in sample.floors}
    if len(uniform) > 1 and max(uniform) - min(uniform) > 1e-6:
        yield f"uniform floors of {min(uniform):g} and {max(uniform):g}, which are one vocabulary's"
    elif odd := next((value for value in uniform if not _is_uniform(value)), None):
        yield f"a uniform floor of {odd:g}, which no vocabulary has"


def _target_count_faults(samples: Sequence[Sample]) -> Iterator[str]:
    """Texts of one number of tokens, of which nearly all have one number of targets."""
    for alike in group_by_key(
        [each for each in samples if each.failed is None and not each.truncated], _tokens
    ).values():
        counts = Counter(len(each.nll) for each in alike if each.nll is not None)
        if len(counts) < 2 or len(alike) <= MIN_COMPARED_SAMPLES:
            continue
        usual, often = counts.most_common(1)[0]
        if often >= 0.75 * len(alike):
            odd = next(each for each in alike if each.nll is not None and len(each.nll) != usual)
            yield f"sample {odd.index} with {len(odd.nll or ())} targets, where others of its tokens have {usual}"


def _tokens(sample: Sample) -> int:
    return sample.tokens


def _exchanged_prompts(samples: Sequence[Sample]) -> int | None:
    """Index of a sample, where nearly all expected answers stand in other prompts and hardly one in its own."""
    pairs = [(each, expected_texts(each.facts.get("expected"))) for each in samples]
    asked = [(each.index, texts, each.prompt) for each, texts in pairs if texts and each.prompt is not None]
    if len(asked) < MIN_COMPARED_SAMPLES or len({tuple(texts) for _, texts, _ in asked}) < len(asked):
        return None
    own = [all(text in prompt for text in texts) for _, texts, prompt in asked]
    if sum(own) > OWN_SHARE * len(asked):
        return None
    other = [
        any(all(text in prompt for text in texts) for index, _, prompt in asked if index != mine)
        for mine, texts, _ in asked
    ]
    return asked[own.index(False)][0] if sum(other) >= OTHER_SHARE * len(asked) else None


def _differences(cells: Sequence[FinishedCell]) -> Iterator[tuple[str, str]]:
    """Cells that differ from most of those with which they share questions, or a task."""
    for group in group_by_key(cells, question_key).values():
        asked = [(each, sample) for each in group for sample in each.samples]
        for index, own in group_by_key(asked, lambda pair: pair[1].index).items():
            for name in ("question", "prompt", "chance", "floors"):
                yield from _odd_ones([(each, _as_text(sample, name)) for each, sample in own], f"sample {index}", name)
    for group in group_by_key(cells, _task_key).values():
        yield from _odd_ones([(each, each.cell.protocol) for each in group], "", "protocol")
        named = [(each, _score_names(each)) for each in group]
        yield from _odd_ones([(each, names) for each, names in named if names], "", "scores")


def _odd_ones(values: Sequence[tuple[FinishedCell, str | None]], where: str, name: str) -> Iterator[tuple[str, str]]:
    """Cells whose value is not the commonest; one that says none is not compared."""
    said = [(each, value) for each, value in values if value is not None]
    counts = Counter(value for _, value in said)
    if len(counts) < 2:
        return
    usual = counts.most_common(1)[0][0]
    for each, value in said:
        if value != usual:
            yield each.cell.id, f"{where} with another {name} than cells that were asked the same".lstrip()


def _as_text(sample: Sample, name: str) -> str | None:
    """A field of a sample that follows from its question, as text; None where it says none."""
    held = getattr(sample, name)
    if sample.failed is not None or held is None or held == {}:
        return None
    return json.dumps({key: f"{value:.5f}" for key, value in sorted(held.items())}) if name == "floors" else str(held)


def _score_names(finished: FinishedCell) -> str | None:
    answered = [sample for sample in finished.samples if sample.failed is None]
    return ", ".join(sorted(amount_names(answered[0]))) if answered else None


def _task_key(finished: FinishedCell) -> str:
    """Settings that decide a protocol and the names of scores."""
    known, cell = finished.cell.identity, finished.cell
    backend = known.get("backend")
    form = backend.get("chat") if isinstance(backend, Mapping) else None
    return json.dumps([known.get("model", cell.model), known.get("task", cell.task), form, cell.backend], default=str)


def _shifted_or_scaled(cells: Sequence[FinishedCell]) -> Iterator[tuple[str, str]]:
    """Cells whose likelihoods are those of the same targets elsewhere, at other places or times a factor."""
    for group in group_by_key(cells, _target_key).values():
        held = [(each.cell.id, row) for each in group if (row := _likelihoods(each)) is not None]
        for alike in group_by_key([_Row.of(*each) for each in held], lambda row: row.size).values():
            yield from _odd_likelihoods(alike)


def _target_key(finished: FinishedCell) -> str:
    """Key of cells with the same targets: of the same questions, or of one number of targets at the texts' ends."""
    task = finished.cell.identity.get("task")
    if isinstance(task, Mapping) and is_whole(task.get("targets"), 1):
        sizes = [(each.index, each.cluster, each.bytes, each.words) for each in finished.samples]
        return json.dumps([finished.cell.model, task, sizes], default=str)
    return question_key(finished)


def _likelihoods(finished: FinishedCell) -> NDArray[np.float64] | None:
    """[targets] negative log-likelihoods of all samples behind one another; None where one has none."""
    rows = [sample.nll for sample in sorted(finished.samples, key=lambda each: each.index)]
    held = [row for row in rows if row is not None]
    if len(held) < len(rows) or any(sample.failed is not None for sample in finished.samples):
        return None
    joined = np.concatenate(held).astype(np.float64)
    plain = len(joined) >= MIN_SHIFTED_TARGETS and joined.max() <= MAX_NLL_NATS and joined.std() > 0
    return joined if plain else None


@dataclass(frozen=True, eq=False)
class _Row:
    """Likelihoods of a cell, made ready to be compared."""

    cell: str
    size: int
    norm: float
    """Of all likelihoods."""
    spectrum: NDArray[np.complex128]
    """Of the likelihoods without spikes, of mean 0 and norm 1."""

    @classmethod
    def of(cls, cell: str, row: NDArray[np.float64]) -> "_Row":
        """The row of a cell."""
        plain = np.minimum(row, np.quantile(row, SPIKE_QUANTILE))
        plain = plain - plain.mean()
        length = float(np.linalg.norm(plain)) or 1.0
        return cls(cell, len(row), float(np.linalg.norm(row)), np.fft.rfft(plain / length))


def _odd_likelihoods(rows: Sequence[_Row]) -> Iterator[tuple[str, str]]:
    """Of cells with the same targets those that disagree with most of the others that they are compared with."""
    against: Counter[str] = Counter()
    said: dict[str, str] = {}
    steps = range(1, min(MAX_NEIGHBOURS, len(rows) // 2) + 1)
    pairs = {frozenset((place, (place + step) % len(rows))) for place in range(len(rows)) for step in steps}
    for one, other in ((rows[min(pair)], rows[max(pair)]) for pair in sorted(pairs, key=sorted)):
        if fault := _disagreement(one, other):
            against.update((one.cell, other.cell))
            said |= {one.cell: fault, other.cell: fault}
    most = max(against.values(), default=0)
    yield from ((name, said[name]) for name, count in against.items() if count == most)


def _disagreement(one: _Row, other: _Row) -> str | None:
    """How two rows of likelihoods of the same targets differ as no two methods do."""
    shifted = np.fft.irfft(one.spectrum * np.conj(other.spectrum), one.size)
    place = int(shifted.argmax())
    if place and shifted[place] > HIGH_CORRELATION and shifted[place] - shifted[0] > HIGHER_BY:
        return f"likelihoods that are those of the same targets, {min(place, one.size - place)} places away"
    scale = one.norm / other.norm
    if shifted[0] > SCALED_CORRELATION and not 1 / MAX_SCALE < scale < MAX_SCALE:
        return f"likelihoods that are those of the same targets times {scale:.2f}"
    return None


def _smaller_cells(cells: Sequence[FinishedCell]) -> Iterator[tuple[str, str]]:
    """Cells that hold other questions under the same numbers than a cell that asked fewer of them."""
    for group in group_by_key(cells, _key_without_n).values():
        fewest, *more = sorted(group, key=lambda each: each.cell.n)
        known = {sample.index: sample for sample in fewest.samples}
        for each in more:
            pairs = [(known[sample.index], sample) for sample in each.samples if sample.index in known]
            if odd := next((one for one, other in pairs if not _is_same_question(one, other)), None):
                yield each.cell.id, f"sample {odd.index} of another question than in the cell of n={fewest.cell.n}"


def _key_without_n(finished: FinishedCell) -> str:
    return json.dumps({**finished.cell.identity, "n": None}, sort_keys=True, default=str)


def _is_same_question(one: Sample, other: Sample) -> bool:
    names: list[Any] = ["cluster", "tokens", "chance", "prompt", "depth", "facts"]
    if None not in (one.question, other.question):
        names.append("question")
    if one.failed is not None or other.failed is not None or one.truncated or other.truncated:
        names = ["cluster"]
    return all(getattr(one, name) == getattr(other, name) for name in names)
