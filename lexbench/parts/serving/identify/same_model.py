"""Whether a pack is of a model: by its tokenizer, and by its weights where these are here."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lexbench.checkpoints.checkpoint import folder_of, local_folder, revision_of
from lexbench.checkpoints.tokenizer import load_tokenizer
from lexbench.core.errors import ConfigError
from lexbench.core.model import Model


def check_model(model: Model, about: Mapping[str, Any], file: Path) -> None:
    """ConfigError where a pack is of another tokenizer or another revision than the model's.

    A pack of format 4 or older holds no hash of the tokenizer: its number of tokens is compared. Where no weights are
    here, and the model is a folder, its revision is not known: then the names must be the same.

    Args:
        model: that the server is said to run.
        about: description of the pack.
        file: of the pack, for messages.
    """
    folder = folder_of(model, weights=False)
    tokenizer, of = load_tokenizer(folder, model.bos), about.get("model", "another model")
    hashed = about.get("tokenizer", tokenizer.fingerprint) != tokenizer.fingerprint
    if hashed or tokenizer.vocabulary != about.get("vocabulary"):
        raise ConfigError(f"{file} is of {of}, another tokenizer: give its model=NAME")
    held, own = about.get("revision"), _own_revision(model, folder)
    if held is None or own is None:
        if of != model.name:
            raise ConfigError(f"{file} is of {of}, not of {model.name}: give its model=NAME, or make the pack anew")
    elif held != own:
        raise ConfigError(
            f"{file} is of revision {str(held)[:40]} of {of}, {model.name} here has {own}: give its model=NAME and "
            "model.revision, or make the pack anew"
        )


def _own_revision(model: Model, folder: Path) -> str | None:
    """The model's revision; None for a folder without weights, of which there is no hash."""
    if local_folder(str(model.path)) and not any(folder.glob("*.safetensors")):
        return None
    return revision_of(model, folder)
