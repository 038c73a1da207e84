"""Texts whose tokens stand at positions of their own (`Layout`), read by definition: no batches, no fast kernels."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from lexbench.backends.caches import PrefixCache
from lexbench.backends.hf.exact.head import last_hidden_states
from lexbench.backends.hf.exact.rotary import Placement
from lexbench.backends.hf.exact.state import KeyValueState
from lexbench.backends.hf.reading.reader import Reader
from lexbench.core.attention import Attention
from lexbench.core.record import Refused
from lexbench.core.task import Layout, Tokens
from lexbench.kernels.dense import Places

FOLLOWS_TEXT_SLOTS = ("head_ratios", "dynamic", "growing", "cache")
"""Slots that depend on a text's length or on where its prompt ends, which a text with jumps has no one of."""


@dataclass(frozen=True)
class OptionTree:
    """Options as a tree: what several begin with is read once, and no branch sees another."""

    tokens: Tokens
    """[nodes] all tokens of options but the last of each."""
    parents: tuple[int, ...]
    """Node in front of each; -1: the prompt."""
    follows: tuple[tuple[int, ...], ...]
    """For each option the node that each of its tokens follows from; -1: the prompt."""

    @classmethod
    def of(cls, options: Sequence[Tokens]) -> "OptionTree":
        """The tree of some options."""
        known: dict[tuple[int, int], int] = {}
        follows = []
        for option in options:
            path = [-1]
            for token in option[:-1].tolist():
                path.append(known.setdefault((path[-1], token), len(known)))
            follows.append(tuple(path))
        tokens = np.array([token for _, token in known], np.int64)
        return cls(tokens, tuple(parent for parent, _ in known), tuple(follows))

    def ancestors(self, node: int) -> list[int]:
        """A node, the one in front of it, and so on."""
        return [] if node < 0 else [node, *self.ancestors(self.parents[node])]


class PlacedReader:
    """Reads texts with jumps under the reader's Attention; the last prompt is kept where `reuse` is set."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._about: Attention | None = None
        self._passes: list[Placement] = []
        self._kept = PrefixCache[list[KeyValueState]]()

    def states(
        self, tokens: Tokens, layout: Layout, first: int, options: Sequence[Tokens] = ()
    ) -> tuple[Tensor, Tensor]:
        """[passes, T - first, width] states of a text from a token on, and [passes, nodes, width] of its options.

        Args:
            tokens: [T] of the text.
            layout: its positions.
            first: number of the first token whose state is asked for.
            options: what may follow; the nodes are those of their `OptionTree`.
        """
        reader = self._reader
        self._prepare()
        # A prefix is the same where tokens and positions are, up to the first token from which keys are hidden.
        codes = tokens + (layout.positions(len(tokens)) << 32)
        shown = min([query for query, _, _ in layout.hidden], default=len(tokens))
        states, begun = self._begin(codes[:shown], first)
        found, tree = (
            self._piece(tokens[begun:], _text_places(layout, begun, len(tokens)), states),
            OptionTree.of(options),
        )
        behind = found[:, :0]
        if len(tree.tokens):
            behind = self._piece(tree.tokens, _branch_places(layout, len(tokens), tree), states)
        if reader.reuse:
            for state in states:
                state.cut(shown)
            self._kept.keep(codes[:shown], states)
        return found[:, first - begun :], behind

    def forget(self) -> None:
        """Drop the kept prompt."""
        self._about = None
        self._kept.forget()

    def _prepare(self) -> None:
        """Take the reader's Attention: our attention function in each pass; Refused where positions cannot jump."""
        reader = self._reader
        if self._about is not None:
            return
        parts = [part for placement in reader.passes for part in placement.attention.parts()]
        used = [slot for slot in FOLLOWS_TEXT_SLOTS if any(getattr(part, slot) is not None for part in parts)]
        if used or any(placement.grows for placement in reader.passes):
            raise Refused(f"positions cannot jump where {', '.join(used) or 'frequencies'} follow the length of a text")
        if reader.empty is not KeyValueState or reader.has_temperature_tuning:
            raise Refused("positions can jump only where a model keeps keys and values, and places all by position_ids")
        self._passes = [reader.installer.prepare(each.attention, always=True) for each in reader.passes]
        self._about = reader.passes[0].attention

    def _begin(self, codes: Tokens, first: int) -> tuple[list[KeyValueState], int]:
        """States that hold the beginning of a text, and how many of its tokens: none whose state is asked for."""
        if self._reader.reuse and (taken := self._kept.take(codes)) is not None:
            states, count = taken[0], min(taken[1], first)
            for state in states:
                state.cut(count)
            if count:
                return states, count
        return [KeyValueState() for _ in self._passes], 0

    def _piece(self, tokens: Tokens, places: Places, states: Sequence[KeyValueState]) -> Tensor:
        """[passes, T, width] states of the next tokens, at the end of what the states hold."""
        reader, found = self._reader, []
        ids = reader.ids(tokens)
        positions = torch.from_numpy(places.queries)[None].to(ids.device)
        for placement, state in zip(self._passes, states, strict=True):
            hook = placement.hook
            assert hook is not None, "it is always there"
            reader.installer.put(placement)
            hook.text, hook.places = state, places
            try:
                made = reader.base(input_ids=ids, position_ids=positions, past_key_values=state.cache, use_cache=True)
            finally:
                hook.text = hook.places = None
                reader.installer.put(reader.passes[0])
            state.tokens += len(tokens)
            found.append(last_hidden_states(made))
        return torch.stack(found)[:, 0].to(reader.head.device)


def _text_places(layout: Layout, begin: int, end: int) -> Places:
    """Places of a text's tokens from `begin` on."""
    positions = layout.positions(end)
    return Places(positions[begin:], positions, layout.visibility(begin, end))


def _branch_places(layout: Layout, size: int, tree: OptionTree) -> Places:
    """Places of all nodes of a tree behind a text of `size` tokens; each sees what the text's last token sees."""
    lines = [tree.ancestors(node) for node in range(len(tree.tokens))]
    positions = layout.positions(size)
    here = positions[-1] + np.array([len(line) for line in lines])
    seen = np.zeros((len(lines), size + len(lines)), bool)
    seen[:, :size] = layout.visibility(size - 1, size)
    for node, line in enumerate(lines):
        seen[node, np.array(line) + size] = True
    return Places(here, np.concatenate([positions, here]), seen)
