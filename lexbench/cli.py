"""The command line, a subcommand each."""

import argparse
import errno
import itertools
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from lexbench import __version__, assets, compose, settings
from lexbench.record import Refused

OVERRIDES = """\
settings are written as key=value, in hydra's grammar:
  model=NAME method=NAME task=NAME corpus=NAME backend=NAME   a name of the registry (lexbench list)
  method.factor=8  task.targets=64  model.path=DIR            a parameter of one of them
  task=[last_segment,passkey]                                 several tasks
  method=[yarn,log_n]                                         several methods at once
  lengths=[512,1024] | multiples=[0.5,1,2]                    tokens | multiples of the trained length
  n=32 seed=0 results=DIR                                     samples a cell, seed, folder of the run
hydra's own flags pass through: -m method=none,yarn (one job each), -m 'method=glob(*)' (all of them), --config-dir DIR,
--cfg job, hydra/launcher=joblib
"""
SIDES = """\
the same questions are paired, whatever else differs:
  lexbench compare runs/x runs/x --a method=none --b method=yarn
  lexbench compare runs/before runs/after
"""
SHARING = """\
nothing is uploaded; of many methods a card shows only none, unless --method names others:
  lexbench share runs/x --card README.md --method yarn --samples shared
"""
IMPORTING = """\
what lm_eval wrote to its --output_path with --log_samples becomes cells of a run folder, under their own protocol:
  lexbench import lm_eval out/model --into runs/imported --trained-length 4096 --length 4096
"""
TUNING = """\
settings are written as key=value, in hydra's grammar:
  model=NAME corpus=NAME backend=NAME   a name of the registry (lexbench list)
  model.path=DIR backend.dtype=float32  a parameter of one of them
  length=32768                          tokens in use, prompt and answer, above the trained length
  budget=30min | 2h | 90s | 40          a time, that of earlier commands counted, or a number of candidates
  out=DIR                               folder; the same command goes on there
  price=0.02                            nats per token that may be lost inside the trained length, against none
  worth=1                               nats per token that finding all needles is worth; 0: only the text counts
  methods=[yarn,ntk]                    what is tried (default: all that change frequencies or distances, hide no key)
  n=32 first=4                          questions of the last rung, and fresh ones of each finalist | of the first rung
  eta=2                                 one in eta goes on to the next rung, to eta times as many questions
  seed=0                                of draws and questions; fresh questions have the next one
  nll=last_segment                      the task whose likelihood counts
  needles=[needle,passkey]              the first that the model can do inside its trained length counts
  space.yarn.beta_fast.low=16           what is drawn of a method's parameter; of another one +space.pi.factor=[4,8]
  common.factor.high=2                  the same for every method that has such a parameter
"""
TRAINING = """\
settings are written as key=value, in hydra's grammar:
  recipe=NAME encoding=NAME           a name of the registry (lexbench list)
  recipe.trained_length=128 recipe.seed=1 encoding.base=500000
  recipe.shape.layers=2               sizes: layers, width, heads, kv_heads, hidden, block=llama|gpt
  encoding.over={name:kerple,form:power}   an encoding around another one
  corpora=[stdlib,pydoc] held_out=[...]    texts, and those of the held-out loss
  out=DIR                             default: runs/trained/RECIPE/ENCODING[-METHOD]-seedS
  start=DIR recipe=finetune           go on from a trained folder: its sizes, tokenizer, weights and encoding
  method=pi method.factor=8           with start: train under a method's frequencies
one training each: -m encoding=rope,alibi,xpos recipe.seed=0,1,2
"""
SUITE = """\
every training and evaluation is a process of its own; the same command goes on where it stopped:
  results=DIR                   models, runs and page (default: runs/NAME)
  encodings=[rope,alibi]        entries of configs/suite/NAME.yaml; finetuned=true: those trained further, too
  seeds=[0,1,2] workers=2       of the trainings | processes at once, which share the cores
  tasks=[last_segment] methods=[none,bca] multiples=[0.5,1,2,4] n=16
  suite.recipe=zoo_tiny         another recipe for all
"""
AT_LENGTH = """\
settings are written as key=value, in hydra's grammar:
  model=NAME method=NAME            a name of the registry (lexbench list)
  method.factor=8  model.path=DIR   a parameter of one of them
  method=[yarn,log_n]               several methods at once
  length=32768                      """
