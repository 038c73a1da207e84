"""What of the core reads files from outside, each with valid files that lexbench wrote, and how it is called."""

import contextlib
import functools
import io
import json
import random
import resource
import shutil
import signal
import sys
import traceback
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from lexbench.commands import main
from lexbench.core.errors import ConfigError
from lexbench.core.record import NOTHING_MEASURED, Refused
from tests.faults.mutations import contents, damage

DERIVED = "records.jsonl"
"""Made anew from the cells by every report."""
SECONDS = 100
"""After which a reader hangs."""
ROOM = 4 << 30
"""Bytes of addresses that a reader may take beside what the process has."""


@dataclass(frozen=True)
class Reader:
    """One way in."""

    name: str
    source: Callable[[Path], None]
    """Writes valid files into a new folder."""
    files: Sequence[str]
    """Patterns of those that are damaged."""
    read: Callable[[Path], int]
    """Reads the folder, as the command line does: 0 or 1 done, 2 refused with a line on standard error."""
    keeps: bool = True
    """Whether the folder stays as it is; otherwise it is what the reader writes into."""
    tries: int = 25
    """Damaged files that are enough: few where a call takes a second or more."""

    @property
    def slow(self) -> bool:
        """Whether it is left out of every day's tests."""
        return self.tries < 25


@dataclass(frozen=True)
class Outcome:
    """What a reader made of a damaged file."""

    verdict: str
    """read, refused, or what is wrong with it."""
    said: str
    what: str
    """Was damaged."""


class Hangs(BaseException):
    """Nothing that a reader may catch."""


