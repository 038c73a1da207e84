"""Checkpoints of a training: named by folders, globs or revisions, with the steps that they store or name."""

import fnmatch
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from lexbench.checkpoints.checkpoint import ADAPTER_CONFIG_FILE, file_timestamps, hub_is_reached, weight_files
from lexbench.core.errors import ConfigError
from lexbench.core.files import read_object, why_not_a_folder
from lexbench.parts.search.trace.name_numbers import check_progress, numbers_in

HUB_NAME = re.compile(r"\w[\w.-]*/[\w.-]+")
"""ORG/NAME."""
GLOB_CHARACTERS = "*?["
"""Characters that make a glob of a word."""


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """Checkpoint of a training, in a folder or on the hub.

    Args:
        path: folder, or name on the hub.
        revision: branch, tag or commit on the hub; None: a folder, or the hub's main branch.
        step: of the training; None: neither trainer_state.json nor the name tells it.
        step_is_stored: trainer_state.json tells the step, not the name.
        is_folder: `path` is a folder on this machine.
    """

    path: str
    revision: str | None = None
    step: int | None = None
    step_is_stored: bool = False
    is_folder: bool = False

    @property
    def name(self) -> str:
        """Name in tables and of its folder of results."""
        return re.sub(r"[^\w.+-]+", "-", self.revision or Path(self.path).name) if self.step is None else str(self.step)

    @property
    def label(self) -> str:
        """Name for sentences: `step 4000`."""
        return self.name if self.step is None else f"step {self.step:,}"


def checkpoints_of_words(words: Sequence[str], waiting: bool = False) -> list[Checkpoint]:
    """The checkpoints of some words, each once, as given; those of a glob or folder by the alphabet.

    Args:
        words: folders of a checkpoint, folders of such folders, globs of them, ORG/NAME, ORG/NAME@REVISION, or
            ORG/NAME@GLOB for several revisions.
        waiting: checkpoints may appear later; folders that are still being written are left out.

    Raises ConfigError for a word that names none, an incomplete folder, two checkpoints of one name, and a step that
    is negative, no whole number or too large.
    """
    every = dict.fromkeys(each for word in words for each in _of_word(word, waiting))
    found = [each for each in every if each.revision is not None or not _incomplete(each, waiting)]
    if not found and not waiting:
        raise ConfigError("trace needs checkpoints, got none: e.g. lexbench trace 'out/checkpoint-*'")
    names = [each.name for each in found]
    if twin := next((name for name in names if names.count(name) > 1), None):
        one, other = [each.revision or each.path for each in found if each.name == twin][:2]
        raise ConfigError(
            f"checkpoints must differ in step or name, {one} and {other} are both {twin}: trace one training"
        )
    return found


def _of_word(word: str, waiting: bool) -> list[Checkpoint]:
    path, at, revision = word.rpartition("@")
    if at and not Path(word).exists() and HUB_NAME.fullmatch(path):
        names = _revisions(path, revision) if set(revision) & set(GLOB_CHARACTERS) else [revision]
        return [Checkpoint(path=path, revision=name, step=numbers_in(name).step) for name in names]
    place = Path(word).expanduser()
    if set(word) & set(GLOB_CHARACTERS) and not place.exists():
        folders = sorted(Path(place.anchor).glob(str(place.relative_to(place.anchor))))
        found = [each for folder in folders if _is_checkpoint(folder) for each in [_of_folder(folder)]]
        if not found and not waiting:
            raise ConfigError(f"no checkpoint matches {word}: give folders with a config.json, or --watch for them")
        return found
    if place.is_dir():
        inner = [] if _is_checkpoint(place) else sorted(each for each in place.iterdir() if _is_checkpoint(each))
        if not inner and not _is_checkpoint(place) and not waiting:
            raise ConfigError(f"checkpoint {word} has no config.json, nor has a folder in it: give checkpoints")
        return [_of_folder(each) for each in (inner or ([place] if _is_checkpoint(place) else []))]
    if waiting and not HUB_NAME.fullmatch(word):
        return []
    if not HUB_NAME.fullmatch(word):
        raise ConfigError(f"checkpoint {word} {why_not_a_folder(place)}: give a folder, a glob, or ORG/NAME@REVISION")
    return [Checkpoint(path=word)]


def _is_checkpoint(folder: Path) -> bool:
    return folder.is_dir() and any((folder / name).is_file() for name in ("config.json", ADAPTER_CONFIG_FILE))


def _of_folder(folder: Path) -> Checkpoint:
    step = _stored_step(folder)
    return Checkpoint(
        path=str(folder),
        step=numbers_in(folder.name).step if step is None else step,
        step_is_stored=step is not None,
        is_folder=True,
    )


def _stored_step(folder: Path) -> int | None:
    """The step in trainer_state.json; None where it has none. ConfigError for one that is no number of steps."""
    state = folder / "trainer_state.json"
    step = read_object(state, "download it again").get("global_step") if state.is_file() else None
    if step is not None and (isinstance(step, bool) or not isinstance(step, int)):
        raise ConfigError(f"global_step of {state} must be a whole number, got {step!r:.40}: download it again")
    if step is not None:
        check_progress(step, "step", str(state))
    return step


def _revisions(repository: str, pattern: str) -> list[str]:
    """Branches and tags of a repository on the hub, or in its cache where that is out of reach, that fit a glob."""
    from huggingface_hub import constants, errors, list_repo_refs

    if hub_is_reached():
        try:
            refs = list_repo_refs(repository)
        except errors.RepositoryNotFoundError:
            raise ConfigError(f"the hub shows no repository {repository}: check the name, or hf auth login") from None
        every: Iterable[str] = [each.name for each in (*refs.branches, *refs.tags)]
    else:
        folder = Path(constants.HF_HUB_CACHE, f"models--{repository.replace('/', '--')}", "refs")
        every = [str(file.relative_to(folder)) for file in sorted(folder.rglob("*")) if file.is_file()]
    if not (found := fnmatch.filter(every, pattern)):
        raise ConfigError(f"no revision of {repository} matches {pattern}: see its branches on the hub")
    return sorted(found)


def _incomplete(checkpoint: Checkpoint, waiting: bool) -> bool:
    """Whether a folder is still being written and may be waited for; ConfigError where none is to come."""
    folder = Path(checkpoint.path)
    if not folder.is_dir():
        return False
    if (folder / ADAPTER_CONFIG_FILE).exists():  # it is refused, with the reason, when its config is read
        return False
    try:
        broken = [file.name for file in weight_files(folder) if not has_all_bytes(file)]
    except ConfigError:
        if waiting:
            return True
        raise
    if broken and not waiting:
        raise ConfigError(f"checkpoint {folder} is incomplete ({broken[0]}): wait until it is written, or --watch")
    return bool(broken)


def has_all_bytes(file: Path) -> bool:
    """Whether a safetensors file is as long as its header says."""
    try:
        with file.open("rb") as stream:
            # 8 bytes of length, little-endian, then a JSON header with the place of each tensor behind it.
            size = int.from_bytes(stream.read(8), "little")
            header = json.loads(stream.read(size))
        ends = [tensor["data_offsets"][1] for name, tensor in header.items() if name != "__metadata__"]
        return file.stat().st_size == 8 + size + max(ends, default=0)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError, MemoryError):
        return False


def files_of(checkpoint: Checkpoint) -> list[list[object]]:
    """Name, size and time of a folder's files, by which a later command knows it again; empty for the hub."""
    folder = Path(checkpoint.path).expanduser()
    return [list(each) for each in file_timestamps(folder)] if folder.is_dir() else []
