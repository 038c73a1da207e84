"""Declaration of a subcommand: options, settings, call. Help, checks and completion are made of it alone."""

import argparse
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import yaml

from lexbench.core import objects, registry
from lexbench.core.errors import ConfigError
from lexbench.core.values import MAX_EXACT_INTEGER, is_whole
from lexbench.methods.composition import method_configs

SETTING_GROUPS = (*registry.REGISTRY_GROUPS, "recipe", "study")
"""Settings that name a yaml of a folder in configs/, whose parameters can be set too: method=yarn method.factor=8."""


MAX_MESSAGE_CHARACTERS = 1000
"""Characters of a message at most: a word, a file or a setting may put very much into it."""


NAME_WIDTH, HELP_WIDTH = 11, 100
"""Characters of names of commands, and of lines of their list."""
COMMAND_HEADINGS = {
    "everybody": "What everybody needs first",
    "measure": "Measure and look",
    "decide": "Decide",
    "serve": "Serve",
    "train": "Train",
    "exchange": "Exchange",
    "other packages": "Of other packages",
}
"""Headings of the list of commands in --help, in their order."""


@dataclass(frozen=True)
class Setting:
    """One KEY=VALUE of a command.

    Args:
        example: `n=32`, or `space.yarn.beta_fast.low=16` for a value inside the setting `space`.
        help: what it sets.
        default: shown instead of the default in the command's yaml.
    """

    example: str
    help: str
    default: str | None = None

    @property
    def name(self) -> str:
        """The key."""
        return re.split(r"[.=]", self.example)[0]

    @property
    def is_list(self) -> bool:
        """Whether its value is a list, which one value alone stands for, too."""
        return self.example.startswith(f"{self.name}=[")

    @property
    def takes_list(self) -> bool:
        """Whether its value may be a list."""
        return self.is_list or f"{self.name}=[" in self.help

    @property
    def is_place(self) -> bool:
        """Whether its value is a folder or a file, whose name may hold any mark."""
        return bool(re.search("=(DIR|FILE|MY)", self.example))

    @property
    def is_group(self) -> bool:
        """Whether its value is a name of the registry."""
        return self.name in SETTING_GROUPS

    @property
    def has_parts(self) -> bool:
        """Whether KEY.PART=VALUE sets a part of it."""
        return self.is_group or self.example.startswith(f"{self.name}.")


MODEL_SETTING = Setting(
    "model=NAME", "the model; model=./FOLDER reads a folder, model=ORG/NAME a repository of the Hugging Face hub"
)
METHOD_SETTING = Setting("method=NAME", "the method; method.factor=8 sets a parameter, method=yarn+log_n combines two")
METHODS_SETTING = Setting(METHOD_SETTING.example, f"{METHOD_SETTING.help}, method=[none,yarn] takes several")
TASK_SETTING = Setting(
    "task=NAME", "the task; task.targets=64 sets a parameter, task=[last_segment,passkey] runs two tasks"
)
CORPUS_SETTING = Setting("corpus=NAME", "the texts; corpus=book.txt or corpus=./FOLDER reads your own")
DEFAULT_CORPUS_SETTING = Setting(
    CORPUS_SETTING.example,
    f"{CORPUS_SETTING.help}; a long length needs long documents",
    default="stdlib up to lengths of 4096 tokens, packages beyond",
)
BACKEND_SETTING = Setting("backend=NAME", "the software that runs the model; backend.dtype=float32 sets a parameter")
UNUSED_SETTINGS = tuple(
    Setting(f"{group}=NAME", "not used here; accepted so that the settings of a run can be repeated", default="")
    for group in ("task", "corpus", "backend")
)
CONFIG_DIR_HELP = "--config-dir DIR  add your own names: yamls in DIR/method/, DIR/task/, ..."
SWEEP_HELP = f"""\
-m KEY=A,B,C      run one job for each value; -m 'KEY=glob(*)' takes all names
                  hydra/launcher=joblib runs the jobs in parallel processes
--cfg job         print all settings and stop
{CONFIG_DIR_HELP}
"""
SAMPLE_FILES_HELP = """\
Files of samples are those of lm_eval (or their folder), Inspect, Every Eval Ever and vllm run-batch, or JSONL with
columns of your own; .gz too:"""
RESUME_HELP = "Repeat the command to resume after an interruption.\n\n"


