"""Networks that learn from one charged step at a time, and go on where they stopped: what such methods share."""

from __future__ import annotations

import abc
import copy
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from dpswd.public_client.data.progress import reporting
from dpswd.public_client.generation.generator import Generator, traced
from dpswd.public_client.generation.method import Fitting, GenerationMethod
from dpswd.public_client.plans.recipe import not_counts, not_positive
from dpswd.public_client.published_methods.descent import Descent
from dpswd.public_client.training.run import DrawnStep, Release

_PREVIEWS = 4
_SLOPE = 0.2
_GROWTH = 4  # an image's side grows from a quarter, by two doublings; a dense layer's units are so many widths


@dataclass(frozen=True, kw_only=True)
class Network(GenerationMethod, abc.ABC):
    """A method that trains a network of its own on records' values.

    Attributes:
        low: least value of a record, public.
        high: largest; what is drawn stays between them.
        latent: dimension of what records are drawn from.
        width: channels before the last layer, of images; of other records, a quarter of a dense layer's units.
        learning_rate: of Adam at the start; it falls as a cosine.
    """

    low: float = -1.0
    high: float = 1.0
    latent: int = 16
    width: int = 16
    learning_rate: float = 1e-3

    def problems(self) -> list[str]:
        return [
            *super().problems(),
            *not_counts(self, "latent", "width"),
            *not_positive(self, "learning_rate"),
        ]

    @abc.abstractmethod
    def step(
        self, run: Release[Any], features: nn.Module, fitting: Fitting, trained: nn.Module, own: torch.Generator
    ) -> DrawnStep[Any]:
        """Draws one step, and leaves the loss's gradient in the network's parameters.

        Args:
            run: open.
            features: what private records go through, on the fitting's device.
            fitting: how.
            trained: the network.
            own: of all that is drawn here.
        """

    def fit(self, run: Release[Any], features: nn.Module, fitting: Fitting) -> Generator:
        """See `GenerationMethod`: one descent a step, under a rate that falls as a cosine."""
        torch.manual_seed(fitting.seed)
        layers = network(self.latent + run.plan.classes, self.width, run.plan.record_shape)
        trained = Ranged(layers, self.low, self.high).to(fitting.device)
        features, steps, own = features.to(fitting.device), run.plan.steps, torch.Generator().manual_seed(fitting.seed)
        optimizer = torch.optim.Adam(trained.parameters(), lr=self.learning_rate)
        descent = Descent(optimizer, steps=steps, averaging=0.0)
        state = None if fitting.store is None else fitting.store.read("state")
        if state is not None:
            trained.load_state_dict(state["network"])
            own.set_state(state["random"])
            descent.restore(state)
        done = 0 if state is None else int(state["step"])
        with reporting(f"{self.name}: training", steps, shown=fitting.progress, done=done) as bar:
            while done < steps:
                trained.train()
                optimizer.zero_grad()
                drawn = self.step(run, features, fitting, trained, own)
                done = drawn.number
                descent.step(fitting.ranks)
                if fitting.store is not None:
                    parts = {"network": trained.state_dict(), "random": own.get_state(), **descent.stored()}
                    fitting.store.write("state", {"step": done, "request_ids": [drawn.request_id], **parts})
                bar.advance(run.plan.charged)
                if fitting.preview is not None and done % max(1, steps // _PREVIEWS) == 0 and done < steps:
                    fitting.preview(self._finished(copy.deepcopy(trained).eval(), run))
        fitting.ranks.synchronise(trained)  # each has computed all of it, but for rounding
        return self._finished(trained.eval(), run)

    def _finished(self, trained: nn.Module, run: Release[Any]) -> Generator:
        """The generator of a trained network; classes are as frequent as each other."""
        classes = run.plan.classes
        decoder = traced(trained, self.latent + classes)
        return Generator(decoder, run.plan.record_shape, (1.0 / classes,) * classes, low=self.low, high=self.high)

    def drawn(self, run: Release[Any], trained: nn.Module, labels: Tensor, own: torch.Generator) -> Tensor:
        """Generated records of these labels (m, ...), with their gradient: of normal latents beside one-hot classes."""
        z = torch.randn((len(labels), self.latent), generator=own).to(labels.device)  # drawn on the CPU: any device's
        kinds = nn.functional.one_hot(labels, run.plan.classes).float()
        values: Tensor = trained(torch.cat([z, kinds], dim=1))
        return values.reshape(-1, *run.plan.record_shape)


class Ranged(nn.Module):
    """Layers from (b, inputs) to (b, values), whose outputs are brought between low and high."""

    def __init__(self, layers: nn.Module, low: float, high: float) -> None:
        super().__init__()
        self.layers, self.middle, self.reach = layers, 0.5 * (low + high), 0.5 * (high - low)

    def forward(self, z: Tensor) -> Tensor:
        """See the class."""
        return torch.tanh(self.layers(z)) * self.reach + self.middle


class Doubled(nn.Module):
    """A convolution to four images, put between one another: transposed ones are among these (Shi and others 2016)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.four = nn.Conv2d(channels, 2 * channels, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """(b, channels, h, w) to (b, channels / 2, 2 h, 2 w)."""
        _, channels, height, width = x.shape
        x = self.four(x).reshape(-1, channels // 2, 2, 2, height, width).permute(0, 1, 4, 2, 5, 3)
        return x.reshape(-1, channels // 2, 2 * height, 2 * width)


def network(inputs: int, width: int, record_shape: tuple[int, ...]) -> nn.Sequential:
    """A new network from (b, inputs) to (b, values): DP-Sinkhorn's for images with sides that 4 divides, or dense."""
    if len(record_shape) not in (2, 3) or any(side % _GROWTH for side in record_shape[-2:]):
        hidden = _GROWTH * width
        dense = (nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU())
        return nn.Sequential(*dense, nn.Linear(hidden, math.prod(record_shape)))
    small = (_GROWTH * width, *(side // _GROWTH for side in record_shape[-2:]))
    layers: list[nn.Module] = [nn.Linear(inputs, math.prod(small), bias=False), nn.Unflatten(1, small)]
    for channels in (_GROWTH * width, 2 * width):
        layers += [nn.BatchNorm2d(channels), nn.LeakyReLU(_SLOPE), Doubled(channels)]
    last = nn.Conv2d(width, math.prod(record_shape[:-2]), 3, padding=1)
    return nn.Sequential(*layers, nn.BatchNorm2d(width), nn.LeakyReLU(_SLOPE), last, nn.Flatten())
