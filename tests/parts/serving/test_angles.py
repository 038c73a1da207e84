"""Angles that vLLM's tables are compared with: those of transformers' own modules."""

import numpy as np
import pytest

from lexbench.backends.hf.exact import layers
from lexbench.checkpoints.config_facts import facts_of_config
from lexbench.core.model import Model
from lexbench.parts.serving.vllm.angles import own_angles
from tests.scaled.test_published import PUBLISHED, SMALL, rotary_of


@pytest.mark.parametrize("kind", PUBLISHED)
def test_expected_angles_are_those_of_the_module(kind: str) -> None:
    config = {"model_type": kind, **SMALL, **PUBLISHED[kind]}
    rotary = rotary_of(config)
    model = Model(name=kind, **{"trained_length": 4096, **facts_of_config(config)})
    for each, angles in zip(layers.rotary_kinds(rotary), own_angles(model, 1), strict=True):
        np.testing.assert_allclose(angles.inv_freq, layers.rotary_frequencies(rotary, each).double().numpy(), rtol=1e-6)
        assert angles.scale == pytest.approx(layers.rotary_scale(rotary, each))
