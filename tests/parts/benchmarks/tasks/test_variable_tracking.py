"""Variable tracking: a plain reader follows the chains, depths are spread evenly, and the scorer cannot be fooled."""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from scipy import stats

import lexbench
from lexbench import Corpus, Document, Frame, Refused
from lexbench.checkpoints.tokenizer import FastTokenizer
from lexbench.corpora.synthetic import Synthetic
from tests.tasks.asked import accuracy, fingerprint, questions_of

CORPUS = Synthetic(count=6, words=1500)
HEADER = "Variables are assigned values in this text. Remember them.\n"
STATEMENT = r" ?VAR ([A-Z]{5}) = (VAR [A-Z]{5}|\d{5})\."
ASK = r"\nWhich (\d+) variables have the value (\d{5}), directly or through others\? The variables are"
COMBINATIONS: list[dict[str, Any]] = [
    {},
    {"haystack": "text"},
    {"chains": 1, "example": True},
    {"chains": 3, "hops": 2, "example": True, "haystack": "text"},
    {"chains": 2, "hops": 1, "strata": 3},
    {"room": 60},
]


def tracking(corpus: Corpus = CORPUS, **parameters: Any) -> lexbench.Task:
    return lexbench.task("variable_tracking", corpus=corpus, **parameters)


def read(text: str) -> tuple[list[str], str, int]:
    """Names that hold the queried value, by following each name; that value; the number in the question."""
    given = dict(re.findall(STATEMENT, text))
    [(count, value)] = re.findall(ASK, text)

    def held(name: str) -> str:
        told = str(given[name])
        return held(told.removeprefix("VAR ")) if told.startswith("VAR ") else told

    return [name for name in given if held(name) == value], value, int(count)


@pytest.mark.everyday("800-parameters0", "800-parameters3")
@pytest.mark.parametrize("parameters", COMBINATIONS)
@pytest.mark.parametrize("length", [800, 1501])
def test_a_plain_reader_finds_the_answer_and_no_other(
    tokenizer: FastTokenizer, lexlet: FastTokenizer, parameters: dict[str, Any], length: int
) -> None:
    task = tracking(**parameters)
    for each in (tokenizer, lexlet):
        for question in questions_of(task, each, length, 12):
            assert len(question.prompt) + question.max_new_tokens == question.length == length
            assert question.prompt[0] == each.bos
            text = each.decode(question.prompt)
            example, _, own = text.rpartition(HEADER)
            names, value, count = read(own)
            assert names == question.facts["expected"]
            assert (value, count) == (question.facts["value"], len(names))
            assert question.answer == " " + ", ".join(names)
            assert all(len(re.findall(name, text)) <= 2 for name in names)
            assert text.count(value) == 2
            assert accuracy(task, each, question.answer, question) == (1, 1)
            assert question.max_new_tokens == parameters.get("room", len(each.encode(question.answer).ids) + 8)
            assert bool(example) == parameters.get("example", False)


def test_the_prompt_reads_as_in_the_docstring(tokenizer: FastTokenizer) -> None:
    for question in questions_of(tracking(), tokenizer, 1000, 16):
        text = tokenizer.decode(question.prompt)
        assert text.startswith(HEADER)
        assert re.search(ASK + "$", text)
        statements = re.findall(STATEMENT, text)
        assert len(statements) == 2 * 5
        assert len({name for name, _ in statements}) == 10
        assert len({value for _, value in statements if value.isdigit()}) == 2
        body = re.sub(ASK, "", re.sub(STATEMENT, "", text)).removeprefix(HEADER)
        noise = " The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again." * 20
        assert noise.startswith(body) and len(body) > 200
        between = re.split(STATEMENT, text.removeprefix(HEADER))[::3]
        assert all(part == "" or part.endswith(".") for part in between[:-1])


def test_statements_of_every_chain_stand_in_its_order(tokenizer: FastTokenizer) -> None:
    for question in questions_of(tracking(chains=3, hops=3), tokenizer, 1200, 24):
        seen = set()
        for name, value in re.findall(STATEMENT, tokenizer.decode(question.prompt)):
            assert value.isdigit() or value.removeprefix("VAR ") in seen
            seen.add(name)
        assert len(seen) == 12


