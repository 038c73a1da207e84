"""Made documents about people, and questions about one person, for the task distractor_qa.

Mosini, a pupil of Darela, was born in Tavoka on 14 March 1823. Mosini lives in Lerubi and keeps a big red clay vase.

1 hop     In which town was Mosini born?                   Tavoka
2 hops    In which town was the teacher of Mosini born?    see the document of Darela
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from lexbench.core.task import Tokenizer
from lexbench.taskkit import sampling
from lexbench.taskkit.passages import Case, Passage

FIRST_NAMES = (
    *("Adam", "Alice", "Anna", "Ben", "Carl", "Clara", "David", "Diana", "Edward", "Ella", "Emma", "Eric"),
    *("Frank", "George", "Grace", "Harry", "Helen", "Henry", "Jack", "James", "Jane", "John", "Julia", "Karen"),
    *("Kate", "Laura", "Leo", "Linda", "Lucy", "Mark", "Martin", "Mary", "Max", "Mike", "Nick", "Nina"),
    *("Oliver", "Oscar", "Paul", "Peter", "Robert", "Rose", "Sam", "Sarah", "Simon", "Thomas", "Tom", "Victor"),
)
"""First names of people in the lines."""
PERSON_TEMPLATE = (
    "{name}, a pupil of {teacher}, was born in {birthplace} on {birthday}. "
    "{name} lives in {home} and keeps a {keepsake}."
)
QUESTION_SUBJECT_BY_HOPS = {1: "{name}", 2: "the teacher of {name}"}
"""The person in the question, by hops."""

MONTH_NAMES, *OBJECT_WORD_LISTS = (
    words.split()
    for words in (
        "January February March April May June July August September October November December",
        "big broad flat heavy large light long narrow small thin",
        "beige black blue brown cream gray green lilac pink purple red rose scarlet turquoise white yellow",
        "brass bronze clay copper cotton glass iron leather linen marble paper silk silver steel stone wooden",
        "basket bell belt boat book bottle bowl box bracelet brush bucket button candle chain chair clock coat comb "
        "cup door drum fan flute frame glove hammer hat horn jar kettle key ladder lamp lantern mask mirror necklace "
        "pipe plate ring rope scarf shoe spoon table tray vase wheel",
    )
)
DAY_NUMBERS, YEAR_NUMBERS = ([str(number) for number in numbers] for numbers in (range(1, 29), range(1500, 1900)))
"""28 days: every month has them."""
ANSWER_VALUES = {
    "names": sampling.Combined(
        [[syllable.capitalize() for syllable in sampling.TWO_LETTER_SYLLABLES], *sampling.PRONOUNCEABLE_WORDS.lists[1:]]
    ),
    "dates": sampling.Combined([DAY_NUMBERS, MONTH_NAMES, YEAR_NUMBERS], " "),
    "objects": sampling.Combined(OBJECT_WORD_LISTS, " "),
}
"""Values of answers by noun: names of people and towns, birthdays, keepsakes."""


@dataclass(frozen=True)
class QuestionKind:
    """Kind of question, with the key of ANSWER_VALUES (`noun`) that holds its answers."""

    question: str
    noun: str


QUESTION_KINDS = {
    "birthplace": QuestionKind("In which town was {who} born?", "names"),
    "birthday": QuestionKind("On which date was {who} born?", "dates"),
    "home": QuestionKind("In which town does {who} live?", "names"),
    "keepsake": QuestionKind("Which object does {who} keep?", "objects"),
}


def make_case(tokenizer: Tokenizer, rng: np.random.Generator, cluster: str, hops: int, same_size: bool) -> Case:
    """A question about the second person made (the first one's teacher), or with two hops about the third.

    Args:
        tokenizer: of the model.
        rng: draws the kind of question and the people.
        cluster: of the sample.
        hops: 1, or 2 for a fact of the person's teacher.
        same_size: whether all answers of the kind have equally many tokens, as options of a choice need.
    """
    kind = list(QUESTION_KINDS)[rng.integers(len(QUESTION_KINDS))]
    made = make_people(tokenizer, rng, kind, same_size)
    # The person in question is someone's teacher, too, like nearly all others: the first pupil's document is a
    # distractor.
    (_, pupil), (name, first), *further = itertools.islice(made, 1 + hops)
    gold = (first, *(document for _, document in further))
    return Case(
        question=QUESTION_KINDS[kind].question.format(who=QUESTION_SUBJECT_BY_HOPS[hops].format(name=name)),
        references=accepted_forms(gold[-1].value),
        gold=gold,
        others=itertools.chain([pupil], (document for _, document in made)),
        cluster=cluster,
        chance=1 / ANSWER_VALUES[QUESTION_KINDS[kind].noun].count,
    )


def make_people(
    tokenizer: Tokenizer, rng: np.random.Generator, kind: str, same_size: bool
) -> Iterator[tuple[str, Passage]]:
    """Names and documents of people, each the pupil of the next one."""
    spelled = {noun: _shuffled_values(rng, noun) for noun in ANSWER_VALUES}
    facts = {each: spelled[QUESTION_KINDS[each].noun] for each in QUESTION_KINDS}
    if same_size:
        facts[kind] = sampling.keep_usual_size(
            tokenizer, facts[kind], "distractor_qa finds no further answer", "leave options out"
        )
    name = next(spelled["names"])
    for teacher in spelled["names"]:
        drawn = {each: next(values) for each, values in facts.items()}
        # An answer that also names another town of the same document is wrong: `strict_phrase_score` looks for these.
        alike = tuple(drawn[each] for each in QUESTION_KINDS if QUESTION_KINDS[each].noun == QUESTION_KINDS[kind].noun)
        yield name, Passage(PERSON_TEMPLATE.format(name=name, teacher=teacher, **drawn), drawn[kind], alike)
        name = teacher


def accepted_forms(value: str) -> tuple[str, ...]:
    """A value as the documents write it; of a date also the American form."""
    day, _, rest = value.partition(" ")
    month, _, year = rest.partition(" ")
    return (value, f"{month} {day}, {year}") if month in MONTH_NAMES else (value,)


def _shuffled_values(rng: np.random.Generator, noun: str) -> Iterator[str]:
    """All names, dates or objects in random order; Refused after the last one."""
    values = ANSWER_VALUES[noun]
    lack = f"distractor_qa has {values.count} different {noun}, the documents need more: lower length"
    return map(values.spell, sampling.shuffled_numbers(rng, values.count, lack))
