"""Spread puzzles: who reads all lines answers, no single line may lack, and who guesses stays at chance."""

import functools
import itertools
import re
import string
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from scipy import stats

import lexbench
from lexbench import Choose, ChooseAnswer, Generate, GenerateAnswer, Refused
from lexbench.checkpoints.tokenizer import FastTokenizer
from lexbench.corpora.synthetic import Synthetic
from lexbench.parts.benchmarks.spread import PLAIN_NOUNS, Puzzle, Spread
from lexbench.taskkit.people import FIRST_NAMES

N = 240
TASKS = [
    *("nth_needle", "conflicting_needles", "graph_walk", "graph_walk_bfs"),
    *("counting", "ordering", "spread_arithmetic", "many_labels"),
]
CHOICES = (
    *("nth_needle", "conflicting_needles", "counting", "spread_arithmetic", "many_labels"),
    *("graph_walk", "graph_walk_bfs"),
)
ORDINALS = ("first", "second", "third", "fourth")


def asked(tokenizer: FastTokenizer, name: str, length: int = 420, n: int = 20, **parameters: Any) -> list[Any]:
    return list(lexbench.task(name, **parameters).questions(tokenizer, length, n, 0))


def said(text: str) -> GenerateAnswer:
    return GenerateAnswer(tokens=np.empty(0, np.int64), text=text, hit_room=False)


# readers that know the rule: from the lines and the question to the answer, written anew here


def nth(lines: Sequence[str], ask: str) -> list[str]:
    found = re.search(r"word does (\w+) say the (\w+) time", ask)
    assert found
    own = [line.split()[-1] for line in lines if line.startswith(f"{found[1]} says")]
    return own[ORDINALS.index(found[2]) :][:1]


def last(lines: Sequence[str], ask: str) -> list[str]:
    name = ask.partition("Which word of ")[2].split()[0]
    return [line.split()[-1] for line in lines if line.startswith(f"{name} says")][-1:]


def parents(lines: Sequence[str], ask: str) -> list[str]:
    node = ask.partition("directly to ")[2].partition("?")[0]
    return sorted(line.split()[0] for line in lines if line.split()[-1] == node)


def walk(lines: Sequence[str], ask: str) -> list[str]:
    found = re.search(r"from (\w+) in exactly (\d) steps", ask)
    assert found
    edges = [(line.split()[0], line.split()[-1]) for line in lines]
    seen, front = {found[1]}, {found[1]}
    for _ in range(int(found[2])):
        front = {head for tail, head in edges if tail in front} - seen
        seen |= front
    return sorted(front)


def count(lines: Sequence[str], ask: str) -> list[str]:
    name = ask.partition("How often does ")[2].split()[0]
    return [str(sum(line.startswith(f"{name} ") for line in lines))]


def order(lines: Sequence[str], ask: str) -> list[str]:
    names = re.findall(r"[A-Z][a-z]+", ask.partition("order do ")[2].partition("?")[0])
    return [line.split()[0] for line in lines if line.split()[0] in names]


def total(lines: Sequence[str], ask: str) -> list[str]:
    known: dict[str, int] = {}
    for _ in lines:
        for line in lines:
            if start := re.fullmatch(r"The (\w+) has the number (\d)", line):
                known[start[1]] = int(start[2])
            step = re.fullmatch(r"The (\w+) has the number of the (\w+) plus (\d)", line)
            if step and step[2] in known:
                known[step[1]] = (known[step[2]] + int(step[3])) % 10
    name = ask.partition("number does the ")[2].split()[0]
    return [str(known[name])] if name in known else []


def label(lines: Sequence[str], ask: str) -> list[str]:
    thing = re.search(r"does the \w+ (\w+) belong", ask)
    assert thing
    return sorted({line.split()[-1] for line in lines if line.split()[2] == thing[1]})


