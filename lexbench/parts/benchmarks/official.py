"""Public benchmarks from the user's own copy: MRCR, GraphWalks, LongBench v2, BABILong, InfiniteBench, NoLiMa, ..."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar

import numpy as np

from lexbench import (
    Answer,
    AnyQuestion,
    ConfigError,
    Generate,
    GenerateAnswer,
    Outline,
    Refused,
    Sample,
    Task,
    Tokenizer,
    Tokens,
)
from lexbench.parts.benchmarks import table
from lexbench.parts.benchmarks.table import (
    BENCHMARK_OF_NAME,
    Benchmark,
    BenchmarkExample,
    BenchmarkFiles,
    BenchmarkRequest,
    Message,
)
from lexbench.taskkit import ceiling
from lexbench.taskkit.longbench import Missing
from lexbench.taskkit.prompt import bos_note, check_at_least, conversation_tokens, has_chat
from lexbench.taskkit.scoring import score_written

TRUNCATION_NOTES = {"skip": "over-long prompts left out", "middle": "over-long prompts lose their middle"}
MAX_CHARACTERS_PER_TOKEN = 16
"""Characters of a token, at most on average over a prompt: what has more for each token of the length cannot fit."""


@dataclass(frozen=True)
class Official(Task):
    """Answer a public benchmark from your own copy of its data and prompts, scored by its official rule.

        length 8192, room 2048      [the official messages, in the model's chat template] [the answer]

    Nothing of a benchmark is part of lexbench. `length` limits prompt and room: examples keep their own lengths, and
    those that do not fit are left out (each sample's facts have the number), or lose their middle where the official
    code cuts it. Examples are the first n of those that fit, in an order that depends on benchmark, part and seed only:
    with n as large as the data a longer length keeps the examples of a shorter one; with fewer, longer ones that come
    first take the places of the last. Records are also made for the classes of the benchmark's own axis (`official 4k`,
    `bfs`, `hard`), and by the model's own tokens (`tokens 4k-8k`, thousands of 1024).

    The scorers (`lexbench.parts.benchmarks`): `official` with the faults that published numbers contain, and
    `repaired` without. Each rule's docstring names them. What a score is worth: in MRCR a reply of the right kind but
    of any number has about 0.51 with 2 needles, 0.27 with 4, 0.15 with 8 (shown as chance), and any reply of the
    conversation 0.01; a right reply cut after a share f of it has 2f / (1 + f), so read `hit_room` beside it.

    Differences to the official runs: greedy instead of sampled; the middle is cut in the model's tokens, so that prompt
    and room fit in `length`; NoLiMa's books are taken in the order of their names, which officially is the file
    system's; MRCR and NoLiMa without a chat template are written as "User: ... Assistant: ...", which is our own form;
    the system message, and the worked example of Math.Calc, that only GPT-4 got in InfiniteBench are left out.

    Args:
        benchmark: mrcr, graphwalks, ...: set by the yaml.
        part: set or kind of questions, see `lexbench list task`; None: the first.
        data: folder with the official files, in the layout of their repository.
        prompts: the official file with the wording, where the data do not hold it. Code is read, never run.
        axis: only this class of the benchmark's own lengths, such as 4k for BABILong.
        template: family of InfiniteBench's prompts: gpt4, yarn_mistral, ...; for no other benchmark. Those of
            yarn_mistral, of which open models were asked, end in the answer's first words, without a chat template.
        scorer: official or repaired; graphwalks also has first_card.
        truncation: skip or middle; None: as officially.
        chat: whether to use the model's chat template; None: as officially, if the model has one.
        room: tokens to write; None: the official number.
        factor: of a method that follows the length: `prompt`, that of each prompt with its answer; `ceiling`, that of
            `length`, as a deployment has it.
    """

    form: ClassVar[tuple[str, ...]] = ("scorer", "room")
    benchmark: str = field(default_factory=lambda: "mrcr")  # not a plain default, so that the seed depends on it
    part: str | None = None
    data: str | BenchmarkFiles | Missing | None = None
    prompts: str | BenchmarkFiles | None = None
    axis: str | int | None = None
    template: str = "yarn_mistral"
    scorer: str = "official"
    truncation: str | None = None
    chat: bool | None = None
    room: int | None = None
    factor: str = field(default=ceiling.FACTOR_OF_CEILING, metadata={"new": True})

    def __post_init__(self) -> None:
        for name, value, known in (
            ("benchmark", self.benchmark, tuple(BENCHMARK_OF_NAME)),
            ("part", self.part or self._chosen_benchmark.parts[0], self._chosen_benchmark.parts),
            ("scorer", self.scorer, self._chosen_benchmark.scorers),
            ("truncation", self.truncation or "skip", tuple(TRUNCATION_NOTES)),
        ):
            if value not in known:
                raise ConfigError(f"{self.benchmark}'s {name} must be one of {', '.join(known)}, got {value}")
        ceiling.check_factor_policy(self.benchmark, self.factor)
        check_at_least(self.benchmark, self, room=1)
        if self.template != type(self).template and self.benchmark != "infinitebench":
            raise ConfigError(
                f"{self.benchmark} has no families of prompts, got template={self.template}: leave it out"
            )
        if self.axis is not None and not self._chosen_benchmark.axes:
            raise ConfigError(f"{self.benchmark} has no classes of length, got axis={self.axis}: leave it out")
        if isinstance(self.data, str):
            object.__setattr__(self, "data", self._find_data(self.data))
        if isinstance(self.prompts, str):
            if self._chosen_benchmark.prompts is None:
                raise ConfigError(f"{self.benchmark} needs no prompts, its data hold the wording: leave them out")
            file = Path(self.prompts).expanduser()
            if not file.is_file():
                raise ConfigError(f"prompts {self.prompts} does not exist: give {self._chosen_benchmark.prompts}")
            object.__setattr__(self, "prompts", BenchmarkFiles.of([file]))

    @property
    def edition(self) -> int:
        """Version of the scores: 2 for InfiniteBench and for HELMET's QAMPARI, else 1.

        Version 1 put yarn_mistral's completions into a chat template, and counted the first answer of a completion.
        """
        return 2 if self.benchmark == "infinitebench" or self.part == "alce_qampari" else 1

    @property
    def _chosen_benchmark(self) -> Benchmark:
        if self.benchmark not in BENCHMARK_OF_NAME:
            raise ConfigError(f"benchmark must be one of {', '.join(BENCHMARK_OF_NAME)}, got {self.benchmark}")
        return BENCHMARK_OF_NAME[self.benchmark]

    @property
    def _chosen_part(self) -> str:
        return self.part or self._chosen_benchmark.parts[0]

    @property
    def _chosen_truncation(self) -> str:
        return self.truncation or ("middle" if self._chosen_benchmark.cuts_middle else "skip")

    def _find_data(self, data: str) -> BenchmarkFiles | Missing:
        axis = None if self.axis is None else str(self.axis)
        try:
            files = table.find_files(
                data, self._chosen_benchmark.files(self._chosen_part, axis), self._chosen_benchmark.title
            )
            return (
                files
                if self._chosen_benchmark.add_companion_files is None
                else self._chosen_benchmark.add_companion_files(files, data, self._chosen_part)
            )
        except Refused as refusal:
            return Missing(refusal.reason)

    @property
    def factor_of_prompt(self) -> bool:
        """Whether a method that follows the length is set for that of each prompt."""
        return self.factor == ceiling.FACTOR_OF_PROMPT

    def protocol(self, tokenizer: Tokenizer) -> str:
        """Benchmark, data, wording, template, over-long prompts, budget, scorer."""
        parts = [f"{self._chosen_benchmark.title}, {self._chosen_part}"]
        parts += [f"class {self.axis}"] if self.axis is not None else []
        parts += [f"data {self.data}"] if self.data is not None else []
        parts += [f"prompts {self.prompts}"] if self.prompts is not None else []
        chat = self.uses_chat(tokenizer)
        return ", ".join(
            [
                *parts,
                "chat template" if chat else "no chat template",
                TRUNCATION_NOTES[self._chosen_truncation],
                f"at most {self.room or 'the official number of'} tokens written, greedy",
                f"{self._chosen_benchmark.metric_of(self._chosen_part)}, {self.scorer} scorer",
                bos_note(tokenizer, chat),
                *([ceiling.FACTOR_NOTE] if self.factor_of_prompt else []),
            ]
        )

    def outline(self, tokenizer: Tokenizer, length: int, n: int, seed: int) -> Outline:
        """At most n texts that fill the length: how long the data's are, and their rooms, only reading them tells."""
        self._check_data()
        return Outline(n, length, max_new_tokens=self.room or 1)

    def _check_data(self) -> tuple[BenchmarkFiles, Path | None]:
        """The data, and the file with the official wording; Refused where one is missing."""
        if not isinstance(self.data, BenchmarkFiles):
            reason = self.data.reason if isinstance(self.data, Missing) else "no data: give task.data=DIR, your copy"
            raise Refused(f"{self.benchmark} needs {self._chosen_benchmark.title}: {reason}")
        prompts = self.prompts.places[0] if isinstance(self.prompts, BenchmarkFiles) else None
        if self._chosen_benchmark.prompts is not None and prompts is None:
            raise Refused(
                f"{self.benchmark} needs the official wording: give task.prompts=FILE, {self._chosen_benchmark.prompts}"
            )
        return self.data, prompts

    def questions(self, tokenizer: Tokenizer, length: int, n: int, seed: int) -> Sequence[AnyQuestion]:
        """One question per example that fits; prompt and room have at most `length` tokens."""
        examples, total = self._examples(tokenizer, length, n, seed)
        order = type(self)(benchmark=self.benchmark, part=self.part).rng("order", seed).permutation(total)
        # Lazily: questions are made until n of them fit.
        made = (
            self._question(tokenizer, length, total, place, examples[place])
            for place in order.tolist()
            if place in examples
        )
        questions = list(itertools.islice((each for each in made if each is not None), n))
        if not total:
            chosen = self._chosen_part if self.axis is None else f"{self._chosen_part}, class {self.axis}"
            raise Refused(f"{self.benchmark}: the data have no example of {chosen}: correct task.part or task.axis")
        if not questions:
            raise Refused(f"{self.benchmark}: none of {total} examples fits in {length} tokens: raise length")
        return questions

    def _examples(
        self, tokenizer: Tokenizer, length: int, n: int, seed: int
    ) -> tuple[dict[int, BenchmarkExample], int]:
        """The examples that may fit, by place, and the number of all."""
        data, prompts = self._check_data()
        axis = None if self.axis is None else str(self.axis)
        chat = self.uses_chat(tokenizer)
        framing = sum(map(len, _prompt_pieces(tokenizer, [("user", "")], "", chat)))
        asked = BenchmarkRequest(
            part=self._chosen_part,
            files=data,
            prompts=prompts,
            axis=axis,
            template=self.template,
            tokenizer=tokenizer,
            length=length,
            room=self.room,
            chat=chat,
            framing=framing,
            n=n,
            seed=seed,
        )
        kept, total = dict[int, BenchmarkExample](), 0
        for place, example in enumerate(table.read_examples(self._chosen_benchmark, asked)):
            total += 1
            known = () if callable(example.messages) else example.messages
            # What is far too long is not kept in memory; what remains is counted in tokens later.
            if (
                self._chosen_truncation == "middle"
                or sum(len(said) for _, said in known) <= MAX_CHARACTERS_PER_TOKEN * length
            ):
                kept[place] = example
        return kept, total

    def _question(
        self, tokenizer: Tokenizer, length: int, total: int, place: int, example: BenchmarkExample
    ) -> Generate | None:
        """The question of an example; None if it does not fit."""
        chat, room = self.uses_chat(tokenizer), self.room or example.room
        messages = list(example.build_messages())
        pieces = _prompt_pieces(tokenizer, messages, example.cue, chat)
        whole, space = sum(map(len, pieces)), length - room
        if whole > space:
            # Of several messages the longest loses its middle, so that instructions and question stay.
            longest = max(range(len(pieces)), key=lambda each: len(pieces[each]))
            half = (len(pieces[longest]) - (whole - space)) // 2
            if self._chosen_truncation == "skip" or half < 1:
                return None
            pieces[longest] = np.concatenate([pieces[longest][:half], pieces[longest][-half:]])
            turn = longest // 2 if chat else 0
            messages[turn] = (messages[turn][0], tokenizer.decode(pieces[longest]))
        if example.cue and chat:
            messages.append(("assistant", example.cue))
        return Generate(
            index=place,
            cluster=example.cluster or example.id,
            prompt=np.concatenate(pieces),
            max_new_tokens=room,
            answer=example.answer if chat else f" {example.answer}",
            chance=example.chance,
            messages=tuple(messages) if chat else (),
            facts={
                **example.facts,
                "id": example.id,
                "parts": [*example.parts, f"tokens {_length_class(whole)}"],
                "prompt_tokens": whole,
                "cut": whole > space or bool(example.facts.get("shortened")),
                "chat": chat,
                "examples": total,
            },
        )

    def score(self, question: AnyQuestion, answer: Answer) -> Sample:
        """The official or repaired score."""
        assert isinstance(question, Generate) and isinstance(answer, GenerateAnswer)
        facts = question.facts
        # Behind a prompt without template the answer begins with the blank of its first word.
        text = answer.text if facts["chat"] else answer.text.removeprefix(" ")
        value = self._chosen_benchmark.score(facts, text, self.scorer)
        name = f"{self._chosen_benchmark.metric_of(self._chosen_part)}_{self.scorer}"
        return replace(
            score_written(question, answer, {name: value}, truncated=facts["cut"]),
            parts=(*facts["parts"], *ceiling.factor_parts(facts)),
        )

    def uses_chat(self, tokenizer: Tokenizer) -> bool:
        """Whether prompts stand in the chat template."""
        if self.chat is not None or not self._chosen_benchmark.is_chat(self._chosen_part, self.template):
            return bool(self.chat)
        return has_chat(tokenizer)


def _prompt_pieces(tokenizer: Tokenizer, messages: Sequence[Message], cue: str, chat: bool) -> list[Tokens]:
    """Tokens of the prompt; in a chat every second piece is a message, else the second is all of the text."""
    if chat:
        return [*conversation_tokens(tokenizer, messages), tokenizer.encode(cue.lstrip()).ids]
    text = messages[0][1]
    if len(messages) > 1:
        text = "".join(f"{role.capitalize()}: {content}\n\n" for role, content in messages) + "Assistant:"
    return [np.asarray(tokenizer.prefix, np.int64), tokenizer.encode(text + cue).ids]


def _length_class(n: int) -> str:
    """`4k-8k`, thousands of 1024: between two powers of two; `0-1k` below."""
    power = n.bit_length() - 11
    return "0-1k" if power < 0 else f"{1 << power}k-{2 << power}k"
