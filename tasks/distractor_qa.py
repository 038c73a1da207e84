"""Questions over documents: one of many holds the answer."""

import functools
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Self

import numpy as np

from lexbench import Answer, AnyQuestion, Choose, Chosen, Refused, Sample, Task, Tokenizer, Tokens, Write, Written
from lexbench.taskkit import haystack, matching, sampling, squad_hotpot
from lexbench.taskkit.scoring import score_choice, score_written

HEADER = "Answer the question from these documents, in a few words."
DOCUMENT = "\nDocument: {text}"
ASK = "\nQuestion: {question}"
BEGIN = "\nAnswer:"
MARGIN = 8
"""Tokens to write beyond those of the longest right answer."""

PERSON = (
    "{name}, a pupil of {teacher}, was born in {birthplace} on {birthday}. "
    "{name} lives in {home} and keeps a {keepsake}."
)
WHO = {1: "{name}", 2: "the teacher of {name}"}
"""Who is asked about, by hops."""

ORDERS = 100
"""In which a place in the stratum is looked for."""

MONTHS, *PARTS = (
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
DAYS, YEARS = ([str(number) for number in numbers] for numbers in (range(1, 29), range(1500, 1900)))
"""Every month has 28 days."""
VALUES = {
    "names": sampling.Combined(
        [[syllable.capitalize() for syllable in sampling.SYLLABLES], *sampling.SPOKEN.lists[1:]]
    ),
    "dates": sampling.Combined([DAYS, MONTHS, YEARS], " "),
    "objects": sampling.Combined(PARTS, " "),
}
"""Of people and towns, of birthdays, of keepsakes."""


@dataclass(frozen=True)
class Kind:
    """What a made document tells of a person, and which of VALUES it is."""

    question: str
    noun: str


KINDS = {
    "birthplace": Kind("In which town was {who} born?", "names"),
    "birthday": Kind("On which date was {who} born?", "dates"),
    "home": Kind("In which town does {who} live?", "names"),
    "keepsake": Kind("Which object does {who} keep?", "objects"),
}


@dataclass(frozen=True)
class Document:
    """A text, and what a made one tells of the kind that is asked for."""

    text: str
    value: str = ""
    alike: tuple[str, ...] = ()
    """All that it tells of that sort: both towns, or the date, or the object."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Case:
    """A question, the documents that answer it, and others."""

    question: str
    references: tuple[str, ...]
    """Right answers, the usual one first."""
    gold: tuple[Document, ...]
    """All are needed; the last one holds the answer."""
    others: Iterator[Document]
    cluster: str
    chance: float


@dataclass(frozen=True, kw_only=True, eq=False)
class Asked:
    """All that one sample has at the least."""

    index: int
    case: Case
    gold: list[Tokens]
    """Without the answer in the control."""
    others: list[tuple[Tokens, Document]]
    """The first documents that do not answer, with their tokens."""
    before: Tokens
    after: Tokens
    room: int

    @property
    def least(self) -> int:
        """Tokens in all with these documents alone."""
        documents = [*self.gold, *(tokens for tokens, _ in self.others)]
        return len(self.before) + sum(map(len, documents)) + len(self.after) + self.room


@dataclass(frozen=True)
class DistractorQa(Task):
    """Answer a question from documents of which one (or two, one after the other) tells the answer (RULER's qa).

    After Hsieh et al., RULER (arXiv 2404.06654), and Liu et al. (arXiv 2307.03172); words our own.

        Answer the question from these documents, in a few words.
        Document: Fibipu, a pupil of Dusira, was born in Veta                               <- cut, to fill the length
        Document: Mosini, a pupil of Darela, was born in Tavoka on 14 March 1823. Mosini lives in Lerubi and keeps ...
        Document: Darela, a pupil of ...
        Question: In which town was Mosini born?         (two hops: In which town was the teacher of Mosini born?)
        Answer:                                                                             <- " Tavoka"

    Documents are made, or those of SQuAD or HotpotQA. Made ones tell of one person each: teacher, birthplace, birthday,
    home and keepsake, uniform, new in each sample. In one prompt all names of people and towns differ, and so do all
    dates, and all objects: the answer is unique. Nearly everybody is the teacher of somebody else in the prompt, so
    that nobody stands out. Held constant over lengths: of sample i the question, the answer and the documents that give
    it, the wording and the size of documents; what grows is the number of others. The least length is the most that any
    of the n samples needs, so near it n decides whether a length is refused.

    Of official data sample i has the same question at every length. Its others are first those that HotpotQA gives with
    it, as many as fit, then documents of other questions by chance, whatever they tell. Questions without an answer are
    left out.

    The document with the answer is stratified by depth: it stands at one of the places where its middle, as a share of
    all documents' tokens, lies in the sample's stratum (at the nearest place where there are too few documents). In
    RULER it has one place in all samples of one size, which mixes up length and depth. All other documents, the first
    one of two hops among them, stand in random order. What is left is filled by one more, cut short, at the beginning
    or right behind the document with the answer if that comes first.

    Scores: `accuracy`, strict: but for case, punctuation and articles the first line begins with a right answer, in
    whole words, and does not go on listing. Of made documents, the rest of the line names no other town (or date, or
    object) that they tell of. Of official data no comma or semicolon with more follows, nor "and", "or", "&", "/", "|"
    or a dash; behind yes or no must come the end or a punctuation mark, and nowhere in the line the other of the two.
    `contains`: a right answer stands somewhere
    (RULER's string_match_part: one is enough). With `options`, `accuracy` is that of the likeliest one. Chance is the
    likelier of two guesses: any answer of the kind, or any in the text; of official data 1/2 for yes and no, else 0.

    Args:
        hops: 2 asks for a fact of the teacher, who has another document; made documents only.
        options: choose by likelihood among so many answers of the kind that stand in the text (in the control, that do
            not), all with equally many tokens; made documents only. None: the model writes.
        strata: parts of equal size for the depth of the document with the answer, sample i in part i modulo strata.
        room: tokens to write; None: those of the longest right answer, and eight more.
        needle: False is the control: the same prompt with other documents in place of those that are needed.
        chat: ask in the model's chat template; "Answer:" comes after it.
        data: file of SQuAD's or HotpotQA's official form (.json), or with one row of them a line (.jsonl).
        dataset: on the hub, with rows of one of these forms, where no `data` is given; without network it is refused.
        config: subset of the dataset, where it has several.
        split: of the dataset.
        revision: commit, branch or tag of the dataset; None: the newest.
        data_hash: of questions and documents; filled in at the start of a run. Given: the data must have it.
    """

    form: ClassVar[tuple[str, ...]] = ("needle", "room", "chat", "data", "dataset", "config", "revision", "data_hash")
    hops: int = 1
    options: int | None = None
    strata: int = 8
    room: int | None = None
    needle: bool = True
    chat: bool = False
    data: str | None = None
    dataset: str | None = None
    config: str | None = None
    split: str = "validation"
    revision: str | None = None
    data_hash: str | None = None

    def __post_init__(self) -> None:
        for name, least in (("strata", 1), ("room", 1), ("options", 2)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ValueError(f"distractor_qa's {name} must be at least {least}, got {value}")
        if self.hops not in WHO:
            raise ValueError(f"distractor_qa's hops must be 1 or 2, got {self.hops}")
        if self.options and self.room:
            raise ValueError(f"distractor_qa writes nothing with options, got room={self.room}: leave it out")
        if self._official and (self.hops != 1 or self.options):
            given = f"options={self.options}" if self.options else f"hops={self.hops}"
            raise ValueError(f"distractor_qa's {given} is for made documents: leave it out, or data and dataset")
        if self.data_hash and not self._official:
            raise ValueError(f"distractor_qa's data_hash={self.data_hash} is of data: give data, or leave it out")

    @property
    def _official(self) -> bool:
        return self.data is not None or self.dataset is not None

    def for_lengths(self, lengths: Sequence[int]) -> Self:
        """With the hash of the data, which is read here; where it cannot be had, `questions` refuses."""
        if not self._official or isinstance(data := self._data(), Refused):
            return self
        return replace(self, data_hash=data.hash)

    def protocol(self, tokenizer: Tokenizer) -> str:
        """One line: what is asked and how it is scored."""
        made = f"one fact of a document in {self.hops} hop{'s' if self.hops > 1 else ''}"
        source = f"{Path(self.data).name if self.data else self.dataset} (hash {self.data_hash or 'unknown'})"
        what = f"a question of {source}" if self._official else made
        control = "" if self.needle else ", control without that document"
        written = "strict: a right answer comes first, greedy"
        scored = f"the likeliest of {self.options} answers of equally many tokens" if self.options else written
        start = ("BOS" if tokenizer.prefix else "no BOS") + (", chat template" if self.chat else "")
        return f"distractor documents: {what}, others fill the length{control}, {scored}, {start}"

    def questions(self, tokenizer: Tokenizer, length: int, n: int, seed: int) -> Sequence[AnyQuestion]:
        """Prompts that fill the length exactly with the room or the options, one a sample."""
        cases = self._official_cases(n, seed) if self._official else self._made_cases(tokenizer, n, seed)
        samples = [self._asked(tokenizer, index, case) for index, case in enumerate(cases)]
        least = max(sample.least for sample in samples)
        if length < least:
            raise Refused(f"distractor_qa needs at least {least} tokens, asked for {length}: raise length")
        return [self._question(tokenizer, length, seed, sample) for sample in samples]

    def _made_cases(self, tokenizer: Tokenizer, n: int, seed: int) -> Iterator[Case]:
        """Questions about the second of the people, the first one's teacher, or the third, the second one's."""
        for index in range(n):
            rng = self.rng("documents", seed, index)
            kind = list(KINDS)[rng.integers(len(KINDS))]
            people = self._people(tokenizer, rng, kind)
            (_, pupil), (name, first), *further = itertools.islice(people, 1 + self.hops)
            gold = (first, *(document for _, document in further))
            yield Case(
                question=KINDS[kind].question.format(who=WHO[self.hops].format(name=name)),
                references=_forms(gold[-1].value),
                gold=gold,
                others=itertools.chain([pupil], (document for _, document in people)),
                cluster=str(index),
                chance=1 / VALUES[KINDS[kind].noun].count,
            )

    def _people(self, tokenizer: Tokenizer, rng: np.random.Generator, kind: str) -> Iterator[tuple[str, Document]]:
        """Names and what is told of them, each the pupil of the next one."""
        spelled = {noun: _distinct(rng, noun) for noun in VALUES}
        facts = {each: spelled[KINDS[each].noun] for each in KINDS}
        if self.options:
            facts[kind] = sampling.alike(
                tokenizer, facts[kind], "distractor_qa finds no further answer", "leave options out"
            )
        name = next(spelled["names"])
        for teacher in spelled["names"]:
            told = {each: next(values) for each, values in facts.items()}
            alike = tuple(told[each] for each in KINDS if KINDS[each].noun == KINDS[kind].noun)
            yield name, Document(PERSON.format(name=name, teacher=teacher, **told), told[kind], alike)
            name = teacher

    def _official_cases(self, n: int, seed: int) -> Iterator[Case]:
        """Questions of the data in the seed's order; Refused where it has fewer."""
        data = self._data()
        if isinstance(data, Refused):
            raise data
        if n > len(data.items):
            raise Refused(f"distractor_qa needs {n} questions, the data has {len(data.items)}: lower n")
        for index, place in enumerate(self.rng("questions", seed).permutation(len(data.items))[:n]):
            item = data.items[place]
            yield Case(
                question=item.question,
                references=item.references,
                gold=tuple(map(Document, item.gold)),
                others=map(Document, data.others(item, self.rng("documents", seed, index))),
                cluster=item.cluster,
                chance=1 / 2 if matching.normalised(item.references[0]) in matching.OPPOSITES else 0.0,
            )

    def _data(self) -> squad_hotpot.Data | Refused:
        data = squad_hotpot.read(self.data, self.dataset, self.config, self.split, self.revision)
        if isinstance(data, squad_hotpot.Data) and self.data_hash not in (None, data.hash):
            wanted = f"data with hash {self.data_hash}, got {data.hash}"
            raise ValueError(f"distractor_qa needs {wanted}: give that data, or leave data_hash out")
        return data

    def _asked(self, tokenizer: Tokenizer, index: int, case: Case) -> Asked:
        gold = case.gold if self.needle else ()
        others = itertools.islice(case.others, max(1, (self.options or 0) - max(1, len(gold))))
        frame = tokenizer.frame(self.chat)
        begin = BEGIN.lstrip() if self.chat else BEGIN
        ask = tokenizer.encode(ASK.format(question=case.question)).ids
        written = max(len(tokenizer.encode(f" {reference}").ids) for reference in case.references)
        if self.options:
            written = len(tokenizer.encode(f" {case.references[0]}").ids)
        if self.room is not None and self.room < written:
            raise Refused(f"distractor_qa's answer has {written} tokens, its room {self.room}: raise room")
        return Asked(
            index=index,
            case=case,
            gold=[_encoded(tokenizer, document.text) for document in gold],
            others=[(_encoded(tokenizer, document.text), document) for document in others],
            before=np.concatenate([frame.before, tokenizer.encode(HEADER).ids]),
            after=np.concatenate([ask, frame.after, tokenizer.encode(begin).ids]),
            room=written if self.options else self.room or written + MARGIN,
        )

    def _question(self, tokenizer: Tokenizer, length: int, seed: int, asked: Asked) -> Write | Choose:
        case, rng = asked.case, self.rng("places", seed, asked.index)
        others, filler, cut = self._filling(tokenizer, asked, length - asked.least)
        depth = haystack.stratified(asked.index, self.strata, rng)
        unplaced = [*asked.gold[:-1], *(tokens for tokens, _ in others)]
        if self.needle:
            documents, depth = _arranged(filler, unplaced, asked.gold[-1], depth, self.strata, rng)
        else:
            documents = [filler, *(unplaced[place] for place in rng.permutation(len(unplaced)))]
        prompt = np.concatenate([asked.before, *documents, asked.after])
        whole, expected = len(documents) - 1, list(case.references)
        facts = {"expected": expected, "question": case.question, "depth": depth, "documents": whole}
        if self.options:
            wrong = [*case.gold[:-1], *(document for _, document in others)]
            if not self.needle:  # the right one is not in the text, so no other is: having been read tells nothing
                wrong = list(itertools.islice(case.others, self.options - 1))
            values = [document.value for document in wrong]
            place = int(rng.integers(self.options))
            values = [*values[:place], expected[0], *values[place : self.options - 1]]
            return Choose(
                index=asked.index,
                cluster=case.cluster,
                prompt=prompt,
                options=tuple(tokenizer.encode(f" {value}").ids for value in values),
                expected=place,
                facts=facts,
            )
        if not self._official:
            told = [*case.gold, cut, *(document for _, document in others)]
            named = (value for document in told for value in document.alike if value != expected[0])
            facts["others"] = [form for value in named for form in _forms(value)]
        return Write(
            index=asked.index,
            cluster=case.cluster,
            prompt=prompt,
            room=asked.room,
            answer=f" {expected[0]}",
            chance=max(case.chance, 1 / whole) if self.needle and not self._official else case.chance,
            facts=facts,
        )

    def _filling(
        self, tokenizer: Tokenizer, asked: Asked, left: int
    ) -> tuple[list[tuple[Tokens, Document]], Tokens, Document]:
        """Documents that do not answer; the last tokens for which none is left room, and the one they are cut from."""
        others = list(asked.others)
        for document in asked.case.others:
            tokens = _encoded(tokenizer, document.text)
            if len(tokens) > left:
                return others, tokens[:left], document
            others.append((tokens, document))
            left -= len(tokens)
        raise Refused(f"distractor_qa lacks {left} tokens of documents to fill the length: lower it or give more data")

    def score(self, question: AnyQuestion, answer: Answer) -> Sample:
        """Strict and official accuracy of what was written, or accuracy of the choice."""
        if isinstance(question, Choose):
            assert isinstance(answer, Chosen)
            return score_choice(question, answer, depth=question.facts["depth"])
        assert isinstance(question, Write) and isinstance(answer, Written)
        references = question.facts["expected"]
        return score_written(
            question,
            answer,
            {
                "accuracy": matching.strict_phrase(answer.text, references, question.facts.get("others")),
                "contains": matching.contains_any(answer.text, references),
            },
        )


def _arranged(
    filler: Tokens, others: Sequence[Tokens], gold: Tokens, depth: float, strata: int, rng: np.random.Generator
) -> tuple[list[Tokens], float]:
    """Documents in random order, and the depth of the gold one's middle: in the stratum, if some order allows that."""
    for _ in range(ORDERS):
        documents = [filler, *(others[place] for place in rng.permutation(len(others)))]
        begins = np.cumsum([0, *map(len, documents)])
        middles = (begins + len(gold) / 2) / (begins[-1] + len(gold))
        own = np.flatnonzero((middles * strata).astype(np.int64) == int(depth * strata))
        if len(own):
            place = int(rng.choice(own))
            break
    else:
        place = int(np.argmin(np.abs(middles - depth)))
    return [*documents[:place], gold, *documents[place:]], float(middles[place])


@functools.lru_cache(maxsize=1 << 14)
def _encoded(tokenizer: Tokenizer, text: str) -> Tokens:
    return tokenizer.encode(DOCUMENT.format(text=text)).ids


def _distinct(rng: np.random.Generator, noun: str) -> Iterator[str]:
    """Names, dates or objects by chance, each once; Refused after the last one."""
    values = VALUES[noun]
    lack = f"distractor_qa has {values.count} different {noun}, the documents need more: lower length"
    return map(values.spell, sampling.distinct(rng, values.count, lack))


def _forms(value: str) -> tuple[str, ...]:
    """A value as documents write it, and a date in the American way, too."""
    day, _, rest = value.partition(" ")
    month, _, year = rest.partition(" ")
    return (value, f"{month} {day}, {year}") if month in MONTHS else (value,)