READERS: dict[str, Callable[[Sequence[str], str], list[str]]] = dict(
    zip(TASKS, (nth, last, parents, walk, count, order, total, label), strict=True)
)
LINE = re.compile(
    r"(?<= )((?:\w+ (?:says the word|leads to) \w+)|(?:\w+ (?:rings the bell|comes in))"
    r"|(?:The \w+ has the number (?:of the \w+ plus )?\d)|(?:The \w+ \w+ belongs to group [A-Z]))\."
)


def parts(tokenizer: FastTokenizer, question: Any) -> tuple[list[str], str]:
    """The puzzle's lines in the order of the text, and what follows it."""
    body, _, ask = tokenizer.decode(question.prompt).rpartition("\n")
    return LINE.findall(" " + body.partition("\n")[2]), ask


@pytest.mark.everyday("graph_walk", "counting")
@pytest.mark.parametrize("name", TASKS)
def test_who_reads_all_lines_answers_and_no_single_needed_one_may_lack(lexlet: FastTokenizer, name: str) -> None:
    task, read = lexbench.task(name), READERS[name]
    for question in asked(lexlet, name):
        lines, ask = parts(lexlet, question)
        expected = question.facts["expected"]
        assert read(lines, ask) == (sorted(expected) if "graph" in name else expected)
        assert task.score(question, said(question.answer)).scores["accuracy"] == 1.0
        assert task.score(question, said(" nothing")).scores["accuracy"] == 0.0
        without = [read([*lines[:place], *lines[place + 1 :]], ask) for place in range(len(lines))]
        changed = sum(answer != read(lines, ask) for answer in without)
        # lines whose absence changes the answer, by hand from each task's default size
        assert (
            changed
            == {
                "nth_needle": question.facts.get("n"),  # the n-th itself, and each before it
                "conflicting_needles": 1,
                "graph_walk": 2,
                "graph_walk_bfs": 4,
                "counting": int(expected[0]) if name == "counting" else 0,
                "ordering": 3,
                "spread_arithmetic": 3,
                "many_labels": 0,  # two examples of each thing: one may lack, both may not
            }[name]
        )


@pytest.mark.everyday("nth_needle", "graph_walk", "ordering")
@pytest.mark.parametrize("name", TASKS)
def test_a_control_has_the_question_and_none_of_the_needed_lines(lexlet: FastTokenizer, name: str) -> None:
    for question, control in zip(asked(lexlet, name), asked(lexlet, name, needle=False), strict=True):
        lines, ask = parts(lexlet, question)
        left, same = parts(lexlet, control)
        assert same == ask and control.facts["expected"] == question.facts["expected"]
        assert control.length == question.length and not Counter(left) - Counter(lines)
        answer = READERS[name](left, ask)
        assert answer == (["0"] if name == "counting" else [])
        assert len(left) == {"counting": 6}.get(name, len(left)) < len(lines)


@pytest.mark.everyday("noise-nth_needle", "noise-graph_walk", "text-ordering")
@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize("haystack", ["noise", "text"])
def test_a_puzzle_is_the_same_at_every_exact_length(lexlet: FastTokenizer, name: str, haystack: str) -> None:
    task = lexbench.task(name, haystack=haystack, corpus=Synthetic(count=4, words=600))
    found = []
    for length in (400, 523, 900):
        questions = list(task.questions(lexlet, length, 3, 0))
        assert {question.length for question in questions} == {length}
        found.append([parts(lexlet, question) for question in questions])
    assert found[0] == found[1] == found[2]
    with pytest.raises(Refused, match=r" needs at least \d+ tokens, asked for 60: raise length"):
        task.questions(lexlet, 60, 1, 0)


