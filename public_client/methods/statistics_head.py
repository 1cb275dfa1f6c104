"""A linear head from noised class statistics: a discriminant whose every shrinkage follows from the known noise.

The model is the linear discriminant's: features of class c are N(mu_c, Sigma), so that scores are linear and their
softmax is the probability of the classes. What is released are counts, class sums and second moments with Gaussian
noise of known deviation; so each estimate has a known error, and is shrunk by it:

* class means, their common centre and the classes' shares towards what is known before, by the variance of each;
  how far class means lie apart is itself estimated, from what noise and sampling leave unexplained (empirical Bayes);
* the covariance towards a prior one. Noise of deviation s on a symmetric matrix spreads eigenvalues over a band of half
  width 2 s sqrt(d). What lies inside says nothing; what lies outside is brought back from l to sqrt(l^2 - 4 s^2 d), the
  best choice in the Frobenius norm (Donoho, Gavish and Johnstone 2018; for such noise: Perry, Wein and others 2016).

All of it is post-processing: it reads released and public numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpswd.shared.core.errors import InvalidValue
from dpswd.shared.core.mechanisms.class_statistics.mechanism import StatisticsDeclaration, StatisticsReply, Sums

Values = npt.NDArray[np.float64]

SHARE_DEVIATION = 0.2
"""How far a hospital's share of a class lies from what is known of the others before anything is known of it."""
CENTRE_DEVIATION = 0.5
"""How far the mean of all features (of norm 1 at most) lies from the public map's centre, before it is known."""
LEAST_SEPARATION = 1.0
"""Distance of two classes' means, in deviations, that labels worth learning have: an AUC of 0.76."""
_LEAST_EIGENVALUE = 0.05
"""Of the covariance, in units of its usual level: a direction without any spread would decide everything."""


@dataclass(frozen=True, eq=False)
class ClassSums:
    """What one hospital, or several together, have released of their labelled features u, |u| <= 1.

    Attributes:
        counts: (C,) of the classes, less the same for each: deviations from n / C. Noised.
        features: (C, d) sums of features, less the same for each: deviations from a C-th of the sum over all. Noised.
        total: (d,) sum of all features, noised; zeros where it was not released.
        moments: (d, d) sum of u u^T, noised; None where it was not released.
        records: the number of labelled records; an estimate where it is private.
        count_variance: of the noise on each count; infinite where none were released.
        feature_variance: on each coordinate of `features`.
        total_variance: on each coordinate of `total`; infinite where it was not released.
        moment_variance: on each entry of `moments` off the diagonal; twice as much on it.
    """

    counts: Values
    features: Values
    total: Values
    moments: Values | None
    records: float
    count_variance: float
    feature_variance: float
    total_variance: float
    moment_variance: float

    @classmethod
    def of(
        cls,
        reply: StatisticsReply,
        declared: StatisticsDeclaration,
        *,
        records: int,
        dimension: int,
        number_private: bool = False,
    ) -> ClassSums:
        """One release, and its noise.

        Args:
            reply: of a step.
            declared: by its run.
            records: labelled ones; n where their number is private.
            dimension: d.
            number_private: whether the labelled records' number is what the noised counts say.

        Raises:
            InvalidValue: that number would follow from counts that were not released.
        """
        sums, variance, classes = Sums.of(reply, declared, dimension), declared.sigma**2, declared.classes
        a, beta, left = declared.count_weight, declared.moment_weight, 1.0 - declared.centring
        own = variance * (1.0 - 1.0 / classes)  # what the classes have in common is taken off, noise and all
        common = sums.features.sum(axis=0)
        number = float(records)
        if number_private:
            if not a or declared.centring:
                raise InvalidValue("where the number of labels is private the counts are needed whole; use centring 0")
            number = float(np.clip(sums.counts.sum(), classes, records))
        return cls(
            sums.counts - sums.counts.mean(),
            sums.features - common / classes,
            common / left if left else np.zeros(dimension),
            sums.moments,
            number,
            count_variance=own / a**2 if a else math.inf,
            feature_variance=own,
            total_variance=classes * variance / left**2 if left else math.inf,
            moment_variance=variance / (2.0 * beta**2) if beta else math.inf,
        )

    @classmethod
    def together(cls, parts: Sequence[ClassSums]) -> ClassSums:
        """What several hospitals say of one model. A hospital whose noise says more than its records counts less.

        The weight is the inverse of what a record of it contributes in variance, noise and sampling together: equal for
        all where there is little noise, and then the sums add up. It depends on public numbers alone.

        Raises:
            InvalidValue: there are none, or they differ in classes or features.
        """
        if len({part.features.shape for part in parts}) != 1:
            shapes = ", ".join(str(part.features.shape) for part in parts) or "nothing"
            raise InvalidValue(f"class statistics of one shape (classes, features) add up; got {shapes}")
        sampling = 1.0 / parts[0].features.shape[1]
        weights = np.array([1.0 / (part.feature_variance / part.records + sampling) for part in parts])
        return cls._weighted(parts, weights / weights.max())

    @classmethod
    def mean(cls, repeated: Sequence[ClassSums]) -> ClassSums:
        """Of several releases of the same records: their mean, of the same n."""
        return cls._weighted(repeated, np.full(len(repeated), 1.0 / len(repeated)))

    @classmethod
    def _weighted(cls, parts: Sequence[ClassSums], weights: Values) -> ClassSums:
        def summed(name: str) -> Values:
            return np.asarray(sum(w * getattr(part, name) for w, part in zip(weights, parts, strict=True)))

        def variance(name: str) -> float:
            return float(sum(w * w * getattr(part, name) for w, part in zip(weights, parts, strict=True)))

        return cls(
            summed("counts"),
            summed("features"),
            summed("total"),
            None if any(part.moments is None for part in parts) else summed("moments"),
            float(summed("records")),
            **{name: variance(name) for name in _VARIANCES},
        )


