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

As no setup is nearer than k, share_j <= 1/2: where k is denied, j is excluded, too.

Setups that cannot be told apart so are told by longer texts, where the pack has such: the same rule, over the setups of
the longer texts alone.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lexbench.core import registry
from lexbench.core.errors import ConfigError
from lexbench.parts.serving.identify.pack import Nats, ReferencePack
from lexbench.stats.intervals import ratio_with_influences

SIGNIFICANCE_LEVEL = 0.01
"""Chance of an error over all other setups."""
MAX_DISTANCE_IN_NOISE = 3.0
"""Distance of the same setup, at most, in units of the noise."""
MIN_UNCUT_TEXTS = 8
"""Texts, below which each is cut into blocks."""
MIN_BLOCK_TARGETS = 64
"""Targets of a block, at least; a text has one block at least."""
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

    @property
    def named(self) -> bool:
        """Whether one setup is named, and no other could be meant."""
        return self.verdict != NO_SETUP_VERDICT and not self.alike


def identify(pack: ReferencePack, served: Nats) -> Identification:
    """Name the setup of served nats [texts, targets]; the opening of the texts has no part in it."""
    from scipy.special import stdtrit

    served, nll, rounding = (each[..., pack.opening :] for each in (served, pack.nll, pack.noise))
    distances = np.sqrt(np.square(served - nll).mean(axis=(1, 2)))
    best = int(distances.argmin())
    rest, count = served - nll[best], len(served) * blocks_per_text(*served.shape)
    # One-sided, and Bonferroni over all other setups.
    quantile = float(stdtrit(max(1, count - 1), 1 - SIGNIFICANCE_LEVEL / max(1, len(distances) - 1)))
    near = [SetupDistance(label=pack.labels[best], distance=float(distances[best]), share=0.0, reach=0.0)]
    for other in np.argsort(distances, kind="stable"):
        if other == best:
            continue
        towards = nll[other] - nll[best]
        sums = np.stack([_sums_of_blocks(rest * towards), _sums_of_blocks(np.square(towards))], axis=1)
        share, reach = 0.0, math.inf  # the texts do not tell the two apart
        stored = np.square(nll[[best, other]] - nll[0]).sum(axis=(1, 2)).max()
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
    noise = noise_rms(rounding)
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


def blocks_per_text(texts: int, targets: int) -> int:
    """Number of parts of a text whose sums are taken for independent."""
    return max(1, targets // MIN_BLOCK_TARGETS) if texts < MIN_UNCUT_TEXTS else 1


def _sums_of_blocks(products: Nats) -> Nats:
    """Sums over parts of texts, of products [texts, targets]; the last part also takes what is left over."""
    starts = MIN_BLOCK_TARGETS * np.arange(blocks_per_text(*products.shape))
    # reduceat sums from each start to the next one, and from the last to the end.
    return np.add.reduceat(products, starts, axis=1).ravel()


def longer_texts_to_decide(pack: ReferencePack, found: Identification) -> ReferencePack | None:
    """The longer texts of a pack, where they hold all setups that cannot be told apart; if not, None."""
    longer = pack.longer
    if longer is None or found.verdict == NO_SETUP_VERDICT or not found.alike:
        return None
    return longer if {found.verdict, *found.alike} <= set(longer.labels) else None


def noise_rms(noise: Nats) -> float:
    """Root of the mean square of the noisier kind, of noise [kinds, texts, targets]."""
    return float(np.sqrt(np.square(noise).mean(axis=(1, 2)).max()))


def identification_text(found: Identification, rows: int = 5) -> str:
    """The verdict, why, and the nearest setups."""
    lines = [f"{found.verdict}: {found.why}"]
    if found.alike:
        lines.append(f"cannot be told on these texts from: {', '.join(found.alike)}")
    lines += [f"but {each}" for each in found.odd]
    lines += ["", "nats away  share of the way there  setup"]
    for each in found.near[:rows]:
        share = f"{each.share:.2f} -+ {each.reach:.2f}" if each is not found.near[0] else ""
        lines.append(f"{each.distance:10.4f}  {share:>22}  {each.label}")
    return "\n".join(lines)


def find_setup_label(pack: ReferencePack, name: str) -> str:
    """The label of a setup, whole or one of several that are the same, in any case; ConfigError if there is none."""
    for label in pack.labels:
        if name.casefold() in (each.casefold() for each in (label, *label.split(" = "))):
            return label
    parts = [part for label in pack.labels for part in label.split(" = ")]
    raise ConfigError(f"the pack has no setup {name!r}: {registry.suggest_choices(name, parts)}")
