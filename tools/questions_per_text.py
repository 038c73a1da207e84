"""Cost of several questions behind one text against one question: python tools/questions_per_text.py

For each backend and method: one question behind a text, and `--count` questions behind the same text, asked as a run
asks them. Prints processor seconds of both, as the least of `--repeats` with both side by side in each, and their
ratio; where a text is read for each question it is about `--count`. With `--compare`, says how many answers are, token
by token, those of the same question asked alone.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

import lexbench
from lexbench.backends.hf.backend import Hf
from lexbench.checkpoints.checkpoint import read_model
from lexbench.core import registry
from lexbench.core.attention import Attention
from lexbench.core.machine import collect_provenance
from lexbench.core.task import AnyQuestion, Generate
from lexbench.parts.lab.backend import Native
from lexbench.runner.answers import answer_questions
from lexbench.runner.reuse import cheapest_order

BACKENDS = {"hf": Hf, "native": Native}


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="lexlet", help="a name of the registry, or a folder")
    parser.add_argument("--task", default="passkey")
    parser.add_argument("--length", type=int, default=16_384)
    parser.add_argument("--count", type=int, default=8, help="questions behind the text")
    parser.add_argument("--backends", nargs="+", default=[*BACKENDS], choices=[*BACKENDS])
    parser.add_argument("--methods", nargs="+", default=["none", "rerope", "self_extend", "yarn"])
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument(
        "--compare", action="store_true", help="also ask each question alone: takes count times as long"
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    named = options.model in registry.registered_names("model")
    model = read_model(registry.read_named_config("model", options.model) if named else {"path": options.model})
    machine = collect_provenance()
    print(f"{model.name} in float32, {options.task}, {options.count} questions behind {options.length:,} tokens")
    print(f"{machine['processor']}, 1 of {machine['cores']} cores, {machine['packages']}\n")
    print("| backend | method | one question, s | all, s | ratio | answers |\n| --- | --- | --- | --- | --- | --- |")
    for name in options.backends:
        backend: Any = BACKENDS[name](model, dtype="float32")
        task = lexbench.task(options.task, corpus="stdlib", questions_per_text=options.count)
        questions = task.questions(backend.tokenizer, options.length, options.count, 0)
        for method in options.methods:
            attention = lexbench.method(method).attention(model, options.length)
            # What is tried and built at the first text, beforehand.
            seconds(backend, attention, task.questions(backend.tokenizer, 1024, 2, 0))
            both = [
                (seconds(backend, attention, questions[:1]), seconds(backend, attention, questions))
                for _ in range(options.repeats)
            ]
            one, every = (min(each) for each in zip(*both, strict=True))
            said = compared(backend, attention, questions) if options.compare else "not compared"
            print(f"| {name} | {method} | {one:.2f} | {every:.2f} | {every / one:.2f} | {said} |", flush=True)


def seconds(backend: Any, attention: Attention, questions: Sequence[AnyQuestion]) -> float:
    """Processor seconds of answering, with nothing kept from before."""
    backend.attend(attention)
    backend.reuse = True
    started = time.process_time()
    list(answer_questions(backend, cheapest_order(questions, reuse=backend.is_causal())))
    return time.process_time() - started


def compared(backend: Any, attention: Attention, questions: Sequence[AnyQuestion]) -> str:
    """How many answers have the tokens of the question asked alone."""
    backend.attend(attention)
    backend.reuse = True
    ordered = cheapest_order(questions, reuse=backend.is_causal())
    found, same = list(answer_questions(backend, ordered)), 0
    backend.reuse = False
    for question, answer in zip(ordered, found, strict=True):
        assert isinstance(question, Generate)
        backend.attend(attention)
        same += np.array_equal(backend.write(question).tokens, answer.tokens)  # type: ignore[union-attr]
    return f"{same} of {len(ordered)} the same"


if __name__ == "__main__":
    main()
