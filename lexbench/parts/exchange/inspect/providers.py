"""Exact tokens to inspect_ai's models, and log-probabilities of prompts from them."""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from inspect_ai.model import ChatMessageUser, GenerateConfig, Model, ModelOutput
from numpy.typing import NDArray

from lexbench.checkpoints.checkpoint import read_model
from lexbench.checkpoints.tokenizer import wrap_loaded_tokenizer
from lexbench.core import registry
from lexbench.core.errors import ConfigError
from lexbench.core.task import Tokenizer, Tokens
from lexbench.parts.exchange.lm_eval.questions import prompt_text
from lexbench.runner.backend_pool import tokenizer_of

TOKEN_PROVIDERS = ("openai-api-completions", "vllm-completions")
"""Providers that send tokens as they are."""
PROVIDER_REMEDY = f"use {' or '.join(TOKEN_PROVIDERS)}"
PLAIN_CHAT_TEMPLATE = "-M \"chat_template='{{ messages[0].content }}'\""


class PromptReader(Protocol):
    """A model of inspect_ai that reads exact tokens."""

    tokenizer: Tokenizer
    likelihoods: bool
    """Whether it gives log-probabilities of prompts."""

    def message(self, tokens: Tokens) -> ChatMessageUser:
        """The prompt of these tokens."""

    def settings(self, room: int) -> dict[str, Any]:
        """Settings of `GenerateConfig` to write at most `room` tokens greedily."""

    def check(self, message: ChatMessageUser, output: ModelOutput) -> None:
        """ConfigError where the model has read other tokens."""

    async def nll(self, tokens: Tokens, start: int) -> NDArray[np.float32]:
        """[targets] NLL of tokens[start:], nats."""


def reader_of(model: Model, provider: str, tokenizer: str | None) -> PromptReader:
    """The reader of a model; ConfigError for a provider that does not show the tokens that its model reads.

    Args:
        model: of the evaluation.
        provider: its name in inspect_ai.
        tokenizer: of a server's model: a folder, or a name of the registry or the hub; None: none is given.
    """
    if provider in TOKEN_PROVIDERS:
        if tokenizer is None:
            raise ConfigError(f"{provider} does not show its tokenizer: give -T tokenizer=FOLDER or ORG/NAME")
        return ServerReader(model, _named_tokenizer(tokenizer))
    if provider != "hf":
        raise ConfigError(f"{provider} does not show the tokens that its model reads: {PROVIDER_REMEDY}, or hf")
    if tokenizer is not None:
        raise ConfigError("hf has the tokenizer of its model: leave out -T tokenizer")
    if model.api.do_sample:
        raise ConfigError("hf draws its answers, lexbench decodes greedily: give -M do_sample=false")
    return LocalReader(model.api)


class ServerReader:
    """Reader by a server of completions, which takes tokens and counts the tokens that it has read.

    Args:
        model: of the evaluation.
        tokenizer: of the server's model.
    """

    likelihoods = True

    def __init__(self, model: Model, tokenizer: Tokenizer) -> None:
        self.tokenizer, self._model = tokenizer, model

    def message(self, tokens: Tokens) -> ChatMessageUser:
        """The prompt, with its tokens where the provider looks for them."""
        ids = [int(token) for token in tokens]
        return ChatMessageUser(content=prompt_text(self.tokenizer, tokens), metadata={"prompt_token_ids": ids})

    def settings(self, room: int) -> dict[str, Any]:
        """Settings to write at most `room` tokens greedily."""
        return {"max_tokens": room, "temperature": 0.0}

    def check(self, message: ChatMessageUser, output: ModelOutput) -> None:
        """ConfigError unless the server has read as many tokens as were sent."""
        sent = len((message.metadata or {})["prompt_token_ids"])
        read = output.usage.input_tokens if output.usage else "unknown"
        if read != sent:
            raise ConfigError(f"a prompt has {sent} tokens, the server has read {read}: use one that reads token ids")

    async def nll(self, tokens: Tokens, start: int) -> NDArray[np.float32]:
        """NLL of tokens[start:] in nats, from the prompt's log-probabilities, which begin at its second token."""
        message = self.message(tokens)
        output = await self._model.generate([message], config=GenerateConfig(prompt_logprobs=1, **self.settings(1)))
        self.check(message, output)
        given = output.choices[0].prompt_logprobs
        if given is None or len(given.content) != len(tokens) - 1:
            raise ConfigError("the server gives no prompt_logprobs: use vLLM, SGLang or another that does")
        return -np.array([each.logprob for each in given.content[start - 1 :]], dtype=np.float32)


class LocalReader:
    """A model of transformers in this process (`hf`): its tokenizer is replaced by one that knows our texts' tokens.

    Args:
        api: of the provider.
    """

    likelihoods = False

    def __init__(self, api: Any) -> None:
        if not isinstance(api.tokenizer, KnownTexts):
            api.tokenizer = KnownTexts(api.tokenizer)
        self._api, self._known = api, api.tokenizer
        self.tokenizer = wrap_loaded_tokenizer(self._known.tokenizer)

    def message(self, tokens: Tokens) -> ChatMessageUser:
        """The prompt; ConfigError where the provider puts a chat template around it."""
        message = ChatMessageUser(content=prompt_text(self.tokenizer, tokens))
        if self._api.hf_chat([message], []) != message.text:
            raise ConfigError(f"hf puts a chat template around the prompt: give {PLAIN_CHAT_TEMPLATE}")
        self._known.add(message.text, tokens)
        return message

    def settings(self, room: int) -> dict[str, Any]:
        """Settings to write at most `room` tokens, greedily by `do_sample`: transformers takes no temperature of 0."""
        return {"max_tokens": room}

    def check(self, message: ChatMessageUser, output: ModelOutput) -> None:
        """ConfigError unless hf has encoded exactly the text of the prompt."""
        if message.text not in self._known.read:
            raise ConfigError("hf has read another text than the prompt: leave out --system-message")

    async def nll(self, tokens: Tokens, start: int) -> NDArray[np.float32]:
        """Read no prompt: `reader_of` has refused it."""
        raise NotImplementedError


class KnownTexts:
    """A tokenizer of transformers, except that prompts of ours become their own tokens, padded in front.

    Args:
        tokenizer: of transformers.
    """

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.read: set[str] = set()
        self._ids: dict[str, list[int]] = {}

    def add(self, text: str, tokens: Tokens) -> None:
        """Remember a prompt; ConfigError for other tokens of the same text."""
        ids = [int(token) for token in tokens]
        if self._ids.setdefault(text, ids) != ids:
            raise ConfigError("two prompts have one text, but other tokens: evaluate their tasks one by one")

    def __call__(self, texts: Sequence[str], **given: Any) -> Any:
        """Ids and mask [texts, longest], or what transformers gives for texts that are not known."""
        self.read.update(texts)
        if not any(text in self._ids for text in texts):
            return self.tokenizer(texts, **given)
        rows = [self._ids[text] if text in self._ids else self.tokenizer(text)["input_ids"] for text in texts]
        return self.tokenizer.pad({"input_ids": rows}, padding_side="left", return_tensors="pt")

    def __getattr__(self, name: str) -> Any:
        return getattr(self.tokenizer, name)


def _named_tokenizer(given: str) -> Tokenizer:
    name, path = registry.resolve_model_name(given)
    return tokenizer_of(
        read_model({**registry.read_named_config("model", name), **({} if path is None else {"path": path})})
    )
