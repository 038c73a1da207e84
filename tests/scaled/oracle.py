"""Every method on every family, written from the formulas: dense attention in float64, by distances.

    logit(i, j) = m^2 s(i) sum_p [(q1 k1 + q2 k2) cos(theta_p t) + (q1 k2 - q2 k1) sin(theta_p t)] + rest,  t = t(i, j)

with queries and keys of a pair before rotation, the rest from dimensions that do not rotate.
"""

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface

from tests.scaled.families import BASE, LENGTH, TRAINED, WINDOW, Family

Floats = NDArray[np.float64]
_numbers = itertools.count()


@dataclass(frozen=True)
class Start:
    """What a method starts from in one layer: frequencies, their base, trained length."""

    theta: Floats
    base: float
    trained: int
    layer: int
    layers: int = 4

    @property
    def pairs(self) -> Floats:
        return np.arange(len(self.theta), dtype=np.float64)

    @property
    def dims(self) -> int:
        return 2 * len(self.theta)

    @property
    def factor(self) -> float:
        return LENGTH / self.trained

    def rebased(self, base: float) -> Floats:
        return self.theta * (base / self.base) ** (-2 * self.pairs / self.dims)

    def turns(self) -> Floats:
        return self.trained * self.theta / (2 * math.pi)


@dataclass(frozen=True)
class Spec:
    """What a method makes of it."""

    theta: Floats
    scale: float = 1.0
    """m, beside the checkpoint's own."""
    distance: Callable[[Any, Any], Any] | None = None
    """t(i, j), from column and row vectors of positions, or [i, j, pairs] of each pair; None: i - j."""
    seen: Callable[[Any, Any], Any] | None = None
    sharp: Callable[[Any], Any] | None = None
    """Factor of the query at i, from a column vector of positions; None: 1."""
    ratios: bool = False


def log_n(trained: int) -> Callable[[Any], Any]:
    return lambda i: np.maximum(1.0, np.log(i + 1) / math.log(trained))


def parts(start: Start, kept: Floats) -> Floats:
    return start.theta * (kept + (1 - kept) / start.factor)


def by_turns(start: Start, slow: float, fast: float) -> Floats:
    return parts(start, np.clip((start.turns() - slow) / (fast - slow), 0, 1))


def yarn(start: Start) -> Spec:
    def pair_with(rotations: float) -> float:
        """Between the two pairs that make more and fewer rotations, by logarithms; beyond them in steps of the base."""
        turning = [turns for turns in start.turns() if turns > 0]
        step = 2 * math.log(start.base) / start.dims
        if rotations > turning[0]:
            return -math.log(rotations / turning[0]) / step
        for number, (more, fewer) in enumerate(itertools.pairwise(turning)):
            if more >= rotations >= fewer:
                return number + math.log(more / rotations) / math.log(more / fewer)
        return len(turning) - 1 + math.log(turning[-1] / rotations) / step

    low, high = max(0, math.floor(pair_with(32))), min(start.dims - 1, math.ceil(pair_with(1)))
    kept = 1 - np.clip((start.pairs - low) / (max(high, low + 0.001) - low), 0, 1)
    return Spec(parts(start, kept), 0.1 * math.log(start.factor) + 1)


def abf(start: Start) -> Floats:
    turn = 2 * math.pi
    return start.rebased(start.base ** (math.log(LENGTH / turn) / math.log(start.trained / turn)))


def ntk(start: Start, factor: float) -> Floats:
    return start.theta * factor ** (-2 * start.pairs / (start.dims - 2))


def su(start: Start) -> float:
    return math.sqrt(1 + math.log(start.factor) / math.log(start.trained))


def longrope2(start: Start) -> Spec:
    critical = max(1, int((start.turns() > 1).sum()))
    slower = np.where(start.pairs < critical, start.factor ** (start.pairs / critical), start.factor)
    return Spec(start.theta / slower, su(start))


def truncated(start: Start) -> Floats:
    once = 2 * math.pi / start.trained
    return np.where(start.theta >= once, start.theta, np.where(start.theta < once / 8, 0.0, once / 16))


def resonance(theta: Floats) -> Floats:
    return np.array([0.0 if each == 0 else 2 * math.pi / max(1, round(2 * math.pi / each)) for each in theta])


def leaky(start: Start) -> Spec:
    w, most = start.trained // 2, start.trained - 1
    k = max(1.0, (LENGTH - 1 - w) / (most - w))
    return Spec(start.theta, distance=lambda i, j: np.where(i - j < w, i - j, w + (i - j - w) / k))


def chunks(start: Start, size: int, limit: int, scale: float = 1.0) -> Spec:
    def distance(i: Any, j: Any) -> Any:
        own, near = i // size == j // size, i // size == j // size + 1
        place = np.where(own, i % size, np.where(near, np.minimum(i % size + size, limit), limit))
        return place - j % size

    return Spec(start.theta, scale, distance=distance)


