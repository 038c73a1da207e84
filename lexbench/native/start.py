"""Fine-tuning: what a training takes from a trained folder, and the method that it is trained under."""

import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch

from lexbench.core import registry
from lexbench.core.attention import Attention
from lexbench.core.checkpoint import end_tokens, fingerprint, on_disk, read_model
from lexbench.core.files import read_object
from lexbench.core.method import Method, read_method
from lexbench.core.record import Refused
from lexbench.encodings.rope import Rope
from lexbench.methods import export
from lexbench.native import build, naming
from lexbench.native.decoder import Decoder
from lexbench.native.folder import load
from lexbench.native.recipe import SIZES, Recipe

TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "special_tokens_map.json")
OTHERS = ("generation_config.json", "chat_template.jinja")


@dataclass(frozen=True)
class Start:
    """A folder of ours, or a Llama's with plain RoPE, that a training goes on from."""

    name: str
    """As it was given."""
    folder: Path
    decoder: Decoder
    config: Mapping[str, Any]
    """Its config.json."""
    encoding: Mapping[str, Any]
    """Resolved."""

    @property
    def facts(self) -> dict[str, str]:
        """What a training depends on."""
        return {"folder": self.name, "fingerprint": fingerprint(self.folder)}

    @property
    def ends(self) -> tuple[int, int]:
        """BOS and EOS: what begins and what ends a text."""
        bos, ends = self.config.get("bos_token_id"), sorted(end_tokens(self.folder))
        if bos is None or not ends:
            raise ValueError(f"start={self.name} names no BOS or no EOS: state both in its config.json")
        return bos, ends[0]

    def settled(self, recipe: Recipe) -> Recipe:
        """The recipe with the folder's sizes; ValueError where it says others."""
        shape = asdict(self.decoder.shape)
        own = {"vocabulary": shape["vocabulary"], **{f"shape.{key}": shape[key] for key in SIZES}}
        said = {"vocabulary": recipe.vocabulary, **{f"shape.{key}": size for key, size in (recipe.shape or {}).items()}}
        for key, size in said.items():
            if size is not None and size != own[key]:
                raise ValueError(
                    f"recipe.{key} is {size}, start={self.name} has {own[key]}: leave it out, as recipe=finetune does"
                )
        return replace(
            recipe,
            shape={key: shape[key] for key in SIZES},
            vocabulary=shape["vocabulary"],
            trained_length=recipe.trained_length or self.config["max_position_embeddings"],
        )

    def give(self, decoder: Decoder, spec: Mapping[str, Any]) -> bool:
        """Its weights by name; the encoding's only to an encoding of the same class: whether they were given.

        Raises ValueError where these have other sizes.
        """
        known = dict(self.decoder.named_parameters())
        same = all(spec.get(key) == self.encoding.get(key) for key in naming.CLASS)
        for name, weight in decoder.named_parameters():
            own = name.startswith("encoding.")
            if own and not same:
                continue
            if name not in known or known[name].shape != weight.shape:
                size = tuple(known[name].shape) if name in known else "none"
                raise ValueError(
                    f"encoding weight {name} of {tuple(weight.shape)} has no match in start={self.name} ({size}): "
                    "keep the parameters that give its size"
                )
            with torch.no_grad():
                weight.copy_(known[name])
        return same

    def copy_tokenizer(self, out: Path) -> None:
        """The files that make the tokenizer and say how the model writes."""
        for name in (*TOKENIZER, *OTHERS):
            if (self.folder / name).exists():
                shutil.copyfile(self.folder / name, out / name)


def read(path: str | Path) -> Start:
    """The start in a folder, `lexbench:lexlet` too; ValueError where `folder.load` cannot read it."""
    shipped = str(path).startswith("lexbench:")
    folder = (on_disk(str(path)) if shipped else None) or Path(path).expanduser()
    if not (folder / "config.json").exists():
        raise ValueError(f"start={path} is no trained folder: give one with config.json and weights")
    try:
        decoder = load(folder)
    except ValueError as error:
        raise ValueError(f"start={path} is nothing to train on from ({error})") from None
    config = read_object(folder / "config.json", "train it again")
    encoding = config.get("encoding")
    if encoding is None:
        assert isinstance(decoder.encoding, Rope)
        encoding = build.resolved({"name": "rope", "base": decoder.encoding.base})
    return Start(str(path), folder, decoder, config, encoding)


@dataclass(frozen=True)
class Scaling:
    """A method that a model is trained under: the same at every length from then on."""

    label: str = "none"
    attention: Attention | None = None
    config: Mapping[str, Any] | None = None
    """What config.json says of it, in transformers' words; None: nothing."""


def _read(method: Mapping[str, Any]) -> tuple[str, Method, str]:
    return read_method({**registry.read("method", method["name"]), **method})


def checked(method: Mapping[str, Any], start: Start | None, reach: int | None = None) -> str:
    """A method's label.

    Args:
        method: as of the registry, with its `name`.
        start: what is fine-tuned.
        reach: tokens that an encoding's positions reach in training, where these are more than a row has.

    Raises:
        ValueError: nothing to fine-tune, an unknown parameter, frequencies stretched to another length than `reach`.
    """
    name, built, said = _read(method)
    if name == "none":
        return said
    if start is None:
        raise ValueError(f"method={name} changes a trained model's frequencies, none is given: give start=DIR")
    length = start.config["max_position_embeddings"]
    factor = getattr(built, "factor", None) if _stretches(built) else None
    if reach is not None and factor is not None and factor * length != reach:
        raise ValueError(
            f"method.factor must stretch the start's {length} tokens to encoding.reach={reach}, got {factor:g}: "
            f"give method.factor={reach / length:g} or encoding.reach={round(factor * length)}"
        )
    return said


def _stretches(method: Method) -> bool:
    """Whether its factor is a ratio of lengths, which None leaves open; dynamic_ntk's is none."""
    return any(field.name == "factor" and field.default is None for field in fields(method))  # type: ignore[arg-type]


def scaling(method: Mapping[str, Any], start: Start | None, base: float | None, length: int) -> Scaling:
    """The method of a config at the target length.

    Args:
        method: as of the registry, with its `name`.
        start: what is fine-tuned.
        base: of the RoPE that the trained folder will have, an ordinary Llama; None: it will be none.
        length: trained from now on.

    Raises:
        ValueError: no Llama comes out, or more than frequencies would change.
    """
    name, built, said = _read(method)
    if start is None or name == "none":
        return Scaling()
    if base is None:
        raise ValueError(
            f"method={name} is trained where an ordinary Llama with plain RoPE comes out, this encoding or "
            "shape.block makes another: use method=none"
        )
    model = replace(read_model({"path": str(start.folder)}), rope_base=base)
    try:
        attention = built.attention(model, length)
        if others := set(attention.slots()) - {"inv_freq", "scale"}:
            raise Refused(f"it sets {', '.join(sorted(others))}")
        config = export.as_data(built, said, model, length, "transformers")
    except Refused as refusal:
        raise ValueError(f"method={said} cannot be trained ({refusal.reason}): use one of frequencies alone") from None
    rope = config["rope_parameters"]
    if model.trained_length * rope.get("factor", 0) == length:
        rope["original_max_position_embeddings"] = model.trained_length  # so that the file tells what was trained
    return Scaling(said, attention, config)
