"""Servers of a small language model with random likelihoods: true ones, and ones with wrong likelihoods from the start.

The next word depends on the two tokens before it. How sure the model is differs from place to place: the likeliest word
has 0.01 to 4 nats, in four places of ten less than 0.5.
"""

import functools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lexbench.checkpoints.tokenizer import FastTokenizer
from tests.backends.scripted import Body, Reply, completion

FAULTS: dict[str, Callable[[list[float], int], list[float]]] = {
    "zero": lambda row, seed: [0.0] * len(row),
    "constant": lambda row, seed: [-(0.5 + seed % 8 / 2)] * len(row),
    "shifted right": lambda row, seed: [row[0], *row[:-1]],
    "shifted left": lambda row, seed: [*row[1:], row[-1]],
    "moved": lambda row, seed: [value - 0.3 for value in row],
}
"""Log-probabilities that a server gives in place of those of a prompt's tokens, behind the first."""


@functools.cache
def words(tokenizer: FastTokenizer) -> NDArray[np.int64]:
    """Ids of whole words with a blank in front, which are read as they were written."""
    texts = {token: tokenizer.decode([token]) for token in range(tokenizer.vocabulary)}
    known = [token for token, text in texts.items() if re.fullmatch(" [a-z]{3,}", text)]
    return np.array([token for token in known if tokenizer.encode(f" the{texts[token]}").ids[-1] == token])


@dataclass(frozen=True, kw_only=True, eq=False)
class Speaker:
    """A model behind a server.

    Args:
        tokenizer: of the model.
        seed: another model.
        wrong: key of `FAULTS`; empty: a true server.
        draws: ignore temperature 0.
        noise: standard deviation of each logit, anew in each request: rounding of other kernels and batches.
    """

    tokenizer: FastTokenizer
    seed: int
    wrong: str = ""
    draws: bool = False
    noise: float = 0.0

    @functools.cached_property
    def rng(self) -> np.random.Generator:
        """Of draws and noise."""
        return np.random.default_rng([self.seed, 1])

    def row(self, tokens: Sequence[int]) -> NDArray[np.float64]:
        """[vocabulary] log-probabilities of the token behind these."""
        logits = self.logits(tuple(tokens[-2:]))
        if self.noise:
            logits = logits + self.noise * self.rng.normal(size=len(logits))
        found: NDArray[np.float64] = logits - np.log(np.exp(logits).sum())
        return found

    @functools.lru_cache(maxsize=4096)  # noqa: B019
    def logits(self, last: tuple[int, ...]) -> NDArray[np.float64]:
        """[vocabulary] logits behind the last tokens."""
        rng = np.random.default_rng([self.seed, *last])
        logits = rng.normal(-6, 2, self.tokenizer.vocabulary)
        logits[words(self.tokenizer)] = rng.uniform(2, 9) * rng.normal(size=len(words(self.tokenizer)))
        return logits

    def written(self, tokens: Sequence[int], room: int) -> tuple[list[int], list[float]]:
        """New tokens and their log-probabilities."""
        new, values = list[int](), list[float]()
        while len(new) < room:
            row = self.row([*tokens, *new])
            new.append(int(self.rng.choice(len(row), p=np.exp(row)) if self.draws else row.argmax()))
            values.append(float(row[new[-1]]))
        return new, values

    def read(self, tokens: Sequence[int]) -> list[float]:
        """Log-probabilities that the server gives of tokens[1:]."""
        row = [float(self.row(tokens[:place])[tokens[place]]) for place in range(1, len(tokens))]
        return FAULTS[self.wrong](row, self.seed) if self.wrong else row

    def following(self, tokens: Sequence[int], options: Sequence[int]) -> list[float]:
        """Log-probabilities that the server gives of options behind tokens; shifted: of a neighbouring place."""
        if self.wrong in ("zero", "constant"):
            return FAULTS[self.wrong]([0.0] * len(options), self.seed)
        seen = {"shifted right": tokens[:-1], "shifted left": [*tokens, options[0]]}.get(self.wrong, tokens)
        found = [float(each) for each in self.row(seen)[list(options)]]
        return FAULTS[self.wrong](found, self.seed) if self.wrong == "moved" else found

    def vllm(self, body: Body) -> Reply:
        """Answers as vLLM does."""
        tokens = body["prompt"]
        if isinstance(tokens, str):
            return 400, {"error": {"message": "prompt must be ids"}}
        new, values = self.written(tokens, body["max_tokens"])
        choice: Body = {"logprobs": {"token_logprobs": values}, "text": self.tokenizer.decode(new)}
        if body.get("return_token_ids"):
            choice["token_ids"] = new
        if "prompt_logprobs" in body:
            read = zip(tokens[1:], self.read(tokens), strict=True)
            choice["prompt_logprobs"] = [None, *({str(token): {"logprob": value}} for token, value in read)]
        if options := body.get("logprob_token_ids"):
            given = self.following(tokens, options)
            rows = {f"token_id:{option}": value for option, value in zip(options, given, strict=True)}
            choice["logprobs"]["top_logprobs"] = [rows]
        return 200, completion(len(tokens), choice, system_fingerprint="vllm-0.30.0-abc")

    def without_options(self, body: Body) -> Reply:
        """Answers as an older vLLM, which ignores what it does not know."""
        return self.vllm({key: value for key, value in body.items() if key != "logprob_token_ids"})

    def echo(self, body: Body) -> Reply:
        """Answers as OpenAI's interface says, to prompts of ids."""
        tokens, room = body["prompt"], body["max_tokens"]
        if isinstance(tokens, str):
            return 422, {"detail": "prompt must be ids"}
        new, values = self.written(tokens, room)
        choice: Body = {"text": self.tokenizer.decode(new)}
        if body.get("echo"):
            texts = [self.tokenizer.decode([token]) for token in [*tokens, *new]]
            choice["logprobs"] = {"tokens": texts, "token_logprobs": [None, *self.read(tokens), *values]}
        elif body.get("logprobs"):
            choice["logprobs"] = {"token_logprobs": values}
        usage = {"prompt_tokens": len(tokens), "completion_tokens": room}
        return 200, completion(len(tokens), choice, usage=usage)

    def echo_of_text(self, body: Body) -> Reply:
        """Answers as OpenAI's interface says, to prompts of text."""
        if not isinstance(body["prompt"], str):
            return 422, {"detail": "prompt must be text"}
        ids = self.tokenizer.encode(body["prompt"]).ids.tolist()
        return self.echo({**body, "prompt": [*self.tokenizer.prefix, *ids]})

    def chat(self, body: Body) -> Reply:
        """Answers to messages."""
        ids = self.tokenizer.encode(body["messages"][-1]["content"]).ids.tolist()
        new, _ = self.written(ids, body["max_tokens"])
        message = {"role": "assistant", "content": self.tokenizer.decode(new)}
        return 200, {"choices": [{"message": message, "finish_reason": "length"}], "usage": {"prompt_tokens": len(ids)}}
