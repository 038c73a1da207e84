"""Name a setup from the tokens alone that a server writes behind prefixes, where it gives no log-probabilities.

A healthy server writes the likeliest token. Where two tokens are nearly as likely, setups differ in which one that is,
and rounding may exchange them: with Gumbel noise of spread b on nats r, token w is written with probability
exp(-r_w / b) / sum over tokens of exp(-r / b). So each setup has a likelihood, at its best b up to that of the noise
measured with the checkpoint.

- Setup j cannot be told from the likeliest one where its likelihood is less than M / 0.01 times lower, of M others: the
  true setup falls so low against one that is fixed with a probability of at most 0.01 / M.
- None of these: where more noise than the measured makes the likeliest setup more than 1 / 0.01 times as likely.

A token that the pack does not hold counts as all of those together: its nats are those of the probability that the
stored ones leave, which it cannot exceed. Tokens that cannot be told do not count.
"""

import math

import numpy as np
from numpy.typing import NDArray

from lexbench.core.record import Refused
from lexbench.core.task import Tokenizer, Tokens
from lexbench.parts.serving.identify.identify import (
    NO_SETUP_VERDICT,
    SIGNIFICANCE_LEVEL,
    Identification,
    SetupDistance,
    noise_rms,
)
from lexbench.parts.serving.identify.pack import ReferencePack
from lexbench.parts.serving.identify.prefixes import Nats, PrefixReference, prefix_questions
from lexbench.parts.serving.openai.backend import OpenAI

GUMBEL_SPREAD_PER_NAT = math.sqrt(6) / math.pi
"""Spread of Gumbel noise with a standard deviation of 1 nat."""
TRIED_SPREADS = np.geomspace(0.01, 100.0, 41)
"""In units of the spread of the measured noise; the middle one is 1."""
MIN_NOISE_NATS, LEAST_CHANCE = 1e-4, 1e-9
UNTOLD_PLACE, UNHELD_PLACE = -1, -2
"""In place of a stored token: the server's text is that of several or of none; it is that of a token not stored."""


def identify_by_written(pack: ReferencePack, reference: PrefixReference, places: NDArray[np.int64]) -> Identification:
    """The setup by which a server writes.

    Args:
        pack: of these prefixes (`of_prefixes`), for its labels.
        reference: the nats of the stored tokens.
        places: [texts, prefixes] of the written tokens among the stored ones, or `UNTOLD_PLACE`, or `UNHELD_PLACE`.

    Raises Refused where no written token can be told.
    """
    told = places != UNTOLD_PLACE
    if not told.any():
        raise Refused("the server writes no token that can be told from its text: it serves another model")
    nll, place = reference.nll[:, told], places[told]
    rest = np.clip(1 - np.exp(-nll).sum(axis=2, keepdims=True), LEAST_CHANCE, 1)
    nll = np.concatenate([nll, np.where(place[:, None] == UNHELD_PLACE, -np.log(rest), np.inf)], axis=2)
    place = np.where(place == UNHELD_PLACE, nll.shape[2] - 1, place)
    own = np.take_along_axis(nll, np.broadcast_to(place[:, None], (*nll.shape[:2], 1)), axis=2)[..., 0]
    noise = max(noise_rms(reference.flat(reference.noise)), MIN_NOISE_NATS)
    likelihoods = np.stack([_log_likelihoods(nll, own, noise * GUMBEL_SPREAD_PER_NAT * each) for each in TRIED_SPREADS])
    honest = likelihoods[: len(TRIED_SPREADS) // 2 + 1].max(axis=0)
    order = np.argsort(-honest, kind="stable")
    best, slips = int(order[0]), own - nll.min(axis=2)
    distances = np.sqrt(np.square(slips).mean(axis=1))
    near = [SetupDistance(label=pack.labels[k], distance=float(distances[k]), share=0.0, reach=math.inf) for k in order]
    least = math.log(max(1, len(honest) - 1) / SIGNIFICANCE_LEVEL)
    alike = [pack.labels[k] for k in order[1:] if honest[best] - honest[k] < least]
    ranked, count = int((slips[best] <= 0).sum()), slips.shape[1]
    why = f"it writes the likeliest token of that setup behind {ranked} of {count} prefixes"
    if ranked < count:
        why += f", and others {slips[best].max():.2g} nats below at most"
    verdict = pack.labels[best]
    if likelihoods[:, best].max() - honest[best] > -math.log(SIGNIFICANCE_LEVEL):
        verdict, alike = NO_SETUP_VERDICT, []
        why = f"the nearest, {pack.labels[best]}, is off: {why}, more than rounding of {noise:.2g} nats explains"
    return Identification(verdict=verdict, why=why, alike=alike, noise=noise, near=near)


def _log_likelihoods(nll: Nats, own: Nats, spread: float) -> Nats:
    """[setups] log-likelihoods of the written tokens with noise of a spread.

    Args:
        nll: [setups, prefixes, tokens] nats.
        own: [setups, prefixes] of the written tokens.
        spread: of Gumbel noise, nats.
    """
    least = nll.min(axis=2)
    whole = np.log(np.exp((least[..., None] - nll) / spread).sum(axis=2))
    found: Nats = ((least - own) / spread - whole).sum(axis=1)
    return found


def ask_written(reference: PrefixReference, texts: Tokens, backend: OpenAI) -> NDArray[np.int64]:
    """[texts, prefixes] places of the tokens that a server writes, among the stored ones."""
    tokenizer = backend.tokenizer
    questions = [prefix_questions(reference, tokenizer, *each) for each in zip(texts, reference.places, strict=True)]
    found = np.full(reference.places.shape, UNTOLD_PLACE)
    for row, (asked, written) in enumerate(zip(questions, backend.next_texts(questions), strict=True)):
        for column, (question, text) in enumerate(zip(asked, written, strict=True)):
            found[row, column] = place_of_text(tokenizer, text, int(question.prompt[-1]), reference.ids[row, column])
    return found


def place_of_text(tokenizer: Tokenizer, text: str, before: int, ids: Tokens) -> int:
    """Place of the stored token with this text, or `UNTOLD_PLACE`, or `UNHELD_PLACE`.

    Args:
        tokenizer: of the model.
        text: of one token, with or without blanks around it.
        before: id of the token in front of it.
        ids: the stored tokens.
    """
    if not text or "\N{REPLACEMENT CHARACTER}" in text:
        return UNTOLD_PLACE  # an end token without text, or a part of a character
    skipped = len(tokenizer.decode(np.array([before])))
    names = [tokenizer.decode(np.array([before, each]))[skipped:] for each in ids.tolist()]
    for found in (
        [place for place, name in enumerate(names) if name == text],
        [place for place, name in enumerate(names) if name.strip() == text.strip() != ""],
    ):
        if found:
            return found[0] if len(found) == 1 else UNTOLD_PLACE
    return UNHELD_PLACE if text.strip() else UNTOLD_PLACE
