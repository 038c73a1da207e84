"""The cells of a run, measured by workers of a Ray cluster: `executor=ray`.

This process plans, hands out cells and writes the run folder; it never loads the model. A worker loads it once, and
sends back each sample as it is measured, so that a lost worker loses what it is just answering: the rest of the cell
goes to another one. A cell goes to a worker that is under its method already, where there is one.
"""

import os
import socket
import sys
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from lexbench.backends import Recalling, Remote
from lexbench.core import machine
from lexbench.core.attention import Attention
from lexbench.core.checkpoint import locate
from lexbench.core.record import Cell, Refused, Sample, Unavailable
from lexbench.core.task import Tokenizer
from lexbench.core.tokenizer import load_tokenizer
from lexbench.core.version import __version__
from lexbench.runner.answers import Examiner
from lexbench.runner.backend_pool import checkpoint_of, opened, sharing
from lexbench.runner.job import Job, cell_of, keep_job, of_config
from lexbench.runner.loop import Run, Todo
from lexbench.runner.plan import Estimate, Step
from lexbench.runner.reuse import attended
from lexbench.runner.verify import Preflight
from lexbench.stats.costs import Cost
from lexbench.store.store import Store

REACH = 10.0
"""Seconds in which a cluster's head must answer."""
PASSED_ON = ("LEXBENCH_", "HF_", "OMP_NUM_THREADS")
"""Beginnings of environment variables that workers take over."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What `ray.KEY=VALUE` sets.

    Raises ValueError for values out of range.
    """

    address: str | None = None
    """Of a running cluster: `auto`, or host:port; None: RAY_ADDRESS, else one of this machine alone."""
    workers: int | None = None
    """None: as many as fit into the cluster, at most one a cell."""
    cpus: float = 1
    """Cores of a worker."""
    gpus: float = 0
    """Accelerators of a worker: 0.5 for two workers on one."""
    memory_gb: float | None = None
    """Memory that a worker counts for."""
    tries: int = 3
    """Workers that a cell may lose before it is put off."""
    patience: float = 600
    """Seconds without any worker after which the run ends."""

    def __post_init__(self) -> None:
        for name, least in (("cpus", 0), ("gpus", 0), ("patience", 1), ("tries", 1), ("workers", 1), ("memory_gb", 0)):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int | float) or value < least):
                raise ValueError(f"ray.{name} must be a number of at least {least}, got {value!r}")


@dataclass
class About:
    """What a worker's backend is, for the cells' identity."""

    name: str
    version: str
    dtype: str
    kernel: str
    revision: str
    tokenizer: Tokenizer
    node: str
    """Where the worker runs."""


@dataclass(frozen=True)
class Place:
    """A cell, by what both sides know: places in the job's methods and tasks."""

    method: int
    task: int
    length: int
    seed: int


@dataclass(frozen=True)
class Refusal:
    """A cell has no honest answer; `again`: not now."""

    reason: str
    again: bool


@dataclass(frozen=True)
class Spent:
    """What a cell has taken."""

    seconds: float
    tokens: int
    peak_bytes: int | None
    own_peak: bool
    asked: list[int] | None
    """Indices of all questions of the cell; None: it was refused."""


class Worker:
    """One loaded model, in a process of the cluster.

    Args:
        environment: variables to take over.
        path: where plug-ins of the driver are found.
        folder: the driver's, which relative paths are of, where this machine has it.
    """

    def __init__(self, environment: Mapping[str, str], path: list[str], folder: str) -> None:
        os.environ.update(environment)
        sys.path[:] = [*sys.path, *(each for each in path if each not in sys.path)]
        if Path(folder).is_dir():
            os.chdir(folder)
        self._life = ExitStack()  # of the process: all jobs to come share one backend
        self._life.enter_context(sharing())

    def take(self, config: Mapping[str, Any], reuse: bool) -> dict[str, str]:
        """Load what a job asks for; the fields of `About` but the tokenizer."""
        self._job = job = of_config(config)
        folder = locate(checkpoint_of(job.model), job.model.revision, weights=False)
        self._backend = opened(job.model, job.backend, max(job.lengths))
        if isinstance(self._backend, Recalling):
            self._backend.reuse = reuse
        tokenizer = load_tokenizer(folder, job.model.bos)
        preflight = Preflight(None, self._backend, __version__)
        self._examiner = Examiner(self._backend, tokenizer, preflight, reuse)
        names = ("name", "version", "dtype", "kernel", "revision")
        return {name: getattr(self._backend, name) for name in names} | {"node": os.uname().nodename}

    def samples(self, place: Place, done: list[int]) -> Iterator[Sample | Refusal | Spent]:
        """Of one cell, as they are measured; then what it took, or why there are none."""
        import time

        method, task = self._job.methods[place.method], self._job.tasks[place.task]
        started, tokens, own_peak = time.monotonic(), 0, machine.forget_peak()
        asked: list[int] | None = None
        try:
            attention: Attention = method.built.attention(self._job.model, place.length)
            step = Step(method, task, place.length, place.seed, attention, None, Estimate())
            self._examiner.settle(step, self._job.n)
            started = time.monotonic()
            for sample in self._examiner.samples(step, self._job.n, set(done)):
                tokens += sample.tokens
                yield sample
            asked = self._examiner.asked(step, self._job.n)
        except Refused as refusal:
            yield Refusal(refusal.reason, isinstance(refusal, Unavailable))
        peak = None if isinstance(self._backend, Remote) else machine.peak_bytes()
        yield Spent(time.monotonic() - started, tokens, peak, own_peak and peak is not None, asked)


