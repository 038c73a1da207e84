"""Arithmetic: right by an independent reader, equal at every depth, and only all numbers together give the result."""

import itertools
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from fractions import Fraction
from math import log2
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

import lexbench
from lexbench import Choose, ClassifyTokens, ClassifyTokensAnswer, Frame, Generate, Refused, Sample, Task
from lexbench.checkpoints.tokenizer import FastTokenizer, load_tokenizer
from lexbench.core import registry
from lexbench.core.task import Tokens
from tests.answerers import perfect, written

FORMS = list(itertools.product(["write", "choose", "mark"], [True, False], [True, False]))
BARE: dict[str, Any] = {"shots": 0, "explained": False}
Sums = list[tuple[tuple[int, ...], int]]


def questions_of(
    task: Task, tokenizer: FastTokenizer, length: int, n: int, seed: int = 0
) -> list[Generate | Choose | ClassifyTokens]:
    return [q for q in task.questions(tokenizer, length, n, seed) if isinstance(q, Generate | Choose | ClassifyTokens)]


def lines(tokenizer: FastTokenizer, question: Generate | Choose | ClassifyTokens) -> list[str]:
    """Lines of the text before the result, empty ones included, with single blanks."""
    tokens = question.tokens[:-1] if isinstance(question, ClassifyTokens) else question.prompt
    return [" ".join(line.split()) for line in tokenizer.decode(tokens).split("\n")]


def numbers(line: str) -> tuple[int, ...]:
    """First number and terms of a line, without shown results."""
    return tuple(map(int, re.findall(r"[+-]?\d+", re.sub(r"=\d*", "", line))))


def read(line: str, wrap: bool, size: int = 10) -> int:
    """The result of a line by Python's own arithmetic."""
    total = int(eval(re.sub(r"=\d*", "", line)))
    return total % size if wrap else total


def running(line: str, wrap: bool, size: int = 10) -> list[int]:
    """The result after every number of a line."""
    totals = itertools.accumulate(numbers(line))
    return [total % size if wrap else total for total in totals]


def length_for(task: Task, tokenizer: FastTokenizer, terms: int) -> int:
    """The least length with so many terms."""
    for length in range(4, 2000):
        try:
            [question] = task.questions(tokenizer, length, 1, 0)
        except Refused:
            continue
        if question.facts["terms"] == terms:
            return length
    raise AssertionError(f"no length has {terms} terms")


@pytest.mark.everyday("199-write-True-True", "199-choose-False-False", "256-mark-True-False")
@pytest.mark.parametrize(("ask", "wrap", "shown"), FORMS)
@pytest.mark.parametrize("length", [199, 256, 480])
def test_an_independent_reader_is_always_right(
    tokenizer: FastTokenizer, ask: str, wrap: bool, shown: bool, length: int
) -> None:
    task = lexbench.task("arithmetic", ask=ask, wrap=wrap, shown=shown)
    for seed in (0, 1):
        for question in questions_of(task, tokenizer, length, 8, seed):
            *_, line = lines(tokenizer, question)
            results = running(line, wrap)
            assert results[-1] == read(line, wrap) == int(question.facts["expected"])
            assert min(results) >= 0 and max(results) <= 9
            assert len(results) == question.facts["terms"] + 1
            assert question.facts["needed"] == 2 or not shown
            assert question.length == length
            assert set(task.score(question, perfect(question, tokenizer)).scores.values()) == {1.0}
            if isinstance(question, Choose):
                assert tokenizer.decode(question.options[question.expected]) == str(results[-1])
            if isinstance(question, Generate):
                assert task.score(question, written(f"{results[-1]}\n", tokenizer)).scores["accuracy"] == 1
            if isinstance(question, ClassifyTokens):
                marked = [tokenizer.decode([token]) for token in question.tokens[question.places]]
                assert marked == [str(result) for result in (results[1:] if shown else results[-1:])]
                assert [tokenizer.decode([option]) for option in question.options] == list("0123456789")


