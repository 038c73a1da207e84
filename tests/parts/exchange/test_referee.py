"""The referee on files: files of programs themselves, what is missing, gates and plans, against counts by hand."""

import gzip
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from scipy.stats import binom

from lexbench.commands.main import main
from lexbench.core.errors import ConfigError
from lexbench.parts.exchange.referee import command
from lexbench.parts.exchange.referee.command import certify_command, check_command, compare_command
from lexbench.parts.exchange.referee.power import power_command

DATA = Path(__file__).parents[2] / "data"
SCHEMA = json.loads((Path(command.__file__).parent / "verdict.schema.json").read_text(encoding="utf-8"))
FORMS = {
    "inspect": ("inspect_before.eval", "inspect_after.json.gz"),
    "lm_eval": ("lm_eval_before", "lm_eval_after"),
    "every_eval_ever": ("every_eval_ever_before.jsonl.gz", "every_eval_ever_after.jsonl.gz"),
}


def file(path: Path, scores: Sequence[float | None], ids: Sequence[int] | None = None, **more: Any) -> Path:
    rows = [{"id": name, "score": score, **more} for name, score in zip(ids or range(len(scores)), scores, strict=True)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def data(said: tuple[str, int]) -> dict[str, Any]:
    """A verdict as JSON, which has the form of the schema, and the code that the command returns."""
    found: dict[str, Any] = json.loads(said[0])
    jsonschema.validate(found, SCHEMA)
    assert found["code"] == said[1]
    return found


@pytest.mark.parametrize("form", FORMS)
def test_files_that_programs_wrote_themselves_have_one_verdict(form: str) -> None:
    """`tools/referee_samples.py` made them: 12 of 24 are right before, and 21 after; 12 turn right, 3 turn wrong."""
    before, after = (DATA / name for name in FORMS[form])
    found = data(compare_command(before, after, as_data=True))
    [task] = found["tasks"]
    assert (task["a_value"], task["b_value"], task["difference"]) == pytest.approx((50.0, 87.5, 37.5))
    assert (task["pairs"], task["missing_in_a"], task["missing_in_b"], task["other_prompts"]) == (24, 0, 0, 0)
    assert task["p"] == pytest.approx(2 * binom.cdf(3, 15, 0.5))  # McNemar's exact test
    assert found["sentence"].startswith("B is better: +37.5 points")
    back = data(check_command(before, after, as_data=True))
    assert (back["verdict"], back["code"]) == ("lost", 1)


def test_a_log_of_an_evaluation_that_failed_is_refused() -> None:
    before, failed = DATA / "inspect_before.eval", DATA / "inspect_error.eval"
    for call in (compare_command, check_command):
        with pytest.raises(ConfigError, match="ended with status error"):
            call(failed, before)
    said, code = check_command(failed, before, github=True)
    assert code == 2 and said.splitlines()[1].startswith("::error title=lexbench check::NOT COMPARABLE: results ")


# what is missing


def test_a_file_without_its_wrong_samples_is_no_better_and_the_verdict_says_what_is_missing(tmp_path: Path) -> None:
    """Both answer the same 20 of 32; B lost eight of its wrong ones, and would read 20 of 24."""
    scores = [float(place < 20) for place in range(32)]
    a, b = file(tmp_path / "a.jsonl", scores), file(tmp_path / "b.jsonl", scores[:24])
    found = data(compare_command(a, b, as_data=True))
    [task] = found["tasks"]
    assert (found["code"], task["verdict"], task["doubt"]) == (2, "cannot be told", "missing samples")
    # Of A's 32, 20 are right. B: 20 with its eight wrong, 28 with them right.
    assert task["range"] == pytest.approx([0.0, 100 * 8 / 32])
    line = compare_command(a, b)[0].splitlines()[0]
    assert "8 of 32 samples of score are missing in B, perhaps the wrong ones" in line
    assert "with all of them wrong B minus A is 0.0 points, with all right +25.0 points" in line


def test_a_better_file_stays_so_where_all_that_it_lacks_may_be_wrong(tmp_path: Path) -> None:
    a = file(tmp_path / "a.jsonl", [0.0] * 40)
    b = file(tmp_path / "b.jsonl", [1.0] * 30)
    found = data(compare_command(a, b, as_data=True))
    [task] = found["tasks"]
    assert (found["code"], task["verdict"], task["missing_in_b"]) == (0, "better", 10)
    assert task["range"] == pytest.approx([75.0, 100.0])
    assert "10 of 40 samples of score are missing in B: with all of them wrong" in found["sentence"]
    # The baseline's missing samples count at their best for the baseline: A lacks 10 that B has right.
    [task] = data(compare_command(b, a, as_data=True))["tasks"]
    assert (task["verdict"], task["range"]) == ("worse", pytest.approx([-100.0, -75.0]))


def test_a_loss_has_no_bound_where_samples_are_missing(tmp_path: Path) -> None:
    rows = [{"id": place, "nll": 3.0 + place % 3, "tokens": 4} for place in range(16)]
    a, b = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    a.write_text("".join(json.dumps(row) + "\n" for row in rows))
    b.write_text("".join(json.dumps({**row, "nll": row["nll"] - 2}) + "\n" for row in rows[:15]))
    found = data(compare_command(a, b, as_data=True))
    assert found["code"] == 2 and found["tasks"][0]["range"] is None
    assert "a loss has no bound" in found["sentence"]
    assert data(check_command(b, a, as_data=True))["verdict"] == "not comparable"


def test_a_gate_passes_only_where_the_missing_samples_could_not_fail_it(tmp_path: Path) -> None:
    """300 samples right on both sides, and k missing in the run: with k wrong, a loss of k of 300."""
    a = file(tmp_path / "a.jsonl", [1.0] * 300)
    codes = {}
    for lacking in (0, 1, 60):
        b = file(tmp_path / "b.jsonl", [1.0] * (300 - lacking))
        codes[lacking] = [
            data(check_command(b, a, as_data=True))["code"],
            data(certify_command(a, b, margin=["accuracy=5"], as_data=True))["code"],
        ]
    # 20 % may be lost, and check would find 60 losses of 300; one loss is found by no test.
    assert codes == {0: [0, 0], 1: [0, 0], 60: [2, 2]}


# gates


def test_a_gate_has_one_exit_code_and_names_what_is_lost(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a = str(file(tmp_path / "a.jsonl", [1.0] * 60))
    b = str(file(tmp_path / "b.jsonl", [float(place >= 15) for place in range(60)]))
    assert main(["check", b, "--baseline", a, "--margin", "accuracy=2", "--github"]) == 1
    said = capsys.readouterr().out
    assert said.startswith("**LOST: -25.0 points [") and "\n::error title=lexbench check%3A lost::-25.0 points" in said
    assert main(["certify", a, b, "--margin", "score=2"]) == 1
    assert main(["check", a, "--baseline", a]) == 0
    assert capsys.readouterr().out.count("PASS: no loss found: 0.0 points") == 1
    # The boldest stake alone has half of the wealth: ln 40 / ln(1 + 0.95 x 0.02 / 0.98) = 192.1, and 60 are there.
    assert main(["certify", a, a, "--margin", "accuracy=2"]) == 2
    assert "NOT PROVEN: about 133 more samples may prove a loss below 2 points" in capsys.readouterr().out


def test_certify_proves_what_the_bet_proves(tmp_path: Path) -> None:
    """Without a change the wealth of all stakes is 20 after 182 samples, at a margin of 2 points."""
    margin, stake = 0.02, 0.95
    others = [0.8, 0.6, 0.4, 0.25, 0.12]

    def wealth(n: int) -> float:
        return 0.5 * (1 + stake * margin / (1 - margin)) ** n + 0.1 * sum(
            (1 + each * margin / (1 - margin)) ** n for each in others
        )

    needed = next(n for n in range(400) if wealth(n) >= 20)
    for count, code in ((needed - 1, 2), (needed, 0)):
        path = file(tmp_path / "a.jsonl", [1.0] * count)
        assert data(certify_command(path, path, margin=["accuracy=2"], as_data=True))["code"] == code
    assert needed == 182


def test_prompts_that_differ_are_refused_by_a_gate(tmp_path: Path) -> None:
    folders = []
    for side in ("before", "after"):
        folder = tmp_path / side
        folder.mkdir()
        [packed] = (DATA / f"lm_eval_{side}").iterdir()
        rows = [json.loads(line) for line in gzip.decompress(packed.read_bytes()).splitlines()]
        changed = [{**row, "prompt_hash": f"{side} {row['doc_id']}"} for row in rows]
        (folder / packed.name.removesuffix(".gz")).write_text("".join(json.dumps(row) + "\n" for row in changed))
        folders.append(folder)
    a, b = folders
    found = data(check_command(b, a, as_data=True))
    assert (found["verdict"], found["tasks"][0]["doubt"]) == ("not comparable", "other prompts")
    assert "24 of 24 pairs read other prompts" in found["sentence"]
    assert "24 pairs read other prompts, so the difference is one of prompts, too" in compare_command(a, b)[0]


def test_a_task_that_the_run_lacks_fails_the_gate(tmp_path: Path) -> None:
    a, b = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    rows = [{"id": place, "score": 1, "task": task} for task in ("law", "art") for place in range(200)]
    a.write_text("".join(json.dumps(row) + "\n" for row in rows))
    b.write_text("".join(json.dumps(row) + "\n" for row in rows[:200]))
    found = data(check_command(b, a, as_data=True))
    assert (found["code"], found["only_a"]) == (2, ["art (score)"])
    assert "art (score) missing in the run" in found["sentence"]
    assert data(compare_command(a, b, as_data=True))["code"] == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["check", "A", "A", "--baseline", "A"], "check takes one file of samples, got 2"),
        (["check", "A", "--baseline", "A", "--update"], "--update is for run folders"),
        (["check", "A", "--baseline", "A", "--certify", "c.json"], "give lexbench certify A B"),
        (
            ["check", "A", "--baseline", "A", "--margin", "f1=2"],
            "margin f1 is of no metric of these files: choose from",
        ),
        (["certify", "A", "A"], "certify needs the loss that is allowed"),
        (["certify", "A", "A", "--margin", "accuracy=0"], "margin accuracy must be above 0"),
        (
            ["certify", "FOLDER", "FOLDER", "--margin", "accuracy=2"],
            "certify compares files of samples, got the folder",
        ),
        (["power", "A"], "power needs the loss that is allowed"),
        (["power", "A", "--margin", "accuracy=2", "--loss", "0.5"], "give it with --baseline"),
    ],
)
def test_words_that_fit_no_file_are_refused_in_one_line(
    words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    places = {"A": str(file(tmp_path / "a.jsonl", [1.0, 0.0] * 4)), "FOLDER": str(tmp_path)}
    assert main([places.get(word, word) for word in words]) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1


# plans


def test_power_plans_from_one_file_and_from_two(tmp_path: Path) -> None:
    a = file(tmp_path / "a.jsonl", [1.0] * 75 + [0.0] * 25)
    claims = {
        row["changed"]: row for row in json.loads(power_command(a, None, margin=["score=5"], as_data=True))["claims"]
    }
    # (1.645 + 1.282)^2 d / m^2, of a normal test with d of the samples turned.
    assert claims[0.1]["fixed"] == math.ceil((1.6449 + 1.2816) ** 2 * 0.1 / 0.05**2)
    assert claims[0.0]["certify_half"] == claims[0.0]["certify_most"] and claims[0.0]["fixed"] is None
    assert claims[0.0]["certify_half"] < claims[0.05]["certify_half"] < claims[0.1]["certify_half"]
    b = file(tmp_path / "b.jsonl", [1.0] * 70 + [0.0] * 25 + [1.0] * 5)
    [row] = json.loads(power_command(b, a, margin=["accuracy=5"], as_data=True))["claims"]
    assert row["changed"] == pytest.approx(0.1)
    # A pilot's share is not known exactly: the plan takes the upper end of its 80 % interval, so it asks for more.
    assert row["fixed"] > claims[0.1]["fixed"]
    rows = tmp_path / "nll.jsonl"
    rows.write_text("".join(json.dumps({"id": place, "nll": 1.0}) + "\n" for place in range(8)))
    with pytest.raises(ConfigError, match="has losses, and one file does not tell how much they change"):
        power_command(rows, None, margin=["nll=0.02"])
