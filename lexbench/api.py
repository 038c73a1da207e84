"""lexbench from Python: the same names, yamls and parameters as on the command line."""

import atexit
import functools
import inspect
import sys
import tempfile
import warnings
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast

from lexbench.backends.rope_causes import RopeMismatch
from lexbench.core import objects, registry
from lexbench.core.attention import Attention
from lexbench.core.errors import ConfigError
from lexbench.core.files import why_not_a_folder
from lexbench.core.groups import group_by_key
from lexbench.core.method_key import BASELINE_METHOD, MethodKey
from lexbench.core.model import Model
from lexbench.core.record import Refused
from lexbench.core.task import Task
from lexbench.core.text import join_first_few, join_lengths, plain_text
from lexbench.corpora import Corpus
from lexbench.methods.composition import Method, method_config, named_method, read_method
from lexbench.report.select import named_methods
from lexbench.stats.metrics import follows_another
from lexbench.store.store import Store

if TYPE_CHECKING:
    import pandas as pd

    from lexbench.backends.hf.exact.extended import Extended
    from lexbench.report.plots.style import NotebookFigure
    from lexbench.runner.job import Job
    from lexbench.stats.tables import Table
    from lexbench.store.format import FinishedCell


P = ParamSpec("P")
R = TypeVar("R")


def _checks_names(function: Callable[P, R]) -> Callable[P, R]:
    """The same function, with ConfigError for an argument of an unknown name, which offers the nearest."""
    known = list(inspect.signature(function).parameters)

    @functools.wraps(function)
    def checked(*given: P.args, **named: P.kwargs) -> R:
        for name in named:
            if name not in known:
                raise ConfigError(
                    f"{function.__name__} has no argument {name}: {registry.suggest_choices(name, known)}"
                )
        return function(*given, **named)

    return checked


method = named_method
MethodGiven = str | Mapping[str, Any] | Method | Callable[[Model, int], Attention] | None
"""A method by name, by name and parameters, as an object or a function; None: the unmodified model."""


def corpus(name: str, **parameters: Any) -> Corpus:
    """A corpus by name: `corpus("files", path="book.txt")`."""
    built: Corpus = objects.build_object(
        {**registry.read_named_config("corpus", name), **parameters, "name": name}, "corpus"
    )
    return built


def task(name: str, corpus: Corpus | str | Mapping[str, Any] | None = "stdlib", **parameters: Any) -> Task:
    """A task by name; `corpus` is where its text comes from, if it takes any: as in `run`, or built, or None."""
    text = objects.build_object(_config_of("corpus", corpus), "corpus") if isinstance(corpus, str | Mapping) else corpus
    if text is not None and not hasattr(text, "documents"):
        raise ConfigError(f"corpus must be a name, a mapping of its name and parameters, or a corpus, got {corpus!r}")
    built: Task = objects.build_object(
        {**registry.read_named_config("task", name), **parameters, "name": name}, "task", corpus=text
    )
    return built


