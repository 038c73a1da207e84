"""Facts that a user states and a checkpoint has, files of folders, and their fingerprints."""

import hashlib
import json
import os
import re
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
import transformers
import yaml

from lexbench.checkpoints import checkpoint
from lexbench.checkpoints.checkpoint import (
    checkpoint_fingerprint,
    dtype_of,
    end_tokens,
    local_folder,
    locate_checkpoint,
    read_config,
    read_known_model,
    read_model,
    weight_bytes,
    weight_files,
)
from lexbench.commands import main
from lexbench.core import registry
from lexbench.core.errors import FetchError
from tests.backends.named import backend_class
from tests.checkpoints.test_config_facts import SIZES, folder

SHARED = Path(os.environ.get("LEXBENCH_SHARED", Path(__file__).parent.parents[2] / "shared")) / "data"


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


def test_a_list_in_a_yaml_is_the_same_fact_as_that_of_the_checkpoint(tmp_path: Path) -> None:
    layers = {"num_hidden_layers": 2, "layer_types": ["sliding_attention", "full_attention"]}
    path = str(folder(tmp_path, {**SIZES, **layers}))
    stated = yaml.safe_load(f"{{path: {path}, layer_types: [sliding_attention, full_attention]}}")
    assert read_model(stated) == read_model({"path": path})
    with pytest.raises(ValueError, match=r"model.layer_types is stated as \['full_attention', 'sliding_attention'\]"):
        read_model({**stated, "layer_types": stated["layer_types"][::-1]})


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
    for fetch in (read_config, locate_checkpoint):
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
    assert local_folder("nobody/nothing-here") is None


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
    for name in registry.registered_names("model")
    if not str(registry.read_named_config("model", name).get("path", "lexbench:")).startswith(
        ("lexbench:", "package:", "None")
    )
]


@pytest.mark.parametrize("name", ON_THE_HUB)
def test_a_hub_model_of_the_registry_is_known_without_network(name: str) -> None:
    model = read_known_model(registry.read_named_config("model", name))
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
    stated = {**registry.read_named_config("model", "llama3_1"), "path": str(folder(tmp_path, published))}
    assert read_model(stated) == read_model(stated, offline=True)


# folders


def weights(path: Path, content: bytes = b"weights") -> Path:
    (folder(path, SIZES) / "model.safetensors").write_bytes(content)
    return path


def test_a_fingerprint_follows_config_tokenizer_template_and_weights_and_nothing_else(tmp_path: Path) -> None:
    path = weights(tmp_path)
    prints = [checkpoint_fingerprint(path)]
    (path / "README.md").write_text("a word")
    assert checkpoint_fingerprint(path) == prints[0]
    for name in ("config.json", "tokenizer.model", "chat_template.jinja", "model.safetensors"):
        with (path / name).open("ab") as stream:
            stream.write(b" ")
        prints.append(checkpoint_fingerprint(path))
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
    file, prints = large / "model.safetensors", {checkpoint_fingerprint(large)}
    for place in (0, (1 << 16) + 100, LARGE // 2 + 12345, LARGE - 1):  # not only in blocks spread over the file
        put(file, place, b"x")
        prints.add(checkpoint_fingerprint(large))
        put(file, place, b"\0")
    assert len(prints) == 5


def test_the_fingerprint_of_a_file_up_to_256_mb_stays_what_it_was(tmp_path: Path) -> None:
    """Old cells are found by this hash: the rule is repeated here as first published."""
    path = weights(tmp_path)
    written = b"".join(
        f"{file.name}:{file.stat().st_size}:".encode() + file.read_bytes()
        for file in (path / "config.json", path / "model.safetensors")
    )
    assert checkpoint_fingerprint(path) == hashlib.sha256(written).hexdigest()[:16]


@pytest.mark.slow
def test_the_hash_of_a_large_file_is_kept(large: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = checkpoint_fingerprint(large)
    monkeypatch.delattr(hashlib, "file_digest")
    assert checkpoint_fingerprint(large) == first


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


def test_end_tokens_of_a_text_tower_are_those_that_transformers_generates_with(tmp_path: Path) -> None:
    """A multimodal config.json may state them in its text_config alone."""
    for page in ({"text_config": {"eos_token_id": [7, 9]}}, {"text_config": {"eos_token_id": 7}, "eos_token_id": 2}):
        (tmp_path / "config.json").write_text(json.dumps({"model_type": "gemma3", "eos_token_id": None, **page}))
        config = transformers.AutoConfig.from_pretrained(tmp_path)
        ends = transformers.GenerationConfig.from_model_config(config).eos_token_id
        assert end_tokens(tmp_path) == {*(ends if isinstance(ends, list) else [ends])}


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


def test_an_adapter_beside_the_weights_is_not_left_out_in_silence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """transformers reads it where peft is installed, and else measures the base under the adapter's name."""
    folder = tmp_path / "tuned"
    shutil.copytree(locate_checkpoint("lexbench:lexlet"), folder)
    (folder / "adapter_config.json").write_text('{"peft_type": "LORA", "base_model_name_or_path": "lexlet"}')
    said = (
        r"tuned holds an adapter \(adapter_config.json\).* merge it into its base .*merge_and_unload.* move its files"
    )
    backends = [name for name in ("hf", "native") if name in registry.registered_names("backend")]
    for load in map(backend_class, backends):
        with pytest.raises(ValueError, match=said) as error:
            load(read_model({"path": str(folder)}))
        assert "\n" not in str(error.value)
    plan = ["run", "model=local", f"model.path={folder}", "task=last_segment", "corpus=synthetic", "n=2", "--dry-run"]
    for backend in backends:
        assert main.main([*plan, f"backend={backend}"]) == 2
        assert re.search(said, capsys.readouterr().err)
    (folder / "adapter_config.json").rename(folder / "adapter_model.safetensors")
    with pytest.raises(ValueError, match=r"tuned holds an adapter \(adapter_model.safetensors\)"):
        weight_files(folder)
    (folder / "adapter_model.safetensors").rename(folder / "adapter_config.json")
    (folder / "config.json").unlink()
    with pytest.raises(ValueError, match=r"tuned holds an adapter alone .*: merge it into its base"):
        read_model({"path": str(folder)})
