"""HELMET's parts that need no judge: recall, questions over retrieved passages, re-ranking, books, short answers."""

import hashlib
import math
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from lexbench.core.errors import ConfigError
from lexbench.core.record import Refused
from lexbench.parts.benchmarks import helmet_long
from lexbench.parts.benchmarks.base import Benchmark, BenchmarkExample, BenchmarkRequest, cluster_of
from lexbench.parts.benchmarks.copy import (
    BenchmarkFiles,
    all_assigned_literals,
    assigned_literals,
    checked_field,
    read_data_rows,
)
from lexbench.parts.benchmarks.helmet_long import answer_after_cue
from lexbench.taskkit.matching import contains_all, normalise_as_squad

N_WORKED_EXAMPLES = 2
MAX_LOG10_PAGE_VIEWS = 3.0
"""Limit of log10 of a subject's page views: questions of PopQA on subjects above it are left out."""
RAG_FILE_PATTERNS = {
    **{
        name: (f"kilt/{name}-dev-multikilt_1000_k{{k}}_dep*.jsonl", f"kilt/{name}-train-multikilt_1000_k3_dep*.jsonl")
        for name in ("nq", "triviaqa", "hotpotqa")
    },
    "popqa": ("kilt/popqa_test_1000_k{k}_dep*.jsonl", "kilt/popqa_test_1000_k3_dep*.jsonl"),
    "msmarco": ("msmarco/test_reranking_data_k{k}_dep3.jsonl", "msmarco/test_reranking_data_k10_dep3.jsonl"),
}
"""Patterns of passages and of worked examples."""
RULER_FOLDERS_AND_TOKENS = {
    "ruler_niah_mk_2": ("niah_multikey_2", 50),
    "ruler_niah_mk_3": ("niah_multikey_3", 100),
    "ruler_niah_mv": ("niah_multivalue", 50),
}
"""Folders, and official numbers of new tokens."""
N_RERANKED_QUERIES, QUERY_DRAW_SEED = 100, 42
"""Number of queries of MS MARCO, and the seed that draws them."""
N_COUNTED_RANKS = 10
"""Ranks that count in the NDCG of MS MARCO (NDCG@10)."""


def score(facts: Mapping[str, Any], text: str, scorer: str) -> float:
    """Score in [0, 1] of an answer.

    `msmarco`: NDCG@10 of the longest list of numbers between ">", as `trec_eval` has it; "id" and [ ] : go.

    official: the longest in characters, and numbers that are no document take a rank. repaired: they take none.

    Of RULER_FOLDERS_AND_TOKENS's: the share of the values that occur, in any case. Of books and short answers:
    `helmet_long.score`.

    Of the others: 1 if a right answer occurs in the normalised answer, or in the part of it behind the cue, up to the
    line's end.

    official: as a substring, so "art" is in "party". repaired: as whole words of the part behind the cue.
    """
    if "part" in facts:
        return helmet_long.score(facts, text, scorer)
    if "outputs" in facts:
        return contains_all(text, facts["outputs"])
    if "relevance" in facts:
        return _ndcg_score(_ranked_ids(text), facts["relevance"], scorer)
    cue = str(facts["cue"])
    behind = answer_after_cue(cue + text, cue)
    if scorer == "repaired":
        return float(
            any(f" {normalise_as_squad(each)} " in f" {normalise_as_squad(behind)} " for each in facts["answers"])
        )
    return float(
        any(
            normalise_as_squad(each) in normalise_as_squad(said) for each in facts["answers"] for said in (text, behind)
        )
    )


def _ranked_ids(text: str) -> list[str]:
    """Ids in the order of the answer, each once; the whole text where it has no number."""
    # HELMET's parser: brackets, colons and "id" go, then the longest chain of numbers with ">" between counts.
    bare = re.sub(r"[\[\]:]", "", text).lower().replace("id", "")
    longest = max((found[0] for found in re.finditer(r"\d+(?:\s*>\s*\d+)*", bare)), key=len, default="")
    return list(dict.fromkeys(each.strip() for each in longest.split(">"))) if longest else [bare]


