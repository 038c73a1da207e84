"""Compute the figures of the pages anew from stored samples, and compare: python tools/recompute.py [PAGE ...]

It shares no code with lexbench: it needs numpy and pyarrow, reads Parquet files and the tables of pages, and ends
with code 1 where a figure differs. A value must be the printed one to its last digit, a count the same. Each end of
an interval must lie within a tenth of the printed one's: for shares of the scale, or within what Wilson's interval of
0 in as many texts spans, the greater (11 points of 32 texts, 19 of 16); for losses and divergences of the interval's
width (a fifth of 16 texts). The own interval of shares is the percentile bootstrap over texts (Wilson's where nothing
varies). That of losses is the bootstrap-t over texts at the level that docs/statistics.md states, 97.5 % up to 32
texts: ends of a plain percentile bootstrap at 95 % lie up to a quarter of the width inside, because it is too narrow
for so few texts.
"""

import argparse
import functools
import itertools
import json
import math
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

REFERENCE = Path(__file__).parents[1] / "results" / "reference"
MEASURED_KEYS = REFERENCE / "keys" / "lexlet.parquet"
"""Keys of lexlet by all scores."""
RESAMPLES = 10_000
SHARES = {"accuracy", "contains", "exact", "in_place", "reached", "chosen", "forced", "a number written"}
Row = Mapping[str, Any]


def share_in_place(output: str, expected: Sequence[str]) -> float:
    """Share of the digits of the keys that stand at their place in the answer's numbers, the first number first.

    Keys that are written whole count in any order.
    """
    numbers, wanted, right = re.findall(r"\d+", output), list(expected), 0
    for key in expected:
        if key in numbers[: len(expected)]:
            numbers.remove(key)
            wanted.remove(key)
            right += len(key)
    for key, number in zip(wanted, numbers, strict=False):
        right += sum(a == b for a, b in zip(key, number, strict=False))
    return right / sum(map(len, expected))


def is_reached(output: str, keys: Sequence[str]) -> bool:
    """Whether the answer holds any key of its text."""
    return any(key in output for key in keys)


def is_whole(output: str, expected: Sequence[str]) -> bool:
    """Whether the answer begins with the key, quoted or not, and holds no other number."""
    (key,) = expected
    begins = re.match(r"[\s\"'`*]*" + re.escape(key) + r"(?!\d)", output) is not None
    return begins and set(re.findall(r"\d+", output)) == {key}


def key_scores(rows: Sequence[Row]) -> list[dict[str, float]]:
    """`in_place` and `reached` of the samples of a cell, whose texts ask for every key that they hold."""
    keys: dict[str, list[str]] = {}
    for row in rows:
        keys.setdefault(row["cluster"], []).extend(row["keys"] or row["expected"])
    return [
        {
            "in_place": share_in_place(row["output"], row["expected"]),
            "reached": float(is_reached(row["output"], keys[row["cluster"]])),
        }
        for row in rows
    ]


def is_chosen(row: Row) -> float:
    """Whether the right option is the likeliest; options that tie share the 1."""
    nats = np.array(row["option_nll"])
    best = np.flatnonzero(nats == nats.min())
    return 1 / len(best) if json.loads(row["facts"])["expected_option"] in best else 0.0


def share_forced(row: Row) -> float:
    """Share of the key's tokens than which no other is likelier, the right ones before them."""
    facts = json.loads(row["facts"])
    own = [bool(rank == 0) for (_, is_key), rank in zip(facts["taught"], facts["taught_ranks"], strict=True) if is_key]
    return sum(own) / len(own)


def has_number(row: Row) -> float:
    """Whether the answer holds a digit."""
    return float(re.search(r"\d", row["output"]) is not None)


OF_ROW: Mapping[str, Callable[[Row], float]] = {
    "chosen": is_chosen,
    "forced": share_forced,
    "a number written": has_number,
}
"""Scores that each row tells by itself."""


