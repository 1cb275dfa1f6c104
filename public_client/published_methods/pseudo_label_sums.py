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

from dpswd.shared.core.errors import InvalidValue

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

    def moved(self, features: Tensor, labels: Tensor, shifts: Tensor, gains: Tensor) -> Tensor:
        """Features (m, d) of labels (m,), moved along the components.

        Args:
            features: (m, d).
            labels: (m,).
            shifts: (C, r), of each class.
            gains: (r,), by how much of themselves coordinates grow, beside the mean of all.
        """
        rows = self.axes.weight[1:]
        by = shifts[labels] + gains * self.axes(features)[:, 1:]
        moved: Tensor = features + by @ (rows / rows.square().sum(dim=1, keepdim=True))
        return moved


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


def made_axes(dimension: int, count: int) -> nn.Linear:
    """Axes of the right size, for the price alone."""
    return component_axes(torch.randn(count + 2, dimension, generator=torch.Generator().manual_seed(0)), count)


def whole(extractor: nn.Module, classifier: nn.Module, axes: nn.Linear) -> tuple[nn.Sequential, PseudoLabelSums]:
    """From records to what each adds, as it travels, and its end: of copies on the processor, in evaluation mode."""
    sums = PseudoLabelSums(copy.deepcopy(classifier), axes)
    return nn.Sequential(copy.deepcopy(extractor), sums).cpu().eval(), sums
