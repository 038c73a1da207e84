"""Readings of lexlet, healthy and with the effects of `planted.md` (`results/benchmarks/planted_lists.tar.gz`).

An effect changes the Attention that a method returns, the network that reads, or the tokens that are read; each has a
weaker and a stronger form, as the list has them. A reading is a list of samples, made by the backend and the task that
a run takes, and kept in a folder: each is measured once.
"""

import hashlib
import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

import lexbench
from lexbench.backends.hf.backend import Hf
from lexbench.backends.hf.exact.layers import rotary_kinds
from lexbench.checkpoints.checkpoint import read_model
from lexbench.core import registry
from lexbench.core.attention import Attention, ConstantScale, PositionMap, Remap, Window
from lexbench.core.files import write_bytes
from lexbench.core.record import Sample
from lexbench.core.task import AnyQuestion, Generate, Loglikelihood
from lexbench.parts.serving.mistakes import change_angles
from lexbench.runner.answers import answer_questions, sample_of_answer
from lexbench.runner.reuse import cheapest_order
from tools import serving
from tools.wrong_servers import IN_FRONT

MODEL = read_model(registry.read_named_config("model", "lexlet"))
PAIRS = 16
"""Rotary pairs of a head."""
BASE = 10_000.0
TRAINED = MODEL.trained_length
CORPUS = "packages"
Change = Callable[[Attention, int, bool], Attention]
"""Of a healthy Attention, the length, and whether the stronger form is asked."""
Network = Callable[[Hf, Attention, bool], AbstractContextManager[None]]
Edit = Callable[[np.ndarray, bool], np.ndarray]
"""Of the tokens of a prompt."""


class Reading(NamedTuple):
    """What is read, and with which effect."""

    method: str
    task: str
    length: int
    seed: int
    n: int
    effect: str = ""
    """Id; empty: healthy."""
    strong: bool = False
    setting: str = "float32"
    """Of the backend: its dtype, then `name=value`."""
    longest: int = 512
    """Of the run's lengths, of which a quarter is the shortest: they choose texts and targets of likelihoods."""


@dataclass(frozen=True, kw_only=True)
class Effect:
    """An effect of the list."""

    method: str
    """Healthy method."""
    was: str
    alone: bool = False
    """Whether texts are read one by one, as one mask for all is made."""
    attention: Change | None = None
    network: Network | None = None
    edit: Edit | None = None


def frequencies(base: float) -> np.ndarray:
    """[pairs] of plain RoPE."""
    return np.asarray(base ** (-np.arange(PAIRS) / PAIRS))


def of_base(base: Callable[[float, bool], float]) -> Change:
    """Plain RoPE of another base, by the factor and the form."""
    return lambda held, length, strong: replace(held, inv_freq=frequencies(base(length / TRAINED, strong)))


def without_layers(held: Attention, length: int, strong: bool) -> Attention:
    """Layer 2, or layers 1 and 2, keep plain RoPE."""
    return replace(held, layers=(0, 3) if strong else (0, 1, 3))


def inverted(held: Attention, length: int, strong: bool) -> Attention:
    """YaRN's ramp from the other end; stronger: all pairs are slowed by the factor."""
    plain, factor = frequencies(BASE), length / TRAINED
    slow = plain / factor
    kept = (np.asarray(held.inv_freq) - slow) / (plain - slow)
    return replace(held, inv_freq=slow if strong else kept * slow + (1 - kept) * plain)


def another(name: str, **parameters: tuple[Any, Any]) -> Change:
    """A method with other parameters, for each form one."""

    def change(held: Attention, length: int, strong: bool) -> Attention:
        given = {key: value[strong] for key, value in parameters.items()}
        return lexbench.method(name, **given).attention(MODEL, length)

    return change


def wider_groups(held: Attention, length: int, strong: bool) -> Attention:
    """Self-Extend with a group of twice the size, or of four times."""
    assert isinstance(held.remap, Remap) and isinstance(held.remap.query, PositionMap), "Self-Extend remaps"
    group = int(held.remap.query.divisor) * (4 if strong else 2)
    return lexbench.method("self_extend", group=group).attention(MODEL, length)


