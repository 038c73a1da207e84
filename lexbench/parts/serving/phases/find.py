"""Find the class of lengths at which the same questions are answered otherwise.

With v the log-probabilities of a text's likeliest tokens at each of 64 lengths, weighted by their mean probability w,
a class C of lengths is apart from the others by

    apart(C)^2 = mean over texts of sum_i w_i (mean of v_i inside C - mean of v_i outside)^2.

Its p-value is that of a permutation test: in each text lengths are exchanged, which leaves the question as it is
(Phipson and Smyth 2010: hits + 1 of draws + 1). All classes are one family (Holm 1979). Of those that are significant
and apart by enough, the one that parts right answers from wrong ones most cleanly is named, its lengths are taken out,
and the rest is tested again.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from lexbench.parts.serving.phases.ask import Told, value_of
from lexbench.parts.serving.phases.prompts import N_LENGTHS
from lexbench.stats.intervals import adjust_by_holm

Floats = NDArray[np.float64]
Chosen = NDArray[np.bool_]
"""[lengths] which of them."""
N_DRAWS = 19_999
"""Permutations: of some 150 classes, the least p-value is still below 0.01 by Holm."""
DRAWS_AT_ONCE = 1000
SIGNIFICANCE_LEVEL = 0.01
MIN_APART_NATS, MIN_PLACE_NATS = 0.2, 0.5
"""Least difference that is named. Half precision moves less than the first; a shorter lead moves no residue, and moves
one place of the range, a length or all behind an edge, by less than the second."""
MAX_ROUNDINGS = 6.0
"""Difference of one length from the usual answer, in medians of all, from which it stands out."""
N_TOKENS = 4
"""Likeliest tokens of a text that are compared."""
NO_TOKEN = -1
"""In place of an id, where fewer tokens are told."""
TRIED_MODULI = (2, 4, 8, 16, 32, N_LENGTHS)
USUAL_BLOCK_TOKENS = 16
"""Tokens of a block of engines' caches, usually: an edge of it is tried without being stated."""
MAX_NAMED = 3


@dataclass(frozen=True, eq=False)
class LengthClass:
    """Lengths that a fault may choose."""

    inside: Chosen
    label: str
    others: str
    """Words for the lengths outside."""
    least: float = MIN_APART_NATS
    """Least difference that is named."""


@dataclass(frozen=True, kw_only=True)
class LengthFault:
    """A class of lengths at which answers are others."""

    label: str
    right: int
    """Answers inside that are those of the same question outside, of `asked`."""
    asked: int
    right_outside: int
    asked_outside: int
    apart: float
    """Nats."""
    p: float
    """By Holm, over all classes."""

    @property
    def parted(self) -> float:
        """Share of right answers outside less that inside, in hundredths."""
        return round(self.right_outside / self.asked_outside - self.right / self.asked, 2)

    @property
    def words(self) -> str:
        """The fault in a line."""
        return (
            f"wrong {self.label}: {self.right} of {self.asked} against {self.right_outside} of {self.asked_outside} "
            f"right, {self.apart:.1f} nats apart (p = {self.p:.2g})"
        )


