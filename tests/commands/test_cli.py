"""The command line: what a newcomer types, right or wrong."""

import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from lexbench.commands import main
from lexbench.core.checkpoint import on_disk
from tests.report.fake_run import finished, keep


def lexbench(*words: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "lexbench", *words],
        capture_output=True,
        text=True,
        env={**os.environ, "HF_HUB_OFFLINE": "1", **environment},
        timeout=240,
    )


CHANCE = ["backend=chance", "task=passkey", "lengths=[128,256]", "n=2"]
WRONG = [
    (["model=lama2"], "unknown model 'lama2': did you mean llama2?"),
    (["method=yran"], "unknown method 'yran': did you mean yarn?"),
    (["task=passky"], "unknown task 'passky': did you mean passkey?"),
    (["corpus=stdlb"], "unknown corpus 'stdlb': did you mean stdlib?"),
    (["backend=hff"], "unknown backend 'hff': did you mean hf?"),
    (["method=yarn", "method.factr=8"], "unknown parameter method.factr: did you mean factor?"),
    (["method=ntk", "method.factor=-1"], "factor"),
    (["task.digts=3"], "unknown parameter task.digts: did you mean digits?"),
    (["model=local", "model.path=/nowhere/at/all"], "/nowhere/at/all does not exist"),
    (["model=local"], "model lacks"),
    (["model.pth=x"], "unknown parameter model.pth"),
    (["lenghts=[128]"], "unknown setting lenghts"),
    (["length=512"], "unknown setting length: choose from"),
    (["lengths=[0]"], "lengths must be whole numbers"),
    (["lengths=[]"], "lengths must be"),
    (["n=0"], "n must be a whole number of at least 1"),
    (["passkey"], "must be key=value"),
    (["method=[yarn,ntk]"], "yarn and ntk do not compose: both set inv_freq"),
    (["model=[lexlet]"], "-m model=a,b"),
    (["-m", "method=none,[yarn,log_n]"], "-m method.compose=[...],[...]"),
    (["method=[yarn,log_m]"], "unknown method 'log_m': did you mean log_n?"),
    (["task=last_segment", "corpus=files", "corpus.path=/nowhere.txt"], "/nowhere.txt"),
    (["lengths=[128"], "lengths"),
    (["--config-dir", "/nowhere"], "/nowhere is no folder"),
]


@pytest.mark.parametrize(("words", "said"), WRONG, ids=lambda value: " ".join(value) if isinstance(value, list) else "")
def test_wrong_input_gets_one_line_and_exit_code_two(
    words: list[str], said: str, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    code = main.main(["run", *CHANCE, f"results={tmp_path / 'run'}", *words])
    out, err = capfd.readouterr()
    assert code == 2
    lines = [line for line in err.splitlines() if line.startswith("lexbench: ")]
    assert len(lines) == 1
    assert said in lines[0]
    assert "Traceback" not in err + out
    assert "Error executing job" not in err
    assert not (tmp_path / "run/cells").exists()


def test_help_is_quick_and_loads_no_torch() -> None:
    code = (
        "import sys; from lexbench.commands.main import main\ntry: main(['run', '--help'])\nexcept SystemExit: pass\n"
    )
    code += "print('torch' in sys.modules, 'hydra' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "method.factor=8" in done.stdout
    assert done.stdout.splitlines()[-1] == "False False"


def test_a_run_prints_its_table_and_leaves_records(tmp_path: Path) -> None:
    done = lexbench("run", *CHANCE, f"results={tmp_path}")
    assert done.returncode == 0, done.stderr
    assert "passkey" in done.stdout
    assert "accuracy" in done.stdout
    assert "2 cells" in done.stderr
    rows = [json.loads(line) for line in (tmp_path / "records.jsonl").read_text().splitlines()]
    assert {(row["length"], row["metric"]) for row in rows} >= {(128, "accuracy"), (256, "accuracy")}


def test_a_dry_run_prints_the_plan_and_writes_nothing(tmp_path: Path) -> None:
    done = lexbench("run", "--dry-run", *CHANCE, f"results={tmp_path / 'run'}")
    assert done.returncode == 0, done.stderr
    assert "2 cells, 768 tokens" in done.stderr
    assert not (tmp_path / "run").exists()


def test_a_sweep_runs_every_method_into_one_folder(tmp_path: Path) -> None:
    done = lexbench("run", *CHANCE, f"results={tmp_path}", "-m", "method=none,ntk")
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in (tmp_path / "records.jsonl").read_text().splitlines()]
    assert {row["method"] for row in rows} == {"none", "ntk"}


def test_a_users_own_folder_of_configs_is_seen_by_run_show_and_list(tmp_path: Path) -> None:
    (tmp_path / "method").mkdir()
    (tmp_path / "method/half.yaml").write_text("_target_: lexbench.methods.pi.Pi\nfactor: 2\n")
    environment = {"LEXBENCH_CONFIG_PATH": str(tmp_path)}
    assert "half" in lexbench("list", "method", **environment).stdout
    shown = lexbench("show", "method=half", "model=llama2", "--json", "--config-dir", str(tmp_path))
    assert shown.returncode == 0, shown.stderr
    assert json.loads(shown.stdout)["attention"]["inv_freq"][0] == 0.5
    done = lexbench("run", *CHANCE, f"results={tmp_path / 'run'}", "method=half", "--config-dir", str(tmp_path))
    assert done.returncode == 0, done.stderr


