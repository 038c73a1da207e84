"""Tokens that a model cannot read: its tokenizer makes them, and its embedding ends before them."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from lexbench.core.record import Refused


def check_embedded(tokens: NDArray[np.integer[Any]], rows: int, name: str) -> None:
    """Refused for a token beyond a model's embedding; tokens of the tokenizer that no text holds do not matter.

    Args:
        tokens: ids.
        rows: of the embedding.
        name: of the model.
    """
    if len(tokens) and (largest := int(tokens.max())) >= rows:
        raise Refused(
            f"{name} cannot read token {largest}, its embedding has {rows} rows: "
            "its folder holds another model's tokenizer, or tokens were added and never trained"
        )
