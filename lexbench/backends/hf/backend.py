"""Hugging Face checkpoints run by transformers: questions become texts, which a `Reader` reads, and answers."""

import functools
import itertools
import json
import sys
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import Any, TypeVar, cast

import numpy as np
import torch
import transformers
from torch import Tensor
from torch.distributed.tensor import DTensor

from lexbench.backends import Backend, Capabilities
from lexbench.backends.devices import check_device, device_of
from lexbench.backends.draft import Draft
from lexbench.backends.hf.exact.assert_attention import differing_layer
from lexbench.backends.hf.exact.head import last_hidden_states
from lexbench.backends.hf.exact.layers import stated_size
from lexbench.backends.hf.exact.network import TORCH_DTYPES, check_weights, load_network, must_shard, windows_of
from lexbench.backends.hf.exact.state import KeyValueState, TextState
from lexbench.backends.hf.fast.graphs import MIN_RECORDED_STEPS, Found, RepeatedStep
from lexbench.backends.hf.fast.products import widen_half_products
from lexbench.backends.hf.reading.batches import (
    ACTIVATION_WIDTHS_PER_TOKEN,
    BATCH_MEMORY_SHARE,
    MAX_CPU_WRITING_TOKENS,
    MAX_CUDA_AXIS_PROGRAMS,
    Batched,
    assumed_caches,
    batch_rows,
    batch_tokens,
    first_target_place,
    kept_numbers,
    padding_pays,
    tokens_to_read,
)
from lexbench.backends.hf.reading.placed import OptionTree, PlacedReader
from lexbench.backends.hf.reading.reader import ATTENTION_KERNELS, Reader, why_no_triton
from lexbench.backends.thinking import THOUGHT_MARKERS, LocalForm, drop_thought, think_then_answer
from lexbench.checkpoints.checkpoint import dtype_of, end_tokens, folder_of, revision_of, weight_files
from lexbench.checkpoints.tokenizer import FastTokenizer, load_tokenizer
from lexbench.core.attention import Attention
from lexbench.core.errors import ConfigError
from lexbench.core.machine import free_bytes
from lexbench.core.memory import OutOfMemory, defer_on_oom, keep_freed, return_freed
from lexbench.core.model import Model
from lexbench.core.parts import load_provided
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
from lexbench.core.values import is_whole
from lexbench.kernels import likelihood
from lexbench.kernels.observed import Observer
from lexbench.methods.composition import other_attention

N_COMPARED_VOCABULARY_TOKENS = 1024
"""Tokens of the vocabulary whose logits are compared when a method is verified."""
MAX_POSITIONS_WITH_LOGITS = 64
"""Positions whose logits over the whole vocabulary are in memory at once, while a method is verified."""
TOKENS_BETWEEN_DEVICE_WAITS = 8
"""Tokens written on a GPU between two looks at them, each of which waits for the device."""

SharedPrompt = tuple[Hashable, Sequence[KeyValueState], Tensor, Tensor]
"""Name of a text; the cache of its prompt, the prompt's last state, and [passes, 1 + T, width] states from there on."""


Answering = TypeVar("Answering", bound=Callable[..., Any])


