"""How another site may see the source's records: small differentiable models with a prior, fitted to its releases.

A view maps public source records to features that look like the target's. `ImageView` changes the images before
the extractor; `FeatureView` changes the features after it, for records that are vectors or sequences. Every parameter
has a Gaussian prior around the identity, of a width that says what is usual between two devices. `penalty` is minus
its logarithm, so that a fit that adds it to minus the logarithm of the releases' likelihood finds the posterior's mode:
where the releases say little (few records, much noise) the view stays near the identity, and the accuracy with it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from dpswd.public_client.extractor.adapter_layers import AffineWarp2d, ChannelAffine
from dpswd.public_client.replay.augmentation import Drawn, Variation, Warps, draw_variation
from dpswd.shared.core.errors import InvalidValue

Ends = tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]

SEARCH = Warps(turn=0.5, scale=0.35, aspect=0.2, shear=0.2, shift=0.12)
"""Where the fit of an image view may begin."""
VARIATION = Variation(
    warps=Warps(turn=0.12, scale=0.1, aspect=0.05, shear=0.1, shift=0.06), elastic=0.1, stroke=0.3, gamma=0.3
)
"""Of each image while the classes are learned again (docs/studies.md)."""

# Widths of the priors: standard deviations around the identity.
_WARP, _STROKE, _GAMMA, _BLUR, _GAIN, _BIAS = 0.3, 0.5, 0.5, 0.5, 0.3, 0.3
_MIX = 0.3  # of a channel's share in another
_MOST_MIXED = 4  # channels; of more, shares in each other are too many for a release
_FEATURE_GAIN, _FEATURE_BIAS = 0.3, 0.5  # of the logarithm; in deviations of the feature
_INVERTED = math.log(100.0)  # nats: one device in a hundred shows black as white
_NOISE = 0.3  # of the deviation of noise on each pixel
CLASS_WIDTH = 0.5
"""Of the prior on the logarithm of a class's frequency at the target over the source's."""
_LEAST, _LEAST_TURN = 0.1, 4.0  # of a change that is put into words; of a turn, degrees
_UNIFORM_BORDER = 0.5  # a source has a background if this share of its border pixels are one value


class View(nn.Module):
    """Source records as another site would see them.

    Attributes:
        tunes_extractor: whether the extractor may be trained on what is seen; not where the view is one of its
            features.
        keeps_scores: whether the classifier learns the scores that it gave to unchanged records, not labels: then
            tuning changes nothing but what the view asks for.
        sure: standard errors by which tuning on it must be expected to gain, or it is not used.
        few_parameters: whether it can say so little that its evidence may decide what is too weak to be seen.
    """

    tunes_extractor = True
    keeps_scores = False
    sure = 2.0
    few_parameters = False

    @property
    def draws_noise(self) -> bool:
        """Whether what is seen of records depends on how many there are, by noise that is drawn for all of them."""
        return False

    def forward(self, extractor: nn.Module, records: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Features (m, d) of records (m, ...); varied a little at random if a generator is given."""
        raise NotImplementedError

    def penalty(self) -> Tensor:
        """Minus the logarithm of the prior, up to a constant; 0 at the identity."""
        raise NotImplementedError

    def candidates(self, count: int, generator: torch.Generator) -> list[View]:
        """Other places where a fit may begin; none where one start is enough."""
        return []

    def words(self) -> str:
        """What it does to the source's records, for people: "turned by 20 degrees, paler"."""
        return "seen through another device"

    def check(self, records: Tensor, features: Tensor) -> None:
        """Told of source records (m, ...) and their features (m, d) before a release is paid for.

        Raises:
            InvalidValue: this view cannot see such records.
        """


