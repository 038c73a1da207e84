"""Sweeps elsewhere: processes, Slurm. Numbers, tables and exit codes are those of the same sweep here."""

import os
import pickle
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import submitit  # now: its dictConfig closes absl's handler, whose stream may be what pytest captures
import yaml
from hydra import compose, initialize_config_dir
from hydra.plugins.launcher import Launcher
from hydra.utils import instantiate

from lexbench.commands import hydra_config, main, run, setting_words
from lexbench.core import registry
from lexbench.core.errors import ConfigError

pytestmark = pytest.mark.filterwarnings(r"ignore:\s*'hydra/launcher/\w+' is validated against ConfigStore schema")
ROOT = Path(__file__).parents[3]
YAMLS = sorted((registry.asset_folder("configs") / "hydra" / "launcher").glob("*.yaml"))
NAMES = [file.stem for file in YAMLS]
CHANCE = ["backend=chance", "task=passkey", "lengths=[128]", "n=2"]


def composed(*words: str) -> Any:
    """What hydra makes of a launcher and settings of it."""
    hydra_config._store_names()
    with initialize_config_dir(str(registry.asset_folder("configs")), version_base="1.3"):
        return compose("run", list(words), return_hydra_config=True).hydra.launcher


def failed(words: list[str], capfd: pytest.CaptureFixture[str]) -> str:
    """The one line that wrong words get."""
    assert main.main(["run", *words]) == 2
    out, err = capfd.readouterr()
    assert "Traceback" not in err + out
    (line,) = (line for line in err.splitlines() if line.startswith("lexbench: "))
    return line


@pytest.mark.parametrize("file", YAMLS, ids=NAMES)
def test_a_launcher_is_what_its_yaml_says(file: Path) -> None:
    found = composed(f"hydra/launcher={file.stem}")
    assert yaml.safe_load(file.read_text()).items() <= dict(found).items()
    assert isinstance(instantiate(found), Launcher)


@pytest.mark.everyday("joblib-n_jobs-3", "submitit_local-timeout_min")
@pytest.mark.parametrize(
    ("name", "setting", "value"),
    [
        ("joblib", "n_jobs", 3),
        ("joblib", "timeout", 60.0),
        ("submitit_local", "gpus_per_node", 1),
        ("submitit_local", "timeout_min", 5),
    ],
)
def test_what_a_job_gets_is_a_setting(name: str, setting: str, value: object) -> None:
    assert composed(f"hydra/launcher={name}", f"hydra.launcher.{setting}={value}")[setting] == value


def test_every_launcher_has_an_extra_that_installs_it() -> None:
    assert sorted(setting_words.MODULE_OF_LAUNCHER) == NAMES
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert {name.partition("_")[0] for name in NAMES} <= set(extras)


