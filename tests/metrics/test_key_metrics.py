"""Scores of keys, by hand-made outputs."""

from typing import Any

import numpy as np
import pytest

from lexbench import ConfigError, Metric, Sample
from lexbench.metrics import KEY_METRICS, chosen, declare_metrics, forced, in_place, metric_named, reached
from lexbench.metrics.guess import mismatched_score
from lexbench.stats.metrics import better_direction, display_unit, is_score


def sample(index: int, cluster: str, output: str | None, expected: Any, **more: Any) -> Sample:
    facts = {"expected": expected, **more.pop("facts", {})}
    return Sample(index=index, cluster=cluster, tokens=9, output=output, facts=facts, **more)


@pytest.mark.parametrize(
    ("text", "keys", "share"),
    [
        (" 40213", ["40213"], 1.0),
        (" 40231.", ["40213"], 3 / 5),  # 4, 0 and 2 stand where they should
        (" 402", ["40213"], 3 / 5),
        (' "40213131"', ["40213"], 1.0),  # what follows the key changes nothing
        (" 140213", ["40213"], 0 / 5),  # all moved by one place: 1-4, 4-0, 0-2, 2-1, 1-3
        (" the key is 40213", ["40213"], 1.0),
        (" no idea", ["40213"], 0.0),
        ("", ["40213"], 0.0),
        (" brave-otter", ["brave-otter"], 1.0),
        (" Brave-otten!", ["brave-otter"], 10 / 11),
        (" 22222, 11111", ["11111", "22222"], 1.0),  # in any order, as where a key is copied whole
        (" 22222, 11311", ["11111", "22222"], 9 / 10),
        (" VAR QWXZB and VAR PLMTA", ["QWXZB", "PLMTR"], 9 / 10),
    ],
)
def test_characters_in_place(text: str, keys: list[str], share: float) -> None:
    assert in_place.share_in_place(text, keys) == pytest.approx(share)


def test_a_key_of_the_text_is_reached_wherever_it_stands() -> None:
    known = sample(0, "a", " it is 71111 or so", "40213", facts={"keys_in_text": ["40213", "71111"]})
    assert reached.METRIC.of and reached.METRIC.of(known, [known]) == 1.0
    old, other = sample(0, "a", " 71111", "40213"), sample(1, "a", " 5", "71111")
    assert reached.METRIC.of(old, [old, other]) is None  # the text may hold keys that nobody asks for
    assert reached.WHERE_ALL_ARE_ASKED.of and reached.WHERE_ALL_ARE_ASKED.of(old, [old, other]) == 1.0
    assert reached.WHERE_ALL_ARE_ASKED.of(other, [old, other]) == 0.0


def options(nll: list[float], right: int) -> Sample:
    stored = {"option_nll": np.array(nll, np.float32)}
    return sample(0, "a", " 1", "1", statistics=stored, facts={"expected_option": right})


@pytest.mark.parametrize(
    ("nll", "right", "score"),
    [([3, 1, 2], 1, 1.0), ([3, 1, 2], 0, 0.0), ([1, 1, 2], 1, 0.5), ([1, 1, 1], 2, 1 / 3), ([np.nan, 1, 2], 1, 0.0)],
)
def test_the_likeliest_option_is_chosen_and_ties_share(nll: list[float], right: int, score: float) -> None:
    assert chosen.METRIC.of and chosen.METRIC.of(options(nll, right), []) == pytest.approx(score)
    assert chosen.METRIC.guess and chosen.METRIC.guess([options(nll, right)]) == pytest.approx(1 / 3)


def test_a_blank_is_no_token_of_the_key() -> None:
    facts = {"taught": [[9, 0], [4, 1], [5, 1], [6, 1], [7, 1]], "taught_ranks": [3, 0, 0, 1, 0]}
    taught = sample(0, "a", " 1", "4567", facts=facts)
    assert forced.METRIC.of and forced.METRIC.of(taught, [taught]) == 3 / 4
    other = sample(1, "b", " 1", "4599", facts={**facts, "taught": [[9, 0], [4, 1], [5, 1], [8, 1], [8, 1]]})
    assert forced.METRIC.guess and forced.METRIC.guess([taught, other]) == 1 / 2  # 4 and 5 of four


def test_a_guess_is_what_answers_score_by_the_keys_of_other_texts() -> None:
    samples = [sample(0, "a", " 12", "14"), sample(1, "b", " 34", "32"), sample(2, "b", " 32", "32")]
    # 12 by 32: 1/2, twice; 34 and 32 by 14: 1/2 and 0. Samples of one text are not paired.
    assert mismatched_score(samples, in_place.judge) == pytest.approx((1 / 2 + 1 / 2 + 1 / 2 + 0) / 4)
    assert in_place.METRIC.guess and in_place.METRIC.guess(samples) == pytest.approx(3 / 8)
    assert mismatched_score(samples[1:], in_place.judge) is None


def test_what_a_sample_does_not_tell_is_not_measured() -> None:
    bare = sample(0, "a", None, ["none"])
    assert [each.of(bare, [bare]) for each in KEY_METRICS if each.of] == [None] * 4


def test_a_task_states_a_metric_of_its_own() -> None:
    regret = Metric("regret_of_this_test", unit="nats", better="lower")
    assert is_score(regret.name) and display_unit(regret.name) == "points"  # what nobody has declared is a share
    declare_metrics([regret, regret])
    assert metric_named(regret.name) is regret and regret.words == "regret of this test (nats)"
    assert (is_score(regret.name), better_direction(regret.name), display_unit(regret.name)) == (False, -1, "nats")
    with pytest.raises(ConfigError, match="declared twice"):
        declare_metrics([Metric("regret_of_this_test")])
    share = Metric("error_of_this_test", better="lower")
    declare_metrics([share])
    assert (is_score(share.name), better_direction(share.name)) == (False, -1)


@pytest.mark.parametrize("wrong", [{"name": "Two words"}, {"name": "a", "better": "down"}])
def test_a_metric_needs_a_name_and_a_side(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        Metric(**wrong)
