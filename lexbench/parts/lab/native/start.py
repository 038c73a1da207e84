"""Fine-tuning: the trained folder that a training starts from, and the method under which it trains."""

import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch

from lexbench.checkpoints.checkpoint import checkpoint_fingerprint, end_tokens, local_folder, read_model
from lexbench.core import registry
from lexbench.core.attention import Attention
from lexbench.core.errors import ConfigError
from lexbench.core.fence import attention_from
from lexbench.core.files import read_object
from lexbench.core.record import Refused
from lexbench.methods import export
from lexbench.methods.composition import Method, read_method
from lexbench.parts.lab.encodings.rope import Rope
from lexbench.parts.lab.native import build, naming
from lexbench.parts.lab.native.decoder import Decoder
from lexbench.parts.lab.native.folder import load_model
from lexbench.parts.lab.native.recipe import SHAPE_KEYS, Recipe

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "special_tokens_map.json")
GENERATION_FILES = ("generation_config.json", "chat_template.jinja")


@dataclass(frozen=True)
class TrainingStart:
    """The folder that a training starts from: of `lexbench train`, or of a Llama with plain RoPE."""

    name: str
    """Path of the folder as the user gave it."""
    folder: Path
    decoder: Decoder
    config: Mapping[str, Any]
    """Content of the folder's config.json."""
    encoding: Mapping[str, Any]
    """Name and parameters of the encoding, with texts replaced by token ids."""

    @property
    def facts(self) -> dict[str, str]:
        """Facts about the start of a training, for its record."""
        return {"folder": self.name, "fingerprint": checkpoint_fingerprint(self.folder)}

    @property
    def special_token_ids(self) -> tuple[int, int]:
        """Ids of BOS and EOS."""
        bos, ends = self.config.get("bos_token_id"), sorted(end_tokens(self.folder))
        if bos is None or not ends:
            raise ConfigError(f"start={self.name} names no BOS or no EOS: state both in its config.json")
        return bos, ends[0]

    def with_sizes(self, recipe: Recipe) -> Recipe:
        """The recipe with the folder's sizes; ConfigError where it states others."""
        shape = asdict(self.decoder.shape)
        own = {"vocabulary": shape["vocabulary"], **{f"shape.{key}": shape[key] for key in SHAPE_KEYS}}
        said = {"vocabulary": recipe.vocabulary, **{f"shape.{key}": size for key, size in (recipe.shape or {}).items()}}
        for key, size in said.items():
            if size is not None and size != own[key]:
                raise ConfigError(
                    f"recipe.{key} is {size}, start={self.name} has {own[key]}: leave it out, as recipe=finetune does"
                )
        return replace(
            recipe,
            shape={key: shape[key] for key in SHAPE_KEYS},
            vocabulary=shape["vocabulary"],
            trained_length=recipe.trained_length or self.config["max_position_embeddings"],
        )

    def copy_weights_to(self, decoder: Decoder, spec: Mapping[str, Any]) -> bool:
        """Copy its weights to a decoder by name; True if the encoding's too, which needs the same class.

        Raises ConfigError where a weight has another size.
        """
        known = dict(self.decoder.named_parameters())
        same = all(spec.get(key) == self.encoding.get(key) for key in naming.CLASS_KEYS)
        for name, weight in decoder.named_parameters():
            own = name.startswith("encoding.")
            if own and not same:
                continue
            if name not in known or known[name].shape != weight.shape:
                size = tuple(known[name].shape) if name in known else "none"
                raise ConfigError(
                    f"encoding weight {name} of {tuple(weight.shape)} has no match in start={self.name} ({size}): "
                    "keep the parameters that give its size"
                )
            with torch.no_grad():
                weight.copy_(known[name])
        return same

    def copy_tokenizer(self, out: Path) -> None:
        """Copy the files of the tokenizer, of generation settings and of the chat template."""
        for name in (*TOKENIZER_FILES, *GENERATION_FILES):
            if (self.folder / name).exists():
                shutil.copyfile(self.folder / name, out / name)


