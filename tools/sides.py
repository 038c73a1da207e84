"""What the comparisons with other harnesses share: a side in a process of its own, and what it ran on.

`python tools/sides.py NOTES COMMAND...` is lm-evaluation-harness's own command line (COMMAND as behind
`lm_eval`), which writes to the file NOTES what its results do not say: seconds in calls of the model's class, tokens
given to the network, and targets.
"""

import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
LEXLET = ROOT / "lexbench" / "lexlet"
ALL_REFUSED = 3  # lexbench's exit code; not imported, as lm_eval's process runs this file, too
LOOK = 0.02  # seconds between two looks at a process's memory


@dataclass(frozen=True)
class Ran:
    """One process, or several one after another."""

    seconds: float
    """From start to end."""
    bytes: float
    """Most resident memory, of the process itself; of several, the largest."""
    output: str = ""


def run(command: Sequence[str], **environment: str) -> Ran:
    """A command in a process of its own; RuntimeError with what it said where it fails. Refused cells are no failure.

    The peak is the larger of what the system counted at its end and what was seen on the way, as a process can have
    its own count begin anew (lexbench does, at every cell).
    """
    quiet = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    with tempfile.TemporaryFile() as said:
        started = time.perf_counter()
        process = subprocess.Popen(
            command, stdout=said, stderr=subprocess.STDOUT, cwd=ROOT, env={**os.environ, **quiet, **environment}
        )
        seen = 0.0
        while not (ended := os.wait4(process.pid, os.WNOHANG))[0]:
            seen = max(seen, resident(process.pid))
            time.sleep(LOOK)
        seconds = time.perf_counter() - started
        process.returncode = os.waitstatus_to_exitcode(ended[1])
        said.seek(0)
        output = said.read().decode(errors="replace")
    if process.returncode not in (0, ALL_REFUSED):
        raise RuntimeError(f"{shlex.join(command)[:300]} ended with {process.returncode}:\n{output[-3000:]}")
    units = 1 if sys.platform == "darwin" else 1024
    return Ran(seconds, max(seen, ended[2].ru_maxrss * units), output)


def resident(process: int) -> float:
    """Bytes of the peak that Linux knows of a process now; 0 elsewhere, or once it has ended."""
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        return 0.0
    return next((1024 * float(line.split()[1]) for line in lines if line.startswith("VmHWM")), 0.0)


def joined(parts: Iterable[Ran]) -> Ran:
    """Processes one after another, as one."""
    each = list(parts)
    return Ran(sum(part.seconds for part in each), max(part.bytes for part in each), each[-1].output)


def lexbench(results: Path, *settings: str) -> Ran:
    """`lexbench run` with these settings."""
    return run([sys.executable, "-m", "lexbench", "run", *settings, f"results={results}"])


def asked(results: Path) -> float:
    """Seconds that a run's cells took, without imports, loading, planning and tables."""
    return sum(float(json.loads(line)["seconds"]) for line in (results / "costs.jsonl").read_text().splitlines())


def lm_eval(
    out: Path, *command: str, batch: int = 1, device: str = "cpu", **environment: str
) -> tuple[Ran, dict[str, Any]]:
    """`lm_eval run` with this command, its results in a folder; and what it did, by `noted`."""
    out.mkdir(parents=True, exist_ok=True)
    notes = out / "notes.json"
    words = [
        "run",
        *command,
        "--device",
        device,
        "--batch_size",
        str(batch),
        "--log_samples",
        "--output_path",
        str(out),
    ]
    environment = {"HF_HOME": str(out.parent / "hf"), **environment}
    ran = run([sys.executable, __file__, str(notes), *words], **environment)
    return ran, json.loads(notes.read_text())


def logged(out: Path, task: str) -> list[dict[str, Any]]:
    """lm_eval's samples of a task, in the order of the documents."""
    files = sorted(out.rglob(f"samples_{task}_*.jsonl"))
    rows = [json.loads(line) for line in files[-1].read_text(encoding="utf-8").splitlines()]
    return sorted(rows, key=lambda row: int(row["doc_id"]))


