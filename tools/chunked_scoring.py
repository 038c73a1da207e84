"""Scoring by chunks of positions against all logits at once: python tools/chunked_scoring.py

Prints the memory that scoring adds to a loaded model, and its time. Each variant runs in a process of its own, so
that its peak is not another's. Model: random Llama of 2 layers, width 128, vocabulary 32,000.
"""

import argparse
import json
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tools import sides

VOCABULARY = 32_000
MEGABYTE = 1 << 20


def save(folder: Path) -> None:
    import tokenizers
    import transformers

    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=1024,
        bos_token_id=0,
        eos_token_id=0,
    )
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    words = tokenizers.models.WordLevel({"a": 0}, unk_token="a")
    tokenizers.Tokenizer(words).save(str(folder / "tokenizer.json"))


def measure(variant: str, length: int, folder: Path) -> dict[str, float]:
    """Seconds, megabytes above the loaded model, and the mean NLL."""
    import numpy as np
    import torch

    from lexbench import Loglikelihood
    from lexbench.backends.hf.backend import Hf
    from lexbench.checkpoints.checkpoint import read_model

    hf = Hf(read_model({"path": str(folder)}), device="cpu")
    tokens = np.random.default_rng(0).integers(0, VOCABULARY, length)
    question = Loglikelihood(index=0, cluster="", tokens=tokens, first_target=1, bytes=1, words=1)

    @torch.inference_mode()
    def full() -> float:
        ids = torch.from_numpy(tokens)
        chances = hf.reader.network(ids[None]).logits[0, :-1].log_softmax(-1)
        return -float(chances.gather(1, ids[1:, None]).mean())

    score: dict[str, Callable[[], float]] = {"full": full, "chunked": lambda: float(hf.score(question).nll.mean())}
    hf.score(Loglikelihood(index=0, cluster="", tokens=tokens[:64], first_target=1, bytes=1, words=1))
    before, started = peak(), time.perf_counter()
    nll = score[variant]()
    return {"seconds": time.perf_counter() - started, "megabytes": peak() - before, "nll": nll}


def peak() -> float:
    """Megabytes of the largest resident memory so far."""
    units = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * units / MEGABYTE


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lengths", type=int, nargs="+", default=[8192, 16384])
    parser.add_argument(
        "--one", nargs=3, metavar=("VARIANT", "LENGTH", "FOLDER"), help="what a process of its own does"
    )
    options = parser.parse_args()
    if options.one:
        variant, length, folder = options.one
        print(json.dumps(measure(variant, int(length), Path(folder))))
        return
    sides.header("Scoring without all logits at once")
    sides.table("length", ":logits", "MB added", "of all", "seconds", "of all", "nats a token")
    with tempfile.TemporaryDirectory() as folder:
        save(Path(folder))
        for length in options.lengths:
            found: dict[str, dict[str, float]] = {}
            for variant, name in (("full", "all at once"), ("chunked", "512 positions at a time")):
                ran = sides.run([sys.executable, __file__, "--one", variant, str(length), folder])
                got = found[variant] = json.loads(ran.output.splitlines()[-1])
                of = {key: f"{got[key] / found['full'][key]:.2f}" for key in ("megabytes", "seconds")}
                shown = [f"{got['megabytes']:.0f}", of["megabytes"], f"{got['seconds']:.2f}", of["seconds"]]
                sides.row(f"{length:,}", name, *shown, f"{got['nll']:.5f}")


if __name__ == "__main__":
    main()
