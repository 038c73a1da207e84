"""What encodings share: hooks under their old names, and hooks passed on from one encoding to another."""

import inspect

import pytest
import torch
from torch import Tensor

from lexbench.encodings.base import HOOKS, Encoding, Rotary, Rotate, frequencies
from lexbench.encodings.wrappers import PASSED_ON, Over


class Named(Encoding):
    """Answers every hook with the hook's own name."""


for _name in PASSED_ON:
    _method = callable(getattr(Encoding, _name))
    setattr(Named, _name, (lambda self, *args, name=_name: name) if _method else _name)


class Wrapper(Over):
    """Changes nothing."""


@pytest.mark.parametrize("name", PASSED_ON)
def test_a_wrapper_answers_as_the_inner_encoding(name: str) -> None:
    found = getattr(Wrapper(Wrapper(Named())), name)
    if callable(getattr(Encoding, name)):
        found = found(*(None for _ in list(inspect.signature(getattr(Encoding, name)).parameters)[1:]))
    assert found == name


def test_a_wrapper_has_the_hooks_that_it_or_the_inner_encoding_overrides() -> None:
    class Shifted(Over):
        def positions(self, tokens: Tensor, length: int, generator: torch.Generator | None = None) -> Tensor:
            return self.over.positions(tokens, length, generator) + 1

    rotary = Rotary(frequencies(8, 10000.0))
    assert Wrapper(rotary).hooks == rotary.hooks == {"rotate"}
    assert Shifted(rotary).hooks == {"positions", "rotate"}
    assert Wrapper(Named()).hooks == set(HOOKS)


def test_hooks_under_their_old_names_work_with_a_warning_that_says_the_new_one() -> None:
    with pytest.warns(DeprecationWarning, match=r"hook (enter|meet) is now called (layer_input|qk)") as warned:

        class Old(Rotary):
            def enter(self, stream: Tensor, positions: Tensor) -> Tensor:
                return super().enter(stream, positions) + 1

            def meet(self, q: Tensor, k: Tensor, here: Tensor, there: Tensor, rotate: Rotate) -> tuple[Tensor, Tensor]:
                q, k = super().meet(q, k, here, there, rotate)
                return 2 * q, k

    assert "hook enter is now called layer_input" in str(warned[0].message)
    assert "hook meet is now called qk" in str(warned[1].message)
    assert warned[0].filename == __file__

    old, plain = Old(frequencies(4, 10000.0)), Rotary(frequencies(4, 10000.0))
    assert old.hooks == {"rotate", "layer_input", "qk"}
    places = torch.arange(3.0, dtype=torch.float64)
    vectors = torch.randn(1, 2, 3, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for encoding in (old, Wrapper(old)):
        assert torch.equal(encoding.layer_input(vectors, places), vectors + 1)
        q, k = encoding.qk(vectors, vectors, places, places, encoding.rotate)
        expected = plain.qk(vectors, vectors, places, places, plain.rotate)
        assert torch.equal(q, 2 * expected[0]) and torch.equal(k, expected[1])


def test_an_encoding_may_call_the_old_name_of_a_hook_that_its_parent_overrides() -> None:
    class New(Encoding):
        def layer_input(self, stream: Tensor, positions: Tensor) -> Tensor:
            return stream + 1

    with pytest.warns(DeprecationWarning, match="layer_input"):

        class Old(New):
            def enter(self, stream: Tensor, positions: Tensor) -> Tensor:
                return super().enter(stream, positions) * 2

    assert float(Old().layer_input(torch.ones(()), torch.zeros(()))) == 4.0
