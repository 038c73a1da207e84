"""`lexbench kv`: its settings, its page, and a run of it."""

import csv
from dataclasses import replace
from pathlib import Path

import pytest

from lexbench import ConfigError, Model, Sample
from lexbench.commands import main
from lexbench.core.layer_cache import LayerCache
from lexbench.core.method_key import BASELINE_METHOD
from lexbench.core.record import Cell
from lexbench.methods.composition import method_config, read_method
from lexbench.parts.kv import bytes_plot, settings, table
from lexbench.parts.kv.methods.kv import Kv
from lexbench.report.doctor import examine_runs

MODEL = Model(name="m", trained_length=512, head_dim=64, kv_heads=3, layers=30)
ABOUT = Cell(
    model="m",
    method=BASELINE_METHOD,
    task="divergence",
    length=512,
    trained_length=512,
    seed=0,
    n=32,
    protocol="",
    backend="hf",
    dtype="float32",
    kernel="sdpa",
    corpus="c",
    version="",
    identity={},
)


def samples(kld: float, n: int = 40) -> list[Sample]:
    """Divergences of a little spread around a mean."""
    scores = [{"kld": kld * (0.9 + 0.2 * (index % 2)), "same_top": 0.75, "nll_rise": kld / 2} for index in range(n)]
    return [Sample(index=index, cluster=f"d{index}", tokens=8, scores=each) for index, each in enumerate(scores)]


def row(setting: str, by_length: dict[int, float]) -> table.KvRow:
    _, method, key = read_method(settings.compress_method({"name": "none"}, setting))
    assert isinstance(method, Kv)
    return table.KvRow(key, method.compression(), {length: samples(kld) for length, kld in by_length.items()})


def test_the_page_states_levels_bytes_slopes_and_what_is_proven() -> None:
    rows = [
        table.KvRow(BASELINE_METHOD, None, {512: samples(0.0), 2048: samples(0.0)}),
        row("format=q8_0", {512: 0.0002, 2048: 0.0004}),
        row("format=q4_0", {512: 0.002, 2048: 0.004}),
        row("keep=0.5", {512: 0.1, 2048: 0.3}),
    ]
    page = table.page(rows, ABOUT, MODEL, [512, 2048], 0.01)
    lines = {
        line.split("|")[1].strip(): [each.strip() for each in line.split("|")[2:-1]]
        for line in page.splitlines()
        if line[:1] == "|"
    }
    # 30 layers of 3 heads of 64: 11,520 numbers, each of 18 bytes for 32 of them; the mean of 40 even samples.
    assert page.startswith("At 2048 tokens kv(format='q4_0') keeps a token in 6,480 bytes (28% of 16 bits a number)")
    assert "diverges by 0.004 [" in page and "each doubling of the length adds 0.001 [" in page  # 2 doublings, 0.002
    proven = page[page.index("## Proven at 2048 tokens") :]
    assert [each in proven for each in ("less than 0.01", "more than 0.01", "undecided")] == [True, True, False]
    assert "| none " in page and "| none " not in proven
    head = page[page.index("| setting") :].splitlines()
    assert [cell.strip() for cell in head[0].split("|")[2:4]] == ["bytes a token at 2048", "KLD at 512"]
    assert head[4].split("|")[2].strip() == "6,480"
    assert lines


def test_bytes_are_those_of_the_layers_that_keep_keys_in_their_windows_and_of_what_was_compressed() -> None:
    """One layer keeps all of 81 tokens, one 15 of a window of 16, one none: 2 heads of 16, 64 numbers a token."""
    kinds = ("sliding_attention", "full_attention", "linear_attention")
    caches = (LayerCache(2, 16, 16, 16), LayerCache(2, 16, 16), None)
    model = Model(name="m", trained_length=512, head_dim=16, kv_heads=2, layer_types=kinds, layer_caches=caches)
    plain = table.row_of(BASELINE_METHOD, read_method(method_config("none"))[1], model, 81)
    assert table.stored_bytes(plain, model, 81) == table.full_bytes(model, 81) == 2 * 64 * (81 + 15) / 81
    rows = [plain]
    for layers, numbers in ((None, 81 + 15), ("global", 81)):
        _, method, key = read_method(method_config({"name": "kv", "format": "fp8", "layers": layers}))
        rows.append(table.row_of(key, method, model, 81))
        # A byte a number where it is compressed, else two.
        expected = 64 * (numbers + 2 * (81 + 15 - numbers)) / 81
        assert table.stored_bytes(rows[-1], model, 81) == expected
    assert [*table.byte_remarks(rows, model, 81)] == [
        "Bytes: keys and values as stored behind 81 tokens, a mean over these, in all layers that keep keys, 2 of 3; 1 "
        "layer with a window: the tokens in it only; states of layers without keys are not counted.",
        f"{rows[-1].key}: not compressed in 1 layer.",
    ]


