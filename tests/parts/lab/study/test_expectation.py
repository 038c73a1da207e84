"""Expected logits by distance: LEX's sum over pairs, term by term, and which encodings have one."""

import csv
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lexbench.parts.lab.native import build
from lexbench.parts.lab.study.page import expectation

ABOUT: dict[str, Any] = {
    "recipe": "lab",
    "trained_length": 128,
    "published": [
        *({"table": "lex-4", "printed": entry, "entry": entry} for entry in ("rope", "xpos", "scalar", "still")),
        {"table": "lex-2", "printed": "ALiBi", "entry": "alibi"},
        {"table": "survey-3", "printed": "T5 Bias", "entry": "p_rope"},
    ],
    "models": [
        {"entry": "rope", "encoding": {"name": "rope"}},
        {"entry": "xpos", "encoding": {"name": "xpos"}},
        {"entry": "scalar", "encoding": {"name": "xpos", "scalar": True}},
        {"entry": "still", "encoding": {"name": "xpos", "rotated": False}},
        {"entry": "alibi", "encoding": {"name": "alibi"}},
        {"entry": "p_rope", "encoding": {"name": "p_rope"}},
    ],
}


def test_a_page_of_a_later_study_says_which_decay_it_has() -> None:
    stated = build.state_newer_parameters({"name": "xpos"})
    assert stated == {"name": "xpos", "scale_base": 512.0}
    models = [{"entry": "xpos", "encoding": stated}]
    found = expectation.expectation_curves({**ABOUT, "models": models})["xpos"]
    total = sum(((p / 32 + 0.4) / 1.4) ** (100 / 512) * math.cos(100 * 10000 ** (-p / 32)) for p in range(32))
    assert found[100] == pytest.approx(total / 32, abs=1e-12)


def by_hand(n: int, fades: bool, turns: bool, one: bool = False) -> float:
    """The recipe `lab` has heads of 64 columns, and L = 128: 32 pairs, B = 64."""
    total = 0.0
    for p in range(32):
        zeta = ((0 if one else p) / 32 + 0.4) / 1.4 if fades else 1.0
        total += math.pow(zeta, n / 64) * (math.cos(n * math.pow(10000, -p / 32)) if turns else 1.0)
    return total / 32


def test_curves_are_the_sum_over_pairs_of_rotary_encodings_beside_lex() -> None:
    found = expectation.expectation_curves(ABOUT)
    assert found.keys() == {"rope", "xpos", "scalar", "still"}  # ALiBi does not rotate, p_rope is beside no row of LEX
    for n in (0, 1, 63, 128, 1024):
        assert found["rope"][n] == pytest.approx(by_hand(n, False, True), abs=1e-12)
        assert found["xpos"][n] == pytest.approx(by_hand(n, True, True), abs=1e-12)
        assert found["scalar"][n] == pytest.approx(by_hand(n, True, True, one=True), abs=1e-12)
        assert found["still"][n] == pytest.approx(by_hand(n, True, False), abs=1e-12)
    # LEX's point: beyond the trained length RoPE's curve swings, that of xPos hardly, and it falls without rotation.
    climbs = {name: np.diff(values[128:]).clip(0).sum() for name, values in found.items()}
    assert climbs["still"] == 0 and climbs["xpos"] < 0.1 < 10 < climbs["rope"]


def test_the_section_has_a_table_and_a_figure_with_its_numbers(tmp_path: Path) -> None:
    lines = expectation.expectation_section(ABOUT, tmp_path)
    [row] = [line for line in lines if line.startswith("| still")]
    assert [entry.strip() for entry in row.split("|")[4:6]] == [f"{by_hand(n, True, False):.3f}" for n in (128, 256)]
    with (tmp_path / "plots" / "expectation.csv").open() as stream:
        numbers = list(csv.DictReader(stream))
    assert len(numbers) == 4 * 1025
    assert float(numbers[1025 + 64]["expected"]) == pytest.approx(by_hand(64, True, True), abs=1e-6)
    assert (tmp_path / "plots" / "expectation.svg").is_file()
    assert expectation.expectation_section({**ABOUT, "recipe": "of somebody else"}, tmp_path) == []
    assert expectation.expectation_section({**ABOUT, "published": []}, tmp_path) == []
