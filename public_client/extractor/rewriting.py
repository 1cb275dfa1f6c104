"""Calls of a traced forward in fewer words, before they are lowered.

Sizes are known while a forward is traced. So each change of shape is a `reshape`, each turn a `permute`, each part of a
tensor an index, each join a `cat`; powers, spreads and sums of products are what they are made of.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

import torch

from dpswd.public_client.extractor.sizes import BATCH_TRIED

Rewrite = Callable[..., Any]
"""What a call is written as; `NotImplemented` where it stays as it is."""


def in_fewer_words(target: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """A call of torch's in fewer words, `NotImplemented` where there are none.

    Args:
        target: the function, or the method's name.
        args: with symbols, of which the sizes are known.
        kwargs: the same.
    """
    name = target if isinstance(target, str) else _NAMES.get(target)
    return NotImplemented if name is None or name not in REWRITES else REWRITES[name](*args, **kwargs)


def _reshaped(name: str) -> Rewrite:
    def write(x: Any, *arguments: Any, **options: Any) -> Any:
        if name == "squeeze" and not arguments and not options:  # of a single record it drops the batch
            return NotImplemented
        seen = getattr(x.sample, name)(*arguments, **options).shape
        if seen == x.sample.shape:
            return x
        return NotImplemented if name == "reshape" and arguments == (seen,) else x.reshape(seen)

    return write


def _transposed(x: Any, dim0: int, dim1: int) -> Any:
    order = list(range(x.dim()))
    order[dim0], order[dim1] = order[dim1], order[dim0]
    return x.permute(order)


def _part(x: Any, dim: int, place: int | slice) -> Any:
    if not dim % x.dim() and x.shape[0] % BATCH_TRIED == 0:
        raise ValueError("a part of the batch")
    return x[(*(slice(None),) * (dim % x.dim()), place)]


def _split(x: Any, split_size: Any, dim: int = 0) -> Any:
    length = x.shape[dim]
    sizes = split_size
    if isinstance(split_size, int):
        sizes = [min(split_size, length - begin) for begin in range(0, length, split_size)]
    ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
    return tuple(_part(x, dim, slice(end - size, end)) for size, end in zip(sizes, ends, strict=True))


def _chunk(x: Any, chunks: int, dim: int = 0) -> Any:
    return _split(x, max(1, -(-x.shape[dim] // chunks)), dim)


def _unbind(x: Any, dim: int = 0) -> Any:
    return tuple(_part(x, dim, place) for place in range(x.shape[dim]))


def _roll(x: Any, shifts: Any, dims: Any = ()) -> Any:
    both = ((one,) if isinstance(one, int) else one for one in (shifts, dims))
    for shift, dim in zip(*both, strict=True):
        if cut := -shift % x.shape[dim]:
            x = torch.cat([_part(x, dim, slice(cut, None)), _part(x, dim, slice(None, cut))], dim)
    return x


def _spread(power: float) -> Rewrite:
    def write(
        x: Any, dim: Any = None, unbiased: bool = True, keepdim: bool = False, *, correction: float | None = None
    ) -> Any:
        sides = dim if isinstance(dim, (tuple, list)) else range(x.dim()) if dim is None else (dim,)
        length = math.prod(x.shape[side] for side in sides)
        taken = float(unbiased) if correction is None else correction
        away = x - x.mean(dim, keepdim=True)
        return ((away * away).mean(dim, keepdim=keepdim) * (length / (length - taken))) ** power

    return write


def _power(x: Any, exponent: Any) -> Any:
    if exponent in (1, 2, 3, 4):
        return x if exponent == 1 else x * _power(x, exponent - 1)
    if isinstance(exponent, float) and abs(exponent) < 1.0:  # of positive numbers
        return torch.exp(torch.log(x) * exponent)
    return NotImplemented


def _of_products(equation: str, *operands: Any) -> Any:
    """torch.einsum of two tensors, as one product of matrices; the result names the batch first."""
    given, _, result = equation.replace(" ", "").partition("->")
    names = given.split(",")
    if len(names) != 2 or any(not name.isalpha() or len({*name}) < len(name) for name in (*names, result)):
        return NotImplemented
    sides = zip("".join(names), (side for x in operands for side in x.shape), strict=True)
    lengths, batch = dict(sides), result[0]
    both = [name for name in names[0] if name in names[1] and name != batch]
    left, right = ([name for name in own if name not in (*both, batch)] for own in names)
    shared, summed = [name for name in both if name in result], [name for name in both if name not in result]
    order = [batch, *shared, *left, *right]
    if sorted(order) != sorted(result):
        return NotImplemented  # a side of one tensor alone is summed

    def matrices(x: Any, own: str, rows: list[str], columns: list[str]) -> Any:
        lead, parts = [batch] * (batch in own), [shared] * bool(shared) + [rows, columns]
        turned = x.permute([own.index(name) for name in chain(lead, *parts)])
        return turned.reshape([*map(lengths.get, lead), *(math.prod(lengths[name] for name in part) for part in parts)])

    product = matrices(operands[0], names[0], left, summed) @ matrices(operands[1], names[1], summed, right)
    return product.reshape([lengths[name] for name in order]).permute([order.index(name) for name in result])


REWRITES: dict[str, Rewrite] = {
    **{name: _reshaped(name) for name in ("view", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze")},
    **dict.fromkeys(("transpose", "swapaxes"), _transposed),
    "t": lambda x: _transposed(x, -2, -1),
    "split": _split,
    "chunk": _chunk,
    "unbind": _unbind,
    "stack": lambda tensors, dim=0: torch.cat([each.unsqueeze(dim) for each in tensors], dim),
    **dict.fromkeys(("hstack", "column_stack"), lambda tensors: torch.cat(tensors, 1)),
    "roll": _roll,
    "var": _spread(1),
    "std": _spread(0.5),
    "pow": _power,
    "sqrt": lambda x: _power(x, 0.5),
    "rsqrt": lambda x: _power(x, -0.5),
    "square": lambda x: x * x,
    "sin": lambda x: torch.cos(x - math.pi / 2),
    "addcmul": lambda x, tensor1, tensor2, value=1: x + tensor1 * tensor2 * value,
    "einsum": _of_products,
}
"""By the name of torch's function or method."""
_NAMES = {getattr(torch, name): name for name in REWRITES if hasattr(torch, name)} | {operator.pow: "pow"}