@pytest.mark.parametrize("wrap", [True, False])
@pytest.mark.parametrize("shown", [True, False])
def test_rule_and_examples_are_the_same_at_every_length(tokenizer: FastTokenizer, wrap: bool, shown: bool) -> None:
    task = lexbench.task("arithmetic", wrap=wrap, shown=shown, shots=3, shot_terms=5)
    for length in (300, 301, 302, 900):
        for question in questions_of(task, tokenizer, length, 4):
            rule, *examples, _ = [line for line in lines(tokenizer, question) if line]
            circle = "Numbers go round from 0 to 9: 9 +1 =0 and 0 -1 =9."
            assert rule == (circle if wrap else "Add and subtract from left to right.")
            assert len(examples) == 3
            for example in examples:
                assert len(numbers(example)) == 6
                shown_results = list(map(int, re.findall(r"=(\d)", example)))
                assert shown_results == (running(example, wrap)[1:] if shown else running(example, wrap)[-1:])


def test_the_form_is_that_of_the_docstring(tokenizer: FastTokenizer) -> None:
    sums = r"\d( [+-]\d){2} =\d\n\d( [+-]\d)+ ="
    circle = r"Numbers go round from 0 to 9: 9 \+1 =0 and 0 -1 =9\."
    for wrap, rule in ((False, r"Add and subtract from left to right\."), (True, circle)):
        usual = lexbench.task("arithmetic", shots=1, shot_terms=2)
        task = lexbench.task("arithmetic", shots=1, shot_terms=2, wrap=True) if wrap else usual
        [question] = questions_of(task, tokenizer, 300, 1)
        text = tokenizer.decode(question.prompt) if isinstance(question, Generate) else ""
        assert re.fullmatch(rf"\n*{rule}\n{sums}", text)


@pytest.mark.parametrize("shown", [True, False])
def test_as_many_terms_as_fit_and_blank_lines_in_front(tokenizer: FastTokenizer, shown: bool) -> None:
    """From length to length blank lines increase by one token, until another term fits."""
    task = lexbench.task("arithmetic", ask="mark", shown=shown, **BARE)
    each = len(tokenizer.encode(" +3 =8" if shown else " +3").ids)
    bare = 1 + len(tokenizer.encode("5" if shown else "5 =8").ids)  # BOS
    for length in range(bare + each, bare + 5 * each):
        for question in questions_of(task, tokenizer, length, 3):
            terms, blank = divmod(length - bare, each)
            assert question.facts["terms"] == terms
            *empty, line = lines(tokenizer, question)
            assert empty == [""] * blank
            assert len(numbers(line)) == terms + 1


@pytest.fixture
def every_sum(tokenizer: FastTokenizer, monkeypatch: pytest.MonkeyPatch) -> Callable[[int, int, bool], Sums]:
    """All possible sums of so many results and terms, equally likely: (numbers, result)."""

    class Digits:
        """Replaces random numbers by the digits of the sample's index."""

        def __init__(self, index: int) -> None:
            self.index = index

        def integers(self, high: int, size: int) -> Tokens:
            return np.asarray(np.unravel_index(self.index, (high,) * size), dtype=np.int64)

    def sums(size: int, terms: int, wrap: bool) -> Sums:
        task = lexbench.task("arithmetic", numbers=size, wrap=wrap, ask="choose", **BARE)
        length = length_for(task, tokenizer, terms)
        monkeypatch.setattr(type(task), "rng", lambda self, length, seed, index: Digits(index))
        texts = [lines(tokenizer, q)[-1] for q in questions_of(task, tokenizer, length, size ** (terms + 1))]
        assert len(set(texts)) == len(texts) == size ** (terms + 1)
        return [(numbers(text), read(text, wrap, size)) for text in texts]

    return sums


@pytest.mark.parametrize(("size", "terms"), [(2, 6), (3, 4), (4, 4), (5, 3), (10, 2)])
def test_on_the_circle_all_numbers_but_any_one_tell_nothing(
    every_sum: Callable[[int, int, bool], Sums], size: int, terms: int
) -> None:
    """Exhaustively: for any other numbers, the missing one gives every result once.

    So another number at any place gives another result, and no part of the numbers tells anything of it.
    """
    sums = every_sum(size, terms, True)
    for place in range(terms + 1):
        left: dict[tuple[int, ...], list[int]] = defaultdict(list)
        for drawn, result in sums:
            left[drawn[:place] + drawn[place + 1 :]].append(result)
        assert len(left) == size**terms
        assert all(sorted(results) == list(range(size)) for results in left.values())


