"""The page of `lexbench anatomy`: verdicts, contrasts by octave, controls, and what a score of whole keys would say."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import matplotlib as mpl
import numpy as np

from lexbench.core.files import write_text
from lexbench.core.method_key import MethodKey
from lexbench.core.text import count_with_noun, join_first_few
from lexbench.parts.anatomy.arms import ARM_CONTRASTS
from lexbench.parts.anatomy.contrasts import Control, Measured, by_wording, contrasts, controls, dropped_wordings
from lexbench.parts.anatomy.verdicts import verdicts
from lexbench.parts.anatomy.wordings import KEY_WORDINGS
from lexbench.report import formats
from lexbench.report.grid import EMPTY_ENTRY, Grid, GridEntry, Line, difference_entry
from lexbench.report.plots.style import MATPLOTLIB_STYLE, NotebookFigure, save_figure, series_style
from lexbench.stats.pairs import PairedDifference

PAGE_STEM = "anatomy"
"""Stem of the page and its figure."""
PAGE_LEGEND = """\
Nats of the key's tokens, given the tokens that all candidates begin with. Each contrast is of the same questions in two
arms; brackets hold 95 % intervals over wordings, `*`: significant at 5 % after Holm's correction over the octaves of a
contrast. Contrasts do not add up: arms interact. A distance is an octave, named by its end."""


def write(found: Measured, model: str, folder: Path) -> tuple[Path, list[str]]:
    """Write the page, and the figure where the controls hold; the page and its first lines."""
    page, stem = folder / f"{PAGE_STEM}.md", folder / PAGE_STEM
    dropped = dropped_wordings(found)
    lines = [*screen(found.without(dropped), controls(found, dropped))]
    write_text(
        page, f"# Anatomy of a far key: {model}\n\n" + section(found, model, stem, stem.with_suffix(".svg").name)
    )
    return page, lines


def section(found: Measured, model: str, stem: Path, link: str) -> str:
    """The page of a model without its heading, in Markdown; its figure is drawn as stem.svg where controls hold.

    Args:
        found: all wordings.
        model: its name.
        stem: path of the figure without its suffix.
        link: the figure's address on the page.
    """
    dropped = dropped_wordings(found)
    left, checks = found.without(dropped), controls(found, dropped)
    told = all(check.passed for check in checks)
    if told:
        draw(left, model, stem)
    else:
        stem.with_suffix(".svg").unlink(missing_ok=True)
    return _markdown(left, checks, dropped, link if told else None)


def screen(found: Measured, checks: Sequence[Control]) -> Iterator[str]:
    """The verdicts, or the controls that fail."""
    failed = [check for check in checks if not check.passed]
    if failed:
        yield "Nothing is told: " + "; ".join(f"{check.name} does not hold ({check.words})" for check in failed) + "."
        return
    for each in verdicts(found):
        yield f"- {each.claim}: **{each.said}** ({each.because}; {count_with_noun(each.n, 'wording')})."


def _markdown(found: Measured, checks: Sequence[Control], dropped: Sequence[str], link: str | None) -> str:
    """Verdicts, contrasts and controls; without a figure where the controls do not hold."""
    parts = [*screen(found, checks), ""]
    if link is not None:
        parts += [f"![Contrasts over distance]({link})", "", PAGE_LEGEND, ""]
        parts += [formats.grid_markdown(_contrasts(found, method)) for method in found.methods]
        parts += [formats.grid_markdown(_whole_keys(found, method)) for method in found.methods]
        parts.append(formats.grid_markdown(_by_wording(found, found.methods[0])))
    parts.append(formats.grid_markdown(_controls(checks)))
    if dropped:
        parts += [
            f"Wordings that were dropped, as they are not chosen right at distance zero: {', '.join(dropped)}.",
            "",
        ]
    if found.refused:
        reasons = [f"{reason} ({count_with_noun(n, 'cell')})" for reason, n in found.refused.items()]
        parts += [f"Refused: {join_first_few(reasons)}.", ""]
    return "\n".join(parts).rstrip() + "\n"


def _contrasts(found: Measured, method: MethodKey) -> Grid:
    """Contrasts as rows, octaves as columns."""
    known, octaves = contrasts(found, method), found.octaves(method)
    rows: list[Line] = []
    for each in ARM_CONTRASTS:
        differences = [known.get((each.name, octave)) for octave in octaves]
        if any(differences):
            entries = [_entry(difference) for difference in differences]
            rows.append([f"{each.name}: {each.words}", *entries])
    remark = f"{_counts_in_words(known.values())} a contrast. Trained length {found.trained_length:,}."
    head = ["contrast", *(f"to {octave:,}" for octave in octaves)]
    return Grid(head=head, rows=rows, title=f"{method}: nats a key, above 0: it costs", remarks=[remark])


def _counts_in_words(known: Iterable[PairedDifference]) -> str:
    """Pairs and wordings of contrasts, in words."""
    counts = sorted({(each.pairs, each.clusters) for each in known})
    words = [
        f"{count_with_noun(pairs, 'question')} of {count_with_noun(clusters, 'wording')}" for pairs, clusters in counts
    ]
    return join_first_few(words) or "nothing"


def _entry(difference: PairedDifference | None) -> GridEntry:
    if difference is None:
        return EMPTY_ENTRY
    return difference_entry(difference, ".2f", star=bool(difference.significant))


def _whole_keys(found: Measured, method: MethodKey) -> Grid:
    """Shares by arm and octave: keys whose format and tokens are the likeliest, and those chosen of 16."""
    octaves = found.octaves(method)
    rows: list[Line] = []
    for name in ("adjacent", "gap", "near8", "near64"):
        line: Line = [name]
        for octave in octaves:
            samples = found.cells[method, octave].get(name, ())
            shares = [
                np.mean([each.scores[score] for each in samples])
                for score in ("whole", "greedy", "accuracy")
                if samples
            ]
            line.append(GridEntry(text=" / ".join(f"{share:.2f}" for share in shares)) if shares else EMPTY_ENTRY)
        rows.append(line)
    remark = (
        "Format and key greedy / key greedy given its format / chosen of 16. The first alone measures the format, too."
    )
    head = ["arm", *(f"to {octave:,}" for octave in octaves)]
    return Grid(head=head, rows=rows, title=f"{method}: what whole keys would say", remarks=[remark])


def _by_wording(found: Measured, method: MethodKey) -> Grid:
    """The neighbourhood's contrast of each wording by octave: one wording is no sample of wordings."""
    octaves = found.octaves(method)
    gaps = [by_wording(found.cells[method, octave], "gap", "near8") for octave in octaves]
    rows: list[Line] = [
        [f"{each.name} ({each.kind})", *(f"{gap[each.name]:+.2f}" if each.name in gap else "" for gap in gaps)]
        for each in KEY_WORDINGS
        if any(each.name in gap for gap in gaps)
    ]
    head = ["wording", *(f"to {octave:,}" for octave in octaves)]
    return Grid(head=head, rows=rows, title=f"{method}: neighbourhood (gap - near8) by wording, nats a key")


