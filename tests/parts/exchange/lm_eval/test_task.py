"""Our tasks, run by the harness itself: what its models read, and the scores of `lexbench run`."""

import importlib.util
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

import lexbench
from lexbench.checkpoints.tokenizer import load_tokenizer
from lexbench.commands import main
from lexbench.core import registry
from lexbench.core.errors import ConfigError
from lexbench.core.record import Refused, Sample
from lexbench.core.task import Answer, AnyQuestion
from lexbench.parts.exchange import lm_eval as harness
from lexbench.runner.cells import Component

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("lm_eval") is None, reason="lm_eval is not installed"),
]
SAMPLES, LENGTH = 100, 320
NAMES = ["passkey", "niah_multikey_1", "last_segment"]
LEXLET = registry.PACKAGE_FOLDER / "lexlet"
HF = {"pretrained": str(LEXLET), "dtype": "float32", "device": "cpu", "max_length": LENGTH}
OURS = {"model": "lexlet", "max_length": LENGTH}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Yamls for the harness."""
    folder = tmp_path_factory.mktemp("tasks")
    words = ["--lengths", str(LENGTH), "--n", str(SAMPLES), "--corpus", "synthetic", "--out", str(folder)]
    assert main.main(["lm_eval", "tasks", *NAMES, *words]) == 0
    return folder


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> lexbench.Run:
    """The same cells by `lexbench run`."""
    folder = tmp_path_factory.mktemp("run")
    return lexbench.run("lexlet", "none", NAMES, LENGTH, corpus="synthetic", n=SAMPLES, results=folder, quiet=True)


def evaluated(folder: Path, names: list[str], model: Any, model_args: Any = None, **settings: Any) -> Any:
    """What the harness returns for tasks in a folder."""
    harness.register_model()
    import lm_eval
    from lm_eval.tasks import TaskManager

    manager = TaskManager(include_path=str(folder), include_defaults=False)
    return lm_eval.simple_evaluate(
        model=model, model_args=model_args, tasks=names, task_manager=manager, bootstrap_iters=0, **settings
    )


def values(found: Any, task: str) -> dict[str, float]:
    """Metrics as they are named in our records."""
    row = found["results"][task]
    return {key.removesuffix(",none"): row[key] for key in row if key.endswith(",none") and "_stderr" not in key}


OF_LIKELIHOODS = ("chosen", "forced")


def recorded(run: lexbench.Run, task: str) -> dict[str, float]:
    """Values of a run, without those that need the likelihoods of options: a written task of the harness has none."""
    rows = run.records()
    rows = rows[(rows.task == task) & rows.part.isna() & ~rows.metric.isin(OF_LIKELIHOODS)]
    return dict(zip(rows.metric, rows.value, strict=True))


def outputs(run: lexbench.Run, task: str) -> list[str | None]:
    [cell] = [each for each in run._finished_cells() if each.cell.task == task]
    return [sample.output for sample in sorted(cell.samples, key=lambda sample: sample.index)]


def test_our_model_scores_as_in_a_run_to_the_last_digit(folder: Path, run: lexbench.Run) -> None:
    found = evaluated(folder, ["lexbench"], "lexbench", OURS)
    for name in NAMES:
        assert values(found, f"lexbench_{name}_{LENGTH}") == recorded(run, name)
        assert found["n-samples"][f"lexbench_{name}_{LENGTH}"]["effective"] == SAMPLES


def test_a_model_of_transformers_scores_as_in_a_run(folder: Path, run: lexbench.Run) -> None:
    found = evaluated(folder, ["lexbench"], "hf", HF, batch_size=8)
    for name in NAMES[:2]:
        task = f"lexbench_{name}_{LENGTH}"
        assert values(found, task) == recorded(run, name)
        assert [each["filtered_resps"][0] for each in found["samples"][task]] == outputs(run, name)
    # Likelihoods up to rounding in float32: its attention adds in another order.
    assert values(found, f"lexbench_last_segment_{LENGTH}") == pytest.approx(recorded(run, "last_segment"), rel=1e-6)


class NetworkReachedError(Exception):
    """Ends an evaluation where the model would compute."""


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The harness's hf model of lexlet, which keeps the ids that reach its network."""
    from lm_eval.models.huggingface import HFLM

    found = HFLM(**{**HF, "batch_size": 3})
    found.seen = []

    def generate(context: Any, max_length: int, stop: list[str], attention_mask: Any, **settings: Any) -> Any:
        assert settings["do_sample"] is False
        found.seen += [row[mask == 1].tolist() for row, mask in zip(context, attention_mask, strict=True)]
        return context

    def call(ids: Any, **settings: Any) -> Any:
        found.seen += ids.tolist()
        raise NetworkReachedError

    monkeypatch.setattr(found, "_model_generate", generate)
    monkeypatch.setattr(found, "_model_call", call)
    return found


def made(task: dict[str, Any], length: int, n: int, corpus: str = "synthetic") -> Any:
    built: Any = lexbench.task(**task, corpus=corpus).for_lengths([length])
    return built.questions(load_tokenizer(LEXLET), length, n, 0)


