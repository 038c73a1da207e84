"""A reference pack: texts, and their log-probabilities under each setup of a checkpoint, in one file.

A numpy archive (`.npz`, nothing in it is executed), about 25 KB a setup:

    about     JSON: format, model, vocabulary, labels of the setups, versions, frame of a chat
    tokens    [texts, length] ids
    nll       [texts, targets] nats under the first setup, float32; of the first `opening` tokens behind the very first,
              and of the last half
    changes   [setups - 1, texts, targets] nats more under the others, float16
    noise     [kinds, texts, targets] nats that the first setup moves by in bfloat16 and with 8-bit activations, float16
    written   [texts, tokens] ids that the checkpoint writes in place of each text's last ones; -1 where it has ended

    prefix_*  places, ids, nll, changes and noise of the likeliest tokens behind prefixes (`prefixes.py`)

All stand once more as `far_about`, ...: one text of the deployed length, or of 8 times the others' where that is less,
under all setups. And once more as `longer_about`, ... where these texts do not tell all setups from the first: longer
texts, under those setups only. Format 1 had no opening, no written ids, and the larger noise only; format 2 no longer
texts; format 3 no prefixes and no far text; format 4 no tokenizer's hash and no `checksum`, SHA-256 of all other parts.
All are read as before.
"""

import hashlib
import io
import json
import lzma
import struct
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lexbench.backends import Backend
from lexbench.core.errors import ConfigError
from lexbench.core.record import Refused
from lexbench.core.task import Generate, GenerateAnswer, Loglikelihood, LoglikelihoodAnswer, Tokens
from lexbench.parts.serving.identify.pack_checks import check_about, check_kinds, check_nats, check_shapes, one_line
from lexbench.parts.serving.identify.prefixes import PrefixReference, prefix_arrays, prefixes_of_arrays
from lexbench.runner.answers import answer_questions

PACK_FORMAT_VERSION, CHECKSUM_FORMAT = 5, 5
MAX_PACK_BYTES, MAX_UNPACKED_BYTES = 1 << 20, 1 << 26
"""Bytes of a pack, at most, and of its parts; those of 100 setups on 32,768 targets take 10 MB."""
LONGER_PART_PREFIX, FAR_PART_PREFIX = "longer_", "far_"
"""Before the names of the parts of longer texts, and of the far one."""
MIN_BLOCK_TARGETS = 64
"""Targets of a block, at least; a text has one block at least."""
CHECKSUM_PART = "checksum"
MAX_TOKEN_ID = 1 << 31
UNREADABLE_ERRORS = (
    *(OSError, ValueError, KeyError, TypeError, IndexError, AttributeError, SyntaxError, EOFError, MemoryError),
    *(ArithmeticError, RuntimeError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error),
)
"""What zipfile, numpy and json raise of a file that is no pack: damaged, encrypted (RuntimeError), of an unknown
compression (NotImplementedError), nested too deeply (RecursionError) or of huge sizes (OverflowError, MemoryError)."""

Nats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, eq=False)
class ReferencePack:
    """Content of a pack's file: texts, NLL of their tokens under each setup, and noise."""

    about: Mapping[str, Any]
    tokens: Tokens
    nll: Nats
    """[setups, texts, targets] NLL in nats."""
    noise: Nats
    """[kinds, texts, targets] change of the NLL by each kind of rounding, in nats."""
    written: Tokens
    """[texts, tokens] ids that the checkpoint writes in place of each text's last ones; -1: ended. Format 1: none."""
    longer: "ReferencePack | None" = None
    """Longer texts under the setups that these texts do not tell from the first."""
    far: "ReferencePack | None" = None
    """One text of the deployed length, or of 8 times the others' where that is less, under all setups."""
    prefixes: PrefixReference | None = None
    """Likeliest tokens behind prefixes of these texts."""
    block: int = MIN_BLOCK_TARGETS
    """Targets of a text that are taken for independent of the next ones."""

    @property
    def longest(self) -> int:
        """Tokens of its longest text."""
        return max([self.length, *(each.longest for each in (self.longer, self.far) if each is not None)])

    def of_prefixes(self) -> "ReferencePack":
        """The likeliest tokens behind prefixes in place of the targets; only where the pack has such."""
        assert self.prefixes is not None, "asked before"
        found = self.prefixes
        return ReferencePack(
            about={**self.about, "opening": 0},
            tokens=self.tokens,
            nll=found.flat(found.nll),
            noise=found.flat(found.noise),
            written=self.written[:, :0],
            block=found.block,
        )

    def with_fewer_prefixes(self, count: int) -> "ReferencePack":
        """The pack with so many prefixes of each text at most; 0: with none."""
        held = None if self.prefixes is None or not count else self.prefixes.with_fewer(count)
        longer, far = (each and each.with_fewer_prefixes(count) for each in (self.longer, self.far))
        return replace(self, prefixes=held, longer=longer, far=far)

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

    def served_nats(self, backend: Backend) -> Nats:
        """[texts, targets] nats of a served model; Refused where one is not finite."""
        return text_losses(backend, self.tokens, self.opening, self.nll.shape[2])

    def target_nats(self, nll: Nats) -> Nats:
        """[texts, targets] of nats [texts, length - 1], those of all tokens but the first."""
        return _first_and_last_targets(nll, self.opening, self.nll.shape[2])


