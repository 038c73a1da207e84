"""SmolLM2's board on a GPU (tools/board_gpu.py), here on a CPU: its parts, its runs at toy size, and going on."""

import json
import subprocess
import sys
import tarfile
import time
from dataclasses import replace
from pathlib import Path

import hydra
import pyarrow.parquet as pq
import pytest

from lexbench.core import registry
from tools import board_gpu

HYDRA = replace(board_gpu.TOY, packages=("hydra-core",), part_bytes=50_000)


@pytest.mark.parts
def test_parts_come_one_by_one_and_are_joined_when_all_are_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    board_gpu.pack(HYDRA, tmp_path / "parts")
    parts = sorted((tmp_path / "parts").iterdir())
    assert len(parts) > 1 and all(part.stat().st_size <= 50_000 for part in parts)
    arrived = []
    for number, part in enumerate(parts):
        (tmp_path / str(number)).mkdir()
        part.rename(tmp_path / str(number) / part.name)
        arrived.append(board_gpu.join(tmp_path / str(number), tmp_path / "place"))
    assert arrived == [False] * (len(parts) - 1) + [True]
    assert f"1 of {len(parts)} parts are in" in capsys.readouterr().out
    site = tmp_path / "place" / "joined" / "site"
    own = Path(hydra.__file__)
    assert (site / "hydra" / "__init__.py").read_bytes() == own.read_bytes()
    # What Python knows of an installed package is there too.
    found = subprocess.run(
        [sys.executable, "-I", "-S", "-c", "import sys, importlib.metadata as m; sys.path[:0] = sys.argv[1:]; "
         "print(m.version('hydra-core'))", str(site)], capture_output=True, text=True, check=True
    )  # fmt: skip
    assert found.stdout.strip() == hydra.__version__


@pytest.mark.parts
def test_a_part_that_arrives_broken_is_told_and_asked_for_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    board_gpu.pack(HYDRA, tmp_path / "parts")
    part = min((tmp_path / "parts").iterdir())
    content = part.read_bytes()
    part.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    words = ["--join", str(tmp_path / "parts"), "--place", str(tmp_path / "place")]
    assert board_gpu.main(words) == 2
    assert "error: the parts must have the SHA-256 " in capsys.readouterr().err
    part.write_bytes(content)
    assert board_gpu.main(words) == 0


def test_parts_of_two_packings_are_not_joined(tmp_path: Path) -> None:
    for letter in "ab":
        (tmp_path / f"1of2-{letter * 64}").touch()
    with pytest.raises(ValueError, match="must be of one packing, they are of 2: delete "):
        board_gpu.join(tmp_path, tmp_path / "place")


@pytest.mark.parts
def test_a_package_for_one_platform_is_not_packed(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"package numpy must be of Python alone to be packed, it has .*[.]so"):
        board_gpu.pack(replace(board_gpu.TOY, packages=("numpy",)), tmp_path)


@pytest.mark.parts
def test_a_peers_package_that_is_not_installed_is_left_out_and_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    board = replace(board_gpu.TOY, packages=("hydra-core",), peers=("no-such-peer", "omegaconf"))
    names = [name for name, _ in board_gpu.contents(board)]
    assert {"site/hydra/__init__.py", "site/omegaconf/__init__.py"} <= set(names)
    said = "package no-such-peer is not installed here: it is left out, and lm_eval will not run without it\n"
    assert capsys.readouterr().out == said
    with pytest.raises(ValueError, match="package no-such-peer must be installed here to be packed"):
        list(board_gpu.contents(replace(board, packages=("no-such-peer",), peers=())))


def test_without_time_all_cells_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert board_gpu.main(["--toy", "--place", str(tmp_path), "--seconds", "0"]) == 3
    lines = capsys.readouterr().out.splitlines()
    # 2 tasks x (2 methods x 3 lengths + 1 method at 1 length).
    assert lines[1] == "0 of 14 cells have a value; the others:" and len(lines) == 2 + 14
    assert "passkey yarn 192: not measured" in lines


