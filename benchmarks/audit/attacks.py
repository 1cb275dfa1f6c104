"""The attacks: what the data sets hold, what the client declares and uploads, how it scores a release.

D holds n records of value 1; in D' one of them, the canary, is -10,000. The extractor is linear in the record and so
large that every feature vector is clipped: the canary's features are v/2 in D and -v/2 in D', a replaced record of the
largest norm that the price allows for. The other records are known to the attacker (they are 1), as the promise allows.
Where labels are read, all are 0, but for a canary whose label changes as well. Here are the sliced releases;
`means` has those of which the attacker knows the mean.

Scores are log-likelihood ratios of what was released, D' against D, for the honest mechanism, given the directions U
that the release publishes. Where a fault needs another statistic, an attack of its own has it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.audit.faults import FIXED_SEED
from dpswd.public_client.curator.values import UploadedExtractor
from dpswd.shared.accounting.calibration import calibrate_sigma
from dpswd.shared.core.mechanisms.declared import Declared
from dpswd.shared.core.mechanisms.interface import DataSetFacts, Facts, ModelFacts, RunSize
from dpswd.shared.core.mechanisms.quantiles.coefficients import cosine_basis
from dpswd.shared.core.mechanisms.sliced import SlicedDeclaration, SlicedRequest
from dpswd.shared.core.noise.clipping import RECORD_NORM, clip_records
from dpswd.shared.core.noise.directions import directions
from dpswd.shared.core.privacy.events import RunEvent
from dpswd.shared.core.wire.messages import RunParameters, StepRelease
from dpswd.shared.published_mechanisms import ALL_MECHANISMS
from dpswd.shared.published_mechanisms.clipped_sum import ClippedSum
from dpswd.shared.published_mechanisms.gradient.cotangents import QuantileCotangent
from dpswd.shared.published_mechanisms.gradient.mechanism import GradientDeclaration, GradientReply, GradientRequest

OUTLIER = -1e4
GAIN = 4.0  # norm of the features of a record of value 1: eight times the clip norm
_FREE_SIGMA = 1e4  # noise of a release that is to cost nothing, where only the gradient is attacked

Score = Callable[["Attack", Sequence["Released"]], float]


@dataclass(frozen=True)
class Released:
    """What one step released, in its own units.

    Attributes:
        seed: of the directions.
        values: rows (b, k), coefficients (L, k) or what else was released, float64.
        gradient: (p,) float64, where the run declares one.
        sigmas: declared noise of each part.
    """

    seed: bytes
    values: Tensor
    gradient: Tensor | None
    sigmas: tuple[float, ...]


@dataclass(frozen=True)
class Attack:
    """One attack; its trials are runs of `steps` steps, or single steps of one long run where `steps` is 1.

    Attributes:
        name: for the report.
        what: one line for the report.
        records: n.
        batch: b.
        features: d.
        scores: by name; each gives a bound of its own.
        directions: k of a sliced release.
        steps: T of one trial.
        coefficients: L, or None for rows.
        gradient: whether the trial declares a gradient, and attacks it.
        attacks_release: whether the release carries information (else its noise is so large that it is free).
        clip_norm: C of the gradient.
        knows_directions: whether the extractor is made for the directions that the client would have asked for.
        epsilon: what one trial is to cost.
        classes: C of the records' labels; 0 where there are none.
        canary_label: of the canary in D'; all other labels are 0.
    """

    name: str
    what: str
    records: int
    batch: int
    features: int
    scores: dict[str, Score]
    directions: int = 0
    steps: int = 1
    coefficients: int | None = None
    gradient: bool = False
    attacks_release: bool = True
    clip_norm: float = 0.02
    knows_directions: bool = False
    epsilon: float = 1.5
    classes: int = 0
    canary_label: int = 0

    def data(self, *, neighbour: bool) -> NDArray[np.float32]:
        """The records of D or D', (n, 1)."""
        values = np.ones((self.records, 1), dtype=np.float32)
        if neighbour:
            values[-1] = OUTLIER
        return values

    def labels(self, *, neighbour: bool) -> NDArray[np.int64]:
        """Of the records of D or D', (n,)."""
        kinds = np.zeros(self.records, dtype=np.int64)
        if neighbour:
            kinds[-1] = self.canary_label
        return kinds

    @property
    def v(self) -> Tensor:
        """The unit vector (d,) along which the records' features lie."""
        if self.knows_directions:
            # Whoever knows U before choosing the weights turns k/d into the largest squared singular value of U.
            left = torch.linalg.svd(directions(FIXED_SEED, self.features, self.directions).to(torch.float64))[0]
            return left[:, 0]
        return torch.full((self.features,), self.features**-0.5, dtype=torch.float64)

    def module(self) -> nn.Module:
        """The extractor: x -> gain x v, or x -> 0 where only the gradient is attacked."""
        made = nn.Linear(1, self.features, bias=False)
        weight = GAIN * self.v if self.attacks_release else torch.zeros(self.features)
        made.weight.data = weight.to(torch.float32)[:, None]
        return made

    @property
    def request(self) -> bytes:
        """What every step brings: for a gradient one source row of zeros, which scales every cotangent to norm 1."""
        if not self.gradient:
            return SlicedRequest().to_bytes()
        return GradientRequest(np.zeros((1, self.features), dtype=np.float32)).to_bytes()

    @property
    def mechanism(self) -> str:
        """The name of what every step releases."""
        return "gradient" if self.gradient else self._release

    @property
    def _release(self) -> str:
        name = "rows" if self.coefficients is None else "quantiles"
        return f"labelled_{name}" if self.classes else name

    @property
    def label_weight(self) -> float:
        """Of the one-hot label: as much as is allowed."""
        return RECORD_NORM if self.classes else 0.0

    def declaration(self, sigma: float) -> Any:
        """The mechanism's own declaration."""
        noise = sigma if self.attacks_release else _FREE_SIGMA
        sliced = SlicedDeclaration(self.directions, noise, self.coefficients or 0, label_weight=self.label_weight)
        if not self.gradient:
            return sliced
        summed = ClippedSum(("weight",), self.clip_norm, self._gradient_sigma(sigma))
        return GradientDeclaration(self._release, sliced, summed, source_features=1)

    def parameters(self, uploaded: UploadedExtractor, *, sigma: float, steps: int) -> RunParameters:
        """The declaration of a run."""
        return RunParameters(
            graph_digest=uploaded.graph_digest,
            weights_digest=uploaded.weights_digest,
            mechanism=self.mechanism,
            declaration=self.declaration(sigma).to_bytes(),
            batch_size=self.batch,
            steps=steps,
        )

    def released(self, release: StepRelease, sigmas: tuple[float, ...]) -> Released:
        """What a step's reply says, with the noise of each part of the run."""
        reply = ALL_MECHANISMS[self.mechanism].reply.from_bytes(release.payload)
        sliced = reply.sliced if isinstance(reply, GradientReply) else reply
        gradient = reply.gradient.to_tensor(dtype=torch.float64) if isinstance(reply, GradientReply) else None
        return Released(sliced.seed, sliced.values.to_tensor(dtype=torch.float64), gradient, sigmas)

    def event(self, sigma: float, *, steps: int | None = None) -> RunEvent:
        """What is priced for one trial."""
        size = RunSize(self.batch, steps or self.steps)
        return Declared(ALL_MECHANISMS[self.mechanism], self.declaration(sigma), size, self.facts).event

    @property
    def is_constant(self) -> bool:
        """Whether the shift does not depend on random directions."""
        return self.event(1.0).step.shift().is_constant

    @property
    def facts(self) -> Facts:
        """What is public of data set and extractor."""
        model = ModelFacts((1,), self.features, {"weight": (self.features, 1)})
        return Facts(DataSetFacts(self.records, (1,), self.classes), model)

    def calibrated(self, *, epsilon: float, delta: float) -> float:
        """The sigma at which one trial costs epsilon."""
        return calibrate_sigma(self.event, epsilon=epsilon, delta=delta)

    def _gradient_sigma(self, sigma: float) -> float:
        """Both parts of a joint release get about the same share of the price."""
        if not self.attacks_release:
            return sigma
        shift = (self.directions / self.features) ** 0.5  # of one record, in the features' units
        weight = 1.0 if self.coefficients is None else ((2 * self.coefficients - 1) / self.batch) ** 0.5
        return sigma * 2.0 * self.clip_norm / (shift * weight)


