"""`lexbench anatomy`."""

import argparse
from dataclasses import replace
from typing import Any

from lexbench.commands import hydra_config, run
from lexbench.commands.command import CONFIG_DIR_HELP, RESUME_HELP, TASK_SETTING, Command, chosen_methods
from lexbench.core.errors import ConfigError

USUAL_ARMS = ("adjacent", "gap", "gap_unsunk", "near8", "near8_blind", "near64", "present", "present_4")
N_QUESTIONS = 96


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--arms",
        nargs="+",
        default=list(USUAL_ARMS),
        metavar="ARM",
        help=f"forms of the question (default: {' '.join(USUAL_ARMS)}); all: each of 25, of which those with a filler "
        "take most of the time",
    )
    parser.add_argument(
        "--haystack", default="text", choices=("text", "noise"), help="text around the key (default: text)"
    )


def call(options: argparse.Namespace, words: list[str]) -> int:
    """Measure the arms at every octave and the controls at the shortest, then write the page."""
    from lexbench.parts.anatomy import page
    from lexbench.parts.anatomy.arms import ARM_FORMS, CONTROL_FORMS
    from lexbench.parts.anatomy.contrasts import collect_cells
    from lexbench.runner.execute import execute_job
    from lexbench.store.store import Store

    arms = [word for word in options.arms if "=" not in word]
    config, choices = hydra_config.compose_config(COMMAND, [*words, *(word for word in options.arms if "=" in word)])
    arms = list(ARM_FORMS) if arms == ["all"] else arms
    if unknown := [each for each in arms if each not in ARM_FORMS]:
        raise ConfigError(f"--arms must be some of {', '.join(ARM_FORMS)}, or all, got {unknown[0]}: choose from these")
    config = {**config, "price": False, "n": config["n"] or N_QUESTIONS}
    if config["lengths"] is None and config["multiples"] is None:
        config["lengths"] = _octave_lengths(config["model"])
    methods, ids = chosen_methods(config, choices), set[str]()
    job: Any = None
    for forms, short in ((CONTROL_FORMS.values(), True), ((ARM_FORMS[each] for each in arms), False)):
        suite = [{"name": "anatomy", "haystack": options.haystack, **form} for form in forms]
        job = run.job_of({**config, "task": {"suite": suite}}, {**choices, "task": "anatomy"}, methods)
        # Of the texts of all lengths, so that controls are paired with arms.
        ids |= {cell.id for cell in execute_job(replace(job, lengths=job.lengths[:1]) if short else job)}
    if not ids:
        return 0
    # Cells of earlier commands are of the page, too: other arms, octaves, methods and seeds.
    found = collect_cells([each for each in Store(job.results).load() if _is_alike(each.cell, job, options.haystack)])
    if found.cells:
        written, lines = page.write(found, job.model.name, job.results)
        print("\n".join([*lines, "", str(written)]))
    return run.exit_code([(job.results, sorted(ids))])


def _is_alike(cell: Any, job: Any, haystack: str) -> bool:
    """Whether a cell may stand on one page with those of a job: of the same model, around the same kind of text."""
    same = (cell.model, cell.n, cell.identity["task"].get("haystack")) == (job.model.name, job.n, haystack)
    return same and cell.dtype == job.backend.get("dtype", cell.dtype)


def _octave_lengths(model: Any) -> list[int]:
    """Lengths of octaves from the greater of 64 tokens and 1/32 of the trained length to twice it."""
    from lexbench.checkpoints.checkpoint import read_model
    from lexbench.parts.anatomy.tasks.anatomy import FIXED_ROOM

    trained = read_model(model).trained_length
    first, octaves = max(64, trained // 32), []
    while 2 * first <= 2 * trained:
        first *= 2
        octaves.append(first + FIXED_ROOM)
    return octaves


COMMAND = Command(
    name="anatomy",
    heading="measure",
    help="what of a far key's loss is distance, neighbourhood, sink, filler and rivals",
    call=call,
    arguments=_arguments,
    settings=[each for each in run.MEASURING_SETTINGS if each.name != TASK_SETTING.name],
    config="run",
    epilog=f"{run.EXIT_CODE_HELP}{RESUME_HELP}{CONFIG_DIR_HELP}\n",
)
