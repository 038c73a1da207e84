"""Asks one model of every type all kinds of questions: each answer is the stock model's, or refused with a reason."""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from lexbench import Attention, ClassifyTokens, Generate, Loglikelihood, ProbeAttention, Refused
from lexbench.backends.hf import Hf
from lexbench.backends.hf.exact.state import KeyValueState, RereadState, ReturnedState
from lexbench.checkpoints.checkpoint import read_model
from lexbench.core.task import Choose, GenerateAnswer
from lexbench.runner.verify import LOGITS_TOLERANCE_OF_DTYPE, Preflight
from tests.census import tiny

TOLERANCE = 1e-4
"""Of likelihoods in float32: absolute below 1 nat, relative above."""
TOKENS = np.random.default_rng(1).integers(4, tiny.PADDING, 40)
"""Longer than a window and an index, and none of them special."""
PROMPT, ROOM = 24, 6
KINDS = ("score", "mark", "write", "choose", "probe", "near", "batched", "reused")
"""What every model is asked: five kinds of questions, probes within a window, batches, prompts that begin alike."""


@dataclass(frozen=True)
class Asked:
    """What came of one kind of question."""

    right: bool
    reason: str = ""
    """Why it was refused; for a wrong answer or a traceback, what happened."""
    refused: bool = False

    @property
    def honest(self) -> bool:
        """Right, or refused with a reason of one line."""
        return self.right or (self.refused and bool(self.reason) and "\n" not in self.reason)


INSIDE = {
    **{f"{name}ForConditionalGeneration": "language_model" for name in ("Blip2", "InstructBlip", "InstructBlipVideo")},
    **{"BlipForConditionalGeneration": "text_decoder", "Kosmos2ForConditionalGeneration": "text_model"},
}
"""The language models inside those that need an image."""


class Stock:
    """A model that we never touch: its logits come from one forward pass without a cache."""

    def __init__(self, folder: Path, dtype: torch.dtype = torch.float32) -> None:
        [name] = transformers.AutoConfig.from_pretrained(folder).architectures
        made = getattr(transformers, name)
        network = made.from_pretrained(folder, dtype=dtype, attn_implementation="eager").eval()
        self.network = getattr(network, INSIDE.get(name, ""), network)

    @torch.inference_mode()
    def chances(self, tokens: np.ndarray) -> np.ndarray:
        """[T, vocabulary] log-probabilities."""
        logits = self.network(input_ids=torch.from_numpy(tokens)[None], use_cache=False).logits[0]
        return np.asarray(logits.double().log_softmax(-1))

    def losses(self, tokens: np.ndarray, start: int) -> np.ndarray:
        """NLL of the tokens from `start` on."""
        chances = self.chances(tokens)
        return np.asarray([-chances[place - 1, tokens[place]] for place in range(start, len(tokens))])

    def written(self, prompt: np.ndarray, given: np.ndarray, room: int = ROOM) -> list[int]:
        """The likeliest token behind the prompt and each given one: if they are these, a greedy continuation."""
        rows = self.chances(np.concatenate([prompt, given]))[len(prompt) - 1 :]
        return [int(token) for token in rows[:room].argmax(-1)]

    @torch.inference_mode()
    def entropies(self, tokens: np.ndarray) -> np.ndarray | None:
        """[layers, heads] nats of the attention weights, a mean over the queries; None: it shows no weights."""
        given = self.network(input_ids=torch.from_numpy(tokens)[None], use_cache=False, output_attentions=True)
        weights = [each for each in given.get("attentions") or () if isinstance(each, torch.Tensor)]
        if not weights or any(each.shape[-2:] != (len(tokens), len(tokens)) for each in weights):
            return None
        return np.stack([torch.special.entr(each[0].double()).sum(-1).mean(-1).numpy() for each in weights])


