"""What a plan promises is what the formulas say."""

import functools
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import AutoConfig

from lexbench import Attention, Model, Outline, task
from lexbench.backends.hf.reading.batches import assumed_caches, kept_numbers
from lexbench.checkpoints.checkpoint import locate_checkpoint, read_model
from lexbench.checkpoints.config_facts import facts_of_config
from lexbench.checkpoints.tokenizer import FastTokenizer, load_tokenizer
from lexbench.core import registry
from lexbench.core.attention import Dynamic
from lexbench.core.layer_cache import LayerCache
from lexbench.core.method_key import MethodKey
from lexbench.corpora.synthetic import Synthetic
from lexbench.runner.cells import BackendFacts, Component, MethodComponent, PlannedCell, Workload
from lexbench.runner.forecast import cell_workload, format_duration, parameter_count
from lexbench.runner.job import Job
from lexbench.runner.plan import (
    _reads_once,
    describe_plan,
    fit_lengths,
    min_memory_bytes,
    open_cell_of,
    peak_memory_bytes,
    plan_cells,
    write_job_file,
)
from lexbench.runner.questions import questions_or_reason
from lexbench.store.store import Store
from tests.census import tiny as census

MODEL = Model(
    name="m", trained_length=64, head_dim=8, layers=2, width=32, heads=4, kv_heads=2, vocabulary=100, rope_base=1e4
)


def test_parameters_are_close_to_those_of_a_real_decoder() -> None:
    llama2 = Model(name="llama2", trained_length=4096, head_dim=128, layers=32, width=4096, heads=32, vocabulary=32000)
    assert parameter_count(llama2) == pytest.approx(6.74e9, rel=0.06)  # the published count


def test_flops_grow_linearly_and_then_with_the_square() -> None:
    def score(length: int) -> float:
        return cell_workload(MODEL, Outline(1, length)).flops

    # by hand: P = 12 * 2 * 32^2 + 100 * 32 = 27776; 2 P n + 2 * 2 * 32 n^2
    assert score(10) == 2 * 27776 * 10 + 128 * 100
    assert score(1000) == 2 * 27776 * 1000 + 128 * 1000**2


def test_writing_counts_every_new_token_over_the_whole_context() -> None:
    write = cell_workload(MODEL, Outline(1, 100, max_new_tokens=10))
    assert (write.questions, write.tokens, write.steps) == (1, 100, 10)
    assert write.flops == 2 * 27776 * 100 + 128 * 100**2 + 2 * 128 * 10 * 100


def test_a_probe_costs_three_passes() -> None:
    once, probed = (cell_workload(MODEL, Outline(4, 100, probes=probes)) for probes in (False, True))
    assert (probed.tokens, probed.flops) == (once.tokens, 3 * once.flops)


def test_a_text_is_counted_once_for_the_questions_behind_it_where_it_is_read_once() -> None:
    """By hand: 10 questions behind 3 texts of 100 tokens; 7 of them read and write 25 more, each of which sees 100."""
    several = Outline(10, 100, max_new_tokens=10, per_text=4, apart=25)
    cost = cell_workload(MODEL, several, once=True)
    assert (cost.questions, cost.tokens, cost.steps) == (10, 3 * 100 + 7 * 25, 100)
    assert cost.dense == 2 * 27776 * (3 * 100 + 7 * 25)
    assert cost.quadratic == 128 * (3 * 100**2 + 3 * 2 * 10 * 100 + 7 * 2 * 25 * 100)
    alone = cell_workload(MODEL, several)
    assert (alone.tokens, alone.dense) == (1000, 2 * 27776 * 1000)
    assert alone.quadratic == 10 * (128 * 100**2 + 2 * 128 * 10 * 100)


def test_memory_holds_weights_and_cache() -> None:
    # float32: weights, keys and values of 2 layers with half the heads, a dozen activations
    assert peak_memory_bytes(MODEL, 1000) == 4 * (27776 + 1000 * 32 * (2 * 2 * 0.5 + 12))


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0.1, "1 second"), (59, "59 seconds"), (600, "10 minutes"), (9000, "2 hours"), (1e6, "12 days")],
)
def test_durations_read_well(seconds: float, said: str) -> None:
    assert format_duration(seconds) == said


def part(label: str) -> Component:
    return Component(label, None, label)


def method(name: str) -> MethodComponent:
    return MethodComponent.of(name, None, MethodKey.of_method(name))


