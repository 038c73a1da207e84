"""Checkpoints in Hugging Face form, run by transformers: texts of one length together where they fit, no padding."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
import transformers
from torch import Tensor
from torch.nn import functional as F
from transformers import DynamicCache

from lexbench.backends import Backend, Capabilities
from lexbench.backends.caches import Latest, cut, keeps_all, together
from lexbench.backends.hf.hook import Unrealisable
from lexbench.backends.hf.memory import OutOfMemory, deferring, free_memory
from lexbench.backends.hf.network import DTYPES, check_weights, device_of, load, positions_end
from lexbench.backends.hf.rotary import TOLERANCE, Placed
from lexbench.core.attention import Attention
from lexbench.core.checkpoint import end_tokens, fingerprint, locate, on_disk, weight_files
from lexbench.core.model import Model
from lexbench.core.record import Refused
from lexbench.core.task import (
    Answer,
    AnyQuestion,
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
from lexbench.core.tokenizer import load_tokenizer
from lexbench.kernels import likelihood
from lexbench.kernels.observed import Observer

COLUMNS = 1024
"""Tokens of the vocabulary whose logits are shown where methods are verified."""
ACTIVATIONS = 20
"""Numbers of a model's width that a layer holds for each token: state, queries, keys, values, a gated MLP's three."""
SHARE = 0.5
"""Of the free memory, which texts that are read together may take by this count; where it deceives, they are halved."""
TOGETHER = 1 << 15
"""Tokens that a CPU writes to together at most, 16 texts of 2048: it gains from them, and a killed run loses them."""


class Hf(Backend):
    """Any causal language model of transformers, from safetensors only; no code of the checkpoint is run.

    Args:
        model: facts, with the folder or hub name in `path`.
        dtype: float32, bfloat16, float16 or float64, of weights and activations; likelihoods are float32 always.
        device: auto (a GPU where there is one), cpu, cuda, cuda:1, ...
        chunk: positions whose logits are held at once.
        batch: texts of one length that are scored or written to together, halved where memory ends; auto: as many as
            fit into a GPU's memory; a CPU scores one at a time, and writes to a few. Numbers are the same, but for
            the last bits.
    """

    name = "hf"
    capabilities = Capabilities(recalls=True, batches=True, verifiable=True)

    def __init__(
        self, model: Model, dtype: str = "float32", device: str = "auto", chunk: int = 512, batch: int | str = "auto"
    ) -> None:
        if dtype not in DTYPES:
            raise ValueError(f"backend.dtype must be one of {', '.join(DTYPES)}, got {dtype}")
        if chunk < 1:
            raise ValueError(f"backend.chunk must be at least 1, got {chunk}: positions whose logits are held at once")
        if batch != "auto" and (isinstance(batch, bool) or not isinstance(batch, int) or batch < 1):
            raise ValueError(
                f"backend.batch must be auto or a whole number of at least 1, got {batch!r}: texts at once"
            )
        if model.path is None:
            raise ValueError(f"model {model.name} has no checkpoint to run: give model.path=DIR or a hub name")
        folder = locate(model.path, model.revision)
        weight_files(folder)
        self.model = model
        self.dtype = dtype
        self.version = f"transformers {transformers.__version__}, torch {torch.__version__}"
        self.revision = fingerprint(folder) if on_disk(model.path) else folder.name
        self.tokenizer = load_tokenizer(folder, model.bos)
        self._chunk = chunk
        self._ends = end_tokens(folder)
        self._device = device_of(device)
        with deferring(f"weights of {model.name} in {dtype} on {self._device}"):
            self._network = load(folder, DTYPES[dtype]).to(self._device)
            check_weights(self._network)
        self._base = self._network.base_model
        self._head = self._network.get_output_embeddings()
        self._positions_end = positions_end(self._base)
        self._check_head()
        self._keeps_all = self._reads_into_a_cache()
        # Slots of the scores are computed by our kernels, all else by the model's own: one name for every cell.
        self.kernel = f"{self._network.config._attn_implementation}+lexbench"
        self._positions = Placed(self._network, model.name, model.trained_length, self._positions_end)
        self._passes = [self._positions.prepare(Attention())]
        self._slides = any(DynamicCache(config=self._network.config).is_sliding)
        self._latest = Latest[list[DynamicCache]]()
        self.reuse = False
        self._batch = batch if isinstance(batch, int) else None
        self._limit = sys.maxsize

    def close(self) -> None:
        """Let go of the network, and give a GPU its memory back."""
        del self._network, self._base, self._head, self._positions, self._passes, self._latest
        torch.cuda.empty_cache()

    def attend(self, attention: Attention) -> None:
        """Put the model under this Attention; what cannot be realised exactly is Refused by the slot's name."""
        self._latest.forget()
        self._positions.remove()
        self._passes = [self._positions.prepare(part) for part in attention.mixture or (attention,)]
        self._positions.put(self._passes[0])

    def sees_no_future(self) -> bool:
        """Whether a text's first tokens are read in the same way whatever follows them."""
        ranked = [part.head_ratios is not None for placed in self._passes for part in placed.attention.parts()]
        return not any(ranked) and not any(placed.grows for placed in self._passes)

    def _begun(self, prompt: Tokens) -> tuple[list[DynamicCache], int]:
        """Caches for a prompt, and how many of its first tokens they hold: those of the prompt before it."""
        if (taken := self._latest.take(prompt)) is None:
            return [DynamicCache() for _ in self._passes], 0  # such keep all, so that they can be cut back
        cut(*taken)
        return taken

    def _keep(self, prompt: Tokens, caches: list[DynamicCache]) -> None:
        """What a question leaves for the next one: its prompt, read."""
        if self.reuse and self.sees_no_future():
            cut(caches, len(prompt))
            self._latest.keep(prompt, caches)

    def alike(self, question: AnyQuestion) -> tuple[object, ...] | None:
        """What questions have in common that can be answered together; None: each alone."""
        scores = self._batch is not None or self._device.type == "cuda"  # a CPU is as fast with one text at a time
        if isinstance(question, Score) and scores:
            return Score, question.length, question.start
        return (Write, len(question.prompt), question.room) if isinstance(question, Write) else None

    def together(self, questions: Sequence[AnyQuestion]) -> Iterator[Answer]:
        """Answers of questions that are alike: as many at once as fit, half of them where memory ends."""
        left = [question for question in questions if isinstance(question, Score | Write)]
        while left:
            size = self._size(left[0])
            try:
                found = self._answers(left[:size])
            except OutOfMemory:
                if len(left[:size]) == 1:
                    raise
                self._limit = len(left[:size]) * left[0].length // 2
                continue
            yield from found
            del left[:size]

    def _size(self, question: Score | Write) -> int:
        """Questions like this one that are answered together."""
        size = self._batch
        if size is None:
            config = self._network.config.get_text_config()
            held = ACTIVATIONS + (2 * config.num_hidden_layers if isinstance(question, Write) else 0)
            each = held * config.hidden_size * question.length * DTYPES[self.dtype].itemsize
            size = int(SHARE * free_memory(self._device) / each)
            if self._device.type != "cuda":
                size = min(size, TOGETHER // question.length)
        return max(1, min(size, self._limit // question.length))

    def _answers(self, questions: Sequence[Score | Write]) -> Sequence[Answer]:
        """Of questions that are alike, at once."""
        scores = [question for question in questions if isinstance(question, Score)]
        if scores:
            return self._score(scores)
        return self._write([question for question in questions if isinstance(question, Write)])

    def write(self, question: Write) -> Written:
        """Greedy continuation with a cache; ends at the model's end tokens, which are no part of the answer."""
        return self._write([question])[0]

    @torch.inference_mode()
    def _write(self, questions: Sequence[Write]) -> list[Written]:
        """Questions that are alike, each as if it were alone."""
        self._check_cache()
        first, new, ended = questions[0], [list[int]() for _ in questions], [False for _ in questions]
        with self._answering(first.length):
            self._check_window(first.length - 1)  # before any work is done
            last, caches = self._prompted([question.prompt for question in questions])
            for step in range(first.room):
                feed = _best(likelihood.mixed(_precise(self._head(last))), ended, self.dtype)
                for place, token in enumerate(feed[:, 0].tolist()):
                    if not ended[place]:
                        ended[place] = token in self._ends
                        if not ended[place]:
                            new[place].append(token)
                            until = questions[place].until
                            ended[place] = bool(until) and questions[place].said(self.tokenizer.decode(new[place]))
                if all(ended) or step == first.room - 1:
                    break
                last = self._states(feed, len(first.prompt), caches)[:, :, -1]
            if len(questions) == 1 and not self._slides:
                self._keep(first.prompt, caches)
        return [
            Written(tokens=np.array(tokens, np.int64), text=self.tokenizer.decode(tokens), hit_room=not over)
            for tokens, over in zip(new, ended, strict=True)
        ]

    def _prompted(self, prompts: Sequence[Tokens]) -> tuple[Tensor, list[DynamicCache]]:
        """[passes, B, width] states of prompts' last tokens, and caches that hold the prompts.

        Prompts that may begin alike are read one behind the other, each from where it parts from the one before it.
        """
        size = len(prompts[0])
        if self._slides or (len(prompts) > 1 and not (self.reuse and self.sees_no_future())):
            caches = [DynamicCache(config=self._network.config) for _ in self._passes]  # windows drop older keys
            return self._states(self._ids(*prompts), size, caches)[:, :, -1], caches
        last, read = [], []
        for prompt in prompts:
            caches, begun = self._begun(prompt)
            last.append(self._states(self._ids(prompt[begun:]), size, caches)[:, :, -1])
            read.append([[(layer.keys, layer.values) for layer in cache.layers] for cache in caches])
            if len(prompts) > 1:
                self._keep(prompt, caches)
        if len(prompts) > 1:
            caches = [together(texts) for texts in zip(*read, strict=True)]
        return torch.cat(last, dim=1), caches

    @torch.inference_mode()
    def choose(self, question: Choose) -> Chosen:
        """NLL of each option; the prompt is read once, and each option goes on with its cache."""
        self._check_cache()
        with self._answering(question.length):
            prompt, size = question.prompt, len(question.prompt)
            # Frequencies that follow the longest input so far would carry one option's length to the next.
            again = any(placement.grows for placement in self._passes)
            caches, begun = ([], 0) if again else self._begun(prompt)
            last = self._states(self._ids(prompt[begun:]), size, caches)[:, 0, -1:]
            sums = []
            for option in question.options:
                states = last
                if len(option) > 1 and again:
                    whole = np.concatenate([question.prompt, option[:-1]])
                    states = self._states(self._ids(whole), size)[:, 0, size - 1 :]
                elif len(option) > 1:
                    states = torch.cat([last, self._states(self._ids(option[:-1]), size, caches)[:, 0]], dim=1)
                    for cache in caches:
                        cache.crop(1 - len(option))
                sums.append(self._losses(states, option).double().sum())
            if caches:
                self._keep(prompt, caches)
            return Chosen(nll=torch.stack(sums).cpu().numpy())

    @torch.inference_mode()
    def mark(self, question: Mark) -> Marked:
        """NLL of the options, from one forward pass."""
        with self._answering(question.length):
            last = int(question.places[-1])
            states = self._states(self._ids(question.tokens[:last]), int(question.places[0]))
            states = states[:, 0, self._ids(question.places - 1)[0]]
            options, (weight, bias) = self._ids(question.options)[0], (self._head.weight, self._head.bias)
            return Marked(nll=likelihood.nll_of_options(states, weight, options, bias, self._chunk).cpu().numpy())

    def score(self, question: Score) -> Scored:
        """NLL of the targets; logits exist for these only, a chunk at a time."""
        return self._score([question])[0]

    @torch.inference_mode()
    def _score(self, questions: Sequence[Score]) -> list[Scored]:
        """Questions that are alike."""
        start, length = questions[0].start, questions[0].length
        with self._answering(length):
            states = self._states(self._ids(*(question.tokens[:-1] for question in questions)), start)
            targets = np.concatenate([question.tokens[start:] for question in questions])
            losses = self._losses(states[:, :, start - 1 :].flatten(1, 2), targets).cpu()
            return [Scored(nll=each.numpy()) for each in losses.reshape(len(questions), -1)]

    def _losses(self, states: Tensor, targets: Tokens) -> Tensor:
        """[T] NLL of targets behind [passes, T, width] states."""
        return likelihood.nll(states, self._head.weight, self._ids(targets)[0], self._head.bias, self._chunk)

    @torch.inference_mode()
    def logits(self, tokens: Tokens, pieces: Sequence[int], prompt: int) -> Tensor:
        """[T, COLUMNS] next-token logits: one forward pass, or several pieces of `tokens` with a cache.

        Only those of the first `COLUMNS` tokens of the vocabulary, so that long texts fit.

        Args:
            tokens: [T] ids.
            pieces: tokens of each forward pass, in all T.
            prompt: tokens of the question before its answer, within the first piece.
        """
        with self._answering(len(tokens)):
            caches = [DynamicCache(config=self._network.config) for _ in self._passes]
            parts = torch.split(self._ids(tokens), list(pieces), dim=1)
            return self._columns(torch.cat([self._states(part, prompt, caches)[:, 0] for part in parts], dim=1))

    @torch.inference_mode()
    def logits_together(self, rows: Sequence[Tokens]) -> list[Tensor]:
        """Each row's [T, COLUMNS] next-token logits, from one batch padded on the left."""
        width = max(len(row) for row in rows)
        feed = torch.zeros(len(rows), width, dtype=torch.int64, device=self._device)
        real = torch.zeros_like(feed)
        for number, row in enumerate(rows):
            feed[number, width - len(row) :], real[number, width - len(row) :] = self._ids(row)[0], 1
        with self._answering(width):
            passes = []
            for placement in self._passes:
                self._positions.put(placement)
                places = (real.cumsum(1) - 1).clamp_min(0)
                read = self._base(feed, attention_mask=real, position_ids=places, use_cache=False)
                passes.append(read.last_hidden_state)
            states = torch.stack(passes)
            return [self._columns(states[:, number, width - len(row) :]) for number, row in enumerate(rows)]

    def _columns(self, states: Tensor) -> Tensor:
        """[T, COLUMNS] logits of [passes, T, width] states, a chunk of positions at a time."""
        chunks = states.split(self._chunk, dim=1)  # type: ignore[no-untyped-call]
        return torch.cat([likelihood.mixed(_precise(self._head(chunk)))[:, :COLUMNS] for chunk in chunks])

    def realised(self, length: int) -> float | None:
        """Largest difference of what is computed in place to the method's own numbers; after some forward pass.

        None where these follow the input.
        """
        found = [self._positions.realised(placement, self.model, length) for placement in self._passes]
        return None if None in found else max(error for error in found if error is not None)

    def all_layers_attended(self) -> bool:
        """Whether every layer has asked our attention function, where there is one."""
        hooks = [placement.hook for placement in self._passes if placement.hook is not None]
        return all(len(hook.modules) == len(hook.layers) for hook in hooks)

    def _states(self, tokens: Tensor, prompt: int, caches: Sequence[DynamicCache] = ()) -> Tensor:
        """[passes, B, T, width] states in front of the head; first tokens begin anew, later ones go on with caches."""
        found = []
        for number, placement in enumerate(self._passes):
            cache = caches[number] if caches else None
            begins = cache is None or cache.get_seq_length() == 0
            if begins or len(self._passes) > 1:
                self._positions.put(placement)
            if begins:
                self._positions.begin(prompt)
            found.append(self._base(tokens, past_key_values=cache, use_cache=bool(caches)).last_hidden_state)
        return torch.stack(found)

    @torch.inference_mode()
    def probe(self, question: Probe) -> Probed:
        """Statistics of one forward pass, gathered inside our attention function, a layer at a time."""
        [held, *others] = self._passes
        if others:
            raise Refused("hf cannot probe a mixture: each of its passes attends in its own way")
        observer = Observer(question.length, question.first, question.last)
        watched = self._positions.prepare(held.attention, observer)
        try:
            with self._answering(question.length):
                self._positions.put(watched)
                self._base(self._ids(question.tokens), use_cache=False)
        finally:
            self._positions.put(held)
        return Probed(statistics=observer.statistics())

    def _ids(self, *texts: Tokens) -> Tensor:
        """[B, T] on the device."""
        return torch.from_numpy(np.stack(texts).astype("int64")).to(self._device)

    def _check_window(self, tokens: int) -> None:
        """Layers that see a window drop older keys from their cache, where our attention would look for them."""
        for placed in self._passes:
            if placed.hook is not None and placed.hook.window is not None and tokens > placed.hook.window:
                raise Unrealisable(f"its layers see {placed.hook.window} tokens, asked for {tokens}")

    def _check_cache(self) -> None:
        """Refused where what follows a prompt cannot go on from what the model keeps of it."""
        if not self._keeps_all:
            raise Refused(
                f"hf writes and chooses with a cache of every token's keys and values, {type(self._network).__name__} "
                "keeps a state in some layer: take tasks of likelihoods"
            )

    @contextmanager
    def _answering(self, length: int) -> Iterator[None]:
        """Refused where positions or memory end, or where an obstacle to the Attention shows at this length only."""
        if self._positions_end is not None and length > self._positions_end:
            raise Refused(f"positions end at {self._positions_end}, asked for {length}: no method reaches further")
        try:
            with deferring(f"{length} tokens of {self.model.name} in {self.dtype} on {self._device}"):
                yield
        except Unrealisable as obstacle:
            raise self._positions.explain(obstacle) from None

    def _sample(self) -> Tensor:
        """[1, T] a few tokens that every model can read."""
        limit = min(8, self._positions_end or 8)
        vocabulary = int(self._network.config.get_text_config().vocab_size)
        return torch.arange(1, limit + 1, device=self._device)[None] % vocabulary

    @torch.inference_mode()
    def _reads_into_a_cache(self) -> bool:
        """Whether the model keeps of a text what we cut, copy and go on with: keys and values of every token."""
        tokens = self._sample()
        read = self._base(tokens, use_cache=True)
        return keeps_all(read.get("past_key_values"), tokens.shape[1])

    @torch.inference_mode()
    def _check_head(self) -> None:
        """Our way to logits (last hidden state, head's weight) is the model's own way."""
        tokens = self._sample()
        theirs = _precise(self._network(tokens, use_cache=False).logits)
        states = _precise(self._base(tokens, use_cache=False).last_hidden_state)
        weight, bias = self._head.weight, self._head.bias
        ours = F.linear(states, _precise(weight), None if bias is None else _precise(bias))
        if not (ours - theirs).std() <= TOLERANCE[self._network.dtype] * theirs.std():
            raise Refused(
                f"hf cannot score {self.model.name}: its logits are not its head's (scaled or capped), "
                f"{type(self._network).__name__} is not supported"
            )


def _precise(values: Tensor) -> Tensor:
    """In float32, or float64 if they are."""
    return values.to(torch.promote_types(values.dtype, torch.float32))


def _best(logits: Tensor, ended: Sequence[bool], dtype: str) -> Tensor:
    """[B, 1] the most likely token of each row of [B, V]; rows that have ended may hold anything."""
    if logits[[not over for over in ended]].isnan().any():
        raise Refused(f"logits are not numbers in {dtype}: take another dtype")
    return logits.argmax(-1, keepdim=True)