def written(folder: Path, task: dict[str, Any], length: int, n: int, corpus: str = "synthetic") -> str:
    """The yaml of a task with parameters, which a user adds to what the command writes."""
    words = ["--lengths", str(length), "--n", str(n), "--corpus", corpus, "--out", str(folder)]
    assert main.main(["lm_eval", "tasks", task["name"], *words]) == 0
    name = f"lexbench_{task['name']}_{length}"
    head, _, text = (folder / f"{name}.yaml").read_text().partition("\n")
    config = yaml.safe_load(text)
    config["metadata"]["lexbench"]["task"] = task
    (folder / f"{name}.yaml").write_text(f"{head}\n{yaml.safe_dump(config)}")
    return name


@pytest.mark.parametrize("name", ["passkey", "niah_single_2", "niah_multivalue", "variable_tracking"])
def test_the_network_reads_the_tokens_of_a_run(name: str, model: Any, tmp_path: Path) -> None:
    evaluated(tmp_path, [written(tmp_path, {"name": name}, 256, 7, "stdlib")], model)
    tokens = [question.prompt.tolist() for question in made({"name": name}, 256, 7, "stdlib")]
    assert sorted(model.seen) == sorted(tokens)
    if name == "niah_single_2":  # of whose texts the harness's tokenizer would make others
        texts = [load_tokenizer(LEXLET).decode(each[1:]) for each in tokens]
        assert any(model.tokenizer(text)["input_ids"] != each for text, each in zip(texts, tokens, strict=True))


def test_the_network_reads_the_tokens_of_a_likelihood(model: Any, tmp_path: Path) -> None:
    name = written(tmp_path, {"name": "last_segment"}, 256, 1)
    with pytest.raises(NetworkReachedError):
        evaluated(tmp_path, [name], model)
    [question] = made({"name": "last_segment"}, 256, 1)
    assert model.seen == [question.tokens[:-1].tolist()]  # the last token is scored, not read


def test_choices_are_made_by_likelihood(tmp_path: Path) -> None:
    task = {"name": "niah_single_1", "options": 4}
    name = written(tmp_path, task, 256, 8)
    ours = lexbench.run("lexlet", "none", task, 256, corpus="synthetic", n=8, results=tmp_path / "run", quiet=True)
    found = evaluated(tmp_path, [name], "hf", {**HF, "max_length": 256})
    assert values(found, name)["accuracy"] == ours.records().query("metric == 'accuracy'").value.item()


def test_answers_in_the_harnesss_cache_are_used_again(model: Any, tmp_path: Path) -> None:
    name = written(tmp_path, {"name": "passkey"}, 256, 4)
    first = evaluated(tmp_path, [name], model, use_cache=str(tmp_path / "cache"))
    read = len(model.seen)
    assert values(evaluated(tmp_path, [name], model, use_cache=str(tmp_path / "cache")), name) == values(first, name)
    assert len(model.seen) == read == 4


@pytest.mark.parametrize(
    ("task", "length", "settings", "said"),
    [
        ("passkey", 256, {"apply_chat_template": True}, "leave out --apply_chat_template"),
        ("passkey", 256, {"system_instruction": "Be brief."}, "leave out --apply_chat_template and --system"),
        ("passkey", 256, {"gen_kwargs": "temperature=1,do_sample=True"}, "leave out --gen_kwargs"),
        ("passkey", 1024, {}, "needs 1024 tokens, the model reads 320: give max_length=1024 in --model_args"),
        ("long_ppl", 256, {}, "long_ppl needs a file of key tokens"),
        ("resolution", 256, {}, "measures what the harness does not give"),
    ],
)
def test_a_model_that_would_read_something_else_is_refused(
    task: str, length: int, settings: dict[str, Any], said: str, model: Any, tmp_path: Path
) -> None:
    model.tokenizer.chat_template = "{{ messages[0].content }}"
    name = written(tmp_path, {"name": task}, length, 2)
    with pytest.raises((ConfigError, Refused), match=said) as raised:
        evaluated(tmp_path, [name], model, **settings)
    assert "\n" not in str(raised.value) and model.seen == []


def test_a_model_without_tokens_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="needs a causal model with a tokenizer, got DummyLM"):
        evaluated(tmp_path, [written(tmp_path, {"name": "passkey"}, 256, 2)], "dummy")


def test_a_task_that_scores_single_tokens_is_refused() -> None:
    from lexbench.parts.exchange.lm_eval.task import check_sums_suffice

    built: Any = lexbench.task("last_segment", "synthetic").for_lengths([64])

    class Half:
        def score(self, question: AnyQuestion, answer: Answer) -> Sample:
            sample: Sample = built.score(question, answer)
            assert sample.nll is not None
            return replace(sample, nll=sample.nll[::2])

    [question] = made({"name": "last_segment"}, 64, 1)
    check_sums_suffice(Component("whole", built, "whole"), load_tokenizer(LEXLET), question)
    with pytest.raises(ConfigError, match="half scores single tokens, of which the harness gives the sum"):
        check_sums_suffice(Component("half", Half(), "half"), load_tokenizer(LEXLET), question)
