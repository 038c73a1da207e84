"""The task anatomy: what differs between its forms, and what does not."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

import lexbench
from lexbench import Choose, ChooseAnswer, ConfigError
from lexbench.checkpoints.tokenizer import FastTokenizer
from lexbench.core.task import Layout
from lexbench.corpora.synthetic import Synthetic
from lexbench.parts.anatomy.arms import ARM_CONTRASTS, ARM_FORMS, CONTROL_FORMS
from lexbench.parts.anatomy.tasks.anatomy import FIXED_ROOM, STATEMENT_END, Anatomy
from lexbench.parts.anatomy.wordings import KEY_WORDINGS, Wording

LENGTH, N = 640, 24
CORPUS = Synthetic(count=4, words=900)
TASK = Anatomy(corpus=CORPUS)
SHORT_WORDINGS = tuple(
    Wording(f"w{number}", "word", "\nA is {key}.", "\nA is", words=each.words or KEY_WORDINGS[8].words)
    for number, each in enumerate(KEY_WORDINGS)
)
"""As many wordings that fit into 64 tokens of a small vocabulary."""


@pytest.fixture(autouse=True)
def _short_wordings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lexbench.parts.anatomy.tasks.anatomy.KEY_WORDINGS", SHORT_WORDINGS)


def asked(tokenizer: FastTokenizer, **form: object) -> list[Choose]:
    return [each for each in replace(TASK, **form).questions(tokenizer, LENGTH, N, 0) if isinstance(each, Choose)]  # type: ignore[arg-type]


def placed(question: Choose) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Tokens and positions in the order of positions."""
    positions = (question.layout or Layout()).positions(len(question.prompt))
    order = np.argsort(positions)
    assert len(set(positions.tolist())) == len(positions)
    return question.prompt[order], positions[order]


def test_all_forms_ask_the_same_key_at_the_same_distance(tokenizer: FastTokenizer) -> None:
    base = asked(tokenizer)
    for name, form in {**ARM_FORMS, **CONTROL_FORMS}.items():
        for one, other in zip(base, asked(tokenizer, **form), strict=True):
            assert [each.tolist() for each in one.options] == [each.tolist() for each in other.options], name
            assert (one.expected, one.cluster, other.chance) == (other.expected, other.cluster, 1 / 16)
            end = one.length - max(map(len, one.options))
            distance = one.facts["distance"]
            assert (LENGTH - FIXED_ROOM) // 2 <= distance <= LENGTH - FIXED_ROOM and one.length <= LENGTH
            tokens, positions = placed(other)
            assert positions[-1] + 1 == (end if form.get("far", True) else end - distance), name
            assert (positions[:STATEMENT_END] == np.arange(STATEMENT_END)).all()  # without a jump up to the key
            if form.get("key", True):
                assert tokens[:STATEMENT_END].tolist() == placed(one)[0][:STATEMENT_END].tolist()
            far = form.get("far", True) and form.get("filler", "none") == "none"
            held = positions[(positions >= STATEMENT_END) & (positions < STATEMENT_END + distance)]
            if far:
                assert len(held) == form.get("near", 0), name
    assert len({question.facts["distance"] for question in base}) > 10


def test_a_blind_text_is_read_before_the_key_and_a_question_without_sink_is_blocked_from_the_first_token(
    tokenizer: FastTokenizer,
) -> None:
    for name in ("near8", "near8_blind", "near64_filled_unsunk", "near64_blind_filled", "gap_unsunk", "masked"):
        form = {**ARM_FORMS, **CONTROL_FORMS}[name]
        question = asked(tokenizer, **form)[5]
        layout, size = question.layout, len(question.prompt)
        assert layout is not None
        seen, positions = layout.visibility(0, size), layout.positions(size)
        key = positions == STATEMENT_END - 1
        near = (positions >= STATEMENT_END + question.facts["distance"] - form.get("near", 0)) & (
            positions < STATEMENT_END + question.facts["distance"]
        )
        filler = (positions >= STATEMENT_END) & (positions < STATEMENT_END + question.facts["distance"]) & ~near
        last = np.arange(size) == size - 1
        assert seen[last][:, key].all(), "the question sees the key"
        assert seen[last][:, positions == 0].all() == form.get("sink", True)
        if form.get("near"):
            assert seen[near][:, key].any() == (not form.get("blind", False)), name
            assert seen[near][:, positions == 0].all()
        if form.get("filler") == "blind":
            assert filler.any() and not seen[filler][:, key].any() and seen[last][:, filler].all()
        if form.get("filler") == "masked":
            assert filler.any() and not seen[last][:, filler].any()


