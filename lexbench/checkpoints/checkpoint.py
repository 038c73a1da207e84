"""Checkpoints on disk or on the hub: find them, read their config, fingerprint their weights."""

import functools
import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, cast

from lexbench.checkpoints.config_facts import facts_of_config
from lexbench.core.errors import ConfigError, FetchError
from lexbench.core.files import parse_object, read_object, sha256, why_not_a_folder
from lexbench.core.model import Model, as_fact
from lexbench.core.parts import is_checkpoint_file, load_provided
from lexbench.core.registry import suggest_choices
from lexbench.core.values import has_type

CONFIG_FILE_PATTERNS = ["*.json", "*.jinja", "tokenizer.model"]
WEIGHT_FILE_PATTERNS = ["*.safetensors"]
ADAPTER_CONFIG_FILE = "adapter_config.json"
"""File of peft: its folder holds an adapter, alone or beside the weights that it changes."""
ADAPTER_FILES = (ADAPTER_CONFIG_FILE, "adapter_model.safetensors", "adapter_model.bin")
"""Files of peft, of which each shows an adapter: a download that was cut short may lack the first."""
MERGE_ADAPTER_REMEDY = (
    "merge it into its base (peft's merge_and_unload, then save_pretrained into a new folder, the tokenizer beside it)"
)
LEXBENCH_MODEL_TYPE = "lexbench"
"""model_type of checkpoints made by `lexbench train`, if transformers has no such architecture."""
BYTES_PER_NUMBER = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}
"""Bytes of a number by dtype."""
MIN_CACHED_HASH_BYTES = 256 << 20
"""Cache the hash of a file with more bytes than this."""
OVERRIDABLE_FACT = "trained_length"
"""The fact of a checkpoint that the user may state otherwise."""


def local_folder(path: str) -> Path | None:
    """The folder of a model's path, or None for a name on the hub.

    `lexbench:NAME` is a model shipped with lexbench; a file of a form that a part reads has a folder in the cache.
    """
    if is_checkpoint_file(path):
        return Path(load_provided("checkpoint", Path(path).suffix[1:])(path))
    ours = path.startswith("lexbench:")
    folder = Path(__file__).parents[1] / path.removeprefix("lexbench:") if ours else Path(path).expanduser()
    if folder.is_dir():
        return folder
    if ours or path.startswith((".", "/", "~")) or path.count("/") != 1:
        raise ConfigError(
            f"model folder {path} {why_not_a_folder(folder)}: give model.path=DIR, a GGUF file or a hub name like "
            "org/name"
        )
    return None


def locate_checkpoint(path: str, revision: str | None = None, weights: bool = True) -> Path:
    """The folder of a checkpoint: on disk, or downloaded from the hub or found in its cache."""
    if folder := local_folder(path):
        return folder
    from huggingface_hub import snapshot_download

    patterns = WEIGHT_FILE_PATTERNS + CONFIG_FILE_PATTERNS if weights else CONFIG_FILE_PATTERNS
    return _fetch_or_use_cache(
        path, lambda local: snapshot_download(path, revision=revision, allow_patterns=patterns, local_files_only=local)
    )


def folder_of(model: Model, weights: bool = True) -> Path:
    """The folder of a model's checkpoint, as `locate_checkpoint` finds it; ConfigError if the model names none."""
    if model.path is None:
        raise ConfigError(f"model {model.name} has no checkpoint to run: give model.path=DIR or a hub name")
    return locate_checkpoint(model.path, model.revision, weights)


MODEL_PATH_REMEDY = "give its folder as model.path=DIR"


