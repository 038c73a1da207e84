"""`lexbench tune`: which method, with which parameters, is best for this model at this length?

All candidates get the same questions, better ones more of them (successive halving). The best ones are measured again
on fresh questions. All samples are in run folders under `out`. Draws and rungs depend only on the seed and the samples,
so repeating the command measures nothing twice and resumes.
"""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from lexbench.backends import Backend
from lexbench.backends.chance import Chance
from lexbench.checkpoints.checkpoint import folder_of
from lexbench.core import registry
from lexbench.core.errors import ConfigError
from lexbench.core.files import check_folder, check_writable, read_object, write_text
from lexbench.core.model import Model
from lexbench.core.record import Refused
from lexbench.core.task import Tokenizer
from lexbench.core.version import __version__
from lexbench.methods.composition import method_config, read_method
from lexbench.parts.search.journal import describe_changes, measuring_conditions
from lexbench.parts.search.tune import page
from lexbench.parts.search.tune.bench import CandidateBench, TaskAtLength, TuneClock, seconds_spent
from lexbench.parts.search.tune.result import TuneResult
from lexbench.parts.search.tune.search import TuneSearch
from lexbench.parts.search.tune.settings import TuneSettings
from lexbench.parts.search.tune.space import default_configs, parameters_of
from lexbench.report.wording import floor_text
from lexbench.runner.answers import answer_question, sample_of_answer
from lexbench.runner.backend_pool import backend_for_job
from lexbench.runner.cells import BackendFacts
from lexbench.runner.job import Job
from lexbench.runner.plan import write_job_file
from lexbench.runner.questions import questions_or_reason
from lexbench.runner.verify import Preflight
from lexbench.stats import floors
from lexbench.stats.pairs import outcomes_of_samples
from lexbench.store.store import Store

SEARCH_TIME_SHARE = 2 / 3
"""Share of the time for the search; the rest is for the finalists."""


def tune(*, model: Model, corpus: Mapping[str, Any], backend: Mapping[str, Any], settings: TuneSettings) -> TuneResult:
    """Search, measure the finalists on fresh questions, and write result.md, .csv, .json and candidates.csv.

    A candidate is measured as it would be deployed: its Attention at `length` is used for shorter texts, too, so the
    price inside the trained length is that of the deployment.

    Args:
        model: must have a checkpoint.
        corpus: config of the texts, with its name.
        backend: config of the backend that runs the model.
        settings: of the tune.

    Raises ConfigError for a wrong configuration or a folder of another tune, Refused if the texts are too short, no
    candidate can be measured, or a ranking in the folder would be replaced by none.
    """
    started = time.monotonic()
    out, length = _check_settings(model, settings)
    job = _build_job(model, corpus, backend, settings, out, length)
    configs = _method_configs(model, settings, length)
    parameters = [parameters_of(config, settings.space, settings.common, model, length) for config in configs]
    _check_tasks(job)
    before = _previous_config(out)
    with backend_for_job(model, backend, length) as loaded:
        settings, job = _with_texts(settings, job, loaded.tokenizer)
        _claim_folder(out, before, _tune_config(job, loaded, settings))
        _write_jobs(job, loaded, configs)

        clock = TuneClock(seconds_spent(out / "search") + seconds_spent(out / "final"), started)
        done = _has_finished_with(out, settings)
        preflight = Preflight(out, loaded, __version__)
        bench = CandidateBench(job, loaded, out / "search", settings.seed, length, clock, preflight)
        search = TuneSearch(bench, job, settings, length, done and settings.seconds is not None)
        if settings.seconds is not None:
            clock.limit = 0.0 if done else SEARCH_TIME_SHARE * settings.seconds
        if unspoken := search.why_silent():
            bench.write_records()
            result = TuneResult(
                model=model,
                settings=settings,
                length=length,
                needles=None,
                rows=(),
                fresh=0,
                planned=0,
                seen=0,
                tried=search.ranked_candidates(),
                rounds=0,
                answers=bench.count_answers(),
                seconds=clock.spent,
                file=out / "result.md",
                unspoken=unspoken,
            )
            page.write_result(result, out)
            return result
        # Also where all is known: the samples in the folder give the same draws and rungs again.
        search.run(list(zip(configs, parameters, strict=True)))
        if settings.seconds is not None:
            clock.limit = 0.0 if done else settings.seconds
        final, planned = _fresh_bench(job, loaded, search, clock, preflight, length)
        rows, fresh = search.rank_on_fresh_questions(final, planned)
        unspoken = search.unspoken(bench, final)
    for each in (bench, final):
        each.write_records()
    result = TuneResult(
        model=model,
        settings=settings,
        length=length,
        needles=search.needles.task.label if search.needles else None,
        rows=rows,
        fresh=fresh,
        planned=planned,
        seen=_count_seen_texts(bench, final, search.text, fresh),
        tried=search.ranked_candidates(),
        rounds=search.rounds,
        answers=bench.count_answers() + final.count_answers(),
        seconds=clock.spent,
        file=out / "result.md",
        unspoken=unspoken,
    )
    result = replace(result, floored=_reached_floor(result, search, bench, final))
    page.write_result(result, out)
    return result


