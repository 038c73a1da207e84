"""A network that reads texts under an Attention, and goes on with what it keeps of them.

Texts and prompts of about one length are read together, padded on the right: no text sees what stands behind it. What
is kept of prompts is then padded on the left, so that prompts of any lengths are continued together.
"""

import functools
import importlib.util
import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from lexbench.backends.caches import PrefixCache, common_prefix_length
from lexbench.backends.embedded import check_embedded
from lexbench.backends.hf.exact.head import last_hidden_states
from lexbench.backends.hf.exact.hook import Unrealisable
from lexbench.backends.hf.exact.layers import is_set
from lexbench.backends.hf.exact.memory import probe_forward
from lexbench.backends.hf.exact.network import position_table_size
from lexbench.backends.hf.exact.rotary import LOGITS_TOLERANCE_OF_DTYPE, AttentionInstaller, Placement
from lexbench.backends.hf.exact.state import KeyValueState, RereadState, TextState, state_maker
from lexbench.backends.hf.exact.tower import sample_tokens, split_network
from lexbench.backends.hf.fast.fused import Fused
from lexbench.backends.hf.fast.graphs import MIN_RECORDED_STEPS, Found, RepeatedStep
from lexbench.backends.hf.reading.batches import MAX_CPU_PREFILL_TOKENS, MAX_GPU_PREFILL_TOKENS, padding_pays
from lexbench.core.attention import Attention, sees_prompt_end
from lexbench.core.memory import OutOfMemory, defer_on_oom
from lexbench.core.model import Model
from lexbench.core.record import Refused
from lexbench.core.task import Tokens
from lexbench.kernels.fast import Form

MIN_REUSED_PROMPT_SHARE = 0.25
"""Smallest share of a prompt that must equal the beginning of the one before, whose keys and values are then kept. The
rest of 4,096 tokens on a CPU takes 0.7 of the time of all where a quarter is shared, 0.6 with a half, 0.15 with nine
tenths (processor time beside other work); 1.0, 0.8 and 0.15 with a stock kernel and its mask, if ours does not fit."""
MIN_MASKED_PAIRS = 1 << 15
"""Fewest pairs of a further token and an earlier one, in all texts of a batch, for which texts are continued by our
attention function: a mask for fewer costs little. With 20 tokens behind 8,192 a stock kernel with its mask takes 2.5
times as long on a CPU."""
REPEAT_TRIAL_CACHE_TOKENS = 1024
"""Tokens that a cache has room for while repeated steps are tried."""
ATTENTION_KERNELS = ("auto", "lexbench", "merged", "triton")
"""Values of `backend.attention` (`Hf`): kernels of attention."""