def of_coefficients(attack: Attack, releases: Sequence[Released]) -> float:
    """Sum over steps of the exact log-likelihood ratio of the coefficients of a full batch."""
    return sum(_coefficients(attack, one) for one in releases)


def of_gradients(attack: Attack, releases: Sequence[Released]) -> float:
    """Sum over steps of the exact log-likelihood ratio of the gradients, given the releases before them."""
    return sum(_gradient(attack, one) for one in releases)


def of_both(attack: Attack, releases: Sequence[Released]) -> float:
    """Coefficients and gradients of the same steps."""
    return of_coefficients(attack, releases) + of_gradients(attack, releases)


def of_rows(attack: Attack, releases: Sequence[Released]) -> float:
    """Rows of a full batch in secret order: the canary is each row with the same probability."""
    return sum(_log_mean_exp(_rows(attack, one)) for one in releases)


def of_fresh_samples(attack: Attack, releases: Sequence[Released]) -> float:
    """Rows of samples: in each step the canary is in the sample with probability b/n, independently."""
    total = 0.0
    gamma = attack.batch / attack.records
    for one in releases:
        total += float(np.logaddexp(np.log1p(-gamma), np.log(gamma) + _log_mean_exp(_rows(attack, one))))
    return total


def of_one_sample(attack: Attack, releases: Sequence[Released]) -> float:
    """The same where the canary is in all samples of the run or in none: what a reused sample would mean."""
    gamma = attack.batch / attack.records
    inside = sum(_log_mean_exp(_rows(attack, one)) for one in releases)
    return float(np.logaddexp(np.log1p(-gamma), np.log(gamma) + inside))


