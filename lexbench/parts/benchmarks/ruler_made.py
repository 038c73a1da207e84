"""RULER's prompts, made from the texts of the user's checkout as its scripts make them, byte for byte; none is run.

The scripts are those of NVIDIA/RULER from 2025-07-10 to 2026-07 (c3f5e3b), called by `prepare.py` with
`--model_template_type base`. Their faults are kept: the search for the size draws from the same random numbers.
"""

import bisect
import hashlib
import importlib.util
import itertools
import json
import random
import re
import string
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from scipy.special import zeta

from lexbench.core.errors import ConfigError
from lexbench.core.record import Refused
from lexbench.parts.benchmarks.copy import BenchmarkFiles, assigned_literals

OFFICIAL_SEED = 42
"""Seed of the official data, for seed 0 here."""
CHECKOUT_MARKER_FILE = "scripts/data/synthetic/constants.py"
"""The file by which a checkout is known."""
MAX_SAMPLE_TRIES = 100
"""Attempts at a sample that fits; the official code tries for ever."""
NEEDLE_DEPTHS_PERCENT = np.round(np.linspace(0, 100, num=40)).astype(int).tolist()
SCRIPT_HASH_OF_TASK = {
    "niah": "e9cada0a",
    "variable_tracking": "9aac4834",
    "common_words_extraction": "2671d4a8",
    "freq_words_extraction": "29b7af97",
    "qa": "f00c0b59",
}
"""Start of the SHA-256 of the scripts that this module follows."""
DOWNLOADED_FILES_OF_KIND = {
    "essay": ["json/PaulGrahamEssays.json"],
    "squad": ["json/squad.json"],
    "hotpotqa": ["json/hotpotqa.json"],
    "common_words_extraction": ["json/english_words.json"],
}
"""Texts that the checkout's own downloads fetch."""

SampleDraw = Callable[[int, int], tuple[str, list[str]]]
"""Function from the size of a haystack and the number of the sample to a prompt and its answers."""


@dataclass(frozen=True)
class RulerRow:
    """A line of the official file."""

    input: str
    answer_prefix: str
    outputs: Sequence[str]
    length: int
    """Tokens of the prompt and of the answer's room, without the framing."""
    document: str | None = None
    """Text that answers the question, and others of SQuAD's: these are not independent."""


@dataclass(frozen=True)
class RulerArguments:
    """Arguments of the scripts.

    Args:
        folder: scripts/data/synthetic of the checkout.
        part: one of the thirteen.
        length: tokens of prompt and answer, `--max_seq_length`.
        framing: tokens around the prompt that the length counts, `--model_template_token`.
        seed: added to the official 42.
        count: number of a text's tokens.
    """

    folder: Path
    part: str
    length: int
    framing: int
    seed: int
    count: Callable[[str], int]

    @property
    def random_seed(self) -> int:
        """`--random_seed`."""
        return OFFICIAL_SEED + self.seed

    def arguments(self) -> dict[str, Any]:
        """Arguments of the part, from scripts/synthetic.yaml and constants.py; ConfigError if they do not state it."""
        try:
            chosen = yaml.safe_load((self.folder.parents[1] / "synthetic.yaml").read_text(encoding="utf-8"))[self.part]
            stated = assigned_literals(self.folder / "constants.py")["TASKS"][chosen["task"]]
        except (OSError, UnicodeDecodeError, KeyError, TypeError, yaml.YAMLError) as error:
            reason = type(error).__name__
            raise ConfigError(f"checkout of RULER does not state {self.part} ({reason}): clone it again") from None
        return {**chosen["args"], **stated, "task": chosen["task"]}


