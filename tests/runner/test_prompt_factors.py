"""Where a length is a ceiling, each prompt is read with the factor of its own length."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lexbench
from lexbench import Sample
from lexbench.backends import Capabilities
from lexbench.backends.chance import Chance
from lexbench.report.tables import terminal_tables
from lexbench.runner import answers
from lexbench.runner.prompt_factors import group_lengths, group_of_length
from lexbench.store.format import FinishedCell
from lexbench.store.store import Store

pytestmark = pytest.mark.usefixtures("one_thread", "unverified")
TEXTS = '''
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lexbench import Answer, AnyQuestion, Loglikelihood, Sample, Task, Tokenizer

SIZES = [100, 256, 600, 257, 1024, 512]


@dataclass(frozen=True)
class Texts(Task):
    """Texts of several lengths."""

    factor: str = "prompt"

    @property
    def factor_of_prompt(self) -> bool:
        return self.factor == "prompt"

    def protocol(self, tokenizer: Tokenizer) -> str:
        return "texts of several lengths"

    def questions(self, tokenizer: Tokenizer, length: int, n: int, seed: int) -> Sequence[AnyQuestion]:
        ids = np.random.default_rng(0).integers(3, 60, max(SIZES))
        kept = [min(size, length) for size in SIZES[:n]]
        return [
            Loglikelihood(index=index, cluster=str(index), tokens=ids[:size], first_target=1, bytes=9, words=9)
            for index, size in enumerate(kept)
        ]

    def score(self, question: AnyQuestion, answer: Answer) -> Sample:
        facts = dict(question.facts)
        return Sample(
            index=question.index, cluster=question.cluster, tokens=question.length, nll=answer.nll, bytes=9, words=9,
            facts=facts,
        )
'''
FACTORS = {0: 1.0, 1: 1.0, 2: 4.0, 3: 2.0, 4: 4.0, 5: 2.0}
"""Of each text of `Texts` under a ceiling of 1,024 tokens, T = 256."""


@pytest.fixture
def texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A task with texts of 100 to 1,024 tokens."""
    folder = tmp_path / "own/task"
    folder.mkdir(parents=True)
    (folder / "texts.py").write_text(TEXTS)
    (folder / "texts.yaml").write_text("file: texts.py\n")
    monkeypatch.setenv("LEXBENCH_CONFIG_PATH", str(tmp_path / "own"))
    return "texts"


