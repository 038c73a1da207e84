"""What a run says of 40 wrong servers and 40 true ones, drawn before any was tried (`planted_lists.tar.gz`).

    python -m tools.wrong_servers                       # verdicts in wrong_servers.json and results/benchmarks
    python -m tools.wrong_servers --only 'S25;S26;true'  # tries these again, keeps the verdicts of the others

The page is written once all wrong ones have a verdict.

Behind each server is transformers' lexlet with NTK of factor 2 (`tools/serving.py`), in vLLM's dialect (V) or in that
of `echo` (E). From a length on (S: 121 tokens, M: 240, G: 490, A: any) it does one thing wrong. A cell is affected
where the server answered one of its requests otherwise than the healthy engine would. Seen: no affected cell has a
score, and the reason is the server's likelihoods, writing, prompts or answers; where the row says N, that what is in
front of every prompt cannot be judged is enough, if it stands below the tables. Believed: not seen. Void: no cell is
affected.
"""

import argparse
import json
import math
import random
import re
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import AttentionInterface

from lexbench.checkpoints.tokenizer import load_tokenizer
from lexbench.parts.serving.openai.trial_texts import FIRST_WORD, UNRELATED_WORDS
from tests.backends import scripted
from tools import serving
from tools.serving import LEXLET, Engine, ResumedPrefix, Tokens

RECORD, PAGE = Path("wrong_servers.json"), Path("results/benchmarks/wrong_servers.md")
BELIEVED_BEFORE = ("S16", "S17", "S19", "S20", "S21", "S22", "S24", "S27", "S29", "S34", "S36", "S40")
"""Rows that were believed at 706a77b2, before anything was mended by this list."""
SINCE = {"A": 0, "S": 121, "M": 240, "G": 490}
LENGTHS = (128, 256, 512)
NEW_TOKENS = 10
"""Tokens that a passkey's answer may have."""
MISSING = -2.0
"""Log-probability of the first token of a part that is read alone."""
IN_FRONT = "You are a helpful assistant. Answer the question as shortly as you can, and never say that you do not know."
N_IN_FRONT = 24
TOKENIZER = load_tokenizer(LEXLET)
[BOS] = TOKENIZER.prefix
TRIAL_BEGINNINGS = [TOKENIZER.encode(text).ids[:3].tolist() for text in (FIRST_WORD, UNRELATED_WORDS[0])]
SERVER_REASON = re.compile("likelihood|log-probabilit|greedily|prompt|answers|tokens|contradicts")
OTHER_REASON = re.compile("does not answer|tokenizer|model not|Traceback")
UNJUDGED = "cannot be judged without a reference"
Parts = list[list[tuple[int, int]]]
"""Texts of token and place in the prompt (-1: none) that are read one by one; what is written follows the last."""
Choice = Callable[["Fault", Tensor, Tokens], int]
"""The token that is written, of the logits and of the tokens before it."""


class Truth:
    """What an engine reads and writes; answers to the same tokens are kept, where they do not change."""

    lock = threading.RLock()

    def __init__(self, keeps: bool = True, **fields: Any) -> None:
        self.engine, self.keeps = Engine(**fields), keeps
        self.known: dict[Any, Any] = {}

    def kept(self, key: Any, ask: Callable[[], Any]) -> Any:
        """An answer, from memory if it is there."""
        with self.lock, torch.inference_mode():
            AttentionInterface.register("engine", self.engine._attend)
            if not self.keeps:
                return ask()
            if key not in self.known:
                self.known[key] = ask()
            return self.known[key]

    def read(self, tokens: Tokens) -> tuple[list[float], Tensor]:
        """Log-probabilities of tokens[1:], and [V] of the token behind them."""

        def ask() -> tuple[list[float], Tensor]:
            chances = self.engine.read(tokens)[0].log_softmax(-1)
            own = chances[:-1].gather(1, torch.tensor(tokens[1:], dtype=torch.int64)[:, None])[:, 0]
            return own.clamp(max=0).tolist(), chances[-1].clone()

        found: tuple[list[float], Tensor] = self.kept(("read", *tokens), ask)
        return found

    def write(
        self, tokens: Tokens, room: int, ends: Sequence[int], choose: Callable[[Tensor, Tokens], int] | None = None
    ) -> tuple[Tokens, list[float], list[float]]:
        """New tokens, their log-probabilities, and those of the likeliest in their places."""

        def ask() -> tuple[Tokens, list[float], list[float]]:
            told = list[Tensor]()

            def step(engine: Engine, logits: Tensor, new: Tokens) -> int:
                told.append(logits.log_softmax(-1))
                return int(logits.argmax()) if choose is None else choose(logits, new)

            self.engine.next = step
            new = self.engine.written(tokens, room, ends)
            own = [float(row[token]) for row, token in zip(told, new, strict=True)]
            return new, own, [float(row.max()) for row in told]

        if choose is not None:
            with self.lock, torch.inference_mode():
                AttentionInterface.register("engine", self.engine._attend)
                return ask()
        found: tuple[Tokens, list[float], list[float]] = self.kept(("write", room, *ends, -1, *tokens), ask)
        return found