GUESSERS: dict[str, Callable[[list[str]], str]] = {
    "first": lambda answers: answers[0],
    "last": lambda answers: answers[-1],
    "middle": lambda answers: answers[len(answers) // 2],
    "most frequent": lambda answers: Counter(answers).most_common(1)[0][0],
    "longest": lambda answers: max(answers, key=len),
    "alphabet": min,
}


@functools.cache
def puzzles(name: str, count: int = N, **parameters: Any) -> list[Puzzle]:
    """Puzzles as the task draws them, of words of any size."""
    task: Any = lexbench.task(name, **parameters)

    def puzzle(rng: np.random.Generator) -> Puzzle:
        found: Puzzle = task.puzzle(rng, lambda of, count: [of[i] for i in rng.permutation(len(of))[:count]])
        return found

    return [puzzle(task.rng("puzzle", 0, index)) for index in range(count)]


@pytest.mark.parametrize("name", ["nth_needle", "conflicting_needles", "spread_arithmetic", "many_labels"])
@pytest.mark.parametrize("guess", GUESSERS)
def test_guessing_is_right_at_most_as_often_as_chance_says(name: str, guess: str) -> None:
    """Answers that stand in the text: the last word of each line."""
    right = [
        GUESSERS[guess]([line.split()[-1].rstrip(".") for line in puzzle.lines]) == puzzle.expected[0]
        for puzzle in puzzles(name)
    ]
    assert stats.binomtest(sum(right), N, puzzles(name)[0].chance, alternative="greater").pvalue > 1e-3


EASY: dict[str, dict[str, Any]] = {
    "nth_needle": {"alike": 2, "people": 2},
    "conflicting_needles": {"alike": 2, "people": 4},
    "spread_arithmetic": {"steps": 0, "others": 3},
    "many_labels": {"labels": 4},
    "counting": {"most": 3, "pairs": 1},
    "graph_walk": {"width": 1},
    "graph_walk_bfs": {"width": 1},
}


@pytest.mark.everyday("nth_needle-False", "graph_walk-True")
@pytest.mark.parametrize("control", [False, True])
@pytest.mark.parametrize("name", CHOICES)
def test_an_option_by_its_place_or_frequency_in_the_text_is_right_at_most_as_often_as_chance_says(
    name: str, control: bool
) -> None:
    """The first, last, most frequent, ... option that occurs; any that occurs; any that does not; any at all."""
    hits: dict[str, list[float]] = {}
    for puzzle in puzzles(name, needle=not control, choose=True, **EASY[name]):
        kept = [line for place, line in enumerate(puzzle.lines) if not control or place not in puzzle.needed]
        found = [word for line in kept for word in re.findall(r"\w+", line) if word in puzzle.options]
        [right] = puzzle.expected
        for guess, choose in GUESSERS.items():
            hits.setdefault(guess, []).append(float(bool(found) and choose(found) == right))
        never = [each for each in puzzle.options if each not in found]
        for kind, some in (("any found", list({*found})), ("any other", never), ("any", list(puzzle.options))):
            hits.setdefault(kind, []).append(some.count(right) / len(some) if some else 0.0)
    chance = puzzle.blind if control else puzzle.chance
    for guess, each in hits.items():
        assert stats.binomtest(round(sum(each)), N, chance, alternative="greater").pvalue > 1e-3, guess


COUNTERS: dict[str, Callable[[list[int]], int]] = {
    "largest": max,
    "least": min,
    "any": lambda counts: counts[0],
    "commonest": lambda counts: Counter(counts).most_common(1)[0][0],
}


@pytest.mark.everyday("3-1")
@pytest.mark.parametrize(("most", "pairs"), [(5, 2), (4, 2), (9, 3), (3, 1)])
def test_counting_without_the_name_that_is_asked_for_gets_at_most_chance(most: int, pairs: int) -> None:
    """The commonest of all counts gets just chance: every pair of counts is as likely, worked out one by one."""
    both = [
        [count for first in firsts for count in (first, most + 1 - first)]
        for firsts in itertools.product(range(1, most + 1), repeat=pairs)
    ]
    shares = [Counter(counts).most_common(1)[0][1] / len(counts) for counts in both]
    found = puzzles("counting", 2000, most=most, pairs=pairs)
    assert found[0].chance == pytest.approx(sum(shares) / len(shares))
    for name, guess in COUNTERS.items():
        right = 0
        for puzzle in found:
            counts = Counter(line.split()[0] for line in puzzle.lines)
            right += str(guess(sorted(counts.values()))) == puzzle.expected[0]
        assert stats.binomtest(right, 2000, found[0].chance, alternative="greater").pvalue > 1e-3, name
        if name == "commonest":
            assert stats.binomtest(right, 2000, found[0].chance).pvalue > 1e-3


@pytest.mark.slow
def test_the_number_of_lines_does_not_tell_a_count() -> None:
    assert {len(puzzle.lines) for puzzle in puzzles("counting")} == {12}
    assert {len(puzzle.needed) for puzzle in puzzles("counting")} == {6}


@pytest.mark.parametrize("name", ["ordering", "graph_walk", "graph_walk_bfs"])
def test_sets_and_orders_are_not_told_by_the_places_of_lines(name: str) -> None:
    """In the alphabet, in the text's reverse, and the words of the first or last lines."""
    size = len(puzzles(name)[0].expected)
    for guess in (
        lambda words: sorted(words)[:size],
        lambda words: words[:size],
        lambda words: words[-size:],
        lambda words: words[::-1][:size],
    ):
        right = 0
        for puzzle in puzzles(name):
            firsts = [line.split()[0] for line in puzzle.lines]
            if name == "ordering":  # whom to order is said in the question
                firsts = [each for each in firsts if each in puzzle.ask]
                right += guess(firsts) == list(puzzle.expected) and guess(firsts) != firsts
            else:
                ends = [each for line in puzzle.lines for each in (line.split()[0], line.split()[-1].rstrip("."))]
                right += set(guess(firsts)) == set(puzzle.expected) or set(guess(ends)) == set(puzzle.expected)
        assert stats.binomtest(right, N, puzzles(name)[0].chance, alternative="greater").pvalue > 1e-3


@pytest.mark.parametrize("name", ["counting", "spread_arithmetic", "many_labels", "nth_needle"])
def test_answers_are_uniform(name: str) -> None:
    found = Counter(each.facts["n"] if name == "nth_needle" else each.expected[0] for each in puzzles(name))
    size = {"counting": 5, "spread_arithmetic": 10, "many_labels": 26, "nth_needle": 4}[name]
    counts = [*found.values(), *[0] * (size - len(found))]
    assert len(counts) == size and stats.chisquare(counts).pvalue > 1e-3


def test_without_a_term_every_digit_is_as_likely(lexlet: FastTokenizer) -> None:
    """Each line of the chain with every other term gives every digit once."""
    for question in asked(lexlet, "spread_arithmetic", n=5):
        lines, ask = parts(lexlet, question)
        changing = 0
        for place, line in enumerate(lines):
            others = [[*lines[:place], f"{line[:-1]}{digit}", *lines[place + 1 :]] for digit in range(10)]
            answers = {total(each, ask)[0] for each in others}
            assert len(answers) in (1, 10)
            changing += len(answers) == 10
        assert changing == 3


def test_naming_all_of_a_kind_has_the_stated_f1_and_a_wrong_tree_none(lexlet: FastTokenizer) -> None:
    task = lexbench.task("graph_walk")
    for question in asked(lexlet, "graph_walk", n=5):
        lines, _ = parts(lexlet, question)
        tails = [line.split()[0] for line in lines]
        heads = sorted({line.split()[-1] for line in lines})
        sample = task.score(question, said(" " + ", ".join(tails)))
        assert sample.scores == {"accuracy": 0.0, "f1": pytest.approx(2 / (1 + 4))}
        own = [parents(lines, f"directly to {head}?") for head in heads]
        scores = [task.score(question, said(" " + " and ".join(pair))).scores["accuracy"] for pair in own]
        assert (sum(scores), question.chance) == (1.0, 0.25)


def test_an_order_is_scored_by_pairs(lexlet: FastTokenizer) -> None:
    task = lexbench.task("ordering")
    [question] = asked(lexlet, "ordering", n=1)
    right = question.facts["expected"]
    pairs = {}
    for names in itertools.permutations(right):
        scores = task.score(question, said(f" {', '.join(names)}.")).scores
        pairs[names] = scores["pairs"]
        assert scores["accuracy"] == (names == tuple(right))
    assert sum(pairs.values()) / 6 == pytest.approx(0.5) and pairs[tuple(right)] == 1.0
    assert task.score(question, said(f" {right[0]}, {right[1]}")).scores == {"accuracy": 0.0, "pairs": 0.0}


@pytest.mark.everyday("nth_needle", "graph_walk")
@pytest.mark.parametrize("name", CHOICES)
def test_a_choice_is_among_answers_of_equal_size(lexlet: FastTokenizer, name: str) -> None:
    small: dict[str, dict[str, Any]] = {
        "many_labels": {"labels": 4},
        "nth_needle": {"alike": 2},
        "conflicting_needles": {"alike": 2},
        "graph_walk": {"width": 1},
        "graph_walk_bfs": {"width": 1},
    }
    task = lexbench.task(name, choose=True, **small.get(name, {}))
    for question in task.questions(lexlet, 420, 8, 0):
        assert isinstance(question, Choose)
        names = [lexlet.decode(option).strip() for option in question.options]
        lines, ask = parts(lexlet, question)
        assert [names[question.expected]] == question.facts["expected"] == READERS[name](lines, ask)
        assert len({len(option) for option in question.options}) == 1
        known = {"nth_needle": 1 / 2, "conflicting_needles": 1 / 2, "counting": pytest.approx(0.44)}
        assert question.chance == known.get(name, 1 / len(names))
        best = ChooseAnswer(nll=-np.eye(len(names))[question.expected])
        assert task.score(question, best).scores == {"accuracy": 1.0}


@pytest.mark.parametrize(
    ("name", "parameters", "message"),
    [
        ("nth_needle", {"which": "any"}, "nth_needle's which must be one of nth, first, last, got any"),
        ("nth_needle", {"alike": 9}, "nth_needle has 48 words and 8 ordinals, got alike=9 and people=4: lower them"),
        ("graph_walk", {"ask": "all"}, "graph_walk's ask must be one of parents, bfs, got all"),
        ("graph_walk", {"trees": 40}, "graph_walk has 48 words, 40 trees need 120: lower trees, width or steps"),
        (
            "graph_walk",
            {"choose": True},
            "graph_walk names a set of 2, no choice: set task.choose=false or task.width=1",
        ),
        ("counting", {"most": 10}, "counting's most must be at most 9, a digit, got 10"),
        ("counting", {"haystack": "x"}, "counting's haystack must be one of noise, text, got x"),
        ("ordering", {"others": 60}, "ordering has 48 names, needs 63: lower others, or"),
        ("spread_arithmetic", {"steps": 99}, "spread_arithmetic has 48 words, got steps=99 and 2 chains: lower steps,"),
        (
            "spread_arithmetic",
            {"steps": 0, "others": 10},
            "spread_arithmetic has 10 digits, got 11 chains with steps=0: lower others or questions_per_text",
        ),
        ("many_labels", {"labels": 27}, "many_labels has 26 labels, "),
        ("many_labels", {"choose": True, "room": 4}, "many_labels writes nothing with choose, got room=4: leave it"),
    ],
)
def test_wrong_parameters_are_one_line(name: str, parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        lexbench.task(name, **parameters)


def test_written_questions_state_a_chance(lexlet: FastTokenizer) -> None:
    chances = {name: asked(lexlet, name, n=1)[0].chance for name in TASKS}
    assert chances == {
        **dict.fromkeys(("nth_needle", "conflicting_needles", "graph_walk", "graph_walk_bfs"), 0.25),
        **{
            "counting": pytest.approx(0.44),
            "ordering": pytest.approx(1 / 6),
            "spread_arithmetic": 0.1,
            "many_labels": pytest.approx(1 / 6),
        },
    }
    assert all(isinstance(asked(lexlet, name, n=1)[0], Generate) for name in TASKS)


# how right answers may be written

FORMS = [
    ("nth_needle", "{0} in the second line.", 1),
    ("nth_needle", "{0}.\nThe", 1),
    ("nth_needle", "{0}, {other}", 0),
    ("conflicting_needles", "{0}\n\nQuestion", 1),
    ("graph_walk", "{0} and {1} in the text.", 1),
    ("graph_walk", "1. {1} 2. {0}", 1),
    ("graph_walk", "{0}, {1}, {other}", 0),
    ("ordering", "{0}, then {1}, then {2}.", 1),
    ("ordering", "{0} -> {1} -> {2}", 1),
    ("ordering", "1. {0} 2. {1} 3. {2}", 1),
    ("ordering", "{1} -> {0} -> {2}", 0),
    ("counting", "{word}.", 1),
    ("counting", "{word} times", 1),
    ("counting", "{wrong} times", 0),
    ("counting", "{0} times", 1),
]
NUMBERS = ("one", "two", "three", "four", "five")


@pytest.mark.parametrize(("name", "form", "accuracy"), FORMS)
def test_a_right_answer_may_be_followed_by_other_words(
    lexlet: FastTokenizer, name: str, form: str, accuracy: int
) -> None:
    parameters: dict[str, Any] = {"width": 2} if name == "graph_walk" else {}
    task = lexbench.task(name, **parameters)
    for question in task.questions(lexlet, 420, 8, 0):
        assert isinstance(question, Generate)
        expected = question.facts["expected"]
        other = next(word for word in PLAIN_NOUNS if word not in expected)
        names = {"other": other}
        if name == "counting":
            names = {"word": NUMBERS[int(expected[0]) - 1], "wrong": NUMBERS[int(expected[0]) - 2]}
        assert task.score(question, said(" " + form.format(*expected, **names))).scores["accuracy"] == accuracy


@pytest.mark.parametrize(("alike", "people"), [(2, 2), (4, 2), (3, 3), (4, 4), (6, 2)])
@pytest.mark.parametrize("which", ["nth", "first", "last"])
def test_the_chance_of_alike_needles_is_that_of_the_better_guess(alike: int, people: int, which: str) -> None:
    every = list(itertools.combinations(range(alike * people), alike))  # places of the asked person's lines
    asked_for = {"nth": range(alike), "first": [0], "last": [alike - 1]}[which]
    by_place = [max(Counter(own[n] for own in every).values()) / len(every) for n in asked_for]
    task = lexbench.task("nth_needle", which=which, alike=alike, people=people)
    assert isinstance(task, Spread)
    puzzle = task.puzzle(np.random.default_rng(0), lambda values, count: list(values[:count]))
    assert puzzle.chance == pytest.approx(max(1 / alike, sum(by_place) / len(by_place)))


@pytest.mark.parametrize(
    ("name", "parameters", "pool", "items"),
    [
        ("nth_needle", {}, PLAIN_NOUNS, 1),
        ("many_labels", {}, tuple(string.ascii_uppercase), 1),
        ("associative", {}, FIRST_NAMES, 1),
        ("graph_walk", {}, PLAIN_NOUNS, 2),
        ("graph_walk", {"width": 1}, PLAIN_NOUNS, 1),
        ("graph_walk_bfs", {}, PLAIN_NOUNS, 2),
    ],
)
def test_a_written_guess_in_a_control_is_among_all_that_does_not_occur(
    lexlet: FastTokenizer, name: str, parameters: dict[str, Any], pool: Sequence[str], items: int
) -> None:
    for question in asked(lexlet, name, n=4, needle=False, **parameters):
        text = set(re.findall(r"\w+", lexlet.decode(question.prompt)))
        unseen = [word for word in pool if word not in text]
        assert set(question.facts["expected"]) <= set(unseen)
        assert question.chance == pytest.approx(1 / len(list(itertools.combinations(unseen, items))))