def test_the_plan_names_everything_and_what_is_refused() -> None:
    steps = [
        PlannedCell(method("none"), part("passkey"), 64, 0, None, None, Workload(4, 1000, 1e6)),
        PlannedCell(method("none"), part("passkey"), 16, 0, None, "needs 55 tokens", Workload()),
    ]
    text = describe_plan(MODEL, steps, Path("runs/m"))
    assert "1 cell, 1,000 tokens" in text
    assert "lengths  16, 64" in text
    assert "refused  none passkey 16: needs 55 tokens" in text
    assert re.search(r"about \d+ \w+", text)


CORPUS = {"name": "synthetic", **registry.read_named_config("corpus", "synthetic"), "count": 3, "words": 200}


def planned(lengths: Sequence[int], tasks: Sequence[str] = ("last_segment",), **settings: Any) -> list[PlannedCell]:
    """The plan of lexlet under none and pi with texts of some 400 tokens."""
    return plan_cells(job(lengths, tasks, **settings), tokenizer())


HF = {"name": "hf", **registry.read_named_config("backend", "hf")}


def job(lengths: Sequence[int], names: Sequence[str] = ("last_segment",), **settings: Any) -> Job:
    return Job.of(
        model=registry.read_named_config("model", "lexlet"),
        corpus=CORPUS,
        lengths=lengths,
        multiples=None,
        **{
            "tasks": [{"name": name, **registry.read_named_config("task", name)} for name in names],
            "methods": [{"name": name, **registry.read_named_config("method", name)} for name in ("none", "pi")],
            "backend": {"name": "chance"},
            "n": 2,
            "seeds": [0, 1],
            "results": None,
            **settings,
        },
    )


@functools.cache
def tokenizer() -> FastTokenizer:
    return load_tokenizer(locate_checkpoint(str(read_model(registry.read_named_config("model", "lexlet")).path)))


def places(steps: Sequence[PlannedCell]) -> list[tuple[str, int, int, str]]:
    return [(step.task.label, step.seed, step.length, step.method.label) for step in steps]


def test_cells_stand_by_task_and_seed_the_longest_first_and_methods_side_by_side() -> None:
    steps = planned([64, 128], ("passkey", "last_segment"))
    assert places(steps) == [
        (label, seed, length, method)
        for label in ("passkey", "last_segment")
        for seed in (0, 1)
        for length in (128, 64)
        for method in ("none", "pi")
    ]
    assert not any(step.refusal_reason for step in steps)
    assert [step.length for step in planned([64, 128], stop_after_collapse=True)] == 2 * [64, 64, 128, 128]


def test_work_is_foreseen_by_the_first_seed() -> None:
    one, other = planned([128], seeds=[3]), planned([128], ("passkey",), seeds=[3])
    assert [(step.workload.questions, step.workload.tokens, step.workload.steps) for step in one] == [(2, 256, 0)] * 2
    assert all(step.workload.questions == 2 and step.workload.tokens == 256 for step in other)
    assert all(step.workload.steps > 2 for step in other)  # two keys are written
    both = planned([128], ("passkey",), seeds=[3, 4])
    assert {step.workload for step in both} == {other[0].workload}


def test_a_length_without_texts_is_refused_alone_and_the_others_are_as_without_it() -> None:
    lengths = [64, 128, 5000, 6000]
    assert not any(step.refusal_reason for step in planned(lengths)), "the questions decide"
    fitted = fit_lengths(job(lengths), tokenizer())
    with_long, without = plan_cells(fitted, tokenizer()), planned([64, 128])
    assert not any(step.is_foreseen for step in with_long)
    long = [step for step in with_long if step.length > 128]
    assert len(long) == 8 and all("the corpus" in (step.refusal_reason or "") for step in long)
    assert {(step.workload.tokens, step.workload.flops) for step in long} == {(0, 0.0)}
    short = [step for step in with_long if step.length <= 128]
    assert places(short) == places(without)
    assert [step.task.obj for step in short] == [step.task.obj for step in without]  # its places fit 128 tokens
    assert [step.workload for step in short] == [step.workload for step in without]
    none_left = plan_cells(fit_lengths(job([5000, 6000]), tokenizer()), tokenizer())
    assert {step.length for step in none_left if step.refusal_reason} == {6000}, (
        "the last length is refused when it is asked"
    )


def test_a_length_too_short_for_the_task_is_foreseen_and_refused_by_its_questions(tmp_path: Path) -> None:
    short = [step for step in planned([16, 64], ("passkey",)) if step.length == 16]
    assert len(short) == 4 and all(step.is_foreseen and step.workload == Workload() for step in short)
    _, refused = questions_or_reason(short[0].task, tokenizer(), 16, 2, 0)
    assert refused is not None and {step.refusal_reason for step in short} == {refused.reason}


