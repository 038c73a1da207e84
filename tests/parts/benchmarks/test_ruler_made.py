"""RULER's prompts from the texts of a checkout: the bytes that its own scripts wrote from the same texts."""

import hashlib
import json
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import lexbench
from lexbench import Generate, Refused
from lexbench.checkpoints.tokenizer import FastTokenizer, load_tokenizer
from lexbench.core import registry
from lexbench.parts.benchmarks import ruler_made

NIAH = {"type_haystack": "essay", "type_needle_k": "words", "type_needle_v": "numbers"}
ONE = {"num_needle_k": 1, "num_needle_v": 1, "num_needle_q": 1}
PARTS: dict[str, tuple[str, dict[str, Any]]] = {
    "niah_single_1": ("niah", {**NIAH, **ONE, "type_haystack": "noise"}),
    "niah_single_2": ("niah", {**NIAH, **ONE}),
    "niah_single_3": ("niah", {**NIAH, **ONE, "type_needle_v": "uuids"}),
    "niah_multikey_1": ("niah", {**NIAH, **ONE, "num_needle_k": 4}),
    "niah_multikey_2": ("niah", {**NIAH, **ONE, "type_haystack": "needle"}),
    "niah_multikey_3": (
        "niah",
        {**ONE, "type_haystack": "needle", "type_needle_k": "uuids", "type_needle_v": "uuids"},
    ),
    "niah_multivalue": ("niah", {**NIAH, **ONE, "num_needle_v": 4}),
    "niah_multiquery": ("niah", {**NIAH, **ONE, "num_needle_q": 4}),
    "vt": ("variable_tracking", {"type_haystack": "noise", "num_chains": 1, "num_hops": 4}),
    "cwe": ("common_words_extraction", {"freq_cw": 30, "freq_ucw": 3, "num_cw": 10}),
    "fwe": ("freq_words_extraction", {"alpha": 2.0}),
    "qa_1": ("qa", {"dataset": "squad"}),
    "qa_2": ("qa", {"dataset": "hotpotqa"}),
}
TASKS = {
    "niah": {
        "tokens_to_generate": 128,
        "template": "Some {type_needle_v} are hid in this.\n{context}\nWhat are all the {type_needle_v} of {query}?",
        "answer_prefix": " All of the {type_needle_v} of {query} are",
    },
    "variable_tracking": {
        "tokens_to_generate": 30,
        "template": "Follow what is set to what.\n\n{context}\nWhich have the value {query}?",
        "answer_prefix": " Reply: the {num_v} with {query} are: ",
    },
    "common_words_extraction": {
        "tokens_to_generate": 120,
        "template": "Some words of this list are frequent.\n{context}\nWhich ones?",
        "answer_prefix": " Reply: the frequent words are:",
    },
    "freq_words_extraction": {
        "tokens_to_generate": 50,
        "template": "Count these words. {context}\nWhich three are frequent, without '...'?",
        "answer_prefix": " Reply: these three are frequent:",
    },
    "qa": {
        "tokens_to_generate": 32,
        "template": "Read these.\n\n{context}\n\nReply briefly: {query}",
        "answer_prefix": " Reply in brief:",
    },
}
NEEDLE = "The {type_needle_v} of {key} is: {value}."
NOISE = "Rain falls. It dries."
TITLE = "Text {i}:\n{document}"


