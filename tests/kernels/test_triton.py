"""Triton kernels against dense ones, in Triton's interpreter, which needs no GPU; `gpu.py` checks them compiled."""

import copy
import importlib.util
import json
import os
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch

from lexbench.core.attention import Attention
from tests.kernels.test_fast import SCALING, attentions, expected, rotate, vectors

ROOT = Path(__file__).parents[2]
TRITON = ROOT / ".venv-triton"
"""Where `make test-triton` puts the package."""
SHAPES = ((5, 40, 40, 2), (64, 150, 300, 1), (128, 16, 257, 1), (200, 20, 150, 1))
"""Windows, queries, keys and texts: windows below a block, inside one, at its end, and behind the text."""
RANDOM_SHAPES = 12
KINDS = ("near_far", "lambda", "banded", "blocks", "chunks")


def errors() -> dict[str, float]:
    """Largest error of each structure and shape; the interpreter is chosen when triton is imported."""
    from lexbench.backends.hf.reading.reader import why_not_compiled
    from lexbench.kernels import fast

    assert why_not_compiled(torch.device("cpu")) is None
    sinks, found = torch.tensor([0.5, -1.0, 2.0, 0.0]), dict[str, float]()
    for window, asked, total, batch in SHAPES:
        for name, attention in attentions(window, 3).items():
            if name.startswith(KINDS):
                x = vectors(asked, total, batch=batch, dtype=torch.float32)
                found[f"{name}, {window}"] = error(fast.attend, x, attention, None)
    x, leaky = vectors(40, 60, dtype=torch.float32), attentions(9, 3)["near_far leaky"]
    found["sinks"] = error(fast.attend, x, leaky, sinks)
    found["smaller blocks"] = crowded(lambda: error(fast.attend, x, leaky, sinks))
    low = vectors(40, 60, kv_heads=1, dtype=torch.float16)
    found["half precision"] = error(fast.attend, low, leaky, sinks)
    return {**found, **drawn_at_random(sinks), **with_triangle(sinks)}


def drawn_at_random(sinks: torch.Tensor) -> dict[str, float]:
    """Errors at random windows, lengths, ends and shared heads."""
    from lexbench.kernels import fast

    found = dict[str, float]()
    for seed in range(RANDOM_SHAPES):
        draw = random.Random(seed)
        window, total = draw.randint(1, 290), draw.randint(17, 400)
        asked = draw.choice([total, draw.randint(16, total)])
        kinds = attentions(window, draw.randint(1, 9))
        name = draw.choice([name for name in kinds if name.startswith(KINDS)])
        x = vectors(asked, total, kv_heads=draw.choice([1, 2, 4]), dtype=torch.float32)
        found[f"{name}, {window}, {asked} of {total}"] = error(fast.attend, x, kinds[name], draw.choice([None, sinks]))
    return found


def with_triangle(sinks: torch.Tensor) -> dict[str, float]:
    """Errors where another kernel, here PyTorch's for the CPU, computes keys that are far back."""
    from lexbench.kernels import fast, flash, triton_regions

    sizes, found = list[int](), dict[str, float]()

    def causally(queries: Any, keys: Any, values: Any, scaling: float) -> Any:
        sizes.append(queries.shape[2])
        return flash.attend_causally(queries, keys, values, scaling)

    with (
        patch.object(triton_regions, "MIN_TRIANGLE_KEYS", 32),
        patch.object(triton_regions, "TRIANGLE_STEP_KEYS", 32),
        patch.object(flash, "attend_by_cudnn", causally),
    ):
        for window, total, names in ((64, 256, ("near_far", "chunks")), (50, 333, ("near_far leaky", "chunks paper"))):
            for name, attention in attentions(window, 3).items():
                if name.startswith(names):
                    x, before = vectors(total, total, kv_heads=1, dtype=torch.float32), len(sizes)
                    found[f"triangle, {name}, {window}"] = error(fast.attend, x, attention, sinks)
                    # Beyond a window, or beyond two chunks, less what is left of steps of 32.
                    least = 2 * window if name.startswith("chunks") else window + (name == "near_far jet_long")
                    wanted = (total - least) // 32 * 32
                    assert sizes[before:] == [wanted], (name, window, sizes[before:])
    return found


