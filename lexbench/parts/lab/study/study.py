"""`lexbench study`: train models that differ in one thing, evaluate all alike, and write a page of the results.

    DIR/models/<entry>-seed<S>/     a trained model; beside it the logs of its training and its evaluations
    DIR/runs/<entry>-seed<S>/       its run folder
    DIR/done/                       finished steps, with the arguments and weights that they depend on
    DIR/page/                       measured.parquet, models.json, and the page made of these: README.md, tables, plots

All work is done by processes of `lexbench train` and `lexbench run`; repeat the command to resume.
"""

import json
import math
import sys
from collections.abc import Collection, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lexbench.checkpoints import checkpoint
from lexbench.core.errors import ConfigError
from lexbench.core.files import read_object, write_text
from lexbench.parts.lab.study import page as records_page
from lexbench.parts.lab.study.plan import (
    describe_plan,
    estimate_seconds,
    model_folder,
    model_name,
    run_folder,
    study_steps,
)
from lexbench.parts.lab.study.processes import lock_study_folder, run_steps
from lexbench.parts.lab.study.settings import Study, StudyEntry, read_study

__all__ = ["Study", "collect_results", "read_study", "run_study"]


def run_study(study: Study, dry_run: bool = False, only_gates: bool = False) -> int:
    """Train and evaluate what is not done yet, and write the page; exit code 1 if anything failed, else 0.

    With `only_gates`: train, and print the gates of each model instead (`lexbench.parts.lab.study.gates`).
    """
    _rows_of_other_models(
        study, study.results / "page", []
    )  # fails now, not after hours, if the page is of another study
    every = [step for step in study_steps(study) if not only_gates or step.kind == "train"]
    todo = [step for step in every if not step.is_done()]
    print(describe_plan(study, todo, every), file=sys.stderr, flush=True)
    if dry_run:
        for step in todo:
            print(f"lexbench {' '.join(step.words)}")
        return 0
    with lock_study_folder(study.results) as lock:
        todo = [step for step in every if not step.is_done()]  # another study may have done some in the meantime
        failed = run_steps(todo, study.workers, lock, estimate_seconds(todo, every)) if todo else {}
        (print_gates if only_gates else collect_results)(study, failed)
    for label, reason in failed.items():
        print(f"lexbench: {label} failed: {reason}", file=sys.stderr)
    return 1 if failed else 0


def print_gates(study: Study, failed: Mapping[str, str]) -> None:
    """Print the gates of each trained model, and write them beside its folder."""
    from lexbench.parts.lab.study import gates  # loads torch

    for entry, seed in study.models:
        place = model_folder(study, entry, seed)
        if (place / "training.json").is_file():
            found = gates.measure_gates(place, study.corpus, study.corpora)
            write_text(place.with_suffix(".gates.json"), gates.gates_json(found))
            print(gates.gates_markdown(place.name, found), flush=True)


def collect_results(study: Study, failed: Mapping[str, str]) -> None:
    """Write measured values and facts of models into DIR/page, keep those of other models, and make the page."""
    page = study.results / "page"
    here = [_model_facts(study, entry, seed, failed) for entry, seed in study.models]
    before, kept = _rows_of_other_models(study, page, {model["name"] for model in here})
    order = list(study.known)
    models = sorted([*kept, *here], key=lambda model: (model["seed"], order.index(model["entry"])))
    about = {
        "study": study.name,
        "recipe": study.recipe,
        "trained_length": study.trained_length,
        "models": models,
        "published": [dict(row) for row in study.published],
        "compare": study.compare,
        "predictions": [asdict(each) for each in study.predictions],
        "orders": [asdict(each) for each in study.orders],
    }
    runs = [run_folder(study, entry, seed) for entry, seed in study.models]
    found = records_page.measured_rows([each for each in runs if (each / "cells").is_dir()], _model_revisions(study))
    records_page.check_protocols([*before, *found], page)
    write_text(page / "models.json", json.dumps(about, indent=1) + "\n")
    records_page.write_rows([*before, *found], page)
    print(records_page.write_page(page))


def _model_revisions(study: Study) -> dict[str, str]:
    """Fingerprints of the trained models; `none`, which no cell has, for a folder without weights."""
    found = {}
    for entry, seed in study.models:
        place = model_folder(study, entry, seed)
        if place.is_dir():
            weights = any(place.glob("*.safetensors"))
            found[model_name(entry, seed)] = checkpoint.checkpoint_fingerprint(place) if weights else "none"
    return found


def _rows_of_other_models(
    study: Study, page: Path, here: Collection[str]
) -> tuple[list[records_page.MeasuredRow], list[Mapping[str, Any]]]:
    """Rows and facts on the page of models that are not in `here`: measured before, perhaps on another machine.

    Raises ConfigError if the page belongs to another study or recipe.
    """
    if not (page / "models.json").is_file():
        return [], []
    rows, about = records_page.read_page_data(page)
    stated = {"study": study.name, "recipe": study.recipe, "trained_length": study.trained_length}
    for key, value in stated.items():
        if about[key] != value:
            raise ConfigError(f"{page} is a page of {key} {about[key]}, not {value}: give another results=DIR")
    # Entries that the yaml no longer has are dropped.
    kept = [m for m in about["models"] if m["name"] not in here and m["entry"] in study.known]
    names = {model["name"] for model in kept}
    return [row for row in rows if row.record.model in names], kept


def _model_facts(study: Study, entry: StudyEntry, seed: int, failed: Mapping[str, str]) -> dict[str, Any]:
    """Facts of one model and its training."""
    from lexbench.parts.lab.native import build  # loads torch

    name, place = model_name(entry, seed), model_folder(study, entry, seed)
    reasons = [reason for label, reason in failed.items() if label.split()[1] == name]
    facts: dict[str, Any] = {"name": name, "entry": entry.name, "family": entry.family, "seed": seed}
    spec = None if entry.spec is None else build.state_newer_parameters(entry.spec)
    facts |= {"encoding": spec, "start": entry.start, "failed": reasons[0] if reasons else None}
    try:
        record = read_object(place / "training.json", "train it again")
        told = ("tokens", "seconds", "texts", "last_loss", "device", "precision", "floors")
        facts |= {key: record.get(key) for key in told}
        facts["parameters"] = count_parameters(place / "model.safetensors")
    except (OSError, ValueError):
        facts["failed"] = facts["failed"] or "not trained"
    return facts


def count_parameters(file: Path) -> int:
    """Number of parameters in a safetensors file, from its header."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, "numpy") as stored:
            return sum(math.prod(stored.get_slice(name).get_shape()) for name in stored.keys())  # noqa: SIM118
    except SafetensorError as error:
        raise ConfigError(f"{file} is not a complete safetensors file ({error}): train the model again") from None
