"""The semi-debiased Sinkhorn loss of DP-Sinkhorn (Cao and others, NeurIPS 2021, section 4.2).

The generator draws n + n' points, n' = p n for a mixture fraction p. The first n, X, are compared with the data Y; what
they are compared with among themselves, X', are the last n of all:

    L = 2 W(X, Y) - W(X, X').

At p = 0, X' = X, and the loss is the Sinkhorn divergence of the batches, less W(Y, Y), which the generator cannot move:
it varies little, and is biased. At p = 1, X' is drawn anew, without bias and with more variance.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from dpswd.shared.published_mechanisms.sinkhorn.transport import sinkhorn


def labelled_points(points: Tensor, labels: Tensor, *, classes: int, weight: float) -> Tensor:
    """Points (m, d) with their labels (m,) appended, one-hot times a weight: (m, d + classes)."""
    kinds = functional.one_hot(labels, classes).to(points)
    return torch.cat([points, weight * kinds], dim=1)


def semi_debiased(generated: Tensor, data: Tensor, *, fresh: int, l1: float, blur: float, iterations: int) -> Tensor:
    """L of generated and real points.

    Args:
        generated: (n + n', d); may require gradients.
        data: (b, d).
        fresh: n', from 0 to n.
        l1: see `ground_cost`.
        blur: see `coupling`.
        iterations: of each of the two couplings.

    Returns:
        Scalar; differentiable in `generated`.
    """
    count = len(generated) - fresh
    options = {"l1": l1, "blur": blur}
    towards = sinkhorn(generated[:count], data, iterations=iterations, **options)
    among = sinkhorn(generated[:count], generated[fresh:], iterations=iterations, **options)
    return 2.0 * towards - among
