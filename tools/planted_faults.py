"""Faults without sizes of `planted.md`: what `verify`, `assert_rope` and `identify` say of each once."""

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch import Tensor

import lexbench
from lexbench.backends.rope_causes import RopeMismatch
from lexbench.core.record import Refused
from tools import engine_rope, planted_verify, serving
from tools.engine_rope import DIMS, LENGTH, LLAMA3, LONGROPE, YARN, EngineRotary, in_float32, model_with
from tools.planted_readings import BASE, PAIRS, TRAINED, by_head, frequencies, turned_back
from tools.wrong_servers import TOKENIZER, in_front, second_bos

PLAIN = {"rope_type": "default", "rope_theta": 10_000.0}
YARN_ROPE = {**YARN, "rope_theta": 10_000.0}
SHORT = engine_rope.TRAINED
"""Trained length of the tiny models."""


class Verdict(dict[str, Any]):
    """A row: whether it was found, and what was said."""


def tables(rope: Mapping[str, Any], inv_freq: Tensor, scale: float = 1.0, computed: Any = in_float32) -> EngineRotary:
    """An engine's rotary module beside the config that it should follow."""
    return EngineRotary(model_with(dict(rope)).config, inv_freq, computed, scale)


def rotary_of(rope: Mapping[str, Any]) -> Any:
    """The module that transformers makes of RoPE parameters."""
    return model_with(dict(rope)).model.rotary_emb


def in_half_exponents() -> EngineRotary:
    """1 / base^(2i / d), the exponent in float16, which holds those of 64 dimensions exactly: a head of 96."""
    config = model_with(PLAIN, head_dim=96).config
    exponents = torch.arange(0, 96, 2, dtype=torch.float16) / torch.tensor(96, dtype=torch.float16)
    return EngineRotary(config, 1.0 / 10_000.0 ** exponents.float(), in_float32)


def exchanged_pairs(inv_freq: Tensor, one: int, other: int) -> Tensor:
    """Two pairs in each other's place."""
    found = inv_freq.clone()
    found[[one, other]] = inv_freq[[other, one]]
    return found


def clamped(positions: Tensor, inv_freq: Tensor) -> tuple[Tensor, Tensor]:
    """A table of 4,096 positions."""
    return in_float32(positions.clamp(max=4095), inv_freq)


def negated(positions: Tensor, inv_freq: Tensor) -> tuple[Tensor, Tensor]:
    """The sine with the other sign."""
    cos, sin = in_float32(positions, inv_freq)
    return cos, -sin


def one_off(inv_freq: Tensor, place: int) -> Tensor:
    """One pair turns by 1 % more."""
    found = inv_freq.clone()
    found[place] *= 1.01
    return found


def exchanged_llama3() -> Tensor:
    """The frequencies of llama3's formula with low and high factor in each other's place."""
    plain, slow = frequencies_of(500_000.0), frequencies_of(500_000.0) / 8.0
    low, high = 4.0, 1.0
    turns = SHORT * plain / (2 * math.pi)
    smooth = (turns - low) / (high - low)
    return torch.where(turns < low, slow, torch.where(turns > high, plain, (1 - smooth) * slow + smooth * plain))


def frequencies_of(base: float) -> Tensor:
    """[pairs] of the tiny models."""
    return engine_rope.frequencies(base)


def longest_so_far() -> Tensor:
    """Dynamic NTK's frequencies of 16,384 tokens."""
    base = 10_000.0 * (4.0 * 16_384 / SHORT - 3.0) ** (DIMS / (DIMS - 2))
    return frequencies_of(base)


def scale_of(rope: Mapping[str, Any]) -> float:
    """What transformers multiplies cos and sin by."""
    return float(rotary_of(rope).attention_scaling)


def asserted(module: Any, *method: str, **named: Any) -> Callable[[], None]:
    """An assertion that should fail."""
    return lambda: lexbench.assert_rope(module(), *method, length=LENGTH, **named)


