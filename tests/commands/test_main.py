"""The entry point: help, completion, old names, and wrong words in one line."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from lexbench.commands import main
from tests.commands.program import CHANCE, Command


@pytest.mark.parametrize(
    ("words", "said"),
    [(["run", "--help"], "method.factor=8"), (["list"], "Use one distance for all keys beyond the window")],
)
def test_help_and_list_are_quick_and_load_no_torch(words: list[str], said: str) -> None:
    code = f"import sys; from lexbench.commands.main import main\ntry: main({words})\nexcept SystemExit: pass\n"
    code += "print('torch' in sys.modules, 'hydra' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said in done.stdout
    assert done.stdout.splitlines()[-1] == "False False"


@pytest.mark.parametrize(
    ("line", "offered", "never"),
    [
        ("lexbench r", {"run", "report"}, {"show"}),
        ("lexbench run method=", {"method=yarn", "method=ntk"}, set()),
        ("lexbench run -m method=yarn,ntk mu", {"multiples="}, {"model="}),
        ("lexbench run ", {"method=", "method.", "n="}, {"recipe=", "length="}),
        ("lexbench study encodings se", {"seeds="}, {"suite="}),
        ("lexbench study encodings suite.r", {"suite.recipe="}, set()),
        ("lexbench tune space.yarn.", {"space.yarn.beta_fast."}, set()),
        ("lexbench leaderboard runs --r", {"--rows", "--rule"}, {"--margin"}),
        ("lexbench report ", set(), {"method="}),
        ("lexbench run method=[ya", set(), set()),
        ("lexbench nothing n", set(), {"n="}),
    ],
)
def test_completion_offers_what_a_command_takes(
    line: str,
    offered: set[str],
    never: set[str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = {}
    for shell, apart in (("bash", " "), ("fish", "\n")):
        monkeypatch.setenv("COMP_LINE", line)
        monkeypatch.setenv("COMP_POINT", str(len(line)))
        assert main.main(["-sc", f"query={shell}"]) == 0
        found[shell] = {each for each in capsys.readouterr().out.strip("\n").split(apart) if each}
    assert offered <= found["bash"] and not never & found["bash"]
    assert found["fish"] == found["bash"]


@pytest.mark.parametrize("shell", ["bash", "fish"])
def test_completion_is_installed_by_a_script(shell: str, lexbench: Command) -> None:
    assert "complete" in lexbench("-sc", f"install={shell}").stdout


def test_the_old_name_of_study_works_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["suite", "encodingz"]) == 2
    renamed, wrong = capsys.readouterr().err.splitlines()
    assert renamed == "lexbench suite is lexbench study now; the old name goes in 0.3"
    assert "unknown suite 'encodingz': did you mean encodings?" in wrong


def test_a_users_own_folder_of_configs_is_seen_by_run_show_and_list(lexbench: Command, tmp_path: Path) -> None:
    (tmp_path / "method").mkdir()
    (tmp_path / "method/half.yaml").write_text("_target_: lexbench.methods.pi.Pi\nfactor: 2\n")
    environment = {"LEXBENCH_CONFIG_PATH": str(tmp_path)}
    assert "half" in lexbench("list", "method", **environment).stdout
    shown = lexbench("show", "method=half", "model=llama2", "--json", "--config-dir", str(tmp_path))
    assert shown.returncode == 0, shown.stderr
    assert json.loads(shown.stdout)["attention"]["inv_freq"][0] == 0.5
    done = lexbench("run", *CHANCE, f"results={tmp_path / 'run'}", "method=half", "--config-dir", str(tmp_path))
    assert done.returncode == 0, done.stderr


def test_argparse_errors_leave_with_two(lexbench: Command) -> None:
    for words in (["frobnicate"], ["report"], ["list", "methods"]):
        assert lexbench(*words).returncode == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["verify", "method=pi", "length=-5"], "length must be a whole number of at least 1 token, got -5"),
        (["verify", "method=pi", "n=4"], "verify reads n=4 with --against only: without it a random text is read"),
        (["verify", "--against", "nativ"], "unknown backend 'nativ': did you mean native?"),
        (["share", "nowhere"], "share has nothing to write: give --card FILE, --samples DIR, or --to FORMAT --out DIR"),
        (["import", "lm_eval", "nowhere", "--into", "here"], "results nowhere do not exist"),
        (["verify", "method=pi", "length=1"], "verify needs a text of at least 2 tokens, got 1"),
        (["verify", "method=pi", "length=abc"], "length must be a whole number of at least 1 token, got abc"),
        (["show", "method=pi", "length=0"], "length must be a whole number of at least 1 token, got 0"),
        (["search", "length=abc", "out=x.yaml"], "length must be a whole number of at least 1 token, got abc"),
        (["search", "length=512"], "out"),
    ],
)
def test_a_wrong_length_is_one_line(words: list[str], said: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main.main(words) == 2
    _, err = capfd.readouterr()
    assert said in err and len(err.splitlines()) == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["foo"], "unknown value 'foo': choose from run, "),
        (["reprot"], "unknown value 'reprot': did you mean report? choose from run, "),
        (
            ["leaderboard", "runs", "--formt=html"],
            "unexpected argument --formt=html: did you mean --format? see lexbench",
        ),
        (["run", "--mutirun"], "unknown flag --mutirun: did you mean --multirun? see --help"),
        (["run", "--foo"], "unknown flag --foo"),
        (["run", "+foo=1"], "unknown setting foo: choose from model, method"),
        (["run", "n=x"], "n must be a whole number of at least 1, got 'x'"),
        (["run", "n=1.5"], "n must be a whole number of at least 1, got 1.5"),
        (["run", "seed=x"], "seed must be a whole number of at least 0, got 'x'"),
        (["run", "seed=[]"], "seed must be a whole number"),
        (["run", "multiples=[0.5,x]"], "multiples must be numbers above 0, got 'x'"),
        (["run", "multiples=[-1]"], "multiples must be numbers above 0, got -1"),
        (["run", "task.suite=passkey"], "a suite must be a list of tasks, got 'passkey'"),
        (["score", "longbnch", "X"], "unknown value 'longbnch': did you mean longbench? "),
        (["score", "longbench", "nowhere"], "folder nowhere does not exist"),
        (["score", "longbench", __file__], f"folder {__file__} is a file: give one with predictions"),
        (["score", "babilong", __file__], f"folder {__file__} is a file: give one with predictions"),
        (["report", __file__], f"run folder {__file__} is a file: give one that `lexbench run` has written"),
        (["view", __file__], f"run folder {__file__} is a file: give the results folder of `lexbench run`"),
        (["run", f"results={__file__}"], f"results {__file__} is a file: give results=DIR"),
        (["show", f"model={__file__}"], f"model folder {__file__} is a file: give model.path=DIR"),
        (["show", "model=/tmp.gguf"], "model file /tmp.gguf does not exist: give the path of a GGUF file"),
        (["show", "-m", "method=none"], "-m runs several jobs, and lexbench show makes one answer: leave it out"),
        (["export", "-m", "--to", "vllm"], "-m runs several jobs, and lexbench export makes one answer: leave it out"),
        (["score", "longbench", "X", "--buckets", "8,4"], "bounds must be whole numbers that ascend"),
        (["keys", "model=lexlet"], "keys needs a file to write: give out=FILE"),
        (["tune", "to=vllm"], "unknown setting to: did you mean --to vllm?\n"),
        (["identify", "model=lexlet"], "the pack comes first, got model=lexlet: lexbench identify PACK model=NAME"),
    ],
)
def test_a_slip_is_said_in_one_line(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        code = main.main(words)
    except SystemExit as ended:  # argparse's way
        code = int(ended.code or 0)
    printed = capsys.readouterr()
    assert (code, printed.out) == (2, "")
    assert said in printed.err
    assert printed.err.count("\n") == 1


def test_a_sweep_of_nothing_says_so_and_runs_one_job(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["run", "-m", *CHANCE, f"results={tmp_path}"]) == 0
    first, *_ = capsys.readouterr().err.splitlines()
    assert first == "lexbench: -m has nothing to sweep, so one job runs: give it KEY=A,B"
    assert main.main(["run", "-m", "method=none,pi", *CHANCE, f"results={tmp_path}"]) == 0
    assert "nothing to sweep" not in capsys.readouterr().err
