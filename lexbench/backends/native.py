"""The dense oracle: attention by its definition, in float32 or float64. It defines what is correct; it is slow."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from lexbench.attention import Attention
from lexbench.checkpoint import end_tokens, fingerprint, locate, weight_files
from lexbench.encodings import Encoding, Rotate
from lexbench.kernels import likelihood, rotations
from lexbench.kernels.observed import Observer
from lexbench.model import Model
from lexbench.native.attend import Layer, together
from lexbench.native.decoder import Cache
from lexbench.native.folder import load
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
    """A folder that `lexbench train` made, or a Llama's (tied embeddings, plain RoPE), in our own decoder.

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
        self._passes: tuple[Attention, ...] = (Attention(),)

    def attend(self, attention: Attention) -> None:
        """Every slot is realised, by its definition; Refused where the encoding has no place for one.

        Frequencies that follow a cache's history are Refused, too.
        """
        shape, encoding = self._decoder.shape, self._decoder.encoding
        attention.check_fits(
            self.model.name,
            pairs=shape.head_dim // 2,
            heads=shape.heads,
            kv_heads=shape.kv_heads,
            layers=shape.layers,
        )
        passes = attention.mixture or (attention,)
        parts = [part for one in passes for part in one.parts()]
        if any(part.dynamic is not None for part in parts):
            raise Refused("native cannot realise dynamic: it has no cache whose keys could keep older frequencies")
        if not encoding.remaps and any(part.remap is not None or part.head_ratios is not None for part in parts):
            raise Refused(f"{encoding.name} knows no distances but its own: use a method that remaps none")
        try:
            for one in passes:
                for layer in range(shape.layers):
                    self._settled(one, layer)
        except ValueError as error:
            raise Refused(str(error)) from None
        self._passes = passes

    def _settled(self, whole: Attention, layer: int) -> tuple[Attention, Rotate]:
        """What holds in a layer, the encoding's own slots with it, and how vectors are rotated there."""
        encoding, method = self._decoder.encoding.at(layer), whole.at(layer)
        rotate = encoding.rotating(method)
        if method.keep_first is not None:
            rotate = rotations.keeping_first(method.keep_first, encoding.rotate, rotate)
        return together(method, encoding.attention, encoding.name), rotate

    def _check_length(self, tokens: int) -> None:
        longest = self._decoder.encoding.longest
        if longest is not None and tokens > longest:
            raise Refused(f"{self._decoder.encoding.name} has positions for {longest} tokens, asked for {tokens}")

    @torch.inference_mode()
    def _logits(self, tokens: Tensor, prompt: int, length: int) -> Tensor:
        """[T, vocabulary], of a question of so many tokens with so many before its answer."""
        self._check_length(length)
        passes = [self._pass(attention, tokens, prompt, length) for attention in self._passes]
        return likelihood.mixed(torch.stack(passes))

    def _pass(
        self, whole: Attention, tokens: Tensor, prompt: int, length: int, observer: Observer | None = None
    ) -> Tensor:
        def attend(layer: int, encoding: Encoding, q: Tensor, k: Tensor, v: Tensor, positions: Tensor) -> Tensor:
            attention, rotate = self._settled(whole, layer)
            if attention.head_ratios is not None:
                asking, known = encoding.prepare(q[:, :, prompt - 1 : prompt], k[:, :, :prompt])
                scaling = encoding.scaling(q.shape[-1])
                ratios = rotations.ranked_ratios(asking, known, rotate, scaling, attention.head_ratios)
                rotate = rotations.per_head(ratios, rotate)
            settled = Layer(encoding, attention, q, k, positions, rotate)
            if observer is not None:
                observer(layer, *settled.observed())
            return settled.attended(v)

        return self._decoder(tokens[None], attend, cache=Cache(length))[0]  # type: ignore[no-any-return]

    def logits(self, tokens: Tokens, pieces: Sequence[int], prompt: int) -> Tensor:
        """[T, vocabulary] next-token logits, each piece's by a full forward pass up to its end: there is no cache."""
        ends = [sum(pieces[: number + 1]) for number in range(len(pieces))]
        ids = torch.from_numpy(tokens)
        return torch.cat(
            [self._logits(ids[:end], prompt, len(ids))[end - size :] for end, size in zip(ends, pieces, strict=True)]
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
        logits = self._logits(tokens, int(question.places[0]), question.length)[torch.from_numpy(question.places - 1)]
        return Marked(nll=-logits.log_softmax(-1)[:, torch.from_numpy(question.options)].float().numpy())

    @torch.inference_mode()
    def _losses(self, tokens: Tokens, start: int) -> Tensor:
        """NLL of tokens[start:]."""
        ids = torch.from_numpy(tokens)
        logits = self._logits(ids[:-1], start, len(ids))[start - 1 :]
        return F.cross_entropy(logits, ids[start:], reduction="none")

    def write(self, question: Write) -> Written:
        """Greedy, a full forward pass for every token."""
        tokens = torch.from_numpy(question.prompt)
        for _ in range(question.room):
            following = self._logits(tokens, len(question.prompt), question.length)[-1].argmax()[None]
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
        self._check_length(question.length)
        observer = Observer(question.length, question.first, question.last)
        tokens = torch.from_numpy(question.tokens)
        self._pass(self._passes[0], tokens, question.length, question.length, observer)
        return Probed(statistics=observer.statistics())
