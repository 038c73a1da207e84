"""What parts read from outside, each with valid files, as `tests.faults.readers` has it of the core."""

import functools
import json
import shutil
import tempfile
from pathlib import Path

from lexbench.checkpoints.tokenizer import FastTokenizer, load_tokenizer
from lexbench.core import registry
from lexbench.parts.lab.study.plan import StudyStep
from tests.faults.readers import CELLS, Reader, command, function, model_folder, run_folder, score_eight_tokens
from tests.parts.benchmarks.test_official import MADE as COPIES


def harness(folder: Path) -> None:
    """Results of lm-evaluation-harness: choices, and what our own model writes."""
    from tests.parts.exchange import test_lm_eval_results as own

    own.write(folder / "choices", {"colours": (own.RIGHT, own.COLOURS)})
    scores = {"exact_match,strict": 1.0, "exact_match,loose": 1.0}
    rows = [own.written(index, by, " 42", exact_match=1.0) for index in range(2) for by in ("strict", "loose")]
    own.write(folder / "ours", {"keys": (scores, rows)}, own.ours(64), "generate_until")


def babilong(folder: Path) -> None:
    """Predictions as BABILong's code writes them."""
    for length in ("0k", "1k"):
        rows = ',target,output,question\n0,garden,In the garden.,Where is Mary? \n1,office,"a, \n b",Where is John? \n'
        (folder / f"qa1_{length}_instruction_no.csv").write_text(rows)


