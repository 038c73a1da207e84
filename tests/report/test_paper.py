"""One figure for a paper: as wide as its column, with text as text, a panel a task, and the floors."""

import re
import shutil
import subprocess
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Annotation

from lexbench.commands import main
from lexbench.report import paper_table
from lexbench.report.plots import paper
from lexbench.report.plots.style import MATPLOTLIB_STYLE, save_figure_as
from lexbench.stats.differences import paired_differences
from lexbench.stats.tables import build_tables
from tests.report.outcomes import answers, refused, right
from tests.stats.test_headline import needle, text

TABLES = [
    each
    for each in build_tables(
        [
            *(text(name, at, 3.5 + at / 1024) for name in ("none", "ntk") for at in (256, 2048)),
            *(needle(name, at, 6) for name in ("none", "rerope") for at in (256, 2048)),
        ]
    )
    if each.metric in ("nll", "accuracy")
]
MEDIA = re.compile(rb"/MediaBox \[ 0 0 ([\d.]+) ([\d.]+) \]")


@pytest.mark.everyday("slide-2")
@pytest.mark.parametrize(("size", "columns"), [("neurips", 2), ("acl-column", 1), ("slide", 2)])
def test_a_figure_is_as_wide_as_its_column_and_has_a_panel_a_task(size: str, columns: int, tmp_path: Path) -> None:
    with mpl.rc_context(MATPLOTLIB_STYLE):
        made = paper.paper_figure(TABLES, paper.WIDTH_INCHES_OF_SIZE[size])
        save_figure_as(made, tmp_path / "figure.pdf")
    titles = [" ".join(axes.get_title(loc="left").split()) for axes in made.axes]
    assert titles[1] == "Find one random number in repeated noise (passkey, lexlet)" and len(titles) == 2
    labels = [" ".join(axes.get_ylabel().split()) for axes in made.axes]
    assert labels == ["NLL (nats per token) (\u2191 better)", "copied whole (\u2191 better)"]
    assert len({round(axes.get_position().x0, 2) for axes in made.axes}) == columns
    [legend] = made.legends
    shown = [each.get_text() for each in legend.get_texts()]
    assert shown[0] == "unmodified (none)" and set(shown) >= {"ntk", "rerope", "chance"}
    content = (tmp_path / "figure.pdf").read_bytes()
    [(width, _)] = MEDIA.findall(content)
    assert float(width) == pytest.approx(72 * paper.WIDTH_INCHES_OF_SIZE[size], abs=1)
    assert b"/Subtype /Type0" in content and b"/ToUnicode" in content  # letters that can be searched, not outlines
    assert b"CreationDate" not in content


@pytest.mark.slow
def test_differences_stand_beside_levels_where_there_is_room_and_alone_where_not() -> None:
    """By hand: of the same six texts ntk's loss is 0.25 nats above none's at 256 and 2 at 2048."""
    cells = [text(name, at, 3.5 + at / 1024 * (name == "ntk")) for name in ("none", "ntk") for at in (256, 2048)]
    [table] = [each for each in build_tables(cells) if each.metric == "nll"]
    found = paired_differences(table, {each.cell.id: each.samples for each in cells})
    assert found is not None
    compared = {table.name: found}
    with mpl.rc_context(MATPLOTLIB_STYLE):
        wide, narrow = (paper.paper_figure([table], width, (), compared) for width in (5.5, 3.03))
    assert [axes.get_position().x0 < 0.5 for axes in wide.axes] == [True, False]
    [alone] = narrow.axes
    for axes in (wide.axes[0], alone):
        drawn = [line for line in axes.lines if line.get_linestyle() != "None"]  # without marks
        [curve] = [line for line in drawn if list(np.asarray(line.get_xdata())) == [1.0, 8.0]]
        assert np.asarray(curve.get_ydata()).tolist() == pytest.approx([0.25, 2.0])
        assert "the unmodified model" in " ".join(axes.get_ylabel().split())


def test_a_floor_above_the_axis_is_said() -> None:
    floors = {"uniform": 7.6, "bigram": 6.2}
    [table, _] = [
        each for each in build_tables([text("none", at, 3.5, floors) for at in (256, 512)]) if each.better < 0
    ][:2]
    with mpl.rc_context(MATPLOTLIB_STYLE):
        made = paper.paper_figure([table], 5.5)
    assert made.axes[0].get_ylim()[1] < 6.2
    assert "bigram floor: 6.20, above" in [each.get_text() for each in made.axes[0].texts]


