"""Comparing a server with another one or with a checkpoint, without a pack."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from lexbench.commands import main
from lexbench.core.record import Refused
from lexbench.parts.serving.identify.differences import (
    ServerDifferences,
    bounds_by_length,
    compare_differences,
    same_token_share,
)
from tests.backends import scripted
from tests.parts.serving.plain_server import PlainServer
from tools.serving import FAULTS, HEALTHY, Engine, edited, sampled, whole

PLAIN: dict[str, Any] = {"rope": {"rope_type": "default", "rope_theta": 10_000.0}}
VLLM = {"models": scripted.listing("one", **scripted.VLLM), "version": "0.30.0"}


def rounded(near: float, behind: float, opening: float | None = None, seed: int = 0) -> ServerDifferences:
    """Differences of 4 texts of 500 tokens, 63 of them near the beginning and 16 at it, of these sizes."""
    rng = np.random.default_rng(seed)
    moved = rng.choice([-1.0, 1.0], (4, 500)) * np.where(np.arange(500) < 63, near, behind)
    if opening is not None:
        moved[:, :16] *= opening / near
    nats, ids = rng.exponential(2, moved.shape), rng.integers(0, 300, moved.shape)
    return ServerDifferences(nats=nats, moved=moved, ids=ids, opening=16, near=63)


@pytest.mark.parametrize(
    ("near", "behind", "far", "dtype", "same", "said"),
    [
        (
            0.06,
            0.06,
            0.07,
            "unknown",
            True,
            "the same up to 900 tokens, within 0.18 nats at every length (0.06 at most)",
        ),
        (0.01, 0.012, None, "unknown", True, "the same up to 900 tokens"),
        (1e-9, 0.014, None, "unknown", True, "the same up to 900 tokens"),  # 3 x 0.005 nats are rounding
        (1e-9, 0.016, None, "unknown", False, "not the same, and further apart with every token"),
        (0.01, 0.02, 0.5, "unknown", False, "not the same, and further apart with every token"),
        (0.17, 0.17, None, "bfloat16", True, "the same"),  # at most 3 x 0.06 nats are rounding
        (0.2, 0.2, None, "bfloat16", False, "not the same from the first tokens on"),
        (0.2, 0.29, None, "unknown", False, "not the same from the first tokens on"),
        (0.1, 0.1, None, "float16", False, "not the same from the first tokens on"),
        (0.02, 0.02, None, "float32", False, "not the same from the first tokens on"),
        (0.4, 0.42, 0.41, "int4", False, "not the same from the first tokens on"),
    ],
)
def test_more_than_a_precision_explains_is_no_rounding(
    near: float, behind: float, far: float | None, dtype: str, same: bool, said: str
) -> None:
    at_far = None if far is None else np.array([[far, -far, np.nan]])
    found = compare_differences(rounded(near, behind), at_far, 900, "prompts", dtype)
    assert found.same == same and [found.near, found.distance] == pytest.approx([near, behind])
    assert found.verdict.startswith(said)


def test_differences_of_the_first_tokens_are_of_what_stands_before_them() -> None:
    """A second BOS moves the first 16 tokens of lexlet by 0.113 nats and those behind by 0.037."""
    found = compare_differences(rounded(0.08, 0.037, opening=0.113), None, 900, "prompts")
    assert not found.same and found.opening == pytest.approx(0.113)
    assert found.verdict.startswith("not the same at the beginning of texts, as with a second BOS")
    assert compare_differences(rounded(0.03, 0.03, opening=0.055), None, 900, "prompts").same


@pytest.mark.parametrize("temperature", [1.02, 1.1, 0.9])
def test_another_temperature_is_no_rounding_however_small(temperature: float) -> None:
    """By the formula: logits over T, of a softmax over 50 tokens, with rounding of 0.005 nats."""
    rng = np.random.default_rng(1)
    logits, place = rng.normal(0, 3, (4, 200, 50)), rng.integers(0, 50, (4, 200, 1))
    nats = [
        -np.take_along_axis(each - np.log(np.exp(each).sum(axis=-1, keepdims=True)), place, -1)[..., 0]
        for each in (logits, logits / temperature)
    ]
    moved = nats[0] - nats[1] + 0.005 * rng.normal(size=nats[0].shape)
    one = ServerDifferences(nats=nats[0], moved=moved, ids=rng.integers(0, 99, moved.shape), opening=16, near=25)
    found = compare_differences(one, None, 200, "prompts", "bfloat16")
    assert not found.same
    if temperature == 1.02:
        assert "in proportion to the likelihoods, as of another temperature" in found.verdict


def test_something_added_to_some_tokens_is_no_rounding_however_small() -> None:
    """0.06 added to 45 of 300 tokens; the share of the variance that it explains, by hand from three tokens."""
    one = rounded(0.001, 0.001)
    moved = one.moved + np.where(one.ids < 45, 0.06, 0.0)
    found = compare_differences(replace(one, moved=moved), None, 900, "prompts", "bfloat16")
    assert not found.same and "a token differs alike wherever it stands" in found.verdict
    pair = replace(one, moved=np.array([[1.0, 3.0, -4.0, 0.0] * 32]), ids=np.array([[0, 0, 1, 2] * 32]))
    # Centred already: token 0 has 32 x (1, 3), token 1 has -4 and token 2 has 0, each 32 times.
    products = ((32 * 4) ** 2 - 32 * 10) / 63 + ((32 * 4) ** 2 - 32 * 16) / 31
    assert same_token_share(pair) == pytest.approx(products / (32 * 26))


def test_the_bound_of_each_length_is_that_of_the_formula() -> None:
    """Two texts of 32 tokens in blocks of 16, with means of squares 0.01 and 0.04, and 0.09 and 0.25 behind."""
    moved = np.repeat([[0.1, 0.3], [-0.2, 0.5]], 16, axis=1)
    one = ServerDifferences(nats=abs(moved), moved=moved, ids=np.zeros((2, 32), np.int64), opening=16, near=16)
    # Student's quantile at 0.95 with 1 degree of freedom is tan(0.45 pi); sd / sqrt(2) of two values is half of what
    # they are apart.
    reach = np.tan(0.45 * np.pi)
    expected = {16: np.sqrt(0.025 + reach * 0.015), 32: np.sqrt(0.17 + reach * 0.08)}
    assert bounds_by_length([one]) == pytest.approx(expected)


def test_what_is_not_proven_is_not_called_the_same() -> None:
    """Of four texts one is 0.3 nats off in 32 targets of 500: 0.04 in all, and too uncertain at these lengths."""
    one = rounded(0.02, 0.02)
    moved = one.moved.copy()
    moved[0, 240:272] *= 15
    found = compare_differences(replace(one, moved=moved), None, 500, "prompts", "float16")
    assert found.same and not found.proven and found.bound > found.margin == pytest.approx(0.06)
    assert found.verdict.startswith(f"no difference above {found.bound:.2g} nats found up to 500 tokens: ")
    assert compare_differences(one, None, 500, "prompts", "float16").proven
    single = replace(one, moved=one.moved[:1, :8], nats=one.nats[:1, :8], ids=one.ids[:1, :8], near=4)
    assert compare_differences(single, None, 9, "prompts", "float16").bound == np.inf


def test_a_fault_of_writing_is_a_difference() -> None:
    found = compare_differences(rounded(0.01, 0.01), None, 900, "prompts", faults=["the first server: slips"])
    assert not found.same and found.verdict.startswith("not the same in what they write")


def test_servers_without_a_token_in_common_are_refused() -> None:
    one = rounded(0.01, 0.01)
    with pytest.raises(Refused, match="tell no token in common"):
        compare_differences(replace(one, moved=np.full_like(one.moved, np.nan)), None, 9, "next tokens")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["pack.npz", "--against", "lexlet"], "--against compares a server, got pack.npz"),
        (["http://a/v1", "--against", "http://b/v1"], "names no model: give model=NAME, whose tokenizer both have"),
        (["http://a/v1", "--against", "lexlet", "model=lexlet"], "names its model: leave model= out"),
        (["http://a/v1", "--against", "lexlet", "backend=hf"], "asks servers by backend=openai, got backend=hf"),
        (["http://a/v1", "--against", "lexlet", "--expect", "plain"], "--expect needs a pack, --against has none"),
    ],
)
def test_what_cannot_be_compared_is_one_line(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["identify", *words]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("kind", [Engine, PlainServer])
def test_a_scaling_that_only_one_server_has_is_seen(kind: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """By prompts and by next tokens: bfloat16 is no difference, NTK of factor 2 is one."""
    more: dict[str, Any] = VLLM if kind is Engine else {}
    others: list[tuple[dict[str, Any], int]] = [({**PLAIN, "dtype": torch.bfloat16}, 0), ({}, 1)]
    for fields, code in others:
        with (
            scripted.serving(kind(**PLAIN).answer, **more) as one,
            scripted.serving(kind(**fields).answer, **more) as two,
        ):
            words = ["identify", one.url, "--against", two.url, "model=lexlet", "backend.concurrency=1"]
            assert main.main(words) == code
        said = capsys.readouterr().out
        assert said.startswith("the same up to 512" if code == 0 else "not the same, and further apart with every")


def biased(logits: torch.Tensor) -> torch.Tensor:
    """0.3 added to 300 tokens."""
    chosen = torch.randperm(logits.shape[-1], generator=torch.Generator().manual_seed(1))[:300]
    return logits.index_add(-1, chosen, torch.full((*logits.shape[:-1], 300), 0.3))


WRONG: dict[str, dict[str, Any]] = {
    "a text in front": edited(
        lambda engine, tokens: [(tokens[0], 0), *((token, -1) for token in range(90, 114)), *whole(tokens)[1:]]
    ),
    "BOS twice": FAULTS["BOS twice"],
    "a temperature of 1.1": {"logits": lambda logits: logits / 1.1},
    "0.3 added to 300 tokens": {"logits": biased},
    "sampling": {"next": sampled},
}
TRUE: dict[str, dict[str, Any]] = {
    name: HEALTHY[name]
    for name in ("bfloat16", "float16", "weights in 8 bits, a scale a row", "bfloat16, noise of 0.05, seed 0")
}


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("kind", [Engine, PlainServer])
@pytest.mark.parametrize("name", [*WRONG, *TRUE])
def test_servers_that_differ_by_more_than_rounding_are_not_the_same(
    name: str, kind: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    more: dict[str, Any] = VLLM if kind is Engine else {}
    with (
        scripted.serving(kind(**PLAIN).answer, **more) as one,
        scripted.serving(kind(**{**PLAIN, **(WRONG | TRUE)[name]}).answer, **more) as two,
    ):
        words = ["identify", one.url, "--against", two.url, "model=lexlet", "backend.concurrency=1"]
        code = main.main(words)
        assert code == (name in WRONG), capsys.readouterr()


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
def test_a_server_is_held_against_its_checkpoint(capsys: pytest.CaptureFixture[str]) -> None:
    for fields, code in ((PLAIN, 0), ({}, 1)):
        with scripted.serving(PlainServer(**fields, dtype=torch.bfloat16).answer) as server:
            assert main.main(["identify", server.url, "--against", "lexlet", "backend.concurrency=1"]) == code
        said = capsys.readouterr().out
        assert said.startswith("as its config says: " if code == 0 else "none of these: the nearest, as its config")
