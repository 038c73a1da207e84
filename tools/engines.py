"""Parts of the pages of real engines: exports against `hf` token by token, and what `identify` and the gate say."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lexbench.backends.hf.backend import Hf
from lexbench.core import registry
from lexbench.core.attention import Attention
from lexbench.core.model import Model
from lexbench.methods.composition import read_method
from lexbench.methods.export import as_data
from lexbench.methods.scaled import attention_of
from lexbench.parts.serving.identify import pack
from lexbench.runner.backend_pool import open_backend, release_backend
from tools import serving

METHODS: list[dict[str, Any]] = [
    {"name": "none"},
    {"name": "pi", "factor": 4.0},
    {"name": "yarn", "factor": 4.0},
    {"name": "ntk", "factor": 4.0},
]
LABELS = ("plain", "linear 4", "YaRN 4", "NTK 4")
"""Their setups in a pack."""
LENGTH, TEXTS = 512, 4
Nats = NDArray[np.float64]
Ids = NDArray[np.int64]
Read = Callable[[Attention, Mapping[str, Any], Ids], Nats]
"""[texts, length - 1] nats of texts, of an Attention and its export, by an engine."""
Served = Callable[[Mapping[str, Any]], AbstractContextManager[str]]
"""The URL of a server that is started with an export."""


def exported(model: Model, given: Mapping[str, Any], length: int, target: str) -> tuple[str, Attention, dict[str, Any]]:
    """Label of a method, what it asks of hf, and its export."""
    _, method, key = read_method({**registry.read_named_config("method", given["name"]), **given})
    label = str(key)
    return label, attention_of(method, model, length), as_data(method, label, model, length, target)


def compared(model: Model, target: str, ways: Mapping[str, Read]) -> Iterator[str]:
    """The table: each method by hf in float32, and its export by an engine, in each of several ways."""
    hf = open_backend(model, {**registry.read_named_config("backend", "hf"), "name": "hf", "dtype": "float32"}, LENGTH)
    assert isinstance(hf, Hf)
    docs = Path(__file__).parents[1] / "docs"
    text = " ".join((docs / each).read_text() for each in ("methods.md", "harness.md"))
    texts = hf.tokenizer.encode(text).ids[: TEXTS * LENGTH].reshape(TEXTS, LENGTH)
    yield f"| method | nats, hf | from none | {' | '.join(f'{way}: mean | max | bias' for way in ways)} |"
    yield "| --- |" + " ---: |" * (2 + 3 * len(ways))
    plain: Nats | None = None
    for given in METHODS:
        label, attention, export = exported(model, given, LENGTH, target)
        hf.attend(attention)
        ours = pack.question_nats(hf, [pack.loglikelihood_question(each, 1) for each in texts])
        plain = ours if plain is None else plain
        cells = []
        for read in ways.values():
            apart = read(attention, export, texts) - ours
            cells.append(f"{np.abs(apart).mean():.2g} | {np.abs(apart).max():.2g} | {apart.mean():+.2g}")
        yield f"| {label} | {ours.mean():.4f} | {np.abs(ours - plain).mean():.2g} | {' | '.join(cells)} |"
    release_backend(hf)


def named(url: str, model: str, reference: Path, *words: str) -> tuple[int, str]:
    """Exit code of `lexbench identify` asking a server, and its first lines."""
    backend = ["backend=openai", f"backend.url={url}", "backend.retries=0"]
    code, said = serving.quietly(["identify", str(reference), f"model={model}", *backend, *words])
    return code, "; ".join(said.split("\n\nnats away")[0].splitlines())


def gated(scratch: Path, served: Served, ways: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """The table: what the gate says of lexlet with NTK of factor 2, and with mistakes."""
    reference, baseline = scratch / "pack.npz", scratch / "baseline.json"
    made = ["fingerprint", "model=lexlet", "corpus=stdlib", "length=256", "n=8", "--out", str(reference)]
    assert serving.quietly(made)[0] == 0, "a pack"
    assert serving.checked(serving.Engine(), scratch / "healthy", baseline)[0] == 0, "a baseline"
    yield "| lexlet served with | check | identify | what check saw lost |\n| --- | --- | --- | --- |"
    for place, (done, flags) in enumerate(ways.items()):
        with served(flags) as url:
            check, lost = serving.checked_at(url, scratch / f"{place}", baseline)
            code, said = named(url, "lexlet", reference, "--expect", "NTK 2")
        yield f"| {done} | {('held', 'regressed', 'not comparable')[check]} | {code}: {said} | {lost} |"