NTK4 = {"factor": 4, "trained_length": SHORT}
YARN_UNTRUNCATED = {**YARN_ROPE, "truncate": False}
YARN_OWN_FACTOR = {**YARN_ROPE, "attention_factor": 1.3}
ASSERT_ROPE: dict[str, tuple[str, Callable[[], None]]] = {
    "A01": ("exponent by float16 arithmetic", asserted(in_half_exponents)),
    "A02": ("base 1 % above", asserted(lambda: tables(PLAIN, frequencies_of(10_100.0)))),
    "A03": ("ntk exponent lost", asserted(lambda: tables(PLAIN, frequencies_of(40_000.0)), "ntk", **NTK4)),
    "A04": (
        "yarn beta_fast 16",
        asserted(lambda: tables(YARN_ROPE, rotary_of({**YARN_ROPE, "beta_fast": 16.0}).inv_freq, scale_of(YARN_ROPE))),
    ),
    "A05": (
        "yarn truncates where the config does not",
        asserted(lambda: tables(YARN_UNTRUNCATED, rotary_of(YARN_ROPE).inv_freq, scale_of(YARN_ROPE))),
    ),
    "A06": (
        "attention_factor of the config ignored",
        asserted(lambda: tables(YARN_OWN_FACTOR, rotary_of(YARN_ROPE).inv_freq, scale_of(YARN_ROPE))),
    ),
    "A07": (
        "mscale applied twice",
        asserted(lambda: tables(YARN_ROPE, rotary_of(YARN_ROPE).inv_freq, scale_of(YARN_ROPE) ** 2)),
    ),
    "A08": ("llama3: low and high factor exchanged", asserted(lambda: tables(LLAMA3, exchanged_llama3()))),
    "A09": (
        "llama3: original length 8,192",
        asserted(
            lambda: tables(LLAMA3, rotary_of({**LLAMA3, "original_max_position_embeddings": 8192}).inv_freq),
        ),
    ),
    "A10": (
        "longrope: short factors beyond the original length",
        asserted(lambda: tables(LONGROPE, frequencies_of(10_000.0), scale_of(LONGROPE))),
    ),
    "A11": (
        "linear: factor applied to the base",
        asserted(
            lambda: tables({**PLAIN, "rope_type": "linear", "factor": 4.0}, frequencies_of(40_000.0)),
            trained_length=SHORT,
        ),
    ),
    "A12": (
        "dynamic: frequencies of the longest text so far",
        asserted(lambda: tables(PLAIN, longest_so_far()), "dynamic_ntk", **NTK4),
    ),
    "A13": ("table ends at 4,096", asserted(lambda: tables(PLAIN, frequencies_of(10_000.0), computed=clamped))),
    "A14": ("pairs 3 and 4 exchanged", asserted(lambda: tables(PLAIN, exchanged_pairs(frequencies_of(1e4), 3, 4)))),
    "A15": ("sin negated", asserted(lambda: tables(PLAIN, frequencies_of(10_000.0), computed=negated))),
    "A16": ("one pair off by 1 %", asserted(lambda: tables(PLAIN, one_off(frequencies_of(10_000.0), 7)))),
}


def verdict_of_assertion(row: str) -> Verdict:
    """Found: it raises RopeMismatch."""
    was, ask = ASSERT_ROPE[row]
    try:
        ask()
    except RopeMismatch as error:
        return Verdict(was=was, found=True, said=error.cause or "no likely cause")
    except Refused as error:
        return Verdict(was=was, found=False, said=f"refused: {error.reason}")
    return Verdict(was=was, found=False, said="nothing")


# behind a server


@dataclass(frozen=True)
class Planted:
    """An engine's fault; `cause` must be named, too, where there is one."""

    was: str
    fields: Mapping[str, Any]
    cause: str = ""


def of_projection(name: str, change: Callable[[Tensor, int], Tensor], layers: range = range(4)) -> dict[str, Any]:
    """A change of what a projection of queries or keys gives."""

    def weights(network: Any) -> None:
        for place in layers:
            part = getattr(network.model.layers[place].self_attn, name)
            part.register_forward_hook(lambda module, given, made: change(made, made.shape[1]))

    return {"weights": weights}


def log_scaled(made: Tensor, count: int) -> Tensor:
    """Queries times ln(i + 1) / ln T, at least 1; of prompts, not of new tokens."""
    if count == 1:
        return made
    scale = (torch.arange(count) + 1.0).log() / math.log(TRAINED)
    return made * scale.clamp(min=1.0)[None, :, None].to(made.dtype)


def three_bits(made: Tensor, count: int) -> Tensor:
    """A scale for each token and head."""
    return serving.bits(3, (-1,))(by_head(made)).flatten(-2)


def louder(logits: Tensor) -> Tensor:
    """300 tokens, drawn once."""
    chosen = torch.randperm(logits.shape[-1], generator=torch.Generator().manual_seed(0))[:300]
    found = logits.clone()
    found[..., chosen] += 0.3
    return found


def neighbours_in_layer_2(network: Any) -> None:
    """Pairs of neighbours rotate."""
    order = torch.arange(2 * PAIRS).reshape(PAIRS, 2).T.flatten()
    attention = network.model.layers[2].self_attn
    for part in (attention.q_proj, attention.k_proj):
        rows = part.weight.data.reshape(-1, 2 * PAIRS, part.weight.shape[1])
        part.weight.data = rows[:, order].reshape(part.weight.shape).clone()


def plain_layer(network: Any) -> None:
    """Layer 2 keeps plain RoPE."""
    turned_back(network, torch.from_numpy(frequencies(BASE) - frequencies(serving.BASE)), [2], range(4))


