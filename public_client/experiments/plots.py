"""Pictures of a finished training: what was charged over its steps, and source and target features before and after.

Everything drawn is the client's own or was released: of the target that is an ellipse, whose centre and size are
estimated from the released means and spreads along the step's directions, never a record.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dpswd.public_client.methods.sliced_run import ComparedStep, SlicedRun
from dpswd.public_client.plans.plan import Plan
from dpswd.public_client.replay.residuals import weighted_coefficients
from dpswd.public_client.training.history import HistoryPoint
from dpswd.shared.core.mechanisms.sliced import SlicedDeclaration

_SHOWN = 1500  # source records in a scatter plot
_WIDTH = 2.0  # standard deviations that an ellipse covers
_LEAST_SPREAD = 1e-3  # of the source's variance: noise may push an estimate below zero


@dataclass(frozen=True)
class PlaneEstimate:
    """A distribution in a plane, by its first two moments.

    Attributes:
        mean: (2,).
        covariance: (2, 2).
    """

    mean: Tensor
    covariance: Tensor


def target_in_plane(seen: ComparedStep, declared: SlicedDeclaration, plane: Tensor, *, batch: int) -> PlaneEstimate:
    """What a release says of the target in a plane of feature space; post-processing of public values.

    The mean has the smallest squared distance from the released ones along the directions, the source's mean as prior.
    Of the covariance only its size is estimated, from the released spreads; its shape is the source's: a step's few
    hundred noisy numbers do not tell more.

    Args:
        seen: at one step.
        declared: by the run.
        plane: (d, 2), orthonormal, in the space of mapped and clipped features.
        batch: b.
    """
    source = seen.feature_map.clipped(seen.source_features).to(torch.float64)  # (m, d)
    U = seen.release.directions(source)  # (d, k)
    means, spreads = _moments(seen, declared, batch)
    noise = declared.sigma**2 / batch  # of a mean along one direction
    own_mean = source.mean(dim=0)
    gaps = means - own_mean @ U  # (k,)
    prior = max(float(gaps.square().mean()) - noise, 1e-12)  # of each coordinate of the shift
    system = U @ U.T + (noise / prior + 1e-9) * torch.eye(len(U), dtype=U.dtype, device=U.device)
    shift = torch.linalg.solve(system, U @ gaps)  # (d,)
    covariance = torch.cov((source @ plane).T)
    if spreads is not None:
        own = _source_spreads(source, U, declared)
        factor = float((spreads @ own) / (own @ own).clamp(min=1e-12))  # spreads = factor * own, by least squares
        covariance = max(factor, _LEAST_SPREAD) * covariance
    return PlaneEstimate(mean=(own_mean + shift) @ plane, covariance=covariance)


def _moments(seen: ComparedStep, declared: SlicedDeclaration, batch: int) -> tuple[Tensor, Tensor | None]:
    """Released means (k,) and variances (k,) along the directions; the noise's share is subtracted."""
    values = seen.release.values.to_tensor(dtype=torch.float64)
    if not declared.coefficients:
        return values.mean(dim=0), values.var(dim=0) - declared.sigma**2
    scaled = values / batch**0.5  # (L, k)
    if len(values) == 1:
        return scaled[0], None
    return scaled[0], scaled[1:].square().sum(dim=0) - (len(values) - 1) * declared.sigma**2 / batch


def _source_spreads(source: Tensor, U: Tensor, declared: SlicedDeclaration) -> Tensor:
    """The source's variances (k,) along the directions, truncated as the released ones are."""
    projections = source @ U
    if not declared.coefficients:
        return projections.var(dim=0)
    own = weighted_coefficients(projections, torch.ones_like(projections[:, 0]), declared.coefficients)
    return own[1:].square().sum(dim=0)


def principal_plane(features: Tensor) -> Tensor:
    """(d, 2): the two directions in which features (m, d) vary most."""
    centred = features.to(torch.float64) - features.to(torch.float64).mean(dim=0)
    _, _, directions = torch.linalg.svd(centred, full_matrices=False)
    plane: Tensor = directions[:2].T.contiguous()
    return plane


def plot_features(path: Path, run: SlicedRun, *, title: str) -> None:
    """Source records and the target's estimated ellipse, at the first and at the last step.

    Args:
        path: the PNG.
        run: whose steps were drawn in this process.
        title: above both panels.
    """
    assert run.first is not None
    assert run.last is not None
    figure, axes = _panels(2, figsize=(10, 4.6), sharex=True, sharey=True)
    plane = principal_plane(run.first.feature_map.clipped(run.first.source_features))
    for axis, seen, when in zip(axes, (run.first, run.last), ("before", "after"), strict=True):
        points = seen.feature_map.clipped(seen.source_features).to(torch.float64) @ plane
        shown = points[:_SHOWN].cpu().numpy()
        axis.scatter(shown[:, 0], shown[:, 1], s=4, alpha=0.35, color="C0", linewidths=0, label="source records")
        own = PlaneEstimate(points.mean(dim=0), torch.cov(points.T))
        _ellipse(axis, own, color="C0", label="source, two deviations")
        target = target_in_plane(seen, run.sliced, plane, batch=run.plan.batch_size)
        _ellipse(axis, target, color="C3", label="target: centre and size, from the release")
        axis.set_title(when)
        axis.set_xlabel("first principal direction")
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("second principal direction")
    axes[0].legend(fontsize=8, loc="best")
    figure.suptitle(title)
    figure.savefig(path, dpi=130)


