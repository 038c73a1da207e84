"""Keep the samples of a run as one Parquet file, without its prompts: python tools/keep_samples.py RUN FILE

A row is a sample: its cell, what was written and what was expected, where the key stood, chance, scores, and what each
target lost. `tools/recompute.py` computes the figures of the pages from such files.
"""

import argparse
import functools
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

sys.path.insert(0, str(Path(__file__).parents[1]))

from lexbench.core.groups import group_by_key
from lexbench.core.record import Cell, Sample, expected_texts
from lexbench.metrics.chosen import NLL_STATISTIC
from lexbench.stats.costs import costs_of_file
from lexbench.stats.records import cells_of_most_questions, load_cells
from lexbench.store.cell_rows import read_cell
from lexbench.store.format import FinishedCell, cell_line
from tools import recompute

COLUMNS = pa.schema(
    [
        pa.field("cell", pa.string()),
        pa.field("seconds", pa.float64()),
        pa.field("index", pa.int64()),
        pa.field("cluster", pa.string()),
        pa.field("output", pa.string()),
        pa.field("expected", pa.list_(pa.string())),
        pa.field("keys", pa.list_(pa.string())),
        pa.field("depth", pa.float64()),
        pa.field("chance", pa.float64()),
        pa.field("scores", pa.string()),
        pa.field("facts", pa.string()),
        pa.field("floors", pa.string()),
        pa.field("targets", pa.int64()),
        pa.field("nll_sum", pa.float64()),
        pa.field("nll", pa.list_(pa.float16())),
        pa.field("option_nll", pa.list_(pa.float32())),
    ]
)
"""`cell`: JSON, with all that a cell's identity holds. `seconds`: of the whole cell. `keys`: those of the text, where
its questions do not name them all. `scores`, `facts` and `floors`: JSON. `nll`: nats of each target, rounded;
`nll_sum` is the sum of those that were measured. `option_nll`: nats of each option behind the prompt."""
OWN_COLUMNS = ("expected", "keys_in_text", "depth")
"""Facts that have a column."""
REPEATED = [
    "cell",
    "seconds",
    "cluster",
    "output",
    "expected",
    "keys",
    "depth",
    "chance",
    "scores",
    "facts",
    "floors",
    "targets",
]
"""Columns that are smaller with a dictionary."""


def sample_row(cell: Cell, seconds: float | None, sample: Sample) -> dict[str, Any]:
    """The row of a sample."""
    nll, facts, options = sample.nll, sample.facts, sample.statistics.get(NLL_STATISTIC)
    return {
        "cell": cell_line(cell).decode(),
        "seconds": seconds,
        "index": sample.index,
        "cluster": sample.cluster,
        "output": sample.output,
        "expected": expected_texts(facts.get("expected")) or None,
        "keys": expected_texts(facts.get("keys_in_text")) or None,
        "depth": sample.depth,
        "chance": sample.chance,
        "scores": json.dumps(dict(sample.scores)),
        "facts": json.dumps({name: value for name, value in facts.items() if name not in OWN_COLUMNS}),
        "floors": json.dumps(dict(sample.floors)),
        "targets": None if nll is None else len(nll),
        "nll_sum": None if nll is None else float(nll.astype(np.float64).sum()),
        "nll": None if nll is None else nll.astype(np.float16),
        "option_nll": None if options is None else np.asarray(options, np.float32),
    }


def rows_of_run(run: Path) -> list[dict[str, Any]]:
    """The rows of all samples of a run folder."""
    seconds = {name: cost.seconds for name, cost in costs_of_file(run / "costs.jsonl").items()}
    return [
        sample_row(each.cell, seconds.get(each.cell.id), sample)
        for each in load_cells([run]).finished
        for sample in each.samples
    ]


@functools.cache
def cell_of(line: str) -> Cell:
    """The cell of a row."""
    return read_cell(json.loads(line), "its identity")


def with_key_scores(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The rows; samples of `passkey` have the scores that their answers tell, where the task gave none."""
    found = []
    for line, group in group_by_key(rows, lambda row: row["cell"]).items():
        told = cell_of(line).task_name == "passkey" and all(
            row["expected"] and row["output"] is not None for row in group
        )
        derived = recompute.key_scores(group) if told else [{}] * len(group)
        for row, scores in zip(group, derived, strict=True):
            found.append({**row, "scores": json.dumps(scores | json.loads(row["scores"]))})
    return found


def add_rows(file: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Add rows to a file. Rows of the same cells are replaced; of cells that differ in their number of questions alone
    that of the most stays."""
    cells = {cell_of(row["cell"]).id for row in rows}
    kept = pq.read_table(file).to_pylist() if file.exists() else []
    joined = [*(row for row in kept if cell_of(row["cell"]).id not in cells), *rows]
    most = cells_of_most_questions(cells_of_rows(joined))
    write_rows(file, [row for row in joined if cell_of(row["cell"]).id in most])


def write_rows(file: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write a file of samples, the rows of a cell together."""
    file.parent.mkdir(parents=True, exist_ok=True)
    table = pa.Table.from_pylist(with_key_scores(rows), schema=COLUMNS)
    pq.write_table(table, file, compression="zstd", compression_level=19, use_dictionary=REPEATED)


def read_cells(file: Path) -> list[FinishedCell]:
    """The cells of a file with their samples. Where only the sum of losses was kept, each target has its mean."""
    return cells_of_rows(pq.read_table(file).to_pylist())


def cells_of_rows(rows: Iterable[Mapping[str, Any]]) -> list[FinishedCell]:
    """The cells of rows, their samples in order."""
    groups = group_by_key(rows, lambda row: row["cell"])
    return [
        FinishedCell(cell_of(line), [_sample_of(row) for row in sorted(each, key=lambda row: row["index"])])
        for line, each in groups.items()
    ]


def _sample_of(row: Mapping[str, Any]) -> Sample:
    targets = row["targets"]
    nll = None
    if targets is not None:
        parts = np.full(targets, row["nll_sum"] / targets) if row["nll"] is None else np.asarray(row["nll"], np.float64)
        nll = parts + (row["nll_sum"] - parts.sum()) / targets
    return Sample(
        index=row["index"],
        cluster=row["cluster"],
        tokens=cell_of(row["cell"]).length,
        nll=nll,
        scores=json.loads(row["scores"]),
        chance=row["chance"],
        output=row["output"],
        depth=row["depth"],
        floors=json.loads(row["floors"] or "{}"),
        facts=json.loads(row["facts"] or "{}")
        | {fact: row[name] for name, fact in (("expected", "expected"), ("keys", "keys_in_text")) if row[name]},
    )


def main(words: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="run folder")
    parser.add_argument("file", type=Path, help="Parquet file to write, or to add to")
    asked = parser.parse_args(words)
    add_rows(asked.file, rows_of_run(asked.run))


if __name__ == "__main__":
    main()
