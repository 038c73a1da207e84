"""Question answering over documents: one of many holds the answer."""

import functools
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Self

import numpy as np

from lexbench import (
    Answer,
    AnyQuestion,
    Choose,
    ConfigError,
    Generate,
    GenerateAnswer,
    Outline,
    Refused,
    Sample,
    Task,
    Tokenizer,
    Tokens,
)
from lexbench.taskkit import haystack, matching, people, shortcuts, squad_hotpot
from lexbench.taskkit.passages import Case, Passage
from lexbench.taskkit.prompt import (
    FixedParts,
    check_at_least,
    check_count,
    check_length,
    context_beginning,
    fixed_fields,
    outline_of,
    texts_for_sizes,
)
from lexbench.taskkit.scoring import score_choice, score_written

PROMPT_HEADER = "Answer the question from these documents, in a few words."
DOCUMENT_TEMPLATE = "\nDocument: {text}"
QUESTION_TEMPLATE = "\nQuestion: {question}"
ANSWER_BEGINNING = "\nAnswer:"
ANSWER_MARGIN_TOKENS = 8
"""Tokens to write beyond those of the longest right answer."""
MAX_TRIED_ORDERS = 100
"""Random orders to try until one has a place for the document in its stratum."""


@dataclass(frozen=True, kw_only=True, eq=False)
class FixedCase(FixedParts):
    """The parts of a sample that are the same at every length."""

    case: Case
    gold: list[Tokens]
    """Tokens of the needed documents; empty in the control."""
    others: list[tuple[Tokens, Passage]]
    """The first distractors, with their tokens."""

    @property
    def least(self) -> int:
        """Prompt and room with these documents only, in tokens."""
        return self.tokens + sum(map(len, [*self.gold, *(tokens for tokens, _ in self.others)]))