def _first_and_last_targets(nll: Nats, opening: int, targets: int) -> Nats:
    """NLL of the first `opening` targets and of the last ones, `targets` in all."""
    return np.concatenate([nll[:, :opening], nll[:, nll.shape[1] - (targets - opening) :]], axis=1)


def target_places(length: int, opening: int, targets: int) -> NDArray[np.int64]:
    """[targets] places of the first targets in a text, and of the last."""
    return np.concatenate([np.arange(1, opening + 1), np.arange(length - (targets - opening), length)])


def loglikelihood_question(tokens: Tokens, start: int) -> Loglikelihood:
    """A question for the nats of tokens[start:]."""
    return Loglikelihood(index=0, cluster="", tokens=tokens, first_target=start, bytes=0, words=0)


def text_losses(backend: Backend, texts: Tokens, opening: int, targets: int) -> Nats:
    """[texts, targets] nats of the first tokens behind the very first, and of the last; Refused where not finite."""
    start = 1 if opening else texts.shape[1] - targets
    return _first_and_last_targets(
        question_nats(backend, [loglikelihood_question(row, start) for row in texts]), opening, targets
    )


def question_nats(backend: Backend, questions: Sequence[Loglikelihood]) -> Nats:
    """[questions, targets] nats; Refused where one is not finite."""
    found = []
    for answer in answer_questions(backend, questions):
        assert isinstance(answer, LoglikelihoodAnswer)
        found.append(answer.nll.astype(np.float64))
    nll = np.stack(found)
    if not np.isfinite(nll).all():
        raise Refused(f"{backend.name} gave likelihoods that are no numbers: it serves nothing that can be named")
    return nll


def continue_texts(backend: Backend, texts: Tokens, room: int) -> Tokens:
    """[texts, room] ids that are written in place of each text's last `room` ones; -1 where the model has ended."""
    whole = np.full((len(texts), room), -1)
    questions = [
        Generate(index=index, cluster="", prompt=row[:-room], max_new_tokens=room) for index, row in enumerate(texts)
    ]
    for row, answer in zip(whole, answer_questions(backend, questions), strict=True):
        assert isinstance(answer, GenerateAnswer)
        # -1 stays where the model ended before `room` tokens.
        row[: len(answer.tokens)] = answer.tokens
    return whole


def pack_bytes(pack: ReferencePack) -> bytes:
    """The file's content; the same pack gives the same bytes."""
    parts = _pack_arrays(pack)
    for prefix, other in ((LONGER_PART_PREFIX, pack.longer), (FAR_PART_PREFIX, pack.far)):
        parts |= {} if other is None else {f"{prefix}{name}": part for name, part in _pack_arrays(other).items()}
    parts |= {CHECKSUM_PART: _checksum(parts)}
    content = io.BytesIO()
    # The parts carry no time: numpy opens them by name, and zipfile dates such parts 1980.
    np.savez_compressed(content, allow_pickle=False, **parts)
    return content.getvalue()


def _checksum(parts: Mapping[str, NDArray[Any]]) -> NDArray[np.uint8]:
    """[32] SHA-256 of names, dtypes, shapes and content of all parts but the checksum itself."""
    digest = hashlib.sha256()
    for name in sorted(parts.keys() - {CHECKSUM_PART}):
        part = np.ascontiguousarray(parts[name])
        digest.update(f"{name}:{part.dtype.str}:{part.shape}:".encode() + part.tobytes())
    return np.frombuffer(digest.digest(), np.uint8)


def _pack_arrays(pack: ReferencePack) -> dict[str, NDArray[Any]]:
    return {
        "about": np.frombuffer(json.dumps(pack.about, sort_keys=True).encode(), np.uint8),
        "tokens": pack.tokens.astype(np.int32),
        "nll": pack.nll[0].astype(np.float32),
        "changes": (pack.nll[1:] - pack.nll[:1]).astype(np.float16),
        "noise": pack.noise.astype(np.float16),
        "written": pack.written.astype(np.int32),
        **({} if pack.prefixes is None else prefix_arrays(pack.prefixes)),
    }


