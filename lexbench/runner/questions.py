"""Questions of cells, made once."""

import re
import threading
from collections.abc import Sequence
from dataclasses import replace

from lexbench.core.fence import check_questions
from lexbench.core.guard import plugin_guard
from lexbench.core.record import Refused
from lexbench.core.task import AnyQuestion, Generate, Outline, Task, Tokenizer
from lexbench.runner.cells import Component, OpenCell
from lexbench.runner.prompt_factors import with_factors

MAX_KEPT_TOKENS, MAX_KEPT_CELLS = 1 << 24, 64
"""Tokens (128 MiB) and cells whose questions are kept."""
Key = tuple[Task, Tokenizer, int, int, int]


class Questions:
    """Makes the questions of a cell once, for the plan, the loop and all methods; the oldest are dropped first."""

    def __init__(self) -> None:
        self._made: dict[Key, tuple[Sequence[AnyQuestion], Refused | None]] = {}
        self._tokens = 0
        self._lock = threading.Lock()

    def of(
        self, task: Task, tokenizer: Tokenizer, length: int, n: int, seed: int
    ) -> tuple[Sequence[AnyQuestion], Refused | None]:
        """The questions of a cell; or none, and the reason."""
        key = (task, tokenizer, length, n, seed)
        with self._lock:
            # Under the lock: several workers ask for the same questions at once, and one of them makes these.
            if key not in self._made:
                made: Sequence[AnyQuestion]
                refused: Refused | None
                try:
                    with plugin_guard(f"{type(task).__name__}.questions"):
                        thought = getattr(tokenizer, "thought", 0)
                        made, refused = task.questions(tokenizer, length - thought, n, seed), None
                        if thought:
                            if not all(isinstance(question, Generate) for question in made):
                                raise Refused("a thought needs an answer that is written: set backend.thinking=none")
                            made = [replace(q, thought=thought) if isinstance(q, Generate) else q for q in made]
                        check_questions(made, tokenizer, length)
                except Refused as refusal:
                    # Without its frames, which hold the texts that it was made of.
                    made, refused = [], refusal.with_traceback(None)
                self._made[key] = made, refused
                self._tokens += len(made) * length
                while len(self._made) > 1 and (self._tokens > MAX_KEPT_TOKENS or len(self._made) > MAX_KEPT_CELLS):
                    self._drop(next(iter(self._made)))
            return self._made[key]

    def _drop(self, key: Key) -> None:
        dropped, _ = self._made.pop(key)
        self._tokens -= len(dropped) * key[2]

    def clear(self) -> None:
        """Forget all."""
        self._made, self._tokens = {}, 0


made_once = Questions()


def questions_or_reason(
    task: Component, tokenizer: Tokenizer, length: int, n: int, seed: int
) -> tuple[Sequence[AnyQuestion], Refused | None]:
    """The questions of a cell; or none, and the reason, which names the task as the user did."""
    made, refused = made_once.of(task.obj, tokenizer, length, n, seed)
    return made, refused and _name_as_asked(task, refused)


def _name_as_asked(task: Component, refused: Refused) -> Refused:
    """The refusal of a task, with its name as the user knows it."""
    # One class serves several yamls and knows only its own name: NthNeedle says nth_needle for conflicting_needles.
    own = re.sub(r"(?<!^)(?=[A-Z])", "_", type(task.obj).__name__).lower()
    return type(refused)(re.sub(rf"^{own}\b", task.name, refused.reason))


def outline_or_reason(
    task: Component, tokenizer: Tokenizer, length: int, n: int, seed: int
) -> tuple[Outline | None, Refused | None]:
    """Sizes of the questions of a cell, of which none is written; or none, and the reason that the task foresees."""
    thought = getattr(tokenizer, "thought", 0)
    try:
        with plugin_guard(f"{type(task.obj).__name__}.outline"):
            found = task.obj.outline(tokenizer, length - thought, n, seed)
            assert isinstance(found, Outline), f"a {type(found).__name__} is no outline"
    except Refused as refusal:
        return None, _name_as_asked(task, refusal)
    # A question that writes nothing has no thought.
    more = thought if found.max_new_tokens else 0
    return replace(
        found, length=found.length + more, max_new_tokens=found.max_new_tokens + more, apart=found.apart + more
    ), None


def questions_of(cell: OpenCell, tokenizer: Tokenizer) -> Sequence[AnyQuestion]:
    """The questions of a cell, with the factors of their prompts where the task wants these; Refused without any."""
    step = cell.step
    made, refused = questions_or_reason(step.task, tokenizer, step.length, cell.n, step.seed)
    if refused:
        raise refused
    return with_factors(made, cell.trained_length, cell.length) if step.task.obj.factor_of_prompt else made
