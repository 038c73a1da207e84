"""Training a decoder from a corpus and a few lessons: AdamW, cosine schedule, resumable at every checkpoint."""

import hashlib
import io
import itertools
import json
import math
import platform
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
import torch
from tokenizers import decoders, models, pre_tokenizers, processors, trainers
from torch import Tensor
from torch.nn import functional as F
from tqdm import tqdm

from lexbench.corpora import Corpus, hash_documents
from lexbench.encodings.rope import Rope
from lexbench.files import write_bytes, write_text
from lexbench.native.decoder import Decoder, Shape
from lexbench.native.folder import save
from lexbench.native.lessons import WORDLESS, Lesson, TextLesson, gather, row
from lexbench.task import Encoded, Frame, Tokens
from lexbench.tokenizer import FastTokenizer, load_tokenizer

SPECIAL = ("<s>", "</s>")  # BOS and EOS: the first two tokens


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Everything that a training depends on, beside its corpora."""

    stages: Sequence[Mapping[str, Any]]
    """One after the other: `steps`; in `lessons` the share of the rows that each kind of lesson takes: `text`, a
    generator of `native/lessons.py`, or a task; and `boost`, if any, by which the learning rate is multiplied."""
    trained_length: int = 256
    batch: int = 24
    """Rows of trained_length tokens in a step."""
    vocabulary: int = 2048
    layers: int = 4
    width: int = 256
    heads: int = 8
    kv_heads: int = 4
    hidden: int = 640
    base: float = 10000.0
    """Of the rotary angles."""
    rate: float = 1.5e-3
    """Peak learning rate; warmed up linearly, then a cosine down to a tenth."""
    warmup: int = 100
    decay: float = 0.1
    """Weight decay of matrices."""
    horizon: int | None = None
    """Steps over which the cosine falls, a tenth of the rate from there on; None: all."""
    clip: float = 1.0
    """Largest norm of the gradient."""
    seed: int = 0
    evaluate: int = 100
    """Steps between held-out losses."""
    save: int = 100
    """Steps between checkpoints."""

    def __post_init__(self) -> None:
        for name in ("trained_length", "batch", "vocabulary", "evaluate", "save"):
            if getattr(self, name) < 1:
                raise ValueError(f"recipe.{name} must be at least 1, got {getattr(self, name)}")
        for stage in self.stages:
            shares = stage.get("lessons", {}).values()
            if stage.keys() - {"boost"} != {"steps", "lessons"} or stage["steps"] < 1 or not shares or min(shares) <= 0:
                raise ValueError(
                    f"recipe.stages must have steps and shares above 0, got {dict(stage)}: "
                    "e.g. {steps: 100, lessons: {text: 1.0}}"
                )
        if not self.stages:
            raise ValueError("recipe.stages must name at least one stage, got none: e.g. [{steps: 1, lessons: ...}]")

    @property
    def steps(self) -> int:
        """Steps of all stages."""
        return sum(stage["steps"] for stage in self.stages)

    @property
    def kinds(self) -> list[str]:
        """Every kind of lesson, once."""
        return list(dict.fromkeys(kind for stage in self.stages for kind in stage["lessons"]))

    def stage(self, step: int) -> Mapping[str, Any]:
        """The stage that a step, counted from 0, belongs to."""
        ends = itertools.accumulate(stage["steps"] for stage in self.stages)
        return next(stage for stage, end in zip(self.stages, ends, strict=True) if step < end)

    def shape(self) -> Shape:
        """Sizes of the decoder."""
        return Shape(
            vocabulary=self.vocabulary,
            layers=self.layers,
            width=self.width,
            heads=self.heads,
            kv_heads=self.kv_heads,
            hidden=self.hidden,
        )

    def learning_rate(self, step: int) -> float:
        """At one step, counted from 0."""
        rate = self.rate * float(self.stage(step).get("boost", 1.0))
        if step < self.warmup:
            return rate * (step + 1) / self.warmup
        progress = (step - self.warmup) / max(1, (self.horizon or self.steps) - self.warmup)
        return rate * (0.55 + 0.45 * math.cos(math.pi * min(1.0, progress)))


def train(recipe: Recipe, corpora: Sequence[Corpus], held_out: Sequence[Corpus], out: Path, command: str) -> None:
    """Train, or go on from the checkpoint in `out`; leaves a Llama folder and `training.json` there.

    Raises ValueError where `out` holds a training with another recipe or other texts.
    """
    out.mkdir(parents=True, exist_ok=True)
    texts = hash_documents(document for corpus in corpora for document in corpus.documents())
    key = hashlib.sha256(json.dumps([asdict(recipe), texts], sort_keys=True).encode()).hexdigest()[:16]
    tokenizer = _tokenizer(recipe, corpora, out)
    lessons = gather(recipe.kinds, corpora, tokenizer)
    validation = _held_out_rows(recipe, held_out, tokenizer)

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    decoder = Decoder(recipe.shape(), Rope(recipe.shape().head_dim, recipe.base))
    decoder.initialise(recipe.seed)
    decoder.to(device)
    optimizer = _optimizer(decoder, recipe)
    run = _Run(out, key, recipe.steps)
    first = run.resume(decoder, optimizer)

    with tqdm(total=recipe.steps, initial=first, unit="step", desc="train", dynamic_ncols=True) as bar:
        started = time.monotonic()
        for step in range(first, recipe.steps):
            losses = _step(decoder, optimizer, recipe, lessons, tokenizer, step, device)
            done = step + 1
            speed = (done - first) * recipe.batch * recipe.trained_length / (time.monotonic() - started)
            bar.set_postfix(loss=f"{losses['all']:.3f}", tokens_per_second=f"{speed:.0f}")
            bar.update()
            if done % recipe.evaluate == 0 or done == recipe.steps:
                losses["held_out"] = _evaluate(decoder, validation, device)
            run.log({"step": done, "loss": losses, "tokens_per_second": round(speed), "seconds": run.seconds()})
            if done % recipe.save == 0 or done == recipe.steps:
                run.checkpoint(decoder, optimizer, done)

    bos, eos = range(len(SPECIAL))
    save(decoder.cpu(), out, recipe.trained_length, bos=bos, eos=eos, dtype=torch.float16)
    settings = {"bos_token_id": bos, "eos_token_id": eos, "do_sample": False}
    write_text(out / "generation_config.json", json.dumps(settings, indent=1) + "\n")
    write_text(out / "training.json", json.dumps(run.summary(recipe, texts, command, device), indent=1) + "\n")


def _step(
    decoder: Decoder,
    optimizer: torch.optim.Optimizer,
    recipe: Recipe,
    lessons: Mapping[str, Lesson],
    tokenizer: FastTokenizer,
    step: int,
    device: torch.device,
) -> dict[str, float]:
    """One update; mean loss in nats of all rows, and of each kind of lesson."""
    rng = np.random.default_rng([recipe.seed, step])
    shares, length = recipe.stage(step)["lessons"], recipe.trained_length
    kinds, rows = zip(*(row(lessons, shares, rng, tokenizer, length) for _ in range(recipe.batch)), strict=True)
    losses = _losses(decoder, torch.from_numpy(np.stack(rows)).to(device))
    losses.mean().backward()  # type: ignore[no-untyped-call]
    torch.nn.utils.clip_grad_norm_(decoder.parameters(), recipe.clip)
    for group in optimizer.param_groups:
        group["lr"] = recipe.learning_rate(step)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    by_row = losses.detach().mean(1).cpu().tolist()
    by_kind = {kind: [loss for k, loss in zip(kinds, by_row, strict=True) if k == kind] for kind in sorted(set(kinds))}
    return {"all": float(np.mean(by_row)), **{kind: float(np.mean(values)) for kind, values in by_kind.items()}}


def _losses(decoder: Decoder, rows: Tensor) -> Tensor:
    """[B, T - 1] nats; bf16 autocast where there is an accelerator, on a CPU it is slower than fp32."""
    with torch.autocast("cuda", dtype=torch.bfloat16, enabled=rows.is_cuda):
        logits = decoder(rows[:, :-1])
    return F.cross_entropy(logits.float().transpose(1, 2), rows[:, 1:], reduction="none")


def _optimizer(decoder: Decoder, recipe: Recipe) -> torch.optim.AdamW:
    matrices = [weight for weight in decoder.parameters() if weight.dim() == 2]
    others = [weight for weight in decoder.parameters() if weight.dim() != 2]
    groups = [{"params": matrices, "weight_decay": recipe.decay}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=recipe.rate, betas=(0.9, 0.95), fused=True)


def _held_out_rows(recipe: Recipe, held_out: Sequence[Corpus], tokenizer: FastTokenizer) -> Tensor:
    """[32, T] rows of texts that training never sees, always the same ones."""
    lessons = {"text": TextLesson(held_out, tokenizer)}
    length = recipe.trained_length
    rows = [row(lessons, {"text": 1.0}, np.random.default_rng([1, i]), tokenizer, length)[1] for i in range(32)]
    return torch.from_numpy(np.stack(rows))


@torch.inference_mode()
def _evaluate(decoder: Decoder, rows: Tensor, device: torch.device) -> float:
    decoder.eval()
    loss = float(_losses(decoder, rows.to(device)).mean())
    decoder.train()
    return loss


def _tokenizer(recipe: Recipe, corpora: Sequence[Corpus], out: Path) -> FastTokenizer:
    """The folder's tokenizer, or a new byte-level BPE learnt from the corpora; digits stay single."""
    if not (out / "tokenizer.json").exists():
        bpe = tokenizers.Tokenizer(models.BPE())
        bpe.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
        bpe.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=recipe.vocabulary,
            special_tokens=list(SPECIAL),
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        bpe.train_from_iterator(_tokenizer_texts(recipe, corpora), trainer)
        bpe.post_processor = processors.TemplateProcessing(single=f"{SPECIAL[0]} $A", special_tokens=[(SPECIAL[0], 0)])
        settings: dict[str, Any] = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": SPECIAL[0],
            "eos_token": SPECIAL[1],
        }
        settings |= {"add_bos_token": True, "model_max_length": recipe.trained_length}
        write_text(out / "tokenizer_config.json", json.dumps(settings, indent=1) + "\n")
        write_text(out / "tokenizer.json", bpe.to_str(pretty=False) + "\n")
    return load_tokenizer(out)


