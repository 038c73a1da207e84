"""Plan the samples that a certificate takes: from one file, for shares of samples that change, or from two files."""

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from lexbench.core.errors import ConfigError
from lexbench.core.text import count_with_noun, plain_text
from lexbench.parts.exchange.files.sample_logs import columns_of, read
from lexbench.parts.exchange.referee.judge import choose_margins
from lexbench.parts.exchange.referee.pairs import TaskPair, pair_files
from lexbench.parts.exchange.referee.sentences import pair_label
from lexbench.report import formats
from lexbench.report.check.check import tolerances_of
from lexbench.report.check.power import MAX_SIMULATED_CLUSTERS, MIN_PILOT_CLUSTERS
from lexbench.report.grid import Grid
from lexbench.report.wording import short_unit
from lexbench.stats.certificates import (
    clusters_proven,
    clusters_to_prove,
    fixed_test_clusters,
    fixed_test_size,
    prove_small_loss,
)
from lexbench.stats.intervals import SIGNIFICANCE_LEVEL
from lexbench.stats.metrics import display_factor, is_score
from lexbench.stats.reach import smallest_found_loss

CHANGED_SHARES = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2)
"""Shares of samples whose answer a change turns, half of them lost, half gained."""
N_DEPLOYMENTS = 500
Needed = tuple[float, float, int | None]
"""Clusters until half and nine tenths of deployments are proven, inf where too many, and of a fixed test; None: with
nothing that changes it has no size."""
PLAN_NOTES = f"""\
Clusters are samples, unless the file names clusters. Changed: share of samples whose answer turns, as many lost as
gained, so that nothing is lost on average; two runs tell it (--baseline). certify: clusters after which half and nine
tenths of 500 simulated runs are proven to lose less than the margin. fixed: clusters of a test at one fixed number,
passed by nine tenths, and by one in twenty of runs that lose the margin. `>{MAX_SIMULATED_CLUSTERS}`: not within that.
"""


def power_command(
    run: Path,
    baseline: Path | None,
    columns: Sequence[str] = (),
    margin: Sequence[str] = (),
    *,
    loss: float | None = None,
    as_data: bool = False,
) -> str:
    """`lexbench power RUN --margin accuracy=2`, with `--baseline FILE` from what changed between two files.

    ConfigError for files that cannot be read, without a margin, and for a pilot that is too small.
    """
    given = tolerances_of(margin)
    if odd := [name for name, size in given.items() if not size > 0]:
        raise ConfigError(
            f"margin {odd[0]} must be above 0, got {given[odd[0]]:g}: no test proves that nothing is lost"
        )
    if not given:
        raise ConfigError("power needs the loss that is allowed: give --margin accuracy=2")
    named = columns_of(columns)
    lines = read(run, named, bool(columns))
    other = lines if baseline is None else read(baseline, named, bool(columns))
    pairs, margins = choose_margins(pair_files(other, lines)[0], given)
    if baseline is not None:
        rows = [_measured_row(pair, size, loss) for pair, size in zip(pairs, margins, strict=True)]
    elif loss is not None:
        raise ConfigError("--loss is that of deployments like a pilot: give it with --baseline")
    else:
        rows = [row for pair, size in zip(pairs, margins, strict=True) for row in _assumed_rows(pair, size)]
    if as_data:
        return formats.as_json({"run": str(run), "baseline": baseline and str(baseline), "claims": rows})
    found = [] if baseline else [_found_sentence(*each, len(pairs)) for each in zip(pairs, margins, strict=True)]
    return "\n".join([*found, *([""] if found else []), _table(rows), PLAN_NOTES]).rstrip()


def _found_sentence(pair: TaskPair, margin: float, comparisons: int) -> str:
    """What `lexbench check` finds with the samples of a file."""
    scale, level = display_factor(pair.metric), SIGNIFICANCE_LEVEL / comparisons
    size = smallest_found_loss(pair.before, pair.metric, margin / scale, level)
    unit = short_unit(pair.metric)
    told = "not even the loss of all" if size is None else f"a loss of {scale * size:.2g}{unit}"
    return plain_text(
        f"{pair_label(pair)}: with {count_with_noun(pair.samples, 'sample')} check, at a margin of "
        f"{margin:g}{unit}, finds {told} in nine runs of ten."
    )


