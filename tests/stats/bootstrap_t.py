"""The bootstrap-t by its definition, with samples drawn here: another route to `intervals.interval_halfwidths`."""

import math
from collections.abc import Sequence

import numpy as np
from scipy.stats import t


def bootstrap_t(
    amounts: Sequence[float] | np.ndarray, units: Sequence[float] | np.ndarray | None = None, resamples: int = 20_000
) -> tuple[float, float]:
    """Interval of sum of amounts / sum of units, an entry for each of at least 4 clusters, studentised."""
    a = np.asarray(amounts, float)
    u = np.ones(len(a)) if units is None else np.asarray(units, float)
    count = len(a)
    value = a.sum() / u.sum()
    linear = count * (a - value * u) / u.sum()  # its mean is 0; an error of the value is one of its mean
    error = linear.std(ddof=1) / math.sqrt(count)
    rng = np.random.default_rng(12345)
    bound = 3 * t.ppf(0.975, count - 1)
    drawn = rng.choice(linear, (resamples, count))
    means, spreads = drawn.mean(axis=1), drawn.std(axis=1, ddof=1) / math.sqrt(count)
    found = [
        0.0 if abs(mean) <= 1e-9 * error else math.copysign(math.inf, mean) if spread <= 1e-6 * error else mean / spread
        for mean, spread in zip(means.tolist(), spreads.tolist(), strict=True)
    ]
    tail = 0.0125 if count <= 32 else 0.025 * (1 - 16 / count)
    low, high = np.quantile(np.clip(found, -bound, bound), [tail, 1 - tail])
    return value - high * error, value - low * error
