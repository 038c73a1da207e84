"""Two sides on the same questions: what is paired, what is refused, and what may be said of it."""

import json
import math
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import binom, binomtest, norm, permutation_test, t

from lexbench.report.check.comparison import compare_command, compared_runs, comparison_markdown
from lexbench.report.verdicts import verdict_text
from lexbench.stats.cell_outcomes import SettingChange, changed_settings, difference_in_kind, outcomes_of_cell
from lexbench.stats.compare import Comparison, TaskComparison, cell_name, compare_runs
from lexbench.stats.intervals import guard_against_skew
from lexbench.stats.notes import Note, NoteKind
from lexbench.store.format import FinishedCell
from tests.report.fake_run import cell
from tests.report.outcomes import answers, folder, refused, right, texts

REFERENCE = Path(__file__).parents[2] / "results/reference/lexlet"


def sides(path: Path, left: Sequence[FinishedCell], other: Sequence[FinishedCell], **selected: Any) -> Comparison:
    return compared_runs(folder(path / "a", *left), folder(path / "b", *other), **selected)


def verdicts(found: Comparison) -> list[str]:
    return [verdict_text(task) for task in found.tasks]


def test_values_differences_and_p_values_are_those_of_the_pairs(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    left = rng.normal(3.0, 0.5, (3, 10)).astype(np.float32).astype(np.float64)
    other = (left + rng.normal([[0.0], [-0.2], [-0.5]], 0.1, (3, 10))).astype(np.float32).astype(np.float64)
    lengths = (256, 512, 1024)
    cells = [
        [texts(method, row.tolist(), length) for length, row in zip(lengths, side, strict=True)]
        for method, side in (("none", left), ("yarn", other))
    ]
    [task] = sides(tmp_path, *cells).tasks
    gaps = other - left
    flips = [permutation_test((row,), np.sum, permutation_type="samples", n_resamples=5000).pvalue for row in gaps]
    raw = [guard_against_skew(p, row) for p, row in zip(flips, gaps, strict=True)]
    assert raw[0] > flips[0]
    order = np.argsort(raw)
    steps = np.minimum(np.maximum.accumulate(np.array(raw)[order] * [3, 2, 1]), 1)  # Holm
    for place, entry in enumerate(task.entries):
        assert entry.found is not None
        assert (entry.length, entry.seed, entry.found.pairs) == (lengths[place], 0, 10)
        assert entry.found.baseline_value == pytest.approx(left[place].mean())
        assert entry.found.value == pytest.approx(other[place].mean())
        assert entry.found.difference == pytest.approx(gaps[place].mean())
        assert entry.found.p == pytest.approx(raw[place])
        assert entry.found.p_holm == pytest.approx(steps[list(order).index(place)])
    assert [entry.significant for entry in task.entries] == [False, True, True]
    assert verdict_text(task) == "B is better at 512, 1024"


def test_lengths_and_tasks_are_one_family(tmp_path: Path) -> None:
    """Six of six questions: 2^-5 each, and two comparisons make 2^-4."""
    left = [texts("none", [3.0] * 6), answers("none", right(6, 6))]
    other = [texts("yarn", [4.0] * 6), answers("yarn", right(0, 6))]
    found = sides(tmp_path, left, other)

    def first(task: TaskComparison) -> float | None:
        found = task.entries[0].found
        return None if found is None else found.p_holm

    assert [(task.task, task.metric, first(task)) for task in found.tasks] == [
        ("last_segment", "nll", 1 / 16),
        ("passkey", "accuracy", 1 / 16),
    ]
    [alone] = sides(tmp_path / "alone", left[:1], other[:1]).tasks
    assert (first(alone), verdict_text(alone)) == (1 / 32, "B is worse at every length")


def test_what_may_be_said_of_a_task(tmp_path: Path) -> None:
    lengths = (256, 512, 1024)

    def by_length(method: str, *levels: float, n: int = 12) -> list[FinishedCell]:
        return [texts(method, [level] * n, length) for length, level in zip(lengths, levels, strict=True)]

    def said(name: str, left: list[FinishedCell], other: list[FinishedCell]) -> str:
        [verdict] = verdicts(sides(tmp_path / name, left, other))
        return verdict

    base = by_length("none", 3.0, 3.0, 3.0)
    assert said("better", base, by_length("yarn", 2.0, 2.5, 2.9)) == "B is better at every length"
    assert said("worse", base, by_length("yarn", 3.0, 3.5, 3.9)) == "B is worse at 512, 1024"
    mixed = said("mixed", base, by_length("yarn", 3.1, 3.0, 2.9))
    assert mixed == "mixed by length: B is worse at 256, and better at 1024"
    assert said("same", base, by_length("yarn", 3.0, 3.0, 3.0)) == "no difference: every question gave the same"
    six = said("six", by_length("none", 3.0, 3.0, 3.0, n=6), by_length("yarn", 2.0, 3.0, 3.0, n=6))
    assert six.startswith(
        "too few samples to detect any difference: with 6 clusters no p is below 0.031, before"
    )  # 3 / 32
    few = said("few", by_length("none", 3.0, 3.0, 3.0, n=4), by_length("yarn", 2.0, 2.0, 2.0, n=4))
    assert (
        few == "too few samples to detect any difference: with 4 clusters no p is below 0.12, before correction for 3 "
        "comparisons"
    )


def found_score(quantile: float, variance: float, clusters: int) -> float:
    """The score difference L that is quantile + z standard errors, of a variance that it adds to."""
    whole = quantile + norm.ppf(0.9)

    def short(size: float) -> float:
        return size - whole * math.sqrt((variance + size * (1 - size)) / clusters)

    return float(brentq(short, 1e-6, 1.0))


def test_a_difference_that_did_not_show_has_a_size_that_would_have_been_found(tmp_path: Path) -> None:
    """Sixteen answers, 4 of which differ to each side: a mean of 0 with variance (8 / 15) / 16, judged by Student.

    A difference L adds L (1 - L) / 16, and is found nine times of ten.
    """
    left = answers("none", [1, 1, 0, 0] * 4)
    other = answers("yarn", [0, 0, 1, 1] * 2 + [1, 1, 0, 0] * 2)
    [task] = sides(tmp_path, [left], [other]).tasks
    assert task.smallest is not None and task.smallest == pytest.approx(found_score(t.ppf(0.975, 15), 8 / 15, 16))
    assert verdict_text(task) == f"no difference found: one of {100 * task.smallest:.2g} points would have been found"


def test_where_hardly_an_answer_differs_as_many_must_turn_as_the_exact_test_asks_for(tmp_path: Path) -> None:
    """McNemar's exact test: 5 answers that only one side has are not significant, 6 are, in nine runs of ten."""
    assert [binomtest(count, count).pvalue <= 0.05 for count in (5, 6)] == [False, True]
    [task] = sides(tmp_path, [answers("none", right(9, 10))], [answers("yarn", right(9, 10))]).tasks
    assert task.smallest is not None and binom.sf(5, 10, task.smallest) == pytest.approx(0.9)
    size = f"one of {100 * task.smallest:.2g} points would have been found"
    assert verdict_text(task) == f"no difference: every question gave the same; {size}"


def test_a_length_at_which_some_seeds_differ_says_how_many(tmp_path: Path) -> None:
    left = [texts("none", [3.0] * 8, length, seed=seed) for length in (256, 512) for seed in (0, 1)]
    losses = {(256, 0): 2.0, (256, 1): 2.0, (512, 0): 2.0, (512, 1): 3.0}
    other = [texts("yarn", [loss] * 8, length, seed=seed) for (length, seed), loss in losses.items()]
    assert verdicts(sides(tmp_path / "some", left, other)) == ["B is better at 256, 512 (1 of 2 seeds)"]
    turned = [
        texts("yarn", [4.0] * 8, 512, seed=1) if each.cell.seed and each.cell.length == 512 else each for each in other
    ]
    said = "mixed by length and seed: B is better at 256, 512 (1 of 2 seeds), and worse at 512 (1 of 2 seeds)"
    assert verdicts(sides(tmp_path / "mixed", left, turned)) == [said]


def test_measures_without_a_better_side_are_higher_or_lower(tmp_path: Path) -> None:
    left = answers("none", [2.0 + i / 10 for i in range(8)], metric="entropy")
    other = answers("yarn", [1.0 + i / 10 for i in range(8)], metric="entropy")
    found = sides(tmp_path, [left], [other])
    assert verdicts(found) == ["B is lower at every length"]
    assert "| 512 (2x) | 2.35 | 1.35 | -1* [-1, -1] |   0.0078 |     8 |" in comparison_markdown(found)


def test_what_differs_between_the_sides_is_named(tmp_path: Path) -> None:
    model = {"model": {"name": "lexlet", "revision": "5f0c"}}
    newer = {"model": {"name": "lexlet", "revision": "77aa"}}
    left = [texts("yarn", [3.0] * 8, identity=model)]
    other = [texts("yarn", [3.0] * 8, version="0.2.0", dtype="bfloat16", identity={**newer, "attention": {"scale": 2}})]
    found = sides(tmp_path, left, other)
    assert [change for change in found.changes if not change.name.startswith("attention")] == [
        SettingChange("backend.dtype", "float32", "bfloat16"),
        SettingChange("lexbench", "0.1.0", "0.2.0"),
        SettingChange("model.revision", "5f0c", "77aa"),
    ]
    assert [change.name for change in found.changes if change.name.startswith("attention")] == ["attention of yarn"]
    methods = sides(tmp_path / "methods", [texts("none", [3.0] * 8)], [texts("yarn", [3.0] * 8)])
    assert methods.changes == [SettingChange("method", "none", "yarn")]
    assert "- method: A none, B yarn" in comparison_markdown(methods)
    same = sides(tmp_path / "same", left, left)
    assert same.changes == [] and "- nothing else differs that is recorded" in comparison_markdown(same)


def test_selectors_narrow_a_side(tmp_path: Path) -> None:
    run = folder(
        tmp_path / "run",
        *(
            texts(method, [loss] * 8, length)
            for method, loss in (("none", 3.0), ("yarn", 2.0))
            for length in (256, 512)
        ),
    )
    found = compare_runs(run, run[0], ["method=none", "length=256", "length=512"], ["method=yarn", "length=512"])
    assert [entry.length for task in found.tasks for entry in task.entries] == [512]
    assert ([cell_name(each) for each in found.only_a], found.only_b) == (["none last_segment at 256, seed 0"], [])
    assert (found.a, found.b) == (f"{run[0]} method=none length=256 length=512", f"{run[0]} method=yarn length=512")
    assert "Only in A: none last_segment at 256, seed 0." in comparison_markdown(found)


def test_lengths_to_choose_from_ascend(tmp_path: Path) -> None:
    run = folder(tmp_path / "run", *(texts("none", [3.0] * 8, length=length) for length in (1024, 128, 256)))
    with pytest.raises(ValueError, match=r"no cell of length=64: choose from 128, 256, 1024$"):
        compare_runs(run, run, ["length=64"])


@pytest.mark.parametrize(
    ("select", "said"),
    [
        (
            [],
            "side A has 2 cells of last_segment at 512, which differ in method (none, yarn): narrow it, "
            "e.g. --a method=none",
        ),
        (["method=pi"], "side A has no cell of method=pi: choose from none, yarn"),
        (["method=none", "seed=3"], "side A has no cell of seed=3: choose from 0"),
        (["colour=red"], "selector 'colour=red' must be KEY=VALUE with a key of method, model, task, "),
        (["methd=pi"], "length: did you mean method? e.g. --a method=none"),
        (["method"], "selector 'method' must be KEY=VALUE"),
    ],
)
def test_selectors_that_leave_none_or_several(tmp_path: Path, select: list[str], said: str) -> None:
    run = folder(tmp_path / "run", texts("none", [3.0] * 8), texts("yarn", [3.0] * 8))
    with pytest.raises(ValueError, match=re.escape(said)):
        compare_runs(run, run, select, ["method=yarn"])


def test_cells_that_no_selector_tells_apart_say_in_what_they_differ(tmp_path: Path) -> None:
    other = texts("none", [3.0] * 8, identity={"model": {"name": "lexlet", "revision": "b"}})
    run = folder(tmp_path / "run", texts("none", [3.0] * 8), other)
    with pytest.raises(ValueError, match=r"which differ in model\.revision: give a folder that holds one of them"):
        compare_runs(run, run, [], [])


def test_no_overlap_is_an_error_with_what_each_side_holds(tmp_path: Path) -> None:
    said = "share no task, length and seed: A holds none last_segment at 512, seed 0, B none passkey at 512, seed 0"
    with pytest.raises(ValueError, match=said):
        sides(tmp_path, [texts("none", [3.0] * 8)], [answers("none", right(4, 8))])
    with pytest.raises(ValueError, match="does not exist"):
        compare_runs(tmp_path / "nowhere", tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"protocol": "others"}, "other questions: protocol NLL of the same last 64 tokens"),
        ({"identity": {"task": {"name": "last_segment", "version": 2}}}, "other questions: task.version 1 -> 2"),
        (
            {"identity": {"corpus": {"name": "stdlib", "fingerprint": "9"}}},
            "other questions: corpus.fingerprint 20f4 -> 9",
        ),
        ({"corpus": "pydoc", "identity": {"corpus": {"name": "pydoc", "fingerprint": "9"}}}, "corpus stdlib -> pydoc"),
    ],
)
def test_other_questions_are_refused_with_the_reason(tmp_path: Path, changed: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=f"sides cannot be compared: .*{said}"):
        sides(tmp_path, [texts("none", [3.0] * 8)], [texts("none", [3.0] * 8, **changed)])


