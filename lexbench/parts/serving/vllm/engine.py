"""One vLLM engine: start, requests, stop; each error in one line."""

import multiprocessing
import os
import re
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import IO, Any

import numpy as np

from lexbench.core.attention import Floats
from lexbench.core.record import Deferred, Refused
from lexbench.core.task import Tokens
from lexbench.parts.serving.completions import MOST_OPTIONS, Continue, Continued, Likely, Next, Reply, Request

VLLM_ENVIRONMENT_DEFAULTS = {
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",  # a fork would copy our threads' locks
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
}
"""Defaults of vLLM's environment variables; the user's own values win."""
MAX_PROMPT_PLACES = 2**18
"""Log-probabilities of prompts in memory at once: vLLM returns each as a dict of objects, of some 0.5 kB."""
CPU_SHARE = 0.33
"""Default share of a CPU's memory for weights and cache; vLLM reserves it at the start."""


@dataclass(frozen=True, eq=False)
class CosSinTable:
    """Cos and sin of an engine's rotary module at some positions."""

    kind: str
    """Class of the module."""
    rows: int | None
    """Number of positions in its table; None: no table, it computes cos and sin on the fly."""
    halves: bool
    """Whether it pairs dimension p with p + d/2; if not, 2p with 2p + 1."""
    writable: bool
    """Whether it has a table that can be overwritten."""
    cos: Floats
    """[places, rotated / 2]"""
    sin: Floats


class Engine:
    """vLLM's `LLM` on a checkpoint's folder.

    Args:
        folder: of the checkpoint.
        hf_overrides: of its config.
        ends: ids of the end tokens.
        memory_share: share of the device's memory; None: vLLM's default, on a CPU a third.
        eager: no compiling; None: on a CPU only.
        arguments: further arguments of vLLM's `LLM`.

    Raises Deferred, with vLLM's reason, if the engine does not start or dies: another try may have free memory.
    """

    def __init__(
        self,
        folder: str,
        hf_overrides: Mapping[str, Any],
        ends: Sequence[int],
        memory_share: float | None,
        eager: bool | None,
        **arguments: Any,
    ) -> None:
        for name, value in VLLM_ENVIRONMENT_DEFAULTS.items():
            os.environ.setdefault(name, value)
        self._ends = list(ends)
        # The engine does not name its processes, and its memory is free only when they have ended.
        before = multiprocessing.active_children()
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (open as long as the engine runs)
        self._heard = 0
        """Bytes of the log of a start that succeeded."""
        try:
            with _outputs_into(self._log), _interruptible():
                from vllm import LLM
                from vllm.platforms import current_platform

                on_cpu = bool(current_platform.is_cpu())
                share = CPU_SHARE if memory_share is None and on_cpu else memory_share
                self._llm: Any = LLM(
                    folder,
                    hf_overrides=dict(hf_overrides),
                    skip_tokenizer_init=True,
                    generation_config="vllm",  # the checkpoint's own may set sampling and penalties
                    worker_extension_cls="lexbench.parts.serving.vllm.worker.Turning",
                    enforce_eager=on_cpu if eager is None else eager,
                    **({} if share is None else {"gpu_memory_utilization": share}),
                    **arguments,
                )
        except Exception as error:  # GPUs, kernels and configs raise many classes
            raise Deferred(f"vllm's engine does not start ({self._reason(error)}): {INSTALL_REMEDY}") from None

        self._processes = [each for each in multiprocessing.active_children() if each not in before]
        # A start may log errors that it gets over: it warms up a chat template, for which it has no tokenizer here.
        self._heard = self._log.seek(0, os.SEEK_END)

    def tables(self, places: Sequence[int]) -> list[CosSinTable]:
        """The tables of all workers, at these positions."""
        found = self._call_workers("lexbench_tables", list(places))
        return [
            CosSinTable(**{**table, "cos": np.array(table["cos"]), "sin": np.array(table["sin"])})
            for worker in found
            for table in worker
        ]

    def turn(self, inv_freq: Floats, scale: float, first: int, own: Floats) -> None:
        """Overwrite all tables, and clear the prefix cache, which holds keys of the previous method."""
        self._call_workers("lexbench_turn", inv_freq.tolist(), scale, first, own.tolist())
        if not self._llm.reset_prefix_cache():
            raise Deferred("vllm's prefix cache still holds keys of another method, from an interrupted question")

    def _call_workers(self, name: str, *arguments: Any) -> Any:
        """Call a method of all workers, and return their results."""
        try:
            return self._llm.collective_rpc(name, args=arguments)
        except Exception as error:  # errors of another process come in many classes
            raise Deferred(f"vllm's engine has died ({self._reason(error)}): the next cell starts another") from None

    def ask(self, requests: Sequence[Request]) -> list[Reply]:
        """Reply to all requests, as many in the engine at once as `bounded_groups` says.

        Refused if it cannot answer one of them.
        """
        return [reply for group in bounded_groups(requests) for reply in self._ask_together(group)]

    def _ask_together(self, requests: Sequence[Request]) -> list[Reply]:
        from vllm import SamplingParams

        prompts = [{"prompt_token_ids": _prompt(request).tolist()} for request in requests]
        parameters = [
            SamplingParams(temperature=0.0, detokenize=False, **self._sampling_arguments(request))
            for request in requests
        ]
        try:
            outputs = self._llm.generate(prompts, parameters, use_tqdm=False) if requests else []
        except Exception as error:  # as above
            raise Deferred(f"vllm's engine gives no answer ({self._reason(error)})") from None
        return [_reply(request, output) for request, output in zip(requests, outputs, strict=True)]

    def _sampling_arguments(self, request: Request) -> dict[str, Any]:
        """A request as arguments of vLLM's SamplingParams."""
        if isinstance(request, Continue):
            ends = {"stop_token_ids": self._ends, "ignore_eos": True}  # ours are complete, vLLM knows some only
            return {"max_tokens": request.max_new_tokens, "logprobs": 0, **ends}
        options = request.options.tolist() if isinstance(request, Next) else [int(request.tokens[-1])]
        if len(options) > MOST_OPTIONS:
            raise Refused(f"vllm gives the likelihoods of at most {MOST_OPTIONS} options, asked for {len(options)}")
        within = _prompt_places(request) > 0
        return {"max_tokens": 1, "logprob_token_ids": options, "prompt_logprobs": 0 if within else None}

    def close(self) -> None:
        """Stop the engine's processes; their memory is free afterwards."""
        with suppress(Exception):  # a dead engine raises
            self._llm.llm_engine.engine_core.shutdown()
        for process in self._processes:
            process.join(10.0)
        del self._llm
        self._log.close()

    def _reason(self, error: Exception) -> str:
        """The last error in the engine's log, behind its start; if there is none, the raised error."""
        self._log.seek(self._heard)
        lines = self._log.read().decode(errors="replace").splitlines()
        named = [found[1] for line in lines if (found := re.search(r"\b\w*(?:Error|Exception): (.+)", line))]
        causes = [
            each for each in named if "initialization failed" not in each
        ]  # those only repeat that another process failed
        said = causes[-1] if causes else f"{type(error).__name__}: {error}"
        return " ".join(said.split())[:300]


