"""What a plug-in gives is checked: the Attention of a method, the questions of a task."""

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lexbench.core.attention import Attention, Positions, Region, Remapping, SlotError
from lexbench.core.errors import ConfigError
from lexbench.core.guard import plugin_guard
from lexbench.core.model import Model
from lexbench.core.plug_in import user_code_hash
from lexbench.core.task import AnyQuestion, Choose, ClassifyTokens, Generate, Tokenizer


def attention_from(method: Any, model: Model, length: int, doing: str = "attention", *before: Attention) -> Attention:
    """Ask a method for its Attention on a model at a length, and check it.

    Raises ConfigError in one line that names the method's class for what no model can take, or where the method gives
    another Attention when it is asked again; Deferred where the method fails, and Refused as the method does.

    Args:
        method: the method.
        model: its facts.
        length: tokens.
        doing: `over` of a modifier, which changes the Attention `before`.
        before: of a modifier.
    """
    name = f"{type(method).__name__}.{doing}"
    _check_signature(name, getattr(method, doing), len(before))
    with plugin_guard(name):
        try:
            given, again = (getattr(method, doing)(*before, model, length) for _ in range(2))
            _check_attention(given, model, length)
            if not isinstance(again, Attention) or again.as_data() != given.as_data():
                raise SlotError("must return the same Attention each time, got another one: draw from a fixed seed")
        except SlotError as error:
            raise ConfigError(f"{name}: {' '.join(str(error).split())}") from None
        found: Attention = given
        return found


def _check_signature(name: str, function: Any, before: int) -> None:
    """ConfigError unless a method's function takes the arguments (before, model, length)."""
    taken = inspect.signature(function)
    try:
        taken.bind(*[None] * (before + 2))
    except TypeError:
        wanted = ", ".join([*["before"] * before, "model", "length"])
        file = Path(inspect.getsourcefile(type(function.__self__)) or "its file").name
        raise ConfigError(f"{name} must take ({wanted}), takes {taken}: correct it in {file}") from None


def _check_attention(given: Any, model: Model, length: int) -> None:
    """SlotError unless a model can take it: sizes are those of the model, and functions give what they should."""
    if not isinstance(given, Attention):
        raise SlotError(f"must return an Attention, got {given!r}")
    try:
        json.dumps(given.as_data())
    except TypeError as error:
        raise SlotError(f"must hold frozen dataclasses of plain values, which can be kept: {error}") from None
    positions = np.unique(np.linspace(0, length - 1, N_PROBED_POSITIONS).astype(np.int64))
    n = len(positions)
    for part in [one for each in given.mixture or (given,) for one in each.parts()]:
        if part.query_scale is not None:
            _check_numbers("query_scale", part.query_scale, positions)
        if part.mask is not None:
            _check_shape("mask.allowed", part.mask.allowed(positions, positions), "b", (n, n))
            if user_code_hash(type(part.mask)):
                _check_seen(part.mask, positions)
        if part.remap is not None:
            _check_remap(part.remap, positions)
    given.check_fits(
        model.name,
        pairs=None if model.rope_base is None else model.rotated // 2,
        heads=model.heads,
        kv_heads=model.kv_heads,
        layers=model.layers,
    )


N_PROBED_POSITIONS = 16
"""Positions at which the functions of a method's Attention are tried."""


def _check_seen(mask: Any, positions: "np.ndarray[Any, np.dtype[np.int64]]") -> None:
    """SlotError where a mask is another one when asked again, or leaves a query without keys: no softmax of nothing."""
    if not np.array_equal(mask.allowed(positions, positions), mask.allowed(positions, positions)):
        raise SlotError("mask.allowed must allow the same keys each time, got others: draw from a fixed seed")
    for query in positions:
        if not mask.allowed(np.array([query]), np.arange(query + 1)).any():
            raise SlotError(f"mask.allowed must let each query see a key, got none for query {query}: allow its own")


