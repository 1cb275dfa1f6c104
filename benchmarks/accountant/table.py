"""docs/privacy/accountant.md: noise and epsilon of the papers' settings under every bound."""

from __future__ import annotations

import functools
from pathlib import Path

from benchmarks.accountant.published import Recipe, calibrate_sigma, epsilon
from benchmarks.accountant.settings import (
    AS_RUN,
    AS_RUN_SIGMA,
    PUBLISHED,
    SETTINGS,
    TARGETS,
    Setting,
    markdown_table,
    show,
)
from benchmarks.records import Row, Rows
from dpswd.shared.accounting.bounds import Bound
from dpswd.shared.core.errors import InvalidValue

COLUMNS = (
    Recipe.BERNSTEIN_PUBLISHED,
    Recipe.CLT,
    Bound.WBK9,
    Bound.WBK27,
    Bound.HYB,
    Bound.PLD,
    Bound.AUTO,
)

COEFFICIENTS = 2
LARGE_BATCH = 512
COMPARED = [setting for setting in SETTINGS if setting.features != 320]
"""With coefficients: d = 320 gives the ratios of d = 784."""


def write(path: Path, rows: Rows) -> None:
    """Compute everything and write the page; each setting's sigmas are a row."""
    jobs = [({"sigmas": setting.name}, functools.partial(_measured, setting)) for setting in SETTINGS]
    measurements = rows.run(jobs, again=True)
    sigmas = {
        (setting, bound): tuple(row["bounds"][bound.value].values())
        for setting, row in zip(SETTINGS, measurements, strict=True)
        for bound in COLUMNS
    }
    path.write_text(
        "\n".join(
            [
                _HEAD,
                _sigma_section(sigmas),
                _published_section(),
                _coefficients_section(),
                _FIGURE,
            ]
        ),
        encoding="utf-8",
    )
    print(f"wrote {path}")


def _measured(setting: Setting) -> Row:
    """By bound and epsilon."""

    def sigma(bound: Bound | Recipe, target: float) -> float:
        return calibrate_sigma(setting.rows, epsilon=target, delta=setting.delta, bound=bound)

    return {"bounds": {bound.value: {f"{each:g}": sigma(bound, each) for each in TARGETS} for bound in COLUMNS}}


Sigmas = dict[tuple[Setting, Bound | Recipe], tuple[float, ...]]


def _sigma_section(sigmas: Sigmas) -> str:
    heads = ["row", "d", "k", "n", "b", "T", "δ", *(f"`{bound.value}`" for bound in COLUMNS)]
    rows = [
        [
            setting.name,
            *(str(v) for v in (setting.features, setting.directions, setting.records, setting.batch, setting.steps)),
            f"{setting.delta:g}",
            *(" / ".join(show(sigma) for sigma in sigmas[setting, bound]) for bound in COLUMNS),
        ]
        for setting in SETTINGS
    ]
    return f"{_SIGMA_TEXT}\n{markdown_table(heads, rows)}\n"


def _published_section() -> str:
    rows = []
    for run in PUBLISHED:
        for recipe, sigma in ((Recipe.BERNSTEIN_PUBLISHED, run.bernstein), (Recipe.CLT, run.clt)):
            event, delta = run.setting.rows(sigma), run.setting.delta
            claimed = epsilon(event, delta, recipe)
            rows.append(
                [
                    f"{run.setting.name}, n = {run.setting.records}",
                    recipe.value,
                    f"{sigma:g}",
                    f"{claimed:.2f}",
                    show(epsilon(event, delta, Bound.AUTO), 3),
                ]
            )
    heads = ["run", "recipe", "σ", "ε by the recipe", "by `auto`"]
    event = AS_RUN.rows(AS_RUN_SIGMA)
    bounds = (Recipe.BERNSTEIN_PUBLISHED, Recipe.CLT, Bound.WBK27, Bound.HYB, Bound.PLD, Bound.AUTO)
    as_run = markdown_table(
        [f"`{bound.value}`" for bound in bounds], [[show(epsilon(event, AS_RUN.delta, bound), 3) for bound in bounds]]
    )
    return f"{_PUBLISHED_TEXT}\n{markdown_table(heads, rows)}\n{_as_run_text()}\n{as_run}\n"


