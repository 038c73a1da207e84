"""Make a reference pack: ask the checkpoint under every setup.

What the checkpoint's own rounding makes of the texts, in bfloat16 and with 8-bit activations, is asked like a server.
Setups that then cannot be told from the first are measured once more, on texts of 8 times the length: there angles that
are slightly off have moved further, while rounding is the same.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from lexbench.core import registry
from lexbench.core.console import Lines, must_hide_bar
from lexbench.core.errors import ConfigError
from lexbench.core.files import check_writable, write_bytes
from lexbench.core.model import Model
from lexbench.core.record import Refused
from lexbench.core.task import AnyQuestion, Loglikelihood, Tokens
from lexbench.core.version import __version__
from lexbench.methods.composition import method_entries
from lexbench.parts.serving.identify.identify import blocks_per_text, identify
from lexbench.parts.serving.identify.pack import (
    MAX_PACK_BYTES,
    PACK_FORMAT_VERSION,
    ReferencePack,
    continue_texts,
    pack_bytes,
    text_losses,
)
from lexbench.parts.serving.identify.setups import AttentionSetup, possible_setups
from lexbench.runner.backend_pool import backend_for_job
from lexbench.runner.job import Job
from lexbench.stats.wording import count_with_noun

DEFAULT_TEXT_TOKENS = 512
"""Usual tokens of a text, where twice the trained length is not less."""
DEFAULT_N_TEXTS = 16
N_OPENING_TARGETS = 16
"""Targets at the beginning of a text, where a BOS that is lost or a header too many shows."""
N_WRITTEN_TOKENS = 16
"""Tokens that are written in place of each text's last ones."""
LONGER_TEXT_FACTOR = 8
"""Length of longer texts, in lengths of the others; at most the trained length."""
TEXTS_PER_LONGER_TEXT = 4
"""Texts for each longer text; there are two longer ones at least."""
MIN_COMPRESSED_SHARE = 0.75
"""Share that compression leaves of likelihoods in 16 bits, at least."""


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

    def measured(wanted: Sequence[AttentionSetup], length: int, n: int, opening: int, room: int) -> ReferencePack:
        job = Job.of(
            model=model,
            methods=method_entries(["none"]),
            tasks=[{**registry.read_named_config("task", "last_segment"), "name": "last_segment"}],
            corpus=corpus,
            backend=backend,
            lengths=[length],
            multiples=None,
            n=n,
            seeds=[seed],
            results=None,
        )
        return _measure_pack(job, config, wanted, opening, room)

    wanted, part = possible_setups(model, length), length // 4
    n, opening = DEFAULT_N_TEXTS if n is None else n, min(N_OPENING_TARGETS, part)
    if n == 1 and blocks_per_text(1, length - length // 2) == 1:
        raise ConfigError(f"one text of {length} tokens leaves no error to estimate: give n=2 at least")
    if out.is_dir():
        raise ConfigError(f"{out} is a folder: give --out a file, e.g. --out {out / 'model.npz'}")
    check_writable("--out", out, "give another --out")
    # Bytes of a text: 2 for each target under each setup but the first, compressed.
    least = MIN_COMPRESSED_SHARE * 2 * (len(wanted) - 1) * (opening + length - length // 2)
    if n * least > MAX_PACK_BYTES:
        fewer = f"n={MAX_PACK_BYTES // least:.0f} at most, or " if least <= MAX_PACK_BYTES else ""
        raise ConfigError(_too_large_message(n * least, f"give {fewer}a shorter length"))
    made = measured(wanted, length, n, opening, min(N_WRITTEN_TOKENS, part))
    rounded = [identify(made, made.nll[0] + noise) for noise in made.noise]
    # What the checkpoint's own rounding may be taken for.
    near = {made.labels[0], *(label for found in rounded for label in (found.verdict, *found.alike))}
    among = [each for each in possible_setups(model, longer) if each.label in near] if longer > length else []
    if len(among) > 1:
        made = replace(made, longer=measured(among, longer, max(2, len(made.tokens) // TEXTS_PER_LONGER_TEXT), 0, 0))
    content = pack_bytes(made)
    if len(content) > MAX_PACK_BYTES:
        raise ConfigError(_too_large_message(len(content), "lower n or length"))
    write_bytes(out, content)
    return made


def _too_large_message(size: float, remedy: str) -> str:
    return f"the pack has {size / 1e6:.2f} MB, it must have at most {MAX_PACK_BYTES / 1e6:.2f}: {remedy}"


def _measure_pack(
    job: Job, config: Mapping[str, Any], wanted: Sequence[AttentionSetup], opening: int, room: int
) -> ReferencePack:
    """A pack of the texts of a job, without longer ones."""
    from lexbench.backends.hf.backend import Hf  # torch is loaded only where a pack is made
    from lexbench.backends.hf.mistakes import change_angles, rotate_wrong_pairs, round_to_eight_bits

    [length], [seed] = job.lengths, job.seeds
    targets = opening + length - length // 2
    with backend_for_job(job.model, config, length) as loaded:
        assert isinstance(loaded, Hf), "checked before"
        texts = np.stack(
            [_tokens_of_question(each) for each in job.tasks[0].obj.questions(loaded.tokenizer, length, job.n, seed)]
        )
        found, labels = [], []
        lines = Lines(f"fingerprint: {len(wanted)} setups on {count_with_noun(len(texts), 'text')} of {length} tokens")
        for done, each in enumerate(tqdm(wanted, f"setups, {length} tokens", disable=must_hide_bar())):
            lines.show(f"{done} of {len(wanted)} setups", due=False, done=done, left=len(wanted) - done)
            try:
                loaded.attend(each.attention)
                if each.mispaired:
                    rotate_wrong_pairs(loaded)
                with change_angles(loaded, each.rounded, each.chunk):
                    found.append(text_losses(loaded, texts, opening, targets))
                labels.append(each.label)
            except Refused:
                if not found:
                    raise
        # Noise is measured under the first setup, as the config says.
        loaded.attend(wanted[0].attention)
        with round_to_eight_bits(loaded):
            rounded = [text_losses(loaded, texts, opening, targets)]
        behind = continue_texts(loaded, texts, room) if room else np.empty((len(texts), 0), np.int64)
        about = {
            "format": PACK_FORMAT_VERSION,
            "lexbench": __version__,
            "model": job.model.name,
            "revision": loaded.revision,
            "version": loaded.version,
            "vocabulary": loaded.tokenizer.vocabulary,
            "corpus": job.corpus.label,
            "labels": labels,
            "opening": opening,
        }
    with backend_for_job(job.model, {**config, "dtype": "bfloat16"}, length) as other:
        rounded.append(text_losses(other, texts, opening, targets))
    nll = np.stack(found)
    return ReferencePack(about=about, tokens=texts, nll=nll, noise=np.stack(rounded) - nll[0], written=behind)


def _tokens_of_question(question: AnyQuestion) -> Tokens:
    assert isinstance(question, Loglikelihood)
    return question.tokens
