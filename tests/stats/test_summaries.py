"""What a curve says: examples worked out by hand, limits, and numbers that others published."""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest
from scipy.integrate import trapezoid
from scipy.stats import binomtest, ttest_1samp

from lexbench.core.method_key import parse_label
from lexbench.core.record import Sample
from lexbench.report.notes import notes_text
from lexbench.stats.combine import Level, combine_level_pairs, combine_levels, group_levels
from lexbench.stats.intervals import Interval, cluster_bootstrap
from lexbench.stats.pairs import Outcome, outcomes_of_samples
from lexbench.stats.rescore import samples_by_cell
from lexbench.stats.summaries import SummaryValue, curve_summaries, effective_lengths, shared_lengths
from lexbench.stats.tables import Table, build_tables
from lexbench.store.format import FinishedCell
from tests.report.fake_run import cell, fake_cells

Curve = Mapping[int, float | str | None]
"""Value by length; text: refused; None: every sample failed."""


def right(value: float, length: int, n: int) -> list[Sample]:
    """Answers of which the first n * value are right."""
    return [
        Sample(index=place, cluster=str(place), tokens=length, scores={"accuracy": float(place < round(n * value))})
        for place in range(n)
    ]


def nats(value: float, length: int, n: int) -> list[Sample]:
    """Documents of 4 targets around a mean; their differences between lengths do not vary."""
    return [
        Sample(
            index=place,
            cluster=f"document {place}",
            tokens=length,
            nll=np.full(4, value + 0.01 * (place - (n - 1) / 2), np.float32),
            facts={"document": str(place), "first_target": 100, "end": 104},
        )
        for place in range(n)
    ]


def table_of(curves: Mapping[str, Curve], metric: str = "nll", n: int = 40) -> tuple[Table, dict[str, list[Sample]]]:
    """A table with these values, trained length 256, and its samples."""
    task = "last_segment" if metric == "nll" else "passkey"
    made = []
    for method, curve in curves.items():
        for length, value in curve.items():
            this = cell(task, method, length, n=n)
            samples = [] if isinstance(value, str) else (nats if metric == "nll" else right)(value or 0.0, length, n)
            if value is None:
                samples = [replace(each, failed="no answer", nll=None, scores={}) for each in samples]
            made.append(FinishedCell(this, samples, value if isinstance(value, str) else None))
    table = next(each for each in build_tables(made) if each.metric in (metric, None))
    return table, {each.cell.id: each.samples for each in made}


def found(curves: Mapping[str, Curve], name: str, metric: str = "nll", n: int = 40) -> dict[str, SummaryValue]:
    """The summary of one name of each method."""
    every = curve_summaries(*table_of(curves, metric, n))
    return {str(each.method): each for each in every if each.name == name}


FLAT = {128: 3.0, 256: 3.0, 512: 3.0, 1024: 3.0, 2048: 3.0}
RISING = {128: 3.0, 256: 2.9, 512: 2.95, 1024: 3.2, 2048: 4.0}  # 0.05, 0.3 and 1.1 nats above 2.9


# Effective length


def test_effective_length_is_the_last_length_before_the_curve_leaves_the_margin() -> None:
    each = found({"none": RISING}, "effective_length")["none"]
    assert (each.value, each.low, each.high) == (512, 512, 512)  # paired differences that do not vary have no width
    assert each.interval == "inversion" and each.unit == "tokens"
    assert notes_text(each.notes) == "within 0.1 nats of the best of none up to 256"


def test_a_flat_curve_has_no_end() -> None:
    each = found({"none": FLAT}, "effective_length")["none"]
    assert (each.value, each.low, each.high, each.limit) == (math.inf, math.inf, math.inf, 2048)
    assert notes_text(each.notes).startswith(">= 2048, the longest measured")


def test_a_curve_that_only_improves_has_none_either_and_short_contexts_are_not_blamed() -> None:
    falling = {128: 4.0, 256: 3.5, 512: 3.2, 1024: 3.0}
    assert found({"none": falling}, "effective_length")["none"].value == math.inf


def test_a_method_that_is_worse_everywhere_does_not_look_long() -> None:
    worse = {length: value + 0.5 for length, value in FLAT.items()}
    each = found({"none": FLAT, "pi": worse}, "effective_length")["pi"]
    assert (each.value, each.low, each.high) == (0, 0, 0)
    assert notes_text(each.notes).startswith("< 128, the shortest judged")
    alone = found({"pi": worse}, "effective_length")["pi"]
    assert alone.value == math.inf
    assert "best of its own up to 256" in notes_text(alone.notes) and "can look long" in notes_text(alone.notes)


def test_a_model_that_falters_inside_its_trained_length_does_not_hand_on_its_lower_level() -> None:
    curve = {64: 1.0, 128: 1.0, 256: 0.5, 512: 0.5}
    assert found({"none": curve}, "effective_length", "accuracy", n=200)["none"].value == 128


def test_a_u_shape_ends_by_the_monotone_rule_and_not_by_any() -> None:
    table, samples = table_of({"none": {128: 3.0, 256: 3.0, 512: 3.5, 1024: 3.05, 2048: 3.4}})
    by = {rule: effective_lengths(table, samples, rule)[0] for rule in ("monotone", "any")}
    assert (by["monotone"].value, by["any"].value) == (256, 1024)
    assert "rule any" in notes_text(by["any"].notes)
    assert effective_lengths(table, samples, "any", margin=0.41)[0].value == math.inf
    assert effective_lengths(table, samples, "monotone", margin=0.0)[0].value == 256


