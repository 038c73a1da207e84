"""Questions over documents: a plain reader answers them, gold documents are spread evenly, scores cannot be fooled."""

import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
from scipy import stats

import lexbench
from lexbench import Choose, Frame, Generate, GenerateAnswer, Refused, Sample
from lexbench.checkpoints.tokenizer import FastTokenizer
from lexbench.taskkit import people, sampling
from tests.answerers import perfect
from tests.tasks.asked import fingerprint, questions_of

HEADER = "Answer the question from these documents, in a few words."
MARK = "\nDocument: "
PERSON = (
    r"\nDocument: (?P<name>\w+), a pupil of (?P<teacher>\w+), was born in (?P<birthplace>\w+) on "
    r"(?P<birthday>\d+ \w+ \d{4})\. (?P=name) lives in (?P<home>\w+) and keeps a (?P<keepsake>[a-z ]+)\."
)
KINDS = {
    r"In which town was (.+) born\?": "birthplace",
    r"On which date was (.+) born\?": "birthday",
    r"In which town does (.+) live\?": "home",
    r"Which object does (.+) keep\?": "keepsake",
}
Person = Mapping[str, str]


@pytest.fixture(autouse=True)
def _no_network(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("cache"))
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    datasets.disable_progress_bars()


def qa(name: str = "distractor_qa", **parameters: Any) -> lexbench.Task:
    return lexbench.task(name, **parameters)


def persons_in(text: str) -> dict[str, Person]:
    """Persons by name, from all uncut documents."""
    return {match["name"]: match.groupdict() for match in re.finditer(PERSON, text)}


def read(text: str) -> tuple[str, Person]:
    """The queried kind of fact, and its person."""
    question = text.rpartition("\nQuestion: ")[2].splitlines()[0]
    [(kind, who)] = [(kind, found[1]) for form, kind in KINDS.items() if (found := re.fullmatch(form, question))]
    known = persons_in(text)
    person = known[who.removeprefix("the teacher of ")]
    return kind, known[person["teacher"]] if who.startswith("the teacher of ") else person


def score(task: lexbench.Task, tokenizer: FastTokenizer, text: str, question: Generate) -> Sample:
    return task.score(question, GenerateAnswer(tokens=tokenizer.encode(text).ids, text=text, hit_room=False))


def accuracy(task: lexbench.Task, tokenizer: FastTokenizer, text: str, question: Generate) -> tuple[float, float]:
    """(strict, lenient)"""
    scores = score(task, tokenizer, text, question).scores
    return scores["accuracy"], scores["contains"]


def least_of(task: lexbench.Task, tokenizer: FastTokenizer, n: int) -> int:
    with pytest.raises(Refused, match=r"needs at least \d+ tokens, asked for 10: raise length") as refusal:
        task.questions(tokenizer, 10, n, 0)
    return int(re.findall(r"\d+", refusal.value.reason)[0])


# Documents that are made.


@pytest.mark.slow
@pytest.mark.parametrize("parameters", [{}, {"hops": 2}, {"hops": 2, "room": 60, "strata": 3}])
@pytest.mark.parametrize("length", [900, 2001])
def test_a_plain_reader_finds_the_answer_and_no_other(
    tokenizer: FastTokenizer, lexlet: FastTokenizer, parameters: dict[str, Any], length: int
) -> None:
    task = qa(**parameters)
    for each in (tokenizer, lexlet):
        for question in questions_of(task, each, length, 24):
            assert len(question.prompt) + question.max_new_tokens == question.length == length
            assert question.prompt[0] == each.bos
            text = each.decode(question.prompt)
            kind, person = read(text)
            assert person[kind] == question.facts["expected"][0]
            assert question.answer == " " + person[kind]
            assert text.count(person[kind]) == 1
            known = persons_in(text).values()
            assert len(known) == question.facts["documents"] > 2
            names = [one[key] for one in known for key in ("name", "birthplace", "home")]
            for values in (names, [one["birthday"] for one in known], [one["keepsake"] for one in known]):
                assert len(set(values)) == len(values)
            assert accuracy(task, each, question.answer, question) == (1, 1)
            forms = [len(each.encode(f" {form}").ids) for form in question.facts["expected"]]
            assert question.max_new_tokens == parameters.get("room", max(forms) + 8)


def test_the_prompt_reads_as_in_the_docstring(tokenizer: FastTokenizer) -> None:
    """One document is cut short, at the start or behind the gold one; the rest are whole documents."""
    for question in questions_of(qa(), tokenizer, 900, 16):
        text = tokenizer.decode(question.prompt)
        body, _, ask = text.removeprefix(HEADER).rpartition("\nQuestion: ")
        assert ask.endswith("?\nAnswer:")
        whole = [match[0] for match in re.finditer(PERSON, body)]
        filler = re.sub(PERSON, "", body)
        assert filler.count("\n") <= 1 and "\nDocument: ".startswith(filler[:11])
        assert len(filler) < min(map(len, whole)) + 20
        gold = next(text for text in whole if question.facts["expected"][0] in text)
        assert body.startswith((filler, gold + filler))


