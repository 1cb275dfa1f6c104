"""Features whose mean and covariance moved along few directions: a mean move, a map of low rank, noise along lines.

Deep features are mixed by whatever moves them: another camera turns some directions into others, adds noise along a
few, or moves the mean, and no gain of one feature can follow. A matrix of d^2 numbers is more than a release of a few
hundred values can tell, one of low rank is not. It is written in the source's principal components, each in units of
its own deviation, so that all of its entries are of one kind:

    x -> x + B (b + U V^T z + W e),   z = B^+ (x - mean),   B: the first components times their deviations

e is standard normal noise, drawn for each record: a direction that varies more because it is stretched and one that
varies more because it is noisy ask for opposite classifiers. b, U, V and W have Gaussian priors around 0, of widths
that the release chooses (MacKay 1992), so that without evidence the view stays the identity. The fit is by Gauss-Newton
steps, from the best ridge solution's singular vectors; its number of parameters is paid for: `penalty` holds the
logarithm of the ratio of prior to posterior volume (Laplace), so that shapes, and this family and others, are compared
by their marginal likelihood.
"""

from __future__ import annotations

import copy
import math
from functools import partial

import torch
from torch import Tensor, nn

from dpswd.public_client.data.datasets import Labelled
from dpswd.public_client.data.ranks import Ranks
from dpswd.public_client.linear_evidence import CAUTION, LinearModel, shortened
from dpswd.public_client.replay.class_frequencies import FrequencyModel
from dpswd.public_client.replay.residuals import Residuals
from dpswd.public_client.replay.views import CLASS_WIDTH, View
from dpswd.shared.core.errors import InvalidValue

SHAPES = ((2, 0), (0, 1), (2, 2), (4, 0))
"""Ranks of the map and directions of noise that are tried; a release of a few hundred values hardly tells more."""
MOST_COMPONENTS = 32
"""Principal components of the source that the map sees and moves."""
_LEAST_VARIANCE = 1e-3  # of the first component's, below which a component is left out
_MOVE = 0.5  # usual width of a mean move, in deviations of a component
_SIZE = 0.3  # usual size of a map of rank 1
_GRAIN = 1.0  # usual deviation of noise along a direction, in deviations
_NARROWEST, _WIDEST = 0.01, 3.0  # times the width that is usual
_STEPS = 10  # Gauss-Newton, at most, twice
_SHARES = (1.0, 0.3, 0.09, 0.027)  # of a step, until it gains
_SETTLED = 1.0  # nats, below which a step is the last
_CLOSE = 0.2  # of the logarithm of a width


