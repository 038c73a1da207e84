"""Proofs by betting: against hand calculations, and against what a false claim may reach."""

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from scipy.stats import binom, chi2, t

from lexbench.commands import main
from lexbench.report import notes
from lexbench.report.check import power
from lexbench.report.check.certificate import certificate_statement
from lexbench.report.check.check import check_runs
from lexbench.report.check.formats import check_command
from lexbench.report.check.text import reason_text
from lexbench.report.notes import note_text
from lexbench.stats.certificates import (
    STAKE_FRACTIONS,
    WEALTH_SHARE_OF_STAKE,
    clusters_to_prove,
    fixed_test_clusters,
    log_wealth,
    losses_are_proven,
    prove_losses,
    prove_small_loss,
)
from lexbench.stats.intervals import student_halfwidth
from lexbench.stats.notes import Note, NoteKind
from lexbench.stats.pairs import Outcome
from tests.report.outcomes import answers, folder, refused, right, texts


def outcomes(amounts: list[float], clusters: list[str] | None = None) -> list[Outcome]:
    names = clusters or [str(place) for place in range(len(amounts))]
    return [
        Outcome(index=place, cluster=name, amount=amount)
        for place, (amount, name) in enumerate(zip(amounts, names, strict=True))
    ]


def test_the_wealth_is_the_product_of_all_bets() -> None:
    margin, cap, losses = 0.1, 0.4, [0.0, 0.3, 0.9, -0.2]
    by_hand = 0.0
    for stake, share in zip(STAKE_FRACTIONS, WEALTH_SHARE_OF_STAKE, strict=True):
        product = share
        for loss in losses:
            product *= 1 + stake / (cap - margin) * (margin - min(loss, cap))
        by_hand += product
    assert log_wealth(losses, margin, cap)[-1] == pytest.approx(math.log(by_hand), rel=1e-12)


def test_answers_that_never_change_are_proven_when_the_largest_bet_has_won_twenty_times() -> None:
    """Half the wealth grows by 1 + 0.95 * 0.02 / 0.98 a question, to 20 after 192.1 of them; the rest helps."""
    proof = prove_small_loss(outcomes([1.0] * 200), outcomes([1.0] * 200), "accuracy", 0.02)
    assert proof is not None and proof.at is not None
    growth = math.log(1 + 0.95 * 0.02 / 0.98)
    assert math.log(20) / growth < proof.at <= math.ceil(math.log(40) / growth) == 193
    short = prove_small_loss(outcomes([1.0] * 100), outcomes([1.0] * 100), "accuracy", 0.02)
    assert short is not None and short.at is None and short.more is not None
    assert short.more == 93


@pytest.mark.slow
def test_no_fold_is_proven_more_often_than_one_in_twenty_where_the_loss_is_the_margin() -> None:
    """Looked at after each of 400 clusters; a binomial bound on 2,000 deployments."""
    rng = np.random.default_rng(5)
    for metric, margin, losses in (
        ("accuracy", 0.05, (rng.random((2000, 400)) < 0.05) * 1.0),
        ("nll", 0.05, np.where(rng.random((2000, 400)) < 0.25, 0.2, 0.0)),
    ):
        cap = 1.0 if metric == "accuracy" else 4 * margin
        proven = int((log_wealth(losses, margin, cap).max(axis=1) >= math.log(20)).sum())
        assert 0 < proven <= binom.ppf(0.999, 2000, 0.05)


def test_a_cluster_counts_once_by_its_questions_before_the_next_one() -> None:
    """Two later questions of a cluster that has ended change no stake, neither the first nor the one behind it."""
    names = ["a", "a", "b", "b", "a", "a"]
    before, after = outcomes([1, 1, 1, 1, 1, 1.0], names), outcomes([0, 1, 1, 1, 0, 0.0], names)
    proof = prove_small_loss(before, after, "accuracy", 0.02)
    assert proof is not None and proof.losses.tolist() == [0.5, 0.0]
    assert (proof.clusters, proof.questions) == (2, 4)


