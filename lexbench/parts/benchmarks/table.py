"""Public benchmarks: formats, official scorers with their faults and repaired ones, scores of published predictions.

No text of a benchmark is in here: data and prompts are read from the user's own copy.
"""

import csv
from collections.abc import Iterator
from pathlib import Path

from lexbench.core.errors import ConfigError
from lexbench.core.files import why_not_a_folder
from lexbench.parts.benchmarks import (
    babilong,
    graphwalks,
    helmet,
    infinitebench,
    longbench2,
    lveval,
    mrcr,
    nolima,
    ruler,
)
from lexbench.parts.benchmarks.base import Benchmark, BenchmarkExample, BenchmarkRequest, Message
from lexbench.parts.benchmarks.copy import BenchmarkFiles, find_files
from lexbench.taskkit import rescored
from lexbench.taskkit.rescored import as_table

BENCHMARK_OF_NAME = {
    "mrcr": mrcr.MRCR,
    "mrcr_v2": mrcr.MRCR_V2,
    "graphwalks": graphwalks.GRAPHWALKS,
    "longbench_v2": longbench2.LONGBENCH_V2,
    "babilong": babilong.BABILONG,
    "infinitebench": infinitebench.INFINITEBENCH,
    "nolima": nolima.NOLIMA,
    "helmet": helmet.HELMET,
    "lveval": lveval.LVEVAL,
    "ruler_official": ruler.RULER,
}
RESCORER_OF_BENCHMARK = {"babilong": babilong.rescore, "infinitebench": infinitebench.rescore}

__all__ = [
    "BENCHMARK_OF_NAME",
    "Benchmark",
    "BenchmarkExample",
    "BenchmarkFiles",
    "BenchmarkRequest",
    "Message",
    "find_files",
    "read_examples",
    "score_folder",
]


def read_examples(benchmark: Benchmark, asked: BenchmarkRequest) -> Iterator[BenchmarkExample]:
    """The examples of a copy in the official order; ConfigError, in one line, for rows or wording of another form."""
    try:
        yield from benchmark.examples(asked)
    except (LookupError, TypeError, AttributeError, UnicodeError, csv.Error, OverflowError, RecursionError) as error:
        reason = " ".join(str(error).split())[:80] or type(error).__name__
        raise ConfigError(
            f"{asked.files.places[0]} or its prompts have another form than {benchmark.title} ({reason}): "
            "give the official files"
        ) from None


def score_folder(benchmark: str, folder: str | Path, scorer: str = "official", as_json: bool = False) -> str:
    """The output of `lexbench score`: table or JSON; ConfigError for a folder or file of another form."""
    place = Path(folder).expanduser()
    if not place.is_dir():
        raise ConfigError(f"folder {folder} {why_not_a_folder(place)}: give one with predictions of {benchmark}")
    rows = RESCORER_OF_BENCHMARK[benchmark](place, scorer)
    return rescored.as_json(rows) if as_json else as_table(rows)
