"""Next line: a line of Python whose names stand far before it, the same lines at every length."""

import ast
import bisect
import difflib
import functools
import itertools
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np

from lexbench import Answer, AnyQuestion, Corpus, Encoded, Frame, Refused, Sample, Task, Tokenizer, Write, Written
from lexbench.taskkit.perplexity import EncodedCorpus, encoded_corpus
from lexbench.taskkit.scoring import score_written

INSTRUCTION = "Continue this Python file by its next line. Write that line and nothing else.\n\n"
STATEMENTS = (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Return, ast.Raise, ast.Assert, ast.Delete, ast.Expr)
SHORTEST = 12
"""Characters of a line, at the least."""
SPARE = 4
"""Tokens of the room beyond those of the line, at the least."""


@dataclass(frozen=True)
class Line:
    """A statement that has a line for itself."""

    begin: int
    """First character behind the last one before it that is no white space."""
    end: int
    text: str
    last: Mapping[str, int]
    """Each of its names -> character at which it last occurred before."""


@dataclass(frozen=True)
class Place:
    """A line as a question asks for it."""

    line: Line
    end: int
    """Tokens of the document that end before the line begins."""
    rest: str
    """Text between them and the line, where a token runs into it."""
    distance: int
    """Tokens from the farthest name's last occurrence to the line."""


