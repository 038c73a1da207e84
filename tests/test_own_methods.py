"""Methods of one's own in Python: objects, functions and folders, without a yaml and without the environment."""

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from matplotlib.text import Text

import lexbench
from lexbench.core.errors import ConfigError
from lexbench.core.plug_in import user_code_hash
from lexbench.methods.composition import method_config, read_method

MODEL = lexbench.Model(name="m", trained_length=64, head_dim=8, rope_base=10_000)
ASKED: dict[str, Any] = {"task": "passkey", "lengths": [64, 128], "n": 2, "backend": "chance", "quiet": True}


@dataclass(frozen=True)
class Squeeze:
    """Positions divided by a power of the stretch."""

    power: float = 1.0

    def attention(self, model: lexbench.Model, length: int) -> lexbench.Attention:
        stretch = max(1.0, length / model.trained_length)
        return lexbench.Attention(inv_freq=model.inv_freq() / stretch**self.power)


@dataclass
class Loose:
    """A dataclass that is not frozen."""

    def attention(self, model: lexbench.Model, length: int) -> lexbench.Attention:
        return lexbench.Attention()


def halved(model: lexbench.Model, length: int) -> lexbench.Attention:
    """All frequencies by half."""
    return lexbench.Attention(inv_freq=model.inv_freq() / 2)


def unable(model: lexbench.Model, length: int) -> lexbench.Attention:
    """No Attention at all."""
    raise lexbench.Refused("it never works")


def late(model: lexbench.Model, length: int) -> lexbench.Attention:
    """No Attention beyond the trained length."""
    if length > 64:
        raise lexbench.Refused("too long for it")
    return halved(model, length)


def divided(divisor: Any) -> Any:
    """A method that closes over a value."""

    def closing(model: lexbench.Model, length: int) -> lexbench.Attention:
        return lexbench.Attention(inv_freq=model.inv_freq() / float(np.sum(divisor)))

    return closing


def test_an_object_and_a_function_become_methods_with_the_numbers_of_their_own() -> None:
    name, squeeze, key = read_method(method_config(Squeeze(power=0.5)))
    assert (name, str(key)) == ("Squeeze", "Squeeze(power=0.5)")
    own = 10_000.0 ** (-np.arange(0, 8, 2) / 8)  # the RoPE of 8 dimensions
    found = squeeze.attention(MODEL, 256).inv_freq
    assert found is not None and found == pytest.approx(own / 2)  # (256 / 64)^0.5
    name, half, key = read_method(method_config(halved))
    found = half.attention(MODEL, 256).inv_freq
    assert (name, str(key)) == ("halved", "halved") and found is not None and found == pytest.approx(own / 2)
    assert str(read_method(method_config(None))[2]) == "none"
    composed = read_method(method_config({"compose": [Squeeze(2.0), "log_n"]}))[2]
    assert str(composed) == "Squeeze(power=2.0)+log_n"


def in_memory(code: str, name: str = "f") -> Any:
    """A function of a module that no file holds, as in a notebook."""
    module = ModuleType("notebook")
    sys.modules["notebook"] = module
    exec(compile(code, "<cell>", "exec"), vars(module))
    return getattr(module, name)


def hash_of(given: Any) -> str | None:
    return user_code_hash(type(read_method(method_config(given))[1]))


def test_code_that_no_file_holds_and_values_closed_over_tell_methods_apart() -> None:
    """Else a notebook's second try would be shown the numbers of the first."""
    one = "def f(model, length):\n    return helper(model)\ndef helper(model):\n    return {}\n"
    first = hash_of(in_memory(one.format(1)))
    assert first is not None and first == hash_of(in_memory("\n\n" + one.format(1)))  # elsewhere in the cell
    assert first != hash_of(in_memory(one.format(2)))  # a function that it calls
    scaled = "A = {}\ndef f(model, length):\n    return A\n"
    assert hash_of(in_memory(scaled.format(1))) != hash_of(in_memory(scaled.format(2)))  # a global
    assert hash_of(divided(2.0)) == hash_of(divided(2.0)) != hash_of(divided(3.0))
    long = np.zeros(5000)
    other = long.copy()
    other[2500] = 1.0  # where the text of an array has dots
    assert hash_of(divided(long)) != hash_of(divided(other))


@pytest.mark.slow
def test_a_run_takes_objects_functions_and_none_and_its_answers_know_them(tmp_path: Path) -> None:
    mine = Squeeze(power=0.5)
    asked = [None, "yarn", mine, halved]
    run = lexbench.run("lexlet", asked, results=tmp_path, **ASKED)
    assert list(run.table().index) == ["none", "Squeeze(power=0.5)", "halved", "yarn"]
    text = run.compare()
    assert "Paired differences to none" in text
    assert all(f"| {row} " in text for row in ("none (value)", "Squeeze(power=0.5)", "halved", "yarn"))
    assert "method: A yarn, B Squeeze(power=0.5)" in run.compare("yarn", mine)
    assert run.compare("yarn", "Squeeze(power=0.5)") == run.compare("yarn", mine)
    assert "| yarn " not in run.compare(None, mine, halved)
    assert "Squeeze(power=0.5)" in {text.get_text() for text in run.plot().findobj(Text)}
    for wrong, said in (
        (("yran",), "did you mean yarn"),
        ((None, Squeeze()), "^Squeeze is not in this run: choose from"),
    ):
        with pytest.raises(ConfigError, match=said):
            run.compare(*wrong)


