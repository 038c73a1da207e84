"""What is taken from earlier answers is what asking again gives; and nothing is asked that need not be."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lexbench
from lexbench.backends.hf.reading.reader import Reader
from lexbench.checkpoints.checkpoint import locate_checkpoint, read_model
from lexbench.checkpoints.tokenizer import load_tokenizer
from lexbench.core.task import AnyQuestion, Choose, Generate
from lexbench.runner import answers
from lexbench.runner.reuse import cells_with_fewer_questions, cheapest_order
from lexbench.store.format import FinishedCell
from lexbench.store.store import Store
from tests.report.fake_run import cell

pytestmark = pytest.mark.usefixtures("one_thread", "unverified")
LENGTHS = [128, 256, 512]
CORPUS: dict[str, Any] = {"name": "synthetic", "count": 6, "words": 1000}


@contextmanager
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[int, int]]]:
    """Texts and tokens of each in every forward pass of hf's network."""
    read: list[tuple[int, int]] = []
    states = Reader.states

    def count(self: Reader, tokens: Any, *more: Any) -> Any:
        read.append((tokens.shape[0], tokens.shape[1]))
        return states(self, tokens, *more)

    with monkeypatch.context() as patch:
        patch.setattr(Reader, "states", count)
        yield read


def run(folder: Path, **settings: Any) -> list[FinishedCell]:
    lexbench.run("lexlet", results=folder, **{"corpus": CORPUS, "n": 4, "lengths": LENGTHS, **settings})
    return Store(folder).load()


def check_alike(ours: list[FinishedCell], theirs: list[FinishedCell]) -> None:
    assert [each.cell.id for each in ours] == [each.cell.id for each in theirs]
    for one, other in zip(ours, theirs, strict=True):
        assert (one.refused, len(one.samples)) == (other.refused, len(other.samples))
        for left, right in zip(one.samples, other.samples, strict=True):
            assert (left.output, left.scores.keys()) == (right.output, right.scores.keys())
            np.testing.assert_allclose(list(left.scores.values()), list(right.scores.values()), atol=1e-5)
            assert (left.nll is None) == (right.nll is None)
            if left.nll is not None and right.nll is not None:
                np.testing.assert_allclose(left.nll, right.nll, atol=2e-5)


SLOW: list[Any] = ["passkey", {"name": "needle", "options": 4}]
TASKS = ["prefix", *SLOW]


@pytest.mark.parametrize("task", ["prefix", *(pytest.param(each, marks=pytest.mark.slow) for each in SLOW)], ids=str)
def test_numbers_are_those_without_reuse(task: Any, tmp_path: Path) -> None:
    settings = {"task": task, "method": ["none", "ms_poe"], "lengths": [128, 160], "n": 2}
    check_alike(*(run(tmp_path / str(on), reuse=on, **settings) for on in (True, False)))


@pytest.mark.slow
def test_numbers_of_many_methods_are_those_without_reuse(tmp_path: Path) -> None:
    methods = ["none", "bca", "dynamic_ntk", "yarn+log_n"]
    settings = {"task": [*TASKS, "smoke"], "method": methods, "lengths": [128, 400], "n": 2}
    check_alike(*(run(tmp_path / str(on), reuse=on, **settings) for on in (True, False)))


@pytest.mark.slow
def test_numbers_of_the_native_backend_are_those_without_reuse(tmp_path: Path) -> None:
    methods = ["none", "rerope", "bca", "ms_poe", "attention_buckets", "yarn+log_n"]
    settings = {"task": TASKS, "method": methods, "lengths": [128, 300], "n": 2, "backend": "native"}
    check_alike(*(run(tmp_path / str(on), reuse=on, **settings) for on in (True, False)))


def test_a_prefix_is_scored_once_for_all_lengths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with counted(monkeypatch) as read:
        run(tmp_path, task="prefix", method="rerope")
    texts = [length for _, length in read if length > LENGTHS[0]]
    assert texts.count(LENGTHS[-1] - 1) == 4, "each of four documents at the greatest length"
    assert LENGTHS[1] - 1 not in texts, "and never at a smaller one"


