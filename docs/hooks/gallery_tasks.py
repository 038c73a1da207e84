"""Make the gallery of tasks from their docstrings."""

import functools
import inspect
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"  # before anything reads it: the site is built without a network

import docstrings
from mkdocs.structure.files import File

import lexbench
from lexbench.core import objects, registry


def on_files(files: Any, config: Any) -> Any:
    """Add the page to the site."""
    files.append(File.generated(config, "gallery/tasks.md", content=tasks_page()))
    return files


def tasks_page() -> str:
    """The page: all registered tasks with their protocol and parameters, and the suites."""
    read = {name: registry.read_named_config("task", name) for name in registry.registered_names("task")}
    classes: dict[type, list[str]] = {}
    for name, config in read.items():
        if "suite" not in config:
            classes.setdefault(objects.class_of(config, "task"), []).append(name)
    lines = [
        "# Gallery of tasks\n",
        "Every registered task, made from its docstring at each build of this site: its question, what it holds "
        "constant over lengths, its scores, its parameters, and the protocol line above each of its tables "
        "(here for the embedded model with default parameters). [What tasks share](../tasks.md).\n",
        "## Suites\n",
        "| suite | tasks |",
        "| --- | --- |",
        *(
            f"| `{name}` | {docstrings.linked(objects.docstring_summary('task', name).removeprefix('suite: '))} |"
            for name, config in read.items()
            if "suite" in config
        ),
        "",
    ]
    for cls, names in sorted(classes.items(), key=lambda each: each[1][0]):
        lines += [f"## {Path(inspect.getfile(cls)).stem}\n", *_task(cls, names, read)]
    return "\n".join(lines)


def _task(cls: type, names: list[str], read: dict[str, Any]) -> Iterator[str]:
    yield docstrings.markdown(cls) + "\n"
    for name in names:
        own = {key: value for key, value in read[name].items() if key not in ("file", "_target_")}
        said = ", ".join(f"`{key}={value}`" for key, value in own.items())
        yield f"`task={name}`{': ' + said if said else ''}\n\n```text\n{_protocol(name)}\n```\n"


@functools.cache
def _tokenizer() -> Any:
    from lexbench.checkpoints.checkpoint import locate_checkpoint
    from lexbench.checkpoints.tokenizer import load_tokenizer

    return load_tokenizer(locate_checkpoint("lexbench:lexlet", None, weights=False), None)


def _protocol(name: str) -> str:
    """The protocol line above each table, for lengths of 128 to 2048 tokens."""
    given = {"longbench": {"dataset": "qasper"}}.get(name, {})
    task = lexbench.task(name, **given).for_lengths([128, 2048])
    return str(task.protocol(_tokenizer()))
