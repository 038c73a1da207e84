"""NoLiMa: a person by an association without shared words, in books (Modarressi et al., arXiv 2502.05167)."""

import functools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lexbench.core.errors import ConfigError
from lexbench.core.files import read_utf8
from lexbench.core.record import Refused
from lexbench.core.task import Tokenizer
from lexbench.parts.benchmarks.base import Benchmark, BenchmarkExample, BenchmarkRequest, Message
from lexbench.parts.benchmarks.copy import BenchmarkFiles, checked_field

MAX_NEW_TOKENS = 192
BASE_SEED, N_NEEDLE_DEPTHS = 42, 26
MIN_NEEDLE_DISTANCE_SHARE, MAX_FIXED_DEPTH_TOKENS = 0.2, 500
"""Share of the haystack that parts needle, distractor and ends; tokens below which a distractor has a fixed depth."""
BOOK_FILE_PATTERN = "haystack/rand_shuffle/rand_book_*.txt"
NEEDLE_FILE_OF_PART = {
    "standard": "needle_set.json",
    "hard": "needle_set_hard.json",
    "direct": "needle_set_ONLYDirect.json",
    "cot": "needle_set_w_CoT.json",
    "distractor": "needle_set_w_Distractor.json",
}


def score(facts: Mapping[str, Any], text: str, scorer: str) -> float:
    """Score 1 if the answer contains a right name, else 0.

    official: as a substring, in the same case, so a list of all people is right. repaired: as a word, and no other
    name of the character set beside it.
    """
    right = facts["gold_answers"]
    if scorer == "official":
        return float(any(name in text for name in right))
    named = {name for name in {*facts["character_set"], *right} if re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text)}
    return float(bool(named) and named <= set(right))


def _examples(asked: BenchmarkRequest) -> Iterator[BenchmarkExample]:
    needles, *books = asked.files.places
    if asked.axis is None:
        raise Refused("nolima needs the tokens of its haystack: give task.axis=1000")
    tokens = asked.tokens_of_axis()
    for entry in _read_entries(needles):
        for kind, question in entry["questions"].items():
            for test, content in entry["tests"].items():
                distractor = _distractor_line(entry, kind, content["input_args"])
                for number, book in enumerate(books):
                    # The official seed of a test; one name is drawn for each depth, so the order of the loops is part
                    # of it.
                    rng = np.random.RandomState(BASE_SEED + int(entry["id"][:4]) + number)
                    for depth in np.linspace(0, 1, N_NEEDLE_DEPTHS).tolist():
                        name = str(rng.choice(entry["character_set"]))
                        other = None if distractor is None else (distractor, _distractor_depth(rng, tokens, depth))
                        # Made when asked for: all texts of a length together would fill the memory.
                        arguments = asked.tokenizer, book, entry, question, content["input_args"]
                        yield BenchmarkExample(
                            id=f"{entry['id']}_{test}_{kind}_{book.stem}_{depth:.2f}",
                            messages=functools.partial(_build_messages, *arguments, name, tokens, depth, other),
                            facts={
                                "gold_answers": content.get("gold_answers") or [name],
                                "character_set": entry["character_set"],
                                "depth": depth,
                                "haystack": tokens,
                                **({} if other is None else {"distractor_depth": other[1]}),
                            },
                            room=MAX_NEW_TOKENS,
                            answer=name,
                            parts=(kind,),
                            cluster=f"{entry['id']}_{test}",
                            chance=1 / len(entry["character_set"]),
                        )


def _build_messages(
    tokenizer: Tokenizer,
    book: Path,
    entry: Mapping[str, Any],
    question: str,
    arguments: Sequence[str],
    name: str,
    tokens: int,
    depth: float,
    other: tuple[str, float] | None,
) -> Sequence[Message]:
    """The system message that the official code always sends, and the template with haystack and question."""
    needle, question = (
        _fill_arguments(text, arguments).replace("{CHAR}", name) for text in (entry["needle"], question)
    )
    text = _insert_needle(tokenizer, book, needle, tokens, depth)
    if other is not None:
        text = _insert_distractor(text, _insert_needle(tokenizer, book, other[0], tokens, other[1]), other[0], tokens)
    prompt = entry["task_template"].replace("{haystack}", text)
    return [("system", "You are a helpful assistant"), ("user", prompt.replace("{question}", question))]


def _read_entries(file: Path) -> Sequence[Mapping[str, Any]]:
    try:
        listed = json.loads(read_utf8(file, "clone the benchmark again"))
    except (json.JSONDecodeError, RecursionError) as error:
        raise ConfigError(f"{file} must be JSON ({type(error).__name__}): clone the benchmark again") from None
    for entry in listed:
        for name, kind in (
            *(("id", str), ("needle", str), ("task_template", str)),
            *(("questions", dict), ("tests", dict), ("character_set", list)),
        ):
            checked_field(entry, name, kind, file)
    return listed  # type: ignore[no-any-return]


