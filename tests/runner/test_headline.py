"""What a stranger runs first: the headline has a cell at every default length, for every trained length and suite."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from lexbench import Encoded, Frame
from lexbench.checkpoints.checkpoint import facts_suffice, local_folder, read_model
from lexbench.core import registry
from lexbench.core.task import Tokens
from lexbench.corpora.packages import MAX_CHARACTERS_PER_TOKEN, MAX_DEFAULT_LENGTH_TOKENS
from lexbench.runner.cells import PlannedCell
from lexbench.runner.job import Job
from lexbench.runner.plan import fit_lengths, plan_cells
from lexbench.runner.questions import made_once, questions_or_reason


class Wide:
    """The fewest tokens that any tokenizer is taken to make: one of every 5 characters, behind BOS."""

    bos, prefix, vocabulary = 0, (0,), 1 << 20

    def encode(self, text: str) -> Encoded:
        starts = np.arange(0, len(text), MAX_CHARACTERS_PER_TOKEN, dtype=np.int64)
        ids = (
            np.frombuffer(text.encode("latin-1", "replace"), np.uint8)[::MAX_CHARACTERS_PER_TOKEN].astype(np.int64) + 1
        )
        return Encoded(ids=ids, starts=starts, text=text)

    def decode(self, ids: Sequence[int] | Tokens) -> str:
        raise NotImplementedError

    def frame(self, chat: bool) -> Frame:
        return Frame(np.zeros(1, np.int64), np.empty(0, np.int64))


WIDE = Wide()


def known(name: str) -> bool:
    """Whether a yaml has all facts, or its checkpoint is here."""
    stated = registry.read_named_config("model", name)
    return facts_suffice(stated) or str(stated.get("path")).startswith("lexbench:")


MODELS = [name for name in registry.registered_names("model") if known(name)]
BY_LENGTH = {registry.read_named_config("model", name).get("trained_length"): name for name in MODELS}
"""For each trained length one model: lengths, texts and targets follow from it."""
HEADLINE = "last_segment"


def job(model: str, task: str, own: Mapping[str, Any] | None = None, **given: Any) -> Job:
    """A job of one task or suite with `own` parameters."""
    stated: Mapping[str, Any] = registry.read_named_config("model", model)
    usual: dict[str, Any] = {"lengths": None, "multiples": None, "n": None, "corpus": None}
    return Job.of(
        model=read_model(stated, offline=facts_suffice(stated)),
        methods=[{"name": "none", **registry.read_named_config("method", "none")}],
        tasks=[{"name": task, **registry.read_named_config("task", task), **(own or {})}],
        backend={"name": "chance"},
        seeds=[0],
        results=None,
        **{**usual, **given},
    )


def headline(made: Job) -> list[PlannedCell]:
    return reached(replace(made, tasks=[task for task in made.tasks if task.name == HEADLINE]))


def reached(made: Job) -> list[PlannedCell]:
    """The steps of a run, refused as when each is reached."""
    found = []
    for step in plan_cells(fit_lengths(made, WIDE), WIDE):
        _, refused = questions_or_reason(step.task, WIDE, step.length, made.n, step.seed)
        found.append(replace(step, refusal_reason=step.refusal_reason or (refused.reason if refused else None)))
    return found


def suites() -> list[str]:
    named = [name for name in registry.registered_names("task") if "suite" in registry.read_named_config("task", name)]
    return [HEADLINE, *(name for name in named if any(t.name == HEADLINE for t in job("lexlet", name).tasks))]


@pytest.mark.slow
@pytest.mark.parametrize("model", sorted(BY_LENGTH.values()))
def test_every_default_length_up_to_131072_tokens_has_the_headline(model: str) -> None:
    """Also: the targets are the same at every length, and come from as many documents as there are samples, or 30."""
    for suite in suites():
        made = job(model, suite)
        steps = headline(made)
        measured = {step.length for step in steps if step.refusal_reason is None}
        assert measured >= {length for length in made.lengths if length <= MAX_DEFAULT_LENGTH_TOKENS}, suite
        task = steps[0].task
        asked = [made_once.of(task.obj, WIDE, length, made.n, 0)[0] for length in sorted(measured)]
        targets = [[(q.facts["document"], q.facts["first_target"], q.facts["end"]) for q in each] for each in asked]
        assert all(each == targets[0] for each in targets)
        assert made.corpus.name == "stdlib" or len({document for document, *_ in targets[0]}) >= min(made.n, 30)
        for step in steps:
            if step.refusal_reason is not None:
                assert step.length > MAX_DEFAULT_LENGTH_TOKENS
                assert f"documents of {step.length} tokens" in step.refusal_reason
                assert "task.stream=true" in step.refusal_reason
                assert "corpus.size=" in step.refusal_reason


@pytest.mark.slow
def test_the_models_and_suites_are_those_that_strangers_run() -> None:
    assert {"llama2", "llama3_1", "qwen2", "lexlet"} <= set(MODELS)
    assert set(suites()) >= {"last_segment", "demo", "standard", "lex", "quick", "smoke"}
    assert local_folder(str(registry.read_named_config("model", "lexlet")["path"]))


def test_the_embedded_model_still_reads_held_out_modules_by_default() -> None:
    made = job("lexlet", "demo")
    assert (made.corpus.name, made.corpus.label, made.corpus.obj.split) == ("stdlib", "stdlib", "test")
    assert made.config["corpus"] == {"name": "stdlib", **registry.read_named_config("corpus", "stdlib")}


def test_without_a_name_parameters_go_to_the_usual_corpus() -> None:
    assert job("lexlet", "demo", corpus={"split": "all"}).corpus.label == "stdlib(split='all')"
    assert job("llama2", "demo", corpus={"count": 7}).corpus.label == "packages(size=163840, count=7)"


def test_a_length_without_texts_is_refused_and_the_others_are_as_in_a_run_without_it() -> None:
    """By hand: documents of 4096 words, with at most 8192 tokens; 64 documents, so 64 places at 4096 tokens."""
    synthetic = {"name": "synthetic", **registry.read_named_config("corpus", "synthetic")}
    whole = headline(job("lexlet", HEADLINE, corpus=synthetic, lengths=[128, 1024, 4096, 65536]))
    fewer = headline(job("lexlet", HEADLINE, corpus=synthetic, lengths=[128, 1024, 4096]))
    assert {step.length: step.refusal_reason is None for step in whole} == {
        65536: False,
        4096: True,
        1024: True,
        128: True,
    }
    assert [(step.task, step.length) for step in whole[1:]] == [(step.task, step.length) for step in fewer]
    assert whole[0].task.obj.longest == 4096
    assert "places of 4096 tokens" in whole[0].task.obj.protocol(WIDE)
    assert str(whole[0].refusal_reason).startswith(
        "last_segment needs 32 places in documents of 65536 tokens, the corpus has 0"
    )


@pytest.mark.parametrize("task", ["sliding", "non_overlapping", "prefix", "resolution"])
def test_other_tasks_of_long_documents_keep_the_lengths_that_fit(task: str) -> None:
    synthetic = {"name": "synthetic", **registry.read_named_config("corpus", "synthetic")}
    made = job("lexlet", task, corpus=synthetic, lengths=[128, 4096, 65536], n=4)
    steps = {step.length: step.refusal_reason for step in reached(made)}
    assert (steps[128], steps[4096]) == (None, None)
    assert "65536 tokens" in str(steps[65536])
    assert "corpus=packages" in str(steps[65536])


def test_a_length_that_the_user_sets_for_all_places_is_kept() -> None:
    synthetic = {"name": "synthetic", **registry.read_named_config("corpus", "synthetic")}
    made = job("lexlet", HEADLINE, {"longest": 65536}, corpus=synthetic, lengths=[128, 4096])
    assert all("of 65536 tokens" in str(step.refusal_reason) for step in reached(made))
