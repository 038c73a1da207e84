"""Tokenizers: every byte and word belongs to one token, and BOS is where the model wants it."""

import json
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from tokenizers import models, processors

from lexbench.tokenizer import FastTokenizer, load_tokenizer

TEXTS = [
    "One day, she saw a big red ball.\n\n  It was  round.",
    " leading and trailing \n",
    "naïve façade – 日本語の文章 and 🙂🙂🏽 in one",
    "e\u0301 is two code points, é one; \u00a0 is no ASCII space",
    "12345 + 67 = 12412\tdef f(x):\n    return x",
    "a",
    " ",
]


@pytest.fixture(params=["ours", "stories260K"])
def each(request: pytest.FixtureRequest) -> FastTokenizer:
    """A byte-level one, and one with sentencepiece's spaces and single bytes for what it does not know."""
    if request.param == "ours":
        found: FastTokenizer = request.getfixturevalue("tokenizer")
        return found
    return load_tokenizer(request.getfixturevalue("shared") / "stories260K-hf")


@pytest.mark.parametrize("text", TEXTS)
def test_units_of_any_division_add_up_to_the_text(each: FastTokenizer, text: str) -> None:
    encoded = each.encode(text)
    tokens = len(encoded.ids)
    rng = np.random.default_rng(0)
    assert encoded.units(0, tokens) == (len(text.encode()), len(text.split()))
    for parts in [
        range(tokens + 1),
        *(sorted({0, tokens, *rng.integers(0, tokens + 1, 4).tolist()}) for _ in range(9)),
    ]:
        units = [encoded.units(first, last) for first, last in zip(parts, list(parts)[1:], strict=False)]
        assert sum(count for count, _ in units) == len(text.encode())
        assert sum(words for _, words in units) == len(text.split())


def test_a_characters_bytes_belong_to_its_first_piece(each: FastTokenizer) -> None:
    """Neither knows these characters, so each of their bytes is a token."""
    encoded = each.encode("x語語")
    pieces = [encoded.units(place, place + 1)[0] for place in range(len(encoded.ids))]
    assert pieces[-6:] == [3, 0, 0, 3, 0, 0]


def test_places_never_go_back() -> None:
    """Pieces that share a character: `x` with the first byte of é, its second byte with `y`."""
    symbols = ["x", "y", "Ã", "©", "xÃ", "©y"]
    bpe = tokenizers.Tokenizer(
        models.BPE(vocab={symbol: place for place, symbol in enumerate(symbols)}, merges=[("x", "Ã"), ("©", "y")])
    )
    bpe.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    encoded = FastTokenizer(bpe, bos=None, begins_with_bos=False).encode("xéy")
    assert encoded.ids.tolist() == [4, 5]
    assert [encoded.units(0, 1), encoded.units(1, 2)] == [(3, 1), (1, 0)]


def test_stories260k_gives_its_known_tokens(shared: Path) -> None:
    """llama2.c's tokenizer: BOS 1 begins, 512 ids; decoding gives the text back."""
    stories = load_tokenizer(shared / "stories260K-hf")
    assert (stories.bos, stories.prefix, stories.vocabulary) == (1, (1,), 512)
    text = "Once upon a time, there was a little girl named Lily."
    assert stories.decode([1, *stories.encode(text).ids]) == text
    assert stories.encode(text).ids[0] == 403


def test_a_special_token_that_a_text_spells_out_is_text(each: FastTokenizer) -> None:
    encoded = each.encode("before <s> after")
    assert each.bos not in encoded.ids
    assert each.decode(encoded.ids) == "before <s> after"


def test_nothing_is_cut_or_padded_by_habits_of_the_file(tokenizer: FastTokenizer) -> None:
    habits = tokenizers.Tokenizer.from_str(tokenizer._tokenizer.to_str())
    habits.enable_truncation(4)
    habits.enable_padding(length=64)
    assert FastTokenizer(habits, 0, True).encode(TEXTS[0]).ids.tolist() == tokenizer.encode(TEXTS[0]).ids.tolist()


def folder(tmp_path: Path, tokenizer: FastTokenizer, adds_bos: bool, **settings: object) -> Path:
    saved = tokenizers.Tokenizer.from_str(tokenizer._tokenizer.to_str())
    if adds_bos:
        saved.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    saved.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    return tmp_path


@pytest.mark.parametrize(
    ("adds_bos", "settings", "asked", "prefix"),
    [
        (True, {"bos_token": "<s>"}, None, (0,)),
        (False, {"bos_token": "<s>"}, None, ()),
        (False, {"bos_token": {"content": "<s>"}, "add_bos_token": True}, None, (0,)),
        (True, {"bos_token": "<s>", "add_bos_token": False}, None, ()),
        (True, {"bos_token": "<s>", "add_bos_token": None}, None, (0,)),
        (False, {}, None, ()),
        (True, {"bos_token": "<s>"}, False, ()),
        (False, {"bos_token": "<s>"}, True, (0,)),
    ],
)
def test_bos_begins_contexts_as_stated_or_as_the_tokenizer_does(
    tmp_path: Path,
    tokenizer: FastTokenizer,
    adds_bos: bool,
    settings: dict[str, object],
    asked: bool | None,
    prefix: tuple[int, ...],
) -> None:
    loaded = load_tokenizer(folder(tmp_path, tokenizer, adds_bos, **settings), asked)
    assert loaded.prefix == prefix
    assert loaded.encode("a b").ids.tolist() == tokenizer.encode("a b").ids.tolist()


def test_bos_without_a_token_is_an_error(tmp_path: Path, tokenizer: FastTokenizer) -> None:
    with pytest.raises(ValueError, match=r"no BOS token: set model.bos=false"):
        load_tokenizer(folder(tmp_path, tokenizer, adds_bos=False), bos=True)


def test_a_folder_without_a_tokenizer_is_an_error_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"cannot be read .*: give a folder with tokenizer.json") as error:
        load_tokenizer(tmp_path)
    assert "\n" not in str(error.value)
