"""Make a reference pack: ask the checkpoint under every setup.

What the checkpoint's own rounding makes of the texts, in bfloat16 and with 8-bit activations, is asked like a server.
One far text is asked under every setup, too. Setups that cannot be told from the first are measured once more, on texts
of 8 times the length: there angles that are slightly off have moved further, while rounding is the same.

Each reading of the texts is kept beside the pack until that is written, so that making it may be interrupted.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from lexbench.core.errors import ConfigError
from lexbench.core.files import check_writable, write_bytes
from lexbench.core.model import Model
from lexbench.methods.scaled import ropes_of_model
from lexbench.parts.serving.identify.identify import blocks_per_text, identify
from lexbench.parts.serving.identify.measure import TextPlan, measure_texts, texts_job
from lexbench.parts.serving.identify.pack import MAX_PACK_BYTES, ReferencePack, pack_bytes
from lexbench.parts.serving.identify.readings import KeptReadings
from lexbench.parts.serving.identify.setups import AttentionSetup, possible_setups

DEFAULT_TEXT_TOKENS = 512
"""Usual tokens of a text, where twice the trained length is not less."""
DEFAULT_N_TEXTS = 16
N_OPENING_TARGETS = 16
"""Targets at the beginning of a text, where a BOS that is lost or a header too many shows."""
N_WRITTEN_TOKENS = 16
"""Tokens that are written in place of each text's last ones."""
LONGER_TEXT_FACTOR = 8
"""Length of longer texts and of the far one, in lengths of the others, at most."""
MAX_FAR_TOKENS_SHARE = 0.5
"""Tokens of the far text, as a share of those of all others; twice a text's length are always allowed."""
TEXTS_PER_LONGER_TEXT = 4
"""Texts for each longer text; there are two longer ones at least."""
MIN_COMPRESSED_SHARE = 0.75
"""Share that compression leaves of likelihoods in 16 bits, at least."""
N_PREFIXES, N_CHAT_PREFIXES = 16, 4
"""Prefixes of a text, at most; in a chat each is read by itself."""
N_FAR_TARGETS, N_FAR_PREFIXES = 64, 4
"""Last targets and last prefixes of the far text."""


def make_pack(
    *,
    model: Model,
    corpus: Mapping[str, Any] | None,
    backend: Mapping[str, Any],
    length: int | None,
    n: int | None,
    seed: int,
    out: Path,
) -> ReferencePack:
    """Ask the checkpoint under every setup, and write the pack.

    Args:
        model: with its checkpoint.
        corpus: config of the texts; None: the usual one.
        backend: config of `hf`; its dtype is float32 if it is `auto`.
        length: tokens of a text; None: 512, at most twice the trained length.
        n: texts; None: 16.
        seed: of the texts.
        out: file to write.

    Raises ConfigError for wrong settings, Refused for a model without rotary positions.
    """
    if backend.get("name") != "hf":
        raise ConfigError(f"a fingerprint is made with backend=hf, got backend={backend.get('name')}: leave it out")
    length = length or min(2 * model.trained_length, DEFAULT_TEXT_TOKENS)
    longer = min(LONGER_TEXT_FACTOR * length, model.trained_length)
    config = {**backend, "dtype": "float32" if backend.get("dtype", "auto") == "auto" else backend["dtype"]}
    wanted, part = possible_setups(model, length), length // 4
    n, opening = DEFAULT_N_TEXTS if n is None else n, min(N_OPENING_TARGETS, part)
    if n == 1 and blocks_per_text(1, length - length // 2) == 1:
        raise ConfigError(f"one text of {length} tokens leaves no error to estimate: give n=2 at least")
    if out.is_dir():
        raise ConfigError(f"{out} is a folder: give --out a file, e.g. --out {out / 'model.npz'}")
    check_writable("--out", out, "give another --out")
    others = len(wanted) - 1
    # Bytes of a text: 2 for each target under each setup but the first, compressed.
    least = MIN_COMPRESSED_SHARE * 2 * others * (opening + length - length // 2)
    if n * least > MAX_PACK_BYTES:
        fewer = f"n={MAX_PACK_BYTES // least:.0f} at most, or " if least <= MAX_PACK_BYTES else ""
        raise ConfigError(_too_large_message(n * least, f"give {fewer}a shorter length"))
    most = N_CHAT_PREFIXES if config.get("chat") else N_PREFIXES
    prefixes = min(most, part)
    kept = KeptReadings(out.with_name(f"{out.name}.part"))

    def measured(wanted: Sequence[AttentionSetup], length: int, n: int, plan: TextPlan) -> ReferencePack:
        return measure_texts(texts_job(model, corpus, backend, length, n, seed), config, wanted, plan, kept)

    half, far = length - length // 2, far_length(model, length, n)
    made = measured(wanted, length, n, TextPlan(opening, half, prefixes, part, min(N_WRITTEN_TOKENS, part)))
    if far > length:
        plan = TextPlan(0, N_FAR_TARGETS, min(N_FAR_PREFIXES, prefixes), far - N_FAR_TARGETS, 0)
        made = replace(made, far=measured(_far_setups(model, wanted, far), far, 1, plan))
    near = _near_setups(made)
    among = [each for each in possible_setups(model, longer) if each.label in near] if longer > length else []
    if len(among) > 1:
        plan = TextPlan(0, longer - longer // 2, prefixes, longer // 2, 0)
        made = replace(made, longer=measured(among, longer, max(2, n // TEXTS_PER_LONGER_TEXT), plan))
    made, content = _content_that_fits(made, prefixes)
    write_bytes(out, content)
    kept.remove()
    return made


def far_length(model: Model, length: int, n: int) -> int:
    """Tokens of the far text: the deployed length, or less where the others are few or short.

    Under all setups it takes most of the time: so it is half as long as n texts of `length` together, or shorter.
    """
    plain = [rope.plain for rope in ropes_of_model(model)]
    deployed = max((each.max_position_embeddings or each.trained_length for each in plain), default=length)
    most = max(2 * length, int(MAX_FAR_TOKENS_SHARE * n * length))
    return min(deployed, LONGER_TEXT_FACTOR * length, most)


def _far_setups(model: Model, wanted: Sequence[AttentionSetup], far: int) -> list[AttentionSetup]:
    """The wanted setups, with angles as they are at the length of the far text, and those that only this one has."""
    there = {each.label: each for each in possible_setups(model, far)}
    return [*(there.pop(each.label, each) for each in wanted), *there.values()]


def _content_that_fits(made: ReferencePack, prefixes: int) -> tuple[ReferencePack, bytes]:
    """The pack with as many prefixes of each text as it has room for, and its file's content."""
    for count in range(prefixes, -1, -1):
        held = made.with_fewer_prefixes(count)
        content = pack_bytes(held)
        if len(content) <= MAX_PACK_BYTES:
            return held, content
    raise ConfigError(_too_large_message(len(content), "lower n or length"))


def _near_setups(made: ReferencePack) -> set[str]:
    """Labels of the setups that the checkpoint's own rounding may be taken for."""
    near = {made.labels[0]}
    for view in (made, *([] if made.prefixes is None else [made.of_prefixes()])):
        for noise in view.noise:
            found = identify(view, view.nll[0] + noise)
            near |= {found.verdict, *found.alike}
    return near


def _too_large_message(size: float, remedy: str) -> str:
    return f"the pack has {size / 1e6:.2f} MB, it must have at most {MAX_PACK_BYTES / 1e6:.2f}: {remedy}"
