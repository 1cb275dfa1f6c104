"""Curators with one deliberate fault each, made here by patching; the product has no switch for any of them.

Each fault is one that has been published or nearly shipped somewhere (docs/privacy, 5). A patch replaces a name of
the product for as long as the context is open.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from unittest import mock

import numpy as np
import torch
from torch import Tensor

from dpswd.private_curator.core.steps import release
from dpswd.private_curator.core.steps.randomness import SystemNoise
from dpswd.shared.core.mechanisms import rounded_features
from dpswd.shared.core.mechanisms.interface import Step
from dpswd.shared.core.mechanisms.score_statistics import sums as score_sums
from dpswd.shared.core.noise.clipping import RECORD_NORM, clip_factors, clip_records, neutralise
from dpswd.shared.core.noise.feature_map import FeatureMap
from dpswd.shared.core.noise.noise import GridArray, NoiseSource, grid_step, release_finely
from dpswd.shared.core.steps import computing
from dpswd.shared.core.steps.sampling import sample_without_replacement
from dpswd.shared.published_mechanisms import clipped_sum
from dpswd.shared.published_mechanisms.sinkhorn import mechanism as sinkhorn
from dpswd.shared.published_mechanisms.sinkhorn.mechanism import SinkhornDeclaration
from dpswd.shared.seeded_noise import SeededNoise

FAULTLESS = "honest"
FIXED_SEED = hashlib.sha256(b"directions that the client asked for").digest()


class HalvedNoise(SystemNoise):
    """Noise of half the declared standard deviation, on the declared grid."""

    parts = 2

    def grid_gaussian(self, shape: tuple[int, ...], *, sigma: float, step: float) -> np.ndarray:
        return super().grid_gaussian(shape, sigma=sigma, step=step) // self.parts


class HalvedSeededNoise(SeededNoise):
    """The same of the mock curator, by which the tests compute releases without a service."""

    parts = 2

    def grid_gaussian(self, shape: tuple[int, ...], *, sigma: float, step: float) -> np.ndarray:
        return super().grid_gaussian(shape, sigma=sigma, step=step) // self.parts


def over_the_batch_maximum(feature_map: FeatureMap, features: Tensor) -> Tensor:
    """Rows divided by twice the largest norm of the batch, as the papers write it, in the place of clipping."""
    mapped = neutralise(feature_map.apply(features))
    return mapped / (2.0 * torch.linalg.vector_norm(mapped, dim=1).max().clamp(min=1e-12))


def plain_gradient(per_record: Tensor, *, clip_norm: float, sigma: float, noise: object) -> GridArray:  # noqa: ARG001
    """The sum as it is: no clipping, no noise."""
    step = grid_step(sigma)
    limit = np.iinfo(np.int32).max
    total = (neutralise(per_record).to(torch.float64).sum(dim=0) / step).round().clamp(-limit, limit)
    return GridArray(values=total.cpu().numpy().astype(np.int32), step=step)


@contextmanager
def _noise_halved() -> Iterator[None]:
    with (
        mock.patch("dpswd.private_curator.serving.server.noise_for", return_value=HalvedNoise()),
        mock.patch("dpswd.public_client.testing.mock.SeededNoise", HalvedSeededNoise),
    ):
        yield


@contextmanager
def _noise_quartered() -> Iterator[None]:
    with _noise_halved(), mock.patch.object(HalvedNoise, "parts", 4), mock.patch.object(HalvedSeededNoise, "parts", 4):
        yield


@contextmanager
def _noise_left_out() -> Iterator[None]:
    """Every draw is 0 steps of the grid, or -1."""
    with (
        _noise_halved(),
        mock.patch.object(HalvedNoise, "parts", 1 << 40),
        mock.patch.object(HalvedSeededNoise, "parts", 1 << 40),
    ):
        yield


@contextmanager
def _clipped_for_additions() -> Iterator[None]:
    """Records clipped to norm 1 and gradients to 2C: the sensitivity then is the price's if a record is added."""

    def features(feature_map: FeatureMap, raw: Tensor) -> Tensor:
        return clip_records(feature_map.apply(raw), 2.0 * RECORD_NORM)

    def factors(values: Tensor, norm: float) -> Tensor:
        return clip_factors(values, 2.0 * norm)

    def gradient(per_record: Tensor, *, clip_norm: float, sigma: float, noise: NoiseSource) -> GridArray:
        return summed(per_record, clip_norm=2.0 * clip_norm, sigma=sigma, noise=noise)

    def points(own: Tensor, declared: SinkhornDeclaration, step: Step) -> GridArray:
        return vector(own, replace(declared, clip_norm=2.0 * declared.clip_norm), step)

    summed, vector = clipped_sum.release_gradient, sinkhorn.sanitized
    with (
        mock.patch.object(FeatureMap, "clipped", features),
        mock.patch.object(rounded_features, "clip_factors", factors),
        mock.patch.object(clipped_sum, "release_gradient", gradient),
        mock.patch.object(sinkhorn, "sanitized", points),
        mock.patch.object(score_sums, "_INSIDE", 2.0),
    ):
        yield


