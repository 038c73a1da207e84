"""Planted runs: the headline says what is true of each."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lexbench.core.method_key import parse_label
from lexbench.core.record import Sample
from lexbench.report.formats import grid_markdown
from lexbench.report.headline import grid_of_headline, headline_sentence
from lexbench.report.notes import notes_text
from lexbench.stats.headline import Headline, build_headlines
from lexbench.stats.summaries import SummaryValue, curve_summaries
from lexbench.stats.tables import Table, build_tables
from lexbench.store.format import FinishedCell
from tests.report.fake_run import cell
from tools.keep_samples import read_cells

FLOORS = {"uniform": 6.24, "unigram": 5.8, "bigram": 5.0}
N = 12


def text(method: str, length: int, level: float, floors: Mapping[str, float] = FLOORS) -> FinishedCell:
    """Documents of 4 targets; their levels differ, their differences between cells do not."""
    samples = [
        Sample(
            index=place,
            cluster=f"document {place}",
            tokens=length,
            nll=np.full(4, level + 0.02 * (place - (N - 1) / 2), np.float32),
            floors=floors,
            facts={"document": str(place), "first_target": 100, "end": 104},
        )
        for place in range(N)
    ]
    return FinishedCell(cell("last_segment", method, length, n=N), samples)


def needle(method: str, length: int, right: int, task: str = "passkey", chance: float = 0.25) -> FinishedCell:
    samples = [
        Sample(
            index=place,
            cluster=str(place),
            tokens=length,
            scores={"accuracy": float(place < right)},
            chance=chance,
            depth=place / N,
        )
        for place in range(N)
    ]
    return FinishedCell(cell(task, method, length, n=N), samples)


def read(*cells: FinishedCell) -> tuple[list[Table], dict[str, Sequence[Sample]]]:
    return build_tables(cells), {each.cell.id: each.samples for each in cells}


def tasks_of(found: Headline) -> list[str]:
    return [each.cell.task for each in found.needles]


def only(*cells: FinishedCell) -> Headline:
    [found] = build_headlines(*read(*cells))
    return found


def test_a_forgetting_window_keeps_its_level_and_gains_nothing_where_a_method_that_reads_gains() -> None:
    base = [text("none", 256, 3.5), text("none", 2048, 4.5)]
    window = [text("sliding_window", 256, 3.5), text("sliding_window", 2048, 3.5)]
    reader = [text("rerope", 256, 3.6), text("rerope", 2048, 3.4)]
    found = only(*base, *window, *reader)
    gains = {str(row.method): None if row.gain is None else row.gain.value for row in found.rows}
    assert gains == pytest.approx({"rerope": 0.1, "sliding_window": 0.0, "none": -1.0}, abs=1e-6)
    assert [str(row.method) for row in found.rows if row.gains] == ["rerope"]  # from none at 256, not from its own 3.6
    assert headline_sentence(found) == (
        "rerope gains most from context beyond 256 tokens: +0.100 nats per token [+0.100, +0.100] at 2,048 "
        "over the unmodified model at 256."
    )
    alone = only(*base, *window)
    assert headline_sentence(alone) == (
        "No method predicts text better from 2,048 tokens than the unmodified model does from its own 256."
    )
    assert "**" not in grid_markdown(grid_of_headline(alone))  # nothing is best


@pytest.mark.parametrize("method", [{"factor": None}, {"parts": [{"name": "log_n"}, {"factor": None}]}])
def test_the_price_of_a_factor_that_follows_the_length_is_not_told_without_its_cell(method: dict[str, object]) -> None:
    """Inside the trained length it is none, by construction: 0 would say that it costs nothing."""

    def following(each: FinishedCell) -> FinishedCell:
        return FinishedCell(replace(each.cell, identity={**each.cell.identity, "method": method}), each.samples)

    none = [text("none", 256, 3.5), text("none", 512, 3.6)]
    ntk = [following(text("ntk", 256, 3.5)), following(text("ntk", 512, 3.4))]
    deployed = text("ntk(factor=2.0)", 256, 3.75)
    prices = {str(row.method): row.price for row in only(*none, *ntk).rows}
    assert prices["ntk"] is not None and prices["ntk"].value is None
    assert notes_text(prices["ntk"].notes) == "not measured: run it with price=true"
    priced = {str(row.method): row.price for row in only(*none, *ntk, deployed).rows}
    assert priced["ntk"] is not None and priced["ntk"].value == pytest.approx(0.25, abs=1e-6)


def test_the_unmodified_model_alone_is_told_of_itself() -> None:
    found = only(text("none", 256, 3.5), text("none", 2048, 4.5))
    assert (
        headline_sentence(found) == "The unmodified model does not predict text better from 2,048 tokens than from 256."
    )


@pytest.mark.parametrize(("half", "idle"), [(3.5, True), (3.4, True), (3.7, False)], ids=["equal", "worse", "gains"])
def test_without_a_control_that_gains_the_column_can_only_show_harm_and_claims_nothing(half: float, idle: bool) -> None:
    """rerope is 0.1 nats better at 2,048 than none at 256 on each of 12 documents: a claim where none gains, too."""
    base = [text("none", at, level) for at, level in ((128, half), (256, 3.5), (2048, 4.5))]
    found = only(*base, text("rerope", 256, 3.5), text("rerope", 2048, 3.4))
    assert found.half == 128 and found.control is not None
    assert found.control.value == pytest.approx(half - 3.5, abs=1e-6)
    assert found.idle == idle
    assert [str(row.method) for row in found.rows if row.gains] == ([] if idle else ["rerope"])
    page = grid_markdown(grid_of_headline(found))
    assert ("the column can only show harm" in page) == idle
    assert ("Nor does this model gain from 128 to 256" in headline_sentence(found)) == idle
    if not idle:
        assert (
            "(From 128 to 256 the unmodified model gains +0.200 nats per token [+0.200, +0.200].)"
            in headline_sentence(found)
        )


def test_a_table_without_a_control_says_so() -> None:
    found = only(text("none", 256, 3.5), text("none", 2048, 4.5), text("rerope", 2048, 3.4))
    assert found.control is None and not found.idle and [row.gains for row in found.rows] == [True, False]
    assert "No control: the unmodified model was not measured on the same targets at 128 tokens." in grid_markdown(
        grid_of_headline(found)
    )


def test_a_method_that_has_the_best_ones_loss_and_finds_less_stands_beside_it() -> None:
    """All losses are equal; of 12 needles rerope finds 12, yarn 1, pi 9 (3 of 12 differ: p = 2 / 2^3, not told)."""
    texts = [text(name, at, 3.5) for name in ("none", "rerope", "yarn", "pi") for at in (256, 2048)]
    cells = [needle("none", 512, N), needle("none", 2048, 0, chance=0.0)]
    cells += [needle(name, 2048, right, chance=0.0) for name, right in (("rerope", 12), ("yarn", 1), ("pi", 9))]
    assert headline_sentence(only(*texts, *cells)).endswith(
        "Most answers are right under rerope: 12 of 12 at 2,048 tokens (passkey); under the unmodified model 0 of 12, "
        "at a loss that is not told apart (paired difference 0.000 [0.000, 0.000] nats per token)."
    )
    worse = [text(name, at, 3.5 + (name == "none")) for name in ("none", "rerope", "yarn", "pi") for at in (256, 2048)]
    assert "under yarn 1 of 12, at a loss that is not told apart" in headline_sentence(only(*worse, *cells))


@pytest.mark.slow
def test_a_loss_whose_interval_leaves_out_0_is_told_and_of_several_the_nearest_is_named() -> None:
    """lexlet: entropy_abf and jet_long are right in 0 of 32. Their loss minus rerope's: +0.081 [+0.002, +0.157], where
    p is 0.065, and +0.006 [-0.072, +0.100]."""
    cells = read_cells(Path(__file__).parents[2] / "results/reference/samples/lexlet.parquet")
    some = [
        each for each in cells if str(each.cell.method) in {"none", "rerope", "entropy_abf", "jet_long", "longrope2"}
    ]
    [found] = build_headlines(build_tables(some), {each.cell.id: each.samples for each in some})
    assert str(found.blind) == "jet_long" and found.blind_gap is not None and found.blind_gap.difference is not None
    means = {
        name: sum(float(each.nll.sum()) for each in cell.samples if each.nll is not None) / (32 * 64)
        for cell in some
        if cell.cell.task == "last_segment" and cell.cell.length == 2048
        for name in [str(cell.cell.method)]
    }
    assert found.blind_gap.difference == pytest.approx(means["jet_long"] - means["rerope"], abs=1e-4)
    assert abs(means["entropy_abf"] - means["rerope"]) > 0.08


def test_a_gain_of_few_documents_is_not_claimed() -> None:
    def few(each: FinishedCell) -> FinishedCell:
        return FinishedCell(each.cell, each.samples[:5])  # no p below 2^-4

    cells = [text("none", 256, 3.5), text("none", 512, 3.6), text("rerope", 512, 3.0)]
    assert not any(row.gains for row in only(*map(few, cells)).rows)
    assert [str(row.method) for row in only(*cells).rows if row.gains] == ["rerope"]


def test_a_text_that_the_model_does_not_speak_is_said_and_no_gain_is_claimed() -> None:
    cells = [text("none", 256, 6.5), text("none", 512, 7.3), text("rerope", 256, 6.5), text("rerope", 512, 6.0)]
    found = only(*cells)
    assert headline_sentence(found) == (
        "lexlet does not speak this text: none has 6.500 nats per token at 256 tokens, within its trained length, "
        "where counting tokens has 5.800. No difference between methods tells anything here."
    )
    assert not any(row.gains for row in found.rows)
    assert "**" not in grid_markdown(grid_of_headline(found))


def test_equal_means_of_several_tasks_share_the_highest_retrieval() -> None:
    """6, 6 and 9 of 12 are as many as 7, 7 and 7, though thirds of shares add up to another last digit."""
    right = {"ntk": (6, 6, 9), "pi": (7, 7, 7), "none": (5, 5, 5)}
    cells = [text(method, at, 3.5) for method in right for at in (256, 512)]
    cells += [
        needle(method, at, hits, task)
        for method, every in right.items()
        for task, hits in zip(("passkey", "passkey_2", "passkey_3"), every, strict=True)
        for at in (256, 512)
    ]
    assert "Most answers are right under pi, ntk: 0.58 [" in headline_sentence(only(*cells))


def test_retrieval_of_a_task_with_few_and_many_samples_is_that_of_the_many() -> None:
    many = [needle("none", at, right) for at, right in ((256, 12), (512, 9))]
    few = [FinishedCell(cell("passkey", "none", each.cell.length, n=4), each.samples[:4]) for each in many]
    [found] = build_headlines(*read(text("none", 256, 3.5), text("none", 512, 3.6), *few, *many))
    assert tasks_of(found) == ["passkey"]
    assert [row.retrieval.value for row in found.rows if row.retrieval] == [0.75]
    assert "Retrieval: mean of passkey." in grid_of_headline(found).remarks


def test_of_a_few_and_many_documents_the_many_come_first_and_retrieval_says_its_samples() -> None:
    many = [text("none", at, 3.5) for at in (256, 512)]
    few = [FinishedCell(replace(each.cell, n=4), each.samples[:4]) for each in many]
    needles = [needle("none", at, 9) for at in (256, 512)]
    found = build_headlines(*read(*few, *many, *needles))
    assert [each.table.cell.n for each in found] == [N, 4]
    said = [[remark for remark in grid_of_headline(each).remarks if remark.startswith("Retrieval")] for each in found]
    assert said == [["Retrieval: mean of passkey."], ["Retrieval: mean of passkey (12 samples a cell)."]]


def test_few_documents_do_not_show_that_a_model_speaks_and_no_gain_is_claimed() -> None:
    """Two levels of 1.0 and 5.7 have a mean below 5.8; Student's interval of one degree of freedom ends far above."""

    def apart(method: str, length: int, by: float) -> FinishedCell:
        made = text(method, length, 0.0)
        levels = zip(made.samples[:2], (1.0, 5.7), strict=True)
        return FinishedCell(
            made.cell, [replace(each, nll=np.full(4, level - by, np.float32)) for each, level in levels]
        )

    found = only(apart("none", 256, 0.0), apart("none", 512, 0.1), apart("rerope", 512, 0.2))
    assert headline_sentence(found).startswith(
        "lexlet may not speak this text, 2 documents cannot tell: none has 3.350 ["
    )
    assert headline_sentence(found).endswith(
        "] nats per token at 256 tokens, within its trained length, "
        "where counting tokens has 5.800. No gain is claimed."
    )
    assert not any(row.gains for row in found.rows)


