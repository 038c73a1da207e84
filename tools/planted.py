"""Whether commands find planted truths of the size that they state, and nothing where nothing was planted.

    python -m tools.planted                       # all; rows that planted.json holds are kept
    python -m tools.planted --only 'check, docs'  # one command
    python -m tools.planted --page                # writes the page of what is known

The list was drawn before: `planted.md` in `results/benchmarks/planted_lists.tar.gz`. Each effect is read once as
planted and once healthy, and answers are mixed by text, so that the difference has the size that the command states.
"""

import argparse
import hashlib
import json
import math
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from lexbench.core.record import Sample
from lexbench.store.checksum import with_checksum
from tools import planted_faults, planted_page
from tools.planted_commands import COMMANDS, SEED, TRIED, Place, Samples, Trial
from tools.planted_readings import EFFECTS, RESERVES, Library, Reading

RECORD, PAGE = Path("results/benchmarks/planted.json"), Path("results/benchmarks/planted.md")
READINGS = Path("runs/planted")
SIZES = (0.5, 1.0, 2.0)
"""Planted, in sizes that a command states."""
DIAL_SEED = 101
"""Of the readings that dial and verify."""
DRAWS, NULLS = 40, 1000
DRAW_SECONDS, NULL_SECONDS = 1.0, 45.0
"""Of the processor, behind which no further one is drawn: for a size, and for a command."""
MIN_TOUCHED = 2.0
"""Clusters below which a share is too few, and answers are blended."""


def questions(task: str, length: int) -> int:
    """Of the readings of which the first half dials, and the second verifies."""
    return 32 if length > 512 else 48


def amounts(samples: Samples, metric: str) -> np.ndarray:
    """[n] mean nats of the targets, or the score."""
    if metric == "nll":
        return np.array([float(each.nll.mean()) for each in samples])  # type: ignore[union-attr]
    return np.array([each.scores[metric] for each in samples])


def losses(healthy: Samples, planted: Samples, metric: str) -> np.ndarray:
    """[n] how much worse each planted answer is."""
    return np.asarray((1 if metric == "nll" else -1) * (amounts(planted, metric) - amounts(healthy, metric)))


@dataclass(frozen=True)
class Mix:
    """How answers are mixed.

    Args:
        share: of texts that are touched.
        blend: how far the nats of a touched one are moved to the planted ones.
    """

    share: float
    blend: float = 1.0

    def of(self, healthy: Sample, planted: Sample, touched: bool) -> Sample:
        """One answer."""
        if not touched or self.blend == 0:
            return healthy
        if self.blend == 1:
            return planted
        assert healthy.nll is not None and planted.nll is not None, "scores are not blended"
        moved = (1 - self.blend) * healthy.nll + self.blend * planted.nll
        return with_checksum(replace(healthy, nll=moved.astype(np.float32)))

    def all(self, row: str, healthy: Samples, planted: Samples) -> list[Sample]:
        """A cell, by the list's own draw of texts."""
        return [
            self.of(one, other, fraction(f"{row}:{one.cluster}") < self.share)
            for one, other in zip(healthy, planted, strict=True)
        ]


