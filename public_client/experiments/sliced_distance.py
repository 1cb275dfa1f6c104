"""The sliced Wasserstein distance (Rabin et al. 2011; Bonneel et al. 2015), without noise."""

from __future__ import annotations

from torch import Tensor

from dpswd.public_client.data.sliced_distances import wasserstein_1d


def sliced_wasserstein(x: Tensor, y: Tensor, U: Tensor, *, p: float = 2.0) -> Tensor:
    """SW_p^p along given directions: the mean over directions of the projected samples' W_p^p.

    Args:
        x: (n, d).
        y: (m, d), m may differ from n.
        U: (d, k) unit columns.
        p: exponent of the cost, at least 1.

    Returns:
        Scalar, the p-th power of the distance; differentiable in x and y.

    Raises:
        InvalidValue: the shapes or p are outside what is allowed.
    """
    return wasserstein_1d(x @ U, y @ U, p=p).mean()
