"""CSV of rows: the bytes that pandas writes; marks of entries in the formats of grids."""

import math
from csv import reader
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from lexbench.report.formats import grid_html, grid_latex, grid_markdown, rows_as_csv
from lexbench.report.grid import Grid, GridEntry, Line
from lexbench.report.plots.style import save_numbers

COLUMNS: dict[str, list[Any]] = {
    "whole": [1, 2, 3],
    "gap": [1, None, 3],
    "mixed": [1, 0.5, 2],
    "fractions": [0.1, 1e-17, 1e300],
    "ends": [math.inf, -math.inf, -0.0],
    "nan": [0.5, math.nan, None],
    "truth": [True, None, False],
    "counts": [True, 2, None],
    "nothing": [None, None, None],
    "texts": ["a,b", 'say "so"', None],
    "lines": ["one\ntwo", "", " x "],
    "any": ["text", 1, 0.5],
}


@pytest.mark.parametrize("as_is", [False, True], ids=["widened", "as it is"])
def test_columns_are_written_as_pandas_writes_them(as_is: bool) -> None:
    rows = [{name: column[place] for name, column in COLUMNS.items()} for place in range(3)]
    frame = pd.DataFrame(rows, dtype=object if as_is else None)
    assert rows_as_csv(rows, as_is=as_is) == frame.to_csv(index=False, lineterminator="\n")


@pytest.mark.parametrize("name", COLUMNS)
def test_one_column_is_written_as_pandas_writes_it(name: str) -> None:
    rows = [{name: each} for each in COLUMNS[name]]
    assert rows_as_csv(rows) == pd.DataFrame(rows).to_csv(index=False, lineterminator="\n")


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("=1+1", "'=1+1"),
        ('=HYPERLINK("x")', '\'=HYPERLINK("x")'),
        ("+1", "'+1"),
        ("@SUM(A1)", "'@SUM(A1)"),
        ("-1+1|x", "'-1+1|x"),
        ("-x", "'-x"),
        ("\t=1", "' =1"),
        ("tiny\r=1+1", "tiny =1+1"),
        ("\r=1+1", "' =1+1"),
        (" =1", "' =1"),
        ("a\x1b[31mb", "a [31mb"),
        ("-0.5", "-0.5"),
        ("-1e-05", "-1e-05"),
        ("-", "-"),
        ("yarn(factor=8.0)", "yarn(factor=8.0)"),
        ("a=b", "a=b"),
    ],
)
def test_no_cell_is_a_formula_to_a_spreadsheet(text: str, written: str, tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{"method": text, text: -1.5}, {"method": None, text: None}]
    save_numbers(tmp_path / "plot", ["method", text], [[text, -1.5], ["", ""]])
    for made in (rows_as_csv(rows), (tmp_path / "plot.csv").read_text()):
        head, first, *_ = reader(made.splitlines(), strict=True)
        assert (head, first) == (["method", written], [written, "-1.5"])


def test_no_control_character_reaches_a_file() -> None:
    """A bare carriage return would end a record of CSV; an escape sequence would move a terminal's cursor."""
    name = "tiny\r=1\x1b[2Jx\x7f\u202ey"
    made = rows_as_csv([{"model": name, name: 1}])
    [head, row] = [*reader(made.split("\n"), strict=True)][:2]
    assert head[1] == row[0] == "tiny =1 [2Jx  y" and made.count("\n") == 2
    grid = Grid(title=name, above=[name], head=[name, name], rows=[[name, name]], below=[name])
    written = [*grid_html(grid), *grid_latex(grid), grid_markdown(grid)]
    assert all(letter.isprintable() or letter == "\n" for text in written for letter in text)


def test_a_row_that_lacks_a_column_has_a_gap_there() -> None:
    rows: list[dict[str, Any]] = [{"a": 1, "b": 2}, {"b": 3, "c": "x"}]
    assert rows_as_csv(rows) == "a,b,c\n1.0,2,\n,3,x\n"
    assert rows_as_csv(rows, as_is=True) == "a,b,c\n1,2,\n,3,x\n"


def test_named_columns_stand_in_their_order_and_others_are_left_out() -> None:
    assert rows_as_csv([{"a": 1, "b": 2}], ("b", "c"), as_is=True) == "b,c\n2,\n"


def test_no_rows_give_nothing_or_the_line_of_names() -> None:
    none: list[dict[str, int]] = []
    assert rows_as_csv(none) == ""
    assert rows_as_csv(none, ("a", "b")) == "a,b\n"


def test_a_significant_value_has_its_star_in_every_format_the_best_one_too() -> None:
    row: Line = [
        "ntk",
        GridEntry(text="+0.1", best=True, star=True),
        GridEntry(text="+0.2", star=True),
        GridEntry(text="+0.3"),
    ]
    made = Grid(head=["method", "a", "b", "c"], rows=[row], title="gains")
    assert "| ntk    | **+0.1*** | +0.2* | +0.3 |" in grid_markdown(made)
    assert "ntk & \\textbf{+0.1}* & +0.2* & +0.3 \\\\" in grid_latex(made)
    assert "<td><b>+0.1</b>*</td><td>+0.2*</td><td>+0.3</td>" in "\n".join(grid_html(made))
