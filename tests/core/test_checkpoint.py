"""Facts from the many forms of config.json, and fingerprints of folders."""

import hashlib
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from lexbench.core import checkpoint, registry
from lexbench.core.checkpoint import (
    IMPLIED_BASE,
    IMPLIED_HEAD_DIM,
    IMPLIED_SHARE,
    dtype_of,
    end_tokens,
    facts,
    fingerprint,
    locate,
    on_disk,
    read_config,
    read_known_model,
    read_model,
    weight_bytes,
    weight_files,
)
from lexbench.core.gguf import FetchError

SHARED = Path(os.environ.get("LEXBENCH_SHARED", Path(__file__).parent.parents[2] / "shared")) / "data"
SIZES: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 3,
    "max_position_embeddings": 128,
    "vocab_size": 100,
}
KNOWN = {"layers": 3, "width": 64, "heads": 4, "kv_heads": 2, "vocabulary": 100, "head_dim": 16}


def folder(path: Path, config: dict[str, Any]) -> Path:
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps(config))
    return path


# forms of config.json


def test_transformers_4_and_5_forms_state_the_same_facts() -> None:
    scaled = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 16}
    old = {**SIZES, "rope_theta": 5e5, "rope_scaling": {**scaled, "type": "llama3"}}
    new = {**SIZES, "rope_parameters": {**scaled, "rope_type": "llama3", "rope_theta": 5e5}}
    expected = {**KNOWN, "trained_length": 128, "rope_base": 5e5, "rope_scaling": {**scaled, "rope_type": "llama3"}}
    assert facts(old) == expected
    assert facts(new) == expected


@pytest.mark.parametrize("rope", [{"rope_scaling": None}, {"rope_parameters": {"rope_type": "default"}}, {}])
def test_an_old_llama_without_a_base_has_the_base_of_its_time(rope: dict[str, Any]) -> None:
    assert facts({**SIZES, **rope}) == {**KNOWN, "trained_length": 128, "rope_base": 10_000.0}


@pytest.mark.parametrize(
    "partial",
    [
        {"rotary_pct": 0.25, "rotary_emb_base": 2e4},
        {"partial_rotary_factor": 0.25, "rope_theta": 2e4},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 2e4, "partial_rotary_factor": 0.25}},
        {"rotary_dim": 4, "rope_theta": 2e4},
    ],
)
def test_every_word_for_partial_rotation_gives_the_rotated_dimensions(partial: dict[str, Any]) -> None:
    found = facts({**SIZES, "model_type": "of its own", **partial})
    assert found == {**KNOWN, "trained_length": 128, "rope_base": 2e4, "rotary_dim": 4}


def test_the_share_of_a_scaled_head_is_no_part_of_its_scaling() -> None:
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 2e4, "partial_rotary_factor": 0.25}
    found = facts({**SIZES, "rope_parameters": rope})
    assert (found["rotary_dim"], found["rope_scaling"]) == (4, {"rope_type": "dynamic", "factor": 2.0})


def test_gpt_2_has_positions_in_a_table_and_no_rotation() -> None:
    config = {"model_type": "gpt2", "n_embd": 48, "n_head": 3, "n_layer": 3, "n_positions": 11, "vocab_size": 3}
    expected = {"layers": 3, "width": 48, "heads": 3, "kv_heads": 3, "vocabulary": 3, "head_dim": 16}
    assert facts(config) == {**expected, "trained_length": 11}