def test_a_difference_of_exactly_the_margin_is_within_it() -> None:
    curve = {256: 0.95, 512: 0.80, 1024: 0.775}  # 0.95 - 0.8 is 0.1499..., and 0.8 + 0.15 is 0.9500...1
    assert found({"none": curve}, "effective_length", "accuracy")["none"].value == 512
    assert found({"none": {256: 0.8, 512: 0.65}}, "effective_length", "accuracy")["none"].value == math.inf


def test_a_refusal_ends_a_curve_but_not_before_it_begins() -> None:
    refused: Curve = {128: "too short", 256: 3.0, 512: 3.0, 1024: "out of memory", 2048: 3.0}
    each = found({"none": FLAT, "pi": refused}, "effective_length")["pi"]
    assert (each.value, each.high, each.limit) == (512, 512, 2048)
    assert "3 of 5 lengths; refused at 1024" in notes_text(each.notes)
    last = found({"none": FLAT, "pi": {256: 3.0, 512: 3.0, 2048: "table ends"}}, "effective_length")["pi"]
    assert (last.value, last.limit) == (512, 512) and "refused at 2048" in notes_text(last.notes)
    ragged = found({"none": FLAT, "pi": {256: 3.0, 1024: 3.0}}, "effective_length")["pi"]
    assert (ragged.value, ragged.limit) == (math.inf, 1024)
    assert notes_text(ragged.notes).startswith(">= 1024, the longest measured") and "2 of 5 lengths" in notes_text(
        ragged.notes
    )


def test_a_cell_that_failed_wholly_has_no_value() -> None:
    failed: Curve = dict.fromkeys(FLAT)
    assert notes_text(found({"none": FLAT, "pi": failed}, "effective_length")["pi"].notes) == "no value at any length"
    scored = found({"none": dict.fromkeys(FLAT, 1.0), "pi": failed}, "effective_length", "accuracy")["pi"]
    assert scored.value is None and notes_text(scored.notes) == "no value at any length"
    base = found({"none": failed, "pi": dict.fromkeys(FLAT, 1.0)}, "price", "accuracy")["pi"]
    assert base.value is None, "a failed baseline makes no price"
    half = found({"none": FLAT, "pi": {256: 3.0, 512: None, 1024: 3.0}}, "effective_length")["pi"]
    assert half.value == 256 and "no value at 512" in notes_text(half.notes)


@pytest.mark.parametrize(
    ("curve", "value", "note"),
    [
        ({256: 3.0}, math.inf, "nothing beyond the trained 256"),
        ({128: 3.1, 256: 3.0}, math.inf, "nothing beyond the trained 256"),
        ({512: 3.0, 1024: 3.0}, None, "no length up to the trained 256 has a value"),
        ({128: "too short", 256: "too short", 512: 3.0}, None, "no length up to the trained 256 has a value"),
    ],
)
def test_lengths_on_one_side_of_the_trained_one_say_little(curve: Curve, value: float | None, note: str) -> None:
    each = found({"none": curve}, "effective_length")["none"]
    assert each.value == value and note in notes_text(each.notes)


def test_without_a_level_of_none_the_method_has_its_own() -> None:
    curves: dict[str, Curve] = {"none": {128: "too short", 256: "broken", 512: 9.0}, "pi": RISING}
    each = found(curves, "effective_length")["pi"]
    assert (
        each.value == 512
        and "best of its own" in notes_text(each.notes)
        and "none has no value there" in notes_text(each.notes)
    )


def test_where_guessing_is_within_the_margin_there_is_no_level_to_keep() -> None:
    curve = {256: 0.35, 512: 0.35}
    table, samples = table_of({"none": curve}, "accuracy")
    guessed = {place: replace(record, chance=0.25) for place, record in table.entries.items()}
    for name in ("effective_length", "collapse"):
        each = next(each for each in curve_summaries(replace(table, entries=guessed), samples) if each.name == name)
        assert each.value is None and "is 35.0 points, and guessing gives 25.0" in notes_text(each.notes)
    assert found({"none": curve}, "effective_length", "accuracy")["none"].value == math.inf


def test_the_interval_of_effective_length_inverts_newcombes_intervals() -> None:
    # of 40 answers each, right at 256, 512, 1024, 2048: 40, 38, 34, 20
    curve = {256: 1.0, 512: 0.95, 1024: 0.85, 2048: 0.5}
    each = found({"none": curve}, "effective_length", "accuracy")["none"]
    upper, lower = {}, {}
    for length, hits in ((512, 38), (1024, 34), (2048, 20)):
        one, two = (binomtest(k, 40).proportion_ci(method="wilson") for k in (40, hits))
        gap = 1.0 - hits / 40
        upper[length] = gap + math.sqrt((one.high - 1.0) ** 2 + (hits / 40 - two.low) ** 2)
        lower[length] = gap - math.sqrt((1.0 - one.low) ** 2 + (two.high - hits / 40) ** 2)
    assert upper[512] > 0.15 and lower[1024] < 0.15 < lower[2048]
    assert (each.value, each.low, each.high) == (1024, 256, 1024)
    # a lower score at a shorter length is not the level: neither the value nor an end may come from it
    worse = found({"none": {128: 0.8, **curve}}, "effective_length", "accuracy")["none"]
    assert (worse.value, worse.low, worse.high) == (1024, 256, 1024)


