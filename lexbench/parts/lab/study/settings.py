"""Configuration of a study: models to train and tasks to evaluate them on; checked before anything runs."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from lexbench.core import objects, registry
from lexbench.core.errors import ConfigError
from lexbench.core.files import check_folder
from lexbench.core.values import checked_field_values, is_whole

PLAIN_NAME_PATTERN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")


SHAPE_NAMES = ("falls", "flat", "rises slowly", "explodes")
"""Shapes of a curve beyond the trained length, from the lowest change to the highest."""

StatementT = TypeVar("StatementT")


@dataclass(frozen=True, kw_only=True)
class StudyEntry:
    """Model of a study, trained once for each seed.

    Args:
        name: of the entry, for tables and folders.
        family: groups entries in tables and figures.
        encoding: a name, or a name with parameters; None: that of `start`.
        start: entry whose trained model is finetuned; None: train from scratch.
        recipe: None: the study's, or that of its finetuned part.
        train: other settings of `lexbench train`, by key.
        seeds: those of the study's seeds that it is trained with; None: all.
        methods: None: the study's.
        backend: to evaluate the model with.
    """

    name: str
    family: str
    encoding: Any = None
    start: str | None = None
    recipe: str | None = None
    train: Mapping[str, Any] = field(default_factory=dict)
    seeds: Sequence[int] | None = None
    methods: Sequence[Any] | None = None
    backend: str = "native"

    def __post_init__(self) -> None:
        if not PLAIN_NAME_PATTERN.fullmatch(self.name):
            raise ConfigError(
                f"study entry {self.name[:60]!r} must be a folder's name: use letters, digits, _, - and . inside"
            )
        if self.encoding is None and self.start is None:
            raise ConfigError(f"study entry {self.name} needs an encoding or a start, got none: e.g. encoding: rope")

    @property
    def spec(self) -> dict[str, Any] | None:
        """The encoding's name and parameters."""
        if self.encoding is None:
            return None
        return {"name": self.encoding} if isinstance(self.encoding, str) else dict(self.encoding)


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """A prediction about a curve, stated before the runs: one of shape, other_than, within and below.

    Args:
        entry: whose curve.
        tasks: the prediction is judged on each.
        source: who says so.
        method: on the model.
        shape: the curve has this shape.
        other_than: the curve has another shape than this.
        at: multiple of the trained length, for within and below.
        within: the change of NLL from the trained length is no larger, in nats per token.
        below: NLL changes less than that of this entry.
        decide: what would decide between the source and ours where it fails.
    """

    entry: str
    tasks: list[str]
    source: str
    method: str = "none"
    shape: str | None = None
    other_than: str | None = None
    at: float | None = None
    within: float | None = None
    below: str | None = None
    decide: str = ""

    def __post_init__(self) -> None:
        kinds = [name for name in ("shape", "other_than", "within", "below") if getattr(self, name) is not None]
        if len(kinds) != 1 or (self.at is None) != (kinds[0] in ("shape", "other_than")):
            raise ConfigError(
                f"prediction about {self.entry[:60]} must have shape, other_than, or at with within or below, got "
                f"{' and '.join(kinds) or 'none'}: e.g. at: 8, within: 0.05"
            )
        for shape in (self.shape, self.other_than):
            if shape is not None and shape not in SHAPE_NAMES:
                raise ConfigError(f"unknown shape {shape[:60]!r} of a prediction: choose from {', '.join(SHAPE_NAMES)}")

    @property
    def of_entries(self) -> list[str | None]:
        """Entries that it names."""
        return [self.entry, self.below]

    @property
    def of_tasks(self) -> list[str | None]:
        """Tasks that it names."""
        return [*self.tasks]


