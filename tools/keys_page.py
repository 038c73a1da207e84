"""The page of lexlet's keys under every method, with verdicts on predictions; `tools/findings.py` writes it."""

import math
from collections.abc import Iterator, Sequence

from lexbench.report.formats import markdown_columns
from lexbench.stats.pairs import PairedDifference
from tools import recompute
from tools.lexlet_keys import LENGTHS, LONG, N_KEYS, N_OPTIONS, TRAINED, Lexlet, answers_of_both_versions
from tools.smollm2_page import verdict_of

PAGE_HEAD = """\
# Keys of lexlet under every method, by five scores

    python tools/findings.py

**Of {predicted} predictions {hold} hold. The two about loss fail for these methods: *chosen* does not follow loss
more closely than *copied whole* does, and among the {near} methods best in loss it goes the other way.** Whether they
fail for other methods cannot be told, nor can the other {open} ([verdicts](#what-was-predicted)).

lexlet, trained at T = 256 tokens; 15 to 35 % of its lessons were passkeys. One training, one seed of questions (0), 32
keys of five digits, one a text, at each length. Control: at T the unmodified model chooses {control[0]} of 32 keys, and
copies {control[1]} whole. Settings follow the length (factor 8 at 2,048). Brackets hold 95 % intervals, not corrected
for their number.

- *Chosen*: the right key is the likeliest of {options}, the others drawn for each sample, with as many tokens. Chance
  is 1 of 32. It asks less than *copied whole*: no form, and part of a key is enough, if it tells 32 keys apart. After
  Holm's correction over the {methods} methods {above} choose more than a guess (exact binomial test); a
  window chooses the {window} keys that stand inside it.
- *Copied whole*: the answer begins with the key and holds no other number. *A number written*: it holds a digit.
- *Digits in place*: those of the answer's first number that equal the key's, each at its own place, of 32 x 5. *By
  other keys*: what the same answers get by the keys of the other 31 texts, as an answer does that saw no key.
- *Forced*: share of the key's digits that are likeliest when the right ones stand before them.

Samples, with the likelihood of each option: `lexlet.parquet`, measured by `lexbench run method=NAME task=passkey n=32`
with its default lengths. The task's version 2 asked the same questions: of {both} answers to both, of 37 methods,
{differ} differ. Losses are of `samples/lexlet.parquet`; dpe and qk_gain have none. dynamic_ntk computes at one length
what ntk computes.

## At 2,048 tokens, eight times the trained length
"""
LOSS_AND_KEYS = """
## Loss and keys

Spearman's correlation of a low loss and of keys, at 2,048 tokens. *Methods drawn*: methods resampled, other methods of
this kind. *Questions drawn*: texts and keys resampled, these methods on other questions. {hiding} methods hide all of
a text but its end, and two of them its first tokens ({names}). They have a low loss by construction, and the {window}
of 32 keys that stand in that end; rows without them were looked at afterwards, and were not predicted.
"""
PREDICTED = """
## What was predicted

Written before the measurement ([PREREGISTRATION.md](../lexlet/PREREGISTRATION.md)). *holds*: the 95 % interval lies
within the prediction; *does not hold*: it lies outside; *cannot be told*: neither. A single value, such as chance, can
fail and cannot hold. Of 32 keys not even 32 can hold "at least 29 of 32" or "9 of 10": its interval begins at 89 %.
Not corrected for their number.
"""
BEFORE = """
## What stood here before

Until 2026-11-29 *chosen* was of a trial, in which the other candidates were the keys of the other samples: rerope 32,
yarn 28, ntk 6, none 2, pi 0.
"""
HEADS = ("chosen", "copied whole", "a number written", "digits in place", "by other keys", "forced")


def keys_page(lexlet: Lexlet) -> str:
    """The page of all methods under all scores of keys."""
    both, differ = answers_of_both_versions()
    predicted = list(prediction_rows(lexlet))
    verdicts = [each[-1] for each in predicted]
    head = PAGE_HEAD.format(
        predicted=len(verdicts),
        hold=verdicts.count("holds"),
        open=verdicts.count("cannot be told"),
        near=len(lexlet.near),
        control=[lexlet.count(each, "none", TRAINED) for each in ("chosen", "copied whole")],
        options=N_OPTIONS,
        methods=len(lexlet.methods),
        above=len(lexlet.above_chance()),
        window=lexlet.count("chosen", "sliding_window"),
        both=f"{both:,}",
        differ=differ,
    )
    heads = ["method", "loss", *HEADS]
    rows = [[method, *(lexlet.text(name, method) for name in heads[1:])] for method in lexlet.methods]
    lines = [head, *markdown_columns(heads, rows)]
    window = lexlet.count("chosen", "sliding_window")
    hiding = LOSS_AND_KEYS.format(hiding=len(recompute.HIDING), names=", ".join(recompute.HIDING), window=window)
    lines += [hiding, *agreement_lines()]
    lines += [PREDICTED, *markdown_columns(["prediction", "measured", "verdict"], predicted)]
    names = [f"{length} ({length / TRAINED:g}x)" for length in LENGTHS]
    for title, metric in (
        ("Chosen, of 32", "chosen"),
        ("Copied whole, of 32", "copied whole"),
        ("Digits in place, of 160", "digits in place"),
    ):
        rows = [[method, *(lexlet.text(metric, method, each) for each in LENGTHS)] for method in lexlet.methods]
        lines += ["", f"## {title}", "", *markdown_columns(["method", *names], rows)]
    rows = [[name, *(lexlet.text(each, name, TRAINED) for each in HEADS[:4])] for name in lexlet.set_for_long]
    lines += ["", "## Set for 2,048 tokens, asked at 256", "", *markdown_columns(["method", *HEADS[:4]], rows)]
    return "\n".join([*lines, BEFORE.rstrip("\n")]) + "\n"