@pytest.mark.slow
def test_ruler_gives_its_published_effective_lengths_by_its_fixed_threshold() -> None:
    # arXiv 2404.06654 and the repository's table: scores at 4, 8, 16, 32, 64 and 128 thousand tokens
    published = {
        "GPT-4-1106": ([96.6, 96.3, 95.2, 93.2, 87.0, 81.2], 65536),
        "Llama3.1-70B": ([96.5, 95.8, 95.4, 94.8, 88.4, 66.6], 65536),
        "Qwen2-72B": ([96.9, 96.1, 94.9, 94.1, 79.8, 53.7], 32768),
        "Command-R-plus": ([95.6, 95.2, 94.2, 92.0, 84.3, 63.1], 32768),
        "GLM4-9B": ([94.7, 92.8, 92.1, 89.9, 86.7, 83.1], 65536),
        "GradientAI-Llama3-70B": ([95.1, 94.4, 90.8, 85.4, 80.9, 72.1], 16384),
        "Mixtral-8x22B": ([95.6, 94.9, 93.4, 90.9, 84.7, 31.7], 32768),
        "Gemini-1.5-pro": ([96.7, 95.8, 96.0, 95.9, 95.9, 94.4], math.inf),
    }
    lengths = [4096 * 2**place for place in range(6)]
    curves: dict[str, Curve] = {
        model: dict(zip(lengths, (score / 100 for score in scores), strict=True))
        for model, (scores, _) in published.items()
    }
    table, samples = table_of(curves, "accuracy", n=1000)
    by = {str(each.method): each for each in effective_lengths(table, samples, "fixed")}
    assert {model: each.value for model, each in by.items()} == {model: last for model, (_, last) in published.items()}
    assert "at least 85.6 points; rule fixed" in notes_text(by["GLM4-9B"].notes)


def test_unknown_rules_and_thresholds_without_a_score_are_refused() -> None:
    table, samples = table_of({"none": FLAT})
    with pytest.raises(ValueError, match="known rules are monotone, any, fixed"):
        effective_lengths(table, samples, "first")
    with pytest.raises(ValueError, match="needs a score, not nll"):
        effective_lengths(table, samples, "fixed")


# Collapse


def test_collapse_begins_where_the_curve_stays_beyond_the_rise() -> None:
    curves: dict[str, Curve] = {"none": RISING, "ntk": {**RISING, 512: 3.6, 1024: 3.3, 2048: 3.5}, "pi": FLAT}
    by = found(curves, "collapse")
    assert [by[row].value for row in ("none", "ntk", "pi")] == [2048, 2048, math.inf]
    assert notes_text(by["none"].notes) == "more than 0.5 nats above the best of none up to 256"
    assert notes_text(by["pi"].notes).startswith("never, up to 2048") and by["pi"].limit == 2048
    back = found({"none": {256: 3.0, 512: 4.0, 1024: 3.0}}, "collapse")["none"]
    assert back.value == math.inf
    gone = found({"none": {256: 3.0, 512: 4.0, 1024: "out of memory"}}, "collapse")["none"]
    assert gone.value == 512 and "refused at 1024" in notes_text(gone.notes)
    held = found({"none": {256: 3.0, 512: 3.0, 1024: "out of memory"}}, "collapse")["none"]
    assert (held.value, held.limit) == (math.inf, 512)  # a refusal is no collapse, and no proof of none
    assert notes_text(held.notes).startswith("never, up to 512; ") and "refused at 1024" in notes_text(held.notes)


def test_a_score_collapses_where_it_loses_half_of_what_is_above_chance() -> None:
    curve = {256: 0.85, 512: 0.6, 1024: 0.525}  # half way from 0.25 to 0.85 is 0.55
    table, samples = table_of({"none": curve}, "accuracy")
    guessed = replace(table, entries={at: replace(record, chance=0.25) for at, record in table.entries.items()})
    by = {each.name: each for each in curve_summaries(guessed, samples)}
    assert by["collapse"].value == 1024
    assert by["collapse"].low == 512  # 24 of 40 may be less than 0.55, and
    assert by["collapse"].high == math.inf  # 21 of 40 may be more
    assert {each.name: each for each in curve_summaries(table, samples)}["collapse"].value == math.inf  # half of 0.85


# Failed samples


def without(samples: Sequence[Sample], *indexes: int) -> list[Sample]:
    """The same with some of them failed."""
    return [replace(each, failed="gone", nll=None) if each.index in indexes else each for each in samples]


def test_levels_and_lengths_are_compared_on_the_documents_that_both_sides_have() -> None:
    table, samples = table_of({"none": {256: 3.0, 512: 3.0, 1024: 3.0}, "pi": {256: 3.0, 512: 3.05, 1024: 3.45}}, n=16)
    for name, each in samples.items():  # document 0 is hard for all
        samples[name] = [
            replace(one, nll=one.nll + np.float32(3.0)) if one.index == 0 and one.nll is not None else one
            for one in each
        ]
    lost = table.entries[parse_label("pi"), 1024].cell
    samples[lost] = without(samples[lost], 0)
    # the level is 3 + 3 / 16 = 3.19 over 16 documents, and 3.0 over the 15 that pi has at 1024: 0.26 or 0.45 behind
    by = {str(each.method): each for each in effective_lengths(table, samples, margin=0.4)}
    assert (by["pi"].value, by["pi"].low, by["pi"].high) == (512, 512, 512)
    assert by["none"].value == math.inf
    by = {str(each.method): each for each in effective_lengths(table, samples, margin=0.46)}
    assert by["pi"].value == math.inf