def test_two_tokenizers_have_no_common_nll_per_token(tmp_path: Path) -> None:
    other = texts("none", [3.0] * 8, model="other", identity={"model": {"name": "other"}})
    wider = FinishedCell(other.cell, [replace(each, bytes=20, words=3) for each in other.samples])
    sizes = "4 targets of 13 bytes and 2 words in A, 4 targets of 20 bytes and 3 words in B"
    said = f"sides cannot be compared: question 0 has {sizes}: NLL per token needs one tokenizer"
    with pytest.raises(ValueError, match=said):
        sides(tmp_path, [texts("none", [3.0] * 8)], [wider])
    same = sides(tmp_path / "same", [texts("none", [3.0] * 8)], [other])  # two models with one tokenizer
    assert verdicts(same) == ["no difference: every question gave the same"]
    assert same.changes == [SettingChange("model.name", "lexlet", "other")]


def test_a_small_p_needs_no_escape(tmp_path: Path) -> None:
    """2^-15 of 16 texts that are all worse; a tag is escaped as before."""
    found = sides(tmp_path, [texts("none", [3.0] * 16)], [texts("a<b>", [4.0] * 16)])
    shown = comparison_markdown(found)
    assert " <0.0001 |" in shown and "\\<0" not in shown
    assert "B a\\<b>" in shown


