"""`backend.tensor_parallel`: two processes that hold half of each layer give the numbers of one."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, Gemma2Config, Gemma3TextConfig, LlamaConfig

import lexbench
from lexbench import Attention, Model, Refused
from lexbench.backends.hf.backend import Hf
from lexbench.checkpoints.checkpoint import folder_of, locate_checkpoint, read_model
from lexbench.commands import main
from lexbench.core import registry
from lexbench.core.attention import Slopes
from lexbench.core.errors import ConfigError
from lexbench.parts.cluster import tensor_parallel
from lexbench.parts.cluster.tensor_parallel import check_heads_apart, check_split
from lexbench.store.store import Store

LENGTH = 400
METHODS = ("none", "yarn", "log_n", "rerope", "self_extend", "dca", "streaming_llm", "attention_buckets", "dynamic_ntk")
"""One of each structure of attention, of 256 trained tokens at `LENGTH`."""


@pytest.fixture(scope="module")
def lexlet() -> Model:
    return read_model(registry.read_named_config("model", "lexlet"))


@pytest.fixture(scope="module")
def pair(lexlet: Model) -> Iterator[tuple[Hf, Hf]]:
    one, two = (
        Hf(lexlet, dtype="float32", device=device, tensor_parallel=count) for device, count in (("cpu", 1), ("auto", 2))
    )
    yield one, two
    two.close()


def answers(backend: Hf, attention: Attention) -> list[Any]:
    """Losses, losses of options, and written tokens behind a shared prompt."""
    backend.attend(attention)
    backend.reuse = True
    asked = [
        *lexbench.task("last_segment", corpus="synthetic").questions(backend.tokenizer, LENGTH, 2, 0),
        *lexbench.task("nth_needle", choose=True).questions(backend.tokenizer, LENGTH, 1, 0),
        *lexbench.task("passkey", questions_per_text=2).questions(backend.tokenizer, LENGTH, 2, 0),
    ]
    found = [each for question in asked for each in backend.answer_batch([question])]
    return [getattr(each, "nll", getattr(each, "tokens", None)) for each in found]


@pytest.mark.slow
def test_two_processes_give_the_numbers_of_one(pair: tuple[Hf, Hf], lexlet: Model) -> None:
    for name in METHODS:
        attention = lexbench.method(name).attention(lexlet, LENGTH)
        one, two = (answers(backend, attention) for backend in pair)
        for a, b in zip(one, two, strict=True):
            np.testing.assert_allclose(a, b, atol=1e-4, err_msg=name)
    weights = pair[1].reader.network.model.layers[0].self_attn.q_proj.weight
    assert weights.to_local().shape == (128, 256), "half of the layer's 256 outputs"


@pytest.mark.slow
def test_a_command_answers_alike_and_ends_with_its_processes(tmp_path: Path) -> None:
    found, words = [], ["run", "method=none,rerope", "task=passkey", "lengths=[512]", "n=2"]
    for count in ("1", "2"):
        own = [*words, f"results={tmp_path / count}", f"backend.tensor_parallel={count}"]
        if count == "1":  # of one process, this one
            assert main.main(own) == 0
        else:  # waits for all who hold its output
            subprocess.run([sys.executable, "-m", "lexbench", *own], check=True, capture_output=True, timeout=300)
        cells = Store(tmp_path / count).load()
        found.append({str(each.cell.method): [sample.output for sample in each.samples] for each in cells})
    assert found[0] == found[1] and found[0].keys() == {"none", "rerope"}


@pytest.mark.slow
def test_what_is_raised_in_all_processes_leaves_them_in_step(pair: tuple[Hf, Hf], lexlet: Model) -> None:
    with pytest.raises(Refused, match=r"hf cannot apply bias with backend\.tensor_parallel"):
        pair[1].attend(Attention(bias=Slopes((0.5,) * 8)))
    one, two = (answers(backend, Attention()) for backend in pair)
    np.testing.assert_allclose(one[0], two[0], atol=1e-4)


@pytest.mark.slow
def test_a_process_that_ends_is_said_in_one_line_and_the_first_one_takes_others_along() -> None:
    program = """
import os, signal, sys
import lexbench
from lexbench import Attention
from lexbench.backends.hf.backend import Hf
from lexbench.checkpoints.checkpoint import read_model
from lexbench.core import registry
hf = Hf(read_model(registry.read_named_config("model", "lexlet")), tensor_parallel=2)
[other] = hf._followers._processes
if sys.argv[1] == "first":
    os.kill(os.getpid(), signal.SIGKILL)
other.kill()
question = lexbench.task("last_segment", corpus="synthetic").questions(hf.tokenizer, 400, 1, 0)[0]
for _ in range(2):
    try:
        hf.score(question)
    except lexbench.ConfigError as error:
        print(error)
