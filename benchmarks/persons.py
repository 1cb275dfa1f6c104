"""What it costs to promise persons with k records what one record is promised: noise, by group privacy and exactly.

    python -m benchmarks.persons [--epsilon 1] [--delta 1e-5]

The mechanism is a Gaussian on all records, whose exact price for k records is known in closed form: the mean moves k
times as far, so k times the noise keeps the promise (Balle & Wang 2018, Theorem 8). Group privacy knows nothing of the
mechanism; the last column says what that costs in noise. A second. Takes no seeds: nothing is drawn.
"""

from __future__ import annotations

import argparse
import functools
import math
import sys
from pathlib import Path

from scipy.optimize import brentq
from scipy.special import log_ndtr

from benchmarks.records import Row, Rows, options, table
from dpswd.shared.accounting.persons import allowed_for_record

RESULTS = Path(__file__).parent / "results" / "persons.json"
NUMBERS = (1, 2, 3, 5, 10, 20)


def noise(epsilon: float, delta: float) -> float:
    """The least standard deviation, in sensitivities, of a Gaussian that keeps (epsilon, delta)."""

    def gap(log_sigma: float) -> float:
        shift = math.exp(-log_sigma)
        upper, lower = log_ndtr(shift / 2 - epsilon / shift), epsilon + log_ndtr(-shift / 2 - epsilon / shift)
        return float(upper + math.log(-math.expm1(lower - upper)) - math.log(delta))

    most = 2 * math.sqrt(2 * math.log(2 / delta)) / epsilon  # twice the classical bound
    return math.exp(brentq(gap, -1.5, math.log(most), xtol=1e-12))


def measured(records: int, *, epsilon: float, delta: float) -> Row:
    """What each of so many records of one person is promised, and the noise, in sensitivities, for all together."""
    allowed = allowed_for_record(epsilon, delta, records)
    needed, exact = noise(*allowed), records * noise(epsilon, delta)
    names = ("record_epsilon", "record_delta", "noise", "exact", "ratio")
    return dict(zip(names, (*allowed, needed, exact, needed / exact), strict=True))


COLUMNS = {
    "k": "{records}",
    "a record's epsilon": "{record_epsilon:.4g}",
    "its delta": "{record_delta:.3g}",
    "noise": "{noise:.2f}",
    "exact: k times that of k = 1": "{exact:.2f}",
    "ratio": "{ratio:.3f}",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--delta", type=float, default=1e-5)
    options(parser, RESULTS)
    asked = vars(parser.parse_args())
    rows = Rows(RESULTS, asked.pop("results"))
    jobs = [({"records": records, **asked}, functools.partial(measured, records, **asked)) for records in NUMBERS]
    sys.stdout.write(table(rows.run(jobs, again=True), COLUMNS))


if __name__ == "__main__":
    main()
