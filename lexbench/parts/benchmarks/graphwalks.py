"""GraphWalks: nodes at a distance, or parents, in a graph given as a list of edges (openai/graphwalks)."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lexbench.core.errors import ConfigError
from lexbench.parts.benchmarks.base import Benchmark, BenchmarkExample, BenchmarkRequest
from lexbench.parts.benchmarks.copy import checked_field, read_data_rows

MAX_NEW_TOKENS = 8192
"""New tokens; the benchmark states none, and an answer may have thousands of nodes."""
FILE_PATTERN_OF_AXIS = {"128k": "graphwalks_128k_and_shorter*.parquet", "1m": "graphwalks_256k_to_1mil*.parquet"}


def score(facts: Mapping[str, Any], text: str, scorer: str) -> float:
    """F1 of the written and the right set of nodes; 1 if both are empty, 0 without a list.

    official: the list on the very last line, after `Final Answer:` (the card of 2026). first_card: the card of April
    2025, whose first node is never counted, and where a list without any right node has 1. repaired: the last line
    that names a final answer, in any case, with bold type, and with nodes in quotes.
    """
    right, written = set(facts["answer_nodes"]), _listed_nodes(text, scorer)
    if written is None:
        return 0.0
    same = len(right & written)
    # Without a common node the first card gives 1, whatever the sets.
    if not same:
        return 1.0 if scorer == "first_card" else float(not right and not written)
    precision, recall = same / len(written), same / len(right)
    return 2 * precision * recall / (precision + recall)


def _listed_nodes(text: str, scorer: str) -> set[str] | None:
    if scorer == "repaired":
        found = re.findall(r"final answer\W*?:\W*?\[([^\]\n]*)\]", text, re.IGNORECASE)
        listed = found[-1].split(",") if found else None
        return None if listed is None else {each.strip(" \t'\"`*") for each in listed} - {""}
    # The very last line: a line feed behind the answer makes it an empty one, which has no list.
    line = text.split("\n")[-1]
    # The first card matches the words, too, and its strip takes only brackets: the first node keeps "Final Answer: [".
    pattern = r"Final Answer: ?\[.*\]" if scorer == "first_card" else r"\[.*\]"
    list_ = re.search(pattern, line) if "Final Answer:" in line else None
    return {each.strip() for each in list_[0].strip("[]").split(",")} - {""} if list_ else None


def _examples(asked: BenchmarkRequest) -> Iterator[BenchmarkExample]:
    for file in asked.files.places:
        for number, row in enumerate(read_data_rows(file)):
            kind, prompt = checked_field(row, "problem_type", str, file), checked_field(row, "prompt", str, file)
            if asked.part != "all" and kind != asked.part:
                continue
            # The data call it answer_nodes, their card calls it answer.
            nodes = row.get("answer_nodes", row.get("answer"))
            if not isinstance(nodes, list):
                raise ConfigError(f"{file} has a row without answer_nodes: give the official file")
            dated = {"date_added": row["date_added"]} if "date_added" in row else {}
            yield BenchmarkExample(
                id=f"{file.stem}:{number}",
                messages=[("user", prompt)],
                facts={"answer_nodes": nodes, "problem_type": kind, **dated},
                room=MAX_NEW_TOKENS,
                answer=f"Final Answer: [{', '.join(nodes)}]",
                parts=(kind,),
            )


def _file_patterns(part: str, axis: str | None) -> Sequence[str]:
    if axis is not None and axis not in FILE_PATTERN_OF_AXIS:
        raise ConfigError(f"graphwalks' axis must be one of {', '.join(FILE_PATTERN_OF_AXIS)}, got {axis}")
    return (FILE_PATTERN_OF_AXIS[axis],) if axis else ("graphwalks_*.parquet", "*.parquet", "*.jsonl")


GRAPHWALKS = Benchmark(
    title="GraphWalks (dataset openai/graphwalks)",
    parts=("all", "bfs", "parents"),
    files=_file_patterns,
    examples=_examples,
    metric="f1",
    score=score,
    scorers=("official", "first_card", "repaired"),
    axes="128k, 1m",
)
