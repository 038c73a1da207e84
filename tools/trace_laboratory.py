"""Trainings with and without a cliff, which `lexbench trace` must tell apart.

A RoPE model is trained at 512 tokens. Then, for each seed, it is trained on at 128 tokens and, as the control, at 512,
with the same kinds of rows; a checkpoint is kept every 30 steps.

    python tools/trace_laboratory.py RUNS [SEEDS]

writes RUNS/step-0, RUNS/at-128/seed0/step-30, ..., RUNS/at-512/seed0/step-150, for SEEDS seeds (10). Repeat it to
resume. The first training takes a minute and a half of a core, each of the others about a quarter of a minute.
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from lexbench.checkpoints.tokenizer import load_tokenizer
from lexbench.parts.lab.native.folder import save
from lexbench.parts.lab.native.learner import Learner
from lexbench.parts.lab.native.lessons import Lesson, gather
from lexbench.parts.lab.native.recipe import Recipe
from lexbench.parts.lab.native.rows import drawn
from lexbench.parts.lab.native.start import read
from lexbench.parts.lab.native.train import Job, Prepared, texts, train

LONG, SHORT = 512, 128
"""Tokens of a row: of the first training and the control, and of the training that forgets."""
STEPS, CHECKPOINTS = 30, 4
"""Steps between checkpoints, and checkpoints of a training that goes on."""
SLOWER = 2
"""Times that its rates are lower."""
USUAL: Mapping[str, Any] = {
    "optimizer": "muon",
    "decay": 0.01,
    "embeddings": 0.3,
    "precision": "float32",
    "counted": "copied",
    "evaluate": 200,
    "save": 1000,
}
CORPORA = ["stdlib", "pydoc"]


def first() -> Recipe:
    """Copying on short rows, then text, copying and passkeys on long ones."""
    return Recipe(
        **USUAL,
        trained_length=LONG,
        batch=4,
        vocabulary=320,
        shape={"layers": 3, "width": 64, "heads": 2, "kv_heads": 2, "hidden": 160},
        initial="fan_in",
        rate=4.0e-3,
        matrix_rate=0.02,
        gain_rate=0.01,
        warmup=50,
        last=0.1,
        stages=[
            {"steps": 200, "length": 32, "lessons": {"string_pieces": 0.5, "block_pieces": 0.5}},
            {
                "steps": 100,
                "length": SHORT,
                "lessons": {"string_pieces": 0.3, "block_pieces": 0.2, "passkey": 0.3, "text": 0.2},
            },
            {"steps": 500, "lessons": {"text": 0.4, "string_pieces": 0.2, "passkey": 0.4}},
        ],
    )


def onwards(seed: int, length: int) -> Recipe:
    """A training that goes on, at a constant rate."""
    return Recipe(
        **USUAL,
        trained_length=length,
        batch=1024 // length,
        rate=4.0e-3 / SLOWER,
        matrix_rate=0.02 / SLOWER,
        gain_rate=0.01 / SLOWER,
        warmup=10,
        last=1.0,
        seed=seed,
        stages=[{"steps": STEPS * CHECKPOINTS, "lessons": {"text": 0.5, "string_pieces": 0.5}}],
    )


def go_on(begin: Path, recipe: Recipe, lessons: Mapping[str, Lesson], folder: Path) -> None:
    """Train on from a folder, and keep a checkpoint every STEPS steps; nothing where the last one is there."""
    if (folder / f"step-{recipe.steps}" / "model.safetensors").exists():
        return
    start = read(begin)
    tokenizer, (bos, eos) = load_tokenizer(begin), start.ends
    learner = Learner(start.decoder, recipe)
    for step in range(recipe.steps):
        kinds, rows = drawn(recipe, lessons, tokenizer, step)
        learner.step(rows, step, kinds)
        if (step + 1) % STEPS == 0:
            out = folder / f"step-{step + 1}"
            out.mkdir(parents=True, exist_ok=True)
            start.copy_tokenizer(out)
            save(learner.decoder, out, recipe.length, bos=bos, eos=eos, dtype=torch.float32)
    print(folder, flush=True)


def main(runs: Path, seeds: int) -> None:
    """Train all of them."""
    corpora, base, settled = texts(CORPORA, "train", "corpora"), runs / "base", runs / "settled"
    train(Prepared(Job(recipe=first(), corpora=corpora, held_out=texts(CORPORA, "test", "corpora"))), base)
    lessons = gather(["text", "string_pieces"], corpora, load_tokenizer(base), LONG)
    go_on(base, onwards(0, LONG), lessons, settled)
    begin = settled / f"step-{STEPS * CHECKPOINTS}"
    for seed in range(seeds):
        for length in (SHORT, LONG):
            go_on(begin, onwards(1 + seed, length), lessons, runs / f"at-{length}" / f"seed{seed}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 10)