"""
    said = {}
    for killed in ("first", "other"):  # errors are heard until the last process that could write some has ended
        ran = subprocess.run([sys.executable, "-c", program, killed], capture_output=True, text=True, timeout=300)
        said[killed] = ran.stdout.splitlines()
    assert said["other"] == [
        "a process of backend.tensor_parallel has ended with -9: repeat the command",
        "the processes of backend.tensor_parallel have ended: repeat the command",
    ]


class Ending:
    """A process that ends a moment after the group has noticed that it is gone."""

    def __init__(self, code: int | None, polls: int) -> None:
        self.code, self.polls = code, polls

    def poll(self) -> int | None:
        self.polls -= 1
        return self.code if self.polls < 0 else None

    def terminate(self) -> None:
        pass

    def wait(self, _: float | None = None) -> int | None:
        return self.code


def followers(monkeypatch: pytest.MonkeyPatch, ending: Ending, failure: str = "") -> tensor_parallel.Followers:
    monkeypatch.setattr(tensor_parallel, "SECONDS_BETWEEN_POLLS", 0.001)
    monkeypatch.setattr(tensor_parallel, "SECONDS_TO_CLOSE", 0.2)
    monkeypatch.setattr("torch.distributed.destroy_process_group", lambda: None)
    made = tensor_parallel.Followers.__new__(tensor_parallel.Followers)
    store = SimpleNamespace(check=lambda _: bool(failure), get=lambda _: failure.encode())
    vars(made).update(_busy=False, _processes=[ending], _store=store, _tell=lambda _: None)
    return made


def gone() -> None:
    raise RuntimeError("Connection closed by peer")


def test_the_code_of_a_killed_process_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="has ended with -9: repeat the command"):
        followers(monkeypatch, Ending(-9, polls=20)).take("score", (), gone)
    with pytest.raises(RuntimeError, match="Connection closed"):  # nobody ends: an error of this process
        followers(monkeypatch, Ending(None, polls=0)).take("score", (), gone)


def test_an_error_in_another_process_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    other = "Traceback (most recent call last):\n  ...\nZeroDivisionError: division by zero"
    with pytest.raises(RuntimeError, match="Connection closed") as found:
        followers(monkeypatch, Ending(1, polls=2), other).take("score", (), gone)
    assert found.value.__notes__ == [f"Before, in another process of backend.tensor_parallel:\n{other}"]
    alike = "Traceback (most recent call last):\n  ...\nRuntimeError: Connection closed by peer"
    with pytest.raises(RuntimeError, match="Connection closed") as found:
        followers(monkeypatch, Ending(1, polls=2), alike).take("score", (), gone)
    assert not hasattr(found.value, "__notes__")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["gemma2", "gemma3", "llama"])
def test_a_network_whose_embeddings_are_scaled_gives_the_numbers_of_one_process(kind: str, tmp_path: Path) -> None:
    """Gemma's embeddings are a class of their own, which multiplies by the root of the width."""
    size = {"vocab_size": 2048, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "head_dim": 8}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64}
    config = {"gemma2": Gemma2Config, "gemma3": Gemma3TextConfig, "llama": LlamaConfig}[kind](**size, **heads)
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((locate_checkpoint("lexbench:lexlet", None) / name).read_bytes())
    program = """
import sys
import numpy as np
import lexbench
from lexbench import Attention
from lexbench.backends.hf.backend import Hf
from lexbench.checkpoints.checkpoint import read_model
model, found = read_model({"name": "tiny", "path": sys.argv[1], "trained_length": 64}), []
for settings in ({"device": "cpu"}, {"tensor_parallel": 2}):
    hf = Hf(model, dtype="float32", **settings)
    hf.attend(Attention())
    [question] = lexbench.task("last_segment", corpus="synthetic").questions(hf.tokenizer, 64, 1, 0)
    found.append(hf.score(question).nll)
    hf.close()
np.testing.assert_allclose(*found, atol=1e-5)
"""
    ran = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, timeout=300)
    assert (ran.returncode, "Traceback" in ran.stderr) == (0, False), ran.stderr


def test_an_attention_over_all_heads_of_a_layer_is_refused(lexlet: Model) -> None:
    with pytest.raises(Refused, match="head_ratios"):
        check_heads_apart(lexbench.method("ms_poe").attention(lexlet, LENGTH))
    for name in METHODS:
        check_heads_apart(lexbench.method(name).attention(lexlet, LENGTH))


def test_a_split_that_does_not_fit_is_one_line(lexlet: Model, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="must divide the number of key heads, 4, got 3: "):
        check_split(folder_of(lexlet), 3)
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    with pytest.raises(
        ConfigError, match=r"needs a plan for the layers, transformers .* has none for model_type gpt2: "
    ):
        check_split(tmp_path, 2)
    for settings, said in (
        ({"tensor_parallel": 0}, "must be a whole number of at least 1, got 0"),
        ({"tensor_parallel": 2, "device": "all"}, "got backend.device=all: leave one out"),
    ):
        with pytest.raises(ConfigError, match=said):
            Hf.check_settings(settings, lexlet)
