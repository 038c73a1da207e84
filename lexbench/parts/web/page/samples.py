"""Samples as the page shows them: JSON a cell, fetched from a server, or compressed inside the page itself."""

import base64
import itertools
import json
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from lexbench.core.record import Sample, expected_texts
from lexbench.parts.web.page import safety
from lexbench.store.format import FinishedCell

MAX_SAMPLES_BYTES = 25_000_000
"""Bytes of a page that samples may take, compressed and in base64."""
N_FIRST_SAMPLES = 8
"""Samples of each cell that are tried first, then twice as many, as long as they fit."""
MAX_NLL_POINTS = 64
"""Points of a sample's NLL curve, at most."""
MAX_SHOWN_CHARACTERS = 20_000
"""Characters of a text that are shown."""
FACTS_SHOWN_ELSEWHERE = ("expected", "depth")
"""Facts that have a place of their own."""


def samples_json(finished: FinishedCell) -> str:
    """A cell's samples as the JSON that the page reads.

    {"cell": id, "samples": [{index, cluster, tokens, truncated, failed, scores, chance, parts, prompt, output,
    hit_room, depth, expected: [text], facts, options: [NLL of each], marks: [share right],
    nll: {targets, first, mean, median, largest, curve}}]}; a sample's fields that are empty are left out.
    """
    return _join_rows(finished, [safety.script_json(_sample_row(sample)) for sample in finished.samples])


def _join_rows(finished: FinishedCell, rows: Sequence[str]) -> str:
    return f'{{"cell":"{finished.cell.id}","samples":[{",".join(rows)}]}}'


def _sample_row(sample: Sample) -> dict[str, Any]:
    """One sample as JSON, without empty fields."""
    row = {
        "index": sample.index,
        "cluster": sample.cluster,
        "tokens": sample.tokens,
        "truncated": sample.truncated,
        "failed": sample.failed,
        "scores": dict(sample.scores),
        "chance": sample.chance,
        "parts": list(sample.parts),
        "prompt": _shown_text(sample.prompt),
        "output": _shown_text(sample.output),
        "hit_room": sample.hit_room,
        "depth": sample.depth,
        "expected": [_shown_text(each) for each in expected_texts(sample.facts.get("expected"))],
        "facts": _further_facts(sample.facts),
        "nll": _nll_summary(sample),
        "options": _round_values(sample.statistics.get("option_nll", ())),
        "marks": _stretch_means(sample.statistics.get("right", ())),
    }
    return {name: value for name, value in row.items() if not (value is None or value is False or value in ([], {}))}


def _shown_text(text: str | None) -> str | None:
    if text is None or len(text) <= MAX_SHOWN_CHARACTERS:
        return text
    return f"{text[:MAX_SHOWN_CHARACTERS]}\n[... {len(text) - MAX_SHOWN_CHARACTERS} characters ...]"


def _further_facts(facts: Mapping[str, Any]) -> dict[str, str]:
    """Further facts of a sample, each as a text."""
    found = {}
    for name, value in facts.items():
        if name not in FACTS_SHOWN_ELSEWHERE or (name == "expected" and not expected_texts(value)):
            said = value if isinstance(value, str) else json.dumps(value)
            found[str(name)] = said if len(said) <= 400 else f"{said[:400]} [... {len(said) - 400} characters ...]"
    return found


def _nll_summary(sample: Sample) -> dict[str, Any] | None:
    """Targets, their mean, median and largest NLL (nats), and means over up to 64 equal stretches of them."""
    if sample.nll is None or not len(sample.nll):
        return None
    losses = sample.nll.astype(np.float64)
    ordered = np.sort(losses)
    middle = (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2
    figures = {"mean": losses.mean(), "median": middle, "largest": ordered[-1]}
    return {
        "targets": len(losses),
        "first": sample.tokens - len(losses),
        **{name: round(float(value), 4) for name, value in figures.items()},
        "curve": _stretch_means(losses),
    }


def _stretch_means(values: ArrayLike) -> list[float]:
    """Means over up to 64 stretches, all of one length or one more; none of nothing."""
    known = np.asarray(values, np.float64)
    if not len(known):
        return []
    begins = np.arange(min(MAX_NLL_POINTS, len(known))) * len(known) // min(MAX_NLL_POINTS, len(known))
    return _round_values(np.add.reduceat(known, begins) / np.diff(begins, append=len(known)))


def _round_values(values: ArrayLike) -> list[float]:
    return list(np.round(np.asarray(values, np.float64), 3).tolist())


def embed_samples(
    finished: Sequence[FinishedCell], budget: int = MAX_SAMPLES_BYTES
) -> tuple[dict[str, str], int | None]:
    """Compressed samples of each cell that has any, by its id, and how many of each cell; None: all.

    As many of each cell as the budget, in bytes of the page, allows: 8, 16, 32, ... or all; 0, where it allows no 8.
    """
    cells = [each for each in finished if each.samples]
    rows: dict[str, list[str]] = {each.cell.id: [] for each in cells}
    found: dict[str, str] = {}
    kept = 0
    for step in itertools.count():
        most = N_FIRST_SAMPLES << step
        for each in cells:
            known = rows[each.cell.id]  # of the try before: only further samples are written
            known += [safety.script_json(_sample_row(sample)) for sample in each.samples[len(known) : most]]
        tried = _compress_rows(cells, rows, budget)
        if tried is None:
            return found, kept
        found, kept = tried, most
        if all(len(each.samples) <= most for each in cells):
            return found, None
    raise AssertionError("samples end")


def _compress_rows(
    cells: Sequence[FinishedCell], rows: Mapping[str, Sequence[str]], budget: int
) -> dict[str, str] | None:
    """The rows of each cell, deflated, in base64; None where they take more than the budget."""
    found: dict[str, str] = {}
    for each in cells:
        text = _join_rows(each, rows[each.cell.id])
        found[each.cell.id] = base64.b64encode(zlib.compress(text.encode())).decode()
        budget -= len(found[each.cell.id])
        if budget < 0:
            return None
    return found
