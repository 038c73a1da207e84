"""The GPU campaign, checks first, then figures, in slices that go on where they stopped: python tools/gpu.py

Needs a CUDA device and this repository, with torch, triton, transformers, tokenizers, safetensors, numpy, scipy,
pyarrow, pyyaml, jinja2, httpx2 and tqdm. Weights are random and made here, of the shapes of Qwen3-8B and gpt-oss-20b
(its attention; the experts are small); the comparison end to end reads SmolLM2. In this order, with seconds that an
H200 is expected to take:

    measure/machine            3  rates of a copy and of a matrix product, and those that the maker states: the limits
                                  of which rows below have their shares
    check/paths/...           26  what no GPU has run: gpt-oss without scores of all pairs (`long_text`), norms and
                                  rotations in one kernel each and steps that are recorded (`repeated_steps`)
    check/kernels             12  each kernel in bfloat16 against the definition in float64, at the models' head shapes
    measure/end_to_end       110  `lexbench run` and lm_eval's command on SmolLM2: the same texts scored, the same
                                  needles answered; seconds, tokens a second, and whether they agree
    measure/models           140  prompts read and tokens written by Qwen3-8B, as if trained at 4,096 tokens, at that
                                  length and at 16,384: by transformers' `generate` (stock), under 12 methods; gpt-oss
    measure/kernels           32  whole texts and steps of writing, over the kernel that PyTorch picks (sdpa)
    measure/models/*/static  110  `generate` with a static cache and compiled steps
    check/...                 70  methods on small models against float64, batches as one by one, memory that ends,
                                  kernels in float32

A call takes 4 minutes (`--minutes`), and three make it whole. A step begins only if its forecast fits into what is left
of them: operations and bytes by the formulas of plans, at half of the card's rates, or the seconds above. A record is
written after each step; one that crashes, or runs past its limit, is recorded, and the next begins in a new process.
At its end a call prints the tables, and the steps that are left with their forecasts. The exit code is 1 if a step
failed, 3 if some are left. `--show` prints a record's tables.

SmolLM2, lm_eval and further packages come in parts, one or more with each call; until all are there, the comparison is
left out and says so. `--toy` tries all of this at small sizes on a CPU.

    python tools/board_gpu.py --pack runs/parts                                  # here
    python tools/board_gpu.py --join runs/parts; python tools/gpu.py             # there, with some of the parts
"""

import argparse
import functools
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch

from lexbench.core.attention import Attention
from tools import gpu_checks, gpu_kernels, gpu_measures, gpu_sides
from tools.board_gpu import environment_of
from tools.gpu_calls import Found
from tools.gpu_rooflines import Rates, assumed_rates, reading_operations
from tools.gpu_sizes import FAMILIES, LARGE, ROOT, TOY, Campaign, Scale, facts_of
from tools.gpu_tables import show

FORMAT = 3
"""2: trained lengths, repeats with their spread, and whole texts over the kernel that PyTorch picks.
3: operations and bytes that are needed, static caches, and a comparison end to end."""
LIMIT = 200
"""Seconds that a step may take."""
GRACE = 15
"""Seconds behind the end of a call after which a step that goes on is ended, and forgotten."""
SECONDS_OF_START = 8.0
"""Seconds that a process takes to load packages and make a model."""


@dataclass(frozen=True)
class Step:
    """One step, and its forecast."""

    run: Callable[[Campaign], Found]
    seconds: Callable[[Rates], float]


def always(seconds: float) -> Callable[[Rates], float]:
    """A forecast that does not depend on the card."""
    return lambda rates: seconds


def steps(scale: Scale) -> dict[str, Step]:
    """All steps by name, in their order. Seconds that stand here were taken on an H200, compiling included."""
    bind, found = functools.partial, dict[str, Step]()
    found["measure/machine"] = Step(gpu_measures.machine, always(3))
    for name, path, taken in (
        ("long_text", gpu_checks.long_text, 6),
        ("repeated_steps", gpu_checks.repeated_steps, 20),
    ):
        found[f"check/paths/{name}"] = Step(path, always(taken))
    found |= _kernel_checks(scale, "bfloat16")
    for name, side in (("scored", gpu_sides.scored), ("written", gpu_sides.written)):
        found[f"measure/end_to_end/{name}"] = Step(side, always(55))
    static = dict[str, Step]()
    for name, methods in scale.methods.items():
        for place, method in enumerate(methods):
            if method != "static":
                run = bind(gpu_measures.measure_model, name=name, method=method)
                forecast = bind(model_seconds, scale, name, scale.prefills, made=place == 0)
                found[f"measure/models/{name}/{method}"] = Step(run, forecast)
                continue
            for length in scale.prefills[::-1]:
                run = bind(gpu_measures.measure_model, name=name, method=method, lengths=(length,))
                forecast = bind(model_seconds, scale, name, (length,), made=True, compiling=45.0)
                static[f"measure/models/{name}/{method}/{length}"] = Step(run, forecast)
    for length in scale.lengths[::-1]:
        for name, heads in scale.heads.items():
            for asked, word in ((length, "whole"), (1, "one")):
                run = bind(gpu_kernels.measure_kernels, heads=heads, length=length, asked=asked)
                found[f"measure/kernels/{name}/{length}/{word}"] = Step(run, always(4))
    return found | static | _further_checks(scale)