def source_files(checkout: Path, part: str) -> BenchmarkFiles:
    """The files that fix the bytes of a part; Refused if one is missing or of another version."""
    folder = checkout.parent
    known = RulerArguments(folder, part, 0, 0, 0, len).arguments()
    script = folder / f"{known['task']}.py"
    found = hashlib.sha256(script.read_bytes()).hexdigest()[:8] if script.is_file() else "missing"
    # Another version of the script may draw other numbers: then no byte is promised.
    if found != SCRIPT_HASH_OF_TASK[known["task"]]:
        raise Refused(
            f"{script.name} of this checkout of RULER ({found}) is not the version whose bytes are known here: "
            "run its prepare.py, and give the folder that it wrote"
        )
    kinds = (known["task"], known.get("type_haystack"), known.get("dataset"))
    files = [checkout, folder.parents[1] / "synthetic.yaml", script]
    for each in itertools.chain.from_iterable(DOWNLOADED_FILES_OF_KIND.get(str(kind), ()) for kind in kinds):
        if not (folder / each).is_file():
            raise Refused(f"checkout of RULER lacks {folder.name}/{each}: run the downloads of its README")
        files.append(folder / each)
    if known["task"] in ("niah", "common_words_extraction"):
        files += [_word_list_file(name) for name in ("nounlist.txt", "adjectivelist.txt", "verblist.txt")]
    if "essay" in kinds:
        files += _punkt_files()
    return BenchmarkFiles.of(files)


def generate_rows(wanted: RulerArguments) -> Iterator[RulerRow]:
    """The official rows, one after another, without end."""
    arguments = wanted.arguments()
    # The prefix is part of what is searched and counted, and is cut off only from the finished prompt.
    template = arguments["template"] + arguments["answer_prefix"]
    prefix = arguments["answer_prefix"][:10]
    documents = _question_paragraphs(wanted.folder) if arguments.get("dataset") == "squad" else itertools.repeat(None)
    rows = ROW_MAKER_OF_TASK[arguments["task"]](wanted, arguments, template)
    for (text, outputs), document in zip(rows, documents, strict=False):
        cut = text.rfind(prefix)
        length = wanted.count(text) + arguments["tokens_to_generate"]
        yield RulerRow(text[:cut], text[cut:], outputs, length, document)


def _question_paragraphs(folder: Path) -> Iterator[str]:
    """The paragraph of each question of SQuAD, in the order of the rows."""
    asked, documents = _read_squad(folder)
    yield from (documents[place] for _, _, [place], _ in asked)


def _sample_fitting_rows(
    wanted: RulerArguments,
    room: int,
    draw: SampleDraw,
    step: int,
    first: int | None = None,
    most: Callable[[float], int] | None = None,
    before: Callable[[str], str] = lambda text: text,
    extra: int = 0,
) -> Iterator[tuple[str, list[str]]]:
    """The largest size that fits, by a binary search, then samples of it; one that is too long is drawn again, smaller.

    Args:
        wanted: length and tokens.
        room: tokens of the answer.
        draw: what makes a prompt.
        step: least size, and what is taken off a size that does not fit.
        first: size by which the tokens of a unit are estimated; None: `step`.
        most: from the tokens of a unit to the largest size; None: three times what fits.
        before: what changes a sample's prompt after the search.
        extra: tokens that this adds.
    """
    space = wanted.length - wanted.framing
    # This draw and those of the search below are part of the official stream of random numbers: none may be left out.
    each = wanted.count(draw(first or step, 0)[0]) / (first or step)
    low, high = step, max(int((space / each) * 3) if most is None else most(each), step * 2)
    size = step
    # Upstream since 2025-06-03 (before: linear); another search draws other numbers for every sample after it.
    while low <= high:
        middle = (low + high) // 2
        if wanted.count(draw(middle, 0)[0]) + extra + room <= space:
            size, low = middle, middle + 1
        else:
            high = middle - 1
    for index in itertools.count():
        used = size
        for _ in range(MAX_SAMPLE_TRIES):
            try:
                text, outputs = draw(used, index)
                text = before(text)
            except ValueError:  # a sample larger than what it is drawn from
                text = None
            if text is not None and wanted.count(text) + room <= space:
                yield text, outputs
                break
            # A sample that is too long is drawn again with less, by the same stream.
            used -= step if used > step else 0
        else:
            raise Refused(f"RULER's {wanted.part} does not fit in {wanted.length} tokens: raise length")


