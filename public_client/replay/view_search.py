"""What searches for a kind of view have in common: the releases' likelihood, class frequencies integrated over."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from torch import Tensor, nn

from dpswd.public_client.data.datasets import Labelled
from dpswd.public_client.replay.class_frequencies import FrequencyModel
from dpswd.public_client.replay.residuals import Residuals
from dpswd.public_client.replay.views import CLASS_WIDTH, View

_View = TypeVar("_View", bound=View)


@dataclass(frozen=True)
class Judged(Generic[_View]):
    """A view and what the releases say of it.

    Attributes:
        view: in the making.
        left: released coefficients less its own, (N,).
        unexplained: the most probable part of the features' variance that it leaves.
        log_posterior: of the view, with the class frequencies integrated over.
    """

    view: _View
    left: Tensor
    unexplained: float
    log_posterior: float


class ViewSearch(Generic[_View]):
    """The likelihood of views of one kind.

    Args:
        extractor: frozen, records to features.
        source: labelled public records that views are judged by.
        residuals: from the releases.
    """

    def __init__(self, extractor: nn.Module, source: Labelled, residuals: Residuals) -> None:
        self._extractor, self._records, self._residuals = extractor, source.images, residuals
        with torch.no_grad():
            model = FrequencyModel(extractor(source.images), source.labels, residuals, int(source.labels.max()) + 1)
        self._noise = model.tolerant(CLASS_WIDTH)
        self._even = torch.ones(len(source)).to(source.images)

    @torch.no_grad()
    def left(self, view: View) -> Tensor:
        """Released coefficients less those of the records as the view sees them, (N,)."""
        residuals = self._residuals.of_all(view(self._extractor, self._records), self._even)
        return -self._residuals.unit * residuals.flatten().double()

    def judged(self, view: _View) -> Judged[_View]:
        """What the releases say of a view."""
        left = self.left(view)
        v = self._noise.most_probable(left)
        log_posterior = float(self._noise.log_likelihood(left, v)) - float(view.penalty().detach())
        return Judged(view, left, v, log_posterior)

    def energy(self, view: View, v: float) -> float:
        """Minus the log posterior, up to a constant, with so much unexplained."""
        return 0.5 * float(self._noise.square(self.left(view), v)) + float(view.penalty().detach())