def plot_epsilon(
    path: Path,
    histories: Mapping[str, list[HistoryPoint]],
    plans: Mapping[str, Plan],
    *,
    charged: Mapping[str, float],
    title: str,
) -> None:
    """Epsilon over the steps: what the steps so far would cost alone, and what was charged when the run opened.

    Args:
        path: the PNG.
        histories: by site.
        plans: by site.
        charged: epsilon of each site's run as the curator counted it.
        title: above the plot.
    """
    figure, axis = _panels(1, figsize=(6.4, 4.2))
    for index, (name, points) in enumerate(histories.items()):
        color = f"C{index}"
        axis.plot(
            [point.step for point in points],
            [point.epsilon for point in points],
            color=color, marker="os^Dv"[index % 5], markersize=4, alpha=0.8, label=f"{name}: the steps so far alone",
        )  # fmt: skip
        axis.axhline(charged[name], color=color, linestyle="--", linewidth=1, label=f"{name}: charged at the start")
    axis.set_xlabel("private steps drawn")
    axis.set_ylabel(f"epsilon at delta {next(iter(plans.values())).delta:g}")
    axis.set_ylim(bottom=0)
    axis.set_xlim(left=0)
    axis.legend(fontsize=8, loc="lower right")
    axis.grid(alpha=0.3)
    figure.suptitle(title)
    figure.savefig(path, dpi=130)


def plot_accuracy(
    path: Path, histories: Mapping[str, Sequence[HistoryPoint]], *, levels: Mapping[str, float], title: str
) -> None:
    """Accuracy against the share of steps and against epsilon.

    Args:
        path: the PNG.
        histories: of private trainings, by what the legend calls them.
        levels: accuracies in percent of methods without a history, drawn as lines.
        title: above both panels.
    """
    figure, (left, right) = _panels(2, figsize=(11, 4.2), sharey=True)
    for index, (label, points) in enumerate(histories.items()):
        last = max(point.step for point in points) or 1
        style: dict[str, Any] = {"color": f"C{index}", "marker": "o", "markersize": 3}
        if len(points) <= 2:  # all was released at once: a line from the start would show a course that there was not
            points, style = points[-1:], {"color": f"C{index}", "marker": "*", "markersize": 12, "linestyle": "none"}
        accuracies = [point.accuracy for point in points]
        left.plot([100 * point.step / last for point in points], accuracies, label=label, **style)
        right.plot([point.epsilon for point in points], accuracies, **style)
    for index, (label, accuracy) in enumerate(levels.items()):
        for axis in (left, right):
            axis.axhline(accuracy, linestyle="--", linewidth=1, color=f"C{len(histories) + index}", label=label)
    left.set_xlabel("share of the run's steps (%)")
    right.set_xlabel("epsilon that the steps so far cost (replace one record)")
    left.set_ylabel("accuracy on the private target (%)")
    left.set_xlim(0, 105)
    right.set_xlim(left=0)
    left.legend(fontsize=8, loc="best")
    for axis in (left, right):
        axis.grid(alpha=0.3)
    figure.suptitle(title)
    figure.savefig(path, dpi=130)


def _panels(count: int, **options: Any) -> tuple[Any, Any]:
    """A figure that no window shows, and its axes beside each other."""
    from matplotlib.figure import Figure  # takes a second to load

    figure = Figure(figsize=options.pop("figsize"), layout="constrained")
    return figure, figure.subplots(1, count, **options)


def _ellipse(axis: Any, estimate: PlaneEstimate, *, color: str, label: str) -> None:
    angle = np.linspace(0.0, 2.0 * np.pi, 100)
    circle: npt.NDArray[np.float64] = np.stack((np.cos(angle), np.sin(angle)))
    values, vectors = np.linalg.eigh(estimate.covariance.cpu().numpy())
    middle, radii = estimate.mean.cpu().numpy(), np.sqrt(np.clip(values, 0.0, None))
    outline = middle[:, None] + _WIDTH * vectors @ (radii[:, None] * circle)
    axis.plot(outline[0], outline[1], color=color, label=label)
    axis.plot(*middle, marker="+", markersize=10, color=color)