def test_the_one_asked_about_is_somebody_elses_teacher_like_nearly_all(tokenizer: FastTokenizer) -> None:
    for hops in (1, 2):
        for question in questions_of(qa(hops=hops), tokenizer, 1500, 16):
            text = tokenizer.decode(question.prompt)
            known = persons_in(text)
            teachers = {person["teacher"] for person in known.values()}
            assert len(set(known) - teachers) == 1
            assert read(text)[1]["name"] in teachers
            about = re.search(r"(\w+)( born| live| keep)\?", text)
            assert about and about[1] in teachers


@pytest.mark.slow
def test_all_kinds_of_facts_are_asked_alike(lexlet: FastTokenizer) -> None:
    questions = questions_of(qa(), lexlet, 400, 200)
    kinds = Counter(read(lexlet.decode(question.prompt))[0] for question in questions)
    assert len(kinds) == 4
    assert stats.chisquare(list(kinds.values())).pvalue > 0.001
    mixed = Counter((read(lexlet.decode(q.prompt))[0], q.index % 8) for q in questions)
    assert len(mixed) == 4 * 8


@pytest.mark.slow
@pytest.mark.parametrize("hops", [1, 2])
@pytest.mark.parametrize("length", [1100, 1500, 2600])
def test_the_golden_document_stands_equally_often_in_every_stratum(
    lexlet: FastTokenizer, hops: int, length: int
) -> None:
    """Of 80 samples 10 in each of 8 parts, by the place of the document's middle in the text of all documents."""
    questions = questions_of(qa(hops=hops), lexlet, length, 80)
    for question in questions[:24]:
        text = lexlet.decode(question.prompt)
        body = text.removeprefix(HEADER).rpartition("\nQuestion: ")[0]
        [gold] = [match for match in re.finditer(PERSON, body) if match[0].count(question.facts["expected"][0])]
        ends = [len(lexlet.encode(body[:end]).ids) for end in (*gold.span(), None)]
        assert question.facts["depth"] == pytest.approx((ends[0] + ends[1]) / 2 / ends[2], abs=0.01)
    assert [int(question.facts["depth"] * 8) for question in questions] == [*range(8)] * 10


@pytest.mark.slow
def test_within_a_stratum_places_are_uniform(lexlet: FastTokenizer) -> None:
    """One part: the depth is uniform over the places (Kolmogorov-Smirnov, 0.001), none of them at the very ends."""
    depths = [question.facts["depth"] for question in questions_of(qa(strata=1), lexlet, 1500, 150)]
    assert stats.kstest(depths, "uniform").pvalue > 0.001
    assert 0 < min(depths) < 0.1 and 0.9 < max(depths) < 1


def test_with_few_documents_the_nearest_place_is_taken(tokenizer: FastTokenizer) -> None:
    """Two documents: the gold one is first at early depths and last at late ones; about half of all each."""
    questions = questions_of(qa(), tokenizer, least_of(qa(), tokenizer, 48), 48)
    two = [question for question in questions if question.facts["documents"] == 2]
    assert len(two) > 24
    for question in two:
        text = tokenizer.decode(question.prompt)
        first = next(iter(persons_in(text).values())) == read(text)[1]
        assert first or question.index % 8 > 1
        assert not first or question.index % 8 < 6
        assert (question.facts["depth"] < 0.5) == first


@pytest.mark.slow
def test_the_first_of_two_hops_may_stand_anywhere(lexlet: FastTokenizer) -> None:
    before = []
    for question in questions_of(qa(hops=2), lexlet, 1500, 120):
        text = lexlet.decode(question.prompt)
        pupil = re.findall(r"the teacher of (\w+)", text)[0]
        before.append(text.index(f"Document: {pupil}") < text.index(f"Document: {read(text)[1]['name']}"))
    assert stats.binomtest(sum(before), 120).pvalue > 0.001


def test_a_sample_is_the_same_at_every_length_but_for_more_documents(lexlet: FastTokenizer) -> None:
    for hops in (1, 2):
        short, long = (questions_of(qa(hops=hops), lexlet, length, 8) for length in (800, 2400))
        for one, other in zip(short, long, strict=True):
            assert (one.answer, one.max_new_tokens, one.facts["question"]) == (
                other.answer,
                other.max_new_tokens,
                other.facts["question"],
            )
            known = [persons_in(lexlet.decode(question.prompt)) for question in (one, other)]
            assert known[0].items() < known[1].items()
            sizes = {length: [len(lexlet.encode(str(person)).ids) for person in known[length]] for length in (0, 1)}
            assert len(known[1]) > 2.5 * len(known[0]) and sizes


def test_the_control_lacks_the_documents_that_are_needed(tokenizer: FastTokenizer) -> None:
    for hops in (1, 2):
        usual = questions_of(qa(hops=hops), tokenizer, 900, 16)
        control = questions_of(qa(hops=hops, needle=False), tokenizer, 900, 16)
        for one, other in zip(control, usual, strict=True):
            assert one.length == 900
            assert one.answer == other.answer
            text = tokenizer.decode(one.prompt)
            assert one.facts["expected"][0] not in text
            assert read(tokenizer.decode(other.prompt))[1]["name"] not in persons_in(text)
            assert int(one.facts["depth"] * 8) == one.index % 8
            assert one.chance < 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("hops", [1, 2])