@dataclass(frozen=True, kw_only=True)
class PredictedOrder:
    """A predicted order by accuracy, stated before the runs: of two encodings, or of the tasks of one encoding.

    Args:
        multiples: of the trained length, each judged for itself.
        source: who says so.
        higher: entry that has the higher accuracy,
        lower: than each of these;
        tasks: compared, where both have learnt them; None: all of the study.
        task: has a higher accuracy than any other task,
        entries: under each of these.
    """

    multiples: list[float]
    source: str
    higher: str | None = None
    lower: list[str] = field(default_factory=list)
    tasks: list[str] | None = None
    task: str | None = None
    entries: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not (self.higher and self.lower and not self.task) and not (self.task and self.entries and not self.higher):
            raise ConfigError(
                f"order of {self.source[:60]} must have higher and lower, or task and entries: "
                "e.g. higher: nope, lower: [rope]"
            )

    @property
    def of_entries(self) -> list[str | None]:
        """Entries that it names."""
        return [self.higher, *self.lower, *self.entries]

    @property
    def of_tasks(self) -> list[str | None]:
        """Tasks that it names."""
        return [self.task, *(self.tasks or ())]


@dataclass(frozen=True, kw_only=True)
class Study:
    """Configuration of `lexbench study`.

    Args:
        name: of the study's yaml.
        recipe: of the trainings from scratch.
        entries: to train and evaluate.
        known: all entries of the yaml; others may start from one that is not evaluated.
        seeds: of the trainings; questions have seed 0.
        tasks: name, n and parameters.
        methods: names, or names with parameters.
        multiples: lengths as multiples of the recipe's trained length.
        corpora: texts of the trainings; None: those of `lexbench train`.
        corpus: texts of the questions.
        published: rows of published tables, and the entries to compare with them.
        compare: task whose protocol the published tables have.
        predictions: stated before the runs.
        orders: by accuracy, stated before the runs; a study with some has a page of its own (`page/orders.py`).
        seconds: measured time of a training and of an evaluation on one idle core.
        results: folder.
        workers: processes at once.
    """

    name: str
    recipe: str
    entries: Sequence[StudyEntry]
    known: Mapping[str, StudyEntry]
    seeds: Sequence[int]
    tasks: Sequence[Mapping[str, Any]]
    methods: Sequence[Any]
    multiples: Sequence[float]
    corpora: Sequence[Any] | None
    corpus: str
    published: Sequence[Mapping[str, Any]]
    compare: str
    predictions: Sequence[Prediction]
    orders: Sequence[PredictedOrder]
    seconds: Mapping[str, float]
    results: Path
    workers: int

    @property
    def models(self) -> list[tuple[StudyEntry, int]]:
        """Entries and seeds in the order of their trainings: first one seed of all entries, then the next seed."""
        return [
            (entry, seed) for seed in self.seeds for entry in self.entries if entry.seeds is None or seed in entry.seeds
        ]

    @property
    def trained_length(self) -> int:
        """Trained length, in tokens, of the models trained from scratch."""
        return int(registry.read_named_config("recipe", self.recipe)["trained_length"])

    @property
    def lengths(self) -> list[int]:
        """Lengths of the evaluation, in tokens, ascending."""
        return sorted({round(multiple * self.trained_length) for multiple in self.multiples})


REQUIRED_SETTINGS = ("recipe", "seeds", "methods", "multiples", "tasks", "entries")
OPTIONAL_SETTINGS = ("n", "corpora", "corpus", "finetuned", "published", "compare", "predictions", "orders", "seconds")


