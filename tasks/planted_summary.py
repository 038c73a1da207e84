"""Planted summary: notes hidden in running text, to be listed at the end."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lexbench import Answer, AnyQuestion, Corpus, Refused, Sample, Task, Tokenizer, Write, Written
from lexbench.taskkit import haystack
from lexbench.taskkit.perplexity import encoded_corpus
from lexbench.taskkit.scoring import score_written

HEADER = "Remember the notes in this text.\n"
NOTE = " Note: {}."
FACT = "{} {} the {} in the {}"
ASK = "\nThe notes in this text, one a line:\n"
BULLET = "-"
SLOTS = (
    "Ada Ben Cora Dan Eva Finn Gus Hana Ivan Jane Karl Lena Mara Nick Olga Paul Rosa Sam Tara Vera",
    "bought broke burned cleaned dropped fixed found hid lost moved painted sold stole washed",
    "basket bell book bottle box clock coat cup door drum flag hat key lamp mirror pipe ring rope table vase",
    "barn bridge castle church farm forest garden hall harbor market mill park school shop tower valley",
)
"""Who, did, what, where: no word is in two of them."""
CHOICES = tuple(slot.lower().split() for slot in SLOTS)
WORDS = {word for choices in CHOICES for word in choices}
ITEM = re.compile(r"\s*(?:[-*•–—]|\d+[.)])(.*)")


@dataclass(frozen=True)
class PlantedSummary(Task):
    """List the notes that stand in a text, and nothing else: a summary that can be marked without a judge.

    Held constant over lengths: the number of notes, their wording and what one says; only the text between them grows.
    One note lies in each of so many equal parts of the text. No two notes of a text share a word of theirs, so a mix
    of two is right nowhere. Chance is one note in as many as can be made.

        Remember the notes in this text.                             <- header
        ... Note: Cora sold the clock in the mill. ... Note: Ivan hid the vase in the barn. ...
        The notes in this text, one a line:
        -                                                            <- the model writes " Cora sold the clock ..."

    What is written counts as a list: its first line, and those behind it to the first that is no item. Items begin with
    a bullet or a number, or hold, as all before them do, the four words of a possible note. An item is right if it
    holds the four words of one note, in any order and with any others, but none of another note that might have been:
    naming everything is right nowhere. Only new tokens are scored.

    Scores: `recall`, the share of notes that have an item; `precision`, the share of items that are right, each note
    once; `accuracy`, 2 / (1/recall + 1/precision), so that inventing costs what forgetting does; `rouge_l`, the F
    measure of the longest common subsequence of words of all that was written (Lin 2004), for comparison only: it
    pays for the wording that all notes share. Where each note stood, and whether it was found, is in `statistics`.

    Args:
        corpus: of the running text.
        notes: planted.
        room: tokens to write; None: those of a flawless list, and a quarter more.
        chat: ask in the model's chat template; the list's first bullet is written for it.
    """

    form: ClassVar[tuple[str, ...]] = ("room", "chat")
    corpus: Corpus
    notes: int = 3
    room: int | None = None
    chat: bool = False

    def __post_init__(self) -> None:
        most = min(map(len, CHOICES))
        if not 1 <= self.notes <= most:
            raise ValueError(f"planted_summary's notes must be from 1 to {most}, got {self.notes}: none shares a word")
        if self.room is not None and self.room < 1:
            raise ValueError(f"planted_summary's room must be at least 1, got {self.room}")

    def protocol(self, tokenizer: Tokenizer) -> str:
        """One line: what is asked and how it is scored."""
        start = "chat template" if self.chat else "BOS" if tokenizer.prefix else "no BOS"
        return (
            f"planted summary: list {self.notes} notes in running text, strict: F1 of items with all words of a note, "
            f"greedy, {start}"
        )

    def questions(self, tokenizer: Tokenizer, length: int, n: int, seed: int) -> Sequence[AnyQuestion]:
        """Prompts of exactly length - room tokens, one a sample."""
        return [self._question(tokenizer, length, seed, index) for index in range(n)]

    def _question(self, tokenizer: Tokenizer, length: int, seed: int, index: int) -> Write:
        rng = self.rng(length, seed, index)
        words = [[slot.split()[place] for place in _drawn(rng, slot, self.notes)] for slot in SLOTS]
        facts = [FACT.format(*fact) for fact in zip(*words, strict=True)]
        depths = [haystack.stratified(part, self.notes, rng) for part in range(self.notes)]
        answer = f"\n{BULLET}".join(f" {fact}." for fact in facts)
        frame = tokenizer.frame(self.chat)
        notes = [tokenizer.encode(NOTE.format(fact)).ids for fact in facts]
        before = [frame.before, tokenizer.encode(HEADER).ids]
        after = [tokenizer.encode(ASK).ids, frame.after, tokenizer.encode(BULLET).ids]
        written = len(tokenizer.encode(answer).ids)
        room = self.room or -(-5 * written // 4)
        if room < written:
            raise Refused(f"planted_summary's answer has {written} tokens, its room {room}: raise room")
        space = length - room - sum(map(len, [*before, *notes, *after]))
        if space < 0:
            raise Refused(
                f"planted_summary of {self.notes} notes needs at least {length - space} tokens, asked for {length}: "
                "raise length or lower notes"
            )
        text = haystack.text(encoded_corpus(self.corpus, tokenizer), space, rng)
        body, realised = haystack.insert(text, notes, depths, self.notes)
        return Write(
            index=index,
            cluster=text.name,
            prompt=np.concatenate([*before, body, *after]),
            room=room,
            answer=answer,
            chance=self.notes / float(np.prod([len(choices) for choices in CHOICES])),
            facts={"expected": facts, "depths": realised},
        )

    def score(self, question: AnyQuestion, answer: Answer) -> Sample:
        """Strict recall, precision and their harmonic mean; ROUGE-L."""
        assert isinstance(question, Write) and isinstance(answer, Written)
        items = [_known(item) for item in _items(answer.text)]
        found = [_known(fact) in items for fact in question.facts["expected"]]
        right = sum(found)
        return score_written(
            question,
            answer,
            {
                "accuracy": 2 * right / (len(found) + len(items)),
                "recall": right / len(found),
                "precision": right / max(1, len(items)),
                "rouge_l": _rouge_l(question.answer, answer.text),
            },
            statistics={
                "depth": np.asarray(question.facts["depths"], np.float32),
                "found": np.asarray(found, np.float32),
            },
        )


def _drawn(rng: np.random.Generator, slot: str, count: int) -> list[int]:
    """Places of different words of a slot."""
    return [int(place) for place in rng.permutation(len(slot.split()))[:count]]


def _items(text: str) -> list[str]:
    """The list that a text begins with, behind its first bullet."""
    first, *lines = text.split("\n")
    items = [first] if first.strip() else []
    for line in filter(str.strip, lines):
        bullet = ITEM.match(line)
        if bullet is None and not all(map(_tells, [*items, line])):
            break
        items.append(bullet[1] if bullet else line)
    return [item for item in items if item.strip()]


def _tells(text: str) -> bool:
    """Whether a text holds all words of some note that might have been."""
    return all(_known(text) & set(choices) for choices in CHOICES)


def _known(text: str) -> frozenset[str]:
    """The words of a text that notes are made of."""
    return frozenset(WORDS & set(re.findall(r"\w+", text.lower())))


def _rouge_l(reference: str, text: str) -> float:
    from rouge_score.rouge_scorer import RougeScorer  # loads nltk

    return float(RougeScorer(["rougeL"]).score(reference, text)["rougeL"].fmeasure)
