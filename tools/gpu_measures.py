"""Measures of the GPU campaign (tools/gpu.py): rates of the card, and models under methods."""

import functools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from lexbench.backends.hf.fast.graphs import RepeatedStep
from lexbench.core.attention import Attention
from tools.gpu_calls import Found, middle_and_spread, peak, said, seconds, wait, writes
from tools.gpu_rooflines import (
    cache_bytes,
    keys_seen,
    matrix_parameters,
    pairs_in_windows,
    read_bytes,
    reading_operations,
    specification,
)
from tools.gpu_sizes import Campaign, attention_of, facts_of

STEPS_TO_RECORD = 3
"""Written tokens after which a step is recorded, and compiled."""


def machine(campaign: Campaign) -> Found:
    """Bytes a second of a copy, operations a second of a matrix product, and what the maker states."""
    scale, device = campaign.scale, campaign.device
    source = torch.ones(scale.copied // 4, device=device)
    target = torch.empty_like(source)
    copied = seconds(lambda: target.copy_(source), device, 10)
    one, two = (torch.randn(scale.product, scale.product, device=device).to(campaign.dtype) for _ in range(2))
    multiplied = seconds(lambda: one @ two, device, 10)
    stated = specification(torch.cuda.get_device_name(0)) if device == "cuda" else None
    more = {"stated": {"operations": stated.operations, "bytes": stated.bytes}} if stated else {}
    return {
        "bytes_per_second": 2 * scale.copied / copied["seconds"],
        "operations_per_second": 2 * scale.product**3 / multiplied["seconds"],
        "spread": {"bytes": copied["spread"]["seconds"], "operations": multiplied["spread"]["seconds"]},
        **more,
    }


class Marks:
    """Times on the device at which the prompt was read, and each further token was there."""

    def __init__(self, device: str) -> None:
        self._device = device
        self._made: list[Any] = []

    def set(self) -> None:
        """Set a mark behind what the device has been told so far."""
        if self._device != "cuda":
            self._made.append(time.perf_counter())
            return
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        self._made.append(event)

    def figures(self) -> dict[str, float]:
        """Seconds of the prompt, of a token once steps are recorded, and of one with what recording takes."""
        wait(self._device)
        start, read, *rest = self._made
        late = self._made[1 + STEPS_TO_RECORD]
        return {
            "prefill": self._between(start, read),
            "token": self._between(late, rest[-1]) / (len(rest) - STEPS_TO_RECORD),
            "token_with_recording": self._between(read, rest[-1]) / len(rest),
        }

    def _between(self, one: Any, other: Any) -> float:
        return float(other - one if self._device != "cuda" else one.elapsed_time(other) / 1000)


@contextmanager
def marked(model: Any, marks: Marks) -> Iterator[None]:
    """A backend sets a mark after each token inside the block, recorded steps counted once."""
    choose, call, inside = model._choose_tokens, RepeatedStep.__call__, [False]

    def chosen(last: Tensor) -> Any:
        made = choose(last)
        if not inside[0]:
            marks.set()
        return made

    def repeated(step: RepeatedStep, given: Tensor) -> Any:
        inside[0] = True
        try:
            made = call(step, given)
        finally:
            inside[0] = False
        marks.set()
        return made

    with patch.object(model, "_choose_tokens", chosen), patch.object(RepeatedStep, "__call__", repeated):
        yield


def measure_model(campaign: Campaign, name: str, method: str, lengths: Sequence[int] = ()) -> Found:
    """Seconds of reading a prompt and of a written token; what they need of operations and bytes; peaks of memory."""
    model, scale = campaign.model(name), campaign.scale
    network = model.reader.network
    found: Found = {"read_bytes": read_bytes(network), "trained_length": model.model.trained_length}
    for length in lengths or scale.prefills:
        attention = Attention()
        if method in ("stock", "static"):
            model.reader.installer.remove()
            call = functools.partial(_stock_call, campaign, network, length, method == "static")
        else:
            found_attention = attention_of(method, model.model, length)
            if found_attention is None:
                return {"left out": "the method does not apply to this model"}
            attention = found_attention
            model.attend(attention)
            call = functools.partial(_own_call, campaign, model, length)
        found[str(length)] = said(functools.partial(_figures, campaign, name, network, attention, length, call))
        if method not in ("stock", "static") and not isinstance(found[str(length)], str):
            found[str(length)]["repeated"] = model.reader.repeated
        model.attend(Attention())
    # A text too long for the memory is a finding beside the shorter ones.
    wrong = [f"{length}: {row}" for length, row in found.items() if isinstance(row, str)]
    return {**found, **({"passed": False, "wrong": wrong} if wrong else {})}


def _figures(
    campaign: Campaign, name: str, network: Any, attention: Attention, length: int, call: Callable[[Marks | None], None]
) -> Found:
    """Figures of several calls, after one in which kernels are made."""
    held = peak(functools.partial(call, None), campaign.device)
    if held is None:
        call(None)
    repeats = []
    for _ in range(campaign.scale.model_repeats):
        marks = Marks(campaign.device)
        marks.set()
        call(marks)
        repeats.append(marks.figures())
    config = network.config.get_text_config()
    own, facts = pairs_in_windows(config, length), facts_of(campaign.scale.models[name], name)
    return {
        **middle_and_spread(repeats),
        "operations": reading_operations(facts, matrix_parameters(network), attention, length, own),
        "cache_bytes": cache_bytes(network, keys_seen(attention, length - 1)),
        "write_bytes": held,
    }


def _own_call(campaign: Campaign, model: Any, length: int, marks: Marks | None) -> None:
    """Write by lexbench."""
    question = writes(1, length, campaign.scale.room)[0]
    if marks is None:
        model.write(question)
        return
    with marked(model, marks):
        model.write(question)


def _stock_call(campaign: Campaign, network: Any, length: int, static: bool, marks: Marks | None) -> None:
    """Write by transformers' `generate`; static: with a cache of one size, whose steps it compiles."""
    from transformers import CompileConfig, GenerationConfig, StoppingCriteriaList

    def mark(ids: Tensor, scores: Any, **named: Any) -> Tensor:
        if marks is not None:
            marks.set()
        return torch.zeros(len(ids), dtype=torch.bool, device=ids.device)

    room, more = campaign.scale.room, dict[str, Any]()
    if static:
        compiled = CompileConfig()
        if campaign.device != "cuda":  # for the trial: it traces, and builds nothing
            compiled = CompileConfig(backend="eager", mode=None)
            compiled._compile_all_devices = True
        more = {"cache_implementation": "static", "compile_config": compiled}
    settings = GenerationConfig(max_new_tokens=room, min_new_tokens=room, do_sample=False, pad_token_id=0, **more)
    ids = torch.from_numpy(writes(1, length, 1)[0].prompt)[None].to(campaign.device)
    criteria = StoppingCriteriaList([mark])
    network.generate(ids, attention_mask=torch.ones_like(ids), generation_config=settings, stopping_criteria=criteria)
