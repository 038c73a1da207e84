"""From a pack and a served model to a verdict."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace

from lexbench.backends import Backend, capabilities
from lexbench.core.record import Deferred, Refused
from lexbench.parts.serving.identify.ask import ServedPack, ask_about_pack
from lexbench.parts.serving.identify.cut import find_cut
from lexbench.parts.serving.identify.identify import (
    Identification,
    decide_by_far_text,
    longer_texts_to_decide,
)
from lexbench.parts.serving.identify.pack import ReferencePack
from lexbench.parts.serving.identify.probes import find_faults
from lexbench.runner.backend_pool import share_backends

OpenBackend = Callable[[int], AbstractContextManager[Backend]]


def identify_served(pack: ReferencePack, backend_for: OpenBackend) -> Identification:
    """Name the setup of a served model: by the texts, by longer ones where these leave it open, and at a far text.

    Args:
        pack: of the checkpoint.
        backend_for: opens the served model for texts of so many tokens.

    Raises Refused where the model gives no log-probabilities.
    """
    with share_backends():
        with backend_for(pack.length) as backend:
            served = ask_about_pack(pack, backend)
            found = served.identify()
            found = replace(
                found, route=served.route, length=pack.length, odd=find_faults(pack, backend, served, found)
            )
        longest = served
        if pack.far is not None and served.written is None:  # its few prefixes say little by written tokens
            found, told = _ask_further(pack.far, backend_for, served.route, found)
            if told is not None:
                found, longest = decide_by_far_text(told.reference, told.nats, found), told
        if (longer := longer_texts_to_decide(pack, found)) is not None:
            found, told = _ask_further(longer, backend_for, served.route, found)
            if told is not None:
                other, length = told.identify(), max(found.length, longer.length)
                found = replace(other, odd=found.odd, route=found.route, length=length)
        if longest.written is not None:
            return found
        with backend_for(longest.reference.length) as backend:
            return replace(found, cut=find_cut(longest, backend, found)) if capabilities(backend).remote else found


def _ask_further(
    pack: ReferencePack, backend_for: OpenBackend, route: str, found: Identification
) -> tuple[Identification, ServedPack | None]:
    """Verdict with the pack's other texts, and their likelihoods; None in their place where the server refuses them."""
    try:
        with backend_for(pack.length) as backend:
            return found, ask_about_pack(pack, backend, route)
    except Deferred:
        raise
    except Refused as refusal:
        said = f"its texts of {pack.length} tokens, which would tell more, are refused: {refusal.reason}"
        return replace(found, odd=[*found.odd, said]), None