def read_start(path: str | Path) -> TrainingStart:
    """Read a start from a folder or `lexbench:lexlet`; ConfigError where `folder.load` cannot read it."""
    shipped = str(path).startswith("lexbench:")
    folder = (local_folder(str(path)) if shipped else None) or Path(path).expanduser()
    if not (folder / "config.json").exists():
        raise ConfigError(f"start={path} is no trained folder: give one with config.json and weights")
    try:
        decoder = load_model(folder)
    except ValueError as error:
        raise ConfigError(f"start={path} cannot be trained further ({error})") from None
    config = read_object(folder / "config.json", "train it again")
    encoding = config.get("encoding")
    if encoding is None:
        assert isinstance(decoder.encoding, Rope)
        encoding = build.resolve_spec({"name": "rope", "base": decoder.encoding.base})
    return TrainingStart(str(path), folder, decoder, config, build.update_stored_spec(encoding))


@dataclass(frozen=True)
class TrainingMethod:
    """The method under which a model is trained; its frequencies then hold at every length."""

    label: str = "none"
    attention: Attention | None = None
    config: Mapping[str, Any] | None = None
    """Entries of the method in config.json, in transformers' format; None: it has none."""


def _read_method(method: Mapping[str, Any]) -> tuple[str, Method, str]:
    name, built, key = read_method({**registry.read_named_config("method", method["name"]), **method})
    return name, built, str(key)


def check_method(method: Mapping[str, Any], start: TrainingStart | None, reach: int | None = None) -> str:
    """Check a method before training; its label.

    Args:
        method: its `name` and parameters.
        start: the folder to fine-tune.
        reach: length that an encoding's positions cover in training; None: the length of a row.

    Raises:
        ConfigError: no start, an unknown parameter, or frequencies stretched to another length than `reach`.
    """
    name, built, said = _read_method(method)
    if name == "none":
        return said
    if start is None:
        raise ConfigError(
            f"method={name} changes the frequencies of a trained model, and start is missing: give start=DIR"
        )
    length = start.config["max_position_embeddings"]
    factor = getattr(built, "factor", None) if _follows_length(built) else None
    if reach is not None and factor is not None and factor * length != reach:
        raise ConfigError(
            f"method.factor must stretch the start's {length} tokens to encoding.reach={reach}, got {factor:g}: "
            f"give method.factor={reach / length:g} or encoding.reach={round(factor * length)}"
        )
    return said


def _follows_length(method: Method) -> bool:
    """Whether its factor is length / trained_length by default; that of dynamic_ntk is not."""
    return any(field.name == "factor" and field.default is None for field in fields(method))  # type: ignore[arg-type]


def scale_to_length(
    method: Mapping[str, Any], start: TrainingStart | None, base: float | None, length: int
) -> TrainingMethod:
    """The method at the target length, as an Attention and as config entries.

    Args:
        method: its `name` and parameters.
        start: the folder to fine-tune.
        base: RoPE base of the ordinary Llama that training will save; None: it saves another model.
        length: in tokens, of training.

    Raises:
        ConfigError: training saves no ordinary Llama, or the method changes more than frequencies.
    """
    name, built, said = _read_method(method)
    if start is None or name == "none":
        return TrainingMethod()
    if base is None:
        raise ConfigError(
            f"method={name} needs a training that saves an ordinary Llama with plain RoPE, this encoding or "
            "shape.block saves another model: use method=none"
        )
    # The training's base, which the encoding may have changed.
    model = replace(read_model({"path": str(start.folder)}), rope_base=base)
    try:
        attention = attention_from(built, model, length)
        if others := set(attention.slots()) - {"inv_freq", "scale"}:
            raise Refused(f"it sets {', '.join(sorted(others))}")
        config = export.as_data(built, said, model, length, "transformers")
    except Refused as refusal:
        raise ConfigError(
            f"method={said} cannot be trained ({refusal.reason}): use a method that changes frequencies only"
        ) from None
    rope = config["rope_parameters"]
    if model.trained_length * rope.get("factor", 0) == length:
        rope["original_max_position_embeddings"] = model.trained_length  # records the length of the first training
    return TrainingMethod(said, attention, config)
