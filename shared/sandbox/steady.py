"""Forms of operations whose time does not depend on the numbers that they meet, forwards and backwards.

A client chooses the extractor. An operation that is slower for some numbers, behind a detector that makes such numbers
of one person's record, would tell by the time of a reply whether that record was drawn. On a CPU many functions of
torch are: `exp`, `log1p`, `tanh` and `sqrt` take other paths for large, small or missing numbers (up to 20 times
slower); `where`, `masked_fill`, `clamp` backwards and the pools of maxima branch on each number (3 to 4 times), as do
`elu` and `selu`. What stands here is made of what is left: sums, products, `relu`, `hardtanh`, `expm1`, `exp2`,
`nan_to_num`, maxima along one axis. `python -m benchmarks.operation_times --check` measures all of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

LARGEST_RATIO = 1.03
"""An operation takes at most so many times as long for some numbers as for others, measured; hence a whole graph."""
_LOG2_E = math.log2(math.e)
_SELU_ALPHA, _SELU_SCALE = 1.6732632423543772, 1.0507009873554805  # Klambauer et al. 2017, torch's digits
_TANH_ENDS = 10.0  # beyond, tanh is 1 in float32
_MISH_ENDS = 20.0  # beyond, mish is the identity in float32


def elu(x: Tensor, alpha: float) -> Tensor:
    """Exponential linear unit: x where it is positive, alpha (exp(x) - 1) elsewhere."""
    return torch.relu(x) + alpha * torch.expm1(-torch.relu(-x))


def selu(x: Tensor) -> Tensor:
    """A scaled ELU."""
    return _SELU_SCALE * elu(x, _SELU_ALPHA)


def tanh(x: Tensor) -> Tensor:
    """Hyperbolic tangent."""
    grown = torch.expm1(2.0 * functional.hardtanh(x, -_TANH_ENDS, _TANH_ENDS))
    return grown / (grown + 2.0)


def softplus(x: Tensor, beta: float, threshold: float) -> Tensor:
    """log(1 + exp(beta x)) / beta; x itself where beta x is above the threshold."""
    size = torch.relu(x) + torch.relu(-x)
    # Without NaN, for which log1p is slow; the first term still has it.
    rest = torch.log1p(torch.exp2(-torch.nan_to_num(_LOG2_E * beta * size)))
    return torch.relu(x) + rest * (beta * x <= threshold).to(x.dtype) / beta


def mish(x: Tensor) -> Tensor:
    """Misra 2019: x tanh(log(1 + exp(x)))."""
    u = torch.exp2(_LOG2_E * functional.hardtanh(x, -110.0, _MISH_ENDS))  # 0 at the lower end
    n = u * (u + 2.0)  # tanh(log(1 + u)) = ((1 + u)^2 - 1) / ((1 + u)^2 + 1)
    return x * (n / (n + 2.0))


def cos(x: Tensor) -> Tensor:
    """Cosine; 1 where x is NaN or infinite. torch's own is slow where the argument is large."""
    turns = torch.nan_to_num(x * (0.5 / math.pi), nan=0.0, posinf=0.0, neginf=0.0)
    return torch.cos((2.0 * math.pi) * (turns - torch.round(turns)))


def exp(x: Tensor) -> Tensor:
    """Exponential function, between 2^-126 and 2^126. torch's own is slow at both ends."""
    return torch.exp2(functional.hardtanh(_LOG2_E * x, -126.0, 126.0))


def log(x: Tensor) -> Tensor:
    """Natural logarithm, of 2^-126 to 2^125; 0 where x is NaN. torch's own is slow beyond, on some processors."""
    return torch.log(functional.hardtanh(torch.nan_to_num(x, nan=1.0), 2.0**-126, 2.0**125))


