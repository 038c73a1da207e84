"""The answer of a tune in one paragraph: what to deploy, its gain and price, how sure, what was left out, what next."""

import itertools
import math
from collections import Counter

from lexbench.core.groups import group_by_key
from lexbench.core.method_key import BASELINE_METHOD
from lexbench.core.text import count_with_noun
from lexbench.parts.search.tune.ranking import Finalist
from lexbench.parts.search.tune.result import TuneResult
from lexbench.parts.search.tune.search import LeftOut
from lexbench.parts.search.tune.space import Candidate
from lexbench.report.grid import difference_entry
from lexbench.report.rivals import method_name
from lexbench.report.wording import format_p_value
from lexbench.stats.intervals import SIGNIFICANCE_LEVEL, Interval, min_sign_flip_p
from lexbench.stats.pairs import PairedDifference

MAX_NAMED_CANDIDATES = 3
"""Candidates above the price to name."""
MOST_QUESTIONS = 10_000
"""Questions beyond which two finalists count as equal for all that a user can measure."""


def paragraph(result: TuneResult) -> str:
    """The whole answer in one line."""
    return " ".join(filter(None, (_recommendation(result), _effect(result), _certainty(result), _left_out(result))))


def row_name(candidate: Candidate) -> str:
    """A candidate's label; the baseline as the unmodified model."""
    return method_name(candidate.key) if candidate.key == BASELINE_METHOD else candidate.label


def gain(found: PairedDifference) -> PairedDifference:
    """A difference of losses, method minus baseline, as a gain: above 0 is better."""
    at, difference = found.interval, found.difference
    turned = {"difference": None if difference is None else -difference}
    return PairedDifference(**{**vars(found), **turned, "interval": at and Interval(-at.high, -at.low, at.kind)})


def _recommendation(result: TuneResult) -> str:
    stretch = f"{result.length / result.model.trained_length:.3g} times the trained length"
    place = f"{result.model.name} at {result.length} tokens, {stretch}"
    price = f"{result.settings.price:g} nats per token on texts of {result.model.trained_length} tokens"
    if result.unspoken:
        return f"Nothing is recommended for {place}: {result.unspoken}. Give a text that it speaks: corpus=FILE."
    if result.winner is None:
        return f"Nothing is recommended for {place}: nothing costs at most {price}. {dear(result)}".rstrip()
    if result.winner.key == BASELINE_METHOD:
        return f"Keep {place}, unmodified: no method that costs at most {price} beats it. {dear(result)}".rstrip()
    return f"Deploy {result.winner.label} for {place}."


def _effect(result: TuneResult) -> str:
    """The gain and the price of the winner against the unmodified model."""
    if result.winner is None or result.winner.key == BASELINE_METHOD or not result.rows:
        return ""
    row = result.rows[0]
    found = ""
    if row.needles is not None and row.needles.value is not None:
        entry = difference_entry(row.needles, ".0f", 100, missing="–")
        found = f" and {entry.text_with_interval} points of needles, of which it finds {row.needles.value:.2f}"
    floored = f" Its text is no better there than {result.floored}." if result.floored else ""
    limit = f"the limit is {result.settings.price:g}{', which its interval straddles' if row.doubtful else ''}"
    return (
        f"Against the unmodified model it gains {difference_text(gain(row.text))} nats per token of text{found}; as "
        f"deployed it costs {difference_text(row.inside)} nats at {result.model.trained_length} tokens ({limit})."
        f"{floored}"
    )


def _certainty(result: TuneResult) -> str:
    """Certainty of the choice, and what makes it surer."""
    if result.unspoken or result.winner is None:
        return ""
    if not result.rows:
        return (
            "How sure: not at all, no time was left for fresh questions, and the search's own order is optimistic. "
            "For more certainty raise budget=."
        )
    rivals = [row for row in result.rows if row.rival]
    tied = [row for row in rivals if row.tied]
    asked = f"on {count_with_noun(result.fresh, 'fresh question')} of each kind"
    won = len(rivals) - len(tied)
    others = count_with_noun(won, "finalist" if tied else "other finalist")
    parts = [f"better than {'the ' if not tied else ''}{others} within the price"] if won else []
    for why, group in group_by_key(tied, lambda row: _why_tied(result, row, len(rivals))).items():
        parts.append(f"not told apart from {', '.join(row_name(row.candidate) for row in group)}, as {why}")
    said = "; ".join(parts) or "no other finalist is within the price"
    return f"How sure: {asked} {'it is ' if parts else ''}{said}. {_more(result, tied)}".rstrip()


