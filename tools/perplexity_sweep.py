"""Perplexity over lengths, by lexbench, lm_eval and a plain loop: python tools/perplexity_sweep.py

The same model (lexlet, a plain Llama folder, or --model; float32), the same documents, the same machine, each side in
processes of its own. Two protocols:

    prefix     the first tokens of a document in one window; every one after BOS is a target
    sliding    windows of the length over twice the longest length, moved by a quarter, each begun with BOS; each token
               is a target once. lm_eval's rolling windows do not overlap, and only the first begins with BOS: it
               has no such number

lm_eval is lm-evaluation-harness, its own command line. It is asked with `loglikelihood_rolling`, once for each
`max_length` as a sweep must, and once more for all lengths in one process, which it can here, as the documents are cut
beforehand; `--batch` documents at once. The plain loop holds all logits of a window, as transformers' guide to
perplexity does.

Two factors that are not one: `scoring` is the time in which documents are scored, and what grows with a user's
lengths, texts and model; `command` is everything, with imports, loading and tables, and says what a short sweep
costs. New rows up to `--vocabulary` in the model's head make logits as wide as those of users' models. A side whose
tokens or likelihoods are not lexbench's to 0.001 nats a token makes the comparison void, and the exit code 1.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from lexbench.checkpoints.tokenizer import FastTokenizer, load_tokenizer
from lexbench.core import objects, registry
from lexbench.corpora import Corpus
from lexbench.store.store import Store
from tools import sides

AGREE = 1e-3  # nats a token
Losses = dict[int, dict[str, Any]]  # an array, or a float
"""[length][document] its likelihoods: of every target, or, of lm_eval, of all in one."""


def documents(corpus: Corpus, tokenizer: FastTokenizer, lengths: Sequence[int], n: int, need: int) -> list[str]:
    """n texts of `need` tokens whose beginnings, as text, have the same tokens again at every length."""
    found = list[str]()
    for document in corpus.documents():
        lines = document.text.splitlines(keepends=True)
        for first in range(0, min(len(lines), 200), 5):
            text = "".join(lines[first:]).lstrip()[: 12 * need]
            ids = tokenizer.encode(text).ids
            if len(ids) < need:
                break
            if all(same(tokenizer, ids[: length - 1]) for length in lengths) and same(tokenizer, ids[:need]):
                found.append(tokenizer.decode(ids[:need]))
                break
        if len(found) == n:
            return found
    raise SystemExit(f"{n} documents of {need} tokens are needed, the corpus has {len(found)}: lower --n or --lengths")


def same(tokenizer: FastTokenizer, ids: np.ndarray) -> bool:
    """Whether tokens are those of their own text."""
    return bool(np.array_equal(tokenizer.encode(tokenizer.decode(ids)).ids, ids))


def by_lexbench(protocol: str, folder: Path, options: argparse.Namespace) -> tuple[sides.Ran, float, Losses]:
    """One command."""
    results = folder / "run"
    lengths = ",".join(map(str, options.lengths))
    more = [f"task.document_tokens={2 * max(options.lengths)}"] if protocol == "sliding" else []
    ran = sides.lexbench(
        results,
        "model=local",
        f"model.path={folder.parent / 'model'}",
        "model.bos=true",  # lm_eval begins every text with it
        f"task={protocol}",
        "corpus=files",
        f"corpus.path={folder.parent / 'texts'}",
        f"lengths=[{lengths}]",
        f"n={options.n}",
        f"backend.device={options.device}",
        f"backend.dtype={options.dtype}",
        *more,
    )
    losses: Losses = {}
    for cell in Store(results).load():
        if cell.refused:
            raise SystemExit(f"lexbench refused: {cell.refused}")
        at = losses.setdefault(cell.cell.length, {})
        for sample in sorted(cell.samples, key=lambda sample: sample.index):
            name = sample.cluster.rpartition("#")[2]
            assert sample.nll is not None
            at[name] = np.concatenate([at.get(name, np.empty(0)), sample.nll.astype(np.float64)])
    return ran, sides.asked(results), losses


def by_lm_eval(folder: Path, options: argparse.Namespace, at_once: bool) -> tuple[sides.Ran, float, Losses]:
    """A command for each length, or one."""
    rounds = [options.lengths] if at_once else [[length] for length in options.lengths]
    ran, within, losses = [], 0.0, {}
    for lengths in rounds:
        out = folder / f"out-{'-'.join(map(str, lengths))}"
        names = [f"prefix_{length}" for length in lengths]
        arguments = f"{sides.hf_arguments(folder.parent / 'model', max(lengths), options.dtype)},add_bos_token=False"
        tasks = ["--include_path", str(folder.parent / "tasks"), "--tasks", ",".join(names)]
        each, notes = sides.lm_eval(
            out, "--model", "hf", "--model_args", arguments, *tasks, batch=options.batch, device=options.device
        )
        ran.append(each)
        within += notes["seconds"]
        targets = sum((length - 1) * options.n for length in lengths)
        if (
            notes["targets"] != targets
            or not targets <= notes["tokens"] <= (1.0 if options.batch == 1 else 1.5) * targets
        ):
            raise SystemExit(f"void: lm_eval scored {notes['targets']} of {notes['tokens']} tokens, not {targets}")
        for length, name in zip(lengths, names, strict=True):
            rows = sides.logged(out, name)
            losses[length] = {str(row["doc"]["name"]): -float(row["resps"][0][0]) for row in rows}
    return sides.joined(ran), within, losses


def by_hand(protocol: str, folder: Path, options: argparse.Namespace) -> tuple[sides.Ran, float, Losses]:
    """This program again, in a process of its own."""
    words = ["--lengths", *map(str, options.lengths), "--one", protocol, str(folder.parent), str(folder / "plain")]
    ran = sides.run([sys.executable, __file__, *words])
    stored = np.load(folder / "plain.npz")
    losses: Losses = {length: {} for length in options.lengths}
    for key in stored.files:
        if key != "seconds":
            length, name = key.split()
            losses[int(length)][name] = stored[key]
    return ran, float(stored["seconds"]), losses


def plain(lengths: Sequence[int], protocol: str, folder: Path, out: str) -> None:
    """The loop that one writes oneself: transformers, all logits of a window."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(folder / "model")
    lines = (folder / "texts" / "texts.jsonl").read_text(encoding="utf-8").splitlines()
    texts = [json.loads(line)["text"] for line in lines]
    found: dict[str, Any] = {}
    started = time.perf_counter()
    with torch.inference_mode():
        for place, text in enumerate(texts, 1):
            ids = tokenizer(text, return_tensors="pt", add_special_tokens=False).input_ids[0]
            for length in lengths:
                width, stride = length - 1, length // 4
                used = len(ids) if protocol == "prefix" else 2 * max(lengths) - 1
                ends = [width] if protocol == "prefix" else [*range(width, used, stride), used]
                losses, scored = [], 0
                for end in ends:
                    window = torch.cat([torch.tensor([tokenizer.bos_token_id]), ids[end - width : end]])
                    logits = model(window[None]).logits[0, :-1].float()
                    nll = torch.nn.functional.cross_entropy(logits, window[1:], reduction="none")
                    losses.append(nll[scored - end :])
                    scored = end
                found[f"{length} {place}"] = torch.cat(losses).numpy()
    np.savez(f"{out}.npz", seconds=time.perf_counter() - started, **found)