def test_layers_of_several_kinds_have_no_one_base() -> None:
    layers = {
        "full_attention": {"rope_type": "default", "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    }
    expected = {**KNOWN, "trained_length": 128, "rope_scaling": layers}
    assert facts({**SIZES, "rope_parameters": layers}) == expected
    # Gemma 3 as transformers 4 wrote it
    assert facts({**SIZES, "rope_theta": 1e6, "rope_local_base_freq": 1e4}) == expected


def test_a_model_with_a_picture_part_is_its_text_part() -> None:
    assert facts({"model_type": "llava", "hidden_size": 1, "text_config": {**SIZES, "rope_theta": 3e4}}) == {
        **KNOWN,
        "config_section": "text_config",
        "trained_length": 128,
        "rope_base": 3e4,
    }


def test_falcon_states_a_base_that_alibi_does_not_use() -> None:
    assert "rope_base" not in facts({**SIZES, "model_type": "falcon", "alibi": True, "rope_theta": 1e4})


def test_one_key_value_head_is_said_by_multi_query() -> None:
    falcon = {**SIZES, "num_kv_heads": 4, "multi_query": True}
    assert facts(falcon)["kv_heads"] == 1
    assert facts({**falcon, "num_key_value_heads": None, "new_decoder_architecture": True})["kv_heads"] == 4


def test_latent_attention_rotates_a_part_of_its_own() -> None:
    # DeepSeek-V3: 128 dimensions without positions, 64 rotated; width / heads would say 56
    latent = {"hidden_size": 7168, "num_attention_heads": 128, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64}
    found = facts({**SIZES, **latent, "rope_theta": 1e4})
    assert (found["head_dim"], found["rotary_dim"]) == (192, 64)


# how long it was trained


def scaled(kind: str, claimed: int, **more: Any) -> dict[str, Any]:
    return {**SIZES, "max_position_embeddings": claimed, "rope_scaling": {"rope_type": kind, **more}}


@pytest.mark.parametrize(
    ("config", "trained_length"),
    [
        (scaled("llama3", 131072, factor=8.0, original_max_position_embeddings=8192), 131072),
        (scaled("longrope", 131072, original_max_position_embeddings=4096), 131072),
        (scaled("dynamic", 4096, factor=2.0), 4096),
        (scaled("yarn", 131072, factor=32.0, original_max_position_embeddings=4096), 131072),  # gpt-oss
        (scaled("yarn", 131072, original_max_position_embeddings=4096), 131072),
    ],
)
def test_the_trained_length_is_what_the_checkpoint_claims(config: dict[str, Any], trained_length: int) -> None:
    assert facts(config)["trained_length"] == trained_length


@pytest.mark.parametrize(
    "config",
    [
        scaled("linear", 4096, factor=4.0),  # Vicuna 16k: trained at 16384
        scaled("linear", 32768, factor=8.0),  # LLaMA-2-7B-32K: trained at 32768
        scaled("yarn", 32768, factor=4.0, original_max_position_embeddings=32768),  # Qwen2.5: trained at 32768
        scaled("yarn", 4096, factor=32.0),
    ],
)
def test_a_stretch_that_leaves_two_lengths_possible_asks_for_the_trained_one(
    config: dict[str, Any], tmp_path: Path
) -> None:
    path = str(folder(tmp_path, config))
    with pytest.raises(ValueError, match=r"model.trained_length is ambiguous.* give model.trained_length=\.\.\."):
        read_model({"path": path})
    stretched = read_model({"path": path, "trained_length": 16384})
    assert stretched.trained_length == 16384
    assert stretched.rope_scaling == config["rope_scaling"]
    assert stretched.rope_base == 10_000.0


# against transformers


@pytest.mark.parametrize("kind", sorted({*IMPLIED_BASE, *IMPLIED_SHARE, *IMPLIED_HEAD_DIM}))
def test_what_a_silent_config_implies_is_what_transformers_takes(kind: str) -> None:
    from transformers import AutoConfig

    theirs = AutoConfig.for_model(kind)
    rope = getattr(theirs, "rope_parameters", None) or {}
    if kind in IMPLIED_BASE and kind not in ("gptj", "codegen"):  # those two write theirs into the code
        assert IMPLIED_BASE[kind] == rope["rope_theta"]
    assert IMPLIED_SHARE.get(kind, 1.0) == rope.get("partial_rotary_factor", 1.0)
    if kind in IMPLIED_HEAD_DIM:
        assert IMPLIED_HEAD_DIM[kind] == theirs.head_dim


TINY = {"hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2, "vocab_size": 96}
GROUPED = {**TINY, "num_key_value_heads": 2, "max_position_embeddings": 256}
SAVED: list[tuple[str, dict[str, Any]]] = [
    ("llama", {**GROUPED, "rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}),
    ("mistral", {**GROUPED, "sliding_window": 32}),
    ("qwen2", GROUPED),
    ("qwen3", {**GROUPED, "head_dim": 32}),
    ("gemma", {**GROUPED, "head_dim": 24}),
    ("phi", {**GROUPED, "partial_rotary_factor": 0.5}),
    ("gpt_neox", {**TINY, "max_position_embeddings": 256, "rotary_pct": 0.25}),
    ("gpt2", {"n_embd": 64, "n_head": 4, "n_layer": 2, "n_positions": 256, "vocab_size": 96}),
    ("gemma3_text", {**GROUPED, "head_dim": 24}),
]


@pytest.mark.parametrize(("kind", "settings"), SAVED, ids=[kind for kind, _ in SAVED])
def test_a_saved_config_gives_the_facts_that_transformers_reads(
    kind: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    from transformers import AutoConfig

    AutoConfig.for_model(kind, **settings, bos_token_id=1, eos_token_id=2, pad_token_id=0).save_pretrained(tmp_path)
    theirs = AutoConfig.from_pretrained(tmp_path)
    ours = read_model({"path": str(tmp_path)})
    head_dim = getattr(theirs, "head_dim", None) or theirs.hidden_size // theirs.num_attention_heads
    rope = getattr(theirs, "rope_parameters", None) or {}
    assert ours.trained_length == theirs.max_position_embeddings == 256
    assert ours.head_dim == head_dim
    assert ours.heads == theirs.num_attention_heads
    assert ours.kv_heads == getattr(theirs, "num_key_value_heads", theirs.num_attention_heads)
    assert (ours.layers, ours.width, ours.vocabulary) == (2, 64, 96)
    assert ours.rope_base == rope.get("rope_theta")
    assert ours.rotated == int(head_dim * rope.get("partial_rotary_factor", 1.0))
    assert ours.rope_scaling == (rope if "full_attention" in rope else None)


@pytest.mark.parametrize(("name", "kind"), [("llama2", "llama"), ("mistral", "mistral")])
def test_our_yaml_states_the_network_after_which_transformers_defaults_are_made(name: str, kind: str) -> None:
    from transformers import AutoConfig

    published = facts(AutoConfig.for_model(kind).to_dict())
    stated = registry.read("model", name)
    assert {key: stated[key] for key in published if key != "trained_length"} == {
        key: value for key, value in published.items() if key != "trained_length"
    }


# real folders


def test_the_real_llama_folder_states_what_is_known_of_it() -> None:
    path = SHARED / "stories260K-hf"
    if not path.is_dir():
        pytest.skip("no shared data here")
    model = read_model({"path": str(path)})
    assert (model.name, model.trained_length, model.head_dim, model.rope_base) == ("stories260K-hf", 512, 8, 10_000.0)
    assert (model.layers, model.heads, model.kv_heads, model.vocabulary) == (5, 8, 4, 512)
    assert model.rope_scaling is None


def test_the_real_folder_with_learned_positions_has_no_rotation() -> None:
    path = SHARED / "gpt-nano-sort-hf"
    if not path.is_dir():
        pytest.skip("no shared data here")
    model = read_model({"path": str(path)})
    assert (model.trained_length, model.rope_base, model.head_dim) == (11, None, 16)


# what is stated, and what is found


def test_a_stated_length_overrules_and_agreeing_facts_are_welcome(tmp_path: Path) -> None:
    stated = {"path": str(folder(tmp_path / "net", SIZES)), "trained_length": 64, "head_dim": 16, "layers": None}
    model = read_model(stated)
    assert (model.name, model.trained_length, model.layers) == ("net", 64, 3)


def test_a_contradiction_names_both_values(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"model.head_dim is stated as 8, the checkpoint says 16: drop it"):
        read_model({"path": str(folder(tmp_path, SIZES)), "head_dim": 8})


def test_a_model_in_the_working_folder_is_named_after_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder(tmp_path / "net", SIZES))
    assert read_model({"path": "."}).name == "net"


def test_an_unknown_fact_is_answered_with_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"unknown parameter model.rope_theta: .*choose from architecture, bos"):
        read_model({"rope_theta": 1e4})
    with pytest.raises(ValueError, match=r"unknown parameter model.pth: did you mean path"):
        read_model({"pth": "x"})


def test_lacking_facts_are_named() -> None:
    with pytest.raises(ValueError, match=r"model lacks head_dim, name, trained_length: give model.path=DIR"):
        read_model({"path": None})
    with pytest.raises(ValueError, match=r"model lacks head_dim: .* or model.head_dim=\.\.\."):
        read_model({"name": "custom", "trained_length": 512})


def test_a_hub_model_of_known_facts_is_not_fetched() -> None:
    model = read_known_model({"name": "far", "path": "org/far", "trained_length": 512, "head_dim": 64, "layers": None})
    assert (model.path, model.layers) == ("org/far", None)


def test_a_hub_model_that_is_nowhere_is_said_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    for fetch in (read_config, locate):
        with pytest.raises(ValueError, match="model nobody/nothing-here cannot be fetched") as raised:
            fetch("nobody/nothing-here")
        assert "\n" not in str(raised.value)


def response(status: int, code: str | None) -> Any:
    import httpx2

    headers = {} if code is None else {"X-Error-Code": code}
    return httpx2.Response(status, headers=headers, request=httpx2.Request("HEAD", "https://hub.invalid/config.json"))


@pytest.mark.parametrize(
    ("status", "code", "said"),
    [
        (403, "GatedRepo", r"its licence is not accepted here\): accept it on the model's page, then hf auth login"),
        (404, "RepoNotFound", r"the hub shows no such repository\): check the name, hf auth login if it is private"),
    ],
)
def test_a_model_that_the_hub_withholds_is_said_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch, status: int, code: str, said: str
) -> None:
    """By the hub's own errors, as its client makes them of the server's answers."""
    from huggingface_hub.utils import hf_raise_for_status  # type: ignore[attr-defined]

    def download(*_: object, **__: object) -> str:
        hf_raise_for_status(response(status, code))
        raise AssertionError

    monkeypatch.setattr(checkpoint, "hub_is_reached", lambda: True)
    monkeypatch.setattr("huggingface_hub.hf_hub_download", download)
    with pytest.raises(
        FetchError, match=rf"^model org/name cannot be fetched \({said}.*, or give its folder as model.path"
    ):
        read_config("org/name")


def test_a_hub_out_of_reach_is_known_in_seconds_and_the_cache_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing listens at the address: the hub's client alone would try for half a minute."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    checkpoint.hub_is_reached.cache_clear()
    started = time.monotonic()
    with pytest.raises(FetchError, match="the hub is out of reach, and the cache lacks it"):
        read_config("nobody/nothing-here")
    assert time.monotonic() - started < 10
    checkpoint.hub_is_reached.cache_clear()


def written(folder: Path, config: dict[str, Any], **tensors: tuple[str, int]) -> Path:
    """A folder with a safetensors file of zeros, by the format's description: (dtype, bytes) of each tensor."""
    (folder / "config.json").write_text(json.dumps(config))
    header, end = {}, 0
    for name, (kind, size) in tensors.items():
        header[name] = {"dtype": kind, "shape": [size], "data_offsets": [end, end + size]}
        end += size
    said = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(len(said).to_bytes(8, "little") + said + bytes(end))
    return folder


@pytest.mark.parametrize(
    ("config", "tensors", "dtype"),
    [
        ({"dtype": "float16"}, {"a": ("F32", 8)}, "float16"),
        ({"torch_dtype": "torch.bfloat16"}, {"a": ("F32", 8)}, "bfloat16"),
        ({"text_config": {"dtype": "bfloat16"}}, {"a": ("F32", 8)}, "bfloat16"),
        ({}, {"a": ("F32", 8), "b": ("F16", 12)}, "float16"),
        ({"dtype": None}, {"a": ("F32", 16), "b": ("F16", 12)}, "float32"),
        ({}, {"a": ("F8_E4M3", 16)}, "bfloat16"),
    ],
)
def test_auto_is_the_checkpoints_own_dtype_on_an_accelerator_only(
    tmp_path: Path, config: dict[str, Any], tensors: dict[str, tuple[str, int]], dtype: str
) -> None:
    folder = written(tmp_path, config, **tensors)
    assert dtype_of("auto", folder, accelerated=True) == dtype
    assert dtype_of("auto", folder, accelerated=False) == "float32"
    assert dtype_of("float64", folder, accelerated=True) == "float64"


def test_bytes_of_weights_are_counted_from_the_headers(tmp_path: Path) -> None:
    """8 bytes of float32 are 2 numbers, 12 of float16 are 6: 8 numbers of 2 bytes, or of 4."""
    folder = written(tmp_path, {}, a=("F32", 8), b=("F16", 12))
    assert [weight_bytes(folder, dtype) for dtype in ("bfloat16", "float32")] == [16, 32]
    (folder / "model.safetensors").write_bytes(b"no header")
    with pytest.raises(ValueError, match=r"model.safetensors is no safetensors file \(.*\): download it again"):
        weight_bytes(folder, "bfloat16")


@pytest.mark.parametrize("path", ["/nowhere/at/all", "./nowhere", "~/nowhere-at-all", "a/b/c", "word", "lexbench:no"])
def test_a_folder_that_is_not_there_is_said_so(path: str) -> None:
    with pytest.raises(ValueError, match=f"model folder {path} does not exist: give model.path=DIR"):
        read_model({"path": path})


def test_org_and_name_are_a_hub_name() -> None:
    assert on_disk("nobody/nothing-here") is None


@pytest.mark.parametrize(
    ("content", "said"),
    [(None, "has no config.json"), (b"{oops", "must be JSON"), (b"\xff\xfe", "must be JSON"), (b"[1]", "got list")],
)
def test_a_config_that_cannot_be_read_is_said_in_one_line(content: bytes | None, said: str, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(ValueError, match=said) as raised:
        read_model({"path": str(tmp_path)})
    assert str(tmp_path) in str(raised.value)
    assert "\n" not in str(raised.value)


# the registry's models


ON_THE_HUB = [
    name
    for name in registry.names("model")
    if not str(registry.read("model", name).get("path", "lexbench:")).startswith(("lexbench:", "package:", "None"))
]


@pytest.mark.parametrize("name", ON_THE_HUB)
def test_a_hub_model_of_the_registry_is_known_without_network(name: str) -> None:
    model = read_known_model(registry.read("model", name))
    assert model.path is not None
    assert model.name == model.path.split("/")[1]
    assert None not in (model.rope_base, model.layers, model.width, model.heads, model.kv_heads, model.vocabulary)
    assert model.heads is not None and model.kv_heads is not None and model.width is not None
    assert model.heads % model.kv_heads == 0
    assert name == "gemma" or model.heads * model.head_dim == model.width


def test_the_registrys_llama_3_1_agrees_with_its_published_config(tmp_path: Path) -> None:
    published = {
        "model_type": "llama",
        "hidden_size": 4096,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "num_hidden_layers": 32,
        "max_position_embeddings": 131072,
        "vocab_size": 128256,
        "rope_theta": 500000.0,
        "rope_scaling": {
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
            "rope_type": "llama3",
        },
    }
    stated = {**registry.read("model", "llama3_1"), "path": str(folder(tmp_path, published))}
    assert read_model(stated) == read_model(stated, offline=True)


# folders


def weights(path: Path, content: bytes = b"weights") -> Path:
    (folder(path, SIZES) / "model.safetensors").write_bytes(content)
    return path


def test_a_fingerprint_follows_config_tokenizer_template_and_weights_and_nothing_else(tmp_path: Path) -> None:
    path = weights(tmp_path)
    prints = [fingerprint(path)]
    (path / "README.md").write_text("a word")
    assert fingerprint(path) == prints[0]
    for name in ("config.json", "tokenizer.model", "chat_template.jinja", "model.safetensors"):
        with (path / name).open("ab") as stream:
            stream.write(b" ")
        prints.append(fingerprint(path))
    assert len(set(prints)) == 5


LARGE = (256 << 20) + (1 << 17)


@pytest.fixture
def large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model folder with weights above 256 MB, and a separate cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with (weights(tmp_path / "model") / "model.safetensors").open("wb") as stream:
        stream.truncate(LARGE)
    return tmp_path / "model"


def put(file: Path, place: int, content: bytes) -> None:
    with file.open("r+b") as stream:
        stream.seek(place)
        stream.write(content)


@pytest.mark.slow
def test_the_fingerprint_of_a_large_file_sees_every_byte(large: Path) -> None:
    file, prints = large / "model.safetensors", {fingerprint(large)}
    for place in (0, (1 << 16) + 100, LARGE // 2 + 12345, LARGE - 1):  # not only in blocks spread over the file
        put(file, place, b"x")
        prints.add(fingerprint(large))
        put(file, place, b"\0")
    assert len(prints) == 5


def test_the_fingerprint_of_a_file_up_to_256_mb_stays_what_it_was(tmp_path: Path) -> None:
    """Old cells are found by this hash: the rule is repeated here as first published."""
    path = weights(tmp_path)
    written = b"".join(
        f"{file.name}:{file.stat().st_size}:".encode() + file.read_bytes()
        for file in (path / "config.json", path / "model.safetensors")
    )
    assert fingerprint(path) == hashlib.sha256(written).hexdigest()[:16]


@pytest.mark.slow
def test_the_hash_of_a_large_file_is_kept(large: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = fingerprint(large)
    monkeypatch.delattr(hashlib, "file_digest")
    assert fingerprint(large) == first


def test_weights_in_another_format_are_named(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").touch()
    with pytest.raises(ValueError, match=r"no \*.safetensors \(only pytorch_model.bin\): convert it"):
        weight_files(tmp_path)


def test_end_tokens_are_those_of_generation_before_those_of_the_config(tmp_path: Path) -> None:
    assert end_tokens(tmp_path) == frozenset()
    folder(tmp_path, {**SIZES, "eos_token_id": 2})
    assert end_tokens(tmp_path) == {2}
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 9]}))
    assert end_tokens(tmp_path) == {7, 9}


def test_what_an_interrupted_download_leaves_is_said(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ValueError, match=r"has no \*.safetensors: download it again"):
        weight_files(tmp_path)
    shards = ["model-1.safetensors", "model-2.safetensors", "model-3.safetensors"]
    index = {"weight_map": {f"layer.{place}": name for place, name in enumerate(shards)}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    (tmp_path / shards[0]).write_bytes(b"")
    (tmp_path / shards[1]).symlink_to(tmp_path / "blob.incomplete")  # as in a hub's cache
    with pytest.raises(ValueError, match=r"lacks model-2\.safetensors, 2 of 3 parts: download it again"):
        weight_files(tmp_path)
    (tmp_path / "model.safetensors.index.json").unlink()
    with pytest.raises(ValueError, match=r"model-2.safetensors in model folder .* is a broken link"):
        weight_files(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text('["no object"]')
    with pytest.raises(ValueError, match="must be a JSON object"):
        weight_files(tmp_path)


@pytest.mark.timeout(20)
def test_a_pipe_in_place_of_a_file_is_said_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=r"model\.safetensors in model folder .* is a broken link or no file"):
        weight_files(tmp_path)
    os.mkfifo(tmp_path / "config.json")
    with pytest.raises(ValueError, match=r"has no config\.json"):
        read_config(str(tmp_path))
