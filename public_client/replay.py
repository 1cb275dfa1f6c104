"""Adaptation by replaying stored releases: no gradient ever leaves the curator.

The curator releases the target's sliced quantile coefficients once (usually from a full batch, with the whole epsilon
spent on it). Everything after that is post-processing of public values, and free:

1. a *view*, a small differentiable model of how the target sees things (where it looks, brightness, contrast, stroke),
   is fitted to the source's records so that their features' coefficients meet the released ones. The distance has
   local minima (a turn is fitted as a shear), so the fit begins at the best of many random warps;
2. extractor and classifier are fine-tuned, with the source's labels, on source records seen through that view.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from public_client.alignment import Alignment
from public_client.checkpoint import Checkpoint
from public_client.datasets import Labelled
from public_client.progress import Reporter
from shared.errors import InvalidValue
from shared.extractor import AffineWarp2d, ChannelAffine, FeatureAffine
from shared.protocol.messages import StepRelease

Distance = Callable[[Tensor, int], Tensor]
"""(source features (m, d), number of the stored release from 0) to the estimated distance."""


@dataclass(frozen=True)
class Warps:
    """Uniform random affine resamplings; each number is the largest magnitude.

    Attributes:
        turn: radians.
        scale: logarithm of the size.
        aspect: logarithm of the ratio of width to height, halved.
        shear: added to the turn's sine, once.
        shift: half image sides.
    """

    turn: float
    scale: float
    aspect: float
    shear: float
    shift: float

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        """(count, 2, 3) maps from where a pixel is seen to where it is read."""

        def uniform(most: float) -> Tensor:
            return (torch.rand(count, generator=generator) * 2 - 1) * most

        turn, aspect, shear = uniform(self.turn), uniform(self.aspect), uniform(self.shear)
        scale = torch.exp(uniform(self.scale))
        cos, sin = torch.cos(turn) * scale, torch.sin(turn) * scale
        first = torch.stack((cos * torch.exp(aspect), sin + shear * scale, uniform(self.shift)), dim=1)
        second = torch.stack((-sin, cos * torch.exp(-aspect), uniform(self.shift)), dim=1)
        return torch.stack((first, second), dim=1)


MOST_RECORDS = 20_000  # source records that are kept for fitting and tuning
CANDIDATES = 64  # random warps that are scored, beside the identity
FINALISTS = 3  # of them get a short fit
SHORT_STEPS = 50
FIT_STEPS = 150
VIEW_STEPS = FINALISTS * SHORT_STEPS + FIT_STEPS
"""Steps that `find_view` reports."""
_SCORED, _JUDGED = 256, 1024  # source records that score a candidate, a finalist
_FIT_BATCH = 512  # source records a step; the coefficients of so many have little noise of their own
_TUNE_BATCH = 128
_TUNE_RATE = 1e-3
_AVERAGED = 0.25  # the last part of the fit, over which the view is averaged
_SEARCH = Warps(turn=0.5, scale=0.35, aspect=0.2, shear=0.2, shift=0.12)
_JITTER = Warps(turn=0.12, scale=0.1, aspect=0.05, shear=0.1, shift=0.06)


def draw_all(alignment: Alignment, store: Checkpoint | None, bar: Reporter) -> list[StepRelease]:
    """Draws every step of a run without gradients; a resumed run keeps what it has."""
    releases = [] if store is None else [_from_state(entry) for entry in (store.read_state() or {}).get("releases", [])]
    for release in releases:
        bar.advance(f"step {release.step}")
    while len(releases) < alignment.plan.steps:
        release, request_id = alignment.draw()
        releases.append(release)
        if store is not None:
            kept = [_to_state(entry) for entry in releases]
            store.write_state({"step": len(releases), "request_id": request_id, "releases": kept})
        bar.advance(f"step {release.step}")
    return releases


def _to_state(release: StepRelease) -> dict[str, Any]:
    return {
        "run_id": release.run_id,
        "step": release.step,
        "seed": release.directions_seed.hex(),
        "release": torch.from_numpy(release.release),
    }


def _from_state(entry: dict[str, Any]) -> StepRelease:
    return StepRelease(
        run_id=entry["run_id"],
        step=entry["step"],
        directions_seed=bytes.fromhex(entry["seed"]),
        release=entry["release"].numpy(),
        gradient=None,
        cotangent_scale=0.0,
    )


class ImageView(nn.Module):
    """How another device may see images: an affine resampling, stroke thickness, gamma, gain and bias.

    Attributes:
        warp: where it looks.
        stroke: tanh of it mixes in a 3 x 3 maximum (thicker strokes) or minimum (thinner).
        gamma: logarithm of the exponent on brightness in [0, 1].
        affine: gain and bias of each channel.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.warp = AffineWarp2d()
        self.stroke = nn.Parameter(torch.zeros(()))
        self.gamma = nn.Parameter(torch.zeros(()))
        self.affine = ChannelAffine(channels)

    def forward(self, x: Tensor) -> Tensor:
        """(b, c, h, w) in [-1, 1] to the same; the identity at first."""
        x = self.warp(x)
        mix = torch.tanh(self.stroke)
        thick, thin = functional.max_pool2d(x, 3, 1, 1), -functional.max_pool2d(-x, 3, 1, 1)
        x = (1 - mix.abs()) * x + functional.relu(mix) * thick + functional.relu(-mix) * thin
        bright = ((x + 1) / 2).clamp(1e-3, 1.0)  # the lower end keeps the power's derivative finite
        seen: Tensor = self.affine(bright.pow(torch.exp(self.gamma)) * 2 - 1)
        return seen