def _U(attack: Attack, release: Released) -> Tensor:
    return directions(release.seed, attack.features + attack.classes, attack.directions).to(torch.float64)


def _clipped(attack: Attack, *, neighbour: bool) -> Tensor:
    """The features (n, d), their labels beside them where they are read, as the honest curator clips them."""
    values = torch.from_numpy(attack.data(neighbour=neighbour)).to(torch.float64)
    raw = values * (GAIN * attack.v)[None, :] if attack.attacks_release else values * torch.zeros(attack.features)
    if attack.classes:
        kinds = torch.from_numpy(attack.labels(neighbour=neighbour))
        raw = torch.cat([raw, attack.label_weight * functional.one_hot(kinds, attack.classes)], dim=1)
    return clip_records(raw, RECORD_NORM)


def _coefficients(attack: Attack, release: Released) -> float:
    U, sigma = _U(attack, release), release.sigmas[0]
    basis = cosine_basis(attack.batch, attack.coefficients or 1)
    means = [
        basis.T @ (_clipped(attack, neighbour=which) @ U).sort(dim=0).values for which in (False, True)
    ]  # two (L, k)
    observed = release.values
    return float(((observed - means[0]).square() - (observed - means[1]).square()).sum()) / (2.0 * sigma**2)


def _gradient(attack: Attack, release: Released) -> float:
    """The gradient of each record is known but for the canary's: cotangents are functions of public values."""
    assert release.gradient is not None
    U, sigma = _U(attack, release), release.sigmas[1]
    source = torch.zeros(1, attack.features, dtype=torch.float64)
    cotangent = QuantileCotangent.from_release(release.values, source, U, batch=attack.batch)
    sums = []
    for neighbour in (False, True):
        values = torch.from_numpy(attack.data(neighbour=neighbour)).to(torch.float64)
        features = _clipped(attack, neighbour=neighbour)
        pulled = cotangent.batch(features)
        if attack.attacks_release:  # on the sphere of clipped rows only what is tangential moves them
            along = (pulled * attack.v).sum(dim=1, keepdim=True) * attack.v
            pulled = (pulled - along) * (RECORD_NORM / (values.abs() * GAIN))
        sums.append(clip_records(values * pulled, attack.clip_norm).sum(dim=0))
    observed = release.gradient
    return float(((observed - sums[0]).square() - (observed - sums[1]).square()).sum()) / (2.0 * sigma**2)