def by_bfloat16(network: Any) -> None:
    """Angles in bfloat16, of positions and frequencies in it."""
    computed = engine_rope.by_half_precision(torch.bfloat16, positions_too=True)
    network.model.rotary_emb = EngineRotary(network.config, network.model.rotary_emb.inv_freq, computed)


def as_edit(parts: Callable[[list[int]], Any]) -> dict[str, Any]:
    """What is read in place of a prompt, as one of the wrong servers' parts."""
    return serving.edited(lambda engine, tokens: parts(tokens)[0])


def header() -> list[int]:
    """24 tokens of a system prompt."""
    return [int(each) for each in np.asarray(TOKENIZER.encode(8 * "You are a helpful assistant. ").ids)[:24]]


IDENTIFY: dict[str, Planted] = {
    "I01": Planted("softmax scale times 1.1", of_projection("q_proj", lambda made, count: 1.1 * made)),
    "I02": Planted("temperature over positions", of_projection("q_proj", log_scaled)),
    "I03": Planted("logits at temperature 1.1", {"logits": lambda logits: logits / 1.1}),
    "I04": Planted("0.3 added to logits of 300 tokens", {"logits": louder}),
    "I05": Planted("24 tokens in front", as_edit(in_front(header())), "in front|front of|prompt|template"),
    "I06": Planted("BOS doubled", as_edit(second_bos), "BOS|first token|begin"),
    "I07": Planted("BOS lost", serving.FAULTS["BOS lost"], "BOS|first token|begin"),
    "I08": Planted("window of 200", {"seen": lambda i, j: (j <= i) & (i - j < 200)}),
    "I09": Planted("first 4 tokens hidden", {"seen": lambda i, j: (j <= i) & ((j >= 4) | (i < 4))}),
    "I10": Planted("factor 2.2", serving.rope("default", BASE * 2.2 ** (PAIRS / (PAIRS - 1)))),
    "I11": Planted("neighbours rotate in layer 2", {"weights": neighbours_in_layer_2}),
    "I12": Planted("positions of new tokens off by one", {"decoding": 1}),
    "I13": Planted("angles in bfloat16", {"weights": by_bfloat16}),
    "I14": Planted("keys in 3 bits", of_projection("k_proj", three_bits)),
    "I15": Planted("layer 2 keeps plain RoPE", {"weights": plain_layer}),
    "I16": Planted("another prompt's first 64 tokens", serving.edited(serving.before(64))),
}


def write_pack(file: Path) -> None:
    """The list's pack: 8 texts of 256 tokens, and the far one."""
    transformers.utils.logging.disable_progress_bar()
    serving.write_pack(file, length=TRAINED, n=8)


def verdict_behind_server(row: str, reference: Path) -> Verdict:
    """Found: exit code 1, and the cause where it must be named."""
    planted = IDENTIFY[row]
    code, said = serving.named(serving.Engine(**planted.fields), reference, advice=True)
    named = re.search(planted.cause, said) is not None
    return Verdict(was=planted.was, found=code == 1 and named, code=code, said=said)


# all three

ROWS: dict[str, tuple[str, ...]] = {
    "verify": tuple(planted_verify.ROWS),
    "assert_rope": tuple(ASSERT_ROPE),
    "identify": tuple(IDENTIFY),
}
HEALTHY_ENGINES = (
    "bfloat16",
    "float16",
    "float64",
    "weights in 8 bits, a scale a row",
    "noise of 0.02 on logits, seed 0",
    "noise of 0.02 on logits, seed 1",
    "bfloat16, noise of 0.05, seed 0",
    "bfloat16, noise of 0.05, seed 1",
)
"""Of `tools/serving.py`: those that are asked."""


def verdict(name: str, row: str, reference: Path) -> Verdict:
    """What a command says of a fault."""
    if name == "verify":
        planted = planted_verify.ROWS[row]
        said = planted_verify.said_of(planted.method, planted)
        return Verdict(was=f"{planted.method}: {planted.was}", found=said is not None, said=said or "nothing")
    if name == "assert_rope":
        return verdict_of_assertion(row)
    if not reference.exists():
        write_pack(reference)
    return verdict_behind_server(row, reference)


def healthy(name: str, reference: Path, known: Mapping[str, Any]) -> Iterator[tuple[str, bool]]:
    """Healthy set-ups, and whether it alarms; none where the record has some."""
    if any(key.startswith("real ") for key in known):
        return
    if name == "verify":
        for label in planted_verify.HEALTHY:
            yield label, planted_verify.said_of(label) is not None
        return
    if name == "assert_rope":
        for label, model in engine_rope.healthy_setups():
            try:
                lexbench.assert_rope(model, length=LENGTH, trained_length=SHORT)
                yield label, False
            except RopeMismatch:
                yield label, True
        return
    if not reference.exists():
        write_pack(reference)
    for label in HEALTHY_ENGINES:
        yield label, serving.named(serving.Engine(**serving.HEALTHY[label]), reference)[0] != 0
