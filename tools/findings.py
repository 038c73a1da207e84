"""Write what was found about keys, from stored samples: python tools/findings.py

It writes results/reference/keys/README.md, and the sentences of README.md and results/README.md between their marks.
"""

import re
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from lexbench.stats.pairs import PairedDifference
from lexbench.stats.reach import smallest_found_difference
from tools import recompute, smollm2_page
from tools.keys_page import interval_text, keys_page
from tools.lexlet_keys import LENGTHS, LONG, N_KEYS, REFERENCE, TRAINED, Lexlet

ROOT = Path(__file__).parents[1]
PAGE = REFERENCE / "keys" / "README.md"
GARBLED = ("yarn", "longrope2", "yarn_paper")
"""Methods that change frequencies alone and put many digits in place."""
SILENT = ("llama3", "jet_long")
"""Methods that write no number and choose 31 of 32 keys."""


COMPARISONS = 2 * (len(LENGTHS) - 1)
"""Of `lexbench compare` between yarn and rerope: two tasks at each length but 128, where both are the same function."""


def near_best(without_hiding: bool) -> tuple[str, ...]:
    """Methods within `NEAR_NATS` of the best."""
    return recompute.compared_methods(near=True, without_hiding=without_hiding)


def readme_lines(lexlet: Lexlet, board: smollm2_page.Places) -> list[str]:
    """The sentences of README."""
    every, near = (recompute.agreement("chosen", each) for each in (lexlet.compared, lexlet.near))
    reached = {name: board["reached"][name, smollm2_page.TWICE].count for name in ("none", *smollm2_page.WORKING)}
    cut = smollm2_page.against_cutting(board["nll"])
    both = {name: f"{lexlet.count('copied whole', name)} and {lexlet.count('chosen', name)}" for name in lexlet.methods}
    set_for_long = [lexlet.count(each, "yarn(factor=8.0)", TRAINED) for each in ("copied whole", "chosen")]
    hiding = lexlet.count("chosen", "sliding_window")
    return [
        f"- **A key not written need not be lost.** At eight times the length llama3 copies "
        f"{lexlet.count('copied whole', 'llama3')} of 32 keys, chooses {lexlet.count('chosen', 'llama3')}; "
        f"yarn {both['yarn']}, rerope {both['rerope']}, ntk {both['ntk']}.",
        f"- **[SmolLM2](results/reference/smollm2.md) has that order** in keys *reached*: rerope "
        f"{reached['rerope']} of 64, yarn {reached['yarn']}, ntk {reached['ntk']}, unmodified {reached['none']} (no "
        "pair is told apart).",
        f"- **Loss flatters methods that hide text**: the best four choose {hiding}. Spearman with chosen: "
        f"{drawn(every)} over {len(lexlet.compared)} measured, {drawn(near)} among the "
        f"{len(lexlet.near)} best (sign not told).",
        f"- **No method was shown to beat cutting the text**: SmolLM2's best at 2T differs by "
        f"{signed(cut['self_extend'])} nats (32 texts).",
        f"- **One factor for all texts costs on short ones**: at 256 yarn with factor 8 copies "
        f"{set_for_long[0]}, chooses {set_for_long[1]}.",
    ]


def results_lines(lexlet: Lexlet, board: smollm2_page.Places) -> list[str]:
    """The sentences of results/README.md: what contradicts first, then score, numbers, table and command of each."""
    return [
        not_lost(lexlet),
        *loss_and_keys(lexlet),
        on_smollm2(board),
        cutting(lexlet, board),
        *one_setting(lexlet),
    ]


