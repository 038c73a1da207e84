"""The two places at which a loaded model's attention is read: the functions that rotate, and the one that attends.

While a text is read, both are wrapped in place, whatever kernel the model uses, and each wrapped function is the
model's own. Every attention module is given one state for all tokens, so that its queries and keys differ by their
positions alone, and nothing that it attends to reaches the next layer. All is put back afterwards, whatever happens.
"""

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface

from lexbench.backends.hf.exact.layers import rotary_kinds

ROTATION_FUNCTION = re.compile("^_?apply_.*rot")
"""Names of functions of modeling files that rotate queries and keys."""


@dataclass(frozen=True, eq=False)
class AttentionCall:
    """One call of an attention function."""

    module: Any
    query: Tensor
    """[B, H, T, D] as it is given; `key` [B, KV, K, D] alike."""
    key: Tensor
    value: Tensor
    """[B, KV, K, Dv]."""
    attend: Callable[[Tensor, Tensor, Tensor], Tensor]
    """The model's own function, with the mask and options of this call: (query, key, value) to [B, T, H, Dv]."""
    options: dict[str, Any]
    mask: Tensor | None
    normed: dict[int, Tensor]
    """What norms were given, by the address of what they made."""

    def before_norm(self, vectors: Tensor) -> Tensor | None:
        """[B, H, T, D] queries or keys before a norm, if that is the last that was done to them."""
        before = self.normed.get(vectors.data_ptr())
        if before is None or before.numel() != vectors.numel():
            return None
        return before if before.shape == vectors.shape else before.transpose(1, 2)


@dataclass(frozen=True, eq=False)
class RotationCall:
    """One call of a function that rotates."""

    module: Any
    """Whose code has called it."""
    name: str
    before: tuple[Tensor, ...]
    """Vectors [B, ..., D], of queries or keys, as they are given."""
    after: tuple[Tensor, ...]


@dataclass(eq=False)
class Seams:
    """What is recorded of a model while it reads."""

    tower: Any
    """The model's text tower."""
    states: dict[int, Tensor] | None = None
    """[1, 1, W] state of each attention module, by its id, which stands for all tokens; None: each token has its own,
    and the first of all modules are kept."""
    first_states: dict[int, Tensor] = field(default_factory=dict)
    attention: list[AttentionCall] = field(default_factory=list)
    rotations: list[RotationCall] = field(default_factory=list)
    _normed: dict[int, Tensor] = field(default_factory=dict)

    @contextmanager
    def open(self) -> Iterator["Seams"]:
        """Record what the tower does inside the block, beginning anew."""
        self.attention, self.rotations, self._normed = [], [], {}
        modules = list(self.tower.modules())
        with ExitStack() as stack:
            for module in modules:
                handle = module.register_forward_pre_hook(self._give_state, with_kwargs=True)
                stack.callback(handle.remove)
                stack.callback(module.register_forward_hook(self._keep_normed).remove)
            stack.enter_context(_rotary_modules_kept(modules))
            stack.enter_context(_replaced(AttentionInterface, "get_interface", self._interface))
            for namespace in {vars(sys.modules[type(module).__module__]).get("__name__") for module in modules}:
                self._wrap_rotations(stack, vars(sys.modules[str(namespace)]))
            yield self

    def _wrap_rotations(self, stack: ExitStack, names: dict[str, Any]) -> None:
        for name, function in list(names.items()):
            if ROTATION_FUNCTION.match(name) and callable(function) and "vision" not in name:
                stack.callback(names.__setitem__, name, function)
                names[name] = self._recorded_rotation(name, function)

    def _recorded_rotation(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def rotate(*given: Any, **named: Any) -> Any:
            made = function(*given, **named)
            caller = sys._getframe(1).f_locals.get("self")
            after = made if isinstance(made, tuple) else (made,)
            vectors = [each for each in (*given, *named.values()) if isinstance(each, Tensor)]
            before = tuple(each for each, _ in zip(vectors, after, strict=False))
            if caller is not None and len(before) == len(after):
                self.rotations.append(RotationCall(caller, name, before, after))
            return made

        return rotate

    @property
    def _interface(self) -> Callable[..., Any]:
        stock, seams = AttentionInterface.get_interface, self

        def get_interface(interface: Any, kernel: str, default: Callable[..., Any]) -> Callable[..., Any]:
            return seams._recorded_attention(stock(interface, kernel, default))

        return get_interface

    def _recorded_attention(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def attend(
            module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None = None, **options: Any
        ) -> tuple[Tensor, None]:
            def own(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
                mask = attention_mask
                if isinstance(mask, Tensor) and mask.is_floating_point():
                    mask = mask.to(query.dtype)
                made: Tensor = function(module, query, key, value, mask, **options)[0]
                return made

            self.attention.append(AttentionCall(module, query, key, value, own, options, attention_mask, self._normed))
            return value.new_zeros(query.shape[0], query.shape[2], query.shape[1], value.shape[3]), None

        return attend

    def _give_state(self, module: Any, given: tuple[Any, ...], named: dict[str, Any]) -> Any:
        held = named.get("hidden_states", given[0] if given else None)
        if not isinstance(held, Tensor) or held.dim() != 3:
            return None
        if self.states is None:
            self.first_states.setdefault(id(module), held[:1, :1].detach().clone())
            return None
        if (state := self.states.get(id(module))) is None:
            return None

        def alike(each: Any) -> Any:  # of CTRL, all of queries, keys and values are given apart
            fits = isinstance(each, Tensor) and each.dim() == 3 and each.shape[-1] == state.shape[-1]
            return state.to(each).expand_as(each) if fits else each

        return tuple(map(alike, given)), {name: alike(each) for name, each in named.items()}

    def _keep_normed(self, module: Any, given: tuple[Any, ...], made: Any) -> None:
        weight = getattr(module, "weight", None)
        if isinstance(weight, Tensor) and weight.dim() == 1 and isinstance(made, Tensor) and made.dim() == 4:
            self._normed[made.data_ptr()] = given[0]


@contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


@contextmanager
def _rotary_modules_kept(modules: list[nn.Module]) -> Iterator[None]:
    """Put back the frequencies of rotary modules, which those of dynamic and longrope change when they are called."""
    held = [
        (module, dict(vars(module)), {name: buffer.clone() for name, buffer in module.named_buffers(recurse=False)})
        for module in modules
        if rotary_kinds(module) and not list(module.parameters(recurse=False))
    ]
    try:
        yield
    finally:
        for module, names, buffers in held:
            for name, value in names.items():
                if not name.startswith("_"):
                    setattr(module, name, value)
            for name, buffer in buffers.items():
                setattr(module, name, buffer)


@torch.no_grad()
def read_tokens(tower: Any, count: int, tokens: int, **options: Any) -> Any:
    """What a tower makes of `count` texts of one repeated token."""
    vocabulary = int(tower.config.get_text_config().vocab_size)
    ids = torch.full((count, tokens), vocabulary // 2, device=tower.device)
    return tower(input_ids=ids, **options)
