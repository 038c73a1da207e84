"""hydra/launcher=ray: every job of a sweep is a ray task. Hydra finds launchers in the package `hydra_plugins` only.

The published hydra-ray-launcher 1.2.2 needs cloudpickle below 3, which joblib 1.6 excludes; this one needs ray alone.
"""

import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hydra.core.singleton import Singleton
from hydra.core.utils import JobReturn, JobStatus, run_job, setup_globals
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, open_dict

FOLDERS: Mapping[str, Any] = {"job_dir_key": "hydra.sweep.dir", "job_subdir_key": "hydra.sweep.subdir"}


class RayLauncher(Launcher):  # type: ignore[misc]
    """Jobs as tasks with what each needs; configs/hydra/launcher/ray.yaml says what the keys mean."""

    def __init__(
        self,
        address: str | None,
        num_cpus: float,
        num_gpus: float,
        memory_gb: float | None,
        timeout_min: float | None,
        max_retries: int,
        init: Mapping[str, Any],
    ) -> None:
        self.init: dict[str, Any] = {**init, "address": address}
        self.needs: dict[str, Any] = {"num_cpus": num_cpus, "num_gpus": num_gpus, "max_retries": max_retries}
        if memory_gb is not None:
            self.needs["memory"] = int(memory_gb * 2**30)
        self.timeout_min = timeout_min

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Hydra's call before `launch`."""
        self.context, self.task, self.config = hydra_context, task_function, config

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """What the jobs returned, in their order, when all have ended; a job whose process died has its error."""
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        import ray

        setup_globals()
        started = not ray.is_initialized()
        if started:
            ray.init(**self.init, runtime_env={"env_vars": _inherited(), **self.init.pop("runtime_env", {})})
        try:
            job = ray.remote(**self.needs)(_job)
            state = Singleton.get_state()
            place = (Path.cwd(), self.timeout_min)
            running = [
                job.remote(self.context, self._config(overrides, number), self.task, state, *place)
                for number, overrides in enumerate(job_overrides, initial_job_idx)
            ]
            return [_returned(each) for each in running]
        finally:
            if started:
                ray.shutdown()

    def _config(self, overrides: Sequence[str], number: int) -> DictConfig:
        config: DictConfig = self.context.config_loader.load_sweep_config(self.config, list(overrides))
        with open_dict(config):
            config.hydra.job.id = config.hydra.job.num = number
        return config


def _inherited() -> dict[str, str]:
    """The user's own registry, which workers of a cluster would not know."""
    return {name: os.environ[name] for name in ("LEXBENCH_CONFIG_PATH",) if name in os.environ}


def _job(
    context: HydraContext, config: DictConfig, task: TaskFunction, state: Any, folder: Path, minutes: float | None
) -> JobReturn:
    setup_globals()
    Singleton.set_state(state)
    os.chdir(folder)
    with _at_most(minutes):
        return run_job(task_function=task, config=config, hydra_context=context, **FOLDERS)


@contextmanager
def _at_most(minutes: float | None) -> Iterator[None]:
    """TimeoutError in the block when it takes longer."""

    def late(*_: object) -> None:
        raise TimeoutError(f"a job took longer than {minutes} minutes: raise hydra.launcher.timeout_min, or go on")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, 60 * (minutes or 0))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _returned(running: Any) -> JobReturn:
    import ray

    from lexbench.commands.hydra_config import Outcome

    try:
        returned: JobReturn = ray.get(running)
    except ray.exceptions.RayError as error:  # the others go on
        said = " ".join(str(error).split())[:300]
        returned = JobReturn(status=JobStatus.COMPLETED)
        returned.return_value = Outcome(error=ValueError(f"a job's process ended ({type(error).__name__}): {said}"))
    return returned
