"""A logistic law of one column's bins, given bins that were drawn before; and rows drawn by one law after another.

The law of a column has a weight for each of its bins with each bin drawn before, so that its chances are

    softmax(weight x + bias),  x the zeros and ones of the bins drawn before.

It is solved for what was released: over rows that were drawn by the laws before it, the expected shares of its bins,
and of its bins with each other bin, are brought to the released ones, each residual in units of its known noise, and
weights start at 0 with a known deviation. What noise hides therefore stays independent. Laws of maximal entropy with
given pairs have this form when the last column is drawn; drawing one after another needs no sampler that has to mix.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from dpswd.public_client.generation.schema import Schema

_STEEP = 1e6
"""Of a step from 0 to 1, in units of what it divides: one value in a million falls on each of them and is snapped."""
_LEAST = 1e-4
"""Of a share, where a law begins."""
_NOWHERE = 1e-12
"""Keeps a normal number of exactly 0 from being divided by; no other in single precision is changed that matters."""
Values = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Law:
    """Chances of k bins given d bins before.

    Attributes:
        weight: (k, d).
        bias: (k,).
    """

    weight: Tensor
    bias: Tensor

    def cpu(self) -> Law:
        """The same on the CPU."""
        return Law(self.weight.cpu(), self.bias.cpu())


@dataclass(frozen=True, eq=False)
class ReleasedShares:
    """What was released of a column with k bins, as shares of the records, and the variance of the noise on it.

    Attributes:
        own: (k,) of its bins.
        own_noise: on each of them.
        pairs: (k, d) of its bins with those before.
        pairs_noise: on each of them.
        records: n.
    """

    own: Values
    own_noise: float
    pairs: Values
    pairs_noise: float
    records: float

    def residuals(self, rows: Tensor) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        """Shares and the variance of each, of the noise and of sampling n records, on the device of `rows`."""

        def parts(shares: Values, noise: float) -> tuple[Tensor, Tensor]:
            own = torch.from_numpy(shares).to(rows)
            return own, noise + own.clamp(0.0, 1.0) / self.records

        return parts(self.own, self.own_noise), parts(self.pairs, self.pairs_noise)


def solved(released: ReleasedShares, rows: Tensor, *, deviation: float, updates: int) -> Law:
    """The law whose expected shares over `rows` (r, d) of zeros and ones are nearest to the wanted ones.

    Args:
        released: of the column.
        rows: bins drawn before.
        deviation: of a weight, before anything is known.
        updates: of the descent (limited-memory BFGS), at most.
    """
    (own, own_spread), (pairs, pairs_spread) = released.residuals(rows)
    weight = torch.zeros(pairs.shape, device=rows.device, requires_grad=True)
    bias = own.clamp(min=_LEAST).log().requires_grad_()
    optimizer = torch.optim.LBFGS([weight, bias], max_iter=updates, history_size=20, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        chances = torch.softmax(rows @ weight.T + bias, dim=1)
        misfit = ((chances.mean(dim=0) - own).square() / own_spread).sum()
        misfit = misfit + ((chances.T @ rows / len(rows) - pairs).square() / pairs_spread).sum()
        cost: Tensor = 0.5 * (misfit + weight.square().sum() / deviation**2)
        cost.backward()  # type: ignore[no-untyped-call]
        return cost

    optimizer.step(loss)  # type: ignore[no-untyped-call]
    return Law(weight.detach(), bias.detach())


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
