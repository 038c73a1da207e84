"""What `assert_rope` and `identify` say of real faults: python tools/rope_faults.py results/benchmarks/rope_faults.md

Twelve faults of trainers and engines, reported in public from 2025 to 2026, each made anew from its thread: with
transformers, on a rotary module that computes as the engine did, or on an engine behind a server. Then 40 healthy
set-ups of transformers are asserted after a forward pass.
"""

import argparse
import contextlib
import math
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parents[1]))

from lexbench.backends.hf.exact.assert_rope import assert_rope
from lexbench.backends.hf.exact.extended import model_of
from lexbench.backends.rope_causes import RopeMismatch
from tests.backends import scripted
from tests.parts.serving.plain_server import PlainServer
from tools import serving, sides

TRAINED, LENGTH, DIMS = 2048, 8192, 64
SIZES: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 2 * DIMS,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": DIMS,
    "max_position_embeddings": LENGTH,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": TRAINED}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": TRAINED,
}
ABOUT = """\
Each fault is made anew from its public thread of 2025 or 2026: those of trainers with transformers, the arithmetic
of engines in a rotary module of torch, faults of caches in an engine of transformers behind a server. An engine
in C++, Rust or Metal has no module to read: `identify` asks it behind a server, and needs texts that show the fault.
float16 holds all positions up to 2,048, and fast math is far below rounding there, so both are asked of a module alone.
Faults of caches show by next tokens; where an engine reads its cache for prompt log-probabilities, by these, too."""
Computed = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""Cos and sin, [T, pairs] each, of positions [T] and frequencies [pairs]."""


def model_with(rope: dict[str, Any], kind: str = "llama", **sizes: Any) -> Any:
    """A tiny random model of transformers with RoPE parameters."""
    config = transformers.AutoConfig.for_model(kind, **{**SIZES, **sizes}, rope_parameters=rope)
    return transformers.AutoModelForCausalLM.from_config(config)


class EngineRotary(nn.Module):
    """A rotary module that computes cos and sin as an engine does.

    Args:
        config: of the checkpoint.
        inv_freq: [pairs] radians per token.
        computed: cos and sin of positions and frequencies.
        scale: of cos and sin.
    """

    def __init__(self, config: Any, inv_freq: Tensor, computed: Computed, scale: float = 1.0) -> None:
        super().__init__()
        self.config, self.computed, self.scale = config, computed, scale
        self.inv_freq: Tensor
        self.register_buffer("inv_freq", inv_freq, persistent=False)

    def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Cos and sin, [1, T, 2 pairs]."""
        cos, sin = self.computed(position_ids[0], self.inv_freq)
        return self.scale * torch.cat([cos, cos], -1)[None], self.scale * torch.cat([sin, sin], -1)[None]


def frequencies(base: float) -> Tensor:
    """[pairs] of plain RoPE, in float32."""
    return 1.0 / base ** (torch.arange(0, DIMS, 2, dtype=torch.float32) / DIMS)


def in_float32(positions: Tensor, inv_freq: Tensor) -> tuple[Tensor, Tensor]:
    """Cos and sin in float32."""
    angles = torch.outer(positions.float(), inv_freq.float())
    return angles.cos(), angles.sin()


def by_half_precision(dtype: torch.dtype, positions_too: bool) -> Computed:
    """Angles in half precision, of positions and frequencies in it, or of those in float32."""

    def computed(positions: Tensor, inv_freq: Tensor) -> tuple[Tensor, Tensor]:
        parts = (positions, inv_freq) if not positions_too else (positions.to(dtype), inv_freq.to(dtype))
        angles = (parts[0][:, None] * parts[1]).to(dtype)
        return angles.cos(), angles.sin()

    return computed


def by_fast_math(positions: Tensor, inv_freq: Tensor) -> tuple[Tensor, Tensor]:
    """As CUDA's __cosf and __sinf reduce an angle: times 1 / 2 pi in float32, and the fraction of a turn."""
    turns = torch.outer(positions.float(), inv_freq) * torch.tensor(1 / (2 * math.pi), dtype=torch.float32)
    angles = 2 * math.pi * (turns.double() % 1.0)
    return angles.cos().float(), angles.sin().float()


# the faults


