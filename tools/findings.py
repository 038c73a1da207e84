"""Write what was found about keys, from stored samples: python tools/findings.py

It writes results/reference/keys.md, and the sentences of README.md and results/README.md between their marks.
*Chosen* is taken from samples/lexlet_keys.parquet (`tools/keep_samples.py`) once that is measured; until then from a
trial, marked.
"""

import re
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parents[1]))

from lexbench.report.formats import markdown_columns
from lexbench.stats.pairs import PairedDifference, detectable_difference, outcomes_of_samples, paired_difference
from lexbench.stats.records import records_of
from lexbench.store.format import FinishedCell
from tools import keep_samples, recompute, smollm2_page

ROOT = Path(__file__).parents[1]
REFERENCE = ROOT / "results" / "reference"
SAMPLES = REFERENCE / "samples" / "lexlet.parquet"
MEASURED = recompute.MEASURED_KEYS
PAGE = REFERENCE / "keys.md"
LENGTHS = (128, 256, 512, 1024, 2048)
TRAINED, LONG = 256, 2048
NEAR_NATS = 0.3
"""Methods whose loss is within so much of the best are asked whether loss tells them apart."""
TRIAL_CHOSEN = {"rerope": 32, "yarn": 28, "ntk": 6, "none": 2, "pi": 0}
"""Of 32 keys at 8T those that were chosen, in a trial whose other candidates were the keys of the other samples."""


def chosen(method: str) -> tuple[float, int] | None:
    """Keys chosen at 8T, and of how many; measured, or else of the trial. None: neither."""
    if MEASURED.exists():
        if ("passkey", "lexlet", method, LONG) not in recompute.read_cells(MEASURED):
            return None
        found = recompute.lexlet_keys("chosen", method, LONG)
        return float(found.sums.sum()), len(found.sums)
    return (TRIAL_CHOSEN[method], 32) if method in TRIAL_CHOSEN else None


def chosen_text(method: str) -> str:
    """A cell of the table."""
    found = chosen(method)
    return "" if found is None else f"{found[0]:.3g} of {found[1]}" + ("" if MEASURED.exists() else " (trial)")


def trial_mark() -> str:
    """Says of chosen keys where they come from."""
    return "" if MEASURED.exists() else "in a trial, "


def ranks(values: Sequence[float]) -> NDArray[np.float64]:
    """Ranks from 1, ties sharing their mean."""
    _, place, count = np.unique(values, return_inverse=True, return_counts=True)
    return np.asarray((np.cumsum(count) - (count - 1) / 2)[place])


def spearman(one: Sequence[float], other: Sequence[float]) -> float:
    """Correlation of ranks; 0 where one side does not vary."""
    left, right = ranks(one), ranks(other)
    return float(np.corrcoef(left, right)[0, 1]) if left.std() and right.std() else 0.0


@dataclass(frozen=True)
class Agreement:
    """Spearman's correlation of a low loss and keys copied whole at 8T over methods."""

    value: float
    over_methods: tuple[float, float]
    """The middle 95 % over resampled methods: other methods of this kind."""
    over_questions: tuple[float, float]
    """The same over resampled texts and keys: these methods on other questions."""


def agreement(methods: Sequence[str]) -> Agreement:
    """The agreement over some methods, resampled 4,000 times."""
    sides = [[recompute.lexlet_keys(name, each, LONG) for each in methods] for name in ("loss", "copied whole")]
    loss, keys = (np.array([each.sums / each.weights for each in side]) for side in sides)
    rng = np.random.default_rng(0)
    count, n = loss.shape

    def middle(drawn: Sequence[float]) -> tuple[float, float]:
        low, high = np.quantile(drawn, [0.025, 0.975])
        return float(low), float(high)

    over_methods, over_questions = list[float](), list[float]()
    for _ in range(4000):
        some = rng.integers(0, count, count)
        over_methods.append(spearman(-loss[some].mean(1), keys[some].mean(1)))
        over_questions.append(spearman(-loss[:, rng.integers(0, n, n)].mean(1), keys[:, rng.integers(0, n, n)].mean(1)))
    return Agreement(spearman(-loss.mean(1), keys.mean(1)), middle(over_methods), middle(over_questions))


