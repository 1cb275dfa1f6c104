"""The vocabulary's operations that hold weights: convolutions, linear maps, norms and adapters."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor
from torch.nn import functional

from dpswd.shared.core.errors import InvalidValue
from dpswd.shared.sandbox import adapters
from dpswd.shared.sandbox.attributes import Attributes, extent, flag, integers, small_epsilon, window
from dpswd.shared.sandbox.grouped import grouped_linear
from dpswd.shared.sandbox.operations import Operation, Shape, Tensors, convolved, declared, need_rank, same, spatial


def _vectors(size: str, *names: str, only_if: str | None = None) -> Tensors:
    """Tensors of one number for each of `size`; none at all where the flag `only_if` is false."""
    return lambda at: dict.fromkeys(names, (at[size],)) if only_if is None or at[only_if] else {}


def weight_and_bias(weight: Callable[[Attributes], Shape], *, prefix: str = "") -> Tensors:
    """A weight, and a bias for each of its rows where the operation has one."""
    return lambda at: {f"{prefix}weight": weight(at), **({f"{prefix}bias": weight(at)[:1]} if at["bias"] else {})}


def _convolution(dimensions: int) -> Operation:
    def shape(inputs: Sequence[Shape], at: Attributes) -> Shape:
        need_rank(inputs[0], dimensions + 1, f"conv{dimensions}d")
        declared("in_channels", 0)(inputs, at)
        if at["in_channels"] % at["groups"] or at["out_channels"] % at["groups"]:
            raise InvalidValue(f"groups {at['groups']} must divide in_channels and out_channels")
        for k, p, d in zip(at["kernel_size"], at["padding"], at["dilation"], strict=True):
            if p > d * (k - 1):  # beyond this, outputs see nothing but padding
                raise InvalidValue(f"padding {p} is more than dilation * (kernel_size - 1) = {d * (k - 1)}")
        return (at["out_channels"], *spatial(inputs[0], at, convolved))

    def columns(out: Shape, at: Attributes) -> int:
        # A backend without a direct kernel unfolds the input into one column for each output position.
        return math.prod(out[1:]) * int(at["in_channels"]) * math.prod(at["kernel_size"])

    def apply(x: Sequence[Tensor], at: Attributes, w: Mapping[str, Tensor]) -> Tensor:
        options = {key: at[key] for key in ("stride", "padding", "dilation", "groups")}
        if dimensions == 1 and x[0].shape[1] == 1 and at["kernel_size"] == (1,) and at["groups"] > 1:
            return _of_groups(x[0], at["groups"], w["weight"], w.get("bias"))
        if dimensions == 1:
            return functional.conv1d(x[0], w["weight"], w.get("bias"), **options)
        image, weight = _two_channels(x[0], w["weight"])
        return functional.conv2d(image, weight, w.get("bias"), **options)

    return Operation(
        name=f"conv{dimensions}d",
        about=f"nn.Conv{dimensions}d with zero padding",
        attributes={
            "in_channels": extent,
            "out_channels": extent,
            "kernel_size": window(dimensions),
            "stride": window(dimensions),
            "padding": window(dimensions, low=0),
            "dilation": window(dimensions),
            "groups": extent,
            "bias": flag,
        },
        shape=shape,
        apply=apply,
        parameters=weight_and_bias(
            lambda at: (at["out_channels"], at["in_channels"] // at["groups"], *at["kernel_size"])
        ),
        work=lambda _i, out, at: 2 * out[0] * columns(out, at) // int(at["groups"]),
        workspace=columns,
    )


def _of_groups(x: Tensor, groups: int, weight: Tensor, bias: Tensor | None) -> Tensor:
    """A convolution of a single place: products of matrices, which torch's own takes ten times as long for."""
    product = grouped_linear(x.reshape(groups, -1), weight.reshape(groups, -1, weight.shape[1])).reshape(-1, 1)
    return product if bias is None else product + bias.unsqueeze(-1)


