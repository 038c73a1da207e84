"""How often 95 % intervals hold the truth where several questions stand behind each text.

    python tools/coverage_texts.py

Scores of right and wrong answers: each text has a level of its own (a beta variable of the stated mean and of the
stated correlation of two answers behind one text, rho = 1 / (a + b + 1)), and its `per text` questions are answered
right with that chance. Of the last text only some are asked, as where n is no multiple. Beside the interval of one
method (`mean_interval`, clusters are texts) stand that of the difference of two methods on the same questions
(`difference_interval`), and, to see what clusters are for, Wilson's interval that takes all answers for independent.
Fixed seeds.
"""

import argparse
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from lexbench.stats.intervals import difference_interval, mean_interval

TEXTS, PER_TEXT = (8, 16, 32), (2, 8)
LEVELS, CORRELATIONS = (0.5, 0.8), (0.05, 0.2, 0.5)
LEAST = 0.93
"""Coverage that intervals promise in `docs/statistics.md`, from 16 texts on."""


def drawn(
    rng: np.random.Generator, texts: int, per_text: int, level: float, correlation: float
) -> tuple[list[float], list[float], list[str]]:
    """Answers of two methods, of equal levels in each text, and the texts' names."""
    n = texts * per_text - per_text // 2
    size = 1 / correlation - 1
    chance = np.repeat(rng.beta(level * size, (1 - level) * size, texts), per_text)[:n]
    names = [str(text) for text in np.repeat(np.arange(texts), per_text)[:n]]
    one, other = ((rng.random(n) < chance).astype(float) for _ in range(2))
    return one.tolist(), other.tolist(), names


def coverage(texts: int, per_text: int, level: float, correlation: float, rounds: int) -> tuple[float, float, float]:
    """Share of rounds in which intervals hold the truth: of a method, of a difference, of independent answers."""
    rng = np.random.default_rng([texts, per_text, round(100 * level), round(100 * correlation)])
    held = np.zeros(3)
    for _ in range(rounds):
        one, other, names = drawn(rng, texts, per_text, level, correlation)
        own = mean_interval(one, names)
        change = difference_interval(np.subtract(other, one), names)
        alone = mean_interval(one, [str(place) for place in range(len(one))])
        for place, (interval, truth) in enumerate(((own, level), (change, 0.0), (alone, level))):
            assert interval is not None
            held[place] += interval.low <= truth <= interval.high
    own_share, change_share, alone_share = (held / rounds).tolist()
    return own_share, change_share, alone_share


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=1000)
    options = parser.parse_args()
    print("| texts | per text | level | correlation | a method | a difference | taken for independent |")
    print("| --- " * 7 + "|")
    for texts in TEXTS:
        for per_text in PER_TEXT:
            for level in LEVELS:
                for correlation in CORRELATIONS:
                    shares = coverage(texts, per_text, level, correlation, options.rounds)
                    said = " | ".join(f"{share:.3f}" for share in shares)
                    print(f"| {texts} | {per_text} | {level} | {correlation} | {said} |", flush=True)


if __name__ == "__main__":
    main()
