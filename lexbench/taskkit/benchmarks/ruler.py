"""RULER's thirteen configurations as its own code made them in the user's checkout (Hsieh et al., arXiv 2404.06654)."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lexbench.taskkit import matching
from lexbench.taskkit.benchmarks.base import Asked, Benchmark, Example
from lexbench.taskkit.benchmarks.copy import rows, value

ROOMS = {
    **dict.fromkeys(
        (
            *("niah_single_1", "niah_single_2", "niah_single_3", "niah_multikey_1", "niah_multikey_2"),
            *("niah_multikey_3", "niah_multivalue", "niah_multiquery"),
        ),
        128,
    ),
    "vt": 30,
    "cwe": 120,
    "fwe": 50,
    "qa_1": 32,
    "qa_2": 32,
}


def score(facts: Mapping[str, Any], text: str, scorer: str) -> float:
    """Share of the outputs that occur in the answer, in any case; for qa whether any of them does."""
    match = matching.contains_any if facts["any"] else matching.contains_all
    return match(text, facts["outputs"])


def _examples(asked: Asked) -> Iterator[Example]:
    for file in asked.files.places:
        for number, row in enumerate(rows(file)):
            outputs = value(row, "outputs", list, file)
            outputs = [str(each) for each in outputs]
            yield Example(
                id=f"{file.parent.name}:{number}",  # its own index is the needle's offset in NIAH, and may occur twice
                messages=[("user", value(row, "input", str, file))],
                cue=str(row.get("answer_prefix", "")),
                facts={"outputs": outputs, "any": asked.part.startswith("qa"), "stated_length": row.get("length")},
                room=ROOMS[asked.part],
                answer=outputs[0] if asked.part.startswith("qa") else ", ".join(outputs),
            )


def _files(part: str, axis: str | None) -> Sequence[str]:
    length = f"{axis}/" if axis else ""
    return (f"{length}data/{part}/*.jsonl", f"**/{length}{part}/*.jsonl" if axis else f"{part}/*.jsonl")


RULER = Benchmark(
    title="RULER (Hsieh et al., arXiv 2404.06654), made by its own code",
    parts=tuple(ROOMS),
    files=_files,
    examples=_examples,
    metric="recall",
    score=score,
    scorers=("official",),
    chat=False,
    axes="the length for which the data were made: 4096, 8192, ...",
)
