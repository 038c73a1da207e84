"""A tokenizer that went through a GGUF file cuts texts as the one that it was made of."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import models, pre_tokenizers, trainers

from lexbench.checkpoints.tokenizer import load_tokenizer
from lexbench.parts.gguf.tokenizer import PRE_TOKENIZER_CUTS, settle_tokenizer

gguf = pytest.importorskip("gguf")

TEXT = "a  1234 HelloWorld's x_y\n\n  b"
BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
ONE_BY_ONE = {"type": "Digits", "individual_digits": True}
OF_FALCON: list[dict[str, Any]] = [
    {"type": "Punctuation", "behavior": "Contiguous"},
    BYTES,
    {"type": "Digits", "individual_digits": False},
    {"type": "Split", "pattern": {"Regex": "[0-9][0-9][0-9]"}, "behavior": "Isolated", "invert": False},
]
OF_LLAMA3 = {
    "type": "Split",
    "pattern": {
        "Regex": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+"
    },
    "behavior": "Isolated",
    "invert": False,
}
PUBLISHED: dict[str, list[dict[str, Any]]] = {
    "gpt-2": [BYTES],
    "smollm": [ONE_BY_ONE, BYTES],
    "starcoder": [ONE_BY_ONE, BYTES],
    "command-r": [ONE_BY_ONE, BYTES],
    "falcon": OF_FALCON,
    "llama-bpe": [OF_LLAMA3, {**BYTES, "use_regex": False}],
}
"""Pre-tokenizers, as in tokenizer.json of one model each: GPT-2, SmolLM2, StarCoder, Command R, Falcon, Llama 3."""


def tokenizer_of(steps: list[dict[str, Any]]) -> tokenizers.Tokenizer:
    """A byte-level BPE tokenizer trained on texts with words, numbers, tables and blanks."""
    made = tokenizers.Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel()
    page = json.loads(made.to_str())
    page["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": steps}
    made = tokenizers.Tokenizer.from_str(json.dumps(page))
    rows = [
        f"  {place} apples | {place * 37 % 1000}.{place} pears,  Tom's {'  ' * (place % 4)}x_{place}"
        for place in range(400)
    ]
    trainer = trainers.BpeTrainer(
        vocab_size=700,
        special_tokens=["<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(rows, trainer)
    return made


def through_gguf(
    tokenizer: tokenizers.Tokenizer, file: Path, rule: str | None, more: Callable[[Any], None] = lambda writer: None
) -> Any:
    """The tokenizer as transformers reads it from a GGUF file, with its defaults settled."""
    from transformers import AutoTokenizer

    writer = gguf.GGUFWriter(file, "llama")
    writer.add_context_length(64)
    writer.add_embedding_length(32)
    writer.add_block_count(1)
    writer.add_feed_forward_length(32)
    writer.add_head_count(1)
    writer.add_layer_norm_rms_eps(1e-5)
    page = json.loads(tokenizer.to_str())["model"]
    writer.add_tokenizer_model("gpt2")
    if rule:
        writer.add_tokenizer_pre(rule)
    writer.add_token_list(sorted(page["vocab"], key=page["vocab"].__getitem__))
    writer.add_token_types([3, 3] + [1] * (len(page["vocab"]) - 2))
    writer.add_token_merges([each if isinstance(each, str) else " ".join(each) for each in page["merges"]])
    more(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    read = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    fields = gguf.GGUFReader(file).fields
    settle_tokenizer(read, {key.removeprefix("tokenizer.ggml."): each.contents() for key, each in fields.items()})
    return read


def _ids(writer: Any) -> None:
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)


@pytest.mark.everyday("smollm", "llama-bpe")
@pytest.mark.parametrize("rule", PUBLISHED)
def test_a_trained_tokenizer_comes_back_from_a_file(rule: str, tmp_path: Path) -> None:
    known = tokenizer_of(PUBLISHED[rule])
    ours = through_gguf(known, tmp_path / "made.gguf", rule, _ids).backend_tokenizer
    texts = [
        TEXT,
        "  12 apples",
        "| 3 |  456.78 | x_9 |\n" * 3,
        "don't  DON'T",
        "\t\tnaive caf\u00e9 \u0663\u0664 \u00bd \u7b2c12\u7ae0",
        "   ",
    ]
    for text in texts:
        assert ours.encode(text, add_special_tokens=False).ids == known.encode(text, add_special_tokens=False).ids, text


@pytest.mark.parametrize(
    ("rules", "pieces"),
    [
        ("gpt-2 olmo mpt exaone4", "a|_|_1234|_HelloWorld|'s|_x|-|y|//_|_b"),
        ("smollm starcoder refact command-r exaone codeshell minerva-7b", "a|__|1|2|3|4|_HelloWorld|'s|_x|-|y|//_|_b"),
        ("falcon", "a|_|_|123|4|_HelloWorld|'|s|_x|-|y|//_|_b"),
        ("llama-bpe smaug-bpe dbrx", "a|_|_|123|4|_HelloWorld|'s|_x|-y|//|_|_b"),
        ("qwen2 qwen35 stablelm2 seed-coder", "a|_|_|1|2|3|4|_HelloWorld|'s|_x|-y|//|_|_b"),
        ("tekken", "a|_|_|1|2|3|4|_Hello|World|'s|_x|-y|//|_|_b"),
        ("gpt-4o", "a|_|_|123|4|_Hello|World's|_x|-y|//|_|_b"),
        ("deepseek-v3", "a|__|123|4|_HelloWorld|'s|_x|-y|//|_|_b"),
        ("deepseek-coder", "a|__|1|2|3|4|_HelloWorld|'|s|_x|-|y|/|/|_|_b"),
        ("bloom", "a|_|_1234|_HelloWorld's|_x-y|//_|_b"),
        ("viking", "a|_|_|1|2|3|4|_HelloWorld's|_x-y|//_|_b"),
    ],
)
def test_each_rule_cuts_a_text_by_hand(rules: str, pieces: str) -> None:
    spelled = pieces.translate({ord("_"): "\u0120", ord("/"): "\u010a", ord("-"): "_"})
    for rule in rules.split():
        assert [piece for piece, _ in PRE_TOKENIZER_CUTS[rule]().pre_tokenize_str(TEXT)] == spelled.split("|"), rule


def test_a_piece_that_is_a_token_is_taken_whole_where_the_rule_says_so(tmp_path: Path) -> None:
    page = json.loads(tokenizer_of(PUBLISHED["llama-bpe"]).to_str())
    page["model"]["vocab"]["\u0120zebra"] = len(page["model"]["vocab"])  # no merges lead to it
    known = tokenizers.Tokenizer.from_str(json.dumps(page))
    whole = through_gguf(known, tmp_path / "a.gguf", "llama-bpe", _ids).backend_tokenizer
    merged = through_gguf(known, tmp_path / "b.gguf", "smaug-bpe", _ids).backend_tokenizer
    assert whole.encode(" zebra", add_special_tokens=False).tokens == ["\u0120zebra"]
    assert len(merged.encode(" zebra", add_special_tokens=False).tokens) > 1


def test_bos_begins_texts_where_the_rule_or_the_file_says_so(tmp_path: Path) -> None:
    known = tokenizer_of(PUBLISHED["llama-bpe"])

    def without(writer: Any) -> None:
        _ids(writer)
        writer.add_add_bos_token(False)

    for rule, more, begins in (("llama-bpe", _ids, (0,)), ("llama-bpe", without, ()), ("smollm", _ids, ())):
        through_gguf(known, tmp_path / "made.gguf", rule, more).save_pretrained(tmp_path / "made")
        assert load_tokenizer(tmp_path / "made").prefix == begins, (rule, begins)


def _no_end(writer: Any) -> None:
    writer.add_bos_token_id(0)


def _begins_with_nothing(writer: Any) -> None:
    writer.add_eos_token_id(1)
    writer.add_add_bos_token(True)


@pytest.mark.everyday("superbpe", "smollm-_no_end")
@pytest.mark.parametrize(
    ("rule", "more", "said"),
    [
        ("superbpe", _ids, r"names no rule \(tokenizer.ggml.pre\) .*, or an unknown one: superbpe"),
        ("default", _ids, "unknown one: default"),
        (None, _ids, "unknown one: None"),
        ("smollm", _no_end, r"does not state which token ends a text \(tokenizer.ggml.eos_token_id\)"),
        ("smollm", _begins_with_nothing, r"begins every text with BOS and does not state which token it is"),
    ],
)
def test_what_neither_the_file_nor_its_rule_says_is_refused(
    rule: str | None, more: Callable[[Any], None], said: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=said):
        through_gguf(tokenizer_of(PUBLISHED["gpt-2"]), tmp_path / "made.gguf", rule, more)
