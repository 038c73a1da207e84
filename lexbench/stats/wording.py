"""How comparisons say things: names that others chose, numbers in the unit of their metric, counts."""

from collections.abc import Sequence

from lexbench.stats import metrics


def plain(text: object) -> str:
    """Text of unknown origin in one line: control characters are spaces, and a log's old commands are broken up."""
    line = "".join(letter if letter.isprintable() else " " for letter in str(text))
    return " ".join(line.split()).replace("##[", "## [")


def escaped(text: object) -> str:
    """The same as plain words of Markdown: no link, tag, code or column can begin in it."""
    return "".join(f"\\{letter}" if letter in "\\`*[]<>|~" else letter for letter in plain(text))


def cell(text: object) -> str:
    """The same for the first column of `entries.columns`, which escapes what separates columns."""
    return escaped(text).replace("\\|", "|")


def several(count: int, noun: str) -> str:
    """`1 cell`, `2 cells`."""
    return f"{count} {noun}{'s' if count != 1 else ''}"


def some(names: Sequence[str], most: int = 6, between: str = ", ") -> str:
    """The first few of many names."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return plain(between.join(names[:most])) + more if names else "nothing"


def listed(lengths: Sequence[int]) -> str:
    """`512, 1024`, each once and in order."""
    return ", ".join(map(str, sorted(set(lengths))))


def scale(metric: str) -> float:
    """What turns a metric into the unit in which it is shown: scores are shown in points."""
    return 100.0 if metrics.is_score(metric) else 1.0


def unit(metric: str) -> str:
    """Of values and differences as they are shown."""
    return "points" if metrics.is_score(metric) else "nats per token" if metric == "nll" else "as measured"


def short_unit(metric: str) -> str:
    """The unit behind a number."""
    return {"points": " points", "nats per token": " nats"}.get(unit(metric), "")


def value(metric: str, number: float) -> str:
    """A value of the metric, in its unit."""
    return f"{scale(metric) * number:{_digits(metric)}}"


def change(metric: str, number: float) -> str:
    """A difference of the metric, in its unit, with its sign."""
    return signed(scale(metric) * number, _digits(metric))


def signed(value: float, digits: str = ".3f") -> str:
    """With its sign, unless it rounds to zero."""
    text = f"{value:+{digits}}"
    return text if float(text) else text[1:]


def small(p: float) -> str:
    """A p-value; 0 is never said."""
    return f"{p:.2g}" if p >= 1e-4 else "<0.0001"


def _digits(metric: str) -> str:
    return ".1f" if metrics.is_score(metric) else ".3f" if metric == "nll" else ".4g"
