"""Numbers in the names of checkpoints, with their units, and the order that names of one shape tell.

`stage2-ingredient1-step11000-tokens46B`: stage 2, ingredient 1, step 11,000, 46e9 tokens. A unit stands before its
number or behind it; k, M, B (or G) and T behind a number are powers of 1,000.

Order: by stage, in a stage by epoch, in an epoch by step, tokens or samples. Names without a unit are ordered by the
number in which they differ (natural order: `model-9` before `model-10`). Every other number that differs must rise
along, and the words must be the same; otherwise the names leave the order open.
"""

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal

from lexbench.core.errors import ConfigError
from lexbench.core.groups import group_by_key

WORDS_OF_UNIT = {
    "stage": "stage|phase",
    "epoch": "epoch|ep",
    "step": "step|checkpoint|ckpt|iteration|iter|update|batch|ba",
    "tokens": "token|tok",
    "samples": "sample|example",
    "run": "run|seed|ingredient|fold|trial|replica|rank|member",
}
PROGRESS_UNITS = ("step", "tokens", "samples")
"""Units that count the progress within an epoch or a stage; the first that names have decides."""
EXPONENT_OF_SCALE = {"k": 3, "m": 6, "b": 9, "g": 9, "t": 12}
"""Powers of 10 of the letters behind a number."""
MAX_PROGRESS = 10**18
"""Steps, tokens and so on are fewer: more is no count of a training."""

_WORDS = "|".join(WORDS_OF_UNIT.values())
_NUMBER = (
    r"(?P<digits{0}>\d{{1,3}}(?:[,_]\d{{3}})+(?!\d)|\d+(?:\.\d+)?(?:e\+?\d{{1,2}}(?![a-z\d]))?)"
    rf"(?P<scale{{0}}>[kmbgt](?:(?![a-z])|(?=(?:{_WORDS})s?(?![a-z]))))?"
)
NUMBER_PATTERN = re.compile(
    rf"(?<![a-z])(?P<before>{_WORDS})s?(?:[-_=. ](?P<minus>-)|[-_=. ])?{_NUMBER.format(1)}(?![a-z])"
    rf"|(?<![\d.]){_NUMBER.format(2)}[-_ ]?(?P<behind>{_WORDS})s?(?![a-z]|[-_=. ]{{0,2}}\d)"
    r"|(?<![a-z\d])(?P<digits3>\d+(?:\.\d+)?)(?P<scale3>[kmbgt])(?![a-z\d])"
    r"|(?P<digits4>\d+)",
    re.IGNORECASE,
)
MAX_SHOWN_CHARACTERS = 60
"""Characters of a name in an error."""


class OpenOrderError(Exception):
    """Names leave the order open; its text says why."""


@dataclass(frozen=True, kw_only=True)
class NameNumbers:
    """Numbers of a name.

    Args:
        units: the first value of each unit.
        others: numbers without a unit, and further ones of a unit.
        shape: the name with a sign for each number.
    """

    units: dict[str, Decimal]
    others: tuple[Decimal, ...]
    shape: str

    @property
    def step(self) -> int | None:
        """The step that a name tells beyond doubt: a step alone, or a name that is nothing but digits.

        None where it has no step, and where stages or epochs may count their steps anew.
        """
        if self.shape == "#" and not self.units:
            return int(self.others[0])
        restarts = {"stage", "epoch"} & set(self.units)
        step = self.units.get("step")
        return None if step is None or restarts or step != step.to_integral_value() else int(step)


def check_progress(value: Decimal | int, unit: str, place: str) -> None:
    """ConfigError unless a number of steps, tokens, ... is at least 0 and below `MAX_PROGRESS`."""
    if not 0 <= value < MAX_PROGRESS:
        what = "is negative" if value < 0 else "has more than 18 digits"
        shown = place if len(place) <= MAX_SHOWN_CHARACTERS else f"{place[:MAX_SHOWN_CHARACTERS]} ..."
        raise ConfigError(f"the {unit} of checkpoint {shown} {what}: a {unit} counts from 0, rename the checkpoint")