def extend(
    network: Any,
    method: MethodGiven,
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
    from lexbench.backends.hf.exact.extended import Extended

    named = method is None or isinstance(method, str | Mapping | Sequence | FunctionType)
    if isinstance(method, type) or not (named or hasattr(method, "attention")):
        raise ConfigError(f"method must be a name, or an object with attention(...), got {method!r}")
    if named:
        return Extended(network, named_method(method, **parameters), length, trained_length)
    if parameters:
        raise ConfigError(
            f"extend takes parameters with a method's name only, got {', '.join(parameters)}: set them in it"
        )
    return Extended(network, cast(Method, method), length, trained_length)


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
        Refused: no rotary module is known here, cos and sin do not show all of the method, it changes nothing at this
            length, or it is stated as a base and only the config tells the base.
        ConfigError: a parameter does not fit, or facts are needed.
    """
    from lexbench.backends.hf.exact.assert_rope import assert_rope

    assert_rope(model, method, length=length, facts=facts, trained_length=trained_length, **parameters)


def assert_attention(
    model: Any,
    method: str | Sequence[str | Mapping[str, Any]] | Method | None = None,
    *,
    length: int,
    facts: Model | None = None,
    trained_length: int | None = None,
    **parameters: Any,
) -> tuple[str, ...]:
    """Assert that a loaded model's attention is the one its config states, under a method: `assert_rope`, and more.

    Beside cos and sin: which dimensions of queries and keys turn together and by which angle, in each layer, alone and
    behind a cached prefix; the scale of the softmax, mscale^2 of latent attention included; a temperature over
    positions; windows, chunks, sinks and capped scores; layers without positions. Read are queries and keys as they
    reach the attention function, and the weights that this function gives to keys whose products are known, in few
    short passes. Compared is with the config in float64. A convolution before attention, and a bias by distance, are
    refused. What a norm and the projections make of the weights is not judged, nor is what an index chooses.

    Args:
        model: a causal language model of transformers. Its config is what is wanted, apart from the method.
        method: as in `assert_rope`.
        length: tokens of the longest text, prompt and answer.
        facts: as in `assert_rope`.
        trained_length: as in `assert_rope`.
        parameters: of the method.

    Returns:
        What was found right in each layer, in words; "no attention" for one that keeps a state in place of keys.

    Raises:
        RopeMismatch: an AssertionError that says which layer is off, in which pair or at which keys, at which position,
            by how much, and the likely cause.
        Refused: as in `assert_rope`; a layer with attention calls no attention function that transformers registers,
            or does what is not understood here: says which.
        ConfigError: a parameter does not fit, or facts are needed.
    """
    from lexbench.backends.hf.exact.assert_attention import assert_attention

    return assert_attention(model, method, length=length, facts=facts, trained_length=trained_length, **parameters)


@dataclass(frozen=True)
class Run:
    """What a run has measured: its cells in a run folder."""

    folder: Path
    cells: frozenset[str] | None = None
    """Ids of its cells; None: all of the folder."""

    def _finished_cells(self) -> "list[FinishedCell]":
        if not Path(self.folder).is_dir():
            raise ConfigError(
                f"run folder {self.folder} {why_not_a_folder(Path(self.folder))}: give one that a run has written"
            )
        return Store(self.folder).load(self.cells)

    def _tables(self, task: str | None, metric: str | None) -> "list[Table]":
        """Headline tables, or those of a metric; of all tasks, or of one by its name or label."""
        from lexbench.report.tables import headline_tables
        from lexbench.stats.tables import build_tables

        every = headline_tables(self._finished_cells()) if metric is None else build_tables(self._finished_cells())
        found = [
            table
            for table in every
            if (table.metric == metric if metric else not follows_another(table.metric))
            and task in (None, table.cell.task, table.cell.task_name)
        ]
        if not found:
            known = sorted({f"{table.cell.task}: {table.metric}" for table in build_tables(self._finished_cells())})
            raise ConfigError(
                f"no table of task {task or 'any'}, metric {metric or 'any'}: there are {', '.join(known)}"
            )
        return found

    def records(self) -> "pd.DataFrame":
        """One row per cell, metric and part; part None is the whole cell (see `lexbench.core.record.Record`)."""
        from lexbench.stats import records

        return records.records_dataframe(
            [each for finished in self._finished_cells() for each in records.records_of(finished)]
        )

    def table(self, task: str | None = None, metric: str | None = None) -> "pd.DataFrame":
        """Values by method and length; a warning names each refused cell, which is NaN beside values of its method.

        A method without any value is no row. Raises Refused, with the reason, where no method has a value.

        Args:
            task: its name or label; None: all, each a block of rows.
            metric: nll, accuracy, ...; None: the headline metric of each task.
        """
        import pandas as pd

        found = self._tables(task, metric)
        rows = {
            (table.cell.task, table.metric, table.cell.seed, str(method)): {
                length: table.entries[method, length].value if (method, length) in table.entries else None
                for length in table.lengths
            }
            for table in found
            for method in table.methods
            if any(record.value is not None for record in table.of(method))
        }
        lacking = join_first_few(list(_reasons(found)), 4, "; ")
        if not rows:
            raise Refused(f"nothing was measured: {lacking}")
        if lacking != join_first_few([]):
            warnings.warn(f"no value of {lacking}", stacklevel=2)
        index = pd.MultiIndex.from_tuples(rows, names=["task", "metric", "seed", "method"])
        made = pd.DataFrame(list(rows.values()), index=index, dtype=float)
        made.columns.name = "length"
        # Levels with one value only are left out, so that the usual table has methods as rows.
        single: list[Hashable] = [name for name in ("task", "metric", "seed") if index.unique(name).size == 1]
        return made.droplevel(single).sort_index(axis=1)

    def plot(self, task: str | None = None, metric: str | None = None) -> "NotebookFigure":
        """Draw differences to the unmodified model and levels over length; of the first task if none is named."""
        from lexbench.report.plots import over_length
        from lexbench.stats.differences import paired_differences
        from lexbench.stats.rescore import samples_by_cell

        table = self._tables(task, metric)[0]
        samples = samples_by_cell(self._finished_cells())
        return over_length.over_length_figure(table, paired_differences(table, samples))

    def compare(self, a: MethodGiven = None, *others: MethodGiven) -> "Text":
        """Paired differences to method a, by the same questions; of all other methods where none is named.

        `run.compare()` compares each method with the unmodified model, `run.compare("yarn", Mine())` mine with yarn.
        One other method has a table and a verdict for each task; of several, Holm's correction counts all.
        """
        from lexbench.report.check import comparison
        from lexbench.report.tables import differences_page
        from lexbench.stats.differences import paired_differences
        from lexbench.stats.rescore import samples_by_cell

        finished = self._finished_cells()
        known = {each.cell.method for each in finished}
        base, *named = (_key(known, each) for each in (a, *others))
        if len(named) == 1:
            found = comparison.compared_runs(
                self.folder, self.folder, [f"method={base}"], [f"method={named[0]}"], self.cells
            )
            return Text(comparison.comparison_markdown(found))
        samples = samples_by_cell(finished)
        every = [paired_differences(table, samples, base, named or None) for table in self._tables(None, None)]
        if not any(every):
            raise ConfigError(
                f"nothing to compare with {base}: this run holds {join_first_few(sorted(map(str, known)))}"
            )
        return Text(differences_page([each for each in every if each]))

    def report(self, out: Path | None = None) -> Path:
        """Write tables and plots of the whole folder; the page that links them."""
        from lexbench.report.report import write_report

        return write_report([self.folder], out)

    def __str__(self) -> str:
        from lexbench.report.tables import terminal_tables

        cells = {each.cell.id for each in self._finished_cells()} if self.cells is None else self.cells
        return terminal_tables([(self.folder, sorted(cells))])

    def _repr_html_(self) -> str:
        from lexbench.report import formats
        from lexbench.report.tables import headline_tables, table_grid, table_headline

        grids = [
            replace(table_grid(each), title=table_headline(each)) for each in headline_tables(self._finished_cells())
        ]
        return formats.sheet_html(grids)


def _reasons(found: "Sequence[Table]") -> Iterator[str]:
    """Each method without a value at some length, with these lengths and the reason."""
    for table in found:
        lacking = [record for method in table.methods for record in table.of(method) if record.value is None]
        for (row, why), group in group_by_key(
            lacking, lambda each: (each.method, each.refused or "all samples fail")
        ).items():
            yield f"{row} on {table.cell.task} at {join_lengths([each.length for each in group])} ({plain_text(why)})"


def _key(known: set[MethodKey], given: MethodGiven) -> MethodKey:
    """The key of a method in a run; of a name without parameters, the only one of that name."""
    if isinstance(given, str):
        named = named_methods(known, [given])
        exact = [each for each in named if str(each) == given] or sorted(named)
        if len(exact) > 1:
            raise ConfigError(f"{given} stands for {join_first_few(exact)}: give one of these labels")
        return exact[0]
    key = read_method(method_config(given))[2]
    if key not in known:
        raise ConfigError(f"{key} is not in this run: choose from {join_first_few(sorted(map(str, known)), 40)}")
    return key


class Text(str):
    """Markdown that a notebook renders and a terminal prints as it is."""

    def __repr__(self) -> str:
        return str(self)

    def _repr_markdown_(self) -> str:
        return str(self)


@_checks_names
def run(
    model: Any = "lexlet",
    method: MethodGiven | Sequence[MethodGiven] = "none",
    task: str | Mapping[str, Any] | Sequence[str | Mapping[str, Any]] = "last_segment",
    lengths: int | Sequence[int] | None = None,
    multiples: float | Sequence[float] | None = None,
    corpus: str | Path | Mapping[str, Any] | None = None,
    backend: str | Mapping[str, Any] | None = None,
    n: int | None = None,
    seed: int | Sequence[int] = 0,
    results: str | Path | None = None,
    reuse: bool = True,
    stop_after_collapse: bool = False,
    price: bool = True,
    quiet: bool = False,
    *,
    tokenizer: Any = None,
    trained_length: int | None = None,
    config_dir: str | Path | Sequence[str | Path] | None = None,
) -> Run:
    """Measure every method on every task at every length, or go on where an earlier run stopped.

    Args:
        model: a name of the registry, a folder, a name on the hub, facts with a `path`, or a loaded model (`evaluate`);
            the embedded one if left out, as of the command.
        method: a name, a mapping of `name` and parameters, an object or a function of your own (docs/python.md), None
            for the unmodified model; or several of them. "yarn+log_n" is one method, combined of two; with parameters
            `{"compose": [{"name": "yarn", "factor": 8}, "log_n"]}`.
        task: a name, a mapping of `name` and parameters, or several of them.
        lengths: in tokens, one or several; None: `multiples` of the trained length.
        multiples: of the trained length, one or several; None: those of the suite, else 0.5, 1, 2, 4 and 8
            (1, 2 and 4 where they are ceilings of prompts).
        corpus: a name, a file or folder of texts, or a mapping of `name` and parameters; None: stdlib up to lengths of
            4096 tokens, packages beyond.
        backend: a name, or a mapping of `name` and parameters; None: hf, or the loaded model's own.
        n: samples a cell; None: those of the suite, else 32.
        seed: of the questions; several seeds are several cells.
        results: folder of the run; None: runs/<model>, of a loaded model a temporary one.
        reuse: take what earlier answers already hold; the numbers are the same to rounding.
        stop_after_collapse: skip the longer lengths of a method that has collapsed.
        price: measure a method that follows the length also as it is set for the longest length, at the longest length
            within the trained one.
        quiet: print neither plan nor progress.
        tokenizer: of a loaded model; None: that of the folder or hub name that it was loaded from.
        trained_length: of a loaded model, where its config does not state it.
        config_dir: folders of your own yamls, as --config-dir.
    """
    from lexbench.runner.execute import execute_job

    asked: dict[str, Any] = {
        "method": method,
        "task": task,
        "corpus": corpus,
        "lengths": lengths,
        "multiples": multiples,
        "n": n,
    }
    asked |= {"seed": seed, "results": results, "reuse": reuse, "stop_after_collapse": stop_after_collapse}
    asked |= {"price": price}
    with registry.with_config_dirs(config_dir):
        if callable(model):
            if backend is not None:
                raise ConfigError(f"backend is for a model by name, got {backend!r} beside a loaded one: leave it out")
            own = tokenizer if tokenizer is not None else _own_tokenizer(model)
            return _evaluate_loaded(model, own, trained_length, None, None, quiet, asked)
        if not isinstance(model, str | Path | Mapping | Model):
            raise ConfigError(f"model must be a name, ./FOLDER, ORG/NAME, facts or a loaded model, got {model!r}")
        for name, given in {"tokenizer": tokenizer, "trained_length": trained_length}.items():
            if given is not None:
                raise ConfigError(f"{name} is for a loaded model, got it beside model={model!r}: leave it out")
        facts = (
            _model_facts(f"{model}" if isinstance(model, str) else f"./{model}")
            if isinstance(model, str | Path)
            else model
        )
        job = _build_job(model=facts, backend=_config_of("backend", "hf" if backend is None else backend), **asked)
        return Run(job.results, frozenset(cell.id for cell in execute_job(job, quiet=quiet)))


@_checks_names
def evaluate(
    model: Any,
    tokenizer: Any,
    task: str | Mapping[str, Any] | Sequence[str | Mapping[str, Any]] = "last_segment",
    *,
    method: MethodGiven | Sequence[MethodGiven] = "none",
    trained_length: int | None = None,
    lengths: int | Sequence[int] | None = None,
    multiples: float | Sequence[float] | None = None,
    corpus: str | Path | Mapping[str, Any] | None = None,
    n: int | None = None,
    seed: int | Sequence[int] = 0,
    name: str | None = None,
    revision: str | None = None,
    results: str | Path | None = None,
    price: bool = True,
    quiet: bool = True,
    config_dir: str | Path | Sequence[str | Path] | None = None,
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
        config_dir: as in `run`.
    """
    asked: dict[str, Any] = {
        "method": method,
        "task": task,
        "corpus": corpus,
        "lengths": lengths,
        "multiples": multiples,
        "n": n,
    }
    asked |= {"seed": seed, "results": results, "price": price}
    with registry.with_config_dirs(config_dir):
        return _evaluate_loaded(model, tokenizer, trained_length, name, revision, quiet, asked)


def _evaluate_loaded(
    model: Any,
    tokenizer: Any,
    trained_length: int | None,
    name: str | None,
    revision: str | None,
    quiet: bool,
    asked: Mapping[str, Any],
) -> Run:
    """The run of a loaded model; `asked` holds the settings of the job."""
    from lexbench.backends.loaded import loaded_backend
    from lexbench.runner.execute import execute_job

    results = asked["results"]
    with loaded_backend(model, tokenizer, trained_length, name, revision) as backend:
        settings = {**asked, "results": results or _temporary_folder()}
        job = _build_job(model=backend.model, backend={"name": backend.name}, **settings)
        _check_extended(model, job, kept=results is not None and revision is None)
        return Run(job.results, frozenset(cell.id for cell in execute_job(job, quiet=quiet, backend=backend)))


def _own_tokenizer(model: Any) -> Any:
    """The place that a loaded model of transformers comes from, which holds its tokenizer; ConfigError without one."""
    place = str(getattr(getattr(model, "config", None), "_name_or_path", "") or "")
    if not place:
        raise ConfigError(f"a loaded model needs its tokenizer, got {type(model).__name__} alone: give tokenizer=...")
    return place


def _check_extended(model: Any, job: "Job", kept: bool) -> None:
    """ConfigError where a network that `extend` has given a method would be measured under another method's name.

    Args:
        model: of any kind.
        job: what is asked of it.
        kept: whether another call finds the answers by the hash of the weights, which says nothing of a method.
    """
    extended = sys.modules.get(
        "lexbench.backends.hf.exact.extended"
    )  # where nothing was extended, it need not be loaded
    if extended is None or not extended.is_extended(model):
        return
    if others := [method.label for method in job.methods if method.key != BASELINE_METHOD]:
        raise ConfigError(
            f"a network under extend is measured as it is, by method=none, got {', '.join(others)}: restore() it first"
        )
    if kept:
        raise ConfigError(
            "a network under extend has the revision of its weights alone: give revision=..., or restore()"
        )


def _temporary_folder() -> Path:
    folder = tempfile.TemporaryDirectory(prefix="lexbench-", ignore_cleanup_errors=True)
    atexit.register(folder.cleanup)  # which also keeps it: it would be removed with its last reference
    return Path(folder.name)


def _build_job(method: Any, task: Any, corpus: Any, seed: int | Sequence[int], **settings: Any) -> "Job":
    from lexbench.runner.job import Job

    methods = [_method(entry) for entry in _as_list("method", method)]
    classes = {each["name"]: each["_target_"] for each in methods if isinstance(each.get("_target_"), type)}
    for each in methods:
        if classes.get(each["name"], each.get("_target_")) is not each.get("_target_"):
            raise ConfigError(f"two methods are called {each['name']}, which are not of one class: rename one")
    return Job.of(
        methods=methods,
        tasks=[_config_of("task", entry) for entry in _as_list("task", task)],
        corpus=None if corpus is None else _corpus(corpus),
        seeds=list(seed) if isinstance(seed, Sequence) and not isinstance(seed, str) else [seed],
        **settings,
    )


def _corpus(given: Any) -> dict[str, Any]:
    """The config of a corpus by name, by name and parameters, or as a file or folder of texts."""
    if isinstance(given, str | Path):
        name, path = registry.corpus_named(_as_place(given))
        given = name if path is None else {"name": name, "path": path}
    return _config_of("corpus", given)


def _as_place(given: str | Path) -> str:
    """A name as it is; a Path as a text that is read as one."""
    return given if isinstance(given, str) else str(given) if given.is_absolute() else f"./{given}"


def _model_facts(given: str) -> dict[str, Any]:
    """The facts of a name, a folder or a name on the hub."""
    name, path = registry.resolve_model_name(given)
    return {**registry.read_named_config("model", name), **({} if path is None else {"path": path})}


def _config_of(group: str, given: str | Mapping[str, Any]) -> dict[str, Any]:
    """The yaml of a name with the given parameters over it, and the name itself."""
    if not isinstance(given, str | Mapping):
        raise ConfigError(f"{group} must be a name, or a mapping of its name and parameters, got {given!r}")
    parameters = {"name": given} if isinstance(given, str) else dict(given)
    if "name" not in parameters:
        raise ConfigError(f"{group} lacks its name: give {{'name': ..., parameters}}, got {parameters}")
    name = str(parameters["name"])
    return {**registry.read_named_config(group, name), **parameters, "name": name}


def _as_list(noun: str, given: Any) -> list[Any]:
    is_one = isinstance(given, str | Mapping) or (noun == "method" and not isinstance(given, Sequence))
    if is_one:
        return [given]
    if not isinstance(given, Sequence) or not given:
        raise ConfigError(
            f"{noun} must be a name, a mapping of its name and parameters, or a list of these, got {given!r}"
        )
    return list(given)


def _method(given: Any) -> dict[str, Any]:
    named = isinstance(given, str) or (isinstance(given, Mapping) and "compose" not in given)
    return _config_of("method", given) if named else method_config(given)


__all__ = [
    "Attention",
    "RopeMismatch",
    "Run",
    "assert_attention",
    "assert_rope",
    "corpus",
    "evaluate",
    "extend",
    "method",
    "run",
    "task",
]
