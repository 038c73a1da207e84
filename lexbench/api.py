"""lexbench from Python: the same names, yamls and parameters as on the command line."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lexbench.core import registry
from lexbench.core.attention import Attention
from lexbench.core.method import Method, named_method
from lexbench.core.model import Model
from lexbench.core.task import Task
from lexbench.corpora import Corpus

if TYPE_CHECKING:
    import pandas as pd

    from lexbench.backends.hf.extended import Extended


method = named_method


def corpus(name: str, **parameters: Any) -> Corpus:
    """A corpus by name: `corpus("files", path="book.txt")`."""
    built: Corpus = registry.build({**registry.read("corpus", name), **parameters}, "corpus")
    return built


def task(name: str, corpus: Corpus | str = "stdlib", **parameters: Any) -> Task:
    """A task by name; `corpus` is where its text comes from, if it takes any."""
    text = registry.build(registry.read("corpus", corpus), "corpus") if isinstance(corpus, str) else corpus
    built: Task = registry.build({**registry.read("task", name), **parameters}, "task", corpus=text)
    return built


def extend(
    network: Any,
    method: str | Sequence[str | Mapping[str, Any]] | Method,
    *,
    length: int | None = None,
    trained_length: int | None = None,
    **parameters: Any,
) -> "Extended":
    """Put a method into a loaded model of transformers: `with lexbench.extend(model, "rerope", window=512): ...`.

    Args:
        network: a causal language model of transformers; `restore()` or the end of the block gives it back unchanged.
        method: a name with its parameters, several of them at once, or a method of your own.
        length: tokens in use, prompt and answer; needed where the method depends on it.
        trained_length: of the model, where its config does not say or lies; not the method's parameter of that name.
        parameters: of the method.
    """
    from lexbench.backends.hf.extended import Extended

    if isinstance(method, str | Sequence):
        return Extended(network, named_method(method, **parameters), length, trained_length)
    if parameters:
        raise ValueError(
            f"extend takes parameters with a method's name only, got {', '.join(parameters)}: set them in it"
        )
    return Extended(network, method, length, trained_length)


@dataclass(frozen=True)
class Run:
    """A run folder."""

    folder: Path

    def records(self) -> "pd.DataFrame":
        """One row per cell, metric and part; part None is the whole cell (see `lexbench.core.record.Record`)."""
        from lexbench.stats import records

        return records.dataframe(records.build([self.folder]))

    def report(self, out: Path | None = None) -> Path:
        """Write tables and plots; the page that links them."""
        from lexbench.report.report import write_report

        return write_report([self.folder], out)


def run(
    model: Model | Mapping[str, Any] | str,
    method: str | Mapping[str, Any] | Sequence[str | Mapping[str, Any] | Sequence[Any]] = "none",
    task: str | Mapping[str, Any] | Sequence[str | Mapping[str, Any]] = "last_segment",
    lengths: Sequence[int] | None = None,
    multiples: Sequence[float] | None = None,
    corpus: str | Mapping[str, Any] | None = None,
    backend: str | Mapping[str, Any] = "hf",
    n: int | None = None,
    seed: int | Sequence[int] = 0,
    results: str | Path | None = None,
    reuse: bool = True,
    stop_after_collapse: bool = False,
    price: bool = True,
) -> Run:
    """Measure every method on every task at every length, or go on where an earlier run stopped.

    Args:
        model: a name of the registry, a folder, a name on the hub, or facts with a `path`.
        method: a name, a mapping of `name` and parameters, or several of them; a list among these is one method,
            composed: `["none", ["yarn", "log_n"]]`.
        task: a name, a mapping of `name` and parameters, or several of them.
        lengths: in tokens; None: `multiples` of the trained length.
        multiples: of the trained length; None: those of the suite, else 0.5, 1, 2, 4 and 8.
        corpus: a name, or a mapping of `name` and parameters; None: stdlib up to lengths of 4096 tokens, packages
            beyond.
        backend: likewise.
        n: samples a cell; None: those of the suite, else 32.
        seed: of the questions; several seeds are several cells.
        results: folder of the run; None: runs/<model>.
        reuse: take what earlier answers already hold; the numbers are the same to rounding.
        stop_after_collapse: skip the longer lengths of a method that has collapsed.
        price: measure a method whose factor follows the length also with the factor of the longest length, at the
            longest length within the trained one.
    """
    from lexbench.runner.execute import execute
    from lexbench.runner.job import Job

    job = Job.of(
        model=_model(model) if isinstance(model, str) else model,
        methods=[_method(entry) for entry in _several(method)],
        tasks=[_configured("task", entry) for entry in _several(task)],
        corpus=None if corpus is None else _configured("corpus", corpus),
        backend=_configured("backend", backend),
        lengths=lengths,
        multiples=multiples,
        n=n,
        seeds=[seed] if isinstance(seed, int) else list(seed),
        results=results,
        reuse=reuse,
        stop_after_collapse=stop_after_collapse,
        price=price,
    )
    execute(job)
    return Run(job.results)


def _model(given: str) -> dict[str, Any]:
    """The facts of a name, a folder or a name on the hub."""
    name, path = registry.model_named(given)
    return {**registry.read("model", name), **({} if path is None else {"path": path})}


def _configured(group: str, given: str | Mapping[str, Any]) -> dict[str, Any]:
    """The yaml of a name with the given parameters over it, and the name itself."""
    parameters = {"name": given} if isinstance(given, str) else dict(given)
    if "name" not in parameters:
        raise ValueError(f"{group} lacks its name: give {{'name': ..., parameters}}, got {dict(given)}")  # type: ignore[arg-type]
    name = str(parameters["name"])
    return {**registry.read(group, name), **parameters, "name": name}


def _several(given: Any) -> list[Any]:
    return [given] if isinstance(given, str | Mapping) else list(given)


def _method(given: str | Mapping[str, Any] | Sequence[Any]) -> dict[str, Any]:
    return _configured("method", given) if isinstance(given, str | Mapping) else {"compose": list(given)}


__all__ = ["Attention", "Run", "corpus", "extend", "method", "run", "task"]
