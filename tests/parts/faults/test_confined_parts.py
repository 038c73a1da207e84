"""What parts read is never executed, and names from files never lead out of a folder."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from lexbench.commands import main
from lexbench.parts.exchange.hub.dataset_files import configuration_names
from tests.faults.readers import called
from tests.faults.test_confined import HOSTILE, NAMES, check_names_lead_nowhere


def test_a_cards_head_runs_no_yaml_tag(tmp_path: Path) -> None:
    from lexbench.parts.exchange.hub.card_yaml import read_head

    with pytest.raises(ValueError, match="not YAML"):
        read_head(f"---\nmodel: {HOSTILE.format(mark=tmp_path / 'mark')}\n---\n")
    assert not (tmp_path / "mark").exists()


def test_a_training_checkpoint_that_is_a_pickle_is_not_run(tmp_path: Path) -> None:
    import hashlib
    import pickle

    from lexbench.parts.lab.native.progress import TrainingProgress

    class Own:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.system, (f"touch {tmp_path / 'mark'}",)

    content = pickle.dumps({"key": "key", "decoder": Own()})
    (tmp_path / "training.checkpoint").write_bytes(hashlib.sha256(content).digest() + content)
    with pytest.raises(ValueError, match="checkpoint"):
        TrainingProgress(tmp_path, "key")
    assert not (tmp_path / "mark").exists()


def test_configurations_are_plain_words() -> None:
    found = configuration_names(NAMES)
    assert len({name.lower() for name in found.values()}) == len(NAMES)
    for name in found.values():
        assert name and len(name) <= 90 and not name.startswith((".", "-")) and "/" not in name and name.isascii()


@pytest.mark.slow
def test_samples_of_an_import_are_only_those_beside_it(inner: Path) -> None:
    from tests.parts.exchange import test_lm_eval_results as own

    row = own.choice(0, 0, (1.0, 2.0))
    right = {"acc,none": 1.0}
    file = own.write(inner / "lm", {"colours": (right, [row])})
    secret = inner.parent / f"samples_x_{own.DATE}.jsonl"
    shutil.copyfile(next((inner / "lm").glob("samples_*")), secret)
    content = json.loads(file.read_text())
    content["results"] = {f"../samples_x/../../{name}": value for name, value in content["results"].items()}
    file.write_text(json.dumps(content))
    words = ["import", "lm_eval", str(file), "--into", str(inner / "run"), "--trained-length", "8", "--length", "8"]
    verdict, said = called(lambda: main.main(words))
    assert verdict == "refused"
    assert "has no samples" in said
    assert not (inner / "run").exists()


@pytest.mark.parametrize("name", [name for name in NAMES if name != "CON"])
def test_a_study_never_trains_outside_its_folder(name: str) -> None:
    from lexbench.parts.lab.study.settings import StudyEntry

    with pytest.raises(ValueError, match="must be a folder's name"):
        StudyEntry(name=name, family="trained", encoding="rope")


def test_entries_of_the_study_that_we_ship_are_plain() -> None:
    from lexbench.core import registry
    from lexbench.parts.lab.study.settings import PLAIN_NAME_PATTERN

    stated = registry.read_named_config("study", "encodings")
    every = [*stated["entries"], *stated["finetuned"]["entries"]]
    assert len(every) > 20
    assert all(PLAIN_NAME_PATTERN.fullmatch(each["name"]) for each in every)


@pytest.mark.everyday("card")
@pytest.mark.parametrize(
    "words",
    [
        ["share", "RUN", "--samples", "OUT"],
        ["share", "RUN", "--card", "OUT/card.md", "--method", *[name for name in NAMES if name and name[0] != "-"]],
    ],
    ids=["samples", "card"],
)
def test_names_in_shared_records_lead_nowhere(words: list[str], inner: Path) -> None:
    check_names_lead_nowhere(words, inner)
