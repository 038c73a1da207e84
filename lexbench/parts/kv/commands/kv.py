"""`lexbench kv`."""

import argparse

from lexbench.commands import hydra_config, run
from lexbench.commands.command import CONFIG_DIR, METHOD, RESUMES, Command, Setting, method_of, settings_apart
from lexbench.core.errors import ConfigError


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--settings",
        nargs="+",
        default=[],
        metavar="SETTING",
        help="parameters of the method kv, e.g. bits=4,rotate=hadamard keep=0.5,by=snapkv (default: twelve usual ones)",
    )
    parser.add_argument(
        "--certify",
        type=float,
        metavar="NATS",
        help="say which settings are proven to diverge by less or by more, and what would decide the others: e.g. 0.01",
    )


def call(options: argparse.Namespace, words: list[str]) -> int:
    """Measure every setting, then print divergence, retrieval, bytes and what is proven."""
    from lexbench.core.registry import read
    from lexbench.methods.composition import read_method
    from lexbench.parts.kv import settings, table
    from lexbench.parts.kv.methods.kv import Kv
    from lexbench.runner.execute import execute
    from lexbench.store.store import Store

    if options.certify is not None and not options.certify > 0:
        raise ConfigError(f"--certify must be above 0 nats, got {options.certify}: e.g. --certify 0.01")
    asked, words = _asked(options.settings, words)
    config, choices = hydra_config.composed(COMMAND, words)
    if not any(word.startswith("task=") for word in words):
        config["task"], choices["task"] = read("task", "kv"), "kv"
    config["price"] = False
    base = method_of(config, choices, COMMAND.name)
    methods = [base, *settings.methods(base, asked or settings.USUAL)]
    job = run.job_of(config, choices, methods)
    cells = execute(job)
    if cells:
        caches = {}
        for each in methods:
            _, built, key = read_method(each)
            kv = [part.compression() for part in getattr(built, "parts", (built,)) if isinstance(part, Kv)]
            caches[key] = kv[0] if kv else None
        rows = table.rows_of(Store(job.results).load({cell.id for cell in cells}), caches)
        print(table.page(rows, cells[0], job.model, list(job.lengths), options.certify))
    return run.exit_code([(job.results, [cell.id for cell in cells])])


def _asked(given: list[str], words: list[str]) -> tuple[list[str], list[str]]:
    """The settings of kv, and the words that are settings of the run: these stand behind `--settings`, too."""
    from lexbench.core.registry import class_of, parameters
    from lexbench.core.registry import read as read_yaml

    known = parameters(class_of(read_yaml("method", "kv"), "method"))
    asked = [word for word in given if word.partition("=")[0] in known]
    others = [word for word in given if word not in asked]
    names, behind = settings_apart(others)
    if names:
        raise ConfigError(f"--settings must be parameters of kv, got {names[0]}: e.g. bits=4,rotate=hadamard")
    return asked, [*words, *behind]


OWN = {
    METHOD.name: METHOD,
    "task": Setting("task=divergence", "task or suite", default="kv: divergence, and questions behind a text"),
}
COMMAND = Command(
    name="kv",
    help="what a compressed cache of keys and values costs, by length",
    call=call,
    arguments=_arguments,
    settings=[OWN.get(each.name, each) for each in run.MEASURED],
    config="run",
    epilog=f"{run.EXIT_CODE}{RESUMES}{CONFIG_DIR}\n",
)
