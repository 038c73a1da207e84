"""`executor=ray`: models on workers of a Ray cluster, each served by a thread of this process that runs the loop.

A worker is a loaded backend and nothing else: it gets an Attention and questions, and sends back answers, one by one.
This process plans, makes the questions, scores, and alone writes the run folder, so no shared disk is needed. A worker
that is lost loses the answer that it was computing; the rest of its cell goes to another one.
"""

import functools
import math
import os
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from lexbench.core import objects, registry
from lexbench.core.errors import ConfigError
from lexbench.core.extras import import_optional
from lexbench.core.model import Model
from lexbench.core.plug_in import user_code_hash
from lexbench.core.record import Deferred, Refused
from lexbench.core.task import Answer, AnyQuestion, Tokenizer
from lexbench.core.values import is_whole
from lexbench.core.version import __version__
from lexbench.runner.answers import LoadedModel, MemoryPeak
from lexbench.runner.backend_pool import open_backend, share_backends
from lexbench.runner.cells import REQUIRED_BACKEND_FACTS, BackendFacts, OpenCell
from lexbench.runner.job import Job
from lexbench.runner.loop import measure_run
from lexbench.runner.run import RunState
from lexbench.runner.verify import Preflight

CONNECT_TIMEOUT_SECONDS = 10.0
"""Seconds in which a cluster's head must answer."""
INHERITED_ENVIRONMENT_PREFIXES = (
    *("LEXBENCH_", "HF_", "TRANSFORMERS_", "VLLM_", "NCCL_", "CUDA_", "OMP_NUM_THREADS"),
    *("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"),
)
"""Beginnings of environment variables that workers take over, in capitals."""
NODE_VARIABLES = ("CUDA_VISIBLE_DEVICES",)
"""Variables that ray sets for each worker."""
COMPARED_BACKEND_FACTS = [name for name in REQUIRED_BACKEND_FACTS if name != "tokenizer"]
"""Facts that workers must agree in; the tokenizer and the hash of a plug-in's code are the driver's."""


@dataclass(frozen=True, kw_only=True)
class RaySettings:
    """Settings of the cluster and its workers, `ray.KEY=VALUE`.

    Raises ConfigError for values out of range.
    """

    address: str | None = None
    """Address of a running cluster: `auto`, or host:port; None: RAY_ADDRESS, else start one on this machine."""
    workers: int | None = None
    """Number of workers; None: as many as fit into the cluster, at most one a cell."""
    cpus: float = 1
    """Cores of a worker."""
    gpus: float | None = None
    """GPUs of a worker: 0.5 for two workers on one; None: where the cluster has any, one for each share of a layer."""
    memory_gb: float | None = None
    """Gigabytes of memory that are reserved for a worker; None: no reservation."""
    tries: int = 3
    """Workers that a cell may lose before it is deferred."""
    patience: float = 600
    """Seconds without any worker after which the run ends."""

    def __post_init__(self) -> None:
        for name, least in (("cpus", 0), ("gpus", 0), ("patience", 1), ("tries", 1), ("workers", 1), ("memory_gb", 0)):
            value = getattr(self, name)
            counted = name in ("tries", "workers")
            if value is None and name in ("workers", "memory_gb", "gpus"):
                continue
            real = isinstance(value, int | float) and not isinstance(value, bool) and least <= value < math.inf
            if not (is_whole(value, least) if counted else real):
                what = "whole number" if counted else "number"
                raise ConfigError(f"ray.{name} must be a {what} of at least {least}, got {value!r}: e.g. ray.{name}=2")


class LostWorkerError(Exception):
    """A worker's process or node has died."""


class Worker:
    """Loaded model in a process of the cluster.

    Args:
        environment: variables to take over.
        path: where plug-ins of the driver are found.
        folder: the driver's, which relative paths are of, where this machine has it.
    """

    def __init__(self, environment: Mapping[str, str], path: list[str], folder: str) -> None:
        os.environ.update(environment)
        # Plug-ins are found where the driver has found them, behind what this machine has itself.
        sys.path[:] = [*sys.path, *(each for each in path if each not in sys.path)]
        if Path(folder).is_dir():
            os.chdir(folder)
        self._life = ExitStack()  # of the process: all later jobs share one backend
        self._life.enter_context(share_backends())

    def load(self, model: Model, backend: Mapping[str, Any], longest: int, reuse: bool) -> dict[str, Any]:
        """Load the model of a job; facts of its backend, and the node's name."""
        loaded = open_backend(model, backend, longest)
        self._model = LoadedModel(loaded, Preflight(None, loaded, __version__), reuse)
        facts = {name: getattr(loaded, name) for name in COMPARED_BACKEND_FACTS}
        return facts | {"weights_known": getattr(loaded, "weights_known", True), "node": os.uname().nodename}

    def attend(self, cell: OpenCell) -> None:
        """Apply the cell's method, after its checks."""
        self._model.attend(cell)

    def answers(self, cell: OpenCell, questions: Sequence[AnyQuestion]) -> Iterator[tuple[int, Answer]]:
        """Answer as `LoadedModel` does; yields the place of each question instead of the question."""
        # Questions come back in another order, the very same objects.
        places = {id(question): place for place, question in enumerate(questions)}
        for question, answer in self._model.answers(cell, questions):
            yield places[id(question)], answer

    def peak(self) -> MemoryPeak | None:
        """Memory that this process has held at most."""
        return self._model.peak()


