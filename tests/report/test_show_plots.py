"""Pictures of methods show the numbers of their Attentions, against formulas."""

import math
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.patches import PathPatch, Rectangle

from lexbench import Attention, Model, method
from lexbench.core import registry
from lexbench.core.attention import Blocks, Dynamic, HeadRatios, LogScale, PositionMap, Remap, Slopes, Window
from lexbench.core.method_key import parse_label
from lexbench.report.show.plots import attention_figure, parts_of, plot_attention
from tests.report.pictures import assert_legible, drawn
from tests.report.test_show import BANDED, EVERYTHING, GROUPED, LAYERED, LEARNED, LLAMA2, SCALED, TINY

WIDE = Model(name="wide", trained_length=4096, head_dim=128, rope_base=10_000.0, layers=32, heads=32, kv_heads=32)
METHODS = registry.registered_names("method")


def numbers(
    attention: Attention, label: str = "made up", model: Model = TINY, length: int = 64
) -> dict[tuple[str, str], dict[tuple[float, int | None], float]]:
    """y of each panel and name, by x and the query."""
    found: dict[tuple[str, str], dict[tuple[float, int | None], float]] = defaultdict(dict)
    for panel, name, x, y, query in attention_figure(model, parse_label(label), attention, length)[1]:
        found[panel, name][x, query] = y
    return found


def panels(attention: Attention, tmp_path: Path) -> list[str]:
    """Titles."""
    with drawn() as figures:
        plot_attention(TINY, parse_label("made up"), attention, 64, tmp_path / "a.svg")
    return [axes.get_title("left") for axes in figures[0].axes if axes.get_title("left")]


def test_wavelengths_are_those_of_the_formula() -> None:
    found = numbers(method("pi").attention(TINY, 64), "pi")
    # base 10^4 and four pairs: 1, 10, 100, 1000 tokens a radian; four times as many under a stretch by four
    own = {(pair, None): 2 * math.pi * 10**pair for pair in range(4)}
    assert found["wavelength", "tiny, plain RoPE"] == pytest.approx(own)
    assert found["wavelength", "pi"] == pytest.approx({place: 4 * wave for place, wave in own.items()})
    assert found["slower", "pi"] == pytest.approx({(pair, None): 4.0 for pair in range(4)})


@pytest.mark.slow
def test_a_pair_that_never_turns_is_marked_at_the_edge(tmp_path: Path) -> None:
    attention = Attention(inv_freq=np.array([1, 0.1, 0.01, 0.0]))
    found = numbers(attention)
    assert found["wavelength", "made up"][3.0, None] == math.inf
    assert (3.0, None) not in found["slower", "made up"]
    plot_attention(TINY, parse_label("still"), attention, 64, tmp_path / "a.svg")
    assert "<!-- never turns -->" in (tmp_path / "a.svg").read_text()


def test_dynamic_frequencies_are_those_at_the_length() -> None:
    found = numbers(Attention(dynamic=Dynamic(2.0, 16)))
    # d = 8, rate 2, n / L = 4: base 10^4 (2 * 4 - 1)^(8 / 6), whose last pair turns 7 times slower
    waves = found["wavelength", "made up"]
    assert [waves[pair, None] for pair in range(4)] == pytest.approx(
        [2 * math.pi * (1e4 * 7 ** (8 / 6)) ** (2 * pair / 8) for pair in range(4)]
    )
    assert found["slower", "made up"][3.0, None] == pytest.approx(7.0)


