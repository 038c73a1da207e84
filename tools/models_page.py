"""The page of all types of models: `python -m tools.models_page` writes results/models.md anew (some minutes)."""

import re
import sys
from pathlib import Path

import transformers

from tests.census import asking, tiny
from tests.census.asking import Asked, Found

PAGE = Path(__file__).parents[1] / "results" / "models.md"
HEAD = f"""# Models

Every type of causal language model in transformers {transformers.__version__}, and every multimodal type with a text
tower, was asked all kinds of questions on `backend=hf`, as a tiny random model without a method; `?` marks the types
that were not tried, with the reason. Each answer is that of the stock model: likelihoods, choices and texts are
compared with the logits of one forward pass without a cache, and probes with the model's own attention weights. What
cannot be answered so is refused with its reason. A test asks all types again.
Encoder types (`bert`, `roberta`, ...) were asked with `is_decoder=true`: as published they are refused, as not causal.

- **scores**: likelihoods and marks, each alone and in batches.
- **writes**: texts and choices, alone, in batches, and with prompts that begin alike read once (`reuse`).
- **probes**: attention statistics. *within*: of texts no longer than the windows of the model's layers; longer ones are
  refused.
- **goes on by**: what the model keeps of a prompt. Keys and values can be cut, so a common beginning is read once for
  several prompts. Its own state (recurrent, convolutional, mixed) is copied for each option of a choice. Where neither
  gives the logits of one forward pass, the whole text is read again for each token: right, and slow.

The text tower of a multimodal type is read alone, without images. Where the type does not run without an image, it is
the language model inside it (Blip-2, Kosmos-2). Two types have another image tower here, as theirs needs the timm
library (fast_vlm, perception_lm).

A real model is checked in the same way before it writes or chooses: a cache whose logits differ refuses the cell.

| type | scores | writes | goes on by | probes | refused |
| --- | --- | --- | --- | --- | --- |
"""
SCORES, WRITES = ("score", "mark"), ("write", "choose", "batched", "reused")


def row(kind: str, found: Found) -> str:
    """The line of a type."""
    groups = {"scores": SCORES, "writes": WRITES, "probes": ("near",)}
    said = {name: _said(kind, [found.asked[each] for each in inside]) for name, inside in groups.items()}
    reasons: dict[str, list[str]] = {}
    for name, reason in said.items():
        if reason:
            reasons.setdefault(reason, []).append(name)
    why = "; ".join(reason if len(names) == 3 else f"{', '.join(names)}: {reason}" for reason, names in reasons.items())
    probes = "within" if found.asked["near"].right and not found.asked["probe"].right else _mark(said["probes"])
    cells = [*(_mark(said[name]) for name in ("scores", "writes")), found.goes_on, probes, why]
    return f"| {kind} | {' | '.join(cells)} |"


def unmade(kind: str) -> str:
    """The line of a type without a tiny model."""
    return f"| {kind} | ? | ? |  | ? | not tried: {tiny.UNMADE[kind]} |"


def _mark(reason: str) -> str:
    return "-" if reason else "yes"


def _said(kind: str, asked: list[Asked]) -> str:
    """Why one of these was refused, without what differs from run to run; nothing if all are right."""
    reason = next((each.reason for each in asked if not each.right), "")
    reason = re.sub(rf"(hf cannot (read|realise probes on) |checkpoint \S*/){re.escape(kind)}:?", "", reason)
    reason = re.sub(r" \(\de[+-]\d+\)", "", reason)
    return reason.strip(" :").replace("|", "/")[:200]


def rows() -> dict[str, str]:
    """The lines that the page holds, by type."""
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    return {line.split("|")[1].strip(): line for line in lines[2:]}


def write() -> None:
    """Ask all types, and write the page."""
    lines = []
    for kind in sorted(tiny.types()):
        line = unmade(kind) if kind in tiny.UNMADE else row(kind, asking.census(kind))
        print(line, file=sys.stderr, flush=True)
        lines.append(line)
    PAGE.write_text(HEAD + "\n".join(lines) + "\n")


if __name__ == "__main__":
    write()
