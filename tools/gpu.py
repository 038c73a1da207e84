"""The GPU campaign, checks first, then figures: python tools/gpu.py

Needs a CUDA device and this repository, with torch, transformers, tokenizers, safetensors, numpy, scipy, pyarrow,
pyyaml, jinja2, httpx2 and tqdm. Compares with lm_eval and vllm where they are installed. Weights are random and made
here, of the shapes of Llama-2-7B, Qwen3-8B and gpt-oss-20b (its attention; the experts are small): nothing is fetched.

    check/kernels    each kernel in each dtype against the definition in float64, at the head shapes of the models
    check/methods    every method on small models of several families: `lexbench verify`'s checks on the device, and
                     its logits against the same weights in float64 on the CPU
    check/paths      what no CPU reaches: batches as one by one, memory that ends, layers spread by a device map
    measure/machine  rates of copies and of a matrix product: what limits everything below
    measure/kernels  whole texts over PyTorch's fused (flash) attention on rotated vectors; a step of writing over one
                     by that
    measure/models   prefill, writing and scoring under methods; memory; the share of the bandwidth's limit
    measure/sides    scoring and writing, against lm_eval's model class and vLLM, on the same tokens

A record is written after each step, so that the command goes on where it stopped: repeat it until it says that all
is done. `--minutes` ends it in time; a step that crashes, or runs past its limit, is recorded, and the next begins in
a new process. The exit code is 1 if a step failed, 3 if some are left. `--show` prints a record's tables.
"""

import argparse
import contextlib
import functools
import gc
import importlib.util
import json
import math
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from lexbench.backends.hf.exact.state import KeptLayer
from lexbench.backends.hf.reading.batches import kept_numbers
from lexbench.core.attention import Attention, Window
from lexbench.kernels import decode, dense, fast, looped
from lexbench.kernels.heads import Rotate
from lexbench.kernels.looped import Loop
from tests.kernels.on_device import on_device
from tools import attention_kernels
from tools.attention_kernels import attentions, rotation, still

FORMAT = 2
"""2: trained lengths, repeats with their spread, and whole texts over the kernel that PyTorch picks."""
ROOT = Path(__file__).parents[1]
LIMIT = 240
"""Seconds that a step may take."""
Found = dict[str, Any]


@dataclass(frozen=True)
class Heads:
    """Shape of attention."""

    heads: int
    kv_heads: int
    head_dim: int
    window: int
    sinks: bool = False


@dataclass(frozen=True)
class Scale:
    """Sizes of a campaign."""

    heads: Mapping[str, Heads]
    """Of measured kernels."""
    odd: Mapping[str, Heads]
    """Further ones, checked alone."""
    checked: int
    """Tokens of a checked kernel."""
    lengths: tuple[int, ...]
    models: Mapping[str, Mapping[str, Any]]
    """Config of each measured model, with its model_type; its trained length lies below all `prefills`, so that methods
    change what they change beyond it."""
    prefills: tuple[int, ...]
    room: int
    """Tokens that are written; the stock loop writes an eighth of them."""
    verified: int
    """Tokens of a checked method."""
    copied: int
    """Bytes of a copy."""
    product: int
    """Rows of a matrix product."""
    repeats: int
    model_repeats: int
    """Of a model's calls."""


METHODS = ("none", "yarn", "log_n", "rerope", "leaky_rerope", "self_extend", "dca", "streaming_llm", "lambda_mask")
"""Those measured: one of each structure of attention."""
LARGE = Scale(
    heads={
        "llama2_7b": Heads(32, 32, 128, 1024),
        "qwen3_8b": Heads(32, 8, 128, 4096),
        "gpt_oss_20b": Heads(64, 8, 64, 128, sinks=True),
    },
    odd={"width_80": Heads(4, 2, 80, 300), "width_20": Heads(4, 1, 20, 300), "width_256": Heads(8, 1, 256, 300)},
    checked=1500,
    lengths=(8192, 32768, 131072),
    models={
        "llama2_7b": {
            "model_type": "llama",
            "vocab_size": 32000,
            "hidden_size": 4096,
            "intermediate_size": 11008,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 32,
            "max_position_embeddings": 4096,
        },
        "qwen3_8b": {
            "model_type": "qwen3",
            **{
                "vocab_size": 151936,
                "hidden_size": 4096,
                "intermediate_size": 12288,
                "num_hidden_layers": 36,
                "head_dim": 128,
            },
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "max_position_embeddings": 4096,
        },
        "gpt_oss_20b": {
            "model_type": "gpt_oss",
            **{
                "num_local_experts": 2,
                "num_experts_per_tok": 1,
                "intermediate_size": 64,
                "max_position_embeddings": 4096,
                "rope_parameters": {"rope_type": "default", "rope_theta": 150000.0},
            },
        },
    },
    prefills=(8192, 32768),
    room=256,
    verified=600,
    copied=1 << 32,
    product=8192,
    repeats=5,
    model_repeats=3,
)
TOY = Scale(
    heads={"toy": Heads(4, 2, 16, 24, sinks=True)},
    odd={"width_20": Heads(2, 1, 20, 9)},
    checked=61,
    lengths=(64,),
    models={
        "toy": {
            "model_type": "qwen3",
            "vocab_size": 2048,
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 2,
            "head_dim": 16,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "max_position_embeddings": 64,
        }
    },
    prefills=(96,),
    room=24,
    verified=90,
    copied=1 << 16,
    product=32,
    repeats=2,
    model_repeats=3,
)
SMALL = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"num_key_value_heads": 4},
    "qwen3": {"num_key_value_heads": 2, "head_dim": 24},
    "gemma3_text": {
        "num_key_value_heads": 1,
        "head_dim": 32,
        "sliding_window": 16,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    },
    "gpt_oss": {
        "num_key_value_heads": 2,
        "head_dim": 32,
        "sliding_window": 16,
        "num_local_experts": 2,
        "num_experts_per_tok": 2,  # all: a router would choose others in another dtype
        "intermediate_size": 16,  # small, so that attention matters
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 1e4,
            "factor": 4.0,
            "original_max_position_embeddings": 16,
        },
    },
}
SPARE = 1 << 30
"""Bytes that remain where memory is to end."""
AGREE = {"bfloat16": 1e-2, "float16": 2e-3, "float32": 2e-5}
"""Largest error of a kernel, as a fraction of the output's norm."""
LOGITS = {"bfloat16": 6e-2, "float32": 1e-3}
"""Largest deviation of a method's logits from float64's, as a fraction of their spread."""