def test_the_last_query_sees_what_the_definition_says() -> None:
    found = numbers(Attention(remap=GROUPED, mask=Window(20, sinks=1)), "grouped")
    # query 63 rotates at 63 // 2 + 2 = 33 and key j at j // 2, from distance 4 on; 20 keys and the first are seen
    last = {distance: distance if distance < 4 else 33 - (63 - distance) // 2 for distance in [*range(20), 63]}
    assert found["distance", "grouped"] == {(distance, 63): seen for distance, seen in last.items()}
    assert {x: y for (x, query), y in found["map", "grouped"].items() if query == 63} == {
        63 - distance: seen for distance, seen in last.items()
    }
    # every query sees its own last 20 keys, and the first: min(q + 1, 20), and one more from the 21st query on
    assert len(found["map", "grouped"]) == sum(min(query + 1, 20) + (query >= 20) for query in range(64))


def test_bands_of_pairs_are_a_line_each_and_the_map_shows_the_largest() -> None:
    found = numbers(Attention(remap=BANDED), "banded", length=40)
    # query 39 rotates at 39 // 2 + 2 = 21 and key j at j // 2 in the first half of the pairs, from distance 4 on
    grouped = {distance: distance if distance < 4 else 21 - (39 - distance) // 2 for distance in range(40)}
    assert found["distance", "banded, band 0"] == {(x, 39): seen for x, seen in grouped.items()}
    assert found["distance", "banded, band 1"] == {(x, 39): x for x in range(40)}
    assert {x: y for (x, query), y in found["map", "banded"].items() if query == 39} == {x: 39 - x for x in range(40)}


def hatched(figures: list[Figure]) -> bool:
    legend = figures[0].axes[-2].get_legend()
    assert legend is not None
    return any(isinstance(each, Rectangle | PathPatch) and each.get_hatch() for each in legend.get_patches())


@pytest.mark.parametrize(("window", "beyond"), [(16, False), (17, True)])
def test_distances_that_were_never_trained_are_hatched(window: int, beyond: bool, tmp_path: Path) -> None:
    # distances up to window - 1 are seen; in training the farthest was 15
    far = Attention(remap=Remap(window=99, query=PositionMap(), key=PositionMap()), mask=Window(window))
    with drawn() as figures:
        plot_attention(TINY, parse_label("far"), far, 64, tmp_path / "a.png")
    assert hatched(figures) == beyond


def test_biases_and_scales_of_queries_are_those_of_the_formulas() -> None:
    found = numbers(Attention(bias=Slopes((0.5, 0.25)), query_scale=LogScale(trained_length=16)), "both")
    assert found["bias", "both, head 0"] == {(0.0, None): 0.0, (63.0, None): -31.5}
    assert found["bias", "both, head 1"] == {(0.0, None): 0.0, (63.0, None): -15.75}
    assert found["query_scale", "both"][63.0, None] == pytest.approx(1.5)  # ln 64 / ln 16


@pytest.mark.parametrize(
    ("attention", "shown"),
    [
        (Attention(), ["wavelength of each rotary pair"]),
        (Attention(scale=2.0), ["wavelength of each rotary pair"]),
        (Attention(inv_freq=np.ones(4)), ["wavelength of each rotary pair", "times slower than the model's own"]),
        (Attention(mask=Blocks(4)), ["distance at which each key is seen"]),
        (Attention(remap=GROUPED), ["distance that the last query sees", "distance at which each key is seen"]),
        (Attention(bias=Slopes((0.5,))), ["bias on the logits of each head"]),
        (Attention(query_scale=LogScale(16)), ["factor of each query"]),
        (Attention(head_ratios=HeadRatios((1.2, 1.8))), ["what positions are divided by"]),
    ],
    ids=lambda value: "-".join(value.slots()) or "nothing" if isinstance(value, Attention) else "",
)
def test_there_is_a_panel_for_each_thing_to_see(attention: Attention, shown: list[str], tmp_path: Path) -> None:
    assert panels(attention, tmp_path) == shown


@pytest.mark.slow
def test_what_has_no_panel_is_said_in_words(tmp_path: Path) -> None:
    plot_attention(
        TINY, parse_label("both"), Attention(scale=1.5, inv_freq=np.ones(4), keep_first=4), 64, tmp_path / "a.svg"
    )
    picture = (tmp_path / "a.svg").read_text()
    assert "scale: cos and sin times 1.5, so logits times 2.25" in picture
    assert "keep_first: the first 4 tokens turn as in the model itself" in picture


def test_passes_and_layers_are_parts_of_their_own() -> None:
    pi, window = Attention(inv_freq=np.ones(4)), Attention(mask=Window(8))
    assert parts_of("a", pi) == {"a": pi}
    assert parts_of("a", Attention(mixture=(pi, window))) == {"a, pass 1": pi, "a, pass 2": window}
    layered = parts_of("a", Attention(mask=Window(8), layers=(0, 2, 3), otherwise=Attention(scale=2.0, layers=(1,))))
    assert list(layered) == ["a, layers 0, 2-3", "a, layers 1", "a, other layers"]
    assert [part.slots() for part in layered.values()] == [("mask",), ("scale",), ()]


def test_methods_of_the_registry_are_drawn_as_they_are() -> None:
    drawn = {name: numbers(method(name).attention(LLAMA2, 16384), name, LLAMA2, 16384) for name in ("pi", "ntk")}
    assert drawn["pi"]["slower", "pi"][0.0, None] == pytest.approx(4.0)
    assert drawn["ntk"]["slower", "ntk"][63.0, None] == pytest.approx(4.0)  # the last pair, by construction


@pytest.mark.slow
def test_the_same_picture_is_the_same_file(tmp_path: Path) -> None:
    attention = Attention(inv_freq=np.ones(4), mask=Window(8, sinks=2))
    for name in ("one", "deeper/two"):
        for suffix in (".svg", ".png"):
            plot_attention(TINY, parse_label("made up"), attention, 64, tmp_path / f"{name}{suffix}")
    for suffix in (".svg", ".png"):
        assert (tmp_path / f"one{suffix}").read_bytes() == (tmp_path / f"deeper/two{suffix}").read_bytes()


def test_another_kind_of_picture_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"plot must end in \.png, \.svg or \.pdf, got picture\.gif"):
        plot_attention(TINY, parse_label("none"), Attention(), 16, tmp_path / "picture.gif")
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_one_file_may_be_written(tmp_path: Path) -> None:
    plot_attention(TINY, parse_label("pi"), method("pi").attention(TINY, 64), 64, tmp_path / "new/a.PNG")
    assert (tmp_path / "new/a.PNG").read_bytes().startswith(b"\x89PNG")
    assert [file.name for file in (tmp_path / "new").iterdir()] == ["a.PNG"]


@pytest.mark.parametrize("model", [SCALED, LAYERED, LEARNED], ids=lambda model: model.name)
def test_a_model_without_plain_frequencies_is_described_in_words(model: Model, tmp_path: Path) -> None:
    with drawn() as figures:
        plot_attention(model, parse_label("none"), Attention(), 64, tmp_path / "a.svg")
    [text] = figures[0].axes[0].texts
    assert re_flowed(text.get_text()).startswith(("The model has no rotary", "The model scales its angles itself"))


def re_flowed(text: str) -> str:
    return " ".join(text.split())


def legible(model: Model, label: str, attention: Attention, length: int, tmp_path: Path) -> None:
    with drawn() as figures:
        plot_attention(model, parse_label(label), attention, length, tmp_path / "a.svg")
    assert_legible(figures[0])


@pytest.mark.slow
@pytest.mark.parametrize("length", [1, 300])
def test_everything_is_legible_at_every_length(length: int, tmp_path: Path) -> None:
    name = "made up, with a name that goes on and on(parameter=$1.2345$, other=[1.0, 2.0])"
    legible(TINY, name, EVERYTHING, length, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_every_method_is_legible(name: str, tmp_path: Path) -> None:
    legible(WIDE, name, method(name).attention(WIDE, 16384), 16384, tmp_path)
