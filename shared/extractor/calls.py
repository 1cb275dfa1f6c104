"""Which function, operator or tensor method of a traced program is lowered how, and what to use for the others."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.nn import functional

from shared.extractor import functions as f
from shared.extractor import views

_PLAIN = ("relu", "selu", "silu", "mish", "tanh", "sigmoid", "hardswish", "hardsigmoid", "cos")
_ARITHMETIC = ("add", "sub", "mul", "truediv", "floordiv")

FUNCTIONS: dict[Any, f.Function] = {
    # Names from this table, never from outside.
    **{
        getattr(place, name): f.activation(name)
        for name in _PLAIN
        for place in (functional, torch)
        if hasattr(place, name)
    },
    functional.relu6: f.activation("hardtanh", min_val=0.0, max_val=6.0),
    functional.hardtanh: f.activation("hardtanh", min_val=-1.0, max_val=1.0),
    functional.leaky_relu: f.activation("leaky_relu", negative_slope=0.01),
    functional.elu: f.activation("elu", alpha=1.0),
    functional.gelu: f.gelu,
    functional.softplus: f.activation("softplus", beta=1.0, threshold=20.0),
    torch.clamp: f.clamp,
    torch.clamp_min: lambda builder, input, min: f.clamp(builder, input, min),
    **dict.fromkeys((functional.dropout, functional.dropout1d, functional.dropout2d, torch.dropout), f.keep),
    **{getattr(place, f"max_pool{n}d"): f.max_pool(n) for n in (1, 2) for place in (functional, torch)},
    **{getattr(functional, f"avg_pool{n}d"): f.avg_pool(n) for n in (1, 2)},
    **{getattr(functional, f"adaptive_{g}_pool{n}d"): f.adaptive_pool(g, n) for g in ("avg", "max") for n in (1, 2)},
    torch.mean: views.side_reduction("avg"),
    torch.amax: views.side_reduction("max"),
    torch.flatten: views.flatten,
    torch.reshape: views.view,
    torch.squeeze: views.squeeze,
    torch.unsqueeze: views.unsqueeze,
    **dict.fromkeys((torch.cat, torch.concat, torch.concatenate), views.concatenate),
    **{getattr(operator, name): f.binary(name) for name in _ARITHMETIC},
    **{getattr(torch, name): f.binary(name) for name in ("add", "sub", "mul")},
    torch.div: f.binary("truediv"),
    operator.iadd: f.binary("add"),
    operator.imul: f.binary("mul"),
    **dict.fromkeys((operator.neg, torch.neg), f.negative),
    getattr: views.attribute,
    operator.getitem: views.item,
}
"""How each function that a forward method may call is lowered."""

METHODS: dict[str, f.Function] = {
    **{name: FUNCTIONS[getattr(torch, name)] for name in ("relu", "tanh", "sigmoid", "cos", "clamp", "mean", "amax")},
    **{name: FUNCTIONS[getattr(torch, name)] for name in ("flatten", "reshape", "squeeze", "unsqueeze")},
    **{name: FUNCTIONS[getattr(torch, name)] for name in ("neg", "add", "sub", "mul", "div")},
    "relu_": f.activation("relu"),
    "add_": f.binary("add"),
    "view": views.view,
    "unflatten": views.unflatten,
    "size": views.size,
    **dict.fromkeys(("contiguous", "float", "clone"), f.keep),
}
"""How each tensor method is lowered."""

_LATER = "end the extractor before it: it belongs to the classifier, which stays with you"
_LAYER = "call a layer that owns the weights, such as nn.Linear or nn.Conv2d"
_WHOLE = "use layers that treat a record as a whole, such as nn.Linear and nn.Conv2d"
INSTEAD: dict[str, str] = {
    **dict.fromkeys(("softmax", "log_softmax", "cross_entropy"), _LATER),
    **dict.fromkeys(("linear", "conv1d", "conv2d", "matmul", "bmm", "mm", "einsum"), _LAYER),
    "batch_norm": "use nn.BatchNorm2d in eval mode, or nn.GroupNorm",
    "group_norm": "use nn.GroupNorm",
    "layer_norm": "use nn.LayerNorm",
    "normalize": "use nn.LayerNorm; each record is clipped after the extractor anyway",
    "interpolate": "an extractor only shrinks its input: leave upsampling out",
    **dict.fromkeys(("permute", "transpose", "chunk", "split"), _WHOLE),
    "stack": "use torch.cat along dim=1",
    "stochastic_depth": "replace the StochasticDepth layers by nn.Identity(), which they are in eval mode",
    "detach": "leave it out: gradients are taken for the declared parameters only",
    **dict.fromkeys(("rand_like", "randn_like"), "an extractor is deterministic: leave randomness out"),
}
"""What to use in the place of well-known functions and methods, by name."""
