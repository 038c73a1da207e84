"""The command line, a subcommand each."""

import argparse
import errno
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from lexbench.commands import arguments, hydra_config
from lexbench.core import registry
from lexbench.core.method import read_method
from lexbench.core.record import Refused


def main(given: Sequence[str] | None = None) -> int:
    """Run one command; 0 done, 2 wrong input (said in one line), 130 interrupted."""
    words = list(sys.argv[1:] if given is None else given)
    if words[:1] == ["-sc"]:
        return _complete(words)
    options, rest = arguments.parser(COMMANDS).parse_known_args(words)
    try:
        return int(options.command(options, rest))
    except KeyboardInterrupt:
        print("\nlexbench: interrupted; all that was measured is kept, the same command goes on", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of our output has gone: `lexbench list | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (ValueError, Refused, OSError, MemoryError) as error:
        if os.environ.get("LEXBENCH_TRACEBACK"):
            raise
        print(f"lexbench: {_one_line(error)}", file=sys.stderr)
        return 2


def _one_line(error: Exception) -> str:
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return f"disk full while writing {error.filename or 'results'}: free space, then run the same command again"
    if isinstance(error, MemoryError):
        return "out of memory; all that was measured is kept: run the same command with fewer processes, or elsewhere"
    if isinstance(error, OSError) and error.errno in (errno.EACCES, errno.EROFS, errno.EPERM):
        return f"{error.filename} is not ours to write or read ({error.strerror}): change that, or give another place"
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: {error.filename}"
    return _short(" ".join(str(error).split()))


def _short(line: str, most: int = 1000) -> str:
    """A line that a terminal can show, whatever a file or a setting put into it."""
    return line if len(line) <= most else f"{line[: most - 4]} ..."


def _run(options: argparse.Namespace, words: list[str]) -> int:
    from lexbench.runner.backend_pool import sharing
    from lexbench.stats import tables
    from lexbench.stats.records import records_of
    from lexbench.store.store import Store

    measured: list[tuple[Path, list[str]]] = []
    measured_here: list[Path] = []

    def job(config: dict[str, Any], choices: dict[str, str]) -> tuple[Path, list[str]]:
        from lexbench.runner.execute import execute
        from lexbench.runner.job import Job

        asked = _job(Job.of, config, choices)
        cells = execute(asked, dry_run=config["dry_run"])
        measured_here.append(asked.results)
        return asked.results, [cell.id for cell in cells]

    if options.dry_run:  # a plan needs no cluster
        words = [*(word for word in words if not word.startswith(("hydra/launcher", "hydra.launcher"))), "dry_run=true"]
    try:
        with sharing():
            hydra_config.jobs("run", job, hydra_config.arguments("run", words), measured.append)
    finally:
        if len(measured_here) < len(measured):  # of processes side by side, the last to end may not know all cells
            for store in map(Store, dict(measured)):
                store.write_records(records_of)
        shown = tables.terminal(measured)
        if shown:
            print(shown)
            print(f"plots and all tables: lexbench report {' '.join(str(f) for f in dict(measured))}", file=sys.stderr)
    return 0


def _job(of: Callable[..., Any], config: dict[str, Any], choices: dict[str, str]) -> Any:
    """A job from hydra's config."""

    def part(group: str) -> dict[str, Any]:
        return {**(config[group] or {}), "name": choices[group]}

    seed = config["seed"]
    return of(
        model=config["model"],
        methods=[part("method")],
        tasks=[part("task")],
        corpus=part("corpus"),
        backend=part("backend"),
        lengths=config["lengths"],
        multiples=config["multiples"],
        n=config["n"],
        seeds=seed if isinstance(seed, list) else [seed],
        results=config["results"],
        **{key: config[key] for key in ("reuse", "stop_after_collapse", "executor", "ray") if key in config},
    )


def _report(options: argparse.Namespace, words: list[str]) -> int:
    from lexbench.report.report import write_report

    _no_more(words)
    print(write_report(options.runs, options.out))
    if options.html:
        from lexbench.report.page.page import write_page

        print(write_page(options.runs, options.out and options.out / "report.html"))
    return 0


def _view(options: argparse.Namespace, words: list[str]) -> int:
    from lexbench.report.view import serve

    _no_more(words)
    serve(options.runs, options.port)
    return 0


def _leaderboard(options: argparse.Namespace, words: list[str]) -> int:
    from lexbench.core.files import write_text
    from lexbench.report.leaderboard.leaderboard import leaderboard

    _no_more(words)
    if options.out and options.out.is_dir():
        raise ValueError(f"--out {options.out} is a folder: give a file, e.g. --out {options.out / 'leaderboard.md'}")
    choices = (options.rows, options.columns, options.task, options.format, options.published)
    text = leaderboard(options.runs, *choices, options.rule, options.margin)
    if options.out:
        write_text(options.out, text)
    print(options.out or text)
    return 0


def _compare(options: argparse.Namespace, words: list[str]) -> int:
    from lexbench.report.check import comparison

    _no_more(words)
    sides = {"select_a": options.only_a, "select_b": options.only_b}
    print(comparison.command(options.a, options.b, **sides, as_data=options.json))
    return 0


def _check(options: argparse.Namespace, words: list[str]) -> int:
    from lexbench.report.check import formats

    _no_more(words)
    said, code = formats.command(
        options.runs,
        options.baseline,
        tolerance=options.tolerance,
        update=options.update,
        junit_file=options.junit,
        markdown_file=options.markdown,
        github=options.github,
        as_data=options.json,
    )
    print(said)
    return code


def _share(options: argparse.Namespace, words: list[str]) -> int:
    from lexbench.integrations.hub import share

    _no_more(words)
    chosen = {"tasks": options.task, "methods": options.method}
    said, notes = share.command(options.runs, card=options.card, samples=options.samples, **chosen)
    print(said)
    for note in notes:
        print(f"lexbench: {note}", file=sys.stderr)
    return 0


def _import(options: argparse.Namespace, words: list[str]) -> int:
    from lexbench.integrations.lm_eval.results import command

    _no_more(words)
    facts = {"trained_length": options.trained_length, "length": options.length, "tokenizer": options.tokenizer}
    said, code = command.command(options.results, options.into, **facts)
    print(said)
    return code


def _tune(options: argparse.Namespace, words: list[str]) -> int:
    def job(config: dict[str, Any], choices: dict[str, str]) -> None:
        from lexbench.core.checkpoint import read_model
        from lexbench.studies.tune.page import ranking
        from lexbench.studies.tune.tune import tune

        result = tune(
            model=read_model(config["model"]),
            corpus={**config["corpus"], "name": choices["corpus"]},
            backend={**(config["backend"] or {}), "name": choices["backend"]},
            settings=_asked("tune", "lexbench.studies.tune.settings.Settings", config),
        )
        print(ranking(result))
        print(result.file)

    hydra_config.jobs("tune", job, hydra_config.arguments("tune", words))
    return 0


def _show(options: argparse.Namespace, words: list[str]) -> int:
    import json

    from lexbench.core.checkpoint import read_known_model
    from lexbench.report.show import table

    config, choices = hydra_config.composed("show", words)
    model = read_known_model(config["model"])
    _, method, label = read_method({**config["method"], "name": choices["method"]})
    length = _length(config) or model.trained_length
    shown = (model, label, method.attention(model, length), length)
    if options.plot:
        from lexbench.report.show import plots

        plots.plot(*shown, options.plot)
        print(options.plot)
    else:
        print(json.dumps(table.as_data(*shown), indent=1) if options.json else table.table(*shown))
    return 0


def _export(options: argparse.Namespace, words: list[str]) -> int:
    import json

    from lexbench.core.checkpoint import read_known_model
    from lexbench.methods import export

    config, choices = hydra_config.composed("export", words)
    model = read_known_model(config["model"])
    _, method, label = read_method({**config["method"], "name": choices["method"]})
    length = _length(config)
    if length is None:
        raise ValueError("export needs the tokens in use, prompt and answer: give length=32768")
    asked = (method, label, model, length, options.to)
    print(json.dumps(export.as_data(*asked), indent=1) if options.json else export.export(*asked))
    return 0


def _search(options: argparse.Namespace, words: list[str]) -> int:
    def job(config: dict[str, Any], choices: dict[str, str]) -> None:
        from lexbench.core.checkpoint import read_model
        from lexbench.studies.longrope_search.search import find

        result = find(
            model=read_model(config["model"]),
            corpus=registry.build(config["corpus"], "corpus"),
            backend={**(config["backend"] or {}), "name": choices["backend"]},
            length=_length(config),
            out=config["out"],
            n=config["n"],
            settings=_asked("search", "lexbench.studies.longrope_search.evolution.Settings", config),
        )
        print(result.table())
        print(result.file)

    hydra_config.jobs("search", job, hydra_config.arguments("search", words))
    return 0


def _asked(command: str, target: str, config: dict[str, Any]) -> Any:
    """The settings of a command, as its class has them."""
    built = {"_target_": target}
    names = registry.parameters(registry.class_of(built, command))
    return registry.build({**built, **{name: config[name] for name in names}}, command)


def _score(options: argparse.Namespace, words: list[str]) -> int:
    from lexbench.taskkit import longbench

    _no_more(words)
    print(longbench.score_folder(options.folder, options.e, options.buckets, options.similarity, options.json))
    return 0


def _keys(options: argparse.Namespace, words: list[str]) -> int:
    def job(config: dict[str, Any], choices: dict[str, str]) -> None:
        from lexbench.core.checkpoint import read_model
        from lexbench.studies.find_key_tokens import find

        found = find(
            model=read_model(config["model"]),
            method={**(config["method"] or {}), "name": choices["method"]},
            corpus=registry.build(config["corpus"], "corpus"),
            backend={**(config["backend"] or {}), "name": choices["backend"]},
            **{name: config[name] for name in hydra_config.SETTINGS["keys"][1]},
        )
        print(f"{found.count} of {found.tokens} tokens in {len(found.spans)} documents are key tokens ({found.hash})")
        print(config["out"])

    hydra_config.jobs("keys", job, hydra_config.arguments("keys", words))
    return 0


def _verify(options: argparse.Namespace, words: list[str]) -> int:
    if options.against:
        return _parity(options, words)
    if extra := [word for word in words if word.startswith(("n=", "seed=", "task", "corpus"))]:
        raise ValueError(f"verify reads {extra[0]} with --against only: without it a random text is read")
    return _prove(options, words)


def _parity(options: argparse.Namespace, words: list[str]) -> int:
    import json

    from lexbench.studies.parity import compare

    others = [compare.against(word) for word in options.against]
    asked: list[tuple[dict[str, Any], dict[str, str]]] = []
    hydra_config.jobs("run", lambda *point: asked.append(point), hydra_config.arguments("verify", _with_task(words)))
    if not asked:  # --cfg job shows the settings, and runs nothing
        return 0
    found = compare.compare(compare.job_of(asked), others)
    print(json.dumps(found.as_data(), indent=1) if options.json else compare.table(found))
    return 1 if found.failed else 0


def _with_task(words: list[str]) -> list[str]:
    """Of likelihoods, where no task is named: a run's usual tasks are more than it takes to compare backends."""
    named = any(word.startswith("task=") for word in words)
    return words if named else [*words, "task=last_segment"]


def _prove(options: argparse.Namespace, words: list[str]) -> int:
    import json
    from dataclasses import asdict

    from lexbench.core.checkpoint import read_model
    from lexbench.runner import verify

    rows: list[tuple[str, int, list[verify.Check] | str]] = []

    def job(config: dict[str, Any], choices: dict[str, str]) -> None:
        from lexbench.backends import capabilities
        from lexbench.runner.backend_pool import opened

        model = read_model(config["model"])
        _, method, label = read_method({**config["method"], "name": choices["method"]})
        length = _length(config) or 2 * model.trained_length
        backend = opened(model, {**config["backend"], "name": choices["backend"]}, length)
        try:
            if not capabilities(backend).verifiable:
                raise Refused(f"{backend.name} shows no logits to verify: use backend=hf")
            rows.append((label, length, verify.verify(backend, method.attention(model, length), length)))
        except Refused as refusal:
            rows.append((label, length, refusal.reason))

    hydra_config.jobs("run", job, hydra_config.arguments("verify", words))
    if options.json:
        said = [
            {"refused": found} if isinstance(found, str) else {"checks": [asdict(c) for c in found]}
            for *_, found in rows
        ]
        heads = [{"method": label, "length": length} for label, length, _ in rows]
        print(json.dumps([{**head, **found} for head, found in zip(heads, said, strict=True)], indent=1))
    else:
        several = len({length for _, length, _ in rows}) > 1
        print(verify.table([(f"{label} at {length}" if several else label, found) for label, length, found in rows]))
    return 1 if any(not isinstance(found, str) and verify.failure(found) for *_, found in rows) else 0


def _length(config: dict[str, Any]) -> int | None:
    """The setting `length`; ValueError unless it is left out or a whole number of tokens."""
    length = config["length"]
    if length is not None and (isinstance(length, bool) or not isinstance(length, int) or length < 1):
        raise ValueError(f"length must be a whole number of at least 1 token, got {length}: e.g. length=32768")
    return length


def _lm_eval(options: argparse.Namespace, words: list[str]) -> int:
    from lexbench.integrations import lm_eval

    return lm_eval.main(words)


def _list(options: argparse.Namespace, words: list[str]) -> int:
    flags, given = hydra_config.split(words)
    _no_more([*flags, *given])
    for group in [options.group] if options.group else registry.GROUPS:
        print(f"{group}:")
        names = registry.names(group)
        for name in names:
            print(f"  {name:{max(map(len, names))}} {registry.summary(group, name)}".rstrip())
    return 0


def _convert(options: argparse.Namespace, words: list[str]) -> int:
    from lexbench.native.foreign import convert

    _no_more(words)
    if not options.folder.is_dir():
        raise ValueError(f"convert needs a folder on disk, {options.folder} is none: give one that lexbench train made")
    print(f"{options.into}: {convert(options.folder, options.into)}")
    return 0


def _train(options: argparse.Namespace, words: list[str]) -> int:
    def job(config: dict[str, Any], choices: dict[str, str]) -> None:
        from lexbench.native.train import Job, Prepared, train

        named = {"name": choices["encoding"]} if choices.get("encoding") else {}
        unseen = config["corpora"] if config["held_out"] is None else config["held_out"]
        asked = Job(
            recipe=registry.build(config["recipe"], "recipe"),
            corpora=_texts(config["corpora"], "train", "corpora"),
            held_out=_texts(unseen, "test", "corpora" if config["held_out"] is None else "held_out"),
            encoding={**(config.get("encoding") or {}), **named},
            start=config["start"],
            method={**(config["method"] or {}), "name": choices["method"]},
            command=shlex.join(["lexbench", "train", *words]),
        )
        prepared = Prepared(asked)
        out = Path(config["out"] or Path("runs", "trained", choices["recipe"], prepared.name))
        train(prepared, out)
        print(out)

    hydra_config.jobs("train", job, hydra_config.arguments("train", words))
    return 0


def _suite(options: argparse.Namespace, words: list[str]) -> int:
    codes: list[int] = []

    def job(config: dict[str, Any], choices: dict[str, str]) -> None:
        from lexbench.studies.encodings import study

        codes.append(study.run(study.read(config, choices["suite"]), options.dry_run))

    hydra_config.jobs("suite", job, hydra_config.arguments("suite", [f"suite={options.suite}", *words]))
    return max(codes, default=0)


def _texts(entries: Any, split: str, setting: str) -> list[Any]:
    """Corpora, each by name or by name and parameters; their train or test split where they have splits."""
    if not isinstance(entries, list) or not entries:
        raise ValueError(f"{setting} must be a list of corpora, got {entries!r}: e.g. [stdlib,pydoc]")
    found = []
    for entry in entries:
        given = {"name": entry} if isinstance(entry, str) else entry
        if not isinstance(given, dict) or not isinstance(given.get("name"), str):
            raise ValueError(
                f"{setting} has names, or names and parameters, got {entry!r}: e.g. {{name: files, path: a}}"
            )
        own = {key: value for key, value in given.items() if key != "name"}
        found.append(registry.build({**registry.read("corpus", given["name"]), **own}, "corpus", split=split))
    return found


def _no_more(words: list[str]) -> None:
    if words:
        raise ValueError(f"unexpected argument {words[0]}: see --help")


COMMANDS: dict[str, arguments.Command] = {
    "run": _run,
    "report": _report,
    "view": _view,
    "leaderboard": _leaderboard,
    "compare": _compare,
    "check": _check,
    "share": _share,
    "import": _import,
    "lm_eval": _lm_eval,
    "tune": _tune,
    "show": _show,
    "verify": _verify,
    "export": _export,
    "convert": _convert,
    "search": _search,
    "list": _list,
    "train": _train,
    "suite": _suite,
    "score": _score,
    "keys": _keys,
}


def _complete(words: list[str]) -> int:
    """Shell completion: our commands, then hydra's completion of their settings."""
    line = os.environ.get("COMP_LINE", "")
    before, _, rest = line.partition(" ")
    command, space, _ = rest.lstrip().partition(" ")
    if words[1:2] == ["query=bash"] and not space:
        print(" ".join(name for name in COMMANDS if name.startswith(command)))
        return 0
    if space:
        os.environ["COMP_LINE"] = f"{before} {rest.lstrip()[len(command) + 1 :]}"
        os.environ["COMP_POINT"] = str(len(os.environ["COMP_LINE"]))
    own = command if command in ("train", "search", "keys", "tune", "suite") else "run"
    hydra_config.jobs(own, lambda config, choices: None, words)
    return 0