@pytest.mark.everyday("32-4")
@pytest.mark.parametrize("spread", [1, 4, 10])
@pytest.mark.parametrize("count", [32, 128])
def test_nats_that_lose_just_the_margin_are_seldom_certified_under_any_symmetric_noise(count: int, spread: int) -> None:
    """The mean itself is the margin, not that of losses cut at four margins: a binomial bound on 200 deployments."""
    margin = 0.05
    drawn = np.random.default_rng(3).normal(margin, spread * margin, (200, count))
    certified = sum(prove_losses(losses, "nll", margin).at is not None for losses in drawn)
    assert certified <= binom.ppf(0.999, 200, 0.05)


def test_a_plan_has_students_end_of_the_interval() -> None:
    """At 97.5 % up to 32 clusters, and less beyond; the proof's bootstrap-t of normal noise ends near it."""
    for count, tail in ((24, 0.0125), (224, 0.025 * (1 - 16 / 224))):
        losses = np.random.default_rng(8).normal(0, 1, count)
        reach = t.ppf(1 - tail, count - 1) * losses.std(ddof=1) / math.sqrt(count)
        squares = np.square(losses - losses.mean()).sum()
        assert student_halfwidth(np.array([count]))[0] * math.sqrt(squares / count) == pytest.approx(reach, rel=1e-12)
        end = prove_losses(losses, "nll", 10.0).end
        assert end is not None and end - losses.mean() == pytest.approx(reach, rel=0.1)
    drawn = np.random.default_rng(3).normal(0.05, 0.3, (1000, 256))
    planned = losses_are_proven(drawn, "nll", 0.05)[:, [31, 63, 127, 255]].sum(axis=0)
    assert (planned <= binom.ppf(0.999, 1000, 0.05)).all()


def test_a_large_loss_of_a_document_is_in_the_interval_and_counts_up_to_the_cap_in_the_bets() -> None:
    before, after = outcomes([3.0] * 40), outcomes([3.0] * 39 + [13.0])
    proof = prove_small_loss(before, after, "nll", 2.0)
    assert proof is not None and (proof.above, proof.cap) == (1, 8.0) and proof.mean == pytest.approx(0.25)
    assert proof.at is not None and proof.at < 40  # the wealth was there before it came
    first = prove_small_loss(outcomes([3.0] * 60), outcomes([13.0] + [3.0] * 59), "nll", 2.0)
    assert first is not None and first.at is not None and first.at > proof.at
    narrow = prove_small_loss(before, after, "nll", 0.3)
    assert narrow is not None and narrow.mean < 0.3 < (narrow.end or 0.0) and narrow.wealth > 20
    assert narrow.at is None and narrow.more is not None and narrow.more > 1000
    lost = prove_small_loss(before, after, "nll", 0.05)
    assert lost is not None and lost.at is None and lost.more is None


def test_what_is_needed_follows_from_the_pilot() -> None:
    same = np.zeros(30)
    half, _, most = clusters_to_prove(same, "nll", 0.05, 100)
    at = prove_small_loss(outcomes([3.0] * 30), outcomes([3.0] * 30), "nll", 0.05)
    assert at is not None and half == most == at.at
    noisy = np.random.default_rng(0).normal(0, 0.05, 30)
    assert clusters_to_prove(noisy, "nll", 0.05, 400, 0.0)[2] > most
    assert np.isinf(clusters_to_prove(noisy, "nll", 0.05, 200, 0.08)).all()  # it loses more than the margin
    wide = 29 * float(noisy.var(ddof=1)) / chi2.ppf(0.1, 29)
    assert fixed_test_clusters(noisy, "nll", 0.05) == math.ceil((1.6449 + 1.2816) ** 2 * wide / 0.05**2)