@dataclass(frozen=True, kw_only=True)
class Command:
    """One subcommand."""

    name: str
    help: str
    """Line for the list of commands in --help."""
    call: Callable[[argparse.Namespace, list[str]], int]
    """Function that runs the command: (options, words that are settings) -> exit code."""
    arguments: Callable[[argparse.ArgumentParser], None] = lambda parser: None
    """Function that adds the options to a parser."""
    settings: Sequence[Setting] = ()
    config: str = ""
    """Name of the yaml in configs/ that holds the settings' defaults, if not the command's."""
    epilog: str = ""
    """End of the text that --help prints."""
    heading: str = "other packages"
    """Heading of the list of commands under which it stands, one of `COMMAND_HEADINGS`."""
    interrupted: str = "all results so far are kept: repeat the command to resume"
    """Message after Ctrl-C: the results that are kept, and the remedy."""
    passthrough: bool = False
    """Pass all words to another program, --help too."""
    own_progress: bool = False
    """Whether the command shows its own progress; any other one that takes long prints how long it has worked."""

    @property
    def config_name(self) -> str:
        """Name of the yaml in configs/."""
        return self.config or self.name

    @property
    def home(self) -> Path:
        """The folder of the yaml that holds the settings' defaults."""
        return registry.command_config_folder(self.config_name)

    def names(self, groups: bool) -> list[str]:
        """Names of the settings that are groups, or of all others."""
        return [setting.name for setting in self.settings if setting.is_group == groups]

    def keys(self) -> list[str]:
        """Completions of a setting."""
        return [f"{each.name}{mark}" for each in self.settings for mark in ("=." if each.has_parts else "=")]

    def options(self) -> list[str]:
        """Completions of an option."""
        parser = Parser(add_help=not self.passthrough)
        self.arguments(parser)
        # argparse has no public list of its options.
        return [option for action in parser._actions for option in action.option_strings]

    def add_to(self, commands: "argparse._SubParsersAction[Parser]") -> None:
        """Add the command and its options to the command line."""
        parser = commands.add_parser(
            self.name,
            description=self.help,
            epilog=self.epilog,
            formatter_class=CommandHelpFormatter,
            add_help=not self.passthrough,
        )
        self.arguments(parser)
        parser.set_defaults(command=self)
        parser.settings_of_help = self if self.settings else None

    def defaults(self) -> dict[str, Any]:
        """The settings' defaults, read from the command's yaml."""
        file = self.home / f"{self.config_name}.yaml"
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
        # The yaml's `defaults` is hydra's list: a mapping names the yaml of a group, as `model: lexlet`.
        groups = {name: value for each in content["defaults"] if isinstance(each, dict) for name, value in each.items()}
        return {**groups, **content}


def list_of_commands(commands: Iterable[Command]) -> str:
    """The list of commands in --help, by heading; one without a known heading stands under the last."""
    groups: dict[str, list[Command]] = {each: [] for each in COMMAND_HEADINGS}
    for command in commands:
        groups[command.heading if command.heading in groups else [*COMMAND_HEADINGS][-1]].append(command)
    lines = []
    for heading, group in groups.items():
        lines += ["", f"{COMMAND_HEADINGS[heading]}:"] if group else []
        for each in group:
            said = textwrap.wrap(" ".join(each.help.split()), HELP_WIDTH - NAME_WIDTH - 4) or [""]
            lines += [
                f"  {name:<{NAME_WIDTH}}  {line}"
                for name, line in zip([each.name, *[""] * len(said)], said, strict=False)
            ]
    return "\n".join(lines)


class CommandHelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Leaves line breaks of the epilog as they are, and more room for names."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=28)


class ExtendWords(argparse.Action):
    """Takes several words, and those of each repetition of the option; argparse would keep the last one's alone."""

    def __call__(
        self, parser: object, namespace: argparse.Namespace, values: Any, option_string: object = None
    ) -> None:
        """Add the words; the first ones replace the default."""
        before = getattr(namespace, self.dest)
        setattr(namespace, self.dest, values if before is self.default else [*before, *values])


