"""lexbench from Python: the same names, yamls and parameters as on the command line."""

import atexit
import sys
import tempfile
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lexbench.backends.rope_causes import RopeMismatch
from lexbench.core import registry
from lexbench.core.attention import Attention
from lexbench.core.errors import ConfigError
from lexbench.core.files import unlike
from lexbench.core.method_key import BASELINE
from lexbench.core.model import Model
from lexbench.core.task import Task
from lexbench.corpora import Corpus
from lexbench.methods.composition import Method, method_config, named_method
from lexbench.store.store import Store

if TYPE_CHECKING:
    import pandas as pd

    from lexbench.backends.hf.extended import Extended
    from lexbench.report.plots.style import Shown
    from lexbench.runner.job import Job
    from lexbench.stats.tables import Table
    from lexbench.store.format import Finished


method = named_method


def corpus(name: str, **parameters: Any) -> Corpus:
    """A corpus by name: `corpus("files", path="book.txt")`."""
    built: Corpus = registry.build({**registry.read("corpus", name), **parameters, "name": name}, "corpus")
    return built


def task(name: str, corpus: Corpus | str | Mapping[str, Any] | None = "stdlib", **parameters: Any) -> Task:
    """A task by name; `corpus` is where its text comes from, if it takes any: as in `run`, or built, or None."""
    text = registry.build(_configured("corpus", corpus), "corpus") if isinstance(corpus, str | Mapping) else corpus
    if text is not None and not hasattr(text, "documents"):
        raise ConfigError(f"corpus must be a name, a mapping of its name and parameters, or a corpus, got {corpus!r}")
    built: Task = registry.build({**registry.read("task", name), **parameters, "name": name}, "task", corpus=text)
    return built


def extend(
    network: Any,
    method: str | Mapping[str, Any] | Method,
    *,
    length: int | None = None,
    trained_length: int | None = None,
    **parameters: Any,
) -> "Extended":
    """Put a method into a loaded model of transformers: `with lexbench.extend(model, "rerope", window=512): ...`.

    Args:
        network: a causal language model of transformers; `restore()` or the end of the block gives it back unchanged.
        method: a name with its parameters, several combined ("yarn+log_n"), or a method of your own.
        length: tokens in use, prompt and answer; needed where the method depends on it.
        trained_length: of the model, where its config does not say or lies; not the method's parameter of that name.
        parameters: of the method.
    """
    from lexbench.backends.hf.extended import Extended

    if isinstance(method, type) or not (isinstance(method, str | Mapping | Sequence) or hasattr(method, "attention")):
        raise ConfigError(f"method must be a name, or an object with attention(...), got {method!r}")
    if isinstance(method, str | Mapping | Sequence):
        return Extended(network, named_method(method, **parameters), length, trained_length)
    if parameters:
        raise ConfigError(
            f"extend takes parameters with a method's name only, got {', '.join(parameters)}: set them in it"
        )
    return Extended(network, method, length, trained_length)


def assert_rope(
    model: Any,
    method: str | Sequence[str | Mapping[str, Any]] | Method | None = None,
    *,
    length: int,
    facts: Model | None = None,
    trained_length: int | None = None,
    **parameters: Any,
) -> None:
    """Assert that a loaded model rotates by a method: `lexbench.assert_rope(model, "yarn", factor=4, length=131072)`.

    Cos and sin of all its rotary modules are read at 65 positions, in their own dtype, and compared with the method's
    own numbers in float64. Known are models and rotary modules of transformers, and tables of vLLM's, torchtune's,
    torchtitan's and LitGPT's kinds. Which dimensions make a pair is not read.

    Args:
        model: a model, a rotary module, or a mapping of kinds of layers to the rotary module of each.
        method: a name with its parameters, several of them at once, or a method of your own. It starts from plain RoPE
            (over=plain), also where the config states a scaling. None: the model's config as it is.
        length: tokens of the longest text, prompt and answer.
        facts: of the model; None: those of its config, which must be one of transformers.
        trained_length: of the model before any scaling; None: as its config states, `original_max_position_embeddings`
            before `max_position_embeddings`. Not the method's parameter of that name.
        parameters: of the method.

    Raises:
        RopeMismatch: an AssertionError that says which pair is off, at which position, by how much, and the likely
            cause.
        Refused: no rotary module is known here, or cos and sin do not show all of the method.
        ConfigError: a parameter does not fit, or facts are needed.
    """
    from lexbench.backends.hf.assert_rope import assert_rope

    assert_rope(model, method, length=length, facts=facts, trained_length=trained_length, **parameters)