def _controls(checks: Sequence[Control]) -> Grid:
    words = {True: "holds", False: "fails", None: "not measured"}
    rows: list[Line] = [[check.name, words[check.passed], check.words] for check in checks]
    return Grid(head=["control", "result", "found"], rows=rows, title="Controls")


# figure


def draw(found: Measured, model: str, stem: Path) -> None:
    """Draw contrasts over distance as stem.svg, a panel for each method."""
    with mpl.rc_context(MATPLOTLIB_STYLE):
        save_figure(figure(found, model), stem)


def figure(found: Measured, model: str) -> NotebookFigure:
    """Points with 95 % intervals; a dotted line marks the trained length."""
    methods = found.methods
    made = NotebookFigure(figsize=(6.8, 0.5 + 2.9 * len(methods)), layout="constrained")
    for axes, method in zip(made.subplots(len(methods), 1, squeeze=False)[:, 0], methods, strict=True):
        known, octaves = contrasts(found, method), found.octaves(method)
        shown = [each for each in ARM_CONTRASTS if any((each.name, octave) in known for octave in octaves)]
        axes.axhline(0.0, color="0.7", linewidth=0.8, zorder=0)
        for place, each in enumerate(shown):
            at = [octave for octave in octaves if (each.name, octave) in known]
            differences = [known[each.name, octave] for octave in at]
            # Side by side: marks of one octave stand a little apart.
            x = np.array(at) * 2 ** (-0.5 + 0.06 * (place - len(shown) / 2))
            y = np.array([float(d.difference or 0.0) for d in differences])
            below = [value if d.low is None else d.low for d, value in zip(differences, y, strict=True)]
            above = [value if d.high is None else d.high for d, value in zip(differences, y, strict=True)]
            ends = np.maximum(0.0, [y - below, above - y])  # an interval may end at its value, but for rounding
            axes.errorbar(x, y, yerr=ends, label=each.name, elinewidth=0.9, **series_style(place))
        axes.set_xscale("log", base=2)
        axes.set_xticks(np.array(octaves) * 2**-0.5, [f"to {octave:,}" for octave in octaves], fontsize=7.5)
        axes.axvline(found.trained_length, color="0.4", linewidth=1.0, linestyle=":")
        axes.set_title(f"{model}, {method} (dotted: trained length)")
        axes.set_ylabel("nats a key")
        axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False)
    axes.set_xlabel("distance, tokens")
    return made