def _fetch_or_use_cache(path: str, fetch: Callable[[bool], str]) -> Path:
    """Fetch from the hub, or from the cache where the hub is out of reach; FetchError with what to do.

    Args:
        path: name on the hub.
        fetch: called with whether to look into the cache only.
    """
    from huggingface_hub import errors

    transport = cast(type[Exception], vars(errors)["HTTPError"])  # its HTTP library depends on the hub's version
    reached = hub_is_reached()
    try:
        return Path(fetch(not reached))
    except errors.GatedRepoError:
        reason = "its licence is not accepted here"
        remedy = f"accept it on the model's page, then hf auth login, or {MODEL_PATH_REMEDY}"
    except errors.RepositoryNotFoundError:
        reason = "the hub shows no such repository"
        remedy = f"check the name, hf auth login if it is private, or {MODEL_PATH_REMEDY}"
    except (OSError, ValueError, errors.EntryNotFoundError, transport) as error:
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        remedy = f"check name and network, or {MODEL_PATH_REMEDY}"
        if not reached:
            reason = "the hub is out of reach, and the cache lacks it"
    raise FetchError(f"model {path} cannot be fetched ({reason}): {remedy}")


HUB_TIMEOUT_SECONDS = 5.0
"""Seconds to wait for the hub: its own client tries again for half a minute."""


@functools.cache
def hub_is_reached() -> bool:
    """Whether the hub answers at all; asked once."""
    from huggingface_hub import constants, errors, get_session

    transport = cast(type[Exception], vars(errors)["HTTPError"])
    try:
        get_session().head(constants.ENDPOINT, timeout=HUB_TIMEOUT_SECONDS)
    except (OSError, transport):
        return False
    return True


def read_config(path: str, revision: str | None = None) -> dict[str, Any]:
    """Read a checkpoint's config.json, without its weights; ConfigError if it is missing or not a JSON object."""
    if folder := local_folder(path):
        file = folder / "config.json"
        if not file.is_file():
            if (folder / ADAPTER_CONFIG_FILE).exists():
                raise ConfigError(
                    f"model folder {path} holds an adapter alone ({ADAPTER_CONFIG_FILE}): {MERGE_ADAPTER_REMEDY}"
                )
            raise ConfigError(f"model folder {path} has no config.json: give a folder in Hugging Face form")
    else:
        from huggingface_hub import hf_hub_download

        file = _fetch_or_use_cache(
            path, lambda local: hf_hub_download(path, "config.json", revision=revision, local_files_only=local)
        )
    return parse_object(file.read_bytes(), f"config.json of {path}", "download it again")


def read_known_model(stated: Mapping[str, Any]) -> Model:
    """The model's facts; does not read the checkpoint if the stated facts suffice."""
    return read_model(stated, offline=facts_suffice(stated))


def facts_suffice(stated: Mapping[str, Any]) -> bool:
    """Whether stated facts make a `Model` without its checkpoint."""
    return {"name", "trained_length", "head_dim"} <= {key for key, value in stated.items() if value is not None}


def read_model(stated: Mapping[str, Any], offline: bool = False) -> Model:
    """The model's facts: from the checkpoint's config, completed by the yaml and the user.

    Args:
        stated: fields of `Model`; `trained_length` overrules the checkpoint, other facts that it states must agree.
        offline: use the stated facts only and do not read the checkpoint.
    """
    known = sorted(f.name for f in fields(Model))
    for key in stated:
        if key not in known:
            raise ConfigError(f"unknown parameter model.{key}: {suggest_choices(key, known)}")
    given = {key: value for key, value in stated.items() if value is not None}
    found: dict[str, Any] = {}
    if given.get("path") and not offline:
        path = str(given["path"])
        found = _facts(path, read_config(path, given.get("revision")))
        for key in (given.keys() & found.keys()) - {OVERRIDABLE_FACT}:
            if as_fact(found[key]) != as_fact(given[key]):
                raise ConfigError(f"model.{key} is stated as {given[key]}, the checkpoint says {found[key]}: drop it")
        given.setdefault("name", Path(path).expanduser().resolve().name)
    missing = {"name", "trained_length", "head_dim"} - {**found, **given}.keys()
    if missing == {"trained_length"} and "rope_scaling" in found:
        kind, factor = found["rope_scaling"].get("rope_type"), found["rope_scaling"].get("factor")
        raise ConfigError(
            f"model.trained_length is ambiguous, as the checkpoint scales its angles ({kind} by {factor}) "
            "from one length to another: give model.trained_length=..."
        )
    if missing:
        raise ConfigError(f"model lacks {', '.join(sorted(missing))}: give model.path=DIR, or model.{min(missing)}=...")
    return Model(**{**found, **given})


