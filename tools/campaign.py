"""Things that happen to runs: each is done to a real one, in a process of its own, and then the run is done again."""

import contextlib
import ctypes
import gc
import io
import os
import random
import resource
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from lexbench.backends.chance import Chance
from lexbench.commands import main
from lexbench.runner.forecast import operations_per_second
from lexbench.store.format import read_cell_table
from lexbench.store.store import Store
from tests import texts

TASKS = ("passkey", "last_segment")
LENGTHS = (128, 200, 256)
N = 4
PAUSE = 0.004
"""Seconds that a question takes, so that a run can be hit anywhere."""

PATIENCE = 20
"""Seconds after which a process without memory is killed."""


@dataclass
class Outcome:
    """What a kind of fault has led to."""

    fault: str
    tries: int = 0
    said: int = 0
    """Runs that ended by themselves in one line, exit code 2."""
    completed: int = 0
    """Runs after which the folder says what that of an undisturbed run does, byte for byte."""
    lost: int = 0
    """Folders that were not, in the end."""


def run(folder: Path) -> int:
    """`lexbench run` in this process, on backend chance; its exit code."""
    words = ["backend=chance", "task=[" + ",".join(TASKS) + "]", "corpus=synthetic", f"n={N}", f"results={folder}"]
    return main.main(["run", *words, "lengths=[" + ",".join(map(str, LENGTHS)) + "]"])


def contents(folder: Path) -> dict[str, bytes]:
    """Everything that numbers come from, by name; of a cell's file all that it says, but for Parquet's own framing."""
    files = [*(folder / "cells").glob("[!.]*"), folder / "records.jsonl"]
    return {file.name: _said(file) if file.suffix == ".parquet" else file.read_bytes() for file in files}


def _said(file: Path) -> bytes:
    table = read_cell_table(file)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    return bytes(sink.getvalue())


def warm() -> None:
    """Load and measure what every run needs, so that its copies need not."""
    import torch

    torch.set_num_threads(1)
    operations_per_second()
    for kind in ("write", "score"):
        answer = getattr(Chance, kind)

        def slow(self: Chance, question: Any, answer: Callable[..., Any] = answer) -> Any:
            time.sleep(PAUSE)
            return answer(self, question)

        setattr(Chance, kind, slow)