def differences(ours: Losses, theirs: Losses) -> float:
    """The largest difference in nats a token: of single ones, else of a document's mean."""
    largest = 0.0
    for length, by_document in ours.items():
        if by_document.keys() != theirs[length].keys():
            raise SystemExit(f"void: other documents at {length}: {sorted(by_document)} and {sorted(theirs[length])}")
        for name, nll in by_document.items():
            other = theirs[length][name]
            if isinstance(other, float):
                largest = max(largest, abs(nll.sum() - other) / len(nll))
            elif len(other) != len(nll):
                raise SystemExit(f"void: {len(nll)} and {len(other)} targets in document {name} at {length}")
            else:
                largest = max(largest, float(np.abs(nll - other).max()))
    return largest


def prepare(folder: Path, options: argparse.Namespace) -> None:
    """Model, texts and lm_eval's tasks, as all sides read them."""
    if options.vocabulary:
        sides.widened(options.model, options.vocabulary, folder / "model")
    else:
        (folder / "model").symlink_to(options.model.resolve())
    tokenizer = load_tokenizer(options.model)
    built: Corpus = objects.build_object(registry.read_named_config("corpus", options.corpus), "corpus")
    need = (2 if "sliding" in options.protocols else 1) * max(options.lengths)
    texts = documents(built, tokenizer, options.lengths, options.n, need)
    (folder / "texts").mkdir()
    rows = [{"text": text, "name": str(place)} for place, text in enumerate(texts, 1)]
    lines = "".join(f"{json.dumps(each)}\n" for each in rows)
    (folder / "texts" / "texts.jsonl").write_text(lines, encoding="utf-8")
    for length in options.lengths:
        cut = [tokenizer.decode(tokenizer.encode(text).ids[: length - 1]) for text in texts]
        rows = [{"text": text, "name": str(place)} for place, text in enumerate(cut, 1)]
        sides.task_file(
            folder / "tasks",
            f"prefix_{length}",
            rows,
            "output_type: loglikelihood_rolling\ndoc_to_text: ''\ndoc_to_target: text\n"
            "metric_list:\n  - metric: word_perplexity\n",
        )


