"""Records as they stand in Markdown tables: digits, intervals, truncated shares and notes."""

from collections.abc import Iterator, Sequence

from lexbench.core.record import Record
from lexbench.stats import metrics
from lexbench.stats.wording import several

CUT = "cut: share of the samples that were truncated."
"""Said below a table whose entries have that share."""
FATES = ("left out of the value", "counted as 0")
"""Of samples that failed: of likelihoods and measures, and of scores."""


def columns(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a Markdown table: its first column to the left, the others to the right, each of one width.

    Of three characters or more: a rule of one, `:`, is no Markdown.
    """
    safe = [[label.replace("|", "\\|"), *entries] for label, *entries in rows]
    widths = [max(3, *(len(line[column]) for line in [head, *safe])) for column in range(len(head))]
    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    return [_line(row, widths) for row in (head, rule, *safe)]


def _line(texts: Sequence[str], widths: Sequence[int]) -> str:
    first, *others = zip(texts, widths, strict=True)
    return f"| {first[0]:<{first[1]}} | " + " | ".join(f"{text:>{width}}" for text, width in others) + " |"


def best_of(records: Sequence[Record]) -> str | None:
    """The best value of a column, as it is shown; None where all are shown alike, and where no side is better."""
    known = {number(record, record.value): record.value for record in records if record.value is not None}
    side = max((metrics.better(record.metric) for record in records if record.value is not None), default=0)
    return max(known, key=lambda shown: side * known[shown]) if side and len(known) > 1 else None


def entry(
    record: Record,
    notes: dict[str, int],
    *,
    best: str | None = None,
    counted: bool = False,
    truncated: bool = False,
    asked: int | None = None,
) -> str:
    """A value as it stands in a table: value, interval, and marks of its notes, which are added to `notes`.

    Args:
        record: what is shown.
        notes: the notes of the table by their text, and their marks.
        best: the column's best value as it is shown: it is bold.
        counted: whether the number of samples stands beside the value.
        truncated: whether the truncated share stands beside the value.
        asked: samples that the cell should have; None: not said.
    """
    if record.value is None:
        text = "refused" if record.refused else "no value"
    else:
        text = number(record, record.value)
        text = f"**{text}**" if text == best else text
        if record.low is not None and record.high is not None:
            text += f" [{number(record, record.low)}, {number(record, record.high)}]"
        if counted:
            text += f" n {record.n}"
        if truncated:
            text += f" {share(record.truncated, samples_of(record))} cut"
    marks = [notes.setdefault(note, len(notes) + 1) for note in _notes(record, asked)]
    return f"{text} ({', '.join(map(str, marks))})" if marks else text


def noted(notes: dict[str, int]) -> list[str]:
    """The notes behind their marks."""
    return [f"({mark}) {text}" for text, mark in notes.items()]


def share(count: int, of: int) -> str:
    """A share in whole percents; 0% and 100% only where it is nothing or all."""
    return f"{0 if count == 0 else 100 if count == of else min(99, max(1, round(100 * count / of)))}%"


def samples_of(record: Record) -> int:
    """Samples of the cell or part: those behind the value, and those that failed and are left out of it."""
    return record.n if metrics.is_score(record.metric) else record.n + record.failed


def _notes(record: Record, asked: int | None) -> Iterator[str]:
    """What a reader must know of a value."""
    samples = samples_of(record)
    if record.refused:
        yield f"refused: {' '.join(record.refused.split())}"
        return
    if asked is not None and record.metric is not None and samples != asked:
        yield f"{several(samples, 'sample')} of {asked} asked"
    if record.failed:
        fate = FATES[metrics.is_score(record.metric)] if record.metric else "no score"
        yield f"{record.failed} of {samples or asked} samples failed, {fate}"
    if record.value is not None and record.low is None:
        yield f"no interval: {several(record.clusters, 'cluster')}"


def number(record: Record, value: float) -> str:
    """A value with as many digits as its metric deserves."""
    if record.metric in ("perplexity", "word_perplexity"):
        return f"{value:.2f}" if value < 100 else f"{value:.0f}" if value < 1e5 else f"{value:.1e}"
    if record.metric in metrics.MEASURES:
        return f"{value:.4g}"
    return f"{value:.2f}" if metrics.is_score(record.metric) and record.n < 100 else f"{value:.3f}"