@dataclass(frozen=True, eq=False)
class PhaseReadings:
    """Log-probabilities told of a few texts at each length."""

    values: Floats
    """[texts, lengths, tokens] log-probabilities of the likeliest tokens of a text."""
    weights: Floats
    """[texts, tokens] mean probability of each, of all of them; they sum to 1."""
    ids: NDArray[np.int64]
    """[texts, tokens]."""
    top: NDArray[np.int64]
    """[texts, lengths] id of the likeliest token, or `NO_TOKEN`."""
    truth: Floats
    """[texts, lengths] log-probability of the text's own next token."""

    @classmethod
    def of(cls, told: Sequence[Sequence[Told]], follows: Sequence[int]) -> "PhaseReadings":
        """Readings of what is told of each text at each length, and of the token that follows in each text."""
        chances = [_mean_chances(row) for row in told]
        likeliest = [sorted(each, key=lambda own, each=each: -each[own])[:N_TOKENS] for each in chances]  # type: ignore[misc]
        ids = np.array([[*own, *[NO_TOKEN] * (N_TOKENS - len(own))] for own in likeliest])
        weights = np.array(
            [[each.get(own, 0.0) for own in row] for each, row in zip(chances, ids.tolist(), strict=True)]
        )
        top = np.array([[min(each, key=each.__getitem__, default=NO_TOKEN) for each in row] for row in told])
        truth = np.array([[value_of(each, own) for each in row] for row, own in zip(told, follows, strict=True)])
        weights /= np.maximum(weights.sum(axis=1, keepdims=True), 1e-12)
        return cls(_values(told, ids), weights, ids, top, truth)

    def with_told(self, told: Sequence[Sequence[Told]]) -> "PhaseReadings":
        """The same questions, asked again."""
        top = np.array([[min(each, key=each.__getitem__, default=NO_TOKEN) for each in row] for row in told])
        return replace(self, values=_values(told, self.ids), top=top)

    @property
    def expected(self) -> NDArray[np.int64]:
        """[texts, 1] id of the likeliest token of each text."""
        return self.ids[:, :1]

    def deviations(self) -> Floats:
        """[texts, lengths] nats from the median over lengths."""
        off = self.values - np.median(self.values, axis=1, keepdims=True)
        found: Floats = np.sqrt((self.weights[:, None] * off**2).sum(axis=2))
        return found


def _mean_chances(row: Sequence[Told]) -> dict[int, float]:
    """Probabilities of all tokens that are told, means over the lengths."""
    found: dict[int, float] = {}
    for told in row:
        for own, nats in told.items():
            found[own] = found.get(own, 0.0) + float(np.exp(-nats)) / len(row)
    return found


def _values(told: Sequence[Sequence[Told]], ids: NDArray[np.int64]) -> Floats:
    """[texts, lengths, tokens] log-probabilities of the tokens of each text."""
    return np.array(
        [
            [[0.0 if own == NO_TOKEN else value_of(each, own) for own in tokens] for each in row]
            for row, tokens in zip(told, ids.tolist(), strict=True)
        ]
    )


def length_classes(lengths: range, sizes: Sequence[int]) -> list[LengthClass]:
    """All classes: residues, and lengths behind an edge of blocks, of stated sizes and near the end of the range."""
    at = np.array(lengths)
    found = []
    for modulus in TRIED_MODULI:
        for residue in range(1 if modulus == 2 else modulus):
            others = "where the length is 1 mod 2" if modulus == 2 else f"unless the length is {residue} mod {modulus}"
            least = MIN_PLACE_NATS if modulus == N_LENGTHS else MIN_APART_NATS
            found.append(
                LengthClass(at % modulus == residue, f"where the length is {residue} mod {modulus}", others, least)
            )
    for size in sizes:
        if size not in TRIED_MODULI:
            for residue, what in ((0, "last"), (1, "first")):
                where = f"where the prompt ends in the {what} token of a block of {size}"
                found.append(
                    LengthClass(at % size == residue, where, where.replace("where", "unless", 1), MIN_PLACE_NATS)
                )
    ends = [lengths[-1] - count for count in (1, 2, 4, 8, 16, 32)]
    edges = [edge for size in dict.fromkeys((*sizes, USUAL_BLOCK_TOKENS)) for edge in at.tolist() if edge % size == 0]
    for edge in dict.fromkeys((*edges, *ends)):
        found.append(LengthClass(at > edge, f"behind {edge} tokens", f"up to {edge} tokens", MIN_PLACE_NATS))
    known: dict[bytes, LengthClass] = {}
    for each in found:
        if 0 < each.inside.sum() < len(at):
            # A class and its others are told by the same difference.
            same = each.inside if each.inside[0] else ~each.inside
            known.setdefault(same.tobytes(), each)
    return list(known.values())