def _kernel_checks(scale: Scale, dtype: str) -> dict[str, Step]:
    """Checks of kernels in a dtype."""
    runs = {
        name: functools.partial(gpu_kernels.check_kernels, heads=heads, dtype=dtype)
        for name, heads in scale.heads.items()
    }
    return {f"check/kernels/{name}/{dtype}": Step(run, always(6)) for name, run in runs.items()}


def _further_checks(scale: Scale) -> dict[str, Step]:
    """Checks that have passed on a GPU before."""
    from lexbench.core import registry

    found, methods = dict[str, Step](), registry.registered_names("method")
    dtype = "float32" if scale.toy else "bfloat16"  # of the second, what a few tokens more change is not seen
    for family in [each for each in FAMILIES if each != "llama"]:  # qwen3 is llama with more norms
        for part, some in enumerate((methods[::2], methods[1::2])):
            run = functools.partial(gpu_checks.check_methods, family=family, dtype=dtype, names=some)
            found[f"check/methods/{family}/{dtype}/{part}"] = Step(run, always(8))
    found["check/paths/together"] = Step(gpu_checks.together, always(15))
    for path in (gpu_checks.memory_ends, gpu_checks.low_head):
        found[f"check/paths/{path.__name__}"] = Step(path, always(1))
    return found | _kernel_checks(scale, "float32")


def model_seconds(
    scale: Scale, name: str, lengths: tuple[int, ...], rates: Rates, made: bool, compiling: float = 1.0
) -> float:
    """Forecast of a model's calls: operations of prompts, bytes of tokens, what is compiled; `made`: and loaded."""
    from lexbench.runner.forecast import parameter_count

    facts, taken = facts_of(scale.models[name], name), made * SECONDS_OF_START
    parameters = round(parameter_count(facts))
    for length in lengths:
        reading = reading_operations(facts, parameters, Attention(), length) / rates.operations
        step = 2 * parameters / rates.bytes
        taken += compiling + (1 + scale.model_repeats) * (reading + scale.room * step)
    return taken


# the record


def facts(toy: bool) -> Found:
    """Facts that a record is of; another one is not gone on with."""
    from lexbench.core.machine import collect_provenance

    found = collect_provenance()
    card: Found = {"name": found["processor"]}
    if torch.cuda.is_available():
        about = torch.cuda.get_device_properties(0)
        card = {"name": about.name, "bytes": about.total_memory, "capability": f"{about.major}.{about.minor}"}
        card["processors"] = about.multi_processor_count
    names = ("torch", "transformers", "tokenizers", "numpy", "pyarrow")  # others may arrive between two calls
    packages = {name: found["packages"].get(name) for name in names}
    packages |= {"cuda": torch.version.cuda, "python": found["python"]}
    return {"format": FORMAT, "toy": toy, "card": card, "versions": packages, "lexbench": found["lexbench"]}


def record_of(file: Path, toy: bool) -> Found:
    """The record in a file, or a new one; ValueError where it is of another machine."""
    own = facts(toy)
    if not file.exists():
        return {**own, "date": time.strftime("%Y-%m-%d", time.gmtime()), "steps": {}}
    held: Found = json.loads(file.read_text())
    if other := [key for key in own if held.get(key) != own[key]]:
        raise ValueError(f"record {file} must be of this machine, it has another {', '.join(other)}: give --record")
    return held


def keep(file: Path, record: Found) -> None:
    """Write it, whole or not at all."""
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_suffix(".part")
    part.write_text(json.dumps(record, indent=1) + "\n")
    part.replace(file)


def begin(file: Path, toy: bool) -> None:
    """Begin a call: steps that an earlier one has left out are tried again."""
    record = record_of(file, toy)
    record["steps"] = {name: step for name, step in record["steps"].items() if "left out" not in step}
    keep(file, record)


def left_steps(options: argparse.Namespace, record: Found) -> dict[str, Step]:
    """Steps that are asked for and that the record lacks."""
    found, asked = steps(TOY if options.toy else LARGE), tuple(options.only or [""])
    return {name: step for name, step in found.items() if name.startswith(asked) and name not in record["steps"]}


def forecast(step: Step, record: Found) -> float:
    """Seconds that a step is expected to take, by the rates that the record knows."""
    return step.seconds(assumed_rates(record["card"]["name"], record["steps"].get("measure/machine")))


