"""Whether two servers differ by more than rounding, of which nothing is known but a bound for each precision.

- **Bound.** More than 3 times the rounding of a precision is a difference, wherever it stands. In bfloat16 single
  tokens of SmolLM2 move by 0.06 nats, root mean square, of lexlet by 0.017.
- **Growth.** Rounding is as large at the beginning of texts as behind it. Another rotation, window or cut moves further
  targets more; a second BOS, or a text in front of the prompt, moves the first ones more.
- **Pattern.** Rounding moves tokens up as often as down. Differences that are proportional to the likelihoods are of
  another temperature; differences that are alike for the same token, wherever it stands, are of something added to it.
  On lexlet (4 texts of 512 tokens) rounding has at most 0.001 and 0.23 of these shares of its variance (0.23: weights
  in 8 bits), a temperature of 1.02 has 0.67 of the first, and 0.3 added to 300 of 2,048 tokens 0.91 of the second.
- **Written tokens** must be the likeliest, by the server's own likelihoods.
- **Proof.** Two servers are the same where, in texts up to 16 tokens, up to 32, up to 64 and so on, the difference of
  single tokens, root mean square, is within the margin of 3 times the rounding by an upper bound of 95 % confidence
  (Student's over blocks of texts, one-sided). Each bound must hold, so none is corrected (Berger 1982,
  doi:10.1080/00401706.1982.10487790). Where one is above the margin, nothing more is said than that bound.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lexbench.core.record import Refused
from lexbench.core.task import Tokens
from lexbench.parts.serving.identify.identify import MAX_DISTANCE_IN_NOISE
from lexbench.parts.serving.identify.pack import Nats

MIN_DIFFERENCE_NATS = 0.005
"""Difference, root mean square, up to which it is rounding in every precision."""
ROUNDING_NATS = {"float32": MIN_DIFFERENCE_NATS, "float16": 0.02, "bfloat16": 0.06, "unknown": 0.06}
"""Difference of single tokens by rounding, root mean square, at most; other precisions count as `unknown`."""
NEAR_SHARE = 0.125
"""Share of the targets of a text that are near its beginning."""
MAX_GROWTH = 2.0
"""Growth of a difference from the beginning of texts to their end, or from there to the beginning, by rounding."""
MAX_PATTERN_SHARE = 0.5
"""Share of the variance of differences that a pattern explains, at most, where they are rounding."""
CONFIDENCE_LEVEL = 0.95
"""Of the upper bound of the difference at each length."""
FIRST_BAND_TOKENS = 16
"""Tokens of the shortest texts whose differences are bounded together; those of the next ones are twice as many."""
BOUNDED_BLOCK_TARGETS = 16
"""Targets of one text whose differences are taken for independent of the next ones."""
MIN_PATTERN_TARGETS = 64
"""Differences of which a pattern is looked for, at least."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ServerDifferences:
    """Differences of two servers on the same texts, in the order of the texts."""

    nats: Nats
    """[texts, targets] of the first server; NaN where one of the two does not tell."""
    moved: Nats
    """[texts, targets] nats, first server minus second."""
    ids: Tokens
    """[texts, targets] of the tokens."""
    opening: int
    """First targets, before which hardly any text stands."""
    near: int
    """First targets that are near the beginning."""
    places: NDArray[np.int64] | None = None
    """[texts, targets] tokens in front of each; None: 1, 2, 3, ..."""
    slips: NDArray[np.float64] | None = None
    """[servers, texts, prefixes] nats of the written token above the likeliest; None: only where next tokens told."""

    def at_end(self, first: int) -> Nats:
        """[texts, targets] differences behind so many tokens or more; NaN elsewhere."""
        places = np.arange(1, self.moved.shape[1] + 1) if self.places is None else self.places
        found: Nats = np.where(places >= first, self.moved, np.nan)
        return found

    @property
    def rms_near(self) -> float:
        """Root of the mean of squared differences near the beginning."""
        return rms(self.moved[:, : self.near])


@dataclass(frozen=True, kw_only=True)
class ServerComparison:
    """Difference of two servers, and its verdict."""

    same: bool
    """Whether no difference was found."""
    proven: bool
    """Whether it was shown, too, that there is none above the margin at any length."""
    bound: float
    """Nats: upper bound of the difference at each length, the largest."""
    margin: float
    """Nats up to which it is none."""
    verdict: str
    opening: float
    """Root of the mean of squared differences of the first tokens of texts, nats."""
    near: float
    """The same near the beginning."""
    distance: float
    """The same behind it."""
    far: float | None
    """The same at the end of the far text; None: there is none."""
    length: int
    """Tokens of the longest text."""
    route: str
    """The log-probabilities that were compared."""
    faults: Sequence[str] = ()
    """What the servers write that they should not, a sentence each."""


