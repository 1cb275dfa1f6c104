"""The seam for noise, the integer grid, and the one function that turns a signal into a release.

docs/privacy, section 7: the signal is rounded to a grid of step g = sigma 2^-11, ideal Gaussian noise is rounded to the
same grid, and the two are added as integers. The sum no longer depends on float details of the signal, its size on
the wire is fixed, and saturating it is post-processing of a value that is already private.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpswd.shared.core.errors import InvalidValue
from dpswd.shared.core.noise.grid_gaussian import GRID_EXPONENT, grid_gaussian_table
from dpswd.shared.core.noise.keystream import Keystream

_LARGEST_SIGNAL = float(1 << 52)  # grid steps; far outside int32, and still exact in float64 with noise added

Integer = Literal["int16", "int24", "int32", "int64"]
_BITS: dict[Integer, int] = {"int16": 16, "int24": 24, "int32": 32, "int64": 64}
_TYPES = {"int16": torch.int16, "int24": torch.int32, "int32": torch.int32, "int64": torch.int64}
"""In memory."""
_CUT_SIGMAS = 16  # no noise lies further out
_BLUR_STEPS = 4  # deviation of the small noise of `release_finely`, in steps of the usual grid
_FINEST_EXPONENT = 2 * GRID_EXPONENT - 2  # the small noise's own grid: 4 sigma 2^-11 2^-11
_COARSE_EXPONENT = 14  # of a sum's grid in 32 bits: a coarser one would cost more than its bytes save
_SURE_SIGMAS = 10.0  # a value of the noise lies further out with probability 1.5e-23


class NoiseSource(Protocol):
    """Where noise comes from. The curator's is keyed by the operating system; tests use a seeded one."""

    def grid_gaussian(self, shape: tuple[int, ...], *, sigma: float, step: float) -> NDArray[np.int64] | Tensor:
        """Independent ideal N(0, sigma^2) values rounded to the grid.

        Args:
            shape: of the result.
            sigma: standard deviation, in the units of the released quantity.
            step: distance of two grid points in the same units, `grid_step(sigma)`.

        Returns:
            Integers, in units of `step`: an array, or an int64 tensor where the source draws on a device. Nobody else
            keeps them, so a release may overwrite them.
        """
        ...


@dataclass(frozen=True, eq=False)
class GridArray:
    """Released integers and the step that gives them a unit.

    Attributes:
        values: int16, int32 or int64, any shape; made read-only.
        step: units of the released quantity for each integer step, positive and finite.
        integer: what each value fits in, by declared sizes and not by the values; decides their width on the wire.
    """

    values: NDArray[np.int16] | NDArray[np.int32] | NDArray[np.int64]
    step: float
    integer: Integer = "int32"

    def __post_init__(self) -> None:
        if self.values.dtype not in (np.int16, np.int32, np.int64):
            raise InvalidValue(f"grid values have type {self.values.dtype}; use int16, int32 or int64")
        if not (math.isfinite(self.step) and self.step > 0.0):
            raise InvalidValue(f"the grid step is {self.step}; it must be positive and finite")
        self.values.setflags(write=False)

    def to_numpy(self) -> NDArray[np.float64]:
        """The released quantity in its own units, float64."""
        return self.values.astype(np.float64) * self.step

    def to_tensor(self, *, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32) -> Tensor:
        """The released quantity in its own units.

        Args:
            device: where the tensor lives.
            dtype: a floating-point type.

        Returns:
            values * step, in the shape of `values`.
        """
        # Multiplied in float64 first: int32 values do not fit in float32's 24 bits.
        return torch.from_numpy(self.to_numpy()).to(device=device, dtype=dtype)


def grid_step(sigma: float) -> float:
    """The grid's step, sigma 2^-11, exactly.

    Args:
        sigma: standard deviation of the noise, positive and finite.

    Returns:
        The step in sigma's units.

    Raises:
        InvalidValue: sigma is outside what is allowed.
    """
    if not (math.isfinite(sigma) and sigma > 0.0):
        raise InvalidValue(f"sigma is {sigma}; it must be positive and finite")
    step = math.ldexp(sigma, -GRID_EXPONENT)
    if math.ldexp(step, GRID_EXPONENT) != sigma:  # a subnormal step lost bits
        raise InvalidValue(f"sigma is {sigma}; it is too small for a grid, use at least 1e-300")
    return step