@pytest.mark.slow
def test_the_command_draws_what_is_chosen_and_says_what_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = str(Path(__file__).parents[2] / "results" / "reference" / "lexlet")
    out = tmp_path / "figure.svg"
    asked = ["figure", folder, "--task", "passkey", "--out", str(out)]
    assert main.main([*asked, "--method", "none", "rerope"]) == 0
    assert capsys.readouterr().out == f"{out}\n"
    assert out.read_bytes().startswith(b"<?xml")
    assert main.main([*asked, str(tmp_path / "TABLE.TEX")]) == 0  # behind --out FILE
    assert "tabular" in (tmp_path / "TABLE.TEX").read_text()
    capsys.readouterr()
    wrong = {
        "--method none rerop": "unknown method 'rerop' in these runs: did you mean rerope? ",
        "--for nerips": "ieee, page, slide, got nerips: did you mean neurips?\n",
        f"--out {tmp_path / 'figure.gif'}": "--out must end in .pdf, .svg, .png or .tex, got figure.gif: rename it\n",
        "--digits -1": "--digits must be a whole number of at least 0, got -1: e.g. --digits 2\n",
    }
    for words, said in wrong.items():
        assert main.main([*asked, *words.split()]) == 2
        assert said in capsys.readouterr().err


def test_more_than_eight_methods_are_ranked_dots_that_never_cut_the_baseline() -> None:
    """The best at the top; beyond twice the middle one's distance and the baseline there is an arrow."""
    losses = {"none": 6.0, **{str(place): 3.0 + 0.1 * place for place in range(8)}, "lost": 9.0}
    [table, *_] = [
        each
        for each in build_tables([text(name, at, loss) for name, loss in losses.items() for at in (256, 512)])
        if each.metric == "nll"
    ]
    with mpl.rc_context(MATPLOTLIB_STYLE):
        [axes] = paper.paper_figure([table], 5.5).axes
    assert [label.get_text() for label in axes.get_yticklabels()] == [
        "lost",
        "unmodified (none)",
        *map(str, reversed(range(8))),
    ]
    dots = [line for line in axes.lines if np.size(line.get_xdata()) == 1]
    assert [line.get_marker() for line in dots][:2] == [paper.RIGHT_ARROW_MARKER, "o"]
    assert axes.get_xlim()[0] < 3.0 and 6.0 < axes.get_xlim()[1] < 9.0


def test_widths_are_those_of_computer_modern() -> None:
    """By the published metrics: a digit of cmr10 takes 0.5 em, a point 0.277779 em; cmbx10 is 1.15 times as wide.

    A digit of cmr5 takes 0.680557 em, a point 0.402781 em.
    """
    assert paper_table.text_width_points("0.84", 10) == pytest.approx(3 * 5.00002 + 2.77779, rel=0.01)
    assert paper_table.text_width_points("0.84", 5) == pytest.approx(5 * (3 * 0.680557 + 0.402781), rel=0.01)
    assert paper_table.text_width_points("2,048", 10, bold=True) == pytest.approx(
        1.15 * (4 * 5.00002 + 2.77779), rel=0.01
    )


@pytest.mark.parametrize("interval", paper_table.INTERVAL_PLACES)
@pytest.mark.parametrize("size", ["acl-column", "neurips"])
def test_a_table_fits_its_column_as_its_own_letters_say(size: str, interval: str) -> None:
    """Measured again from the text: widths of columns and the gaps between them."""
    made = paper_table.paper_latex(TABLES, paper.WIDTH_INCHES_OF_SIZE[size], interval=interval, lengths=[2048])
    points = {"\\small": 9, "\\footnotesize": 8, "\\scriptsize": 7}[
        re.findall(r"\\(?:small|footnotesize|scriptsize)", made)[0]
    ]
    gap = float(re.findall(r"tabcolsep}{([\d.]+)pt", made)[0])
    lines = [line.removesuffix("[1pt]").strip().removesuffix("\\\\") for line in made.splitlines() if "&" in line]
    widths = [0.0] * (lines[0].count("&") + 1)
    for line in lines:
        for place, cell in enumerate(line.split("&")):
            tiny = " ".join(re.findall(r"{\\tiny ([^}]*(?:{[\[\]]}[^}]*)*)}", cell))
            value = (
                re.sub(r"{\\tiny .*", "", cell).replace("\\textbf", "").translate(str.maketrans("", "", "{}\\")).strip()
            )
            beside = paper_table.text_width_points(tiny.translate(str.maketrans("", "", "{}")), 5)
            widths[place] = max(widths[place], paper_table.text_width_points(value, points) + beside)
    assert sum(widths) + 2 * gap * (len(widths) - 1) <= 72.27 * paper.WIDTH_INCHES_OF_SIZE[size]
    assert ("tiny" in made) == (interval != "none")