def compare_differences(
    found: ServerDifferences,
    far: Nats | None,
    length: int,
    route: str,
    dtype: str = "unknown",
    faults: Sequence[str] = (),
    longer: ServerDifferences | None = None,
) -> ServerComparison:
    """The verdict on differences (nats, NaN where a server does not tell).

    Args:
        found: on texts.
        far: at the end of the far text; None: there is none.
        length: tokens of the longest text.
        route: by which they were told.
        dtype: of both servers.
        faults: of what they write.
        longer: on a text of that length, at all places; None: there is none.
    """
    opening, near = rms(found.moved[:, : found.opening]), found.rms_near
    behind, at_far = rms(found.moved[:, found.near :]), None if far is None else rms(far)
    bound = ROUNDING_NATS.get(dtype, ROUNDING_NATS["unknown"])
    most = max(behind, at_far or 0.0)
    said = (
        f"{opening:.2g} nats apart at the first tokens of texts, {near:.2g} near the beginning, {behind:.2g} behind it"
    )
    said += "" if at_far is None else f", {at_far:.2g} at {length} tokens"
    floor = MAX_DISTANCE_IN_NOISE * MIN_DIFFERENCE_NATS
    verdict = ""
    if most > MAX_DISTANCE_IN_NOISE * max(near, MIN_DIFFERENCE_NATS) or (
        most > MAX_DISTANCE_IN_NOISE * bound and most > MAX_GROWTH * near
    ):
        verdict = "not the same, and further apart with every token, as another rotation, window or cut is"
    elif opening > max(floor, MAX_GROWTH * behind):
        verdict = "not the same at the beginning of texts, as with a second BOS, or a text in front of the prompt"
    elif pattern := pattern_of(found):
        verdict = f"not the same: {pattern}"
    elif max(most, near, opening) > MAX_DISTANCE_IN_NOISE * bound:
        verdict = "not the same from the first tokens on, as other weights, precisions or templates are"
    elif faults:
        verdict = "not the same in what they write"
    margin = MAX_DISTANCE_IN_NOISE * bound
    highest = max(bounds_by_length([found, *([] if longer is None else [longer])]).values())
    proven = not verdict and highest <= margin
    if proven:
        verdict = f"the same up to {length} tokens, within {margin:.2g} nats at every length ({highest:.2g} at most)"
    return ServerComparison(
        same=proven or not verdict,
        proven=proven,
        bound=highest,
        margin=margin,
        verdict=f"{verdict or f'no difference above {highest:.2g} nats found up to {length} tokens'}: {said}",
        opening=opening,
        near=near,
        distance=behind,
        far=at_far,
        length=length,
        route=route,
        faults=faults,
    )


def bounds_by_length(found: Sequence[ServerDifferences]) -> dict[int, float]:
    """Upper bound of the difference of single tokens, root mean square, by the length of the longest texts of a band.

    Of the means m of squared differences in n blocks, the root of mean(m) + t sd(m) / sqrt(n); infinite for one block.
    """
    from scipy.special import stdtrit

    blocks: dict[int, list[float]] = {}
    for each in found:
        columns = np.arange(1, each.moved.shape[1] + 1)
        places = np.broadcast_to(columns, each.moved.shape) if each.places is None else each.places
        bands = np.ceil(np.log2(np.maximum(places, FIRST_BAND_TOKENS) / FIRST_BAND_TOKENS)).astype(np.int64)
        for row, moved in zip(bands, each.moved, strict=True):
            for band in np.unique(row).tolist():
                squares = np.square(moved[(row == band) & np.isfinite(moved)])
                parts = np.array_split(squares, max(1, len(squares) // BOUNDED_BLOCK_TARGETS))
                blocks.setdefault(FIRST_BAND_TOKENS << band, []).extend(
                    float(part.mean()) for part in parts if part.size
                )
    bounds = {}
    for longest, means in sorted(blocks.items()):
        count = len(means)
        reach = (
            float(stdtrit(count - 1, CONFIDENCE_LEVEL)) * np.std(means, ddof=1) / np.sqrt(count)
            if count > 1
            else np.inf
        )
        bounds[longest] = float(np.sqrt(np.mean(means) + reach))
    return bounds


def rms(nats: Nats) -> float:
    """Root of the mean square of what is told; Refused where nothing is."""
    if not np.isfinite(nats).any():
        raise Refused("the servers tell no token in common: they serve other models")
    return float(np.sqrt(np.nanmean(np.square(nats))))


def pattern_of(found: ServerDifferences) -> str | None:
    """What the differences are like, where they are no rounding however small; None where they are like nothing."""
    if rms(found.moved) <= MIN_DIFFERENCE_NATS:
        return None
    if proportional_share(found) > MAX_PATTERN_SHARE:
        return "the differences are in proportion to the likelihoods, as of another temperature"
    if same_token_share(found) > MAX_PATTERN_SHARE:
        return "a token differs alike wherever it stands, as by a bias or a penalty"
    return None


def proportional_share(found: ServerDifferences) -> float:
    """Share of the variance of differences that is proportional to the first server's nats: a squared correlation."""
    known = np.isfinite(found.moved)
    nats, moved = found.nats[known], found.moved[known]
    if len(moved) < MIN_PATTERN_TARGETS or np.ptp(nats) == 0 or np.ptp(moved) == 0:
        return 0.0
    return float(np.corrcoef(nats, moved)[0, 1] ** 2)


def same_token_share(found: ServerDifferences) -> float:
    """Share of the variance of differences that is common to places of the same token: an intraclass correlation.

    Of tokens that stand in n > 1 places, the mean product of the differences of two places, weighted by n - 1 in place
    of the number of pairs, so that a frequent token counts as often as it stands.
    """
    known = np.isfinite(found.moved)
    moved, (_, token) = found.moved[known] - found.moved[known].mean(), np.unique(found.ids[known], return_inverse=True)
    count = np.bincount(token)
    again = count > 1
    if count[again].sum() < MIN_PATTERN_TARGETS:
        return 0.0
    sums, squares = (np.bincount(token, each)[again] for each in (moved, np.square(moved)))
    products = (np.square(sums) - squares) / (count[again] - 1)
    return float(products.sum() / squares.sum()) if squares.sum() > 0 else 0.0
