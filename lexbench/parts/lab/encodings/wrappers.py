"""Encodings around another encoding, and one encoding for each layer."""

import copy
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Self, TypeVar

import torch
from torch import Generator, Tensor, nn

from lexbench.core.attention import Attention
from lexbench.core.errors import ConfigError
from lexbench.core.task import Tokenizer
from lexbench.kernels.heads import Rotate
from lexbench.parts.lab.encodings.base import ENCODING_HOOKS, WEIGHT_DEVIATION, Encoding, overridden_hooks

EncodingClass = TypeVar("EncodingClass", bound=type[Encoding])
DIGITS_REMEDY = "give encoding.digits token ids, or texts such as ['0', '1']"

INHERITED_ATTRIBUTES = (
    *ENCODING_HOOKS,
    *("remaps", "rescores", "weighs", "counts", "held", "longest", "facts", "initialise", "rotation", "scaling"),
)
"""Attributes that a wrapper takes from the inner encoding, unless its class defines them."""


def inherit_from_inner(names: Iterable[str], to: str) -> Callable[[EncodingClass], EncodingClass]:
    """Class decorator: take attributes `names` from the encoding in attribute `to`, unless the class defines them."""

    def complete(cls: EncodingClass) -> EncodingClass:
        # What the class defines itself stays: a wrapper overrides a hook by writing it.
        for name in set(names) - vars(cls).keys():
            setattr(cls, name, _inherited_attribute(name, to))
        return cls

    return complete


def _inherited_attribute(name: str, to: str) -> Any:
    """A method, or a property for what is no method, that asks the encoding in attribute `to`."""
    original = getattr(Encoding, name)
    if not callable(original):
        return property(lambda self: getattr(getattr(self, to), name))

    @functools.wraps(original)
    def method(self: Encoding, *args: Any, **options: Any) -> Any:
        return getattr(getattr(self, to), name)(*args, **options)

    return method


@inherit_from_inner(INHERITED_ATTRIBUTES, to="over")
class EncodingWrapper(Encoding):
    """An encoding around another one; hooks that it does not override are those of the inner one.

    Trained folders name weights of the inner encoding `over.*`, so the attribute must keep its name.

    Raises ConfigError where the inner encoding acts through a hook in `excludes`.
    """

    excludes: frozenset[str] = frozenset()
    """Hooks that the inner encoding must not have: with them, neither encoding would do what it states."""

    def __init__(self, over: Encoding) -> None:
        super().__init__()
        if clash := sorted(self.excludes & over.hooks):
            raise ConfigError(
                f"{self.name} cannot wrap {over.name}, which has its own {', '.join(clash)}: use another inner encoding"
            )
        self.over, self.reach = over, over.reach

    @property
    def hooks(self) -> frozenset[str]:
        """Hooks that this encoding or its inner encoding overrides."""
        return overridden_hooks(self, EncodingWrapper) | self.over.hooks

    def at(self, layer: int) -> Encoding:
        """This wrapper around the inner encoding of that layer."""
        inner = self.over.at(layer)
        return self if inner is self.over else self.with_inner(inner)

    def with_gates(self, gates: Tensor) -> Encoding:
        """A copy with the gates: its own, or those of the inner encoding."""
        own = type(self).gates is not EncodingWrapper.gates
        return super().with_gates(gates) if own else self.with_inner(self.over.with_gates(gates))

    def with_inner(self, inner: Encoding) -> Self:
        """A copy around another encoding, with the same weights."""
        other = copy.copy(self)
        # A shallow copy shares its parameters: both train and store the same weights.
        other._modules = {**self._modules, "over": inner}
        return other


class RandomPositions(EncodingWrapper):
    """An encoding that draws positions in training; at use positions are plain, and only the inner encoding is left."""

    excludes = frozenset({"gates", "positions"})

    @property
    def used(self) -> Encoding:
        """The inner encoding's."""
        return self.over.used

    def positions(self, tokens: Tensor, length: int, generator: Generator | None = None) -> Tensor:
        """Positions: [T] at use, [B, T] in training."""
        plain = self.over.positions(tokens, length, generator)
        return plain if generator is None else self.draw_positions(plain, tokens, generator)

    def draw_positions(self, plain: Tensor, tokens: Tensor, generator: Generator) -> Tensor:
        """[B, T] random positions of tokens [B, T], from their plain positions [T]."""
        raise NotImplementedError