def _ndcg_score(ranked: Sequence[str], relevance: Mapping[str, int], scorer: str) -> float:
    """sum relevance / log2(rank + 1) over the first ranks, as a share of the best order's."""
    # Numbers that are no document take no rank.
    if scorer == "repaired":
        ranked = [each for each in ranked if each in relevance]
    gains = [max(relevance.get(each, 0), 0) for each in ranked]
    best = sorted((gain for gain in relevance.values() if gain > 0), reverse=True)
    # trec_eval's gain: linear in the relevance, rank counted from 1 in the logarithm.
    got, most = (
        sum(g / math.log2(rank + 2) for rank, g in enumerate(each[:N_COUNTED_RANKS])) for each in (gains, best)
    )
    return got / most if most else 0.0


def _examples(asked: BenchmarkRequest) -> Iterator[BenchmarkExample]:
    assert asked.prompts is not None, "the task has checked it"
    if asked.part in helmet_long.METRIC_OF_PART:
        yield from helmet_long.official_examples(asked)
        return
    if asked.part in RULER_FOLDERS_AND_TOKENS:
        yield from _ruler_examples(asked)
        return
    stated = assigned_literals(asked.prompts)
    function = {"json_kv": "load_json_kv", "msmarco": "load_msmarco_rerank"}.get(asked.part, "load_qa")
    try:
        # load_qa states a wording for another set first; its usual one is the last
        wording, cue = stated[f"{function}.user_template"], stated[f"{function}.system_template"]
        if asked.part == "msmarco":
            titled, bare = stated[f"{function}.passage_template"]
            yield from _reranking_examples(asked, wording, cue, titled, bare)
            return
        shot = stated[f"{function}.demo_template"]
        passage = "" if asked.part == "json_kv" else stated["load_qa.passage_template"]
    except (KeyError, ValueError) as missing:
        raise ConfigError(f"prompts {asked.prompts} lack {missing}: give the official data.py") from None
    make = _json_kv_examples if asked.part == "json_kv" else _rag_examples
    yield from make(asked, wording, cue, shot, passage)


def _ruler_examples(asked: BenchmarkRequest) -> Iterator[BenchmarkExample]:
    """Rows that hold the text and its fields; the wording for several values stands before that for one."""
    stated = all_assigned_literals(asked.prompts)
    # Of load_ruler's assignments, number 1 is the wording for several values, number 2 that for one.
    several = int(asked.part != "ruler_niah_mv")
    wording, cue = (stated[f"load_ruler.{name}"][1 + several] for name in ("user_template", "system_template"))
    for file in asked.files.places:
        for number, row in enumerate(read_data_rows(file)):
            context = checked_field(row, "context", str, file)
            outputs = [str(each) for each in row.get("answer", row.get("outputs"))]
            made = _example(
                asked,
                file,
                number,
                wording.format(**row),
                cue.format(**row),
                outputs,
                RULER_FOLDERS_AND_TOKENS[asked.part][1],
                context,
            )
            yield replace(made, facts={"outputs": outputs}, answer=", ".join(outputs))


def _json_kv_examples(
    asked: BenchmarkRequest, wording: str, cue: str, shot: str, passage: str
) -> Iterator[BenchmarkExample]:
    for file in asked.files.places:
        for number, row in enumerate(read_data_rows(file)):
            pairs = [
                shot.format(key=key, value=f" {said}")
                for key, said in checked_field(row, "demos", list, file)[:N_WORKED_EXAMPLES]
            ]
            context, question = checked_field(row, "context", str, file), checked_field(row, "question", str, file)
            demos = "".join(f"{pair}\n\n" for pair in pairs)
            prompt = wording.format(context=context, question=question, demos=demos)
            yield _example(asked, file, number, prompt, cue, row["answer"], 100, context)


