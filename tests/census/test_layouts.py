"""`rotary_layout` of every type that rotates is that of its code: each function that rotates is run on unit vectors.

What is read is neither a config nor a name: one dimension at a time is rotated, and the dimensions that it reaches are
compared with those that every other dimension reaches. Two that reach the same are a pair.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from lexbench.backends.hf.exact.attention_seams import ROTATION_FUNCTION
from lexbench.checkpoints.config_facts import REORDERED_BY_ENTRY, facts_of_config
from lexbench.checkpoints.layer_scores import INDEX_OF_NEIGHBOURS
from tests.census import tiny

pytestmark = pytest.mark.usefixtures("one_thread")
LAYOUTS = {"half", "interleaved"}
READS_NO_TEXT_ALONE = {
    *("blip", "blip-2", "idefics", "instructblip", "instructblipvideo", "kosmos-2", "pix2struct", "pp_formulanet"),
    *("t5gemma2", "udop", "vision-encoder-decoder"),
}
"""Types whose forward pass needs more than a text."""
TOKENS = 12


@dataclass(frozen=True, eq=False)
class RotationCall:
    """A call of a function that rotates."""

    function: Callable[..., Any]
    given: tuple[Any, ...]
    named: dict[str, Any]
    caller: str
    """Class of the module that has called it."""

    @property
    def vectors(self) -> Tensor:
        """What it rotates, its first argument."""
        found = self.given[0] if self.given else next(iter(self.named.values()))
        assert isinstance(found, Tensor)
        return found

    def rotate(self, vectors: Tensor) -> Tensor:
        """Other vectors, by the same angles."""
        if self.given:
            made = self.function(vectors, *self.given[1:], **self.named)
        else:
            made = self.function(**{**self.named, next(iter(self.named)): vectors})
        found = made[0] if isinstance(made, tuple) else made
        assert isinstance(found, Tensor)
        return found


def rotations_of(network: Any) -> list[RotationCall]:
    """All rotations of a short text."""
    calls: list[RotationCall] = []

    def recorded(own: Callable[..., Any]) -> Callable[..., Any]:
        def rotate(*given: Any, **named: Any) -> Any:
            calls.append(RotationCall(own, given, named, type(sys._getframe(1).f_locals.get("self")).__name__))
            return own(*given, **named)

        return rotate

    with pytest.MonkeyPatch.context() as patch, torch.no_grad():
        for place in {type(module).__module__ for module in network.modules()}:
            for name, function in list(vars(sys.modules[place]).items()):
                if ROTATION_FUNCTION.match(name) and callable(function) and "vision" not in name:
                    patch.setattr(sys.modules[place], name, recorded(function))
        network(input_ids=torch.arange(4, 4 + TOKENS)[None], use_cache=False)
    return calls


def pairs_of_call(call: RotationCall) -> list[list[int]]:
    """Dimensions of each pair that a rotation turns."""
    still = call.rotate(torch.zeros_like(call.vectors))
    reached = []
    for dimension in range(call.vectors.shape[-1]):
        unit = torch.zeros_like(call.vectors)
        unit[..., dimension] = 1.0
        moved = (call.rotate(unit) - still).abs()
        reached.append(moved.reshape(-1, moved.shape[-1]).amax(0) > 1e-6)
    meets = torch.stack(reached).float()
    partners = {tuple((meets @ row > 0).nonzero().flatten().tolist()) for row in meets}
    return sorted(list(each) for each in partners if len(each) > 1)


def layout_of_pairs(pairs: list[list[int]]) -> set[str]:
    """Layouts that these pairs may be of: both where there is a single pair of neighbours."""
    assert pairs and all(len(pair) == 2 for pair in pairs)
    apart, begins = {pair[1] - pair[0] for pair in pairs}, [pair[0] for pair in pairs]
    found = {"interleaved"} if apart == {1} and begins == [*range(begins[0], begins[0] + 2 * len(pairs), 2)] else set()
    one_step = begins == [*range(begins[0], begins[0] + len(pairs))]
    return found | ({"half"} if one_step and len(apart) == 1 and apart.pop() >= len(pairs) else set())


@torch.no_grad()
def layouts_read(network: Any) -> dict[bool, set[str]]:
    """Layouts that all rotations of a network agree with; True: those of an index of keys, False: all others."""
    found: dict[bool, set[str]] = {}
    for call in rotations_of(network):
        is_index = "Indexer" in call.caller
        if pairs := pairs_of_call(call):  # none at position 0
            found[is_index] = found.get(is_index, LAYOUTS) & layout_of_pairs(pairs)
    return found


def check(network: Any) -> None:
    """Compare the fact with what is read."""
    config = network.config.get_text_config()
    if not (found := layouts_read(network)):
        return
    fact = facts_of_config(network.config.to_dict()).get("rotary_layout", "half")
    assert fact in found[False], f"{config.model_type} rotates {found[False]}"
    if True in found:
        assert found[True] == {"interleaved" if config.model_type in INDEX_OF_NEIGHBOURS else "half"}


@pytest.mark.everyday("cohere", "deepseek_v32", "glm")
@pytest.mark.parametrize(
    "kind", ["cohere", "deepseek_v32", "glm", "glm_moe_dsa", "llama", "axk2", "bailing_hybrid", "dots3_note_text"]
)
def test_the_layout_is_that_of_the_code(kind: str) -> None:
    network = tiny.network_of(kind)
    assert layouts_read(network), "it rotates"
    check(network)


@pytest.mark.slow
@pytest.mark.parametrize("kind", sorted({*tiny.types()} - {*tiny.UNMADE} - READS_NO_TEXT_ALONE))
def test_the_layout_of_every_type_is_that_of_its_code(kind: str) -> None:
    check(tiny.network_of(kind))


@pytest.mark.parametrize("kind", sorted(REORDERED_BY_ENTRY | {"longcat_flash"}))
def test_an_entry_for_halves_counts_where_the_code_reads_it(kind: str) -> None:
    check(tiny.network_of(kind, rope_interleave=False))
