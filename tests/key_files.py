"""Files of key tokens made without an evaluator."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from lexbench import Corpus


def key_file(
    file: Path, corpus: Corpus, spans: Mapping[str, Sequence[Sequence[int]]], short: int, end: int = 10**9
) -> str:
    """Write a file with the characters of key tokens by document; returns its path."""
    rule = {"longest": 101, "short": short, "window": 4, "gain": 2.0, "loss": 2.0}
    rows = [{"document": name, "tokens": 100, "end": end, "spans": found} for name, found in spans.items()]
    said = {"key_tokens": 1, "evaluator": {"model": "judge", "method": "yarn(factor=8.0)"}, "rule": rule}
    said |= {"corpus": corpus.fingerprint(), "documents": len(rows), "lexbench": "0.1.0"}
    file.write_text("".join(json.dumps(line) + "\n" for line in [said, *rows]))
    return str(file)
