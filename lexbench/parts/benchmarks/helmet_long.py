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
from lexbench.parts.benchmarks.base import Asked, Example, Message, cluster_of
from lexbench.parts.benchmarks.copy import every_literal, rows, value
from lexbench.taskkit.longbench.metrics import rouge_l_stemmed
from lexbench.taskkit.matching import normalised

SHOTS, SEED, N = 2, 42, 100
"""Worked examples; the seed of all draws; examples of a part."""
SYSTEM: Message = ("system", "You are a helpful assistant.")
OMITTED = " ... [the rest of the text is omitted]"
"""Behind a book that is cut."""
MARGIN = 16
"""Tokens of the template around a system message, and of joints."""
BOOKS = {"infbench_qa_eng": "longbook_qa_eng", "infbench_choice_eng": "longbook_choice_eng"}
"""Files of InfiniteBench."""
CITED = {"alce_asqa": "asqa", "alce_qampari": "qampari"}
FULL = "700"
"""Passages at 128k."""
CUE = "Answer:"
METRICS = {
    "infbench_qa_eng": "rouge_l",
    "infbench_choice_eng": "exact_match",
    "alce_asqa": "str_em",
    "alce_qampari": "recall_top5",
}


def score(facts: Mapping[str, Any], text: str, scorer: str) -> float:
    """What is asked of a part: ROUGE-L, the letter, or which of the short answers are written.

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
    return SCORES[facts["part"]](facts, text, scorer)


def parsed(text: str, cue: str = CUE) -> str:
    """What follows the cue, to the end of its line; the first line where there is no cue."""
    found = re.search(rf"{re.escape(cue)}(.*)(\n|$)", text, re.IGNORECASE)
    said = (found[1] if found else text.split("\n")[0]).strip()
    return re.sub(f"^{re.escape(cue)}", "", said, flags=re.IGNORECASE).strip()


def _rouge(facts: Mapping[str, Any], text: str, scorer: str) -> float:
    whole = facts["cue"] + text
    # Officially the better of both counts, so an answer behind further text is not punished.
    said = (parsed(whole),) if scorer == "repaired" else (parsed(whole), whole)
    return max(rouge_l_stemmed(each, answer) for each in said for answer in facts["answers"])


def _choice(facts: Mapping[str, Any], text: str, scorer: str) -> float:
    whole, (letter, option) = facts["cue"] + text, facts["answers"]
    if scorer == "repaired":
        return infinitebench.choice(parsed(whole), [option.partition(". ")[2], letter])
    # normalised("A") is empty, because A is an article.
    right = {normalised(letter), normalised(option)}
    return float(bool(right & {normalised(whole), normalised(parsed(whole))}) or option.lower() in whole.lower())


def _bare(text: str) -> str:
    """In one line, without citations such as [3]."""
    return re.sub(r"\[\d+", "", re.sub(r" \[\d+", "", re.sub(r"\n+", " ", text))).replace(" |", "").replace("]", "")


def _short_answers(facts: Mapping[str, Any], text: str, scorer: str) -> float:
    pad = " " if scorer == "repaired" else ""
    said = f"{pad}{normalised(_bare(text))}{pad}"
    found = [any(f"{pad}{normalised(each)}{pad}" in said for each in answers) for answers in facts["answers"]]
    return sum(found) / len(found)


def _listed_answers(facts: Mapping[str, Any], text: str, scorer: str) -> float:
    if scorer == "official":
        # eval.py puts the cue of a completion back: the first answer is "Answer: sea".
        text = facts["cue"] + text
    else:
        text = ",".join(re.sub(r"^\s*(?:[-*•]|\d+[.)])\s", "", line) for line in text.splitlines())
    # QAMPARI's answers stand between commas, and the last one may end the sentence.
    written = {normalised(each) for each in _bare(text).rstrip().rstrip(".").rstrip(",").split(",")}
    written.discard("")
    found = sum(any(normalised(each) in written for each in answers) for answers in facts["answers"])
    # ALCE's recall-5: five right answers are all that is asked.
    return min(5, found) / min(5, len(facts["answers"]))


SCORES: Mapping[str, Callable[[Mapping[str, Any], str, str], float]] = {
    "infbench_qa_eng": _rouge,
    "infbench_choice_eng": _choice,
    "alce_asqa": _short_answers,
    "alce_qampari": _listed_answers,
}


def examples(asked: Asked) -> Iterator[Example]:
    """The hundred officially drawn examples of a part, in their official order."""
    yield from (_books if asked.part in BOOKS else _cited)(asked)


def _drawn(n: int) -> list[int]:
    """The first of a shuffle as the package `datasets` does it."""
    drawn: list[int] = np.random.default_rng(SEED).permutation(n).tolist()
    return drawn


def _books(asked: Asked) -> Iterator[Example]:
    [file] = asked.files.places
    chosen = list(BOOKS).index(asked.part)
    stated = every_literal(asked.prompts)
    wording, shot = (stated[f"load_infbench.{name}"][chosen] for name in ("user_template", "temp"))
    listed = [_book(row, asked.part, file) for row in rows(file)]

    @functools.lru_cache(maxsize=1)
    def encoded(book: str) -> Encoded:
        return asked.tokenizer.encode(book)

    for place in _drawn(len(listed))[:N]:
        row = listed[place]
        others = [each for each in listed if each["id"] != row["id"]]
        shown = "\n\n".join(shot.format(**others[other]) for other in _drawn(len(others))[:SHOTS])
        demo = f"For example:\n\n{shown}\n\nNow, read the following story:\n\n"

        def prompt(context: str, row: Mapping[str, Any] = row, demo: str = demo) -> str:
            return str(wording.format(**{**row, "context": context, "demo": demo}))

        book, around = encoded(row["context"]), asked.tokenizer.encode(f"{SYSTEM[1]}{prompt(OMITTED)}\n\n{CUE}").ids
        space = asked.length - (asked.room or 10) - asked.framing - len(around) - MARGIN
        # Cut by the token's first character, not decoded: the text stays as it is in the book.
        kept = row["context"] if len(book.ids) <= space else row["context"][: book.starts[max(space, 0)]] + OMITTED
        yield _example(asked, str(row["id"]), prompt(kept), 10, row, cut=kept is not row["context"])


def _book(row: Mapping[str, Any], part: str, file: Path) -> dict[str, Any]:
    answers = [str(each) for each in value(row, "answer", list, file)]
    made = {**row, "context": value(row, "context", str, file), "question": value(row, "input", str, file)}
    if part == "infbench_qa_eng":
        return {**made, "answer": answers}
    letter = infinitebench.LETTERS[list(row["options"]).index(answers[0])]
    options = "\n".join(f"{each}. {text}" for each, text in zip(infinitebench.LETTERS, row["options"], strict=True))
    return {**made, "options": options, "answer": [letter, f"{letter}. {answers[0]}"]}


def _cited(asked: Asked) -> Iterator[Example]:
    file, shots = asked.files.places
    wording = every_literal(asked.prompts)["load_alce.user_template"][-1]
    try:
        stated = json.loads(shots.read_text(encoding="utf-8"))
    except ValueError:
        stated = {}
    if len(stated["demos"] if isinstance(stated, dict) and "demos" in stated else ()) < SHOTS:
        raise ConfigError(f"{shots} must be JSON with {SHOTS} demos or more: give the official file")
    rng, count = random.Random(SEED), int(asked.axis or FULL)

    def passages(documents: Sequence[Mapping[str, Any]]) -> str:
        return "\n\n".join(stated["doc_prompt"].format(**{**each, "ID": i + 1}) for i, each in enumerate(documents))

    listed = []
    for row in rows(file):  # one stream of draws over all rows
        demos = [
            stated["demo_prompt"].format(**demo, instruction=stated["instruction"], context=passages(demo["docs"]))
            for demo in rng.sample(stated["demos"], SHOTS)
        ]
        listed.append((row, "".join(f"{each}\n\n\n" for each in demos)))
    for place in _drawn(len(listed))[:N]:
        row, demo_text = listed[place]
        context = passages(value(row, "docs", list, file)[:count])
        prompt = wording.format(**{**row, **stated, "demo_text": demo_text, "context": context})
        answers = (
            [pair["short_answers"] for pair in value(row, "qa_pairs", list, file)]
            if asked.part == "alce_asqa"
            else value(row, "answers", list, file)
        )
        yield _example(asked, str(place), prompt, 300, {"answer": answers, "context": context})


def _example(asked: Asked, name: str, prompt: str, room: int, row: Mapping[str, Any], cut: bool = False) -> Example:
    answers = row["answer"]
    best = answers[0] if asked.part in BOOKS else ", ".join(each[0] for each in answers)
    return Example(
        id=f"{asked.part}:{name}",
        messages=[SYSTEM, ("user", prompt)] if asked.chat else [("user", prompt)],
        cue="" if asked.chat else f"\n\n{CUE}",
        facts={"part": asked.part, "answers": answers, "cue": "" if asked.chat else CUE, "shortened": cut},
        room=room,
        answer=best,
        cluster=cluster_of(row["context"]),
        chance=0.25 if asked.part == "infbench_choice_eng" else 0.0,
    )
