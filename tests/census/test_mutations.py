"""Faults put into a model, one at a time: the census' comparison with the stock model catches each."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from lexbench import Attention
from lexbench.backends.hf import Hf
from lexbench.backends.hf.exact.state import KeyValueState
from lexbench.runner.verify import Preflight
from tests.census import asking, tiny

pytestmark = pytest.mark.usefixtures("one_thread")


def drop_a_key(cache: Any) -> None:
    for layer in cache.layers:
        layer.keys[:, :, 3] = layer.values[:, :, 3] = 0


def keep_a_stale_key(cache: Any) -> None:
    for layer in cache.layers:
        layer.keys[:, :, -1], layer.values[:, :, -1] = layer.keys[:, :, -2], layer.values[:, :, -2]


@pytest.mark.everyday("drop_a_key")
@pytest.mark.parametrize("fault", [drop_a_key, keep_a_stale_key])
def test_a_broken_cache_is_caught(
    fault: Callable[[Any], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tiny.save(tmp_path / "llama", "llama")
    hf, stock = asking.open_hf(folder), asking.Stock(folder)
    asking.check_choose(hf, stock)
    read = KeyValueState.read

    def broken(self: KeyValueState, tower: Any, tokens: torch.Tensor) -> torch.Tensor:
        states = read(self, tower, tokens)
        fault(self.cache)
        return states

    monkeypatch.setattr(KeyValueState, "read", broken)
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        asking.check_choose(hf, stock)
    why = Preflight(None, hf, "").failure_of_cache(Attention(), len(asking.TOKENS))
    assert why is not None and why.startswith("failed its self-check: cached")


def uncap(network: Any) -> None:
    network.config.final_logit_softcapping = None


def uncap_scores(network: Any) -> None:
    for layer in network.model.layers:
        layer.self_attn.attn_logit_softcapping = None


def lose_sinks(network: Any) -> None:
    for layer in network.model.layers:
        layer.self_attn.sinks.data.fill_(-1e4)


def widen_windows(network: Any) -> None:
    network.model.config.layer_types = ["full_attention"] * len(network.model.layers)


FAULTS = [
    ("gemma2", uncap),
    ("gemma2", uncap_scores),
    ("gpt_oss", lose_sinks),
    ("gemma3_text", widen_windows),
]


@pytest.mark.everyday("gemma2-uncap", "gpt_oss-lose_sinks")
@pytest.mark.parametrize(("kind", "fault"), FAULTS)
def test_a_fault_of_the_network_is_caught(kind: str, fault: Callable[[Any], None], tmp_path: Path) -> None:
    folder = tiny.save(tmp_path / kind, kind)
    hf, stock = asking.open_hf(folder), asking.Stock(folder)
    for check in (asking.check_score, asking.check_mark, asking.check_choose):
        check(hf, stock)
    fault(hf.reader.network)
    for check in (asking.check_score, asking.check_mark, asking.check_choose):
        with pytest.raises(AssertionError, match="Not equal to tolerance"):
            check(hf, stock)


@pytest.mark.slow
def test_a_fault_becomes_a_dishonest_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = asking.open_hf

    def broken(folder: Path) -> Hf:
        hf = opened(folder)
        uncap(hf.reader.network)
        return hf

    monkeypatch.setattr(asking, "open_hf", broken)
    found = asking.ask(tiny.save(tmp_path / "gemma2", "gemma2"))
    assert {"score", "mark", "choose"} <= found.dishonest.keys()
