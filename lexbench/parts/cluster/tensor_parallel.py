"""Processes that hold a share of each layer's weights and take every step of a network together.

The first one is told what to do and tells the others, which do the same: a step ends when all have done their share of
it. They share numbers by torch.distributed: NCCL between GPUs of this machine, gloo between its processors.
"""

import os
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import torch
import transformers
from torch import distributed as dist
from transformers import AutoConfig

from lexbench.backends.hf.exact.layers import stated_size
from lexbench.core.attention import Attention
from lexbench.core.errors import ConfigError
from lexbench.core.memory import OutOfMemory
from lexbench.core.model import Model
from lexbench.core.record import Refused

Result = TypeVar("Result")
FOLLOWER_VARIABLE = "LEXBENCH_FOLLOWER"
"""Variable of the environment that only the other processes have."""
SECONDS_TO_CLOSE = 10
"""Seconds that a process has to end by itself."""
SECONDS_BETWEEN_POLLS = 0.05
"""Seconds between two questions whether a process has ended."""
FAILURE_KEY = "failure"
"""Key of the store under which another process leaves the traceback of its error."""
MAX_IDLE_TIME = timedelta(days=30)
"""Time that the others wait for the next step."""


class Followers:
    """The other processes: each builds the same backend, and repeats each of its calls.

    Args:
        backend: class of what they build.
        count: number of processes, this one among them.
        model: what they load.
        settings: of the backend, by the constructor's names.
    """

    def __init__(self, backend: type, count: int, model: Model, settings: Mapping[str, Any]) -> None:
        if dist.is_initialized():
            raise ConfigError(
                "backend.tensor_parallel starts its own processes, and this one is one of torch.distributed: "
                "leave it out, or run lexbench by itself"
            )
        self._busy = False
        self._store = store = dist.TCPStore("127.0.0.1", 0, count, is_master=True, wait_for_workers=False)
        path = os.pathsep.join(filter(None, sys.path))
        self._processes = [
            subprocess.Popen(
                [
                    sys.executable,
                    "-P",
                    "-m",
                    "lexbench.parts.cluster.tensor_parallel",
                    str(store.port),
                    str(rank),
                    str(count),
                ],
                env={**os.environ, "PYTHONPATH": path, "LOCAL_RANK": str(rank), FOLLOWER_VARIABLE: "1"},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is for this process, which then ends them
            )
            for rank in range(1, count)
        ]
        self._group = _join(store, 0, count)
        self._tell((backend, model, dict(settings)))

    def take(self, name: str, given: tuple[Any, ...], own: Callable[[], Result]) -> Result:
        """The result of a method that the others call, too, with the same arguments.

        What all raise alike is raised here; after any other error nobody knows where the others are, and they end.
        """
        if self._busy:  # a part of a step
            return own()
        if not self._processes:
            raise ConfigError("the processes of backend.tensor_parallel have ended: repeat the command")
        self._busy = True
        try:
            self._tell((name, given))
            return own()
        except (Refused, ConfigError) as error:
            if isinstance(error, OutOfMemory):
                self.close()
            raise
        except BaseException as error:
            self.end_after(error)
            raise
        finally:
            self._busy = False

    def end_after(self, error: BaseException) -> None:
        """End the other processes after an error of this one; ConfigError where one of them was gone before.

        An error in the code of another process alone becomes a note of this one's.
        """
        # The group's own word for a process that is gone; the process itself may end a moment later.
        code = self._wait_for_code() if isinstance(error, RuntimeError) else None
        said = self._store.get(FAILURE_KEY).decode() if code and self._store.check([FAILURE_KEY]) else ""
        self.close()
        if said:
            if said.splitlines()[-1] != traceback.format_exception_only(error)[-1].strip():
                error.add_note(f"Before, in another process of backend.tensor_parallel:\n{said}")
        elif code is not None:
            raise ConfigError(
                f"a process of backend.tensor_parallel has ended with {code}: repeat the command"
            ) from error

    def _wait_for_code(self) -> int | None:
        """The exit code of the first process that ends within `SECONDS_TO_CLOSE`; None where none does."""
        until = time.monotonic() + SECONDS_TO_CLOSE
        while self._processes and time.monotonic() < until:
            for process in self._processes:
                if (code := process.poll()) is not None:
                    return code
            time.sleep(SECONDS_BETWEEN_POLLS)
        return None

    def _tell(self, what: object) -> None:
        dist.broadcast_object_list([what], src=0, group=self._group)

    def close(self) -> None:
        """End the other processes; a second call does nothing."""
        processes, self._processes = self._processes, []
        for process in processes:
            process.terminate()  # it may wait for this one inside a step
        for process in processes:
            try:
                process.wait(SECONDS_TO_CLOSE)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if processes:
            dist.destroy_process_group()