@dataclass
class Campaign:
    """What the steps share."""

    device: str
    scale: Scale
    dtype: torch.dtype
    """Of measured models and kernels."""
    held: tuple[str, Any] = ("", None)
    """The last model that was made."""

    def model(self, name: str) -> Any:
        """A backend of a measured model; replaces the last one."""
        if self.held[0] != name:
            self.held = ("", None)
            gc.collect()
            if self.device == "cuda":
                torch.cuda.empty_cache()
            self.held = (name, backend(self.scale.models[name], self.device, self.dtype, name))
        return self.held[1]


Step = Callable[[Campaign], Found]


def steps(scale: Scale) -> dict[str, Step]:
    """All steps by name, in their order."""
    from lexbench.core import registry

    found: dict[str, Step] = {}
    for name, heads in {**scale.heads, **scale.odd}.items():
        for dtype in AGREE:
            found[f"check/kernels/{name}/{dtype}"] = functools.partial(check_kernels, heads=heads, dtype=dtype)
    methods = registry.registered_names("method")
    for family in FAMILIES:
        for dtype in LOGITS:
            for part, some in enumerate((methods[::2], methods[1::2])):
                call = functools.partial(check_methods, family=family, dtype=dtype, names=some)
                found[f"check/methods/{family}/{dtype}/{part}"] = call
    for path in (together, memory_ends, spread, low_head):
        found[f"check/paths/{path.__name__}"] = path
    found["measure/machine"] = machine
    for length in scale.lengths:
        for name, heads in scale.heads.items():
            for asked in (length, 1):
                call = functools.partial(measure_kernels, heads=heads, length=length, asked=asked)
                found[f"measure/kernels/{name}/{length}/{'whole' if asked > 1 else 'one'}"] = call
    for name in scale.models:
        for method in ("stock", *METHODS):
            found[f"measure/models/{name}/{method}"] = functools.partial(measure_model, name=name, method=method)
        found[f"measure/sides/{name}/lm_eval"] = functools.partial(beside_lm_eval, name=name)
        found[f"measure/sides/{name}/vllm"] = functools.partial(beside_vllm, name=name)
    return found


# what steps are made of


def backend(sizes: Mapping[str, Any], device: str, dtype: torch.dtype, name: str, **more: Any) -> Any:
    """A model of random weights, as `lexbench` runs it."""
    import transformers

    from lexbench.backends.hf.backend import Hf
    from lexbench.backends.hf.exact.extended import model_of
    from lexbench.checkpoints.tokenizer import load_tokenizer

    torch.manual_seed(0)
    given = {key: value for key, value in sizes.items() if key != "model_type"}
    config = transformers.AutoConfig.for_model(sizes["model_type"], **given, **more)
    if dtype == torch.float64:
        config._experts_implementation = "eager"  # the grouped product of experts has no float64
    with torch.device(device):
        network = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype).eval()
    model = model_of(network, config.max_position_embeddings, name)
    return Hf.of(network, model, load_tokenizer(ROOT / "lexbench" / "lexlet"), (), "random")


def small(family: str, device: str, dtype: torch.dtype) -> Any:
    """A small model whose attention matters."""
    sizes = {"model_type": family, **SMALL, **FAMILIES[family]}
    return backend(sizes, device, dtype, family, max_position_embeddings=64, initializer_range=0.1)


def attention_of(name: str, model: Any, length: int) -> Attention | None:
    """A method's Attention; None where it does not apply to the model at all."""
    from lexbench.core.record import Refused
    from lexbench.methods import scaled
    from lexbench.methods.composition import named_method

    given = {"first_layer": 0} if name == "ms_poe" else {}
    try:
        return scaled.attention_of(named_method(name, **given), model, length)
    except (Refused, ValueError):
        return None


def seconds(call: Callable[[], Any], device: str, repeats: int) -> float:
    """Median time of a call, after one that is not timed."""
    return measured(call, device, repeats)[0]


def measured(call: Callable[[], Any], device: str, repeats: int) -> tuple[float, int | None]:
    """Median time of a call, after one that is not timed, and bytes at the peak of all (`peak`)."""
    bytes_held = peak(call, device)
    if bytes_held is None:
        call()
    return statistics.median([timed(call, device) for _ in range(repeats)]), bytes_held


def middle_and_spread(found: Sequence[Mapping[str, float]]) -> Found:
    """Median of each figure of several repeats, and under `spread` what lies between the extremes, as a share of it."""
    middle = {name: statistics.median(each[name] for each in found) for name in found[0]}
    ends = {name: [pick(each[name] for each in found) for pick in (min, max)] for name in middle}
    return {**middle, "spread": {name: (high - low) / (middle[name] or 1.0) for name, (low, high) in ends.items()}}


def timed(call: Callable[[], Any], device: str) -> float:
    """Seconds of one call."""
    wait(device)
    began = time.perf_counter()
    call()
    wait(device)
    return time.perf_counter() - began


def called(make: Callable[[], Callable[[], Any]]) -> Any:
    """Make a call, and call it."""
    return make()()


def measured_of(make: Callable[[], Callable[[], Any]], device: str, repeats: int) -> tuple[float, int | None]:
    """Make a call, and measure it: caches that it brings along go with it."""
    return measured(make(), device, repeats)


def answered(model: Any, questions: list[Any]) -> list[Any]:
    """Answers to questions in batches."""
    return list(model.answer_batch(questions))


def wait(device: str) -> None:
    """Until the device has done what it was told."""
    if device == "cuda":
        torch.cuda.synchronize()


