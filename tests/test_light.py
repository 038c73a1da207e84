"""Without torch, transformers and datasets: what README's shorter line installs does all that runs no model here."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LIGHT = ROOT / ".venv-light/bin/python"
"""That of `make readme-venvs`."""
HIDDEN = """\
import sys


class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "transformers", "datasets", "safetensors"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


sys.meta_path.insert(0, Hidden())
"""
"""In place of that venv, where it was not made: these packages are missing, as far as an import tells."""
RUN = ("run", "method=none,yarn", "task=passkey", "backend=chance", "lengths=[64,128]", "n=12", "results=light")
NEEDS = "needs torch, which is not installed: in a clone of lexbench, pip install -c constraints.txt '.[hf]'"


@pytest.mark.slow
def test_twelve_commands_do_their_work_without_torch_and_others_name_the_line_that_installs_it(tmp_path: Path) -> None:
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    if not LIGHT.is_file():
        (tmp_path / "hidden").mkdir()
        (tmp_path / "hidden/sitecustomize.py").write_text(HIDDEN)
        environment["PYTHONPATH"] = os.pathsep.join([str(tmp_path / "hidden"), str(ROOT)])
    python = str(LIGHT) if LIGHT.is_file() else sys.executable

    def said(*words: str, code: int = 0) -> str:
        run = [python, "-m", "lexbench", *words]
        done = subprocess.run(run, cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == code, (words, done.stdout, done.stderr)
        return done.stdout if code == 0 else (done.stdout + done.stderr).strip().splitlines()[-1]

    missing = subprocess.run([python, "-c", "import torch"], env=environment, capture_output=True, cwd=tmp_path)
    assert missing.returncode == 1, "there is a torch"
    pair = ("light", "--baseline", "b.json")
    assert "rerope" in said("list", "method")
    assert "pip install -c constraints.txt '.[hf]'" in said("show", "method=yarn", "length=512")
    assert json.loads(said("show", "model=llama3_1", "method=ntk", "--json"))["length"] == 131072
    said("run", "--dry-run")
    assert "| yarn" in said(*RUN)
    assert "light/report" in said("report", "light", "--html")
    assert "yarn" in said("leaderboard", "light")
    assert "yarn" in said("compare", "light", "light", "--a", "method=none", "--b", "method=yarn")
    said("check", *pair, "--update", "--blind")  # chance finds no key that could be lost
    assert "PASS" in said("check", *pair, "--junit", "c.xml")
    said("check", *pair, "--certify", "c.json", code=2)  # 12 answers prove nothing
    assert (tmp_path / "c.json").is_file() and (tmp_path / "c.xml").read_text().count("<testcase") == 4
    said("power", *pair)
    said("doctor", "light")
    said("figure", "light", "--out", "f.svg")
    exported = said("export", "model=llama2", "method=yarn", "length=8192", "--to", "vllm")
    assert '"factor": 2.0' in exported or '"factor":2.0' in exported
    for words in (("run", "lengths=[64]"), ("verify", "method=yarn"), ("train", "recipe=finetune", "out=x")):
        assert NEEDS in said(*words, code=2), words
