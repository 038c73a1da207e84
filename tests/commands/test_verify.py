"""`lexbench verify`."""

import json

import pytest

from lexbench.commands import main
from lexbench.commands.verify import checks_table
from lexbench.runner.verify import MethodCheck


@pytest.mark.slow
def test_verify_prints_methods_by_checks_and_refusals(capfd: pytest.CaptureFixture[str]) -> None:
    assert main.main(["verify", "-m", "method=yarn,rerope", "length=300"]) == 0
    rows = capfd.readouterr().out.splitlines()
    assert [row.split("|")[1].strip() for row in rows] == ["method", rows[1].split("|")[1].strip(), "yarn", "rerope"]
    assert len({len(row) for row in rows}) == 1
    assert main.main(["verify", "method=yarn", "length=300", "backend=native", "--json"]) == 3
    [row] = json.loads(capfd.readouterr().out)
    assert (row["method"], row["length"]) == ("yarn", 300) and "use backend=hf" in row["refused"]
    assert main.main(["verify", "-m", "method=pi", "length=20,40", "--json"]) == 0
    rows = json.loads(capfd.readouterr().out)
    assert [(row["length"], len(row["checks"])) for row in rows] == [(20, 7), (40, 7)]


def test_a_failing_check_is_exit_code_one(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lexbench.runner.verify.ANGLE_TOLERANCE", -1.0)
    assert main.main(["verify", "method=pi", "length=64"]) == 1
    assert "FAILED" in capfd.readouterr().out


def test_the_table_keeps_its_columns_whatever_a_refusal_says() -> None:
    rows: list[tuple[str, list[MethodCheck] | str]] = [
        ("pi", [MethodCheck("applied", True, "1e+00"), MethodCheck("identity", None, "not | promised")]),
        ("dca", "sees a|b:\ntoo short"),
    ]
    assert checks_table(rows).splitlines() == [
        "| method |     applied |          identity |",
        "| ------ | ----------: | ----------------: |",
        r"| pi     |    ok 1e+00 | - not \| promised |",
        "| dca    | refused (1) |                   |",
        "",
        "(1) sees a|b: too short",
    ]
    assert checks_table(rows[1:]).splitlines()[:3] == [
        "| method |      checks |",
        "| ------ | ----------: |",
        "| dca    | refused (1) |",
    ]