@dataclass(eq=False)
class Hand:
    """A worker, as the driver sees it."""

    actor: Any
    waits_for: Any
    """What comes next from it: its facts, or a stream of samples; None: it is idle."""
    about: About | None = None
    method: str | None = None
    """Under which it is."""
    todo: Todo | None = None
    claim: ExitStack = field(default_factory=ExitStack)
    """Of the cell that it measures."""
    whole: bool = False
    """Nothing of the cell was there before."""


class Cluster:
    """Workers for one model, kept for all jobs of this process that ask for it alike.

    Raises ValueError where there is no ray, no cluster, or no worker can start.
    """

    def __init__(self, settings: Settings) -> None:
        try:
            import ray
        except ImportError:
            raise ValueError("executor=ray needs ray: pip install 'lexbench[ray]'") from None
        self._ray, self.settings = ray, settings
        if not ray.is_initialized():
            quiet = {"log_to_driver": False, "logging_level": "ERROR", "include_dashboard": False}
            address = settings.address or os.environ.get("RAY_ADDRESS")
            try:
                _reach(address)
                ray.init(address=address, **(quiet if address is None else {"log_to_driver": False}))
            except (OSError, RuntimeError, ValueError) as error:
                said = " ".join(str(error).split())[:200]
                raise ValueError(f"ray.address {address} leads to no cluster ({said}): see `ray status`") from None
        self.hands: list[Hand] = []
        self._worker = ray.remote(Worker)

    def _fitting(self) -> int:
        """Workers that the cluster holds at once."""
        there, asked = self._ray.cluster_resources(), self.settings
        shares = [there.get("CPU", 0) / asked.cpus] if asked.cpus else []
        shares += [there.get("GPU", 0) / asked.gpus] if asked.gpus else []
        return max(1, int(min(shares, default=1)))

    def start(self, job: Job, cells: int) -> None:
        """As many workers as there should be for so many cells, each asked to load what the job needs."""
        for hand in self.hands:
            hand.waits_for = hand.actor.take.remote(dict(job.config), job.reuse)
        while len(self.hands) < min(self.settings.workers or self._fitting(), max(cells, 1)):
            self.add(job)

    def add(self, job: Job) -> None:
        """One more worker, wherever it fits."""
        asked = self.settings
        memory = None if asked.memory_gb is None else int(asked.memory_gb * 2**30)
        environment = {key: value for key, value in os.environ.items() if key.startswith(PASSED_ON)}
        settled = self._worker.options(num_cpus=asked.cpus, num_gpus=asked.gpus, memory=memory)
        actor = settled.remote(environment, [path for path in sys.path if path], str(Path.cwd()))
        self.hands.append(Hand(actor, actor.take.remote(dict(job.config), job.reuse)))

    def drop(self, hand: Hand) -> None:
        """A worker is lost."""
        self.hands.remove(hand)
        self._ray.kill(hand.actor)

    def next(self) -> Hand | None:
        """A worker that has something to say; None where none has within the patience."""
        waiting = {hand.waits_for: hand for hand in self.hands if hand.waits_for is not None}
        ready, _ = self._ray.wait(list(waiting), num_returns=1, timeout=self.settings.patience)
        return waiting[ready[0]] if ready else None