@dataclass(frozen=True, kw_only=True)
class RealFault:
    """A fault of a public thread, and how it is made anew."""

    thread: str
    """Repository and number."""
    was: str
    seen: str
    """Effect that users saw, by the thread."""
    cause: str
    """Pattern that the cause must match, to count as named."""
    ask: Callable[[], None] | None = None
    """Asserts the RoPE of what was made anew; None: the fault is in no rotary module."""
    engine: Callable[[], serving.Engine] | None = None
    """Makes an engine with it, to ask behind a server; None: it has no such."""
    plain: Callable[[], PlainServer] | None = None
    """Makes an engine that tells its likeliest next tokens only, with the fault in its cache; None: it has no such."""

    @property
    def link(self) -> str:
        """The thread in Markdown; GitHub leads from issues to pull requests."""
        repository, number = self.thread.split("#")
        return f"[{self.thread}](https://github.com/{repository}/issues/{number})"


def assert_soup() -> None:
    """The config is changed once the model is loaded."""
    model = model_with({"rope_type": "default", "rope_theta": 10_000.0}, max_position_embeddings=TRAINED)
    model.config.rope_parameters = {**YARN, "rope_theta": 10_000.0}
    assert_rope(model, length=LENGTH)


def assert_deepspeed() -> None:
    """The base is looked for where transformers 4 had it."""
    config = model_with({"rope_type": "default", "rope_theta": 1e6}, "qwen2").config
    assert_rope(EngineRotary(config, frequencies(getattr(config, "rope_theta", 10_000.0)), in_float32), length=LENGTH)


def assert_unsloth() -> None:
    """A dict without a base replaces the checkpoint's scaling."""
    checkpoint = model_with(LLAMA3)
    assert_rope(model_with({"rope_type": "linear", "factor": 2.0}), facts=model_of(checkpoint, None), length=LENGTH)


def assert_mlx_vlm() -> None:
    """A plain RoPE with the base of the config, whose scaling it never gets."""
    config = model_with(LLAMA3).config
    assert_rope(EngineRotary(config, frequencies(config.rope_parameters["rope_theta"]), in_float32), length=LENGTH)


def assert_sglang() -> None:
    """The scaling is found, the base beside it is not."""
    config = model_with({**YARN, "rope_theta": 1e6}, "qwen3").config
    lost = {**config.rope_parameters, "rope_theta": getattr(config, "rope_theta", 10_000.0)}
    made = model_with(lost, "qwen3").model.rotary_emb
    assert_rope(EngineRotary(config, made.inv_freq, in_float32, made.attention_scaling), length=LENGTH)


def assert_candle() -> None:
    """Positions, frequencies and angles in bfloat16."""
    config = model_with({"rope_type": "default", "rope_theta": 1e6}, "qwen2").config
    computed = by_half_precision(torch.bfloat16, positions_too=True)
    assert_rope(EngineRotary(config, frequencies(1e6), computed), length=16_384)


def candle_engine() -> serving.Engine:
    """The same in an engine."""

    def weights(network: Any) -> None:
        computed = by_half_precision(torch.bfloat16, positions_too=True)
        inv_freq = network.model.rotary_emb.inv_freq
        network.model.rotary_emb = EngineRotary(network.config, inv_freq, computed)

    return serving.Engine(rope={"rope_type": "default", "rope_theta": 10_000.0}, weights=weights)


def assert_mlx_lm() -> None:
    """Angles in float16 of positions in float32."""
    config = model_with({"rope_type": "default", "rope_theta": 1e7}, "qwen3").config
    computed = by_half_precision(torch.float16, positions_too=False)
    assert_rope(EngineRotary(config, frequencies(1e7), computed), length=524_288)


def assert_cactus() -> None:
    """Positions, frequencies and angles in float16."""
    config = model_with({"rope_type": "default", "rope_theta": 1e6}, "qwen3").config
    computed = by_half_precision(torch.float16, positions_too=True)
    assert_rope(EngineRotary(config, frequencies(1e6), computed), length=16_384)


def assert_imp() -> None:
    """Sine and cosine by fast math."""
    config = model_with({"rope_type": "default", "rope_theta": 1e6}, "qwen3").config
    assert_rope(EngineRotary(config, frequencies(1e6), by_fast_math), length=131_072)


