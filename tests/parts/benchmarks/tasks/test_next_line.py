"""Next line: real statements, the same ones at every length, with names at the stated distances."""

import difflib
import keyword
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import lexbench
from lexbench import Corpus, Document, Generate, Refused
from lexbench.checkpoints.tokenizer import FastTokenizer
from lexbench.corpora import hash_documents
from lexbench.corpora.synthetic import Synthetic
from tests.answerers import written

LENGTHS = [160, 256, 480]
STDLIB = lexbench.corpus("stdlib")
TEXTS = {document.name: document.text for document in STDLIB.documents()}


@dataclass(frozen=True)
class Source:
    """A corpus of given files."""

    texts: tuple[str, ...]

    def documents(self) -> Iterator[Document]:
        for number, text in enumerate(self.texts):
            yield Document(f"d{number}.py", text)

    def fingerprint(self) -> str:
        return hash_documents(self.documents())


def questions_of(
    tokenizer: FastTokenizer, length: int, n: int, seed: int = 0, corpus: Corpus = STDLIB, **parameters: object
) -> list[Generate]:
    task = lexbench.task("next_line", corpus=corpus, **parameters).for_lengths(LENGTHS)
    return [question for question in task.questions(tokenizer, length, n, seed) if isinstance(question, Generate)]


@pytest.mark.slow
def test_lines_are_the_same_at_every_length_and_only_their_context_grows(tokenizer: FastTokenizer) -> None:
    short, middle, long = (questions_of(tokenizer, length, 24) for length in LENGTHS)
    for questions, length in zip((short, middle, long), LENGTHS, strict=True):
        assert {(question.length, question.max_new_tokens) for question in questions} == {(length, 40)}
    for first, second, third in zip(short, middle, long, strict=True):
        assert first.answer == second.answer == third.answer
        assert (first.cluster, first.facts["line"]) == (third.cluster, third.facts["line"])
        for smaller, larger in ((first, second), (second, third)):
            begin = len(smaller.prompt) - 1
            assert smaller.prompt[0] == larger.prompt[0] == tokenizer.bos
            assert (smaller.prompt[1:] == larger.prompt[-begin:]).all()


@pytest.mark.slow
def test_the_prompt_is_the_files_text_right_before_the_line(tokenizer: FastTokenizer) -> None:
    for question in questions_of(tokenizer, 480, 24):
        text = TEXTS[question.cluster]
        prompt = tokenizer.decode(question.prompt)
        assert text.count(prompt + question.answer) >= 1
        line = question.answer.strip()
        assert question.answer.startswith("\n") and not prompt[-1].isspace()
        assert line == question.facts["expected"] == text.split("\n")[question.facts["line"] - 1].strip()
        assert len(line) >= 12
        compile(line.replace("return ", "lambda: ") if line.startswith("return ") else line, "line", "exec")


@pytest.mark.slow
def test_all_names_of_a_line_stand_in_its_longest_context_and_one_not_near_it(tokenizer: FastTokenizer) -> None:
    """Counted in the text of the prompt: near is half of 160 tokens."""
    questions = questions_of(tokenizer, 480, 32)
    for question in questions:
        assert 80 < question.facts["distance"] <= 480 - 40 - 1
        assert not all_names(tokenizer.decode(question.prompt[-80:]), question)
        just_there(tokenizer, question)


def just_there(tokenizer: FastTokenizer, question: Generate) -> None:
    """The farthest name begins in the token `distance` before the end."""
    distance = question.facts["distance"]
    assert all_names(tokenizer.decode(question.prompt[-distance:]), question), question.facts
    assert not all_names(tokenizer.decode(question.prompt[1 - distance :]), question), question.facts


def all_names(text: str, question: Generate) -> bool:
    """Whether a text contains all names of the line, found without Python's parser."""
    code = re.sub(r"""[rbf]*(".*?"|'.*?')""", "", question.facts["expected"])
    names = set(re.findall(r"[^\W\d]\w*", code)) - set(keyword.kwlist) - set(re.findall(r"(\w+)=[^=]", code))
    return all(re.search(rf"\b{name}\b", text) for name in names)


@pytest.mark.slow
def test_groups_say_whether_the_farthest_name_is_in_the_prompt(tokenizer: FastTokenizer) -> None:
    seen = set()
    for length in LENGTHS:
        for question in questions_of(tokenizer, length, 32):
            inside = question.facts["distance"] <= length - 41
            task = lexbench.task("next_line", corpus=STDLIB)
            [part] = task.score(question, written("", tokenizer)).parts
            assert part == ("names in context" if inside else "names out of context")
            seen.add((length, part))
    assert seen == {
        (480, "names in context"),
        *((n, f"names {s} context") for n in (160, 256) for s in ("in", "out of")),
    }


FILE = """import collections


def first(queue_of_all):
    return queue_of_all[0]


{filler}
def last(items):
    '''Give the last: collections.deque(items), and return items.'''
    total = collections.deque(items)

    # collections.deque(items)
    if items: return items
    value = 1 + 2; other = items
    names = collections.abc.Sized(total)
    return (collections,
            items)
"""


