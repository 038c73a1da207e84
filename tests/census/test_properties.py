"""What `lexbench show` states of a model's own attention and head, compared with what its network does."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AttentionInterface, AttentionMaskInterface

from lexbench.backends.hf.exact.network import tower_candidates
from lexbench.checkpoints.structure import attention_properties
from lexbench.commands import main
from tests.census import tiny

pytestmark = pytest.mark.usefixtures("one_thread")
LENGTH = 40
TEXT = torch.arange(20, 20 + LENGTH)[None]


def stated(folder: Path, kind: str, **changes: Any) -> dict[str, str]:
    tiny.config_of(kind, **changes).save_pretrained(folder)
    return attention_properties({"path": str(folder)})


class Seen:
    """Queries, keys and options of each layer's attention, in one forward pass at positions from `begin` on."""

    def __init__(self, network: Any, begin: int = 0, text: torch.Tensor = TEXT) -> None:
        self.queries: dict[int, torch.Tensor] = {}
        self.keys: dict[int, torch.Tensor] = {}
        self.options: dict[int, dict[str, Any]] = {}
        with self._watching(tower_candidates(network)[0]) as tower, torch.inference_mode():
            tower(input_ids=text, position_ids=torch.arange(LENGTH)[None] + begin, use_cache=False)

    @contextmanager
    def _watching(self, tower: Any) -> Iterator[Any]:
        AttentionInterface.register("watching", self)
        AttentionMaskInterface.register("watching", lambda *_, **__: None)
        tower.set_attn_implementation("watching")
        yield tower
        tower.set_attn_implementation("eager")

    def __call__(self, module: Any, query: Any, key: Any, value: Any, mask: Any, **options: Any) -> tuple[Any, None]:
        layer = module.layer_idx
        self.queries[layer], self.keys[layer], self.options[layer] = query, key, options
        group = query.shape[1] // key.shape[1]
        return value.repeat_interleave(group, dim=1).transpose(1, 2).contiguous(), None  # each token its own value


def layers_without_positions(network: Any) -> list[int]:
    """Layers whose keys stay as they are where all positions move alike; states do so everywhere under RoPE."""
    here, there = Seen(network), Seen(network, begin=7)
    return [layer for layer, keys in here.keys.items() if torch.allclose(keys, there.keys[layer], atol=1e-4)]


def keys_seen(network: Any) -> list[int]:
    """Keys that the last query of each layer weighs; a chunk of 16 holds 8 of them at its place."""
    network.set_attn_implementation("eager")
    with torch.inference_mode():
        weights = network(input_ids=TEXT, use_cache=False, output_attentions=True).attentions
    return [int((each[0, :, -1] > 0).any(0).sum()) for each in weights]


WINDOWS = [
    ("mistral", "all 2 see the last 16 keys", [16, 16]),
    ("gemma3_text", "0 see the last 16 keys; 1 see all keys", [16, 40]),
    ("gpt_oss", "0 see the last 16 keys; 1 see all keys", [16, 40]),
    ("llama4_text", "0 see their own chunk of 16 keys; 1 see all keys", [8, 40]),
    ("llama", "all 2 see all keys", [40, 40]),
]


@pytest.mark.parametrize(("kind", "said", "seen"), WINDOWS)
def test_layers_see_the_keys_that_are_stated(kind: str, said: str, seen: list[int], tmp_path: Path) -> None:
    assert stated(tmp_path, kind)["layers"] == said
    assert keys_seen(tiny.network_of(kind)) == seen


WITHOUT = [("smollm3", [1]), ("llama4_text", [1]), ("cohere2", [1]), ("exaone4", [1]), ("llama", [])]


@pytest.mark.parametrize(("kind", "layers"), WITHOUT)
def test_layers_without_positions_are_stated(kind: str, layers: list[int], tmp_path: Path) -> None:
    said = stated(tmp_path, kind)["positions"]
    assert ("none in layers " + ", ".join(map(str, layers)) in said) == bool(layers)
    assert layers_without_positions(tiny.network_of(kind)) == layers


ROTATED = [
    ("glm", "RoPE: base 10000, 0.5 of the dimensions rotate", 4),
    ("stablelm", "RoPE: base 10000, 0.25 of the dimensions rotate", 2),
    ("deepseek_v3", "8 rotated dimensions, one key for all heads, beside 8 others", 8),
    ("llama", "RoPE: base 10000", 8),
]


@pytest.mark.parametrize(("kind", "said", "rotated"), ROTATED)
def test_the_rotated_share_of_a_head_is_stated(kind: str, said: str, rotated: int, tmp_path: Path) -> None:
    assert said in stated(tmp_path, kind)["positions"]
    network = tiny.network_of(kind)
    moved = (Seen(network).keys[0] - Seen(network, begin=7).keys[0]).abs().amax((0, 1, 2)) > 1e-4
    assert int(moved.sum()) == rotated


def test_kinds_of_layers_with_a_rope_of_their_own_are_stated(tmp_path: Path) -> None:
    said = stated(tmp_path, "gemma3_text")["positions"]
    assert "full_attention has a RoPE of its own: base 1e+06" in said
    assert "sliding_attention has a RoPE of its own: base 10000" in said
    network = tiny.network_of("gemma3_text")
    here, there = Seen(network), Seen(network, begin=1)
    for layer, base in ((0, 1e4), (1, 1e6)):  # one step of position turns pair 1 of 4 by base^(-1/4)
        first, then = (
            torch.view_as_complex(keys[..., 1::4].contiguous()) for keys in (here.keys[layer], there.keys[layer])
        )
        assert (then / first).angle().mean().item() == pytest.approx(base**-0.25, abs=1e-3)