def rehearse(folder: Path) -> None:
    """Load also what a run loads on its way, by a run: copies of this process are then hit at its work."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        assert run(folder) == 0, "a run that nothing happens to ends well"
    gc.freeze()  # copies would look through what is loaded, and have all its memory copied


def child(work: Callable[[], int]) -> int:
    """The id of a copy of this process that does the work silently and ends with its code."""
    sys.stdout.flush()
    sys.stderr.flush()
    process = os.fork()
    if process:
        return process
    code = 1
    try:
        with Path(os.devnull).open("w") as nothing:
            os.dup2(nothing.fileno(), 1)
            os.dup2(nothing.fileno(), 2)
        code = work()
    finally:
        os._exit(code)


def ended(process: int) -> int:
    """Exit code, or minus the signal."""
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def killed(folder: Path, whole: dict[str, bytes], rng: random.Random, span: float, kills: int) -> Outcome:
    """SIGKILL at random moments of a run; in the end it is left alone."""
    found = Outcome("SIGKILL")
    while found.tries < kills:
        shutil.rmtree(folder, ignore_errors=True)
        for _ in range(min(8, kills - found.tries)):
            process = child(lambda: run(folder))
            time.sleep(rng.random() * span)
            os.kill(process, signal.SIGKILL)
            found.tries += ended(process) == -signal.SIGKILL
        _judge(found, folder, whole)
    return found


def two_at_once(folder: Path, whole: dict[str, bytes], rng: random.Random, span: float, tries: int) -> Outcome:
    """Two runs on one folder, one of which is killed at a random moment."""
    found = Outcome("two runs at once, one killed")
    for _ in range(tries):
        shutil.rmtree(folder, ignore_errors=True)
        both = [child(lambda: run(folder)) for _ in range(2)]
        time.sleep(rng.random() * span)
        os.kill(both[0], signal.SIGKILL)
        ended(both[0])
        found.tries += 1
        same = ended(both[1]) == 0 and contents(folder) == whole
        found.completed += same
        found.lost += not same
    return found


def disk_full(folder: Path, whole: dict[str, bytes], rng: random.Random, tries: int) -> Outcome:
    """No file may grow beyond a random size, as on a full disk."""
    found = Outcome("disk full")
    largest = max(map(len, whole.values()))

    def limited(size: int) -> int:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
        return run(folder)

    for _ in range(tries):
        shutil.rmtree(folder, ignore_errors=True)
        size = rng.randrange(largest)
        found.said += ended(child(lambda size=size: limited(size))) == 2  # type: ignore[misc]
        found.tries += 1
        _judge(found, folder, whole)
    return found


def damaged(folder: Path, whole: dict[str, bytes], rng: random.Random, span: float, tries: int) -> Outcome:
    """A file of a killed run is cut, overwritten in the middle or emptied; what a run names is deleted."""
    found = Outcome("a damaged file")
    while found.tries < tries:
        shutil.rmtree(folder, ignore_errors=True)
        process = child(lambda: run(folder))
        time.sleep(span * (0.3 + 0.7 * rng.random()))
        os.kill(process, signal.SIGKILL)
        ended(process)
        files = sorted(file for file in folder.rglob("*") if file.is_file())
        if not files:
            continue
        hit = rng.choice(files)
        content = bytearray(hit.read_bytes())
        place = rng.randrange(len(content)) if content else 0
        before, after = bytes(content[:place]), bytes(content[place + 2 :])
        hit.write_bytes(rng.choice([before, before + b"\0\xff" + after, b""]))
        found.tries += 1
        if ended(child(lambda: run(folder))) == 2:
            found.said += 1
            hit.unlink()  # as the line says
        _judge(found, folder, whole)
    return found


def moved(folder: Path, whole: dict[str, bytes], rng: random.Random, span: float, tries: int) -> Outcome:
    """A run loses its folder, which is put back afterwards, its cells, or their unfinished files."""
    found, away = Outcome("moved or removed while it runs"), folder.with_name("away")
    while found.tries < tries:
        shutil.rmtree(folder, ignore_errors=True)
        process = child(lambda: run(folder))
        time.sleep(span * (0.3 + 0.7 * rng.random()))
        cells = folder / "cells"
        what = rng.choice(["folder", "cells", "unfinished"])
        if not any(cells.glob("*.jsonl")):
            ended(process)
            continue
        if what == "folder":
            folder.rename(away)
        else:
            for file in cells.glob("[!.]*" if what == "cells" else "*.jsonl"):
                file.unlink(missing_ok=True)
        found.said += ended(process) == 2
        found.tries += 1
        if away.exists():
            shutil.rmtree(folder, ignore_errors=True)
            away.rename(folder)
        _judge(found, folder, whole)
    return found


def jumping_clock(folder: Path, whole: dict[str, bytes], rng: random.Random, tries: int) -> Outcome:
    """The clock goes on from a random year after each look."""
    found = Outcome("a clock that jumps")

    def jumping() -> int:
        time.time = lambda: rng.random() * 4e9
        return run(folder)

    for _ in range(tries):
        shutil.rmtree(folder, ignore_errors=True)
        found.tries += 1
        found.said += ended(child(jumping)) == 2
        _judge(found, folder, whole)
    return found


def not_numbers(folder: Path, rng: random.Random, tries: int) -> Outcome:
    """A model whose losses are NaN from a random length on: these samples say so, the others are as ever."""
    found = Outcome("NaN at length")
    for _ in range(tries):
        shutil.rmtree(folder, ignore_errors=True)
        border = rng.choice(LENGTHS)
        found.tries += 1
        with _nan_from(border):
            code = ended(child(lambda: run(folder)))
        cells = [each for each in Store(folder).load() if each.cell.task.startswith("last_segment")]
        said = {each.cell.length: all(sample.failed or each.refused for sample in each.samples) for each in cells}
        right = code == 0 and said == {length: length >= border for length in LENGTHS}
        found.completed += right
        found.lost += not right
    return found


@contextlib.contextmanager
def _nan_from(border: int) -> Iterator[None]:
    score = Chance.score

    def broken(self: Chance, question: Any) -> Any:
        given = score(self, question)
        if question.length >= border:
            given.nll[:] = np.nan
        return given

    Chance.score = broken  # type: ignore[method-assign]
    try:
        yield
    finally:
        Chance.score = score  # type: ignore[method-assign]


def read_only(folder: Path, whole: dict[str, bytes], rng: random.Random, span: float, tries: int) -> Outcome:
    """A killed run's folder in which nothing may be written any more."""
    found = Outcome("read-only folder")
    for _ in range(tries):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        process = child(lambda: run(folder))
        time.sleep(span * rng.random())
        os.kill(process, signal.SIGKILL)
        ended(process)
        places = [folder, *(place for place in folder.rglob("*") if place.is_dir())]
        for place in places:
            place.chmod(0o555)
        before = _files(folder)
        found.said += ended(child(lambda: _without_privilege(lambda: run(folder)))) == 2
        found.tries += 1
        found.lost += _files(folder) != before
        for place in places:
            place.chmod(0o755)
        _judge(found, folder, whole)
    return found


