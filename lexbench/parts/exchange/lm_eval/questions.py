"""Questions of a task for a model that another harness runs, and samples from that harness's answers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from lexbench.core import registry, suites
from lexbench.core.errors import ConfigError
from lexbench.core.model import Model
from lexbench.core.record import Sample
from lexbench.core.task import AnyQuestion, Generate, GenerateAnswer, Tokenizer, Tokens
from lexbench.runner.answers import sample_of_answer
from lexbench.runner.cells import Component
from lexbench.runner.job import Job
from lexbench.runner.plan import fit_lengths
from lexbench.runner.questions import questions_or_reason


@dataclass(frozen=True, kw_only=True)
class HarnessCell:
    """A task at one length, as `lexbench run` asks it: the same settings give the same questions."""

    task: Mapping[str, Any]
    """Name and parameters."""
    length: int
    """Tokens of a question: prompt and answer."""
    lengths: Sequence[int] | None = None
    """All lengths of the comparison, on which some tasks depend (targets, places); None: this one."""
    n: int | None = None
    """Questions; None: as in a run."""
    seed: int = 0
    corpus: Mapping[str, Any] | None = None
    """Name and parameters; None: as in a run."""

    @classmethod
    def read(cls, given: Any) -> "HarnessCell":
        """The cell of settings; ConfigError for a setting that is missing or unknown."""
        known = [each.name for each in fields(cls)]
        if not isinstance(given, Mapping) or not {"task", "length"} <= set(given) <= set(known):
            raise ConfigError(f"settings of a task must be task, length, and of {', '.join(known[2:])}; got {given!r}")
        return cls(**given)

    def job(self) -> Job:
        """The job that measures it; ConfigError for wrong settings, or a suite."""
        lengths = [self.length] if self.lengths is None else self.lengths
        if self.length not in lengths:
            raise ConfigError(f"length must be one of lengths {list(lengths)}, got {self.length}: add it")
        task = _with_yaml("task", self.task)
        if "suite" in task:
            names = ", ".join(entry["name"] for entry in suites.expand_suite(task))
            raise ConfigError(f"task {task['name']} is a suite of several: give each by its name, {names}")
        return Job.of(
            # The model is the harness's: questions depend on its tokenizer alone.
            model=Model(name="harness", trained_length=self.length, head_dim=1),
            methods=[],
            tasks=[task],
            corpus=None if self.corpus is None else _with_yaml("corpus", self.corpus),
            backend={},
            lengths=lengths,
            multiples=None,
            n=self.n,
            seeds=[self.seed],
            results=".",
        )

    def questions(self, tokenizer: Tokenizer) -> tuple[Component, Sequence[AnyQuestion]]:
        """The task and its questions in the tokenizer's tokens; Refused where there are none."""
        job = fit_lengths(self.job(), tokenizer)
        [task] = job.tasks
        made, refused = questions_or_reason(task, tokenizer, self.length, job.n, self.seed)
        if refused := job.too_long.get((task.label, self.length), refused):
            raise refused
        return task, made


def prompt_text(tokenizer: Tokenizer, tokens: Tokens) -> str:
    """The text of a prompt for readers, without what begins every context."""
    return tokenizer.decode(tokens[len(tokenizer.prefix) :])


def sample_of_text(task: Component, tokenizer: Tokenizer, question: Generate, text: str) -> Sample:
    """The sample of an answer that another harness has written, without the prompt."""
    ids = tokenizer.encode(text).ids
    return sample_of_answer(
        task.obj,
        tokenizer,
        question,
        GenerateAnswer(tokens=ids, text=text, hit_room=len(ids) >= question.max_new_tokens),
    )


def _with_yaml(group: str, given: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(given, Mapping) or not isinstance(given.get("name"), str):
        raise ConfigError(f"{group} must be a name and parameters, got {given!r}: e.g. {group}: {{name: passkey}}")
    return {**registry.read_named_config(group, given["name"]), **given}