def _reach(address: str | None) -> None:
    """OSError where nobody listens at host:port: ray itself would ask for minutes."""
    host, _, port = (address or "").rpartition(":")
    if host and port.isdecimal() and "/" not in host:
        socket.create_connection((host, int(port)), timeout=REACH).close()


_cluster: tuple[Settings, Cluster] | None = None


def measured(job: Job, store: Store, steps: Sequence[Step], tokenizer: Tokenizer, quiet: bool) -> list[Cell]:
    """All cells of a job, measured by workers; ValueError where these cannot be had, or differ in what they are."""
    global _cluster
    settings = _settings(job.ray)
    if _cluster is None or _cluster[0] != settings:
        close()
        _cluster = settings, Cluster(settings)
    hands = Driver(_cluster[1], job, tokenizer, len(steps))
    cells = [(cell_of(job, step, hands.first()), step) for step in steps]
    keep_job(store, job, hands.first(), cells)
    with Run(job, store, cells, quiet) as run:
        hands.measure(run)
    return [cell for cell, _ in cells]


def close() -> None:
    """End the workers that this process has started."""
    global _cluster
    if _cluster is not None:
        for hand in [*_cluster[1].hands]:
            _cluster[1].drop(hand)
        _cluster = None


def _settings(given: Mapping[str, Any]) -> Settings:
    known = {each.name for each in fields(Settings)}
    if odd := sorted(set(given) - known):
        raise ValueError(f"unknown setting ray.{odd[0]}: choose from {', '.join(sorted(known))}")
    return Settings(**given)


class Driver:
    """Hands out a job's cells, and writes what comes back.

    Args:
        cluster: where the workers are.
        job: what is asked for.
        tokenizer: the checkpoint's.
        cells: of the job.
    """

    def __init__(self, cluster: Cluster, job: Job, tokenizer: Tokenizer, cells: int) -> None:
        self._cluster, self._job, self._tokenizer = cluster, job, tokenizer
        self._about: About | None = None
        self._lost: Counter[str] = Counter()
        self._unborn = 0
        cluster.start(job, cells)

    def first(self) -> About:
        """What the workers are, as soon as one of them has loaded the model."""
        while self._about is None:
            self._hear()
        return self._about

    def measure(self, run: Run) -> None:
        """All open cells of a run; those that other runs measure come last."""
        self._run, self._waiting = run, _Waiting(run.open, self._job.stop_after_collapse)
        run.open.clear()
        try:
            while self._waiting or self._busy():
                for hand in [hand for hand in self._cluster.hands if hand.waits_for is None]:
                    self._employ(hand)
                if self._busy() or self._waiting:
                    run.at_once = max(1, len(self._busy()))
                    self._hear()
        finally:
            for hand in [*self._cluster.hands]:
                hand.claim.close()
                if hand.waits_for is not None:  # still starting, or interrupted
                    self._cluster.drop(hand)

    def _busy(self) -> list[Hand]:
        return [hand for hand in self._cluster.hands if hand.todo is not None]

    def _employ(self, hand: Hand) -> None:
        """Give an idle worker its next cell, if there is one."""
        while todo := self._waiting.next(hand.method, [other.todo for other in self._busy() if other.todo]):
            cell, step = todo
            wait = cell.id in self._waiting.held
            mine = hand.claim.enter_context(self._run.store.claimed(cell, wait))
            self._waiting.held.pop(cell.id, None)
            if mine and not self._run.settled(cell, step):
                done = [sample.index for sample in self._run.store.resume(cell)]
                hand.todo, hand.method, hand.whole = todo, step.method.label, not done
                hand.waits_for = hand.actor.samples.remote(self._place(step), done)
                self._run.began(cell, step, len(done))
                return
            hand.claim.close()
            if not mine:
                self._waiting.hold(todo)

    def _place(self, step: Step) -> Place:
        method = next(place for place, each in enumerate(self._job.methods) if each is step.method)
        task = next(place for place, each in enumerate(self._job.tasks) if each is step.task)
        return Place(method, task, step.length, step.seed)

    def _hear(self) -> None:
        """Wait for what comes next from any worker, and take it."""
        hand = self._cluster.next()
        if hand is None:
            if not any(each.about for each in self._cluster.hands):
                raise ValueError(
                    f"ray has started no worker for {self._cluster.settings.patience:.0f} seconds: see `ray status`, "
                    "and ray.cpus, ray.gpus, ray.memory_gb"
                )
            return
        import ray

        try:
            if hand.todo is None:
                self._started(hand, ray.get(hand.waits_for))
            else:
                self._take(hand, ray.get(next(hand.waits_for)))
        except ray.exceptions.RayActorError:
            self._replace(hand)
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, ValueError | Refused | OSError):
                where = f" (worker on {hand.about.node})" if hand.about else ""
                raise ValueError(f"{error.cause}{where}") from None
            raise RuntimeError("a worker failed") from error.cause

    def _started(self, hand: Hand, facts: Mapping[str, str]) -> None:
        hand.waits_for, hand.method = None, None
        hand.about = about = About(**facts, tokenizer=self._tokenizer)
        self._about = self._about or about
        for name in ("version", "dtype", "kernel", "revision"):
            here, there = getattr(about, name), getattr(self._about, name)
            if here != there:
                raise ValueError(
                    f"workers must be alike, {about.node} has {name} {here}, {self._about.node} {there}: "
                    "install the same versions and the same model on all nodes"
                )

    def _take(self, hand: Hand, said: Sample | Refusal | Spent) -> None:
        """Keep a sample; or end the cell."""
        assert hand.todo is not None, "an idle worker has nothing to say"
        cell, step = hand.todo
        store = self._run.store
        if isinstance(said, Sample):
            self._run.kept(cell, step, said)
        elif isinstance(said, Refusal):
            (store.put_off if said.again else store.refuse)(cell, said.reason)
            hand.whole = False
        else:
            if said.asked is not None:
                store.finish(cell, said.asked)
            cost = {name: getattr(said, name) for name in ("seconds", "tokens", "peak_bytes", "own_peak")}
            self._run.spent(cell, Cost(**cost))
            self._run.ended(cell, step, said.seconds if hand.whole else None)
            self._free(hand)

    def _free(self, hand: Hand) -> None:
        hand.todo = hand.waits_for = None
        hand.claim.close()

    def _replace(self, hand: Hand) -> None:
        """A worker is lost: its cell goes to another one, and another worker is started."""
        todo, node = hand.todo, hand.about.node if hand.about else "a node"
        self._free(hand)
        self._cluster.drop(hand)
        tries = self._cluster.settings.tries
        if todo is None:
            self._unborn += 1
            if self._unborn >= tries:
                raise ValueError(
                    f"{self._unborn} workers died while they loaded the model: see the logs of ray on {node}"
                )
        else:
            cell, step = todo
            self._lost[cell.id] += 1
            if self._lost[cell.id] < tries:
                self._waiting.back(todo)
            else:
                reason = f"{tries} workers were lost on it, the last one on {node}: give workers more memory"
                self._run.store.put_off(cell, reason)
                self._run.ended(cell, step)
        self._cluster.add(self._job)