def gaussian_on_grid(stream: Keystream, shape: tuple[int, ...], *, sigma: float, step: float) -> NDArray[np.int64]:
    """N(0, sigma^2) rounded to the grid, from the next words of a keystream.

    Args:
        stream: of random words.
        shape: of the result.
        sigma: standard deviation.
        step: the grid's step, sigma 2^-11.

    Returns:
        Integers, in units of `step`.

    Raises:
        InvalidValue: the step does not belong to sigma.
    """
    check_step(step, sigma=sigma)
    return grid_gaussian_table().sample(stream, math.prod(shape)).reshape(shape)


def check_step(step: float, *, sigma: float) -> None:
    """Refuses a step that is not `grid_step(sigma)`, by InvalidValue."""
    if step != grid_step(sigma):
        raise InvalidValue(f"the grid step {step} does not belong to sigma {sigma}; use sigma * 2**-{GRID_EXPONENT}")


def narrowest_integer(bound: float, *, sigma: float) -> Integer:
    """The narrowest type that a noised signal saturates in practically never; a function of public numbers alone.

    The width of a reply must not depend on the records, so it is the signal's largest possible value that decides,
    with ten sigma of noise on top. Should a value saturate all the same, that is post-processing.

    Args:
        bound: no coordinate of the signal can be larger, in the released quantity's units.
        sigma: standard deviation of the noise, in the same units.

    Returns:
        int32 if no narrower type will do.
    """
    largest = (bound + _SURE_SIGMAS * sigma) / grid_step(sigma)
    for integer in ("int16", "int24"):
        if largest <= _limit(integer):
            return integer
    return "int32"


def _limit(integer: Integer) -> int:
    """The largest value; the same on both sides keeps the law symmetric."""
    return (1 << (_BITS[integer] - 1)) - 1


def release_on_grid(signal: Tensor, *, sigma: float, noise: NoiseSource, integer: Integer) -> GridArray:
    """Round a signal to the grid, add grid noise, saturate.

    Args:
        signal: any shape, finite, in the released quantity's units; computed in float64 so that its own rounding
            errors are far below the grid's.
        sigma: standard deviation of the noise, in the same units.
        noise: where the noise comes from.
        integer: the type that travels; see `narrowest_integer`.

    Returns:
        The release. Its privacy is the Gaussian mechanism's, with at most `step` added to each coordinate's
        sensitivity (two roundings of half a step).
    """
    step = grid_step(sigma)
    return release_steps(
        torch.round(signal.detach().to(torch.float64) / step), sigma=sigma, noise=noise, integer=integer
    )


def release_steps(steps: Tensor, *, sigma: float, noise: NoiseSource, integer: Integer) -> GridArray:
    """Add grid noise to a signal that is already a whole number of steps of `grid_step(sigma)`, and saturate.

    Args:
        steps: any shape, float64 holding integers.
        sigma: standard deviation of the noise.
        noise: where the noise comes from.
        integer: the type that travels.

    Returns:
        The release.
    """
    step = grid_step(sigma)
    drawn = _drawn(noise, steps, sigma=sigma, step=step)
    return _noised(steps, drawn, step=step, integer=integer)


def _drawn(noise: NoiseSource, like: Tensor, *, sigma: float, step: float) -> Tensor:
    """Noise in the signal's shape, int64, on its device."""
    values = noise.grid_gaussian(tuple(like.shape), sigma=sigma, step=step)
    return torch.as_tensor(values, dtype=torch.int64, device=like.device)


