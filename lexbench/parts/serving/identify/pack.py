"""A reference pack: texts, and their log-probabilities under each setup of a checkpoint, in one file.

A numpy archive (`.npz`, nothing in it is executed), about 10 KB a setup:

    about     JSON: format, model, vocabulary, labels of the setups, clusters, versions, noise
    tokens    [texts, length] ids
    nll       [texts, targets] nats under the first setup, float32; of the first `opening` tokens behind the very first,
              and of the last half
    changes   [setups - 1, texts, targets] nats more under the others, float16
    noise     [kinds, texts, targets] nats that the first setup moves by in bfloat16 and with 8-bit activations, float16
    written   [texts, room] ids that the checkpoint writes in place of each text's last ones; -1 where it has ended

The first five stand once more as `longer_about`, ... where these texts do not tell all setups from the first: longer
texts, under those setups only. Format 1 had no opening, no written ids, and the larger noise only; format 2 no longer
texts. Both are read as before.
"""

import io
import json
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lexbench.backends import Backend
from lexbench.core.errors import ConfigError
from lexbench.core.record import Refused
from lexbench.core.task import Score, Scored, Tokens, Write, Written
from lexbench.runner.answers import answers

FORMAT = 3
LARGEST, LARGEST_UNPACKED = 1 << 20, 1 << 26
"""Bytes of a pack, at most, and of its parts; those of 100 setups on 32,768 targets take 10 MB."""
LONGER = "longer_"
"""Before the names of the parts of longer texts."""

Nats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, eq=False)
class Pack:
    """What a file holds."""

    about: Mapping[str, Any]
    tokens: Tokens
    nll: Nats
    """[setups, texts, targets] nats."""
    noise: Nats
    """[kinds, texts, targets] nats."""
    written: Tokens
    """[texts, room] ids; -1: none. No room in format 1, and in longer texts."""
    longer: "Pack | None" = None
    """Longer texts under the setups that these texts do not tell from the first."""

    @property
    def labels(self) -> list[str]:
        """Names of the setups."""
        return list(self.about["labels"])

    @property
    def opening(self) -> int:
        """Targets at the beginning of a text; the others are at its end."""
        return int(self.about.get("opening", 0))

    @property
    def length(self) -> int:
        """Tokens of a text."""
        return int(self.tokens.shape[1])

    @property
    def longest(self) -> int:
        """Tokens of its longest text."""
        return self.length if self.longer is None else max(self.length, self.longer.longest)

    def asked(self, backend: Backend) -> Nats:
        """[texts, targets] nats of a served model; Refused where one is not finite."""
        return losses(backend, self.tokens, self.opening, self.nll.shape[2])

    def of_texts(self, nll: Nats) -> Nats:
        """[texts, targets] of nats [texts, length - 1], those of all tokens but the first."""
        return _targets(nll, self.opening, self.nll.shape[2])


def _targets(nll: Nats, opening: int, targets: int) -> Nats:
    """The first and the last ones."""
    return np.concatenate([nll[:, :opening], nll[:, nll.shape[1] - (targets - opening) :]], axis=1)


def scored(tokens: Tokens, start: int) -> Score:
    """A question for the nats of tokens[start:]."""
    return Score(index=0, cluster="", tokens=tokens, start=start, bytes=0, words=0)


def losses(backend: Backend, texts: Tokens, opening: int, targets: int) -> Nats:
    """[texts, targets] nats of the first tokens behind the very first, and of the last; Refused where not finite."""
    start = 1 if opening else texts.shape[1] - targets
    return _targets(nats(backend, [scored(row, start) for row in texts]), opening, targets)


def nats(backend: Backend, questions: Sequence[Score]) -> Nats:
    """[questions, targets] nats; Refused where one is not finite."""
    found = []
    for answer in answers(backend, questions):
        assert isinstance(answer, Scored)
        found.append(answer.nll.astype(np.float64))
    nll = np.stack(found)
    if not np.isfinite(nll).all():
        raise Refused(f"{backend.name} gave likelihoods that are no numbers: it serves nothing that can be named")
    return nll


