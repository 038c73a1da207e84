"""What is printed for a scaled, nested or mixed config is read where the target reads it, with the method's numbers."""

import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from lexbench import Model, Refused
from lexbench.backends.hf.exact.extended import Extended
from lexbench.checkpoints.config_facts import facts_of_config
from lexbench.methods.composition import named_method, read_method
from lexbench.methods.export import export_text
from lexbench.methods.scaled import ROPE_STARTS, attention_of, ropes_of_model
from tests.census import tiny
from tests.scaled import families
from tests.scaled.families import FAMILIES, LENGTH, TRAINED
from tools import methods_page

NESTED = {
    "gemma3": {"text_config": {**families.SHARED, **FAMILIES["Gemma 3"].changes}},
    "qwen3_5": {"text_config": {**families.SHARED, **FAMILIES["Qwen3.5"].changes}},
}
"""Multimodal models, whose text model has a section of config.json."""
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (family.kind, {**families.SHARED, **family.changes}) for name, family in FAMILIES.items()},
    "Phi-3": ("phi3", {**families.SHARED, "sliding_window": None, "original_max_position_embeddings": TRAINED}),
    **{kind: (kind, changes) for kind, changes in NESTED.items()},
}


def saved(name: str, folder: Path) -> Model:
    """A folder with the config of a family, and its facts as lexbench reads them."""
    kind, changes = KINDS[name]
    tiny.config_of(kind, **json.loads(json.dumps(changes))).save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    return Model(name="m", path=str(folder), **{**facts_of_config(config), "trained_length": TRAINED})


MODULES: dict[str, Any] = {}
"""Class of the rotary module, by type of model."""


def rotary_of(config: Any) -> Any:
    """The rotary module that transformers builds from a config."""
    text = config.get_text_config()
    if text.model_type not in MODULES:
        with torch.device("meta"):
            MODULES[text.model_type] = type(transformers.AutoModel.from_config(text).rotary_emb)
    return MODULES[text.model_type](config=text)


def read_back(config: Any, kind: str | None) -> tuple[np.ndarray, float]:
    module, prefix = rotary_of(config), "" if kind is None else f"{kind}_"
    call = (torch.zeros(1), torch.arange(LENGTH)[None], *([] if kind is None else [kind]))
    module(*call)  # angles that follow the length follow this one
    return getattr(module, f"{prefix}inv_freq").double().numpy(), float(getattr(module, f"{prefix}attention_scaling"))


def assert_as_asked(config: Any, model: Model, method: Any) -> None:
    attention = attention_of(method, model, LENGTH)
    for rope in ropes_of_model(model):
        part = attention.at(0 if rope.layers is None else rope.layers[0])
        own, scale = rope.own(LENGTH)
        given, given_scale = read_back(config, rope.kind)
        np.testing.assert_allclose(given, own if part.inv_freq is None else part.inv_freq, rtol=2e-6, atol=1e-30)
        assert given_scale == pytest.approx(scale if part.scale is None else part.scale)
        text = config.get_text_config()
        kept = {**vars(text), **(text.rope_parameters if rope.kind is None else text.rope_parameters[rope.kind])}
        assert {key: kept[key] for key in rope.plain.rope_extra or {}} == (rope.plain.rope_extra or {})


def loaded(folder: Path, entries: dict[str, Any]) -> Iterator[Any]:
    """The config with the export: given to `from_pretrained`, and pasted into config.json, which is read otherwise."""
    yield transformers.AutoConfig.from_pretrained(folder, **entries)
    stated, text = json.loads((folder / "config.json").read_text()), entries.get("text_config")
    whole = stated | ({"text_config": stated["text_config"] | text} if text else entries)
    pasted = folder / "pasted"
    pasted.mkdir(exist_ok=True)
    (pasted / "config.json").write_text(json.dumps(whole))
    yield transformers.AutoConfig.from_pretrained(pasted)


@pytest.mark.everyday("Llama 3.1", "gpt-oss")
@pytest.mark.parametrize(
    "name", ["Llama 3.1", "Gemma 3", "Gemma 4", "gpt-oss", "DeepSeek-V3", "Phi-3", "gemma3", "qwen3_5"]
)
def test_transformers_reads_the_frequencies_back(name: str, tmp_path: Path) -> None:
    model = saved(name, tmp_path)
    for method in ("none", "yarn", "p_rope"):
        for over in ROPE_STARTS:
            built = named_method(method, over=over)
            try:
                entries = json.loads(export_text(built, method, model, LENGTH, "transformers"))
            except Refused:
                continue
            # transformers 5.23 cannot validate longrope in a config.json whose layers differ in head_dim.
            for config in islice(loaded(tmp_path, entries), 1 if name == "Gemma 4" else 2):
                assert_as_asked(config, model, built)


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_transformers_reads_every_method_back(name: str, tmp_path: Path) -> None:
    model, count = saved(name, tmp_path), 0
    for method in methods_page.METHODS:
        for over in ROPE_STARTS:
            built = named_method(method, over=over)
            try:
                entries = json.loads(export_text(built, method, model, LENGTH, "transformers"))
            except Refused:
                continue
            count += 1
            # transformers 5.23 cannot validate longrope in a config.json whose layers differ in head_dim.
            for config in islice(loaded(tmp_path, entries), 1 if name == "Gemma 4" else 2):
                assert_as_asked(config, model, built)
    assert count >= 15 * len(ROPE_STARTS)


