"""What a curator would answer for features that are no secret, with noise of a fixed seed, and what is left to fit."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from dpswd.public_client.data.feature_maps import map_from_source
from dpswd.public_client.replay.residuals import Residuals
from dpswd.shared.core.mechanisms.quantiles.coefficients import cosine_basis
from dpswd.shared.core.mechanisms.sliced import SlicedReply
from dpswd.shared.core.noise.directions import directions
from dpswd.shared.core.noise.feature_map import FeatureMap
from dpswd.shared.core.noise.noise import GridArray, grid_step

SEED = bytes(range(32))


def on_grid(values: np.ndarray, sigma: float) -> GridArray:
    """Values as they are released, on the grid of their noise."""
    step = grid_step(sigma)
    return GridArray(np.rint(values / step).astype(np.int32), step)


def released(target: torch.Tensor, feature_map: FeatureMap, *, sigma: float, k: int = 40, L: int = 3) -> SlicedReply:
    """What a curator would answer for target features (n, d), with Gaussian noise of a fixed seed."""
    U = directions(SEED, target.shape[1], k)
    ordered = (feature_map.clipped(target) @ U).double().sort(dim=0).values
    noise = np.random.default_rng(3).normal(scale=sigma, size=(L, k))
    values = (cosine_basis(len(target), L).T @ ordered).numpy() + noise
    return SlicedReply(SEED, on_grid(values, sigma))


def residuals_of(target: torch.Tensor, source: torch.Tensor, *, sigma: float, **wishes: Any) -> Residuals:
    feature_map = map_from_source(source, target_norm=0.25)
    release = released(target, feature_map, sigma=sigma, **wishes)
    return Residuals([release], like=source, feature_map=feature_map, batch=len(target), sigma=sigma)