def read_study(config: Mapping[str, Any], name: str) -> Study:
    """Read the study from a composed config; ConfigError if anything in it is wrong."""
    stated: Mapping[str, Any] = config["study"]
    if lacking := [key for key in REQUIRED_SETTINGS if key not in stated]:
        raise ConfigError(f"study {name} lacks {lacking[0]}: see parts/lab/configs/study/encodings.yaml")
    if odd := [key for key in stated if key not in REQUIRED_SETTINGS + OPTIONAL_SETTINGS]:
        raise ConfigError(f"unknown key study.{odd[0]}: choose from {', '.join(REQUIRED_SETTINGS + OPTIONAL_SETTINGS)}")
    for key in ("entries", "tasks"):
        _checked_list(key, stated[key])
    further = _checked_mapping("finetuned", stated.get("finetuned") or {})
    first = [_build_entry(each) for each in stated["entries"]]
    second = [
        _build_entry(
            {"recipe": further["recipe"], "family": "finetuned", **_checked_mapping("finetuned.entries", each)}
        )
        for each in further.get("entries", [])
    ]
    known = {entry.name: entry for entry in [*first, *second]}
    if len(known) < len(first) + len(second):
        raise ConfigError(f"study {name} has two entries of one name: rename one")
    for entry in second:
        if entry.start not in known:
            raise ConfigError(f"study entry {entry.name} must start from an entry, got {entry.start}: e.g. start: rope")
    chosen = _chosen_names("encodings", config["encodings"], list(known))
    if not isinstance(config["finetuned"], bool):
        raise ConfigError(f"study's finetuned must be true or false, got {config['finetuned']!r}: e.g. finetuned=true")
    usual = [*first, *(second if config["finetuned"] else [])]
    if config["methods"] is not None:  # methods on the command line override those of an entry
        known = {entry.name: replace(entry, methods=None) for entry in known.values()}
        usual = [known[entry.name] for entry in usual]
    study = Study(
        name=name,
        recipe=stated["recipe"],
        entries=usual if chosen is None else [known[each] for each in chosen],
        known=known,
        seeds=_refuse_duplicates("seeds", _checked_whole_numbers("seeds", _override(config, stated, "seeds"))),
        tasks=_tasks(config, stated),
        methods=_refuse_duplicates("methods", _override(config, stated, "methods")),
        multiples=_checked_multiples(_override(config, stated, "multiples")),
        corpora=stated.get("corpora"),
        corpus=stated.get("corpus") or "stdlib",
        published=list(stated.get("published") or []),
        compare=stated.get("compare") or "last_segment",
        predictions=read_predictions(Prediction, stated.get("predictions"), "prediction"),
        orders=read_predictions(PredictedOrder, stated.get("orders"), "order"),
        seconds=dict(stated.get("seconds") or {}),
        results=Path(config["results"] or Path("runs") / name),
        workers=_checked_whole_numbers("workers", [config["workers"]], least=1)[0],
    )
    check_folder("results", study.results, "results=DIR")
    _check_study(study)
    return study


def as_named_mapping(entry: Any) -> dict[str, Any]:
    """Mapping with the key `name`, of a name (`kerple`) or a mapping with one (`{name: kerple, form: power}`)."""
    given = {"name": entry} if isinstance(entry, str) else dict(entry) if isinstance(entry, Mapping) else {}
    if "name" not in given:
        raise ConfigError(f"study needs a name, got {entry!r}: e.g. {{name: kerple, form: power}}")
    return given


def _build_entry(given: Mapping[str, Any]) -> StudyEntry:
    _checked_mapping("entries", given)
    name = as_named_mapping(given)["name"]  # an entry's own parameter, which yamls of the registry do not have
    entry: StudyEntry = objects.build_object({"_target_": f"{__name__}.StudyEntry", **given}, "entry", name=name)
    return entry


def read_predictions(kind: type[StatementT], given: Any, noun: str) -> list[StatementT]:
    """Predictions or orders of a yaml or of a page's models.json; ConfigError if one is malformed."""
    if not isinstance(given, Sequence | None) or isinstance(given, str):
        raise ConfigError(f"study's {noun}s must be a list, got {given!r}: see parts/lab/configs/study/laboratory.yaml")
    return [kind(**checked_field_values(kind, each, f"{noun} {place}")) for place, each in enumerate(given or (), 1)]


def _checked_mapping(setting: str, given: Any) -> Mapping[str, Any]:
    if not isinstance(given, Mapping):
        raise ConfigError(
            f"study's {setting} must be keys and values, got {given!r}: see parts/lab/configs/study/encodings.yaml"
        )
    return given


def _override(config: Mapping[str, Any], stated: Mapping[str, Any], setting: str) -> list[Any]:
    """A list from the command line, else from the yaml."""
    return _checked_list(setting, stated[setting] if config[setting] is None else config[setting])