@dataclass(frozen=True, eq=False)
class Values:
    """Samples of a metric, or of paired differences."""

    sums: NDArray[np.float64]
    weights: NDArray[np.float64]
    """[samples] targets behind each sum; 1 for scores."""
    texts: Sequence[str]
    is_share: bool

    @property
    def mean(self) -> float:
        """The weighted mean."""
        return float(self.sums.sum() / self.weights.sum())

    def minus(self, other: "Values") -> "Values":
        """Paired differences; the questions must be the same."""
        assert list(self.texts) == list(other.texts) and np.array_equal(self.weights, other.weights)
        return Values(self.sums - other.sums, self.weights, self.texts, self.is_share)

    def interval(self) -> tuple[float, float]:
        """Own 95 % interval over resampled texts."""
        names, place = np.unique(self.texts, return_inverse=True)
        sums, weights = (np.bincount(place, each, len(names)).astype(np.float64) for each in (self.sums, self.weights))
        return percentile(sums, weights) if self.is_share else studentised(sums, weights)


def percentile(sums: NDArray[np.float64], weights: NDArray[np.float64]) -> tuple[float, float]:
    """The middle 95 % of the means of resampled texts; where all are equal, Wilson's ends of so many texts."""
    drawn = draw_texts(len(sums))
    means = sums[drawn].sum(1) / weights[drawn].sum(1)
    low, high = (float(each) for each in np.quantile(means, [0.025, 0.975]))
    if low < high:
        return low, high
    spread = spread_of_none(len(sums)) * (np.sqrt(2) if low == -1 else 1)
    least = -1.0 if sums.min() < 0 or low == 0 else 0.0
    return max(low - spread, least), min(high + spread, 1.0)


def spread_of_none(n: int) -> float:
    """The upper end of Wilson's interval of 0 in n."""
    squared = 1.959964**2
    return squared / (n + squared)


def studentised(sums: NDArray[np.float64], weights: NDArray[np.float64]) -> tuple[float, float]:
    """The bootstrap-t (Efron 1981), its ends 1.25 % of the resamples each up to 32 texts, 2.5 % of many."""

    def mean_and_error(s: Any, w: Any) -> tuple[Any, Any]:
        mean = s.sum(-1) / w.sum(-1)
        squares = ((s - np.asarray(mean)[..., None] * w) ** 2).sum(-1)
        return mean, np.sqrt(squares * len(sums) / (len(sums) - 1)) / w.sum(-1)

    drawn = draw_texts(len(sums))
    (mean, error), (means, errors) = mean_and_error(sums, weights), mean_and_error(sums[drawn], weights[drawn])
    tail = 0.025 * (1 - 16 / max(32, len(sums)))
    low, high = np.quantile((means - mean) / np.where(errors > 0, errors, np.inf), [tail, 1 - tail])
    return float(mean - high * error), float(mean - low * error)


@functools.cache
def draw_texts(texts: int) -> NDArray[np.int64]:
    """[resamples x texts] texts drawn with replacement, the same in every run."""
    return np.random.default_rng(texts).integers(0, texts, (RESAMPLES, texts))


@dataclass(frozen=True, eq=False)
class Cell:
    """The samples of one method on one task at one length."""

    rows: Sequence[Row]

    def values(self, metric: str) -> Values:
        """Samples of a metric; KeyError where they do not tell it."""
        texts = [row["cluster"] for row in self.rows]
        if metric == "nll":
            sums, targets = (np.array([row[name] for row in self.rows], np.float64) for name in ("nll_sum", "targets"))
            return Values(sums, targets, texts, False)
        if metric in OF_ROW:
            known = [{metric: OF_ROW[metric](row)} for row in self.rows]
        else:
            known = self._key_scores if metric in ("in_place", "reached") else self._scores
        found = np.array([each[metric] for each in known], np.float64)
        return Values(found, np.ones(len(found)), texts, metric in SHARES)

    @functools.cached_property
    def _scores(self) -> list[dict[str, float]]:
        return [json.loads(row["scores"]) for row in self.rows]

    @functools.cached_property
    def _key_scores(self) -> list[dict[str, float]]:
        return key_scores(self.rows)


Key = tuple[str, str, str, int]
"""Task, model, method and length."""


@functools.cache
def read_cells(file: Path, backend: str = "hf") -> dict[Key, Cell]:
    """The cells of a file; of several versions of a task the newest."""
    found: dict[Key, Cell] = {}
    version: dict[Key, int] = {}
    rows = sorted(pq.read_table(file).to_pylist(), key=lambda row: (row["cell"], row["index"]))
    for line, group in itertools.groupby(rows, lambda row: row["cell"]):
        stated = json.loads(line)
        key = (stated["task"], stated["model"], stated["method"], stated["length"])
        newer = stated["identity"]["task"]["version"]
        if stated["backend"] == backend and newer >= version.get(key, 0):
            version[key], found[key] = newer, Cell(list(group))
    return found