def max_pool(
    x: Tensor,
    *,
    kernel_size: tuple[int, ...],
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
    sizes: tuple[int, ...],
) -> Tensor:
    """Largest value of each window over the last sides of x (..., *sides); equal ones share the gradient.

    A window's maximum is the maximum along one side of the maxima along the other.

    Args:
        x: the record.
        kernel_size: of each side, as the others.
        stride: between windows.
        padding: at both ends, never a maximum.
        dilation: between the places of one window.
        sizes: of the result's sides; they decide where windows end, so torch's `ceil_mode` is in them.
    """
    for side, (k, s, p, d, size) in enumerate(zip(kernel_size, stride, padding, dilation, sizes, strict=True)):
        axis = side - len(sizes)
        last = (size - 1) * s + d * (k - 1) + 1  # where the last window ends, counted from the padding's begin
        behind = max(0, last - p - x.shape[axis])
        if p or behind:
            x = functional.pad(x, [0, 0] * (-axis - 1) + [p, behind], value=-math.inf)
        shifted = [_every(x, axis, begin=i * d, step=s, count=size) for i in range(k)]
        x = torch.stack(shifted).amax(dim=0) if k > 1 else shifted[0]
    return x


def adaptive_max_pool(x: Tensor, output_size: tuple[int, ...]) -> Tensor:
    """Largest value of each of the windows into which the last sides of x (..., *sides) are cut; see `max_pool`."""
    for side, size in enumerate(output_size):
        axis = side - len(output_size)
        length = x.shape[axis]
        if length % size == 0:
            x = _cut(x, axis, size).amax(dim=axis)
            continue
        starts = [i * length // size for i in range(size)]
        ends = [-(-(i + 1) * length // size) for i in range(size)]
        widest = max(end - start for start, end in zip(starts, ends, strict=True))
        # Shorter windows repeat their last place.
        places = [min(start + i, end - 1) for start, end in zip(starts, ends, strict=True) for i in range(widest)]
        windows = x.index_select(x.dim() + axis, torch.tensor(places, device=x.device))
        x = _cut(windows, axis, size).amax(dim=axis)
    return x


def _every(x: Tensor, axis: int, *, begin: int, step: int, count: int) -> Tensor:
    """Places begin, begin + step, ... of one axis, `count` of them."""
    index = [slice(None)] * x.dim()
    index[axis] = slice(begin, begin + step * (count - 1) + 1, step)
    return x[tuple(index)]


def _cut(x: Tensor, axis: int, pieces: int) -> Tensor:
    """One axis as (pieces, length of each); axis counts from the end."""
    at = x.dim() + axis
    return x.reshape(*x.shape[:at], pieces, x.shape[at] // pieces, *x.shape[at + 1 :])


def softmax(x: Tensor) -> Tensor:
    """Softmax over the last side."""
    # A shift changes nothing, so neither does its gradient; the lower end keeps powers of two normal numbers.
    # The upper end is above them all, for at an end there is no gradient.
    powers = torch.exp2(functional.hardtanh(_LOG2_E * (x - x.amax(dim=-1, keepdim=True).detach()), -125.0, 1.0))
    shares: Tensor = powers / powers.sum(dim=-1, keepdim=True)
    return shares


def normalize(x: Tensor, axis: int, eps: float) -> Tensor:
    """X over its Euclidean norm along one side, or over eps where that is larger."""
    square = x.square().sum(dim=axis, keepdim=True)
    return x * torch.rsqrt(torch.relu(square - eps**2) + eps**2)


Step = Callable[[Tensor, Tensor, tuple[Tensor, ...]], tuple[Tensor, ...]]
"""(what the input gives to all gates, what the state gives, states) -> new states, the output first."""


def rnn_step(activation: Callable[[Tensor], Tensor]) -> Step:
    """Elman 1990, as torch computes it."""
    return lambda given, past, _states: (activation(given + past),)


def gru_step(given: Tensor, past: Tensor, states: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Cho et al. 2014, as torch computes it: reset, update and new gate."""
    (h,) = states
    (r_x, z_x, n_x), (r_h, z_h, n_h) = given.chunk(3), past.chunk(3)
    reset, update = torch.sigmoid(r_x + r_h), torch.sigmoid(z_x + z_h)
    new = tanh(n_x + reset * n_h)
    return (new + update * (h - new),)


def lstm_step(given: Tensor, past: Tensor, states: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Hochreiter & Schmidhuber 1997, as torch computes it: input, forget, cell and output gate."""
    _, cell = states
    i, f, g, o = (given + past).chunk(4)
    cell = torch.sigmoid(f) * cell + torch.sigmoid(i) * tanh(g)
    return torch.sigmoid(o) * tanh(cell), cell
