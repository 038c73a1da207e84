"""A pass says how many of its comparisons could have shown a loss, in amber where some could not."""

from pathlib import Path

import pytest

from lexbench.report.check.check import Check, check_runs
from lexbench.report.check.text import check_as_markdown, is_amber, terminal_text, verdict_line
from lexbench.stats import baseline
from lexbench.stats.regressions import Verdict
from tests.report.outcomes import answers, folder, right


@pytest.mark.parametrize(
    ("sides", "said", "amber"),
    [
        # One-sided, 8 answers have no p below 2^-8 = 0.004, and 4 none below 2^-4 = 0.0625.
        (
            {512: (8, 8)},
            "PASS: no loss found in 1 comparison; each would have found one of 76 points of accuracy",
            True,
        ),
        (
            {512: (64, 64)},
            "PASS: no loss found in 1 comparison; each would have found one of 12 points of accuracy",
            False,
        ),
        ({512: (4, 4)}, "PASS: no loss found in 1 comparison, which could not have shown one", True),
        (
            {512: (8, 8), 1024: (4, 4)},
            "PASS: no loss found in 2 comparisons, 1 of which could not have shown one; "
            "the others would have found one of 85 points of accuracy",
            True,
        ),
        ({512: (4, 4), 1024: (4, 4)}, "PASS: no loss found in 2 comparisons, none of which could have shown one", True),
        # Where nothing is found, nothing can be lost, however many are asked.
        ({512: (0, 64)}, "PASS: no loss found in 1 comparison, which could not have shown one", True),
    ],
)
def test_a_pass_counts_the_comparisons_that_could_not_have_shown_a_loss(
    sides: dict[int, tuple[int, int]], said: str, amber: bool, tmp_path: Path
) -> None:
    cells = [answers("none", right(*side), length) for length, side in sides.items()]
    runs = folder(tmp_path / "run", *cells)
    baseline.update_baseline(runs, tmp_path / "b.json")
    found = check_runs(runs, tmp_path / "b.json")
    assert found.code == 0 and verdict_line(found) == said and is_amber(found) == amber
    assert terminal_text(found).splitlines()[0] == said
    assert terminal_text(found, colour=True).splitlines()[0] == (f"\x1b[33m{said}\x1b[0m" if amber else said)
    assert check_as_markdown(found).startswith(f"## lexbench check: {said}\n\n" + "> [!WARNING]\n> PASS" * amber)


def test_comparisons_without_power_are_counted_once_however_many_there_are(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cells = [answers("none", right(4, 4), length) for length in (256, 512, 1024)]
    runs = folder(tmp_path / "run", *cells)
    baseline.update_baseline(runs, tmp_path / "b.json")
    found = check_runs(runs, tmp_path / "b.json")
    counted, lacking = list[Check](), found.powerless

    def powerless(check: Check) -> list[Verdict]:
        counted.append(check)
        return lacking

    monkeypatch.setattr(Check, "powerless", property(powerless))
    assert len(found.blind) == 3 and len(counted) == 1