_VARIANCES = ("count_variance", "feature_variance", "total_variance", "moment_variance")


@dataclass(frozen=True, eq=False)
class Prior:
    """What is known before: from public records.

    Attributes:
        means: (C, d) of the classes; None: all at the public map's centre.
        covariance: (d, d) within a class; None: the same in all directions.
    """

    means: Values | None = None
    covariance: Values | None = None

    @classmethod
    def from_source(cls, features: Values, labels: npt.NDArray[np.int64], *, classes: int) -> Prior:
        """Of labelled public features u (m, d): class means, and the covariance within a class.

        Raises:
            InvalidValue: a class has no record, or a label is outside of 0 to C - 1.
        """
        counts = np.bincount(labels, minlength=classes)
        if len(counts) != classes or not counts.all():
            raise InvalidValue(
                f"the public source has {counts.tolist()} records of its classes; a prior needs some of each of the "
                f"hospital's {classes} classes: use prior='none', or a source with all of them"
            )
        means = np.stack([features[labels == c].mean(axis=0) for c in range(classes)])
        rest = features - means[labels]
        return cls(means, rest.T @ rest / len(rest))


@dataclass(frozen=True, eq=False)
class Head:
    """Scores W u + b: the logarithms of the classes' probabilities, but for a common constant.

    Attributes:
        weight: (C, d).
        bias: (C,).
    """

    weight: Values
    bias: Values

    def with_shares(self, before: Values, after: Values) -> Head:
        """The head for records whose classes have other shares (C,)."""
        return Head(self.weight, self.bias + np.log(after) - np.log(before))


def shares_of(released: ClassSums, *, around: Values | None = None) -> Values:
    """(C,) shares of the classes, positive, adding up to 1.

    Args:
        released: counts and their noise.
        around: (C,) what they are shrunk towards; by default equal shares.
    """
    classes, n = len(released.counts), released.records
    middle = np.full(classes, 1.0 / classes) if around is None else around
    error = released.count_variance / n**2 + middle * (1.0 - middle) / n
    weight = SHARE_DEVIATION**2 / (SHARE_DEVIATION**2 + error)
    share = np.maximum(weight * (released.counts / n + 1.0 / classes) + (1.0 - weight) * middle, 0.5 / (n + classes))
    return np.asarray(share / share.sum())


