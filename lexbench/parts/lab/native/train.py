"""Train a decoder with any encoding on corpora and lessons; resumable at every checkpoint."""

import hashlib
import json
import math
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from lexbench.checkpoints.tokenizer import FastTokenizer, load_tokenizer
from lexbench.core import objects, registry
from lexbench.core.console import Lines, must_hide_bar
from lexbench.core.errors import ConfigError
from lexbench.core.files import write_text
from lexbench.core.memory import keep_freed
from lexbench.core.moved_classes import with_former_paths
from lexbench.corpora import Corpus, hash_documents
from lexbench.parts.lab.encodings.rope import Rope
from lexbench.parts.lab.native import build, naming, start, vocabulary
from lexbench.parts.lab.native.decoder import Decoder
from lexbench.parts.lab.native.folder import is_llama, save_model
from lexbench.parts.lab.native.learner import Learner
from lexbench.parts.lab.native.lessons import TextLesson, draw_row
from lexbench.parts.lab.native.ngrams import WittenBell
from lexbench.parts.lab.native.progress import TrainingProgress, delay_interrupts, lock_folder
from lexbench.parts.lab.native.recipe import Recipe
from lexbench.parts.lab.native.rows import TrainingRows

N_HELD_OUT_ROWS = 32
"""Rows that measure the held-out loss."""
SHOWN_LOSSES = {"loss": "all", "held-out loss": "held_out"}
"""Losses in the lines of a training, by their words."""
PARAMETERS_WITHOUT_EFFECT = ("save", "evaluate")
"""Parameters of a recipe that do not change the weights."""
NEWER_PARAMETERS = (
    "optimizer",
    "matrix_rate",
    "last",
    "gain_rate",
    "initial",
    "embeddings",
    "precision",
    "counted",
    "packing",
)
"""Parameters that older folders do not know: they count only where they are no default."""


@dataclass(frozen=True, kw_only=True)
class TrainingJob:
    """Configuration of one training."""

    recipe: Recipe
    corpora: Sequence[Corpus]
    held_out: Sequence[Corpus]
    """Texts for the held-out loss; a corpus whose texts are all among those of training is left out."""
    encoding: Mapping[str, Any] = field(default_factory=dict)
    """`name` and parameters; without a name: the start's encoding, else rope."""
    start: str | Path | None = None
    """A trained folder to start from; None: random weights."""
    method: Mapping[str, Any] = field(default_factory=lambda: {"name": "none"})
    """`name` and parameters of the method that changes the start's frequencies."""
    command: str = ""
    """The command line, for the record."""
    rows: Path | None = None
    """Folder of rows drawn ahead (`rows.py`), for trainings that share them; None: draw step by step."""


class PreparedTraining:
    """A checked job: everything that can be resolved without reading its texts.

    Raises:
        ConfigError: an unknown name or parameter, missing sizes, a method without a start, no held-out texts.
    """

    def __init__(self, job: TrainingJob) -> None:
        if not job.held_out:
            raise ConfigError("held_out must name at least one corpus, got []: leave it out, or give e.g. [stdlib]")
        self.job = job
        self.start = None if job.start is None else start.read_start(job.start)
        # Ids of BOS and EOS. A new tokenizer has them first (`vocabulary.SPECIAL_TOKENS`).
        self.ends = (0, 1) if self.start is None else self.start.special_token_ids
        self.recipe = job.recipe if self.start is None else self.start.with_sizes(job.recipe)
        self.shape = self.recipe.sizes()
        self.encoding = self._resolved_encoding()
        naming.check_spec(self.encoding)
        naming.check_head_size(self.encoding, self.shape)
        reach = None
        if not naming.depends_on_tokenizer(self.encoding):  # else the encoding cannot be built before the tokenizer
            reach = build.build_encoding(self.encoding, self.shape, self.recipe.length).reach
        self.method = start.check_method(job.method, self.start, reach)

    def _resolved_encoding(self) -> dict[str, Any]:
        """The resolved spec; texts among its parameters are not token ids yet."""
        if self.start is None:
            return build.resolve_spec({"name": "rope", **self.job.encoding})
        if "name" not in self.job.encoding:
            return build.resolve_spec({**self.start.encoding, **self.job.encoding})
        return build.resolve_spec(naming.continue_spec(self.job.encoding, self.start.encoding))

    @property
    def name(self) -> str:
        """Encoding, method and seed, as a folder name."""
        method = [] if self.method == "none" else [self.method]
        return "-".join(
            map(naming.folder_slug, [naming.encoding_label(self.encoding), *method, f"seed{self.recipe.seed}"])
        )

    def unseen_corpora(self) -> list[Corpus]:
        """The held-out corpora with a text that training does not see (a corpus without splits may be both)."""
        seen = {document.text for corpus in self.job.corpora for document in corpus.documents()}
        return [corpus for corpus in self.job.held_out if any(each.text not in seen for each in corpus.documents())]

    def training_facts(self, unseen: Sequence[Corpus]) -> dict[str, Any]:
        """Everything that weights and losses depend on, as data for the record."""
        return {
            "recipe": asdict(self.recipe),
            "encoding": {"label": naming.encoding_label(self.encoding), **self.encoding},
            "method": self.method,
            "start": None if self.start is None else self.start.facts,
            "texts": _hash_of_texts(self.job.corpora),
            "held_out": _hash_of_texts(unseen) if unseen else None,
        }


