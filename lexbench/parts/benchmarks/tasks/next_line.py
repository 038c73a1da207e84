"""Next line: complete a line of Python whose names occur far before it; the same lines at every length."""

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

from lexbench import (
    Answer,
    AnyQuestion,
    Corpus,
    Encoded,
    Frame,
    Generate,
    GenerateAnswer,
    Outline,
    Refused,
    Sample,
    Task,
    Tokenizer,
)
from lexbench.taskkit.perplexity import (
    LONGER_CORPUS_REMEDY,
    EncodedCorpus,
    encoded_corpus,
    fewer_samples_remedy,
    interleave_places,
)
from lexbench.taskkit.prompt import check_at_least, check_length, context_beginning
from lexbench.taskkit.scoring import score_written

PROMPT_INSTRUCTION = "Continue this Python file by its next line. Write that line and nothing else.\n\n"
SIMPLE_STATEMENT_TYPES = (
    ast.Assign,
    ast.AugAssign,
    ast.AnnAssign,
    ast.Return,
    ast.Raise,
    ast.Assert,
    ast.Delete,
    ast.Expr,
)
MIN_LINE_CHARACTERS = 12
"""Least characters of a line."""
MIN_SPARE_TOKENS = 4
"""Least tokens of the room beyond those of the line."""


@dataclass(frozen=True)
class StatementLine:
    """A line that consists of one statement."""

    begin: int
    """Character at which the white space before the line begins."""
    end: int
    text: str
    last: Mapping[str, int]
    """Each name in the line -> character of its last occurrence before the line."""


@dataclass(frozen=True)
class Place:
    """A line among the tokens of its document."""

    line: StatementLine
    end: int
    """Number of tokens that end before the line begins."""
    rest: str
    """Text between these tokens and the line, if a token crosses the start of the line."""
    distance: int
    """Tokens from the line back to the farthest of its names' last occurrences."""


