"""Optional packages: what an extra of pip brings, and the line that installs it."""

import importlib
import importlib.util
from typing import Any

from lexbench.core.errors import ConfigError

EXTRA_OF_MODULE = dict.fromkeys(("datasets", "networkx", "safetensors", "torch", "transformers"), "hf")
"""Packages that much of lexbench imports where it needs them, each with the extra that brings it."""


def install_command(extra: str, constraints: str = "constraints.txt") -> str:
    """The line that installs an extra, to be typed in a clone of lexbench: no package index holds lexbench.

    Args:
        extra: one of `[project.optional-dependencies]` in pyproject.toml.
        constraints: file of tested versions; empty where a package of the extra pins its own.
    """
    return f"pip install {f'-c {constraints} ' * bool(constraints)}'.[{extra}]'"


def install_remedy(extra: str, constraints: str = "constraints.txt") -> str:
    """The end of a message on a missing package."""
    return f"in a clone of lexbench, {install_command(extra, constraints)}"


def is_installed(module: str) -> bool:
    """Whether a module can be imported; nothing is imported."""
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # of its parent
        return False


def import_optional(module: str, extra: str, purpose: str) -> Any:
    """Import a module of an optional package; ConfigError that names the line which installs it where it is missing."""
    if not is_installed(module):
        raise ConfigError(f"{purpose} needs {module}, which is not installed: {install_remedy(extra)}")
    return importlib.import_module(module)


def missing_package(error: BaseException, purpose: str) -> ConfigError | None:
    """What to say where an import failed because a package of EXTRA_OF_MODULE is missing; None of other errors."""
    module = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    if module not in EXTRA_OF_MODULE or is_installed(module):
        return None
    return ConfigError(f"{purpose} needs {module}, which is not installed: {install_remedy(EXTRA_OF_MODULE[module])}")
