"""Trainings with and without a cliff, which `lexbench trace` must tell apart.

A RoPE model is trained at 512 tokens. Then, for each seed, it is trained on at 128 tokens and, as the control, at 512,
with the same kinds of rows; a checkpoint is kept every 30 steps.

    python tools/trace_laboratory.py RUNS results/reference [SEEDS]

trains RUNS/step-0, RUNS/at-128/seed0/step-30, ..., RUNS/at-512/seed0/step-120 for SEEDS seeds (10), traces them, and
writes trace.md with a cliff and a control. Repeat it to resume. The first training takes a minute and a half of a core,
each of the others, and each trace, about a quarter of a minute.
"""

import functools
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from lexbench.checkpoints.tokenizer import load_tokenizer
from lexbench.core import registry
from lexbench.core.files import write_text
from lexbench.core.method_key import MethodKey
from lexbench.parts.lab.native.folder import save_model
from lexbench.parts.lab.native.learner import Learner
from lexbench.parts.lab.native.lessons import Lesson, gather_lessons
from lexbench.parts.lab.native.recipe import Recipe
from lexbench.parts.lab.native.rows import draw_rows
from lexbench.parts.lab.native.start import read_start
from lexbench.parts.lab.native.train import PreparedTraining, TrainingJob, build_corpora, train
from lexbench.parts.search.trace import page
from lexbench.parts.search.trace.curves import draw
from lexbench.parts.search.trace.falls import Fall
from lexbench.parts.search.trace.settings import Settings
from lexbench.parts.search.trace.trace import Traced, trace
from lexbench.report import formats
from lexbench.report.grid import Grid, GridEntry, Line, difference_entry
from lexbench.report.wording import metric_format
from lexbench.stats.metrics import display_factor

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
TASKS = ("last_segment", "copy")


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


def go_on(begin: Path, recipe: Recipe, lessons: Callable[[], Mapping[str, Lesson]], folder: Path) -> None:
    """Train on from a folder, and keep a checkpoint every STEPS steps; nothing where the last one is there."""
    if (folder / f"step-{recipe.steps}" / "model.safetensors").exists():
        return
    start = read_start(begin)
    tokenizer, (bos, eos) = load_tokenizer(begin), start.special_token_ids
    learner = Learner(start.decoder, recipe)
    for step in range(recipe.steps):
        kinds, batch = draw_rows(recipe, lessons(), tokenizer, step)
        learner.step(batch, step, kinds)
        if (step + 1) % STEPS == 0:
            out = folder / f"step-{step + 1}"
            out.mkdir(parents=True, exist_ok=True)
            start.copy_tokenizer(out)
            save_model(learner.decoder, out, recipe.length, bos=bos, eos=eos, dtype=torch.float32)
    print(folder, flush=True)


def trained(runs: Path, seeds: int) -> Path:
    """Train all of them; the checkpoint that both trainings of a seed go on from."""
    corpora, base, settled = build_corpora(CORPORA, "train", "corpora"), runs / "base", runs / "settled"
    train(
        PreparedTraining(
            TrainingJob(recipe=first(), corpora=corpora, held_out=build_corpora(CORPORA, "test", "corpora"))
        ),
        base,
    )
    lessons = functools.cache(lambda: gather_lessons(["text", "string_pieces"], corpora, load_tokenizer(base), LONG))
    go_on(base, onwards(0, LONG), lessons, settled)
    begin = settled / f"step-{STEPS * CHECKPOINTS}"
    start = runs / "step-0"
    if not (start / "model.safetensors").exists():
        shutil.copytree(begin, start, dirs_exist_ok=True)
    for seed in range(seeds):
        for length in (SHORT, LONG):
            go_on(start, onwards(1 + seed, length), lessons, runs / f"at-{length}" / f"seed{seed}")
    return start


