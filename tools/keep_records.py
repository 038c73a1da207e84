"""Keep the records and costs of a run as one Parquet file, without its cells: python tools/keep_records.py RUN FILE

A row is a record (docs/files.md), with the seconds and tokens that measuring its cell took; the file's metadata holds
the machines and versions of the run's jobs. `pandas.read_parquet` reads it.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

sys.path.insert(0, str(Path(__file__).parents[1]))

from lexbench.core.record import Record
from lexbench.stats import costs
from lexbench.stats.records import build_records

COSTS = ("seconds", "tokens")


def keep_records(run: Path, file: Path) -> None:
    """Write the file from the cells, costs.jsonl and jobs/ of a run folder."""
    spent = costs.costs_of_file(run / "costs.jsonl")
    records = [record.as_row() for record in build_records([run])]
    rows = [each | {name: getattr(spent.get(each["cell"]), name, None) for name in COSTS} for each in records]
    jobs = (json.loads(job.read_text(encoding="utf-8")) for job in sorted((run / "jobs").glob("*.json")))
    machines = {json.dumps(job["provenance"], sort_keys=True) for job in jobs}
    table = pa.Table.from_pylist(rows).replace_schema_metadata({"provenance": f"[{', '.join(sorted(machines))}]"})
    # Most columns repeat a few values; those that do not are smaller without a dictionary.
    pq.write_table(table, file, compression="zstd", compression_level=19, use_dictionary=repeated(table))


def repeated(table: pa.Table) -> list[str]:
    """Columns of which every value stands in four rows, on average."""
    return [name for name in table.column_names if 4 * len(table.column(name).unique()) <= len(table)]


def read_records(file: Path) -> list[Record]:
    """Records of such a file, in the order of the run's."""
    rows = pq.read_table(file).to_pylist()
    return [Record(**{name: value for name, value in row.items() if name not in COSTS}) for row in rows]


def main(words: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="run folder")
    parser.add_argument("file", type=Path, help="Parquet file to write")
    asked = parser.parse_args(words)
    keep_records(asked.run, asked.file)


if __name__ == "__main__":
    main()