def test_answers_that_cancel_within_their_haystacks_are_no_same_answers(tmp_path: Path) -> None:
    """Each haystack loses one of two answers and gains the other: every sum is 0, and no question gave the same."""

    def haystacks(method: str, *pair: float, count: int) -> FinishedCell:
        made = answers(method, [*pair] * count)
        return FinishedCell(made.cell, [replace(each, cluster=str(each.index // 2)) for each in made.samples])

    for count, said in ((1, "too few samples to detect any difference"), (12, "no difference found")):
        cells = [haystacks("none", 0.0, 1.0, count=count)], [haystacks("yarn", 1.0, 0.0, count=count)]
        [task] = sides(tmp_path / str(count), *cells).tasks
        assert verdict_text(task).startswith(said)
        [entry] = task.entries
        assert entry.found is not None and (entry.found.difference, entry.found.n_changed) == (0.0, 2 * count)


def test_refusals_of_a_side_stand_beside_what_is_compared(tmp_path: Path) -> None:
    left = [answers("none", right(8, 8), 256), refused("none", 512, "too short")]
    other = [answers("yarn", right(8, 8), 256), answers("yarn", right(8, 8), 512)]
    found = sides(tmp_path, left, other)
    assert [entry.apart for entry in found.tasks[0].entries] == [None, Note(NoteKind.SIDE_REFUSED, ("A", "too short"))]
    assert "(1) cannot be told: both at the ceiling (1.00)  \n(2) A is refused: too short" in comparison_markdown(found)


def test_failed_truncated_and_missing_questions_are_said(tmp_path: Path) -> None:
    left, other = texts("none", [3.0] * 9), texts("yarn", [2.0] * 8)
    samples = [replace(each, cluster=f"document {each.index // 2}") for each in other.samples]
    samples[0] = replace(samples[0], failed="gone", nll=None)
    samples[1] = replace(samples[1], truncated=True)
    grouped = FinishedCell(left.cell, [replace(each, cluster=f"document {each.index // 2}") for each in left.samples])
    shown = comparison_markdown(sides(tmp_path, [grouped], [FinishedCell(other.cell, samples)]))
    for note in (
        "7 pairs in 4 clusters",
        "1 pair failed on a side",
        "1 pair truncated",
        "1 sample on one side only, left out",
    ):
        assert note in shown


def test_seeds_and_corpora_have_rows_and_tables_of_their_own(tmp_path: Path) -> None:
    wiki: dict[str, Any] = {"corpus": "wikitext", "identity": {"corpus": {"name": "wikitext", "fingerprint": "3"}}}
    left = [texts("none", [3.0] * 8, seed=seed) for seed in (0, 1)] + [texts("none", [3.0] * 8, **wiki)]
    other = [texts("pi", [3.0] * 8, seed=seed) for seed in (0, 1)] + [texts("pi", [2.0] * 8, **wiki)]
    found = sides(tmp_path, left, other)
    tables = {(task.task, task.corpus): [entry.seed for entry in task.entries] for task in found.tasks}
    assert tables == {("last_segment", "stdlib"): [0, 1], ("last_segment", "wikitext"): [0]}
    assert "## last_segment on wikitext, nll" in comparison_markdown(found)
    assert "| 512 (2x) seed 1 |" in comparison_markdown(found)


def test_files_that_cannot_be_read_are_said_and_the_rest_is_compared(tmp_path: Path) -> None:
    run = folder(tmp_path / "run", texts("none", [3.0] * 8), texts("yarn", [3.0] * 8))
    (tmp_path / "run/cells/0000.parquet").write_bytes(b"PAR1")
    found = compare_runs(run, run, ["method=none"], ["method=yarn"])
    assert len(found.problems) == 1 and "Not readable: cell " in comparison_markdown(found)


def test_all_of_it_as_data(tmp_path: Path) -> None:
    run = folder(tmp_path / "run", answers("none", right(2, 8)), answers("yarn", right(8, 8)))
    page = json.loads(compare_command(run[0], run[0], select_a=["method=none"], select_b=["method=yarn"], as_data=True))
    [task] = page["tasks"]
    [entry] = task["entries"]
    assert (task["task"], task["metric"], task["unit"], task["verdict"]) == (
        "passkey",
        "accuracy",
        "points",
        "B is better at every length",
    )
    values = {name: entry[name] for name in ("a_value", "b_value", "difference", "p", "significant", "pairs", "apart")}
    assert values == {
        "a_value": 25.0,
        "b_value": 100.0,
        "difference": 75.0,
        "p": 1 / 32,
        "significant": True,
        "pairs": 8,
        "apart": None,
    }
    assert page["changes"] == [{"name": "method", "one": "none", "other": "yarn"}]


def test_names_of_others_can_do_nothing(tmp_path: Path) -> None:
    name = "a|b\n# <script>\x1b"
    shown = comparison_markdown(sides(tmp_path, [texts("none", [3.0] * 8)], [texts(name, [2.0] * 8)]))
    assert "- method: A none, B 'a\\|b\\\\n# \\<script>\\\\x1b'" in shown and "\x1b" not in shown


@pytest.mark.slow
def test_the_committed_records_say_what_their_differences_said() -> None:
    """Against the figures of results/reference/lexlet.md, which another path computed: paired differences to none."""
    found = compare_runs(REFERENCE, REFERENCE, ["method=none"], ["method=yarn"])
    page = (REFERENCE.parent / "lexlet.md").read_text()
    [nll, passkey] = found.tasks
    row = next(line for line in page.splitlines() if line.startswith("| yarn "))
    shown = re.findall(r"([+-][\d.]+)\*", row)
    assert [f"{entry.found.difference:+.3f}" for entry in nll.entries if entry.found and entry.significant] == shown
    assert verdict_text(nll) == "B is better at 512, 1024, 2048"
    # As the first of the 6 comparisons at the lengths at which yarn is not none.
    assert verdict_text(passkey) == "no difference found: one of 64 points would have been found"


def test_what_could_be_missed_follows_the_correction_for_all_comparisons(tmp_path: Path) -> None:
    """No difference without a star is larger than what its task says would have been found.

    Losses differ between texts by 0.25 nats here, the cap of their spread.
    """
    rng = np.random.default_rng(5)
    lengths = (256, 512, 1024, 2048)
    gaps = {length: rng.normal(0.09, 0.1, 12) for length in lengths}
    left = [texts("none", [3.0] * 12, length) for length in lengths]
    other = [texts("yarn", (3 + gaps[length]).tolist(), length) for length in lengths]
    [task] = sides(tmp_path, left, other).tasks
    quantile = t.ppf(1 - 0.05 / 4 / 2, 0.75 * math.sqrt(12))  # Holm: the first of four
    errors = [np.std(each, ddof=1) / math.sqrt(12) for each in gaps.values()]
    assert task.smallest is not None
    whole = quantile + norm.ppf(0.9)
    assert task.smallest == pytest.approx(whole * math.sqrt(max(errors) ** 2 + 0.25**2 / 12), rel=1e-5)
    alone = [entry.found for entry in task.entries if entry.found and not entry.significant]
    assert len(alone) >= 2 and max(abs(each.difference or 0) for each in alone) <= task.smallest
    assert any(each.interval is not None and each.interval.low > 0 for each in alone)  # no interval is that careful


def test_numbers_that_are_equal_and_written_otherwise_are_named() -> None:
    known = cell("passkey", "yarn", 256).identity

    def of(**changed: Any) -> FinishedCell:
        return FinishedCell(cell("passkey", "yarn", 256, identity={**known, **changed}), [], "no")

    one, other = (of(method={"name": "yarn", "beta_fast": number}) for number in (32, 32.0))
    assert changed_settings([(outcomes_of_cell(one), outcomes_of_cell(other))]) == [
        SettingChange("method.beta_fast", "32", "32.0")
    ]
    one, other = of(task={"name": "passkey", "digits": 5, "old": 1}), of(task={"name": "passkey", "digits": 5.0})
    assert difference_in_kind(one.cell, other.cell) == SettingChange("task.digits", "5", "5.0")
    one, other = of(task={"name": "passkey", "digits": 5, "old": 1}), of(task={"name": "passkey", "digits": 5})
    assert difference_in_kind(one.cell, other.cell) is None


def test_a_loss_that_no_test_shows_is_not_found_in_any_size(tmp_path: Path) -> None:
    """Five documents lose the same: nothing varies, and no p is below 2^-4."""
    [task] = sides(tmp_path, [texts("none", [3.0] * 5)], [texts("yarn", [3.5] * 5)]).tasks
    assert task.smallest is None
    assert verdict_text(task).startswith(
        "too few samples to detect any difference: with 5 clusters no p is below 0.062"
    )
    [task] = sides(tmp_path / "6", [texts("none", [3.0] * 6)], [texts("yarn", [3.5] * 6)]).tasks
    assert verdict_text(task) == "B is worse at every length"  # 2^-5 is below 0.05


def test_sides_that_measured_no_common_metric_are_said(tmp_path: Path) -> None:
    left = [answers("none", right(8, 8), metric="accuracy"), texts("none", [3.0] * 8)]
    other = [answers("yarn", [2.0] * 8, metric="entropy"), texts("yarn", [3.0] * 8)]
    found = {task.task: task for task in sides(tmp_path, left, other).tasks}
    assert [entry.apart for entry in found["passkey"].entries] == [Note(NoteKind.NOTHING_SHARED)]
    assert verdict_text(found["passkey"]) == "not comparable"
    assert verdict_text(found["last_segment"]) == "no difference: every question gave the same"


def test_reasons_why_nothing_can_be_told_stand_with_their_lengths(tmp_path: Path) -> None:
    def chanced(method: str, scores: list[float], length: int) -> FinishedCell:
        made = answers(method, scores, length)
        return FinishedCell(made.cell, [replace(each, chance=0.25) for each in made.samples])

    left = [chanced("none", right(8, 8), 256), chanced("none", right(2, 8), 512)]
    other = [chanced("yarn", right(8, 8), 256), chanced("yarn", right(2, 8), 512)]
    assert verdicts(sides(tmp_path, left, other)) == [
        "cannot be told: both at the ceiling (1.00) at 256, both at chance (0.25) at 512"
    ]
    assert verdicts(sides(tmp_path / "one", left[:1], other[:1])) == ["cannot be told: both at the ceiling (1.00)"]


def test_what_no_pair_has_is_counted_beyond_three(tmp_path: Path) -> None:
    left = [texts("none", [3.0] * 8, length) for length in (128, 256, 512, 1024)]
    with pytest.raises(ValueError, match="sides share no task") as error:
        sides(tmp_path, left, [answers("yarn", right(8, 8))])
    said = str(error.value)
    assert sum(f"last_segment at {length}" in said for length in (128, 256, 512, 1024)) == 3 and "1 more" in said


def test_an_answer_right_more_often_is_better_and_less_nats_are(tmp_path: Path) -> None:
    left = [answers("none", right(0, 9)), texts("none", [3.0 + place / 9 for place in range(9)])]
    other = [answers("yarn", right(9, 9)), texts("yarn", [2.0 + place / 9 for place in range(9)])]
    assert verdicts(sides(tmp_path, left, other)) == ["B is better at every length"] * 2
    assert verdicts(sides(tmp_path / "turned", other, left)) == ["B is worse at every length"] * 2
    up = [answers("none", [1.0 + i / 10 for i in range(8)], metric="entropy")]
    more = [answers("yarn", [2.0 + i / 10 for i in range(8)], metric="entropy")]
    assert verdicts(sides(tmp_path / "up", up, more)) == ["B is higher at every length"]


def test_only_named_cells_are_compared(tmp_path: Path) -> None:
    cells = [texts(method, [3.0] * 8, length) for method in ("none", "yarn") for length in (256, 512)]
    run = folder(tmp_path, *cells)
    named = {each.cell.id for each in cells if each.cell.length == 512}
    [task] = compare_runs(run, run, ["method=none"], ["method=yarn"], only=named).tasks
    assert [entry.length for entry in task.entries] == [512]


def test_the_question_that_differs_is_told_by_its_own_sizes(tmp_path: Path) -> None:
    left, other = texts("none", [3.0] * 8), texts("yarn", [3.0] * 8)
    wider = [replace(each, bytes=20, words=3) if each.index == 5 else each for each in other.samples]
    with pytest.raises(ValueError, match=r"question 5 has .* 13 bytes and 2 words in A, .* 20 bytes"):
        sides(tmp_path, [left], [FinishedCell(other.cell, wider)])


def test_shares_may_hide_as_much_as_skewed_noise_does(tmp_path: Path) -> None:
    """Scores between 0 and 1 have the degrees of freedom of skewed noise; right and wrong answers Student's."""
    rng = np.random.default_rng(3)
    gaps = rng.normal(0.0, 0.05, 16)
    left = [answers("none", [0.5] * 16)]
    [task] = sides(tmp_path, left, [answers("yarn", (0.5 + gaps).tolist())]).tasks
    error = np.std(gaps, ddof=1) / 4
    assert task.smallest is not None
    assert task.smallest == pytest.approx(found_score(t.ppf(0.975, 0.75 * 4), 16 * float(error) ** 2, 16), rel=1e-3)
