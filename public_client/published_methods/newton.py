"""Newton's steps with noised gradients: the curvature is that of the public source, and costs nothing.

DP-SGD's noise is alike in all directions, while a softmax classifier's loss is curved a thousand times more in some
than in others; descents that see gradients alone take a hundred noisy steps to make up for it. The curvature
of public records at the present weights is near enough to the hospital's for twenty. It is taken for a Kronecker
product of (C, C) and (d, d) (Martens and Grosse 2015; for one linear layer), so that only matrices of these sizes are
turned into their axes.

In such an axis of curvature h a gradient g with noise of deviation s shows the way to the minimum as -g / h, with the
error s / h. A way that is likely to be as long as t is then -g h / (h^2 + s^2 / t^2) long in the mean. Step k goes
2 / (k + 1) of it, which makes the classifier a mean over all steps in which later ones count more; s is that of a mean
over k. Where gradients differ in their noise, as when a hospital drops out, a step counts by its precision too. All of
it reads released and public numbers.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn

_LIKELY = 0.3
"""Of a weight's way, t, for features whose mean norm is 1 (docs/ml-team/labelled.md)."""
_SURE, _HALVINGS = 0.8, 30
"""Mean probability of its decisions with which a classifier begins, on public records, at most."""
MOST_FEATURES = 4096
"""Whose axes are taken anew at each step: a quarter of a minute of a core for so many."""
_LONGEST = 1.5
"""Root mean square of a step's change of scores on public records, at most."""


def less_sure(classifier: nn.Linear, features: Tensor) -> nn.Linear:
    """The classifier, its scores divided until the mean probability of its decisions on public records is `_SURE`.

    A classifier is surer of the records that it was trained with than it has reason to be elsewhere, and where it is
    sure the loss has no curvature: steps by it would go too far.

    Args:
        classifier: (C, d); one that is less sure stays as it is, but for rounding.
        features: (m, d) of the public source.
    """
    with torch.no_grad():
        scores = classifier(features).double()
        low, high = 0.0, 1.0
        for _ in range(_HALVINGS):
            middle = 0.5 * (low + high)
            sure = float(torch.softmax(middle * scores, dim=1).amax(dim=1).mean())
            low, high = (middle, high) if sure < _SURE else (low, middle)
        made = copy.deepcopy(classifier)
        for parameter in made.parameters():
            parameter.mul_(low)
    return made


class Newton(torch.optim.Optimizer):
    """Goes to the minimum of a softmax classifier's loss, by noised mean gradients and public curvature.

    The schedule's rate is not used.

    Args:
        head: the classifier, (C, d) with a bias.
        features: (m, d) of public records, as the head takes them, of mean norm 1.
        noise: deviation of each coordinate of a gradient.

    Attributes:
        noise: the same, of the next step's: it is another one where not all hospitals have answered.
    """

    def __init__(self, head: nn.Linear, features: Tensor, *, noise: float) -> None:
        super().__init__([head.weight, head.bias], {"lr": 1.0})
        self.noise = noise
        self._wide = torch.cat([features.double(), torch.ones(len(features), 1).to(features).double()], dim=1)
        self.state[head.weight].update(step=0, precision=0.0, weight=0.0)  # of the noise, summed over steps

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Goes one step by the present gradient."""
        head_weight, bias = self.param_groups[0]["params"]
        state = self.state[head_weight]
        state["step"] += 1
        values, gradient = (  # (C, d + 1): weights and, last, biases
            torch.cat([weights, biases[:, None]], dim=1).double()
            for weights, biases in ((head_weight.detach(), bias.detach()), (head_weight.grad, bias.grad))
        )
        kinds, axes, curvature = self._curvature(values)
        along = kinds.T @ gradient @ axes
        state["precision"] += self.noise**-2
        state["weight"] += (weight := state["step"] * self.noise**-2)
        unsure = 1.0 / state["precision"] / _LIKELY**2
        way = -kinds @ (along * curvature / (curvature.square() + unsure).clamp(min=1e-300)) @ axes.T
        change = weight / state["weight"] * way
        size = float((self._wide @ change.T).square().mean().sqrt())  # of the change of public scores
        values += min(1.0, _LONGEST / max(size, 1e-12)) * change
        head_weight.copy_(values[:, :-1])
        bias.copy_(values[:, -1])

    def _curvature(self, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Axes (C, C) and (d + 1, d + 1), and the public loss's curvature (C, d + 1) along each pair of them."""
        shares = torch.softmax(self._wide @ values.T, dim=1)  # (m, C)
        doubt = (shares * (1.0 - shares)).sum(dim=1)  # (m,): the trace of a record's (C, C)
        of_kinds = torch.diag(shares.mean(dim=0)) - shares.T @ shares / len(shares)  # its trace is the mean doubt
        of_features = (self._wide * doubt[:, None]).T @ self._wide / doubt.sum()
        (along_kinds, kinds), (along_axes, axes) = torch.linalg.eigh(of_kinds), torch.linalg.eigh(of_features)
        return kinds, axes, along_kinds.clamp(min=0.0)[:, None] * along_axes.clamp(min=0.0)
