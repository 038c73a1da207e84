"""The dense oracle: attention by its definition, in float32 or float64. It defines what is correct; it is slow."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from lexbench.attention import Attention
from lexbench.checkpoint import end_tokens, fingerprint, locate, weight_files
from lexbench.encodings import Encoding
from lexbench.encodings.rope import Rope
from lexbench.kernels import dense, likelihood, rotations
from lexbench.kernels.logits import Logits
from lexbench.kernels.observed import Observer
from lexbench.model import Model
from lexbench.native.decoder import load
from lexbench.record import Refused
from lexbench.task import (
    Choose,
    Chosen,
    Mark,
    Marked,
    Probe,
    Probed,
    Score,
    Scored,
    Tokens,
    Write,
    Written,
)
from lexbench.tokenizer import load_tokenizer

DTYPES = {"float32": torch.float32, "float64": torch.float64}


class Native:
    """A Llama folder (tied embeddings, plain RoPE) in our own decoder, without any cache.

    Args:
        model: facts, with the folder in `path`.
        dtype: float32 or float64, of weights and of everything computed.
    """

    name = "native"
    kernel = "dense"

    def __init__(self, model: Model, dtype: str = "float32") -> None:
        if dtype not in DTYPES:
            raise ValueError(f"backend.dtype must be float32 or float64, got {dtype}")
        folder = locate(str(model.path), model.revision)
        weight_files(folder)
        self.model = model
        self.dtype = dtype
        self.version = f"torch {torch.__version__}"
        self.revision = fingerprint(folder)
        self.tokenizer = load_tokenizer(folder, model.bos)
        self._ends = end_tokens(folder)
        self._decoder = load(folder, DTYPES[dtype])
        self._plain = self._decoder.encoding
        self._passes: tuple[Attention, ...] = (Attention(),)

    def attend(self, attention: Attention) -> None:
        """Every slot is realised, by its definition; but frequencies that follow a cache's history are Refused."""
        shape = self._decoder.shape
        attention.check_fits(
            self.model.name,
            pairs=shape.head_dim // 2,
            heads=shape.heads,
            kv_heads=shape.kv_heads,
            layers=shape.layers,
        )
        passes = attention.mixture or (attention,)
        if any(part.dynamic is not None for one in passes for part in one.parts()):
            raise Refused("native cannot realise dynamic: it has no cache whose keys could keep older frequencies")
        self._passes = passes

    def _turn(self, attention: Attention) -> dense.Rotate:
        """Rotation at the Attention's frequencies and scale, the first tokens at the model's own."""
        assert isinstance(self._plain, Rope)
        changed = Rope(self.model.head_dim, self._plain.base)
        if attention.inv_freq is not None:
            changed.inv_freq = torch.from_numpy(attention.inv_freq.copy())
        if attention.scale is not None:
            changed.scale = attention.scale
        if attention.keep_first is None:
            return changed.rotate
        return rotations.keeping_first(attention.keep_first, self._plain.rotate, changed.rotate)

    @torch.inference_mode()
    def _logits(self, tokens: Tensor, prompt: int) -> Tensor:
        """[T, vocabulary], of a question with so many tokens before its answer."""
        return likelihood.mixed(torch.stack([self._pass(attention, tokens, prompt) for attention in self._passes]))

    def _pass(self, whole: Attention, tokens: Tensor, prompt: int, observer: Observer | None = None) -> Tensor:
        def attend(layer: int, encoding: Encoding, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            attention, ratios = whole.at(layer), None
            rotate, scaling = self._turn(attention), q.shape[-1] ** -0.5
            if attention.head_ratios is not None:
                asking, known = q[:, :, prompt - 1 : prompt], k[:, :, :prompt]
                ratios = rotations.ranked_ratios(asking, known, rotate, scaling, attention.head_ratios)
            if observer is not None:
                observer(layer, q, k, Logits(attention=attention, rotate=rotate, ratios=ratios, scaling=scaling))
            if ratios is not None:
                rotate = rotations.per_head(ratios, rotate)
            return dense.attend(q, k, v, torch.arange(q.shape[2]), attention, rotate, scaling)

        return self._decoder(tokens[None], attend)[0]  # type: ignore[no-any-return]

    def logits(self, tokens: Tokens, pieces: Sequence[int], prompt: int) -> Tensor:
        """[T, vocabulary] next-token logits, each piece's by a full forward pass up to its end: there is no cache."""
        ends = [sum(pieces[: number + 1]) for number in range(len(pieces))]
        ids = torch.from_numpy(tokens)
        return torch.cat(
            [self._logits(ids[:end], prompt)[end - size :] for end, size in zip(ends, pieces, strict=True)]
        )

    def score(self, question: Score) -> Scored:
        """NLL of the targets, from all logits at once."""
        return Scored(nll=self._losses(question.tokens, question.start).float().numpy())

    def choose(self, question: Choose) -> Chosen:
        """NLL of each option, a full forward pass for every one."""
        size = len(question.prompt)
        sums = [
            self._losses(np.concatenate([question.prompt, option]), size).double().sum() for option in question.options
        ]
        return Chosen(nll=torch.stack(sums).numpy())

    def mark(self, question: Mark) -> Marked:
        """NLL of the options, from all logits at once."""
        tokens = torch.from_numpy(question.tokens[: question.places[-1]])
        logits = self._logits(tokens, int(question.places[0]))[torch.from_numpy(question.places - 1)]
        return Marked(nll=-logits.log_softmax(-1)[:, torch.from_numpy(question.options)].float().numpy())

    @torch.inference_mode()
    def _losses(self, tokens: Tokens, start: int) -> Tensor:
        """NLL of tokens[start:]."""
        ids = torch.from_numpy(tokens)
        return F.cross_entropy(self._logits(ids[:-1], start)[start - 1 :], ids[start:], reduction="none")

    def write(self, question: Write) -> Written:
        """Greedy, a full forward pass for every token."""
        tokens = torch.from_numpy(question.prompt)
        for _ in range(question.room):
            following = self._logits(tokens, len(question.prompt))[-1].argmax()[None]
            if int(following) in self._ends:
                break
            tokens = torch.cat([tokens, following])
            if question.until and question.said(self.tokenizer.decode(tokens[len(question.prompt) :].numpy())):
                break
        new = tokens[len(question.prompt) :].numpy()
        text = self.tokenizer.decode(new)
        return Written(tokens=new, text=text, hit_room=len(new) == question.room and not question.said(text))

    @torch.inference_mode()
    def probe(self, question: Probe) -> Probed:
        """Statistics of one forward pass."""
        if len(self._passes) > 1:
            raise Refused("native cannot probe a mixture: each of its passes attends in its own way")
        observer = Observer(question.length, question.first, question.last)
        self._pass(self._passes[0], torch.from_numpy(question.tokens), question.length, observer)
        return Probed(statistics=observer.statistics())
