"""Shortcuts: a reader of the last tokens, simulated with each question, against what the text and formulas say."""

import re
from typing import Any

import numpy as np
import pytest

import lexbench
from lexbench import ClassifyTokens, Refused, Task
from lexbench.checkpoints.tokenizer import FastTokenizer
from lexbench.core import objects, registry, suites
from lexbench.stats.shortcuts import SimulatedShortcuts, reader_accuracy, simulate_shortcuts, windows_within
from lexbench.taskkit import shortcuts
from tests.tasks.asked import TASKS_OF_PARTS, questions_of

TEXTS = lexbench.corpus("synthetic", count=64, words=3000)
SUITES = [each for each in ("standard", "quick", "smoke", "kinds") if each in registry.registered_names("task")]
WITHOUT_STEPS = {"next_line", "qa_squad", "qa_hotpotqa"}
"""A line of code has no part that tells it; official data are not here."""


def task_of(name: str, **given: Any) -> Task:
    return lexbench.task(name, corpus=lexbench.corpus("stdlib") if name == "next_line" else TEXTS, **given)


def simulated(task: Task, lexlet: FastTokenizer, trained: int = 256, n: int = 64) -> SimulatedShortcuts:
    """At four times the trained length."""
    found = simulate_shortcuts(task, lexlet, 4 * trained, trained, n)
    assert found is not None
    return found


def test_a_key_is_read_by_whoever_reads_its_second_mention(lexlet: FastTokenizer) -> None:
    """At every window: the tail of the prompt, as text, holds the key or not. A key is cut where its blank is."""
    for question in questions_of(task_of("passkey"), lexlet, 500, 16):
        key, edge = question.facts["expected"], question.shortcut[1][0]
        for window in range(len(question.prompt) + 1):
            tail = lexlet.decode(question.prompt[len(question.prompt) - window :])
            if window + 1 != edge:
                assert reader_accuracy(question.shortcut, window) == (1.0 if key in tail else 1 / 90_000)


def test_a_reader_of_the_last_tokens_finds_the_keys_whose_depth_lies_there(lexlet: FastTokenizer) -> None:
    """By hand: space tokens of noise, of which (1 - depth) space stand behind the needle."""
    task = task_of("passkey")
    for question in questions_of(task, lexlet, 1000, 24):
        key = question.facts["expected"]
        needle = len(lexlet.encode(f" The pass key is {key}. Remember it. {key} is the pass key.").ids)
        told = len(lexlet.encode(f" {key} is the pass key.").ids)
        before = 1 + len(lexlet.encode("A pass key is hidden in this text. Remember it.\n").ids)
        after = len(lexlet.encode("\nWhat is the pass key? The pass key is").ids)
        space = len(question.prompt) - before - after - needle
        assert question.shortcut[0] == (0, 1 / 90_000)
        assert question.shortcut[1] == (after + told + round((1 - question.facts["depth"]) * space), 1.0)


def test_the_control_and_a_key_with_others_are_read_as_the_text_says(lexlet: FastTokenizer) -> None:
    control = questions_of(task_of("passkey", needle=False), lexlet, 500, 4)
    assert {question.shortcut for question in control} == {((0, 1 / 90_000),)}
    for question in questions_of(task_of("niah_multikey_1"), lexlet, 800, 8):
        needed = question.shortcut[-1][0]
        [key], [value] = question.facts["keys"], question.facts["expected"]
        said = lexlet.decode(question.prompt[len(question.prompt) - needed :])
        assert said.lstrip().startswith(f"{key} is: {value}.")


def test_a_choice_strikes_out_the_values_of_other_keys(lexlet: FastTokenizer) -> None:
    questions = task_of("needle", distractors=4, options=4).questions(lexlet, 800, 8, 0)
    for question in questions:
        assert isinstance(question, lexbench.Choose)
        wrong = [each for place, each in enumerate(question.options) if place != question.expected]
        for window in range(0, len(question.prompt), 7):
            tail = lexlet.decode(question.prompt[len(question.prompt) - window :])
            if question.facts["keys"][0] in tail.split("What is")[0]:
                continue
            seen = sum(lexlet.decode(each).strip() in tail for each in wrong)
            cut = [step for step in question.shortcut if 0 < step[0] - window <= 8]  # inside a value
            assert cut or reader_accuracy(question.shortcut, window) == 1 / (4 - seen)


@pytest.mark.parametrize("size", [4, 10])
def test_on_the_circle_no_window_tells_anything(lexlet: FastTokenizer, size: int) -> None:
    for question in task_of("arithmetic", wrap=True, numbers=size).questions(lexlet, 500, 8, 0):
        *open_, (known, told) = question.shortcut
        assert open_ == [(0, 1 / size)] and told == 1.0
        line = lexlet.decode(question.prompt[len(question.prompt) - known :])  # type: ignore[union-attr]
        assert re.fullmatch(r"\s*\d( [+-]\d)+ =", line)  # from the first number on: nothing less tells more


