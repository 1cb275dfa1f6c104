"""Source data and networks of the benchmark: each network is trained once and kept in a cache."""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.shifts.sources import FASHION
from dpswd.public_client.data.datasets import Labelled, load_mnist, load_usps

_SOURCE = 15_000
_CHANNELS = (16, 32, 32, 64, 64)


@dataclass(frozen=True)
class Origin:
    """A source-trained network and its data.

    Attributes:
        source: that it was trained on.
        pool: hospitals' records are made of these.
        test: accuracy is measured on these.
        extractor, classifier: trained, in evaluation mode.
    """

    source: Labelled
    pool: Labelled
    test: Labelled
    extractor: nn.Module
    classifier: nn.Module


def fashion(seed: int, cache: Path) -> Origin:
    """Fashion-MNIST: 15,000 source images, the other 45,000 as a pool, the test images."""
    whole, test = _idx("train"), _idx("t10k")
    order = torch.randperm(len(whole), generator=torch.Generator().manual_seed(0))
    source, pool = whole.part(order[:_SOURCE]), whole.part(order[_SOURCE:])
    return Origin(source, pool, test, *_trained("fashion", seed, cache, source, _convolutions, epochs=4))


def mnist_usps(seed: int, cache: Path, data_dir: Path) -> Origin:
    """MNIST's training images to USPS, stretched: accuracy is measured on the hospital's records among others."""
    source, usps = load_mnist(data_dir), load_usps(data_dir, geometry="stretched")
    source = source.part(torch.randperm(len(source), generator=torch.Generator().manual_seed(0))[:20_000])
    return Origin(source, usps, usps, *_trained("mnist", seed, cache, source, _convolutions, epochs=3))


def sequences(seed: int, cache: Path) -> Origin:
    """Made sequences of 3 channels and 20 moments in 6 classes; a GRU."""
    source, pool, test = (made_sequences(count, 10 + part) for part, count in enumerate((4000, 4000, 4000)))
    return Origin(source, pool, test, *_trained("sequences", seed, cache, source, _recurrent, epochs=12))


def made_sequences(count: int, seed: int) -> Labelled:
    """Waves (count, 20, 3) whose frequency and phase between channels tell the class."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(6, (count,), generator=generator)
    t = torch.linspace(0.0, 1.0, 20)[None, :, None]
    cycles = torch.tensor([1.0, 2.0, 3.0])[labels % 3][:, None, None]
    between = torch.tensor([0.0, 0.9])[labels // 3][:, None, None] * torch.arange(3.0)
    start = 6.28 * torch.rand(count, 1, 1, generator=generator)
    noise = 0.3 * torch.randn(count, 20, 3, generator=generator)
    return Labelled(0.5 * torch.sin(6.28 * cycles * t + start + between) + noise, labels)


class Recurrent(nn.Module):
    """The last state of a GRU over (m, t, 3)."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(3, 32, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        """(m, t, 3) to (m, 32)."""
        states, _ = self.gru(x)
        last: Tensor = states[:, -1]
        return last


def _recurrent() -> tuple[nn.Module, nn.Module]:
    return Recurrent(), nn.Linear(32, 6)


def _convolutions() -> tuple[nn.Module, nn.Module]:
    """Five layers with batch normalisation, no residuals."""
    layers: list[nn.Module] = []
    before = 1
    for number, channels in enumerate(_CHANNELS):
        layers += [nn.Conv2d(before, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels), nn.ReLU()]
        layers += [nn.MaxPool2d(2)] if number in (1, 3) else []
        before = channels
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten()), nn.Linear(before, 10)


def _trained(
    name: str, seed: int, cache: Path, source: Labelled, made: Callable[[], tuple[nn.Module, nn.Module]], *, epochs: int
) -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(seed)
    model = nn.Sequential(*made())
    file = cache / f"normalisation-{name}-{seed}.pt"
    if not file.exists():
        _train(model, source, epochs)
        cache.mkdir(parents=True, exist_ok=True)
        fresh = file.with_suffix(f".{os.getpid()}")
        torch.save(model.state_dict(), fresh)
        fresh.replace(file)
    model.load_state_dict(torch.load(file, weights_only=True))
    extractor, classifier = model.eval()
    return extractor, classifier


def _train(model: nn.Module, source: Labelled, epochs: int, batch: int = 64) -> None:
    model.to(memory_format=torch.channels_last)  # twice as fast on a processor
    steps = len(source) // batch
    optimiser = torch.optim.Adam(model.parameters(), 2e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 2e-3, total_steps=epochs * steps)
    for _ in range(epochs):
        for rows in torch.randperm(len(source))[: steps * batch].split(batch):
            optimiser.zero_grad()
            functional.cross_entropy(model(source.images[rows]), source.labels[rows]).backward()
            optimiser.step()
            schedule.step()


def _idx(part: str) -> Labelled:
    with gzip.open(FASHION / f"{part}-images-idx3-ubyte.gz") as file:
        images = np.frombuffer(file.read(), dtype=np.uint8, offset=16).reshape(-1, 1, 28, 28)
    with gzip.open(FASHION / f"{part}-labels-idx1-ubyte.gz") as file:
        labels = np.frombuffer(file.read(), dtype=np.uint8, offset=8)
    values = torch.from_numpy(images.astype(np.float32)) / 127.5 - 1.0
    return Labelled(values, torch.from_numpy(labels.astype(np.int64)))