@dataclass(frozen=True)
class DeviceNeed:
    """What a backend needs of a worker's devices."""

    shares: int = 1
    """GPUs over which it splits each layer."""
    on_cpu: bool = False
    """Whether it is told to use no GPU."""

    @classmethod
    def of(cls, backend: Mapping[str, Any]) -> "DeviceNeed":
        """The need of a backend's settings, as far as they state one."""
        shares: Any = backend.get("tensor_parallel")
        return cls(shares if is_whole(shares, 1) else 1, backend.get("device") == "cpu")


def gpus_of_worker(settings: RaySettings, need: DeviceNeed, there: float) -> float:
    """GPUs of a worker in a cluster that has `there`.

    Raises ConfigError for fewer than the shares of a layer, and for none where that starts a worker for each core.
    """
    if need.on_cpu or not there:
        return settings.gpus or 0.0
    if settings.gpus is None:
        return float(need.shares)
    if settings.gpus < need.shares and need.shares > 1:
        raise ConfigError(
            f"ray.gpus must be at least backend.tensor_parallel, {need.shares}, got {settings.gpus:g}: "
            f"give ray.gpus={need.shares}, or leave it out"
        )
    if settings.gpus == 0 and settings.workers is None:
        raise ConfigError(
            f"ray.gpus must be above 0 in a cluster with GPUs ({there:g}), got 0, a worker on each core: leave it out "
            "for one GPU each, or give backend.device=cpu or ray.workers=N"
        )
    return settings.gpus


def inherited_environment(variables: Mapping[str, str]) -> dict[str, str]:
    """The variables that workers take over."""
    return {
        name: value
        for name, value in variables.items()
        if name.upper().startswith(INHERITED_ENVIRONMENT_PREFIXES) and name not in NODE_VARIABLES
    }


class Cluster:
    """Workers for one model, kept for all jobs of this process with the same settings of `ray` and needs of devices.

    Raises ConfigError where there is no ray, no cluster, no worker can start, or its GPUs do not fit the need.
    """

    def __init__(self, settings: RaySettings, need: DeviceNeed) -> None:
        ray = import_optional("ray", "ray", "executor=ray")
        self.ray, self.settings = ray, settings
        if not ray.is_initialized():
            quiet = {"log_to_driver": False, "logging_level": "ERROR", "include_dashboard": False}
            address = settings.address or os.environ.get("RAY_ADDRESS")
            try:
                _check_reachable(address)
                ray.init(address=address, **(quiet if address is None else {"log_to_driver": False}))
            except (OSError, RuntimeError, ValueError) as error:
                said = " ".join(str(error).split())[:200]
                raise ConfigError(f"ray.address {address} leads to no cluster ({said}): see `ray status`") from None
        self.gpus = gpus_of_worker(settings, need, ray.cluster_resources().get("GPU", 0))
        """Of a worker."""
        self.idle: list[Any] = []
        """Workers that the next job takes over."""
        self._worker = ray.remote(Worker)

    def n_fitting_workers(self) -> int:
        """Workers that the cluster holds at once."""
        there, asked = self.ray.cluster_resources(), self.settings
        shares = [there.get("CPU", 0) / asked.cpus] if asked.cpus else []
        shares += [there.get("GPU", 0) / self.gpus] if self.gpus else []
        return max(1, int(min(shares, default=1)))

    def worker(self) -> Any:
        """An idle worker, or a new one, wherever it fits."""
        if self.idle:
            return self.idle.pop()
        asked = self.settings
        memory = None if asked.memory_gb is None else int(asked.memory_gb * 2**30)
        environment = inherited_environment(os.environ)
        kind = self._worker.options(num_cpus=asked.cpus, num_gpus=self.gpus, memory=memory)
        # An empty entry is the folder of the driver, which goes along by name.
        return kind.remote(environment, [path for path in sys.path if path], str(Path.cwd()))