def _hash_of_texts(corpora: Sequence[Corpus]) -> str:
    """Hash of all their texts."""
    return hash_documents(document for corpus in corpora for document in corpus.documents())


def build_corpora(entries: Any, split: str, setting: str) -> list[Corpus]:
    """Corpora, each given by name or by name and parameters; their train or test split if they have splits."""
    given = registry.expand_entries("corpus", entries, setting, "[stdlib,{name: files, path: a}]")
    return [objects.build_object(entry, "corpus", split=split) for entry in given]


def train(prepared: PreparedTraining, out: Path) -> None:
    """Train, or resume from the checkpoint in `out`; writes a folder that `folder.load` reads, and `training.json`.

    A finished training is not repeated. Raises ConfigError where `out` holds another training, or a running one.
    """
    if prepared.start is not None and prepared.start.folder.resolve() == out.resolve():
        raise ConfigError(f"out={out} is the folder of start, too: give another folder")
    with lock_folder(out):
        _train_in_folder(prepared, out)


def _train_in_folder(prepared: PreparedTraining, out: Path) -> None:
    job, recipe, begun = prepared.job, prepared.recipe, prepared.start
    unseen = prepared.unseen_corpora()
    stated = prepared.training_facts(unseen)
    label = naming.encoding_label(prepared.encoding, former=True)
    former = _training_key(stated | {"encoding": stated["encoding"] | {"label": label}})
    progress = TrainingProgress(out, _training_key(stated), former)
    if progress.finished:
        print(f"{out} holds this training, finished: nothing to do", file=sys.stderr)
        return

    # Build the decoder: random weights, then the start's, where there is one.
    tokenizer = _training_tokenizer(prepared, out, progress.begun)
    spec = build.pin_parameters(build.resolve_spec(prepared.encoding, tokenizer), recipe.length, recipe.embeddings)
    decoder = Decoder(prepared.shape, build.build_encoding(spec, prepared.shape, recipe.length))
    decoder.initialise(recipe.seed, recipe.initial, recipe.embeddings)
    kept = begun is not None and begun.copy_weights_to(decoder, spec)
    scaling = start.scale_to_length(job.method, begun, *_llama_target(decoder, recipe))

    keep_freed()
    learner = Learner(decoder, recipe, scaling.attention)
    rows = TrainingRows(recipe, job.corpora, tokenizer, job.rows)
    _run_steps(learner, progress, rows, unseen, tokenizer)

    # Save the model before the record: a folder with a record is finished.
    _save_model(decoder.cpu(), out, recipe, spec, scaling, prepared.ends)
    stated |= {"command": job.command, "encoding": stated["encoding"] | spec}
    if begun is not None:
        stated["encoding_weights"] = "the start's" if kept else "begun anew"
    stated["floors"] = _ngram_floors(job.corpora, unseen, tokenizer, recipe)
    progress.finish(stated, recipe.steps * recipe.batch * recipe.length, learner.device, learner.half)


def _ngram_floors(
    corpora: Sequence[Corpus], unseen: Sequence[Corpus], tokenizer: FastTokenizer, recipe: Recipe
) -> dict[str, float] | None:
    """NLL of n-gram counts of the training's texts on held-out rows, in nats per token, by name; None without texts."""
    if "text" not in recipe.kinds or not unseen:
        return None
    held_out = held_out_rows(unseen, tokenizer, recipe.length).numpy()
    found = count_ngrams(corpora, tokenizer).nll(held_out, recipe.length - 1)
    return {name: round(float(nll.mean()), 4) for name, nll in found.items()}


def count_ngrams(corpora: Sequence[Corpus], tokenizer: FastTokenizer) -> WittenBell:
    """N-grams of the documents that rows of text are drawn from, each counted once, however often rows repeat it.

    Repeated text would make its n-grams look certain, and the floor too easy.
    """
    documents = [tokenizer.encode(document.text).ids for corpus in corpora for document in corpus.documents()]
    return WittenBell(documents, tokenizer.vocabulary)


def _training_key(stated: Mapping[str, Any]) -> str:
    """Hash of everything that weights and losses depend on, whatever the path of the start."""
    start = stated["start"] and stated["start"]["fingerprint"]
    # Without parameters at their defaults, a folder of an older version, which lacks them, has the same key.
    usual = {each.name: each.default for each in fields(Recipe) if each.name in NEWER_PARAMETERS}
    recipe = {
        name: value
        for name, value in stated["recipe"].items()
        if name not in PARAMETERS_WITHOUT_EFFECT and not (name in usual and usual[name] == value)
    }
    whole = json.dumps({**stated, "recipe": recipe, "start": start}, sort_keys=True)
    return hashlib.sha256(with_former_paths(whole).encode()).hexdigest()[:16]