def test_a_baseline_that_failed_is_left_out_on_both_sides() -> None:
    table, samples = table_of({"none": {256: 3.0, 512: 3.0}, "pi": {256: 3.0, 512: 3.0}}, n=16)
    for name, each in samples.items():
        samples[name] = [replace(one, nll=np.full(4, 3.0 + 0.1 * (one.index - 7.5), np.float32)) for one in each]
    level = table.entries[parse_label("none"), 256].cell
    samples[level] = without(samples[level], 13, 14, 15)  # what is left has a mean of 3 - 0.15
    by = {str(each.method): each for each in curve_summaries(table, samples) if each.name == "effective_length"}
    assert {(each.value, each.low, each.high) for each in by.values()} == {(math.inf,) * 3}
    samples[level] = without(samples[level], *range(1, 16))
    other = table.entries[parse_label("pi"), 512].cell
    samples[other] = without(samples[other], 0)  # no document in common
    [pi] = [
        each for each in curve_summaries(table, samples) if (str(each.method), each.name) == ("pi", "effective_length")
    ]
    assert (pi.value, pi.limit) == (256, 256) and "no value at 512" in notes_text(pi.notes)


def test_lengths_with_other_documents_are_compared_as_they_are() -> None:
    table, samples = table_of({"none": {256: 3.0, 512: 3.05}}, n=16)
    level, longer = (table.entries[parse_label("none"), length].cell for length in (256, 512))
    spread = [3.0 + 0.1 * (index - 7.5) for index in range(16)]  # a mean of 2.85 in the first 13
    samples[level] = [replace(each, nll=np.full(4, spread[each.index], np.float32)) for each in samples[level]]
    samples[longer] = [replace(each, cluster=f"other {each.index}") for each in samples[longer][:13]]
    by = {each.name: each for each in curve_summaries(table, samples)}
    assert by["effective_length"].value == math.inf  # 0.05 - 0.015 behind, and not 0.185


def test_amounts_that_are_not_finite_failed() -> None:
    table, samples = table_of({"none": {256: 3.0}, "pi": {256: 3.25}}, n=8)
    name = table.entries[parse_label("pi"), 256].cell
    for odd in (np.nan, np.inf):
        broken = [replace(each, nll=np.full(4, odd, np.float32)) if each.index < 3 else each for each in samples[name]]
        made = outcomes_of_samples(broken, "nll")
        assert [(each.failed, each.amount is None) for each in made] == [(True, True)] * 3 + [(False, False)] * 5
        by = {
            str(each.method): each for each in curve_summaries(table, {**samples, name: broken}) if each.name == "price"
        }
        assert by["pi"].value == pytest.approx(0.25, abs=1e-6) and notes_text(by["pi"].notes).startswith(
            "1 of 1 lengths: 256; 5 pairs"
        )


# Areas and differences


@pytest.mark.parametrize("lengths", [[256, 512], [128, 256, 2048], [100, 256, 300, 1000, 4000]])
def test_an_area_is_the_mean_height_over_log_length(lengths: list[int]) -> None:
    values = [3.0 + 0.4 * place**2 for place in range(len(lengths))]
    by = found({"none": dict(zip(lengths, values, strict=True))}, "area")
    places = np.log2(np.array(lengths) / 256)
    each = by["none"]
    assert each.value == pytest.approx(trapezoid(values, places) / (places[-1] - places[0]), rel=1e-6)
    assert each.unit == "nats per token" and each.interval == "cluster_bootstrap"
    assert notes_text(each.notes) == f"{len(lengths)} of {len(lengths)} lengths: {lengths[0]} to {lengths[-1]}"


def test_the_area_beyond_begins_at_the_trained_length() -> None:
    # 256 to 512: mean 2.925 of one octave; to 1024: 3.075; to 2048: 3.6
    assert found({"none": RISING}, "area_beyond")["none"].value == pytest.approx((2.925 + 3.075 + 3.6) / 3, rel=1e-6)


def test_a_flat_curve_is_its_own_area_and_its_interval_that_of_the_level() -> None:
    table, samples = table_of({"none": FLAT})
    each = next(each for each in curve_summaries(table, samples) if each.name == "area")
    record = table.entries[parse_label("none"), 256]
    assert (each.value, each.low, each.high) == pytest.approx((record.value, record.low, record.high), rel=1e-12)


def test_no_area_of_a_likelihood_ends_below_0() -> None:
    """Student's interval of documents of 0.001 and 0.011 nats, 12.7 times 0.005 to each side, begins below 0."""
    each = found({"none": {256: 0.006, 512: 0.006}}, "area", n=2)["none"]
    assert each.value == pytest.approx(0.006, rel=1e-4) and each.low == 0 and (each.high or 0) > 0.0114


