"""Rows drawn ahead are those drawn step by step."""

from pathlib import Path

import numpy as np
import pytest

from lexbench.corpora.synthetic import Synthetic
from lexbench.native import vocabulary
from lexbench.native.recipe import Recipe
from lexbench.native.rows import Rows

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


def test_rows_drawn_ahead_are_those_of_the_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = vocabulary.learnt(RECIPE, TEXTS, tmp_path)
    alone = Rows(RECIPE, TEXTS, tokenizer, None)
    expected = [alone.step(step) for step in range(RECIPE.steps)]
    assert [tuple(tokens.shape) for _, tokens in expected] == [(8, 12)] * 2 + [(4, 24)] * 5
    for _ in range(2):  # drawn, then read
        ahead = Rows(RECIPE, TEXTS, tokenizer, tmp_path / "rows")
        for step, (kinds, tokens) in enumerate(expected):
            assert ahead.step(step)[0] == kinds
            assert np.array_equal(ahead.step(step)[1], tokens)
        monkeypatch.setattr("lexbench.native.rows.drawn", None)  # a second drawing would fail
    assert len(list((tmp_path / "rows").glob("*.kinds.npy"))) == 1