def test_show_takes_a_model_by_its_facts_alone() -> None:
    facts = ["model=custom", "model.head_dim=8", "model.rope_base=10000", "model.trained_length=16"]
    done = lexbench("show", "method=pi", "method.factor=4", *facts, "length=64", "--json")
    assert done.returncode == 0, done.stderr
    # (1, 0.1, 0.01, 0.001) / 4
    assert json.loads(done.stdout)["attention"]["inv_freq"] == pytest.approx([0.25, 0.025, 0.0025, 0.00025])


def test_completion_offers_commands_and_names() -> None:
    def complete(line: str) -> set[str]:
        return set(lexbench("-sc", "query=bash", COMP_LINE=line, COMP_POINT=str(len(line))).stdout.split())

    assert complete("lexbench r") == {"run", "report"}
    assert {"method=yarn", "method=ntk"} <= complete("lexbench run method=")
    assert "complete" in lexbench("-sc", "install=bash").stdout


def test_a_full_disk_is_said_and_earlier_cells_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    words = ["run", *CHANCE, f"results={tmp_path}"]
    assert main.main(words) == 0
    before = {file.name: file.read_bytes() for file in (tmp_path / "cells").iterdir()}

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "some file")

    monkeypatch.setattr(os, "fsync", full)
    assert main.main([*words, "method=ntk"]) == 2
    assert "lexbench: disk full while writing" in capfd.readouterr().err
    assert {file.name: file.read_bytes() for file in (tmp_path / "cells").glob("*.parquet")} == before


def test_reports_need_no_model(tmp_path: Path) -> None:
    assert lexbench("run", *CHANCE, f"results={tmp_path}").returncode == 0
    done = lexbench("report", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).is_file()
    nothing = lexbench("report", str(tmp_path / "nowhere"))
    assert nothing.returncode == 2
    assert nothing.stderr.startswith("lexbench: ")
    assert len(nothing.stderr.splitlines()) == 1


@pytest.mark.parametrize("words", [["frobnicate"], ["report"], ["list", "methods"]])
def test_argparse_errors_leave_with_two(words: list[str]) -> None:
    assert lexbench(*words).returncode == 2


def checkpoint(folder: Path) -> Path:
    """A copy of the embedded model, to be spoilt."""
    found = on_disk("lexbench:lexlet")
    assert found is not None
    shutil.copytree(found, folder)
    return folder


