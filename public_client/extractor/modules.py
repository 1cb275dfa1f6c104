"""Lowering of `nn.Module` layers, and what to use in the place of those that are refused."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

from dpswd.public_client.extractor import adapter_layers as adapters
from dpswd.public_client.extractor import functions, sequence_layers, views, windows
from dpswd.public_client.extractor.lowering import UNKNOWN, Builder, Refused, Traced
from dpswd.public_client.extractor.owned import TRAIN_MODE
from dpswd.public_client.extractor.unlowered import Column, Held, Unlowered, Whole
from dpswd.public_client.extractor.wide_views import View
from dpswd.shared.sandbox.graph import tensor_name
from dpswd.shared.sandbox.vocabulary import VOCABULARY

Lower = Callable[[Builder, Any, str, Traced], Traced]


def _layer(name: str, **other: Callable[[Any], Any]) -> Lower:
    """A layer that is one operation, whose attributes have the operation's own names.

    Args:
        name: of the operation.
        other: layer -> value, for the attributes that are spelled otherwise.
    """

    def lower(builder: Builder, layer: Any, path: str, x: Traced) -> Traced:
        keys = VOCABULARY[name].attributes
        values = {key: other[key](layer) if key in other else getattr(layer, key) for key in keys}
        return builder.emit(name, x, path=path, **values)

    return lower


def _call(function: functions.Function) -> Lower:
    """A layer that does what a function does; the arguments that it has are its own attributes of these names."""
    names = list(inspect.signature(function).parameters)[2:]  # behind the builder and the input

    def lower(builder: Builder, layer: Any, _path: str, x: Traced) -> Traced:
        options = {name: getattr(layer, name) for name in names if hasattr(layer, name)}
        lowered: Traced = function(builder, x, **options)
        return lowered

    return lower


def _convolution(name: str) -> Lower:
    """Of zeros around the record, as many as are told, or of which the result is as large as the record."""

    def lower(builder: Builder, layer: Any, path: str, x: Traced) -> Traced:
        if layer.padding_mode != "zeros":
            raise Refused(f"padding_mode {layer.padding_mode!r} is not in the vocabulary", "use padding_mode='zeros'")
        padding = 0 if layer.padding == "valid" else layer.padding
        if padding == "same":
            around = [d * (k - 1) for k, d in zip(layer.kernel_size, layer.dilation, strict=True)]
            padding = [size // 2 for size in around]
            if any(size % 2 for size in around):  # one more behind than before
                x = views.pad(builder, x, [half for size in reversed(around) for half in (size // 2, size - size // 2)])
                padding = 0
        return _layer(name, padding=lambda _: padding)(builder, layer, path, x)

    return lower


def _batch_norm(ranks: tuple[int, ...]) -> Lower:
    def lower(builder: Builder, layer: Any, path: str, x: Traced) -> Traced:
        if layer.running_mean is None or layer.running_var is None:
            raise Refused(
                "batch norm without running statistics mixes the records of a batch",
                "use track_running_stats=True, or nn.GroupNorm",
            )
        if layer.training:
            raise Refused(*TRAIN_MODE)
        if x is not UNKNOWN and len(x.shape) not in ranks:
            raise Refused(f"{type(layer).__name__} does not take records of shape {x.shape}", "check the input shape")
        return _layer("batch_norm")(builder, layer, path, x)

    return lower


def _instance_norm(builder: Builder, layer: Any, path: str, x: Traced) -> Traced:
    if layer.track_running_stats:
        raise Refused("instance norm with running statistics is not in the vocabulary", "use track_running_stats=False")
    channels = {"num_channels": layer.num_features, "num_groups": layer.num_features}
    return builder.emit("group_norm", x, path=path, **channels, eps=layer.eps, affine=layer.affine)


def _embedding(builder: Builder, layer: Any, path: str, x: Any) -> Any:
    if layer.max_norm is not None:
        raise Refused("an embedding with max_norm changes its weights as it is read", "leave max_norm out")
    if isinstance(x, Whole):
        return x.rows_of(builder, tensor_name(path, "weight"), tuple(layer.weight.shape))
    if isinstance(x, Column):
        return x.called(builder, "embedding", lambda _, number: _layer("embedding")(builder, layer, path, number))
    return _layer("embedding")(builder, layer, path, x)


def _padded(builder: Builder, layer: Any, _path: str, x: Traced) -> Traced:
    return views.pad(builder, x, layer.padding, value=layer.value)


_ALIKE: tuple[type[nn.Module], ...] = (nn.Linear, nn.ReLU, nn.ELU, nn.SELU, nn.SiLU, nn.Mish, nn.Tanh, nn.Sigmoid)
_ALIKE += (nn.Softplus, nn.Hardtanh, nn.Hardswish, nn.Hardsigmoid)

MODULES: dict[type[nn.Module], Lower] = {
    **{layer: _layer(layer.__name__.lower()) for layer in _ALIKE},
    nn.Conv1d: _convolution("conv1d"),
    nn.Conv2d: _convolution("conv2d"),
    nn.BatchNorm1d: _batch_norm((1, 2)),
    nn.BatchNorm2d: _batch_norm((3,)),
    nn.InstanceNorm1d: _instance_norm,
    nn.InstanceNorm2d: _instance_norm,
    nn.GroupNorm: _layer("group_norm"),
    nn.LayerNorm: _layer("layer_norm"),
    **{getattr(nn, f"MaxPool{n}d"): _call(functions.max_pool(n)) for n in (1, 2)},
    **{getattr(nn, f"AvgPool{n}d"): _call(functions.avg_pool(n)) for n in (1, 2)},
    **{getattr(nn, f"AdaptiveAvgPool{n}d"): _call(functions.adaptive_pool("avg", n)) for n in (1, 2)},
    **{getattr(nn, f"AdaptiveMaxPool{n}d"): _call(functions.adaptive_pool("max", n)) for n in (1, 2)},
    nn.ReLU6: _layer("hardtanh"),
    nn.LeakyReLU: _layer("leaky_relu"),
    nn.GELU: _call(functions.gelu),
    nn.Softmax: lambda builder, layer, _, x: views.over_last("softmax")(builder, x, layer.dim),
    nn.Embedding: _embedding,
    **dict.fromkeys((nn.RNN, nn.GRU, nn.LSTM), sequence_layers.recurrent),
    nn.MultiheadAttention: sequence_layers.multihead,
    **{getattr(nn, f"{kind}Pad{n}d"): _padded for kind in ("Constant", "Zero") for n in (1, 2)},
    nn.PReLU: _layer("prelu"),
    **dict.fromkeys((nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.AlphaDropout), _call(functions.keep)),
    adapters.AffineWarp2d: _layer("affine_warp2d"),
    adapters.ChannelAffine: _layer("channel_affine"),
    adapters.FeatureAffine: _layer("feature_affine"),
}
"""How each layer is lowered; a subclass with a forward of its own is traced through it instead."""

_OF_LAST = {*_ALIKE, nn.GELU, nn.LeakyReLU, nn.LayerNorm, nn.Identity, nn.Dropout}
"""What computes along the last side alone, or each number by itself."""

_RECURRENT = "use nn.GRU or nn.LSTM with batch_first=True, or nn.Conv1d and pooling over time"
_ENCODER = "use nn.TransformerEncoder with batch_first=True"
_LATER = "end the extractor before it: it belongs to the classifier, which stays with you"
INSTEAD: dict[str, str] = {
    "SyncBatchNorm": "convert to nn.BatchNorm2d in eval mode, or use nn.GroupNorm",
    "BatchNorm3d": "use two-dimensional layers and nn.BatchNorm2d in eval mode",
    "LazyBatchNorm2d": "run one forward pass so that its sizes are known, then call eval()",
    **dict.fromkeys(("LazyConv2d", "LazyLinear"), "run one forward pass so that its sizes are known"),
    **dict.fromkeys(("GRUCell", "LSTMCell", "RNNCell"), _RECURRENT),
    **dict.fromkeys(("Transformer", "TransformerDecoder", "TransformerDecoderLayer"), _ENCODER),
    "EmbeddingBag": "use nn.Embedding and .mean(dim=1)",
    "Conv3d": "use nn.Conv2d with the third dimension as channels",
    "ConvTranspose1d": "an extractor only shrinks its input: use nn.Conv1d",
    "ConvTranspose2d": "an extractor only shrinks its input: use nn.Conv2d",
    "Upsample": "an extractor only shrinks its input: leave upsampling out",
    "RReLU": "use nn.LeakyReLU: random slopes would differ between records",
    "LocalResponseNorm": "use nn.GroupNorm",
    **dict.fromkeys(("LogSoftmax", "CrossEntropyLoss"), _LATER),
    **dict.fromkeys(("Fold", "Unfold"), "use nn.Conv2d"),
    "LPPool2d": "use nn.AvgPool2d or nn.MaxPool2d",
    "PixelShuffle": "use nn.Conv2d and nn.MaxPool2d",
}
"""What to use in the place of well-known layers outside the vocabulary, by class name."""
ELSE = "use a layer or function from the list in docs/ml-team/extractors.md"


def is_normalize(layer: Any) -> bool:
    """Whether a layer is torchvision's transform of that name, which cannot be traced and has no tensors."""
    return type(layer).__name__ == "Normalize" and type(layer).__module__.startswith("torchvision.transforms")


