"""Fine-tuning: what is taken from a trained folder, and what comes out of it."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file

from lexbench.backends.hf.backend import Hf
from lexbench.checkpoints.checkpoint import read_model
from lexbench.core.task import Loglikelihood
from lexbench.corpora import Corpus
from lexbench.corpora.synthetic import Synthetic
from lexbench.parts.lab.backend import Native
from lexbench.parts.lab.native.folder import load_model
from lexbench.parts.lab.native.learner import Learner
from lexbench.parts.lab.native.recipe import Recipe
from lexbench.parts.lab.native.train import PreparedTraining, TrainingJob, train

pytestmark = pytest.mark.usefixtures("one_thread")
TEXTS: list[Corpus] = [Synthetic(count=4, words=400)]
SHAPE = {"layers": 2, "width": 32, "heads": 2, "kv_heads": 1, "hidden": 32}
STAGES = ({"steps": 3, "lessons": {"text": 1.0}},)


def begun(folder: Path, shape: dict[str, object] | None = None, **encoding: object) -> Path:
    """A folder that a few wild steps of training left, so that attention matters."""
    recipe = Recipe(
        stages=({"steps": 20, "lessons": {"text": 1.0}},),
        shape={**SHAPE, **(shape or {})},
        vocabulary=300,
        trained_length=32,
        batch=4,
        rate=0.03,
        warmup=1,
    )
    train(PreparedTraining(TrainingJob(recipe=recipe, corpora=TEXTS, held_out=TEXTS, encoding=encoding)), folder)
    return folder


@pytest.fixture(scope="module")
def rope(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return begun(tmp_path_factory.mktemp("rope"), name="rope", base=5000.0)


def prepared(start: str | Path, recipe: dict[str, object] | None = None, **given: object) -> PreparedTraining:
    settings: dict[str, object] = {"stages": STAGES, "trained_length": None, "batch": 4, "rate": 1e-9}
    own = Recipe(**{**settings, **(recipe or {})})  # type: ignore[arg-type]
    return PreparedTraining(TrainingJob(recipe=own, corpora=TEXTS, held_out=TEXTS, start=start, **given))  # type: ignore[arg-type]


def tuned(start: Path, out: Path, recipe: dict[str, object] | None = None, **given: object) -> dict[str, object]:
    """Train and give the record."""
    train(prepared(start, recipe, **given), out)
    found: dict[str, object] = json.loads((out / "training.json").read_text())
    return found


def whole(tokens: NDArray[np.int64]) -> Loglikelihood:
    """All tokens behind the first."""
    return Loglikelihood(index=0, cluster="", tokens=tokens, first_target=1, bytes=1, words=1)


def test_sizes_tokenizer_weights_and_encoding_are_the_starts(rope: Path, tmp_path: Path) -> None:
    record = tuned(rope, tmp_path)  # at such a rate nothing moves
    before, after = load_file(rope / "model.safetensors"), load_file(tmp_path / "model.safetensors")
    for name, weight in before.items():
        torch.testing.assert_close(after[name], weight, atol=1e-7, rtol=0)
    assert (tmp_path / "tokenizer.json").read_bytes() == (rope / "tokenizer.json").read_bytes()
    model = read_model({"path": str(tmp_path)})
    assert (model.trained_length, model.rope_base) == (32, 5000.0)
    assert record["start"] == {"folder": str(rope), "fingerprint": Native(read_model({"path": str(rope)})).revision}
    assert record["encoding_weights"] == "the start's"


def test_a_shipped_llama_is_a_start(tmp_path: Path) -> None:
    own = prepared("lexbench:lexlet")
    assert own.recipe.length == 256 and own.recipe.sizes().layers == 4
    assert own.name == "rope-seed0"


@pytest.mark.parametrize(
    ("recipe", "said"),
    [
        ({"shape": {"layers": 3}}, r"recipe\.shape\.layers is 3, start=.* has 2: leave it out"),
        ({"vocabulary": 512}, r"recipe\.vocabulary is 512, start=.* has 300"),
    ],
)
def test_a_recipe_that_says_other_sizes_is_refused(rope: Path, recipe: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        prepared(rope, recipe)
    assert prepared(rope, {"shape": {"layers": 2}, "vocabulary": 300}).shape.layers == 2


def test_folders_that_are_no_start_are_refused(rope: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"is no trained folder: give one with config\.json"):
        prepared(tmp_path)
    with pytest.raises(ValueError, match="start=runs/nowhere is no trained folder"):
        prepared("runs/nowhere")
    with pytest.raises(ValueError, match="is the folder of start, too: give another folder"):
        train(prepared(rope), rope)


def test_another_encoding_keeps_the_shared_weights_and_begins_its_own(rope: Path, tmp_path: Path) -> None:
    record = tuned(rope, tmp_path, encoding={"name": "nope"})
    before, after = load_file(rope / "model.safetensors"), load_file(tmp_path / "model.safetensors")
    for name, weight in before.items():
        torch.testing.assert_close(after[name], weight, atol=1e-7, rtol=0)
    assert json.loads((tmp_path / "config.json").read_text())["encoding"]["_target_"].endswith("nope.Nope")
    assert record["encoding_weights"] == "begun anew"
    tokens = np.arange(3, 20)
    answers = [Native(read_model({"path": str(folder)})).score(whole(tokens)).nll for folder in (rope, tmp_path)]
    assert np.abs(answers[0] - answers[1]).max() > 0.001  # the rotations are gone


@pytest.mark.slow
def test_learnt_encodings_go_on_where_they_are_the_same(tmp_path: Path) -> None:
    start = begun(tmp_path / "kerple", name="kerple", form="log")
    assert tuned(start, tmp_path / "same")["encoding_weights"] == "the start's"
    before, after = (load_file(folder / "model.safetensors") for folder in (start, tmp_path / "same"))
    own = [name for name in before if "encoding" in name]
    assert own
    for name in own:
        torch.testing.assert_close(after[name], before[name], atol=1e-7, rtol=0)
    table = begun(tmp_path / "learned", name="learned")
    with pytest.raises(ValueError, match=r"learned has positions for \d+ tokens, asked for \d+: raise size"):
        tuned(table, tmp_path / "longer", {"trained_length": 64})


def test_a_name_means_the_starts_encoding_but_for_what_is_given(rope: Path) -> None:
    assert prepared(rope, encoding={"name": "rope"}).encoding["base"] == 5000.0
    assert prepared(rope, encoding={"name": "pose"}).encoding["over"]["base"] == 5000.0
    assert prepared(rope, encoding={"base": 500000.0}).encoding["base"] == 500000.0
    assert prepared(rope, encoding={"name": "rope", "base": 10000.0}).encoding["base"] == 10000.0


def test_a_changed_base_is_in_the_llama(rope: Path, tmp_path: Path) -> None:
    tuned(rope, tmp_path, encoding={"base": 500000.0})
    assert read_model({"path": str(tmp_path)}).rope_base == 500000.0


@pytest.mark.everyday("{'name': 'yarn'}")
@pytest.mark.parametrize(
    ("method", "rope_parameters"),
    [
        ({"name": "pi"}, {"rope_type": "linear", "factor": 4.0}),
        ({"name": "yarn"}, {"rope_type": "yarn", "factor": 4.0}),
        ({"name": "ntk"}, {"rope_type": "default"}),
    ],
    ids=str,
)
def test_a_method_is_trained_and_saved_in_transformers_words(
    rope: Path, tmp_path: Path, method: dict[str, object], rope_parameters: dict[str, object]
) -> None:
    """The trained decoder's own losses are those of transformers on the folder, without any method."""
    own = prepared(rope, {"trained_length": 128}, method=method)
    held: list[Learner] = []
    create = Learner.__init__

    def keeps(self: Learner, *arguments: object) -> None:
        create(self, *arguments)  # type: ignore[arg-type]
        held.append(self)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Learner, "__init__", keeps)
        train(own, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["rope_parameters"].items() >= rope_parameters.items()
    model = read_model({"path": str(tmp_path)})
    assert model.trained_length == 128
    tokens = np.random.default_rng(0).integers(3, 300, 128)
    expected = held[0].losses(torch.from_numpy(tokens)[None]).detach()[0].numpy()
    hf = Hf(model, dtype="float32")
    np.testing.assert_allclose(hf.score(whole(tokens)).nll, expected, atol=2e-5)
    plain = Hf(read_model({"path": str(rope)}), dtype="float32").score(whole(tokens)).nll
    assert np.abs(plain - expected).max() > 1e-3
    if rope_parameters["rope_type"] != "default":
        with pytest.raises(ValueError, match="use backend=hf"):
            Native(model)


@pytest.mark.slow
def test_pose_leaves_an_ordinary_llama_of_its_reach(rope: Path, tmp_path: Path) -> None:
    method = {"name": "pi", "factor": 8.0}
    record = tuned(rope, tmp_path, encoding={"name": "pose"}, method=method)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["model_type"] == "llama"
    assert config["rope_parameters"].items() >= {"rope_type": "linear", "factor": 8.0, "rope_theta": 5000.0}.items()
    assert read_model({"path": str(tmp_path)}).trained_length == 256  # 8 times 32
    assert record["encoding"]["label"] == "pose(over=rope(base=5000.0))"  # type: ignore[index]
    plain = tmp_path / "plain"
    tuned(rope, plain, encoding={"name": "pose"})
    assert type(load_model(plain).encoding).__name__ == "Rope"


@pytest.mark.parametrize(
    ("recipe", "reach", "factor"),
    [({}, {}, 4.0), ({}, {"reach": 128}, 8.0), ({"trained_length": 64}, {}, 8.0)],
    ids=str,
)
def test_pose_and_its_method_reach_as_far(
    rope: Path, recipe: dict[str, object], reach: dict[str, object], factor: float
) -> None:
    encoding, method = {"name": "pose", **reach}, {"name": "pi", "factor": factor}
    with pytest.raises(
        ValueError, match=r"method\.factor must stretch the start's 32 tokens to encoding\.reach=\d+, got"
    ):
        prepared(rope, recipe, encoding=encoding, method=method)
    whole = {"name": "pose", "reach": int(32 * factor)}
    assert prepared(rope, recipe, encoding=whole, method=method).method == f"pi(factor={factor})"
    assert prepared(rope, recipe, encoding=encoding, method={"name": "pi"}).method == "pi"
    assert prepared(rope, recipe, encoding=encoding, method={"name": "dynamic_ntk"}).method == "dynamic_ntk"


def test_methods_that_cannot_be_trained_are_refused(rope: Path, tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"method=rerope.* cannot be trained \(it sets remap\): use a method that changes freq"
    ):
        tuned(rope, tmp_path / "a", method={"name": "rerope"})
    with pytest.raises(ValueError, match=r"method=pi needs a training that saves an ordinary Llama"):
        tuned(rope, tmp_path / "b", encoding={"name": "alibi"}, method={"name": "pi"})


def test_a_start_without_an_end_of_texts_is_refused_before_training(rope: Path, tmp_path: Path) -> None:
    """Stated afterwards, it would make the start another one, and the training would be lost."""
    start = Path(shutil.copytree(rope, tmp_path / "start"))
    (start / "generation_config.json").unlink()
    config = json.loads((start / "config.json").read_text())
    del config["eos_token_id"]
    (start / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=r"start=.* names no BOS or no EOS: state both in its config\.json"):
        prepared(start)
