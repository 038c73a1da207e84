"""Five claims about a far key, judged: each holds, fails, or cannot be told."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from lexbench.core.method_key import BASELINE_METHOD
from lexbench.parts.anatomy.contrasts import Mean, Measured, by_wording, mean_of, minus

LARGE_NATS, SMALL_NATS = 0.5, 0.1
"""A loss of a key that counts, and one that does not."""
SHORT_DISTANCE = 512
"""Distance up to which the neighbourhood is claimed to cost nothing, tokens."""
MIN_WORDINGS = 6
"""Wordings with which sign flips can reach 5 %."""
CANNOT_BE_TOLD = "cannot be told"


@dataclass(frozen=True)
class ClaimVerdict:
    """A claim, and what the measured differences say of it."""

    claim: str
    said: str
    """holds, fails, or cannot be told."""
    because: str
    n: int
    """Wordings behind it."""


def verdicts(found: Measured) -> list[ClaimVerdict]:
    """The five claims under the unmodified model."""
    claims: Mapping[str, Callable[[Measured], tuple[str, str, int]]] = {
        f"(a) without near text a key loses more than {LARGE_NATS} nats in some octave, and less than {SMALL_NATS} up "
        f"to {SHORT_DISTANCE} tokens": _neighbourhood,
        f"(b) near text that sees neither key nor intro repairs as much, within {SMALL_NATS} nats": _sight,
        "(c) blocking the first token closes half of it": _sink,
        "(d) beyond the trained length it changes sign or grows": _beyond,
        "(e) four rivals in a short distance cost more than the distance does at the trained length": _rivals,
    }
    return [ClaimVerdict(claim, *judge(found)) for claim, judge in claims.items()]


def _judge_mean(mean: Mean | None, low: float, high: float, inside: str, outside: str) -> str:
    """`inside` where the interval lies within the ends, `outside` where it lies beyond one of them."""
    if mean is None or mean.interval is None or mean.n < MIN_WORDINGS:
        return CANNOT_BE_TOLD
    if mean.interval.low > low and mean.interval.high < high:
        return inside
    return outside if mean.interval.high < low or mean.interval.low > high else CANNOT_BE_TOLD


def _by_octave(found: Measured, arm: str, base: str) -> dict[int, dict[str, float]]:
    octaves = found.octaves(BASELINE_METHOD)
    known = {octave: by_wording(found.cells[BASELINE_METHOD, octave], arm, base) for octave in octaves}
    return {octave: values for octave, values in known.items() if values}


def _largest(found: Measured) -> tuple[int, Mean] | None:
    """The octave within which the neighbourhood costs most, up to the trained length."""
    known = {octave: mean_of(values) for octave, values in _by_octave(found, "gap", "near8").items()}
    inside = [(octave, mean) for octave, mean in known.items() if mean and octave <= found.trained_length]
    return max(inside, key=lambda each: each[1].value, default=None)


def _neighbourhood(found: Measured) -> tuple[str, str, int]:
    known = {octave: mean_of(values) for octave, values in _by_octave(found, "gap", "near8").items()}
    means = {octave: mean for octave, mean in known.items() if mean}
    if not means:
        return CANNOT_BE_TOLD, "not measured", 0
    large = [_judge_mean(mean, LARGE_NATS, float("inf"), "holds", "fails") for mean in means.values()]
    small = [
        _judge_mean(mean, -float("inf"), SMALL_NATS, "holds", "fails")
        for at, mean in means.items()
        if at <= SHORT_DISTANCE
    ]
    said = CANNOT_BE_TOLD
    if "fails" in small or all(each == "fails" for each in large):
        said = "fails"
    elif "holds" in large and small and all(each == "holds" for each in small):
        said = "holds"
    return said, "; ".join(f"to {at:,}: {mean}" for at, mean in means.items()), min(mean.n for mean in means.values())


def _sight(found: Measured) -> tuple[str, str, int]:
    known = _by_octave(found, "near8_blind", "near8")
    wordings = {name for values in known.values() for name in values}
    pooled = {
        name: sum(values[name] for values in known.values() if name in values)
        / sum(name in values for values in known.values())
        for name in sorted(wordings)
    }
    if (mean := mean_of(pooled)) is None:
        return CANNOT_BE_TOLD, "not measured", 0
    return _judge_mean(mean, -SMALL_NATS, SMALL_NATS, "holds", "fails"), f"{mean} nats a key over all octaves", mean.n


def _sink(found: Measured) -> tuple[str, str, int]:
    largest = _largest(found)
    if largest is None:
        return CANNOT_BE_TOLD, "not measured", 0
    octave, cost = largest
    arms = found.cells[BASELINE_METHOD, octave]
    whole, closed = by_wording(arms, "gap", "near8"), by_wording(arms, "gap", "gap_unsunk")
    left, mean = mean_of(minus(closed, whole, 0.5)), mean_of(closed)
    if left is None or mean is None:
        return CANNOT_BE_TOLD, "not measured", 0
    words = f"to {octave:,}: it closes {mean} of {cost}, less half of that {left}"
    if cost.interval is None or cost.interval.low <= 0:
        return CANNOT_BE_TOLD, f"{words}; nothing to close", left.n
    return _judge_mean(left, 0.0, float("inf"), "holds", "fails"), words, left.n


def _beyond(found: Measured) -> tuple[str, str, int]:
    largest, known = _largest(found), _by_octave(found, "gap", "near8")
    outside = [octave for octave in known if octave > found.trained_length]
    if largest is None or not outside:
        return CANNOT_BE_TOLD, "not measured", 0
    far = mean_of(known[outside[-1]])
    growth = mean_of(minus(known[outside[-1]], known[largest[0]]))
    assert far is not None and growth is not None
    words = f"to {outside[-1]:,}: {far}, more than to {largest[0]:,} by {growth}"
    grows = _judge_mean(growth, 0.0, float("inf"), "holds", "fails")
    turns = _judge_mean(far, -float("inf"), 0.0, "holds", "fails")
    said = "holds" if "holds" in (grows, turns) else "fails" if (grows, turns) == ("fails", "fails") else CANNOT_BE_TOLD
    return said, words, far.n


def _rivals(found: Measured) -> tuple[str, str, int]:
    costs, far = _by_octave(found, "present_4", "present"), _by_octave(found, "near8", "adjacent")
    inside = [octave for octave in far if octave <= found.trained_length]
    if not costs or not inside:
        return CANNOT_BE_TOLD, "not measured", 0
    rivals, distance = costs[min(costs)], far[inside[-1]]
    mean, one, two = mean_of(minus(rivals, distance)), mean_of(rivals), mean_of(distance)
    assert mean is not None
    words = f"rivals to {min(costs):,}: {one}; distance to {inside[-1]:,}: {two}; apart {mean}"
    return _judge_mean(mean, 0.0, float("inf"), "holds", "fails"), words, mean.n
