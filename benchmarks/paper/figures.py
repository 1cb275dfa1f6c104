"""docs/ml-team/figures/paper-*.png: what the DP-SWD paper's figures 1 to 3 show, computed anew.

1. the law of H = ||z U||^2 (Lemma 1), the normal law of the same mean and variance, and the bounds w(k, delta) on it;
2. DP-SWD and the sliced quantile distance against SWD, as the mean of one of two normal laws moves;
3. accuracy against epsilon, from `benchmarks/results/digits.json`.

The paper's sample sizes for figure 2 are not on file here; ours are stated in the figure, and the curves are ours.
"""

from __future__ import annotations

import math
import statistics
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import torch
from scipy.stats import norm

from benchmarks.accountant.published import Recipe, sensitivity_bound
from benchmarks.baselines import sliced_wasserstein
from benchmarks.digits import PUBLISHED, RESULTS
from benchmarks.records import read
from dpswd.public_client.published_methods.losses import distance
from dpswd.shared.accounting.slice_law import slice_law
from dpswd.shared.core.mechanisms.quantiles.coefficients import cosine_basis
from dpswd.shared.published_mechanisms.gradient.cotangents import source_coefficients

mpl.use("Agg")
import matplotlib.pyplot as plt

FEATURES, DIRECTIONS = 784, 200  # d and k of the paper's digits
_DRAWS = 20_000
_LOG_TAIL = -80.0

_POINTS, _DIMENSION, _SLICES = 1_000, 5, 200  # figure 2: records on each side, d, k
_NOISES = (1.0, 4.0, 16.0)
_MEANS = np.linspace(0.0, 3.0, 13)
_REPEATS = 5
_COEFFICIENTS = 3


def write(folder: Path) -> list[Path]:
    """Draws every figure that there are results for; returns the files."""
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / "paper-1-law-of-h.png", folder / "paper-2-moving-mean.png", folder / "paper-3-accuracy.png"]
    law_of_h(files[0])
    moving_mean(files[1])
    accuracy_against_epsilon(files[2])
    return files


def law_of_h(path: Path) -> None:
    """Figure 1: simulated H, the sum of Beta variables, its normal approximation; the bounds against delta."""
    d, k = FEATURES, DIRECTIONS
    generator = np.random.default_rng(0)
    drawn = generator.beta(0.5, (d - 1) / 2, size=(_DRAWS, k)).sum(axis=1)
    z = np.zeros(d)
    z[0] = 1.0
    direct = np.array([_squared_shift(generator, z, k) for _ in range(2_000)])
    mean, deviation = k / d, math.sqrt(2 * k * (d - 1) / (d + 2)) / d
    figure, (left, right) = plt.subplots(1, 2, figsize=(12.5, 4.8))
    grid = np.linspace(mean - 4.5 * deviation, mean + 5.5 * deviation, 400)
    left.hist(direct, bins=40, density=True, color="#bbbbbb", label="‖zU‖², 2,000 draws of U")
    points, masses = slice_law(d, k, scale=1.0, log_tail=_LOG_TAIL).support()
    middle = (points > grid[0]) & (points < grid[-1])
    step = float(points[1] - points[0])
    width = max(1, round(0.15 * deviation / step))
    smooth = np.convolve(masses, np.full(width, 1.0 / width), mode="same") / step
    left.plot(points[middle], smooth[middle], color="#0072b2", label="sum of k Beta(1/2, (d−1)/2) (Lemma 1)")
    left.plot(grid, norm.pdf(grid, mean, deviation), "--", color="#d55e00", label="normal, same mean and variance")
    left.set(xlabel="H", ylabel="density", title=f"d = {d}, k = {k}", xlim=(grid[0], grid[-1]), ylim=(0, 22))
    left.legend(frameon=False, fontsize=9)
    deltas = np.logspace(-10, -1, 40)
    for bound, color, style, label in (
        (Recipe.BERNSTEIN_PUBLISHED, "#8c8c8c", "--", "Bernstein as in the published code"),
        (Recipe.BERNSTEIN, "#8c8c8c", "-", "Bernstein (Lemma 2)"),
        (Recipe.CLT, "#d55e00", "--", "CLT: not a bound"),
    ):
        values = [sensitivity_bound(feature_dimension=d, directions=k, delta=x, bound=bound) for x in deltas]
        right.plot(deltas, values, style, color=color, label=label)
    tail = np.cumsum(masses[::-1])[::-1]
    exact = [points[np.searchsorted(-tail, -x)] for x in deltas]
    right.plot(deltas, exact, color="#0072b2", label="quantile of H, rounded up")
    right.axhline(mean, color="#bbbbbb", linewidth=0.8)
    right.text(1e-10, mean * 1.03, "mean k/d", color="#666666", fontsize=9)
    right.set(xscale="log", yscale="log", xlabel="δ", ylabel="w(k, δ)", title="bounds exceeded with probability δ")
    right.legend(frameon=False, fontsize=9)
    _save(figure, path)
    clt = float(sensitivity_bound(feature_dimension=d, directions=k, delta=1e-5, bound=Recipe.CLT))
    exceeded = float(masses[points > clt].sum())
    print(f"{path.name}: mean {drawn.mean():.5f} (k/d {mean:.5f}), P(H > CLT bound at 1e-5) = {exceeded:.2e}")


def _squared_shift(generator: np.random.Generator, z: np.ndarray[Any, Any], k: int) -> float:
    U = generator.standard_normal((z.size, k))
    return float((((z @ U) / np.linalg.norm(U, axis=0)) ** 2).sum())


