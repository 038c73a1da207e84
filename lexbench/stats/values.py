"""Display of a record's value: digits, shares, notes."""

from collections.abc import Iterator

from lexbench.core.record import Record
from lexbench.stats import metrics
from lexbench.stats.wording import count_with_noun

FAILED_SAMPLE_TREATMENTS = ("left out of the value", "counted as 0")
"""Treatment of failed samples: for likelihoods and measures, and for scores."""


def format_share(count: int, of: int) -> str:
    """A share in whole percents; 0% and 100% only where exact."""
    return f"{0 if count == 0 else 100 if count == of else min(99, max(1, round(100 * count / of)))}%"


def sample_count(record: Record) -> int:
    """Number of samples of the cell or part, with failed ones that the value leaves out."""
    held = metrics.is_score(record.metric) or record.metric in metrics.DETECTION_METRICS
    return record.n if held else record.n + record.failed


def value_notes(record: Record, n: int | None = None) -> Iterator[str]:
    """Notes on a value. `n`: samples that the cell should have; None: not checked."""
    samples = sample_count(record)
    if record.refused:
        yield f"refused: {' '.join(record.refused.split())}"
        return
    # A rate is one of half of the questions, those with an answer or those without.
    if n is not None and record.metric not in (None, "hit_rate", "false_alarm_rate") and samples != n:
        yield f"{count_with_noun(samples, 'sample')} of {n} asked"
    if record.failed:
        fate = FAILED_SAMPLE_TREATMENTS[metrics.is_score(record.metric)] if record.metric else "no score"
        yield f"{record.failed} of {samples or n} samples failed, {fate}"
    if record.value is not None and record.low is None:
        yield f"no interval: {count_with_noun(record.clusters, 'cluster')}"


def format_record_value(record: Record, value: float) -> str:
    """A value with the digits of its metric."""
    if record.metric in ("perplexity", "word_perplexity"):
        return f"{value:.2f}" if value < 100 else f"{value:.0f}" if value < 1e5 else f"{value:.1e}"
    if record.metric in metrics.MEASURE_LABELS:
        return f"{value:.4g}"
    return f"{value:.2f}" if metrics.is_score(record.metric) and record.n < 100 else f"{value:.3f}"
