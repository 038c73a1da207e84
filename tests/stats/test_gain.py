"""Context gain: nothing for a model that looks at no context, and what is known for one that looks so far."""

import csv as reader
import io
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import ArrayLike
from scipy.stats import norm, t

import lexbench
from lexbench import Loglikelihood, LoglikelihoodAnswer, Sample
from lexbench.checkpoints.tokenizer import FastTokenizer
from lexbench.corpora.synthetic import Synthetic
from lexbench.report import formats
from lexbench.report.report import write_report
from lexbench.report.tables import gain_grid
from lexbench.stats import gain
from lexbench.stats.differences import paired_differences
from lexbench.stats.gain import Gain, context_gains, first_harmful_length, smallest_found_step
from lexbench.stats.tables import Table, build_tables
from lexbench.store.format import FinishedCell
from tests.report.fake_run import cell, keep

VOCABULARY, PERIOD, TARGETS, SURE = 100, 64, 32, math.log(10 / 9)
"""A cache model gives 0.9 to a token that it saw one period ago, and otherwise guesses."""


def segment(index: int, nll: ArrayLike, length: int, **changed: Any) -> Sample:
    """The last tokens of a window, which are a document's tokens 100 to 100 + targets - 1."""
    losses = np.asarray(nll, np.float32)
    facts = {"document": f"d{index // 2}", "first_target": 100 * (index % 2), "end": 100 * (index % 2) + len(losses)}
    values = {"cluster": f"d{index // 2}", "tokens": length, "nll": losses, "bytes": 9, "words": 2, "facts": facts}
    return Sample(index=index, **{**values, **changed})


def cells(losses: Mapping[int, Sequence[ArrayLike]], method: str = "none") -> list[FinishedCell]:
    """A cell per length, of the NLL of its samples."""
    return [
        FinishedCell(
            cell("last_segment", method, length, n=len(rows)),
            [segment(index, nll, length) for index, nll in enumerate(rows)],
        )
        for length, rows in losses.items()
    ]


def table_of(found: Sequence[FinishedCell], metric: str = "nll") -> tuple[Table, dict[str, list[Sample]]]:
    [table] = [table for table in build_tables(found) if table.metric == metric]
    return table, {each.cell.id: each.samples for each in found}


def by_length(found: Sequence[FinishedCell]) -> dict[int, Gain]:
    return {each.length: each for each in context_gains(*table_of(found))}


def asked(
    name: str, tokenizer: FastTokenizer, lengths: Sequence[int], scorer: Callable[[Loglikelihood], np.ndarray]
) -> list[FinishedCell]:
    """A task of the registry, answered by a scorer."""
    task = lexbench.task(name, corpus=Synthetic(count=6, words=600)).for_lengths(lengths)
    found = []
    for length in lengths:
        questions = [each for each in task.questions(tokenizer, length, 5, 0) if isinstance(each, Loglikelihood)]
        answered = [task.score(each, LoglikelihoodAnswer(nll=scorer(each).astype(np.float32))) for each in questions]
        found.append(FinishedCell(cell(name, "none", length, n=5), answered))
    return found


@pytest.mark.parametrize("name", ["last_segment", "sliding", "non_overlapping"])
def test_a_model_without_context_gains_nothing(tokenizer: FastTokenizer, name: str) -> None:
    unigram = np.random.default_rng(0).gamma(2.0, 1.0, tokenizer.vocabulary)
    found = by_length(asked(name, tokenizer, [48, 100, 210], lambda each: unigram[each.tokens[each.first_target :]]))
    assert list(found) == [100, 210]
    for each in found.values():
        assert each.gain is not None and each.step is not None
        assert (each.gain.value, each.gain.low, each.gain.high) == (0.0, 0.0, 0.0)
        assert (each.gain.clusters, each.gain.left_out) == (5, 0)
        assert each.step.value == 0.0


def cache(tokens: np.ndarray) -> np.ndarray:
    """NLL of the last TARGETS tokens under the cache model, which reads nothing but these tokens."""
    nll = np.full(len(tokens), math.log(VOCABULARY))
    nll[PERIOD:][tokens[PERIOD:] == tokens[: max(0, len(tokens) - PERIOD)]] = SURE
    return nll[-TARGETS:]


def test_a_cache_gains_what_is_known_and_nothing_once_all_is_seen() -> None:
    rng = np.random.default_rng(1)
    texts = [np.tile(rng.permutation(VOCABULARY)[:PERIOD], 4) for _ in range(6)]  # a block again and again
    lengths = [48, 64, 72, 80, 96, 160]
    found = by_length(cells({length: [cache(text[-length:]) for text in texts] for length in lengths}))
    for length, each in found.items():
        # the last L - 64 tokens of a window stand one period behind another, of the targets at most 32
        predicted = min(max(length - PERIOD, 0), TARGETS) / TARGETS
        expected = predicted * (math.log(VOCABULARY) - SURE)
        assert each.gain is not None
        assert [each.gain.value, each.gain.low, each.gain.high] == pytest.approx([expected] * 3, abs=1e-6)
    assert [round(each.gain.value, 2) for each in found.values() if each.gain] == [0.0, 1.12, 2.25, 4.5, 4.5]
    assert gain.first_harmful_length(list(found.values())) is None


