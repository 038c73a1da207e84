"""Differences of a method's next-token distributions from another method's, means over a text's targets."""

from lexbench.core.metric import Metric

KL_DIVERGENCE = Metric("kld", "KL divergence (nats per token)", "as measured", "lower", measure=True)
NLL_RISE = Metric("nll_rise", "rise of the NLL (nats per token)", "as measured", "lower", measure=True)
SAME_TOP = Metric("same_top", "share of targets with the same likeliest token")