class Remembering(Stock):
    """Reads the same tokens once: many checks ask the same."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._known: dict[bytes, np.ndarray] = {}

    def chances(self, tokens: np.ndarray) -> np.ndarray:
        if tokens.tobytes() not in self._known:
            self._known[tokens.tobytes()] = super().chances(tokens)
        return self._known[tokens.tobytes()]


def write(tokens: np.ndarray) -> Generate:
    return Generate(index=0, cluster="", prompt=tokens, max_new_tokens=ROOM)


def score(tokens: np.ndarray) -> Loglikelihood:
    return Loglikelihood(index=0, cluster="", tokens=tokens, first_target=10, bytes=1, words=1)


def choose(prompt: np.ndarray) -> Choose:
    return Choose(index=0, cluster="", prompt=prompt, options=(TOKENS[24:27], TOKENS[30:31], TOKENS[33:37]), expected=0)


def chosen(stock: Stock, prompt: np.ndarray) -> list[float]:
    return [float(stock.losses(np.append(prompt, option), len(prompt)).sum()) for option in choose(prompt).options]


def close(given: Any, expected: Any) -> None:
    np.testing.assert_allclose(given, expected, rtol=TOLERANCE, atol=TOLERANCE)


def other_end(tokens: np.ndarray, same: int) -> np.ndarray:
    """The tokens with another end behind the first `same`."""
    return np.concatenate([tokens[:same], tokens[same:][::-1]])


def check_score(hf: Hf, stock: Stock) -> None:
    close(hf.score(score(TOKENS)).nll, stock.losses(TOKENS, 10))


def check_mark(hf: Hf, stock: Stock) -> None:
    places, options = np.array([12, 20]), np.unique(TOKENS[[12, 20, 30]])
    given = hf.mark(ClassifyTokens(index=0, cluster="", tokens=TOKENS, places=places, options=options))
    close(given.nll, -stock.chances(TOKENS)[np.ix_(places - 1, options)])


def as_written(prompt: np.ndarray, answer: GenerateAnswer, stock: Stock, room: int = ROOM) -> None:
    assert answer.tokens.tolist() == stock.written(prompt, answer.tokens, room)


def check_write(hf: Hf, stock: Stock) -> None:
    as_written(TOKENS[:PROMPT], hf.write(write(TOKENS[:PROMPT])), stock)


def check_choose(hf: Hf, stock: Stock) -> None:
    close(hf.choose(choose(TOKENS[:PROMPT])).nll, chosen(stock, TOKENS[:PROMPT]))


def check_probe(hf: Hf, stock: Stock, tokens: np.ndarray = TOKENS) -> None:
    given = hf.probe(ProbeAttention(index=0, cluster="", tokens=tokens)).statistics["entropy"]
    expected = stock.entropies(tokens)
    assert expected is not None, "the stock model shows no weights to compare with"
    np.testing.assert_allclose(given, expected, atol=1e-3)


def check_near(hf: Hf, stock: Stock) -> None:
    check_probe(hf, stock, TOKENS[: tiny.WINDOW])


def check_batched(hf: Hf, stock: Stock) -> None:
    texts = [TOKENS, TOKENS[::-1].copy(), np.roll(TOKENS, 5)]
    for text, given in zip(texts, hf.answer_batch([score(text) for text in texts]), strict=True):
        close(given.nll, stock.losses(text, 10))  # type: ignore[union-attr]
    prompts = [text[:PROMPT] for text in texts]
    for prompt, answer in zip(prompts, hf.answer_batch([write(prompt) for prompt in prompts]), strict=True):
        as_written(prompt, answer, stock)  # type: ignore[arg-type]


def check_reused(hf: Hf, stock: Stock) -> None:
    prompt = TOKENS[:PROMPT]
    hf.reuse = True
    for same in (PROMPT, 18, 18, 4):
        begins_alike = other_end(prompt, same)
        as_written(begins_alike, hf.write(write(begins_alike)), stock)
        close(hf.choose(choose(begins_alike)).nll, chosen(stock, begins_alike))
    longer = np.append(prompt, TOKENS[30:34])
    as_written(longer, hf.write(write(longer)), stock)


def check_in_bfloat16(folder: Path) -> None:
    """Likelihoods within the tolerance of bfloat16 of the stock model's, and texts of tokens as likely as its best."""
    hf, stock = open_hf(folder, "bfloat16"), Stock(folder, torch.bfloat16)
    chances, prompt = stock.chances(TOKENS), TOKENS[:PROMPT]
    slack = LOGITS_TOLERANCE_OF_DTYPE["bfloat16"] * chances.std()
    mark = ClassifyTokens(
        index=0, cluster="", tokens=TOKENS, places=np.array([12, 20]), options=np.unique(TOKENS[[12, 20, 30]])
    )
    pairs = [
        (hf.score(score(TOKENS)).nll, stock.losses(TOKENS, 10)),
        (hf.mark(mark).nll, -chances[np.ix_(mark.places - 1, mark.options)]),
    ]
    for given, expected in pairs:
        assert np.sqrt(np.mean((np.asarray(given) - expected) ** 2)) <= slack
    sums, sizes = hf.choose(choose(prompt)).nll, [len(option) for option in choose(prompt).options]
    assert (abs(sums - chosen(stock, prompt)) <= 2 * slack * np.sqrt(sizes)).all()
    tokens = prompt
    for token in hf.write(write(prompt)).tokens:
        row = stock.chances(tokens)[-1]
        assert row.max() - row[token] <= 2 * slack
        tokens = np.append(tokens, token)