def test_steps_are_from_length_to_length_and_the_first_that_is_worse_hurts() -> None:
    rows = {128: [[4.0], [4.5]] * 3, 256: [[3.0], [3.5]] * 3, 512: [[3.5], [4.0]] * 3, 1024: [[3.75], [4.25]] * 3}
    found = by_length(cells(rows))
    values = {length: (each.gain.value, each.step.value) for length, each in found.items() if each.gain and each.step}
    assert values == {256: (1.0, 1.0), 512: (0.5, -0.5), 1024: (0.25, -0.25)}
    assert gain.first_harmful_length(list(found.values())) == 512  # though it is still better than the shortest


def test_what_may_be_chance_does_not_hurt() -> None:
    rows = {128: [[4.0], [4.0], [4.0], [4.0]], 256: [[3.0], [3.0], [6.0], [6.0]]}  # one document better, one worse
    [each] = by_length(cells(rows)).values()
    assert each.gain is not None
    reach = t.ppf(0.975, each.gain.clusters - 1) * np.std([1, -2], ddof=1) / math.sqrt(2)  # two documents of two texts
    assert each.gain.clusters == 2
    assert (each.gain.value, each.gain.low, each.gain.high) == pytest.approx((-0.5, -0.5 - reach, -0.5 + reach))
    assert gain.first_harmful_length([each]) is None


def test_a_gain_is_the_difference_of_the_same_samples_turned_round() -> None:
    rng = np.random.default_rng(2)
    sizes = rng.integers(5, 60, 40)
    short = [rng.gamma(2.0, 1.5, size) for size in sizes]
    long = [nll + rng.normal(-0.3, 0.4) for nll in short]
    found = cells({128: short, 512: long})
    [each] = by_length(found).values()
    as_methods = [
        FinishedCell(cell("last_segment", method, 256, n=40), finished.samples)
        for method, finished in zip(("none", "long"), found, strict=True)
    ]
    turned = paired_differences(
        *table_of([replace(one, samples=[replace(s, facts={}) for s in one.samples]) for one in as_methods])
    )
    assert turned is not None and each.gain is not None
    [entry] = turned.entries.values()
    assert entry.difference is not None and entry.low is not None and entry.high is not None
    expected = [-entry.difference, -entry.high, -entry.low]
    assert [each.gain.value, each.gain.low, each.gain.high] == pytest.approx(expected, abs=1e-6)
    assert (each.gain.targets, each.gain.clusters) == (sum(sizes), 20)


def test_targets_of_a_failed_sample_are_left_out_and_counted() -> None:
    short, long = cells({128: [[4.0, 4.0], [4.0, 4.0], [4.0]], 512: [[3.0, 3.0], [9.0, 9.0], [2.0]]})
    bad = replace(long.samples[1], failed="1 of 2 targets have no finite likelihood")
    for lost in (bad, replace(bad, nll=None)):
        [each] = by_length([short, replace(long, samples=[long.samples[0], lost, long.samples[2]])]).values()
        assert each.gain is not None
        assert each.gain.value == pytest.approx((1 + 1 + 2) / 3)
        assert (each.gain.targets, each.gain.left_out, each.gain.clusters) == (3, 2, 2)


def test_key_tokens_here_and_there_pair_across_windows() -> None:
    def window(index: int, targets: list[int], nll: list[float]) -> Sample:
        facts = {"document": "d", "targets": targets}
        return segment(index, nll, 64, cluster="d", facts=facts)

    short = FinishedCell(cell("keys", "none", 128, n=1), [window(0, [3, 9], [4.0, 3.0]), window(1, [40], [2.0])])
    long = FinishedCell(cell("keys", "none", 512, n=1), [window(0, [3, 9, 40], [1.0, 1.0, 0.5])])
    turned = replace(short, samples=[replace(short.samples[1], index=0), replace(short.samples[0], index=1)])
    for first in (short, turned):
        [each] = by_length([first, long]).values()
        assert each.gain is not None
        assert (each.gain.value, each.gain.targets, each.gain.low) == ((3 + 2 + 1.5) / 3, 3, None)


def test_documents_of_one_cluster_are_resampled_together() -> None:
    short, long = (
        replace(each, samples=[replace(sample, cluster="all") for sample in each.samples])
        for each in cells({128: [[4.0]] * 6, 512: [[3.0], [2.0]] * 3})
    )
    [each] = by_length([short, long]).values()
    assert each.gain is not None
    assert (each.gain.value, each.gain.clusters, each.gain.low) == (1.5, 1, None)


