"""Plug-ins with one fault each, and settings of every parameter: what a command makes of them, in this process."""

import os
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import get_type_hints

from lexbench.commands import main
from lexbench.core import objects, registry
from lexbench.store.store import Store
from tests.faults.readers import Outcome, called

FAILURES = (
    *("raise RuntimeError('two\\nlines')", "raise KeyError('angle')", "assert False", "return {}['x']", "return 1 / 0"),
    *("import sys; sys.exit(0)", "import sys; sys.exit('bye')", "raise SystemExit", "raise MemoryError"),
    *("raise StopIteration", "raise NotImplementedError", "raise Exception", "raise Odd()"),
    *("return again()", "raise UnicodeDecodeError('utf-8', b'x', 0, 1, 'y')", "raise EOFError", "raise TimeoutError"),
    *("raise ImportError('no such module')", "raise AttributeError('x')", "raise TypeError()", "import nowhere"),
    *("raise ValueError('wrong\\nsetting')", "raise OSError(28, 'No space left')", "raise Refused('not here')"),
    *("raise Deferred('later')", "raise Exception('\\x1b[31m' + 'x' * 5000)"),
)
"""What a body of a plug-in does in place of its work."""
VALUES = (
    *("None", "0", "-1", "True", "1.5", "float('nan')", "''", "'x'", "b'x'", "[]", "[None]", "()", "{}", "{1: 2}"),
    *(
        "object()",
        "iter(())",
        "(each for each in 'abc')",
        "lambda: 0",
        "np.zeros(3)",
        "np.array('x')",
        "...",
        "10**400",
    ),
    *("[1, 2]", "['text']", "range(3)", "set()", "'\\ud800'", "type", "np.float32(1)", "[[]]", "{'accuracy': None}"),
)
"""What it gives in place of a right answer."""
HEAD = """
from dataclasses import dataclass, replace
import numpy as np
from lexbench import Attention, Document, Refused, Sample, Task, Generate
from lexbench.core.record import Deferred
from lexbench.corpora import hash_documents

class Odd(Exception):
    def __str__(self):
        raise RuntimeError("no text")

def again():
    return again()

"""
CLASSES = {
    "method": """
@dataclass(frozen=True)
class Own:
    factor: float = 2.0

    def __post_init__(self):
        @__post_init__

    def attention(self, model, length):
        @attention
        return Attention(inv_freq=model.inv_freq() / self.factor)
""",
    "task": """
@dataclass(frozen=True)
class Own(Task):
    room: int = 4

    def __post_init__(self):
        @__post_init__

    def for_lengths(self, lengths):
        @for_lengths
        return self

    def protocol(self, tokenizer):
        @protocol
        return "own"

    def questions(self, tokenizer, length, n, seed):
        @questions
        prompt = np.arange(length - self.room) % 50 + 1
        return [Generate(index=i, cluster=str(i), prompt=prompt, max_new_tokens=self.room) for i in range(n)]

    def score(self, question, answer):
        @score
        return Sample(index=question.index, cluster=question.cluster, tokens=question.length, scores={"accuracy": 1.0})
""",
    "corpus": """
@dataclass(frozen=True)
class Own:
    count: int = 6

    def __post_init__(self):
        @__post_init__

    def documents(self):
        @documents
        return iter([Document(str(i), f"{i} squared is {i * i}. " * 60) for i in range(self.count)])

    def fingerprint(self):
        @fingerprint
        return hash_documents(self.documents())
""",
}
SAMPLES = (
    *("scores={'accuracy': float('nan')}", "scores={'accuracy': 2.0}", "scores={'accuracy': 'x'}", "scores=None"),
    *("scores={3: 1.0}", "scores={'accuracy': 10**400}", "index=99", "index='x'", "cluster=None", "cluster='\\ud800'"),
    *("tokens=-1", "tokens=10**30", "facts={'x': object()}", "facts={'x': float('nan')}", "depth=7.0", "chance='x'"),
    *("output=b'x'", "output='\\ud800'", "statistics={'a': [1]}", "parts=3", "nll=np.zeros(3)", "failed=ValueError()"),
)
QUESTIONS = (
    *("index=0", "index=None", "cluster=7", "prompt=[1, 2]", "prompt=np.zeros(3)", "prompt=np.full(4, 10**9)"),
    *("prompt=np.zeros((2, 2), int)", "prompt=np.empty(0, int)", "room=0", "room=-5", "room=10**9", "room=None"),
    *("facts={'x': object()}", "facts=None", "answer=None", "chance=9.0", "chance=None", "until=3"),
)
"""Fields of a sample or a question that are wrong."""