def crowded(call: Any) -> float:
    """What a call returns on a GPU with room for blocks of at most 64 queries."""
    from triton.runtime.errors import OutOfResources

    from lexbench.kernels import triton_regions

    kernel, seen = triton_regions._kernel, list[int]()

    class Small:
        def __getitem__(self, grid: Any) -> Any:
            def launch(*given: Any, **sizes: Any) -> None:
                seen.append(sizes["ROWS"])
                if sizes["ROWS"] > 64:
                    raise OutOfResources(1, 0, "shared memory")
                kernel[grid](*given, **sizes)

            return launch

    triton_regions._kernel = Small()
    try:
        found = float(call())
    finally:
        triton_regions._kernel = kernel
    assert seen[0] == 128 and seen[-1] == 64, seen
    return found


def error(attend: Any, x: Any, attention: Attention, sinks: Any) -> float:
    from lexbench.kernels import dense

    total = x[1].shape[2]
    places = torch.arange(total - x[0].shape[2], total)
    got = attend(*x, places, attention, rotate, SCALING, sinks=sinks, form="triton")
    if sinks is None:
        return float((got - expected(x, attention)).abs().max())
    q, k, v = (each.double() for each in x)
    exact = dense.attend(q, k, v, places, attention, rotate, SCALING, sinks=sinks.double())
    assert got.dtype == x[0].dtype and got.shape == exact.shape
    return float((got - exact).abs().max())


def of_steps() -> dict[str, float]:
    """Largest errors of steps of writing, of texts padded on the left, over buffers with room behind them."""
    from lexbench.kernels import triton_decode

    generator, found = torch.Generator().manual_seed(0), dict[str, float]()
    for batch, heads, groups, total, width in ((1, 4, 2, 300, 16), (2, 8, 2, 257, 20), (3, 4, 4, 40, 32)):
        # Each range has rotations of its own, and its keys stand as they come.
        queries = torch.randn(4, batch, heads, 1, width, generator=generator)
        keys = [torch.randn(batch, groups, total + 13, width, generator=generator) for _ in range(4)]
        keys[1] = keys[1].transpose(1, 2).contiguous().transpose(1, 2)
        v = torch.randn(batch, groups, total + 13, width, generator=generator)
        for each in (*keys, v):
            each[:, :, total:] = torch.nan  # what is behind the end is never read
        pads = torch.arange(batch) * 7
        ends = [pads, pads + 3, pads + 3, pads + 11, torch.full((batch,), total)]
        for count, processors in ((1, 1), (2, 40), (3, 1), (4, 40)):  # 40: several pieces of a text
            # The last ones, which hold most keys; the second of four holds none.
            ranges = [(queries[n], keys[n], ends[n], ends[n + 1]) for n in range(4 - count, 4)][::-1]
            for sinks in (None, torch.linspace(-1, 1, heads)):
                with patch.object(triton_decode, "_processors", lambda x: processors):  # noqa: B023
                    got = triton_decode.attend(ranges, v, SCALING, sinks)
                for row in range(batch):
                    exact = over_ranges([[x[row] for x in each] for each in ranges], v[row], sinks)
                    name = f"step, {total}, {count}, {sinks is None}, {row}"
                    found[name] = float((got[row, :, 0] - exact).abs().max())
    return found


def of_checks() -> dict[str, float]:
    """0 where a check before the first use finds what it should: right kernels, wrong ones, and such as do not run."""
    from lexbench.kernels import triton_check, triton_decode, triton_regions

    found, place = dict[str, float](), (torch.device("cpu"), torch.float16, 16)
    regions, ranges = triton_check._regions_agree.__wrapped__, triton_check._ranges_agree.__wrapped__
    for flag in (True, False):
        found[f"checked regions, {flag}"] = float(not regions(*place, 2, flag, not flag))
        found[f"checked ranges, {flag}"] = float(not ranges(*place, 3, 2 + flag))

    def of_wrong_keys(rotated: Any, *rest: Any) -> Any:
        return attend((*rotated[:3], rotated[3].flip(3), rotated[4]), *rest)

    attend = triton_regions.attend_rotated
    with patch.object(triton_regions, "attend_rotated", of_wrong_keys):
        found["checked wrong keys"] = float(regions(*place, 2, True, False))
    with patch.object(triton_decode, "attend", side_effect=RuntimeError("no driver")):
        found["checked without a driver"] = float(ranges(*place, 1, 2))
    return found