def taken_together(method: Answering) -> Answering:
    """Let a method of a backend be called in all of its processes."""

    @functools.wraps(method)
    def taken(self: "Hf", *given: Any) -> Any:
        if self._followers is None:
            return method(self, *given)
        return self._followers.take(method.__name__, given, lambda: method(self, *given))

    return cast(Answering, taken)


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
        attention: auto (the model's kernel wherever a method leaves scores as they are, ours where that is the eager
            one, which keeps the scores of all pairs, as gpt-oss has it; on a GPU Triton kernels for windows, far keys,
            blocks and chunks, where the package is installed and they agree with the definition, and steps of writing
            that are recorded with our attention function and repeated, with norms and rotations in one kernel each),
            lexbench (our attention function always), triton (auto, where Triton must be there) or merged (auto, without
            Triton and recording). Stock kernels compute a sliding window as a masked whole text on a CPU, with a mask
            of length x length; ours costs what the window holds. Numbers differ in the last bits only.
        fast: false: one text at a time, attention by its definition wherever the model's own does not compute it, no
            recorded steps, no fused or widened products. For checks: answers are equal, and slower.
        tensor_parallel: processes that each hold a share of every layer, by transformers' plan for the family: on a GPU
            each, or on the processors of a machine without one. Batches are of one text unless `batch` is a number.
        chat: every question is one user message of the chat template. False: only where a task says so.
        system: chat: message in front of the user's; None: none.
        thinking: chat: `none` tells the template not to think; `free` lets the model think, and without an end of the
            thought there is no answer; `budget` ends the thought at its budget.
        thought: chat: tokens for thinking, beside those of the answer; both count in the length. First words of the
            answer stand behind the thought.
        markers: chat: what begins and ends a thought.
    """

    name = "hf"
    _followers: Any = None
    """Other processes that hold a share of each layer, `Followers` of the part cluster."""
    _is_split = False
    as_chat = LocalForm.as_chat
    _form = LocalForm()
    capabilities = Capabilities(
        prefix_reuse=True, batches=True, verifiable=True, loads_weights=True, device_setting=True, layouts=True
    )

    def __init__(
        self,
        model: Model,
        dtype: str = "auto",
        device: str = "auto",
        chunk: int = 512,
        batch: int | str = "auto",
        attention: str = "auto",
        fast: bool = True,
        tensor_parallel: int = 1,
        chat: bool = False,
        system: str | None = None,
        thinking: str = "none",
        thought: int = 0,
        markers: Sequence[str] = THOUGHT_MARKERS,
    ) -> None:
        numbers = {"chunk": chunk, "batch": batch, "tensor_parallel": tensor_parallel}
        self.check_settings({"dtype": dtype, "attention": attention, "device": device, **numbers}, model)
        folder = folder_of(model)
        weight_files(folder)
        place = device_of(device)
        if attention == "triton" and (why := why_no_triton(place)):
            raise ConfigError(f"backend.attention=triton needs {why}: leave it out")
        dtype = self.dtype = dtype_of(dtype, folder, place.type != "cpu")
        self.revision = revision_of(model, folder)
        self._form = LocalForm(chat, system, thinking, thought, markers=tuple(markers))
        self.tokenizer: Tokenizer = self._form.tokenizer(load_tokenizer(folder, model.bos))
        self._ends = end_tokens(folder)
        spread, split = tensor_parallel == 1 and must_shard(device, folder, dtype), tensor_parallel > 1
        if split:
            processes = load_provided("backend", "tensor_parallel")
            processes.check_split(folder, tensor_parallel)
            said = {"thinking": thinking, "thought": thought, "markers": tuple(markers), "chat": chat, "system": system}
            self._followers = processes.join_followers(
                type(self),
                tensor_parallel,
                model,
                {"dtype": dtype, "attention": attention, "fast": fast, **numbers, **said},
            )
        self.device = "all" if spread or (split and place.type == "cuda") else str(place)
        try:
            with defer_on_oom(f"weights of {model.name} in {dtype} on {'all GPUs' if spread else place}"):
                network = load_network(folder, TORCH_DTYPES[dtype], spread, tensor_parallel)
                network = network if spread or split else network.to(place)
                check_weights(network)
            if place.type == "cpu":
                if fast and not split:
                    widen_half_products(network)
                keep_freed()
            with defer_on_oom(f"a first text of {model.name} in {dtype} on {place}"):
                self._put(model, network, chunk, 1 if split and batch == "auto" else batch, attention, fast)
        except BaseException as error:
            if self._followers is not None:
                self._followers.end_after(error)
            self.close()
            raise

    @classmethod
    def check_settings(cls, settings: Mapping[str, Any], model: Model) -> None:
        """ConfigError for a parameter that is wrong on every machine."""
        dtype, chunk, batch, attention = map(settings.get, ("dtype", "chunk", "batch", "attention"))
        split, device = settings.get("tensor_parallel", 1), settings.get("device", "auto")
        if dtype not in (None, "auto", *TORCH_DTYPES):
            raise ConfigError(f"backend.dtype must be one of auto, {', '.join(TORCH_DTYPES)}, got {dtype}")
        if chunk is not None and chunk < 1:
            raise ConfigError(f"backend.chunk must be at least 1 position, got {chunk}: e.g. backend.chunk=512")
        if batch not in (None, "auto") and not is_whole(batch, 1):
            raise ConfigError(
                f"backend.batch must be auto or a whole number of at least 1, got {batch!r}: e.g. backend.batch=8"
            )
        if attention not in (None, *ATTENTION_KERNELS):
            raise ConfigError(f"backend.attention must be auto, lexbench, merged or triton, got {attention}")
        if not is_whole(split, 1):
            raise ConfigError(f"backend.tensor_parallel must be a whole number of at least 1, got {split!r}: e.g. 2")
        if split > 1 and device != "auto":
            raise ConfigError(
                f"backend.tensor_parallel takes a GPU for each process, got backend.device={device}: leave one out"
            )
        check_device(device)
        LocalForm.of(settings)

    @classmethod
    def of(cls, network: Any, model: Model, tokenizer: Tokenizer, ends: Collection[int], revision: str) -> "Hf":
        """The backend of a network that is loaded already; it is left in its dtype, on its device."""
        made = cls.__new__(cls)
        made.dtype = str(network.dtype).removeprefix("torch.")
        if made.dtype not in TORCH_DTYPES:
            raise ConfigError(
                f"a network must be of one of {', '.join(TORCH_DTYPES)}, this one is of {made.dtype}: convert it"
            )
        made.revision, made.tokenizer, made._ends = revision, tokenizer, frozenset(ends)
        where = network.get_input_embeddings().weight.device
        with defer_on_oom(f"a first text of {model.name} in {made.dtype} on {where}"):
            made._put(model, network)
        made.device = "all" if made.reader.spread else str(made.reader.device)
        return made

    def _put(
        self,
        model: Model,
        network: Any,
        chunk: int = 512,
        batch: int | str = "auto",
        attention: str = "auto",
        fast: bool = True,
    ) -> None:
        """Take a loaded network."""
        self.model = model
        self.version = f"transformers {transformers.__version__}, torch {torch.__version__}"
        self.reader = Reader(network, model, attention, fast)
        self.placed = PlacedReader(self.reader)
        self.kernel = self.reader.kernel
        self._attention = Attention()
        self._shared: SharedPrompt | None = None
        self._chunk = chunk
        self._batch = batch if isinstance(batch, int) else None if fast else 1
        self._is_split = any(isinstance(weight, DTensor) for weight in network.parameters())
        self.reader.graphs &= not self._is_split
        # Tokens of a batch: running out of memory lowers it for all later ones.
        self._limit = sys.maxsize
        self._look = TOKENS_BETWEEN_DEVICE_WAITS if self.reader.device.type == "cuda" and fast else 1

    def close(self) -> None:
        """Release the network, as it was before any method, and free its memory; a second call does nothing."""
        if self._followers is not None:
            self._followers.close()
        if "reader" not in vars(self):
            return
        self._shared = None
        self.reader.close()
        del self.reader
        torch.cuda.empty_cache()

    @taken_together
    def attend(self, attention: Attention) -> None:
        """Apply an Attention to the model; Refused, with the slot's name, if it cannot be realised exactly."""
        if self._is_split:
            load_provided("backend", "tensor_parallel").check_heads_apart(attention)
        if not attention.keepings:
            self._shared = None
        self.placed.forget()
        return_freed()
        self.reader.attend(attention)
        self._attention = attention

    def is_causal(self) -> bool:
        """Whether the states of a prefix do not depend on what follows it."""
        return self.reader.is_causal()

    @property
    def reuse(self) -> bool:
        """Whether the last prompt is kept for questions that begin with the same tokens."""
        return self.reader.reuse

    @reuse.setter
    def reuse(self, reuse: bool) -> None:
        self.set_reuse(reuse)

    @taken_together
    def set_reuse(self, reuse: bool) -> None:
        """Keep the last prompt, or none."""
        self.reader.reuse = reuse

    @taken_together
    def batch_key(self, question: AnyQuestion) -> Hashable | None:
        """Key of questions that can share a batch; None: answer it alone."""
        if question.layout is not None:
            return None
        scores = self._batch is not None or self.reader.device.type == "cuda"  # on a CPU batches score no faster
        if isinstance(question, Loglikelihood | ClassifyTokens) and scores:
            kind = type(question)
            return (
                (kind,) if self.reader.is_causal() else (kind, tokens_to_read(question), first_target_place(question))
            )
        if isinstance(question, Generate):
            if self.reader.can_join_texts():
                return (Generate,)
            return (Generate, len(question.prompt), question.max_new_tokens, self._ends_at(question))
        return (Choose,) if isinstance(question, Choose) and self.reader.can_join_texts() else None

    def _ends_at(self, question: Generate | Choose) -> int:
        """Tokens of the prompt that count as read before the answer; under a slot `cache` those before the question."""
        whole = len(question.prompt)
        return question.text_tokens or whole if self._attention.keepings else whole

    def answer_batch(self, questions: Sequence[AnyQuestion]) -> Iterator[Answer]:
        """Answer questions with the same key, in batches as large as fit; a batch is halved on out-of-memory."""
        left = [question for question in questions if isinstance(question, Batched)]
        while left:
            some = self._fitting_batch(left)
            try:
                found = self._answers(some)
            except OutOfMemory:
                # Options of one question that do not fit together are read in turn.
                if len(some) == 1 and (batch_rows(some[0]) == 1 or self._most(some[0]) < 1):
                    raise
                self._limit = len(some) * max(map(batch_tokens, some)) // 2
                continue
            yield from found
            del left[: len(some)]

    def _fitting_batch(self, left: Sequence[Batched]) -> list[Batched]:
        """The first questions, as many as are answered together."""
        some = [left[0]]
        for question in left[1:]:
            longest = max([question, *some], key=batch_tokens)
            if len(some) >= self._size(longest):
                break
            # Scored and marked texts stand beside padding that is read as text.
            texts = [
                tokens_to_read(each) for each in (*some, question) if isinstance(each, Loglikelihood | ClassifyTokens)
            ]
            if texts and not padding_pays(texts):
                break
            some.append(question)
        return some

    def _size(self, question: Batched) -> int:
        """Batch size for questions like this one."""
        return max(1, self._most(question))

    def _most(self, question: Batched) -> int:
        """Most questions like this one that are answered together; 0 where the memory may not hold a single one."""
        length, size = batch_tokens(question), self._batch
        if size is None:
            config, number = self.reader.network.config.get_text_config(), TORCH_DTYPES[self.dtype].itemsize
            passing = ACTIVATION_WIDTHS_PER_TOKEN * config.hidden_size * number
            kept = number * batch_rows(question) * self._kept_numbers(config, question.length)
            free = BATCH_MEMORY_SHARE * (free_bytes(str(self.reader.device)) or 0)
            # Scored texts pass at once, and nothing is kept of them. Prompts pass a few at a time (`Reader.at_once`)
            # where they can, and all caches stay.
            if not isinstance(question, Generate | Choose):
                size = int(free / (passing * length))
            elif self.reader.can_prefill_in_turn():
                size = int(max(0, free - passing * max(self.reader.at_once, question.length)) / kept)
            else:
                size = int(free / (passing * length + kept))
            if self.reader.device.type != "cuda":
                # A joined text rotates its keys anew for further positions, which one that goes on alone keeps.
                size = min(size, MAX_CPU_WRITING_TOKENS // (2 * length if self._turns else length))
            size = min(size, MAX_CUDA_AXIS_PROGRAMS // (stated_size(config, "num_attention_heads") or 1))
        return min(size, self._limit // length)

    @property
    def _turns(self) -> bool:
        """Whether keys are kept at further positions too."""
        return any(placement.hook is not None and not placement.hook.rotated for placement in self.reader.passes)

    def _kept_numbers(self, config: Any, length: int) -> int:
        """Numbers kept of a text: keys and values of all layers, within windows; and keys at two further positions."""
        caches = self.model.kept_by_layer() or assumed_caches(config)
        views = 2 if self._turns else 0
        return len(self.reader.passes) * kept_numbers(caches, length, slides=self.reader.slides, views=views)

    def _answers(self, questions: Sequence[Batched]) -> Sequence[Answer]:
        """Answer one batch, of one kind."""
        kind = type(questions[0])
        by_kind: dict[type, Any] = {
            Loglikelihood: self._score,
            Generate: self._write,
            Choose: self._choose,
            ClassifyTokens: self._mark,
        }
        return cast(Sequence[Answer], by_kind[kind](questions))

    def write(self, question: Generate) -> GenerateAnswer:
        """Greedy continuation with a cache; stops at the model's end tokens, which are left out of the answer."""
        return self._write([question])[0]

    @taken_together
    def _write(self, questions: Sequence[Generate]) -> list[GenerateAnswer]:
        """Write one batch; each answer is the same as alone. All thoughts are written before the answers."""
        if not any(question.thought for question in questions):
            return [drop_thought(each, self.tokenizer, self._form) for each in self._continue_batch(questions)]
        tokenizer = cast(FastTokenizer, self.tokenizer)
        stages = [think_then_answer(question, tokenizer, self._form) for question in questions]
        waiting = {place: next(each) for place, each in enumerate(stages)}
        done: dict[int, GenerateAnswer] = {}
        while waiting:
            asked = list(waiting.values())
            # Thoughts end at different lengths: what stands behind them is joined only where padding is read rightly.
            alike = self.reader.can_join_texts() or len({len(each.prompt) for each in asked}) == 1
            replies = self._continue_batch(asked) if alike else [self._continue_batch([each])[0] for each in asked]
            following = {}
            for place, reply in zip(waiting, replies, strict=True):
                try:
                    following[place] = stages[place].send(reply)
                except StopIteration as end:
                    done[place] = end.value
            waiting = following
        return [done[place] for place in range(len(questions))]

    @torch.inference_mode()
    def _continue_batch(self, questions: Sequence[Generate]) -> list[GenerateAnswer]:
        room = max(question.max_new_tokens for question in questions)
        texts = [Draft(question, self.tokenizer, self._ends, self.dtype) for question in questions]
        size = len(questions[0].prompt)
        rows, unseen, repeats = [*texts], list[Found](), self.reader.repeats(room - 1)
        with self.reader.refuse_failures(max(question.length for question in questions)), ExitStack() as loop:
            prompts = [question.prompt for question in questions]
            last, caches = self.reader.prefill(prompts, room, self._ends_at(questions[0]))
            grows = any(placement.grows for placement in self.reader.passes)
            likelihoods = None if grows else self._measure_options(questions, last, caches)
            made, step = self._choose_tokens(last), cast(RepeatedStep | None, None)

            def single(token: Tensor) -> Found:
                return self._choose_tokens(self.reader.states(token, size, caches)[:, :, -1])

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
                    if 2 * len(live) <= len(rows) and self.reader.can_prefill_in_turn():
                        loop.close()
                        for state in caches:
                            cast(KeyValueState, state).select(live)
                        step, rows, feed = None, [rows[row] for row in live], feed[live]
                if number == room:
                    break
                if step is None and repeats and room - number >= MIN_RECORDED_STEPS:
                    step = loop.enter_context(self.reader.repeat_steps(caches, room - number, self._choose_tokens))
                made = (step or single)(feed)
            loop.close()
            if len(questions) == 1 and not self.reader.slides:
                self.reader.keep(questions[0].prompt, caches)
            if likelihoods is None:  # behind writing, which goes on with the frequencies of its own text
                likelihoods = self._measure_options(questions, last, caches)
        return [replace(text.as_answer(), **more) for text, more in zip(texts, likelihoods, strict=True)]

    def _measure_options(
        self, questions: Sequence[Generate], last: Tensor, caches: Sequence[TextState]
    ) -> list[dict[str, Any]]:
        """Fields of each answer that tell the likelihoods of its options: read behind the prompts, and forgotten.

        The first option of every question is read at once, then the second of every one, and so on. So nothing is
        copied of what is kept of the prompts.

        Args:
            questions: with options, or without.
            last: [passes, B, width] states of the prompts' last tokens.
            caches: what is kept of the prompts; as before behind this.
        """
        grows = any(placement.grows for placement in self.reader.passes)
        states: list[list[Tensor]] = [[] for _ in questions]
        for number in range(max(len(question.options) for question in questions)):
            rows = [question.options[number] if number < len(question.options) else None for question in questions]
            read = self._read_whole_options if grows else self._read_options
            for row, found in read(questions, rows, last, caches):
                states[row].append(found)
        return [self._likelihoods(question, each) for question, each in zip(questions, states, strict=True)]

    def _read_options(
        self, questions: Sequence[Generate], rows: Sequence[Tokens | None], last: Tensor, caches: Sequence[TextState]
    ) -> Iterator[tuple[int, Tensor]]:
        """Row of each text with an option, and the [passes, T, width] states that its T tokens follow from."""
        size = max(len(option) for option in rows if option is not None) - 1
        read = None
        if size:
            feed = np.zeros((len(rows), size), np.int64)  # what follows an option changes nothing before
            for row, option in enumerate(rows):
                if option is not None:
                    feed[row, : len(option) - 1] = option[:-1]
            with ExitStack() as stack:
                aside = [stack.enter_context(state.branch()) for state in caches]
                read = self.reader.states(self.reader.ids(*feed), len(questions[0].prompt), aside)
        for row, option in enumerate(rows):
            if option is not None:
                behind = [read[:, row, : len(option) - 1]] if read is not None else []
                yield row, torch.cat([last[:, row, None], *behind], dim=1)

    def _read_whole_options(
        self, questions: Sequence[Generate], rows: Sequence[Tokens | None], last: Tensor, caches: Sequence[TextState]
    ) -> Iterator[tuple[int, Tensor]]:
        """The same where frequencies follow the longest input so far: each option is read with its prompt, at once."""
        for row, (question, option) in enumerate(zip(questions, rows, strict=True)):
            if option is not None:
                yield row, self._states_behind(question.prompt, option)

    def _likelihoods(self, question: Generate, states: Sequence[Tensor]) -> dict[str, Any]:
        """Summed NLL of each option, and ranks of the tokens of the right one, from the states they follow from."""
        if not question.options:
            return {}
        sizes = [*map(len, question.options)]
        losses = self._losses(torch.cat(list(states), dim=1), np.concatenate(question.options)).double().cpu()
        right = question.options[question.expected]
        ids = self.reader.ids(right)[0].to(self.reader.head.device)
        ranks = likelihood.token_ranks(states[question.expected], self.reader.head.exact(), ids, self._chunk)
        return {
            "option_nll": np.array([float(each.sum()) for each in losses.split(sizes)]),  # type: ignore[no-untyped-call]
            "taught_ranks": ranks.cpu().numpy(),
        }

    def _choose_tokens(self, last: Tensor) -> Found:
        """The next token of each text [B, 1], and whether a logit is NaN: argmax of NaN is a token like any other."""
        logits = likelihood.mix_passes(self.reader.head(last))
        return logits.argmax(-1, keepdim=True), logits.isnan().any(-1, keepdim=True)

    def choose(self, question: Choose) -> ChooseAnswer:
        """NLL of each option; the prompt is read once, and what is kept of it serves every option."""
        return self._choose([question])[0] if question.layout is None else self._choose_placed(question)

    @taken_together
    @torch.inference_mode()
    def _choose_placed(self, question: Choose) -> ChooseAnswer:
        """The same of a text whose positions jump, with the ranks of the right option's tokens."""
        assert question.layout is not None
        with self.reader.refuse_failures(question.length):
            last, behind = self.placed.states(
                question.prompt, question.layout, len(question.prompt) - 1, question.options
            )
        states, follows = torch.cat([behind, last], dim=1), OptionTree.of(question.options).follows  # -1: the last
        losses = self._losses(states[:, [*itertools.chain(*follows)]], np.concatenate(question.options)).double().cpu()
        right = question.options[question.expected]
        ids = self.reader.ids(right)[0].to(states.device)
        asked = states[:, [*follows[question.expected]]]
        ranks = likelihood.token_ranks(asked, self.reader.head.exact(), ids, self._chunk)
        sums = [float(each.sum()) for each in losses.split([*map(len, follows)])]  # type: ignore[no-untyped-call]
        return ChooseAnswer(nll=np.array(sums), taught_ranks=ranks.cpu().numpy())

    @taken_together
    @torch.inference_mode()
    def _choose(self, questions: Sequence[Choose]) -> list[ChooseAnswer]:
        """Choose in one batch: options of more than one token are rows of it, behind their prompt."""
        if not self.reader.can_join_texts() or min(map(self._most, questions)) < 1:
            return [self._choose_in_turn(question) for question in questions]
        options = [option for question in questions for option in question.options]
        rows = [(number, option) for number, each in enumerate(questions) for option in each.options if len(option) > 1]
        # As many rows of a prompt's cache as it has such options.
        sizes, room = [len(questions[number].prompt) for number, _ in rows], max(map(len, options))
        with self.reader.refuse_failures(max(question.length for question in questions)):
            last, wholes, number, first = list[Tensor](), list[KeyValueState](), 0, 0
            for read, states in self.reader.prefill_batches([question.prompt for question in questions], room):
                held = [cast(KeyValueState, state) for state in states]
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
                read = self.reader.states(self.reader.ids(*feed), max(sizes), wholes)
                longer = iter([read[:, row, : len(option) - 1] for row, (_, option) in enumerate(rows)])
            states_of_options = []
            for number, question in enumerate(questions):
                for option in question.options:
                    states_of_options += [last[number], *([next(longer)] if len(option) > 1 else [])]
            losses = self._losses(torch.cat(states_of_options, dim=1), np.concatenate(options)).double().cpu()
        sums = iter([each.sum() for each in losses.split([len(option) for option in options])])  # type: ignore[no-untyped-call]
        return [ChooseAnswer(nll=torch.stack([next(sums) for _ in question.options]).numpy()) for question in questions]

    def _choose_in_turn(self, question: Choose) -> ChooseAnswer:
        """NLL of each option, one after another."""
        with self.reader.refuse_failures(question.length):
            prompt, size = question.prompt, len(question.prompt)
            # Frequencies follow the longest input so far: read each option with its prompt, at once, as `score` does.
            if any(placement.grows for placement in self.reader.passes):
                return ChooseAnswer(nll=np.array([self._read_whole(prompt, option) for option in question.options]))
            states, begun = self.reader.resume_prefix(prompt)
            end = self._ends_at(question)
            last = self.reader.states(self.reader.ids(prompt[begun:]), end, states)[:, 0, -1:]
            sums = []
            for option in question.options:
                read = last
                if len(option) > 1:
                    with ExitStack() as stack:
                        aside = [stack.enter_context(state.branch()) for state in states]
                        behind = self.reader.states(self.reader.ids(option[:-1]), size, aside)
                        read = torch.cat([last, behind[:, 0]], dim=1)
                sums.append(self._losses(read, option).double().sum())
            self.reader.keep(prompt, states)
            return ChooseAnswer(nll=torch.stack(sums).cpu().numpy())

    def _read_whole(self, prompt: Tokens, option: Tokens) -> float:
        """NLL of an option, from one forward pass over prompt and option."""
        return float(self._losses(self._states_behind(prompt, option), option).double().sum())

    def _states_behind(self, prompt: Tokens, option: Tokens) -> Tensor:
        """[passes, T, width] states that the T tokens of an option follow from, of one forward pass over both."""
        size = len(prompt)
        return self.reader.states(self.reader.ids(np.concatenate([prompt, option[:-1]])), size)[:, 0, size - 1 :]

    def mark(self, question: ClassifyTokens) -> ClassifyTokensAnswer:
        """NLL of the options, from one forward pass."""
        return self._mark([question])[0]

    @taken_together
    @torch.inference_mode()
    def _mark(self, questions: Sequence[ClassifyTokens]) -> list[ClassifyTokensAnswer]:
        """Mark one batch."""
        texts = [question.tokens[: tokens_to_read(question)] for question in questions]
        with self.reader.refuse_failures(max(question.length for question in questions)):
            states = self.reader.states(self.reader.ids(*texts), first_target_place(questions[0]))
            return [
                ClassifyTokensAnswer(nll=self._option_losses(states[:, row], question))
                for row, question in enumerate(questions)
            ]

    def _option_losses(self, states: Tensor, question: ClassifyTokens) -> "np.ndarray[Any, np.dtype[np.float32]]":
        """[places, options] NLL behind [passes, T, width] states."""
        states = states[:, torch.from_numpy(question.places - 1).to(states.device)]
        options = self.reader.ids(question.options)[0].to(states.device)
        return likelihood.nll_of_options(states, self.reader.head.exact(), options, self._chunk).cpu().numpy()

    def score(self, question: Loglikelihood) -> LoglikelihoodAnswer:
        """NLL of the targets; computes logits of these only, a chunk at a time."""
        return self._score([question])[0] if question.layout is None else self._score_placed(question)

    @taken_together
    @torch.inference_mode()
    def _score_placed(self, question: Loglikelihood) -> LoglikelihoodAnswer:
        """The same of a text whose positions jump."""
        assert question.layout is not None
        first = question.first_target
        with self.reader.refuse_failures(question.length):
            states, _ = self.placed.states(question.tokens, question.layout, first - 1)
        return LoglikelihoodAnswer(nll=self._losses(states[:, :-1], question.tokens[first:]).cpu().numpy())

    @taken_together
    @torch.inference_mode()
    def _score(self, questions: Sequence[Loglikelihood]) -> list[LoglikelihoodAnswer]:
        """Score one batch."""
        with self.reader.refuse_failures(max(question.length for question in questions)):
            tokens = self.reader.ids(*(question.tokens[:-1] for question in questions))
            states = self.reader.states(tokens, questions[0].first_target)
            targets = [question.tokens[question.first_target :] for question in questions]
            ends = [states[:, row, each.first_target - 1 : each.length - 1] for row, each in enumerate(questions)]
            joined = ends[0] if len(ends) == 1 else torch.cat(ends, dim=1)
            losses = self._losses(joined, np.concatenate(targets)).cpu()
            return [LoglikelihoodAnswer(nll=each.numpy()) for each in losses.split([*map(len, targets)])]  # type: ignore[no-untyped-call]

    @taken_together
    @torch.inference_mode()
    def diverge(self, question: MeasureDivergence) -> MeasureDivergenceAnswer:
        """Differences of next-token distributions; keeps states of both readings, and logits of a chunk."""
        start, other = (
            question.first_target,
            other_attention(question.against, self._attention, self.model, question.length),
        )
        with self.reader.refuse_failures(question.length):
            ids = self.reader.ids(question.tokens[:-1])
            if not question.against and self.reader.goes_on_alike():
                shared = self._read_uncompressed(ids, start, other)
                # The prompt is read anew unless it is read alike with and without the compressed cache.
                queries = self._queries_to_read_again(start)
                own = self._behind(ids, start) if queries is None else self._further(ids, start, queries, *shared[1:3])
                theirs, self._shared = shared[3], shared
            else:
                own = self._behind(ids, start)
                with self.reader.read_under(other):
                    theirs = self._behind(ids, start)
            targets = self.reader.ids(question.tokens[start:])[0].to(own.device)
            found = likelihood.divergences(own, theirs, self.reader.head.exact(), targets, self._chunk)
            apart, same, nll, other_nll = (each.cpu().numpy() for each in found)
        return MeasureDivergenceAnswer(divergence=apart, same_top=same, nll=nll, other_nll=other_nll)

    def _behind(self, ids: Tensor, start: int) -> Tensor:
        """[passes, 1 + T, width] states from the last token of a prompt on, of one text that is read at once."""
        return self.reader.states(ids, start)[:, 0, start - 1 :]

    def _queries_to_read_again(self, start: int) -> int | None:
        """Number of a prompt's last tokens that must be read under our own cache, not only without; None: all."""
        keepings = self._attention.keepings
        if any(keeping.in_prompt for keeping in keepings):
            return None
        dropping = [keeping for keeping in keepings if keeping.drops_tokens]
        needed = [None if keeping.needs_rotation else keeping.choosing_queries for keeping in dropping]
        numbers = [0, *(number for number in needed if number is not None)]
        # To install the next of several passes forgets where the prompt ends.
        whole = None in needed or max(numbers) >= start or (dropping and len(self.reader.passes) > 1)
        return None if whole else max(numbers)

    def _read_uncompressed(self, ids: Tensor, start: int, other: Attention) -> SharedPrompt:
        """A text read under an Attention. It is taken out of `_shared`: an error may leave it cut wrongly."""
        name = json.dumps(other.as_data(), sort_keys=True), start, ids.cpu().numpy().tobytes()
        shared, self._shared = self._shared, None
        if shared is not None and shared[0] == name:
            return shared
        del shared  # before the next one takes its memory
        with self.reader.read_under(other):
            states = [cast(KeyValueState, self.reader.new(ids.shape[1] - start)) for _ in self.reader.passes]
            last = self.reader.states(ids[:, :start], start, states)[:, 0, -1:]
            return name, states, last, self._further(ids, start, 0, states, last)

    def _further(self, ids: Tensor, start: int, queries: int, states: Sequence[KeyValueState], last: Tensor) -> Tensor:
        """[passes, 1 + T, width] the last states of a prompt, and those of T further tokens, after which it is cut.

        The prompt's last `queries` tokens are read again with them.
        """
        if ids.shape[1] == start:
            return last
        self.reader.installer.begin(start)
        with ExitStack() as stack:
            aside = [
                stack.enter_context(state.without_last(queries) if queries else state.branch()) for state in states
            ]
            return torch.cat([last, self.reader.states(ids[:, start - queries :], start, aside)[:, 0, queries:]], dim=1)

    def _losses(self, states: Tensor, targets: Tokens) -> Tensor:
        """[T] NLL of targets behind [passes, T, width] states."""
        ids = self.reader.ids(targets)[0].to(states.device)
        return likelihood.token_nll(states, self.reader.head.exact(), ids, self._chunk)

    @taken_together
    @torch.inference_mode()
    def logits(self, tokens: Tokens, pieces: Sequence[int], prompt: int) -> Tensor:
        """[T, N_COMPARED_VOCABULARY_TOKENS] next-token logits, from one forward pass or from several pieces of `tokens`
        with a cache.

        Only the first `N_COMPARED_VOCABULARY_TOKENS` tokens of the vocabulary, so that long texts fit in memory.

        Args:
            tokens: [T] ids.
            pieces: tokens of each forward pass; their sum is T.
            prompt: length of the prompt, at most that of the first piece.
        """
        with self.reader.refuse_failures(len(tokens)):
            states = [self.reader.new() for _ in self.reader.passes] if len(pieces) > 1 else ()
            parts = torch.split(self.reader.ids(tokens), list(pieces), dim=1)
            return self._columns(torch.cat([self.reader.states(part, prompt, states)[:, 0] for part in parts], dim=1))

    @taken_together
    @torch.inference_mode()
    def logits_together(self, rows: Sequence[Tokens]) -> list[Tensor]:
        """Each row's [T, N_COMPARED_VOCABULARY_TOKENS] next-token logits, from one batch padded on the left."""
        width = max(len(row) for row in rows)
        feed = torch.zeros(len(rows), width, dtype=torch.int64, device=self.reader.device)
        real = torch.zeros_like(feed)
        for number, row in enumerate(rows):
            feed[number, width - len(row) :], real[number, width - len(row) :] = self.reader.ids(row)[0], 1
        with self.reader.refuse_failures(width):
            passes = []
            for placement in self.reader.passes:
                self.reader.installer.put(placement)
                # Positions count real tokens, as `generate` of transformers counts them.
                places = (real.cumsum(1) - 1).clamp_min(0)
                read = self.reader.base(input_ids=feed, attention_mask=real, position_ids=places, use_cache=False)
                passes.append(last_hidden_states(read).to(self.reader.head.device))
            states = torch.stack(passes)
            return [self._columns(states[:, number, width - len(row) :]) for number, row in enumerate(rows)]

    def _columns(self, states: Tensor) -> Tensor:
        """[T, N_COMPARED_VOCABULARY_TOKENS] logits of [passes, T, width] states, from those of
        `MAX_POSITIONS_WITH_LOGITS` positions at a time."""
        chunks = torch.split(states, min(self._chunk, MAX_POSITIONS_WITH_LOGITS), dim=1)
        return torch.cat(
            [likelihood.mix_passes(self.reader.head(chunk))[:, :N_COMPARED_VOCABULARY_TOKENS] for chunk in chunks]
        )

    def difference_from_method(self, length: int) -> float | None:
        """Largest difference between what the model computes and the method's numbers; needs an earlier forward pass.

        None if the method's numbers depend on the input.
        """
        with self.reader.refuse_failures(length):
            installer, passes = self.reader.installer, self.reader.passes
            found = [installer.difference_from_method(placement, self.model, length) for placement in passes]
        return None if None in found else max(error for error in found if error is not None)

    def wrong_layer(self, attention: Attention, length: int) -> str | None:
        """The first layer, in words, that has another Attention or turns by other frequencies or scale, or None.

        What is done with other slots is checked by `difference_from_method`.
        """
        for layer in range((self.model.layers or 0) if attention.mixture is None else 0):
            if self.reader.passes[0].attention.at(layer).as_data() != attention.at(layer).as_data():
                return f"layer {layer} has another Attention"
        if attention.inv_freq is None or not {*attention.slots()} <= {"inv_freq", "scale"} or self._is_split:
            return None
        with self.reader.refuse_failures(length), suppress(Refused):  # of a model that is not understood
            return differing_layer(self.reader.network, self.model, attention, length)
        return None

    def drops_after(self) -> int | None:
        """Size of the largest window of any layer that keeps no keys beyond it; None: all layers keep all keys."""
        return max(windows_of(self.reader.network.config.get_text_config()), default=None)

    def all_layers_attended(self) -> bool:
        """Whether every layer has called our attention function, if one is installed."""
        hooks = [placement.hook for placement in self.reader.passes if placement.hook is not None]
        return all(hook.modules.keys() >= (hook.attends or {*range(len(hook.layers))}) for hook in hooks)

    @torch.inference_mode()
    def probe(self, question: ProbeAttention) -> ProbeAttentionAnswer:
        """Attention statistics of one forward pass, collected in our attention function layer by layer."""
        [placement, *others], installer = self.reader.passes, self.reader.installer
        if self._is_split:
            raise Refused("hf cannot probe with backend.tensor_parallel: each process has some of the heads")
        if others:
            raise Refused("hf cannot probe a mixture: its passes have different attention weights")
        observer = Observer(question.length, question.first, question.last, question.shortest)
        try:
            with self.reader.refuse_failures(question.length):
                installer.put(installer.prepare(placement.attention, observer))
                self.reader.base(input_ids=self.reader.ids(question.tokens), use_cache=False)
        finally:
            installer.put(placement)
        return ProbeAttentionAnswer(statistics=observer.statistics())