def traced(runs: Path, start: Path, length: int, seed: int) -> Traced:
    """The trace of one training, as the command makes it."""
    folder = runs / "traces" / f"at-{length}" / f"seed{seed}"
    found = trace(
        [str(start), str(runs / f"at-{length}" / f"seed{seed}")],
        tasks=[{**registry.read_named_config("task", name), "name": name} for name in TASKS],
        corpus={**registry.read_named_config("corpus", "stdlib"), "name": "stdlib"},
        backend={**registry.read_named_config("backend", "native"), "name": "native"},
        settings=Settings(
            lengths=[SHORT, SHORT * 5 // 4, LONG],
            trained_length=LONG,
            order=[str(STEPS * place) for place in range(CHECKPOINTS + 1)],  # the first is in another folder
            out=str(folder),
        ),
    )
    page.write(found, folder)
    return found


def named(found: Traced) -> list[Fall]:
    """Cliffs whose interval on fresh questions is wholly on the worse side."""
    return [fall for fall in found.falls if fall.gaining and fall.confirmed and _apart(fall)]


def _apart(fall: Fall) -> bool:
    found = fall.fresh
    return bool(found and found.low is not None and found.high is not None and (found.low > 0 or found.high < 0))


def warned(found: Traced) -> tuple[int | None, int | None]:
    """Step at which the loss at 1.25 times the short window is first worse than at the window; and that of copying."""
    hurting = [each.place for each in found.harms if each.shorter == SHORT and each.hurts]
    fallen = [fall.after for fall in found.falls if fall.column.task == TASKS[1] and fall.column.length == LONG]
    first = [found.rows[min(places)].checkpoint.step if places else None for places in (hurting, fallen)]
    return first[0], first[1]


def rows(found: Sequence[Traced]) -> list[Line]:
    """The cliffs of each training that forgets."""
    made: list[Line] = []
    for seed, each in enumerate(found):
        falls = {fall.column: fall for fall in named(each)}
        entries: list[GridEntry | MethodKey | str] = [f"seed {seed}"]
        for column, metric in each.columns.items():
            if column.length > SHORT:
                fall = falls.get(column)
                entry = difference_entry(
                    fall.fresh if fall else None, metric_format(metric), display_factor(metric), missing="none"
                )
                entries.append(replace(entry, more=f"from {each.rows[fall.after].name} on") if fall else entry)
        made.append([*entries, *("never" if step is None else str(step) for step in warned(each))])
    return made


def written(forgetting: Sequence[Traced], control: Sequence[Traced]) -> str:
    """The counts, and the falls of each training."""
    seeds = len(forgetting)
    fell = sum(any(fall.column.length > SHORT for fall in named(each)) for each in forgetting)
    false = [each for each in control if named(each)]
    doubtful = [each for each in control if each not in false and any(fall.gaining for fall in each.falls)]
    wavering = [each for each in control if each not in false and each not in doubtful and each.falls]
    pairs = [warned(each) for each in forgetting]
    before = sum(one is not None and (other is None or one < other) for one, other in pairs)
    names = [f"{column.task} at {column.length}" for column in forgetting[0].columns if column.length > SHORT]
    head = ["training at 128", *names, f"{SHORT * 5 // 4} behind {SHORT} hurts at step", "copying falls at step"]
    predicts = "predicts" if before >= 0.9 * seeds else "does not predict"
    return "\n".join(
        [
            "## Counts",
            "",
            f"- A cliff beyond {SHORT} tokens is named, with an interval on fresh questions that excludes 0, in {fell} "
            f"of {seeds} trainings at {SHORT} tokens.",
            f"- Of {len(control)} controls, trained on at {LONG} tokens, such a cliff is named in {len(false)}, at any "
            f"length. In {len(doubtful)} a cliff is named whose interval holds 0, in {len(wavering)} a fall while no "
            "other length gains: at a constant rate copying wavers from checkpoint to checkpoint.",
            f"- The last segment {predicts} the fall of copying at {LONG}: behind {SHORT * 5 // 4} tokens, 1.25 times "
            f"the new window, it is worse than behind {SHORT} before copying has fallen in {before} of {seeds} "
            "trainings.",
            "",
            formats.grid_markdown(Grid(head=head, rows=rows(forgetting))),
        ]
    )


HEAD = """\
# Traces of trainings with and without a cliff

`python tools/trace_laboratory.py RUNS results/reference {seeds}` makes this page. A RoPE model of 3 layers and width 64
is trained at 512 tokens (920 steps, the last 120 at the rate that follows). Then it is trained on at a window of 128
tokens and, as the control, at 512: 120 steps of 1,024 tokens at a constant rate, a checkpoint every 30, {seeds} seeds
of each. The first training is one and the same for all: the seeds are those of the order and texts of what follows.
`lexbench trace` reads the five checkpoints of each at 128, 160 and 512 tokens: the loss of the last segment, and
copying. Texts: this machine's Python library.
"""


def main(runs: Path, out: Path, seeds: int) -> None:
    """Train, trace, and write the page."""
    start = trained(runs, seeds)
    forgetting, control = ([traced(runs, start, each, seed) for seed in range(seeds)] for each in (SHORT, LONG))
    parts = [HEAD.format(seeds=seeds), written(forgetting, control)]
    for title, found, name in (("cliff", forgetting[0], "trace_cliff"), ("control", control[0], "trace_control")):
        draw(found, out / name)
        body = page.markdown(found).replace("](trace.svg)", f"]({name}.svg)").replace("\n## ", "\n### ")
        parts.append(f"## The {title} of seed 0: {body.removeprefix('# ')}")
    write_text(out / "trace.md", "\n".join(parts))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 10)
