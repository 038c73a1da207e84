"""Numbers that a layer keeps, counted by hand."""

import pytest

from lexbench import ConfigError, Model
from lexbench.core.layer_cache import LayerCache
from lexbench.core.registry import read_named_config
from lexbench.methods.composition import method_config
from lexbench.runner.job import Job


def test_a_layer_keeps_its_heads_of_each_token_and_a_window_those_before_the_next_query() -> None:
    whole, window = LayerCache(5, 4, 3), LayerCache(1, 16, 8, window=16)
    assert (whole.numbers, window.numbers) == (5 * 7, 24)
    assert [whole.tokens(length) for length in (1, 1000)] == [1, 1000]
    assert [window.tokens(length) for length in (1, 15, 16, 1000)] == [1, 15, 15, 15]


def test_what_layers_keep_enters_no_job() -> None:
    """The name of jobs/NAME.json is a hash of its settings: a folder of before is gone on with, not begun again."""
    model = Model(name="m", trained_length=64, head_dim=8, layer_caches=(None, LayerCache(1, 8, 8)))
    assert model.stated_facts() == Model(name="m", trained_length=64, head_dim=8).stated_facts()
    assert "layer_caches" not in model.stated_facts() and model.stated_facts()["head_dim"] == 8
    job = Job.of(
        model=model,
        methods=[method_config("none")],
        tasks=[{"name": "passkey", **read_named_config("task", "passkey")}],
        corpus=None,
        backend={"name": "hf"},
        lengths=[128],
        multiples=None,
        n=1,
        seeds=[0],
        results=None,
    )
    assert job.config["model"] == model.stated_facts()


@pytest.mark.parametrize("sizes", [(0, 4, 4, None), (1, 4, True, None), (1, 4, 4, 0)])
def test_a_size_that_is_none_is_said(sizes: tuple[int, int, int, int | None]) -> None:
    with pytest.raises(ConfigError, match="of a layer's cache must be a whole number of at least 1"):
        LayerCache(*sizes)


def test_a_model_without_a_config_keeps_heads_of_one_size_where_its_facts_say_enough() -> None:
    model = Model(name="m", trained_length=64, head_dim=8, layers=3, kv_heads=2)
    assert model.kept_by_layer() == (LayerCache(2, 8, 8),) * 3 and model.kept_numbers(10) == 10 * 3 * 2 * 16
    kinds = ("linear_attention", "full_attention")
    some = Model(name="m", trained_length=64, head_dim=8, heads=4, layer_types=kinds, global_head_dim=16)
    assert some.kept_by_layer() == (None, LayerCache(4, 16, 16))
    unknown = [
        Model(name="m", trained_length=64, head_dim=8, kv_heads=2),  # how many layers
        Model(name="m", trained_length=64, head_dim=8, layers=3),  # how many heads
        Model(name="m", trained_length=64, head_dim=8, layers=3, heads=4, decoupled=True),  # the size of the latent
        Model(name="m", trained_length=64, head_dim=8, heads=4, layer_types=("sliding_attention",)),  # of the window
    ]
    assert [(each.kept_by_layer(), each.kept_numbers(10)) for each in unknown] == [(None, 0)] * 4