@pytest.mark.parts("backend1", "backend2", "backend3")
@pytest.mark.parametrize(
    ("backend", "reuse", "texts"),
    [
        ({"name": "hf"}, True, 2),
        ({"name": "native"}, True, 2),
        ({"name": "vllm"}, True, 2),
        ({"name": "vllm", "prefix_caching": False}, True, 8),
        ({"name": "chance"}, True, 8),
        ({"name": "hf"}, False, 8),
    ],
)
def test_texts_are_counted_as_a_backend_reads_them(backend: dict[str, Any], reuse: bool, texts: int) -> None:
    """8 questions of 1000 tokens, 4 behind each text: 2 texts, and fewer than 100 tokens of each further question."""
    several = {"name": "passkey", **registry.read_named_config("task", "passkey"), "questions_per_text": 4}
    backend = {**registry.read_named_config("backend", backend["name"]), **backend}
    made = job([1000], (), tasks=[several], backend=backend, n=8, reuse=reuse, seeds=[0])
    for step in plan_cells(made, tokenizer()):
        more = step.workload.tokens - 1000 * texts
        assert more == 0 if texts == 8 else 0 < more < 6 * 100


def test_a_text_is_read_for_each_question_where_its_end_or_length_changes_how_it_is_read() -> None:
    several = {"name": "passkey", **registry.read_named_config("task", "passkey"), "questions_per_text": 4}
    methods = [{"name": name, **registry.read_named_config("method", name)} for name in ("none", "ms_poe")]
    made = job([1000], (), tasks=[several], methods=methods, backend=HF, n=8, seeds=[0])
    once, ranked = (step.workload.tokens for step in plan_cells(made, tokenizer()))
    assert once < 3000 < ranked == 8000
    scaling = {"rope_type": "dynamic", "factor": 2.0}
    for stated in (scaling, {"full_attention": scaling}):
        growing = replace(made, model=replace(made.model, rope_scaling=stated))
        assert not _reads_once(growing, Attention()) and _reads_once(growing, Attention(inv_freq=np.ones(8)))
    assert not _reads_once(made, Attention(dynamic=Dynamic(2.0, 256)))


def test_a_method_that_cannot_be_applied_is_refused_at_its_length_and_costs_nothing() -> None:
    settled = job([64], seeds=[0])
    bare = replace(settled, model=replace(settled.model, rope_base=None))
    none, pi = plan_cells(bare, tokenizer())
    assert none.refusal_reason is None and none.workload.questions == 2 and none.attention is not None
    assert pi.attention is None and pi.refusal_reason and pi.workload == Workload()


def test_least_memory_is_one_layers_activations_and_a_cache_to_write() -> None:
    reading, writing = read_and_written(1000)
    # by hand: 1000 tokens of width 32; state, queries and what attention gives, and half as wide keys and values;
    # a cache of both in two layers
    assert min_memory_bytes(MODEL, reading, "float32") == 4 * 1000 * 32 * (3 + 2 * 0.5)
    assert min_memory_bytes(MODEL, writing, "bfloat16") == 2 * 1000 * 32 * (3 + 2 * 0.5 + 2 * 2 * 0.5)
    alone = replace(MODEL, heads=None, kv_heads=None)  # unknown: as many keys as queries
    assert min_memory_bytes(alone, writing, "float32") == 4 * 1000 * 32 * (3 + 2 + 2 * 2)
    assert peak_memory_bytes(alone, 10) == 4 * (27776 + 10 * 32 * (2 * 2 + 12))
    assert peak_memory_bytes(MODEL, 10, "bfloat16") == peak_memory_bytes(MODEL, 10) / 2
    assert peak_memory_bytes(MODEL, 10, "of tomorrow") == peak_memory_bytes(MODEL, 10, "bfloat16")
    assert min_memory_bytes(MODEL, reading, "of tomorrow") == min_memory_bytes(MODEL, reading, "bfloat16")
    unknown = Model(name="u", trained_length=64, head_dim=8)
    assert (peak_memory_bytes(unknown, 10), min_memory_bytes(unknown, writing, "float32")) == (0, 0)