def accuracy_of_terms(size: int, terms: int) -> float:
    """Of the best guess from the last terms on the line: the sum over spans of P(span) / (size - span).

    [low, high] probability of the lowest and highest of terms + 1 independent uniform results, one after another.
    """
    seen = np.eye(size) / size
    for _ in range(terms):
        following = np.zeros_like(seen)
        for low, high in zip(*np.nonzero(seen), strict=True):
            for result in range(size):
                following[min(low, result), max(high, result)] += seen[low, high] / size
        seen = following
    spans = np.arange(size)[None, :] - np.arange(size)[:, None]
    return float((seen[seen > 0] / (size - spans[seen > 0])).sum())


@pytest.mark.parametrize(("terms", "told"), [(1, 0.19), (8, 0.613), (32, 0.969), (64, 0.999)])
def test_on_the_line_the_last_terms_tell_what_the_dynamic_program_says(
    lexlet: FastTokenizer, terms: int, told: float
) -> None:
    """2,000 sums: within four deviations, of at most 1/2 each."""
    expected = accuracy_of_terms(10, terms)
    assert expected == pytest.approx(told, abs=0.0005)
    each = len(lexlet.encode("\n7 -2").ids) - len(lexlet.encode("\n7").ids)
    window = len(lexlet.encode("\n7 =").ids) - len(lexlet.encode("\n7").ids) + terms * each
    questions = task_of("arithmetic").questions(lexlet, 300, 2000, 0)
    found = [reader_accuracy(question.shortcut, window) for question in questions]
    assert np.mean(found) == pytest.approx(expected, abs=4 * np.std(found) / 2000**0.5 + 1e-9)


def test_shown_results_are_told_by_the_last_result_and_a_term(lexlet: FastTokenizer) -> None:
    for question in task_of("running_arithmetic", wrap=True).questions(lexlet, 300, 4, 0):
        assert [accuracy for _, accuracy in question.shortcut] == pytest.approx([0.1, 0.1, 1.0])
        assert question.shortcut[-1][0] == len(lexlet.encode("\n3 +4 =7").ids) - len(lexlet.encode("\n3").ids)


@pytest.mark.parametrize("power", [1.0, 0.01])
def test_a_value_is_recalled_by_whoever_reads_its_pair(lexlet: FastTokenizer, power: float) -> None:
    for question in task_of("recall", power=power).questions(lexlet, 400, 4, 0):
        assert isinstance(question, ClassifyTokens)
        text = [lexlet.decode([token]) for token in question.tokens]
        first = {text[place]: place for place in range(len(text) - 1, 0, -1)}
        for window in range(0, 400, 13):
            read = np.mean([place - first[text[place - 1]] <= window for place in question.places])
            expected = read + (1 - read) * question.chance
            assert reader_accuracy(question.shortcut, window) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parts(*TASKS_OF_PARTS)
@pytest.mark.parametrize("name", ["spread_arithmetic", "nth_needle", "conflicting_needles", "graph_walk"])
def test_a_puzzle_is_told_by_its_lines(lexlet: FastTokenizer, name: str) -> None:
    """The farthest line that is needed begins the window; of needles that replace one another it is the last one."""
    for question in questions_of(task_of(name), lexlet, 900, 8):
        line = lexlet.decode(question.prompt[len(question.prompt) - question.shortcut[-1][0] :]).lstrip().split(".")[0]
        asked = lexlet.decode(question.prompt).rsplit("\n", 1)[1]
        if name == "spread_arithmetic":
            assert re.match(r"The \w+ has the number", line)
        else:
            assert set(re.findall(r"\w+", line)) & set(question.facts["expected"])
            assert re.findall(r"\w+", line)[-1 if name == "graph_walk" else 0] in asked


@pytest.mark.parts
def test_orders_counts_and_labels_are_partly_told(lexlet: FastTokenizer) -> None:
    for question in questions_of(task_of("ordering"), lexlet, 700, 4):
        assert [accuracy for _, accuracy in question.shortcut] == [1 / 6, 1 / 2, 1.0, 1.0]
    for question in questions_of(task_of("counting", pairs=1, most=3), lexlet, 700, 8):
        levels = [accuracy for _, accuracy in question.shortcut]
        # By hand, of the counts 1, 2, 3 with weights C(c, a) C(4 - c, b): (1, 0) or (0, 1) 3/6; then (2, 0) 3/4 of
        # 0, 1, 3, or (1, 1) 4/10 of 3, 4, 3; at last the count is known.
        assert levels[:2] == [1 / 3, 0.5] and levels[2] in (0.75, 0.4) and levels[-1] == 1.0
    for question in questions_of(task_of("many_labels"), lexlet, 700, 4):
        tail = lexlet.decode(question.prompt[len(question.prompt) - question.shortcut[-1][0] :])
        assert tail.split(".")[0].endswith(question.facts["expected"][0])


