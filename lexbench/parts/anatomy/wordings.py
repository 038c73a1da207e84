"""Wordings of a key: how a text states it, and how it is asked for. Three kinds, so that none stands for all."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

N_CANDIDATES = 16
"""Keys among which the right one is to be the likeliest."""
CITY_KEYS = (
    "London Paris Berlin Rome Madrid Vienna Moscow Tokyo Sydney Boston Chicago Dublin Athens Cairo Delhi Toronto"
)
COLOUR_KEYS = "red blue green yellow black white brown orange purple pink gray gold silver violet tan olive"
ANIMAL_KEYS = "dog cat horse cow pig sheep goat lion tiger bear wolf fox mouse rabbit bird snake"
NAME_KEYS = "John Mary Peter Anna Paul Sarah David Laura Mark Emma James Alice Robert Helen Thomas Kate"


@dataclass(frozen=True)
class Wording:
    """A statement of a key, and a text that ends where the key follows; {key} stands for it."""

    name: str
    kind: str
    """sentence: digits behind a word; code: digits in code; word: one word of sixteen."""
    statement: str
    question: str
    answer: str = " {key}"
    """Text behind the question."""
    words: str = ""
    """Keys; empty: numbers."""
    digits: int = 5

    def draw(self, rng: np.random.Generator) -> list[str]:
        """Candidates in random order, no two alike; numbers begin with every digit but 0."""
        if self.words:
            return [str(each) for each in rng.permutation(self.words.split())]
        low = 10 ** (self.digits - 1)
        found = [int(first) * low + int(rng.integers(low)) for first in range(1, 10)]
        while len(found) < N_CANDIDATES:
            drawn = int(rng.integers(low, 10 * low))
            found += [] if drawn in found else [drawn]
        return [str(each) for each in rng.permutation(found)]


sentence, code = partial(Wording, kind="sentence"), partial(Wording, kind="code", digits=3)
word = partial(Wording, kind="word")
KEY_WORDINGS: Sequence[Wording] = (
    sentence(
        name="pass",
        statement=" The pass key is {key}. Remember it. {key} is the pass key.",
        question="\nWhat is the pass key? The pass key is",
    ),
    sentence(
        name="safe",
        statement="\nThe code of the safe is {key}. Do not forget it.\n",
        question="\nTo open the safe, enter its code. The code of the safe is",
    ),
    sentence(
        name="secret",
        statement=" The secret key is {key}. Remember it. {key} is the secret key.",
        question="\nWhat is the secret key? The secret key is",
    ),
    sentence(
        name="invoice",
        statement="\nThe number of the unpaid invoice is {key}.\n",
        question="\nPlease pay it soon. The number of the unpaid invoice is",
    ),
    code(name="assign", statement="\npass_key = '{key}'\n", question="\nassert pass_key == '", answer="{key}"),
    code(name="port", statement="\nSERVER_PORT = {key}\n", question="\nassert SERVER_PORT =="),
    code(
        name="returns",
        statement="\ndef upper_limit():\n    return {key}\n",
        question="\nassert upper_limit() ==",
    ),
    code(
        name="field",
        statement='\n{{"user": "anna", "badge": {key}}}\n',
        question='\nassert users["anna"] == {{"user": "anna", "badge":',
    ),
    word(
        name="city",
        statement="\nAnna lives in {key}.\n",
        question="\nWhere does Anna live? Anna lives in",
        words=CITY_KEYS,
    ),
    word(
        name="colour",
        statement="\nThe colour of the door is {key}.\n",
        question="\nIt is easy to find. The colour of the door is",
        words=COLOUR_KEYS,
    ),
    word(
        name="animal",
        statement="\nThe animal in the garden was a {key}.\n",
        question="\nWhat did they see? The animal in the garden was a",
        words=ANIMAL_KEYS,
    ),
    word(
        name="guard",
        statement="\nThe name of the night guard is {key}.\n",
        question="\nWho is on duty? The name of the night guard is",
        words=NAME_KEYS,
    ),
)
