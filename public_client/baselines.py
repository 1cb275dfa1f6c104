"""Local baselines that see the target: what the private figures are compared with. Never private; rehearsals only."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn
from torch.nn import functional

from public_client.progress import Reporter
from public_client.source import Batches
from shared.mechanisms.feature_map import FeatureMap
from shared.transport.sliced import sliced_wasserstein


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
    """The paper's non-private SWD: all weights, both branches, class loss plus weighted distance, in place.

    The distance is F of `losses`, without noise and on unclipped features: d/2 times the squared sliced W2 distance
    between feature batches under the public map.

    Args:
        extractor: source-trained; serves both sides.
        classifier: source-trained.
        source: labelled batches.
        target: (n, ...) records of the target.
        steps: updates.
        batch_size: target records a step.
        directions: k, fresh at each step.
        weight: of the distance.
        target_norm: of the public map.
        learning_rate: at the start; cosine to 0.
        seed: of target batches and directions.
        device: where the modules are.
        bar: told of each step.
    """
    generator = torch.Generator().manual_seed(seed)
    parameters = [*extractor.parameters(), *classifier.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=learning_rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    endless = itertools.chain.from_iterable(itertools.repeat(source))
    for images, labels in itertools.islice(endless, steps):
        features = extractor(images.to(device))  # (m, d)
        chosen = torch.randint(len(target), (batch_size,), generator=generator)
        seen = extractor(target[chosen].to(device))  # (b, d)
        feature_map = FeatureMap.from_source(features.detach(), target_norm=target_norm)
        dimension = features.shape[1]
        U = torch.randn(dimension, directions, generator=generator).to(features)
        U = U / U.norm(dim=0)  # (d, k)
        distance = 0.5 * dimension * sliced_wasserstein(feature_map.apply(features), feature_map.apply(seen), U)
        loss = functional.cross_entropy(classifier(features), labels.to(device)) + weight * distance
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
        schedule.step()
        if bar is not None:
            bar.advance(f"distance {float(distance.detach()):.4f}")
