"""lexbench: how does quality change with length, what does it cost inside the trained length, is it real?"""

from lexbench.api import Run, corpus, extend, method, run, task
from lexbench.attention import (
    Attention,
    Blocks,
    Chunks,
    Dynamic,
    HeadRatios,
    Line,
    LogScale,
    Remap,
    Slopes,
    Stairs,
    Window,
)
from lexbench.corpora import Corpus, Document
from lexbench.model import Model
from lexbench.perplexity import AVERAGING, DocumentTask, EncodedCorpus, bos_policy, encoded_corpus, place_of
from lexbench.record import Cell, Record, Refused, Sample
from lexbench.task import (
    Answer,
    AnyQuestion,
    Encoded,
    Probe,
    Probed,
    Score,
    Scored,
    Task,
    Tokenizer,
    Write,
    Written,
    score_likelihood,
)

__version__ = "0.1.0"

__all__ = [
    "AVERAGING",
    "Answer",
    "AnyQuestion",
    "Attention",
    "Blocks",
    "Cell",
    "Chunks",
    "Corpus",
    "Document",
    "DocumentTask",
    "Dynamic",
    "Encoded",
    "EncodedCorpus",
    "HeadRatios",
    "Line",
    "LogScale",
    "Model",
    "Probe",
    "Probed",
    "Record",
    "Refused",
    "Remap",
    "Run",
    "Sample",
    "Score",
    "Scored",
    "Slopes",
    "Stairs",
    "Task",
    "Tokenizer",
    "Window",
    "Write",
    "Written",
    "bos_policy",
    "corpus",
    "encoded_corpus",
    "extend",
    "method",
    "place_of",
    "run",
    "score_likelihood",
    "task",
]
