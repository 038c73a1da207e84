"""From the command to the first number, cold: python tools/startup.py

One perplexity of one short document on lexlet (or --model), float32: `lexbench run` (prefix) against `lm_eval run`
(lm-evaluation-harness, `loglikelihood_rolling` over the same text), each a process, in turns; medians, smallest and
largest. The first round warms the disk's cache and is not counted. Beside them the least that any harness on these
libraries takes: Python alone, with torch, and with transformers' class of the model, too.

Then where lexbench's time goes: the same run in one process that imports what a run imports, library by library, and
looks at the clock in between; and, with `--imports`, what Python itself says of each package (`-X importtime`; the
package's own modules, without those that they import). Last what a plan of a suite at a million tokens takes.
"""

import argparse
import functools
import json
import re
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from tools import sides

LEAST = {
    "python": "pass",
    "python, torch": "import torch",
    "python, torch, transformers' model": "from transformers import AutoModelForCausalLM, LlamaForCausalLM",
}
LIBRARIES = (
    "numpy",
    "pyarrow.parquet",
    "hydra.main",
    "tokenizers",
    "torch",
    "transformers",
    "transformers.models.llama",
)
"""In the order of their weight on others: each is charged with what those before it have not imported."""

PLANNING = ("hydra.main", "lexbench.commands.main", "lexbench.report.tables", "lexbench.runner.execute", "datasets")
"""`datasets` where a task's data are on the hub, as SQuAD's are."""


def settings(folder: Path, length: int) -> list[str]:
    return [
        "model=local",
        f"model.path={folder / 'model'}",
        "task=prefix",
        "corpus=files",
        f"corpus.path={folder / 'texts'}",
        f"lengths=[{length}]",
        "n=1",
    ]


def prepare(folder: Path, model: Path, length: int) -> None:
    """The model, and one document of the length with BOS."""
    from lexbench.checkpoints.tokenizer import load_tokenizer  # here, as `one` is to import it itself

    (folder / "model").symlink_to(model.resolve())
    tokenizer = load_tokenizer(model)
    text = tokenizer.decode(tokenizer.encode(" The grass is green. The sky is blue." * length).ids[: length - 1])
    tokens = len(tokenizer.encode(text).ids) + len(tokenizer.prefix)
    if tokens != length:
        raise SystemExit(f"the text has {tokens} tokens again, not {length}: give another --length")
    (folder / "texts").mkdir()
    (folder / "texts" / "text.jsonl").write_text(f"{json.dumps({'text': text})}\n", encoding="utf-8")
    sides.task_file(
        folder / "tasks",
        "prefix",
        [{"text": text}],
        "output_type: loglikelihood_rolling\ndoc_to_text: ''\ndoc_to_target: text\n"
        "metric_list:\n  - metric: word_perplexity\n",
    )


def by_lm_eval(folder: Path, length: int, turn: int) -> sides.Ran:
    arguments = f"{sides.hf_arguments(folder / 'model', length)},add_bos_token=False"
    words = ["run", "--model", "hf", "--model_args", arguments, "--include_path", str(folder / "tasks")]
    words += ["--tasks", "prefix", "--device", "cpu", "--batch_size", "1", "--output_path", str(folder / f"out-{turn}")]
    return sides.run([sys.executable, "-m", "lm_eval", *words], HF_HOME=str(folder / "hf"))


def compared(folder: Path, options: argparse.Namespace) -> None:
    taken: dict[str, list[sides.Ran]] = {}
    for turn in range(1 + options.repeat):
        calls: dict[str, Any] = {
            "lexbench run": lambda turn=turn: sides.lexbench(folder / f"run-{turn}", *settings(folder, options.length)),
            "lm_eval run": lambda turn=turn: by_lm_eval(folder, options.length, turn),
        }
        for name, code in LEAST.items():
            calls[name] = lambda code=code: sides.run([sys.executable, "-c", code])
        for side, call in calls.items():
            ran = call()
            if turn:
                taken.setdefault(side, []).append(ran)
    own = sides.median(ran.seconds for ran in taken["lexbench run"])
    sides.table(":process", "seconds", "smallest", "largest", "of lexbench's", "peak MB")
    for side, runs in taken.items():
        seconds = [ran.seconds for ran in runs]
        middle, most = sides.median(seconds), max(ran.bytes for ran in runs) / 1e6
        sides.row(
            side, f"{middle:.2f}", f"{min(seconds):.2f}", f"{max(seconds):.2f}", f"{middle / own:.2f}", f"{most:.0f}"
        )


