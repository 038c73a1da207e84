"""LongBench and LongBench-E: real questions over long real texts, in English, Chinese and code."""

import hashlib
import json
import re
import string
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import yaml

from lexbench import (
    Answer,
    AnyQuestion,
    ConfigError,
    Frame,
    Generate,
    GenerateAnswer,
    Outline,
    Refused,
    Sample,
    Task,
    Tokenizer,
)
from lexbench.taskkit import ceiling, longbench
from lexbench.taskkit.prompt import bos_note, check_at_least, check_length, has_chat
from lexbench.taskkit.scoring import score_written

OWN_PROMPTS_FILE = Path(__file__).with_name("longbench_prompts.yaml")
SAMPLED_CHARACTERS = 4096
"""Characters of a text that tell how many tokens a character has."""
TRUNCATION_NOTES = {
    "error": "over-long prompts refuse the cell",
    "skip": "examples with over-long prompts are left out",
    "middle": "over-long prompts lose their middle",
}


@dataclass(frozen=True)
class LongBench(Task):
    """Answer one of the 21 data sets of LongBench, or of the 13 of LongBench-E (Bai et al., arXiv 2308.14508).

        length 3532, room 32      [first 1750 tokens of the prompt] [last 1750 tokens]      <- truncation=middle

    The data are the user's or the hub's (THUDM/LongBench); none are shipped. A data set that the user's folder lacks is
    refused, and the others are measured. `length` limits prompt and room; prompts keep their own lengths. Constant over
    lengths: examples, order and wording. Only the number of cut or skipped examples changes; every table shows it.

    The examples are the first n of a permutation that depends on data set and seed, or all if there are fewer: the
    suites longbench_e and longbench_all take all. Results are also shown by the official buckets of stored length
    (`words 0-4k`; `characters` for Chinese) and by the tokens of the uncut prompt (`tokens 0-4k`). Examples on the same
    document form one cluster.

    Scores, in [0, 1]: the official metric with its oddities (see `lexbench.taskkit.longbench.metrics`), named after
    what it is: `qa_f1`, `code_sim_difflib`; for summaries also `rouge_l` as the package `rouge-score` computes it. The
    official metric of a flawless answer may be below 1: 1 - 5e-9 for ROUGE-L, or less for code with a comment. Chance
    is that of any class (trec 1/50, lsht 1/24) or any paragraph of the text (passage_retrieval), else 0.

    Official numbers need the official prompts (dataset2prompt.json) and the official limit of the model
    (model2maxlen.json: 3500 for Llama-2-chat of 4096 tokens). With `limit`, the prompt is cut as by the official
    pred.py: counted without template, with BOS; the first and the last half of the tokens are decoded, joined and
    encoded again; then the template is put around. Prompt, template and room must fit in `length`. Two differences
    remain: the model's own chat template, unless `wrapper` is the official one; and on samsum we write on after the
    first line, where the official code stops and forbids an empty answer. Both score the first line only.

    Args:
        dataset: qasper, hotpotqa, lcc, ...
        e: LongBench-E, whose lengths are spread evenly.
        data: folder with the official DATASET.jsonl (LongBench-E: DATASET_e.jsonl), or the official data.zip; None: the
            hub's.
        prompts: JSON file from data set to prompt, like the official dataset2prompt.json; None: our own wording.
        truncation: if prompt and room exceed the length: `middle` keeps the first and the last half of the prompt's
            tokens, `skip` leaves the example out (each sample's facts have the number), `error` refuses the cell.
        limit: most tokens of a prompt with BOS and without template; longer ones are cut as officially. None: as many
            as fit.
        wrapper: text around the prompt in place of the chat template: "[INST]{prompt}[/INST]", the official one of
            Llama-2-chat. None: the model's chat template.
        chat: whether to use the chat template; None: as officially, if the model has one, but not for few-shot and
            code sets.
        room: tokens to write; None: the official limit.
        similarity: for code: `difflib`, or `levenshtein`, which the official code uses if it is installed.
        factor: of a method that follows the length: `prompt`, that of each prompt with its answer; `ceiling`, that of
            `length`, as a deployment has it.
    """

    version: ClassVar[int] = 2
    dataset: str = field(default_factory=lambda: "qasper")  # not a plain default, so that labels always name it
    e: bool = False
    data: str | longbench.Source | longbench.Missing | None = None
    prompts: str | longbench.Source | None = None
    truncation: str = "middle"
    limit: int | None = None
    wrapper: str | None = None
    chat: bool | None = None
    room: int | None = None
    similarity: str = "difflib"
    factor: str = field(default=ceiling.FACTOR_OF_CEILING, metadata={"new": True})

    def __post_init__(self) -> None:
        longbench.dataset_named(self.dataset, longbench.LONGBENCH_E if self.e else longbench.LONGBENCH_DATASETS)
        longbench.check_similarity(self.similarity)
        if self.truncation not in TRUNCATION_NOTES:
            raise ConfigError(
                f"longbench's truncation must be one of {', '.join(TRUNCATION_NOTES)}, got {self.truncation!r}"
            )
        ceiling.check_factor_policy("longbench", self.factor)
        check_at_least("longbench", self, room=1, limit=2)
        if self.limit is not None and self.truncation != "middle":
            raise ConfigError(
                f"longbench's limit is for truncation=middle, got {self.truncation!r}: leave one of them out"
            )
        if self.wrapper is not None and self.wrapper.count("{prompt}") != 1:
            raise ConfigError(
                f"longbench's wrapper must have {{prompt}} once, got {self.wrapper!r}: e.g. [INST]{{prompt}}[/INST]"
            )
        if self.wrapper is not None and self.chat is not None:
            raise ConfigError("longbench's wrapper stands for the chat template, got chat too: leave one of them out")
        if isinstance(self.data, str):
            names = longbench.LONGBENCH_E if self.e else longbench.LONGBENCH_DATASETS
            others = [f"{name}_e" if self.e else name for name in names]
            object.__setattr__(self, "data", longbench.Source.find(self.data, self._stem, others))
        if isinstance(self.prompts, str):
            file = Path(self.prompts).expanduser()
            if not file.is_file():
                raise ConfigError(f"prompts {self.prompts} does not exist: give the official dataset2prompt.json")
            object.__setattr__(self, "prompts", longbench.Source.of(file))
        self._prompt_format()

    @property
    def factor_of_prompt(self) -> bool:
        """Whether a method that follows the length is set for that of each prompt."""
        return self.factor == ceiling.FACTOR_OF_PROMPT

    def protocol(self, tokenizer: Tokenizer) -> str:
        """Data set, wording, template, treatment of over-long prompts, metric."""
        parts = [
            f"LongBench{'-E' if self.e else ''} {self.dataset}: "
            + ("our own wording" if self.prompts is None else f"prompts {self.prompts}"),
            self._framing_note(tokenizer),
            self._truncation_note(),
            f"at most {self._room} tokens written, greedy",
            f"official {self._facts.metric_name(self.similarity).removesuffix('_official')}"
            + " of the first line" * self._facts.first_line,
            bos_note(tokenizer, self.uses_chat(tokenizer)),
            *([ceiling.FACTOR_NOTE] if self.factor_of_prompt else []),
        ]
        return ", ".join(parts)

    def outline(self, tokenizer: Tokenizer, length: int, n: int, seed: int) -> Outline:
        """Sizes of n prompts, estimated from their characters, and tokens to write; none is longer than fits."""
        examples, order, frame = self._choose_examples(tokenizer, length, n, seed)
        framed = len(frame.before) + len(frame.after) + len(tokenizer.encode(self._prompt_format()).ids) + self._room
        begin = examples[order[0]]["context"][:SAMPLED_CHARACTERS]
        rate = len(tokenizer.encode(begin).ids) / max(1, len(begin))
        read = [rate * (len(examples[place]["context"]) + len(examples[place]["input"])) for place in order]
        most = length if self.limit is None else min(length, framed + self.limit)
        return Outline(
            len(order), float(np.mean([min(most, framed + each) for each in read])), max_new_tokens=self._room
        )

    def _choose_examples(
        self, tokenizer: Tokenizer, length: int, n: int, seed: int
    ) -> tuple[Sequence[Mapping[str, Any]], list[int], Frame]:
        """All examples, the places of the chosen ones, and the frame around a prompt."""
        if isinstance(self.data, longbench.Missing):
            raise Refused(f"longbench's {self.dataset}: {self.data.reason}")
        frame = tokenizer.frame(self.uses_chat(tokenizer))
        words = len(tokenizer.encode(self._prompt_format().format(context="", input="")).ids)
        least = len(frame.before) + len(frame.after) + max(2, words) + self._room
        check_length(f"longbench's {self.dataset}", least, length)
        examples = longbench.read_examples(self._source(), classes=self._facts.metric == "classification")
        # The order of a task without other parameters: the same examples under any template, limit and room.
        order = type(self)(dataset=self.dataset, e=self.e).rng("order", seed).permutation(len(examples))[:n]
        return examples, order.tolist(), frame

    def _source(self) -> longbench.Source:
        """The file of the data."""
        assert not isinstance(self.data, str | longbench.Missing)
        return self.data or longbench.source_from_hub(self._stem)

    def questions(self, tokenizer: Tokenizer, length: int, n: int, seed: int) -> Sequence[AnyQuestion]:
        """One question per example; prompt and room have at most `length` tokens."""
        examples, order, frame = self._choose_examples(tokenizer, length, n, seed)
        wording = self._prompt_format()
        cell = {"dataset": self._stem, "data": str(self._source()), "examples": len(examples)}
        questions = []
        for index, place in enumerate(order):
            text = wording.format(context=examples[place]["context"], input=examples[place]["input"])
            uncut, text = self._wrap_prompt(text), self._wrap_prompt(self._cut_as_official(tokenizer, text))
            whole = len(frame.before) + len(tokenizer.encode(uncut).ids) + len(frame.after)
            prompt = self._fit_prompt(tokenizer.encode(text).ids, frame, length, str(examples[place]["_id"]))
            if prompt is not None:
                cut = text != uncut or len(prompt) < whole
                questions.append((index, examples[place], prompt, {"prompt_tokens": whole, "cut": cut}))
        if not questions:
            raise Refused(f"longbench's {self.dataset}: none of {len(order)} prompts fits in {length}: raise length")
        cell["skipped"] = len(order) - len(questions)
        return [self._question(cell, *each) for each in questions]

    def score(self, question: AnyQuestion, answer: Answer) -> Sample:
        """The official metric, for summaries also the ROUGE-L of `rouge-score`."""
        assert isinstance(question, Generate) and isinstance(answer, GenerateAnswer)
        facts, unit = question.facts, self._facts.unit
        judged = (self.dataset, answer.text, facts["answers"])
        official = longbench.official_score(*judged, facts["all_classes"], self.similarity)
        return score_written(
            question,
            answer,
            {self._facts.metric_name(self.similarity): official, **longbench.summary_scores(*judged)},
            truncated=facts["cut"],
            parts=(
                f"{unit} {longbench.bucket_of_length(facts[unit])}",
                f"tokens {longbench.bucket_of_length(facts['prompt_tokens'])}",
                *ceiling.factor_parts(facts),
            ),
        )

    @property
    def _facts(self) -> longbench.Dataset:
        return longbench.LONGBENCH_DATASETS[self.dataset]

    @property
    def _stem(self) -> str:
        return f"{self.dataset}_e" if self.e else self.dataset

    @property
    def _room(self) -> int:
        return self.room or self._facts.room

    def uses_chat(self, tokenizer: Tokenizer) -> bool:
        """Whether prompts stand in the chat template."""
        if self.chat is not None or not self._facts.chat or self.wrapper is not None:
            return bool(self.chat)
        return has_chat(tokenizer)

    def _framing_note(self, tokenizer: Tokenizer) -> str:
        """Words for the protocol: the frame around the prompt."""
        if self.wrapper is not None and self._facts.chat:
            return f"wrapper {json.dumps(self.wrapper)}"
        return "chat template" if self.uses_chat(tokenizer) else "no chat template"

    def _truncation_note(self) -> str:
        """Words for the protocol: treatment of prompts that are too long."""
        if self.limit is None:
            return TRUNCATION_NOTES[self.truncation]
        return f"prompts of more than {self.limit} tokens without template lose their middle, decoded and encoded again"

    def _wrap_prompt(self, text: str) -> str:
        return text if self.wrapper is None or not self._facts.chat else self.wrapper.replace("{prompt}", text)

    def _cut_as_official(self, tokenizer: Tokenizer, text: str) -> str:
        """The prompt's text cut as by the official pred.py, which counts BOS and decodes both halves."""
        if self.limit is None:
            return text
        ids = [*tokenizer.prefix, *tokenizer.encode(text).ids.tolist()]
        if len(ids) <= self.limit:
            return text
        # As pred.py: BOS counts, and an odd limit loses a token.
        half = self.limit // 2
        return tokenizer.decode(ids[:half]) + tokenizer.decode(ids[-half:])

    def _prompt_format(self) -> str:
        """The data set's prompt, a format string with {context} and {input}; ConfigError if it is not one."""
        assert not isinstance(self.prompts, str)
        if self.prompts is None:
            return str(yaml.safe_load(OWN_PROMPTS_FILE.read_text(encoding="utf-8"))[self.dataset])
        name = self.prompts.name
        try:
            prompts = json.loads(self.prompts.read())
        except ValueError as error:
            raise ConfigError(f"prompts {name} must be JSON ({error}): give the official dataset2prompt.json") from None
        wording = prompts.get(self.dataset) if isinstance(prompts, dict) else None
        if not isinstance(wording, str):
            raise ConfigError(f"prompts {name} must have one for {self.dataset}: add it")
        try:
            places = {place for _, place, _, _ in string.Formatter().parse(wording) if place is not None}
        except ValueError:  # a single brace
            places = set()
        if not {"context"} <= places <= {"context", "input"}:
            raise ConfigError(
                f"prompt of {self.dataset} in {name} must have {{context}}, may have {{input}} and no other braces: "
                "give the official dataset2prompt.json"
            )
        return wording

    def _fit_prompt(self, ids: np.ndarray, frame: Frame, length: int, name: str) -> np.ndarray | None:
        """The prompt's tokens, cut if needed; None: left out."""
        framed = len(frame.before) + len(frame.after)
        space = length - self._room - framed
        # A limit cuts as officially or not at all: a second cut would make another prompt.
        if len(ids) > space and (self.truncation == "error" or self.limit is not None):
            remedy = "lower task.limit" if self.limit is not None else "set task.truncation to middle or skip"
            raise Refused(
                f"longbench's {self.dataset}: prompt of example {name} has {len(ids) + framed} tokens, with room for "
                f"{self._room} more than {length}: raise length, or {remedy}"
            )
        if len(ids) > space and self.truncation == "skip":
            return None
        if len(ids) > space:
            # The middle goes in tokens: nothing is decoded and encoded again.
            half = space // 2
            ids = np.concatenate([ids[:half], ids[len(ids) - half :]])
        return np.concatenate([frame.before, ids, frame.after])

    def _question(
        self,
        cell: Mapping[str, Any],
        index: int,
        example: Mapping[str, Any],
        prompt: np.ndarray,
        counts: Mapping[str, Any],
    ) -> Generate:
        first = example["answers"][0] if example["answers"] else ""
        facts = {
            **cell,
            "id": example["_id"],
            "answers": example["answers"],
            "all_classes": example.get("all_classes"),
            self._facts.unit: example["length"],
            **counts,
        }
        return Generate(
            index=index,
            cluster=hashlib.sha256(example["context"].encode()).hexdigest()[:16],
            prompt=prompt,
            max_new_tokens=self._room,
            answer=first if self._facts.chinese or self._facts.kind == "code" else f" {first}",
            chance=self._chance(example),
            facts=facts,
        )

    def _chance(self, example: Mapping[str, Any]) -> float:
        """Score of naming any one class, or any paragraph of the text; 0 where the possible answers are not known."""
        possible: Collection[str] = ()
        if self._facts.metric == "classification":
            possible = example["all_classes"]
        if self._facts.metric.startswith("retrieval"):
            possible = set(re.findall(r"(?:Paragraph |段落)(\d+)", example["context"]))
        return 1 / len(possible) if possible else 0.0
