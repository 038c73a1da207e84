"""DPE against its formula band by band, and against the arithmetic of the authors' code."""

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from lexbench import Attention, Model, Refused
from lexbench.core.attention import count_bands, seen_distances
from lexbench.kernels import decode, dense, fast
from lexbench.kernels.reference import first_change
from lexbench.kernels.rotations import per_band
from lexbench.methods.dpe import PUBLISHED_BAND_GROUPS, Dpe
from tests.methods.remaps import distances, plain
from tests.methods.test_self_extend import grouped

LLAMA3 = Model(name="Llama-3-8B", trained_length=8192, head_dim=128, rope_base=500_000.0)
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize(("groups", "window"), [((2, 4), 4), ((1, 3, 2, 6), 12), ((8, 1), 8)])
def test_each_band_has_the_distances_of_its_groups(tiny: Model, groups: tuple[int, ...], window: int) -> None:
    remap = Dpe(groups=groups, window=window).attention(tiny, 40).remap
    places = np.arange(40)
    seen = np.nan_to_num(seen_distances(remap, places, places), nan=-1)
    assert seen.shape == (40, 40, len(groups))
    for band, group in enumerate(groups):
        np.testing.assert_array_equal(seen[..., band], grouped(40, group, window, window - window / group))


@pytest.mark.parametrize("groups", [(1,), (1, 1, 1, 1), None])
def test_groups_of_one_and_lengths_that_are_trained_change_nothing(tiny: Model, groups: Any) -> None:
    length = 16 if groups is None else 50
    np.testing.assert_array_equal(distances(Dpe(groups=groups), tiny, length), plain(length))
    assert first_change(Dpe(groups=groups, window=4).attention(tiny, length), tiny, length) is None


def test_a_change_of_one_band_is_a_change(tiny: Model) -> None:
    # Distance 5 becomes 5 // 2 + 4 - 2 = 4 in the last band, from the query at 5 on: length 6, between 4 and 8.
    assert first_change(Dpe(groups=(1, 1, 1, 2), window=4).attention(tiny, 20), tiny, 20) == 8


def test_released_settings_are_those_of_the_config_and_the_readme() -> None:
    # config/dpe_config.yaml, and the example of README.md, of github.com/LuLuLuyi/DPE
    assert (
        PUBLISHED_BAND_GROUPS["llama-3-8b"] == (2, 8, 2, 8, 32, 32, 32, 4) != PUBLISHED_BAND_GROUPS["llama-3-8b-readme"]
    )
    assert PUBLISHED_BAND_GROUPS["llama-3-8b-readme"] == (4, 4, 2, 16, 32, 32, 16, 128)
    assert PUBLISHED_BAND_GROUPS["mistral-7b-v0.2"] == (4, 16, 2, 16, 32, 16, 16, 2)
    assert PUBLISHED_BAND_GROUPS["llama-3.1-8b"] == (2, 32, 32, 2, 2, 2, 2, 1)
    assert PUBLISHED_BAND_GROUPS["qwen2.5-7b"] == (2, 16, 8, 8, 32, 8, 2, 4)


@pytest.mark.parametrize("name", PUBLISHED_BAND_GROUPS)
def test_a_released_setting_has_eight_bands_behind_1024_tokens(name: str) -> None:
    trained = {"llama-3-8b": 8192, "llama-3-8b-readme": 8192, "llama-3.1-8b": 131_072}.get(name, 32_768)
    remap: Any = Dpe(groups=name).attention(replace(LLAMA3, trained_length=trained), 131_072).remap
    assert remap.window == 1024 and count_bands(remap) == 8
    last = seen_distances(remap, np.array([131_071]), np.array([0]))[0, 0]
    # floor(131071 / G) + 1024 - 1024 / G, by hand: 65535 + 512, 16383 + 896, 4095 + 992, 32767 + 768
    if name == "llama-3-8b":
        assert last.tolist() == [66047, 17279, 66047, 17279, 5087, 5087, 5087, 33535]
    assert json.loads(json.dumps(Dpe(groups=list(PUBLISHED_BAND_GROUPS[name])).attention(LLAMA3, 9000).as_data()))


