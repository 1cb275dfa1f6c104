"""docs/privacy/accountant-crosscheck.md: where autodp's forward differences lose digits, and where ours are loose.

The truth is Theorem 27 of Wang, Balle and Kasiviswanathan 2019 in mpmath's arithmetic, from the confluent series on:
nothing of it comes from this project's code.
"""

from __future__ import annotations

import functools
import math
import warnings
from dataclasses import replace
from pathlib import Path

import mpmath  # type: ignore[import-untyped]
import numpy as np

from benchmarks.accountant.contenders import autodp_step
from benchmarks.accountant.settings import SETTINGS, Setting
from benchmarks.records import Row, Rows, table
from dpswd.shared.accounting.amplification import log_moments
from dpswd.shared.accounting.bounds import Bound
from dpswd.shared.accounting.costs import step_costs
from dpswd.shared.accounting.crosscheck import ORDERS, TOLERANCE

SHOWN = (2, 3, 8, 16, 32, 64)
DIGITS = 400
"""The differences cancel down to 1e-200 of their terms."""

MAPS = (
    (SETTINGS[1], (0.5, 2.0, 10.0, 100.0, 1_000.0, 10_000.0)),
    (replace(SETTINGS[1], name="plain Gaussian", features=1, directions=1), (1.0, 2.0, 10.0, 100.0, 1_000.0, 10_000.0)),
    (Setting("small data set", 64, 100, 898, 128, 1, 1e-5), (1.0, 2.0, 5.0, 20.0, 100.0, 1_000.0)),
    (Setting("few directions", 797, 2, 14_480, 153, 1, 1e-5), (1.0, 5.0, 34.319, 100.0, 1_000.0)),
    (Setting("few directions, large sample", 254, 2, 2_334, 914, 1, 1e-5), (0.4, 0.565, 0.8, 1.5, 5.0, 20.0)),
)


_COLUMNS = {
    "d, k, b of n": "{crosscheck}",
    "σ": "{sigmas[0]:g} to {sigmas[1]:g}",
    "ε(2)": "{costs[0]:.1e} to {costs[1]:.1e}",
    "autodp, lowest": "{autodp_lowest}",
    "autodp, highest": "{autodp_highest}",
    "dpswd, lowest": "{dpswd_lowest}",
    "dpswd, highest": "{dpswd_highest}",
    "charge": "{charge:.2f}",
}


def write(path: Path, rows: Rows) -> None:
    """Compute the table and write the page."""
    measurements = rows.run(
        [
            (
                {"crosscheck": f"{setting.features}, {setting.directions}, {setting.batch} of {setting.records}"},
                functools.partial(measured, setting, sigmas),
            )
            for setting, sigmas in MAPS
        ],
        again=True,
    )
    lines = [{**row, **{name: _error(value) for name, value in row["errors"].items()}} for row in measurements]
    page = f"{_HEAD}\n{table(lines, _COLUMNS)}"
    path.write_text(page, encoding="utf-8")
    print(page)
    print(f"wrote {path}")


def measured(setting: Setting, sigmas: tuple[float, ...]) -> Row:
    """Extreme relative errors of both, over orders and noises, and the largest part that is charged."""
    truths = {sigma: theorem_27(setting, sigma) for sigma in sigmas}
    errors = {}
    for name, of in (("autodp", _autodp), ("dpswd", _ours)):
        extremes = [_extremes(of(setting, sigma), truth) for sigma, truth in truths.items()]
        errors[f"{name}_lowest"] = min(low for low, _ in extremes)
        errors[f"{name}_highest"] = max(high for _, high in extremes)
    return {
        "sigmas": [sigmas[0], sigmas[-1]],
        "costs": [truths[sigmas[0]][0], truths[sigmas[-1]][0]],
        "errors": errors,
        "charge": max(
            cost / true
            for sigma, truth in truths.items()
            for cost, true in zip(_charged(setting, sigma), truth, strict=True)
        ),
    }


