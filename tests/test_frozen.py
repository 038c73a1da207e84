"""Identities of cells, sample questions and attentions are those of the commit 3af05f6c: what was measured stays valid.

tests/golden/frozen.json holds the hashes that this module's functions gave there. An identity enters resuming and
comparison, a question's seed enters the numbers: neither may change by a new field, another place of a class or another
order. A change needs a version of the task or method that says why; then the hash is written anew:

    python -m tests.test_frozen
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, make_dataclass
from pathlib import Path
from typing import Any

import pytest

import lexbench
from lexbench.checkpoints.tokenizer import load_tokenizer
from lexbench.core import registry
from lexbench.core.attention import Attention
from lexbench.core.new_fields import stated_fields, stated_text
from lexbench.core.record import Refused
from lexbench.runner.cells import BackendFacts, Component
from lexbench.runner.job import Job
from lexbench.runner.plan import open_cell_of, plan_cells
from tests.test_contracts import LLAMA, METHODS, TASKS
from tests.test_contracts import hashes as hashes_of_questions

FROZEN = Path(__file__).parent / "golden" / "frozen.json"
OF_THIS_MACHINE = {"long_ppl", "next_line"}
"""Tasks whose questions depend on the place of a file, and on Python's own library."""
PLACES = (128, 256, 512, 2048)
METHOD_FORMS: Mapping[str, Any] = {
    "parameter": {"name": "yarn", "factor": 8.0, "beta_fast": 16.0},
    "composed": {"compose": ["yarn", "log_n"]},
    "composed with parameters": {"compose": [{"name": "yarn", "factor": 4.0}, "log_n", "resonance"]},
    "set for a length": {"name": "self_extend", "at": 2048},
    "over plain": {"name": "ntk", "over": "plain"},
    "composed, over plain, set for a length": {"compose": ["yarn", "log_n"], "over": "plain", "at": 1024},
}
"""Methods whose identity holds more than their defaults."""


