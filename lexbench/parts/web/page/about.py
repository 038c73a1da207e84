"""Static parts of the page: settings, missing cells and samples, provenance."""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lexbench.core.method_key import MethodKey
from lexbench.parts.web.page.data import PageData
from lexbench.stats.records import LoadedCells


def refused_cells(measured: PageData) -> list[dict[str, Any]]:
    """Refused cells, those of one reason together: at each of the lengths, each of the methods."""
    methods: dict[tuple[str, str, int], list[MethodKey]] = {}
    for table, *_ in measured.settings:
        for (method, length), record in sorted(table.entries.items()):
            if record.refused:
                methods.setdefault((measured.name(table), record.refused, length), []).append(method)
    lengths: dict[tuple[str, str, tuple[MethodKey, ...]], list[int]] = {}
    for (task, reason, length), refused in methods.items():
        lengths.setdefault((task, reason, tuple(refused)), []).append(length)
    return [
        {"task": task, "methods": list(map(str, refused)), "lengths": sorted(at), "reason": reason}
        for (task, reason, refused), at in lengths.items()
    ]


def incomplete_cells(measured: PageData) -> list[dict[str, Any]]:
    """Cells with failed, truncated or missing samples."""
    found = []
    for table, *_ in measured.settings:
        for (method, length), record in table.entries.items():
            own = measured.samples.get(record.cell, ())
            reasons = Counter(sample.failed for sample in own if sample.failed)
            missing = table.cell.n - len(own)
            if not record.refused and (record.failed or record.truncated or missing):
                counts = {"failed": record.failed, "truncated": record.truncated, "missing": missing}
                said = "; ".join(f"{reason} ({count})" for reason, count in reasons.most_common(3))
                place = {"task": measured.name(table), "method": str(method), "length": length}
                found.append({**place, **counts, "n": table.cell.n, "reasons": said})
    return found


def count_contents(loaded: LoadedCells, measured: PageData) -> dict[str, int]:
    """Number of cells, samples, models, methods and tasks; a price cell counts to its method."""
    cells = [finished.cell for finished in loaded.finished]
    return {
        "cells": len(cells),
        "samples": sum(len(finished.samples) for finished in loaded.finished),
        "refused": sum(finished.refused is not None for finished in loaded.finished),
        "models": len({cell.model for cell in cells}),
        "methods": len({method for table in measured.tables for method in table.methods}),
        "tasks": len({cell.task for cell in cells}),
    }


def read_jobs(folders: Sequence[Path]) -> tuple[list[dict[str, Any]], list[dict[str, Any]], list[str]]:
    """Provenances and configurations in jobs/*.json, each once, and unreadable files.

    A provenance has the number of its jobs; jobs that differ in method and task alone are one configuration.
    """
    provenances: Counter[str] = Counter()
    configurations: dict[str, dict[str, Any]] = {}
    problems = []
    for file in sorted({file for folder in folders for file in Path(folder).rglob("jobs/*.json")}):
        try:
            job = json.loads(file.read_text())
            config, provenance = dict(job["config"]), job["provenance"]
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            problems.append(f"job {file} cannot be read ({' '.join(str(error).split())[:80]})")
            continue
        provenances[json.dumps(provenance, sort_keys=True)] += 1
        parts = {part: config.pop(part, None) or [] for part in ("method", "task")}
        group = configurations.setdefault(json.dumps(config, sort_keys=True), {**config, "methods": [], "tasks": []})
        for part, values in parts.items():
            group[f"{part}s"] += [value for value in values if value not in group[f"{part}s"]]
    known = [{**json.loads(each), "jobs": count} for each, count in provenances.most_common()]
    return known, list(configurations.values()), problems