def angles(**fields: Any) -> Network:
    """`change_angles`, with fields for both forms."""
    return lambda hf, held, strong: change_angles(hf, **{name: value[strong] for name, value in fields.items()})


@contextmanager
def new_weights(hf: Hf, change: Callable[[Any], None]) -> Iterator[None]:
    """The network with changed weights, inside the block."""
    kept = {name: weight.detach().clone() for name, weight in hf.reader.network.named_parameters()}
    try:
        with torch.no_grad():
            change(hf.reader.network)
        yield
    finally:
        for name, weight in hf.reader.network.named_parameters():
            weight.data.copy_(kept[name])


def of_matrices(change: Callable[[str, Tensor, bool], Tensor]) -> Network:
    """A change of all matrices of the layers."""

    def network(hf: Hf, held: Attention, strong: bool) -> AbstractContextManager[None]:
        def done(opened: Any) -> None:
            for name, weight in opened.named_parameters():
                if "layers" in name and weight.dim() == 2:
                    weight.data.copy_(change(name, weight.data, strong))

        return new_weights(hf, done)

    return network


def rounded(weight: Tensor, bits: int) -> Tensor:
    """With a scale a matrix."""
    step = weight.abs().max() / (2 ** (bits - 1) - 1)
    found: Tensor = torch.round(weight / step) * step
    return found


def silenced(name: str, weight: Tensor, strong: bool) -> Tensor:
    """Layer 1, or layers 1 and 2, add nothing."""
    place = int(name.split("layers.")[1].split(".")[0])
    off = place in ((1, 2) if strong else (1,)) and ("o_proj" in name or "down_proj" in name)
    return torch.zeros_like(weight) if off else weight


def neighbours(name: str, weight: Tensor, strong: bool) -> Tensor:
    """Pairs of neighbours rotate in layer 0, or in all."""
    if not ("q_proj" in name or "k_proj" in name) or not (strong or "layers.0." in name):
        return weight
    order = torch.arange(2 * PAIRS).reshape(PAIRS, 2).T.flatten()
    return weight.reshape(-1, 2 * PAIRS, weight.shape[1])[:, order].reshape(weight.shape)


def adapted(name: str, weight: Tensor, strong: bool) -> Tensor:
    """An adapter of rank 4 on v_proj, as `serving.adapter`; of the weight's own norm in the stronger form."""
    if "v_proj" not in name:
        return weight
    rng = torch.Generator().manual_seed(int(name.split("layers.")[1].split(".")[0]))
    one, two = torch.randn(weight.shape[0], 4, generator=rng), torch.randn(4, weight.shape[1], generator=rng)
    found: Tensor = weight + (1.0 if strong else 0.5) * weight.norm() * (one @ two) / (one @ two).norm()
    return found


def quieter_norm(hf: Hf, held: Attention, strong: bool) -> AbstractContextManager[None]:
    """The final norm's weight times 0.8, or 0.5."""
    return new_weights(hf, lambda network: network.model.norm.weight.mul_(0.5 if strong else 0.8))


@contextmanager
def hooked(*handles: Any) -> Iterator[None]:
    """Hooks, inside the block."""
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def watched_positions(network: Any) -> tuple[list[Tensor], list[Any]]:
    """Where the positions [B, T] of the last forward pass are put, and the hooks that put them."""
    seen = [torch.zeros(1, 1)]

    def watch(module: Any, given: tuple[Any, ...], named: dict[str, Any]) -> None:
        seen[0] = [*given, *named.values()][1]

    modules = [module for module in network.modules() if rotary_kinds(module)]
    return seen, [module.register_forward_pre_hook(watch, with_kwargs=True) for module in modules]


def by_head(made: Tensor) -> Tensor:
    """[B, T, heads, width] of what a projection gives."""
    return made.reshape(*made.shape[:-1], -1, 2 * PAIRS)


def turned(x: Tensor, by: Tensor) -> Tensor:
    """[B, T, heads, width] rotated by angles [B, T, pairs]."""
    cos, sin = by.cos()[:, :, None].to(x.dtype), by.sin()[:, :, None].to(x.dtype)
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


