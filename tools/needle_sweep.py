"""One needle over depths and lengths, by lexbench and lm_eval (RULER): python tools/needle_sweep.py

The same model (lexlet, or --model; float32), the same machine, each side in processes of its own, one command a side
for all lengths. lm_eval is lm-evaluation-harness, its own command line. Two comparisons:

    same prompts      lexbench's niah_single_1 (a key and a number in noise, all depths), and a local task of lm_eval
                      made of the same prompts as text, with the same room. Both write greedily: the answers must be
                      the same wherever a prompt's text has the same tokens again, or the comparison is void
    niah_single_1     RULER's task as lm_eval makes it, against lexbench's of the same name at the lengths that RULER's
                      prompts came to: they fall short of what is asked for. The same number of questions of about as
                      many tokens, but not the same words. lm_eval makes 500 prompts a length whatever it asks: that is
                      in its seconds. It needs the package wonderwords, and its module looks for nltk's punkt on the
                      net, in vain without one and without harm here; without the package this part is left out

Both sides are batched: lm_eval by `--batch`, lexbench by its own rule. Answering is the time without imports, loading
and making prompts, and what a token costs; command is everything. Tokens: read and written, padding too.
"""

import argparse
import importlib.util
import json
import math
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

import lexbench
from lexbench.checkpoints.tokenizer import FastTokenizer, load_tokenizer
from lexbench.core.task import Generate
from lexbench.store.store import Store
from tools import sides

RULER_ROOM = 128
RULER_MADE = 500
"""Prompts that lm_eval's RULER makes at each length."""


@dataclass(frozen=True)
class Side:
    """What came out of one side."""

    ran: sides.Ran
    within: float
    tokens: int
    correct: float
    """Share of answers in which the value stands."""
    outputs: dict[tuple[int, int], str]
    """By length and index."""


def by_lexbench(results: Path, options: argparse.Namespace, lengths: Sequence[int], room: int | None) -> Side:
    ran = sides.lexbench(
        results,
        "model=local",
        f"model.path={options.model.resolve()}",
        "task=niah_single_1",
        f"lengths=[{','.join(map(str, lengths))}]",
        f"n={options.n}",
        f"backend.device={options.device}",
        f"backend.dtype={options.dtype}",
        *([f"task.room={room}"] if room else []),
    )
    cells = Store(results).load()
    if refused := [cell.refused for cell in cells if cell.refused]:
        raise SystemExit(f"lexbench refused: {refused[0]}")
    tokenizer = load_tokenizer(options.model)
    samples = [(cell.cell.length, sample) for cell in cells for sample in cell.samples]
    asked = {
        (length, each.index): each
        for length in lengths
        for each in questions(options, tokenizer, lengths, length, room)
    }
    outputs = {(length, sample.index): sample.output or "" for length, sample in samples}
    tokens = sum(len(each.prompt) for each in asked.values())
    tokens += sum(len(tokenizer.encode(output).ids) for output in outputs.values())
    correct = math.fsum(sample.scores["contains"] for _, sample in samples) / len(samples)
    return Side(ran, sides.asked(results), tokens, correct, outputs)


def questions(
    options: argparse.Namespace, tokenizer: FastTokenizer, lengths: Sequence[int], length: int, room: int | None
) -> list[Generate]:
    """What lexbench asks at a length."""
    given: dict[str, Any] = {"room": room} if room else {}
    task = lexbench.task("niah_single_1", **given).for_lengths(lengths)
    return [each for each in task.questions(tokenizer, length, options.n, 0) if isinstance(each, Generate)]


@dataclass(frozen=True)
class Answered:
    """Two sides' answers to the same prompts."""

    ours: Side
    theirs: Side
    room: int
    asked: int
    """Prompts."""
    again: frozenset[tuple[int, int]]
    """Length and index of prompts whose text has the same tokens again."""

    def differing(self) -> list[tuple[int, int]]:
        """Those of `again` that the sides answer differently."""
        return [key for key in self.again if self.ours.outputs[key].strip() != self.theirs.outputs[key].strip()]


def answer_same_prompts(folder: Path, options: argparse.Namespace) -> Answered:
    """Ask both sides."""
    tokenizer = load_tokenizer(options.model)
    asked = [
        (length, each)
        for length in options.lengths
        for each in questions(options, tokenizer, options.lengths, length, options.room)
    ]
    room = asked[0][1].max_new_tokens
    documents, again = [], set()
    for length, each in asked:
        text = tokenizer.decode(each.prompt)
        if np.array_equal([*tokenizer.prefix, *tokenizer.encode(text).ids], each.prompt):
            again.add((length, each.index))
        value = (each.answer or "").strip()
        documents.append({"length": length, "index": each.index, "prompt": text, "value": value})
    sides.task_file(
        folder / "tasks",
        "needles",
        documents,
        "output_type: generate_until\ndoc_to_text: prompt\ndoc_to_target: value\n"
        f"generation_kwargs: {{do_sample: false, until: [], max_gen_toks: {room}}}\n"
        "metric_list:\n  - metric: exact_match\n",
    )
    ours = by_lexbench(folder / "run", options, options.lengths, room)
    out = folder / "out"
    more = ["--include_path", str(folder / "tasks"), "--tasks", "needles"]
    arguments = sides.hf_arguments(options.model.resolve(), max(options.lengths), options.dtype)
    ran, notes = sides.lm_eval(
        out, "--model", "hf", "--model_args", arguments, *more, batch=options.batch, device=options.device
    )
    rows = sides.logged(out, "needles")
    outputs = {(row["doc"]["length"], row["doc"]["index"]): str(row["resps"][0][0]) for row in rows}
    found = math.fsum(row["doc"]["value"] in str(row["resps"][0][0]) for row in rows) / len(rows)
    theirs = Side(ran, notes["seconds"], notes["tokens"], found, outputs)
    return Answered(ours, theirs, room, len(asked), frozenset(again))