def body(group: str, part: str, rng: random.Random) -> str:
    """What a method of a plug-in does wrongly, as Python."""
    kind = rng.random()
    own = {"score": SAMPLES, "questions": QUESTIONS}.get(part)
    if own and kind < 0.4:
        if part == "score":
            made = "index=question.index, cluster=question.cluster, tokens=question.length, scores={'accuracy': 1.0}"
            return f"return replace(Sample({made}), {rng.choice(own)})"
        made = "Generate(index=i, cluster=str(i), prompt=np.arange(length - 4) % 50 + 1, max_new_tokens=4)"
        return f"return [replace({made}, {rng.choice(own)}) for i in range(n)]"
    if group == "method" and part == "attention" and kind < 0.4:
        wrong = rng.choice(("inv_freq=np.ones(3)", "inv_freq=np.full(16, np.nan)", "scale=-1.0", "scale=float('nan')"))
        odd = rng.choice(("keep_first=-3", "keep_first='x'", "layers=(99,)", "layers=(-1,)", "layers='x'", "mask=7"))
        return f"return Attention({rng.choice((wrong, odd, 'remap=7', 'bias=7', 'query_scale=object()'))})"
    return rng.choice(FAILURES) if kind < 0.75 or part == "__post_init__" else f"return {rng.choice(VALUES)}"


@dataclass(frozen=True)
class Case:
    """A command, with the files that it needs."""

    words: list[str]
    what: str
    """What is wrong with it."""
    source: str = ""
    """Of the plug-in; empty: there is none."""
    group: str = ""


def plugin(rng: random.Random) -> Case:
    """A run of a plug-in of one kind with one fault: in a method, at the file's own level, or in what it defines."""
    group = rng.choice(list(CLASSES))
    source = CLASSES[group]
    parts = [line.strip()[1:] for line in source.splitlines() if line.strip().startswith("@") and "(" not in line]
    place = rng.choice([*parts, *parts, "file", "text"])
    what = ""
    for part in parts:
        text = body(group, part, rng) if part == place else "pass"
        what = text if part == place else what
        source = source.replace(f"@{part}", text)
    if place == "file":
        what = rng.choice([each for each in FAILURES if "return" not in each])
        source += f"\n{what}\n"
    if place == "text":
        cut = rng.randrange(len(source))
        what = rng.choice(
            (source[:cut], source.replace("def ", "def", 1), source.replace("class Own", "class Own", 1) * 2)
        )
        source, what = what, f"{len(what)} characters of {len(source)}"
    words = ["run", "backend=chance", "lengths=[64]", "n=2", "corpus=synthetic", "corpus.count=4", "corpus.words=120"]
    task = {"task": "task=[passkey,own]", "corpus": "task=last_segment", "method": "task=passkey"}[group]
    words = [word for word in words if group != "corpus" or not word.startswith("corpus")]
    more = [] if group == "task" else [f"{group}=own"]
    return Case([*words, task, *more], f"{group}.{place}: {what}", HEAD + source, group)


ODD = (
    *(
        "null",
        "true",
        "false",
        "0",
        "-1",
        "1",
        "2.5",
        "1e308",
        "1e400",
        "-1e400",
        "nan",
        "inf",
        "10000000000000000000000",
    ),
    *(
        "''",
        "x",
        "'1'",
        "[]",
        "[1]",
        "[a,b]",
        "{}",
        "{a:1}",
        "[[1]]",
        "'é\u2028'",
        "/etc/passwd",
        "../x",
        "${n}",
        "1_000",
    ),
    *(
        "[1.0,2.0,nan]",
        "[0.5]",
        "-0.0",
        "1e-320",
        "0.1",
        "7",
        "64",
        "[null]",
        "'\\x1b[31m'",
        "{name:yarn}",
        "0x10",
        "99999999",
    ),
)


