"""A job: everything that one run measures, checked before anything is loaded."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lexbench.checkpoints.checkpoint import read_model
from lexbench.core import objects, parts, registry, suites
from lexbench.core.errors import ConfigError
from lexbench.core.files import check_folder
from lexbench.core.guard import plugin_guard
from lexbench.core.method_key import OWN_POLICY, Purpose
from lexbench.core.model import Model
from lexbench.core.record import Refused
from lexbench.core.values import MAX_EXACT_INTEGER, is_whole
from lexbench.corpora import default_corpus, for_lengths
from lexbench.methods.composition import deployed_config, deployment_of, drop_idle_settings, read_method
from lexbench.methods.scaled import attention_of
from lexbench.metrics import declare_metrics
from lexbench.runner.cells import Component, MethodComponent
from lexbench.runner.stopping_rule import StoppingRule, check_stopping
from lexbench.taskkit import ceiling

MAX_SAMPLES_PER_CELL = 1_000_000
"""Bound of n: all questions of a cell are in memory at once."""
MAX_LENGTH_TOKENS = 1 << 27
"""Bound of lengths, tokens."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """Everything that one run measures, checked before anything is loaded."""

    model: Model
    methods: Sequence[MethodComponent]
    tasks: Sequence[Component]
    corpus: Component
    backend: Mapping[str, Any]
    lengths: Sequence[int]
    n: int
    seeds: Sequence[int]
    results: Path
    reuse: bool = True
    """Take from earlier answers what they hold already."""
    stop_after_collapse: bool = False
    """Skip the longer lengths of a method that has collapsed."""
    stopping: StoppingRule | None = None
    """How comparisons stop before n questions; None: every cell is asked all of them."""
    deployed: Sequence[MethodComponent] = ()
    """Methods that follow the length, set as for the longest length: measured at `price_length` only."""
    price_length: int | None = None
    """The longest length within the trained one."""
    too_long: Mapping[tuple[str, int], Refused] = field(default_factory=dict)
    """Why the corpus has too few texts of a length, by label of the task and length."""
    executor: str = "here"
    """`here`: this process measures; `ray`: workers of a Ray cluster."""
    ray: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the cluster of `executor=ray`."""
    config: Mapping[str, Any]
    """The user's settings with defaults, as the run folder keeps them."""

    @classmethod
    def of(
        cls,
        *,
        model: Model | Mapping[str, Any],
        methods: Sequence[Mapping[str, Any]],
        tasks: Sequence[Mapping[str, Any]],
        corpus: Mapping[str, Any] | None,
        backend: Mapping[str, Any],
        lengths: int | Sequence[int] | None,
        multiples: float | Sequence[float] | None,
        n: int | None,
        seeds: Sequence[int],
        results: str | Path | None,
        reuse: bool = True,
        stop_after_collapse: bool = False,
        stopping: StoppingRule | None = None,
        price: bool = False,
        executor: str = "here",
        ray: Mapping[str, Any] | None = None,
    ) -> "Job":
        """A job from configs, each with its `name`; ConfigError for whatever is wrong with them.

        Of `lengths` None, `multiples` of the trained length; of these or `n` None, those of the suite, or the usual.
        Where lengths are ceilings, the usual are 1, 2 and 4, or 1 where no method follows the prompts. Of `corpus` None
        or without a name, the usual one of the longest length.
        With `stopping`, n is the budget of each cell (`runner.rounds`).
        With `price`, a method that follows the length also has a cell at the longest length within the trained one, set
        as for the longest length of all: what a deployment pays on short texts.
        """
        facts = model if isinstance(model, Model) else read_model(model)
        n = _checked_sample_count(_suite_or_default("n", tasks) if n is None else n)
        seeds = _checked_seeds(seeds)
        _check_switches(reuse=reuse, stop_after_collapse=stop_after_collapse, price=price)
        if executor not in (known := ("here", *parts.names_provided("executor"))):
            raise ConfigError(
                f"executor must be {' or '.join(known)}, got {executor!r}: this process, or a Ray cluster"
            )
        entries = [entry for config in tasks for entry in suites.expand_suite(config)]
        measured = [drop_idle_settings(each, facts) for each in methods]
        if multiples is None:
            of_ceilings = _multiples_of_ceilings(entries, measured, facts) if ceiling.are_ceilings(entries) else None
            multiples = _suite_or_default("multiples", tasks, of_ceilings)
        tokens = _lengths(facts, lengths, multiples)
        corpus = _corpus(corpus or {}, max(tokens))
        text = _build_corpus(corpus, tokens)
        settled = [_resolve_task(_build_component("task", entry, corpus=text.obj), tokens) for entry in entries]
        named = [_method(each, facts) for each in measured]
        place = _results_folder(results, facts.name)
        inside = [length for length in tokens if length <= facts.trained_length]
        priced = price and bool(inside) and tokens[-1] > facts.trained_length
        config = {
            "model": facts.stated_facts(),
            "method": [dict(config) for config in methods],
            "task": [dict(config) for config in tasks],
            "corpus": dict(corpus),
            "backend": dict(backend),
            "lengths": list(tokens),
            "n": n,
            "seeds": list(seeds),
        }
        if stopping is not None:
            check_stopping([each.key for each in named], executor, stop_after_collapse)
            config["stopping"] = {"until": stopping.until}  # another job than that of a fixed n
        return cls(
            model=facts,
            methods=named,
            deployed=_price_methods(measured, named, facts, inside[-1], tokens[-1]) if priced else (),
            price_length=inside[-1] if priced else None,
            tasks=settled,
            corpus=text,
            backend=backend,
            lengths=tokens,
            n=n,
            seeds=seeds,
            results=place,
            reuse=reuse,
            stop_after_collapse=stop_after_collapse,
            stopping=stopping,
            executor=executor,
            ray=ray or {},
            config=config,
        )