def _rag_examples(
    asked: BenchmarkRequest, wording: str, cue: str, shot: str, passage: str
) -> Iterator[BenchmarkExample]:
    *files, shots = asked.files.places
    known = [row for row in read_data_rows(shots) if _is_question_used(asked.part, row)]
    for file in files:
        for number, row in enumerate(read_data_rows(file)):
            if not _is_question_used(asked.part, row):
                continue
            key = "id" if "id" in row else "question"
            others = [each for each in known if each[key] != row[key]] if asked.part == "popqa" else known
            # The official seed: worked examples depend on the question, not on its place in the file.
            seed = int(hashlib.sha256(str(row[key]).encode()).hexdigest(), 16) % 2**31
            chosen = _draw_worked_examples(others, key, seed)
            demos = [
                shot.format(**{**each, "documents": _join_passages(passage, each), "answer": each["answers"][0]})
                for each in chosen
            ]
            context, question = _join_passages(passage, row), checked_field(row, "question", str, file)
            prompt = wording.format(demos="".join(f"{each}\n\n" for each in demos), context=context, question=question)
            made = _example(asked, file, number, prompt, cue, row["answers"], 20, context)
            # One question with its passages in several orders is several rows.
            yield replace(made, cluster=f"{key} {row[key]}")


def _reranking_examples(
    asked: BenchmarkRequest, wording: str, cue: str, titled: str, bare: str
) -> Iterator[BenchmarkExample]:
    """Official examples: queries drawn from sorted ids; worked examples shuffled by the query, ranked by relevance."""
    *files, shots = asked.files.places
    known = list(read_data_rows(shots))
    for file in files:
        listed = list(read_data_rows(file))
        queries = sorted({checked_field(row, "qid", str, file) for row in listed})
        drawn = {*random.Random(QUERY_DRAW_SEED).sample(queries, min(N_RERANKED_QUERIES, len(queries)))}
        chosen = [(number, row) for number, row in enumerate(listed) if row["qid"] in drawn]
        # With more than twice as many examples as questions, all examples of drawn queries go, else only those of the
        # query.
        fixed = [each for each in known if each["qid"] not in drawn] if len(known) > 2 * len(chosen) else None
        for number, row in chosen:
            documents = checked_field(row, "ctxs", list, file)
            others = fixed if fixed is not None else [each for each in known if each["qid"] != row["qid"]]
            seed = int(hashlib.sha256(row["qid"].encode()).hexdigest(), 16) % 2**31
            picked = _draw_worked_examples(others, "qid", seed)
            passage = titled if "title" in documents[0] else bare
            shown = [
                f"{_join_passages(passage, each)}\n\nQuery: {each['query']}\n{cue} {_ideal_ranking(each['ctxs'])}\n\n"
                for each in picked
            ]
            context, question = _join_passages(passage, row), checked_field(row, "query", str, file)
            prompt = wording.format(demos="".join(shown), context=context, question=question)
            made = _example(asked, file, number, prompt, cue, _ideal_ranking(documents), 200, context)
            relevance = {each["id"]: int(each["label"]) for each in documents}
            yield replace(made, facts={**made.facts, "relevance": relevance}, cluster=row["qid"])


def _draw_worked_examples(rows: Sequence[Mapping[str, Any]], key: str, seed: int) -> list[Mapping[str, Any]]:
    """The first worked examples of a shuffle as the package `datasets` does it, each question once."""
    found: dict[str, Mapping[str, Any]] = {}
    for place in np.random.default_rng(seed).permutation(len(rows)).tolist():
        found.setdefault(str(rows[place][key]), rows[place])
    return list(found.values())[:N_WORKED_EXAMPLES]


def _ideal_ranking(documents: Sequence[Mapping[str, Any]]) -> str:
    return " > ".join(each["id"] for each in sorted(documents, key=lambda each: each["label"], reverse=True))


