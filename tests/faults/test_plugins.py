"""Odd settings and plug-ins with a fault: one line, never a traceback. `fuzz.py --of` tries 1,000 of each."""

import random
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lexbench
from lexbench import Attention, Sample
from lexbench.core import objects
from lexbench.core.guard import plugin_guard
from lexbench.core.model import Model
from lexbench.core.record import Deferred, Refused
from lexbench.runner.cells import Component
from lexbench.runner.job import _default_folder, _resolve_task
from lexbench.runner.plan import _attention, _protocol
from lexbench.store.format import check_sample
from lexbench.store.store import Store
from tests.faults.plugins import CLASSES, HEAD, KINDS, ended


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_dozens_end_in_one_line(kind: str, tmp_path: Path) -> None:
    found = Counter[str]()
    for number in range(24):
        outcome = ended(kind, tmp_path, number, random.Random(f"1 {kind} {number}"))
        assert outcome.verdict in ("read", "refused"), f"{outcome.what}: {outcome.verdict}\n{outcome.said}"
        found[outcome.verdict] += 1
    assert found["read"] and found["refused"]  # both ends are met


def built(folder: Path, source: str) -> Any:
    """A method of a user's file."""
    file = folder / "own.py"
    file.write_text(HEAD + source)
    return objects.build_object({"file": str(file)}, "method")


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("1 / 0", "ZeroDivisionError (division by zero) in own.py, line 21"),
        ("raise Odd()", "Odd (nothing that can be said) in own.py, line 21"),
        ("import sys; sys.exit(0)", "SystemExit (0) in own.py, line 21"),
        ("raise RuntimeError('\\x1b[31m\\n red')", "RuntimeError (?[31m red) in own.py, line 21"),
        ("import nowhere", "ModuleNotFoundError (No module named 'nowhere') in own.py, line 21"),
        ("return (", "SyntaxError ('(' was never closed) in own.py, line 21"),
    ],
)
def test_a_plug_in_that_cannot_be_made_says_so_with_its_line(fault: str, said: str, tmp_path: Path) -> None:
    source = CLASSES["method"].replace("@__post_init__", fault).replace("@attention", "pass")
    with pytest.raises(Deferred) as refusal:
        built(tmp_path, source)
    assert refusal.value.reason.endswith(f"fails with {said}")


def test_wrong_settings_and_refusals_keep_their_own_words(tmp_path: Path) -> None:
    source = CLASSES["method"].replace("@attention", "pass")
    with pytest.raises(ValueError, match=r"^factor must be above 0$"):
        built(tmp_path, source.replace("@__post_init__", "raise ValueError('factor must be above 0')"))
    with pytest.raises(ValueError, match="method class Bare must be a dataclass"):
        objects.instance_label(type("Bare", (), {})(), "bare", "method")


class Broken:
    """A task and a method whose answers are no answers."""

    def for_lengths(self, lengths: Any) -> None:
        return None

    def protocol(self, tokenizer: Any) -> int:
        return 7

    def attention(self, model: Model, length: int) -> Any:
        if length == 1:
            raise Refused("no honest answer")
        return Attention(query_scale=object()) if length == 2 else None  # type: ignore[arg-type]


def test_answers_of_a_plug_in_that_are_none_are_the_plug_ins_faults_and_refusals_are_refusals() -> None:
    broken, model = Broken(), Model(name="m", trained_length=64, head_dim=8)
    with pytest.raises(Deferred, match=r"Broken\.for_lengths fails with AssertionError"):
        _resolve_task(Component("own", broken, "own"), [64])
    said, why = _protocol(Component("own", broken, "own"), None)  # type: ignore[arg-type]
    assert isinstance(why, Deferred) and "a protocol is a text" in said
    assert isinstance(_attention(broken, model, 1)[1], Refused)
    for length, wrong in (
        (2, "query_scale must be an object with __call__"),
        (3, "must return an Attention, got None"),
    ):
        with pytest.raises(ValueError, match=rf"^Broken\.attention: {wrong}"):
            _attention(broken, model, length)