def checkout(folder: Path) -> None:
    """A checkout with our own texts: templates, essays, questions, word lists, punkt. Scripts hold their texts only."""
    rng = random.Random(1)
    syllables = [a + b for a in "bdfgklmnprst" for b in "aeiou"]
    words = sorted({"".join(rng.choices(syllables, k=3)) for _ in range(7000)})
    rng.shuffle(words)
    sentences = [f"{' '.join(words[i : i + 9]).capitalize()} by Dr. {words[i].capitalize()}." for i in range(400)]
    texts = [" ".join(sentences[i : i + 2]) for i in range(0, 90, 2)]
    asked = [{"question": f"Who {i}?", "answers": [{"text": words[i]}], "is_impossible": i % 3 == 0} for i in range(30)]
    squad = [
        {"paragraphs": [{"context": texts[3 * i + j], "qas": asked[3 * i : 3 * i + 3]} for j in (0, 1, 2)]}
        for i in range(10)
    ]
    hotpot = [
        {"question": f"Which {i}?", "answer": words[i], "context": [[words[j], [texts[j]]] for j in range(i, i + 10)]}
        for i in range(30)
    ]
    synthetic = folder / "scripts/data/synthetic"
    listed = folder / "site/wonderwords/assets"
    punkt = folder / "nltk_data/tokenizers/punkt_tab/english"
    for each in (synthetic / "json", listed, punkt):
        each.mkdir(parents=True)
    for name, text in {
        synthetic.parents[1] / "synthetic.yaml": json.dumps(
            {part: {"task": task, "args": arguments} for part, (task, arguments) in PARTS.items()}
        ),
        synthetic / "constants.py": f"TASKS = {TASKS!r}\n",
        synthetic
        / "niah.py": f"needle = {NEEDLE!r}\nif noise:\n    haystack = {NOISE!r}\nelse:\n    haystack = needle\n",
        synthetic / "variable_tracking.py": f"if noise:\n    haystack = {NOISE!r}\n",
        synthetic / "common_words_extraction.py": "",
        synthetic / "freq_words_extraction.py": "",
        synthetic / "qa.py": f"DOCUMENT_PROMPT = {TITLE!r}\n",
        synthetic / "json/PaulGrahamEssays.json": json.dumps({"text": "\n ".join(sentences)}),
        synthetic / "json/squad.json": json.dumps({"data": squad}),
        synthetic / "json/hotpotqa.json": json.dumps(hotpot),
        synthetic / "json/english_words.json": json.dumps(dict(enumerate(words[600:]))),
        listed.parent / "__init__.py": "",
        listed / "__init__.py": "",
        listed / "nounlist.txt": "\n".join(["made-up", *words[:300]]),
        listed / "adjectivelist.txt": "\n".join(["well", "well-made", "well-made-up", *words[300:400]]),
        listed / "verblist.txt": "\n".join(words[390:600]),
        punkt / "abbrev_types.txt": "dr\n",
        punkt / "collocations.tab": "",
        punkt / "sent_starters.txt": "",
        punkt / "ortho_context.tab": "",
    }.items():
        name.write_text(text, encoding="utf-8")


WRITTEN = {
    2000: {
        "niah_multikey_2": "ac0ee6f83c2ec537",
        "vt": "b9ab95b4ea9cd841",
        "cwe": "29b7c5cbf0cff0ad",
        "fwe": "9139504be633f455",
        "qa_1": "a64a913af89ca8b6",
    },
    4100: {
        "niah_single_1": "2a893fa28df7485f",
        "niah_single_2": "f4b7d3cf981b45ed",
        "niah_single_3": "a596ac724bcaddaf",
        "niah_multikey_1": "d4b7956be157966d",
        "niah_multikey_3": "c108863ec548123d",
        "niah_multivalue": "83ce13c1578f4875",
        "niah_multiquery": "2161fc2b41aa4a3e",
        "vt": "777a5fe86aaf8979",
        "qa_2": "a656592cb12d1790",
    },
    8000: {"cwe": "27eb5ffc9fca9f22"},
}
"""Digests of the rows that prepare.py of NVIDIA/RULER c3f5e3b wrote of these texts, by `--max_seq_length`."""


@pytest.fixture(scope="module")
def lexlet() -> FastTokenizer:
    return load_tokenizer(registry.PACKAGE_FOLDER / "lexlet")


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("ruler")
    checkout(folder)
    scripts = folder / "scripts/data/synthetic"
    with pytest.MonkeyPatch.context() as patch:
        import nltk

        patch.syspath_prepend(str(folder / "site"))
        patch.setattr(nltk.data, "path", [str(folder / "nltk_data")])
        for name in ruler_made.SCRIPT_HASH_OF_TASK:
            digest = hashlib.sha256((scripts / f"{name}.py").read_bytes()).hexdigest()[:8]
            patch.setitem(ruler_made.SCRIPT_HASH_OF_TASK, name, digest)
        yield folder


def rows(
    folder: Path, part: str, length: int, tokenizer: FastTokenizer, n: int = 3, framing: int = 0
) -> list[ruler_made.RulerRow]:
    def count(text: str) -> int:
        return len(tokenizer.encode(text).ids)

    wanted = ruler_made.RulerArguments(folder / "scripts/data/synthetic", part, length, framing, 0, count)
    return [row for row, _ in zip(ruler_made.generate_rows(wanted), range(n), strict=False)]


QUICK = (2000, "fwe"), (2000, "vt"), (2000, "qa_1"), (4100, "niah_single_2")


