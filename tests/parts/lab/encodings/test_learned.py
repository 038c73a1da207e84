"""Learned positions end where their table ends."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from lexbench import Attention, Loglikelihood, Refused
from lexbench.checkpoints.checkpoint import local_folder, read_model
from lexbench.parts.lab.backend import Native
from lexbench.parts.lab.encodings.learned import Learned
from lexbench.parts.lab.native import build
from lexbench.parts.lab.native.decoder import Decoder, DecoderShape
from lexbench.parts.lab.native.folder import save_model


def test_a_row_is_added_to_each_token() -> None:
    encoding = Learned(4, 5)
    encoding.table.data = torch.arange(20.0).view(5, 4)
    made = encoding.embed(torch.ones(1, 3, 4), torch.zeros(1, 3, dtype=torch.long), torch.tensor([[4.0, 0.0, 2.0]]))
    assert made[0].tolist() == [[17, 18, 19, 20], [1, 2, 3, 4], [9, 10, 11, 12]]


def test_rows_are_drawn_with_gpt2s_deviation() -> None:
    encoding = Learned(64, 100, size=300)
    encoding.initialise(torch.Generator().manual_seed(0))
    assert encoding.table.shape == (300, 64)
    assert float(encoding.table.std()) == pytest.approx(0.02, rel=0.03)


def test_beyond_the_table_there_is_nothing() -> None:
    encoding, tokens = Learned(4, 5), torch.zeros(1, 6, dtype=torch.long)
    assert encoding.longest == 5
    with pytest.raises(ValueError, match="learned has positions for 5 tokens, asked for 6: raise size"):
        encoding.embed(torch.ones(1, 6, 4), tokens, torch.arange(6.0))
    with pytest.raises(ValueError, match="learned needs whole positions from 0 on"):
        encoding.embed(torch.ones(1, 1, 4), tokens[:, :1], torch.tensor([0.5]))
    with pytest.raises(ValueError, match="a row for each of 5 trained tokens, got size 4"):
        Learned(4, 5, size=4)


def test_the_backend_refuses_longer_texts(tmp_path: Path) -> None:
    lexlet = local_folder("lexbench:lexlet")
    assert lexlet is not None
    for file in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copy(lexlet / file, tmp_path)
    shape = DecoderShape(vocabulary=2048, layers=1, width=16, heads=2, kv_heads=1, hidden=24)
    decoder = Decoder(shape, build.build_encoding("learned", shape, 8))
    decoder.initialise(0)
    save_model(decoder, tmp_path, 8, bos=0, eos=1, dtype=torch.float32, encoding=build.resolve_spec("learned"))
    backend = Native(read_model({"path": str(tmp_path)}))
    backend.attend(Attention())
    assert backend.score(asked(8)).nll.shape == (4,)
    with pytest.raises(Refused, match="learned has positions for 8 tokens, asked for 9"):
        backend.score(asked(9))


def asked(tokens: int) -> Loglikelihood:
    return Loglikelihood(tokens=np.arange(tokens), first_target=4, bytes=1, words=1, index=0, cluster="")