AGAINST = """\
other backends asked the same questions, compared token by token:
  lexbench verify -m method=none,yarn length=512,1024 task=last_segment n=2 --against native vllm,memory_share=0.3
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; 0 done, 2 wrong input (said in one line), 130 interrupted."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words[:1] == ["-sc"]:
        return _complete(words)
    options, rest = _parser().parse_known_args(words)
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


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, as everything here does."""

    def error(self, message: str) -> NoReturn:
        """Exit with 2."""
        self.exit(2, f"lexbench: {' '.join(message.split())}: see {self.prog} --help\n")


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="lexbench",
        description="How does a language model's quality change with length, under any positional method?",
        epilog='completion: eval "$(lexbench -sc install=bash)". LEXBENCH_TRACEBACK=1 shows where an error arose.',
    )
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(name: str, command: Callable[..., int], text: str, epilog: str = "") -> argparse.ArgumentParser:
        added = commands.add_parser(
            name, help=text, description=text, epilog=epilog, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        added.set_defaults(command=command)
        return added

    run = add("run", _run, "measure a model under a method on tasks over lengths", OVERRIDES)
    run.add_argument("--dry-run", action="store_true", help="print the plan (cells, tokens, time, memory) and stop")
    report = add("report", _report, "tables and plots from run folders, without a model")
    report.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="run folder, or a folder of run folders")
    report.add_argument("--out", type=Path, help="where to write (default: RUN/report)")
    report.add_argument("--html", action="store_true", help="one self-contained page, with curves and samples, besides")
    view = add("view", _view, "serve a results folder on this machine, with the progress of a run that goes on")
    view.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="run folder, or a folder of run folders")
    view.add_argument("--port", type=int, default=8000, help="0: any that is free (default: 8000)")
    board = add("leaderboard", _leaderboard, "rank methods or models, with what cannot be told from the best")
    board.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="run folder, or a folder of run folders")
    board.add_argument("--rows", choices=("method", "model"), default="method")
    board.add_argument("--columns", choices=("length", "summary"), default="length")
    board.add_argument(
        "--rule",
        choices=("monotone", "any", "fixed"),
        default="monotone",
        help="of the effective length; fixed: RULER's",
    )
    board.add_argument("--margin", type=float, help="of the effective length: nats of likelihoods, points of scores")
    board.add_argument("--task", nargs="+", default=[], metavar="NAME", help="of these tasks only")
    board.add_argument("--format", choices=("markdown", "csv", "latex", "json", "html"), default="markdown")
    board.add_argument(
        "--published",
        nargs="+",
        default=[],
        metavar="TABLE",
        help="tables from papers, below, under their own protocol",
    )
    board.add_argument("--out", type=Path, metavar="FILE", help="write there (default: print)")
    sides = add("compare", _compare, "paired differences of two runs, methods, models, versions or backends", SIDES)
    sides.add_argument("a", type=Path, metavar="A", help="run folder: the baseline")
    sides.add_argument("b", type=Path, metavar="B", help="run folder: what is compared with it")
    sides.add_argument("--a", nargs="+", dest="only_a", default=[], metavar="KEY=VALUE", help="of A only these cells")
    sides.add_argument("--b", nargs="+", dest="only_b", default=[], metavar="KEY=VALUE", help="of B only these cells")
    sides.add_argument("--json", action="store_true", help="as data")
    gate = add("check", _check, "the gate for CI: is a run worse than a baseline? exit code 1 where it is")
    gate.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="run folder, or a folder of run folders")
    gate.add_argument("--baseline", required=True, type=Path, metavar="FILE", help="made by --update, and committed")
    gate.add_argument("--update", action="store_true", help="write the baseline instead")
    gate.add_argument(
        "--tolerance",
        nargs="+",
        default=[],
        metavar="METRIC=LOSS",
        help="what may be lost: nats per token, or points of a score: nll=0.02 accuracy=2",
    )
    gate.add_argument("--junit", type=Path, metavar="FILE", help="write JUnit XML there")
    gate.add_argument("--markdown", type=Path, metavar="FILE", help="write a summary there")
    gate.add_argument("--github", action="store_true", help="print annotations of GitHub Actions, too")
    gate.add_argument("--json", action="store_true", help="as data")
    given = add("share", _share, "results for others: a model card's block, and samples as a dataset", SHARING)
    given.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="run folder, or a folder of run folders")
    given.add_argument("--card", metavar="FILE", help="put the results into this model card; -: print them")
    given.add_argument("--samples", type=Path, metavar="DIR", help="write the samples there, as datasets load them")
    given.add_argument("--task", nargs="+", default=[], metavar="NAME", help="of these tasks only")
    given.add_argument("--method", nargs="+", default=[], metavar="NAME", help="of these methods only")
    foreign = add("import", _import, "results of another harness become cells of a run folder", IMPORTING)
    foreign.add_argument("harness", choices=("lm_eval",))
    foreign.add_argument("results", nargs="+", type=Path, metavar="RESULTS", help="results_*.json, or a folder of them")
    foreign.add_argument("--into", required=True, type=Path, metavar="DIR", help="run folder")
    foreign.add_argument("--trained-length", type=int, metavar="N", help="tokens, where the results do not say")
    foreign.add_argument("--length", type=int, metavar="N", help="tokens in use, where neither task nor model says")
    foreign.add_argument("--tokenizer", metavar="DIR", help="counts the tokens of the prompts: a folder or hub name")
    add(
        "tune",
        _tune,
        "which method, with which parameters, for this model at this length? the same command goes on",
        TUNING,
    )
    show = add(
        "show",
        _show,
        "what a method does to a model at one length",
        AT_LENGTH + "tokens in use (default: the trained length)\n",
    )
    form = show.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="as data")
    form.add_argument("--plot", type=Path, metavar="FILE", help="as a picture, .png or .svg")
    add(
        "search",
        _search,
        "find LongRoPE's factors for a model and a length, guided by perplexity; the same command goes on",
        "settings: model=NAME length=2048 out=mine/method/NAME.yaml n=4 corpus=NAME rule=longrope2 iterations=40\n",
    )
    score = add(
        "score",
        _score,
        "official scores of published predictions, without a model",
        "DIR holds DATASET.jsonl as LongBench's pred.py writes them: pred, answers, all_classes, length a line\n",
    )
    score.add_argument("benchmark", choices=("longbench",))
    score.add_argument("folder", type=Path, metavar="DIR", help="of predictions, LongBench's or LongBench-E's")
    score.add_argument(
        "--e",
        action=argparse.BooleanOptionalAction,
        help="LongBench-E, by its buckets (default: where DIR or its parent is named ..._e)",
    )
    score.add_argument(
        "--buckets",
        type=_bounds,
        metavar="4000,8000",
        help="bounds of the stored lengths, in words, by which to part the examples",
    )
    score.add_argument("--similarity", choices=("difflib", "levenshtein"), default="difflib", help="of code")
    score.add_argument("--json", action="store_true", help="data set to score, or to bucket to score")
    add(
        "keys",
        _keys,
        "find the key tokens of a corpus with an evaluator model, for task=long_ppl; the same command goes on",
        "settings: model=EVALUATOR method=NAME corpus=NAME out=FILE.jsonl longest=8192 short=1024 n=50\n",
    )
    give = add(
        "export",
        _export,
        "what to paste into a deployment, so that it runs a model under a method",
        AT_LENGTH + "tokens in use, prompt and answer\n",
    )
    give.add_argument(
        "--to", required=True, choices=("transformers", "vllm", "llama.cpp"), help="what serves the model"
    )
    give.add_argument("--json", action="store_true", help="as data")
    turn = add(
        "convert",
        _convert,
        "a trained folder as an ordinary architecture of transformers: Llama, SmolLM3, MPT, GPT-2",
        "RoPE in a block of llama becomes Llama, with layers without positions SmolLM3; with recipe.shape.block=gpt "
        "ALiBi becomes MPT,\nlearned positions GPT-2. What fits none is refused.\n",
    )
    turn.add_argument("folder", type=Path, metavar="DIR", help="that lexbench train made")
    turn.add_argument("--into", required=True, type=Path, metavar="OUT", help="new or empty folder")
    proof = add(
        "verify",
        _verify,
        "does a method do what it says on a model? exit code 1 where a check fails",
        AT_LENGTH + "tokens of the text that is read (default: twice the trained length)\n" + AGAINST,
    )
    proof.add_argument(
        "--against",
        nargs="+",
        default=[],
        metavar="BACKEND",
        help="compare these with backend=NAME, token by token: NAME, or NAME,parameter=value",
    )
    proof.add_argument("--json", action="store_true", help="as data")
    next_door = "lm-evaluation-harness with its own arguments, which --help lists, and --model lexbench"
    commands.add_parser("lm_eval", help=next_door, add_help=False).set_defaults(command=_lm_eval)
    names = add("list", _list, "names of the registry", "--config-dir DIR adds your own\n")
    names.add_argument("group", nargs="?", choices=assets.GROUPS)
    add(
        "train",
        _train,
        "train a small model with any encoding, or go on from a trained one; the same command resumes",
        TRAINING,
    )
    many = add(
        "suite",
        _suite,
        "train many small models alike, evaluate them alike, and write a page of what came out",
        SUITE,
    )
    many.add_argument("suite", metavar="NAME", help="of configs/suite: encodings")
    many.add_argument("--dry-run", action="store_true", help="print the plan and every command, and stop")
    return parser