def out_of_memory(folder: Path, whole: dict[str, bytes], rng: random.Random, tries: int) -> Outcome:
    """A process that may take a random little memory more than it has at its start."""
    found = Outcome("out of memory")

    def limited(room: int) -> int:
        have = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (have + room, have + room))
        signal.alarm(PATIENCE)  # a thread of some library may wait for ever for one that could not begin
        return run(folder)

    for _ in range(tries):
        shutil.rmtree(folder, ignore_errors=True)
        room = rng.randrange(12 << 20)
        found.said += ended(child(lambda room=room: limited(room))) == 2  # type: ignore[misc]
        found.tries += 1
        _judge(found, folder, whole)
    return found


def _files(folder: Path) -> dict[Path, bytes]:
    return {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def _without_privilege(work: Callable[[], int]) -> int:
    """Work of a process for which permissions hold, though it is root's: without CAP_DAC_OVERRIDE (capabilities(7))."""
    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    held = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable; twice
    if libc.capget(header, held) == 0:
        for place in range(3):
            held[place] &= ~(1 << 1)
        libc.capset(header, held)
    return work()


def _judge(found: Outcome, folder: Path, whole: dict[str, bytes]) -> None:
    """Run once more, undisturbed, and compare."""
    same = ended(child(lambda: run(folder))) == 0 and contents(folder) == whole
    found.completed += same
    found.lost += not same


def campaign(folder: Path, seed: int, kills: int, tries: int) -> list[Outcome]:
    """Every kind of fault, `kills` times SIGKILL and `tries` times each other one."""
    with texts.once():  # the copies find the questions' texts made
        return _campaign(folder, seed, kills, tries)


def _campaign(folder: Path, seed: int, kills: int, tries: int) -> list[Outcome]:
    warm()
    rng, hit = random.Random(seed), folder / "hit"
    assert ended(child(lambda: run(folder / "whole"))) == 0, "a run that nothing happens to ends well"
    whole = contents(folder / "whole")
    starved = out_of_memory(hit, whole, rng, tries)  # first: what is loaded takes no more memory
    rehearse(folder / "rehearsal")
    begun = time.monotonic()
    assert ended(child(lambda: run(folder / "again"))) == 0, "a run that nothing happens to ends well"
    span = time.monotonic() - begun
    return [
        killed(hit, whole, rng, span, kills),
        two_at_once(hit, whole, rng, span, tries),
        disk_full(hit, whole, rng, tries),
        damaged(hit, whole, rng, span, tries),
        moved(hit, whole, rng, span, tries),
        jumping_clock(hit, whole, rng, tries),
        not_numbers(hit, rng, tries),
        read_only(hit, whole, rng, span, tries),
        starved,
    ]
