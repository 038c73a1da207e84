"""The text tower of a loaded network, and the head behind it."""

from typing import Any

import torch
from torch import Tensor

from lexbench.backends.hf.exact.head import LanguageModelHead, to_full_precision
from lexbench.backends.hf.exact.memory import probe_forward
from lexbench.backends.hf.exact.network import (
    explain_missing_inputs,
    language_models,
    position_table_size,
    tower_candidates,
)
from lexbench.backends.hf.exact.rotary import LOGITS_TOLERANCE_OF_DTYPE
from lexbench.core.memory import is_out_of_memory
from lexbench.core.record import Refused


@torch.inference_mode()
def split_network(network: Any, name: str) -> tuple[Any, Any, LanguageModelHead]:
    """The language model of a network, its text tower, and the head behind that.

    Refused unless logits follow from text that is read in order. Where the network needs an image, the language model
    inside it is taken in its place.

    Args:
        network: as loaded.
        name: of the model, for the refusal.
    """
    refusals = []
    for inner in language_models(network):
        try:
            return inner, *_tower_and_head(inner, name)
        except Refused as refusal:
            refusals.append(refusal)
    raise refusals[0]


def _tower_and_head(network: Any, model: str) -> tuple[Any, LanguageModelHead]:
    name = f"hf cannot read {model}: {type(network).__name__}"
    found = tower_candidates(network)
    try:
        tokens = sample_tokens(network, min(8, position_table_size(found[0], sample_tokens(network, 1)) or 8))
        # Another last token: in a causal model no logits before it change.
        other = torch.cat([tokens[:, :-1], tokens[:, :1]], dim=1)
        first, second = (to_full_precision(network(input_ids=each, use_cache=False).logits) for each in (tokens, other))
    except Exception as error:  # whatever a family's code raises without an image, an encoder's states, ...
        if is_out_of_memory(error):
            raise
        raise Refused(f"{name} {explain_missing_inputs(network, error)}") from None
    if first.shape[1] != tokens.shape[1]:
        raise Refused(f"{name} does not give one row of logits a token: use a model that continues the text it reads")
    tolerance = LOGITS_TOLERANCE_OF_DTYPE[network.dtype]
    if tokens.shape[1] > 1 and not (first - second)[:, :-1].std() <= tolerance * first.std():
        raise Refused(f"{name} is not causal, later tokens change the logits of earlier ones: use a causal model")
    for tower in found:
        with probe_forward():
            head = LanguageModelHead(network, tower, tokens, tolerance)
            if head.right:
                return tower, head
    raise Refused(
        f"{name} has logits that do not follow from the last states of its text tower, as chunked likelihoods need: "
        "use another model"
    )


def sample_tokens(network: Any, count: int) -> Tensor:
    """[1, T] a few token ids from the middle of the vocabulary, where special ones are rare."""
    vocabulary = int(network.config.get_text_config().vocab_size)
    return (vocabulary // 2 + torch.arange(count, device=network.device))[None] % vocabulary