def test_a_table_has_the_rows_columns_and_digits_that_are_chosen() -> None:
    made = paper_table.paper_latex(TABLES, 5.5, lengths=[256], interval="none", digits=1)
    rows = [line.rstrip("\\").strip().split(" & ") for line in made.splitlines() if " & " in line]
    assert rows[0] == ["method", "256"]
    assert [row[0] for row in rows[1:]] == ["unmodified", "NTK-aware", "unmodified", "ReRoPE"]
    assert all(re.fullmatch(r"(\\textbf{)?\d+\.\d}?", row[1]) for row in rows[1:])
    assert made.count("{") == made.count("}")


def test_a_table_that_cannot_fit_says_what_would() -> None:
    with pytest.raises(ValueError, match=r"points wide at 7 points, and the column 36: choose fewer lengths"):
        paper_table.paper_latex(TABLES, 0.5)
    with pytest.raises(ValueError, match="--length 77 was not measured: choose from 256, 2048"):
        paper_table.paper_latex(TABLES, 5.5, lengths=[77])


@pytest.mark.slow
@pytest.mark.parametrize("fonts", ["cmr", "times"])
def test_latex_compiles_every_table_and_figure_within_its_column(fonts: str, tmp_path: Path) -> None:
    """By TeX's own measure: boxes no wider than the column, figures as wide as it, and no overfull line."""
    if not shutil.which("pdflatex"):
        pytest.skip("no pdflatex: install texlive-latex-recommended and texlive-fonts-recommended")
    names = ("none", "inverse_leaky_rerope", "yarn(factor=8.0)", "100%_mine&yours #1")
    tried = [
        each
        for each in build_tables([text(name, at, 3.5 + at / 999) for name in names for at in (256, 512, 2048)])
        if each.metric in ("nll", "perplexity")
    ]
    packages = ("booktabs", "graphicx", *(["times"] if fonts == "times" else []))
    lines = ["\\documentclass[10pt]{article}", *(f"\\usepackage{{{each}}}" for each in packages)]
    lines += ["\\parindent0pt\\textwidth14in\\hsize14in\\textheight20in", "\\begin{document}"]
    known: dict[str, float] = {}
    for size, width in paper.WIDTH_INCHES_OF_SIZE.items():
        for interval in paper_table.INTERVAL_PLACES:
            chosen = [2048] if width < 4 and interval == "beside" else []
            file = tmp_path / f"{size}-{interval}.tex"
            file.write_text(paper_table.paper_latex(tried, width, interval=interval, lengths=chosen))
            known[file.stem] = 72.27 * width
            lines.append(f"\\setbox0\\hbox{{\\input{{{file.stem}}}\\unskip}}\\typeout{{IS {file.stem} \\the\\wd0}}")
            lines.append(f"\\parbox{{{width}in}}{{\\input{{{file.stem}}}}}\\clearpage")
    with mpl.rc_context(MATPLOTLIB_STYLE):
        for size in ("neurips", "acl-column"):
            save_figure_as(paper.paper_figure(TABLES, paper.WIDTH_INCHES_OF_SIZE[size]), tmp_path / f"{size}.pdf")
            known[size] = 72.27 * paper.WIDTH_INCHES_OF_SIZE[size]
            lines.append(f"\\setbox0\\hbox{{\\includegraphics{{{size}}}}}\\typeout{{IS {size} \\the\\wd0}}\\box0")
    (tmp_path / "paper.tex").write_text("\n".join([*lines, "\\end{document}"]))
    words = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "paper.tex"]
    said = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, errors="replace").stdout
    assert (tmp_path / "paper.pdf").is_file() and "Overfull \\hbox" not in said, said[-2000:]
    found = {name: float(width) for name, width in re.findall(r"IS (\S+) ([\d.]+)pt", said)}
    assert found.keys() == known.keys()
    for name, width in found.items():
        if "-" in name and name not in paper.WIDTH_INCHES_OF_SIZE:
            assert 0 < width <= known[name], name
        else:
            assert width == pytest.approx(known[name], abs=1), name