def moving_mean(path: Path) -> None:
    """Figure 2: the distances between N(0, I) and N(c e, I) as c moves, e = (1, ..., 1) / sqrt(d)."""
    plain, rows, ours = [], {s: [] for s in _NOISES}, {s: [] for s in _NOISES}
    for mean in _MEANS:
        shift = mean / math.sqrt(_DIMENSION)
        one: dict[float, list[float]] = {s: [] for s in _NOISES}
        two: dict[float, list[float]] = {s: [] for s in _NOISES}
        bare = []
        for repeat in range(_REPEATS):
            generator = torch.Generator().manual_seed(repeat)  # the same samples and directions for each mean
            x = torch.randn(_POINTS, _DIMENSION, generator=generator, dtype=torch.float64)
            y = torch.randn(_POINTS, _DIMENSION, generator=generator, dtype=torch.float64) + shift
            U = torch.randn(_DIMENSION, _SLICES, generator=generator, dtype=torch.float64)
            U = U / U.norm(dim=0)
            bare.append(float(sliced_wasserstein(x, y, U)))
            for sigma in _NOISES:
                one[sigma].append(_noised_rows(x @ U, y @ U, sigma, generator))
                two[sigma].append(_noised_coefficients(x @ U, y @ U, sigma, generator))
        plain.append(statistics.mean(bare))
        for sigma in _NOISES:
            rows[sigma].append(statistics.mean(one[sigma]))
            ours[sigma].append(statistics.mean(two[sigma]))
    figure, axes = plt.subplots(1, 2, figsize=(12.5, 4.8), sharey=True)
    for axis, curves, title in (
        (axes[0], rows, "DP-SWD: noise on every projection of both sides"),
        (axes[1], ours, f"sliced quantile coefficients (L = {_COEFFICIENTS}), the same noise on each"),
    ):
        axis.plot(_MEANS, plain, "k-", linewidth=2.5, label="SWD")
        for sigma, color in zip(_NOISES, ("#56b4e9", "#0072b2", "#cc79a7"), strict=True):
            axis.plot(_MEANS, curves[sigma], "o--", markersize=4, color=color, label=f"σ = {sigma:g}")
        axis.set(xlabel="distance of the means", title=title)
        axis.grid(alpha=0.25)
        axis.legend(frameon=False)
    axes[0].set_ylabel("squared distance")
    figure.suptitle(
        f"Two normal samples, n = {_POINTS:,}, d = {_DIMENSION}, k = {_SLICES}, mean of {_REPEATS} repetitions", y=0.99
    )
    _save(figure, path)


def _noised_rows(x: torch.Tensor, y: torch.Tensor, sigma: float, generator: torch.Generator) -> float:
    noised = [p + sigma * torch.randn(p.shape, generator=generator, dtype=p.dtype) for p in (x, y)]
    return float((noised[0].sort(dim=0).values - noised[1].sort(dim=0).values).square().mean())


def _noised_coefficients(x: torch.Tensor, y: torch.Tensor, sigma: float, generator: torch.Generator) -> float:
    basis = cosine_basis(len(y), _COEFFICIENTS)
    target = basis.T @ y.sort(dim=0).values
    target = target + sigma * torch.randn(target.shape, generator=generator, dtype=target.dtype)
    source = source_coefficients(x, batch=len(y), coefficients=_COEFFICIENTS)
    return float(distance(source, target, sigma=sigma, batch=len(y)))


def accuracy_against_epsilon(path: Path) -> None:
    """Figure 3: for each digits task, every private method on file with its deviation, and the two levels beside it."""
    runs = [run for run in read(RESULTS) if run["geometry"] == "stretched"]
    figure, axes = plt.subplots(1, 2, figsize=(12.5, 4.8))
    for axis, task in zip(axes, ("mnist-usps", "usps-mnist"), strict=True):
        own = [run for run in runs if run["task"] == task]
        _levels(axis, own)
        for method, color, label in (
            ("replay", "#0072b2", "one release, replayed (--method replay)"),
            ("rows", "#d55e00", "rows, all weights (the paper's release)"),
        ):
            _curve(axis, [run for run in own if run["method"] == method], color, label)
        axis.plot(
            [10.0], [PUBLISHED[task][0]], "*", color="black", markersize=11, label="DP-SWD, published (nominal ε)"
        )
        axis.set(xscale="log", xlabel="ε at δ = 1e-5, whole run", ylabel="target accuracy, %")
        axis.set_title(task.upper().replace("-", " → ") + ", stretched")
        axis.grid(alpha=0.25)
    named = {label: handle for axis in axes for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)}
    figure.legend(named.values(), named.keys(), loc="lower center", ncols=3, frameon=False, fontsize=9)
    _save(figure, path, below=0.12)


def _levels(axis: Any, runs: list[dict[str, Any]]) -> None:
    for method, style, label in (("source-only", ":", "source only"), ("non-private", "--", "non-private SWD, ours")):
        values = [run["accuracy"] for run in runs if run["method"] == method]
        if values:
            axis.axhline(statistics.mean(values), linestyle=style, color="#666666", label=label)


def _curve(axis: Any, runs: list[dict[str, Any]], color: str, label: str) -> None:
    by_epsilon: dict[float, list[float]] = {}
    for run in runs:
        by_epsilon.setdefault(run["epsilon"], []).append(run["accuracy"])
    if not by_epsilon:
        return
    at = sorted(by_epsilon)
    means = [statistics.mean(by_epsilon[x]) for x in at]
    errors = [statistics.stdev(by_epsilon[x]) if len(by_epsilon[x]) > 1 else 0.0 for x in at]
    axis.errorbar(at, means, yerr=errors, color=color, marker="o", markersize=4, capsize=3, label=label)


def _save(figure: Any, path: Path, *, below: float = 0.0) -> None:
    figure.tight_layout(rect=(0, below, 1, 1))
    figure.savefig(path, dpi=120, metadata={"Software": None})
    plt.close(figure)
    print(f"wrote {path}")
