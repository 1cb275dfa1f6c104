"""What the method `pseudo-labels` has a hospital sum: a classifier's shares times the features' first components.

A record adds softmax(scores) (x) (a, z): z are its coordinates along the source's first principal components, scaled so
that the public source's have mean norm 1. The sum over the records holds, for each class, how many records the
classifier takes for it and where their features lie. It is a vector for each record like any extractor's output, so
that the mechanisms and their prices are the ready ones.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

COUNT = 0.5
"""a: how much a class's count weighs beside its features."""
_FLATTENING = 0.3  # of the components' spread: at 0 they keep it, at 1 all have the same
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

    def moved(self, features: Tensor, labels: Tensor, shifts: Tensor) -> Tensor:
        """Features (m, d) of labels (m,), each moved along the components by its class's shift, of (C, r)."""
        rows = self.axes.weight[1:]
        return features + (shifts @ (rows / rows.square().sum(dim=1, keepdim=True)))[labels]


def components_of(most: int, *, classes: int, dimension: int) -> int:
    """R: as many components as are wanted, as there are, and as the number of classes leaves room for."""
    return max(1, min(most, dimension, _MOST_SUMS // classes - 1))


def component_axes(features: Tensor, count: int) -> nn.Linear:
    """From features to (a, z), of public source features (m, d) and a number of components r."""
    exact = features.detach().cpu().double()
    center = exact.mean(dim=0)
    _, singular, directions = torch.linalg.svd(exact - center, full_matrices=False)
    kept = directions[:count]  # fewer than wanted where the source has fewer records
    flattened = singular[: len(kept)].clamp(min=1e-6 * float(singular[0])) ** -_FLATTENING
    rows = kept * flattened[:, None]
    rows = rows / torch.linalg.vector_norm((exact - center) @ rows.T, dim=1).mean()
    axes = nn.Linear(exact.shape[1], len(rows) + 1)
    with torch.no_grad():
        axes.weight[0], axes.weight[1:] = 0.0, rows
        axes.bias[0], axes.bias[1:] = COUNT, -(rows @ center)
    return axes.requires_grad_(False)


def made_axes(dimension: int, count: int) -> nn.Linear:
    """Axes of the right size, for the price alone."""
    return component_axes(torch.randn(count + 2, dimension, generator=torch.Generator().manual_seed(0)), count)


def whole(extractor: nn.Module, classifier: nn.Module, axes: nn.Linear) -> tuple[nn.Sequential, PseudoLabelSums]:
    """From records to what each adds, as it travels, and its end: of copies on the processor, in evaluation mode."""
    sums = PseudoLabelSums(copy.deepcopy(classifier), axes)
    return nn.Sequential(copy.deepcopy(extractor), sums).cpu().eval(), sums
