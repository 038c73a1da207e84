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
from lexbench.parts.benchmarks.base import Asked, Benchmark, Example, Message
from lexbench.parts.benchmarks.copy import Files, value

ROOM = 192
SEED, DEPTHS = 42, 26
FREE, SHORT = 0.2, 500
"""Share of the haystack that parts needle, distractor and ends; tokens below which a distractor has a fixed depth."""
BOOKS = "haystack/rand_shuffle/rand_book_*.txt"
PARTS = {
    "standard": "needle_set.json",
    "hard": "needle_set_hard.json",
    "direct": "needle_set_ONLYDirect.json",
    "cot": "needle_set_w_CoT.json",
    "distractor": "needle_set_w_Distractor.json",
}


def score(facts: Mapping[str, Any], text: str, scorer: str) -> float:
    """1 if the answer contains a right name.

    official: as a substring, in the same case, so a list of all people is right. repaired: as a word, and no other
    name of the character set beside it.
    """
    right = facts["gold_answers"]
    if scorer == "official":
        return float(any(name in text for name in right))
    named = {name for name in {*facts["character_set"], *right} if re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text)}
    return float(bool(named) and named <= set(right))


def _examples(asked: Asked) -> Iterator[Example]:
    needles, *books = asked.files.places
    if asked.axis is None:
        raise Refused("nolima needs the tokens of its haystack: give task.axis=1000")
    tokens = asked.tokens_of_axis()
    for entry in _entries(needles):
        for kind, question in entry["questions"].items():
            for test, content in entry["tests"].items():
                distractor = _distractor(entry, kind, content["input_args"])
                for number, book in enumerate(books):
                    # The official seed of a test; one name is drawn for each depth, so the order of the loops is part
                    # of it.
                    rng = np.random.RandomState(SEED + int(entry["id"][:4]) + number)
                    for depth in np.linspace(0, 1, DEPTHS).tolist():
                        name = str(rng.choice(entry["character_set"]))
                        other = None if distractor is None else (distractor, _elsewhere(rng, tokens, depth))
                        # Made when asked for: all texts of a length together would fill the memory.
                        arguments = asked.tokenizer, book, entry, question, content["input_args"]
                        yield Example(
                            id=f"{entry['id']}_{test}_{kind}_{book.stem}_{depth:.2f}",
                            messages=functools.partial(_messages, *arguments, name, tokens, depth, other),
                            facts={
                                "gold_answers": content.get("gold_answers") or [name],
                                "character_set": entry["character_set"],
                                "depth": depth,
                                "haystack": tokens,
                                **({} if other is None else {"distractor_depth": other[1]}),
                            },
                            room=ROOM,
                            answer=name,
                            parts=(kind,),
                            cluster=f"{entry['id']}_{test}",
                            chance=1 / len(entry["character_set"]),
                        )


def _messages(
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
    needle, question = (_filled(text, arguments).replace("{CHAR}", name) for text in (entry["needle"], question))
    text = _placed(tokenizer, book, needle, tokens, depth)
    if other is not None:
        text = _distracted(text, _placed(tokenizer, book, other[0], tokens, other[1]), other[0], tokens)
    prompt = entry["task_template"].replace("{haystack}", text)
    return [("system", "You are a helpful assistant"), ("user", prompt.replace("{question}", question))]


def _entries(file: Path) -> Sequence[Mapping[str, Any]]:
    try:
        listed = json.loads(read_utf8(file, "clone the benchmark again"))
    except (json.JSONDecodeError, RecursionError) as error:
        raise ConfigError(f"{file} must be JSON ({type(error).__name__}): clone the benchmark again") from None
    for entry in listed:
        for name, kind in (
            *(("id", str), ("needle", str), ("task_template", str)),
            *(("questions", dict), ("tests", dict), ("character_set", list)),
        ):
            value(entry, name, kind, file)
    return listed  # type: ignore[no-any-return]


def _filled(text: str, arguments: Sequence[str]) -> str:
    """{1}, {2}, ... replaced, all of them; the official code keeps only the last one in a question."""
    for number, argument in enumerate(arguments, start=1):
        text = text.replace(f"{{{number}}}", argument)
    return text


def _distractor(entry: Mapping[str, Any], kind: str, arguments: Sequence[str]) -> str | None:
    """The line that shares the question's words; as officially only one that holds an argument."""
    stated = (entry.get("distractors") or {}).get(kind, "")
    filled = _filled(stated, arguments)
    return filled if filled != stated else None


def _elsewhere(rng: np.random.RandomState, tokens: int, depth: float) -> float:
    """The official depth of a distractor: at least `FREE` from both ends and from the needle."""
    left, right = max(0, depth - 2 * FREE), max(0, 1 - (depth + 2 * FREE))
    # Drawn even where it is not used: the official code does, and the next names depend on it.
    drawn = float(rng.uniform(0, left + right))
    if tokens < SHORT:
        return 0.7 if depth < 0.6 else 0.6 if depth > 0.75 else 0.5
    return depth + FREE + (drawn - left) if drawn > left else drawn + FREE


def _distracted(text: str, alone: str, distractor: str, tokens: int) -> str:
    """The official place: behind the characters that stand before the distractor where it is alone in the book.

    Refused where these stand there twice or, as the needle cuts them, not at all: the official code stops there.
    """
    size, shift = (50, 49) if tokens >= SHORT else (25, 23)
    place = alone.index(distractor)
    found = alone[max(place - size, 0) : place - 1]
    if text.count(found) != 1:
        raise Refused("nolima's distractor has no single place in this book, as officially: take another task.axis")
    cut = text.index(found) + shift
    return f"{text[:cut]} {distractor}\n{text[cut:]}"


@functools.lru_cache(maxsize=8)
def _encoded(tokenizer: Tokenizer, book: Path) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Tokens of a book, and the places of those with a line feed, after a 0."""
    encoded = tokenizer.encode(read_utf8(book, "download the books again"))
    ends = [*encoded.starts[1:].tolist(), len(encoded.text)]
    breaks = [i for i, (a, b) in enumerate(zip(encoded.starts, ends, strict=True)) if "\n" in encoded.text[a:b]]
    return encoded.ids, np.asarray([0, *breaks])


def _placed(tokenizer: Tokenizer, book: Path, needle: str, tokens: int, depth: float) -> str:
    """The official placement: behind the first line feed past the depth, in `tokens` tokens from the book's start."""
    ids, breaks = _encoded(tokenizer, book)
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


def _files(part: str, axis: str | None) -> Sequence[str]:
    return (f"needlesets/{PARTS[part]}", PARTS[part])


def with_books(files: Files, data: str, part: str) -> Files:
    """The needle set with the books of the same copy."""
    books = sorted(Path(data).expanduser().glob(BOOKS)) or sorted(Path(data).expanduser().glob("rand_book_*.txt"))
    if not books:
        raise Refused(f"data of NoLiMa lack {BOOKS}: give task.data=DIR, your copy")
    return Files.of([*files.places, *books])


NOLIMA = Benchmark(
    title="NoLiMa (Modarressi et al., arXiv 2502.05167)",
    parts=tuple(PARTS),
    files=_files,
    examples=_examples,
    metric="accuracy",
    score=score,
    axes="tokens of the haystack: 250, 500, 1000, ..., 32000",
    more=with_books,
)