def test_a_run_is_ended_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(board_gpu, "SECONDS_TO_END", 0.4)  # a shell's background job hears no Ctrl-C
    mark = tmp_path / "mark"
    program = f"import pathlib, time; pathlib.Path({str(mark)!r}).touch(); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.DEVNULL) as process:
        while not mark.exists():
            time.sleep(0.01)
        assert not board_gpu.wait([process], time.time())
        board_gpu.end([process])
        assert process.returncode not in (None, 0)


def test_the_real_board_has_the_sizes_of_its_page() -> None:
    cells = [cell for sweeps in board_gpu.REAL.stages for sweep in sweeps for cell in sweep.cells()]
    methods, lengths = {method for _, method, _ in cells}, (2048, 8192, 16384, 32768)
    assert len(methods) == 12 and methods <= set(registry.registered_names("method"))
    assert len(cells) == len(set(cells)) == 2 * (12 * len(lengths) + 5)
    first, last = ([sweep.n for sweep in sweeps] for sweeps in board_gpu.REAL.stages)
    assert (first, last) == ([32, 32], [8, 8])
    assert {"8192:64", "32768:64"} <= set(board_gpu.REAL.caches)


@pytest.mark.slow
def test_runs_go_on_with_the_cells_of_an_earlier_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    board_gpu.pack(board_gpu.TOY, tmp_path / "parts")
    passkeys, segments = board_gpu.stage(("none",), [(64, 192)], 4, targets=32, keys=4)
    for name, sweeps in (("first", (segments,)), ("second", (passkeys, segments))):
        monkeypatch.setattr(board_gpu, "TOY", replace(board_gpu.TOY, stages=(sweeps,)))
        place = tmp_path / name
        assert board_gpu.join(tmp_path / "parts", place)
        words = ["--toy", "--place", str(place), "--out", str(tmp_path / f"{name}_out")]
        earlier = tmp_path / "first_out" / "board_gpu.tar.gz"
        assert board_gpu.main([*words, *(["--resume", str(earlier)] if earlier.exists() else [])]) == 0
    shown = capsys.readouterr().out
    assert "2 of 2 cells have a value\n" in shown
    assert "3 of 4 cells have a value; the others:\npasskey none 64: refused: passkey needs at least" in shown
    first, second = (
        {
            file.name: (file.stat().st_mtime_ns, file.read_bytes())
            for file in (tmp_path / name / "results").glob("cells/[!.]*")
        }
        for name in ("first", "second")
    )
    assert len(first) == 2 and len(second) == 4
    assert {name: content for name, (_, content) in first.items()}.items() <= {
        name: content for name, (_, content) in second.items()
    }.items()
    # A cell that is measured twice would have two costs.
    lines = (tmp_path / "second" / "results" / "costs.jsonl").read_text().splitlines()
    costs = [json.loads(line)["cell"] for line in lines]
    assert len(costs) == len(set(costs))
    with tarfile.open(tmp_path / "second_out" / "board_gpu.tar.gz") as archive:
        assert {f"results/cells/{name}" for name in second} <= set(archive.getnames())


@pytest.mark.slow
def test_caches_go_on_with_the_answers_of_an_earlier_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (*board_gpu.TOY.caches, "--settings", "bits=4", "keep=0.5,by=expected")
    monkeypatch.setattr(board_gpu, "TOY", replace(board_gpu.TOY, caches=words))
    call = ["--toy", "--caches", "--place", str(tmp_path / "place")]
    assert board_gpu.main([*call, "--seconds", "0"]) == 3  # no time: no answer, and no page
    assert not (tmp_path / "place" / "results" / "kv.parquet").exists()
    assert board_gpu.main(call) == 0
    page = capsys.readouterr().out
    assert "| yarn+kv(bits=4) " in page and "## Proven at 512 tokens" in page
    file = tmp_path / "place" / "results" / "kv.parquet"
    assert len(pq.read_table(file)) == 2 * 2 * 2  # settings, lengths, texts
    known, archive = file.read_bytes(), tmp_path / "place" / "board_gpu.tar.gz"
    assert board_gpu.main(["--toy", "--caches", "--place", str(tmp_path / "other"), "--resume", str(archive)]) == 0
    assert (tmp_path / "other" / "results" / "kv.parquet").read_bytes() == known
