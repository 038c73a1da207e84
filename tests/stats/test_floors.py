"""Values at their floor or ceiling: by hand, and what tables, comparisons and pages say of them."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from scipy.stats import binomtest

from lexbench.core.method_key import MethodKey
from lexbench.core.record import Record
from lexbench.report.check.check import check_runs
from lexbench.report.check.comparison import comparison_markdown
from lexbench.report.check.formats import check_command
from lexbench.report.check.power import plan_claims, power_table
from lexbench.report.check.text import terminal_text
from lexbench.report.grid import best_displayed_value
from lexbench.report.leaderboard.leaderboard import leaderboard_text
from lexbench.report.notes import note_text
from lexbench.report.verdicts import verdict_text
from lexbench.report.versus import write_versus
from lexbench.stats.compare import compare_runs
from lexbench.stats.differences import paired_differences
from lexbench.stats.floors import at_ceiling, at_floor, language_not_learned
from lexbench.stats.records import records_of
from lexbench.stats.tables import build_tables
from lexbench.store.format import FinishedCell
from tests.report.outcomes import answers, folder, right, texts

NGRAMS = {"uniform": 6.24, "unigram": 5.8, "bigram": 5.0}


def guessed(method: str, count: int, chance: float | None = 0.25, of: int = 32, length: int = 512) -> FinishedCell:
    made = answers(method, right(count, of), length)
    return FinishedCell(made.cell, [replace(each, chance=chance) for each in made.samples])


def spoken(method: str, loss: float, length: int, floors: Mapping[str, float] = NGRAMS) -> FinishedCell:
    made = texts(method, [loss - 0.02, loss + 0.02] * 4, length)
    return FinishedCell(made.cell, [replace(each, floors=floors) for each in made.samples])


def record(each: FinishedCell) -> Record:
    return next(found for found in records_of(each) if found.metric in ("nll", "accuracy"))


@pytest.mark.parametrize(("count", "at"), [(0, True), (8, True), (12, True), (13, False), (32, False)])
def test_a_score_is_at_chance_where_its_interval_reaches_it(count: int, at: bool) -> None:
    low = binomtest(count, 32).proportion_ci(method="wilson").low  # 0.2287 of 12, 0.2552 of 13
    assert bool(low <= 0.25) is at
    assert at_floor(record(guessed("ntk", count))) is at


def test_a_score_of_unknown_chance_has_the_floor_0_and_all_have_the_ceiling_1() -> None:
    assert at_floor(record(guessed("ntk", 0, None))) and not at_floor(record(guessed("ntk", 1, None)))
    assert at_ceiling(record(guessed("ntk", 32))) and not at_ceiling(record(guessed("ntk", 31)))


def test_a_likelihood_is_at_its_floor_where_the_upper_end_reaches_the_best_count() -> None:
    assert not at_floor(record(spoken("ntk", 4.9, 512)))
    assert at_floor(record(spoken("ntk", 5.0, 512))) and at_floor(record(spoken("ntk", 9.0, 512)))
    assert not at_floor(record(spoken("ntk", 9.0, 512, {})))  # of an old folder no floor is known


def test_nothing_at_its_floor_is_the_best_of_a_column() -> None:
    low, more = guessed("none", 4), guessed("ntk", 9)
    assert best_displayed_value([record(low), record(more)]) is None
    assert best_displayed_value([record(low), record(guessed("ntk", 20))]) == "0.62"


@pytest.mark.parametrize(
    ("count", "other", "chance", "why"),
    [
        (8, 8, 0.25, "both at chance (0.25)"),
        (2, 11, 0.25, "the intervals of both reach chance (0.25)"),  # p < 0.05, and yet nothing but guessing
        (0, 0, 0.0, "both at chance (0.00)"),
        (0, 0, None, "both at 0"),
        (32, 32, 0.25, "both at the ceiling (1.00)"),
    ],
)
def test_two_sides_at_one_limit_cannot_be_told(
    count: int, other: int, chance: float | None, why: str, tmp_path: Path
) -> None:
    one, two = guessed("none", count, chance), guessed("yarn", other, chance)
    found = compare_runs(folder(tmp_path / "a", one), folder(tmp_path / "b", two))
    assert [verdict_text(task) for task in found.tasks] == [f"cannot be told: {why}"]
    assert f"**Cannot be told: {why}.**" in comparison_markdown(found)
    table = next(iter(build_tables([one, two])))
    beside = paired_differences(table, {each.cell.id: each.samples for each in (one, two)})
    assert beside is not None
    [entry] = beside.entries.values()
    assert (entry.limit and note_text(entry.limit), entry.significant) == (why, False)


def test_two_likelihoods_beyond_their_floor_cannot_be_told_whatever_p_says(tmp_path: Path) -> None:
    one, two = spoken("none", 7.3, 512), spoken("yarn", 6.5, 512)
    found = compare_runs(folder(tmp_path / "a", one), folder(tmp_path / "b", two))
    [entry] = found.tasks[0].entries
    assert entry.found is not None and entry.found.p_holm == 2**-7 and not entry.significant
    assert verdict_text(found.tasks[0]) == "cannot be told: both are worse than the bigram floor (5.000)"


def test_a_real_difference_between_a_floor_and_a_value_above_it_stays_one(tmp_path: Path) -> None:
    found = compare_runs(folder(tmp_path / "a", guessed("none", 8)), folder(tmp_path / "b", guessed("yarn", 30)))
    assert verdict_text(found.tasks[0]) == "B is better at every length"


def test_the_leaderboard_names_no_best_of_methods_at_chance(tmp_path: Path) -> None:
    page = leaderboard_text(folder(tmp_path, guessed("none", 6), guessed("ntk", 8)))
    assert "At 512 (2x) no row can be told from another: every row is at chance (0.25)." in page
    assert "| **" not in page


@pytest.mark.slow
def test_a_text_in_another_language_is_said_wherever_something_is_compared_on_it(tmp_path: Path) -> None:
    """Beyond the trained length B has 4.9 nats, below all that counting has: on a text that neither side speaks."""
    none, other = (
        [spoken(name, 6.5, 256), spoken(name, beyond, 512)] for name, beyond in (("none", 7.3), ("dca", 4.9))
    )
    said = "lexlet does not speak this text: none has 6.500 nats per token at 256 tokens"
    [task] = compare_runs(folder(tmp_path / "a", *none), folder(tmp_path / "b", *other)).tasks
    assert verdict_text(task).startswith(f"cannot be told: {said}")
    assert not any(entry.significant for entry in task.entries)
    spoken_of = [spoken("none", 4.5, 256), spoken("none", 7.3, 512)]
    [task] = compare_runs(folder(tmp_path / "c", *spoken_of), folder(tmp_path / "d", *other)).tasks
    assert "B is" in verdict_text(task)  # one side speaks it
    both = folder(tmp_path / "e", *none, *other)
    written = write_versus(
        both[0], {each.cell.id for each in (*none, *other)}, MethodKey.of_method("dca"), tmp_path / "versus"
    )
    [sentence] = [line for line in written.text.splitlines() if line.startswith("last_segment at ")]
    assert f". {said}" in sentence and "better than" not in sentence
    table = written.files[-1].read_text().split("\\begin{tabular}")[1]
    assert "*" not in written.text.split("last_segment: lead of")[1].split("Brackets")[0] and "*" not in table


@pytest.mark.slow
def test_a_gate_on_a_text_that_the_model_does_not_speak_says_so_and_certifies_nothing_of_it(tmp_path: Path) -> None:
    def cells(loss: float) -> list[FinishedCell]:
        made = texts("none", [loss + place / 100 for place in range(20)], 256)
        return [FinishedCell(made.cell, [replace(each, floors=NGRAMS) for each in made.samples])]

    for name, loss, told in (("unspoken", 6.5, True), ("spoken", 4.5, False)):
        run, file = folder(tmp_path / name, *cells(loss)), tmp_path / f"{name}.json"
        check_command(run, file, update=True)
        said = "lexlet does not speak this text: none has 6.595 nats per token at 256 tokens"
        held, certified = check_runs(run, file), check_runs(run, file, certify=True)
        assert held.code == 0 and (said in terminal_text(held)) is told
        assert (certified.word == "NOT PROVEN") is told
    assert said in power_table(plan_claims([tmp_path / "unspoken"], tmp_path / "unspoken.json", []))


def test_a_text_in_another_language_is_said_by_the_leaderboard(tmp_path: Path) -> None:
    cells = [spoken(name, loss, at) for name in ("none", "pi") for at, loss in ((256, 6.5), (512, 7.3))]
    scale = "counting word pairs scores 5.000, counting words 5.800, guessing 6.240."
    assert f"For scale, on the same targets: {scale}" in leaderboard_text(folder(tmp_path, *cells))
    assert (
        language_not_learned([record(spoken("none", 5.4, 256))]) is None
    )  # below counting tokens, though above counting pairs