def test_only_whole_statements_of_known_names_that_are_far_are_asked_for(tokenizer: FastTokenizer) -> None:
    """By hand: the other lines have a new name or only one name, or are not one statement per line."""
    filler = "\n".join(f"x{number} = {number}" for number in range(5)) + "\n"
    text = "# to fill\n" * 60 + FILE.format(filler=filler) + "    total.first(collections.deque)\n"
    given: dict[str, Any] = {"corpus": Source((text,)), "longest": 600, "room": 40}
    [question] = questions_of(tokenizer, 200, 1, near=80, **given)
    assert question.facts["expected"] == "total.first(collections.deque)"
    with pytest.raises(
        Refused, match="needs 2 lines of Python with 600 tokens, the corpus has 1: give files of Python"
    ):
        questions_of(tokenizer, 200, 2, near=80, **given)
    with pytest.raises(Refused, match="needs 1 lines of Python with 600 tokens, the corpus has 0"):
        questions_of(tokenizer, 200, 1, near=500, **given)
    with pytest.raises(Refused, match="needs 1 lines of Python with 600 tokens, the corpus has 0"):
        questions_of(tokenizer, 200, 1, near=80, **{**given, "room": 20})  # the line alone takes more


@pytest.mark.parametrize(
    "line",
    [
        "if items: total.first(collections.deque)",
        "total.first(collections.deque); names = 1",
        "total.first(collections.deque)  # why",
        "total.first(\n        collections.deque)",
        "total.first(collections.dequeue)",
        "'total.first(collections.deque)'",
        "# total.first(collections.deque)",
        "first(x, x)",
        "first('a long one')",
        "total.first(collections.deque)\n    else",
    ],
)
def test_other_lines_are_not_asked_for(tokenizer: FastTokenizer, line: str) -> None:
    text = "# to fill\n" * 60 + FILE.format(filler="x = 1\n" * 10) + f"    {line}\n"
    with pytest.raises(Refused, match="the corpus has 0"):
        questions_of(tokenizer, 200, 1, corpus=Source((text,)), near=80, longest=600, room=60)


@pytest.mark.slow
def test_every_file_gives_a_line_before_one_gives_two_and_seeds_give_others(tokenizer: FastTokenizer) -> None:
    task = lexbench.task("next_line", corpus=STDLIB).for_lengths(LENGTHS)
    questions = task.questions(tokenizer, 160, 200, 0)
    first_twice = next(n for n, q in enumerate(questions) if q.cluster in {each.cluster for each in questions[:n]})
    firsts = {question.cluster for question in questions[:first_twice]}
    assert len(firsts) > 40 and {question.cluster for question in questions} == firsts
    assert len({(question.cluster, question.facts["line"]) for question in questions}) == 200
    again = [question.cluster for question in task.questions(tokenizer, 160, 50, 1)]
    assert [question.cluster for question in questions[:50]] != again


