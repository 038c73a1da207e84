"""Backends that agree pass, each deliberate error fails by a wide margin, and what is refused is said."""

import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from lexbench import Attention
from lexbench.backends.chance import Chance
from lexbench.backends.hf.backend import Hf
from lexbench.core import registry
from lexbench.core.attention import PositionMap, Remap
from lexbench.core.model import Model
from lexbench.core.record import Deferred, Refused
from lexbench.core.task import (
    Answer,
    AnyQuestion,
    Choose,
    ChooseAnswer,
    ClassifyTokens,
    ClassifyTokensAnswer,
    Generate,
    GenerateAnswer,
    Loglikelihood,
    LoglikelihoodAnswer,
)
from lexbench.parts.serving.parity import compare
from lexbench.parts.serving.parity.tolerance import Tolerance, answer_differences, rounding_tolerance

ROOT = Path(__file__).parents[3]
NONE = np.empty(0, np.int64)
METHODS = (
    "none",
    "pi",
    "ntk",
    "ntk_by_parts",
    "yarn",
    "yarn_paper",
    "llama3",
    "abf",
    "longrope",
    "truncated_basis",
    "resonance",
)
EVENTS: list[str] = []
"""What the backends below were told to do, in its order."""

pytestmark = pytest.mark.usefixtures("one_thread")


class Faulty(Hf):
    """transformers with a deliberate error; a dtype is one that it does not admit."""

    def __init__(self, model: Model, fault: str) -> None:
        super().__init__(model, dtype=fault if fault in ("bfloat16", "float16") else "float32")
        self.dtype, self._fault = "float32", fault

    def attend(self, attention: Attention) -> None:
        if self._fault == "no attention factor":
            attention = replace(attention, scale=None)
        if self._fault == "base off by 1 %":
            own, off = self.model.inv_freq(), self.model.inv_freq(1.01 * self.model.rotary_base())
            asked = own if attention.inv_freq is None else attention.inv_freq
            attention = replace(attention, inv_freq=asked * off / own)
        if self._fault == "queries late by one":
            attention = replace(attention, remap=Remap(1, PositionMap(offset=1.0), PositionMap()))
        super().attend(attention)


class Scripted(Chance):
    """A backend of another process that answers as it is told: everything with one likelihood, one text."""

    kernel = "by | hand\n| too"

    def __init__(
        self,
        model: Model,
        longest: int,
        nll: float = 0.0,
        writes: tuple[int, ...] = (5, 6),
        fault: str = "",
        dtype: str = "float64",
    ) -> None:
        EVENTS.append(f"open {nll} for {longest}")
        if fault == "closed":
            raise Deferred("nobody | is at home\n# today")
        super().__init__(model)
        self.dtype, self._nll, self._writes, self._fault = dtype, nll, list(writes), fault

    def attend(self, attention: Attention) -> None:
        EVENTS.append(f"attend {self._nll}")
        if self._fault == "refuses" and attention.slots():
            raise Refused(f"cannot realise {', '.join(attention.slots())}")

    def answers(self, questions: Sequence[AnyQuestion]) -> Iterator[Answer]:
        for number, question in enumerate(questions):
            if self._fault == "breaks" and number == 1:
                raise Deferred("gone in the middle")
            yield self._answer(question)

    def _answer(self, question: AnyQuestion) -> Answer:
        if isinstance(question, Loglikelihood):
            return LoglikelihoodAnswer(nll=np.full(question.length - question.first_target, self._nll, np.float32))
        if isinstance(question, ClassifyTokens):
            return ClassifyTokensAnswer(
                nll=np.full((len(question.places), len(question.options)), self._nll, np.float32)
            )
        assert isinstance(question, Generate)
        tokens = np.array(self._writes, np.int64)
        return GenerateAnswer(tokens=tokens, text=self.tokenizer.decode(tokens), hit_room=False)

    def choose(self, question: Choose) -> ChooseAnswer:
        """Every token id is its own likelihood, in tenths of nats."""
        EVENTS.append(f"choose {[option.tolist() for option in question.options]} after {question.prompt[-1]}")
        return ChooseAnswer(nll=np.array([0.1 * option.sum() for option in question.options]))

    def close(self) -> None:
        EVENTS.append(f"close {self._nll}")


