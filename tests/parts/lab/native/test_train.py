"""Training learns, resumes to the same weights, and says what it did."""

import json
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from lexbench.checkpoints.checkpoint import read_model
from lexbench.checkpoints.tokenizer import load_tokenizer
from lexbench.core import registry
from lexbench.corpora import Corpus
from lexbench.corpora.files import Files
from lexbench.corpora.synthetic import Synthetic
from lexbench.parts.lab.native import train as training
from lexbench.parts.lab.native.folder import load_model
from lexbench.parts.lab.native.learner import Learner
from lexbench.parts.lab.native.recipe import Recipe
from lexbench.parts.lab.native.train import PreparedTraining, TrainingJob, train

pytestmark = pytest.mark.usefixtures("one_thread")
TEXTS: list[Corpus] = [Synthetic(count=4, words=400)]
UNSEEN: list[Corpus] = [Synthetic(seed=1, count=2, words=400)]
SHAPE = {"layers": 1, "width": 32, "heads": 2, "kv_heads": 1, "hidden": 32}


def recipe(**changed: object) -> Recipe:
    settings = {"stages": stages(6), "trained_length": 32, "evaluate": 3, "save": 2, "warmup": 2}
    sizes = {"shape": SHAPE, "vocabulary": 300, "batch": 8}
    return Recipe(**{**sizes, **settings, **changed})  # type: ignore[arg-type]


def stages(*steps: int) -> tuple[dict[str, object], ...]:
    kinds = ("text", "key_values", "running_sums")
    return tuple({"steps": count, "lessons": {kind: 1.0}} for count, kind in zip(steps, kinds, strict=False))


def prepared(recipe: Recipe, **given: object) -> PreparedTraining:
    return PreparedTraining(TrainingJob(**{"recipe": recipe, "corpora": TEXTS, "held_out": UNSEEN, **given}))  # type: ignore[arg-type]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = load_file(folder / "model.safetensors")
    return found


def losses(folder: Path) -> list[float]:
    return [json.loads(line)["loss"]["all"] for line in (folder / "training.jsonl").read_text().splitlines()]


def broken_off(
    folder: Path, monkeypatch: pytest.MonkeyPatch, changed: Mapping[str, object] | None = None, **given: object
) -> None:
    """A training that ends in its fifth step, behind the checkpoint of step 4."""
    step = Learner.step

    def dies(self: Learner, rows: torch.Tensor, number: int, *kinds: Sequence[str]) -> list[float]:
        if number == 5:
            raise KeyboardInterrupt
        return step(self, rows, number, *kinds)

    with monkeypatch.context() as patched:
        patched.setattr(Learner, "step", dies)
        with pytest.raises(KeyboardInterrupt):
            train(prepared(recipe(**(changed or {})), **given), folder)


LAB = {"optimizer": "muon", "initial": "fan_in", "last": 0.0, "stages": stages(3, 3)}


@pytest.mark.everyday("rope-changed0-False")
@pytest.mark.parametrize(
    ("encoding", "changed", "ahead"), [("rope", {}, False), ("shape", {}, False), ("rope", LAB, True)]
)
def test_a_training_that_was_broken_off_goes_on_to_the_same_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, encoding: str, changed: dict[str, object], ahead: bool
) -> None:
    given: dict[str, Any] = {"encoding": {"name": encoding}}  # shape draws positions anew in every step
    given |= {"rows": tmp_path / "rows"} if ahead else {}
    train(prepared(recipe(**changed), **(given | {"rows": None})), tmp_path / "whole")
    broken_off(tmp_path / "killed", monkeypatch, changed, **given)
    assert len(losses(tmp_path / "killed")) == 5  # one more than the checkpoint knows
    train(prepared(recipe(**changed), **given), tmp_path / "killed")
    assert losses(tmp_path / "killed") == losses(tmp_path / "whole")
    for name, weight in weights(tmp_path / "whole").items():
        assert torch.equal(weight, weights(tmp_path / "killed")[name]), name


