"""Questions behind one text, which our own decoder reads once: each answer is that of the question asked alone."""

import pytest

from lexbench.checkpoints.checkpoint import read_model
from lexbench.core import registry
from lexbench.parts.lab.backend import Native
from lexbench.parts.lab.native.decoder import Decoder
from tests.backends.test_questions_per_text import METHODS, check_choices, check_read_once, tokens_read

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def native() -> Native:
    return Native(read_model(registry.read_named_config("model", "lexlet")), dtype="float32")


@pytest.mark.everyday("none")
@pytest.mark.parametrize("method", METHODS)
def test_answers_are_those_of_each_question_alone(method: str, native: Native, monkeypatch: pytest.MonkeyPatch) -> None:
    check_read_once(native, method, tokens_read(monkeypatch, Decoder, "forward"))


@pytest.mark.slow
def test_choices_behind_one_text_are_those_of_each_alone(native: Native) -> None:
    check_choices(native)