@pytest.fixture(autouse=True)
def own_registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The backends above stand in a user's registry."""
    (tmp_path / "backend").mkdir()
    for name in ("Faulty", "Scripted"):
        (tmp_path / "backend" / f"{name.lower()}.yaml").write_text(f"_target_: {__name__}.{name}\n")
    monkeypatch.setenv("LEXBENCH_CONFIG_PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, __name__, sys.modules[__name__])
    EVENTS.clear()


def point(method: str = "none", length: Any = 64, **given: Any) -> tuple[dict[str, Any], dict[str, str]]:
    """One point of a sweep, as hydra composes it: its config, and the chosen names."""
    names = {"method": method, "task": "last_segment", "corpus": "synthetic", "backend": "hf"}
    names |= {group: given.pop(group) for group in list(given) if group in names}
    config = {group: registry.read_named_config(group, name) for group, name in names.items()}
    parameters = {group: given.pop(f"{group}_parameters") for group in names if f"{group}_parameters" in given}
    for group, more in parameters.items():
        config[group] |= more
    return {
        "model": registry.read_named_config("model", "lexlet"),
        "length": length,
        "n": None,
        "seed": 0,
        **config,
        **given,
    }, names


def compared(points: Sequence[tuple[Mapping[str, Any], Mapping[str, str]]], *against: str) -> compare.ParityResult:
    return compare.compare_backends(compare.job_of(points), [compare.backend_config_of_word(word) for word in against])


def share(row: compare.CellAgreement) -> float:
    """How many times what is allowed was found, of the largest difference or the mean."""
    assert row.largest is not None and row.largest_allowed and row.mean is not None and row.mean_allowed
    return max(row.largest / row.largest_allowed, row.mean / row.mean_allowed)


def by_backend(found: compare.ParityResult) -> dict[str, list[compare.CellAgreement]]:
    return {side.label: [row for row in found.rows if row.backend == side.label] for side in found.others}


# the tolerance, and what is held against it


def test_the_tolerance_is_its_formula() -> None:
    found = rounding_tolerance(["float32", "float32"], 512, 128)
    assert found.largest == (128 + 64 * 512) * 2.0**-24
    assert found.mean == pytest.approx((16 + 2 * 512 + (128 + 64 * 512) / 128) * 2.0**-24, rel=1e-12)
    for dtypes in (["float32", "bfloat16"], ["bfloat16", "float64"], ["bfloat16", None], ["unknown", "bfloat16"]):
        assert rounding_tolerance(dtypes, 0, 8) == Tolerance(0.5, 0.0625 + 0.0625)
    assert rounding_tolerance(["float16"], 0, 10**9).mean == pytest.approx(2.0**-7, rel=1e-6)
    assert rounding_tolerance(["float64", "float64"], 1024, 1).largest == pytest.approx(
        2.0**-8, rel=1e-10
    )  # the angles' part


def written(text: str, *tokens: int, room: bool = False) -> GenerateAnswer:
    return GenerateAnswer(tokens=np.array(tokens, np.int64), text=text, hit_room=room)


def unasked(question: Choose) -> ChooseAnswer:
    raise AssertionError("nobody needs to ask")


def test_likelihoods_differ_by_their_distance() -> None:
    tokens = np.arange(4)
    score = Loglikelihood(index=0, cluster="a", tokens=tokens, first_target=2, bytes=1, words=1)
    one, two = (LoglikelihoodAnswer(nll=np.array(nll, np.float32)) for nll in ([1.0, 2.0], [1.5, 1.75]))
    assert answer_differences(score, one, two, unasked, NONE).tolist() == [0.5, 0.25]
    mark = ClassifyTokens(index=0, cluster="a", tokens=tokens, places=np.array([1, 3]), options=np.array([1, 3]))
    high, low = (ClassifyTokensAnswer(nll=np.array(nll, np.float32)) for nll in ([[1, 2], [3, 4]], [[1, 1], [3, 8]]))
    assert answer_differences(mark, high, low, unasked, NONE).tolist() == [0, 1, 0, 4]
    choose = Choose(index=0, cluster="a", prompt=tokens, options=(np.array([1]), np.array([1, 2, 3])), expected=0)
    ours, theirs = (ChooseAnswer(nll=np.array(nll)) for nll in ([1.0, 6.0], [1.25, 4.5]))
    assert answer_differences(choose, ours, theirs, unasked, NONE).tolist() == [0.25, 0.5]  # 1.5 nats over three tokens


@pytest.mark.parametrize("wrong", [math.nan, math.inf])
def test_what_is_no_number_is_no_difference_that_can_pass(wrong: float) -> None:
    score = Loglikelihood(index=0, cluster="a", tokens=np.arange(3), first_target=1, bytes=1, words=1)
    one = LoglikelihoodAnswer(nll=np.array([1.0, wrong], np.float32))
    for other in (one, LoglikelihoodAnswer(nll=np.array([1.0, 1.0], np.float32))):
        assert not np.isfinite(answer_differences(score, one, other, unasked, NONE)).all()


ENDS = np.array([8, 9])


@pytest.mark.parametrize(
    ("ours", "theirs", "options", "after"),
    [
        (written("abc", 1, 2, 3), written("abd", 1, 2, 4), [[3], [4]], [7, 1, 2]),
        (written("b", 2), written("a", 1, 5), [[2], [1]], [7]),
        (written("ab", 1, 2), written("abc", 1, 2, 3), [[8], [9], [3]], [7, 1, 2]),  # ours wrote an end token
        (written("ab", 1, 2), written("a", 1), [[2], [8], [9]], [7, 1]),
    ],
)
def test_texts_differ_by_half_of_what_the_reference_tells_them_apart(
    ours: GenerateAnswer, theirs: GenerateAnswer, options: list[list[int]], after: list[int]
) -> None:
    asked: list[Choose] = []

    def choose(question: Choose) -> ChooseAnswer:
        asked.append(question)
        return ChooseAnswer(nll=np.array([0.1 * option.sum() ** 2 for option in question.options]))

    question = Generate(index=0, cluster="a", prompt=np.array([7]), max_new_tokens=4)
    found = answer_differences(question, ours, theirs, choose, ENDS)
    own = [0.1 * option[0] ** 2 for option in options[: len(ENDS) if options[0] == [8] else 1]]
    other = [0.1 * option[0] ** 2 for option in options[len(own) :]]
    assert [option.tolist() for option in asked[0].options] == options
    assert asked[0].prompt.tolist() == after
    np.testing.assert_allclose(found, [*[0.0] * (len(after) - 1), abs(min(other) - min(own)) / 2])


@pytest.mark.parametrize(
    ("ours", "theirs", "tokens"),
    [
        (written("ab", 1, 2), written("ab", 1, 2), 2),
        (written(""), written(""), 1),
        (written("a\nb", 1, 3, 2), written("a\n", 1, 3), 2),  # nothing behind the line's end counts
        (written("a\nb", 1, 3, 2), written("a\nc", 1, 3, 4), 2),
        (written("ab", 1, 2), written("ab", 5), 1),  # a server that gives no tokens has them from its text
    ],
)
def test_texts_that_count_as_one_do_not_differ(ours: GenerateAnswer, theirs: GenerateAnswer, tokens: int) -> None:
    question = Generate(index=0, cluster="a", prompt=np.array([7]), max_new_tokens=4, until=("\n",))
    assert answer_differences(question, ours, theirs, unasked, ENDS).tolist() == [0.0] * tokens


def test_texts_that_only_look_alike_differ() -> None:
    def choose(question: Choose) -> ChooseAnswer:
        return ChooseAnswer(nll=np.array([0.0, 3.0]))

    question = Generate(index=0, cluster="a", prompt=np.array([7]), max_new_tokens=4)
    assert answer_differences(question, written("\ufffd", 1), written("\ufffd", 2), choose, ENDS).tolist() == [1.5]


def test_a_text_that_ends_without_an_end_token_cannot_pass() -> None:
    question = Generate(index=0, cluster="a", prompt=np.array([7]), max_new_tokens=4)
    assert answer_differences(question, written("ab", 1, 2), written("a", 1), unasked, NONE).tolist() == [math.inf]


@pytest.mark.parametrize(
    ("largest", "mean", "failed"), [(1.0, 0.5, False), (1.1, 0.5, True), (1.0, 0.6, True), (None, None, True)]
)
def test_a_row_fails_by_its_largest_difference_or_its_mean(
    largest: float | None, mean: float | None, failed: bool
) -> None:
    given: dict[str, Any] = {"task": "a", "method": "b", "length": 8, "backend": "c", "tokens": 4}
    row = compare.CellAgreement(**given, largest=largest, largest_allowed=1.0, mean=mean, mean_allowed=0.5)
    assert row.failed is failed
    assert not compare.CellAgreement(**given, refused="no").failed


# backends that agree, and errors


@pytest.mark.slow
def test_native_agrees_with_hf_on_every_kind_of_method_and_chance_does_not() -> None:
    points = [point(method, length) for method in ("none", "yarn", "rerope", "longrope") for length in (128, 288)]
    found = compared(points, "native", "chance")
    native, chance = by_backend(found).values()
    places = [(method, length) for method in ("none", "yarn", "rerope", "longrope") for length in (128, 288)]
    assert [(row.method, row.length) for row in native] == places
    assert not any(row.failed or row.refused for row in native)
    assert {row.tokens for row in found.rows} == {compare.DEFAULT_N_QUESTIONS * 64}  # half of the shortest length
    assert all(row.failed and share(row) > 1000 for row in chance)
    assert found.failed
    text = compare.agreement_table(found)
    assert text.count("| ok ") == len(native) and text.count("| FAILED ") == len(chance)


MARGINS = 2048
"""Eight times the trained length: of the lengths from 128 to 2048 the one at which every margin is least."""


def margins(
    against: Sequence[str], methods: Sequence[str], lengths: Sequence[int] = (MARGINS,)
) -> list[list[compare.CellAgreement]]:
    """Rows of one question: one for each backend, method and length."""
    found = compared([point(method, length, n=1) for method in methods for length in lengths], *against)
    assert len(found.rows) == len(against) * len(methods) * len(lengths)
    return [*by_backend(found).values()]


@pytest.mark.slow
def test_every_method_is_as_near_and_as_far_off_as_the_page_states() -> None:
    off = ["faulty,fault=base off by 1 %", "faulty,fault=queries late by one"]
    native, base, late, coarse = margins(["native", *off, "hf,dtype=bfloat16"], METHODS)
    assert max(map(share, native)) < 0.25
    assert min(map(share, base)) > 10
    assert min(map(share, late)) > 140
    assert max(map(share, coarse)) < 0.6
    exact = [rounding_tolerance(["float32", "float32"], row.length, row.tokens) for row in coarse]
    claimed = [
        replace(row, largest_allowed=allowed.largest, mean_allowed=allowed.mean)
        for row, allowed in zip(coarse, exact, strict=True)
    ]
    assert min(map(share, claimed)) > 30


@pytest.mark.slow
def test_native_is_as_near_at_shorter_lengths() -> None:
    [native] = margins(["native"], METHODS, (128, 256, 512, 1024))
    assert max(map(share, native)) < 0.25


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "methods", "least"),
    [
        ("no attention factor", ("yarn", "yarn_paper", "longrope"), 900),
        ("float16", ("none", "ntk_by_parts", "abf"), 3),
    ],
)
def test_an_error_is_as_far_off_as_the_page_states(fault: str, methods: Sequence[str], least: float) -> None:
    [rows] = margins([f"faulty,fault={fault}"], methods)
    assert min(map(share, rows)) > least


