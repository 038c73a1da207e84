"""LongBench v2: questions with four options over texts of up to two million words (Bai et al., arXiv 2412.15204)."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from lexbench.core.errors import ConfigError
from lexbench.core.files import read_utf8
from lexbench.parts.benchmarks.base import Benchmark, BenchmarkExample, BenchmarkRequest, cluster_of
from lexbench.parts.benchmarks.copy import checked_field, read_data_rows

MAX_NEW_TOKENS = 128
FIELD_OF_PLACEHOLDER = {"DOC": "context", "Q": "question", **{f"C_{letter}": f"choice_{letter}" for letter in "ABCD"}}
"""Placeholders of the official prompt, each between two $."""
PLACEHOLDER_PATTERN = re.compile(r"(\$(?:DOC|Q|C_[A-D])\$)")


def score(facts: Mapping[str, Any], text: str, scorer: str) -> float:
    """Score 1 for the right letter, else 0; an answer without a letter is wrong.

    official: the first `The correct answer is (B)`, else without brackets, where the first letter of a word counts:
    "The correct answer is Due to" is D. repaired: the last such phrase in any case, and only a letter that stands
    alone; else an answer that is one letter.
    """
    text = text.replace("*", "")
    if scorer == "official":
        # [A-D] without a word's end: the D of "Due to" is taken for a letter.
        found = re.search(r"The correct answer is \(([A-D])\)", text) or re.search(
            r"The correct answer is ([A-D])", text
        )
        return float(found is not None and found[1] == facts["answer"])
    said = re.findall(r"correct answer is:?\s*\(?([A-D])\b", text, re.IGNORECASE)
    said = said or re.findall(r"^\W*([A-D])\W*$", text)
    return float(bool(said) and said[-1].upper() == facts["answer"])


def _examples(asked: BenchmarkRequest) -> Iterator[BenchmarkExample]:
    assert asked.prompts is not None, "the task has checked it"
    wording = read_utf8(asked.prompts, "give the official prompts/0shot.txt")
    if "$DOC$" not in wording or "$Q$" not in wording:
        raise ConfigError(f"prompts {asked.prompts} must have $DOC$ and $Q$: give the official prompts/0shot.txt")
    for file in asked.files.places:
        for row in read_data_rows(file):
            if asked.axis not in (None, row.get("length")) or asked.part not in ("all", row.get("domain")):
                continue
            texts = {
                f"${name}$": str(checked_field(row, field, str, file)).strip()
                for name, field in FIELD_OF_PLACEHOLDER.items()
            }
            answer, context = checked_field(row, "answer", str, file), checked_field(row, "context", str, file)
            yield BenchmarkExample(
                id=str(checked_field(row, "_id", (str, int), file)),
                # one pass: the official code replaces one placeholder after another, also inside the document
                messages=[("user", "".join(texts.get(part, part) for part in PLACEHOLDER_PATTERN.split(wording)))],
                facts={"answer": answer, **{name: row.get(name) for name in ("domain", "difficulty", "length")}},
                room=MAX_NEW_TOKENS,
                answer=f"The correct answer is ({answer})",
                parts=tuple(str(row[name]) for name in ("difficulty", "length") if name in row),
                cluster=cluster_of(context),
                chance=0.25,
            )


LONGBENCH_V2 = Benchmark(
    title="LongBench v2 (Bai et al., arXiv 2412.15204)",
    parts=(
        "all",
        "Single-Document QA",
        "Multi-Document QA",
        "Long In-context Learning",
        "Long-dialogue History Understanding",
        "Code Repository Understanding",
        "Long Structured Data Understanding",
    ),
    files=lambda part, axis: ("data.json", "*.json", "*.jsonl", "*.parquet"),
    examples=_examples,
    metric="accuracy",
    score=score,
    prompts="prompts/0shot.txt of THUDM/LongBench",
    cuts_middle=True,
    axes="short, medium, long",
)
