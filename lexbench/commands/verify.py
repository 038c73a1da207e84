"""`lexbench verify`."""

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from lexbench.commands import hydra_config
from lexbench.commands.command import (
    BACKEND_SETTING,
    DEFAULT_CORPUS_SETTING,
    METHODS_SETTING,
    MODEL_SETTING,
    SWEEP_HELP,
    Command,
    Setting,
    checked_length,
    chosen_methods,
    group_config,
    split_settings,
)
from lexbench.core import parts
from lexbench.core.errors import ConfigError

if TYPE_CHECKING:
    from lexbench.runner.verify import MethodCheck


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--against",
        nargs="+",
        default=[],
        metavar="BACKEND",
        help="compare backend=NAME with these backends, token by token: NAME, or NAME,parameter=value",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def call(options: argparse.Namespace, words: list[str]) -> int:
    """Print the checks of each method, or the differences between backends; 1 if one fails."""
    if options.against:
        options.against, behind = split_settings(options.against)
        if not options.against:
            raise ConfigError(f"--against must name backends, got only {behind[0]}: e.g. --against native")
        return _compare_backends(options, [*words, *behind])
    if extra := [word for word in words if word.startswith(("n=", "seed=", "task", "corpus"))]:
        raise ConfigError(f"verify reads {extra[0]} with --against only: without it a random text is read")
    return _check_methods(options, words)


def _compare_backends(options: argparse.Namespace, words: list[str]) -> int:
    compare = parts.load_provided("verify", "against")
    others = [compare.backend_config_of_word(word) for word in options.against]
    if not any(word.startswith("task=") for word in words):  # the default task of a run takes longer than is needed
        words = [*words, "task=last_segment"]
    points: list[tuple[dict[str, Any], dict[str, str]]] = []
    hydra_config.run_jobs(COMMAND, lambda *point: points.append(point), words)
    if not points:  # --cfg job prints the settings, and runs nothing
        return 0
    found = compare.compare_backends(compare.job_of(points), others)
    print(json.dumps(found.as_data(), indent=1) if options.json else compare.agreement_table(found))
    return 1 if found.failed else 0


def _check_methods(options: argparse.Namespace, words: list[str]) -> int:
    from lexbench.checkpoints.checkpoint import read_model
    from lexbench.core.record import Refused
    from lexbench.methods.composition import read_method
    from lexbench.methods.scaled import attention_of
    from lexbench.runner import verify

    rows: list[tuple[str, int, list[verify.MethodCheck] | str]] = []

    def job(config: dict[str, Any], choices: dict[str, str]) -> None:
        from lexbench.backends import capabilities
        from lexbench.runner.backend_pool import backend_for_job

        model = read_model(config["model"])
        methods = [read_method(each) for each in chosen_methods(config, choices)]
        length = checked_length(config) or 2 * model.trained_length
        with backend_for_job(model, group_config(config, choices, "backend"), length) as backend:
            for _, method, key in methods:
                try:
                    if not capabilities(backend).verifiable:
                        raise Refused(f"{backend.name} shows no logits to verify: use backend=hf")
                    error = verify.verify_attention(backend, attention_of(method, model, length), length)
                    rows.append((str(key), length, error))
                except Refused as refusal:
                    rows.append((str(key), length, refusal.reason))

    hydra_config.run_jobs(COMMAND, job, words)
    if options.json:
        results = [
            {"refused": found} if isinstance(found, str) else {"checks": [asdict(c) for c in found]}
            for *_, found in rows
        ]
        heads = [{"method": label, "length": length} for label, length, _ in rows]
        print(json.dumps([{**head, **found} for head, found in zip(heads, results, strict=True)], indent=1))
    else:
        several = len({length for _, length, _ in rows}) > 1
        print(checks_table([(f"{label} at {length}" if several else label, found) for label, length, found in rows]))
    checked = [found for *_, found in rows if not isinstance(found, str)]
    if any(verify.failure_of_checks(found) for found in checked):
        return 1
    return 0 if checked else 3


def checks_table(found: Sequence[tuple[str, "Sequence[MethodCheck] | str"]]) -> str:
    """Methods by checks, and below why methods are refused."""
    from lexbench.report.formats import sheet_text
    from lexbench.report.grid import Grid, GridEntry, Line

    names = next((tuple(check.name for check in checks) for _, checks in found if not isinstance(checks, str)), ())
    marks = {True: "ok", False: "FAILED", None: "-"}
    head = ["method", *(names or ("checks",))]
    rows: list[Line] = [
        [label, GridEntry(text="refused", notes=(checks,)), *[""] * (len(head) - 2)]
        if isinstance(checks, str)
        else [label, *(f"{marks[check.passed]} {check.explanation}" for check in checks)]
        for label, checks in found
    ]
    return sheet_text([Grid(head=head, rows=rows)]).rstrip()


COMMAND = Command(
    name="verify",
    heading="measure",
    help="check that a method changes a model as it promises; exit code 1 if a check fails, 3 if all are refused",
    call=call,
    arguments=_arguments,
    settings=(
        *(MODEL_SETTING, METHODS_SETTING),
        Setting("task=NAME", "with --against: the task", default="last_segment"),
        Setting(
            "corpus=NAME", f"with --against: {DEFAULT_CORPUS_SETTING.help}", default=DEFAULT_CORPUS_SETTING.default
        ),
        BACKEND_SETTING,
        Setting("length=32768", "tokens of the text", default="twice the trained length"),
        Setting("n=2", "with --against: samples of a cell", default="2"),
        Setting("seed=0", "with --against: seed of the questions"),
    ),
    config="run",
    epilog=f"""\
Ask other backends the same questions, and compare their answers token by token:
  lexbench verify -m method=none,yarn length=512,1024 task=last_segment n=2 \\
    --against native vllm,memory_share=0.3

{SWEEP_HELP}""",
)
