"""Packs from strangers: damaged in every way, of another model, or with names that steer a terminal."""

import io
import json
import shutil
import struct
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lexbench.checkpoints.checkpoint import locate_checkpoint, read_model, weights_fingerprint
from lexbench.checkpoints.tokenizer import load_tokenizer
from lexbench.commands import main
from lexbench.core import registry
from lexbench.core.errors import ConfigError
from lexbench.parts.serving.identify import pack
from lexbench.parts.serving.identify.readings import KeptReadings, Reading
from lexbench.parts.serving.identify.same_model import check_model
from tests.parts.serving.test_identify import made

Parts = dict[str, Any]


def parts_of(content: bytes) -> Parts:
    with np.load(io.BytesIO(content)) as held:
        return {name: held[name] for name in held}


def saved(parts: Parts, checked: bool = True) -> bytes:
    """A file of these parts, with their own checksum."""
    more = {"checksum": pack._checksum(parts)} if checked else {}
    content = io.BytesIO()
    np.savez_compressed(content, allow_pickle=False, **{**parts, **more})
    return content.getvalue()


def with_about(parts: Parts, **changed: Any) -> Parts:
    about = {**json.loads(parts["about"].tobytes()), **changed}
    return {**parts, "about": np.frombuffer(json.dumps(about).encode(), np.uint8)}


def with_first_value(parts: Parts, name: str, value: float) -> Parts:
    changed = parts[name].copy()
    changed.flat[0] = value
    return {**parts, name: changed}


ODD_PARTS: dict[str, Callable[[Parts], Parts]] = {
    "ids below 0": lambda parts: with_first_value(parts, "tokens", -5),
    "ids above the vocabulary": lambda parts: with_first_value(parts, "tokens", 9),
    "written ids below -1": lambda parts: with_first_value(parts, "written", -2),
    "no noise": lambda parts: {**parts, "noise": parts["noise"][:0]},
    "noise of no targets": lambda parts: {**parts, "noise": parts["noise"][..., :0]},
    "infinite noise": lambda parts: with_first_value(parts, "noise", np.inf),
    "noise that is no number": lambda parts: with_first_value(parts, "noise", np.nan),
    "noise of 300 nats": lambda parts: {**parts, "noise": np.full_like(parts["noise"], 300)},
    "likelihoods of texts": lambda parts: {**parts, "nll": parts["nll"].astype(str)},
    "ids of fractions": lambda parts: {**parts, "tokens": parts["tokens"] + 0.5},
    "a flat part": lambda parts: {**parts, "nll": parts["nll"].ravel()},
    "a description that is a list": lambda parts: {**parts, "about": np.frombuffer(b"[]", np.uint8)},
    "a description of nothing": lambda parts: {**parts, "about": np.frombuffer(b"", np.uint8)},
    "deep nesting": lambda parts: {**parts, "about": np.frombuffer(b"[" * 200_000, np.uint8)},
    "a format of a text": lambda parts: with_about(parts, format="5"),
    "a newer format": lambda parts: with_about(parts, format=99),
    "labels of numbers": lambda parts: with_about(parts, labels=[1, 2, 3]),
    "an opening of a text": lambda parts: with_about(parts, opening="x"),
    "a frame of texts": lambda parts: with_about(parts, frame={"before": ["x"]}),
    "labels that steer a terminal": lambda parts: with_about(parts, labels=["a", "b\x1b[2J", "c"]),
    "a name that steers a terminal": lambda parts: with_about(parts, model="\x1b]0;gotcha\x07"),
}


@pytest.mark.parametrize("name", ODD_PARTS)
def test_parts_that_cannot_be_are_one_line(name: str, tmp_path: Path) -> None:
    file = tmp_path / "pack.npz"
    file.write_bytes(saved(ODD_PARTS[name](parts_of(pack.pack_bytes(made())))))
    with pytest.raises(
        ConfigError, match=r"^[^\n\x1b]* is no fingerprint \([^\n\x1b]+\): make it with lexbench finger"
    ):
        pack.read_pack(file)


def rewritten(content: bytes, name: str, change: Callable[[bytearray, int], None]) -> bytes:
    """The archive with the headers of a member changed, in place and in the list at its end."""
    found = bytearray(content)
    for mark, at in ((b"PK\x03\x04", 30), (b"PK\x01\x02", 46)):
        place = found.find(mark)
        while place >= 0:
            size = struct.unpack_from("<H", found, place + at - 4 if mark == b"PK\x03\x04" else place + 28)[0]
            if found[place + at : place + at + size].startswith(name.encode()):
                change(found, place + (6 if mark == b"PK\x03\x04" else 8))
            place = found.find(mark, place + 4)
    return bytes(found)


def encrypt(found: bytearray, place: int) -> None:
    found[place] |= 1


def compress_otherwise(found: bytearray, place: int) -> None:
    struct.pack_into("<H", found, place + 2, 93)


def huge_header(content: bytes) -> bytes:
    """A part whose header says that it has 10**25 numbers."""
    header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (%d,), }" % 10**25
    header += b" " * (63 - (10 + len(header)) % 64) + b"\n"
    part = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header
    changed = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(changed, "w") as new:
        for each in old.namelist():
            new.writestr(each, part if each == "nll.npy" else old.read(each))
    return changed.getvalue()


