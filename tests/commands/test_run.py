"""`lexbench run`: its table, its records, and wrong input in one line."""

import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from lexbench import Refused, corpus
from lexbench.checkpoints.checkpoint import local_folder
from lexbench.commands import main, setting_words
from lexbench.core import objects, registry, suites
from lexbench.corpora.packages import Packages
from lexbench.store.store import Store
from lexbench.taskkit import squad_hotpot
from lexbench.taskkit.perplexity import EncodedCorpus
from tests.commands.program import CHANCE, Command

WRONG = [
    (["model=lama2"], "unknown model 'lama2': did you mean llama2?"),
    (["method=yran"], "unknown method 'yran': did you mean yarn?"),
    (["task=passky"], "unknown task 'passky': did you mean passkey?"),
    (["method=yarn(factor=4)"], "got yarn(factor=4): give its values apart, method=NAME method.KEY=VALUE, or method="),
    (["task={name: passkey, room: 8}"], "got {name: passkey, room: 8}: give its values apart, task=NAME task.KEY="),
    (["corpus={name: stdlib}"], "corpus must be a name, got {name: stdlib}: give its values apart, corpus=NAME"),
    (["corpus=stdlb"], "unknown corpus 'stdlb': did you mean stdlib?"),
    (["backend=hff"], "unknown backend 'hff': did you mean hf?"),
    (["method=yarn", "method.factr=8"], "unknown parameter method.factr: did you mean factor?"),
    (["method=ntk", "method.factor=-1"], "factor"),
    (["task.digts=3"], "unknown parameter task.digts: did you mean digits?"),
    (["model=local", "model.path=/nowhere/at/all"], "/nowhere/at/all does not exist"),
    (["model=local"], "model lacks"),
    (["model.pth=x"], "unknown parameter model.pth"),
    (["lenghts=[128]"], "unknown setting lenghts: did you mean lengths? choose from model, method"),
    (["methd=yarn"], "unknown setting methd: did you mean method?"),
    (["model=org/none-here"], "model org/none-here cannot be fetched"),
    (["model=./nowhere"], "model folder ./nowhere does not exist"),
    (["-m", "model=lexlet,./nowhere"], "mixes names and paths"),
    (["lengths=[0]"], "lengths must be whole numbers"),
    (["lengths=[]"], "lengths must be"),
    (["n=0"], "n must be a whole number of at least 1"),
    (["passkey"], "must be key=value"),
    (["method=root_pi"], "; --config-dir DIR or LEXBENCH_CONFIG_PATH=DIR adds yours"),
    (["task=[passkey"], "setting 'task=[passkey' cannot be read: write key=value"),
    (["method.factor=[8"], "setting 'method.factor=[8' cannot be read"),
    (["method=yarn+ntk"], "yarn and ntk do not compose: both set inv_freq"),
    (["model=[lexlet]"], "-m model=a,b"),
    (["-m", "method=none,[yarn,log_n]"], "method=[...],[...] with -m"),
    (["method=[yarn,log_m]"], "unknown method 'log_m': did you mean log_n?"),
    (["task=last_segment", "corpus=files", "corpus.path=/nowhere.txt"], "/nowhere.txt"),
    (["lengths=[128"], "lengths"),
    (["--config-dir", "/nowhere"], "/nowhere is no folder"),
    ([f"results={__file__}/run"], f"{__file__} is a file where a folder is needed: give another results=DIR"),
]


@pytest.mark.everyday(
    "model=lama2-",
    "method=yran-",
    "backend=hff-",
    "method=yarn method.factr=8",
    "task.digts=3-",
    "lenghts=[128]-",
    "lengths=[0]-",
    "model=./nowhere-",
    "task=[passkey-",
    "-m method=none,[yarn,log_n]",
)
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


