"""A verdict on two files of samples as Markdown, as plain data, and as annotations of GitHub Actions."""

from pathlib import Path
from typing import Any

from lexbench.core.text import join_first_few
from lexbench.parts.exchange.referee.judge import FilesQuestion, FilesVerdict, Judged, Ruling
from lexbench.parts.exchange.referee.sentences import row_sentence, verdict_sentence, verdict_word
from lexbench.report import formats
from lexbench.report.check.certificate import proof_numbers
from lexbench.report.check.formats import MAX_ANNOTATIONS_OF_KIND, annotation
from lexbench.report.grid import Grid, Line, difference_entry
from lexbench.report.sheet import Block, Paragraph, Remark
from lexbench.report.wording import format_p_value
from lexbench.stats.intervals import SIGNIFICANCE_LEVEL
from lexbench.stats.metrics import display_factor, display_unit, is_score

DECIMALS_OF_KIND = {True: ".1f", False: ".4f"}
"""Decimals of scores, in points, and of losses."""
PLAIN_RULINGS = (Ruling.NO_DIFFERENCE, Ruling.HELD, Ruling.PROVEN)
"""Rulings of which a table of several rows needs no sentence."""
VERDICT_LEGEND = f"""\
B minus A over the samples that both files hold. Brackets hold 95 % intervals, samples of a cluster kept together.
p: {{test}}, by sign flips over clusters and a test for skewed differences, after Holm's correction over
the rows; *: up to {SIGNIFICANCE_LEVEL}, whatever samples are missing.
{{last}}
"""
LEGEND_OF_QUESTION = {
    FilesQuestion.COMPARE: VERDICT_LEGEND.format(
        test="two-sided",
        last="Detectable: a difference of this size would be significant as the first of the rows; a smaller one may\n"
        "be missed.",
    ),
    FilesQuestion.CHECK: VERDICT_LEGEND.format(
        test="of a loss beyond the margin",
        last="Found: the smallest loss that nine runs of ten would have shown.",
    ),
}
LEGEND_OF_QUESTION[FilesQuestion.CERTIFY] = LEGEND_OF_QUESTION[FilesQuestion.CHECK]


def verdict_markdown(verdict: FilesVerdict, a: Path, b: Path) -> str:
    """The verdict in a line, a table with a row for each task and metric, and a sentence on each that is not plain."""
    files = zip(_file_names(verdict.question), (a, b), strict=True)
    sheet: list[Block] = [Paragraph(verdict_sentence(verdict), strong=True)]
    sheet += [Remark(f"{name}: {path}") for name, path in files]
    sheet += [Paragraph(LEGEND_OF_QUESTION[verdict.question]), _grid(verdict)]
    if len(verdict.rows) > 1:
        sheet += [
            Remark(f"{row_sentence(row, verdict.question)}.")
            for row in verdict.rows
            if row.ruling not in PLAIN_RULINGS or not row.is_whole or row.pair.other_prompts or row.found.failed
        ]
    for side, names in (("A", verdict.absent), ("B", verdict.added)):
        if names:
            sheet.append(Remark(f"In {side} alone, or without a pair: {join_first_few(names, 6)}."))
    return formats.sheet_markdown(sheet)


def _file_names(question: FilesQuestion) -> tuple[str, str]:
    return ("A, the baseline", "B, the run") if question is FilesQuestion.CHECK else ("A", "B")


def _grid(verdict: FilesVerdict) -> Grid:
    compared = verdict.question is FilesQuestion.COMPARE
    size = "detectable" if compared else "found"
    head = ["task", "metric", "A", "B", "B - A", "p (Holm)", size, *([] if compared else ["margin"]), "pairs"]
    return Grid(head=head, rows=[_row(row, compared) for row in verdict.rows], labels=2)


def _row(row: Judged, compared: bool) -> Line:
    found, metric = row.found, row.pair.metric
    factor, digits = display_factor(metric), DECIMALS_OF_KIND[is_score(metric)]
    values = found.numbers(factor)
    told = row.ruling in (Ruling.BETTER, Ruling.WORSE, Ruling.LOST)
    size = row.detectable if compared else row.smallest
    return [
        row.pair.task,
        f"{metric}, {display_unit(metric)}",
        *(f"{values[name]:{digits}}" for name in ("baseline_value", "value")),
        difference_entry(found, digits, factor, star=told, notes=[]),
        format_p_value(found.p_holm or 0.0),
        "none" if size is None else f"{factor * size:{digits}}",
        *([] if compared else [f"{row.margin:g}"]),
        str(found.pairs),
    ]


def verdict_data(verdict: FilesVerdict, a: Path, b: Path) -> dict[str, Any]:
    """The verdict as plain data, in full precision and each task's unit; `verdict.schema.json` describes it."""
    return {
        "question": verdict.question.value,
        "a": str(a),
        "b": str(b),
        "verdict": verdict_word(verdict).lower(),
        "code": verdict.code,
        "sentence": verdict_sentence(verdict),
        "level": SIGNIFICANCE_LEVEL,
        "tasks": [_row_data(row, verdict.question) for row in verdict.rows],
        "only_a": [*verdict.absent],
        "only_b": [*verdict.added],
    }


def _row_data(row: Judged, question: FilesQuestion) -> dict[str, Any]:
    found, factor = row.found, display_factor(row.pair.metric)
    values = found.numbers(factor)
    ends = [None if each is None else factor * (each.difference or 0.0) for each in (row.worst, row.best)]
    lacked = [len(each) for each in row.pair.missing]
    return {
        "task": row.pair.task,
        "metric": row.pair.metric,
        "unit": display_unit(row.pair.metric),
        "verdict": row.ruling.value,
        "doubt": row.doubt.value if row.doubt else None,
        "sentence": row_sentence(row, question),
        "a_value": values["baseline_value"],
        "b_value": values["value"],
        **{name: values[name] for name in ("difference", "low", "high")},
        "interval": found.interval and found.interval.kind,
        **found.tests(),
        "significant": row.ruling in (Ruling.BETTER, Ruling.WORSE, Ruling.LOST),
        **{name: getattr(found, name) for name in ("pairs", "clusters", "failed")},
        "missing_in_a": lacked[0],
        "missing_in_b": lacked[1],
        "range": None if None in ends else ends,
        "other_prompts": row.pair.other_prompts,
        "margin": row.margin,
        "detectable": factor * row.detectable if question is FilesQuestion.COMPARE else None,
        "smallest_loss_found": None if row.smallest is None else factor * row.smallest,
        "proof": row.proof and proof_numbers(row.proof, row.pair.metric),
    }


def annotations(verdict: FilesVerdict) -> list[str]:
    """Workflow commands of GitHub Actions, one a row that does not hold, at most ten; the last says how many more."""
    title = f"lexbench {verdict.question.value}: {verdict_word(verdict).lower()}"
    said = [row_sentence(row, verdict.question) for row in verdict.rows if row.ruling not in PLAIN_RULINGS]
    said += [f"{name} is missing in the second file" for name in verdict.absent]
    if len(said) > MAX_ANNOTATIONS_OF_KIND:
        left = len(said) - MAX_ANNOTATIONS_OF_KIND + 1
        said = [*said[: MAX_ANNOTATIONS_OF_KIND - 1], f"and {left} more, see the log"]
    return [annotation("error", title, each) for each in said]
