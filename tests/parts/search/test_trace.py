"""Falls, choice and page of a trace: expectations by hand on planted answers, and whole traces of tiny models."""

import datetime
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from huggingface_hub import constants
from scipy.stats import binom
from transformers import LlamaConfig, LlamaForCausalLM

from lexbench.callbacks import LengthCurve
from lexbench.checkpoints.checkpoint import locate_checkpoint
from lexbench.commands.main import main
from lexbench.core import registry
from lexbench.core.errors import ConfigError
from lexbench.parts.search.trace import checkpoints, measure, page, training_order
from lexbench.parts.search.trace.checkpoints import Checkpoint, checkpoints_of_words, has_all_bytes
from lexbench.parts.search.trace.choose import order, rank_finalists
from lexbench.parts.search.trace.falls import changes, falls, harms, smallest_found_falls
from lexbench.parts.search.trace.measure import CheckpointRow, Column, columns_of, kept_rows
from lexbench.parts.search.trace.name_numbers import numbers_in
from lexbench.parts.search.trace.settings import Settings
from lexbench.parts.search.trace.trace import Traced, order_rows, summarise_checkpoints, trace
from lexbench.parts.search.trace.training_order import order_checkpoints
from lexbench.parts.search.trace.watch import watch
from lexbench.report.sheet import Paragraph, Remark
from lexbench.stats.cell_outcomes import CellOutcomes
from lexbench.stats.pairs import Outcome
from tests.report.fake_run import cell

DOCUMENTS = 16
BLIND: Mapping[str, float] = {"chance": 0.25}


def row(
    step: int, levels: Mapping[Column, Sequence[float]], metric: str = "nll", targets: int | None = 10
) -> CheckpointRow:
    """A checkpoint with an amount for each question, one a document."""
    kept = {
        column: CellOutcomes(
            id=f"{step} {column}",
            cell=cell(column.task, "none", column.length, n=len(amounts)),
            outcomes={
                metric: [
                    Outcome(index=place, cluster=f"document {place}", amount=amount, targets=targets)
                    for place, amount in enumerate(amounts)
                ]
            },
            floors={} if metric == "nll" else {metric: BLIND},
        )
        for column, amounts in levels.items()
    }
    return CheckpointRow(checkpoint=Checkpoint(path=f"step-{step}", step=step), kept=kept)


def text(length: int) -> Column:
    return Column("last_segment", length)


def steady(level: float, sway: float = 0.0) -> list[float]:
    """Amounts around a level; of opposite sway in neighbouring documents, so that their mean is the level."""
    return [level + sway * (-1) ** place for place in range(DOCUMENTS)]


def test_a_cliff_is_named_from_the_best_checkpoint_before_it_to_the_first_after_it() -> None:
    inside, beyond = text(128), text(512)
    rows = [
        row(0, {inside: steady(30), beyond: steady(29)}),
        row(10, {inside: steady(28), beyond: steady(27)}),
        row(20, {inside: steady(26), beyond: steady(31)}),
        row(30, {inside: steady(24), beyond: steady(33)}),
    ]
    [fall] = falls(rows, columns_of(rows))
    assert (fall.column, rows[fall.before].name, rows[fall.after].name) == (beyond, "10", "20")
    assert list(fall.gaining) == [inside] and fall.fresh is None and not fall.confirmed


def test_a_dip_that_heals_is_no_fall() -> None:
    column = text(512)
    rows = [row(step, {column: steady(level)}) for step, level in enumerate((30, 29, 33, 28))]
    assert any(change.fell for change in changes(rows, columns_of(rows), [(1, 2)]).values())
    assert falls(rows, columns_of(rows)) == []
    [fall] = falls(rows[:3], columns_of(rows))  # as long as it is the newest
    assert (fall.before, fall.after) == (1, 2)


def test_where_a_fall_begins_does_not_weaken_the_test_that_it_is_there() -> None:
    """Of ten checkpoints nine are tested against the newest at a length, where all pairs would be 45."""
    column = text(512)
    rng = np.random.default_rng(4)
    levels = [3.0] * 9 + [3.0 + 0.1]
    rows = [
        row(step, {column: [level + noise for noise in rng.normal(0, 0.05, 16)]}) for step, level in enumerate(levels)
    ]
    [fall] = falls(rows, columns_of(rows))
    assert fall.after == 9
    level, [(_, change)] = 0.05 / 45, changes(rows, columns_of(rows), [(8, 9)]).items()
    assert change.p > level  # alone it would not be told among all pairs