HOOKS_OF_ALL_LAYERS = frozenset({"decay", "embed", "layer_input", "mix", "positions", "products", "recur", "rescore"})
"""Hooks through which positions would also reach a layer that is `UnrotatedLayer`."""


class UnrotatedLayer(EncodingWrapper):
    """A layer without positions, among layers with positions: no rotation, no bias.

    Preparation, mask and scaling do not depend on positions and are those of the inner encoding. A method may change
    angles or distances: that has no effect here.
    """

    remaps = True
    rescores = False
    held = 1
    decay = None
    gates = Encoding.gates
    rotate = Encoding.rotate
    bias = Encoding.bias
    rescore = Encoding.rescore

    def rotation(self, attention: Attention) -> Rotate:
        """`rotate`, whatever angles the Attention has."""
        return self.rotate

    @property
    def name(self) -> str:
        """Name of the inner one."""
        return self.over.name


class LayerWithSlots(EncodingWrapper):
    """A layer of an encoding that gives some layers their own mask, query_scale or remap.

    Args:
        over: the layer without them.
        own: the slots to add.
        name: of the encoding that adds them.

    Raises:
        ConfigError: the inner encoding already has one of the slots.
    """

    def __init__(self, over: Encoding, own: Attention, name: str) -> None:
        super().__init__(over)
        self.own, self.owner = own, name
        if both := set(own.slots()) & set(over.attention.slots()):
            raise ConfigError(f"{name} and {over.name} both set {', '.join(sorted(both))}: use another inner encoding")

    @property
    def attention(self) -> Attention:
        """Slots of this encoding and of the inner encoding."""
        return self.over.attention.merge_with(self.own)

    @property
    def name(self) -> str:
        """Name of the encoding that adds the slots."""
        return self.owner


@inherit_from_inner(
    ("hooks", "rescores", "weighs", "remaps", "longest", "facts", "name", "positions", "embed", "bias"), to="first"
)
class EncodingPerLayer(Encoding):
    """One encoding for each layer; they differ in their weights alone, and may share an inner encoding.

    What concerns the whole model comes from the first layer. The hooks of a layer are called on `at(layer)`.
    """

    def __init__(self, layers: Sequence[Encoding]) -> None:
        super().__init__()
        self.layers, self.reach = nn.ModuleList(layers), layers[0].reach

    @property
    def first(self) -> Encoding:
        """The encoding of the first layer."""
        return self.of(0)

    @property
    def used(self) -> Encoding:
        """Encodings that a trained folder stores, layer by layer."""
        inner = [self.at(number).used for number in range(len(self.layers))]
        return self if all(one is two for one, two in zip(inner, self.layers, strict=True)) else EncodingPerLayer(inner)

    def initialise(self, generator: Generator) -> None:
        """Draw the weights of each layer in turn."""
        for number in range(len(self.layers)):
            self.at(number).initialise(generator)

    def of(self, layer: int) -> Encoding:
        """The encoding given for that layer."""
        found = self.layers[layer]
        assert isinstance(found, Encoding)
        return found

    def at(self, layer: int) -> Encoding:
        """The inner encoding of that layer."""
        return self.of(layer).at(layer)


def replace_texts_by_ids(
    parameters: Mapping[str, Any], name: str, tokenizer: Tokenizer, fits: Callable[[str, str], bool], lack: str
) -> Mapping[str, Any]:
    """Parameters of an encoding, with texts in one list of token ids replaced by the ids of all tokens that fit one.

    Args:
        parameters: by name.
        name: of the list.
        tokenizer: of the model.
        fits: whether a token, decoded alone, fits a text.
        lack: message of the ConfigError where no token fits, with {} for the texts.
    """
    given = parameters.get(name) or ()
    texts = [each for each in given if isinstance(each, str)]
    if not texts:
        return parameters
    # Decoded one by one: what a token is alone, whatever stands before it.
    decoded = ((token, tokenizer.decode([token])) for token in range(tokenizer.vocabulary))
    found = {token for token, said in decoded if any(fits(said, text) for text in texts)}
    if not found:
        raise ConfigError(lack.format(texts))
    return {**parameters, name: sorted(found | {int(each) for each in given if each not in texts})}