def _check_reachable(address: str | None) -> None:
    """OSError where nobody listens at host:port: ray itself would ask for minutes."""
    host, _, port = (address or "").rpartition(":")
    if host and port.isdecimal() and "/" not in host:
        socket.create_connection((host, int(port)), timeout=CONNECT_TIMEOUT_SECONDS).close()


class RemoteModel:
    """A worker's model, as the loop sees it. A worker that is lost is replaced.

    Args:
        cluster: that has the worker.
        job: whose model it loads.
        lost: workers lost, by cell.
    """

    def __init__(self, cluster: Cluster, job: Job, lost: Counter[str]) -> None:
        self._cluster, self._job, self._lost = cluster, job, lost
        self.start()

    def start(self) -> None:
        """Have a worker load the model."""
        job = self._job
        self.node, self.alive = "a node", True
        self.facts: dict[str, Any] | None = None
        self._actor = self._cluster.worker()
        self.loading = self._actor.load.remote(job.model, dict(job.backend), max(job.lengths), job.reuse)

    def replace(self) -> None:
        """Start another worker: this one was lost on the cell that it measured."""
        self._lost[self._cell] += 1
        self.start()

    def is_loaded(self, seconds: float) -> bool:
        """Whether the model is loaded, or will be in so many seconds; LostWorkerError where the worker has died."""
        if self.facts is None and self._cluster.ray.wait([self.loading], timeout=seconds)[0]:
            facts: dict[str, Any] = self._get_result(self.loading)
            self.node, self.facts = facts.pop("node"), facts
        return self.facts is not None

    def attend(self, cell: OpenCell) -> None:
        """Apply the cell's method; Deferred if the cell has lost too many workers already."""
        self._cell = cell.id
        if self._lost[cell.id] >= (tries := self._cluster.settings.tries):
            raise Deferred(f"{tries} workers were lost on it: give workers more memory")
        self._get_result(self._actor.attend.remote(_cell_without_code(cell)))

    def answers(self, cell: OpenCell, questions: Sequence[AnyQuestion]) -> Iterator[tuple[AnyQuestion, Answer]]:
        """Yield each question with its answer, as soon as the worker has it."""
        for answered in self._actor.answers.remote(_cell_without_code(cell), list(questions)):
            place, answer = self._get_result(answered)
            yield questions[place], answer

    def peak(self) -> MemoryPeak | None:
        """Memory that the worker's process has held at most; None where the worker is lost."""
        try:
            return self._get_result(self._actor.peak.remote()) if self.alive else None
        except LostWorkerError:
            return None

    def release(self) -> None:
        """Leave a loaded worker to the next job; end any other."""
        if self.alive and self.facts is not None:
            self._cluster.idle.append(self._actor)
        else:
            self.kill()

    def kill(self) -> None:
        """End the worker."""
        self.alive = False
        self._cluster.ray.kill(self._actor)

    def _get_result(self, reference: Any) -> Any:
        """Get what a worker returns; raise its Refused, ConfigError and OSError here."""
        errors = self._cluster.ray.exceptions
        try:
            return self._cluster.ray.get(reference)
        except errors.RayActorError:
            self.alive = False
            raise LostWorkerError from None
        except errors.RayTaskError as error:
            if isinstance(error.cause, Refused):
                raise error.cause from None
            if isinstance(error.cause, ConfigError | OSError):
                where = f" (worker on {self.node})" if self.facts else ""
                raise ConfigError(f"{error.cause}{where}") from None
            raise RuntimeError("a worker failed") from error.cause


def _cell_without_code(cell: OpenCell) -> OpenCell:
    """The cell without its method and task, whose code a worker need not have."""
    return replace(cell, step=replace(cell.step, method=None, task=None))  # type: ignore[arg-type]