def _noised(steps: Tensor, drawn: Tensor, *, step: float, integer: Integer) -> GridArray:
    """Signal plus noise, saturated, where they are; only the sum's integers are copied to the host.

    The sum is written over the noise, so that of the two none is left but what the caller has of the signal.
    """
    drawn += steps.clamp(-_LARGEST_SIGNAL, _LARGEST_SIGNAL).to(torch.int64)
    limit = _limit(integer)
    return GridArray(drawn.clamp_(-limit, limit).to(_TYPES[integer]).cpu().numpy(), step, integer)


def finest_exponent(bound: float, *, sigma: float) -> int:
    """The finest grid on which a noised sum fits into 32 bits; a function of public numbers alone.

    Args:
        bound: no coordinate of the signal can be larger, in the released quantity's units.
        sigma: standard deviation of the noise, in the same units.

    Returns:
        e of the step sigma 2^-e, from 11 to 20.

    Raises:
        InvalidValue: not even the coarsest grid will do, or sigma is no sigma.
    """
    grid_step(sigma)
    reach = bound / sigma + _CUT_SIGMAS
    for exponent in range(_FINEST_EXPONENT, GRID_EXPONENT - 1, -1):
        if reach * 2.0**exponent <= _limit("int32"):
            return exponent
    raise InvalidValue(
        f"a sum of up to {bound:g} does not fit in 32 bits at noise sigma {sigma:g}; the sum over sigma must stay "
        f"below {2**20 - _CUT_SIGMAS - 1}: use more noise"
    )


def sum_grid(bound: float, *, sigma: float) -> tuple[int, Integer]:
    """The grid of a noised sum over any number of records; a function of public numbers alone.

    Args:
        bound: no coordinate of the signal can be larger, in the released quantity's units.
        sigma: standard deviation of the noise, in the same units.

    Returns:
        e of the step sigma 2^-e, and the width: 32 bits where a grid of 14 or finer fits, else 64 and the finest grid.

    Raises:
        InvalidValue: the signal could leave the integers that float64 holds, or sigma is no sigma.
    """
    grid_step(sigma)
    reach = bound / sigma + _CUT_SIGMAS
    for exponent in range(_FINEST_EXPONENT, _COARSE_EXPONENT - 1, -1):
        if reach * 2.0**exponent <= _limit("int32"):
            return exponent, "int32"
    if reach * 2.0**_FINEST_EXPONENT <= _LARGEST_SIGNAL:
        return _FINEST_EXPONENT, "int64"
    raise InvalidValue(
        f"a sum of up to {bound:g} does not fit in 52 bits at noise sigma {sigma:g}; the sum over sigma must stay "
        f"below {2**32 - _CUT_SIGMAS}: use more noise"
    )


def release_finely(
    signal: Tensor, *, sigma: float, exponent: int, noise: NoiseSource, integer: Integer = "int32"
) -> GridArray:
    """As `release_on_grid`, on a finer grid: where many coordinates change at once, rounding must cost less.

    The noise is the sum of two from the one table: N(0, sigma^2) on its usual grid, and a small one with a deviation of
    four of that grid's steps, on a grid 512 times finer. docs/privacy/noise.md shows that their sum is post-processing
    of noise of more than sigma, but for a distance below 2^-400.

    Args:
        signal: any shape, finite, in the released quantity's units.
        sigma: standard deviation of the noise, in the same units.
        exponent: e of the grid's step sigma 2^-e, from `finest_exponent` or `sum_grid`.
        noise: where the noise comes from.
        integer: the type that travels.

    Returns:
        The release; its rounding adds at most one step to each coordinate's sensitivity.
    """
    coarse, step = grid_step(sigma), math.ldexp(sigma, -exponent)
    small = _BLUR_STEPS * coarse
    drawn = _drawn(noise, signal, sigma=sigma, step=coarse)
    drawn <<= _FINEST_EXPONENT - GRID_EXPONENT
    fine = _drawn(noise, signal, sigma=small, step=grid_step(small))
    drawn += fine
    fine.zero_()
    dropped = _FINEST_EXPONENT - exponent
    if dropped:
        drawn += 1 << (dropped - 1)
        drawn >>= dropped
    return _noised(torch.round(signal.detach().to(torch.float64) / step), drawn, step=step, integer=integer)
