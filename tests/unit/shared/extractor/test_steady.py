"""The forms whose time does not depend on numbers compute what torch's own functions do, gradients included."""

from __future__ import annotations

import math

import pytest
import torch
from exploring import tried
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch.func import vmap
from torch.nn import functional

from dpswd.shared.sandbox import steady
from dpswd.shared.sandbox.operations import pooled

ELEMENTWISE = {
    "elu": (lambda x: steady.elu(x, 1.7), lambda x: functional.elu(x, 1.7)),
    "selu": (steady.selu, functional.selu),
    "tanh": (steady.tanh, torch.tanh),
    "softplus": (lambda x: steady.softplus(x, 1.0, 20.0), functional.softplus),
    "softplus, steep": (lambda x: steady.softplus(x, 50.0, 1.0), lambda x: functional.softplus(x, 50.0, 1.0)),
    "mish": (steady.mish, functional.mish),
}


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_an_activation_and_its_gradient_are_torch_s(name):
    ours, theirs = ELEMENTWISE[name]
    z = torch.randn(4000, generator=torch.Generator().manual_seed(0))
    for scale in (1e-6, 1e-2, 1.0, 5.0, 200.0):
        x = (scale * z).requires_grad_()
        torch.testing.assert_close(ours(x), theirs(x), rtol=2e-5, atol=2e-6)
        actual, expected = (torch.autograd.grad(function(x).sum(), x)[0] for function in (ours, theirs))
        torch.testing.assert_close(actual, expected, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_the_ends_of_the_numbers_are_torch_s(name):
    ours, theirs = ELEMENTWISE[name]
    x = torch.tensor([0.0, 3e38, -3e38, math.inf, math.nan, 100.0, -100.0, 1e-30])
    torch.testing.assert_close(ours(x), theirs(x), equal_nan=True)


def test_the_cosine_is_torch_s_and_finite_everywhere():
    """Rounding turns of float32 numbers costs what the argument's own rounding does."""
    z = torch.randn(4000, generator=torch.Generator().manual_seed(0))
    for scale in (1e-6, 1e-2, 1.0, 5.0, 200.0):
        x = (scale * z).requires_grad_()
        torch.testing.assert_close(steady.cos(x), torch.cos(x.double()).float(), rtol=0.0, atol=2e-6 + scale * 1e-6)
        (slope,) = torch.autograd.grad(steady.cos(x).sum(), x)
        torch.testing.assert_close(slope, -torch.sin(x.double()).float(), rtol=0.0, atol=2e-6 + scale * 1e-6)
    odd = torch.tensor([math.inf, -math.inf, math.nan])
    torch.testing.assert_close(steady.cos(odd), torch.ones(3))
    assert steady.cos(torch.tensor([3e38, -3e38, 1e10])).abs().max() <= 1.0


sides = st.tuples(st.integers(1, 9), st.integers(1, 9))
pairs = st.tuples(st.integers(1, 4), st.integers(1, 4))


@settings(max_examples=tried(80), deadline=None)
@given(
    side=sides,
    kernel=pairs,
    stride=pairs,
    padding=pairs,
    dilation=pairs,
    ceil=st.booleans(),
    channels_last=st.booleans(),
)
@pytest.mark.long
def test_windows_of_maxima_are_torch_s(side, kernel, stride, padding, dilation, ceil, channels_last):
    padding = tuple(p - 1 for p in padding)
    assume(all(2 * p <= k for p, k in zip(padding, kernel, strict=True)))
    columns = zip(side, kernel, stride, padding, dilation, strict=True)
    assume(all(length + 2 * p >= d * (k - 1) + 1 for length, k, s, p, d in columns))
    sizes = tuple(
        pooled(length, kernel=k, stride=s, padding=p, dilation=d, ceil_mode=ceil)
        for length, k, s, p, d in zip(side, kernel, stride, padding, dilation, strict=True)
    )
    window = {"kernel_size": kernel, "stride": stride, "padding": padding, "dilation": dilation}
    x = torch.randn(2, 3, *side)
    if channels_last:
        x = x.contiguous(memory_format=torch.channels_last)
    x.requires_grad_()
    expected = functional.max_pool2d(x, kernel, stride, padding, dilation, ceil)
    actual = vmap(lambda r: steady.max_pool(r, **window, sizes=sizes))(x)
    assert torch.equal(actual, expected)
    assume(bool(expected.isfinite().all()))  # torch's own kernel writes outside of its memory for windows of padding
    cotangent = torch.randn_like(expected)
    ours, theirs = (torch.autograd.grad(out, x, cotangent)[0] for out in (actual, expected))
    torch.testing.assert_close(ours, theirs)  # random numbers: no window has two equal maxima


@settings(max_examples=tried(40), deadline=None)
@given(side=sides, size=sides)
def test_adaptive_windows_of_maxima_are_torch_s(side, size):
    x = torch.randn(2, 3, *side, requires_grad=True)
    expected = functional.adaptive_max_pool2d(x, size)
    actual = vmap(lambda r: steady.adaptive_max_pool(r, size))(x)
    assert torch.equal(actual, expected)
    cotangent = torch.randn_like(expected)
    ours, theirs = (torch.autograd.grad(out, x, cotangent)[0] for out in (actual, expected))
    torch.testing.assert_close(ours, theirs)


def test_equal_maxima_share_the_gradient_and_a_missing_number_spreads():
    x = torch.tensor([[1.0, 1.0, 0.0, math.nan]], requires_grad=True)
    pooled_x = steady.max_pool(x, kernel_size=(2,), stride=(2,), padding=(0,), dilation=(1,), sizes=(2,))
    assert pooled_x[0, 0] == 1
    assert pooled_x[0, 1].isnan()
    assert torch.autograd.grad(pooled_x[0, 0], x)[0][0, :2].tolist() == [0.5, 0.5]


def test_a_window_that_lies_in_the_padding_alone_writes_nowhere():
    """Attack: torch's own pool gave such a window a place outside of the image, and wrote there backwards."""
    window = {"kernel_size": (2, 2), "stride": (1, 1), "padding": (1, 1), "dilation": (2, 2)}
    x = torch.randn(4, 3, 1, 1, requires_grad=True)
    out = vmap(lambda r: steady.max_pool(r, **window, sizes=(1, 1)))(x)
    assert out.eq(-math.inf).all()
    assert torch.autograd.grad(out, x, torch.ones_like(out))[0].eq(0).all()
