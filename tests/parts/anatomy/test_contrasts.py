"""Contrasts find planted causes and nothing else; controls and verdicts, on samples that are made by a rule."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from lexbench.core.method_key import BASELINE_METHOD, MethodKey
from lexbench.core.record import Cell, Sample
from lexbench.parts.anatomy import contrasts, page
from lexbench.parts.anatomy.arms import ARM_CONTRASTS, ARM_FORMS, CONTROL_FORMS
from lexbench.parts.anatomy.contrasts import Measured
from lexbench.parts.anatomy.verdicts import verdicts
from lexbench.parts.anatomy.wordings import KEY_WORDINGS
from lexbench.store.format import FinishedCell

OCTAVES = (256, 512, 1024, 2048)
USUAL = (
    "adjacent",
    "gap",
    "gap_unsunk",
    "near8",
    "near8_blind",
    "near64",
    "near64_filled",
    "present",
    "present_1",
    "present_4",
)
Effect = Callable[[Mapping[str, Any], int, float], float]
"""(parameters of an arm, octave, the wording's own size) -> nats it adds."""


def none(form: Mapping[str, Any], octave: int, size: float) -> float:
    return 0.0


def run(
    effect: Effect, seed: int, arms: tuple[str, ...] = USUAL, octaves: tuple[int, ...] = OCTAVES, keys: int = 4
) -> Measured:
    """Losses of 12 wordings x keys: each question's own, noise of the arm, and the effect, which differs by wording."""
    rng, cells = np.random.default_rng(seed), {}
    sizes = rng.uniform(0.6, 1.4, len(KEY_WORDINGS))
    for octave in octaves:
        own = rng.exponential(1.0, len(KEY_WORDINGS) * keys)
        cells[BASELINE_METHOD, octave] = {
            arm: [
                sample(
                    index,
                    own[index]
                    + rng.normal(0, 0.15)
                    + effect({**ARM_FORMS, **CONTROL_FORMS}[arm], octave, sizes[index % len(KEY_WORDINGS)]),
                )
                for index in range(len(own))
            ]
            for arm in arms
        }
    return Measured(1024, cells)


def sample(index: int, nats: float, right: float = 1.0) -> Sample:
    scores = {"nats": nats, "accuracy": right, "greedy": right, "whole": 0.0}
    return Sample(
        index=index, cluster=KEY_WORDINGS[index % len(KEY_WORDINGS)].name, tokens=9, scores=scores, chance=1 / 16
    )


def half_angles(form: Mapping[str, Any], octave: int, size: float) -> float:
    """Coarse angles: the farther, the worse, whatever stands near."""
    return size * octave / 1024 if form.get("far", True) else 0.0


def heavy_sink(form: Mapping[str, Any], octave: int, size: float) -> float:
    """A first token that takes too much, unless it is blocked or near text stands beside the question."""
    drowns = (
        form.get("far", True) and form.get("sink", True) and not form.get("near") and form.get("filler") != "present"
    )
    return size if drowns else 0.0


def drawn_to_rivals(form: Mapping[str, Any], octave: int, size: float) -> float:
    return 0.4 * size * int(form.get("rivals", 0))


def unread(form: Mapping[str, Any], octave: int, size: float) -> float:
    """Near text helps only if it has read the key."""
    return 0.0 if form.get("near") and not form.get("blind") else size


PLANTED: dict[str, tuple[Effect, set[str]]] = {
    "angles in half precision": (half_angles, {"distance"}),
    "a sink that is too heavy": (heavy_sink, {"neighbourhood", "sink"}),
    "a bias towards rivals": (drawn_to_rivals, {"one rival", "four rivals"}),
    "near text that must have read the key": (unread, {"neighbourhood", "sight", "distance", "filler"}),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_cause_moves_its_contrasts_and_no_other(name: str) -> None:
    effect, moved = PLANTED[name]
    hits = misses = 0
    for seed in range(10):
        known = contrasts.contrasts(run(effect, seed), BASELINE_METHOD)
        starred = {contrast for (contrast, octave), found in known.items() if octave == 2048 and found.significant}
        hits += moved <= starred
        misses += len(starred - moved) > 0
    assert hits >= 9 and misses <= 1, (hits, misses)


def test_arms_that_are_shuffled_within_pairs_get_few_stars() -> None:
    """The family is the octaves of one contrast: a star in any of them counts."""
    [each] = [each for each in ARM_CONTRASTS if each.name == "neighbourhood"]
    starred = 0
    for seed in range(200):
        found, rng = run(heavy_sink, seed % 10, (each.arm, each.base), OCTAVES[:2], keys=2), np.random.default_rng(seed)
        for arms in found.cells.values():
            one, other = (list(arms[name]) for name in (each.arm, each.base))
            for place in np.flatnonzero(rng.random(len(one)) < 0.5):
                one[place], other[place] = other[place], one[place]
            arms[each.arm], arms[each.base] = one, other  # type: ignore[index]
        known = contrasts.contrasts(found, BASELINE_METHOD)
        starred += any(difference.significant for difference in known.values())
    assert starred <= 16, starred


def test_intervals_are_over_wordings_and_not_over_keys() -> None:
    """Twelve wordings with one key each and with fifty: the interval follows the spread of wordings."""
    widths = []
    for keys in (1, 50):
        found = run(
            lambda form, octave, size: 10 * size if form.get("near") else 0.0, 3, ("near8", "gap"), (256,), keys
        )
        known = contrasts.contrasts(found, BASELINE_METHOD)["neighbourhood", 256]
        assert (
            known.clusters == 12 and known.low is not None and known.high is not None and known.difference is not None
        )
        assert known.low < known.difference < -5 and known.high > known.difference  # nats: no share ends at 1
        widths.append(known.high - known.low)
    assert 0.8 < widths[1] / widths[0] < 1.25  # a mean over 50 keys would be 7 times as narrow


def judged(effect: Effect, seed: int = 1) -> list[str]:
    return [each.said for each in verdicts(run(effect, seed, keys=24))]


def test_verdicts_of_planted_truths() -> None:
    def grown(form: Mapping[str, Any], octave: int, size: float) -> float:
        # Nothing up to 512, then much, more beyond T, all of it the sink's; rivals cost more than the distance.
        band = {256: 0.0, 512: 0.0, 1024: 1.0, 2048: 3.0}[octave]
        return band * heavy_sink(form, octave, size) + 5 * drawn_to_rivals(form, octave, size)

    def flat(form: Mapping[str, Any], octave: int, size: float) -> float:
        # The neighbourhood costs as much everywhere, also without a sink; near text must see; the distance costs most.
        near = 0.0 if form.get("near") or not form.get("far", True) else 1.0
        return near * size + (0.4 if form.get("blind") else 0.0) + (3.0 if form.get("near") else 0.0)

    assert judged(grown) == ["holds"] * 5
    assert judged(flat)[0] == "fails"
    assert judged(lambda form, octave, size: 0.4 if form.get("blind") else 0.0)[1] == "fails"
    assert (
        judged(lambda form, octave, size: 0.0 if form.get("near") or not form.get("far", True) else size)[2] == "fails"
    )
    assert judged(half_angles)[4] == "fails"
    assert judged(none)[2] == judged(none)[3] == "cannot be told"
    few = run(grown, 1).without([each.name for each in KEY_WORDINGS[5:]])
    assert {each.said for each in verdicts(few)} == {"cannot be told"} and verdicts(few)[0].n == 5


def test_controls_and_dropped_wordings() -> None:
    found = run(none, 0, ("adjacent", "gap"), (256,))
    arms = dict(found.cells[BASELINE_METHOD, 256])
    exact = {
        "stock": arms["adjacent"],
        "masked": [sample(each.index, each.scores["nats"] + 2e-4) for each in arms["gap"]],
    }
    guess = [sample(index, 1.0, float(index < 3)) for index in range(48)]  # 3 of 48: chance
    wrong = [
        sample(each.index, 1.0, float(each.index not in (7, 19))) for each in arms["adjacent"]
    ]  # wording 7: 2 of 4
    whole = Measured(1024, {(BASELINE_METHOD, 256): {**arms, **exact, "keyless": guess, "adjacent": wrong}})
    again = {(MethodKey.of_method("yarn"), 256): {"keyless": [sample(index, 1.0) for index in range(48)]}}
    whole = Measured(1024, {**whole.cells, **again})  # the same questions under another method tell nothing of chance
    dropped = contrasts.dropped_wordings(whole)
    assert dropped == [KEY_WORDINGS[7].name]
    results = {each.name: each.passed for each in contrasts.controls(whole, dropped)}
    assert results == {"adjacent": True, "packed as stock": False, "gap as masked": False, "no key": True}
    left = whole.without(dropped)
    assert {each.cluster for each in left.cells[BASELINE_METHOD, 256]["gap"]} == {
        each.name for each in KEY_WORDINGS
    } - {*dropped}
    assert next(iter(page.screen(left, contrasts.controls(whole, dropped)))).startswith(
        "Nothing is told: packed as stock does not hold"
    )


def test_cells_of_other_texts_are_not_paired() -> None:
    """Two folders' worth of cells: the second has other texts, and question 3 of it is another question."""
    task = {**contrasts.FORM_DEFAULTS, "haystack": "text"}

    def cell(form: Mapping[str, Any], corpus: str, shift: float, refused: str | None = None) -> FinishedCell:
        identity = {"task": {**task, **form}, "corpus": corpus}
        about = Cell(
            model="m", method=BASELINE_METHOD, task="anatomy", length=384, trained_length=1024, seed=0, n=4,
            protocol="", backend="hf", dtype="float32", kernel="", corpus=corpus, version="", identity=identity,
        )  # fmt: skip
        return FinishedCell(about, [] if refused else [sample(index, index + shift) for index in range(4)], refused)

    cells = [cell({}, "one", 1.0), cell({"near": 8}, "one", 0.0), cell({}, "two", 90.0), cell({"near": 3}, "one", 0.0)]
    found = contrasts.collect_cells([*cells, cell({"near": 64}, "one", 0.0, "too short")])
    [arms] = found.cells.values()
    assert {arm: len(samples) for arm, samples in arms.items()} == {"gap": 8, "near8": 4}
    assert set(contrasts.by_wording(arms, "gap", "near8").values()) == {1.0}
    assert found.refused == {"too short": 1} and found.octaves(BASELINE_METHOD) == [256]
