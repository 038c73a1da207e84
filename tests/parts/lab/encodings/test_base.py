"""What encodings share: hooks that are passed on from one encoding to another."""

import inspect

import pytest
import torch
from torch import Tensor

from lexbench.parts.lab.encodings.base import ENCODING_HOOKS, Encoding, RotaryEncoding, rope_frequencies
from lexbench.parts.lab.encodings.wrappers import INHERITED_ATTRIBUTES, EncodingWrapper


class Named(Encoding):
    """Answers every hook with the hook's own name."""


for _name in INHERITED_ATTRIBUTES:
    _method = callable(getattr(Encoding, _name))
    setattr(Named, _name, (lambda self, *args, name=_name: name) if _method else _name)


class Wrapper(EncodingWrapper):
    """Changes nothing."""


@pytest.mark.parametrize("name", INHERITED_ATTRIBUTES)
def test_a_wrapper_answers_as_the_inner_encoding(name: str) -> None:
    found = getattr(Wrapper(Wrapper(Named())), name)
    if callable(getattr(Encoding, name)):
        found = found(*(None for _ in list(inspect.signature(getattr(Encoding, name)).parameters)[1:]))
    assert found == name


def test_a_wrapper_has_the_hooks_that_it_or_the_inner_encoding_overrides() -> None:
    class Shifted(EncodingWrapper):
        def positions(self, tokens: Tensor, length: int, generator: torch.Generator | None = None) -> Tensor:
            return self.over.positions(tokens, length, generator) + 1

    rotary = RotaryEncoding(rope_frequencies(8, 10000.0))
    assert Wrapper(rotary).hooks == rotary.hooks == {"rotate"}
    assert Shifted(rotary).hooks == {"positions", "rotate"}
    assert Wrapper(Named()).hooks == set(ENCODING_HOOKS)
