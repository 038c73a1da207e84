"""Result of a tune as Markdown, CSV and JSON: ranking, exports of the winner, all candidates."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from lexbench.core import machine
from lexbench.core.files import write_text
from lexbench.core.method_key import BASELINE_METHOD
from lexbench.core.record import Refused
from lexbench.core.text import count_with_noun
from lexbench.methods import export
from lexbench.parts.search.tune.answer import dear, extend_arguments, gain, paragraph, row_name, text_to_paste
from lexbench.parts.search.tune.ranking import Finalist
from lexbench.parts.search.tune.result import TuneResult
from lexbench.parts.search.tune.search import TriedCandidate
from lexbench.parts.search.tune.space import Candidate
from lexbench.report import formats
from lexbench.report.grid import Grid, GridEntry, Line, difference_entry
from lexbench.report.sheet import Paragraph
from lexbench.report.wording import found_words
from lexbench.stats.pairs import PairedDifference
from lexbench.stats.reach import smallest_found_by_all

RANKING_LEGEND = """\
Best first. Loss: NLL of the text plus {worth} times the share of needles missed, in nats per token, lower is better;
behind is the loss minus the best one's. Gains are over the unmodified model, above 0 is better: in text, of whose NLL
at {length} tokens it has {none}; in needles, beside the share found, in points. Price: NLL at the trained length
{trained} minus that of the unmodified model, with the method as deployed for {length} tokens; the limit is {price}.
Brackets hold 95 % intervals over resampled documents or haystacks. =: cannot be told from the best: behind holds 0,
or sign flips over documents and haystacks give a p above 0.05 after Holm's correction over the table. ~: the interval
of the price straddles the limit, so "too dear" is uncertain.
"""


def ranking_markdown(result: TuneResult) -> str:
    """The answer, the finalists on fresh questions, and the size of the search."""
    said, table = Paragraph(paragraph(result)), _ranking_table(result)
    if not result.rows:
        return formats.sheet_markdown([said, table])
    none = next((row for row in result.rows if row.candidate.key == BASELINE_METHOD), None)
    about = {
        "worth": f"{result.settings.worth:g}",
        "none": f"{none.text.value:.3f}" if none and none.text.value is not None else "no finite one",
        "length": result.length,
        "trained": result.model.trained_length,
        "price": f"{result.settings.price:g}",
    }
    legend = Paragraph(RANKING_LEGEND.format(**about))
    return formats.sheet_markdown([said, legend, replace(table, remarks=list(_ranking_notes(result)))])


def terminal_text(result: TuneResult) -> str:
    """Text for a terminal: the answer in a paragraph, settings to paste, and the finalists in a table."""
    paste = ["Paste:", text_to_paste(result), ""] if result.winner is not None else []
    said, table = (formats.sheet_text([block]) for block in (Paragraph(paragraph(result)), _ranking_table(result)))
    return "\n".join([said, *paste, table]).rstrip()


def _ranking_table(result: TuneResult) -> Grid:
    """The finalists; where no time was left for any, the best candidates of the search."""
    if not result.rows:
        return _candidates_table(result, most=10)
    head = ["method", "loss", "behind", "gain in text", "needles", "price", "can be exported to"]
    return Grid(head=head, rows=[_finalist_entries(result, row, place) for place, row in enumerate(result.rows)])


def _finalist_entries(result: TuneResult, row: Finalist, place: int) -> Line:
    doubt = "~" if row.doubtful else ""
    mark = f"too dear {doubt}".rstrip() if row.dear else "=" if row.tied else ""
    needles = difference_entry(row.needles, ".0f", 100, missing="–")
    if row.needles is not None and row.needles.value is not None:
        needles = replace(needles, text=f"{row.needles.value:.2f}, {needles.text}")
    return [
        GridEntry(text=f"{place + 1}. {row_name(row.candidate)}", more=mark),
        f"{row.loss:.3f}",
        ("–" if result.unspoken else "best") if place == 0 else difference_entry(row.behind, missing="–"),
        difference_entry(gain(row.text), missing="–"),
        needles,
        difference_entry(row.inside, missing="–", more="" if row.dear else doubt),
        ", ".join(row.candidate.export_targets(result.model, result.length)) or "nothing",
    ]


def _ranking_notes(result: TuneResult) -> Iterator[str]:
    settings = result.settings
    needles = result.needles or "none, as the model finds none inside its trained length"
    if settings.worth == 0 or not settings.needles:
        needles = "not used"
    yield (
        f"{count_with_noun(result.fresh, 'fresh question')} of each kind (seed {settings.seed + 1}; "
        f"the search had seed {settings.seed}), the same ones for all; needles: {needles}."
    )
    if result.seen:
        texts = count_with_noun(result.fresh, "fresh text")
        yield f"From documents of which the search read, too: {result.seen} of {texts}."
    if result.fresh < result.planned:
        yield f"The budget ended before all {result.planned} fresh questions were asked."
    if tied := [row.behind for row in result.rows if row.tied]:
        yield f"Of what cannot be told from the best: {found_words(smallest_found_by_all(tied, 'nll'), 'nll')}."
    measured = sum(bool(tried.curve) for tried in result.tried)
    yield (
        f"{count_with_noun(measured, 'candidate')} measured in {count_with_noun(result.rounds, 'round')}, "
        f"{count_with_noun(result.answers, 'answer')}."
    )


def _candidates_table(result: TuneResult, most: int | None = None) -> Grid:
    head = ["candidate", "questions", "loss", "price", "what became of it"]
    return Grid(head=head, rows=[_candidate_entries(result, tried) for tried in result.tried[:most]])


def _candidate_entries(result: TuneResult, tried: TriedCandidate) -> Line:
    return [
        tried.candidate.label,
        str(tried.asked) if tried.curve else "",
        f"{tried.curve[-1][1]:.3f}" if tried.curve else "",
        difference_entry(tried.price, missing="–") if tried.price else "",
        _candidate_fate(result, tried),
    ]


def _candidate_fate(result: TuneResult, tried: TriedCandidate) -> str:
    finalists = {row.candidate.label for row in result.rows}
    if tried.out:
        return tried.out
    if tried.candidate.label in finalists:
        return "finalist"
    if tried.curve:
        return "no finalist"
    # Without a round the text was refused, by the questions of `none`, before any candidate was tried.
    return "not measured: the budget ended" if result.rounds else "not ranked: the model does not speak the text"


def _paste_sections(result: TuneResult, winner: Candidate) -> Iterator[str]:
    """The winner in Python and for each target; where it cannot be exported, the best finalist that can."""
    yield "### Python, with any model of transformers\n"
    call = f"lexbench.extend(network, {extend_arguments(winner, result.length)})"
    yield f"```python\nimport lexbench\n\nwith {call}:\n    ...\n```\n"
    within, price = [row.candidate for row in result.rows if not row.dear], result.settings.price
    if not result.rows:
        within = [
            each.candidate for each in result.tried if each.curve and not each.out and not each.costs_more_than(price)
        ]
    rivals = [candidate for candidate in within if candidate is not winner]
    deployed = result.model, result.length
    for target in export.EXPORT_TARGETS:
        yield f"### {target}\n"
        text, why = winner.export_text(target, *deployed)
        if text is None:
            yield f"The best cannot be exported: {formats.escape_markdown(why)}.\n"
            able = ((each, each.export_text(target, *deployed)[0]) for each in rivals)
            other, text = next((pair for pair in able if pair[1] is not None), (None, None))
            yield f"{formats.escape_markdown(dear(result, target))}\n"
            if other is None or other.key == BASELINE_METHOD:
                yield "No candidate within the price that beats the baseline can be exported: serve the model itself.\n"
                continue
            yield f"The best one that can: {formats.escape_markdown(other.label)}.\n"
        language = "json" if target == "transformers" else "sh"
        yield f"```{language}\n{text}\n```\n" if text else "Nothing to set: serve the model as it is.\n"


def result_markdown(result: TuneResult) -> str:
    """The whole page."""
    lines = [f"# Tuning {formats.escape_markdown(result.model.name)}\n", ranking_markdown(result), "## To paste\n"]
    if result.unspoken:
        lines.append("Nothing: the model does not speak the text, or too few documents show that it does.\n")
    elif result.winner is None:
        lines.append("Nothing is within the price: raise price, or serve the model as it is.\n")
    else:
        lines += _paste_sections(result, result.winner)
    lines += ["## What was tried\n", f"On the search's own questions, up to {result.settings.n} of each kind.\n"]
    return "\n".join([*lines, formats.grid_markdown(_candidates_table(result))])


def _difference_columns(paired: PairedDifference | None, name: str) -> dict[str, Any]:
    """A difference as columns."""
    found = paired or PairedDifference()
    numbers = {key.removesuffix("_value"): number for key, number in found.numbers().items()}
    return {f"{name}_{key}": number for key, number in {**numbers, "p": found.p}.items()}


def rows_as_data(result: TuneResult) -> list[dict[str, Any]]:
    """The ranking in full precision."""
    return [
        {
            "rank": place + 1,
            "method": row.candidate.label,
            "config": dict(row.candidate.config),
            "loss": row.loss,
            "too_dear": row.dear,
            "tied_with_best": row.tied,
            **_difference_columns(row.behind, "behind"),
            "behind_p_holm": row.behind.p_holm,
            **_difference_columns(row.text, "text"),
            **_difference_columns(row.needles, "needles"),
            **_difference_columns(row.inside, "price"),
            "questions": result.fresh,
            "exports": row.candidate.export_targets(result.model, result.length),
        }
        for place, row in enumerate(result.rows)
    ]


def tried_as_data(result: TuneResult) -> list[dict[str, Any]]:
    """All candidates of the search."""
    return [
        {
            "method": tried.candidate.label,
            "config": dict(tried.candidate.config),
            "questions": tried.asked,
            "loss": tried.curve[-1][1] if tried.curve else None,
            **_difference_columns(tried.price, "price"),
            "became": _candidate_fate(result, tried),
        }
        for tried in result.tried
    ]


def _rows_as_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows as CSV, lists and configurations as JSON."""
    nested = [
        {k: json.dumps(v, default=str) if isinstance(v, dict | list) else v for k, v in row.items()} for row in rows
    ]
    return formats.rows_as_csv(nested, as_is=True)