def turned_back(network: Any, apart: Tensor, layers: Sequence[int], keys: Sequence[int]) -> list[Any]:
    """Hooks that turn queries and keys of some layers and key heads by [pairs] further radians a token."""
    seen, handles = watched_positions(network)

    def back(per_key: int) -> Callable[..., Tensor]:
        heads = [per_key * key + place for key in keys for place in range(per_key)]

        def hook(module: Any, given: tuple[Any, ...], made: Tensor) -> Tensor:
            found = by_head(made).clone()
            found[:, :, heads] = turned(found[:, :, heads], seen[0][..., None] * apart)
            return found.flatten(-2)

        return hook

    for layer in (network.model.layers[place] for place in layers):
        handles.append(layer.self_attn.q_proj.register_forward_hook(back(2)))
        handles.append(layer.self_attn.k_proj.register_forward_hook(back(1)))
    return handles


def without_heads(hf: Hf, held: Attention, strong: bool) -> AbstractContextManager[None]:
    """Queries and keys of key head 1 (query heads 2 and 3, which share it), or of 1 and 2, keep plain RoPE."""
    apart = torch.from_numpy(frequencies(BASE) - np.asarray(held.inv_freq))
    return hooked(*turned_back(hf.reader.network, apart, range(4), (1, 2) if strong else (1,)))


def keys_ahead(hf: Hf, held: Attention, strong: bool) -> AbstractContextManager[None]:
    """Keys stand one place later, or four."""
    angle = (4 if strong else 1) * torch.from_numpy(frequencies(BASE))[None, None]

    def hook(module: Any, given: tuple[Any, ...], made: Tensor) -> Tensor:
        return turned(by_head(made), angle).flatten(-2)

    return hooked(*(each.self_attn.k_proj.register_forward_hook(hook) for each in hf.reader.network.model.layers))


def few_bits(hf: Hf, held: Attention, strong: bool) -> AbstractContextManager[None]:
    """Keys, before they are rotated, and values in 4 bits, or 2, with a scale for each token and head."""
    cut = serving.bits(2 if strong else 4, (-1,))

    def hook(module: Any, given: tuple[Any, ...], made: Tensor) -> Tensor:
        return torch.flatten(cut(by_head(made)), -2)

    layers = hf.reader.network.model.layers
    parts = [part for layer in layers for part in (layer.self_attn.k_proj, layer.self_attn.v_proj)]
    return hooked(*(part.register_forward_hook(hook) for part in parts))


def first_hidden(hf: Hf, held: Attention, strong: bool) -> AbstractContextManager[None]:
    """Nobody behind place 64 sees the first 4 tokens, or 16."""
    seen, handles = watched_positions(hf.reader.network)

    def hook(module: Any, given: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, Any]:
        i = seen[0][0][:, None]
        j = torch.arange(int(i.max()) + 1)[None]
        allowed = (j <= i) & ((j >= (16 if strong else 4)) | (i < 64))
        return given, {**named, "attention_mask": torch.zeros(allowed.shape).masked_fill(~allowed, -1e30)[None, None]}

    layers = hf.reader.network.model.layers
    handles += [layer.self_attn.register_forward_pre_hook(hook, with_kwargs=True) for layer in layers]
    return hooked(*handles)


@contextmanager
def noisy_logits(hf: Hf, held: Attention, strong: bool) -> Iterator[None]:
    """Noise of a standard deviation of 0.3 on logits, or 1.0, for each text its own; of likelihoods alone."""

    def losses(states: Tensor, targets: np.ndarray) -> Tensor:
        logits = hf.reader.head(states)[0].float()
        seed = int.from_bytes(hashlib.sha256(np.asarray(targets).tobytes()).digest()[:4], "little")
        noise = torch.randn(logits.shape, generator=torch.Generator().manual_seed(seed))
        chances = (logits + (1.0 if strong else 0.3) * noise).log_softmax(-1)
        return -chances.gather(1, torch.from_numpy(np.asarray(targets, np.int64))[:, None])[:, 0]

    hf._losses = losses  # type: ignore[method-assign]
    try:
        yield
    finally:
        del hf._losses


