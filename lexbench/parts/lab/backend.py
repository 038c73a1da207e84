"""The dense reference backend: attention by its definition, in float32 or float64. Defines what is correct; slow."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from lexbench.backends import Backend, Capabilities
from lexbench.backends.caches import PrefixCache
from lexbench.backends.causal import looks_ahead
from lexbench.backends.devices import check_device, device_of
from lexbench.backends.draft import Draft
from lexbench.backends.embedded import check_embedded
from lexbench.checkpoints.checkpoint import checkpoint_fingerprint, end_tokens, folder_of, weight_files
from lexbench.checkpoints.tokenizer import load_tokenizer
from lexbench.core.attention import Attention, Shift, sees_prompt_end
from lexbench.core.errors import ConfigError
from lexbench.core.memory import keep_freed
from lexbench.core.model import Model
from lexbench.core.record import Refused
from lexbench.core.task import (
    Choose,
    ChooseAnswer,
    ClassifyTokens,
    ClassifyTokensAnswer,
    Generate,
    GenerateAnswer,
    Layout,
    Loglikelihood,
    LoglikelihoodAnswer,
    MeasureDivergence,
    MeasureDivergenceAnswer,
    ProbeAttention,
    ProbeAttentionAnswer,
    Tokens,
)
from lexbench.kernels import likelihood, rotations
from lexbench.kernels.observed import Observer
from lexbench.methods.composition import other_attention
from lexbench.parts.lab.encodings import Encoding, Rotate
from lexbench.parts.lab.encodings.rope import Rope
from lexbench.parts.lab.native.attend import merge_slots
from lexbench.parts.lab.native.folder import load_model
from lexbench.parts.lab.native.reading import AttentionPass, TextReading

TORCH_DTYPES = {"float32": torch.float32, "float64": torch.float64}
MIN_REUSED_PROMPT_SHARE = 0.5
"""Smallest cached share of a prompt worth reusing: the rest is then computed without PyTorch's fused kernel."""


