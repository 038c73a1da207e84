"""Number of questions that a certificate takes, from a pilot: a short run against a baseline."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lexbench.core.errors import ConfigError
from lexbench.core.text import count_with_noun, plain_text
from lexbench.report import formats
from lexbench.report.check.check import check_runs, tolerances_of
from lexbench.report.grid import Grid
from lexbench.report.notes import note_text
from lexbench.report.sheet import Paragraph
from lexbench.report.wording import metric_format, short_unit
from lexbench.stats.certificates import Proof, clusters_to_prove, fixed_test_clusters
from lexbench.stats.metrics import display_factor
from lexbench.stats.regressions import Verdict

MAX_SIMULATED_CLUSTERS = 4000
"""Clusters beyond which no deployment is simulated."""
POWER_TABLE_NOTES = f"""\
Clusters are documents or haystacks; with one question each, they are n. 8 x 4 are 8 clusters of about 4 questions:
for such clusters n is 4 times as many. certify: after so many, half and nine tenths of 500 simulated deployments like
the pilot are proven, at 5 %; those of scores stop by themselves, of nats run so many at once. fixed: clusters of a test
at one fixed number, planned so that nine tenths of deployments that lose nothing, or half the margin, pass it. How
much clusters differ is known from the pilot's number of them alone: plans take the upper end of the variance's 80 %
interval, so after a short pilot they are larger than what check says, and a longer pilot makes them smaller.
>{MAX_SIMULATED_CLUSTERS}: not within {MAX_SIMULATED_CLUSTERS}.
"""


@dataclass(frozen=True, kw_only=True)
class ClaimPower:
    """Number of questions that decide one claim, and the interval that it has now."""

    verdict: Verdict
    half: float
    """Clusters after which half of deployments are proven; inf: too many."""
    most: float
    """Clusters after which nine tenths of deployments are proven; inf: too many."""
    fixed: tuple[int, int]
    """Clusters of a fixed test planned at no loss, and at half the margin."""
    unspoken: Sequence[str]
    """Texts of the whole pilot in a language that the model has not learned: their likelihoods are not certified."""


MIN_PILOT_CLUSTERS = 4
"""Clusters of a pilot, at least."""


def plan_claims(
    folders: Sequence[Path], file: Path, tolerance: Sequence[str], loss: float | None = None
) -> list[ClaimPower]:
    """Questions that each claim of a pilot takes.

    Args:
        folders: of the pilot.
        file: its baseline.
        tolerance: margins by metric, `nll=0.02`.
        loss: true loss of the deployments, in margins; None: as in the pilot.

    ConfigError where nothing is comparable, or a pilot is too small.
    """
    if loss is not None and not 0 <= loss < 1:
        raise ConfigError(f"the loss must be from 0 to below 1 margin, got {loss}: a larger one is never proven")
    tolerances = tolerances_of(tolerance)
    if zero := [name for name, margin in tolerances.items() if margin == 0]:
        raise ConfigError(f"tolerance {zero[0]} must be above 0, got 0: no test proves that nothing is lost")
    found, checked = [], check_runs(folders, file, tolerances, certify=True)
    unspoken = [*map(note_text, checked.unspoken)]
    for each in checked.verdicts:
        if each.proof is None or each.metric is None:
            continue
        if each.proof.clusters < MIN_PILOT_CLUSTERS:
            about = f"{plain_text(each.cell.task)} {plain_text(each.cell.method)} at {each.cell.length}"
            count = count_with_noun(each.proof.clusters, "cluster")
            raise ConfigError(
                f"a pilot needs {MIN_PILOT_CLUSTERS} clusters to show how much they differ, {about} has {count}: raise "
                "n"
            )
        margin, losses = each.proof.margin, each.proof.losses
        half, _, most = clusters_to_prove(
            losses, each.metric, margin, MAX_SIMULATED_CLUSTERS, None if loss is None else loss * margin
        )
        planned = (
            fixed_test_clusters(losses, each.metric, margin),
            fixed_test_clusters(losses, each.metric, margin, margin / 2),
        )
        found.append(ClaimPower(verdict=each, half=float(half), most=float(most), fixed=planned, unspoken=unspoken))
    if not found:
        raise ConfigError("pilot and baseline share no question with a value: run what the baseline was made from")
    return found


def _clusters(proof: Proof) -> str:
    """Number of clusters, with that of their questions where these are more."""
    each = round(proof.questions / proof.clusters)
    return str(proof.clusters) if each == 1 else f"{proof.clusters} x {each}"


def power_table(found: Sequence[ClaimPower]) -> str:
    """A row a claim."""
    head = [
        "claim",
        "margin",
        "pilot",
        "loss",
        "certify, half",
        "certify, 90 %",
        "fixed, no loss",
        "fixed, half a margin",
    ]
    rows = []
    for each in found:
        verdict, metric = each.verdict, each.verdict.metric or ""
        proof = verdict.proof
        assert proof is not None, "a claim has a proof"
        about = verdict.cell
        rows.append(
            [
                f"{about.task} {metric} of {about.method} at {about.length}",
                f"{verdict.tolerance:g}{short_unit(metric)}",
                _clusters(proof),
                f"{display_factor(metric) * proof.mean:{metric_format(metric)}}",
                *(
                    f">{MAX_SIMULATED_CLUSTERS}" if math.isinf(count) else f"{count:.0f}"
                    for count in (each.half, each.most)
                ),
                *map(str, each.fixed),
            ]
        )
    silent = [Paragraph(f"{text}: nothing is certified of its likelihood.") for text in found[0].unspoken]
    return formats.sheet_text([Grid(head=head, rows=rows), *silent, Paragraph(POWER_TABLE_NOTES)])