def test_a_run_prints_its_table_and_leaves_records(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "lexbench", "run", *CHANCE, f"results={tmp_path}"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "passkey" in done.stdout
    assert "copied whole" in done.stdout
    assert "2 cells" in done.stderr
    rows = [json.loads(line) for line in (tmp_path / "records.jsonl").read_text().splitlines()]
    assert {(row["length"], row["metric"]) for row in rows} >= {(128, "accuracy"), (256, "accuracy")}


def test_a_dry_run_prints_the_plan_and_writes_nothing(lexbench: Command, tmp_path: Path) -> None:
    done = lexbench("run", "--dry-run", *CHANCE, f"results={tmp_path / 'run'}")
    assert done.returncode == 0, done.stderr
    assert "2 cells, 768 tokens" in done.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.parts
def test_a_dry_run_of_a_suite_at_a_million_tokens_writes_no_question_and_reads_no_text(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """21 of the 23 tasks have their data here: 50 samples each, but sliding reads windows."""
    suite = registry.read_named_config("task", "standard")
    tasks = [objects.build_object(entry, "task", corpus=corpus("synthetic")) for entry in suites.expand_suite(suite)]
    assert len(tasks) == 23

    def never(*given: object) -> None:
        raise AssertionError("a plan writes no question and reads no text")

    for built in tasks:
        monkeypatch.setattr(type(built), "questions", never)
    monkeypatch.setattr(EncodedCorpus, "__init__", never)
    monkeypatch.setattr(Packages, "documents", never)
    monkeypatch.setattr(Packages, "fingerprint", never)
    monkeypatch.setattr(squad_hotpot, "read_questions", lambda *given: Refused("no data"))
    assert main.main(["run", "model=lexlet", "task=standard", "lengths=[4096,1048576]", "--dry-run"]) == 0
    said = capfd.readouterr().err
    # by hand: sliding by a quarter of 4096 needs 1 + (2^20 - 4096) / 1024 windows of each document of 2^20 tokens
    windows = 1 + (2**20 - 4096) // 1024
    tokens = 50 * (20 * (4096 + 2**20) + windows * 4096 + 2**20)
    assert f"  42 cells, {tokens:,} tokens, about " in said
    assert "(as planned; the questions decide)" in said
    assert "qa_hotpotqa 4096: no data\n" in said and said.count("refused") == 1
    assert "Error" not in said


def test_a_run_says_behind_its_plan_which_lengths_lack_texts(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    words = ["model=lexlet", "backend=chance", "task=last_segment", "corpus=synthetic", "corpus.count=3", "n=2"]
    assert main.main(["run", *words, "corpus.words=200", "lengths=[64,5000]", f"results={tmp_path}"]) == 0
    said = [line for line in capfd.readouterr().err.splitlines() if line.startswith("  ")]
    assert any(line.startswith("  2 cells, 10,128 tokens") for line in said), "2 samples of 64 and 5000 tokens"
    [refused] = [line for line in said if "refused" in line]
    assert refused.startswith(
        "  refused  none last_segment 5000: last_segment needs 2 places in documents of 5000 tokens"
    )
    assert said.index(refused) > next(place for place, line in enumerate(said) if "10,128" in line)
    assert {each.cell.length: each.refused is None for each in Store(tmp_path).load()} == {64: True, 5000: False}


def test_a_sweep_runs_every_method_into_one_folder(lexbench: Command, tmp_path: Path) -> None:
    done = lexbench("run", *CHANCE, f"results={tmp_path}", "-m", "method=none,ntk")
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in (tmp_path / "records.jsonl").read_text().splitlines()]
    assert {row["method"] for row in rows} == {"none", "ntk"}


def test_a_sweep_file_is_the_words_that_it_stands_for(tmp_path: Path) -> None:
    file = tmp_path / "paper.yaml"
    file.write_text("model: lexlet\nlengths: [128, 256]\nresults: 'my runs'\nn: null\nsweep:\n  method: [none, ntk]\n")
    words = ["-m", "model=lexlet", "lengths=[128,256]", "results='my runs'", "n=null", "method=none,ntk"]
    assert setting_words.words_of_file(file, []) == words
    assert setting_words.words_of_file(file, ["n=2", "method=pi"]) == [*words[:-2], "n=2", "method=pi"]
    file.write_text("price: false\nmethod: [yarn, log_n]\nray: {gpus: 1, address: auto}\n")
    assert setting_words.words_of_file(file, []) == ["price=false", "method=[yarn,log_n]", "ray={gpus:1,address:auto}"]
    for text in ("- none", "sweep: none", "sweep: {method: none}", "sweep: [none", ""):
        file.write_text(text)
        with pytest.raises(ValueError, match=r"sweep \S+paper.yaml (must hold settings|is not valid yaml)"):
            setting_words.words_of_file(file, [])
    with pytest.raises(
        ValueError, match=r"sweep none.yaml cannot be read \(No such file or directory\): give --sweep a"
    ):
        setting_words.words_of_file(Path("none.yaml"), [])
    levels = [f"a{place + 1}: &a{place + 1} [{', '.join([f'*a{place}'] * 9)}]" for place in range(9)]
    file.write_text("\n".join(["a0: &a0 [1]", *levels]))
    with pytest.raises(ValueError, match=r"paper.yaml stands for more than"):
        setting_words.words_of_file(file, [])


@pytest.mark.slow
def test_a_sweep_file_runs_its_jobs_and_words_behind_it_win(lexbench: Command, tmp_path: Path) -> None:
    file = tmp_path / "paper.yaml"
    file.write_text(f"results: {tmp_path / 'run'}\nbackend: chance\nlengths: [512]\nsweep:\n  method: [none, ntk]\n")
    done = lexbench("run", "--sweep", str(file), "task=passkey", "n=2", "lengths=[128]", "price=false")
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in (tmp_path / "run" / "records.jsonl").read_text().splitlines()]
    assert {(row["method"], row["length"], row["n"]) for row in rows} == {("none", 128, 2), ("ntk", 128, 2)}


@pytest.mark.slow
def test_a_full_disk_is_said_and_earlier_cells_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    words = ["run", *CHANCE, f"results={tmp_path}"]
    assert main.main(words) == 0
    before = {file.name: file.read_bytes() for file in (tmp_path / "cells").glob("[!.]*")}

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "some file")

    monkeypatch.setattr(os, "fsync", full)
    assert main.main([*words, "method=ntk"]) == 2
    assert "lexbench: disk full while writing" in capfd.readouterr().err
    assert {file.name: file.read_bytes() for file in (tmp_path / "cells").glob("*.parquet")} == before


