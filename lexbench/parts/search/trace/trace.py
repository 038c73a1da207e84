"""`lexbench trace`: checkpoints x lengths, falls, and the checkpoint to take; resumable."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from lexbench.core.errors import ConfigError
from lexbench.core.text import count_with_noun
from lexbench.parts.search.trace.checkpoints import Checkpoint, checkpoints_of_words
from lexbench.parts.search.trace.choose import N_FINALISTS, TracedFinalist, order, rank_finalists
from lexbench.parts.search.trace.falls import Fall, Harm, falls, harms
from lexbench.parts.search.trace.measure import (
    FRESH_FOLDER,
    JOURNAL_FILE,
    Bench,
    CheckpointRow,
    Column,
    columns_of,
    kept_rows,
)
from lexbench.parts.search.trace.settings import Settings
from lexbench.parts.search.trace.training_order import order_checkpoints
from lexbench.stats.floors import language_not_learned_by_outcomes
from lexbench.stats.notes import Note
from lexbench.stats.pairs import correct_by_holm, paired_difference


@dataclass(frozen=True, kw_only=True)
class Traced:
    """Checkpoints of a training: their values, falls between them, harm of longer texts, and the best of them."""

    rows: Sequence[CheckpointRow]
    columns: Mapping[Column, str]
    """Tasks and lengths that every checkpoint has a value for, with their metrics; the first task decides."""
    falls: Sequence[Fall]
    harms: Sequence[Harm]
    best: int
    """Place of the best checkpoint on the questions that all have answered."""
    finalists: Sequence[TracedFinalist] = field(default_factory=tuple)
    """Best checkpoints on fresh questions, the best first; empty while checkpoints may still appear."""
    questions: int = 0
    """Values of a checkpoint at each length."""
    order_rule: str = ""
    """What the checkpoints are ordered by; empty: not told."""

    @property
    def unspoken(self) -> Note | None:
        """Note that not even the best checkpoint has learned the language of the deciding task's text."""
        task = next(iter(self.columns)).task
        kept = {column.length: self.rows[self.best].kept[column] for column in self.columns if column.task == task}
        inside = [each for length, each in sorted(kept.items()) if length <= each.cell.trained_length]
        if not inside or "nll" not in inside[-1].outcomes:
            return None
        each = inside[-1]
        levels = each.floors.get("nll") or {}
        return language_not_learned_by_outcomes(
            self.rows[self.best].label, each.cell.method, each.cell.length, each.outcomes["nll"], levels
        )

    @property
    def steps(self) -> list[int] | None:
        """Steps of the checkpoints; None where one has none, or where a later stage counts anew."""
        known = [row.checkpoint.step for row in self.rows]
        steps = [step for step in known if step is not None]
        return steps if len(steps) == len(known) and steps == sorted(set(steps)) else None


def trace(
    words: Sequence[str],
    *,
    tasks: Sequence[Mapping[str, Any]],
    corpus: Mapping[str, Any],
    backend: Mapping[str, Any],
    settings: Settings,
) -> Traced:
    """Measure all checkpoints, then the finalists, and the ends of each fall, on fresh questions.

    Args:
        words: checkpoints, as `checkpoints.named` takes them; none: those that a training has kept in the folder.
        tasks: configs of the tasks, the deciding one first.
        corpus: config of the texts.
        backend: config of the backend.
        settings: of the trace.

    Raises ConfigError for a wrong configuration, a checkpoint that cannot be read, or other questions (another
    tokenizer) of a later one.
    """
    folder = settings.folder
    if not words:
        if (folder / JOURNAL_FILE).exists():  # its page has fresh questions, which one without checkpoints would lose
            raise ConfigError(f"{folder} holds a trace of checkpoints: give them again, nothing is measured twice")
        rows = kept_rows(folder)
        if not rows:
            raise ConfigError(f"{folder} holds no measured checkpoint: give CKPT..., e.g. 'out/checkpoint-*'")
        rows, rule = order_rows(rows, settings)
        return summarise_checkpoints(rows, rule)
    bench = Bench(folder, tasks, corpus, backend, settings)
    every, rule = order_checkpoints(checkpoints_of_words(words), settings.order)
    if len(every) > 1:
        print(order_line(every, rule), file=sys.stderr)
    rows = [_report_row(bench, each, place, len(every)) for place, each in enumerate(every)]
    found = summarise_checkpoints(rows, rule)
    return _confirm_on_fresh(found, bench)


def order_rows(rows: Sequence[CheckpointRow], settings: Settings) -> tuple[list[CheckpointRow], str]:
    """Measured checkpoints in the order of their training, and the rule."""
    of = {row.checkpoint: row for row in rows}
    every, rule = order_checkpoints([*of], settings.order)
    return [of[each] for each in every], rule


def order_line(every: Sequence[Checkpoint], rule: str) -> str:
    """`2 checkpoints, by step in the name: 200, 1000`."""
    return f"{count_with_noun(len(every), 'checkpoint')}, by {rule}: {', '.join(each.name for each in every)}"


def _report_row(bench: Bench, checkpoint: Checkpoint, place: int, count: int) -> CheckpointRow:
    """The answers of a checkpoint, with a line on standard error."""
    row = bench.measure_checkpoint(checkpoint)
    print(f"{checkpoint.label}: {place + 1} of {count_with_noun(count, 'checkpoint')}", file=sys.stderr)
    return row


def summarise_checkpoints(rows: Sequence[CheckpointRow], order_rule: str = "") -> Traced:
    """Findings from the answers of all checkpoints in their order, without fresh questions.

    ConfigError where checkpoints share no task and length, or a question is another one.
    """
    columns = columns_of(rows)
    if not columns:
        raise ConfigError("no task and length has a value for every checkpoint: lower lengths, or see lexbench show")
    for column, metric in columns.items():
        for row in rows[1:]:
            unlike = paired_difference(
                rows[0].kept[column].outcomes[metric], row.kept[column].outcomes[metric], metric
            ).first_mismatch
            if unlike is not None:
                raise ConfigError(
                    f"question {unlike} of {column.task} at {column.length} is not the same for {rows[0].label} and "
                    f"{row.label}: trace checkpoints of one tokenizer"
                )
    return Traced(
        rows=rows,
        columns=columns,
        falls=falls(rows, columns),
        harms=harms(rows, columns),
        best=order(rows, columns)[0],
        questions=max(cell.cell.n for cell in rows[0].kept.values()),
        order_rule=order_rule,
    )


def _confirm_on_fresh(found: Traced, bench: Bench) -> Traced:
    """The trace with finalists and falls on fresh questions."""
    finalists = order(found.rows, found.columns)[:N_FINALISTS]
    last = len(found.rows) - 1
    fresh = {
        place: bench.measure_checkpoint(found.rows[place].checkpoint, FRESH_FOLDER)
        for place in sorted({0, last, *finalists, *(fall.before for fall in found.falls)})
    }
    columns = {column: metric for column, metric in found.columns.items() if column in columns_of([*fresh.values()])}
    measured = {
        fall.column: paired_difference(
            fresh[fall.before].kept[fall.column].outcomes[fall.metric],
            fresh[last].kept[fall.column].outcomes[fall.metric],
            fall.metric,
        )
        for fall in found.falls
        if fall.column in columns
    }
    known = correct_by_holm(measured)
    return replace(
        found,
        falls=[replace(fall, fresh=known.get(fall.column)) for fall in found.falls],
        finalists=rank_finalists(found.rows, fresh, finalists, found.columns),
    )
