"""No variable of the environment lands in what a run writes, whichever way a setting asks for it."""

from pathlib import Path

import pytest

from lexbench.commands import main

SECRET = "hunter2secret"
ASKS = "${oc.env:LEXBENCH_TEST_SECRET}"
TASK = """
from dataclasses import dataclass
import numpy as np
from lexbench.core.task import Generate, Task
from lexbench.taskkit.scoring import score_written

@dataclass(frozen=True)
class Own(Task):
    word: str = "x"
    def protocol(self, tokenizer):
        return "own"
    def questions(self, tokenizer, length, n, seed):
        return [Generate(index=0, cluster="0", prompt=np.arange(5), max_new_tokens=3)]
    def score(self, question, answer):
        return score_written(question, answer, {"accuracy": 0.0})
"""
FILES = {
    "task/secret.yaml": f"file: own_task.py\nword: {ASKS}\n",
    "task/above.yaml": "defaults: [secret]\n",
    "task/hidden.yaml": "defaults: [/more/words@_here_]\nfile: own_task.py\n",
    "more/words.yaml": f"word: {ASKS}\n",
    "task/own_task.py": TASK,
    "corpus/texts.yaml": f"_target_: lexbench.corpora.synthetic.Synthetic\nwords: 2000\nseed: {ASKS}\n",
    "model/mine.yaml": f"path: lexbench:lexlet\nrevision: {ASKS}\n",
    "sweep.yaml": "task: secret\nsweep: {seed: [0, 1]}\n",
}
WAYS: dict[str, list[str]] = {
    "by name": ["task=secret"],
    "in a list": ["task=[secret,passkey]"],
    "in a sweep": ["-m", "task=secret,passkey"],
    "by a sweep file": ["--sweep", "{0}/sweep.yaml"],
    "below another yaml": ["task=above"],
    "by a group of one's own": ["task=hidden"],
    "as a corpus": ["task=last_segment", "corpus=texts"],
    "as a model": ["task=passkey", "model=mine"],
    "on the command line": ["task=passkey", f"model.revision={ASKS}"],
}


@pytest.mark.everyday("by name", "in a list", "by a group of one's own", "on the command line")
@pytest.mark.parametrize("way", WAYS)
def test_a_setting_that_asks_for_a_variable_is_refused_and_nothing_holds_its_value(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LEXBENCH_TEST_SECRET", SECRET)
    monkeypatch.setenv("LEXBENCH_CONFIG_PATH", "")  # put back after the command's own folder
    for name, content in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
    words = ["run", "--config-dir", str(tmp_path), "backend=chance", "lengths=[64]", "n=1", f"results={tmp_path}/run"]
    assert main.main([*words, *(word.replace("{0}", str(tmp_path)) for word in WAYS[way])]) == 2
    out, said = capsys.readouterr()
    assert f"asks for {ASKS}" in said
    assert SECRET not in out + said
    assert not list((tmp_path / "run").rglob("*.parquet")) and not list((tmp_path / "run").rglob("*.json*"))


def test_other_places_of_a_config_may_be_referred_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["run", "backend=chance", "lengths=[64]", "task=passkey", "n=1", "seed=${n}", "results=run"]
    assert main.main(words) == 0