def test_weights_that_can_run_code_are_turned_away(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = checkpoint(tmp_path / "model")
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    words = ["run", "model=local", f"model.path={folder}", "task=passkey", "lengths=[128]", "n=1"]
    assert main.main([*words, f"results={tmp_path / 'run'}"]) == 2
    said = capfd.readouterr().err.splitlines()[-1]
    assert "no *.safetensors (only pytorch_model.bin): convert it" in said


def test_weights_that_are_not_numbers_are_named(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = checkpoint(tmp_path / "model")
    weights = load_file(folder / "model.safetensors")
    weights["model.layers.2.self_attn.k_proj.weight"][3, 5] = float("nan")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    words = ["run", "model=local", f"model.path={folder}", "task=passkey", "lengths=[128]", "n=1"]
    assert main.main([*words, f"results={tmp_path / 'run'}"]) == 2
    assert "layers.2.self_attn.k_proj.weight" in capfd.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize(
    ("text", "lengths", "said"),
    [("", "[64,128]", "holds no text"), ("too short a text", "[64,128]", "refused"), (None, "[64]", "does not exist")],
)
def test_texts_that_do_not_suffice_are_said(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], text: str | None, lengths: str, said: str
) -> None:
    file = tmp_path / "text.txt"
    if text is not None:
        file.write_text(text)
    words = ["run", "backend=chance", "task=last_segment", "corpus=files", f"corpus.path={file}", "n=2"]
    code = main.main([*words, f"lengths={lengths}", f"results={tmp_path / 'run'}"])
    out, err = capfd.readouterr()
    assert "Traceback" not in out + err
    assert said in out + err
    assert code == (0 if said == "refused" else 2)  # a refusal is a result


def test_export_prints_what_to_paste(capfd: pytest.CaptureFixture[str]) -> None:
    words = ["export", "method=pi", "method.factor=8", "model=llama2", "length=32768"]
    assert main.main([*words, "--to", "transformers"]) == 0
    printed = json.loads(capfd.readouterr().out)
    assert printed["rope_parameters"] | {"rope_type": "linear", "factor": 8.0} == printed["rope_parameters"]
    assert main.main([*words, "--to", "vllm", "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["max_model_len"] == 32768


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["method=rerope", "model=llama2", "length=8192", "--to", "vllm"], "vllm cannot express remap"),
        (["method=log_n", "model=llama2", "length=8192", "--to", "transformers"], "cannot express query_scale"),
        (["method=yarn", "model=llama2", "--to", "vllm"], "export needs the tokens in use"),
        (["method=yarn", "model=llama2", "length=0", "--to", "vllm"], "length must be a whole number of at least 1"),
        (["method=yarn", "model=llama2", "length=abc", "--to", "vllm"], "length must be a whole number of at least 1"),
        (["method=yarn", "model=llama2", "lengths=[9]", "--to", "vllm"], "unknown setting lengths: choose from"),
    ],
)
def test_what_cannot_be_exported_is_one_line(words: list[str], said: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main.main(["export", *words]) == 2
    out, err = capfd.readouterr()
    assert said in err and len(err.splitlines()) == 1 and not out


def test_verify_prints_methods_by_checks_and_refusals(capfd: pytest.CaptureFixture[str]) -> None:
    assert main.main(["verify", "-m", "method=yarn,rerope", "length=300"]) == 0
    rows = capfd.readouterr().out.splitlines()
    assert [row.split("|")[1].strip() for row in rows] == ["method", rows[1].split("|")[1].strip(), "yarn", "rerope"]
    assert len({len(row) for row in rows}) == 1
    assert main.main(["verify", "method=yarn", "length=300", "backend=native", "--json"]) == 0
    [row] = json.loads(capfd.readouterr().out)
    assert (row["method"], row["length"]) == ("yarn", 300) and "use backend=hf" in row["refused"]
    assert main.main(["verify", "-m", "method=pi", "length=20,40", "--json"]) == 0
    rows = json.loads(capfd.readouterr().out)
    assert [(row["length"], len(row["checks"])) for row in rows] == [(20, 7), (40, 7)]


def test_a_failing_check_is_exit_code_one(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lexbench.runner.verify.REALISED", -1.0)
    assert main.main(["verify", "method=pi", "length=64"]) == 1
    assert "FAILED" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["verify", "method=pi", "length=-5"], "length must be a whole number of at least 1 token, got -5"),
        (["verify", "method=pi", "n=4"], "verify reads n=4 with --against only: without it a random text is read"),
        (["verify", "--against", "nativ"], "unknown backend 'nativ': did you mean native?"),
        (["share", "nowhere"], "share has nothing to write: give --card FILE, --samples DIR, or both"),
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
        (["foo"], "invalid choice: 'foo'"),
        (["run", "--foo"], "unknown flag --foo"),
        (["run", "+foo=1"], "unknown setting foo: choose from model, method"),
        (["run", "n=x"], "n must be a whole number of at least 1, got 'x'"),
        (["run", "n=1.5"], "n must be a whole number of at least 1, got 1.5"),
        (["run", "seed=x"], "seed must be a whole number of at least 0, got 'x'"),
        (["run", "seed=[]"], "seed must be a whole number"),
        (["run", "multiples=[0.5,x]"], "multiples must be numbers above 0, got 'x'"),
        (["run", "multiples=[-1]"], "multiples must be numbers above 0, got -1"),
        (["run", "task.suite=passkey"], "a suite must be a list of tasks, got 'passkey'"),
        (["score", "longbnch", "X"], "invalid choice: 'longbnch'"),
        (["score", "longbench", "nowhere"], "folder nowhere does not exist"),
        (["score", "longbench", "X", "--buckets", "8,4"], "bounds must be whole numbers that ascend"),
        (["keys", "model=lexlet"], "keys needs a file to write: give out=FILE"),
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


def test_a_leaderboard_goes_into_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keep(tmp_path / "run", [finished("passkey", method, 512, n=4) for method in ("none", "pi")])
    assert main.main(["leaderboard", str(tmp_path / "run"), "--out", str(tmp_path)]) == 2
    assert "is a folder: give a file, e.g. --out" in capsys.readouterr().err
    assert main.main(["leaderboard", str(tmp_path / "run"), "--out", str(tmp_path / "board.md")]) == 0
    assert "## passkey on lexlet: accuracy" in (tmp_path / "board.md").read_text()


def test_convert_takes_folders_on_disk_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["convert", "some/where", "--into", str(tmp_path / "out")]) == 2
    assert "convert needs a folder on disk, some/where is none" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("corpora=[]", "corpora must be a list of corpora, got []"),
        ("corpora=stdlib", "corpora must be a list of corpora, got 'stdlib'"),
        ("corpora=[5]", "corpora has names, or names and parameters, got 5"),
        ("corpora=[{path:x}]", "corpora has names, or names and parameters, got {'path': 'x'}"),
        ("held_out=[]", "held_out must be a list of corpora, got []"),
    ],
)
def test_texts_of_a_training_are_lists_of_corpora(
    setting: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(["train", "recipe=zoo_tiny", f"out={tmp_path / 'out'}", setting]) == 2
    assert said in capsys.readouterr().err
