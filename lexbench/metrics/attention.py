"""Measures of attention. Only resolutions have a better side: higher (xPos, arXiv 2212.10554)."""

from lexbench.core.metric import Metric

RESOLUTION_METRIC = Metric("resolution", "attention resolution", "as measured", measure=True)
RESOLUTION_7_8 = Metric("resolution_7_8", "attention resolution below 7/8 of the length", "as measured", measure=True)
RESOLUTION_ALL = Metric("resolution_all", "attention resolution over all distances", "as measured", measure=True)
ATTENTION_DISTANCE = Metric("attention_distance", "attention distance (tokens)", "as measured", "neither", measure=True)
ATTENTION_ENTROPY = Metric("entropy", "attention entropy (nats)", "as measured", "neither", measure=True)
FIRST_MASS = Metric("first_mass", "share of attention on the first tokens", "as measured", "neither", measure=True)
