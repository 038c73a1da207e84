"""Our tasks, run by inspect_ai itself: what its models read, and the scores of `lexbench run`."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lexbench
from lexbench.checkpoints.checkpoint import read_model
from lexbench.checkpoints.tokenizer import load_tokenizer
from lexbench.core import registry
from lexbench.core.task import Generate, Loglikelihood
from lexbench.runner.backend_pool import backend_for_job
from tests.backends.scripted import Body, Reply, Server, completion, serving

inspect_ai: Any = pytest.importorskip("inspect_ai", reason="inspect_ai is not installed here: make test-exchange")
pytest.importorskip("openai", reason="openai is not installed here: make test-exchange")

SAMPLES, LENGTH = 100, 320
NAMES = ("passkey", "niah_multikey_1", "last_segment")
SETTINGS = {"length": LENGTH, "n": SAMPLES, "corpus": "synthetic"}
LEXLET = registry.PACKAGE_FOLDER / "lexlet"
GREEDY = {"model_path": str(LEXLET), "do_sample": False, "device": "cpu"}
HF = {**GREEDY, "chat_template": "{{ messages[0].content }}"}


def replied(tokens: int, choice: Body) -> Reply:
    """A completion after a prompt of so many tokens."""
    usage = {"prompt_tokens": tokens, "completion_tokens": 1, "total_tokens": tokens + 1}
    return 200, completion(tokens, choice, id="1", model="lexlet", created=0, usage=usage)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> lexbench.Run:
    """The same cells by `lexbench run`."""
    folder = tmp_path_factory.mktemp("run")
    return lexbench.run("lexlet", "none", NAMES, LENGTH, corpus="synthetic", n=SAMPLES, results=folder, quiet=True)


@pytest.fixture(scope="module")
def served() -> Iterator[Server]:
    """lexlet behind a server of completions that takes tokens and answers in vLLM's form."""
    lock = threading.Lock()
    model, config = (
        read_model(registry.read_named_config("model", "lexlet")),
        {**registry.read_named_config("backend", "hf"), "name": "hf"},
    )
    with backend_for_job(model, config, LENGTH) as backend:

        def answer(body: Body) -> Reply:
            tokens = np.array(body["prompt"])
            with lock:
                written = backend.write(Generate(index=0, cluster="", prompt=tokens, max_new_tokens=body["max_tokens"]))
                choice: Body = {"text": written.text}
                if "prompt_logprobs" in body:
                    question = Loglikelihood(index=0, cluster="", tokens=tokens, first_target=1, bytes=0, words=0)
                    rows = zip(tokens[1:].tolist(), (-backend.score(question).nll).tolist(), strict=True)
                    choice["prompt_logprobs"] = [None, *({str(token): {"logprob": each}} for token, each in rows)]
            return replied(len(tokens), choice)

        with serving(answer) as server:
            yield server


@pytest.fixture
def server(served: Server, monkeypatch: pytest.MonkeyPatch) -> Server:
    monkeypatch.setenv("MINE_BASE_URL", served.url)
    monkeypatch.setenv("MINE_API_KEY", "none")
    served.asked.clear()
    return served


def evaluated(task: str, folder: Path, model: str, model_args: dict[str, Any], **changed: Any) -> Any:
    """The log of a task, named as on inspect_ai's command line."""
    arguments = {**SETTINGS, **changed}
    [log] = inspect_ai.eval(
        f"lexbench/{task}",
        model=inspect_ai.model.get_model(model, memoize=False, **model_args),
        task_args=arguments,
        log_dir=str(folder),
        display="none",
    )
    return log


def values(log: Any) -> dict[str, float]:
    """Metrics as they are named in our records."""
    assert log.status == "success", log.error
    found = {}
    for score in log.results.scores:
        for name, metric in score.metrics.items():
            if name != "stderr":
                found[score.name if name == "mean" else name] = metric.value
    return found


OF_LIKELIHOODS = ("chosen", "forced")


def recorded(run: lexbench.Run, task: str) -> dict[str, float]:
    """Values of a run, without those that need the likelihoods of options: inspect_ai's models write alone."""
    rows = run.records()
    rows = rows[(rows.task == task) & rows.part.isna() & ~rows.metric.isin(OF_LIKELIHOODS)]
    return dict(zip(rows.metric, rows.value, strict=True))


