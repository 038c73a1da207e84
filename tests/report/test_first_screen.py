"""The first screen of a report: its sentences hold the planted numbers, and its figure shows them better upwards."""

from pathlib import Path

import numpy as np
import pytest

from lexbench.report.headline import first_sentences
from lexbench.report.plots import first_screen
from lexbench.stats.differences import paired_differences
from lexbench.stats.headline import build_headlines
from tests.report.pictures import drawn
from tests.stats.test_headline import needle, read, text


def planted(tmp_path: Path, best_level: float) -> tuple[list[str], list[float]]:
    """Sentences, and yarn's drawn differences; yarn is best in text, rerope at keys: 11 of 12, and yarn 1."""
    levels = {"none": (3.5, 4.5), "yarn": (3.5, best_level), "rerope": (3.5, 4.0)}
    right = {"none": (12, 0), "yarn": (12, 1), "rerope": (12, 11)}
    cells = [text(row, at, level) for row, of in levels.items() for at, level in zip((256, 2048), of, strict=True)]
    cells += [needle(row, at, n) for row, of in right.items() for at, n in zip((256, 2048), of, strict=True)]
    tables, samples = read(*cells)
    [found] = build_headlines(tables, samples)
    compared = paired_differences(found.table, samples)
    assert compared is not None
    keys = first_screen.key_tables(found, tables)
    with drawn() as figures:
        first_screen.plot_first_screen(found, compared, keys, tmp_path / "first")
    left, right_panel = figures[0].axes
    assert right_panel.get_ylim()[0] < right_panel.get_ylim()[1]
    heights = [float(np.asarray(line.get_ydata())[-1]) for line in left.lines]
    return first_sentences(found, compared, keys), heights


def test_the_first_screen_says_and_shows_who_is_better(tmp_path: Path) -> None:
    said, heights = planted(tmp_path, 3.8)
    assert said[0] == (
        "At 2,048 tokens (8x) 2 of 2 methods predict the text better than the unmodified model does there: "
        "by 0.500 (rerope) to 0.700 (yarn) nats per token."
    )
    assert said[1].startswith("Of 12 keys rerope has 11 ")
    assert said[1].endswith("; yarn, the best in text, 1; the unmodified model 0.")
    assert said[2].startswith("Cutting the text to 256 tokens is not beaten: no method predicts text better from 2,048")
    assert pytest.approx(0.7, abs=1e-6) in heights and pytest.approx(0.5, abs=1e-6) in heights  # above the line at 0


def test_a_gain_over_cutting_the_text_is_not_called_none(tmp_path: Path) -> None:
    said, _ = planted(tmp_path, 3.1)
    assert said[2].startswith("yarn gains most from context beyond 256 tokens: +0.400")
