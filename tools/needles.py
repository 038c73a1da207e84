"""Needles on vLLM against transformers: python tools/needles.py (in .venv-vllm, or where vLLM is installed)

Every backend answers the same questions: needles at every depth and length, written (greedy, the answer's room) and
chosen (likelihoods of four options). Prints tokens per second, prompts and answers counted, with vLLM's prefix cache on
and off, and the ratio to transformers; starting an engine is timed apart.
"""

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import lexbench
from lexbench.backends import Backend, capabilities
from lexbench.backends.hf.backend import Hf
from lexbench.checkpoints.checkpoint import read_model
from lexbench.core import registry
from lexbench.core.attention import Attention
from lexbench.core.machine import collect_provenance
from lexbench.core.task import AnyQuestion, Choose, Generate
from lexbench.parts.serving.vllm.backend import Vllm

TASKS = {"written": ("passkey", {}), "chosen": ("needle", {"options": 4})}


def answers(backend: Backend, questions: Sequence[AnyQuestion]) -> Iterator[object]:
    """All answers, as a run asks for them."""
    if capabilities(backend).remote:
        yield from backend.answers(questions)
        return
    for question in questions:
        assert isinstance(question, Generate | Choose)
        yield backend.write(question) if isinstance(question, Generate) else backend.choose(question)


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="lexlet", help="a name of the registry, or a folder")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--lengths", type=int, nargs="+", default=[512, 2048])
    parser.add_argument("--n", type=int, default=24, help="needles a length, over all depths")
    parser.add_argument("--memory-share", type=float, help="of the device's memory, for vLLM")
    options = parser.parse_args()
    named = options.model in registry.registered_names("model")
    model = read_model(registry.read_named_config("model", options.model) if named else {"path": options.model})
    machine = collect_provenance()
    print(f"{model.name} in {options.dtype}, {options.n} needles a length")
    print(f"{machine['accelerator'] or machine['processor']}, {machine['cores']} cores, {machine['packages']}")

    longest = max(options.lengths)
    hf = Hf(model, dtype=options.dtype)
    asked = {
        (form, length): lexbench.task(name, corpus="synthetic", **given)
        .for_lengths(options.lengths)
        .questions(hf.tokenizer, length, options.n, 0)
        for form, (name, given) in TASKS.items()
        for length in options.lengths
    }
    speeds: dict[str, dict[tuple[str, int], float]] = {"hf": measured(hf, asked)}
    for name, caching in (("vllm, prefix cache", True), ("vllm, no prefix cache", False)):
        started = time.perf_counter()
        vllm = Vllm(model, longest, options.dtype, prefix_caching=caching, memory_share=options.memory_share)
        vllm.attend(Attention())
        print(f"{name} ({vllm.version}): started in {time.perf_counter() - started:.0f} s")
        speeds[name] = measured(vllm, asked)
        vllm.close()
    print(f"\n| needles | length | {' | '.join(speeds)} |")
    print("| --- " * (len(speeds) + 2) + "|")
    for form, length in asked:
        own = speeds["hf"][form, length]
        cells = [f"{each[form, length]:,.0f} ({each[form, length] / own:.2f}x)" for each in speeds.values()]
        print(f"| {form} | {length} | {' | '.join(cells)} |")


def measured(backend: Backend, asked: dict[tuple[str, int], Sequence[AnyQuestion]]) -> dict[tuple[str, int], float]:
    """Tokens per second; a question of each kind before the clock starts, and no cache of an earlier round."""
    found = {}
    for key, questions in asked.items():
        backend.attend(Attention())
        list(answers(backend, questions[-1:]))
        backend.attend(Attention(scale=1.0))  # forgets what was cached, and changes nothing
        backend.attend(Attention())
        started = time.perf_counter()
        list(answers(backend, questions))
        found[key] = sum(question.length for question in questions) / (time.perf_counter() - started)
    return found


if __name__ == "__main__":
    main()