def fraction(text: str) -> float:
    """A text's hash, from 0 to 1."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") / 2**64


@dataclass(frozen=True)
class Site:
    """Where and how strongly an effect is planted.

    Args:
        row: id of the effect.
        stated: size that the command states, in the metric's own unit.
        full: loss of the whole effect.
    """

    row: str
    place: Place
    strong: bool
    stated: float
    full: float

    @property
    def reach(self) -> float:
        """The largest size that can be planted, in stated ones."""
        return self.full / self.stated if self.stated > 0 else 0.0


def sides(trial: Trial, place: Place, row: str, strong: bool, seed: int, n: int) -> tuple[Samples, Samples]:
    """Both readings of the same questions."""
    library = trial.library
    healthy = Reading(place.method, place.task, place.length, seed, n)
    if place.metric == "nll":
        healthy = healthy._replace(longest=trial.longest)
    return library.samples(healthy), library.samples(healthy._replace(effect=row, strong=strong))


def site_of(trial: Trial, row: str) -> Site | None:
    """The first place and form whose effect is twice the stated size, or else the one that comes nearest."""
    found: list[Site] = []
    for strong in (False, True):
        for place in trial.places(row):
            stated = trial.stated(place)
            if stated is None:
                continue
            n = questions(place.task, place.length)
            full = float(losses(*sides(trial, place, row, strong, DIAL_SEED, n), place.metric)[: n // 2].mean())
            found.append(Site(row, place, strong, stated, full))
            if found[-1].reach >= SIZES[-1]:
                return found[-1]
    return max(found, key=lambda each: each.reach, default=None)


def mix_of(site: Site, size: float, n: int) -> Mix | None:
    """The mix of a size; None where the effect is too small."""
    share = size / site.reach if site.reach > 0 else math.inf
    if share > 1:
        return None
    if share * n < MIN_TOUCHED and site.place.metric == "nll":
        return Mix(1.0, share)
    return Mix(share)


def verified(trial: Trial, site: Site, mix: Mix, size: float) -> tuple[float, bool]:
    """The loss of a mix on other questions, and whether it is within a fifth, or two standard errors, of the target."""
    place = site.place
    n = questions(place.task, place.length)
    healthy, planted = sides(trial, place, site.row, site.strong, DIAL_SEED, n)
    found = losses(healthy, mix.all(site.row, healthy, planted), place.metric)[n // 2 :]
    target, error = size * site.stated, float(found.std(ddof=1)) / math.sqrt(len(found))
    mean = float(found.mean())
    return mean, abs(mean - target) <= max(0.2 * target, 2 * error)


def drawn_counts(trial: Trial, site: Site, mix: Mix, sign: str) -> list[int]:
    """Draws of texts, and of those that are touched, in which the effect is found; and all draws."""
    place, n = site.place, questions(site.place.task, site.place.length)
    pairs: list[tuple[Sample, Sample]] = []
    for seed, count in ((DIAL_SEED, n), (SEED, trial.tried)):
        for one, other in zip(*sides(trial, place, site.row, site.strong, seed, count), strict=True):
            name = f"{seed} {one.cluster}"
            pairs.append((replace(one, cluster=name), replace(other, cluster=name)))
    hits, number, started = 0, 0, time.process_time()
    while number < DRAWS and time.process_time() < started + DRAW_SECONDS:
        rng = np.random.default_rng([int(site.row[1:]), number])
        drawn = resampled([pair[0].cluster for pair in pairs], trial.n, rng)
        touched = rng.random(len(drawn)) < mix.share
        healthy, mixed = list[Sample](), list[Sample]()
        for at, draw in drawn:
            one, other = pairs[at]
            about: Any = {"cluster": f"{draw} {one.cluster}", "index": len(healthy)}
            healthy.append(replace(one, **about))
            mixed.append(replace(mix.of(one, other, bool(touched[draw])), **about))
        hits += trial.judge(place, healthy, mixed, sign).found
        number += 1
    return [hits, number]


def even_counts(trial: Trial, site: Site, size: float, sign: str) -> list[int] | None:
    """As `drawn_counts`, where all texts lose a part, about as commands take a loss to be spread; None: of scores."""
    return drawn_counts(trial, site, Mix(1.0, size / site.reach), sign) if site.place.metric == "nll" else None


def resampled(clusters: Sequence[str], n: int, rng: np.random.Generator) -> list[tuple[int, int]]:
    """[n] places of samples, clusters drawn whole with replacement, each with the number of the draw."""
    groups: dict[str, list[int]] = {}
    for at, name in enumerate(clusters):
        groups.setdefault(name, []).append(at)
    names, found = [*groups], list[tuple[int, int]]()
    for draw in range(n):
        found += [(at, draw) for at in groups[names[int(rng.integers(len(names)))]]]
        if len(found) >= n:
            break
    return found[:n]


def planted_row(trial: Trial, row: str, used: set[str]) -> dict[str, Any]:
    """A row of the record: one effect at three sizes."""
    sign, site = trial.ids[row], site_of(trial, row)
    for reserve in RESERVES:
        if site is not None and site.reach >= SIZES[-1]:
            break
        if reserve in used or reserve in trial.ids:
            continue
        other = site_of(trial, reserve)
        if other is not None and other.reach >= SIZES[-1]:
            site = other
            used.add(reserve)
    if site is None:
        return {"planted": row, "sign": sign, "stated": None, "sizes": {}}
    place = site.place
    sizes: dict[str, Any] = {}
    about = {
        "planted": site.row,
        "was": EFFECTS[site.row].was + (", stronger" if site.strong else ""),
        "sign": sign,
        "place": f"{place.method}, {place.length}, {place.metric}",
        "metric": place.metric,
        "stated": site.stated,
        "full": site.full,
        "sizes": sizes,
    }
    healthy, planted = sides(trial, place, site.row, site.strong, SEED, trial.tried)
    for size in SIZES:
        mix = mix_of(site, size, trial.n)
        if mix is None:
            sizes[str(size)] = None
            continue
        mean, holds = verified(trial, site, mix, size)
        mixed = mix.all(site.row, healthy, planted)
        said = trial.judge(place, healthy[: trial.n], mixed[: trial.n], sign)
        real = float(losses(healthy[: trial.n], mixed[: trial.n], place.metric).mean())
        sizes[str(size)] = {
            "share": mix.share,
            "blend": mix.blend,
            "verified": mean,
            "holds": holds,
            "tried": real,
            "found": said.found,
            "alarms": said.alarms,
            "drawn": drawn_counts(trial, site, mix, sign),
            "even": even_counts(trial, site, size, sign),
        }
    return about


def null_draw(library: Library, n: int, rng: np.random.Generator) -> Callable[[str, str, int], tuple[Samples, Samples]]:
    """Resamples of two healthy readings, whose labels are exchanged by cluster."""

    def draw(method: str, task: str, length: int) -> tuple[Samples, Samples]:
        one, other = (
            library.samples(Reading(method, task, length, SEED, TRIED, setting=setting))
            for setting in ("float32", "bfloat16")
        )
        found: tuple[list[Sample], list[Sample]] = ([], [])
        places = resampled([each.cluster for each in one], n, rng)
        coins = rng.random(n) < 0.5
        for index, (at, number) in enumerate(places):
            pair = (one[at], other[at]) if coins[number] else (other[at], one[at])
            for side, sample in zip(found, pair, strict=True):
                side.append(replace(sample, index=index, cluster=f"{number} {sample.cluster}"))
        return found

    return draw


def nulls(trial: Trial, library: Library, number: int, count: int) -> dict[str, Any]:
    """Alarms of resampled null runs."""
    alarms, runs, started = 0, 0, time.process_time()
    while runs < count and time.process_time() < started + NULL_SECONDS:
        alarms += trial.null(null_draw(library, trial.n, np.random.default_rng([number, runs])))
        runs += 1
    return {"runs": runs, "alarms": int(alarms)}


REAL = (
    *(f"{dtype} batch={batch}" for dtype in ("bfloat16", "float16", "float64") for batch in (1, 3, 8)),
    *(f"{dtype} attention={kind}" for kind in ("lexbench", "merged") for dtype in ("float32", "bfloat16", "float16")),
    *(f"{dtype} fast=false threads={threads}" for threads in (1, 2) for dtype in ("float32", "bfloat16")),
    *(f"float32 threads=2 batch={batch} attention={kind}" for batch in (1, 8) for kind in ("auto", "lexbench")),
)
"""N01 to N23 of the list."""


def real_null(trial: Trial, library: Library, setting: str) -> bool:
    """Whether a command alarms on the same questions, measured anew under another setting."""

    def draw(method: str, task: str, length: int) -> tuple[Samples, Samples]:
        base = Reading(method, task, length, SEED, TRIED)
        sides = library.samples(base), library.samples(base._replace(setting=setting))
        return sides[0][: trial.n], sides[1][: trial.n]

    return trial.null(draw)


def keep(file: Path, name: str, part: str, value: Any) -> None:
    """Add to the record, which another process may have changed."""
    known: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    known.setdefault(name, {})[part] = value
    file.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")


def run_command(trial: Trial, library: Library, number: int, file: Path, asked: argparse.Namespace) -> None:
    """All rows and null runs of a command that the record does not hold."""
    known: Mapping[str, Any] = json.loads(file.read_text()).get(trial.name, {}) if file.exists() else {}
    used = {row["planted"] for row in known.values() if isinstance(row, dict) and "planted" in row}
    for row in trial.ids:
        if row not in known:
            started = time.process_time()
            found = planted_row(trial, row, used)
            keep(file, trial.name, row, found)
            hit = {size: each and each["found"] for size, each in found["sizes"].items()}
            print(f"{trial.name} {row} {found.get('place')} {hit} {time.process_time() - started:.0f} s", flush=True)
    if asked.nulls and "nulls" not in known and trial.name != "check, make gate":
        started = time.process_time()
        keep(file, trial.name, "nulls", nulls(trial, library, number, asked.nulls))
        print(f"{trial.name} nulls {time.process_time() - started:.0f} s", flush=True)
    for setting in REAL[: asked.real]:
        if f"real {setting}" not in known and trial.name != "check, make gate":
            keep(file, trial.name, f"real {setting}", real_null(trial, library, setting))


def run_faults(name: str, file: Path) -> None:
    """All faults without sizes of a command that the record does not hold, and what it says of healthy ones."""
    known: Mapping[str, Any] = json.loads(file.read_text()).get(name, {}) if file.exists() else {}
    with tempfile.TemporaryDirectory() as scratch:
        reference = Path(scratch) / "pack.npz"
        for row in planted_faults.ROWS[name]:
            if row not in known:
                found = planted_faults.verdict(name, row, reference)
                keep(file, name, row, found)
                print(f"{name} {row} {found}", flush=True)
        for number, (label, alarm) in enumerate(planted_faults.healthy(name, reference, known)):
            keep(file, name, f"real {number} {label}", alarm)


def main() -> None:
    """Plant what is not in the record yet, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="commands whose name begins so")
    parser.add_argument("--out", type=Path, default=RECORD, help="file of rows")
    parser.add_argument("--readings", type=Path, default=READINGS, help="folder of the readings")
    parser.add_argument("--nulls", type=int, default=NULLS, help="resampled null runs of a command")
    parser.add_argument("--real", type=int, default=len(REAL), help="real null runs of a command, the first so many")
    parser.add_argument("--page", action="store_true", help="only write the page")
    asked = parser.parse_args()
    library = Library(asked.readings)
    for number, kind in enumerate(COMMANDS):
        trial = kind(library)
        if not asked.page and trial.name.startswith(asked.only):
            run_command(trial, library, number, asked.out, asked)
    for name in planted_faults.ROWS:
        if not asked.page and name.startswith(asked.only):
            run_faults(name, asked.out)
    if not asked.only:
        PAGE.write_text(planted_page.page(json.loads(asked.out.read_text())), encoding="utf-8")


if __name__ == "__main__":
    main()