def test_other_targets_at_another_length_have_no_gain(tokenizer: FastTokenizer) -> None:
    assert by_length(asked("prefix", tokenizer, [48, 100], lambda each: np.ones(each.length - each.first_target))) == {}
    short, long = cells({128: [[4.0], [4.0]], 512: [[3.0], [3.0]]})
    moved = replace(long.samples[1], facts={"document": "d0", "first_target": 7, "end": 8})
    assert by_length([short, replace(long, samples=[long.samples[0], moved])]) == {}
    assert by_length([short, replace(long, samples=long.samples[:1])]) == {}
    short, long = cells({128: [[4.0], [4.0], [4.0]], 512: [[3.0], [3.0], [3.0]]})
    assert by_length([short, replace(long, samples=long.samples[:2])]) == {}  # a whole document
    unknown = [replace(each, samples=[replace(s, facts={"start": 1}) for s in each.samples]) for each in (short, long)]
    assert by_length(unknown) == {}
    assert by_length([short]) == {}
    assert context_gains(*table_of([short, long], "perplexity")) == []


def mixed() -> list[FinishedCell]:
    """Refused at the shortest length, refused at a longer one, and a failed sample."""
    flat = cells({128: [[3.0]] * 4, 256: [[2.5]] * 4, 512: [[2.75]] * 4})
    pi = cells({256: [[2.0]] * 4, 512: [[1.0]] * 4}, "pi")
    late = FinishedCell(cell("last_segment", "pi", 128, n=4), [], "too short:\nraise length")
    yarn = cells({128: [[3.0]] * 4, 512: [[3.0]] * 3 + [[9.0]]}, "yarn")
    yarn[1].samples[3] = replace(yarn[1].samples[3], failed="no")
    gone = FinishedCell(cell("last_segment", "yarn", 256, n=4), [], "no")
    return [*flat, *pi, late, *yarn, gone]


def test_the_table_reads_as_it_should() -> None:
    table, samples = table_of(mixed())
    assert formats.grid_markdown(gain_grid(table, context_gains(table, samples))) == (
        "| method | NLL at 128 |                256 (1x) |                 512 (2x) | hurts from |\n"
        "| ------ | ---------: | ----------------------: | -----------------------: | ---------: |\n"
        "| none   |      3.000 | +0.500 [+0.500, +0.500] |  +0.250 [+0.250, +0.250] |        512 |\n"
        "| pi     |   no value |            no pairs (1) |             no pairs (1) |      never |\n"
        "| yarn   |      3.000 |             refused (2) | 0.000 [0.000, 0.000] (3) |      never |\n"
        "\n"
        "(1) no value at this length or at 128  \n"
        "(2) refused: no  \n"
        "(3) 1 of 4 targets failed, left out\n"
    )


def test_the_numbers_hold_gains_and_steps() -> None:
    table, samples = table_of(mixed())
    rows = list(reader.DictReader(io.StringIO(formats.rows_as_csv(gain.rows_of(table, context_gains(table, samples))))))
    assert [(row["method"], row["length"], row["gain"], row["step"]) for row in rows] == [
        ("none", "256", "0.5", "0.5"),
        ("none", "512", "0.25", "-0.25"),
        ("pi", "256", "", ""),
        ("pi", "512", "", "1.0"),
        ("yarn", "256", "", ""),
        ("yarn", "512", "0.0", "0.0"),  # the step is from 128: 256 was refused
    ]
    assert (rows[0]["from_length"], rows[0]["multiple"], rows[0]["targets"], rows[4]["refused"]) == (
        "128",
        "1.0",
        "4",
        "no",
    )


@pytest.mark.usefixtures("undrawn")
def test_a_report_shows_the_gain_below_the_nll(tmp_path: Path) -> None:
    keep(tmp_path / "run", mixed())
    page = write_report([tmp_path / "run"]).read_text()
    table, samples = table_of(mixed())
    assert page.count("#### Context gain\n") == 1
    assert formats.grid_markdown(gain_grid(table, context_gains(table, samples))) in page
    assert "](tables/lexlet-last_segment-nll-gain.csv)" in page


def test_where_no_length_hurts_the_table_states_the_loss_that_would_have_been_found() -> None:
    """Of documents that lose L on average, 1.96 + 1.28 standard errors show nine times of ten."""
    rng, count = np.random.default_rng(5), 24
    level = rng.normal(3, 0.2, count)

    def grown(loss: float) -> list[Gain]:
        longer = level + rng.normal(loss, 0.1, count)
        made = cells({128: [[each] for each in level], 256: [[each] for each in longer]})
        return context_gains(*table_of(made))

    sizes = [size for _ in range(20) if (size := smallest_found_step(grown(0.0)))]
    error = 0.1 / math.sqrt(count)
    quantile = t.ppf(0.975, count / 2 - 1)  # two texts a document
    assert np.mean(sizes) == pytest.approx((quantile + norm.ppf(0.9)) * error, rel=0.25)
    hurts = [first_harmful_length(grown(size)) == 256 for size in sizes for _ in range(5)]
    assert 0.8 <= np.mean(hurts) <= 0.99
