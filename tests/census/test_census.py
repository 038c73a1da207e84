"""Every type of causal language model of transformers: right, or refused for a true reason."""

from pathlib import Path
from typing import Any

import pytest

from lexbench import run
from tests.census import asking, tiny
from tools import models_page

pytestmark = pytest.mark.usefixtures("one_thread")
REPRESENTATIVE = (
    *("gpt2", "mistral", "gemma2", "cohere"),  # keys; a window; a cap and a scale on the logits
    *("mamba", "rwkv", "qwen3_5", "minimax"),  # states: recurrent, mixed up in batches, mixed, in a cache of its own
    *("llama4", "qwen2_vl"),  # text towers of multimodal models
)
"""Of each kind of head, state and tower one."""


def check(kind: str) -> None:
    found = asking.census(kind)
    assert not found.dishonest
    assert models_page.row(kind, found) == models_page.rows()[kind], (
        "results/models.md is old: python -m tools.models_page"
    )


@pytest.mark.everyday("gpt2", "gemma2", "mamba")
@pytest.mark.parametrize("kind", REPRESENTATIVE)
def test_a_type_answers_as_the_stock_model(kind: str) -> None:
    check(kind)
    assert models_page.rows()[kind].split("|")[2:4] == [" yes ", " yes "]


@pytest.mark.slow
@pytest.mark.parametrize("kind", REPRESENTATIVE)
def test_a_type_answers_as_the_stock_model_in_bfloat16(kind: str, tmp_path: Path) -> None:
    asking.check_in_bfloat16(tiny.save(tmp_path / kind, kind))


@pytest.mark.slow
@pytest.mark.parametrize("kind", sorted({*tiny.types()} - {*REPRESENTATIVE, *tiny.UNMADE}))
def test_every_type_answers_as_the_stock_model_or_says_why_not(kind: str) -> None:
    check(kind)


def test_the_page_has_every_type_of_transformers() -> None:
    assert models_page.PAGE.read_text().startswith(models_page.HEAD)
    found = models_page.rows()
    assert list(found) == sorted(tiny.types())
    assert {kind: found[kind] for kind in tiny.UNMADE} == {kind: models_page.unmade(kind) for kind in tiny.UNMADE}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["mamba", "gemma2"])
def test_a_run_measures_what_it_refused_before(kind: str, tmp_path: Path) -> None:
    folder = tiny.save(tmp_path / kind, kind)
    model: dict[str, Any] = {"path": str(folder), "name": kind, "trained_length": 64}
    table = run(model, task=["passkey", "last_segment"], lengths=[48], n=2, results=tmp_path / "run").records()
    assert table.refused.isna().all() and table.value.notna().all()