def same_prompts(folder: Path, options: argparse.Namespace) -> bool:
    """The first comparison; whether it holds."""
    answered = answer_same_prompts(folder, options)
    ours, theirs, again = answered.ours, answered.theirs, answered.again
    print(f"\n## The same prompts: {options.n} needles a length at {', '.join(map(str, options.lengths))} tokens")
    print(
        f"\nRoom {answered.room} tokens; {len(again)} of {answered.asked} prompts have the same tokens again as text."
    )
    shown({"lexbench": ours, "lm_eval, the same prompts": theirs})
    other = answered.differing()
    apart = abs(ours.tokens - theirs.tokens) / ours.tokens
    good = bool(again) and not other and apart < 0.01
    said = f"answers that differ: {len(other)} of {len(again)}; tokens that differ: {apart:.2%}"
    print(f"\n{said[0].upper()}{said[1:]}." if good else f"\n**Void: {said}.**")
    for key in other[:2]:
        print(f"\n    {key}: {ours.outputs[key]!r} and {theirs.outputs[key]!r}")
    return good


def ruler(folder: Path, options: argparse.Namespace) -> None:
    """The second comparison."""
    lengths = options.ruler_lengths
    print(f"\n## niah_single_1, asked for {', '.join(map(str, lengths))} tokens")
    if importlib.util.find_spec("wonderwords") is None:
        print("\nLeft out: lm_eval's RULER needs the package wonderwords (and nltk).")
        return
    samples = [RULER_MADE * place + index for place in range(len(lengths)) for index in range(options.n)]
    metadata = json.dumps({"tokenizer": str(options.model.resolve()), "max_seq_lengths": list(lengths)})
    arguments = sides.hf_arguments(options.model.resolve(), max(lengths))
    out = folder / "ruler"
    words = ["--tasks", "niah_single_1", "--metadata", metadata, "--samples", json.dumps({"niah_single_1": samples})]
    path = os.environ.get("PYTHONPATH", "")
    ran, notes = sides.lm_eval(
        out, "--model", "hf", "--model_args", arguments, *words, batch=options.batch, PYTHONPATH=path
    )
    rows = sides.logged(out, "niah_single_1")
    found = math.fsum(row["doc"]["outputs"][0] in str(row["resps"][0][0]) for row in rows) / len(rows)
    theirs = Side(ran, notes["seconds"], notes["tokens"], found, {})
    came = {
        length: round(np.median([row["doc"]["length"] for row in rows if row["doc"]["max_length"] == length]))
        for length in lengths
    }
    ours = by_lexbench(folder / "ruler-run", options, sorted(came.values()), RULER_ROOM)
    print(
        f"\n{options.n} needles a length, room {RULER_ROOM}. RULER's prompts, room counted, came to (median of tokens):"
    )
    print(f"\n{', '.join(f'{length:,} asked: {tokens:,}' for length, tokens in came.items())}.")
    shown({"lexbench, at what RULER's came to": ours, "lm_eval's RULER": theirs})


def shown(taken: dict[str, Side]) -> None:
    first = next(iter(taken.values()))
    sides.table(
        ":side",
        "answering, s",
        "of lexbench's",
        "command, s",
        "of lexbench's",
        "tokens",
        "ms a token",
        "peak MB",
        "found",
    )
    for name, side in taken.items():
        sides.row(
            name,
            f"{side.within:.2f}",
            f"{side.within / first.within:.2f}",
            f"{side.ran.seconds:.1f}",
            f"{side.ran.seconds / first.ran.seconds:.2f}",
            f"{side.tokens:,}",
            f"{1000 * side.within / side.tokens:.3f}",
            f"{side.ran.bytes / 1e6:.0f}",
            f"{side.correct:.0%}",
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="+", default=[256, 512, 1024, 2048])
    parser.add_argument("--ruler-lengths", type=int, nargs="*", default=[1024, 2048, 4096], help="none: leave it out")
    parser.add_argument("--n", type=int, default=16, help="needles a length, over all depths")
    parser.add_argument("--batch", type=int, default=16, help="prompts that lm_eval answers at once")
    parser.add_argument("--room", type=int, help="tokens to write; left out: lexbench's own")
    parser.add_argument("--model", type=Path, default=sides.LEXLET, metavar="DIR", help="in Hugging Face form")
    parser.set_defaults(device="cpu", dtype="float32")
    options = parser.parse_args()
    sides.header("One needle over depths and lengths")
    with tempfile.TemporaryDirectory() as temporary:
        good = same_prompts(Path(temporary), options)
        if options.ruler_lengths:
            ruler(Path(temporary), options)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