class Native(Backend):
    """Runs a folder made by `lexbench train`, or a Llama (tied embeddings, plain RoPE), in our own decoder.

    With `reuse`, the common prefix with the previous prompt is not computed again: results differ in the last bits.

    Args:
        model: with the folder in `path`.
        dtype: float32 or float64, of weights and all computation.
        device: cpu, cuda:1, ... or auto (a GPU if there is one). The last bits of results depend on it.
    """

    name = "native"
    kernel = "dense"
    capabilities = Capabilities(prefix_reuse=True, loads_weights=True, device_setting=True, layouts=True)

    def __init__(self, model: Model, dtype: str = "float32", device: str = "cpu") -> None:
        self.check_settings({"dtype": dtype, "device": device}, model)
        self._device = device_of(device)
        self.device = str(self._device)
        folder = folder_of(model)
        weight_files(folder)
        self.model = model
        self.dtype = dtype
        self.version = f"torch {torch.__version__}"
        self.revision = checkpoint_fingerprint(folder)
        self.tokenizer = load_tokenizer(folder, model.bos)
        self._ends = end_tokens(folder)
        keep_freed()
        self._decoder = load_model(folder, TORCH_DTYPES[dtype]).to(self._device)
        self.parts = [type(each) for each in self._decoder.modules() if isinstance(each, Encoding)]
        self._attention, self._offset = Attention(), 0
        self._passes: tuple[Attention, ...] = (self._attention,)
        self.reuse = False
        self._prefix_cache = PrefixCache[TextReading]()
        vocabulary, encoding = self._decoder.shape.vocabulary, self._decoder.encoding
        if looks_ahead(lambda ids: self.logits(ids, [len(ids)], len(ids)), vocabulary, encoding.longest):
            raise ConfigError(
                f"encoding {encoding.name} must be causal, in this one the last token changes the logits before it: "
                "let hooks see no later tokens, and train it again"
            )

    @classmethod
    def check_settings(cls, settings: Mapping[str, Any], model: Model) -> None:
        """ConfigError for a parameter that is wrong on every machine."""
        dtype, device = settings.get("dtype", "float32"), settings.get("device", "cpu")
        if dtype not in TORCH_DTYPES:
            raise ConfigError(f"backend.dtype must be float32 or float64, got {dtype}")
        if device == "all":
            raise ConfigError("backend.device all needs backend=hf: native holds a model on one device, name it")
        check_device(device)

    def attend(self, attention: Attention) -> None:
        """Apply an Attention, every slot by its definition.

        Raises Refused if the trained encoding does not support a slot, and for `dynamic`.
        """
        shape, encoding = self._decoder.shape, self._decoder.encoding
        attention.check_fits(
            self.model.name, pairs=shape.head_dim // 2, heads=shape.heads, kv_heads=shape.kv_heads, layers=shape.layers
        )
        shifted = isinstance(attention.remap, Shift) and not encoding.remaps and "gates" not in encoding.hooks
        # Distances stay: what has no remap of its own is asked at positions that begin later.
        self._offset = attention.remap.offset if shifted and isinstance(attention.remap, Shift) else 0
        attention = replace(attention, remap=None) if shifted else attention
        passes = attention.mixture or (attention,)
        parts = [part for one in passes for part in one.parts()]
        if any(part.dynamic is not None for part in parts):
            raise Refused(
                "native cannot realise dynamic: it does not keep keys rotated with earlier frequencies, use backend=hf"
            )
        if type(encoding) is not Rope and any(part.growing is not None for part in parts):
            raise Refused(
                f"native realises growing frequencies on plain RoPE only, not {encoding.name}: use method=ntk"
            )
        if not encoding.remaps and any(part.remap is not None or part.head_ratios is not None for part in parts):
            raise Refused(f"{encoding.name} defines its own distances: use a method without remap or head_ratios")
        if "positions" in encoding.hooks and any(part.keep_first is not None for part in parts):
            raise Refused(f"{encoding.name} defines its own positions: use a method without keep_first")
        if type(encoding) is not Rope and attention.keepings:
            raise Refused(f"native compresses caches under plain RoPE only, not {encoding.name}: use encoding rope")
        try:
            # Settle every layer now: slots that clash are refused here, not in the middle of a question.
            for one in passes:
                for layer in range(shape.layers):
                    self._layer_attention(one, layer)
        except ValueError as error:
            raise Refused(str(error)) from None
        self._passes, self._attention = passes, attention
        self._prefix_cache.forget()

    def is_causal(self) -> bool:
        """Whether the states of a prefix do not depend on what follows it, nor on the length of the text."""
        parts = [part for one in self._passes for part in one.parts()]
        ranked = any(part.head_ratios is not None for part in parts)
        split = any(part.cache is not None and sees_prompt_end(part.cache) for part in parts)
        return not ranked and not split and "positions" not in self._decoder.encoding.hooks

    def _layer_attention(self, whole: Attention, layer: int) -> tuple[Attention, Rotate]:
        """The Attention of a layer, joined with the encoding's own slots, and its rotation of queries and keys."""
        encoding, method = self._decoder.encoding.at(layer), whole.at(layer)
        rotate = encoding.rotation(method)
        if method.keep_first is not None:
            rotate = rotations.rotate_keeping_first(method.keep_first, encoding.rotate, rotate)
        return merge_slots(method, encoding.attention, encoding.name), rotate

    def _begin_text(self, prompt: int, length: int, layout: Layout | None = None) -> TextReading:
        """Begin a text, to be read piece by piece; Refused if the encoding has no positions for its length.

        Also where positions are to jump, and a slot or the encoding follows the text instead.
        """
        longest = self._decoder.encoding.longest
        if layout is not None and (why := self._why_no_jumps()):
            raise Refused(
                f"positions cannot jump under {why}: use plain RoPE, and a method that does not read the text"
            )
        if longest is not None and (last := length + self._offset) > longest:
            raise Refused(f"{self._decoder.encoding.name} has positions for {longest} tokens, asked for {last}")
        settle, offset = self._layer_attention, self._offset
        return TextReading(
            [AttentionPass(self._decoder, whole, settle, prompt, length, offset, layout) for whole in self._passes]
        )

    def _why_no_jumps(self) -> str | None:
        """The encoding or slot under which positions cannot jump; None: they can."""
        if type(self._decoder.encoding) is not Rope:
            return self._decoder.encoding.name
        parts = [part for one in self._passes for part in one.parts()]
        slots = ("head_ratios", "growing", "cache")
        return next((slot for slot in slots if any(getattr(part, slot) is not None for part in parts)), None)

    def _read_prompt(self, question: Generate | Choose) -> tuple[TextReading, Tensor]:
        """Read a prompt, reusing its common prefix with the previous one; and its [1, vocabulary] next-token logits."""
        prompt, whole = question.prompt, len(question.prompt)
        end = question.text_tokens or whole if self._attention.keepings else whole
        text, begun = self._begin_text(end, question.length, question.layout), 0
        if question.layout is not None:
            return text, text(self._ids(prompt))[-1:]
        taken = self._prefix_cache.take(prompt)
        if taken and taken[1] >= MIN_REUSED_PROMPT_SHARE * len(prompt):
            text.take_over_prefix(*taken)
            _, begun = taken
        last = text(self._ids(prompt[begun:]))[-1:]
        if self.reuse and self.is_causal():
            self._prefix_cache.keep(prompt, text)  # what the answer adds comes behind it
        return text, last

    def _ids(self, tokens: NDArray[np.integer[Any]]) -> Tensor:
        check_embedded(tokens, self._decoder.shape.vocabulary, self.model.name)
        return torch.from_numpy(tokens).to(self._device)

    @torch.inference_mode()
    def logits(self, tokens: Tokens, pieces: Sequence[int], prompt: int) -> Tensor:
        """[T, vocabulary] next-token logits of a text read in pieces of these sizes; the first holds the prompt."""
        text = self._begin_text(prompt, len(tokens))
        return torch.cat([text(piece) for piece in torch.split(self._ids(tokens), list(pieces))])

    @torch.inference_mode()
    def score(self, question: Loglikelihood) -> LoglikelihoodAnswer:
        """NLL of the targets, from all logits at once."""
        ids = self._ids(question.tokens)
        text = self._begin_text(question.first_target, question.length, question.layout)
        logits = text(ids[:-1])[question.first_target - 1 :]
        return LoglikelihoodAnswer(
            nll=F.cross_entropy(logits, ids[question.first_target :], reduction="none").float().cpu().numpy()
        )

    @torch.inference_mode()
    def diverge(self, question: MeasureDivergence) -> MeasureDivergenceAnswer:
        """Differences of next-token distributions, from all logits at once."""
        ids, start, own = self._ids(question.tokens), question.first_target, self._attention
        other = other_attention(question.against, own, self.model, question.length)
        sides = []
        for attention in (own, other):
            self.attend(attention)
            sides.append(self._begin_text(start, len(ids))(ids[:-1])[None, start - 1 :])
        self.attend(own)
        found = likelihood.divergences(sides[0], sides[1], lambda logits: logits, ids[start:])
        apart, same, nll, other_nll = (each.cpu().numpy() for each in found)
        return MeasureDivergenceAnswer(divergence=apart, same_top=same, nll=nll, other_nll=other_nll)

    @torch.inference_mode()
    def choose(self, question: Choose) -> ChooseAnswer:
        """NLL of each option; the prompt is read once."""
        prompt, last = self._read_prompt(question)
        return ChooseAnswer(nll=self._option_nll(question, [*self._option_logits(question, prompt, last)]))

    def _option_logits(self, question: Choose | Generate, prompt: TextReading, last: Tensor) -> Iterator[Tensor]:
        """[T, vocabulary] logits that the T tokens of each option follow from, behind one reading of the prompt."""
        for option in map(self._ids, question.options):
            # The first token follows from the end of the prompt, and nothing follows from the last one: it is not read.
            yield torch.cat([last, prompt.fork()(option[:-1])]) if len(option) > 1 else last

    def _option_nll(self, question: Choose | Generate, logits: Sequence[Tensor]) -> NDArray[np.float64]:
        """[options] summed NLL of each option."""
        pairs = zip(logits, map(self._ids, question.options), strict=True)
        sums = [F.cross_entropy(each, option, reduction="none").double().sum() for each, option in pairs]
        found: NDArray[np.float64] = torch.stack(sums).cpu().numpy()
        return found

    @torch.inference_mode()
    def mark(self, question: ClassifyTokens) -> ClassifyTokensAnswer:
        """NLL of the options, from all logits at once."""
        tokens = self._ids(question.tokens[: question.places[-1]])
        text = self._begin_text(int(question.places[0]), question.length)
        logits = text(tokens)[torch.from_numpy(question.places - 1).to(self._device)]
        return ClassifyTokensAnswer(nll=-logits.log_softmax(-1)[:, self._ids(question.options)].float().cpu().numpy())

    @torch.inference_mode()
    def write(self, question: Generate) -> GenerateAnswer:
        """Greedy, token by token; Refused where logits are NaN."""
        text, logits = self._read_prompt(question)
        more: dict[str, Any] = {}
        if question.options:
            behind = [*self._option_logits(question, text, logits)]
            more["option_nll"] = self._option_nll(question, behind)
            right = self._ids(question.options[question.expected])
            ranks = likelihood.token_ranks(behind[question.expected][None], lambda given: given, right)
            more["taught_ranks"] = ranks.cpu().numpy()
        draft = Draft(question, self.tokenizer, self._ends, self.dtype)
        while True:
            following = logits[-1].argmax()[None]
            draft.add(following.tolist(), [bool(logits[-1].isnan().any())])
            if draft.ended:
                return replace(draft.as_answer(), **more)
            logits = text(following)

    @torch.inference_mode()
    def probe(self, question: ProbeAttention) -> ProbeAttentionAnswer:
        """Attention statistics of one forward pass."""
        if len(self._passes) > 1:
            raise Refused("native cannot probe a mixture: its passes have different attention weights")
        if not self._decoder.encoding.weighs:
            raise Refused(f"{self._decoder.encoding.name} has no attention weights to probe: it has no softmax")
        observer = Observer(question.length, question.first, question.last, question.shortest)
        self._begin_text(question.length, question.length).passes[0](self._ids(question.tokens), observer)
        return ProbeAttentionAnswer(statistics=observer.statistics())
