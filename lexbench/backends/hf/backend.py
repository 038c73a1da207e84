"""Hugging Face checkpoints run by transformers.

Texts and prompts of about one length are read together, padded on the right: no text sees what stands behind it. What
is kept of prompts is then padded on the left, so that prompts of any lengths are continued together.
"""

import importlib.util
import itertools
import sys
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, cast

import numpy as np
import torch
import transformers
from torch import Tensor

from lexbench.backends import Backend, Capabilities
from lexbench.backends.caches import PrefixCache, in_common
from lexbench.backends.devices import device_of
from lexbench.backends.draft import Draft
from lexbench.backends.hf.batches import (
    ACTIVATIONS,
    READ,
    READ_ON_CPU,
    SHARE,
    TOGETHER,
    Batched,
    about_alike,
    first_of,
    kept_numbers,
    read_of,
    rows_of,
    tokens_of,
)
from lexbench.backends.hf.graphs import LEAST, Found, Repeated
from lexbench.backends.hf.head import states_of
from lexbench.backends.hf.hook import Unrealisable
from lexbench.backends.hf.memory import return_freed, trying
from lexbench.backends.hf.network import (
    DTYPES,
    check_weights,
    load,
    positions_end,
    spreads,
    windows_of,
)
from lexbench.backends.hf.products import widen
from lexbench.backends.hf.rotary import TOLERANCE, AttentionInstaller, Placement
from lexbench.backends.hf.state import Keys, State, Unkept, state_of
from lexbench.backends.hf.tower import parts, sample
from lexbench.backends.thinking import MARKERS, LocalForm, in_stages
from lexbench.core.attention import Attention
from lexbench.core.checkpoint import dtype_of, end_tokens, folder_of, revision_of, weight_files
from lexbench.core.machine import free_bytes
from lexbench.core.memory import OutOfMemory, deferring
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
    Tokenizer,
    Tokens,
    Write,
    Written,
)
from lexbench.core.tokenizer import FastTokenizer, load_tokenizer
from lexbench.kernels import likelihood
from lexbench.kernels.fast import Form
from lexbench.kernels.observed import Observer

COLUMNS = 1024
"""Tokens of the vocabulary whose logits are compared when a method is verified."""
COMPARED = 64
"""Positions whose logits over the whole vocabulary are in memory at once, while a method is verified."""
WORTH = 0.25
"""Smallest share of a prompt that is taken from the one before it. Of 4,096 tokens on a CPU, reading the rest costs 0.7
of the whole where a quarter is shared, 0.6 with a half, 0.15 with nine tenths (processor time beside other work). With
the mask of a stock kernel, where ours does not fit the model, it is 1.0, 0.8 and 0.15."""
PIECE = 64
"""Fewest tokens for which a text is continued by our attention function: a mask for fewer costs little."""
LOOK = 8
"""Tokens written on a GPU between two looks at them, each of which waits for the device."""
KERNELS = ("auto", "lexbench", "merged", "triton")
"""Values of `backend.attention`."""


