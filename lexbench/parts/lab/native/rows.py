"""The rows of a training, drawn ahead into a file: trainings that differ in their encoding share it.

KEY.npy          [steps, B * T] token ids: the rows of a step, one after the other; complements ~t of those not counted
KEY.kinds.npy    [rows] index of each row's kind of lesson among `recipe.kinds`
"""

import functools
import hashlib
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from tqdm import tqdm

from lexbench.checkpoints.tokenizer import FastTokenizer
from lexbench.core.console import must_hide_bar
from lexbench.core.files import lock_file, write_bytes
from lexbench.core.task import Encoded
from lexbench.corpora import Corpus, hash_documents
from lexbench.parts.lab.native.lessons import (
    LESSONS_WITHOUT_WORDS,
    ONE_LESSON_PACKINGS,
    Lesson,
    draw_row,
    gather_lessons,
)
from lexbench.parts.lab.native.recipe import Recipe

MAX_CACHED_CHARACTERS = 512
"""Characters of texts whose tokens are kept: lessons encode the same few sentences again and again."""


class CachingTokenizer:
    """A tokenizer that encodes a short text once."""

    def __init__(self, tokenizer: FastTokenizer) -> None:
        self._tokenizer = tokenizer
        self._short = functools.lru_cache(maxsize=1 << 14)(tokenizer.encode)

    def encode(self, text: str) -> Encoded:
        """Encode a text as the tokenizer does; short texts are encoded once."""
        return self._short(text) if len(text) < MAX_CACHED_CHARACTERS else self._tokenizer.encode(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)


def draw_rows(
    recipe: Recipe, lessons: Mapping[str, Lesson], tokenizer: FastTokenizer, step: int
) -> tuple[list[str], Tensor]:
    """Draw kinds of lessons and [B, T] rows of one step; they depend on (seed, step) alone."""
    rng = np.random.default_rng([recipe.seed, step])
    shares, (count, length) = recipe.stage(step)["lessons"], recipe.rows(step)
    found = [draw_row(lessons, shares, rng, tokenizer, length, recipe.packing) for _ in range(count)]
    return [kind for kind, _ in found], torch.from_numpy(np.stack([tokens for _, tokens in found]))


class TrainingRows:
    """Rows of a training, step by step.

    Args:
        recipe: of the training.
        corpora: its texts.
        tokenizer: of the model.
        folder: of the rows drawn ahead; None: draw them step by step.
    """

    def __init__(
        self, recipe: Recipe, corpora: Sequence[Corpus], tokenizer: FastTokenizer, folder: Path | None
    ) -> None:
        self._recipe, self._corpora, self._tokenizer = recipe, corpora, CachingTokenizer(tokenizer)
        self._drawn = None if folder is None else self._rows_drawn_ahead(folder)

    @functools.cached_property
    def _lessons(self) -> Mapping[str, Lesson]:
        recipe, tokenizer = self._recipe, self._tokenizer
        single = recipe.packing in ONE_LESSON_PACKINGS
        for stage in recipe.stages:
            # A question longer than a short row is cut: without its answer no token of the row would count.
            if self._needs_answers and stage.get("length", recipe.length) < recipe.length:
                space = stage["length"] - (0 if recipe.packing == "right_padded" else len(tokenizer.prefix))
                gather_lessons(
                    [kind for kind in stage["lessons"] if kind not in LESSONS_WITHOUT_WORDS],
                    [],
                    tokenizer,
                    space,
                    True,
                    single,
                )
        return gather_lessons(recipe.kinds, self._corpora, tokenizer, recipe.length, self._needs_answers, single)

    @property
    def _needs_answers(self) -> bool:
        return self._recipe.counted == "answers"

    def step(self, step: int) -> tuple[list[str], Tensor]:
        """Kinds and [B, T] rows of a step, counted from 0."""
        if self._drawn is None:
            return draw_rows(self._recipe, self._lessons, self._tokenizer, step)  # type: ignore[arg-type]
        tokens, kinds = self._drawn
        count, length = self._recipe.rows(step)
        first = int(self._rows_before_step[step])
        names = self._recipe.kinds
        rows = tokens.reshape(self._recipe.steps, -1)[step].reshape(count, length)
        return [names[kind] for kind in kinds[first : first + count]], torch.from_numpy(rows.astype(np.int64))

    @functools.cached_property
    def _rows_before_step(self) -> NDArray[np.int64]:
        """[steps] rows before each step."""
        counts = [self._recipe.rows(step)[0] for step in range(self._recipe.steps)]
        return np.cumsum([0, *counts[:-1]])

    def _rows_drawn_ahead(self, folder: Path) -> tuple[NDArray[Any], NDArray[Any]]:
        """Tokens and kinds, from the files; drawn into them first, by one process."""
        folder.mkdir(parents=True, exist_ok=True)
        key = self._rows_key()
        tokens, kinds = folder / f"{key}.npy", folder / f"{key}.kinds.npy"
        with (folder / ".lock").open("a") as lock:
            lock_file(lock.fileno(), wait=True)
            if not tokens.exists():
                steps = tqdm(
                    range(self._recipe.steps),
                    desc="drawing rows",
                    unit="step",
                    dynamic_ncols=True,
                    disable=must_hide_bar(),
                )
                every = [draw_rows(self._recipe, self._lessons, self._tokenizer, step) for step in steps]  # type: ignore[arg-type]
                # The smallest dtype that holds all ids; complements need a sign.
                short = self._tokenizer.vocabulary <= 1 << (15 if self._needs_answers else 16)
                signed = (np.int16 if short else np.int32) if self._needs_answers else None
                dtype = signed or (np.uint16 if short else np.uint32)
                names = self._recipe.kinds
                # The tokens come last: where their file is, both are whole.
                _write_array(kinds, np.array([names.index(kind) for some, _ in every for kind in some], np.uint8))
                _write_array(tokens, np.stack([some.numpy().astype(dtype).ravel() for _, some in every]))
        # Not into memory: trainings side by side share the pages.
        return np.load(tokens, mmap_mode="r"), np.load(kinds)

    def _rows_key(self) -> str:
        """Hash of everything that the rows depend on."""
        recipe = self._recipe
        stages = [
            {"steps": stage["steps"], "lessons": dict(stage["lessons"])}
            | {key: stage[key] for key in ("length",) if key in stage}
            for stage in recipe.stages
        ]
        said = json.dumps([stages, recipe.batch, recipe.length, recipe.seed, self._tokenizer.fingerprint])
        if self._needs_answers:
            said += f" answers {recipe.packing}"
        texts = hash_documents(document for corpus in self._corpora for document in corpus.documents())
        return hashlib.sha256(f"{said} {texts}".encode()).hexdigest()[:16]


def _write_array(file: Path, values: NDArray[Any]) -> None:
    buffer = io.BytesIO()
    np.save(buffer, values)
    write_bytes(file, buffer.getvalue())