def test_a_gain_to_a_level_at_its_floor_is_not_claimed() -> None:
    floors = {"uniform": 6.24, "unigram": 5.8, "bigram": 3.3}
    cells = [
        text(name, at, level, floors) for name, at, level in (("none", 256, 3.6), ("none", 512, 4.0), ("pi", 512, 3.3))
    ]
    assert not any(row.gains for row in only(*cells).rows)


@pytest.mark.parametrize(
    ("right", "chance", "why"),
    [(3, 0.25, "at chance (0.25)"), (0, 0.0, "at chance (0.00)"), (N, 0.25, "at the ceiling (1.00)")],
)
def test_retrieval_that_is_alike_everywhere_has_no_best(right: int, chance: float, why: str) -> None:
    texts = [text(name, at, 3.5) for name in ("none", "ntk") for at in (256, 2048)]
    cells = [needle(name, 2048, right, chance=chance) for name in ("none", "ntk")]
    found = only(*texts, *cells)
    assert headline_sentence(found).endswith(f"Retrieval at 2,048 tokens (passkey) cannot be told: every row is {why}.")
    assert "**" not in grid_markdown(grid_of_headline(found))


def test_retrieval_is_the_mean_of_the_tasks_with_a_needle_at_the_longest_length() -> None:
    texts = [text(name, at, 3.5) for name in ("none", "ntk") for at in (256, 2048)]
    cells = [needle(name, 2048, right) for name, right in (("none", 0), ("ntk", 12))]
    cells += [needle(name, 2048, right, "passkey_2") for name, right in (("none", 3), ("ntk", 9))]
    flat = [
        FinishedCell(each.cell, [replace(s, depth=None) for s in each.samples])
        for each in [needle("none", 2048, 6, "passkey_3")]
    ]
    found = only(*texts, *cells, *flat)
    means = {str(row.method): row.retrieval.value for row in found.rows if row.retrieval}
    assert means == pytest.approx({"ntk": (12 + 9) / 24, "none": 3 / 24})
    assert tasks_of(found) == ["passkey", "passkey_2"]
    assert headline_sentence(found).startswith(
        "No method predicts text better from 2,048 tokens than the unmodified model does from its own 256. "
        "Most answers are right under ntk: 0.88 ["
    )
    [low, high] = re.findall(r"\d\.\d\d", headline_sentence(found).rsplit("[", 1)[1])
    ntk = next(row.retrieval for row in found.rows if str(row.method) == "ntk")
    assert ntk and ntk.low and ntk.high and (float(low), float(high)) == (round(ntk.low, 2), round(ntk.high, 2))


