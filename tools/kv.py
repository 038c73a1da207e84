"""Divergence of compressed caches, each text read once for all of them: python tools/kv.py smollm2 FILE.parquet

The same questions, answers and page as `lexbench kv`, in another order: question by question, so that a prompt is read
once for all settings that leave it as it is, and once more for each that drops tokens. Every answer is kept at once,
and the same command goes on from them; it ends when all are there, or with exit code 3 after `--minutes`. The page of
all that is there is printed at the end.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import pyarrow as pa
import pyarrow.parquet as pq

import lexbench
from lexbench.backends.hf.backend import Hf
from lexbench.checkpoints.checkpoint import read_model
from lexbench.core import registry
from lexbench.core.record import Cell, Sample
from lexbench.methods.composition import read_method
from lexbench.methods.scaled import attention_of
from lexbench.parts.kv import settings, table
from lexbench.runner import verify

CHECKED = 256
"""Tokens of the text on which each setting is checked before anything is measured."""
SCORES = ("kld", "same_top", "nll_rise")
Key = tuple[int, int, str]
"""Length, index and setting of an answer."""


def read(file: Path) -> dict[Key, dict[str, Any]]:
    """The answers so far."""
    rows = pq.read_table(file).to_pylist() if file.exists() else []
    return {(row["length"], row["index"], row["setting"]): row for row in rows}


def write(file: Path, rows: dict[Key, dict[str, Any]]) -> None:
    """Replace the file, whole."""
    made = file.with_suffix(".new")
    pq.write_table(pa.Table.from_pylist([rows[key] for key in sorted(rows)]), made, compression="zstd")
    made.replace(file)


def measure(backend: Hf, task: Any, counts: dict[int, int], known: dict[str, Any], file: Path, until: float) -> bool:
    """Answer what is not there yet, until a time; whether all answers are there."""
    rows, most = read(file), max(counts.values())
    questions = {length: task.questions(backend.tokenizer, length, most, 0)[:count] for length, count in counts.items()}
    for length, index in ((length, index) for length, count in sorted(counts.items()) for index in range(count)):
        for setting in known:
            if (length, index, setting) in rows:
                continue
            if time.monotonic() > until:
                return False
            question = questions[length][index]
            backend.attend(attention_of(known[setting], backend.model, length))
            sample = task.score(question, backend.diverge(question))
            about = {"length": length, "index": index, "setting": setting, "cluster": sample.cluster}
            rows[length, index, setting] = about | {name: sample.scores[name] for name in SCORES}
            write(file, rows)
    return True


def page(backend: Hf, corpus: str, protocol: str, known: dict[str, Any], keys: dict[str, Any], file: Path) -> str:
    """The page of `lexbench kv` of all answers."""
    found = read(file)
    longest = max(length for length, _, _ in found)
    rows = {setting: table.row_of(keys[setting], method, backend.model, longest) for setting, method in known.items()}
    for (length, index, setting), row in found.items():
        if setting not in rows:
            continue
        scores = {name: row[name] for name in SCORES}
        sample = Sample(index=index, cluster=row["cluster"], tokens=length, scores=scores)
        rows[setting].divergences.setdefault(length, []).append(sample)
    lengths = sorted({length for row in rows.values() for length in row.divergences})
    about = Cell(
        model=backend.model.name,
        method=keys[next(iter(known))],
        task="divergence",
        length=lengths[-1],
        trained_length=backend.model.trained_length,
        seed=0,
        n=0,
        protocol=protocol,
        backend=backend.name,
        dtype=backend.dtype,
        kernel=backend.kernel,
        corpus=corpus,
        version=lexbench.__version__,
        identity={},
    )
    return table.page(
        [row for row in rows.values() if row.divergences], about, backend.model, lengths, table.DEFAULT_MARGIN_NATS
    )


def main(words: Sequence[str] | None = None) -> int:
    """0: all answers are there; 3: some are left."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="name of its yaml")
    parser.add_argument("file", type=Path, help="Parquet file of the answers")
    parser.add_argument("--lengths", nargs="+", default=["512:32", "2048:32", "8192:16"], metavar="LENGTH:N")
    parser.add_argument("--targets", type=int, default=64)
    parser.add_argument("--method", default="none", help="of positions")
    parser.add_argument("--settings", nargs="+", default=settings.default_settings())
    parser.add_argument("--corpus", default="packages")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--minutes", type=float, default=float("inf"))
    asked = parser.parse_args(words)
    until = time.monotonic() + 60 * asked.minutes
    counts = {int(length): int(n) for length, n in (each.split(":") for each in asked.lengths)}
    base = {"name": asked.method, **registry.read_named_config("method", asked.method)}
    built = {setting: read_method(settings.compress_method(base, setting)) for setting in asked.settings}
    known = {setting: method for setting, (_, method, _) in built.items()}
    keys = {setting: key for setting, (_, _, key) in built.items()}
    backend = Hf(read_model(registry.read_named_config("model", asked.model)), dtype=asked.dtype)
    task = lexbench.task("divergence", asked.corpus, targets=asked.targets, longest=max(counts))
    for setting, method in known.items():
        checks = verify.verify_attention(backend, attention_of(method, backend.model, CHECKED), CHECKED)
        assert verify.failure_of_checks(checks) is None, f"{setting}: {checks}"
    whole = measure(backend, task, counts, known, asked.file, until)
    if read(asked.file):
        print(page(backend, asked.corpus, task.protocol(backend.tokenizer), known, keys, asked.file))
    return 0 if whole else 3


if __name__ == "__main__":
    sys.exit(main())
