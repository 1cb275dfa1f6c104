"""A small convolutional network from latents to images, fitted until what it draws has the sums that were released.

The loss is the squared distance of what is drawn from what was released: of each class's mean features, the kernel's
maximum mean discrepancy, and of all records' second moments of the first of them. A batch's own means would be far
noisier than the distance that is left, so the residual is of moving means, over ever more batches as the rate falls,
and only its product with the batch's means has a gradient. While classes are as near as noise lets them be, they have
none, nor has the deformation: a closer fit would draw the noise (the discrepancy principle; Morozov 1966).

What is drawn has smooth edges from the start: the network's later layers first learn to redraw procedural images, which
are public, from codes of theirs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dpswd.public_client.data.progress import reporting
from dpswd.public_client.generation.deformation import MAX_DEFORMATION, NORMALS, deformed
from dpswd.public_client.generation.method import Fitting
from dpswd.public_client.generation.pixels import Joint
from dpswd.public_client.replay.posterior import cosine
from dpswd.shared.core.noise.clipping import RECORD_NORM

_SLOPE = 0.2
_MOMENTS = (0.9, 0.99)  # of Adam
_CODE, _UNITS = 64, 16  # what an image is decoded from; hidden units for each channel
_CODE_NOISE, _BATCH, _RATE = 0.2, 200, 3e-3  # of the pretraining
_WINDOW = 0.5  # of the moving means: what the newest batch counts at the start
_STORED_EVERY, _PREVIEWS = 100, 4


class ImageNetwork(nn.Module):
    """Dense layers to a code of one norm, and from it to half of the sides; a convolution then doubles them.

    Args:
        inputs: latent + C.
        width: channels at half of the sides; hidden units are 16 times as many.
        shape: (c, h, w) of an image.
        low: of its values.
        high: likewise.
    """

    def __init__(self, inputs: int, width: int, shape: tuple[int, int, int], *, low: float, high: float) -> None:
        super().__init__()
        self.bend = nn.Parameter(torch.tensor(0.05 / MAX_DEFORMATION).logit())  # where the fit begins
        self.inputs, self.width, self.shape = inputs, width, shape
        self.small = (-(-shape[1] // 2), -(-shape[2] // 2))
        self.middle, self.reach = 0.5 * (low + high), 0.5 * (high - low)
        self.coded = _to_code(inputs, _UNITS * width)
        self.dense = nn.Sequential(*_hidden(_CODE, _UNITS * width))
        self.grow = nn.Linear(_UNITS * width, width * math.prod(self.small), bias=False)
        self.norm = nn.BatchNorm2d(width)
        self.last = nn.Conv2d(width, 4 * shape[0], 5, padding=2)

    def forward(self, z: Tensor) -> Tensor:
        """(b, inputs) to (b, c h w) from low to high."""
        return self.decoded(self.coded(z))

    @property
    def deformation(self) -> Tensor:
        """Of what is drawn, as `deformed` takes it; learned, as augmentations are by Benton and others (2020)."""
        return MAX_DEFORMATION * self.bend.sigmoid()

    def decoded(self, code: Tensor) -> Tensor:
        """(b, 64) to (b, c h w)."""
        (channels, *sides), (height, width) = self.shape, self.small
        x = self.grow(self.dense(code)).reshape(-1, self.width, height, width)
        x = self.last(F.leaky_relu(self.norm(x), _SLOPE))
        # Four images, put between one another.
        x = x.reshape(-1, channels, 2, 2, height, width).permute(0, 1, 4, 2, 5, 3)
        x = x.reshape(-1, channels, 2 * height, 2 * width)[:, :, : sides[0], : sides[1]]
        return (torch.tanh(x) * self.reach + self.middle).reshape(-1, math.prod(self.shape))

    def pretrain(self, images: Tensor, *, updates: int, own: torch.Generator) -> None:
        """Learns to redraw public images (n, c, h, w), as the decoder of an autoencoder that is then thrown away."""
        coder = nn.Sequential(nn.Flatten(), _to_code(math.prod(self.shape), _UNITS * self.width)).to(images.device)
        parts = (coder, self.dense, self.grow, self.norm, self.last)
        optimizer = torch.optim.Adam([one for part in parts for one in part.parameters()], lr=_RATE, betas=_MOMENTS)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda t: cosine(t / updates))
        for _ in range(updates):
            rows = torch.randint(len(images), (_BATCH,), generator=own)
            code = coder(images[rows.to(images.device)])
            code = code + _CODE_NOISE * torch.randn(code.shape, generator=own).to(code)
            gap = (self.train().decoded(code) - images[rows].flatten(1)) / self.reach
            _update(optimizer, gap.square().sum(dim=1).mean())
            schedule.step()


def _hidden(inputs: int, units: int) -> list[nn.Module]:
    return [nn.Linear(inputs, units, bias=False), nn.BatchNorm1d(units), nn.LeakyReLU(_SLOPE)]


def _to_code(inputs: int, units: int) -> nn.Sequential:
    """Codes have one norm: no latent, however unusual, leaves what the later layers were fitted for."""
    code = (nn.Linear(units, _CODE, bias=False), nn.LayerNorm(_CODE, elementwise_affine=False))
    return nn.Sequential(*_hidden(inputs, units), *code)


def _update(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()


@dataclass(frozen=True, eq=False)
class Target:
    """What was released, and the moving means of what is drawn.

    Attributes:
        features: images to d features of norm 1/2; the shapes in front take most of the time.
        means: (C, d) of the classes as released.
        noise: the square that is expected between them and the records' own, over all classes.
        shares: (C,) of the classes.
        turn: (k, k) of the first k features before their second moments are taken.
        moments: (k, k) of all records, turned, as released.
        images: of each class and update.
        looked: how many of them have their shapes computed, and make the second moments.
        weight: of the second moments.
    """

    features: Joint
    means: Tensor
    noise: float
    shares: Tensor
    turn: Tensor
    moments: Tensor
    images: int
    looked: int
    weight: float

    def distance(self, moving: dict[str, Tensor]) -> float:
        """Squared, of the classes' moving means, less what the noise on the released ones adds."""
        return float((self._weights * (moving["means"] - self.means).square()).sum()) - self.noise

    @property
    def _weights(self) -> Tensor:
        return (self.shares * len(self.shares)).square()[:, None]

    def loss(self, images: Tensor, moving: dict[str, Tensor], newest: float) -> Tensor:
        """Of images (C, m, c, h, w): what is minimised; moving means go forward, `newest` is what these count."""
        some = images[:, : self.looked]
        seen = self.features.shapes(some.flatten(0, 1)).reshape(*some.shape[:2], -1) / RECORD_NORM
        pixels = self.features.pixels(images.flatten(0, 1)).reshape(*images.shape[:2], -1) / RECORD_NORM
        means = torch.cat([seen.mean(dim=1), pixels.mean(dim=1)], dim=1)
        moving["means"].lerp_(means.detach(), newest)
        apart = (self.distance(moving) > 0.0) * self._weights * (moving["means"] - self.means)
        left = len(self.turn) - seen.shape[2]
        both = (torch.cat([seen, pixels[:, : self.looked, :left]], dim=2) @ self.turn).flatten(0, 1)
        rows = (self.shares / self.looked).repeat_interleave(self.looked)[:, None]
        moments = (both * rows).T @ both
        moving["moments"].lerp_(moments.detach(), newest)
        rest = moving["moments"] - self.moments
        return 2.0 * ((apart * means).sum() + self.weight * (rest * moments).sum())


