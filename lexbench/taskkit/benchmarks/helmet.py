"""HELMET's parts by substring that need no judge: JSON keys and values, and questions over retrieved passages."""

import hashlib
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lexbench.core.record import Refused
from lexbench.taskkit.benchmarks.base import Asked, Benchmark, Example
from lexbench.taskkit.benchmarks.copy import Files, literals, rows, value
from lexbench.taskkit.matching import normalised

SHOTS = 2
POPULAR = 3.0
"""Of PopQA only questions on subjects below this logarithm of page views."""
RAG = {
    "nq": ("kilt/nq-dev-multikilt_1000_k{k}_dep*.jsonl", "kilt/nq-train-multikilt_1000_k3_dep*.jsonl"),
    "triviaqa": (
        "kilt/triviaqa-dev-multikilt_1000_k{k}_dep*.jsonl",
        "kilt/triviaqa-train-multikilt_1000_k3_dep*.jsonl",
    ),
    "hotpotqa": (
        "kilt/hotpotqa-dev-multikilt_1000_k{k}_dep*.jsonl",
        "kilt/hotpotqa-train-multikilt_1000_k3_dep*.jsonl",
    ),
    "popqa": ("kilt/popqa_test_1000_k{k}_dep*.jsonl", "kilt/popqa_test_1000_k3_dep*.jsonl"),
}
"""Patterns of passages and of worked examples."""


def score(facts: Mapping[str, Any], text: str, scorer: str) -> float:
    """1 if a right answer occurs in the normalised answer, or in the part of it behind the cue, up to the line's end.

    official: as a substring, so "art" is in "party". repaired: as whole words of the part behind the cue.
    """
    cue = str(facts["cue"])
    parsed = _parsed(cue + text, cue)
    if scorer == "repaired":
        return float(any(f" {normalised(each)} " in f" {normalised(parsed)} " for each in facts["answers"]))
    return float(any(normalised(each) in normalised(said) for each in facts["answers"] for said in (text, parsed)))


def _parsed(text: str, cue: str) -> str:
    found = re.search(rf"{re.escape(cue)}(.*)(\n|$)", text, re.IGNORECASE)
    return (found[1] if found else text.strip().split("\n")[0]).strip()


def _examples(asked: Asked) -> Iterator[Example]:
    assert asked.prompts is not None, "the task has checked it"
    stated = literals(asked.prompts)
    function = "load_json_kv" if asked.part == "json_kv" else "load_qa"
    try:
        # load_qa states a wording for another set first; its usual one is the last
        wording, cue = stated[f"{function}.user_template"], stated[f"{function}.system_template"]
        shot = stated[f"{function}.demo_template"]
        passage = "" if asked.part == "json_kv" else stated["load_qa.passage_template"]
    except KeyError as missing:
        raise ValueError(f"prompts {asked.prompts} lack {missing}: give the official data.py") from None
    make = _json_kv if asked.part == "json_kv" else _rag
    yield from make(asked, wording, cue, shot, passage)


def _json_kv(asked: Asked, wording: str, cue: str, shot: str, passage: str) -> Iterator[Example]:
    for file in asked.files.places:
        for number, row in enumerate(rows(file)):
            pairs = [shot.format(key=key, value=f" {said}") for key, said in value(row, "demos", list, file)[:SHOTS]]
            context, question = value(row, "context", str, file), value(row, "question", str, file)
            demos = "".join(f"{pair}\n\n" for pair in pairs)
            prompt = wording.format(context=context, question=question, demos=demos)
            yield _example(asked, file, number, prompt, cue, row["answer"], 100, context)


def _rag(asked: Asked, wording: str, cue: str, shot: str, passage: str) -> Iterator[Example]:
    *files, shots = asked.files.places
    known = [row for row in rows(shots) if _asked(asked.part, row)]
    for file in files:
        for number, row in enumerate(rows(file)):
            if not _asked(asked.part, row):
                continue
            key = "id" if "id" in row else "question"
            others = [each for each in known if each[key] != row[key]] if asked.part == "popqa" else known
            seed = int(hashlib.sha256(str(row[key]).encode()).hexdigest(), 16) % 2**31
            drawn = {
                str(others[i][key]): others[i] for i in reversed(np.random.default_rng(seed).permutation(len(others)))
            }
            chosen = list(reversed(drawn.values()))[:SHOTS]
            demos = [
                shot.format(**{**each, "documents": _passages(passage, each), "answer": each["answers"][0]})
                for each in chosen
            ]
            context, question = _passages(passage, row), value(row, "question", str, file)
            prompt = wording.format(demos="".join(f"{each}\n\n" for each in demos), context=context, question=question)
            yield _example(asked, file, number, prompt, cue, row["answers"], 20, context)


def _asked(part: str, row: Mapping[str, Any]) -> bool:
    return part != "popqa" or math.log10(row["s_pop"]) < POPULAR


def _passages(passage: str, row: Mapping[str, Any]) -> str:
    return "\n\n".join(passage.format(**each) for each in row["ctxs"])


def _example(
    asked: Asked, file: Path, number: int, prompt: str, cue: str, answer: Any, room: int, context: str
) -> Example:
    answers = [answer] if isinstance(answer, str) else list(answer)
    return Example(
        id=f"{file.stem}:{number}",
        messages=[("user", prompt)],
        cue=f"\n{cue}",
        facts={"answers": answers, "cue": cue},
        room=room,
        answer=answers[0],
        cluster=hashlib.sha256(context.encode()).hexdigest()[:16],
    )


def _files(part: str, axis: str | None) -> Sequence[str]:
    if part == "json_kv":
        return (f"json_kv/test_k{axis or '*'}_dep*.jsonl", f"data/json_kv/test_k{axis or '*'}_dep*.jsonl")
    main = RAG[part][0].format(k=axis or "1000")
    return (main, f"data/{main}")


def with_shots(files: Files, data: str, part: str) -> Files:
    """The questions with the file of worked examples of the same copy."""
    if part == "json_kv":
        return files
    folder = Path(data).expanduser()
    found = sorted(folder.glob(RAG[part][1])) or sorted(folder.glob(f"data/{RAG[part][1]}"))
    if not found:
        raise Refused(f"data of HELMET lack {RAG[part][1]}: give task.data=DIR, your copy")
    return Files.of([*files.places, found[0]])


HELMET = Benchmark(
    title="HELMET (Yen et al., arXiv 2410.02694)",
    parts=("json_kv", *RAG),
    files=_files,
    examples=_examples,
    metric="substring_match",
    score=score,
    chat=False,
    prompts="data.py of princeton-nlp/HELMET",
    axes="pairs of json_kv (105, 220, ...), passages of the others (50, 105, ...)",
    more=with_shots,
)
