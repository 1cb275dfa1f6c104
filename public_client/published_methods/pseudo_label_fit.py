"""What the method `pseudo-labels` has a hospital sum, and how far each class has moved, as far as noised sums tell.

A record adds softmax(scores) (x) (a, z): z are its coordinates along the source's first principal components, scaled so
that the public source's have mean norm 1. The sum over the records holds, for each class, how many records the
classifier takes for it and where their features lie. It is a vector for each record like any extractor's output, so
that the mechanisms and their prices are the ready ones.

The model: the target's features are the source's, those of class c moved by m + e_c along the components, where
m ~ N(0, t0^2) and e_c ~ N(0, t1^2) in every coordinate; coordinates of all classes grow by gains ~ N(0, tg^2); and
classes may be more or less frequent, with log-weights ~ N(0, tw^2). What such a target's sums would be is computed with
the source's own records and the team's own classifier, so its confusion of the classes, and how sure it is of them, are
part of the model; around the last fit it is taken as linear (Gauss-Newton), until it settles. Everything is normal
then: the posterior and the evidence of (t0, tg, t1, tw) and of a misfit kappa that no shift explains are closed forms,
and the evidence chooses (empirical Bayes; MacKay 1992).
"""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from dpswd.public_client.linear_evidence import LinearModel, Normal, shortened
from dpswd.shared.core.errors import InvalidValue
from dpswd.shared.core.mechanisms.feature_sums.mechanism import SumsReply
from dpswd.shared.core.noise.feature_map import FeatureMap

COUNT = 0.5
"""a: how much a class's count weighs beside its features."""
_FLATTENING = 0.3  # of the components' spread: at 0 they keep it, at 1 all have the same
_ROUNDING = 1e-6  # of features in float32
_MOST_SUMS = 256  # noise is spread over all of them, and fitting takes their cube


class PseudoLabelSums(nn.Module):
    """Features (m, d) to what each record adds to the sums, (m, C (r + 1)).

    Args:
        classifier: features to scores (m, C).
        axes: features to (a, z), (m, r + 1); see `component_axes`.
    """

    def __init__(self, classifier: nn.Module, axes: nn.Linear) -> None:
        super().__init__()
        self.classifier = classifier
        self.axes = axes

    def forward(self, features: Tensor) -> Tensor:
        """See the class."""
        shares = torch.softmax(self.classifier(features), dim=-1)
        seen = self.axes(features)
        sums: Tensor = (shares.unsqueeze(2) * seen.unsqueeze(1)).flatten(1)
        return sums