def checkpoint(folder: Path) -> Path:
    """A copy of the embedded model, to be spoilt."""
    found = local_folder("lexbench:lexlet")
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


@pytest.mark.everyday("-[64,128]-holds no text")
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
    assert code == (3 if said == "refused" else 2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "shared"),
    [("conflicting_needles", "nth_needle"), pytest.param("niah_single_1", "niah", marks=pytest.mark.slow)],
)
def test_a_run_of_refusals_alone_ends_with_exit_code_three_and_names_the_task(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], task: str, shared: str
) -> None:
    words = ["run", "backend=chance", f"task={task}", "n=2", f"results={tmp_path}", "price=false"]
    assert main.main([*words, "lengths=[8,16]", "--dry-run"]) == 0
    assert main.main([*words, "lengths=[8,16]"]) == 3
    last = capfd.readouterr().err.splitlines()[-1]
    assert last.startswith(f"lexbench: nothing was measured, 2 cells refused: {task} needs at least ")
    rows = [json.loads(line) for line in (tmp_path / "records.jsonl").read_text().splitlines()]
    assert [row["refused"].split()[0] for row in rows] == [task, task]
    assert main.main([*words, "lengths=[8,512]"]) == 0  # some cells refused
    assert main.main([*words, "lengths=[512]"]) == 0  # all reused
    assert main.main([*words, "lengths=[8]"]) == 3
    out, err = capfd.readouterr()
    assert f"{task} needs at least" in out
    assert f"{shared} needs" not in out + err


@pytest.mark.slow
def test_a_dry_run_needs_no_checkpoint_where_the_yaml_has_the_facts(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    words = ["run", "model=llama2", "task=last_segment", "lengths=[64,128]", "n=2"]
    assert main.main([*words, "--dry-run"]) == 0
    said = capfd.readouterr().err
    assert "model meta-llama/Llama-2-7b-hf cannot be fetched" in said
    assert "the plan counts tokens by lexlet's tokenizer: a guess" in said
    assert "texts    stdlib" in said
    assert "2 cells, 384 tokens" in said
    assert main.main(words) == 2
    assert capfd.readouterr().err.startswith("lexbench: model meta-llama/Llama-2-7b-hf cannot be fetched")


@pytest.mark.parts
def test_a_dry_run_needs_no_package_where_the_yaml_has_the_facts(
    capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "model").mkdir()
    facts = "name: m\ntrained_length: 64\nhead_dim: 8\npath: package:no-such-package/m.gguf\n"
    (tmp_path / "model/packaged.yaml").write_text(facts)
    words = ["run", "--config-dir", str(tmp_path), "model=packaged", "task=passkey", "lengths=[128]", "n=2"]
    assert main.main([*words, "--dry-run"]) == 0
    said = capfd.readouterr().err
    assert "model file m.gguf is in the package no-such-package, which is not installed" in said
    assert "m, trained at 64 tokens" in said and "1 cell, 256 tokens" in said
    assert main.main(words) == 2
    assert capfd.readouterr().err.startswith("lexbench: model file m.gguf is in the package no-such-package")


def test_a_folder_is_a_model(capfd: pytest.CaptureFixture[str]) -> None:
    folder = local_folder("lexbench:lexlet")
    words = [f"model={folder}", "task=last_segment", "lengths=[64]", "n=1"]
    assert main.main(["run", *words, "--dry-run"]) == 0
    assert "lexlet, trained at 256 tokens" in capfd.readouterr().err


@pytest.mark.slow
def test_names_and_folders_may_have_letters_of_any_language(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEXBENCH_CONFIG_PATH", str(tmp_path))
    (tmp_path / "method").mkdir()
    (tmp_path / "method/größe_方法.yaml").write_text("_target_: lexbench.methods.pi.Pi\r\nfactor: 2\r\n")  # of Windows
    results = tmp_path / "Ergebnisse ünïcode/方"
    words = ["run", *CHANCE, f"results={results}"]
    assert main.main([*words, "-m", "method=none,größe_方法"]) == 0
    assert main.main([*words, "method=größe_方法+log_n"]) == 0
    assert main.main([*words, "method=log_n+größe_方法"]) == 0
    assert {str(each.cell.method) for each in Store(results).load()} == {
        "none",
        "größe_方法",
        "größe_方法+log_n",
        "log_n+größe_方法",
    }