def infinitebench(folder: Path) -> None:
    """Predictions as InfiniteBench's code writes them."""
    kinds = {"passkey": "71432", "math_calc": [1, 2, 3], "longbook_choice_eng": ["It rains", "B"], "code_run": 4}
    for name, label in kinds.items():
        rows = [{"id": place, "prediction": " 4 or B", "ground_truth": label} for place in range(2)]
        (folder / f"preds_{name}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def copies(folder: Path) -> None:
    """Tiny copies of public benchmarks."""
    for name, (make, _) in COPIES.items():
        (folder / name).mkdir()
        make(folder / name)


def keys(folder: Path) -> None:
    """Key tokens of a corpus."""
    from lexbench.corpora.synthetic import Synthetic
    from tests.key_files import key_file

    corpus = Synthetic(count=2, words=400)
    key_file(folder / "keys.jsonl", corpus, {each.name: [[3, 9], [20, 40]] for each in corpus.documents()}, 8)


def trained(folder: Path) -> None:
    """What `lexbench train` leaves when it is interrupted: a checkpoint and a log."""
    import torch

    from lexbench.parts.lab.native.progress import TrainingProgress

    network = torch.nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(network.parameters())
    network(torch.ones(2)).sum().backward()
    optimizer.step()
    progress = TrainingProgress(folder, "key")
    for step in (1, 2, 3):
        progress.append_log_row({"step": step, "loss": {"text": 1.5}, "seconds": 0.5 * step})
    progress.save(network, optimizer, 3)


def finished_training(folder: Path) -> None:
    """A training's record."""
    from lexbench.core.files import write_text

    write_text(folder / "training.json", json.dumps({"key": "key", "tokens": 3, "seconds": 1.0}))


def zoo(folder: Path) -> None:
    """A study's page: what was measured, and what is known of the models."""
    from lexbench.parts.lab.study import page as pages
    from tests.report.fake_run import finished, keep

    cells = [finished("last_segment", method, at, n=4) for method in ("none", "rerope") for at in (128, 256, 512)]
    keep(folder / "run", cells)
    pages.write_rows(pages.measured_rows([folder / "run"]), folder)
    shutil.rmtree(folder / "run")
    model = {"name": "lexlet", "entry": "rope", "family": "trained", "seed": 0, "encoding": {"name": "rope"}}
    model |= {"start": None, "failed": None, "tokens": 9, "seconds": 1.0, "texts": 2, "last_loss": {}, "device": "CPU"}
    about = {"study": "s", "recipe": "r", "trained_length": 256, "models": [{**model, "parameters": 4}]}
    (folder / "models.json").write_text(json.dumps({**about, "published": []}, indent=1))


def tuned(folder: Path) -> None:
    """A tune's settings and result."""
    (folder / "settings.json").write_text(json.dumps({"model": "lexlet", "length": 512, "space": {}, "seed": 0}))
    (folder / "result.json").write_text(json.dumps({"budget": 4, "rows": []}))


def journal(folder: Path) -> None:
    """A search's journal, as the search itself writes it."""
    _searched(folder)


def _searched(folder: Path) -> object:
    import numpy as np

    from lexbench.parts.search.longrope_search.evolution import EvolutionSettings, search_factors

    settings = EvolutionSettings(population=6, iterations=1, parents=3, mutations=2, crossovers=2, seed=3)
    space = settings.space(4, 4.0, 2)
    start = [np.array([1.0, 1.0, 2.0, 4.0])]
    file, about = folder / "factors.jsonl", {"model": "lexlet", "length": 1024}
    return search_factors(lambda candidate: float(sum(candidate.factors)), space, start, settings, file, about)


def partial(folder: Path) -> None:
    """Key tokens that were found before an interruption."""
    rows = [
        {"document": "a", "tokens": 9, "end": 20, "spans": []},
        {"document": "b", "tokens": 9, "end": 2, "spans": []},
    ]
    (folder / "keys.jsonl.part").write_text("".join(json.dumps(row) + "\n" for row in [HEADER, *rows]))


HEADER = {"key_tokens": 1, "corpus": "c", "documents": 2}


def card(folder: Path) -> None:
    """A model card with a head."""
    run_folder(folder / "run")
    text = (
        "---\nlicense: mit\nlanguage: [en]\nmodel-index:\n- name: lexlet\n  results: []\ntags:\n- x\n---\n\n# Model\n"
    )
    (folder / "README.md").write_text(text)


def step(folder: Path) -> None:
    """The stamp of a study's step."""
    _step(folder).record_success(1.5)


def _step(folder: Path) -> StudyStep:
    return StudyStep(label="train a", words=["train"], log=folder / "log", stamp=folder / "done.json")


def _view(folder: Path) -> None:
    from lexbench.parts.web.view.folders import FolderWatch
    from lexbench.parts.web.view.progress import progress_data

    watch = FolderWatch([folder])
    watch.folders_state()
    runs = watch.read_runs()
    json.dumps(progress_data([*runs], now=2e9), allow_nan=False)


def _copies(folder: Path) -> None:
    """Every benchmark; the first one that cannot be read is the answer."""
    import lexbench

    with tempfile.TemporaryDirectory() as other:
        for name, (make, _) in COPIES.items():
            (Path(other) / name).mkdir()
            asked = make(Path(other) / name)
            asked = {key: str(said).replace(other, str(folder)) for key, said in asked.items() if key != "room"}
            task = lexbench.task(name, **{**asked, "data": str(folder / name), "room": 20})
            task.questions(lexlet_tokenizer(), 1500, 3, 0)


@functools.cache
def lexlet_tokenizer() -> FastTokenizer:
    return load_tokenizer(registry.PACKAGE_FOLDER / "lexlet")


def _keys(folder: Path) -> None:
    import numpy as np

    from lexbench.core.task import Encoded
    from lexbench.parts.search.key_tokens import read_key_tokens, tokens_within

    found = read_key_tokens(folder / "keys.jsonl")
    encoded = Encoded(ids=np.arange(10), starts=np.arange(0, 50, 5), text="x" * 50)
    for spans in found.spans.values():
        tokens_within(encoded, spans)


def _imported_tokenizer(folder: Path) -> None:
    from lexbench.parts.exchange.lm_eval.results.examples import RequestTokenCounter

    RequestTokenCounter(folder).longest_request_tokens([("a text", " more"), ("b", {"max_gen_toks": 3})])


def _weights(folder: Path) -> None:
    from lexbench.parts.lab.native import start
    from lexbench.parts.lab.study.study import count_parameters

    start.read_start(folder).special_token_ids  # noqa: B018
    count_parameters(folder / "model.safetensors")


def _resumed_training(folder: Path) -> None:
    import torch

    from lexbench.parts.lab.native.progress import TrainingProgress

    network = torch.nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(network.parameters())
    TrainingProgress(folder, "key").resume(network, optimizer)
    network(torch.ones(2)).sum().backward()
    optimizer.step()


def _finished_training(folder: Path) -> None:
    from lexbench.parts.lab.native.progress import TrainingProgress

    TrainingProgress(folder, "key")


def _page(folder: Path) -> None:
    from lexbench.parts.lab.study import page as pages

    pages.write_page(folder)


def _tuned(folder: Path) -> None:
    from lexbench.parts.search.tune import tune
    from lexbench.parts.search.tune.settings import TuneSettings

    before = tune._previous_config(folder)
    tune._claim_folder(folder, before, {"model": "lexlet", "length": 512, "space": {}, "seed": 0})
    tune._has_finished_with(folder, TuneSettings(budget=4))


def _partial(folder: Path) -> None:
    from lexbench.parts.search.journal import resume_journal

    resume_journal(folder / "keys.jsonl.part", HEADER)


def _stamp(folder: Path) -> None:
    _step(folder).is_done()


READERS_OF_PARTS = [
    Reader("report --html", run_folder, CELLS, command("report", "{folder}", "--html", "--out", "{out}"), tries=1),
    Reader(
        "share --card",
        card,
        ("README.md",),
        command("share", "{folder}/run", "--card", "{folder}/README.md"),
        keeps=False,
    ),
    Reader("share a run's values", run_folder, CELLS, command("share", "{folder}", "--card", "-", "--method", "none")),
    Reader("share --samples", run_folder, CELLS, command("share", "{folder}", "--samples", "{out}")),
    Reader("view's data", run_folder, CELLS, function(_view)),
    Reader(
        "import lm_eval",
        harness,
        ("*/*",),
        command("import", "lm_eval", "{folder}", "--into", "{out}", "--trained-length", "8", "--length", "64"),
    ),
    Reader("score babilong", babilong, ("*.csv",), command("score", "babilong", "{folder}")),
    Reader("score infinitebench", infinitebench, ("*.jsonl",), command("score", "infinitebench", "{folder}")),
    Reader("benchmarks' data", copies, ("**/*.*",), function(_copies), tries=12),
    Reader("key tokens", keys, ("keys.jsonl",), function(_keys)),
    Reader("key tokens, half found", partial, ("*.part",), function(_partial), keeps=False),
    Reader("tokenizer of an import", model_folder, ("tokenizer*.json", "config.json"), function(_imported_tokenizer)),
    Reader("training from a folder", model_folder, ("*.json", "*.safetensors"), function(_weights)),
    Reader(
        "backend native", model_folder, ("*.json", "*.safetensors"), function(lambda f: score_eight_tokens(f, "native"))
    ),
    Reader("training on its way", trained, ("training.*",), function(_resumed_training), keeps=False),
    Reader("training's record", finished_training, ("training.json",), function(_finished_training)),
    Reader("study's page", zoo, ("measured.parquet", "models.json"), function(_page), keeps=False, tries=3),
    Reader("study's stamp", step, ("done.json",), function(_stamp)),
    Reader("tune", tuned, ("*.json",), function(_tuned), keeps=False),
    Reader("search's journal", journal, ("factors.jsonl",), function(_searched), keeps=False),
]
