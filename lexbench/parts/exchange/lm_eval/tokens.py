"""Requests of exact tokens to the harness's models, which read texts otherwise."""

import sys
from collections.abc import Iterator, Sequence
from typing import Any

from lm_eval.api.instance import Instance
from lm_eval.api.model import LM, CachingLM, TemplateLM

from lexbench.core.errors import ConfigError
from lexbench.core.task import Tokens

LOGLIKELIHOOD_METHOD = "_loglikelihood_tokens"
"""The harness's own method for contexts and continuations of tokens, which every model with a tokenizer has."""


class ExactPrompt(str):
    """A prompt as the harness's text, with the tokens that the model is to read in its place."""

    ids: list[int]

    def __new__(cls, text: str, tokens: Tokens) -> "ExactPrompt":
        """The text, for logs, and its tokens with all that begins the context."""
        made = super().__new__(cls, text)
        made.ids = [int(token) for token in tokens]
        return made


class LoglikelihoodRequest(Instance):  # type: ignore[misc]
    """A request of `LOGLIKELIHOOD_METHOD`: reads as ((context, continuation), its tokens of the one, of the other).

    Args:
        context: tokens.
        continuation: tokens, whose likelihoods are summed.
        others: of the harness's `Instance`.
    """

    def __init__(self, context: Tokens, continuation: Tokens, **others: Any) -> None:
        super().__init__(request_type=LOGLIKELIHOOD_METHOD, **others)
        self._tokens = [int(token) for token in context], [int(token) for token in continuation]

    def __iter__(self) -> Iterator[Any]:
        return iter((self.args, *self._tokens))

    def __getitem__(self, place: int) -> Any:
        return (self.args, *self._tokens)[place]


class ExactEncoding:
    """A model's own `tok_encode`, except for exact prompts."""

    def __init__(self, encode: Any) -> None:
        self._encode = encode

    def __call__(self, string: Any, *arguments: Any, **named: Any) -> Any:
        """Ids of a text, or of several."""
        if isinstance(string, ExactPrompt):
            return [*string.ids]
        if isinstance(string, str) or not any(isinstance(each, ExactPrompt) for each in string):
            return self._encode(string, *arguments, **named)
        return [self(each, *arguments, **named) for each in string]


class ExactBatch:
    """The hf model's own `tok_batch_encode`, except for exact prompts: ids and mask [texts, longest], padded in front.

    Args:
        encode: the method.
        tokenizer: of transformers, which pads.
    """

    def __init__(self, encode: Any, tokenizer: Any) -> None:
        self._encode, self._tokenizer = encode, tokenizer

    def __call__(self, strings: Sequence[str], *arguments: Any, **named: Any) -> tuple[Any, Any]:
        """Ids and mask."""
        if not any(isinstance(each, ExactPrompt) for each in strings):
            ids, mask = self._encode(strings, *arguments, **named)
            return ids, mask
        rows = [
            each.ids if isinstance(each, ExactPrompt) else self._encode([each], *arguments, **named)[0][0].tolist()
            for each in strings
        ]
        padded = self._tokenizer.pad({"input_ids": rows}, padding_side="left", return_tensors="pt")
        return padded["input_ids"], padded["attention_mask"]


def asking_model(task: str) -> Any:
    """The model of the evaluation that is under way; ConfigError where it cannot read tokens.

    The harness tells a task nothing of its model, whose tokenizer decides how long a prompt is: it is found as `lm` in
    the harness's own `evaluate`, which calls us.

    Args:
        task: its name, for messages.
    """
    frame = sys._getframe(1)
    while frame.f_back is not None and not isinstance(frame.f_locals.get("lm"), LM | CachingLM):
        frame = frame.f_back
    found = frame.f_locals.get("lm")
    model = found.lm if isinstance(found, CachingLM) else found
    if not isinstance(model, TemplateLM) or getattr(model, "backend", "causal") != "causal":
        raise ConfigError(f"{task} needs a causal model with a tokenizer, got {type(model).__name__}: e.g. --model hf")
    if not getattr(model, "tokenized_requests", True):
        raise ConfigError(f"{task} sends tokens, {type(model).__name__} sends texts: give tokenized_requests=True")
    return model


def read_exactly(model: Any) -> None:
    """Let a model read the tokens of exact prompts; other texts are encoded as before."""
    if not isinstance(model.tok_encode, ExactEncoding):
        model.tok_encode = ExactEncoding(model.tok_encode)
    if hasattr(model, "tok_batch_encode") and not isinstance(model.tok_batch_encode, ExactBatch):
        model.tok_batch_encode = ExactBatch(model.tok_batch_encode, model.tokenizer)
