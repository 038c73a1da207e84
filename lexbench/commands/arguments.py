"""The command line's words: subcommands, their options and what `--help` says of them."""

import argparse
import itertools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NoReturn

from lexbench.core import registry
from lexbench.core.version import __version__

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


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, as everything here does."""

    def error(self, message: str) -> NoReturn:
        """Exit with 2."""
        self.exit(2, f"lexbench: {' '.join(message.split())}: see {self.prog} --help\n")


Command = Callable[[argparse.Namespace, list[str]], int]
"""(options, words that are settings) -> exit code."""


def parser(commands: Mapping[str, Command]) -> Parser:
    """Of the whole command line; `options.command` is what the subcommand does."""
    whole = Parser(
        prog="lexbench",
        description="How does a language model's quality change with length, under any positional method?",
        epilog='completion: eval "$(lexbench -sc install=bash)". LEXBENCH_TRACEBACK=1 shows where an error arose.',
    )
    whole.add_argument("--version", action="version", version=__version__)
    added = whole.add_subparsers(required=True, metavar="COMMAND")

    def add(name: str, text: str, epilog: str = "") -> argparse.ArgumentParser:
        one = added.add_parser(
            name, help=text, description=text, epilog=epilog, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        one.set_defaults(command=commands[name])
        return one

    run = add("run", "measure a model under a method on tasks over lengths", OVERRIDES)
    run.add_argument("--dry-run", action="store_true", help="print the plan (cells, tokens, time, memory) and stop")
    report = add("report", "tables and plots from run folders, without a model")
    report.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="run folder, or a folder of run folders")
    report.add_argument("--out", type=Path, help="where to write (default: RUN/report)")
    report.add_argument("--html", action="store_true", help="one self-contained page, with curves and samples, besides")
    view = add("view", "serve a results folder on this machine, with the progress of a run that goes on")
    view.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="run folder, or a folder of run folders")
    view.add_argument("--port", type=int, default=8000, help="0: any that is free (default: 8000)")
    board = add("leaderboard", "rank methods or models, with what cannot be told from the best")
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
    sides = add("compare", "paired differences of two runs, methods, models, versions or backends", SIDES)
    sides.add_argument("a", type=Path, metavar="A", help="run folder: the baseline")
    sides.add_argument("b", type=Path, metavar="B", help="run folder: what is compared with it")
    sides.add_argument("--a", nargs="+", dest="only_a", default=[], metavar="KEY=VALUE", help="of A only these cells")
    sides.add_argument("--b", nargs="+", dest="only_b", default=[], metavar="KEY=VALUE", help="of B only these cells")
    sides.add_argument("--json", action="store_true", help="as data")
    gate = add("check", "the gate for CI: is a run worse than a baseline? exit code 1 where it is")
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
    given = add("share", "results for others: a model card's block, and samples as a dataset", SHARING)
    given.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="run folder, or a folder of run folders")
    given.add_argument("--card", metavar="FILE", help="put the results into this model card; -: print them")
    given.add_argument("--samples", type=Path, metavar="DIR", help="write the samples there, as datasets load them")
    given.add_argument("--task", nargs="+", default=[], metavar="NAME", help="of these tasks only")
    given.add_argument("--method", nargs="+", default=[], metavar="NAME", help="of these methods only")
    foreign = add("import", "results of another harness become cells of a run folder", IMPORTING)
    foreign.add_argument("harness", choices=("lm_eval",))
    foreign.add_argument("results", nargs="+", type=Path, metavar="RESULTS", help="results_*.json, or a folder of them")
    foreign.add_argument("--into", required=True, type=Path, metavar="DIR", help="run folder")
    foreign.add_argument("--trained-length", type=int, metavar="N", help="tokens, where the results do not say")
    foreign.add_argument("--length", type=int, metavar="N", help="tokens in use, where neither task nor model says")
    foreign.add_argument("--tokenizer", metavar="DIR", help="counts the tokens of the prompts: a folder or hub name")
    add(
        "tune",
        "which method, with which parameters, for this model at this length? the same command goes on",
        TUNING,
    )
    show = add(
        "show",
        "what a method does to a model at one length",
        AT_LENGTH + "tokens in use (default: the trained length)\n",
    )
    form = show.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="as data")
    form.add_argument("--plot", type=Path, metavar="FILE", help="as a picture, .png or .svg")
    add(
        "search",
        "find LongRoPE's factors for a model and a length, guided by perplexity; the same command goes on",
        "settings: model=NAME length=2048 out=mine/method/NAME.yaml n=4 corpus=NAME rule=longrope2 iterations=40\n",
    )
    score = add(
        "score",
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
        "find the key tokens of a corpus with an evaluator model, for task=long_ppl; the same command goes on",
        "settings: model=EVALUATOR method=NAME corpus=NAME out=FILE.jsonl longest=8192 short=1024 n=50\n",
    )
    give = add(
        "export",
        "what to paste into a deployment, so that it runs a model under a method",
        AT_LENGTH + "tokens in use, prompt and answer\n",
    )
    give.add_argument(
        "--to", required=True, choices=("transformers", "vllm", "llama.cpp"), help="what serves the model"
    )
    give.add_argument("--json", action="store_true", help="as data")
    turn = add(
        "convert",
        "a trained folder as an ordinary architecture of transformers: Llama, SmolLM3, MPT, GPT-2",
        "RoPE in a block of llama becomes Llama, with layers without positions SmolLM3; with recipe.shape.block=gpt "
        "ALiBi becomes MPT,\nlearned positions GPT-2. What fits none is refused.\n",
    )
    turn.add_argument("folder", type=Path, metavar="DIR", help="that lexbench train made")
    turn.add_argument("--into", required=True, type=Path, metavar="OUT", help="new or empty folder")
    proof = add(
        "verify",
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
    added.add_parser("lm_eval", help=next_door, add_help=False).set_defaults(command=commands["lm_eval"])
    names = add("list", "names of the registry", "--config-dir DIR adds your own\n")
    names.add_argument("group", nargs="?", choices=registry.GROUPS)
    add(
        "train",
        "train a small model with any encoding, or go on from a trained one; the same command resumes",
        TRAINING,
    )
    many = add(
        "suite",
        "train many small models alike, evaluate them alike, and write a page of what came out",
        SUITE,
    )
    many.add_argument("suite", metavar="NAME", help="of configs/suite: encodings")
    many.add_argument("--dry-run", action="store_true", help="print the plan and every command, and stop")
    return whole


def _bounds(text: str) -> tuple[int, ...]:
    """Bounds of buckets, ascending."""
    try:
        bounds = tuple(int(part) for part in text.split(","))
    except ValueError:
        bounds = ()
    if not bounds or bounds[0] < 1 or any(low >= high for low, high in itertools.pairwise(bounds)):
        raise argparse.ArgumentTypeError(f"bounds must be whole numbers that ascend, got {text!r}: e.g. 4000,8000")
    return bounds