def test_no_memory_is_asked_for_what_layers_with_windows_or_states_do_not_keep() -> None:
    """Of four layers one keeps all keys, one a state, and two 15 tokens of a window of 16; 2 heads of 8 numbers."""
    full, window = LayerCache(2, 8, 8), LayerCache(2, 8, 8, window=16)
    model = replace(MODEL, layers=4, kv_heads=2, layer_caches=(window, None, full, window))
    writing = PlannedCell(method("none"), part("t"), 1000, 0, None, None, Workload(1, 1000, steps=7))
    cache = (1000 + 15 + 15) * 2 * 2 * 8
    assert min_memory_bytes(model, writing, "float32") == 4 * (1000 * (3 * 32 + 2 * 2 * 8) + cache)
    whole = replace(model, parameters=10**6)
    assert peak_memory_bytes(whole, 1000) == 4 * (10**6 + 12 * 1000 * 32 + cache)
    wide = replace(model, layer_caches=(LayerCache(1, 24, 24), None))  # one head of 24 numbers
    assert min_memory_bytes(wide, writing, "float32") == 4 * (1000 * (3 * 32 + 2 * 2 * 8) + 1000 * 2 * 24)


def read_and_written(length: int) -> tuple[PlannedCell, PlannedCell]:
    """Cells of this length: one whose questions are only read, and one whose answers are written."""
    reading, writing = (
        PlannedCell(method("none"), part("t"), length, 0, None, None, Workload(1, length, steps=steps))
        for steps in (0, 7)
    )
    return reading, writing


NEMO = {"hidden_size": 5120, "num_attention_heads": 32, "num_hidden_layers": 40, "num_key_value_heads": 8}
QWEN = {"hidden_size": 1024, "num_attention_heads": 16, "num_hidden_layers": 28, "num_key_value_heads": 8}
LENGTH = 131_072


@pytest.mark.parametrize(("kind", "sizes", "cache", "read"), [("mistral", NEMO, 20, 3.75), ("qwen3", QWEN, 14, 1.75)])
def test_memory_counts_heads_of_their_own_size(kind: str, sizes: dict[str, int], cache: int, read: float) -> None:
    """Heads of 128 numbers: in Mistral-Nemo less than width / heads, in Qwen3-0.6B more.

    GiB at 131,072 tokens in bfloat16, by hand. Caches: 2 x 40 x 8 x 128 x 131,072 x 2 bytes = 20 GiB, 28 layers 14.
    Activations: the width; queries and what attention gives, 32 or 16 heads; keys and values, 8 heads.
    (5120 + 2 x 32 x 128 + 2 x 8 x 128) x 131,072 x 2 bytes = 3.75 GiB; (1024 + 2 x 16 x 128 + 2 x 8 x 128) 1.75.
    """
    config = AutoConfig.for_model(kind, **sizes, head_dim=128, max_position_embeddings=LENGTH, sliding_window=None)
    model = Model(name="m", parameters=0, **facts_of_config(config.to_dict()))
    reading, writing = (min_memory_bytes(model, step, "bfloat16") for step in read_and_written(LENGTH))
    assert (reading, writing - reading) == (read * 2**30, cache * 2**30)
    assert peak_memory_bytes(model, LENGTH, "bfloat16") == cache * 2**30 + 12 * sizes["hidden_size"] * LENGTH * 2
    caches = model.kept_by_layer()
    assert caches and 2 * kept_numbers(caches, LENGTH, slides=True, views=0) == cache * 2**30, "the backend's batches"
    assert assumed_caches(config) == list(caches)


def test_the_backend_counts_windows_where_they_drop_tokens_and_keys_at_further_positions() -> None:
    # by hand: 5 heads, keys of 4 numbers, values of 3; at 100 tokens, of which a window of 16 keeps 15
    caches = (LayerCache(5, 4, 3, window=16), None, LayerCache(5, 4, 3))
    assert kept_numbers(caches, 100, slides=True, views=0) == (15 + 100) * 5 * 7
    assert kept_numbers(caches, 100, slides=False, views=2) == 2 * 100 * 5 * (7 + 2 * 4)


@pytest.mark.parametrize("kind", ["deepseek_v2", "deepseek_v3"])
def test_as_much_cache_is_asked_for_as_latent_attention_keeps(kind: str) -> None:
    import torch

    network = census.network_of(kind)
    model = Model(name="m", **facts_of_config(network.config.to_dict()))
    assert model.decoupled
    cache = network(torch.arange(20)[None], use_cache=True).past_key_values
    kept = 4 * sum(layer.keys.numel() + layer.values.numel() for layer in cache.layers)
    reading, writing = (min_memory_bytes(model, step, "float32") for step in read_and_written(20))
    assert writing - reading == kept