def _checked_sample_count(n: Any) -> int:
    """Samples of a cell; ConfigError for another value than 1 to a million."""
    _check_whole_number("n", n, 1, "samples a cell, e.g. n=32")
    if n > MAX_SAMPLES_PER_CELL:
        raise ConfigError(f"n must be at most {MAX_SAMPLES_PER_CELL:,} samples a cell, got {n:,}: e.g. n=32")
    return int(n)


def _checked_seeds(given: Sequence[Any]) -> list[int]:
    """Seeds, each once; ConfigError for none, or for one out of range."""
    example = "e.g. seed=0 or seed=[0,1]"
    if not given:
        raise ConfigError(f"seed must be a whole number of at least 0, got none: {example}")
    for seed in given:
        _check_whole_number("seed", seed, 0, example)
        if seed >= MAX_EXACT_INTEGER:
            raise ConfigError(f"seed must be below {MAX_EXACT_INTEGER:,}, got {seed:,}: {example}")
    return list(dict.fromkeys(given))


def _check_switches(**given: Any) -> None:
    """ConfigError for a switch that is neither true nor false."""
    for name, switch in given.items():
        if not isinstance(switch, bool):
            raise ConfigError(f"{name} must be true or false, got {switch!r}: e.g. {name}=false")


def _results_folder(results: Any, model: str) -> Path:
    """The folder of results; without one, the usual one of the model. ConfigError where it cannot be a folder."""
    if not isinstance(results, str | Path | None):
        raise ConfigError(f"results must be a folder, got {results!r}: e.g. results='runs/mine'")
    place = Path(results) if results else _default_folder(model)
    check_folder("results", place, "results=DIR")
    return place


def _default_folder(name: str) -> Path:
    """The usual folder of a model's results; ConfigError for a name that leads elsewhere."""
    if Path(name).is_absolute() or ".." in Path(name).parts:
        raise ConfigError(f"model.name {name!r} is no name for a folder of results: give results=DIR")
    return Path("runs") / name


def _resolve_task(task: Component, lengths: Sequence[int]) -> Component:
    """The task with what depends on all lengths."""
    with plugin_guard(f"{type(task.obj).__name__}.for_lengths"):
        built = task.obj.for_lengths(lengths)
        assert isinstance(built, type(task.obj)), f"a {type(built).__name__} is no {type(task.obj).__name__}"
    return Component(task.name, built, task.label, unresolved=task.obj)


def _price_methods(
    methods: Sequence[Mapping[str, Any]], named: Sequence[MethodComponent], model: Model, inside: int, longest: int
) -> list[MethodComponent]:
    """Methods that follow the length, set as for the longest one, but for those that are measured anyway."""
    known, found = {method.key for method in named}, []
    for config, method in zip(methods, named, strict=True):
        if fixed := deployed_config(config, model, inside, longest):
            name, built, key = read_method(fixed)
            purpose = Purpose(method.key, longest / model.trained_length, price_only=True)
            found += [MethodComponent.of(name, built, key, purpose)] if key not in known else []
    return found


def _check_whole_number(name: str, value: Any, least: int, remedy: str) -> None:
    if not is_whole(value, least):
        raise ConfigError(f"{name} must be a whole number of at least {least}, got {value!r}: {remedy}")


def _lengths(model: Model, one_or_more: int | Sequence[int] | None, multiple: float | Sequence[float]) -> list[int]:
    """Lengths in tokens, sorted, each once."""
    lengths = None if one_or_more is None else _as_list("lengths", one_or_more, "[512,1024]")
    multiples = _as_list("multiples", multiple, "[0.5,1,2]")
    # Multiples are checked beside lengths, too: a wrong one that is not said would be believed to count.
    odd = [m for m in multiples if isinstance(m, bool) or not isinstance(m, int | float) or not 0 < m < math.inf]
    if odd or not multiples:
        got = repr(odd[0]) if odd else "[]"
        raise ConfigError(f"multiples must be numbers above 0, got {got}: e.g. multiples=[0.5,1,2]")
    if lengths is None:
        return _lengths_of_multiples(model, multiples)
    if long := [each for each in lengths if isinstance(each, int | float) and each > MAX_LENGTH_TOKENS]:
        raise ConfigError(
            f"lengths must be at most {MAX_LENGTH_TOKENS:,} tokens, got {long[0]:.15g}: e.g. lengths=[512,1024]"
        )
    bad = [length for length in lengths if not isinstance(length, int) or length < 2]
    if bad or not lengths:
        asked = list(lengths)
        raise ConfigError(f"lengths must be whole numbers of at least 2 tokens, got {asked}: e.g. lengths=[512,1024]")
    return sorted(set(lengths))


