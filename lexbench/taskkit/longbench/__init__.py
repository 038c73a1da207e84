"""LongBench and LongBench-E (Bai et al., arXiv 2308.14508): data sets, official metrics, published predictions."""

from lexbench.taskkit.longbench.datasets import (
    BUCKETS,
    DATASETS,
    LONGBENCH_E,
    SIMILARITIES,
    Dataset,
    bucket,
    bucket_names,
    check_similarity,
    known,
    official,
    summary_scores,
)
from lexbench.taskkit.longbench.examples import Missing, Source, from_hub, read_examples
from lexbench.taskkit.longbench.rescore import rescore, score_folder
from lexbench.taskkit.rescored import Rescored, as_data, as_table

__all__ = [
    "BUCKETS",
    "DATASETS",
    "LONGBENCH_E",
    "SIMILARITIES",
    "Dataset",
    "Missing",
    "Rescored",
    "Source",
    "as_data",
    "as_table",
    "bucket",
    "bucket_names",
    "check_similarity",
    "from_hub",
    "known",
    "official",
    "read_examples",
    "rescore",
    "score_folder",
    "summary_scores",
]
