"""The gate: compare a run with a committed baseline, and give the exit code."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from lexbench.core.errors import ConfigError
from lexbench.stats import baseline, records
from lexbench.stats.alterations import Alteration, attention_alterations
from lexbench.stats.cell_outcomes import SettingChange, changed_settings, outcomes_of_cell, texts_not_learned
from lexbench.stats.intervals import SIGNIFICANCE_LEVEL
from lexbench.stats.metrics import is_score
from lexbench.stats.notes import Note, NoteKind
from lexbench.stats.regressions import Verdict, VerdictStatus, check_cell_key, judge_cells
from lexbench.stats.same_attention import attention_forms

ALTERED_EXIT_CODE = 4
"""Exit code where no loss is found and a method, the questions or the protocol changed under equal settings."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Check:
    """A run against a baseline."""

    baseline: str
    verdicts: list[Verdict]
    changes: list[SettingChange]
    """Settings in which the run differs from the baseline, apart from its questions and attention."""
    alterations: list[Alteration]
    """Methods whose attention is another one."""
    allow_changed: bool = False
    """Whether an altered method counts as a change of settings."""
    problems: list[str]
    """Files that could not be read."""
    measured: list[Mapping[str, Any]]
    """Provenance of the baseline."""
    checked: bool = True
    """Whether the baseline has a checksum."""
    unspoken: list[Note] = field(default_factory=list)
    """Texts whose language the model has not learned: only large losses of likelihood are found."""
    certify: bool = False
    """Whether no loss must be proven, not only not found."""

    def of(self, *statuses: VerdictStatus) -> list[Verdict]:
        """Verdicts of these statuses."""
        return [verdict for verdict in self.verdicts if verdict.status in statuses]

    @property
    def code(self) -> int:
        """Exit code.

        0: no loss found, or excluded; 1: a regression; 2: none, but some not comparable or not proven; 4: none of
        these, but under equal settings a method's attention, the questions or the protocol are others.
        """
        if self.of(VerdictStatus.REGRESSED):
            return 1
        if self.of(VerdictStatus.NOT_COMPARABLE, VerdictStatus.NOT_PROVEN):
            return 2
        if self.altered or self.of(VerdictStatus.CHANGED):
            return ALTERED_EXIT_CODE
        return 2 if self.certify and not self.of(VerdictStatus.PROVEN) else 0

    @property
    def altered(self) -> list[Alteration]:
        """Alterations that nobody allowed."""
        return [] if self.allow_changed else self.alterations

    @property
    def word(self) -> str:
        """The verdict in capitals."""
        if self.code == 1:
            return "REGRESSED"
        if self.code == 0:
            return "CERTIFIED" if self.certify else "PASS"
        if self.code == ALTERED_EXIT_CODE:
            return "CHANGED"
        return "NOT COMPARABLE" if self.of(VerdictStatus.NOT_COMPARABLE) or not self.certify else "NOT PROVEN"

    @property
    def compared(self) -> list[Verdict]:
        """Tested verdicts: the family of Holm's correction."""
        return [verdict for verdict in self.verdicts if verdict.p is not None]

    @property
    def powerless(self) -> list[Verdict]:
        """Tested verdicts with too few samples to detect any loss."""
        compared = self.compared
        return [each for each in compared if each.found and each.found.min_p * len(compared) > SIGNIFICANCE_LEVEL]

    @property
    def blind(self) -> list[Verdict]:
        """Tested verdicts that could not have shown a loss: too few samples, or scores at their floor already."""
        powerless = set(map(id, self.powerless))  # of many comparisons a list takes as long as their square
        return [each for each in self.compared if id(each) in powerless or _is_blind(each)]

    @property
    def smallest(self) -> dict[str, float]:
        """By metric, the loss that every comparison that is not blind would have found (`stats.reach`)."""
        blind, found = set(map(id, self.blind)), dict[str, float]()
        for each in self.compared:
            if each.metric and each.smallest is not None and id(each) not in blind:
                found[each.metric] = max(found.get(each.metric, 0.0), each.smallest)
        return found