@pytest.mark.everyday("recall")
@pytest.mark.parametrize("task", ["passkey", "recall"])
def test_writing_and_marking_agree(task: str) -> None:
    [row] = compared([point("ntk", 128, task=task)], "native").rows
    assert not row.failed and row.refused is None and row.tokens > 0


@pytest.mark.slow
def test_a_published_checkpoint_from_half_to_eight_times_its_trained_length(shared: Path) -> None:
    model = {"name": "stories260K", "path": str(shared / "stories260K-hf")}
    text = {
        "_target_": registry.read_named_config("corpus", "files")["_target_"],
        "path": str(shared / "text" / "tinystories.txt"),
    }
    places = [(method, length) for method in METHODS for length in (256, 1024)]
    places += [(method, 4096) for method in ("none", "yarn", "longrope")]  # nothing, a scale, factors
    given: dict[str, Any] = {"task_parameters": {"stream": True}, "corpus": "files", "corpus_parameters": text}
    points = [point(method, length, model=model, n=1, **given) for method, length in places]
    found = compared(points, "native")
    assert not any(row.failed or row.refused for row in found.rows), compare.agreement_table(found)
    assert {row.tokens for row in found.rows} == {128}


# asking


@pytest.mark.slow
def test_each_backend_is_opened_once_for_all_cells_and_ended_before_the_next() -> None:
    points = [
        point(method, length, backend="scripted", backend_parameters={"nll": 1.0})
        for method in ("none", "pi")
        for length in (64, 32)
    ]
    found = compared(points, "scripted,nll=2.0", "scripted,nll=3")
    told = [[f"open {nll} for 64", *[f"attend {nll}"] * 4, f"close {nll}"] for nll in (2.0, 3, 1.0)]
    assert [*told[0], *told[1], *told[2]] == EVENTS
    assert [row.largest for row in found.rows] == [1.0, 2.0] * 4
    assert [row.mean for row in found.rows] == [1.0, 2.0] * 4
    assert [(row.method, row.length) for row in found.rows[::2]] == [("none", 32), ("none", 64), ("pi", 32), ("pi", 64)]


