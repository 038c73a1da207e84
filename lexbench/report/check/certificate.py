"""A certificate of non-inferiority as a file: what was claimed, against what, and how it was proven.

No date is in it: the same run and baseline give the same bytes.
"""

import json
from pathlib import Path
from typing import Any

from lexbench.core.files import sha256
from lexbench.core.method_key import BASELINE_METHOD
from lexbench.core.version import full_version
from lexbench.report.check.check import Check
from lexbench.report.check.text import reason_text
from lexbench.report.notes import change_text, unseen_words
from lexbench.report.wording import short_unit
from lexbench.stats.certificates import Proof
from lexbench.stats.intervals import CONFIDENCE_LEVEL, SIGNIFICANCE_LEVEL
from lexbench.stats.metrics import display_factor, display_unit, is_score
from lexbench.stats.regressions import Verdict, VerdictStatus

CERTIFICATE_FORMAT_VERSION = 1


def certificate_data(found: Check, baseline: Path) -> dict[str, Any]:
    """The certificate of a check as plain data; `certified` is false where anything is lost or not proven."""
    return {
        "format": CERTIFICATE_FORMAT_VERSION,
        "certified": found.code == 0,
        "verdict": found.word.lower(),
        "statement": certificate_statement(found),
        "level": SIGNIFICANCE_LEVEL,
        "claims": [_claim(each) for each in found.verdicts if each.metric is not None],
        "run": _run_provenance(found),
        "changes": [change_text(each) for each in found.changes],
        "baseline": {"sha256": sha256(baseline), "measured": found.measured},
        "lexbench": full_version(),
    }


def certificate_statement(found: Check) -> str:
    """Sentence on the claims that are certified, or that nothing is."""
    if found.code != 0:
        return f"Not certified: {found.word.lower()}."
    claims: dict[str, dict[str, None]] = {}  # by model and method, each once: several seeds claim the same
    for each in found.of(VerdictStatus.PROVEN):
        method = "" if each.cell.method == BASELINE_METHOD else f" with {each.cell.method}"
        claims.setdefault(f"{each.cell.model}{method}", {})[_claim_sentence(each)] = None
    said = "; ".join(f"{subject} loses {'; '.join(texts)}" for subject, texts in claims.items())
    return f"At {100 * CONFIDENCE_LEVEL:g} %, {said}."


def _claim_sentence(claim: Verdict) -> str:
    """A claim in words; of losses that have no bound, with the size up to which each counts, and what is not seen."""
    proof, unit_ = claim.proof, short_unit(claim.metric or "")
    said = f"less than {claim.tolerance:g}{unit_} of {claim.cell.task} at {claim.cell.length} tokens"
    if proof is None or is_score(claim.metric):
        return said
    unseen = proof.unseen_share
    more = f", {proof.above or 'none'} of {proof.clusters} lost more" + (f", {unseen_words(unseen)}" if unseen else "")
    return f"{said} (the loss of a document counted up to {proof.cap:g}{unit_}{more})"


def _claim(verdict: Verdict) -> dict[str, Any]:
    cell, metric = verdict.cell, verdict.metric or ""
    about = {name: getattr(cell, name) for name in ("model", "task", "length", "seed", "protocol")}
    about["method"] = str(cell.method)
    row = {
        **about,
        "metric": metric,
        "unit": display_unit(metric),
        "margin": verdict.tolerance,
        "status": verdict.status.value,
    }
    return {**row, "reason": reason_text(verdict), "proof": proof_of(verdict)}


def proof_of(verdict: Verdict) -> dict[str, Any] | None:
    """Numbers of a proof, in the unit of the metric; None without one."""
    return proof_numbers(verdict.proof, verdict.metric or "") if verdict.proof else None


def proof_numbers(proof: Proof, metric: str) -> dict[str, Any]:
    """Numbers of a proof, in the unit of the metric."""
    by = display_factor(metric)
    return {
        "mean_loss": by * proof.mean,
        "mean_loss_high": None if proof.end is None else by * proof.end,
        "losses_counted_up_to": by * proof.cap,
        "clusters": proof.clusters,
        "clusters_that_lost_more": proof.above,
        "share_that_may_lose_more": proof.unseen_share,
        "e_value": proof.wealth,
        "proven_after": proof.at,
        "more_needed": proof.more,
    }


def _run_provenance(found: Check) -> list[dict[str, Any]]:
    """Software and weights of the run, each once."""
    runs = {}
    for each in found.verdicts:
        identity = each.cell.identity
        said = {name: identity[name] for name in ("backend", "model") if name in identity}
        said["lexbench"] = each.cell.version
        runs[json.dumps(said, sort_keys=True)] = said
    return list(runs.values())
