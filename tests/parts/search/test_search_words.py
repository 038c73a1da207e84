"""Settings and words of the commands that search."""

from typing import Any

import pytest

from lexbench.commands import hydra_config
from lexbench.commands.main import COMMANDS_BY_NAME
from lexbench.core import objects
from lexbench.parts.search.commands import tune
from lexbench.parts.search.longrope_search import evolution
from lexbench.parts.search.tune import settings as tune_settings
from tests.commands.test_words import composed


def test_no_setting_of_a_search_or_a_tune_is_left_unread() -> None:
    tune, search = (set(COMMANDS_BY_NAME[name].names(groups=False)) for name in ("tune", "search"))
    assert tune | {"to"} == objects.class_parameters(tune_settings.TuneSettings).keys()  # --to, as of lexbench export
    assert search == {*objects.class_parameters(evolution.EvolutionSettings), "length", "out", "n"}


@pytest.mark.everyday("'needles={name:needle,options:4}'")
@pytest.mark.parametrize(
    ("words", "setting", "value"),
    [
        ("length=512", "length", 512),
        ("lengths=512", "length", 512),
        ("methods=yarn", "methods", ["yarn"]),
        ("methods=yarn,yarn+log_n", "methods", ["yarn", "yarn+log_n"]),
        ("'needles={name:needle,options:4}'", "needles", [{"name": "needle", "options": 4}]),
    ],
)
def test_one_value_is_a_list_of_one_and_lengths_have_either_name(words: str, setting: str, value: Any) -> None:
    assert composed(words, tune.COMMAND)[0][setting] == value


def test_a_file_of_texts_is_a_corpus() -> None:
    config, choices = hydra_config.compose_config(tune.COMMAND, ["corpus=book.txt"])
    assert (choices["corpus"], config["corpus"]["path"]) == ("files", "book.txt")
