"""Identification by one written token: its likeliest candidates behind growing prefixes of a pack's texts.

Most servers give no log-probabilities of prompts, and nearly all give those of the 20 (or 5) likeliest tokens in place
of the one that they write. A pack holds each setup's nats of the checkpoint's 40 likeliest tokens there. Those of them
that the server tells are compared by the same rule as the targets of a text; the others do not count.

The prefixes of a text grow, so that a server with a prefix cache reads each text once. With a chat template, each
prefix is one message of the user.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lexbench.core.task import Generate, Tokenizer, Tokens
from lexbench.parts.serving.openai.backend import OpenAI

Nats = NDArray[np.float64]
N_STORED_TOKENS = 40
"""Likeliest tokens of the checkpoint behind a prefix whose nats a pack holds: twice what a server tells."""
MAX_PLACE_SHIFT = 8
"""Tokens by which a prefix may be longer than evenly spaced, so that its text has the same tokens."""


@dataclass(frozen=True, kw_only=True, eq=False)
class PrefixReference:
    """Nats of the likeliest tokens behind prefixes, under each setup.

    Args:
        places: [texts, prefixes] tokens of each prefix.
        ids: [texts, prefixes, tokens] of the likeliest ones.
        nll: [setups, texts, prefixes, tokens] nats.
        noise: [kinds, texts, prefixes, tokens] nats that the first setup moves by in other precisions.
        frame: ids `before` and `after` a prefix, those of a chat template; empty: prefixes are read as they are.
    """

    places: NDArray[np.int64]
    ids: Tokens
    nll: Nats
    noise: Nats
    frame: Mapping[str, Sequence[int]]

    @property
    def in_chat(self) -> bool:
        """Whether each prefix is a message."""
        return bool(self.frame)

    @property
    def block(self) -> int:
        """Nats of prefixes that are taken for independent of the next ones: of two, and of one message of a chat.

        There are few messages of a text, and each is read by itself.
        """
        return (1 if self.in_chat else 2) * int(self.ids.shape[2])

    def with_fewer(self, count: int) -> "PrefixReference":
        """So many prefixes of each text at most, evenly spaced, the longest among them."""
        whole = self.places.shape[1]
        kept = np.unique(np.linspace(whole - 1, 0, min(count, whole)).round().astype(np.int64))
        return PrefixReference(
            places=self.places[:, kept],
            ids=self.ids[:, kept],
            nll=self.nll[:, :, kept],
            noise=self.noise[:, :, kept],
            frame=self.frame,
        )

    def flat(self, nats: Nats) -> Nats:
        """[..., texts, prefixes x tokens] of [..., texts, prefixes, tokens]."""
        return nats.reshape(*nats.shape[:-2], -1)


@dataclass(frozen=True, kw_only=True, eq=False)
class ServedPrefixes:
    """Likelihoods of next tokens that a server gives behind prefixes."""

    nats: Nats
    """[texts, prefixes, tokens]; NaN where it does not tell."""
    slips: Nats
    """[texts, prefixes] nats of the written token above those of the likeliest."""
    told: int
    """Tokens that it tells behind a prefix, at most."""
    last: Sequence[Mapping[int, float]]
    """[texts] nats by id of all that it tells behind the last prefix."""


def prefix_places(tokenizer: Tokenizer, text: Tokens, first: int, count: int, chat: bool) -> NDArray[np.int64]:
    """[count] lengths of prefixes, evenly spaced from `first` to the whole text but one token.

    As far as it can be, the text of a prefix has its tokens, so that a server that takes text only can be sent it.
    """
    found = np.linspace(first, len(text) - 1, count).round().astype(np.int64)
    for place, size in enumerate(() if chat else found):
        longer = range(size, min(size + MAX_PLACE_SHIFT, len(text) - 1) + 1)
        shorter = range(size - 1, max(size - MAX_PLACE_SHIFT, 1), -1)
        found[place] = next((each for each in (*longer, *shorter) if is_text(tokenizer, text[:each])), size)
    return np.unique(found) if len(np.unique(found)) == count else np.arange(len(text) - count, len(text))


def is_text(tokenizer: Tokenizer, tokens: Tokens) -> bool:
    """Whether the text of these tokens has these tokens."""
    own = tokens[len(tokenizer.prefix) :]
    return np.array_equal(tokenizer.encode(tokenizer.decode(own)).ids, own)


def prefix_question(tokenizer: Tokenizer, text: Tokens, place: int, frame: Mapping[str, Sequence[int]]) -> Generate:
    """The question for one token behind a prefix."""
    if not frame:
        return Generate(index=0, cluster="", prompt=text[:place], max_new_tokens=1)
    # Templates strip messages: so does this, and the tokens are those of what is left.
    content = tokenizer.decode(text[len(tokenizer.prefix) : place]).strip()
    whole = [*frame["before"], *tokenizer.encode(content).ids.tolist(), *frame["after"]]
    return Generate(
        index=0,
        cluster="",
        prompt=np.array(whole, np.int64),
        max_new_tokens=1,
        messages=(("user", content),),
    )


def prefix_questions(
    reference: PrefixReference, tokenizer: Tokenizer, text: Tokens, places: NDArray[np.int64]
) -> list[Generate]:
    """The questions for one token behind each prefix of a text."""
    return [prefix_question(tokenizer, text, place, reference.frame) for place in places.tolist()]


def ask_prefixes(reference: PrefixReference, texts: Tokens, backend: OpenAI) -> ServedPrefixes:
    """Ask a server for its likeliest tokens behind all prefixes.

    Raises Refused where it tells none.
    """
    places = reference.places
    questions = [prefix_questions(reference, backend.tokenizer, *each) for each in zip(texts, places, strict=True)]
    nats, slips = np.full(reference.ids.shape, np.nan), np.zeros(places.shape)
    told = backend.likeliest_next_tokens(questions)
    for row, answers in enumerate(told):
        for column, answer in enumerate(answers):
            nats[row, column] = [answer.nats.get(own, np.nan) for own in reference.ids[row, column].tolist()]
            slips[row, column] = answer.written
    most = max(len(answer.nats) for answers in told for answer in answers)
    return ServedPrefixes(nats=nats, slips=slips, told=most, last=[answers[-1].nats for answers in told])


def prefix_arrays(reference: PrefixReference) -> dict[str, NDArray[Any]]:
    """The parts of a pack that hold it."""
    return {
        "prefix_places": reference.places.astype(np.int32),
        "prefix_ids": reference.ids.astype(np.int32),
        "prefix_nll": reference.nll[0].astype(np.float32),
        "prefix_changes": (reference.nll[1:] - reference.nll[:1]).astype(np.float16),
        "prefix_noise": reference.noise.astype(np.float16),
    }


def prefixes_of_arrays(held: Mapping[str, NDArray[Any]], frame: Mapping[str, Sequence[int]]) -> PrefixReference | None:
    """The part of a pack about prefixes; None where it has none."""
    if "prefix_places" not in held:
        return None
    nll = held["prefix_nll"].astype(np.float64)
    return PrefixReference(
        places=held["prefix_places"].astype(np.int64),
        ids=held["prefix_ids"].astype(np.int64),
        nll=np.concatenate([nll[None], nll + held["prefix_changes"].astype(np.float64)]),
        noise=held["prefix_noise"].astype(np.float64),
        frame=frame,
    )