def _as_list(name: str, given: Any, example: str) -> Sequence[Any]:
    """A list, of one number where only that is given; ConfigError for anything else."""
    if isinstance(given, int | float) and not isinstance(given, bool):
        return [given]
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise ConfigError(f"{name} must be a number or a list of numbers, got {given!r}: e.g. {name}={example}")
    return given


def _lengths_of_multiples(model: Model, multiples: Sequence[float]) -> list[int]:
    """Lengths in tokens of multiples of the trained length, sorted, each once."""
    for multiple in multiples:
        wanted = multiple * model.trained_length
        if wanted > MAX_LENGTH_TOKENS or round(wanted) < 2:
            bound = f"at most {MAX_LENGTH_TOKENS:,} tokens" if wanted > MAX_LENGTH_TOKENS else "at least 2 tokens"
            raise ConfigError(
                f"multiples must give {bound}, got {multiple:.15g} of {model.trained_length:,}: "
                "e.g. multiples=[0.5,1,2]"
            )
    return sorted({round(multiple * model.trained_length) for multiple in multiples})


def _corpus(given: Mapping[str, Any], longest: int) -> Mapping[str, Any]:
    """The config of the corpus; where it has no name, the usual one with the given parameters."""
    if given.get("name") is not None:
        return given
    name = default_corpus(longest)
    return {**registry.read_named_config("corpus", name), **given, "name": name}


def _build_corpus(config: Mapping[str, Any], lengths: Sequence[int]) -> Component:
    """The corpus, made for all lengths of the run."""
    name = str(config["name"])
    built = for_lengths(objects.build_object(config, "corpus"), lengths)
    return Component(name, built, objects.instance_label(built, name, "corpus"))


DEFAULT_RUN_SETTINGS: Mapping[str, Any] = {"n": 32, "multiples": [0.5, 1, 2, 4, 8]}
"""Defaults of a run, if neither the user nor the suite sets them."""


def _suite_or_default(name: str, tasks: Sequence[Mapping[str, Any]], usual: Any = None) -> Any:
    """A setting as the suites have it: the outermost that state it, which must agree; else the usual value.

    That is `usual`, or where it is None that of `DEFAULT_RUN_SETTINGS`.
    """
    while tasks:
        stated = [config[name] for config in tasks if "suite" in config and name in config]
        if any(value != stated[0] for value in stated):
            raise ConfigError(f"suites differ in {name} ({', '.join(map(str, stated))}): give {name}=...")
        if stated:
            return stated[0]
        tasks = [part for config in tasks if "suite" in config for part in suites.suite_members(config)]
    return DEFAULT_RUN_SETTINGS[name] if usual is None else usual


CEILING_MULTIPLES = (1, 2, 4)
"""Default ceilings of prompts with a factor each, over the trained length, where a method follows the length."""


def _multiples_of_ceilings(
    tasks: Sequence[Mapping[str, Any]], methods: Sequence[Mapping[str, Any]], model: Model
) -> Sequence[float]:
    """Default multiples of tasks whose length is a ceiling; 1 alone where prompts have no factor of their own."""
    by_prompt = any(config["factor"] == ceiling.FACTOR_OF_PROMPT for config in tasks)
    follows = any(_follows_length(read_method(config)[1], model) for config in methods)
    return CEILING_MULTIPLES if by_prompt and follows else CEILING_MULTIPLES[:1]


def _follows_length(method: Any, model: Model) -> bool:
    """Whether a method is another one at the default ceilings of a model; not where it refuses one of them."""
    try:
        found = [attention_of(method, model, each * model.trained_length).as_data() for each in CEILING_MULTIPLES]
    except Refused:
        return False
    return any(each != found[0] for each in found)


def _build_component(noun: str, config: Mapping[str, Any], **inserted: Any) -> Component:
    name = str(config["name"])
    built = objects.build_object(config, noun, **inserted)
    if noun == "task":
        declare_metrics(getattr(built, "metrics", ()))
    return Component(name, built, objects.instance_label(built, name, noun))


def _method(config: Mapping[str, Any], model: Model) -> MethodComponent:
    """A method that is measured for itself, which may also be the form that a deployment of another one has."""
    name, method, key = read_method(config)
    of = deployment_of(config, model)
    return MethodComponent.of(name, method, key, OWN_POLICY if of is None else Purpose(*of))