def lowered_type(layer: nn.Module) -> type[nn.Module] | None:
    """Which layer of the table it is: itself, or the one whose forward it has inherited."""
    forward = type(layer).forward
    return next((kind for kind in type(layer).__mro__ if kind in MODULES and kind.forward is forward), None)


def lower_module(
    builder: Builder, layer: nn.Module, path: str, arguments: tuple[Any, ...], options: dict[str, Any]
) -> Any:
    """Lowers one leaf layer; raises Refused with what to use instead."""
    if layer._forward_hooks or layer._forward_pre_hooks:
        raise Refused("hooks are code and cannot travel", "remove the hooks (or the weight norm that installed them)")
    for name, parameter in layer.named_parameters(recurse=False):
        if parameter.dtype != torch.float32:
            raise Refused(f"{name} is {parameter.dtype}; only float32 travels", "call module.float()")
    if windows.is_window_attention(layer):
        return _within_windows(builder, layer, path, *arguments, **options)
    if is_normalize(layer):
        return _normalize(builder, layer, *arguments, **options)
    kind = lowered_type(layer)
    if kind is None or hasattr(layer, "parametrizations"):
        raise Refused(f"{type(layer).__name__} is not in the vocabulary", instead_of(layer))
    if kind is nn.MultiheadAttention:
        return sequence_layers.self_attention(builder, layer, path, *arguments, **options)
    arguments = (*arguments, *options.values())
    lower: Callable[..., Any] = partial(MODULES[kind], builder, layer, path)
    if kind is nn.Embedding and isinstance(arguments[0], (Whole, Column)):
        return lower(arguments[0])
    if isinstance(arguments[0], View) and arguments[0].windows > 1 and kind in _OF_LAST:
        return arguments[0].each(lower, builder)
    if own := next((argument for argument in arguments if isinstance(argument, Unlowered)), None):
        raise own.refused(type(layer).__name__)
    if len(arguments) != 1 or not isinstance(arguments[0], Traced):
        raise Refused(f"{type(layer).__name__} must be called with one tensor", "pass one tensor")
    return lower(arguments[0])


