"""What commands declare: settings, yaml, help and completion agree."""

from typing import Any

import pytest
import yaml

from lexbench.commands import hydra_config
from lexbench.commands.command import Command
from lexbench.commands.main import COMMANDS_BY_NAME, build_parser
from lexbench.core import registry

YAMLS = sorted(file.stem for folder in registry.config_dirs() for file in folder.glob("*.yaml"))
CONFIGURED = [command for command in COMMANDS_BY_NAME.values() if command.settings]


def keys(name: str) -> set[str]:
    """The groups and settings of a yaml of configs/."""
    content = yaml.safe_load((registry.command_config_folder(name) / f"{name}.yaml").read_text())
    groups = {key for each in content["defaults"] if isinstance(each, dict) for key in each}
    return {key for key in {*groups, *content} - {"defaults", "hydra"} if not key.startswith("override ")}


def help_of(command: Command, capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit):
        build_parser().parse_args([command.name, "--help"])
    return capsys.readouterr().out


@pytest.mark.parametrize("name", YAMLS)
def test_every_key_of_a_yaml_is_declared_by_its_commands_and_every_declared_setting_is_in_it(name: str) -> None:
    declared = [{each.name for each in command.settings} for command in CONFIGURED if command.config_name == name]
    assert set().union(*declared) == keys(name)


def test_every_command_with_settings_has_a_yaml() -> None:
    assert sorted({command.config_name for command in CONFIGURED}) == YAMLS


@pytest.mark.everyday("run", "tune", "study")
@pytest.mark.parametrize("command", CONFIGURED, ids=lambda command: command.name)
def test_help_has_every_setting_once_with_its_default(
    command: Command, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "1000")  # no wrapped lines
    text = " ".join(help_of(command, capsys).split())
    for setting in command.settings:
        assert text.count(f" {setting.example} {setting.help} ") == 1
        default: Any = command.defaults()[setting.name] if setting.default is None else setting.default
        if default and not isinstance(default, dict | list | bool):
            assert f"{setting.help} (default: {default})" in text
    assert len({setting.name for setting in command.settings}) == len(command.settings)


@pytest.mark.everyday("run", "versus", "show", "study")
@pytest.mark.parametrize("command", CONFIGURED, ids=lambda command: command.name)
def test_every_example_is_a_setting_that_hydra_takes(command: Command) -> None:
    words = [setting.example for setting in command.settings if not setting.example.endswith("=NAME")]
    config, _ = hydra_config.compose_config(command, words)
    assert config.keys() <= keys(command.config_name)
    for word in words:
        name, _, value = word.partition("=")
        if "." not in name and name not in registry.REGISTRY_GROUPS:
            assert config[name] == yaml.safe_load(value)
