"""Backends of models that are loaded in this process already."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from torch import nn

from lexbench.backends import Backend
from lexbench.backends.eval_mode import in_eval_mode
from lexbench.backends.function import Function, count_parameters, weights_hash
from lexbench.checkpoints.checkpoint import locate_checkpoint
from lexbench.checkpoints.tokenizer import load_tokenizer, wrap_loaded_tokenizer
from lexbench.core.errors import ConfigError
from lexbench.core.model import Model


@contextmanager
def loaded_backend(
    model: Any, tokenizer: Any, trained_length: int | None, name: str | None, revision: str | None
) -> Iterator[Backend]:
    """The backend of a model that is loaded; a module is in eval mode meanwhile, then each part as it was.

    Args:
        model: a causal language model of transformers, a torch module, or a function (`Function`).
        tokenizer: as `wrap_loaded_tokenizer` takes it, or a folder.
        trained_length: in tokens; None: as the model's config states, else ConfigError.
        name: in tables; None: the model's own.
        revision: None: a hash of a module's weights.
    """
    from transformers import PreTrainedModel

    if not callable(model):
        raise ConfigError(f"model must be a module or a function from ids to logits, got {type(model).__name__}")
    words = (
        load_tokenizer(locate_checkpoint(str(tokenizer), None, weights=False))
        if isinstance(tokenizer, str | Path)
        else wrap_loaded_tokenizer(tokenizer)
    )
    ended = getattr(tokenizer, "eos_token_id", None)
    ends = set[int]() if ended is None else {ended}
    with in_eval_mode(model) if isinstance(model, nn.Module) else nullcontext():
        if isinstance(model, PreTrainedModel):
            from lexbench.backends.hf.backend import Hf
            from lexbench.backends.hf.exact.extended import check_frequencies, model_of

            said = model.generation_config.eos_token_id if model.generation_config is not None else None
            ends |= {said} if isinstance(said, int) else set(said or ())
            facts = model_of(model, trained_length, name)
            check_frequencies(model, facts)
            backend = Hf.of(model, facts, words, ends, revision or weights_hash(model))
            try:
                yield backend
            finally:
                backend.close()
        else:
            facts = _facts(model, words.vocabulary, trained_length, name)
            yield Function(model, facts, words, ends, revision)


def _facts(function: Any, vocabulary: int, trained_length: int | None, name: str | None) -> Model:
    if trained_length is None:
        raise ConfigError("a function does not state its trained length: give trained_length=...")
    return Model(
        name=name or str(getattr(function, "__name__", type(function).__name__)),
        trained_length=trained_length,
        head_dim=1,  # unknown, and of no use: no method applies
        vocabulary=vocabulary,
        parameters=count_parameters(function) if isinstance(function, nn.Module) else None,
    )
