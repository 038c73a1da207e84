"""Tokenizers of GGUF files: a file names the rule by which texts are cut before byte-level BPE, and spells none of it.

Meanings of the names: the tokenizer.json of the models that llama.cpp's converter gives them for.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import tokenizers
from tokenizers import Regex, decoders, normalizers, pre_tokenizers

from lexbench.core.errors import ConfigError

Cut = Callable[[], pre_tokenizers.PreTokenizer]


def _by_gpt2() -> pre_tokenizers.PreTokenizer:
    """GPT-2's own pattern."""
    return pre_tokenizers.ByteLevel(add_prefix_space=False)


def _by_digits() -> pre_tokenizers.PreTokenizer:
    """Each digit by itself, then GPT-2's pattern (StarCoder's tokenizer.json)."""
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _by_gpt2()])


def _by_falcon() -> pre_tokenizers.PreTokenizer:
    """Punctuation, then GPT-2's pattern, then digits in threes (Falcon's tokenizer.json)."""
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Punctuation("contiguous"),
            _by_gpt2(),
            pre_tokenizers.Digits(individual_digits=False),
            pre_tokenizers.Split(Regex("[0-9][0-9][0-9]"), "isolated"),
        ]
    )


def _by_patterns(*patterns: str) -> pre_tokenizers.PreTokenizer:
    """Matches of each pattern in turn, and what is between them."""
    cuts = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns]
    return pre_tokenizers.Sequence([*cuts, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


ENGLISH_SHORT_FORMS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
"""English short forms behind an apostrophe."""
BLANKS_PATTERN = r"\s*[\r\n]+|\s+(?!\S)|\s+"
SIGNS_PATTERN = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
LETTERS_PATTERN = r"[^\r\n\p{L}\p{N}]?\p{L}+"
SMALL_LETTER_PATTERN, CAPITAL_LETTER_PATTERN = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]", r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
CASED_WORD_PATTERNS = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{CAPITAL_LETTER_PATTERN}*{SMALL_LETTER_PATTERN}+",
    rf"[^\r\n\p{{L}}\p{{N}}]?{CAPITAL_LETTER_PATTERN}+{SMALL_LETTER_PATTERN}*",
)
"""Words that may begin with capitals, and words of capitals."""
HAN_AND_KANA_PATTERN = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
ASCII_SIGNS = r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]"
BLOOM = " ?[^(\\s|[.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c])]+"

LLAMA3 = f"{ENGLISH_SHORT_FORMS}|{LETTERS_PATTERN}|\\p{{N}}{{1,3}}|{SIGNS_PATTERN}|{BLANKS_PATTERN}"
QWEN2 = f"{ENGLISH_SHORT_FORMS}|{LETTERS_PATTERN}|\\p{{N}}|{SIGNS_PATTERN}|{BLANKS_PATTERN}"
QWEN35 = (
    rf"{ENGLISH_SHORT_FORMS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|"
    rf"{BLANKS_PATTERN}"
)
TEKKEN = rf"{CASED_WORD_PATTERNS[0]}|{CASED_WORD_PATTERNS[1]}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{BLANKS_PATTERN}"
GPT4O = (
    rf"{CASED_WORD_PATTERNS[0]}{ENGLISH_SHORT_FORMS}?|{CASED_WORD_PATTERNS[1]}{ENGLISH_SHORT_FORMS}?|\p{{N}}{{1,3}}|"
    rf" ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{BLANKS_PATTERN}"
)
SEED_CODER = rf"{ENGLISH_SHORT_FORMS}|{LETTERS_PATTERN}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{BLANKS_PATTERN}"
DEEPSEEK3 = (
    r"\p{N}{1,3}",
    HAN_AND_KANA_PATTERN,
    rf"{ASCII_SIGNS}[A-Za-z]+|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+| ?[\p{{P}}\p{{S}}]+[\r\n]*|"
    rf"{BLANKS_PATTERN}",
)
DEEPSEEK_CODER = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+", r"\p{N}")

OF_LLAMA3 = "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2"
OF_QWEN2 = "qwen2 deepseek-r1-qwen kormo f2llmv2 megrez stablelm2 hunyuan solar-open grok-2"


def _same_cut(names: str, cut: Cut) -> dict[str, Cut]:
    return dict.fromkeys(names.split(), cut)