def test_what_is_refused_or_not_known_has_no_bytes(tmp_path: Path) -> None:
    unknown = Model(name="m", trained_length=512, head_dim=16)
    rows = [row("format=fp8", {512: 0.001}), row("format=q8_0", {512: 0.0001})]
    assert table.full_bytes(unknown, 512) is None
    page = table.page(rows, ABOUT, unknown, [512], None)
    assert page.startswith("At 512 tokens the divergence lies below 0.01 nats per token: kv(format='fp8'), ")
    assert "Bytes: not known, as the config of m does not say what its layers keep." in page
    assert not bytes_plot.plot_bytes(rows, ABOUT, unknown, 512, 0.01, tmp_path / "kv_bytes")
    rows[1].refused[512] = "too short for questions"
    assert table.stored_bytes(rows[1], MODEL, 512) is not None  # of one task only
    rows[1].divergences.clear()
    assert table.stored_bytes(rows[1], MODEL, 512) is None


def test_a_cache_is_found_in_a_method_that_states_its_layers_or_a_length() -> None:
    for more in ({"layers": "all"}, {"at": 512}, {"over": "plain", "at": 512}):
        _, method, key = read_method({**method_config({"compose": ["yarn", {"name": "kv", "bits": 8}]}), **more})
        found = table.row_of(key, method, replace(MODEL, rope_base=1e4), 1024)
        assert found.cache == Kv(bits=8).compression() and found.layers == tuple(range(30)), more


def test_the_figure_draws_each_setting_over_its_bytes_and_the_front(tmp_path: Path) -> None:
    by_setting = {"format=q8_0": 0.0004, "format=q4_0": 0.004, "keep=0.5": 0.3, "bits=4,residual=0": 0.005}
    rows = [row(setting, {2048: kld}) for setting, kld in by_setting.items()]
    rows += [table.KvRow(BASELINE_METHOD, None, {2048: samples(0.0)}), row("format=fp8", {512: 0.001})]
    assert bytes_plot.plot_bytes(rows, ABOUT, MODEL, 2048, 0.01, tmp_path / "kv_bytes")
    with (tmp_path / "kv_bytes.csv").open() as stream:
        drawn = {each["setting"]: each for each in csv.DictReader(stream)}
    # Of 11,520 numbers: 34 and 18 bytes for 32; 2 for half of them; half a byte and 4 bytes for 64.
    expected = {
        "kv(format='q8_0')": (12240, 0.0004, "True"),
        "kv(format='q4_0')": (6480, 0.004, "True"),
        "kv(keep=0.5)": (11520, 0.3, "False"),
        "kv(bits=4, residual=0)": (6480, 0.005, "False"),
    }
    found = {name: (float(each["bytes_per_token"]), each["front"]) for name, each in drawn.items()}
    assert found == {name: (size, front) for name, (size, _, front) in expected.items()}
    for name, (_, kld, _) in expected.items():
        assert float(drawn[name]["kld"]) == pytest.approx(kld)
    svg = (tmp_path / "kv_bytes.svg").read_text()
    assert all(f"<!-- {words}" in svg for words in ("kv(format='q8_0')", "0.01 nats", "Pareto front"))
    assert not bytes_plot.plot_bytes(rows[-2:], ABOUT, MODEL, 512, 0.01, tmp_path / "one")


def test_a_setting_joins_the_method_of_positions() -> None:
    assert read_method(settings.compress_method({"name": "none"}, "bits=2,rotate=hadamard"))[2].bare == "kv"
    found = settings.compress_method({"name": "yarn", "factor": 4.0}, "bits=8")
    assert str(read_method(found)[2]) == "yarn(factor=4.0)+kv(bits=8)"
    assert (
        len({str(read_method(each)[2]) for each in settings.methods({"name": "none"}, settings.default_settings())})
        == 13
    )


@pytest.mark.parametrize("setting", ["bits", "bits=", "=4"])
def test_what_is_no_setting_is_said(setting: str) -> None:
    with pytest.raises(ConfigError, match="--settings must be parameters of kv"):
        settings.compress_method({"name": "none"}, setting)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--certify", "0"], "--certify must be above 0 nats, got 0.0"),
        (["--settings", "rerope"], "--settings must be parameters of kv, got rerope"),
        (["method=[none,yarn]"], "takes one method"),
    ],
)
def test_wrong_words_are_one_line(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["kv", "model=lexlet", *words]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert said in line


@pytest.mark.slow
@pytest.mark.usefixtures("unverified")
def test_a_run_ends_in_its_page_and_is_resumed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["model=lexlet", "corpus=synthetic", "lengths=[192]", "n=4", f"results={tmp_path}", "--certify", "0.01"]
    words += ["--settings", "bits=2,group=16,residual=0", "keep=0.5"]
    assert main.main(["kv", *words]) == 0
    found = examine_runs([tmp_path])
    assert found.faults == [] and found.unfinished == 0 and found.cells > 0
    assert (tmp_path / "kv_bytes.svg").exists() and (tmp_path / "kv_bytes.csv").exists()
    page = capsys.readouterr().out
    assert "What a compressed cache of lexlet costs" in page and "## Retrieval" in page and "## Proven at 192" in page
    files = {file: file.stat().st_mtime_ns for file in tmp_path.rglob("*.parquet")}
    assert main.main(["kv", *words]) == 0
    assert capsys.readouterr().out == page
    assert {file: file.stat().st_mtime_ns for file in tmp_path.rglob("*.parquet")} == files