@dataclass(frozen=True)
class NextLine(Task):
    """Complete a file by its next line (after RepoBench, Liu et al. 2023, arXiv 2306.03091, within one file).

        length 64                                     self.pending = deque()\\n    ...\\n        -> self._wake(fd)
        length 512     import ... def _wake(self, fd): ... self.pending = deque()\\n    ...\\n   -> self._wake(fd)

    The lines stay the same at every length and only the file's text before them grows, so a difference between two
    lengths is the effect of the added context.

    A line is one simple Python statement (assignment, call, return, raise, assert, del) with at least 12 characters and
    two names. The file determines it: every name occurs within the context of the longest length. It needs context: at
    least one name does not occur in the last `near` tokens. Lines: one of each file, in the seed's order, then a second
    one of each, and so on, up to n; they depend on seed, `near`, `longest` and `room`, not on length or n. A chat asks
    for the same lines, but its template takes some of the context, so at the longest length a name may be outside it;
    the groups show this. Clusters are files. Seeds draw from the same files, and a file with few such lines gives the
    same line again: of 48 lines of the standard library, two seeds share about five. So raise n rather than add seeds,
    whose intervals take seeds for independent.

    The prompt ends before the white space in front of the line, so the model also writes the indentation. Scores of the
    first written line that is neither empty nor a code fence, stripped: `accuracy`, 1 if it equals the line;
    `edit_similarity`, difflib's ratio, 2 matches / (characters of both). The groups `names in context` and `names out
    of context` say whether all names of the line occur in the prompt. Chance is 0.

    Args:
        corpus: Python files; other files have no lines.
        near: tokens before a line in which at least one of its names does not occur; None: half of the run's shortest
            length.
        longest: text, room and BOS of every line in tokens, at any length; None: the run's longest length for which the
            corpus has n lines.
        room: tokens to write; lines with nearly as many tokens are left out. None: a quarter of the run's shortest
            length, at most 64.
        chat: use the model's chat template.
    """

    form: ClassVar[tuple[str, ...]] = ("chat",)
    corpus: Corpus
    near: int | None = None
    longest: int | None = None
    room: int | None = None
    chat: bool = False

    def __post_init__(self) -> None:
        check_at_least("next_line", self, near=1, longest=1, room=1)

    def for_lengths(self, lengths: Sequence[int]) -> Self:
        """Choose room and distance that fit the shortest length, and lines that fit the longest."""
        return replace(
            self,
            near=self.near or max(1, min(lengths) // 2),
            longest=self.longest or max(lengths),
            room=self.room or max(1, min(64, min(lengths) // 4)),
        )

    def protocol(self, tokenizer: Tokenizer) -> str:
        """Protocol in words: lines, context, scoring of the answer, BOS."""
        start = "chat template" if self.chat else context_beginning(tokenizer)
        return (
            f"next line: the same lines of Python at every length, only their context grows (places of {self.longest} "
            f"tokens, a name not in the last {self.near}), room {self.room}, strict: the first line is the line, "
            f"greedy, {start}"
        )

    def outline(self, tokenizer: Tokenizer, length: int, n: int, seed: int) -> Outline:
        """Sizes of n prompts, one for each line, and tokens to write behind each."""
        task = self.for_lengths([length])
        task._space(tokenizer, length)
        return Outline(n, length, max_new_tokens=task.room or 0)

    def questions(self, tokenizer: Tokenizer, length: int, n: int, seed: int) -> Sequence[AnyQuestion]:
        """One prompt of exactly length - room tokens per line."""
        task = self.for_lengths([length])
        frame, space = task._space(tokenizer, length)
        texts = encoded_corpus(self.corpus, tokenizer)
        reach = (task.longest or 0) - (task.room or 0) - len(tokenizer.prefix)
        order = task.rng("documents", seed).permutation(len(texts)).tolist()
        places = interleave_places(order, lambda document: task._lines(texts, tokenizer, document, reach, seed))
        found = list(itertools.islice(places, n))
        if len(found) < n:
            raise Refused(
                f"next_line needs {n} lines of Python with {task.longest} tokens, the corpus has {len(found)}: give "
                f"files of Python (corpus=stdlib), {LONGER_CORPUS_REMEDY}{fewer_samples_remedy(len(found))}"
            )
        return [task._question(texts, tokenizer, frame, space, index, *place) for index, place in enumerate(found)]

    def _space(self, tokenizer: Tokenizer, length: int) -> tuple[Frame, int]:
        """The frame around the text, and the tokens of text; Refused where the length has none, or too many."""
        frame = tokenizer.frame(self.chat)
        if self.chat or frame.is_chat:  # a chat backend frames every question
            frame = Frame(np.concatenate([frame.before, tokenizer.encode(PROMPT_INSTRUCTION).ids]), frame.after)
        least = (self.room or 0) + len(frame.before) + len(frame.after) + 1
        check_length("next_line", least, length, "raise length or lower room")
        if length > (self.longest or 0):
            raise Refused(f"next_line's places have {self.longest} tokens, asked for {length}: raise longest")
        return frame, length - least + 1

    def score(self, question: AnyQuestion, answer: Answer) -> Sample:
        """Exact match and similarity of the first line."""
        assert isinstance(question, Generate) and isinstance(answer, GenerateAnswer)
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

    def _lines(
        self, texts: EncodedCorpus, tokenizer: Tokenizer, document: int, reach: int, seed: int
    ) -> Iterator[Place]:
        """The usable lines of a document, in random order."""
        encoded, rng = texts[document], self.rng("lines", seed, texts.name(document))
        lines = _statements(encoded.text)
        for number in rng.permutation(len(lines)).tolist():
            place = _place(encoded, lines[number])
            fits = place.end >= reach and (self.near or 0) < place.distance <= reach
            if fits and len(tokenizer.encode(_answer(encoded, place.line)).ids) + MIN_SPARE_TOKENS <= (self.room or 0):
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
    ) -> Generate:
        encoded = texts[document]
        # A token that reaches into the line is cut there: its first part is encoded again.
        context = np.concatenate([encoded.ids[: place.end], tokenizer.encode(place.rest).ids])
        return Generate(
            index=index,
            cluster=texts.name(document),
            prompt=np.concatenate([frame.before, context[len(context) - space :], frame.after]),
            max_new_tokens=self.room or 0,
            answer=_answer(encoded, place.line),
            facts={
                "expected": place.line.text,
                "line": encoded.text.count("\n", 0, place.line.end) + 1,
                "distance": place.distance,
                "in_context": place.distance <= space,
            },
        )


def _answer(encoded: Encoded, line: StatementLine) -> str:
    """The line as a flawless model writes it, with line ends and indentation before it."""
    return encoded.text[line.begin : line.end]


def _place(encoded: Encoded, line: StatementLine) -> Place:
    """The place of a line among the tokens, and the distance of its names."""
    # Tokens that begin before the line; the last of them may reach into it.
    end = int(np.searchsorted(encoded.starts, line.begin))
    rest = ""
    if end > 0 and (end == len(encoded.starts) or encoded.starts[end] > line.begin):
        end -= 1
        rest = encoded.text[int(encoded.starts[end]) : line.begin]
    # The name whose last occurrence is farthest back decides how much context the line needs.
    farthest = int(np.searchsorted(encoded.starts, min(line.last.values()), side="right")) - 1
    return Place(line, end, rest, end - farthest + (1 if rest else 0))


@functools.lru_cache(maxsize=256)
def _statements(text: str) -> Sequence[StatementLine]:
    """All lines of one simple statement with at least two names, which all occur before the line.

    None in a file with carriage returns, at which Python ends a line.
    """
    if "\r" in text:
        return ()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about old escape sequences
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
        if not isinstance(node, SIMPLE_STATEMENT_TYPES) or node.lineno != node.end_lineno:
            continue
        line = lines[node.lineno - 1]
        # ast counts columns in UTF-8 bytes.
        own = line.encode()[node.col_offset : node.end_col_offset].decode()
        begin = begins[node.lineno - 1]
        last = {name: _last_place_before(places.get(name, []), begin) for name in _names(node)}
        if own == line.strip() and len(own) >= MIN_LINE_CHARACTERS and len(last) >= 2 and min(last.values()) >= 0:
            found.append(StatementLine(len(text[:begin].rstrip()), begin + len(line.rstrip()), own, last))
    return tuple(found)


def _names(node: ast.stmt) -> set[str]:
    names = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
    return names | {part.attr for part in ast.walk(node) if isinstance(part, ast.Attribute)}


def _last_place_before(places: Sequence[int], begin: int) -> int:
    """The last place before `begin`; -1 if there is none."""
    count = bisect.bisect_left(places, begin)
    return places[count - 1] if count else -1