def test_options_stand_in_the_text_as_answers_of_the_kind(
    tokenizer: FastTokenizer, lexlet: FastTokenizer, hops: int
) -> None:
    task, places = qa(hops=hops, options=4), []
    for each in (tokenizer, lexlet):
        for question in task.questions(each, 1200, 40, 0):
            assert isinstance(question, Choose)
            assert question.length == 1200 and question.chance == 1 / 4
            assert len({len(option) for option in question.options}) == 1
            text = each.decode(question.prompt)
            kind, person = read(text)
            values = [each.decode(option) for option in question.options]
            assert len(set(values)) == 4
            assert set(values) <= {f" {one[kind]}" for one in persons_in(text).values()}
            assert values[question.expected] == f" {person[kind]}"
            if hops == 2:
                pupil = re.findall(r"the teacher of (\w+)", text)[0]
                assert f" {persons_in(text)[pupil][kind]}" in values
            sample = task.score(question, perfect(question, each))
            assert sample.scores == {"accuracy": 1}
            assert sample.depth == question.facts["depth"]
            assert int(question.facts["depth"] * 8) == question.index % 8 or question.facts["documents"] < 12
            places.append(question.expected)
    assert stats.chisquare(np.bincount(places, minlength=4)).pvalue > 0.001


@pytest.mark.slow
@pytest.mark.parametrize("hops", [1, 2])
def test_in_the_control_no_option_is_in_the_text(lexlet: FastTokenizer, hops: int) -> None:
    """So preferring values of the text is at chance, also at lengths where a cut document shows its values."""
    for length in range(900, 908):
        usual = qa(hops=hops, options=4).questions(lexlet, length, 8, 0)
        control = qa(hops=hops, options=4, needle=False).questions(lexlet, length, 8, 0)
        for question, other in zip(control, usual, strict=True):
            assert isinstance(question, Choose) and isinstance(other, Choose)
            text = lexlet.decode(question.prompt)
            assert [lexlet.decode(option) in text for option in question.options] == [False] * 4
            assert len({option.tobytes() for option in question.options}) == 4
            assert len({len(option) for option in question.options}) == 1
            right = [lexlet.decode(each.options[each.expected]) for each in (question, other)]
            assert right[0] == right[1]


def test_the_least_length_holds_all_options(tokenizer: FastTokenizer) -> None:
    several: list[dict[str, Any]] = [{"options": 4}, {"options": 6, "hops": 2}, {"options": 2, "needle": False}]
    for parameters in several:
        task = qa(**parameters)
        least = least_of(task, tokenizer, 8)
        for question in task.questions(tokenizer, least, 8, 0):
            assert isinstance(question, Choose)
            assert question.length == least
            assert len({option.tobytes() for option in question.options}) == parameters["options"]
    with pytest.raises(Refused, match=r"^distractor_qa has 1,000 options, asked for 300 tokens: lower their number"):
        qa(options=1000).questions(tokenizer, 300, 1, 0)  # before it makes a document for each


