"""vLLM's real engine agrees with hf token by token: in bfloat16 on lexlet, in float32 on a published checkpoint."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

import lexbench
from lexbench.backends.hf.backend import Hf
from lexbench.checkpoints.checkpoint import read_model
from lexbench.checkpoints.tokenizer import load_tokenizer
from lexbench.core import registry
from lexbench.core.attention import Attention
from lexbench.core.model import Model
from lexbench.core.task import Loglikelihood, Tokens
from lexbench.parts.serving.parity import compare
from lexbench.parts.serving.parity.tolerance import rounding_tolerance
from lexbench.parts.serving.vllm.backend import Vllm
from lexbench.runner.job import Job
from tests.parts.serving.vllm.engines import without_workers

SHARE = 0.08
"""Of this machine's memory, for an engine."""
METHODS = ["none", "pi", "ntk", "ntk_by_parts", "yarn", "yarn_paper", "llama3", "abf", "truncated_basis", "resonance"]
TARGETS = 64


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Threads and processes cost more than they bring on small models."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with without_workers():
        yield
    torch.set_num_threads(threads)


def job(methods: list[dict[str, Any]], lengths: list[int]) -> Job:
    """hf as the reference, one question a cell."""
    return Job.of(
        model=registry.read_named_config("model", "lexlet"),
        methods=[{**registry.read_named_config("method", method["name"]), **method} for method in methods],
        tasks=[{**registry.read_named_config("task", "last_segment"), "name": "last_segment"}],
        corpus={**registry.read_named_config("corpus", "synthetic"), "name": "synthetic"},
        backend={**registry.read_named_config("backend", "hf"), "name": "hf"},
        lengths=lengths,
        multiples=None,
        n=1,
        seeds=[0],
        results=None,
    )


def test_lexlet_in_bfloat16_is_within_its_tolerance() -> None:
    """As `lexbench verify --against` compares; in float32 test_vllm.py has every method."""
    searched = {"name": "longrope", "long_factors": tuple(np.geomspace(1.0, 8.0, 16).tolist())}
    methods: list[dict[str, Any]] = [{"name": "none"}, {"name": "yarn"}, searched, {"name": "rerope"}]
    found = compare.compare_backends(
        job(methods, [128, 512, 2048]), [compare.backend_config_of_word(f"vllm,memory_share={SHARE},dtype=bfloat16")]
    )
    assert not found.failed, compare.agreement_table(found)
    assert {row.method for row in found.rows if row.refused is not None} == {"rerope"}
    assert len(found.rows) == 4 * 3 and {row.tokens for row in found.rows} == {0, TARGETS}


# a published checkpoint whose heads are too small for vLLM's CPU kernels: the same network with larger ones


def padded_rows(weight: torch.Tensor, heads: int, dims: list[int], wide: int) -> torch.Tensor:
    """[heads wide, width]: row i of each head at dims[i], the others 0."""
    spread = torch.zeros(heads, wide, weight.shape[1])
    spread[:, dims] = weight.view(heads, len(dims), -1)
    return spread.reshape(heads * wide, -1)


