"""A baseline: one committed JSON file with the outcome of every question of a run, to pair later runs with.

    schema      version of this format
    checksum    of all else, however it is laid out; older files have none
    measured    provenance of the run folders' jobs, each machine and environment once
    questions   by hash: the columns that identify questions (index, cluster, targets, depth, bytes, words), once for
                all cells with these questions
    attentions  by hash: the attention of a method at a length as data, once for all cells that have it; older files
                have none
    cells       a line each: the cell and its identity, and by metric the amounts (9 digits), failed, truncated

Columns of default values are left out. No date is written: the same run gives the same bytes.
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from lexbench.core.errors import ConfigError
from lexbench.core.files import read_bytes, why_not_a_folder, write_text
from lexbench.core.text import count_with_noun, plain_text
from lexbench.core.values import checked_field_values, is_whole
from lexbench.stats import records
from lexbench.stats.cell_outcomes import CellOutcomes, changed_settings, find_duplicates, outcomes_of_cell
from lexbench.stats.invariants import is_possible_amount, wrongly_shown_settings
from lexbench.stats.metrics import is_score, is_token_loss
from lexbench.stats.pairs import Outcome
from lexbench.stats.regressions import check_cell_key
from lexbench.store.cell_rows import cell_row, read_cell

BASELINE_FORMAT_VERSION = 1
BASELINE_START_PATTERN = re.compile(r'\s*\{\s*"schema"\s*:')
"""The beginning of a baseline's file, also of one that was damaged or laid out by another program."""
OUTCOME_DEFAULTS = {
    field.name: field.default for field in fields(Outcome) if field.name not in ("index", "cluster", "amount")
}
QUESTION_FIELDS = ("index", "cluster", "targets", "depth", "bytes", "words")
ANSWER_FIELDS = ("amount", "failed", "truncated")


@dataclass(frozen=True, eq=False)
class Baseline:
    """Content of a baseline file."""

    cells: list[CellOutcomes]
    measured: list[Mapping[str, Any]]
    checked: bool = True
    """Whether it has a checksum, which holds; without one nobody sees an edit."""


def refuse_duplicate_cells(cells: Sequence[CellOutcomes]) -> None:
    """ConfigError for several cells of one key, as after resuming a run with another model."""
    twins = find_duplicates(cells, check_cell_key)
    if twins:
        cell = twins[0].cell
        odd = ", ".join(plain_text(each.name) for each in changed_settings([(twins[0], twins[1])])) or "their questions"
        raise ConfigError(
            f"the run holds {len(twins)} cells of {plain_text(cell.method)} {plain_text(cell.task)} at {cell.length}, "
            "seed "
            f"{cell.seed}, which differ in {odd}: give a folder that holds one of them"
        )


def update_baseline(folders: Sequence[Path], file: Path) -> Baseline:
    """Write the baseline of run folders; ConfigError where they hold no whole run, or the file is something else."""
    return write_baseline(baseline_cells(folders), folders, file)


def write_baseline(cells: Sequence[CellOutcomes], folders: Sequence[Path], file: Path) -> Baseline:
    """Write the baseline of these cells, measured as run folders say; ConfigError where the file is something else."""
    if file.is_file() and file.stat().st_size and not BASELINE_START_PATTERN.match(file.read_text(errors="replace")):
        raise ConfigError(f"baseline {file} is no baseline, and --update would replace it: give another file")
    write_text(file, baseline_text(cells, _provenance(folders)))
    return read_baseline(file)


def baseline_cells(folders: Sequence[Path]) -> list[CellOutcomes]:
    """The cells of run folders that a baseline can hold; ConfigError where they hold no whole run."""
    loaded = records.load_cells(folders)
    if loaded.problems:
        raise ConfigError(f"run cannot become a baseline: {loaded.problems[0]}")
    if off := [each for each in loaded.finished if each.deferred]:
        count, reason = count_with_noun(len(off), "cell"), plain_text(off[0].refused or "")
        raise ConfigError(f"run has {count} that could not be measured ({reason}): repeat the run command")
    for each in loaded.finished:
        if each.samples and all(sample.failed is not None for sample in each.samples):
            name = plain_text(f"{each.cell.method} {each.cell.task} at {each.cell.length}")
            raise ConfigError(
                f"run has no answer of {name} ({plain_text(each.samples[0].failed)}): mend that, run it anew"
            )
    if loaded.unfinished:
        count = count_with_noun(len(loaded.unfinished), "unfinished cell")
        raise ConfigError(f"run has {count} and cannot become a baseline: {loaded.remedy}")
    cells = [outcomes_of_cell(finished) for finished in loaded.finished]
    refuse_duplicate_cells(cells)
    return cells


