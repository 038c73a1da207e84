"""LongBench and LongBench-E (Bai et al., arXiv 2308.14508): data sets, official metrics, published predictions."""

from lexbench.taskkit.longbench.datasets import (
    BUCKET_BOUNDS_WORDS,
    CODE_SIMILARITIES,
    LONGBENCH_DATASETS,
    LONGBENCH_E,
    Dataset,
    bucket_names,
    bucket_of_length,
    check_similarity,
    dataset_named,
    official_score,
    summary_scores,
)
from lexbench.taskkit.longbench.examples import Missing, Source, read_examples, source_from_hub
from lexbench.taskkit.longbench.rescore import rescore_predictions, score_folder
from lexbench.taskkit.rescored import Rescored, as_data, as_table

__all__ = [
    "BUCKET_BOUNDS_WORDS",
    "CODE_SIMILARITIES",
    "LONGBENCH_DATASETS",
    "LONGBENCH_E",
    "Dataset",
    "Missing",
    "Rescored",
    "Source",
    "as_data",
    "as_table",
    "bucket_names",
    "bucket_of_length",
    "check_similarity",
    "dataset_named",
    "official_score",
    "read_examples",
    "rescore_predictions",
    "score_folder",
    "source_from_hub",
    "summary_scores",
]