def test_a_refusal_is_a_warning_or_an_error_and_never_a_row_of_nan(tmp_path: Path) -> None:
    run = lexbench.run("lexlet", [None, unable, late], results=tmp_path, **ASKED)
    with pytest.warns(
        UserWarning, match=r"no value of late on passkey at 128 \(too long for it\); unable on .* at 64, 128"
    ):
        table = run.table()
    assert not table.isna().all(axis=1).any() and list(table.index) == ["none", "late"]
    alone = lexbench.run("lexlet", unable, results=tmp_path, **ASKED)
    with pytest.raises(
        lexbench.Refused, match=r"nothing was measured: unable on passkey at 64, 128 \(it never works\)"
    ):
        alone.table()


def test_a_folder_of_yamls_needs_no_environment(tmp_path: Path) -> None:
    folder = tmp_path / "mine" / "method"
    folder.mkdir(parents=True)
    (folder / "twice.yaml").write_text("_target_: lexbench.methods.pi.Pi\nfactor: 2.0\n")
    before = dict(os.environ)
    run = lexbench.run("lexlet", "twice", results=tmp_path / "run", config_dir=tmp_path / "mine", **ASKED)
    assert list(run.table().index) == ["twice"] and dict(os.environ) == before
    with pytest.raises(ConfigError, match=r"config_dir .*nowhere is no folder: give one with method/"):
        lexbench.run("lexlet", "twice", config_dir=[tmp_path / "mine", tmp_path / "nowhere"], **ASKED)
    assert dict(os.environ) == before
    with pytest.raises(ConfigError, match="unknown method 'twice'"):
        lexbench.run("lexlet", "twice", **ASKED)


def yarn(model: lexbench.Model, length: int) -> lexbench.Attention:
    """A name that is taken."""
    return lexbench.Attention()


def wide(model: lexbench.Model, length: int, more: int) -> lexbench.Attention:
    """One argument too many."""
    return lexbench.Attention()


def nothing(model: lexbench.Model, length: int) -> None:
    """No Attention."""


@pytest.mark.parametrize(
    ("method", "said"),
    [
        (Squeeze, r"^method Squeeze is a class: give an object of it, Squeeze\(\.\.\.\)$"),
        (Squeeze(power="x"), "^method.power must be a number, got 'x'"),  # type: ignore[arg-type]
        (Loose(), r"^method class Loose must be frozen: write @dataclass\(frozen=True\)$"),
        (lambda model, length: lexbench.Attention(), r"^a method that is a lambda has no name for tables: write def"),
        (wide, r"^a method that is a function must take \(model, length\), got wide\(model"),
        (yarn, "^method yarn is a name of the registry: rename your class or function$"),
        (nothing, "^nothing.attention: must return an Attention"),
        (5, r"^a method must be a name, .* or an object with attention\(model, length\), got 5"),
        ([divided(1.0), divided(2.0)], "^two methods are called closing, which are not of one class: rename one$"),
        ("yarnn", "^unknown method 'yarnn': did you mean yarn"),
    ],
)
def test_what_is_no_method_is_one_line(method: Any, said: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=said):
        lexbench.run("lexlet", method, results=tmp_path, **ASKED)


def uniform(ids: Any) -> Any:
    """The same logit for each of lexlet's tokens."""
    return np.zeros((len(ids), 2048))


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"model": uniform}, "^a loaded model needs its tokenizer, got function alone: give tokenizer=..."),
        (
            {"model": uniform, "tokenizer": "lexbench:lexlet", "backend": "hf"},
            "^backend is for a model by name, got 'hf'",
        ),
        ({"model": uniform, "tokenizer": "lexbench:lexlet"}, "^a function does not state its trained length"),
        ({"model": "lexlet", "tokenizer": "x"}, "^tokenizer is for a loaded model, got it beside model='lexlet'"),
        ({"model": "lexlet", "trained_length": 8}, "^trained_length is for a loaded model"),
        ({"model": "lexlett"}, "^unknown model 'lexlett': did you mean lexlet"),
        ({"model": "lexlet", "corpus": "./none.txt"}, r"^corpus \./none\.txt does not exist"),
    ],
)
def test_a_model_that_cannot_be_run_is_one_line(asked: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=said):
        lexbench.run(lengths=[64], n=1, results=tmp_path, quiet=True, **asked)


def test_run_takes_a_loaded_model_and_a_file_of_texts(tmp_path: Path) -> None:
    """A uniform guess has ln 2048 nats on any text."""
    (tmp_path / "book.txt").write_text("A word and another word. " * 200)
    asked: dict[str, Any] = {"lengths": [64], "n": 1, "quiet": True, "tokenizer": "lexbench:lexlet"}
    run = lexbench.run(uniform, trained_length=64, corpus=tmp_path / "book.txt", **asked)
    assert run.table().loc["none", 64] == pytest.approx(np.log(2048))
    assert set(run.records()["corpus"]) == {"files(path='book.txt')"}