def adagrope(start: Start) -> Spec:
    positions, n = start.trained, 1

    def counts(below: int) -> list[tuple[int, int]]:
        return [(int(0.25 * positions / k), k) for k in (1, 2, 4, 8, 16) if k < below]

    def reach(times: int) -> int:
        return times * positions - sum((times - k) * count for count, k in counts(times))

    while reach(n + 1) <= LENGTH:
        n += 1
    steps = [k for count, k in counts(n) for _ in range(count)]
    more = LENGTH - reach(n) if reach(n) < LENGTH else 0
    steps += [n] * (positions - len(steps) - more) + [n + 1] * more
    places = np.array([place for place, times in enumerate(steps) for _ in range(times)], dtype=np.float64)
    return Spec(start.theta, distance=lambda i, j: places[np.clip(i - j, 0, len(places) - 1)])


def tapered(start: Start) -> Any:
    """Pairs without a full turn within the trained length times a falling half of Hann's window."""
    slow = int(np.sum(2 * np.pi / start.theta > start.trained))
    return start.theta * np.concatenate([np.ones(len(start.theta) - slow), np.hanning(2 * slow - 1)[slow - 1 :]])


def specs(name: str, start: Start) -> list[Spec]:
    """The Spec of each pass of a method with default parameters, at LENGTH tokens."""
    theta, trained, s = start.theta, start.trained, start.factor
    pairs, half = start.pairs, len(start.theta)
    w, third = trained // 2, 33 * LENGTH // 100
    groups = -(-LENGTH // trained)
    window = min(2048, trained // 2)

    def near(d: Any, size: int, far: Any) -> Any:
        return np.where(d < size, d, far)

    def moved(distance: Any, seen: Any = None) -> Spec:
        return Spec(theta, distance=distance, seen=seen)

    if name == "attention_buckets":
        return [Spec(start.rebased(start.base * ratio)) for ratio in (1.0, 1.75, 1.8, 1.9, 2.0, 2.5)]
    found: dict[str, Callable[[], Spec]] = {
        "none": lambda: Spec(theta),
        "pi": lambda: Spec(theta / s),
        "ntk": lambda: Spec(ntk(start, s)),
        "ntk_old": lambda: Spec(start.rebased(start.base * s)),
        "ntk_fixed": lambda: Spec(theta * s ** (-2 * (pairs + 1) / start.dims)),
        "ntk_mixed": lambda: Spec(theta * np.exp(-math.log(s) / half**0.625 * (pairs + 1) ** 0.625)),
        "ntk_by_parts": lambda: Spec(by_turns(start, 1, 32)),
        "yarn_paper": lambda: Spec(by_turns(start, 1, 32), 0.1 * math.log(s) + 1),
        "llama3": lambda: Spec(by_turns(start, 1, 4)),
        "yarn": lambda: yarn(start),
        "abf": lambda: Spec(abf(start)),
        "dynamic_ntk": lambda: Spec(ntk(start, s)),
        "clex": lambda: Spec(ntk(start, 2 * math.ceil(s) - 1)),
        "critical_base": lambda: Spec((2 * trained / math.pi) ** (-2 * pairs / start.dims)),
        "hope": lambda: Spec(np.where(theta >= 2 * math.pi / trained, theta, 0.0)),
        "clipped_rope": lambda: Spec(tapered(start)),
        "p_rope": lambda: Spec(np.where(pairs < int(0.75 * half), theta, 0.0)),
        "power_basis": lambda: Spec(theta * (1 - pairs / half) ** 0.1),
        "truncated_basis": lambda: Spec(truncated(start)),
        "resonance": lambda: Spec(resonance(theta)),
        "longrope": lambda: Spec(ntk(start, s), su(start)),
        "longrope2": lambda: longrope2(start),
        "entropy_abf": lambda: Spec(abf(start), sharp=log_n(trained) if start.layer >= 2 else None),
        "log_n": lambda: Spec(theta, sharp=log_n(trained)),
        "qk_gain": lambda: Spec(theta, sharp=lambda i: np.where(i >= trained, 0.1 * math.log(s) + 1, 1.0)),
        "ms_poe": lambda: Spec(theta, ratios=start.layer >= 2),
        "rerope": lambda: moved(lambda i, j: np.minimum(i - j, w)),
        "leaky_rerope": lambda: leaky(start),
        "self_extend": lambda: self_extend(start),
        "dpe": lambda: in_bands(start, (math.ceil(2 * s),)),
        "jet_long": lambda: moved(lambda i, j: np.where(i - j <= window, i - j, i // groups - j // groups)),
        "string": lambda: moved(lambda i, j: near(i - j, third, i - j - third + min(128, third // 4))),
        "dca": lambda: chunks(start, 3 * trained // 4, trained - 1),
        "chunkllama": lambda: chunks(start, 3 * trained // 4 - trained // 8, 3 * trained // 4, 0.05 * math.log(s) + 1),
        "adagrope": lambda: adagrope(start),
        "lambda_mask": lambda: moved(
            lambda i, j: np.minimum(i - j, trained), lambda i, j: (i - j < trained) | (j < 10)
        ),
        "streaming_llm": lambda: moved(
            lambda i, j: near(i - j, trained - 4, np.minimum(i, trained - 1) - j),
            lambda i, j: (i - j < trained - 4) | (j < 4),
        ),
        "sliding_window": lambda: moved(None, lambda i, j: i - j < trained),
        "bca": lambda: moved(None, lambda i, j: i // w - j // w <= 1),
    }
    return [found[name]()]


def grouped(start: Start, group: int, size: int, shift: int) -> Spec:
    return Spec(start.theta, distance=lambda i, j: np.where(i - j < size, i - j, i // group - j // group + shift))


def self_extend(start: Start) -> Spec:
    """The smallest group whose largest distance is within 2L/3, with a window of the largest multiple within L/4."""
    for bound in (2 * start.trained / 3, start.trained - 1):
        for group in range(2, start.trained):
            size = max(group, start.trained // 4 // group * group)
            if (LENGTH - 1) // group + size - size // group <= bound:
                return grouped(start, group, size, size - size // group)
    raise AssertionError("no group fits")


def in_bands(start: Start, groups: tuple[int, ...]) -> Spec:
    """A group for each of equally many pairs, and a window of the largest multiple of all within L/8."""
    step = math.lcm(*groups)
    size = max(step, start.trained // 8 // step * step)

    def distance(i: Any, j: Any) -> Any:
        of_pair = [groups[pair * len(groups) // len(start.theta)] for pair in range(len(start.theta))]
        return np.stack([np.where(i - j < size, i - j, i // g - j // g + size - size // g) for g in of_pair], axis=-1)

    return Spec(start.theta, distance=distance)


class Still(nn.Module):
    """The model's rotary module, without rotation."""

    def __init__(self, own: nn.Module) -> None:
        super().__init__()
        self.own = own

    def forward(self, *given: Any, **named: Any) -> Any:
        made = self.own(*given, **named)
        if isinstance(made, Tensor):
            return torch.ones_like(made)
        return torch.ones_like(made[0]), torch.zeros_like(made[1])


class Oracle:
    """A stock model whose attention is computed here."""

    def __init__(self, folder: Path, family: Family) -> None:
        self.family = family
        self.network = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self.name = f"oracle_{next(_numbers)}"
        tower = self.network.model
        self.rotary, self.config = tower.rotary_emb, self.network.config.get_text_config()
        # A call beyond the original length, so that angles that follow the length are those of this one.
        if not family.by_kind:
            self.rotary(torch.zeros(1), torch.arange(LENGTH)[None])
        tower.rotary_emb = Still(self.rotary)
        AttentionInterface.register(self.name, self.attend)
        AttentionMaskInterface.register(self.name, lambda **given: None)
        tower.set_attn_implementation(self.name)
        self.under: list[dict[int, tuple[Spec, float]]] = []
        self.now: dict[int, tuple[Spec, float]] = {}

    def close(self) -> None:
        for registry in (AttentionInterface, AttentionMaskInterface):
            registry._global_mapping.pop(self.name, None)

    def own(self, layer: int) -> tuple[Floats, float, float]:
        """The layer's own frequencies, scale and base."""
        prefix, base = "", BASE
        if self.family.by_kind:
            prefix = f"{self.config.layer_types[layer]}_"
            base = 50.0 if layer in self.family.windows else BASE
        inv_freq = getattr(self.rotary, f"{prefix}inv_freq").double().numpy()
        return inv_freq, float(getattr(self.rotary, f"{prefix}attention_scaling", 1.0)), base

    def start(self, layer: int, over: str) -> tuple[Start, float]:
        theta, scale, base = self.own(layer)
        if over == "scaled":
            return Start(theta, base, TRAINED, layer), scale
        plain = base ** (-2 * np.arange(len(theta)) / (2 * len(theta)))
        still = np.arange(len(theta)) >= int(self.family.still * len(theta))
        return Start(np.where(still, 0.0, plain), base, self.family.original, layer), 1.0

    def set(self, name: str, over: str = "scaled", everywhere: bool = False) -> int:
        """Apply a method; the number of its passes."""
        self.under = []
        for layer in range(4):
            start, scale = self.start(layer, over)
            found = specs(name, start)
            if self.family.by_kind and layer in self.family.windows and not everywhere:
                theta, scale, _ = self.own(layer)
                found = [Spec(theta) for _ in found]
            for number, spec in enumerate(found):
                self.under += [{}] * (number + 1 - len(self.under))
                self.under[number] = {**self.under[number], layer: (spec, scale)}
        return len(self.under)

    @torch.inference_mode()
    def logits(self, tokens: NDArray[np.int64]) -> Tensor:
        """[T, vocabulary], of several passes as their most certain one is weighted (2312.04455)."""
        found = []
        for now in self.under:
            self.now = now
            found.append(self.network(torch.from_numpy(tokens)[None], use_cache=False).logits[0])
        stacked = torch.stack(found).double()
        return (stacked * stacked.max(-1, keepdim=True).values.softmax(0)).sum(0)

    def attend(
        self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **given: Any
    ) -> tuple[Tensor, None]:
        layer = int(module.layer_idx)  # type: ignore[arg-type]
        spec, own_scale = self.now[layer]
        q, k, v = (each[0].double().numpy() for each in (query, key, value))
        k, v = (np.repeat(each, len(q) // len(each), axis=0) for each in (k, v))
        scaling = given.get("scaling") or q.shape[-1] ** -0.5
        i, j = np.arange(q.shape[1])[:, None], np.arange(k.shape[1])[None, :]
        seen = j <= i
        if spec.seen is not None:
            seen &= spec.seen(i, j)
        if layer in self.family.windows:
            chunked = self.config.layer_types[layer] == "chunked_attention"
            seen &= i // WINDOW == j // WINDOW if chunked else i - j < WINDOW
        away = i - j if spec.distance is None else spec.distance(i, j)
        heads, kv_heads = len(q), key.shape[1]
        ratios = np.ones(heads)
        if spec.ratios:
            ratios = self._ratios(q, k, spec, own_scale, layer, scaling, kv_heads)
        out = np.zeros((heads, q.shape[1], v.shape[2]))
        sinks = given.get("s_aux")
        for head in range(heads):
            logits = self._logits(q[head], k[head], spec, own_scale, away / ratios[head], layer) * scaling
            if spec.sharp is not None:
                logits *= spec.sharp(i)
            if (cap := given.get("softcap")) is not None:
                logits = cap * np.tanh(logits / cap)
            powers = np.where(seen, np.exp(logits - logits.max()), 0.0)
            total = powers.sum(1, keepdims=True)
            if sinks is not None:
                total = total + math.exp(float(sinks[head]) - logits.max())
            out[head] = powers / total @ v[head]
        made = torch.from_numpy(out).to(query.dtype).transpose(0, 1)[None]
        return made.contiguous(), None

    def _logits(self, q: Floats, k: Floats, spec: Spec, own: float, away: Any, layer: int) -> Floats:
        if layer in self.family.without:
            return q @ k.T
        pairs, offset = len(spec.theta), self.family.offset
        inside = slice(offset, offset + 2 * pairs)
        first, second = [], []
        for vectors in (q[:, inside], k[:, inside]):
            half = self.family.layout == "half"
            first.append(vectors[:, :pairs] if half else vectors[:, ::2])
            second.append(vectors[:, pairs:] if half else vectors[:, 1::2])
        rest = np.delete(q, np.s_[inside], axis=1) @ np.delete(k, np.s_[inside], axis=1).T
        rotated = np.zeros_like(rest)
        for pair, theta in enumerate(spec.theta):
            q1, q2, k1, k2 = (
                first[0][:, pair, None],
                second[0][:, pair, None],
                first[1][None, :, pair],
                second[1][None, :, pair],
            )
            turn = theta * (away if away.ndim == 2 else away[:, :, pair])
            rotated += (q1 * k1 + q2 * k2) * np.cos(turn) + (q1 * k2 - q2 * k1) * np.sin(turn)
        return np.asarray((own * spec.scale) ** 2 * rotated + rest)

    def _ratios(
        self, q: Floats, k: Floats, spec: Spec, own: float, layer: int, scaling: float, kv_heads: int
    ) -> Floats:
        """The most aware key head gets 1.2, the least aware 1.8; as many query heads share each."""
        total, group = k.shape[1], len(q) // kv_heads
        away = total - 1 - np.arange(total)
        noticed = []
        for head in range(kv_heads):
            count = 0
            for each in range(head * group, (head + 1) * group):
                logits = self._logits(q[each, -1:], k[each], spec, own, away[None], layer)[0] * scaling
                weights = np.exp(logits - logits.max())
                count += int((weights / weights.sum() > 3 / total).sum())
            noticed.append(count)
        order = sorted(range(kv_heads), key=lambda head: -noticed[head])
        ratios = np.linspace(1.2, 1.8, kv_heads)
        found = np.zeros(kv_heads)
        for rank, head in enumerate(order):
            found[head] = ratios[rank]
        return np.repeat(found, group)