def not_lost(lexlet: Lexlet) -> str:
    """Keys that are chosen and not written."""
    keys, other = (lexlet.gap("chosen", (one, LONG), (two, LONG)) for one, two in (("rerope", "yarn"), ("yarn", "ntk")))
    six = [lexlet.count("copied whole", each) for each in REMAPPED]
    silent = [N_KEYS - lexlet.count("a number written", each) for each in SILENT]
    window = [lexlet.count(each, "sliding_window") for each in ("copied whole", "chosen")]
    assert len(set(silent)) == len({lexlet.count("chosen", each) for each in SILENT}) == len(set(window)) == 1
    return (
        "1. **A key not written need not be lost.** This corrects what stood here: keys copied whole had been "
        f"taken for found ones. At 8T {join(SILENT)} write no number in {silent[0]} of 32 answers and choose the right "
        f"key of 32 in {lexlet.count('chosen', 'llama3')}; {join(GARBLED)} put "
        f"{counts(lexlet, 'digits in place', GARBLED)} of 160 digits in place (by another text's key "
        f"{max(recompute.lexlet_keys('by other keys', each, LONG).sums.sum() for each in GARBLED):.0f} at most), copy "
        f"{counts(lexlet, 'copied whole', GARBLED)} of 32 keys whole and choose {counts(lexlet, 'chosen', GARBLED)}; "
        f"rerope {lexlet.count('digits in place', 'rerope')}, {lexlet.count('copied whole', 'rerope')} and "
        f"{lexlet.count('chosen', 'rerope')}; ntk, pi and unmodified copy 0 and choose "
        f"{counts(lexlet, 'chosen', ('ntk', 'pi', 'none'))}. Floors: a guess chooses 1, a window copies and chooses "
        f"the {window[0]} that stand inside it; {len(lexlet.above_chance())} of {len(lexlet.methods)} methods choose "
        "more than a guess (Holm). Chosen, rerope has "
        f"{signed(keys, 1, 100)} points more than yarn (p = {keys.p:.2g}), and yarn {signed(other, 1, 100)} more than "
        f"ntk (p = {other.p:.2g}; of the predicted pairs, not corrected). Six methods "
        f"copy more than a window, {min(six)} to {max(six)}; all six remap distances, and choose "
        f"{min(lexlet.count('chosen', each) for each in REMAPPED)} or 32. The 20 that change frequencies alone copy at "
        f"most 1 and choose 0 to {max(lexlet.count('chosen', each) for each in lexlet.methods if each in SILENT)}; "
        f"string remaps and chooses {lexlet.count('chosen', 'string')}. Chosen asks less: part of a key can be enough. "
        f"Control: at T the unmodified model copies {lexlet.count('copied whole', 'none', TRAINED)} and chooses "
        f"{lexlet.count('chosen', 'none', TRAINED)} of 32. [Keys under all methods](reference/keys/README.md)."
    )


def loss_and_keys(lexlet: Lexlet) -> list[str]:
    """Whether loss ranks methods as keys do."""
    every, near, whole, whole_near = (
        recompute.agreement(metric, each)
        for metric in ("chosen", "copied whole")
        for each in (lexlet.compared, lexlet.near)
    )
    without = recompute.compared_methods(near=False, without_hiding=True)
    rest, rest_near = (recompute.agreement("chosen", each) for each in (without, near_best(without_hiding=True)))
    pair, keys, copied = (
        lexlet.gap(metric, ("rerope", LONG), ("yarn", LONG)) for metric in ("loss", "chosen", "copied whole")
    )
    found = smallest_found_difference(replace(pair, level=0.05 / COMPARISONS), "nll")
    hidden = sorted(map(lexlet.loss, recompute.HIDING))
    return [
        "2. **Loss flatters methods that hide text; it was predicted to follow *chosen* more closely than "
        "*copied whole*, and was not found to.** At 8T the four methods that hide all but the end are best in loss "
        f"({hidden[0]:.3f} to {hidden[-1]:.3f} nats per token) and choose "
        f"{lexlet.count('chosen', 'sliding_window')} of 32 keys. Over {len(lexlet.compared)} measured methods a low "
        f"loss and keys agree: Spearman {drawn(every)} over resampled methods for chosen, {drawn(whole)} for copied "
        "whole. "
        f"Among the {len(lexlet.near)} within "
        f"{recompute.NEAR_NATS:g} nats of the best: chosen {drawn(near, of_questions=True)} over resampled questions, "
        f"copied whole {drawn(whole_near, of_questions=True)}; of other methods {len(lexlet.near)} say little "
        f"({interval_text(recompute.middle(near.over_methods))} for chosen). Without the four, which was looked at "
        f"afterwards, loss and chosen agree: {drawn(rest)} over {len(without)} methods, "
        f"{drawn(rest_near, of_questions=True)} among the {len(near_best(without_hiding=True))}. yarn and rerope have "
        f"a loss of {lexlet.loss('yarn'):.3f} and {lexlet.loss('rerope'):.3f} (paired difference {signed(pair)}; one "
        f"of {found:.2g} nats shared by all texts would have been found), choose "
        f"{counts(lexlet, 'chosen', ('yarn', 'rerope'))} of 32 keys "
        f"({signed(keys, 1, 100)} points) and copy {counts(lexlet, 'copied whole', ('yarn', 'rerope'))} whole "
        f"({signed(copied, 1, 100)} points). Control: at T the unmodified model chooses and copies "
        f"{lexlet.count('copied whole', 'none', TRAINED)} of 32. "
        "[Loss and keys](reference/keys/README.md#loss-and-keys).  ",
        "   `lexbench compare results/reference/lexlet results/reference/lexlet --a method=yarn --b method=rerope`",
    ]