def test_the_plan_in_words_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """600 seconds of 6e9 operations at 1e7 a second; float32 because nothing is a GPU."""
    speeds = {("float32", "auto"): 1e7, ("float32", "cpu"): 1e7, ("bfloat16", "auto"): 1e8}
    monkeypatch.setattr("lexbench.runner.plan.operations_per_second", lambda *computes_in: speeds[computes_in])
    monkeypatch.setattr("lexbench.core.machine.has_gpu_driver", lambda: False)
    corpus_task = Component("last_segment", task("last_segment", Synthetic()), "last_segment")
    steps = [
        PlannedCell(method("none"), corpus_task, 1 << 20, 0, None, None, Workload(4, 2_000_000, 2e9, 1e9)),
        PlannedCell(method("pi"), corpus_task, 1 << 20, 0, None, None, Workload(4, 2_000_000, 2e9, 1e9)),
        PlannedCell(method("pi"), part("passkey"), 16, 0, None, "needs 55 tokens", Workload(9, 9, 9e9)),
        PlannedCell(method("pi"), part("passkey"), 16, 1, None, "needs 55 tokens", Workload(9, 9, 9e9)),
        PlannedCell(method("none"), part("passkey"), 8, 0, None, "needs 55 tokens", Workload()),
        PlannedCell(method("none"), part("passkey"), 9, 0, None, "needs 56 tokens", Workload()),
    ]
    gib = 4 * (27776 + 2**20 * 32 * 14) / 2**30
    assert describe_plan(MODEL, steps, Path("runs/m"), "stdlib").splitlines() == [
        "m, trained at 64 tokens, into runs/m",
        "  methods  none, pi",
        "  tasks    last_segment, passkey",
        "  lengths  8, 9, 16, 1048576",
        "  texts    stdlib (as planned; the questions decide)",
        f"  2 cells, 4,000,000 tokens, about 10 minutes and {gib:.1f} GiB of model memory in float32",
        "  refused  pi passkey 16, none passkey 8: needs 55 tokens",
        "  refused  none passkey 9: needs 56 tokens",
    ]
    del steps[4:]
    assert "texts" not in describe_plan(MODEL, steps[2:], Path("runs/m"), "stdlib")
    assert describe_plan(MODEL, steps, Path("r"), backend={"dtype": "bfloat16"}).endswith(
        f"about 60 seconds and {gib / 2:.1f} GiB of model memory in bfloat16\n  refused  pi passkey 16: needs 55 tokens"
    )
    short = [replace(steps[0], length=1 << 10)]
    assert f" and {4 * (27776 + 2**10 * 32 * 14) / 2**20:.0f} MiB of model" in describe_plan(MODEL, short, Path("r"))
    monkeypatch.setattr("lexbench.core.machine.has_gpu_driver", lambda: True)
    assert " in bfloat16" in describe_plan(MODEL, steps, Path("r"))
    assert " in float32" in describe_plan(MODEL, steps, Path("r"), backend={"device": "cpu"})


def test_the_job_is_kept_with_what_it_is_measured_with_and_its_cells(tmp_path: Path) -> None:
    asked = job([64], seeds=[0])
    facts = BackendFacts("chance", "1.0", "float32", "eager", "abc", tokenizer())
    cells = [open_cell_of(asked, step, facts) for step in plan_cells(asked, tokenizer())]
    write_job_file(Store(tmp_path), asked, facts, cells)
    [file] = (tmp_path / "jobs").iterdir()
    page = json.loads(file.read_text())
    assert page["config"]["n"] == 2 and page["config"]["lengths"] == [64]
    measured = {"model_revision": "abc", "backend": "1.0", "dtype": "float32", "kernel": "eager"}
    assert page["provenance"].items() >= {**measured, "corpus_fingerprint": asked.corpus.fingerprint}.items()
    about = {"task": "last_segment", "length": 64, "seed": 0, "tokens": 128, "protocol": cells[0].protocol}
    assert page["cells"] == [{"cell": cell.id, "method": str(cell.method), **about} for cell in cells]
    write_job_file(Store(tmp_path), asked, facts, cells)
    assert len(list((tmp_path / "jobs").iterdir())) == 1
    passkey = job([64], ("passkey",), seeds=[0])
    write_job_file(Store(tmp_path), passkey, facts)
    pages = [json.loads(each.read_text()) for each in (tmp_path / "jobs").iterdir() if each != file]
    assert [(each["cells"], each["provenance"]["corpus_fingerprint"]) for each in pages] == [([], None)]


