"""The harness's model class: turns its requests into our questions, and our answers into its results."""

import atexit
import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, cast

import numpy as np
from lm_eval.api.model import TemplateLM
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
from tqdm import tqdm

from lexbench.checkpoints.checkpoint import folder_of
from lexbench.checkpoints.tokenizer import opens_thought, prepend_special_tokens, wrap_loaded_tokenizer
from lexbench.core.console import must_hide_bar
from lexbench.core.errors import ConfigError
from lexbench.core.task import Generate, GenerateAnswer, Loglikelihood, LoglikelihoodAnswer, Tokens
from lexbench.core.version import __version__
from lexbench.parts.exchange.lm_eval.arguments import (
    greedy_settings,
    load_backend,
    model_identity,
    read_model_arguments,
)
from lexbench.parts.exchange.lm_eval.asking import answer_longest_first, continuation_likelihoods
from lexbench.runner.backend_pool import release_backend

log = logging.getLogger(__name__)


class LexbenchModel(TemplateLM):  # type: ignore[misc]
    """A model with a method: `--model lexbench --model_args model=lexlet,method=yarn,factor=4`.

    Args:
        batch_size: ignored; a backend chooses its own batches.
        max_batch_size: ignored.
        arguments: model or path, method, backend, dtype, device, max_length, trained_length, parameters of the method,
            and `model.KEY`, `method.KEY`, `backend.KEY` (see `lexbench.parts.exchange.lm_eval.arguments`).
    """

    def __init__(self, batch_size: Any = None, max_batch_size: Any = None, **arguments: Any) -> None:
        from transformers import AutoTokenizer

        super().__init__()
        if str(batch_size or 1) != "1" or max_batch_size:
            log.warning("lexbench backends choose their own batches: batch_size=%s is ignored", batch_size)
        self.setting = read_model_arguments(arguments)
        self.max_length = self.setting.max_length
        self._running = load_backend(self.setting)
        # The harness never closes a model.
        atexit.register(release_backend, self._running)
        self._prefix: list[int] = [*self._running.tokenizer.prefix]
        folder = folder_of(self.setting.model, weights=False)
        self.tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        if wrap_loaded_tokenizer(self.tokenizer).prefix != tuple(self._prefix):  # transformers follows another file
            prepend_special_tokens(self.tokenizer.backend_tokenizer, self._prefix)
        self._truncated: dict[str, Counter[str]] = {}

    # requests of the harness

    def loglikelihood(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """For each (context, continuation): ln p of the continuation (nats), and whether greedy decoding writes it.

        Longer than `max_length`: the first tokens are dropped, and the request is counted.
        """
        pairs = [(request.args, *self._encode_request(*request.args)) for request in requests]
        lengths = [len(context) + len(continuation) - 1 for _, context, continuation in pairs]
        self._count_truncated("loglikelihood", requests, [length > self.max_length for length in lengths])
        return self._loglikelihood_tokens(pairs, disable_tqdm=disable_tqdm)

    def _loglikelihood_tokens(
        self, requests: Sequence[tuple[Any, list[int], list[int]]], disable_tqdm: bool = False, **kwargs: Any
    ) -> list[tuple[float, bool]]:
        questions = [
            _loglikelihood_question(index, context, after, self.max_length)
            for index, (_, context, after) in enumerate(requests)
        ]
        found = ((index, (total, best)) for index, total, best in continuation_likelihoods(self._running, questions))
        return self._gather_results("loglikelihood", [texts for texts, _, _ in requests], found, disable_tqdm)

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:
        """For each text: ln p of all its tokens (nats), in disjoint windows of `max_length` tokens.

        The first window is conditioned on what begins every text, or else on one BOS (or end) token, which is no
        target; a later window on the last token of the previous one; the last window on as many earlier tokens as fill
        it.
        """
        *first, prefix = self._begin_tokens
        room = self.max_length - len(first)
        questions: list[Loglikelihood] = []
        parts: list[int] = []
        for index, request in enumerate(requests):
            tokens = self.tok_encode(request.args[0], add_special_tokens=False)
            windows = [
                make_disjoint_window(window)
                for window in get_rolling_token_windows(tokens, prefix, room, context_len=1)
            ]
            for number, (before, after) in enumerate(windows):
                before = before if number else [*first, *before]
                questions.append(_loglikelihood_question(len(questions), before, after, self.max_length))
                parts.append(index)
        totals, left = [0.0] * len(requests), Counter(parts)
        empty = [(index, 0.0) for index in range(len(requests)) if not left[index]]

        def finished() -> Iterable[tuple[int, float]]:
            yield from empty
            for question, answer in answer_longest_first(self._running, questions, self._running.score):
                assert isinstance(answer, LoglikelihoodAnswer)
                index = parts[question.index]
                totals[index] -= float(answer.nll.sum(dtype=np.float64))
                left[index] -= 1
                if not left[index]:
                    yield index, totals[index]

        return self._gather_results(
            "loglikelihood_rolling", [request.args for request in requests], finished(), disable_tqdm
        )

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """For each (context, settings): the greedy continuation, up to the first stop string.

        A context that leaves less than max_gen_toks of `max_length` loses its first tokens, and is counted.
        """
        questions, cut = [], []
        for index, request in enumerate(requests):
            context, (room, until) = request.args[0], greedy_settings(request.args[1])
            if room >= self.max_length or room < 1:
                raise ConfigError(
                    f"max_gen_toks must be at least 1 and below max_length {self.max_length}, got {room}: "
                    "give --gen_kwargs max_gen_toks=..., or raise max_length"
                )
            tokens = self.tok_encode(context) or self._begin_tokens
            # The last tokens that leave this room; the index is negative, as the room is smaller.
            kept = np.array(tokens[room - self.max_length :], dtype=np.int64)
            cut.append(len(kept) < len(tokens))
            questions.append(Generate(index=index, cluster=str(index), prompt=kept, max_new_tokens=room, until=until))
        self._count_truncated("generate_until", requests, cut)
        found = (
            (question.index, _cut_at_stop(answer, question.until))
            for question, answer in answer_longest_first(self._running, questions, self._running.write)
        )
        return self._gather_results("generate_until", [request.args for request in requests], found, disable_tqdm)

    def get_model_info(self) -> dict[str, Any]:
        """Everything that results depend on, stored under `lexbench` in the result file's `config`.

        `truncated` counts, by kind of request and task, the requests that lost their first tokens.
        """
        truncated = {kind: dict(tasks) for kind, tasks in self._truncated.items()}
        about = {"version": __version__, **model_identity(self.setting, self._running), "truncated": truncated}
        return {"lexbench": about}

    # texts and tokens

    @property
    def eot_token_id(self) -> int | None:
        """The end token; None if the model has none."""
        end: int | None = self.tokenizer.eos_token_id
        return end

    @property
    def prefix_token_id(self) -> int:
        """The last token of the context of a request without context."""
        return self._begin_tokens[-1]

    @property
    def _begin_tokens(self) -> list[int]:
        """The context of a request without context: what begins every text; else BOS, or the end token without BOS."""
        bos = self._running.tokenizer.bos
        token = self.eot_token_id if bos is None else bos
        if not self._prefix and token is None:
            raise ConfigError(f"{self.setting.model.name} has neither BOS nor an end token: use tasks with a context")
        return self._prefix or [cast(int, token)]

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **kwargs: Any) -> list[int]:
        """Tokens of a text; special tokens spelled out in it are encoded as such, as chat templates need.

        Adds the model's prefix (BOS) unless it is there already or `add_special_tokens` is false.
        """
        ids = list(self.tokenizer.encode(string, add_special_tokens=False, verbose=False))
        bare = add_special_tokens is False or ids[: len(self._prefix)] == self._prefix
        return ids if bare else [*self._prefix, *ids]

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """Apply the model's chat template; ConfigError if it has none, if it fails, or if it opens a thought."""
        from jinja2 import TemplateError

        name = self.setting.model.name
        if self.tokenizer.chat_template is None:
            raise ConfigError(f"model {name} has no chat template: leave out --apply_chat_template")
        try:
            prompt = str(
                self.tokenizer.apply_chat_template(
                    chat_history,
                    tokenize=False,
                    add_generation_prompt=add_generation_prompt,
                    continue_final_message=not add_generation_prompt,
                    enable_thinking=False,  # the task's room is for the answer
                )
            )
        except TemplateError as error:
            raise ConfigError(
                f"chat template of {name} cannot be rendered ({error}): leave out --system_instruction, "
                "or --apply_chat_template"
            ) from None
        if opens_thought(prompt):
            raise ConfigError(
                f"chat template of {name} opens a thought, which would be scored as the answer: leave out "
                "--apply_chat_template, or ask by lexbench run with backend.chat=true backend.thinking=free"
            )
        return prompt

    @property
    def tokenizer_name(self) -> str:
        """Key of the tokenizer in the harness's request cache."""
        return str(self.setting.model.path).replace("/", "__")

    def _encode_request(self, context: str, continuation: str) -> tuple[list[int], list[int]]:
        """Tokens of both, by the harness's rules: spaces at the end of the context move to the continuation."""
        if context:
            before, after = self._encode_pair(context, continuation)
            before = before or self._begin_tokens
        else:
            before, after = self._begin_tokens, self.tok_encode(continuation, add_special_tokens=False)
            if after[: len(before)] == before:
                after = after[len(before) :]
        if not after:
            raise ConfigError(f"the continuation {continuation!r} adds no token to its context: fix the task's choices")
        return before, after

    # counts and results

    def _count_truncated(self, kind: str, requests: Sequence[Any], cut: Sequence[bool]) -> None:
        """Count requests that lost their first tokens, and warn."""
        lost = [request for request, each in zip(requests, cut, strict=True) if each]
        self._truncated.setdefault(kind, Counter()).update(str(request.task_name) for request in lost)
        if lost:
            log.warning(
                "%d of %d %s requests are longer than max_length=%d and lost their first tokens: raise max_length",
                *(len(lost), len(requests), kind, self.max_length),
            )

    def _gather_results(
        self, kind: str, texts: Sequence[Any], found: Iterable[tuple[int, Any]], disable_tqdm: bool
    ) -> list[Any]:
        """Results in the order of the requests; each goes to the harness's cache at once."""
        results: list[Any] = [None] * len(texts)
        for index, result in tqdm(
            found, total=len(texts), desc=f"{kind} requests", disable=must_hide_bar(disable_tqdm)
        ):
            results[index] = result
            self.cache_hook.add_partial(kind, texts[index], result)
        return results


def _loglikelihood_question(
    index: int, context: Sequence[int], continuation: Sequence[int], max_length: int
) -> Loglikelihood:
    """A Loglikelihood question for the continuation; drops first tokens of a context that is too long."""
    if len(continuation) > max_length:
        raise ConfigError(
            f"a continuation of {len(continuation)} tokens does not fit max_length={max_length}: raise it"
        )
    # `max_length` tokens are read, and the last one is only scored.
    tokens: Tokens = np.array([*context, *continuation], dtype=np.int64)[-(max_length + 1) :]
    start = len(tokens) - len(continuation)
    # The harness counts bytes and words itself.
    return Loglikelihood(index=index, cluster=str(index), tokens=tokens, first_target=start, bytes=0, words=0)


def _cut_at_stop(answer: Any, ends: Sequence[str]) -> str:
    """The written text up to the first stop string."""
    assert isinstance(answer, GenerateAnswer)
    places = [answer.text.find(end) for end in ends if end in answer.text]
    return answer.text[: min(places, default=len(answer.text))]
