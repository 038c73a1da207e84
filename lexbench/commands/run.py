"""`lexbench run`."""

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lexbench.commands import hydra_config
from lexbench.commands.command import (
    BACKEND_SETTING,
    DEFAULT_CORPUS_SETTING,
    METHODS_SETTING,
    MODEL_SETTING,
    RESUME_HELP,
    SWEEP_HELP,
    TASK_SETTING,
    Command,
    Setting,
    check_switch,
    chosen_methods,
    group_config,
)
from lexbench.commands.setting_words import words_of_file
from lexbench.core.errors import ConfigError, FetchError
from lexbench.core.method_key import BASELINE_METHOD
from lexbench.core.record import NOTHING_MEASURED

if TYPE_CHECKING:
    from lexbench.runner.job import Job
    from lexbench.runner.stopping_rule import StoppingRule


SUITE_OF_OTHER_MODELS = "kinds"
"""Task of a run whose model is not the default one."""
DRY_RUN = "print the plan (cells, tokens, time, memory) and stop; needs no weights"


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dry-run", action="store_true", help=DRY_RUN)
    parser.add_argument(
        "--sweep",
        type=Path,
        metavar="FILE",
        help="a yaml with settings, and under `sweep` lists of values to run one job for each; settings behind it win",
    )


def call(options: argparse.Namespace, words: list[str]) -> int:
    """Measure the cells of each job, then print their tables; NOTHING_MEASURED where all cells are refused."""
    from lexbench.report import tables
    from lexbench.runner import progress
    from lexbench.stats.records import records_of
    from lexbench.store.store import Store

    if options.sweep:
        words = words_of_file(options.sweep, words)
    words = with_default_suite(words)
    measured: list[tuple[Path, list[str]]] = []
    measured_here: list[Path] = []
    wanted: list[bool | None] = []
    home = os.getpid()

    def job(config: dict[str, Any], choices: dict[str, str]) -> tuple[Path, list[str]]:
        from lexbench.runner.execute import execute_job
        from lexbench.runner.stopping_rule import stopping_of

        if os.getpid() != home:  # a launcher's process, one of several
            progress.disable_bar()
        check_switch("baseline", config["baseline"])
        methods = chosen_methods(config, choices)
        if config["baseline"] and hydra_config.is_first_job():
            methods = with_unmodified_model(methods, choices.get("backend"))
        wanted.append(checked_plots(config["plots"]))
        n, stopping = stopping_of(config["n"], config["n_max"], config["until"])
        asked = job_of({**config, "n": n}, choices, methods, stopping)
        cells = execute_job(asked, dry_run=config["dry_run"])
        measured_here.append(asked.results)
        return asked.results, [cell.id for cell in cells]

    if options.dry_run:  # a plan needs no other processes
        words = [*(word for word in words if not word.startswith(("hydra/launcher", "hydra.launcher"))), "dry_run=true"]
    try:
        with progress.shared_bar() as sweep:
            hydra_config.run_jobs(COMMAND, job, words, measured.append, lambda count: setattr(sweep, "jobs", count))
    finally:
        if len(measured_here) < len(measured):  # of parallel processes, the last to end may not have seen all cells
            for store in map(Store, dict(measured)):
                store.write_records(records_of)
        shown = tables.terminal_tables(measured)
        plots = len(measured) == 1 and (sys.stdout.isatty() if wanted[-1:] == [None] else any(wanted))
        if shown:
            print(shown)
        if shown and not plots:
            print(f"plots and all tables: lexbench report {' '.join(str(f) for f in dict(measured))}", file=sys.stderr)
    if shown and plots:
        print_plots(measured[0][0])
    return exit_code(measured)


def with_default_suite(words: list[str]) -> list[str]:
    """The words with the task of a model other than the default one, where they name such a model and no task."""
    from lexbench.core import registry

    chosen = {key: value for key, _, value in (word.partition("=") for word in words)}
    other = chosen.get("model", COMMAND.defaults()["model"]) != COMMAND.defaults()["model"]
    known = other and "task" not in chosen and SUITE_OF_OTHER_MODELS in registry.yaml_files("task")
    return [*words, f"task={SUITE_OF_OTHER_MODELS}"] if known else words


def with_unmodified_model(methods: Sequence[dict[str, Any]], backend: str | None) -> list[dict[str, Any]]:
    """The methods behind `none`; as they are where that is named, or where a server has a method of its own."""
    from lexbench.core import parts, registry

    [none] = BASELINE_METHOD.names
    if any(each["name"] == none for each in methods) or backend in parts.names_provided("server"):
        return list(methods)
    return [{**registry.read_named_config("method", none), "name": none}, *methods]


def checked_plots(value: Any) -> bool | None:
    """The setting `plots`; ConfigError unless it is true, false or null."""
    if value is not None and not isinstance(value, bool):
        raise ConfigError(f"plots must be true, false or null, got {value!r}: e.g. plots=false")
    return value


def print_plots(folder: Path) -> None:
    """Write the report of a run folder, and print its first sentence and the paths of its figures."""
    from lexbench.report.report import first_of, write_report

    page = write_report([folder])
    for line in dict.fromkeys([*first_of(page), *map(str, sorted((page.parent / "plots").glob("*.svg")))]):
        print(line, file=sys.stderr)


