"""A release made in this process: the curator's mechanism and the accountant's noise, without its service.

For benchmarks of many small runs, where starting a curator would be most of the work, and for proxies. The noise is the
curator's own, from a seed of the operating system; the figures are those of a run whose whole budget is its epsilon.
"""

from __future__ import annotations

import secrets

import torch
from torch import Tensor, nn

from public_client.data.datasets import Labelled
from public_client.data.progress import reporting
from public_client.replay import fit as replay
from public_client.replay.residuals import Misfit
from shared.kernels.directions import directions
from shared.kernels.feature_map import FeatureMap
from shared.kernels.noise import SeededNoise
from shared.mechanisms.quantiles.coefficients import release_coefficients
from shared.privacy.calibration import calibrate_sigma
from shared.privacy.events import QuantileCoefficients, RunEvent, StepEvent
from shared.protocol.messages import StepRelease

DIRECTIONS, COEFFICIENTS, NORM = 200, 3, 0.4  # the default plan's
RATE = 0.03  # likewise


def released(
    target: Tensor,
    source: Tensor,
    *,
    epsilon: float,
    delta: float,
    seed: bytes | None = None,
    records: int | None = None,
) -> Misfit:
    """One full-batch release of target features, as what is left to fit.

    Args:
        target: (n, d) features of the private records.
        source: (m, d) public features, for the public map.
        epsilon: of the release.
        delta: of the budget.
        seed: 32 bytes, for the same noise again; the operating system's by default.
        records: the noise is that of so many records; n by default.
    """
    n, d = target.shape
    count = records or n

    def run(sigma: float) -> RunEvent:
        part = QuantileCoefficients(d, DIRECTIONS, COEFFICIENTS, sigma)
        return RunEvent(step=StepEvent(count, count, (part,)), steps=1)

    # Coefficients grow with sqrt(b): noise for another number of records is brought to the size of these n.
    sigma = calibrate_sigma(run, epsilon=epsilon, delta=delta) * (n / count) ** 0.5
    drawn = seed or secrets.token_bytes(32)
    feature_map = FeatureMap.from_source(source, target_norm=NORM)
    with torch.no_grad():
        grid = release_coefficients(
            feature_map.clipped(target),
            directions(drawn, d, DIRECTIONS).to(target),
            coefficients=COEFFICIENTS,
            sigma=sigma,
            noise=SeededNoise(drawn, purpose="noise of a local release"),
        )
    release = StepRelease(
        run_id="local",
        step=1,
        directions_seed=drawn,
        release=grid.values * grid.step,
        gradient=None,
        cotangent_scale=0.0,
    )
    return Misfit([release], like=source, feature_map=feature_map, batch=n, sigma=sigma)


def fitted(
    extractor: nn.Module,
    source: Labelled,
    target: Tensor,
    *,
    epsilon: float,
    delta: float,
    seed: int,
    records: int | None = None,
) -> replay.Fitted:
    """The default view, fitted to one release of target records.

    Args:
        extractor: frozen.
        source: labelled public records.
        target: (n, ...) private records.
        epsilon: of the release.
        delta: of the budget.
        seed: below 256, of the release and of the fit's random starts.
        records: see `released`.
    """
    with torch.no_grad():
        features, seen = extractor(source.images[:4096]), extractor(target)
    drawn = bytes([seed, *range(31)])
    misfit = released(seen, features, epsilon=epsilon, delta=delta, seed=drawn, records=records)
    generator = torch.Generator().manual_seed(seed)
    with reporting("", replay.VIEW_STEPS, shown=False) as bar:
        return replay.find_view(extractor, source, misfit, learning_rate=RATE, generator=generator, bar=bar)