def test_averages_go_over_the_lengths_that_all_methods_have() -> None:
    curves: dict[str, Curve] = {
        "none": {**FLAT, 128: "too short"},
        "pi": dict.fromkeys(FLAT, 3.25),
        "yarn": {**FLAT, 2048: "out of memory"},
        "dca": dict.fromkeys(FLAT, "no kernel"),
    }
    table, samples = table_of(curves)
    assert shared_lengths(table) == [256, 512, 1024]
    by = {(str(each.method), each.name): each for each in curve_summaries(table, samples)}
    assert notes_text(by["pi", "area"].notes) == "3 of 5 lengths: 256 to 1024"
    assert notes_text(by["pi", "area_beyond"].notes) == "3 of 4 lengths: 256 to 1024"
    assert notes_text(by["pi", "price"].notes) == "1 of 2 lengths: 256; 40 pairs"
    assert by["pi", "price"].value == pytest.approx(0.25, abs=1e-6)
    for name in ("effective_length", "collapse", "area", "area_beyond", "context_gain"):
        assert by["dca", name].value is None and notes_text(by["dca", name].notes) == "no value at any length"
    assert by["dca", "price"].value is None and notes_text(by["dca", "price"].notes) == "dca has no value at any length"


@pytest.mark.parametrize("curve", [{256: 3.0}, {2048: 3.0}])
def test_one_length_has_no_area_and_no_gain(curve: Curve) -> None:
    table, samples = table_of({"none": curve, "pi": curve})
    by = {(str(each.method), each.name): each for each in curve_summaries(table, samples)}
    for name in ("area", "area_beyond", "context_gain"):
        assert by["pi", name].value is None and "that all methods have" in notes_text(by["pi", name].notes)
    assert (by["pi", "price"].value is None) == (256 not in curve)


def test_nothing_shared_says_so() -> None:
    table, samples = table_of({"none": {256: 3.0}, "pi": {512: 3.0}})
    by = {each.name: each for each in curve_summaries(table, samples) if str(each.method) == "pi"}
    assert shared_lengths(table) == []
    assert notes_text(by["area"].notes) == "an area needs two lengths that all methods have, here 0"
    assert notes_text(by["price"].notes) == "no length up to the trained 256 that all methods have"


def test_the_price_is_the_mean_paired_difference_inside_the_trained_length() -> None:
    dear = {128: 3.3, 256: 2.96, 512: 9.0}
    by = found({"none": {128: 3.0, 256: 2.9, 512: 3.0}, "pi": dear}, "price")
    assert by["pi"].value == pytest.approx((0.3 + 0.06) / 2, abs=1e-6)
    assert (by["pi"].low, by["pi"].high) == pytest.approx((0.18, 0.18), abs=1e-5)  # every document pays alike
    assert by["pi"].p == 1 / 20_000
    assert notes_text(by["pi"].notes) == "2 of 2 lengths: 128 to 256; 80 pairs"
    assert (by["none"].value, by["none"].low, notes_text(by["none"].notes)) == (0.0, None, "the baseline")
    assert notes_text(found({"pi": dear}, "price")["pi"].notes) == "none has no value at any length"
    refused: dict[str, Curve] = {"none": dict.fromkeys(dear, "out of memory"), "pi": dear}
    said = {(each.value, notes_text(each.notes)) for each in found(refused, "price").values()}
    assert said == {(None, "none has no value at any length")}


def test_the_p_of_a_price_flips_whole_documents_over_all_its_lengths() -> None:
    shifts = {128: [0.5, -0.4, 0.3, 0.2, -0.6], 256: [-0.1, 0.3, 0.2, -0.2, 0.4]}
    table, samples = table_of({"none": dict.fromkeys(shifts, 3.0), "pi": dict.fromkeys(shifts, 3.0)}, n=5)
    for length, each in shifts.items():
        at = table.entries[parse_label("pi"), length].cell
        samples[at] = [
            replace(sample, nll=sample.nll + np.float32(shift))
            for sample, shift in zip(samples[at], each, strict=True)
            if sample.nll is not None
        ]
    price = next(s for s in curve_summaries(table, samples) if (str(s.method), s.name) == ("pi", "price"))
    sums = np.mean(list(shifts.values()), axis=0)
    flipped = [abs(np.dot(signs, sums)) for signs in itertools.product((1, -1), repeat=5)]
    assert price.value == pytest.approx(sums.mean(), abs=1e-6)
    assert price.p == sum(each >= abs(sums.sum()) - 1e-6 for each in flipped) / 32


