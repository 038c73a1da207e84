"""A method or task that fails is recorded at its cells, and the others are measured."""

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lexbench
from lexbench import Answer, AnyQuestion, Loglikelihood, Sample, Task
from lexbench.checkpoints.checkpoint import locate_checkpoint
from lexbench.checkpoints.tokenizer import load_tokenizer
from lexbench.commands import main
from lexbench.core.attention import Positions
from lexbench.core.errors import ConfigError
from lexbench.core.fence import attention_from, check_questions
from lexbench.core.guard import plugin_guard
from lexbench.core.record import Deferred, Refused
from lexbench.store.store import Store

METHOD = '''
from dataclasses import dataclass

from lexbench import Attention, Model


@dataclass(frozen=True)
class Broken:
    """Fail at one length."""

    def attention(self, model: Model, length: int) -> Attention:
        if length == 512:
            {failure}
        return Attention()
'''


@pytest.mark.slow
@pytest.mark.parametrize(
    ("failure", "said"),
    [
        ("1e308 ** 2", "OverflowError"),
        ("{}['angle']", "KeyError ('angle')"),
        ("assert length < 500, 'too long'", "AssertionError (too long)"),
        ("raise RuntimeError('two\\nlines')", "RuntimeError (two lines)"),
        ("import sys; sys.exit(0)", "SystemExit (0)"),
        ("int('x')", "ValueError (invalid literal for int() with base 10: 'x')"),
        ("import numpy; numpy.arange(length).reshape(3, 5)", "ValueError (cannot reshape array"),
        ("import statistics; statistics.quantiles([1, 2], n=0)", "StatisticsError (n must be at least 1)"),
    ],
)
def test_a_failing_method_of_a_user_costs_its_own_cell_only(
    failure: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LEXBENCH_CONFIG_PATH", "")
    (tmp_path / "mine/method").mkdir(parents=True)
    (tmp_path / "mine/method/broken.yaml").write_text(f"file: {tmp_path / 'broken.py'}\n")
    (tmp_path / "broken.py").write_text(METHOD.replace("{failure}", failure))
    words = ["run", "-m", "method=broken,none", "task=passkey", "backend=chance", "lengths=[128,512]", "n=2"]
    assert main.main([*words, "--config-dir", str(tmp_path / "mine"), f"results={tmp_path / 'run'}"]) == 0
    assert "Traceback" not in capsys.readouterr().err
    found = {(str(each.cell.method), each.cell.length): each for each in Store(tmp_path / "run").load()}
    assert [at for at, each in found.items() if each.refused] == [("broken", 512)]
    reason = found["broken", 512].refused
    assert reason is not None
    assert (
        reason.startswith("Broken.attention fails with") and said in reason and reason.endswith("in broken.py, line 13")
    )


@pytest.mark.everyday("index", "unsaid")
@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("index", "fails with AssertionError (no sample of question 2)"),
        ("nothing", "fails with AssertionError (no sample of question 2)"),
        ("error", "fails with ZeroDivisionError"),
        ("unscored", "gave accuracy for sample 0 and not for sample 2: give it for every sample, or say failed"),
        ("unsaid", "fails with AssertionError (sample 2 with failed without a reason)"),
    ],
)
def test_a_failing_score_is_measured_again_when_the_task_is_mended(
    wrong: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    passkey = type(lexbench.task("passkey"))
    score: Callable[[Task, AnyQuestion, Answer], Sample] = passkey.score

    def failing(task: Task, question: AnyQuestion, answer: Answer) -> Any:
        sample = score(task, question, answer)
        if wrong == "error" and question.index == 2:
            raise ZeroDivisionError
        if question.index != 2:
            return sample
        changed = {
            "index": replace(sample, index=7),
            "nothing": None,
            "unscored": replace(sample, scores={}),
            "unsaid": replace(sample, scores={}, failed=""),
        }
        return changed[wrong]

    def measured() -> tuple[int, str | None]:
        lexbench.run("lexlet", task="passkey", backend="chance", lengths=[128], n=4, results=tmp_path)
        [found] = Store(tmp_path).load()
        return len(found.samples), found.refused

    monkeypatch.setattr(passkey, "score", failing)
    refused = measured()[1]
    assert refused is not None and refused.startswith(f"Passkey.score {said}")
    monkeypatch.setattr(passkey, "score", score)
    assert measured() == (4, None)


def question(index: int = 0, size: int = 8, token: int = 5) -> Loglikelihood:
    tokens = np.full(size, token, dtype=np.int64)
    return Loglikelihood(index=index, cluster="a", tokens=tokens, first_target=1, bytes=1, words=1)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (None, "TypeError"),
        ([question(1), question(1)], "two questions have one index"),
        ([question(size=9)], "question 0 has 9 tokens, asked for 8"),
        ([question(token=2048)], "question 0 holds ids that are no tokens of the vocabulary"),
        ([question(token=-1)], "question 0 holds ids that are no tokens of the vocabulary"),
        (["text"], "AssertionError (str is no question)"),
    ],
)
def test_questions_that_cannot_be_asked_are_told_from_those_that_can(asked: Any, said: str) -> None:
    tokenizer = load_tokenizer(locate_checkpoint("lexbench:lexlet"))
    check_questions([question(0), question(1, token=2047)], tokenizer, 8)
    with pytest.raises(Deferred) as refusal, plugin_guard("Told.questions"):
        check_questions(asked, tokenizer, 8)
    assert refusal.value.reason.startswith("Told.questions fails with") and said in refusal.value.reason