@pytest.mark.slow
def test_the_record_has_what_counting_the_texts_once_reaches(tmp_path: Path) -> None:
    train(prepared(recipe()), tmp_path)
    tokenizer = load_tokenizer(tmp_path)
    tokens = Counter(
        token for corpus in TEXTS for each in corpus.documents() for token in tokenizer.encode(each.text).ids.tolist()
    )
    targets = training.held_out_rows(UNSEEN, tokenizer, 32)[:, 1:].flatten().tolist()
    total = sum(tokens.values()) + 300
    expected = -math.fsum(math.log((tokens[token] + 1) / total) for token in targets) / len(targets)
    floors = json.loads((tmp_path / "training.json").read_text())["floors"]
    assert floors["unigram"] == pytest.approx(expected, abs=6e-5)
    assert floors["uniform"] == pytest.approx(math.log(300), abs=6e-5)


@pytest.mark.parametrize("name", ["optimizer", "matrix_rate", "last", "initial", "precision", "packing"])
def test_a_parameter_that_older_folders_do_not_know_leaves_their_key(name: str) -> None:
    stated = prepared(recipe()).training_facts([])
    older = {**stated, "recipe": {key: value for key, value in stated["recipe"].items() if key != name}}
    assert training._training_key(stated) == training._training_key(older)
    assert training._training_key(stated) != training._training_key(
        {**stated, "recipe": {**stated["recipe"], name: "another"}}
    )


def test_a_folder_of_version_0_1_has_the_key_that_it_had() -> None:
    stated = prepared(recipe()).training_facts([])
    assert stated["encoding"]["_target_"] == "lexbench.parts.lab.encodings.rope.Rope"
    older = {**stated, "encoding": {**stated["encoding"], "_target_": "lexbench.encodings.rope.Rope"}}
    assert training._training_key(stated) == training._training_key(older)