def test_a_task_that_the_model_cannot_do_at_a_short_length_takes_no_part_in_retrieval() -> None:
    texts = [text(name, at, 3.5) for name in ("none", "ntk") for at in (256, 2048)]
    cells = [needle(name, at, 3, "passkey_2") for name in ("none", "ntk") for at in (512, 2048)]
    cells += [needle("none", 512, N), needle("none", 2048, 0), needle("ntk", 2048, N)]
    found = only(*texts, *cells)
    assert (tasks_of(found), found.unable) == (["passkey"], ["passkey_2"])
    assert {str(row.method): row.retrieval.value for row in found.rows if row.retrieval} == {"ntk": 1.0, "none": 0.0}
    assert "Left out of retrieval: passkey_2, at chance for every method at the shortest length" in grid_markdown(
        grid_of_headline(found)
    )


def test_a_task_at_chance_at_its_only_length_takes_no_part_where_another_tells_something() -> None:
    texts = [text(name, at, 3.5) for name in ("none", "ntk") for at in (256, 2048)]
    cells = [needle(name, 2048, 3, "passkey_2") for name in ("none", "ntk")]
    cells += [needle("none", 512, N), needle("none", 2048, 0), needle("ntk", 2048, N)]
    found = only(*texts, *cells)
    assert (tasks_of(found), found.unable) == (["passkey"], ["passkey_2"])
    assert "Most answers are right under ntk: 12 of 12 at 2,048 tokens (passkey)" in headline_sentence(found)


