"""MRCR: the n-th of several alike replies of a long conversation, after a random prefix (openai/mrcr, and eval_hub)."""

import csv
import difflib
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lexbench.core.errors import ConfigError
from lexbench.parts.benchmarks.base import Benchmark, BenchmarkExample, BenchmarkRequest, cluster_of
from lexbench.parts.benchmarks.copy import checked_field, read_data_rows

MAX_NEW_TOKENS = 2048
"""New tokens; the benchmark states none, and answers are texts of up to 1,500 tokens or so."""
N_HASH_CHARACTERS = 12
"""Characters of the hash with which a target of DeepMind's version begins."""
RANDOM_REPLY_SCORE_OF_PART = {"2needle": 0.51, "4needle": 0.27, "8needle": 0.15}
"""Score of a random reply of the right kind (README of eval_hub/mrcr_v2)."""


def score(facts: Mapping[str, Any], text: str, scorer: str) -> float:
    """SequenceMatcher's ratio in [0, 1] of reply and answer behind the random prefix; 0 for a reply that lacks it.

    official: autojunk, so frequent characters of a long text start no match: 30 copies of a sentence with one word
    changed have 0.03. repaired: without it, and quotes, code fences and blanks may stand in front of the prefix.
    """
    prefix, answer = facts["random_string_to_prepend"], facts["answer"]
    if scorer == "repaired":
        text = re.sub(r"^(?:```\w*\n|[\s\"'`*“”])+", "", text)
    # The official gate: a quotation mark or a thought before the prefix makes the whole reply worth 0.
    if not text.startswith(prefix):
        return 0.0
    # The ratio depends on the order: OpenAI compares reply with answer, DeepMind target with reply.
    return _similarity_ratio(text.removeprefix(prefix), answer.removeprefix(prefix), scorer == "official")


def score_v2(facts: Mapping[str, Any], text: str, scorer: str) -> float:
    """Ratio as in `score`, of the texts behind the target's first 12 characters (its hash), last found in the reply."""
    target, text = facts["answer"].strip(), text.strip()
    # rfind as in the code, although its docstring speaks of the first 12 characters: a thought before it does no harm.
    place = text.rfind(target[:N_HASH_CHARACTERS])
    if place < 0:
        return 0.0
    return _similarity_ratio(
        target[N_HASH_CHARACTERS:].strip(), text[place + N_HASH_CHARACTERS :].strip(), scorer == "official"
    )


def _similarity_ratio(a: str, b: str, autojunk: bool) -> float:
    return difflib.SequenceMatcher(None, a, b, autojunk=autojunk).ratio()


def _examples(asked: BenchmarkRequest) -> Iterator[BenchmarkExample]:
    for file in asked.files.places:
        for number, row in enumerate(read_data_rows(file)):
            answer, prefix = (
                checked_field(row, "answer", str, file),
                checked_field(row, "random_string_to_prepend", str, file),
            )
            try:
                # A string of JSON: sent as one user message it would be another task.
                turns = json.loads(checked_field(row, "prompt", str, file))
                talk = [tuple(checked_field(turn, name, str, file) for name in ("role", "content")) for turn in turns]
            except (ValueError, KeyError, TypeError):
                raise ConfigError(
                    f"{file}: prompt must be JSON of a list of messages: give the official file"
                ) from None
            facts = {"answer": answer, "random_string_to_prepend": prefix}
            facts |= {name: row[name] for name in ("n_needles", "n_chars", "date_added") if name in row}
            own = f"characters {_length_class(int(row['n_chars']))}" if "n_chars" in row else None
            yield BenchmarkExample(
                id=f"{file.stem}:{number}",
                messages=talk,
                facts=facts,
                room=MAX_NEW_TOKENS,
                answer=answer,
                parts=(own,) if own else (),
                cluster=cluster_of(repr(talk[:-1])),
                chance=RANDOM_REPLY_SCORE_OF_PART[asked.part],
            )


def _length_class(n: int) -> str:
    """`16k-32k`, thousands of 1024: the class of a number between two powers of two."""
    power = max(10, n.bit_length() - 1)
    return f"{1 << power - 10}k-{2 << power - 10}k"


def _file_patterns(part: str, axis: str | None) -> Sequence[str]:
    return (f"{part}/{part}_*.parquet", f"{part}.parquet", f"{part}_*.parquet", f"{part}*.jsonl")


def _examples_v2(asked: BenchmarkRequest) -> Iterator[BenchmarkExample]:
    # A prompt of millions of characters is one field; the csv module stops at 131,072.
    csv.field_size_limit(sys.maxsize)
    for file in asked.files.places:
        with file.open(encoding="utf-8", newline="") as opened:
            for number, row in enumerate(csv.DictReader(opened)):
                prompt, answer = checked_field(row, "queries", str, file), checked_field(row, "answer", str, file)
                yield BenchmarkExample(
                    id=f"{file.stem}:{number}",
                    messages=[("user", prompt)],
                    facts={"answer": answer},
                    room=MAX_NEW_TOKENS,
                    answer=answer,
                    parts=(f"characters {_length_class(len(prompt))}",),
                    # Several questions have one conversation before them: the last "Prepend" begins the question.
                    cluster=cluster_of(prompt.rpartition("Prepend")[0] or prompt),
                    chance=RANDOM_REPLY_SCORE_OF_PART[asked.part],
                )


def _file_patterns_v2(part: str, axis: str | None) -> Sequence[str]:
    return (f"mrcr_v2*_{part}_{axis}_*.csv",) if axis else (f"mrcr_v2*_{part}_*.csv",)


MRCR = Benchmark(
    title="MRCR of OpenAI (dataset openai/mrcr)",
    parts=tuple(RANDOM_REPLY_SCORE_OF_PART),
    files=_file_patterns,
    examples=_examples,
    metric="match",
    score=score,
)
MRCR_V2 = Benchmark(
    title="MRCR v2 of DeepMind (google-deepmind/eval_hub; not OpenAI's with 8 needles)",
    parts=tuple(RANDOM_REPLY_SCORE_OF_PART),
    files=_file_patterns_v2,
    examples=_examples_v2,
    metric="match",
    score=score_v2,
    axes="in_(4096,8192), upto_128K, ...",
)