def test_axes_of_positions_are_stated_and_text_has_plain_rope(tmp_path: Path) -> None:
    said = stated(tmp_path, "qwen2_vl")["positions"]
    assert "axes share the pairs (2, 1, 1): text has one position on all axes" in said
    network = tiny.network_of("qwen2_vl")
    here, there = Seen(network).keys[0], Seen(network, begin=1).keys[0]
    for pair in range(4):  # the pairs of all axes turn as plain RoPE does
        first, then = (torch.view_as_complex(keys[..., pair::4].contiguous()) for keys in (here, there))
        assert (then / first).angle().mean().item() == pytest.approx(1e4 ** (-pair / 4), abs=1e-3)


def test_a_temperature_of_queries_is_stated(tmp_path: Path) -> None:
    said = stated(tmp_path, "llama4_text")["queries"]
    assert said == "times 1 + 0.1 ln(1 + floor((t + 1) / 8)) at position t, in layers without positions"
    queries = Seen(tiny.network_of("llama4_text"), text=TEXT[:, :1].expand(1, LENGTH)).queries[1][0]
    for token in (0, 7, 15, 39):  # the same token everywhere: nothing else tells the places apart
        factor = 1 + 0.1 * math.log(1 + (token + 1) // 8)
        torch.testing.assert_close(queries[:, token], factor * queries[:, 0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("kind", "where"), [("gpt_oss", "all layers"), ("mimo_v2_flash", "layers 1"), ("llama", "")])
def test_learned_sinks_are_stated(kind: str, where: str, tmp_path: Path) -> None:
    said = stated(tmp_path, kind).get("sinks", "")
    assert said.endswith(f"in {where}") if where else not said
    network = tiny.network_of(kind)
    held = [layer for layer, seen in Seen(network).options.items() if seen.get("s_aux") is not None]
    assert held == {"all layers": [0, 1], "layers 1": [1], "": []}[where]


def test_a_cap_on_scores_is_stated(tmp_path: Path) -> None:
    assert stated(tmp_path, "gemma2")["scores"].startswith("capped at 0.5")
    assert Seen(tiny.network_of("gemma2")).options[0]["softcap"] == 0.5
    assert "scores" not in stated(tmp_path, "gemma3_text")


HEADS = [
    ("cohere", {}, "logits times 0.0625", lambda product: 0.0625 * product),
    ("granite", {"logits_scaling": 4.0}, "logits divided by 4", lambda product: product / 4),
    ("gemma2", {}, "logits capped at 30", lambda product: 30 * (product / 30).tanh()),
    ("llama", {}, "weights of its own", lambda product: product),
]


@pytest.mark.parametrize(("kind", "changes", "said", "head"), HEADS)
def test_what_the_head_does_is_stated(kind: str, changes: Any, said: str, head: Any, tmp_path: Path) -> None:
    assert said in stated(tmp_path, kind, **changes)["head"].split(", ")
    network = tiny.network_of(kind, **changes)
    with torch.inference_mode():
        states = network.model(input_ids=TEXT, use_cache=False).last_hidden_state
        logits = network(input_ids=TEXT, use_cache=False).logits
        torch.testing.assert_close(logits, head(states @ network.lm_head.weight.T), rtol=1e-4, atol=1e-4)


def test_a_state_in_place_of_keys_is_stated(tmp_path: Path) -> None:
    assert stated(tmp_path, "qwen3_5_text")["layers"] == "0 keep a state in place of keys; 1 see all keys"
    assert [*Seen(tiny.network_of("qwen3_5_text")).keys] == [1]


def test_show_prints_what_is_the_models_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tiny.config_of("gemma2").save_pretrained(tmp_path)
    assert main.main(["show", f"model={tmp_path}"]) == 0
    own = capsys.readouterr().out.partition("The model itself, under every method:")[2]
    assert "- layers: 0 see the last 16 keys; 1 see all keys\n" in own
    assert "- scores: capped at 0.5" in own and "- head: logits capped at 30, weights tied to the embeddings\n" in own


def test_without_a_checkpoint_nothing_is_stated() -> None:
    assert attention_properties({"name": "made up", "trained_length": 64, "head_dim": 8}) == {}
    assert (
        attention_properties({"name": "gone", "path": "package:gone/gone.gguf", "trained_length": 64, "head_dim": 8})
        == {}
    )


@pytest.mark.slow
@pytest.mark.parametrize("kind", sorted({*tiny.types()} - {*tiny.UNMADE}))
def test_sinks_and_positions_of_every_type(kind: str, tmp_path: Path) -> None:
    said = stated(tmp_path, kind)
    network = tiny.network_of(kind)
    names = [name for name, _ in network.named_parameters() if name.endswith(("self_attn.sinks", "attn.sinks"))]
    assert ("sinks" in said) == bool(names)
    try:
        layers = layers_without_positions(network)
    except (
        TypeError,
        ValueError,
        AttributeError,
        RuntimeError,
    ) as error:  # code that needs its own mask, an image, ...
        pytest.skip(f"{type(error).__name__}: {error}")
    rotates = "no RoPE" not in said["positions"] and "ALiBi" not in said["positions"]
    if rotates and layers:
        assert f"none in layers {', '.join(map(str, layers))}" in said["positions"]
    elif rotates:
        assert "none in layers" not in said["positions"]
