"""A run that stops: what it asks and keeps, who may read it, and how a fixed number of questions goes on from it."""

import json
from pathlib import Path
from typing import Any

import pytest

from lexbench.commands import main
from lexbench.core.errors import ConfigError
from lexbench.report.check.check import check_runs
from lexbench.runner.stopping_rule import stopping_of
from lexbench.stats.records import load_cells
from lexbench.store.stopped import STOPPED_FILE_NAME, StoppedComparison, read_stopped
from lexbench.store.store import Store

pytestmark = pytest.mark.usefixtures("unverified")


def run(folder: Path, *words: str, method: str = "none,rerope", lengths: str = "lengths=[512]") -> int:
    given = ["run", f"method={method}", "task=passkey", lengths, "backend=chance", f"results={folder}", "plots=false"]
    return main.main([*given, *words])


AUTO = ("n=auto", "n_max=32", "until=0.3")


def samples(folder: Path) -> dict[str, bytes]:
    return {file.stem: file.read_bytes() for file in (folder / "cells").glob("*.jsonl")}


def test_what_answers_by_chance_alike_is_equal_and_both_cells_stay_unfinished(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No answer changes: 0.3 of the wealth grow by 1 + 0.95 * 0.3 / 0.7 a question, to 40 after 10.8 to 14.4."""
    assert run(tmp_path, *AUTO) == 0
    [found] = read_stopped(tmp_path)
    assert (found.verdict, found.questions, found.budget, found.family, found.level) == ("equal", 16, 32, 1, 0.05)
    assert (found.method, found.gain, found.margin) == ("rerope", 0.0, 0.3)
    assert found.low is not None and -0.3 < found.low < 0 and found.high == pytest.approx(-found.low)
    assert set(samples(tmp_path)) == {found.cell, found.baseline} and not Store(tmp_path).load()
    assert {len(each.splitlines()) for each in samples(tmp_path).values()} == {1 + 16}
    assert "equal within 30 points" in capsys.readouterr().out
    before = samples(tmp_path)
    assert run(tmp_path, *AUTO) == 0  # which has nothing to ask, and says the same
    assert samples(tmp_path) == before and read_stopped(tmp_path) == [found]


def test_no_statistic_of_a_fixed_number_reads_what_has_stopped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    run(tmp_path / "auto", *AUTO)
    run(tmp_path / "fixed", "n=8")
    loaded = load_cells([tmp_path / "auto"])
    assert not loaded.finished and len(loaded.stopped) == 1
    assert "rerope passkey at 512" in caplog.text and "run with n=32" in caplog.text
    capsys.readouterr()
    for words in (
        ["check", f"{tmp_path}/auto", "--baseline", f"{tmp_path}/new.json", "--update"],
        ["compare", f"{tmp_path}/fixed", f"{tmp_path}/auto"],
        ["leaderboard", f"{tmp_path}/auto"],
    ):
        caplog.clear()
        assert main.main(words) == 2
        assert "2 cells stopped as soon as comparisons were decided" in caplog.text
    assert "run with n=32 to finish it" in capsys.readouterr().err
    main.main(["check", f"{tmp_path}/fixed", "--baseline", f"{tmp_path}/base.json", "--update", "--blind"])
    with pytest.raises(ConfigError, match="run has no cell of the baseline"):
        check_runs([tmp_path / "auto"], tmp_path / "base.json")


def test_a_report_shows_the_interval_that_holds_wherever_it_stops(tmp_path: Path) -> None:
    run(tmp_path, *AUTO)
    assert main.main(["report", f"{tmp_path}"]) == 0
    page = (tmp_path / "report" / "report.md").read_text()
    [found] = read_stopped(tmp_path)
    assert found.high is not None
    assert f"0.0 [-{100 * found.high:.1f}, +{100 * found.high:.1f}]" in page and "Unfinished" not in page
    assert main.main(["doctor", f"{tmp_path}"]) == 0


@pytest.mark.parametrize("n", [32, 64])
def test_a_fixed_number_goes_on_from_what_was_asked_and_makes_ordinary_cells(tmp_path: Path, n: int) -> None:
    run(tmp_path / "auto", *AUTO)
    asked = {
        name: [json.loads(line) for line in lines.splitlines()[1:]]
        for name, lines in samples(tmp_path / "auto").items()
    }
    run(tmp_path / "auto", f"n={n}")
    run(tmp_path / "apart", f"n={n}")
    ours, theirs = load_cells([tmp_path / "auto"]), load_cells([tmp_path / "apart"])
    assert [each.cell.id for each in ours.finished] == [each.cell.id for each in theirs.finished]
    assert [[one.checksum for one in each.samples] for each in ours.finished] == [
        [one.checksum for one in each.samples] for each in theirs.finished
    ]
    assert len(ours.finished) == 2 and not ours.stopped and not ours.unfinished
    kept = {row["checksum"] for rows in asked.values() for row in rows}
    assert kept <= {sample.checksum for each in ours.finished for sample in each.samples}


def test_ordinary_cells_of_fewer_questions_are_begun_from_and_stay(tmp_path: Path) -> None:
    run(tmp_path, "n=8")
    before = {row.cell.id: [one.checksum for one in row.samples] for row in load_cells([tmp_path]).finished}
    run(tmp_path, *AUTO)
    loaded = load_cells([tmp_path])
    assert {row.cell.id for row in loaded.finished} == before.keys() and len(loaded.stopped) == 1
    stored = b"".join(samples(tmp_path).values()).decode()
    assert all(f'"{name}"' in stored for names in before.values() for name in names)


def test_a_function_is_not_compared_with_itself_and_takes_no_part_of_the_level(tmp_path: Path) -> None:
    """Up to its window of a half trained length rerope is none."""
    run(tmp_path, *AUTO, "task.questions_per_text=2", lengths="lengths=[64,512]")
    [found] = read_stopped(tmp_path)
    assert (found.length, found.family, found.clusters) == (512, 1, found.questions // 2)


def test_the_comparisons_of_a_run_share_the_level(tmp_path: Path) -> None:
    run(tmp_path, *AUTO, "seed=[0,1]")
    assert [(each.seed, each.level, each.family) for each in read_stopped(tmp_path)] == [(0, 0.025, 2), (1, 0.025, 2)]


def test_a_budget_that_ends_is_no_verdict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(tmp_path, "n=auto", "n_max=8")
    [found] = read_stopped(tmp_path)
    assert (found.verdict, found.questions, found.margin) == ("undecided", 8, 0.02)
    assert "budget ended (2 points)" in capsys.readouterr().out


@pytest.mark.slow
def test_a_method_that_helps_is_found_better_and_stops_before_the_others(tmp_path: Path) -> None:
    words = ["run", "method=none,rerope,streaming_llm", "task=passkey", "lengths=[512]", "n=auto", "n_max=32"]
    assert main.main([*words, f"results={tmp_path}", "plots=false"]) == 0
    found = {each.method: each for each in read_stopped(tmp_path)}
    assert (found["rerope"].verdict, found["streaming_llm"].verdict) == ("better", "undecided")
    assert found["rerope"].questions < found["streaming_llm"].questions == 32
    assert found["rerope"].gain is not None and found["rerope"].gain > 0.3


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("auto", 100, None), "n_max must be 8, 12, 16, 24, 32, 48, ..., the end of a round, got 100: e.g. n_max=256"),
        (
            ("auto", "many", None),
            "n_max must be 8, 12, 16, 24, 32, 48, ..., the end of a round, got 'many': e.g. n_max=256",
        ),
        (("auto", 64, 2), "until must be above 0 and below 1, nats per token or a share of right answers, got 2: e.g."),
        ((32, 64, None), "n_max is for n=auto, got it with n=32: leave it out, or give n=auto"),
        ((None, None, 0.1), "until is for n=auto, got it with n=None"),
    ],
)
def test_a_wrong_rule_is_refused(given: tuple[Any, Any, Any], said: str) -> None:
    with pytest.raises(ConfigError) as failure:
        stopping_of(*given)
    assert str(failure.value).startswith(said)


@pytest.mark.parametrize(
    ("method", "words", "said"),
    [
        ("none", (), "n=auto compares each method with none, and needs both: e.g. method=none,yarn"),
        ("rerope", ("baseline=false",), "n=auto compares each method with none"),
        ("none,rerope", ("stop_after_collapse=true",), "n=auto stops by itself"),
    ],
)
def test_a_run_that_cannot_stop_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], method: str, words: tuple[str, ...], said: str
) -> None:
    assert run(tmp_path, *AUTO, *words, method=method) == 2
    assert said in capsys.readouterr().err


def test_lines_that_are_no_comparison_are_left_out_and_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(tmp_path, *AUTO)
    [found] = read_stopped(tmp_path)
    with (tmp_path / STOPPED_FILE_NAME).open("a") as file:
        file.write('{"cell": 3}\n[\n')
    assert read_stopped(tmp_path) == [found] and isinstance(found, StoppedComparison)
    assert main.main(["doctor", f"{tmp_path}"]) != 0
    assert "2 lines that are no comparison (first 2)" in capsys.readouterr().out
