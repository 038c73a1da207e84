"""The page of methods by family: `python -m tools.methods_page` writes results/methods_by_model.md (two minutes)."""

import re
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lexbench import Refused
from lexbench.backends.hf import Hf
from lexbench.methods.composition import changing_methods, named_method
from lexbench.methods.scaled import ROPE_STARTS, attention_of
from tests.scaled import families
from tests.scaled.families import FAMILIES, LENGTH
from tests.scaled.oracle import Oracle

PAGE = Path(__file__).parents[1] / "results" / "methods_by_model.md"
METHODS = changing_methods()
TOKENS = np.random.default_rng(1).integers(4, 95, LENGTH)
TOLERANCE = 1e-4
"""Deviation of logits as a share of their spread, in float32."""
HEAD = f"""# Methods by model

Which of the {len(METHODS)} methods run on a model whose RoPE is scaled already, whose kinds of layers have a RoPE each,
or whose layers do not all rotate. Every number is counted on a tiny random model of the family, at twice its trained
length, with the default parameters of each method: a method counts if the logits are those of dense attention that
a test writes from the formulas. The rule is in [Methods](../docs/methods.md#models-whose-rope-is-scaled).

| family | RoPE | over=scaled | over=plain | refused |
| --- | --- | --- | --- | --- |
"""


@dataclass(frozen=True)
class Found:
    """What came of a method."""

    error: float | None = None
    """Deviation from the oracle, as a share of the logits' spread."""
    refused: str = ""

    @property
    def right(self) -> bool:
        return self.error is not None and self.error <= TOLERANCE


def ask(hf: Hf, oracle: Oracle, name: str, over: str) -> Found:
    """Compare a method's logits with the oracle's."""
    try:
        hf.attend(attention_of(named_method(name, over=over), hf.model, LENGTH))
        given = hf.logits(TOKENS, [LENGTH], LENGTH).double()
    except Refused as refusal:
        return Found(refused=refusal.reason)
    oracle.set(name, over)
    expected = oracle.logits(TOKENS)
    return Found(float((given - expected).std() / expected.std()))


def asked(family: str, folder: Path) -> dict[str, dict[str, Found]]:
    """What came of every method, over both."""
    saved = families.save(folder, family)
    hf, oracle = families.opened(saved), Oracle(saved, FAMILIES[family])
    try:
        return {over: {name: ask(hf, oracle, name, over) for name in METHODS} for over in ROPE_STARTS}
    finally:
        oracle.close()


def row(family: str, found: dict[str, dict[str, Found]]) -> str:
    """The line of a family."""
    counts = [str(sum(each.right for each in found[over].values())) for over in ROPE_STARTS]
    reasons: dict[str, list[str]] = {}
    for over in ROPE_STARTS:
        for name, each in found[over].items():
            if each.refused:
                reasons.setdefault(re.sub(r"\bm\b", "the model", each.refused), []).append(f"{name} over={over}")
    why = "; ".join(f"{', '.join(names)}: {reason}" for reason, names in reasons.items())
    return f"| {family} | {_rope(family)} | {' | '.join(counts)} | {why.replace('|', '/')} |"


def _rope(family: str) -> str:
    """What its config and its code state, in a few words."""
    what = FAMILIES[family]
    stated = what.changes["rope_parameters"]
    kinds = stated.values() if what.by_kind else [stated]
    words = [", ".join(f"{each['rope_type']}" for each in kinds)]
    words += ["one for each kind of layers"] if what.by_kind else []
    words += ["partial"] if what.changes.get("rope_parameters", {}).get("partial_rotary_factor") else []
    words += ["decoupled (MLA)"] if what.offset else []
    words += ["sliding layers" if "sliding_window" in what.changes else "chunked layers"] if what.windows else []
    words += ["layers without positions"] if what.without else []
    return "; ".join(words)


def rows() -> dict[str, str]:
    """The lines that the page holds, by family."""
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    return {line.split("|")[1].strip(): line for line in lines[2:]}


def write() -> None:
    """Ask all families, and write the page."""
    lines = []
    for family in FAMILIES:
        with tempfile.TemporaryDirectory() as folder:
            lines.append(row(family, asked(family, Path(folder) / "m")))
        print(lines[-1], file=sys.stderr, flush=True)
    PAGE.write_text(HEAD + "\n".join(lines) + "\n")


if __name__ == "__main__":
    write()