def test_that_no_length_falls_states_the_fall_that_would_have_been_found() -> None:
    """Right and wrong answers: of 32 texts that are right, as many must turn as the sign test asks for."""
    column = Column("passkey", 512)
    rows = [row(step, {column: [1.0] * 31 + [0.0]}, metric="accuracy") for step in range(3)]
    [(metric, size)] = smallest_found_falls(rows, columns_of(rows)).items()
    assert metric == "accuracy" and size is not None
    least = next(m for m in range(32) if 2.0 ** (1 - m) <= 0.05 / 2)
    assert binom.sf(least - 1, 32, size) >= 0.9 - 1e-9


def test_every_pair_length_and_task_counts_in_the_correction() -> None:
    rows = [row(step, {text(128): steady(30 - step), text(512): steady(29 + step)}) for step in (0, 1, 2)]
    found = changes(rows, columns_of(rows), [(0, 1), (0, 2), (1, 2)])
    # Of 16 differences to one side 2 of 2^16 choices of signs reach their sum; the least of 6 such p counts 6 times.
    assert len(found) == 6
    assert [each.p for each in found.values()] == pytest.approx([6 * 2 / 2**16] * 6)
    assert all(change.gained == (column.length == 128) for (column, _), change in found.items())


def test_noise_is_no_fall_and_a_loss_everywhere_is_no_cliff() -> None:
    inside, beyond = text(128), text(512)
    noisy = [row(step, {inside: steady(30, 0.5 * step), beyond: steady(29, -0.5 * step)}) for step in (0, 1, 2)]
    assert falls(noisy, columns_of(noisy)) == []
    worse = [row(step, {inside: steady(30 + step), beyond: steady(29 + step)}) for step in (0, 1)]
    assert [(fall.column, list(fall.gaining)) for fall in falls(worse, columns_of(worse))] == [
        (inside, []),
        (beyond, []),
    ]


def test_answers_at_their_floor_do_not_fall() -> None:
    column = Column("passkey", 512)
    guesses = [[0.3] * DOCUMENTS, [0.2] * DOCUMENTS]  # both intervals reach the chance of 0.25
    rows = [row(step, {column: each}, "accuracy", None) for step, each in enumerate(guesses)]
    assert falls(rows, columns_of(rows)) == []
    rows = [row(step, {column: each}, "accuracy", None) for step, each in enumerate([[1.0] * 16, [0.5] * 16])]
    assert [fall.column for fall in falls(rows, columns_of(rows))] == [column]


def test_more_text_hurts_where_the_same_targets_are_less_likely_behind_it() -> None:
    levels = {text(128): steady(30), text(160): steady(29), text(512): steady(33)}
    [near, far] = harms([row(0, levels)], columns_of([row(0, levels)]))
    assert (near.shorter, near.longer, near.hurts) == (128, 160, False)
    assert far.hurts and far.found.difference == pytest.approx(4 / 10)  # nats over 10 targets of each document
    other = CheckpointRow(checkpoint=Checkpoint(path="x"), kept={**row(0, levels).kept, text(512): _other_targets(33)})
    assert [(each.shorter, each.longer) for each in harms([other], columns_of([other]))] == [(128, 160)]


def _other_targets(level: float) -> CellOutcomes:
    kept = row(0, {text(512): steady(level)}).kept[text(512)]
    moved = [
        Outcome(index=each.index, cluster="elsewhere", amount=each.amount, targets=10) for each in kept.outcomes["nll"]
    ]
    return CellOutcomes(id="moved", cell=kept.cell, outcomes={"nll": moved})


