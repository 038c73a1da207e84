"""What training with each encoding costs, relative to RoPE: python tools/training.py

Prints a Markdown table. All decoders stand side by side in one run and take steps in turns, on the same rows; a step
is forward, backward and AdamW's update. Tokens per second are medians over the steps, of the processor's time on a
CPU, of all threads, so that other programs on the machine count little; of the clock on a GPU. Memory is what the peak
of a step adds to what is held before it, weights and optimizer, in a process of its own that has taken a step on one
row. Encodings that cannot be built have the reason in their row.

Beside our own decoder stand transformers' Llama (RoPE) and MPT (ALiBi) of the same layers, width, heads and rows, with
torch's AdamW and the same clipping: they say what an encoding costs against code that is not ours.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch

from lexbench.checkpoints.checkpoint import locate_checkpoint
from lexbench.checkpoints.tokenizer import FastTokenizer, load_tokenizer
from lexbench.core import registry
from lexbench.core.machine import forget_peak, peak_bytes
from lexbench.parts.lab.native import build
from lexbench.parts.lab.native.decoder import Decoder
from lexbench.parts.lab.native.learner import Learner
from lexbench.parts.lab.native.recipe import Recipe

BASELINE = "rope"


def learner(name: str, options: argparse.Namespace, tokenizer: FastTokenizer) -> Learner:
    recipe = Recipe(
        stages=({"steps": 1 + options.steps, "lessons": {"text": 1.0}},),
        shape={
            "layers": options.layers,
            "width": options.width,
            "heads": options.heads,
            "kv_heads": options.heads,
            "hidden": 3 * options.width,
        },
        vocabulary=tokenizer.vocabulary,
        trained_length=options.length,
        batch=options.batch,
        compile=options.compile,
    )
    decoder = Decoder(
        recipe.sizes(), build.build_encoding(build.resolve_spec(name, tokenizer), recipe.sizes(), recipe.length)
    )
    decoder.initialise(0)
    return Learner(decoder, recipe)


class Peer:
    """A decoder of transformers of the same sizes, which takes a step as `Learner` does."""

    def __init__(self, name: str, options: argparse.Namespace, tokenizer: FastTokenizer) -> None:
        from transformers import LlamaConfig, LlamaForCausalLM, MptConfig, MptForCausalLM

        torch.manual_seed(0)
        if name == "transformers' Llama":
            sizes = {"hidden_size": options.width, "intermediate_size": 3 * options.width}
            sizes |= {"num_hidden_layers": options.layers, "num_attention_heads": options.heads}
            self.decoder: torch.nn.Module = LlamaForCausalLM(LlamaConfig(vocab_size=tokenizer.vocabulary, **sizes))
        else:
            shape = {"d_model": options.width, "n_layers": options.layers, "n_heads": options.heads}
            mpt = MptConfig(vocab_size=tokenizer.vocabulary, max_seq_len=options.length, expansion_ratio=3, **shape)
            self.decoder = MptForCausalLM(mpt)
        self._optimizer = torch.optim.AdamW(self.decoder.parameters())

    def step(self, rows: torch.Tensor, step: int) -> None:
        """Forward, backward, clip, update."""
        self.decoder(input_ids=rows, labels=rows).loss.backward()
        torch.nn.utils.clip_grad_norm_(self.decoder.parameters(), 1.0)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)


PEERS = ("transformers' Llama", "transformers' MPT")


def now() -> float:
    if not torch.cuda.is_available():
        return time.process_time()
    torch.cuda.synchronize()
    return time.perf_counter()


def resident(line: str) -> float:
    """Bytes that Linux says of this process: VmRSS now, VmHWM at the most since `forget_peak`."""
    status = Path("/proc/self/status").read_text().splitlines()
    return 1024 * float(next(words.split()[1] for words in status if words.startswith(line)))


def alone(name: str, options: argparse.Namespace, tokenizer: FastTokenizer) -> float | None:
    """Bytes that the peak of a step adds, in this process; None where the system does not count them."""
    own = Peer(name, options, tokenizer) if name in PEERS else learner(name, options, tokenizer)
    rows = rows_of(options, tokenizer)
    own.step(rows[:1], 0)
    if not forget_peak():
        return None
    if torch.cuda.is_available():
        held = torch.cuda.memory_allocated()
        own.step(rows, 1)
        return float(peak_bytes() - held)
    before = resident("VmRSS")
    own.step(rows, 1)
    return resident("VmHWM") - before


def memory(name: str) -> str:
    """MB of `alone`, in a process of its own."""
    command = [sys.executable, __file__, *sys.argv[1:], "--one", name]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout.splitlines()[-1])
    return "—" if found is None else f"{found / 1e6:.0f}"


def rows_of(options: argparse.Namespace, tokenizer: FastTokenizer) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, tokenizer.vocabulary, (options.batch, options.length), generator=generator)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--encodings", nargs="+", default=registry.registered_names("encoding"))
    parser.add_argument("--length", type=int, default=128, help="tokens of a row")
    parser.add_argument("--batch", type=int, default=16, help="rows of a step")
    parser.add_argument("--steps", type=int, default=7, help="steps of each encoding, behind one that is not counted")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--compile", action="store_true", help="by torch.compile")
    parser.add_argument("--one", metavar="ENCODING", help="what a process of its own does")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)

    tokenizer = load_tokenizer(locate_checkpoint("lexbench:lexlet"))
    if options.one:
        print(json.dumps(alone(options.one, options, tokenizer)))
        return
    learners: dict[str, Learner | Peer] = {name: Peer(name, options, tokenizer) for name in PEERS}
    refused: dict[str, str] = {}
    for name in dict.fromkeys([BASELINE, *options.encodings]):
        try:
            learners[name] = learner(name, options, tokenizer)
        except ValueError as error:
            refused[name] = str(error)
    rows = rows_of(options, tokenizer)
    seconds: dict[str, list[float]] = {name: [] for name in learners}
    for step in range(1 + options.steps):
        for name, own in learners.items():
            started = now()
            own.step(rows, step)
            if step:
                seconds[name].append(now() - started)

    tokens = options.batch * options.length
    speed = {name: tokens / statistics.median(taken) for name, taken in seconds.items()}
    print("| encoding | tokens a second | of rope's | step's memory, MB | own weights |")
    print("| --- | ---: | ---: | ---: | ---: |")
    for name in sorted(learners, key=lambda name: -speed[name]):
        each = learners[name]
        own_weights = (
            sum(map(torch.Tensor.numel, each.decoder.encoding.parameters())) if isinstance(each, Learner) else "—"
        )
        print(
            f"| {name} | {speed[name]:.0f} | {speed[name] / speed[BASELINE]:.2f} | {memory(name)} | {own_weights} |",
            flush=True,
        )
    for name, reason in refused.items():
        print(f"| {name} | — | — | — | {reason} |")


if __name__ == "__main__":
    main()