def measured(protocol: str, folder: Path, options: argparse.Namespace) -> bool:
    """One protocol's table; whether all sides agree."""
    taken: dict[str, list[tuple[sides.Ran, float]]] = {}
    losses: dict[str, Losses] = {}
    for turn in range(options.repeat):
        work = folder / f"{protocol}-{turn}"
        work.mkdir()
        calls: Mapping[str, Any] = {
            "lexbench": lambda work=work: by_lexbench(protocol, work, options),
            "lm_eval, one process a length": lambda work=work: by_lm_eval(work, options, at_once=False),
            "lm_eval, one process": lambda work=work: by_lm_eval(work, options, at_once=True),
            "plain loop, all logits": lambda work=work: by_hand(protocol, work, options),
        }
        for side, call in calls.items():
            if protocol == "prefix" or not side.startswith("lm_eval"):
                ran, within, losses[side] = call()
                taken.setdefault(side, []).append((ran, within))
    ours = losses["lexbench"]
    targets = sum(len(nll) for by_document in ours.values() for nll in by_document.values())
    print(
        f"\n## {protocol}: {options.n} documents, {targets:,} targets of {', '.join(map(str, options.lengths))} tokens"
    )
    sides.table(":side", "scoring, s", "of lexbench's", "command, s", "of lexbench's", "peak MB", "of lexbench's", "Δ")
    first: tuple[float, float, float] | None = None
    agree = True
    for side, runs in taken.items():
        found = (
            sides.median(within for _, within in runs),
            sides.median(ran.seconds for ran, _ in runs),
            max(ran.bytes for ran, _ in runs) / 1e6,
        )
        first = first or found
        apart = differences(ours, losses[side])
        agree = agree and apart <= AGREE
        ratios = [f"{value / own:.2f}" for value, own in zip(found, first, strict=True)]
        shown = [f"{found[0]:.2f}", ratios[0], f"{found[1]:.1f}", ratios[1], f"{found[2]:.0f}", ratios[2]]
        sides.row(side, *shown, f"{apart:.1e}")
    means = [f"{length}: {np.mean(np.concatenate(list(ours[length].values()))):.4f}" for length in sorted(ours)]
    print(f"\nNats a token at {', '.join(means)}. Δ: the largest difference from lexbench's likelihoods, nats a token.")
    if not agree:
        print(f"\n**Void: a side differs by more than {AGREE} nats a token.**")
    return agree


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="+", default=[1024, 2048, 4096, 8192, 16384])
    parser.add_argument("--model", type=Path, default=sides.LEXLET, metavar="DIR", help="in Hugging Face form")
    parser.add_argument("--n", type=int, default=8, help="documents")
    parser.add_argument("--batch", type=int, default=4, help="documents that lm_eval scores at once")
    parser.add_argument("--vocabulary", type=int, default=32_000, help="tokens of the model's head; 0: its own")
    parser.add_argument("--corpus", default="packages", choices=["stdlib", "pydoc", "packages"])
    parser.add_argument("--protocols", nargs="+", default=["prefix", "sliding"], choices=["prefix", "sliding"])
    parser.add_argument("--repeat", type=int, default=1, help="runs of each side, in turns: medians")
    parser.set_defaults(device="cpu", dtype="float32")
    parser.add_argument("--one", nargs=3, metavar=("PROTOCOL", "FOLDER", "OUT"), help="what the loop's process does")
    options = parser.parse_args()
    if options.one:
        plain(options.lengths, options.one[0], Path(options.one[1]), options.one[2])
        return 0
    sides.header("Perplexity over lengths")
    with tempfile.TemporaryDirectory() as temporary:
        prepare(Path(temporary), options)
        good = [measured(protocol, Path(temporary), options) for protocol in options.protocols]
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