def test_a_damaged_checkpoint_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken_off(tmp_path, monkeypatch)
    file = tmp_path / "training.checkpoint"
    whole = file.read_bytes()
    for content in (whole[: len(whole) // 2], b"", whole[:-100] + bytes([whole[-100] ^ 1]) + whole[-99:]):
        file.write_bytes(content)
        with pytest.raises(ValueError, match=r"checkpoint .* is damaged: remove it"):
            train(prepared(recipe()), tmp_path)
    file.write_bytes(whole)
    with pytest.raises(ValueError, match="holds another training"):
        train(prepared(recipe(seed=1)), tmp_path)
    (tmp_path / "training.jsonl").write_text("")
    with pytest.raises(ValueError, match=r"lacks step \d+, its checkpoint has"):
        train(prepared(recipe()), tmp_path)


@pytest.mark.everyday("error0-ValueError")
@pytest.mark.parametrize(
    ("error", "expected"),
    [(RuntimeError("no such magic"), ValueError), (MemoryError(), MemoryError)],
)
def test_an_undamaged_checkpoint_is_not_called_damaged(
    error: Exception, expected: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken_off(tmp_path, monkeypatch)

    def load(*args: Any, **options: Any) -> Any:
        raise error

    monkeypatch.setattr(torch, "load", load)
    with pytest.raises(expected) as caught:
        train(prepared(recipe()), tmp_path)
    if expected is ValueError:
        assert "is undamaged, and torch" in str(caught.value)
        assert "(RuntimeError: no such magic)" in str(caught.value)


def test_a_finished_training_is_left_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train(prepared(recipe()), tmp_path)
    before = {file.name: (file.stat().st_mtime_ns, file.read_bytes()) for file in tmp_path.iterdir()}
    assert "training.checkpoint" not in before
    capsys.readouterr()
    train(prepared(recipe()), tmp_path)
    assert "finished: nothing to do" in capsys.readouterr().err
    for other in (prepared(recipe(seed=1)), prepared(recipe(), encoding={"name": "alibi"})):
        with pytest.raises(ValueError, match="holds another training: give a new folder"):
            train(other, tmp_path)
    assert {file.name: (file.stat().st_mtime_ns, file.read_bytes()) for file in tmp_path.iterdir()} == before


@pytest.mark.slow
def test_where_no_bar_is_drawn_each_evaluation_has_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    train(prepared(recipe()), tmp_path / "one")
    plan, *lines = capsys.readouterr().err.splitlines()
    assert plan == "training one: steps 1 to 6, of 256 tokens each"
    kept = [json.loads(line)["loss"] for line in (tmp_path / "one/training.jsonl").read_text().splitlines()]
    said = [
        f"step {step} of 6, loss {kept[step - 1]['all']:.3f}, held-out loss {kept[step - 1]['held_out']:.3f}"
        for step in (3, 6)
    ]
    assert [re.sub(r"^\d\d:\d\d<\d\d:\d\d, ", "", line) for line in lines] == said
    monkeypatch.setenv("TQDM_DISABLE", "1")
    train(prepared(recipe()), tmp_path / "two")
    assert capsys.readouterr().err == ""


@pytest.mark.slow
def test_it_learns_a_constant_text(tmp_path: Path) -> None:
    train(prepared(recipe(stages=stages(60), warmup=5, rate=1e-2, evaluate=60, save=60)), tmp_path)
    curve = losses(tmp_path)
    assert curve[0] == pytest.approx(math.log(300), rel=0.05)  # uniform at the start
    assert curve[-1] < 0.8 * curve[0]


@pytest.mark.parametrize(
    ("changed", "held_out", "said"),
    [
        ({"rate": 1e300}, UNSEEN, r"diverged: its loss at step 1 is not finite; lower recipe\.rate, it is 1e\+300"),
        ({"rate": 1e300}, TEXTS, r"weight model\.\S+ must be finite in torch\.float32"),  # no text is held out
        ({"rate": 1e5, "weights": "float16"}, TEXTS, r"finite in torch\.float16, .* give recipe\.weights=float32"),
    ],
    ids=["held out", "not held out", "half"],
)
def test_weights_that_the_last_step_has_spoilt_are_not_saved(
    changed: dict[str, object], held_out: list[Corpus], said: str, tmp_path: Path
) -> None:
    """The first step of AdamW is its rate in each weight: beyond float32, and beyond the 65,504 of float16."""
    with pytest.raises(ValueError, match=said):
        train(prepared(recipe(stages=stages(1), warmup=0, **changed), held_out=held_out), tmp_path)
    assert not (tmp_path / "model.safetensors").exists() and not (tmp_path / "training.json").exists()


def test_a_training_that_diverges_ends_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    step = Learner.step

    def breaks(self: Learner, rows: torch.Tensor, number: int, *kinds: Sequence[str]) -> list[float]:
        if number == 3:
            next(self.decoder.parameters()).data.fill_(torch.nan)
        return step(self, rows, number, *kinds)

    monkeypatch.setattr(Learner, "step", breaks)
    with pytest.raises(ValueError, match=r"diverged: its loss at step 4 is not finite; lower recipe\.rate, it is 0\.0"):
        train(prepared(recipe()), tmp_path / "run")
    assert not (tmp_path / "run" / "model.safetensors").exists()


def test_the_folder_is_a_checkpoint_with_its_record(tmp_path: Path) -> None:
    train(prepared(recipe(weights="float16"), command="lexbench train recipe=x"), tmp_path)
    model = read_model({"path": str(tmp_path)})
    assert (model.trained_length, model.head_dim, model.kv_heads, model.vocabulary) == (32, 16, 1, 300)
    assert all(weight.dtype == torch.float16 for weight in weights(tmp_path).values())
    record = json.loads((tmp_path / "training.json").read_text())
    assert record["command"] == "lexbench train recipe=x"
    assert record["tokens"] == 6 * 8 * 32
    assert record["recipe"]["shape"] == SHAPE
    assert record["encoding"]["label"] == "rope" and record["encoding"]["base"] == 10000.0
    assert record["start"] is None and record["method"] == "none"
    assert record["tokens_per_second"] > 0 and record["versions"]["torch"] == torch.__version__
    assert [row["step"] for row in record["curve"]] == [3, 6]
    assert set(record["curve"][0]) == {"step", "all", "text", "held_out"}
    assert load_tokenizer(tmp_path).prefix == (0,)


@pytest.mark.slow
def test_every_encoding_gets_the_same_rows_and_shared_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, list[torch.Tensor]] = {}
    step = Learner.step

    def looks(self: Learner, rows: torch.Tensor, number: int, *kinds: Sequence[str]) -> list[float]:
        first = [weight.detach().clone() for weight in self.decoder.layers.parameters()] if number == 0 else []
        seen.setdefault(self.decoder.encoding.name, []).extend([rows, *first])
        return step(self, rows, number, *kinds)

    monkeypatch.setattr(Learner, "step", looks)
    for name in ("rope", "alibi", "cape"):
        train(prepared(recipe(), encoding={"name": name}), tmp_path / name)
    for name in ("alibi", "cape"):
        for one, other in zip(seen["rope"], seen[name], strict=True):
            assert torch.equal(one, other), name


def test_the_learning_rate_warms_up_and_falls_to_a_tenth() -> None:
    schedule = recipe(stages=stages(100), warmup=10, rate=1.0)
    assert schedule.learning_rate_share(0) == 0.1
    assert schedule.learning_rate_share(9) == schedule.learning_rate_share(10) == 1.0
    assert schedule.learning_rate_share(55) == pytest.approx(0.55)  # the middle of the cosine
    assert schedule.learning_rate_share(99) == pytest.approx(0.1, abs=1e-3)
    assert recipe(stages=stages(200), warmup=10, rate=1.0, horizon=100).learning_rate_share(150) == pytest.approx(0.1)
    boosted = recipe(stages=({"steps": 100, "lessons": {"text": 1.0}, "boost": 3.0},), warmup=10, rate=1.0)
    assert boosted.learning_rate_share(55) == pytest.approx(3 * 0.55)


@pytest.mark.parametrize(
    ("changed", "given", "said"),
    [
        ({"shape": None}, {}, r"recipe\.shape is missing, and no trained folder states it: give start=DIR"),
        ({}, {"encoding": {"name": "roper"}}, r"unknown encoding 'roper': did you mean rope\?"),
        ({}, {"encoding": {"name": "hwfa"}}, r"hwfa needs a layer with a window before the last one"),
        ({}, {"encoding": {"bases": 5.0}}, r"unknown parameter encoding\.bases: rope knows base"),
        (
            {},
            {"encoding": {"name": "dape", "over": {"name": "kerple", "frm": "power"}}},
            r"parameter encoding\.over\.frm:",
        ),
        ({}, {"encoding": {"base": 1.0}}, r"encoding\.base must be above 1, got 1: "),
        ({}, {"encoding": {"head_dim": 8}}, r"unknown parameter encoding\.head_dim: rope knows base"),
        (
            {},
            {"encoding": {"name": "dape", "over": {"name": "alibi", "heads": 4}}},
            r"unknown parameter encoding\.over\.heads: alibi knows none",
        ),
        (
            {},
            {"encoding": {"name": "dape", "over": {"name": "rope", "base": -5}}},
            r"encoding\.over\.base must be above 1",
        ),
        ({"shape": {**SHAPE, "width": 30}}, {}, r"recipe\.shape must give rope heads of an even size, .* 15 each"),
        ({}, {"held_out": []}, r"held_out must name at least one corpus, got \[\]: leave it out"),
        ({}, {"method": {"name": "pi"}}, r"method=pi .* give start=DIR"),
    ],
    ids=str,
)
def test_what_cannot_be_trained_is_refused_at_once(
    changed: dict[str, object], given: dict[str, object], said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        prepared(recipe(**changed), **given)


def test_rows_follow_the_shares_of_their_stage() -> None:
    two = recipe(stages=stages(2, 3))
    assert two.steps == 5
    assert [next(iter(two.stage(step)["lessons"])) for step in range(5)] == ["text"] * 2 + ["key_values"] * 3


def test_a_vocabulary_smaller_than_all_bytes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"recipe\.vocabulary must be at least 258, .* got 200: raise it"):
        train(prepared(recipe(vocabulary=200)), tmp_path)


@pytest.mark.slow
def test_what_broke_off_before_its_first_checkpoint_leaves_nothing_to_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dies(self: Learner, rows: torch.Tensor, number: int, *kinds: Sequence[str]) -> list[float]:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Learner, "step", dies)
        with pytest.raises(KeyboardInterrupt):
            train(prepared(recipe()), tmp_path)
    train(prepared(recipe(vocabulary=280)), tmp_path)
    assert load_tokenizer(tmp_path).vocabulary == 280


def test_names_of_folders_hold_what_is_not_usual() -> None:
    assert prepared(recipe()).name == "rope-seed0"
    assert prepared(recipe(seed=3), encoding={"base": 500000.0}).name == "rope-base-500000.0-seed3"
    inner = {"name": "kerple", "form": "power"}
    assert prepared(recipe(), encoding={"name": "dape", "over": inner}).name == "dape-over-kerple-form-power-seed0"
    assert prepared(recipe(), encoding={"name": "dape", "over": "alibi"}).name == "dape-over-alibi-seed0"


def test_held_out_rows_are_the_same_for_every_training(tmp_path: Path) -> None:
    train(prepared(recipe()), tmp_path)
    tokenizer = load_tokenizer(tmp_path)
    one, other = (training.held_out_rows(TEXTS, tokenizer, 32) for _ in range(2))
    assert one.shape == (32, 32) and torch.equal(one, other)


def test_the_last_held_out_loss_is_that_of_the_saved_model(tmp_path: Path) -> None:
    """However often it was measured on the way."""
    for evaluate in (1, 6):
        folder = tmp_path / str(evaluate)
        train(prepared(recipe(rate=0.03, evaluate=evaluate)), folder)
        rows = training.held_out_rows(UNSEEN, load_tokenizer(folder), 32)
        with torch.no_grad():
            logits = load_model(folder)(rows[:, :-1])
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
        record = json.loads((folder / "training.json").read_text())
        assert record["last_loss"]["held_out"] == pytest.approx(float(loss), abs=1e-4)
        assert record["last_loss"]["all"] == pytest.approx(sum(losses(folder)) / 6, abs=1e-4)


@pytest.mark.slow
def test_texts_that_are_trained_on_are_not_held_out(tmp_path: Path) -> None:
    train(prepared(recipe(), held_out=TEXTS), tmp_path / "none")
    record = json.loads((tmp_path / "none" / "training.json").read_text())
    assert record["held_out"] is None
    assert [row["step"] for row in record["curve"]] == [3, 6]
    assert set(record["curve"][0]) == {"step", "all", "text"}
    assert prepared(recipe(), held_out=[*TEXTS, *UNSEEN]).unseen_corpora() == UNSEEN
    (folder := tmp_path / "texts").mkdir()
    for name in "ab":
        (folder / f"{name}.txt").write_text(name * 400)
    both, one = (Files(path=str(path)) for path in (folder, folder / "a.txt"))
    assert prepared(recipe(), corpora=[both], held_out=[one]).unseen_corpora() == []  # a part of what is trained on
    assert prepared(recipe(), corpora=[one], held_out=[both]).unseen_corpora() == [both]
    train(prepared(recipe()), tmp_path / "some")
    record = json.loads((tmp_path / "some" / "training.json").read_text())
    assert record["held_out"] == UNSEEN[0].fingerprint() and record["texts"] == TEXTS[0].fingerprint()
    with pytest.raises(ValueError, match="holds another training"):
        train(prepared(recipe(), held_out=[Synthetic(seed=2, count=2, words=400)]), tmp_path / "some")


def test_how_often_it_saves_and_evaluates_is_no_other_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(prepared(recipe()), tmp_path)
    train(prepared(recipe(save=1, evaluate=2)), tmp_path)
    assert "finished: nothing to do" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("name", registry.registered_names("encoding"))
def test_every_encoding_of_the_registry_is_trained_and_read_back(tmp_path: Path, name: str) -> None:
    train(prepared(recipe(accumulate=2, shape={**SHAPE, "layers": 3}), encoding={"name": name}), tmp_path)
    assert all(math.isfinite(loss) for loss in losses(tmp_path))
    record = json.loads((tmp_path / "training.json").read_text())
    assert record["encoding"]["label"] == name
    read = load_model(tmp_path)
    with torch.no_grad():
        logits = read(torch.arange(3, 35)[None])
    assert logits.shape == (1, 32, 300) and logits.isfinite().all()


def test_a_model_that_is_not_of_the_training_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    with pytest.raises(ValueError, match=r"holds a model that is not of this training: give a new folder$"):
        train(prepared(recipe()), tmp_path)
    assert (tmp_path / "model.safetensors").read_bytes() == b"weights"
