"""Find faults of a server beside its angles, from its own likelihoods and a pack.

Four probes. Each allows 3 times the rounding that was measured with the checkpoint.

- **Opening**: the first targets of the texts against the nearest setup. A BOS that is lost or doubled, or a header in
  front, changes them most.
- **Pattern**: all targets against the nearest setup. Differences in proportion to the likelihoods, or alike for the
  same token, are no rounding, however small (`differences.py`).
- **Again**: the same texts once more, in the opposite order. A server that mixes requests up, or reads states of
  another prompt, gives other likelihoods.
- **Greedy**: what the server writes where the temperature is 0. At the first token that differs from the checkpoint's
  own, the server's likelihoods must rank what it wrote above the other. So no reference is needed to be equal: a
  healthy server with any setup passes, as its argmax is at least as likely as any token. Sampling, penalties, drafts
  that are taken unchecked, and positions that are off while decoding do not.

A server that tells its likeliest next tokens only is asked again behind the last prefix of each text, and what it
writes is compared with its own likeliest token. Where no setup is named, wrong hits of its cache are looked for, too:
longer prefixes may have been such.
"""

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from lexbench.backends import Backend, capabilities
from lexbench.core.record import Deferred, Refused
from lexbench.core.task import Generate, Loglikelihood, Tokens
from lexbench.parts.serving.identify.ask import ServedPack
from lexbench.parts.serving.identify.causes import (
    UNKNOWN_CAUSE,
    WRONG_HITS_CAUSE,
    Question,
    Told,
    distance_of_told,
    fresh_texts,
    repetition_cause,
)
from lexbench.parts.serving.identify.differences import ServerDifferences, pattern_of
from lexbench.parts.serving.identify.identify import MAX_DISTANCE_IN_NOISE, NO_SETUP_VERDICT, Identification, noise_rms
from lexbench.parts.serving.identify.pack import (
    Nats,
    ReferencePack,
    continue_texts,
    loglikelihood_question,
    question_nats,
    target_places,
)
from lexbench.parts.serving.identify.prefixes import (
    PrefixReference,
    ServedPrefixes,
    prefix_places,
    prefix_question,
)
from lexbench.parts.serving.openai.backend import OpenAI

MAX_SLIP_SHARE = 0.25
"""Share of texts with a slip (two at least) that is a fault; rounding may cause a single slip at a near tie."""


def find_faults(pack: ReferencePack, backend: Backend, served: ServedPack, found: Identification) -> list[str]:
    """Name each fault in a sentence; by written tokens alone none is seen."""
    if served.written is not None:
        return []
    said: list[str | None] = [pattern_fault(pack, served, found)]
    if served.prefixes is not None:
        assert isinstance(backend, OpenAI) and served.asked is not None, "the route is by next tokens"
        strange = found.verdict == NO_SETUP_VERDICT
        said += _faults_of_prefixes(served.asked, pack.tokens, backend, served.prefixes, strange)
    else:
        said.append(opening_fault(pack, served.nats, found))
        if capabilities(backend).remote:
            said.append(repetition_fault(pack, backend, served.nats))
        if pack.written.size:
            said.append(greedy_fault(pack, backend))
    return [each for each in said if each]


def _faults_of_prefixes(
    reference: PrefixReference, texts: Tokens, backend: OpenAI, served: ServedPrefixes, strange: bool
) -> list[str | None]:
    """The faults that likeliest next tokens show; `strange`: no setup is named."""
    noise, tokenizer = MAX_DISTANCE_IN_NOISE * noise_rms(reference.flat(reference.noise)), backend.tokenizer

    def ask(questions: Sequence[Generate]) -> list[Told]:
        return [each.nats for [each] in backend.likeliest_next_tokens([[each] for each in questions])]

    def question(text: Tokens, place: int) -> Generate:
        return prefix_question(tokenizer, text, place, reference.frame)

    def fresh() -> list[Generate]:
        rows = fresh_texts(tokenizer, texts)
        places = [int(prefix_places(tokenizer, row, len(row) - 1, 1, reference.in_chat)[0]) for row in rows]
        return [*map(question, rows, places)]

    questions = [*map(question, texts, reference.places[:, -1].tolist())]
    said = [_repetition_fault(served.last, ask, questions, fresh, noise, strange)]
    said.append(slips_of_prefixes(served.slips, noise))
    return said


def slips_of_prefixes(slips: Nats, allowed: float) -> str | None:
    """Sentence that a server writes tokens that it ranks below others by more than the allowed nats; None: it does not.

    Args:
        slips: [texts, prefixes] nats of the written token above those of the likeliest.
        allowed: nats by rounding.
    """
    slipped = slips[slips > allowed]
    if len(slipped) < max(2.0, MAX_SLIP_SHARE * slips.size):
        return None
    return _slip_words(slipped, f"behind {len(slipped)} of {slips.size} prefixes")


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


