"""T5's buckets, against numbers of transformers and x-transformers, and its bias pair by pair."""

import math

import pytest
import torch
from torch import Tensor

from lexbench.parts.lab.encodings.t5 import T5, first_distances
from lexbench.parts.lab.native import build
from lexbench.parts.lab.native.decoder import DecoderShape
from tests.parts.lab.encodings.layouts import doubled, drawn_twice_alike, everywhere

pytestmark = pytest.mark.usefixtures("one_thread")


def buckets(encoding: T5, distances: Tensor) -> list[int]:
    return [int(bucket) for bucket in encoding.distance_buckets(distances)]


def bucket(distance: float, count: int, largest: int) -> int:
    """By the formula, of whole distances that are no boundary."""
    near = count // 2
    if distance < near:
        return int(distance)
    grown = math.log(int(distance) / near) / math.log(largest / near) * (count - near)
    return min(near + math.floor(grown), count - 1)


def test_buckets_are_those_of_transformers_decoder() -> None:
    from transformers.models.t5.modeling_t5 import T5Attention

    distances = torch.arange(5000)
    for count, largest in ((32, 128), (32, 100), (8, 20), (64, 1000), (31, 128), (2, 2)):
        theirs = T5Attention._relative_position_bucket(-distances, False, count, largest)
        assert buckets(T5(1, 8, count, largest), distances) == theirs.tolist(), (count, largest)


def test_buckets_are_those_that_t5_gave_when_it_was_run() -> None:
    distances = torch.tensor([0, 1, 15, 16, 17, 20, 23, 32, 64, 100, 127, 128, 1000])
    assert buckets(T5(4, 32), distances) == [0, 1, 15, 16, 16, 17, 18, 21, 26, 30, 31, 31, 31]


def test_a_boundary_that_is_a_whole_number_begins_its_bucket() -> None:
    # 16 (256 / 16)^(m / 16) = 16 * 2^(m / 4): 32, 64, 128 begin buckets 20, 24, 28
    starts = first_distances(32, 256).tolist()
    assert [starts[place - 1] for place in (16, 20, 24, 28)] == [16, 32, 64, 128]
    assert buckets(T5(1, 8, 32, 256), torch.tensor([31, 32, 63, 64, 127, 128])) == [19, 20, 23, 24, 27, 28]


def test_the_bias_is_that_of_transformers_attention() -> None:
    from transformers import T5Config
    from transformers.models.t5.modeling_t5 import T5Attention

    config = T5Config(d_model=32, d_kv=8, num_heads=4, is_decoder=True)
    theirs = T5Attention(config, has_relative_attention_bias=True, layer_idx=0)
    ours = T5(4, 32, gain=1.0)
    ours.table.data = theirs.relative_attention_bias.weight.data.clone()
    everyone = torch.arange(200, dtype=torch.float64)
    seen = torch.ones(200, 200, dtype=torch.bool).tril()
    full = theirs.compute_bias(200, 200)[0]
    assert torch.equal(ours.bias(everyone, everyone)[:, seen], full[:, seen])
    assert torch.equal(ours.bias(everyone[-3:], everyone)[:, seen[-3:]], full[:, -3:][:, seen[-3:]])


def test_the_bias_is_that_of_x_transformers() -> None:
    theirs = pytest.importorskip("x_transformers.x_transformers").RelativePositionBias(1.0, causal=True, heads=4)
    ours = T5(4, 32, gain=1.0)
    ours.table.data = theirs.relative_attention_bias.weight.data.clone()
    everyone = torch.arange(150)
    torch.testing.assert_close(ours.bias(everyone, everyone).tril(), theirs(150, 150).tril())


@pytest.mark.parametrize(("count", "largest"), [(32, 128), (8, 20)])
def test_the_bias_is_the_buckets_entry_wherever_tokens_stand(count: int, largest: int) -> None:
    encoding = T5(3, 32, count, largest, gain=1.0)
    doubled(encoding)
    table = encoding.table.tolist()
    everywhere(encoding, lambda head, i, j: float(table[bucket(i - j, count, largest)][head]), 3)


def test_all_layers_share_one_table_that_begins_as_t5s() -> None:
    shape = DecoderShape(vocabulary=97, layers=3, width=64, heads=4, kv_heads=2, hidden=48)
    encoding = build.build_encoding("t5", shape, 24)
    assert [tuple(weight.shape) for weight in encoding.parameters()] == [(32, 4)]
    assert encoding.at(2) is encoding
    wide = T5(1000, 64)
    wide.initialise(torch.Generator().manual_seed(0))
    places = torch.arange(32, dtype=torch.float64)
    assert float(wide.bias(places[-1:], places).detach().std()) == pytest.approx(64**-0.5, rel=0.03)
    drawn_twice_alike(T5(4, 32), T5(4, 32))


def test_the_scores_may_go_without_a_factor_as_in_t5() -> None:
    assert T5(4, 32).scaling(16) == 0.25
    assert T5(4, 32, scaled=False).scaling(16) == 1.0


@pytest.mark.parametrize(("gain", "moved"), [(None, 8.0), (1.0, 1.0)])
def test_its_gain_is_how_far_a_step_of_the_table_moves_the_bias(gain: float | None, moved: float) -> None:
    encoding, place = T5(4, 64, gain=gain), torch.zeros(1, dtype=torch.float64)
    before = encoding.bias(place, place).detach().clone()
    encoding.table.data += 0.5
    torch.testing.assert_close(encoding.bias(place, place).detach() - before, torch.full((4, 1, 1), 0.5 * moved))


def test_bad_parameters_are_errors() -> None:
    with pytest.raises(ValueError, match="at least 2 buckets, got 1"):
        T5(4, 32, buckets=1)
    with pytest.raises(ValueError, match="max_distance above half its buckets, got 16 of 32: raise"):
        T5(4, 32, max_distance=16)
    with pytest.raises(ValueError, match="gain must be finite and above 0, got 0"):
        T5(4, 32, gain=0)
