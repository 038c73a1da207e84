"""Curves during training: the numbers of lexbench.evaluate, by the Trainer's own log, and nothing else changed."""

import time
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

import lexbench
from lexbench import callbacks
from lexbench.checkpoints.checkpoint import locate_checkpoint

pytest.importorskip("accelerate", reason="the Trainer needs accelerate: pip install -e '.[dev]'")
OPTIONS: dict[str, Any] = {"corpus": "synthetic", "n": 2, "trained_length": 64}


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(locate_checkpoint("lexbench:lexlet", None))


def network() -> Any:
    torch.manual_seed(0)
    size = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    return LlamaForCausalLM(LlamaConfig(vocab_size=2048, max_position_embeddings=64, **size))


class Heard(TrainerCallback):  # type: ignore[misc]
    """What reporters hear."""

    def __init__(self) -> None:
        self.logs: list[tuple[int, dict[str, float]]] = []

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        self.logs.append((state.global_step, dict(logs)))


def trained(folder: Path, tokenizer: Any, logging_steps: int = 500, **curves: Any) -> tuple[Any, Heard]:
    rows = [{"input_ids": list(range(3, 19)), "labels": list(range(3, 19))}] * 4
    arguments = TrainingArguments(
        output_dir=str(folder),
        max_steps=4,
        logging_steps=logging_steps,
        report_to=[],
        use_cpu=True,
        save_strategy="no",
        disable_tqdm=True,
    )
    heard = Heard()
    trainer = Trainer(network(), arguments, train_dataset=rows, callbacks=[heard])
    if curves:
        trainer.add_callback(callbacks.trainer_callback(trainer, tokenizer=tokenizer, **curves, **OPTIONS))
    trainer.train()
    return trainer.model, heard


@pytest.mark.parts("copy")
@pytest.mark.everyday("copy-accuracy")
@pytest.mark.parametrize(("task", "metric"), [("resolution", "resolution"), ("copy", "accuracy")])
def test_a_curve_of_a_task_is_its_headline_metric(task: str, metric: str, tokenizer: Any) -> None:
    """Measures of attention and exact answers are further metrics of these tasks."""
    curve = callbacks.LengthCurve(tokenizer, [80, 96], every=1, n=2, task=task, trained_length=64)
    found = curve(network(), 1)
    run = lexbench.evaluate(network(), tokenizer, task, lengths=[80, 96], n=2, trained_length=64)
    known = run.table(metric=metric).loc["none"]
    del found["lexbench/seconds"]
    assert found == {f"lexbench/{task}/{metric}@{length}": pytest.approx(known[length]) for length in (80, 96)}


@pytest.mark.slow
def test_the_trainer_logs_curves_and_trains_as_without_them(tmp_path: Path, tokenizer: Any) -> None:
    bare, _ = trained(tmp_path, tokenizer)
    model, heard = trained(tmp_path, tokenizer, lengths=[80, 96], every=2, share=1.0)
    found = {step: logs for step, logs in heard.logs if "lexbench/seconds" in logs}
    assert list(found) == [2, 4]
    known = lexbench.evaluate(model, tokenizer, lengths=[80, 96], **OPTIONS).table(metric="nll").loc["none"]
    assert found[4]["lexbench/last_segment/nll@80"] == pytest.approx(known[80])
    assert found[4]["lexbench/last_segment/nll@96"] == pytest.approx(known[96])
    for before, after in zip(bare.parameters(), model.parameters(), strict=True):
        assert torch.equal(before, after)
    assert model.training


@pytest.mark.slow
def test_the_loss_of_a_step_with_a_curve_is_logged_as_without_it(tmp_path: Path, tokenizer: Any) -> None:
    _, bare = trained(tmp_path, tokenizer, logging_steps=2)
    _, heard = trained(tmp_path, tokenizer, logging_steps=2, lengths=[80], every=2, share=1.0)
    losses = [[(step, logs["loss"]) for step, logs in each.logs if "loss" in logs] for each in (bare, heard)]
    assert [step for step, _ in losses[0]] == [2, 4]
    assert losses[1] == losses[0]
    assert [step for step, logs in heard.logs if "lexbench/seconds" in logs] == [2, 4]


def test_a_curve_waits_until_it_takes_no_more_than_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    """A curve takes a second; with a share of a tenth, the second one may begin 19 seconds after the first call."""
    clock = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])
    begun: list[float] = []

    class Done:
        def records(self) -> Any:
            return lexbench.Run(Path(), frozenset()).records()

    def measured(*_: Any, **__: Any) -> Done:
        begun.append(clock[0])
        clock[0] += 1.0
        return Done()

    monkeypatch.setattr(callbacks, "evaluate", measured)
    curve = callbacks.LengthCurve(None, [8], every=2, share=0.1)
    for step in range(1, 60):
        clock[0] += 1.0
        curve(None, step)
    assert begun[0] == 2.0
    assert begun[1] == 20.0
    assert curve.spent <= 0.1 * clock[0] + 1e-9 and curve.spent > 3


@pytest.mark.slow
def test_several_methods_and_seeds_have_a_value_each(tokenizer: Any) -> None:
    model, methods = network(), ["none", "pi"]
    options: dict[str, Any] = {**OPTIONS, "n": 1, "method": methods, "seed": [0, 1]}
    values = callbacks.LengthCurve(tokenizer, [80], **options).measure(model, 1)
    known = lexbench.evaluate(model, tokenizer, lengths=[80], price=False, **options).table(metric="nll")
    expected = {
        f"lexbench/last_segment/{method}/{seed}/nll@80": pytest.approx(known.loc[(seed, method), 80])
        for method in methods
        for seed in (0, 1)
    }
    assert {name: value for name, value in values.items() if name != "lexbench/seconds"} == expected


def test_a_frozen_layer_stays_in_eval_mode_after_a_curve(tokenizer: Any) -> None:
    model = network().train()
    frozen = model.model.layers[0].eval()
    assert callbacks.LengthCurve(tokenizer, [80], **OPTIONS).measure(model, 1)
    assert not any(part.training for part in frozen.modules())
    assert model.training and model.model.norm.training


@pytest.mark.parametrize("options", [{"every": 0}, {"every": 1.5}, {"every": "5"}, {"share": 0.0}, {"share": 1.5}])
def test_impossible_settings_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="every must be at least 1 and share in"):
        callbacks.LengthCurve(None, [8], **options)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"lengths": 512},
            r"^lengths must list whole numbers of at least 2 tokens, got 512: e\.g\. lengths=\[512,2048\]$",
        ),
        ({"lengths": "512"}, "^lengths must list whole numbers"),
        ({"lengths": []}, "^lengths must list whole numbers"),
        ({"lengths": [512.0]}, "^lengths must list whole numbers"),
        ({"n": 0}, r"^n must be a whole number of at least 1, got 0: texts at each length, e\.g\. n=8$"),
        ({"tsk": "passkey"}, "^unknown option tsk: choose from task, method, trained_length, multiples, corpus, seed"),
        ({"results": "runs"}, "^unknown option results: choose from"),
    ],
)
def test_what_would_end_a_training_at_its_first_curve_is_refused_before(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        callbacks.LengthCurve(None, **{"lengths": [8], **options})