@pytest.mark.parametrize(
    ("length", "part"),
    [
        pytest.param(length, part, marks=[] if (length, part) in QUICK else pytest.mark.slow)
        for length, parts in WRITTEN.items()
        for part in parts
    ],
)
def test_the_bytes_are_those_of_its_own_scripts(part: str, length: int, known: Path, lexlet: FastTokenizer) -> None:
    made = [[row.input, row.answer_prefix, row.outputs, row.length] for row in rows(known, part, length, lexlet)]
    assert hashlib.sha256(json.dumps(made).encode()).hexdigest()[:16] == WRITTEN[length][part]


def test_the_length_counts_the_tokens_around_the_prompt(known: Path, lexlet: FastTokenizer) -> None:
    """Its `--model_template_token` is taken off `--max_seq_length`: 40 of 2,040 leave the rows of 2,000."""
    for part in ("niah_single_1", "cwe", "fwe"):
        assert rows(known, part, 2040, lexlet, framing=40) == rows(known, part, 2000, lexlet)


def test_a_checkout_is_asked_with_its_own_prompts(known: Path, lexlet: FastTokenizer) -> None:
    """The first n rows, in any order; the length counts BOS only where it is not stated by the axis."""
    task = lexbench.task("ruler_official", part="niah_multikey_2", data=str(known), axis=2000)
    questions = [each for each in task.questions(lexlet, 2100, 3, 0) if isinstance(each, Generate)]
    made = rows(known, "niah_multikey_2", 2000, lexlet)
    assert {lexlet.decode(each.prompt).strip() for each in questions} == {row.input + row.answer_prefix for row in made}
    assert sorted(each.facts["outputs"] for each in questions) == sorted(list(row.outputs) for row in made)
    assert "class 2000" in task.protocol(lexlet) and "sha256:" in task.protocol(lexlet)
    other = lexbench.task("ruler_official", part="niah_multikey_2", data=str(known)).questions(lexlet, 600, 2, 1)
    assert all(550 < each.length <= 600 for each in other)


def test_questions_on_one_paragraph_are_one_cluster(known: Path, lexlet: FastTokenizer) -> None:
    """The official order is SQuAD's own: here two questions that can be answered on each of three paragraphs."""
    task = lexbench.task("ruler_official", part="qa_1", data=str(known), axis=2000)
    questions = task.questions(lexlet, 2100, 6, 0)
    assert sorted(Counter(each.cluster for each in questions).values()) == [2, 2, 2]
    assert (
        len(
            {
                each.cluster
                for each in lexbench.task("ruler_official", part="qa_2", data=str(known), axis=2000).questions(
                    lexlet, 2100, 6, 0
                )
            }
        )
        == 6
    )


def test_words_are_sorted_as_if_all_pairs_were_made() -> None:
    firsts, seconds = ("b", "a", "a-b", "a-b-c", "ab", "a", "a b"), ("c-d", "d", "b-d", "c", "b-c-d")
    pairs = ruler_made._WordPairs(firsts, seconds)
    assert list(pairs) == sorted({f"{first}-{second}" for first in firsts for second in seconds})
    assert random.Random(3).choice(pairs) == random.Random(3).choice(list(pairs))


def test_another_version_and_missing_texts_are_refused(
    known: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lexlet: FastTokenizer
) -> None:
    checkout(tmp_path)
    synthetic = tmp_path / "scripts/data/synthetic"
    task = lexbench.task("ruler_official", part="niah_single_1", data=str(known))
    with pytest.raises(Refused, match="RULER's niah_single_1 does not fit in 150 tokens: raise length"):
        task.questions(lexlet, 150, 1, 0)
    for part, change, message in (
        ("niah_single_1", lambda: (synthetic / "niah.py").write_text("needle = 1\n"), "niah.py of this checkout"),
        ("niah_single_2", lambda: (synthetic / "json/PaulGrahamEssays.json").unlink(), "lacks synthetic/json/Paul"),
        ("qa_1", lambda: (synthetic / "json/squad.json").unlink(), "checkout of RULER lacks synthetic/json/squad.json"),
        ("cwe", lambda: monkeypatch.setattr("sys.path", []), "RULER's words are those of the package wonderwords"),
    ):
        monkeypatch.setitem(ruler_made.SCRIPT_HASH_OF_TASK, "niah", ruler_made.SCRIPT_HASH_OF_TASK["niah"])
        change()
        if part == "niah_single_2":
            digest = hashlib.sha256((synthetic / "niah.py").read_bytes()).hexdigest()[:8]
            monkeypatch.setitem(ruler_made.SCRIPT_HASH_OF_TASK, "niah", digest)
        with pytest.raises(Refused, match=message):
            lexbench.task("ruler_official", part=part, data=str(tmp_path)).questions(lexlet, 2000, 1, 0)
