"""Hit rate, false-alarm rate, d' and area, against hand calculations and other libraries."""

import math

import numpy as np
import pytest
from scipy.stats import mannwhitneyu, norm

from lexbench.core.record import Record, Sample
from lexbench.report.notes import value_notes
from lexbench.stats.floors import at_floor
from lexbench.stats.records import records_of, sample_count
from lexbench.store.format import FinishedCell
from tests.report.fake_run import cell


def sample(index: int, present: bool, balance: float, nll: list[float] | None = None, **more: object) -> Sample:
    return Sample(
        index=index,
        cluster=str(more.pop("cluster", index)),
        tokens=20,
        scores={"accuracy": balance, "balance": balance},
        chance=0.5,
        statistics={} if nll is None else {"option_nll": np.array(nll, np.float32)},
        facts={"present": present},
        **more,  # type: ignore[arg-type]
    )


def records(samples: list[Sample]) -> dict[str | None, Record]:
    return {record.metric: record for record in records_of(FinishedCell(cell("needle", "none", 256), samples))}


def test_rates_and_d_prime_are_those_computed_by_hand() -> None:
    hits = [sample(index, True, float(index < 8)) for index in range(10)]  # 8 of 10
    alarms = [sample(10 + index, False, float(index >= 3)) for index in range(10)]  # 3 of 10
    found = records(hits + alarms)
    assert list(found) == ["accuracy", "balance", "hit_rate", "false_alarm_rate", "d_prime"]
    assert (found["hit_rate"].value, found["hit_rate"].n) == (0.8, 10)
    assert found["false_alarm_rate"].value == pytest.approx(0.3)
    assert found["balance"].value == pytest.approx((0.8 + 1 - 0.3) / 2)
    # Hautus 1995: half a hit and one question are added
    assert found["d_prime"].value == pytest.approx(norm.ppf(8.5 / 11) - norm.ppf(3.5 / 11))
    error = math.sqrt(  # Gourevitch and Galanter 1967, by the delta method
        sum(p * (1 - p) / 11 / norm.pdf(norm.ppf(p)) ** 2 for p in (8.5 / 11, 3.5 / 11))
    )
    low, high = found["d_prime"].low, found["d_prime"].high
    assert low is not None and high is not None
    assert high - low == pytest.approx(2 * 1.96 * error, rel=0.15), "asymmetric, and about as wide"


def test_a_bias_is_no_skill() -> None:
    always = records([sample(index, index % 2 == 0, float(index % 2 == 0)) for index in range(20)])
    assert (always["hit_rate"].value, always["false_alarm_rate"].value, always["d_prime"].value) == (1, 1, 0)
    assert at_floor(always["accuracy"]) and at_floor(always["balance"]) and at_floor(always["d_prime"])
    assert not at_floor(always["false_alarm_rate"]), "it has no floor: silence makes it 0"


def test_the_area_is_that_of_mann_and_whitney_and_needs_no_threshold() -> None:
    rng = np.random.default_rng(0)
    scores = {True: rng.normal(1, 1, 30).round(1), False: rng.normal(0, 1, 30).round(1)}  # rounded: some are tied
    samples: list[Sample] = []
    for present, values in scores.items():
        # a bias of 5 nats to False: by the threshold all are misses
        samples += [sample(len(samples) + i, present, float(not present), [5 - v, 0]) for i, v in enumerate(values)]
    found = records(samples)
    area = mannwhitneyu(scores[True], scores[False]).statistic / 900
    assert found["area"].value == pytest.approx(area, abs=1e-6)
    assert found["d_prime"].value == pytest.approx(0, abs=1e-9)
    low, high = found["area"].low, found["area"].high
    assert low is not None and high is not None and 0.5 < low < area < high < 1


def test_a_failure_is_a_miss_or_a_false_alarm() -> None:
    samples = [sample(i, i % 2 == 0, 1.0, [1, 2] if i % 2 == 0 else [2, 1]) for i in range(8)]
    failed = [sample(8 + i, i == 0, 0.0, [math.nan, 1], failed="no number") for i in range(2)]
    found = records(samples + failed)
    assert found["hit_rate"].value == 4 / 5 and found["false_alarm_rate"].value == pytest.approx(1 / 5)
    assert found["area"].value == 16 / 25  # 4 of 5 on either side win
    for metric, count in (("d_prime", 10), ("area", 10), ("hit_rate", 5)):
        assert sample_count(found[metric]) == count, "a failure counts"
        assert not [note for note in value_notes(found[metric], 10) if "asked" in note]


def test_several_questions_behind_a_text_leave_d_prime_without_an_interval() -> None:
    found = records([sample(i, i % 2 == 0, float(i > 2), cluster=i // 4) for i in range(12)])
    assert found["d_prime"].low is None and found["hit_rate"].low is not None
