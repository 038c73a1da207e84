"""Measure how a language model's quality changes with length, under any positional method.

    lexbench.run(model="lexlet", method=["none", "yarn"], task="passkey", multiples=[1, 4]).table()
    lexbench.evaluate(network, tokenizer, "last_segment", lengths=[512, 2048]).plot()

A method, task, corpus or backend of your own is a file and a yaml: see docs/adding.md.
"""

from lexbench.api import RopeMismatch, Run, assert_rope, corpus, evaluate, extend, method, run, task
from lexbench.core.attention import Attention, Shift
from lexbench.core.errors import ConfigError
from lexbench.core.model import Model
from lexbench.core.record import Cell, Record, Refused, Sample
from lexbench.core.task import (
    Answer,
    AnyQuestion,
    Choose,
    Chosen,
    Diverge,
    Diverged,
    Encoded,
    Frame,
    Mark,
    Marked,
    Outline,
    Probe,
    Probed,
    Score,
    Scored,
    Task,
    Tokenizer,
    Tokens,
    Write,
    Written,
)
from lexbench.core.version import __version__
from lexbench.corpora import Corpus, Document
from lexbench.methods.composition import Method

__all__ = [
    "Answer",
    "AnyQuestion",
    "Attention",
    "Cell",
    "Choose",
    "Chosen",
    "ConfigError",
    "Corpus",
    "Diverge",
    "Diverged",
    "Document",
    "Encoded",
    "Frame",
    "Mark",
    "Marked",
    "Method",
    "Model",
    "Outline",
    "Probe",
    "Probed",
    "Record",
    "Refused",
    "RopeMismatch",
    "Run",
    "Sample",
    "Score",
    "Scored",
    "Shift",
    "Task",
    "Tokenizer",
    "Tokens",
    "Write",
    "Written",
    "__version__",
    "assert_rope",
    "corpus",
    "evaluate",
    "extend",
    "method",
    "run",
    "task",
]