@dataclass(frozen=True, eq=False)
class Classes:
    """The classes' normal laws, as far as they are known: N(means[c], covariance).

    Attributes:
        shares: (C,), positive, adding up to 1.
        means: (C, d), shrunk by their errors.
        covariance: (d, d) within a class, positive definite, shrunk by its noise.
        unknown: variance of what is not known of the means, in each direction.
    """

    shares: Values
    means: Values
    covariance: Values
    unknown: float

    def discriminant(self) -> Head:
        """The linear discriminant between these laws."""
        # What is not known of the means widens the classes: directions that noise hides must not decide.
        widened = self.covariance + self.unknown * np.eye(len(self.covariance))
        middle = self.shares @ self.means
        weights = np.asarray(np.linalg.solve(widened, (self.means - middle).T).T, dtype=np.float64)
        bias = np.log(self.shares) - 0.5 * ((self.means + middle) * weights).sum(axis=1)
        return Head(weights, bias)


def discriminant(released: ClassSums, prior: Prior | None = None) -> Head:
    """The linear discriminant of what is known; see `classes_of`."""
    return classes_of(released, prior).discriminant()


def classes_of(released: ClassSums, prior: Prior | None = None) -> Classes:
    """The classes' laws by what is known of them.

    Args:
        released: of one hospital, or of several together.
        prior: from public records; without one nothing is known before.
    """
    prior = prior or Prior()
    share, n = shares_of(released), released.records
    classes, d = released.features.shape
    sizes = n * share  # (C,) records of each class
    expected = np.zeros(d) if prior.means is None else share @ prior.means
    weight = CENTRE_DEVIATION**2 / d / (CENTRE_DEVIATION**2 / d + released.total_variance / n**2 + 1.0 / (d * n))
    total = weight * released.total + (1.0 - weight) * n * expected
    observed = (released.features + total / classes) / sizes[:, None]  # (C, d)
    level = _level(released, prior)
    error = released.feature_variance / sizes**2 + level / sizes  # (C,) of each coordinate of a class's mean
    centre = total / n if prior.means is None else prior.means
    deviation = observed - centre
    least = 0.25 * LEAST_SEPARATION**2 * level / d if prior.means is None else 0.0
    chance = float(error.mean()) * (
        1.0 + 2.0 * math.sqrt(2.0 / deviation.size)
    )  # noise's mean square, two deviations up
    spread = min(
        max(least, float((deviation**2).mean()) - chance), 1.0 / d
    )  # a mean of features of norm 1 is no longer
    shrinkage = spread / (spread + error)  # (C,)
    means = centre + shrinkage[:, None] * deviation
    covariance = _covariance(released, means, sizes, prior, level)
    return Classes(share, means, covariance, float((share * shrinkage * error).sum()))


def _level(released: ClassSums, prior: Prior) -> float:
    """The usual eigenvalue of the covariance, in the range that features of norm 1 can have."""
    d = released.features.shape[1]
    level = 1.0 / d
    if prior.covariance is not None:
        level = float(np.trace(prior.covariance)) / d
    elif released.moments is not None:
        level = float(np.median(np.linalg.eigvalsh(released.moments))) / released.records
    return float(min(max(level, 0.02 / d), 1.0 / d))


def _covariance(released: ClassSums, means: Values, sizes: Values, prior: Prior, level: float) -> Values:
    """(d, d) within a class, positive definite; `means` are the shrunk ones: what noise hides stays within."""
    n, d = released.records, means.shape[1]
    base = level * np.eye(d) if prior.covariance is None else prior.covariance
    if released.moments is None:
        return base if prior.covariance is None else base + _LEAST_EIGENVALUE * level * np.eye(d)
    seen = (released.moments - (sizes[:, None] * means).T @ means) / n
    noise = math.sqrt(released.moment_variance / n**2 + level**2 / n)
    band = (2.0 * math.sqrt(d) + 2.0) * noise  # few features: the largest eigenvalue of noise wanders beyond 2 sqrt(d)
    values, vectors = np.linalg.eigh(seen - base)
    values = np.sign(values) * np.sqrt(np.maximum(values**2 - band**2, 0.0))
    if band > level:  # no variance is negative: so far below the base there is nothing but noise
        values = np.maximum(values, 0.0)
    values, vectors = np.linalg.eigh(base + (vectors * values) @ vectors.T)
    covariance: Values = (vectors * np.maximum(values, _LEAST_EIGENVALUE * level)) @ vectors.T
    return covariance