@cache
def healthy() -> Truth:
    """The base engine."""
    return Truth()


@cache
def with_weights(name: str) -> Truth:
    """The base engine with other weights."""
    change = {"skipped": {"weights": serving.skipped}, "4 bits": serving.FAULTS["weights in 4 bits, a scale a matrix"]}
    return Truth(**change[name])


@cache
def in_chunks() -> Truth:
    """Queries behind place 256 see no key before it."""
    return Truth(seen=lambda i, j: (j <= i) & (i // 256 == j // 256))


@dataclass
class Fault:
    """A server; its fields and methods are those of a true one.

    Args:
        dialect: V or E.
        since: tokens of a prompt from which it is wrong.
        seed: of its draws.
    """

    dialect: str = "V"
    since: int = 0
    seed: int = 0
    engine: Callable[[], Truth] = healthy
    parts: Callable[[Tokens], Parts] = lambda tokens: [whole(tokens)]
    written_parts: Callable[[Tokens], Parts] | None = None
    values: Callable[[list[float]], list[float]] = lambda row: row
    """What is told in place of log-probabilities, of tokens[1:] of the prompt and of options."""
    choose: Choice | None = None
    tells_best: bool = False
    delay: float = 0.0
    """Seconds of an answer, at most."""
    true: bool = False
    changed: set[tuple[str, int]] = field(default_factory=set)
    """Kind and length of cells with an answer that is wrong."""
    asked: set[tuple[str, int]] = field(default_factory=set)
    """Those of which any question was asked."""
    wrong: set[str] = field(default_factory=set)
    """Kinds of which any answer was wrong, trials included."""

    def __post_init__(self) -> None:
        self.rng, self.draws = random.Random(self.seed), torch.Generator().manual_seed(self.seed)
        self.lock = threading.Lock()

    def scores(self, tokens: Tokens, options: Tokens) -> list[float]:
        """Log-probabilities of tokens[1:], and of options behind them."""
        known = dict[int, float]()
        for part in self.parts(tokens):
            row, last = self.engine().read([token for token, _ in part])
            known |= {place: value for (_, place), value in zip(part[1:], row, strict=True) if place > 0}
        return self.values([known.get(p, MISSING) for p in range(1, len(tokens))] + [float(last[o]) for o in options])

    def writes(self, tokens: Tokens, room: int, ends: Sequence[int]) -> tuple[Tokens, list[float]]:
        """New tokens and their log-probabilities."""
        read = [token for token, _ in (self.written_parts or self.parts)(tokens)[-1]]
        choose = self.choose and (lambda logits, new: self.choose(self, logits, [*read, *new]))  # type: ignore[misc]
        new, own, best = self.engine().write(read, room, ends, choose)
        return new, best if self.tells_best else own

    def told(self, kind: str, tokens: Tokens, *more: Any) -> Any:
        """An answer to a request of a kind, right below the length; notes where it is wrong."""
        right = partial(Fault.scores if kind == "read" else Fault.writes, Fault())
        cell = cell_of(kind, tokens, *more)
        self.asked |= set() if cell is None else {(kind, cell)}
        if self.true:
            return (self.scores if kind == "read" else self.writes)(tokens, *more)
        if len(tokens) < self.since:
            self.saw(kind, right, tokens, *more)
            return right(tokens, *more)
        found, expected = (self.scores if kind == "read" else self.writes)(tokens, *more), right(tokens, *more)
        if found != expected:
            self.wrong.add(kind)
        if cell is not None and (found != expected if kind == "read" else found[0] != expected[0]):
            self.changed.add((kind, cell))
        return found

    def saw(self, kind: str, right: Callable[..., Any], tokens: Tokens, *more: Any) -> None:
        """A request below the length."""

    def answer(self, body: scripted.Body) -> scripted.Reply:
        """To a completion."""
        tokens, room = body["prompt"], body["max_tokens"]
        if isinstance(tokens, str):
            return 400, {"error": {"message": "prompt must be ids"}}
        if self.delay:
            time.sleep(self.rng.uniform(0, self.delay))
        return 200, (self.vllm if self.dialect == "V" else self.echo)(body, tokens, room)

    def vllm(self, body: scripted.Body, tokens: Tokens, room: int) -> scripted.Body:
        """As `Engine.answer`, and the options of the next token as `scripted.vllm`."""
        choice, new, options = scripted.Body(), Tokens(), body.get("logprob_token_ids", [])
        if body.get("return_token_ids"):
            ends = body.get("stop_token_ids", [])
            new, nats = self.told("write", tokens, room, ends)
            choice = {"token_ids": new, "finish_reason": "stop" if new and new[-1] in ends else "length"}
            if body.get("logprobs") and new:
                choice["logprobs"] = {"token_logprobs": nats[:1]}
        if "prompt_logprobs" in body or options:
            row = self.told("read", tokens, options)
            if "prompt_logprobs" in body:
                own = zip(tokens[1:], row[: len(tokens) - 1], strict=True)
                choice["prompt_logprobs"] = [None, *({str(t): {"logprob": value, "rank": 1}} for t, value in own)]
            if options:
                given = zip(options, row[len(tokens) - 1 :], strict=True)
                top = {"token_id:5": -9.5, **{f"token_id:{option}": value for option, value in given}}
                choice["logprobs"] = {"tokens": ["token_id:5"], "top_logprobs": [top]}
        usage = {"prompt_tokens": len(tokens), "completion_tokens": len(new) if new else room}
        return scripted.completion(len(tokens), choice, system_fingerprint="vllm-0.30.0-abc", usage=usage)

    def echo(self, body: scripted.Body, tokens: Tokens, room: int) -> scripted.Body:
        """As `Speaker.echo`."""
        new, nats = self.told("write", tokens, room, []) if room else ([], [])
        choice: scripted.Body = {"text": TOKENIZER.decode(new)}
        if body.get("echo"):
            texts = [TOKENIZER.decode([token]) for token in [*tokens, *new]]
            values = [None, *self.told("read", tokens, []), *nats]
            choice["logprobs"] = {"tokens": texts, "token_logprobs": values}
        elif body.get("logprobs"):
            choice["logprobs"] = {"token_logprobs": nats}
        usage = {"prompt_tokens": len(tokens), "completion_tokens": len(new)}
        return scripted.completion(len(tokens), choice, usage=usage)


def cell_of(kind: str, tokens: Tokens, *more: Any) -> int | None:
    """Length of the cell that asks; None: a trial."""
    if any(tokens[1:4] == beginning for beginning in TRIAL_BEGINNINGS):
        return None
    size = len(tokens) + NEW_TOKENS if kind == "write" else len(tokens) + len(more[0])
    if kind == "write" and more[0] != NEW_TOKENS:
        return None
    return size if size in LENGTHS else None


def whole(tokens: Tokens) -> list[tuple[int, int]]:
    """A prompt as it is."""
    return [(token, place) for place, token in enumerate(tokens)]


def half(tokens: Tokens) -> Parts:
    """The last half is read."""
    at = len(tokens) - len(tokens) // 2
    return [whole(tokens)[:at], whole(tokens)[at:]]


def ends_only(tokens: Tokens) -> Parts:
    """BOS, and a quarter at each end."""
    size, every = len(tokens) // 4, whole(tokens)
    return [every[1 + size : -size], every[: 1 + size] + every[-size:]]


def last_384(tokens: Tokens) -> Parts:
    """A window."""
    return [whole(tokens)[:-384], whole(tokens)[-384:]]


def in_front(new: Tokens) -> Callable[[Tokens], Parts]:
    """Tokens between BOS and the rest."""
    return lambda tokens: [[whole(tokens)[0], *((token, -1) for token in new), *whole(tokens)[1:]]]


def second_bos(tokens: Tokens) -> Parts:
    """BOS twice."""
    return [[(BOS, -1), *whole(tokens)] if tokens[0] == BOS else whole(tokens)]


def drawn(temperature: float, fault: Fault, logits: Tensor, seen: Tokens) -> int:
    """At a temperature."""
    return int(torch.multinomial((logits / temperature).softmax(-1), 1, generator=fault.draws))


def second(fault: Fault, logits: Tensor, seen: Tokens) -> int:
    """The second likeliest."""
    return int(logits.topk(2).indices[1])


def drafted(fault: Fault, logits: Tensor, seen: Tokens) -> int:
    """The second likeliest, three times in ten."""
    return int(logits.topk(2).indices[int(fault.rng.random() < 0.3)])


def penalised(fault: Fault, logits: Tensor, seen: Tokens) -> int:
    """A penalty of 1.3 on repetition."""
    places, found = torch.tensor(sorted(set(seen))), logits.clone()
    found[places] = torch.where(found[places] > 0, found[places] / 1.3, found[places] * 1.3)
    return int(found.argmax())


def laid(row: list[float], size: int) -> list[float]:
    """Values of another request upon the last of so many tokens."""
    return [*[-1.0] * (size - len(row)), *row[max(0, len(row) - size) :]]


@dataclass
class OfAnother(Fault):
    """A share of requests is answered by the answer to the last one before of the same kind."""

    share: float = 0.25

    def __post_init__(self) -> None:
        super().__post_init__()
        self.before: dict[str, Any] = {}

    def saw(self, kind: str, right: Callable[..., Any], tokens: Tokens, *more: Any) -> None:
        """The answer is kept for the next request."""
        self.before[kind] = right(tokens, *more)

    def scores(self, tokens: Tokens, options: Tokens) -> list[float]:
        """Perhaps those of the request before."""
        right = super().scores(tokens, options)
        with self.lock:
            before, self.before["read"] = self.before.get("read"), right
            return laid(before, len(right)) if before and self.rng.random() < self.share else right

    def writes(self, tokens: Tokens, room: int, ends: Sequence[int]) -> tuple[Tokens, list[float]]:
        """Perhaps those of the request before."""
        right = super().writes(tokens, room, ends)
        with self.lock:
            before, self.before["write"] = self.before.get("write"), right
            taken = before if before and self.rng.random() < self.share else right
        return taken[0][:room], taken[1][:room]


@dataclass
class Exchanged(Fault):
    """Two requests of one kind that overlap get each other's answers."""

    share: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.condition = threading.Condition()
        self.waiting: dict[str, dict[Any, Any]] = {}

    def exchanged(self, kind: str, ask: Callable[[], Any]) -> Any:
        """The other one's answer, or the own where no other request comes within 0.1 s."""
        with self.condition:
            if (pair := self.waiting.pop(kind, None)) is not None:
                place = 1
                pair["swaps"] = self.rng.random() < self.share
                self.condition.notify_all()
            else:
                place, pair = 0, {}
                self.waiting[kind] = pair
                if not self.condition.wait_for(lambda: "swaps" in pair, 0.1):
                    self.waiting.pop(kind)
        right = pair[place] = ask()
        if not pair.get("swaps"):
            return right
        with self.condition:
            self.condition.notify_all()
            self.condition.wait_for(lambda: 1 - place in pair)
        return pair[1 - place]

    def scores(self, tokens: Tokens, options: Tokens) -> list[float]:
        """Of the other request."""
        row = self.exchanged("read", lambda: Fault.scores(self, tokens, options))
        return laid(row, len(tokens) - 1 + len(options))

    def writes(self, tokens: Tokens, room: int, ends: Sequence[int]) -> tuple[Tokens, list[float]]:
        """Of the other request."""
        new, nats = self.exchanged("write", lambda: Fault.writes(self, tokens, room, ends))
        return new[:room], nats[:room]


@dataclass
class Resumed(Fault):
    """Behind a hit of the prefix cache positions begin at 0 again."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.cache = ResumedPrefix(8)
        self.own = Truth(keeps=False)

    def saw(self, kind: str, right: Callable[..., Any], tokens: Tokens, *more: Any) -> None:
        """Short prompts are in the cache, too."""
        self.cache.known.append(tokens)

    def scores(self, tokens: Tokens, options: Tokens) -> list[float]:
        """Positions by the hit."""
        with Truth.lock:
            self.cache(self.own.engine, tokens)
            row, last = self.own.read(tokens)
        return row + [float(last[option]) for option in options]

    def writes(self, tokens: Tokens, room: int, ends: Sequence[int]) -> tuple[Tokens, list[float]]:
        """Positions by the hit."""
        with Truth.lock:
            self.cache(self.own.engine, tokens)
            new, own, _ = self.own.write(tokens, room, ends)
        return new, own


@dataclass
class Cached(Fault):
    """An answer stands for all prompts that begin and end alike."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.answers: dict[Any, Any] = {}

    def writes(self, tokens: Tokens, room: int, ends: Sequence[int]) -> tuple[Tokens, list[float]]:
        """The first one's."""
        with self.lock:
            key = (*tokens[:8], *tokens[-8:], room)
            if key not in self.answers:
                self.answers[key] = super().writes(tokens, room, ends)
            found: tuple[Tokens, list[float]] = self.answers[key]
            return found


@dataclass
class Replicas(Fault):
    """Every other request is answered by an engine without one layer."""

    turn: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.engine = self.other

    def other(self) -> Truth:
        """The engine whose turn it is."""
        return with_weights("skipped") if self.turn % 2 else healthy()

    def answer(self, body: scripted.Body) -> scripted.Reply:
        """By one of the two."""
        with self.lock:
            self.turn += 1
            return super().answer(body)


@dataclass(frozen=True)
class Row:
    """A server of the list: what is affected, and what counts as seen."""

    mode: str
    dialect: str
    since: str
    kinds: str
    make: Callable[..., Fault]
    unjudged: bool = False


ZERO = partial(Fault, values=lambda row: [0.0] * len(row))
SCALED = partial(Fault, values=lambda row: [1.3 * value for value in row])
HEADER = in_front(TOKENIZER.encode(IN_FRONT).ids[:N_IN_FRONT].tolist())


@dataclass
class ShiftedRight(Fault):
    """Values of the token before."""

    def scores(self, tokens: Tokens, options: Tokens) -> list[float]:
        """One place to the right."""
        row = super().scores(tokens, [])
        last = self.engine().read(tokens[:-1])[1] if len(tokens) > 1 else self.engine().read(tokens)[1]
        return [*row[:1], *row[:-1], *(float(last[option]) for option in options)]


READ, WRITE, BOTH = "read", "write", "both"
ROWS: dict[str, Row] = {
    "S01": Row("zeros", "V", "S", READ, ZERO),
    "S02": Row("zeros", "E", "M", READ, partial(Fault, values=lambda row: [*row[:239], *[0.0] * len(row[239:])])),
    "S03": Row("zeros", "V", "G", READ, ZERO),
    "S04": Row("scaled", "V", "S", READ, SCALED),
    "S05": Row("scaled", "E", "M", READ, SCALED),
    "S06": Row("scaled", "V", "G", READ, SCALED),
    "S07": Row("cut", "V", "S", BOTH, partial(Fault, parts=half)),
    "S08": Row("cut", "E", "M", BOTH, partial(Fault, parts=ends_only)),
    "S09": Row("cut", "V", "G", BOTH, partial(Fault, parts=last_384)),
    "S10": Row("off by one", "V", "S", READ, ShiftedRight),
    "S11": Row("off by one", "E", "M", READ, partial(Fault, values=lambda row: [*row[1:], row[-1]])),
    "S12": Row("off by one", "V", "G", READ, ShiftedRight),
    "S13": Row("temperature ignored", "V", "S", WRITE, partial(Fault, choose=partial(drawn, 1.0))),
    "S14": Row("temperature ignored", "E", "M", WRITE, partial(Fault, choose=partial(drawn, 0.7))),
    "S15": Row("temperature ignored", "V", "G", WRITE, partial(Fault, choose=partial(drawn, 1.0))),
    **{
        f"S{16 + place}": Row("prompt in front", dialect, since, BOTH, partial(Fault, parts=HEADER), True)
        for place, (dialect, since) in enumerate((("V", "A"), ("E", "M"), ("V", "G")))
    },
    **{
        f"S{19 + place}": Row("BOS doubled", dialect, since, BOTH, partial(Fault, parts=second_bos), True)
        for place, (dialect, since) in enumerate((("V", "A"), ("E", "M"), ("V", "G")))
    },
    "S22": Row("second token", "V", "A", WRITE, partial(Fault, choose=second)),
    "S23": Row("second token", "E", "M", WRITE, partial(Fault, choose=second, tells_best=True)),
    "S24": Row("second token", "V", "G", WRITE, partial(Fault, choose=second)),
    "S25": Row("another request's answer", "V", "S", BOTH, OfAnother),
    "S26": Row("another request's answer", "E", "M", BOTH, partial(OfAnother, share=0.125)),
    "S27": Row("another request's answer", "V", "G", BOTH, OfAnother),
    "S28": Row("answers exchanged", "V", "S", BOTH, Exchanged),
    "S29": Row("answers exchanged", "E", "M", BOTH, partial(Exchanged, share=1 / 3)),
    "S30": Row("answers exchanged", "V", "G", BOTH, Exchanged),
    "S31": Row("prefix cache begins at 0", "V", "S", BOTH, Resumed),
    "S32": Row(
        *("last partial page dropped", "V", "S", WRITE),
        partial(Fault, written_parts=lambda tokens: [whole(tokens)[: len(tokens) // 16 * 16]]),
    ),
    "S33": Row("prefill chunk", "V", "G", BOTH, partial(Fault, engine=in_chunks)),
    "S34": Row("penalty left on", "V", "A", WRITE, partial(Fault, choose=penalised)),
    "S35": Row("drafts unchecked", "V", "S", WRITE, partial(Fault, choose=drafted)),
    "S36": Row("floor", "V", "S", READ, partial(Fault, values=lambda row: [max(-5.0, value) for value in row])),
    "S37": Row(
        *("another logarithm", "E", "A", READ),
        partial(Fault, values=lambda row: [value / math.log(10) for value in row]),
    ),
    "S38": Row("cached answers", "V", "A", WRITE, Cached),
    "S39": Row("one of two replicas is broken", "V", "A", BOTH, Replicas),
    "S40": Row(
        *("long prompts are sent to another model", "V", "M", BOTH),
        partial(Fault, engine=lambda: with_weights("4 bits")),
        True,
    ),
}
EIGHT_BITS = {"keys": serving.bits(8, (3,))}, serving.HEALTHY["weights in 8 bits, a scale a row"]
HEALTHY: dict[str, Callable[[int], dict[str, Any]]] = {
    "float32": lambda seed: {},
    "bfloat16": lambda seed: {"dtype": torch.bfloat16},
    "float16": lambda seed: {"dtype": torch.float16},
    "noise of 0.02 on logits": lambda seed: {"logits": serving.noisy(seed, 0.02)},
    "noise of 0.05 on logits": lambda seed: {"logits": serving.noisy(seed, 0.05)},
    "bfloat16 and noise of 0.05": lambda seed: {"dtype": torch.bfloat16, "logits": serving.noisy(seed, 0.05)},
    "keys and values in 8 bits, a scale a token": lambda seed: EIGHT_BITS[0],
    "weights in 8 bits, a scale a row": lambda seed: EIGHT_BITS[1],
    "a lock": lambda seed: {},
    "answers delayed by up to 50 ms": lambda seed: {},
}


@cache
def kept_truth(name: str) -> Truth:
    """A true engine without noise."""
    return Truth(**HEALTHY[name](0))


def true_servers() -> dict[str, Callable[[], Fault]]:
    """The 40 true servers by name."""
    found = dict[str, Callable[[], Fault]]()
    for dialect in "VE":
        for name, fields in HEALTHY.items():
            for seed in (0, 1):

                def make(dialect: str = dialect, name: str = name, seed: int = seed, fields: Any = fields) -> Fault:
                    own = Truth(False, **fields(seed)) if "noise" in name else kept_truth(name)
                    delay = 0.05 if "delayed" in name else 0.0
                    return Fault(dialect, 0, seed, lambda: own, delay=delay, true=True)

                found[f"true {dialect}, {name}, seed {seed}"] = make
    return found


def words(url: str, folder: Path) -> list[str]:
    """The command of the list."""
    backend = ["backend=openai", f"backend.url={url}", "backend.retries=0", "backend.concurrency=4"]
    tasks = ["task=[last_segment,passkey]", "corpus=stdlib", "lengths=[128,256,512]", "n=12", "price=false"]
    own = ["backend.serves={name: ntk, factor: 2}", f"results={folder}"]
    return ["run", "model=lexlet", "method=ntk", "method.factor=2", *tasks, *backend, *own]


@dataclass
class Run:
    """What a run left."""

    code: int
    printed: str
    refused: dict[tuple[str, int], str]
    """Reason of each cell without a score, of kind and length."""
    scored: set[tuple[str, int]]
    seconds: float


def tried(fault: Fault) -> Run:
    """The command against a server, in a fresh folder."""
    models = scripted.listing("one", owned_by="vllm", root="/models/one", max_model_len=576)
    begun = time.process_time()
    with tempfile.TemporaryDirectory() as scratch, scripted.serving(fault.answer, models, version="0.30.0") as server:
        code, printed = serving.quietly(words(server.url, Path(scratch)))
        lines = [json.loads(line) for line in (Path(scratch) / "records.jsonl").read_text().splitlines()]
        url = server.url
    kinds = {"last_segment": "read", "passkey": "write"}
    refused = {(kinds[one["task"]], one["length"]): one["refused"] for one in lines if one["refused"]}
    scored = {(kinds[one["task"]], one["length"]) for one in lines if one["value"] is not None}
    refused = {cell: reason.replace(url, "URL") for cell, reason in refused.items()}
    return Run(code, printed.replace(url, "URL"), refused, scored, time.process_time() - begun)


def verdict(row: Row, fault: Fault, run: Run) -> tuple[str, str]:
    """Seen, believed or void; and why. Cells of a wrong kind that the trials kept from being asked are affected."""
    kinds = ("read", "write") if row.kinds == BOTH else (row.kinds,)
    if fault.wrong:
        unasked = {
            (kind, size) for kind in kinds for size in LENGTHS if size - NEW_TOKENS * (kind == "write") >= fault.since
        }
        fault.changed |= unasked - fault.asked
    if not fault.changed:
        return "void", "no request of the run's cells was changed"
    reasons = [run.refused.get(cell, "") for cell in sorted(fault.changed)]
    if row.unjudged and UNJUDGED in run.printed:
        return "seen", UNJUDGED
    left = [f"{kind} {length}" for kind, length in sorted(fault.changed & run.scored)]
    if left or not all(SERVER_REASON.search(each) and not OTHER_REASON.search(each) for each in reasons):
        return "believed", f"scores of {', '.join(left)}" if left else "; ".join(dict.fromkeys(reasons))
    more = sorted(f"{kind} {length}" for kind, length in run.refused.keys() - fault.changed)
    return "seen", "; ".join(dict.fromkeys(reasons)) + (f" (also refused: {', '.join(more)})" if more else "")


def measured(name: str) -> dict[str, Any]:
    """A server's line of the record."""
    if name in ROWS:
        row = ROWS[name]
        fault = row.make(dialect=row.dialect, since=SINCE[row.since], seed=int(name[1:]))
        run = tried(fault)
        said, why = verdict(row, fault, run)
        about = {"mode": row.mode, "dialect": row.dialect, "since": row.since}
        hit = sorted(f"{kind} {length}" for kind, length in fault.changed)
    else:
        run, about, hit = tried(true_servers()[name]()), {"mode": name.removeprefix("true ")}, []
        said = "refused" if run.refused or len(run.scored) != 2 * len(LENGTHS) else "held"
        why = "; ".join(dict.fromkeys(run.refused.values()))
    return {**about, "verdict": said, "why": why, "affected": hit, "seconds": round(run.seconds, 1)}


def page(found: Mapping[str, Mapping[str, Any]]) -> str:
    """The record, of the verdicts by name."""
    wrong, right = [each for each in found if each in ROWS], [each for each in found if each not in ROWS]
    believed = [each for each in wrong if found[each]["verdict"] != "seen"]
    refused = [each for each in right if found[each]["verdict"] != "held"]
    names = ", ".join(believed) or "none"
    return "\n".join(
        [
            "# 40 wrong servers and 40 true ones",
            "",
            f"    python -m tools.wrong_servers        # {time.strftime('%Y-%m-%d')}, a CPU, one thread",
            "",
            f"**Believed: {len(believed)} of {len(wrong)} wrong ones ({names}); refused: {len(refused)} of "
            f"{len(right)} true ones.** The aim was at most 1, and none.",
            "",
            "The list was drawn before anything was mended (`servers.md` in `planted_lists.tar.gz`); each row is a "
            "server of lexlet with NTK of factor 2, asked once by the list's command: `task=[last_segment,passkey] "
            "lengths=[128,256,512] n=12`.",
            "",
            f"- At 706a77b2, before mending by this list, {len(BELIEVED_BEFORE)} of 40 were believed: "
            f"{', '.join(BELIEVED_BEFORE)}; 20 true ones were tried, none was refused.",
            "- Not blind: S27 and S29 (which draw by chance) were tried several times while they were mended, S17, "
            "S20, S21, S22, S24, S34, S36 and S40 once or twice. The server of S29 was put right, too: it paired "
            "requests only once they were answered. In S07 "
            "and S09 the first token that is kept has -2.0, which the list does not say.",
            "- S16 and S19 (the same text or a second BOS in front of everything) contradict nothing. They count as "
            "seen, as a line below the tables says that this cannot be judged without a reference; it stands in no "
            "record, which the list asks for, too, and below the tables of true servers as well. S17, S18, S20, S21 "
            "and S40, where the line counts, too, were also refused outright by an earlier state of the same trials.",
            "- A row counts as void where no request of its cells was answered otherwise, and then as believed.",
            "",
            "| row | mode | dialect | from | verdict | why |",
            "| --- | --- | --- | --- | --- | --- |",
            *(
                f"| {name} | {one['mode']} | {one['dialect']} | {one['since']} | {one['verdict']} | {one['why']} |"
                for name, one in sorted((each, found[each]) for each in wrong)
            ),
            "",
            "| true server | verdict |",
            "| --- | --- |",
            *(f"| {found[each]['mode']} | {found[each]['verdict']} |" for each in sorted(right)),
            "",
        ]
    )


def main() -> None:
    """Try the servers, and write the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="names that begin so, with semicolons between")
    parser.add_argument("--part", default="0/1", help="every K-th from the I-th on, I/K")
    parser.add_argument("--out", type=Path, default=RECORD, help="file of verdicts")
    parser.add_argument("--show", action="store_true", help="print what each run printed")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    first, step = map(int, asked.part.split("/"))
    names = [name for name in (*ROWS, *true_servers()) if name.startswith(tuple(asked.only.split(";")))]
    for name in names[first::step]:
        found = measured(name)
        known: Mapping[str, Any] = json.loads(asked.out.read_text()) if asked.out.exists() else {}
        asked.out.write_text(json.dumps({**known, name: found}, indent=1, sort_keys=True) + "\n")
        print(f"| {name} | {found['mode']} | {found['verdict']} | {found['why']} | {found['seconds']}", flush=True)
    known = json.loads(asked.out.read_text())
    if ROWS.keys() <= known.keys():
        PAGE.write_text(page(known))


if __name__ == "__main__":
    main()