class _Waiting:
    """Cells that no worker has, by method, in their order.

    Args:
        cells: all of them.
        ascending: longer cells wait for shorter ones of their method, task and seed.
    """

    def __init__(self, cells: Iterable[Todo], ascending: bool) -> None:
        self._by_method: dict[str, deque[Todo]] = {}
        for todo in cells:
            self._by_method.setdefault(todo[0].method, deque()).append(todo)
        self._ascending = ascending
        self.held: dict[str, Todo] = {}
        """Cells that other runs measure; asked for again when nothing else is left."""

    def __bool__(self) -> bool:
        return any(self._by_method.values()) or bool(self.held)

    def next(self, method: str | None, busy: Sequence[Todo]) -> Todo | None:
        """Of this method if it has any, else of the one with most left; None where all must wait for busy ones."""
        taken = {cell.method for cell, _ in busy}
        order = sorted(self._by_method, key=lambda name: (name != method, name in taken, -len(self._by_method[name])))
        for name in order:
            for place, todo in enumerate(self._by_method[name]):
                if not self._must_wait(todo[0], busy):
                    del self._by_method[name][place]
                    return todo
        if not busy and self.held:
            return self.held[next(iter(self.held))]
        return None

    def _must_wait(self, cell: Cell, busy: Sequence[Todo]) -> bool:
        for other, _ in busy:
            alike = (cell.method, cell.task, cell.seed) == (other.method, other.task, other.seed)
            if (self._ascending and alike) or (attended(cell) or cell.id) == attended(other):
                return True
        return False

    def hold(self, todo: Todo) -> None:
        """Another run measures it."""
        self.held[todo[0].id] = todo

    def back(self, todo: Todo) -> None:
        """Its worker is lost: it comes first."""
        self._by_method.setdefault(todo[0].method, deque()).appendleft(todo)
