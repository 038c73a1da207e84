"""Training learns, resumes to the same weights, and says what it did."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import lexbench
from lexbench.checkpoint import read_model
from lexbench.corpora import Corpus
from lexbench.corpora.synthetic import Synthetic
from lexbench.native import train as training
from lexbench.native.lessons import GENERATORS, TaskLesson, TextLesson, gather, row
from lexbench.native.train import Recipe, train
from lexbench.tokenizer import FastTokenizer, load_tokenizer

TEXTS: list[Corpus] = [Synthetic()]
SMALL = {"layers": 1, "width": 32, "heads": 2, "kv_heads": 1, "hidden": 32, "vocabulary": 300, "batch": 8}


def recipe(**changed: object) -> Recipe:
    settings = {"stages": stages(6), "trained_length": 32, "evaluate": 3, "save": 2, "warmup": 2}
    return Recipe(**{**SMALL, **settings, **changed})  # type: ignore[arg-type]


def stages(*steps: int) -> tuple[dict[str, object], ...]:
    kinds = ("text", "key_values", "running_sums")
    return tuple({"steps": count, "lessons": {kind: 1.0}} for count, kind in zip(steps, kinds, strict=False))


def weights(folder: Path) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = load_file(folder / "model.safetensors")
    return found


def losses(folder: Path) -> list[float]:
    return [json.loads(line)["loss"]["all"] for line in (folder / "training.jsonl").read_text().splitlines()]


@pytest.mark.slow
def test_a_killed_training_goes_on_to_the_same_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train(recipe(), TEXTS, TEXTS, tmp_path / "whole", "")
    step = training._step

    def dies_at_five(*arguments: object) -> dict[str, float]:
        if arguments[5] == 5:
            raise KeyboardInterrupt
        return step(*arguments)  # type: ignore[arg-type]

    with monkeypatch.context() as patched:
        patched.setattr(training, "_step", dies_at_five)
        with pytest.raises(KeyboardInterrupt):
            train(recipe(), TEXTS, TEXTS, tmp_path / "killed", "")
    assert len(losses(tmp_path / "killed")) == 5  # one more than the checkpoint knows
    train(recipe(), TEXTS, TEXTS, tmp_path / "killed", "")
    assert losses(tmp_path / "killed") == losses(tmp_path / "whole")
    for name, weight in weights(tmp_path / "whole").items():
        assert torch.equal(weight, weights(tmp_path / "killed")[name]), name


@pytest.mark.slow
def test_a_folder_with_another_training_is_left_alone(tmp_path: Path) -> None:
    train(recipe(), TEXTS, TEXTS, tmp_path, "")
    before = (tmp_path / "model.safetensors").read_bytes()
    with pytest.raises(ValueError, match="holds another training"):
        train(recipe(seed=1), TEXTS, TEXTS, tmp_path, "")
    assert (tmp_path / "model.safetensors").read_bytes() == before


def test_it_learns_a_constant_text(tmp_path: Path) -> None:
    train(recipe(stages=stages(60), warmup=5, rate=1e-2, evaluate=60, save=60), TEXTS, TEXTS, tmp_path, "")
    curve = losses(tmp_path)
    assert curve[0] == pytest.approx(math.log(300), rel=0.05)  # uniform at the start
    assert curve[-1] < 0.8 * curve[0]


def test_the_folder_is_a_checkpoint_with_its_record(tmp_path: Path) -> None:
    train(recipe(), TEXTS, TEXTS, tmp_path, "lexbench train recipe=x")
    model = read_model({"path": str(tmp_path)})
    assert (model.trained_length, model.head_dim, model.kv_heads, model.vocabulary) == (32, 16, 1, 300)
    record = json.loads((tmp_path / "training.json").read_text())
    assert record["command"] == "lexbench train recipe=x"
    assert record["tokens"] == 6 * 8 * 32
    assert [row["step"] for row in record["curve"]] == [3, 6]
    assert load_tokenizer(tmp_path).prefix == (0,)


def test_the_learning_rate_warms_up_and_falls_to_a_tenth() -> None:
    schedule = recipe(stages=stages(100), warmup=10, rate=1.0)
    assert schedule.learning_rate(0) == 0.1
    assert schedule.learning_rate(9) == schedule.learning_rate(10) == 1.0
    assert schedule.learning_rate(55) == pytest.approx(0.55)  # the middle of the cosine
    assert schedule.learning_rate(99) == pytest.approx(0.1, abs=1e-3)
    assert recipe(stages=stages(200), warmup=10, rate=1.0, horizon=100).learning_rate(150) == pytest.approx(0.1)
    boosted = recipe(stages=({"steps": 100, "lessons": {"text": 1.0}, "boost": 3.0},), warmup=10, rate=1.0)
    assert boosted.learning_rate(55) == pytest.approx(3 * 0.55)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"batch": 0}, "recipe.batch"),
        ({"stages": ()}, "recipe.stages"),
        ({"stages": ({"steps": 0, "lessons": {"text": 1}},)}, "recipe.stages"),
        ({"stages": ({"steps": 1, "lessons": {"text": -1}},)}, "recipe.stages"),
        ({"stages": ({"steps": 1, "lesson": {"text": 1}},)}, "recipe.stages"),
    ],
    ids=str,
)
def test_bad_recipes_are_refused(changed: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        recipe(**changed)


@pytest.mark.parametrize("kind", [*GENERATORS, "passkey", "text"])
def test_rows_are_full_and_begin_with_bos(kind: str, tokenizer: FastTokenizer) -> None:
    lessons = gather([kind], TEXTS, tokenizer)
    for seed in range(5):
        drawn, tokens = row(lessons, {kind: 1.0}, np.random.default_rng(seed), tokenizer, 256)
        assert drawn == kind
        assert len(tokens) == 256
        assert tokens[0] == tokenizer.bos
        assert tokens.max() < tokenizer.vocabulary


def test_rows_follow_the_shares_of_their_stage(tokenizer: FastTokenizer) -> None:
    two = recipe(stages=stages(2, 3))
    assert two.steps == 5
    assert [next(iter(two.stage(step)["lessons"])) for step in range(5)] == ["text"] * 2 + ["key_values"] * 3
    lessons = gather(["text", "key_values"], TEXTS, tokenizer)
    rng = np.random.default_rng(0)
    drawn = [row(lessons, {"text": 1.0, "key_values": 3.0}, rng, tokenizer, 16)[0] for _ in range(400)]
    # binomial: 300 expected, standard deviation 8.7
    assert 265 < drawn.count("key_values") < 335


def test_blocks_repeat(tokenizer: FastTokenizer) -> None:
    for kind, shortest, longest in (("repeated_blocks", 8, 199), ("small_blocks", 4, 49), ("tiny_blocks", 2, 8)):
        tokens = GENERATORS[kind](np.random.default_rng(0), tokenizer, 400)
        periods = [p for p in range(1, 200) if (tokens[p:] == tokens[:-p]).all()]
        assert periods
        assert shortest <= periods[0] <= longest


def test_running_sums_are_right(tokenizer: FastTokenizer) -> None:
    text = tokenizer.decode(GENERATORS["running_sums"](np.random.default_rng(0), tokenizer, 10_000))
    first, *terms = text.split()
    result = int(first)
    for change, stated in zip(terms[::2], terms[1::2], strict=True):
        result += int(change)
        assert stated == f"={result}"
        assert 0 <= result <= 9


def test_text_lessons_stay_inside_a_document(tokenizer: FastTokenizer) -> None:
    lesson = TextLesson(TEXTS, tokenizer)
    texts = [document.text for corpus in TEXTS for document in corpus.documents()]
    rng = np.random.default_rng(0)
    for _ in range(20):
        drawn = tokenizer.decode(lesson(rng, tokenizer, 60))
        assert any(drawn in text for text in texts)


@pytest.mark.parametrize("name", ["copy", "parity", "passkey"])
def test_a_tasks_lesson_is_its_question_with_the_right_answer(tokenizer: FastTokenizer, name: str) -> None:
    for seed in range(4):
        tokens = TaskLesson(lexbench.task(name))(np.random.default_rng(seed), tokenizer, 240)
        text = tokenizer.decode(tokens)
        assert 100 <= len(tokens) <= 240
        assert tokens[0] != tokenizer.bos
        if name == "copy":
            first, *others = text.split()
            assert all(first.startswith(other) for other in others)
        elif name == "parity":
            bits, answer = text.strip().split("=")
            assert int(answer) == bits.count("1") % 2
        else:
            key = text.rstrip(".\n").split()[-1]
            assert text.count(f" {key}") == 3