def titles_of(made: Figure) -> list[str]:
    return [axes.get_title(loc="left") for axes in made.axes]


def test_tables_of_one_task_say_what_tells_them_apart() -> None:
    """Seeds and models of one folder stand in the titles of panels and of the table's blocks."""
    cells = [answers(name, right(3, 8), 512, seed=seed) for name in ("none", "yarn") for seed in (0, 1)]
    cells += [answers(name, right(5, 8), 512, model="other") for name in ("none", "yarn")]
    made = build_tables(cells)
    with mpl.rc_context(MATPLOTLIB_STYLE):
        shown = titles_of(paper.paper_figure(made, 5.5))
    told = [" ".join(title.split()).removeprefix("Find one random number in repeated noise ") for title in shown]
    assert told == ["(passkey, lexlet) seed 0", "(passkey, lexlet) seed 1", "(passkey, other)"]
    blocks = re.findall(r"\\textit{(.*)}}", paper_table.paper_latex(made, 5.5))
    assert blocks == [
        "passkey, lexlet, copied whole $\\uparrow$, seed 0",
        "passkey, lexlet, copied whole $\\uparrow$, seed 1",
        "passkey, other, copied whole $\\uparrow$",
    ]


@pytest.mark.parametrize(("digits", "bold"), [(None, ["0.92", "0.92"]), (3, ["0.917"]), (1, ["0.9", "0.9", "0.9"])])
def test_bold_are_all_values_that_look_like_the_best_and_no_other(digits: int | None, bold: list[str]) -> None:
    """Means of 0.9167, 0.9157, 0.8907 and 0.5, rounded by hand."""
    scores = {"none": 6 / 12, "pi": 11 / 12, "ntk": 11 / 12 - 0.001, "yarn": 11 / 12 - 0.026}
    made = paper_table.paper_latex(
        build_tables([answers(name, [each] * 8) for name, each in scores.items()]), 5.5, digits=digits
    )
    assert re.findall(r"textbf{([\d.]+)}", made) == bold


@pytest.mark.parametrize("beyond", ["refused", "nothing"])
def test_ranked_dots_leave_no_method_out(beyond: str) -> None:
    """Ten methods at 256; at 512 five have a value, or none has: then the dots are those of 256."""
    names = ["none", *(str(place) for place in range(9))]
    cells = [answers(name, right(4, 8), 256) for name in names]
    if beyond == "nothing":
        cells += [refused(name, 512) for name in names]
    else:
        cells += [answers(name, right(4, 8), 512) for name in names[:5]] + [refused(name, 512) for name in names[5:9]]
    with mpl.rc_context(MATPLOTLIB_STYLE):
        [axes] = paper.paper_figure(build_tables(cells), 5.5).axes
    labels = [label.get_text().removeprefix("unmodified (").removesuffix(")") for label in axes.get_yticklabels()]
    assert sorted(labels) == sorted(names)
    words = {labels[int(text.xy[1])]: text.get_text() for text in axes.texts if isinstance(text, Annotation)}
    if beyond == "nothing":
        assert axes.get_xlabel() == "copied whole at 256 tokens (\u2191 better)" and not words
    else:
        assert axes.get_xlabel() == "copied whole at 512 tokens (\u2191 better)"
        assert words == {**dict.fromkeys(names[5:9], "refused"), names[9]: "not measured"}
        assert set(labels[:5]) == set(words)


def test_ranked_dots_of_refused_cells_alone_name_the_methods() -> None:
    with mpl.rc_context(MATPLOTLIB_STYLE):
        [axes] = paper.paper_figure(build_tables([refused(str(place)) for place in range(10)]), 5.5).axes
    assert [text.get_text() for text in axes.texts] == ["refused"] * 10


def test_ranked_dots_of_a_measure_without_a_better_side_have_no_arrows() -> None:
    """The shortest distance, 1 token, is as good as the longest, 900."""
    distances = [1.0, *(800.0 + 10 * place for place in range(10)), 900.0]
    cells = [answers(str(place), [each] * 4, metric="attention_distance") for place, each in enumerate(distances)]
    with mpl.rc_context(MATPLOTLIB_STYLE):
        [axes] = paper.paper_figure(build_tables(cells), 5.5).axes
    dots = sorted(float(np.asarray(line.get_xdata())[0]) for line in axes.lines if np.size(line.get_xdata()) == 1)
    assert dots == sorted(distances)
