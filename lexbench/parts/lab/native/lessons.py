"""Lessons for a small model: text, and short documents whose continuation depends on earlier tokens.

A lesson has at most `length` tokens; a training row is BOS and lessons of one kind until it is full.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from lexbench.core import objects, registry, suites
from lexbench.core.errors import ConfigError
from lexbench.core.record import Refused
from lexbench.core.task import AnyQuestion, Choose, ClassifyTokens, Generate, Task, Tokenizer, Tokens
from lexbench.corpora import Corpus

Lesson = Callable[[np.random.Generator, Tokenizer, int], Tokens]
ONE_LESSON_PACKINGS = ("single", "right_padded")  # packings of one lesson a row
N_DEPTH_STRATA = 8  # tasks place needles at depths that repeat after at most 8 questions
DIGITS_AND_LETTERS = "0123456789abcdefghijklmnopqrstuvwxyz"
LETTER_ARRAY = np.array(list(DIGITS_AND_LETTERS[10:]))


def repeated_blocks(rng: np.random.Generator, tokenizer: Tokenizer, length: int) -> Tokens:
    """Random tokens, repeated until the row is full: the simplest case of induction."""
    block = rng.integers(3, tokenizer.vocabulary, size=rng.integers(8, max(9, length // 2)))
    return np.resize(block, length).astype(np.int64)


def small_blocks(rng: np.random.Generator, tokenizer: Tokenizer, length: int) -> Tokens:
    """Digits and letters, repeated in blocks of up to an eighth of the row."""
    return _repeated_symbols(rng, tokenizer, length, int(rng.integers(4, max(5, length // 8))))


def tiny_blocks(rng: np.random.Generator, tokenizer: Tokenizer, length: int) -> Tokens:
    """Digits and letters in blocks of 2 to 8: copying lowers the loss at once, so it is learnt in about 200 steps."""
    return _repeated_symbols(rng, tokenizer, length, int(2 ** rng.uniform(1, 3)))


def growing_blocks(rng: np.random.Generator, tokenizer: Tokenizer, length: int) -> Tokens:
    """Digits and letters in blocks of 2 to 32, short and long equally often: extends copying from near to far."""
    return _repeated_symbols(rng, tokenizer, length, int(2 ** rng.uniform(1, 5)))


def distinct_blocks(rng: np.random.Generator, tokenizer: Tokenizer, length: int) -> Tokens:
    """Blocks of 2 to 32 different tokens, of symbols or of any: one token determines the next."""
    alphabet = _symbol_tokens(tokenizer) if rng.random() < 0.5 else np.arange(3, tokenizer.vocabulary)
    return np.resize(rng.choice(alphabet, size=int(2 ** rng.uniform(1, 5)), replace=False), length).astype(np.int64)


def block_pieces(rng: np.random.Generator, tokenizer: Tokenizer, length: int) -> Tokens:
    """A block of 4 to 32 different tokens, at most half of the row, then pieces of 2 to 16, each from another place on.

    Blocks that are repeated as a whole can be copied from a fixed distance: 24 tokens back for every block whose size
    divides 24. A head that learns this sees no token. Here the distance changes with every piece: only the token tells.
    """
    alphabet = _symbol_tokens(tokenizer) if rng.random() < 0.5 else np.arange(3, tokenizer.vocabulary)
    return _block_pieces(rng, alphabet, length)


def token_pieces(rng: np.random.Generator, tokenizer: Tokenizer, length: int) -> Tokens:
    """Rows of `block_pieces`, of any tokens: after symbols, it makes copying hold for the whole vocabulary."""
    return _block_pieces(rng, np.arange(3, tokenizer.vocabulary), length)


def _block_pieces(rng: np.random.Generator, alphabet: Any, length: int) -> Tokens:
    longest = max(5, min(32, length // 2))
    block = rng.choice(alphabet, size=int(2 ** rng.uniform(2, np.log2(longest))), replace=False)
    pieces, found = [block], len(block)
    while found < length:
        pieces.append(np.roll(block, -int(rng.integers(len(block))))[: int(2 ** rng.uniform(1, 4))])
        found += len(pieces[-1])
    return np.concatenate(pieces)[:length].astype(np.int64)


def string_pieces(rng: np.random.Generator, tokenizer: Tokenizer, length: int) -> Tokens:
    """A string of 4 symbols to half of the row, which may recur in it, then pieces of 4 to 32 of it.

    One token does not determine the next: the pair before it does, nearly always.
    """
    string = rng.choice(_symbol_tokens(tokenizer), size=int(2 ** rng.uniform(2, np.log2(max(5, length // 2)))))
    return repeated_pieces(rng, string, length)


def _repeated_symbols(rng: np.random.Generator, tokenizer: Tokenizer, length: int, size: int) -> Tokens:
    return np.resize(rng.choice(_symbol_tokens(tokenizer), size=size), length).astype(np.int64)


def _symbol_tokens(tokenizer: Tokenizer) -> list[int]:
    """The token of each digit and letter; where a letter is two, its first."""
    return [int(tokenizer.encode(symbol).ids[0]) for symbol in DIGITS_AND_LETTERS]


def key_values(rng: np.random.Generator, tokenizer: Tokenizer, length: int) -> Tokens:
    """`abc=4821;` for some keys, then the same pairs in another order, again and again."""
    count = int(rng.integers(2, 13))
    pairs = [f"{''.join(rng.choice(LETTER_ARRAY, 3))}={rng.integers(1000, 10000)};" for _ in range(count)]
    rounds = [" ".join(rng.permutation(pairs)) for _ in range(8)]
    return tokenizer.encode("\n".join(rounds) + "\n").ids[:length]


def running_sums(rng: np.random.Generator, tokenizer: Tokenizer, length: int) -> Tokens:
    """`5 +3 =8 -6 =2 ...`: every result is between 0 and 9."""
    result = int(rng.integers(10))
    text = [str(result)]
    for _ in range(int(rng.integers(4, 64))):
        following = int(rng.integers(10))
        text.append(f"{following - result:+d} ={following}")
        result = following
    return tokenizer.encode(" ".join(text) + "\n").ids[:length]


BLOCK_LESSONS: tuple[Lesson, ...] = (
    repeated_blocks,
    small_blocks,
    tiny_blocks,
    growing_blocks,
    distinct_blocks,
    block_pieces,
    token_pieces,
    string_pieces,
)
GENERATOR_OF_LESSON = {lesson.__name__: lesson for lesson in (*BLOCK_LESSONS, key_values, running_sums)}
LESSONS_WITHOUT_WORDS = {"text", "text_pieces", *(lesson.__name__ for lesson in BLOCK_LESSONS)}
"""Kinds of lessons without words of their own for the tokenizer."""
COPYING_LESSONS = {"copy", "text_pieces", *(lesson.__name__ for lesson in BLOCK_LESSONS)}
"""Kinds of lessons that teach copying only."""


@dataclass(frozen=True)
class TaskLesson:
    """Questions of a task, with their answers, at lengths up to the row's.

    Args:
        task: one whose questions have answers.
        row: tokens of a whole row: the length used where the task refuses shorter ones; the question is then cut.
        name: of the task in the registry.
        answers: whether a token t that is no answer becomes its complement ~t = -t - 1, so that the loss can leave it
            out.
        single: whether a row holds one question, of any length up to the row's; else lengths begin at half of it.
    """

    task: Task
    row: int = 0
    name: str = "task"
    answers: bool = False
    single: bool = False

    def __call__(self, rng: np.random.Generator, tokenizer: Tokenizer, length: int) -> Tokens:
        """A prompt and its answer; seeds are above 2^31, which evaluations do not use.

        Raises ConfigError where the task refuses even a whole row, or has no answers to learn.
        """
        seed = int(rng.integers(2**31, 2**62))
        least = 1 if self.single else length // 2
        lengths = int(rng.integers(least, length + 1)), length, self.row
        question = self._questions(tokenizer, lengths, seed, 1)[0] if self.answers else None
        if not isinstance(
            question, ClassifyTokens
        ):  # else all questions are alike: needles at depths are asked for in writing
            question = self._questions(tokenizer, lengths, seed, N_DEPTH_STRATA)[int(rng.integers(N_DEPTH_STRATA))]
        if isinstance(question, ClassifyTokens):
            tokens, asked = question.tokens, np.isin(np.arange(len(question.tokens)), question.places)
        elif isinstance(question, Choose | Generate) and question.layout is None:
            answer = (
                question.options[question.expected]
                if isinstance(question, Choose)
                else tokenizer.encode(f"{question.answer}.\n").ids
            )
            tokens = np.concatenate([question.prompt, answer])
            asked = np.arange(len(tokens)) >= len(question.prompt)
        else:
            raise ConfigError(f"lesson {self.name} has no answers to learn, it only scores: use text in recipe.stages")
        counted = np.where(asked, tokens, ~tokens) if self.answers else tokens
        return counted[len(tokenizer.prefix) :][:length]

    def _questions(self, tokenizer: Tokenizer, lengths: Sequence[int], seed: int, n: int) -> Sequence[AnyQuestion]:
        """Questions of the first of these lengths that the task does not refuse."""
        reason = ""
        for length in lengths:
            try:
                return self.task.questions(tokenizer, length, n, seed)
            except Refused as refusal:
                reason = refusal.reason
        raise ConfigError(
            f"lesson {self.name} does not fit rows of {lengths[-1]} tokens ({reason}): raise recipe.trained_length "
            "or the length of the stage, or leave it out of recipe.stages"
        )


@dataclass(frozen=True)
class SuiteLesson:
    """Questions of the tasks of a suite, each as often as the others."""

    parts: Sequence[Lesson]

    def __call__(self, rng: np.random.Generator, tokenizer: Tokenizer, length: int) -> Tokens:
        """A prompt of one of the tasks, and its answer."""
        return self.parts[int(rng.integers(len(self.parts)))](rng, tokenizer, length)


def repeated_pieces(rng: np.random.Generator, stretch: Tokens, length: int) -> Tokens:
    """A stretch, then pieces of 4 to 32 tokens of it, until there are `length` tokens."""
    pieces, found = [stretch], len(stretch)
    while found < length:
        first = int(rng.integers(len(stretch)))
        pieces.append(stretch[first : first + int(2 ** rng.uniform(2, 5))])
        found += len(pieces[-1])
    return np.concatenate(pieces)[:length].astype(np.int64)


class TextLesson:
    """Stretches of documents; a document is chosen in proportion to its length."""

    def __init__(self, corpora: Sequence[Corpus], tokenizer: Tokenizer) -> None:
        documents = [tokenizer.encode(document.text).ids for corpus in corpora for document in corpus.documents()]
        self.tokens = np.concatenate(documents)
        self.starts = np.cumsum([0, *(len(document) for document in documents)])

    def __call__(self, rng: np.random.Generator, tokenizer: Tokenizer, length: int) -> Tokens:
        """A stretch of one document."""
        place = int(rng.integers(len(self.tokens)))
        document = int(np.searchsorted(self.starts, place, side="right")) - 1
        # A place near the end moves back, so that the stretch is whole where the document is long enough.
        first = max(int(self.starts[document]), min(place, int(self.starts[document + 1]) - length))
        return self.tokens[first : min(first + length, int(self.starts[document + 1]))]


def text_pieces(text: TextLesson, rng: np.random.Generator, tokenizer: Tokenizer, length: int) -> Tokens:
    """A stretch of a document, up to half of the row, then pieces of it: names of code are copied in this way."""
    size = int(2 ** rng.uniform(3, np.log2(max(9, length // 2))))
    return repeated_pieces(rng, text(rng, tokenizer, size), length)


def gather_lessons(
    kinds: Sequence[str],
    corpora: Sequence[Corpus],
    tokenizer: Tokenizer,
    length: int,
    answers: bool = False,
    single: bool = False,
) -> dict[str, Lesson]:
    """Lessons by name: `text`, a generator of this module, any task with answers or suite of such; each task is tried.

    `answers` and `single` are those of tasks' lessons (`TaskLesson`).

    Raises ConfigError for an unknown name, and for a lesson that does not fit rows of `length` tokens.
    """
    lessons: dict[str, Lesson] = {}
    for kind in kinds:
        if kind == "text":
            lessons[kind] = TextLesson(corpora, tokenizer)
        elif kind == "text_pieces":
            text = lessons.get("text")
            text = text if isinstance(text, TextLesson) else TextLesson(corpora, tokenizer)
            lessons[kind] = partial(text_pieces, text)
        elif kind in GENERATOR_OF_LESSON:
            lessons[kind] = GENERATOR_OF_LESSON[kind]
        elif kind in (tasks := registry.registered_names("task")):
            parts = [
                _task_lesson(entry, tokenizer, length, answers, single)
                for entry in suites.expand_suite({**registry.read_named_config("task", kind), "name": kind})
            ]
            lessons[kind] = SuiteLesson(parts) if len(parts) > 1 else parts[0]
        else:
            raise ConfigError(
                f"unknown lesson {kind!r}: choose from text, text_pieces, {', '.join([*GENERATOR_OF_LESSON, *tasks])}"
            )
    return lessons


def _task_lesson(
    config: Mapping[str, Any], tokenizer: Tokenizer, length: int, answers: bool, single: bool
) -> TaskLesson:
    """The lesson of a task, tried once."""
    name = str(config["name"])
    if objects.class_parameters(objects.class_of(config, "task")).get("corpus"):
        raise ConfigError(f"lesson {name} reads a corpus: use text in recipe.stages")
    task = objects.build_object(config, "task")
    lesson = TaskLesson(task, length, name, answers, single)
    lesson(np.random.default_rng(0), tokenizer, length)
    return lesson


def draw_row(
    lessons: Mapping[str, Lesson],
    shares: Mapping[str, float],
    rng: np.random.Generator,
    tokenizer: Tokenizer,
    length: int,
    packing: str = "filled",
) -> tuple[str, Tokens]:
    """Draw a kind of lesson by its share; the kind, and a row of `length` tokens of it (`Recipe.packing`)."""
    kinds = list(shares)
    weights = np.array([shares[kind] for kind in kinds], dtype=np.float64)
    kind = kinds[rng.choice(len(kinds), p=weights / weights.sum())]
    pieces = [np.asarray(tokenizer.prefix, dtype=np.int64)]
    space = length - len(tokenizer.prefix)
    blank = ~tokenizer.encode("\n").ids[-1:]  # no answer
    if packing in ONE_LESSON_PACKINGS:
        behind = packing == "right_padded"  # then a question may be as long as one that is asked at the row's length
        piece = lessons[kind](rng, tokenizer, length if behind else space)[:space]
        blanks = np.repeat(blank, space - len(piece))
        return kind, np.concatenate([*pieces, piece, blanks] if behind else [*pieces, blanks, piece])
    while space > 0:
        # Tasks refuse short texts: the last lesson is made longer than its space, and cut.
        piece = lessons[kind](rng, tokenizer, max(space, length // 2))[:space]
        if packing == "blank_line" and len(pieces) > 1:
            piece = np.concatenate([blank, piece])[:space]
        pieces.append(piece)
        space -= len(piece)
    return kind, np.concatenate(pieces)
