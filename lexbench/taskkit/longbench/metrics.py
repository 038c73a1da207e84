"""The official metrics of LongBench (Bai et al., arXiv 2308.14508; THUDM/LongBench metrics.py), each in [0, 1].

They keep the official oddities, because published numbers contain them; each function names its own. Only `rouge_l` and
`rouge_l_zh` are not official.
"""

import difflib
import functools
import logging
import re
import string
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import Any

from lexbench.core.errors import ConfigError
from lexbench.core.extras import import_optional
from lexbench.taskkit.matching import normalise_as_squad

CHINESE_PUNCTUATION = (
    "！？｡。＂＃＄％＆＇（）＊＋，－／：；＜＝＞＠［＼］＾＿｀｛｜｝～｟｠｢｣､、〃"
    "》「」『』【】〔〕〖〗〘〙〚〛〜〝〞〟〰〾〿–—‘’‛“”„‟…‧﹏."
)
"""Punctuation in Chinese answers, besides ASCII's; the opening 《 is missing."""

MAX_LCS_STEPS = 990
"""Most steps through an LCS table in the official scorer, which recurses once per step: Python's limit of 1000, minus
nine calls around them and a last one. Beyond, it fails and scores 0. The Chinese metric has one more outer call."""


def qa_f1(prediction: str, answer: str) -> float:
    """F1 of the common words, normalised as in SQuAD."""
    return _f1(normalise_as_squad(prediction).split(), normalise_as_squad(answer).split())


def qa_f1_zh(prediction: str, answer: str) -> float:
    """F1 of the common Chinese words, without punctuation and blanks."""
    return _f1(bare_words(prediction), bare_words(answer))


def rouge_l_official(prediction: str, answer: str) -> float:
    """ROUGE-L, F1, of the package `rouge` 1.0.1.

        f = 2 p r / (p + r + 1e-8), p = |u| / |distinct written words|, r = |u| / |distinct words of the answer|

    u is the set of words on the longest common subsequence of any written sentence and any sentence of the answer.
    Every full stop ends a sentence, also the one in 3.5; blanks separate words. If a text has no sentence, or a pair of
    sentences needs more than `MAX_LCS_STEPS` steps, the official scorer fails and scores 0.
    """
    return _rouge_l(prediction, answer, MAX_LCS_STEPS)


def rouge_l_zh_official(prediction: str, answer: str) -> float:
    """`rouge_l_official` over Chinese words; a Chinese text is one sentence, as its full stop is another character."""
    return _rouge_l(" ".join(chinese_words(prediction)), " ".join(chinese_words(answer)), MAX_LCS_STEPS - 1)


def rouge_l_zh_without(prediction: str, answer: str, ignored: Collection[str]) -> float:
    """`rouge_l_zh_official` without some words, punctuation and case, as LV-Eval has it."""

    def kept(text: str) -> str:
        words = map(_bare, chinese_words(" ".join(chinese_words(text))))
        return " ".join(word for word in words if word not in ignored)

    return _rouge_l(kept(prediction), kept(answer), MAX_LCS_STEPS - 1)


def rouge_l(prediction: str, answer: str) -> float:
    """ROUGE-L, F1, of the package `rouge-score`: without stemming, over the whole text."""
    return float(_rouge_scorer(chinese=False).score(answer, prediction)["rougeL"].fmeasure)


def rouge_l_stemmed(prediction: str, answer: str) -> float:
    """ROUGE-L, F1, of the package `rouge-score`, of Porter's stems."""
    return float(_rouge_scorer(chinese=False, stemmed=True).score(answer, prediction)["rougeL"].fmeasure)


def rouge_l_zh(prediction: str, answer: str) -> float:
    """ROUGE-L as in `rouge_l`, over Chinese words, which `rouge-score` alone does not split."""
    return float(_rouge_scorer(chinese=True).score(answer, prediction)["rougeL"].fmeasure)


def classification(prediction: str, answer: str, classes: Sequence[str]) -> float:
    """1 / number of named classes, if the right one is among them.

    A class whose name is contained in the right one's should not count. But the code removes it from the list during
    the iteration, so the class behind a removed one is skipped and does count.
    """
    named = [name for name in classes if name in prediction]
    # Over the list itself while it shrinks: the official fault that the docstring names.
    for name in named:
        if name in answer and name != answer:
            named.remove(name)
    return 1 / len(named) if answer in named else 0.0


def retrieval(prediction: str, answer: str) -> float:
    """Share of the written numbers that equal the right paragraph's; the answer has the form `Paragraph 15`."""
    return count(prediction, _number(r"Paragraph (\d+)", answer))


def retrieval_zh(prediction: str, answer: str) -> float:
    """Score as in `retrieval`, for answers of the form `段落15`."""
    return count(prediction, _number(r"段落(\d+)", answer))


def count(prediction: str, answer: str) -> float:
    """Share of the written numbers that equal the answer as strings: 08 is not 8, and 3.8 is a 3 and an 8."""
    numbers = re.findall(r"\d+", prediction)
    return numbers.count(answer) / len(numbers) if numbers else 0.0


