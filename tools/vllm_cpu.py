"""Run exports in vLLM, and ask `identify` and the gate about them.

    .venv-vllm/bin/python -m tools.vllm_cpu [--pack PACK]        (make .venv-vllm/.ready)

The engine is vLLM on a CPU, started with the export of a method. Of each method, SmolLM2 is scored token by token in
float32 and in bfloat16, and compared with `hf` in float32. Then vLLM's own server is asked through `backend=openai`:
SmolLM2 by `lexbench identify` with its pack, lexlet by the gate, too, with another release's mistakes.
"""

import argparse
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from lexbench.checkpoints.checkpoint import locate_checkpoint, read_model
from lexbench.core import registry
from lexbench.core.attention import Attention
from lexbench.core.model import Model
from lexbench.parts.serving.identify import pack
from lexbench.parts.serving.vllm.backend import Vllm
from tests.parts.serving.vllm.server import VllmServer
from tools import serving
from tools.engines import LABELS, METHODS, Ids, Nats, Read, compared, exported, gated, named

SIZE = max(*serving.LENGTHS, 256)
"""Tokens that lexlet is served with."""
LEXLET: dict[str, dict[str, Any]] = {
    "NTK 2, as exported": {"name": "ntk", "factor": 2.0},
    "no scaling": {"name": "none"},
    "linear 2 in its place": {"name": "pi", "factor": 2.0},
}
"""The method whose export it is served with, by what was done."""


@contextmanager
def served(model: Model, stated: Mapping[str, Any], dtype: str = "float32") -> Iterator[str]:
    """The URL of a server of a model with an export."""
    assert model.path is not None
    with tempfile.TemporaryDirectory() as scratch:
        server = VllmServer(locate_checkpoint(model.path), model.name, stated, Path(scratch) / "log", dtype=dtype)
        try:
            server.start()
            server.wait()
            yield server.url
        finally:
            server.kill()


def scores(model: Model, dtype: str) -> Read:
    """Nats of texts by an engine that is started with an export; its cos and sin are proved to be the method's."""

    def read(attention: Attention, stated: Mapping[str, Any], texts: Ids) -> Nats:
        longest = stated["max_model_len"]
        engine = Vllm(model, longest, dtype=dtype, memory_share=0.1, hf_overrides=stated["hf_overrides"])
        try:
            engine.attend(attention)
            return pack.question_nats(engine, [pack.loglikelihood_question(each, 1) for each in texts])
        finally:
            engine.close()

    return read


def said_of(model: Model, reference: Path, dtypes: list[str]) -> Iterator[str]:
    """Rows of the table: what identify says of SmolLM2."""
    length = pack.read_pack(reference).longest
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
    model = read_model({**registry.read_named_config("model", "smollm2"), "name": "SmolLM2"})
    if asked.only in (None, "exports"):
        for row in compared(model, "vllm", {dtype: scores(model, dtype) for dtype in asked.dtypes}):
            print(row, flush=True)
    if asked.only in (None, "identify") and asked.pack is not None:
        print("\n| SmolLM2 served with | in | exit code | identify says |\n| --- | --- | ---: | --- |")
        for row in said_of(model, asked.pack, asked.dtypes):
            print(row, flush=True)
    if asked.only in (None, "gate"):
        print()
        lexlet = read_model(registry.read_named_config("model", "lexlet"))
        ways = {done: exported(lexlet, given, SIZE, "vllm")[2] for done, given in LEXLET.items()}
        with tempfile.TemporaryDirectory() as scratch:
            for row in gated(Path(scratch), lambda stated: served(lexlet, stated), ways):
                print(row, flush=True)


if __name__ == "__main__":
    main()
