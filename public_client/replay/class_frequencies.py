"""The target's class frequencies, and what they leave unexplained, by the law of the releases' noise.

With F_c the distribution function of class c of the source along one direction, a target that differs from the source
in its class frequencies w alone has F_w = sum_c w_c F_c, and its quantile coefficients are

    T_0(w) = sum_c w_c E_c[x],   T_l(w) = -int Phi_l(F_w(y)) dy,   Phi_l(t) = sqrt(2) sin(pi l t) / (pi l)

(the integral of F_w^-1 times a cosine, by parts). The released coefficients are T(w) + e, e ~ N(0, V + v M). V is
known: the release's own noise, and the chance in which records of each class either side happens to have, by the
influence functions of the coefficients. v is what frequencies alone cannot explain: 0 where the features of each
class look alike on both sides. M, for each l the covariance of the projections on the k directions, says where to
look for it: features that vary much are those that move when records are seen otherwise. So v is a part of the
features' variance.

w has a Dirichlet prior around the source's frequencies, whose strength is the most probable one; draws of w have a
mixture of such priors, around frequencies with some classes rare or absent (`frequency_posterior`). All of it is
post-processing of what was released.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from dpswd.public_client.replay.frequency_posterior import LinearPosterior
from dpswd.public_client.replay.residuals import Residuals, in_order

_LINEARISATIONS = 6
_SETTLED = 1e-3  # of the frequencies' total change, after which there is nothing to linearise anew
_HALVINGS = 40
_TELLING = 1e-9  # of the best known combination's part, below which one tells nothing of v
_NOTHING = 2.0  # nats of misfit, below which nothing is left to look for
_SURE = 2.0  # nats below the best that end the interval of v: one side of 97.7%


@dataclass(frozen=True)
class Frequencies:
    """The fit of class frequencies.

    Attributes:
        weights: (classes,), the target's frequency of each class over the source's; 1 if they are not free.
        frequencies: (classes,), the target's.
        before: (classes,), the source's.
        deviations: (classes,), of each frequency.
        unexplained: v, the part of the features' variance that is not explained.
        at_most: the largest v that the release leaves plausible.
        misfit: nats by which v is more probable than 0.
        log_evidence: of the release, up to a constant.
        chi_square: squared residuals per value, in units of the noise that is known.
        values: how many.
    """

    weights: Tensor
    frequencies: Tensor
    before: Tensor
    deviations: Tensor
    unexplained: float
    at_most: float
    misfit: float
    log_evidence: float
    chi_square: float
    values: int


class FrequencyModel:
    """What releases say of class frequencies, where the features of the classes are those of given records.

    Args:
        features: (m, d), raw, of labelled source records, as a view sees them or as they are.
        labels: (m,).
        residuals: from the releases.
        classes: how many there are.
        quick: leaves the chance in either side's records out of the noise, where fits are only compared.
    """

    def __init__(
        self, features: Tensor, labels: Tensor, residuals: Residuals, classes: int, *, quick: bool = False
    ) -> None:
        self._quick = quick
        self._plain: Noise | None = None
        self._labels = labels
        self._onehot = torch.nn.functional.one_hot(labels, classes).double()  # (m, c)
        self._counts = self._onehot.sum(dim=0)
        self._records = residuals.batch
        self._unit = residuals.unit
        self._targets = [target.double() for target in residuals.targets()]
        projections = [one.double() for one in residuals.projections(features)]
        self._sorted = [in_order(one) for one in projections]
        self._shape = _shape(projections, len(self._targets[0]))
        self.present = self._counts > 0
        self.source = self._counts / self._counts.sum()

    def fixed(self) -> Frequencies:
        """The source's own frequencies."""
        left, _, noise = self._at_source
        return self._judged(self.source, torch.zeros_like(self.source), left, noise, 0.0)

    def free(self, start: Tensor | None = None) -> Frequencies:
        """The most probable frequencies, absent classes allowed.

        Args:
            start: (classes,) frequencies to begin from; the source's by default.
        """
        begun, at = (self.source, self._at_source) if start is None else (start, self._around(start))
        even = self._free(begun, at, None)
        if self._quick or even.misfit < _NOTHING:
            return even
        # Far from the start the misfit is all the frequencies' own; counting it as v would end at a wrong place.
        return max(even, self._free(begun, at, 0.0), key=lambda one: one.log_evidence)

    def _free(self, w: Tensor, at: tuple[Tensor, Tensor, Noise], v: float | None) -> Frequencies:
        """From frequencies w, with v fixed on the way or as it is most probable at each step."""
        mode = None
        for _ in range(_LINEARISATIONS):
            left, slopes, noise = at
            own = noise.most_probable(left) if v is None else v
            before, mode = w, self._posterior(w, left, slopes, noise, own).best()
            w = self._spread_out(mode.w)
            at = self._around(w)
            if float((w - before).abs().sum()) < _SETTLED:
                break
        assert mode is not None, "there is at least one round"
        deviations = torch.diagonal(mode.covariance).clamp(min=0.0).sqrt()
        return self._judged(w, self._spread_out(deviations), at[0], at[2], mode.occam)

    def draws(self, frequencies: Frequencies) -> Tensor:
        """Frequencies over the source's from their posterior, with the misfit that they leave.

        Classes may be rare or absent.

        Args:
            frequencies: by `free`.

        Returns:
            (s, classes).
        """

        def around(w: Tensor) -> LinearPosterior:
            return self._posterior(w, *self._around(w), frequencies.unexplained)

        likely = self._spread_out(around(frequencies.frequencies).most_probable())  # under the prior of draws
        drawn = around(likely).draws()
        every = torch.ones(len(drawn), len(likely)).to(drawn)
        every[:, self.present] = drawn / self.source[self.present]
        return every.float()

    def _posterior(self, w: Tensor, left: Tensor, slopes: Tensor, noise: Noise, v: float) -> LinearPosterior:
        own = self.present
        return LinearPosterior(noise.scaled(left, v), noise.scaled(slopes[own].T, v), w[own], self.source[own])

    def tolerant(self, width: float) -> Noise:
        """The noise around the source's own frequencies where others are integrated over.

        Args:
            width: deviation of the logarithm of a class's frequency over the source's.
        """
        _, slopes, influences = self._linear(self.source)
        moved = width * self.source[:, None] * (slopes - self.source @ slopes)  # (c, N)
        return Noise(self._covariance(self.source, slopes, influences) + moved.T @ moved, self._shape)

    def _spread_out(self, values: Tensor) -> Tensor:
        """Values of the classes that the source has, and 0 for others, (classes,)."""
        whole = torch.zeros_like(self.source)
        whole[self.present] = values
        return whole

    @cached_property
    def _at_source(self) -> tuple[Tensor, Tensor, Noise]:
        return self._around(self.source)

    def _around(self, w: Tensor) -> tuple[Tensor, Tensor, Noise]:
        """Released less expected coefficients (N,) at w, their slopes by class (c, N), and the noise."""
        left, slopes, influences = self._linear(w)
        if not self._quick:
            return left, slopes, Noise(self._covariance(w, slopes, influences), self._shape)
        if self._plain is None:
            self._plain = Noise(self._unit**2 * torch.eye(slopes.shape[1]).to(slopes), self._shape)
        return left, slopes, self._plain

    def _judged(self, w: Tensor, deviations: Tensor, left: Tensor, noise: Noise, occam: float) -> Frequencies:
        v = noise.most_probable(left)
        ratio = torch.where(self.present, w / self.source.clamp(min=1e-12), 1.0)
        return Frequencies(
            weights=ratio,
            frequencies=w,
            before=self.source,
            deviations=deviations,
            unexplained=v,
            at_most=noise.at_most(left, v),
            misfit=float(noise.log_likelihood(left, v) - noise.log_likelihood(left, 0.0)),
            log_evidence=float(noise.log_likelihood(left, v)) + occam,
            chi_square=float(noise.square(left, 0.0)) / len(left),
            values=len(left),
        )

    def _linear(self, w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Released less expected coefficients (N,), slopes of the expected ones by class (c, N), by record (N, m)."""
        left, slopes, influences = [], [], []
        shares = w / self._counts.clamp(min=1.0)
        for (ordered, order), target in zip(self._sorted, self._targets, strict=True):
            v = shares[self._labels][order]  # (k, m)
            levels = v.cumsum(dim=1)
            gaps = torch.diff(ordered, dim=1)
            expected, rows = [(ordered * v).sum(dim=1)], [ordered]
            for degree in range(1, len(target)):
                angle = math.pi * degree * levels[:, :-1]
                expected.append(-(math.sqrt(2.0) / (math.pi * degree)) * (torch.sin(angle) * gaps).sum(dim=1))
                slope = math.sqrt(2.0) * torch.cos(angle) * gaps
                above = torch.cat((slope.flip(1).cumsum(dim=1).flip(1), torch.zeros_like(slope[:, :1])), dim=1)
                rows.append(-above)
            left.append((target - torch.stack(expected)).flatten())
            each = torch.cat([torch.empty_like(row).scatter_(1, order, row) for row in rows])  # (L k, m)
            influences.append(each)
            slopes.append((each @ self._onehot / self._counts.clamp(min=1.0)).T)
        return torch.cat(left), torch.cat(slopes, dim=1), torch.cat(influences)

    def _covariance(self, w: Tensor, slopes: Tensor, influences: Tensor) -> Tensor:
        """V (N, N): the noise of the releases, and the chance in the records of either side."""
        own = influences - slopes.T[:, self._labels]
        spread = w / self._records + w.square() / self._counts.clamp(min=1.0)
        rows = own * (spread / self._counts.clamp(min=2.0)).sqrt()[self._labels]
        return rows @ rows.T + self._unit**2 * torch.eye(len(rows)).to(rows)


def _shape(projections: Sequence[Tensor], coefficients: int) -> Tensor:
    """M (N, N), from projections (m, k) on each release's directions: covariances along a diagonal."""
    blocks = [torch.cov(one.T) for one in projections for _ in range(coefficients)]
    return torch.block_diag(*blocks)  # type: ignore[no-any-return, no-untyped-call]


class Noise:
    """V + v M in axes in which it is diagonal, 1 + v values, for every v.

    Args:
        covariance: V (N, N).
        shape: M (N, N).
    """

    def __init__(self, covariance: Tensor, shape: Tensor) -> None:
        self._root = torch.linalg.cholesky(covariance)
        half = torch.linalg.solve_triangular(self._root, shape, upper=False)
        values, self._axes = torch.linalg.eigh(torch.linalg.solve_triangular(self._root, half.T, upper=False))
        self._values = values.clamp(min=0.0)

    def scaled(self, columns: Tensor, v: float) -> Tensor:
        """(N,) or (N, c) in these axes, in units of the noise there."""
        matrix = columns if columns.dim() == 2 else columns[:, None]
        turned: Tensor = self._axes.T @ torch.linalg.solve_triangular(self._root, matrix, upper=False)
        in_noise: Tensor = turned / (1.0 + v * self._values).sqrt()[:, None]
        return in_noise.reshape(columns.shape)

    def square(self, left: Tensor, v: float) -> Tensor:
        """Squared residuals (N,) in units of the noise."""
        return self.scaled(left, v).square().sum()

    def log_likelihood(self, left: Tensor, v: float) -> Tensor:
        """Up to a constant that is the same for all explanations of a release of the same V."""
        return self._log_likelihoods(self.scaled(left, 0.0).square(), torch.tensor([v]).to(self._values))[0]

    def most_probable(self, left: Tensor) -> float:
        """V of the largest likelihood; 0 where the noise explains all.

        Of few features in many directions some combinations are known very well, others hardly: the likelihood may have
        a peak at 0 for the first and a higher one far off for the second, so it is looked at on the whole of a grid.
        """
        grid, squares = self._grid(), self.scaled(left, 0.0).square()
        best = int(self._log_likelihoods(squares, grid).argmax())
        if best == 0:
            return 0.0

        def slope(v: float) -> float:
            whole = 1.0 + v * self._values
            return float((self._values * (squares / whole.square() - 1.0 / whole)).sum())

        low, high = float(grid[best - 1]), float(grid[min(best + 1, len(grid) - 1)])
        while best == len(grid) - 1 and slope(high) > 0.0:
            low, high = high, 2.0 * high
        for _ in range(_HALVINGS):
            middle = 0.5 * (low + high)
            low, high = (middle, high) if slope(middle) > 0.0 else (low, middle)
        return high

    def at_most(self, left: Tensor, v: float) -> float:
        """The largest v at which the likelihood is within `_SURE` nats of the most probable one's."""
        if float(self._values.max()) <= 0.0:  # features that do not vary tell nothing
            return math.inf
        squares = self.scaled(left, 0.0).square()  # once: the axes are turned for every v alike

        def likelihood(at: float) -> float:
            return float(self._log_likelihoods(squares, torch.tensor([at]).to(self._values)))

        floor = likelihood(v) - _SURE
        grid = self._grid()
        plausible = (self._log_likelihoods(squares, grid) > floor).nonzero()[:, 0]
        last = int(plausible[-1]) if len(plausible) else 0
        low = max(v, float(grid[last]))
        high = max(2.0 * low, float(grid[min(last + 1, len(grid) - 1)]))
        while likelihood(high) > floor:
            high *= 2.0
        for _ in range(_HALVINGS):
            middle = 0.5 * (low + high)
            low, high = (middle, high) if likelihood(middle) > floor else (low, middle)
        return high

    def _grid(self) -> Tensor:
        """0, and values of v from where the best known combination begins to tell to where all of them do."""
        telling = self._values[self._values > _TELLING * self._values.max()]
        if not len(telling):
            return torch.zeros(1).to(self._values)
        ends = math.log(0.01 / float(telling.max())), math.log(100.0 / float(telling.min()))
        steps = max(2, math.ceil((ends[1] - ends[0]) / math.log(2.0)))
        return torch.cat([torch.zeros(1), torch.logspace(*ends, steps, base=math.e)]).to(self._values)

    def _log_likelihoods(self, squares: Tensor, grid: Tensor) -> Tensor:
        """Of each v of a grid; squares (N,) are those of the residuals in the axes, in units of the noise at v = 0."""
        whole = 1.0 + grid[:, None] * self._values
        constant = torch.log(torch.diagonal(self._root)).sum()
        likelihoods: Tensor = -0.5 * (squares / whole + whole.log()).sum(dim=1) - constant
        return likelihoods