def test_finalists_are_judged_on_fresh_questions_alone() -> None:
    columns = {text(128): "nll", text(512): "nll"}
    chosen = [row(step, {each: steady(level) for each in columns}) for step, level in enumerate((30, 26, 27, 29))]
    assert order(chosen, columns)[:3] == [1, 2, 3]
    fresh = {0: 30.0, 1: 29.0, 2: 28.0, 3: 29.5}
    asked = {step: row(step, {each: steady(level) for each in columns}) for step, level in fresh.items()}
    found = rank_finalists(chosen, asked, [1, 2, 3], columns)
    assert [each.place for each in found] == [2, 1, 3]
    best, second, _ = found
    # Of the best: 2 nats over 10 targets better than the first; it seemed 3 of 10 better. Behind it: 1 of 10.
    assert best.to_first.difference == pytest.approx(-0.2) and best.seemed == pytest.approx(-0.3)
    assert best.behind.difference is None and second.behind.difference == pytest.approx(0.1) and not second.tied
    close = {**asked, 1: row(1, {each: steady(28, 5.0) for each in columns})}
    assert [each.tied for each in rank_finalists(chosen, close, [1, 2], columns)] == [False, True]


def test_a_page_names_the_cliff_and_recommends_nothing_before_fresh_questions(tmp_path: Path) -> None:
    rows = [row(step, {text(128): steady(30 - step), text(512): steady(29 + step)}) for step in (0, 1000)]
    said = page.markdown(found := summarise_checkpoints(rows))
    assert "Cliff of last_segment at 512 tokens after step 0" in said and "while last_segment at 128 gains" in said
    assert "No checkpoint is recommended yet" in said and "from step 1,000 on" in page.markdown(found)
    assert page.write(found, tmp_path) == tmp_path / "trace.md" and (tmp_path / "trace.svg").stat().st_size > 1000


@pytest.mark.parametrize(("uniform", "silent"), [(2.5, True), (2.6, True), (2.7, False)])
def test_nothing_is_taken_where_no_checkpoint_speaks_the_text(uniform: float, silent: bool) -> None:
    """The best has 26 nats for 10 targets inside the trained length; beyond it a loss says nothing of the text."""
    rows = [row(step, {text(128): steady(level), text(512): steady(31)}) for step, level in ((1, 30), (2, 26))]
    rows = [
        replace(
            each, kept={column: replace(one, floors={"nll": {"uniform": uniform}}) for column, one in each.kept.items()}
        )
        for each in rows
    ]
    found = replace(
        summarise_checkpoints(rows), finalists=rank_finalists(rows, dict(enumerate(rows)), [1, 0], {text(128): "nll"})
    )
    [first, *_] = page.screen(found)
    said = "No checkpoint is recommended by last_segment, the mean over lengths of its NLL (nats per token): step 2"
    assert isinstance(first, Paragraph) and first.text.startswith(said if silent else "Take step 2")
    assert ("2.600 nats per token at 128 tokens, within its trained length" in first.text) is silent


def test_checkpoints_with_other_questions_are_refused() -> None:
    rows = [row(step, {text(512): steady(30)}) for step in (0, 1)]
    rows[1] = CheckpointRow(checkpoint=rows[1].checkpoint, kept={text(512): _other_targets(30)})
    with pytest.raises(ConfigError, match=r"question 0 of last_segment at 512 is not the same for step 0 and step 1"):
        summarise_checkpoints(rows)
    with pytest.raises(ConfigError, match="no task and length"):
        summarise_checkpoints([row(0, {text(512): steady(30)}), row(1, {text(128): steady(30)})])


# names of checkpoints


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("checkpoint-4000", 4000),
        ("step-1k", 1000),
        ("step_1_000", 1000),
        ("llama-3-8b-step100", 100),
        ("2000", 2000),
        ("stage1-step140000-tokens294B", None),  # stage 2 counts its steps anew
        ("epoch_3", None),
        ("tokens-1.5B", None),
        ("model-7b", None),
        ("main", None),
    ],
)
def test_a_name_tells_its_step(name: str, step: int | None) -> None:
    assert numbers_in(name).step == step


ORDERED = [
    # Of OLMo 2 on the hub: stage 2 begins behind the end of stage 1, though it counts its steps anew.
    "stage1-step1000-tokens3B stage1-step140000-tokens294B stage2-ingredient1-step11000-tokens46B",
    "stage1/checkpoint-1000 stage2/checkpoint-500",
    "tokens-200M tokens-1.5B tokens-10B tokens-1T",
    "200Mtokens 10Btokens",
    "step-500 step-1k step-2k step-1M",
    "step2e4 step1e5",
    "checkpoint-20 checkpoint-100",
    "20-steps 100-steps",
    "iter_0000200 iter_0001000",
    "epoch-0.5 epoch-1 epoch-10",
    "epoch=1-step=500 epoch=2-step=100 epoch=2-step=200",
    "ep0-ba1000 ep1-ba2000",
    "model-9 model-10",
    "TinyLlama-1.1B-intermediate-step-50K-105b TinyLlama-1.1B-intermediate-step-1431k-3T",
    "llama-3-8b-step20 llama-3-8b-step100",
]


