"""Seeded text with planted long-range dependencies, the same on every machine."""

import functools
import heapq
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from lexbench.core.errors import ConfigError
from lexbench.corpora import Document, hash_documents

OWNER_NAMES = (
    "Ada Bela Cora Dina Edda Fara Gita Hana Ines Jana Kira Lena Mara Nora Olga Petra Rosa Sara Tara Vera "
    "Abel Boris Carl David Egon Felix Georg Hugo Igor Jonas Konrad Lukas"
)
THING_NOUNS = (
    "barrel basket bell boat book bottle box bucket candle chair clock coat cup door drum fence flag glove hammer "
    "hat kettle ladder lamp mirror pipe plate ribbon rope saddle stool table wagon"
)
COLOUR_WORDS = "amber black blue brown copper golden gray green orange pink purple red silver violet white yellow"
PLACE_NOUNS = (
    "barn bridge castle church forest garden harbor island market meadow mill quarry river tower valley village"
)
WAY_NOUNS = "alley canal lane path railway road stair street"
WAY_ADJECTIVES = "broken crooked empty hidden long narrow old quiet steep wide"

MIN_RECALL_DISTANCE_WORDS = 16
"""Smallest distance from a statement to its recall, in words; the others are multiples by powers of two."""
SENTENCES_PER_PARAGRAPH = 6
"""Sentences of a paragraph."""


@dataclass(frozen=True)
class Synthetic:
    """Documents of short sentences, with statements that are recalled much later; needs nothing.

    Three kinds of sentence, drawn at random:

        Nora owns a copper kettle.                      a statement: owner, thing and colour are uniform
        The narrow path leads from the mill to the river.        filler, uniform
        The kettle of Nora is copper.                   the recall of a statement, once, later

    The last word of a recall, the colour, is the only planted dependency: it costs ln 16 = 2.77 nats without the
    statement in context, and nothing with it. (Of two statements about the same thing of one owner the later one holds,
    and none is made while a recall of the other is due.) The distance from statement to recall is 16 * 2^k words and a
    few more, with k uniform up to the limit of `reach`. So every doubling of the context, from 16 words to `reach`,
    contains the statements of equally many further recalls. All other words are independent draws, which context does
    not help to predict. Three draws in eight are statements; a due recall comes before any draw.

    Text is ASCII, with 6 sentences a paragraph. Only integers of numpy's PCG64 are drawn, so a seed gives the same
    bytes everywhere; a document depends on (seed, its number, words, reach), not on the number of documents.

    Args:
        seed: of all documents.
        count: documents.
        words: least number of words in a document; it ends with the sentence that reaches it.
        reach: largest distance from a statement to its recall, in words (then to the end of a sentence), at least 16.
    """

    seed: int = 0
    count: int = 64
    words: int = 4096
    reach: int = 2048

    def __post_init__(self) -> None:
        for name, least in (("seed", 0), ("count", 1), ("words", 1), ("reach", MIN_RECALL_DISTANCE_WORDS)):
            if getattr(self, name) < least:
                raise ConfigError(f"corpus.{name} must be at least {least}, got {getattr(self, name)}")

    def documents(self) -> Iterator[Document]:
        """Documents by number."""
        for place in range(self.count):
            yield Document(f"synthetic-{self.seed}-{place}", _document(self.seed, place, self.words, self.reach))

    def fingerprint(self) -> str:
        """Hash of the texts; the same on every machine."""
        return hash_documents(self.documents())


def _document(seed: int, place: int, words: int, reach: int) -> str:
    rng = np.random.Generator(np.random.PCG64([seed, place]))
    doublings = (reach // MIN_RECALL_DISTANCE_WORDS).bit_length()
    due: list[tuple[int, str, str, str]] = []  # a heap, by the word from which the recall of a statement is due
    waiting: set[tuple[str, str]] = set()  # owner and thing of these
    sentences: list[str] = []
    written = 0
    while written < words:
        if due and due[0][0] <= written:
            _, owner, thing, colour = heapq.heappop(due)
            waiting.remove((owner, thing))
            sentence = f"The {thing} of {owner} is {colour}."
        elif rng.integers(8) < 3:
            owner, thing, colour = _pick(rng, OWNER_NAMES), _pick(rng, THING_NOUNS), _pick(rng, COLOUR_WORDS)
            distance = MIN_RECALL_DISTANCE_WORDS << int(rng.integers(doublings))
            # Two recalls that are due for one thing of an owner would contradict each other.
            if (owner, thing) in waiting:
                continue
            sentence = f"{owner} owns a{'n' * (colour[0] in 'aeiou')} {colour} {thing}."
            heapq.heappush(due, (written + distance, owner, thing, colour))
            waiting.add((owner, thing))
        else:
            leads = f"The {_pick(rng, WAY_ADJECTIVES)} {_pick(rng, WAY_NOUNS)} leads"
            sentence = f"{leads} from the {_pick(rng, PLACE_NOUNS)} to the {_pick(rng, PLACE_NOUNS)}."
        sentences.append(sentence)
        written += sentence.count(" ") + 1
    paragraphs = (
        sentences[first : first + SENTENCES_PER_PARAGRAPH]
        for first in range(0, len(sentences), SENTENCES_PER_PARAGRAPH)
    )
    return "\n".join(" ".join(paragraph) for paragraph in paragraphs) + "\n"


def _pick(rng: np.random.Generator, words: str) -> str:
    choices = _choices(words)
    return choices[int(rng.integers(len(choices)))]


@functools.cache
def _choices(words: str) -> list[str]:
    return words.split()