@pytest.mark.parametrize("task", NAMES[:2])
def test_a_model_of_transformers_scores_as_in_a_run(run: lexbench.Run, task: str, tmp_path: Path) -> None:
    log = evaluated(task, tmp_path, "hf/local", HF)
    assert values(log) == pytest.approx(recorded(run, task), rel=1e-12, abs=0) and len(log.samples) == SAMPLES
    outputs = {
        sample.index: str(sample.output)
        for cell in run._finished_cells()
        if cell.cell.task == task
        for sample in cell.samples
    }
    unlike = [each for each in log.samples if each.output.completion != outputs[each.id]]
    # Behind the key the model continues at will: near ties of rounding in another kernel.
    assert len(unlike) <= 2 and all(each.output.completion[:2] == outputs[each.id][:2] for each in unlike)


@pytest.mark.parametrize("task", NAMES)
def test_a_server_reads_the_tokens_of_a_run(run: lexbench.Run, server: Server, task: str, tmp_path: Path) -> None:
    log = evaluated(task, tmp_path, "openai-api-completions/mine/lexlet", {}, tokenizer="lexlet")
    # Scores are equal; likelihoods up to rounding in float32, as the server asks for more of them at once.
    assert values(log) == pytest.approx(recorded(run, task), rel=1e-6, abs=0)
    built: Any = lexbench.task(task, "synthetic").for_lengths([LENGTH])
    questions = built.questions(load_tokenizer(LEXLET), LENGTH, SAMPLES, 0)
    tokens = [each.tokens if task == "last_segment" else each.prompt for each in questions]
    assert sorted(each["prompt"] for each in server.asked) == sorted(each.tolist() for each in tokens)


def test_choices_are_made_by_likelihood(server: Server, tmp_path: Path) -> None:
    changed = {"options": 4, "tokenizer": "lexlet", "n": 8, "length": 128}
    log = evaluated("niah_single_1", tmp_path, "openai-api-completions/mine/lexlet", {}, **changed)
    folder = tmp_path / "run"
    task = {"name": "niah_single_1", "options": 4}
    run = lexbench.run("lexlet", "none", task, 128, corpus="synthetic", n=8, results=folder, quiet=True)
    assert list(values(log).values()) == run.records().query("metric == 'accuracy'").value.to_list()
    assert len(server.asked) == 8 * 4


@pytest.mark.parametrize(
    ("task", "model", "model_args", "changed", "said"),
    [
        ("last_segment", "hf/local", HF, {}, "hf gives no log-probabilities of prompts, which last_segment"),
        ("passkey", "hf/local", {**HF, "do_sample": True}, {}, "hf draws its answers"),
        ("passkey", "hf/local", GREEDY, {}, "hf puts a chat template around the prompt"),
        ("passkey", "mockllm/model", {}, {}, "mockllm does not show the tokens that its model reads"),
        ("passkey", "openai-api-completions/mine/lexlet", {}, {}, "give -T tokenizer=FOLDER"),
        ("passkey", "hf/local", HF, {"length": 16}, "passkey needs at least"),
        ("ruler", "hf/local", HF, {}, "task ruler is a suite of several"),
        ("resolution", "hf/local", HF, {"n": 2}, "measures what inspect_ai does not give"),
    ],
)
@pytest.mark.usefixtures("server")
def test_a_model_that_would_read_something_else_is_refused(
    task: str, model: str, model_args: dict[str, Any], changed: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(inspect_ai._util.error.PrerequisiteError) as raised:
        evaluated(task, tmp_path, model, model_args, **changed)
    assert said in str(raised.value.message) and "\n" not in str(raised.value.message)


def test_another_text_than_the_prompt_ends_the_evaluation(tmp_path: Path) -> None:
    last = "{{ messages[-1].content }}{% if messages|length > 1 %}!{% endif %}"
    model = inspect_ai.model.get_model("hf/local", memoize=False, **{**HF, "chat_template": last})
    settings = {**SETTINGS, "n": 1}
    [log] = inspect_ai.eval(
        "lexbench/passkey",
        model=model,
        task_args=settings,
        log_dir=str(tmp_path),
        display="none",
        system_message="Be brief.",
    )
    assert log.status == "error" and "leave out --system-message" in log.error.message


def test_a_server_that_reads_other_tokens_ends_the_evaluation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def adds_bos(body: Body) -> Reply:
        return replied(len(body["prompt"]) + 1, {"text": " 1"})

    with serving(adds_bos) as server:
        monkeypatch.setenv("MINE_BASE_URL", server.url)
        monkeypatch.setenv("MINE_API_KEY", "none")
        log = evaluated("passkey", tmp_path, "openai-api-completions/mine/lexlet", {}, tokenizer="lexlet", n=1)
    assert log.status == "error"
    assert "a prompt has 310 tokens, the server has read 311" in log.error.message