def on_smollm2(board: smollm2_page.Places) -> str:
    """Keys of SmolLM2."""
    found = {name: board["reached"][name, smollm2_page.TWICE].count for name in ("none", "pi", *smollm2_page.WORKING)}
    whole = {name: board["accuracy"][name, smollm2_page.TWICE].count for name in smollm2_page.WORKING}
    control = [board[metric]["none", smollm2_page.TRAINED].count for metric in ("reached", "accuracy")]
    rates = [100 * whole[name] / found[name] for name in smollm2_page.WORKING]
    return (
        "3. **On [SmolLM2-135M](reference/smollm2.md) keys copied whole tell no pair of working methods apart, and "
        "keys reached have the order of lexlet's chosen ones**, at twice its length (64 questions behind 16 texts, "
        "one seed; chosen is not measured there; no single pair is told apart in keys reached, either): whole, "
        f"{join([f'{k} {v}' for k, v in whole.items()])}; reached (any key of the text), "
        f"rerope {found['rerope']}, self_extend {found['self_extend']}, yarn {found['yarn']}, ntk "
        f"{found['ntk']}, unmodified {found['none']}, pi {found['pi']}. "
        f"{smollm2_page.contrast_text(board['reached'])} Which of four keys is asked for is another ability: "
        f"{min(rates):.0f} to {max(rates):.0f} % of the answers that reach a key have the right one, chance 25 %. "
        f"Control: at T the unmodified model reaches a key in {control[0]} of 64 and copies {control[1]} whole."
    )


def cutting(lexlet: Lexlet, board: smollm2_page.Places) -> str:
    """Whether a method beats cutting the text, in loss."""
    cut = smollm2_page.against_cutting(board["nll"])
    bca = lexlet.gap("loss", ("none", TRAINED), ("bca", LONG))
    half = lexlet.gap("loss", ("none", 128), ("none", TRAINED))
    return (
        "4. **No method was shown to beat cutting the text to T, in loss.** On SmolLM2 (32 texts) the best at 2T, "
        f"self_extend, differs by {signed(cut['self_extend'])} nats per token, which cannot be told from 0; the "
        "control says that there is something to gain: from T/2 to T the unmodified model itself changes by "
        f"{signed(cut['none'])}. On lexlet (32 texts) there is nothing to gain: of 36 methods at 8T the best is bca, "
        f"{signed(bca)} nats over the unmodified model at T, and from T/2 to T the unmodified model itself gains "
        f"{signed(half)} (p = {half.p:.2f}), so that the loss can only show harm. "
        "[Tables](reference/leaderboard.md)."
    )


def one_setting(lexlet: Lexlet) -> list[str]:
    """What one setting for all lengths costs on short texts."""
    price = lexlet.gap("loss", ("yarn(factor=8.0)", TRAINED), ("none", TRAINED))
    lost, unseen = (
        lexlet.gap(metric, ("none", TRAINED), ("yarn(factor=8.0)", TRAINED)) for metric in ("copied whole", "chosen")
    )
    kept = {name: lexlet.count("chosen", name, TRAINED) for name in lexlet.set_for_long}
    few = [f"{name} {kept[f'{name}(factor=8.0)']}" for name in LOSING]
    return [
        f"5. **One setting for all texts costs on short ones, in written keys more than in chosen ones.** Set for 8T "
        f"(factor 8), yarn at T still chooses {kept['yarn(factor=8.0)']} of 32 keys (loses {signed(unseen, 1, 100)} "
        f"points, not told from 0), but loses {signed(lost, 1, 100)} points of keys copied whole and {signed(price)} "
        f"nats; {lexlet.count('digits in place', 'yarn(factor=8.0)', TRAINED)} of 160 digits stay in place "
        f"(unmodified: {lexlet.count('digits in place', 'none', TRAINED)}). Of the twelve methods of frequencies alone "
        "with such a setting nine lose 75 points or more of keys copied whole; longrope and longrope2 keep all 32 "
        f"keys, llama3 27. Chosen: {join(few)}, the other nine 26 to 32. The five that remap distances by such a "
        "setting lose none of either.  ",
        "   `lexbench leaderboard results/reference/lexlet --columns summary`",
    ]


LOSING = ("pi", "ntk_mixed", "yarn_paper")
"""Of the methods of frequencies alone those that choose fewest keys at T if they are set for 8T."""
REMAPPED = ("adagrope", "chunkllama", "dca", "leaky_rerope", "rerope", "self_extend")
"""Methods that copy more keys at 8T than a window does."""
join = smollm2_page.join


def counts(lexlet: Lexlet, metric: str, methods: Sequence[str]) -> str:
    """`84, 56 and 50` at 8T."""
    return join([str(lexlet.count(metric, each)) for each in methods])


def drawn(each: recompute.Agreement, of_questions: bool = False) -> str:
    """A correlation with its interval, over methods or over questions."""
    found = each.over_questions if of_questions else each.over_methods
    return f"{each.value:.2f} {interval_text(recompute.middle(found))}"


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
