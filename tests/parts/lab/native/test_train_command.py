"""`lexbench train` as it is typed."""

import json
from pathlib import Path

import pytest

from lexbench.commands import main

pytestmark = pytest.mark.usefixtures("one_thread")
TINY = [
    "recipe=finetune",
    "recipe.shape={layers:1,width:32,heads:2,kv_heads:1,hidden:32}",
    "recipe.vocabulary=300",
    "recipe.trained_length=32",
    "recipe.batch=2",
    "recipe.stages=[{steps:1,lessons:{text:1.0}}]",
    "corpora=[{name:synthetic,count:2,words:200}]",
]


@pytest.mark.slow
def test_a_sweep_trains_one_folder_for_each_encoding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main.main(["train", "-m", *TINY, "encoding=rope,alibi"]) == 0
    runs = Path("runs", "trained", "finetune")
    said = capsys.readouterr().out.split()
    assert said == [str(runs / "rope-seed0"), str(runs / "alibi-seed0")]
    record = json.loads((runs / "alibi-seed0" / "training.json").read_text())
    assert record["encoding"]["label"] == "alibi" and "encoding=rope,alibi" in record["command"]
    nested = ["encoding=dape", "encoding.over={name:kerple,form:power}", "recipe.seed=2"]
    assert main.main(["train", *TINY, *nested]) == 0
    assert (runs / "dape-over-kerple-form-power-seed2" / "training.json").exists()
    tuned = [f"start={runs / 'rope-seed0'}", "recipe.trained_length=64", "method=pi", "method.factor=2"]
    assert main.main(["train", *(word for word in TINY if "trained_length" not in word), *tuned]) == 0
    assert (runs / "rope-pi-factor-2-seed0" / "config.json").exists()


@pytest.mark.everyday("encoding=ropes-", "encoding.base=5-", "encoding=[rope,alibi]-")
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["encoding=ropes"], "unknown encoding 'ropes': did you mean rope? choose from"),
        (["encoding=alibi", "encoding.base=5"], "unknown parameter encoding.base: alibi knows none"),
        (["encoding=dape", "encoding.over=ropes"], "unknown encoding 'ropes'"),
        (["recipe.shape.layer=2"], "unknown parameter recipe.shape.layer: choose from layers"),
        (["recipe.base=500"], "unknown parameter recipe.base"),
        (
            ["method=yarn"],
            "method=yarn changes the frequencies of a trained model, and start is missing: give start=DIR",
        ),
        (["start=nowhere"], "start=nowhere is no trained folder"),
        (["encoding=[rope,alibi]"], "encoding takes one name"),
    ],
    ids=lambda words: words[-1] if isinstance(words, list) else "",
)
def test_wrong_settings_are_said_in_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main.main(["train", *TINY, *words]) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1
    assert not Path("runs", "trained").exists()