@dataclass(frozen=True)
class Table:
    """A table of a page."""

    headings: tuple[str, ...]
    """Those that it stands under, the nearest last."""
    number: int
    """Of the tables under the nearest heading, from 0."""
    head: Sequence[str]
    rows: Sequence[Sequence[str]]


def read_tables(page: Path) -> Iterator[Table]:
    """All tables of a page."""
    headings: list[str] = []
    number = 0
    for block in page.read_text(encoding="utf-8").split("\n\n"):
        if found := re.match(r"(#+) (.*)", block):
            headings = [*headings[: len(found[1]) - 1], *[""] * (len(found[1]) - 1 - len(headings)), found[2]]
            number = 0
        elif block.startswith("|"):
            lines = [[each.strip() for each in line.split("|")[1:-1]] for line in block.strip().splitlines()]
            yield Table(tuple(headings), number, lines[0], lines[2:])
            number += 1


NUMBER = r"[+-]?\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?"
FIGURE = re.compile(rf"({NUMBER})(?: of (\d+))?[*≈]*(?: \[({NUMBER}), ({NUMBER})(?: %)?\])?")


def fault_of(cell: str, values: Values, scale: float) -> str | None:
    """What differs between a printed figure and the samples; None: nothing."""
    printed = FIGURE.match(cell.replace("**", ""))
    assert printed, f"no figure in {cell!r}"
    value, count = scale * values.mean, printed[2]
    if count is not None:
        value, scale = values.sums.sum(), 100.0
        if int(count) != values.weights.sum():
            return f"of {count}, found {values.weights.sum():g}"
    if abs(value - number_of(printed[1])) > 0.5000001 * unit_of(printed[1]):
        return f"{printed[1]}, found {value:.6g}"
    if printed[3] is None:
        return None
    ends, own = [number_of(each) for each in printed.groups()[2:]], [scale * each for each in values.interval()]
    texts = len(set(values.texts))
    blur = (
        scale * max(0.1, spread_of_none(texts)) if values.is_share else 0.1 * (ends[1] - ends[0]) * max(1, 32 / texts)
    )
    allowed = blur + unit_of(printed[3])
    far = max(abs(one - other) for one, other in zip(ends, own, strict=True))
    return f"[{ends[0]}, {ends[1]}], found [{own[0]:.4g}, {own[1]:.4g}]" if far > allowed else None


def number_of(text: str) -> float:
    """A printed number."""
    return float(text.replace(",", ""))


def unit_of(text: str) -> float:
    """The unit of its last digit."""
    mantissa, _, exponent = text.partition("e")
    return float(10 ** (int(exponent or 0) - len(mantissa.partition(".")[2])))


Finder = Callable[[Table, int, str], tuple[Values, float] | None]
"""The samples behind a figure and the scale in which it is printed, by table, column and row; None: not of samples."""
SAMPLES = {
    "lexlet": "samples/lexlet.parquet",
    "stories260K": "samples/stories260K.parquet",
    "lexlet_quick": "samples/lexlet_quick.parquet",
    "small_models": "samples/small_models.parquet",
}


def find_curve(*names: str) -> Finder:
    """Figures of `## TASK on MODEL`, by length: levels, or under a unit in brackets differences to the row `none`."""
    cells = {key: cell for name in names for key, cell in read_cells(REFERENCE / SAMPLES[name]).items()}

    def find(table: Table, column: int, label: str) -> tuple[Values, float] | None:
        at = re.fullmatch(r"(\d+) \([\d.]+x\)", table.head[column])
        said = re.fullmatch(r"(.*) on (\w+)(?:: (\w+).*)?", next((each for each in table.headings[1:2]), ""))
        if not at or not said:
            return None
        named = table.headings[2] if len(table.headings) > 2 else said[3]
        metric, differs = (
            named.split(" (")[0].lower(),
            len(table.headings) > 2 and "(" in named,
        )
        cell = cells[said[1], said[2], label.removesuffix(" (value)"), int(at[1])]
        try:
            values = cell.values(metric)
        except KeyError:
            return None
        if differs and not label.endswith("(value)"):
            values = values.minus(cells[said[1], said[2], "none", int(at[1])].values(metric))
        return values, 100.0 if "(points)" in named else 1.0

    return find


