"""A release made in this process: the curator's mechanism and the accountant's noise, without its service.

For benchmarks of many small runs, where starting a curator would be most of the work, and for proxies. The noise is the
curator's own, from a seed of the operating system; the figures are those of a run whose whole budget is its epsilon.
"""

from __future__ import annotations

import secrets

import torch
from torch import Tensor, nn

from dpswd.public_client.data.datasets import Labelled
from dpswd.public_client.data.feature_maps import map_from_source
from dpswd.public_client.data.progress import reporting
from dpswd.public_client.methods.replay import Replay
from dpswd.public_client.replay import fit as replay
from dpswd.public_client.replay.delivery import Delivered, deliver
from dpswd.public_client.replay.posterior import VIEW_STEPS
from dpswd.public_client.replay.residuals import Residuals
from dpswd.public_client.replay.verdict import Fitted
from dpswd.shared.accounting.calibration import calibrate_sigma
from dpswd.shared.core.mechanisms.quantiles.coefficients import release_coefficients
from dpswd.shared.core.mechanisms.sliced import SlicedReply
from dpswd.shared.core.noise.directions import directions
from dpswd.shared.core.privacy.events import QuantileCoefficients, RunEvent, StepEvent
from dpswd.shared.seeded_noise import SeededNoise

DEFAULT = Replay()
RATE = DEFAULT.learning_rate


def released(
    target: Tensor,
    source: Tensor,
    *,
    epsilon: float,
    delta: float,
    seed: bytes | None = None,
    records: int | None = None,
    along: int = DEFAULT.directions,
) -> Residuals:
    """One full-batch release of target features, as what is left to fit.

    Args:
        target: (n, d) features of the private records.
        source: (m, d) public features, for the public map.
        epsilon: of the release.
        delta: of the budget.
        seed: 32 bytes, for the same noise again; the operating system's by default.
        records: the noise is that of so many records; n by default.
        along: so many directions.
    """
    n, d = target.shape
    count = records or n

    def run(sigma: float) -> RunEvent:
        part = QuantileCoefficients(d, along, DEFAULT.coefficients, sigma)
        return RunEvent(step=StepEvent(count, count, (part,)), steps=1)

    # Coefficients grow with sqrt(b): noise for another number of records is brought to the size of these n.
    sigma = calibrate_sigma(run, epsilon=epsilon, delta=delta) * (n / count) ** 0.5
    drawn = seed or secrets.token_bytes(32)
    feature_map = map_from_source(source, target_norm=DEFAULT.target_norm)
    with torch.no_grad():
        grid = release_coefficients(
            feature_map.clipped(target),
            directions(drawn, d, along).to(target),
            coefficients=DEFAULT.coefficients,
            sigma=sigma,
            noise=SeededNoise(drawn, purpose="noise of a local release"),
        )
    return Residuals([SlicedReply(drawn, grid)], like=source, feature_map=feature_map, batch=n, sigma=sigma)


def fitted(
    extractor: nn.Module,
    source: Labelled,
    target: Tensor,
    *,
    epsilon: float,
    delta: float,
    seed: int,
    records: int | None = None,
) -> Fitted:
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
    residuals = released(seen, features, epsilon=epsilon, delta=delta, seed=drawn, records=records)
    generator = torch.Generator().manual_seed(seed)
    with reporting("", VIEW_STEPS, shown=False) as bar:
        return replay.find_view(extractor, source, residuals, learning_rate=RATE, generator=generator, bar=bar)


def delivered(
    extractor: nn.Module,
    classifier: nn.Module,
    fitted: Fitted,
    source: Labelled,
    *,
    seed: int,
    generator: torch.Generator,
) -> Delivered:
    """What the default gives a team whose release says so.

    Args:
        extractor: source-trained.
        classifier: source-trained.
        fitted: by `find_view`.
        source: labelled public records.
        seed: of twins.
        generator: of the batches.
    """
    with reporting("", DEFAULT.tuning_steps, shown=False) as bar:
        return deliver(
            extractor, classifier, {"target": fitted}, {"target": 1.0}, source,
            steps=DEFAULT.tuning_steps, seed=seed, generator=generator, bar=bar,
        )["target"]  # fmt: skip