def bounded_groups(requests: Sequence[Request]) -> Iterator[list[Request]]:
    """Requests in order, in groups whose prompts have `MAX_PROMPT_PLACES` log-probabilities or fewer.

    One request may have more.
    """
    group: list[Request] = []
    held = 0
    for request in requests:
        places = _prompt_places(request)
        if places and held and held + places > MAX_PROMPT_PLACES:
            yield group
            group, held = [], 0
        group.append(request)
        held += places
    if group:
        yield group


def _prompt_places(request: Request) -> int:
    """Tokens of a prompt whose log-probability the engine returns: of all, or of none."""
    within = isinstance(request, Likely) and request.first_target < len(request.tokens) - 1
    return len(request.tokens) - 1 if within else 0


INSTALL_REMEDY = "see its requirements, or use backend=hf"


def _prompt(request: Request) -> Tokens:
    """The prompt of a request; for likelihoods without the last token, which is scored as the next token."""
    return request.tokens[:-1] if isinstance(request, Likely) else request.tokens


def _reply(request: Request, output: Any) -> Reply:
    [written] = output.outputs
    if isinstance(request, Continue):
        # vLLM picks a token from NaN as from any other logits.
        drawn = [each[token].logprob for token, each in zip(written.token_ids, written.logprobs, strict=True)]
        if not np.isfinite(drawn).all():
            raise Refused("vllm's logits are NaN: use another dtype")
        ended = written.finish_reason != "length"
        return Continued(tokens=np.array(written.token_ids[: -1 if ended else None], np.int64), hit_room=not ended)
    following = written.logprobs[0]
    if isinstance(request, Next):
        return -np.array([following[int(option)].logprob for option in request.options], np.float32)
    places = range(request.first_target, len(request.tokens) - 1)
    within = [output.prompt_logprobs[place][int(request.tokens[place])].logprob for place in places]
    return -np.array([*within, following[int(request.tokens[-1])].logprob], np.float32)


@contextmanager
def _outputs_into(log: IO[bytes]) -> Iterator[None]:
    """Redirect output of this process and of those it starts into the log: vLLM prints much, errors among it."""
    sys.stdout.flush()
    sys.stderr.flush()
    # By file descriptor: sys.stdout alone would not redirect C libraries and child processes.
    kept = [os.dup(1), os.dup(2)]
    try:
        for number in (1, 2):
            os.dup2(log.fileno(), number)
        yield
    finally:
        for number, before in zip((1, 2), kept, strict=True):
            os.dup2(before, number)
            os.close(before)


@contextmanager
def _interruptible() -> Iterator[None]:
    """Make Ctrl-C stop what is inside: libraries may swallow the KeyboardInterrupt, so repeat it every second."""
    main = threading.main_thread()
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not main or before is not signal.default_int_handler:
        yield
        return
    # The main thread, the only one that sets handlers, under Python's own handler.
    heard = threading.Event()

    def insist() -> None:
        while not heard.wait(1.0):
            signal.pthread_kill(main.ident or 0, signal.SIGINT)

    def interrupt(number: int, frame: object) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        threading.Thread(target=insist, daemon=True).start()
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        heard.set()
        signal.signal(signal.SIGINT, before)
