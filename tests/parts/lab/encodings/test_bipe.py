"""BiPE's two positions, and which tokens end a segment."""

import numpy as np
import pytest
import torch

from lexbench import Attention
from lexbench.checkpoints.tokenizer import FastTokenizer
from lexbench.parts.lab.encodings.alibi import Alibi
from lexbench.parts.lab.encodings.bipe import Bipe
from lexbench.parts.lab.encodings.rope import Rope
from lexbench.parts.lab.native import build
from lexbench.parts.lab.native.attend import EncodingAttention
from lexbench.parts.lab.native.decoder import DecoderShape

MARKS = [3, 5]
TOKENS = torch.tensor([[7, 8, 3, 9, 9, 5, 3, 1], [3, 1, 1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1, 1, 5]])
SEGMENTS = [[0, 0, 0, 1, 1, 1, 2, 3], [0, 1, 1, 1, 1, 1, 1, 1], [0] * 8]
PLACES = [[0, 1, 2, 0, 1, 2, 0, 0], [0, 0, 1, 2, 3, 4, 5, 6], list(range(8))]


def table(size: int, width: int = 4) -> torch.Tensor:
    return torch.arange(1.0, size + 1)[:, None].expand(size, width).clone()


def test_a_separator_is_the_last_of_its_segment() -> None:
    encoding = Bipe(Rope(8), 4, MARKS, size=10)
    encoding.table.data = table(10)
    segments = encoding.positions(TOKENS, 8)
    assert segments.tolist() == SEGMENTS and segments.dtype == torch.float64
    added = encoding.embed(torch.zeros(3, 8, 4), TOKENS, segments)
    np.testing.assert_array_equal(added.detach(), np.array(PLACES)[..., None] + np.ones(4))


def test_places_by_a_loop_over_random_tokens() -> None:
    encoding = Bipe(Rope(8), 4, MARKS, size=6)
    encoding.table.data = table(6)
    tokens = torch.randint(0, 12, (4, 100), generator=torch.Generator().manual_seed(0))
    added = encoding.embed(torch.zeros(4, 100, 4), tokens, torch.zeros(100))[..., 0]
    segments = encoding.positions(tokens, 100)
    for row in range(4):
        segment = place = 0
        for n in range(100):
            assert segments[row, n] == segment
            assert added[row, n] == min(place, 5) + 1  # clipped at the table's end
            if int(tokens[row, n]) in MARKS:
                segment, place = segment + 1, 0
            else:
                place += 1


def test_the_inner_encoding_sees_segments() -> None:
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(3, heads, 8, 8, generator=generator, dtype=torch.float64) for heads in (4, 2))
    rope, alibi = Bipe(Rope(8), 4, MARKS), Bipe(Alibi(4), 4, MARKS)
    theta = 10000.0 ** (-np.arange(4) / 4)
    turned = EncodingAttention(rope, Attention(), q, k, rope.positions(TOKENS, 8)).logits(0, 8)
    biased = EncodingAttention(alibi, Attention(), q, k, alibi.positions(TOKENS, 8)).logits(0, 8)
    for row in range(3):
        for head in range(4):
            for i in range(8):
                for j in range(i + 1):
                    one, two = q[row, head, i].numpy(), k[row, head // 2, j].numpy()
                    apart = SEGMENTS[row][i] - SEGMENTS[row][j]
                    pairs = (one[:4] + 1j * one[4:]) * (two[:4] - 1j * two[4:])
                    expected = (pairs * np.exp(1j * apart * theta)).sum().real / 8**0.5
                    assert float(turned[row, head, i, j]) == pytest.approx(expected, abs=1e-12)
                    expected = one @ two / 8**0.5 - 96 * 4.0 ** -(head + 1) * apart
                    assert float(biased[row, head, i, j]) == pytest.approx(expected, abs=1e-12)


def test_segments_may_be_spread_otherwise() -> None:
    assert Bipe(Alibi(4), 4, MARKS, spread=2).positions(TOKENS, 8)[0, -1] == 6
    assert Bipe(Alibi(4), 4, MARKS).positions(TOKENS, 8)[0, -1] == 288


def test_methods_change_frequencies_but_no_distances() -> None:
    encoding = Bipe(Rope(8, 500.0), 4, MARKS)
    assert encoding.facts == Rope(8, 500.0).facts and not encoding.remaps


def test_the_table_begins_as_embeddings_do() -> None:
    encoding = Bipe(Rope(8), 64, MARKS)
    encoding.initialise(torch.Generator().manual_seed(0))
    assert encoding.table.shape == (1024, 64)
    assert float(encoding.table.detach().std()) == pytest.approx(0.02, rel=0.02)


def test_texts_stand_for_all_tokens_that_hold_them(tokenizer: FastTokenizer) -> None:
    spec = build.resolve_spec({"name": "bipe", "separators": [".", "o", 2]}, tokenizer)
    holding = [n for n in range(tokenizer.vocabulary) if set(".o") & set(tokenizer.decode([n]))]
    assert spec["separators"] == sorted({2, *holding}) and len(holding) > 2
    ids = tokenizer.encode("no. more").ids
    assert set(ids[np.isin(ids, spec["separators"])]) == {n for n in ids if set(".o") & set(tokenizer.decode([n]))}
    shape = DecoderShape(vocabulary=320, layers=1, width=32, heads=4, kv_heads=2, hidden=48)
    assert build.build_encoding(spec, shape, 64).positions(torch.from_numpy(ids)[None], len(ids))[0, -1] >= 2
    default = build.resolve_spec("bipe", tokenizer)["separators"]
    assert [n for n in range(320) if {".", "\n"} & set(tokenizer.decode([n]))] == default
    kept = {"name": "bipe", "separators": [4, 5]}
    assert build.resolve_spec(kept, tokenizer)["separators"] == [4, 5]


def test_bad_parameters_are_errors(tokenizer: FastTokenizer) -> None:
    remedy = r"give encoding.separators token ids, or texts such as \['.', '\\n'\]"
    with pytest.raises(ValueError, match=f"bipe needs separators as token ids, got none: {remedy}"):
        Bipe(Rope(8), 4)
    with pytest.raises(ValueError, match=r"as token ids, got \['.', 3\]: give encoding.separators"):
        Bipe(Rope(8), 4, [".", 3])
    with pytest.raises(ValueError, match=rf"bipe finds no token that contains one of \['§§'\]: {remedy}"):
        build.resolve_spec({"name": "bipe", "separators": ["§§"]}, tokenizer)
    with pytest.raises(ValueError, match="bipe's size must be at least 1, got 0"):
        Bipe(Rope(8), 4, MARKS, size=0)
    with pytest.raises(ValueError, match="bipe's spread must be above 0, got -1"):
        Bipe(Rope(8), 4, MARKS, spread=-1)
