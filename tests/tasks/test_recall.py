"""Associative recall: an independent reader is always right; guesses without keys score as documented."""

import itertools
import re
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from scipy import stats

import lexbench
from lexbench import ClassifyTokens, ClassifyTokensAnswer, Refused, Task
from lexbench.checkpoints.tokenizer import FastTokenizer
from tests.answerers import perfect

LARGEST: dict[str, Any] = {"pairs": 2, "key": 13, "power": 16.0}


def questions_of(task: Task, tokenizer: FastTokenizer, length: int, n: int, seed: int = 0) -> list[ClassifyTokens]:
    return [question for question in task.questions(tokenizer, length, n, seed) if isinstance(question, ClassifyTokens)]


def parsed(
    tokenizer: FastTokenizer, question: ClassifyTokens
) -> tuple[list[tuple[str, str]], list[tuple[int, str, str]]]:
    """Pairs (key, value), and queries (token of the value, key, value), by the text alone."""
    found = list(re.finditer("([a-z]+)([0-9])", tokenizer.decode(question.tokens)))
    pairs, queries = found[: len(found) // 2], found[len(found) // 2 :]
    assert pairs[-1].end() == len("".join(match[0] for match in pairs))  # nothing stands between them
    return [(m[1], m[2]) for m in pairs], [(m.end(), m[1], m[2]) for m in queries]  # BOS is token 0, character i i + 1


@pytest.mark.everyday("160-parameters0", "161-parameters2", "162-parameters1")
@pytest.mark.parametrize(
    "parameters", [{}, {"key": 3}, {"pairs": 20}, {"pairs": None, "key": 2}, {"power": 0.01}, LARGEST]
)
@pytest.mark.parametrize("length", [160, 161, 162, 480])
def test_an_independent_reader_is_always_right(
    tokenizer: FastTokenizer, parameters: dict[str, Any], length: int
) -> None:
    task = lexbench.task("recall", **parameters)
    for seed in (0, 1):
        for question in questions_of(task, tokenizer, length, 8, seed):
            pairs, queries = parsed(tokenizer, question)
            known = dict(pairs)
            assert len(known) == len(pairs) == question.facts["pairs"]
            assert {len(key) for key in known} == {parameters.get("key", 1)}
            assert sorted(key for _, key, _ in queries) == sorted(known)
            assert [known[key] for _, key, _ in queries] == [value for _, _, value in queries]
            assert [place for place, _, _ in queries] == list(question.places)
            assert question.length == len(question.tokens) == length
            noise = re.sub(r"[a-z]+[0-9]", "", tokenizer.decode(question.tokens))
            assert re.fullmatch("[A-Z]*", noise)
            right = np.array([[str(known[key]) for _, key, _ in queries]]).T
            options = np.array([tokenizer.decode([option]) for option in question.options])
            assert sorted(options) == sorted(set(known.values()))
            answer = ClassifyTokensAnswer(nll=(right != options).astype(np.float32))
            assert task.score(question, answer).scores == {"accuracy": 1.0, "exact": 1.0}
            assert task.score(question, perfect(question, tokenizer)).scores == {"accuracy": 1.0, "exact": 1.0}


@pytest.mark.parametrize(("pairs", "share"), [(2, 1 / 2), (8, 1 / 8), (10, 1 / 10), (20, 1 / 10)])
def test_naming_one_value_always_gets_its_share_and_less_than_chance(
    tokenizer: FastTokenizer, pairs: int, share: float
) -> None:
    task = lexbench.task("recall", pairs=pairs)
    for question in questions_of(task, tokenizer, 160, 8):
        assert question.chance > share
        for option in range(len(question.options)):
            nll = np.ones((len(question.places), len(question.options)), np.float32)
            nll[:, option] = 0
            sample = task.score(question, ClassifyTokensAnswer(nll=nll))
            assert sample.scores["accuracy"] == pytest.approx(share)
            assert sample.chance == question.chance


def struck(question: ClassifyTokens) -> list[list[float]]:
    """[places, options] 0 for the commonest of the values that are left, ties shared."""
    right = [int(token) for token in question.tokens[question.places]]
    left = [[right[number:].count(option) for option in question.options.tolist()] for number in range(len(right))]
    return [[float(count < max(row)) for count in row] for row in left]


def listed(question: ClassifyTokens, last: bool) -> list[list[float]]:
    """[places, options] 0 for the value of the first pair of the list that is left, or of the last one."""
    right = [int(token) for token in question.tokens[question.places]]
    known = [int(token) for token in question.tokens if token in question.options][: len(right)]
    found = []
    for number in range(len(right)):
        left = [value for value in known if value not in right[:number]]
        found.append([float(option != left[-1 if last else 0]) for option in question.options.tolist()])
    return found


@pytest.mark.everyday("parameters2")
@pytest.mark.parametrize(
    "parameters", [{}, {"pairs": 2}, {"pairs": 20}, {"power": 0.01}, {"power": 4.0}, {"power": 0.01, "pairs": 10}]
)
def test_guesses_that_read_no_key_get_at_most_chance_and_the_best_of_them_gets_it(
    tokenizer: FastTokenizer, parameters: dict[str, Any]
) -> None:
    """Strike out the values seen, and name the commonest, the first or the last of those left; 400 texts."""
    task = lexbench.task("recall", **parameters)
    questions = questions_of(task, tokenizer, 100, 400)
    guesses = [struck, *((lambda question, last=last: listed(question, last)) for last in (False, True))]
    got = []
    for guess in guesses if parameters.get("pairs", 8) <= 10 else guesses[:1]:
        scores = [
            task.score(each, ClassifyTokensAnswer(nll=np.array(guess(each), np.float32))).scores for each in questions
        ]
        each = [score["accuracy"] for score in scores]
        got.append((np.mean(each), np.std(each) / 20))
    [chance] = {question.chance for question in questions}
    best, error = max(got)
    assert abs(best - chance) < 4 * error + 0.012  # 1,000 simulated texts behind the chance, too


def test_striking_out_values_gets_what_the_docstring_says(tokenizer: FastTokenizer) -> None:
    """Cross out the values of earlier queries and name any other value: 1 / (values left) each time."""
    task = lexbench.task("recall")
    expected = sum(Fraction(1, left) for left in range(1, 9)) / 8
    assert f"{float(expected):.2f} for 8 pairs" in str(type(task).__doc__)
    for question in questions_of(task, tokenizer, 160, 8):
        right = question.tokens[question.places]
        gone = [[option in right[:number] for option in question.options] for number in range(len(right))]
        sample = task.score(question, ClassifyTokensAnswer(nll=np.array(gone, np.float32)))
        assert sample.scores["accuracy"] == pytest.approx(float(expected)) == sample.chance


def test_queries_come_in_any_order_with_any_values(tokenizer: FastTokenizer) -> None:
    """All six orders of three pairs equally often, and all values, for each pair and each query."""
    task = lexbench.task("recall", pairs=3)
    orders, values = [], []
    for question in questions_of(task, tokenizer, 100, 600):
        pairs, queries = parsed(tokenizer, question)
        keys = [key for key, _ in pairs]
        orders.append(tuple(keys.index(key) for _, key, _ in queries))
        values.append([int(value) for _, value in pairs])
    counts = [orders.count(order) for order in itertools.permutations(range(3))]
    assert sum(counts) == 600 and stats.chisquare(counts).pvalue > 0.001
    for column in np.array(values).T:
        assert stats.chisquare(np.bincount(column, minlength=10)).pvalue > 0.001


@pytest.mark.slow
@pytest.mark.parametrize("power", [1.0, 0.5, 0.01, 2.0])
def test_places_have_the_weights_of_the_power_law(tokenizer: FastTokenizer, power: float) -> None:
    """Two queries drawn without replacement, with weights j^(power - 1): slot j is taken with probability
    p_j (1 + sum of p_i / (1 - p_i) over the others)."""
    slots, n = 20, 1500
    length = 1 + 4 + 2 * slots
    taken = np.zeros(slots)
    for question in questions_of(lexbench.task("recall", pairs=2, power=power), tokenizer, length, n):
        taken[(question.places - 6) // 2] += 1
    p = np.arange(1, slots + 1) ** (power - 1)
    p /= p.sum()
    odds = p / (1 - p)
    expected = n * p * (1 + odds.sum() - odds)
    # Each sample takes two different slots, so that counts vary a little less than a multinomial's.
    assert stats.chisquare(taken, expected).pvalue > 0.001


def test_distance_grows_with_length_and_the_number_of_pairs_does_not(tokenizer: FastTokenizer) -> None:
    for length in (160, 640, 2560):
        questions = questions_of(lexbench.task("recall"), tokenizer, length, 100)
        assert {len(question.places) for question in questions} == {8}
        distances = [question.places.mean() / length for question in questions]
        assert np.mean(distances) == pytest.approx((1 + 17 / length) / 2, abs=0.035)  # from the pairs' end to the end


def test_pairs_can_grow_with_the_length(tokenizer: FastTokenizer) -> None:
    """A quarter of the text are pairs of four tokens, in tens."""
    task = lexbench.task("recall", pairs=None, key=3)
    expected = {161: 10, 320: 10, 321: 20, 1024: 60, 4097: 250}
    assert {length: questions_of(task, tokenizer, length, 1)[0].facts["pairs"] for length in expected} == expected


@pytest.mark.parametrize(
    ("parameters", "least"),
    [({}, 1 + 2 * 8 * 2), ({"pairs": 3, "key": 4}, 1 + 2 * 3 * 5), ({"pairs": None, "key": 2}, 1 + 4 * 10 * 3)],
)
def test_the_least_length_is_said_and_is_the_least(
    tokenizer: FastTokenizer, parameters: dict[str, Any], least: int
) -> None:
    task = lexbench.task("recall", **parameters)
    assert {question.length for question in questions_of(task, tokenizer, least, 4)} == {least}
    with pytest.raises(Refused, match=f"recall needs at least {least} tokens, asked for {least - 1}: raise length"):
        task.questions(tokenizer, least - 1, 4, 0)


def test_more_pairs_than_keys_are_refused(tokenizer: FastTokenizer) -> None:
    task = lexbench.task("recall", pairs=None)
    assert questions_of(task, tokenizer, 1 + 8 * 20, 1)
    with pytest.raises(Refused, match="recall has 26 keys, 241 tokens need 30: raise key"):
        task.questions(tokenizer, 1 + 8 * 30, 1, 0)


@pytest.mark.parametrize("change", [("A", "a"), ("7", "77"), ("z", "")])
def test_symbols_without_a_token_of_their_own_are_refused(
    tokenizer: FastTokenizer, monkeypatch: pytest.MonkeyPatch, change: tuple[str, str]
) -> None:
    encode = tokenizer.encode
    monkeypatch.setattr(tokenizer, "encode", lambda text: encode(text.replace(*change)))
    with pytest.raises(Refused, match="recall needs a token of its own for each of a b c"):
        lexbench.task("recall").questions(tokenizer, 100, 1, 0)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"pairs": 1}, "pairs must be 2 to 10 or a multiple of 10, got 1"),
        ({"pairs": 12}, "pairs must be 2 to 10 or a multiple of 10, got 12"),
        ({"pairs": 30}, "recall has 26 keys, got pairs=30: raise key"),
        ({"key": 0}, "key must be from 1 to 13, got 0"),
        ({"key": 14}, "key must be from 1 to 13, got 14: symbols of a key"),
        ({"power": 0.0}, "power must be above 0 and at most 16, got 0"),
        ({"power": 16.5}, "power must be above 0 and at most 16, got 16.5"),
        ({"power": float("nan")}, "power must be above 0 and at most 16, got nan"),
    ],
)
def test_bad_parameters_are_errors(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        lexbench.task("recall", **parameters)