class LowRankView(View):
    """A mean move, a map of low rank and noise along few directions, in the source's principal components.

    Args:
        mean: (d,), the source's.
        basis: (d, q), its first principal components times their deviations.
        rank: r of the map.
        noisy: s, directions of noise.

    Attributes:
        move: (q,), of the mean, in deviations.
        out: (q, r), U.
        into: (q, r), V.
        grain: (q, s), directions of noise times its deviation.
        widths: (3,), of the priors of the move, of U and V, and of the noise.
        volume: nats that the parameters cost beside their size: prior over posterior volume, and the widths' own prior.
    """

    tunes_extractor = False
    sure = 4.0  # hundreds of numbers were fitted, and on weak features of few source records the trial is too hopeful
    mean: Tensor
    basis: Tensor
    inverse: Tensor
    widths: Tensor
    volume: Tensor

    def __init__(self, mean: Tensor, basis: Tensor, rank: int = 0, noisy: int = 0) -> None:
        super().__init__()
        self.register_buffer("mean", mean.detach().clone())
        self.register_buffer("basis", basis.detach().clone())
        self.register_buffer("inverse", torch.linalg.pinv(basis.detach()).T.contiguous())  # (d, q)
        q = basis.shape[1]
        usual = _MOVE, math.sqrt(_SIZE / q), _GRAIN / math.sqrt(q)
        self.register_buffer("widths", torch.tensor(usual).to(self.mean))
        self.register_buffer("volume", torch.zeros(()).to(self.mean))
        self.move = nn.Parameter(torch.zeros(q).to(self.mean))
        self.out = nn.Parameter(torch.zeros(q, rank).to(self.mean))
        self.into = nn.Parameter(torch.zeros(q, rank).to(self.mean))
        self.grain = nn.Parameter(torch.zeros(q, noisy).to(self.mean))

    def forward(self, extractor: nn.Module, records: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Features (m, d) of records (m, ...), with the same noise each time unless a generator is given."""
        with torch.no_grad():
            features: Tensor = extractor(records)
        moved = self.move + (self.components(features) @ self.into) @ self.out.T
        return features + (moved + self.noise(len(features), generator) @ self.grain.T) @ self.basis.T

    def components(self, features: Tensor) -> Tensor:
        """Components z (m, q) of features (m, d)."""
        return (features - self.mean) @ self.inverse

    def noise(self, count: int, generator: torch.Generator | None = None) -> Tensor:
        """Standard normal numbers (count, s)."""
        source = generator or torch.Generator().manual_seed(0)
        return torch.randn(count, self.grain.shape[1], generator=source).to(self.mean)

    def penalty(self) -> Tensor:
        squares = [self.move.square(), self.out.square() + self.into.square(), self.grain.square()]
        sizes = torch.stack([square.sum() for square in squares])
        return 0.5 * (sizes / self.widths.square()).sum() + self.volume

    def check(self, records: Tensor, features: Tensor) -> None:
        if features.shape[1] != len(self.mean):
            raise InvalidValue(
                f"the view moves {len(self.mean)} features, the extractor gives {features.shape[1]}; make it from "
                "source features of this extractor (low_rank_view)"
            )

    def words(self) -> str:
        return "moved along a few directions of the features"

    def __str__(self) -> str:
        with torch.no_grad():
            size = float(torch.linalg.matrix_norm(self.out @ self.into.T, ord=2)) if self.out.shape[1] else 0.0
            grain = float(torch.linalg.matrix_norm(self.grain, ord=2)) if self.grain.shape[1] else 0.0
            moved = float(torch.linalg.vector_norm(self.move))
        return (
            f"a map of rank {self.out.shape[1]} and size {size:.2f}, noise of {grain:.2f} deviations in "
            f"{self.grain.shape[1]} directions, the mean moved by {moved:.2f} deviations"
        )


def low_rank_view(features: Tensor) -> LowRankView:
    """The identity for source features (m, d)."""
    mean = features.mean(dim=0)
    _, singular, directions = torch.linalg.svd(features - mean, full_matrices=False)
    deviations = singular / math.sqrt(max(1, len(features) - 1))
    enough = deviations[:MOST_COMPONENTS].square() > _LEAST_VARIANCE * deviations[0].square()
    q = max(1, int(enough.sum()))
    return LowRankView(mean, directions[:q].T * deviations[:q].clamp(min=1e-6))


def find_low_rank(identity: LowRankView, source: Labelled, residuals: Residuals, ranks: Ranks) -> LowRankView:
    """The most probable map, of the most probable shape; its `penalty` pays for its parameters.

    Args:
        identity: not changed.
        source: labelled, with features (m, d), raw, for records.
        residuals: from the releases.
        ranks: processes that share the shapes' fits, and end alike.
    """
    search, most = _Search(identity, source, residuals), len(identity.move)
    shapes = [(rank, noisy) for rank, noisy in SHAPES if max(rank, noisy) <= most]

    def one(number: int) -> tuple[LowRankView, float]:
        best, log_posterior = search.fitted(*shapes[number])
        return best.cpu(), log_posterior  # another rank may have another device

    fitted = ranks.divided(len(shapes), one)
    return max(fitted, key=lambda pair: pair[1])[0].to(source.images)


class _Search:
    """The releases' likelihood of views, class frequencies integrated over."""

    def __init__(self, identity: LowRankView, source: Labelled, residuals: Residuals) -> None:
        self._features, self._residuals = source.images, residuals
        frequencies = FrequencyModel(source.images, source.labels, residuals, int(source.labels.max()) + 1)
        self._noise, self._even = frequencies.tolerant(CLASS_WIDTH), torch.ones(len(source)).to(source.images)
        self._start = identity
        self._usual = identity.widths.double()
        z = identity.components(source.images)
        self._inputs = torch.cat((torch.ones_like(z[:, :1]), z), dim=1).double()  # (m, 1 + q)
        with torch.no_grad():
            self._ridge = self._ridge_solution()

    @torch.no_grad()
    def _left(self, view: LowRankView) -> Tensor:
        """Released coefficients less those of the features as the view sees them, (N,)."""
        residuals = self._residuals.of_all(view(nn.Identity(), self._features), self._even)
        return -self._residuals.unit * residuals.flatten().double()

    def _energy(self, view: LowRankView, v: float) -> float:
        """Minus the log posterior, up to a constant, with so much of the features' variance unexplained."""
        return 0.5 * float(self._noise.square(self._left(view), v)) + float(view.penalty().detach())

    @torch.no_grad()
    def fitted(self, rank: int, noisy: int) -> tuple[LowRankView, float]:
        """The most probable view of one shape, and its log posterior."""
        view = self._begun(rank, noisy)
        view = self._descended(view, 0.0)  # what it leaves would be taken for a misfit, and the fit end early
        view = self._descended(view, self._noise.most_probable(self._left(view)))
        factors = view.widths.double() / self._usual
        used = torch.tensor([size > 0 for size in _groups(view)]).to(factors)
        left = self._left(view)
        v = self._noise.most_probable(left)
        view.volume.copy_(self._linear(view, v).under(factors).volume + CAUTION * (factors * used).sum())
        return view, float(self._noise.log_likelihood(left, v)) - float(view.penalty())

    def _slopes(self, view: LowRankView, v: float) -> Tensor:
        """(N, q, 1 + q + s) of the coefficients, in units of the noise, by what is applied to 1, components, noise."""
        inputs = torch.cat((self._inputs, view.noise(len(self._features)).double()), dim=1)
        slopes = self._residuals.slopes(view(nn.Identity(), self._features), view.basis, inputs, self._even)
        return self._noise.scaled(slopes.flatten(1), v).reshape(slopes.shape)

    def _ridge_solution(self) -> Tensor:
        """(q, 1 + q), the move and a matrix of any rank, as if all its entries had the usual width."""
        slopes, q = self._slopes(self._start, 0.0), len(self._start.move)
        widths = torch.full((1 + q,), math.sqrt(_SIZE / q)).to(slopes)
        widths[0] = _MOVE
        target = self._noise.scaled(self._left(self._start), 0.0)
        model = LinearModel((slopes * widths).flatten(1), target, (q + q * q,))
        return model.under((1.0,)).mean.reshape(q, 1 + q) * widths

    def _begun(self, rank: int, noisy: int) -> LowRankView:
        """From the ridge solution: its growing directions as noise, the singular vectors of the rest as the map."""
        view = LowRankView(self._start.mean, self._start.basis, rank, noisy)
        matrix = self._ridge[:, 1:]
        values, vectors = torch.linalg.eigh(0.5 * (matrix + matrix.T))
        values, vectors = values.flip(0)[:noisy].clamp(min=0.01), vectors.flip(1)[:, :noisy]
        view.grain.copy_(vectors * ((1.0 + values).square() - 1.0).sqrt())
        U, sizes, Vh = torch.linalg.svd(matrix - (vectors * values) @ vectors.T)
        view.move.copy_(self._ridge[:, 0])
        view.out.copy_(U[:, :rank] * sizes[:rank].sqrt())
        view.into.copy_(Vh[:rank].T * sizes[:rank].sqrt())
        return view

    def _linear(self, view: LowRankView, v: float) -> LinearModel:
        """The coefficients as a linear function of the view's parameters around it, in usual widths."""
        slopes, q = self._slopes(view, v), len(view.move)
        map_slopes = slopes[:, :, 1 : 1 + q]
        parts = (
            slopes[:, :, 0],
            (map_slopes @ view.into.double()).flatten(1),
            (map_slopes.transpose(1, 2) @ view.out.double()).flatten(1),
            slopes[:, :, 1 + q :].flatten(1),
        )
        jacobian = torch.cat(parts, dim=1) * self._each(view)
        target = self._noise.scaled(self._left(view), v) + jacobian @ self._values(view)
        return LinearModel(jacobian, target, _groups(view))

    def _each(self, view: LowRankView) -> Tensor:
        """The usual width of each parameter, (p,)."""
        return self._usual.repeat_interleave(torch.tensor(_groups(view)).to(self._usual.device))

    def _values(self, view: LowRankView) -> Tensor:
        """Its parameters in usual widths, (p,)."""
        return nn.utils.parameters_to_vector(view.parameters()).double() / self._each(view)

    def _moved(self, view: LowRankView, factors: Tensor, at: Tensor, step: Tensor, share: float) -> LowRankView:
        """The same view with other widths, a share of a step away from parameters."""
        other = copy.deepcopy(view)
        values = ((at + share * step) * self._each(view)).to(view.mean)
        nn.utils.vector_to_parameters(values, other.parameters())
        other.widths.copy_(self._usual * factors)
        return other

    def _descended(self, view: LowRankView, v: float) -> LowRankView:
        """Gauss-Newton steps, and one of the widths' fixed point (MacKay 1992) after each."""
        factors = view.widths.double() / self._usual
        for _ in range(_STEPS):
            model, at = self._linear(view, v), self._values(view)
            step = model.under(factors).mean - at

            moved = partial(self._moved, view, factors, at, step)
            other, gained = shortened(partial(self._energy, v=v), self._energy(moved(0.0), v), moved, _SHARES)
            view = other or view
            changed = model.better_factors(factors, self._values(view)).clamp(_NARROWEST, _WIDEST)
            settled = float((changed / factors).log().abs().max()) < _CLOSE
            factors = changed
            if gained < _SETTLED and settled:
                break
        return self._moved(view, factors, self._values(view), torch.zeros_like(at), 0.0)


def _groups(view: LowRankView) -> tuple[int, int, int]:
    """Numbers of parameters of the move, of the map and of the noise."""
    return view.move.numel(), view.out.numel() + view.into.numel(), view.grain.numel()