def _facts(path: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """The facts in a config.json; ConfigError for a value of a wrong type."""
    try:
        return facts_of_config(config)
    except (TypeError, AttributeError, ValueError, ArithmeticError) as error:
        raise ConfigError(
            f"config.json of {path} cannot be understood ({error}): mend it, or download it again"
        ) from None


# files of a folder


def check_architecture(folder: Path) -> None:
    """ConfigError if transformers does not know the checkpoint's architecture."""
    import transformers

    kind = read_config(str(folder)).get("model_type")
    if kind == LEXBENCH_MODEL_TYPE:
        raise ConfigError(f"{folder} has an encoding that needs backend=native: use it, or see lexbench convert")
    if kind not in transformers.CONFIG_MAPPING:
        known = f"transformers {transformers.__version__}"
        raise ConfigError(f"model_type {kind} of {folder} is unknown to {known}: upgrade it, or convert the checkpoint")


SAFETENSORS_DTYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
"""Names of the dtypes in safetensors."""


def dtype_of(name: str, folder: Path, accelerated: bool) -> str:
    """The dtype by a name; auto: on an accelerator the checkpoint's own, on a CPU float32."""
    if name != "auto":
        return name
    return stored_dtype(folder) if accelerated else "float32"


def stored_dtype(folder: Path) -> str:
    """The dtype that config.json states, else that of most weights; bfloat16 where they are in none of the usual."""
    config = read_config(str(folder))
    stated = {**config, **(config.get("text_config") or {})}
    said = str(stated.get("dtype") or stated.get("torch_dtype") or "").removeprefix("torch.")
    if said in SAFETENSORS_DTYPES.values():
        return said
    sizes: dict[str, int] = {}
    for file in weight_files(folder):
        for kind, size in _tensors(file):
            sizes[kind] = sizes.get(kind, 0) + size
    return SAFETENSORS_DTYPES.get(max(sizes, key=sizes.__getitem__, default=""), "bfloat16")


def weight_bytes(folder: Path, dtype: str) -> int:
    """Bytes of all weights in a dtype: float64, float32, float16 or bfloat16."""
    numbers = sum(
        size // BYTES_PER_NUMBER.get(SAFETENSORS_DTYPES.get(kind, ""), 1)
        for f in weight_files(folder)
        for kind, size in _tensors(f)
    )
    return numbers * BYTES_PER_NUMBER[dtype]


def _tensors(file: Path) -> list[tuple[str, int]]:
    """(dtype, bytes) of each tensor in a safetensors file, from its header."""
    try:
        with file.open("rb") as stream:
            # 8 bytes of length, little-endian, then a JSON header.
            header = json.loads(stream.read(int.from_bytes(stream.read(8), "little")))
        tensors = [tensor for name, tensor in header.items() if name != "__metadata__"]
        return [(tensor["dtype"], tensor["data_offsets"][1] - tensor["data_offsets"][0]) for tensor in tensors]
    except (ValueError, TypeError, KeyError, AttributeError, IndexError, OverflowError, MemoryError) as error:
        raise ConfigError(f"{file} is no safetensors file ({error}): download it again") from None


def end_tokens(folder: Path) -> frozenset[int]:
    """Ids of the end tokens: from generation_config.json, else from config.json, else from its text_config."""
    for name, section in (("generation_config.json", ""), ("config.json", ""), ("config.json", "text_config")):
        file = folder / name
        page = read_object(file, "download it again") if file.exists() else {}
        held = page.get(section) if section else page
        ends = held.get("eos_token_id") if isinstance(held, Mapping) else None
        if ends is not None:
            listed = ends if isinstance(ends, list) else [ends]
            if not all(has_type(each, int) for each in listed):
                raise ConfigError(
                    f"eos_token_id of {file} must be ids of tokens, got {str(ends)[:60]!r}: download it again"
                )
            return frozenset(listed)
    return frozenset()


def holds_adapter(folder: Path) -> list[str]:
    """Names of files of an adapter in a folder: a part of the model, which is not read."""
    return [name for name in ADAPTER_FILES if os.path.lexists(folder / name)]


def refuse_adapter(folder: Path) -> None:
    """ConfigError where a folder holds an adapter, beside weights or alone."""
    if found := holds_adapter(folder):
        raise ConfigError(
            f"model folder {folder} holds an adapter ({found[0]}), and weights without it are another model: "
            f"{MERGE_ADAPTER_REMEDY}, or move its files away to measure the base"
        )


def weight_files(folder: Path) -> list[Path]:
    """The checkpoint's safetensors files; ConfigError if there are none, or some of its index are missing.

    And where an adapter lies beside them, as `refuse_adapter` says.
    """
    refuse_adapter(folder)
    index = folder / "model.safetensors.index.json"
    named = read_object(index, "get it again").get("weight_map") if index.exists() else None
    parts = {str(name) for name in named.values()} if isinstance(named, Mapping) else set[str]()
    files = sorted(folder.glob("*.safetensors"))
    if missing := sorted(parts - {file.name for file in files if file.exists()}):
        lacking = f"{missing[0]}, {len(missing)} of {len(parts)} parts"
        raise ConfigError(f"model folder {folder} lacks {lacking}: download it again, it is incomplete")
    if broken := [file.name for file in files if not file.is_file()]:
        raise ConfigError(
            f"{broken[0]} in model folder {folder} is a broken link or no file: download the folder again"
        )
    if not files:
        others = [file.name for file in folder.iterdir() if file.suffix in (".bin", ".pt", ".pth", ".ckpt")]
        found = f" (only {', '.join(sorted(others)[:3])})" if others else ""
        remedy = "convert it, other formats can run code" if others else "download it again"
        raise ConfigError(f"model folder {folder} has no *.safetensors{found}: {remedy}")
    return files


def file_timestamps(folder: Path) -> list[tuple[str, int, int]]:
    """Name, size (bytes) and mtime (ns) of the folder's files; unchanged unless somebody writes to it."""
    files = sorted(file for file in folder.iterdir() if file.is_file())
    return [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files]


def checkpoint_fingerprint(folder: Path) -> str:
    """Hash of config, tokenizer, chat template and weights.

    A file above 256 MiB enters by its SHA-256, which is cached (`sha256`).
    """
    small = [file for pattern in CONFIG_FILE_PATTERNS for file in sorted(folder.glob(pattern))]
    return _files_hash([*small, *weight_files(folder)])


def weights_fingerprint(folder: Path) -> str:
    """Hash of the weights alone; see `checkpoint_fingerprint`."""
    return _files_hash(weight_files(folder))


def _files_hash(files: Sequence[Path]) -> str:
    """Hash of the names, sizes and content of files."""
    digest = hashlib.sha256()
    for file in files:
        size = file.stat().st_size
        # Names and sizes part the files: no byte can move from one to the next unseen.
        digest.update(f"{file.name}:{size}:".encode())
        if size <= MIN_CACHED_HASH_BYTES:
            with file.open("rb") as stream:
                while block := stream.read(1 << 20):
                    digest.update(block)
        else:
            digest.update(sha256(file).encode())
    return digest.hexdigest()[:16]


def revision_of(model: Model, folder: Path) -> str:
    """A mark that tells a model's weights from others: the hub's commit, the name of its cached folder; else a hash."""
    return checkpoint_fingerprint(folder) if local_folder(str(model.path)) else folder.name