def test_options_of_one_length_that_are_too_few_are_refused(
    lexlet: FastTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """64 values of one token, then a thousand longer ones."""
    usual, longer = ["a"] * 64, ["much longer than that"] * 1000
    monkeypatch.setattr(people, "_shuffled_values", lambda rng, noun: iter(usual + longer))
    made = people.make_people(lexlet, np.random.default_rng(0), "birthday", same_size=True)
    with pytest.raises(
        Refused, match=r"distractor_qa finds no further answer of \d+ tokens in 1000: leave options out"
    ):
        list(made)


@pytest.mark.parametrize("noun", ["names", "dates", "objects"])
def test_values_come_once_each_and_then_no_more(noun: str, monkeypatch: pytest.MonkeyPatch) -> None:
    few = sampling.Combined(
        [part[:3] for part in people.ANSWER_VALUES[noun].lists[:2]], people.ANSWER_VALUES[noun].between
    )
    monkeypatch.setitem(people.ANSWER_VALUES, noun, few)
    values = people._shuffled_values(np.random.default_rng(0), noun)
    assert sorted(next(values) for _ in range(9)) == sorted(map(few.spell, range(9)))
    with pytest.raises(Refused, match=f"9 different {noun}, the documents need more: lower length"):
        next(values)


@pytest.mark.slow
def test_values_are_as_many_as_is_said() -> None:
    """90^3 names; 28 days, 12 months, 400 years; all dates real, all objects of four words."""
    counts = {noun: values.count for noun, values in people.ANSWER_VALUES.items()}
    assert counts == {"names": 90**3, "dates": 28 * 12 * 400, "objects": 10 * 16 * 16 * 48}
    assert {kind.noun for kind in people.QUESTION_KINDS.values()} == set(counts)
    for noun, form in (("dates", r"([1-9]|1\d|2[0-8]) [A-Z][a-z]+ 1[5-8]\d\d"), ("objects", r"[a-z]+( [a-z]+){3}")):
        values = people.ANSWER_VALUES[noun]
        spelled = list(map(values.spell, range(values.count)))
        assert len(set(spelled)) == values.count
        assert all(re.fullmatch(form, value) for value in spelled)
    assert people.ANSWER_VALUES["names"].spell(90**3 - 1) == "Zuzuzu"


def test_chance_is_the_likelier_guess(tokenizer: FastTokenizer) -> None:
    for question in questions_of(qa(), tokenizer, 900, 4):
        assert question.chance == 1 / question.facts["documents"]
    kinds = {"birthplace": 90**3, "home": 90**3, "birthday": 134400, "keepsake": 122880}
    for control, usual in zip(
        questions_of(qa(needle=False), tokenizer, 900, 8), questions_of(qa(), tokenizer, 900, 8), strict=True
    ):
        assert control.chance == 1 / kinds[read(tokenizer.decode(usual.prompt))[0]]


def test_only_the_answer_written_first_is_right(tokenizer: FastTokenizer) -> None:
    task = qa()
    question = next(q for q in questions_of(task, tokenizer, 900, 30) if "town" in q.facts["question"])
    [town] = question.facts["expected"]
    text = tokenizer.decode(question.prompt)
    kind, person = read(text)
    others = [one[kind] for one in persons_in(text).values() if one is not person and one[kind] != town]
    own = person["home" if kind == "birthplace" else "birthplace"]
    expected = {
        f" {town}": (1, 1),
        f"\n{town}.\nQuestion: And": (1, 1),
        f" the {town.lower()}": (1, 1),
        f' "{town}"': (1, 1),
        f" {town} in the north": (1, 1),
        f" {town}, where {person['name']} lives": (1, 1),
        f" {town}, the town of {person['name']}, a pupil of {person['teacher']}; it is in the north": (1, 1),
        f" {town} and keeps a lamp": (1, 1),
        f" {town} - {town}": (1, 1),
        f" {town} {others[0]} {others[1]}": (0, 1),
        f" {town} | {others[0]}": (0, 1),
        f" {town} - {others[0]}": (0, 1),
        f" {town}. {others[0]}.": (0, 1),
        f" {town} alternatively {others[0].upper()}": (0, 1),
        f" {town} (or/{others[0]})": (0, 1),
        f" {town} {own}": (0, 1),
        f" {town} or {own}": (0, 1),
        "": (0, 0),
        " ": (0, 0),
        "I do not know": (0, 0),
        f" {others[0]}": (0, 0),
        f" {others[0]}, {town}": (0, 1),
        f" It was {town}": (0, 1),
        f" {town}ra": (0, 1),
        f" {town}, {others[0]}": (0, 1),
        f" {town} or {others[0]}": (0, 1),
        f" {town}; {others[0]}": (0, 1),
        f" {town}/{others[0]}": (0, 1),
        " " + ", ".join([town, *others]): (0, 1),
        " " + " ".join([*others, town]): (0, 1),
        text: (0, 1),
    }
    assert {text: accuracy(task, tokenizer, text, question) for text in expected} == expected


def test_the_facts_name_what_else_the_documents_tell(tokenizer: FastTokenizer) -> None:
    """All towns, dates or objects of uncut documents except the answer; at most those of the cut one more."""
    for hops in (1, 2):
        for question in questions_of(qa(hops=hops), tokenizer, 1200, 24):
            text = tokenizer.decode(question.prompt)
            kind, _ = read(text)
            sort = ("birthplace", "home") if kind in ("birthplace", "home") else (kind,)
            told = {one[each] for one in persons_in(text).values() for each in sort} - {question.facts["expected"][0]}
            extra = [each for each in question.facts["others"] if not re.match(r"[A-Z][a-z]+ \d+, ", each)]
            assert told < set(extra) and len(extra) == len(told) + len(sort)
    assert "others" not in qa(options=3).questions(tokenizer, 1200, 1, 0)[0].facts


def test_dates_may_be_written_in_both_ways(tokenizer: FastTokenizer) -> None:
    task = qa()
    question = next(q for q in questions_of(task, tokenizer, 900, 30) if "date" in q.facts["question"])
    day, month, year = question.facts["expected"][0].split()
    for text in (f" {day} {month} {year}", f" {month} {day}, {year}.", f"{month} {day} {year}"):
        assert accuracy(task, tokenizer, text, question)[0] == 1
    assert accuracy(task, tokenizer, f" {month} {day}, {year}", question) == (1, 1)
    others = [one["birthday"] for one in persons_in(tokenizer.decode(question.prompt)).values()]
    other = next(each for each in others if each != question.facts["expected"][0])
    a_day, a_month, a_year = other.split()
    for text in (f" {day} {month} {year}, {other}", f"{month} {day}, {year} or {a_month} {a_day}, {a_year}"):
        assert accuracy(task, tokenizer, text, question)[0] == 0
    assert accuracy(task, tokenizer, f"{month} {day}, {year} ({day} {month} {year}), on a Monday", question)[0] == 1
    for text in (f" {day} {month}", f" {year}", f" {day}{month}{year}", f" {day} {month} {year}0"):
        assert accuracy(task, tokenizer, text, question)[0] == 0


# Official data.


def paragraph(article: int, part: int) -> dict[str, Any]:
    """One question with an answer (two in the first paragraph), and one without."""
    said = f"{article}{part} miles"
    answers = [{"text": text, "answer_start": 0} for text in (said, f"{said}\n long", said)]
    asked = [f"How long is river {part} of town {article}?", f"And how far does it flow in town {article}?"]
    text = (
        f"Paragraph {part} of town {article} tells of a river of {said} long.\n" + "It has mills and meadows. " * part
    )
    questions: list[dict[str, Any]] = [{"question": each, "answers": answers} for each in asked[: 1 + (part == 0)]]
    return {"context": text, "qas": [*questions, {"question": "Who?", "is_impossible": True, "answers": []}]}


SQUAD: dict[str, Any] = {
    "version": "v2.0",
    "data": [
        {"title": f"Town {article}", "paragraphs": [paragraph(article, part) for part in range(5)]}
        for article in range(10, 22)
    ],
}
HOTPOT: list[dict[str, Any]] = [
    {
        "_id": f"q{number}",
        "question": f"Which river flows through the birthplace of person {number}?",
        "answer": f"River R{number}" if number else "no",
        "type": "bridge",
        "level": "hard",
        "supporting_facts": [[f"Town {number}", 1], [f"Person {number}", 0]],
        "context": [
            [f"Town {number}", ["It is a town. ", f" Its river is River R{number}."]],
            [f"Other {number}", [f"Something else of {number}. ", "And nothing more."]],
            [f"Person {number}", [f"Born in Town {number}."]],
            [f"Third {number}", [f"A third thing of {number}. "] * 3],
        ],
    }
    for number in range(40)
]


def squad_rows() -> list[dict[str, Any]]:
    """In the hub's form."""
    return [
        {
            "title": article["title"],
            "context": part["context"],
            "question": question["question"],
            "answers": {
                "text": [answer["text"] for answer in question["answers"]],
                "answer_start": [answer["answer_start"] for answer in question["answers"]],
            },
        }
        for article in SQUAD["data"]
        for part in article["paragraphs"]
        for question in part["qas"]
    ]


def hotpot_rows() -> list[dict[str, Any]]:
    """In the hub's form."""
    return [
        {
            "id": row["_id"],
            "question": row["question"],
            "answer": row["answer"],
            "supporting_facts": {
                "title": [title for title, _ in row["supporting_facts"]],
                "sent_id": [place for _, place in row["supporting_facts"]],
            },
            "context": {
                "title": [title for title, _ in row["context"]],
                "sentences": [sentences for _, sentences in row["context"]],
            },
        }
        for row in HOTPOT
    ]


def written_to(file: Path, content: Any) -> str:
    """A file with one JSON value, or one per line."""
    lines = content if file.suffix == ".jsonl" else [content]
    file.write_text("\n".join(json.dumps(each) for each in lines) + "\n")
    return str(file)


@pytest.fixture
def squad(tmp_path: Path) -> str:
    return written_to(tmp_path / "dev-v2.0.json", SQUAD)


@pytest.fixture
def hotpot(tmp_path: Path) -> str:
    return written_to(tmp_path / "hotpot_dev_distractor_v1.json", HOTPOT)


def documents_of(text: str) -> list[str]:
    """Whole documents and a cut one, of which only the word Document may be left."""
    body = text.removeprefix(HEADER).rpartition("\nQuestion: ")[0]
    return [re.sub(r"\n(D|Do|Doc|Docu|Docum|Docume|Documen|Document:?)?$", "", part) for part in body.split(MARK)[1:]]


def test_squad_is_asked_with_its_paragraph_among_others(
    tokenizer: FastTokenizer, lexlet: FastTokenizer, squad: str
) -> None:
    task = qa("qa_squad", data=squad).for_lengths([600])
    contexts = {row["context"].strip() for row in squad_rows()}
    own = {row["question"]: row for row in squad_rows()}
    for each, length in ((tokenizer, 900), (lexlet, 901)):
        for question in questions_of(task, each, length, 72):
            assert len(question.prompt) + question.max_new_tokens == question.length == length
            row = own[question.facts["question"]]
            first = row["answers"]["text"][0]
            assert question.facts["expected"] == [first, f"{first} long"]
            assert question.answer == f" {first}"
            assert question.max_new_tokens == len(each.encode(f" {first} long").ids) + 8
            text = each.decode(question.prompt)
            assert text.endswith(f"\nQuestion: {row['question']}\nAnswer:")
            shown = documents_of(text)
            whole = [document for document in shown if document in contexts]
            assert whole.count(row["context"].strip()) == 1
            assert len(set(whole)) == len(whole) == question.facts["documents"] > 3
            cut = [document for document in shown if document not in contexts]
            assert len(cut) <= 1 and all(any(context.startswith(each) for context in contexts) for each in cut)
            assert question.cluster == row["title"]
            sample = score(task, each, question.answer, question)
            assert set(sample.scores.values()) == {1.0}
            assert question.chance == 0


def test_one_alias_is_enough_for_contains(tokenizer: FastTokenizer, squad: str) -> None:
    """Like RULER's string_match_part: not the share of the aliases."""
    task = qa("qa_squad", data=squad)
    [question] = questions_of(task, tokenizer, 900, 1)
    assert len(question.facts["expected"]) == 2
    assert accuracy(task, tokenizer, f"It is {question.facts['expected'][0]}", question) == (0, 1)


def test_hotpotqa_is_asked_with_both_documents_and_its_own_others(tokenizer: FastTokenizer, hotpot: str) -> None:
    task = qa("qa_hotpotqa", data=hotpot).for_lengths([600])
    texts = {f"{title}\n{''.join(sentences).strip()}" for row in HOTPOT for title, sentences in row["context"]}
    for question in questions_of(task, tokenizer, 900, 40):
        assert question.length == 900
        number = int(re.findall(r"\d+", question.facts["question"])[0])
        text = tokenizer.decode(question.prompt)
        shown = [document for document in documents_of(text) if document in texts]
        assert len(set(shown)) == len(shown) == question.facts["documents"]
        for title in ("Person", "Town", "Other", "Third"):
            assert len([one for one in shown if one.startswith(f"{title} {number}\n")]) == 1
        assert question.facts["expected"] == [f"River R{number}" if number else "no"]
        assert question.chance == (0 if number else 0.5)
        assert accuracy(task, tokenizer, question.answer, question) == (1, 1)
        body = text.removeprefix(HEADER).rpartition("\nQuestion: ")[0]
        if number:  # the document with the answer is the one whose depth is told
            begin = body.index(f"\nDocument: Town {number}\n")
            end = body.index(f"River R{number}.") + len(f"River R{number}.")
            ends = [len(tokenizer.encode(body[:place]).ids) for place in (begin, end, None)]
            assert question.facts["depth"] == pytest.approx((ends[0] + ends[1]) / 2 / ends[2], abs=0.02)


@pytest.mark.parametrize("length", [900, 1500])
def test_the_official_golden_document_is_spread_evenly(tokenizer: FastTokenizer, squad: str, length: int) -> None:
    """56 questions, 7 in each of 8 strata, at every length; in RULER all of a size have one depth."""
    questions = questions_of(qa("qa_squad", data=squad), tokenizer, length, 56)
    counts = np.bincount([int(question.facts["depth"] * 8) for question in questions], minlength=8)
    assert counts.tolist() == [7] * 8
    assert len({round(question.facts["depth"], 3) for question in questions}) > 20


def test_official_questions_are_the_same_at_every_length_and_come_once(tokenizer: FastTokenizer, squad: str) -> None:
    task = qa("qa_squad", data=squad)
    short, long = (questions_of(task, tokenizer, length, 72) for length in (900, 1800))
    assert [q.facts["question"] for q in short] == [q.facts["question"] for q in long]
    assert len({q.facts["question"] for q in short}) == 72
    again = questions_of(task, tokenizer, 900, 72)
    assert [q.prompt.tolist() for q in short] == [q.prompt.tolist() for q in again]
    other = questions_of(task, tokenizer, 900, 72, seed=1)
    assert [q.facts["question"] for q in short] != [q.facts["question"] for q in other]
    with pytest.raises(Refused, match="needs 73 questions, the data has 72: lower n"):
        task.questions(tokenizer, 900, 73, 0)


def test_others_differ_from_sample_to_sample(tokenizer: FastTokenizer, squad: str) -> None:
    """About 7 random ones of 59: the probability of sharing more than 4 is below 1e-3 (hypergeometric)."""
    contexts = {row["context"].strip() for row in squad_rows()}
    shown = [
        contexts & set(documents_of(tokenizer.decode(question.prompt)))
        for question in questions_of(qa("qa_squad", data=squad), tokenizer, 900, 3)
    ]
    assert stats.hypergeom.sf(4, 59, 8, 8) < 1e-3
    assert all(len(shown[one] & shown[other]) <= 4 for one, other in ((0, 1), (0, 2), (1, 2)))
    assert all(len(each) > 5 for each in shown)


def test_the_official_control_lacks_the_paragraph(tokenizer: FastTokenizer, squad: str) -> None:
    for question in questions_of(qa("qa_squad", data=squad, needle=False), tokenizer, 900, 30):
        assert question.length == 900
        assert question.facts["expected"][0] not in tokenizer.decode(question.prompt)


def test_data_that_is_too_small_is_refused(tokenizer: FastTokenizer, squad: str) -> None:
    with pytest.raises(Refused, match=r"lacks \d+ tokens of documents to fill the length: lower it or give more data"):
        qa("qa_squad", data=squad).questions(tokenizer, 20000, 1, 0)
    least = least_of(qa("qa_squad", data=squad), tokenizer, 4)
    assert {q.length for q in questions_of(qa("qa_squad", data=squad), tokenizer, least, 4)} == {least}


@pytest.mark.everyday("qa_squad-official", "qa_hotpotqa-jsonl")
@pytest.mark.parametrize("form", ["official", "jsonl", "parquet", "elsewhere"])
@pytest.mark.parametrize("name", ["qa_squad", "qa_hotpotqa"])
def test_all_forms_of_one_data_give_the_same_questions(
    tokenizer: FastTokenizer, tmp_path: Path, name: str, form: str
) -> None:
    official, rows = (SQUAD, squad_rows()) if name == "qa_squad" else (HOTPOT, hotpot_rows())
    usual = qa(name, data=written_to(tmp_path / "usual.json", official)).for_lengths([600])
    if form == "parquet":
        (tmp_path / "rows").mkdir()
        datasets.Dataset.from_list(rows).to_parquet(tmp_path / "rows" / "validation.parquet")
        given: dict[str, Any] = {"dataset": str(tmp_path / "rows"), "config": None}
    elif form == "jsonl":
        given = {"data": written_to(tmp_path / "rows.jsonl", rows)}
    elif form == "elsewhere":
        given = {"data": written_to(tmp_path / "other.json", official)}
    else:
        given = {"data": written_to(tmp_path / "rows.json", rows)}
    task = qa(name, **given).for_lengths([600])
    assert task.data_hash == usual.data_hash  # type: ignore[attr-defined]
    one, other = (questions_of(each, tokenizer, 900, 8) for each in (usual, task))
    assert [q.prompt.tolist() for q in one] == [q.prompt.tolist() for q in other]
    unsettled = questions_of(qa(name, **given), tokenizer, 900, 8)
    assert [q.prompt.tolist() for q in one] == [q.prompt.tolist() for q in unsettled]


def test_the_data_is_known_by_its_hash(tmp_path: Path, squad: str) -> None:
    task = qa("qa_squad", data=squad).for_lengths([600])
    known = task.data_hash  # type: ignore[attr-defined]
    assert re.fullmatch(r"[0-9a-f]{16}", known)
    changed = json.loads(json.dumps(SQUAD))
    changed["data"][3]["paragraphs"][2]["context"] += "x"
    other = written_to(tmp_path / "changed.json", changed)
    assert qa("qa_squad", data=other).for_lengths([600]).data_hash != known  # type: ignore[attr-defined]
    assert qa("qa_squad", data=squad, data_hash=known).for_lengths([600]) == task
    with pytest.raises(ValueError, match=f"needs data with hash {known}, got [0-9a-f]{{16}}: give that data"):
        qa("qa_squad", data=other, data_hash=known).for_lengths([600])


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.json", None, r"data .*a.json cannot be read \(.*No such file.*\): give task.data=FILE"),
        ("a.json", "{", r"data .*a.json cannot be read \(.*\): give task.data=FILE"),
        ("a.jsonl", '{"context": "x"}\n{', r"data .*a.jsonl cannot be read \(.*\): give task.data=FILE"),
        ("a.json", "[]", "data .*a.json has no question with an answer: give task.data=FILE"),
        ("a.json", '[{"q": 1}]', r"row 1 of data .*a.json must have .* form \(KeyError: 'context'\): give task.data"),
        ("a.json", "[3]", r"row 1 of data .*a.json must have SQuAD's or HotpotQA's form \(TypeError: "),
        ("a.json", '{"title": 1}', r"row 1 of data .* form \(KeyError: 'data'\): give task.data"),
        ("a.json", '{"data": [{"paragraphs": [{}]}]}', r"row 1 of data .* form \(KeyError: 'qas'\): give task.data"),
        (
            "a.json",
            '[{"question": "Q", "answer": "A", "context": [["T", ["s"]]], "supporting_facts": [["U", 0]]}]',
            r"\(ConfigError: no supporting document in context\)",
        ),
    ],
)
def test_data_that_cannot_be_had_is_said_in_one_line(
    tmp_path: Path, name: str, content: str | None, message: str
) -> None:
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=message) as error:
        qa("qa_squad", data=str(tmp_path / name)).for_lengths([600])
    assert "\n" not in str(error.value)