@cache
def header() -> np.ndarray:
    """Tokens of a system prompt."""
    found = lexbench_tokenizer().encode(8 * IN_FRONT).ids
    return np.asarray(found)


@cache
def lexbench_tokenizer() -> Any:
    return opened("float32").tokenizer


def cut_context(tokens: np.ndarray, strong: bool) -> np.ndarray:
    """The last half of a prompt behind BOS, or the last quarter."""
    return np.concatenate([tokens[:1], tokens[-(len(tokens) // (4 if strong else 2)) :]])


def without_bos(tokens: np.ndarray, strong: bool) -> np.ndarray:
    """BOS lost, or BOS and the first 8 tokens."""
    return tokens[9:] if strong else tokens[1:]


def with_header(tokens: np.ndarray, strong: bool) -> np.ndarray:
    """24 tokens between BOS and prompt, or 96."""
    return np.concatenate([tokens[:1], header()[: 96 if strong else 24], tokens[1:]])


def repeated(tokens: np.ndarray, strong: bool) -> np.ndarray:
    """Every 16th token is replaced by the one before it, or every 4th."""
    found, step = tokens.copy(), 4 if strong else 16
    found[step::step] = tokens[step - 1 : -1 : step][: len(found[step::step])]
    return found


EFFECTS: dict[str, Effect] = {
    "E01": Effect(
        method="ntk", was="exponent lost", attention=of_base(lambda s, strong: BASE * (s**0.5 if strong else s))
    ),
    "E02": Effect(
        method="yarn",
        was="temperature dropped",
        attention=lambda held, length, strong: replace(held, scale=0.8 if strong else None),
    ),
    "E03": Effect(method="rerope", was="window doubled", attention=another("rerope", window=(TRAINED, 2 * TRAINED))),
    "E04": Effect(method="none", was="keys off by one", network=keys_ahead),
    "E05": Effect(method="none", was="base halved", attention=of_base(lambda s, strong: 1000.0 if strong else 5000.0)),
    "E06": Effect(method="ntk", was="pairs swapped", network=of_matrices(neighbours)),
    "E07": Effect(method="none", was="angles in bfloat16", network=angles(dtype=("bfloat16", "bfloat16"))),
    "E08": Effect(method="ntk", was="layer left out", attention=without_layers),
    "E09": Effect(method="yarn", was="head left out", network=without_heads),
    "E10": Effect(
        method="none",
        was="softmax scale times 0.9",
        attention=lambda held, length, strong: replace(held, query_scale=ConstantScale(0.7 if strong else 0.9)),
    ),
    "E11": Effect(
        method="none",
        was="weights in 4 bits",
        network=of_matrices(lambda name, weight, strong: rounded(weight, 3 if strong else 4)),
    ),
    "E12": Effect(method="none", was="layer 1 silent", network=of_matrices(silenced)),
    "E13": Effect(method="none", was="context cut to a half", edit=cut_context),
    "E14": Effect(method="self_extend", was="group doubled", attention=wider_groups),
    "E15": Effect(method="ntk", was="positions begin anew", network=angles(chunk=(256, 128))),
    "E16": Effect(method="yarn", was="ramp inverted", attention=inverted),
    "E17": Effect(
        method="ntk",
        was="factor 8",
        attention=of_base(lambda s, strong: BASE * (16 if strong else 8) ** (PAIRS / (PAIRS - 1))),
    ),
    "E18": Effect(
        method="pi",
        was="factor 1.1 times too great",
        attention=lambda held, length, strong: replace(
            held, inv_freq=np.asarray(held.inv_freq) / (1.5 if strong else 1.1)
        ),
    ),
    "E19": Effect(method="none", was="noise on logits", network=noisy_logits),
    "E20": Effect(method="none", was="keys and values in 4 bits", network=few_bits),
    "E21": Effect(
        method="none",
        was="window of 128",
        attention=lambda held, length, strong: replace(held, mask=Window(64 if strong else 128)),
    ),
    "E22": Effect(method="none", was="first tokens hidden", alone=True, network=first_hidden),
    "E23": Effect(method="none", was="BOS lost", edit=without_bos),
    "E24": Effect(method="none", was="a header in front", edit=with_header),
    "X01": Effect(method="none", was="an adapter", network=of_matrices(adapted)),
    "X02": Effect(method="none", was="final norm times 0.8", network=quieter_norm),
    "X03": Effect(
        method="none",
        was="softmax scale times 1.3",
        attention=lambda held, length, strong: replace(held, query_scale=ConstantScale(1.8 if strong else 1.3)),
    ),
    "X04": Effect(method="none", was="every 16th token repeated", edit=repeated),
}
RESERVES = ("X01", "X02", "X03", "X04")


@cache
def opened(setting: str) -> Hf:
    """The model."""
    dtype, *more = setting.split()
    named = {name: value for name, _, value in (word.partition("=") for word in more)}
    torch.set_num_threads(int(named.pop("threads", 1)))
    kernel, fast = named.pop("attention", "auto"), named.pop("fast", "true") == "true"
    batch: Any = named.pop("batch", "auto")
    return Hf(MODEL, dtype=dtype, batch=batch if batch == "auto" else int(batch), attention=kernel, fast=fast)


def edited(question: AnyQuestion, edit: Edit, strong: bool) -> AnyQuestion:
    """A question whose prompt is read otherwise."""
    if isinstance(question, Loglikelihood):
        before, targets = question.tokens[: question.first_target], question.tokens[question.first_target :]
        read = edit(before, strong)
        return replace(question, tokens=np.concatenate([read, targets]), first_target=len(read))
    assert isinstance(question, Generate), "tasks here score likelihoods or written answers"
    return replace(question, prompt=edit(question.prompt, strong), text_tokens=None)


@cache
def task_of(name: str, longest: int) -> Any:
    """The task as a run of these lengths has it."""
    lengths = (longest // 4, longest)
    corpus = lexbench.corpus(CORPUS).for_lengths(lengths)  # type: ignore[attr-defined]
    task = lexbench.task(name, corpus=corpus)
    return task.for_lengths(lengths) if hasattr(task, "for_lengths") else task


def measured(asked: Reading) -> list[Sample]:
    """The samples of a reading, each of the question as the task asks it."""
    effect = EFFECTS[asked.effect] if asked.effect else None
    hf = opened(f"{asked.setting} batch=1" if effect and effect.alone else asked.setting)
    task = task_of(asked.task, asked.longest)
    held = lexbench.method(asked.method).attention(MODEL, asked.length)
    planted = effect.attention(held, asked.length, asked.strong) if effect and effect.attention else held
    questions = task.questions(hf.tokenizer, asked.length, asked.n, asked.seed)
    with ExitStack() as stack:
        hf.attend(planted)
        stack.callback(hf.attend, Attention())
        stack.enter_context(effect.network(hf, held, asked.strong) if effect and effect.network else nullcontext())
        edit = effect.edit if effect else None
        asked_now = [edited(each, edit, asked.strong) if edit else each for each in questions]
        own = {id(new): old for new, old in zip(asked_now, questions, strict=True)}
        ordered = cheapest_order(asked_now, reuse=hf.is_causal())
        pairs = [(own[id(new)], given) for new, given in zip(ordered, answer_questions(hf, ordered), strict=True)]
    return sorted((sample_of_answer(task, hf.tokenizer, q, a) for q, a in pairs), key=lambda each: each.index)


class Library:
    """Readings in a folder, each measured once, the longest of each kept.

    Args:
        folder: of the readings; it is made where it is missing.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.known: dict[Reading, list[Sample]] = {}
        folder.mkdir(parents=True, exist_ok=True)

    def samples(self, asked: Reading) -> Sequence[Sample]:
        """The samples of a reading."""
        if asked not in self.known:
            file = self.folder / ("-".join(map(str, asked)).replace(" ", "-") + ".pickle")
            if not file.exists():
                write_bytes(file, pickle.dumps(measured(asked)))
            self.known[asked] = pickle.loads(file.read_bytes())
        return self.known[asked]
