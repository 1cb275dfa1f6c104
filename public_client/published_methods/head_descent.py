"""What descents of a linear classifier by noised mean gradients have in common: weights and bias as one matrix."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class HeadDescent(torch.optim.Optimizer):
    """An optimiser of a linear classifier that looks at public records.

    The schedule's rate is not used.

    Args:
        head: the classifier, (C, d) with a bias.
        features: (m, d) of public records, as the head takes them.
        noise: deviation of each coordinate of a gradient, positive.

    Attributes:
        noise: of the next step's gradient, positive; another one where not all hospitals have answered.
    """

    def __init__(self, head: nn.Linear, features: Tensor, *, noise: float) -> None:
        super().__init__([head.weight, head.bias], {"lr": 1.0})
        self.noise = noise
        self.wide = torch.cat([features.double(), torch.ones(len(features), 1).to(features).double()], dim=1)

    def values(self) -> Tensor:
        """(C, d + 1) weights and, last, biases."""
        weight, bias = self.param_groups[0]["params"]
        return torch.cat([weight.detach(), bias.detach()[:, None]], dim=1).double()

    @property
    def answered(self) -> bool:
        """Whether there is a gradient."""
        return self.param_groups[0]["params"][0].grad is not None

    def gradient(self) -> Tensor:
        """(C, d + 1) the present gradient."""
        weight, bias = self.param_groups[0]["params"]
        return torch.cat([weight.grad, bias.grad[:, None]], dim=1).double()

    def install(self, values: Tensor) -> None:
        """Sets weights and biases to (C, d + 1) values."""
        weight, bias = self.param_groups[0]["params"]
        weight.copy_(values[:, :-1])
        bias.copy_(values[:, -1])

    def size(self, change: Tensor) -> float:
        """What a change (C, d + 1) alters of public scores, in the root mean square."""
        return float((self.wide @ change.T).square().mean().sqrt())

    def within(self, change: Tensor, longest: float) -> tuple[Tensor, float]:
        """A change (C, d + 1), shortened to a size of at most `longest`, and the size that it had."""
        size = self.size(change)
        return min(1.0, longest / max(size, 1e-12)) * change, size