def code_sim_difflib(prediction: str, answer: str) -> float:
    """Similarity of the first line of code, in hundredths: fuzzywuzzy's ratio without python-Levenshtein.

    The first line without `#`, `//` and backtick counts as code, so an answer that contains one is never reached.
    """
    return _code_sim(prediction, answer, lambda line: difflib.SequenceMatcher(None, line, answer).ratio())


def code_sim_levenshtein(prediction: str, answer: str) -> float:
    """Similarity as in `code_sim_difflib`, with python-Levenshtein: 2 |longest common subsequence| / |both lines|."""

    def ratio(line: str) -> float:
        return 2 * _common_rows(line, answer)[-1].bit_count() / (len(line) + len(answer))

    return _code_sim(prediction, answer, ratio)


@functools.lru_cache(maxsize=4096)
def chinese_words(text: str) -> tuple[str, ...]:
    """Words of a Chinese text, by jieba in its exact mode."""
    jieba = import_optional("jieba", "longbench", "LongBench in Chinese")
    logging.getLogger("jieba").setLevel(logging.WARNING)  # hides that it loads its dictionary
    return tuple(jieba.cut(text, cut_all=False))


def bare_words(text: str) -> list[str]:
    """Chinese words in lower case, without punctuation and blanks, and without words of nothing else."""
    return [bare for word in chinese_words(text) if (bare := _bare(word))]


def _bare(word: str) -> str:
    ignored = {*string.punctuation, *CHINESE_PUNCTUATION}
    return "".join(c for c in word.lower() if c not in ignored and not c.isspace())


def _f1(written: Sequence[str], expected: Sequence[str]) -> float:
    same = sum((Counter(written) & Counter(expected)).values())
    if same == 0:
        return 0.0
    precision, recall = same / len(written), same / len(expected)
    return 2 * precision * recall / (precision + recall)


def _number(pattern: str, answer: str) -> str:
    found = re.search(pattern, answer)
    if found is None:
        raise ConfigError(f"answer {answer!r} must name a paragraph: take the official answers")
    return found[1]


def _code_sim(prediction: str, answer: str, ratio: Callable[[str], float]) -> float:
    lines = prediction.lstrip("\n").split("\n")
    line = next((each for each in lines if not any(mark in each for mark in ("`", "#", "//"))), "")
    if line == answer:
        return 1.0
    # fuzz.ratio is a whole number of hundredths.
    return round(100 * ratio(line)) / 100 if line and answer else 0.0


def _rouge_l(prediction: str, answer: str, deepest: int) -> float:
    written, expected = _sentences(prediction), _sentences(answer)
    common: set[str] = set()
    for sentence in expected:
        for other in written:
            words, steps = _common_words(sentence, other)
            # Where the official recursion ends in an error, the whole prediction scores 0.
            if steps > deepest:
                return 0.0
            common |= words
    if not common:
        return 0.0
    precision, recall = (len(common) / len({word for words in each for word in words}) for each in (written, expected))
    # The package's own 1e-8: a perfect summary has 0.999999995.
    return 2.0 * ((precision * recall) / (precision + recall + 1e-8))


def _sentences(text: str) -> list[list[str]]:
    """Words of each sentence; a blank sentence has one empty word."""
    return [" ".join(each.split()).split(" ") for each in text.split(".") if each]


def _common_words(x: Sequence[str], y: Sequence[str]) -> tuple[set[str], int]:
    """Words on the package's longest common subsequence, and its steps to the edge of the table."""
    rows = _common_rows(x, y)
    words = set()
    i, j, steps = len(x), len(y), 0
    while i and j:
        if x[i - 1] == y[j - 1]:
            i, j = i - 1, j - 1
            words.add(x[i])
        elif rows[i] >> (j - 1) & 1:  # y[j - 1] is in it, not x[i - 1]
            i -= 1
        else:
            j -= 1
        steps += 1
    return words, steps


def _common_rows(x: Sequence[str], y: Sequence[str]) -> list[int]:
    """[|x| + 1] rows of bits: bit j - 1 of row i is what y[j - 1] adds to the longest common subsequence with x[:i].

    Bit by bit in one addition a row (Hyyrö, "Bit-parallel LCS-length computation revisited", 2004).
    """
    places: dict[str, int] = {}
    for place, each in enumerate(y):
        places[each] = places.get(each, 0) | 1 << place
    whole = (1 << len(y)) - 1
    added = [0]
    for each in x:
        # Row by row, with carries running along the bits that are not in the subsequence yet.
        kept = whole ^ added[-1]
        same = kept & places.get(each, 0)
        added.append(whole ^ ((kept + same | kept ^ same) & whole))
    return added


@functools.cache
def _rouge_scorer(chinese: bool, stemmed: bool = False) -> Any:
    from rouge_score.rouge_scorer import RougeScorer
    from rouge_score.tokenizers import Tokenizer

    class ChineseWords(Tokenizer):  # type: ignore[misc]
        def tokenize(self, text: str) -> list[str]:
            return [word for word in chinese_words(text) if word.strip()]

    return RougeScorer(["rougeL"], use_stemmer=stemmed, tokenizer=ChineseWords() if chinese else None)
