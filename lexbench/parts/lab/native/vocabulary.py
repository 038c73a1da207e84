"""Learn the tokenizer of a training from its texts and lessons."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, processors, trainers

from lexbench.checkpoints.tokenizer import FastTokenizer, load_tokenizer
from lexbench.core.errors import ConfigError
from lexbench.core.files import write_text
from lexbench.core.task import Encoded, Frame, Tokens
from lexbench.corpora import Corpus
from lexbench.parts.lab.native.lessons import LESSONS_WITHOUT_WORDS, gather_lessons
from lexbench.parts.lab.native.recipe import Recipe

SPECIAL_TOKENS = ("<s>", "</s>")
"""BOS and EOS: the first two tokens."""


def learn_tokenizer(recipe: Recipe, corpora: Sequence[Corpus], folder: Path) -> FastTokenizer:
    """Learn a byte-level BPE from the corpora and write it to the folder; every digit is a token.

    Raises ConfigError where the vocabulary is too small for all bytes.
    """
    size = recipe.sizes().vocabulary
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    if size < (least := len(alphabet) + len(SPECIAL_TOKENS)):
        raise ConfigError(f"recipe.vocabulary must be at least {least}, every byte is a token, got {size}: raise it")
    bpe = tokenizers.Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=list(SPECIAL_TOKENS), initial_alphabet=alphabet, show_progress=False
    )
    bpe.train_from_iterator(_training_texts(recipe, corpora), trainer)
    # So that other programs begin a text with BOS, too.
    bpe.post_processor = processors.TemplateProcessing(
        single=f"{SPECIAL_TOKENS[0]} $A", special_tokens=[(SPECIAL_TOKENS[0], 0)]
    )
    settings: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": SPECIAL_TOKENS[0],
        "eos_token": SPECIAL_TOKENS[1],
    }
    settings |= {"add_bos_token": True, "model_max_length": recipe.trained_length}
    write_text(folder / "tokenizer_config.json", json.dumps(settings, indent=1) + "\n")
    write_text(folder / "tokenizer.json", bpe.to_str(pretty=False) + "\n")
    return load_tokenizer(folder)


def _training_texts(recipe: Recipe, corpora: Sequence[Corpus]) -> Iterator[str]:
    """The texts of the corpora, and 200 examples of each lesson, so that their words become tokens."""
    yield from (document.text for corpus in corpora for document in corpus.documents())
    spelled = _CharacterTokenizer()
    rng = np.random.default_rng(recipe.seed)
    for lesson in gather_lessons(
        [kind for kind in recipe.kinds if kind not in LESSONS_WITHOUT_WORDS], [], spelled, LESSON_EXAMPLE_CHARACTERS
    ).values():
        yield from (spelled.decode(lesson(rng, spelled, LESSON_EXAMPLE_CHARACTERS)) for _ in range(200))


LESSON_EXAMPLE_CHARACTERS = 2000
"""Length of a lesson's example for the tokenizer, in characters."""


class _CharacterTokenizer:
    """A tokenizer of characters, to write lessons as text before the real tokenizer exists."""

    prefix: tuple[int, ...] = ()
    bos = None
    vocabulary = 128

    def encode(self, text: str) -> Encoded:
        return Encoded(ids=np.array([ord(c) for c in text], np.int64), starts=np.arange(len(text)), text=text)

    def decode(self, ids: Sequence[int] | Tokens) -> str:
        return "".join(chr(i) for i in ids)

    def frame(self, chat: bool) -> Frame:
        return Frame(np.empty(0, np.int64), np.empty(0, np.int64))
