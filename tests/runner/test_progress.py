"""The bar of a run: one for all jobs of a sweep, as tqdm writes it; lines where there is no terminal."""

import io
import re
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import lexbench
from lexbench.commands.main import main
from lexbench.runner import execute, progress
from lexbench.runner.cells import OpenCell
from lexbench.runner.job import Job
from lexbench.runner.plan import fit_lengths
from lexbench.runner.questions import made_once
from tests.runner.open_cells import open_cell


class Terminal(io.StringIO):
    """Standard error as a terminal has it."""

    def isatty(self) -> bool:
        return True


def followed(jobs: Sequence[Sequence[OpenCell]], monkeypatch: pytest.MonkeyPatch, stream: io.StringIO) -> str:
    """What a sweep of jobs writes whose cells take 0.02 seconds each."""
    monkeypatch.setattr("sys.stderr", stream)
    with progress.shared_bar() as sweep:
        sweep.jobs = len(jobs)
        for cells in jobs:
            with progress.Progress(cells, quiet=False) as shown:
                for cell in cells:
                    shown.begin_cell(cell, 0)
                    time.sleep(0.02)
                    shown.count_sample(cell)
                    shown.end_cell(cell, 0.02)
    return stream.getvalue()


JOBS = [[open_cell(method, length) for length in (256, 512)] for method in ("none", "pi", "yarn")]


def test_one_bar_goes_through_all_jobs_of_a_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TQDM_DISABLE", raising=False)
    text = followed(JOBS, monkeypatch, Terminal())
    assert text.count("\n") == 1  # the end of the only bar
    drawn = [part for part in text.split("\r") if part.strip()]
    assert re.fullmatch(r"100%\|[█#]+\| 00:0\d<00:00, job 3 of 3, 0 cells left: passkey yarn 512\s*", drawn[-1])
    assert all(re.match(r"\s*\d+%\|.{20}\| \d\d:\d\d<(\d\d:\d\d|\?), ", part) for part in drawn)


def test_a_run_alone_names_no_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TQDM_DISABLE", raising=False)
    assert "<00:00, 0 cells left: passkey none 512" in followed(JOBS[:1], monkeypatch, Terminal())


def test_a_pipe_gets_a_line_a_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TQDM_DISABLE", raising=False)
    text = followed(JOBS, monkeypatch, io.StringIO())
    assert "\r" not in text
    assert [line.split(", ", 1)[1] for line in text.splitlines()] == [
        f"job {number} of 3, {left} left: passkey {method} {length}"
        for number, method in enumerate(("none", "pi", "yarn"), 1)
        for left, length in (("1 cell", 256), ("0 cells", 512))
    ]


@pytest.mark.parametrize("stream", [io.StringIO, Terminal])
def test_tqdm_disable_silences_it(monkeypatch: pytest.MonkeyPatch, stream: type[io.StringIO]) -> None:
    monkeypatch.setenv("TQDM_DISABLE", "1")
    assert followed(JOBS, monkeypatch, stream()) == ""


def test_the_speed_to_begin_with_is_that_of_the_dtype_and_device_of_the_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, str]] = []

    def speed(dtype: str, device: str) -> float:
        asked.append((dtype, device))
        return 1e9

    monkeypatch.setattr(progress, "operations_per_second", speed)
    cell = replace(JOBS[0][0], dtype="bfloat16")
    progress.Progress([cell], True, "cpu")
    assert asked == [("bfloat16", "cpu")]


def test_what_is_left_counts_the_jobs_that_have_not_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "operations_per_second", lambda *_: 1e9)
    with progress.shared_bar() as sweep:
        sweep.jobs = 3
        shown = progress.Progress(JOBS[0], quiet=True)
        own = sweep.forecast.remaining_seconds(cell.step for cell in JOBS[0])
        assert own > 0 and sweep._seconds_of_later_jobs() == pytest.approx(2 * own)  # two more jobs like the first one
        shown.begin_cell(JOBS[0][0], 0)
        progress.Progress(JOBS[1], quiet=True)
        assert sweep._seconds_of_later_jobs() == pytest.approx(own)


PLAN = ["run", "task=[passkey,recall]", "lengths=[256,1024]", "n=2", "backend=chance"]


def planned(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, seconds: float) -> list[str]:
    """Standard error of a run whose texts take so many seconds to find, where a line comes after a tenth."""

    def slowly(*given: Any) -> Job:
        time.sleep(seconds)
        return fit_lengths(*given)

    stream = io.StringIO()
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setattr(progress, "SECONDS_BEFORE_LINE", 0.1)
    monkeypatch.setattr(progress, "_slow_blocks", progress._SlowBlocks())  # its thread waits for no line of a second
    monkeypatch.setattr(execute, "fit_lengths", slowly)
    assert main([*PLAN, f"results={tmp_path}"]) == 0
    return stream.getvalue().splitlines()


def test_a_long_search_for_texts_says_what_it_does(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("TQDM_DISABLE", raising=False)
    lines = planned(monkeypatch, tmp_path, seconds=1)
    assert lines[0].startswith("lexlet, trained at 256 tokens")
    assert [line for line in lines if "looking" in line] == ["looking for texts of 2 tasks at up to 1,024 tokens ..."]


def test_questions_that_take_long_are_said_where_there_is_no_bar(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("TQDM_DISABLE", raising=False)
    passkey = type(lexbench.task("passkey"))
    write = passkey.questions

    def slowly(*given: Any) -> Any:
        time.sleep(0.5)
        return write(*given)

    monkeypatch.setattr(passkey, "questions", slowly)
    made_once.clear()
    lines = planned(monkeypatch, tmp_path, seconds=0)
    assert [line for line in lines if "writing" in line] == [
        f"writing the questions of passkey at {length} tokens ..." for length in ("1,024", "256")
    ]


@pytest.mark.slow
def test_tqdm_disable_silences_the_line_of_a_long_search(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TQDM_DISABLE", "1")
    assert not [line for line in planned(monkeypatch, tmp_path, seconds=1) if "looking" in line]


def test_a_short_plan_says_nothing_of_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TQDM_DISABLE", raising=False)
    stream = io.StringIO()
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setattr(progress, "SECONDS_BEFORE_LINE", 0.2)
    monkeypatch.setattr(progress, "_slow_blocks", progress._SlowBlocks())
    with progress.print_when_slow("planning", quiet=False):
        pass
    time.sleep(0.5)
    assert stream.getvalue() == ""


def test_many_short_blocks_share_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TQDM_DISABLE", raising=False)
    monkeypatch.setattr(progress, "_slow_blocks", progress._SlowBlocks())
    begun, start = list[threading.Thread](), threading.Thread.start

    def counted(thread: threading.Thread) -> None:
        begun.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", counted)
    for _ in range(20):
        with progress.print_when_slow("writing", quiet=False):
            pass
        time.sleep(0.001)  # a thread that has just begun may look at once
    assert len(begun) == 1
