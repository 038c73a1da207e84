"""Copied whole: the label of `accuracy` where the answer is a key of the text; the task's own rule decides it."""

from dataclasses import replace

from lexbench.metrics import accuracy

METRIC = replace(accuracy.METRIC, label="copied whole")
