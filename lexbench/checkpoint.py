"""Checkpoints on disk or on the hub: where they are, what their config says, and what identifies them."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from lexbench.model import Model

FILES = ["*.json", "tokenizer.model"]
WEIGHTS = ["*.safetensors"]


def on_disk(path: str) -> Path | None:
    """The folder that a model's path names, or None for a name on the hub; `lexbench:NAME` is one that we ship."""
    if path.startswith("lexbench:"):
        return Path(__file__).parent / path.removeprefix("lexbench:")
    folder = Path(path).expanduser()
    if folder.is_dir():
        return folder
    if path.startswith((".", "/", "~")) or path.count("/") != 1:
        raise ValueError(f"model folder {path} does not exist: give model.path=DIR or a hub name like org/name")
    return None


def locate(path: str, revision: str | None = None, weights: bool = True) -> Path:
    """The folder of a checkpoint: on disk, or from the hub (downloaded, or found in the cache)."""
    if folder := on_disk(path):
        return folder
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(path, revision=revision, allow_patterns=WEIGHTS + FILES if weights else FILES))
    except Exception as error:  # the hub's errors have no common base: network, licence, name, cache
        reason = str(error).strip().splitlines()[0]
        raise ValueError(
            f"model {path} cannot be fetched ({reason}): check name and network, or give a folder"
        ) from None


def read_known_model(stated: Mapping[str, Any]) -> Model:
    """The model's facts without a look at the checkpoint where the stated ones suffice."""
    known = {"name", "trained_length", "head_dim"} <= {key for key, value in stated.items() if value is not None}
    return read_model(stated, offline=known)


def read_config(path: str, revision: str | None = None) -> dict[str, Any]:
    """A checkpoint's config.json, without its weights."""
    if folder := on_disk(path):
        file = folder / "config.json"
    else:
        from huggingface_hub import hf_hub_download

        try:
            file = Path(hf_hub_download(path, "config.json", revision=revision))
        except Exception as error:  # as in locate
            reason = str(error).strip().splitlines()[0]
            raise ValueError(f"config of {path} cannot be fetched ({reason}): check name and network") from None
    if not file.exists():
        raise ValueError(f"model folder {path} has no config.json: give a folder in Hugging Face form")
    return dict(json.loads(file.read_text()))


def read_model(stated: Mapping[str, Any], offline: bool = False) -> Model:
    """The model's facts: the checkpoint's own config, over it what the yaml or the user states.

    Args:
        stated: fields of `Model`; `trained_length`, `bos` and `name` may overrule the checkpoint, others must agree.
        offline: do not look at the checkpoint, the stated facts are all.
    """
    known = {f.name for f in fields(Model)}
    for key in stated:
        if key not in known:
            raise ValueError(f"unknown parameter model.{key}: choose from {', '.join(sorted(known))}")
    given = {key: value for key, value in stated.items() if value is not None}
    found: dict[str, Any] = {}
    if given.get("path") and not offline:
        found = facts(read_config(given["path"], given.get("revision")))
        for key in given.keys() & found.keys() - {"trained_length", "name", "parameters"}:
            if found[key] != given[key]:
                raise ValueError(f"model.{key} is stated as {given[key]}, the checkpoint says {found[key]}: drop it")
        given.setdefault("name", Path(given["path"]).name)
    missing = {"name", "trained_length", "head_dim"} - {**found, **given}.keys()
    if missing:
        raise ValueError(f"model lacks {', '.join(sorted(missing))}: give model.path=DIR, or model.{min(missing)}=...")
    return Model(**{**found, **given})


def facts(config: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of `Model` that a config.json of transformers 4 or 5 states."""
    config = {**config, **config.get("text_config", {})}
    heads = config.get("num_attention_heads") or config.get("n_head")
    width = config.get("hidden_size") or config.get("n_embd")
    head_dim = config.get("head_dim") or (width // heads if width and heads else None)
    rope = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    base = rope.get("rope_theta") or config.get("rope_theta") or config.get("rotary_emb_base")
    share = rope.get("partial_rotary_factor") or config.get("partial_rotary_factor") or config.get("rotary_pct") or 1.0
    plain = all(not isinstance(value, Mapping) for value in rope.values())
    kind = rope.get("rope_type") or rope.get("type")
    found = {
        "trained_length": rope.get("original_max_position_embeddings") if kind == "yarn" else None,
        "head_dim": head_dim,
        "rope_base": base,
        "rotary_dim": int(head_dim * share) if base and head_dim and share != 1.0 else None,
        "rope_scaling": rope if not plain or kind not in (None, "default") else None,
        "rotary_layout": "interleaved" if config.get("model_type") in INTERLEAVED else None,
        "layers": config.get("num_hidden_layers") or config.get("n_layer"),
        "width": width,
        "heads": heads,
        "kv_heads": config.get("num_key_value_heads") or heads,
        "vocabulary": config.get("vocab_size"),
    }
    found["trained_length"] = found["trained_length"] or config.get(
        "max_position_embeddings", config.get("n_positions")
    )
    return {key: value for key, value in found.items() if value is not None}


INTERLEAVED = {"gptj", "codegen", "cohere", "cohere2", "glm", "glm4", "helium", "ernie4_5"}


def end_tokens(folder: Path) -> frozenset[int]:
    """Ids at which the model ends what it writes: generation_config.json's, else config.json's."""
    for name in ("generation_config.json", "config.json"):
        file = folder / name
        ends = json.loads(file.read_text()).get("eos_token_id") if file.exists() else None
        if ends is not None:
            return frozenset(ends if isinstance(ends, list) else [ends])
    return frozenset()


def weight_files(folder: Path) -> list[Path]:
    """The checkpoint's safetensors files; ValueError where there are none."""
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        others = [file.name for file in folder.iterdir() if file.suffix in (".bin", ".pt", ".pth", ".ckpt")]
        found = f" (only {', '.join(sorted(others)[:3])})" if others else ""
        raise ValueError(f"model folder {folder} has no *.safetensors{found}: convert it, other formats can run code")
    return files


def fingerprint(folder: Path) -> str:
    """Hash of config, tokenizer and weights: whole files up to 256 MB, beyond that 256 blocks spread over each."""
    digest = hashlib.sha256()
    for file in [*sorted(folder.glob("*.json")), *weight_files(folder)]:
        size = file.stat().st_size
        digest.update(f"{file.name}:{size}:".encode())
        with file.open("rb") as stream:
            if size <= 256 << 20:
                while block := stream.read(1 << 20):
                    digest.update(block)
            else:
                for place in range(256):
                    stream.seek((size - (1 << 16)) * place // 255)
                    digest.update(stream.read(1 << 16))
    return digest.hexdigest()[:16]
