"""Whether a model tells questions with an answer in the text from those without one (`lexbench.stats.detection`)."""

from lexbench.core.metric import Metric
from lexbench.metrics.guess import chance_of_samples

BALANCE_SCORE = Metric("balance", guess=chance_of_samples)
"""1 where the model is right about whether there is an answer."""
HIT_RATE = Metric("hit_rate", "hit rate (of questions with an answer)", of_cell=True, of_some=True)
FALSE_ALARM_RATE = Metric(
    *("false_alarm_rate", "false-alarm rate (of questions without an answer)"),
    better="lower",
    of_cell=True,
    of_some=True,
)
ROC_AREA = Metric("area", "area under the ROC curve of True and False", of_cell=True, guess=chance_of_samples)
D_PRIME = Metric("d_prime", "d' (standard deviations)", "as measured", of_cell=True, guess=lambda _: 0.0)