def peak(call: Callable[[], Any], device: str) -> int | None:
    """Bytes that a call allocates at its peak beside what is held; None where that is not known."""
    if device != "cuda":
        return None
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    torch.cuda.synchronize()
    return int(torch.cuda.max_memory_allocated() - before)


def drawn(heads: Heads, asked: int, total: int, batch: int, dtype: torch.dtype, device: str) -> tuple[Tensor, ...]:
    """Queries, keys, values."""
    generator = torch.Generator(device).manual_seed(asked + total)
    counts = (heads.heads, asked), (heads.kv_heads, total), (heads.kv_heads, total)
    return tuple(
        torch.randn(batch, count, tokens, heads.head_dim, generator=generator, device=device).to(dtype)
        for count, tokens in counts
    )


def rotate_of(attention: Attention, width: int) -> Rotate:
    """A mask alone takes a model's own rotated vectors."""
    return still if attention.mask is not None and attention.remap is None else rotation(width)


# checks


@torch.inference_mode()
def check_kernels(campaign: Campaign, heads: Heads, dtype: str) -> Found:
    """Errors of each structure: a whole text, its last third, its last token, also as a step of writing; two texts."""
    total, kind, device = campaign.scale.checked, getattr(torch, dtype), campaign.device
    window, scaling = min(heads.window, total // 3), 1 / math.sqrt(heads.head_dim)
    logits = torch.linspace(-1, 1, heads.heads, device=device) if heads.sinks else None
    found: Found = {}
    for name, attention in attentions(window).items():
        if name.startswith("dense"):
            continue
        turn = rotate_of(attention, heads.head_dim)
        for asked in (total, total // 3, 1):
            q, k, v = drawn(heads, asked, total, 2, kind, device)
            places = torch.arange(total - asked, total, device=device)
            sinks = None if logits is None else logits.to(kind)
            precise = None if sinks is None else sinks.double()
            exact = dense.attend(q.double(), k.double(), v.double(), places, attention, turn, scaling, sinks=precise)
            if asked == 1:
                layer = KeptLayer()
                layer.update(k, v)
                step, spin = decode.DecodeStep(np.array([total, total])), None if turn is still else turn
                got = said(lambda: decode.attend(q, layer, step, attention, spin, scaling, sinks))  # noqa: B023
                found[f"{name}, a step"] = (
                    got if isinstance(got, str) else float((got.double() - exact).norm() / exact.norm())
                )
                for row, form in forms(name, step=True).items():
                    looping = functools.partial(in_a_loop, q, k, v, attention, spin, scaling, sinks, form)
                    got = said(functools.partial(called, looping))
                    found[f"{row}, a loop"] = (
                        got if isinstance(got, str) else float((got.double() - exact).norm() / exact.norm())
                    )
            for row, form in forms(name).items():
                got = said(
                    lambda: fast.attend(q, k, v, places, attention, turn, scaling, sinks, form=form)  # noqa: B023
                )
                found[f"{row}, {asked}"] = (
                    got if isinstance(got, str) else float((got.double() - exact).norm() / exact.norm())
                )
    wrong = [name for name, error in found.items() if isinstance(error, str) or not error <= AGREE[dtype]]
    return {"passed": not wrong, "wrong": wrong, "errors": found}


def forms(name: str, step: bool = False) -> dict[str, fast.Form]:
    """Rows of a structure: our merges, and where they serve Triton kernels (`backend.attention`)."""
    found: dict[str, fast.Form] = {name: "merged"}
    has_triton = torch.cuda.is_available() and importlib.util.find_spec("triton") is not None
    if has_triton and (step or name.startswith(("near_far", "banded", "lambda"))):
        found[f"{name}, triton"] = "triton"
    return found


def in_a_loop(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    attention: Attention | None,
    spin: Rotate | None,
    scaling: float,
    sinks: Tensor | None = None,
    form: fast.Form = "merged",
    layers: int = 1,
) -> Callable[[], Tensor]:
    """A step of writing in a loop: the last token joins a cache and attends to it, in layers with caches of their own.

    Attention None is PyTorch's fused kernel. With `spin`, keys and queries are rotated in the step; under a remap the
    cache holds them unrotated.
    """
    total, device = keys.shape[2], keys.device
    unrotated = attention is not None and attention.remap is not None
    last = torch.tensor([total - 1], device=device)
    before = keys if unrotated or spin is None else spin(keys, torch.arange(total, device=device))
    loop = Loop(np.array([total] * len(query)), total=total, device=device)
    caches = [KeptLayer(room=1) for _ in range(layers)]
    for cache in caches:
        cache.update(before[:, :, :-1], values[:, :, :-1])
        cache.begin_loop(loop)
    new, value = keys[:, :, -1:], values[:, :, -1:]

    def step() -> Tensor:
        loop.begin()
        for cache in caches:
            outside = None if unrotated else spin
            cache.update(new if outside is None else outside(new, last), value)
            asking = query if outside is None else outside(query, last)
            if attention is None:
                kept = cache.keys[:, :, :total], cache.values[:, :, :total]
                found = F.scaled_dot_product_attention(asking, *kept, enable_gqa=True, scale=scaling)
            else:
                inside = spin if unrotated else None
                found = looped.attend(asking, cache, loop, attention, inside, scaling, sinks, form)
        return found

    return step


def recorded(step: Callable[[], Tensor]) -> Callable[[], Any]:
    """The step as a CUDA graph; on a CPU as it is, if it could be recorded."""
    found = step()
    if not found.is_cuda:
        with on_device():
            step()
        return step
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def said(call: Callable[[], Any]) -> Any:
    """What a call returns, or its error in a line."""
    try:
        return call()
    except Exception as error:  # a kernel that fails is one row of the record
        return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


def check_methods(campaign: Campaign, family: str, dtype: str, names: list[str]) -> Found:
    """Checks of each method on a small model of a family."""
    from lexbench.core.record import Refused
    from lexbench.runner.verify import failure_of_checks, verify_attention

    length = campaign.scale.verified
    here = small(family, campaign.device, getattr(torch, dtype))
    there = small(family, "cpu", torch.float64)
    there.reader.network.load_state_dict(
        {name: each.cpu().double() for name, each in here.reader.network.state_dict().items()}
    )
    tokens = np.random.default_rng(0).integers(0, 512, length)
    found: Found = {}
    for name in names:
        attention = attention_of(name, here.model, length)
        if attention is None:
            continue
        try:
            checks = verify_attention(here, attention, length)
            here.attend(attention)
            there.attend(attention)
            got, exact = (each.logits(tokens, [length], length).cpu().double() for each in (here, there))
        except Refused as refusal:
            found[name] = {"refused": refusal.reason}
            continue
        except Exception as error:  # a method that fails is one row of the record
            found[name] = {"failed": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"}
            continue
        apart = float((got - exact).std() / exact.std())
        found[name] = {"apart": apart}
        if why := failure_of_checks(checks):
            found[name]["failed"] = why
        elif not apart <= LOGITS[dtype]:
            found[name]["failed"] = f"logits deviate by {apart:.1e} from float64's, {LOGITS[dtype]:.0e} is allowed"
    wrong = [name for name, row in found.items() if "failed" in row]
    return {"passed": not wrong, "wrong": wrong, "methods": found}


def writes(count: int, length: int, room: int, uneven: bool = False) -> list[Any]:
    """Prompts of random tokens; `uneven`: of many lengths up to `length`."""
    from lexbench.core.task import Generate

    rng = np.random.default_rng(1)
    sizes = [length - (length // 2 * index // count if uneven else 0) for index in range(count)]
    prompts = [rng.integers(3, 500, size) for size in sizes]
    return [Generate(index=index, cluster="", prompt=each, max_new_tokens=room) for index, each in enumerate(prompts)]


def scores(count: int, length: int, start: int = 1) -> list[Any]:
    from lexbench.core.task import Loglikelihood

    rng = np.random.default_rng(2)
    return [
        Loglikelihood(
            index=index, cluster="", tokens=rng.integers(3, 500, length), first_target=start, bytes=1, words=1
        )
        for index in range(count)
    ]


def together(campaign: Campaign) -> Found:
    """Writing and scoring in batches is writing and scoring one by one, in float32."""
    from lexbench.runner.answers import answer_questions

    wrong = []
    for family in FAMILIES if campaign.scale is not TOY else ("gemma3_text",):
        model = small(family, campaign.device, torch.float32)
        for name in METHODS:
            attention = attention_of(name, model.model, 128)
            if attention is None:
                continue
            try:
                model.attend(attention)
                asked = writes(5, 60, 9, uneven=True)
                alone = [model.write(each).tokens.tolist() for each in asked]
                many = [each.tokens.tolist() for each in answer_questions(model, asked)]  # type: ignore[union-attr]
                texts = scores(4, 50)
                one = np.stack([model.score(each).nll for each in texts])
                model._batch = 4
                both = np.stack([each.nll for each in answer_questions(model, texts)])  # type: ignore[union-attr]
                model._batch = None
            except Exception as error:
                wrong.append(f"{family}, {name}: {type(error).__name__}: {' '.join(str(error).split())[:200]}")
                continue
            if alone != many:
                wrong.append(f"{family}, {name}: other tokens")
            if not np.abs(one - both).max() <= 1e-3:
                wrong.append(f"{family}, {name}: likelihoods differ by {np.abs(one - both).max():.1e}")
    return {"passed": not wrong, "wrong": wrong}


def memory_ends(campaign: Campaign) -> Found:
    """Too many texts for the memory are halved, one text too long is deferred in one line, and the device goes on."""
    if campaign.device != "cuda":
        return {"left out": "the device is no GPU"}
    model = small("llama", campaign.device, torch.float32)
    model.reader.positions_end = None
    _, total = torch.cuda.mem_get_info()
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + SPARE) / total)
    try:
        wrong = _memory_ends(model)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    return {"passed": not wrong, "wrong": wrong}


def _memory_ends(model: Any) -> list[str]:
    from lexbench.core.record import Deferred

    length = 1024
    model._batch = int(SPARE / (length * 512 * 4))  # all of the memory for logits, and more for the states
    model._chunk = length * model._batch
    wrong = []
    try:
        found = list(model.answer_batch(scores(model._batch, length)))
        halved = len(found) == model._batch and model._limit < sys.maxsize
    except Deferred as refusal:
        halved = True
        if "out of memory" not in refusal.reason:
            wrong.append(refusal.reason)
    if not halved:
        wrong.append("a batch beyond the memory was not halved")
    model._chunk = 512
    try:
        model.score(scores(1, 1 << 22)[0])
        wrong.append("a text beyond the memory was answered")
    except Deferred as refusal:
        if "out of memory" not in refusal.reason or "\n" in refusal.reason:
            wrong.append(refusal.reason)
    torch.cuda.empty_cache()
    model.score(scores(1, 64)[0])
    return wrong


def spread(campaign: Campaign) -> Found:
    """Layers spread by accelerate's device map answer as on one device."""
    if importlib.util.find_spec("accelerate") is None or campaign.device != "cuda":
        return {"left out": "it needs a GPU and the package accelerate"}
    from lexbench.backends.hf.backend import Hf
    from lexbench.checkpoints.checkpoint import read_model

    question, found = scores(1, 64)[0], []
    for device in ("cuda", "all"):
        model = Hf(read_model({"path": str(ROOT / "lexbench" / "lexlet"), "name": "lexlet"}), device=device)
        model.attend(attention_of("rerope", model.model, 512) or Attention())
        found.append(model.score(question).nll)
    apart = float(np.abs(found[0] - found[1]).max())
    return {"passed": apart <= 1e-4, "wrong": [] if apart <= 1e-4 else [f"apart by {apart:.1e} nats"]}


def low_head(campaign: Campaign) -> Found:
    """Likelihoods of a bfloat16 head against float64, over a large vocabulary."""
    from lexbench.kernels import likelihood

    vocabulary = 1000 if campaign.scale is TOY else 150_000
    generator = torch.Generator(campaign.device).manual_seed(0)
    weight, states = (
        torch.randn(rows, 1024, generator=generator, device=campaign.device).to(torch.bfloat16)
        for rows in (vocabulary, 600)
    )
    weight *= 0.1
    targets = torch.arange(600, device=campaign.device) % vocabulary
    got = likelihood.token_nll(states[None], likelihood.linear_head(weight), targets)
    logits = states.double() @ weight.double().mT
    exact = logits.logsumexp(-1) - logits.gather(1, targets[:, None])[:, 0]
    apart = float((got - exact).abs().max())
    return {"passed": apart <= 1e-3, "wrong": [] if apart <= 1e-3 else [f"apart by {apart:.1e} nats"], "nats": apart}


# measures


def machine(campaign: Campaign) -> Found:
    """Bytes per second read and written by a copy, read by a sum; operations per second of a matrix product."""
    scale, device = campaign.scale, campaign.device
    source = torch.ones(scale.copied // 4, device=device)
    target = torch.empty_like(source)
    copied = seconds(lambda: target.copy_(source), device, 10)
    one, two = (torch.randn(scale.product, scale.product, device=device).to(campaign.dtype) for _ in range(2))
    multiplied = seconds(lambda: one @ two, device, 10)
    return {
        "bytes_per_second": 2 * scale.copied / copied,
        "operations_per_second": 2 * scale.product**3 / multiplied,
    }


@contextlib.contextmanager
def flash(device: str) -> Iterator[None]:
    """PyTorch's flash kernel alone, on a GPU."""
    if device != "cuda":
        yield
        return
    from torch.nn.attention import SDPBackend, sdpa_kernel

    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        yield


@torch.inference_mode()
def measure_kernels(campaign: Campaign, heads: Heads, length: int, asked: int) -> Found:
    """Seconds of each structure and of plain attention, and bytes beside the inputs."""
    device, scaling = campaign.device, 1 / math.sqrt(heads.head_dim)
    q, k, v = drawn(heads, asked, length, 1, campaign.dtype, device)
    places = torch.arange(length - asked, length, device=device)
    times: dict[str, Any] = {}
    bytes_held: dict[str, Any] = {}

    def plain() -> Tensor:
        with flash(device):
            return F.scaled_dot_product_attention(q, k, v, is_causal=asked > 1, enable_gqa=True, scale=scaling)

    def one(attention: Attention | None, form: fast.Form = "merged") -> Callable[[], Any]:
        return recorded(
            in_a_loop(q, k, v, attention, rotation(heads.head_dim), scaling, None, form, attention_kernels.LAYERS)
        )

    makers: dict[str, Callable[[], Callable[[], Any]]] = {
        "plain": functools.partial(one, None) if asked == 1 else lambda: plain
    }
    for name, attention in attentions(heads.window).items():
        if name.startswith("dense"):
            continue
        turn = rotate_of(attention, heads.head_dim)
        for row, form in forms(name, step=asked == 1).items():
            given = q, k, v, places, attention, turn, scaling
            makers[row] = (
                functools.partial(one, attention, form)
                if asked == 1
                else functools.partial(functools.partial, fast.attend, *given, form=form)
            )
    for name, make in makers.items():
        # A cache of its own, for a step: one at a time.
        found = said(functools.partial(measured_of, make, device, campaign.scale.repeats))
        times[name], bytes_held[name] = (found, None) if isinstance(found, str) else found
    times["plain again"] = said(lambda: seconds(makers["plain"](), device, campaign.scale.repeats))
    wrong = [f"{name}: {value}" for name, value in times.items() if isinstance(value, str)]
    rest = {"passed": False, "wrong": wrong} if wrong else {}
    return {**rest, "seconds": times, "bytes": bytes_held, "cache_bytes": k.numel() * 2 * k.element_size()}


def measure_model(campaign: Campaign, name: str, method: str) -> Found:
    """Seconds of reading prompts, of a written token and of scoring the last 256; peaks of memory."""
    model, scale = campaign.model(name), campaign.scale
    found: Found = {"read_bytes": read_bytes(model.reader.network), "trained_length": model.model.trained_length}
    for length in scale.prefills:
        if method == "stock":
            found[str(length)] = said(functools.partial(stock, campaign, model, length))
            continue
        attention = attention_of(method, model.model, length)
        if attention is None:
            return {"left out": "the method does not apply to this model"}
        model.attend(attention)
        try:
            found[str(length)] = said(functools.partial(measure_method, campaign, model, attention, length))
        finally:
            model.attend(Attention())
    # A text too long for the memory is a finding beside the shorter ones.
    wrong = [f"{length}: {row}" for length, row in found.items() if isinstance(row, str)]
    return {**found, **({"passed": False, "wrong": wrong} if wrong else {})}


def measure_method(campaign: Campaign, model: Any, attention: Attention, length: int) -> Found:
    """The figures of an Attention that the model has."""
    scale, device = campaign.scale, campaign.device
    rooms = 1, scale.room // 4, scale.room
    asked = [functools.partial(model.write, writes(1, length, room)[0]) for room in rooms]
    score = functools.partial(model.score, scores(1, length, length - min(256, length // 2))[0])
    write_bytes, score_bytes = (peak(call, device) for call in (asked[2], score))
    if write_bytes is None:
        asked[2](), score()  # warm: the others are a part of these
    repeats = []
    for _ in range(scale.model_repeats):
        first, some, last, scored = (timed(call, device) for call in (*asked, score))
        token, with_recording = (last - some) / (rooms[2] - rooms[1]), (some - first) / (rooms[1] - 1)
        repeats.append({"prefill": first, "token": token, "token_with_recording": with_recording, "score": scored})
    found = {
        **middle_and_spread(repeats),
        "repeated": model.reader.repeated,
        "cache_bytes": cache_bytes(model.reader.network, seen_keys(attention, length)),
        "score_bytes": score_bytes,
        "write_bytes": write_bytes,
    }
    if length == min(scale.prefills):
        many = 16
        batch = writes(many, max(8, length // 8), scale.room, uneven=True)
        list(model.answer_batch(batch[:2]))
        taken = seconds(functools.partial(answered, model, batch), device, 1)
        found["batch_tokens_per_second"] = many * scale.room / taken
    return found


def read_bytes(network: Any) -> int:
    """Bytes of the weights that each token reads: all but those of the embedding, unless it is the head too."""
    embedding, head = network.get_input_embeddings().weight, network.get_output_embeddings().weight
    total = sum(weight.numel() * weight.element_size() for weight in network.parameters())
    return int(total - (0 if embedding is head else embedding.numel() * embedding.element_size()))


def cache_bytes(network: Any, keys: int) -> int:
    """Bytes of so many tokens' keys and values."""
    return int(kept_numbers(network.config.get_text_config(), keys, (), 0) * network.dtype.itemsize)


def seen_keys(attention: Attention, length: int) -> int:
    """Keys that the last token of a text sees."""
    mask = attention.mask
    return min(length, mask.size + mask.sinks) if isinstance(mask, Window) else length


@torch.inference_mode()
def stock(campaign: Campaign, model: Any, length: int) -> Found:
    """The network without lexbench: one pass, and the loop that one writes oneself."""
    from transformers import DynamicCache

    network, device, room = model.reader.network, campaign.device, max(2, campaign.scale.room // 8)
    ids = torch.from_numpy(writes(1, length, 1)[0].prompt)[None].to(device)

    def write(count: int) -> None:
        cache = DynamicCache(config=network.config)
        feed = ids
        for _ in range(count):
            logits = network(input_ids=feed, past_key_values=cache, use_cache=True, logits_to_keep=1).logits
            feed = logits[:, -1:].argmax(-1)

    calls: list[Callable[[], Any]] = [functools.partial(write, count) for count in (1, room)]
    keep = min(256, length // 2)
    calls.append(lambda: network(input_ids=ids, logits_to_keep=keep, use_cache=False))
    score_bytes = peak(calls[2], device)
    calls[1]()
    repeats = []
    for _ in range(campaign.scale.model_repeats):
        first, last, scored = (timed(call, device) for call in calls)
        repeats.append({"prefill": first, "token": (last - first) / (room - 1), "score": scored})
    return {
        **middle_and_spread(repeats),
        "score_bytes": score_bytes,
        "cache_bytes": cache_bytes(network, length),
    }


def beside_lm_eval(campaign: Campaign, name: str) -> Found:
    """The same tokens scored, and the same prompts continued, by lm_eval's model class on the same network."""
    if importlib.util.find_spec("lm_eval") is None:
        return {"left out": "lm_eval is not installed"}
    from lm_eval.api.instance import Instance
    from lm_eval.models.huggingface import HFLM
    from transformers import PreTrainedTokenizerFast

    model, scale = campaign.model(name), campaign.scale
    words = PreTrainedTokenizerFast(tokenizer_file=str(ROOT / "lexbench" / "lexlet" / "tokenizer.json"))
    words.pad_token_id = words.eos_token_id = 0
    length, count = min(scale.prefills), 4
    theirs = HFLM(
        pretrained=model.reader.network,
        tokenizer=words,
        batch_size=2,
        max_length=length + scale.room,
        add_bos_token=False,
    )
    texts = scores(count, length)
    requests = [(("", str(each.index)), each.tokens[:1].tolist(), each.tokens[1:].tolist()) for each in texts]

    def score() -> list[float]:
        return [-float(total) for total, _ in theirs._loglikelihood_tokens(requests, disable_tqdm=True)]

    room = scale.room // 4
    asked = writes(8, length // 2, room, uneven=True)
    prompts = [words.decode(each.prompt.tolist()) for each in asked]
    rules = {"until": [], "max_gen_toks": room, "do_sample": False}
    instances = [Instance("generate_until", {}, (prompt, rules), index) for index, prompt in enumerate(prompts)]
    model.attend(Attention())
    model._batch = 2
    with torch.inference_mode():
        ours = {
            "score": seconds(lambda: list(model.answer_batch(texts)), campaign.device, 1),
            "write": seconds(lambda: list(model.answer_batch(asked)), campaign.device, 1),
        }
        model._batch = None
        ours["write_auto"] = seconds(lambda: list(model.answer_batch(asked)), campaign.device, 1)
        other = {
            "score": seconds(score, campaign.device, 1),
            "write": seconds(lambda: theirs.generate_until(instances, disable_tqdm=True), campaign.device, 1),
        }
        nats = [float(answer.nll.sum()) for answer in model.answer_batch(texts)]
    apart = max(abs(one - two) / length for one, two in zip(nats, score(), strict=True))
    return {"ours": ours, "lm_eval": other, "nats_a_token_apart": apart, "length": length}


def beside_vllm(campaign: Campaign, name: str) -> Found:
    """The same questions to vLLM, on a cut of the model with few layers that fits beside it."""
    if importlib.util.find_spec("vllm") is None or campaign.device != "cuda":
        return {"left out": "it needs a GPU and the package vllm"}
    from lexbench.checkpoints.tokenizer import load_tokenizer
    from lexbench.parts.serving.vllm.backend import Vllm

    scale = campaign.scale
    length = min(scale.prefills)
    sizes = {**scale.models[name], "num_hidden_layers": 4}
    campaign.held = ("", None)
    ours = backend(sizes, campaign.device, campaign.dtype, name)
    questions = {"score": scores(8, length), "write": writes(16, length // 2, scale.room, uneven=True)}
    found: Found = {"ours": {}, "vllm": {}}
    for kind, asked in questions.items():
        found["ours"][kind] = seconds(lambda: list(ours.answer_batch(asked)), campaign.device, 1)  # noqa: B023
    with tempfile.TemporaryDirectory() as folder:
        ours.reader.network.save_pretrained(folder)
        for file in ("tokenizer.json", "tokenizer_config.json"):
            source = ROOT / "lexbench" / "lexlet" / file
            if source.exists():
                (Path(folder) / file).write_bytes(source.read_bytes())
        load_tokenizer(Path(folder))
        model = replace(ours.model, path=folder)
        ours = None
        gc.collect()
        torch.cuda.empty_cache()
        engine = Vllm(model, length + scale.room, "bfloat16", memory_share=0.5, prefix_caching=False)
        engine.attend(Attention())
        for kind, asked in questions.items():
            found["vllm"][kind] = seconds(lambda: list(engine.answers(asked)), campaign.device, 1)  # noqa: B023
        engine.close()
    return found


# the record


def facts(toy: bool) -> Found:
    """What a record is of; another one is not gone on with."""
    from lexbench.core.machine import collect_provenance

    found = collect_provenance()
    card: Found = {"name": found["processor"]}
    if torch.cuda.is_available():
        about = torch.cuda.get_device_properties(0)
        card = {"name": about.name, "bytes": about.total_memory, "capability": f"{about.major}.{about.minor}"}
        card["processors"] = about.multi_processor_count
    packages = {**found["packages"], "cuda": torch.version.cuda, "python": found["python"]}
    return {"format": FORMAT, "toy": toy, "card": card, "versions": packages, "lexbench": found["lexbench"]}


def record_of(file: Path, toy: bool) -> Found:
    """The record in a file, or a new one; ValueError where it is of another machine."""
    own = facts(toy)
    if not file.exists():
        return {**own, "date": time.strftime("%Y-%m-%d", time.gmtime()), "steps": {}}
    held: Found = json.loads(file.read_text())
    if other := [key for key in own if held.get(key) != own[key]]:
        raise ValueError(f"record {file} must be of this machine, it has another {', '.join(other)}: give --record")
    return held


def keep(file: Path, record: Found) -> None:
    """Write it, whole or not at all."""
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_suffix(".part")
    part.write_text(json.dumps(record, indent=1) + "\n")
    part.replace(file)


def work(options: argparse.Namespace, until: float) -> None:
    """Do the steps that a record lacks, until the time is over."""
    file, toy = options.record, options.toy
    record = record_of(file, toy)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    campaign = Campaign(device, TOY if toy else LARGE, torch.bfloat16)
    for name, step in wanted(options).items():
        if name in record["steps"] or time.time() > until:
            continue
        record["running"] = [name, time.time()]
        keep(file, record)
        began = time.perf_counter()
        try:
            found = step(campaign)
        except Exception as error:  # a step that fails is recorded, and the campaign goes on
            found = {"passed": False, "wrong": [f"{type(error).__name__}: {' '.join(str(error).split())[:500]}"]}
        found = {"seconds_taken": round(time.perf_counter() - began, 2), **found}
        del record["running"]
        record["steps"][name] = found
        keep(file, record)
        mark = {True: "ok", False: "FAILED", None: "done"}[found.get("passed")]
        print(f"{found['seconds_taken']:7.1f} s  {mark:7} {name} {found.get('left out', '')}", flush=True)
        for line in found.get("wrong", []):
            print(f"            {line}", flush=True)


def wanted(options: argparse.Namespace) -> dict[str, Step]:
    """The steps whose names begin as asked."""
    found = steps(TOY if options.toy else LARGE)
    return {name: step for name, step in found.items() if name.startswith(tuple(options.only or [""]))}


def supervise(options: argparse.Namespace, command: list[str]) -> None:
    """Run steps in processes of their own: one that dies or hangs takes no others with it."""
    until = time.time() + 60 * options.minutes
    command = [*command, "--until", str(until)]
    while time.time() < until:
        process = subprocess.Popen(command, cwd=ROOT)
        while process.poll() is None:
            time.sleep(0.2)
            late = time.time() > until + 15
            if late or past_limit(options.record):
                process.kill()
                process.wait()
                if late:
                    forget(options.record)
                    return
        if process.returncode == 0:
            return
        record = json.loads(options.record.read_text()) if options.record.exists() else {}
        if "running" not in record:
            raise SystemExit(f"the campaign ended with {process.returncode} before any step")
        name, began = record.pop("running")
        taken = time.time() - began
        why = f"no end within {LIMIT} s" if taken >= LIMIT else f"its process ended with {process.returncode}"
        record["steps"][name] = {"seconds_taken": round(taken, 2), "passed": False, "wrong": [why]}
        keep(options.record, record)
        print(f"{taken:7.1f} s  FAILED  {name}\n            {why}", flush=True)


def past_limit(file: Path) -> bool:
    """Whether the running step takes too long."""
    if not file.exists():
        return False
    running = json.loads(file.read_text()).get("running")
    return running is not None and time.time() - running[1] > LIMIT


def forget(file: Path) -> None:
    """Take back the step that the time did not suffice for."""
    record = json.loads(file.read_text())
    record.pop("running", None)
    keep(file, record)


# its tables


def show(record: Found) -> None:
    """Print what a record says."""
    done = record["steps"]
    checks = {name: step for name, step in done.items() if step.get("passed") is not None}
    failed = [name for name, step in checks.items() if not step["passed"]]
    print(f"\n# GPU campaign: {record['card']['name']}, {record['date']}\n")
    print(", ".join(f"{name} {version}" for name, version in record["versions"].items() if version))
    print(f"\n{len(done)} steps in {sum(step['seconds_taken'] for step in done.values()) / 60:.1f} minutes; ", end="")
    print(f"{len(checks) - len(failed)} checks passed, {len(failed)} failed.\n")
    for why in dict.fromkeys("; ".join(map(str, done[name].get("wrong", [])))[:600] for name in failed):
        of = [name for name in failed if "; ".join(map(str, done[name].get("wrong", [])))[:600] == why]
        print(f"- {', '.join(of)}: {why}")
    rate = done.get("measure/machine", {}).get("bytes_per_second")
    if rate:
        print(f"\nA copy moves {rate / 1e12:.2f} TB/s, read and written;", end=" ")
        print(f"a matrix product makes {done['measure/machine']['operations_per_second'] / 1e12:.0f} TFLOP/s.")
    show_kernels(done, "plain" if record["format"] == 1 else "sdpa")
    show_models(done, rate)
    show_sides(done)


def table(*head: str) -> None:
    print(f"\n| {' | '.join(head)} |\n| {' | '.join('---' for _ in head)} |")


def show_kernels(done: Found, picked: str) -> None:
    """Times over one kernel's: of whole texts over the picked one, of steps over the plain one."""
    start = "measure/kernels/"
    for end, what, base_name in (("/whole", "a whole text", picked), ("/one", "a step of writing", "plain")):
        rows = {
            name.removeprefix(start).removesuffix(end).replace("/", " "): step["seconds"]
            for name, step in done.items()
            if name.startswith(start) and name.endswith(end) and "seconds" in step
        }
        if not rows:
            continue
        rows = {name: times for name, times in rows.items() if not isinstance(times[base_name], str)}
        table(f"{what}, time / {base_name}", *rows)
        plain = [times[base_name] for times in rows.values()]
        print(f"| {base_name}, ms | {' | '.join(f'{1000 * each:.3f}' for each in plain)} |")
        for kernel in dict.fromkeys(kernel for times in rows.values() for kernel in times if kernel != base_name):
            found = [times.get(kernel) for times in rows.values()]
            cells = [
                "failed" if isinstance(each, str) else "" if each is None else f"{each / base:.2f}"
                for each, base in zip(found, plain, strict=True)
            ]
            print(f"| {kernel} | {' | '.join(cells)} |")


def show_models(done: Found, rate: float | None) -> None:
    rows = {name: step for name, step in done.items() if name.startswith("measure/models/")}
    head = (
        "prefill, s",
        "of stock",
        "token, ms",
        "of stock",
        "with recording",
        "of the bandwidth",
        "score, GB",
        "batch, tokens/s",
    )
    if trained := {
        name.split("/")[2]: step["trained_length"] for name, step in rows.items() if "trained_length" in step
    }:
        print(f"\nTrained lengths: {', '.join(f'{name} {length}' for name, length in trained.items())}. ", end="")
        print("In brackets: the largest less the smallest repeat, of the median.")
    if rows:
        table("model", "length", *head)
    for name, step in rows.items():
        model = name.split("/")[2]
        for length in [key for key, row in step.items() if key.isdigit() and not isinstance(row, str)]:
            at, base = step[length], done.get(f"measure/models/{model}/stock", {}).get(length)
            base = None if isinstance(base, str) else base
            reads = (step["read_bytes"] + at["cache_bytes"]) / at["token"] / (rate or math.inf)
            cells = [
                f"{at['prefill']:.3f}{_spread_of(at, 'prefill')}",
                f"{at['prefill'] / base['prefill']:.2f}" if base else "",
                f"{1000 * at['token']:.2f}{_spread_of(at, 'token')}",
                f"{at['token'] / base['token']:.2f}" if base else "",
                f"{1000 * at['token_with_recording']:.2f}" if "token_with_recording" in at else "",
                f"{reads:.0%}",
                f"{(at.get('score_bytes') or 0) / 1e9:.2f}",
                f"{at['batch_tokens_per_second']:.0f}" if "batch_tokens_per_second" in at else "",
            ]
            print(f"| {name.removeprefix('measure/models/')} | {length} | {' | '.join(cells)} |")


def _spread_of(at: Found, figure: str) -> str:
    return f" ({at['spread'][figure]:.0%})" if "spread" in at else ""


def show_sides(done: Found) -> None:
    rows = {name: step for name, step in done.items() if name.startswith("measure/sides/") and "ours" in step}
    if rows:
        table("side", "scoring, of ours", "writing, of ours")
    for name, step in rows.items():
        other = step.get("lm_eval") or step["vllm"]
        ratios = [f"{other[kind] / step['ours'][kind]:.2f}" for kind in ("score", "write")]
        print(f"| {name.removeprefix('measure/sides/')} | {' | '.join(ratios)} |")


def arguments(words: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=25, help="after which no further step begins")
    parser.add_argument("--record", type=Path, help="file; usually results/benchmarks/gpu/CARD-DATE.json")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="steps whose names begin so")
    parser.add_argument("--toy", action="store_true", help="small sizes, on a CPU where there is no GPU")
    parser.add_argument("--show", type=Path, metavar="RECORD", help="print a record's tables, and end")
    parser.add_argument("--until", type=float, help=argparse.SUPPRESS)
    options = parser.parse_args(words)
    options.record = options.record and options.record.resolve()
    if options.record is None and options.show is None:
        card = torch.cuda.get_device_name(0) if torch.cuda.is_available() else "cpu"
        name = f"{re.sub(r'[^a-z0-9]+', '-', card.lower())}-{time.strftime('%Y-%m-%d', time.gmtime())}.json"
        folder = Path(tempfile.gettempdir()) if options.toy else ROOT / "results" / "benchmarks" / "gpu"
        options.record = folder / name
    return options


def main(words: list[str] | None = None) -> int:
    options = arguments(words)
    if options.show is not None:
        show(json.loads(options.show.read_text()))
        return 0
    if not (options.toy or torch.cuda.is_available()):
        raise SystemExit("the campaign needs a CUDA device, torch sees none: give --toy to try it at small sizes")
    if options.until is not None:
        work(options, options.until)
        return 0
    record_of(options.record, options.toy)
    given = sys.argv[1:] if words is None else words
    more = [] if "--record" in given else ["--record", str(options.record)]
    supervise(options, [sys.executable, __file__, *given, *more])
    record = record_of(options.record, options.toy)
    show(record)
    left = [name for name in wanted(options) if name not in record["steps"]]
    print(f"\n{options.record}: {f'{len(left)} steps are left, run it again' if left else 'all is done'}.")
    if any(step.get("passed") is False for step in record["steps"].values()):
        return 1
    return 3 if left else 0


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    sys.exit(main())
