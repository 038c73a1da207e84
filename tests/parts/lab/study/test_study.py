"""The zoo: its yaml holds together, its plan repeats nothing, its processes fail and go on."""

import functools
import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from tqdm import tqdm

from lexbench.commands import main
from lexbench.core import objects, registry
from lexbench.parts.lab.native import build
from lexbench.parts.lab.native.decoder import DecoderShape
from lexbench.parts.lab.native.recipe import Recipe
from lexbench.parts.lab.study import page, plan, processes
from lexbench.parts.lab.study.page.curves import Curve, build_curves
from lexbench.parts.lab.study.page.shapes import shape_of_curve
from lexbench.parts.lab.study.plan import StudyStep
from lexbench.parts.lab.study.settings import Study, read_study
from lexbench.parts.lab.study.study import collect_results, run_study
from lexbench.report.doctor import examine_runs
from lexbench.report.leaderboard.published import find_published_tables

SHORT = ["study.corpora=[little]", "study.corpus=little"]
LITTLE = {"_target_": "lexbench.corpora.synthetic.Synthetic", "count": 16}
BRIEF = {
    **{"_target_": "lexbench.parts.lab.native.recipe.Recipe", "trained_length": 64, "batch": 8, "vocabulary": 384},
    **{"shape": {"layers": 1, "width": 32, "heads": 4, "kv_heads": 2, "hidden": 32}, "rate": 6e-3, "warmup": 5},
    **{"evaluate": 60, "save": 10, "stages": [{"steps": 60, "lessons": {"text": 1.0}}]},
}


@functools.cache
def stated() -> dict[str, Any]:
    return registry.read_named_config("study", "encodings")


@functools.cache
def usual() -> dict[str, Any]:
    config = yaml.safe_load((registry.command_config_folder("study") / "study.yaml").read_text())
    return {key: value for key, value in config.items() if key not in ("defaults", "hydra")}


def asked(recipe: str = "zoo", **changed: Any) -> Study:
    """The study of a command line."""
    return read_study({**usual(), "study": {**stated(), "recipe": recipe}, **changed}, "encodings")


@functools.cache
def usual_study() -> Study:
    return asked()


# the yaml


def test_every_encoding_of_the_registry_is_in_the_study() -> None:
    whole = asked(finetuned=True)
    used = {entry.spec["name"] for entry in whole.entries if entry.spec}
    assert set(registry.registered_names("encoding")) - used == set()


def committed(name: str) -> Study:
    return read_study({**usual(), "study": registry.read_named_config("study", name)}, name)


STUDIES = ("encodings", "laboratory", "algorithms", "addition", "state", "parity")
ENTRIES = [(study, name) for study in map(committed, STUDIES) for name in study.known]


@pytest.mark.parametrize(("study", "name"), ENTRIES, ids=[f"{study.name} {name}" for study, name in ENTRIES])
def test_every_entry_resolves(study: Study, name: str) -> None:
    entry = study.known[name]
    recipe = {**registry.read_named_config("recipe", study.recipe)}
    shape = DecoderShape(vocabulary=recipe["vocabulary"], **recipe["shape"])
    if entry.spec and not name.startswith(("bipe", "abacus", "coupling")):  # a tokenizer settles separators and digits
        assert build.build_encoding(entry.spec, shape, recipe["trained_length"]).name
    elif entry.spec:
        assert build.resolve_spec(entry.spec)["_target_"]
    for method in entry.methods or ():
        assert registry.read_named_config("method", method)["_target_"]


@pytest.mark.parametrize(
    "name", ["zoo", "zoo_tiny", "zoo_finetune", "lab", "lab_finetune", "algorithms", "addition", "state", "parity"]
)
def test_every_recipe_resolves(name: str) -> None:
    recipe = objects.build_object(registry.read_named_config("recipe", name), "recipe")
    assert isinstance(recipe, Recipe)
    assert recipe.steps >= 50


def test_the_laboratory_states_its_predictions() -> None:
    study = committed("laboratory")
    assert study.compare == "non_overlapping" and len(study.predictions) == 18
    assert {task for each in study.predictions for task in each.tasks} <= {task["name"] for task in study.tasks}