def _fill_arguments(text: str, arguments: Sequence[str]) -> str:
    """{1}, {2}, ... replaced, all of them; the official code keeps only the last one in a question."""
    for number, argument in enumerate(arguments, start=1):
        text = text.replace(f"{{{number}}}", argument)
    return text


def _distractor_line(entry: Mapping[str, Any], kind: str, arguments: Sequence[str]) -> str | None:
    """The line that shares the question's words; as officially only one that holds an argument."""
    stated = (entry.get("distractors") or {}).get(kind, "")
    filled = _fill_arguments(stated, arguments)
    return filled if filled != stated else None


def _distractor_depth(rng: np.random.RandomState, tokens: int, depth: float) -> float:
    """The official depth of a distractor: at least `MIN_NEEDLE_DISTANCE_SHARE` from both ends and from the needle."""
    left, right = max(0, depth - 2 * MIN_NEEDLE_DISTANCE_SHARE), max(0, 1 - (depth + 2 * MIN_NEEDLE_DISTANCE_SHARE))
    # Drawn even where it is not used: the official code does, and the next names depend on it.
    drawn = float(rng.uniform(0, left + right))
    if tokens < MAX_FIXED_DEPTH_TOKENS:
        return 0.7 if depth < 0.6 else 0.6 if depth > 0.75 else 0.5
    return depth + MIN_NEEDLE_DISTANCE_SHARE + (drawn - left) if drawn > left else drawn + MIN_NEEDLE_DISTANCE_SHARE


def _insert_distractor(text: str, alone: str, distractor: str, tokens: int) -> str:
    """The official place: behind the characters that stand before the distractor where it is alone in the book.

    Refused where these stand there twice or, as the needle cuts them, not at all: the official code stops there.
    """
    size, shift = (50, 49) if tokens >= MAX_FIXED_DEPTH_TOKENS else (25, 23)
    place = alone.index(distractor)
    found = alone[max(place - size, 0) : place - 1]
    if text.count(found) != 1:
        raise Refused("nolima's distractor has no single place in this book, as officially: take another task.axis")
    cut = text.index(found) + shift
    return f"{text[:cut]} {distractor}\n{text[cut:]}"


@functools.lru_cache(maxsize=8)
def _encode_book(tokenizer: Tokenizer, book: Path) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Tokens of a book, and the places of those with a line feed, after a 0."""
    encoded = tokenizer.encode(read_utf8(book, "download the books again"))
    ends = [*encoded.starts[1:].tolist(), len(encoded.text)]
    breaks = [i for i, (a, b) in enumerate(zip(encoded.starts, ends, strict=True)) if "\n" in encoded.text[a:b]]
    return encoded.ids, np.asarray([0, *breaks])


def _insert_needle(tokenizer: Tokenizer, book: Path, needle: str, tokens: int, depth: float) -> str:
    """The official placement: behind the first line feed past the depth, in `tokens` tokens from the book's start."""
    ids, breaks = _encode_book(tokenizer, book)
    # Officially the smallest line feed at or behind depth x (tokens + 1).
    delta = breaks / (tokens + 1) - depth
    place = int(breaks[np.argmin(np.where(delta < 0, np.inf, delta))])
    # So the haystack is always the book's beginning, moved by less than a paragraph.
    start = place - int(np.round(tokens * depth))
    if start < 0 or start + tokens > len(ids):
        raise Refused(f"nolima's {book.name} has {len(ids)} tokens, needs {start + tokens}: lower task.axis")
    before = tokenizer.decode(ids[start : place + 1])
    # A needle begins its own line: what stands between the last line feed and it is dropped.
    before = before[: max(before.rfind("\n"), 0)]
    return f"{before} {needle}\n{tokenizer.decode(ids[place + 1 : start + tokens])}"


def _file_patterns(part: str, axis: str | None) -> Sequence[str]:
    return (f"needlesets/{NEEDLE_FILE_OF_PART[part]}", NEEDLE_FILE_OF_PART[part])


def add_books(files: BenchmarkFiles, data: str, part: str) -> BenchmarkFiles:
    """The needle set with the books of the same copy."""
    books = sorted(Path(data).expanduser().glob(BOOK_FILE_PATTERN)) or sorted(
        Path(data).expanduser().glob("rand_book_*.txt")
    )
    if not books:
        raise Refused(f"data of NoLiMa lack {BOOK_FILE_PATTERN}: give task.data=DIR, your copy")
    return BenchmarkFiles.of([*files.places, *books])


NOLIMA = Benchmark(
    title="NoLiMa (Modarressi et al., arXiv 2502.05167)",
    parts=tuple(NEEDLE_FILE_OF_PART),
    files=_file_patterns,
    examples=_examples,
    metric="accuracy",
    score=score,
    axes="tokens of the haystack: 250, 500, 1000, ..., 32000",
    add_companion_files=add_books,
)
