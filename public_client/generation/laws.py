"""A logistic law of one column's bins, given bins that were drawn before; and rows drawn by one law after another.

The law of a column has a weight for each of its bins with each bin drawn before, so that its chances are

    softmax(weight x + bias),  x the zeros and ones of the bins drawn before.

It is solved for what was released: over rows that were drawn by the laws before it, the expected shares of its bins,
and the covariances of its bins with each other bin, are brought to the released ones, each residual in units of its
known noise, and weights start at 0 with a known deviation, those of neighbouring bins of a number alike. What noise
hides therefore stays independent, and smooth. Laws of maximal entropy with given pairs have this form when the last
column is drawn; drawing one after another needs no sampler that has to mix.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from dpswd.public_client.generation.schema import Column, Schema

_STEEP = 1e6
"""Of a step from 0 to 1, in units of what it divides: one value in a million falls on each of them and is snapped."""
LEAST = 1e-4
"""Of a share, where a law begins."""
_ALIKE, _REACH = 0.9, 0.4
"""Of the variance of a numeric bin's weight, what neighbours share; and over which part of the bins it is forgotten."""
_NOWHERE = 1e-12
"""Keeps a normal number of exactly 0 from being divided by; no other in single precision is changed that matters."""
Values = npt.NDArray[np.float64]
Released = tuple[Values, Values, Values, Values]
"""Of a column: shares (k,) of its bins and their variances, of noise and of sampling n records; covariances (k, d) of
its bins with those before, and their variances."""


@dataclass(frozen=True, eq=False)
class Law:
    """Chances of k bins given d bins before.

    Attributes:
        weight: (k, d).
        bias: (k,).
    """

    weight: Tensor
    bias: Tensor


def root_of(column: Column) -> Tensor:
    """(k, k), a root of the covariance of its bins' weights, before anything is known: 1, and alike for neighbours."""
    low, high = torch.tensor(column.bounds, dtype=torch.float64).T
    place, numbers = torch.arange(len(low)), (low < high).double()
    reach = _REACH * max(1.0, float(numbers.sum()))
    near = torch.exp(-(place[:, None] - place).abs() / reach) * torch.outer(numbers, numbers)
    root: Tensor = torch.linalg.cholesky((_ALIKE * near).fill_diagonal_(1.0))
    return root.float()


def solved(released: Released, rows: Tensor, roots: tuple[Tensor, Tensor], *, updates: int) -> tuple[Law, Tensor]:
    """The law whose expected shares and covariances over `rows` (r, d) of zeros and ones are nearest to the released.

    Covariances, not shares of pairs: these would blame the column for every bin that `rows` hold too often.

    Args:
        released: of the column.
        rows: bins drawn before.
        roots: (k, k) and (d, d), of the weights' covariance before anything is known, along own bins and those before.
        updates: of the descent (limited-memory BFGS), at most.

    Returns:
        The law, and its chances over the rows (r, k), both on the CPU.
    """
    own, own_spread, joint, joint_spread = (torch.from_numpy(values).to(rows) for values in released)
    own_root, root = (each.to(rows) for each in roots)
    free = torch.zeros(joint.shape, device=rows.device, requires_grad=True)
    bias = own.clamp(min=LEAST).log().requires_grad_()
    optimizer = torch.optim.LBFGS([free, bias], max_iter=updates, history_size=20, line_search_fn="strong_wolfe")
    centred = rows - rows.mean(dim=0)

    def loss() -> Tensor:
        optimizer.zero_grad()
        chances = torch.softmax(rows @ (own_root @ free @ root.T).T + bias, dim=1)
        misfit = ((chances.mean(dim=0) - own).square() / own_spread).sum()
        misfit = misfit + ((chances.T @ centred / len(rows) - joint).square() / joint_spread).sum()
        cost: Tensor = 0.5 * (misfit + free.square().sum())
        cost.backward()  # type: ignore[no-untyped-call]
        return cost

    optimizer.step(loss)  # type: ignore[no-untyped-call]
    law = Law((own_root @ free @ root.T).detach(), bias.detach())
    return Law(law.weight.cpu(), law.bias.cpu()), torch.softmax(rows @ law.weight.T + law.bias, dim=1).cpu()


class Drawing(nn.Module):
    """[z, e_c] to a record, whatever the class: a number of z chooses each column's bin, another the place in it.

    Args:
        schema: of the records.
        laws: of each column given those before it, in the order that they are drawn in.
        classes: C; what is drawn does not depend on it.
    """

    def __init__(self, schema: Schema, laws: Mapping[int, Law], *, classes: int) -> None:
        super().__init__()
        m = len(schema.columns)
        self.uniform = nn.ModuleList(nn.Linear(2 * m + classes, m) for _ in range(2))
        for half, layer in enumerate(self.uniform):
            _filled(layer, torch.eye(m, 2 * m + classes).roll(half * m, dims=1))
        self.scores, self.steps, self.bins = nn.ModuleList(), nn.ModuleList(), nn.ModuleList()
        width, low, reach = m, [torch.zeros(m, m)], [torch.zeros(m, m)]
        for column, law in laws.items():
            k, bounds = len(law.bias), torch.tensor(schema.columns[column].bounds)
            score, step, chosen = nn.Linear(width, k), nn.Linear(k + width, k), nn.Linear(k, k)
            _filled(score, torch.cat([torch.zeros(k, m), law.weight], dim=1), law.bias)
            # 1 from the bin on at which the chances up to it reach this column's uniform number.
            to_bin = torch.cat([torch.ones(k, k).tril(), torch.zeros(k, width)], dim=1)
            to_bin[:, k + column] = -1.0
            to_bin[-1] = 0.0
            _filled(step, _STEEP * to_bin, torch.eye(k)[-1])
            _filled(chosen, torch.eye(k) - torch.diag(torch.ones(k - 1), -1))
            for module, made in ((self.scores, score), (self.steps, step), (self.bins, chosen)):
                module.append(made)
            here = torch.zeros(m, k)
            here[column] = bounds[:, 0]
            low.append(here)
            here = torch.zeros(m, k)
            here[column] = bounds[:, 1] - bounds[:, 0]
            reach.append(here)
            width += k
        self.low, self.reach = nn.Linear(width, m), nn.Linear(width, m)
        _filled(self.low, torch.cat(low, dim=1))
        _filled(self.reach, torch.cat(reach, dim=1))
        self.step = nn.Hardtanh(0.0, 1.0)
        self.requires_grad_(False)

    def forward(self, z: Tensor) -> Tensor:
        """(b, 2 columns + C) to (b, columns)."""
        seen, places = (self._uniform(layer(z)) for layer in self.uniform)
        for score, step, chosen in zip(self.scores, self.steps, self.bins, strict=True):
            chances = torch.softmax(score(seen), dim=-1)
            seen = torch.cat([seen, chosen(self.step(step(torch.cat([chances, seen], dim=1))))], dim=1)
        made: Tensor = self.low(seen) + self.reach(seen) * places
        return made

    @staticmethod
    def _uniform(z: Tensor) -> Tensor:
        """A standard normal number's distribution function: gelu(z) = z P(Z <= z)."""
        apart = z + _NOWHERE
        return functional.gelu(apart) / apart


def _filled(layer: nn.Module, weight: Tensor, bias: Tensor | None = None) -> None:
    assert isinstance(layer, nn.Linear)
    with torch.no_grad():
        layer.weight.copy_(weight)
        layer.bias.copy_(torch.zeros_like(layer.bias) if bias is None else bias)
