"""Planted summary: list the notes that are hidden in running text."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from lexbench import (
    Answer,
    AnyQuestion,
    ConfigError,
    Corpus,
    Generate,
    GenerateAnswer,
    Outline,
    Sample,
    Task,
    Tokenizer,
    Tokens,
)
from lexbench.taskkit import haystack, shortcuts
from lexbench.taskkit.longbench.metrics import rouge_l
from lexbench.taskkit.perplexity import encoded_corpus
from lexbench.taskkit.prompt import (
    FixedParts,
    check_at_least,
    check_length,
    context_beginning,
    outline_of,
    resolve_max_new_tokens,
    texts_for_sizes,
    tokens_around_haystack,
)
from lexbench.taskkit.scoring import score_written

PROMPT_HEADER = "Remember the notes in this text.\n"
NOTE_TEMPLATE = " Note: {}."
FACT_TEMPLATE = "{} {} the {} in the {}"
QUESTION_TEXT = "\nThe notes in this text, one a line:\n"
ANSWER_BULLET = "-"
FACT_SLOTS = (
    "Ada Ben Cora Dan Eva Finn Gus Hana Ivan Jane Karl Lena Mara Nick Olga Paul Rosa Sam Tara Vera",
    "bought broke burned cleaned dropped fixed found hid lost moved painted sold stole washed",
    "basket bell book bottle box clock coat cup door drum flag hat key lamp mirror pipe ring rope table vase",
    "barn bridge castle church farm forest garden hall harbor market mill park school shop tower valley",
)
"""Words of the four slots of a note: person, verb, object, place; no word is in two slots."""
SLOT_WORD_LISTS = tuple(slot.lower().split() for slot in FACT_SLOTS)
SLOT_WORDS = {word for choices in SLOT_WORD_LISTS for word in choices}
LIST_ITEM_PATTERN = re.compile(r"\s*(?:[-*•–—]|\d+[.)])(.*)")


@dataclass(frozen=True)
class PlantedSummary(Task):
    """List the notes in a text and nothing else: a summary that can be scored without a judge.

        Remember the notes in this text.                             <- header
        ... Note: Cora sold the clock in the mill. ... Note: Ivan hid the vase in the barn. ...
        The notes in this text, one a line:
        -                                                            <- the model writes " Cora sold the clock ..."

    Constant over lengths: the number of notes, their wording and content. Only the text between them grows. The text is
    divided into as many equal parts as there are notes, with one note in each. Two notes of a text share no slot word
    (who, did, what, where), so a mixture of two notes is never right. Chance: one of all possible notes.

    The list in the answer is its first line and the lines behind it, up to the first that is no item. An item begins
    with a bullet or a number, or contains the four slot words of a possible note, as do all items before it. An item is
    right if it contains the four slot words of one note, in any order, and no other slot word; so naming everything is
    never right. Only new tokens are scored.

    Scores: `recall`, the share of notes with a right item; `precision`, the share of items that are right, each note
    counted once; `accuracy`, 2 / (1/recall + 1/precision), so that an invented note costs as much as a missing one;
    `rouge_l`, F measure of the longest common subsequence of words over the whole answer (Lin 2004), for comparison
    only: it rewards the wording that all notes share. `statistics` has each note's depth and whether it was found.

    Args:
        corpus: of the running text.
        notes: number of notes.
        room: tokens to write; None: those of a flawless list and a quarter more.
        chat: use the model's chat template; the first bullet of the list comes after it.
    """

    form: ClassVar[tuple[str, ...]] = ("room", "chat")
    corpus: Corpus
    notes: int = 3
    room: int | None = None
    chat: bool = False

    def __post_init__(self) -> None:
        most = min(map(len, SLOT_WORD_LISTS))
        if not 1 <= self.notes <= most:
            raise ConfigError(f"planted_summary's notes must be 1 to {most}, got {self.notes}: notes share no word")
        check_at_least("planted_summary", self, room=1)

    def protocol(self, tokenizer: Tokenizer) -> str:
        """Protocol in words: number of notes, scoring of the answer."""
        start = "chat template" if self.chat else context_beginning(tokenizer)
        return (
            f"planted summary: list {self.notes} notes in running text, strict: F1 of items with all words of a note, "
            f"greedy, {start}"
        )

    def outline(self, tokenizer: Tokenizer, length: int, n: int, seed: int) -> Outline:
        """Sizes of n questions, estimated from those of the first samples."""
        samples = [
            self._fixed_parts(tokenizer, self.rng(length, seed, index), length, index)[0]
            for index in texts_for_sizes(n)
        ]
        return outline_of([[sample] for sample in samples], length, n)

    def questions(self, tokenizer: Tokenizer, length: int, n: int, seed: int) -> Sequence[AnyQuestion]:
        """One prompt of exactly length - room tokens per sample."""
        return [self._question(tokenizer, length, seed, index) for index in range(n)]

    def _question(self, tokenizer: Tokenizer, length: int, seed: int, index: int) -> Generate:
        rng = self.rng(length, seed, index)
        fixed, facts, notes = self._fixed_parts(tokenizer, rng, length, index)
        # One note in each of as many parts: none is without a stretch of text of its own.
        depths = [haystack.stratified_depth(part, self.notes, rng) for part in range(self.notes)]
        space = length - fixed.tokens - sum(map(len, notes))
        text = haystack.text_haystack(encoded_corpus(self.corpus, tokenizer), space, rng)
        body, realised = haystack.insert_needles(text, notes, depths, self.notes)
        chance = self.notes / float(np.prod([len(choices) for choices in SLOT_WORD_LISTS]))
        question = fixed.write([body], text.name, chance, {"expected": facts, "depths": realised})
        # Who has read k notes names these: F1 is 2 k / (notes + k).
        places = sorted(place for note in notes if (place := shortcuts.tokens_from(question.prompt, note)))
        steps = [(place, 2 * read / (self.notes + read)) for read, place in enumerate(places, start=1)]
        return replace(question, shortcut=((0, chance), *steps))

    def _fixed_parts(
        self, tokenizer: Tokenizer, rng: np.random.Generator, length: int, index: int
    ) -> tuple[FixedParts, list[str], list[Tokens]]:
        """The prompt without its text, the facts of the notes, and the notes."""
        words = [[slot.split()[place] for place in _draw_places(rng, slot, self.notes)] for slot in FACT_SLOTS]
        facts = [FACT_TEMPLATE.format(*fact) for fact in zip(*words, strict=True)]
        answer = f"\n{ANSWER_BULLET}".join(f" {fact}." for fact in facts)
        before, after = tokens_around_haystack(tokenizer, self.chat, [PROMPT_HEADER], QUESTION_TEXT, ANSWER_BULLET)
        notes = [tokenizer.encode(NOTE_TEMPLATE.format(fact)).ids for fact in facts]
        written = len(tokenizer.encode(answer).ids)
        room = resolve_max_new_tokens("planted_summary", written, self.room, -(-written // 4))
        fixed = FixedParts(index=index, before=before, after=after, room=room, answer=answer)
        least = fixed.tokens + sum(map(len, notes))
        check_length(f"planted_summary of {self.notes} notes", least, length, "raise length or lower notes")
        return fixed, facts, notes

    def score(self, question: AnyQuestion, answer: Answer) -> Sample:
        """Strict recall, precision and their harmonic mean; ROUGE-L."""
        assert isinstance(question, Generate) and isinstance(answer, GenerateAnswer)
        items = [_slot_words_in(item) for item in _items(answer.text)]
        found = [_slot_words_in(fact) in items for fact in question.facts["expected"]]
        right = sum(found)
        return score_written(
            question,
            answer,
            {
                # 2 / (1 / recall + 1 / precision) with both written out, defined also where no item is right.
                "accuracy": 2 * right / (len(found) + len(items)),
                "recall": right / len(found),
                "precision": right / max(1, len(items)),
                "rouge_l": rouge_l(answer.text, question.answer),
            },
            statistics={
                "depth": np.asarray(question.facts["depths"], np.float32),
                "found": np.asarray(found, np.float32),
            },
        )


def _draw_places(rng: np.random.Generator, slot: str, count: int) -> list[int]:
    """Places of `count` different words of a slot."""
    return [int(place) for place in rng.permutation(len(slot.split()))[:count]]


def _items(text: str) -> list[str]:
    """The list at the start of the answer, whose first bullet is in the prompt."""
    first, *lines = text.split("\n")
    items = [first] if first.strip() else []
    for line in filter(str.strip, lines):
        bullet = LIST_ITEM_PATTERN.match(line)
        # A line without a bullet belongs to the list only while every item so far, and this line, states a possible
        # note.
        if bullet is None and not all(map(_tells_a_note, [*items, line])):
            break
        items.append(bullet[1] if bullet else line)
    return [item for item in items if item.strip()]


def _tells_a_note(text: str) -> bool:
    """Whether a text contains all slot words of a possible note."""
    return all(_slot_words_in(text) & set(choices) for choices in SLOT_WORD_LISTS)


def _slot_words_in(text: str) -> frozenset[str]:
    """The slot words in a text."""
    return frozenset(SLOT_WORDS & set(re.findall(r"\w+", text.lower())))