@pytest.mark.parametrize("module", ["not_installed", "hydra_plugins.not_installed", "not_installed.either"])
def test_a_missing_package_is_named_by_its_extra(
    module: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(setting_words.MODULE_OF_LAUNCHER, "submitit_slurm", module)
    line = failed(["-m", *CHANCE, "hydra/launcher=submitit_slurm"], capfd)
    assert "launcher submitit_slurm needs a package that is not installed" in line
    assert line.endswith("pip install -c constraints.txt '.[submitit]'")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["-m", "hydra/launcher=slurm"], "choose from basic, joblib, submitit_local, submitit_slurm"),
        (["-m", "hydra/launcher=joblib", "hydra.launcher.jobs=2"], "hydra.launcher.jobs"),
        (["hydra/launcher=joblib"], "a launcher starts the jobs of a sweep, this is one run: add -m"),
    ],
)
def test_wrong_words_get_one_line(
    words: list[str],
    said: str,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert said in failed([*CHANCE, *words], capfd)


def test_slurm_where_there_is_none_gets_one_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    line = failed(["-m", *CHANCE, "results=run", "hydra/launcher=submitit_slurm"], capfd)
    assert "launcher of submitit" in line and "srun" in line
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_slurm_gets_what_the_settings_say(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By submitit's own executor: the header of the script that it would submit."""
    seen: list[Any] = []

    def submit(self: Any, *_: object) -> None:
        seen.extend([self._executor._make_submission_file_text("true", "x"), self._executor.max_num_timeout])
        raise ConfigError("not submitted")

    slurm(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setattr(submitit.AutoExecutor, "map_array", submit)
    words = {
        **{"partition": "a100", "account": "lab", "gpus_per_node": 2, "mem_gb": 40, "timeout_min": 90},
        **{"cpus_per_task": 8, "max_num_timeout": 5, "signal_delay_s": 60},
    }
    given = [f"hydra.launcher.{key}={value}" for key, value in words.items()]
    given.append("+hydra.launcher.additional_parameters.mail-type=END")
    assert "not submitted" in failed(["-m", *CHANCE, "hydra/launcher=submitit_slurm", *given], capfd)
    script, retries = seen
    header = dict(re.findall(r"^#SBATCH --([\w-]+)=(\S+)$", script, re.MULTILINE))
    wanted = {
        **{"partition": "a100", "account": "lab", "gpus-per-node": "2", "mem": "40GB", "time": "90"},
        **{"cpus-per-task": "8", "signal": "USR2@60", "mail-type": "END", "job-name": "lexbench"},
        **{"nodes": "1", "ntasks-per-node": "1"},
    }
    assert wanted.items() <= header.items()
    assert retries == 5


def test_a_plan_is_printed_here_and_needs_no_cluster(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["hydra/launcher=submitit_slurm", "hydra.launcher.partition=a100", "results=run", "--dry-run"]
    assert main.main(["run", "-m", "method=none,ntk", *CHANCE, *words]) == 0
    assert "job 2 of 2: ntk on passkey, 1 cell," in capfd.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_an_error_ends_one_job_of_a_sweep(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    kept: list[Any] = []

    def job(config: dict[str, Any], choices: dict[str, str]) -> str:
        if config["seed"] == 1:
            raise ConfigError("seed 1 is wrong")
        return f"{choices['method']} {config['seed']}"

    with pytest.raises(ValueError, match="seed 1 is wrong"):
        hydra_config.run_jobs(run.COMMAND, job, ["-m", "method=ntk", "seed=0,1,2"], kept.append)
    assert kept == ["ntk 0", "ntk 2"]


class ForeignError(OSError):
    """An error as libraries have them: it cannot be unpickled."""

    def __init__(self, response: str, *, code: int) -> None:
        super().__init__(f"{response}, {code}")


@pytest.mark.slow
def test_the_config_of_a_job_that_runs_here_is_composed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from hydra._internal.config_loader_impl import ConfigLoaderImpl

    composed, compose = list[list[str]](), ConfigLoaderImpl.load_sweep_config

    def counted(self: Any, master_config: Any, sweep_overrides: list[str]) -> Any:
        composed.append(sweep_overrides)
        return compose(self, master_config, sweep_overrides)

    monkeypatch.setattr(ConfigLoaderImpl, "load_sweep_config", counted)
    words = ["-m", "method=none,yarn", "task=passkey", "lengths=[256]", "n=1", f"results={tmp_path}", "--dry-run"]
    assert main.main(["run", *words]) == 0
    assert [next(word for word in words if "method=" in word) for words in composed] == ["method=none", "method=yarn"]


def test_an_error_travels_as_itself_or_in_words() -> None:
    own = hydra_config._portable(FileNotFoundError(2, "No such file or directory", "x.txt"))
    assert isinstance(own, FileNotFoundError) and own.filename == "x.txt"
    foreign = pickle.loads(pickle.dumps(hydra_config._portable(ForeignError("gone", code=404))))
    assert isinstance(foreign, ValueError) and str(foreign) == "gone, 404"


SBATCH = """#!{python}
import os, re, subprocess, sys
script = sys.argv[1]
first, last = re.search("--array=([0-9]+)-([0-9]+)", open(script).read()).groups()
for task in range(int(first), int(last) + 1):
    job = {{"JOB_ID": 70 + task, "ARRAY_JOB_ID": 7, "ARRAY_TASK_ID": task, "JOB_NUM_NODES": 1, "JOB_NODELIST": "here"}}
    place = {{"NTASKS": 1, "NODEID": 0, "PROCID": 0, "LOCALID": 0}}
    own = {{f"SLURM_{{key}}": str(value) for key, value in {{**job, **place}}.items()}}
    quiet = {{"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}}
    subprocess.Popen(["bash", script], env={{**os.environ, **own}}, **quiet)
print("Submitted batch job 7")
"""
SRUN = """#!{python}
import os, sys
words = sys.argv[1:]
of = {{"%A": os.environ["SLURM_ARRAY_JOB_ID"], "%a": os.environ["SLURM_ARRAY_TASK_ID"], "%t": "0"}}
for option, stream in (("--output", 1), ("--error", 2)):
    file = words[words.index(option) + 1]
    for sign, value in of.items():
        file = file.replace(sign, value)
    os.makedirs(os.path.dirname(file), exist_ok=True)
    os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND), stream)
os.execvp("{python}", words[words.index("{python}"):])
"""
SACCT = "#!/bin/sh\necho 'JobID|State|NodeList'\necho '7_0|RUNNING|here'\necho '7_1|RUNNING|here'\n"


def slurm(folder: Path) -> None:
    """A cluster of one node in `folder`/bin: the three programs that submitit calls, by Slurm's manual."""
    (folder / "bin").mkdir()
    for name, text in (("sbatch", SBATCH), ("srun", SRUN), ("sacct", None)):
        file = folder / "bin" / name
        file.write_text(SACCT if text is None else text.format(python=sys.executable))
        file.chmod(0o755)


def sweep(folder: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    """The command of a user in `folder`, with one thread, as sums differ by the number of threads."""
    own = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "RAY_AUTH_MODE": "disabled"}
    small = ["task=demo", "multiples=[0.5]", "n=2", "results=run"]
    return subprocess.run(
        [sys.executable, "-m", "lexbench", "run", "-m", *small, *words],
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, **own, "PATH": f"{folder / 'bin'}:{os.environ['PATH']}"},
    )


def measured(folder: Path) -> dict[str, bytes]:
    """All that a run folder holds but costs and provenance."""
    files = [folder / "run" / "records.jsonl", *(folder / "run" / "cells").glob("[!.]*")]
    return {file.name: file.read_bytes() for file in files}


ERROR = "lexbench: unknown parameter method.factor: none has no parameters"
SLIPPED = ["method=pi,none,ntk", "method.factor=4", "backend=native"]
"""Of three jobs the middle one is wrong: none has no factor."""


def said(done: "subprocess.CompletedProcess[str]") -> list[str]:
    """What the command itself says of its end."""
    assert "Traceback" not in done.stderr
    return [line for line in done.stderr.splitlines() if line.startswith("lexbench: ")]


@pytest.fixture(scope="module")
def serial(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, bytes]]:
    """The table and the files of a sweep in one process, of which one job ends in an error."""
    folder = tmp_path_factory.mktemp("serial")
    done = sweep(folder, *SLIPPED)
    assert (done.returncode, said(done)) == (2, [ERROR])
    assert "| pi(factor=4) " in done.stdout and "| ntk(factor=4) " in done.stdout
    assert len(list((folder / "run" / "cells").glob("[!.]*"))) == 6  # none goes along with the first job
    return done.stdout, measured(folder)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_sweep_elsewhere_is_the_sweep_here(name: str, serial: tuple[str, dict[str, bytes]], tmp_path: Path) -> None:
    words, ends = SLIPPED, (2, [ERROR])
    if name == "submitit_slurm":  # where none of our cluster's jobs fails
        slurm(tmp_path)
        words, ends = ["method=pi,ntk", *SLIPPED[1:]], (0, [])
    done = sweep(tmp_path, *words, f"hydra/launcher={name}")
    assert (done.returncode, said(done)) == ends, done.stderr
    assert (done.stdout, measured(tmp_path)) == serial
    if name.startswith("submitit"):
        logs = list((tmp_path / "runs" / ".submitit").glob("*/*_log.err"))
        measured_there = re.findall(r"methods +(.+)", "".join(log.read_text() for log in logs))
        assert sorted(each.split(", ")[-1].split("(")[0] for each in measured_there) == ["ntk", "pi"]