def _tokenizer_texts(recipe: Recipe, corpora: Sequence[Corpus]) -> Iterator[str]:
    """The corpora, and enough of the lessons that their words become tokens."""
    yield from (document.text for corpus in corpora for document in corpus.documents())
    spelled = _Characters()
    rng = np.random.default_rng(recipe.seed)
    for lesson in gather([kind for kind in recipe.kinds if kind not in WORDLESS], [], spelled).values():
        yield from (spelled.decode(lesson(rng, spelled, 2000)) for _ in range(200))


class _Characters:
    """A tokenizer of characters, with which lessons can be written out before there is another."""

    prefix: tuple[int, ...] = ()
    bos = None
    vocabulary = 128

    def encode(self, text: str) -> Encoded:
        return Encoded(ids=np.array([ord(c) for c in text], np.int64), starts=np.arange(len(text)), text=text)

    def decode(self, ids: Sequence[int] | Tokens) -> str:
        return "".join(chr(i) for i in ids)

    def frame(self, chat: bool) -> Frame:
        return Frame(np.empty(0, np.int64), np.empty(0, np.int64))


class _Run:
    """The files of one training: checkpoint.pt to go on from, training.jsonl with a line a step."""

    def __init__(self, out: Path, key: str, steps: int) -> None:
        self.file, self.log_file = out / "checkpoint.pt", out / "training.jsonl"
        self.key, self.steps = key, steps
        self.before, self.started = 0.0, time.monotonic()

    def seconds(self) -> float:
        """Seconds of training so far, interruptions left out."""
        return round(self.before + time.monotonic() - self.started, 2)

    def resume(self, decoder: Decoder, optimizer: torch.optim.Optimizer) -> int:
        """Load the checkpoint, if any, and drop the log's lines behind it; the steps already done."""
        if not self.file.exists():
            write_text(self.log_file, "")
            return 0
        state = torch.load(self.file, weights_only=True, map_location="cpu")
        if state["key"] != self.key:
            raise ValueError(f"out={self.file.parent} holds another training: give a new folder, or remove it")
        decoder.load_state_dict(state["decoder"])
        optimizer.load_state_dict(state["optimizer"])
        lines = self.log_file.read_text().splitlines()[: state["step"]]
        write_text(self.log_file, "".join(line + "\n" for line in lines))
        self.before = json.loads(lines[-1])["seconds"]
        return int(state["step"])

    def checkpoint(self, decoder: Decoder, optimizer: torch.optim.Optimizer, step: int) -> None:
        """Replace the checkpoint atomically."""
        buffer = io.BytesIO()
        state = {"key": self.key, "step": step, "decoder": decoder.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save(state, buffer)
        write_bytes(self.file, buffer.getvalue())

    def log(self, row: Mapping[str, Any]) -> None:
        """Add one line."""
        with self.log_file.open("a") as stream:
            stream.write(json.dumps(row) + "\n")

    def summary(self, recipe: Recipe, texts: str, command: str, device: torch.device) -> dict[str, Any]:
        """What was trained, on what, and how it ended."""
        rows = [json.loads(line) for line in self.log_file.read_text().splitlines()]
        last = rows[-min(100, len(rows)) :]
        kinds = sorted({kind for row in last for kind in row["loss"]})
        return {
            "command": command,
            "recipe": asdict(recipe),
            "texts": texts,
            "tokens": recipe.steps * recipe.batch * recipe.trained_length,
            "seconds": rows[-1]["seconds"],
            "last_loss": {
                kind: round(float(np.mean([row["loss"][kind] for row in last if kind in row["loss"]])), 4)
                for kind in kinds
            },
            "curve": [
                {"step": row["step"], **{kind: round(value, 4) for kind, value in row["loss"].items()}}
                for row in rows
                if "held_out" in row["loss"]
            ],
            "device": torch.cuda.get_device_name(0) if device.type == "cuda" else platform.machine() + " CPU",
            "python": platform.python_version(),
            "torch": torch.__version__,
        }
