"""A model that exists in this process only: any function from token ids to next-token logits."""

import hashlib
import json
import math
import uuid
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from lexbench.backends import Backend
from lexbench.backends.causal import looks_ahead
from lexbench.backends.draft import Draft
from lexbench.backends.thinking import LocalForm, drop_thought
from lexbench.core.attention import Attention
from lexbench.core.errors import ConfigError
from lexbench.core.model import Model
from lexbench.core.record import Refused
from lexbench.core.task import (
    Choose,
    ChooseAnswer,
    ClassifyTokens,
    ClassifyTokensAnswer,
    Generate,
    GenerateAnswer,
    Loglikelihood,
    LoglikelihoodAnswer,
    ProbeAttention,
    ProbeAttentionAnswer,
    Tokenizer,
    Tokens,
)
from lexbench.kernels import likelihood

Logits = Callable[[NDArray[np.int64]], Any]
"""Function from [T] token ids to [T, V] next-token logits: an array of NumPy, JAX or torch; [1, T, V] is taken, too."""


class Function(Backend):
    """Asks a function for the logits of a whole text; what is written is read again for each new token.

    The function must be causal, which is checked on a few tokens. A method would change it, so only method=none is
    measured.

    Args:
        function: a torch module, called with a [1, T] tensor, or `ids -> logits`, called with a [T] array.
        model: its facts.
        tokenizer: of the model.
        ends: token ids that end an answer.
        revision: what tells these weights from others; None: a hash of a module's weights. For any other function:
            a new one each time, so that no answer of an earlier function is taken for its own.
    """

    name = "function"
    kernel = "own"

    def __init__(
        self,
        function: Logits | nn.Module,
        model: Model,
        tokenizer: Tokenizer,
        ends: Collection[int] = (),
        revision: str | None = None,
    ) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.version = f"torch {torch.__version__}"
        self._function = function
        self._ends = frozenset(ends)
        self._checked = False
        self.dtype = "own"
        if isinstance(function, nn.Module):
            self.dtype = str(next((each.dtype for each in function.parameters()), "own")).removeprefix("torch.")
            self.device = str(next((each.device for each in function.parameters()), "cpu"))
            self.revision = revision or weights_hash(function)
        else:
            self.revision = revision or uuid.uuid4().hex[:16]

    def attend(self, attention: Attention) -> None:
        """Accept the model as it is; Refused for every method, ConfigError for a function that is not causal."""
        if attention.slots() or attention.mixture:
            raise Refused("a function has no attention to change: use method=none, or give a model of transformers")
        if not self._checked and looks_ahead(self._logits, self.tokenizer.vocabulary):
            raise ConfigError(
                "a function must be causal, in this one the last token changes the logits before it: "
                "let each row depend on the tokens up to its own"
            )
        self._checked = True

    def _logits(self, ids: Tokens) -> Tensor:
        """[T, V] float32 logits (float64 where the function gives these)."""
        if isinstance(self._function, nn.Module):
            given = self._function(torch.from_numpy(ids)[None].to(self.device))
            given = given if isinstance(given, Tensor) else getattr(given, "logits", given)
        else:
            given = self._function(ids)
        if not isinstance(given, Tensor):
            given = np.array(given)  # a copy: arrays of JAX cannot be written to, of which torch warns
            if given.dtype.kind not in "fiu":
                raise ConfigError(f"a function must give logits, gave {given.dtype} of shape {list(given.shape)}")
        found = given.detach() if isinstance(given, Tensor) else torch.from_numpy(given)
        found = found[0] if found.ndim == 3 and len(found) == 1 else found
        if found.ndim != 2 or len(found) != len(ids):
            raise ConfigError(
                f"a function must give logits of shape [{len(ids)}, V] for {len(ids)} tokens, "
                f"gave {list(found.shape)}: one row for each token"
            )
        return found.to(torch.promote_types(found.dtype, torch.float32))

    def _nll(self, ids: Tokens, start: int) -> Tensor:
        """NLL of ids[start:], each given all before it."""
        logits = self._logits(ids[:-1])[start - 1 :]
        if (largest := int(ids[start:].max())) >= logits.shape[1]:
            raise ConfigError(
                f"a function must give a logit for each token of the vocabulary, "
                f"gave {logits.shape[1]} and is asked for token {largest}"
            )
        return F.cross_entropy(logits, torch.from_numpy(ids[start:]).to(logits.device), reduction="none")

    @torch.inference_mode()
    def score(self, question: Loglikelihood) -> LoglikelihoodAnswer:
        """NLL of the targets."""
        return LoglikelihoodAnswer(nll=self._nll(question.tokens, question.first_target).float().cpu().numpy())

    @torch.inference_mode()
    def choose(self, question: Choose) -> ChooseAnswer:
        """NLL of each option; the prompt is read with each."""
        prompt = question.prompt
        sums = [self._nll(np.concatenate([prompt, option]), len(prompt)).double().sum() for option in question.options]
        return ChooseAnswer(nll=torch.stack(sums).cpu().numpy())

    @torch.inference_mode()
    def mark(self, question: ClassifyTokens) -> ClassifyTokensAnswer:
        """NLL of the options at each place."""
        logits = self._logits(question.tokens[: question.places[-1]])[torch.from_numpy(question.places - 1)]
        return ClassifyTokensAnswer(
            nll=-logits.log_softmax(-1)[:, torch.from_numpy(question.options)].float().cpu().numpy()
        )

    @torch.inference_mode()
    def write(self, question: Generate) -> GenerateAnswer:
        """Greedy, token by token; Refused where logits are NaN."""
        text, draft = question.prompt, Draft(question, self.tokenizer, self._ends, self.dtype)
        while not draft.ended:
            logits = self._logits(text)[-1]
            following = int(logits.argmax())
            draft.add([following], [bool(logits.isnan().any())])
            text = np.append(text, following)
        return replace(drop_thought(draft.as_answer(), self.tokenizer, LocalForm()), **self._measure_options(question))

    def _measure_options(self, question: Generate) -> dict[str, Any]:
        """Fields of an answer that tell the likelihoods of its options; the prompt is read with each."""
        if not question.options:
            return {}
        prompt, right = question.prompt, question.options[question.expected]
        losses = [self._nll(np.concatenate([prompt, option]), len(prompt)) for option in question.options]
        logits = self._logits(np.concatenate([prompt, right])[:-1])[len(prompt) - 1 :]
        ranks = likelihood.token_ranks(logits[None], lambda given: given, torch.from_numpy(right).to(logits.device))
        return {
            "option_nll": np.array([float(each.double().sum()) for each in losses]),
            "taught_ranks": ranks.cpu().numpy(),
        }

    def probe(self, question: ProbeAttention) -> ProbeAttentionAnswer:
        """Always Refused: a function shows no attention."""
        raise Refused("a function shows no attention to probe: give a model of transformers")


def weights_hash(module: nn.Module) -> str:
    """Hash of a module's class, of every weight and buffer (name, dtype, shape, bytes), and of its config, if any.

    Buffers that no checkpoint holds count, too: inv_freq of a RoPE is one.
    """
    digest = hashlib.sha256(type(module).__qualname__.encode())
    config: Any = getattr(module, "config", None)
    if hasattr(config, "to_dict"):
        digest.update(json.dumps(config.to_dict(), sort_keys=True, default=str).encode())
    for name, tensor in sorted({**dict(module.named_buffers()), **module.state_dict()}.items()):
        digest.update(f"{name}:{tensor.dtype}:{list(tensor.shape)}:".encode())
        # As bytes: NumPy has no bfloat16.
        digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy())
    return digest.hexdigest()[:16]


def count_parameters(module: nn.Module) -> int:
    """Number of weights, each shared one once."""
    return sum(math.prod(each.shape) for each in module.parameters())
