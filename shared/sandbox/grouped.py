"""Many small matrices, each times its own part of a record, in one product for all records under `vmap`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx


class _Grouped(torch.autograd.Function):
    """torch's own rule for products of stacks under vmap copies the matrices for each record; this one does not."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor) -> Tensor:
        return torch.matmul(weight, x.unsqueeze(-1)).squeeze(-1)

    @staticmethod
    def setup_context(ctx: FunctionCtx, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:  # noqa: ARG004 - torch's signature
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        (out,) = cotangents
        return torch.matmul(weight.mT, out.unsqueeze(-1)).squeeze(-1), out.unsqueeze(-1) * x.unsqueeze(-2)

    @staticmethod
    def vmap(_info: Any, in_dims: tuple[int | None, int | None], x: Tensor, weight: Tensor) -> tuple[Tensor, int]:
        # Plain operations of all records: autograd follows them, so that backward is torch's own.
        if in_dims[1] is None and in_dims[0] is not None:
            by_group = x.movedim(in_dims[0], 1)  # (groups, b, n)
            return torch.bmm(by_group, weight.mT), 1
        each = x.unsqueeze(0) if in_dims[0] is None else x.movedim(in_dims[0], 0)
        own = weight.unsqueeze(0) if in_dims[1] is None else weight.movedim(in_dims[1], 0)
        return torch.matmul(own, each.unsqueeze(-1)).squeeze(-1), 0


def grouped_linear(x: Tensor, weight: Tensor) -> Tensor:
    """Each group's numbers times its matrix.

    Args:
        x: (groups, n) of one record.
        weight: (groups, m, n).

    Returns:
        (groups, m).
    """
    product: Tensor = _Grouped.apply(x, weight)  # type: ignore[no-untyped-call]
    return product
