"""`backend.fast=false`: all that only saves time is off, and answers are equal."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

import lexbench
from lexbench import Choose, Generate, GenerateAnswer, Loglikelihood, Refused
from lexbench.backends.hf.backend import Hf
from lexbench.checkpoints.checkpoint import read_model
from lexbench.core.attention import Attention
from lexbench.methods.scaled import attention_of
from tests.scaled.families import FAMILIES, TRAINED, save

METHODS = ("none", "yarn", "rerope", "self_extend", "dca", "streaming_llm", "log_n")
CASES = ("Llama 3.1", "Qwen3", "Gemma 3", "gpt-oss", "SmolLM3", "DeepSeek-V3", "GLM-4.5", "Phi-3 long", "Vicuna 16k")
DENSE = ("Llama 3.1", "Qwen3", "Gemma 3", "SmolLM3", "Phi-3 long", "Vicuna 16k")
OTHERS = ("DeepSeek-V2", "Llama 4", "Qwen3.5")
LENGTH = 3 * TRAINED


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Hf, Hf]]:
    """A tiny model of a family, with and without what only saves time."""

    def opened(family: str) -> tuple[Hf, Hf]:
        folder: Path = save(tmp_path_factory.mktemp("family"), family)
        model = read_model({"path": str(folder), "trained_length": TRAINED})
        dtype = "float64" if family in DENSE else "float32"  # experts and recurrences have no float64
        return Hf(model, dtype=dtype, device="cpu"), Hf(model, dtype=dtype, device="cpu", fast=False)

    return opened


def answers(backend: Hf, attention: Attention) -> list[Any]:
    """Losses, losses of options and written tokens under an Attention, some of them in one batch; or the refusal."""
    draw = np.random.default_rng(0)
    texts = [draw.integers(3, 90, LENGTH) for _ in range(3)]
    about: dict[str, Any] = {"index": 0, "cluster": ""}
    try:
        backend.attend(attention)
        found: list[Any] = [
            backend.score(Loglikelihood(**about, tokens=texts[0], first_target=TRAINED, bytes=1, words=1)).nll
        ]
        options = tuple(draw.integers(3, 90, size) for size in (1, 3))
        found.append(backend.choose(Choose(**about, prompt=texts[1][:-4], options=options, expected=0)).nll)
        writes = [
            Generate(**about, prompt=text[: LENGTH - 8 - place], max_new_tokens=8) for place, text in enumerate(texts)
        ]
        keys = {backend.batch_key(write) for write in writes}
        together = backend.answer_batch(writes) if len(keys) == 1 else map(backend.write, writes)
        return [*found, *(cast(GenerateAnswer, written).tokens for written in together)]
    except Refused as refusal:
        return [refusal.reason]


@pytest.mark.everyday("Llama 3.1")
@pytest.mark.parametrize("family", [*CASES, *OTHERS])
def test_answers_are_equal(family: str, pair: Callable[[str], tuple[Hf, Hf]]) -> None:
    fast, plain = pair(family)
    within = 1e-9 if fast.dtype == "float64" else 2e-4
    measured = 0
    for name in METHODS:
        attention = attention_of(lexbench.method(name), fast.model, LENGTH)
        one, other = answers(fast, attention), answers(plain, attention)
        assert len(one) == len(other), f"{name}: {one[0]} | {other[0]}"
        for a, b in zip(one, other, strict=True):
            if isinstance(a, str):
                assert a == b
            else:
                np.testing.assert_allclose(np.asarray(a, float), np.asarray(b, float), atol=within, rtol=0)
                measured += 1
    assert measured >= 15 and family in FAMILIES


def test_the_kernel_says_so() -> None:
    from lexbench.core.model import Model

    model = Model(name="lexlet", trained_length=256, head_dim=1, path="lexbench:lexlet")
    assert Hf(model, device="cpu", fast=False).kernel == "sdpa+lexbench+dense"
