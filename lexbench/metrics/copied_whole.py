"""Copied whole: the label of `accuracy` where the answer is a key of the text; the task's own rule decides it."""

from lexbench.core.metric import Metric

METRIC = Metric("accuracy", "copied whole")
