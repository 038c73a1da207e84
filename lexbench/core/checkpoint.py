"""Checkpoints on disk or on the hub: find them, read their config, fingerprint their weights."""

import functools
import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, cast

from lexbench.core.files import parse_object, read_object, sha256, unlike
from lexbench.core.gguf import FetchError, gguf_folder, is_gguf
from lexbench.core.model import Model
from lexbench.core.registry import suggest
from lexbench.core.values import fits

FILES = ["*.json", "*.jinja", "tokenizer.model"]
WEIGHTS = ["*.safetensors"]
OURS = "lexbench"
"""model_type of checkpoints made by `lexbench train`, if transformers has no such architecture."""
NUMBERS = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}
"""Bytes of a number by dtype."""
LARGE = 256 << 20
"""Cache the hash of a file with more bytes than this."""
OVERRULED = "trained_length"
"""The fact of a checkpoint that the user may state otherwise."""


def on_disk(path: str) -> Path | None:
    """The folder of a model's path, or None for a name on the hub.

    `lexbench:NAME` is a model shipped with lexbench; a GGUF file has a folder in the cache (`lexbench.core.gguf`).
    """
    if is_gguf(path):
        return gguf_folder(path)
    ours = path.startswith("lexbench:")
    folder = Path(__file__).parents[1] / path.removeprefix("lexbench:") if ours else Path(path).expanduser()
    if folder.is_dir():
        return folder
    if ours or path.startswith((".", "/", "~")) or path.count("/") != 1:
        raise ValueError(
            f"model folder {path} {unlike(folder)}: give model.path=DIR, a GGUF file or a hub name like org/name"
        )
    return None


def locate(path: str, revision: str | None = None, weights: bool = True) -> Path:
    """The folder of a checkpoint: on disk, or downloaded from the hub or found in its cache."""
    if folder := on_disk(path):
        return folder
    from huggingface_hub import snapshot_download

    patterns = WEIGHTS + FILES if weights else FILES
    return _fetched(
        path,
        lambda local: snapshot_download(path, revision=revision, allow_patterns=patterns, local_files_only=local),
    )


def folder_of(model: Model, weights: bool = True) -> Path:
    """The folder of a model's checkpoint, as `locate` finds it; ValueError if the model names none."""
    if model.path is None:
        raise ValueError(f"model {model.name} has no checkpoint to run: give model.path=DIR or a hub name")
    return locate(model.path, model.revision, weights)


FOLDER = "give its folder as model.path=DIR"


def _fetched(path: str, fetch: Callable[[bool], str]) -> Path:
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
        remedy = f"accept it on the model's page, then hf auth login, or {FOLDER}"
    except errors.RepositoryNotFoundError:
        reason = "the hub shows no such repository"
        remedy = f"check the name, hf auth login if it is private, or {FOLDER}"
    except (OSError, ValueError, errors.EntryNotFoundError, transport) as error:
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        remedy = f"check name and network, or {FOLDER}"
        if not reached:
            reason = "the hub is out of reach, and the cache lacks it"
    raise FetchError(f"model {path} cannot be fetched ({reason}): {remedy}")


SECONDS = 5.0
"""Seconds to wait for the hub: its own client tries again for half a minute."""


@functools.cache
def hub_is_reached() -> bool:
    """Whether the hub answers at all; asked once."""
    from huggingface_hub import constants, errors, get_session

    transport = cast(type[Exception], vars(errors)["HTTPError"])
    try:
        get_session().head(constants.ENDPOINT, timeout=SECONDS)
    except (OSError, transport):
        return False
    return True


def read_config(path: str, revision: str | None = None) -> dict[str, Any]:
    """Read a checkpoint's config.json, without its weights; ValueError if it is missing or not a JSON object."""
    if folder := on_disk(path):
        file = folder / "config.json"
        if not file.is_file():
            raise ValueError(f"model folder {path} has no config.json: give a folder in Hugging Face form")
    else:
        from huggingface_hub import hf_hub_download

        file = _fetched(
            path, lambda local: hf_hub_download(path, "config.json", revision=revision, local_files_only=local)
        )
    return parse_object(file.read_bytes(), f"config.json of {path}", "download it again")


def read_known_model(stated: Mapping[str, Any]) -> Model:
    """The model's facts; does not read the checkpoint if the stated facts suffice."""
    return read_model(stated, offline=suffice(stated))


