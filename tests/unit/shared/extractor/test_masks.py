"""Comparisons, and what is made of them: masks, selection, filling; products of groups."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from dpswd.public_client.extractor.tracing import module_weights, trace, validate
from dpswd.shared.core.errors import InvalidValue
from dpswd.shared.sandbox import steady
from dpswd.shared.sandbox.building import Extractor, check_row_independence


class Net(nn.Module):
    def __init__(self, after):
        super().__init__()
        self.after = after
        self.layer = nn.Linear(4, 4)
        self.out = nn.Linear(4, 3)
        self.register_buffer("bounds", torch.tensor([0.0, -0.5, 0.25, 1.0]))

    def forward(self, x):
        return self.after(self, x)


def of(module, shape):
    graph = trace(module.eval(), shape)
    return Extractor(graph, module_weights(module, graph))


NUMBERS = torch.tensor(
    [[0, -0.5, 0.25, 1], [1, 2, -3, 0.5], [math.nan, 0, math.nan, -math.inf], [3e38, -3e38, 1e-30, math.inf]]
)


@pytest.mark.parametrize(
    "after",
    [
        lambda m, x: (x < m.bounds).float(),
        lambda m, x: (x <= m.bounds).to(x.dtype),
        lambda m, x: (m.bounds < x).float(),
        lambda m, x: torch.ge(x, m.bounds).float(),
        lambda m, x: (x > 0.25).float() + (x < 0.25).float() + 2 * torch.eq(x, 0.25).float(),
        lambda m, x: x.ge(0.5).float() + (x <= 0.5).float(),
        lambda m, x: (x != m.bounds).float() + (x.eq(1.0)).float(),
        lambda m, x: torch.isnan(x).float(),
        lambda m, x: (~(x < 0) & (x < 1) | (x == -0.5)).float(),
        lambda m, x: torch.nan_to_num(x, nan=0.5),
        lambda m, x: torch.where(x > 0, m.bounds, torch.nan_to_num(x).clamp(-1, 1)),
        lambda m, x: torch.softmax(torch.nan_to_num(x).clamp(-5, 5).masked_fill(x == 0.0, -math.inf), dim=-1),
        lambda m, x: torch.log(torch.nan_to_num(x).clamp(1e-3, 1e3)),
    ],
)
def test_a_comparison_is_torch_s_for_missing_and_infinite_numbers_too(after):
    extractor = of(Net(after), (4,))
    check_row_independence(extractor)
    torch.testing.assert_close(extractor.features(NUMBERS), Net(after)(NUMBERS).detach(), rtol=2e-6, atol=1e-30)


def test_no_gradient_passes_a_comparison_and_a_declaration_says_so():
    module = Net(lambda m, x: m.out((m.layer(x) < m.bounds).float()))
    extractor = of(module, (4,))
    assert set(extractor.graph.learnable) == {"out.weight", "out.bias"}
    with pytest.raises(InvalidValue, match=r"no gradient reaches \['layer.weight'\]: an embedding or a comparison"):
        extractor.begin(torch.randn(2, 4), ["out.bias", "layer.weight"])
    check_row_independence(extractor)
    forward = extractor.begin(torch.randn(2, 4), ["out.bias"])
    assert forward.gradients(torch.ones(2, 3)).eq(1.0).all()


def test_a_parameter_that_is_also_used_behind_a_comparison_learns():
    module = Net(lambda m, x: m.layer((m.layer(x) < 0.5).float()))
    assert set(of(module, (4,)).graph.learnable) == {"layer.weight", "layer.bias"}


def test_a_comparison_of_the_batch_size_is_refused():
    (problem,) = validate(Net(lambda m, x: x * (x.size(0) == 2)).eval(), (4,))
    assert "mul of these operands" in str(problem)


def test_the_logarithm_and_its_ends():
    x = torch.logspace(-30, 30, 500).requires_grad_()
    torch.testing.assert_close(steady.log(x), torch.log(x))
    torch.testing.assert_close(torch.autograd.grad(steady.log(x).sum(), x)[0], 1.0 / x.detach())
    ends = steady.log(torch.tensor([0.0, -1.0, 1e-41, math.inf, math.nan]))
    assert ends.isfinite().all()
    assert ends[:3].unique().numel() == 1


@pytest.mark.parametrize("bias", [False, True])
def test_products_of_groups_and_their_gradients_are_the_convolution_s(bias):
    torch.manual_seed(0)
    first, second = nn.Conv1d(12, 8, 1, groups=4, bias=bias), nn.Conv1d(8, 8, 1, groups=2, bias=bias)
    module = nn.Sequential(nn.Unflatten(1, (12, 1)), first, nn.Tanh(), second, nn.Flatten(), nn.Linear(8, 3))
    extractor, records = of(module, (12,)), torch.randn(5, 12)
    check_row_independence(extractor)
    names = list(extractor.graph.parameter_shapes)
    forward = extractor.begin(records, names)
    torch.testing.assert_close(forward.outputs, module(records).detach())
    own = forward.gradients(torch.ones_like(forward.outputs))
    for i in range(5):
        expected = torch.autograd.grad(module(records[i : i + 1]).sum(), [module.get_parameter(name) for name in names])
        torch.testing.assert_close(own[i], torch.cat([gradient.flatten() for gradient in expected]))
    public = records.clone().requires_grad_()
    shared = torch.func.vmap(lambda record: extractor._run(record, extractor.weights))  # parameters that none adapts
    mine, torch_s = (torch.autograd.grad(f(public).sum(), public)[0] for f in (shared, module))
    torch.testing.assert_close(mine, torch_s)
