"""Find models whose later tokens change what they predict earlier: their likelihoods are no likelihoods."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from lexbench.core.task import Tokens

TRIAL_TEXT_TOKENS = 8
"""Tokens of the text that is read."""
NO_EFFECT_DEVIATION_SHARE, NO_EFFECT_NOISE_MULTIPLE = 1e-3, 5.0
"""Shares of the probabilities' deviation, and of that between two equal calls, which are no effect of a token."""


@torch.inference_mode()
def looks_ahead(logits: Callable[[Tokens], Tensor], vocabulary: int, longest: int | None = None) -> bool:
    """Whether the last token of a short text changes the probabilities of tokens before it.

    Args:
        logits: from [T] token ids to [T, V] next-token logits; it may draw at random.
        vocabulary: number of token ids.
        longest: tokens that it takes at most; None: no limit.
    """
    ids = np.arange(min(TRIAL_TEXT_TOKENS, longest or TRIAL_TEXT_TOKENS)) % vocabulary
    other = np.append(ids[:-1], ids[:1])
    first, again, changed = (logits(each)[:-1].softmax(-1) for each in (ids, ids, other))
    return bool(
        (changed - first).std()
        > NO_EFFECT_DEVIATION_SHARE * first.std() + NO_EFFECT_NOISE_MULTIPLE * (again - first).std()
    )
