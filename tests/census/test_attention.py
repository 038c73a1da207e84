"""`assert_attention` of every type: no alarm on a healthy model, and what is not read is refused for a known reason."""

import pytest

from lexbench import Refused, assert_attention
from lexbench.core.errors import ConfigError
from tests.census import tiny

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]
NO_FUNCTION = "calls no attention function of transformers' registry"
REFUSED: dict[str, str] = {
    **dict.fromkeys(
        ("big_bird", "blip", "bloom", "cpmant", "falcon", "git", "gpt_neo", "gpt_neox_japanese"), NO_FUNCTION
    ),
    **dict.fromkeys(("megatron-bert", "mpt", "mvp", "openai-gpt", "prophetnet", "reformer", "rembert"), NO_FUNCTION),
    **dict.fromkeys(("roformer", "rwkv", "trocr", "xglm", "xlnet"), NO_FUNCTION),
    **dict.fromkeys(("codegen", "gptj"), "holds no rotary module that is known here"),
    **dict.fromkeys(("falcon_mamba", "mamba", "mamba2", "xlstm"), "has no layer with attention"),
    **dict.fromkeys(("florence2", "pix2struct", "pp_formulanet", "t5gemma2", "udop"), "an encoder with a decoder"),
    "vision-encoder-decoder": "an encoder with a decoder",
    # positions of a text begin behind the padding id: of 160, 64 are left here
    **dict.fromkeys(("camembert", "data2vec-text", "roberta", "roberta-prelayernorm", "xlm-roberta"), "out of bounds"),
    **dict.fromkeys(("xlm-roberta-xl", "xmod"), "out of bounds"),
    **dict.fromkeys(("blt", "kosmos-2", "kosmos-2.5", "xlm"), "does not state the size of a head"),
    **dict.fromkeys(("inkling2", "inkling2_text", "inkling_mm_model", "inkling_text"), "position_bias"),
    **dict.fromkeys(("minimax_m3_vl", "minimax_m3_vl_text"), "rotary_dim must be even and at most head_dim 8"),
    "deepseek_v4": "does not say which layers these are",
    "doge": "adds a bias of its own to the scores",
    "idefics": "Exactly 1 of pixel_values",
    "unlimited_ocr": "sees a window and a part of the prompt",
    "zaya": "mixes tokens by a convolution",
}
"""Types whose attention is not read, and why."""


@pytest.mark.parametrize("kind", sorted({*tiny.types()} - {*tiny.UNMADE}))
def test_a_healthy_type_raises_no_alarm(kind: str) -> None:
    network = tiny.network_of(kind)
    try:
        said = _read(network)
    except (Refused, ConfigError) as refusal:
        assert kind in REFUSED, f"{kind} was read before, and is refused: {refusal}"
        assert REFUSED[kind] in str(refusal)
        assert "\n" not in str(refusal)
        return
    assert kind not in REFUSED, f"{kind} is read now: take it off the list"
    assert any(line != "no attention" for line in said)


def _read(network: object) -> tuple[str, ...]:
    """What was found right, at the trained length of the config, or that of all tiny models where it states none."""
    try:
        return assert_attention(network, length=tiny.LONGEST)
    except ConfigError as error:
        if "does not state its trained length" not in str(error):
            raise
        return assert_attention(network, length=tiny.LONGEST, trained_length=tiny.LONGEST)