def _normalize(builder: Builder, layer: Any, x: Traced) -> Traced:
    """(x - mean) / std, channel by channel."""
    parts = []
    for place in range(x.shape[0] if x.shape else 0):
        mean, std = (float(of[place % len(of)]) for of in (layer.mean, layer.std))
        part = builder.emit("slice", x, axis=0, begin=place, end=place + 1)
        parts.append(builder.emit("scale_shift", part, gain=1.0 / std, shift=-mean / std))
    return builder.emit("concat", *parts) if parts else UNKNOWN


def _within_windows(builder: Builder, layer: Any, path: str, x: Any, mask: Any = None) -> Any:
    """A call of WindowAttention, with windows beside the batch."""
    if x is UNKNOWN:
        return UNKNOWN
    if mask is not None and not isinstance(mask, Held):
        raise Refused("a mask of windows that is no buffer of the module", "register it, (windows, t, t)")
    base, count = (x.base, x.windows) if isinstance(x, View) else (x, 1)
    added = None
    if mask is not None:
        places = math.prod(mask.shape) // count
        added = builder.reshape(mask.beside(builder, 3), (count, 1, places))
    out = windows.attention(builder, layer, path, base, count, added)
    if isinstance(x, Traced):
        return out
    return View(out, (out.shape[0] // count, out.shape[1]), windows=count)


def instead_of(layer: nn.Module) -> str:
    """What to use in the place of a layer outside the vocabulary."""
    if hasattr(layer, "parametrizations"):
        return "call torch.nn.utils.parametrize.remove_parametrizations first, so that the weights are plain"
    return INSTEAD.get(type(layer).__name__, ELSE)