def _join_passages(passage: str, row: Mapping[str, Any]) -> str:
    return "\n\n".join(passage.format(**each) for each in row["ctxs"])


def _is_question_used(part: str, row: Mapping[str, Any]) -> bool:
    return part != "popqa" or math.log10(row["s_pop"]) < MAX_LOG10_PAGE_VIEWS


def _example(
    asked: BenchmarkRequest, file: Path, number: int, prompt: str, cue: str, answer: Any, room: int, context: str
) -> BenchmarkExample:
    answers = [answer] if isinstance(answer, str) else list(answer)
    return BenchmarkExample(
        id=f"{file.stem}:{number}",
        messages=[("user", prompt)],
        cue=f"\n{cue}",
        facts={"answers": answers, "cue": cue},
        room=room,
        answer=answers[0],
        cluster=cluster_of(context),
    )


def _file_patterns(part: str, axis: str | None) -> Sequence[str]:
    if part in helmet_long.INFINITEBENCH_FILE_OF_PART:
        if axis is not None:
            raise ConfigError(f"helmet's {part} has no classes of length, got axis={axis}: leave it out")
        name = helmet_long.INFINITEBENCH_FILE_OF_PART[part]
        return (f"{name}.jsonl", f"**/{name}.jsonl")
    if part in helmet_long.ALCE_FILE_OF_PART:
        if not (axis or helmet_long.N_PASSAGES_AT_128K).isdigit():
            raise ConfigError(f"helmet's {part} counts passages, got axis={axis}: e.g. axis=700")
        name = f"alce/{helmet_long.ALCE_FILE_OF_PART[part]}_eval_gtr_top2000.json"
        return (name, f"data/{name}")
    if part in RULER_FOLDERS_AND_TOKENS:
        name = f"ruler/{RULER_FOLDERS_AND_TOKENS[part][0]}/validation_{axis or '*'}.jsonl"
        return (name, f"data/{name}")
    if part == "json_kv":
        return (f"json_kv/test_k{axis or '*'}_dep*.jsonl", f"data/json_kv/test_k{axis or '*'}_dep*.jsonl")
    main = RAG_FILE_PATTERNS[part][0].format(k=axis or "1000")
    return (main, f"data/{main}")


def add_worked_examples(files: BenchmarkFiles, data: str, part: str) -> BenchmarkFiles:
    """Add the part's file of worked examples, from the same copy; parts without such keep `files`."""
    folder = Path(data).expanduser()
    if part in RAG_FILE_PATTERNS:
        wanted, tops = RAG_FILE_PATTERNS[part][1], (folder, folder / "data")
    elif part in helmet_long.ALCE_FILE_OF_PART:
        wanted, tops = f"prompts/{helmet_long.ALCE_FILE_OF_PART[part]}_revised.json", (folder, folder.parent)
    else:
        return files
    found = next((places for top in tops if (places := sorted(top.glob(wanted)))), None)
    if found is None:
        raise Refused(f"data of HELMET lack {wanted}: give task.data=DIR, your copy")
    return BenchmarkFiles.of([*files.places, found[0]])


HELMET = Benchmark(
    title="HELMET (Yen et al., arXiv 2410.02694)",
    parts=("json_kv", *RULER_FOLDERS_AND_TOKENS, *RAG_FILE_PATTERNS, *helmet_long.METRIC_OF_PART),
    files=_file_patterns,
    examples=_examples,
    metric="substring_match",
    metrics={
        "msmarco": "ndcg_at_10",
        **dict.fromkeys(RULER_FOLDERS_AND_TOKENS, "recall"),
        **helmet_long.METRIC_OF_PART,
    },
    score=score,
    chat=False,
    chats=tuple(helmet_long.METRIC_OF_PART),
    prompts="data.py of princeton-nlp/HELMET",
    axes="pairs of json_kv (105, 220, ...), tokens of RULER's (8192, ...), passages of the others (50, 105, ...)",
    add_companion_files=add_worked_examples,
)