@pytest.mark.parametrize("name", ["algorithms", "addition", "state", "parity"])
def test_what_a_study_of_algorithms_asks_is_taught_and_predicted(name: str) -> None:
    study = committed(name)
    recipe = objects.build_object(registry.read_named_config("recipe", study.recipe), "recipe")
    assert {task["name"] for task in study.tasks} == set(recipe.stages[-1]["lessons"])
    assert {task for order in study.orders for task in order.of_tasks if task} <= {t["name"] for t in study.tasks}
    assert max(study.multiples) == 10 and 20 <= study.trained_length <= 40


def test_offsets_of_places_train_what_the_longest_sum_needs() -> None:
    study = committed("addition")
    tokens = round(max(study.multiples) * study.trained_length)
    longest = (tokens - 3) // 3  # two numbers and a result, two signs and BOS
    shown = (study.trained_length - 3) // 3
    found = [entry.spec for entry in study.entries if entry.spec and "offsets" in entry.spec]
    assert len(found) == 4 and longest == 65 and shown == 5
    # The last row of the table that is trained, offsets - 1 + shown - 1, and the one that the last digit needs.
    assert all(spec["offsets"] + shown - 2 >= longest - 1 for spec in found)


def test_the_recipe_zoo_is_as_large_as_it_says() -> None:
    recipe = objects.build_object(registry.read_named_config("recipe", "zoo"), "recipe")
    assert recipe.steps * recipe.batch * recipe.length == pytest.approx(1.1e6, rel=0.1)
    assert recipe.trained_length in (64, 128)
    assert 512 <= recipe.vocabulary <= 1024


PUBLISHED = [(name, row) for name in STUDIES[:2] for row in registry.read_named_config("study", name)["published"]]