@contextmanager
def _batch_maximum() -> Iterator[None]:
    with mock.patch.object(FeatureMap, "clipped", over_the_batch_maximum):
        yield


@contextmanager
def _plain_gradient() -> Iterator[None]:
    with mock.patch.object(clipped_sum, "release_gradient", plain_gradient):
        yield


def clipped_point_by_point(gradient: Tensor, declared: SinkhornDeclaration, step: Step) -> GridArray:
    """Each generated point's gradient clipped to C by itself, with the noise of the sensitivity 2C."""
    rows = clip_records(gradient, declared.clip_norm)
    return release_finely(rows, sigma=declared.sigma, exponent=declared.exponent, noise=step.noise)


@contextmanager
def _points_clipped_one_by_one() -> Iterator[None]:
    with mock.patch.object(sinkhorn, "sanitized", clipped_point_by_point):
        yield


@contextmanager
def _directions_of_the_client() -> Iterator[None]:
    with mock.patch("dpswd.private_curator.serving.server.fresh_seed", return_value=FIXED_SEED):
        yield


@contextmanager
def _sample_reused() -> Iterator[None]:
    """One sample for all steps of a run."""
    running = threading.local()
    first: dict[str, np.ndarray] = {}
    answer = release.ReleasePipeline.answer

    def remember(self: release.ReleasePipeline, *arguments: object, run_id: str, **options: object) -> object:
        running.run = run_id
        try:
            return answer(self, *arguments, run_id=run_id, **options)  # type: ignore[arg-type]
        finally:
            running.run = None

    def sample(records: int, batch: int) -> np.ndarray:
        fresh = sample_without_replacement(records, batch)
        run = getattr(running, "run", None)  # none while a trial on made records measures the time
        return fresh if run is None else first.setdefault(run, fresh)

    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(release.ReleasePipeline, "answer", remember))
        stack.enter_context(mock.patch.object(computing, "sample_without_replacement", sample))
        yield


@contextmanager
def _faultless() -> Iterator[None]:
    yield


@dataclass(frozen=True)
class Fault:
    """One fault.

    Attributes:
        made: within it every curator of this process has the fault.
        attacks: names of those that may see it; none: every attack with single releases.
    """

    made: Callable[[], AbstractContextManager[None]]
    attacks: tuple[str, ...] = ()


FAULTS: dict[str, Fault] = {
    FAULTLESS: Fault(_faultless),
    "noise halved": Fault(_noise_halved),
    "noise quartered": Fault(_noise_quartered),
    "noise left out": Fault(_noise_left_out),
    "clipped for additions": Fault(
        _clipped_for_additions,
        (
            "rows",
            "coefficients",
            "gradient",
            "labelled rows",
            "labelled coefficients",
            "generated points",
            "class statistics",
            "labelled gradient",
        ),
    ),
    "batch maximum in the place of clipping": Fault(
        _batch_maximum, ("rows", "coefficients", "labelled rows", "labelled coefficients", "guessed directions")
    ),
    "target gradient unsanitized": Fault(_plain_gradient, ("gradient", "labelled gradient")),
    "generated points clipped one by one": Fault(_points_clipped_one_by_one, ("generated points",)),
    "directions chosen by the client": Fault(_directions_of_the_client, ("coefficients", "guessed directions")),
    "sample reused across steps": Fault(_sample_reused, ("run of samples",)),
}


def fault(name: str) -> AbstractContextManager[None]:
    """Within, every curator of this process has this fault."""
    return FAULTS[name].made()