def pattern_fault(pack: ReferencePack, served: ServedPack, found: Identification) -> str | None:
    """Sentence that the differences from the nearest setup are no rounding; None: they may be.

    No setup turns them so: it is named whether the verdict is one or not. Other weights may look like a bias.
    """
    nearest = served.reference.labels.index(found.near[0].label)
    nats = served.reference.nll[nearest]
    if served.asked is None:
        places = target_places(pack.length, pack.opening, nats.shape[1])
        ids = pack.tokens[:, places]
    else:
        ids = served.asked.ids.reshape(len(nats), -1)
    whole = ServerDifferences(nats=nats, moved=served.nats - nats, ids=ids, opening=0, near=1)
    pattern = pattern_of(whole)
    return f"it is not that setup alone: {pattern}" if pattern else None


def repetition_fault(pack: ReferencePack, backend: Backend, served: Nats) -> str | None:
    """Sentence that texts get other likelihoods when asked again in the opposite order; None: they do not."""
    start = 1 if pack.opening else pack.tokens.shape[1] - served.shape[1]

    def told(nats: Nats) -> list[Told]:
        return [dict(enumerate(row)) for row in nats.tolist()]

    def questions(texts: Iterable[Tokens]) -> list[Loglikelihood]:
        return [loglikelihood_question(row, start) for row in texts]

    return _repetition_fault(
        told(served),
        lambda asked: told(pack.target_nats(question_nats(backend, asked))),
        questions(pack.tokens),
        lambda: questions(fresh_texts(backend.tokenizer, pack.tokens)),
        MAX_DISTANCE_IN_NOISE * noise_rms(pack.noise),
    )


def _repetition_fault(
    served: Sequence[Told],
    ask: Callable[[Sequence[Question]], Sequence[Told]],
    questions: Sequence[Question],
    fresh: Callable[[], Sequence[Question]],
    allowed: float,
    strange: bool = False,
) -> str | None:
    """The fault of texts that move by more than the allowed nats when these questions are asked again, last first.

    Wrong hits that these did not meet are looked for as well where the answers are `strange`.
    """
    moved = np.array([*map(distance_of_told, served, ask(questions[::-1])[::-1])])
    changed = bool((moved > allowed).any())
    if not changed and not strange:
        return None
    try:
        cause = repetition_cause(ask, fresh(), questions if changed else [], allowed)
    except Deferred:
        raise
    except Refused:  # fresh texts have tokens that cannot be sent as text
        cause = UNKNOWN_CAUSE
    if not changed:
        return f"new texts have other likelihoods when asked again: {cause}" if cause == WRONG_HITS_CAUSE else None
    by = f"{moved.max():.2g} nats" if np.isfinite(moved).all() else "no likely token in common"
    return f"{(moved > allowed).sum()} of {len(moved)} texts have other likelihoods when asked again ({by}): {cause}"


def greedy_fault(pack: ReferencePack, backend: Backend) -> str | None:
    """Sentence that the server writes tokens that are not the likeliest by its own likelihoods; None: it does not."""
    try:
        written = continue_texts(backend, pack.tokens, pack.written.shape[1])
    except Deferred:
        raise
    except Refused as refusal:  # a server that was seen to draw, for example
        return f"it writes nothing that can be compared: {refusal.reason}"
    allowed = MAX_DISTANCE_IN_NOISE * noise_rms(pack.noise)
    return slips_of_written(backend, pack.tokens, pack.written, written, allowed)


def slips_of_written(backend: Backend, texts: Tokens, others: Tokens, written: Tokens, allowed: float) -> str | None:
    """Sentence that a server ranks what it writes below other tokens by more than the allowed nats; None: it does not.

    Args:
        backend: the server.
        texts: [texts, length] ids.
        others: [texts, tokens] that another model writes in place of the last ones; -1 where it has ended.
        written: the same of this server.
        allowed: nats by rounding.
    """
    pairs: list[Loglikelihood] = []
    for row, own, other in zip(texts, others, written, strict=True):
        [places] = np.nonzero(own != other)
        if len(places) and min(own[places[0]], other[places[0]]) >= 0:  # neither has ended
            before = np.concatenate([row[: -len(own)], own[: places[0]]])
            pairs += [loglikelihood_question(np.append(before, each[places[0]]), len(before)) for each in (other, own)]
    if not pairs:
        return None
    # Pairs (what it wrote, what the other writes): how much less likely the first is, to the server itself.
    slips = -np.diff(question_nats(backend, pairs).reshape(-1, 2), axis=1)[:, 0]
    slipped = slips[slips > allowed]
    if len(slipped) < max(2.0, MAX_SLIP_SHARE * len(texts)):
        return None
    return _slip_words(slipped, f"in {len(slipped)} of {len(texts)} texts")


def _slip_words(slipped: Nats, where: str) -> str:
    """The fault of writing that slips by these nats."""
    return (
        f"it writes tokens that its own likelihoods rank below others, {where}, "
        f"by {np.median(slipped):.2g} nats: look for sampling, penalties, unchecked drafts and positions while decoding"
    )