@dataclass(frozen=True)
class DistractorQa(Task):
    """Answer a question from documents; one of them, or two combined, hold the answer (qa of RULER, arXiv 2404.06654).

        Answer the question from these documents, in a few words.
        Document: Fibipu, a pupil of Dusira, was born in Veta                               <- cut, to fill the length
        Document: Mosini, a pupil of Darela, was born in Tavoka on 14 March 1823. Mosini lives in Lerubi and keeps ...
        Document: Darela, a pupil of ...
        Question: In which town was Mosini born?         (two hops: In which town was the teacher of Mosini born?)
        Answer:                                                                             <- " Tavoka"

    The wording is ours. Documents are made (`taskkit.people`), or come from SQuAD or HotpotQA (`taskkit.squad_hotpot`).

    A made document is about one person: teacher, birthplace, birthday, home and keepsake, uniform and new in each
    sample. Within a prompt all names of people and towns differ, as do all dates and all objects, so the answer is
    unique. Nearly every person is the teacher of another one, so that nobody stands out. Constant over lengths, for
    each sample: question, answer, needed documents, wording, size of documents. Only the number of distractors grows.

    With official data, a sample has the same question at every length. Its distractors are those that HotpotQA gives
    with the question, as many as fit, then random documents of other questions, whatever they say. Questions without an
    answer are left out.

    Depth: the middle of the document with the answer, as a share of all documents' tokens. It lies in the sample's
    stratum; if no place does, the nearest place is taken. (RULER uses one depth for all samples of a size, which mixes
    length with depth; see also Liu et al., arXiv 2307.03172.) All other documents are in random order, and so is the
    first document of two hops. One more distractor, cut short, fills the length: at the start, or behind the document
    with the answer if that is first. The least length is the largest need among the n samples, so near it n decides
    whether a length is refused.

    Scores: `accuracy` (strict): apart from case, punctuation and articles, the first line begins with a right answer in
    whole words and lists nothing else. With made documents, the rest of the line names no other town (date, object) of
    the documents. With official data, the answer is not followed by a comma or semicolon and more, nor by "and", "or",
    "&", "/", "|" or a dash; yes or no is followed by the end or punctuation, and the line does not contain the other of
    the two. `contains`: a right answer occurs anywhere (RULER's string_match_part). With `options`, `accuracy` is that
    of the likeliest option. Chance: the better of guessing any answer of the kind and guessing one from the text; with
    official data 1/2 for yes and no, else 0.

    Args:
        hops: 2 asks for a fact of the person's teacher, who has a document of their own; made documents only.
        options: choose by likelihood among this many answers of the kind from the text (in the control, not from the
            text), all with equally many tokens; made documents only. None: the model writes.
        strata: stratify the depth into this many equal parts; sample i lies in part i modulo strata.
        room: tokens to write; None: those of the longest right answer and eight more.
        needle: False is the control: the same prompt with distractors in place of the needed documents.
        chat: use the model's chat template; "Answer:" comes after it.
        data: file in SQuAD's or HotpotQA's official form (.json), or with one row per line (.jsonl).
        dataset: name on the hub, with rows of one of these forms, if no `data` is given; refused without a network.
        config: subset of the dataset, if it has several.
        split: of the dataset.
        revision: commit, branch or tag of the dataset; None: the newest.
        data_hash: of questions and documents; filled in at the start of a run. If given, the data must have this hash.
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
        check_at_least("distractor_qa", self, strata=1, room=1, options=2)
        if self.hops not in people.QUESTION_SUBJECT_BY_HOPS:
            raise ConfigError(f"distractor_qa's hops must be 1 or 2, got {self.hops}")
        if self.options and self.room:
            raise ConfigError(f"distractor_qa writes nothing with options, got room={self.room}: leave it out")
        if self._official and (self.hops != 1 or self.options):
            given = f"options={self.options}" if self.options else f"hops={self.hops}"
            raise ConfigError(f"distractor_qa needs made documents for {given}: leave it out, or data and dataset")
        if self.data_hash and not self._official:
            raise ConfigError(f"distractor_qa has no data for data_hash={self.data_hash}: give data, or leave it out")

    @property
    def _official(self) -> bool:
        return self.data is not None or self.dataset is not None

    def for_lengths(self, lengths: Sequence[int]) -> Self:
        """Read the data and fill in its hash; if it is out of reach, `questions` refuses."""
        if not self._official or isinstance(data := self._data(), Refused):
            return self
        return replace(self, data_hash=data.hash)

    def protocol(self, tokenizer: Tokenizer) -> str:
        """Protocol in words: questions, documents, scoring of the answer."""
        made = f"one fact of a document in {self.hops} hop{'s' if self.hops > 1 else ''}"
        source = f"{Path(self.data).name if self.data else self.dataset} (hash {self.data_hash or 'unknown'})"
        what = f"a question of {source}" if self._official else made
        control = "" if self.needle else ", control without that document"
        written = "strict: a right answer comes first, greedy"
        scored = f"the likeliest of {self.options} answers of equally many tokens" if self.options else written
        start = context_beginning(tokenizer, self.chat)
        return f"distractor documents: {what}, others fill the length{control}, {scored}, {start}"

    def outline(self, tokenizer: Tokenizer, length: int, n: int, seed: int) -> Outline:
        """Sizes of n questions, estimated from those of the first samples."""
        samples = self._fitting_parts(tokenizer, length, len(texts_for_sizes(n)), seed)
        return outline_of([[sample] for sample in samples], length, n, writes=not self.options)

    def _fitting_parts(self, tokenizer: Tokenizer, length: int, count: int, seed: int) -> list[FixedCase]:
        """The fixed parts of the first samples; Refused where those of one do not fit."""
        check_count("distractor_qa", self.options or 0, "options", length)
        cases = self._cases(tokenizer, count, seed)
        samples = [self._fixed_parts(tokenizer, index, case) for index, case in enumerate(cases)]
        check_length("distractor_qa", max(sample.least for sample in samples), length)
        return samples

    def questions(self, tokenizer: Tokenizer, length: int, n: int, seed: int) -> Sequence[AnyQuestion]:
        """One prompt per sample; with the room, or the options, it fills the length exactly."""
        samples = self._fitting_parts(tokenizer, length, n, seed)
        return [self._question(tokenizer, length, seed, sample) for sample in samples]

    def _cases(self, tokenizer: Tokenizer, n: int, seed: int) -> Iterator[Case]:
        """Made questions, or the data's in the seed's order."""
        if not self._official:
            for index in range(n):
                rng = self.rng("documents", seed, index)
                yield people.make_case(tokenizer, rng, str(index), self.hops, bool(self.options))
            return
        data = self._data()
        if isinstance(data, Refused):
            raise data
        for index, item in enumerate(data.draw_items(n, self.rng("questions", seed))):
            yield data.make_case(item, self.rng("documents", seed, index))

    def _data(self) -> squad_hotpot.Data | Refused:
        data = squad_hotpot.read_questions(self.data, self.dataset, self.config, self.split, self.revision)
        if isinstance(data, squad_hotpot.Data) and self.data_hash not in (None, data.hash):
            wanted = f"data with hash {self.data_hash}, got {data.hash}"
            raise ConfigError(f"distractor_qa needs {wanted}: give that data, or leave data_hash out")
        return data

    def _fixed_parts(self, tokenizer: Tokenizer, index: int, case: Case) -> FixedCase:
        gold = case.gold if self.needle else ()
        # So many at least that all wrong options come from the text.
        others = itertools.islice(case.others, max(1, (self.options or 0) - max(1, len(gold))))
        ask, spare = QUESTION_TEMPLATE.format(question=case.question), 0 if self.options else ANSWER_MARGIN_TOKENS
        answers = [f" {answer}" for answer in (case.references[:1] if self.options else case.references)]
        return FixedCase(
            **fixed_fields(self, tokenizer, index, [PROMPT_HEADER], ask, ANSWER_BEGINNING, answers, spare),
            case=case,
            gold=[_encode(tokenizer, document.text) for document in gold],
            others=[(_encode(tokenizer, document.text), document) for document in others],
        )

    def _question(self, tokenizer: Tokenizer, length: int, seed: int, fixed: FixedCase) -> Generate | Choose:
        case, rng = fixed.case, self.rng("places", seed, fixed.index)
        others, filler, cut = self._fill_with_documents(tokenizer, fixed, length - fixed.least)
        depth = haystack.stratified_depth(fixed.index, self.strata, rng)
        unplaced = [*fixed.gold[:-1], *(tokens for tokens, _ in others)]
        if self.needle:
            documents, depth = _arrange_documents(filler, unplaced, fixed.gold[-1], depth, self.strata, rng)
        else:
            documents = [filler, *(unplaced[place] for place in rng.permutation(len(unplaced)))]
        whole, expected = len(documents) - 1, list(case.references)
        facts = {"expected": expected, "question": case.question, "depth": depth, "documents": whole}
        if self.options:
            wrong = [*case.gold[:-1], *(document for _, document in others)]
            if not self.needle:  # the right value is not in the text, so the wrong ones must not be either
                wrong = list(itertools.islice(case.others, self.options - 1))
            values = [document.value for document in wrong]
            place = int(rng.integers(self.options))
            values = [*values[:place], expected[0], *values[place : self.options - 1]]
            options = [tokenizer.encode(f" {value}").ids for value in values]
            choice = fixed.choose(documents, case.cluster, options, place, facts)
            return shortcuts.once_read_or_struck_out(choice, max(self._needed_tokens(choice, fixed), default=None))
        if not self._official:
            shown = [*case.gold, cut, *(document for _, document in others)]
            named = (value for document in shown for value in document.alike if value != expected[0])
            facts["others"] = [form for value in named for form in people.accepted_forms(value)]
        chance = max(case.chance, 1 / whole) if self.needle and not self._official else case.chance
        question = fixed.write(documents, case.cluster, chance, facts)
        return shortcuts.once_read(question, self._needed_tokens(question, fixed), case.chance)

    def _needed_tokens(self, question: Generate | Choose, fixed: FixedCase) -> list[int]:
        """Last tokens of the prompt from which on each document that holds the answer is read in whole."""
        found = [shortcuts.tokens_from(question.prompt, document) for document in fixed.gold]
        return [each for each in found if each is not None]

    def _fill_with_documents(
        self, tokenizer: Tokenizer, fixed: FixedCase, left: int
    ) -> tuple[list[tuple[Tokens, Passage]], Tokens, Passage]:
        """All distractors that fit in whole; the tokens of the one that is cut short, and that document."""
        others = list(fixed.others)
        for document in fixed.case.others:
            tokens = _encode(tokenizer, document.text)
            if len(tokens) > left:
                return others, tokens[:left], document
            others.append((tokens, document))
            left -= len(tokens)
        raise Refused(f"distractor_qa lacks {left} tokens of documents to fill the length: lower it or give more data")

    def score(self, question: AnyQuestion, answer: Answer) -> Sample:
        """Strict and official accuracy of a written answer, or accuracy of the choice."""
        if isinstance(question, Choose):
            return score_choice(question, answer)
        assert isinstance(question, Generate) and isinstance(answer, GenerateAnswer)
        references = question.facts["expected"]
        return score_written(
            question,
            answer,
            {
                "accuracy": matching.strict_phrase_score(answer.text, references, question.facts.get("others")),
                "contains": matching.contains_any(answer.text, references),
            },
        )


def _arrange_documents(
    filler: Tokens, others: Sequence[Tokens], gold: Tokens, depth: float, strata: int, rng: np.random.Generator
) -> tuple[list[Tokens], float]:
    """Documents in random order, and the depth of the gold document's middle, inside the stratum if possible."""
    for _ in range(MAX_TRIED_ORDERS):
        documents = [filler, *(others[place] for place in rng.permutation(len(others)))]
        # For each place in this order, where the middle of the gold document would be.
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
def _encode(tokenizer: Tokenizer, text: str) -> Tokens:
    return tokenizer.encode(DOCUMENT_TEMPLATE.format(text=text)).ids