def test_a_few_documents_cannot_show_what_one_in_ten_does() -> None:
    """Where none of n breaks, a share s breaks none of them with the chance (1 - s)^n: 5 % at 1 - 0.05^(1/n)."""
    for count, share in ((16, 0.1707), (59, 0.0495)):
        proof = prove_losses(np.zeros(count), "nll", 0.05)
        assert proof.unseen_share == pytest.approx(1 - 0.05 ** (1 / count)) == pytest.approx(share, abs=1e-4)
    one = prove_losses(np.array([9.0, *[0.0] * 39]), "nll", 0.5)
    assert one.above == 1 and one.unseen_share is not None
    assert binom.cdf(1, 40, one.unseen_share) == pytest.approx(0.05)
    assert prove_losses(np.zeros(16), "accuracy", 0.05).unseen_share is None  # no score loses more than 1
    assert note_text(Note(NoteKind.PROVEN, (13, 16, 0, 0.2, 1 - 0.05 ** (1 / 16), None))) == (
        "proven after 13 of 16 clusters, none of them lost more than 0.2, up to 17 % of documents may"
    )


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["nats", "answers"])
def test_nine_tenths_of_plans_from_pilots_of_24_keep_their_promise(kind: str) -> None:
    """Each of 60 pilots plans; how many of 200 deployments of the true noise pass with that many clusters."""
    rng = np.random.default_rng(2)
    metric, margin = ("nll", 0.05) if kind == "nats" else ("accuracy", 0.1)

    def draw(*shape: int) -> Any:
        if kind == "nats":
            return rng.normal(0, 0.1, shape)
        drawn = rng.random(shape)
        return (drawn < 0.1) * 1.0 - (drawn > 0.9)

    plans = [clusters_to_prove(draw(24), metric, margin, 500, 0.0)[2] for _ in range(60)]
    passed = losses_are_proven(draw(200, 500), metric, margin).mean(axis=0)
    kept = np.array([passed[int(min(plan, 500)) - 1] for plan in plans])
    assert kept.mean() >= 0.9 and (kept >= 0.8).mean() >= 0.85


def test_check_certifies_only_what_is_proven(tmp_path: Path) -> None:
    same = [3.0 + place / 10 for place in range(40)]
    base = folder(tmp_path / "base", texts("none", same), answers("none", right(36, 40)))
    file, out = tmp_path / "base.json", tmp_path / "certificate.json"
    check_command(base, file, update=True)
    found = check_runs(base, file, {"nll": 0.05, "accuracy": 20}, certify=True)
    assert (found.code, found.word) == (0, "CERTIFIED")
    assert [each.proof.at for each in found.verdicts if each.proof] == [13, 17]
    narrow, code = check_command(base, file, certificate_file=out)
    assert code == 2 and narrow.startswith("NOT PROVEN: 1 proven, 1 not proven")
    assert '"certified": false' in out.read_text()
    # A shorter run proves as far as it goes; without proofs asked it is not comparable.
    fewer = folder(tmp_path / "fewer", texts("none", same[:20]))
    for certify, status in ((True, "proven"), (False, "not comparable")):
        found = check_runs(fewer, file, {"nll@512": 0.05}, certify=certify)
        assert next(each.status.value for each in found.verdicts if each.metric == "nll") == status
    worse = folder(tmp_path / "worse", texts("none", [loss + 0.2 for loss in same]), answers("none", right(36, 40)))
    assert check_runs(worse, file, certify=True).word == "REGRESSED"


@pytest.mark.slow
def test_power_and_tolerances_at_lengths_are_said_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = folder(tmp_path / "base", texts("none", [3.0] * 12))
    file = tmp_path / "base.json"
    check_command(base, file, update=True)
    words = ["power", str(base[0]), "--baseline", str(file)]
    assert main.main(words) == 0
    row = next(line for line in capsys.readouterr().out.splitlines() if "last_segment" in line)
    assert [cell.strip() for cell in row.split("|")[2:8]] == ["0.02 nats", "12", "0.000", "13", "13", "2"]
    for more, said in (
        (["--tolerance", "nll@7=0.1"], "names no length of the baseline: choose from 512"),
        (["--loss", "1"], "from 0 to below 1 margin, got 1.0"),
        (["--tolerance", "nll=0"], "tolerance nll must be above 0, got 0: no test proves that nothing is lost"),
    ):
        assert main.main([*words, *more]) == 2
        assert said in capsys.readouterr().err


