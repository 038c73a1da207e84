"""Open cells are given out in their order, to one worker or to several, and none is lost or given twice."""

import threading
from pathlib import Path

import pytest

from lexbench.core.method_key import parse_label
from lexbench.runner.cells import OpenCell
from lexbench.runner.queue import CellQueue
from lexbench.store.store import Store
from tests.runner.open_cells import open_cell


def taken(queue: CellQueue, method: str = "", by_method: bool = True) -> tuple[str, int]:
    """Method and length of the cell that a worker under this method gets next; it stays busy."""
    cell = queue._take(parse_label(method), by_method)
    assert cell is not None
    return str(cell.method), cell.length


def finish(queue: CellQueue, cell: OpenCell) -> None:
    with queue.claim(cell) as mine:
        assert mine


def test_one_worker_gets_all_cells_in_their_order(tmp_path: Path) -> None:
    cells = [open_cell(method, length) for length in (512, 256) for method in ("none", "ntk")]
    queue = CellQueue(cells, Store(tmp_path))
    found = []
    for cell in queue.cells():
        found.append(cell)
        finish(queue, cell)
    assert found == cells and not queue.open


def test_a_worker_stays_with_its_method_and_others_take_what_is_most(tmp_path: Path) -> None:
    lengths = [("none", 512), ("ntk", 512), ("none", 256), ("ntk", 256), ("ntk", 128)]
    queue = CellQueue([open_cell(*each) for each in lengths], Store(tmp_path))
    assert taken(queue) == ("ntk", 512), "of the method with most cells left, in their order"
    assert taken(queue) == ("none", 512), "of one that nobody has"
    assert taken(queue, "ntk") == ("ntk", 256)
    assert taken(queue, "ntk") == ("ntk", 128)
    assert taken(queue, "ntk") == ("none", 256)


def test_longer_cells_wait_for_shorter_ones_where_they_may_be_skipped(tmp_path: Path) -> None:
    first, longer, other = open_cell("none", 256), open_cell("none", 512), open_cell("none", 512, "prefix")
    queue = CellQueue([first, longer, other], Store(tmp_path), ascending=True)
    assert taken(queue, by_method=False) == ("none", 256)
    assert queue._take(parse_label("none"), True) is other
    waiting = threading.Thread(target=lambda: given.append(queue._take(parse_label("none"), True)))
    given: list[OpenCell | None] = []
    waiting.start()
    waiting.join(0.2)
    assert waiting.is_alive(), "the longer cell waits"
    finish(queue, first)
    waiting.join(10)
    assert given == [longer]


def test_a_twin_waits_for_the_one_that_is_measured(tmp_path: Path) -> None:
    alike = {"inv_freq": [1.0]}
    one, twin = open_cell("ntk", 256, attention=alike), open_cell("yarn", 256, attention=alike)
    queue = CellQueue([one, twin, open_cell("yarn", 512, attention={"inv_freq": [2.0]})], Store(tmp_path))
    assert taken(queue, by_method=False) == ("ntk", 256)
    assert taken(queue, by_method=False) == ("yarn", 512)
    given: list[OpenCell | None] = []
    waiting = threading.Thread(target=lambda: given.append(queue._take(parse_label(""), False)))
    waiting.start()
    waiting.join(0.2)
    assert waiting.is_alive()
    finish(queue, one)
    waiting.join(10)
    assert given == [twin]


def test_a_cell_whose_worker_is_lost_comes_first(tmp_path: Path) -> None:
    cells = [open_cell("none", 512), open_cell("none", 256)]
    queue = CellQueue(cells, Store(tmp_path))
    lost = queue._take(parse_label(""), True)
    assert lost is cells[0]
    with pytest.raises(RuntimeError), queue.claim(lost):
        raise RuntimeError
    assert [taken(queue), taken(queue)] == [("none", 512), ("none", 256)]


def test_a_cell_of_another_run_comes_last_and_is_waited_for(tmp_path: Path) -> None:
    cells = [open_cell("none", 512), open_cell("none", 256)]
    queue, other = CellQueue(cells, Store(tmp_path)), Store(tmp_path)
    order = []
    with other.claim(cells[0]) as theirs:
        assert theirs
        places = queue.cells()
        for cell in (next(places), next(places)):
            with queue.claim(cell) as mine:
                order.append((cell, mine))
    for cell in places:
        assert queue.waits_for_another_run(cell)
        with queue.claim(cell) as mine:
            order.append((cell, mine))
    assert order == [(cells[0], False), (cells[1], True), (cells[0], True)]


def test_many_threads_measure_every_cell_once(tmp_path: Path) -> None:
    cells = [open_cell(method, length) for method in ("none", "ntk", "yarn") for length in range(16, 56)]
    queue, done = CellQueue(cells, Store(tmp_path)), list[str]()

    def work() -> None:
        for cell in queue.cells(by_method=True):
            with queue.claim(cell) as mine:
                if mine:
                    done.append(cell.id)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(done) == sorted(cell.id for cell in cells)


def test_a_closed_queue_gives_out_nothing(tmp_path: Path) -> None:
    queue = CellQueue([open_cell("none", 512)], Store(tmp_path))
    queue.close()
    assert list(queue.cells()) == [] and not queue.open


def test_a_cell_that_fails_after_the_end_is_not_given_out_and_nobody_waits_for_it(tmp_path: Path) -> None:
    alike = {"inv_freq": [1.0]}
    one, twin = open_cell("ntk", 256, attention=alike), open_cell("yarn", 256, attention=alike)
    queue, given = CellQueue([one, twin], Store(tmp_path)), list[OpenCell | None]()
    assert queue._take(parse_label(""), True) is one
    waiting = threading.Thread(target=lambda: given.append(queue._take(parse_label(""), True)), daemon=True)
    waiting.start()  # for its twin
    block = queue.claim(one)
    block.__enter__()
    queue.close()
    block.__exit__(RuntimeError, RuntimeError(), None)
    waiting.join(10)
    assert given == [None] and not queue.open