@dataclass(frozen=True)
class NextLine(Task):
    """Complete a file by its next line (after RepoBench, Liu et al. 2023, arXiv 2306.03091, in one file).

    What is asked for stays the same from length to length, only the file's text before it grows: a difference between
    two lengths is what the added context does.

        length 64                                     self.pending = deque()\\n    ...\\n        -> self._wake(fd)
        length 512     import ... def _wake(self, fd): ... self.pending = deque()\\n    ...\\n   -> self._wake(fd)

    A line is one whole simple statement of Python (assignment, call, return, raise, assert, del) of 12 characters or
    more and two names or more. It can be known from the file: every name in it occurs within the context of the longest
    length. And it needs context: one of them does not occur in the last `near` tokens. n lines: one in each file, in
    the seed's order, then a second one in each, and so on; they depend on seed, `near`, `longest` and `room`, never on
    length or n. In a chat they are the same ones: its template takes some of the context, so that at the longest length
    a name may lie out of it, as the line's group tells. Clusters are files.

    The prompt ends where the text before the line does, so the model writes the line's indentation too. Scores, of the
    first line written that is not empty (nor a fence of code), stripped: `accuracy`, 1 where it is the line exactly;
    `edit_similarity`, difflib's ratio, 2 matches / (characters of both). Groups `names in context` and `names out of
    context` say whether all names of the line occur in the prompt. Guessing gives nothing.

    Args:
        corpus: files of Python; others have no lines.
        near: tokens before a line in which one of its names does not occur; None: half of the run's shortest length.
        longest: tokens of text, room and BOS that a line has, whatever the length; None: the run's longest length.
        room: tokens to write; lines of nearly as many tokens are left out. None: a quarter of the run's shortest
            length, at most 64.
        chat: ask in the model's chat template.
    """

    form: ClassVar[tuple[str, ...]] = ("chat",)
    corpus: Corpus
    near: int | None = None
    longest: int | None = None
    room: int | None = None
    chat: bool = False

    def __post_init__(self) -> None:
        for name in ("near", "longest", "room"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"next_line's {name} must be at least 1, got {value}")

    def for_lengths(self, lengths: Sequence[int]) -> Self:
        """Room and distance that fit the shortest length, lines that fit the longest."""
        return replace(
            self,
            near=self.near or max(1, min(lengths) // 2),
            longest=self.longest or max(lengths),
            room=self.room or max(1, min(64, min(lengths) // 4)),
        )

    def protocol(self, tokenizer: Tokenizer) -> str:
        """One line: which lines, how much context, how it is scored, BOS."""
        start = "chat template" if self.chat else "BOS" if tokenizer.prefix else "no BOS"
        return (
            f"next line: the same lines of Python at every length, only their context grows (places of {self.longest} "
            f"tokens, a name not in the last {self.near}), room {self.room}, strict: the first line is the line, "
            f"greedy, {start}"
        )

    def questions(self, tokenizer: Tokenizer, length: int, n: int, seed: int) -> Sequence[AnyQuestion]:
        """Prompts of exactly length - room tokens, one a line."""
        task = self.for_lengths([length])
        frame = tokenizer.frame(self.chat)
        if self.chat:
            frame = Frame(np.concatenate([frame.before, tokenizer.encode(INSTRUCTION).ids]), frame.after)
        least = (task.room or 0) + len(frame.before) + len(frame.after) + 1
        if length < least:
            raise Refused(f"next_line needs at least {least} tokens, asked for {length}: raise length or lower room")
        if length > (task.longest or 0):
            raise Refused(f"next_line's places have {task.longest} tokens, asked for {length}: raise longest")
        texts = encoded_corpus(self.corpus, tokenizer)
        reach = (task.longest or 0) - (task.room or 0) - len(tokenizer.prefix)
        found = list(itertools.islice(task._places(texts, tokenizer, reach, seed), n))
        if len(found) < n:
            raise Refused(
                f"next_line needs {n} lines of Python with {task.longest} tokens, the corpus has {len(found)}: lower n "
                "or the longest length, or take corpus=stdlib or larger files of Python"
            )
        space = length - least + 1
        return [task._question(texts, tokenizer, frame, space, index, *place) for index, place in enumerate(found)]

    def score(self, question: AnyQuestion, answer: Answer) -> Sample:
        """Exact match and similarity of the first line."""
        assert isinstance(question, Write) and isinstance(answer, Written)
        lines = [line.strip() for line in answer.text.split("\n")]
        first = next((line for line in lines if line and not line.startswith("```")), "")
        expected = question.facts["expected"]
        ratio = difflib.SequenceMatcher(None, first, expected, autojunk=False).ratio()
        return score_written(
            question,
            answer,
            {"accuracy": float(first == expected), "edit_similarity": ratio},
            parts=("names in context" if question.facts["in_context"] else "names out of context",),
        )

    def _places(self, texts: EncodedCorpus, tokenizer: Tokenizer, reach: int, seed: int) -> Iterator[tuple[int, Place]]:
        """(document, place): every document's first one before any one's second."""
        order = self.rng("documents", seed).permutation(len(texts)).tolist()
        left = {document: self._lines(texts, tokenizer, document, reach, seed) for document in order}
        while left:
            for document in list(left):
                place = next(left[document], None)
                if place is None:
                    del left[document]
                else:
                    yield document, place

    def _lines(
        self, texts: EncodedCorpus, tokenizer: Tokenizer, document: int, reach: int, seed: int
    ) -> Iterator[Place]:
        """A document's lines that can be asked for, in random order."""
        encoded, rng = texts[document], self.rng("lines", seed, texts.name(document))
        lines = _statements(encoded.text)
        for number in rng.permutation(len(lines)).tolist():
            place = _place(encoded, lines[number])
            fits = place.end >= reach and (self.near or 0) < place.distance <= reach
            if fits and len(tokenizer.encode(_answer(encoded, place.line)).ids) + SPARE <= (self.room or 0):
                yield place

    def _question(
        self,
        texts: EncodedCorpus,
        tokenizer: Tokenizer,
        frame: Frame,
        space: int,
        index: int,
        document: int,
        place: Place,
    ) -> Write:
        encoded = texts[document]
        context = np.concatenate([encoded.ids[: place.end], tokenizer.encode(place.rest).ids])
        return Write(
            index=index,
            cluster=texts.name(document),
            prompt=np.concatenate([frame.before, context[len(context) - space :], frame.after]),
            room=self.room or 0,
            answer=_answer(encoded, place.line),
            facts={
                "expected": place.line.text,
                "line": encoded.text.count("\n", 0, place.line.end) + 1,
                "distance": place.distance,
                "in_context": place.distance <= space,
            },
        )


def _answer(encoded: Encoded, line: Line) -> str:
    """The line as a flawless model writes it: line ends and indentation first."""
    return encoded.text[line.begin : line.end]


def _place(encoded: Encoded, line: Line) -> Place:
    """Where a line begins among the tokens, and how far back its names are."""
    end = int(np.searchsorted(encoded.starts, line.begin))
    rest = ""
    if end > 0 and (end == len(encoded.starts) or encoded.starts[end] > line.begin):
        end -= 1
        rest = encoded.text[int(encoded.starts[end]) : line.begin]
    farthest = int(np.searchsorted(encoded.starts, min(line.last.values()), side="right")) - 1
    return Place(line, end, rest, end - farthest + (1 if rest else 0))


@functools.lru_cache(maxsize=256)
def _statements(text: str) -> Sequence[Line]:
    """Lines of a file that are one simple statement each, of two names or more that all occurred before.

    A file with carriage returns has none: Python ends a line at each.
    """
    if "\r" in text:
        return ()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of old escapes
            tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return ()
    lines = text.split("\n")
    begins = [0, *itertools.accumulate(len(line) + 1 for line in lines)]
    places: dict[str, list[int]] = {}
    for word in re.finditer(r"[^\W\d]\w*", text):
        places.setdefault(word[0], []).append(word.start())
    found = []
    for node in ast.walk(tree):
        if not isinstance(node, STATEMENTS) or node.lineno != node.end_lineno:
            continue
        line = lines[node.lineno - 1]
        own = line.encode()[node.col_offset : node.end_col_offset].decode()
        begin = begins[node.lineno - 1]
        last = {name: _before(places.get(name, []), begin) for name in _names(node)}
        if own == line.strip() and len(own) >= SHORTEST and len(last) >= 2 and min(last.values()) >= 0:
            found.append(Line(len(text[:begin].rstrip()), begin + len(line.rstrip()), own, last))
    return tuple(found)


def _names(node: ast.stmt) -> set[str]:
    names = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
    return names | {part.attr for part in ast.walk(node) if isinstance(part, ast.Attribute)}


def _before(places: Sequence[int], begin: int) -> int:
    """The last place before another one; -1 where there is none."""
    count = bisect.bisect_left(places, begin)
    return places[count - 1] if count else -1
