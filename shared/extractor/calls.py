"""Which function, operator or tensor method of a traced program is lowered how, and what to use for the others."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.nn import functional

from shared.extractor.functions import (
    Function,
    adaptive_pool,
    avg_pool,
    binary,
    clamp,
    dropout,
    elu,
    gelu,
    hardtanh,
    keep,
    leaky_relu,
    max_pool,
    negative,
    plain,
    relu6,
    softplus,
)
from shared.extractor.views import (
    attribute,
    concatenate,
    flatten,
    item,
    side_reduction,
    size,
    squeeze,
    unflatten,
    unsqueeze,
    view,
)


def _functions() -> dict[Any, Function]:
    table: dict[Any, Function] = {
        functional.relu6: relu6,
        functional.leaky_relu: leaky_relu,
        functional.elu: elu,
        functional.gelu: gelu,
        functional.softplus: softplus,
        functional.hardtanh: hardtanh,
        torch.clamp: clamp,
        torch.clamp_min: lambda builder, input, min: clamp(builder, input, min),  # noqa: A006
        functional.dropout: dropout,
        functional.dropout1d: dropout,
        functional.dropout2d: dropout,
        torch.dropout: lambda builder, input, p, train: dropout(builder, input, p, train),  # noqa: A006
        torch.mean: side_reduction("avg"),
        torch.amax: side_reduction("max"),
        torch.flatten: flatten,
        torch.reshape: view,
        torch.squeeze: squeeze,
        torch.unsqueeze: unsqueeze,
        torch.cat: concatenate,
        torch.concat: concatenate,
        torch.concatenate: concatenate,
        operator.neg: negative,
        torch.neg: negative,
        getattr: attribute,
        operator.getitem: item,
    }
    for name in ("relu", "selu", "silu", "mish", "tanh", "sigmoid", "hardswish", "hardsigmoid"):
        for home in (functional, torch):
            if hasattr(home, name):  # names from this tuple, never from outside
                table[getattr(home, name)] = plain(name)
    for name in ("add", "sub", "mul", "truediv", "floordiv"):
        table[getattr(operator, name)] = binary(name)
    table.update({torch.add: binary("add"), torch.sub: binary("sub"), torch.mul: binary("mul")})
    table.update({torch.div: binary("truediv"), operator.iadd: binary("add"), operator.imul: binary("mul")})
    pools: tuple[tuple[Any, Function], ...] = (
        (functional.max_pool1d, max_pool(1)),
        (functional.max_pool2d, max_pool(2)),
        (torch.max_pool1d, max_pool(1)),
        (torch.max_pool2d, max_pool(2)),
        (functional.avg_pool1d, avg_pool(1)),
        (functional.avg_pool2d, avg_pool(2)),
        (functional.adaptive_avg_pool1d, adaptive_pool(1, "avg")),
        (functional.adaptive_avg_pool2d, adaptive_pool(2, "avg")),
        (functional.adaptive_max_pool1d, adaptive_pool(1, "max")),
        (functional.adaptive_max_pool2d, adaptive_pool(2, "max")),
    )
    table.update(dict(pools))
    return table


FUNCTIONS: dict[Any, Function] = _functions()
"""How each function that a forward method may call is lowered."""

METHODS: dict[str, Function] = {
    "relu": plain("relu"),
    "relu_": plain("relu"),
    "tanh": plain("tanh"),
    "sigmoid": plain("sigmoid"),
    "flatten": flatten,
    "unflatten": unflatten,
    "view": view,
    "reshape": view,
    "squeeze": squeeze,
    "unsqueeze": unsqueeze,
    "mean": side_reduction("avg"),
    "amax": side_reduction("max"),
    "clamp": clamp,
    "size": size,
    "contiguous": keep,
    "float": keep,
    "clone": keep,
    "neg": negative,
    "add": binary("add"),
    "add_": binary("add"),
    "sub": binary("sub"),
    "mul": binary("mul"),
    "div": binary("truediv"),
}
"""How each tensor method is lowered."""

_LATER = "end the extractor before it: it belongs to the classifier, which stays with you"
_LAYER = "call a layer that owns the weights, such as nn.Linear or nn.Conv2d"
_WHOLE = "use layers that treat a record as a whole, such as nn.Linear and nn.Conv2d"
INSTEAD: dict[str, str] = {
    "softmax": _LATER,
    "log_softmax": _LATER,
    "cross_entropy": _LATER,
    "linear": _LAYER,
    "conv1d": _LAYER,
    "conv2d": _LAYER,
    "matmul": _LAYER,
    "bmm": _LAYER,
    "mm": _LAYER,
    "einsum": _LAYER,
    "batch_norm": "use nn.BatchNorm2d in eval mode, or nn.GroupNorm",
    "group_norm": "use nn.GroupNorm",
    "layer_norm": "use nn.LayerNorm",
    "normalize": "use nn.LayerNorm; each record is clipped after the extractor anyway",
    "interpolate": "an extractor only shrinks its input: leave upsampling out",
    "permute": _WHOLE,
    "transpose": _WHOLE,
    "chunk": _WHOLE,
    "split": _WHOLE,
    "stack": "use torch.cat along dim=1",
    "stochastic_depth": "replace the StochasticDepth layers by nn.Identity(), which they are in eval mode",
    "detach": "leave it out: gradients are taken for the declared parameters only",
    "rand_like": "an extractor is deterministic: leave randomness out",
    "randn_like": "an extractor is deterministic: leave randomness out",
}
"""What to use in the place of well-known functions and methods, by name."""
