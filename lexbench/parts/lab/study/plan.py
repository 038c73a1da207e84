"""Steps of a study: the training of each model, then its evaluations; each step is a command of lexbench."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

from lexbench.checkpoints import checkpoint
from lexbench.commands.hydra_value import hydra_value
from lexbench.core import registry
from lexbench.core.files import write_text
from lexbench.core.moved_classes import with_former_paths
from lexbench.parts.lab.study.settings import Study, StudyEntry, as_named_mapping
from lexbench.runner.forecast import format_duration


@dataclass(frozen=True, kw_only=True)
class StudyStep:
    """Command of lexbench that a study runs as a process: a training or a run."""

    label: str
    words: Sequence[str]
    """Arguments of `lexbench`."""
    log: Path
    stamp: Path
    """File written when the step has succeeded."""
    needs: str | None = None
    """Label of the step that must come first."""
    seconds: float = 0.0
    """Expected time on one idle core."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Facts that the outcome depends on, besides the arguments."""
    weights: Path | None = None
    """Folder of the model that the step reads; with other weights it must run again."""
    made: Path | None = None
    """File or folder that the step makes; if that was removed, it must run again."""

    @property
    def kind(self) -> str:
        """`train` or `run`."""
        return self.label.split()[0]

    def is_done(self) -> bool:
        """Whether the step has succeeded with the same arguments, facts and weights."""
        return self.seconds_taken() is not None

    def seconds_taken(self) -> float | None:
        """Seconds that the step took; None if it must run."""
        if self.made is not None and not self.made.exists():
            return None
        try:
            stamp = json.loads(self.stamp.read_text(encoding="utf-8"))
            return float(stamp["seconds"]) if stamp["key"] == self._step_key() else None
        except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
            return None

    def record_success(self, seconds: float) -> None:
        """Write the stamp of a step that has succeeded and took so many seconds."""
        write_text(self.stamp, json.dumps({"key": self._step_key(), "seconds": round(seconds, 1)}, indent=1) + "\n")

    def _step_key(self) -> dict[str, Any]:
        weights = checkpoint.checkpoint_fingerprint(self.weights) if self.weights else None
        # As it will be read from the stamp: tuples become lists.
        text = json.dumps({"words": self.words, "facts": self.facts, "weights": weights})
        plain: dict[str, Any] = json.loads(with_former_paths(text))
        return plain


def model_name(entry: StudyEntry, seed: int) -> str:
    """Name of a trained model: its folder, and `model` of its records."""
    return f"{entry.name}-seed{seed}"


def study_steps(study: Study) -> list[StudyStep]:
    """All steps, each after the one that it needs; first one seed of all models, then the next seed."""
    found: dict[str, StudyStep] = {}
    for entry, seed in study.models:
        for step in (*_training_steps(study, entry, seed), *_evaluation_steps(study, entry, seed)):
            found.setdefault(step.label, step)
    return list(found.values())


def model_folder(study: Study, entry: StudyEntry, seed: int) -> Path:
    """Folder of the trained model."""
    return study.results / "models" / model_name(entry, seed)


def _training_steps(study: Study, entry: StudyEntry, seed: int) -> Iterator[StudyStep]:
    """The training of the model that it starts from, if any, then its own."""
    start = study.known[entry.start] if entry.start else None
    if start:
        yield from _training_steps(study, start, seed)
    recipe, name = entry.recipe or study.recipe, model_name(entry, seed)
    settings: dict[str, Any] = {"recipe": recipe}
    if start:
        settings["start"] = str(model_folder(study, start, seed))
    if spec := entry.spec:
        settings["encoding"] = spec["name"]
        settings |= {f"encoding.{key}": value for key, value in spec.items() if key != "name"}
    if study.corpora is not None:
        settings["corpora"] = list(study.corpora)
    settings |= {**entry.train, "recipe.seed": seed, "out": str(model_folder(study, entry, seed))}
    settings["rows"] = str(study.results / "rows")  # of all trainings, drawn ahead
    yield StudyStep(
        label=f"train {name}",
        words=["train", *_setting_words(settings)],
        log=model_folder(study, entry, seed).with_suffix(".train.log"),
        stamp=study.results / "done" / f"{name}.train.json",
        needs=f"train {model_name(start, seed)}" if start else None,
        seconds=study.seconds.get("finetune" if start else "train", 0.0),
        facts={"recipe": registry.read_named_config("recipe", recipe)},
        weights=model_folder(study, start, seed) if start else None,
        made=model_folder(study, entry, seed) / "training.json",
    )


