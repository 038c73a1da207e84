"""Caches of llama.cpp beside ours of the same format: python -m tools.kv_llama

The engine is xllamacpp (pip install xllamacpp), llama.cpp in this process; the model is lexlet as a GGUF file of
float32. Of each text the whole distribution behind its last token is taken: by llama.cpp with keys and values in
float32, q8_0 and q4_0, and by the native backend in float64 with kv(format=...), in which the prompt sees rounded keys,
as there.

llama.cpp's product of a query with rounded keys rounds the query, too, to q8_0. So each format is computed twice here:
as kv has it, and with queries rounded so.
"""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import torch
from numpy.typing import NDArray

import lexbench
from lexbench.checkpoints.checkpoint import read_model
from lexbench.kernels import kept
from lexbench.parts.kv import rounding
from lexbench.parts.kv.methods.kv import Kv
from lexbench.parts.lab.backend import Native
from tests.parts.gguf.test_gguf import write_lexlet

LENGTH, TEXTS = 240, 12
"""Tokens of a text, and texts."""
Rows = NDArray[np.float64]


def theirs(file: Path, prompts: list[list[int]], vocabulary: int, kind: str) -> Rows:
    """[texts, V] log-probabilities of llama.cpp with keys and values of a type."""
    import xllamacpp

    given = xllamacpp.CommonParams()
    given.model.path, given.n_ctx, given.n_gpu_layers, given.warmup = str(file), 512, 0, False
    given.cache_type_k = given.cache_type_v = getattr(xllamacpp.ggml_type, f"GGML_TYPE_{kind.upper()}")
    given.cpuparams.n_threads = 1
    server, rows = xllamacpp.Server(given), np.full((len(prompts), vocabulary), np.nan)
    for row, prompt in enumerate(prompts):
        asked = {"prompt": prompt, "n_predict": 1, "n_probs": vocabulary, "temperature": -1.0}
        answer = server.handle_completions({**asked, "cache_prompt": False, "post_sampling_probs": False})
        answer = json.loads(answer) if isinstance(answer, str) else answer
        shown = answer.get("completion_probabilities") or answer["choices"][0]["logprobs"]["content"]
        for each in shown[0]["top_logprobs"]:
            rows[row, each["id"]] = each["logprob"]
    assert np.isfinite(rows).all(), "every token has a probability"
    return rows


def ours(native: Native, prompts: list[list[int]], form: str | None, queries: bool) -> Rows:
    """[texts, V] log-probabilities of the native backend; `queries`: rounded to q8_0, too."""
    own, eight = kept.attend, Kv(format="q8_0").compression().rounding

    def attend(asking: torch.Tensor, *more: Any, **named: Any) -> torch.Tensor:
        return own(rounding.round_numbers(asking, eight, "token") if queries else asking, *more, **named)

    method = Kv(format=form, prefill="compressed").attention(native.model, LENGTH) if form else lexbench.Attention()
    native.attend(method)
    with mock.patch.object(kept, "attend", attend):
        found = [native.logits(np.array(each), [len(each)], len(each))[-1].log_softmax(-1) for each in prompts]
    return torch.stack(found).numpy()


def apart(p: Rows, q: Rows) -> float:
    """Mean KL(p || q) in nats."""
    return float((np.exp(p) * (p - q)).sum(-1).mean())


def main() -> None:
    """Print the table."""
    native = Native(read_model({"path": "lexbench:lexlet"}), dtype="float64")
    texts = [document.text for document in lexbench.corpus("synthetic").documents()][:TEXTS]
    prompts = [[0, *map(int, native.tokenizer.encode(text).ids[: LENGTH - 1])] for text in texts]
    vocabulary = native.model.vocabulary or native.tokenizer.vocabulary
    with tempfile.TemporaryDirectory() as folder:
        file = write_lexlet(Path(folder) / "lexlet.gguf")
        engine = {kind: theirs(file, prompts, vocabulary, kind) for kind in ("f32", "q8_0", "q4_0")}
    plain = ours(native, prompts, None, False)
    print(f"Without rounding, KL(llama.cpp || ours) is {apart(engine['f32'], plain):.1e} nats.\n")
    print(
        "| cache | queries here | KL(plain, rounded) of llama.cpp | the same here | KL(llama.cpp, ours), both rounded |"
    )
    print("| --- | --- | --: | --: | --: |")
    for kind in ("q8_0", "q4_0"):
        for queries in (False, True):
            found = ours(native, prompts, kind, queries)
            numbers = apart(engine["f32"], engine[kind]), apart(plain, found), apart(engine[kind], found)
            words = "rounded to q8_0" if queries else "as computed"
            print(f"| {kind} | {words} | " + " | ".join(f"{each:.2e}" for each in numbers) + " |")


if __name__ == "__main__":
    main()
