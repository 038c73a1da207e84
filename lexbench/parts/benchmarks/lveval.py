"""LV-Eval: the same questions at five lengths of words or Chinese characters (Yuan et al., arXiv 2402.05136)."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lexbench.core.errors import ConfigError
from lexbench.parts.benchmarks.base import Benchmark, BenchmarkExample, BenchmarkRequest
from lexbench.parts.benchmarks.copy import assigned_literals, checked_field, read_data_rows
from lexbench.taskkit.longbench.metrics import bare_words, qa_f1, qa_f1_zh, rouge_l_zh_without
from lexbench.taskkit.matching import normalise_as_squad

MIN_KEYWORD_RECALL, MIN_KEYWORD_RECALL_CHINESE = 0.2, 0.4
"""Least recall of the answer's keywords."""
LENGTH_CLASSES = ("16k", "32k", "64k", "128k", "256k")
CHINESE_PARTS = ("multifieldqa_zh_mixup", "factrecall_zh", "cmrc_mixup", "lic_mixup", "dureader_mixup")


def score(facts: Mapping[str, Any], text: str, scorer: str) -> float:
    """F1 of the words; 0 where less than a fifth (Chinese: two fifths) of the keywords' words are written.

    Chinese words are jieba's. factrecall has no keywords. dureader has ROUGE-L of the words without stop words.

    official: the first answer only; stop words do not count as written, but count among the keywords, so some answers
    are out of reach. repaired: the best of the answers; stop words count for neither.
    """
    answers = facts["answers"][:1] if scorer == "official" else facts["answers"]
    return max(_score_against_answer(facts, text, answer, scorer) for answer in answers)


def _score_against_answer(facts: Mapping[str, Any], text: str, answer: str, scorer: str) -> float:
    metric, ignored = facts.get("metric", "f1"), set(facts["stop_words"])
    if metric == "rouge_zh":
        return rouge_l_zh_without(text, answer, ignored)
    chinese = metric != "f1"
    # Chinese sets without keywords take the answer itself.
    keywords = facts["answer_keywords"] or (answer if metric == "f1_zh" else "")
    wanted, written = (bare_words(each) if chinese else normalise_as_squad(each).split() for each in (keywords, text))
    if wanted and _word_recall(written, wanted, ignored, scorer) < (
        MIN_KEYWORD_RECALL_CHINESE if chinese else MIN_KEYWORD_RECALL
    ):
        return 0.0
    return (qa_f1_zh if chinese else qa_f1)(text, answer)


def _word_recall(written: Sequence[str], wanted: Sequence[str], ignored: set[str], scorer: str) -> float:
    common = Counter(written) & Counter(wanted)
    # Stop words are no recall; officially they still count in the denominator.
    said = sum(n for word, n in common.items() if word not in ignored)
    of = len(wanted) if scorer == "official" else sum(word not in ignored for word in wanted)
    return said / of if of else 1.0


def _examples(asked: BenchmarkRequest) -> Iterator[BenchmarkExample]:
    assert asked.prompts is not None, "the task has checked it"
    stated, rules = assigned_literals(asked.prompts), assigned_literals(asked.prompts.with_name("metrics.py"))
    try:
        wording, room = stated["DATASET_PROMPT"][asked.part], int(stated["DATASET_MAXGEN"][asked.part])
        stop_words = rules["ABANDON_WORDS_ZH" if asked.part in CHINESE_PARTS else "ABANDON_WORDS_EN"]
        before, between, after = _split_wording(wording)
    except (KeyError, ValueError):
        raise ConfigError(
            f"prompts {asked.prompts} must state DATASET_PROMPT and DATASET_MAXGEN of {asked.part}, and metrics.py "
            "beside it ABANDON_WORDS_EN and _ZH: give the official config.py"
        ) from None
    plain = "plain_zh" if asked.part.startswith("factrecall") else "rouge_zh" if "dureader" in asked.part else "f1_zh"
    metric = plain if asked.part in CHINESE_PARTS else "f1"
    for file in asked.files.places:
        class_ = file.stem.rpartition("_")[2]
        for number, row in enumerate(read_data_rows(file)):
            answers, question = checked_field(row, "answers", list, file), checked_field(row, "input", str, file)
            # factrecall scores plain F1; its keywords are left out, as officially
            keywords = None if asked.part.startswith("factrecall") else row.get("answer_keywords")
            known = set(normalise_as_squad(keywords or "").split())
            if metric == "f1_zh":
                known = {word for text in (keywords or "", *answers) for word in bare_words(text)}
            yield BenchmarkExample(
                id=f"{asked.part}:{class_}:{number}",
                messages=[("user", f"{before}{checked_field(row, 'context', str, file)}{between}{question}{after}")],
                facts={
                    "answers": answers,
                    "answer_keywords": keywords,
                    "metric": metric,
                    "stop_words": [word for word in stop_words if word in known or metric == "rouge_zh"],
                    "class": class_,
                },
                room=room,
                answer=answers[0],
                parts=(f"official {class_}",),
                cluster=f"{asked.part}:{number}",
            )


def _split_wording(wording: str) -> tuple[str, str, str]:
    before, found, rest = wording.partition("{context}")
    between, also, after = rest.partition("{input}")
    if not (found and also):
        raise ConfigError
    return before, between, after


LVEVAL = Benchmark(
    title="LV-Eval (Yuan et al., arXiv 2402.05136)",
    parts=(
        *("hotpotwikiqa_mixup", "loogle_SD_mixup", "loogle_CR_mixup", "loogle_MIR_mixup"),
        *("multifieldqa_en_mixup", "factrecall_en"),
        *CHINESE_PARTS,
    ),
    files=lambda part, axis: (f"{part}_{axis or '*k'}.jsonl", f"**/{part}_{axis or '*k'}.jsonl"),
    examples=_examples,
    metric="f1",
    score=score,
    prompts="config.py of infinigence/LVEval",
    cuts_middle=True,
    axes=", ".join(LENGTH_CLASSES),
)