def test_a_job_keeps_that_two_files_begin_texts_otherwise(tmp_path: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        text = (locate_checkpoint("lexbench:lexlet") / name).read_text()
        (tmp_path / name).write_text(text.replace('"add_bos_token": true', '"add_bos_token": false'))
    said = json.loads(kept(tmp_path / "run", load_tokenizer(tmp_path)))["provenance"]["tokenizer"]
    assert said.startswith("texts begin with no token, by add_bos_token=false") and str(tmp_path) not in said
    assert "tokenizer" not in json.loads(kept(tmp_path / "sound", tokenizer()))["provenance"]


def kept(folder: Path, words: FastTokenizer) -> str:
    write_job_file(Store(folder), job([64], seeds=[0]), BackendFacts("chance", "1.0", "float32", "eager", "abc", words))
    [file] = (folder / "jobs").iterdir()
    return file.read_text()


def test_a_cells_identity_holds_all_that_its_samples_depend_on() -> None:
    asked = job([64, 512], ("last_segment", "passkey"), seeds=[5])
    facts = BackendFacts("hf", "transformers 5", "bfloat16", "sdpa", "abc", tokenizer())
    cells = {(step.task.label, step.method.label, step.length): step for step in plan_cells(asked, tokenizer())}
    pi = open_cell_of(asked, cells["passkey", "pi", 512], facts)
    assert pi.identity["model"] == {"name": "lexlet", "revision": "abc", "trained_length": 256, "begins_with": [0]}
    assert pi.identity["backend"] == {"name": "hf", "version": "transformers 5", "dtype": "bfloat16", "kernel": "sdpa"}
    assert (pi.identity["length"], pi.identity["seed"], pi.identity["n"]) == (512, 5, 2)
    assert pi.identity["method"]["name"] == "pi" and pi.identity["attention"] is not None
    assert pi.identity["task"]["version"] == 3 and pi.identity["corpus"] is None and pi.corpus is None
    assert (pi.model, str(pi.method), pi.task, pi.length, pi.trained_length) == ("lexlet", "pi", "passkey", 512, 256)
    segment = open_cell_of(asked, cells["last_segment", "none", 64], facts)
    assert segment.identity["corpus"]["fingerprint"] == asked.corpus.fingerprint
    assert segment.corpus == "synthetic(count=3, words=200)"
    assert len({segment.id, pi.id}) == 2


def test_a_cell_in_a_chat_begins_as_the_template_does(tmp_path: Path) -> None:
    """Cells of older versions, whose chats began with BOS nevertheless, are not taken for it."""
    lexlet = locate_checkpoint("lexbench:lexlet")
    settings = json.loads((lexlet / "tokenizer_config.json").read_text())
    (tmp_path / "tokenizer.json").write_text((lexlet / "tokenizer.json").read_text())
    niah = {"name": "niah_single_1", **registry.read_named_config("task", "niah_single_1")}
    for template, begins in (("{{ bos_token }}", [0]), ("", [])):
        template += "<user>{{ messages[0]['content'] }}<assistant>"
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({**settings, "chat_template": template}))
        for bos, in_chat in ((None, begins), (True, [0])):
            spoken = load_tokenizer(tmp_path, bos)
            for words, outside in ((spoken, [0]), (spoken.as_chat("a chat", None, False, 0), in_chat)):
                asked = job([400], tasks=[{**niah, "chat": chat} for chat in (False, True)], seeds=[0])
                facts = BackendFacts("chance", "1.0", "float32", "eager", "abc", words)
                cells = {each.task.label: open_cell_of(asked, each, facts) for each in plan_cells(asked, words)}
                for label, expected in zip(cells, (outside, in_chat), strict=True):
                    assert cells[label].identity["model"]["begins_with"] == expected
                    assert ("no BOS" in cells[label].protocol) == (not expected)


def test_each_part_of_a_job_states_its_identity_once_for_all_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    stated = list[object]()
    monkeypatch.setattr("lexbench.runner.cells.user_code_hash", lambda kind, *_: stated.append(kind))
    facts = BackendFacts("hf", "transformers 5", "bfloat16", "sdpa", "abc", tokenizer())
    asked = job([64, 512], ("passkey",), seeds=[0, 1])
    cells = [open_cell_of(asked, step, facts) for step in plan_cells(asked, tokenizer())]
    methods = {str(cell.method) for cell in cells}
    assert len(cells) > len(stated) == len(methods) + 1  # and the task
