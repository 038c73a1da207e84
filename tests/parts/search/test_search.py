"""`lexbench search`: what a candidate is to a model, what is compared, what is written."""

import math
import sys
from dataclasses import asdict
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import yaml

from lexbench import Attention, Model, Refused, api
from lexbench.backends.chance import Chance
from lexbench.checkpoints.checkpoint import read_model
from lexbench.core import objects, registry
from lexbench.core.task import Loglikelihood, LoglikelihoodAnswer
from lexbench.corpora.synthetic import Synthetic
from lexbench.parts.search.longrope_search.evolution import EvolutionSettings, FactorCandidate
from lexbench.parts.search.longrope_search.search import (
    FactorSearchResult,
    candidate_attention,
    critical_pair,
    find_factors,
    mean_nll,
)

OPTIMUM = np.geomspace(1.1, 4.4, 16)
TEXTS = Synthetic(count=6, words=1000)
SETTINGS = EvolutionSettings(population=20, iterations=6, parents=8, mutations=5, crossovers=5, seed=3)


class Fake(Chance):
    """Likelihoods that grow with the distance from an optimum, and with the number in the document's name."""

    asked: tuple[str, ...] = ()
    factors: Any = None
    dies_after: float = math.inf

    def attend(self, attention: Attention) -> None:
        own = self.model.inv_freq()
        self.factors = own / (own if attention.inv_freq is None else attention.inv_freq)
        self.scale = attention.scale

    def score(self, question: Loglikelihood) -> LoglikelihoodAnswer:
        if len(Fake.asked) >= Fake.dies_after:
            raise KeyboardInterrupt
        Fake.asked += (question.cluster,)
        away = np.mean((np.log(self.factors) - np.log(OPTIMUM)) ** 2) + worth(question.cluster)
        return LoglikelihoodAnswer(nll=np.full(question.length - question.first_target, away, dtype=np.float32))


def worth(cluster: str) -> float:
    """Between 0 and 1, of a document's name."""
    return sum(cluster.encode()) % 97 / 97


@pytest.fixture(autouse=True)
def _fake_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("fake_backend")
    module.Fake = Fake  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "fake_backend", module)
    monkeypatch.setattr(Fake, "asked", ())


@pytest.fixture(scope="module")
def lexlet() -> Model:
    return read_model(registry.read_named_config("model", "lexlet"))


def run(model: Model, out: Path | str | None, **changed: Any) -> FactorSearchResult:
    asked: dict[str, Any] = {
        "corpus": TEXTS,
        "backend": {"_target_": "fake_backend.Fake", "name": "fake"},
        "length": 1024,
        "n": 2,
        "settings": SETTINGS,
    }
    return find_factors(model=model, out=out, **{**asked, **changed})


def test_a_candidate_divides_frequencies_and_scales_as_longrope_does() -> None:
    tiny = Model(name="tiny", trained_length=16, head_dim=8, rope_base=10_000.0)
    attention = candidate_attention(tiny, 64, FactorCandidate((1.0, 2.0, 3.0, 4.0)))
    np.testing.assert_allclose(attention.inv_freq, [1, 0.05, 0.01 / 3, 0.00025], rtol=1e-12)  # type: ignore[arg-type]
    assert attention.scale == pytest.approx(1.2247449, abs=1e-7)  # as transformers computes it
    assert attention.slots() == ("inv_freq", "scale")
    assert candidate_attention(tiny, 64, FactorCandidate((1.0,) * 4, 8)).keep_first == 8


@pytest.mark.parametrize(
    ("trained_length", "head_dim", "base", "expected"),
    [(8192, 128, 5e5, 35), (2048, 96, 1e4, 31), (4096, 128, 1e4, 46), (256, 32, 1e4, 7)],
)
def test_the_critical_pair_is_the_first_that_never_came_round(
    trained_length: int, head_dim: int, base: float, expected: int
) -> None:
    """Llama-3 8B and Phi-3 mini as in LongRoPE2; Llama-2's 92 dimensions as in arXiv 2310.05209; the embedded model."""
    model = Model(name="m", trained_length=trained_length, head_dim=head_dim, rope_base=base)
    assert critical_pair(model) == expected
    periods = 2 * math.pi * base ** (np.arange(0, head_dim, 2) / head_dim)
    assert periods[expected - 1] < trained_length < periods[expected]


