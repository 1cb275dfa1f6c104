"""Newton's steps with noised gradients, in the public source's own axes: the curvature there costs nothing.

DP-SGD's noise is alike in all directions, so a direction in which features hardly vary costs as much as one in which
they vary most. The features' principal axes are public; each is divided by a power of its deviation, and all together
are brought to norm 1 in the mean. What is learned is then the same in any units, and the classifier that is kept
afterwards is linear in the raw features again.

A softmax classifier's loss is curved a thousand times more in some directions than in others; descents that see
gradients alone take a hundred noisy steps to make up for it. The curvature of public records at the present weights is
near enough to the hospital's for twenty. It is taken for a Kronecker product of (C, C) and (d, d) (Martens and Grosse
2015; for one linear layer), so that only matrices of these sizes are turned into their axes.

In such an axis of curvature h a gradient g with noise of deviation s shows the way to the minimum as -g / h, with the
error s / h. A way that is likely to be as long as t is then -g h / (h^2 + s^2 / t^2) long in the mean. Step k goes
2 / (k + 1) of it, which makes the classifier a mean over all steps in which later ones count more; s is that of a mean
over k. Where gradients differ in their noise, as when a hospital drops out, a step counts by its precision too. All of
it reads released and public numbers.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable

import torch
from scipy import optimize
from torch import Tensor, nn

from dpswd.public_client.extractor.adapter_layers import filled_linear

_POWER = 0.5  # of an axis's variance by which its values are divided, times 1/2
_FLOOR = 1e-3  # of the largest variance: an axis with less is no direction that the public source knows
_MOST_AXES = 1024  # beyond, features are scaled by their own deviations: a (d, d) matrix would have to travel
_LIKELY = 0.3  # of a weight's way, t, for features whose mean norm is 1 (docs/ml-team/labelled.md)
_SURE = 0.8  # mean probability of its decisions with which a classifier begins, on public records, at most
MOST_FEATURES = 4096
"""Whose axes are taken anew at each step: a quarter of a minute of a core for so many."""
_LONGEST = 1.5  # root mean square of a step's change of scores on public records, at most


def less_sure(classifier: nn.Linear, features: Tensor) -> nn.Linear:
    """The classifier, its scores divided until the mean probability of its decisions on public records is `_SURE`.

    A classifier is surer of the records that it was trained with than it has reason to be elsewhere, and where it is
    sure the loss has no curvature: steps by it would go too far.

    Args:
        classifier: (C, d); one that is less sure stays as it is.
        features: (m, d) of the public source.
    """
    with torch.no_grad():
        scores = classifier(features).double()

        def too_sure(factor: float) -> float:
            return float(torch.softmax(factor * scores, dim=1).amax(dim=1).mean()) - _SURE

        factor = 1.0 if too_sure(1.0) <= 0.0 else optimize.brentq(too_sure, 0.0, 1.0)
        made = copy.deepcopy(classifier)
        for parameter in made.parameters():
            parameter.mul_(factor)
    return made


def viewed(before: Iterable[nn.Module], last: nn.Linear, features: Tensor, *, power: float = _POWER) -> nn.Sequential:
    """A classifier that ends in a fixed ``view`` of features and a ``head`` to train; it computes the same scores.

    Args:
        before: its layers before the last one.
        last: (C, d).
        features: (m, d) of the public source, as the last layer takes them.
        power: of an axis's variance by which its values are divided, times 1/2; at 0 features are scaled as one.
    """
    center = features.double().mean(dim=0)
    moved = features.double() - center
    d = features.shape[1]
    if d <= _MOST_AXES:
        variances, axes = torch.linalg.eigh(moved.T @ moved / len(moved))  # (d,), (d, d)
    else:
        variances, axes = moved.square().mean(dim=0), torch.eye(d).to(moved)
    gain = variances.clamp(min=_FLOOR * float(variances.max().clamp(min=1e-12))) ** (-0.5 * power)
    forward = gain[:, None] * axes.T
    scale = float((moved @ forward.T).norm(dim=1).mean().clamp(min=1e-12))
    weight = last.weight.detach().double()
    bias = weight @ center if last.bias is None else last.bias.detach() + weight @ center
    classifier = nn.Sequential(*before)
    view = filled_linear((forward / scale).contiguous(), -(forward @ center) / scale)
    classifier.add_module("view", view.requires_grad_(False))
    classifier.add_module("head", filled_linear(weight @ (axes / gain) * scale, bias))
    return classifier


def folded(classifier: nn.Sequential) -> nn.Module:
    """A classifier that `viewed` made, with view and head as one linear layer, which stands alone if it is all."""
    *before, view, head = classifier
    assert isinstance(view, nn.Linear)
    assert isinstance(head, nn.Linear)
    with torch.no_grad():
        weight = head.weight.double()
        made = filled_linear(weight @ view.weight.double(), head.bias.double() + weight @ view.bias.double())
    return nn.Sequential(*before, made) if before else made


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