def test_equal_groups_are_one_line_for_all_pairs(tiny: Model) -> None:
    same = Dpe(groups=(4, 4), window=8).attention(tiny, 64)
    assert count_bands(same.remap) == 1
    assert same.as_data() == Dpe(groups=(4,), window=8).attention(tiny, 64).as_data()


@pytest.mark.parametrize(("length", "group", "window"), [(4097, 3, 510), (8192, 4, 512), (16384, 8, 512)])
def test_left_out_all_bands_have_the_group_from_which_the_search_begins(
    llama2: Model, length: int, group: int, window: int
) -> None:
    # 2 length / 4096 rounded up; the largest multiple within 4096 / 8
    remap = Dpe().attention(llama2, length).as_data()["remap"]
    assert (remap["key"]["divisor"], remap["window"]) == (group, window)
    assert Dpe(window=100).attention(llama2, length).as_data()["remap"]["key"]["divisor"] == {3: 4, 4: 4, 8: 10}[group]


def test_groups_given_have_a_window_of_whole_groups(llama2: Model, tiny: Model) -> None:
    assert Dpe(groups=(10, 4)).attention(llama2, 8192).as_data()["remap"]["window"] == 500
    assert Dpe(groups=(10, 4)).attention(tiny, 64).as_data()["remap"]["window"] == 20


def test_bands_that_do_not_divide_the_pairs_are_refused(tiny: Model, nope: Model) -> None:
    with pytest.raises(Refused, match="dpe's bands must divide the 4 pairs of tiny, got 3: give another number"):
        Dpe(groups=(1, 2, 4)).attention(tiny, 32)
    with pytest.raises(Refused, match="nope has no rotary positions"):
        Dpe(groups="qwen2.5-7b").attention(nope, 32)
    with pytest.raises(Refused, match="dpe's group must be at least 4 at 32 tokens of tiny and divide the window, got"):
        Dpe(window=3).attention(tiny, 32)


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ({"groups": "llama-2-7b"}, "dpe has no released groups 'llama-2-7b': take one of llama-3-8b, "),
        ({"groups": []}, r"dpe's groups must be a list or the name of a released setting, got \[\]"),
        ({"groups": 4}, "dpe's groups must be a list or the name of a released setting, got 4"),
        ({"groups": [4, 0]}, "a group of dpe must be a whole number of at least 1, got 0"),
        ({"groups": [4, 1.5]}, "a group of dpe must be a whole number of at least 1, got 1.5"),
        ({"window": 0}, "dpe's window must be a whole number of at least 1, got 0"),
        ({"groups": [4, 6], "window": 16}, "must be a multiple of all groups .* least common multiple 12: change one"),
    ],
)
def test_bad_parameters_are_refused(parameters: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Dpe(**parameters)


# the authors' code

GROUPS, WINDOW, HEAD, LENGTH = (2, 1, 4, 8), 8, 16, 61
INV_FREQ = 100.0 ** (-torch.arange(0, HEAD, 2, dtype=torch.float64) / HEAD)


def tables(positions: Tensor) -> tuple[Tensor, Tensor]:
    """[T, D] cos and sin, each number in both halves."""
    angles = torch.cat([positions.double()[:, None] * INV_FREQ] * 2, dim=-1)
    return angles.cos(), angles.sin()


def joined(parts: list[Tensor]) -> Tensor:
    """A quarter of the pairs of each table, first of the first halves, then of the second ones (`concat_tensors`)."""
    step, half = HEAD // 2 // len(parts), HEAD // 2
    found = [part[:, band * step : (band + 1) * step] for band, part in enumerate(parts)]
    found += [part[:, half + band * step : half + (band + 1) * step] for band, part in enumerate(parts)]
    return torch.cat(found, dim=-1)


def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    one, two = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-two, one], dim=-1) * sin


