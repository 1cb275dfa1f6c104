"""What it costs to promise persons with k records what one record is promised: noise, by group privacy and exactly.

    python -m benchmarks.persons [--epsilon 1] [--delta 1e-5]

The mechanism is a Gaussian on all records, whose exact price for k records is known in closed form: the mean moves k
times as far, so k times the noise keeps the promise (Balle & Wang 2018, Theorem 8). Group privacy knows nothing of the
mechanism; the last column says what that costs in noise.
"""

from __future__ import annotations

import argparse
import math
import sys

from scipy.optimize import brentq
from scipy.special import log_ndtr

from dpswd.shared.accounting.persons import allowed_for_record

NUMBERS = (1, 2, 3, 5, 10, 20)


def noise(epsilon: float, delta: float) -> float:
    """The least standard deviation, in sensitivities, of a Gaussian that keeps (epsilon, delta)."""

    def gap(log_sigma: float) -> float:
        shift = math.exp(-log_sigma)
        upper, lower = log_ndtr(shift / 2 - epsilon / shift), epsilon + log_ndtr(-shift / 2 - epsilon / shift)
        return float(upper + math.log(-math.expm1(lower - upper)) - math.log(delta))

    most = 2 * math.sqrt(2 * math.log(2 / delta)) / epsilon  # twice the classical bound
    return math.exp(brentq(gap, -1.5, math.log(most), xtol=1e-12))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--delta", type=float, default=1e-5)
    asked = parser.parse_args()
    alone = noise(asked.epsilon, asked.delta)
    sys.stdout.write("| k | a record's epsilon | its delta | noise | exact: k times that of k = 1 | ratio |\n")
    sys.stdout.write("|---|---|---|---|---|---|\n")
    for records in NUMBERS:
        epsilon, delta = allowed_for_record(asked.epsilon, asked.delta, records)
        needed, exact = noise(epsilon, delta), records * alone
        sys.stdout.write(
            f"| {records} | {epsilon:.4g} | {delta:.3g} | {needed:.2f} | {exact:.2f} | {needed / exact:.3f} |\n"
        )


if __name__ == "__main__":
    main()