def components_of(most: int, *, classes: int, dimension: int) -> int:
    """R: as many components as are wanted, as there are, and as the number of classes leaves room for."""
    return max(1, min(most, dimension, _MOST_SUMS // classes - 1))


def component_axes(features: Tensor, count: int, *, least: float = 0.0) -> nn.Linear:
    """From features to (a, z), of public source features.

    A component along which the source hardly spreads, such as that of a unit that is dead or nearly so, is left out:
    flattening would stretch what the source knows nothing of, and the release's noise hides even a move by the whole
    spread.

    Args:
        features: (m, d).
        count: r; fewer where the source has fewer records, or fewer components spread enough.
        least: spread along a component, of that along all together, below which it is left out.

    Raises:
        InvalidValue: the features are constant, so that no component is left.
    """
    exact = features.detach().cpu().double()
    center = exact.mean(dim=0)
    _, singular, directions = torch.linalg.svd(exact - center, full_matrices=False)
    whole_spread = float(torch.linalg.vector_norm(singular))
    enough = singular[:count] > max(least, _ROUNDING) * whole_spread
    if not bool(enough.any()):
        raise InvalidValue(
            f"no component of the extractor's features has {least:.2g} of their spread or more, which are "
            f"{float(exact.abs().max()):.3g} at most; check that the extractor is trained and its units are alive"
        )
    chosen = directions[:count][enough]
    flattened = singular[:count][enough] ** -_FLATTENING
    rows = chosen * flattened[:, None]
    rows = rows / torch.linalg.vector_norm((exact - center) @ rows.T, dim=1).mean()
    axes = nn.Linear(exact.shape[1], len(rows) + 1)
    with torch.no_grad():
        axes.weight[0], axes.weight[1:] = 0.0, rows
        axes.bias[0], axes.bias[1:] = COUNT, -(rows @ center)
    return axes.requires_grad_(False)


def whole(extractor: nn.Module, classifier: nn.Module, axes: nn.Linear) -> tuple[nn.Sequential, PseudoLabelSums]:
    """From records to what each adds, as it travels, and its end: of copies on the processor, in evaluation mode."""
    sums = PseudoLabelSums(copy.deepcopy(classifier), axes)
    return nn.Sequential(copy.deepcopy(extractor), sums).cpu().eval(), sums


_FIT_RECORDS = 800  # of the source; more make the fit slower and hardly better
_ROUNDS = 12  # at most
_SETTLED = 2.0  # nats, below which another round is not worth its time
_SHARES = tuple(0.5**times for times in range(7))  # of a round's step, until it gains
_STEP = 0.05  # of the differences that take the place of derivatives, in units of a source record's mean norm
_FREQUENCIES = 1.0
_OTHER_FREQUENCIES = (10.0, 0.1)
"""By how much other frequencies must be likelier: nats, and a share of what shifts explain, which look like them."""
_AGAINST_MISFIT = 3.0
"""Nats for each released value that a misfit of one deviation is less likely beforehand. Of classes that keep apart
each move changes sums of its own, just as a misfit would, so that evidence hardly tells them apart; that classes move
is what is expected."""
_RIVAL = 20.0  # nats, by which other frequencies may be less likely and still be what happened
_NEARLY_NOTHING = 1e-6  # a prior deviation of 0, where it is divided by


class Priors(NamedTuple):
    """The hyperparameters, in units of a source record's mean norm along the components.

    Attributes:
        common, gains, own, frequencies: t0, tg, t1, tw.
        misfit: kappa, times the root mean square deviation of a record's values.
    """

    common: float = 0.1
    gains: float = 0.0
    own: float = 0.05
    frequencies: float = 0.0
    misfit: float = 0.05


_AMONG = {
    "common": (0.0, 0.05, 0.1, 0.2, 0.4),
    "gains": (0.0, 0.1, 0.3, 0.6),
    "own": (0.0, 0.02, 0.05, 0.1, 0.2, 0.4),
    "misfit": (0.0, 0.02, 0.05, 0.1, 0.2, 0.4),
}
"""Among which the evidence chooses."""
_UNCHANGED = Priors(0.0, 0.0, 0.0, 0.0, 0.0)


@dataclass(frozen=True)
class Observed:
    """What was released of a mean over the target's records.

    Attributes:
        values: (D,), of the mapped and clipped sums s over n, with noise.
        deviation: of the noise on each value.
        records: n.
    """

    values: Tensor
    deviation: float
    records: int

    @classmethod
    def of(cls, replies: Sequence[SumsReply], *, sigma: float, records: int) -> Observed:
        """From the replies to all steps, each with noise of this deviation on the sum over all records."""
        sums = torch.stack([reply.sum.to_tensor(dtype=torch.float64) for reply in replies])
        return cls(sums.mean(dim=0) / records, sigma / (records * math.sqrt(len(replies))), records)

    def again(self, mean: Tensor, generator: torch.Generator) -> Observed:
        """The release of another target, drawn anew, with mean (D,)."""
        noise = self.deviation * torch.randn(mean.shape, generator=generator, dtype=torch.float64)
        return replace(self, values=mean + noise)


@dataclass(frozen=True)
class Source:
    """The public side, in float64 on the processor.

    How a target differs from it is told by values (P,): what all classes share, gains, each class's own moves, and
    log-weights of frequencies.

    Attributes:
        features: (m, d).
        labels: (m,).
        sums: of features.
        feature_map: of the sums, as the run declares it.
    """

    features: Tensor
    labels: Tensor
    sums: PseudoLabelSums
    feature_map: FeatureMap

    @property
    def dimension(self) -> int:
        """D."""
        return len(self.feature_map.center)

    @property
    def kinds(self) -> tuple[int, int, int, int]:
        """How many of the values are of each kind: r, r, C r and C."""
        wide = self.sums.axes.out_features
        r, classes = wide - 1, self.dimension // wide
        return r, r, classes * r, classes

    @property
    def spread(self) -> float:
        """Root mean square deviation, over all coordinates, of what a record adds: the unit of a misfit."""
        return math.sqrt(float(self.added(self.features).var(dim=0).mean()))

    def part(self, chosen: Tensor) -> Source:
        """Some of the records."""
        return replace(self, features=self.features[chosen], labels=self.labels[chosen])

    def moved(self, values: Tensor) -> Tensor:
        """The records' features (m, d) in a target that these values tell of, moved along the components."""
        common, gains, own, _ = values.split_with_sizes(self.kinds)
        axes, shifts = self.sums.axes, common + own.reshape(-1, len(common))  # (C, r)
        by = shifts[self.labels] + gains * axes(self.features)[:, 1:]
        moved: Tensor = self.features + by @ (axes.weight[1:] / axes.weight[1:].square().sum(dim=1, keepdim=True))
        return moved

    def weights(self, values: Tensor) -> Tensor:
        """(m,) of the records there; they add up to 1."""
        weights = values[-self.kinds[-1] :].exp()[self.labels]
        return weights / weights.sum()

    @torch.no_grad()
    def added(self, features: Tensor) -> Tensor:
        """(m, D): what records of these features add to the sums, mapped and clipped."""
        return self.feature_map.clipped(self.sums(features))

    def expected(self, values: Tensor) -> Tensor:
        """(D,): the mean of what a record of such a target adds."""
        return self.weights(values) @ self.added(self.moved(values))


@dataclass(frozen=True)
class Shifts:
    """The posterior of how the target differs from the source.

    Attributes:
        mean: (P,) values; see `Source`.
        spread: (P, P), of standard normal numbers that are added to it: a root of the covariance.
        priors: of most evidence.
        doubt: the misfit of most evidence, were all as likely beforehand; moves of classes may look like it.
        evidence: nats that they gain over the source as it is; 0 where nothing has changed.
        rival: the posterior with other frequencies, where they explain the release about as well.
    """

    mean: Tensor
    spread: Tensor
    priors: Priors = _UNCHANGED
    doubt: float = 0.0
    evidence: float = 0.0
    rival: Shifts | None = None

    @classmethod
    def none(cls, source: Source) -> Shifts:
        """Those of a target that is the source's like."""
        values = torch.zeros(sum(source.kinds), dtype=torch.float64)
        return cls(values, torch.diag(values))

    def drawn(self, generator: torch.Generator) -> Tensor:
        """Values (P,) from the posterior."""
        return self.mean + self.spread @ torch.randn(len(self.mean), generator=generator, dtype=torch.float64)


def fitted(source: Source, observed: Observed, generator: torch.Generator, *, frequencies: bool = True) -> Shifts:
    """The posterior, at the hyperparameters with the most evidence.

    Args:
        source: public; of many records a part is drawn.
        observed: what was released of the target.
        generator: of the part.
        frequencies: whether those of the classes may be other ones.
    """
    chosen = torch.randperm(len(source.labels), generator=generator)[:_FIT_RECORDS]
    fit = _Fit(source.part(chosen), observed)
    same = fit.settled(0.0)
    if not frequencies:
        return same
    other = fit.settled(_FREQUENCIES)
    nats, share = _OTHER_FREQUENCIES
    if other.evidence - same.evidence > max(nats, share * same.evidence):
        return other
    return replace(same, rival=other) if other.evidence > same.evidence - _RIVAL else same


class _Fit:
    """One release beside one source.

    Args:
        source, observed: see `fitted`.

    Attributes:
        noise: (D, D), of everything that is no shift, by the misfit.
        nothing: log-likelihood of the source as it is.
    """

    def __init__(self, source: Source, observed: Observed) -> None:
        self.source, self.observed = source, observed
        still = source.added(source.features)
        # A mean over n target records, and over the source's own.
        noise = torch.cov(still.T) * (1.0 / observed.records + 1.0 / len(still))
        unit = torch.eye(len(noise)).to(noise)
        self.noise = {
            kappa: noise + (observed.deviation**2 + (kappa * source.spread) ** 2) * unit for kappa in _AMONG["misfit"]
        }
        left = observed.values - still.mean(dim=0)
        self.nothing = float(LinearModel(unit[:, :1], left, (1,), noise=self.noise[0.0]).under((0.0,)).log_evidence)

    def settled(self, frequencies: float) -> Shifts:
        """Rounds of Gauss-Newton, each with the hyperparameters that have the most evidence there (MacKay 1992)."""
        shifts, priors = Shifts.none(self.source), Priors(frequencies=frequencies)
        for _ in range(_ROUNDS):
            priors, doubt, law = self._likeliest(shifts.mean, priors)
            moved, won = self._stepped(shifts.mean, law, priors.misfit)
            if moved is None and shifts.spread.any():  # what was linear around the last mean does not lead further
                break
            mean = shifts.mean if moved is None else moved
            shifts = Shifts(mean, law.spread, priors, doubt, float(law.log_evidence) - self.nothing)
            if won < _SETTLED:
                break
        return shifts

    def _likeliest(self, around: Tensor, start: Priors) -> tuple[Priors, float, Normal]:
        """The likeliest hyperparameters around some values, by turns until none changes; the doubt; and the law."""
        offset, slopes = self._linearised(around)
        left, kinds = self.observed.values - offset, self.source.kinds
        models = {kappa: LinearModel(slopes, left, kinds, noise=noise) for kappa, noise in self.noise.items()}

        @functools.cache
        def law(priors: Priors) -> Normal:
            return models[priors.misfit].under([max(each, _NEARLY_NOTHING) for each in priors[:4]])

        def likeliest(beforehand: float) -> Priors:
            best, before = start, None
            while best != before:
                before = best
                for name, values in _AMONG.items():
                    tried = [best._replace(**{name: value}) for value in values]
                    best = max(tried, key=lambda each: float(law(each).log_evidence) - beforehand * each.misfit)
            return best

        best = likeliest(_AGAINST_MISFIT * len(left))
        return best, likeliest(0.0).misfit, law(best)

    def _stepped(self, mean: Tensor, law: Normal, misfit: float) -> tuple[Tensor | None, float]:
        """As far towards a round's mean (P,) as the model itself becomes likelier, and by how many nats."""
        root = torch.linalg.cholesky(self.noise[misfit])

        def cost(values: Tensor) -> float:
            left = self.observed.values - self.source.expected(values)
            white = torch.linalg.solve_triangular(root, left[:, None], upper=False)
            return 0.5 * float(white.square().sum() + (values / law.widths).square().sum())

        goal = law.mean
        return shortened(cost, cost(mean), lambda share: mean.lerp(goal, share), _SHARES)

    def _linearised(self, around: Tensor) -> tuple[Tensor, Tensor]:
        """Around some values the released ones are an offset (D,) + slopes (D, P) times the values."""
        source, (r, *_, classes) = self.source, self.source.kinds
        of_class = functional.one_hot(source.labels, classes).double() * source.weights(around)[:, None]  # (m, C)
        moved = source.added(source.moved(around))  # (m, D)
        expected = of_class.sum(dim=1) @ moved

        def differences(place: int) -> Tensor:  # (C, D), by one value
            towards = around.clone()
            towards[place] += _STEP
            return of_class.T @ (source.added(source.moved(towards)) - moved) / _STEP

        own = torch.stack([differences(place) for place in range(r)], dim=1)  # (C, r, D)
        gained = torch.stack([differences(place).sum(dim=0) for place in range(r, 2 * r)])
        frequent = of_class.T @ (moved - expected)
        slopes = torch.cat([own.sum(dim=0), gained, own.flatten(0, 1), frequent]).T  # (D, P)
        return expected - slopes @ around, slopes