@pytest.mark.slow
def test_what_is_no_number_fails() -> None:
    found = compared([point(backend="scripted", backend_parameters={"nll": math.inf})], "scripted,nll=.inf")
    assert found.failed and found.rows[0].largest is None and found.rows[0].tokens > 0
    assert "FAILED: no number" in compare.agreement_table(found)
    assert json.loads(json.dumps(found.as_data(), allow_nan=False))["rows"][0]["mean"] is None


@pytest.mark.slow
def test_the_coarser_dtype_counts_on_either_side() -> None:
    sides: list[dict[str, Any]] = [{"backend_parameters": {"dtype": dtype}} for dtype in ("bfloat16", "float64")]
    coarse, fine = sides
    for given, other in ((coarse, "float64"), (fine, "bfloat16"), (coarse, "bfloat16")):
        [row] = compared([point(backend="scripted", **given)], f"scripted,dtype={other},nll=0.1").rows
        assert row.largest_allowed == 0.5 + 64 * 64 * 2.0**-24
        assert row.failed and row.largest == pytest.approx(0.1)  # all tokens, not one: by the mean


def test_where_texts_part_the_reference_is_asked() -> None:
    one = point(task="passkey", backend="scripted", backend_parameters={"writes": [5, 6, 7]}, n=1)
    found = compared([one], "scripted,writes=[5,6,9]", "scripted,writes=[5,6]", "scripted,writes=[5,6,7]")
    assert [row.largest for row in found.rows] == pytest.approx(
        [0.1, 0.3, 0.0]
    )  # 7 and 9, and 1, which ends it: tenths
    assert [row.mean for row in found.rows] == pytest.approx([0.1 / 3, 0.3 / 3, 0.0])
    assert [event for event in EVENTS if event.startswith("choose")] == [
        "choose [[7], [9]] after 6",
        "choose [[7], [1]] after 6",
    ]


