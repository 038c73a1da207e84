"""LongBench and LongBench-E: real questions over long real texts, in English, Chinese and code."""

import hashlib
import json
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from lexbench import Answer, AnyQuestion, Frame, Refused, Sample, Task, Tokenizer, Write, Written
from lexbench.taskkit import longbench
from lexbench.taskkit.scoring import score_written

OURS = Path(__file__).with_name("longbench_prompts.yaml")
TRUNCATION = {
    "error": "over-long prompts refuse the cell",
    "skip": "examples with over-long prompts are left out",
    "middle": "over-long prompts lose their middle",
}


@dataclass(frozen=True)
class LongBench(Task):
    """One of the 21 data sets of LongBench, or of the 13 of LongBench-E (Bai et al., arXiv 2308.14508).

    The data are the user's or the hub's (THUDM/LongBench), nothing is shipped. Here `length` is a ceiling: prompts have
    the lengths that they have, and prompt and room must fit in it. Held constant over lengths: examples, their order
    and the wording. What changes, unless every prompt fits, is how many are cut or left out: every table counts them.

    Asked are the first n examples of a permutation that depends on data set and seed alone; where there are fewer, all.
    Samples are also shown by the official buckets of stored length (`words 0-4k`; Chinese is counted in `characters`)
    and by their own prompt's tokens before anything is cut (`tokens 0-4k`). Examples on one document are one cluster.

    Scores, in [0, 1]: the official metric, oddities included (see `lexbench.taskkit.longbench.metrics`), under a
    name that says what it is, `qa_f1` or `code_sim_difflib`; for summaries also `rouge_l` as the package
    `rouge-score` computes it. A flawless answer has less than 1 where the official metric gives less: 1 - 5e-9 of
    ROUGE-L, or a line of code with a comment.

    Official numbers need the official prompts (dataset2prompt.json), truncation=middle and, for a limit of 3500 tokens
    on prompts, a length of 3500 + room, and the tokens of a chat template. Two things differ even then: the middle is
    cut out of token ids, which are not decoded and encoded again; and on samsum writing goes on after the first line,
    where the official code stops and forbids an empty answer, though only the first line counts for both.

    Args:
        dataset: qasper, hotpotqa, lcc, ...
        e: LongBench-E, whose lengths are spread evenly.
        data: folder with the official DATASET.jsonl (DATASET_e.jsonl of LongBench-E), or the official data.zip; None:
            the hub's.
        prompts: JSON file of data set to prompt, as the official dataset2prompt.json; None: our own wording.
        truncation: where prompt and room exceed the length: `middle` keeps the first and the last half of the prompt,
            `skip` leaves the example out (each sample's facts say how many were), `error` refuses the cell.
        chat: whether the chat template surrounds the prompt; None: as official, where the model has one, but not for
            few-shot and code sets.
        room: tokens to write; None: the official limit.
        similarity: of code: `difflib`, or `levenshtein`, which the official code takes where it is installed.
    """

    dataset: str = field(default_factory=lambda: "qasper")  # no plain default: labels always name the data set
    e: bool = False
    data: str | longbench.Source | None = None
    prompts: str | longbench.Source | None = None
    truncation: str = "middle"
    chat: bool | None = None
    room: int | None = None
    similarity: str = "difflib"

    def __post_init__(self) -> None:
        longbench.known(self.dataset, longbench.LONGBENCH_E if self.e else longbench.DATASETS)
        longbench.check_similarity(self.similarity)
        if self.truncation not in TRUNCATION:
            raise ValueError(f"longbench's truncation must be one of {', '.join(TRUNCATION)}, got {self.truncation!r}")
        if self.room is not None and self.room < 1:
            raise ValueError(f"longbench's room must be at least 1, got {self.room}")
        if isinstance(self.data, str):
            object.__setattr__(self, "data", longbench.Source.find(self.data, self._stem))
        if isinstance(self.prompts, str):
            file = Path(self.prompts).expanduser()
            if not file.is_file():
                raise ValueError(f"prompts {self.prompts} does not exist: give the official dataset2prompt.json")
            object.__setattr__(self, "prompts", longbench.Source.of(file))
        self._wording()

    def protocol(self, tokenizer: Tokenizer) -> str:
        """One line: data set, wording, template, what happens to over-long prompts, metric."""
        said = [
            f"LongBench{'-E' if self.e else ''} {self.dataset}: "
            + ("our own wording" if self.prompts is None else f"prompts {self.prompts}"),
            "chat template" if self._uses_chat(tokenizer) else "no chat template",
            TRUNCATION[self.truncation],
            f"at most {self._room} tokens written, greedy",
            f"official {self._facts.metric_name(self.similarity).removesuffix('_official')}"
            + " of the first line" * self._facts.first_line,
            "BOS" if tokenizer.prefix else "no BOS",
        ]
        return ", ".join(said)

    def questions(self, tokenizer: Tokenizer, length: int, n: int, seed: int) -> Sequence[AnyQuestion]:
        """One question an example; prompt and room are at most `length` tokens."""
        frame = tokenizer.frame(self._uses_chat(tokenizer))
        wording = self._wording()
        words = len(tokenizer.encode(wording.format(context="", input="")).ids)
        least = len(frame.before) + len(frame.after) + max(2, words) + self._room
        if length < least:
            raise Refused(f"longbench's {self.dataset} needs at least {least} tokens, asked for {length}: raise length")
        assert not isinstance(self.data, str)
        source = self.data or longbench.from_hub(self._stem)
        examples = longbench.read_examples(source, classes=self._facts.metric == "classification")
        order = type(self)(dataset=self.dataset, e=self.e).rng("order", seed).permutation(len(examples))[:n]
        cell = {"dataset": self._stem, "data": str(source), "examples": len(examples)}
        questions = []
        for index, place in enumerate(order):
            text = wording.format(context=examples[place]["context"], input=examples[place]["input"])
            prompt, whole = self._fitted(tokenizer.encode(text).ids, frame, length, str(examples[place]["_id"]))
            if prompt is not None:
                questions.append((index, examples[place], prompt, whole))
        if not questions:
            raise Refused(f"longbench's {self.dataset}: none of {len(order)} prompts fits in {length}: raise length")
        cell["skipped"] = len(order) - len(questions)
        return [self._question(cell, *each) for each in questions]

    def score(self, question: AnyQuestion, answer: Answer) -> Sample:
        """The official metric, and for summaries the ROUGE-L of `rouge-score`."""
        assert isinstance(question, Write) and isinstance(answer, Written)
        facts, unit = question.facts, self._facts.unit
        judged = (self.dataset, answer.text, facts["answers"])
        official = longbench.official(*judged, facts["all_classes"], self.similarity)
        return score_written(
            question,
            answer,
            {self._facts.metric_name(self.similarity): official, **longbench.summary_scores(*judged)},
            truncated=facts["prompt_tokens"] > len(question.prompt),
            parts=(
                f"{unit} {longbench.bucket(facts[unit])}",
                f"tokens {longbench.bucket(facts['prompt_tokens'])}",
            ),
        )

    @property
    def _facts(self) -> longbench.Dataset:
        return longbench.DATASETS[self.dataset]

    @property
    def _stem(self) -> str:
        return f"{self.dataset}_e" if self.e else self.dataset

    @property
    def _room(self) -> int:
        return self.room or self._facts.room

    def _uses_chat(self, tokenizer: Tokenizer) -> bool:
        if self.chat is not None or not self._facts.chat:
            return bool(self.chat)
        try:
            tokenizer.frame(chat=True)
        except ValueError:
            return False
        return True

    def _wording(self) -> str:
        """The data set's prompt, with places for `context` and `input`; ValueError where it is not one."""
        assert not isinstance(self.prompts, str)
        if self.prompts is None:
            return str(yaml.safe_load(OURS.read_text(encoding="utf-8"))[self.dataset])
        name = self.prompts.name
        try:
            prompts = json.loads(self.prompts.read())
        except ValueError as error:
            raise ValueError(f"prompts {name} are no JSON ({error}): give the official dataset2prompt.json") from None
        wording = prompts.get(self.dataset) if isinstance(prompts, dict) else None
        if not isinstance(wording, str):
            raise ValueError(f"prompts {name} have none for {self.dataset}: add it")
        try:
            places = {place for _, place, _, _ in string.Formatter().parse(wording) if place is not None}
        except ValueError:  # a single brace
            places = set()
        if not {"context"} <= places <= {"context", "input"}:
            raise ValueError(
                f"prompt of {self.dataset} in {name} must have {{context}}, and {{input}} where it is asked"
            )
        return wording

    def _fitted(self, ids: np.ndarray, frame: Frame, length: int, name: str) -> tuple[np.ndarray | None, int]:
        """The prompt's tokens within the frame, cut where they must be, and how many they were; None: left out."""
        whole = len(frame.before) + len(ids) + len(frame.after)
        space = length - self._room - len(frame.before) - len(frame.after)
        if len(ids) > space and self.truncation == "error":
            raise Refused(
                f"longbench's {self.dataset}: prompt of example {name} has {whole} tokens, with room for {self._room} "
                f"more than {length}: raise length, or set task.truncation to middle or skip"
            )
        if len(ids) > space and self.truncation == "skip":
            return None, whole
        if len(ids) > space:
            half = space // 2
            ids = np.concatenate([ids[:half], ids[len(ids) - half :]])
        return np.concatenate([frame.before, ids, frame.after]), whole

    def _question(
        self, cell: Mapping[str, Any], index: int, example: Mapping[str, Any], prompt: np.ndarray, whole: int
    ) -> Write:
        first = example["answers"][0] if example["answers"] else ""
        facts = {
            **cell,
            "id": example["_id"],
            "answers": example["answers"],
            "all_classes": example.get("all_classes"),
            self._facts.unit: example["length"],
            "prompt_tokens": whole,
        }
        return Write(
            index=index,
            cluster=hashlib.sha256(example["context"].encode()).hexdigest()[:16],
            prompt=prompt,
            room=self._room,
            answer=first if self._facts.chinese or self._facts.kind == "code" else f" {first}",
            facts=facts,
        )