@pytest.mark.everyday("2-6-True", "3-4-False")
@pytest.mark.parametrize("wrap", [True, False])
@pytest.mark.parametrize(("size", "terms"), [(2, 6), (3, 4), (4, 4), (10, 2)])
def test_every_depth_has_the_same_distribution(
    every_sum: Callable[[int, int, bool], Sums], size: int, terms: int, wrap: bool
) -> None:
    """Exhaustively: results are uniform at every depth, and (result, term, next result) is the same at each."""
    triples: list[Counter[tuple[int, int, int]]] = [Counter() for _ in range(terms)]
    for drawn, _ in every_sum(size, terms, wrap):
        totals = [total % size if wrap else total for total in itertools.accumulate(drawn)]
        assert min(totals) >= 0 and max(totals) < size
        for depth in range(terms):
            triples[depth][totals[depth], drawn[depth + 1], totals[depth + 1]] += 1
    assert all(triple == triples[0] for triple in triples)
    assert Counter({(a, c): n for (a, _, c), n in triples[0].items()}) == Counter(
        dict.fromkeys(itertools.product(range(size), repeat=2), size ** (terms - 1))
    )


@pytest.mark.parametrize(("size", "terms"), [(3, 4), (4, 4), (10, 2)])
def test_on_the_line_a_prefix_tells_nothing_and_each_number_counts(
    every_sum: Callable[[int, int, bool], Sums], size: int, terms: int
) -> None:
    sums = every_sum(size, terms, False)
    after: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for drawn, result in sums:
        after[drawn[:-1]].append(result)
    assert all(sorted(results) == list(range(size)) for results in after.values())
    for place in range(terms + 1):
        others: dict[tuple[int, ...], list[int]] = defaultdict(list)
        for drawn, result in sums:
            others[drawn[:place] + drawn[place + 1 :]].append(result)
        assert all(len(set(results)) == len(results) for results in others.values())


def told(size: int, terms: int) -> tuple[float, float]:
    """(bits, accuracy) that the last terms alone give on the line: results are independent and uniform, and a suffix
    leaves as many of them, all alike, as its span leaves room for. The span's distribution by its lowest and highest.
    """
    seen = Counter({(result, result): 1 for result in range(size)})
    for _ in range(terms):
        following: Counter[tuple[int, int]] = Counter()
        for (low, high), ways in seen.items():
            for result in range(size):
                following[min(low, result), max(high, result)] += ways
        seen = following
    total = size ** (terms + 1)
    left = [(size - high + low, Fraction(ways, total)) for (low, high), ways in seen.items()]
    accuracy = sum((share / room for room, share in left), Fraction(0))
    return log2(size) - sum(float(share) * log2(room) for room, share in left), float(accuracy)


@pytest.mark.everyday("3-4")
@pytest.mark.parametrize(("size", "terms"), [(3, 4), (4, 5), (10, 2)])
def test_what_a_suffix_tells_on_the_line_is_counted_right(
    every_sum: Callable[[int, int, bool], Sums], size: int, terms: int
) -> None:
    """All possible sums, grouped by their last terms, against the dynamic program."""
    sums = every_sum(size, terms, False)
    for last in range(1, terms + 1):
        groups: dict[tuple[int, ...], Counter[int]] = defaultdict(Counter)
        for drawn, result in sums:
            groups[drawn[-last:]][result] += 1
        shares = [ways / group.total() for group in groups.values() for ways in group.values()]
        weights = [ways / len(sums) for group in groups.values() for ways in group.values()]
        bits = log2(size) + sum(weight * log2(share) for weight, share in zip(weights, shares, strict=True))
        best = sum(max(group.values()) for group in groups.values()) / len(sums)
        assert (bits, best) == pytest.approx(told(size, last), abs=1e-12)


def test_the_docstring_says_what_a_suffix_tells_on_the_line() -> None:
    text = str(type(lexbench.task("arithmetic")).__doc__)
    rows = {
        name: re.findall(r"[\d.]+", row) for name, row in re.findall(r"^ +(terms|bits|accuracy)  +(.*)$", text, re.M)
    }
    terms = [int(number) for number in rows["terms"]]
    assert terms == [1, 2, 4, 8, 16, 32, 64]
    assert rows["bits"][: len(terms)] == [f"{told(10, each)[0]:.3f}" for each in terms]
    assert rows["accuracy"] == [f"{told(10, each)[1]:.3f}" for each in terms]