@dataclass(frozen=True)
class Run:
    """What a run has measured: its cells in a run folder."""

    folder: Path
    cells: frozenset[str] | None = None
    """Ids of its cells; None: all of the folder."""

    def _finished(self) -> "list[Finished]":
        if not Path(self.folder).is_dir():
            raise ConfigError(f"run folder {self.folder} {unlike(Path(self.folder))}: give one that a run has written")
        return Store(self.folder).load(self.cells)

    def _tables(self, task: str | None, metric: str | None) -> "list[Table]":
        """Headline tables, or those of a metric; of all tasks, or of one by its name or label."""
        from lexbench.report.tables import headline_tables
        from lexbench.stats.tables import tables

        every = headline_tables(self._finished()) if metric is None else tables(self._finished())
        found = [
            table
            for table in every
            if (table.metric == metric if metric else table.metric != "perplexity")  # it is nll's, exponentiated
            and task in (None, table.cell.task, table.cell.task_name)
        ]
        if not found:
            known = sorted({f"{table.cell.task}: {table.metric}" for table in tables(self._finished())})
            raise ConfigError(
                f"no table of task {task or 'any'}, metric {metric or 'any'}: there are {', '.join(known)}"
            )
        return found

    def records(self) -> "pd.DataFrame":
        """One row per cell, metric and part; part None is the whole cell (see `lexbench.core.record.Record`)."""
        from lexbench.stats import records

        return records.dataframe([each for finished in self._finished() for each in records.records_of(finished)])

    def table(self, task: str | None = None, metric: str | None = None) -> "pd.DataFrame":
        """Values by method and length; NaN where a cell is refused.

        Args:
            task: its name or label; None: all, each a block of rows.
            metric: nll, accuracy, ...; None: the headline metric of each task.
        """
        import pandas as pd

        rows = {
            (table.cell.task, table.metric, table.cell.seed, str(method)): {
                length: table.entries[method, length].value if (method, length) in table.entries else None
                for length in table.lengths
            }
            for table in self._tables(task, metric)
            for method in table.methods
        }
        index = pd.MultiIndex.from_tuples(rows, names=["task", "metric", "seed", "method"])
        made = pd.DataFrame(list(rows.values()), index=index, dtype=float)
        made.columns.name = "length"
        # Levels with one value only are left out, so that the usual table has methods as rows.
        single: list[Hashable] = [name for name in ("task", "metric", "seed") if index.unique(name).size == 1]
        return made.droplevel(single).sort_index(axis=1)

    def plot(self, task: str | None = None, metric: str | None = None) -> "Shown":
        """Draw differences to the unmodified model and levels over length; of the first task if none is named."""
        from lexbench.report.plots import over_length
        from lexbench.stats.differences import differences

        table = self._tables(task, metric)[0]
        samples = {each.cell.id: each.samples for each in self._finished()}
        return over_length.figure(table, differences(table, samples))

    def compare(self, a: str, b: str) -> "Text":
        """Paired differences of method b to method a, with a verdict for each task."""
        from lexbench.report.check import comparison
        from lexbench.stats.compare import compare

        found = compare(self.folder, self.folder, [f"method={a}"], [f"method={b}"], self.cells)
        return Text(comparison.markdown(found))

    def report(self, out: Path | None = None) -> Path:
        """Write tables and plots of the whole folder; the page that links them."""
        from lexbench.report.report import write_report

        return write_report([self.folder], out)

    def __str__(self) -> str:
        from lexbench.report.tables import terminal

        cells = {each.cell.id for each in self._finished()} if self.cells is None else self.cells
        return terminal([(self.folder, sorted(cells))])

    def _repr_html_(self) -> str:
        from lexbench.report import formats
        from lexbench.report.tables import grid_of, headline, headline_tables

        grids = [replace(grid_of(each), title=headline(each)) for each in headline_tables(self._finished())]
        return "\n".join(line for grid in grids for line in formats.as_html(grid))


