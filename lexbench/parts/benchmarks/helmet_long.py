"""HELMET's questions about a book, and its answers from passages: all but what a judge or an NLI model scores."""

import functools
import json
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lexbench.core.errors import ConfigError
from lexbench.core.task import Encoded
from lexbench.parts.benchmarks import infinitebench
from lexbench.parts.benchmarks.base import BenchmarkExample, BenchmarkRequest, Message, cluster_of
from lexbench.parts.benchmarks.copy import all_assigned_literals, checked_field, read_data_rows
from lexbench.taskkit.longbench.metrics import rouge_l_stemmed
from lexbench.taskkit.matching import normalise_as_squad

N_WORKED_EXAMPLES, DRAW_SEED, N_EXAMPLES_OF_PART = 2, 42, 100
"""Worked examples; the seed of all draws; examples of a part."""
SYSTEM_MESSAGE: Message = ("system", "You are a helpful assistant.")
OMISSION_NOTE = " ... [the rest of the text is omitted]"
"""Text behind a book that is cut."""
TEMPLATE_MARGIN_TOKENS = 16
"""Tokens of the template around a system message, and of joints."""
INFINITEBENCH_FILE_OF_PART = {"infbench_qa_eng": "longbook_qa_eng", "infbench_choice_eng": "longbook_choice_eng"}
"""Files of InfiniteBench."""
ALCE_FILE_OF_PART = {"alce_asqa": "asqa", "alce_qampari": "qampari"}
N_PASSAGES_AT_128K = "700"
"""Number of passages in a prompt of 128k tokens, as in the names of files."""
ANSWER_CUE = "Answer:"
METRIC_OF_PART = {
    "infbench_qa_eng": "rouge_l",
    "infbench_choice_eng": "exact_match",
    "alce_asqa": "str_em",
    "alce_qampari": "recall_top5",
}


def score(facts: Mapping[str, Any], text: str, scorer: str) -> float:
    """Score in [0, 1], by part: ROUGE-L, the right letter, or the share of short answers that are written.

    `infbench_qa_eng`: ROUGE-L (F1, stemmed) to the nearest of the answers. official: of the whole answer or of the part
    behind "Answer:", whichever is better. repaired: of that part.

    `infbench_choice_eng`: official: the letter, or letter and text, without articles, so that "A" is nothing, and an
    answer of nothing is right where A is; or both anywhere in the answer, so a list of all options is right. repaired:
    the letter that is said.

    `alce_asqa`: the share of the questions behind a question of which a short answer occurs, citations taken off.
    official: as a substring. repaired: as whole words.

    `alce_qampari`: how many of the answers stand between commas, of 5 at most. official: a list of lines is one answer,
    and without a chat template the cue is put before the answer, so the first one never counts. repaired: lines,
    bullets and numbers separate answers, too.
    """
    return SCORE_OF_PART[facts["part"]](facts, text, scorer)


def answer_after_cue(text: str, cue: str = ANSWER_CUE) -> str:
    """Text behind the cue, to the end of its line; the first line where there is no cue."""
    found = re.search(rf"{re.escape(cue)}(.*)(\n|$)", text, re.IGNORECASE)
    said = (found[1] if found else text.split("\n")[0]).strip()
    return re.sub(f"^{re.escape(cue)}", "", said, flags=re.IGNORECASE).strip()


def _rouge_score(facts: Mapping[str, Any], text: str, scorer: str) -> float:
    whole = facts["cue"] + text
    # Officially the better of both counts, so an answer behind further text is not punished.
    said = (answer_after_cue(whole),) if scorer == "repaired" else (answer_after_cue(whole), whole)
    return max(rouge_l_stemmed(each, answer) for each in said for answer in facts["answers"])