class Hf(Backend):
    """Runs any causal language model of transformers, from safetensors only; never runs code from the checkpoint.

    Args:
        model: with the folder or hub name in `path`.
        dtype: of weights and activations: float32, bfloat16, float16 or float64; auto: on a GPU the checkpoint's own,
            on a CPU float32. Cells record which it was. Likelihoods are always float32.
        device: auto (a GPU if there is one; all of them if one cannot hold the weights), all (the layers spread over
            all GPUs, by accelerate), cpu, cuda, cuda:1, ...
        chunk: positions with logits in memory at once.
        batch: texts in a batch, halved on out-of-memory; auto: as many as fit into a GPU's memory; a CPU scores one
            text at a time and writes to a few. Texts that are scored or marked together have about one length, and one
            length exactly where angles or ranks of heads depend on all of a text. Batching changes numbers in the last
            bits only.
        attention: auto (the model's kernel wherever a method leaves scores as they are, and on a GPU Triton kernels for
            windows and far keys, where the package is installed), lexbench (our attention function always), triton
            (auto, where Triton must be there) or merged (auto, without Triton). Stock kernels compute a sliding window
            as a masked whole text on a CPU, with a mask of length x length; ours costs what the window holds. Numbers
            differ in the last bits only.
        chat: every question is one user message of the chat template. False: only where a task says so.
        system: chat: message in front of the user's; None: none.
        thinking: chat: `none` tells the template not to think; `free` lets the model think, and without an end of the
            thought there is no answer; `budget` ends the thought at its budget.
        thought: chat: tokens for thinking, beside those of the answer; both count in the length. First words of the
            answer stand behind the thought.
        markers: chat: what begins and ends a thought.
    """

    name = "hf"
    as_chat = LocalForm.as_chat
    _form = LocalForm()
    capabilities = Capabilities(recalls=True, batches=True, verifiable=True)

    def __init__(
        self,
        model: Model,
        dtype: str = "auto",
        device: str = "auto",
        chunk: int = 512,
        batch: int | str = "auto",
        attention: str = "auto",
        chat: bool = False,
        system: str | None = None,
        thinking: str = "none",
        thought: int = 0,
        markers: Sequence[str] = MARKERS,
    ) -> None:
        if dtype not in ("auto", *DTYPES):
            raise ValueError(f"backend.dtype must be one of auto, {', '.join(DTYPES)}, got {dtype}")
        if chunk < 1:
            raise ValueError(f"backend.chunk must be at least 1 position, got {chunk}: e.g. backend.chunk=512")
        if batch != "auto" and (isinstance(batch, bool) or not isinstance(batch, int) or batch < 1):
            raise ValueError(
                f"backend.batch must be auto or a whole number of at least 1, got {batch!r}: e.g. backend.batch=8"
            )
        if attention not in KERNELS:
            raise ValueError(f"backend.attention must be auto, lexbench, merged or triton, got {attention}")
        folder = folder_of(model)
        weight_files(folder)
        self._device = device_of(device)
        if attention == "triton" and (why := _no_triton(self._device)):
            raise ValueError(f"backend.attention=triton needs {why}: leave it out")
        dtype = self.dtype = dtype_of(dtype, folder, self._device.type != "cpu")
        self.revision = revision_of(model, folder)
        self._form = LocalForm(chat, system, thinking, thought, markers=tuple(markers))
        self.tokenizer: Tokenizer = self._form.tokenizer(load_tokenizer(folder, model.bos))
        self._ends = end_tokens(folder)
        spread = spreads(device, folder, dtype)
        self.device = "all" if spread else str(self._device)
        with deferring(f"weights of {model.name} in {dtype} on {'all GPUs' if spread else self._device}"):
            network = load(folder, DTYPES[dtype], spread)
            network = network if spread else network.to(self._device)
            check_weights(network)
        if spread:
            self._device = network.get_input_embeddings().weight.device
        elif self._device.type == "cpu":
            widen(network)
            return_freed()
        with deferring(f"a first text of {model.name} in {dtype} on {self._device}"):
            self._put(model, network, chunk, batch, attention)

    @classmethod
    def of(cls, network: Any, model: Model, tokenizer: Tokenizer, ends: Collection[int], revision: str) -> "Hf":
        """The backend of a network that is loaded already; it is left in its dtype, on its device."""
        made = cls.__new__(cls)
        made.dtype = str(network.dtype).removeprefix("torch.")
        if made.dtype not in DTYPES:
            raise ValueError(
                f"a network must be of one of {', '.join(DTYPES)}, this one is of {made.dtype}: convert it"
            )
        made.revision, made.tokenizer, made._ends = revision, tokenizer, frozenset(ends)
        made._device = network.get_input_embeddings().weight.device
        made.device = "all" if len({weight.device for weight in network.parameters()}) > 1 else str(made._device)
        with deferring(f"a first text of {model.name} in {made.dtype} on {made._device}"):
            made._put(model, network)
        return made

    def _put(
        self, model: Model, network: Any, chunk: int = 512, batch: int | str = "auto", attention: str = "auto"
    ) -> None:
        """Take a loaded network."""
        self.model = model
        self.version = f"transformers {transformers.__version__}, torch {torch.__version__}"
        self._chunk = chunk
        self._network, self._base, self._head = parts(network, model.name)
        self._positions_end = positions_end(self._base, sample(self._network, 1))
        self._state = self._state_of()
        # Our kernels compute the slots that change scores, the model's kernel the rest; one name for all methods, so
        # that cells of a comparison agree in it.
        form: Form = "merged" if attention == "merged" or _no_triton(self._device) else "triton"
        stock = [] if attention == "lexbench" else [self._network.config._attn_implementation]
        self.kernel = "+".join([*stock, "lexbench", *(["triton"] if form == "triton" else [])])
        self._installer = AttentionInstaller(
            self._network,
            model.name,
            model.trained_length,
            self._positions_end,
            self._base,
            always=attention == "lexbench",
            form=form,
        )
        self._passes = [self._installer.prepare(Attention())]
        self._continuing: dict[int, Placement] = {}
        # Layers of the cache that transformers makes for this config, not the config, say whether it drops keys.
        self._windows = Keys(self._network.config).windows() if self._state is Keys else []
        self._prefix_cache = PrefixCache[list[Keys]]()
        self.reuse = False
        self._batch = batch if isinstance(batch, int) else None
        # Tokens of a batch: running out of memory lowers it for all later ones.
        self._limit = sys.maxsize
        self._look, self._read = (LOOK, READ) if self._device.type == "cuda" else (1, READ_ON_CPU)
        self._pads: dict[bool, bool] = {}
        self._graphs = self._device.type == "cuda"
        self._repeated: bool | None = None

    def close(self) -> None:
        """Release the network, as it was before any method, and free its memory; a second call does nothing."""
        if "_network" not in vars(self):
            return
        self._installer.remove()
        del self._network, self._base, self._head, self._installer, self._passes, self._continuing, self._prefix_cache
        torch.cuda.empty_cache()

    def attend(self, attention: Attention) -> None:
        """Apply an Attention to the model; Refused, with the slot's name, if it cannot be realised exactly."""
        self._prefix_cache.forget()
        self._installer.remove()
        with deferring(f"a method on {self.model.name} in {self.dtype} on {self._device}"):
            for part in attention.mixture or (attention,):
                self._installer.check_rope(self.model, part)
            self._passes = [self._installer.prepare(part) for part in attention.mixture or (attention,)]
        self._continuing.clear()
        self._repeated = None
        self._installer.put(self._passes[0])

    def sees_no_future(self) -> bool:
        """Whether the states of a prefix do not depend on what follows it."""
        ranked = [part.head_ratios is not None for placement in self._passes for part in placement.attention.parts()]
        return not any(ranked) and not any(placement.grows for placement in self._passes)

    @property
    def _slides(self) -> bool:
        """Whether the cache drops keys behind a window. Our attention function needs all keys, and masks them."""
        return bool(self._windows) and not any(placement.hook is not None for placement in self._passes)

    def _new(self, room: int = 0) -> State:
        """An empty state for one pass, in as little memory as the model needs to go on by `room` tokens."""
        if self._state is not Keys:
            return self._state()
        return Keys(self._network.config if self._slides else None, max(1, room))

    def _begun(self, prompt: Tokens, room: int = 0) -> tuple[Sequence[State], int]:
        """States for a prompt, and how many of its first tokens they already hold (from the previous prompt)."""
        if (taken := self._prefix_cache.take(prompt)) is None or taken[1] < WORTH * len(prompt):
            # All keys, also behind windows: a cache that has dropped some cannot be cut.
            return [Keys(room=max(1, room)) if self._state is Keys else self._state() for _ in self._passes], 0
        for state in taken[0]:
            state.cut(taken[1])
        return taken

    def _keep(self, prompt: Tokens, states: Sequence[State]) -> None:
        """Keep the prompt's states for the next question, if they can be cut."""
        kept = [state for state in states if isinstance(state, Keys)]
        if kept and self.reuse and self.sees_no_future():
            for state in kept:
                state.cut(len(prompt))
            self._prefix_cache.keep(prompt, kept)

    def alike(self, question: AnyQuestion) -> Hashable | None:
        """Key of questions that can share a batch; None: answer it alone."""
        scores = self._batch is not None or self._device.type == "cuda"  # on a CPU batches score no faster
        if isinstance(question, Score | Mark) and scores:
            kind = type(question)
            return (kind,) if self.sees_no_future() else (kind, read_of(question), first_of(question))
        if isinstance(question, Write):
            return (Write,) if self._joins() else (Write, len(question.prompt), question.room)
        return (Choose,) if isinstance(question, Choose) and self._joins() else None

    def _joins(self) -> bool:
        """Whether texts of several lengths are continued together as each alone.

        Not where frequencies or ranks of heads depend on the whole batch, or where positions end: a text goes on until
        all have ended. Not under Llama 4's temperature, which counts padding as text, from thousands of tokens on. Else
        it is tried, once with our attention function and once without: some code does not tell padding from text.
        """
        warms = getattr(self._network.config.get_text_config(), "attn_temperature_tuning", False)
        if not self._reads_in_turn() or self._positions_end is not None or warms:
            return False
        hooked = any(placement.hook is not None for placement in self._passes)
        if hooked not in self._pads:
            self._pads[hooked] = False
            with trying(), self._answering(8):
                self._pads[hooked] = self._joins_right()
        return self._pads[hooked]

    @torch.inference_mode()
    def _joins_right(self) -> bool:
        """Compare the states of two texts that are continued together with those of each alone."""
        long, short = self._samples()
        found = []
        with self._without_reuse():
            for texts in ([long, short], [short]):
                _, kept = self._prompted(texts, 1)
                found.append(self._states(self._ids(*(text[:1] for text in texts)), 1, kept)[:, -1])
        both, alone = found
        return self._agree(both, alone)

    def _samples(self) -> tuple[Tokens, Tokens]:
        """A longer and a shorter text to try things on."""
        long, short = (sample(self._network, size)[0].cpu().numpy() for size in (6, 3))
        return long, short

    @contextmanager
    def _without_reuse(self) -> Iterator[None]:
        """Set the kept prompt aside: texts that begin alike may not go on from each other."""
        reuse, self.reuse = self.reuse, False
        try:
            yield
        finally:
            self.reuse = reuse

    def _agree(self, states: Tensor, expected: Tensor) -> bool:
        return bool((states - expected).std() <= TOLERANCE[self._network.dtype] * expected.std())

    def _repeats(self, count: int) -> bool:
        """Whether so many steps of writing are taken by repeating one: tried once under each Attention.

        Not where keys are dropped or frequencies change, where a method runs several passes, and where layers are
        spread over GPUs. Code of some families waits for the device, or sees the buffers' length as the text's.
        """
        if not self._graphs or count < LEAST or len(self._passes) > 1 or self.device == "all":
            return False
        if self._repeated is None:
            self._repeated = False
            if self._reads_in_turn() and not self._slides:
                with trying(), self._answering(9):
                    self._repeated = self._repeats_right()
        return self._repeated

    @torch.inference_mode()
    def _repeats_right(self) -> bool:
        """Compare the states of three repeated steps with those of steps taken one by one."""
        texts = self._samples()[: 2 if self._joins() else 1]
        feeds = [self._ids(*(text[place : place + 1] for text in texts)) for place in range(3)]
        with self._without_reuse():
            _, kept = self._prompted(texts, len(feeds))
            expected = torch.stack([self._states(feed, 1, kept)[:, :, -1] for feed in feeds])
            _, kept = self._prompted(texts, len(feeds))
            with self._repeating(kept, len(feeds), lambda last: (last,)) as step:
                found = torch.stack([step(feed)[0] for feed in feeds])
        return self._agree(found, expected)

    @contextmanager
    def _repeating(
        self, states: Sequence[State], count: int, after: Callable[[Tensor], Found]
    ) -> Iterator[Callable[[Tensor], Found]]:
        """What reads one token [B, 1] of each text, and gives what `after` makes of its states [1, B, width]."""
        [state], own, placement = states, self._passes, self._continued_by(0)
        if placement.hook is None or placement.hook.attends is not None:
            raise Unrealisable("its attention is not ours in every layer")
        repeated = Repeated(lambda token: after(self._states(token, 1, states)[:, :, -1]))
        self._passes = [placement]
        try:
            if placement is not own[0]:
                self._installer.put(placement)
            with cast(Keys, state).looping(count) as loop:

                def step(token: Tensor) -> Found:
                    found = repeated(token)
                    loop.done += 1
                    return found

                yield step
        finally:
            self._passes = own
            if placement is not own[0]:
                self._installer.put(own[0])

    def together(self, questions: Sequence[AnyQuestion]) -> Iterator[Answer]:
        """Answer questions with the same key, in batches as large as fit; a batch is halved on out-of-memory."""
        left = [question for question in questions if isinstance(question, Batched)]
        while left:
            some = self._fitting(left)
            try:
                found = self._answers(some)
            except OutOfMemory:
                # Options of one question that do not fit together are read in turn.
                if len(some) == 1 and (rows_of(some[0]) == 1 or self._most(some[0]) < 1):
                    raise
                self._limit = len(some) * max(map(tokens_of, some)) // 2
                continue
            yield from found
            del left[: len(some)]

    def _fitting(self, left: Sequence[Batched]) -> list[Batched]:
        """The first questions, as many as are answered together."""
        some = [left[0]]
        for question in left[1:]:
            longest = max([question, *some], key=tokens_of)
            if len(some) >= self._size(longest):
                break
            # Scored and marked texts stand beside padding that is read as text.
            texts = [read_of(each) for each in (*some, question) if isinstance(each, Score | Mark)]
            if texts and not about_alike(texts):
                break
            some.append(question)
        return some

    def _size(self, question: Batched) -> int:
        """Batch size for questions like this one."""
        return max(1, self._most(question))

    def _most(self, question: Batched) -> int:
        """Most questions like this one that are answered together; 0 where there may be no room for one."""
        length, size = tokens_of(question), self._batch
        if size is None:
            config, number = self._network.config.get_text_config(), DTYPES[self.dtype].itemsize
            passing = ACTIVATIONS * config.hidden_size * number
            kept = number * rows_of(question) * self._kept_numbers(config, question.length)
            free = SHARE * (free_bytes(str(self._device)) or 0)
            # Scored texts pass at once, and nothing is kept of them. Prompts pass a few at a time (`_read`) where they
            # can, and all caches stay.
            if not isinstance(question, Write | Choose):
                size = int(free / (passing * length))
            elif self._reads_in_turn():
                size = int(max(0, free - passing * max(self._read, question.length)) / kept)
            else:
                size = int(free / (passing * length + kept))
            if self._device.type != "cuda":
                size = min(size, TOGETHER // length)
        return min(size, self._limit // length)

    def _reads_in_turn(self) -> bool:
        """Whether prompts can be read one after another, and then be continued together."""
        return self._state is Keys and self.sees_no_future()

    def _kept_numbers(self, config: Any, length: int) -> int:
        """Numbers kept of a text: keys and values of all layers, within windows; and keys at two further positions."""
        hooked = any(placement.hook is not None and not placement.hook.rotated for placement in self._passes)
        windows = self._windows if self._slides else []
        return len(self._passes) * kept_numbers(config, length, windows, views=2 if hooked else 0)

    def _answers(self, questions: Sequence[Batched]) -> Sequence[Answer]:
        """Answer one batch, of one kind."""
        kind = type(questions[0])
        by_kind: dict[type, Any] = {Score: self._score, Write: self._write, Choose: self._choose, Mark: self._mark}
        return cast(Sequence[Answer], by_kind[kind](questions))

    def write(self, question: Write) -> Written:
        """Greedy continuation with a cache; stops at the model's end tokens, which are left out of the answer."""
        return self._write([question])[0]

    def _write(self, questions: Sequence[Write]) -> list[Written]:
        """Write one batch; each answer is the same as alone. Of those that think, the thoughts come first."""
        if not any(question.thought for question in questions):
            return self._continued(questions)
        tokenizer = cast(FastTokenizer, self.tokenizer)
        stages = [in_stages(question, tokenizer, self._form) for question in questions]
        waiting = {place: next(each) for place, each in enumerate(stages)}
        done: dict[int, Written] = {}
        while waiting:
            asked = list(waiting.values())
            # Thoughts end at different lengths: what stands behind them is joined only where padding is read rightly.
            alike = self._joins() or len({len(each.prompt) for each in asked}) == 1
            replies = self._continued(asked) if alike else [self._continued([each])[0] for each in asked]
            following = {}
            for place, reply in zip(waiting, replies, strict=True):
                try:
                    following[place] = stages[place].send(reply)
                except StopIteration as end:
                    done[place] = end.value
            waiting = following
        return [done[place] for place in range(len(questions))]

    @torch.inference_mode()
    def _continued(self, questions: Sequence[Write]) -> list[Written]:
        room = max(question.room for question in questions)
        texts = [Draft(question, self.tokenizer, self._ends, self.dtype) for question in questions]
        size = len(questions[0].prompt)
        rows, unseen, repeats = [*texts], list[Found](), self._repeats(room - 1)
        with self._answering(max(question.length for question in questions)), ExitStack() as loop:
            last, caches = self._prompted([question.prompt for question in questions], room)
            made, step = self._chosen(last), cast(Callable[[Tensor], Found] | None, None)
            for number in range(1, room + 1):
                feed = made[0]
                # To read a token waits for the device: look at several steps at once, and let `Draft` drop what was
                # written behind an end.
                unseen.append(made)
                if len(unseen) == self._look or number == room:
                    written, wrong = (torch.cat(each, dim=1).tolist() for each in zip(*unseen, strict=True))
                    unseen.clear()
                    for text, new, bad in zip(rows, written, wrong, strict=True):
                        text.add(new, bad)
                    live = [row for row, text in enumerate(rows) if not text.ended]
                    if not live:
                        break
                    # To drop rows copies the cache: only where it halves it.
                    if 2 * len(live) <= len(rows) and self._reads_in_turn():
                        loop.close()
                        for state in caches:
                            cast(Keys, state).select(live)
                        step, rows, feed = None, [rows[row] for row in live], feed[live]
                if number == room:
                    break
                if step is None and repeats and room - number >= LEAST:
                    step = loop.enter_context(self._repeating(caches, room - number, self._chosen))
                try:
                    made = self._chosen(self._states(feed, size, caches)[:, :, -1]) if step is None else step(feed)
                except Unrealisable:  # windows that texts of this length exceed
                    if step is None:
                        raise
                    loop.close()
                    step, repeats = None, False
                    made = self._chosen(self._states(feed, size, caches)[:, :, -1])
            loop.close()
            if len(questions) == 1 and not self._slides:
                self._keep(questions[0].prompt, caches)
        return [text.written() for text in texts]

    def _chosen(self, last: Tensor) -> Found:
        """The next token of each text [B, 1], and whether a logit is NaN: argmax of NaN is a token like any other."""
        logits = likelihood.mixed(self._head(last))
        return logits.argmax(-1, keepdim=True), logits.isnan().any(-1, keepdim=True)

    def _prompted(self, prompts: Sequence[Tokens], room: int) -> tuple[Tensor, Sequence[State]]:
        """[passes, B, width] states of the prompts' last tokens, and what the model keeps of the prompts."""
        last, made, first = list[Tensor](), list[Keys](), 0
        for read, states in self._in_turn(prompts, room):
            last.append(read)
            end = first + read.shape[1]
            # All read at once, and none padded: go on from these states as they are.
            if end - first == len(prompts) and len({*map(len, prompts)}) == 1:
                return read, states
            held = [cast(Keys, state) for state in states]
            made = made or [state.empty([*map(len, prompts)], room) for state in held]
            for whole, state in zip(made, held, strict=True):
                whole.take(range(first, end), state, range(end - first))
            first = end
        return torch.cat(last, dim=1), made

    def _in_turn(self, prompts: Sequence[Tokens], room: int) -> Iterator[tuple[Tensor, Sequence[State]]]:
        """[passes, b, width] states of the last tokens of the next prompts, and what is kept of them.

        Neighbours of about one length are read together, of one length where windows drop old keys. With prefix reuse,
        a prompt that shares enough with the one before it, or with the one behind it, is read alone, without what it
        shares with the one before.
        """
        any_length = self._reads_in_turn() and not self._slides
        reused = any_length and self.reuse
        shared = [reused and self._prefix_cache.shares(prompts[0]) >= WORTH * len(prompts[0])]
        for before, prompt in itertools.pairwise(prompts):
            shared.append(reused and in_common(before, prompt) >= WORTH * len(prompt))
        first = 0
        while first < len(prompts):
            end = first + 1
            # A prompt that goes on from the one before, or from which the next one goes on, is read alone.
            while end < len(prompts) and not any(shared[end - 1 : end + 2]):
                sizes = [*map(len, prompts[first : end + 1])]
                if not (about_alike(sizes) if any_length else len({*sizes}) == 1):
                    break
                if self._reads_in_turn() and max(sizes) * len(sizes) > self._read:
                    break
                end += 1
            some = prompts[first:end]
            alone = reused and len(some) == 1
            states, begun = self._begun(some[0], room) if alone else ([self._new(room) for _ in self._passes], 0)
            read = self._states(self._ids(*(each[begun:] for each in some)), len(some[0]), states)
            yield torch.stack([read[:, row, len(each) - begun - 1] for row, each in enumerate(some)], dim=1), states
            if alone:
                self._keep(some[0], states)
            first = end

    def choose(self, question: Choose) -> Chosen:
        """NLL of each option; the prompt is read once, and what is kept of it serves every option."""
        return self._choose([question])[0]

    @torch.inference_mode()
    def _choose(self, questions: Sequence[Choose]) -> list[Chosen]:
        """Choose in one batch: options of more than one token are rows of it, behind their prompt."""
        if not self._joins() or min(map(self._most, questions)) < 1:
            return [self._choose_in_turn(question) for question in questions]
        options = [option for question in questions for option in question.options]
        rows = [(number, option) for number, each in enumerate(questions) for option in each.options if len(option) > 1]
        # As many rows of a prompt's cache as it has such options.
        sizes, room = [len(questions[number].prompt) for number, _ in rows], max(map(len, options))
        with self._answering(max(question.length for question in questions)):
            last, wholes, number, first = list[Tensor](), list[Keys](), 0, 0
            for read, states in self._in_turn([question.prompt for question in questions], room):
                held = [cast(Keys, state) for state in states]
                wholes = wholes or [state.empty(sizes, room) for state in held if rows]
                for place, ends in enumerate(read.unbind(dim=1)):
                    last.append(ends[:, None])
                    count = sum(number == row for row, _ in rows)
                    for whole, state in zip(wholes, held, strict=bool(rows)):
                        whole.take(range(first, first + count), state, [place] * count)
                    number, first = number + 1, first + count
            longer = iter(list[Tensor]())
            if rows:
                feed = np.zeros((len(rows), room - 1), np.int64)  # what follows an option changes nothing before
                for row, (_, option) in enumerate(rows):
                    feed[row, : len(option) - 1] = option[:-1]
                read = self._states(self._ids(*feed), max(sizes), wholes)
                longer = iter([read[:, row, : len(option) - 1] for row, (_, option) in enumerate(rows)])
            states_of_options = []
            for number, question in enumerate(questions):
                for option in question.options:
                    states_of_options += [last[number], *([next(longer)] if len(option) > 1 else [])]
            losses = self._losses(torch.cat(states_of_options, dim=1), np.concatenate(options)).double().cpu()
        sums = iter([each.sum() for each in losses.split([len(option) for option in options])])  # type: ignore[no-untyped-call]
        return [Chosen(nll=torch.stack([next(sums) for _ in question.options]).numpy()) for question in questions]

    def _choose_in_turn(self, question: Choose) -> Chosen:
        """NLL of each option, one after another."""
        with self._answering(question.length):
            prompt, size = question.prompt, len(question.prompt)
            # Frequencies that depend on the longest input so far would make an option depend on the one before it: read
            # the whole text again for each option.
            again = any(placement.grows for placement in self._passes)
            states, begun = ([Unkept() for _ in self._passes], 0) if again else self._begun(prompt)
            last = self._states(self._ids(prompt[begun:]), size, states)[:, 0, -1:]
            sums = []
            for option in question.options:
                read = last
                if len(option) > 1:
                    with ExitStack() as stack:
                        aside = [stack.enter_context(state.aside()) for state in states]
                        read = torch.cat([last, self._states(self._ids(option[:-1]), size, aside)[:, 0]], dim=1)
                sums.append(self._losses(read, option).double().sum())
            self._keep(prompt, states)
            return Chosen(nll=torch.stack(sums).cpu().numpy())

    def mark(self, question: Mark) -> Marked:
        """NLL of the options, from one forward pass."""
        return self._mark([question])[0]

    @torch.inference_mode()
    def _mark(self, questions: Sequence[Mark]) -> list[Marked]:
        """Mark one batch."""
        texts = [question.tokens[: read_of(question)] for question in questions]
        with self._answering(max(question.length for question in questions)):
            states = self._states(self._ids(*texts), first_of(questions[0]))
            return [Marked(nll=self._marked(states[:, row], question)) for row, question in enumerate(questions)]

    def _marked(self, states: Tensor, question: Mark) -> "np.ndarray[Any, np.dtype[np.float32]]":
        """[places, options] NLL behind [passes, T, width] states."""
        states = states[:, self._ids(question.places - 1)[0].to(states.device)]
        options = self._ids(question.options)[0].to(states.device)
        return likelihood.nll_of_options(states, self._head.exact(), options, self._chunk).cpu().numpy()

    def score(self, question: Score) -> Scored:
        """NLL of the targets; computes logits of these only, a chunk at a time."""
        return self._score([question])[0]

    @torch.inference_mode()
    def _score(self, questions: Sequence[Score]) -> list[Scored]:
        """Score one batch."""
        with self._answering(max(question.length for question in questions)):
            states = self._states(self._ids(*(question.tokens[:-1] for question in questions)), questions[0].start)
            targets = [question.tokens[question.start :] for question in questions]
            ends = [states[:, row, each.start - 1 : each.length - 1] for row, each in enumerate(questions)]
            joined = ends[0] if len(ends) == 1 else torch.cat(ends, dim=1)
            losses = self._losses(joined, np.concatenate(targets)).cpu()
            return [Scored(nll=each.numpy()) for each in losses.split([*map(len, targets)])]  # type: ignore[no-untyped-call]

    def _losses(self, states: Tensor, targets: Tokens) -> Tensor:
        """[T] NLL of targets behind [passes, T, width] states."""
        ids = self._ids(targets)[0].to(states.device)
        return likelihood.nll(states, self._head.exact(), ids, self._chunk)

    @torch.inference_mode()
    def logits(self, tokens: Tokens, pieces: Sequence[int], prompt: int) -> Tensor:
        """[T, COLUMNS] next-token logits, from one forward pass or from several pieces of `tokens` with a cache.

        Only the first `COLUMNS` tokens of the vocabulary, so that long texts fit in memory.

        Args:
            tokens: [T] ids.
            pieces: tokens of each forward pass; their sum is T.
            prompt: length of the prompt, at most that of the first piece.
        """
        with self._answering(len(tokens)):
            states = [self._new() for _ in self._passes] if len(pieces) > 1 else ()
            parts = torch.split(self._ids(tokens), list(pieces), dim=1)
            return self._columns(torch.cat([self._states(part, prompt, states)[:, 0] for part in parts], dim=1))

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
                self._installer.put(placement)
                # Positions count real tokens, as `generate` of transformers counts them.
                places = (real.cumsum(1) - 1).clamp_min(0)
                read = self._base(input_ids=feed, attention_mask=real, position_ids=places, use_cache=False)
                passes.append(states_of(read).to(self._head.device))
            states = torch.stack(passes)
            return [self._columns(states[:, number, width - len(row) :]) for number, row in enumerate(rows)]

    def _columns(self, states: Tensor) -> Tensor:
        """[T, COLUMNS] logits of [passes, T, width] states, from those of `COMPARED` positions at a time."""
        chunks = torch.split(states, min(self._chunk, COMPARED), dim=1)
        return torch.cat([likelihood.mixed(self._head(chunk))[:, :COLUMNS] for chunk in chunks])

    def realised(self, length: int) -> float | None:
        """Largest difference between what the model computes and the method's numbers; needs an earlier forward pass.

        None if the method's numbers depend on the input.
        """
        with self._answering(length):
            found = [self._installer.realised(placement, self.model, length) for placement in self._passes]
        return None if None in found else max(error for error in found if error is not None)

    def drops_after(self) -> int | None:
        """Size of the largest window of any layer that keeps no keys beyond it; None: all layers keep all keys."""
        return max(windows_of(self._network.config.get_text_config()), default=None)

    def all_layers_attended(self) -> bool:
        """Whether every layer has called our attention function, if one is installed."""
        hooks = [placement.hook for placement in self._passes if placement.hook is not None]
        return all(hook.modules.keys() >= (hook.attends or {*range(len(hook.layers))}) for hook in hooks)

    def _states(self, tokens: Tensor, prompt: int, states: Sequence[State] = ()) -> Tensor:
        """[passes, B, T, width] last hidden states, beside the head; with an empty state or none, a new text begins."""
        found = []
        for number, placement in enumerate(self._passes):
            state = states[number] if states else None
            begins = state is None or state.tokens == 0 or state.afresh
            own = placement
            if isinstance(state, Keys) and not (begins or state.pads) and tokens.shape[1] >= PIECE:
                placement = self._continued_by(number)
            # Not between pieces of one text: to install forgets what the prompt has set, ranks of heads and grown
            # frequencies.
            if begins or len(self._passes) > 1 or placement is not own:
                self._installer.put(placement)
            if begins:
                self._installer.begin(prompt)
            if placement.hook is not None:
                # Lengths and padding of the texts, known without reading a mask from the device.
                placement.hook.text = state if isinstance(state, Keys) else None
            try:
                found.append(
                    states_of(self._base(input_ids=tokens, use_cache=False))
                    if state is None
                    else state.read(self._base, tokens)
                )
            finally:
                if placement.hook is not None:
                    placement.hook.text = None
                if placement is not own:
                    self._installer.put(own)
        return torch.stack(found).to(self._head.device)

    def _continued_by(self, number: int) -> Placement:
        """What reads further tokens of a text in a pass.

        transformers gives stock kernels a mask of all pairs there, which takes them memory and half of their speed.
        Ours sees all earlier keys and a causal square, and merges them, where it has a fused kernel for the model.
        """
        own, config = self._passes[number], self._network.config.get_text_config()
        dense = any(getattr(config, name, None) for name in ("v_head_dim", "attn_logit_softcapping"))
        if own.hook is not None or own.grows or self._windows or dense:
            return own
        if number not in self._continuing:
            self._continuing[number] = own
            with suppress(Refused):
                self._continuing[number] = self._installer.prepare(own.attention, always=True)
        return self._continuing[number]

    @torch.inference_mode()
    def probe(self, question: Probe) -> Probed:
        """Attention statistics of one forward pass, collected in our attention function layer by layer."""
        [placement, *others] = self._passes
        if others:
            raise Refused("hf cannot probe a mixture: its passes have different attention weights")
        observer = Observer(question.length, question.first, question.last, question.shortest)
        try:
            with self._answering(question.length):
                self._installer.put(self._installer.prepare(placement.attention, observer))
                self._base(input_ids=self._ids(question.tokens), use_cache=False)
        finally:
            self._installer.put(placement)
        return Probed(statistics=observer.statistics())

    def _ids(self, *texts: Tokens) -> Tensor:
        """[B, T] on the device; shorter texts end in further tokens, which none of theirs sees."""
        width = max(map(len, texts))
        rows = [np.pad(text, (0, width - len(text)), mode="edge") if len(text) < width else text for text in texts]
        return torch.from_numpy(np.stack(rows).astype("int64")).to(self._device)

    @contextmanager
    def _answering(self, length: int) -> Iterator[None]:
        """Turn into refusals: too few positions, out of memory, an Attention not possible at this length."""
        if self._positions_end is not None and length > self._positions_end:
            raise Refused(f"positions end at {self._positions_end}, asked for {length}: no method reaches further")
        try:
            with deferring(f"{length} tokens of {self.model.name} in {self.dtype} on {self._device}"):
                yield
        except Unrealisable as obstacle:
            raise self._installer.explain(obstacle) from None

    @torch.inference_mode()
    def _state_of(self) -> Callable[[], State]:
        """What makes an empty state of the kind that this model needs to go on with a text."""
        tokens = sample(self._network, min(8, self._positions_end or 8))
        tokens = torch.cat([tokens, tokens.flip(1)])  # some code mixes the rows of a batch up
        return state_of(self._base, tokens, TOLERANCE[self._network.dtype])


def _no_triton(device: torch.device) -> str | None:
    """What our Triton kernels lack on a device; None where they run."""
    if device.type != "cuda":
        return f"a GPU, got {device.type}"
    if importlib.util.find_spec("triton") is None:
        return "the package triton (pip install triton)"
    if torch.version.cuda is None or torch.cuda.get_device_capability(device) < (8, 0):
        return "a GPU of NVIDIA of compute capability 8.0 or later"
    return None
