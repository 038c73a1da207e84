"""Whether a pack is of a model: by its tokenizer, and by its weights where these are here."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lexbench.checkpoints.checkpoint import folder_of, local_folder, revision_of, weights_fingerprint
from lexbench.checkpoints.tokenizer import load_tokenizer
from lexbench.core.errors import ConfigError
from lexbench.core.model import Model
from lexbench.parts.serving.identify.pack_checks import one_line


def check_model(model: Model, about: Mapping[str, Any], file: Path) -> None:
    """ConfigError where a pack is of another tokenizer, or of other weights, than the model's.

    A release of a model may have another config than its pack: only the weights are compared, where they are here, else
    the hub's commits. A pack of format 4 or older holds no hashes: its number of tokens is compared.

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
    if "weights" not in about:
        return
    if any(folder.glob("*.safetensors")):
        entry, own = "weights", weights_fingerprint(folder)
    elif local_folder(str(model.path)) is None:
        entry, own = "revision", revision_of(model, folder)
    else:
        return
    if about.get(entry) != own:
        raise ConfigError(
            f"{file} is of {of} with {entry} {one_line(str(about.get(entry)))[:40]}, {model.name} here has {own}: give "
            "its model=NAME and model.revision, or make the pack anew"
        )
