"""Find optional parts: ours in `lexbench/parts/`, and packages of others, which add commands and names the same way.

A package becomes a part by one entry point of the group `lexbench.parts` that names a `Part`:

    [project.entry-points."lexbench.parts"]
    mymethod = "lexbench_mymethod.part:PART"

The core imports no part; it asks for what a part provides by a name that both know. A part of others that fails, ends
the process or prints is left out or named; it never changes what another command prints or returns.
"""

import functools
import importlib
import importlib.util
import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

from lexbench.core.errors import ConfigError
from lexbench.core.guard import plugin_guard
from lexbench.core.record import Refused

PARTS_ENTRY_POINT_GROUP = "lexbench.parts"
CHECKOUT_FOLDER = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, kw_only=True)
class Part:
    """An optional part of lexbench, or of another package.

    Args:
        name: the word for it in messages.
        package: the package of its code. Yamls in its folder `configs/method/`, `configs/task/`, ... are names.
        commands: modules that hold a `COMMAND` of `lexbench.commands.command.Command`.
        provides: `module` or `module:attribute` by what it is for: `("executor", "ray")`.
        plug_ins: kinds of plug-ins that it takes, by name: the folder of their files in every part, and the attribute
            by which their class is recognised: `{"compressor": ("compressors", "score")}`.
    """

    name: str
    package: str
    commands: Sequence[str] = ()
    provides: Mapping[tuple[str, str], str] = field(default_factory=dict)
    plug_ins: Mapping[str, tuple[str, str]] = field(default_factory=dict)

    @functools.cached_property
    def folder(self) -> Path:
        """The folder of its package; nothing is imported."""
        spec = importlib.util.find_spec(self.package)
        places = spec.submodule_search_locations if spec else None
        return Path(next(iter(places))) if places else Path(spec.origin or "").parent if spec else Path()

    @property
    def is_ours(self) -> bool:
        """Whether it is in lexbench's own distribution."""
        return self.package.partition(".")[0] == "lexbench"


@functools.cache
def all_parts() -> tuple[Part, ...]:
    """All parts, ours first; one that cannot be loaded is named on standard error and left out."""
    found = []
    for entry in sorted(_entries(), key=lambda each: not each.value.startswith("lexbench.")):
        try:
            with plugin_guard(f"part {entry.name}"):
                found.append(_check_part(entry.load(), entry.value))
        except (Refused, ConfigError, OSError) as failure:  # it must not end commands that do not use it
            tell_left_out(f"part {entry.name}", failure)
    return tuple(found)


def plug_ins_of_parts() -> dict[str, tuple[str, str]]:
    """Kinds of plug-ins that parts take: folder and recognising attribute of each, by name."""
    return {name: place for part in all_parts() for name, place in part.plug_ins.items()}


def _check_part(part: Any, place: str) -> Part:
    """A part as an entry point gives it; AssertionError where it is none, or states what is none."""
    assert isinstance(part, Part), f"{place} is no lexbench.core.parts.Part"
    assert part.folder.is_dir(), f"package {part.package} has no folder"
    assert not isinstance(part.commands, str) and all(isinstance(each, str) for each in part.commands), (
        f"commands must list modules, got {part.commands!r}"
    )
    pairs = isinstance(part.provides, Mapping) and all(
        isinstance(each, tuple) and len(each) == 2 and isinstance(part.provides[each], str) for each in part.provides
    )
    assert pairs, f"provides must map (kind, name) to module:attribute, got {part.provides!r}"
    return part


def tell_left_out(what: str, failure: Exception) -> None:
    """Say on standard error that something of a part is left out, and why."""
    reason = " ".join(str(failure).split()).removeprefix(f"{what} ")[:300]
    print(f"lexbench: {what} is left out ({reason}): mend or uninstall it", file=sys.stderr)


def load_provided(kind: str, name: str) -> Any:
    """The object that a part provides for a name; ConfigError where no part does.

    Of a part of others, loading and each call are inside the fence: Deferred where they fail.
    """
    for part in all_parts():
        if target := part.provides.get((kind, name)):
            if part.is_ours:
                return _load(target)
            what = f"part {part.name}'s {kind} {name}"
            with plugin_guard(what):
                return _Fenced(what, _load(target))
    raise ConfigError(f"no installed part of lexbench provides {kind} {name}: {_known_names(kind)}")


def _load(target: str) -> Any:
    """The object of `module` or `module:attribute`."""
    module, _, attribute = target.partition(":")
    found = importlib.import_module(module)
    return getattr(found, attribute) if attribute else found


@dataclass(frozen=True)
class _Fenced:
    """What a part of others provides; a call of it, or of a function in it, is inside the fence."""

    what: str
    inside: Any

    def __call__(self, *given: Any, **named: Any) -> Any:
        with plugin_guard(self.what):
            return self.inside(*given, **named)

    def __getattr__(self, name: str) -> Any:
        with plugin_guard(f"{self.what}.{name}"):
            found = getattr(self.inside, name)
        return _Fenced(f"{self.what}.{name}", found) if callable(found) else found


def names_provided(kind: str) -> list[str]:
    """Names for which parts provide something of a kind, sorted; nothing is imported."""
    return sorted({name for part in all_parts() for own, name in part.provides if own == kind})


def is_checkpoint_file(path: str) -> bool:
    """Whether a part reads files of this ending as checkpoints."""
    return Path(path).suffix[1:] in names_provided("checkpoint")


def part_of_module(module: str) -> Part | None:
    """The part of another distribution that a module belongs to."""
    inside = (part for part in all_parts() if not part.is_ours and f"{module}.".startswith(f"{part.package}."))
    return next(inside, None)


def _entries() -> list[EntryPoint]:
    """Entry points of all parts: in a checkout ours are read from pyproject.toml, as nothing may be installed."""
    installed = entry_points(group=PARTS_ENTRY_POINT_GROUP)
    file = CHECKOUT_FOLDER / "pyproject.toml"
    if not file.is_file():
        return list(installed)
    own = tomllib.loads(file.read_text(encoding="utf-8"))["project"]["entry-points"][PARTS_ENTRY_POINT_GROUP]
    others = [each for each in installed if not each.value.startswith("lexbench.")]
    return [*(EntryPoint(name, value, PARTS_ENTRY_POINT_GROUP) for name, value in own.items()), *others]


def _known_names(kind: str) -> str:
    known = names_provided(kind)
    return f"choose from {', '.join(known)}" if known else "install one that does"