def test_the_mean_is_over_targets_not_over_texts(lexlet: Model) -> None:
    class Told(Chance):
        def score(self, question: Loglikelihood) -> LoglikelihoodAnswer:
            return LoglikelihoodAnswer(
                nll=np.full(question.length - question.first_target, question.index, dtype=np.float32)
            )

    tokens = np.arange(8)
    questions = [
        Loglikelihood(index=i, cluster="a", tokens=tokens, first_target=start, bytes=1, words=1)
        for i, start in ((1, 2), (5, 6))
    ]
    told: Any = Told(lexlet)
    assert mean_nll(told, questions, Attention()) == (6 * 1 + 2 * 5) / 8


def test_a_search_writes_the_method_that_it_found(lexlet: Model, tmp_path: Path) -> None:
    result = run(lexlet, tmp_path / "my/method/found.yaml", settings=EvolutionSettings())
    written = yaml.safe_load(result.file.read_text())
    assert written == {
        "_target_": "lexbench.methods.longrope.Longrope",
        "long_factors": list(result.found.best.factors),
    }
    assert np.mean((np.log(written["long_factors"]) - np.log(OPTIMUM)) ** 2) < 0.05**2
    comments = [line[2:] for line in result.file.read_text().splitlines() if line.startswith("# ")]
    assert comments[-9:] == result.table().splitlines()
    assert str(tmp_path) not in result.file.read_text() + result.file.with_suffix(".jsonl").read_text()


def test_the_written_method_is_the_one_that_was_measured(
    lexlet: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = EvolutionSettings(population=8, parents=4, iterations=1, start_tokens=(4, 16))
    best = run(lexlet, tmp_path / "method/mine.yaml", settings=settings).found.best
    monkeypatch.setenv("LEXBENCH_CONFIG_PATH", str(tmp_path))
    assert api.method("mine").attention(lexlet, 1024).as_data() == candidate_attention(lexlet, 1024, best).as_data()


@pytest.mark.slow
def test_start_tokens_are_written_where_there_are_some(lexlet: Model, tmp_path: Path) -> None:
    result = run(
        lexlet, tmp_path / "found.yaml", settings=EvolutionSettings(population=2, parents=2, start_tokens=(16,))
    )
    assert yaml.safe_load(result.file.read_text())["start_tokens"] == 16


def test_a_text_that_the_model_does_not_speak_is_said(
    lexlet: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard = Fake.score
    result = run(lexlet, tmp_path / "spoken.yaml", settings=EvolutionSettings(population=2, parents=2, iterations=1))
    assert result.unspoken is None and "claimed" not in result.table()
    monkeypatch.setattr(
        Fake, "score", lambda self, question: LoglikelihoodAnswer(nll=heard(self, question).nll + np.float32(9))
    )
    result = run(lexlet, tmp_path / "unspoken.yaml", settings=EvolutionSettings(population=2, parents=2, iterations=1))
    said = "No gain is claimed: lexlet does not speak this text: none has "
    assert result.table().splitlines()[-1].startswith(said) and f"# {said}" in result.file.read_text()


def test_candidates_are_measured_on_the_same_texts_and_compared_on_others(lexlet: Model, tmp_path: Path) -> None:
    result = run(lexlet, tmp_path / "found.yaml")
    searching = Fake.asked[: 2 * result.found.evaluations]
    searched = searching[:2]
    assert searching == searched * result.found.evaluations
    comparing = Fake.asked[len(searching) : -2]  # last, two texts of the trained length
    fresh = comparing[2:4]
    assert comparing == (searched + fresh) * len(result.rows)
    assert len({*searched, *fresh}) == 4
    harder = np.mean([worth(name) for name in fresh]) - np.mean([worth(name) for name in searched])
    for row in result.rows:
        assert row.fresh - row.searched == pytest.approx(harder, abs=1e-6)
    assert f"# Searched on: {', '.join(searched)}\n" in result.file.read_text()


def test_the_comparison_holds_methods_seeds_and_the_found_factors(lexlet: Model, tmp_path: Path) -> None:
    result = run(lexlet, tmp_path / "found.yaml")
    mean = np.mean([worth(name) for name in Fake.asked[:2]])
    pairs = np.arange(16)
    expected = {"none": np.ones(16), "pi": np.full(16, 4.0), "ntk": 4 ** (pairs / 15)}
    rows = {row.name: row.searched for row in result.rows}
    for name, factors in expected.items():
        assert rows[name] == pytest.approx(np.mean(np.log(factors / OPTIMUM) ** 2) + mean, abs=1e-6)
    for name in ("pi", "ntk", "yarn"):  # within the space already; the fake does not see their scale
        assert rows[f"{name}'s factors"] == pytest.approx(rows[name], abs=1e-6)
    assert list(rows)[-1] == "found" and rows["found"] == result.found.nll == min(rows.values())


def test_a_search_that_was_killed_writes_what_it_would_have_written(
    lexlet: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = run(lexlet, tmp_path / "whole.yaml")
    before = len(Fake.asked)
    for more in (9, 40):
        monkeypatch.setattr(Fake, "dies_after", len(Fake.asked) + more)
        with pytest.raises(KeyboardInterrupt):
            run(lexlet, tmp_path / "parts.yaml")
    monkeypatch.setattr(Fake, "dies_after", math.inf)
    assert run(lexlet, tmp_path / "parts.yaml").found == whole.found
    assert len(Fake.asked) == 2 * before + 1  # of one candidate, the first of two texts was answered in vain
    for suffix in ("yaml", "jsonl"):
        assert (tmp_path / f"parts.{suffix}").read_bytes() == (tmp_path / f"whole.{suffix}").read_bytes()


@pytest.mark.everyday("changed0-n 2, now 1")
@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"n": 1}, "n 2, now 1"),
        ({"length": 512}, "length 1024, now 512"),
        ({"corpus": Synthetic(count=7, words=1000)}, "corpus "),
        ({"settings": EvolutionSettings(seed=4)}, "population 20, now 64; parents 8, now 32; .*seed 3, now 4"),
    ],
)
def test_a_journal_serves_one_search_only(changed: dict[str, Any], words: str, lexlet: Model, tmp_path: Path) -> None:
    run(lexlet, tmp_path / "found.yaml")
    with pytest.raises(ValueError, match=f"journal .* has .*{words}"):
        run(lexlet, tmp_path / "found.yaml", **changed)


