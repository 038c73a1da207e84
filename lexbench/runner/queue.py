"""The queue of open cells, for one worker or several."""

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from lexbench.core.method_key import MethodKey
from lexbench.core.record import Cell
from lexbench.runner.cells import OpenCell
from lexbench.runner.reuse import samples_hash
from lexbench.store.store import Store


class CellQueue:
    """Open cells, in their order; those that another run measures come last. Safe for several threads.

    A cell waits while a twin of it (same Attention, same questions) is measured: it can take over that one's samples.

    Args:
        cells: all open ones.
        store: of the run folder.
        ascending: a longer cell waits for shorter ones of its method, task and seed.
    """

    def __init__(self, cells: Iterable[OpenCell], store: Store, ascending: bool = False) -> None:
        self._left: dict[str, OpenCell] = {}
        self._of_method: dict[MethodKey, dict[str, OpenCell]] = {}
        """Open cells by method, then by id."""
        self._held: dict[str, OpenCell] = {}
        """Cells that another run measures."""
        self._busy: dict[str, OpenCell] = {}
        self._store, self._ascending = store, ascending
        self.closed = False
        self._changed = threading.Condition()
        for cell in cells:
            self._left[cell.id] = self._of_method.setdefault(cell.method, {})[cell.id] = cell

    def cells(self, by_method: bool = False) -> Iterator[OpenCell]:
        """Cells to measure, until none is left.

        In their order; or `by_method`, for one of several workers: the next of the method that it had last, else of the
        method that no other worker has and that has most cells left.
        """
        method: MethodKey | None = None
        while (cell := self._take(method, by_method)) is not None:
            yield cell
            method = cell.method

    @contextmanager
    def claim(self, cell: OpenCell) -> Iterator[bool]:
        """Whether the cell is this thread's alone inside the block. An error in the block puts the cell back, first."""
        mine, failed = False, True
        try:
            with self._store.claim(cell, wait=self.waits_for_another_run(cell)) as mine:
                yield mine
            failed = False
        finally:
            with self._changed:
                self._busy.pop(cell.id, None)
                self._held.pop(cell.id, None)
                if failed and not self.closed:
                    # To the front: its samples so far are kept, and it is the next one.
                    self._left = {cell.id: cell, **self._left}
                    self._of_method[cell.method] = {cell.id: cell, **self._of_method[cell.method]}
                elif not mine and not self.closed:
                    self._held[cell.id] = cell
                self._changed.notify_all()

    def close(self) -> None:
        """Give out no more cells."""
        with self._changed:
            self.closed = True
            for cells in (self._left, self._of_method, self._held):
                cells.clear()
            self._changed.notify_all()

    @property
    def open(self) -> bool:
        """Whether some cell is not finished yet."""
        return bool(self._left or self._held or self._busy)

    @property
    def at_work(self) -> int:
        """Workers that are measuring a cell."""
        return len(self._busy)

    def waits_for_another_run(self, cell: OpenCell) -> bool:
        """Whether the cell was given out again although another run measures it."""
        return cell.id in self._held

    def _take(self, method: MethodKey | None, by_method: bool) -> OpenCell | None:
        """The next cell that need not wait; None when all are finished."""
        with self._changed:
            while self.open:
                in_order = self._by_method(method) if by_method else self._left.values()
                cell = next((cell for cell in in_order if not self._must_wait(cell)), None)
                if cell is None and not self._busy:
                    # All others are done: wait for the other run, which may also give it up.
                    cell = next(iter(self._held.values()))
                if cell is not None:
                    if self._left.pop(cell.id, None):
                        del self._of_method[cell.method][cell.id]
                    self._busy[cell.id] = cell
                    return cell
                self._changed.wait()
            return None

    def _by_method(self, method: MethodKey | None) -> Iterator[OpenCell]:
        taken = {cell.method for cell in self._busy.values()}
        sizes = {name: len(cells) for name, cells in self._of_method.items()}
        for name in sorted(sizes, key=lambda name: (name != method, name in taken, -sizes[name])):
            yield from self._of_method[name].values()

    def _must_wait(self, cell: Cell) -> bool:
        for other in self._busy.values():
            alike = (cell.method, cell.task, cell.seed) == (other.method, other.task, other.seed)
            # Without an Attention a cell has no twin.
            if (self._ascending and alike) or (samples_hash(cell) or cell.id) == samples_hash(other):
                return True
        return False