class Reader:
    """Reads texts with one network, under one Attention at a time.

    Args:
        network: loaded, on its device.
        model: its facts.
        attention: one of `ATTENTION_KERNELS`.
        fast: False: no kernel of ours but the one by definition, and no recorded steps.
    """

    def __init__(self, network: Any, model: Model, attention: str, fast: bool = True) -> None:
        self._model = model
        self.dtype = str(network.dtype).removeprefix("torch.")
        self.network, self.base, self.head = split_network(network, model.name)
        embeddings = network.get_input_embeddings().weight
        self.device: torch.device = embeddings.device
        self._rows = len(embeddings)
        self.spread = len({weight.device for weight in network.parameters()}) > 1
        """Whether the layers stand on several GPUs."""
        self.positions_end = position_table_size(self.base, sample_tokens(self.network, 1))
        self.empty = self._state_of()
        # Our kernels compute the slots that change scores, the model's kernel the rest; one name for all methods, so
        # that cells of a comparison agree in it.
        form: Form = "merged" if attention == "merged" or why_no_triton(self.device) else "triton"
        form = form if fast else "dense"
        stock: str = network.config.get_text_config()._attn_implementation
        self.installer = AttentionInstaller(
            self.network, model.name, model.trained_length, self.positions_end, self.base, form=form
        )
        always = attention == "lexbench"
        if stock == "eager" and not self._needs_all_scores:
            # It keeps the scores of all pairs: of 32,768 tokens and 64 heads, 128 GiB. Ours keeps a few spans of them.
            with suppress(Refused):
                always = self.installer.prepare(Attention(), always=True).hook is not None
        self.installer.always = always
        self.kernel = "+".join([*([] if always else [stock]), "lexbench", *([] if form == "merged" else [form])])
        self.passes = [self.installer.prepare(Attention())]
        self.continuing: dict[int, Placement] = {}
        # Layers of the cache that transformers makes for this config, not the config, say whether it drops keys.
        self.windows = KeyValueState(self.network.config).windows() if self.empty is KeyValueState else []
        self.prefix_cache = PrefixCache[list[KeyValueState]]()
        self.reuse = False
        """Whether the last prompt is kept for a next one that begins with the same tokens."""
        self.at_once = MAX_GPU_PREFILL_TOKENS if self.device.type == "cuda" else MAX_CPU_PREFILL_TOKENS
        """Tokens of prompts that are read together."""
        self._pads: dict[bool, bool] = {}
        self.graphs = self.device.type == "cuda" and attention != "merged" and fast
        """Whether steps of writing may be recorded."""
        self.repeated: bool | None = None
        """Whether they are, under this Attention; None: not tried yet."""
        self._fewer: Fused | None = None
        self._others: dict[str, list[Placement]] = {}

    def close(self) -> None:
        """Leave the network as it was before any method."""
        self.installer.remove()
        self.prefix_cache.forget()

    def attend(self, attention: Attention) -> None:
        """Apply an Attention to the model; Refused, with the slot's name, if it cannot be realised exactly."""
        self.prefix_cache.forget()
        self.installer.remove()
        self._others.clear()
        self.passes = self._placements(attention)
        self.continuing.clear()
        self.repeated = None
        self.installer.put(self.passes[0])

    def _placements(self, attention: Attention) -> list[Placement]:
        """The passes of an Attention, checked for the model."""
        with defer_on_oom(f"a method on {self._model.name} in {self.dtype} on {self.device}"):
            for part in attention.mixture or (attention,):
                self.installer.check_rope(self._model, part)
            return [self.installer.prepare(part) for part in attention.mixture or (attention,)]

    @contextmanager
    def read_under(self, attention: Attention) -> Iterator[None]:
        """Read whole texts under another Attention inside the block; behind it all is as before."""
        name = json.dumps(attention.as_data(), sort_keys=True)
        if name not in self._others:
            self._others[name] = self._placements(attention)
        own, self.passes = self.passes, self._others[name]
        try:
            self.continuing.clear()
            self.installer.put(self.passes[0])
            yield
        finally:
            self.passes = own
            self.continuing.clear()
            self.installer.put(own[0])

    def is_causal(self) -> bool:
        """Whether the states of a prefix do not depend on what follows it."""
        parts = [part for placement in self.passes for part in placement.attention.parts()]
        ranked = any(part.head_ratios is not None for part in parts)
        # Behind a prompt, keys are seen in another form than in it.
        split = any(part.cache is not None and sees_prompt_end(part.cache) for part in parts)
        return not ranked and not split and not any(placement.grows for placement in self.passes)

    @property
    def slides(self) -> bool:
        """Whether the cache drops keys behind a window. Our attention function needs all keys, and masks them."""
        return bool(self.windows) and not any(placement.hook is not None for placement in self.passes)

    def new(self, room: int = 0, prompt: int = 0) -> TextState:
        """An empty state for one pass, in as little memory as the model needs to go on by `room` tokens.

        With the length of the prompt: one that reads the text again where its angles switch behind the prompt.
        """
        # The last token that is written is not read.
        if prompt and any(placement.switches(prompt, prompt + room - 1) for placement in self.passes):
            return RereadState()
        if self.empty is not KeyValueState:
            return self.empty()
        return KeyValueState(self.network.config if self.slides else None, max(1, room))

    def resume_prefix(self, prompt: Tokens, room: int = 0) -> tuple[Sequence[TextState], int]:
        """States for a prompt, and how many of its first tokens they already hold (from the previous prompt)."""
        if (taken := self.prefix_cache.take(prompt)) is None or taken[1] < MIN_REUSED_PROMPT_SHARE * len(prompt):
            # All keys, also behind windows: a cache that has dropped some cannot be cut.
            return [
                KeyValueState(room=max(1, room)) if self.empty is KeyValueState else self.empty() for _ in self.passes
            ], 0
        for state in taken[0]:
            state.cut(taken[1])
        return taken

    def keep(self, prompt: Tokens, states: Sequence[TextState]) -> None:
        """Keep the prompt's states for the next question, if they can be cut."""
        kept = [state for state in states if isinstance(state, KeyValueState)]
        if kept and self.reuse and self.is_causal():
            for state in kept:
                state.cut(len(prompt))
            self.prefix_cache.keep(prompt, kept)

    def goes_on_alike(self) -> bool:
        """Whether a text can be begun under one Attention and gone on under another with the same angles."""
        return (
            self.empty is KeyValueState and not self.windows and not any(placement.grows for placement in self.passes)
        )

    def can_prefill_in_turn(self) -> bool:
        """Whether prompts can be read one after another, and then be continued together."""
        return self.empty is KeyValueState and self.is_causal()

    def can_join_texts(self) -> bool:
        """Whether a padded batch generates the same tokens as one text at a time.

        Not where frequencies or ranks of heads depend on the whole batch, or where positions end: a text goes on until
        all have ended. Not under Llama 4's temperature, which counts padding as text, from thousands of tokens on. Else
        it is tried, once with our attention function and once without: some code does not tell padding from text.
        """
        if not self.can_prefill_in_turn() or self.positions_end is not None or self.has_temperature_tuning:
            return False
        hooked = any(placement.hook is not None for placement in self.passes)
        if hooked not in self._pads:
            right = False
            with probe_forward(), self.refuse_failures(8):
                right = self._joins_right()
            self._pads[hooked] = right  # not after an error of memory, which says nothing of the code
        return self._pads[hooked]

    @torch.inference_mode()
    def _joins_right(self) -> bool:
        """Compare the states of two texts that are continued together with those of each alone."""
        long, short = self._samples()
        found = []
        with self._without_reuse():
            for texts in ([long, short], [short]):
                _, kept = self.prefill(texts, 1)
                found.append(self.states(self.ids(*(text[:1] for text in texts)), 1, kept)[:, -1])
        both, alone = found
        return self._states_agree(both, alone)

    def _samples(self) -> tuple[Tokens, Tokens]:
        """A longer and a shorter text to try things on."""
        long, short = (sample_tokens(self.network, size)[0].cpu().numpy() for size in (6, 3))
        return long, short

    @contextmanager
    def _without_reuse(self) -> Iterator[None]:
        """Set the kept prompt aside: texts that begin alike may not go on from each other."""
        reuse, self.reuse = self.reuse, False
        try:
            yield
        finally:
            self.reuse = reuse

    def _states_agree(self, states: Tensor, expected: Tensor) -> bool:
        return bool((states - expected).std() <= LOGITS_TOLERANCE_OF_DTYPE[self.network.dtype] * expected.std())

    def repeats(self, count: int) -> bool:
        """Whether `count` decode steps are taken by repeating one recorded step (a CUDA graph).

        False where a method drops keys, sees them in many ranges, changes frequencies while it reads or runs several
        passes; where other code than ours attends; and where layers lie on several GPUs. Elsewhere a trial decides,
        once under each Attention: a recorded step must give the states of single steps. It does not where code of a
        family waits for the device, or takes the size of the cache for the length of the text: the cache of the trial
        is larger than its text. Llama 4's temperature does the second in longer texts only, so it is left out by name.
        """
        if not self.graphs or count < MIN_RECORDED_STEPS or len(self.passes) > 1 or self.spread:
            return False
        if self.repeated is None:
            repeated = False
            hook = self._continued_by(0).hook
            if (
                hook is not None
                and hook.repeats
                and self.can_prefill_in_turn()
                and not self.slides
                and not self.has_temperature_tuning
            ):
                with suppress(OutOfMemory), probe_forward(), self.refuse_failures(9):
                    repeated = self._repeats_right()
            self.repeated = repeated
        return self.repeated

    @property
    def has_temperature_tuning(self) -> bool:
        """Whether queries are scaled by the number of columns read so far (Llama 4)."""
        return is_set(self.network.config.get_text_config(), "attn_temperature_tuning")

    @torch.inference_mode()
    def _repeats_right(self) -> bool:
        """Compare the states of repeated steps, one of which may wait for nothing, with those of single ones."""
        texts = self._samples()[: 2 if self.can_join_texts() else 1]
        feeds = [self.ids(*(text[[place % len(text)]] for text in texts)) for place in range(4)]
        with self._without_reuse():
            _, kept = self.prefill(texts, len(feeds))
            expected = torch.stack([self.states(feed, 1, kept)[:, :, -1] for feed in feeds])
            _, kept = self.prefill(texts, len(feeds))
            with self.repeat_steps(kept, REPEAT_TRIAL_CACHE_TOKENS, lambda last: (last,), tried=True) as step:
                found = torch.stack([step(feed)[0] for feed in feeds])
        return step.recorded is not False and self._states_agree(found, expected)

    @contextmanager
    def repeat_steps(
        self, states: Sequence[TextState], count: int, after: Callable[[Tensor], Found], tried: bool = False
    ) -> Iterator[RepeatedStep]:
        """A step that reads one token [B, 1] of each text, and gives what `after` makes of its states [1, B, width].

        `tried`: it is an error if the second step waits for the device (`RepeatedStep`).
        """
        [state], own, placement = states, self.passes, self._continued_by(0)
        assert placement.hook is not None, "`repeats` has asked"
        repeated = RepeatedStep(lambda token: after(self.states(token, 1, states)[:, :, -1]), tried)
        self.passes = [placement]
        try:
            if placement is not own[0]:
                self.installer.put(placement)
            with self._fused_steps(), cast(KeyValueState, state).loop_steps(count) as loop:
                try:
                    yield repeated
                finally:
                    loop.done = repeated.done
        finally:
            self.passes = own
            if placement is not own[0]:
                self.installer.put(own[0])

    def _fused_steps(self) -> AbstractContextManager[None]:
        """Norms and rotations of repeated steps in one kernel each, where Triton serves."""
        if "triton" not in self.kernel or self.network.dtype not in (torch.bfloat16, torch.float16):
            return nullcontext()
        if self._fewer is None:
            self._fewer = Fused(self.base, LOGITS_TOLERANCE_OF_DTYPE[self.network.dtype])
        return self._fewer.put()

    def prefill(
        self, prompts: Sequence[Tokens], room: int, end: int | None = None
    ) -> tuple[Tensor, Sequence[TextState]]:
        """[passes, B, width] states of the prompts' last tokens, and what the model keeps of the prompts.

        `end`: tokens of each that count as the prompt; None: all.
        """
        last, made, first = list[Tensor](), list[KeyValueState](), 0
        for read, states in self.prefill_batches(prompts, room, end):
            last.append(read)
            end = first + read.shape[1]
            # All read at once, and none padded: go on from these states as they are.
            if end - first == len(prompts) and len({*map(len, prompts)}) == 1:
                return read, states
            held = [cast(KeyValueState, state) for state in states]
            made = made or [state.empty([*map(len, prompts)], room) for state in held]
            for whole, state in zip(made, held, strict=True):
                whole.take(range(first, end), state, range(end - first))
            first = end
        return torch.cat(last, dim=1), made

    def prefill_batches(
        self, prompts: Sequence[Tokens], room: int, counted: int | None = None
    ) -> Iterator[tuple[Tensor, Sequence[TextState]]]:
        """Yield [passes, b, width] states of the last tokens of the next prompts, and the state of each pass over them.

        Neighbours of about one length are read together, of one length where windows drop old keys. With prefix reuse,
        a prompt that shares enough with the one before it, or with the one behind it, is read alone, without what it
        shares with the one before. `counted`: tokens of each that count as the prompt; None: all.
        """
        any_length = self.can_prefill_in_turn() and not self.slides
        reused = any_length and self.reuse
        shared = [reused and self.prefix_cache.shared_length(prompts[0]) >= MIN_REUSED_PROMPT_SHARE * len(prompts[0])]
        for before, prompt in itertools.pairwise(prompts):
            shared.append(reused and common_prefix_length(before, prompt) >= MIN_REUSED_PROMPT_SHARE * len(prompt))
        first = 0
        while first < len(prompts):
            end = first + 1
            # A prompt that goes on from the one before, or from which the next one goes on, is read alone.
            while end < len(prompts) and not any(shared[end - 1 : end + 2]):
                sizes = [*map(len, prompts[first : end + 1])]
                if not (padding_pays(sizes) if any_length else len({*sizes}) == 1):
                    break
                if self.can_prefill_in_turn() and max(sizes) * len(sizes) > self.at_once:
                    break
                end += 1
            some = prompts[first:end]
            alone = reused and len(some) == 1
            states, begun = (
                self.resume_prefix(some[0], room) if alone else ([self.new(room, len(some[0])) for _ in self.passes], 0)
            )
            read = self.states(self.ids(*(each[begun:] for each in some)), counted or len(some[0]), states)
            yield torch.stack([read[:, row, len(each) - begun - 1] for row, each in enumerate(some)], dim=1), states
            if alone:
                self.keep(some[0], states)
            first = end

    def states(self, tokens: Tensor, prompt: int, states: Sequence[TextState] = ()) -> Tensor:
        """[passes, B, T, width] last hidden states, beside the head; with an empty state or none, a new text begins."""
        found = []
        for number, placement in enumerate(self.passes):
            state = states[number] if states else None
            begins = state is None or state.tokens == 0 or state.afresh
            own = placement
            further, earlier = tokens.shape[1], 0 if state is None or begins else state.tokens
            if (
                isinstance(state, KeyValueState)
                and not state.pads
                and further > 1
                and len(tokens) * further * earlier >= MIN_MASKED_PAIRS
            ):
                placement = self._continued_by(number)
            # Not between pieces of one text: to install forgets what the prompt has set, ranks of heads and grown
            # frequencies.
            if begins or len(self.passes) > 1 or placement is not own:
                self.installer.put(placement)
            if begins:
                self.installer.begin(prompt)
            if placement.hook is not None:
                # Lengths and padding of the texts, known without reading a mask from the device.
                placement.hook.text = state if isinstance(state, KeyValueState) else None
            try:
                found.append(
                    last_hidden_states(self.base(input_ids=tokens, use_cache=False))
                    if state is None
                    else state.read(self.base, tokens)
                )
            finally:
                if placement.hook is not None:
                    placement.hook.text = None
                if placement is not own:
                    self.installer.put(own)
        return torch.stack(found).to(self.head.device)

    def _continued_by(self, number: int) -> Placement:
        """The placement that reads further tokens of a text in a pass.

        transformers gives stock kernels a mask of all pairs there, which takes them memory and half of their speed.
        Ours sees all earlier keys and a causal square, and merges them, where it has a fused kernel for the model.
        """
        own = self.passes[number]
        if own.hook is not None or own.grows or self.windows or self._needs_all_scores:
            return own
        if number not in self.continuing:
            self.continuing[number] = own
            with suppress(Refused):
                self.continuing[number] = self.installer.prepare(own.attention, always=True)
        return self.continuing[number]

    @property
    def _needs_all_scores(self) -> bool:
        """Whether our attention function too keeps the scores of all pairs: under caps, and values of another width."""
        config = self.network.config.get_text_config()
        return any(is_set(config, name) for name in ("v_head_dim", "attn_logit_softcapping"))

    def ids(self, *texts: Tokens) -> Tensor:
        """[B, T] on the device; shorter texts end in further tokens, which none of theirs sees.

        Refused for a token beyond the embedding: on a GPU the embedding itself would end all work.
        """
        for text in texts:
            check_embedded(text, self._rows, self._model.name)
        width = max(map(len, texts))
        rows = [np.pad(text, (0, width - len(text)), mode="edge") if len(text) < width else text for text in texts]
        return torch.from_numpy(np.stack(rows).astype("int64")).to(self.device)

    @contextmanager
    def refuse_failures(self, length: int) -> Iterator[None]:
        """Raise Refused for too few positions or an impossible Attention in a block, Deferred for too little memory."""
        if self.positions_end is not None and length > self.positions_end:
            raise Refused(f"positions end at {self.positions_end}, asked for {length}: no method reaches further")
        try:
            with defer_on_oom(f"{length} tokens of {self._model.name} in {self.dtype} on {self.device}"):
                yield
        except Unrealisable as obstacle:
            raise self.installer.explain(obstacle) from None

    @torch.inference_mode()
    def _state_of(self) -> Callable[[], TextState]:
        """A maker of empty states, of the kind that this model needs to go on with a text."""
        tokens = sample_tokens(self.network, min(8, self.positions_end or 8))
        tokens = torch.cat([tokens, tokens.flip(1)])  # some code mixes the rows of a batch up
        return state_maker(self.base, tokens, LOGITS_TOLERANCE_OF_DTYPE[self.network.dtype])


def why_no_triton(device: torch.device) -> str | None:
    """Need of our Triton kernels that a device does not meet; None where they run."""
    if device.type != "cuda":
        return f"a GPU, got {device.type}"
    if importlib.util.find_spec("triton") is None:
        return "the package triton (pip install triton)"
    if torch.version.cuda is None or torch.cuda.get_device_capability(device) < (8, 0):
        return "a GPU of NVIDIA of compute capability 8.0 or later"
    return why_not_compiled(device)


@functools.cache
def why_not_compiled(device: torch.device) -> str | None:
    """Need of a Triton kernel, compiled for a device and called once, that is not met; None where it runs."""
    try:
        from lexbench.kernels import triton_rotate

        vector = torch.ones(1, 1, 1, 32, dtype=torch.float16, device=device)
        angles = torch.ones(1, 1, 16, dtype=torch.float16, device=device)
        triton_rotate.rotate_pairs(vector, angles, angles, halves=True, offset=0)
    except Exception as error:  # of the compiler, of the driver, of the file system
        return f"a Triton that compiles ({type(error).__name__}: {' '.join(str(error).split())[:120]})"
    return None
