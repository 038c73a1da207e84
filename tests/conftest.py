"""What many tests need: a tokenizer with BOS, trained here, and real data where there is some."""

import gc
import os
import re
import shutil

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # before anything reads it: no test waits for a network

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

import lexbench
from lexbench.checkpoints.tokenizer import FastTokenizer
from lexbench.corpora import synthetic
from lexbench.corpora.synthetic import Synthetic
from lexbench.taskkit import perplexity
from lexbench.taskkit.perplexity import EncodedCorpus
from tests import texts

if TYPE_CHECKING:
    from playwright.sync_api import Browser

PASSAGE = """A pass key is hidden in this text. What is the pass key? The grass is green, the sky is blue and the sun is
yellow. Here we go: there and back again. Remember it."""

PARTS_FOLDER = Path(lexbench.__file__).parent / "parts"


def pytest_collection() -> None:
    """Look for no garbage while modules are loaded: a fifth of that time."""
    gc.disable()


@pytest.hookimpl(tryfirst=True)  # before those that are not asked for are left out
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark as slow the parameters that a test's mark `everyday` does not name, by an id or its beginning.

    Where lexbench has no parts, tests with the mark `parts` are skipped.
    """
    whole = PARTS_FOLDER.is_dir()
    for item in [] if whole else items:
        if (asked := item.get_closest_marker("parts")) and (
            not asked.args or set(asked.args) & set(re.findall(r"\w+", item.nodeid.partition("[")[2]))
        ):
            item.add_marker(pytest.mark.skip(reason="asks for a part, which is not here"))
    missing, found = set[tuple[str, str]](), set[tuple[str, str]]()
    for item in items:
        if named := item.get_closest_marker("everyday"):
            test, _, parameters = item.nodeid.removesuffix("]").partition("[")
            one = {(test, each) for each in named.args if f"{parameters}-".startswith(f"{each}-")}
            missing |= {(test, each) for each in named.args}
            found |= one
            if not one:
                item.add_marker(pytest.mark.slow)
    if whole and missing > found and not any("[" in word for word in config.args):
        raise pytest.UsageError(f"mark everyday names parameters that are not there: {sorted(missing - found)}")


def pytest_collection_finish() -> None:
    """Look for garbage in what tests make, but not in modules and the tests themselves."""
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session")
def tokenizer() -> FastTokenizer:
    """Byte-level BPE of 320 tokens from fixed text, digits single; BOS (id 0) begins every context."""
    bpe = tokenizers.Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    bpe.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=320, special_tokens=["<s>"], initial_alphabet=alphabet, show_progress=False
    )
    texts = [document.text for document in Synthetic(count=1, words=1000).documents()]
    bpe.train_from_iterator([PASSAGE] * 20 + texts, trainer)
    return FastTokenizer(bpe, bos=0, begins_with_bos=True)


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Threads cost more than they bring on small models."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session", autouse=True)
def _documents_once() -> Iterator[None]:
    """Makes each document of the synthetic corpus once for all tests of a process."""
    with texts.once():
        yield


@pytest.fixture(autouse=True)
def _own_config_dirs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Takes back the folders of yamls that a command of a test has added for the rest of its process."""
    if "LEXBENCH_CONFIG_PATH" in os.environ:
        monkeypatch.setenv("LEXBENCH_CONFIG_PATH", os.environ["LEXBENCH_CONFIG_PATH"])
    else:  # remembered as absent
        monkeypatch.setenv("LEXBENCH_CONFIG_PATH", "")
        monkeypatch.delenv("LEXBENCH_CONFIG_PATH")


@pytest.fixture
def documents_afresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes and encodes them each time, for tests that compare them."""
    monkeypatch.setattr(synthetic, "_document", texts.document)
    monkeypatch.setattr(perplexity, "EncodedCorpus", EncodedCorpus)


@pytest.fixture
def unverified(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaves out the self-check that a run begins with; its own tests are in runner/test_verify.py."""
    monkeypatch.setattr("lexbench.runner.verify.verify_attention", lambda *_: [])
    monkeypatch.setattr("lexbench.runner.verify.check_cached_reading", lambda *_: [])


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaves pictures empty, for reports of which only text and numbers are read."""
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", lambda *_, **__: None)


@pytest.fixture(scope="session")
def shared() -> Path:
    """Folder of real data that is not ours to ship: LEXBENCH_SHARED, or shared beside the project."""
    root = Path(os.environ.get("LEXBENCH_SHARED") or Path(__file__).parent.parent.parent / "shared")
    folder = root / "data" if (root / "data").is_dir() else root
    if not (folder / "stories260K-hf").is_dir():
        pytest.skip("no shared data here")
    return folder


@pytest.fixture(scope="module")
def chromium() -> Iterator["Browser"]:
    """A headless browser: that of LEXBENCH_CHROMIUM, or one on the path."""
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(timeout=300_000)  # waits long on a busy machine only
    names = ("chromium", "chromium-browser", "google-chrome")
    found = os.environ.get("LEXBENCH_CHROMIUM") or next(filter(None, map(shutil.which, names)), None)
    if not found:
        pytest.skip("no chromium: install it, or name it in LEXBENCH_CHROMIUM")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield browser
        browser.close()