def by_band(places: list[Tensor]) -> tuple[Tensor, Tensor]:
    cos, sin = zip(*map(tables, places), strict=True)
    return joined(list(cos)), joined(list(sin))


def prefilled(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """`dpe_flash_forward` of a prompt: a window of plain positions, and scaled ones behind it, in one softmax."""
    here = torch.arange(q.shape[2])
    near = turned(q, *tables(here)) @ turned(k, *tables(here)).mT
    scaled_q = by_band([here // g + WINDOW - WINDOW / g for g in GROUPS])
    scaled_k = by_band([here // g for g in GROUPS])
    far = turned(q, *scaled_q) @ turned(k, *scaled_k).mT
    apart = here[:, None] - here[None, :]
    scores = torch.where(apart < WINDOW, near, far).masked_fill(apart < 0, -torch.inf)
    return (scores / math.sqrt(HEAD)).softmax(-1) @ v


def decoded(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """`dpe_flash_forward` of one token: the query stays, keys turn back by their distances."""
    last, keys = k.shape[2] - 1, torch.arange(k.shape[2])
    places = []
    for g in GROUPS:
        scaled, shift = last // g - keys // g, WINDOW - WINDOW // g if last >= WINDOW else 0
        places.append(torch.cat([scaled[:-WINDOW] + shift, (last - keys)[-WINDOW:]]))
    cos, sin = by_band(places)
    return (q @ turned(k, cos, -sin).mT / math.sqrt(HEAD)).softmax(-1) @ v


def vectors() -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 2, LENGTH, HEAD, generator=generator, dtype=torch.float64) for _ in range(3))
    return 2 * q, 2 * k, v


def attention() -> Attention:
    model = Model(name="m", trained_length=32, head_dim=HEAD, rope_base=100.0)
    return Dpe(groups=GROUPS, window=WINDOW).attention(model, LENGTH)


def rotate(vectors: Tensor, positions: Tensor) -> Tensor:
    """Pairs (p, p + D/2), turned by their angles."""
    turn = positions.double()[..., :, None] * INV_FREQ.double()
    one, two = vectors.chunk(2, dim=-1)
    return torch.cat([one * turn.cos() - two * turn.sin(), two * turn.cos() + one * turn.sin()], dim=-1)


ROTATE = per_band(rotate)


@pytest.mark.parametrize("kernel", [dense, fast])
def test_a_prompt_read_whole_or_in_pieces_is_attended_as_by_the_authors_code(kernel: Any) -> None:
    q, k, v = vectors()
    expected = prefilled(q, k, v)
    for ends in ([LENGTH], [20, 37, 38, LENGTH]):
        got, begin = [], 0
        for end in ends:
            here = torch.arange(begin, end)
            known = k[:, :, :end], v[:, :, :end]
            got.append(kernel.attend(q[:, :, begin:end], *known, here, attention(), ROTATE, HEAD**-0.5))
            begin = end
        torch.testing.assert_close(torch.cat(got, dim=2), expected, atol=1e-12, rtol=0)


def test_a_token_over_kept_keys_is_attended_as_by_the_authors_code() -> None:
    from lexbench.backends.hf.exact.state import KeptLayer

    q, k, v = vectors()
    method, layer = attention(), KeptLayer(room=2)
    for end in range(1, LENGTH + 1):
        layer.update(k[:, :, end - 1 : end], v[:, :, end - 1 : end])
        query = q[:, :, end - 1 : end]
        got = decode.attend(query, layer, decode.DecodeStep(np.array([end])), method, ROTATE, HEAD**-0.5)
        torch.testing.assert_close(got, decoded(query, k[:, :, :end], v[:, :, :end]), atol=1e-12, rtol=0)