def view_for(record_shape: Sequence[int]) -> nn.Module:
    """The ready view for a shape of record, the identity at first.

    Raises:
        InvalidValue: there is none.
    """
    if len(record_shape) == 3:
        return ImageView(record_shape[0])
    if len(record_shape) == 2:
        return ChannelAffine(record_shape[0])
    if len(record_shape) == 1:
        return FeatureAffine(record_shape[0])
    raise InvalidValue(
        f"there is no ready view for records of shape {tuple(record_shape)}; allowed: (d,), (c, l), (c, h, w); or "
        'plan with parameters="adapters"'
    )


def find_view(
    extractor: nn.Module,
    images: Tensor,
    distance: Distance,
    *,
    releases: int,
    learning_rate: float,
    generator: torch.Generator,
    bar: Reporter,
) -> tuple[nn.Module, float]:
    """The view under which the source has the target's released coefficients.

    Args:
        extractor: frozen, records to features.
        images: (m, ...) public source records.
        distance: to a stored release.
        releases: how many there are; they take turns.
        learning_rate: at the start of each fit; cosine to a twentieth.
        generator: of candidates and source batches.
        bar: told of each of `VIEW_STEPS` steps.

    Returns:
        The view and the estimated distance that is left.
    """

    def fit(view: nn.Module, steps: int) -> None:
        fit_view(
            view, extractor, images, distance,
            releases=releases, learning_rate=learning_rate, steps=steps, generator=generator, bar=bar,
        )  # fmt: skip

    def score(view: nn.Module, count: int) -> float:
        seen = images[torch.randperm(len(images), generator=torch.Generator().manual_seed(0))[:count]]
        with torch.no_grad():
            return sum(float(distance(extractor(view(seen)), number)) for number in range(min(releases, 8)))

    views = _candidates(images, generator)
    views = sorted(views, key=lambda view: score(view, _SCORED))[:FINALISTS]
    for view in views:
        fit(view, SHORT_STEPS)
    best = min(views, key=lambda view: score(view, _JUDGED))
    fit(best, FIT_STEPS)
    return best, score(best, _JUDGED) / min(releases, 8)


def _candidates(images: Tensor, generator: torch.Generator) -> list[nn.Module]:
    """The identity, and for images random warps."""
    first = view_for(images.shape[1:]).to(images.device)
    views = [first]
    if isinstance(first, ImageView):
        for theta in _SEARCH.draw(CANDIDATES, generator):
            view = copy.deepcopy(first)
            with torch.no_grad():
                view.warp.theta.copy_(theta)
            views.append(view)
    return views


def fit_view(
    view: nn.Module,
    extractor: nn.Module,
    images: Tensor,
    distance: Distance,
    *,
    releases: int,
    learning_rate: float,
    steps: int,
    generator: torch.Generator,
    bar: Reporter,
) -> None:
    """Fits one view in place by Adam and keeps the average of the last quarter; the arguments are `find_view`'s."""
    parameters = list(view.parameters())
    optimizer = torch.optim.Adam(parameters, lr=learning_rate)
    first_averaged = math.ceil((1 - _AVERAGED) * steps)
    averages = [torch.zeros_like(parameter) for parameter in parameters]
    for t in range(steps):
        optimizer.param_groups[0]["lr"] = learning_rate * _cosine(t / steps)
        chosen = torch.randint(len(images), (min(_FIT_BATCH, len(images)),), generator=generator)
        loss = distance(extractor(view(images[chosen])), t % releases)
        optimizer.zero_grad()
        torch.autograd.backward(loss, inputs=parameters)
        optimizer.step()
        if t >= first_averaged:
            for average, parameter in zip(averages, parameters, strict=True):
                average += parameter.detach() / (steps - first_averaged)
        bar.advance(f"distance {float(loss.detach()):.4f}")
    with torch.no_grad():
        for average, parameter in zip(averages, parameters, strict=True):
            parameter.copy_(average)


def tune(
    extractor: nn.Module,
    classifier: nn.Module,
    view: nn.Module,
    source: Labelled,
    *,
    steps: int,
    generator: torch.Generator,
    bar: Reporter,
) -> tuple[nn.Module, nn.Module]:
    """Copies of both modules, fine-tuned on labelled source records seen through the view.

    Images are warped a little at random before they are seen, which makes up for what the view missed.

    Args:
        extractor: source-trained.
        classifier: source-trained.
        view: fitted.
        source: public.
        steps: updates.
        generator: of the batches.
        bar: told of each step.
    """
    extractor, classifier = copy.deepcopy(extractor), copy.deepcopy(classifier)
    trained = [*extractor.parameters(), *classifier.parameters()]
    for parameter in trained:
        parameter.requires_grad_(True)
    optimizer = torch.optim.Adam(trained, lr=_TUNE_RATE)
    for t in range(steps):
        optimizer.param_groups[0]["lr"] = _TUNE_RATE * (1.0 - t / steps)
        chosen = torch.randint(len(source), (min(_TUNE_BATCH, len(source)),), generator=generator)
        images, labels = source.images[chosen], source.labels[chosen]
        with torch.no_grad():
            seen = view(_jittered(images, generator))
        loss = functional.cross_entropy(classifier(extractor(seen)), labels)
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
        bar.advance(f"class loss {float(loss.detach()):.3f}")
    return extractor.eval(), classifier.eval()


def _jittered(images: Tensor, generator: torch.Generator) -> Tensor:
    """Each image (b, c, h, w) under a small warp of its own; other records as they are."""
    if images.dim() != 4:
        return images
    theta = _JITTER.draw(len(images), generator).to(images)
    grid = functional.affine_grid(theta, list(images.shape), align_corners=False)
    return functional.grid_sample(images, grid, mode="bilinear", padding_mode="border", align_corners=False)


def _cosine(progress: float) -> float:
    return 0.05 + 0.95 * 0.5 * (1.0 + math.cos(math.pi * progress))