class Lexlet:
    """All that the sentences need of lexlet."""

    def __init__(self, file: Path = SAMPLES) -> None:
        cells = keep_samples.read_cells(file)
        self.cells = {(each.cell.task, each.cell.method, each.cell.length): each for each in cells}
        at_long = sorted({str(each.cell.method) for each in cells if each.cell.length == LONG})
        self.methods = sorted(at_long, key=lambda each: (-self.whole(each), -self.digits(each), self.loss(each)))
        best = min(map(self.loss, self.methods))
        self.near = [each for each in self.methods if self.loss(each) <= best + NEAR_NATS]

    def cell(self, task: str, method: str, length: int) -> FinishedCell:
        """The cell of a method by its label."""
        (found,) = (
            each for (name, key, at), each in self.cells.items() if (name, str(key), at) == (task, method, length)
        )
        return found

    def loss(self, method: str, length: int = LONG) -> float:
        """Mean nats per token."""
        return recompute.lexlet_keys("loss", method, length).mean

    def whole(self, method: str, length: int = LONG) -> int:
        """Keys copied whole, of 32."""
        return round(float(recompute.lexlet_keys("copied whole", method, length).sums.sum()))

    def digits(self, method: str, length: int = LONG) -> int:
        """Digits in place, of 160."""
        return round(float(recompute.lexlet_keys("tokens in place", method, length).sums.sum()))

    def by_other_keys(self, method: str) -> float:
        """Digits that would be in place by the key of another text, of 160."""
        return float(recompute.lexlet_keys("by other keys", method, LONG).sums.sum())

    def gap(self, task: str, one: tuple[str, int], other: tuple[str, int]) -> PairedDifference:
        """A method at a length minus another."""
        metric = "accuracy" if task == "passkey" else "nll"
        sides = [outcomes_of_samples(self.cell(task, *each).samples, metric) for each in (other, one)]
        return paired_difference(sides[0], sides[1], metric)


def interval_cell(cell: FinishedCell, metric: str, of: int) -> str:
    """`27 of 32 [68, 93 %]`, the interval that every report of lexbench has."""
    (record,) = (each for each in records_of(cell) if each.metric == metric and each.part is None)
    assert record.value is not None and record.low is not None and record.high is not None
    if metric == "nll":
        return f"{record.value:.3f} [{record.low:.3f}, {record.high:.3f}]"
    return f"{round(record.value * of)} of {of} [{100 * record.low:.0f}, {100 * record.high:.0f} %]"


def keys_page(lexlet: Lexlet) -> str:
    """The page of all methods under all scores of keys."""
    heads = ["method", "loss", "copied whole", "tokens in place", "by other keys", "reached", "chosen"]
    rows = []
    for method in lexlet.methods:
        passkey = lexlet.cell("passkey", method, LONG)
        values = [interval_cell(passkey, name, of) for name, of in (("accuracy", 32), ("in_place", 160))]
        reached = interval_cell(passkey, "reached", 32)
        loss = interval_cell(lexlet.cell("last_segment", method, LONG), "nll", 0)
        rows.append([method, loss, *values, f"{lexlet.by_other_keys(method):.1f} of 160", reached, chosen_text(method)])
    lines = [PAGE_HEAD.format(trial="" if MEASURED.exists() else TRIAL_NOTE), *markdown_columns(heads, rows)]
    tables = [
        ("Tokens in place, of 160", "in_place", 160, lexlet.cell),
        ("Copied whole, of 32", "accuracy", 32, lexlet.cell),
    ]
    if MEASURED.exists():
        measured = Lexlet(MEASURED)
        tables.append(("Chosen, of 32", "chosen", 32, measured.cell))
    names = [f"{length} ({length / TRAINED:g}x)" for length in LENGTHS]
    for title, metric, of, cell in tables:
        rows = [
            [method, *(interval_cell(cell("passkey", method, length), metric, of) for length in LENGTHS)]
            for method in lexlet.methods
            if metric != "chosen" or chosen(method)
        ]
        lines += ["", f"## {title}", "", *markdown_columns(["method", *names], rows)]
    return "\n".join(lines) + "\n"


