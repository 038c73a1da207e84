"""What `compare`, `check`, `certify` and `power` print of two files of samples, with the exit code."""

from collections.abc import Sequence
from pathlib import Path

from lexbench.core.errors import ConfigError
from lexbench.core.text import plain_text
from lexbench.parts.exchange.files.sample_logs import columns_of, is_log, read
from lexbench.parts.exchange.referee.formats import annotations, verdict_data, verdict_markdown
from lexbench.parts.exchange.referee.judge import (
    FilesQuestion,
    FilesVerdict,
    certify_pairs,
    check_pairs,
    choose_margins,
    compare_pairs,
    margin_of,
)
from lexbench.parts.exchange.referee.pairs import Key, TaskPair, pair_files
from lexbench.parts.exchange.referee.power import power_command
from lexbench.report import formats
from lexbench.report.check.check import tolerances_of
from lexbench.report.check.formats import annotation
from lexbench.stats.metrics import is_token_loss
from lexbench.stats.regressions import DEFAULT_SCORE_TOLERANCE_POINTS, DEFAULT_TOLERANCE_OF_METRIC

__all__ = ["certify_command", "check_command", "compare_command", "is_log", "judge_files", "power_command"]

DEFAULT_MARGINS = {"accuracy": DEFAULT_SCORE_TOLERANCE_POINTS, **DEFAULT_TOLERANCE_OF_METRIC}


def compare_command(a: Path, b: Path, columns: Sequence[str] = (), *, as_data: bool = False) -> tuple[str, int]:
    """`lexbench compare A B`: the text to print, and 2 where something cannot be told.

    ConfigError for a file that cannot be read, and where no sample is in both.
    """
    return _verdict_text(judge_files(FilesQuestion.COMPARE, a, b, columns), a, b, as_data, github=False)


def check_command(
    run: Path,
    baseline: Path,
    columns: Sequence[str] = (),
    margin: Sequence[str] = (),
    *,
    as_data: bool = False,
    github: bool = False,
) -> tuple[str, int]:
    """`lexbench check RUN --baseline FILE`: the text to print, and 1 where more than the margin is lost, 2 where it
    cannot be told.

    ConfigError for files that cannot be compared; on GitHub exit code 2 with an annotation instead.
    """
    return _gate(FilesQuestion.CHECK, baseline, run, columns, margin, as_data, github)


def certify_command(
    a: Path,
    b: Path,
    columns: Sequence[str] = (),
    margin: Sequence[str] = (),
    *,
    as_data: bool = False,
    github: bool = False,
) -> tuple[str, int]:
    """`lexbench certify A B`: the text to print, and 0 only where B is proven to lose less than the margin.

    ConfigError as for `check_command`, and for a margin of 0.
    """
    if not margin:
        raise ConfigError("certify needs the loss that is allowed: give --margin accuracy=2")
    return _gate(FilesQuestion.CERTIFY, a, b, columns, margin, as_data, github)


def _gate(
    question: FilesQuestion,
    a: Path,
    b: Path,
    columns: Sequence[str],
    margin: Sequence[str],
    as_data: bool,
    github: bool,
) -> tuple[str, int]:
    try:
        return _verdict_text(judge_files(question, a, b, columns, margin), a, b, as_data, github)
    except ConfigError as error:
        if not github:
            raise
        said = f"NOT COMPARABLE: {plain_text(error)}"
        return f"{said}\n{annotation('error', f'lexbench {question.value}', said)}", 2


def judge_files(
    question: FilesQuestion, a: Path, b: Path, columns: Sequence[str] = (), margin: Sequence[str] = ()
) -> FilesVerdict:
    """The verdict on B against A.

    Args:
        question: what is asked of B.
        a: file of samples, or lm_eval's folder of them: the baseline.
        b: likewise.
        columns: of JSONL, `score=correct`.
        margin: losses that are allowed, `accuracy=2`, in points or nats per token; none: 2 points and 0.02 nats.
    """
    named = columns_of(columns)
    given = tolerances_of(margin)
    if question is FilesQuestion.CERTIFY and (zero := [name for name, size in given.items() if not size > 0]):
        raise ConfigError(
            f"margin {zero[0]} must be above 0, got {given[zero[0]]:g}: no test proves that nothing is lost"
        )
    sides = [read(path, named, bool(columns)) for path in (a, b)]
    pairs, absent, added = pair_files(*sides)
    if question is FilesQuestion.COMPARE:
        rows = compare_pairs(pairs)
    else:
        allowed = given or _defaults(pairs)
        chosen, margins = choose_margins(pairs, allowed)
        rows = (check_pairs if question is FilesQuestion.CHECK else certify_pairs)(chosen, margins)
        absent = [key for key in absent if margin_of(key[1], allowed) is not None]
    return FilesVerdict(question=question, rows=rows, absent=_names(absent), added=_names(added))


def _names(keys: Sequence[Key]) -> list[str]:
    return [f"{task} ({metric})" for task, metric in keys]


def _defaults(pairs: Sequence[TaskPair]) -> dict[str, float]:
    """The default margins that these pairs need."""
    known = {pair.metric if is_token_loss(pair.metric) else "accuracy" for pair in pairs}
    return {name: size for name, size in DEFAULT_MARGINS.items() if name in known}


def _verdict_text(verdict: FilesVerdict, a: Path, b: Path, as_data: bool, github: bool) -> tuple[str, int]:
    text = formats.as_json(verdict_data(verdict, a, b)) if as_data else verdict_markdown(verdict, a, b).rstrip()
    return "\n".join([text, *(annotations(verdict) if github else [])]), verdict.code
