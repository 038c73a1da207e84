"""Words of a command: several values and combined methods, lengths by either name, parameters, marks in names."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from lexbench import run
from lexbench.commands import export, hydra_config, main, show, versus
from lexbench.commands import run as run_
from lexbench.commands.command import Command, chosen_method, chosen_methods
from lexbench.methods.composition import read_method
from lexbench.store.store import Store
from tests.commands.program import CHANCE

MARKS = "=[{#(~',]})\"\\:;&|<>!?*$ %@^`"
"""Marks that a name of a folder may hold."""


def composed(words: str, command: Command = run_.COMMAND) -> tuple[dict[str, Any], dict[str, str]]:
    return hydra_config.compose_config(command, shlex.split(words))


def labels(words: str, command: Command = run_.COMMAND) -> list[str]:
    return [str(read_method(each)[2]) for each in chosen_methods(*composed(words, command))]


@pytest.mark.everyday(
    "method=[yarn]",
    "method=none,yarn+log_n,pi",
    "'method=[pi,{name:yarn,factor:8}]' method.factor=4",
    "'method.compose=[{name:yarn,factor:8},log_n]'",
)
@pytest.mark.parametrize(
    ("words", "asked"),
    [
        ("method=yarn", ["yarn"]),
        ("method=[yarn]", ["yarn"]),
        ("method=none,yarn", ["none", "yarn"]),
        ("method=[none,yarn]", ["none", "yarn"]),
        ("'method=[none, yarn]'", ["none", "yarn"]),
        ("method=yarn+log_n", ["yarn+log_n"]),
        ("method=none,yarn+log_n,pi", ["none", "yarn+log_n", "pi"]),
        ("'method=[none,{name:yarn,factor:8}]'", ["none", "yarn(factor=8)"]),
        ("'method=[pi,{name:yarn,factor:8}]' method.factor=4", ["pi(factor=4)", "yarn(factor=8)"]),
        ("'method=[none,{compose:[{name:yarn,factor:8},log_n]}]'", ["none", "yarn(factor=8)+log_n"]),
        ("method=none,yarn+log_n method.at=2048", ["none(at=2048)", "yarn+log_n(at=2048)"]),
        ("'method.compose=[{name:yarn,factor:8},log_n]'", ["yarn(factor=8)+log_n"]),
    ],
)
def test_a_list_stands_for_several_methods_and_a_plus_combines_them(words: str, asked: list[str]) -> None:
    assert labels(words) == asked


@pytest.mark.parametrize("words", ["method=yarn+log_n", "method.compose=[yarn,log_n]"])
def test_combined_methods_are_the_same_object_however_they_are_asked_for(words: str) -> None:
    """So their cells keep their identities."""
    _, built, label = read_method(chosen_method(*composed(words), "run"))
    assert (built, label) == read_method({"compose": ["yarn", "log_n"]})[1:]


def test_several_methods_are_one_run_and_the_same_from_python(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    asked = ["none", "yarn+log_n"]
    for number, words in enumerate((["method=none,yarn+log_n"], ["method=[none,yarn+log_n]"])):
        assert main.main(["run", *words, *CHANCE, f"results={tmp_path / str(number)}"]) == 0
        assert capfd.readouterr().err.count("methods  none, yarn+log_n") == 1
    run("lexlet", asked, "passkey", [128, 256], backend="chance", n=2, results=tmp_path / "python", quiet=True)
    assert main.main(["run", "-m", "method=none,yarn+log_n", *CHANCE, f"results={tmp_path / 'sweep'}"]) == 0
    found = [{each.cell.id for each in Store(tmp_path / name).load()} for name in ("0", "1", "python", "sweep")]
    assert len(found[0]) == 4 and found[1:] == found[:1] * 3


@pytest.mark.everyday("show")
@pytest.mark.parametrize("command", [show.COMMAND, export.COMMAND, versus.COMMAND], ids=lambda c: c.name)
def test_a_command_of_one_method_says_how_to_combine_several(command: Command) -> None:
    check_one_method(command)


def check_one_method(command: Command) -> None:
    """A command of one method says how to combine several."""
    with pytest.raises(
        ValueError, match=r"takes one method, got yarn, log_n: give one, or combine .*method=yarn\+log_n"
    ):
        chosen_method(*composed("method=[yarn,log_n]", command), command.name)
    assert str(read_method(chosen_method(*composed("method=yarn+log_n", command), command.name))[2]) == "yarn+log_n"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            ["none", ["yarn", "log_n"]],
            r"a list stands for several methods.*\['yarn', 'log_n'\]: combine them by yarn\+log_n",
        ),
        ([["yarn", {"name": "log_n"}]], r"combine them by yarn\+log_n, or with parameters by \{compose: \[...\]\}"),
        ("yarn+log_m", "unknown method 'log_m': did you mean log_n"),
    ],
)
def test_python_combines_in_the_same_way(given: Any, said: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=said):
        run("lexlet", given, "passkey", [128], backend="chance", n=2, results=tmp_path, quiet=True)


@pytest.mark.everyday("length=[512,1024]", "lengths=512,1024", "lengths=null")
@pytest.mark.parametrize(
    ("words", "command", "setting", "value"),
    [
        ("lengths=512", run_.COMMAND, "lengths", [512]),
        ("length=512", run_.COMMAND, "lengths", [512]),
        ("length=[512,1024]", run_.COMMAND, "lengths", [512, 1024]),
        ("lengths=512,1024", run_.COMMAND, "lengths", [512, 1024]),
        ("multiples=0.5,1", run_.COMMAND, "multiples", [0.5, 1]),
        ("seed=0,1", run_.COMMAND, "seed", [0, 1]),
        ("seed=1", run_.COMMAND, "seed", 1),
        ("lengths=null", run_.COMMAND, "lengths", None),
        ("lengths=512", show.COMMAND, "length", 512),
    ],
)
def test_one_value_is_a_list_of_one_and_lengths_have_either_name(
    words: str, command: Command, setting: str, value: Any
) -> None:
    assert composed(words, command)[0][setting] == value


def test_of_tasks_a_list_without_m_is_several_too() -> None:
    assert composed("task=passkey,last_segment")[0]["task"]["suite"] == ["passkey", "last_segment"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("run factor=8", "unknown setting factor: did you mean method.factor=8?"),
        ("run method=yarn beta_fast=8", "did you mean method.beta_fast=8?"),
        ("run method=none,yarn+log_n at=8", "did you mean method.at=8?"),
        ("run task=passkey method=rerope window=8", "did you mean method.window=8?"),
        ("run task=last_segment targets=8", "did you mean task.targets=8?"),
        ("run trained_length=8", "did you mean model.trained_length=8?"),
        ("run dtype=float64", "did you mean backend.dtype=float64?"),
        ("run lenghts=8", "did you mean lengths? choose from model, "),
        (
            "run method=none,yarn method.factor=8",
            "none has no such parameter: write {name:NAME,factor:...} in the list",
        ),
        ("run method=yarn+log_n method.factor=8", "write method.compose=[{name:yarn,factor:...},log_n]"),
        ("run model=lexlet,llama2", "model takes one name, got lexlet,llama2: -m model=lexlet,llama2 runs a job"),
        ("show model=lexlet,llama2", "lexbench: model takes one name, got lexlet,llama2: give one"),
        ("run n=1,2", "n takes one value, got 1,2: -m n=1,2 runs a job for each"),
        ("show length=1,2", "lexbench: length takes one value, got 1,2: give one"),
        ("run method=glob(*)", "method takes one value, got glob(*): -m method=glob(*) runs a job for each"),
        ("show length=[512,1024]", "length must be a whole number of at least 1 token, got [512, 1024]"),
    ],
)
def test_slips_are_answered_by_what_was_meant(
    words: str, said: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main.main(words.split()) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert said in line and "hydra" not in line and "multirun" not in line


@pytest.mark.everyday("=", "'")
@pytest.mark.parametrize("mark", MARKS)
def test_a_folder_of_any_name_is_taken_as_it_is(mark: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in (f"a{mark}b", f"a{mark}", f"{mark}a{mark}"):
        Path(name).mkdir()
        assert composed_of(f"model=./{name}")["model"]["path"] == f"./{name}"
        if name[0] not in "'\"":  # begins as a text in quotes does
            assert composed_of(f"results={name}")["results"] == name


def composed_of(word: str) -> dict[str, Any]:
    return hydra_config.compose_config(run_.COMMAND, [word])[0]


@pytest.mark.everyday("=", "{", "'", "$")
@pytest.mark.parametrize("mark", MARKS)
def test_advice_on_a_text_with_marks_is_understood_by_shell_and_command(mark: str) -> None:
    word = f"corpus.path=a{mark}b"
    try:
        got = composed_of(word)["corpus"]["path"]
    except ValueError as error:
        advice = re.split("goes into quotes, |for one text write ", str(error))[1]
        [advised] = shlex.split(advice)
        got = composed_of(advised)["corpus"]["path"]
    assert got == f"a{mark}b"


def test_a_folder_of_own_yamls_may_have_any_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEXBENCH_CONFIG_PATH", "")
    own = tmp_path / "a=[{#(~',b" / "method"
    own.mkdir(parents=True)
    (own / "mine.yaml").write_text("_target_: lexbench.methods.pi.Pi\nfactor: 2\n")
    assert main.main(["show", "method=mine", "length=512", "--config-dir", str(own.parent)]) == 0
    assert "under **mine**" in capsys.readouterr().out


@pytest.mark.parametrize(
    "words",
    [
        ["list", "y" * 5000],
        ["figure", "r", "--digits", "z" * 5000],
        ["leaderboard", "r", "--rows", "w" * 5000],
        ["u" * 5000],
    ],
    ids=["name", "number", "choice", "command"],
)
def test_a_message_has_at_most_1000_characters(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main.main(words)
    [line] = capsys.readouterr().err.splitlines()
    assert len(line) <= 1000 + len("lexbench: ") and line.startswith("lexbench: ")


@pytest.mark.parts("native", "vllm", "openai")
@pytest.mark.everyday(
    "backend.dtype=fp16",
    "backend.dtyp=float32",
    "backend=native backend.device=all",
    "backend=vllm backend.at_once=0",
    "backend=openai backend.timeout=0",
)
@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("backend.dtype=fp16", "backend.dtype must be one of auto, float32,"),
        ("backend.chunk=0", "backend.chunk must be at least 1 position, got 0"),
        ("backend.batch=0", "backend.batch must be auto or a whole number of at least 1, got 0"),
        ("backend.batch=many", "backend.batch must be auto or a whole number of at least 1, got 'many'"),
        ("backend.attention=fast", "backend.attention must be auto, lexbench, merged or triton, got fast"),
        ("backend.device=gpu", "backend.device gpu is not available"),
        ("backend.dtyp=float32", "unknown parameter backend.dtyp: did you mean dtype?"),
        ("backend.thinking=free", "backend.thought must be tokens above 0 with thinking"),
        ("backend=native backend.dtype=bfloat16", "backend.dtype must be float32 or float64, got bfloat16"),
        ("backend=native backend.device=all", "backend.device all needs backend=hf"),
        ("backend=vllm backend.dtype=float64", "backend.dtype must be one of auto, "),
        ("backend=vllm backend.at_once=0", "backend.at_once must be at least 1, got 0"),
        ("backend=vllm backend.memory_share=2", "backend.memory_share must be above 0 and at most 1, got 2"),
        ("backend=vllm backend.engine={dtype:half}", "backend.engine must leave dtype to lexbench"),
        ("backend=openai backend.timeout=0", "backend.timeout must be seconds above 0, got 0"),
        ("backend=openai backend.serves=yran", "backend.serves: unknown method 'yran'"),
        ("backend=openai backend.url=nowhere", "url"),
        ("backend=openai backend.key_variable=sk-1", "backend.key_variable must be the name of"),
        ("backend=openai backend.system=hi", "need backend.chat=true"),
    ],
)
def test_a_dry_run_refuses_what_the_run_refuses(
    words: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = ["run", "model=lexlet", "task=passkey", "lengths=[128]", "n=2", f"results={tmp_path / 'run'}", "--dry-run"]
    assert main.main([*plan, *words.split()]) == 2
    assert said in capsys.readouterr().err.splitlines()[-1]


def test_a_dry_run_plans_for_a_machine_with_other_devices(tmp_path: Path) -> None:
    plan = ["run", "model=lexlet", "task=passkey", "lengths=[128]", "n=2", f"results={tmp_path / 'run'}", "--dry-run"]
    assert main.main([*plan, "backend.device=cuda:7", "backend.dtype=bfloat16"]) == 0


@pytest.mark.parametrize(
    ("word", "path"),
    [("corpus=book.txt", "book.txt"), ("corpus=./my texts", "./my texts"), ("corpus=/a/b=c.jsonl", "/a/b=c.jsonl")],
)
def test_a_file_or_folder_of_texts_is_a_corpus(word: str, path: str) -> None:
    config, choices = hydra_config.compose_config(run_.COMMAND, [word])
    assert (choices["corpus"], config["corpus"]["path"]) == ("files", path)


def test_a_folder_without_its_mark_is_told_how_to_be_written() -> None:
    with pytest.raises(ValueError, match=r"unknown corpus 'texts': .* or give corpus=\./FOLDER or corpus=FILE\.txt"):
        hydra_config.compose_config(run_.COMMAND, ["corpus=texts"])
