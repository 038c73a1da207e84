"""`lexbench trace --watch`: measure checkpoints as a training writes them, and show the trace after each."""

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lexbench.core.errors import ConfigError
from lexbench.parts.search.trace.checkpoints import Checkpoint, checkpoints_of_words, files_of
from lexbench.parts.search.trace.measure import Bench, CheckpointRow
from lexbench.parts.search.trace.settings import Settings
from lexbench.parts.search.trace.trace import Traced, order_rows, summarise_checkpoints
from lexbench.parts.search.trace.training_order import order_checkpoints

LOOK_INTERVAL_SECONDS = 15.0
"""Seconds between two looks for checkpoints; a folder is read if its files have not changed in between."""

Files = list[list[object]]


def watch(
    words: Sequence[str],
    *,
    tasks: Sequence[Mapping[str, Any]],
    corpus: Mapping[str, Any],
    backend: Mapping[str, Any],
    settings: Settings,
    show: Callable[[Traced], None],
    wait: Callable[[], None] = lambda: time.sleep(LOOK_INTERVAL_SECONDS),
) -> None:
    """Measure checkpoints as they appear, and show the trace after each, until KeyboardInterrupt.

    `wait` passes the time between two looks. A folder whose files change between two looks is still being written. A
    measured checkpoint stays in the trace when its folder is deleted or written again.

    Raises ConfigError for a mistake at the first look, and for a checkpoint that cannot be read though it is complete.
    """
    if not words:
        raise ConfigError("--watch needs to know where checkpoints appear: e.g. --watch 'out/checkpoint-*'")
    bench = Bench(settings.folder, tasks, corpus, backend, settings)
    measured: dict[tuple[str, str | None], CheckpointRow] = {}
    seen: dict[Checkpoint, Files] = _look(words, settings, [])
    shown: list[object] = []
    mistakes: list[str] = []
    while True:
        wait()
        try:
            now = _look(words, settings, [row.checkpoint for row in measured.values()])
        except ConfigError as error:  # of a folder that came or changed after the first look: those measured stay
            mistakes.append(str(error))
            if mistakes.count(str(error)) == 2:  # a file that is being written is whole at the next look
                print(f"waiting: {error}", file=sys.stderr)
            continue
        for each in (each for each, files in now.items() if seen.get(each) == files):
            if (row := _measure(bench, each, now[each])) is not None:
                measured[each.path, each.revision] = row
        seen = now
        rows, rule = order_rows([*measured.values()], settings)
        state: list[object] = [(row.name, [cell.id for cell in row.kept.values()]) for row in rows]
        if rows and state != shown:
            shown = state
            show(summarise_checkpoints(rows, rule))


def _look(words: Sequence[str], settings: Settings, measured: Sequence[Checkpoint]) -> dict[Checkpoint, Files]:
    """Checkpoints that are there, with their files; ConfigError where their order, with those measured, is open."""
    try:
        now = {each: files_of(each) for each in checkpoints_of_words(words, waiting=True)}
    except FileNotFoundError:  # a folder was deleted while it was read: the next look does not find it
        return {}
    gone = [each for each in measured if (each.path, each.revision) not in {(it.path, it.revision) for it in now}]
    order_checkpoints([*gone, *now], settings.order)
    return now


def _measure(bench: Bench, checkpoint: Checkpoint, files: Files) -> CheckpointRow | None:
    """Answers of a checkpoint; None where its files were deleted or written while it was read."""
    try:
        return bench.measure_checkpoint(checkpoint)
    except Exception:
        if _files_now(checkpoint) == files:
            raise
        return None


def _files_now(checkpoint: Checkpoint) -> Files | None:
    try:
        return files_of(checkpoint)
    except FileNotFoundError:
        return None
