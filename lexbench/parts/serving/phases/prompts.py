"""Prompts of 64 lengths, one token after another, that end in the same question.

    <BOS> words of the lead | a passage of a text | some tokens of this passage once more

The lead is shorter by a token from one prompt to the next, and no two prompts begin alike, so that none is read from a
cache of another. A model that copies goes on as the passage does; any model goes on somehow, and does so alike whatever
the lead. Of several tokens to repeat, those are taken whose answer needs the prompt most.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lexbench.core.errors import ConfigError
from lexbench.core.task import Tokenizer, Tokens
from lexbench.parts.serving.identify.prefixes import is_text

N_LENGTHS = 64
"""Lengths of a range: each residue of 64 stands in it once."""
LEAD_TOKENS = N_LENGTHS - 1
REPEATED_TOKENS = 12
N_CUES = 4
"""Beginnings of the repeated tokens that are tried in a passage."""
MIN_PASSAGE_TOKENS = 32
MIN_PROMPT_TOKENS = 1 + LEAD_TOKENS + MIN_PASSAGE_TOKENS + REPEATED_TOKENS
"""Tokens of the longest prompt, at least."""


@dataclass(frozen=True, eq=False)
class PhaseQuestion:
    """A question behind a lead that may be shortened."""

    prefix: Tokens
    lead: Tokens
    """[63] tokens, the last of which stand in every prompt that has room for them."""
    body: Tokens
    """The passage, and some of its tokens once more."""
    follows: int
    """The token that follows these in the passage."""

    def prompt(self, length: int) -> Tokens:
        """The prompt of a length in tokens."""
        room = length - len(self.prefix) - len(self.body)
        assert 0 <= room <= len(self.lead), "a length of the range"
        return np.concatenate([self.prefix, self.lead[len(self.lead) - room :], self.body])

    @property
    def parts(self) -> tuple[Tokens, Tokens, Tokens]:
        """The question behind no lead, its repeated tokens alone, and all but those, the last one kept.

        It lacks a token of the shortest prompt, so that none of these is in a cache when the prompts are asked.
        """
        body = self.body[1:]
        end, rest = body[-REPEATED_TOKENS:], np.append(body[:-REPEATED_TOKENS], body[-1])
        whole, end, rest = (np.concatenate([self.prefix, each]) for each in (body, end, rest))
        return whole, end, rest


def length_range(longest: int, sizes: Sequence[int]) -> range:
    """64 lengths up to `longest`, or, where no multiple of the first of `sizes` is inside, around the last one below.

    ConfigError where there is none, or where prompts are too short.
    """
    first = longest - N_LENGTHS + 1
    size = sizes[0] if sizes else 0
    if size and not any(edge % size == 0 for edge in range(first, longest)):
        edge = (longest - N_LENGTHS // 2) // size * size
        first = edge - N_LENGTHS // 2 + 1
        longest = first + N_LENGTHS - 1
    if longest < MIN_PROMPT_TOKENS:
        what = f"an edge of {size} tokens" if size else "length"
        needed = f"phases needs prompts of at least {MIN_PROMPT_TOKENS} tokens"
        raise ConfigError(f"{needed}, and {what} leaves {max(longest, 0)}: raise length")
    return range(first, longest + 1)


def questions_of_text(tokenizer: Tokenizer, text: Tokens, longest: int) -> list[PhaseQuestion]:
    """Questions of one passage, which repeat different tokens of it.

    Args:
        tokenizer: of the model.
        text: ids, BOS included, at least as long as the longest prompt.
        longest: tokens of the longest prompt.
    """
    prefix = tokenizer.prefix
    own = text[len(prefix) :]
    size = longest - len(prefix) - LEAD_TOKENS - REPEATED_TOKENS
    words = word_places(tokenizer, own)
    starts = words[(words > 0) & (words <= len(own) - size)]
    begin = int(starts[-1]) if len(starts) else len(own) - size
    passage = own[begin : begin + size]
    spread = np.linspace(0.1, 0.8, N_CUES) * (size - REPEATED_TOKENS)
    inside = words[(words >= begin) & (words < begin + size - REPEATED_TOKENS)] - begin
    places = [int(inside[abs(inside - each).argmin()]) if len(inside) else int(each) for each in spread]
    lead = np.resize(own[words] if len(words) >= MIN_PASSAGE_TOKENS else own, LEAD_TOKENS)
    return [
        PhaseQuestion(
            prefix=np.asarray(prefix, np.int64),
            lead=lead,
            body=np.concatenate([passage, passage[place : place + REPEATED_TOKENS]]),
            follows=int(passage[place + REPEATED_TOKENS]),
        )
        for place in dict.fromkeys(places)
    ]


def word_places(tokenizer: Tokenizer, tokens: Tokens) -> "np.ndarray[tuple[int, ...], np.dtype[np.int64]]":
    """Places of tokens that are a whole word with the blank in front of it: any row of them is text of these tokens."""
    whole = {
        int(token): bool(re.fullmatch(r"\s?[A-Za-z]+( [A-Za-z]+){2}", tokenizer.decode(np.full(3, token))))
        for token in np.unique(tokens)
    }
    found: np.ndarray[tuple[int, ...], np.dtype[np.int64]] = np.flatnonzero([whole[int(each)] for each in tokens])
    return found


def can_be_text(tokenizer: Tokenizer, question: PhaseQuestion, lengths: range) -> bool:
    """Whether the text of each prompt has its tokens, so that it can be sent to a server that takes text only."""
    prompts = [*map(question.prompt, (lengths[0], lengths[1], lengths[-1])), *question.parts]
    return all(is_text(tokenizer, prompt) for prompt in prompts)