GOES_ON = ("write", "choose", "batched", "reused")
"""Kinds of questions that a run asks only of a model that has passed its preflight."""
CHECKS: dict[str, Callable[[Hf, Stock], None]] = {
    "score": check_score,
    "mark": check_mark,
    "write": check_write,
    "choose": check_choose,
    "probe": check_probe,
    "near": check_near,
    "batched": check_batched,
    "reused": check_reused,
}


def open_hf(folder: Path, dtype: str = "float32") -> Hf:
    known = {"trained_length": tiny.LONGEST, "head_dim": 8, "vocabulary": tiny.PADDING}
    stated = {"path": str(folder), "name": folder.name, **known}
    return Hf(read_model(stated, offline=True), batch=3, device="cpu", dtype=dtype)


@dataclass(frozen=True)
class Found:
    """What came of all kinds of questions, asked of one model."""

    asked: dict[str, Asked]
    goes_on: str = ""
    """What it goes on by from a prompt: keys, its own state, or reading again."""

    @property
    def dishonest(self) -> dict[str, str]:
        """What was neither right nor refused with a reason."""
        return {kind: each.reason for kind, each in self.asked.items() if not each.honest}


GOES_ON_BY = {KeyValueState: "keys and values", ReturnedState: "its own state", RereadState: "reading again"}


def ask(folder: Path) -> Found:
    """What came of each kind of question, asked of a folder's model."""
    try:
        hf = open_hf(folder)
    except (Refused, ValueError) as refusal:
        return Found(dict.fromkeys(KINDS, Asked(False, str(refusal), refused=True)))
    except Exception as error:
        return Found(dict.fromkeys(KINDS, Asked(False, f"{type(error).__name__}: {error}")))
    stock, preflight = Remembering(folder), Preflight(None, hf, "")
    found = {}
    for name, check in CHECKS.items():
        hf.reuse = False
        try:
            if name in GOES_ON and (failed := preflight.failure_of_cache(Attention(), len(TOKENS))):
                raise Refused(failed)
            check(hf, stock)
            found[name] = Asked(True)
        except Refused as refusal:
            found[name] = Asked(False, refusal.reason, refused=True)
        except Exception as error:
            found[name] = Asked(False, " ".join(f"{type(error).__name__}: {error}".split())[:300])
    return Found(found, GOES_ON_BY[type(hf.reader.empty())])


def census(kind: str) -> Found:
    """What came of each kind of question, asked of a tiny random model of a type."""
    with tempfile.TemporaryDirectory() as folder:
        return ask(tiny.save(Path(folder) / kind, kind))