def test_the_price_at_one_length_is_the_paired_difference_with_its_interval() -> None:
    rng = np.random.default_rng(3)
    finished = [FinishedCell(cell("last_segment", method, 256), nats(3.0, 256, 32)) for method in ("none", "pi")]
    changed = [
        replace(
            each, nll=np.full(2 + each.index % 5, 3.0 + 0.2 * rng.normal(), np.float32), cluster=str(each.index // 2)
        )
        for each in finished[1].samples
    ]
    base = [
        replace(each, nll=np.full(len(each.nll if each.nll is not None else ()), 3.0, np.float32)) for each in changed
    ]
    made = [FinishedCell(finished[0].cell, base), FinishedCell(finished[1].cell, changed)]
    table = next(each for each in build_tables(made) if each.metric == "nll")
    by = curve_summaries(table, {each.cell.id: each.samples for each in made})
    each = next(each for each in by if (str(each.method), each.name) == ("pi", "price"))
    sums = [float((sample.nll.astype(float) - 3.0).sum()) for sample in changed if sample.nll is not None]
    sizes = [len(sample.nll) for sample in changed if sample.nll is not None]
    interval = cluster_bootstrap(sums, sizes, [sample.cluster for sample in changed])
    assert interval is not None
    assert each.value == pytest.approx(sum(sums) / sum(sizes), rel=1e-9)
    assert (each.low, each.high) == pytest.approx((interval.low, interval.high), rel=1e-9)


def test_prices_in_points_have_a_width_where_every_answer_is_the_same() -> None:
    by = found({"none": {256: 1.0}, "pi": {256: 1.0}, "yarn": {256: 0.0}}, "price", "accuracy", n=32)
    far = 100 * binomtest(0, 32).proportion_ci(method="wilson").high  # of 32 pairs none differs
    assert (by["pi"].value, by["pi"].low, by["pi"].high) == pytest.approx((0.0, -far, far))
    assert by["pi"].unit == "points" and by["pi"].interval == "mover" and by["pi"].p == 1.0
    assert (by["yarn"].value, by["yarn"].low) == (-100.0, -100.0)  # Newcombe's far end, as in difference_interval
    assert by["yarn"].high == pytest.approx(-100 + math.sqrt(2) * far)


def test_partial_scores_are_resampled_and_unlike_questions_are_not_paired() -> None:
    made = []
    for method, gain in (("none", 0.0), ("pi", 0.1)):
        samples = [
            Sample(index=k, cluster=str(k), tokens=256, depth=k / 8, scores={"accuracy": 0.4 + gain * (k % 2)})
            for k in range(8)
        ]
        made.append(FinishedCell(cell("passkey", method, 256, n=8), samples))
    table = next(each for each in build_tables(made) if each.metric == "accuracy")
    asked = {each.cell.id: each.samples for each in made}
    by = {each.name: each for each in curve_summaries(table, asked) if str(each.method) == "pi"}
    low, high = (100 * end for end in _ends(cluster_bootstrap([0.0, 0.1] * 4, [1] * 8, list("01234567"))))
    assert (by["price"].value, by["price"].low, by["price"].high) == pytest.approx((5.0, low, high))
    asked[made[1].cell.id] = [replace(each, depth=0.99) if each.index == 5 else each for each in made[1].samples]
    by = {each.name: each for each in curve_summaries(table, asked) if str(each.method) == "pi"}
    assert by["price"].value is None
    assert notes_text(by["price"].notes) == "sample 5 at 256 is not the question that none was asked: run both anew"


def test_no_price_in_points_is_beyond_100() -> None:
    """Student's interval of three partial scores, -0.9, -0.3 and 0, is cut at the largest loss of a score."""
    lost = (0.9, 0.3, 0.0)
    reach = ttest_1samp([-loss for loss in lost], 0).confidence_interval()
    assert reach.low < -1 < reach.high < 1
    made = []
    for method, scores in (("none", [0.9] * 3), ("pi", [0.9 - loss for loss in lost])):
        group = [replace(each, scores={"accuracy": s}) for each, s in zip(right(1.0, 256, 3), scores, strict=True)]
        made.append(FinishedCell(cell("passkey", method, 256, n=3), group))
    [table] = build_tables(made)
    [price] = [
        each
        for each in curve_summaries(table, {each.cell.id: each.samples for each in made})
        if (str(each.method), each.name) == ("pi", "price")
    ]
    assert (price.value, price.low, price.high) == pytest.approx((-40.0, -100.0, 100 * reach.high))


def _ends(interval: Interval | None) -> tuple[float, float]:
    assert interval is not None
    return interval.low, interval.high


# Context gain


def test_context_gain_is_nll_at_the_trained_length_minus_that_at_the_longest() -> None:
    curves: dict[str, Curve] = {"none": RISING, "pi": {**FLAT, 2048: "out of memory"}}
    by = found(curves, "context_gain")
    assert by["none"].value == pytest.approx(2.9 - 3.2, abs=1e-6)  # 2048 is not shared
    assert (by["none"].low, by["none"].high) == pytest.approx((-0.3, -0.3), abs=1e-5)
    assert notes_text(by["none"].notes) == "256 to 1024, 160 targets"
    assert found({"none": {128: 3.0, 512: 2.75}}, "context_gain")["none"].value == pytest.approx(0.25, abs=1e-6)
    assert "beyond that all methods have" in notes_text(
        found({"none": {128: 3.0, 256: 3.0}}, "context_gain")["none"].notes
    )


def test_other_targets_make_no_gain() -> None:
    table, samples = table_of({"none": {256: 3.0, 512: 2.0}})
    other = table.entries[parse_label("none"), 512].cell
    samples[other] = [replace(each, facts={**each.facts, "first_target": 101, "end": 105}) for each in samples[other]]
    each = next(each for each in curve_summaries(table, samples) if each.name == "context_gain")
    assert each.value is None and notes_text(each.notes) == "256 and 512 do not score the same targets"


# Position bias


def with_depths(scores: Mapping[int, Sequence[float]], method: str = "none") -> list[FinishedCell]:
    """Eight needles at depths 0, 1/8 ... 7/8 at each length, or more of the same."""
    made = []
    for length, each in scores.items():
        samples = [
            Sample(index=k, cluster=str(k), tokens=length, depth=k % 8 / 8, scores={"accuracy": score})
            for k, score in enumerate(each)
        ]
        made.append(FinishedCell(cell("passkey", method, length, n=len(each)), samples))
    return made


def biases(made: Sequence[FinishedCell]) -> dict[str, SummaryValue]:
    table = next(each for each in build_tables(made) if each.metric == "accuracy")
    every = curve_summaries(table, {each.cell.id: each.samples for each in made})
    return {each.name: each for each in every if each.name.startswith("position_bias") and str(each.method) == "none"}


def test_position_bias_is_the_outer_half_minus_the_inner_one() -> None:
    # depths 0, 1/8 | 1/4 ... 5/8 | 3/4, 7/8
    lost, fair = [1, 1, 0, 0, 0, 1, 1, 0], [1, 1, 1, 1, 1, 1, 1, 1]
    by = biases(with_depths({128: fair, 256: lost, 512: lost, 1024: [0, 1, 1, 1, 1, 1, 0, 0]}))
    assert by["position_bias"].value == pytest.approx(100 * (0 + (3 - 1) / 4) / 2)
    assert by["position_bias_beyond"].value == pytest.approx(100 * ((3 - 1) / 4 + (1 - 4) / 4) / 2)
    assert notes_text(by["position_bias"].notes) == "2 of 2 lengths: 128 to 256"
    assert notes_text(by["position_bias_beyond"].notes) == "2 of 2 lengths: 512 to 1024"


def test_position_bias_of_one_length_has_newcombes_interval_of_independent_proportions() -> None:
    scores = [1, 1, 0, 0, 0, 1, 1, 0] * 8  # outer 24 of 32, inner 8 of 32
    each = biases(with_depths({256: scores}))["position_bias"]
    one, two = (binomtest(k, 32).proportion_ci(method="wilson") for k in (24, 8))
    low = 0.5 - math.hypot(0.75 - one.low, two.high - 0.25)
    high = 0.5 + math.hypot(one.high - 0.75, 0.25 - two.low)
    assert (each.value, each.low, each.high) == pytest.approx((50.0, 100 * low, 100 * high))


def test_without_needles_in_both_halves_there_is_no_bias_and_without_depths_no_row() -> None:
    made = with_depths({256: [1] * 8, 512: [1, 1]})
    assert biases(made)["position_bias_beyond"].value is None
    assert notes_text(biases(made)["position_bias_beyond"].notes).startswith(
        "no length at which all methods have needles in both"
    )
    assert "position_bias" not in {each.name for each in curve_summaries(*table_of({"none": {256: 1.0}}, "accuracy"))}


# Statistics


def level(hits: int, n: int, name: str = "") -> Level:
    group = [Outcome(index=k, cluster=f"{name}{k}", amount=float(k < hits)) for k in range(n)]
    return group_levels({"": group}, True)[""]


@pytest.mark.parametrize(
    ("one", "two", "low", "high"),
    [
        ((56, 70), (48, 80), 0.0524, 0.3339),
        ((9, 10), (3, 10), 0.1705, 0.8090),
        ((6, 7), (2, 7), 0.0582, 0.8062),
        ((5, 56), (0, 29), -0.0381, 0.1926),
        ((0, 10), (0, 20), -0.1611, 0.2775),
        ((0, 10), (0, 10), -0.2775, 0.2775),
        ((10, 10), (0, 20), 0.6791, 1.0),
        ((10, 10), (0, 10), 0.6075, 1.0),
    ],
)
def test_differences_of_independent_shares_are_those_of_newcombe_1998(
    one: tuple[int, int], two: tuple[int, int], low: float, high: float
) -> None:
    left, right = (replace(level(*each), influence=None) for each in (one, two))  # table II, method 10
    found = combine_levels([(1, left), (-1, right)], True)
    assert (found.low, found.high) == pytest.approx((low, high), abs=6e-5)
    swapped = combine_levels([(1, right), (-1, left)], True)
    assert (swapped.low, swapped.high) == pytest.approx((-high, -low), abs=6e-5)


def test_the_correlation_of_pairs_narrows_their_difference() -> None:
    # Newcombe (1998, Statistics in Medicine 17:2635) method 10 without its correction of the coefficient
    first = [Outcome(index=k, cluster=str(k), amount=float(k < 30)) for k in range(40)]
    second = [replace(each, amount=float(each.index < 24)) for each in first]
    known = group_levels({1: first, 2: second}, True)
    one, two = (binomtest(k, 40).proportion_ci(method="wilson") for k in (30, 24))
    phi = (24 * 10 - 6 * 0) / math.sqrt(30 * 10 * 24 * 16)
    below, above = 0.75 - one.low, two.high - 0.6
    found = combine_levels([(1, known[1]), (-1, known[2])], True)
    assert found.low == pytest.approx(0.15 - math.sqrt(below**2 + above**2 - 2 * phi * below * above))
    same = combine_levels([(1, known[1]), (-1, known[1])], True)
    assert (same.value, same.low, same.high) == (0, 0, 0)


def test_levels_with_the_same_clusters_vary_together_and_others_apart() -> None:
    rng = np.random.default_rng(4)
    values = rng.normal(size=30)

    def group(name: str, amounts: np.ndarray) -> list[Outcome]:
        return [Outcome(index=k, cluster=f"{name}{k}", amount=amount) for k, amount in enumerate(amounts.tolist())]

    known = group_levels({1: group("a", values), 2: group("a", 2 * values), 3: group("b", values)}, False)
    assert [level.family for level in known.values()] == [0, 0, 1]

    def width(*terms: tuple[float, Level]) -> float:
        found = combine_levels(terms, False)
        assert found.low is not None and found.high is not None
        return found.high - found.low

    one = width((1, known[1]))
    assert width((2, known[1]), (-1, known[2])) < 1e-9  # what both share cancels
    assert width((1, known[1]), (1, known[2])) == pytest.approx(3 * one)
    assert width((1, known[1]), (1, known[3])) == pytest.approx(math.sqrt(2) * one, rel=0.05)  # apart: variances add
    shared = group("a", values)[:15] + group("b", values)[15:]
    bridged = group_levels({1: group("a", values), 3: group("b", values), 4: shared}, False)
    assert {level.family for level in bridged.values()} == {0}
    assert width((1, bridged[4]), (1, bridged[1])) > width((1, bridged[4]), (-1, bridged[1]))


@pytest.mark.parametrize("scored", [False, True], ids=["likelihoods", "scores"])
@pytest.mark.parametrize("weights", [(-1.0, 1.0), (0.5, -1.0)])
def test_contrasts_of_many_pairs_are_the_combinations_of_each(scored: bool, weights: tuple[float, float]) -> None:
    rng = np.random.default_rng(5)

    def group(name: str, size: int) -> list[Outcome]:
        amounts = rng.integers(2, size=size) if scored else rng.normal(size=size)
        return [Outcome(index=k, cluster=f"{name}{k}", amount=float(each)) for k, each in enumerate(amounts)]

    known = group_levels({n: group(name, size) for n, (name, size) in enumerate(GROUPS)}, scored)
    pairs = [(one, other) for one in known.values() for other in known.values()]
    found = combine_level_pairs(pairs, weights, scored)
    singly = [combine_levels([(weights[0], one), (weights[1], other)], scored) for one, other in pairs]
    assert found[0] == pytest.approx([each.value for each in singly])
    for ends, name in zip(found[1:], ("low", "high"), strict=True):
        expected = [math.nan if getattr(each, name) is None else getattr(each, name) for each in singly]
        assert ends == pytest.approx(expected, rel=1e-9, abs=1e-12, nan_ok=True)
    assert np.isnan(found[1]).any() != scored  # one document has no spread to resample
    assert len(combine_level_pairs([], weights, scored)[0]) == 0


GROUPS = (("a", 12), ("a", 12), ("a", 9), ("b", 40), ("b", 40), ("c", 3), ("d", 1))
"""Names and numbers of clusters: of one name they are shared."""


def test_a_level_alone_has_the_interval_of_its_record() -> None:
    for metric in ("nll", "accuracy"):
        made = fake_cells(tasks=("last_segment",) if metric == "nll" else ("passkey",))
        for table in build_tables(made):
            if table.metric == metric:
                for each in made:
                    record = table.entries[each.cell.method, each.cell.length]
                    if each.samples:
                        one = group_levels({"": outcomes_of_samples(each.samples, metric)}, table.scored)[""]
                        assert one.value == pytest.approx(record.value, rel=1e-12)
                        estimate = combine_levels([(1.0, one)], table.scored)
                        assert (estimate.low, estimate.high) == pytest.approx((record.low, record.high), rel=1e-9)


def test_one_document_allows_no_interval_and_still_has_values() -> None:
    by = {
        each.name: each
        for each in curve_summaries(*table_of({"none": RISING, "pi": RISING}, n=1))
        if str(each.method) == "pi"
    }
    for name, value in (("effective_length", 512), ("area_beyond", 3.2), ("price", 0.0), ("context_gain", -1.1)):
        assert by[name].value == pytest.approx(value, abs=1e-6)
        assert (by[name].low, by[name].high, by[name].interval) == (None, None, None)
        assert notes_text(by[name].notes).endswith("no interval: too few clusters")


def test_units_of_other_metrics_have_no_summaries() -> None:
    made = fake_cells(tasks=("last_segment",))
    samples = {each.cell.id: each.samples for each in made}
    assert [table.metric for table in build_tables(made) if curve_summaries(table, samples)] == ["nll"]


def test_a_whole_run_says_what_its_curves_say() -> None:
    made = fake_cells()
    samples = samples_by_cell(made)
    by = {
        (table.metric, str(each.method), each.name): each
        for table in build_tables(made)
        for each in curve_summaries(table, samples)
        if table.metric in ("nll", "accuracy")
    }
    assert by["nll", "none", "effective_length"].value == 256
    assert by["nll", "none", "collapse"].value == 512
    assert by["nll", "rerope", "effective_length"].value == 1024  # refused at 2048
    assert "refused at 2048" in notes_text(by["nll", "rerope", "effective_length"].notes)
    assert (by["nll", "ntk", "price"].value, by["nll", "ntk", "price"].p) == (0.0, 1.0)  # the same up to 256
    assert by["accuracy", "none", "position_bias_beyond"].value is not None


def test_a_question_that_differs_is_named_with_its_length() -> None:
    table, samples = table_of({"none": {128: 0.5, 256: 0.5}, "pi": {128: 0.5, 256: 0.5}}, "accuracy", n=8)
    changed = table.entries[parse_label("pi"), 256].cell
    samples[changed] = [replace(each, cluster="another") if each.index == 3 else each for each in samples[changed]]
    price = next(each for each in curve_summaries(table, samples) if (str(each.method), each.name) == ("pi", "price"))
    assert notes_text(price.notes) == "sample 3 at 256 is not the question that none was asked: run both anew"