def _why_tied(result: TuneResult, row: Finalist, comparisons: int) -> str:
    """Why a finalist is not told apart from the best, also where an interval of text or needles excludes 0."""
    behind, best = row.behind, result.rows[0]
    if behind.interval is None:
        return "all texts are of one document, which has no interval"
    if behind.interval.low <= 0:
        why = "the interval of its loss behind the best, of text and needles together, holds 0"
    elif min_sign_flip_p(behind.clusters) * comparisons > SIGNIFICANCE_LEVEL:
        why = f"with {behind.clusters} documents and haystacks no p is small enough"
    else:
        why = (
            f"p is {format_p_value(behind.p_holm or 1.0)} after Holm's correction for "
            f"{count_with_noun(comparisons, 'comparison')}"
        )
    alone = [name for name, each in (("text", best.text), ("needles", best.needles)) if each and _excludes_zero(each)]
    if row.candidate.key == BASELINE_METHOD and alone:
        return f"{why}, though that of {' and of '.join(alone)} alone excludes it"
    return why


def _excludes_zero(each: PairedDifference) -> bool:
    return each.interval is not None and not each.interval.low <= 0 <= each.interval.high


def _more(result: TuneResult, tied: list[Finalist]) -> str:
    """Advice that makes the choice surer; nothing where all others are told apart."""
    if not tied:
        return ""
    if result.fresh < result.planned:
        return f"For more certainty raise budget=: {result.planned} questions were planned, {result.fresh} were asked."
    if any(row.behind.interval is None for row in tied):
        return "For more certainty give more documents: corpus=FOLDER."
    needed = min((count for row in tied if (count := _questions_needed(row, result.fresh))), default=None)
    if needed is None or needed > MOST_QUESTIONS:
        return "More questions would hardly tell: take the one that is easiest to serve."
    return (
        f"For more certainty: about {max(needed, result.fresh + 1)} questions would tell one of them apart, raise n=."
    )


def _questions_needed(row: Finalist, fresh: int) -> int | None:
    """Questions that tell a finalist from the best in four of five cases, if they differ as here; None: never."""
    if not row.behind.difference or not row.behind.error:
        return None
    return math.ceil(2.8**2 * (row.behind.error / row.behind.difference) ** 2 * fresh)


def _left_out(result: TuneResult) -> str:
    """Counts of candidates that were left out, by reason."""
    every = [tried for tried in result.tried if tried.candidate.key != BASELINE_METHOD]
    dear_rows = {row.candidate.label for row in result.rows if row.dear}
    kinds = Counter(
        LeftOut.PRICE if tried.candidate.label in dear_rows else tried.left_out
        for tried in every
        if tried.left_out or tried.candidate.label in dear_rows
    )
    told = [f"{count} {_words(kind, result)}" for kind, count in kinds.most_common() if kind]
    return f"Left out of {count_with_noun(len(every), 'candidate')}: {', '.join(told)}." if told else ""


def _words(kind: LeftOut, result: TuneResult) -> str:
    return f"{kind.value} to {result.settings.to}" if kind is LeftOut.EXPORT else str(kind.value)


def text_to_paste(result: TuneResult) -> str:
    """The winner as text to paste: for the target of the tune, else for the first that can serve it, else in Python."""
    winner = result.winner
    assert winner is not None, "there is something to paste"
    target = result.settings.to or next(iter(winner.export_targets(result.model, result.length)), None)
    text: str | None = winner.export_text(target, result.model, result.length)[0] if target else None
    return f"lexbench.extend(network, {extend_arguments(winner, result.length)})" if text is None else text


def extend_arguments(candidate: Candidate, length: int) -> str:
    """Arguments of `lexbench.extend` after the network."""
    config = candidate.config
    is_plain = all(isinstance(each, str) for each in config.get("compose", ()))
    method = config["name"] if is_plain else {"compose": config["compose"]}
    more = {key: value for key, value in config.items() if key not in ("name", "compose", "_target_", "file")}
    return ", ".join([repr(method), *(f"{key}={value!r}" for key, value in more.items()), f"length={length}"])


def dear(result: TuneResult, target: str | None = None) -> str:
    """The cheapest candidates above the price; of a target, those it can serve."""
    fresh = {row.candidate.label: row.inside for row in result.rows}
    paid = [(tried.candidate, fresh.get(tried.candidate.label, tried.price)) for tried in result.tried]
    above = [(each, price, price.difference) for each, price in paid if price and price.difference is not None]
    costly = sorted((each for each in above if each[2] > result.settings.price), key=lambda each: each[2])
    able = (
        each
        for each in costly
        if target is None or each[0].export_text(target, result.model, result.length)[0] is not None
    )
    found = {row.candidate.label: row.needles for row in result.rows}

    def needles(label: str) -> str:
        """Gain of a candidate in needles."""
        each = found.get(label)
        return f", needles {100 * each.difference:+.0f} points" if each and each.difference else ""

    said = [
        f"{each.label} {difference_text(price)}{needles(each.label)}"
        for each, price, _ in itertools.islice(able, MAX_NAMED_CANDIDATES)
    ]
    what = "What could be, above" if target else "Above"
    return f"{what} the price inside the trained length: {'; '.join(said)}." if said else ""


def difference_text(paired: PairedDifference) -> str:
    """A paired difference with its interval."""
    entry = difference_entry(paired, missing="–")
    return f"{entry.text} [{', '.join(entry.ends)}]" if entry.ends else entry.text
