"""`lexbench kv`."""

import argparse

from lexbench.commands import hydra_config, run
from lexbench.commands.command import (
    CONFIG_DIR_HELP,
    METHOD_SETTING,
    RESUME_HELP,
    Command,
    Setting,
    chosen_method,
    split_settings,
)
from lexbench.core.errors import ConfigError


def _arguments(parser: argparse.ArgumentParser) -> None:
    from lexbench.parts.kv.compressor import compressor_names

    parser.add_argument(
        "--settings",
        nargs="+",
        default=[],
        metavar="SETTING",
        help="parameters of the method kv, e.g. bits=4,rotate=hadamard keep=0.5,by=snapkv (default: the usual ones); "
        f"by is {' or '.join(compressor_names())}",
    )
    parser.add_argument(
        "--certify",
        type=float,
        metavar="NATS",
        help="say which settings are proven to diverge by less or by more, and what would decide the others: e.g. 0.01",
    )


def call(options: argparse.Namespace, words: list[str]) -> int:
    """Measure every setting, then print divergence, retrieval, bytes and what is proven."""
    from lexbench.core.registry import read_named_config
    from lexbench.methods.composition import read_method
    from lexbench.parts.kv import bytes_plot, settings, table
    from lexbench.runner.execute import execute_job
    from lexbench.store.store import Store

    if options.certify is not None and not options.certify > 0:
        raise ConfigError(f"--certify must be above 0 nats, got {options.certify}: e.g. --certify 0.01")
    asked, words = _split_words(options.settings, words)
    config, choices = hydra_config.compose_config(COMMAND, words)
    if not any(word.startswith("task=") for word in words):
        config["task"], choices["task"] = read_named_config("task", "kv"), "kv"
    config["price"] = False
    base = chosen_method(config, choices, COMMAND.name)
    methods = [base, *settings.methods(base, asked or settings.default_settings())]
    job = run.job_of(config, choices, methods)
    cells = execute_job(job)
    if cells:
        built = (read_method(each)[1:] for each in methods)
        empty = [table.row_of(key, method, job.model, max(job.lengths)) for method, key in built]
        rows = table.rows_of(Store(job.results).load({cell.id for cell in cells}), empty)
        print(table.page(rows, cells[0], job.model, list(job.lengths), options.certify))
        stem, margin = job.results / "kv_bytes", options.certify or table.DEFAULT_MARGIN_NATS
        if bytes_plot.plot_bytes(rows, cells[0], job.model, max(job.lengths), margin, stem):
            print(f"divergence against bytes: {stem}.svg, its numbers in {stem.name}.csv")
    return run.exit_code([(job.results, [cell.id for cell in cells])])


def _split_words(given: list[str], words: list[str]) -> tuple[list[str], list[str]]:
    """The settings of kv, and the words that are settings of the run: these stand behind `--settings`, too."""
    from lexbench.core.objects import class_of, class_parameters
    from lexbench.core.registry import read_named_config as read_yaml

    known = class_parameters(class_of(read_yaml("method", "kv"), "method"))
    asked = [word for word in given if word.partition("=")[0] in known]
    others = [word for word in given if word not in asked]
    names, behind = split_settings(others)
    if names:
        raise ConfigError(f"--settings must be parameters of kv, got {names[0]}: e.g. bits=4,rotate=hadamard")
    return asked, [*words, *behind]


KV_SETTINGS = {
    METHOD_SETTING.name: METHOD_SETTING,
    "task": Setting("task=divergence", "task or suite", default="kv: divergence, and questions behind a text"),
}
COMMAND = Command(
    name="kv",
    heading="measure",
    help="what a compressed cache of keys and values costs, by length",
    call=call,
    arguments=_arguments,
    settings=[KV_SETTINGS.get(each.name, each) for each in run.MEASURING_SETTINGS],
    config="run",
    epilog=f"{run.EXIT_CODE_HELP}{RESUME_HELP}{CONFIG_DIR_HELP}\n",
)