def stands_out(readings: PhaseReadings, classes: Sequence[LengthClass]) -> bool:
    """Whether a length, or a class of them, is worth more questions."""
    off = readings.deviations()
    usual = np.maximum(MIN_PLACE_NATS, MAX_ROUNDINGS * np.median(off, axis=1, keepdims=True))
    apart, _ = _apart(readings, np.stack([each.inside for each in classes]), np.ones(off.shape[1], bool))
    return bool((off > usual).any() or (apart >= _least(classes)).any())


def _least(classes: Sequence[LengthClass]) -> Floats:
    """[classes] least differences that are named."""
    return np.array([each.least for each in classes])


def visible_nats(readings: PhaseReadings) -> float:
    """Least change at a single length that stands out."""
    return max(MIN_PLACE_NATS, MAX_ROUNDINGS * float(np.median(readings.deviations(), axis=1).max()))


def _apart(readings: PhaseReadings, inside: Chosen, kept: Chosen) -> tuple[Floats, Floats]:
    """[classes] nats that each is apart, and the variance that it explains.

    Args:
        readings: of all texts.
        inside: [classes, lengths].
        kept: [lengths] that are left.
    """
    held = (inside & kept).astype(np.float64)
    count = held.sum(axis=1, keepdims=True)
    rest = kept.sum() - count
    with np.errstate(divide="ignore", invalid="ignore"):
        factors = held / count - (kept - held) / rest
    factors[(count[:, 0] == 0) | (rest[:, 0] == 0)] = 0.0
    means = np.einsum("cl,tli->cti", factors, readings.values)
    squares = (readings.weights * means**2).sum(axis=2).mean(axis=1)
    return np.sqrt(squares), squares * (count * rest)[:, 0] / kept.sum()


def _p_values(readings: PhaseReadings, inside: Chosen, kept: Chosen, seed: int) -> Floats:
    """[classes] p-value of each, of permutations of the lengths that are left."""
    observed, _ = _apart(readings, inside, kept)
    places, rng = np.flatnonzero(kept), np.random.default_rng(seed)
    held = inside[:, places].astype(np.float32)
    count = held.sum(axis=1, keepdims=True)
    rest = len(places) - count
    usable = (count[:, 0] > 0) & (rest[:, 0] > 0)
    factors = np.zeros_like(held)
    factors[usable] = (held / np.maximum(count, 1) - (1 - held) / np.maximum(rest, 1))[usable]
    scaled = (readings.values[:, places] * np.sqrt(readings.weights)[:, None]).astype(np.float32)
    scaled -= scaled.mean(axis=1, keepdims=True)
    hits, done = np.zeros(len(inside)), 0
    while done < N_DRAWS:
        draws = min(DRAWS_AT_ONCE, N_DRAWS - done)
        total = np.zeros((draws, len(inside)), np.float32)
        for text in scaled:
            order = rng.permuted(np.tile(np.arange(len(places)), (draws, 1)), axis=1)
            exchanged = np.moveaxis(text[order], 0, 1).reshape(len(places), -1)  # one product for all draws
            total += np.square((factors @ exchanged).reshape(len(inside), draws, -1)).sum(axis=2).T
        hits += (np.sqrt(total / len(scaled)) >= observed * (1 - 1e-5)).sum(axis=0)
        done += draws
    found: Floats = np.where(usable, (hits + 1) / (N_DRAWS + 1), 1.0)
    return found


