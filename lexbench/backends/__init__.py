"""One model under one Attention: what the runner asks of a backend."""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from lexbench.core.attention import Attention
from lexbench.core.model import Model
from lexbench.core.record import Refused
from lexbench.core.task import (
    Answer,
    AnyQuestion,
    Choose,
    ChooseAnswer,
    ClassifyTokens,
    ClassifyTokensAnswer,
    Generate,
    GenerateAnswer,
    Loglikelihood,
    LoglikelihoodAnswer,
    MeasureDivergence,
    MeasureDivergenceAnswer,
    ProbeAttention,
    ProbeAttentionAnswer,
    Tokenizer,
    Tokens,
)

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Capabilities:
    """Abilities beyond answering one question at a time in this process."""

    remote: bool = False
    """The model runs in other processes: `answers` takes many questions, `close` ends them; its memory is not ours."""
    prefix_reuse: bool = False
    """The backend keeps the last prompt for questions that begin with the same tokens, where `reuse` is set."""
    batches: bool = False
    """The backend answers several questions in one pass: `batch_key` and `answer_batch`."""
    verifiable: bool = False
    """The backend shows logits and angles, to verify a method: the functions from `logits` to `all_layers_attended`."""
    loads_weights: bool = False
    """The backend reads the weights of the model's folder."""
    device_setting: bool = False
    """Its parameter `device` names a device of this machine."""
    engine_cache: bool = False
    """Its engine keeps the beginnings of texts by itself, unless the parameter `prefix_caching` is false."""
    layouts: bool = False
    """The backend places the tokens of `Choose` and `Loglikelihood` at positions of their own (`Question.layout`)."""
    one_method: bool = False
    """The model has one Attention for as long as it runs, as that of a server: `attend` takes no other."""


class Backend(Protocol):
    """A loaded model. Built from a yaml's parameters and the model's facts: `Hf(model, dtype=..., ...)`.

    A parameter `longest`, where it has one, is filled with the tokens of the longest question to come.
    `attend` raises Refused naming the slot that it cannot realise; the questions' methods raise Refused where
    they cannot answer at all. Running out of memory, as torch or Python says it, defers the cell.
    Methods below the line are needed only where `capabilities` says so.
    """

    name: str
    """hf, native, chance, ...; this and the next four are part of a cell's identity."""
    version: str
    """Versions of the computing libraries: `transformers 5.23.0, torch 2.13.0`."""
    dtype: str
    """dtype of weights and activations: float32, bfloat16, ..."""
    kernel: str
    """Names of the attention kernels in use, joined by `+`: sdpa+lexbench+triton (hf), dense (native), none."""
    revision: str
    """Fingerprint of the weights, or the hub's commit."""
    model: Model
    tokenizer: Tokenizer
    """The checkpoint's, which makes the questions."""
    capabilities: Capabilities = Capabilities()
    device: str | None = None
    """Device that computes, whose memory counts: cpu, cuda, cuda:1, or all (every GPU); None: a GPU if there is one."""
    parts: Sequence[type] = ()
    """Classes of the model that a user may have written, such as its encoding: a cell's identity holds their code."""
    weights_known: bool = True
    """Whether the revision tells the weights: not where a server of the same name may have others tomorrow."""
    reuse: bool = False
    """Keep the last prompt for the next question (`capabilities.prefix_reuse`)."""

    def attend(self, attention: Attention) -> None:
        """Apply this Attention to the model, exactly; an empty one leaves the model unchanged."""

    def write(self, question: Generate) -> GenerateAnswer:
        """Greedy continuation."""

    def choose(self, question: Choose) -> ChooseAnswer:
        """NLL of each option after the prompt."""

    def mark(self, question: ClassifyTokens) -> ClassifyTokensAnswer:
        """NLL of each option at each place."""

    def score(self, question: Loglikelihood) -> LoglikelihoodAnswer:
        """NLL of the targets."""

    def probe(self, question: ProbeAttention) -> ProbeAttentionAnswer:
        """Attention statistics."""

    @classmethod
    def check_settings(cls, settings: Mapping[str, Any], model: Model) -> None:
        """ConfigError for a parameter that is wrong on every machine: asked before a model is loaded, by a dry run too.

        Args:
            settings: those that the user gave, by the constructor's names; their types are right.
            model: whose facts they must fit.
        """
        return

    def diverge(self, question: MeasureDivergence) -> MeasureDivergenceAnswer:
        """Differences of next-token distributions to those of another method; Refused where logits are not shown."""
        raise Refused(f"{self.name} does not show the logits of a whole vocabulary: use backend=hf")

    # Optional, as `capabilities` says ------------------------------------------------------------------------------

    def answers(self, questions: Sequence[AnyQuestion]) -> Iterator[Answer]:
        """remote: the answer of each question in turn; later ones are computed meanwhile."""
        raise AssertionError(f"{self.name} does not state that it can")

    def close(self) -> None:
        """End what was started and free its memory; a second call does nothing."""
        return

    def is_causal(self) -> bool:
        """prefix_reuse: whether, under the present Attention, no later token changes how earlier ones are read."""
        return False

    def batch_key(self, question: AnyQuestion) -> Hashable | None:
        """batches: a key; questions with the same key may share a batch. None: answered alone."""
        return None

    def answer_batch(self, questions: Sequence[AnyQuestion]) -> Iterator[Answer]:
        """batches: answers of questions with the same key, in batches that fit into memory."""
        raise AssertionError(f"{self.name} does not state that it can")

    def logits(self, tokens: Tokens, pieces: Sequence[int], prompt: int) -> "Tensor":
        """verifiable: [T, V] next-token logits of part of the vocabulary, read at once or in pieces with a cache."""
        raise AssertionError(f"{self.name} does not state that it can")

    def logits_together(self, rows: Sequence[Tokens]) -> "list[Tensor]":
        """verifiable: logits of each row, from one padded batch."""
        raise AssertionError(f"{self.name} does not state that it can")

    def difference_from_method(self, length: int) -> float | None:
        """verifiable: largest difference of computed cos, sin or weights to the method's own; None: nothing to see."""
        raise AssertionError(f"{self.name} does not state that it can")

    def wrong_layer(self, attention: Attention, length: int) -> str | None:
        """verifiable: the first layer that turns otherwise than the Attention has it, in words; None: none is seen."""
        return None

    def drops_after(self) -> int | None:
        """verifiable: tokens after which some layers drop old keys; None: they keep all."""
        return None

    def all_layers_attended(self) -> bool:
        """verifiable: whether every layer has called the attention function that was put in place, if one was."""
        raise AssertionError(f"{self.name} does not state that it can")


def capabilities(backend: Any) -> Capabilities:
    """Abilities of a backend, or of its class: stated, or implied by the optional methods of a plug-in."""
    cls = backend if isinstance(backend, type) else type(backend)
    stated = getattr(backend, "capabilities", Capabilities())

    def defines(*names: str) -> bool:
        # A plug-in may inherit from Backend, which has every optional method: only methods of its own count.
        own = (getattr(cls, name, None) for name in names)
        return all(each not in (None, getattr(Backend, name)) for each, name in zip(own, names, strict=True))

    return replace(
        stated,
        remote=stated.remote or defines("answers", "close"),
        prefix_reuse=stated.prefix_reuse or defines("is_causal"),
        batches=stated.batches or defines("batch_key", "answer_batch"),
        verifiable=stated.verifiable
        or defines("logits", "logits_together", "difference_from_method", "all_layers_attended"),
    )