def fit_network(
    network: ImageNetwork,
    target: Target,
    *,
    updates: int,
    rate: float,
    fitting: Fitting,
    shown: Callable[[ImageNetwork], None] | None = None,
) -> None:
    """Fits the network, on the fitting's device, and leaves it for evaluation; goes on where its store left off.

    Args:
        network: from latents.
        target: what was released.
        updates: of Adam, each with images of its own seed.
        rate: at the start; it falls as a cosine.
        fitting: how.
        shown: the network, a few times.
    """
    classes, each = len(target.means), target.images
    latent = network.inputs - classes
    kinds = torch.eye(classes, device=fitting.device).repeat_interleave(each, dim=0)
    optimizer = torch.optim.Adam(network.parameters(), lr=rate, betas=_MOMENTS)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda t: cosine(t / updates))
    moving = {name: torch.zeros_like(getattr(target, name)) for name in ("means", "moments")}
    parts = {"network": network, "optimizer": optimizer, "schedule": schedule}
    begun = None if fitting.store is None else fitting.store.read("fit")
    if begun is not None:
        for name, part in parts.items():
            part.load_state_dict(begun[name])  # type: ignore[attr-defined]
        moving = {name: begun[name].to(fitting.device) for name in moving}
    done = 0 if begun is None else int(begun["updates"])
    with reporting("fitting", updates, shown=fitting.progress, done=done) as bar:
        for update in range(done, updates):
            own = torch.Generator().manual_seed((fitting.seed * 1_000_003 + update) % 2**63)
            z = torch.randn((classes * each, latent + NORMALS), generator=own).to(fitting.device)
            bend = network.deformation if target.distance(moving) > 0.0 else network.deformation.detach()
            images = network.train()(torch.cat([z[:, :latent], kinds], dim=1)).reshape(-1, *network.shape)
            images = deformed(images, z[:, latent:], bend).reshape(classes, each, *network.shape)
            newest = max(1.0 / (1 + update), _WINDOW * cosine(update / updates))
            _update(optimizer, target.loss(images, moving, newest))
            schedule.step()
            bar.advance(f"distance {target.distance(moving):.4f}")
            if fitting.store is not None and (update + 1) % _STORED_EVERY == 0:
                state = {name: part.state_dict() for name, part in parts.items()}  # type: ignore[attr-defined]
                fitting.store.write("fit", {"updates": update + 1, **state, **moving})
            if shown is not None and (update + 1) % max(1, updates // _PREVIEWS) == 0 and update + 1 < updates:
                shown(network)
    fitting.ranks.synchronise(network.eval())
