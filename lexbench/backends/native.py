"""The dense oracle: attention by its definition, in float32 or float64. It defines what is correct; it is slow."""

import torch
from torch import Tensor
from torch.nn import functional as F

from lexbench.attention import Attention
from lexbench.checkpoint import end_tokens, fingerprint, locate, weight_files
from lexbench.encodings import Encoding
from lexbench.encodings.rope import Rope
from lexbench.kernels import dense
from lexbench.model import Model
from lexbench.native.decoder import load
from lexbench.record import Refused
from lexbench.task import Probe, Probed, Score, Scored, Write, Written
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
        self._attention = Attention()

    def attend(self, attention: Attention) -> None:
        """Every slot is realised, by its definition."""
        assert isinstance(self._plain, Rope)
        changed = Rope(self.model.head_dim, self._plain.base)
        if attention.inv_freq is not None:
            changed.inv_freq = torch.from_numpy(attention.inv_freq.copy())
        if attention.scale is not None:
            changed.scale = attention.scale
        self._attention = attention
        self._changed = changed

    def _attend(self, layer: int, encoding: Encoding, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        held = self._attention.layers is None or layer in self._attention.layers
        rotate = (self._changed if held else self._plain).rotate
        attention = self._attention if held else Attention()
        positions = torch.arange(q.shape[2])
        return dense.attend(q, k, v, positions, attention, rotate, q.shape[-1] ** -0.5)

    @torch.inference_mode()
    def _logits(self, tokens: Tensor) -> Tensor:
        """[T, vocabulary]"""
        return self._decoder(tokens[None], self._attend)[0]  # type: ignore[no-any-return]

    def score(self, question: Score) -> Scored:
        """NLL of the targets, from all logits at once."""
        tokens = torch.from_numpy(question.tokens)
        logits = self._logits(tokens[:-1])[question.start - 1 :]
        losses = F.cross_entropy(logits, tokens[question.start :], reduction="none")
        return Scored(nll=losses.float().numpy())

    def write(self, question: Write) -> Written:
        """Greedy, a full forward pass for every token."""
        tokens = torch.from_numpy(question.prompt)
        for _ in range(question.room):
            following = self._logits(tokens)[-1].argmax()[None]
            if int(following) in self._ends:
                break
            tokens = torch.cat([tokens, following])
        new = tokens[len(question.prompt) :].numpy()
        return Written(tokens=new, text=self.tokenizer.decode(new), hit_room=len(new) == question.room)

    def probe(self, question: Probe) -> Probed:
        """Not yet."""
        raise Refused("native has no attention probes")