def named(*names: str) -> list[Checkpoint]:
    return [Checkpoint(path="org/name", revision=name, step=numbers_in(name.split("/")[-1]).step) for name in names]


@pytest.fixture
def no_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training_order, "hub_is_reached", lambda: False)


@pytest.mark.parametrize("names", ORDERED)
def test_units_stages_and_natural_order_of_names_decide(names: str, no_hub: None) -> None:
    in_order = names.split()
    for given in (in_order[::-1], sorted(in_order)):
        found, _ = order_checkpoints(named(*given), None)
        assert [each.revision for each in found] == in_order


@pytest.mark.parametrize(
    ("names", "why"),
    [
        ("base checkpoint-20 checkpoint-100", "base and checkpoint-20 differ in more than their numbers"),
        ("main step1000", "differ in more than their numbers"),
        ("alpha beta", "differ in more than their numbers"),
        ("step-1000k step-1M-", "differ in more than"),
        ("step100-tokens2B step200-tokens1B", "one number rises, another falls"),
        ("2024-12-31 2025-01-01", "one number rises, another falls"),
        ("seed1-step100 seed2-step200", "several runs"),
        ("stage2-ingredient1-step10 stage2-ingredient2-step20", "several runs"),
        ("stage1-step10 step20", "some names have a stage and some none"),
        ("ckpt-5-a1 ckpt-5-a2", "are the same step of the training"),
    ],
)
def test_names_that_mix_double_or_leave_the_order_open_are_refused(names: str, why: str, no_hub: None) -> None:
    found = [replace(each, step=None) for each in named(*names.split())]
    with pytest.raises(ConfigError, match=rf"the order of the checkpoints is open: .*{why}.*: give order=\["):
        order_checkpoints(found, None)
    assert order_checkpoints(found, ["given"]) == (found, "order=given")
    turned = names.split()[::-1]
    assert [each.revision for each in order_checkpoints(found, turned)[0]] == turned


