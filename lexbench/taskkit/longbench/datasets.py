"""The 21 data sets of LongBench, the 13 of LongBench-E, and the official scores of each."""

import difflib
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from lexbench.core.errors import ConfigError
from lexbench.taskkit.longbench import metrics

CODE_SIMILARITIES = ("difflib", "levenshtein")
"""Two ways to compute code similarity. Published numbers use either: fuzzywuzzy takes what is installed."""
BUCKET_BOUNDS_WORDS = (4000, 8000)
"""Bounds of LongBench-E's buckets, in words."""


@dataclass(frozen=True)
class Dataset:
    """Facts of one data set."""

    kind: str
    metric: str
    room: int
    """Tokens to write, by the official limit."""
    n: int = 200
    """Examples in LongBench."""
    n_e: int | None = None
    """Examples in LongBench-E; None: not in LongBench-E."""
    chinese: bool = False

    @property
    def chat(self) -> bool:
        """Whether the chat template is used: not for few-shot examples and code."""
        return self.kind not in ("few-shot", "code")

    @property
    def first_line(self) -> bool:
        """Whether only the first non-blank line of the answer counts."""
        return self.kind == "few-shot"

    @property
    def unit(self) -> str:
        """Unit of the stored `length`, which covers input, context and answers."""
        return "characters" if self.chinese else "words"

    def metric_name(self, similarity: str = "difflib") -> str:
        """The official metric with the kind of similarity, if it has one: `code_sim_levenshtein`."""
        return f"{self.metric}_{similarity}" if self.metric == "code_sim" else self.metric


LONGBENCH_DATASETS: Mapping[str, Dataset] = {
    "narrativeqa": Dataset("single-document", "qa_f1", 128),
    "qasper": Dataset("single-document", "qa_f1", 128, n_e=224),
    "multifieldqa_en": Dataset("single-document", "qa_f1", 64, n=150, n_e=150),
    "multifieldqa_zh": Dataset("single-document", "qa_f1_zh", 64, chinese=True),
    "hotpotqa": Dataset("multi-document", "qa_f1", 32, n_e=300),
    "2wikimqa": Dataset("multi-document", "qa_f1", 32, n_e=300),
    "musique": Dataset("multi-document", "qa_f1", 32),
    "dureader": Dataset("multi-document", "rouge_l_zh_official", 128, chinese=True),
    "gov_report": Dataset("summary", "rouge_l_official", 512, n_e=300),
    "qmsum": Dataset("summary", "rouge_l_official", 512),
    "multi_news": Dataset("summary", "rouge_l_official", 512, n_e=294),
    "vcsum": Dataset("summary", "rouge_l_zh_official", 512, chinese=True),
    "trec": Dataset("few-shot", "classification", 64, n_e=300),
    "triviaqa": Dataset("few-shot", "qa_f1", 32, n_e=300),
    "samsum": Dataset("few-shot", "rouge_l_official", 128, n_e=300),
    "lsht": Dataset("few-shot", "classification", 64, chinese=True),
    "passage_count": Dataset("synthetic", "count", 32, n_e=300),
    "passage_retrieval_en": Dataset("synthetic", "retrieval", 32, n_e=300),
    "passage_retrieval_zh": Dataset("synthetic", "retrieval_zh", 32, chinese=True),
    "lcc": Dataset("code", "code_sim", 64, n=500, n_e=300),
    "repobench-p": Dataset("code", "code_sim", 64, n=500, n_e=300),
}
"""Data sets in the order of pred.py, with limits from dataset2maxlen.json, metrics from eval.py, sizes from task.md."""

LONGBENCH_E = tuple(name for name, dataset in LONGBENCH_DATASETS.items() if dataset.n_e is not None)


def dataset_named(name: str, choices: Iterable[str] = LONGBENCH_DATASETS) -> Dataset:
    """A data set by name; ConfigError with the choices for an unknown name."""
    names = list(choices)
    if name not in names:
        close = difflib.get_close_matches(name, names, n=1)
        hint = f"did you mean {close[0]}? " if close else ""
        raise ConfigError(f"unknown data set {name!r}: {hint}choose from {', '.join(names)}")
    return LONGBENCH_DATASETS[name]


def check_similarity(similarity: str) -> None:
    """ConfigError with the choices for an unknown kind of similarity."""
    if similarity not in CODE_SIMILARITIES:
        raise ConfigError(f"similarity must be one of {', '.join(CODE_SIMILARITIES)}, got {similarity!r}")


def official_score(
    dataset: str, prediction: str, answers: Sequence[str], classes: Sequence[str] | None, similarity: str = "difflib"
) -> float:
    """The official score of one prediction, in [0, 1]: the best over all right answers.

    Raises ConfigError if an answer of a retrieval set names no paragraph.

    Args:
        dataset: name of the data set.
        prediction: the written answer.
        answers: all right answers.
        classes: for classification, in the data's order, which affects the score (see `metrics.classification`).
        similarity: for code, one of `CODE_SIMILARITIES`.
    """
    metric = LONGBENCH_DATASETS[dataset].metric_name(similarity)
    if metric == "classification":
        return _best(dataset, prediction, answers, lambda p, a: metrics.classification(p, a, classes or ()))
    # Metrics are functions of `metrics` by their names in LONGBENCH_DATASETS.
    return _best(dataset, prediction, answers, getattr(metrics, metric))


def summary_scores(dataset: str, prediction: str, answers: Sequence[str]) -> dict[str, float]:
    """ROUGE-L of `rouge-score` by name, if the official metric is a ROUGE-L; otherwise empty."""
    metric = LONGBENCH_DATASETS[dataset].metric
    if not metric.startswith("rouge_l"):
        return {}
    name = metric.removesuffix("_official")
    return {name: _best(dataset, prediction, answers, getattr(metrics, name))}


def bucket_of_length(length: int, bounds: Sequence[int] = BUCKET_BOUNDS_WORDS) -> str:
    """The bucket of a length: `0-4k`, `4-8k`, `8k+`; a bound belongs to the higher bucket."""
    return bucket_names(bounds)[sum(length >= bound for bound in bounds)]


def bucket_names(bounds: Sequence[int] = BUCKET_BOUNDS_WORDS) -> list[str]:
    """All buckets in order; ConfigError unless the bounds are above 0 and ascend."""
    edges = [0, *bounds]
    if not bounds or any(low >= high for low, high in itertools.pairwise(edges)):
        raise ConfigError(f"buckets must be ascending lengths above 0, got {list(bounds)}: e.g. 4000,8000")
    shown = [f"{edge / 1000:g}" for edge in edges]
    return [*(f"{low}-{high}k" for low, high in itertools.pairwise(shown)), f"{shown[-1]}k+"]


def _best(dataset: str, prediction: str, answers: Sequence[str], metric: Callable[[str, str], float]) -> float:
    if LONGBENCH_DATASETS[dataset].first_line:
        prediction = prediction.lstrip("\n").split("\n")[0]
    return max([0.0, *(metric(prediction, answer) for answer in answers)])
