"""What vLLM makes of exports, and what `identify` and the gate say of it.

    .venv-vllm/bin/python -m tests.benchmarks.vllm_cpu [--pack PACK]        (make .venv-vllm/.ready)

The engine is vLLM's own server on a CPU, started with the words that `lexbench export --to vllm` prints, and asked
through `backend=openai`: SmolLM2, of each method in float32 and in bfloat16, token by token against `hf` in float32;
then by `lexbench identify` with its pack; and lexlet by the gate, with another release's mistakes.
"""

import argparse
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from lexbench.backends.openai.backend import OpenAI
from lexbench.core import registry
from lexbench.core.attention import Attention
from lexbench.core.checkpoint import locate, read_model
from lexbench.core.model import Model
from lexbench.studies.identify import pack
from tests.benchmarks import serving
from tests.benchmarks.engines import LABELS, METHODS, Ids, Nats, Read, compared, exported, gated, named
from tests.vllm.server import VllmServer

SIZE = max(*serving.LENGTHS, 256)
"""Tokens that lexlet is served with."""
LEXLET: dict[str, dict[str, Any]] = {
    "NTK 2, as exported": {"rope_type": "default", "rope_theta": serving.BASE},
    "no overrides": {},
    "linear 2 in its place": {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 2.0},
}
"""Its rope parameters, by what was done."""


@contextmanager
def served(model: Model, stated: Mapping[str, Any], dtype: str = "float32") -> Iterator[str]:
    """The URL of a server of a model with an export."""
    assert model.path is not None
    with tempfile.TemporaryDirectory() as scratch:
        server = VllmServer(locate(model.path), model.name, stated, Path(scratch) / "log", dtype=dtype)
        try:
            server.start()
            server.wait()
            yield server.url
        finally:
            server.kill()


def scores(model: Model, dtype: str) -> Read:
    """Nats of texts by vLLM with an export."""

    def read(attention: Attention, stated: Mapping[str, Any], texts: Ids) -> Nats:
        with served(model, stated, dtype) as url:
            asked = OpenAI(model, url=url, dtype=dtype)
            found = pack.nats(asked, [pack.scored(each, 1) for each in texts])
            asked.close()
        return found

    return read


def said_of(model: Model, reference: Path, dtypes: list[str]) -> Iterator[str]:
    """Rows of the table: what identify says of SmolLM2."""
    length = pack.read(reference).tokens.shape[1]
    for dtype in dtypes:
        for given, label in zip(METHODS, LABELS, strict=True):
            method, _, stated = exported(model, given, length, "vllm")
            with served(model, stated, dtype) as url:
                code, said = named(url, "smollm2", reference, "--expect", label)
            yield f"| {method} | {dtype} | {code} | {said} |"


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pack", type=Path, help="a pack of SmolLM2, to name its setups by")
    parser.add_argument("--only", choices=("exports", "identify", "gate"), help="one table")
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"], help="only these")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    model = read_model({**registry.read("model", "smollm2"), "name": "SmolLM2"})
    if asked.only in (None, "exports"):
        for row in compared(model, "vllm", {dtype: scores(model, dtype) for dtype in asked.dtypes}):
            print(row, flush=True)
    if asked.only in (None, "identify") and asked.pack is not None:
        print("\n| SmolLM2 served with | in | exit code | identify says |\n| --- | --- | ---: | --- |")
        for row in said_of(model, asked.pack, asked.dtypes):
            print(row, flush=True)
    if asked.only in (None, "gate"):
        print()
        lexlet = read_model(registry.read("model", "lexlet"))
        ways = {
            done: {"hf_overrides": {"rope_parameters": rope} if rope else {}, "max_model_len": SIZE}
            for done, rope in LEXLET.items()
        }
        with tempfile.TemporaryDirectory() as scratch:
            for row in gated(Path(scratch), lambda stated: served(lexlet, stated), ways):
                print(row, flush=True)


if __name__ == "__main__":
    main()