def work(options: argparse.Namespace, until: float) -> None:
    """Do the steps that a record lacks and that fit into the time."""
    file, toy = options.record, options.toy
    record = record_of(file, toy)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    campaign = Campaign(device, TOY if toy else LARGE, torch.bfloat16, options.place)
    for name, step in left_steps(options, record).items():
        if time.time() + forecast(step, record) > until:
            continue
        record["running"] = [name, time.time()]
        keep(file, record)
        began = time.perf_counter()
        try:
            found = step.run(campaign)
        except Exception as error:  # a step that fails is recorded, and the campaign goes on
            found = {"passed": False, "wrong": [f"{type(error).__name__}: {' '.join(str(error).split())[:500]}"]}
        found = {"seconds_taken": round(time.perf_counter() - began, 2), **found}
        del record["running"]
        record["steps"][name] = found
        keep(file, record)
        mark = {True: "ok", False: "FAILED", None: "done"}[found.get("passed")]
        print(f"{found['seconds_taken']:7.1f} s  {mark:7} {name} {found.get('left out', '')}", flush=True)
        for line in found.get("wrong", []):
            print(f"            {line}", flush=True)


def supervise(options: argparse.Namespace, command: list[str]) -> None:
    """Run steps in processes of their own: one that dies or hangs takes no others with it."""
    until = time.time() + 60 * options.minutes
    command = [*command, "--until", str(until)]
    while time.time() < until:
        process = subprocess.Popen(command, cwd=ROOT, env=environment_of(options.place), start_new_session=True)
        try:
            while process.poll() is None and time.time() <= until + GRACE and not past_limit(options.record):
                time.sleep(0.2)
        finally:
            end(process)
        if time.time() > until + GRACE:
            forget(options.record)
            return
        if process.returncode == 0:
            return
        record = json.loads(options.record.read_text()) if options.record.exists() else {}
        if "running" not in record:
            raise SystemExit(f"the campaign ended with {process.returncode} before any step")
        name, began = record.pop("running")
        taken = time.time() - began
        why = f"no end within {LIMIT} s" if taken >= LIMIT else f"its process ended with {process.returncode}"
        record["steps"][name] = {"seconds_taken": round(taken, 2), "passed": False, "wrong": [why]}
        keep(options.record, record)
        print(f"{taken:7.1f} s  FAILED  {name}\n            {why}", flush=True)


def end(process: "subprocess.Popen[bytes]") -> None:
    """End a process that goes on, with those that it has started."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def past_limit(file: Path) -> bool:
    """Whether the running step takes too long."""
    if not file.exists():
        return False
    running = json.loads(file.read_text()).get("running")
    return running is not None and time.time() - running[1] > LIMIT


def forget(file: Path) -> None:
    """Take back the step that the time did not suffice for."""
    record = json.loads(file.read_text())
    record.pop("running", None)
    keep(file, record)


def show_left(options: argparse.Namespace, record: Found) -> bool:
    """Print the steps that are left, with their forecasts; whether there are some."""
    left = left_steps(options, record)
    seconds = {name: forecast(step, record) for name, step in left.items()}
    if not left:
        print(f"\n{options.record}: all is done.")
        return False
    print(f"\n{options.record}: {len(left)} steps are left, about {sum(seconds.values()):.0f} s; run it again:\n")
    print(*(f"    {taken:5.0f} s  {name}" for name, taken in seconds.items()), sep="\n")
    return True


def arguments(words: list[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=4, help="of a call; steps that do not fit are left")
    parser.add_argument("--record", type=Path, help="file; usually results/benchmarks/gpu/CARD-DATE.json")
    parser.add_argument("--place", type=Path, default=Campaign.place, help="folder where parts were joined")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="steps whose names begin so")
    parser.add_argument("--toy", action="store_true", help="small sizes, on a CPU where there is no GPU")
    parser.add_argument("--show", type=Path, metavar="RECORD", help="print a record's tables, and end")
    parser.add_argument("--until", type=float, help=argparse.SUPPRESS)
    options = parser.parse_args(words)
    options.record = options.record and options.record.resolve()
    options.place = options.place.resolve()
    if options.record is None and options.show is None:
        card = torch.cuda.get_device_name(0) if torch.cuda.is_available() else "cpu"
        name = f"{re.sub(r'[^a-z0-9]+', '-', card.lower())}-{time.strftime('%Y-%m-%d', time.gmtime())}.json"
        folder = Path(tempfile.gettempdir()) if options.toy else ROOT / "results" / "benchmarks" / "gpu"
        options.record = folder / name
    return options


def main(words: list[str] | None = None) -> int:
    """0: all is done; 1: a step failed; 3: steps are left."""
    options = arguments(words)
    if options.show is not None:
        show(json.loads(options.show.read_text()))
        return 0
    if not (options.toy or torch.cuda.is_available()):
        raise SystemExit("the campaign needs a CUDA device, torch sees none: give --toy to try it at small sizes")
    if options.until is not None:
        work(options, options.until)
        return 0
    begin(options.record, options.toy)
    given = sys.argv[1:] if words is None else words
    more = [] if "--record" in given else ["--record", str(options.record)]
    supervise(options, [sys.executable, __file__, *given, *more])
    record = record_of(options.record, options.toy)
    show(record)
    left = show_left(options, record)
    if any(step.get("passed") is False for step in record["steps"].values()):
        return 1
    return 3 if left else 0


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    sys.exit(main())