def _assumed_rows(pair: TaskPair, margin: float) -> Iterator[dict[str, Any]]:
    """A row for each share of samples that may change; ConfigError for a loss, whose changes have no known size."""
    if not is_score(pair.metric):
        raise ConfigError(
            f"{plain_text(pair.task)} has losses, and one file does not tell how much they change: give --baseline"
        )
    clusters = len({each.cluster for each in pair.before})
    each = max(1, round(len(pair.before) / clusters))
    for changed in CHANGED_SHARES:
        needed = _clusters_needed(changed, each, margin / display_factor(pair.metric))
        yield _claim(pair, margin, clusters, changed, needed)


@lru_cache(maxsize=64)
def _clusters_needed(changed: float, questions: int, margin: float) -> Needed:
    """Clusters of so many samples until half and nine tenths are proven, and of a test at one fixed number."""
    chances = [changed / 2, 1 - changed, changed / 2]
    rng = np.random.default_rng(0)
    shape = (N_DEPLOYMENTS, MAX_SIMULATED_CLUSTERS)
    # The sum of a cluster's samples: lost minus gained.
    counts = rng.multinomial(questions, chances, size=shape)
    drawn = (counts[..., 0] - counts[..., 2]) / questions
    half, _, most = clusters_proven(drawn, "accuracy", margin)
    return float(half), float(most), fixed_test_size(changed / questions, margin) if changed else None


def _measured_row(pair: TaskPair, margin: float, loss: float | None) -> dict[str, Any]:
    """What a pilot of two files tells; `loss`: of the deployments, in margins, None: the pilot's."""
    allowed = margin / display_factor(pair.metric)
    proof = prove_small_loss(pair.before, pair.after, pair.metric, allowed)
    if proof is None or proof.clusters < MIN_PILOT_CLUSTERS:
        count = count_with_noun(0 if proof is None else proof.clusters, "cluster")
        raise ConfigError(
            f"a pilot needs {MIN_PILOT_CLUSTERS} clusters to show how much they differ, {plain_text(pair.task)} has "
            f"{count}: give more samples"
        )
    half, _, most = clusters_to_prove(
        proof.losses, pair.metric, allowed, MAX_SIMULATED_CLUSTERS, None if loss is None else loss * allowed
    )
    changed = float((proof.losses != 0).mean())
    fixed = fixed_test_clusters(proof.losses, pair.metric, allowed)
    return _claim(pair, margin, proof.clusters, changed, (float(half), float(most), fixed))


def _claim(pair: TaskPair, margin: float, clusters: int, changed: float, needed: Needed) -> dict[str, Any]:
    half, most = (None if math.isinf(each) else int(each) for each in needed[:2])
    return {
        "claim": pair_label(pair),
        "task": pair.task,
        "metric": pair.metric,
        "margin": margin,
        "clusters": clusters,
        "changed": changed,
        "certify_half": half,
        "certify_most": most,
        "fixed": needed[2],
    }


def _table(rows: Sequence[dict[str, Any]]) -> str:
    head = ["claim", "margin", "clusters", "changed", "certify, half", "certify, 90 %", "fixed"]

    def clusters(count: int | None) -> str:
        return f">{MAX_SIMULATED_CLUSTERS}" if count is None else str(count)

    shown = [
        [
            row["claim"],
            f"{row['margin']:g}{short_unit(row['metric'])}",
            str(row["clusters"]),
            f"{100 * row['changed']:.2g} %",
            clusters(row["certify_half"]),
            clusters(row["certify_most"]),
            "" if row["fixed"] is None else str(row["fixed"]),
        ]
        for row in rows
    ]
    return formats.grid_markdown(Grid(head=head, rows=shown))