def find_headline(*names: str) -> Finder:
    """Figures of `What context beyond N tokens adds`: gain, loss, retrieval and price."""
    cells = {key: cell for name in names for key, cell in read_cells(REFERENCE / SAMPLES[name]).items()}

    def find(table: Table, column: int, label: str) -> tuple[Values, float] | None:
        said = re.fullmatch(r"What context beyond (\d+) tokens adds: (.*) on (\w+)", table.headings[1])
        head = table.head[column]
        assert said
        if head.startswith("retrieval"):
            return cells["passkey", said[3], label, int(head.split()[-1])].values("accuracy"), 1.0
        longest, inside = int(table.head[1].split()[-1]), int(said[1])
        mine = cells[said[2], said[3], label, longest].values("nll")
        none = cells[said[2], said[3], "none", inside].values("nll")
        if head.startswith("NLL"):
            return mine, 1.0
        if head.startswith("gain"):
            return none.minus(mine), 1.0
        for setting in (f"{label}(factor={longest / inside})", f"{label}(at={longest})"):
            if set_up := cells.get((said[2], said[3], setting, inside)):
                return set_up.values("nll").minus(none), 1.0
        return mean_price(cells, said[2], said[3], label, inside), 1.0

    return find


def mean_price(cells: Mapping[Key, Cell], task: str, model: str, method: str, inside: int) -> Values:
    """A method that has no setting minus `none`, mean over the lengths up to `inside`."""
    lengths = sorted({key[3] for key in cells if key[:3] == (task, model, "none") and key[3] <= inside})
    each = [
        cells[task, model, method, at].values("nll").minus(cells[task, model, "none", at].values("nll"))
        for at in lengths
    ]
    return Values(np.mean([one.sums for one in each], axis=0), each[0].weights, each[0].texts, False)


def find_divergence(table: Table, column: int, label: str) -> tuple[Values, float] | None:
    """Figures of compressed caches."""
    files = {
        "Without a method of positions": ["none"],
        "Under yarn and rerope, which reach beyond the trained length": ["yarn", "rerope"],
        "SmolLM2": ["smollm2"],
    }.get(table.headings[-1])
    said = re.fullmatch(r"(KLD|same top token|rise of NLL) at (\d+)", table.head[column])
    if not files or not said:
        return None
    setting = re.sub(r"[ ']", "", label.partition("kv(")[2].removesuffix(")"))
    name = {"KLD": "kld", "same top token": "same_top", "rise of NLL": "nll_rise"}[said[1]]
    rows = [
        row
        for row in pq.read_table(REFERENCE / "kv" / f"{files[table.number]}.parquet").to_pylist()
        if (row["setting"], row["length"]) == (setting, int(said[2]))
    ]
    found = np.array([row[name] for row in rows], np.float64)
    return Values(found, np.ones(len(rows)), [row["cluster"] for row in rows], name == "same_top"), 1.0


def smollm2(metric: str, method: str, length: int) -> Values:
    """Samples of SmolLM2's board under the name of a column."""
    task, metric = {
        "reached": ("passkey(questions_per_text=4)", "reached"),
        "copied whole": ("passkey(questions_per_text=4)", "accuracy"),
        "loss": ("last_segment(targets=1024, longest=16384)", "nll"),
    }[metric]
    cells = read_cells(REFERENCE / "smollm2" / "board.parquet")
    return cells[task, "SmolLM2-135M-Instruct", method, length].values(metric)


def find_in_board(table: Table, column: int, label: str) -> tuple[Values, float] | None:
    """Figures of smollm2.md: values, differences at one length, and differences to `none` at T."""
    head, lengths = table.head[column], {"2T": 16384, "T": 8192, "T/2": 4096}
    if value := re.fullmatch(r"(reached|copied whole|loss) at ([\d,]+)", head):
        return smollm2(value[1], label, int(number_of(value[2]))), 1.0
    if head == "right, of those that reach":
        reached, whole = (smollm2(metric, label, 16384) for metric in ("reached", "copied whole"))
        kept = reached.sums == 1
        texts = [text for text, has in zip(whole.texts, kept, strict=True) if has]
        return Values(whole.sums[kept], whole.weights[kept], texts, True), 1.0
    named = re.fullmatch(r"(reached|copied whole|loss) \((points|nats per token)\)", head)
    pair = re.fullmatch(r"(?:control: )?(\S+)(?: at (\S+))? - (\S+) at (\S+)", re.sub(r", (?=\w+=)", ",", label))
    if not named or not pair:
        return None
    one, other = (name.replace(",", ", ") for name in (pair[1], pair[3]))
    first = smollm2(named[1], one, lengths[pair[2] or pair[4]])
    return first.minus(smollm2(named[1], other, lengths[pair[4]])), 100.0 if named[2] == "points" else 1.0


