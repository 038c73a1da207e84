"""Keep names of version 0.1 working until 0.3: in users' plug-ins and yamls, and in trained folders."""

import functools
import importlib
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, TypeVar

Built = TypeVar("Built")

MOVED_PATHS = {
    **{f"core.{name}": f"checkpoints.{name}" for name in ("checkpoint", "tokenizer", "config_facts", "structure")},
    **{
        f"{room}.{name}": f"parts.gguf.{present}"
        for room in ("core", "checkpoints")
        for name, present in (("gguf", "folder"), ("gguf_tokenizer", "tokenizer"))
    },
    "core.scaled": "methods.scaled",
    "core.method": "methods.composition",
    "encodings": "parts.lab.encodings",
    "native": "parts.lab.native",
    "backends.native": "parts.lab.backend",
    "backends.openai.OpenAI": "parts.serving.openai.backend.OpenAI",
    **{f"backends.{name}": f"parts.serving.{name}" for name in ("openai", "vllm", "completions")},
    "integrations.exchange": "parts.exchange.files",
    "integrations.pytest_plugin": "pytest_plugin",
    "integrations": "parts.exchange",
    "taskkit.benchmarks": "parts.benchmarks",
    "taskkit.spread": "parts.benchmarks.spread",
    "taskkit.key_tokens": "parts.search.key_tokens",
    "corpora.debian": "parts.debian.packages",
    **{f"corpora.{name}": f"parts.debian.{name}" for name in ("manuals", "novels")},
    "stats.divergence": "parts.kv.divergence",
    "runner.journal": "parts.search.journal",
    "backends.hf.split": "parts.cluster.tensor_parallel",
    "backends.hf.mistakes": "parts.serving.mistakes",
}
"""Present place of each moved module or class, both without `lexbench.`; longer paths come before their packages."""


def present_path(path: str) -> str:
    """The present dotted path of a module or class of lexbench; any other path is returned as it is."""
    for old, new in MOVED_PATHS.items():
        if f"{path}.".startswith(f"lexbench.{old}."):
            return f"lexbench.{new}{path.removeprefix(f'lexbench.{old}')}"
    return path


def with_present_paths(value: Any) -> Any:
    """JSON values with every moved path at its present place, in lists and objects too."""
    if isinstance(value, dict):
        return {name: with_present_paths(each) for name, each in value.items()}
    if isinstance(value, list):
        return [*map(with_present_paths, value)]
    return present_path(value) if isinstance(value, str) else value


def with_former_paths(text: str) -> str:
    """A JSON text with the laboratory's classes at their paths of version 0.1, whose folders hold hashes of them."""
    return text.replace('"lexbench.parts.lab.', '"lexbench.')


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


RENAMED_NAMES: Mapping[str, Mapping[str, str]] = {
    "lexbench.core.task": {
        "Write": "Generate",
        "Written": "GenerateAnswer",
        "Chosen": "ChooseAnswer",
        "Mark": "ClassifyTokens",
        "Marked": "ClassifyTokensAnswer",
        "Score": "Loglikelihood",
        "Scored": "LoglikelihoodAnswer",
        "Probe": "ProbeAttention",
        "Probed": "ProbeAttentionAnswer",
        "Diverge": "MeasureDivergence",
        "Diverged": "MeasureDivergenceAnswer",
    },
    "lexbench.core.attention": {"Line": "PositionMap", "Steps": "StepScale", "Middle": "TopKMask"},
    "lexbench.checkpoints.checkpoint": {"locate": "locate_checkpoint"},
    "lexbench.parts.lab.encodings": {"apart": "relative_positions"},
    "lexbench.taskkit.haystack": {"noise": "noise_haystack"},
    "lexbench.taskkit.matching": {"strict": "strict_list_score"},
}
"""Present name of what plug-ins import under an old one, by module."""

RENAMED_HOOKS_OF_BACKENDS: Mapping[str, str] = {
    "alike": "batch_key",
    "together": "answer_batch",
    "sees_no_future": "is_causal",
}
"""Present name of each optional method of a backend that had another one."""


def keep_old_names(module: str) -> None:
    """Let a module that is being imported answer for the old names of what it defines, with a warning."""
    present = RENAMED_NAMES["lexbench.core.task" if module == "lexbench" else module]

    def find(name: str) -> Any:
        if name not in present:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        _warn(f"{module}.{name}", f"{module}.{present[name]}", stacklevel=3)
        return getattr(sys.modules[module], present[name])

    vars(sys.modules[module])["__getattr__"] = find  # not by an assignment there, which would hide typing errors


def with_old_fields(**present: str) -> Callable[[type[Built]], type[Built]]:
    """Let a dataclass be built and read by old names of its fields, with a warning: `with_old_fields(room="max")`."""

    def adopt(cls: type[Built]) -> type[Built]:
        build = cls.__init__

        @functools.wraps(build)
        def init(self: Any, *args: Any, **given: Any) -> None:
            for old in present.keys() & given.keys():
                _warn(f"{cls.__name__}({old}=)", f"{present[old]}=", stacklevel=3)
                given[present[old]] = given.pop(old)
            build(self, *args, **given)

        def find(self: Any, name: str) -> Any:
            if name not in present:
                raise AttributeError(f"{cls.__name__!r} object has no attribute {name!r}")
            _warn(f"{cls.__name__}.{name}", present[name], stacklevel=3)
            return getattr(self, present[name])

        adopted: Any = cls
        adopted.__init__, adopted.__getattr__ = init, find
        return cls

    return adopt


def adopt_old_hooks(cls: type, present: Mapping[str, str]) -> None:
    """Let a plug-in's class that defines methods under old names be called by the present ones, with a warning."""
    for old, new in present.items():
        if hasattr(cls, old) and new not in vars(cls):
            _warn(f"{cls.__name__}.{old}", new, stacklevel=3)
            setattr(cls, new, getattr(cls, old))


def _warn(old: str, new: str, stacklevel: int) -> None:
    warnings.warn(f"{old} is now {new}; the old name ends with lexbench 0.3", FutureWarning, stacklevel=stacklevel + 1)


sys.meta_path.insert(0, OldModules())  # before the finder that would load a second copy
