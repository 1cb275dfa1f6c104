"""Adapters start as the identity, do what they say, and travel as layers like others."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.autograd import gradcheck
from torch.func import vmap

from dpswd.public_client.extractor.adapter_layers import (
    AffineWarp2d,
    ChannelAffine,
    FeatureAffine,
)
from dpswd.shared.sandbox.adapters import affine_warp2d_record


@pytest.mark.parametrize(
    ("adapter", "shape"),
    [
        (AffineWarp2d(), (2, 7, 5)),
        (ChannelAffine(2), (2, 7, 5)),
        (ChannelAffine(3), (3,)),
        (FeatureAffine(4), (4,)),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else None,
)
def test_each_adapter_starts_as_the_identity(adapter, shape):
    x = torch.randn(3, *shape, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(adapter(x), x, rtol=1e-5, atol=1e-5)


def test_a_warp_reads_where_theta_points():
    image = torch.arange(20.0).reshape(1, 1, 4, 5)
    warp = AffineWarp2d()
    with torch.no_grad():
        warp.theta[0, 2] = 2 / 5  # one pixel of five, in units of half a side
        shifted = warp(image)
        torch.testing.assert_close(shifted[..., :4], image[..., 1:], rtol=1e-5, atol=1e-4)
        torch.testing.assert_close(shifted[..., 4], image[..., 4], rtol=1e-5, atol=1e-4)  # the border repeats
        warp.theta.copy_(torch.tensor([[-1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]))
        torch.testing.assert_close(warp(image), image.flip(-1), rtol=1e-5, atol=1e-4)


THETAS = {
    "identity": [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]],
    "turned": [[0.0, 1.0, 0.0], [-1.0, 0.0, 0.0]],
    "skewed": [[1.0, 0.7, 0.1], [-0.4, 0.8, 0.2]],
    "huge": [[3e5, -1e4, 7.0], [2e5, 1e6, 0.1]],
    "tiny": [[1e-9, 0.0, 1e-12], [0.0, 1e-20, 0.3]],
}


@pytest.mark.parametrize("name", THETAS)
def test_the_curator_s_products_resample_as_the_client_s_grid(name):
    """Two derivations of one function: dense products, and torch's look-up of four pixels; gradients included."""
    images = torch.randn(5, 2, 7, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    theta = torch.tensor(THETAS[name], dtype=torch.float64, requires_grad=True)
    client = AffineWarp2d().double()
    with torch.no_grad():
        client.theta.copy_(theta)
    ours = vmap(lambda image: affine_warp2d_record(image, theta))(images)
    torch.testing.assert_close(ours, client(images))
    weights = torch.randn(ours.shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    (slope,) = torch.autograd.grad((ours * weights).sum(), theta)
    (expected,) = torch.autograd.grad((client(images) * weights).sum(), client.theta)
    torch.testing.assert_close(slope, expected)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 3e38])
def test_a_warp_to_no_place_at_all_ends_no_process(value):
    """Attack: torch's resampling of a grid that holds NaN wrote outside of its memory, backwards."""
    theta = torch.full((2, 3), value, requires_grad=True)
    client = AffineWarp2d()
    with torch.no_grad():
        client.theta.fill_(value)
    image = torch.randn(2, 4, 4, generator=torch.Generator().manual_seed(0), requires_grad=True)
    for out in (affine_warp2d_record(image, theta), client(image[None])[0]):
        assert torch.isfinite(out).all()
        out.sum().backward()


def test_gradients_of_the_functions_are_right_under_vmap():
    """Finite differences in double precision, away from the kinks."""
    generator = torch.Generator().manual_seed(0)
    image = torch.randn(2, 6, 5, generator=generator, dtype=torch.float64)
    theta = torch.tensor([[0.83, 0.11, 0.07], [-0.13, 0.91, 0.05]], dtype=torch.float64, requires_grad=True)
    assert gradcheck(lambda t: affine_warp2d_record(image, t), (theta,))
    assert gradcheck(lambda t: vmap(lambda own: affine_warp2d_record(image, own))(torch.stack((t, t * 0.9))), (theta,))