@pytest.mark.everyday("dynamic_ntk")
@pytest.mark.parametrize("method", ["dynamic_ntk", "ms_poe", "ntk"])
def test_what_follows_the_length_is_scored_at_each(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with counted(monkeypatch) as read:
        run(tmp_path, task="prefix", method=method, lengths=[300, 600], n=1)
    assert [[size for _, size in read].count(length - 1) for length in (300, 600)] == [1, 1]


@pytest.mark.slow
@pytest.mark.parametrize("task", [{"name": "passkey"}, {"name": "needle", "options": 4}], ids=str)
def test_prompts_are_read_from_where_they_part(
    task: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lexlet = read_model(lexbench.core.registry.read_named_config("model", "lexlet"))
    tokenizer = load_tokenizer(locate_checkpoint(str(lexlet.path)), lexlet.bos)
    asked = lexbench.task(corpus=lexbench.corpus(**CORPUS), **task).questions(tokenizer, 512, 6, 0)
    prompts = [tuple(each.prompt.tolist()) for each in asked if isinstance(each, Generate | Choose)]
    whole = 0
    for before, prompt in zip([(), *sorted(prompts)], sorted(prompts), strict=False):
        shared = next((n for n, pair in enumerate(zip(before, prompt, strict=False)) if len(set(pair)) > 1), 0)
        whole += len(prompt) - (shared if shared >= len(prompt) / 4 else 0)
    with counted(monkeypatch) as read:
        run(tmp_path, task=task, method="none", lengths=[512], n=6)
    assert len(prompts) == 6
    assert sum(texts * size for texts, size in read if size > 16) == whole  # later passes are of the answer
    assert (whole < sum(map(len, prompts))) == (task["name"] == "passkey"), "needles here share less than a quarter"


@pytest.mark.slow
def test_methods_that_attend_alike_share_their_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    ask = answers.answer_question

    def counting(backend: Any, question: Any) -> Any:
        asked.append(question.index)
        return ask(backend, question)

    monkeypatch.setattr(answers, "answer_question", counting)
    alike = {"task": "last_segment", "lengths": [256], "n": 3}  # lexlet's trained length: ntk, yarn change nothing
    found = run(tmp_path / "a", method=["none", "ntk", "dynamic_ntk"], **alike)
    assert [len(each.samples) for each in found] == [3, 3, 3]
    assert len(asked) == 3 * len({json.dumps(each.cell.identity["attention"]) for each in found})
    rows = [json.loads(line) for line in (tmp_path / "a/costs.jsonl").read_text().splitlines()]
    assert sorted(row["cell"] for row in rows) == [each.cell.id for each in found]
    before = len(asked)
    run(tmp_path / "a", method=["none", "pi"], **alike)  # of an earlier run of this process
    assert len(asked) == before
    check_alike(found, run(tmp_path / "b", method=["none", "ntk", "dynamic_ntk"], reuse=False, **alike))
    assert len(asked) == before + 9


def asked(*prompts: list[int]) -> list[AnyQuestion]:
    return [
        Generate(index=index, cluster="", prompt=np.array(prompt), max_new_tokens=1)
        for index, prompt in enumerate(prompts)
    ]


def test_prompts_that_share_two_fifths_are_sorted_by_beginning_and_others_by_length() -> None:
    shares = asked([1, 2, 3, 9], [7, 7, 7, 1], [1, 2, 3, 4], [7, 7, 7, 7], [1, 2, 3, 5], [7, 7, 7, 4])
    assert [each.index for each in cheapest_order(shares, reuse=True)] == [2, 4, 0, 1, 5, 3], (
        "12 of 24 tokens are shared"
    )
    assert [each.index for each in cheapest_order(shares[:5], reuse=True)] == [2, 4, 0, 1, 3], "9 of 20"
    assert [each.index for each in cheapest_order(shares[:4], reuse=True)] == [0, 1, 2, 3], "6 of 16"
    assert [each.index for each in cheapest_order(shares, reuse=False)] == [0, 1, 2, 3, 4, 5]
    uneven = asked([1, 2], [3, 4, 5], [6], [1, 3, 4])
    assert [each.index for each in cheapest_order(uneven, reuse=True)] == [1, 3, 0, 2]


@pytest.mark.parametrize("damage", ["[" * 100_000, '{"config": {"n": 1' + "0" * 5000 + "}}", "\x00", '{"config": []}'])
def test_a_damaged_page_of_a_job_tells_no_number_of_questions(damage: str, tmp_path: Path) -> None:
    """A greater n asks the pages of earlier jobs; what one of them is like says nothing of the settings at hand."""
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "a.json").write_text(damage)
    (tmp_path / "jobs" / "b.json").write_text('{"config": {"n": 4}}')
    asked = cell("passkey", "none", 256, n=8)
    assert [fewer.n for fewer in cells_with_fewer_questions(tmp_path, asked)] == [4]
