"""A server of lexlet as most are: it gives log-probabilities of the likeliest next tokens, and none of a prompt."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from lexbench.checkpoints.tokenizer import FastTokenizer, load_tokenizer
from tests.backends import scripted
from tools.serving import LEXLET, Engine

KNOWN_FIELDS = {"model", "temperature", "max_tokens", "stop"}


@dataclass
class PlainServer(Engine):
    """Completions by ids or by text, or chat; with a cache of the prompt before."""

    form: str = "texts"
    """`ids`: prompts by ids, tokens named by `token_id:`. `texts`: both as text. `llama.cpp`: both as in its server.
    `chat`: messages, tokens as text. `silent`: by text, `silent chat`: messages, both without any likelihoods."""
    most: int = 20
    """Tokens that it tells."""
    window: int | None = None
    """Last tokens of a prompt that it reads, and does not say so."""
    bos: int = 0
    """BOS in front of a chat, which it renders as a whole."""
    seen_tokens: int = 0
    """All tokens that it has read."""
    tokenizer: FastTokenizer = field(default_factory=lambda: load_tokenizer(LEXLET))

    def __post_init__(self) -> None:
        super().__post_init__()
        self.cached: tuple[list[int], Any] = ([], None)

    def likeliest(self, tokens: list[int]) -> Tensor:
        """[V] log-probabilities behind a prompt."""
        tokens, _ = self.edit(self, tokens[-self.window :] if self.window else tokens)
        before, cache = self.cached
        at = len(before) if before and tokens[: len(before)] == before else 0
        if at == len(tokens) and not any(cache.is_sliding):  # the same prompt: its last token is read again
            at -= 1
            cache.crop(-1)
        at = at if at < len(tokens) else 0
        self.seen_tokens += len(tokens) - at
        found = self.network(
            input_ids=torch.tensor([tokens[at:]]),
            position_ids=self.places(torch.arange(at, len(tokens)))[None],
            past_key_values=cache if at else None,
            use_cache=True,
        )
        self.cached = tokens, found.past_key_values
        return self.logits(found.logits[0, -1].float()).log_softmax(-1)

    def prompt(self, body: scripted.Body) -> list[int] | None:
        """Tokens of a prompt; None where this form does not take it."""
        if "messages" in body:
            [message] = body["messages"]
            whole = self.tokenizer.encode(f"<user>{message['content']}<assistant>")
            return [*self.bos * self.tokenizer.prefix, *whole.ids.tolist()]
        prompt = body["prompt"]
        if "chat" in self.form or isinstance(prompt, list) != (self.form in ("ids", "llama.cpp")):
            return None
        return prompt if isinstance(prompt, list) else [*self.tokenizer.prefix, *self.tokenizer.encode(prompt).ids]

    def answer(self, body: scripted.Body) -> scripted.Reply:
        """To a completion, or to messages."""
        asked = {"messages", "logprobs", "top_logprobs"} if "chat" in self.form else {"prompt", "logprobs"}
        tokens, count = self.prompt(body), body.get("top_logprobs", body.get("logprobs")) or 0
        if set(body) - KNOWN_FIELDS - asked or tokens is None or count > self.most:
            return 400, {"error": {"message": "not supported"}}
        with self.lock, torch.inference_mode():
            chances = self.likeliest(tokens)
            new = [int(self.next(self, chances, []))]
            while len(new) < body["max_tokens"]:
                new.append(int(self.next(self, self.likeliest([*tokens, *new]), new)))
        choice: scripted.Body = {"text": self.tokenizer.decode(new), "finish_reason": "length"}
        if count and "silent" not in self.form:
            choice["logprobs"] = self.told(tokens, new[0], chances, count)
        if "chat" in self.form:
            choice["message"] = {"role": "assistant", "content": choice.pop("text")}
        usage = {"prompt_tokens": len(tokens), "completion_tokens": len(new)}
        return 200, {"choices": [{"index": 0, **choice}], "usage": usage}

    def told(self, tokens: list[int], new: int, chances: Tensor, count: int) -> scripted.Body:
        """The likeliest tokens in this form."""
        ids = chances.topk(count).indices.tolist()
        whole = self.tokenizer.decode([*tokens, new])
        names = {each: self.tokenizer.decode([tokens[-1], each]) for each in (*ids, new)}
        names = {each: name[len(self.tokenizer.decode(tokens[-1:])) :] for each, name in names.items()}
        assert whole.endswith(names[new]) or "\N{REPLACEMENT CHARACTER}" in whole
        if self.form == "ids":
            names = {each: f"token_id:{each}" for each in names}
        if self.form in ("ids", "texts"):
            row = {names[each]: float(chances[each]) for each in ids}
            return {"tokens": [names[new]], "token_logprobs": [float(chances[new])], "top_logprobs": [row]}
        rows = [{"token": names[each], "logprob": float(chances[each])} for each in ids]
        if self.form == "llama.cpp":
            rows = [{"id": each, **row} for each, row in zip(ids, rows, strict=True)]
        return {"content": [{"token": names[new], "logprob": float(chances[new]), "top_logprobs": rows}]}
