"""HELMET's queries of MS MARCO: as many as its own code draws (`data.py`, `load_msmarco_rerank`)."""

import json
from pathlib import Path

from lexbench.checkpoints.tokenizer import load_tokenizer
from lexbench.core import registry
from lexbench.parts.benchmarks import helmet
from lexbench.parts.benchmarks.base import BenchmarkRequest
from lexbench.parts.benchmarks.copy import BenchmarkFiles


def test_a_hundred_of_many_queries_are_ranked(tmp_path: Path) -> None:
    """HELMET's config has `max_test_samples: 100`; 103 queries of two rows each leave 200 rows."""
    files = []
    for name, queries in (("test_reranking_data_k50_dep3.jsonl", 103), ("test_reranking_data_k10_dep3.jsonl", 4)):
        rows = [
            {"qid": f"{name} {query}", "query": "Which?", "ctxs": [{"id": "1", "text": "a text", "label": 1}]}
            for query in range(queries)
            for _ in range(2)
        ]
        files.append(tmp_path / name)
        files[-1].write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    lexlet = load_tokenizer(registry.PACKAGE_FOLDER / "lexlet")
    asked = BenchmarkRequest("msmarco", BenchmarkFiles.of(files), None, "50", "", lexlet, 1000)
    ranked = list(
        helmet._reranking_examples(asked, "{demos}{context} {question}", "Ranking:", "{title} {text}", "{text}")
    )
    assert len({each.cluster for each in ranked}) == 100
    assert len(ranked) == 200