def _is_blind(verdict: Verdict) -> bool:
    """Whether even the loss of all that a score holds would not be found, or there is nothing to lose."""
    return is_score(verdict.metric) and (verdict.smallest is None or _at_floor(verdict))


def _at_floor(verdict: Verdict) -> bool:
    limit = verdict.found.limit if verdict.found else None
    return limit is not None and limit.kind is NoteKind.FLOOR


def check_runs(
    folders: Sequence[Path],
    file: Path,
    tolerances: Mapping[str, float] | None = None,
    certify: bool = False,
    allow_changed: bool = False,
) -> Check:
    """Compare a run with a baseline file.

    Args:
        folders: run folders, or folders of run folders: one run in all.
        file: the baseline.
        tolerances: by metric, in nats per token, points, or as resolution is measured; others have their defaults: nll
            0.02, scores 2 points. The headline metric of a task is compared, and the metrics named here.
        certify: pass a cell only if a loss above its tolerance is excluded (`stats.certificates`).
        allow_changed: accept another attention of a method; where questions or protocol changed, nothing can be
            compared, which stays so.

    Raises ConfigError where there is nothing to compare.
    """
    base = baseline.read_baseline(file)
    loaded = records.load_cells(folders)
    # A cell of which every sample failed does not name its metrics: the baseline does.
    expected = sorted({name for each in base.cells for name in each.outcomes})
    new = [outcomes_of_cell(finished, expected) for finished in loaded.finished]
    baseline.refuse_duplicate_cells(new)
    forms = attention_forms(finished.cell for finished in loaded.finished)
    verdicts, pairs = judge_cells(base.cells, new, tolerances or {}, certify, forms)
    if allow_changed:
        verdicts = [_deny_comparison(each) for each in verdicts]
    begun = {check_cell_key(cell) for cell in loaded.unfinished}
    return Check(
        baseline=str(file),
        verdicts=_name_corpora([_explain_absence(verdict, begun) for verdict in verdicts]),
        changes=changed_settings(pairs, left_out=("attention",)),
        alterations=attention_alterations(pairs),
        allow_changed=allow_changed,
        problems=loaded.problems,
        measured=base.measured,
        checked=base.checked,
        unspoken=list(texts_not_learned(pairs).values()),
        certify=certify,
    )


def _deny_comparison(verdict: Verdict) -> Verdict:
    """A changed cell as one that cannot be compared."""
    changed = verdict.status is VerdictStatus.CHANGED
    return replace(verdict, status=VerdictStatus.NOT_COMPARABLE) if changed else verdict


def _explain_absence(verdict: Verdict, begun: set[tuple[Any, ...]]) -> Verdict:
    if verdict.reason == Note(NoteKind.NO_SUCH_CELL) and check_cell_key(verdict.cell) in begun:
        return replace(verdict, reason=Note(NoteKind.UNFINISHED))
    return verdict


def _name_corpora(verdicts: list[Verdict]) -> list[Verdict]:
    """Verdicts whose tasks say their corpus, `last_segment on stdlib`, where a task has several."""
    corpora: dict[str, set[str | None]] = {}
    for each in verdicts:
        corpora.setdefault(each.cell.task, set()).add(each.cell.corpus)
    return [
        replace(each, cell=replace(each.cell, task=f"{each.cell.task} on {each.cell.corpus}"))
        if len(corpora[each.cell.task]) > 1
        else each
        for each in verdicts
    ]


def tolerances_of(given: Sequence[str]) -> dict[str, float]:
    """Parse tolerances of the command line, `nll=0.02`; ConfigError for an invalid one."""
    found: dict[str, float] = {}
    for text in given:
        name, _, number = text.partition("=")
        if name in found:
            raise ConfigError(f"tolerance {name} is given twice, {found[name]:g} and {number}: give it once")
        try:
            found[name] = float(number)
        except ValueError:
            found[name] = math.nan
        if not name or math.isnan(found[name]):
            raise ConfigError(f"tolerance {text!r} must be METRIC=NUMBER: e.g. nll=0.02 or accuracy=2")
        if is_score(name.partition("@")[0]) and found[name] >= 100:
            raise ConfigError(f"tolerance {name} must be below 100 points, got {number}: no score can lose more")
    return found
