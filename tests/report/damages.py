"""Damages of a run folder that a person would see: each changes one thing, and leaves all checksums of files right."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from lexbench.core.method_key import parse_label
from lexbench.core.record import Sample
from lexbench.stats.records import records_of
from lexbench.store.format import FinishedCell, cell_line, cell_parquet
from lexbench.store.store import Store

Damage = Callable[[Path], None]
Samples = list[Sample]
LENGTH = 256


def cell_of(folder: Path, task: str, method: str = "none") -> FinishedCell:
    """The cell of a task at the trained length."""
    found = [each for each in Store(folder).load() if each.cell.length == LENGTH and each.cell.task_name == task]
    return next(each for each in found if str(each.cell.method) == method)


def write(folder: Path, changed: FinishedCell, name: str) -> None:
    """The file of a cell with other contents, and the records that follow from it."""
    content = cell_parquet(changed.cell, changed.samples, changed.refused, changed.deferred, changed.asked)
    (folder / "cells" / f"{name}.parquet").write_bytes(content)
    (folder / "packed.parquet").unlink(missing_ok=True)
    Store(folder).write_records(records_of, afresh=True)


def samples_changed(task: str, change: Callable[[Samples], Samples]) -> Damage:
    def damage(folder: Path) -> None:
        held = cell_of(folder, task)
        write(folder, replace(held, samples=change(held.samples)), held.cell.id)

    return damage


def each(task: str, **fields: Callable[[Sample], Any]) -> Damage:
    """Every sample with other fields."""

    def changed(sample: Sample) -> Sample:
        return replace(sample, **{name: make(sample) for name, make in fields.items()})

    return samples_changed(task, lambda samples: list(map(changed, samples)))


def first(task: str, **fields: Callable[[Sample], Any]) -> Damage:
    """The first sample with other fields."""

    def changed(samples: Samples) -> Samples:
        one = replace(samples[0], **{name: make(samples[0]) for name, make in fields.items()})
        return [one, *samples[1:]]

    return samples_changed(task, changed)


def rotated(task: str, *names: str, by: int = 1) -> Damage:
    """Fields that each sample has from another one."""

    def changed(samples: Samples) -> Samples:
        others = [*samples[by:], *samples[:by]]
        pairs = zip(samples, others, strict=True)
        return [replace(one, **{name: getattr(other, name) for name in names}) for one, other in pairs]

    return samples_changed(task, changed)


def cell_changed(of_task: str, **fields: Any) -> Damage:
    def damage(folder: Path) -> None:
        held = cell_of(folder, of_task)
        write(folder, replace(held, cell=replace(held.cell, **fields)), held.cell.id)

    return damage


def file_changed(pattern: str, change: Callable[[bytes], bytes]) -> Damage:
    def damage(folder: Path) -> None:
        file = sorted(folder.glob(pattern))[0]
        file.write_bytes(change(file.read_bytes()))

    return damage


def removed(pattern: str, first_only: bool = True) -> Damage:
    def damage(folder: Path) -> None:
        for file in sorted(folder.glob(pattern))[: 1 if first_only else None]:
            file.unlink()

    return damage


def added(name: str, content: bytes) -> Damage:
    def damage(folder: Path) -> None:
        (folder / name).write_bytes(content)

    return damage


def other_job(**settings: Any) -> Damage:
    def changed(content: bytes) -> bytes:
        page = json.loads(content)
        return json.dumps({**page, "config": {**page["config"], **settings}}).encode()

    return file_changed("jobs/*.json", changed)


def record_changed(**fields: Any) -> Damage:
    def changed(content: bytes) -> bytes:
        line, *more = content.splitlines()
        return b"\n".join([json.dumps({**json.loads(line), **fields}).encode(), *more, b""])

    return file_changed("records.jsonl", changed)


def unfinished(folder: Path) -> None:
    """A cell that was begun, with a line that is no sample."""
    held = cell_of(folder, "passkey")
    (folder / "cells" / f"{held.cell.id}.parquet").unlink()
    (folder / "cells" / f"{held.cell.id}.jsonl").write_bytes(cell_line(held.cell) + b'{"index": 0}\n')


def renamed(folder: Path) -> None:
    held = cell_of(folder, "passkey")
    (folder / "cells" / f"{held.cell.id}.parquet").rename(folder / "cells" / f"{'0' * 16}.parquet")


def nll(change: Callable[[Any], Any]) -> dict[str, Callable[[Sample], Any]]:
    return {"nll": lambda sample: np.asarray(change(sample.nll), np.float32)}


def with_one(value: float) -> Callable[[Any], Any]:
    def changed(row: Any) -> Any:
        row = row.copy()
        row[len(row) // 2] = value
        return row

    return changed


def floors(factor: float) -> Callable[[Sample], Mapping[str, float]]:
    return lambda sample: {name: value * factor for name, value in sample.floors.items()}


def scores(**values: float) -> Callable[[Sample], Mapping[str, float]]:
    return lambda sample: {**sample.scores, **values}


def flipped(content: bytes) -> bytes:
    place = len(content) // 3
    return content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]


def without_accuracy(sample: Sample) -> Mapping[str, float]:
    return {"acc" if name == "accuracy" else name: value for name, value in sample.scores.items()}


def opposite(sample: Sample) -> Mapping[str, float]:
    return {name: 1 - value for name, value in sample.scores.items()}


TEXT, WRITTEN = "last_segment", "passkey"
DAMAGES: dict[str, Damage] = {
    # Scores and the answers that they are of.
    "one score is 1 less": first(WRITTEN, scores=opposite),
    "all scores are the opposite": each(WRITTEN, scores=opposite),
    "all scores are 1": samples_changed(
        WRITTEN, lambda held: [replace(one, output=" none", scores={"accuracy": 1.0, "contains": 1.0}) for one in held]
    ),
    "all scores are 0": each(WRITTEN, scores=scores(accuracy=0.0, contains=0.0)),
    "one score is a half": first(WRITTEN, scores=scores(accuracy=0.5)),
    "scores are rotated": samples_changed(
        WRITTEN,
        lambda held: [replace(one, scores={"accuracy": float(i % 2), "contains": 1.0}) for i, one in enumerate(held)],
    ),
    "outputs are rotated": rotated(WRITTEN, "output"),
    "outputs are rotated by three": rotated(WRITTEN, "output", by=3),
    "outputs are all one": samples_changed(WRITTEN, lambda held: [replace(s, output=held[0].output) for s in held]),
    "one output is None": first(WRITTEN, output=lambda _: None),
    "all outputs are None": each(WRITTEN, output=lambda _: None),
    "all outputs are empty": each(WRITTEN, output=lambda _: ""),
    "one output is cut": first(WRITTEN, output=lambda sample: (sample.output or "")[:2]),
    "facts are rotated": rotated(WRITTEN, "facts"),
    "facts and depths are rotated": rotated(WRITTEN, "facts", "depth"),
    "prompts are rotated": rotated(WRITTEN, "prompt"),
    "prompts are rotated by two": rotated(WRITTEN, "prompt", by=2),
    "prompts and facts are rotated": rotated(WRITTEN, "prompt", "facts"),
    "prompts of texts are rotated": rotated(TEXT, "prompt"),
    "failed beside scores": first(WRITTEN, failed=lambda _: "the server was lost"),
    "all failed beside scores": each(WRITTEN, failed=lambda _: "the server was lost"),
    "failed beside likelihoods": first(TEXT, failed=lambda _: "the server was lost"),
    "a metric is renamed": each(WRITTEN, scores=without_accuracy),
    "a metric is renamed once": first(WRITTEN, scores=without_accuracy),
    "a metric too many": each(WRITTEN, scores=scores(bleu=0.3)),
    "chance of one sample": first(WRITTEN, chance=lambda _: 0.5),
    "chance of all samples": each(WRITTEN, chance=lambda _: 0.5),
    "chance is lost": first(WRITTEN, chance=lambda _: None),
    "depth of one sample": first(WRITTEN, depth=lambda sample: 1 - (sample.depth or 0) * 0.9),
    "clusters are rotated": rotated(TEXT, "cluster", by=5),
    "tokens of one sample": first(WRITTEN, tokens=lambda sample: sample.tokens - 7),
    # Likelihoods.
    "likelihoods are 0": each(TEXT, **nll(np.zeros_like)),
    "likelihoods of one text are 0": first(TEXT, **nll(np.zeros_like)),
    "likelihoods are equal": each(TEXT, **nll(lambda row: np.full_like(row, 3.2))),
    "likelihoods are their mean": each(TEXT, **nll(lambda row: np.full_like(row, row.mean()))),
    "a likelihood of 1e30": first(TEXT, **nll(with_one(1e30))),
    "a likelihood of 1e6": first(TEXT, **nll(with_one(1e6))),
    "a likelihood of NaN": first(TEXT, **nll(with_one(np.nan))),
    "a likelihood of -2": first(TEXT, **nll(with_one(-2))),
    "likelihoods are rolled by one": each(TEXT, **nll(lambda row: np.roll(row, 1))),
    "likelihoods are rolled by nine": each(TEXT, **nll(lambda row: np.roll(row, -9))),
    "likelihoods are of the text before": rotated(TEXT, "nll"),
    "likelihoods are of another text": rotated(TEXT, "nll", by=3),
    "likelihoods are reversed": each(TEXT, **nll(lambda row: row[::-1])),
    "likelihoods are sorted": each(TEXT, **nll(np.sort)),
    "likelihoods of one text are shorter": first(TEXT, **nll(lambda row: row[:-3])),
    "likelihoods are half as many": each(TEXT, **nll(lambda row: row[: len(row) // 2])),
    "likelihoods are twice as many": each(TEXT, **nll(lambda row: np.concatenate([row, row]))),
    "likelihoods are more than tokens": each(TEXT, **nll(lambda row: np.tile(row, 9))),
    "likelihoods are of another base": each(TEXT, **nll(lambda row: row / 2.302585)),
    "likelihoods are doubled": each(TEXT, **nll(lambda row: row * 2)),
    "likelihoods are lost": first(TEXT, nll=lambda _: None),
    "floors times 0.1": each(TEXT, floors=floors(0.1)),
    "floors of one sample times 0.1": first(TEXT, floors=floors(0.1)),
    "floors times 2": each(TEXT, floors=floors(2.0)),
    "floors below 0": first(TEXT, floors=floors(-1.0)),
    "floors are lost": each(TEXT, floors=lambda _: {}),
    "bytes of one sample": first(TEXT, bytes=lambda sample: (sample.bytes or 0) * 3),
    "words of one sample": first(TEXT, words=lambda sample: (sample.words or 0) + 5),
    # The cell.
    "another protocol": cell_changed(TEXT, protocol="NLL of all tokens"),
    "another protocol of answers": cell_changed(WRITTEN, protocol="passkey, lenient"),
    "another length": cell_changed(TEXT, length=512),
    "another n": cell_changed(TEXT, n=7),
    "another seed": cell_changed(TEXT, seed=7),
    "another dtype": cell_changed(TEXT, dtype="float16"),
    "another method": cell_changed(TEXT, method=parse_label("yarn")),
    "another task": cell_changed(TEXT, task="prefix"),
    "another model": cell_changed(TEXT, model="gpt9"),
    "another trained length": cell_changed(TEXT, trained_length=4096),
    "a sample is lost": samples_changed(TEXT, lambda held: held[1:]),
    "a sample stands twice": samples_changed(TEXT, lambda held: [*held, replace(held[0], index=99)]),
    "an index is skipped": samples_changed(TEXT, lambda held: [replace(held[0], index=99), *held[1:]]),
    # Files.
    "a line of costs is junk": file_changed("costs.jsonl", lambda content: content + b"junk\n"),
    "costs are below 0": file_changed("costs.jsonl", lambda content: content.replace(b'"seconds": ', b'"seconds": -')),
    "costs are NUL": file_changed("costs.jsonl", lambda content: b"\0" * len(content)),
    "a line of costs names no cell": file_changed("costs.jsonl", lambda held: held + b'{"seconds": 1, "tokens": 2}\n'),
    "a job is torn": file_changed("jobs/*.json", lambda content: content[: len(content) // 2]),
    "a job is empty": file_changed("jobs/*.json", lambda content: b""),
    "a job is a list": file_changed("jobs/*.json", lambda content: b"[]\n"),
    "a job has another n": other_job(n=77),
    "a job has another seed": other_job(seed=[77]),
    "jobs are removed": removed("jobs/*.json", first_only=False),
    "records are removed": removed("records.jsonl"),
    "a record is lost": file_changed("records.jsonl", lambda content: content.split(b"\n", 1)[1]),
    "a record stands twice": file_changed(
        "records.jsonl", lambda content: content.split(b"\n", 1)[0] + b"\n" + content
    ),
    "a record has another value": record_changed(value=0.123456),
    "a record has another n": record_changed(n=1),
    "records are torn": file_changed("records.jsonl", lambda content: content[:-20]),
    "an unfinished cell of NUL": added("cells/0123456789abcdef.jsonl", b"\0" * 4096),
    "an unfinished cell of text": added("cells/0123456789abcdef.jsonl", b"junk\n"),
    "a line is no sample": unfinished,
    "a cell is cut": file_changed("cells/*.parquet", lambda content: content[:-40]),
    "a cell has a bit flipped": file_changed("cells/*.parquet", flipped),
    "a cell is empty": file_changed("cells/*.parquet", lambda content: b""),
    "a cell has another name": renamed,
    "a cell is removed": removed("cells/*.parquet"),
}
EVERYDAY: Sequence[str] = (
    "outputs are rotated",
    "facts are rotated",
    "one output is None",
    "failed beside scores",
    "a metric is renamed",
    "likelihoods are 0",
    "likelihoods are rolled by one",
    "floors times 0.1",
    "another protocol",
    "costs are below 0",
    "a job is torn",
    "jobs are removed",
    "records are removed",
    "an unfinished cell of NUL",
)