def _training_tokenizer(prepared: PreparedTraining, out: Path, begun: bool) -> FastTokenizer:
    """The start's, copied; else that of an interrupted training in `out`; else a new one."""
    if prepared.start is None and begun:
        return load_tokenizer(out)
    if prepared.start is None:
        return vocabulary.learn_tokenizer(prepared.recipe, prepared.job.corpora, out)
    prepared.start.copy_tokenizer(out)
    return load_tokenizer(prepared.start.folder)


def _run_steps(
    learner: Learner,
    progress: TrainingProgress,
    rows: TrainingRows,
    held_out: Sequence[Corpus],
    tokenizer: FastTokenizer,
) -> None:
    """Run the remaining steps; on Ctrl-C, save a checkpoint and end."""
    recipe = learner.recipe
    validation = held_out_rows(held_out, tokenizer, recipe.length) if held_out else None
    first = progress.resume(learner.decoder, learner.optimizer)
    bar = tqdm(
        total=recipe.steps, initial=first, unit="step", desc=progress.name, dynamic_ncols=True, disable=must_hide_bar()
    )
    together = recipe.batch * recipe.length
    lines = Lines(f"training {progress.name}: steps {first + 1} to {recipe.steps}, of {together:,} tokens each")
    with bar, delay_interrupts() as interrupted:
        started = time.monotonic()
        for step in range(first, recipe.steps):
            # Rows depend on (seed, step) alone, so that a resumed training sees the same ones.
            kinds, tokens = rows.step(step)
            losses = _mean_loss_by_kind(kinds, learner.step(tokens, step, kinds))
            done = step + 1
            speed = (done - first) * together / (time.monotonic() - started)
            bar.set_postfix(loss=f"{losses['all']:.3f}", tokens_per_second=f"{speed:.0f}")
            bar.update()
            if validation is not None and (done % recipe.evaluate == 0 or done == recipe.steps):
                losses["held_out"] = learner.held_out_loss(validation)
            if not all(map(math.isfinite, losses.values())):  # that of rows held out sees the update, too
                raise ConfigError(
                    f"training {progress.name} diverged: its loss at step {done} is not finite; "
                    f"lower recipe.rate, it is {recipe.rate:g}"
                )
            said = ", ".join(f"{name} {losses[key]:.3f}" for name, key in SHOWN_LOSSES.items() if key in losses)
            due = done % recipe.evaluate == 0 or done == recipe.steps
            lines.show(f"step {done} of {recipe.steps}, {said}", due, done - first, recipe.steps - done)
            # The log line comes before the checkpoint: `resume` needs a line for every step of the checkpoint.
            progress.append_log_row(
                {"step": done, "loss": losses, "tokens_per_second": round(speed), "seconds": progress.seconds()}
            )
            ends = interrupted()
            if done % recipe.save == 0 or done == recipe.steps or ends:
                progress.save(learner.decoder, learner.optimizer, done)
            if ends:
                break


def _mean_loss_by_kind(kinds: Sequence[str], losses: Sequence[float]) -> dict[str, float]:
    """Mean loss of all rows, and of the rows of each kind."""
    found = {kind: [loss for k, loss in zip(kinds, losses, strict=True) if k == kind] for kind in sorted(set(kinds))}
    return {"all": float(np.mean(losses)), **{kind: float(np.mean(values)) for kind, values in found.items()}}


def held_out_rows(held_out: Sequence[Corpus], tokenizer: FastTokenizer, length: int) -> Tensor:
    """[32, T] rows of held-out texts, always the same ones."""
    lessons = {"text": TextLesson(held_out, tokenizer)}
    rows = [
        draw_row(lessons, {"text": 1.0}, np.random.default_rng([1, i]), tokenizer, length)[1]
        for i in range(N_HELD_OUT_ROWS)
    ]
    return torch.from_numpy(np.stack(rows))


def _llama_target(decoder: Decoder, recipe: Recipe) -> tuple[float | None, int]:
    """RoPE base of the ordinary Llama that training saves (None: another model), and the length it is trained for."""
    # Encodings for training may stand around one another.
    used = decoder.encoding
    while used.used is not used:
        used = used.used
    plain = type(used) is Rope and decoder.shape.block == "llama"
    return used.base if plain else None, decoder.encoding.reach or recipe.length  # type: ignore[return-value]


def _save_model(
    decoder: Decoder,
    out: Path,
    recipe: Recipe,
    spec: Mapping[str, Any],
    scaling: start.TrainingMethod,
    marks: tuple[int, int],
) -> None:
    """Save the model, without encodings that act in training only."""
    while decoder.encoding.used is not decoder.encoding:
        decoder.encoding, spec = decoder.encoding.used, spec[build.INNER_PARAMETER]
    bos, eos = marks
    dtype: torch.dtype = getattr(torch, recipe.weights)
    assert not scaling.config or is_llama(decoder)
    save_model(decoder, out, recipe.length, bos=bos, eos=eos, dtype=dtype, encoding=spec, scaling=scaling.config)
    if not (out / "generation_config.json").exists():
        settings = {"bos_token_id": bos, "eos_token_id": eos, "do_sample": False}
        write_text(out / "generation_config.json", json.dumps(settings, indent=1) + "\n")
