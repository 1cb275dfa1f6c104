"""Which function, operator or tensor method of a traced program is lowered how, and what to use for the others."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.nn import functional

from dpswd.public_client.extractor import functions as f
from dpswd.public_client.extractor import masks, owned, reductions, sequence_layers, views
from dpswd.public_client.extractor.unlowered import counted, moved

_PLAIN = ("relu", "selu", "silu", "mish", "tanh", "sigmoid", "hardswish", "hardsigmoid", "cos", "log", "exp")
_COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")
_OF_TENSORS = ["relu", "tanh", "sigmoid", "cos", "log", "exp", "mean", "sum", "amax", "max", "isnan", "nan_to_num"]
_OF_TENSORS += ["masked_fill", "logical_not", "logical_and", "logical_or", "neg", "add", "sub", "mul", "div", "matmul"]
_OF_TENSORS += ["bmm", "softmax", "reshape", "permute", "abs", "clamp", "clip", "clamp_min", "clamp_max"]
"""Methods that do what torch's function of their name does."""
_ARITHMETIC = ("add", "sub", "mul", "truediv", "floordiv", "pow", "matmul")

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
    torch.abs: lambda builder, input: builder.emit("leaky_relu", input, negative_slope=-1.0),
    functional.elu: f.activation("elu", alpha=1.0),
    functional.gelu: f.gelu,
    functional.softplus: f.activation("softplus", beta=1.0, threshold=20.0),
    torch.arange: counted,
    **dict.fromkeys((torch.clamp, torch.clip), f.clamp),
    torch.clamp_max: lambda builder, input, max: f.clamp(builder, input, None, max),
    torch.clamp_min: lambda builder, input, min: f.clamp(builder, input, min),
    **dict.fromkeys((functional.dropout, functional.dropout1d, functional.dropout2d, torch.dropout), f.keep),
    **{getattr(place, f"max_pool{n}d"): f.max_pool(n) for n in (1, 2) for place in (functional, torch)},
    **{getattr(functional, f"avg_pool{n}d"): f.avg_pool(n) for n in (1, 2)},
    **{getattr(functional, f"adaptive_{g}_pool{n}d"): f.adaptive_pool(g, n) for g in ("avg", "max") for n in (1, 2)},
    torch.mean: reductions.reduction("avg"),
    torch.sum: reductions.reduction("sum"),
    torch.amax: reductions.reduction("max"),
    torch.max: reductions.largest,
    torch.reshape: views.reshape,
    **dict.fromkeys((torch.cat, torch.concat, torch.concatenate), views.concatenate),
    **{getattr(operator, name): f.binary(name) for name in _ARITHMETIC},
    **{getattr(torch, name): f.binary(name) for name in ("add", "sub", "mul")},
    torch.div: f.binary("truediv"),
    **dict.fromkeys((torch.matmul, torch.bmm), f.binary("matmul")),
    **dict.fromkeys((functional.softmax, torch.softmax), views.over_last("softmax")),
    functional.normalize: views.normalize,
    functional.scaled_dot_product_attention: sequence_layers.scaled_dot_product_attention,
    functional.pad: views.pad,
    torch.permute: views.permute,
    **{getattr(place, name): masks.compare(name) for name in _COMPARISONS for place in (operator, torch)},
    **dict.fromkeys((operator.invert, torch.logical_not, torch.bitwise_not), masks.negation),
    **dict.fromkeys((operator.and_, torch.logical_and, torch.bitwise_and), masks.both),
    **dict.fromkeys((operator.or_, torch.logical_or, torch.bitwise_or), masks.either),
    functional.linear: owned.linear,
    **{place.conv1d: owned.convolution(1) for place in (functional, torch)},
    **{place.conv2d: owned.convolution(2) for place in (functional, torch)},
    functional.layer_norm: owned.layer_norm,
    functional.group_norm: owned.group_norm,
    functional.batch_norm: owned.batch_norm,
    functional.embedding: owned.embedding,
    torch.isnan: masks.missing,
    torch.nan_to_num: masks.nan_to_num,
    torch.where: masks.where,
    torch.masked_fill: masks.masked_fill,
    **{getattr(operator, f"i{name}"): f.binary(name) for name in ("add", "mul")},
    **dict.fromkeys((operator.neg, torch.neg), f.negative),
    getattr: views.attribute,
    operator.getitem: views.item,
}
"""How each function that a forward method may call is lowered."""

NAMED: dict[str, f.Function] = {"stochastic_depth": f.keep}
"""How a function of another library that tracing leaves as one call is lowered, by its name."""

METHODS: dict[str, f.Function] = {
    **{name: FUNCTIONS[getattr(torch, name)] for name in (*_COMPARISONS, *_OF_TENSORS)},
    "relu_": f.activation("relu"),
    "add_": f.binary("add"),
    **dict.fromkeys(("to", "type_as"), moved),
    **dict.fromkeys(("expand", "repeat"), views.expanded),
    # A record is float32; an embedding takes its whole numbers as they are.
    **dict.fromkeys(("contiguous", "float", "clone", "long", "int"), f.keep),
}
"""How each tensor method is lowered."""

_LATER = "end the extractor before it: it belongs to the classifier, which stays with you"
_LAYER = "call a layer that owns the weights, such as nn.Linear or nn.Conv2d"
_WHOLE = "use layers that treat a record as a whole, such as nn.Linear and nn.Conv2d"
INSTEAD: dict[str, str] = {
    **dict.fromkeys(("log_softmax", "cross_entropy"), _LATER),
    "mm": _LAYER,
    "interpolate": "an extractor only shrinks its input: leave upsampling out",
    **dict.fromkeys(("gather", "index_select"), _WHOLE),
    "detach": "leave it out: gradients are taken for the declared parameters only",
    **dict.fromkeys(("rand_like", "randn_like"), "an extractor is deterministic: leave randomness out"),
}
"""What to use in the place of well-known functions and methods, by name."""
