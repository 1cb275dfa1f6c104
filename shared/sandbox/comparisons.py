"""The vocabulary's words that compare: 1.0 where it is so, 0.0 elsewhere.

NaN is less than nothing and equal to nothing, itself included, as in IEEE 754; every other comparison is made of these.
No gradient passes a comparison. On a CPU they take as long for some numbers as for others.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from dpswd.shared.sandbox.attributes import MAX_CONSTANT, real
from dpswd.shared.sandbox.operations import Operation, broadcast, same

_CONSTANT = real(-MAX_CONSTANT, MAX_CONSTANT)


def _of_two(name: str, about: str, function: Callable[..., Tensor]) -> Operation:
    return Operation(
        name=name,
        about=about,
        shape=broadcast,
        apply=lambda x, _at, _w: function(x[0], x[1]).to(x[0].dtype),
        inputs=(2, 2),
        differentiable=False,
    )


def _with_constant(name: str, about: str, function: Callable[..., Tensor]) -> Operation:
    return Operation(
        name=name,
        about=about,
        attributes={"constant": _CONSTANT},
        shape=same,
        apply=lambda x, at, _w: function(x[0], at["constant"]).to(x[0].dtype),
        differentiable=False,
    )


COMPARISONS: tuple[Operation, ...] = (
    _of_two(
        "less", "x < y, x > y, x <= y, x >= y of two values of the record, such as a buffer of thresholds", torch.lt
    ),
    _of_two("equal", "x == y, x != y; torch.isnan(x)", torch.eq),
    _with_constant("less_than", "x < 0.5, x > 0.5, ...", torch.lt),
    _with_constant("equal_to", "x == 0, x != 0: padding", torch.eq),
    Operation(
        name="nan_to_num",
        about="torch.nan_to_num(x), with a number of one's own for NaN",
        attributes={"nan": _CONSTANT},
        shape=same,
        apply=lambda x, at, _w: torch.nan_to_num(x[0], nan=at["nan"]),
    ),
)
"""Their order is that of the table in docs/ml-team/extractors.md."""
