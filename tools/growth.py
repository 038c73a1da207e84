"""Seconds and memory of one cell as its length doubles: python tools/growth.py

One document, the last 128 tokens of 1k to 32k (task last_segment): `lexbench run` with each method, and plain
transformers with all logits of the text, both in float32. Every length has a process of its own, so that its memory
is its own. Seconds are those of the answer alone: without imports, loading, making the question and writing the cell.
New rows up to `--vocabulary` in the model's head make all logits as wide as users' models have them. Memory is the
process's peak, and what of it is above the same side's at the shortest length. The exponent is log2 of the ratio to
half the length: 1 is linear, 2 quadratic. Where `none` and transformers differ by more than 0.001 nats a token the
table is void, and the exit code 1.
"""

import argparse
import json
import math
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from lexbench.store.store import Store
from tools import sides

TARGETS = 128
PLAIN = "transformers, all logits"
AGREE = 1e-3  # nats a token


@dataclass(frozen=True)
class Cost:
    """Of one side at one length."""

    seconds: float
    bytes: float
    nll: float
    """Nats a token."""


def by_lexbench(folder: Path, options: argparse.Namespace, method: str, length: int) -> Cost | str:
    """A cell of its own; or why it is refused."""
    results = folder / f"{method}-{length}"
    ran = sides.lexbench(results, *settings(options, method, length))
    (cell,) = Store(results).load()
    if cell.refused:
        return cell.refused
    losses = np.concatenate([sample.nll for sample in cell.samples if sample.nll is not None])
    rows = map(json.loads, (results / "costs.jsonl").read_text().splitlines())
    answers = sum(seconds for row in rows for seconds, _ in row["timings"])
    return Cost(answers, ran.bytes, float(losses.mean(dtype=np.float64)))


def settings(options: argparse.Namespace, method: str, length: int) -> list[str]:
    """Of `lexbench run`: one cell."""
    return [
        "model=local",
        f"model.path={options.model.resolve()}",
        f"method={method}",
        "task=last_segment",
        f"task.targets={TARGETS}",
        f"task.longest={max(options.lengths)}",
        "corpus=synthetic",
        "corpus.count=1",
        f"corpus.words={max(options.lengths)}",  # a word has a token or more
        f"lengths=[{length}]",
        "n=1",
    ]


def by_hand(options: argparse.Namespace, length: int) -> Cost:
    """This program again, in a process of its own."""
    words = ["--model", str(options.model), "--lengths", *map(str, options.lengths), "--one", str(length)]
    ran = sides.run([sys.executable, __file__, *words])
    seconds, nll = json.loads(ran.output.splitlines()[-1])
    return Cost(seconds, ran.bytes, nll)


def plain(options: argparse.Namespace, length: int) -> tuple[float, float]:
    """Seconds and nats a token of the same targets, from all logits of the text."""
    import torch
    from transformers import AutoModelForCausalLM

    import lexbench
    from lexbench.checkpoints.tokenizer import load_tokenizer
    from lexbench.core.task import Loglikelihood
    from lexbench.corpora.synthetic import Synthetic

    longest = max(options.lengths)
    corpus = Synthetic(count=1, words=longest)
    made = lexbench.task("last_segment", corpus=corpus, targets=TARGETS, longest=longest)
    (question,) = made.questions(load_tokenizer(options.model), length, 1, 0)
    assert isinstance(question, Loglikelihood)
    model = AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32)
    ids = torch.from_numpy(question.tokens)
    with torch.inference_mode():
        model(ids[None, :64])  # what a first call sets up, as lexbench's self-check has done
        started = time.perf_counter()
        logits = model(ids[None]).logits[0, :-1].float()
        nll = torch.nn.functional.cross_entropy(logits, ids[1:], reduction="none")[question.first_target - 1 :]
    return time.perf_counter() - started, float(nll.double().mean())


def measured(folder: Path, options: argparse.Namespace, side: str, length: int) -> Cost | str:
    """Of one side at one length: medians of its repeats, the largest memory; or why there is nothing."""
    found: list[Cost] = []
    for turn in range(options.repeat):
        if side == PLAIN:
            once: Cost | str = by_hand(options, length)
        else:
            once = by_lexbench(folder / str(turn), options, side, length)
        if isinstance(once, str):
            return once
        found.append(once)
    return Cost(sides.median(each.seconds for each in found), max(each.bytes for each in found), found[0].nll)


def table(folder: Path, options: argparse.Namespace) -> int:
    """Print it; the exit code."""
    taken: dict[tuple[str, int], Cost] = {}
    sides.table(
        ":side", "length", "seconds", "of plain", "exponent", "peak MB", "above shortest", "of plain", "nats a token"
    )
    for length in options.lengths:
        for side in [PLAIN, *options.methods]:
            if side == PLAIN and length > options.full_until:
                continue
            cost = measured(folder, options, side, length)
            if isinstance(cost, str):
                sides.row(side, f"{length:,}", f"refused: {cost}", *[""] * 6)
                continue
            taken[side, length] = cost
            plain, half = taken.get((PLAIN, length)), taken.get((side, length // 2))
            sides.row(
                side,
                f"{length:,}",
                f"{cost.seconds:.2f}",
                f"{cost.seconds / plain.seconds:.2f}" if plain else "—",
                f"{math.log2(cost.seconds / half.seconds):.2f}" if half else "—",
                f"{cost.bytes / 1e6:.0f}",
                f"{(cost.bytes - taken[side, options.lengths[0]].bytes) / 1e6:.0f}",
                f"{cost.bytes / plain.bytes:.2f}" if plain else "—",
                f"{cost.nll:.4f}",
            )
    both = [length for length in options.lengths if (PLAIN, length) in taken and ("none", length) in taken]
    apart = max((abs(taken[PLAIN, each].nll - taken["none", each].nll) for each in both), default=0.0)
    print(f"\nThe largest difference of none from transformers: {apart:.1e} nats a token.")
    if apart > AGREE:
        print(f"\n**Void: more than {AGREE}.**")
    return 1 if apart > AGREE else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="+", default=[1024, 2048, 4096, 8192, 16384, 32768])
    parser.add_argument("--methods", nargs="+", default=["none", "rerope", "self_extend"])
    parser.add_argument("--full-until", type=int, default=16384, help="longest text with all logits")
    parser.add_argument("--repeat", type=int, default=1, help="processes of each, medians of their seconds")
    parser.add_argument("--model", type=Path, default=sides.LEXLET, metavar="DIR", help="in Hugging Face form")
    parser.add_argument("--vocabulary", type=int, default=32_000, help="tokens of the model's head; 0: its own")
    parser.add_argument("--one", type=int, metavar="LENGTH", help="what transformers' process does")
    options = parser.parse_args()
    options.lengths = sorted(options.lengths)
    if options.one:
        print(json.dumps(plain(options, options.one)))
        return 0
    sides.header("One cell as its length doubles")
    with tempfile.TemporaryDirectory() as temporary:
        if options.vocabulary:
            options.model = sides.widened(options.model, options.vocabulary, Path(temporary) / "model")
        return table(Path(temporary), options)


if __name__ == "__main__":
    sys.exit(main())