def hashed(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def attention_hashes(names: Iterable[str]) -> dict[str, str]:
    """By method a hash of its attentions within and beyond the trained length."""
    return {name: hashed([attention(name, length) for length in PLACES]) for name in names}


def attention(name: str, length: int) -> Any:
    try:
        return lexbench.method(name).attention(LLAMA, length).as_data()
    except Refused as refused:
        return refused.reason


def question_hashes(names: Iterable[str], keys: Path) -> dict[str, str]:
    """By task a hash of its first questions for the embedded model."""
    return {name: each[:16] for name, each in hashes_of_questions(list(names), keys).items()}


def identity_hashes(methods: Mapping[str, Any], tasks: Iterable[str]) -> dict[str, str]:
    """By method a hash of its cells' identities on passkey, with their price; by task one of its cell under none."""
    found = {f"method {name}": _identities([config], ["passkey"], [128, 512]) for name, config in methods.items()}
    none = _configured({"name": "none"})
    return found | {f"task {name}": _identities([none], [name], [480]) for name in tasks}


def _identities(methods: list[Any], tasks: list[str], lengths: list[int]) -> str:
    tokenizer = load_tokenizer(Path(lexbench.__file__).parent / "lexlet")
    job = Job.of(
        model=registry.read_named_config("model", "lexlet"),
        methods=methods,
        tasks=[{"name": name, **registry.read_named_config("task", name)} for name in tasks],
        corpus={**registry.read_named_config("corpus", "synthetic"), "name": "synthetic", "words": 1500},
        backend={"name": "hf"},
        lengths=lengths,
        multiples=None,
        n=2,
        seeds=[0],
        results=None,
        price=True,
    )
    backend = BackendFacts("hf", "frozen", "float32", "sdpa", "abc", tokenizer)
    return hashed(
        sorted(
            (cell.id, cell.length) for cell in (open_cell_of(job, step, backend) for step in plan_cells(job, tokenizer))
        )
    )


def _configured(config: Mapping[str, Any]) -> dict[str, Any]:
    if "name" not in config:
        return dict(config)
    return {**registry.read_named_config("method", config["name"]), **config}


def methods_to_freeze() -> dict[str, Any]:
    named = {name: {"name": name} for name in METHODS}
    return {name: _configured(config) for name, config in {**named, **METHOD_FORMS}.items()}


def tasks_to_freeze() -> list[str]:
    return [name for name in TASKS if name not in OF_THIS_MACHINE]


def known(kind: str) -> dict[str, str]:
    found: dict[str, str] = json.loads(FROZEN.read_text())[kind]
    return found


@pytest.fixture(scope="module")
def frozen() -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = json.loads(FROZEN.read_text())
    return found


@pytest.mark.parts
def test_attentions_are_those_of_before(frozen: Mapping[str, Mapping[str, str]]) -> None:
    assert attention_hashes(frozen["attentions"]) == frozen["attentions"]


@pytest.mark.parts
def test_questions_are_those_of_before(frozen: Mapping[str, Mapping[str, str]], tmp_path: Path) -> None:
    assert question_hashes(frozen["questions"], tmp_path / "keys.jsonl") == frozen["questions"]


@pytest.mark.parts
def test_identities_of_cells_are_those_of_before(frozen: Mapping[str, Mapping[str, str]]) -> None:
    methods = {name: config for name, config in methods_to_freeze().items() if f"method {name}" in frozen["identities"]}
    tasks = [name for name in tasks_to_freeze() if f"task {name}" in frozen["identities"]]
    assert identity_hashes(methods, tasks) == frozen["identities"]


@pytest.mark.parts
def test_every_method_and_task_is_frozen(frozen: Mapping[str, Mapping[str, str]]) -> None:
    """A method or task that was added since has a hash from its first day; `python -m tests.test_frozen` writes it."""
    assert set(METHODS) == set(frozen["attentions"])
    assert set(tasks_to_freeze()) == set(frozen["questions"])


@dataclass(frozen=True)
class Before:
    window: int = 4


@dataclass(frozen=True)
class Later:
    window: int = 4
    absent: bool = field(default=False, metadata={"new": True})
    kinds: tuple[str, ...] = field(default_factory=tuple, metadata={"new": True})


def stated(instance: Any) -> dict[str, Any]:
    """The identity of a method without the hash of its file, this one."""
    return {key: value for key, value in Component("m", instance, "m").identity.items() if key != "file"}


def test_a_new_field_enters_no_identity_while_it_has_its_default() -> None:
    assert stated(Later()) == stated(Before()) == {"name": "m", "window": 4}
    assert stated(Later(absent=True)) == {"name": "m", "window": 4, "absent": True}
    assert stated(Later(kinds=("a",))) == {"name": "m", "window": 4, "kinds": ["a"]}
    assert [each.name for each in stated_fields(Later(absent=0))] == ["window", "absent"], "0 is not False"  # type: ignore[arg-type]


def test_a_new_field_of_a_method_inside_another_enters_neither() -> None:
    outer = make_dataclass("Outer", ["names", "parts"], frozen=True)
    inside = stated(outer(("a", "b"), (Later(), Later(absent=True))))
    assert inside["parts"] == ["Later(window=4)", "Later(window=4, absent=True)"]
    assert stated_text(outer([1, "x"], (Before(),))) == str(outer([1, "x"], (Before(),)))
    assert stated_text(Path("x")) == "x"


def test_a_new_field_of_a_slot_enters_no_attention() -> None:
    before, later = (Attention(remap=kind()).as_data()["remap"] for kind in (BeforeRemap, LaterRemap))
    assert {**later, "kind": None} == {**before, "kind": None}


@dataclass(frozen=True)
class BeforeRemap(Before):
    def regions(self) -> Any: ...


@dataclass(frozen=True)
class LaterRemap(Later):
    def regions(self) -> Any: ...


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        page = {
            "attentions": attention_hashes(METHODS),
            "questions": question_hashes(tasks_to_freeze(), Path(folder) / "keys.jsonl"),
            "identities": identity_hashes(methods_to_freeze(), tasks_to_freeze()),
        }
    FROZEN.write_text(json.dumps(page, indent=1, sort_keys=True) + "\n")