def _run(options: argparse.Namespace, words: list[str]) -> int:
    from lexbench.loading import sharing
    from lexbench.report import tables
    from lexbench.report.records import records_of
    from lexbench.store import Store

    measured: list[tuple[Path, list[str]]] = []
    measured_here: list[Path] = []

    def job(config: dict[str, Any], choices: dict[str, str]) -> tuple[Path, list[str]]:
        from lexbench.job import Job
        from lexbench.runner import execute

        asked = _job(Job.of, config, choices)
        cells = execute(asked, dry_run=config["dry_run"])
        measured_here.append(asked.results)
        return asked.results, [cell.id for cell in cells]

    if options.dry_run:  # a plan needs no cluster
        words = [*(word for word in words if not word.startswith(("hydra/launcher", "hydra.launcher"))), "dry_run=true"]
    try:
        with sharing():
            settings.jobs("run", job, settings.arguments("run", words), measured.append)
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
    from lexbench.report import write_report

    _no_more(words)
    print(write_report(options.runs, options.out))
    if options.html:
        from lexbench.report.page import write_page

        print(write_page(options.runs, options.out and options.out / "report.html"))
    return 0


def _view(options: argparse.Namespace, words: list[str]) -> int:
    from lexbench.view import serve

    _no_more(words)
    serve(options.runs, options.port)
    return 0


