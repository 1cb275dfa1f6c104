"""Local baselines that see the target: what the private figures are compared with. Never private; rehearsals only.

All three train extractor and classifier on the source's classes and add a penalty on the distance between source and
target features; they differ in the penalty alone:

- `Swd`: the sliced Wasserstein distance, as in the DP-SWD paper without its privacy (Rakotomamonjy and Ralaivola 2021).
- `Dann`: a domain critic behind a gradient reversal (Ganin et al. 2016, "Domain-adversarial training of neural
  networks", equations 9 to 15, with the paper's schedule of the weight).
- `Coral`: the distance of the two covariances (Sun and Saenko 2016, "Deep CORAL", equation 1).
"""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from dpswd.public_client.data.datasets import Batches
from dpswd.public_client.data.feature_maps import map_from_source
from dpswd.public_client.published_methods.losses import wasserstein_1d
from dpswd.public_client.training.sites import Model
from dpswd.shared.devices import resolve_device

_SWD_WEIGHT, _CORAL_WEIGHT = 10.0, 10.0  # of the distance beside the class loss
_DIRECTIONS, _TARGET_NORM = 200, 0.25  # k, and of the public map
_CRITIC_UNITS = 100  # in each of two hidden layers
_BATCH, _RATE = 128, 1e-3  # target records a step; learning rate at the start


def sliced_wasserstein(x: Tensor, y: Tensor, U: Tensor, *, p: float = 2.0) -> Tensor:
    """SW_p^p along given directions, without noise (Rabin et al. 2011; Bonneel et al. 2015).

    Args:
        x: (n, d).
        y: (m, d), m may differ from n.
        U: (d, k) unit columns.
        p: exponent of the cost, at least 1.

    Returns:
        Scalar, the p-th power of the distance; differentiable in x and y.

    Raises:
        InvalidValue: the shapes or p are outside what is allowed.
    """
    return wasserstein_1d(x @ U, y @ U, p=p).mean()


class Swd(nn.Module):
    """F of `losses`, without noise and on unclipped features: d/2 times the squared sliced W2 distance.

    Args:
        generator: of the directions, fresh at each step.
    """

    def __init__(self, generator: torch.Generator) -> None:
        super().__init__()
        self._generator = generator

    def forward(self, source: Tensor, target: Tensor, progress: float) -> Tensor:  # noqa: ARG002 - see `PENALTIES`
        """The weighted distance."""
        feature_map = map_from_source(source.detach(), target_norm=_TARGET_NORM)
        dimension = source.shape[1]
        U = torch.randn(dimension, _DIRECTIONS, generator=self._generator).to(source)
        U = U / U.norm(dim=0)  # (d, k)
        distance = sliced_wasserstein(feature_map.apply(source), feature_map.apply(target), U)
        return _SWD_WEIGHT * 0.5 * dimension * distance


class Coral(nn.Module):
    """The squared Frobenius distance of the covariances over 4 d^2."""

    def forward(self, source: Tensor, target: Tensor, progress: float) -> Tensor:  # noqa: ARG002 - see `PENALTIES`
        """The weighted distance."""
        gap = torch.cov(source.T) - torch.cov(target.T)  # (d, d)
        # The features' own scale is divided out, so that the weight means the same for every extractor.
        scale = source.detach().var(dim=0).mean().clamp(min=1e-12)
        return _CORAL_WEIGHT * (gap / scale).square().sum() / (4 * source.shape[1])


class _Reversal(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: float) -> Tensor:
        ctx.weight = weight
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return -ctx.weight * gradients[0], None


class Dann(nn.Module):
    """A domain critic's cross-entropy behind a gradient reversal: the critic learns, the extractor unlearns.

    The reversed gradient's weight grows as 2 / (1 + exp(-10 p)) - 1 with the progress p.

    Args:
        dimension: d of the features that the critic sees.
    """

    def __init__(self, dimension: int) -> None:
        super().__init__()
        first, second = nn.Linear(dimension, _CRITIC_UNITS), nn.Linear(_CRITIC_UNITS, _CRITIC_UNITS)
        self.critic = nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), nn.Linear(_CRITIC_UNITS, 1))

    def forward(self, source: Tensor, target: Tensor, progress: float) -> Tensor:
        """The critic's loss; its gradient reaches the extractor reversed."""
        weight = 2.0 / (1.0 + math.exp(-10.0 * progress)) - 1.0
        self.critic.to(source.device)
        features: Tensor = _Reversal.apply(torch.cat((source, target)), weight)  # type: ignore[no-untyped-call]
        logits = self.critic(features).squeeze(1)
        # Each domain counts half, whatever the sizes of the two batches.
        return 0.5 * (
            functional.softplus(logits[: len(source)]).mean() + functional.softplus(-logits[len(source) :]).mean()
        )


def trained_locally(
    name: str, model: Model, source: Batches, target: Tensor, *, steps: int, seed: int, device: str = "auto"
) -> Model:
    """A copy of a model, all of whose weights were trained on class loss plus penalty, both branches.

    Args:
        name: one of `PENALTIES`.
        model: source-trained; it stays as it is.
        source: labelled batches.
        target: (n, ...) records of the target; their labels are not looked at.
        steps: updates; the learning rate falls to 0 by a cosine.
        seed: of a critic's first weights, of directions and of the target's batches.
        device: "auto", "cpu" or "cuda".
    """
    place = resolve_device(device)
    extractor, classifier = (copy.deepcopy(module).to(place) for module in (model.extractor, model.classifier))
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        dimension = extractor(next(iter(source))[0].to(place)).shape[1]
    penalty = PENALTIES[name](dimension, generator).to(place)
    parameters = [*extractor.parameters(), *classifier.parameters(), *penalty.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=_RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    endless = itertools.chain.from_iterable(itertools.repeat(source))
    for step, (images, labels) in enumerate(itertools.islice(endless, steps)):
        features = extractor(images.to(place))  # (m, d)
        chosen = torch.randint(len(target), (_BATCH,), generator=generator)
        seen = extractor(target[chosen].to(place))  # (b, d)
        distance = penalty(features, seen, step / steps)
        loss = functional.cross_entropy(classifier(features), labels.to(place)) + distance
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
        schedule.step()
    return Model(extractor.eval(), classifier.eval())


PENALTIES: Mapping[str, Callable[[int, torch.Generator], nn.Module]] = {
    "swd": lambda _, generator: Swd(generator),
    "dann": lambda dimension, _: Dann(dimension),
    "coral": lambda _, __: Coral(),
}
"""Penalties by the name of their method, from d and a generator.

Each is a module from source features (m, d), target features (b, d) and the progress, 0 to 1, to the weighted penalty.
"""
