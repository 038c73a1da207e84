"""Keep module paths of version 0.1 working until 0.3: in users' plug-ins and yamls, and in trained folders."""

import importlib
import sys
import warnings
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

MOVED = {
    **{
        f"core.{name}": f"checkpoints.{name}"
        for name in ("checkpoint", "tokenizer", "config_facts", "structure", "gguf", "gguf_tokenizer")
    },
    "core.scaled": "methods.scaled",
    "core.method": "methods.composition",
    "encodings": "parts.lab.encodings",
    "native": "parts.lab.native",
    "backends.native": "parts.lab.backend",
    "backends.openai.OpenAI": "backends.openai.backend.OpenAI",
    "integrations.exchange": "parts.exchange.files",
    "integrations.pytest_plugin": "pytest_plugin",
    "integrations": "parts.exchange",
    "taskkit.benchmarks": "parts.benchmarks",
}
"""Present place of each moved module or class, both without `lexbench.`; longer paths come before their packages."""


def present_path(path: str) -> str:
    """The present dotted path of a module or class of lexbench; any other path is returned as it is."""
    for old, new in MOVED.items():
        if f"{path}.".startswith(f"lexbench.{old}."):
            return f"lexbench.{new}{path.removeprefix(f'lexbench.{old}')}"
    return path


class OldModules(MetaPathFinder, Loader):
    """Import a moved module under its old path, with a warning."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec of a moved module; None for any other."""
        if (new := present_path(fullname)) == fullname:
            return None
        warnings.warn(f"{fullname} is now {new}; the old path ends with lexbench 0.3", FutureWarning, stacklevel=2)
        return ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """The module at its present place."""
        module = importlib.import_module(present_path(spec.name))
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Undo the only change that Python's import makes to a module that exists: its spec."""
        spec = module.__spec__
        module.__spec__ = spec.loader_state if spec else None


sys.meta_path.insert(0, OldModules())  # before the finder that would load a second copy
