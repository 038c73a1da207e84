"""Accuracy: the share of right answers, by the rule of the task. Its chance is stated by each sample."""

from lexbench.core.metric import Metric
from lexbench.metrics.guess import chance_of_samples

METRIC = Metric("accuracy", headline=True, guess=chance_of_samples)
