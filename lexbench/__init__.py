"""Measure how a language model's quality changes with length, under any positional method.

    lexbench.run(model="lexlet", method=["none", "yarn"], task="passkey", multiples=[1, 4]).table()
    lexbench.evaluate(network, tokenizer, "last_segment", lengths=[512, 2048]).plot()

A method or task of your own is one file, a corpus or backend a file and a yaml: see docs/adding.md.
"""

from lexbench.api import RopeMismatch, Run, assert_attention, assert_rope, corpus, evaluate, extend, method, run, task
from lexbench.core.attention import Attention, Shift
from lexbench.core.errors import ConfigError
from lexbench.core.metric import Metric
from lexbench.core.model import Model
from lexbench.core.record import Cell, Record, Refused, Sample
from lexbench.core.task import (
    Answer,
    AnyQuestion,
    Choose,
    ChooseAnswer,
    ClassifyTokens,
    ClassifyTokensAnswer,
    Encoded,
    Frame,
    Generate,
    GenerateAnswer,
    Layout,
    Loglikelihood,
    LoglikelihoodAnswer,
    MeasureDivergence,
    MeasureDivergenceAnswer,
    Outline,
    ProbeAttention,
    ProbeAttentionAnswer,
    Task,
    Tokenizer,
    Tokens,
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
    "ChooseAnswer",
    "ClassifyTokens",
    "ClassifyTokensAnswer",
    "ConfigError",
    "Corpus",
    "Document",
    "Encoded",
    "Frame",
    "Generate",
    "GenerateAnswer",
    "Layout",
    "Loglikelihood",
    "LoglikelihoodAnswer",
    "MeasureDivergence",
    "MeasureDivergenceAnswer",
    "Method",
    "Metric",
    "Model",
    "Outline",
    "ProbeAttention",
    "ProbeAttentionAnswer",
    "Record",
    "Refused",
    "RopeMismatch",
    "Run",
    "Sample",
    "Shift",
    "Task",
    "Tokenizer",
    "Tokens",
    "__version__",
    "assert_attention",
    "assert_rope",
    "corpus",
    "evaluate",
    "extend",
    "method",
    "run",
    "task",
]