def test_a_plug_in_backend_whose_code_has_changed_takes_no_number_of_the_earlier_one(
    lexlet: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    code = """
from lexbench import LoglikelihoodAnswer
from tests.parts.search.test_search import Fake


class Own(Fake):
    def score(self, question):
        return LoglikelihoodAnswer(nll=BY * super().score(question).nll)
"""
    for module, by in (("own_before", "1"), ("own_now", "2")):
        (tmp_path / f"{module}.py").write_text(code.replace("BY", by))
    backends = [{"_target_": f"{module}.Own", "name": "own"} for module in ("own_before", "own_now")]
    found = run(lexlet, tmp_path / "found.yaml", backend=backends[0])
    assert run(lexlet, tmp_path / "found.yaml", backend=backends[0]).found.nll == found.found.nll
    with pytest.raises(ValueError, match=r"journal .* has file \w+, now \w+: give another out=, or remove it"):
        run(lexlet, tmp_path / "found.yaml", backend=backends[1])
    assert run(lexlet, tmp_path / "new.yaml", backend=backends[1]).found.nll == pytest.approx(2 * found.found.nll)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"length": None}, "^search needs a length above the trained length 256: .* give length=2048"),
        ({"length": 256}, "a length above the trained length 256, got 256"),
        (
            {"settings": EvolutionSettings(start_tokens=(0, 1024))},
            r"^search's start_tokens must be below the length 1024, got 1024: e.g. start_tokens=\[0,4\]",
        ),
        ({"n": 0}, "search's n must be at least 1 text, got 0"),
        ({"out": None}, "search needs a yaml file to write: give out=my/method/longrope_lexlet.yaml"),
        ({"out": "factors.csv"}, "needs a yaml file to write, got factors.csv"),
        ({"backend": {"name": "fake", "_target_": "fake_backend.Fake", "speed": 2}}, "unknown parameter backend.speed"),
    ],
)
def test_what_cannot_be_searched_is_said_in_one_line(
    changed: dict[str, Any], words: str, lexlet: Model, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=words) as caught:
        run(lexlet, **{"out": tmp_path / "found.yaml", **changed})
    assert "\n" not in str(caught.value) and not list(tmp_path.iterdir())