def assert_vllm() -> None:
    """Dynamic scaling whose trained length is the length that is served: its base never changes."""
    config = model_with({"rope_type": "dynamic", "rope_theta": 10_000.0, "factor": 4.0}).config
    served = trained = config.max_position_embeddings
    factor = config.rope_parameters["factor"]
    base = 10_000.0 * (factor * served / trained - (factor - 1)) ** (DIMS / (DIMS - 2))
    module = EngineRotary(config, frequencies(base), in_float32)
    assert_rope(module, "dynamic_ntk", factor=factor, trained_length=TRAINED, length=LENGTH)


class HostTier:
    """Caches of whole prompts: a few on the device, others on the host, which restores another prompt's states."""

    def __init__(self, prompts: int) -> None:
        self.prompts = prompts
        self.device: list[serving.Tokens] = []
        self.host: list[serving.Tokens] = []

    def __call__(self, engine: serving.Engine, tokens: serving.Tokens) -> tuple[serving.Tokens, list[int]]:
        """What is read in place of a prompt."""
        read = tokens
        if tokens in self.device:
            self.device.remove(tokens)
        elif tokens in self.host:
            self.host.remove(tokens)
            others = [each for each in self.host if len(each) >= len(tokens)]
            read = [*(others or [tokens])[-1][: len(tokens) - 1], tokens[-1]]
        self.device.append(tokens)
        if len(self.device) > self.prompts:
            self.host.append(self.device.pop(0))
        return read, list(range(len(read)))