def test_an_order_names_every_checkpoint_once() -> None:
    found = named("base", "checkpoint-20")
    for names, said in (
        (["base"], "order lacks 20"),
        (["base", "base", "checkpoint-20"], "order names one twice by base"),
        (["base", "checkpoint-30"], "order names no checkpoint by checkpoint-30: name each once, of base,20"),
    ):
        with pytest.raises(ConfigError, match=said):
            order_checkpoints(found, names)
    wrong: Any
    for wrong in ("steps", []):
        with pytest.raises(ConfigError, match="order must list checkpoints, got"):
            Settings(order=wrong)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "the order of the checkpoints is open: base and checkpoint-20 differ in more than their numbers"),
        (["order=given"], "2 checkpoints, by order=given: base, 20"),
        (["order=[checkpoint-20,base]"], r"2 checkpoints, by order=[...]: 20, base"),
        (["order=[20,base]"], r"2 checkpoints, by order=[...]: 20, base"),
        (["order=20"], "order lacks base"),
    ],
)
def test_the_command_asks_for_an_order_and_takes_it(
    words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("base", "checkpoint-20"):
        model(tmp_path / "runs" / name, tokenizer=False)
    capsys.readouterr()
    assert main(["trace", str(tmp_path / "runs"), f"out={tmp_path / 'out'}", "lengths=[1]", *words]) == 2
    assert said in capsys.readouterr().err and not (tmp_path / "out").exists()


def test_dates_of_revisions_decide_where_names_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    days = {"alpha": 2, "beta": 1, "twin": 1}
    monkeypatch.setattr(training_order, "hub_is_reached", lambda: True)

    def info(path: str, revision: str) -> SimpleNamespace:
        return SimpleNamespace(last_modified=datetime.datetime(2026, 1, days[revision], tzinfo=datetime.UTC))

    monkeypatch.setattr("huggingface_hub.model_info", info)
    found, rule = order_checkpoints(named("alpha", "beta"), None)
    assert [each.revision for each in found] == ["beta", "alpha"] and rule == "date of the revision's last commit"
    for names in (("beta", "twin"), ("main", "alpha")):  # one date; a branch that later commits move
        with pytest.raises(ConfigError, match="is open"):
            order_checkpoints(named(*names), None)


@pytest.mark.parametrize(
    ("name", "state", "said"),
    [
        ("step--5", None, "is negative"),
        ("checkpoint-" + "9" * 400, None, "has more than 18 digits"),
        ("9" * 200, None, "has more than 18 digits"),
        ("last", "-5", "is negative"),
        ("last", "9" * 300, "has more than 18 digits"),
        ("last", "9" * 400, "a number of 400 digits"),
        ("last", "1.5", "must be a whole number"),
        ("last", "true", "must be a whole number"),
    ],
)
def test_a_step_that_counts_nothing_is_refused(
    name: str, state: str | None, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    word = f"org/name@{name}"
    if state is not None:
        folder = tmp_path / name
        folder.mkdir()
        (folder / "config.json").write_text("{}")
        (folder / "trainer_state.json").write_text(f'{{"global_step": {state}}}')
        word = str(folder)
    with pytest.raises(ConfigError, match=said) as refused:
        checkpoints_of_words([word])
    assert len(str(refused.value)) < 400


def model(folder: Path, seed: int = 0, tokenizer: bool = True) -> Path:
    """A checkpoint with random weights."""
    torch.manual_seed(seed)
    size = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    LlamaForCausalLM(
        LlamaConfig(vocab_size=2048, max_position_embeddings=64, tie_word_embeddings=True, **size)
    ).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json") if tokenizer else ():
        (folder / name).write_bytes((locate_checkpoint("lexbench:lexlet", None) / name).read_bytes())
    return folder


def stores(folder: Path, step: int) -> Path:
    """The folder, with a step of transformers' Trainer."""
    (folder / "trainer_state.json").write_text(json.dumps({"global_step": step}))
    return folder


def test_a_stored_step_counts_whatever_the_name_says(tmp_path: Path) -> None:
    for step in (1000, 200):
        model(tmp_path / f"checkpoint-{step}", tokenizer=False)
    stores(model(tmp_path / "final", tokenizer=False), 1500)

    def steps(*words: str) -> list[int | None]:
        return [each.step for each in order_checkpoints(checkpoints_of_words(words), None)[0]]

    assert steps(str(tmp_path / "*")) == steps(str(tmp_path)) == [200, 1000, 1500]
    stores(tmp_path / "checkpoint-200", 3000)
    assert steps(str(tmp_path)) == [1000, 1500, 3000]
    with pytest.raises(ConfigError, match="are both 3000"):
        checkpoints_of_words([str(tmp_path), str(model(tmp_path / "again" / "step-3000", tokenizer=False))])
    model(tmp_path / "base", tokenizer=False)
    with pytest.raises(ConfigError, match="some store a step, base neither stores nor names one"):
        steps(str(tmp_path))


def test_stored_steps_that_contradict_the_stages_are_refused(tmp_path: Path) -> None:
    one = stores(model(tmp_path / "stage1" / "checkpoint-1000", tokenizer=False), 1000)
    two = stores(model(tmp_path / "stage2" / "checkpoint-500", tokenizer=False), 500)
    with pytest.raises(ConfigError, match="stored steps rise in another order than the stages"):
        order_checkpoints(checkpoints_of_words([str(one), str(two)]), None)


def test_an_order_is_printed_and_a_stage_that_counts_anew_is_drawn_by_places(tmp_path: Path) -> None:
    rows = [
        replace(row(step, {text(128): steady(30 - place)}), checkpoint=each)
        for place, (step, each) in enumerate(
            zip((1000, 500), named("stage1/checkpoint-1000", "stage2/checkpoint-500"), strict=True)
        )
    ]
    in_order, rule = order_rows(rows[::-1], Settings())
    found = summarise_checkpoints(in_order, rule)
    assert isinstance(found, Traced) and found.steps is None
    assert page.screen(found)[-1] == Remark("Order of the checkpoints, by stage in the name: 1000, 500.")
    assert page.write(found, tmp_path).exists()


def test_a_checkpoint_that_is_being_written_is_waited_for_or_refused(tmp_path: Path) -> None:
    folder = model(tmp_path / "checkpoint-1", tokenizer=False)
    weights = folder / "model.safetensors"
    whole = weights.read_bytes()
    assert has_all_bytes(weights)
    weights.write_bytes(whole[:-1])
    assert not has_all_bytes(weights) and checkpoints_of_words([str(tmp_path / "*")], waiting=True) == []
    with pytest.raises(ConfigError, match=r"checkpoint-1 is incomplete \(model.safetensors\): wait"):
        checkpoints_of_words([str(tmp_path / "*")])
    weights.write_bytes(b"\xff" * 4)
    assert not has_all_bytes(weights)


@pytest.mark.parametrize(
    ("word", "said"),
    [("nowhere*", "no checkpoint matches nowhere"), ("./nowhere", "checkpoint ./nowhere does not exist"), ("", "")],
)
def test_a_word_that_names_no_checkpoint_is_refused(
    word: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if word:
        with pytest.raises(ConfigError, match=said):
            checkpoints_of_words([word])
        assert checkpoints_of_words([word], waiting=True) == []
    else:
        with pytest.raises(ConfigError, match=r"has no config\.json, nor has a folder in it"):
            checkpoints_of_words([str(tmp_path)])


def test_revisions_are_found_in_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refs = tmp_path / "models--org--name" / "refs"
    refs.mkdir(parents=True)
    for name in ("main", "step3000", "step200"):
        (refs / name).write_text("0" * 40)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(checkpoints, "hub_is_reached", lambda: False)
    found = {each.revision: each.step for each in checkpoints_of_words(["org/name@step*"])}
    assert found == {"step200": 200, "step3000": 3000}
    assert checkpoints_of_words(["org/name@main"]) == [Checkpoint(path="org/name", revision="main")]
    with pytest.raises(ConfigError, match="no revision of org/name matches v"):
        checkpoints_of_words(["org/name@v*"])


@pytest.mark.everyday("misspelt", "adapter")
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["CKPT"], "trace needs a folder for its results: give out=runs/trace"),
        (["CKPT", "out=OUT"], "trace needs lengths"),
        (["CKPT", "out=OUT", "lengths=[1]"], "lengths must be whole numbers of at least 2 tokens"),
        (["out=OUT"], "holds no measured checkpoint: give CKPT"),
        (["--watch", "out=OUT"], "--watch needs to know where checkpoints appear"),
        (["CKPT", "out=OUT", "lenghts=[64]"], "unknown setting lenghts"),
        (["CKPT", "out=OUT", "lengths=[64]", "task=nothing"], "nothing"),
        (["ADAPTER", "out=OUT", "lengths=[64]"], "holds an adapter alone"),
    ],
    ids=["out", "lengths", "short", "nothing", "watch", "misspelt", "task", "adapter"],
)
def test_a_mistake_is_told_in_one_line_and_claims_no_folder(
    words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "adapter-9").mkdir()
    (tmp_path / "adapter-9" / "adapter_config.json").write_text("{}")
    places = {"OUT": tmp_path / "out", "CKPT": model(tmp_path / "step-1"), "ADAPTER": tmp_path / "adapter-9"}
    for name, place in places.items():
        words = [word.replace(name, str(place)) for word in words]
    capsys.readouterr()  # transformers says that it writes
    assert main(["trace", *words]) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1
    assert not (tmp_path / "out" / "trace.jsonl").exists()


