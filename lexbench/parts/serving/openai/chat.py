"""Chat completions: messages in, a thought and an answer out, each with its own budget."""

import itertools
import statistics
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from lexbench.backends.thinking import ANSWER_END_PATTERN, Form, answer_place, find_thought
from lexbench.checkpoints.tokenizer import FastTokenizer
from lexbench.core.record import Refused
from lexbench.core.task import Generate, GenerateAnswer, Tokens
from lexbench.parts.serving.openai.dialect import MAX_STOP_STRINGS, Abilities, Dialect
from lexbench.parts.serving.openai.http import Rejected
from lexbench.parts.serving.openai.replies import malformed_answer, value_at
from lexbench.parts.serving.openai.trials import Drawn

TEMPLATE_TOLERANCE_TOKENS = 64
"""Tokens by which a server's template may differ from the one here: a default system message, another date."""
THOUGHT_FIELDS = ("reasoning", "reasoning_content")
"""Names of a thought beside the answer: vLLM's newer and older one."""
MIN_REPEATED_CHARACTERS = 20
"""Characters of the beginning of a thought that is no answer by chance."""
ROOM_FIELDS = ("max_tokens", "max_completion_tokens")
TRIAL_MESSAGES = [{"role": "user", "content": "Hi"}]
Message = tuple[str, str]