class Text(str):
    """Markdown that a notebook renders and a terminal prints as it is."""

    def __repr__(self) -> str:
        return str(self)

    def _repr_markdown_(self) -> str:
        return str(self)


def run(
    model: Model | Mapping[str, Any] | str,
    method: str | Mapping[str, Any] | Sequence[str | Mapping[str, Any]] = "none",
    task: str | Mapping[str, Any] | Sequence[str | Mapping[str, Any]] = "last_segment",
    lengths: int | Sequence[int] | None = None,
    multiples: float | Sequence[float] | None = None,
    corpus: str | Mapping[str, Any] | None = None,
    backend: str | Mapping[str, Any] = "hf",
    n: int | None = None,
    seed: int | Sequence[int] = 0,
    results: str | Path | None = None,
    reuse: bool = True,
    stop_after_collapse: bool = False,
    price: bool = True,
    quiet: bool = False,
) -> Run:
    """Measure every method on every task at every length, or go on where an earlier run stopped.

    Args:
        model: a name of the registry, a folder, a name on the hub, or facts with a `path`.
        method: a name, a mapping of `name` and parameters, or several of them. "yarn+log_n" is one method, combined of
            two; with parameters `{"compose": [{"name": "yarn", "factor": 8}, "log_n"]}`.
        task: a name, a mapping of `name` and parameters, or several of them.
        lengths: in tokens, one or several; None: `multiples` of the trained length.
        multiples: of the trained length, one or several; None: those of the suite, else 0.5, 1, 2, 4 and 8.
        corpus: a name, or a mapping of `name` and parameters; None: stdlib up to lengths of 4096 tokens, packages
            beyond.
        backend: likewise.
        n: samples a cell; None: those of the suite, else 32.
        seed: of the questions; several seeds are several cells.
        results: folder of the run; None: runs/<model>.
        reuse: take what earlier answers already hold; the numbers are the same to rounding.
        stop_after_collapse: skip the longer lengths of a method that has collapsed.
        price: measure a method that follows the length also as it is set for the longest length, at the longest length
            within the trained one.
        quiet: print neither plan nor progress.
    """
    from lexbench.runner.execute import execute

    if not isinstance(model, str | Mapping | Model):
        raise ConfigError(f"model must be a name, ./FOLDER, ORG/NAME or facts, got {model!r}")
    job = _job(
        model=_model(model) if isinstance(model, str) else model,
        method=method,
        task=task,
        corpus=corpus,
        backend=_configured("backend", backend),
        lengths=lengths,
        multiples=multiples,
        n=n,
        seed=seed,
        results=results,
        reuse=reuse,
        stop_after_collapse=stop_after_collapse,
        price=price,
    )
    return Run(job.results, frozenset(cell.id for cell in execute(job, quiet=quiet)))


def evaluate(
    model: Any,
    tokenizer: Any,
    task: str | Mapping[str, Any] | Sequence[str | Mapping[str, Any]] = "last_segment",
    *,
    method: str | Mapping[str, Any] | Sequence[str | Mapping[str, Any]] = "none",
    trained_length: int | None = None,
    lengths: int | Sequence[int] | None = None,
    multiples: float | Sequence[float] | None = None,
    corpus: str | Mapping[str, Any] | None = None,
    n: int | None = None,
    seed: int | Sequence[int] = 0,
    name: str | None = None,
    revision: str | None = None,
    results: str | Path | None = None,
    price: bool = True,
    quiet: bool = True,
) -> Run:
    """Measure a model that is loaded in this process: same questions, scores and intervals as `run`.

    Args:
        model: a causal language model of transformers, under any method; else, with method none only, a torch module
            called with [1, T] ids, or any function of a [T] array of ids that returns [T, V] next-token logits. A
            module is left as it was, in its dtype, on its device, and is in eval mode meanwhile. A network under
            `extend` is measured as it is, by method none.
        tokenizer: a fast tokenizer of transformers, a `tokenizers.Tokenizer`, or a folder with tokenizer.json.
        task: as in `run`.
        method: as in `run`.
        trained_length: in tokens; None: as the model's config states.
        lengths: as in `run`.
        multiples: as in `run`.
        corpus: as in `run`.
        n: samples a cell; as in `run`.
        seed: as in `run`.
        name: in tables; None: the model's own.
        revision: what tells these weights from others in `results`; None: a hash of the weights, and for a plain
            function always another.
        results: run folder; None: a temporary one, removed when the process ends.
        price: as in `run`.
        quiet: print neither plan nor progress.
    """
    from lexbench.backends.loaded import loaded
    from lexbench.runner.execute import execute

    with loaded(model, tokenizer, trained_length, name, revision) as backend:
        job = _job(
            model=backend.model,
            method=method,
            task=task,
            corpus=corpus,
            backend={"name": backend.name},
            lengths=lengths,
            multiples=multiples,
            n=n,
            seed=seed,
            results=results or _temporary(),
            price=price,
        )
        _check_extended(model, job, kept=results is not None and revision is None)
        return Run(job.results, frozenset(cell.id for cell in execute(job, quiet=quiet, backend=backend)))