# whole traces


def asked(out: Path, **changed: Any) -> dict[str, Any]:
    """A short trace."""
    return {
        "tasks": [{**registry.read_named_config("task", "last_segment"), "name": "last_segment"}],
        "corpus": {**registry.read_named_config("corpus", "synthetic"), "name": "synthetic"},
        "backend": {**registry.read_named_config("backend", "native"), "name": "native"},
        "settings": Settings(**{"lengths": [32, 64], "n": 4, "out": str(out), **changed}),
    }


@pytest.mark.slow
def test_a_trace_resumes_and_watches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    runs, out = tmp_path / "runs", tmp_path / "out"
    for step in (1, 2):
        model(runs / f"checkpoint-{step}", step)
    found = trace([str(runs)], **asked(out))
    assert "2 checkpoints, by step in the name: 1, 2\n" in capsys.readouterr().err
    assert [each.name for each in found.rows] == ["1", "2"] and len(found.finalists) == 2
    assert found.questions == 4 and [column.length for column in found.columns] == [32, 64]

    def fails(*_: Any, **__: Any) -> None:
        raise AssertionError("measured twice")

    with monkeypatch.context() as patched:  # nothing is measured again, not even loaded
        patched.setattr(measure, "execute_job", fails)
        again = trace([str(runs)], **asked(out))
    assert page.markdown(again) == page.markdown(found)
    with pytest.raises(ConfigError, match=r"has n 4, now 5"):
        trace([str(runs)], **asked(out, n=5))

    # A checkpoint that appears during the watch is measured once its files have settled.
    shown: list[list[str]] = []
    waits = iter(range(10))

    def wait() -> None:
        if (place := next(waits)) == 1:
            model(runs / "checkpoint-3", 3)
        if place == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        watch([str(runs / "*")], **asked(out), show=lambda it: shown.append([each.name for each in it.rows]), wait=wait)
    assert shown == [["1", "2"], ["1", "2", "3"]]
    with pytest.raises(ConfigError, match="holds a trace of checkpoints: give them again"):
        trace([], **asked(out))

    # Changed weights are measured anew.
    model(runs / "checkpoint-3", 4)
    assert trace([str(runs)], **asked(out)).rows[2].kept != again.rows[1].kept
    rows = [json.loads(line) for line in (out / "trace.jsonl").read_text().splitlines()]
    assert rows[0]["lengths"] == [32, 64]


