"""Several views of the same records, where more than one is likely or several hospitals share a model."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from dpswd.public_client.replay.views import View


class MixedViews(View):
    """Several views of the same records: each pair of records is seen through one of them.

    Args:
        views: all of one kind.
        weights: how often each is drawn.
        seed: of the draws.
    """

    def __init__(self, views: Sequence[View], weights: Sequence[float], seed: int) -> None:
        super().__init__()
        self.views = nn.ModuleList(views)
        self.tunes_extractor = all(view.tunes_extractor for view in views)
        self.keeps_scores = all(view.keeps_scores for view in views)
        self._weights = torch.tensor(weights)
        self._generator = torch.Generator().manual_seed(seed)

    def forward(self, extractor: nn.Module, records: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Features (m, d) of records (m, ...)."""
        pairs = torch.multinomial(self._weights, max(1, len(records) // 2), replacement=True, generator=self._generator)
        drawn = pairs[(torch.arange(len(records)) // 2).clamp(max=len(pairs) - 1)]  # one alone has no batch statistics
        parts = [(drawn == number).nonzero()[:, 0].to(records.device) for number in range(len(self.views))]
        seen = [
            view(extractor, records[part], generator) for view, part in zip(self.views, parts, strict=True) if len(part)
        ]
        return torch.cat(seen)[torch.cat(parts).argsort()]