class ImageView(View):
    """An affine resampling, sharpness, stroke thickness, gamma, gain and bias of images, and a mixture of colours.

    Args:
        channels: c.
        background: what lies outside the image, on the records' scale; None repeats its border.
        variation: of each image while the classes are learned again.
        low: darkest value, one for all channels or (c,).
        high: brightest value.

    Attributes:
        warp: where it looks.
        blur: tanh of it mixes in a 3 x 3 mean; negative sharpens.
        stroke: tanh of it mixes in a 3 x 3 maximum (thicker strokes) or minimum (thinner).
        gamma: logarithm of the exponent on brightness in [0, 1].
        affine: gain and bias of each channel.
        mix: (c, c), what each channel takes of the others, beside its own gain; None for one channel or many.
        noise: deviation of noise on each pixel; its sign has no meaning.
        sign: 1, or -1 where black is seen as white.
    """

    few_parameters = True
    sign: Tensor
    centre: Tensor
    reach: Tensor

    def __init__(
        self,
        channels: int,
        background: float | None = None,
        variation: Variation = VARIATION,
        *,
        low: float | Tensor = -1.0,
        high: float | Tensor = 1.0,
    ) -> None:
        super().__init__()
        ends = (torch.as_tensor(end, dtype=torch.float32).expand(channels) for end in (low, high))
        darkest, brightest = (end.reshape(channels, 1, 1) for end in ends)
        self.register_buffer("centre", (brightest + darkest) / 2)
        self.register_buffer("reach", (brightest - darkest) / 2)
        self._own_scale = bool((self.centre != 0.0).any() or (self.reach != 1.0).any())
        self.register_buffer("sign", torch.ones(()))
        self.noise = nn.Parameter(torch.zeros(()))
        self.variation = variation
        self.warp = AffineWarp2d()
        self.blur = nn.Parameter(torch.zeros(()))
        self.stroke = nn.Parameter(torch.zeros(()))
        self.gamma = nn.Parameter(torch.zeros(()))
        self.affine = ChannelAffine(channels)
        mixed = 1 < channels <= _MOST_MIXED
        self.mix = nn.Parameter(torch.zeros(channels, channels)) if mixed else None
        self._background = background

    def forward(self, extractor: nn.Module, records: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Features (m, d) of images (m, c, h, w)."""
        drawn = None if generator is None else draw_variation(self.variation, records, generator)
        seen = self.see((records - self.centre) / self.reach if self._own_scale else records, drawn)
        if self.draws_noise:
            source = generator or torch.Generator().manual_seed(0)
            grain = self.noise * torch.randn(seen.shape, generator=source).to(seen)
            seen = seen + (seen + grain).clamp(-1.0, 1.0) - seen.clamp(-1.0, 1.0)  # a device's values end somewhere
        if self._own_scale:
            seen = seen * self.reach + self.centre
        features: Tensor = extractor(seen)
        return features

    @property
    def draws_noise(self) -> bool:
        return float(self.noise.detach()) != 0.0

    def see(self, x: Tensor, drawn: Drawn | None = None) -> Tensor:
        """(b, c, h, w) in [-1, 1] to the same; the identity at first."""
        x = self._resample(x, drawn)
        x = x + torch.tanh(self.blur) * (functional.avg_pool2d(_padded(x), 3, 1) - x)
        x = self._stroked(x, torch.tanh(self.stroke if drawn is None else self.stroke + drawn.stroke))
        bright = ((x + 1) / 2).clamp(1e-3, 1.0)  # the lower end keeps the power's derivative finite
        gamma = self.gamma if drawn is None else self.gamma + drawn.gamma
        bright = self.sign * (bright.pow(torch.exp(gamma)) * 2 - 1)
        seen: Tensor = self.affine(bright)
        if self.mix is not None:
            seen = seen + torch.einsum("oc,bchw->bohw", self.mix - torch.diag(torch.diagonal(self.mix)), bright)
        return seen

    def penalty(self) -> Tensor:
        warp, affine = self.warp, self.affine
        identity = torch.eye(2, 3, device=warp.theta.device)
        total = ((warp.theta - identity) / _WARP).square().sum()
        widths = ((self.blur, _BLUR), (self.stroke, _STROKE), (self.gamma, _GAMMA), (self.noise, _NOISE))
        for parameter, width in widths:
            total = total + (parameter / width).square()
        total = total + ((affine.gain - 1) / _GAIN).square().sum() + (affine.bias / _BIAS).square().sum()
        if self.mix is not None:
            total = total + (self.mix / _MIX).square().sum()
        return 0.5 * total + _INVERTED * (self.sign < 0)

    def check(self, records: Tensor, features: Tensor) -> None:
        if records.dim() != 4 or records.shape[1] != self.affine.channels:
            raise InvalidValue(
                f"the view is of images with {self.affine.channels} channels, records have shape "
                f"{tuple(records.shape[1:])}; allowed: ({self.affine.channels}, h, w)"
            )

    def words(self) -> str:
        """See `View.words`: what moves an image by more than its prior calls usual within one device."""
        (a, b, right), (c, d, down) = self.warp.theta.detach().cpu().tolist()
        size, turn = math.sqrt(abs(a * d - b * c)), math.degrees(math.atan2(c - b, a + d))
        gain, bias = float(self.affine.gain.detach().mean()), float(self.affine.bias.detach().mean())
        shear = math.hypot(a - d, b + c) / (2.0 * size)  # of what is left of the warp without turn and size
        moved = math.hypot(right, down) / 2.0  # of the image's side
        blur, stroke = float(torch.tanh(self.blur.detach())), float(torch.tanh(self.stroke.detach()))
        brighter = bias + 0.5 * (math.exp(-float(self.gamma.detach())) - 1.0)
        parts = (
            (float(self.sign) < 0.0, "with black and white exchanged"),
            (abs(turn) > _LEAST_TURN, f"turned by about {abs(turn):.0f} degrees"),
            (abs(size - 1.0) > _LEAST, f"about {abs(1.0 / size - 1.0):.0%} {'smaller' if size > 1.0 else 'larger'}"),
            (shear > _LEAST, "slanted or stretched"),
            (moved > _LEAST, "off centre"),
            (abs(stroke) > _LEAST, f"with light parts {'thicker' if stroke > 0.0 else 'thinner'}"),
            (blur > _LEAST, "blurred"),
            (blur < -_LEAST, "sharper"),
            (abs(float(self.noise.detach())) > _LEAST / 2.0, "noisy"),
            (abs(gain - 1.0) > _LEAST, f"of {'less' if gain < 1.0 else 'more'} contrast"),
            (abs(brighter) > _LEAST, "brighter" if brighter > 0.0 else "darker"),
        )
        return ", ".join(text for holds, text in parts if holds) or "hardly changed, a little in everything"

    def candidates(self, count: int, generator: torch.Generator) -> list[View]:
        """Views that look through random warps: from the identity alone a turn is fitted as a shear.

        One in four also inverts, two see noise, and colours may change places: nothing leads there from where these
        are absent.
        """
        views: list[View] = []
        for number, theta in enumerate(SEARCH.draw(count, generator)):
            views.append(self._start(theta, sign=-1.0 if number % 4 == 3 else 1.0))
        identity = torch.eye(2, 3)
        views.append(self._start(identity, sign=-1.0))
        views.extend(self._start(identity, noise=much) for much in (0.2, 0.5))
        if self.mix is not None:
            orders = itertools.permutations(range(self.affine.channels))
            views.extend(self._start(identity, order=order) for order in itertools.islice(orders, 1, None))
        return views

    def _start(
        self, theta: Tensor, *, sign: float = 1.0, noise: float = 0.0, order: Sequence[int] | None = None
    ) -> ImageView:
        ends = {"low": (self.centre - self.reach).flatten(), "high": (self.centre + self.reach).flatten()}
        view = ImageView(self.affine.channels, self._background, self.variation, **ends).to(self.warp.theta.device)
        with torch.no_grad():
            view.warp.theta.copy_(theta)
            view.sign.fill_(sign)
            view.noise.fill_(noise)
            if order is not None and view.mix is not None:
                taken = torch.eye(len(order))[list(order)]
                view.affine.gain.copy_(torch.diagonal(taken))
                view.mix.copy_(taken - torch.diag(torch.diagonal(taken)))
        return view

    @staticmethod
    def _stroked(x: Tensor, mix: Tensor) -> Tensor:
        """Thicker by the positive part of mix, thinner by the negative; a pool that has no part is not computed."""
        # The slope at 0, where a fit begins, is the mean of both sides': by relu and abs it is 0, and no fit leaves 0.
        sides = mix.detach().sign()
        thicker, change = 0.5 + 0.5 * sides, torch.zeros_like(x)
        if bool((sides >= 0.0).any()):
            change = change + thicker * (functional.max_pool2d(x, 3, 1, 1) - x)
        if bool((sides <= 0.0).any()):
            change = change + (1 - thicker) * (x + functional.max_pool2d(-x, 3, 1, 1))
        return x + mix * change

    def _resample(self, x: Tensor, drawn: Drawn | None) -> Tensor:
        """One resampling for warp and variation together: a second one would blur."""
        theta = self.warp.theta[None]
        if drawn is None:  # one grid for all
            grid = functional.affine_grid(theta, [1, *x.shape[1:]], align_corners=False)
            grid = grid.expand(len(x), *grid.shape[1:])
        else:  # what is seen through the warp is an image that varies itself
            turned = drawn.theta[:, :, :2]
            theta = torch.cat((turned @ theta[:, :, :2], turned @ theta[:, :, 2:] + drawn.theta[:, :, 2:]), dim=2)
            grid = functional.affine_grid(theta, list(x.shape), align_corners=False) + drawn.displacement
        if self._background is None:
            return functional.grid_sample(x, grid, mode="bilinear", padding_mode="border", align_corners=False)
        behind = (self._background - self.centre) / self.reach if self._own_scale else self._background
        above = functional.grid_sample(x - behind, grid, mode="bilinear", padding_mode="zeros", align_corners=False)
        return above + behind


class FeatureView(View):
    """One gain and one bias for each feature of the frozen extractor.

    Args:
        spread: (d,), positive: the source's deviation of each feature, the unit of the biases.

    Attributes:
        log_gain: (d,), in units of its prior's width.
        bias: (d,), in units of its prior's width.
        factors: (2,), the priors' widths over the usual ones; `linear_evidence` learns them from the releases.
    """

    tunes_extractor = False
    spread: Tensor
    factors: Tensor

    def __init__(self, spread: Tensor) -> None:
        super().__init__()
        self.register_buffer("spread", spread.detach().clone())
        self.register_buffer("factors", torch.ones(2).to(spread))
        self.log_gain = nn.Parameter(torch.zeros_like(self.spread))
        self.bias = nn.Parameter(torch.zeros_like(self.spread))

    def forward(self, extractor: nn.Module, records: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Features (m, d) of records (m, ...); they are not varied."""
        with torch.no_grad():
            features = extractor(records)
        return moved_features(features, self.log_gain * self.factors[0], self.bias * self.factors[1], self.spread)

    def words(self) -> str:
        return "of features on other scales"

    def check(self, records: Tensor, features: Tensor) -> None:
        if features.shape[1] != len(self.spread):
            raise InvalidValue(
                f"the view has one gain for each of {len(self.spread)} features, the extractor gives "
                f"{features.shape[1]}; make it with the deviation of each feature, shape ({features.shape[1]},)"
            )

    def penalty(self) -> Tensor:
        return 0.5 * (self.log_gain.square().sum() + self.bias.square().sum())


def moved_features(features: Tensor, log_gain: Tensor, bias: Tensor, spread: Tensor) -> Tensor:
    """Features (m, d) by gains and biases (d,) in units of their usual widths; spread (d,) is the biases' unit."""
    return features * torch.exp(_FEATURE_GAIN * log_gain) + _FEATURE_BIAS * bias * spread


def view_for(records: Tensor, features: Tensor, declared: Ends | None = None) -> View:
    """The ready view for a kind of record, the identity at first.

    Args:
        records: (m, ...) public source records.
        features: (m, d), theirs.
        declared: least and largest value of images, one for all channels or (c,); by default their own.

    Raises:
        InvalidValue: there is none.
    """
    if records.dim() == 4:
        if declared is None:
            return image_view(records, *scale_of(records))
        return image_view(records, *(torch.from_numpy(end).to(records).reshape(-1) for end in declared))
    if records.dim() in (2, 3):
        spread = features.std(dim=0) if len(features) > 1 else torch.ones_like(features[0])
        return FeatureView(spread.clamp(min=1e-6)).to(records.device)
    raise InvalidValue(
        f"there is no ready view for records of shape {tuple(records.shape[1:])}; allowed: (d,), (c, l), (c, h, w)"
    )


def image_view(images: Tensor, low: Tensor, high: Tensor) -> ImageView:
    """The view of images (m, c, h, w) whose values lie between low and high, one for all channels or (c,)."""
    return ImageView(images.shape[1], background_of(images), low=low, high=high).to(images.device)


def scale_of(images: Tensor) -> tuple[Tensor, Tensor]:
    """Darkest and brightest value that images (m, c, h, w) may have, where nobody declares it.

    The usual scales, [-1, 1] and [0, 1], are taken as such; otherwise each channel's own ends, which normalised
    channels reach.
    """
    least, most = float(images.min()), float(images.max())
    for low, high in ((0.0, 1.0), (-1.0, 1.0)):
        if low <= least and most <= high:
            return torch.tensor(low), torch.tensor(high)
    ends = images.transpose(0, 1).flatten(1)
    low_, high_ = ends.amin(dim=1), ends.amax(dim=1)
    return low_, torch.maximum(high_, low_ + 1e-6)


def background_of(images: Tensor) -> float | None:
    """The value of most border pixels of images (m, c, h, w), or None if there is no such value."""
    border = torch.cat((images[..., 0, :], images[..., -1, :], images[..., :, 0], images[..., :, -1]), dim=-1)
    middle = border.median()
    share = ((border - middle).abs() < 1e-3).float().mean()
    return float(middle) if float(share) >= _UNIFORM_BORDER else None


def _padded(x: Tensor) -> Tensor:
    return functional.pad(x, (1, 1, 1, 1), mode="replicate")


class MixedViews(View):
    """Several views of the same records: each pair of records is seen through one of them.

    Args:
        views: all of one kind.
        weights: how often each is drawn.
        seed: of the draws.
    """

    def __init__(self, views: Sequence[View], weights: Sequence[float], seed: int) -> None:
        super().__init__()
        self.views = nn.ModuleList(views)
        self.tunes_extractor = all(view.tunes_extractor for view in views)
        self.keeps_scores = all(view.keeps_scores for view in views)
        self._weights = torch.tensor(weights)
        self._generator = torch.Generator().manual_seed(seed)

    def forward(self, extractor: nn.Module, records: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Features (m, d) of records (m, ...)."""
        pairs = torch.multinomial(self._weights, max(1, len(records) // 2), replacement=True, generator=self._generator)
        drawn = pairs[(torch.arange(len(records)) // 2).clamp(max=len(pairs) - 1)]  # one alone has no batch statistics
        parts = [(drawn == number).nonzero()[:, 0].to(records.device) for number in range(len(self.views))]
        seen = [
            view(extractor, records[part], generator) for view, part in zip(self.views, parts, strict=True) if len(part)
        ]
        return torch.cat(seen)[torch.cat(parts).argsort()]