@pytest.mark.slow
@pytest.mark.parametrize("haystack", ["noise", "text"])
@pytest.mark.parametrize("length", [1500, 3000])
def test_depths_of_the_first_statement_are_spread_evenly(lexlet: FastTokenizer, haystack: str, length: int) -> None:
    """160 samples in 8 parts: 20 in each, and in each half of the samples 10; the depth is measured in the text."""
    questions = questions_of(tracking(haystack=haystack), lexlet, length, 160)
    for question in questions[:24]:
        text = lexlet.decode(question.prompt)
        first = question.facts["expected"][0]
        body = re.split(ASK, text.removeprefix(HEADER))[0]
        before = re.sub(STATEMENT, "", body[: body.index(f"VAR {first}")])
        whole = re.sub(STATEMENT, "", body)
        share = len(lexlet.encode(before).ids) / len(lexlet.encode(whole).ids)
        assert question.facts["depth"] == pytest.approx(share, abs=0.01)
    for part in (questions, questions[:80]):
        counts = np.bincount([int(question.facts["depth"] * 8) for question in part], minlength=8)
        assert counts.tolist() == [len(part) // 8] * 8


def chains_of(text: str) -> list[list[int]]:
    """Places of the statements of each chain in a text, in order."""
    given, places = {}, {}
    for statement in re.finditer(STATEMENT, text):
        given[statement[1]], places[statement[1]] = statement[2].removeprefix("VAR "), statement.start()
    chains: dict[str, list[int]] = {}
    for name in given:
        value = given[name]
        while value in given:
            value = given[value]
        chains.setdefault(value, []).append(places[name])
    return list(chains.values())


@pytest.mark.parametrize("strata", [1, 8])
@pytest.mark.slow
@pytest.mark.parametrize(("chains", "hops", "length"), [(2, 4, 1024), (3, 2, 1024)])
def test_where_a_chain_begins_or_ends_does_not_tell_that_it_is_asked(
    lexlet: FastTokenizer, chains: int, hops: int, length: int, strata: int
) -> None:
    """The chain that starts or ends first or last is the queried one once in `chains`: binomial tests, n = 1600."""
    task, right = tracking(chains=chains, hops=hops, strata=strata), np.zeros(4, np.int64)
    for question in (each for seed in range(4) for each in questions_of(task, lexlet, length, 400, seed)):
        text = lexlet.decode(question.prompt)
        found, own = chains_of(text), text.index(f"VAR {question.facts['expected'][0]} = {question.facts['value']}")
        assert len(found) == chains and {len(places) for places in found} == {hops + 1}
        begins, ends = ({places[end]: places[0] for places in found} for end in (0, -1))
        guesses = [edge[pick(edge)] for edge in (begins, ends) for pick in (min, max)]
        right += [guess == own - 1 for guess in guesses]
    assert min(stats.binomtest(int(count), 1600, 1 / chains).pvalue for count in right) > 0.001


@pytest.mark.slow
def test_other_chains_and_later_statements_are_uniform(lexlet: FastTokenizer) -> None:
    """Kolmogorov-Smirnov at 0.001: the other chain's first statement is uniform, and the second statement of each
    chain is the least of 4 uniform depths behind the first."""
    firsts, seconds = [], []
    for question in questions_of(tracking(), lexlet, 4096, 160):
        body = re.split(ASK, lexlet.decode(question.prompt).removeprefix(HEADER))[0]
        names = [name for name, _ in re.findall(STATEMENT, body)]
        whole = len(re.sub(STATEMENT, "", body))
        depth = {name: len(re.sub(STATEMENT, "", body[: body.index(f"VAR {name} =")])) / whole for name in names}
        own = question.facts["expected"]
        others = [name for name in names if name not in own]
        firsts.append(depth[others[0]])
        for one, two in (own[:2], others[:2]):
            if depth[one] < 0.9:  # behind that, too few sentences end
                seconds.append((depth[two] - depth[one]) / (1 - depth[one]))
    assert stats.kstest(firsts, "uniform").pvalue > 0.001
    assert stats.kstest(seconds, lambda x: 1 - (1 - x) ** 4).pvalue > 0.001


@pytest.mark.slow
def test_where_two_chains_meet_either_may_come_first(tokenizer: FastTokenizer) -> None:
    """At the least length there is no haystack: which chain comes first is a fair coin."""
    task = tracking(chains=2, hops=1)
    with pytest.raises(Refused) as refusal:
        task.questions(tokenizer, 9, 200, 0)
    least, first = int(re.findall(r"\d+", refusal.value.reason)[0]), 0
    for question in questions_of(task, tokenizer, least, 200):
        names = [name for name, _ in re.findall(STATEMENT, tokenizer.decode(question.prompt))]
        first += names[0] == question.facts["expected"][0]
    assert stats.binomtest(first, 200).pvalue > 0.001


def test_a_sample_is_the_same_at_every_length(tokenizer: FastTokenizer) -> None:
    for haystack in ("noise", "text"):
        task = tracking(haystack=haystack)
        short, long = (questions_of(task, tokenizer, length, 8) for length in (1000, 3000))
        for one, other in zip(short, long, strict=True):
            assert (one.answer, one.max_new_tokens) == (other.answer, other.max_new_tokens)
            assert one.facts["depth"] == pytest.approx(other.facts["depth"], abs=0.06)
            texts = [re.sub(STATEMENT, "", tokenizer.decode(question.prompt)) for question in (one, other)]
            assert len(texts[0]) < len(texts[1])
            assert texts[1].startswith(re.split(ASK, texts[0])[0][:-20])


@pytest.mark.slow
def test_names_and_values_are_uniform_and_never_repeat(lexlet: FastTokenizer) -> None:
    """Chi-square of first letters (25 degrees of freedom) and first digits (8), each below its 0.999 quantile."""
    questions = questions_of(tracking(), lexlet, 500, 200)
    names = [name for question in questions for name in question.facts["expected"]]
    assert len(set(names)) == 1000
    letters = np.bincount([ord(name[0]) - 65 for name in names], minlength=26)
    assert ((letters - 1000 / 26) ** 2 / (1000 / 26)).sum() < stats.chi2.ppf(0.999, 25)
    digits = np.bincount([int(question.facts["value"][0]) for question in questions], minlength=10)
    assert digits[0] == 0
    assert ((digits[1:] - 200 / 9) ** 2 / (200 / 9)).sum() < stats.chi2.ppf(0.999, 8)


@dataclass(frozen=True)
class Digits:
    """A text of digits that contains all five-digit numbers, and so every value."""

    count: int = 70_000

    def documents(self) -> Iterator[Document]:
        digits = "".join(str(digit) for digit in np.random.default_rng(0).integers(10, size=self.count))
        yield Document("digits", "\n".join(digits[place : place + 60] for place in range(0, self.count, 60)))

    def fingerprint(self) -> str:
        return ""


@pytest.mark.slow
def test_on_a_corpus_of_digits_all_but_the_haystack_is_constant(tokenizer: FastTokenizer) -> None:
    """Values occur in the text by chance; a reader of statements is not misled."""
    task, met = tracking(Digits(), haystack="text"), 0
    short, long = (questions_of(task, tokenizer, length, 8) for length in (700, 60_000))
    for one, other in zip(short, long, strict=True):
        assert (one.answer, one.max_new_tokens, one.facts["value"]) == (
            other.answer,
            other.max_new_tokens,
            other.facts["value"],
        )
        statements = [sorted(re.findall(STATEMENT, tokenizer.decode(question.prompt))) for question in (one, other)]
        assert statements[0] == statements[1]
        text = tokenizer.decode(other.prompt)
        met += text.count(other.facts["value"]) > 2
        assert read(text)[0] == other.facts["expected"]
    assert met  # of 8 samples with some 60,000 places each, (1 - 1e-5)^480,000 is 0.008 for none


def test_more_statements_than_tokens_are_refused_at_once(tokenizer: FastTokenizer) -> None:
    with pytest.raises(Refused, match=r"variable_tracking has 5,000,000,000 statements, asked for 512 tokens: lower"):
        tracking(chains=10**9, hops=4).questions(tokenizer, 512, 2, 0)


def test_a_corpus_needs_no_more_tokens_than_are_used(tokenizer: FastTokenizer) -> None:
    """A corpus with exactly the prompt's tokens of text suffices, a smaller one does not."""
    with pytest.raises(Refused) as refusal:
        tracking(haystack="text").questions(tokenizer, 20, 4, 0)
    least = int(re.findall(r"\d+", refusal.value.reason)[0])
    used = len(tokenizer.encode(next(iter(Digits(300).documents())).text).ids)
    assert len(questions_of(tracking(Digits(300), haystack="text"), tokenizer, least + used, 1)) == 1
    with pytest.raises(Refused, match=rf"haystack needs \d+ tokens, the corpus has {used}"):
        tracking(Digits(300), haystack="text").questions(tokenizer, least + used + 200, 1, 0)


def test_the_control_holds_none_of_the_asked_names(tokenizer: FastTokenizer) -> None:
    pairs = zip(
        questions_of(tracking(needle=False), tokenizer, 900, 8),
        questions_of(tracking(), tokenizer, 900, 8),
        strict=True,
    )
    for control, usual in pairs:
        assert control.length == 900
        assert control.answer == usual.answer
        text = tokenizer.decode(control.prompt)
        assert read(text)[0] == []
        assert not any(name in text for name in control.facts["expected"])
        assert set(re.findall(STATEMENT, text)) < set(re.findall(STATEMENT, tokenizer.decode(usual.prompt)))
        assert len(re.findall(STATEMENT, text)) == 5


def test_the_example_is_a_small_right_one(tokenizer: FastTokenizer) -> None:
    task = tracking(example=True, chains=2, hops=2)
    for question, plain in zip(
        questions_of(task, tokenizer, 900, 8), questions_of(tracking(chains=2, hops=2), tokenizer, 900, 8), strict=True
    ):
        assert question.answer == plain.answer
        example, own = tokenizer.decode(question.prompt).removeprefix(HEADER).split(HEADER)
        shown, answer = re.findall(r"(?s)(.* are) ([A-Z, ]+)\.\n\n$", example)[0]
        assert read(shown)[0] == answer.split(", ")
        assert len(re.findall(STATEMENT, shown)) == 6
        assert not set(re.findall(r"\b[A-Z]{5}\b|\d{5}", example)) & set(re.findall(r"\b[A-Z]{5}\b|\d{5}", own))


def test_a_chat_asks_the_same_in_its_template(tokenizer: FastTokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = questions_of(tracking(), tokenizer, 700, 4)
    before, after = (tokenizer.encode(text).ids for text in ("User: ", "\n\nModel:\n"))
    usual = tokenizer.frame(False)
    monkeypatch.setattr(tokenizer, "frame", lambda chat: Frame(before, after) if chat else usual)
    task = tracking(chat=True)
    for question, other in zip(questions_of(task, tokenizer, 700, 4), plain, strict=True):
        assert question.length == 700
        assert question.answer == other.answer
        text = tokenizer.decode(question.prompt)
        assert text.startswith("User: " + HEADER)
        assert text.endswith("directly or through others?\n\nModel:\nThe variables are")
    assert "chat template" in task.protocol(tokenizer)


def test_chance_is_the_likelier_guess(tokenizer: FastTokenizer) -> None:
    """Any one chain; with one chain, or without the queried one, any 2 of 26^5 names."""
    any_two = 2 / (26**5 * (26**5 - 1))
    expected = {(2, 4, True): 1 / 2, (3, 1, True): 1 / 3, (1, 1, True): any_two, (3, 1, False): any_two}
    for (chains, hops, needle), chance in expected.items():
        [question] = questions_of(tracking(chains=chains, hops=hops, needle=needle), tokenizer, 900, 1)
        assert math.isclose(question.chance, chance, rel_tol=1e-12)


def test_naming_any_chain_gets_the_chance(tokenizer: FastTokenizer) -> None:
    """Guess every chain of each text once: exactly one is right."""
    task = tracking(chains=3, hops=1)
    for question in questions_of(task, tokenizer, 700, 8):
        given = dict(re.findall(STATEMENT, tokenizer.decode(question.prompt)))
        pairs = [(value.removeprefix("VAR "), name) for name, value in given.items() if value.startswith("VAR ")]
        got = [accuracy(task, tokenizer, f" {one}, {two}", question)[0] for one, two in pairs]
        assert (len(got), sum(got)) == (3, 1)
        assert question.chance == 1 / 3


def test_only_exactly_the_names_come_first(tokenizer: FastTokenizer) -> None:
    task = tracking(hops=1)
    [question] = questions_of(task, tokenizer, 700, 1)
    one, two = question.facts["expected"]
    text = tokenizer.decode(question.prompt)
    everything = ", ".join(name for name, _ in re.findall(STATEMENT, text))
    expected = {
        question.answer: (1, 1),
        f"{two} and {one}.\nThe grass": (1, 1),
        f" VAR {one}, VAR {two}": (1, 1),
        "": (0, 0),
        "I do not know": (0, 0),
        f" {one}": (0, 0.5),
        f" {one}, {two}, QQQQQ": (0, 1),
        f" QQQQQ, {one}, {two}": (0, 1),
        f" {one}, {one}": (0, 0.5),
        f" {one.lower()}, {two.lower()}": (0, 1),
        f" {one}{two}": (0, 1),
        everything: (0, 1),
        text: (0, 1),
    }
    assert {text: accuracy(task, tokenizer, text, question) for text in expected} == expected


def test_the_least_length_is_said_and_is_the_least(tokenizer: FastTokenizer) -> None:
    with pytest.raises(Refused, match=r"needs at least \d+ tokens, asked for 10: raise length") as refusal:
        tracking().questions(tokenizer, 10, 6, 0)
    least = int(re.findall(r"\d+", refusal.value.reason)[0])
    assert {question.length for question in questions_of(tracking(), tokenizer, least, 6)} == {least}
    with pytest.raises(Refused, match=f"needs at least {least} tokens, asked for {least - 1}"):
        tracking().questions(tokenizer, least - 1, 6, 0)
    with pytest.raises(Refused, match=r"room of at least \d+ tokens for its answer, got 3: raise room"):
        tracking(room=3).questions(tokenizer, 900, 1, 0)
    with pytest.raises(Refused, match="take a larger corpus"):
        tracking(Synthetic(count=1, words=10), haystack="text").questions(tokenizer, 900, 1, 0)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        *(({name: 0}, f"{name} must be at least 1, got 0") for name in ("chains", "hops", "strata", "room")),
        ({"haystack": "essay"}, "haystack must be one of noise, text, got essay"),
        ({"haystack": "text", "corpus": None}, "with haystack=text needs a corpus"),
    ],
)
def test_a_wrong_parameter_is_an_error(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tracking(**parameters)


def test_noise_depends_on_no_corpus(tokenizer: FastTokenizer) -> None:
    task = tracking()
    assert task.corpus is None  # type: ignore[attr-defined]
    texts = [questions_of(tracking(corpus), tokenizer, 600, 2) for corpus in (CORPUS, Synthetic(seed=3))]
    assert [q.prompt.tolist() for q in texts[0]] == [q.prompt.tolist() for q in texts[1]]
    running = questions_of(tracking(haystack="text"), tokenizer, 600, 2)
    assert re.fullmatch(r"stretch \d+", running[0].cluster)


def test_questions_follow_from_seed_and_index(lexlet: FastTokenizer) -> None:
    here = fingerprint(tracking(), lexlet, 3)
    assert len(set(here)) == 3
    assert fingerprint(tracking(), lexlet, 9)[:3] == here
    assert not set(here) & set(fingerprint(tracking(), lexlet, 3, seed=1))
