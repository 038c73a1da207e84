"""Another attention under the name of a method is a finding of its own."""

import json
from pathlib import Path
from typing import Any

import pytest

from lexbench.commands.main import main
from lexbench.stats.alterations import changed_slots
from lexbench.store.format import FinishedCell
from tests.report.outcomes import answers, folder, right


def ntk(attention: dict[str, Any], n_right: int = 16, length: int = 512) -> FinishedCell:
    return answers("ntk", right(n_right, 16), length, identity={"attention": attention})


BEFORE = {"inv_freq": [1.0, 0.0044, 1e-5], "remap": {"kind": "Remap", "window": 512}}


@pytest.mark.parametrize(
    ("after", "said"),
    [
        (
            {**BEFORE, "inv_freq": [1.0, 0.0031, 1e-5]},
            "pair 1 turns by 0.0031 radians a token, was 0.0044",
        ),
        (
            {**BEFORE, "inv_freq": [1.0, 0.0043, 0.5e-5]},
            "pair 2 turns by 5e-06 radians a token, was 1e-05, and 1 more",
        ),
        ({**BEFORE, "remap": {"kind": "Remap", "window": 256}}, "remap.window is 256, was 512"),
        ({**BEFORE, "scale": 1.2}, "scale is 1.2, was nothing"),
    ],
)
def test_another_attention_is_named_and_has_its_own_exit_code(
    after: dict[str, Any], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base, file = folder(tmp_path / "base", ntk(BEFORE)), str(tmp_path / "b.json")
    assert main(["check", str(base[0]), "--baseline", file, "--update"]) == 0
    run = str(folder(tmp_path / "run", ntk(after))[0])
    capsys.readouterr()
    assert main(["check", run, "--baseline", file, "--github"]) == 4
    shown = capsys.readouterr().out
    assert shown.startswith("CHANGED: another attention of ntk, 1 held")
    assert f"another method under the same name: ntk on lexlet at 512: {said}; --update or --allow-changed" in shown
    assert "::error title=lexbench check%3A changed::" in shown
    assert main(["check", run, "--baseline", file, "--allow-changed"]) == 0
    assert said in capsys.readouterr().out
    assert main(["check", run, "--baseline", file, "--json"]) == 4
    [row] = json.loads(capsys.readouterr().out)["alterations"]
    assert (row["method"], row["lengths"]) == ("ntk", [512])
    # A loss wins; what the baseline was updated to is no change.
    worse = str(folder(tmp_path / "worse", ntk(after, 2))[0])
    assert main(["check", worse, "--baseline", file]) == 1
    assert main(["check", run, "--baseline", file, "--update"]) == 0
    assert main(["check", run, "--baseline", file]) == 0


def test_rounding_is_no_change(tmp_path: Path) -> None:
    base, file = folder(tmp_path / "base", ntk(BEFORE)), str(tmp_path / "b.json")
    assert main(["check", str(base[0]), "--baseline", file, "--update"]) == 0
    close = {**BEFORE, "inv_freq": [1.0, 0.0044 * (1 + 1e-9), 1e-5]}
    assert main(["check", str(folder(tmp_path / "run", ntk(close))[0]), "--baseline", file]) == 0


def test_an_older_baseline_tells_no_more_than_that_it_changed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base, file = folder(tmp_path / "base", ntk(BEFORE)), tmp_path / "b.json"
    assert main(["check", str(base[0]), "--baseline", str(file), "--update"]) == 0
    page = json.loads(file.read_text())
    del page["attentions"], page["checksum"]
    file.write_text(json.dumps(page))
    run = str(folder(tmp_path / "run", ntk({**BEFORE, "scale": 1.2}))[0])
    capsys.readouterr()
    assert main(["check", run, "--baseline", str(file)]) == 4
    assert "another hash, of which an older baseline tells no more" in capsys.readouterr().out
    assert main(["check", str(base[0]), "--baseline", str(file)]) == 0


def test_questions_that_changed_under_equal_settings_are_4_and_cannot_be_allowed(tmp_path: Path) -> None:
    old, new = answers("ntk", right(16, 16)), answers("ntk", right(16, 16), protocol="other words")
    base, file = folder(tmp_path / "base", old), str(tmp_path / "b.json")
    assert main(["check", str(base[0]), "--baseline", file, "--update"]) == 0
    run = str(folder(tmp_path / "run", new)[0])
    assert main(["check", run, "--baseline", file]) == 4
    assert main(["check", run, "--baseline", file, "--allow-changed"]) == 2


def test_slots_are_compared_one_by_one() -> None:
    one = {"mixture": [{"inv_freq": [1.0, 0.5]}, {"scale": 1.0}], "layers": [0, 1]}
    other = {"mixture": [{"inv_freq": [1.0, 0.25]}, {"scale": 1.1}], "layers": [0]}
    found = changed_slots(one, other)
    assert [(each.path, each.before, each.after) for each in found] == [
        (("layers", 1), 1, None),
        (("mixture", 0, "inv_freq", 1), 0.5, 0.25),
        (("mixture", 1, "scale"), 1.0, 1.1),
    ]
