"""Comparing a server with another one or with a checkpoint, without a pack."""

from typing import Any

import numpy as np
import pytest
import torch

from lexbench.commands import main
from lexbench.core.record import Refused
from lexbench.parts.serving.identify.against import compare_differences
from tests.backends import scripted
from tests.parts.serving.plain_server import PlainServer
from tools.serving import Engine

PLAIN: dict[str, Any] = {"rope": {"rope_type": "default", "rope_theta": 10_000.0}}
VLLM = {"models": scripted.listing("one", **scripted.VLLM), "version": "0.30.0"}


@pytest.mark.parametrize(
    ("near", "behind", "far", "same", "said"),
    [
        (0.06, 0.06, 0.07, True, "the same up to 900 tokens: 0.06 nats apart near"),
        (0.0, 0.01, None, True, "the same up to 900 tokens"),  # at least 3 x 0.005 nats are rounding
        (0.0, 0.02, None, False, "not the same, and further apart with every token"),
        (0.01, 0.02, 0.5, False, "not the same, and further apart with every token"),
        (0.2, 0.29, None, True, "the same"),  # at most 3 x 0.1 nats are rounding
        (0.4, 0.42, 0.41, False, "not the same from the first tokens on"),
    ],
)
def test_what_grows_with_the_length_is_no_rounding(
    near: float, behind: float, far: float | None, same: bool, said: str
) -> None:
    one = np.array([[1.0, -1.0, np.nan]])
    found = compare_differences(near * one, behind * one, None if far is None else far * one, 900, "prompts")
    assert found.same == same and [found.near, found.distance] == pytest.approx([near, behind])
    assert found.verdict.startswith(said)


def test_servers_without_a_token_in_common_are_refused() -> None:
    with pytest.raises(Refused, match="tell no token in common"):
        compare_differences(np.full((1, 2), np.nan), np.ones((1, 2)), None, 9, "next tokens")


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


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
def test_a_server_is_held_against_its_checkpoint(capsys: pytest.CaptureFixture[str]) -> None:
    for fields, code in ((PLAIN, 0), ({}, 1)):
        with scripted.serving(PlainServer(**fields, dtype=torch.bfloat16).answer) as server:
            assert main.main(["identify", server.url, "--against", "lexlet", "backend.concurrency=1"]) == code
        said = capsys.readouterr().out
        assert said.startswith("as its config says: " if code == 0 else "none of these: the nearest, as its config")
