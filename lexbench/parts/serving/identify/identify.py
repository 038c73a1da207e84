"""Name the setup of a pack that a served model's log-probabilities show, or none of them.

With s the served nats and r_k those of setup k on the same targets, the nearest setup k has the least mean of
(s - r_k)^2. For every other setup j,

    share_j = sum (s - r_k)(r_j - r_k) / sum (r_j - r_k)^2

says how far from k towards j the server is: 0 is k, 1 is j. Rounding (bfloat16, 8-bit activations) moves s by much
more than some setups differ, but hardly along r_j - r_k: over thousands of targets share_j keeps near 0. Its error is
that of a ratio over texts (`intervals.ratio`), with Student's quantile at 0.01 over all other setups; over blocks of 64
targets where there are fewer than 8 texts. Rounding of blocks of one text is hardly more alike than that of different
texts: sums over whole texts of SmolLM2 vary 1.02 times as much as if their blocks were independent (14 setups in
bfloat16 and one in 8 bits, in 31 directions).

- j cannot be told from k where share_j + reach >= 1 - MAX_DISPLACED_SHARE: the server may be j.
- None of these: where share_j - reach > MAX_DISPLACED_SHARE, the server is off k, towards j; and where the root of the
  mean of (s - r_k)^2 is more than 3 times that of the noise measured with the checkpoint, it is another model, or turns
  by something else.

A setup of another softmax is the first setup with it: towards it, r_1 stands in the place of r_k in r_j - r_k, as the
same softmax may stand beside any rotation.

As no setup is nearer than k, share_j <= 1/2: where k is denied, j is excluded, too.

Setups that cannot be told apart so are told by longer texts, where the pack has such: the same rule, over the setups of
the longer texts alone. One far text has too few targets for shares: there the distance alone decides.

Targets that a server does not tell (NaN) do not count.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from lexbench.core import registry
from lexbench.core.errors import ConfigError
from lexbench.core.record import Refused
from lexbench.parts.serving.identify.pack import MIN_BLOCK_TARGETS, Nats, ReferencePack
from lexbench.parts.serving.identify.setups import changes_softmax
from lexbench.stats.intervals import ratio_with_influences

SIGNIFICANCE_LEVEL = 0.01
"""Chance of an error over all other setups."""
MAX_DISTANCE_IN_NOISE = 3.0
"""Distance of the same setup, at most, in units of the noise."""
MIN_UNCUT_TEXTS = 8
"""Texts, below which each is cut into blocks."""
MAX_DISPLACED_SHARE = 0.1
"""Share of the way to another setup by which rounding may move a server in all texts at once."""
PACK_ROUNDING_SHARE = 2.0**-8
"""Difference of two setups, as a share of what they differ from the first, up to which the pack rounds it away."""
NO_SETUP_VERDICT = "none of these"


@dataclass(frozen=True, kw_only=True)
class SetupDistance:
    """The distance of one setup."""

    label: str
    distance: float
    """Root of the mean of squared differences, nats."""
    share: float
    """Share of the way from the nearest setup to this one at which the server is; 0 for the nearest itself."""
    reach: float
    """Half the width of the interval of `share`; inf where the texts do not tell the two apart."""


@dataclass(frozen=True, kw_only=True)
class Identification:
    """Setup by which a server rotates, with its distance to all setups and further faults."""

    verdict: str
    """Label of a setup, or `none of these`."""
    why: str
    alike: Sequence[str]
    """Setups that cannot be told from the verdict."""
    noise: float
    """Nats: measured with the checkpoint in bfloat16 or with 8-bit activations, the larger one."""
    near: Sequence[SetupDistance]
    """All setups, the nearest first."""
    odd: Sequence[str] = ()
    """Further faults of the server, a sentence each."""
    route: str = ""
    """The log-probabilities that told."""
    length: int = 0
    """Tokens of the longest text on which the verdict was seen to hold."""
    cut: str = ""
    """The context that the server cuts off, in a sentence."""

    @property
    def named(self) -> bool:
        """Whether one setup is named, and no other could be meant."""
        return self.verdict != NO_SETUP_VERDICT and not self.alike


def identify(pack: ReferencePack, served: Nats) -> Identification:
    """Name the setup of served nats [texts, targets]; the opening of the texts has no part in it."""
    from scipy.special import stdtrit

    served, nll, rounding = (each[..., pack.opening :] for each in (served, pack.nll, pack.noise))
    distances, known = setup_distances(nll, served), np.isfinite(served)
    best = int(distances.argmin())
    rest, count = (
        np.where(known, served - nll[best], 0.0),
        len(served) * blocks_per_text(len(served), served.shape[1], pack.block),
    )
    # One-sided, and Bonferroni over all other setups.
    quantile = float(stdtrit(max(1, count - 1), 1 - SIGNIFICANCE_LEVEL / max(1, len(distances) - 1)))
    near = [SetupDistance(label=pack.labels[best], distance=float(distances[best]), share=0.0, reach=0.0)]
    for other in np.argsort(distances, kind="stable"):
        if other == best:
            continue
        # A softmax that is off is so beside any rotation: to first order it moves all setups alike.
        start = 0 if changes_softmax(pack.labels[other]) and not changes_softmax(pack.labels[best]) else best
        towards = np.where(known, nll[other] - nll[start], 0.0)
        sums = np.stack([_sums_of_blocks(each, pack.block) for each in (rest * towards, np.square(towards))], axis=1)
        share, reach = 0.0, math.inf  # the texts do not tell the two apart
        stored = np.square(np.where(known, nll[[best, other]] - nll[0], 0.0)).sum(axis=(1, 2)).max()
        # The pack keeps float16 of what setups differ from the first: smaller differences are its rounding.
        if count > 1 and sums[:, 1].sum() > PACK_ROUNDING_SHARE**2 * stored:
            share, influence = ratio_with_influences(sums)
            # The influences are those of a mean with n below it; an unbiased variance has n - 1.
            reach = quantile * math.sqrt(count / (count - 1) * float(np.square(influence).sum()))
        near.append(
            SetupDistance(
                label=pack.labels[other], distance=float(distances[other]), share=float(share), reach=float(reach)
            )
        )
    noise = noise_rms(np.where(known, rounding, np.nan))
    verdict, why = (
        pack.labels[best],
        f"{distances[best]:.2g} nats from it, up to {MAX_DISTANCE_IN_NOISE * noise:.2g} are rounding",
    )
    if distances[best] > MAX_DISTANCE_IN_NOISE * noise:
        verdict = NO_SETUP_VERDICT
        why = (
            f"the nearest, {near[0].label}, is {distances[best]:.2g} nats off, rounding explains "
            f"{MAX_DISTANCE_IN_NOISE * noise:.2g}"
            ": other weights than the pack's, or a setup that it does not hold"
        )
    elif between := [each for each in near if each.share - each.reach > MAX_DISPLACED_SHARE]:
        towards_it = max(between, key=lambda each: each.share - each.reach)
        verdict = NO_SETUP_VERDICT
        why = f"it lies {100 * towards_it.share:.0f} % of the way from {near[0].label} to {towards_it.label}"
    alike = (
        []
        if verdict == NO_SETUP_VERDICT
        else [each.label for each in near[1:] if each.share + each.reach >= 1 - MAX_DISPLACED_SHARE]
    )
    return Identification(verdict=verdict, why=why, alike=alike, noise=noise, near=near)


def setup_distances(nll: Nats, served: Nats) -> Nats:
    """[setups] root of the mean of squared differences over the targets that are told; Refused where none is."""
    if not np.isfinite(served).any():
        raise Refused("the server tells none of the tokens that the pack holds: it serves another model")
    found: Nats = np.sqrt(np.nanmean(np.square(served - nll), axis=(1, 2)))
    return found


def blocks_per_text(texts: int, targets: int, block: int = MIN_BLOCK_TARGETS) -> int:
    """Number of parts of a text whose sums are taken for independent."""
    return max(1, targets // block) if texts < MIN_UNCUT_TEXTS else 1


def _sums_of_blocks(products: Nats, block: int) -> Nats:
    """Sums over parts of texts, of products [texts, targets]; the last part also takes what is left over."""
    starts = block * np.arange(blocks_per_text(len(products), products.shape[1], block))
    # reduceat sums from each start to the next one, and from the last to the end.
    return np.add.reduceat(products, starts, axis=1).ravel()


def longer_texts_to_decide(pack: ReferencePack, found: Identification) -> ReferencePack | None:
    """The longer texts of a pack, where they hold all setups that cannot be told apart; if not, None."""
    longer = pack.longer
    if longer is None or found.verdict == NO_SETUP_VERDICT or not found.alike:
        return None
    return longer if {found.verdict, *found.alike} <= set(longer.labels) else None


def decide_by_far_text(far: ReferencePack, served: Nats, found: Identification) -> Identification:
    """Leave out the setups that a far text denies; where it denies all that could be meant, say so.

    A setup is denied where the text is more than 3 times as far from it as rounding explains.
    """
    meant = [label for label in (found.verdict, *found.alike) if label in far.labels]
    if found.verdict not in meant:  # none is named, or the checkpoint refuses it there
        return found
    distances = setup_distances(far.nll, served)
    allowed = MAX_DISTANCE_IN_NOISE * noise_rms(np.where(np.isfinite(served), far.noise, np.nan))
    held = [label for label in meant if distances[far.labels.index(label)] <= allowed]
    if held:
        return replace(found, verdict=held[0], alike=held[1:], length=far.length)
    nearest, off = far.labels[int(distances.argmin())], float(distances[far.labels.index(found.verdict)])
    said = f"at {far.length} tokens it is {off:.2g} nats off, rounding explains {allowed:.2g}"
    if distances.min() <= allowed:
        said += f": there it turns as {nearest}"
    return replace(found, odd=[*found.odd, said])


def noise_rms(noise: Nats) -> float:
    """Root of the mean square of the noisier kind, of noise [kinds, texts, targets]."""
    return float(np.sqrt(np.nanmean(np.square(noise), axis=(1, 2)).max()))


def identification_text(found: Identification, rows: int = 5) -> str:
    """The verdict, why, and the nearest setups."""
    lines = [found.cut] if found.cut else []
    lines.append(f"{found.verdict}: {found.why}")
    if found.route:
        held = "" if found.verdict == NO_SETUP_VERDICT else f"; holds up to {found.length} tokens"
        lines.append(f"told by {found.route}{held}")
    if found.alike:
        lines.append(f"cannot be told on these texts from: {', '.join(found.alike)}")
    lines += [f"but {each}" for each in found.odd]
    lines += ["", "nats away  share of the way there  setup"]
    for each in found.near[:rows]:
        told = each is not found.near[0] and math.isfinite(each.reach)
        share = f"{each.share:.2f} -+ {each.reach:.2f}" if told else ""
        lines.append(f"{each.distance:10.4f}  {share:>22}  {each.label}")
    return "\n".join(lines)


def find_setup_label(pack: ReferencePack, name: str) -> str:
    """The label of a setup, whole or one of several that are the same, in any case; ConfigError if there is none."""
    for label in pack.labels:
        if name.casefold() in (each.casefold() for each in (label, *label.split(" = "))):
            return label
    parts = [part for label in pack.labels for part in label.split(" = ")]
    raise ConfigError(f"the pack has no setup {name!r}: {registry.suggest_choices(name, parts)}")
