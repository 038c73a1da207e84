"""Gates of a recipe, on models whose figures are known without measuring them."""

import json
import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from lexbench.corpora.synthetic import Synthetic
from lexbench.parts.lab.native.recipe import Recipe
from lexbench.parts.lab.native.train import PreparedTraining, TrainingJob, train
from lexbench.parts.lab.study import gates
from lexbench.parts.lab.study.gates import GateFigure

pytestmark = pytest.mark.usefixtures("one_thread")
CORPORA = [{"name": "synthetic", "count": 2, "words": 400}]
UNSEEN = {"name": "synthetic", "seed": 1, "count": 3, "words": 800}
RECIPE = Recipe(
    stages=[{"steps": 2, "lessons": {"text": 1.0}}],
    shape={"layers": 1, "width": 16, "heads": 2, "kv_heads": 1, "hidden": 16},
    vocabulary=300,
    trained_length=64,
    batch=4,
    warmup=0,
)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[GateFigure]]:
    """A model whose weights are all 0: every token is as likely as any other."""
    place = tmp_path_factory.mktemp("gates")
    torch.set_num_threads(1)
    texts = [Synthetic(count=2, words=400)]
    train(PreparedTraining(TrainingJob(recipe=RECIPE, corpora=texts, held_out=texts)), place / "model")
    file = place / "model" / "model.safetensors"
    save_file({name: torch.zeros_like(weight) for name, weight in load_file(file).items()}, file, {"format": "pt"})
    return place, gates.measure_gates(place / "model", UNSEEN, CORPORA, places=6, questions=2)


def test_a_model_without_weights_has_the_uniform_nll_and_gains_nothing(measured: tuple[Path, list[GateFigure]]) -> None:
    found = {each.gate: each for each in measured[1] if each.gate != "tasks"}
    assert found["model"].value == found["uniform"].value == pytest.approx(math.log(300), abs=1e-4)
    assert found["context"].value == found["beyond"].value == pytest.approx(0, abs=1e-4)
    trigram = found["trigram"].value
    assert trigram is not None and trigram < math.log(300)
    assert found["text"].value == pytest.approx(trigram - math.log(300), abs=2e-4)
    assert [found[name].holds for name in ("text", "context", "beyond", "trigram")] == [False, False, False, None]


def test_a_task_that_does_not_fit_is_refused_with_its_reason(measured: tuple[Path, list[GateFigure]]) -> None:
    [passkey] = [each for each in measured[1] if each.figure == "passkey at 48 tokens"]
    assert passkey.value is None and passkey.holds is False
    assert passkey.refused and "raise length" in passkey.refused
    assert passkey.refused in gates.gates_markdown("model", measured[1])
    assert json.loads(gates.gates_json([passkey]))[0]["refused"] == passkey.refused


@pytest.mark.parametrize(("value", "holds"), [(0.2999, "**no**"), (0.3, "yes")])
def test_a_gate_holds_from_its_least_value_on(value: float, holds: str) -> None:
    table = gates.gates_markdown("rope-seed0", [GateFigure(gate="text", figure="x", value=value, least=0.3)])
    row = [text.strip() for text in table.splitlines()[-1].strip("|").split("|")]
    assert row == ["text", "x", "0.300", "", "0.30", holds]
