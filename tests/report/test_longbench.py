"""The table of LongBench's paper, made from cells: published predictions give the published numbers."""

import json
import math
from pathlib import Path

import pytest

import lexbench
from lexbench import Generate
from lexbench.checkpoints.tokenizer import FastTokenizer, load_tokenizer
from lexbench.core.method_key import MethodKey
from lexbench.report.formats import grid_markdown
from lexbench.report.longbench import longbench_grid, longbench_tables, rows_of
from lexbench.report.notes import unchanged_prompts_sentence
from lexbench.runner.cells import Component
from lexbench.store.format import FinishedCell
from tests.answerers import written
from tests.report.fake_run import cell


@pytest.fixture(scope="module")
def tokenizer() -> FastTokenizer:
    return load_tokenizer(Path(lexbench.__file__).parent / "lexlet")


def answered(predictions: Path, data: Path, tokenizer: FastTokenizer, name: str) -> FinishedCell:
    """The cell of a model that answers as published; contexts are not published, so these are empty."""
    rows = [json.loads(line) for line in predictions.read_text().splitlines()]
    for number, row in enumerate(rows):
        row |= {"input": "", "context": str(number), "_id": str(number)}
    (data / f"{name}_e.jsonl").write_text("\n".join(json.dumps(row) for row in rows) + "\n")
    task = lexbench.task("longbench", dataset=name, e=True, data=str(data))
    samples = [
        task.score(question, written(rows[int(question.facts["id"])]["pred"], tokenizer))
        for question in task.questions(tokenizer, 4096, 300, 0)
        if isinstance(question, Generate)
    ]
    return FinishedCell(of(name, task), samples)


def of(name: str, task: object, method: str = "none") -> "lexbench.core.record.Cell":
    made = cell(f"longbench({name})", method, 4096, n=300, corpus=None)
    identity = {**made.identity, "task": {**Component("longbench", task, "").identity, "version": 2}}
    return cell(f"longbench({name})", method, 4096, n=300, corpus=None, identity=identity)


def test_published_predictions_give_the_published_table(shared: Path, tmp_path: Path, tokenizer: FastTokenizer) -> None:
    folder = shared / "longbench_e" / "llama2-7b-chat-4k"
    published = json.loads((folder / "result.json").read_text())
    cells = [answered(folder / f"{name}.jsonl", tmp_path, tokenizer, name) for name in published]
    lacking = lexbench.task("longbench", dataset="lcc", e=True, data=str(tmp_path))
    refusal = "data folder has no lcc_e.jsonl: add it, or leave the data set out"
    [layout] = longbench_tables([*cells, FinishedCell(of("lcc", lacking), [], refusal)])
    for name, buckets in published.items():
        ours = {column: round(100 * (record.value or 0), 2) for column, record in layout.rows[name].items()}
        assert {bucket: ours[bucket] for bucket in buckets} == buckets
    # sizes from LongBench's task.md
    assert {column: record.n for column, record in layout.rows["qasper"].items()} == {
        "all": 224,
        "0-4k": 100,
        "4-8k": 100,
        "8k+": 24,
    }
    text = grid_markdown(longbench_grid(layout))
    lines = {line.split("|")[1].strip(): line.split("|")[2:] for line in text.splitlines() if line.startswith("|")}
    assert list(lines)[2:] == ["qasper", "multifieldqa_en", "hotpotqa", "lcc", "average"]
    assert [entry.strip() for entry in lines["qasper"][:3]] == ["24.04 n 100", "18.43 n 100", "22.26 n 24"]
    # by hand: (24.04 + 44.83 + 37.14) / 3, (18.43 + 32.24 + 30.47) / 3, (22.26 + 25.59 + 24.71) / 3
    assert [entry.strip() for entry in lines["average"][:3]] == ["35.34 of 3", "27.05 of 3", "24.19 of 3"]
    assert "10 of 13 data sets have no score" in text and refusal in text
    rows = rows_of([layout])
    assert len(rows) == 3 * 4 + 1 and rows[-1]["refused"] == refusal


def test_a_single_data_set_needs_no_table_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "qasper_e.jsonl").write_text("{}")
    task = lexbench.task("longbench", dataset="lcc", e=True, data=str(tmp_path))
    assert (
        longbench_tables(
            [FinishedCell(of("lcc", task), [], "missing"), FinishedCell(cell("passkey", "none", 256), [], "no")]
        )
        == []
    )


def test_methods_stand_apart_and_a_measured_data_set_covers_its_refusal(tmp_path: Path) -> None:
    (tmp_path / "qasper_e.jsonl").write_text("{}")
    cells = []
    for method in ("none", "yarn"):
        for name in ("qasper", "lcc"):
            task = lexbench.task("longbench", dataset=name, e=True, data=str(tmp_path))
            cells.append(FinishedCell(of(name, task, method), [], f"{name} refused"))
    sample = lexbench.Sample(
        index=0, cluster="a", tokens=9, scores={"code_sim_difflib": 0.5}, parts=("words 4-8k", "tokens 0-4k")
    )
    (tmp_path / "lcc_e.jsonl").write_text("{}")
    task = lexbench.task("longbench", dataset="lcc", e=True, data=str(tmp_path))
    found = {
        str(each.cell.method): each
        for each in longbench_tables([*cells, FinishedCell(of("lcc", task, "yarn"), [sample])])
    }
    assert found["none"].refused == {"qasper": "qasper refused", "lcc": "lcc refused"} and not found["none"].rows
    assert found["yarn"].refused == {"qasper": "qasper refused"}
    assert {column: record.value for column, record in found["yarn"].rows["lcc"].items()} == {"all": 0.5, "4-8k": 0.5}
    assert found["yarn"].column_average("4-8k") == (50.0, 1) and found["yarn"].column_average("8k+")[1] == 0


def test_prompts_that_are_read_as_by_none_are_counted_in_words() -> None:
    ntk, yarn = MethodKey.of_method("ntk"), MethodKey.of_method("yarn")
    assert unchanged_prompts_sentence([ntk], 24, 32, 256) == "24 of 32 prompts fit into 256 tokens, where ntk is none."
    both = unchanged_prompts_sentence([ntk, yarn], 32, 32, 256)
    assert both == "ntk and yarn are none for all 32 prompts: they fit into 256 tokens."
    assert unchanged_prompts_sentence([ntk], 3, 3, math.inf) == "ntk is none for all 3 prompts."