@pytest.mark.slow
@pytest.mark.parametrize("wrap", [True, False])
@pytest.mark.parametrize("length", [200, 440])
def test_results_are_uniform_at_every_depth(tokenizer: FastTokenizer, wrap: bool, length: int) -> None:
    """Chi-square of 600 sums at each depth; the least p of all depths, times their number, above 0.001."""
    task = lexbench.task("arithmetic", wrap=wrap, **BARE)
    for seed in (0, 1):
        texts = [lines(tokenizer, question)[-1] for question in questions_of(task, tokenizer, length, 600, seed)]
        totals = np.array([running(text, wrap) for text in texts])
        counts = [np.bincount(column, minlength=10) for column in totals.T]
        assert len(counts) > 40
        assert min(stats.chisquare(count).pvalue for count in counts) * len(counts) > 0.001
        last = np.array([numbers(text)[-1] for text in texts])
        if wrap:
            assert stats.chi2_contingency(stats.contingency.crosstab(last, totals[:, -1]).count).pvalue > 0.001
            terms = np.array([numbers(text)[1:] for text in texts])
            for column in terms.T:
                assert sorted(set(column)) == list(range(-4, 6))
                assert stats.chisquare(np.bincount(column + 4)).pvalue * terms.shape[1] > 0.001


@pytest.mark.parametrize("wrap", [True, False])
def test_needed_counts_the_numbers_from_the_end_that_leave_one_result(tokenizer: FastTokenizer, wrap: bool) -> None:
    for terms in (3, 40):
        task = lexbench.task("arithmetic", wrap=wrap, numbers=5, **BARE)
        for question in questions_of(task, tokenizer, length_for(task, tokenizer, terms), 16):
            drawn = numbers(lines(tokenizer, question)[-1])
            for last in range(1, terms + 2):
                starts = [0] if last == terms + 1 else range(5)
                walks = [list(itertools.accumulate(drawn[-last:], initial=start)) for start in starts]
                left = {walk[-1] % 5 for walk in walks if wrap or last > terms or set(walk) <= set(range(5))}
                assert (len(left) == 1) == (last >= question.facts["needed"])


def score(question: Generate | Choose | ClassifyTokens, tokenizer: FastTokenizer, text: str) -> tuple[float, float]:
    """(strict, first)"""
    sample: Sample = lexbench.task("arithmetic").score(question, written(text, tokenizer))
    return sample.scores["accuracy"], sample.scores["first"]


def test_only_the_number_written_first_counts(tokenizer: FastTokenizer) -> None:
    questions = questions_of(lexbench.task("arithmetic"), tokenizer, 300, 40)
    question = next(question for question in questions if question.facts["expected"] == "7")
    expected = {
        "7": (1, 1),
        " 7": (1, 1),
        "7\n5 +3 =8": (1, 1),
        "7.": (1, 1),
        "7\n6 -2 =4": (1, 1),
        "7.\n6 -2 =4\n": (1, 1),
        "**7**": (1, 1),
        "= 7": (1, 1),
        " =7\n": (1, 1),
        "7 is the result": (1, 1),
        "7 -2 =5": (0, 1),
        "7 +1 =8": (0, 1),
        "7-2": (0, 1),
        "7 - 2": (0, 1),
        "7 + 2": (0, 1),
        "7, 3, 4": (0, 1),
        "7, 12": (0, 1),
        "7/2": (0, 1),
        "7*2": (0, 1),
        "7\n3\n4": (0, 1),
        "+7": (0, 1),
        "= -7": (0, 0),
        "The result is 7.": (0, 1),
        "": (0, 0),
        " ": (0, 0),
        "I do not know": (0, 0),
        "17": (0, 0),
        "77": (0, 0),
        "-7": (0, 0),
        "7.5": (0, 1),
        "6 7": (0, 0),
        "0 1 2 3 4 5 6 7 8 9": (0, 0),
    }
    assert {text: score(question, tokenizer, text) for text in expected} == expected
    for each in questions:
        assert score(each, tokenizer, tokenizer.decode(each.prompt) if isinstance(each, Generate) else "")[0] == 0