PRE_TOKENIZER_CUTS: dict[str, Cut] = {
    **_same_cut("gpt-2 phi-2 mpt olmo jais trillion granite-docling exaone4 gigachat a.x-4.0 mellum", _by_gpt2),
    **_same_cut("smollm starcoder refact command-r codeshell exaone minerva-7b mellum2", _by_digits),
    **_same_cut("falcon", _by_falcon),
    **_same_cut(f"{OF_LLAMA3} dbrx smaug-bpe", functools.partial(_by_patterns, LLAMA3)),
    **_same_cut(OF_QWEN2, functools.partial(_by_patterns, QWEN2)),
    **_same_cut("qwen35", functools.partial(_by_patterns, QWEN35)),
    **_same_cut("tekken", functools.partial(_by_patterns, TEKKEN)),
    **_same_cut("gpt-4o llama4 kanana2 talkie minimax-m2", functools.partial(_by_patterns, GPT4O)),
    **_same_cut("seed-coder", functools.partial(_by_patterns, SEED_CODER)),
    **_same_cut("deepseek-v3 hunyuan-dense joyai-llm", functools.partial(_by_patterns, *DEEPSEEK3)),
    **_same_cut("deepseek-coder", functools.partial(_by_patterns, *DEEPSEEK_CODER)),
    **_same_cut("bloom poro-chat gpt3-finnish", functools.partial(_by_patterns, BLOOM)),
    **_same_cut("viking", functools.partial(_by_patterns, BLOOM, r"\p{N}")),
}
"""Rule by which a text is cut before byte-level BPE, by `tokenizer.ggml.pre`."""
WHOLE_TOKEN_RULES = frozenset(f"{OF_LLAMA3} tekken".split())
"""Rules that take a piece which is a token as this token, whether or not merges lead to it."""
WITH_BOS = frozenset(f"{OF_LLAMA3} tekken".split())
"""Rules under which BOS begins every text where the file does not say."""
ACCENT_COMPOSING_RULES = frozenset({"qwen2", "qwen35", "command-r", "mpt", "olmo"})
"""Rules that compose accents with their letters (NFC) before."""


def settle_tokenizer(tokenizer: Any, stated: Mapping[str, Any]) -> None:
    """Give a tokenizer that transformers has read what the file states or means, in place of transformers' defaults.

    Args:
        tokenizer: fast tokenizer of transformers.
        stated: the file's entries below `tokenizer.ggml.`.

    Raises ConfigError, naming what is unknown, where neither the file nor its rule says how texts become tokens.
    """
    backend: tokenizers.Tokenizer = tokenizer.backend_tokenizer
    rule = stated.get("pre")
    if stated["model"] == "gpt2":
        if rule not in PRE_TOKENIZER_CUTS:
            raise ConfigError(
                f"names no rule (tokenizer.ggml.pre) by which texts are cut into pieces, or an unknown one: {rule}"
            )
        backend.pre_tokenizer = PRE_TOKENIZER_CUTS[rule]()
        if rule in ACCENT_COMPOSING_RULES:
            backend.normalizer = normalizers.NFC()
        if rule in WHOLE_TOKEN_RULES:
            backend.model.ignore_merges = True
    elif stated["model"] == "llama":
        _settle_blank(backend, stated.get("add_space_prefix"))
    begins = stated.get("add_bos_token", stated["model"] == "llama" or rule in WITH_BOS)
    if begins and stated.get("bos_token_id") is None:
        raise ConfigError(
            "begins every text with BOS and does not state which token it is (tokenizer.ggml.bos_token_id)"
        )
    if begins and "add_bos_token" not in stated and stated["model"] == "gpt2":
        tokenizer.add_bos_token = True
    if stated.get("eos_token_id") is None:
        raise ConfigError("does not state which token ends a text (tokenizer.ggml.eos_token_id)")


def _settle_blank(backend: tokenizers.Tokenizer, prepends: bool | None) -> None:
    """Take the blank from the beginning of texts where a SentencePiece file states that there is none."""
    found = backend.encode("a", add_special_tokens=False).tokens[:1] != ["a"]
    if prepends is None or prepends == found:
        return
    cut = backend.pre_tokenizer
    if prepends or not isinstance(cut, pre_tokenizers.Metaspace):
        raise ConfigError(
            f"states tokenizer.ggml.add_space_prefix {prepends}, which its architecture's tokenizer is not"
        )
    cut.prepend_scheme = "never"
    blanks = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence(blanks)