def _leaderboard(options: argparse.Namespace, words: list[str]) -> int:
    from lexbench.files import write_text
    from lexbench.report.leaderboard import leaderboard

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
    from lexbench.report import comparison_text

    _no_more(words)
    sides = {"select_a": options.only_a, "select_b": options.only_b}
    print(comparison_text.command(options.a, options.b, **sides, as_data=options.json))
    return 0


def _check(options: argparse.Namespace, words: list[str]) -> int:
    from lexbench.report import verdict_formats

    _no_more(words)
    said, code = verdict_formats.command(
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
    from lexbench import share

    _no_more(words)
    chosen = {"tasks": options.task, "methods": options.method}
    said, notes = share.command(options.runs, card=options.card, samples=options.samples, **chosen)
    print(said)
    for note in notes:
        print(f"lexbench: {note}", file=sys.stderr)
    return 0


def _import(options: argparse.Namespace, words: list[str]) -> int:
    from lexbench.imports import lm_eval

    _no_more(words)
    facts = {"trained_length": options.trained_length, "length": options.length, "tokenizer": options.tokenizer}
    said, code = lm_eval.command(options.results, options.into, **facts)
    print(said)
    return code


def _tune(options: argparse.Namespace, words: list[str]) -> int:
    def job(config: dict[str, Any], choices: dict[str, str]) -> None:
        from lexbench.checkpoint import read_model
        from lexbench.tune import tune

        result = tune(
            model=read_model(config["model"]),
            corpus={**config["corpus"], "name": choices["corpus"]},
            backend={**(config["backend"] or {}), "name": choices["backend"]},
            settings=_asked("tune", "lexbench.tuning.settings.Settings", config),
        )
        print(result.table())
        print(result.file)

    settings.jobs("tune", job, settings.arguments("tune", words))
    return 0


def _show(options: argparse.Namespace, words: list[str]) -> int:
    import json

    from lexbench import show
    from lexbench.checkpoint import read_known_model

    config, choices = settings.composed("show", words)
    model = read_known_model(config["model"])
    _, method, label = compose.read({**config["method"], "name": choices["method"]})
    length = _length(config) or model.trained_length
    shown = (model, label, method.attention(model, length), length)
    if options.plot:
        from lexbench import show_plots

        show_plots.plot(*shown, options.plot)
        print(options.plot)
    else:
        print(json.dumps(show.as_data(*shown), indent=1) if options.json else show.table(*shown))
    return 0


def _export(options: argparse.Namespace, words: list[str]) -> int:
    import json

    from lexbench import export
    from lexbench.checkpoint import read_known_model

    config, choices = settings.composed("export", words)
    model = read_known_model(config["model"])
    _, method, label = compose.read({**config["method"], "name": choices["method"]})
    length = _length(config)
    if length is None:
        raise ValueError("export needs the tokens in use, prompt and answer: give length=32768")
    asked = (method, label, model, length, options.to)
    print(json.dumps(export.as_data(*asked), indent=1) if options.json else export.export(*asked))
    return 0


def _search(options: argparse.Namespace, words: list[str]) -> int:
    def job(config: dict[str, Any], choices: dict[str, str]) -> None:
        from lexbench.checkpoint import read_model
        from lexbench.search import find

        result = find(
            model=read_model(config["model"]),
            corpus=assets.build(config["corpus"], "corpus"),
            backend={**(config["backend"] or {}), "name": choices["backend"]},
            length=_length(config),
            out=config["out"],
            n=config["n"],
            settings=_asked("search", "lexbench.evolution.Settings", config),
        )
        print(result.table())
        print(result.file)

    settings.jobs("search", job, settings.arguments("search", words))
    return 0


def _asked(command: str, target: str, config: dict[str, Any]) -> Any:
    """The settings of a command, as its class has them."""
    built = {"_target_": target}
    names = assets.parameters(assets.class_of(built, command))
    return assets.build({**built, **{name: config[name] for name in names}}, command)


def _bounds(text: str) -> tuple[int, ...]:
    """Bounds of buckets, ascending."""
    try:
        bounds = tuple(int(part) for part in text.split(","))
    except ValueError:
        bounds = ()
    if not bounds or bounds[0] < 1 or any(low >= high for low, high in itertools.pairwise(bounds)):
        raise argparse.ArgumentTypeError(f"bounds must be whole numbers that ascend, got {text!r}: e.g. 4000,8000")
    return bounds


def _score(options: argparse.Namespace, words: list[str]) -> int:
    from lexbench import longbench

    _no_more(words)
    print(longbench.score_folder(options.folder, options.e, options.buckets, options.similarity, options.json))
    return 0


def _keys(options: argparse.Namespace, words: list[str]) -> int:
    def job(config: dict[str, Any], choices: dict[str, str]) -> None:
        from lexbench.checkpoint import read_model
        from lexbench.find_keys import find

        found = find(
            model=read_model(config["model"]),
            method={**(config["method"] or {}), "name": choices["method"]},
            corpus=assets.build(config["corpus"], "corpus"),
            backend={**(config["backend"] or {}), "name": choices["backend"]},
            **{name: config[name] for name in settings.SETTINGS["keys"][1]},
        )
        print(f"{found.count} of {found.tokens} tokens in {len(found.spans)} documents are key tokens ({found.hash})")
        print(config["out"])

    settings.jobs("keys", job, settings.arguments("keys", words))
    return 0


def _verify(options: argparse.Namespace, words: list[str]) -> int:
    if options.against:
        return _parity(options, words)
    if extra := [word for word in words if word.startswith(("n=", "seed=", "task", "corpus"))]:
        raise ValueError(f"verify reads {extra[0]} with --against only: without it a random text is read")
    return _prove(options, words)


def _parity(options: argparse.Namespace, words: list[str]) -> int:
    import json

    from lexbench import parity

    others = [parity.against(word) for word in options.against]
    asked: list[tuple[dict[str, Any], dict[str, str]]] = []
    settings.jobs("run", lambda *point: asked.append(point), settings.arguments("verify", _with_task(words)))
    if not asked:  # --cfg job shows the settings, and runs nothing
        return 0
    found = parity.compare(parity.job_of(asked), others)
    print(json.dumps(found.as_data(), indent=1) if options.json else parity.table(found))
    return 1 if found.failed else 0


def _with_task(words: list[str]) -> list[str]:
    """Of likelihoods, where no task is named: a run's usual tasks are more than it takes to compare backends."""
    named = any(word.startswith("task=") for word in words)
    return words if named else [*words, "task=last_segment"]


def _prove(options: argparse.Namespace, words: list[str]) -> int:
    import json
    from dataclasses import asdict

    from lexbench import verify
    from lexbench.checkpoint import read_model

    rows: list[tuple[str, int, list[verify.Check] | str]] = []

    def job(config: dict[str, Any], choices: dict[str, str]) -> None:
        from lexbench.loading import opened

        model = read_model(config["model"])
        _, method, label = compose.read({**config["method"], "name": choices["method"]})
        length = _length(config) or 2 * model.trained_length
        backend = opened(model, {**config["backend"], "name": choices["backend"]}, length)
        try:
            if not isinstance(backend, verify.Verifiable):
                raise Refused(f"{backend.name} shows no logits to verify: use backend=hf")
            rows.append((label, length, verify.verify(backend, method.attention(model, length), length)))
        except Refused as refusal:
            rows.append((label, length, refusal.reason))

    settings.jobs("run", job, settings.arguments("verify", words))
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
    from lexbench import harness

    return harness.main(words)


def _list(options: argparse.Namespace, words: list[str]) -> int:
    flags, given = settings.split(words)
    _no_more([*flags, *given])
    for group in [options.group] if options.group else assets.GROUPS:
        print(f"{group}:")
        names = assets.names(group)
        for name in names:
            print(f"  {name:{max(map(len, names))}} {assets.summary(group, name)}".rstrip())
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
            recipe=assets.build(config["recipe"], "recipe"),
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

    settings.jobs("train", job, settings.arguments("train", words))
    return 0


def _suite(options: argparse.Namespace, words: list[str]) -> int:
    codes: list[int] = []

    def job(config: dict[str, Any], choices: dict[str, str]) -> None:
        from lexbench import suite

        codes.append(suite.run(suite.read(config, choices["suite"]), options.dry_run))

    settings.jobs("suite", job, settings.arguments("suite", [f"suite={options.suite}", *words]))
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
        found.append(assets.build({**assets.read("corpus", given["name"]), **own}, "corpus", split=split))
    return found


def _no_more(words: list[str]) -> None:
    if words:
        raise ValueError(f"unexpected argument {words[0]}: see --help")


COMMANDS = (
    "run",
    "report",
    "view",
    "leaderboard",
    "compare",
    "check",
    "share",
    "import",
    "lm_eval",
    "tune",
    "show",
    "verify",
    "export",
    "convert",
    "search",
    "list",
    "train",
    "suite",
    "score",
    "keys",
)


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
    settings.jobs(own, lambda config, choices: None, words)
    return 0


if __name__ == "__main__":
    sys.exit(main())