@pytest.mark.slow
def test_a_watch_goes_on_when_checkpoints_are_deleted_or_written_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs, out = tmp_path / "runs", tmp_path / "out"
    model(runs / "checkpoint-1", 1)
    shown: list[tuple[list[str], list[str]]] = []

    def show(found: Traced) -> None:
        shown.append(([each.name for each in found.rows], [each.id for each in found.rows[0].kept.values()]))

    acts: dict[int, Callable[[], object]] = {
        2: lambda: shutil.rmtree(runs / "checkpoint-1"),  # the only measured one is rotated away
        4: lambda: model(runs / "checkpoint-1", 2),  # written again, with other weights
        7: lambda: model(runs / "base", 3),  # leaves the order open
        10: lambda: shutil.rmtree(runs / "base"),
        11: lambda: model(runs / "checkpoint-2", 4),
    }
    waits = iter(range(16))

    def wait() -> None:
        if (place := next(waits)) == 15:
            raise KeyboardInterrupt
        acts.get(place, lambda: None)()

    with pytest.raises(KeyboardInterrupt):
        watch([str(runs / "*")], **asked(out), show=show, wait=wait)
    assert [names for names, _ in shown] == [["1"], ["1"], ["1", "2"]]
    assert shown[0][1] != shown[1][1] == shown[2][1]  # cells of other weights
    assert capsys.readouterr().err.count("waiting: the order of the checkpoints is open") == 1


@pytest.mark.slow
def test_a_checkpoint_deleted_while_it_is_read_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model(tmp_path / "runs" / "checkpoint-1", 1)
    measure_it = measure.Bench.measure_checkpoint

    def deletes(bench: measure.Bench, checkpoint: Checkpoint, *rest: str) -> CheckpointRow:
        shutil.rmtree(checkpoint.path)
        return measure_it(bench, checkpoint, *rest)

    monkeypatch.setattr(measure.Bench, "measure_checkpoint", deletes)
    waits = iter(range(4))

    def wait() -> None:
        if next(waits) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        watch([str(tmp_path / "runs" / "*")], **asked(tmp_path / "out"), show=lambda _: None, wait=wait)


@pytest.mark.slow
def test_curves_kept_during_a_training_make_the_same_page(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(locate_checkpoint("lexbench:lexlet", None))
    curve = LengthCurve(tokenizer, [32, 64], every=5, share=1, n=4, keep=tmp_path, corpus="synthetic")
    for step in (5, 10):
        network = LlamaForCausalLM.from_pretrained(model(tmp_path / "model", step))
        values = curve.measure(network, step)
        assert values["lexbench/last_segment/nll@64"] > 0
    found = trace([], **asked(tmp_path))
    assert [each.label for each in found.rows] == ["step 5", "step 10"] and "step 10" in page.markdown(found)
    curve.measure(LlamaForCausalLM.from_pretrained(model(tmp_path / "model", 99)), 10)  # another training's step
    with pytest.raises(ConfigError, match=r"step 10 has several cells of last_segment"):
        kept_rows(tmp_path)
