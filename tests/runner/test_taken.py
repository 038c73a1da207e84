"""What a cell may take from earlier answers, by the rules alone; tests/runner/test_reuse.py asks real models."""

import gc
import json
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from lexbench.core.task import Answer, AnyQuestion, Choose, Generate, Loglikelihood, LoglikelihoodAnswer
from lexbench.runner.reuse import PrefixAnswers, ScoredText, Twins, cheapest_order, samples_hash
from tests.runner.open_cells import open_cell

TEXT = np.array([9, 3, 4, 5, 6, 7, 8])


def part(size: int, start: int, tokens: Any = TEXT, index: int = 0) -> Loglikelihood:
    return Loglikelihood(index=index, cluster="a", tokens=tokens[:size], first_target=start, bytes=1, words=1)


def test_cells_that_attend_alike_are_twins_and_only_in_one_folder(tmp_path: Path) -> None:
    alike = {"inv_freq": "same"}
    one, twin = open_cell("ntk", 256, attention=alike), open_cell("none", 256, attention=alike)
    twin = replace(twin, identity={**one.identity, "method": {"name": "none"}})
    longer = replace(twin, identity={**twin.identity, "length": 512})
    refused = replace(twin, identity={**twin.identity, "attention": None})
    assert samples_hash(one) == samples_hash(twin) != samples_hash(longer)
    assert samples_hash(refused) is None
    known = Twins()
    known.learn(tmp_path, one)
    known.learn(tmp_path, refused)
    known.learn(tmp_path, twin)  # the first one stays
    assert known.of(tmp_path / "x" / "..", twin) == one.id
    assert known.of(tmp_path, longer) is None and known.of(tmp_path, refused) is None
    assert known.of(tmp_path / "elsewhere", twin) is None


def test_a_finished_cell_is_not_held_for_its_twins(tmp_path: Path) -> None:
    """A sweep has many, each with its task and texts."""
    one, known = open_cell("ntk", 256, attention={"inv_freq": "same"}), Twins()
    known.learn(tmp_path, one)
    held, name = weakref.ref(one), one.id
    twin = replace(one)
    del one
    gc.collect()
    assert held() is None and known.of(tmp_path, twin) == name


def test_a_longer_text_holds_the_targets_of_a_shorter_one_that_it_begins_with() -> None:
    known = ScoredText(TEXT, 2, np.array([0.5, 1.5, 2.5, 3.5, 4.5], np.float32))  # of tokens 2 to 6
    for size, start, held in ((5, 2, [0.5, 1.5, 2.5]), (5, 4, [2.5]), (7, 3, [1.5, 2.5, 3.5, 4.5])):
        assert known.covers_question(part(size, start))
        assert known.answer(part(size, start)).nll.tolist() == held
    assert not known.covers_question(part(5, 1))  # a target before its own
    assert not known.covers_question(part(5, 2, np.array([9, 3, 4, 5, 0])))
    assert not known.covers_question(part(9, 2, np.arange(9)))  # longer than what was read


def test_only_what_no_longer_text_has_told_is_asked() -> None:
    asked: list[list[int]] = []

    def ask(questions: Sequence[AnyQuestion]) -> Iterator[Answer]:
        asked.append([each.length for each in questions])
        for each in questions:
            assert isinstance(each, Loglikelihood)
            yield LoglikelihoodAnswer(nll=np.arange(each.first_target, each.length, dtype=np.float32))

    prefixes = PrefixAnswers()

    def answers(length: int, *questions: AnyQuestion, method: str = "none", task: str = "prefix") -> list[list[float]]:
        cell = open_cell(method, length, task, attention={"of": method})
        return [
            each.nll.tolist()
            for each in prefixes.answers(cell, questions, ask)
            if isinstance(each, LoglikelihoodAnswer)
        ]

    assert answers(7, part(7, 4), part(6, 2, TEXT[::-1], 1)) == [[4, 5, 6], [2, 3, 4, 5]]
    assert answers(6, part(6, 5), part(4, 3, TEXT[::-1], 1), part(4, 1, index=2)) == [[5], [3], [1, 2, 3]]
    assert answers(6, part(6, 5), method="pi") == [[5]]  # another attention
    assert asked == [[7, 6], [4], [6]]
    assert answers(6, part(6, 5), task="another") == [[5]]
    assert answers(6, part(6, 5)) == [[5]]  # of the first task nothing is kept
    assert asked[3:] == [[6], [6]]


def test_prompts_stand_by_their_beginnings_where_half_is_shared_and_else_by_length() -> None:
    def write(*tokens: int) -> Generate:
        return Generate(index=0, cluster="", prompt=np.array(tokens), max_new_tokens=1)

    def order(asked: list[AnyQuestion], reuse: bool = True) -> list[list[int]]:
        return [each.prompt.tolist() for each in cheapest_order(asked, reuse) if isinstance(each, Generate | Choose)]

    # Sorted by tokens, the second and third share 3 tokens each with the one before: 6 of 11.
    alike: list[AnyQuestion] = [write(5, 6, 7, 300), write(5, 6, 7), write(5, 6, 7, 9)]
    assert order(alike) == [[5, 6, 7], [5, 6, 7, 9], [5, 6, 7, 300]]
    assert order(alike, reuse=False) == [[5, 6, 7, 300], [5, 6, 7, 9], [5, 6, 7]]
    # 3 of 11 do not suffice.
    apart: list[AnyQuestion] = [write(5, 300, 8), write(5, 6, 7), write(5, 6, 8, 9, 1)]
    assert order(apart) == [[5, 6, 8, 9, 1], [5, 300, 8], [5, 6, 7]]
    mixed: list[AnyQuestion] = [write(5), part(5, 2), write(2)]
    assert cheapest_order(mixed, reuse=True) == mixed
    scored: list[AnyQuestion] = [part(5, 2), part(6, 1), part(4, 3), part(6, 5)]
    assert cheapest_order(scored, reuse=True) == [scored[place] for place in (1, 3, 0, 2)]


def test_an_identity_is_hashed_whatever_the_order_of_its_keys() -> None:
    one = open_cell("none", 256, attention={"scale": 1.5, "layers": [0, 1]})
    turned = json.loads(json.dumps(one.identity, sort_keys=True))
    assert samples_hash(replace(one, identity=dict(reversed(turned.items())))) == samples_hash(one)
