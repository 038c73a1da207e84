"""One task of a results file as cells with their samples: one, or one for each length that the task asks for."""

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lexbench.core.record import Cell, Sample
from lexbench.integrations.lm_eval.results.examples import Example, Tokens, examples
from lexbench.integrations.lm_eval.results.files import Results, mapping, read_samples, whole
from lexbench.integrations.lm_eval.results.metrics import Metric, metrics, scores, unfit
from lexbench.integrations.lm_eval.results.setup import Setup, said
from lexbench.stats.wording import plain, several


@dataclass(frozen=True, kw_only=True, eq=False)
class Lengths:
    """How long prompts are, where results do not say it."""

    stated: int | None
    """Tokens, by the user."""
    tokens: Tokens | None
    """Counts; None: nobody does."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Read:
    """One task, as it was logged."""

    results: Results
    setup: Setup
    task: str
    kind: str
    """Its output_type."""
    every: Sequence[Example]
    fit: Sequence[Metric]
    """Metrics that may stand as scores of samples."""
    left_out: Sequence[str]
    """The others with the reason, a line a reason."""
    keys: Sequence[str]
    """All metrics, as the harness writes them."""

    def about(self, name: str) -> Any:
        """What a part of the results says of the task; None where it says nothing."""
        return self.results.section(name).get(self.task)


def read(results: Results, setup: Setup, task: str, lengths: Lengths) -> Read:
    """A task with its examples, and the metrics that may stand in a table.

    Raises ValueError where nothing is logged, what is logged is amiss, and where lost tokens cannot be seen.
    """
    name = plain(task)
    file = results.samples.get(task)
    stated = mapping(results.section("results")[task])
    keys = [key for key in stated if "," in key and not key.partition(",")[0].endswith("_stderr")]
    if file is None:
        reason = "an aggregate alone has no interval and cannot be paired"
        raise ValueError(f"{name} of {results.file} has no samples, and {reason}: run lm_eval with --log_samples")
    if not keys:
        raise ValueError(f"{name} of {results.file} has no metrics: run it again, with lm_eval 0.4 or newer")
    if setup.cut.get(task) and lengths.tokens is None:
        lost = several(setup.cut[task], "request")
        raise ValueError(f"{lost} of {name} lost their first tokens: give --tokenizer DIR, which finds them")
    kind = said(mapping(results.section("configs").get(task)).get("output_type"))
    every = examples(read_samples(file), keys, kind, lengths.tokens)
    count = mapping(results.section("n-samples").get(task)).get("effective", stated.get("sample_len", len(every)))
    if count != len(every):
        raise ValueError(f"samples {file} hold {len(every)} examples, the results {said(count)}: take those of one run")
    better = mapping(results.section("higher_is_better").get(task))
    fit: list[Metric] = []
    odd: dict[str, list[str]] = {}
    for metric in metrics(every, keys):
        if why := unfit(metric, stated[metric.key], better.get(metric.name)):
            odd.setdefault(why, []).append(metric.key.removesuffix(",none"))
        else:
            fit.append(metric)
    return Read(
        results=results,
        setup=setup,
        task=task,
        kind=kind,
        every=every,
        fit=fit,
        left_out=[f"{name} {plain(', '.join(names))}: {why}" for why, names in odd.items()],
        keys=keys,
    )


def cells(task: Read, lengths: Lengths) -> Iterator[tuple[Cell, list[Sample]]]:
    """The cells of a task with their samples; none where no metric is left."""
    for asked in sorted({each.asked for each in task.every}, key=lambda each: each or 0):
        group = [example for example in task.every if example.asked == asked]
        fit = [metric for metric in task.fit if metric.of(asked)]
        if fit:
            length = _length(task, group, asked, lengths)
            yield _cell(task, group, length, lengths), [_sample(task, example, fit, length) for example in group]


def _length(task: Read, group: Sequence[Example], asked: int | None, lengths: Lengths) -> int:
    """What the task asks for, else what the method was set to, else what the user says, else the longest prompt."""
    longest = max((example.tokens or 0 for example in group), default=0)
    known = asked or task.setup.length or lengths.stated or longest
    where = f"{plain(task.task)} of {task.results.file}"
    if not known:
        raise ValueError(f"{where} does not say how long its prompts are: give --tokenizer DIR, or --length N")
    if known == lengths.stated and longest > known:
        raise ValueError(f"{where} has prompts of {longest} tokens: --length must be no less, got {known}")
    return known


def _sample(task: Read, example: Example, fit: Sequence[Metric], length: int) -> Sample:
    limit = task.setup.limit or math.inf
    read = (example.tokens or 0) - (task.kind != "generate_until")  # the last token that is scored is not read
    answers = {"answers": example.answers} if example.output is not None else {}
    return Sample(
        index=example.index,
        cluster=example.cluster,
        tokens=example.tokens or length,
        truncated=read > limit,
        scores=scores(example, fit),
        chance=example.chance,
        statistics={} if example.option_nll is None else {"option_nll": example.option_nll},
        prompt=example.prompt,
        output=example.output,
        facts={**example.expected, **answers},
    )


def _cell(task: Read, group: Sequence[Example], length: int, lengths: Lengths) -> Cell:
    setup, config = task.setup, task.results.section("config")
    set_to = setup.length if setup.attention else None  # where nothing is changed, it is the same at any length
    by_length = set_to is not None and group[0].asked is not None
    seed = config.get("fewshot_seed") or config.get("random_seed")
    identity = {
        "model": setup.model,
        "method": {**setup.method, "set_to": set_to, "samples": _contents(group)},
        "attention": setup.attention,
        "task": _asked(task),
        "corpus": None,
        "backend": setup.backend,
        "seeds": {name: config.get(f"{name}_seed") for name in ("random", "numpy", "torch")},
        "counted": lengths.tokens is not None,
        "length": length,
        "seed": whole(seed) or 0,
        "n": len(group),
    }
    return Cell(
        model=str(setup.model["name"]),
        method=f"{setup.label} at {set_to}" if by_length else setup.label,
        task=f"lm_eval:{plain(task.task)}",
        length=length,
        trained_length=int(setup.model["trained_length"]),
        seed=whole(seed) or 0,
        n=len(group),
        protocol=_protocol(task, lengths),
        backend=str(setup.backend["name"]),
        dtype=str(setup.backend["dtype"]),
        kernel=str(setup.backend["kernel"]),
        corpus=None,
        version=setup.version,
        identity=json.loads(json.dumps(identity, default=str)),
    )


def _asked(task: Read) -> Mapping[str, Any]:
    """What the questions and their scores depend on."""
    content, config = task.results.content, mapping(task.about("configs"))
    return {
        "name": f"lm_eval:{plain(task.task)}",
        "version": said(task.about("versions")),
        "harness": said(content.get("lm_eval_version")),
        "kind": task.kind,
        "fewshot": task.about("n-shot"),
        "generation": [config.get("generation_kwargs"), task.results.section("config").get("gen_kwargs")],
        "description": _hash(config.get("description")),
        "system_instruction": _hash(content.get("system_instruction")),
        "chat_template": _hash(content.get("chat_template")),
        "turns": content.get("fewshot_as_multiturn"),
    }


def _contents(group: Sequence[Example]) -> str:
    """Hash of the lines behind a cell: the same answers to the same questions are one, whatever file holds them."""
    return hashlib.sha256(b"".join(line for example in group for line in sorted(example.hashes))).hexdigest()[:16]


def _hash(text: Any) -> str | None:
    return hashlib.sha256(str(text).encode(errors="replace")).hexdigest()[:8] if text else None


def _protocol(task: Read, lengths: Lengths) -> str:
    """The harness, the task, and how it was asked, in one line."""
    asked = _asked(task)
    shots, turns = asked["fewshot"], " in turns" if asked["turns"] else ""
    names = {f"{each.name} as {each.label}" if each.renamed else each.label for each in task.fit}
    parts = [
        f"lm-evaluation-harness {asked['harness']}",
        f"task {plain(task.task)} version {asked['version']} ({asked['kind']})",
        f"{said(shots)}-shot{turns}",
        f"scored by {', '.join(sorted(names))}",
        f"chat template {asked['chat_template']}" if asked["chat_template"] else "no chat template",
        f"system instruction {asked['system_instruction']}" if asked["system_instruction"] else "",
        "" if lengths.tokens else "tokens not counted",
    ]
    return ", ".join(part for part in parts if part)