def test_one_length_too_long_is_refused_and_the_others_stand() -> None:
    texts = [text("none", 256, 3.5), text("none", 512, 3.6), text("pi", 256, 3.5), text("pi", 512, 3.0)]
    refused = [
        FinishedCell(cell("last_segment", name, 4096, n=N), [], "no document is that long") for name in ("none", "pi")
    ]
    found = only(*texts, *refused)
    assert found.longest == 512 and str(found.rows[0].method) == "pi" and found.rows[0].gains
    assert "No value at 4096: no document is that long." in grid_markdown(grid_of_headline(found))


def test_without_a_length_beyond_or_within_the_trained_one_there_is_no_headline() -> None:
    assert build_headlines(*read(text("none", 128, 3.5), text("none", 256, 3.4))) == []
    assert build_headlines(*read(text("none", 512, 3.5), text("none", 1024, 3.4))) == []


def price(name: str, *cells: FinishedCell) -> dict[str, SummaryValue]:
    [table], samples = read(*cells)[0][:1], read(*cells)[1]
    return {str(each.method): each for each in curve_summaries(table, samples) if each.name == name}


def test_the_price_is_that_of_the_deployed_factor_and_the_local_one_has_its_own_name() -> None:
    base = [text("none", at, level) for at, level in ((128, 3.6), (256, 3.5), (2048, 4.9))]
    local = [text("ntk", at, level) for at, level in ((128, 3.6), (256, 3.5), (2048, 4.6))]
    cells = [*base, *local, text("ntk(factor=8.0)", 256, 3.58)]
    paid, free = price("price", *cells), price("price_local", *cells)
    assert paid["ntk"].value == pytest.approx(0.08, abs=1e-6)
    assert notes_text(paid["ntk"].notes) == "factor 8 at 256; 12 pairs"
    assert (free["ntk"].value, notes_text(free["ntk"].notes)) == (0.0, "2 of 2 lengths: 128 to 256; 24 pairs")
    table = next(each for each in build_tables(cells) if each.metric == "nll")
    fixed = parse_label("ntk(factor=8.0)")
    assert list(map(str, table.methods)) == ["none", "ntk"]
    assert table.lengths == [128, 256, 2048]  # no row of one length in any mean
    assert {at: record.method for at, record in table.prices.items()} == {(fixed, 256): fixed}
    without = price("price", *base, *local)["ntk"]
    assert (without.value, notes_text(without.notes)) == (0.0, "2 of 2 lengths: 128 to 256; 24 pairs")


