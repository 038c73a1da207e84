"""The same passage at far positions: scores are those of transformers at these positions."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional as F
from transformers import AutoModelForCausalLM

import lexbench
from lexbench import Attention, Loglikelihood, Refused
from lexbench.backends.hf.backend import Hf
from lexbench.checkpoints.checkpoint import local_folder, read_model
from lexbench.checkpoints.tokenizer import FastTokenizer
from lexbench.core.attention import Shift
from lexbench.corpora.synthetic import Synthetic
from lexbench.runner.job import Job
from lexbench.runner.plan import min_memory_bytes, plan_cells
from tests.backends.named import backend_class

LEXLET = read_model({"path": "lexbench:lexlet"})
CORPUS = Synthetic(count=4, words=900)
LENGTHS = [160, 4096, 1 << 20]


def passage(tokenizer: FastTokenizer, length: int) -> Loglikelihood:
    task = lexbench.task("offset", corpus=CORPUS).for_lengths(LENGTHS)
    [question] = task.questions(tokenizer, length, 1, 0)
    assert isinstance(question, Loglikelihood)
    return question


def test_the_passage_is_the_same_and_its_positions_end_at_the_length(lexlet: FastTokenizer) -> None:
    task = lexbench.task("offset", corpus=CORPUS).for_lengths(LENGTHS)
    found = [passage(lexlet, length) for length in LENGTHS]
    assert all((each.tokens == found[0].tokens).all() and each.first_target == found[0].first_target for each in found)
    assert found[0].length == 160 and found[0].length - found[0].first_target == 80, "its second half"
    assert task.attention(160).slots() == ()
    assert [task.attention(length).as_data()["remap"]["offset"] for length in LENGTHS[1:]] == [3936, 1048416]
    with pytest.raises(Refused, match="offset needs at least 160 tokens, asked for 100"):
        task.questions(lexlet, 100, 1, 0)
    with pytest.raises(Refused, match="offset has positions up to 16,777,216"):
        task.questions(lexlet, 1 << 25, 1, 0)


@pytest.mark.slow
def test_scores_are_those_of_transformers_at_these_positions_with_its_loss_of_precision(lexlet: FastTokenizer) -> None:
    folder, asked, model = local_folder("lexbench:lexlet"), passage(lexlet, 160), Hf(LEXLET)
    theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokens, wanted = torch.from_numpy(asked.tokens)[None], torch.from_numpy(asked.tokens[asked.first_target :])

    def expected(offset: int) -> np.ndarray:
        with torch.inference_mode():
            logits = theirs(tokens, position_ids=torch.arange(tokens.shape[1])[None] + offset).logits[0]
        return F.cross_entropy(logits[asked.first_target - 1 : -1], wanted, reduction="none").numpy()

    for offset in (3936, 1_000_000):
        model.attend(Attention(remap=Shift(offset)))
        np.testing.assert_allclose(model.score(asked).nll, expected(offset), atol=1e-4)
    # A float32 angle of a million radians is off by up to 0.03: positions really are that large.
    assert abs(expected(1_000_000) - expected(0)).max() > 5e-3


@pytest.mark.slow
def test_native_rotates_exactly_so_that_only_distances_count(lexlet: FastTokenizer) -> None:
    asked, exact = passage(lexlet, 160), backend_class("native")(LEXLET)
    exact.attend(Attention())
    here = exact.score(asked).nll
    exact.attend(Attention(remap=Shift(1_000_000)))
    np.testing.assert_allclose(exact.score(asked).nll, here, atol=1e-4)


def test_all_pairs_shift_alike() -> None:
    [region] = Shift(7).regions()
    places = np.arange(4)
    assert region.query(places).tolist() == region.key(places).tolist() == [7, 8, 9, 10]
    assert region.holds(places[:, None], places[None, :]).all()


def job(methods: list[str], backend: str = "hf") -> Job:
    return Job.of(
        model={"name": "lexlet", "path": "lexbench:lexlet"},
        methods=[{"name": name, **registry_of(name)} for name in methods],
        tasks=[{"name": "offset", "file": str(Path("lexbench/parts/benchmarks/tasks/offset.py").resolve())}],
        corpus={"name": "synthetic", "_target_": "lexbench.corpora.synthetic.Synthetic", "words": 900},
        backend={"name": backend},
        lengths=[160, 4096],
        multiples=None,
        n=1,
        seeds=[0],
        results=None,
        price=False,
    )


def registry_of(method: str) -> dict[str, str]:
    from lexbench.core import registry

    return registry.read_named_config("method", method)


def test_a_plan_joins_the_positions_with_the_method_or_says_why_not(lexlet: FastTokenizer) -> None:
    steps = {(step.method.label, step.length): step for step in plan_cells(job(["none", "yarn", "rerope"]), lexlet)}
    assert steps["none", 160].attention is not None and steps["none", 160].attention.slots() == ()
    far = steps["yarn", 4096].attention
    assert far is not None and set(far.slots()) == {"inv_freq", "scale", "remap"} and far.remap == Shift(3936)
    assert steps["rerope", 4096].refusal_reason == (
        "rerope cannot be combined with the positions of offset: both set remap"
    )
    one, other = (min_memory_bytes(LEXLET, steps["none", length], "float32") for length in (160, 4096))
    assert one == other, "it reads no more tokens"
