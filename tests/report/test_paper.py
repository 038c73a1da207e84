"""One figure for a paper: as wide as its column, with text as text, a panel a task, and the floors."""

import re
from pathlib import Path

import matplotlib as mpl
import pytest

from lexbench.commands import main
from lexbench.report.plots import paper
from lexbench.report.plots.style import STYLE, save_as
from lexbench.stats.tables import tables
from tests.stats.test_headline import needle, text

TABLES = [
    each
    for each in tables(
        [
            *(text(name, at, 3.5 + at / 1024) for name in ("none", "ntk") for at in (256, 2048)),
            *(needle(name, at, 6) for name in ("none", "rerope") for at in (256, 2048)),
        ]
    )
    if each.metric in ("nll", "accuracy")
]
MEDIA = re.compile(rb"/MediaBox \[ 0 0 ([\d.]+) ([\d.]+) \]")


@pytest.mark.parametrize(("size", "columns"), [("neurips", 2), ("acl-column", 1), ("slide", 2)])
def test_a_figure_is_as_wide_as_its_column_and_has_a_panel_a_task(size: str, columns: int, tmp_path: Path) -> None:
    with mpl.rc_context(STYLE):
        made = paper.figure(TABLES, paper.WIDTHS[size])
        save_as(made, tmp_path / "figure.pdf")
    assert [axes.get_title(loc="left") for axes in made.axes] == ["last_segment, lexlet", "passkey, lexlet"]
    assert [axes.get_ylabel() for axes in made.axes] == ["NLL (nats per token)", "accuracy"]
    assert len({round(axes.get_position().x0, 2) for axes in made.axes}) == columns
    [legend] = made.legends
    shown = [each.get_text() for each in legend.get_texts()]
    assert shown[0] == "none" and set(shown) >= {"none", "ntk", "rerope", "chance"}
    content = (tmp_path / "figure.pdf").read_bytes()
    [(width, _)] = MEDIA.findall(content)
    assert float(width) == pytest.approx(72 * paper.WIDTHS[size], abs=1)
    assert b"/Subtype /Type0" in content and b"/ToUnicode" in content  # letters that can be searched, not outlines
    assert b"CreationDate" not in content


def test_a_floor_above_the_axis_is_said() -> None:
    floors = {"uniform": 7.6, "bigram": 6.2}
    [table, _] = [each for each in tables([text("none", at, 3.5, floors) for at in (256, 512)]) if each.better < 0][:2]
    with mpl.rc_context(STYLE):
        made = paper.figure([table], 5.5)
    assert made.axes[0].get_ylim()[1] < 6.2
    assert "bigram floor: 6.20, above" in [each.get_text() for each in made.axes[0].texts]


@pytest.mark.slow
def test_the_command_draws_what_is_chosen_and_says_what_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = str(Path(__file__).parents[2] / "results" / "reference" / "lexlet_quick")
    out = tmp_path / "figure.svg"
    asked = ["figure", folder, "--task", "passkey", "--out", str(out)]
    assert main.main([*asked, "--method", "none", "rerope"]) == 0
    assert capsys.readouterr().out == f"{out}\n"
    assert out.read_bytes().startswith(b"<?xml")
    wrong = {
        "--method none rerop": "unknown method 'rerop' in these runs: did you mean rerope? ",
        "--for nerips": "--for must be one of neurips, iclr, ",
        f"--out {tmp_path / 'figure.gif'}": "plot must end in .png, .svg or .pdf, got figure.gif: ",
    }
    for words, said in wrong.items():
        assert main.main([*asked, *words.split()]) == 2
        assert said in capsys.readouterr().err
    many = tables([text(name, at, 3.5) for name in ("none", *map(str, range(8))) for at in (256, 512)])
    with pytest.raises(ValueError, match=r"^figure can tell 8 methods apart, got 9: choose"):
        paper.figure(many[:1], 5.5)