def _check_settings(model: Model, settings: TuneSettings) -> tuple[Path, int]:
    """Folder and length; ConfigError for wrong settings."""
    folder_of(model, weights=False)
    length = settings.length
    if length is None or length <= model.trained_length:
        got = "" if length is None else f", got {length}"
        raise ConfigError(
            f"tune needs a length above the trained length {model.trained_length}{got}: "
            f"shorter texts need no method, give length={4 * model.trained_length}"
        )
    if settings.budget is None:
        raise ConfigError("tune needs a budget: give budget=30min, 2h, 90s, or a number of candidates")
    assert settings.seconds or settings.candidates, "a budget is a time or a number of candidates"
    if not settings.out:
        raise ConfigError(f"tune needs a folder for its results: give out=runs/tune_{model.name}_{length}")
    out = Path(settings.out)
    check_folder("out", out, "out=DIR")
    check_writable("out", out, "give another out=DIR")
    for name in settings.space:
        registry.read_named_config("method", name)
    return out, length


def _build_job(
    model: Model, corpus: Mapping[str, Any], backend: Mapping[str, Any], settings: TuneSettings, out: Path, length: int
) -> Job:
    """The job of all cells; the first task is the text's, the others are candidates for the needles."""
    return Job.of(
        model=model,
        methods=[method_config("none")],
        tasks=[_task_config("nll", settings.nll), *(_task_config("needles", entry) for entry in settings.needles)],
        corpus=corpus,
        backend=backend,
        lengths=[model.trained_length, length],
        multiples=None,
        n=settings.n,
        seeds=[settings.seed, settings.seed + 1],
        results=out,
    )


SETTING_EXAMPLES = {"nll": "nll=last_segment", "needles": "needles=[needle,passkey]"}
"""Examples for error messages."""


def _task_config(setting: str, entry: Any) -> dict[str, Any]:
    """The config of one task; ConfigError for anything else."""
    given = {"name": entry} if isinstance(entry, str) else entry
    if not isinstance(given, Mapping) or "name" not in given:
        raise ConfigError(f"tune's {setting} must name a task, got {entry!r}: e.g. {SETTING_EXAMPLES[setting]}")
    config = {**registry.read_named_config("task", str(given["name"])), **given}
    if "suite" in config:
        raise ConfigError(
            f"tune's {setting} must name a single task, got the suite {given['name']}: e.g. {SETTING_EXAMPLES[setting]}"
        )
    return config


def _check_tasks(job: Job) -> None:
    """ConfigError for a task without the needed outcome (likelihoods or accuracy); Refused if the text has no question.

    Tried with one question on the chance backend, which needs no weights.
    """
    chance = Chance(job.model)
    for place, task in enumerate(job.tasks):
        setting, wanted = ("needles", "an accuracy") if place else ("nll", "likelihoods")
        if task.obj.attention(job.lengths[-1]).slots():
            raise ConfigError(
                f"tune's {setting} must leave positions to methods, got {task.label}: e.g. {SETTING_EXAMPLES[setting]}"
            )
        try:
            question = task.obj.questions(chance.tokenizer, job.model.trained_length, 1, job.seeds[0])[0]
            sample = sample_of_answer(task.obj, chance.tokenizer, question, answer_question(chance, question))
        except Refused:
            if place:
                continue  # the search skips such needles, too
            raise
        gives = ["likelihoods" if sample.nll is not None else "nothing"] if not sample.scores else list(sample.scores)
        if sample.failed is None and ("accuracy" if place else "likelihoods") not in gives:
            raise ConfigError(
                f"tune's {setting} must give {wanted}, got {task.label}, which gives {', '.join(gives)}: "
                f"e.g. {SETTING_EXAMPLES[setting]}"
            )