def test_refusals_are_said_once_and_fail_nothing() -> None:
    found = compared(
        [point(method, 512, backend="scripted") for method in ("none", "yarn", "ntk")],
        "scripted,fault=refuses",
        "scripted,fault=closed",
        "scripted,fault=breaks",
    )
    refuses, closed, breaks = by_backend(found).values()
    assert [row.refused for row in refuses] == [None, "cannot realise inv_freq, scale", "cannot realise inv_freq"]
    assert [row.refused for row in closed] == ["nobody | is at home\n# today"] * 3
    assert [row.refused for row in breaks] == ["gone in the middle"] * 3
    assert not found.failed
    table, _, notes = compare.agreement_table(found).partition("\n\n")
    assert table.count("refused (1)") == 3 and "nobody \\| is at home # today" in notes
    assert "scripted(fault=closed): not loaded." in notes
    assert EVENTS.count("close 0.0") == 3  # two others and the reference: what was not opened is not closed


@pytest.mark.slow
def test_what_the_reference_refuses_is_said_and_so_is_a_cell_without_an_answer() -> None:
    reference: dict[str, Any] = {"backend": "scripted", "backend_parameters": {"fault": "closed"}}
    [row] = compared([point("none", 64, **reference)], "scripted").rows
    assert row.refused == "nobody | is at home\n# today" and not row.failed
    reference["backend_parameters"] = {"fault": "refuses"}
    [row] = compared([point("ntk", 512, **reference)], "scripted,fault=breaks").rows
    assert row.refused == "cannot realise inv_freq"  # the reference's own word comes first
    [row] = compared([point(length=8, task="passkey", backend="scripted")], "chance").rows
    assert row.refused is not None and row.refused.startswith("passkey needs at least") and not row.failed