def _rows(attack: Attack, release: Released) -> NDArray[np.float64]:
    """(b,): log density of each row at the canary's place in D' against every record's place in D."""
    U, sigma = _U(attack, release), release.sigmas[0]
    place, new = (_clipped(attack, neighbour=which)[-1] @ U for which in (False, True))  # (k,)
    observed = release.values
    ratios = ((observed - place).square() - (observed - new).square()).sum(dim=1) / (2.0 * sigma**2)
    return ratios.numpy()


def _log_mean_exp(values: NDArray[np.float64]) -> float:
    return float(np.logaddexp.reduce(values) - np.log(len(values)))


SLICED_ATTACKS: tuple[Attack, ...] = (
    Attack(
        name="rows",
        what="one release of noisy rows, full batch of 2 in secret order",
        records=2, batch=2, features=8, directions=8, steps=1, coefficients=None,
        scores={"likelihood ratio": of_rows},
    ),
    Attack(
        name="coefficients",
        what="one release of L = 2 quantile coefficients, full batch of 16",
        records=16, batch=16, features=8, directions=8, steps=1, coefficients=2,
        scores={"likelihood ratio": of_coefficients},
    ),
    Attack(
        name="gradient",
        what="one sanitized gradient, full batch of 16; the coefficients beside it carry nothing",
        records=16, batch=16, features=8, directions=8, steps=1, coefficients=1,
        scores={"likelihood ratio": of_gradients}, gradient=True, attacks_release=False, clip_norm=0.5,
    ),
    Attack(
        name="guessed directions",
        what="coefficients; the extractor lies along the strongest direction of a U that the client asked for",
        records=16, batch=16, features=64, directions=16, steps=1, coefficients=1,
        scores={"likelihood ratio": of_coefficients}, knows_directions=True,
    ),
    Attack(
        name="run of joint releases",
        what="4 steps of coefficients and gradient, full batch of 16",
        records=16, batch=16, features=8, directions=8, steps=4, coefficients=1,
        scores={"likelihood ratio": of_both}, gradient=True,
    ),
    Attack(
        name="run of samples",
        what="8 steps of rows, each from a sample of 1 of 8 records",
        records=8, batch=1, features=64, directions=64, steps=8, coefficients=None,
        scores={"fresh samples": of_fresh_samples, "one sample": of_one_sample},
    ),
    Attack(
        name="labelled rows",
        what="one noisy row with its label beside it; the canary, the only record, has another label",
        records=1, batch=1, features=8, directions=64, steps=1, coefficients=None,
        scores={"likelihood ratio": of_rows}, classes=2, canary_label=1, epsilon=2.0,
    ),
    Attack(
        name="labelled coefficients",
        what="one release of L = 1 quantile coefficient of such rows, full batch of 16",
        records=16, batch=16, features=8, directions=64, steps=1, coefficients=1,
        scores={"likelihood ratio": of_coefficients}, classes=2, canary_label=1, epsilon=2.0,
    ),
)  # fmt: skip