PAGE_HEAD = """\
# Keys under every method, by three scores

    python tools/findings.py

lexlet, trained at T = 256 tokens, 15 to 35 % of its lessons were passkeys; one training, one seed of questions, 32
keys of five digits, one a text, at each length. *Copied whole*: the answer begins with the key and holds no other
number. *Tokens in place*: digits of the answer's first number that equal those of the key, each at its own place, of
32 x 5. *By other keys*: what the same answers get by the keys of the other 31 texts, which is what an answer gets
that saw no key. *Reached*: the key stands anywhere in the answer; a text has one key. *Chosen*: the key is the
likeliest of 32 candidates. {trial}Control: within T the unmodified model copies 32 of 32. Settings follow the length
(factor 8 at 2,048). Brackets hold 95 % intervals. Samples: `samples/lexlet.parquet`.

## At 2,048 tokens, eight times the trained length
"""
TRIAL_NOTE = "It is of a trial of\nfive methods, whose other candidates were the keys of the other samples. "


GARBLED = ("yarn", "longrope2", "yarn_paper")
"""Methods that change frequencies alone and put many digits in place."""


def picked(methods: Sequence[str]) -> str:
    """Keys chosen under methods that have a value."""
    return ", ".join(f"{name} {found[0]:.3g}" for name in methods if (found := chosen(name)))


def readme_lines(lexlet: Lexlet, board: smollm2_page.Places) -> list[str]:
    """The sentences of README."""
    every, near = agreement(lexlet.methods), agreement(lexlet.near)
    reached = {name: board["reached"][name, smollm2_page.TWICE].count for name in ("none", *smollm2_page.WORKING)}
    cut = smollm2_page.against_cutting(board["nll"])
    return [
        f"- **Loss does not rank good methods.** At eight times the length it agrees with keys copied whole over "
        f"{len(lexlet.methods)} methods (Spearman {every.value:.2f} {interval(every.over_methods)}), not among the "
        f"{len(lexlet.near)} best in "
        f"loss ({near.value:.2f} {interval(near.over_questions)}).",
        f"- **Rescaled frequencies can see the key and garble it**: yarn copies {lexlet.whole('yarn')} of 32 "
        "whole, with "
        f"{lexlet.digits('yarn')} of 160 digits in place.",
        f"- **[SmolLM2](results/reference/smollm2.md) shows that order** in keys *reached*: rerope "
        f"{reached['rerope']} of 64, "
        f"yarn {reached['yarn']}, ntk {reached['ntk']}, unmodified {reached['none']}.",
        f"- **No method was shown to beat cutting the text**: SmolLM2's best differs by "
        f"{signed(cut['self_extend'])} nats.",
        f"- **One factor for all texts costs on short ones**: yarn with factor 8 copies "
        f"{lexlet.whole('yarn(factor=8.0)', TRAINED)} of 32 keys at 256.",
    ]