def test_a_measured_loss_above_the_tolerance_is_never_certified(tmp_path: Path) -> None:
    same = [3.0 + place / 10 for place in range(80)]
    base = folder(tmp_path / "base", texts("none", same))
    file = tmp_path / "base.json"
    check_command(base, file, update=True)
    # Two documents lose 1 nat, the rest nothing: 0.025 on average, of which 0.08 a document count.
    hurt = folder(tmp_path / "hurt", texts("none", [*same[:-2], *(loss + 1 for loss in same[-2:])]))
    found = check_runs(hurt, file, {"nll": 0.02}, certify=True)
    [claim] = [each for each in found.verdicts if each.metric == "nll"]
    assert claim.status.value == "not proven" and "more than the tolerance: raise n" in reason_text(claim)
    # A tolerance above it, and not above the end of its interval.
    found = check_runs(hurt, file, {"nll": 0.03}, certify=True)
    [claim] = [each for each in found.verdicts if each.metric == "nll"]
    assert claim.status.value == "not proven" and "too few to prove less than the tolerance" in reason_text(claim)
    # Above that, too: proven, and the sentence says how losses are counted.
    found = check_runs(hurt, file, {"nll": 0.2}, certify=True)
    assert found.code == 0
    assert certificate_statement(found) == (
        "At 95 %, lexlet loses less than 0.2 nats of last_segment at 512 tokens (the loss of a document counted up to "
        "0.8 nats, 2 of 80 lost more, up to 7.7 % of documents may)."
    )


def test_the_words_for_a_ceiling_decide_no_certificate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All right on both sides: a loss of 20 points is excluded, however that limit is called."""
    run = folder(tmp_path / "run", answers("none", right(40, 40)))
    check_command(run, tmp_path / "base.json", update=True)
    monkeypatch.setattr(notes, "CEILING_WORDS", "the top (1.00)")
    [claim] = check_runs(run, tmp_path / "base.json", {"accuracy": 20}, certify=True).verdicts
    assert claim.status.value == "proven" and reason_text(claim).endswith(", both at the top (1.00)")


def test_a_certificate_claims_of_each_method_what_was_measured_of_it(tmp_path: Path) -> None:
    """`yarn` is refused at 1024: nothing is said of it there. Two seeds have one claim."""
    cells = [answers("none", right(200, 200), length, seed=seed) for length in (512, 1024) for seed in (0, 1)]
    run = folder(tmp_path / "run", *cells, answers("yarn", right(200, 200)), refused("yarn", 1024))
    check_command(run, tmp_path / "b.json", update=True)
    found = check_runs(run, tmp_path / "b.json", {"accuracy": 2}, certify=True)
    at = "less than 2 points of passkey at {} tokens"
    assert certificate_statement(found) == (
        f"At 95 %, lexlet loses {at.format(512)}; {at.format(1024)}; lexlet with yarn loses {at.format(512)}."
    )


def test_a_pilot_of_three_clusters_plans_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = folder(tmp_path / "base", texts("none", [3.0] * 3))
    file = tmp_path / "base.json"
    check_command(base, file, update=True, allow_blind=True)
    assert main.main(["power", str(base[0]), "--baseline", str(file)]) == 2
    said = "a pilot needs 4 clusters to show how much they differ, last_segment none at 512 has 3 clusters: raise n"
    assert said in capsys.readouterr().err


def test_power_says_the_questions_of_each_cluster() -> None:
    """8 haystacks of 4 questions: a plan counts haystacks, and n is 4 times as many."""
    names = [f"text {place // 4}" for place in range(32)]
    for clusters, said in ((names, "8 x 4"), (None, "32")):
        proof = prove_small_loss(outcomes([1.0] * 32, clusters), outcomes([1.0] * 32, clusters), "accuracy", 0.1)
        assert proof is not None
        cell = SimpleNamespace(task="passkey", method="none", length=4096)
        verdict = SimpleNamespace(cell=cell, metric="accuracy", tolerance=10.0, proof=proof)
        found = power.ClaimPower(verdict=cast(Any, verdict), half=20.0, most=40.0, fixed=(10, 20), unspoken=())
        assert said in [each.strip() for each in power.power_table([found]).split("|")]
