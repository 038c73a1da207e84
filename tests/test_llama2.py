"""The first command that lexbench was designed for, from a hub's cache to its metrics and plots."""

import json
import os
import subprocess
import sys
from itertools import islice
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest
import tokenizers
import torch
import transformers
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

import lexbench
from lexbench.checkpoints.tokenizer import load_tokenizer
from lexbench.core.task import Loglikelihood
from lexbench.corpora.stdlib import Stdlib

COMMIT = "01c7f73d771dfac7d292323805ebc428287df4f9"
"""A commit of meta-llama/Llama-2-7b-hf: the name of its folder in the cache."""
FACTS_OF_THE_STAND_IN = ["model.layers=2", "model.width=128", "model.heads=1", "model.kv_heads=1"]
"""Sizes in which it is smaller than the model that the yaml describes; heads of 128 dimensions are as there."""


def write_tokenizer(folder: Path) -> None:
    """Write Llama 2's kind of tokenizer: BPE of 32,000 tokens, digits alone, bytes to fall back on, BOS in front."""
    bpe = tokenizers.Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    bpe.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    bpe.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    bpe.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Metaspace(), pre_tokenizers.Digits(True)])
    special = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=32000, special_tokens=special, show_progress=False)
    bpe.train_from_iterator((document.text for document in islice(Stdlib("all").documents(), 250)), trainer)
    bpe.pre_tokenizer = None
    assert bpe.get_vocab_size() == 32000
    bpe.save(str(folder / "tokenizer.json"))
    stated = {"tokenizer_class": "LlamaTokenizer", "bos_token": "<s>", "eos_token": "</s>", "add_bos_token": True}
    (folder / "tokenizer_config.json").write_text(json.dumps(stated))


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache of the hub with a model of Llama 2's architecture and vocabulary in two layers of one head."""
    cache = tmp_path_factory.mktemp("hub")
    place = cache / "models--meta-llama--Llama-2-7b-hf"
    folder = place / "snapshots" / COMMIT
    folder.mkdir(parents=True)
    (place / "refs").mkdir()
    (place / "refs" / "main").write_text(COMMIT)
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=32000,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=1,
        max_position_embeddings=4096,
        initializer_range=0.25,  # so large that attention is not uniform and positions matter
    )
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    write_tokenizer(folder)
    return cache


def call(folder: Path, hub: Path, *words: str) -> str:
    """What a command prints, in a process and a folder of its own, with this cache and no network."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": str(hub)}
    environment["PYTHONPATH"] = str(Path(lexbench.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-m", "lexbench", *words], cwd=folder, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def nll_by_transformers(snapshot: Path, base: float, length: int) -> float:
    """The mean NLL of the run's last segments, by transformers alone with another base of its angles."""
    rope = {"rope_type": "default", "rope_theta": base}
    network = transformers.AutoModelForCausalLM.from_pretrained(snapshot, rope_parameters=rope, dtype=torch.float32)
    assert network.model.rotary_emb.inv_freq[-1].item() == pytest.approx(base ** (-126 / 128), rel=1e-6)
    task = lexbench.task("last_segment", corpus="stdlib", targets=2048, longest=8192)
    losses = []
    for question in task.questions(load_tokenizer(snapshot), length, n=2, seed=0):
        assert isinstance(question, Loglikelihood)
        ids = torch.from_numpy(np.asarray(question.tokens)).long()
        with torch.no_grad():
            states = network.model(ids[None]).last_hidden_state[0, question.first_target - 1 : -1]
            logits = network.lm_head(states)
        losses.append(torch.nn.functional.cross_entropy(logits, ids[question.first_target :]).item())
    return float(np.mean(losses))


@pytest.mark.slow
def test_the_first_command_of_the_design_runs_from_the_hub_to_metrics_and_plots(hub: Path, tmp_path: Path) -> None:
    """`lexbench run model=llama2 method=ntk`; its NLL is that of transformers with the base of NTK."""
    settings = [*FACTS_OF_THE_STAND_IN, "multiples=[1,2]", "n=2", "corpus=stdlib"]
    printed = call(tmp_path, hub, "run", "model=llama2", "method=ntk", *settings)
    assert "last_segment, NLL (nats per token), Llama-2-7b-hf" in printed and "passkey, copied whole" in printed
    run = tmp_path / "runs" / "Llama-2-7b-hf"
    records = pd.read_json(run / "records.jsonl", lines=True)
    assert set(records.backend) == {"hf"} and records.refused.isna().all()
    nll = records[records.metric == "nll"]
    assert nll.uniform.to_list() == pytest.approx([np.log(32000)] * len(nll))
    snapshot = hub / "models--meta-llama--Llama-2-7b-hf" / "snapshots" / COMMIT
    of_ntk = nll[nll.method == "ntk"].set_index("length").value
    ntk, plain = (nll_by_transformers(snapshot, base, 8192) for base in (1e4 * 2 ** (128 / 126), 1e4))
    assert of_ntk[8192] == pytest.approx(ntk, abs=1e-4)  # factor 2: the base of bloc97's formula
    assert abs(ntk - plain) > 0.01  # the method matters
    page = Path(call(tmp_path, hub, "report", str(run)).splitlines()[-1])
    assert page.is_file()
    for name in ("last_segment-nll", "passkey-accuracy"):
        plot = page.parent / "plots" / f"Llama-2-7b-hf-{name}.svg"
        drawn = pd.read_csv(plot.with_suffix(".csv"))
        assert drawn[drawn.method == "ntk"].length.tolist() == [4096, 8192]
        assert ElementTree.parse(plot).getroot().tag.endswith("svg") and "ntk" in plot.read_text()