def digits_in_place(cell: Cell, of_other_texts: bool = False) -> Values:
    """Digits of each key that are in place, of all its digits; or the mean of those by the keys of the other texts."""
    rows = cell.rows
    sizes = np.array([float(sum(map(len, row["expected"]))) for row in rows])
    if not of_other_texts:
        shares = cell.values("in_place").sums
    else:
        shares = np.array(
            [
                np.mean([share_in_place(row["output"], other["expected"]) for other in rows if other is not row])
                for row in rows
            ]
        )
    return Values(shares * sizes, sizes, [row["cluster"] for row in rows], True)


def lexlet_keys(metric: str, method: str, length: int) -> Values:
    """Samples of lexlet under the name of a column or a heading."""
    if metric == "loss":
        return read_cells(REFERENCE / SAMPLES["lexlet"])["last_segment", "lexlet", method, length].values("nll")
    cell = read_cells(MEASURED_KEYS)["passkey", "lexlet", method, length]
    if metric in ("digits in place", "by other keys"):
        return digits_in_place(cell, metric == "by other keys")
    return cell.values("accuracy" if metric == "copied whole" else metric)


def ranks(values: Sequence[float]) -> NDArray[np.float64]:
    """Ranks from 1, ties sharing their mean."""
    _, place, count = np.unique(values, return_inverse=True, return_counts=True)
    return np.asarray((np.cumsum(count) - (count - 1) / 2)[place])


def spearman(one: Sequence[float], other: Sequence[float]) -> float:
    """Correlation of ranks; 0 where one side does not vary."""
    left, right = ranks(one), ranks(other)
    return float(np.corrcoef(left, right)[0, 1]) if left.std() and right.std() else 0.0


@dataclass(frozen=True, eq=False)
class Agreement:
    """Spearman's correlation of a low loss and a score of keys at 2,048 tokens over methods."""

    value: float
    over_methods: NDArray[np.float64]
    """The same of resampled methods: other methods of this kind."""
    over_questions: NDArray[np.float64]
    """The same of resampled texts and keys: these methods on other questions."""


@functools.cache
def agreement(metric: str, methods: tuple[str, ...]) -> Agreement:
    """The agreement over some methods, resampled 4,000 times; the same draws for every score."""
    sides = [[lexlet_keys(name, each, 2048) for each in methods] for name in ("loss", metric)]
    loss, keys = (np.array([each.sums / each.weights for each in side]) for side in sides)
    rng = np.random.default_rng(0)
    count, n = loss.shape
    over_methods, over_questions = list[float](), list[float]()
    for _ in range(4000):
        some = rng.integers(0, count, count)
        over_methods.append(spearman(-loss[some].mean(1), keys[some].mean(1)))
        over_questions.append(spearman(-loss[:, rng.integers(0, n, n)].mean(1), keys[:, rng.integers(0, n, n)].mean(1)))
    return Agreement(spearman(-loss.mean(1), keys.mean(1)), np.array(over_methods), np.array(over_questions))


def middle(drawn: NDArray[np.float64]) -> tuple[float, float]:
    """The middle 95 %."""
    low, high = np.quantile(drawn, [0.025, 0.975])
    return float(low), float(high)


def tail_of_guesses(right: int, n: int, chance: float) -> float:
    """Probability of so many right guesses, or more."""
    return sum(math.comb(n, each) * chance**each * (1 - chance) ** (n - each) for each in range(right, n + 1))


NEAR_NATS = 0.3
"""Methods whose loss is within so much of the best are asked whether loss tells them apart."""
HIDING = ("bca", "lambda_mask", "sliding_window", "streaming_llm")
"""Methods that hide all of a text but its end, and some of them its first tokens."""


