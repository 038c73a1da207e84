"""A training's folder: one training at a time, its own tokenizer, its own steps, and what Ctrl-C leaves."""

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from lexbench.corpora import Corpus
from lexbench.corpora.synthetic import Synthetic
from lexbench.parts.lab.native import naming
from lexbench.parts.lab.native.learner import Learner
from lexbench.parts.lab.native.progress import delay_interrupts, lock_folder
from lexbench.parts.lab.native.recipe import Recipe
from lexbench.parts.lab.native.train import PreparedTraining, TrainingJob, train

pytestmark = pytest.mark.usefixtures("one_thread")
TEXTS: list[Corpus] = [Synthetic(count=4, words=400)]
SHAPE = {"layers": 1, "width": 32, "heads": 2, "kv_heads": 1, "hidden": 32}


@pytest.fixture(autouse=True)
def heard() -> Iterator[None]:
    """Ctrl-C is heard, also where a background shell has it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def prepared(start: Path | None = None, **changed: object) -> PreparedTraining:
    settings: dict[str, object] = {
        "stages": ({"steps": 6, "lessons": {"text": 1.0}},),
        "trained_length": 32,
        "batch": 4,
        **({} if start else {"shape": SHAPE, "vocabulary": 300}),
        **changed,
    }
    own = Recipe(**settings)  # type: ignore[arg-type]
    return PreparedTraining(TrainingJob(recipe=own, corpora=TEXTS, held_out=TEXTS, start=start))


def interrupted(job: PreparedTraining, out: Path, monkeypatch: pytest.MonkeyPatch, number: int = 2) -> None:
    """Train; Ctrl-C comes in the middle of a step, counted from 0."""
    step = Learner.step

    def hears(self: Learner, rows: torch.Tensor, current: int, *kinds: Sequence[str]) -> list[float]:
        if current == number:
            signal.raise_signal(signal.SIGINT)
        return step(self, rows, current, *kinds)

    with monkeypatch.context() as patched:
        patched.setattr(Learner, "step", hears)
        with pytest.raises(KeyboardInterrupt):
            train(job, out)


def rows(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (folder / "training.jsonl").read_text().splitlines()]


def test_ctrl_c_keeps_every_step_that_was_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train(prepared(), tmp_path / "whole")
    cut = tmp_path / "cut"
    interrupted(prepared(), cut, monkeypatch)  # recipe.save is 100: there is no other checkpoint
    assert [row["step"] for row in rows(cut)] == [1, 2, 3]
    done: list[int] = []
    step = Learner.step

    def counts(self: Learner, rows: torch.Tensor, current: int, *kinds: Sequence[str]) -> list[float]:
        done.append(current)
        return step(self, rows, current, *kinds)

    monkeypatch.setattr(Learner, "step", counts)
    train(prepared(), cut)
    assert done == [3, 4, 5]
    assert [row["loss"] for row in rows(cut)] == [row["loss"] for row in rows(tmp_path / "whole")]
    whole = load_file(tmp_path / "whole" / "model.safetensors")
    for name, weight in load_file(cut / "model.safetensors").items():
        assert torch.equal(weight, whole[name]), name


def test_a_second_ctrl_c_ends_at_once_and_the_first_is_not_lost() -> None:
    heard: list[bool] = []

    def pressed(times: int) -> None:
        with delay_interrupts() as came:
            for _ in range(times):
                signal.raise_signal(signal.SIGINT)
                heard.append(came())

    with pytest.raises(KeyboardInterrupt):
        pressed(1)
    assert heard == [True]  # the block went on to its end
    with pytest.raises(KeyboardInterrupt):
        pressed(2)
    assert heard == [True, True]  # the second did not
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_outside_the_main_thread_nothing_is_heard() -> None:
    heard: list[bool] = []

    def works() -> None:
        with delay_interrupts() as came:
            heard.append(came())

    thread = threading.Thread(target=works)
    thread.start()
    thread.join()
    assert heard == [False]


def test_a_refused_training_leaves_the_others_tokenizer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start, out = tmp_path / "start", tmp_path / "out"
    train(prepared(vocabulary=280), start)
    interrupted(prepared(), out, monkeypatch)
    before = {file.name: file.read_bytes() for file in out.iterdir()}
    assert before["tokenizer.json"] != (start / "tokenizer.json").read_bytes()
    with pytest.raises(ValueError, match="holds another training: give a new folder, or remove it"):
        train(prepared(start), out)
    assert {file.name: file.read_bytes() for file in out.iterdir()} == before
    train(prepared(), out)  # the one that was begun goes on


def test_a_training_begun_with_an_earlier_default_goes_on_where_that_is_stated_and_never_as_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """xPos had half the trained length as its base without a word in its label, which the folder's key holds."""

    def with_xpos(**parameters: object) -> PreparedTraining:
        return PreparedTraining(replace(prepared().job, encoding={"name": "xpos", **parameters}))

    label = naming.encoding_label
    with monkeypatch.context() as earlier:
        earlier.setattr(naming, "encoding_label", lambda spec, former=False: label(spec, former=True))
        interrupted(with_xpos(scale_base=None), tmp_path / "begun", monkeypatch)
        train(with_xpos(scale_base=None), tmp_path / "whole")
    for folder in ("begun", "whole"):
        with pytest.raises(ValueError, match="holds another training"):
            train(with_xpos(), tmp_path / folder)
        train(with_xpos(scale_base=None), tmp_path / folder)
    assert (tmp_path / "begun/model.safetensors").read_bytes() == (tmp_path / "whole/model.safetensors").read_bytes()


def test_log_lines_are_taken_by_their_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupted(prepared(), tmp_path, monkeypatch)
    log = tmp_path / "training.jsonl"
    first, second, third = log.read_text().splitlines()
    log.write_text("\n".join([second, first, first, third, '{"step": 4, "lo']))
    train(prepared(), tmp_path)
    assert log.read_text().splitlines()[:3] == [first, second, third]
    assert [row["step"] for row in rows(tmp_path)] == [1, 2, 3, 4, 5, 6]


def test_a_lacking_step_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupted(prepared(), tmp_path, monkeypatch)
    log = tmp_path / "training.jsonl"
    first, _, third = log.read_text().splitlines()
    log.write_text(f"{first}\n{third}\n{third}\n")
    with pytest.raises(ValueError, match=r"lacks step 2, its checkpoint has \d+ steps: remove the folder"):
        train(prepared(), tmp_path)


def test_a_folder_that_another_process_trains_is_refused(tmp_path: Path) -> None:
    code = (
        "import fcntl, sys; lock = open(sys.argv[1], 'a'); fcntl.flock(lock, fcntl.LOCK_EX); "
        "print('held', flush=True); sys.stdin.read()"
    )
    words = [sys.executable, "-c", code, str(tmp_path / ".lock")]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None and other.stdout.readline() == "held\n"
        with pytest.raises(ValueError, match=r"^out=.* is being trained by another process: wait .* another folder$"):
            train(prepared(), tmp_path)
        assert [file.name for file in tmp_path.iterdir()] == [".lock"]
        other.communicate()
    with lock_folder(tmp_path):
        pass