def numbers_in(name: str) -> NameNumbers:
    """Read the numbers of a name; ConfigError for a negative one with a unit, and one of `MAX_PROGRESS` or more."""
    units: dict[str, Decimal] = {}
    others: list[Decimal] = []

    def take(found: re.Match[str]) -> str:
        digits, scale = next(
            (found[f"digits{place}"], found[f"scale{place}"] if place < 4 else None)
            for place in (1, 2, 3, 4)
            if found[f"digits{place}"]
        )
        exponent = EXPONENT_OF_SCALE[scale.lower()] if scale else 0
        value = Decimal(digits.replace(",", "").replace("_", "")).scaleb(exponent)
        word = (found["before"] or found["behind"] or "").lower()
        unit = next((unit for unit, words in WORDS_OF_UNIT.items() if word in words.split("|")), None)
        if unit or digits == name:
            check_progress(-1 if found["minus"] else value, unit or "step", name)
        if unit is None or unit in units:
            others.append(value)
            return "#"
        units[unit] = value
        return f"<{unit}>"

    shape = NUMBER_PATTERN.sub(take, name)
    return NameNumbers(units=units, others=tuple(others), shape=shape)


def order_by_names(names: Sequence[str]) -> tuple[list[int], str]:
    """Places of names in the order of the training, and the rule in words; OpenOrderError where they leave it open."""
    known = [numbers_in(name) for name in names]
    if len({each.units["run"] for each in known if "run" in each.units}) > 1:
        raise OpenOrderError("the names are of several runs (run, seed or ingredient)")
    if len({"stage" in each.units for each in known}) > 1:
        raise OpenOrderError("some names have a stage and some none")
    stages = group_by_key(range(len(names)), lambda place: known[place].units.get("stage"))
    ordered: list[int] = []
    rules: list[str] = []
    for stage in sorted(stages, key=lambda stage: stage or 0):
        places, rule = _order_within_stage(names, known, stages[stage])
        ordered += places
        rules += [rule] if rule else []
    units = dict.fromkeys([*(["stage"] if len(stages) > 1 else []), *rules])
    return ordered, f"{', '.join(units) or 'number'} in the name"


def _order_within_stage(
    names: Sequence[str], known: Sequence[NameNumbers], places: Sequence[int]
) -> tuple[list[int], str]:
    """Places in their order, and the units that decide it."""
    first = places[0]
    if other := next((place for place in places if known[place].shape != known[first].shape), None):
        raise OpenOrderError(f"{names[first]} and {names[other]} differ in more than their numbers")
    progress = [unit for unit in PROGRESS_UNITS if unit in known[first].units]
    columns = {unit: {place: known[place].units[unit] for place in places} for unit in progress}
    for rank in range(len(known[first].others)):
        columns[f"number {rank + 1}"] = {place: known[place].others[rank] for place in places}
    epochs = {place: known[place].units.get("epoch", Decimal(0)) for place in places}
    differing = [name for name, column in columns.items() if len(set(column.values())) > 1]
    leading = next((name for name in differing if name in progress), None)
    if leading is None and not progress and len(set(epochs.values())) == 1:
        leading = next(iter(differing), None)
    decided = {place: (epochs[place], columns[leading][place] if leading else Decimal(0)) for place in places}
    ordered = sorted(places, key=lambda place: decided[place])
    for one, other in itertools.pairwise(ordered):
        if decided[one] == decided[other]:
            raise OpenOrderError(f"{names[one]} and {names[other]} are the same step of the training")
        restarted = epochs[one] != epochs[other]
        if falling := next((name for name in differing if columns[name][one] > columns[name][other]), None):
            if restarted and falling in progress:  # counted anew in every epoch
                continue
            raise OpenOrderError(f"from {names[one]} to {names[other]} one number rises, another falls")
    units = [*(["epoch"] if len(set(epochs.values())) > 1 else []), *([leading] if leading in progress else [])]
    return ordered, " and ".join(units) or ("number" if leading else "")
