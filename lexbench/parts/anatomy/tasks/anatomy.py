"""Anatomy: the same key asked for at the same distance, with one cause of loss at a time."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from lexbench import (
    Answer,
    AnyQuestion,
    Choose,
    ChooseAnswer,
    ConfigError,
    Corpus,
    Layout,
    Metric,
    Outline,
    Refused,
    Sample,
    Task,
    Tokenizer,
    Tokens,
)
from lexbench.parts.anatomy.wordings import KEY_WORDINGS, N_CANDIDATES, Wording
from lexbench.taskkit.haystack import fill_haystack
from lexbench.taskkit.prompt import check_at_least, check_haystack, check_length, context_beginning
from lexbench.taskkit.scoring import sample_of

STATEMENT_END = 64
"""Position behind the statement of the key, tokens."""
QUESTION_ROOM = 64
"""Positions for the question and the key behind it, tokens."""
FIXED_ROOM = STATEMENT_END + QUESTION_ROOM
"""Positions of a text beside the distance."""
N_DISTANCES = 16
"""Distances of an octave."""
N_SOURCES = 3
"""Running texts of which fillers are cut."""
NEAR_TEXT = 64
"""Tokens of text in front of a question, of which `near` are shown."""
FILLER_KINDS = ("none", "blind", "masked", "present")


@dataclass(frozen=True, eq=False)
class QuestionPieces:
    """The tokens of a question, before they are placed."""

    wording: Wording
    beginning: Tokens
    """BOS, or nothing."""
    intro: Tokens
    """Running text in front of the statement, which fills `STATEMENT_END` positions with it."""
    statement: Tokens
    filler: Tokens
    """As many tokens as the distance."""
    near: Tokens
    """[NEAR_TEXT] text of another source."""
    asks: Tokens
    format: Tokens
    """Tokens that all candidates begin with."""
    keys: list[Tokens]
    """Tokens of each candidate behind the format."""
    rivals: list[Tokens]
    """Statements of other candidates."""
    expected: int
    others: list[int]
    """Candidates of `rivals`."""
    cluster: str
    distance: int


@dataclass(frozen=True)
class Anatomy(Task):
    """Ask for a stated key at a distance of up to `length` - 128, with causes of loss that are added one by one.

        BOS intro The pass key is 40213. ... | ------ distance ------ | What is the pass key? The pass key is
                                             | filler .... near text  |

    All forms of the task ask the same questions: wording, key, candidates, distance and texts are those of the number
    of the question, so that two forms are compared in pairs. The distance is the number of positions between the
    statement and the question; its filler and near text are among them. Without a filler positions jump. Distances are
    uniform draws in 16 parts of an octave, (length - 128) / 2 to length - 128, so that one phase of the slowest pairs
    does not stand for all. Question i has wording i mod 12.

    Scores: `nats`, of the key's tokens given all before them; what all candidates begin with, such as the blank before
    digits, is the format and has its own `format_nats`. `margin`, nats by which the likeliest wrong one of 16
    candidates is less likely than the right one; `own_margin`, the same among the rivals in the text. `accuracy`
    (chosen): the right candidate is the likeliest. `greedy`: each token of the key is the likeliest of all, given the
    format; `whole`: those of the format, too.

    Args:
        corpus: of the running text.
        haystack: text: running text, three fillers, and near texts and intros from elsewhere. noise: the sentences of
            passkey for all, for models that read little else; repeated, they invite copying.
        near: last tokens of the distance that are running text, 0 to 64.
        blind: the near text sees neither the key nor the intro, only what begins a text (it is read before them).
        filler: none: the rest of the distance holds no tokens. present: running text. masked: present, hidden from
            near text and question, which is `none` where all layers see all keys. blind: present, and sees neither
            the key nor the intro.
        sink: False: the question does not see the first token.
        rivals: statements of other candidates in a present filler, in place of so many tokens of it.
        far: False: the question stands behind the statement, the control for each question.
        key: False: running text in place of the statement, the control in which chance is right.
        placed: False: a text without jumps is read as any other, not by explicit positions.
    """

    version: ClassVar[int] = 1
    form: ClassVar[tuple[str, ...]] = ("near", "blind", "filler", "sink", "rivals", "far", "key", "placed")
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("nats", unit="nats", better="lower", headline=True),
        Metric("format_nats", unit="nats", better="lower"),
        Metric("margin", unit="nats", better="higher"),
        Metric("own_margin", unit="nats", better="higher"),
        Metric("greedy"),
        Metric("whole"),
    )
    corpus: Corpus | None = None
    haystack: str = "text"
    near: int = 0
    blind: bool = False
    filler: str = "none"
    sink: bool = True
    rivals: int = 0
    far: bool = True
    key: bool = True
    placed: bool = True

    def __post_init__(self) -> None:
        check_at_least("anatomy", self, near=0, rivals=0)
        check_haystack("anatomy", self)
        if self.near > NEAR_TEXT:
            raise ConfigError(f"anatomy's near must be at most {NEAR_TEXT} tokens, got {self.near}: lower it")
        if self.filler not in FILLER_KINDS:
            raise ConfigError(
                f"anatomy's filler must be one of {', '.join(FILLER_KINDS)}, got {self.filler}: choose one"
            )
        if self.rivals >= N_CANDIDATES or (self.rivals and self.filler != "present"):
            raise ConfigError(f"anatomy's rivals stand in filler=present, at most 15, got {self.rivals}: lower them")
        if not self.far and (self.near or self.filler != "none"):
            raise ConfigError("anatomy with far=false has no distance for near text or filler: leave them out")
        if not self.placed and (self._jumps or not self.sink):
            raise ConfigError("anatomy with placed=false needs far=false or filler=present, and sink=true: set them")

    @property
    def _jumps(self) -> bool:
        return self.far and self.filler != "present"

    def protocol(self, tokenizer: Tokenizer) -> str:
        """Protocol in words."""
        return (
            f"nats of a key stated once, {len(KEY_WORDINGS)} wordings, chosen among {N_CANDIDATES}, distance an octave "
            f"up to the length less {FIXED_ROOM}, {context_beginning(tokenizer)}"
        )

    def questions(self, tokenizer: Tokenizer, length: int, n: int, seed: int) -> Sequence[AnyQuestion]:
        """n questions, none longer than the length."""
        check_length("anatomy", FIXED_ROOM + NEAR_TEXT, length)
        made = [self._pieces(tokenizer, length, seed, index) for index in range(n)]
        return [self._question(index, each) for index, each in enumerate(made)]

    def outline(self, tokenizer: Tokenizer, length: int, n: int, seed: int) -> Outline:
        """Positions of n questions, without their texts."""
        check_length("anatomy", FIXED_ROOM + NEAR_TEXT, length)
        without = replace(self, corpus=None, haystack="noise")
        made = [without._pieces(tokenizer, length, seed, index, self) for index in range(n)]
        return Outline(n, sum(without._question(0, each).length for each in made) / n)

    def _pieces(
        self, tokenizer: Tokenizer, length: int, seed: int, index: int, draws: "Anatomy | None" = None
    ) -> QuestionPieces:
        """The tokens of a question, the same for all forms of the task; `draws` has another haystack."""
        draw = (draws or self).rng
        wording, rng = KEY_WORDINGS[index % len(KEY_WORDINGS)], draw("question", length, seed, index)
        beginning = np.array(tokenizer.prefix, np.int64)
        candidates = wording.draw(rng)
        expected, *others = rng.permutation(N_CANDIDATES).tolist()
        # Neighbours in the list of questions have other wordings and other parts of the octave.
        part, most = (index + index // 48) % N_DISTANCES, length - FIXED_ROOM
        share = (part + draw("distance", length, seed, part).random()) / N_DISTANCES
        distance = int(most // 2 + share * (most - most // 2))
        asks, format_, keys = _split_answers(tokenizer, wording, candidates)

        def stated(candidate: int) -> Tokens:
            return tokenizer.encode(wording.statement.format(key=candidates[candidate])).ids

        statement = stated(expected)
        room = STATEMENT_END - len(beginning) - len(statement)
        needed = len(asks) + len(format_) + max(map(len, keys))
        if room < 0 or needed > QUESTION_ROOM:
            raise Refused(
                f"anatomy has 64 tokens for a statement and as many for a question, {wording.name} needs more"
            )
        filler = self._cut_text(tokenizer, distance, draw("source", seed, part % N_SOURCES))
        near, intro = (self._cut_text(tokenizer, NEAR_TEXT, rng) for _ in range(2))
        if not self.key:
            statement = self._cut_text(tokenizer, len(statement), rng)
        return QuestionPieces(
            wording, beginning, intro[:room], statement, filler, near, asks, format_, keys,
            [stated(each) for each in others], expected, others, wording.name, distance,
        )  # fmt: skip

    def _cut_text(self, tokenizer: Tokenizer, tokens: int, rng: np.random.Generator) -> Tokens:
        """[tokens] of text without a key, from a place of the generator's."""
        return fill_haystack(self.corpus, tokenizer, tokens, "", rng).tokens

    def _question(self, index: int, pieces: QuestionPieces) -> Choose:
        """The question with its tokens in the order of reading, and their positions."""
        near_begin = STATEMENT_END + pieces.distance - self.near
        end = STATEMENT_END + pieces.distance if self.far else STATEMENT_END
        filler = self._filler(pieces)
        head = [("beginning", pieces.beginning, 0)]
        stated = [
            ("intro", pieces.intro, len(pieces.beginning)),
            ("statement", pieces.statement, STATEMENT_END - len(pieces.statement)),
        ]
        between = [("filler", filler, STATEMENT_END)]
        near = [("near", pieces.near[NEAR_TEXT - self.near :], near_begin)]
        if self.filler == "blind":
            parts = [*head, *between, *(near if self.blind else []), *stated, *([] if self.blind else near)]
        else:
            # A near text that is blind to the key is read before it, behind no filler that could be read there.
            parts = [*head, *(near if self.blind else []), *stated, *between, *([] if self.blind else near)]
        parts = [part for part in [*parts, ("asks", pieces.asks, end)] if len(part[1])]
        prompt = np.concatenate([tokens for _, tokens, _ in parts])
        layout = _layout_of(parts, hides=self.filler == "masked", sink=self.sink) if self.placed else None
        options = [np.concatenate([pieces.format, key]) for key in pieces.keys]
        formats = [pieces.format] if len(pieces.format) else []
        return Choose(
            index=index,
            cluster=pieces.cluster,
            prompt=prompt,
            options=(*options, *formats),
            expected=pieces.expected,
            guess=1 / N_CANDIDATES,
            layout=layout,
            facts={
                "wording": pieces.wording.name,
                "kind": pieces.wording.kind,
                "distance": pieces.distance if self.far else 0,
                "format": len(pieces.format),
                "rivals": pieces.others[: self.rivals],
            },
        )

    def _filler(self, pieces: QuestionPieces) -> Tokens:
        """The filler's tokens, with rivals in place of some: spread evenly, none at an end."""
        size = pieces.distance - self.near if self.filler != "none" and self.far else 0
        rivals = pieces.rivals[: self.rivals]
        left = size - sum(map(len, rivals))
        if left < 0:
            raise Refused(f"anatomy has {size} tokens of filler, {self.rivals} rivals need {size - left}: raise length")
        cuts = [left * (number + 1) // (len(rivals) + 1) for number in range(len(rivals))]
        spans = zip([0, *cuts], [*cuts, left], strict=True)
        texts = [pieces.filler[begin:stop] for begin, stop in spans]
        return np.concatenate([texts[0], *(part for pair in zip(rivals, texts[1:], strict=True) for part in pair)])

    def score(self, question: AnyQuestion, answer: Answer) -> Sample:
        """Nats of the key and of its format, margins, and what is the likeliest."""
        assert isinstance(question, Choose) and isinstance(answer, ChooseAnswer)
        nll = np.asarray(answer.nll, np.float64)
        size, right = question.facts["format"], question.expected
        format_nats = float(nll[N_CANDIDATES]) if size else 0.0
        keys = nll[:N_CANDIDATES] - format_nats
        wrong = np.delete(keys, right)
        scores = {
            "nats": float(keys[right]),
            "format_nats": format_nats,
            "margin": float(wrong.min() - keys[right]),
            "accuracy": float(keys[right] < wrong.min()),
        }
        if self.rivals:
            scores["own_margin"] = float(keys[question.facts["rivals"]].min() - keys[right])
        if answer.taught_ranks is not None:
            first = answer.taught_ranks == 0
            scores |= {"greedy": float(first[size:].all()), "whole": float(first.all())}
        bad = not np.isfinite(nll).all()
        return sample_of(
            question,
            scores={} if bad else scores,
            chance=question.chance,
            failed="a candidate has no finite likelihood" if bad else None,
            statistics={"option_nll": nll.astype(np.float32)},
        )


def _split_answers(
    tokenizer: Tokenizer, wording: Wording, candidates: Sequence[str]
) -> tuple[Tokens, Tokens, list[Tokens]]:
    """Tokens of the question, of the format that all candidates begin with, and of each candidate behind it."""
    question = wording.question.format()
    wholes = [tokenizer.encode(question + wording.answer.format(key=each)).ids for each in candidates]
    shared = min(map(len, wholes))
    for whole in wholes[1:]:
        different = np.flatnonzero(wholes[0][:shared] != whole[:shared])
        shared = int(different[0]) if len(different) else shared
    alone = tokenizer.encode(question).ids
    kept = min(shared, len(alone))
    different = np.flatnonzero(wholes[0][:kept] != alone[:kept])
    asks = int(different[0]) if len(different) else kept
    return wholes[0][:asks], wholes[0][asks:shared], [whole[shared:] for whole in wholes]


def _layout_of(parts: Sequence[tuple[str, Tokens, int]], hides: bool, sink: bool) -> Layout:
    """Positions of named parts in the order of reading; `hides` the filler, and without `sink` the first position."""
    ends = np.cumsum([len(tokens) for _, tokens, _ in parts]).tolist()
    begins = [0, *ends[:-1]]
    hidden = [
        (end, begin, end)
        for (name, _, _), begin, end in zip(parts, begins, ends, strict=True)
        if hides and name == "filler"
    ]
    if not sink:
        first = min(zip(parts, begins, strict=True), key=lambda each: each[0][2])[1]
        hidden.append((begins[-1], first, first + 1))
    starts = tuple((begin, position) for begin, (_, _, position) in zip(begins, parts, strict=True))
    return Layout(starts=starts, hidden=tuple(hidden))
