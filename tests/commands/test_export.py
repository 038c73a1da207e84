"""`lexbench export` and `lexbench show`."""

import json

import pytest

from lexbench.commands import main
from tests.commands.program import Command


def test_show_takes_a_model_by_its_facts_alone(lexbench: Command) -> None:
    facts = ["model=custom", "model.head_dim=8", "model.rope_base=10000", "model.trained_length=16"]
    done = lexbench("show", "method=pi", "method.factor=4", *facts, "length=64", "--json")
    assert done.returncode == 0, done.stderr
    # (1, 0.1, 0.01, 0.001) / 4
    assert json.loads(done.stdout)["attention"]["inv_freq"] == pytest.approx([0.25, 0.025, 0.0025, 0.00025])


def test_export_prints_what_to_paste(capfd: pytest.CaptureFixture[str]) -> None:
    words = ["export", "method=pi", "method.factor=8", "model=llama2", "length=32768"]
    assert main.main([*words, "--to", "transformers"]) == 0
    printed = json.loads(capfd.readouterr().out)
    assert printed["rope_parameters"] | {"rope_type": "linear", "factor": 8.0} == printed["rope_parameters"]
    assert main.main([*words, "--to", "vllm", "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["max_model_len"] == 32768


def test_within_the_trained_length_it_is_said_that_no_method_is_needed(lexbench: Command) -> None:
    words = ["export", "method=yarn", "model=llama2", "--to", "vllm"]
    done = lexbench(*words, "length=4096")
    assert (done.returncode, done.stdout.startswith("vllm serve ")) == (0, True)
    said = "length 4096 is within the trained length 4096 of Llama-2-7b-hf: shorter texts need no method"
    assert done.stderr == f"lexbench: {said}\n"
    assert lexbench(*words, "length=4097").stderr == ""
    assert lexbench(*words, "length=100", "method=none").stderr == ""


@pytest.mark.everyday("words0", "words3", "words5")
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["method=rerope", "model=llama2", "length=8192", "--to", "vllm"],
            "vllm cannot express remapped distances (rerope)",
        ),
        (["method=log_n", "model=llama2", "length=8192", "--to", "transformers"], "cannot express query_scale"),
        (["method=yarn", "model=llama2", "--to", "vllm"], "export needs the tokens in use"),
        (["method=yarn", "model=llama2", "length=0", "--to", "vllm"], "length must be a whole number of at least 1"),
        (["method=yarn", "model=llama2", "length=abc", "--to", "vllm"], "length must be a whole number of at least 1"),
        (
            ["method=yarn", "model=llama2", "lengths=[9000,8000]", "--to", "vllm"],
            "length must be a whole number of at least 1 token, got [9000, 8000]: e.g. length=32768",
        ),
    ],
)
def test_what_cannot_be_exported_is_one_line(words: list[str], said: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main.main(["export", *words]) == 2
    out, err = capfd.readouterr()
    assert said in err and len(err.splitlines()) == 1 and not out
