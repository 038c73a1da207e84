"""Wording of reports: escaped names, numbers in the unit of their metric, counts."""

import re
from collections.abc import Sequence
from functools import lru_cache

from lexbench.stats import metrics


def plain_text(text: object) -> str:
    """Text of unknown origin in one line: control characters become spaces, `##[` commands of CI logs are broken."""
    line = str(text)
    if not line.isprintable():
        line = "".join(letter if letter.isprintable() else " " for letter in line)
    return " ".join(line.split()).replace("##[", "## [")


MARKDOWN_START_PATTERN = re.compile(r"[\\`*|~$&]|<(?=[A-Za-z/!?])|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])|(?<=\])\(")
"""Starts of code, emphasis, tags, columns, mathematics, entities and links; `_` inside a word starts nothing, nor does
`<` before a number."""


def escape_markdown(text: object) -> str:
    """`plain_text`, escaped for Markdown; a dollar becomes an entity, because some pages read two of them as
    mathematics."""
    return _escape_markdown(str(text))


@lru_cache(maxsize=1 << 14)  # tables repeat their texts
def _escape_markdown(text: str) -> str:
    return MARKDOWN_START_PATTERN.sub(r"\\\g<0>", plain_text(text)).replace("\\$", "&#36;")


def escape_link_text(text: object) -> str:
    """A text `escape_markdown` for the brackets of a picture or a link."""
    return escape_markdown(text).replace("[", "\\[").replace("]", "\\]")


def count_with_noun(count: int, noun: str) -> str:
    """`1 cell`, `2 cells`."""
    return f"{count} {noun}{'s' if count != 1 else ''}"


def format_ratio(ratio: float) -> str:
    """`0.5x`, `3910x`: a ratio with three digits, without an exponent from 1000 on."""
    return f"{float(f'{ratio:.3g}'):.15g}x"


def join_first_few(names: Sequence[object], most: int = 6, between: str = ", ") -> str:
    """The first few of many names."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return plain_text(between.join(map(str, names[:most]))) + more if names else "nothing"


def join_lengths(lengths: Sequence[int]) -> str:
    """`512, 1024`, each once and in order."""
    return ", ".join(map(str, sorted(set(lengths))))


def display_factor(metric: str) -> float:
    """Factor from a metric to its displayed unit: scores are shown in points."""
    return 100.0 if metrics.is_score(metric) else 1.0


def display_unit(metric: str) -> str:
    """Unit of displayed values and differences."""
    return "points" if metrics.is_score(metric) else "nats per token" if metric == "nll" else "as measured"


def short_unit(metric: str) -> str:
    """The unit behind a number."""
    return {"points": " points", "nats per token": " nats"}.get(display_unit(metric), "")


def format_metric_value(metric: str, number: float) -> str:
    """A value of the metric, in its unit."""
    return f"{display_factor(metric) * number:{metric_format(metric)}}"


def format_metric_change(metric: str, number: float) -> str:
    """A difference of the metric, in its unit, with its sign."""
    return format_signed(display_factor(metric) * number, metric_format(metric))


def format_signed(value: float, places: str = ".3f") -> str:
    """A number with its sign; without one where it rounds to zero."""
    text = f"{value:+{places}}"
    return text if float(text) else text[1:]


def format_p_value(p: float) -> str:
    """A p-value; a tiny one as `<0.0001`."""
    return f"{p:.2g}" if p >= 1e-4 else "<0.0001"


def metric_format(metric: str) -> str:
    """Decimals of a value of the metric, in its unit."""
    return ".1f" if metrics.is_score(metric) else ".3f" if metric == "nll" else ".4g"
