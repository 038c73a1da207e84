"""Dynamic NTK scaling."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

from lexbench.core.attention import Attention, Dynamic, Growing
from lexbench.core.errors import ConfigError
from lexbench.core.model import Model
from lexbench.core.record import Refused
from lexbench.methods.rotary import check_trained_length, ntk_base, transformers_rope_parameters, with_trained_length

LENGTH_POLICIES = ("local_static", "static", "hf_dynamic", "per_position")


@dataclass(frozen=True)
class DynamicNtk:
    """Raise the base with the length in use (emozilla 2023; arXiv 2309.00071, section 3.3).

        b' = b (s L'/L - (s - 1))^(d/(d-2)),  L' = max(L, length in use),  L = trained length

    The rate s says how fast the base grows; it is not a target: at L' = sL the base fits a stretch by s^2 - s + 1. With
    s = 1 it fits L'/L exactly, and nothing changes within the trained length.

    In implementations L' grows while a text is read. Then cached keys keep the frequencies of a shorter text, and
    a text may be measured with the frequencies of an earlier, longer text. Here L' is fixed before the text begins and
    depends on the cell alone (the local static form, Su, kexue.fm/archives/9948), as in all methods without a given
    factor. With s = 1 that is `ntk`. Under policy=per_position L' also grows while a text is read, and keys are rotated
    anew for each query (arXiv 2309.00071: keys are cached before rotation): a token is predicted alike in a text that
    ends there and in a longer one. Queries up to L see the model itself. Only backend=native rotates keys for each
    query, at the cost of all their rotations. transformers' own behaviour is policy=hf_dynamic: for comparison, not for
    measuring.

    Args:
        factor: s, at least 1; not the ratio of lengths, which is always length / trained_length.
        policy: local_static: L' is the cell's length, prompt and answer; static: L' is `target_length` for all lengths,
            shorter and longer; hf_dynamic: as in transformers, L' is the longest length so far and grows while a text
            is read; per_position: L' is i + 1 for the query at i and all keys that it meets.
        target_length: L' of the static policy, tokens, at least the trained length.
        trained_length: L in tokens; None: the model's.
    """

    family: ClassVar[str] = "base"
    per_text: ClassVar[bool] = True

    factor: float = 1.0
    policy: str = "local_static"
    target_length: int | None = None
    trained_length: int | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.factor < math.inf:
            raise ConfigError(
                f"dynamic_ntk's factor must be finite and at least 1, got {self.factor}: 1 fits the length"
            )
        if self.policy not in LENGTH_POLICIES:
            raise ConfigError(
                f"dynamic_ntk's policy must be {' or '.join(LENGTH_POLICIES)}, got {self.policy}: choose one"
            )
        if (self.policy == "static") != (self.target_length is not None):
            raise ConfigError(
                f"dynamic_ntk's target_length belongs to policy=static, got {self.target_length} "
                f"with policy={self.policy}: give both or neither"
            )
        check_trained_length("dynamic_ntk", self.trained_length)

    def attention(self, model: Model, length: int) -> Attention:
        """Frequencies of the raised base.

        Refused unless the model has plain RoPE of at least 4 dimensions, and a trained length up to the target length.
        """
        model = with_trained_length(model, self.trained_length)
        base = self._base(model, length)
        if self.policy == "hf_dynamic":
            return Attention(dynamic=Dynamic(factor=self.factor, trained_length=model.trained_length))
        if self.policy == "per_position":
            plain, pairs = model.rotary_base(), model.rotated // 2
            return Attention(growing=Growing(self.factor, model.trained_length, plain, pairs))
        return Attention(inv_freq=model.inv_freq(base))

    def rope_parameters(self, model: Model, length: int) -> dict[str, Any]:
        """Rope parameters of transformers' config, of type `default`, with the raised base.

        With hf_dynamic its `dynamic`, which takes L from max_position_embeddings: that must be the trained length.
        """
        model = with_trained_length(model, self.trained_length)
        base = self._base(model, length)
        if self.policy == "per_position":
            raise Refused("dynamic_ntk(policy=per_position) has no rope_parameters: its frequencies differ by query")
        if self.policy == "hf_dynamic":
            return transformers_rope_parameters(model, "dynamic", factor=self.factor)
        return transformers_rope_parameters(model, "default", rope_theta=base)

    def _base(self, model: Model, length: int) -> float:
        """b' for the target length, or for the length of the cell."""
        if self.target_length is not None and self.target_length < model.trained_length:
            raise Refused(
                f"dynamic_ntk's target_length must be at least the trained length {model.trained_length}, "
                f"got {self.target_length}: raise target_length"
            )
        # L' is never below L, so that short texts keep the model's own base.
        longest = max(model.trained_length, self.target_length or length)
        return ntk_base(model, self.factor * longest / model.trained_length - (self.factor - 1))