def results_lines(lexlet: Lexlet, board: smollm2_page.Places) -> list[str]:
    """The sentences of results/README.md: what contradicts first, then score, numbers, table and command of each."""
    every, near = agreement(lexlet.methods), agreement(lexlet.near)
    pair, keys = (lexlet.gap(task, ("rerope", LONG), ("yarn", LONG)) for task in ("last_segment", "passkey"))
    found = {name: board["reached"][name, smollm2_page.TWICE].count for name in ("none", "pi", *smollm2_page.WORKING)}
    whole = {name: board["accuracy"][name, smollm2_page.TWICE].count for name in smollm2_page.WORKING}
    control = [board[metric]["none", smollm2_page.TRAINED].count for metric in ("reached", "accuracy")]
    cut = smollm2_page.against_cutting(board["nll"])
    rates = [100 * whole[name] / found[name] for name in smollm2_page.WORKING]
    bca = lexlet.gap("last_segment", ("none", TRAINED), ("bca", LONG))
    half = lexlet.gap("last_segment", ("none", 128), ("none", TRAINED))
    price = lexlet.gap("last_segment", ("yarn(factor=8.0)", TRAINED), ("none", TRAINED))
    lost = lexlet.gap("passkey", ("none", TRAINED), ("yarn(factor=8.0)", TRAINED))
    missed = detectable_difference(pair, "nll", 0.05 / (2 * len(LENGTHS)))
    window, six = lexlet.whole("sliding_window"), [lexlet.whole(each) for each in REMAPPED]
    return [
        f"1. **Loss ranks methods, but not the good ones.** At 8T, over {len(lexlet.methods)} methods, a low loss "
        "and keys "
        f"copied whole agree: Spearman {every.value:.2f} {interval(every.over_methods)} over resampled methods. "
        "Among the "
        f"{len(lexlet.near)} within {NEAR_NATS:g} nats of the best they do not: {near.value:.2f} "
        f"{interval(near.over_questions)} over resampled questions (13 methods are too few to speak of others: "
        f"{interval(near.over_methods)}). So yarn and rerope have a loss of "
        f"{lexlet.loss('yarn'):.3f} and {lexlet.loss('rerope'):.3f} nats per token (paired difference "
        f"{signed(pair)}; up to "
        f"{missed:.3f} nats may be missed) and copy {lexlet.whole('yarn')} and {lexlet.whole('rerope')} of 32 keys "
        "whole "
        f"({signed(keys, 1, 100)} points). Control: at T the unmodified model copies 32 of 32. "
        "[Keys under all methods](reference/keys.md).  ",
        "   `lexbench compare results/reference/lexlet results/reference/lexlet --a method=yarn --b method=rerope`",
        f"2. **Rescaled frequencies can see the key and garble it; only changed distances copy it whole.** This "
        "corrects what "
        f"stood here: whole keys had been taken for found ones. At 8T {join([f'{each}' for each in GARBLED])} put "
        f"{join([str(lexlet.digits(each)) for each in GARBLED])} of 160 digits in place (by another text's key "
        f"{max(lexlet.by_other_keys(each) for each in GARBLED):.0f} at most) and copy "
        f"{join([str(lexlet.whole(each)) for each in GARBLED])} of 32 keys whole; rerope {lexlet.digits('rerope')} and "
        f"{lexlet.whole('rerope')}. Chosen among 32 keys by likelihood{CHOSEN_NOTE if not MEASURED.exists() else ''}: "
        f"{picked(('rerope', 'yarn', 'ntk', 'none', 'pi'))}. A window copies the {window} of 32 keys that stand "
        "inside it; "
        f"six methods copy more, {min(six)} to {max(six)}, and all six remap distances. The 20 methods that change "
        "frequencies alone copy at most 1; of the other 17 of them at most 3 digits of 160 are in place. "
        "Remapping is not "
        "enough: string and jet_long have 0 digits in place. [Keys under all methods](reference/keys.md).",
        f"3. **[SmolLM2-135M](reference/smollm2.md) shows that order in keys reached, and not in keys copied "
        "whole**, at "
        f"twice its length (64 questions behind 16 texts): whole, {join([f'{k} {v}' for k, v in whole.items()])}, "
        "no pair "
        f"told apart; reached (any key of the text), rerope {found['rerope']}, self_extend {found['self_extend']}, "
        "yarn "
        f"{found['yarn']}, ntk {found['ntk']}, unmodified {found['none']}, pi {found['pi']}. "
        f"{smollm2_page.contrast_text(board['reached'])} Which of four keys is asked for is another ability: "
        f"{min(rates):.0f} to {max(rates):.0f} % of the answers that reach a key have the right one, chance 25 %. "
        "Control: at T "
        f"the unmodified model reaches a key in {control[0]} of 64 and copies {control[1]} whole.",
        f"4. **No method was shown to beat cutting the text to T, in loss.** On SmolLM2 (32 texts) the best at 2T, "
        "self_extend, "
        f"differs by {signed(cut['self_extend'])} nats per token, which cannot be told from 0; the control says "
        "that there is "
        f"something to gain: from T/2 to T the unmodified model itself changes by {signed(cut['none'])}. On lexlet "
        "(32 texts) "
        f"there is nothing to gain: of 36 methods at 8T the best is bca, {signed(bca)} nats over the unmodified "
        f"model at T, and from T/2 to T the unmodified model itself gains {signed(half)} (p = {half.p:.2f}), so that "
        "the loss can only show harm. [Tables](reference/leaderboard.md).",
        f"5. **One setting for all texts costs on short ones.** Set for 8T (factor 8), yarn loses {signed(price)} nats "
        f"and {signed(lost, 1, 100)} points of keys copied whole at T; "
        f"{lexlet.digits('yarn(factor=8.0)', TRAINED)} of 160 "
        f"digits stay in place (unmodified: {lexlet.digits('none', TRAINED)}). Of the twelve methods of "
        "frequencies alone with "
        "such a setting nine lose 75 points or more; longrope and longrope2 keep all 32 keys, llama3 27. The four "
        "that remap "
        "distances by such a setting lose none.  ",
        "   `lexbench leaderboard results/reference/lexlet --columns summary`",
    ]