def _provenance(folders: Sequence[Path]) -> list[Mapping[str, Any]]:
    """Provenance in the jobs of run folders, each once."""
    found: dict[str, Mapping[str, Any]] = {}
    for folder in records.run_folders(folders):
        for file in sorted((folder / "jobs").glob("*.json")):
            try:
                said = dict(json.loads(read_bytes(file))["provenance"])
            except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
                raise ConfigError(
                    f"job {file} cannot be read ({plain_text(error)}): run the same command again"
                ) from error
            found[json.dumps(said, sort_keys=True)] = said
    return [said for _, said in sorted(found.items())]


def baseline_text(cells: Sequence[CellOutcomes], measured: Sequence[Mapping[str, Any]]) -> str:
    """The file's text: a line a cell, and a line for the questions that cells share."""
    questions: dict[str, str] = {}
    attentions: dict[str, str] = {}
    lines = []
    for each in sorted(cells, key=lambda each: (*map(str, check_cell_key(each.cell)[:3]), each.cell.length, each.id)):
        given = {}
        for metric, found in each.outcomes.items():
            asked = _json(_columns(found, QUESTION_FIELDS))
            name = hashlib.sha256(asked.encode()).hexdigest()[:12]
            questions[name] = asked
            given[metric] = {"questions": name, **_columns(found, ANSWER_FIELDS)}
        if each.attention is not None:
            attentions[each.cell.identity["attention"]] = _json(each.attention)
        about = {"id": each.id, "cell": cell_row(each.cell), "outcomes": given}
        more = {"refused": each.refused, "failure": each.failure}
        lines.append(_json({**about, **{key: text for key, text in more.items() if text is not None}}))
    asked_lines = [f'"{name}":{text}' for name, text in sorted(questions.items())]
    attention_lines = [f'"{name}":{text}' for name, text in sorted(attentions.items())]
    # Written by hand for a line a cell: the diff of a commit then shows which cells changed.
    blocks = [",\n".join(each) for each in (map(_json, measured), asked_lines, attention_lines, lines)]
    head = f'"schema":{BASELINE_FORMAT_VERSION},\n'
    rest = (
        f'"measured":[\n{blocks[0]}\n],\n"questions":{{\n{blocks[1]}\n}},\n"attentions":{{\n{blocks[2]}\n}},\n'
        f'"cells":[\n{blocks[3]}\n]\n}}\n'
    )
    checksum = f'"checksum":"{_checksum(json.loads(f"{{{head}{rest}"))}",\n'
    return f"{{\n{head}{checksum}{rest}"


def _checksum(page: Mapping[str, Any]) -> str:
    """Hash of a file's content without the checksum itself, the same however another program lays it out."""
    content = {key: _normalise_numbers(value) for key, value in page.items() if key != "checksum"}
    return hashlib.sha256(_json(content).encode()).hexdigest()[:16]