def enlarge(source: Path, target: Path, wide: int = 32) -> None:
    """The checkpoint with heads of `wide` dimensions, of which rotary pair p is the old pair p, and most are 0.

    Scores are divided by sqrt(wide) in place of sqrt(head_dim): queries make up for it.
    """
    config = json.loads((source / "config.json").read_text())
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    old = config["hidden_size"] // heads
    turned = [*range(old // 2), *range(wide // 2, wide // 2 + old // 2)]
    weights = load_file(source / "model.safetensors")
    for name, weight in weights.items():
        if name.endswith("q_proj.weight"):
            weights[name] = padded_rows(weight, heads, turned, wide) * (wide / old) ** 0.5
        elif name.endswith("k_proj.weight"):
            weights[name] = padded_rows(weight, kv_heads, turned, wide)
        elif name.endswith("v_proj.weight"):
            weights[name] = padded_rows(weight, kv_heads, list(range(old)), wide)
        elif name.endswith("o_proj.weight"):
            weights[name] = padded_rows(weight.T.contiguous(), heads, list(range(old)), wide).T.contiguous()
    target.mkdir()
    save_file(weights, target / "model.safetensors", {"format": "pt"})
    (target / "config.json").write_text(json.dumps({**config, "head_dim": wide}))
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        (target / name).write_bytes((source / name).read_bytes())


class Stories:
    """stories260K as it is, and enlarged; one text for all lengths."""

    def __init__(self, folder: Path, shared: Path) -> None:
        enlarge(shared / "stories260K-hf", folder)
        self.original: Model = read_model({"path": str(shared / "stories260K-hf")})
        self.enlarged: Model = read_model({"path": str(folder)})
        text = (shared / "text" / "tinystories.txt").read_text()[:40_000]
        tokenizer = load_tokenizer(folder)
        self.tokens: Tokens = np.concatenate([tokenizer.prefix, tokenizer.encode(text).ids])

    def question(self, length: int) -> Loglikelihood:
        return Loglikelihood(
            index=0, cluster="a", tokens=self.tokens[:length], first_target=length - TARGETS, bytes=1, words=1
        )

    def widened(self, attention: Attention) -> Attention:
        """The Attention of the enlarged checkpoint that is this one of the original."""
        asked = self.original.inv_freq() if attention.inv_freq is None else attention.inv_freq
        return Attention(inv_freq=self.frequencies(asked), scale=attention.scale)

    def frequencies(self, asked: Any) -> Any:
        """Those of the original's pairs, then whatever the others have: they hold zeros."""
        return np.concatenate([asked, self.enlarged.inv_freq()[len(asked) :]])


@pytest.fixture(scope="module")
def stories(tmp_path_factory: pytest.TempPathFactory, shared: Path) -> Stories:
    return Stories(tmp_path_factory.mktemp("stories") / "enlarged", shared)


def nll(backend: Hf | Vllm, attention: Attention, question: Loglikelihood) -> Any:
    backend.attend(attention)
    return backend.score(question).nll.astype(np.float64)


@pytest.mark.parametrize("length", [512, 2048])
def test_the_enlarged_checkpoint_is_the_original_to_transformers(stories: Stories, length: int) -> None:
    factors = (stories.enlarged.inv_freq() / stories.frequencies(stories.original.inv_freq())).tolist()
    rope = {
        "rope_type": "longrope",
        "rope_theta": stories.enlarged.rope_base,
        "short_factor": factors,
        "long_factor": factors,
        "factor": 1.0,
        "attention_factor": 1.0,
        "original_max_position_embeddings": stories.enlarged.trained_length,
    }
    question = stories.question(length)
    ids = torch.from_numpy(question.tokens)[None]
    losses = []
    for model, given in ((stories.original, {}), (stories.enlarged, {"rope_parameters": rope})):
        network = AutoModelForCausalLM.from_pretrained(model.path, dtype=torch.float64, **given).eval()
        with torch.inference_mode():
            logits = network(ids).logits[0, question.first_target - 1 : -1]
        losses.append(
            torch.nn.functional.cross_entropy(logits, ids[0, question.first_target :], reduction="none").numpy()
        )
    np.testing.assert_allclose(losses[1], losses[0], rtol=0, atol=1e-5)


def test_stories_at_its_trained_length_and_at_eight_times(stories: Stories) -> None:
    trained = stories.original.trained_length
    lengths = [trained, 8 * trained]
    hf, engine = Hf(stories.original), Vllm(stories.enlarged, longest=lengths[-1], memory_share=SHARE)
    shares: dict[str, float] = {}
    try:
        for name in [*METHODS, "longrope"]:
            for length in lengths:
                attention, question = (
                    lexbench.method(name).attention(stories.original, length),
                    stories.question(length),
                )
                apart = abs(nll(engine, stories.widened(attention), question) - nll(hf, attention, question))
                allowed = rounding_tolerance(["float32", "float32"], length, len(apart))
                shares[f"{name} at {length}"] = max(apart.max() / allowed.largest, apart.mean() / allowed.mean)
    finally:
        engine.close()
    assert max(shares.values()) <= 1, {what: share for what, share in shares.items() if share > 1}