def agreement_lines() -> list[str]:
    """The table of correlations."""
    heads = ["methods"]
    heads += [f"{metric}, {drawn} drawn" for metric in ("chosen", "copied whole") for drawn in ("methods", "questions")]
    rows = []
    for near in (False, True):
        for without in (False, True):
            count = len(recompute.compared_methods(near, without))
            which = f" within {recompute.NEAR_NATS:g} nats of the best" if near else " that have a loss"
            label = f"{count}{which}{f', without the {len(recompute.HIDING)} that hide text' if without else ''}"
            found = [recompute.find_agreement(head, label) for head in heads[1:]]
            rows.append([label, *(f"{each.mean:.2f} {interval_text(each.interval())}" for each in found)])
    return markdown_columns(heads, rows)


def interval_text(ends: tuple[float, float]) -> str:
    """An interval of a correlation."""
    return f"[{ends[0]:.2f}, {ends[1]:.2f}]"


def prediction_rows(lexlet: Lexlet) -> Iterator[list[str]]:
    """What was predicted, what was measured, the verdict."""
    for said, metric, method, length, least, most in SHARES:
        yield [said, lexlet.text(metric, method, length), verdict_of(lexlet.ends(metric, method, length), least, most)]
    for said, metric, one, other, least, most in GAPS:
        each = lexlet.gap(metric, (one, LONG), (other, LONG))
        yield [said, f"{points(each)} points", verdict_of(ends_of(each), least, most)]
    yield from correlation_rows(lexlet)


CHANCE = 1 / N_OPTIONS
SHARES = (
    ("none, at T: chosen in at least 29 of 32", "chosen", "none", TRAINED, 29 / N_KEYS, 1.0),
    ("none, at 8 T: chosen at chance", "chosen", "none", LONG, CHANCE, CHANCE),
    ("yarn, at 8 T: chosen in more than half", "chosen", "yarn", LONG, 0.5 + 1e-9, 1.0),
    ("yarn, at 8 T: copied whole in at most 1 of 4", "copied whole", "yarn", LONG, 0.0, 0.25),
    ("rerope, at 8 T: chosen in at least 9 of 10", "chosen", "rerope", LONG, 0.9, 1.0),
    ("pi, at 8 T: chosen at chance", "chosen", "pi", LONG, CHANCE, CHANCE),
)
"""The words, the metric, method and length, and the bounds of what was predicted."""
GAPS = (
    ("rerope - yarn, at 8 T: chosen within 25 points", "chosen", "rerope", "yarn", -0.25, 0.25),
    ("rerope - yarn, at 8 T: copied whole more than 25 points", "copied whole", "rerope", "yarn", 0.25 + 1e-9, 1.0),
    ("yarn - ntk, at 8 T: chosen above 0", "chosen", "yarn", "ntk", 1e-9, 1.0),
)
"""The words, the metric, two methods, and the bounds of the first minus the second."""


def correlation_rows(lexlet: Lexlet) -> Iterator[list[str]]:
    """The two predictions about loss and keys."""
    chosen, whole = (recompute.agreement(metric, lexlet.compared) for metric in ("chosen", "copied whole"))
    apart = [getattr(chosen, name) - getattr(whole, name) for name in ("over_methods", "over_questions")]
    yield _drawn_row(
        f"{len(lexlet.compared)} methods, at 8 T: Spearman of loss and chosen nearer to 1 than of loss and copied "
        "whole",
        f"{chosen.value:.2f} and {whole.value:.2f}, {chosen.value - whole.value:+.2f}",
        [recompute.middle(each) for each in apart],
    )
    near = recompute.agreement("chosen", lexlet.near)
    yield _drawn_row(
        f"{len(lexlet.near)} methods within {recompute.NEAR_NATS:g} nats of the best, at 8 T: Spearman of loss and "
        "chosen above 0",
        f"{near.value:.2f}",
        [recompute.middle(each) for each in (near.over_methods, near.over_questions)],
    )


def _drawn_row(said: str, value: str, ends: Sequence[tuple[float, float]]) -> list[str]:
    """A row whose interval is over methods, and over questions: two verdicts, one where they agree."""
    verdicts = [verdict_of((0.0, *each), 1e-9, math.inf) for each in ends]
    kinds = ("methods drawn", "questions drawn")
    measured = f"{value}; " + ", ".join(f"{interval_text(e)} {kind}" for e, kind in zip(ends, kinds, strict=True))
    if len(set(verdicts)) == 1:
        return [said, measured, verdicts[0]]
    return [said, measured, ", ".join(f"{each} ({kind})" for each, kind in zip(verdicts, kinds, strict=True))]


def ends_of(each: PairedDifference) -> tuple[float, float, float]:
    """A difference and its interval."""
    assert each.difference is not None and each.interval is not None, "several texts"
    return each.difference, each.interval.low, each.interval.high


def points(each: PairedDifference) -> str:
    """A difference of scores."""
    value, low, high = (f"{100 * end:+.1f}" for end in ends_of(each))
    return f"{value} [{low}, {high}]"