def _check_remap(remap: Remapping, positions: "np.ndarray[Any, np.dtype[np.int64]]") -> None:
    """SlotError unless each pair of a query and an earlier key is in one region with finite positions."""
    n = len(positions)
    regions, count = remap.regions(), np.zeros((n, n), dtype=np.int64)
    if not isinstance(regions, Sequence) or not all(isinstance(each, Region) for each in regions):
        raise SlotError(f"remap.regions() must be a list of Region, got {regions!r}")
    bands = {1}
    for each in regions:
        bands.add(_check_numbers("a region's query", each.query, positions, banded=True))
        bands.add(_check_numbers("a region's key", each.key, positions, banded=True))
        holds = each.holds(positions[:, None], positions[None, :])
        _check_shape("a region's holds", holds, "b", (n, n))
        count += holds
    if len(bands) > 2:
        raise SlotError(f"remap.regions() must have one number of bands beside 1, got {sorted(bands)}")
    for row, column in np.argwhere(np.tril(count != 1))[:1]:
        raise SlotError(
            f"remap.regions() must hold each pair once, got {count[row, column]} regions of "
            f"query {positions[row]} and key {positions[column]}"
        )


def _check_numbers(noun: str, function: Callable[[Positions], Any], positions: Positions, banded: bool = False) -> int:
    """Numbers that a function gives for each position: 1, or where `banded` is true one for each band of pairs.

    SlotError unless they are finite, and the same whatever other positions the function is asked with.
    """
    given = function(positions)
    bands = np.shape(given)[1:2] if banded and np.size(given) else ()
    _check_shape(noun, given, "fiu", (*positions.shape, *bands))
    if not np.isfinite(given).all():
        raise SlotError(f"{noun} must give finite numbers, got {given}")
    for some in (positions[: len(positions) // 2 + 1], positions[len(positions) // 2 :]):
        alone, whole = function(some), given[np.isin(positions, some)]
        for place in map(tuple, np.argwhere(~np.isclose(alone, whole, rtol=1e-9))[:1]):
            raise SlotError(
                f"{noun} must give each position a number of its own, got {whole[place]:g} for position "
                f"{some[place[0]]}, and {alone[place]:g} beside fewer others: compute it from that position alone"
            )
    return bands[0] if bands else 1


def _check_shape(noun: str, given: Any, kinds: str, shape: tuple[int, ...]) -> None:
    """SlotError for another kind or shape of array."""
    if not isinstance(given, np.ndarray) or given.dtype.kind not in kinds or given.shape != shape:
        got = f"{given.dtype} of shape {given.shape}" if isinstance(given, np.ndarray) else repr(given)
        wanted = "truth values" if kinds == "b" else "numbers"
        raise SlotError(f"{noun} must give {wanted} of shape {shape}, got {got}")


def check_questions(questions: Sequence[AnyQuestion], tokenizer: Tokenizer, length: int) -> None:
    """AssertionError unless questions can be asked: none longer than `length`, of known tokens, each index once."""
    assert len({question.index for question in questions}) == len(questions), "two questions have one index"
    for question in questions:
        assert isinstance(question, AnyQuestion), f"{type(question).__name__} is no question"
        named = isinstance(question.index, int) and isinstance(question.cluster, str)
        assert named and isinstance(question.facts, Mapping), (
            f"question {question.index} has a wrong index, cluster or facts"
        )
        room = question.max_new_tokens if isinstance(question, Generate) else 1
        assert isinstance(room, int) and room > 0, f"question {question.index} has a room of {room!r} tokens"
        chance = getattr(question, "chance", 0.0)
        assert isinstance(chance, int | float) and 0 <= chance <= 1, f"question {question.index} has chance {chance!r}"
        assert question.length <= length, f"question {question.index} has {question.length} tokens, asked for {length}"
        parts = [question.prompt] if isinstance(question, Generate | Choose) else [question.tokens]
        if isinstance(question, Choose):
            parts += question.options
        elif isinstance(question, ClassifyTokens):
            parts.append(question.options)
        for ids in parts:
            known = ids.dtype.kind == "i" and ids.ndim == 1
            known = known and (not len(ids) or (ids.min() >= 0 and ids.max() < tokenizer.vocabulary))
            assert known, f"question {question.index} holds ids that are no tokens of the vocabulary"
