"""Symbols that are one token each."""

import numpy as np

from lexbench.record import Refused
from lexbench.task import Tokenizer, Tokens


def single_tokens(tokenizer: Tokenizer, symbols: str, task: str) -> Tokens:
    """[symbols] the one token of each, as it stands behind a new line; Refused where one has none of its own."""
    behind = len(tokenizer.encode("\n").ids)
    found = [tokenizer.encode(f"\n{symbol}").ids[behind:] for symbol in symbols]
    if {len(ids) for ids in found} != {1} or len({int(ids[0]) for ids in found}) < len(symbols):
        raise Refused(f"{task} needs a token of its own for each of {' '.join(symbols)}: take another tokenizer")
    return np.concatenate(found)
