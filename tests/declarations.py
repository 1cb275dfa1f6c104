"""Short ways to write what a run declares: a mechanism's name, and its declaration."""

from __future__ import annotations

from dataclasses import replace

from dpswd.shared.core.mechanisms.class_statistics.mechanism import StatisticsDeclaration
from dpswd.shared.core.mechanisms.evaluation.mechanism import EvaluationDeclaration
from dpswd.shared.core.mechanisms.feature_sums.mechanism import SumsDeclaration
from dpswd.shared.core.mechanisms.interface import Payload
from dpswd.shared.core.mechanisms.score_statistics.mechanism import ScoresDeclaration
from dpswd.shared.core.mechanisms.sliced import SlicedDeclaration
from dpswd.shared.core.noise.feature_map import FeatureMap
from dpswd.shared.published_mechanisms.clipped_sum import ClippedSum
from dpswd.shared.published_mechanisms.critic.mechanism import CriticDeclaration
from dpswd.shared.published_mechanisms.gradient.mechanism import GradientDeclaration
from dpswd.shared.published_mechanisms.labelled_gradient.mechanism import LabelledGradientDeclaration
from dpswd.shared.published_mechanisms.sinkhorn.mechanism import SinkhornDeclaration

Declared = tuple[str, Payload]


def rows(sigma: float = 1.0, *, directions: int = 20, feature_map: FeatureMap | None = None) -> Declared:
    return "rows", SlicedDeclaration(directions, sigma, feature_map=feature_map)


def quantiles(
    coefficients: int, sigma: float, *, directions: int = 20, feature_map: FeatureMap | None = None
) -> Declared:
    return "quantiles", SlicedDeclaration(directions, sigma, coefficients, feature_map)


def labelled(release: Declared, *, weight: float) -> Declared:
    """A sliced release of features with labels beside them."""
    name, declared = release
    assert isinstance(declared, SlicedDeclaration)
    return f"labelled_{name}", replace(declared, label_weight=weight)


def gradient(sliced: Declared, summed: ClippedSum, *, source_features: int = 64) -> Declared:
    """A gradient of a sliced release."""
    release, declared = sliced
    assert isinstance(declared, SlicedDeclaration)
    return "gradient", GradientDeclaration(release, declared, summed, source_features)


def critic(summed: ClippedSum) -> Declared:
    return "critic", CriticDeclaration(summed)


def evaluation(declared: EvaluationDeclaration) -> Declared:
    return "evaluation", declared


def class_statistics(declared: StatisticsDeclaration) -> Declared:
    return "class_statistics", declared


def feature_sums(declared: SumsDeclaration) -> Declared:
    return "feature_sums", declared


def score_statistics(declared: ScoresDeclaration) -> Declared:
    return "score_statistics", declared


def sinkhorn(declared: SinkhornDeclaration) -> Declared:
    return "sinkhorn", declared


def labelled_gradient(summed: ClippedSum, *, classes: int) -> Declared:
    return "labelled_gradient", LabelledGradientDeclaration(classes, summed)
