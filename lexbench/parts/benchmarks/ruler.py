"""RULER's thirteen configurations, as its code made them or would make them (Hsieh et al., arXiv 2404.06654)."""

import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from lexbench.parts.benchmarks import ruler_made
from lexbench.parts.benchmarks.base import Benchmark, BenchmarkExample, BenchmarkRequest, cluster_of
from lexbench.parts.benchmarks.copy import BenchmarkFiles, checked_field, read_data_rows
from lexbench.taskkit import matching

MAX_NEW_TOKENS_OF_PART = {
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


def _examples(asked: BenchmarkRequest) -> Iterator[BenchmarkExample]:
    first, *_ = asked.files.places
    if first.name == Path(ruler_made.CHECKOUT_MARKER_FILE).name:
        yield from _generated_examples(asked, first.parent)
        return
    for file in asked.files.places:
        for number, row in enumerate(read_data_rows(file)):
            outputs = [str(each) for each in checked_field(row, "outputs", list, file)]
            # its own index is the needle's offset in NIAH, and may occur twice
            text, cue = checked_field(row, "input", str, file), str(row.get("answer_prefix", ""))
            yield _example(asked.part, f"{file.parent.name}:{number}", text, cue, outputs, row.get("length"))


def _generated_examples(asked: BenchmarkRequest, folder: Path) -> Iterator[BenchmarkExample]:
    @functools.lru_cache(maxsize=1)
    def count(text: str) -> int:
        return len(asked.tokenizer.encode(text).ids)

    length, framing = (asked.tokens_of_axis(), 0) if asked.axis else (asked.length, asked.framing)
    wanted = ruler_made.RulerArguments(folder, asked.part, length, framing, asked.seed, count)
    for number, row in enumerate(itertools.islice(ruler_made.generate_rows(wanted), asked.n)):
        made = _example(asked.part, f"{asked.part}:{number}", row.input, row.answer_prefix, row.outputs, row.length)
        yield replace(made, cluster=None if row.document is None else cluster_of(row.document))


def _example(part: str, name: str, text: str, cue: str, outputs: Sequence[str], length: int | None) -> BenchmarkExample:
    any_ = part.startswith("qa")
    return BenchmarkExample(
        id=name,
        messages=[("user", text)],
        cue=cue,
        facts={"outputs": list(outputs), "any": any_, "stated_length": length},
        room=MAX_NEW_TOKENS_OF_PART[part],
        answer=outputs[0] if any_ else ", ".join(outputs),
    )


def _file_patterns(part: str, axis: str | None) -> Sequence[str]:
    length = f"{axis}/" if axis else ""
    written = f"**/{length}{part}/*.jsonl" if axis else f"{part}/*.jsonl"
    return (f"{length}data/{part}/*.jsonl", written, ruler_made.CHECKOUT_MARKER_FILE)


def add_source_files(files: BenchmarkFiles, data: str, part: str) -> BenchmarkFiles:
    """Files of a part's texts where `files` is a checkout without written prompts; else `files` themselves."""
    first = files.places[0]
    return ruler_made.source_files(first, part) if first.name == Path(ruler_made.CHECKOUT_MARKER_FILE).name else files


RULER = Benchmark(
    title="RULER (Hsieh et al., arXiv 2404.06654)",
    parts=tuple(MAX_NEW_TOKENS_OF_PART),
    files=_file_patterns,
    examples=_examples,
    metric="recall",
    score=score,
    scorers=("official",),
    chat=False,
    axes="RULER's own length, without BOS: 4096, 8192, ...",
    add_companion_files=add_source_files,
)
