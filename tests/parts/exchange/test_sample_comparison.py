"""Files of samples side by side: every number by hand, lm_eval's, Inspect's and vLLM's forms, and what is refused."""

import gzip
import json
import math
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from lexbench.commands.main import main
from lexbench.core.errors import ConfigError
from lexbench.parts.exchange.files.sample_line import Line
from lexbench.parts.exchange.files.sample_logs import DEFAULT_COLUMNS, read
from lexbench.parts.exchange.referee.command import compare_command
from lexbench.parts.exchange.referee.judge import compare_pairs
from lexbench.parts.exchange.referee.pairs import pair_files

Rows = Sequence[Mapping[str, Any]]


def lines(file: Path, rows: Rows) -> Path:
    file.write_text("".join(json.dumps(each) + "\n" for each in rows), encoding="utf-8")
    return file


def told(a: Path, b: Path, *columns: str) -> list[dict[str, Any]]:
    tasks: list[dict[str, Any]] = json.loads(compare_command(a, b, columns, as_data=True)[0])["tasks"]
    return tasks


def test_a_score_has_newcombes_interval_and_the_sign_test(tmp_path: Path) -> None:
    # 20 samples: A right in 10, B in those and in 8 more.
    a = lines(tmp_path / "a.jsonl", [{"id": place, "score": int(place < 10)} for place in range(20)])
    b = lines(tmp_path / "b.jsonl", [{"id": place, "score": int(place < 18)} for place in reversed(range(20))])
    [found] = told(a, b)
    assert (found["a_value"], found["b_value"], found["difference"], found["pairs"]) == (50.0, 90.0, 40.0, 20)
    assert found["p"] == pytest.approx(2 / 2**8)  # 8 discordant pairs, all to one side: McNemar's exact test
    assert found["low"] < 40 < found["high"] and found["low"] > 0 and found["interval"] == "mover"
    # Sign flips reach 0.05 from 6 pairs on, all to one side: at least 6 of 20 must differ.
    assert found["detectable"] >= 100 * 6 / 20


