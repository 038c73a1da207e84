"""Rows drawn ahead are those drawn step by step."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lexbench.corpora.synthetic import Synthetic
from lexbench.parts.lab.native import vocabulary
from lexbench.parts.lab.native.lessons import ONE_LESSON_PACKINGS
from lexbench.parts.lab.native.recipe import Recipe
from lexbench.parts.lab.native.rows import TrainingRows

TEXTS = [Synthetic(count=2, words=200)]
RECIPE = Recipe(
    stages=[
        {"steps": 2, "lessons": {"tiny_blocks": 0.5, "growing_blocks": 0.5}, "length": 12},
        {"steps": 3, "lessons": {"text": 0.5, "running_sums": 0.5}},
        {"steps": 2, "lessons": {"tiny_blocks": 1.0}},
    ],
    shape={"layers": 1},
    vocabulary=300,
    trained_length=24,
    batch=4,
)


@pytest.mark.everyday("all")
@pytest.mark.parametrize("counted", ["all", "answers"])
def test_rows_drawn_ahead_are_those_of_the_steps(counted: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lessons = {"sort": 1.0} if counted == "answers" else {"tiny_blocks": 1.0}
    stages = [*RECIPE.stages[:2], {"steps": 2, "lessons": lessons}]
    recipe = replace(RECIPE, counted=counted, stages=stages)
    tokenizer = vocabulary.learn_tokenizer(recipe, TEXTS, tmp_path)
    alone = TrainingRows(recipe, TEXTS, tokenizer, None)
    expected = [alone.step(step) for step in range(recipe.steps)]
    assert [tuple(tokens.shape) for _, tokens in expected] == [(8, 12)] * 2 + [(4, 24)] * 5
    for _ in range(2):  # drawn, then read
        ahead = TrainingRows(recipe, TEXTS, tokenizer, tmp_path / "rows")
        for step, (kinds, tokens) in enumerate(expected):
            assert ahead.step(step)[0] == kinds
            assert np.array_equal(ahead.step(step)[1], tokens)
        monkeypatch.setattr("lexbench.parts.lab.native.rows.draw_rows", None)  # a second drawing would fail
    assert (expected[-1][1] < 0).any() == (counted == "answers")
    assert len(list((tmp_path / "rows").glob("*.kinds.npy"))) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("packing", "space"), [("filled", 63), pytest.param("right_padded", 64, marks=pytest.mark.slow)]
)
def test_a_question_that_a_short_row_would_cut_is_refused(packing: str, space: int, tmp_path: Path) -> None:
    """Its answer stands at its end: none of the row would count, and the loss of the step would be 0."""
    stages = [
        {"steps": 2, "lessons": {"sort": 1.0, "running_sums": 0.1}, "length": 12},
        {"steps": 2, "lessons": {"passkey": 1.0}, "length": 64},
    ]
    recipe = replace(RECIPE, counted="answers", packing=packing, stages=stages, trained_length=384, batch=2)
    tokenizer = vocabulary.learn_tokenizer(recipe, TEXTS, tmp_path)
    with pytest.raises(ValueError, match=rf"lesson passkey does not fit rows of {space} tokens .* length of the stage"):
        TrainingRows(recipe, TEXTS, tokenizer, None).step(0)
    fits = TrainingRows(replace(recipe, stages=[stages[0], {**stages[1], "length": 192}]), TEXTS, tokenizer, None)
    assert all((fits.step(step)[1][:, 1:] >= 0).any(1).all() for step in range(4))
    assert TrainingRows(replace(recipe, counted="all", packing="filled"), TEXTS, tokenizer, None).step(3)[1].shape == (
        12,
        64,
    )


@pytest.mark.slow
def test_packing_says_how_sums_share_a_row(tmp_path: Path) -> None:
    stages = [{"steps": 6, "lessons": {"addition": 1.0}}]
    recipe = replace(RECIPE, counted="answers", stages=stages, trained_length=60, batch=8)
    tokenizer = vocabulary.learn_tokenizer(recipe, TEXTS, tmp_path)
    for packing in ("filled", "blank_line", *ONE_LESSON_PACKINGS):
        own = TrainingRows(replace(recipe, packing=packing), TEXTS, tokenizer, tmp_path / "rows")
        rows = np.concatenate([own.step(step)[1].numpy() for step in range(6)])
        texts = [tokenizer.decode(np.maximum(row, ~row)[1:]).strip("\n").split("\n") for row in rows]
        # The last one may be cut at the row's end, but not a single one.
        whole = [line for lines in texts for line in (lines if packing in ONE_LESSON_PACKINGS else lines[:-1]) if line]
        sizes = [[*map(len, re.split(r"[+=]", line))] for line in whole]
        assert len(whole) > 10
        assert all(len(set(each)) == 1 and len(each) == 3 for each in sizes) == (packing != "filled")
        assert all(len(lines) == 1 for lines in texts) == (packing in ONE_LESSON_PACKINGS)
        answers = [tokenizer.decode(row[row >= 0][1:]) for row in rows]  # behind BOS
        assert all(re.fullmatch(r"\d+", answer) for answer in answers)
    assert len(list((tmp_path / "rows").glob("*.kinds.npy"))) == 4  # a key for each