def _join(store: Any, rank: int, count: int) -> Any:
    """Become one of the processes; the group in which they are told what to do."""
    kind = "nccl" if torch.cuda.is_available() else "gloo"
    if kind == "nccl":
        torch.cuda.set_device(rank)
    dist.init_process_group(kind, store=store, rank=rank, world_size=count)
    return dist.new_group(backend="gloo", timeout=MAX_IDLE_TIME)


def join_followers(backend: type, count: int, model: Model, settings: Mapping[str, Any]) -> Followers | None:
    """The other processes, started and told what to build; None in one of them."""
    return None if FOLLOWER_VARIABLE in os.environ else Followers(backend, count, model, settings)


def check_split(folder: Path, count: int) -> None:
    """ConfigError where transformers has no plan for a checkpoint's layers, or heads or GPUs do not suffice."""
    config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False).get_text_config()
    if not config.base_model_tp_plan:
        raise ConfigError(
            f"backend.tensor_parallel needs a plan for the layers, transformers {transformers.__version__} has none "
            f"for model_type {config.model_type}: leave it out"
        )
    heads = stated_size(config, "num_key_value_heads") or stated_size(config, "num_attention_heads")
    if heads is None or heads % count:
        raise ConfigError(
            f"backend.tensor_parallel must divide the number of key heads, {heads}, got {count}: give another, e.g. 2"
        )
    if torch.cuda.is_available() and torch.cuda.device_count() < count:
        raise ConfigError(
            f"backend.tensor_parallel={count} needs as many GPUs, this machine has {torch.cuda.device_count()}: "
            "give that number"
        )


def check_heads_apart(attention: Attention) -> None:
    """Refused for an Attention that looks at all heads of a layer at once, of which a process has some."""
    for part in attention.parts():
        for slot, whole in (
            ("head_ratios", part.head_ratios is not None),
            ("bias", part.bias is not None),
            ("cache", part.cache is not None and part.cache.drops_tokens),
        ):
            if whole:
                raise Refused(
                    f"hf cannot apply {slot} with backend.tensor_parallel, where each process has some of the heads: "
                    "leave it out"
                )


def follow(port: int, rank: int, count: int) -> None:
    """Do what the first process does, until it ends this one; an error is left in the store, for the first to tell."""
    store = dist.TCPStore("127.0.0.1", port, count, is_master=False)
    try:
        _follow_steps(_join(store, rank, count))
    except Exception:  # most often the first one's own, which it tells
        store.set(FAILURE_KEY, traceback.format_exc().strip())
        sys.exit(1)


def _follow_steps(group: Any) -> None:

    def hear() -> Any:
        heard: list[Any] = [None]
        try:
            dist.broadcast_object_list(heard, src=0, group=group)
        except RuntimeError:  # the first process is gone
            sys.exit(0)
        return heard[0]

    build, model, settings = hear()
    try:
        backend = build(model, **settings)
    except (Refused, ConfigError):  # the first one says it
        return
    while True:
        name, given = hear()
        try:
            getattr(backend, name)(*given)
        except (Refused, ConfigError):  # raised by the first one, too
            continue


if __name__ == "__main__":
    follow(*map(int, sys.argv[1:]))