def test_a_dataset_that_does_not_exist_is_an_error_in_one_line(tmp_path: Path) -> None:
    message = r"cannot be loaded \(.*\): check dataset, config and split, or give task.data=FILE"
    with pytest.raises(ValueError, match=message) as error:
        qa("qa_squad", dataset=str(tmp_path / "nowhere")).for_lengths([600])
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["qa_squad", "qa_hotpotqa"])
def test_without_network_the_official_questions_are_refused(
    tokenizer: FastTokenizer, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hub is queried once, not per length."""
    calls = []

    def unreachable(*name: Any, **more: Any) -> None:
        calls.append((*name, more["split"]))
        raise ConnectionError("Couldn't reach\nthe Hub")

    monkeypatch.setattr(datasets, "load_dataset", unreachable)
    task = qa(name, revision="offline").for_lengths([600, 900])
    assert task == qa(name, revision="offline")
    for length in (600, 900):
        with pytest.raises(Refused, match=r"\(Couldn't reach the Hub\): give task.data=FILE or a network"):
            task.questions(tokenizer, length, 1, 0)
    config = "distractor" if name == "qa_hotpotqa" else None
    assert calls == [(task.dataset, config, "validation")]  # type: ignore[attr-defined]


@pytest.mark.slow
def test_what_datasets_raises_without_network_is_a_refusal(tmp_path: Path) -> None:
    code = "import lexbench; print(lexbench.task('qa_squad')._data())"
    settings = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)}
    root = Path(__file__).parent.parent.parent
    run = [sys.executable, "-c", code]
    done = subprocess.run(run, capture_output=True, text=True, check=True, cwd=root, env=settings)
    assert done.stdout.startswith("distractor_qa's dataset rajpurkar/squad cannot be loaded (")
    assert done.stdout.endswith("): give task.data=FILE or a network\n")


def test_the_yamls_name_the_datasets() -> None:
    assert qa("qa_squad").dataset == "rajpurkar/squad"  # type: ignore[attr-defined]
    hotpot = qa("qa_hotpotqa")
    assert (hotpot.dataset, hotpot.config) == ("hotpotqa/hotpot_qa", "distractor")  # type: ignore[attr-defined]
    assert hotpot.split == "validation"  # type: ignore[attr-defined]


# Both.


def test_a_chat_asks_the_same_in_its_template(tokenizer: FastTokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = questions_of(qa(), tokenizer, 700, 4)
    before, after = (tokenizer.encode(text).ids for text in ("User: ", "\n\nModel:\n"))
    monkeypatch.setattr(tokenizer, "frame", lambda chat: Frame(before, after) if chat else None)
    task = qa(chat=True)
    for question, other in zip(questions_of(task, tokenizer, 700, 4), plain, strict=True):
        assert question.length == 700
        assert question.answer == other.answer
        text = tokenizer.decode(question.prompt)
        assert text.startswith("User: " + HEADER)
        assert text.endswith(f"\nQuestion: {question.facts['question']}\n\nModel:\nAnswer:")
    assert "chat template" in task.protocol(tokenizer)


def test_the_least_length_is_said_and_is_the_least(tokenizer: FastTokenizer) -> None:
    for parameters in ({}, {"hops": 2}, {"needle": False}):
        task = qa(**parameters)
        least = least_of(task, tokenizer, 6)
        assert {question.length for question in questions_of(task, tokenizer, least, 6)} == {least}
        with pytest.raises(Refused, match=f"needs at least {least} tokens, asked for {least - 1}"):
            task.questions(tokenizer, least - 1, 6, 0)
    with pytest.raises(Refused, match=r"room of at least \d+ tokens for its answer, got 2: raise room"):
        qa(room=2).questions(tokenizer, 900, 1, 0)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        *(({name: 0}, f"{name} must be at least 1, got 0") for name in ("strata", "room")),
        ({"options": 1}, "options must be at least 2, got 1"),
        ({"hops": 3}, "hops must be 1 or 2, got 3"),
        ({"options": 2, "room": 9}, "writes nothing with options, got room=9: leave it out"),
        ({"hops": 2, "data": "x"}, "needs made documents for hops=2: leave it out"),
        ({"options": 2, "dataset": "x"}, "needs made documents for options=2: leave it out"),
        ({"data_hash": "abc"}, "no data for data_hash=abc: give data, or leave it out"),
    ],
)
def test_a_wrong_parameter_is_an_error(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        qa(**parameters)


def test_the_protocol_says_what_is_asked(tokenizer: FastTokenizer, squad: str) -> None:
    assert qa().protocol(tokenizer) == (
        "distractor documents: one fact of a document in 1 hop, others fill the length, "
        "strict: a right answer comes first, greedy, BOS"
    )
    assert "in 2 hops, others fill the length, control without" in qa(hops=2, needle=False).protocol(tokenizer)
    assert "the likeliest of 4 answers of equally many tokens" in qa(options=4).protocol(tokenizer)
    assert "a question of rajpurkar/squad (hash unknown), others" in qa("qa_squad").protocol(tokenizer)
    task = qa("qa_squad", data=squad).for_lengths([600])
    known = task.data_hash  # type: ignore[attr-defined]
    assert f"a question of dev-v2.0.json (hash {known}), others" in task.protocol(tokenizer)


@pytest.mark.slow
def test_questions_follow_from_seed_and_index_in_any_process(lexlet: FastTokenizer, squad: str) -> None:
    for task in (qa(), qa("qa_squad", data=squad)):
        here = fingerprint(task, lexlet, 3)
        assert len(set(here)) == 3
        assert fingerprint(task, lexlet, 9)[:3] == here
        assert not set(here) & set(fingerprint(task, lexlet, 3, seed=1))
    code = (
        f"import importlib.util as u; s = u.spec_from_file_location('here', {__file__!r}); m = u.module_from_spec(s); "
        "s.loader.exec_module(m); from lexbench.checkpoints.tokenizer import load_tokenizer; "
        "t = load_tokenizer(m.Path(m.lexbench.__file__).parent / 'lexlet'); "
        f"m.questions_of(m.qa(hops=2), t, 500, 2); print(*m.fingerprint(m.qa('qa_squad', data={squad!r}), t, 3))"
    )
    root = Path(__file__).parent.parent.parent
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=root)
    assert done.stdout.split() == here