def _checked_list(setting: str, value: Any) -> list[Any]:
    """The value if it is a non-empty list, else ConfigError."""
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise ConfigError(f"study's {setting} must be a list, got {value!r}: e.g. {setting}=[{value}]")
    if not value:
        raise ConfigError(
            f"study's {setting} must not be empty, got []: leave it out, or give null for the study's own"
        )
    return list(value)


def _refuse_duplicates(setting: str, values: Sequence[Any]) -> list[Any]:
    """The list, or ConfigError if it has an item twice."""
    for place, each in enumerate(values):
        if each in values[:place]:
            raise ConfigError(f"study's {setting} must differ, got {each!r} twice: drop one")
    return list(values)


def _tasks(config: Mapping[str, Any], stated: Mapping[str, Any]) -> list[dict[str, Any]]:
    tasks = [{"n": stated.get("n", 32), **as_named_mapping(task)} for task in stated["tasks"]]
    names = list(dict.fromkeys(task["name"] for task in tasks))
    for name in names:
        # A step is known by the names of its tasks, which have one n.
        if len(sizes := list(dict.fromkeys(task["n"] for task in tasks if task["name"] == name))) > 1:
            raise ConfigError(f"study's task {name} must have one n, got {sizes[0]} and {sizes[1]}: give all forms one")
    chosen = _chosen_names("tasks", config["tasks"], names) or names
    least = {} if config["n"] is None else {"n": _checked_whole_numbers("n", [config["n"]], least=1)[0]}
    return [{**task, **least} for name in chosen for task in tasks if task["name"] == name]


def _chosen_names(setting: str, names: Any, choices: Sequence[str]) -> list[str] | None:
    """The user's choice of names; None without one."""
    if names is None:
        return None
    for name in _checked_list(setting, names):
        if name not in choices:
            raise ConfigError(f"unknown {setting} {name!r}: choose from {', '.join(choices)}")
    return _refuse_duplicates(setting, names)


def _checked_whole_numbers(setting: str, values: Sequence[Any], least: int = 0) -> list[int]:
    for each in values:
        if not is_whole(each, least):
            raise ConfigError(f"study's {setting} must be whole numbers of at least {least}, got {each!r}")
    return list(values)


def _checked_multiples(values: Sequence[Any]) -> list[float]:
    for each in values:
        if isinstance(each, bool) or not isinstance(each, int | float) or not 0 < each < math.inf:
            raise ConfigError(f"study's multiples must be numbers above 0, got {each!r}: e.g. multiples=[1,2,4]")
    return list(values)


def _check_study(study: Study) -> None:
    """ConfigError for names that are not in the registry, and for lengths below 2 tokens."""
    trained = registry.read_named_config("recipe", study.recipe).get("trained_length")
    if not isinstance(trained, int):
        raise ConfigError(
            f"study.recipe must state a trained_length, {study.recipe} has {trained}: e.g. study.recipe=zoo"
        )
    for multiple in study.multiples:
        if round(multiple * trained) < 2:
            raise ConfigError(f"study's multiples must give at least 2 tokens, got {multiple} of {trained}: raise it")
    for entry in study.entries:
        registry.read_named_config("recipe", entry.recipe or study.recipe)
        if entry.spec:
            registry.read_named_config("encoding", entry.spec["name"])
        for method in entry.methods or study.methods:
            registry.read_named_config("method", as_named_mapping(method)["name"])
    for task in study.tasks:
        registry.read_named_config("task", task["name"])
    registry.read_named_config("task", study.compare)
    every: list[Prediction | PredictedOrder] = [*study.predictions, *study.orders]
    for stated in every:
        for name in stated.of_entries:
            if name is not None and name not in study.known:
                known = ", ".join(study.known)
                raise ConfigError(f"unknown entry {name[:60]!r} of what is predicted: choose from {known}")
        for name in stated.of_tasks:
            if name is not None:
                registry.read_named_config("task", name)
    for corpus in (study.corpus, *(as_named_mapping(corpus)["name"] for corpus in study.corpora or ())):
        registry.read_named_config("corpus", corpus)