class ChatDialect(Dialect):
    """Chat completions of one model on a server.

    Args:
        *asked: as for `Dialect`.
        form: how the server is asked.
    """

    tokenizer: FastTokenizer

    def __init__(self, *asked: Any, form: Form) -> None:
        self._form, self.switches = form, True
        self._bos_counts = list[float]()
        super().__init__(*asked)

    def write(self, question: Generate) -> GenerateAnswer:
        """Thought and answer to a question; the answer is cut to `max_new_tokens` tokens.

        Refused if the server has read another number of tokens than asked, beyond `TEMPLATE_TOLERANCE_TOKENS`.
        """
        self.check_greedy()
        # A stop text within the thought would end the whole answer.
        most, until = question.thought + question.max_new_tokens, () if question.thought else question.until
        answer, choice = self._chat(self._messages(question), most, until)
        cut = self._is_cut(choice)
        self._check_counts(answer.get("usage"), len(question.prompt), most, cut)
        thought, text = self._thought_and_answer(value_at(self._server, choice, dict, "message"), cut)
        self._check_secret(f"{thought} {text}")
        tokens = self._first_tokens(text, question.max_new_tokens)
        if len(tokens) > question.max_new_tokens:  # what the thought has left over is not the answer's
            tokens, cut = tokens[: question.max_new_tokens], True
            text = self.tokenizer.decode(tokens)
        unanswered = not text and bool(question.thought) and (cut or bool(thought))
        return GenerateAnswer(
            tokens=tokens,
            text=text,
            hit_room=cut and not question.contains_stop_text(text),
            thought=thought,
            thought_cut=unanswered,
        )

    def _write_one(self, question: Generate, count: int) -> dict[str, Any]:
        """A choice of one new token, with the likelihoods of so many likeliest ones; 0: without."""
        if self._form.thinking != "none":
            raise Refused("a model that thinks writes its thought first: set backend.thinking=none backend.thought=0")
        likely = {"logprobs": True, "top_logprobs": count} if count else {}
        messages = self._messages(question)
        answer, choice = self._chat(messages, 1, likely=likely)
        self._check_counts(answer.get("usage"), len(question.prompt), 1, False)
        whole = self.tokenizer.rendered_tokens([(each["role"], each["content"]) for each in messages])
        more = answer["usage"]["prompt_tokens"] - len(whole)
        self._bos_counts.append(int(whole[0] == self.tokenizer.bos) + more)
        return choice

    @property
    def bos_count(self) -> float:
        """BOS in front of messages of which one token was asked, by the server's counts of tokens: their median.

        Another number than 0, 1 or 2 where its template is not the model's here.
        """
        return statistics.median(self._bos_counts)

    def _text_of_choice(self, choice: Mapping[str, Any]) -> str:
        """The content of the message of an answer."""
        return str(value_at(self._server, choice, dict, "message").get("content") or "")

    def _check_counts(self, usage: Any, asked: int, most: int, cut: bool) -> None:
        """Refused where the server's own counts say that prompt or answer were cut, or say nothing of the prompt.

        Args:
            usage: of the answer.
            asked: tokens of the prompt here.
            most: tokens that the server may write.
            cut: whether the answer ended at the limit of new tokens, as the server says.
        """
        counts = usage if isinstance(usage, dict) else {}
        read, written = counts.get("prompt_tokens"), counts.get("completion_tokens")
        if not isinstance(read, int | float) or abs(read - asked) > TEMPLATE_TOLERANCE_TOKENS:
            shown = "an unknown number of" if read is None else self._server.one_line_message(str(read))
            raise Refused(
                f"{self._server.url} has read {shown} tokens, the question has {asked}: it truncates prompts, its "
                "template is not the model's here, or it does not count"
            )
        if not isinstance(written, int | float):
            return
        if cut and written < most:
            raise Refused(
                f"{self._server.url} stopped after {written:g} of {most} tokens: raise its limit on new tokens"
            )
        if written > most:
            raise Refused(
                f"{self._server.url} wrote {written:g} tokens of at most {most}: it ignores {self.room_field}"
            )

    def _thought_and_answer(self, message: Mapping[str, Any], cut: bool) -> tuple[str, str]:
        """Thought and answer; Refused where a model that is told not to think has spent all its tokens on a thought."""
        thought, answer = self._split(message, cut)
        if self._form.thinking == "none" and thought is not None and (not answer or (thought.strip() and cut)):
            raise Refused(
                f"{self._server.url} writes a thought in place of an answer, though it is told not to think: start it "
                "without a parser of thoughts, or set backend.thinking=free backend.thought=2048"
            )
        return thought or "", answer

    def _split(self, message: Mapping[str, Any], cut: bool) -> tuple[str | None, str]:
        """Thought (None: no trace of one) and answer: by the server's own field, else by the markers.

        A thought without end has no answer.
        """
        text = message.get("content")
        if text is not None and not isinstance(text, str):
            raise malformed_answer(self._server, f"message.content must be a str, got {type(text).__name__}")
        text = text or ""
        for name in THOUGHT_FIELDS:
            if isinstance(message.get(name), str) and message[name]:
                return message[name], self._beside(text, message[name])
        if message.get("content") is None and not cut:
            refusal = message.get("refusal")
            said = f" ({self._server.one_line_message(refusal)})" if isinstance(refusal, str) else ""
            raise malformed_answer(self._server, f"an answer without content{said}")
        # From the right: a thought may speak of its own marker.
        if found := find_thought(text, self._form, last=True):
            # A block without a thought: an empty answer behind it is the model's own.
            none = found.ended and not found.thought and self._form.thinking == "none"
            answer = ANSWER_END_PATTERN.sub("", text[found.answer_start :]).lstrip()
            return (None if none else found.thought), answer
        # The template may have written the opening marker: then only the end tells a thought.
        if cut and self._form.thinking != "none":
            return text.strip(), ""
        return None, text

    def _beside(self, text: str, thought: str) -> str:
        """The answer in a content that stands beside its thought: without the thought, where the server repeats it."""
        if found := find_thought(text, self._form, last=True):
            return text[found.answer_start :].lstrip()
        own, known = text.strip(), thought.strip()
        if own == known or (len(own) >= MIN_REPEATED_CHARACTERS and known.startswith(own)):
            return ""
        if len(known) >= MIN_REPEATED_CHARACTERS and own.startswith(known):
            return own.removeprefix(known).lstrip()
        return text.lstrip()

    def _messages(self, question: Generate) -> list[dict[str, str]]:
        messages = list(question.messages) or self._read(question.prompt)
        *others, (role, last) = messages
        if role == "assistant" and not self._form.continues:
            before, content = others[-1]
            messages = [*others[:-1], (before, f"{content}\n{last.strip()}")]
        return [{"role": role, "content": content} for role, content in messages]

    def _read(self, prompt: Tokens) -> list[Message]:
        """The messages of a prompt that was framed as one user message, and the first words of the answer behind it."""
        frame = self.tokenizer.frame(chat=True)
        end = answer_place(frame, prompt)
        if not np.array_equal(prompt[: len(frame.before)], frame.before):
            raise Refused("a chat server needs a question that begins as the chat template does: set task.chat=true")
        user = [("user", self.tokenizer.decode(prompt[len(frame.before) : end - len(frame.after)]))]
        system = [("system", self.tokenizer.system)] if self.tokenizer.system is not None else []
        begun = self.tokenizer.decode(prompt[end:])
        return [*system, *user, *([("assistant", begun)] if begun else [])]

    def _chat(
        self,
        messages: Sequence[Mapping[str, str]],
        most: int,
        until: Sequence[str] = (),
        thinks: bool | None = None,
        likely: Mapping[str, Any] = MappingProxyType({}),
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """The answer to messages, and its only choice; `thinks` None: as the form says.

        `likely`: fields that ask for likelihoods.
        """
        body: dict[str, Any] = {"messages": messages, self.room_field: most, **likely}
        if stops := [text for text in until if text][:MAX_STOP_STRINGS]:
            body["stop"] = stops
        if messages[-1]["role"] == "assistant":
            body |= {"continue_final_message": True, "add_generation_prompt": False}
        if self.switches:
            body["chat_template_kwargs"] = {
                "enable_thinking": self._form.thinking != "none" if thinks is None else thinks
            }
        if self._form.thinking == "budget":
            body["thinking_token_budget"] = self._form.thought
        return self._post_greedy("chat/completions", body)

    def try_at(self, length: int, sees_all: bool = True, fixed_angles: bool = True, at_once: int = 1) -> None:
        """Try the server on messages that have, with template, thought and answer, about `length` tokens."""
        frame = self.tokenizer.frame(chat=True)
        around = len(frame.before) + len(frame.after) + TEMPLATE_TOLERANCE_TOKENS + self._form.thought
        super().try_at(length - around, sees_all, fixed_angles, at_once)

    def _draw(self, tokens: Tokens, count: int, **likely: int) -> Drawn:
        """What the server writes to a message, its thought first."""
        content = self.tokenizer.decode(tokens[len(self.tokenizer.prefix) :])
        asked = {"logprobs": True, "top_logprobs": likely["logprobs"]} if likely else {}
        _, choice = self._chat([{"role": "user", "content": content}], count, likely=asked)
        message = value_at(self._server, choice, dict, "message")
        parts = [message.get(name) for name in (*THOUGHT_FIELDS, "content")]
        text = "".join(part for part in parts if isinstance(part, str))
        new, ranked = self._first_tokens(text, count), self._replies.ranks_of_new(choice)
        return Drawn(tokens=new, text=text, ranked=ranked)

    def can_send(self, tokens: Tokens) -> bool:
        """Whether a message of these tokens can be sent: as text, all can."""
        return True

    def _abilities(self) -> Abilities:
        """Find the fields that the server knows, by trial requests; Refused if it answers none."""
        # OpenAI's newer models take max_completion_tokens only, and some servers reject the switch for thinking.
        ways = [*itertools.product(ROOM_FIELDS, (True, False))]
        for self.room_field, self.switches in ways:
            self._may_be_unknown = (self.room_field, self.switches) != ways[-1]
            try:
                answer, _ = self._chat(TRIAL_MESSAGES, 1 + self._form.thought)
            except Rejected as no:
                last = no
                continue
            finally:
                self._may_be_unknown = False
            self._check_switch(answer)
            return Abilities(False, False, None, False)
        raise last

    def _check_switch(self, answer: Mapping[str, Any]) -> None:
        """Refused if the server lets a model think that is told not to: it reads as many tokens as when told to.

        Where the template opens the thought, nothing in an answer that is cut tells it from a thought.
        """
        if self._form.thinking != "none" or not self.tokenizer.opens_thought_by_default():
            return
        if self.switches:
            try:
                told, _ = self._chat(TRIAL_MESSAGES, 1, thinks=True)
            except Rejected:
                return  # it knows the switch
            counts = [value_at(self._server, each, dict, "usage").get("prompt_tokens") for each in (answer, told)]
            if counts[0] != counts[1]:
                return
        raise Refused(
            f"{self._server.url} takes no chat_template_kwargs, and the model's template opens a thought without: set "
            "backend.thinking=free backend.thought=2048, or switch thinking off there"
        )