def test_a_loss_is_weighted_by_tokens_and_kept_together_by_cluster(tmp_path: Path) -> None:
    base = [{"id": f"s{place}", "nll": 30.0, "tokens": 10 + place % 2, "cluster": place // 2} for place in range(24)]
    more = [{**each, "nll": 30.0 + 2.1 * (place // 2 % 3)} for place, each in enumerate(base)]
    [found] = told(lines(tmp_path / "a.jsonl", base), lines(tmp_path / "b.jsonl", more))
    tokens = 12 * 10 + 12 * 11
    assert found["difference"] == pytest.approx(8 * 2.1 * (0 + 1 + 2) / tokens)
    assert found["clusters"] == 12 and found["unit"] == "nats per token"


def test_columns_are_named_and_tasks_corrected_together(tmp_path: Path) -> None:
    def rows(right: int) -> Rows:
        return [
            {"q": place, "subject": subject, "ok": place < (right if subject == "law" else 5), "source": f"d{place}"}
            for subject in ("law", "art")
            for place in range(16)
        ]

    a, b = lines(tmp_path / "a.jsonl", rows(4)), lines(tmp_path / "b.jsonl", rows(12))
    law, art = told(a, b, "id=q", "score=ok", "task=subject", "cluster=source")
    assert (law["task"], law["p"], law["p_holm"]) == ("law", pytest.approx(2 / 2**8), pytest.approx(2 * 2 / 2**8))
    assert art["difference"] == 0 and not art["significant"] and law["significant"]
    assert "| law" in compare_command(a, b, ["id=q", "score=ok", "task=subject"])[0]


def test_a_null_score_counts_as_wrong_and_is_counted(tmp_path: Path) -> None:
    a = lines(tmp_path / "a.jsonl", [{"id": place, "score": 1} for place in range(8)])
    b = lines(tmp_path / "b.jsonl", [{"id": place, "score": None if place < 2 else 1} for place in range(9)])
    [found] = told(a, b)
    assert (found["difference"], found["failed"], found["missing_in_a"]) == (-25.0, 2, 1)


# other programs


def harness(doc: int, right: bool, loss: float, **changed: Any) -> dict[str, Any]:
    """A line as lm_eval 0.4.13 writes it, shortened."""
    return {
        "doc_id": doc,
        "doc": {"question": f"{doc}?"},
        "target": "1",
        "resps": [["1"]],
        "filter": "none",
        "metrics": ["acc", "word_perplexity", "brier"],
        "doc_hash": f"hash {doc}",
        "acc": float(right),
        "word_perplexity": [-loss, 7],
        "brier": [0.1, 0.9, 3],
        **changed,
    }


def test_samples_of_lm_eval_are_recognised_by_task_metric_and_filter(tmp_path: Path) -> None:
    for side, right in (("a", 4), ("b", 10)):
        folder = tmp_path / side
        folder.mkdir()
        rows = [harness(doc, doc < right, 14.0 + right) for doc in range(12)]
        lines(folder / "samples_arc_2026-11-27T10-00-00.123456.jsonl", rows)
        strict = [
            harness(doc, doc < 2, 1, filter=name, metrics=["acc"]) for doc in range(3) for name in ("strict", "last")
        ]
        lines(folder / "samples_gsm_2026-11-27T10-00-00.123456.jsonl", strict)
    found = {each["task"]: each for each in told(tmp_path / "a", tmp_path / "b")}
    assert list(found) == ["arc acc", "arc word_perplexity", "gsm acc,strict", "gsm acc,last"]
    assert found["arc acc"]["difference"] == pytest.approx(50.0)
    # 6 nats more in each text of 7 words.
    assert found["arc word_perplexity"]["difference"] == pytest.approx(6 / 7)
    assert found["gsm acc,last"]["difference"] == 0
    other = lines(tmp_path / "samples_arc_2026-11-27T11-00-00.jsonl", [harness(0, True, 1, doc_hash="another")])
    with pytest.raises(ConfigError, match="sample 0 of arc acc is not the same in A and B"):
        compare_command(tmp_path / "a" / "samples_arc_2026-11-27T10-00-00.123456.jsonl", other)


def inspect_log(values: Sequence[Any]) -> dict[str, Any]:
    """A log of version 2 as Inspect writes it, shortened; two epochs of every sample."""
    samples = [
        {"id": place // 2, "epoch": place % 2 + 1, "scores": None if value is None else {"match": {"value": value}}}
        for place, value in enumerate(values)
    ]
    return {"version": 2, "status": "success", "eval": {"task": "riddles", "model": "m"}, "samples": samples}


def test_logs_of_inspect_are_read_as_json_and_as_eval_with_epochs_as_clusters(tmp_path: Path) -> None:
    a, b = tmp_path / "a.json", tmp_path / "b.eval"
    a.write_text(json.dumps(inspect_log(["I"] * 12)))
    log = inspect_log(["C", "C", "P", "N", *["C"] * 7, None])
    with zipfile.ZipFile(b, "w") as packed:
        packed.writestr("header.json", json.dumps({key: value for key, value in log.items() if key != "samples"}))
        for each in log["samples"]:
            packed.writestr(f"samples/{each['id']}_epoch_{each['epoch']}.json", json.dumps(each))
    [found] = told(a, b)
    assert found["difference"] == pytest.approx(100 * (2 + 0.5 + 0 + 7) / 12)
    assert (found["clusters"], found["pairs"], found["failed"]) == (6, 12, 1)
    b.write_bytes(b"PK\x03\x04 and then nothing")
    with pytest.raises(ConfigError, match="cannot be unpacked"):
        compare_command(a, b)
    a.write_text('{"results": {}}')
    with pytest.raises(ConfigError, match="no Inspect log with samples"):
        compare_command(a, a)


def batch(name: str, logprobs: Any, **changed: Any) -> dict[str, Any]:
    """A line of vLLM's run-batch for /v1/completions."""
    body = {"object": "text_completion", "choices": [{"text": "x", "prompt_logprobs": logprobs}]}
    return {
        "id": f"vllm-{name}",
        "custom_id": name,
        "response": {"status_code": 200, "body": body},
        "error": None,
        **changed,
    }


def token(nats: float) -> dict[str, Any]:
    return {"17": {"logprob": -nats, "rank": 1, "decoded_token": " a"}}


def test_prompts_of_vllms_run_batch_are_compared_by_their_loss(tmp_path: Path) -> None:
    a, b = (
        lines(
            tmp_path / f"{side}.jsonl",
            [batch(f"r{place}", [None, token(1.0), token(2.0 + loss)]) for place in range(8)]
            + [batch("broken", None, response=None, error="timeout")],
        )
        for side, loss in (("a", 0.0), ("b", 0.5))
    )
    [found] = told(a, b)
    assert found["difference"] == pytest.approx(0.25)  # half a nat over 2 tokens
    assert (found["a_value"], found["pairs"], found["failed"]) == (pytest.approx(1.5), 8, 1)
    for logprobs, said in (
        (None, "has no prompt_logprobs"),
        ([None, {**token(1), "5": {}}], "several tokens at a place"),
    ):
        with pytest.raises(ConfigError, match=said):
            read(lines(tmp_path / "c.jsonl", [batch("r", logprobs)]), DEFAULT_COLUMNS, own=False)


# files that say that they are not alike, or not whole


def test_a_log_of_inspect_that_did_not_end_well_is_refused(tmp_path: Path) -> None:
    whole, part = tmp_path / "a.json", tmp_path / "b.json"
    whole.write_text(json.dumps(inspect_log(["C"] * 12)))
    for status in ("error", "cancelled", "started"):
        part.write_text(json.dumps({**inspect_log(["C"] * 4), "status": status}))
        with pytest.raises(ConfigError, match=f"ended with status {status}, so samples may be missing"):
            compare_command(whole, part)


def with_questions(values: Sequence[Any], **asked: Any) -> str:
    log = inspect_log(values)
    return json.dumps(
        {**log, "samples": [{**each, "input": "2 + 2?", "target": "4", **asked} for each in log["samples"]]}
    )


def test_one_id_is_one_question(tmp_path: Path) -> None:
    a, b = tmp_path / "a.json", tmp_path / "b.json"
    a.write_text(with_questions(["I"] * 12))
    for asked, said in (({"input": "1 + 1?"}, "input"), ({"target": "5"}, "target"), ({"choices": ["4"]}, None)):
        b.write_text(with_questions(["C"] * 12, **asked))
        if said is None:  # A states no choices
            assert told(a, b)[0]["difference"] == 100
            continue
        with pytest.raises(
            ConfigError, match=rf"sample 0 epoch 1 of riddles match is not the same .* \(other {said}\)"
        ):
            compare_command(a, b)
    # Inspect draws ids for messages anew in each run.
    message = {"role": "user", "content": "2 + 2?", "source": "input"}
    for file, drawn in ((a, "x"), (b, "y")):
        file.write_text(with_questions(["C"] * 12, input=[{"id": drawn, **message}]))
    assert told(a, b)[0]["difference"] == 0
    rows = [harness(0, True, 1.0, target_hash="right"), harness(0, True, 1.0, target_hash="another")]
    one, other = (read(lines(tmp_path / "samples_a.jsonl", [row]), DEFAULT_COLUMNS, False) for row in rows)
    with pytest.raises(ConfigError, match="other target"):
        pair_files(one, other)


def test_samples_with_other_prompts_are_compared_and_said(tmp_path: Path) -> None:
    for side, shots in (("a", "0-shot"), ("b", "5-shot")):
        rows = [harness(doc, doc % 2 == 0, 14.0, prompt_hash=f"{shots} {doc if doc > 2 else 0}") for doc in range(12)]
        (tmp_path / side).mkdir()
        lines(tmp_path / side / "samples_arc_2026-11-27T10-00-00.jsonl", rows)
    [accuracy, _] = told(tmp_path / "a", tmp_path / "b")
    assert accuracy["other_prompts"] == 12
    assert "12 pairs read other prompts" in compare_command(tmp_path / "a", tmp_path / "b")[0]
    [accuracy, _] = told(tmp_path / "a", tmp_path / "a")
    assert accuracy["other_prompts"] == 0
    assert "other prompts" not in compare_command(tmp_path / "a", tmp_path / "a")[0]


def test_a_sample_that_a_scorer_left_unscored_is_no_wrong_answer(tmp_path: Path) -> None:
    a, b = tmp_path / "a.json", tmp_path / "b.json"
    a.write_text(json.dumps(inspect_log(["C"] * 12)))
    b.write_text(json.dumps(inspect_log([math.nan, *["C"] * 11])))
    [found] = told(a, b)
    assert (found["difference"], found["pairs"], found["missing_in_b"], found["failed"]) == (0.0, 11, 1, 0)


def test_measures_whose_lower_values_are_better_are_no_scores(tmp_path: Path) -> None:
    rows = [
        harness(doc, True, 1.0, metrics=["acc", "brier_score", "wer"], brier_score=0.1, wer=0.2) for doc in range(8)
    ]
    assert {line.metric for line in read(lines(tmp_path / "samples_arc.jsonl", rows), DEFAULT_COLUMNS, False)} == {
        "acc"
    }
    named = lines(tmp_path / "a.jsonl", [{"id": 1, "brier_score": 0.1}])
    with pytest.raises(ConfigError, match="names brier_score as its score, and lower is better there: give 1 - brier_"):
        compare_command(named, named, ["score=brier_score"])
    words = lines(tmp_path / "b.jsonl", [{"id": 1, "answer": 0.1}])  # holds `wer`, and is no such word
    assert told(words, words, "score=answer")


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ('{"id": 1, "score": NaN}', "must be a number, got NaN: write null for a sample that failed"),
        ('{"id": 1, "score": 1e400}', r"must be a score in \[0, 1\], got inf"),
        ('{"id": 1, "score": 1' + 400 * "0" + "}", "must be JSON .a number of 401 digits"),
        ('{"id": 1, "nll": 1, "tokens": 1' + 400 * "0" + "}", "must be JSON .a number of 401 digits"),
        ('{"id": 1, "nll": 1, "tokens": 1' + 300 * "0" + "}", "it must be a whole number of at least 1"),
        ('{"id": 1, "nll": -0.5}', "must be a loss of 0 to 1e.30 nats, got -0.5"),
        ('{"id": 1, "nll": -1e308}', "must be a loss of 0 to 1e.30 nats"),
        ('{"id": 1, "nll": 1e308}', "must be a loss of 0 to 1e.30 nats"),
    ],
)
def test_numbers_that_no_sample_has_are_refused_in_one_line(row: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text(row + "\n")
    with pytest.raises(ConfigError, match=said) as refused:
        compare_command(file, file)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "pair", ["[1.5, 7]", "[-1e308, 7]", "[-1, 1e400]", "[-1, NaN]", "[-1" + 400 * "0" + ", 7]", "[NaN, 7]"]
)
def test_likelihoods_of_lm_eval_that_are_none_are_refused(pair: str, tmp_path: Path) -> None:
    text = json.dumps(harness(0, True, 1.0, word_perplexity="PAIR")).replace('"PAIR"', pair)
    file = tmp_path / "samples_arc.jsonl"
    file.write_text(text + "\n")
    with pytest.raises(ConfigError, match=r"^line 1 of [^\n]*$"):
        compare_command(file, file)


@pytest.mark.parametrize("nats", [-0.5, math.nan])
def test_logprobs_of_vllm_that_are_none_are_refused(nats: float, tmp_path: Path) -> None:
    file = lines(tmp_path / "a.jsonl", [batch("r", [None, token(1.0), token(nats)])])
    with pytest.raises(ConfigError, match="has a logprob above 0 or NaN"):
        compare_command(file, file)
    one, other = (
        lines(tmp_path / f"{name}.jsonl", [batch("r", [None, {name: {"logprob": -1.0}}])]) for name in ("17", "18")
    )
    with pytest.raises(ConfigError, match="other tokens of the prompt"):
        compare_command(one, other)


def test_a_packed_file_is_read_and_a_damaged_one_refused(tmp_path: Path) -> None:
    rows = [{"id": place, "score": place % 2} for place in range(8)]
    plain, packed = lines(tmp_path / "a.jsonl", rows), tmp_path / "b.jsonl.gz"
    whole = gzip.compress(plain.read_bytes(), mtime=0)
    packed.write_bytes(whole)
    assert told(plain, packed)[0]["pairs"] == 8
    for damaged in (whole[:-9], whole[:20] + b"?" + whole[21:]):
        packed.write_bytes(damaged)
        with pytest.raises(ConfigError, match=r"b\.jsonl\.gz cannot be unpacked"):
            told(plain, packed)


# refusals


@pytest.mark.parametrize(
    ("rows", "columns", "said"),
    [
        ([{"id": 1}], [], r"line 1 of .*a.jsonl has no column score or nll"),
        ([{"name": 1, "score": 1}], [], r"has no column id, only name, score: name it, --columns id=COLUMN"),
        ([{"id": 1, "score": 1, "nll": 2}], [], "has both score and nll"),
        ([{"id": 1, "score": 17}], [], r"score must be a score in \[0, 1\], got 17"),
        ([{"id": 1, "score": "yes"}], [], "score must be a number, got 'yes'"),
        ([{"id": 1, "nll": 2, "tokens": 0}], [], "tokens 0: it must be a whole number of at least 1"),
        ([{"id": 1, "score": 1}, {"id": 1, "score": 0}], [], "A has sample 1 of all samples twice"),
        ([], [], "hold no sample"),
        ([{"id": 1, "score": 1}], ["score"], "--columns takes NAME=COLUMN"),
        ([{"id": 1, "score": 1}], ["id=id"], "must name a score or an nll"),
        ([{"id": 2, "score": 1}], [], "share no task with a sample that both have"),
    ],
)
def test_a_file_that_cannot_be_compared_is_refused_in_one_line(
    rows: Rows, columns: list[str], said: str, tmp_path: Path
) -> None:
    a, b = lines(tmp_path / "a.jsonl", rows), lines(tmp_path / "b.jsonl", [{"id": 1, "score": 1}])
    with pytest.raises(ConfigError, match=said):
        compare_command(a, b, columns)


def test_numbers_that_are_not_finite_have_no_value() -> None:
    pairs = [
        [Line("t", "nll", str(place), str(place), value, 1) for place, value in enumerate(side)]
        for side in ([1.0, 2.0], [2.0, None])
    ]
    made, *alone = pair_files(*pairs)
    [found] = compare_pairs(made)
    assert found.found.difference == 1.0 and found.found.pairs == 1 and alone == [[], []]
    assert math.isfinite(found.detectable)


def test_the_command_tells_files_from_run_folders(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a = str(lines(tmp_path / "a.jsonl", [{"id": place, "score": place % 2} for place in range(6)]))
    assert main(["compare", a, a]) == 0 and "no difference found" in capsys.readouterr().out
    for words, said in (
        ([a, str(tmp_path)], "must be two run folders, or two files of samples"),
        ([a, a, "--a", "method=none"], "--a and --b choose cells of run folders"),
        ([str(tmp_path), str(tmp_path), "--columns", "score=x"], "--columns names columns of files"),
        ([a, str(tmp_path / "b.jsonl")], "must be two run folders, or two files of samples"),
    ):
        assert main(["compare", *words]) == 2
        error = capsys.readouterr().err
        assert said in error and error.count("\n") == 1