@pytest.mark.parametrize("error", [ConfigError("wrong setting"), Refused("no honest answer"), OSError("no file")])
def test_what_has_its_own_meaning_passes_the_fence(error: Exception) -> None:
    with pytest.raises(type(error)) as raised, plugin_guard("anything"):
        raise error
    assert raised.value is error


@pytest.mark.everyday("n=99999999999", "multiples=[nan]")
@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("n=99999999999", "n must be at most 1,000,000 samples a cell, got 99,999,999,999"),
        ("lengths=[1000000000000000000000]", "lengths must be at most 134,217,728 tokens, got 1e+21"),
        ("multiples=[1e308]", "multiples must give at most 134,217,728 tokens, got 1e+308 of 256: e.g. multiples="),
        ("multiples=[nan]", "multiples must be numbers above 0, got nan"),
        ("model.bos=no", "model.bos must be true, false or null"),
    ],
)
def test_settings_beyond_their_bounds_are_one_line(word: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["run", "task=passkey", word, "--dry-run"]) == 2
    error = capsys.readouterr().err
    assert said in error.splitlines()[-1] and "Traceback" not in error


class OwnError(BaseException):
    """No Exception: neither `except Exception` nor pytest expects it."""


@pytest.mark.parametrize(
    ("fail", "said"),
    [
        (lambda: os._exit(0), "SystemExit (os._exit(0))"),
        (lambda: sys.exit(0), "SystemExit (0)"),
        (lambda: (_ for _ in ()).throw(OwnError("mine")), "OwnError (mine)"),
    ],
    ids=["os._exit", "sys.exit", "BaseException"],
)
def test_a_plug_in_ends_no_sweep_without_a_word(fail: Any, said: str) -> None:
    python, outside = os._exit, os.getpid()
    with pytest.raises(Deferred) as refusal, plugin_guard("Mine.attention"):
        fail()
    assert f"Mine.attention fails with {said}" in refusal.value.reason
    assert os._exit is python and os.getpid() == outside


def test_a_process_that_a_plug_in_forks_ends_itself() -> None:
    with plugin_guard("Mine.attention"):
        child = os.fork()
        if child == 0:
            os._exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def test_a_wrong_signature_names_the_method_and_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LEXBENCH_CONFIG_PATH", "")
    (tmp_path / "mine/method").mkdir(parents=True)
    (tmp_path / "mine/method/sig.yaml").write_text(f"file: {tmp_path / 'sig.py'}\n")
    (tmp_path / "sig.py").write_text(
        "from dataclasses import dataclass\n\n\n@dataclass(frozen=True)\nclass Sig:\n"
        "    def attention(self, model):\n        return None\n"
    )
    words = ["run", "method=sig", "task=passkey", "backend=chance", "lengths=[128]", "n=2"]
    assert main.main([*words, "--config-dir", str(tmp_path / "mine"), f"results={tmp_path / 'run'}"]) == 2
    said = "lexbench: Sig.attention must take (model, length), takes (model): correct it in sig.py"
    assert said in capsys.readouterr().err


@dataclass(frozen=True)
class Before:
    """The keys from `least` to `most` tokens before a query."""

    least: int
    most: int = 64

    def allowed(self, queries: Positions, keys: Positions) -> Any:
        back = queries[:, None] - keys[None, :]
        return (self.least <= back) & (back <= self.most)


@dataclass(frozen=True)
class Masked:
    least: int

    def attention(self, model: lexbench.Model, length: int) -> lexbench.Attention:
        mask: Any = Before(self.least)
        return lexbench.Attention(mask=mask)


def test_a_mask_that_leaves_a_query_without_keys_is_refused() -> None:
    """From the query's own key on, each query has one; from the key before, the first query has none."""
    model = lexbench.Model(name="m", trained_length=128, head_dim=4, rope_base=16.0)
    assert attention_from(Masked(0), model, 256).slots() == ("mask",)
    with pytest.raises(ValueError, match="must let each query see a key, got none for query 0: allow its own"):
        attention_from(Masked(1), model, 256)


@dataclass(frozen=True)
class Jittered:
    """Frequencies that differ a little at each call; with a seed, the same ones."""

    seed: int | None = None

    def attention(self, model: lexbench.Model, length: int) -> lexbench.Attention:
        drawn = np.random.default_rng(self.seed).normal(1, 1e-3, model.rotated // 2)
        return lexbench.Attention(inv_freq=model.inv_freq() * drawn)


def test_a_method_that_gives_another_attention_at_each_call_is_refused() -> None:
    model = lexbench.Model(name="m", trained_length=256, head_dim=16, rope_base=10_000.0)
    with pytest.raises(
        ValueError, match=r"^Jittered\.attention: must return the same Attention each time, got another"
    ):
        attention_from(Jittered(), model, 512)
    fixed = attention_from(Jittered(seed=0), model, 512).inv_freq
    assert fixed is not None and not np.allclose(fixed, model.inv_freq(), rtol=1e-4)


@dataclass(frozen=True)
class Dropped:
    """A mask that leaves out other keys at each call."""

    def allowed(self, q: Positions, k: Positions) -> Any:
        far = np.random.default_rng().random((len(q), len(k))) < 0.5
        return (k[None, :] <= q[:, None]) & (far | (k[None, :] == q[:, None]))


@dataclass(frozen=True)
class Dropping:
    def attention(self, model: lexbench.Model, length: int) -> lexbench.Attention:
        mask: Any = Dropped()
        return lexbench.Attention(mask=mask)


def test_a_mask_that_draws_at_random_is_refused() -> None:
    model = lexbench.Model(name="m", trained_length=256, head_dim=16, rope_base=10_000.0)
    with pytest.raises(ValueError, match=r"mask\.allowed must allow the same keys each time"):
        attention_from(Dropping(), model, 512)