@pytest.fixture
def data(tmp_path: Path) -> str:
    """A copy of two sets of LongBench-E, of texts of about 90 to 900 tokens of lexlet."""
    rng, folder = np.random.default_rng(0), tmp_path / "data"
    folder.mkdir()
    words = ["the", "house", "on", "a", "hill", "has", "red", "door", "and", "small", "garden", "dog", "sleeps"]
    for name, answer in (("hotpotqa", "garden"), ("passage_count", "3")):
        rows = [
            {"input": "where is the dog?", "context": " ".join(rng.choice(words, count)), "answers": [answer]}
            | {"length": count, "dataset": name, "language": "en", "all_classes": None, "_id": f"{name}{count}"}
            for count in (20, 40, 150, 400)
        ]
        (folder / f"{name}_e.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return str(folder)


def measured(folder: Path, task: Any, method: Any, lengths: Any = (1024,), **more: Any) -> list[FinishedCell]:
    given = {"lengths": None if lengths is None else list(lengths), "n": 6, "price": False, **more}
    run = lexbench.run("lexlet", method, task, results=folder, quiet=True, **given)
    return Store(folder).load(run.cells)


def nll(sample: Sample) -> np.ndarray:
    assert sample.nll is not None
    return sample.nll


def of_longbench(data: str, **more: Any) -> dict[str, Any]:
    return {"name": "longbench", "dataset": "hotpotqa", "e": True, "data": data, "room": 8, **more}


def test_a_group_is_the_least_power_of_two_times_t_that_holds_a_prompt() -> None:
    assert group_lengths(256, 1024) == [256, 512, 1024]
    assert group_lengths(256, 700) == [256, 512, 700]
    assert group_lengths(256, 256) == [256] and group_lengths(256, 100) == [100]
    found = [group_of_length(tokens, [256, 512, 700]) for tokens in (1, 256, 257, 512, 513, 700)]
    assert found == [256, 256, 512, 512, 700, 700]


@pytest.mark.parametrize("method", ["ntk", "yarn"])
def test_likelihoods_of_a_group_are_those_under_its_factor(tmp_path: Path, texts: str, method: str) -> None:
    [whole] = measured(tmp_path / "prompt", texts, method)
    assert {each.index: each.facts["factor"] for each in whole.samples} == FACTORS
    assert {each.index: each.tokens for each in whole.samples} == dict(enumerate([100, 256, 600, 257, 1024, 512]))
    fixed = {
        factor: measured(
            tmp_path / f"{factor}", {"name": texts, "factor": "ceiling"}, {"name": method, "factor": factor}
        )
        for factor in (1.0, 2.0, 4.0)
    }
    for sample in whole.samples:
        by_factor = {
            factor: next(s for s in cell.samples if s.index == sample.index) for factor, [cell] in fixed.items()
        }
        own = by_factor.pop(sample.facts["factor"])
        np.testing.assert_allclose(nll(sample), nll(own), atol=2e-5)
        for other in by_factor.values():
            assert np.abs(nll(sample) - nll(other)).max() > 1e-3
    [none] = measured(tmp_path / "none", texts, "none")
    for index in (0, 1):
        np.testing.assert_allclose(nll(whole.samples[index]), nll(none.samples[index]), atol=2e-5)


def test_answers_of_longbench_are_those_under_the_factor_of_each_prompt(tmp_path: Path, data: str) -> None:
    [whole] = measured(tmp_path / "prompt", of_longbench(data), "ntk")
    fixed = {
        factor: measured(
            tmp_path / f"{factor}", of_longbench(data, factor="ceiling"), {"name": "ntk", "factor": factor}
        )
        for factor in (1.0, 2.0, 4.0)
    }
    assert {each.facts["factor"] for each in whole.samples} == {1.0, 2.0, 4.0}
    for sample in whole.samples:
        [cell] = fixed[sample.facts["factor"]]
        assert sample.output == next(each.output for each in cell.samples if each.index == sample.index)
        assert f"factor {sample.facts['factor']:g}" in sample.parts


def test_a_ceiling_for_all_is_the_cell_of_before(tmp_path: Path, data: str) -> None:
    prompt, ceiling = (
        measured(tmp_path / policy, of_longbench(data, factor=policy), "ntk", backend="chance")[0]
        for policy in ("prompt", "ceiling")
    )
    assert "factor" not in ceiling.cell.identity["task"] and set(ceiling.cell.identity["attention"]) == {"inv_freq"}
    assert not any("factor" in sample.facts for sample in ceiling.samples)
    assert prompt.cell.identity["task"] == {**ceiling.cell.identity["task"], "factor": "prompt"}
    assert prompt.cell.identity["attention"]["groups"]["1024"] == ceiling.cell.identity["attention"]
    assert prompt.cell.identity["attention"]["groups"].keys() == {"256", "512", "1024"}
    assert "the factor is that of each prompt" in prompt.cell.protocol
    assert "factor" not in ceiling.cell.protocol


def test_an_interrupted_cell_goes_on_in_its_groups(tmp_path: Path, texts: str, monkeypatch: pytest.MonkeyPatch) -> None:
    [whole] = measured(tmp_path / "whole", texts, "ntk")
    ask, asked = answers.answer_question, list[int]()

    def interrupted(backend: Any, question: Any) -> Any:
        if len(asked) == 3:
            raise KeyboardInterrupt
        asked.append(question.index)
        return ask(backend, question)

    with monkeypatch.context() as patch:
        patch.setattr(answers, "answer_question", interrupted)
        with pytest.raises(KeyboardInterrupt):
            measured(tmp_path / "broken", texts, "ntk")
    assert asked == [4, 2, 5], "the longest group comes first, and in it the longest text"
    [again] = measured(tmp_path / "broken", texts, "ntk")
    assert [sample.facts["factor"] for sample in sorted(again.samples, key=lambda each: each.index)] == [
        *FACTORS.values()
    ]
    for one, other in zip(whole.samples, again.samples, strict=True):
        np.testing.assert_allclose(nll(one), nll(other), atol=2e-5)


def test_a_backend_of_one_method_refuses_several_factors_and_takes_one(
    tmp_path: Path, texts: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Chance, "capabilities", Capabilities(one_method=True))
    [refused] = measured(tmp_path / "several", texts, "ntk", backend="chance")
    assert refused.refused == "ntk has a factor for each prompt, chance one for all: give task.factor=ceiling"
    [one] = measured(tmp_path / "one", texts, "ntk", backend="chance", n=2)  # both texts fit into T
    assert one.refused is None and len(one.samples) == 2
    [fixed] = measured(tmp_path / "fixed", texts, {"name": "ntk", "factor": 4}, backend="chance")
    assert fixed.refused is None


def test_default_ceilings_follow_the_method(tmp_path: Path, data: str) -> None:
    def lengths(method: Any, **more: Any) -> set[int]:
        folder = tmp_path / f"{method}{more}"
        found = measured(folder, {"name": "longbench_e", "data": data, **more}, method, None, backend="chance")
        return {each.cell.length for each in found}

    assert lengths("none") == lengths({"name": "ntk", "factor": 4}) == {256}
    assert lengths(["none", "ntk"]) == {256, 512, 1024}
    assert lengths("ntk", factor="ceiling") == {256}


def test_tables_count_the_prompts_that_are_read_as_by_none(tmp_path: Path, data: str) -> None:
    task = of_longbench(data)
    run = lexbench.run(
        "lexlet", ["none", "ntk"], task, results=tmp_path / "run", quiet=True, backend="chance", n=4, price=False
    )
    cells = Store(tmp_path / "run").load(run.cells)
    fit = {sample.index for each in cells for sample in each.samples if sample.tokens <= 256 and not sample.truncated}
    text = terminal_tables([(tmp_path / "run", [each.cell.id for each in cells])])
    assert "At 256: ntk is none for all 4 prompts." in text
    assert f"At 1024: {len(fit)} of 4 prompts fit into 256 tokens, where ntk is none." in text and len(fit) == 2
    longest = next(each for each in cells if each.cell.length == 1024)
    assert f"(median {np.median([sample.tokens for sample in longest.samples]):g}) at 1024" in text
    both = lexbench.run(
        "lexlet",
        ["none", "ntk"],
        {"name": "longbench_e", "data": data},
        results=tmp_path / "both",
        quiet=True,
        backend="chance",
        n=4,
        price=False,
    )
    text = terminal_tables([(tmp_path / "both", sorted(both.cells or ()))])
    assert "4 of 8 prompts fit into 256 tokens, where ntk is none." in text
    assert "ntk is none for all 8 prompts." in text and "n 4 50% cut" in text


@pytest.mark.parts
def test_another_policy_is_refused(data: str) -> None:
    with pytest.raises(ValueError, match=r"^longbench's factor must be prompt or ceiling, got 'text': e\.g\. task"):
        lexbench.task("longbench", dataset="hotpotqa", data=data, e=True, factor="text")
    with pytest.raises(ValueError, match=r"^babilong's factor must be prompt or ceiling, got 'text': e\.g\. task"):
        lexbench.task("babilong", factor="text")