def _with_texts(settings: TuneSettings, job: Job, tokenizer: Tokenizer) -> tuple[TuneSettings, Job]:
    """The settings and the job with as many questions as the texts have, at most `n`; Refused below `first` or 2.

    `n` is halved until there are as many at both lengths, so that a file or a folder of texts is enough as it is.
    """
    text, least, count = job.tasks[0], max(2, min(settings.first, settings.n)), settings.n
    while True:
        found = [questions_or_reason(text, tokenizer, length, count, settings.seed)[1] for length in job.lengths]
        refused = next(filter(None, found), None)
        if refused is None:
            return replace(settings, n=count), replace(job, n=count)
        if count == least:
            raise refused
        count = max(least, count // 2)


def _method_configs(model: Model, settings: TuneSettings, length: int) -> list[dict[str, Any]]:
    """Configs of the methods to tune; Refused if no method changes frequencies or distances."""
    if settings.methods is None:
        if configs := default_configs(model, length, list(settings.space)):
            return configs
        raise Refused(f"no method changes frequencies or distances of {model.name} at {length} tokens: nothing to tune")
    configs = [method_config(entry) for entry in settings.methods]
    for config in configs:
        read_method(config)  # an error of the user is raised now, not recorded as a failed candidate
    if all(config["name"] == "none" for config in configs):
        raise ConfigError("tune needs a method besides none, which it measures anyway: e.g. methods=[yarn]")
    return configs


def _tune_config(job: Job, backend: Backend, settings: TuneSettings) -> dict[str, Any]:
    """Everything that samples and candidates depend on; not the budget, which only limits their number."""
    own = {each.name: getattr(settings, each.name) for each in fields(settings) if each.name not in ("budget", "out")}
    about = {**measuring_conditions(backend), "corpus": f"{job.corpus.label} {job.corpus.fingerprint}"}
    whole: dict[str, Any] = json.loads(json.dumps({**about, **own}, default=dict))
    return whole


def _previous_config(out: Path) -> dict[str, Any] | None:
    """The config of the tune in the folder; None in a new folder. ConfigError if it cannot be read."""
    file = out / "settings.json"
    return read_object(file, f"remove {out}, or give another out=") if file.exists() else None


def _claim_folder(out: Path, before: Mapping[str, Any] | None, config: Mapping[str, Any]) -> None:
    """Write the config into a new folder; ConfigError, with the differences, in a folder of another tune."""
    if before is None:
        write_text(out / "settings.json", json.dumps(config, indent=1) + "\n")
        return
    if changed := describe_changes(before, config):
        raise ConfigError(f"{out} holds another tune, with {changed}: give another out=, or remove it")


def _write_jobs(job: Job, backend: Backend, configs: Sequence[Mapping[str, Any]]) -> None:
    """Write the job of both run folders; their cells are not known yet, they depend on the samples."""
    for name, seed in zip(("search", "final"), job.seeds, strict=True):
        config = {**job.config, "method": [method_config("none"), *configs], "seeds": [seed]}
        write_job_file(Store(job.results / name), replace(job, config=config), BackendFacts.of(backend))


def _has_finished_with(out: Path, settings: TuneSettings) -> bool:
    """Whether a tune with the same budget has finished: then nothing more is measured, even if time was left."""
    try:
        return bool(read_object(out / "result.json", "")["budget"] == settings.budget)
    except (OSError, ValueError, KeyError):
        return False


def _fresh_bench(
    job: Job, loaded: Backend, search: TuneSearch, clock: TuneClock, preflight: Preflight, length: int
) -> tuple[CandidateBench, int]:
    """The bench of fresh questions and their number: as planned, or `n` where the texts do not give as many."""
    settings, out = search.settings, job.results / "final"
    for count in dict.fromkeys([search.planned_questions(), settings.n]):
        bench = CandidateBench(replace(job, n=count), loaded, out, settings.seed + 1, length, clock, preflight)
        try:
            for part in (search.text, search.inside, *([search.needles] if search.needles else [])):
                bench.questions(part)
            break
        except Refused:
            if count == settings.n:
                raise
    return bench, count


def _reached_floor(result: TuneResult, search: TuneSearch, bench: CandidateBench, final: CandidateBench) -> str | None:
    """Floor that the winner does not beat on the text at the length; None where it does, or nothing has won."""
    if result.winner is None:
        return None
    samples = (final if result.rows else bench).samples(result.winner, search.text)
    standing = floors.standing_of_outcomes(
        outcomes_of_samples(samples, "nll"), "nll", floors.floors_of_samples(samples, "nll")
    )
    return floor_text(standing.floor, standing.floor_of) if floors.at_floor(standing) else None


def _count_seen_texts(bench: CandidateBench, final: CandidateBench, text: TaskAtLength, fresh: int) -> int:
    """Number of fresh texts from documents that the search has read."""
    if not fresh:
        return 0
    read = {question.cluster for question in bench.questions(text)}
    return sum(question.cluster in read for question in final.questions(text)[:fresh])
