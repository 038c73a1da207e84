"""The dense oracle: attention by its definition, in float32 or float64. It defines what is correct; it is slow."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from lexbench.backends import Backend, Capabilities
from lexbench.backends.caches import Latest
from lexbench.core.attention import Attention
from lexbench.core.checkpoint import end_tokens, fingerprint, locate, weight_files
from lexbench.core.model import Model
from lexbench.core.record import Refused
from lexbench.core.task import Choose, Chosen, Mark, Marked, Probe, Probed, Score, Scored, Tokens, Write, Written
from lexbench.core.tokenizer import load_tokenizer
from lexbench.encodings import Rotate
from lexbench.kernels import rotations
from lexbench.kernels.observed import Observer
from lexbench.native.attend import together
from lexbench.native.folder import load
from lexbench.native.reading import Pass, Reading

DTYPES = {"float32": torch.float32, "float64": torch.float64}
WORTH = 0.5
"""Share of a prompt that must be known to go on from there: the rest is attended to without PyTorch's fused kernel."""


class Native(Backend):
    """A folder that `lexbench train` made, or a Llama's (tied embeddings, plain RoPE), in our own decoder.

    With `reuse`, a prompt is read from where it parts from the one before it: the same but for the last bits.

    Args:
        model: facts, with the folder in `path`.
        dtype: float32 or float64, of weights and of everything computed.
    """

    name = "native"
    kernel = "dense"
    capabilities = Capabilities(recalls=True)

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
        self.reuse = False
        self._latest = Latest[Reading]()

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
        if "positions" in encoding.hooks and any(part.keep_first is not None for part in parts):
            raise Refused(
                f"{encoding.name} counts positions in its own way: use a method without first tokens of its own"
            )
        try:
            for one in passes:
                for layer in range(shape.layers):
                    self._settled(one, layer)
        except ValueError as error:
            raise Refused(str(error)) from None
        self._passes = passes
        self._latest.forget()

    def sees_no_future(self) -> bool:
        """Whether a text's first tokens are read in the same way whatever follows them, and however long it will be."""
        ranked = any(part.head_ratios is not None for one in self._passes for part in one.parts())
        return not ranked and "positions" not in self._decoder.encoding.hooks

    def _settled(self, whole: Attention, layer: int) -> tuple[Attention, Rotate]:
        """What holds in a layer, the encoding's own slots with it, and how vectors are rotated there."""
        encoding, method = self._decoder.encoding.at(layer), whole.at(layer)
        rotate = encoding.rotating(method)
        if method.keep_first is not None:
            rotate = rotations.keeping_first(method.keep_first, encoding.rotate, rotate)
        return together(method, encoding.attention, encoding.name), rotate

    def _read(self, prompt: int, length: int) -> Reading:
        """A text to be read, piece by piece; Refused where it is longer than the encoding has positions for."""
        longest = self._decoder.encoding.longest
        if longest is not None and length > longest:
            raise Refused(f"{self._decoder.encoding.name} has positions for {longest} tokens, asked for {length}")
        return Reading([Pass(self._decoder, whole, self._settled, prompt, length) for whole in self._passes])

    def _prompted(self, prompt: Tokens, length: int) -> tuple[Reading, Tensor]:
        """A prompt, read from where it parts from the one before it, and the [1, vocabulary] logits behind it."""
        text, begun = self._read(len(prompt), length), 0
        taken = self._latest.take(prompt)
        if taken and taken[1] >= WORTH * len(prompt):
            text.begun_as(*taken)
            _, begun = taken
        last = text(torch.from_numpy(prompt[begun:]))[-1:]
        if self.reuse and self.sees_no_future():
            self._latest.keep(prompt, text.forked())
        return text, last

    @torch.inference_mode()
    def logits(self, tokens: Tokens, pieces: Sequence[int], prompt: int) -> Tensor:
        """[T, vocabulary] next-token logits, the text read in such pieces; the first one holds the prompt."""
        text = self._read(prompt, len(tokens))
        return torch.cat([text(piece) for piece in torch.split(torch.from_numpy(tokens), list(pieces))])

    @torch.inference_mode()
    def score(self, question: Score) -> Scored:
        """NLL of the targets, from all logits at once."""
        ids = torch.from_numpy(question.tokens)
        logits = self._read(question.start, len(ids))(ids[:-1])[question.start - 1 :]
        return Scored(nll=F.cross_entropy(logits, ids[question.start :], reduction="none").float().numpy())

    @torch.inference_mode()
    def choose(self, question: Choose) -> Chosen:
        """NLL of each option; the prompt is read once."""
        prompt, last = self._prompted(question.prompt, question.length)
        sums = []
        for option in map(torch.from_numpy, question.options):
            logits = torch.cat([last, prompt.forked()(option[:-1])]) if len(option) > 1 else last
            sums.append(F.cross_entropy(logits, option, reduction="none").double().sum())
        return Chosen(nll=torch.stack(sums).numpy())

    @torch.inference_mode()
    def mark(self, question: Mark) -> Marked:
        """NLL of the options, from all logits at once."""
        tokens = torch.from_numpy(question.tokens[: question.places[-1]])
        text = self._read(int(question.places[0]), question.length)
        logits = text(tokens)[torch.from_numpy(question.places - 1)]
        return Marked(nll=-logits.log_softmax(-1)[:, torch.from_numpy(question.options)].float().numpy())

    @torch.inference_mode()
    def write(self, question: Write) -> Written:
        """Greedy, token by token."""
        text, logits = self._prompted(question.prompt, question.length)
        new: list[int] = []
        while len(new) < question.room:
            following = logits[-1].argmax()[None]
            if int(following) in self._ends:
                break
            new.append(int(following))
            if question.until and question.said(self.tokenizer.decode(new)):
                break
            if len(new) < question.room:
                logits = text(following)
        said = self.tokenizer.decode(new)
        hit_room = len(new) == question.room and not question.said(said)
        return Written(tokens=np.array(new, dtype=np.int64), text=said, hit_room=hit_room)

    @torch.inference_mode()
    def probe(self, question: Probe) -> Probed:
        """Statistics of one forward pass."""
        if len(self._passes) > 1:
            raise Refused("native cannot probe a mixture: each of its passes attends in its own way")
        observer = Observer(question.length, question.first, question.last)
        self._read(question.length, question.length).passes[0](torch.from_numpy(question.tokens), observer)
        return Probed(statistics=observer.statistics())
