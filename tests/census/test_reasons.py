"""Why types are refused: each reason is true of the stock model, and without it the type is right."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AttentionInterface, AttentionMaskInterface, AutoConfig
from transformers.masking_utils import eager_mask

from lexbench import Refused
from lexbench.backends.hf.exact.network import load_network
from tests.census import asking, tiny
from tools import models_page

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]
TEXT = torch.arange(40, 48)[None]


def refused(kind: str) -> str:
    """The last cell of the type's row."""
    return models_page.rows()[kind].split("|")[-2].strip()


REFUSED = [
    kind for kind, row in models_page.rows().items() if kind not in tiny.UNMADE and row.split("|")[2].strip() == "-"
]
NOT_CAUSAL = ("cpmant", "paligemma", "xlm", "xlnet")
NEEDS_AN_IMAGE = ("blip", "idefics")
ENCODERS = ("pix2struct", "t5gemma2", "udop", "vision-encoder-decoder", "pp_formulanet", "florence2")
OTHERS = ("prophetnet", "diffusion_gemma")


def test_every_refused_type_has_its_proof_here() -> None:
    assert set(REFUSED) <= {*NOT_CAUSAL, *NEEDS_AN_IMAGE, *ENCODERS, *OTHERS}


@pytest.mark.parametrize("kind", NOT_CAUSAL)
@torch.inference_mode()
def test_a_type_that_is_not_causal_changes_earlier_logits(kind: str) -> None:
    assert "is not causal" in refused(kind)
    network, other = tiny.network_of(kind), torch.cat([TEXT[:, :-1], TEXT[:, :1]], dim=1)
    one, two = (network(input_ids=each, use_cache=False).logits[:, :-1] for each in (TEXT, other))
    assert (one - two).abs().max() > 1e-2


def test_a_type_made_causal_is_right(tmp_path: Path) -> None:
    found = asking.ask(tiny.save(tmp_path / "xlm", "xlm", causal=True, use_lang_emb=False))
    assert found.asked["score"].right and found.asked["mark"].right and not found.dishonest


@pytest.mark.parametrize("kind", ["bert", "roberta"])
def test_an_encoder_is_refused_until_its_config_makes_it_a_decoder(kind: str, tmp_path: Path) -> None:
    with pytest.raises(Refused, match="is not causal"):
        asking.open_hf(tiny.save(tmp_path / "encoder", kind, is_decoder=False))
    assert models_page.rows()[kind].split("|")[2:4] == [" yes ", " yes "]


IMAGE: dict[str, Callable[[Any], dict[str, Any]]] = {
    "blip": lambda network: {"pixel_values": torch.randn(1, 3, 28, 28)},
    "idefics": lambda network: {
        "image_encoder_embeddings": torch.randn(1, 1, 4, network.config.vision_config.embed_dim),
        "image_attention_mask": torch.ones(1, TEXT.shape[1], 1, dtype=torch.int64),
    },
}


@pytest.mark.parametrize("kind", NEEDS_AN_IMAGE)
@torch.inference_mode()
def test_a_type_that_needs_an_image_runs_with_one(kind: str) -> None:
    assert "does not run without an image" in refused(kind)
    network = tiny.network_of(kind)
    with pytest.raises((TypeError, ValueError)):
        network(input_ids=TEXT, use_cache=False)
    assert network(input_ids=TEXT, use_cache=False, **IMAGE[kind](network)).logits.shape[:2] == TEXT.shape


@pytest.mark.parametrize("kind", ["t5gemma2", "vision-encoder-decoder", "florence2"])
@torch.inference_mode()
def test_an_encoder_with_a_decoder_writes_another_text_than_it_reads(kind: str) -> None:
    assert ("is an encoder with a decoder" in refused(kind)) != ("one row of logits a token" in refused(kind))
    network = tiny.network_of(kind)
    first = {"pixel_values": torch.randn(1, 3, 28, 28)} if kind.startswith("vision") else {"input_ids": TEXT}
    found = network(**first, decoder_input_ids=TEXT[:, :5], use_cache=False)
    assert found.logits.shape[1] == 5 and network.config.is_encoder_decoder


@torch.inference_mode()
def test_logits_of_prophetnet_follow_from_other_states() -> None:
    assert "do not follow from the last states" in refused("prophetnet")
    network = tiny.network_of("prophetnet")
    states = network.prophetnet.decoder(input_ids=TEXT, use_cache=False)
    logits = network(input_ids=TEXT, use_cache=False).logits
    ahead = states.last_hidden_state_ngram.unflatten(1, (-1, TEXT.shape[1]))  # of the next token, then of later ones
    torch.testing.assert_close(network.lm_head(ahead[:, 0]), logits)
    assert (network.lm_head(states.last_hidden_state) - logits).abs().max() > 1e-2


@torch.inference_mode()
def test_diffusion_gemma_gives_logits_of_a_block() -> None:
    assert "one row of logits a token" in refused("diffusion_gemma")
    assert tiny.network_of("diffusion_gemma")(input_ids=TEXT).logits.shape[1] != TEXT.shape[1]


def test_moshi_writes_where_its_window_drops_no_keys(tmp_path: Path) -> None:
    assert models_page.rows()["moshi"].split("|")[2:4] == [" yes ", " - "]
    found = asking.ask(tiny.save(tmp_path / "moshi", "moshi", sliding_window=tiny.LONGEST))
    assert all(found.asked[kind].right for kind in asking.GOES_ON)


def test_probes_beyond_a_window_work_without_the_window(tmp_path: Path) -> None:
    assert models_page.rows()["mistral"].split("|")[5] == " within "
    assert asking.ask(tiny.save(tmp_path / "mistral", "mistral", sliding_window=None)).asked["probe"].right


@pytest.mark.parametrize("kind", ["bloom", "falcon", "gptj", "mamba"])
@torch.inference_mode()
def test_attention_outside_the_registry_never_calls_it(kind: str) -> None:
    assert "does not use transformers' registry" in refused(kind)

    def never(*_: Any, **__: Any) -> Any:
        raise AssertionError("called")

    network = tiny.network_of(kind)
    AttentionInterface.register("never", never)
    AttentionMaskInterface.register("never", eager_mask)
    network.set_attn_implementation("eager")
    before = network(input_ids=TEXT, use_cache=False).logits
    network.config._attn_implementation = "never"
    torch.testing.assert_close(network(input_ids=TEXT, use_cache=False).logits, before)


def test_a_type_that_no_class_opens_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "evolla", "architectures": ["EvollaForProteinText2Text"]}')
    with pytest.raises(ValueError, match=r"model_type evolla of .* is no causal language model .*: use a checkpoint"):
        load_network(tmp_path, torch.float32)


def test_a_missing_library_is_named(tmp_path: Path) -> None:
    config = AutoConfig.for_model("fast_vlm")
    config.save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(ValueError, match=r"needs a library that is not here .*timm.*: install it"):
        load_network(tmp_path, torch.float32)
