"""Results of lm-evaluation-harness, in its own schema, as cells: every number by hand, or as the harness printed it."""

import functools
import json
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from scipy import stats
from tokenizers import models, pre_tokenizers, processors

from lexbench.commands import main
from lexbench.core.record import Record
from lexbench.parts.exchange import lm_eval
from lexbench.parts.exchange.lm_eval.results.command import ImportOutcome, import_lm_eval
from lexbench.report import tables as report
from lexbench.report.doctor import examine_runs
from lexbench.report.formats import sheet_markdown
from lexbench.stats import records, tables
from lexbench.store.format import FinishedCell
from lexbench.store.store import Store

DATE = "2026-11-22T00-00-19.472563"
HF: Mapping[str, Any] = {
    "model": "hf",
    "model_args": {"pretrained": "org/tiny", "dtype": "float32"},
    "model_dtype": "torch.float32",
    "model_revision": "main",
    "model_sha": "",
    "gen_kwargs": {},
    "random_seed": 0,
    "numpy_seed": 1234,
    "torch_seed": 1234,
    "fewshot_seed": 1234,
}


def ours(length: int, method: str = "yarn", truncated: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """A config as lexbench's own model writes it."""
    about = {
        "version": "0.0.7",
        "model": {"name": "tiny", "revision": "abc", "trained_length": 8, "begins_with": [0]},
        "method": {"name": method, "factor": None},
        "label": method,
        "length": length,
        "attention": {} if method == "none" else {"inv_freq": [1.0, 8 / length], "scale": 1.1},
        "backend": {"name": "hf", "version": "torch 2", "dtype": "float32", "kernel": "sdpa"},
        "truncated": truncated or {},
    }
    return {**HF, "model": "lexbench", "model_args": {"model": "tiny"}, "lexbench": about}


def choice(index: int, right: int, losses: Sequence[float], text: str = "the sky is", **scores: Any) -> dict[str, Any]:
    """A logged example of multiple choice: options ` a`, ` b`, ..., of which the likeliest is taken."""
    acc = float(losses.index(min(losses)) == right)
    pairs = [[str(-loss), "False"] for loss in losses]
    return {
        "doc_id": index,
        "doc": {"question": text, "gold": right},
        "target": str(right),
        "arguments": {f"gen_args_{i}": {"arg_0": text, "arg_1": f" {'abcd'[i]}"} for i in range(len(losses))},
        "resps": [[pair] for pair in pairs],
        "filtered_resps": pairs,
        "filter": "none",
        "metrics": ["acc", *scores],
        "doc_hash": f"hash {index}",
        "prompt_hash": "p",
        "target_hash": "t",
        "acc": acc,
        **scores,
    }


def written(index: int, by: str, output: str, text: str = "the key is", **scores: Any) -> dict[str, Any]:
    """A logged example that writes at most 3 tokens, under one filter."""
    return {
        "doc_id": index,
        "doc": {"text": text},
        "target": "42",
        "arguments": {"gen_args_0": {"arg_0": text, "arg_1": {"until": ["\n"], "max_gen_toks": 3}}},
        "resps": [[output]],
        "filtered_resps": [output.strip()],
        "filter": by,
        "metrics": [*scores],
        "doc_hash": f"hash {index}",
        "prompt_hash": "p",
        "target_hash": "t",
        **scores,
    }


Tasks = Mapping[str, tuple[Mapping[str, Any], Sequence[Mapping[str, Any]]]]
"""By name: aggregates, and logged examples."""
LOSSES = [(1.0, 2.0), (2.0, 1.0), (1.0, 2.0), (1.0, 2.0)]
COLOURS = [choice(i, right=0, losses=pair, acc_norm=1.0) for i, pair in enumerate(LOSSES)]
RIGHT = {"acc,none": 0.75, "acc_stderr,none": 0.25, "acc_norm,none": 1.0, "acc_norm_stderr,none": 0.0}


def write(
    folder: Path, tasks: Tasks, config: Mapping[str, Any] = HF, kind: str = "multiple_choice", **more: Any
) -> Path:
    """Files as lm_eval 0.4.13 writes them with --log_samples; returns the results file."""
    folder.mkdir(parents=True, exist_ok=True)
    names = [*tasks]
    counts = {task: len({row["doc_id"] for row in rows}) for task, (_, rows) in tasks.items()}
    content = {
        "results": {
            task: {"name": task, "alias": task, "sample_len": counts[task], **tasks[task][0]} for task in names
        },
        "group_subtasks": {},
        "configs": {task: {"task": task, "output_type": kind, "metadata": {"version": 1.5}} for task in names},
        "versions": dict.fromkeys(names, 1.5),
        "n-shot": dict.fromkeys(names, 0),
        "higher_is_better": {task: {"acc": True, "brier_score": False} for task in names},
        "n-samples": {task: {"original": 99, "effective": counts[task]} for task in names},
        "config": dict(config),
        "lm_eval_version": "0.4.13",
        "transformers_version": "5.23.0",
        "max_length": 2048,
        "chat_template": None,
        "system_instruction": None,
        "fewshot_as_multiturn": None,
        **more,
    }
    for task, (_, rows) in tasks.items():
        text = "".join(f"{json.dumps(row)}\n" for row in rows)
        (folder / f"samples_{task}_{DATE}.jsonl").write_text(text, encoding="utf-8")
    file = folder / f"results_{DATE}.json"
    file.write_text(json.dumps(content), encoding="utf-8")
    return file


@pytest.fixture
def words(tmp_path: Path) -> Path:
    """A tokenizer whose tokens are words; BOS begins every context."""
    folder = tmp_path / "words"
    folder.mkdir()
    tokenizer = tokenizers.Tokenizer(models.WordLevel({"<s>": 0, "<unk>": 1, "<|user|>": 2}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(["<s>", "<|user|>"])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text('{"bos_token": "<s>", "add_bos_token": true}')
    return folder


def imported(tmp_path: Path, tasks: Tasks, **options: Any) -> tuple[ImportOutcome, list[FinishedCell]]:
    """What becomes of tasks; the options of `write` go there."""
    config, kind = options.pop("config", HF), options.pop("kind", "multiple_choice")
    more = options.pop("more", {})
    file = write(tmp_path / "out", tasks, config, kind, **more)
    usual = {"trained_length": 8, "length": 8} if config is HF else {}
    found = import_lm_eval([file], tmp_path / "run", **{**usual, **options})
    return found, Store(tmp_path / "run").load()


def record(finished: FinishedCell, metric: str) -> Record:
    return next(each for each in records.records_of(finished) if each.metric == metric)


def test_a_choice_is_a_sample_with_its_options_and_chance(tmp_path: Path) -> None:
    found, (finished,) = imported(tmp_path, {"colours": (RIGHT, COLOURS)})
    assert found.problems == [] and found.left_out == []
    cell = finished.cell
    assert (cell.model, str(cell.method), cell.task) == ("org/tiny", "none", "lm_eval:colours")
    assert (cell.length, cell.trained_length, cell.seed, cell.n) == (8, 8, 1234, 4)
    assert (cell.backend, cell.dtype, cell.kernel, cell.corpus) == ("lm_eval hf", "float32", "kernel not said", None)
    assert cell.protocol == (
        "lm-evaluation-harness 0.4.13, task colours version 1.5 (multiple_choice), 0-shot, "
        "scored by acc as accuracy, acc_norm, no chat template, tokens not counted"
    )
    second = finished.samples[1]
    assert (second.index, second.cluster, second.tokens, second.chance) == (1, "hash 1", 8, 0.5)
    assert second.scores == {"accuracy": 0.0, "acc_norm": 1.0}
    assert second.statistics["option_nll"].tolist() == [2.0, 1.0]
    assert (second.prompt, second.output) == ("the sky is", None)
    assert second.facts == {"expected": "a", "expected_option": 0, "options": ["a", "b"]}
    assert [row.index for row in finished.samples] == [0, 1, 2, 3]


def test_value_and_interval_are_of_the_proportion(tmp_path: Path) -> None:
    _, (finished,) = imported(tmp_path, {"colours": (RIGHT, COLOURS)})
    accuracy = record(finished, "accuracy")
    expected = stats.binomtest(3, 4).proportion_ci(0.95, method="wilson")
    assert accuracy.value == 0.75 and accuracy.chance == 0.5 and accuracy.n == accuracy.clusters == 4
    assert accuracy.low == pytest.approx(expected.low, abs=1e-12)
    assert accuracy.high == pytest.approx(expected.high, abs=1e-12)
    assert record(finished, "acc_norm").value == 1.0 and record(finished, "acc_norm").chance is None
    kept = [json.loads(line) for line in (tmp_path / "run" / "records.jsonl").read_text().splitlines()]
    assert [(row["metric"], row["value"], row["attention"]) for row in kept] == [
        ("acc_norm", 1.0, None),
        ("accuracy", 0.75, None),
    ]


def test_examples_of_one_document_are_one_cluster(tmp_path: Path) -> None:
    rows = [{**row, "doc_hash": "same" if row["doc_id"] < 2 else "other"} for row in COLOURS]
    _, (finished,) = imported(tmp_path, {"colours": (RIGHT, rows)})
    assert record(finished, "accuracy").clusters == 2


def test_several_right_options_have_no_known_chance(tmp_path: Path) -> None:
    rows = [{**row, "target": "[0, 1]"} for row in COLOURS]
    _, (finished,) = imported(tmp_path, {"colours": (RIGHT, rows)})
    assert finished.samples[0].chance is None and finished.samples[0].facts == {"expected": "[0, 1]"}


def test_options_that_are_asked_without_their_context_too_are_no_further_options(tmp_path: Path) -> None:
    # As lm_eval 0.4.13 logs `acc_mutual_info`: both options behind the context, then both behind nothing.
    rows = []
    for index in range(4):
        row = choice(index, 0, [1.0, 2.0, 4.0, 3.0], acc=1.0, acc_mutual_info=1.0)
        for place in (2, 3):
            row["arguments"][f"gen_args_{place}"] = {"arg_0": "", "arg_1": f" {'ab'[place - 2]}"}
        rows.append(row)
    _, (finished,) = imported(tmp_path, {"colours": ({"acc,none": 1.0, "acc_mutual_info,none": 1.0}, rows)})
    assert finished.samples[0].chance == record(finished, "accuracy").chance == 1 / 2
    assert finished.samples[0].statistics["option_nll"].tolist() == [1.0, 2.0]
    assert finished.samples[0].facts == {"expected": "a", "expected_option": 0, "options": ["a", "b"]}


def test_each_filter_is_a_metric_of_its_own(tmp_path: Path) -> None:
    strict = [written(i, "strict", "", exact_match=float(i == 0)) for i in range(4)]
    flexible = [written(i, "flexible", " 42.", exact_match=float(i < 3)) for i in range(4)]
    stated = {"exact_match,strict": 0.25, "exact_match,flexible": 0.75}
    _, (finished,) = imported(tmp_path, {"keys": (stated, [*strict, *flexible])}, kind="generate_until")
    assert record(finished, "exact_match (strict)").value == 0.25
    assert record(finished, "exact_match (flexible)").value == 0.75
    assert len(finished.samples) == 4
    assert finished.samples[1].facts["answers"] == {"strict": "", "flexible": "42."}


def by_length(scores: Mapping[int, Sequence[float]]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A task as RULER's: the metric's name is the length, and other lengths have -1."""
    rows, index = [], 0
    for length, values in scores.items():
        for value in values:
            row = written(index, "none", " 42")
            rows.append({**row, "16": -1.0, str(length): value, "doc": {"max_length": length}})
            index += 1
    return {f"{length},none": sum(values) / len(values) for length, values in scores.items()}, rows


def test_a_task_that_names_metrics_by_length_is_a_cell_for_each(tmp_path: Path) -> None:
    stated, rows = by_length({16: [1.0, 0.5], 32: [0.5, 0.0, 0.0, 0.5]})
    found, cells = imported(tmp_path, {"niah": ({**stated, "64,none": -1}, rows)}, kind="generate_until", length=None)
    assert found.left_out == []
    at = {finished.cell.length: finished for finished in cells}
    assert {length: record(finished, "string_match").value for length, finished in at.items()} == {16: 0.75, 32: 0.25}
    assert [sample.index for sample in at[32].samples] == [2, 3, 4, 5]
    assert at[16].cell.n == 2 and at[32].cell.n == 4


def test_what_is_no_share_of_one_is_left_out_by_name(tmp_path: Path) -> None:
    rows = [
        {
            **row,
            "word_perplexity": [-3.5, 7],
            "bleu": 0.5,
            "bleu_acc": 1.0,
            "brier_score": 0.5,
            "points": 2.0,
            "below": -1.0,
            "partly": 1.0,
            "worst": 0.25 * row["doc_id"],
            "pairs": [0, 1],
            "entropy": 0.5,
        }
        for row in COLOURS
    ]
    del rows[3]["partly"]
    more = (
        "word_perplexity",
        "bleu",
        "bleu_acc",
        "brier_score",
        "points",
        "below",
        "partly",
        "worst",
        "pairs",
        "entropy",
    )
    stated = {**dict.fromkeys((f"{name},none" for name in more), 1.0), "acc,none": 0.75, "worst,none": 0.0}
    stated["below,none"] = -1.0
    stated["brier_score,none"] = stated["bleu,none"] = stated["entropy,none"] = 0.5
    found, (finished,) = imported(tmp_path, {"colours": (stated, rows)})
    assert set(finished.samples[0].scores) == {"accuracy", "bleu_acc"}
    assert found.left_out == [
        "colours word_perplexity: a sum over a text, without its tokens (lexbench run task=sliding has likelihoods per "
        "token)",
        "colours bleu, brier_score, entropy: not on a scale from 0 to 1",
        "colours points, below, pairs: no value in [0, 1] for 4 of 4 examples",
        "colours partly: no value in [0, 1] for 1 of 4 examples",
        "colours worst: not a mean over examples (the results say 0.0, the mean is 0.375)",
    ]


def test_lower_is_better_is_left_out(tmp_path: Path) -> None:
    rows = [{**row, "toxicity": 0.5} for row in COLOURS]
    better = {"higher_is_better": {"colours": {"toxicity": False}}}
    found, _ = imported(tmp_path, {"colours": ({**RIGHT, "toxicity,none": 0.5}, rows)}, more=better)
    assert found.left_out == ["colours toxicity: lower is better"]


def test_nothing_but_likelihoods_is_nothing_to_import(tmp_path: Path) -> None:
    rows = [{**written(0, "none", ""), "word_perplexity": [-3.5, 7]}]
    with pytest.raises(ValueError, match="nothing to import: texts word_perplexity: a sum over a text"):
        imported(tmp_path, {"texts": ({"word_perplexity,none": 1.6}, rows)}, kind="loglikelihood_rolling")
    assert not (tmp_path / "run").exists()


def test_an_aggregate_alone_is_refused_and_groups_are_not_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write(tmp_path / "out", {"colours": (RIGHT, COLOURS), "shapes": (RIGHT, COLOURS)})
    content = json.loads(file.read_text())
    content["results"] |= {"all": {"acc,none": 0.75}, "most": {"acc,none": 0.75}}
    content |= {"group_subtasks": {"all": ["colours", "shapes"], "colours": []}, "groups": {"most": {}}}
    file.write_text(json.dumps(content))
    (file.parent / f"samples_shapes_{DATE}.jsonl").unlink()
    words = ["import", "lm_eval", str(tmp_path / "out"), "--into", str(tmp_path / "run")]
    assert main.main([*words, "--trained-length", "8", "--length", "8"]) == 2
    said = capsys.readouterr().out
    assert "lm_eval:colours, accuracy, org/tiny" in said
    assert f"Not imported:\n- shapes of {file} has no samples" in said and "--log_samples" in said
    assert "all of" not in said and "most of" not in said


def test_prompts_are_counted_in_tokens(tmp_path: Path, words: Path) -> None:
    rows = [choice(i, 0, pair, text="one " * (2 + i), acc_norm=1.0) for i, pair in enumerate(LOSSES)]
    rows[0]["arguments"]["gen_args_1"]["arg_1"] = " b or c or d"
    _, (finished,) = imported(tmp_path, {"colours": (RIGHT, rows)}, tokenizer=words, length=None)
    assert [sample.tokens for sample in finished.samples] == [8, 5, 6, 7]  # BOS, 2 + i words, the longest option
    assert finished.cell.length == 8 and "counted" not in finished.cell.protocol


def test_room_counts_and_a_template_writes_its_own_bos(tmp_path: Path, words: Path) -> None:
    rows = [
        written(0, "none", "42", text="<s> <|user|> what is it", exact_match=1.0),
        written(1, "none", "42", text="what is it", exact_match=1.0),
    ]
    _, (finished,) = imported(
        tmp_path, {"keys": ({"exact_match,none": 1.0}, rows)}, kind="generate_until", tokenizer=words, length=None
    )
    assert [sample.tokens for sample in finished.samples] == [5 + 3, 1 + 3 + 3]


def test_what_the_model_could_not_read_is_truncated(tmp_path: Path, words: Path) -> None:
    """With 5 tokens: of a choice the last token is scored, not read; of an answer the room is read."""
    rows = [choice(i, 0, pair, text="one " * (3 + i), acc_norm=1.0) for i, pair in enumerate(LOSSES)]
    _, (finished,) = imported(
        tmp_path, {"colours": (RIGHT, rows)}, tokenizer=words, length=None, more={"max_length": 5}
    )
    assert [sample.tokens for sample in finished.samples] == [5, 6, 7, 8]
    assert [sample.truncated for sample in finished.samples] == [False, False, True, True]
    answers = [written(i, "none", "42", text="one " * (1 + i), exact_match=1.0) for i in range(2)]
    file = write(tmp_path / "two", {"keys": ({"exact_match,none": 1.0}, answers)}, kind="generate_until", max_length=5)
    found = import_lm_eval([file], tmp_path / "other", trained_length=8, tokenizer=words)
    (finished,) = Store(tmp_path / "other").load([cell.id for cell in found.cells])
    assert [(sample.tokens, sample.truncated) for sample in finished.samples] == [(5, False), (6, True)]


def test_a_cell_whose_prompts_were_truncated_has_its_records(tmp_path: Path, words: Path) -> None:
    """Prompts longer than the method's length: no sample of a report has more tokens than its cell is long."""
    rows = [choice(i, 0, pair, text="one " * (3 + i), acc_norm=1.0) for i, pair in enumerate(LOSSES)]
    imported(tmp_path, {"colours": (RIGHT, rows)}, config=ours(5), tokenizer=words, length=None)
    (found,) = [each for each in records.build_records([tmp_path / "run"]) if each.metric == "accuracy"]
    assert (found.n, found.truncated, found.tokens_min, found.tokens_max) == (4, 2, 5, 5)  # of 5, 6, 7 and 8


def test_our_own_model_says_method_length_and_trained_length(tmp_path: Path) -> None:
    _, (finished,) = imported(tmp_path, {"colours": (RIGHT, COLOURS)}, config=ours(32))
    cell = finished.cell
    assert (cell.model, str(cell.method), cell.length, cell.trained_length) == ("tiny", "yarn", 32, 8)
    assert (cell.backend, cell.dtype, cell.kernel, cell.version) == ("hf", "float32", "sdpa", "0.0.7")
    assert record(finished, "accuracy").attention == "inv_freq 1..0.25, scale 1.1"


def test_methods_and_lengths_of_our_own_model_stand_in_one_table_and_pair(tmp_path: Path) -> None:
    for number, config in enumerate([ours(8), ours(32), ours(8, "none"), ours(32, "none")]):
        write(tmp_path / "out" / str(number), {"colours": (RIGHT, COLOURS)}, config)
    import_lm_eval([tmp_path / "out"], tmp_path / "run")
    found = [table for table in tables.build_tables(Store(tmp_path / "run").load()) if table.metric == "accuracy"]
    assert [(list(map(str, table.methods)), table.lengths, len(table.entries)) for table in found] == [
        (["none", "yarn"], [8, 32], 4)
    ]


def test_a_method_set_to_one_length_says_so_where_the_task_asks_for_several(tmp_path: Path) -> None:
    task = {"niah": by_length({16: [1.0, 0.5], 32: [0.5, 0.0]})}
    write(tmp_path / "out" / "none", task, ours(32, "none"), "generate_until")
    write(tmp_path / "out" / "yarn", task, ours(32), "generate_until")
    import_lm_eval([tmp_path / "out"], tmp_path / "run")
    (table,) = tables.build_tables(Store(tmp_path / "run").load())
    assert (list(map(str, table.methods)), table.lengths) == (["none", "yarn(at=32)"], [16, 32])


def test_lost_tokens_that_cannot_be_seen_are_not_passed_over(tmp_path: Path, words: Path) -> None:
    config = ours(5, truncated={"loglikelihood": {"colours": 3}})
    with pytest.raises(ValueError, match="3 requests of colours lost their first tokens: give --tokenizer"):
        imported(tmp_path, {"colours": (RIGHT, COLOURS)}, config=config)
    _, (finished,) = imported(tmp_path, {"colours": (RIGHT, COLOURS)}, config=config, tokenizer=words)
    assert not any(sample.truncated for sample in finished.samples)  # 5 tokens, the last of which is not read
    file = write(tmp_path / "out", {"colours": (RIGHT, COLOURS)}, ours(3))
    found = import_lm_eval([file], tmp_path / "other", tokenizer=words)
    assert all(sample.truncated for sample in Store(tmp_path / "other").load([found.cells[0].id])[0].samples)


def test_stretched_angles_are_no_method_none(tmp_path: Path) -> None:
    scaling = {"rope_type": "yarn", "factor": 4.0}
    direct = {**HF, "model_args": {"pretrained": "/home/me/models/tiny", "rope_scaling": scaling}}
    as_text = {**HF, "model": "vllm", "model_args": "pretrained=org/tiny,rope_theta=5e5"}
    nested = {**HF, "model": "vllm", "model_args": {"pretrained": "a/b", "hf_overrides": {"rope_parameters": scaling}}}
    labels = []
    for number, config in enumerate([direct, as_text, nested]):
        file = write(tmp_path / str(number), {"colours": (RIGHT, COLOURS)}, config)
        found = import_lm_eval([file], tmp_path / f"run {number}", trained_length=8, length=8)
        labels += [(cell.model, str(cell.method), cell.backend) for cell in found.cells]
        assert found.cells[0].identity["attention"] is None  # nobody says what it came to
    assert labels == [
        ("tiny", "rope(rope_type='yarn', factor=4.0)", "lm_eval hf"),
        ("org/tiny", "rope(rope_theta=500000.0)", "lm_eval vllm"),
        ("a/b", "rope(rope_type='yarn', factor=4.0)", "lm_eval vllm"),
    ]


def test_what_only_stretches_stands_beside_none(tmp_path: Path) -> None:
    """The rest of an override is part of the setting."""
    given = [{}, {"rope_parameters": {"rope_type": "yarn"}}, {"rope_parameters": {"rope_type": "yarn"}, "layers": 2}]
    for number, override in enumerate(given):
        config = {**HF, "model_args": {"pretrained": "a/b", **({"hf_overrides": override} if override else {})}}
        write(tmp_path / "out" / str(number), {"colours": (RIGHT, COLOURS)}, config)
    import_lm_eval([tmp_path / "out"], tmp_path / "run", trained_length=8, length=8)
    found = {tuple(map(str, table.methods)) for table in tables.build_tables(Store(tmp_path / "run").load())}
    assert found == {("none", "rope(rope_type='yarn')"), ("rope(rope_type='yarn')",)}


def test_keys_of_servers_are_kept_nowhere(tmp_path: Path) -> None:
    secret = "sk-very-secret"
    given = {
        "model": "m",
        "api_key": secret,
        "base_url": f"http://me:{secret}@host",
        "header": {"x": secret},
        "client": {"x": secret},
    }
    found, _ = imported(
        tmp_path, {"colours": (RIGHT, COLOURS)}, config={**HF, "model_args": given}, trained_length=8, length=8
    )
    kept = json.dumps(found.cells[0].identity) + "".join(
        file.read_text(errors="replace") for file in (tmp_path / "run").rglob("*") if file.is_file()
    )
    assert secret not in kept and "base_url" in kept


def test_again_changes_nothing_and_other_answers_are_another_cell(tmp_path: Path) -> None:
    first, _ = imported(tmp_path, {"colours": (RIGHT, COLOURS)})
    before = {file: file.read_bytes() for file in (tmp_path / "run").rglob("*") if file.is_file()}
    again, _ = imported(tmp_path, {"colours": (RIGHT, COLOURS)})
    assert {file: file.read_bytes() for file in (tmp_path / "run").rglob("*") if file.is_file()} == before
    assert [cell.id for cell in again.cells] == [cell.id for cell in first.cells]
    moved, _ = imported(tmp_path / "elsewhere", {"colours": (RIGHT, COLOURS)})
    assert [cell.id for cell in moved.cells] == [cell.id for cell in first.cells]
    rows = [{**COLOURS[0], "filtered_resps": [["-1.5", "False"], ["-2.0", "False"]]}, *COLOURS[1:]]
    other, cells = imported(tmp_path, {"colours": (RIGHT, rows)})
    assert other.cells[0].id != first.cells[0].id and len(cells) == 2


@pytest.mark.parametrize(
    ("change", "value"),
    [
        ("lm_eval_version", "0.4.12"),
        ("versions", {"colours": 2}),
        ("n-shot", {"colours": 5}),
        ("chat_template", "{{x}}"),
        ("system_instruction", "be brief"),
        ("configs", {"colours": {"output_type": "multiple_choice", "generation_kwargs": {"until": ["."]}}}),
        ("config", {**HF, "fewshot_seed": 7}),
        ("config", {**HF, "model_dtype": "torch.bfloat16"}),
        ("config", {**HF, "model_args": {"pretrained": "org/tiny", "max_length": 4096}}),
    ],
)
def test_what_numbers_depend_on_is_never_mixed(tmp_path: Path, change: str, value: Any) -> None:
    write(tmp_path / "one", {"colours": (RIGHT, COLOURS)})
    file = write(tmp_path / "two", {"colours": (RIGHT, COLOURS)})
    file.write_text(json.dumps({**json.loads(file.read_text()), change: value}))
    import_lm_eval([tmp_path / "one", tmp_path / "two"], tmp_path / "run", trained_length=8, length=8)
    settings = {table.setting for table in tables.build_tables(Store(tmp_path / "run").load())}
    assert len(settings) == 2


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("results", b"{", "must be JSON"),
        ("results", b"[" * 100_000, "must be JSON"),
        ("results", b"\xff\xfe", "must be JSON"),
        ("results", b"[]", "must be a JSON object, got list"),
        ("results", b'{"results": 3}', "have no results by task"),
        ("samples", b"", "are empty"),
        ("samples", b"{]", "line 1 of .* must be JSON"),
        ("samples", b'{"filter": "none"}', "line 1 of .* has no doc_id"),
        ("samples", b'{"doc_id": -1, "filter": "none"}', "line 1 of .* has no doc_id"),
        ("samples", b'{"doc_id": 1e400, "filter": "none"}', "line 1 of .* has no doc_id"),
        ("samples", b'{"doc_id": %d, "filter": "none"}' % 10**30, "line 1 of .* has no doc_id"),
        ("samples", b'{"doc_id": 0, "filter": []}', "line 1 of .* does not name its filter"),
        ("samples", b'{"doc_id": 0, "filter": "none"}', "does not contain its prompt"),
        (
            "samples",
            b'{"doc_id": 0, "filter": "none", "arguments": {"gen_args_0": {"arg_0": 3}}}',
            "does not contain its prompt",
        ),
        ("samples", json.dumps(COLOURS[0]).encode() + b"\n", "hold 1 examples, the results 4"),
        ("samples", 2 * (json.dumps(COLOURS[0]).encode() + b"\n"), "line 2 of .* is the second of example 0"),
    ],
)
def test_what_is_amiss_is_one_line_and_the_others_follow(tmp_path: Path, name: str, content: bytes, said: str) -> None:
    file = write(tmp_path / "bad", {"colours": (RIGHT, COLOURS)})
    (file if name == "results" else file.with_name(f"samples_colours_{DATE}.jsonl")).write_bytes(content)
    with pytest.raises(ValueError, match=said) as alone:
        import_lm_eval([file], tmp_path / "run", trained_length=8, length=8)
    assert "\n" not in str(alone.value)
    write(tmp_path / "good", {"colours": (RIGHT, COLOURS)})
    found = import_lm_eval([file, tmp_path / "good"], tmp_path / "run", trained_length=8, length=8)
    assert len(found.cells) == 1 and found.problems == [str(alone.value)]


def test_what_is_lacking_is_said_with_its_remedy(tmp_path: Path, words: Path) -> None:
    file = write(tmp_path / "out", {"colours": (RIGHT, COLOURS)})
    for options, said in (
        ({"length": 8}, "do not state the model's trained length: give --trained-length N"),
        ({"trained_length": 8}, "does not state the length of its prompts: give --tokenizer DIR, or --length N"),
        ({"trained_length": 0, "length": 8}, "--trained-length must be a whole number of at least 1 token, got 0"),
        ({"trained_length": 8, "length": -1}, "--length must be a whole number of at least 1 token, got -1"),
        (
            {"trained_length": 8, "length": 4, "tokenizer": words},
            "prompts of 5 tokens: --length must be at least that, got 4",
        ),
        ({"trained_length": 8, "tokenizer": tmp_path}, "has no tokenizer.json: give the model's folder"),
    ):
        with pytest.raises(ValueError, match=said):
            import_lm_eval([file], tmp_path / "run", **options)
    with pytest.raises(ValueError, match="nowhere do not exist"):
        import_lm_eval([tmp_path / "nowhere"], tmp_path / "run")
    with pytest.raises(ValueError, match=r"words has no results_DATE\.json"):
        import_lm_eval([words], tmp_path / "run")
    (words / "tokenizer.json").write_text("{}")
    with pytest.raises(ValueError, match=r"tokenizer.json cannot be read .*: download it again"):
        import_lm_eval([file], tmp_path / "run", trained_length=8, tokenizer=words)


def test_what_a_stranger_writes_is_text(tmp_path: Path) -> None:
    hostile = "a|b\n## c \x1b[31m<script>"
    rows = [{**row, "target": "\ud800", "doc_hash": hostile, hostile: 1.0} for row in COLOURS]
    rows[0]["arguments"]["gen_args_0"]["arg_0"] = "\udfff|\n"
    stated = {**RIGHT, f"{hostile},none": 1.0}
    config = {**HF, "model_args": {"pretrained": hostile, "dtype": hostile}}
    found, (finished,) = imported(tmp_path, {"colours": (stated, rows)}, config=config, trained_length=8, length=8)
    shown = found.text()
    assert "\x1b" not in shown and "\n## c" not in shown
    assert [finished.cell.model, finished.samples[0].prompt] == ["a|b ## c [31m<script>", "?|\n"]
    for table in tables.build_tables([finished]):
        page = sheet_markdown([*report.setting_heading(table), report.table_grid(table)])
        assert "\x1b" not in page and "\n## c" not in page


def test_names_of_tasks_open_no_file_elsewhere(tmp_path: Path) -> None:
    file = write(tmp_path / "out" / "model", {"colours": (RIGHT, COLOURS)})
    content = json.loads(file.read_text())
    content["results"] = {"/../../secret": RIGHT}
    (tmp_path / "out" / "model" / "samples_").mkdir()
    (tmp_path / "out" / f"secret_{DATE}.jsonl").write_text(json.dumps(COLOURS[0]))
    file.write_text(json.dumps(content))
    with pytest.raises(ValueError, match=r"secret of .* has no samples"):
        import_lm_eval([file], tmp_path / "run", trained_length=8, length=8)


def test_odd_frequencies_do_not_reach_a_table(tmp_path: Path) -> None:
    config = ours(32)
    config["lexbench"]["attention"] = {"mixture": [{"inv_freq": ["x"]}]}
    with pytest.raises(ValueError, match="have a malformed lexbench entry"):
        imported(tmp_path, {"colours": (RIGHT, COLOURS)}, config=config)


@pytest.mark.slow
def test_the_harness_itself_prints_what_the_records_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two methods of lexlet through the real harness: its aggregates are ours, and so are its standard errors."""
    own = pytest.importorskip("lm_eval.tasks")
    monkeypatch.setattr(own, "TaskManager", functools.partial(own.TaskManager, include_defaults=False))  # not 14,000
    monkeypatch.setattr(sys, "argv", [])
    colours = ("red", "blue", "green", "white")
    lines = [
        {
            "question": f"Number {i} has a colour: {colours[i % 4]}. The colour is",
            "gold": (i * 7) % 4 if i % 3 else i % 4,
        }
        for i in range(24)
    ]
    (tmp_path / "lines.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    (tmp_path / "colours.yaml").write_text(
        f"""task: colours
dataset_path: json
dataset_kwargs: {{data_files: {{test: {tmp_path}/lines.jsonl}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_choice: [{", ".join(colours)}]
doc_to_target: gold
metric_list: [{{metric: acc}}, {{metric: acc_norm}}]
metadata: {{version: 3}}
"""
    )
    for method in ("none", "yarn"):
        words = ["run", "--model", "lexbench", "--model_args", f"model=lexlet,method={method},max_length=512"]
        words += ["--include_path", str(tmp_path), "--tasks", "colours", "--log_samples"]
        assert lm_eval.main([*words, "--output_path", str(tmp_path / "out")]) == 0
    import_lm_eval([tmp_path / "out"], tmp_path / "run", tokenizer="lexbench:lexlet")
    assert examine_runs([tmp_path / "run"]).faults == []
    cells = {str(finished.cell.method): finished for finished in Store(tmp_path / "run").load()}
    for file in (tmp_path / "out").rglob("results_*.json"):
        content = json.loads(file.read_text())
        stated = content["results"]["colours"]
        finished = cells[content["config"]["lexbench"]["label"]]
        assert finished.cell.length == 512 and finished.cell.trained_length == 256
        for metric, ours_ in (("acc", "accuracy"), ("acc_norm", "acc_norm")):
            found = record(finished, ours_)
            assert found.value == pytest.approx(stated[f"{metric},none"], abs=1e-12)
            assert found.low is not None and found.high is not None
            share, z = stated[f"{metric},none"], stats.norm.ppf(0.975)
            # The harness divides by n - 1. Wilson's half width is its own of the share drawn towards a half.
            error = stated[f"{metric}_stderr,none"] * math.sqrt(23 / 24)
            half = z / (1 + z**2 / 24) * math.sqrt(error**2 + z**2 / (4 * 24**2))
            assert error == pytest.approx(math.sqrt(share * (1 - share) / 24), abs=1e-12)
            assert (found.high - found.low) / 2 == pytest.approx(half, abs=1e-12)
