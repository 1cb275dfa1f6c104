"""Lowering of `nn.Module` layers, and what to use in the place of those that are refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from shared.extractor import adapters, functions, views
from shared.extractor.lowering import Builder, Refused, Traced, tuple_of

Lower = Callable[[Builder, Any, str, Traced], Traced]


def _convolution(dimensions: int) -> Lower:
    def lower(builder: Builder, layer: Any, path: str, x: Traced) -> Traced:
        if layer.padding_mode != "zeros":
            raise Refused(f"padding_mode {layer.padding_mode!r} is not in the vocabulary", "use padding_mode='zeros'")
        kernel = tuple_of(layer.kernel_size, dimensions, "kernel_size")
        dilation = tuple_of(layer.dilation, dimensions, "dilation")
        return builder.emit(
            f"conv{dimensions}d",
            x,
            path=path,
            in_channels=layer.in_channels,
            out_channels=layer.out_channels,
            kernel=kernel,
            stride=tuple_of(layer.stride, dimensions, "stride"),
            padding=_padding(layer.padding, kernel, dilation),
            dilation=dilation,
            groups=layer.groups,
            bias=layer.bias is not None,
        )

    return lower


def _padding(padding: Any, kernel: tuple[int, ...], dilation: tuple[int, ...]) -> tuple[int, ...]:
    if padding == "valid":
        return (0,) * len(kernel)
    if padding == "same":
        reach = [d * (k - 1) for k, d in zip(kernel, dilation, strict=True)]
        if any(r % 2 for r in reach):
            raise Refused("padding='same' with an even kernel pads unevenly", "use an odd kernel")
        return tuple(r // 2 for r in reach)
    return tuple_of(padding, len(kernel), "padding")


def _linear(builder: Builder, layer: Any, path: str, x: Traced) -> Traced:
    return builder.emit(
        "linear",
        x,
        path=path,
        in_features=layer.in_features,
        out_features=layer.out_features,
        bias=layer.bias is not None,
    )


def _batch_norm(dimensions: tuple[int, ...]) -> Lower:
    def lower(builder: Builder, layer: Any, path: str, x: Traced) -> Traced:
        if layer.running_mean is None or layer.running_var is None:
            raise Refused(
                "batch norm without running statistics mixes the records of a batch",
                "use track_running_stats=True, or nn.GroupNorm",
            )
        if layer.training:
            raise Refused(
                "train-mode batch norm mixes the records of a batch",
                "call module.eval() so that its statistics are frozen, or use nn.GroupNorm",
            )
        if x.shape is not None and len(x.shape) not in dimensions:
            raise Refused(f"{type(layer).__name__} does not take records of shape {x.shape}", "check the input shape")
        return builder.emit(
            "batch_norm",
            x,
            path=path,
            channels=layer.num_features,
            eps=float(layer.eps),
            affine=layer.weight is not None,
        )

    return lower


def _instance_norm(builder: Builder, layer: Any, path: str, x: Traced) -> Traced:
    if layer.track_running_stats:
        raise Refused("instance norm with running statistics is not in the vocabulary", "use track_running_stats=False")
    return _emit_group_norm(builder, layer, path, x, layer.num_features, layer.num_features)


def _group_norm(builder: Builder, layer: Any, path: str, x: Traced) -> Traced:
    return _emit_group_norm(builder, layer, path, x, layer.num_channels, layer.num_groups)


def _emit_group_norm(builder: Builder, layer: Any, path: str, x: Traced, channels: int, groups: int) -> Traced:
    affine = layer.weight is not None
    return builder.emit(
        "group_norm",
        x,
        path=path if affine else "",
        channels=channels,
        groups=groups,
        eps=float(layer.eps),
        affine=affine,
    )


def _layer_norm(builder: Builder, layer: Any, path: str, x: Traced) -> Traced:
    affine = layer.weight is not None
    return builder.emit(
        "layer_norm",
        x,
        path=path if affine else "",
        shape=tuple(layer.normalized_shape),
        eps=float(layer.eps),
        affine=affine,
        bias=getattr(layer, "bias", None) is not None,
    )


def _pool(function: Callable[..., Traced], *options: str) -> Lower:
    def lower(builder: Builder, layer: Any, _path: str, x: Traced) -> Traced:
        return function(builder, x, **{option: getattr(layer, option) for option in options})

    return lower


def _identity(_builder: Builder, _layer: Any, _path: str, x: Traced) -> Traced:
    return x


def _monotone(builder: Builder, layer: Any, path: str, x: Traced) -> Traced:
    columns, knots = layer.knots.shape
    return builder.emit("monotone_columns", x, path=path, columns=columns, knots=knots)


_MAX = ("kernel_size", "stride", "padding", "dilation", "return_indices", "ceil_mode")
_AVG = ("kernel_size", "stride", "padding", "ceil_mode", "count_include_pad")

MODULES: dict[type[nn.Module], Lower] = {
    nn.Conv1d: _convolution(1),
    nn.Conv2d: _convolution(2),
    nn.Linear: _linear,
    nn.BatchNorm1d: _batch_norm((1, 2)),
    nn.BatchNorm2d: _batch_norm((3,)),
    nn.InstanceNorm1d: _instance_norm,
    nn.InstanceNorm2d: _instance_norm,
    nn.GroupNorm: _group_norm,
    nn.LayerNorm: _layer_norm,
    nn.MaxPool1d: _pool(functions.max_pool(1), *_MAX),
    nn.MaxPool2d: _pool(functions.max_pool(2), *_MAX),
    nn.AvgPool1d: _pool(functions.avg_pool(1), *_AVG),
    nn.AvgPool2d: _pool(functions.avg_pool(2), *_AVG, "divisor_override"),
    nn.AdaptiveAvgPool1d: _pool(functions.adaptive_pool(1, "avg"), "output_size"),
    nn.AdaptiveAvgPool2d: _pool(functions.adaptive_pool(2, "avg"), "output_size"),
    nn.AdaptiveMaxPool1d: _pool(functions.adaptive_pool(1, "max"), "output_size", "return_indices"),
    nn.AdaptiveMaxPool2d: _pool(functions.adaptive_pool(2, "max"), "output_size", "return_indices"),
    nn.ReLU: _pool(functions.plain("relu")),
    nn.ReLU6: _pool(functions.relu6),
    nn.LeakyReLU: _pool(functions.leaky_relu, "negative_slope"),
    nn.ELU: _pool(functions.elu, "alpha"),
    nn.SELU: _pool(functions.plain("selu")),
    nn.GELU: _pool(functions.gelu, "approximate"),
    nn.SiLU: _pool(functions.plain("silu")),
    nn.Mish: _pool(functions.plain("mish")),
    nn.Tanh: _pool(functions.plain("tanh")),
    nn.Sigmoid: _pool(functions.plain("sigmoid")),
    nn.Softplus: _pool(functions.softplus, "beta", "threshold"),
    nn.Hardtanh: _pool(functions.hardtanh, "min_val", "max_val"),
    nn.Hardswish: _pool(functions.plain("hardswish")),
    nn.Hardsigmoid: _pool(functions.plain("hardsigmoid")),
    nn.Flatten: _pool(views.flatten, "start_dim", "end_dim"),
    nn.Unflatten: lambda builder, layer, _path, x: views.unflatten(builder, x, layer.dim, layer.unflattened_size),
    nn.Identity: _identity,
    nn.Dropout: _identity,
    nn.Dropout1d: _identity,
    nn.Dropout2d: _identity,
    nn.AlphaDropout: _identity,
    adapters.AffineWarp2d: lambda builder, _layer, path, x: builder.emit("affine_warp2d", x, path=path),
    adapters.ChannelAffine: lambda builder, layer, path, x: builder.emit(
        "channel_affine", x, path=path, channels=layer.channels
    ),
    adapters.FeatureAffine: lambda builder, layer, path, x: builder.emit(
        "feature_affine", x, path=path, features=layer.features
    ),
    adapters.LowRankAffine: lambda builder, layer, path, x: builder.emit(
        "low_rank_affine", x, path=path, features=layer.features, rank=layer.rank
    ),
    adapters.MonotoneColumns: _monotone,
}
"""How each layer is lowered; only these exact types, since a subclass may compute something else."""

_RECURRENT = "use nn.Conv1d and pooling over time, or run this part on public data only and send its features"
_LATER = "end the extractor before it: it belongs to the classifier, which stays with you"
INSTEAD: dict[str, str] = {
    "SyncBatchNorm": "convert to nn.BatchNorm2d in eval mode, or use nn.GroupNorm",
    "BatchNorm3d": "use two-dimensional layers and nn.BatchNorm2d in eval mode",
    "LazyBatchNorm2d": "run one forward pass so that its sizes are known, then call eval()",
    "LazyConv2d": "run one forward pass so that its sizes are known",
    "LazyLinear": "run one forward pass so that its sizes are known",
    "LSTM": _RECURRENT,
    "GRU": _RECURRENT,
    "RNN": _RECURRENT,
    "MultiheadAttention": _RECURRENT,
    "TransformerEncoder": _RECURRENT,
    "TransformerEncoderLayer": _RECURRENT,
    "Embedding": "encode categories as float columns (one-hot) and use nn.Linear",
    "EmbeddingBag": "encode categories as float columns (one-hot) and use nn.Linear",
    "Conv3d": "use nn.Conv2d with the third dimension as channels",
    "ConvTranspose1d": "an extractor only shrinks its input: use nn.Conv1d",
    "ConvTranspose2d": "an extractor only shrinks its input: use nn.Conv2d",
    "Upsample": "an extractor only shrinks its input: leave upsampling out",
    "PReLU": "use nn.LeakyReLU with a fixed slope",
    "RReLU": "use nn.LeakyReLU: random slopes would differ between records",
    "LocalResponseNorm": "use nn.GroupNorm",
    "RMSNorm": "use nn.LayerNorm",
    "Softmax": _LATER,
    "LogSoftmax": _LATER,
    "CrossEntropyLoss": _LATER,
    "Fold": "use nn.Conv2d",
    "Unfold": "use nn.Conv2d",
    "LPPool2d": "use nn.AvgPool2d or nn.MaxPool2d",
    "PixelShuffle": "use nn.Conv2d and nn.MaxPool2d",
}
"""What to use in the place of well-known layers outside the vocabulary, by class name."""
ELSE = "use a layer or function from the table in docs/extractors.md"


def lower_module(builder: Builder, layer: nn.Module, path: str, arguments: tuple[Any, ...]) -> Traced:
    """Lowers one leaf layer; raises Refused with what to use instead."""
    if layer._forward_hooks or layer._forward_pre_hooks:
        raise Refused("hooks are code and cannot travel", "remove the hooks (or the weight norm that installed them)")
    for name, parameter in layer.named_parameters(recurse=False):
        if parameter.dtype != torch.float32:
            raise Refused(f"{name} is {parameter.dtype}; only float32 travels", "call module.float()")
    lower = MODULES.get(type(layer))
    if lower is None:
        raise Refused(f"{type(layer).__name__} is not in the vocabulary", instead_of(layer))
    if len(arguments) != 1 or not isinstance(arguments[0], Traced):
        raise Refused(f"{type(layer).__name__} must be called with one tensor", "pass one tensor")
    return lower(builder, layer, path, arguments[0])


def instead_of(layer: nn.Module) -> str:
    """What to use in the place of a layer outside the vocabulary."""
    if hasattr(layer, "parametrizations"):
        return "call torch.nn.utils.parametrize.remove_parametrizations first, so that the weights are plain"
    for ancestor in type(layer).__mro__[1:]:
        if ancestor in MODULES:
            return f"use {ancestor.__name__} itself: a subclass may compute something else"
    return INSTEAD.get(type(layer).__name__, ELSE)