def test_phimoe_turns_by_the_angles_and_the_scale_of_what_is_printed(tmp_path: Path) -> None:
    config = tiny.config_of("phimoe", **families.SHARED, rope_parameters=families.rope())
    config.save_pretrained(tmp_path)
    model = Model(name="m", path=str(tmp_path), **facts_of_config(json.loads((tmp_path / "config.json").read_text())))
    for method in ("yarn", "longrope"):
        built = named_method(method)
        attention = attention_of(built, model, LENGTH)
        assert attention.inv_freq is not None and attention.scale is not None
        entries = json.loads(export_text(built, method, model, LENGTH, "transformers"))
        for config in loaded(tmp_path, entries):
            cos, _ = rotary_of(config)(torch.zeros(1), torch.arange(LENGTH)[None])
            expected = attention.scale * np.cos(np.arange(LENGTH)[:, None] * attention.inv_freq)
            np.testing.assert_allclose(cos[0, :, : expected.shape[1]].numpy(), expected, atol=1e-5)


@pytest.mark.parametrize("kind", NESTED)
def test_a_nested_config_is_changed_where_the_text_model_reads_it(kind: str, tmp_path: Path) -> None:
    model = saved(kind, tmp_path)
    entries = json.loads(export_text(named_method("yarn"), "yarn", model, LENGTH, "transformers"))
    assert list(entries) == ["text_config"]
    assert entries["text_config"]["max_position_embeddings"] == LENGTH
    loaded = transformers.AutoConfig.from_pretrained(tmp_path, **entries)
    assert loaded.text_config.num_hidden_layers == 4  # what is not printed stays


def test_the_softmax_scale_of_latent_attention_stays(tmp_path: Path) -> None:
    model = saved("DeepSeek-V3", tmp_path)
    before = transformers.AutoConfig.from_pretrained(tmp_path)
    for over in ROPE_STARTS:
        entries = json.loads(export_text(named_method("yarn", over=over), "yarn", model, LENGTH, "transformers"))
        after = transformers.AutoConfig.from_pretrained(tmp_path, **entries)
        with torch.device("meta"):
            scalings = [
                transformers.AutoModel.from_config(each).layers[0].self_attn.scaling for each in (before, after)
            ]
        assert scalings[0] == scalings[1] != 16**-0.5


QUERIES: dict[str, Any] = {"llama_4_scaling_beta": 0.5, "original_max_position_embeddings": 8}
"""A scale of queries, log of the position in steps of 8 tokens."""


QUERY_ROPES = [families.rope(**QUERIES), families.rope("yarn", factor=8.0, **QUERIES)]


@pytest.mark.parametrize("own", QUERY_ROPES, ids=lambda own: own["rope_type"])
def test_a_scale_of_queries_stays(own: dict[str, Any], tmp_path: Path) -> None:
    """The network with the printed parameters gives the logits of the method in the network as it was."""
    torch.manual_seed(0)
    network = tiny.network_of("ministral3", **families.SHARED, rope_parameters=own).eval()
    network.config.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    model = Model(name="m", path=str(tmp_path), **{**facts_of_config(config), "trained_length": TRAINED})
    tokens = torch.arange(LENGTH)[None] % tiny.VOCABULARY
    seen = []
    for name, over in (("none", "scaled"), ("yarn", "scaled"), ("yarn", "plain"), ("pi", "plain"), ("abf", "plain")):
        built = named_method(name, over=over)
        entries = json.loads(export_text(built, name, model, LENGTH, "transformers"))
        changed = transformers.AutoConfig.from_pretrained(tmp_path, **entries)
        served = type(network)(changed).eval()
        served.load_state_dict(network.state_dict())
        with torch.no_grad(), Extended(network, built, LENGTH, TRAINED):
            expected = network(tokens, use_cache=False).logits
        with torch.no_grad():
            found = served(tokens, use_cache=False).logits
        assert (found - expected).abs().max() < 1e-3 * expected.std(), (name, over)
        seen.append(expected)
        told = export_text(built, name, model, LENGTH, "vllm")
        assert '"llama_4_scaling_beta": 0.5' in told and '"original_max_position_embeddings": 8' in told
    assert (seen[0] - seen[1]).std() > 0.01 * seen[0].std()  # the methods differ