def test_rivals_stand_in_place_of_filler(tokenizer: FastTokenizer) -> None:
    for plain, one, four in zip(
        *(asked(tokenizer, filler="present", rivals=number) for number in (0, 1, 4)), strict=True
    ):
        assert len(plain.prompt) == len(one.prompt) == len(four.prompt)
        text = tokenizer.decode(four.prompt)
        words = [tokenizer.decode(four.options[each]) for each in four.facts["rivals"]]
        assert (
            len(words) == 4
            and four.expected not in four.facts["rivals"]
            and one.facts["rivals"] == four.facts["rivals"][:1]
        )
        assert all(f"A is{word}." in text for word in words)
        assert sum(f"A is{tokenizer.decode(each)}." in text for each in four.options) == 5


def test_scores_tell_the_key_from_its_format(tokenizer: FastTokenizer) -> None:
    question = replace(asked(tokenizer, filler="present", rivals=1)[0], expected=2)
    question = replace(question, facts={**question.facts, "format": 2, "rivals": [7]})
    nll = np.full(17, 9.0)
    nll[[2, 5, 7, 16]] = 3.0, 4.5, 8.0, 1.0
    task = replace(TASK, filler="present", rivals=1)
    sample = task.score(question, ChooseAnswer(nll=nll, taught_ranks=np.array([4, 0, 0, 0])))
    assert sample.scores == {
        **{"nats": 2.0, "format_nats": 1.0, "margin": 1.5, "own_margin": 5.0},
        **{"accuracy": 1.0, "greedy": 1.0, "whole": 0.0},
    }
    nll[5] = 2.5
    assert task.score(question, ChooseAnswer(nll=nll)).scores["accuracy"] == 0.0
    assert task.score(question, ChooseAnswer(nll=np.full(17, np.nan))).failed is not None


@pytest.mark.parametrize(
    ("form", "said"),
    [
        ({"near": 65}, "near must be at most 64 tokens, got 65"),
        ({"filler": "some"}, "filler must be one of none, blind, masked, present, got some"),
        ({"rivals": 2}, "rivals stand in filler=present"),
        ({"far": False, "near": 8}, "no distance for near text"),
        ({"placed": False}, "needs far=false or filler=present"),
    ],
)
def test_forms_that_say_nothing_are_refused(form: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        replace(TASK, **form)  # type: ignore[arg-type]


def test_a_filler_too_short_for_its_rivals_is_refused(tokenizer: FastTokenizer) -> None:
    with pytest.raises(lexbench.Refused, match="4 rivals need"):
        replace(TASK, filler="present", rivals=4).questions(tokenizer, 192, 12, 0)


def test_every_contrast_has_two_arms_and_wordings_are_of_three_kinds() -> None:
    assert all({each.arm, each.base} <= ARM_FORMS.keys() for each in ARM_CONTRASTS) and len(ARM_FORMS) == 25
    assert len({each.name for each in KEY_WORDINGS}) == 12 and {each.kind for each in KEY_WORDINGS} == {
        "sentence",
        "code",
        "word",
    }
    drawn = [each.draw(np.random.default_rng(0)) for each in KEY_WORDINGS]
    assert all(len(set(each)) == len(each) == 16 for each in drawn)


@pytest.mark.parametrize("name", ["gap", "adjacent", "present_4", "near64_filled"])
def test_sizes_are_told_without_texts(name: str, tokenizer: FastTokenizer) -> None:
    task = replace(TASK, **ARM_FORMS[name])
    sizes = [each.length for each in task.questions(tokenizer, LENGTH, N, 3)]
    told = task.outline(tokenizer, LENGTH, N, 3)
    assert (told.questions, round(told.length * N)) == (N, sum(sizes))
