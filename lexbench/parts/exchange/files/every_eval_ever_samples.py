"""Reads the samples of Every Eval Ever, UUID_samples.jsonl: a line a sample and result; the files are not trusted.

A line names its evaluation and, where it likes, which result of the aggregate it belongs to. That name may hold the id
of a run, so it tells results apart only within a file that has a sample several times.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from lexbench.core.errors import ConfigError
from lexbench.parts.exchange.files.sample_line import Line, amount_of, hashes_of, text_of
from lexbench.parts.exchange.lm_eval.results.files import mapping_or_empty


def is_every_eval_ever(row: Mapping[str, Any]) -> bool:
    """Whether a line of JSONL has the fields by which the schema's samples are told from other JSONL."""
    return all(name in row for name in ("evaluation_name", "sample_id", "interaction_type", "evaluation"))


def lines_of_every_eval_ever(rows: Iterable[tuple[str, Mapping[str, Any]]]) -> list[Line]:
    """The samples of a file, from each row with its place.

    A sample that ended by an error scores 0. Epoch and cluster are those of the metadata, where these have them.
    ConfigError for a row of another form, and for a score outside [0, 1].
    """
    made = [(str(row.get("evaluation_result_id") or ""), _line(row, place)) for place, row in rows]
    if len({(line.task, line.id) for _, line in made}) == len(made):
        return [line for _, line in made]
    # The end of `CELL/accuracy` and of `TASK::SUBTASK`: what stands before is a run's own.
    return [replace(line, task=f"{line.task} {re.split('/|::', result)[-1]}") for result, line in made]


def _line(row: Mapping[str, Any], place: str) -> Line:
    if not is_every_eval_ever(row):
        raise ConfigError(f"{place} is no sample of Every Eval Ever, as the first line is: give each form its own file")
    asked, about = mapping_or_empty(row.get("input")), mapping_or_empty(row.get("metadata"))
    score = mapping_or_empty(row["evaluation"]).get("score")
    name = text_of(row["sample_id"])
    formatted = hashes_of({"prompt": asked.get("formatted")})
    return Line(
        task=str(row["evaluation_name"]),
        metric="score",
        id=f"{name} epoch {about['epoch']}" if "epoch" in about else name,
        cluster=text_of(about.get("cluster", name)),
        amount=None if row.get("error") else amount_of(score, "score", f"{place}, evaluation.score"),
        question=hashes_of(
            {"input": asked.get("raw"), "target": asked.get("reference"), "choices": asked.get("choices")}
        ),
        prompt=dict(formatted).get("prompt"),
    )
