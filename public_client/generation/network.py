"""A small convolutional network from latents to images, fitted until what it draws has the sums that were released.

With t_c the noised sum of class c over its size, and m_c the mean features of what is drawn of it, the loss is the sum
over classes of |m_c|^2 - 2 m_c . t_c + |t_c|^2 - (the noise's own square), each |m_c|^2 without an image's product with
itself: an unbiased estimate of the squared distance of the laws, the kernel's maximum mean discrepancy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dpswd.public_client.data.progress import reporting
from dpswd.public_client.generation.method import Fitting
from dpswd.public_client.replay.posterior import cosine

_SLOPE = 0.2
_MOMENTS = (0.9, 0.99)  # of Adam
_STORED_EVERY, _PREVIEWS = 100, 4


class ImageNetwork(nn.Module):
    """A linear map to a quarter of the sides, and two doublings, each a convolution to four images put between another.

    Args:
        inputs: latent + C.
        width: channels are 4 and 2 times as many.
        shape: (c, h, w) of an image.
        low: of its values.
        high: likewise.
    """

    def __init__(self, inputs: int, width: int, shape: tuple[int, int, int], *, low: float, high: float) -> None:
        super().__init__()
        self.width, self.shape = width, shape
        self.small = (-(-shape[1] // 4), -(-shape[2] // 4))
        self.middle, self.reach = 0.5 * (low + high), 0.5 * (high - low)
        self.first = nn.Linear(inputs, 4 * width * math.prod(self.small), bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(width * times) for times in (4, 2))
        self.grow = nn.Conv2d(4 * width, 8 * width, 3, padding=1, bias=False)
        self.last = nn.Conv2d(2 * width, 4 * shape[0], 5, padding=2)

    def forward(self, z: Tensor) -> Tensor:
        """(b, inputs) to (b, c h w) from low to high."""
        height, width = self.small
        x = self.first(z).reshape(-1, 4 * self.width, height, width)
        x = self._doubled(self.grow(F.leaky_relu(self.norms[0](x), _SLOPE)), 2 * self.width, height, width)
        x = self._doubled(self.last(F.leaky_relu(self.norms[1](x), _SLOPE)), self.shape[0], 2 * height, 2 * width)
        made: Tensor = torch.tanh(x[:, :, : self.shape[1], : self.shape[2]]) * self.reach + self.middle
        return made.reshape(-1, math.prod(self.shape))

    @staticmethod
    def _doubled(x: Tensor, channels: int, height: int, width: int) -> Tensor:
        """(b, 4 c, h, w) to (b, c, 2 h, 2 w)."""
        apart = x.reshape(-1, channels, 2, 2, height, width).permute(0, 1, 4, 2, 5, 3)
        return apart.reshape(-1, channels, 2 * height, 2 * width)


@dataclass(frozen=True, eq=False)
class Target:
    """What a block's class means should be.

    Attributes:
        features: images to the block (n, d).
        means: (C, d) as released.
        noise: (C,) its square that is expected in each class.
        weights: (C,) of the classes.
        images: of each class and update that go through it.
    """

    features: Callable[[Tensor], Tensor]
    means: Tensor
    noise: Tensor
    weights: Tensor
    images: int

    def loss(self, images: Tensor) -> Tensor:
        """Of images (C, m, c, h, w)."""
        some = images[:, : self.images]
        seen = torch.unflatten(self.features(some.flatten(0, 1)), 0, some.shape[:2])
        count, mean = seen.shape[1], seen.mean(dim=1)
        among = (count * mean.square().sum(dim=1) - seen.square().sum(dim=2).mean(dim=1)) / (count - 1)
        apart = among - 2.0 * (mean * self.means).sum(dim=1) + self.means.square().sum(dim=1) - self.noise
        return torch.sum(self.weights * apart)


def fit_network(
    network: ImageNetwork,
    targets: Sequence[Target],
    *,
    updates: int,
    rate: float,
    fitting: Fitting,
    shown: Callable[[nn.Module], None] | None = None,
) -> None:
    """Fits the network, on the fitting's device, and leaves it for evaluation; goes on where its store left off.

    Args:
        network: from latents.
        targets: of the blocks.
        updates: of Adam, each with images of its own seed.
        rate: at the start; it falls as a cosine.
        fitting: how.
        shown: the network, a few times.
    """
    classes, most = len(targets[0].means), max(target.images for target in targets)
    latent = network.first.in_features - classes
    kinds = torch.eye(classes, device=fitting.device).repeat_interleave(most, dim=0)
    optimizer = torch.optim.Adam(network.parameters(), lr=rate, betas=_MOMENTS)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda t: cosine(t / updates))
    parts = {"network": network, "optimizer": optimizer, "schedule": schedule}
    begun = None if fitting.store is None else fitting.store.read("fit")
    if begun is not None:
        for name, part in parts.items():
            part.load_state_dict(begun[name])  # type: ignore[attr-defined]
    done = 0 if begun is None else int(begun["updates"])
    with reporting("fitting", updates, shown=fitting.progress, done=done) as bar:
        for update in range(done, updates):
            own = torch.Generator().manual_seed((fitting.seed * 1_000_003 + update) % 2**63)
            z = torch.randn((classes * most, latent), generator=own).to(fitting.device)
            images = network.train()(torch.cat([z, kinds], dim=1)).reshape(classes, most, *network.shape)
            loss: Tensor = sum((target.loss(images) for target in targets), start=torch.zeros((), device=z.device))
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()
            bar.advance(f"distance {float(loss.detach()):.4f}")
            if fitting.store is not None and (update + 1) % _STORED_EVERY == 0:
                state = {name: part.state_dict() for name, part in parts.items()}  # type: ignore[attr-defined]
                fitting.store.write("fit", {"updates": update + 1, **state})
            if shown is not None and (update + 1) % max(1, updates // _PREVIEWS) == 0 and update + 1 < updates:
                shown(network)
    fitting.ranks.synchronise(network.eval())
