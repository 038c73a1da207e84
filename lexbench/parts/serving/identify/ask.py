"""Ask a served model about a pack, by the log-probabilities that it gives."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lexbench.backends import Backend
from lexbench.core.errors import ConfigError
from lexbench.core.record import Deferred, Refused
from lexbench.core.task import Tokens
from lexbench.parts.serving.identify.identify import Identification, identify
from lexbench.parts.serving.identify.pack import Nats, ReferencePack
from lexbench.parts.serving.identify.prefixes import PrefixReference, ServedPrefixes, ask_prefixes
from lexbench.parts.serving.identify.written import ask_written, identify_by_written
from lexbench.parts.serving.openai.backend import OpenAI
from lexbench.parts.serving.openai.replies import NoLikelihoods

PROMPT_ROUTE = "log-probabilities of prompts"
WRITTEN_ROUTE = "the written tokens alone"
BOS_REMEDIES = {
    0: "make the pack anew with the server's chat template, without model.bos=true",
    1: "make the pack anew with model.bos=true",
    2: "let it add none to that of its chat template",
}
"""By the number of BOS that a server reads, where the pack has another."""
N_END_TARGETS = 64
"""Last targets of a text by which its end is compared."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ServedPack:
    """Likelihoods that a server gives for the texts of a pack."""

    reference: ReferencePack
    """Reference of the comparison: the pack, or the likeliest tokens behind its prefixes."""
    nats: Nats
    """[texts, targets]; NaN where it does not tell."""
    route: str
    """The log-probabilities that told."""
    prefixes: ServedPrefixes | None = None
    """Only where next tokens told."""
    asked: PrefixReference | None = None
    """Prefixes that were asked."""
    written: NDArray[np.int64] | None = None
    """[texts, prefixes] places of the written tokens among those of `asked`; only where the server gives no nats."""

    def identify(self) -> Identification:
        """The setup by which these likelihoods or tokens are given."""
        if self.written is None:
            return identify(self.reference, self.nats)
        assert self.asked is not None, "tokens are written behind prefixes"
        return identify_by_written(self.reference, self.asked, self.written)

    @property
    def last_text(self) -> Tokens:
        """The last text, as far as it was sent."""
        text: Tokens = self.reference.tokens[-1]
        return text if self.asked is None else text[: self.asked.places[-1, -1]]

    @property
    def last_nats(self) -> Nats:
        """Nats at the end of the last text."""
        last: Nats = self.nats[-1, -N_END_TARGETS:] if self.prefixes is None else self.prefixes.nats[-1, -1]
        return last


def ask_about_pack(pack: ReferencePack, backend: Backend, route: str | None = None) -> ServedPack:
    """The nats of a server by its log-probabilities of prompts, else by those of its likeliest next tokens, else the
    tokens that it writes.

    Args:
        pack: one text length of it.
        backend: the served model.
        route: that an earlier text was told by; None: to be found.

    Raises Refused where the server gives neither, ConfigError where the pack lacks what it gives.
    """
    if route in (None, PROMPT_ROUTE):
        try:
            return ServedPack(reference=pack, nats=pack.served_nats(backend), route=PROMPT_ROUTE)
        except Deferred:
            raise
        except Refused as refusal:
            if route is not None or not isinstance(backend, OpenAI):
                raise
            if pack.prefixes is None:
                remedy = "make it anew with lexbench fingerprint, with a lower n where it has nearly 1 MB"
                raise ConfigError(f"{refusal.reason}; and the pack has no next tokens to ask for: {remedy}") from None
    assert isinstance(backend, OpenAI), "only servers refuse likelihoods of prompts"
    if pack.prefixes is None:
        raise Refused("the pack has no next tokens for them")
    if backend.asks_in_chat != pack.prefixes.in_chat:
        wanted, other = ("with", "without") if backend.asks_in_chat else ("without", "with")
        raise ConfigError(
            f"the pack was made {other} backend.chat=true, the server is asked {wanted}: make it anew by lexbench "
            f"fingerprint{' backend.chat=true' if backend.asks_in_chat else ''}"
        )
    if route is None or not route.startswith(WRITTEN_ROUTE):
        try:
            served = ask_prefixes(pack.prefixes, pack.tokens, backend)
        except NoLikelihoods:
            if route is not None:
                raise
        else:
            found, count = pack.prefixes.flat(served.nats), served.slips.size
            _check_bos(pack.prefixes, backend)
            route = f"the {served.told} likeliest next tokens behind {count} prefixes ({PROMPT_ROUTE} are refused)"
            return ServedPack(
                reference=pack.of_prefixes(), nats=found, route=route, prefixes=served, asked=pack.prefixes
            )
    written = ask_written(pack.prefixes, pack.tokens, backend)
    _check_bos(pack.prefixes, backend)
    return ServedPack(
        reference=pack.of_prefixes(),
        nats=np.full(pack.prefixes.flat(pack.prefixes.nll).shape[1:], np.nan),
        route=f"{WRITTEN_ROUTE} behind {written.size} prefixes (no log-probabilities are given)",
        asked=pack.prefixes,
        written=written,
    )


def _check_bos(reference: PrefixReference, backend: OpenAI) -> None:
    """Refused where the server puts another number of BOS in front of chats than the pack, by its counts of tokens.

    Each setup's likelihoods are of other prompts then.
    """
    given, bos = backend.bos_of_chats, backend.tokenizer.bos
    held = int(list(reference.frame.get("before", ())[:1]) == [bos])
    if bos is not None and given in BOS_REMEDIES and given != held:
        raise Refused(
            f"by its counts of tokens the server reads each chat with {given:g} BOS in front, the pack's have {held}: "
            f"so its setup cannot be told: {BOS_REMEDIES[int(given)]}"
        )
