"""The census' questions, asked of real weights out of the package index."""

from importlib import metadata
from typing import Any

import numpy as np
import pytest

from lexbench import Attention, Generate
from lexbench.backends.hf import Hf
from lexbench.checkpoints.checkpoint import locate_checkpoint, read_model
from lexbench.core import registry
from lexbench.core.task import Choose
from lexbench.runner.verify import Preflight
from tests.census import asking

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]
LENGTHS = {"smollm2": 48, "gemma3_270m": 48}


@pytest.fixture(scope="module", params=LENGTHS)
def real(request: pytest.FixtureRequest) -> tuple[Hf, asking.Stock, Any]:
    """lexbench's backend and the stock model, both in float32, and a text of their own tokenizer."""
    stated = registry.read_named_config("model", request.param)
    distribution = stated["path"].removeprefix("package:").partition("/")[0]
    try:
        metadata.distribution(distribution)
    except metadata.PackageNotFoundError:
        pytest.skip(f"{distribution} is not installed")
    model = read_model(stated)
    hf = Hf(model, batch=2, device="cpu", dtype="float32")
    text = "The cache of a model holds the keys and values of all tokens that it has read. " * 4
    tokens = hf.tokenizer.encode(text).ids.astype(np.int64)[: LENGTHS[request.param]]
    return hf, asking.Stock(locate_checkpoint(stated["path"])), tokens


def test_likelihoods_are_the_stock_models(real: tuple[Hf, asking.Stock, Any]) -> None:
    hf, stock, tokens = real
    texts = [tokens, asking.other_end(tokens, 20)]
    for text, given in zip(texts, hf.answer_batch([asking.score(each) for each in texts]), strict=True):
        asking.close(given.nll, stock.losses(text, 10))  # type: ignore[union-attr]


def test_texts_and_choices_are_the_stock_models(real: tuple[Hf, asking.Stock, Any]) -> None:
    hf, stock, tokens = real
    assert Preflight(None, hf, "").failure_of_cache(Attention(), len(tokens)) is None
    prompt = tokens[:24]
    options = (tokens[24:27], tokens[30:31])
    expected = [stock.losses(np.append(prompt, option), len(prompt)).sum() for option in options]
    for hf.reuse in (False, True):
        given = hf.choose(Choose(index=0, cluster="", prompt=prompt, options=options, expected=0))
        asking.close(given.nll, expected)
        asking.as_written(
            prompt, hf.write(Generate(index=0, cluster="", prompt=prompt, max_new_tokens=3)), stock, room=3
        )


def test_choices_beyond_the_windows_are_the_stock_models(real: tuple[Hf, asking.Stock, Any]) -> None:
    hf, stock, tokens = real
    window = hf.drops_after()
    if window is None:
        pytest.skip("its layers see all keys")
    longer = np.resize(tokens, window + 40)
    assert Preflight(None, hf, "").failure_of_cache(Attention(), len(longer)) is None
    options = (tokens[24:27], tokens[30:31])
    given = hf.choose(Choose(index=0, cluster="", prompt=longer, options=options, expected=0))
    chances = stock.chances(np.append(longer, options[0]))
    asking.close(given.nll[0], -sum(chances[len(longer) - 1 + place, token] for place, token in enumerate(options[0])))
    asking.close(given.nll[1], -chances[len(longer) - 1, options[1][0]])