def _niah_rows(wanted: RulerArguments, arguments: Mapping[str, Any], template: str) -> Iterator[tuple[str, list[str]]]:
    rng = random.Random(wanted.random_seed)
    kind, key_kind, value_kind = (arguments[f"type_{name}"] for name in ("haystack", "needle_k", "needle_v"))
    values, queries = arguments["num_needle_v"], arguments["num_needle_q"]
    keys = max(arguments["num_needle_k"], queries)
    stated = assigned_literals(wanted.folder / "niah.py")
    needle = stated["needle"]
    words = (
        _WordPairs(_read_words("adjectivelist.txt"), _read_words("nounlist.txt"))
        if "words" in (key_kind, value_kind)
        else ()
    )
    essay = _read_essay(wanted.folder) if kind == "essay" else []

    def new(what: str) -> str:
        if what == "numbers":
            return str(rng.randint(10**6, 10**7 - 1))
        return rng.choice(words) if what == "words" else str(uuid.UUID(int=rng.getrandbits(128), version=4))

    def draw(size: int, _: int) -> tuple[str, list[str]]:
        named: list[tuple[str, list[str]]] = []
        for _ in range(keys):
            key = new(key_kind)
            named.append((key, [new(value_kind) for _ in range(values)]))
        needles = [
            needle.format(type_needle_v=value_kind, key=key, value=value) for key, held in named for value in held
        ]
        # Officially a fresh generator for each sample: the same permutation again and again.
        random.Random(wanted.random_seed).shuffle(needles)
        if kind == "essay":
            text = " ".join((essay * -(-size // len(essay)))[:size])
            context = _insert_among_sentences(text, needles, rng)
        else:
            lines = [stated["haystack"]] * size
            if kind == "needle":
                lines = [
                    needle.format(type_needle_v=value_kind, key=new(key_kind), value=new(value_kind))
                    for _ in range(size)
                ]
            places = sorted(rng.sample(range(size), len(needles)), reverse=True)
            for place, said in zip(places, needles, strict=True):
                lines.insert(place, said)
            context = "\n".join(lines)
        chosen = [named[i] for i in rng.sample(range(keys), queries)]
        asked = [key for key, _ in chosen]
        query = ", ".join(asked[:-1]) + ", and " + asked[-1] if len(asked) > 1 else asked[0]
        wording, noun = template, value_kind
        if queries * values == 1:
            # Upstream's replacements over the whole template, in this order.
            for old, singular in (("Some", "A"), ("are all", "is"), ("are", "is"), ("answers", "answer")):
                wording = wording.replace(old, singular)
            noun = value_kind[:-1]
        return wording.format(type_needle_v=noun, context=context, query=query), [v for _, held in chosen for v in held]

    step = 500 if kind == "essay" else 25 if wanted.length >= 4096 else 5
    return _sample_fitting_rows(wanted, arguments["tokens_to_generate"], draw, step)


def _insert_among_sentences(text: str, needles: Sequence[str], rng: random.Random) -> str:
    from nltk.tokenize import sent_tokenize  # loads in a second

    sentences = sent_tokenize(text.strip())
    places = sorted(int(len(sentences) * (depth / 100)) for depth in rng.sample(NEEDLE_DEPTHS_PERCENT, len(needles)))
    pieces = []
    for start, end, needle in zip([0, *places], places, needles, strict=False):
        pieces += [" ".join(sentences[start:end]), needle]
    return " ".join([*pieces, " ".join(sentences[places[-1] :])])


def _variable_tracking_rows(
    wanted: RulerArguments, arguments: Mapping[str, Any], template: str
) -> Iterator[tuple[str, list[str]]]:
    if arguments["type_haystack"] != "noise":
        raise Refused("RULER's vt is made here with noise only: run the checkout's prepare.py, and give its folder")
    rng, numbers = random.Random(wanted.random_seed), np.random.RandomState(wanted.random_seed)
    chains, hops = arguments["num_chains"], arguments["num_hops"]
    noise = assigned_literals(wanted.folder / "variable_tracking.py")["haystack"]

    def name(letters: int) -> str:
        return "".join(rng.choices(string.ascii_uppercase, k=letters))

    def number() -> str:
        return str(numbers.randint(10000, 99999))

    def drawn(size: int, example: bool) -> tuple[str, list[str]]:
        length = min(10, hops) if example else hops
        letters = 3 if example else 5
        names = [name(letters) for _ in range((length + 1) * chains)]
        # Appended, not replaced: the rows then do not come out even, and the sample fails below, as upstream.
        while len(set(names)) < chains * (length + 1):
            names.append(name(letters))
        rows = [names[i : i + length + 1] for i in range(0, len(names), length + 1)]
        lines = [noise] * size
        first = ""
        for row in rows:
            value = "12345" if example else number()
            first = first or value
            if len(row) <= length:  # a name occurred twice: the official code fails here, and draws the sample again
                raise ConfigError(f"RULER's {wanted.part} cannot be made with this seed: take another one")
            chain = [f"VAR {row[0]} = {value}", *(f"VAR {b} = VAR {a} " for a, b in itertools.pairwise(row))]
            places = sorted(rng.sample(range(len(lines)), len(chain)))
            for shift, (place, said) in enumerate(zip(places, chain, strict=True)):
                lines.insert(place + shift, said)
        context = "\n".join(lines).replace(". \n", ".\n")
        return template.format(context=context, query=first, num_v=hops + 1), rows[0]

    # the worked example: the official code searches its size in 500 tokens, without room for an answer
    text, outputs = next(_sample_fitting_rows(replace(wanted, length=500), 0, lambda size, _: drawn(size, True), 5))
    example = f"{text} {' '.join(outputs)}\n"
    start = arguments["template"][:20]

    def before(text: str) -> str:
        shown = example
        for item in example.strip().split()[-hops - 1 :]:
            shown = shown.replace(item, name(len(item)))
        shown = shown.replace("12345", number())
        cut = text.index(start)
        return f"{text[:cut]}{shown}\n{text[cut:]}"

    room, step = arguments["tokens_to_generate"], 10 if wanted.length >= 4096 else 5
    added = wanted.count(example)
    return _sample_fitting_rows(wanted, room, lambda size, _: drawn(size, False), step, before=before, extra=added)


def _common_words_rows(
    wanted: RulerArguments, arguments: Mapping[str, Any], template: str
) -> Iterator[tuple[str, list[str]]]:
    rng = random.Random(wanted.random_seed)
    few = sorted({*_read_words("nounlist.txt"), *_read_words("adjectivelist.txt"), *_read_words("verblist.txt")})
    random.Random(wanted.random_seed).shuffle(few)
    many: list[str] = []
    common = arguments["num_cw"]

    def listed(words: int, often: int, seldom: int) -> tuple[str, list[str]]:
        if words > len(few) and not many:
            many.extend(_read_json(wanted.folder / "json/english_words.json", dict).values())
        drawn = rng.sample(few if words <= len(few) else many, words)
        said = drawn[:common] * often + drawn[common:] * seldom
        random.Random(wanted.random_seed).shuffle(said)
        return " ".join(f"{i}. {word}" for i, word in enumerate(said, 1)), drawn[:common]

    # Below 4096 tokens upstream makes the task easier: fewer repetitions, a shorter example.
    small = wanted.length < 4096
    shape = (6, 1) if small else (arguments["freq_cw"], arguments["freq_ucw"])

    def draw(size: int, _: int) -> tuple[str, list[str]]:
        shown, answers = listed(20, 3, 1) if small else listed(40, 10, 3)
        context, outputs = listed(size, *shape)
        numbered = " ".join(f"{i}. {word}" for i, word in enumerate(answers, 1))
        example, asked = (template.format(num_cw=common, context=each, query="") for each in (shown, context))
        return f"{example} {numbered}\n{asked}", outputs

    space = wanted.length - wanted.framing
    room = arguments["tokens_to_generate"]
    return _sample_fitting_rows(wanted, room, draw, 10, first=4096, most=lambda each: int(space // each) * 2)


def _frequent_words_rows(
    wanted: RulerArguments, arguments: Mapping[str, Any], template: str
) -> Iterator[tuple[str, list[str]]]:
    rng = random.Random(wanted.random_seed)
    space = wanted.length - wanted.framing - arguments["tokens_to_generate"]
    size, step, alpha = space // 50, space // 32, float(arguments["alpha"])
    if size < 4:
        raise Refused(f"RULER's fwe does not fit in {wanted.length} tokens: raise length")

    def coded() -> list[str]:
        vocabulary: list[str] = []
        while len(vocabulary) < size or len(set(vocabulary)) < size:
            vocabulary.append("".join(rng.choices(string.ascii_lowercase, k=6)))
        vocabulary = sorted(set(vocabulary))
        random.Random(wanted.random_seed).shuffle(vocabulary)
        return ["...", *vocabulary[1:]]

    def text(vocabulary: Sequence[str], words: int) -> str:
        counts = (words * (np.arange(1, len(vocabulary) + 1) ** -alpha) / zeta(alpha)).astype(int)
        said = [word for word, count in zip(vocabulary, counts.tolist(), strict=True) for _ in range(count)]
        random.Random(wanted.random_seed).shuffle(said)
        return template.format(context=" ".join(said), query="")

    words, vocabulary = space // 6, coded()
    # Linear, as upstream: fwe has no binary search.
    while wanted.count(text(vocabulary, words)) < space:
        words += step
    words -= step
    while True:
        vocabulary, used = coded(), words
        while wanted.count(said := text(vocabulary, used)) > space:
            used -= step
        yield said, vocabulary[1:4]


def _question_rows(
    wanted: RulerArguments, arguments: Mapping[str, Any], template: str
) -> Iterator[tuple[str, list[str]]]:
    rng = random.Random(wanted.random_seed)
    read = _read_squad if arguments["dataset"] == "squad" else _read_hotpotqa
    asked, documents = read(wanted.folder)
    title = assigned_literals(wanted.folder / "qa.py")["DOCUMENT_PROMPT"]

    def draw(size: int, index: int) -> tuple[str, list[str]]:
        if index >= len(asked):
            raise Refused(f"RULER's {wanted.part} has {len(asked)} questions: lower n")
        question, outputs, own, near = asked[index]
        if size >= len(documents):
            shown = (documents * -(-size // len(documents)))[:size]
        else:
            places = [*own, *near]
            if size - len(own) > len(near):
                used = set(places)
                others = [i for i in range(len(documents)) if i not in used]
                places += rng.sample(others, max(0, size - len(places)))
            else:
                places = [*own, *rng.sample(near, size - len(own))]
            shown = [documents[place] for place in places]
        # One permutation for all samples: with equally many documents the gold one stands at the same place in each.
        random.Random(wanted.random_seed).shuffle(shown)
        context = "\n\n".join(title.format(i=i, document=document) for i, document in enumerate(shown, 1))
        return template.format(context=context, query=question), outputs

    return _sample_fitting_rows(wanted, arguments["tokens_to_generate"], draw, 10)


QuestionWithPlaces = tuple[str, list[str], list[int], list[int]]
"""Question, answers, places of its own documents, places of those of the same article."""


def _read_squad(folder: Path) -> tuple[list[QuestionWithPlaces], list[str]]:
    articles = _read_json(folder / "json/squad.json", dict)["data"]
    documents = sorted({each["context"] for article in articles for each in article["paragraphs"]})
    place = {document: i for i, document in enumerate(documents)}
    asked: list[QuestionWithPlaces] = []
    for article in articles:
        # Upstream fills with paragraphs of the same article first.
        near = [place[each["context"]] for each in article["paragraphs"]]
        for each in article["paragraphs"]:
            own = place[each["context"]]
            asked += [
                (qa["question"], [said["text"] for said in qa["answers"]], [own], [i for i in near if i != own])
                for qa in each["qas"]
                if not qa["is_impossible"]
            ]
    return asked, documents


def _read_hotpotqa(folder: Path) -> tuple[list[QuestionWithPlaces], list[str]]:
    rows = _read_json(folder / "json/hotpotqa.json", list)
    known = [[f"{title}\n{''.join(text)}" for title, text in row["context"]] for row in rows]
    documents = sorted(set(itertools.chain.from_iterable(known)))
    place = {document: i for i, document in enumerate(documents)}
    return [
        (row["question"], [row["answer"]], [place[each] for each in own], [])
        for row, own in zip(rows, known, strict=True)
    ], documents


def _read_json(file: Path, kind: type) -> Any:
    """A file of the checkout; ConfigError if it is not what its download gives, such as a pointer of Git LFS."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except ValueError:
        found = None
    if not isinstance(found, kind):
        raise ConfigError(
            f"{file} must hold a JSON {kind.__name__}: run the downloads of RULER's README, and git lfs pull"
        )
    return found


def _read_essay(folder: Path) -> list[str]:
    return re.sub(r"\s+", " ", _read_json(folder / "json/PaulGrahamEssays.json", dict)["text"]).split(" ")


def _word_list_file(name: str) -> Path:
    """A word list of the package wonderwords, which is not imported; Refused without it."""
    found = importlib.util.find_spec("wonderwords")
    for folder in (found.submodule_search_locations or ()) if found else ():
        if (place := Path(folder) / "assets" / name).is_file():
            return place
    raise Refused("RULER's words are those of the package wonderwords: pip install wonderwords")


def _read_words(name: str) -> list[str]:
    with _word_list_file(name).open(encoding="utf-8") as lines:
        return [line.rstrip() for line in lines]


def _punkt_files() -> list[Path]:
    import nltk  # loads in a second

    try:
        folder = Path(nltk.data.find("tokenizers/punkt_tab/english"))
    except LookupError:
        raise Refused("RULER's essays are cut by nltk's punkt_tab: python -m nltk.downloader punkt_tab") from None
    return sorted(place for place in folder.iterdir() if place.is_file())


class _WordPairs(Sequence[str]):
    """`sorted({f"{a}-{b}" for a in firsts for b in seconds})`, without holding its six million words.

    Words with one first part stand together, unless another first part begins with it: these are sorted as one group.
    """

    def __init__(self, firsts: Sequence[str], seconds: Sequence[str]) -> None:
        self._seconds = sorted(set(seconds))
        self._groups: list[list[str]] = []
        for first in sorted(f"{each}-" for each in set(firsts)):
            if self._groups and first.startswith(self._groups[-1][0]):
                self._groups[-1].append(first)
            else:
                self._groups.append([first])
        sizes = [len(self._sorted_group(group) if len(group) > 1 else self._seconds) for group in self._groups]
        self._ends = list(itertools.accumulate(sizes))

    def _sorted_group(self, group: Sequence[str]) -> list[str]:
        return sorted({first + second for first in group for second in self._seconds})

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, place: Any) -> Any:
        found = bisect.bisect_right(self._ends, place)
        inside = place - (self._ends[found - 1] if found else 0)
        group = self._groups[found]
        return group[0] + self._seconds[inside] if len(group) == 1 else self._sorted_group(group)[inside]


ROW_MAKER_OF_TASK = {
    "niah": _niah_rows,
    "variable_tracking": _variable_tracking_rows,
    "common_words_extraction": _common_words_rows,
    "freq_words_extraction": _frequent_words_rows,
    "qa": _question_rows,
}