class DigitPlaces(EncodingWrapper):
    """A learned vector for each digit's place in its number is added to the token embedding.

        x_n = embedding(n) + table[place(n) + delta],   delta ~ U{0 .. offsets - 1} in training, 0 at use

    A number is a run of digit tokens, and place 0 its first digit. Nothing is added to other tokens.

    Args:
        over: the encoding of everything else.
        width: of the network.
        digits: token ids, or texts, which become the ids of the tokens that are one of them, white space aside.
        size: rows of the table.
        offsets: number of values of delta.
        deviation: of the initial token embeddings, and so of the table; a training states its own.
    """

    def __init__(
        self,
        over: Encoding,
        width: int,
        digits: Sequence[int | str] | None = None,
        size: int = 1024,
        offsets: int = 100,
        deviation: float = WEIGHT_DEVIATION,
    ) -> None:
        super().__init__(over)
        if not digits or any(isinstance(digit, str) for digit in digits):
            given = list(digits) if digits else "none"
            raise ConfigError(f"{self.name} needs digits as token ids, got {given}: {DIGITS_REMEDY} and a tokenizer")
        if not 1 <= offsets <= size:
            raise ConfigError(
                f"{self.name} offsets must be from 1 to its size {size}, got {offsets}: lower offsets or raise size"
            )
        self.register_buffer("digits", torch.tensor([int(digit) for digit in digits]), persistent=False)
        self.table, self.deviation = nn.Parameter(torch.zeros(size, width)), deviation
        self.offsets = offsets
        self._drawn: int | None = None

    @classmethod
    def resolve_texts(cls, parameters: Mapping[str, Any], tokenizer: Tokenizer) -> Mapping[str, Any]:
        """Replace texts among the digits by the ids of all tokens that are one of them."""
        lack = f"{cls.__name__.lower()} finds no token that is one of {{}}: {DIGITS_REMEDY}"
        return replace_texts_by_ids(parameters, "digits", tokenizer, lambda said, text: said.strip() == text, lack)

    def initialise(self, generator: Generator) -> None:
        """Draw the table like token embeddings."""
        self.over.initialise(generator)
        nn.init.normal_(self.table, std=self.deviation, generator=generator)

    def positions(self, tokens: Tensor, length: int, generator: Generator | None = None) -> Tensor:
        """Positions of the inner encoding; delta is drawn, and holds until the next call."""
        self._drawn = None
        if generator is not None:
            self._drawn = int(torch.randint(self.offsets, (), generator=generator, device=generator.device))
        return self.over.positions(tokens, length, generator)

    def embed(self, embedded: Tensor, tokens: Tensor, positions: Tensor) -> Tensor:
        """[B, T, width] token embeddings plus the vectors of places; ConfigError for a number beyond the table."""
        place, marked = self._digit_places(tokens)
        place = place + self._position_shift(tokens)
        if bool((longest := (place * marked).max()) >= len(self.table)):
            raise ConfigError(
                f"{self.name} has {len(self.table)} places, a number needs {int(longest) + 1}: raise size"
            )
        added = self.table[place.clamp(0, len(self.table) - 1)] * marked[..., None]
        return self.over.embed(embedded, tokens, positions) + added.to(embedded.dtype)

    def _position_shift(self, tokens: Tensor) -> Tensor | int:
        """delta of all texts, or [B, 1] of each."""
        return self._drawn or 0

    def _digit_places(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """[B, T] places in numbers, and which tokens have one."""
        digits = torch.isin(tokens, self.get_buffer("digits"))
        index = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
        # The last other token before a digit is the largest so far.
        return index - torch.where(digits, -1, index).cummax(1).values - 1, digits