def _choice_score(facts: Mapping[str, Any], text: str, scorer: str) -> float:
    whole, (letter, option) = facts["cue"] + text, facts["answers"]
    if scorer == "repaired":
        return infinitebench.choice_score(answer_after_cue(whole), [option.partition(". ")[2], letter])
    # normalised("A") is empty, because A is an article.
    right = {normalise_as_squad(letter), normalise_as_squad(option)}
    return float(
        bool(right & {normalise_as_squad(whole), normalise_as_squad(answer_after_cue(whole))})
        or option.lower() in whole.lower()
    )


def _strip_citations(text: str) -> str:
    """Text in one line, without citations such as [3]."""
    return re.sub(r"\[\d+", "", re.sub(r" \[\d+", "", re.sub(r"\n+", " ", text))).replace(" |", "").replace("]", "")


def _short_answers_score(facts: Mapping[str, Any], text: str, scorer: str) -> float:
    pad = " " if scorer == "repaired" else ""
    said = f"{pad}{normalise_as_squad(_strip_citations(text))}{pad}"
    found = [any(f"{pad}{normalise_as_squad(each)}{pad}" in said for each in answers) for answers in facts["answers"]]
    return sum(found) / len(found)


def _listed_answers_score(facts: Mapping[str, Any], text: str, scorer: str) -> float:
    if scorer == "official":
        # eval.py puts the cue of a completion back: the first answer is "Answer: sea".
        text = facts["cue"] + text
    else:
        text = ",".join(re.sub(r"^\s*(?:[-*•]|\d+[.)])\s", "", line) for line in text.splitlines())
    # QAMPARI's answers stand between commas, and the last one may end the sentence.
    written = {normalise_as_squad(each) for each in _strip_citations(text).rstrip().rstrip(".").rstrip(",").split(",")}
    written.discard("")
    found = sum(any(normalise_as_squad(each) in written for each in answers) for answers in facts["answers"])
    # ALCE's recall-5: five right answers are all that is asked.
    return min(5, found) / min(5, len(facts["answers"]))


SCORE_OF_PART: Mapping[str, Callable[[Mapping[str, Any], str, str], float]] = {
    "infbench_qa_eng": _rouge_score,
    "infbench_choice_eng": _choice_score,
    "alce_asqa": _short_answers_score,
    "alce_qampari": _listed_answers_score,
}


def official_examples(asked: BenchmarkRequest) -> Iterator[BenchmarkExample]:
    """The hundred officially drawn examples of a part, in their official order."""
    yield from (_book_examples if asked.part in INFINITEBENCH_FILE_OF_PART else _citation_examples)(asked)


def _draw_places(n: int) -> list[int]:
    """The first of a shuffle as the package `datasets` does it."""
    drawn: list[int] = np.random.default_rng(DRAW_SEED).permutation(n).tolist()
    return drawn


def _book_examples(asked: BenchmarkRequest) -> Iterator[BenchmarkExample]:
    [file] = asked.files.places
    chosen = list(INFINITEBENCH_FILE_OF_PART).index(asked.part)
    stated = all_assigned_literals(asked.prompts)
    wording, shot = (stated[f"load_infbench.{name}"][chosen] for name in ("user_template", "temp"))
    listed = [_book_fields(row, asked.part, file) for row in read_data_rows(file)]

    @functools.lru_cache(maxsize=1)
    def encoded(book: str) -> Encoded:
        return asked.tokenizer.encode(book)

    for place in _draw_places(len(listed))[:N_EXAMPLES_OF_PART]:
        row = listed[place]
        others = [each for each in listed if each["id"] != row["id"]]
        shown = "\n\n".join(shot.format(**others[other]) for other in _draw_places(len(others))[:N_WORKED_EXAMPLES])
        demo = f"For example:\n\n{shown}\n\nNow, read the following story:\n\n"

        def prompt(context: str, row: Mapping[str, Any] = row, demo: str = demo) -> str:
            return str(wording.format(**{**row, "context": context, "demo": demo}))

        book, around = (
            encoded(row["context"]),
            asked.tokenizer.encode(f"{SYSTEM_MESSAGE[1]}{prompt(OMISSION_NOTE)}\n\n{ANSWER_CUE}").ids,
        )
        space = asked.length - (asked.room or 10) - asked.framing - len(around) - TEMPLATE_MARGIN_TOKENS
        # Cut by the token's first character, not decoded: the text stays as it is in the book.
        kept = (
            row["context"] if len(book.ids) <= space else row["context"][: book.starts[max(space, 0)]] + OMISSION_NOTE
        )
        yield _example(asked, str(row["id"]), prompt(kept), 10, row, cut=kept is not row["context"])