def _as_run_text() -> str:
    return f"""
The released M-U code does not run what it prices: d = {AS_RUN.features} and T = {AS_RUN.steps:,} private steps, at
σ = {AS_RUN_SIGMA}. As written (shuffled batches, rows divided by the batch's largest norm) it has no finite guarantee.
The same numbers as an idealised mechanism cost, at δ = {AS_RUN.delta:g}:
"""


def _coefficients_section() -> str:
    at_large_batch = (f"{what}, b = {LARGE_BATCH}" for what in ("rows", "coefficients", "ratio"))
    heads = ["row", *at_large_batch, "coefficients, full batch"]
    rows = []
    for setting in COMPARED:
        large = LARGE_BATCH if setting.records > LARGE_BATCH else None
        full = [_coefficient_sigma(setting, target, setting.records) for target in TARGETS]
        at_large = [_row_sigma(setting, target, large) for target in TARGETS] if large else []
        coefficients = [_coefficient_sigma(setting, target, large) for target in TARGETS] if large else []
        rows.append(
            [
                setting.name,
                _list(at_large) or "n too small",
                _list(coefficients) or "n too small",
                " / ".join(f"{a / b:.3g}" for a, b in zip(at_large, coefficients, strict=True)) or "–",
                _list(full),
            ]
        )
    return f"{_COEFFICIENTS_TEXT}\n{markdown_table(heads, rows)}\n"


def _list(values: list[float]) -> str:
    return " / ".join(show(value) for value in values)


def _row_sigma(setting: Setting, target: float, batch: int) -> float:
    return calibrate_sigma(lambda sigma: setting.rows(sigma, batch=batch), epsilon=target, delta=setting.delta)


def _coefficient_sigma(setting: Setting, target: float, batch: int) -> float:
    try:
        return calibrate_sigma(
            lambda sigma: setting.coefficients(sigma, coefficients=COEFFICIENTS, batch=batch),
            epsilon=target,
            delta=setting.delta,
        )
    except InvalidValue:  # no sigma reaches the target
        return float("inf")


_HEAD = """# What the accountant achieves

The settings are those of DP-SWD (Rakotomamonjy and Ralaivola): d features, k directions, n records, samples of b, T
steps, rows clipped to norm 1/2. Neighbours differ in one replaced record. σ is the absolute noise on a projected value,
rounded up in its last digit (`make accountant-table`). [Speed](accountant-speed.md) and [autodp's
precision](accountant-crosscheck.md) have pages of their own.
"""

_SIGMA_TEXT = """## Noise for ε = 10 / 3 / 1

`bernstein-published` and `clt` are the paper's recipes and no guarantees. `wbk9` and `wbk27` are Wang, Balle and
Kasiviswanathan's Theorems 9 and 27 with the exact curve, `hyb` the hybrid with sharp second order, `pld` the composed
privacy loss distribution of C_gamma. `auto` is the smallest of the valid ones and what a curator charges; a filter
keeps a ten-thousandth of δ back.
"""

_PUBLISHED_TEXT = """## What the published runs cost

The code of DP-SWD publishes a σ for ε = 10. The recipe reproduces the claim. The last column is a guarantee for the
*idealised* run (samples without replacement, clipping record by record, d as claimed): an upper bound on its ε.
"""

_COEFFICIENTS_TEXT = f"""## Quantile coefficients instead of rows

[Coefficients](README.md#6-sliced-quantile-coefficients) of sorted projections (L = {COEFFICIENTS}), same T. σ is the
noise on one coefficient, for ε = 10 / 3 / 1 under `auto`. "ratio" is rows to coefficients at the same batch; the shift
alone gives √(b/(2L-1)) = {(LARGE_BATCH / (2 * COEFFICIENTS - 1)) ** 0.5:.3g}.
"""

_FIGURE = """## Epsilon against steps

[![ε against steps for every bound on M-U](figures/epsilon-vs-steps.png)](figures/epsilon-vs-steps.png)

Left: at the σ that the paper publishes for ε = 10. Right: at the σ at which `auto` costs ε = 3. The Renyi bounds
flatten at few steps, where their best order lies above the largest that they use (512); `auto` takes the PLD there.
"""
