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
from lexbench.core.console import Lines, without_bar
from lexbench.core.errors import ConfigError
from lexbench.core.files import check_writable, write_bytes
from lexbench.core.model import Model
from lexbench.core.record import Refused
from lexbench.core.task import AnyQuestion, Score, Tokens
from lexbench.core.version import __version__
from lexbench.methods.composition import method_entries
from lexbench.parts.serving.identify.identify import identify, parts
from lexbench.parts.serving.identify.pack import FORMAT, LARGEST, Pack, as_bytes, losses, writes
from lexbench.parts.serving.identify.setups import Setup, setups
from lexbench.runner.backend_pool import using
from lexbench.runner.job import Job
from lexbench.stats.wording import several

LENGTH = 512
"""Usual tokens of a text, where twice the trained length is not less."""
TEXTS = 16
OPENING = 16
"""Targets at the beginning of a text, where a BOS that is lost or a header too many shows."""
ROOM = 16
"""Tokens that are written in place of each text's last ones."""
TIMES = 8
"""Length of longer texts, in lengths of the others; at most the trained length."""
FEWER = 4
"""Texts for each longer text; there are two longer ones at least."""
PACKED = 0.75
"""Share that compression leaves of likelihoods in 16 bits, at least."""


def make(
    *,
    model: Model,
    corpus: Mapping[str, Any] | None,
    backend: Mapping[str, Any],
    length: int | None,
    n: int | None,
    seed: int,
    out: Path,
) -> Pack:
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
    length = length or min(2 * model.trained_length, LENGTH)
    longer = min(TIMES * length, model.trained_length)
    config = {**backend, "dtype": "float32" if backend.get("dtype", "auto") == "auto" else backend["dtype"]}

    def measured(wanted: Sequence[Setup], length: int, n: int, opening: int, room: int) -> Pack:
        job = Job.of(
            model=model,
            methods=method_entries(["none"]),
            tasks=[{**registry.read("task", "last_segment"), "name": "last_segment"}],
            corpus=corpus,
            backend=backend,
            lengths=[length],
            multiples=None,
            n=n,
            seeds=[seed],
            results=None,
        )
        return _measured(job, config, wanted, opening, room)

    wanted, part = setups(model, length), length // 4
    n, opening = TEXTS if n is None else n, min(OPENING, part)
    if n == 1 and parts(1, length - length // 2) == 1:
        raise ConfigError(f"one text of {length} tokens leaves no error to estimate: give n=2 at least")
    if out.is_dir():
        raise ConfigError(f"{out} is a folder: give --out a file, e.g. --out {out / 'model.npz'}")
    check_writable("--out", out, "give another --out")
    # Bytes of a text: 2 for each target under each setup but the first, compressed.
    least = PACKED * 2 * (len(wanted) - 1) * (opening + length - length // 2)
    if n * least > LARGEST:
        fewer = f"n={LARGEST // least:.0f} at most, or " if least <= LARGEST else ""
        raise ConfigError(_too_large(n * least, f"give {fewer}a shorter length"))
    made = measured(wanted, length, n, opening, min(ROOM, part))
    rounded = [identify(made, made.nll[0] + noise) for noise in made.noise]
    # What the checkpoint's own rounding may be taken for.
    near = {made.labels[0], *(label for found in rounded for label in (found.verdict, *found.alike))}
    among = [each for each in setups(model, longer) if each.label in near] if longer > length else []
    if len(among) > 1:
        made = replace(made, longer=measured(among, longer, max(2, len(made.tokens) // FEWER), 0, 0))
    content = as_bytes(made)
    if len(content) > LARGEST:
        raise ConfigError(_too_large(len(content), "lower n or length"))
    write_bytes(out, content)
    return made


def _too_large(size: float, remedy: str) -> str:
    return f"the pack has {size / 1e6:.2f} MB, it must have at most {LARGEST / 1e6:.2f}: {remedy}"


def _measured(job: Job, config: Mapping[str, Any], wanted: Sequence[Setup], opening: int, room: int) -> Pack:
    """A pack of the texts of a job, without longer ones."""
    from lexbench.backends.hf.backend import Hf  # torch is loaded only where a pack is made
    from lexbench.backends.hf.mistakes import eight_bits, mispair

    [length], [seed] = job.lengths, job.seeds
    targets = opening + length - length // 2
    with using(job.model, config, length) as loaded:
        assert isinstance(loaded, Hf), "checked before"
        texts = np.stack(
            [_tokens(each) for each in job.tasks[0].built.questions(loaded.tokenizer, length, job.n, seed)]
        )
        found, labels = [], []
        lines = Lines(f"fingerprint: {len(wanted)} setups on {several(len(texts), 'text')} of {length} tokens")
        for done, each in enumerate(tqdm(wanted, f"setups, {length} tokens", disable=without_bar())):
            lines.show(f"{done} of {len(wanted)} setups", due=False, done=done, left=len(wanted) - done)
            try:
                loaded.attend(each.attention)
                if each.mispaired:
                    mispair(loaded)
                found.append(losses(loaded, texts, opening, targets))
                labels.append(each.label)
            except Refused:
                if not found:
                    raise
        # Noise is measured under the first setup, as the config says.
        loaded.attend(wanted[0].attention)
        with eight_bits(loaded):
            rounded = [losses(loaded, texts, opening, targets)]
        behind = writes(loaded, texts, room) if room else np.empty((len(texts), 0), np.int64)
        about = {
            "format": FORMAT,
            "lexbench": __version__,
            "model": job.model.name,
            "revision": loaded.revision,
            "version": loaded.version,
            "vocabulary": loaded.tokenizer.vocabulary,
            "corpus": job.corpus.label,
            "labels": labels,
            "opening": opening,
        }
    with using(job.model, {**config, "dtype": "bfloat16"}, length) as other:
        rounded.append(losses(other, texts, opening, targets))
    nll = np.stack(found)
    return Pack(about=about, tokens=texts, nll=nll, noise=np.stack(rounded) - nll[0], written=behind)


def _tokens(question: AnyQuestion) -> Tokens:
    assert isinstance(question, Score)
    return question.tokens
