"""A linear classifier in the public source's own axes: what is learned from noised gradients is the same in any units.

DP-SGD's noise is alike in all directions, so a direction in which features hardly vary costs as much as one in which
they vary most. The features' principal axes are public; each is divided by a power of its deviation, and all together
are brought to norm 1 in the mean. The classifier that is kept afterwards is linear in the raw features again.
"""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import Tensor, nn

_FLOOR = 1e-3
"""Of the largest variance: an axis with less is no direction that the public source knows."""
_MOST_AXES = 1024  # beyond, features are scaled by their own deviations: a (d, d) matrix would have to travel


def viewed_head(classifier: nn.Linear, features: Tensor, *, power: float) -> nn.Sequential:
    """The classifier as a fixed ``view`` of features and a ``head`` to train; it computes the same scores.

    Args:
        classifier: (C, d).
        features: (m, d) of the public source.
        power: of an axis's variance by which its values are divided, times 1/2; at 0 features are scaled as one.
    """
    center = features.double().mean(dim=0)
    moved = features.double() - center
    d = features.shape[1]
    if d <= _MOST_AXES:
        variances, axes = torch.linalg.eigh(moved.T @ moved / len(moved))  # (d,), (d, d)
    else:
        variances, axes = moved.square().mean(dim=0), torch.ones(())
    gain = variances.clamp(min=_FLOOR * float(variances.max().clamp(min=1e-12))) ** (-0.5 * power)
    if d <= _MOST_AXES:
        forward, back = gain[:, None] * axes.T, axes / gain
    else:
        forward, back = torch.diag(gain), torch.diag(1.0 / gain)
    scale = float((moved @ forward.T).norm(dim=1).mean().clamp(min=1e-12))
    weight = classifier.weight.detach().double()
    view, head = nn.Linear(d, d), nn.Linear(d, len(weight))
    with torch.no_grad():
        view.weight.copy_(forward / scale)
        view.bias.copy_(-(forward @ center) / scale)
        head.weight.copy_(weight @ back * scale)
        head.bias.copy_(classifier.bias.detach() + weight @ center if classifier.bias is not None else weight @ center)
    return nn.Sequential(OrderedDict(view=view.requires_grad_(False), head=head))


def parted(classifier: nn.Module) -> tuple[nn.Module, nn.Linear]:
    """A viewed head, also at the end of other layers: what comes before its last layer, and that layer."""
    assert isinstance(classifier, nn.Sequential), "made by viewed_head"
    *before, last = classifier
    if isinstance(last, nn.Linear):
        return nn.Sequential(*before), last
    inside, head = parted(last)
    return nn.Sequential(*before, inside), head


def folded(classifier: nn.Module) -> nn.Module:
    """A viewed head, also at the end of other layers, as one linear layer; anything else as it is."""
    if isinstance(classifier, nn.Sequential) and len(classifier) and isinstance(classifier[-1], nn.Sequential):
        return nn.Sequential(*list(classifier)[:-1], folded(classifier[-1]))
    view, head = (dict(classifier.named_children()).get(name) for name in ("view", "head"))
    if not (isinstance(view, nn.Linear) and isinstance(head, nn.Linear)):
        return classifier
    made = nn.Linear(view.in_features, head.out_features)
    weight = head.weight.detach().double()
    with torch.no_grad():
        made.weight.copy_(weight @ view.weight.double())
        made.bias.copy_(head.bias.double() + weight @ view.bias.double())
    return made.to(view.weight.device)