def flipped(content: bytes) -> bytes:
    """One bit, in the middle of the largest part."""
    found = bytearray(content)
    found[len(found) // 2] ^= 1
    return bytes(found)


DAMAGED: dict[str, Callable[[bytes], bytes]] = {
    "one bit": flipped,
    "encryption": lambda content: rewritten(content, "nll", encrypt),
    "an unknown compression": lambda content: rewritten(content, "nll", compress_otherwise),
    "a header of 10**25": huge_header,
    "another number, and the old checksum": lambda content: saved(
        with_first_value(parts_of(content), "nll", 1.0), checked=False
    ),
    "another name, and the old checksum": lambda content: saved(
        with_about(parts_of(content), model="gpt9"), checked=False
    ),
    "no checksum": lambda content: saved(
        {name: part for name, part in parts_of(content).items() if name != "checksum"}, checked=False
    ),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_file_is_one_line(name: str, tmp_path: Path) -> None:
    file, content = tmp_path / "pack.npz", pack.pack_bytes(made())
    file.write_bytes(content)
    assert pack.read_pack(file).labels == made().labels
    file.write_bytes(DAMAGED[name](content))
    with pytest.raises(ConfigError, match=r"^[^\n]* is no fingerprint \([^\n]+\): make it with lexbench fingerprint"):
        pack.read_pack(file)


def test_every_flipped_bit_is_seen_or_changes_nothing(tmp_path: Path) -> None:
    """Bits of the dates and attributes of parts change nothing; 200 places spread over the file."""
    one = made()
    small = replace(
        one, nll=one.nll[:, :2, :20], noise=one.noise[:, :2, :20], tokens=one.tokens[:2], written=one.written[:2]
    )
    content, file = pack.pack_bytes(small), tmp_path / "pack.npz"
    for place in np.linspace(0, len(content) - 1, 200).astype(int).tolist():
        odd = bytearray(content)
        odd[place] ^= 1 << place % 8
        file.write_bytes(bytes(odd))
        try:
            again = pack.read_pack(file)
        except ConfigError:
            continue
        assert again.about == small.about and (again.tokens == small.tokens).all(), place
        np.testing.assert_allclose(again.nll, small.nll, atol=2e-3)


def test_a_pack_of_format_4_needs_no_checksum(tmp_path: Path) -> None:
    file, parts = tmp_path / "pack.npz", parts_of(pack.pack_bytes(made()))
    del parts["checksum"]
    file.write_bytes(saved(with_about(parts, format=4), checked=False))
    assert pack.read_pack(file).labels == made().labels


LEXLET = read_model({**registry.read_named_config("model", "lexlet"), "name": "lexlet"})


def test_a_pack_is_of_one_tokenizer_and_of_the_same_weights(tmp_path: Path) -> None:
    """A release with another config has the same weights; another checkpoint of the same tokenizer has others."""
    folder = locate_checkpoint("lexbench:lexlet")
    tokenizer = load_tokenizer(folder, LEXLET.bos)
    about = {"model": "lexlet", "vocabulary": tokenizer.vocabulary, "tokenizer": tokenizer.fingerprint}
    about["weights"] = weights_fingerprint(folder)
    check_model(LEXLET, about, Path("a.npz"))
    check_model(LEXLET, {"model": "lexlet", "vocabulary": tokenizer.vocabulary}, Path("a.npz"))  # of format 4
    release = shutil.copytree(folder, tmp_path / "release")
    config = json.loads((release / "config.json").read_text())
    (release / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 512}))
    check_model(replace(LEXLET, name="local", path=str(release)), about, Path("a.npz"))
    for changed, said in (
        ({"tokenizer": "0123456789abcdef"}, r"a\.npz is of lexlet, another tokenizer: give its model=NAME"),
        ({"vocabulary": 9}, "another tokenizer"),
        (
            {"model": "gpt9", "weights": "0123"},
            r"is of gpt9 with weights 0123, lexlet here has [0-9a-f]+: give its mod",
        ),
    ):
        with pytest.raises(ConfigError, match=said):
            check_model(LEXLET, {**about, **changed}, Path("a.npz"))


@pytest.mark.slow
def test_a_pack_of_another_model_is_not_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, one = tmp_path / "pack.npz", made()
    file.write_bytes(pack.pack_bytes(replace(one, about={**one.about, "model": "gpt9"})))
    assert main.main(["identify", str(file), "model=lexlet", "backend=openai"]) == 2
    assert "is of gpt9, another tokenizer" in capsys.readouterr().err


def test_a_damaged_reading_is_read_anew(tmp_path: Path) -> None:
    kept = KeptReadings(tmp_path / "a.npz.part")
    whole = Reading(np.zeros((2, 3)), np.zeros((2, 0, 0)))
    kept.get({"setup": "a"}, lambda: whole)
    [file] = (tmp_path / "a.npz.part").iterdir()
    file.write_bytes(file.read_bytes()[:50])
    assert kept.get({"setup": "a"}, lambda: Reading(np.ones((2, 3)), np.zeros((2, 0, 0)))).targets.sum() == 6