class ResumedPrefix:
    """Caches of prefixes in blocks: the rest of a prompt begins at position 0 again."""

    def __init__(self, block: int) -> None:
        self.block = block
        self.known: list[serving.Tokens] = []

    def __call__(self, engine: serving.Engine, tokens: serving.Tokens) -> tuple[serving.Tokens, list[int]]:
        """The prompt as it is, at the positions that a hit leaves."""
        hit = max((_common(tokens[:-1], each) for each in self.known), default=0) // self.block * self.block
        engine.places = lambda places: torch.where(places < hit, places, places - hit)
        self.known.append(tokens)
        return tokens, list(range(len(tokens)))


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """Length of the prefix that two prompts share."""
    differ = (place for place, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
    return next(differ, min(len(one), len(other)))


REAL_FAULTS = (
    RealFault(
        thread="MakazhanAlpamys/Soup#793",
        was="the scaling is written into the config once the model is loaded",
        seen="frequencies and logits byte for byte as before, and the words that long context is enabled",
        cause="^scaling not applied",
        ask=assert_soup,
    ),
    RealFault(
        thread="deepspeedai/DeepSpeed#8345",
        was="`getattr(config, 'rope_theta', default)`, with transformers 5, in nine models",
        seen="the base of config.json never reaches the kernel",
        cause="base fallen back to 10,000, not 1,000,000",
        ask=assert_deepspeed,
    ),
    RealFault(
        thread="unslothai/unsloth#7028",
        was="a linear scaling without a base replaces llama3's when a text may be longer than the context",
        seen="perplexity of a passage 13.8 at position 0, 11,316 at 7,800, 12,632 at 130,000; right is 10.2",
        cause="^linear scaling with factor 2 in place of .*llama3.*, and base fallen back to 10,000, not 500,000$",
        ask=assert_unsloth,
    ),
    RealFault(
        thread="Blaizzy/mlx-vlm#1710",
        was="ten models build a plain RoPE and pass it no scaling (Llama 3.2 Vision: llama3)",
        seen="nothing at position 0; rotated vectors have a cosine of 0.76 with the right ones at 8,192",
        cause="^scaling not applied",
        ask=assert_mlx_vlm,
    ),
    RealFault(
        thread="sgl-project/sglang#14745",
        was="`rope_theta` is no longer at the top of the config, its scaling is found",
        seen="wrong results, or errors, of Qwen3 and others with transformers 5",
        cause="^base fallen back to 10,000, not 1,000,000$",
        ask=assert_sglang,
    ),
    RealFault(
        thread="huggingface/candle#3520",
        was="positions and frequencies are cast to bfloat16 before their product (Qwen2)",
        seen="embeddings of long texts diverge; position 15,962 becomes 15,936 or 15,968",
        cause="^angles (computed )?in bfloat16$",
        ask=assert_candle,
        engine=candle_engine,
    ),
    RealFault(
        thread="ml-explore/mlx-lm#1076",
        was="rotation in float16 (Qwen3-Next; made anew: angles in it)",
        seen="beyond 262,000 tokens neighbouring positions are the same",
        cause="^angles computed in float16$",
        ask=assert_mlx_lm,
    ),
    RealFault(
        thread="cactus-compute/cactus#688",
        was="position times frequency in float16",
        seen="Qwen3 and Gemma write garbled text past 6,000 tokens",
        cause="^angles computed in float16$",
        ask=assert_cactus,
    ),
    RealFault(
        thread="kekzl/imp#1325",
        was="sine and cosine by fast math (`--use_fast_math`)",
        seen="cos and sin off by 3e-6 at position 40, 1e-2 at 131,071; tests ended at position 40",
        cause="fast math",
        ask=assert_imp,
    ),
    RealFault(
        thread="vllm-project/vllm#41277",
        was="dynamic scaling takes the served length for the trained one where no other is stated",
        seen="no report: when it was run, `rope_type: dynamic` left the base as it was",
        cause=r"dynamic.* does nothing",
        ask=assert_vllm,
    ),
    RealFault(
        thread="sgl-project/sglang#39830",
        was="states evicted to the host and restored are those of another pass",
        seen="20 of 20 such hits answered wrongly, 10 of 10 cold ones and 10 of 10 hits on the device rightly",
        cause="evicted from a cache and restored are others",
        engine=lambda: serving.Engine(edit=HostTier(4)),
        plain=lambda: PlainServer(edit=HostTier(4)),
    ),
    RealFault(
        thread="tenstorrent/vllm#415",
        was="prefill that resumes behind cached blocks (made anew: its positions begin at 0 again)",
        seen="a prompt is answered rightly at first and degenerates on each cache hit",
        cause="hits of a prefix cache",
        engine=lambda: serving.Engine(edit=ResumedPrefix(64)),
        plain=lambda: PlainServer(places=lambda places: places - places[0]),
    ),
)


@dataclass(frozen=True)
class Verdict:
    """What lexbench says of a fault."""

    by: str
    said: str
    named: bool
    seconds: float
    """CPU time, of the engine as well."""


def verdict_of_assertion(fault: RealFault) -> Verdict:
    """By assert_rope, the making of the model included."""
    assert fault.ask is not None
    begun = time.process_time()
    try:
        fault.ask()
        cause = "nothing"
    except RopeMismatch as error:
        cause = error.cause or "no likely cause"
    return Verdict("assert_rope", cause, re.search(fault.cause, cause) is not None, time.process_time() - begun)


def verdict_behind_server(fault: RealFault, reference: Path) -> Verdict:
    """By identify, of the engine behind a server."""
    assert fault.engine is not None
    with serving.served(fault.engine()) as server:
        return _verdict_at("identify", fault, server.url, reference)


def verdict_by_next_tokens(fault: RealFault, reference: Path) -> Verdict:
    """By identify, of the engine that tells next tokens only."""
    assert fault.plain is not None
    with scripted.serving(fault.plain().answer) as server:
        # Its cache holds one prompt: others between the prefixes of a text would leave no hits.
        return _verdict_at("identify, by next tokens", fault, server.url, reference, "backend.concurrency=1")


def _verdict_at(by: str, fault: RealFault, url: str, reference: Path, *words: str) -> Verdict:
    begun = time.process_time()
    said = re.sub("; (told by|holds up to) [^;]*", "", serving.named_at(url, reference, *words)[1])
    return Verdict(by, said, re.search(fault.cause, said) is not None, time.process_time() - begun)


def write_pack(file: Path, length: int, n: int) -> None:
    """The reference of the engine's checkpoint."""
    words = ["fingerprint", "model=lexlet", "corpus=stdlib", f"length={length}", f"n={n}", "--out", str(file)]
    code, said = serving.quietly(words)
    assert code == 0, said


# healthy set-ups

PLAIN = {"rope_type": "default", "rope_theta": 1e6}
KINDS = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10_000.0,
    "short_factor": [1.0] * (DIMS // 2),
    "long_factor": [1.0 + pair / 4 for pair in range(DIMS // 2)],
    "original_max_position_embeddings": TRAINED,
}
HEALTHY_ROPES: dict[str, dict[str, Any]] = {
    "llama": LLAMA3,
    "qwen2": {**YARN, "rope_theta": 1e6},
    "qwen3": {**YARN, "rope_theta": 1e6},
    "mistral": PLAIN,
    "gemma": PLAIN,
    "olmo": PLAIN,
    "gemma3_text": KINDS,
    "phi": {"rope_type": "linear", "factor": 3.0, "rope_theta": 10_000.0},
    "phi3": LONGROPE,
    "gpt_neox": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10_000.0},
    "olmo2": {"rope_type": "linear", "factor": 4.0, "rope_theta": 500_000.0},
    "granite": PLAIN,
    "cohere": PLAIN,
    "stablelm": PLAIN,
    "starcoder2": PLAIN,
    "glm": PLAIN,
    "nemotron": PLAIN,
    "mixtral": LLAMA3,
    "smollm3": {**YARN, "rope_theta": 2e6},
    "exaone4": LLAMA3,
}
"""RoPE parameters by families of transformers."""
MORE_SIZES: dict[str, dict[str, Any]] = {
    "gemma3_text": {"layer_types": list(KINDS)},
    "phi3": {"original_max_position_embeddings": TRAINED},
}
HALF_DTYPES = (torch.bfloat16, torch.float16)


def healthy_setups() -> Iterator[tuple[str, Any]]:
    """Each family in float32 and in a half precision, after forward passes by two kernels, of 1 text and of 3."""
    for place, (kind, rope) in enumerate(HEALTHY_ROPES.items()):
        for other, dtype in enumerate((torch.float32, HALF_DTYPES[place % 2])):
            kernel, texts = ("eager", "sdpa")[(place + other) % 2], (1, 3)[other]
            torch.manual_seed(0)
            model = _loaded(rope, kind, dtype, kernel)
            with torch.no_grad():
                model(torch.randint(3, 64, (texts, 40 + place)))
            yield f"{kind}, {dtype}, {kernel}, {texts} texts", model


def _loaded(rope: dict[str, Any], kind: str, dtype: torch.dtype, kernel: str) -> Any:
    """As from_pretrained makes it: weights in the dtype, frequencies in float32."""
    sizes = {**SIZES, **MORE_SIZES.get(kind, {})}
    config = transformers.AutoConfig.for_model(kind, **sizes, rope_parameters=dict(rope))
    return transformers.AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation=kernel).eval()


def false_alarms() -> tuple[int, list[str]]:
    """Number of healthy set-ups, and what is said of those that do not pass."""
    count, said = 0, []
    for label, model in healthy_setups():
        count += 1
        try:
            assert_rope(model, length=LENGTH, trained_length=TRAINED)
        except RopeMismatch as error:
            said.append(f"{label}: {error}")
    return count, said


def main(given: list[str] | None = None) -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("page", type=Path, help="Markdown file to write")
    page = parser.parse_args(given).page
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as scratch, page.open("w") as out, contextlib.redirect_stdout(out):
        sides.header("Real faults of RoPE, made anew")
        print(ABOUT)
        reference = Path(scratch) / "pack.npz"
        write_pack(reference, length=384, n=8)
        sides.table(":thread", ":fault", ":users saw", ":lexbench says", "CPU seconds")
        named = 0
        for fault in REAL_FAULTS:
            verdicts = [verdict_of_assertion(fault)] if fault.ask else []
            verdicts += [verdict_behind_server(fault, reference)] if fault.engine else []
            verdicts += [verdict_by_next_tokens(fault, reference)] if fault.plain else []
            named += all(each.named for each in verdicts)
            said = "<br>".join(f"`{each.by}`: {each.said}" for each in verdicts)
            seconds = "<br>".join(f"{each.seconds:.2f}" for each in verdicts)
            sides.row(fault.link, fault.was, fault.seen, said, seconds)
        count, alarms = false_alarms()
        said = f"False alarms of `assert_rope`: {len(alarms)} of {count} healthy set-ups: {len(HEALTHY_ROPES)} families"
        print(f"\nNamed: {named} of {len(REAL_FAULTS)}.\n\n{said} of")
        print(
            "transformers, each in float32 and in bfloat16 or float16, after forward passes of 1 text and of 3, by the"
        )
        print("eager kernel and by SDPA.")
        print(*alarms, sep="\n", end="")


if __name__ == "__main__":
    main()