def setting(rng: random.Random) -> Case:
    """One or two parameters of methods, tasks, corpora, backends, models or of a run, with values of any kind."""
    words = {"model": "lexlet", "backend": "chance", "task": "passkey", "corpus": "synthetic", "method": "ntk"}
    more = []
    for _ in range(rng.choice((1, 1, 2))):
        group = rng.choice(("method", "method", "task", "task", "corpus", "backend", "model", "run"))
        if group == "run":
            name = rng.choice(
                ("n", "seed", "lengths", "multiples", "reuse", "price", "stop_after_collapse", "executor")
            )
            more.append(f"{name}={rng.choice(ODD)}")
            continue
        if group in ("method", "task", "backend"):
            words[group] = rng.choice(registry.registered_names(group))
        more.append(f"{group}.{rng.choice(parameters(group, words[group]))}={rng.choice(ODD)}")
    if rng.random() < 0.7 or any(word.split("=")[0].partition(".")[0] not in ("method", "model") for word in more):
        least = ["corpus.count=4", "corpus.words=400"] if words["corpus"] == "synthetic" else []
        command = [
            "run",
            "--dry-run",
            *(f"{group}={name}" for group, name in words.items()),
            "lengths=[128]",
            "n=1",
            *least,
        ]
    else:
        command = ["show", f"model={words['model']}", f"method={words['method']}", "length=512"]
    return Case([*command, *more], " ".join(more))


def parameters(group: str, name: str) -> list[str]:
    """Parameters that a name of the registry takes."""
    config = registry.read_named_config(group, name)
    if group == "model":
        from lexbench.core.model import Model

        return list(get_type_hints(Model))
    if "suite" in config or "compose" in config:
        return [each for each in config if each not in ("suite", "compose")] + ["suite", "n"]
    try:
        known = objects.class_parameters(objects.class_of(config, group))
    except (ValueError, ImportError):  # a backend whose library is not here
        known = {}
    return [each for each in known if each not in ("corpus", "model")] or ["x"]


KINDS: dict[str, Callable[[random.Random], Case]] = {"settings": setting, "plug-ins": plugin}


def ended(kind: str, root: Path, number: int, rng: random.Random) -> Outcome:
    """Run a case in a folder of its own. Where a task's fault ends with 0, `passkey` beside it must be measured."""
    case = KINDS[kind](rng)
    folder = root / f"case-{number}"
    mine = folder / "mine"
    words = list(case.words)
    if case.source:
        (mine / case.group).mkdir(parents=True)
        (mine / case.group / "own.py").write_text(case.source, encoding="utf-8", errors="surrogatepass")
        (mine / case.group / "own.yaml").write_text("file: own.py\n")
        words += ["--config-dir", str(mine), f"results={folder / 'run'}"]
    folder.mkdir(exist_ok=True)
    before, path = Path.cwd(), os.environ.get("LEXBENCH_CONFIG_PATH", "")
    os.chdir(folder)
    try:
        verdict, said = called(lambda: main.main(words))
        if verdict == "read" and case.group == "task":
            held = {each.cell.task: len(each.samples) for each in Store(folder / "run").load()}
            verdict = verdict if held.get("passkey") == 2 else f"passkey has {held.get('passkey')} samples"
        made = sorted(each.name for each in folder.iterdir() if each.name not in ("mine", "run"))
        verdict = f"wrote {', '.join(made)}" if made else verdict
    finally:
        os.chdir(before)
        os.environ["LEXBENCH_CONFIG_PATH"] = path
        shutil.rmtree(folder, ignore_errors=True)
    return Outcome(verdict, said, case.what)