def over_ranges(ranges: Any, values: torch.Tensor, sinks: torch.Tensor | None) -> torch.Tensor:
    """[H, D] softmax of one text's logits over all its ranges, and a sink, times values, in float64."""
    heads, shared = len(ranges[0][0]), len(ranges[0][0]) // len(values)
    logits, content = [] if sinks is None else [sinks.double()[:, None]], [torch.zeros(heads, 0, values.shape[2])]
    if sinks is not None:
        content = [torch.zeros(heads, 1, values.shape[2])]
    for query, keys, begin, end in ranges:
        seen = slice(int(begin), int(end))
        known = keys[:, seen].repeat_interleave(shared, dim=0).double()
        logits.append(SCALING * torch.einsum("hd,hkd->hk", query[:, 0].double(), known))
        content.append(values[:, seen].repeat_interleave(shared, dim=0))
    return torch.einsum("hk,hkd->hd", torch.cat(logits, 1).softmax(1), torch.cat(content, 1).double())


def of_rotations() -> dict[str, float]:
    """Largest errors of rotated vectors, by complex numbers in float64."""
    from lexbench.kernels import triton_rotate

    generator, found = torch.Generator().manual_seed(0), dict[str, float]()
    for batch, heads, tokens, width, pairs, offset in (
        (2, 3, 70, 32, 16, 0),
        (1, 2, 5, 40, 12, 16),
        (2, 4, 1, 64, 16, 32),
    ):
        x = torch.randn(batch, tokens, heads, width, generator=generator).transpose(1, 2)
        angles = 6 * torch.rand(1, tokens, pairs, generator=generator, dtype=torch.float64)
        for halves in (True, False):
            got = triton_rotate.rotate_pairs(x, angles.cos().float(), angles.sin().float(), halves, offset)
            places = torch.arange(pairs)
            first, second = (places, places + pairs) if halves else (2 * places, 2 * places + 1)
            first, second = first + offset, second + offset
            turned = torch.complex(x.double()[..., first], x.double()[..., second]) * torch.polar(
                torch.ones_like(angles), angles
            )
            exact = x.double().clone()
            exact[..., first], exact[..., second] = turned.real, turned.imag
            found[f"rotation, {width}, {halves}"] = float((got - exact).abs().max())
    return found


def of_turns() -> dict[str, float]:
    """Largest errors of a layer's own rotation in half precision, by its rule in float64; shares of unlike numbers."""
    from lexbench.backends.hf.exact.layers import Turn

    generator, found = torch.Generator().manual_seed(0), dict[str, float]()
    x = torch.randn(1, 2, 7, 24, generator=generator)
    angles = 6 * torch.rand(1, 7, 8, generator=generator, dtype=torch.float64)
    for layout in ("half", "interleaved"):
        for alternating in (False, True):
            turn = Turn(8, layout, 8, alternating, apply=unlike)
            tables = [
                each.repeat_interleave(2, dim=-1) if alternating else torch.cat([each, each], dim=-1)
                for each in (angles.cos(), angles.sin())
            ]
            low = x.half()
            got = replace(turn, fused=True)(low, tuple(each.half() for each in tables))
            exact = replace(turn, apply=None)(low.double(), tuple(each.half().double() for each in tables))
            found[f"turn, {layout}, {alternating}"] = float((got - exact).abs().max())
            # Tables in float32 are not rounded: what is rounded once is what exact numbers round to.
            got = replace(turn, fused=True)(low, tuple(each.float() for each in tables))
            exact = replace(turn, apply=None)(low.double(), tuple(tables))
            found[f"half precision, {layout}, {alternating}"] = float((got != exact.half()).double().mean())
    return found