@contextlib.contextmanager
def limited() -> Iterator[None]:
    """A reader that hangs, or takes all memory, is stopped."""

    def stop(number: int, frame: object) -> None:
        raise Hangs

    with Path("/proc/self/statm").open() as stream:
        have = int(stream.read().split()[0]) * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    resource.setrlimit(resource.RLIMIT_AS, (have + ROOM, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def called(read: Callable[[], int]) -> tuple[str, str]:
    """How a call ended: `read`, `refused` with its line, or what is wrong with the end, and the traceback."""
    out, err = io.StringIO(), io.StringIO()
    try:
        with limited(), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = read()
    except SystemExit as error:  # argparse's
        code = error.code if isinstance(error.code, int) else 1
    except (Exception, Hangs) as error:
        where = traceback.extract_tb(error.__traceback__)
        ours = [
            f"{Path(each.filename).name}:{each.lineno}"
            for each in where
            if "/lexbench/" in each.filename and "site-packages" not in each.filename
        ]
        near = ours or [f"{Path(where[-1].filename).name}:{where[-1].lineno}"]
        return f"{type(error).__name__} at {near[-1]}", "".join(traceback.format_exception(error))
    said = err.getvalue()
    noted = "the first is followed"  # which of two files begins texts: no error
    lines = [line for line in said.splitlines() if line.startswith("lexbench: ") and noted not in line]
    if "Traceback" in said + out.getvalue():
        return "traceback printed", said
    if code not in (0, 1, 2, NOTHING_MEASURED):
        return f"exit code {code}", said
    if code in (0, 1):
        return "read", ""
    if not lines and out.getvalue():  # check and import say it in what they print
        return "refused", out.getvalue()
    if len(lines) != 1:
        return f"{len(lines)} lines", said
    if len(lines[0]) > 1020:
        return f"a line of {len(lines[0])} characters", said[:2000]
    return "refused", lines[0]


def function(call: Callable[[Path], object]) -> Callable[[Path], int]:
    """A reader that no command reaches cheaply, under the command line's own handling of errors."""

    def read(folder: Path) -> int:
        try:
            call(folder)
        except (ConfigError, Refused, OSError) as error:
            print(f"lexbench: {main._one_line(error)}", file=sys.stderr)
            return 2
        return 0

    return read


def command(*words: str) -> Callable[[Path], int]:
    """`lexbench WORDS`: {folder} is the reader's, {out} an empty one beside it."""

    def read(folder: Path) -> int:
        out = folder.with_name(f"{folder.name}-out")
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir()
        return main.main([word.format(folder=folder, out=out) for word in words])

    return read


@functools.cache
def _source(make: Callable[[Path], None], root: Path) -> Path:
    """The valid folder, made once a process."""
    folder = root / f"valid-{make.__name__.strip('_')}"
    if not folder.exists():
        folder.mkdir(parents=True)
        make(folder)
    return folder


def fresh(reader: Reader, root: Path) -> Path:
    """A new copy of the reader's valid folder."""
    folder = root / "reader"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(_source(reader.source, root), folder, symlinks=True)
    return folder


def tried(reader: Reader, root: Path, rng: random.Random) -> Outcome:
    """Damage a fresh copy, read it, and see that nothing but what was damaged differs."""
    folder = fresh(reader, root)
    files = sorted({file for pattern in reader.files for file in folder.glob(pattern)})
    assert files, f"{reader.name} has no {reader.files}"
    what = damage(folder, files, rng)
    before = contents(folder)
    verdict, said = called(lambda: reader.read(folder))
    after = contents(folder)
    odd = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
    if reader.keeps and set(odd) - {DERIVED}:
        verdict = f"changed {', '.join(odd[:3])}"
    return Outcome(verdict, said, what)


def check_damaged(reader: Reader, root: Path) -> None:
    """Many damaged files end in one line."""

    @settings(
        max_examples=reader.tries,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(st.integers(0, 2**32 - 1))
    def checked(seed: int) -> None:
        found = tried(reader, root, random.Random(seed))
        assert found.verdict in ("read", "refused"), f"{found.verdict} after {found.what}:\n{found.said[-3000:]}"

    checked()


def check_undamaged(reader: Reader, root: Path) -> None:
    """The valid folder is read."""
    folder = fresh(reader, root)
    verdict, said = called(lambda: reader.read(folder))
    assert verdict == "read", said


def check_without_permission(reader: Reader, root: Path) -> None:
    """A file that may not be read ends in one line."""
    folder = fresh(reader, root)
    [file, *_] = sorted(file for pattern in reader.files for file in folder.glob(pattern))
    file.chmod(0)
    verdict, said = called(lambda: reader.read(folder))
    assert verdict in ("read", "refused"), said


# valid folders


def quiet(read: Callable[[], int]) -> None:
    verdict, said = called(read)
    assert verdict == "read", said


def run_folder(folder: Path) -> None:
    """Finished, refused and unfinished cells, a job, costs, records and checks."""
    from tests.report.fake_run import LOSS, cell, finished, keep, passkey_sample

    words = ["run", "backend=chance", "task=passkey", "lengths=[1024]", "n=2", f"results={folder}"]
    quiet(lambda: main.main(words))
    methods = [name for name in LOSS if name in ("none", "rerope", "yarn(factor=8.0)")]
    cells = [finished(task, method, at, n=4) for task in TASKS for method in methods for at in (256, 512)]
    refused = finished("passkey", "none", 128)
    store = keep(folder, [*cells, refused])
    for index in range(2):
        store.append(cell("passkey", "ntk", 512, n=4), passkey_sample(index, 512, 0.1))
    store.write_text("verified.json", json.dumps({"0123456789abcdef": None, "fedcba9876543210": "failed"}, indent=1))


TASKS = ("last_segment", "passkey")


def baseline(folder: Path) -> None:
    """A baseline beside its run."""
    run_folder(folder / "run")
    for file in (folder / "run" / "cells").glob("*.jsonl"):
        file.unlink()
    asked = ["--baseline", str(folder / "baseline.json"), "--update", "--blind"]
    quiet(lambda: main.main(["check", str(folder / "run"), *asked]))


def unfinished(folder: Path) -> None:
    """A run that was interrupted: cells as lines."""
    from lexbench.store.store import Store

    words = ["run", "backend=chance", "task=passkey", "lengths=[128]", "n=2", f"results={folder}"]
    quiet(lambda: main.main(words))
    store = Store(folder)
    [each] = store.load()
    (folder / "cells" / f"{each.cell.id}.parquet").unlink()
    (folder / "records.jsonl").unlink()
    store.append(each.cell, each.samples[0])


def predictions(folder: Path) -> None:
    """Predictions as LongBench's pred.py writes them."""
    common = {"answers": ["Paris", "a cat"], "length": 3000}
    kinds = {
        "hotpotqa": {**common, "pred": "Paris", "all_classes": None},
        "trec": {**common, "pred": "Person", "answers": ["Person"], "all_classes": ["Person", "Place"]},
        "gov_report": {**common, "pred": "The report says so.", "all_classes": None},
        "lcc": {**common, "pred": "return x", "all_classes": None},
        "dureader": {**common, "pred": "我们喜欢苹果。", "answers": ["喜欢苹果"], "all_classes": None},
    }
    for name, row in kinds.items():
        text = "".join(json.dumps({**row, "length": 3000 * (i + 1)}, ensure_ascii=False) + "\n" for i in range(3))
        (folder / f"{name}.jsonl").write_text(text, encoding="utf-8")


def examples(folder: Path) -> None:
    """LongBench's data, as a folder and as an archive."""
    row = {"input": "Who?", "context": "The cat sat. " * 50, "answers": ["the cat"], "length": 150, "all_classes": None}
    text = "".join(json.dumps({**row, "_id": f"{i}"}) + "\n" for i in range(3))
    (folder / "hotpotqa.jsonl").write_text(text)
    with zipfile.ZipFile(folder / "data.zip", "w") as archive:
        archive.writestr("data/hotpotqa.jsonl", text)
        archive.writestr("__MACOSX/hotpotqa.jsonl", "")


def model_folder(folder: Path) -> None:
    """A tiny Llama with its tokenizer and its chat template."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from lexbench.checkpoints.checkpoint import local_folder

    torch.manual_seed(0)
    lexlet = local_folder("lexbench:lexlet")
    assert lexlet
    config = LlamaConfig(
        vocab_size=json.loads((lexlet / "config.json").read_text())["vocab_size"],
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=64,
        rope_theta=10000.0,
        bos_token_id=0,
        eos_token_id=1,
        tie_word_embeddings=True,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copyfile(lexlet / name, folder / name)
    (folder / "chat_template.jinja").write_text("{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}")


def factors(folder: Path) -> None:
    """A method's yaml with LongRoPE's factors, in a user's --config-dir."""
    (folder / "method").mkdir()
    listed = ", ".join(f"{1 + pair / 8:.6g}" for pair in range(16))
    text = f"_target_: lexbench.methods.longrope.Longrope\nfactor: 4.0\nlong_factors: [{listed}]\n"
    (folder / "method" / "mine.yaml").write_text(text)


def texts(folder: Path) -> None:
    """A corpus of the user's own files."""
    (folder / "book.txt").write_text("One text.\n<|endoftext|>\nAnother text, ü.\n", encoding="utf-8")
    rows = [{"text": f"meeting {i}", "meeting": {"title": "x"}} for i in range(3)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def answers(folder: Path) -> None:
    """Question answering in the official forms."""
    paragraph = {"context": "The cat sat.", "qas": [{"question": "Who sat?", "answers": [{"text": "The cat"}]}]}
    page = {"version": "2.0", "data": [{"title": "cats", "paragraphs": [paragraph]}]}
    (folder / "squad.json").write_text(json.dumps(page))
    row = {"question": "Who?", "answer": "cat", "supporting_facts": [["cats", 0]]}
    (folder / "hotpot.json").write_text(json.dumps([{**row, "context": [["cats", ["A cat."]], ["dogs", ["A dog."]]]}]))


# readers


def _preflight(folder: Path) -> None:
    from lexbench.runner.verify import Preflight

    Preflight(folder, None, "0")  # type: ignore[arg-type]


def _costs(folder: Path) -> None:
    from lexbench.stats.costs import load_costs

    load_costs([folder])


def _examples(folder: Path) -> None:
    from lexbench.taskkit.longbench.examples import Source, read_examples

    for place in (folder / "data.zip", folder):
        read_examples(Source.find(place, "hotpotqa"), False)


def _tokenizer(folder: Path) -> None:
    from lexbench.checkpoints.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(folder)
    tokenizer.decode(tokenizer.encode("a text").ids)
    tokenizer.frame(chat=True)


def _facts(folder: Path) -> None:
    from lexbench.checkpoints.checkpoint import check_architecture, checkpoint_fingerprint, end_tokens, read_model

    read_model({"path": str(folder)})
    end_tokens(folder)
    check_architecture(folder)
    checkpoint_fingerprint(folder)


def score_eight_tokens(folder: Path, backend: str) -> None:
    import numpy as np

    from lexbench.checkpoints.checkpoint import read_model
    from lexbench.core import registry
    from lexbench.core.attention import Attention
    from lexbench.core.task import Loglikelihood
    from lexbench.runner.backend_pool import open_backend

    config = {**registry.read_named_config("backend", backend), "name": backend}
    loaded = open_backend(read_model({"path": str(folder)}), config, 16)
    loaded.attend(Attention())
    tokens = np.arange(2, 10, dtype=np.int64)
    loaded.score(Loglikelihood(index=0, cluster="a", tokens=tokens, first_target=4, bytes=4, words=1))


def _texts(folder: Path) -> None:
    from lexbench.corpora.files import Files

    Files(str(folder)).fingerprint()


def _answers(folder: Path) -> None:
    from lexbench.taskkit.squad_hotpot import read_questions

    for name in ("squad.json", "hotpot.json"):
        read_questions.__wrapped__(str(folder / name), None, None, "test", None)


def _uploaded(folder: Path) -> None:
    from datasets.utils.logging import disable_progress_bar

    from lexbench.corpora.hub import Hub

    disable_progress_bar()
    Hub(str(folder), split="train").fingerprint()


CELLS = ("cells/[!.]*", "jobs/*.json", "costs.jsonl", "records.jsonl", "verified.json")
READERS = [
    Reader("leaderboard", run_folder, CELLS, command("leaderboard", "{folder}", "--out", "{out}/board.md")),
    Reader(
        "leaderboard of summaries",
        run_folder,
        CELLS,
        command("leaderboard", "{folder}", "--columns", "summary", "--format", "html", "--out", "{out}/board.html"),
    ),
    Reader("report", run_folder, CELLS, command("report", "{folder}", "--out", "{out}"), tries=1),
    Reader(
        "compare",
        run_folder,
        CELLS,
        command("compare", "{folder}", "{folder}", "--a", "method=none", "--b", "method=rerope"),
    ),
    Reader(
        "check a run",
        baseline,
        ("run/cells/[!.]*", "run/jobs/*"),
        command("check", "{folder}/run", "--baseline", "{folder}/baseline.json"),
    ),
    Reader(
        "check a baseline",
        baseline,
        ("baseline.json",),
        command("check", "{folder}/run", "--baseline", "{folder}/baseline.json"),
    ),
    Reader(
        "check --update",
        baseline,
        ("run/cells/[!.]*", "run/jobs/*"),
        command("check", "{folder}/run", "--baseline", "{out}/b.json", "--update", "--blind"),
    ),
    Reader("costs", run_folder, ("costs.jsonl",), function(_costs)),
    Reader("checks of a run", run_folder, ("verified.json",), function(_preflight)),
    Reader(
        "run goes on",
        unfinished,
        ("cells/[!.]*", "jobs/*", "costs.jsonl"),
        command("run", "backend=chance", "task=passkey", "lengths=[128]", "n=2", "results={folder}"),
        keeps=False,
        tries=3,
    ),
    Reader("score longbench", predictions, ("*.jsonl",), command("score", "longbench", "{folder}", "--e")),
    Reader("longbench's data", examples, ("*",), function(_examples)),
    Reader("model's facts", model_folder, ("*.json", "*.safetensors"), function(_facts)),
    Reader("tokenizer", model_folder, ("*.json", "*.jinja"), function(_tokenizer)),
    Reader(
        "backend hf",
        model_folder,
        ("*.json", "*.safetensors"),
        function(lambda f: score_eight_tokens(f, "hf")),
        tries=3,
    ),
    Reader(
        "show",
        model_folder,
        ("config.json",),
        command("show", "model=local", "model.path={folder}", "method=yarn", "length=512"),
        tries=3,
    ),
    Reader(
        "export of found factors",
        factors,
        ("method/mine.yaml",),
        command("export", "--to", "vllm", "--config-dir", "{folder}", "model=lexlet", "method=mine", "length=1024"),
        tries=3,
    ),
    Reader("corpus of files", texts, ("*",), function(_texts)),
    Reader("corpus of datasets", texts, ("*",), function(_uploaded), tries=3),
    Reader("question answering", answers, ("*.json",), function(_answers)),
]
