"""Find faults of a server beside its angles, from its own likelihoods and a pack.

Three probes. Each allows 3 times the rounding that was measured with the checkpoint.

- **Opening**: the first targets of the texts against the nearest setup. A BOS that is lost or doubled, or a header in
  front, changes them most.
- **Again**: the same texts once more, in the opposite order. A server that mixes requests up, or reads states of
  another prompt, gives other likelihoods.
- **Greedy**: what the server writes where the temperature is 0. At the first token that differs from the checkpoint's
  own, the server's likelihoods must rank what it wrote above the other. So no reference is needed to be equal: a
  healthy server with any setup passes, as its argmax is at least as likely as any token. Sampling, penalties, drafts
  that are taken unchecked, and positions that are off while decoding do not.
"""

import numpy as np

from lexbench.backends import Backend, capabilities
from lexbench.core.record import Deferred, Refused
from lexbench.core.task import Loglikelihood, Tokens
from lexbench.parts.serving.identify.causes import repetition_cause
from lexbench.parts.serving.identify.identify import MAX_DISTANCE_IN_NOISE, NO_SETUP_VERDICT, Identification, noise_rms
from lexbench.parts.serving.identify.pack import (
    Nats,
    ReferencePack,
    continue_texts,
    loglikelihood_question,
    question_nats,
)

MAX_SLIP_SHARE = 0.25
"""Share of texts with a slip (two at least) that is a fault; rounding may cause a single slip at a near tie."""


def find_faults(pack: ReferencePack, backend: Backend, served: Nats, found: Identification) -> list[str]:
    """Name each fault in a sentence."""
    said = [opening_fault(pack, served, found)]
    if capabilities(backend).remote:
        said.append(repetition_fault(pack, backend, served))
    if pack.written.size:
        said.append(greedy_fault(pack, backend))
    return [each for each in said if each]


def opening_fault(pack: ReferencePack, served: Nats, found: Identification) -> str | None:
    """Sentence that the first targets are farther from the nearest setup than rounding allows; None: they are not."""
    if not pack.opening or found.verdict == NO_SETUP_VERDICT:
        return None
    nearest = pack.labels.index(found.near[0].label)
    off = noise_rms((served - pack.nll[nearest])[None, :, : pack.opening])
    allowed = MAX_DISTANCE_IN_NOISE * noise_rms(pack.noise[..., : pack.opening])
    if off <= allowed:
        return None
    return (
        f"the first {pack.opening} tokens of texts are {off:.2g} nats off, rounding explains {allowed:.2g}: look for a "
        "BOS that is lost or doubled, and for text in front of the prompt"
    )


def repetition_fault(pack: ReferencePack, backend: Backend, served: Nats) -> str | None:
    """Sentence that texts get other likelihoods when asked again in the opposite order; None: they do not."""
    start = 1 if pack.opening else pack.tokens.shape[1] - served.shape[1]

    def ask(rows: Tokens) -> Nats:
        return pack.target_nats(question_nats(backend, [loglikelihood_question(row, start) for row in rows]))

    moved = np.sqrt(np.square(ask(pack.tokens[::-1])[::-1] - served).mean(axis=1))
    allowed = MAX_DISTANCE_IN_NOISE * noise_rms(pack.noise)
    count = int((moved > allowed).sum())
    if not count:
        return None
    cause = repetition_cause(ask, pack.tokens, allowed)
    return f"{count} of {len(served)} texts have other likelihoods when asked again ({moved.max():.2g} nats): {cause}"


def greedy_fault(pack: ReferencePack, backend: Backend) -> str | None:
    """Sentence that the server writes tokens that are not the likeliest by its own likelihoods; None: it does not."""
    room = pack.written.shape[1]
    pairs: list[Loglikelihood] = []
    try:
        written = continue_texts(backend, pack.tokens, room)
    except Deferred:
        raise
    except Refused as refusal:  # a server that was seen to draw, for example
        return f"it writes nothing that can be compared: {refusal.reason}"
    for row, own, other in zip(pack.tokens, pack.written, written, strict=True):
        [places] = np.nonzero(own != other)
        if len(places) and min(own[places[0]], other[places[0]]) >= 0:  # neither has ended
            before = np.concatenate([row[:-room], own[: places[0]]])
            pairs += [loglikelihood_question(np.append(before, each[places[0]]), len(before)) for each in (other, own)]
    if not pairs:
        return None
    # Pairs (what it wrote, what the checkpoint writes): how much less likely the first is, to the server itself.
    slips = -np.diff(question_nats(backend, pairs).reshape(-1, 2), axis=1)[:, 0]
    slipped = slips[slips > MAX_DISTANCE_IN_NOISE * noise_rms(pack.noise)]
    if len(slipped) < max(2.0, MAX_SLIP_SHARE * len(pack.tokens)):
        return None
    return (
        f"it writes tokens that its own likelihoods rank below others, in {len(slipped)} of {len(pack.tokens)} texts, "
        f"by {np.median(slipped):.2g} nats: look for sampling, penalties, unchecked drafts and positions while decoding"
    )
