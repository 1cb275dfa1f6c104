"""Curators with one deliberate fault each, made here by patching; the product has no switch for any of them.

Each fault is one that has been published or nearly shipped somewhere (docs/privacy, 5). A patch replaces a name of
the product for as long as the context is open.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from unittest import mock

import numpy as np
import torch
from torch import Tensor

from private_curator.steps import release
from private_curator.steps.randomness import SystemNoise
from shared.kernels.clipping import clip_records, neutralise
from shared.kernels.feature_map import FeatureMap
from shared.kernels.noise import GridArray, grid_step, release_finely
from shared.mechanisms import clipped_sum
from shared.mechanisms.interface import Step
from shared.mechanisms.sinkhorn import mechanism as sinkhorn
from shared.mechanisms.sinkhorn.mechanism import SinkhornDeclaration
from shared.steps import computing
from shared.steps.sampling import sample_without_replacement

HONEST = "honest"
KNOWN_SEED = hashlib.sha256(b"directions that the client asked for").digest()


class HalvedNoise(SystemNoise):
    """Noise of half the declared standard deviation, on the declared grid."""

    def grid_gaussian(self, shape: tuple[int, ...], *, sigma: float, step: float) -> np.ndarray:
        return super().grid_gaussian(shape, sigma=sigma, step=step) // 2


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
    with mock.patch("private_curator.serving.server.noise_for", return_value=HalvedNoise()):
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
    with mock.patch("private_curator.serving.server.fresh_seed", return_value=KNOWN_SEED):
        yield


@contextmanager
def _sample_reused() -> Iterator[None]:
    """One sample for all steps of a run."""
    running = threading.local()
    kept: dict[str, np.ndarray] = {}
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
        return fresh if run is None else kept.setdefault(run, fresh)

    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(release.ReleasePipeline, "answer", remember))
        stack.enter_context(mock.patch.object(computing, "sample_without_replacement", sample))
        yield


@contextmanager
def _honest() -> Iterator[None]:
    yield


FAULTS: dict[str, Callable[[], object]] = {
    HONEST: _honest,
    "noise halved": _noise_halved,
    "batch maximum in the place of clipping": _batch_maximum,
    "target gradient unsanitized": _plain_gradient,
    "generated points clipped one by one": _points_clipped_one_by_one,
    "directions chosen by the client": _directions_of_the_client,
    "sample reused across steps": _sample_reused,
}


@contextmanager
def fault(name: str) -> Iterator[None]:
    """Within, every curator of this process has this fault."""
    with FAULTS[name]():  # type: ignore[attr-defined]
        yield