def find_faults(readings: PhaseReadings, classes: Sequence[LengthClass], seed: int = 0) -> list[LengthFault]:
    """The classes of lengths at which answers are others, the clearest first."""
    inside = np.stack([each.inside for each in classes])
    kept, found = np.ones(inside.shape[1], bool), list[LengthFault]()
    while len(found) < MAX_NAMED and kept.sum() > 2:
        apart, explained = _apart(readings, inside, kept)
        if (apart < _least(classes)).all():
            break
        adjusted = np.array(adjust_by_holm(_p_values(readings, inside, kept, seed).tolist()))
        named = np.flatnonzero((adjusted <= SIGNIFICANCE_LEVEL) & (apart >= _least(classes)))
        if not len(named):
            break
        tried = [
            _fault_of(readings, classes[each], kept, float(apart[each]), float(adjusted[each]))
            for each in named.tolist()
        ]
        # Of classes in one another, the one that parts right answers from others most cleanly; then the variance.
        fault, wrong = max(zip(tried, explained[named], strict=True), key=lambda pair: (pair[0][0].parted, pair[1]))[0]
        found.append(fault)
        kept &= ~wrong
    return found


def _fault_of(
    readings: PhaseReadings, which: LengthClass, kept: Chosen, apart: float, p: float
) -> tuple[LengthFault, Chosen]:
    """The fault of a class, and the lengths at which answers are wrong.

    These are the lengths of the class, unless the text's own next token is likelier there in each text.
    """
    inside, outside = which.inside & kept, ~which.inside & kept
    better = readings.truth[:, inside].mean(axis=1) - readings.truth[:, outside].mean(axis=1)
    swapped = bool((better > MIN_APART_NATS).all())
    wrong, good = (outside, inside) if swapped else (inside, outside)
    # The right answer is the token that is likeliest where answers are good.
    chances = np.exp(readings.values[:, good]).mean(axis=1)
    chances[readings.ids == NO_TOKEN] = -1
    expected = np.take_along_axis(readings.ids, chances.argmax(axis=1)[:, None], axis=1)
    right = readings.top == expected
    fault = LengthFault(
        label=which.others if swapped else which.label,
        right=int(right[:, wrong].sum()),
        asked=int(wrong.sum()) * len(right),
        right_outside=int(right[:, good].sum()),
        asked_outside=int(good.sum()) * len(right),
        apart=apart,
        p=p,
    )
    return fault, wrong


def nats_moved_again(first: PhaseReadings, again: PhaseReadings) -> float:
    """Nats that all prompts together move when they are asked again."""
    return float(np.sqrt(np.square(_moved_again(first, again).mean(axis=1)).sum(axis=1).mean()))


def _moved_again(first: PhaseReadings, again: PhaseReadings) -> Floats:
    """[texts, lengths, tokens] differences, times the roots of the weights."""
    found: Floats = (again.values - first.values) * np.sqrt(first.weights)[:, None]
    return found


def find_fault_of_caches(first: PhaseReadings, again: PhaseReadings, seed: int = 0) -> LengthFault | None:
    """Whether the same prompts are answered otherwise when they are asked again, as from a cache.

    The p-value is that of signs that are drawn for the differences of each pair of answers.
    """
    moved, apart = _moved_again(first, again), nats_moved_again(first, again)
    if apart < MIN_APART_NATS:
        return None
    rng, hits = np.random.default_rng(seed), 0
    for _ in range(N_DRAWS):
        signs = rng.choice((-1.0, 1.0), size=(*moved.shape[:2], 1))
        hits += np.sqrt(np.square((signs * moved).mean(axis=1)).sum(axis=1).mean()) >= apart * (1 - 1e-9)
    p = (hits + 1) / (N_DRAWS + 1)
    if p > SIGNIFICANCE_LEVEL:
        return None
    right, before = (each.top == first.expected for each in (again, first))
    label = "when the same prompt is asked again"
    if right.sum() > before.sum():
        right, before, label = before, right, "until the same prompt is asked again"
    return LengthFault(
        label=label,
        right=int(right.sum()),
        asked=right.size,
        right_outside=int(before.sum()),
        asked_outside=before.size,
        apart=apart,
        p=p,
    )