def exit_code(measured: Sequence[tuple[Path, Sequence[str]]]) -> int:
    """NOTHING_MEASURED, and a line that says why, where all cells of these folders are refused; else 0."""
    from lexbench.core.text import count_with_noun, join_first_few
    from lexbench.store.store import Store

    reasons = []
    for folder, ids in measured:
        for name in ids:  # one by one: the first cell of a usual run ends the search
            for found in Store(folder).load({name}):
                if found.refused is None:  # measured now or before
                    return 0
                reasons.append(found.refused)
    if not reasons:  # a plan, or printed settings
        return 0
    said = join_first_few([*dict.fromkeys(reasons)], 1)
    print(f"lexbench: nothing was measured, {count_with_noun(len(reasons), 'cell')} refused: {said}", file=sys.stderr)
    return NOTHING_MEASURED


def job_of(
    config: dict[str, Any],
    choices: dict[str, str],
    methods: Sequence[dict[str, Any]],
    stopping: "StoppingRule | None" = None,
) -> "Job":
    """The job of a composed config, with the configs of its methods."""
    from lexbench.checkpoints.checkpoint import facts_suffice, read_known_model, read_model
    from lexbench.runner.job import Job

    check_switch("dry_run", config["dry_run"])
    model: Any = config["model"]
    try:
        model = read_model(model)
    except FetchError:
        # A plan needs no weights: facts in the yaml are enough where the checkpoint cannot be reached.
        if not (config["dry_run"] and facts_suffice(model)):
            raise
        model = read_known_model(model)
    seed = config["seed"]
    same = ("lengths", "multiples", "n", "results", "reuse", "stop_after_collapse", "price", "executor", "ray")
    return Job.of(
        model=model,
        methods=methods,
        tasks=[group_config(config, choices, "task")],
        corpus=group_config(config, choices, "corpus"),
        backend=group_config(config, choices, "backend"),
        seeds=seed if isinstance(seed, list) else [seed],
        stopping=stopping,
        **{name: config[name] for name in same},
    )


EXIT_CODE_HELP = "Exit code 3 if nothing was measured, because all cells are refused.\n"
MEASURING_SETTINGS = (
    *(MODEL_SETTING, METHODS_SETTING, TASK_SETTING, DEFAULT_CORPUS_SETTING, BACKEND_SETTING),
    Setting("lengths=[512,1024]", "lengths in tokens", default="set by multiples"),
    Setting(
        "multiples=[0.5,1,2]",
        "lengths as multiples of the trained length",
        default="those of the suite, else [0.5,1,2,4,8]",
    ),
    Setting("n=32", "samples of a cell", default="that of the suite, else 32"),
    Setting("seed=0", "seed of the questions; seed=[0,1,2] takes several"),
    Setting("results=DIR", "folder of the run", default="runs/MODEL"),
)
"""Settings of commands that measure."""
DEFAULT_TASK_HELP = f"demo; of a model that you name {SUITE_OF_OTHER_MODELS}, a task of each kind"
RUN_HELP = {
    TASK_SETTING.name: {"default": DEFAULT_TASK_HELP},
    "n": {"help": "samples of a cell; auto: as many as decide each method against none (docs/scale.md)"},
}
"""What `run` says otherwise of settings that other commands have, too."""
COMMAND = Command(
    name="run",
    heading="everybody",
    help="measure a model with a method on tasks, over several lengths",
    call=call,
    own_progress=True,
    arguments=_arguments,
    settings=(
        *(replace(each, **RUN_HELP.get(each.name, {})) for each in MEASURING_SETTINGS),
        Setting("n_max=256", "questions of a cell with n=auto, at most: 8, 12, 16, 24, ...", default="256"),
        Setting(
            "until=0.02",
            "with n=auto, difference that does not matter, in nats per token or as a share of right answers",
            default="0.02, the tolerance of check",
        ),
        Setting("reuse=false", "take nothing from earlier answers; the numbers are the same up to rounding"),
        Setting("stop_after_collapse=true", "skip the longer lengths of a method once it fails (docs/scale.md)"),
        Setting(
            "price=false",
            "without the price cells: at the longest length within the trained one, a method that follows the length, "
            "set as for the longest length (docs/reading.md)",
        ),
        Setting(
            "baseline=false",
            "without the unmodified model, which is measured beside the methods unless they are a server's, or this is "
            "a later job of -m",
        ),
        Setting(
            "plots=true",
            "write the report with its figures at the end; false: never",
            default="where one run prints to a terminal",
        ),
        Setting("executor=ray", "measure the cells on the workers of a Ray cluster (docs/scale.md)"),
        Setting(
            "ray.workers=4",
            "with executor=ray: address, workers, cpus, gpus, memory_gb, tries, patience (docs/scale.md)",
        ),
        Setting("dry_run=true", "the same as --dry-run"),
    ),
    epilog=f"{EXIT_CODE_HELP}{RESUME_HELP}{SWEEP_HELP}",
)