REMAPPED = ("adagrope", "chunkllama", "dca", "leaky_rerope", "rerope", "self_extend")
"""Methods that copy more keys at 8T than a window does."""
CHOSEN_NOTE = ", in a trial whose other candidates were the other texts' keys"
join = smollm2_page.join


def interval(ends: tuple[float, float]) -> str:
    """An interval of a correlation."""
    return f"[{ends[0]:.2f}, {ends[1]:.2f}]"


def signed(each: PairedDifference, digits: int = 3, scale: float = 1.0) -> str:
    """A difference with its interval."""
    assert each.difference is not None and each.interval is not None, "several texts"
    ends = (each.difference, each.interval.low, each.interval.high)
    value, low, high = (f"{scale * end:+.{digits}f}" for end in ends)
    return f"{value} [{low}, {high}]"


def wrapped(lines: Sequence[str], width: int = 130) -> str:
    """Items of a list as lines of a page; commands stay whole."""
    found = list[str]()
    for line in lines:
        inside = "  " if line.startswith("- ") else "   "
        last = "  " if line.endswith("  ") else ""
        text = textwrap.fill(line, width, subsequent_indent=inside, break_long_words=False, break_on_hyphens=False)
        found.append(line if line.startswith("   `") else text + last)
    return "\n".join(found)


def pages() -> dict[Path, str]:
    """Every page that this tool writes, with its text."""
    lexlet = Lexlet()
    board = {metric: smollm2_page.measured(metric) for metric in smollm2_page.SCORES}
    found = {PAGE: keys_page(lexlet)}
    for name, lines in (("README.md", readme_lines), ("results/README.md", results_lines)):
        text = (ROOT / name).read_text(encoding="utf-8")
        marks = re.fullmatch(r"(.*<!-- found: generated -->\n).*(\n<!-- end of found -->\n.*)", text, re.DOTALL)
        assert marks, f"{name} lacks the marks of what was found"
        found[ROOT / name] = f"{marks[1]}\n{wrapped(lines(lexlet, board))}\n{marks[2]}"
    return found


if __name__ == "__main__":
    for page, text in pages().items():
        page.write_text(text, encoding="utf-8")
        print(f"written: {page.relative_to(ROOT)}", file=sys.stderr)