def test_a_file_of_another_kind_and_a_known_name_are_kept(lexlet: Model, tmp_path: Path) -> None:
    own = tmp_path / "own.yaml"
    own.write_text("file: own.py\n")
    with pytest.raises(
        ValueError, match=r"own\.yaml is no file of a search, which would replace it: give another out="
    ):
        run(lexlet, own)
    assert own.read_text() == "file: own.py\n"
    with pytest.raises(ValueError, match=r"names a method that there is, yarn: give another out="):
        run(lexlet, tmp_path / "yarn.yaml")
    assert [each.name for each in tmp_path.iterdir()] == ["own.yaml"] and not Fake.asked


def test_the_plan_counts_all_seeds_where_the_population_is_smaller(
    lexlet: Model, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = EvolutionSettings(population=2, parents=2, iterations=1, mutations=1, crossovers=1)
    run(lexlet, tmp_path / "found.yaml", settings=small)  # pi, ntk and yarn, one mutation and one crossover
    assert "search: 5 candidates at most, in 2 generations" in capsys.readouterr().err


def test_257_tokens_are_above_the_trained_length(lexlet: Model, tmp_path: Path) -> None:
    assert run(lexlet, tmp_path / "found.yaml", length=257).found.best.factors[-1] <= 1.25 * 257 / 256


def test_too_few_documents_for_a_comparison_are_refused(lexlet: Model, tmp_path: Path) -> None:
    with pytest.raises(Refused, match=r"search needs 6 different documents of 1024 tokens, .* is in both halves"):
        run(lexlet, tmp_path / "found.yaml", n=3, corpus=Synthetic(count=5, words=1000))
    assert run(lexlet, tmp_path / "found.yaml", n=3).found.evaluations


def test_a_model_without_plain_rotary_positions_is_refused(lexlet: Model, tmp_path: Path) -> None:
    learned = Model(name="learned", trained_length=256, head_dim=32, path=lexlet.path)
    with pytest.raises(Refused, match="learned has no rotary positions to change"):
        run(learned, tmp_path / "found.yaml")


def test_the_commands_settings_are_the_evolutions_own_defaults() -> None:
    config = yaml.safe_load((registry.command_config_folder("search") / "search.yaml").read_text())
    defaults = {**asdict(EvolutionSettings()), "start_tokens": [0]}
    assert {key: config[key] for key in defaults} == defaults
    assert {*config} - {*defaults} == {"defaults", "length", "out", "n", "hydra"}
    asked = {**{key: config[key] for key in defaults}, "start_tokens": [0, 4], "population": 32}
    built = objects.build_object(
        {"_target_": "lexbench.parts.search.longrope_search.evolution.EvolutionSettings", **asked}, "search"
    )
    assert built == EvolutionSettings(start_tokens=(0, 4), population=32)


@pytest.mark.slow
def test_the_embedded_model_gets_factors_that_load_as_a_method(
    lexlet: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = run(
        lexlet,
        tmp_path / "method/longrope_lexlet.yaml",
        corpus=api.corpus("stdlib"),
        backend={**registry.read_named_config("backend", "hf"), "name": "hf"},
        length=512,
        settings=EvolutionSettings(population=5, parents=3, mutations=1, crossovers=1, iterations=2),
    )
    rows = {row.name: row for row in result.rows}
    assert result.found.evaluations == 9
    assert rows["found"].searched == pytest.approx(result.found.nll, abs=1e-6)
    assert rows["found"].searched <= min(rows[f"{name}'s factors"].searched for name in ("pi", "ntk", "yarn"))
    assert 1 < rows["found"].fresh < rows["none"].fresh < math.log(2048)  # the model's own attention fails at twice 256
    monkeypatch.setenv("LEXBENCH_CONFIG_PATH", str(tmp_path))
    method = api.method("longrope_lexlet")
    assert method.attention(lexlet, 512).as_data() == candidate_attention(lexlet, 512, result.found.best).as_data()
    within = method.attention(lexlet, 256)
    assert within.scale == 1 and np.array_equal(within.inv_freq, lexlet.inv_freq())  # type: ignore[arg-type]
