"""Texts that end at the same token at every length, and scores that are means over heads."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import lexbench
from lexbench import Corpus, ProbeAttention, ProbeAttentionAnswer, Refused, Tokenizer
from lexbench.core.task import Task
from lexbench.store.store import Store


def resolution_task(corpus: Corpus, **parameters: object) -> Task:
    return lexbench.task("resolution", corpus=corpus, **parameters)


def probes(task: Task, tokenizer: Tokenizer, length: int, n: int, seed: int = 0) -> list[ProbeAttention]:
    found = [
        question for question in task.questions(tokenizer, length, n, seed) if isinstance(question, ProbeAttention)
    ]
    assert len(found) == n
    return found


def test_texts_end_at_the_same_token_at_every_length(counting: Tokenizer, numbers: Callable[..., Corpus]) -> None:
    task = resolution_task(numbers(90, 200, 30)).for_lengths([10, 80])
    short, long = probes(task, counting, 10, 3), probes(task, counting, 80, 3)
    for one, two in zip(short, long, strict=True):
        begin = len(counting.prefix)
        assert (len(one.tokens), len(two.tokens)) == (10, 80)
        assert one.tokens[:begin].tolist() == list(counting.prefix)
        text = two.tokens[begin:]
        assert (np.diff(text) == 1).all()  # running text of one document
        assert one.tokens[begin:].tolist() == text[len(text) - 10 + begin :].tolist()
        assert one.cluster == two.cluster == f"n{text[0] // 10_000 - 1}"
        assert text[-1] + 1 == 10_000 * (text[0] // 10_000) + two.facts["end"]
        assert one.first == 4


def test_texts_of_one_document_do_not_overlap(counting_without_bos: Tokenizer, numbers: Callable[..., Corpus]) -> None:
    task = resolution_task(numbers(210, 90)).for_lengths([50])
    for seed in range(5):
        found = probes(task, counting_without_bos, 50, 5, seed)
        assert {question.cluster for question in found[:2]} == {"n0", "n1"}  # one of each before any second
        tokens = np.concatenate([question.tokens for question in found])
        assert len(set(tokens.tolist())) == 250
        assert tokens.min() >= 10_000 and max(tokens) <= 20_090


def test_places_depend_on_the_seed_and_reach_both_ends(
    counting_without_bos: Tokenizer, numbers: Callable[..., Corpus]
) -> None:
    task = resolution_task(numbers(52)).for_lengths([50])
    begins = {int(probes(task, counting_without_bos, 50, 1, seed)[0].tokens[0]) for seed in range(30)}
    assert begins == {10_000, 10_001, 10_002}


def test_what_cannot_be_had_is_refused_with_numbers(
    counting_with_bos: Tokenizer, numbers: Callable[..., Corpus]
) -> None:
    task = resolution_task(numbers(100, 60)).for_lengths([5, 50])
    with pytest.raises(Refused, match="needs at least 6 tokens, asked for 5: raise length or lower first"):
        task.questions(counting_with_bos, 5, 1, 0)
    with pytest.raises(Refused, match="texts have 50 tokens, asked for 51: raise longest"):
        task.questions(counting_with_bos, 51, 1, 0)
    with pytest.raises(Refused, match=r"needs 4 texts of 50 tokens, the corpus has 3 .its longest document has 101."):
        task.questions(counting_with_bos, 50, 4, 0)
    assert len(task.questions(counting_with_bos, 50, 3, 0)) == 3
    with pytest.raises(Refused, match="needs 1 texts of 500 tokens, the corpus has 0"):
        resolution_task(numbers(100), longest=500).questions(counting_with_bos, 50, 1, 0)
    for name in ("first", "queries", "longest"):
        with pytest.raises(ValueError, match=f"{name} must be at least 1, got 0"):
            resolution_task(numbers(100), **{name: 0})


def test_the_same_last_queries_are_averaged_at_every_length(
    counting: Tokenizer, numbers: Callable[..., Corpus]
) -> None:
    corpus = numbers(200, 200)
    task = resolution_task(corpus).for_lengths([80, 21, 40])
    for length in (21, 40, 80):
        assert {question.last for question in probes(task, counting, length, 2)} == {10}
    assert probes(resolution_task(corpus), counting, 40, 1)[0].last == 20  # alone, a length is the shortest
    other = resolution_task(corpus, queries=30, shortest=29).for_lengths([40, 80])
    [one, two] = (probes(each, counting, 40, 2) for each in (task, other))
    assert {question.last for question in two} == {30}
    for mine, theirs in zip(one, two, strict=True):  # texts do not depend on them
        assert mine.tokens.tolist() == theirs.tokens.tolist()
    with pytest.raises(Refused, match="30 queries needs at least 30 tokens, asked for 29: raise length or lower quer"):
        other.questions(counting, 29, 1, 0)
    assert probes(other, counting, 30, 1)[0].last == 30


def test_the_shortest_length_says_which_distances_are_shared(
    counting: Tokenizer, numbers: Callable[..., Corpus]
) -> None:
    task = resolution_task(numbers(200)).for_lengths([80, 24, 40])
    for length in (24, 40, 80):
        assert {question.shortest for question in probes(task, counting, length, 1)} == {24}
    assert probes(resolution_task(numbers(200)), counting, 40, 1)[0].shortest == 40
    other = resolution_task(numbers(200), shortest=30).for_lengths([40, 80])
    mine, [theirs] = probes(task, counting, 40, 1)[0], probes(other, counting, 40, 1)
    assert theirs.shortest == 30 and mine.tokens.tolist() == theirs.tokens.tolist()
    with pytest.raises(
        Refused, match="below 7/8 of 30 needs at least 30 tokens, asked for 29: raise length or lower sh"
    ):
        other.questions(counting, 29, 1, 0)


def answer(**changed: np.ndarray) -> ProbeAttentionAnswer:
    rng = np.random.default_rng(0)
    names = ("resolution", "resolution_shared", "resolution_all", "distance", "entropy", "first_mass")
    heads = {name: rng.random((2, 3)) for name in names}
    return ProbeAttentionAnswer(statistics={**heads, "curve": np.array([1.5, np.nan]), **changed})


def test_scores_are_means_over_all_heads(counting: Tokenizer, numbers: Callable[..., Corpus]) -> None:
    task = resolution_task(numbers(100))
    [question] = probes(task, counting, 20, 1)
    shared = np.array([[0.5, 0.25, 0.0], [0.125, 0.0, 0.0]])
    own, every = np.full((2, 3), 0.25), np.full((2, 3), 0.5)
    given = answer(resolution=own, resolution_shared=shared, resolution_all=every, distance=np.full((2, 3), 7.0))
    sample = task.score(question, given)
    assert sample.scores["resolution"] == pytest.approx(0.875 / 6)
    assert (sample.scores["resolution_7_8"], sample.scores["resolution_all"]) == (0.25, 0.5)
    assert list(sample.scores)[3:] == ["attention_distance", "entropy", "first_mass"]
    assert sample.scores["attention_distance"] == 7.0
    assert (sample.failed, sample.tokens, sample.cluster) == (None, 20, "n0")
    assert {values.dtype for values in sample.statistics.values()} == {np.dtype(np.float32)}
    np.testing.assert_array_equal(sample.statistics["curve"], [1.5, np.nan])  # no distance that far is seen


def test_statistics_that_are_no_numbers_have_failed(counting: Tokenizer, numbers: Callable[..., Corpus]) -> None:
    task = resolution_task(numbers(100))
    [question] = probes(task, counting, 20, 1)
    sample = task.score(question, answer(entropy=np.array([[1.0, np.nan]])))
    assert sample.failed == "entropy of attention cannot be told: logits are not finite"
    assert not sample.scores


def test_its_protocol_says_what_is_read(counting: Tokenizer, numbers: Callable[..., Corpus]) -> None:
    task = resolution_task(numbers(100), first=8).for_lengths([16, 64])
    assert probes(task, counting, 16, 1)[0].first == 8
    said = task.protocol(counting)
    assert "distances below 7/8 of 16 at every length" in said and "resolution of each text and head" in said
    assert "the same 8 last queries at every length" in said
    assert "texts of 64 tokens" in said and "first mass is that of 8 tokens" in said
    assert said.endswith("BOS begins every text" if counting.prefix else "no BOS")


@pytest.mark.slow
def test_a_run_keeps_statistics_from_which_every_record_follows(tmp_path: Path) -> None:
    run = lexbench.run(
        "lexlet",
        method=["none", "rerope"],
        task="resolution",
        corpus="synthetic",
        lengths=[64, 512],
        n=2,
        backend="native",
        results=tmp_path,
    )
    rows = run.records().set_index(["method", "length", "metric"]).value
    names = {"resolution": "resolution_shared", "resolution_7_8": "resolution", "resolution_all": "resolution_all"}
    names |= {"attention_distance": "distance", "entropy": "entropy"}
    found = Store(tmp_path).load()
    assert len(found) == 4 and len(rows) == 24
    for each in found:
        kept = [sample.statistics for sample in each.samples]
        for metric, name in names.items():
            expected = np.mean([statistics[name] for statistics in kept])
            assert rows[str(each.cell.method), each.cell.length, metric] == pytest.approx(expected, rel=1e-6)
        assert all(len(statistics["curve"]) == each.cell.length for statistics in kept)
    for metric in names:  # below its window rerope is the model itself
        assert rows["none", 64, metric] == pytest.approx(rows["rerope", 64, metric])
