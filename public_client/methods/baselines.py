"""Local baselines that see the target: what the private figures are compared with. Never private; rehearsals only.

All three train extractor and classifier on the source's classes and add a penalty on the distance between source and
target features; they differ in the penalty alone:

- `Swd`: the sliced Wasserstein distance, as in the DP-SWD paper without its privacy (Rakotomamonjy and Ralaivola 2021).
- `Dann`: a domain critic behind a gradient reversal (Ganin et al. 2016, "Domain-adversarial training of neural
  networks", equations 9 to 15, with the paper's schedule of the weight).
- `Coral`: the distance of the two covariances (Sun and Saenko 2016, "Deep CORAL", equation 1).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from public_client.data.progress import Reporter
from public_client.data.source import Batches
from shared.errors import InvalidValue
from shared.kernels.feature_map import FeatureMap
from shared.optimal_transport.sliced import sliced_wasserstein


class Penalty(Protocol):
    """What a local baseline adds to the class loss."""

    def __call__(self, source: Tensor, target: Tensor, progress: float) -> Tensor:
        """The weighted penalty on source (m, d) and target features (b, d); progress runs from 0 to 1."""
        ...

    def parameters(self) -> Iterable[nn.Parameter]:
        """What the penalty trains of its own."""
        ...


class Swd:
    """F of `losses`, without noise and on unclipped features: d/2 times the squared sliced W2 distance.

    Args:
        generator: of the directions, fresh at each step.
        directions: k.
        weight: of the distance.
        target_norm: of the public map.
    """

    def __init__(
        self, generator: torch.Generator, *, directions: int = 200, weight: float = 10.0, target_norm: float = 0.25
    ) -> None:
        self._generator = generator
        self._directions = directions
        self._weight = weight
        self._target_norm = target_norm

    def __call__(self, source: Tensor, target: Tensor, progress: float) -> Tensor:  # noqa: ARG002 - see Penalty
        """The weighted distance."""
        feature_map = FeatureMap.from_source(source.detach(), target_norm=self._target_norm)
        dimension = source.shape[1]
        U = torch.randn(dimension, self._directions, generator=self._generator).to(source)
        U = U / U.norm(dim=0)  # (d, k)
        distance = sliced_wasserstein(feature_map.apply(source), feature_map.apply(target), U)
        return self._weight * 0.5 * dimension * distance

    def parameters(self) -> Iterable[nn.Parameter]:
        """None: the distance is a formula."""
        return ()


class Coral:
    """The squared Frobenius distance of the covariances over 4 d^2.

    Args:
        weight: of the distance.
    """

    def __init__(self, *, weight: float = 10.0) -> None:
        self._weight = weight

    def __call__(self, source: Tensor, target: Tensor, progress: float) -> Tensor:  # noqa: ARG002 - see Penalty
        """The weighted distance."""
        gap = torch.cov(source.T) - torch.cov(target.T)  # (d, d)
        # The features' own scale is divided out, so that the weight means the same for every extractor.
        scale = source.detach().var(dim=0).mean().clamp(min=1e-12)
        return self._weight * (gap / scale).square().sum() / (4 * source.shape[1])

    def parameters(self) -> Iterable[nn.Parameter]:
        """None: the distance is a formula."""
        return ()


class _Reversal(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: float) -> Tensor:
        ctx.weight = weight
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return -ctx.weight * gradients[0], None


class Dann:
    """A domain critic's cross-entropy behind a gradient reversal: the critic learns, the extractor unlearns.

    Args:
        critic: features (b, d) to one score each.
        weight: of the reversed gradient at the end; it grows as 2 / (1 + exp(-10 p)) - 1.
    """

    def __init__(self, critic: nn.Module, *, weight: float = 1.0) -> None:
        self._critic = critic
        self._weight = weight

    @classmethod
    def for_features(cls, dimension: int, *, hidden: int = 100, weight: float = 1.0) -> Dann:
        """With the usual critic: two hidden layers on d features."""
        layers = (nn.Linear(dimension, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 1))
        return cls(nn.Sequential(*layers), weight=weight)

    def __call__(self, source: Tensor, target: Tensor, progress: float) -> Tensor:
        """The critic's loss; its gradient reaches the extractor reversed."""
        weight = self._weight * (2.0 / (1.0 + math.exp(-10.0 * progress)) - 1.0)
        self._critic.to(source.device)
        features: Tensor = _Reversal.apply(torch.cat((source, target)), weight)  # type: ignore[no-untyped-call]
        logits = self._critic(features).squeeze(1)
        # Each domain counts half, whatever the sizes of the two batches.
        return 0.5 * (
            functional.softplus(logits[: len(source)]).mean() + functional.softplus(-logits[len(source) :]).mean()
        )

    def parameters(self) -> Iterable[nn.Parameter]:
        """The critic's."""
        return self._critic.parameters()


def train_local(
    extractor: nn.Module,
    classifier: nn.Module,
    source: Batches,
    target: Tensor,
    penalty: Penalty,
    *,
    steps: int,
    generator: torch.Generator,
    batch_size: int = 128,
    learning_rate: float = 1e-3,
    device: torch.device | None = None,
    bar: Reporter | None = None,
) -> None:
    """Trains all weights on class loss plus penalty, both branches, in place.

    Args:
        extractor: source-trained; serves both sides.
        classifier: source-trained.
        source: labelled batches.
        target: (n, ...) records of the target; their labels are not looked at.
        penalty: on the features of both sides.
        steps: updates.
        generator: of the target's batches.
        batch_size: target records a step.
        learning_rate: at the start; cosine to 0.
        device: where the modules are.
        bar: told of each step.

    Raises:
        InvalidValue: the target is empty.
    """
    if not len(target):
        raise InvalidValue("a local baseline needs records of the target; there are none")
    parameters = [*extractor.parameters(), *classifier.parameters(), *penalty.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=learning_rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    endless = itertools.chain.from_iterable(itertools.repeat(source))
    for step, (images, labels) in enumerate(itertools.islice(endless, steps)):
        features = extractor(images.to(device))  # (m, d)
        chosen = torch.randint(len(target), (batch_size,), generator=generator)
        seen = extractor(target[chosen].to(device))  # (b, d)
        distance = penalty(features, seen, step / steps)
        loss = functional.cross_entropy(classifier(features), labels.to(device)) + distance
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
        schedule.step()
        if bar is not None:
            bar.advance(f"penalty {float(distance.detach()):.4f}")
    extractor.eval()
    classifier.eval()


def non_private_swd(
    extractor: nn.Module,
    classifier: nn.Module,
    source: Batches,
    target: Tensor,
    *,
    steps: int,
    batch_size: int = 128,
    directions: int = 200,
    weight: float = 10.0,
    target_norm: float = 0.25,
    learning_rate: float = 1e-3,
    seed: int = 0,
    device: torch.device | None = None,
    bar: Reporter | None = None,
) -> None:
    """The paper's non-private SWD: `train_local` with `Swd`; the arguments are theirs."""
    generator = torch.Generator().manual_seed(seed)
    penalty = Swd(generator, directions=directions, weight=weight, target_norm=target_norm)
    train_local(
        extractor, classifier, source, target, penalty,
        steps=steps, generator=generator, batch_size=batch_size, learning_rate=learning_rate, device=device, bar=bar,
    )  # fmt: skip


PENALTIES: Mapping[str, Callable[[int, torch.Generator], Penalty]] = {
    "swd": lambda _, generator: Swd(generator),
    "dann": lambda dimension, _: Dann.for_features(dimension),
    "coral": lambda _, __: Coral(),
}
"""Penalties by the name of their method, from d and a generator."""
