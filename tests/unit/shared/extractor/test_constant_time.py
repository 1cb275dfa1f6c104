"""No word's time can depend on numbers by form: what each is lowered to, forwards and backwards, is read here.

Under `make_fx` a word becomes the list of kernels that torch runs. Each of them must be one whose work is fixed by
shapes (`STEADY`), or read and write memory at places that no number of the record and no parameter decided (`PLACES`);
and the list must be the same for parameters of every kind, so that nothing branches on a value. That the kernels of
`STEADY` take one time is what `python -m benchmarks.operation_times --check` measures.
"""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch
from torch.func import vmap
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional

from benchmarks.operation_times import CASES, PARAMETERS, weights_of
from dpswd.shared.sandbox.adapters import affine_grid
from dpswd.shared.sandbox.vocabulary import VOCABULARY

STEADY = frozenset(
    re.findall(r"\w+", """
    _adaptive_avg_pool2d _adaptive_avg_pool2d_backward _to_copy _unsafe_view abs add addmm amax arange avg_pool2d
    avg_pool2d_backward bmm cat clone constant_pad_nd convolution convolution_backward cos detach div eq exp2 expand
    expm1 floor gelu gelu_backward getitem hardsigmoid hardsigmoid_backward hardswish hardswish_backward hardtanh
    hardtanh_backward le leaky_relu leaky_relu_backward lift_fresh_copy log log1p lt mm mul nan_to_num
    native_layer_norm native_layer_norm_backward ne neg new_zeros permute pow relu round rsqrt rsub select
    select_backward sigmoid sigmoid_backward silu silu_backward sin slice slice_backward split squeeze squeeze_
    stack sub sum t threshold_backward transpose unbind unsqueeze view zeros_like
    """)
)  # fmt: skip
PLACES = {"gather": 2, "scatter_add": 2, "index_select": 2}
"""Kernels that look something up, and where their argument of places is."""
SHORT = {"rnn", "rnn_relu", "gru", "lstm"}
"""Words whose list has a part for each step of a sequence; two steps say what more would."""
VALUES = ("identity",), ("tiny parameters", "turned", "skewed", "huge parameters")


def of(name):
    return next(case for case in CASES if case.operation == name)


def lowered(case, operation, *, backward, values):
    """The kernels of a word under vmap, as (name, what is fixed of its arguments, whether numbers choose its places).

    `values` fills the parameters. Forwards all records share them, as in an extraction; backwards each has its own.
    """
    shapes = tuple((2, *shape[1:]) for shape in case.shapes) if case.operation in SHORT else case.shapes
    generator = torch.Generator().manual_seed(0)
    weights = weights_of(case, generator, operation)
    names = list(operation.parameters(case.attributes))
    fixed = {name: tensor for name, tensor in weights.items() if name not in names}
    inputs = [torch.randn(2, *shape, generator=generator) for shape in shapes]
    own = [values(weights[name]) for name in names]

    def one(record, tensors):
        return operation.apply(record, case.attributes, {**fixed, **dict(zip(names, tensors, strict=True))})

    def forward(inputs, own):
        return vmap(one, in_dims=(0, None))(inputs, own)

    def both(inputs, own, incoming):
        leaves = [tensor.requires_grad_() for tensor in (*inputs, *own)]
        return torch.autograd.grad(vmap(one)(inputs, own), leaves, incoming, allow_unused=True)

    if not backward:
        return read(make_fx(forward)(inputs, own))
    own = [tensor.expand(2, *tensor.shape).contiguous() for tensor in own]
    return read(make_fx(both)(inputs, own, torch.ones_like(vmap(one)(inputs, own))))


def read(program):
    met, kernels = set(), []  # nodes that depend on a record, a parameter or a cotangent
    for node in program.graph.nodes:
        if node.op == "placeholder" or any(source in met for source in node.all_input_nodes):
            met.add(node)
        if node.op == "call_function":
            name = getattr(node.target, "overloadpacket", node.target).__name__
            place = PLACES.get(name)
            chosen = place is not None and node.args[place] in met
            stated = [None if isinstance(value, torch.fx.Node) else repr(value) for value in node.args]
            kernels.append((name, tuple(stated), chosen))
    return kernels


def unsteady(kernels):
    return {name for name, _, chosen in kernels if chosen or name not in STEADY | set(PLACES)}


def passes(case, operation):
    """Whether gradients are taken: of what has some."""
    return (False, True) if operation.differentiable or operation.parameters(case.attributes) else (False,)


@pytest.mark.parametrize("kinds", [VALUES[0], pytest.param(VALUES[1], marks=pytest.mark.exhaustive)], ids=", ".join)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_word_is_lowered_to_kernels_of_one_time(case, kinds):
    operation = VOCABULARY[case.operation]
    for backward in passes(case, operation):
        plain = lowered(case, operation, backward=backward, values=lambda tensor: tensor)
        assert not unsteady(plain)
        if operation.parameters(case.attributes):
            for kind in kinds:
                assert lowered(case, operation, backward=backward, values=PARAMETERS[kind]) == plain, kind


def _looked_up(x, _at, w):
    grid = affine_grid(w["theta"], *x[0].shape[1:])
    return functional.grid_sample(x[0][None], grid[None], padding_mode="border", align_corners=False)[0]


def _branching(x, at, w):
    if torch.equal(w["theta"], torch.eye(2, 3)):
        return x[0] + 0.0
    return VOCABULARY["affine_warp2d"].apply(x, at, w)


def _row(x, _at, w):
    return w["weight"][x[0].to(torch.int64)]


def _chosen(x, _at, _w):
    return torch.gather(x[0], 0, (x[1] > 0).to(torch.int64)[:, None].expand(-1, 8))


def _conditional(x, _at, w):
    return torch.where(x[0] > 0, x[0], w["weight"][0] * x[0])


PLANTED = {
    "four pixels where theta points": ("affine_warp2d", _looked_up, "grid_sampler_2d"),
    "a row of a table": ("embedding", _row, "index"),
    "places that a record chose": ("look_up", _chosen, "gather"),
    "a condition on each number": ("prelu", _conditional, "where"),
    "an order": ("feature_affine", lambda x, _at, w: x[0].sort().values + w["bias"], "sort"),
}


@pytest.mark.parametrize("planted", PLANTED)
def test_a_planted_dependence_is_detected(planted):
    name, apply, kernel = PLANTED[planted]
    operation = replace(VOCABULARY[name], apply=apply)
    assert kernel in unsteady(lowered(of(name), operation, backward=False, values=lambda tensor: tensor))


def test_a_planted_branch_on_a_parameter_is_detected():
    """Attack: a warp by nothing is free."""
    operation = replace(VOCABULARY["affine_warp2d"], apply=_branching)
    with pytest.raises(Exception, match=r"data.dependent|Data.dependent|item\(\)|local_scalar"):
        lowered(of("affine_warp2d"), operation, backward=False, values=PARAMETERS["identity"])