def test_where_results_are_shown_the_sum_may_go_on(tokenizer: FastTokenizer) -> None:
    task = lexbench.task("arithmetic", shown=True)
    question = next(q for q in questions_of(task, tokenizer, 300, 40) if q.facts["expected"] == "7")
    right = {"7": 1, "7 +1 =8 -2 =6": 1, "7 -2 =5\n3 +1 =4": 1, "7 -": 1, "7, 3": 0, "7/2": 0, "-7": 0, "6 +1 =7": 0}
    found = {text: task.score(question, written(text, tokenizer)).scores["accuracy"] for text in right}
    assert found == right


def test_all_ways_of_asking_ask_the_same_sums(tokenizer: FastTokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a room of one token, like an option or a mark, the same numbers; a larger room removes the last terms."""
    usual = tokenizer.frame(False)
    monkeypatch.setattr(tokenizer, "frame", lambda chat: Frame(usual.before, np.asarray([9])) if chat else usual)
    ways: list[dict[str, Any]] = [{"room": 1}, {"ask": "choose"}, {"ask": "mark"}]
    texts = [
        [lines(tokenizer, question) for question in questions_of(lexbench.task("arithmetic", **way), tokenizer, 300, 6)]
        for way in ways
    ]
    assert texts[0] == texts[1] == texts[2]
    assert len({str(text) for text in texts[0]}) == 6
    for way in ({}, {"room": 40}, {"chat": True}):
        for question, text in zip(
            questions_of(lexbench.task("arithmetic", **way), tokenizer, 300, 6), texts[0], strict=True
        ):
            mine, theirs = ([line for line in each if line] for each in (lines(tokenizer, question), text))
            assert mine[:-1] == theirs[:-1]
            count = len(numbers(mine[-1]))
            assert 20 < count <= len(numbers(theirs[-1]))
            assert numbers(mine[-1]) == numbers(theirs[-1])[:count]


def test_on_the_circle_chance_is_what_any_one_answer_gets(tokenizer: FastTokenizer) -> None:
    """Among 600 results, each of the ten is within four deviations of a tenth (sd 0.0122)."""
    task = lexbench.task("arithmetic", wrap=True)
    questions = questions_of(task, tokenizer, 200, 600)
    for digit in "0379":
        got = [task.score(question, written(digit, tokenizer)).scores["accuracy"] for question in questions]
        assert np.mean(got) == pytest.approx(0.1, abs=0.049)
    assert {question.chance for question in questions} == {0.1}
    four = lexbench.task("arithmetic", wrap=True, numbers=4)
    assert {q.chance for q in questions_of(four, tokenizer, 200, 4)} == {0.25}


@pytest.mark.slow
@pytest.mark.parametrize("form", [{}, {"ask": "choose"}, {"ask": "mark"}, {"ask": "mark", "shown": True}])
def test_on_the_line_chance_is_the_best_guess_from_the_last_term(
    tokenizer: FastTokenizer, form: dict[str, Any]
) -> None:
    """By the dynamic program over all sums; and 2,000 samples give it within four deviations (sd 0.0088)."""
    for size in (4, 10):
        task = lexbench.task("arithmetic", numbers=size, **form)
        for question in questions_of(task, tokenizer, 200, 4):
            assert question.chance == pytest.approx(told(size, 1)[1], rel=1e-12)
            sample = task.score(question, perfect(question, tokenizer))
            assert sample.chance == question.chance
    task = lexbench.task("arithmetic", **form)
    right = []
    for question in questions_of(task, tokenizer, 110, 2000):
        *_, line = lines(tokenizer, question)
        right.append(running(line, False)[-1] == max(0, numbers(line)[-1]))  # of m - |d| results the least
    assert np.mean(right) == pytest.approx(0.19, abs=0.035)


def test_marks_show_where_a_model_goes_wrong(tokenizer: FastTokenizer) -> None:
    task = lexbench.task("running_arithmetic")
    [question] = [q for q in questions_of(task, tokenizer, 200, 1) if isinstance(q, ClassifyTokens)]
    answer = perfect(question, tokenizer)
    assert isinstance(answer, ClassifyTokensAnswer)
    nll = answer.nll.copy()
    nll[7] = 9 - nll[7]
    sample = task.score(question, ClassifyTokensAnswer(nll=nll))
    assert sample.scores == {"accuracy": 1 - 1 / len(nll), "exact": 0.0}
    assert list(np.flatnonzero(sample.statistics["right"] < 1)) == [7]
    assert sample.statistics["nll"][7] == 9
    assert tokenizer.decode([question.tokens[int(sample.statistics["place"][7]) - 1]]).strip() == "="


@pytest.mark.parametrize("folder", ["lexlet", "conftest"])
def test_running_arithmetic_is_the_lesson_of_the_embedded_model(tokenizer: FastTokenizer, folder: str) -> None:
    """The same tokens as a text that is tokenized as a whole, in the form of `running_sums`; blank lines aside."""
    if folder == "lexlet":
        tokenizer = load_tokenizer(registry.PACKAGE_FOLDER / "lexlet")
    for question in questions_of(lexbench.task("running_arithmetic"), tokenizer, 256, 4):
        assert isinstance(question, ClassifyTokens)
        blank, line = re.fullmatch(r"(\n*)(.*)", tokenizer.decode(question.tokens)).groups()  # type: ignore[union-attr]
        assert re.fullmatch(r"\d( [+-]\d =\d)+", line)
        assert " -0" not in line
        assert list(tokenizer.encode(line).ids) == list(question.tokens[len(tokenizer.prefix) + len(blank) :])
        marked = [tokenizer.decode([token]) for token in question.tokens[question.places]]
        assert marked == re.findall(r"=(\d)", line)


def test_within_ten_there_is_one_sum_and_its_last_result_is_asked(tokenizer: FastTokenizer) -> None:
    for question in questions_of(lexbench.task("arithmetic_within_ten"), tokenizer, 120, 20):
        assert isinstance(question, ClassifyTokens) and list(question.places) == [119]
        first, *terms, last = map(int, re.findall(r"[+-]?\d", text := tokenizer.decode(question.tokens).strip("\n")))
        assert re.fullmatch(r"\d( [+-]\d)+ =\d", text) and len(terms) > 20
        sums = np.cumsum([first, *terms])
        assert sums[-1] == last and sums.min() >= 0 and sums.max() <= 9


@pytest.mark.slow
def test_the_embedded_model_can_do_the_running_form(tmp_path: Path, one_thread: None) -> None:
    """Far above 0.19, the most that the last term alone can give, inside the length that it was trained at."""
    run = lexbench.run("lexlet", task="running_arithmetic", lengths=[128, 256], n=4, results=tmp_path)
    rows = run.records()
    assert list(rows[rows.metric == "accuracy"].value > 0.8) == [True, True]


def test_other_tokenizers_can_be_asked(shared: Path) -> None:
    """A blank that the tokenizer prepends to every text does not separate a sign from its number."""
    tokenizer = load_tokenizer(shared / "stories260K-hf")
    for ask, wrap, shown in FORMS:
        task = lexbench.task("arithmetic", ask=ask, wrap=wrap, shown=shown)
        for question in questions_of(task, tokenizer, 300, 4):
            *_, line = lines(tokenizer, question)
            assert question.length == 300
            assert re.fullmatch(r"\d( [+-]\d =\d)* [+-]\d =" if shown else r"\d( [+-]\d)+ =", line)
            assert read(line, wrap) == int(question.facts["expected"])


@pytest.mark.parametrize("ask", ["write", "choose", "mark"])
def test_the_least_length_is_said_and_is_the_least(tokenizer: FastTokenizer, ask: str) -> None:
    task = lexbench.task("arithmetic", ask=ask)
    with pytest.raises(Refused, match=r"needs at least \d+ tokens, asked for 10: raise length") as refusal:
        task.questions(tokenizer, 10, 4, 0)
    least = int(re.findall(r"\d+", refusal.value.reason)[0])
    assert {(q.length, q.facts["terms"]) for q in questions_of(task, tokenizer, least, 4)} == {(least, 1)}
    with pytest.raises(Refused, match=f"needs at least {least} tokens, asked for {least - 1}"):
        task.questions(tokenizer, least - 1, 4, 0)


@pytest.mark.parametrize(
    ("parameters", "least"),
    [({"shots": 10**6}, 10**6 * (2 + 4 * 3 + 2)), ({"shot_terms": 10**12}, 2 * 3 * 10**12)],
)
def test_examples_that_do_not_fit_are_refused_at_once(
    tokenizer: FastTokenizer, parameters: dict[str, Any], least: int
) -> None:
    """By counting: an example has 4 terms of 3 tokens, its first number, `=`, result and line end."""
    with pytest.raises(Refused, match="needs at least") as refusal:
        lexbench.task("arithmetic", **parameters).questions(tokenizer, 300, 4, 0)
    said = int(re.findall(r"\d+", refusal.value.reason)[0])
    assert said == pytest.approx(least, rel=0.4)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ((r"-", "--"), "terms of equally many tokens, got 3 to 4"),
        ((r"9", "99"), "numbers of equally many tokens, got 1 to 2"),
        ((r"-", "+"), "terms with different tokens"),
        ((r"\b1\b", "7"), "numbers with different tokens"),
        ((r"(?<=\n)(\d)", r"\1\1"), "numbers of 1 token, got 2"),
    ],
)
def test_a_tokenizer_that_would_tell_is_refused(
    tokenizer: FastTokenizer, monkeypatch: pytest.MonkeyPatch, change: tuple[str, str], reason: str
) -> None:
    encode = tokenizer.encode
    monkeypatch.setattr(tokenizer, "encode", lambda text: encode(re.sub(*change, text)))
    with pytest.raises(Refused, match=reason):
        lexbench.task("running_arithmetic").questions(tokenizer, 300, 1, 0)


def test_numbers_of_several_tokens_can_be_written_and_chosen(
    tokenizer: FastTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    encode = tokenizer.encode
    monkeypatch.setattr(tokenizer, "encode", lambda text: encode(re.sub(r"(\d)", r"\1_", text)))
    for ask in ("write", "choose"):
        with pytest.raises(
            Refused, match="arithmetic needs a room of at least 2 tokens for its answer, got 1: raise room"
        ):
            lexbench.task("arithmetic", room=1).questions(tokenizer, 300, 1, 0)
        for question in questions_of(lexbench.task("arithmetic", ask=ask), tokenizer, 300, 4):
            *_, line = lines(tokenizer, question)
            assert question.length == 300
            assert read(line.replace("_", ""), True) == int(question.facts["expected"])
            if isinstance(question, Choose):
                assert [tokenizer.decode(option) for option in question.options] == [f"{digit}_" for digit in range(10)]


@pytest.mark.parametrize("ask", ["write", "choose"])
def test_the_chat_template_stands_around_the_sum(
    tokenizer: FastTokenizer, monkeypatch: pytest.MonkeyPatch, ask: str
) -> None:
    before, after = np.asarray([0, 5, 6, 7]), np.asarray([8, 9])
    task = lexbench.task("arithmetic", ask=ask, chat=True)
    with pytest.raises(ValueError, match="chat"):
        task.questions(tokenizer, 300, 1, 0)
    monkeypatch.setattr(tokenizer, "frame", lambda chat: Frame(before, after))
    for question in questions_of(task, tokenizer, 300, 4):
        assert isinstance(question, Generate | Choose)
        assert question.length == 300
        assert list(question.prompt[:4]) == list(before) and list(question.prompt[-2:]) == list(after)
        text = tokenizer.decode(question.prompt[4:-2])
        assert text.endswith(" =")
        assert read(text.split("\n")[-1], True) == int(question.facts["expected"])
    assert "chat template" in task.protocol(tokenizer)
    assert "chat template" not in lexbench.task("arithmetic").protocol(tokenizer)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"ask": "guess"}, "ask must be one of write, choose, mark, got guess"),
        ({"numbers": 1}, "numbers must be 2 to 10, got 1"),
        ({"numbers": 11}, "numbers must be 2 to 10, got 11"),
        ({"shots": -1}, "shots must be at least 0, got -1"),
        ({"shot_terms": 0}, "shot_terms must be at least 1, got 0"),
        ({"room": 0}, "room must be at least 1, got 0"),
        ({"room": 9, "ask": "choose"}, "room is for ask=write, got room=9 with ask=choose"),
        ({"chat": True, "ask": "mark"}, "chat=true"),
    ],
)
def test_bad_parameters_are_errors(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        lexbench.task("arithmetic", **parameters)


def test_the_room_is_kept_free(tokenizer: FastTokenizer) -> None:
    rooms: Sequence[int] = [
        q.max_new_tokens
        for q in questions_of(lexbench.task("arithmetic", room=9), tokenizer, 300, 2)
        if isinstance(q, Generate)
    ]
    assert rooms == [9, 9]
    assert [
        q.max_new_tokens
        for q in questions_of(lexbench.task("arithmetic"), tokenizer, 300, 2)
        if isinstance(q, Generate)
    ] == [
        5,
        5,
    ]