def test_the_commonest_of_a_window_are_named_and_ties_are_shared() -> None:
    """By hand: from the end, items 0 1 0 2 at 10, 20, 60, 100 tokens."""
    places = [100, 60, 20, 10]
    assert shortcuts.of_counts([2, 0, 1, 0], places, {0}) == ((0, 0.0), (64, 1.0), (128, 1.0))
    assert shortcuts.of_counts([2, 0, 1, 0], places, {0, 1}) == ((0, 0.0), (64, 1.0), (128, 0.5))
    assert shortcuts.of_counts([2, 0, 1, 0], places, {1}) == ((0, 0.0), (64, 0.0), (128, 0.0))


def test_windows_are_at_most_half_of_a_length() -> None:
    assert windows_within(128, 256) == [64]
    assert windows_within(512, 256) == [64, 256]
    assert windows_within(8192, 4096) == [64, 256, 1024, 4096]
    assert windows_within(100, 256) == []


def entries() -> list[Any]:
    found = {}
    for suite in SUITES:
        for entry in suites.expand_suite({"name": suite, **registry.read_named_config("task", suite)}):
            found[str(sorted(entry.items(), key=str))] = entry
    return [pytest.param(entry, id=str(entry["name"])) for entry in found.values()]


@pytest.mark.parametrize("entry", entries())
def test_no_task_of_the_suites_has_a_shortcut_above_half_of_its_scale(
    entry: dict[str, Any], lexlet: FastTokenizer
) -> None:
    corpus = lexbench.corpus("stdlib") if entry["name"] == "next_line" else TEXTS
    task = objects.build_object(entry, "task", corpus=corpus).for_lengths([128, 1024])
    try:
        found = simulate_shortcuts(task, lexlet, 1024, 256, 64)
    except Refused:
        assert entry["name"] in WITHOUT_STEPS
        return
    assert found is None or found.share <= 0.5
    assert found is None or found.readers or entry["name"] in WITHOUT_STEPS


@pytest.mark.parts(*TASKS_OF_PARTS)
@pytest.mark.parametrize(
    ("name", "trained"),
    [
        *(("arithmetic", 256), ("running_arithmetic", 256), ("mqar", 256), ("conflicting_needles", 256)),
        ("frequent_words", 1024),
    ],
)
def test_tasks_that_left_the_suites_have_one(name: str, trained: int, lexlet: FastTokenizer) -> None:
    assert simulated(task_of(name), lexlet, trained).share > 0.5
    for suite in SUITES:
        stated = suites.expand_suite({"name": suite, **registry.read_named_config("task", suite)})
        alike = [each for each in stated if each["name"] == name]
        assert all(each.get("wrap") and not each.get("shown") for each in alike)


@pytest.mark.parts
def test_a_task_that_states_none_has_none(lexlet: FastTokenizer) -> None:
    assert simulated(task_of("next_line"), lexlet, n=8).readers == {}
    assert simulate_shortcuts(task_of("last_segment"), lexlet, 1024, 256, 4) is None


@pytest.mark.parts
def test_blind_guesses_are_scored_on_other_questions(lexlet: FastTokenizer) -> None:
    """Random keys never repeat; of two labels one is right in about half."""
    assert simulated(task_of("passkey"), lexlet).blind == 0.0
    parity = simulated(task_of("parity"), lexlet, n=200)
    assert parity.blind == pytest.approx(0.5, abs=4 * 0.5 / 100**0.5)
    assert parity.chance == 0.5


@pytest.mark.parts
def test_a_symbol_is_copied_by_whoever_reads_its_first_copy(lexlet: FastTokenizer) -> None:
    for question in task_of("copy").questions(lexlet, 200, 4, 0):
        assert isinstance(question, ClassifyTokens)
        (_, guess), (needed, told) = question.shortcut
        assert (guess, told) == (question.chance, 1.0)
        assert all(question.tokens[place] == question.tokens[place - needed] for place in question.places)


@pytest.mark.parts
def test_a_parity_needs_all_bits_unless_it_is_shown(lexlet: FastTokenizer) -> None:
    for question in task_of("parity").questions(lexlet, 200, 2, 0):
        assert isinstance(question, lexbench.Choose)
        assert question.shortcut == ((0, 0.5), (question.facts["bits"] + 1, 1.0))
    for question in task_of("parity", shown=True).questions(lexlet, 200, 2, 0):
        assert question.shortcut == ((0, 0.5), (len("1=0"), 1.0))


@pytest.mark.parts
def test_a_person_is_found_by_whoever_reads_its_line(lexlet: FastTokenizer) -> None:
    for question in questions_of(task_of("associative"), lexlet, 800, 8):
        needed = question.shortcut[-1][0]
        assert question.facts["expected"][0] in lexlet.decode(question.prompt[-needed:]).split(".")[0]