def test_text_of_unknown_origin_begins_no_column_and_no_line() -> None:
    text = compare.agreement_table(compared([point(backend="scripted")], "scripted,fault=a|b"))
    table, _, notes = text.partition("\n\n")
    assert [line.replace("\\|", "").count("|") for line in table.splitlines()] == [4, 4, 4]
    assert "scripted(fault=a\\|b)" in table
    assert "by \\| hand \\| too" in notes


def test_data_holds_what_the_table_shows_and_the_machine() -> None:
    found = compared([point(backend="scripted")], "scripted,nll=1.0")
    data = json.loads(json.dumps(found.as_data()))
    assert data["failed"] is True and data["rows"][0]["failed"] is True and data["rows"][0]["largest"] == 1.0
    assert data["reference"]["dtype"] == "float64"
    assert {"processor", "cores", "packages"} <= data["provenance"].keys()
    assert restored(data) == replace(found, protocols=dict(found.protocols))


def restored(data: Mapping[str, Any]) -> compare.ParityResult:
    """What was compared, from its data."""
    given = {key: value for key, value in data.items() if key not in ("provenance", "failed")}
    rows = [
        compare.CellAgreement(**{key: value for key, value in row.items() if key != "failed"}) for row in data["rows"]
    ]
    sides = [compare.ComparedBackend(**side) for side in data["others"]]
    return compare.ParityResult(
        **{**given, "rows": rows, "others": sides, "reference": compare.ComparedBackend(**data["reference"])}
    )


# what a user writes


def test_a_backend_is_written_with_its_parameters() -> None:
    assert compare.backend_config_of_word("hf") == {**registry.read_named_config("backend", "hf"), "name": "hf"}
    found = compare.backend_config_of_word("scripted,url=http://a.b:8000/v1?x=1,2,share=0.1,list=[1,2],on=true")
    assert {key: value for key, value in found.items() if key != "_target_"} == {
        "name": "scripted",
        "url": "http://a.b:8000/v1?x=1,2",
        "share": 0.1,
        "list": [1, 2],
        "on": True,
    }
    with pytest.raises(ValueError, match="unknown backend 'vlm'"):
        compare.backend_config_of_word("vlm")
    with pytest.raises(ValueError, match="--against hf,dtype=\\[ cannot be read"):
        compare.backend_config_of_word("hf,dtype=[")


def test_a_sweep_is_one_job() -> None:
    job = compare.job_of([point(method, length) for method in ("none", "pi") for length in (128, 64)])
    assert [method.label for method in job.methods] == ["none", "pi"]
    assert list(job.lengths) == [64, 128] and job.n == compare.DEFAULT_N_QUESTIONS and list(job.seeds) == [0]
    assert compare.job_of([point(length=None)]).lengths == [512]  # twice the trained length
    assert compare.job_of([point(n=5)]).n == 5


@pytest.mark.parametrize(
    ("points", "said"),
    [
        ([{}, {"task": "passkey"}], "several of task"),
        ([{}, {"seed": 1}], "several of seed"),
        ([{"seed": [0, 1]}], "seed must be a whole number"),
        ([{"length": 1}], "at least 2 tokens"),
    ],
)
def test_what_is_no_comparison_is_said(points: list[dict[str, Any]], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        compare.job_of([point(**given) for given in points])


def test_a_comparison_needs_others_each_once_and_no_probes() -> None:
    with pytest.raises(ValueError, match="--against needs backends"):
        compared([point()])
    with pytest.raises(ValueError, match="each once, got chance, chance"):
        compared([point()], "chance", "chance")
    with pytest.raises(ValueError, match="resolution probes attention"):
        compared([point(task="resolution")], "chance")


# the committed tables


@pytest.mark.parametrize(
    ("name", "table", "others"),
    [("parity", "table", {"native", "vllm"}), ("server", "server", {"native", "vllm", "openai"})],
)
def test_the_committed_tables_are_the_committed_records(name: str, table: str, others: set[str]) -> None:
    folder = ROOT / "results" / "parity"
    found = restored(json.loads((folder / f"{name}.json").read_text()))
    assert (folder / f"{table}.md").read_text() == compare.agreement_table(found) + "\n"
    assert not found.failed
    answering = {row.backend.partition("(")[0] for row in found.rows if row.refused is None}
    assert answering == others
    assert cast(str, found.reference.version).startswith("transformers")