def test_each_answer_gets_what_it_is_worth(tokenizer: FastTokenizer) -> None:
    """Similarity by hand: 2 matches / all characters."""
    [question] = questions_of(tokenizer, 256, 1)
    line = question.facts["expected"]
    half = line[: len(line) // 2]
    expected = {
        question.answer: (1, 1),
        line: (1, 1),
        f"\n\n   {line}  \n    more()\n": (1, 1),
        f"```python\n{line}\n```": (1, 1),
        f"{line})": (0, 2 * len(line) / (2 * len(line) + 1)),
        half: (0, 2 * len(half) / (len(half) + len(line))),
        f"pass\n{line}": (0, difflib.SequenceMatcher(None, "pass", line).ratio()),
        "": (0, 0),
        "\n\n": (0, 0),
        "\u2603": (0, 0),
    }
    for text, value in expected.items():
        sample = lexbench.task("next_line", corpus=STDLIB).score(question, written(text, tokenizer))
        assert (sample.scores["accuracy"], sample.scores["edit_similarity"]) == pytest.approx(value), text
        assert (sample.output, sample.chance) == (text, 0)


def test_a_line_within_a_merged_token_begins_right_behind_the_text_before_it(tokenizer: FastTokenizer) -> None:
    """A tokenizer that joins a line end with the next indentation, or with the text before."""

    class Lines(FastTokenizer):
        def encode(self, text: str) -> lexbench.Encoded:
            starts = np.asarray([found.start() for found in re.finditer(r".?\n\s*|.", text)], np.int64)
            ids = np.asarray([number_of(found[0]) for found in re.finditer(r".?\n\s*|.", text)], np.int64)
            return lexbench.Encoded(ids=ids, starts=starts, text=text)

        def decode(self, ids: object) -> str:
            return "".join(PIECES[int(each)] for each in ids)  # type: ignore[attr-defined]

    merging = Lines(tokenizer._tokenizer, bos=0, begins_with_bos=False)
    for question in questions_of(merging, 480, 8, room=120):
        prompt = merging.decode(question.prompt)
        assert prompt + question.answer in TEXTS[question.cluster]
        assert question.length == 480
        just_there(merging, question)


PIECES: list[str] = []


def number_of(piece: str) -> int:
    if piece not in PIECES:
        PIECES.append(piece)
    return PIECES.index(piece)


@pytest.mark.slow
def test_parameters_follow_from_the_runs_lengths_and_wrong_ones_are_errors(tokenizer: FastTokenizer) -> None:
    task = lexbench.task("next_line", corpus=STDLIB)
    settled = vars(task.for_lengths([2048, 512]))
    assert (settled["near"], settled["longest"], settled["room"]) == (256, 2048, 64)
    stated = lexbench.task("next_line", corpus=STDLIB, near=7, longest=900, room=9).for_lengths([64, 128])
    assert (vars(stated)["near"], vars(stated)["longest"], vars(stated)["room"]) == (7, 900, 9)
    for name in ("near", "longest", "room"):
        with pytest.raises(ValueError, match=f"next_line's {name} must be at least 1, got 0"):
            lexbench.task("next_line", corpus=STDLIB, **{name: 0})
    with pytest.raises(Refused, match="places have 480 tokens, asked for 481: raise longest"):
        questions_of(tokenizer, 481, 1)
    with pytest.raises(Refused, match="needs at least 42 tokens, asked for 41: raise length or lower room"):
        questions_of(tokenizer, 41, 1)
    assert {len(question.prompt) for question in questions_of(tokenizer, 42, 4)} == {2}
    with pytest.raises(Refused, match=r"lines of Python with 480 tokens, the corpus has 0: .*corpus=stdlib"):
        questions_of(tokenizer, 160, 1, corpus=Synthetic())


def around(tokenizer: FastTokenizer) -> list[int]:
    """Tokens of a chat template."""
    pieces = ("<user>", "Continue this Python file by its next line. Write that line and nothing else.\n\n", "<model>")
    return [int(token) for piece in pieces for token in tokenizer.encode(piece).ids]


@pytest.mark.parametrize("end", ["\r", "\r\n"])
def test_files_with_carriage_returns_have_no_lines(tokenizer: FastTokenizer, end: str) -> None:
    """Python ends a line at each carriage return, our lines do not; without them the same file has its line."""
    text = "# to fill\n" * 60 + FILE.format(filler="x = 1\n" * 10) + "    total.first(collections.deque)\n"
    given: dict[str, Any] = {"near": 80, "longest": 600, "room": 40}
    assert questions_of(tokenizer, 200, 1, corpus=Source((text,)), **given)
    for other in (text.replace("\n", end), f"# a comment{end}{text}"):
        with pytest.raises(Refused, match="the corpus has 0"):
            questions_of(tokenizer, 200, 1, corpus=Source((other,)), **given)


@pytest.mark.slow
def test_in_a_chat_the_file_is_what_the_user_says(tokenizer: FastTokenizer) -> None:
    class Chatting(FastTokenizer):
        def frame(self, chat: bool) -> lexbench.Frame:
            return (
                lexbench.Frame(self.encode("<user>").ids, self.encode("<model>").ids) if chat else super().frame(chat)
            )

    chatting = Chatting(tokenizer._tokenizer, bos=0, begins_with_bos=True)
    for length in LENGTHS:
        plain, chat = (questions_of(chatting, length, 12, chat=each) for each in (False, True))
        assert [(q.cluster, q.answer) for q in plain] == [(q.cluster, q.answer) for q in chat]
        for question in chat:
            assert question.facts["in_context"] == (question.facts["distance"] <= length - 40 - len(around(chatting)))
    for question in questions_of(chatting, 480, 3, chat=True):
        text = chatting.decode(question.prompt)
        said = "<user>Continue this Python file by its next line. Write that line and nothing else.\n\n"
        assert text.startswith(said) and text.endswith("<model>")
        assert text.removeprefix(said).removesuffix("<model>") + question.answer in TEXTS[question.cluster]
        assert question.length == 480
    assert "chat template" in lexbench.task("next_line", corpus=STDLIB, chat=True).protocol(chatting)


def test_a_backend_that_chats_is_told_what_to_do(tokenizer: FastTokenizer) -> None:
    """It frames every question; a file alone would be something to talk about."""

    class Chatting(FastTokenizer):
        def frame(self, chat: bool) -> lexbench.Frame:
            return lexbench.Frame(self.encode("<user>").ids, self.encode("<model>").ids)

    chatting = Chatting(tokenizer._tokenizer, bos=0, begins_with_bos=True)
    said = "<user>Continue this Python file by its next line. Write that line and nothing else.\n\n"
    for question in questions_of(chatting, 480, 3, chat=False):
        assert chatting.decode(question.prompt).startswith(said) and question.length == 480
