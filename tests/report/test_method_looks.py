"""A method has one look everywhere: from its name alone, told apart by the colour-blind, the baseline always dark."""

import itertools
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest

from lexbench.commands.versus import COMPARED_METHODS
from lexbench.core import registry
from lexbench.core.method_key import BASELINE_METHOD, MethodKey, parse_label
from lexbench.core.record import Sample
from lexbench.methods.pi import Pi
from lexbench.report import looks
from lexbench.report.plots import over_length
from lexbench.report.plots.style import MARKER_OF_SHAPE, line_style, series_style
from lexbench.report.plots.value_axis import ValueScale, scale_of
from lexbench.stats.tables import Table, build_tables
from lexbench.store.format import FinishedCell
from tests.report.fake_run import cell
from tests.report.pictures import drawn

METHODS = registry.registered_names("method")
CONES = {
    "all": np.eye(3),
    "no red": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "no green": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "no blue": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}
"""What dichromats see of linear RGB: Machado, Oliveira and Fernandes 2009, severity 1."""
TO_XYZ = np.array(
    [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.119192, 0.9503041]]
)


def linear(colour: str) -> np.ndarray:
    parts = np.array(mpl.colors.to_rgb(colour))
    return np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)


def lab(rgb: np.ndarray) -> np.ndarray:
    """CIE L*a*b* of linear RGB, white D65."""
    ratios = TO_XYZ @ np.clip(rgb, 0, 1) / np.array([0.95047, 1.0, 1.08883])
    x, y, z = np.where(ratios > 0.008856, np.cbrt(ratios), 7.787 * ratios + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("cones", CONES)
@pytest.mark.parametrize("palette", [looks.LIGHT_PAGE_COLOURS, looks.DARK_PAGE_COLOURS], ids=["paper", "dark page"])
def test_colours_are_told_apart_with_and_without_each_kind_of_cone(palette: tuple[str, ...], cones: str) -> None:
    seen = [lab(np.array(CONES[cones]) @ linear(colour)) for colour in palette]
    assert min(float(np.linalg.norm(one - other)) for one, other in itertools.combinations(seen, 2)) > 20


@pytest.mark.parametrize(
    ("palette", "paper"), [(looks.LIGHT_PAGE_COLOURS, "#ffffff"), (looks.DARK_PAGE_COLOURS, "#14171a")]
)
def test_colours_stand_out_from_their_paper(palette: tuple[str, ...], paper: str) -> None:
    for colour in palette:  # contrast of WCAG 2
        one, other = sorted((float(TO_XYZ[1] @ linear(each)) for each in (colour, paper)), reverse=True)
        assert (one + 0.05) / (other + 0.05) >= 3


def keys(*labels: str) -> list[MethodKey]:
    return list(map(parse_label, labels))


FAMILIES = {
    family: [name for name in METHODS if looks.family_of(name) == family] for family in (*looks.METHOD_FAMILIES, "none")
}


def test_every_method_of_the_registry_states_a_family_and_has_a_look_that_no_other_has() -> None:
    placed = [name for names in FAMILIES.values() for name in names]
    assert sorted(placed) == METHODS and FAMILIES["none"] == ["none"]
    found = looks.looks_of_methods(keys(*METHODS))
    assert len({(look.tone, look.marker) for look in found.values()}) == len(METHODS)
    for names in FAMILIES.values():  # in a family's panel, the colour alone is enough
        assert len({found[parse_label(name)].tone for name in names}) == len(names) <= len(looks.FAMILY_COLOURS)
    assert [name for name, look in found.items() if look.tone == 0] == [BASELINE_METHOD]
    assert all(look.dash == 0 for name, look in found.items() if name == BASELINE_METHOD)
    assert {look.marker for look in found.values()} <= MARKER_OF_SHAPE.keys()


def test_the_usual_methods_and_ones_own_share_neither_colour_nor_marker() -> None:
    # Before, pi and self_extend were both orange.
    found = looks.looks_of_methods(keys("none", *COMPARED_METHODS, "dca", "streaming_llm", "mine"))
    assert len(found) == len({look.tone for look in found.values()}) == len({look.marker for look in found.values()})
    assert all(look.dash == 0 for look in found.values())


def test_the_family_of_a_method_is_an_attribute_of_its_class_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert Pi.family == looks.family_of("pi") == "interpolation"
    (tmp_path / "method").mkdir()
    (tmp_path / "method" / "mine.yaml").write_text("_target_: lexbench.methods.pi.Pi\nfactor: 4\n")
    monkeypatch.setenv("LEXBENCH_CONFIG_PATH", str(tmp_path))
    assert looks.family_of("mine") is None  # a reader's own name for it is the reader's own method


def test_a_look_does_not_follow_the_place_in_the_list() -> None:
    whole = looks.looks_of_methods(keys(*METHODS))
    for name in keys(*METHODS):
        assert (
            looks.looks_of_methods([name])[name]
            == looks.looks_of_methods([*keys("mine"), name, *keys("other")])[name]
            == whole[name]
        )


def test_parameters_change_the_dashes_and_keep_colour_and_marker() -> None:
    found = looks.looks_of_methods(keys("yarn", "yarn(factor=4.0)", "yarn(factor=8.0)", "yarn+log_n"))
    assert len({(look.tone, look.marker) for look in found.values()}) == 1
    assert len({look.dash for look in found.values()}) == 4


@pytest.mark.parametrize(
    ("label", "names", "own"),
    [
        ("yarn", ["yarn"], False),
        ("yarn(factor=8.0)+log_n", ["yarn", "log_n"], False),
        ("none #2", ["none"], False),
        ("mine(note='a (b) + c')", ["mine"], True),
        ("yarn+mine", ["yarn", "mine"], True),
        ("rerope(window=64, leak=(1, 2)) #3", ["rerope"], False),
    ],
)
def test_a_label_names_its_methods(label: str, names: list[str], own: bool) -> None:
    assert list(parse_label(label).names) == names
    assert looks.is_own(parse_label(label)) == own


def test_ones_own_methods_are_starred_and_thick_and_named_ones_too() -> None:
    found = looks.looks_of_methods(keys("none", "yarn", "pi", "mine(x=1)"), ["yarn"])
    assert (
        found[parse_label("mine(x=1)")].marker == "star"
        and found[parse_label("mine(x=1)")].colour == looks.HIGHLIGHT_COLOUR
    )
    assert {str(name) for name, look in found.items() if look.front} == {"yarn", "mine(x=1)"}
    assert found[parse_label("yarn")].colour == looks.looks_of_methods(keys("yarn"))[parse_label("yarn")].colour
    widths = {str(name): line_style(look)["linewidth"] for name, look in found.items()}
    assert widths["mine(x=1)"] == widths["yarn"] > widths["none"] > widths["pi"]


def test_more_than_eight_lines_have_a_panel_a_family() -> None:
    few = looks.family_panels(keys("none", "yarn", "mine", "pi"))
    assert few == [("", keys("none", "mine", "yarn", "pi"))]
    found = dict(looks.family_panels(keys(*METHODS, "mine"), ["yarn"]))
    assert list(found) == list(looks.METHOD_FAMILIES)
    assert all(shown[0] == BASELINE_METHOD and {"mine", "yarn"} < set(map(str, shown)) for shown in found.values())
    assert sorted({str(name) for shown in found.values() for name in shown}) == sorted([*METHODS, "mine"])
    many = looks.family_panels(keys("none", *(f"mine{number}" for number in range(20))))
    assert [len(shown) for _, shown in many] == [8, 8, 7]  # the baseline and seven, seven, six


def made(values: dict[str, tuple[float, ...]], metric: str = "nll") -> Table:
    """Methods with a value at 128, 256, 512, ..., without intervals."""
    found = []
    for method, row in values.items():
        for place, value in enumerate(row):
            told = cell("last_segment", method, 128 << place, n=1)
            about: dict[str, Any] = {"index": 0, "cluster": "0", "tokens": told.length}
            sample = (
                Sample(**about, nll=np.full(4, value, np.float32))
                if metric == "nll"
                else Sample(**about, scores={metric: value})
            )
            found.append(FinishedCell(told, [sample], None))
    return next(table for table in build_tables(found) if table.metric == metric)


def test_the_baseline_is_never_cut_off() -> None:
    # others: worst 2, 2.1 and 2.2 above 1.5: 1.5 + 1.5 (2.1 - 1.5) = 2.4, above all of them, so their axis ends at 2.2
    # and a margin, 5 % of 2.2 - 1.5; least 2 + 1 does not lie below. The baseline's 9
    # leaves them (2.2 - 1.5) / (9 - 1.5), less than half of the height: compressed.
    rows = {"none": (1.5, 9.0), "pi": (1.5, 2.1), "yarn": (1.5, 2.0), "ntk": (1.5, 2.2)}
    scale = scale_of(
        {parse_label(name): [(value, None, None) for value in row] for name, row in rows.items()}, False, False
    )
    assert scale.fold == pytest.approx(2.235) and not scale.is_above_axis(9.0)
    ends = scale.forward([scale.low, scale.fold or 0.0, scale.top])
    assert (ends[1] - ends[0]) / (ends[2] - ends[0]) == pytest.approx(0.75)
    assert scale.inverse(scale.forward([1.6, 2.2, 5.0])) == pytest.approx([1.6, 2.2, 5.0])
    few = {BASELINE_METHOD: [(2.5, None, None)], parse_label("pi"): [(2.0, None, None), (1.5, None, None)]}
    near = scale_of(few, False, False)
    assert near.fold is None and not near.is_above_axis(2.5)  # half of the height is left to the others


def test_a_method_worse_than_the_baseline_leaves_the_axis_with_an_arrow(tmp_path: Path) -> None:
    table = made({"none": (2.0, 2.1, 3.0), "pi": (2.0, 2.0, 2.1), "yarn": (2.0, 2.0, 2.2), "ntk": (2.0, 9.0, 99.0)})
    with drawn() as figures:
        over_length.plot_over_length(table, tmp_path / "a")
    [axes] = figures[0].axes
    assert axes.get_ylim()[0] == pytest.approx(3.2, abs=0.2)  # min(worst) + 1 above 2.0 is 3.0
    labels = [text.get_text() for text in axes.get_legend().get_texts()]  # type: ignore[union-attr]
    assert labels == ["unmodified (none)", "ntk", "pi", "yarn", "leaves the axis"]


def test_perplexity_is_compressed_in_nats() -> None:
    scale = ValueScale(0.0, 8.0, 2.0, logarithmic=True)
    heights = scale.forward(np.exp([0.0, 2.0, 8.0]))
    assert heights == pytest.approx([0.0, 2.0, 2.0 + 2.0 / 3])
    assert scale.inverse(heights) == pytest.approx(np.exp([0.0, 2.0, 8.0]))


def test_lines_of_one_colour_differ_in_marker_and_stroke() -> None:
    """Four times eight lines: markers and strokes are those of print, where colours cannot be told."""
    looks = [series_style(place) for place in range(32)]
    for colour in {look["color"] for look in looks}:
        same = [look for look in looks if look["color"] == colour]
        assert len(same) == len({look["marker"] for look in same}) == len({look["linestyle"] for look in same}) == 4