def test_the_price_of_a_method_without_a_factor_is_that_of_its_longest_length() -> None:
    base = [text("none", at, level) for at, level in ((256, 3.5), (2048, 4.9))]
    follows = [text("self_extend", 256, 3.5), text("self_extend", 2048, 3.6), text("self_extend(at=2048)", 256, 3.62)]
    paid = price("price", *base, *follows)["self_extend"]
    assert paid.value == pytest.approx(0.12, abs=1e-6) and notes_text(paid.notes) == "set for 2048 at 256; 12 pairs"
    [found] = build_headlines(*read(*base, *follows))
    assert [str(row.method) for row in found.rows] == ["self_extend", "none"]
    assert "(1) set for 2048 at 256" in grid_markdown(grid_of_headline(found))


def test_a_fixed_factor_that_was_measured_beyond_the_trained_length_stays_a_row() -> None:
    cells = [text(name, at, 3.5) for name in ("none", "ntk", "ntk(factor=8.0)") for at in (256, 2048)]
    table = next(each for each in build_tables(cells) if each.metric == "nll")
    assert list(map(str, table.methods)) == ["none", "ntk", "ntk(factor=8.0)"] and not table.prices
    assert table.deployed == {parse_label("ntk"): parse_label("ntk(factor=8.0)")}


def test_without_the_baseline_a_gain_is_over_the_method_itself_and_the_table_says_so() -> None:
    """3.6 at 256 and 3.4 at 2048: a gain of 0.2 over itself."""
    found = only(text("yarn", 256, 3.6), text("yarn", 2048, 3.4), text("pi", 256, 3.6), text("pi", 2048, 3.7))
    assert "+0.200 nats per token [+0.200, +0.200] at 2,048 over its own level at 256" in headline_sentence(found)
    assert grid_of_headline(found).remarks[0].startswith("Gain: loss of the method itself at the first length minus ")
    base = only(text("none", 256, 3.5), text("none", 2048, 4.5), text("yarn", 256, 3.6), text("yarn", 2048, 3.4))
    assert grid_of_headline(base).remarks[0].startswith("Gain: loss of the unmodified model at the first length minus ")
