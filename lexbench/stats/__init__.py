"""From samples to numbers: metrics, intervals, paired differences, baselines. No model, no torch."""
