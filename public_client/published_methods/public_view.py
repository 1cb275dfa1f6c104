"""A linear classifier in the public source's own axes: what is learned from noised gradients is the same in any units.

DP-SGD's noise is alike in all directions, so a direction in which features hardly vary costs as much as one in which
they vary most. The features' principal axes are public; each is divided by a power of its deviation, and all together
are brought to norm 1 in the mean. The classifier that is kept afterwards is linear in the raw features again.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

_POWER = 0.5
"""Of an axis's variance by which its values are divided, times 1/2."""
_FLOOR = 1e-3
"""Of the largest variance: an axis with less is no direction that the public source knows."""
_MOST_AXES = 1024  # beyond, features are scaled by their own deviations: a (d, d) matrix would have to travel


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
    view, head = nn.Linear(d, d), nn.Linear(d, len(weight))
    with torch.no_grad():
        view.weight.copy_(forward / scale)
        view.bias.copy_(-(forward @ center) / scale)
        head.weight.copy_(weight @ (axes / gain) * scale)
        head.bias.copy_(weight @ center if last.bias is None else last.bias + weight @ center)
    classifier = nn.Sequential(*before)
    classifier.add_module("view", view.requires_grad_(False))
    classifier.add_module("head", head)
    return classifier


def folded(classifier: nn.Sequential) -> nn.Module:
    """A classifier that `viewed` made, with view and head as one linear layer, which stands alone if it is all."""
    *before, view, head = classifier
    assert isinstance(view, nn.Linear)
    assert isinstance(head, nn.Linear)
    made = nn.Linear(view.in_features, head.out_features)
    weight = head.weight.detach().double()
    with torch.no_grad():
        made.weight.copy_(weight @ view.weight.double())
        made.bias.copy_(head.bias.double() + weight @ view.bias.double())
    made = made.to(view.weight.device)
    return nn.Sequential(*before, made) if before else made