def _book_fields(row: Mapping[str, Any], part: str, file: Path) -> dict[str, Any]:
    answers = [str(each) for each in checked_field(row, "answer", list, file)]
    made = {
        **row,
        "context": checked_field(row, "context", str, file),
        "question": checked_field(row, "input", str, file),
    }
    if part == "infbench_qa_eng":
        return {**made, "answer": answers}
    letter = infinitebench.CHOICE_LETTERS[list(row["options"]).index(answers[0])]
    options = "\n".join(
        f"{each}. {text}" for each, text in zip(infinitebench.CHOICE_LETTERS, row["options"], strict=True)
    )
    return {**made, "options": options, "answer": [letter, f"{letter}. {answers[0]}"]}


def _citation_examples(asked: BenchmarkRequest) -> Iterator[BenchmarkExample]:
    file, shots = asked.files.places
    wording = all_assigned_literals(asked.prompts)["load_alce.user_template"][-1]
    try:
        stated = json.loads(shots.read_text(encoding="utf-8"))
    except ValueError:
        stated = {}
    if len(stated["demos"] if isinstance(stated, dict) and "demos" in stated else ()) < N_WORKED_EXAMPLES:
        raise ConfigError(f"{shots} must be JSON with {N_WORKED_EXAMPLES} demos or more: give the official file")
    rng, count = random.Random(DRAW_SEED), int(asked.axis or N_PASSAGES_AT_128K)

    def passages(documents: Sequence[Mapping[str, Any]]) -> str:
        return "\n\n".join(stated["doc_prompt"].format(**{**each, "ID": i + 1}) for i, each in enumerate(documents))

    listed = []
    for row in read_data_rows(file):  # one stream of draws over all rows
        demos = [
            stated["demo_prompt"].format(**demo, instruction=stated["instruction"], context=passages(demo["docs"]))
            for demo in rng.sample(stated["demos"], N_WORKED_EXAMPLES)
        ]
        listed.append((row, "".join(f"{each}\n\n\n" for each in demos)))
    for place in _draw_places(len(listed))[:N_EXAMPLES_OF_PART]:
        row, demo_text = listed[place]
        context = passages(checked_field(row, "docs", list, file)[:count])
        prompt = wording.format(**{**row, **stated, "demo_text": demo_text, "context": context})
        answers = (
            [pair["short_answers"] for pair in checked_field(row, "qa_pairs", list, file)]
            if asked.part == "alce_asqa"
            else checked_field(row, "answers", list, file)
        )
        yield _example(asked, str(place), prompt, 300, {"answer": answers, "context": context})


def _example(
    asked: BenchmarkRequest, name: str, prompt: str, room: int, row: Mapping[str, Any], cut: bool = False
) -> BenchmarkExample:
    answers = row["answer"]
    best = answers[0] if asked.part in INFINITEBENCH_FILE_OF_PART else ", ".join(each[0] for each in answers)
    return BenchmarkExample(
        id=f"{asked.part}:{name}",
        messages=[SYSTEM_MESSAGE, ("user", prompt)] if asked.chat else [("user", prompt)],
        cue="" if asked.chat else f"\n\n{ANSWER_CUE}",
        facts={"part": asked.part, "answers": answers, "cue": "" if asked.chat else ANSWER_CUE, "shortened": cut},
        room=room,
        answer=best,
        cluster=cluster_of(row["context"]),
        chance=0.25 if asked.part == "infbench_choice_eng" else 0.0,
    )