def read_pack(file: Path) -> ReferencePack:
    """Read a pack; ConfigError for anything else."""
    if file.is_dir():
        raise ConfigError(f"fingerprint {file} is a folder: give the file that lexbench fingerprint --out has written")
    try:
        if file.stat().st_size > MAX_PACK_BYTES:
            raise ConfigError(f"it has more than {MAX_PACK_BYTES} bytes")
        with np.load(file, allow_pickle=False) as held:
            # A part is unpacked to no more than the size that the archive states.
            if sum(part.file_size for part in held.zip.infolist()) > MAX_UNPACKED_BYTES:
                raise ConfigError(f"its parts have more than {MAX_UNPACKED_BYTES} bytes")
            parts = {name: held[name] for name in held}
        return _pack_of_parts(parts)
    except FileNotFoundError:
        raise ConfigError(f"fingerprint {file} does not exist: make it with lexbench fingerprint") from None
    except UNREADABLE_ERRORS as error:
        said = one_line(f"{error}" or type(error).__name__)[:100]
        raise ConfigError(f"{file} is no fingerprint ({said}): make it with lexbench fingerprint") from error


def _pack_of_parts(parts: Mapping[str, NDArray[Any]]) -> ReferencePack:
    """The pack of all parts; ConfigError where they are not those that were written."""
    others = []
    for prefix in (LONGER_PART_PREFIX, FAR_PART_PREFIX):
        own = {name.removeprefix(prefix): part for name, part in parts.items() if name.startswith(prefix)}
        others.append(_pack_of_arrays(own) if own else None)
    found = _pack_of_arrays(parts)
    if found.about["format"] >= CHECKSUM_FORMAT and not np.array_equal(parts[CHECKSUM_PART], _checksum(parts)):
        raise ConfigError("its parts are not those that were written: its checksum differs")
    return replace(found, longer=others[0], far=others[1])


def _pack_of_arrays(held: Mapping[str, NDArray[Any]]) -> ReferencePack:
    """The pack of its parts, without other texts; ConfigError where they do not fit together."""
    about = json.loads(held["about"].tobytes())
    check_about(about, PACK_FORMAT_VERSION)
    check_kinds(held)
    nll, changes = held["nll"].astype(np.float64), held["changes"].astype(np.float64)
    tokens, noise = held["tokens"].astype(np.int64), held["noise"].astype(np.float64)
    if about["format"] == 1:
        noise, written = noise[None], np.empty((len(tokens), 0), np.int64)
    else:
        written = held["written"].astype(np.int64)
    whole = np.concatenate([nll[None], nll + changes])
    prefixes = prefixes_of_arrays(held, about.get("frame", {}))
    found = ReferencePack(about=about, tokens=tokens, nll=whole, noise=noise, written=written, prefixes=prefixes)
    check_pack(found)
    return found


def check_pack(pack: ReferencePack) -> None:
    """ConfigError where texts, setups and likelihoods do not fit together, or are none."""
    prefixes, places = pack.prefixes, None if pack.prefixes is None else pack.prefixes.places
    check_shapes(pack.tokens, pack.nll, pack.noise, pack.written, len(pack.labels), pack.opening)
    check_nats(pack.nll, pack.noise)
    ids = [pack.tokens] if prefixes is None else [pack.tokens, prefixes.ids]
    vocabulary = pack.about.get("vocabulary", MAX_TOKEN_ID)
    if min(each.min(initial=0) for each in ids) < 0 or max(each.max(initial=0) for each in ids) >= vocabulary:
        raise ConfigError(f"its ids of tokens must be at least 0 and below {vocabulary}")
    if pack.written.min(initial=0) < -1 or pack.written.max(initial=0) >= vocabulary:
        raise ConfigError(f"its written ids must be at least -1 and below {vocabulary}")
    if prefixes is None or places is None:
        return
    check_nats(prefixes.nll, prefixes.noise)
    if (
        places.shape[:1] != pack.tokens.shape[:1]
        or prefixes.nll.shape != (len(pack.nll), *prefixes.ids.shape)
        or prefixes.ids.shape[:2] != places.shape
        or prefixes.noise.shape[1:] != prefixes.ids.shape
        or places.max(initial=1) >= pack.length
        or places.min(initial=1) < 1
    ):
        raise ConfigError("its parts do not fit together")
