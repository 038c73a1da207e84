"""Abacus: places of digits counted by hand."""

import pytest
import torch

from lexbench.checkpoints.tokenizer import FastTokenizer
from lexbench.parts.lab.encodings.abacus import Abacus
from lexbench.parts.lab.encodings.base import Encoding

TEXT = torch.tensor([[9, 1, 2, 9, 9, 3, 1, 1, 2], [1, 1, 9, 2, 9, 9, 9, 9, 3]])  # 1, 2 and 3 are digits
PLACES = [[None, 0, 1, None, None, 0, 1, 2, 3], [0, 1, None, 0, None, None, None, None, 0]]


def made(**given: int) -> Abacus:
    encoding = Abacus(Encoding(), 1, [1, 2, 3], **{"size": 8, "offsets": 3, **given})
    encoding.table.data = torch.arange(100.0, 100.0 + len(encoding.table))[:, None]
    return encoding


def test_a_digit_gets_the_row_of_its_place_and_other_tokens_none() -> None:
    encoding = made()
    positions = encoding.positions(TEXT, 9)
    got = encoding.embed(torch.ones(2, 9, 1), TEXT, positions)[..., 0].tolist()
    assert got == [[1 + (0 if place is None else 100 + place) for place in row] for row in PLACES]
    assert torch.equal(positions, torch.arange(9, dtype=torch.float64))


def test_training_shifts_all_places_of_a_batch_alike_by_any_offset() -> None:
    encoding, seen = made(), set()
    for seed in range(20):
        positions = encoding.positions(TEXT, 9, torch.Generator().manual_seed(seed))
        got = encoding.embed(torch.zeros(2, 9, 1), TEXT, positions)[..., 0].tolist()
        offset = int(got[0][1]) - 100
        assert got == [[0 if place is None else 100 + place + offset for place in row] for row in PLACES]
        seen.add(offset)
    assert seen == {0, 1, 2}
    encoding.positions(TEXT, 9)  # at use there is none
    assert encoding.embed(torch.zeros(2, 9, 1), TEXT, positions)[0, 1].tolist() == [100]


def test_digits_are_tokens_of_one_digit(tokenizer: FastTokenizer) -> None:
    ids = Abacus.resolve_texts({"digits": ["0", "7"]}, tokenizer)["digits"]
    assert {tokenizer.decode([token]).strip() for token in ids} == {"0", "7"}
    with pytest.raises(ValueError, match=r"no token that is one of \['bee'\]"):
        Abacus.resolve_texts({"digits": ["bee"]}, tokenizer)
    assert Abacus.resolve_texts({"digits": [4]}, tokenizer) == {"digits": [4]}


def test_numbers_beyond_the_table_and_digits_that_are_no_ids_are_errors() -> None:
    with pytest.raises(ValueError, match="abacus has 3 places, a number needs 4: raise size"):
        made(size=3).embed(torch.zeros(2, 9, 1), TEXT, torch.arange(9))
    with pytest.raises(ValueError, match="needs digits as token ids, got none"):
        Abacus(Encoding(), 1)
    with pytest.raises(ValueError, match="offsets must be from 1 to its size 8, got 9"):
        made(offsets=9)