def theorem_27(setting: Setting, sigma: float) -> list[float]:
    """Theorem 27 at the shown orders with the exact curve; never more than the full batch. Relative error 1e-15."""
    largest = max(SHOWN)
    with mpmath.workdps(DIGITS):
        half = mpmath.mpf(1) / 2
        arguments = [mpmath.mpf(j * (j - 1)) / 2 / mpmath.mpf(sigma) ** 2 for j in range(largest + 1)]
        d, k = mpmath.mpf(setting.features), setting.directions
        moments = [mpmath.hyp1f1(half, d / 2, argument) ** k for argument in arguments]
        differences = {
            j: mpmath.fsum((-1) ** (j - i) * mpmath.binomial(j, i) * moments[i] for i in range(j + 1))
            for j in range(2, largest + 1, 2)
        }
        gamma = mpmath.mpf(setting.batch) / setting.records
        terms = [mpmath.mpf(0), mpmath.mpf(0), min(4 * (moments[2] - 1), 2 * moments[2])]
        for j in range(3, largest + 1):
            sharp = 4 * mpmath.sqrt(differences[2 * (j // 2)] * differences[2 * ((j + 1) // 2)])
            terms.append(min(2 * moments[j], sharp))
        result = []
        for order in SHOWN:
            total = mpmath.fsum(mpmath.binomial(order, j) * gamma**j * terms[j] for j in range(2, order + 1))
            result.append(float(min(mpmath.log1p(total), mpmath.log(moments[order])) / (order - 1)))
    return result


def _autodp(setting: Setting, sigma: float) -> list[float]:
    run = setting.rows(sigma)
    law = run.step.shift()
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        mechanism = autodp_step(run)
        # Sampling never costs more than the full batch; autodp leaves that out of its improved bound.
        return [min(float(mechanism.RenyiDP(order)), float(law.renyi(float(order)))) for order in SHOWN]


def _ours(setting: Setting, sigma: float) -> list[float]:
    step = setting.rows(sigma).step
    moments = log_moments(step.shift(), step.sampling_ratio, Bound.WBK27, np.array(SHOWN), log_t2=None)
    return [float(moment) / (order - 1) for moment, order in zip(moments, SHOWN, strict=True)]


def _charged(setting: Setting, sigma: float) -> tuple[float, ...]:
    return step_costs(setting.rows(sigma).step, tuple(map(float, SHOWN)), committed=True)


def _extremes(values: list[float], truth: list[float]) -> tuple[float, float]:
    """The lowest and the highest relative error over the shown orders; infinite where a value is none."""
    errors = [
        value / true - 1.0 if math.isfinite(value) else math.inf for value, true in zip(values, truth, strict=True)
    ]
    return min(errors), max(errors)


def _error(error: float) -> str:
    if not math.isfinite(error):
        return "none"
    if abs(error) < 1e-8:
        return "·"
    text = f"{100.0 * error:+.0f} %" if abs(error) >= 0.1 else f"{error:+.0e}"
    return f"**{text}**" if error < -TOLERANCE else text


_HEAD = f"""# Theorem 27 by autodp and by dpswd, against the truth

Relative errors of one step's Renyi divergence under Theorem 27 of Wang, Balle and Kasiviswanathan 2019 with the exact
curve, the lowest and the highest over orders {", ".join(map(str, SHOWN))} and the noises shown.
The truth is computed with {DIGITS} digits by mpmath alone. A dot is an error
below 1e-8, "none" no finite figure, and bold is too *small* by more than {TOLERANCE:g}: no bound any more.

autodp takes the differences by alternating sums, whose terms cancel; dpswd from one-sided moments, sums of positive
terms: never below the truth, and looser for few directions. "Charge" is the largest part of the true Theorem 27 that is
charged, the smaller of HYB and C_gamma. (`python -m benchmarks.accountant crosscheck`)

So the check that the curator makes of every run (`shared/accounting/crosscheck.py`) compares at orders
{", ".join(f"{order:g}" for order in ORDERS)}, demands equality at order 2 and, at the others, that dpswd's
Theorem 27 is not below autodp's by more than {TOLERANCE:g}.
"""