def _evaluation_steps(study: Study, entry: StudyEntry, seed: int) -> Iterator[StudyStep]:
    """Steps that run the tasks: one for all tasks of the same n, because a run has one n."""
    name, methods = model_name(entry, seed), [as_named_mapping(method) for method in entry.methods or study.methods]
    tasks = sorted(study.tasks, key=lambda task: -task["n"])
    # Sorted by n above: groupby joins only neighbours.
    for n, group in groupby(tasks, key=lambda task: task["n"]):
        configs = [{key: value for key, value in task.items() if key != "n"} for task in group]
        settings: dict[str, Any] = {
            "model": "local",
            "model.path": str(model_folder(study, entry, seed)),
            "model.name": name,
            "backend": entry.backend,
            "corpus": study.corpus,
            "task": configs,
            "lengths": study.lengths,
            "n": n,
            "results": str(run_folder(study, entry, seed)),
            "hydra.sweep.dir": str(study.results / ".sweep" / name),
        }
        if entry.start:  # a finetuned model states another trained length, or none: compare all at the same one
            settings["model.trained_length"] = study.trained_length
        yield StudyStep(
            label=f"run {name} {','.join(task['name'] for task in configs)}",
            words=["run", *_method_words(methods), *_setting_words(settings)],
            log=model_folder(study, entry, seed).with_suffix(f".run-{n}.log"),
            stamp=study.results / "done" / f"{name}.run-{n}.json",
            needs=f"train {name}",
            seconds=study.seconds.get("evaluate", 0.0) * len(methods) * len(configs) / max(1, len(study.tasks)),
            weights=model_folder(study, entry, seed),
            made=run_folder(study, entry, seed) / "cells",
        )


def run_folder(study: Study, entry: StudyEntry, seed: int) -> Path:
    """Run folder of the model's records."""
    return study.results / "runs" / model_name(entry, seed)


def _method_words(methods: Sequence[Mapping[str, Any]]) -> list[str]:
    """Arguments for the methods of a run: all in one process, which loads the model once."""
    if all(set(method) == {"name"} for method in methods):
        names = ",".join(method["name"] for method in methods)
        return ["-m", f"method={names}"] if len(methods) > 1 else [f"method={names}"]
    # Methods with parameters have no name to sweep over; lists of one method each have.
    lists = ",".join(hydra_value([method]) for method in methods)
    return ["-m", f"method.compose={lists}"]


def _setting_words(settings: Mapping[str, Any]) -> list[str]:
    return [f"{key}={hydra_value(value)}" for key, value in settings.items()]


def describe_plan(study: Study, todo: Sequence[StudyStep], every: Sequence[StudyStep]) -> str:
    """The plan, printed before anything runs."""
    kinds = {kind: [step for step in todo if step.kind == kind] for kind in ("train", "run")}
    done = len(every) - len(todo)
    seconds = sum(estimate_seconds(todo, every).values()) / min(study.workers, max(1, len(todo)))
    lines = [
        f"study {study.name} into {study.results}: {len(study.entries)} encodings, seeds "
        f"{', '.join(map(str, study.seeds))}, lengths {', '.join(map(str, study.lengths))}",
        f"{len(kinds['train'])} trainings (recipe {study.recipe}), {len(kinds['run'])} evaluations; {done} done",
    ]
    if todo:
        lines.append(f"about {format_duration(seconds)} with {study.workers} at once, if all cores are idle")
    return "\n".join(lines)


def estimate_seconds(todo: Sequence[StudyStep], every: Sequence[StudyStep]) -> dict[str, float]:
    """Expected seconds of each step: the study's number times measured over expected time of the finished steps.

    Trainings and evaluations have a scale each. (`lexbench.runner.forecast` is for cells, not for processes.)
    """
    # A second of each kind is taken for granted: without a finished step, the scale is 1.
    took, expected = ({"train": 1.0, "run": 1.0} for _ in range(2))
    for step in every:
        if step.seconds and (seconds := step.seconds_taken()) is not None:
            took[step.kind] += seconds
            expected[step.kind] += step.seconds
    return {step.label: step.seconds * took[step.kind] / expected[step.kind] for step in todo}