def _check_extended(model: Any, job: "Job", kept: bool) -> None:
    """ConfigError where a network that `extend` has given a method would be measured under another method's name.

    Args:
        model: of any kind.
        job: what is asked of it.
        kept: whether another call finds the answers by the hash of the weights, which says nothing of a method.
    """
    extended = sys.modules.get("lexbench.backends.hf.extended")  # where nothing was extended, it need not be loaded
    if extended is None or not extended.is_extended(model):
        return
    if others := [method.label for method in job.methods if method.key != BASELINE]:
        raise ConfigError(
            f"a network under extend is measured as it is, by method=none, got {', '.join(others)}: restore() it first"
        )
    if kept:
        raise ConfigError(
            "a network under extend has the revision of its weights alone: give revision=..., or restore()"
        )


def _temporary() -> Path:
    folder = tempfile.TemporaryDirectory(prefix="lexbench-", ignore_cleanup_errors=True)
    atexit.register(folder.cleanup)  # which also keeps it: it would be removed with its last reference
    return Path(folder.name)


def _job(method: Any, task: Any, corpus: Any, seed: int | Sequence[int], **settings: Any) -> "Job":
    from lexbench.runner.job import Job

    return Job.of(
        methods=[_method(entry) for entry in _several("method", method)],
        tasks=[_configured("task", entry) for entry in _several("task", task)],
        corpus=None if corpus is None else _configured("corpus", corpus),
        seeds=list(seed) if isinstance(seed, Sequence) and not isinstance(seed, str) else [seed],
        **settings,
    )


def _model(given: str) -> dict[str, Any]:
    """The facts of a name, a folder or a name on the hub."""
    name, path = registry.model_named(given)
    return {**registry.read("model", name), **({} if path is None else {"path": path})}


def _configured(group: str, given: str | Mapping[str, Any]) -> dict[str, Any]:
    """The yaml of a name with the given parameters over it, and the name itself."""
    if not isinstance(given, str | Mapping):
        raise ConfigError(f"{group} must be a name, or a mapping of its name and parameters, got {given!r}")
    parameters = {"name": given} if isinstance(given, str) else dict(given)
    if "name" not in parameters:
        raise ConfigError(f"{group} lacks its name: give {{'name': ..., parameters}}, got {parameters}")
    name = str(parameters["name"])
    return {**registry.read(group, name), **parameters, "name": name}


def _several(noun: str, given: Any) -> list[Any]:
    if isinstance(given, str | Mapping):
        return [given]
    if not isinstance(given, Sequence) or not given:
        raise ConfigError(
            f"{noun} must be a name, a mapping of its name and parameters, or a list of these, got {given!r}"
        )
    return list(given)


def _method(given: Any) -> dict[str, Any]:
    named = isinstance(given, str) or (isinstance(given, Mapping) and "compose" not in given)
    return _configured("method", given) if named else method_config(given)


__all__ = ["Attention", "RopeMismatch", "Run", "assert_rope", "corpus", "evaluate", "extend", "method", "run", "task"]
