"""Cells with outcomes in place of samples."""

from dataclasses import replace

from lexbench.stats.cell_outcomes import outcomes_of_cell
from tests.report.outcomes import answers, right


def test_a_cell_takes_expected_metrics_only_where_every_sample_failed() -> None:
    """A failed sample has no score by itself: the other side of a comparison names what it would have."""
    answered = answers("yarn", right(2, 3))
    assert list(outcomes_of_cell(answered, ["exact"]).outcomes) == ["accuracy"]
    failed = replace(answered, samples=[replace(each, scores={}, failed="too long") for each in answered.samples])
    assert outcomes_of_cell(failed).outcomes == {}
    found = outcomes_of_cell(failed, ["exact"]).outcomes
    assert [(each.amount, each.failed) for each in found["exact"]] == [(0.0, True)] * 3
    one = replace(answered, samples=[*failed.samples[:1], *answered.samples[1:]])
    assert list(outcomes_of_cell(one, ["exact"]).outcomes) == ["accuracy"]