class Workers:
    """The workers of one job.

    Args:
        cluster: where they are.
        job: what they measure.
        cells: of the job: there are no more workers than these.
        tokenizer: the checkpoint's.
    """

    def __init__(self, cluster: Cluster, job: Job, cells: int, tokenizer: Tokenizer) -> None:
        self._cluster, self._lost, self._died = cluster, Counter[str](), 0
        count = min(cluster.settings.workers or max(cluster.n_fitting_workers(), len(cluster.idle)), max(cells, 1))
        self.models = [RemoteModel(cluster, job, self._lost) for _ in range(count)]
        self._failures: list[BaseException] = []
        self._tokenizer, self._file = tokenizer, user_code_hash(objects.class_of(job.backend, "backend"))

    @functools.cached_property
    def facts(self) -> BackendFacts:
        """Facts of the backend, as soon as one worker has loaded it."""
        until = time.monotonic() + self._cluster.settings.patience
        while True:
            for model in self.models:
                try:
                    if model.is_loaded(seconds=0.1 / len(self.models)):
                        assert model.facts is not None
                        return BackendFacts(**model.facts, tokenizer=self._tokenizer, file=self._file)
                except LostWorkerError:
                    self._replace_unloaded(model)
            if time.monotonic() > until:
                raise self._no_worker_error()

    def measure(self, run: RunState, tokenizer: Tokenizer) -> None:
        """Measure all open cells of a run, a thread for each worker; the first error of any ends all."""
        threads = [threading.Thread(target=self._serve, args=(model, run, tokenizer)) for model in self.models]
        try:
            for thread in threads:
                thread.start()
            while any(thread.is_alive() for thread in threads) and not self._failures:
                # A failure of any thread ends all: joining would wait for one of them.
                time.sleep(0.02)
        finally:  # an error or Ctrl-C: what is not idle by now is ended
            run.queue.close()
            for model, thread in zip(self.models, threads, strict=True):
                if thread.is_alive():
                    model.kill()
            for thread in threads:
                thread.join()
        if self._failures:
            raise self._failures[0]

    def _serve(self, model: RemoteModel, run: RunState, tokenizer: Tokenizer) -> None:
        """Measure with one worker until no cell is left, and replace it when it is lost."""
        try:
            while self._wait_until_loaded(model, run):
                try:
                    measure_run(run, model, tokenizer, by_method=True)
                    return
                except LostWorkerError:
                    if run.queue.closed:  # we have ended the worker ourselves
                        return
                    model.replace()
        except BaseException as error:  # rises in the main thread
            self._failures.append(error)

    def _wait_until_loaded(self, model: RemoteModel, run: RunState) -> bool:
        """Wait until a worker has loaded its model; False where no cell is left for it."""
        until = time.monotonic() + self._cluster.settings.patience
        while run.queue.open and not self._failures:
            try:
                if model.is_loaded(seconds=0.2):
                    self._check_same_facts(model)
                    return True
            except LostWorkerError:
                self._replace_unloaded(model)
            if run.queue.at_work:
                until = time.monotonic() + self._cluster.settings.patience
            elif time.monotonic() > until:
                raise self._no_worker_error()
        return False

    def _replace_unloaded(self, model: RemoteModel) -> None:
        self._died += 1
        if self._died >= self._cluster.settings.tries:
            raise ConfigError(
                f"{self._died} workers died while they loaded the model: see the logs of ray on its nodes"
            )
        model.start()

    def _check_same_facts(self, model: RemoteModel) -> None:
        assert model.facts is not None
        for name in COMPARED_BACKEND_FACTS:
            here, there = getattr(self.facts, name), model.facts[name]
            if here != there:
                raise ConfigError(
                    f"workers must be alike, {model.node} has {name} {there}, another one {here}: "
                    "install the same versions and the same model on all nodes"
                )

    def _no_worker_error(self) -> ConfigError:
        return ConfigError(
            f"ray has started no worker for {self._cluster.settings.patience:.0f} seconds: see `ray status`, "
            "and ray.cpus, ray.gpus, ray.memory_gb"
        )


_cluster: tuple[tuple[RaySettings, DeviceNeed], Cluster] | None = None
"""The cluster that all jobs of this process share."""


def settings_of(job: Job) -> RaySettings:
    """The settings of a job's cluster; ConfigError where one is unknown or wrong, whatever executor the job has."""
    known = [each.name for each in fields(RaySettings)]
    if odd := sorted(set(job.ray) - set(known)):
        near = f"did you mean ray.{close}? " if (close := registry.closest_choice(odd[0], known)) else ""
        raise ConfigError(f"unknown setting ray.{odd[0]}: {near}choose from {', '.join(known)}")
    return RaySettings(**job.ray)


@contextmanager
def cluster(job: Job, cells: int, tokenizer: Tokenizer) -> Iterator[Workers]:
    """Workers of a job for a block; ConfigError where none start, or where their versions, dtypes or weights differ."""
    global _cluster
    asked = settings_of(job), DeviceNeed.of(job.backend)
    if _cluster is None or _cluster[0] != asked:
        close()
        _cluster = asked, Cluster(*asked)
    workers = Workers(_cluster[1], job, cells, tokenizer)
    try:
        yield workers
    finally:
        for model in workers.models:
            model.release()


def close() -> None:
    """End the idle workers that this process has started."""
    global _cluster
    if _cluster is not None:
        for actor in _cluster[1].idle:
            _cluster[1].ray.kill(actor)
        _cluster = None