def noted(notes: Path, words: list[str]) -> None:
    """What a process of lm_eval does."""
    from lm_eval.__main__ import cli_evaluate
    from lm_eval.models.huggingface import HFLM

    spent = {"seconds": 0.0, "targets": 0, "tokens": 0, "forwards": 0}

    def timed(call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*arguments: Any, **named: Any) -> Any:
            started = time.perf_counter()
            try:
                return call(*arguments, **named)
            finally:
                spent["seconds"] += time.perf_counter() - started

        return wrapped

    def counted(call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(model: Any, requests: Any, *arguments: Any, **named: Any) -> Any:
            spent["targets"] += sum(len(request[2]) for request in requests)
            return call(model, requests, *arguments, **named)

        return wrapped

    def read(call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(model: Any, tokens: Any, *arguments: Any, **named: Any) -> Any:
            spent["tokens"] += tokens.numel()
            spent["forwards"] += 1
            return call(model, tokens, *arguments, **named)

        return wrapped

    def written(call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(model: Any, context: Any, *arguments: Any, **named: Any) -> Any:
            tokens = call(model, context, *arguments, **named)
            spent["tokens"] += tokens.numel()
            return tokens

        return wrapped

    HFLM.loglikelihood_rolling = timed(HFLM.loglikelihood_rolling)
    HFLM.generate_until = timed(HFLM.generate_until)
    HFLM._loglikelihood_tokens = counted(HFLM._loglikelihood_tokens)
    HFLM._model_call = read(HFLM._model_call)
    HFLM._model_generate = written(HFLM._model_generate)
    sys.argv = ["lm_eval", *words]
    cli_evaluate()
    notes.write_text(json.dumps(spent))


def hf_arguments(folder: Path, max_length: int, dtype: str = "float32") -> str:
    """Settings of lm_eval's model; likelihoods are float32 whatever its dtype, as lexbench's."""
    softmax = "" if dtype == "float32" else ",softmax_dtype=float32"
    return f"pretrained={folder},dtype={dtype},max_length={max_length}{softmax}"


def widened(model: Path, vocabulary: int, out: Path) -> Path:
    """The model with new rows in its embeddings and head, up to so many tokens: what the vocabularies of users cost."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    network = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    torch.manual_seed(0)
    network.resize_token_embeddings(vocabulary, mean_resizing=False)
    network.save_pretrained(out)
    AutoTokenizer.from_pretrained(model).save_pretrained(out)
    return out


def task_file(folder: Path, name: str, documents: Sequence[Mapping[str, Any]], text: str) -> None:
    """A task of lm_eval over documents of our own: `text` are the lines of its yaml that say what is asked."""
    folder.mkdir(parents=True, exist_ok=True)
    data = folder / f"{name}.jsonl"
    data.write_text("".join(f"{json.dumps(each)}\n" for each in documents), encoding="utf-8")
    head = f"task: {name}\ndataset_path: json\ndataset_kwargs:\n  data_files:\n    test: {data}\ntest_split: test\n"
    (folder / f"{name}.yaml").write_text(f"{head}{text}", encoding="utf-8")


def header(title: str) -> None:
    """Print a record's beginning: what it is, on which machine, by which command."""
    sys.path.insert(0, str(ROOT))
    from importlib.metadata import PackageNotFoundError, version

    from lexbench.core.machine import collect_provenance

    machine = collect_provenance()
    packages = dict(machine["packages"])
    try:
        packages["lm_eval"] = version("lm_eval")
    except PackageNotFoundError:
        packages["lm_eval"] = None
    versions = ", ".join(f"{name} {packages[name]}" for name in ("torch", "transformers", "lm_eval") if packages[name])
    threads = os.environ.get("OMP_NUM_THREADS", "as many as cores")
    print(f"# {title}\n")
    print(
        f"{machine['processor']}, {machine['cores']} cores, threads: {threads}, "
        f"{machine['memory_bytes'] / 2**30:.0f} GiB; lexbench {machine['lexbench']}, {versions}; "
        f"load at the start {os.getloadavg()[0]:.1f}; {time.strftime('%Y-%m-%d', time.gmtime())}\n"
    )
    print(f"    python {' '.join(['tools/' + Path(sys.argv[0]).name, *map(shlex.quote, sys.argv[1:])])}\n")


def row(*cells: object) -> None:
    """Print one row of a table, at once."""
    print(f"| {' | '.join(map(str, cells))} |", flush=True)


def table(*names: str) -> None:
    """Print a table's head: names that begin with `:` are of text, the others of numbers."""
    print()
    row(*(name.removeprefix(":") for name in names))
    row(*("---" if name.startswith(":") else "---:" for name in names))


def median(values: Iterable[float]) -> float:
    return statistics.median(values)


if __name__ == "__main__":
    noted(Path(sys.argv[1]), sys.argv[2:])