def parts(folder: Path, options: argparse.Namespace) -> None:
    """Where lexbench's time goes: medians of processes that look at the clock."""
    found: dict[str, list[float]] = {}
    for turn in range(options.repeat):
        marks = folder / f"marks-{turn}.json"
        words = [*settings(folder, options.length), f"results={folder / f'parts-{turn}'}"]
        started = time.time()
        whole = sides.run([sys.executable, __file__, "--one", str(marks), *words]).seconds
        ready, spent = json.loads(marks.read_text())
        measured = {"interpreter": ready - started, **spent, "answer": sides.asked(folder / f"parts-{turn}")}
        rest = whole - sum(measured.values())
        measured["the rest: settings, plan, self-check, files, table, exit"] = rest
        for name, seconds in {**measured, "all": whole}.items():
            found.setdefault(name, []).append(seconds)
    whole = sides.median(found["all"])
    print("\n## lexbench, part by part")
    sides.table(":part", "seconds", "share")
    for name, each in found.items():
        sides.row(name, f"{sides.median(each):.2f}", f"{sides.median(each) / whole:.0%}")


def plan(options: argparse.Namespace) -> None:
    """The plan of a suite at a million tokens, and a program that imports what a plan does."""
    words = ["run", "model=lexlet", "task=standard", "lengths=[1048576]", "--dry-run"]
    calls = {
        "the plan of task=standard at 1,048,576 tokens": [sys.executable, "-m", "lexbench", *words],
        "its imports alone": [sys.executable, "-c", f"import {', '.join(PLANNING)}"],
    }
    print("\n## A plan")
    sides.table(":process", "seconds", "smallest", "largest")
    for name, command in calls.items():
        seconds = [sides.run(command).seconds for _ in range(1 + options.repeat)][1:]
        sides.row(name, f"{sides.median(seconds):.2f}", f"{min(seconds):.2f}", f"{max(seconds):.2f}")


def one(marks: Path, words: list[str], ready: float) -> None:
    """What the process of `parts` does."""
    import importlib

    spent: dict[str, float] = {}

    def clocked(name: str, started: float) -> None:
        spent[name] = time.perf_counter() - started

    for library in LIBRARIES:
        started = time.perf_counter()
        importlib.import_module(library.removesuffix(".main"))
        if library == "transformers":
            from transformers import AutoModelForCausalLM  # noqa: F401
        if library == "transformers.models.llama":
            from transformers import LlamaForCausalLM  # noqa: F401
        clocked(f"import {library.removesuffix('.main')}", started)
    started = time.perf_counter()
    from lexbench.backends.hf.backend import Hf
    from lexbench.commands import main

    importlib.import_module("lexbench.runner.loop")
    clocked("import lexbench", started)
    load = Hf.__init__

    @functools.wraps(load)
    def timed(self: Hf, *arguments: Any, **named: Any) -> None:
        started = time.perf_counter()
        load(self, *arguments, **named)
        clocked("load the model", started)

    Hf.__init__ = timed  # type: ignore[method-assign]
    code = main.main(["run", *words])
    marks.write_text(json.dumps([ready, spent]))
    sys.exit(code)


def imports(folder: Path, options: argparse.Namespace) -> None:
    """Seconds in each package's own modules."""
    words = [*settings(folder, options.length), f"results={folder / 'imports'}"]
    ran = sides.run([sys.executable, "-X", "importtime", "-m", "lexbench", "run", *words])
    own: Counter[str] = Counter()
    for line in ran.output.splitlines():
        if got := re.match(r"import time:\s+(\d+) \|\s+\d+ \|\s*([\w.]+)", line):
            own[got[2].partition(".")[0]] += int(got[1])
    print(f"\n## Imports: {sum(own.values()) / 1e6:.2f} s of {ran.seconds:.2f} s")
    sides.table(":package", "seconds of its own modules")
    for name, microseconds in own.most_common(options.imports):
        sides.row(name, f"{microseconds / 1e6:.2f}")


def main() -> None:
    ready = time.time()
    if sys.argv[1:2] == ["--one"]:
        one(Path(sys.argv[2]), sys.argv[3:], ready)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--length", type=int, default=128, help="tokens of the document, BOS counted")
    parser.add_argument("--repeat", type=int, default=5, help="rounds that are counted")
    parser.add_argument("--imports", type=int, default=12, metavar="TOP", help="packages to list; 0: none")
    parser.add_argument("--model", type=Path, default=sides.LEXLET, metavar="DIR", help="in Hugging Face form")
    options = parser.parse_args()
    sides.header("From the command to the first number")
    with tempfile.TemporaryDirectory() as temporary:
        prepare(Path(temporary), options.model, options.length)
        compared(Path(temporary), options)
        parts(Path(temporary), options)
        if options.imports:
            imports(Path(temporary), options)
        plan(options)


if __name__ == "__main__":
    main()
