"""What a curator computes of a record for a recalibration, and the corrected classifier."""

from __future__ import annotations

import copy

import numpy as np
import torch
from scipy import special
from torch import Tensor, nn

from dpswd.public_client.extractor.adapter_layers import filled_linear
from dpswd.public_client.recalibration.curvature import Values, balancing, contrasts, softness

MOST_CLASSES = 20
"""With slopes and a head; of more only the biases move."""
_MOST_PARAMETERS = 400
_SPREAD = 1e-3  # of the widest component: narrower ones are left out


class Basis(nn.Module):
    """Features (m, D) to a basis of corrections and scores, (m, d - 1 + C).

    Args:
        classifier: features to scores (m, C).
        slopes: from scores to their contrasts in units of the source, or None.
        axes: from features to components in units of the source, or None.
    """

    def __init__(self, classifier: nn.Module, slopes: nn.Linear | None, axes: nn.Linear | None) -> None:
        super().__init__()
        self.classifier, self.slopes, self.axes = classifier, slopes, axes

    def forward(self, features: Tensor) -> Tensor:
        """See the class."""
        scores: Tensor = self.classifier(features)
        if self.slopes is None:
            return scores
        if self.axes is None:
            return torch.cat([self.slopes(scores), scores], dim=1)
        return torch.cat([self.slopes(scores), self.axes(features), scores], dim=1)


def fitted(classifier: nn.Module, features: Tensor, *, components: int) -> Basis:
    """The basis of public source features.

    Args:
        classifier: on the features' device; it is copied to the processor.
        features: (m, D).
        components: at most so many; none where the features are the scores themselves.
    """
    own, exact = copy.deepcopy(classifier).cpu().eval(), features.detach().cpu()
    with torch.no_grad():
        scores = own(exact).double().numpy()
    classes = scores.shape[1]
    if classes > MOST_CLASSES:
        return Basis(own, None, None)
    across = contrasts(classes)
    seen = scores @ across
    unit = max(float(np.sqrt(seen.var(axis=0).mean())), 1e-6)
    center = _center(scores, softness(unit)) @ across
    room = _MOST_PARAMETERS // (classes - 1) - classes
    count = 0 if isinstance(own, nn.Identity) else min(components, room, exact.shape[1])
    return Basis(own, _linear(across.T / unit, -center / unit), _axes(exact.double().numpy(), count))


def _center(scores: Values, scaled: float) -> Values:
    """(C,) around which scores can be scaled so that the classes are as frequent, on average, as before."""
    if scaled == 1.0:
        return np.asarray(scores.mean(axis=0))
    return balancing(scaled * scores, special.softmax(scores, axis=1).mean(axis=0)) / (1.0 - scaled)


def _axes(features: Values, count: int) -> nn.Linear | None:
    """Principal components with unit deviation."""
    center = features.mean(axis=0)
    _, singular, rows = np.linalg.svd(features - center, full_matrices=False)
    spread = singular[:count] > _SPREAD * singular[0] if count > 0 and singular[0] > 0.0 else np.zeros(0, dtype=bool)
    if not spread.any():
        return None
    chosen = rows[: len(spread)][spread] * (np.sqrt(len(features)) / singular[: len(spread)][spread])[:, None]
    return _linear(chosen, -chosen @ center)


def corrected(basis: Basis, correction: Values) -> nn.Module:
    """The team's classifier with a correction (C, d) of its scores; one linear layer where the classifier is one."""
    classes = len(correction)
    weight, bias, on_features = np.eye(classes), correction[:, 0].copy(), None
    if basis.slopes is not None:
        bias_row, rows = _numbers(basis.slopes)
        own = correction[:, 1 : 1 + len(rows)]
        weight, bias = weight + own @ rows, bias + own @ bias_row
        if basis.axes is not None:
            bias_row, rows = _numbers(basis.axes)
            own = correction[:, 1 + classes - 1 :]
            on_features, bias = own @ rows, bias + own @ bias_row
    if isinstance(basis.classifier, nn.Linear):
        before, inner = _numbers(basis.classifier)
        return _linear(weight @ inner + (0.0 if on_features is None else on_features), weight @ before + bias)
    on_scores = _linear(weight, bias)
    if on_features is None:
        return nn.Sequential(copy.deepcopy(basis.classifier), on_scores)
    return Corrected(copy.deepcopy(basis.classifier), on_scores, _linear(on_features, np.zeros(classes)))


class Corrected(nn.Module):
    """A classifier whose scores are corrected by an affine map of themselves and one of the features."""

    def __init__(self, classifier: nn.Module, on_scores: nn.Linear, on_features: nn.Linear) -> None:
        super().__init__()
        self.classifier, self.on_scores, self.on_features = classifier, on_scores, on_features

    def forward(self, features: Tensor) -> Tensor:
        """Features (m, D) to scores (m, C)."""
        scores: Tensor = self.on_scores(self.classifier(features)) + self.on_features(features)
        return scores


def _numbers(layer: nn.Linear) -> tuple[Values, Values]:
    """Bias and weight."""
    weight = layer.weight.detach().cpu().double().numpy()
    bias = np.zeros(len(weight)) if layer.bias is None else layer.bias.detach().cpu().double().numpy()
    return bias, weight


def _linear(weight: Values, bias: Values) -> nn.Linear:
    both = (torch.from_numpy(np.ascontiguousarray(values)) for values in (weight, bias))
    return filled_linear(*both).requires_grad_(False)
