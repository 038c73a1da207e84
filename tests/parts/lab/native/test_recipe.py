"""Recipes that say what cannot be are refused in one line that names the setting."""

import math
import re

import pytest

from lexbench.core import objects, registry
from lexbench.parts.lab.native.recipe import Recipe

GOOD = {"steps": 1, "lessons": {"text": 1.0}}


@pytest.mark.parametrize("name", registry.registered_names("recipe"))
def test_recipes_of_the_registry_are_read(name: str) -> None:
    built = objects.build_object(registry.read_named_config("recipe", name), "recipe")
    assert isinstance(built, Recipe) and built.steps >= 1


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"batch": 0}, "recipe.batch must be at least 1, got 0"),
        ({"batch": 2.5}, "recipe.batch must be a whole number, got 2.5"),
        ({"accumulate": 25}, "recipe.accumulate must be at most the batch of 24"),
        ({"trained_length": 1}, "recipe.trained_length must be at least 2, got 1"),
        ({"packing": "single"}, "recipe.packing=single is for counted=answers, got counted=all"),
        ({"warmup": -1}, "recipe.warmup must be at least 0, got -1"),
        ({"horizon": 0}, "recipe.horizon must be at least 1, got 0"),
        ({"seed": -1}, "recipe.seed must be at least 0, got -1"),
        ({"seed": 2**63}, "recipe.seed must be below 2^63, got 9223372036854775808"),
        ({"rate": 0.0}, "recipe.rate must be a number above 0, got 0.0"),
        ({"rate": math.inf}, "recipe.rate must be a number above 0, got inf"),
        ({"rate": math.nan}, "recipe.rate must be a number above 0, got nan"),
        ({"clip": 0}, "recipe.clip must be a number above 0, got 0"),
        ({"decay": -0.1}, "recipe.decay must be a number of at least 0, got -0.1"),
        ({"last": -0.1}, "recipe.last must be a number of at least 0, got -0.1"),
        ({"matrix_rate": 0}, "recipe.matrix_rate must be a number above 0, got 0"),
        ({"optimizer": "sgd"}, "recipe.optimizer must be adamw or muon, got sgd"),
        ({"precision": "float16"}, "recipe.precision must be float32 or bfloat16 or null, got float16"),
        ({"weights": "int8"}, "recipe.weights must be float32 or bfloat16 or float16"),
        ({"shape": 5}, "recipe.shape must be sizes by name, got 5"),
        ({"shape": {"depth": 3}}, "unknown parameter recipe.shape.depth"),
        ({"shape": {"layers": "a"}}, "recipe.shape.layers must be a whole number, got 'a'"),
        ({"shape": {"layers": 0}}, "recipe.shape.layers must be at least 1, got 0"),
        ({"shape": {"norm_epsilon": 0}}, "recipe.shape.norm_epsilon must be a number above 0, got 0"),
        ({"shape": {"block": "bert"}}, "recipe.shape.block must be llama or gpt or gau, got 'bert'"),
        ({"stages": ()}, "recipe.stages must be a list of at least one stage, got ()"),
        ({"stages": 5}, "recipe.stages must be a list of at least one stage, got 5"),
        ({"stages": "text"}, "recipe.stages must be a list of at least one stage, got 'text'"),
        ({"stages": GOOD}, "recipe.stages must be a list of at least one stage, got {"),
        (
            {"stages": ["text"]},
            "recipe.stages must each have steps and lessons, and boost and length if any, got 'text'",
        ),
        ({"stages": [{**GOOD, "length": 1}]}, "recipe.stages.length must be at least 2, got 1"),
        ({"stages": [{**GOOD, "length": 100}]}, "recipe.stages.length must divide trained_length=256, got 100"),
        ({"stages": [{"steps": 1, "lesson": {}}]}, "recipe.stages must each have steps and lessons"),
        ({"stages": [{**GOOD, "steps": "abc"}]}, "recipe.stages.steps must be a whole number, got 'abc'"),
        ({"stages": [{**GOOD, "steps": 1.5}]}, "recipe.stages.steps must be a whole number, got 1.5"),
        ({"stages": [{**GOOD, "steps": 0}]}, "recipe.stages.steps must be at least 1, got 0"),
        ({"stages": [{**GOOD, "boost": 0}]}, "recipe.stages.boost must be a number above 0, got 0"),
        ({"stages": [{**GOOD, "lessons": ["text"]}]}, "recipe.stages.lessons must be shares by name, got ['text']"),
        ({"stages": [{**GOOD, "lessons": {}}]}, "recipe.stages.lessons must be shares by name, got {}"),
        (
            {"stages": [{**GOOD, "lessons": {"text": "x"}}]},
            "recipe.stages.lessons.text must be a number above 0, got 'x'",
        ),
        (
            {"stages": [{**GOOD, "lessons": {"text": -1}}]},
            "recipe.stages.lessons.text must be a number above 0, got -1",
        ),
    ],
    ids=str,
)
def test_bad_recipes_are_refused(changed: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=rf"^{re.escape(said)}.*: .+$"):  # with a remedy; a dot is no new line
        Recipe(**{"stages": [GOOD], **changed})  # type: ignore[arg-type]


@pytest.mark.parametrize("last", [0.0, 0.1])
def test_the_rate_rises_to_its_peak_and_falls_along_a_cosine_to_the_last(last: float) -> None:
    recipe = Recipe(stages=[{**GOOD, "steps": 30}], rate=2.0, warmup=10, last=last)
    assert [recipe.rate * recipe.learning_rate_share(step) for step in (4, 9, 10)] == pytest.approx([1.0, 2.0, 2.0])
    assert recipe.rate * recipe.learning_rate_share(20) == pytest.approx(2.0 * (1 + last) / 2)  # half of the way
    assert recipe.rate * recipe.learning_rate_share(15) == pytest.approx(
        2.0 * (last + (1 - last) * (1 + math.sqrt(0.5)) / 2)
    )