def holds_ranking(out: Path) -> bool:
    """Whether a folder holds the ranking of a tune."""
    return (out / "result.csv").is_file() and bool((out / "result.csv").read_bytes().strip())


def write_result(result: TuneResult, out: Path) -> None:
    """result.md, result.csv, candidates.csv, and last result.json, which says that the tune has ended.

    Refused, and nothing is written, where a ranking would be replaced by none.
    """
    rows, tried = rows_as_data(result), tried_as_data(result)
    if not rows and holds_ranking(out):
        why = result.unspoken or "its budget leaves no time for fresh questions"
        raise Refused(f"{out} holds a ranking, and this tune has none: {why}: the files stay, give another out=")
    write_text(out / "result.md", result_markdown(result))
    write_text(out / "result.csv", _rows_as_csv(rows))
    write_text(out / "candidates.csv", _rows_as_csv(tried))
    winner = result.winner
    data = {
        "budget": result.settings.budget,
        "seconds": round(result.seconds, 1),
        "answers": result.answers,
        "needles": result.needles,
        "winner": winner.label if winner else None,
        "unspoken": result.unspoken,
        "exports": {
            target: dict(zip(("text", "refused"), winner.export_text(target, result.model, result.length), strict=True))
            for target in export.EXPORT_TARGETS
        }
        if winner
        else {},
        "ranking": rows,
        "candidates": tried,
        "provenance": machine.collect_provenance(),
    }
    write_text(out / "result.json", formats.as_json(data) + "\n")