@pytest.mark.parametrize("own", QUERY_ROPES, ids=lambda own: own["rope_type"])
def test_a_scale_of_queries_stays_in_latent_attention(own: dict[str, Any], tmp_path: Path) -> None:
    tiny.config_of("mistral4", **families.SHARED, rope_parameters=own).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    model = Model(name="m", path=str(tmp_path), **{**facts_of_config(config), "trained_length": TRAINED})
    for name, over in (("none", "scaled"), ("yarn", "scaled"), ("yarn", "plain"), ("pi", "plain")):
        entries = json.loads(export_text(named_method(name, over=over), name, model, LENGTH, "transformers"))
        rope = transformers.AutoConfig.from_pretrained(tmp_path, **entries).rope_parameters
        assert {key: rope[key] for key in QUERIES} == QUERIES


def test_a_length_beside_the_rope_parameters_is_kept(tmp_path: Path) -> None:
    """transformers reads it in place of the one that an export prints."""
    stated = {**OLD_LLAMA, "max_position_embeddings": 4096, "original_max_position_embeddings": 1024}
    (tmp_path / "config.json").write_text(json.dumps({**stated, "num_hidden_layers": 1, "vocab_size": 8}))
    model = Model(name="m", path=str(tmp_path), **facts_of_config(stated))
    entries = json.loads(export_text(named_method("yarn"), "yarn", model, 16384, "transformers"))
    rotary = rotary_of(transformers.AutoConfig.from_pretrained(tmp_path, **entries))
    expected = attention_of(named_method("yarn"), model, 16384)
    assert expected.inv_freq is not None
    np.testing.assert_allclose(rotary.inv_freq.double().numpy(), expected.inv_freq, rtol=2e-6)


@pytest.mark.parametrize(
    ("name", "method", "target", "said"),
    [
        ("gpt-oss", "pi", "vllm", "its gpt-oss reads yarn's parameters only"),
        ("DeepSeek-V3", "yarn", "vllm", "its multi-head latent attention takes any scaling for yarn"),
        ("qwen3_5", "longrope", "vllm", "its longrope has no sections of mRoPE"),
        ("Llama 3.1", "pi", "llama.cpp", "its flags keep the scaling in the file of m"),
        ("Gemma 3", "pi", "llama.cpp", "its flags keep the scaling in the file of m"),
        ("Gemma 3", "rerope", "transformers", "transformers cannot express remapped distances"),
        ("Gemma 3", "attention_buckets", "transformers", "transformers cannot express mixture"),
    ],
)
def test_what_a_target_cannot_read_is_refused(name: str, method: str, target: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(Refused, match=said):
        export_text(named_method(method), method, saved(name, tmp_path), LENGTH, target)


def test_a_label_names_what_it_starts_from(tmp_path: Path) -> None:
    model = saved("Gemma 3", tmp_path)
    _, method, key = read_method({"_target_": "lexbench.methods.rerope.Rerope", "name": "rerope", "over": "plain"})
    with pytest.raises(Refused, match=r"cannot express .*remapped distances \(rerope\(over='plain'\)\)"):
        export_text(method, str(key), model, LENGTH, "vllm")


OLD_LLAMA = {"model_type": "llama", "hidden_size": 32, "num_attention_heads": 4, "rope_theta": 200.0}
OLD = {
    "llama3": {**OLD_LLAMA, "rope_scaling": {**families.SCALED, **families.LOW, "rope_type": "llama3"}},
    "default": {**OLD_LLAMA, "rope_scaling": {"rope_type": "default"}},
    "gemma3": {
        **{**OLD_LLAMA, "model_type": "gemma3_text", "head_dim": 8, "num_hidden_layers": 6, "sliding_window": 12},
        **{"rope_local_base_freq": 50.0, "rope_scaling": {"rope_type": "yarn", "factor": 8.0}},
    },
}
"""Entries of config.json as published for transformers 4."""


@pytest.mark.parametrize("name", OLD)
def test_an_export_replaces_the_scaling_of_a_config_of_transformers_4(name: str, tmp_path: Path) -> None:
    stated = {**OLD[name], "max_position_embeddings": TRAINED}
    (tmp_path / "config.json").write_text(json.dumps(stated))
    model = Model(name="m", path=str(tmp_path), **{**facts_of_config(stated), "trained_length": TRAINED})
    entries = json.loads(export_text(named_method("pi", over="plain", factor=4.0), "pi", model, LENGTH, "transformers"))
    # Position interpolation by hand: 200^(-2p/8) / 4.
    wanted = [200.0 ** (-2 * pair / 8) / 4 for pair in range(4)]
    for config in loaded(tmp_path, entries):
        given, scale = read_back(config, "full_attention" if name == "gemma3" else None)
        np.testing.assert_allclose(given, wanted, rtol=2e-6)
        assert scale == 1.0
