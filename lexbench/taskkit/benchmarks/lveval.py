"""LV-Eval's English sets: the same questions at five lengths of words (Yuan et al., arXiv 2402.05136)."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from lexbench.taskkit.benchmarks.base import Asked, Benchmark, Example
from lexbench.taskkit.benchmarks.copy import literals, rows, value
from lexbench.taskkit.longbench.metrics import qa_f1
from lexbench.taskkit.matching import normalised

LEAST = 0.2
"""Least recall of the answer's keywords."""
CLASSES = ("16k", "32k", "64k", "128k", "256k")


def score(facts: Mapping[str, Any], text: str, scorer: str) -> float:
    """F1 of the words, the best of the answers; 0 where fewer than a fifth of the keywords' words are written.

    official: stop words do not count as written, but count among the keywords, so some answers are out of reach.
    repaired: they count for neither.
    """
    keywords = normalised(facts["answer_keywords"] or "").split()
    ignored = set(facts["stop_words"])
    if keywords:
        common = Counter(normalised(text).split()) & Counter(keywords)
        written = sum(n for word, n in common.items() if word not in ignored)
        wanted = len(keywords) if scorer == "official" else sum(word not in ignored for word in keywords)
        if wanted and written / wanted < LEAST:
            return 0.0
    return max(qa_f1(text, answer) for answer in facts["answers"])


def _examples(asked: Asked) -> Iterator[Example]:
    assert asked.prompts is not None, "the task has checked it"
    stated, rules = literals(asked.prompts), literals(asked.prompts.with_name("metrics.py"))
    try:
        wording, room = stated["DATASET_PROMPT"][asked.part], int(stated["DATASET_MAXGEN"][asked.part])
        stop_words = rules["ABANDON_WORDS_EN"]
        before, between, after = _split(wording)
    except (KeyError, ValueError):
        raise ValueError(
            f"prompts {asked.prompts} must state DATASET_PROMPT and DATASET_MAXGEN of {asked.part}, and metrics.py "
            "beside it ABANDON_WORDS_EN: give the official config.py"
        ) from None
    for file in asked.files.places:
        class_ = file.stem.rpartition("_")[2]
        for number, row in enumerate(rows(file)):
            answers, question = value(row, "answers", list, file), value(row, "input", str, file)
            # factrecall scores plain F1; its keywords are left out, as officially
            keywords = None if asked.part.startswith("factrecall") else row.get("answer_keywords")
            known = set(normalised(keywords or "").split())
            yield Example(
                id=f"{asked.part}:{class_}:{number}",
                messages=[("user", f"{before}{value(row, 'context', str, file)}{between}{question}{after}")],
                facts={
                    "answers": answers,
                    "answer_keywords": keywords,
                    "stop_words": [word for word in stop_words if word in known],
                    "class": class_,
                },
                room=room,
                answer=answers[0],
                parts=(f"official {class_}",),
                cluster=f"{asked.part}:{number}",
            )


def _split(wording: str) -> tuple[str, str, str]:
    before, found, rest = wording.partition("{context}")
    between, also, after = rest.partition("{input}")
    if not (found and also):
        raise ValueError
    return before, between, after


LVEVAL = Benchmark(
    title="LV-Eval (Yuan et al., arXiv 2402.05136)",
    parts=(
        *("hotpotwikiqa_mixup", "loogle_SD_mixup", "loogle_CR_mixup", "loogle_MIR_mixup"),
        *("multifieldqa_en_mixup", "factrecall_en"),
    ),
    files=lambda part, axis: (f"{part}_{axis or '*k'}.jsonl", f"**/{part}_{axis or '*k'}.jsonl"),
    examples=_examples,
    metric="f1",
    score=score,
    prompts="config.py of infinigence/LVEval",
    cuts_middle=True,
    axes=", ".join(CLASSES),
)