def _two_channels(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Gives a grey image (1, h, w) a second channel of zeros, with zero weights, on a CPU.

    One channel fits both memory layouts and torch then takes the one in which it pools at an eighth of the speed; with
    two channels the layout of the weights (`Extractor`) decides.
    """
    if x.device.type != "cpu" or x.shape[0] != 1:
        return x, weight
    x = torch.stack((x[0], torch.zeros_like(x[0])), dim=-1).permute(2, 0, 1)
    weight = torch.stack((weight[:, 0], torch.zeros_like(weight[:, 0])), dim=-1).permute(0, 3, 1, 2)
    return x, weight


def _affine(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    product = functional.linear(x, weight)
    # Not in place: what it multiplies need not be the record's where the bias is.
    return product if bias is None else product + bias


def _linear_shape(inputs: Sequence[Shape], at: Attributes) -> Shape:
    return (*declared("in_features", -1)(inputs, at)[:-1], at["out_features"])


def _batch_norm(x: Sequence[Tensor], at: Attributes, w: Mapping[str, Tensor]) -> Tensor:
    # Frozen statistics make batch norm a per-channel affine map; written so, it cannot see another record.
    gain = torch.rsqrt(w["running_var"] + at["eps"]) * w.get("weight", 1.0)
    return adapters.channel_affine_record(x[0], gain, w.get("bias", 0.0) - w["running_mean"] * gain)


def _group_norm_shape(inputs: Sequence[Shape], at: Attributes) -> Shape:
    if at["num_channels"] % at["num_groups"]:
        raise InvalidValue("num_groups must divide num_channels")
    if math.prod(inputs[0]) == at["num_groups"]:
        raise InvalidValue("a group of one value has no variance; use fewer groups or another norm")
    return declared("num_channels", 0)(inputs, at)


def _group_norm(x: Sequence[Tensor], at: Attributes, w: Mapping[str, Tensor]) -> Tensor:
    # torch's own refuses a batch whose numbers do not lie side by side, such as that of a slice.
    groups = x[0].reshape(at["num_groups"], -1)
    normal = functional.layer_norm(groups, groups.shape[1:], eps=at["eps"]).reshape(x[0].shape)
    return adapters.channel_affine_record(normal, w["weight"], w["bias"]) if at["affine"] else normal


def _layer_norm_shape(inputs: Sequence[Shape], at: Attributes) -> Shape:
    normalised = at["normalized_shape"]
    if inputs[0][-len(normalised) :] != normalised:
        raise InvalidValue(f"normalised shape {normalised} must end the record's shape {inputs[0]}")
    return inputs[0]


def _prelu_shape(inputs: Sequence[Shape], at: Attributes) -> Shape:
    return inputs[0] if at["num_parameters"] == 1 else declared("num_parameters", 0)(inputs, at)


def _image_shape(inputs: Sequence[Shape], at: Attributes) -> Shape:
    need_rank(inputs[0], 3, "affine_warp2d")
    return same(inputs, at)


LAYERS: tuple[Operation, ...] = (
    _convolution(1),
    _convolution(2),
    Operation(
        name="linear",
        about="nn.Linear",
        attributes={"in_features": extent, "out_features": extent, "bias": flag},
        shape=_linear_shape,
        apply=lambda x, _at, w: _affine(x[0], w["weight"], w.get("bias")),
        parameters=weight_and_bias(lambda at: (at["out_features"], at["in_features"])),
        work=lambda _i, out, at: 2 * math.prod(out) * int(at["in_features"]),
    ),
    Operation(
        name="batch_norm",
        about="nn.BatchNorm1d / nn.BatchNorm2d in eval mode (frozen statistics)",
        attributes={"num_features": extent, "eps": small_epsilon, "affine": flag},
        shape=declared("num_features", 0),
        apply=_batch_norm,
        parameters=_vectors("num_features", "weight", "bias", only_if="affine"),
        buffers=_vectors("num_features", "running_mean", "running_var"),
        work=lambda _i, out, _a: 2 * math.prod(out),
    ),
    Operation(
        name="group_norm",
        about="nn.GroupNorm; nn.InstanceNorm1d / 2d without running statistics (one group a channel)",
        attributes={"num_channels": extent, "num_groups": extent, "eps": small_epsilon, "affine": flag},
        shape=_group_norm_shape,
        apply=_group_norm,
        parameters=_vectors("num_channels", "weight", "bias", only_if="affine"),
        work=lambda _i, out, _a: 8 * math.prod(out),
    ),
    Operation(
        name="layer_norm",
        about="nn.LayerNorm",
        attributes={
            "normalized_shape": integers(1, 65536, length=(1, 3)),
            "eps": small_epsilon,
            "elementwise_affine": flag,
            "bias": flag,
        },
        shape=_layer_norm_shape,
        apply=lambda x, at, w: functional.layer_norm(
            x[0], at["normalized_shape"], w.get("weight"), w.get("bias"), at["eps"]
        ),
        parameters=lambda at: {
            name: at["normalized_shape"]
            for name, there in (("weight", at["elementwise_affine"]), ("bias", at["bias"]))
            if there
        },
        work=lambda _i, out, _a: 8 * math.prod(out),
    ),
    Operation(
        name="prelu",
        about="nn.PReLU",
        attributes={"num_parameters": extent},
        shape=_prelu_shape,
        apply=lambda x, _at, w: (
            torch.relu(x[0]) - w["weight"].reshape(-1, *(1,) * (x[0].dim() - 1)) * torch.relu(-x[0])
        ),
        parameters=_vectors("num_parameters", "weight"),
        work=lambda _i, out, _a: 4 * math.prod(out),
    ),
    Operation(
        name="affine_warp2d",
        about="adapters.AffineWarp2d: six numbers, bilinear",
        shape=_image_shape,
        apply=lambda x, _at, w: adapters.affine_warp2d_record(x[0], w["theta"]),
        parameters=lambda _: {"theta": (2, 3)},
        work=lambda _i, out, _a: 2 * math.prod(out) * math.prod(out[1:]),
        inner=lambda _i, out, _a: (2 * out[0] * out[1] + 6 * (out[1] + out[2])) * math.prod(out[1:]),
    ),
    Operation(
        name="channel_affine",
        about="adapters.ChannelAffine: a gain and a bias a channel",
        attributes={"channels": extent},
        shape=declared("channels", 0),
        apply=lambda x, _at, w: adapters.channel_affine_record(x[0], w["gain"], w["bias"]),
        parameters=_vectors("channels", "gain", "bias"),
        work=lambda _i, out, _a: 2 * math.prod(out),
    ),
    Operation(
        name="feature_affine",
        about="adapters.FeatureAffine: a gain and a bias a feature",
        attributes={"features": extent},
        shape=declared("features", -1),
        apply=lambda x, _at, w: x[0] * w["gain"] + w["bias"],
        parameters=_vectors("features", "gain", "bias"),
        work=lambda _i, out, _a: 2 * math.prod(out),
    ),
)
"""Their order is that of the list in docs/ml-team/extractors.md."""
