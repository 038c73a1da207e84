"""One engine of vLLM: started, asked, and ended, with what went wrong said in a line."""

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

from lexbench.backends.completions import Continue, Continued, Likely, Next, Reply, Request
from lexbench.core.attention import Floats
from lexbench.core.record import Deferred, Refused
from lexbench.core.task import Tokens

SETTINGS = {
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",  # a fork would take over threads of ours
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
}
"""Of vLLM's environment variables, where the user has not set them."""
CPU_SHARE = 0.33
"""Of a CPU's memory, that weights and cache take unless something else is asked; it is reserved at once."""
MOST_OPTIONS = 128
"""Tokens whose likelihood vLLM gives in one request (its MAX_LOGPROB_TOKEN_IDS)."""


@dataclass(frozen=True, eq=False)
class Table:
    """Cos and sin as the engine has them, at some places."""

    kind: str
    """Class of the module that holds them."""
    rows: int | None
    """Positions that it has; None: it computes them as they come."""
    halves: bool
    """Whether dimension p turns with p + d/2; else 2p with 2p + 1."""
    writable: bool
    cos: Floats
    """[places, rotated / 2]"""
    sin: Floats


class Engine:
    """vLLM's `LLM` on a checkpoint's folder.

    Args:
        folder: of the checkpoint.
        hf_overrides: of its config.
        ends: token ids that end what is written.
        memory_share: of the device's memory; None: vLLM's own, on a CPU a third.
        eager: without compiling; None: on a CPU.
        arguments: others of vLLM's `LLM`.

    Raises Deferred where it does not start, or dies, with its own reason: memory may be free later, settings others.
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
        for name, value in SETTINGS.items():
            os.environ.setdefault(name, value)
        self._ends = list(ends)
        before = multiprocessing.active_children()
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (it is the engine's as long as that runs)
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
                    generation_config="vllm",  # the checkpoint's own may change how tokens are drawn
                    worker_extension_cls="lexbench.backends.vllm.worker.Turning",
                    enforce_eager=on_cpu if eager is None else eager,
                    **({} if share is None else {"gpu_memory_utilization": share}),
                    **arguments,
                )
        except Exception as error:  # whatever a GPU, a kernel or a config may say
            raise Deferred(f"vllm's engine does not start ({self._reason(error)}): {REMEDY}") from None

        self._processes = [each for each in multiprocessing.active_children() if each not in before]

    def tables(self, places: Sequence[int]) -> list[Table]:
        """The different tables of all workers."""
        found = self._called("lexbench_tables", list(places))
        return [
            Table(**{**table, "cos": np.array(table["cos"]), "sin": np.array(table["sin"])})
            for worker in found
            for table in worker
        ]

    def turn(self, inv_freq: Floats, scale: float, first: int, own: Floats) -> None:
        """Write all tables, and forget what was read under others."""
        self._called("lexbench_turn", inv_freq.tolist(), scale, first, own.tolist())
        if not self._llm.reset_prefix_cache():
            raise Deferred("vllm's engine still holds what was read under another method: an interrupted question")

    def _called(self, name: str, *arguments: Any) -> Any:
        """What a method of all workers gives."""
        try:
            return self._llm.collective_rpc(name, args=arguments)
        except Exception as error:  # of whatever it is that broke in another process
            raise Deferred(f"vllm's engine is lost ({self._reason(error)}): the next cell starts another") from None

    def ask(self, requests: Sequence[Request]) -> list[Reply]:
        """The replies to all requests, which are in the engine together; Refused where it cannot answer one."""
        from vllm import SamplingParams

        prompts = [{"prompt_token_ids": _prompt(request).tolist()} for request in requests]
        asked = [SamplingParams(temperature=0.0, detokenize=False, **self._asked(request)) for request in requests]
        try:
            outputs = self._llm.generate(prompts, asked, use_tqdm=False) if requests else []
        except Exception as error:  # whatever an engine may say while it computes
            raise Deferred(f"vllm's engine gives no answer ({self._reason(error)})") from None
        return [_reply(request, output) for request, output in zip(requests, outputs, strict=True)]

    def _asked(self, request: Request) -> dict[str, Any]:
        """What a request is in vLLM's sampling parameters."""
        if isinstance(request, Continue):
            ends = {"stop_token_ids": self._ends, "ignore_eos": True}  # ours are all, of which vLLM knows some
            return {"max_tokens": request.room, "logprobs": 0, **ends}
        options = request.options.tolist() if isinstance(request, Next) else [int(request.tokens[-1])]
        if len(options) > MOST_OPTIONS:
            raise Refused(f"vllm gives the likelihoods of at most {MOST_OPTIONS} options, asked for {len(options)}")
        within = isinstance(request, Likely) and request.start < len(request.tokens) - 1
        return {"max_tokens": 1, "logprob_token_ids": options, "prompt_logprobs": 0 if within else None}

    def close(self) -> None:
        """End the engine's processes; their memory is free when this returns."""
        with suppress(Exception):  # a dead engine has nothing to end
            self._llm.llm_engine.engine_core.shutdown()
        for process in self._processes:
            process.join(10.0)
        del self._llm
        self._log.close()

    def _reason(self, error: Exception) -> str:
        """The engine's own last word on what is wrong, else the error's."""
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").splitlines()
        named = [found[1] for line in lines if (found := re.search(r"\b\w*(?:Error|Exception): (.+)", line))]
        ours = [each for each in named if "initialization failed" not in each]  # which only say that another failed
        said = ours[-1] if ours else f"{type(error).__name__}: {error}"
        return " ".join(said.split())[:300]


REMEDY = "see its requirements, or run it with backend=hf"


def _prompt(request: Request) -> Tokens:
    """What the engine reads: of likelihoods all but the last token, which is then asked as what comes next."""
    return request.tokens[:-1] if isinstance(request, Likely) else request.tokens


def _reply(request: Request, output: Any) -> Reply:
    [written] = output.outputs
    if isinstance(request, Continue):
        drawn = [each[token].logprob for token, each in zip(written.token_ids, written.logprobs, strict=True)]
        if not np.isfinite(drawn).all():
            raise Refused("vllm's logits are not numbers: take another dtype")
        ended = written.finish_reason != "length"
        return Continued(tokens=np.array(written.token_ids[: -1 if ended else None], np.int64), hit_room=not ended)
    following = written.logprobs[0]
    if isinstance(request, Next):
        return -np.array([following[int(option)].logprob for option in request.options], np.float32)
    places = range(request.start, len(request.tokens) - 1)
    within = [output.prompt_logprobs[place][int(request.tokens[place])].logprob for place in places]
    return -np.array([*within, following[int(request.tokens[-1])].logprob], np.float32)


@contextmanager
def _outputs_into(log: IO[bytes]) -> Iterator[None]:
    """What this process and those that it starts print goes into the log: the engine's many words, its reasons."""
    sys.stdout.flush()
    sys.stderr.flush()
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
    """Ctrl-C ends what is inside, though a library may miss it: it is said again every second until it is heard."""
    main = threading.main_thread()
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not main or before is not signal.default_int_handler:
        yield
        return
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
