"""What a terminal shows while and after a command works: progress, one plan for a sweep, the protocol once."""

import json
import signal
import time
from pathlib import Path

import pytest

from lexbench.commands import main
from lexbench.core import console
from lexbench.report.report import first_of, write_report
from tests.report.fake_run import fake_run


def test_a_command_that_takes_long_says_for_how_long(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("TQDM_DISABLE", raising=False)
    monkeypatch.setattr(console, "FIRST_LINE_SECONDS", 0.02)
    before = signal.getsignal(signal.SIGALRM)
    with console.at_work("check"):
        time.sleep(0.1)
    lines = capsys.readouterr().err.splitlines()
    assert lines == ["lexbench check: at work for 00:00"]  # the next one is a minute later
    assert signal.getsignal(signal.SIGALRM) is before and signal.getitimer(signal.ITIMER_REAL)[0] == 0
    monkeypatch.setenv("TQDM_DISABLE", "1")
    with console.at_work("check"):
        time.sleep(0.05)
    assert capsys.readouterr().err == ""


SWEEP = ["backend=chance", "task=passkey", "lengths=[64,128]", "n=2", "results=run"]


@pytest.mark.slow
@pytest.mark.parametrize("more", [["--dry-run"], []])
def test_a_sweep_has_one_plan_and_a_total(
    more: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two cells of 64 + 128 tokens, twice: 384 tokens a job."""
    monkeypatch.chdir(tmp_path)
    assert main.main(["run", "-m", "method=none,pi,yarn", *SWEEP, *more]) == 0
    said = capsys.readouterr().err
    assert said.count("trained at 256 tokens, into run") == 1
    assert (
        "job 1 of 3: none on passkey, 2 cells, 384 tokens, " in said and "all 3 jobs, if they are alike: about" in said
    )
    assert "job 2 of 3: pi on passkey, 2 cells, 384 tokens, " in said
    assert "\nall 3 jobs: 6 cells, 1,152 tokens, about " in said


@pytest.mark.slow
def test_the_protocol_of_a_task_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main.main(["run", "backend=chance", "corpus=synthetic", "lengths=[128]", "n=2", "results=run"]) == 0
    text = capsys.readouterr().out
    assert "last_segment, NLL" in text and "last_segment, perplexity" in text
    assert text.count("one window, no stride") == 1


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
def test_a_report_ends_with_its_sentence_its_picture_and_its_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fake_run(tmp_path)
    picture = f"{tmp_path}/report/plots/lexlet-last_segment-nll.svg"
    for _ in range(2):  # anew, and unchanged
        assert main.main(["report", str(tmp_path)]) == 0
        shown = capsys.readouterr()
        assert shown.out == f"{tmp_path}/report/report.md\n" and shown.err.splitlines()[-1] == picture
    page = write_report([tmp_path])
    assert first_of(page) == [picture]
    # These cells score different targets at each length, so nothing is gained or lost: with a sentence it comes first.
    file = page.parent / "tables/first.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "sentence": "Yarn helps."}))
    assert first_of(page) == ["Yarn helps.", picture]
