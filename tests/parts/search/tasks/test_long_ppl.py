"""LongPPL: the same key tokens at every length, enough context before each, and files that do not fit."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lexbench
from lexbench import Corpus, Loglikelihood, LoglikelihoodAnswer, Refused, Tokenizer
from lexbench.checkpoints.tokenizer import FastTokenizer
from lexbench.corpora.synthetic import Synthetic
from lexbench.stats.records import records_of
from lexbench.store.format import FinishedCell
from tests.answerers import perfect, uniform
from tests.key_files import key_file

LENGTHS = [20, 33, 64]
PLACES: tuple[list[int], ...] = ([20, 21, 40, 41, 44, 70, 99], [30], [], [15, 16, 60])
"""Key words of each document of 100."""


@pytest.fixture
def corpus(numbers: Callable[..., Corpus]) -> Corpus:
    return numbers(100, 100, 100, 100)


def written(file: Path, corpus: Corpus, places: Any = PLACES, short: int = 8, end: int = 10**9) -> str:
    """A file of key tokens: each is a word; words are five digits and a blank."""
    spans = {f"n{number}": [[6 * word, 6 * word + 5] for word in words] for number, words in enumerate(places)}
    return key_file(file, corpus, spans, short, end)


@pytest.fixture
def task(tmp_path: Path, corpus: Corpus) -> lexbench.Task:
    return lexbench.task("long_ppl", corpus=corpus, keys=written(tmp_path / "keys.jsonl", corpus))


def questions_of(task: lexbench.Task, tokenizer: Tokenizer, length: int, n: int, seed: int = 0) -> list[Loglikelihood]:
    found = task.for_lengths(LENGTHS).questions(tokenizer, length, n, seed)
    return [question for question in found if isinstance(question, Loglikelihood)]


def targets(question: Loglikelihood) -> list[int]:
    """Tokens whose NLL is in the sample: each token gets its own number as NLL."""
    sample = lexbench.task("long_ppl").score(
        question, LoglikelihoodAnswer(nll=question.tokens[question.first_target :].astype(np.float32))
    )
    assert sample.nll is not None
    return [int(value) for value in sample.nll]


def test_every_key_token_is_kept_once_at_every_length(task: lexbench.Task, counting: Tokenizer) -> None:
    expected = sorted(10_000 * (number + 1) + word for number, words in enumerate(PLACES) for word in words)
    for length in LENGTHS:
        questions = questions_of(task, counting, length, 3)
        assert sorted(token for question in questions for token in targets(question)) == expected
        assert {question.length for question in questions} == {length}


@pytest.mark.everyday("bos-None", "no_bos-3")
@pytest.mark.parametrize("stride", [None, 1, 3, 30])
def test_windows_are_text_with_enough_before_each_key_token(
    tmp_path: Path, corpus: Corpus, counting: Tokenizer, stride: int | None
) -> None:
    """length - stride tokens, or all of the document; never less than the short context of 8."""
    file = written(tmp_path / "keys.jsonl", corpus)
    prefix = len(counting.prefix)
    for length in LENGTHS:
        width = length - prefix
        step = min(stride or length // 4, width - 8)
        for question in questions_of(
            lexbench.task("long_ppl", corpus=corpus, keys=file, stride=stride), counting, length, 3
        ):
            text = question.tokens[prefix:]
            assert question.tokens[:prefix].tolist() == list(counting.prefix)
            assert (np.diff(text) == 1).all()
            begin = int(text[0]) % 10_000
            kept = [token % 10_000 for token in targets(question)]
            assert all(place - begin >= width - step or begin == 0 for place in kept)
            assert question.cluster == f"n{int(text[0]) // 10_000 - 1}" == question.facts["document"]
            assert question.facts["targets"] == kept
            assert question.tokens[question.first_target] == targets(question)[0]


def test_windows_are_those_of_the_docstring(tmp_path: Path, counting_without_bos: Tokenizer, numbers: Any) -> None:
    corpus = numbers(17)
    file = written(tmp_path / "keys.jsonl", corpus, [[5, 9, 11, 15]], short=4)
    task = lexbench.task("long_ppl", corpus=corpus, keys=file, stride=4, document_tokens=16)
    found = [
        (*(q.tokens[[0, -1]] % 10_000).tolist(), len(targets(q)))
        for q in questions_of(task, counting_without_bos, 8, 1)
    ]
    assert found == [(0, 7, 1), (4, 11, 2), (8, 15, 1)]


def test_documents_follow_from_the_seed_and_not_from_the_file_or_stride(
    tmp_path: Path, corpus: Corpus, counting: Tokenizer
) -> None:
    file = written(tmp_path / "keys.jsonl", corpus)
    moved = written(tmp_path / "moved.jsonl", corpus)

    def order(seed: int, length: int = 64, n: int = 3, **parameters: Any) -> list[str]:
        questions = questions_of(lexbench.task("long_ppl", corpus=corpus, **parameters), counting, length, n, seed)
        return list(dict.fromkeys(question.cluster for question in questions))

    orders = [order(seed, keys=file) for seed in range(8)]
    assert all(sorted(each) == ["n0", "n1", "n3"] for each in orders)  # n2 has no key tokens
    assert len(set(map(tuple, orders))) > 1
    for seed in range(8):
        assert order(seed, keys=moved, stride=5) == order(seed, length=20, keys=file) == orders[seed]
        assert order(seed, n=2, keys=file) == orders[seed][:2]


def test_a_uniform_model_has_the_vocabulary_and_a_flawless_one_one(
    task: lexbench.Task, corpus: Corpus, tokenizer: FastTokenizer
) -> None:
    questions = task.for_lengths([160, 480]).questions(tokenizer, 160, 3, 0)
    assert len(questions) > 3
    rng = np.random.default_rng(0)
    for answerer, perplexity in [(uniform, tokenizer.vocabulary), (perfect, 1.0)]:
        answers = [answerer(q, tokenizer, rng) if answerer is uniform else perfect(q, tokenizer) for q in questions]
        samples = [task.score(question, answer) for question, answer in zip(questions, answers, strict=True)]
        cell: Any = plan_cell(task, corpus)
        records = {record.metric: record for record in records_of(FinishedCell(cell, samples, None))}
        assert records["perplexity"].value == pytest.approx(perplexity, rel=1e-6)
        assert "word_perplexity" not in records
        assert records["nll"].clusters == 3


def plan_cell(task: lexbench.Task, corpus: Corpus) -> Any:
    """A cell with names only."""
    names = (
        "model",
        "method",
        "task",
        "task_name",
        "protocol",
        "backend",
        "dtype",
        "kernel",
        "corpus",
        "version",
        "id",
    )
    facts = {**dict.fromkeys(names, "x"), "length": 160, "trained_length": 160, "seed": 0, "n": 3, "identity": {}}
    return type("Cell", (), facts)


def test_bytes_are_those_of_the_key_tokens_alone(task: lexbench.Task, tokenizer: FastTokenizer) -> None:
    """Digits are single tokens: five a word, each of one byte, in windows of any width."""
    for length in (160, 480):
        questions = task.for_lengths([160, 480]).questions(tokenizer, length, 3, 0)
        scores = [question for question in questions if isinstance(question, Loglikelihood)]
        assert sum(question.bytes for question in scores) == 5 * sum(map(len, PLACES))
        kept = "".join(tokenizer.decode([int(token)]) for question in scores for token in digits(question))
        words = {str(10_000 * (number + 1) + word) for number, each in enumerate(PLACES) for word in each}
        assert {kept[place : place + 5] for place in range(0, len(kept), 5)} == words


def digits(question: Loglikelihood) -> list[int]:
    """Target tokens from the facts: places in the document; tokens[start] is the first."""
    first = question.facts["targets"][0]
    return [int(question.tokens[question.first_target + place - first]) for place in question.facts["targets"]]


def test_a_target_that_is_no_number_has_failed(task: lexbench.Task, counting: Tokenizer) -> None:
    [question, *_] = questions_of(task, counting, 64, 1)
    lost = np.zeros(question.length - question.first_target, np.float32)
    lost[0] = np.inf
    assert task.score(question, LoglikelihoodAnswer(nll=lost)).failed
    assert task.score(question, LoglikelihoodAnswer(nll=np.zeros_like(lost))).failed is None


def test_the_protocol_and_the_identity_hold_the_files_content(
    tmp_path: Path, corpus: Corpus, counting: Tokenizer
) -> None:
    first = lexbench.task("long_ppl", corpus=corpus, keys=written(tmp_path / "keys.jsonl", corpus))
    said = first.for_lengths(LENGTHS).protocol(counting)
    for part in (
        "judge, yarn(factor=8.0)",
        "gain > 2 nats",
        "a context of 8 of 101",
        "loss < 2",
        "read to 64 tokens or more",
    ):
        assert part in said
    hashed = vars(first)["keys_hash"]
    assert f"keys {hashed} by" in said and len(hashed) == 12
    again = lexbench.task("long_ppl", corpus=corpus, keys=written(tmp_path / "moved.jsonl", corpus))
    other = lexbench.task("long_ppl", corpus=corpus, keys=written(tmp_path / "keys.jsonl", corpus, [[9], [], [], []]))
    assert vars(again)["keys_hash"] == hashed != vars(other)["keys_hash"]
    assert lexbench.core.objects.instance_label(first, "long_ppl", "task").endswith(f"keys_hash='{hashed}')")


def test_what_does_not_fit_is_refused_with_a_remedy(
    tmp_path: Path, corpus: Corpus, numbers: Any, counting: Tokenizer
) -> None:
    bare = lexbench.task("long_ppl", corpus=corpus)
    with pytest.raises(
        Refused, match=r"needs a file of key tokens, got none: make one by `lexbench keys .* task.keys=FI"
    ):
        questions_of(bare, counting, 64, 1)
    assert "none given" in bare.protocol(counting)
    with pytest.raises(ValueError, match=r"nowhere.jsonl cannot be read .*: make one by `lexbench keys"):
        lexbench.task("long_ppl", corpus=corpus, keys=str(tmp_path / "nowhere.jsonl"))
    file = written(tmp_path / "keys.jsonl", corpus)
    task = lexbench.task("long_ppl", corpus=corpus, keys=file)
    with pytest.raises(
        Refused, match=r"keys.jsonl must hold key tokens of this corpus, got another one's: make one by"
    ):
        questions_of(lexbench.task("long_ppl", corpus=numbers(100, 100), keys=file), counting, 64, 1)
    with pytest.raises(
        Refused, match=r"needs 4 documents with key tokens of which the evaluator read 64 .* has 3 \(.*: lower"
    ):
        questions_of(task, counting, 64, 4)
    with pytest.raises(
        Refused, match=r"needs 1 documents .* read 164 tokens, .* has 0 \(of the longest it read 10[01]\)"
    ):
        task.for_lengths([164]).questions(counting, 64, 1, 0)
    with pytest.raises(Refused, match="reads documents of 64 tokens, asked for 65: raise document_tokens"):
        questions_of(task, counting, 65, 1)
    least = 9 + len(counting.prefix)
    assert questions_of(task, counting, least, 1)
    with pytest.raises(Refused, match=f"needs at least {least} tokens, asked for {least - 1}"):
        questions_of(task, counting, least - 1, 1)
    for name in ("stride", "document_tokens"):
        with pytest.raises(ValueError, match=f"long_ppl's {name} must be at least 1, got 0"):
            lexbench.task("long_ppl", corpus=corpus, **{name: 0})


def test_documents_of_just_the_longest_length_count_and_first_tokens_never(
    tmp_path: Path, corpus: Corpus, counting: Tokenizer
) -> None:
    file = written(tmp_path / "keys.jsonl", corpus, [[0, 30], [0], [], []])
    whole = 100 + len(counting.prefix)
    task = lexbench.task("long_ppl", corpus=corpus, keys=file)
    [question] = task.for_lengths([whole]).questions(counting, whole, 1, 0)
    assert question.facts["targets"] == [30]
    with pytest.raises(Refused, match=r"needs 2 documents .* has 1 \("):
        task.for_lengths([whole]).questions(counting, whole, 2, 0)
    with pytest.raises(Refused, match=f"needs 1 documents .* {whole + 1} tokens, .* has 0"):
        task.for_lengths([whole + 1]).questions(counting, whole, 1, 0)


def test_no_length_is_longer_than_what_the_evaluator_has_read(
    tmp_path: Path, corpus: Corpus, counting: Tokenizer
) -> None:
    """The evaluator read 50 words and part of another: 51 tokens and BOS."""
    prefix = len(counting.prefix)
    for end, most in ((300, 50), (302, 51)):
        file = written(tmp_path / "keys.jsonl", corpus, [[20, 40], [30], [], []], end=end)
        task = lexbench.task("long_ppl", corpus=corpus, keys=file)
        assert len(task.for_lengths([most + prefix]).questions(counting, 20, 2, 0)) > 2
        with pytest.raises(
            Refused, match=rf"read {most + prefix + 1} tokens, .* \(of the longest it read {most + prefix}\)"
        ):
            task.for_lengths([most + prefix + 1]).questions(counting, 20, 1, 0)


def test_it_runs_from_a_job_with_the_corpus_inserted(tmp_path: Path) -> None:
    corpus = Synthetic(count=4, words=300)
    spans = {document.name: [[400, 410], [900, 905]] for document in corpus.documents()}
    file = key_file(tmp_path / "keys.jsonl", corpus, spans, 8)
    run = lexbench.run(
        "lexlet",
        task={"name": "long_ppl", "keys": file},
        corpus={"name": "synthetic", "count": 4, "words": 300},
        backend="chance",
        lengths=[64, 256],
        n=4,
        results=tmp_path / "run",
    )
    records = run.records()
    perplexities = records[records.metric == "perplexity"]
    assert list(perplexities.value) == pytest.approx([2048.0, 2048.0])
    assert list(perplexities.clusters) == [4, 4]


def test_windows_are_told_as_if_every_token_were_a_key_token(
    tmp_path: Path, corpus: Corpus, counting: Tokenizer
) -> None:
    """A window of each document more or less: BOS is no text, and the last window ends with the document."""
    places = [list(range(9, 100))] * 4
    keys = written(tmp_path / "keys.jsonl", corpus, places)
    task = lexbench.task("long_ppl", corpus=corpus, keys=keys, document_tokens=100)
    for length in (20, 32, 64, 100):
        told, asked = task.outline(counting, length, 4, 0), task.questions(counting, length, 4, 0)
        assert {question.length for question in asked} == {told.length} == {length}
        assert abs(told.questions - len(asked)) <= 4
    for length in (8, 101):
        with pytest.raises(Refused) as foreseen:
            task.outline(counting, length, 4, 0)
        with pytest.raises(Refused) as refused:
            task.questions(counting, length, 4, 0)
        assert foreseen.value.reason == refused.value.reason