def writes(backend: Backend, texts: Tokens, room: int) -> Tokens:
    """[texts, room] ids that are written in place of each text's last ones; -1 where the model has ended."""
    whole = np.full((len(texts), room), -1)
    questions = [Write(index=index, cluster="", prompt=row[:-room], room=room) for index, row in enumerate(texts)]
    for row, answer in zip(whole, answers(backend, questions), strict=True):
        assert isinstance(answer, Written)
        # -1 stays where the model ended before its room was full.
        row[: len(answer.tokens)] = answer.tokens
    return whole


def as_bytes(pack: Pack) -> bytes:
    """The file's content; the same pack gives the same bytes."""
    parts = _parts(pack)
    parts |= {} if pack.longer is None else {f"{LONGER}{name}": part for name, part in _parts(pack.longer).items()}
    content = io.BytesIO()
    # The parts carry no time: numpy opens them by name, and zipfile dates such parts 1980.
    np.savez_compressed(content, allow_pickle=False, **parts)
    return content.getvalue()


def _parts(pack: Pack) -> dict[str, NDArray[Any]]:
    return {
        "about": np.frombuffer(json.dumps(pack.about, sort_keys=True).encode(), np.uint8),
        "tokens": pack.tokens.astype(np.int32),
        "nll": pack.nll[0].astype(np.float32),
        "changes": (pack.nll[1:] - pack.nll[:1]).astype(np.float16),
        "noise": pack.noise.astype(np.float16),
        "written": pack.written.astype(np.int32),
    }


def read(file: Path) -> Pack:
    """Read a pack; ConfigError for anything else."""
    if file.is_dir():
        raise ConfigError(f"fingerprint {file} is a folder: give the file that lexbench fingerprint --out has written")
    try:
        if file.stat().st_size > LARGEST:
            raise ConfigError(f"it has more than {LARGEST} bytes")
        with np.load(file, allow_pickle=False) as held:
            # A part is unpacked to no more than the size that the archive states.
            if sum(part.file_size for part in held.zip.infolist()) > LARGEST_UNPACKED:
                raise ConfigError(f"its parts have more than {LARGEST_UNPACKED} bytes")
            longer = {name.removeprefix(LONGER): held[name] for name in held if name.startswith(LONGER)}
            return _whole(held, _whole(longer) if longer else None)
    except FileNotFoundError:
        raise ConfigError(f"fingerprint {file} does not exist: make it with lexbench fingerprint") from None
    except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile) as error:
        said = " ".join(f"{error}".split())[:100]
        raise ConfigError(f"{file} is no fingerprint ({said}): make it with lexbench fingerprint") from error


def _whole(held: Mapping[str, NDArray[Any]], longer: Pack | None = None) -> Pack:
    """The pack of its parts; ConfigError where they do not fit together."""
    about = json.loads(held["about"].tobytes())
    nll, changes = held["nll"].astype(np.float64), held["changes"].astype(np.float64)
    tokens, noise = held["tokens"].astype(np.int64), held["noise"].astype(np.float64)
    if about["format"] == 1:
        noise, written = noise[None], np.empty((len(tokens), 0), np.int64)
    else:
        written = held["written"].astype(np.int64)
    whole = np.concatenate([nll[None], nll + changes])
    opening = about.get("opening", 0)
    if not 1 <= about["format"] <= FORMAT or len(about["labels"]) != len(whole) or noise.shape[1:] != nll.shape:
        raise ConfigError("its parts do not fit together")
    if not len(nll) == len(tokens) == len(written) or not 0 <= opening < nll.shape[1] < tokens.shape[1]:
        raise ConfigError("its parts do not fit together")
    if not np.isfinite(whole).all():
        raise ConfigError("its likelihoods are no numbers")
    return Pack(about=about, tokens=tokens, nll=whole, noise=noise, written=written, longer=longer)