@pytest.mark.everyday("encodings lex-2 Transformer(absolute)", "encodings lex-3 ALiBi")
@pytest.mark.parametrize(
    ("name", "row"), PUBLISHED, ids=[f"{name} {r['table']} {r['printed']}" for name, r in PUBLISHED]
)
def test_every_published_row_has_figures_and_an_entry(name: str, row: dict[str, Any]) -> None:
    study = committed(name)
    assert row.get("method", "none") in (study.known[row["entry"]].methods or study.methods)
    for place in (row, row["base"]) if "base" in row else (row,):
        [table] = find_published_tables([place["table"]])
        assert any(figure.method == place["printed"] and figure.value for figure in table.figures), place


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"encodings": ["rop"]}, "unknown encodings 'rop': choose from nope, sinusoidal"),
        ({"encodings": "rope"}, r"study's encodings must be a list, got 'rope': e.g. encodings=\[rope\]"),
        ({"tasks": ["needle"]}, "unknown tasks 'needle': choose from last_segment"),
        ({"seeds": [-1]}, "study's seeds must be whole numbers of at least 0, got -1"),
        ({"workers": 0}, "study's workers must be whole numbers of at least 1, got 0"),
        ({"multiples": [0]}, "study's multiples must be numbers above 0, got 0"),
        ({"methods": ["yran"]}, "unknown method 'yran'"),
        ({"recipe": "zo"}, "unknown recipe 'zo'"),
        ({"recipe": "zoo_finetune"}, "study.recipe must state a trained_length, zoo_finetune has None: e.g."),
        ({"study": {**stated(), "entries": 5}}, "study's entries must be a list, got 5"),
        ({"study": {**stated(), "entries": [5]}}, "study's entries must be keys and values, got 5"),
        ({"study": {**stated(), "finetuned": 5}}, "study's finetuned must be keys and values, got 5"),
        *(
            ({key: []}, rf"study's {key} must not be empty, got \[\]: leave it out, or give null for the study's own")
            for key in ("encodings", "seeds", "tasks", "methods", "multiples")
        ),
        ({"methods": "bca"}, r"study's methods must be a list, got 'bca': e.g. methods=\[bca\]"),
        ({"seeds": [0, 1, 0]}, "study's seeds must differ, got 0 twice: drop one"),
        ({"encodings": ["rope", "rope"]}, "study's encodings must differ, got 'rope' twice: drop one"),
        ({"multiples": [1, 0.01]}, "study's multiples must give at least 2 tokens, got 0.01 of 128: raise it"),
        ({"study": {**stated(), "recipes": 3}}, "unknown key study.recipes: choose from recipe"),
        ({"study": {"recipe": "zoo"}}, "study encodings lacks seeds"),
        *(
            (
                {
                    "study": {
                        **stated(),
                        "predictions": [{"entry": "rope", "tasks": ["last_segment"], "source": "a", **each}],
                    }
                },
                said,
            )
            for each, said in (
                ({}, "prediction about rope must have shape, other_than, or at with within or below, got none: e.g."),
                ({"within": 0.1}, "prediction about rope must have shape, .* got within"),
                ({"shape": "flat", "at": 8}, "prediction about rope must have shape, .* got shape"),
                ({"shape": "bent"}, "unknown shape 'bent' of a prediction: choose from falls, flat"),
                ({"at": 8, "below": "rop"}, "unknown entry 'rop' of what is predicted: choose from nope, sinusoidal"),
                ({"shape": "flat", "tasks": ["last_segmnt"]}, "unknown task 'last_segmnt'"),
            )
        ),
        ({"study": {**stated(), "compare": "last_segmnt"}}, "unknown task 'last_segmnt'"),
        *(
            ({"study": {**stated(), "orders": [{"multiples": [2], "source": "a", **each}]}}, said)
            for each, said in (
                ({"higher": "nope"}, "order of a must have higher and lower, or task and entries: e.g."),
                ({"higher": "nope", "lower": ["rop"]}, "unknown entry 'rop' of what is predicted: choose from nope"),
                ({"task": "mqr", "entries": ["nope"]}, "unknown task 'mqr'"),
            )
        ),
    ],
    ids=str,
)
def test_what_no_study_can_be_is_said_in_one_line(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        asked(**changed)


def test_the_command_prints_every_command_of_its_plan(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    words = [
        "encodings=[rope,pi]",
        "seeds=[1]",
        "tasks=[running_arithmetic]",
        "methods=[none]",
        f"results={tmp_path / 'zoo'}",
    ]
    assert main.main(["study", "encodings", "--dry-run", *words, "study.recipe=zoo_tiny"]) == 0
    out, err = capfd.readouterr()
    assert [line.split()[1] for line in out.splitlines()] == ["train", "run", "train", "run"]
    assert "recipe=zoo_tiny encoding=rope corpora=[stdlib,pydoc] recipe.seed=1" in out
    assert "2 trainings (recipe zoo_tiny), 2 evaluations; 0 done" in err
    assert not (tmp_path / "zoo").exists()
    assert main.main(["study", "encodingz"]) == 2
    assert "unknown study 'encodingz': did you mean encodings?" in capfd.readouterr().err


# the plan


def test_a_plan_trains_each_model_once_before_it_is_evaluated(tmp_path: Path) -> None:
    steps = plan.study_steps(asked(results=str(tmp_path), encodings=["pi", "alibi"], seeds=[0, 1]))
    labels = [step.label for step in steps]
    assert [label for label in labels if label.startswith("train")] == [
        *("train rope-seed0", "train pi-seed0", "train alibi-seed0"),
        *("train rope-seed1", "train pi-seed1", "train alibi-seed1"),
    ]
    assert not any(label.startswith("run rope") for label in labels)  # it was not asked for
    assert len(set(labels)) == len(labels)
    for step in steps:
        assert step.needs is None or labels.index(step.needs) < labels.index(step.label)


def test_a_plan_is_commands_of_lexbench(tmp_path: Path) -> None:
    chosen: dict[str, Any] = {
        "encodings": ["kerple_power"],
        "seeds": [2],
        "tasks": ["running_arithmetic"],
        "multiples": [0.5, 4],
    }
    train, run = plan.study_steps(asked(results=str(tmp_path), **chosen))
    folder = tmp_path / "models" / "kerple_power-seed2"
    assert list(train.words) == [
        *(
            "train",
            "recipe=zoo",
            "encoding=kerple",
            "encoding.form=power",
            "corpora=[stdlib,pydoc]",
            "recipe.seed=2",
            f"out={folder}",
            f"rows={tmp_path / 'rows'}",
        ),
    ]
    assert list(run.words[:6]) == [
        *("run", "-m", "method=none,bca", "model=local", f"model.path={folder}", "model.name=kerple_power-seed2"),
    ]
    assert {"backend=native", "task=[{name:running_arithmetic}]", "lengths=[64,512]"} <= set(run.words)
    [n] = [task["n"] for task in stated()["tasks"] if task["name"] == "running_arithmetic"]
    assert f"n={n}" in run.words


def test_methods_that_the_user_names_go_before_an_entrys_own(tmp_path: Path) -> None:
    made = asked(results=str(tmp_path), encodings=["rope"], seeds=[0], methods=["none"], tasks=["running_arithmetic"])
    assert "method=none" in plan.study_steps(made)[1].words
    assert any("rerope" in word for word in plan.study_steps(asked(results=str(tmp_path), encodings=["rope"]))[1].words)


def test_tasks_of_one_n_share_a_run(tmp_path: Path) -> None:
    runs = plan.study_steps(asked(results=str(tmp_path), encodings=["nope"], seeds=[0]))[1:]
    assert [step.label.split()[-1] for step in runs] == [
        "last_segment,running_arithmetic",
        "sliding,prefix,resolution",
    ]


def test_two_forms_of_a_task_share_a_run_and_have_one_n(tmp_path: Path) -> None:
    forms: list[dict[str, Any]] = [{"name": "repeated", "n": 12}, {"name": "repeated", "repeat": False, "n": 12}]
    chosen: dict[str, Any] = {"results": str(tmp_path), "encodings": ["nope"], "seeds": [0]}
    study = {**stated(), "tasks": [*forms, {"name": "prefix", "n": 4}]}
    _, run = plan.study_steps(asked(**chosen, study=study, tasks=["repeated"]))
    assert run.label.split()[-1] == "repeated,repeated"
    assert "task=[{name:repeated},{name:repeated,repeat:false}]" in run.words
    forms[1]["n"] = 16
    with pytest.raises(ValueError, match="study's task repeated must have one n, got 12 and 16: give all forms one"):
        asked(**chosen, study=study)


def test_values_are_written_in_hydras_grammar(tmp_path: Path) -> None:
    value = {"name": "kerple", "form": "it's", "on": True, "none": None, "many": [1, 2.5, "a b"]}
    from hydra.core.override_parser.overrides_parser import OverridesParser

    from lexbench.commands.hydra_value import hydra_value

    parsed = OverridesParser.create().parse_override(f"x={hydra_value(value)}").value()
    assert {str(key): item for key, item in parsed.items()} == value


def test_what_has_ended_well_is_done_until_words_recipe_or_weights_change(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    (model / "model.safetensors").write_bytes(b"one")
    step = step_of(tmp_path, "a", facts={"recipe": {"rate": 1}}, weights=model)
    assert not step.is_done()
    step.record_success(12.34)
    assert step.seconds_taken() == 12.3
    assert not step_of(tmp_path, "a", facts={"recipe": {"rate": 2}}, weights=model).is_done()
    assert not step_of(tmp_path, "a", facts={"recipe": {"rate": 1}}, weights=model, words=["list", "task"]).is_done()
    (model / "model.safetensors").write_bytes(b"two")
    assert not step.is_done()


def test_what_somebody_has_removed_is_done_again(tmp_path: Path) -> None:
    made = tmp_path / "cells"
    made.mkdir()
    step = step_of(tmp_path, "a", made=made)
    step.record_success(1.0)
    assert step.is_done()
    made.rmdir()
    assert not step.is_done()
    train, run = plan.study_steps(
        asked(results=str(tmp_path), encodings=["rope"], seeds=[0], tasks=["running_arithmetic"])
    )
    assert train.made == tmp_path / "models" / "rope-seed0" / "training.json"
    assert run.made == tmp_path / "runs" / "rope-seed0" / "cells"


def test_the_estimate_follows_what_was_measured(tmp_path: Path) -> None:
    steps = [step_of(tmp_path, f"train {name}", seconds=100.0) for name in "abc"]
    assert sum(plan.estimate_seconds(steps, steps).values()) == 300
    steps[0].record_success(200.0)  # (1 + 200) / (1 + 100): one second is taken for granted
    assert plan.estimate_seconds(steps[1:], steps)["train b"] == pytest.approx(100 * 201 / 101)


def step_of(folder: Path, label: str, **changed: Any) -> StudyStep:
    values: dict[str, Any] = {
        "label": label,
        "words": ["list", "method"],
        "log": folder / f"{label}.log",
        "stamp": folder / "done" / f"{label}.json",
        **changed,
    }
    return StudyStep(**values)


def test_a_stamp_of_version_0_1_is_known(tmp_path: Path) -> None:
    facts = {"recipe": {"_target_": "lexbench.parts.lab.native.recipe.Recipe", "steps": 3}}
    step = step_of(tmp_path, "train a", words=["train"], stamp=tmp_path / "done.json", facts=facts)
    older = {"recipe": {"_target_": "lexbench.native.recipe.Recipe", "steps": 3}}
    (tmp_path / "done.json").write_text(
        json.dumps({"key": {"words": ["train"], "facts": older, "weights": None}, "seconds": 2.5})
    )
    assert step.seconds_taken() == 2.5


# the processes


@pytest.mark.slow
def test_a_failed_step_stops_only_what_needs_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    steps = [
        step_of(tmp_path, "train bad", words=["run", "method=yran"]),
        step_of(tmp_path, "run bad", needs="train bad"),
        step_of(tmp_path, "train good"),
        step_of(tmp_path, "run good", needs="train good"),
    ]
    with processes.lock_study_folder(tmp_path) as lock:
        failed = processes.run_steps(steps, 2, lock, {})
    assert failed.keys() == {"train bad", "run bad"}
    assert failed["train bad"].startswith("lexbench: unknown method 'yran': did you mean yarn?")
    assert failed["run bad"] == "train bad failed"
    assert [step.is_done() for step in steps] == [False, False, True, True]
    assert "train bad failed: lexbench: unknown method" in capsys.readouterr().err
    assert "yarn" in (tmp_path / "train good.log").read_text()


@pytest.mark.slow
def test_in_a_file_there_is_a_line_for_each_step_and_no_bar(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("TQDM_DISABLE", raising=False)
    with processes.lock_study_folder(tmp_path) as lock:
        processes.run_steps([step_of(tmp_path, "a", words=["list", "method"])], 1, lock, {"a": 1.0})
    assert capsys.readouterr().err == "a finished\n"


@pytest.mark.slow
def test_a_run_of_refused_cells_is_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["run", "backend=chance", "task=passkey", "lengths=[8]", "n=1", f"results={tmp_path / 'run'}"]
    step = step_of(tmp_path, "run a", words=words, made=tmp_path / "run" / "cells")
    with processes.lock_study_folder(tmp_path) as lock:
        assert processes.run_steps([step], 1, lock, {}) == {}
    assert step.is_done()
    assert "nothing was measured, 1 cell refused: passkey needs" in step.log.read_text()


@pytest.mark.slow
def test_ctrl_c_ends_every_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[processes.RunningStep] = []
    start = processes._start_step

    def kept(step: StudyStep, workers: int, lock: int) -> processes.RunningStep:
        started.append(start(step, workers, lock))
        return started[-1]

    class Interrupted(tqdm):  # type: ignore[type-arg]
        def set_description(self, desc: str | None = None, refresh: bool | None = True) -> None:
            if len(started) == 2:
                time.sleep(0.5)
                raise KeyboardInterrupt

    monkeypatch.setattr(processes, "_start_step", kept)
    monkeypatch.setattr(processes, "tqdm", Interrupted)
    steps = [step_of(tmp_path, name, words=["view", str(run_folder(tmp_path / name)), "--port", "0"]) for name in "ab"]
    with processes.lock_study_folder(tmp_path) as lock, pytest.raises(KeyboardInterrupt):
        processes.run_steps(steps, 2, lock, {})
    assert [each.process.poll() is not None for each in started] == [True, True]
    assert not any(step.is_done() for step in steps)


def run_folder(folder: Path) -> Path:
    """One that `lexbench view` serves until Ctrl-C."""
    from tests.report.fake_run import fake_cells, keep

    keep(folder, fake_cells(tasks=["passkey"], losses={"none": 1.9})[:2])
    return folder


@pytest.mark.slow
def test_cores_are_shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "n_usable_cores", lambda: 8)
    seen: list[dict[str, str]] = []
    popen = subprocess.Popen

    def looked(*words: Any, **options: Any) -> Any:
        seen.append(options["env"])
        return popen(*words, **options)

    monkeypatch.setattr(subprocess, "Popen", looked)
    with processes.lock_study_folder(tmp_path) as lock:
        processes.run_steps([step_of(tmp_path, "a")], 3, lock, {})
    assert seen[0]["OMP_NUM_THREADS"] == "2"


@pytest.mark.slow
def test_a_second_study_waits_for_the_first_ones_processes(tmp_path: Path) -> None:
    code = (
        "import sys, subprocess; from pathlib import Path; from lexbench.parts.lab.study.processes import "
        "lock_study_folder\n"
        "with lock_study_folder(Path(sys.argv[1])) as lock:\n"
        "    subprocess.Popen(['sleep', '1.5'], pass_fds=(lock,)); import os; os._exit(0)\n"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)
    started = time.monotonic()
    with processes.lock_study_folder(tmp_path):
        assert time.monotonic() - started > 0.3  # the orphan's lock


# end to end


@pytest.fixture
def own_registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the corpus `little` and the recipe `brief` exist."""
    for part, name, value in (("corpus", "little", LITTLE), ("recipe", "brief", BRIEF)):
        (tmp_path / "configs" / part).mkdir(parents=True)
        (tmp_path / "configs" / part / f"{name}.yaml").write_text(yaml.safe_dump(value))
    monkeypatch.setenv("LEXBENCH_CONFIG_PATH", str(tmp_path / "configs"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def command(folder: Path, *words: str) -> list[str]:
    return ["study", "encodings", f"results={folder}", *SHORT, *words]


def in_this_process(step: StudyStep, workers: int, lock: int) -> processes.RunningStep:
    """A step that has run, and its log."""
    step.log.parent.mkdir(parents=True, exist_ok=True)
    log, started = step.log.open("ab"), time.monotonic()
    code = main.main([*step.words])
    return processes.RunningStep(step, SimpleNamespace(poll=lambda: code, returncode=code), log, started)  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.usefixtures("own_registry", "one_thread")
def test_a_killed_study_goes_on_and_repeats_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    words = ["encodings=[sinusoidal,nope]", "seeds=[0]", "tasks=[last_segment]", "methods=[none,bca]"]
    words += ["multiples=[1,2]", "n=2", "study.recipe=brief"]
    process = subprocess.Popen(
        [sys.executable, "-m", "lexbench", *command(tmp_path, *words)], stderr=subprocess.DEVNULL
    )
    checkpoint = tmp_path / "models" / "sinusoidal-seed0" / "training.jsonl"
    until = time.monotonic() + 300
    while time.monotonic() < until and not (checkpoint.exists() and checkpoint.read_text().count("\n") > 20):
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (tmp_path / "page").exists()
    monkeypatch.setattr(processes, "_start_step", in_this_process)
    assert main.main(command(tmp_path, *words)) == 0, capfd.readouterr().err
    first = {file: file.stat().st_mtime_ns for file in (tmp_path / "models").rglob("*.safetensors")}
    assert len(first) == 2
    assert examine_runs([tmp_path / "runs"]).faults == []
    found = {(curve.entry, str(curve.method)) for curve in build_curves(*page.read_page_data(tmp_path / "page"))}
    assert found == {(entry, method) for entry in ("sinusoidal", "nope") for method in ("none", "bca")}
    capfd.readouterr()
    assert main.main(command(tmp_path, *words)) == 0
    assert "0 trainings (recipe brief), 0 evaluations; 4 done" in capfd.readouterr().err
    assert {file: file.stat().st_mtime_ns for file in (tmp_path / "models").rglob("*.safetensors")} == first


@pytest.mark.slow
@pytest.mark.usefixtures("own_registry", "one_thread")
def test_two_encodings_end_to_end_have_their_shapes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Its steps need no processes of their own: those are tested above."""
    monkeypatch.setattr(processes, "_start_step", in_this_process)
    words = ["encodings=[rope,alibi]", "seeds=[2]", "tasks=[last_segment]", "methods=[none,bca]"]
    words += ["study.recipe=zoo_tiny"]
    assert main.main(command(tmp_path, *words, "multiples=[1,2,4]", "n=16")) == 0, capfd.readouterr().err
    rows, about = page.read_page_data(tmp_path / "page")
    found = {(curve.entry, str(curve.method)): curve for curve in build_curves(rows, about)}
    assert found.keys() == {(entry, method) for entry in ("rope", "alibi") for method in ("none", "bca")}
    shapes = {key: shape_of_curve(curve) for key, curve in found.items()}
    rope, alibi, window = (shapes[key] for key in (("rope", "none"), ("alibi", "none"), ("rope", "bca")))
    assert rope and alibi and window
    assert not rope.allows("flat")
    assert alibi.allows("flat") and not alibi.allows("explodes")
    assert window.allows("flat") and not window.allows("explodes")
    assert beyond(found["rope", "none"])[0] > beyond(found["alibi", "none"])[1]
    assert beyond(found["rope", "none"])[0] > beyond(found["rope", "bca"])[1]
    assert "| rope " in (tmp_path / "page" / "README.md").read_text()


def beyond(curve: Curve) -> tuple[float, float]:
    """Ends of the change at the longest length, over seeds and documents."""
    change = curve.points[-1].change
    assert change is not None and change.low is not None and change.high is not None
    return change.low, change.high


@pytest.mark.slow
def test_a_page_leaves_out_what_other_weights_gave(tmp_path: Path) -> None:
    whole = asked(results=str(tmp_path), encodings=["rope"], seeds=[0])
    [entry] = whole.entries
    words = ["model=lexlet", "model.name=rope-seed0", "backend=chance", "task=passkey", "lengths=[128]", "n=2"]
    assert main.main(["run", *words, "corpus=synthetic", f"results={plan.run_folder(whole, entry, 0)}"]) == 0
    collect_results(whole, {})
    assert page.read_page_data(tmp_path / "page")[0]  # no model lies here: that of the cells is taken
    model = plan.model_folder(whole, entry, 0)
    model.mkdir(parents=True)
    (model / "model.safetensors").write_bytes(b"others")
    collect_results(whole, {})
    assert page.read_page_data(tmp_path / "page")[0] == []


@pytest.mark.slow
def test_a_page_keeps_models_that_were_measured_elsewhere(tmp_path: Path) -> None:
    whole = asked(results=str(tmp_path), encodings=["alibi", "rope"], seeds=[0])
    for entry in whole.entries:
        words = ["model=lexlet", f"model.name={plan.model_name(entry, 0)}", "backend=chance", "task=passkey"]
        words += ["lengths=[128,256]", "n=2", "corpus=synthetic", f"results={plan.run_folder(whole, entry, 0)}"]
        assert main.main(["run", *words]) == 0
    collect_results(whole, {})
    rows, about = page.read_page_data(tmp_path / "page")
    assert [model["name"] for model in about["models"]] == ["alibi-seed0", "rope-seed0"]

    shutil.rmtree(tmp_path / "runs")  # as on another machine, which has the page only
    collect_results(asked(results=str(tmp_path), encodings=["t5"], seeds=[0]), {})
    again, more = page.read_page_data(tmp_path / "page")
    assert again == rows
    assert [model["name"] for model in more["models"]] == ["alibi-seed0", "t5-seed0", "rope-seed0"]

    with pytest.raises(ValueError, match="is a page of recipe zoo, not zoo_tiny: give another results=DIR"):
        run_study(asked(recipe="zoo_tiny", results=str(tmp_path), encodings=["nope"], seeds=[0]))