def compared_methods(near: bool, without_hiding: bool) -> tuple[str, ...]:
    """Methods that have a loss at 2,048 tokens: all, or those near the best; with or without those that hide text."""
    cells = read_cells(REFERENCE / SAMPLES["lexlet"])
    losses = {
        name: lexlet_keys("loss", name, 2048).mean
        for task, _, name, length in cells
        if (task, length) == ("last_segment", 2048)
    }
    most = min(losses.values()) + (NEAR_NATS if near else np.inf)
    return tuple(name for name in sorted(losses) if losses[name] <= most and not (without_hiding and name in HIDING))


@dataclass(frozen=True, eq=False)
class Correlation(Values):
    """A correlation over methods."""

    value: float
    drawn: NDArray[np.float64]

    @property
    def mean(self) -> float:
        """The correlation."""
        return self.value

    def interval(self) -> tuple[float, float]:
        """The middle 95 % of what was drawn."""
        return middle(self.drawn)


def find_agreement(head: str, label: str) -> Correlation:
    """A figure of `Loss and keys`: `chosen, methods drawn` of `13 within 0.3 nats of the best, without ...`."""
    methods = compared_methods("nats" in label, "without" in label)
    assert int(label.split()[0]) == len(methods), label
    metric, _, drawn = head.partition(", ")
    each = agreement(metric, methods)
    of = each.over_methods if drawn == "methods drawn" else each.over_questions
    return Correlation(np.zeros(len(methods)), np.ones(len(methods)), methods, False, each.value, of)


def find_in_keys(table: Table, column: int, label: str) -> tuple[Values, float] | None:
    """Figures of keys/README.md."""
    heading, head = table.headings[-1].lower(), table.head[column]
    if by_length := re.fullmatch(r"(\d+) \([\d.]+x\)", head):
        return lexlet_keys(heading.split(",")[0], label, int(by_length[1])), 1.0
    if heading == "loss and keys":
        return find_agreement(head, label), 1.0
    if heading.startswith("set for 2,048"):
        return lexlet_keys(head, label, 256), 1.0
    return (lexlet_keys(head, label, 2048), 1.0) if heading.startswith("at 2,048") else None


def find_in_leaderboard(table: Table, column: int, label: str) -> tuple[Values, float] | None:
    """Figures of leaderboard.md."""
    if table.headings[0] != "By length":
        return None
    adds = table.headings[1].startswith("What context")
    return (find_headline if adds else find_curve)("lexlet", "stories260K")(table, column, label)


PAGES: Mapping[str, Finder] = {
    "lexlet.md": find_curve("lexlet"),
    "stories260K.md": find_curve("stories260K"),
    "lexlet_quick.md": find_curve("lexlet_quick"),
    "small_models.md": find_curve("small_models"),
    "leaderboard.md": find_in_leaderboard,
    "kv.md": find_divergence,
    "smollm2.md": find_in_board,
    "keys/README.md": find_in_keys,
}


def check_page(name: str, find: Finder, show: bool) -> tuple[int, int, list[str]]:
    """Figures of a page that samples tell, all of its tables, and what differs."""
    faults, told, every = [], 0, 0
    for table in read_tables(REFERENCE / name):
        for label, *cells in table.rows:
            for column, cell in enumerate(cells, start=1):
                if not FIGURE.match(cell.replace("**", "")):
                    continue
                every += 1
                if (found := find(table, column, label)) is None:
                    continue
                told += 1
                where = f"{' / '.join(filter(None, table.headings))}, {label}, {table.head[column]}"
                if show:
                    print(f"{name}: {where}: {cell}; n = {len(found[0].sums)}")
                if fault := fault_of(cell, *found):
                    faults.append(f"{name}: {where}: {fault}")
    return told, every, faults


def main(words: Sequence[str] | None = None) -> int:
    """0: every figure is that of its samples."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", nargs="*", help="file names; none: all")
    parser.add_argument("--show", action="store_true", help="print every figure, too")
    asked = parser.parse_args(words)
    every = list[str]()
    for name in asked.pages or PAGES:
        told, count, faults = check_page(name, PAGES[name], asked.show)
        print(f"{name}: {told} of {count} figures in tables are of stored samples, {len(faults)} differ")
        every += faults
    print(*every, sep="\n", file=sys.stderr)
    return 1 if every else 0


if __name__ == "__main__":
    sys.exit(main())