def of_norms() -> dict[str, float]:
    """Largest errors of normed vectors, by the formula in float64; of those rounded twice, the share that is unlike."""
    from lexbench.kernels import triton_norm

    generator, found, eps = torch.Generator().manual_seed(0), dict[str, float](), 1e-2
    for width in (64, 300):
        x, weight = (torch.randn(*shape, width, generator=generator) for shape in ((3, 5), ()))
        exact = x.double() / (x.double().square().mean(-1, keepdim=True) + eps).sqrt()
        for add in (0.0, 1.0):
            got = triton_norm.rms_norm(x, weight, eps, from_one=bool(add))
            found[f"norm, {width}, {add}"] = float((got - exact * (weight.double() + add)).abs().max())
        low, factors = x.half(), weight.half()
        exact = low.double() / (low.double().square().mean(-1, keepdim=True) + eps).sqrt()
        got = triton_norm.rms_norm(low, factors, eps, rounded=True)
        twice = (exact.half().double() * factors.double()).half()
        found[f"half precision, {width}"] = float((got != twice).double().mean())
    return found


def of_networks() -> dict[str, float]:
    """Deviations of logits from float64's where norms and rotations are fused, as a share of their spread."""
    from transformers import AutoConfig, AutoModelForCausalLM

    from lexbench.backends.hf.fast.fused import Fused
    from lexbench.kernels import triton_rotate
    from tools.gpu import FAMILIES, SMALL

    kernel, found, ids = triton_rotate.rotate_pairs, dict[str, float](), torch.arange(2, 14).view(2, 6)
    # GLM-4 rotates a part of each head, in pairs of neighbours.
    families = {**FAMILIES, "glm4": {"num_key_value_heads": 2, "head_dim": 16, "pad_token_id": 0}}
    for family, sizes in families.items():
        torch.manual_seed(0)
        sizes = {**SMALL, **sizes, "max_position_embeddings": 64, "initializer_range": 0.1}
        config = AutoConfig.for_model(family, **sizes)
        config._experts_implementation = "eager"  # the grouped product of experts has no float64
        network = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
        norms = [each for each in network.modules() if type(each).__name__.endswith("RMSNorm")]
        for norm in norms:  # factors of new networks are 1 and hide themselves
            torch.nn.init.uniform_(norm.get_parameter("weight"), 0.5, 1.5)
        with torch.inference_mode():
            exact = copy.deepcopy(network).double()(ids).logits
            fused, before, turned = Fused(network, 4e-2), network(ids).logits, list[int]()

            def counting(vectors: torch.Tensor, *given: Any, **named: Any) -> torch.Tensor:
                turned.append(vectors.shape[1])  # noqa: B023
                return kernel(vectors, *given, **named)

            triton_rotate.rotate_pairs = counting
            try:
                with fused.put():
                    network(ids)
                    turned.clear()
                    got = network(ids).logits
                    replaced = [each for each in norms if "forward" in vars(each)]
            finally:
                triton_rotate.rotate_pairs = kernel
            assert len(replaced) == len(norms) and len(turned) == 2 * len(network.model.layers), (family, turned)
            assert torch.equal(network(ids).logits, before), f"{family} is not as it was"
        found[f"network, {family}"] = float((got - exact).std() / exact.std())
    return found


def unlike(*given: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """A family's own function, which the layout stands for."""
    raise AssertionError("the kernel rotates")


def still(x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """No rotation."""
    return x


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("triton") is None and not (TRITON / ".ready").exists(), reason="see make test-triton"
)
def test_triton_kernels_see_the_same_keys_at_the_same_positions() -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(map(str, (ROOT, TRITON)))}
    done = subprocess.run(
        [sys.executable, "-m", "tests.kernels.test_triton"], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    kinds = sum(name.startswith(KINDS) for name in attentions(5, 3))
    distant = sum(name.startswith(("near_far", "chunks")) for name in attentions(5, 3))
    assert len(found) == 3 + len(SHAPES) * kinds + RANDOM_SHAPES + distant + 2 + 8 * 6 + 6 + 6 + 2 * 4 + 2 * 3 + 5
    networks = [found.pop(name) for name in list(found) if name.startswith("network")]
    assert max(networks) < 2e-2, networks  # 0.9 to 1.5 % by bfloat16 alone
    low = [found.pop(name) for name in list(found) if name.startswith(("half precision", "turn"))]
    assert max(low) < 5e-3 and {name: wrong for name, wrong in found.items() if not wrong < 5e-6} == {}


if __name__ == "__main__":
    print(
        json.dumps(
            {**errors(), **of_steps(), **of_checks(), **of_rotations(), **of_turns(), **of_norms(), **of_networks()}
        )
    )