class Parser(argparse.ArgumentParser):
    """Reports an error in one line, and lists the settings of a command in its help."""

    settings_of_help: Command | None = None
    """The command, until its settings are in the help: they are read only when help is asked for."""

    def __init__(self, **options: Any) -> None:
        """Take no beginning of an option for the option: `--c` is a typo of `--b`, and no `--columns`."""
        super().__init__(allow_abbrev=False, **options)

    def add_argument(self, *names: str, **options: Any) -> argparse.Action:
        """Add an argument."""
        several = {"action": ExtendWords} if options.get("nargs") == "+" else {}
        return super().add_argument(*names, **{**several, **options})

    def error(self, message: str) -> NoReturn:
        """Exit with 2."""
        self.exit(2, f"lexbench: {shorten_message(' '.join(message.split()), f': see {self.prog} --help')}\n")

    def _get_value(self, action: argparse.Action, arg_string: str) -> Any:
        """Say what a number must be."""
        try:
            return super()._get_value(action, arg_string)
        except argparse.ArgumentError:
            if action.type not in (int, float) or not action.option_strings:
                raise
            wanted = "a whole number" if action.type is int else "a number"
            said = f"{action.option_strings[-1]} must be {wanted}, got {arg_string!r}"
            raise argparse.ArgumentError(None, said) from None

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Name the choice that is nearest to an unknown value."""
        if action.choices is not None and value not in action.choices:
            raise argparse.ArgumentError(
                action, f"unknown value {value!r}: {registry.suggest_choices(value, action.choices)}"
            )

    def format_help(self) -> str:
        """The help, with a section of the settings."""
        if command := self.settings_of_help:
            # Only once: a section that was added stays, and the help may be formatted again.
            self.settings_of_help, defaults = None, command.defaults()
            usage, given = self.format_usage().removeprefix("usage: ").rstrip(), "[KEY=VALUE ...]"
            # Before options, one of which may take all words that follow it; behind arguments, which come first.
            first = "[-h] " if all(action.option_strings for action in self._actions) else ""
            self.usage = usage.replace(first, f"{first}{given} ", 1) if first else f"{usage} {given}"
            group = self.add_argument_group("settings", "KEY=VALUE in hydra's grammar; lexbench list shows the names")
            for setting in command.settings:
                usual = _typed_default(defaults[setting.name]) if setting.default is None else setting.default
                text = f"{setting.help} (default: {usual})" if usual else setting.help
                # Shown like an argument, but never parsed as one.
                group._group_actions.append(argparse.Action([], setting.name, metavar=setting.example, help=text))
        return super().format_help()


def shorten_message(line: str, end: str = "") -> str:
    """A message with its end, cut where it is longer than MAX_MESSAGE_CHARACTERS."""
    return (
        line + end
        if len(line + end) <= MAX_MESSAGE_CHARACTERS
        else f"{line[: MAX_MESSAGE_CHARACTERS - 4 - len(end)]} ...{end}"
    )


def _typed_default(value: Any) -> str:
    """A default as it would be typed; nothing for null and for nested values."""
    if value is None or isinstance(value, Mapping):
        return ""
    text = yaml.safe_dump([value], default_flow_style=True, width=10_000).strip()[1:-1]
    return text.replace(", ", ",").replace(": ", ":")


def add_columns(parser: argparse.ArgumentParser) -> None:
    """Add `--columns`, of files of samples."""
    parser.add_argument(
        "--columns",
        nargs="+",
        default=[],
        metavar="NAME=COLUMN",
        help="of files of JSONL: id, score (or nll, and tokens), cluster, task",
    )


def add_run_folders(parser: argparse.ArgumentParser) -> None:
    """Add the positional argument of commands that read results."""
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="run folder, or a folder of run folders")


def group_config(config: Mapping[str, Any], choices: Mapping[str, str], group: str) -> dict[str, Any]:
    """The config of one group with the chosen name; None where no name is chosen."""
    return {**(config.get(group) or {}), "name": choices.get(group)}


def chosen_methods(config: Mapping[str, Any], choices: Mapping[str, str]) -> list[dict[str, Any]]:
    """The configs of all methods that are asked for, each with its name."""
    return method_configs(group_config(config, choices, "method"))


def chosen_method(config: Mapping[str, Any], choices: Mapping[str, str], command: str) -> dict[str, Any]:
    """The config of the method, with its name; ConfigError for several, of which the command takes one."""
    found = chosen_methods(config, choices)
    if len(found) > 1:
        names = [each["name"] for each in found]
        raise ConfigError(
            f"lexbench {command} takes one method, got {', '.join(names)}: give one, or combine them by "
            f"method={'+'.join(names)}"
        )
    return found[0]


def settings_object(noun: str, target: str, config: Mapping[str, Any]) -> Any:
    """An object of the class `target`, each parameter from the setting of the same name."""
    built = {"_target_": target}
    names = objects.class_parameters(objects.class_of(built, noun))
    return objects.build_object({**built, **{name: config[name] for name in names}}, noun, bare=True)


def check_switch(name: str, value: Any) -> None:
    """ConfigError unless a setting is true or false."""
    if not isinstance(value, bool):
        raise ConfigError(f"{name} must be true or false, got {value!r}: e.g. {name}=true")


def split_settings(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """The names behind an option that takes several, and the settings that were written behind them.

    `NAME,parameter=value` is a name: a setting has no comma before its `=`.
    """
    settings = [word for word in words if re.match(r"[^,=]+=", word)]
    return [word for word in words if word not in settings], settings


def checked_length(config: Mapping[str, Any]) -> int | None:
    """The setting `length`; ConfigError unless it is null or a whole number of tokens."""
    length: Any = config["length"]
    if isinstance(length, list) and len(length) == 1:
        [length] = length
    if length is not None and not is_whole(length, 1):
        raise ConfigError(f"length must be a whole number of at least 1 token, got {length}: e.g. length=32768")
    if length is not None and length >= MAX_EXACT_INTEGER:
        raise ConfigError(f"length must be below 2^53 tokens, got {length}: e.g. length=32768")
    return None if length is None else int(length)