def _normalise_numbers(value: Any) -> Any:
    """JSON in which 8.0 is 8, as some programs write it."""
    if isinstance(value, Mapping):
        return {key: _normalise_numbers(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_normalise_numbers(each) for each in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _columns(found: Sequence[Outcome], names: Sequence[str]) -> dict[str, list[Any]]:
    columns = {name: [_shorten_value(name, getattr(each, name)) for each in found] for name in names}
    return {
        name: values
        for name, values in columns.items()
        if name not in OUTCOME_DEFAULTS or any(value != OUTCOME_DEFAULTS[name] for value in values)
    }


def _shorten_value(name: str, value: Any) -> Any:
    """Booleans as 0 or 1, whole numbers without a point, amounts with 9 digits: more than two kernels agree on."""
    if name == "amount" and value is not None:
        value = float(f"{value:.9g}")
    whole = isinstance(value, bool) or (isinstance(value, float) and value.is_integer())
    return int(value) if whole else value


def _json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def _rewrite_command(file: Path) -> str:
    """The command that writes a baseline: of the commands that read one, only `check` has --update."""
    return f"lexbench check RUN --baseline {file} --update"


def read_baseline(file: Path) -> Baseline:
    """Read a baseline; ConfigError for an unreadable file, or one of a newer version."""
    if not file.is_file():
        raise ConfigError(f"baseline {file} {why_not_a_folder(file)}: write it with {_rewrite_command(file)}")
    try:
        page = json.loads(file.read_text(), parse_constant=_constant)
        if not is_whole(page["schema"], 1):
            raise ConfigError(f"its schema must be a whole number of at least 1, got {page['schema']!r}")
        newer = page["schema"] > BASELINE_FORMAT_VERSION
        cells = (
            []
            if newer
            else [_cell_from_row(row, page["questions"], page.get("attentions", {})) for row in page["cells"]]
        )
        if len({each.id for each in cells}) < len(cells):  # as a merge may leave it
            raise ConfigError("a cell stands there twice")
        if not newer and page.get("checksum") not in (None, _checksum(page)):
            raise ConfigError("it was edited: its checksum is another one")
        found = Baseline(cells, list(page["measured"]), "checksum" in page)
    except (OSError, KeyError, TypeError, AttributeError, ValueError, RecursionError) as error:
        said = f"{type(error).__name__}: {plain_text(error)}"[:100]
        raise ConfigError(
            f"baseline {file} cannot be read ({said}): write it again with {_rewrite_command(file)}"
        ) from error
    if newer:
        raise ConfigError(f"baseline {file} was written by a newer version of lexbench: use that version")
    return found


def _constant(name: str) -> float:
    if name == "NaN":
        raise ConfigError("NaN is no number")
    return float(name)


def _cell_from_row(
    row: Mapping[str, Any], questions: Mapping[str, Any], attentions: Mapping[str, Mapping[str, Any]]
) -> CellOutcomes:
    cell = read_cell(row["cell"], "a cell")
    if lacking := [part for part in ("model", "method", "task") if not isinstance(cell.identity.get(part), Mapping)]:
        raise ConfigError(f"a cell's identity has no {lacking[0]}")
    if fault := next(wrongly_shown_settings(cell), None):
        raise ConfigError(f"a cell has {fault}")
    corpus = cell.identity.get("corpus")
    if isinstance(corpus, Mapping) and not isinstance(corpus.get("name"), str):
        raise ConfigError("a cell's corpus has no name")
    if row.get("refused") is None and not row["outcomes"]:
        raise ConfigError("a measured cell has no answers")
    return CellOutcomes(
        id=str(row["id"]),
        cell=cell,
        outcomes={metric: _outcomes(metric, given, questions) for metric, given in row["outcomes"].items()},
        refused=row.get("refused"),
        failure=row.get("failure"),
        attention=attentions.get(cell.identity.get("attention") or ""),
    )


def _outcomes(metric: str, given: Mapping[str, Any], questions: Mapping[str, Any]) -> list[Outcome]:
    columns = {**questions[given["questions"]], **{name: given[name] for name in ANSWER_FIELDS if name in given}}
    for name in ("failed", "truncated"):
        flags = columns.get(name, [0] * len(columns["index"]))
        if odd := [each for each in flags if each not in (0, 1)]:
            raise ConfigError(f"an answer has {name} {odd[0]!r}, which must be 0 or 1")
        columns[name] = list(map(bool, flags))
    rows = zip(*columns.values(), strict=True)
    found = [
        Outcome(**checked_field_values(Outcome, dict(zip(columns, row, strict=True)), "an answer")) for row in rows
    ]
    if len({each.index for each in found}) < len(found):
        raise ConfigError("a question stands there twice")
    for each in found:
        if each.failed != (each.amount is None) and not (each.failed and each.amount == 0 and is_score(metric)):
            said = f"failed, though it has {each.amount:g}" if each.amount is not None else "none, and has not failed"
            raise ConfigError(f"{plain_text(metric)} of question {each.index} is {said}")
        if each.amount is not None and not is_possible_amount(metric, each.amount):
            raise ConfigError(f"an answer has a {plain_text(metric)} of {each.amount:g}")
        if is_token_loss(metric) and each.amount is not None and each.targets is None:
            raise ConfigError("an answer has an nll and no targets")
    return found