@dataclass(frozen=True)
class Prints:
    print: Any

    def fingerprint(self) -> Any:
        return self.print


def test_a_fingerprint_is_a_text() -> None:
    assert Component("own", Prints("20f4"), "own").fingerprint == "20f4"
    with pytest.raises(Deferred, match=r"own\.fingerprint fails with .* \(a fingerprint is a text, got int"):
        _ = Component("own", Prints(7), "own").fingerprint


GOOD = Sample(index=0, cluster="a", tokens=3, scores={"accuracy": 1.0}, output="12", facts={"n": np.int64(3)})


@pytest.mark.parametrize(
    "wrong",
    [
        {"scores": {"accuracy": "x"}},
        {"scores": {3: 1.0}},
        {"facts": {"x": {1, 2}}},
        {"cluster": None},
        {"output": b"x"},
        {"output": "\ud800"},
        {"parts": 3},
        {"tokens": -1},
        {"statistics": {"a": [1]}},
        {"scores": {}, "nll": np.zeros(2)},
    ],
    ids=str,
)
def test_samples_that_cannot_be_written_are_the_tasks_failure(wrong: dict[str, Any]) -> None:
    check_sample(GOOD)
    with pytest.raises(Deferred, match=r"Own\.score fails with AssertionError"), plugin_guard("Own.score"):
        check_sample(replace(GOOD, **wrong))


@pytest.mark.parametrize("name", ["/etc", "../up", "a/../../b"])
def test_a_models_name_leads_to_no_other_folder(name: str) -> None:
    assert _default_folder("org/model") == Path("runs/org/model")
    with pytest.raises(ValueError, match="is no name for a folder of results: give results=DIR"):
        _default_folder(name)
    with pytest.raises(ValueError, match=r"model\.name must be a text, got 0\.1"):
        Model(name=0.1, trained_length=1, head_dim=8)  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_failing_task_leaves_the_others_cells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    passkey = type(lexbench.task("passkey"))

    def failing(self: Any, tokenizer: Any) -> str:
        if self.digits == 6:
            raise KeyError("protocol")
        return "passkey"

    monkeypatch.setattr(passkey, "protocol", failing)
    tasks: list[Any] = ["passkey", {"name": "passkey", "digits": 6}]
    corpus = {"name": "synthetic", "count": 1, "words": 50}
    settings: dict[str, Any] = {"corpus": corpus, "backend": "chance", "lengths": [128], "n": 1, "quiet": True}
    lexbench.run("lexlet", task=tasks, results=tmp_path, **settings)
    found = {each.cell.task: each for each in Store(tmp_path).load()}
    assert len(found["passkey"].samples) == 1
    assert found["passkey(digits=6)"].deferred  # the next run measures it, where it is mended
    assert "Passkey.protocol fails with KeyError ('protocol')" in (found["passkey(digits=6)"].refused or "")


@pytest.mark.parametrize(
    ("fact", "value", "said"),
    [
        ("rope_scaling", 0.1, "names and values"),
        ("parameters", [1.0], "a whole number of at least 0"),
        ("frequencies", "x", "a list of numbers"),
        ("layer_types", [1], "a list of texts"),
        ("decoupled", "yes", "true or false"),
        ("revision", 7, "a text"),
    ],
)
def test_facts_of_a_model_have_their_types(fact: str, value: Any, said: str) -> None:
    with pytest.raises(ValueError, match=rf"model\.{fact} must be {said}, got "):
        Model(**{"name": "m", "trained_length": 1, "head_dim": 8, fact: value})


def test_lists_of_a_yaml_are_facts() -> None:
    listed = Model(name="m", trained_length=1, head_dim=4, frequencies=[1.0, 0.5], layer_types=["full_attention"])  # type: ignore[arg-type]
    assert (listed.frequencies, listed.layer_types) == ((1.0, 0.5), ("full_attention",))