def suffice(stated: Mapping[str, Any]) -> bool:
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
            raise ValueError(f"unknown parameter model.{key}: {suggest(key, known)}")
    given = {key: value for key, value in stated.items() if value is not None}
    found: dict[str, Any] = {}
    if given.get("path") and not offline:
        path = str(given["path"])
        found = _facts(path, read_config(path, given.get("revision")))
        for key in (given.keys() & found.keys()) - {OVERRULED}:
            if found[key] != given[key]:
                raise ValueError(f"model.{key} is stated as {given[key]}, the checkpoint says {found[key]}: drop it")
        given.setdefault("name", Path(path).expanduser().resolve().name)
    missing = {"name", "trained_length", "head_dim"} - {**found, **given}.keys()
    if missing == {"trained_length"} and "rope_scaling" in found:
        kind, factor = found["rope_scaling"].get("rope_type"), found["rope_scaling"].get("factor")
        raise ValueError(
            f"model.trained_length is ambiguous, as the checkpoint scales its angles ({kind} by {factor}) "
            "from one length to another: give model.trained_length=..."
        )
    if missing:
        raise ValueError(f"model lacks {', '.join(sorted(missing))}: give model.path=DIR, or model.{min(missing)}=...")
    return Model(**{**found, **given})


def _facts(path: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """The facts in a config.json; ValueError for a value of a wrong type."""
    try:
        return facts(config)
    except (TypeError, AttributeError, ValueError, ArithmeticError) as error:
        raise ValueError(f"config.json of {path} cannot be understood ({error}): download it again") from None


# facts of a config.json


def facts(config: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of `Model` in a config.json of transformers 4 or 5; unstated fields are left out.

    `rope_scaling` has the names of transformers 5 (rope_type), without the base and the rotated share, which are facts
    of their own. If kinds of layers rotate differently, there is no single base, and it maps each kind to its
    parameters.
    """
    section = "text_config" if config.get("text_config") else None
    # The last one wins: defaults of transformers, the file, its section for text.
    config = {**config, **(config.get("text_config") or {})}
    config = {**IMPLIED.get(config.get("model_type", ""), {}), **config}
    heads = _first(config, "num_attention_heads", "n_head", "n_heads")
    width = _first(config, "hidden_size", "n_embd", "d_model")
    head_dim = _head_dim(config, width, heads)
    base, scaling = _rope(config)
    extra = {key: value for key, value in _rope_parameters(config).items() if key.startswith("mrope")}
    rotates = base is not None or scaling is not None
    if head_dim is None and heads is None and not rotates:  # no attention: a state of the whole width
        head_dim = width
    one_kv_head = config.get("multi_query") and not config.get("new_decoder_architecture")  # StarCoder, Falcon
    found = {
        "trained_length": _trained_length(config, scaling),
        "head_dim": head_dim,
        "rope_base": base,
        "rotary_dim": _rotary_dim(config, head_dim) if rotates else None,
        "rope_scaling": scaling,
        "rope_extra": extra or None,
        "decoupled": True if config.get("qk_rope_head_dim") else None,
        "architecture": kind if (kind := config.get("model_type")) in READ_APART else None,
        "config_section": section,
        "max_position_embeddings": config.get("max_position_embeddings") if _needs_claimed(scaling or {}) else None,
        "layer_types": _layer_types(config),
        "global_head_dim": _of_global_layers(config, "head_dim", "global_head_dim"),
        "global_kv_heads": _of_global_layers(config, "num_key_value_heads", "num_global_key_value_heads"),
        "rotary_layout": "interleaved" if rotates and config.get("model_type") in INTERLEAVED else None,
        "layers": _first(config, "num_hidden_layers", "n_layer", "n_layers"),
        "width": width,
        "heads": heads,
        "kv_heads": 1 if one_kv_head else _first(config, "num_key_value_heads", "num_kv_heads") or heads,
        "vocabulary": config.get("vocab_size"),
    }
    return {key: value for key, value in found.items() if value is not None}


def _needs_claimed(scaling: Mapping[str, Any]) -> bool:
    """Whether a scaling is computed from max_position_embeddings: it states no length of its own, or no factor."""
    kinds = [scaling] if "rope_type" in scaling else [each for each in scaling.values() if isinstance(each, Mapping)]
    needed = {
        "dynamic": {"max_position_embeddings"},
        "llama3": {"original_max_position_embeddings"},
        **{kind: {"original_max_position_embeddings", "factor"} for kind in ("yarn", "longrope")},
    }
    return any(each.get(name) is None for each in kinds for name in needed.get(each.get("rope_type", ""), ()))


def _layer_types(config: Mapping[str, Any]) -> tuple[str, ...] | None:
    """Kind of attention of each layer; None if all see all keys, or the file does not say it."""
    kinds = config.get("layer_types")
    every = _first(config, "sliding_window_pattern", "_sliding_window_pattern")
    layers = config.get("num_hidden_layers")
    if kinds is None and every and layers:  # Gemma in transformers 4: every n-th layer sees all keys
        kinds = ["sliding_attention" if (layer + 1) % every else "full_attention" for layer in range(layers)]
    every = config.get("global_attn_every_n_layers")
    if kinds is None and every and layers:  # ModernBERT: the first of every n does
        kinds = ["sliding_attention" if layer % every else "full_attention" for layer in range(layers)]
    return tuple(kinds) if kinds and set(kinds) != {"full_attention"} else None


def _of_global_layers(config: Mapping[str, Any], name: str, stated: str) -> int | None:
    """A size of the layers that see all keys, where other layers have another one (Gemma 4)."""
    layers = config.get("per_layer_config")  # as transformers 5 writes it
    kinds = _layer_types(config) or ()
    if not layers:
        return config.get(stated) if stated != "num_global_key_value_heads" or config.get("attention_k_eq_v") else None
    found = [layers[key].get(name) for key in layers if not str(kinds[int(key)]).startswith("sliding")]
    return next((value for value in found if value is not None), None)


def _first(config: Mapping[str, Any], *names: str) -> Any:
    """The first of these entries that is not null."""
    return next((config[name] for name in names if config.get(name) is not None), None)


def _head_dim(config: Mapping[str, Any], width: int | None, heads: int | None) -> int | None:
    if config.get("qk_rope_head_dim"):  # multi-head latent attention: an unrotated part beside the rotated one
        return int(config.get("qk_nope_head_dim") or 0) + int(config["qk_rope_head_dim"])
    own = config.get("attention_head_dim") if config.get("model_type") == "zamba2" else None
    stated = own or config.get("head_dim") or IMPLIED_HEAD_DIM.get(config.get("model_type", ""))
    return stated or (width // heads if width and heads else None)


def _rotary_dim(config: Mapping[str, Any], head_dim: int | None) -> int | None:
    """Rotated dimensions; None: all."""
    # transformers' MiniMax, unlike its MiniMax M2, leaves rotary_dim unread.
    stated = _first(config, "qk_rope_head_dim", *(() if config.get("model_type") == "minimax" else ("rotary_dim",)))
    if stated or head_dim is None:
        return int(stated) if stated else None
    share = _first({**config, **_rope_parameters(config)}, "partial_rotary_factor", "rotary_pct")
    if _rope_parameters(config).get("rope_type") == "proportional":  # counts all pairs, of which some stand still
        return None
    share = share or IMPLIED_SHARE.get(config.get("model_type", ""), 1.0)
    return int(head_dim * share) if share != 1.0 else None


def _rope_parameters(config: Mapping[str, Any]) -> dict[str, Any]:
    """rope_parameters (transformers 5), else rope_scaling (transformers 4); a file may have both, or null."""
    return dict(config.get("rope_parameters") or config.get("rope_scaling") or {})


def _rope(config: Mapping[str, Any]) -> tuple[float | None, dict[str, Any] | None]:
    """Base and scaling: (None, None) without rotary positions, (None, layers) if kinds of layers differ."""
    rope = _rope_parameters(config)
    layers = {kind: value for kind, value in rope.items() if isinstance(value, Mapping)}
    if layers:
        return None, {kind: dict(value) for kind, value in layers.items()}
    if config.get("alibi"):  # Falcon: the file has a base even if it is not used
        return None, None
    base = _first(rope, "rope_theta") or _first(config, "rope_theta", "rotary_emb_base")
    base = base or IMPLIED_BASE.get(config.get("model_type", ""))
    kind = _first(rope, "rope_type", "type") or "default"
    kind = "default" if kind == "mrope" else kind  # one axis for text, and nothing is scaled
    # Facts of their own; of a proportional RoPE the share is part of its formula.
    apart = ("rope_theta", "type", *(() if kind == "proportional" else ("partial_rotary_factor",)))
    rest = {key: value for key, value in rope.items() if key not in apart}
    original = config.get("original_max_position_embeddings")
    if original and kind in ("llama3", "longrope", "yarn"):  # Phi: beside the parameters
        rest.setdefault("original_max_position_embeddings", original)
    if kind == "dynamic" and rest.get("alpha"):  # HunYuan: a larger base at every length
        kind = "ntk_alpha"
    scaling = {**rest, "rope_type": kind} if kind != "default" else None
    if scaling is not None and config.get("model_type") == "olmo3":  # windows keep the plain RoPE
        plain = {"rope_type": "default", "rope_theta": base}
        return None, {"full_attention": {**scaling, "rope_theta": base}, "sliding_attention": plain}
    if full := config.get("global_rope_theta"):  # ModernBERT in transformers 4
        bases = {"full_attention": full, "sliding_attention": config.get("local_rope_theta") or full}
        return None, {kind: {"rope_type": "default", "rope_theta": base} for kind, base in bases.items()}
    if local := config.get("rope_local_base_freq"):  # Gemma 3 in transformers 4
        full = {**rest, "rope_type": kind, "rope_theta": base}
        return None, {"full_attention": full, "sliding_attention": {"rope_type": "default", "rope_theta": local}}
    return base, scaling


def _trained_length(config: Mapping[str, Any], scaling: Mapping[str, Any] | None) -> int | None:
    """max_position_embeddings; None if a scaling factor makes it ambiguous.

    A linear or yarn factor scales one length to another. If max_position_embeddings is the longer of the two
    (original_max_position_embeddings times factor, as in gpt-oss), it is the trained length. Otherwise the file does
    not say whether the scaling was trained (Vicuna 16k: 4096, linear 4) or is for later use (Qwen2.5: 32768, yarn 4).
    """
    claimed: int | None = _first(config, "max_position_embeddings", "n_positions", "max_seq_len", "seq_length")
    if claimed is None or scaling is None or scaling.get("rope_type") not in ("linear", "yarn"):
        return claimed
    original = scaling.get("original_max_position_embeddings") or claimed
    stretched = original * (scaling.get("factor") or claimed / original)
    return claimed if stretched == claimed else None


# Defaults of transformers for entries that old config.json files lack.
IMPLIED_BASE = {
    **dict.fromkeys(("codegen", "falcon", "gemma", "gemma2", "gpt_neox", "gptj", "granite", "llama", "mistral"), 1e4),
    **dict.fromkeys(("olmo", "olmo2", "persimmon", "phi", "phi3", "qwen2", "qwen3", "stablelm", "starcoder2"), 1e4),
    "mixtral": 1e6,
}
READ_APART = {"gpt_oss"}
"""Model types whose rope parameters an engine reads by code of its own, which counts for exports."""
LLAMA = {"hidden_size": 4096, "num_attention_heads": 32, "num_hidden_layers": 32, "vocab_size": 32000}
IMPLIED: dict[str, dict[str, Any]] = {
    "llama": LLAMA,  # the text part of LLaVA's file leaves them out
    "mistral": {**LLAMA, "num_key_value_heads": 8},
    "gemma3_text": {"num_attention_heads": 8, "num_key_value_heads": 4, "rope_theta": 1e6, "rope_local_base_freq": 1e4}
    | {"max_position_embeddings": 131072, "sliding_window_pattern": 6},
}
IMPLIED_SHARE = {"gpt_neox": 0.25, "persimmon": 0.5, "phi": 0.5, "stablelm": 0.25}
IMPLIED_HEAD_DIM = {"gemma": 256, "gemma2": 256, "gemma3_text": 256, "qwen3": 128}
INTERLEAVED = {
    *("codegen", "cohere", "cohere2", "cohere2_moe", "deepseek_v2", "ernie4_5", "ernie4_5_moe", "ernie4_5_vl_moe_text"),
    *("glm", "glm4", "glm4v_text", "glm_ocr_text", "gptj", "helium", "llama4_text"),
}
"""Model types that rotate dimension 2p with 2p + 1."""


# files of a folder


def check_architecture(folder: Path) -> None:
    """ValueError if transformers does not know the checkpoint's architecture."""
    import transformers

    kind = read_config(str(folder)).get("model_type")
    if kind == OURS:
        raise ValueError(f"{folder} has an encoding that needs backend=native: use it, or see lexbench convert")
    if kind not in transformers.CONFIG_MAPPING:
        known = f"transformers {transformers.__version__}"
        raise ValueError(f"model_type {kind} of {folder} is unknown to {known}: upgrade it, or convert the checkpoint")


STORED = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
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
    said = str(_first(stated, "dtype", "torch_dtype") or "").removeprefix("torch.")
    if said in STORED.values():
        return said
    sizes: dict[str, int] = {}
    for file in weight_files(folder):
        for kind, size in _tensors(file):
            sizes[kind] = sizes.get(kind, 0) + size
    return STORED.get(max(sizes, key=sizes.__getitem__, default=""), "bfloat16")


def weight_bytes(folder: Path, dtype: str) -> int:
    """Bytes of all weights in a dtype: float64, float32, float16 or bfloat16."""
    numbers = sum(
        size // NUMBERS.get(STORED.get(kind, ""), 1) for f in weight_files(folder) for kind, size in _tensors(f)
    )
    return numbers * NUMBERS[dtype]


def _tensors(file: Path) -> list[tuple[str, int]]:
    """(dtype, bytes) of each tensor in a safetensors file, from its header."""
    try:
        with file.open("rb") as stream:
            # 8 bytes of length, little-endian, then a JSON header.
            header = json.loads(stream.read(int.from_bytes(stream.read(8), "little")))
        tensors = [tensor for name, tensor in header.items() if name != "__metadata__"]
        return [(tensor["dtype"], tensor["data_offsets"][1] - tensor["data_offsets"][0]) for tensor in tensors]
    except (ValueError, TypeError, KeyError, AttributeError, IndexError, OverflowError, MemoryError) as error:
        raise ValueError(f"{file} is no safetensors file ({error}): download it again") from None


def end_tokens(folder: Path) -> frozenset[int]:
    """Ids of the end tokens: from generation_config.json, else from config.json."""
    for name in ("generation_config.json", "config.json"):
        file = folder / name
        ends = read_object(file, "download it again").get("eos_token_id") if file.exists() else None
        if ends is not None:
            listed = ends if isinstance(ends, list) else [ends]
            if not all(fits(each, int) for each in listed):
                raise ValueError(
                    f"eos_token_id of {file} must be ids of tokens, got {str(ends)[:60]!r}: download it again"
                )
            return frozenset(listed)
    return frozenset()


def weight_files(folder: Path) -> list[Path]:
    """The checkpoint's safetensors files; ValueError if there are none, or some of its index are missing."""
    index = folder / "model.safetensors.index.json"
    named = read_object(index, "get it again").get("weight_map") if index.exists() else None
    parts = {str(name) for name in named.values()} if isinstance(named, Mapping) else set[str]()
    files = sorted(folder.glob("*.safetensors"))
    if missing := sorted(parts - {file.name for file in files if file.exists()}):
        lacking = f"{missing[0]}, {len(missing)} of {len(parts)} parts"
        raise ValueError(f"model folder {folder} lacks {lacking}: download it again, it is incomplete")
    if broken := [file.name for file in files if not file.is_file()]:
        raise ValueError(f"{broken[0]} in model folder {folder} is a broken link or no file: download the folder again")
    if not files:
        others = [file.name for file in folder.iterdir() if file.suffix in (".bin", ".pt", ".pth", ".ckpt")]
        found = f" (only {', '.join(sorted(others)[:3])})" if others else ""
        remedy = "convert it, other formats can run code" if others else "download it again"
        raise ValueError(f"model folder {folder} has no *.safetensors{found}: {remedy}")
    return files


def modified(folder: Path) -> list[tuple[str, int, int]]:
    """Name, size (bytes) and mtime (ns) of the folder's files; unchanged unless somebody writes to it."""
    files = sorted(file for file in folder.iterdir() if file.is_file())
    return [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files]


def fingerprint(folder: Path) -> str:
    """Hash of config, tokenizer, chat template and weights.

    A file above 256 MiB enters by its SHA-256, which is cached (`sha256`).
    """
    digest = hashlib.sha256()
    small = [file for pattern in FILES for file in sorted(folder.glob(pattern))]
    for file in [*small, *weight_files(folder)]:
        size = file.stat().st_size
        # Names and sizes part the files: no byte can move from one to the next unseen.
        digest.update(f"{file.name}:{size}:".encode())
        if size <= LARGE:
            with file.open("rb") as stream:
                while block := stream.read(1 << 20):
                    digest.update(block)
        else:
            digest.update(sha256(file).encode())
    return digest.hexdigest()[:16]


def revision_of(model: Model, folder: Path) -> str:
    """A mark that tells a model's weights from others: the hub's commit, the name of its cached folder; else a hash."""
    return fingerprint(folder) if on_disk(str(model.path)) else folder.name
