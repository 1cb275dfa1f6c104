"""The vocabulary's operations that hold weights: convolutions, linear maps, norms and adapters."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.nn import functional

from shared.errors import InvalidValue
from shared.extractor import adapters
from shared.extractor.attributes import (
    Attributes,
    as_float,
    as_int,
    as_tuple,
    boolean,
    extent,
    integer,
    integers,
    small_epsilon,
    window,
)
from shared.extractor.operations import Operation, Shape, convolved, need_rank, need_size, same, spatial

MAX_KNOTS = 256
"""Most knots of a monotone column map; each costs one parameter a column, so useful maps have a handful."""


def _convolution(dimensions: int) -> Operation:
    def shape(inputs: Sequence[Shape], at: Attributes) -> Shape:
        need_rank(inputs[0], dimensions + 1, f"conv{dimensions}d")
        need_size(inputs[0][0], as_int(at["in_channels"]), "in_channels")
        groups = as_int(at["groups"])
        if as_int(at["in_channels"]) % groups or as_int(at["out_channels"]) % groups:
            raise InvalidValue(f"groups {groups} must divide in_channels and out_channels")
        for k, p, d in zip(as_tuple(at["kernel"]), as_tuple(at["padding"]), as_tuple(at["dilation"]), strict=True):
            if p > d * (k - 1):  # beyond this, outputs see nothing but padding
                raise InvalidValue(f"padding {p} is more than dilation * (kernel - 1) = {d * (k - 1)}")
        return (as_int(at["out_channels"]), *spatial(inputs[0], at, convolved))

    def parameters(at: Attributes) -> dict[str, Shape]:
        out = as_int(at["out_channels"])
        weight = (out, as_int(at["in_channels"]) // as_int(at["groups"]), *as_tuple(at["kernel"]))
        return {"weight": weight, **({"bias": (out,)} if at["bias"] else {})}

    def columns(out: Shape, at: Attributes) -> int:
        # A backend without a direct kernel unfolds the input into one column for each output position.
        return math.prod(out[1:]) * as_int(at["in_channels"]) * math.prod(as_tuple(at["kernel"]))

    def apply(x: Sequence[Tensor], at: Attributes, w: Mapping[str, Tensor]) -> Tensor:
        convolve = functional.conv1d if dimensions == 1 else functional.conv2d
        image, weight = _two_channels(x[0], w["weight"]) if dimensions == 2 else (x[0], w["weight"])
        return convolve(
            image,
            weight,
            w.get("bias"),
            stride=as_tuple(at["stride"]),
            padding=as_tuple(at["padding"]),
            dilation=as_tuple(at["dilation"]),
            groups=as_int(at["groups"]),
        )

    return Operation(
        name=f"conv{dimensions}d",
        about=f"nn.Conv{dimensions}d with zero padding",
        attributes={
            "in_channels": extent,
            "out_channels": extent,
            "kernel": window(dimensions),
            "stride": window(dimensions),
            "padding": window(dimensions, low=0),
            "dilation": window(dimensions),
            "groups": extent,
            "bias": boolean,
        },
        shape=shape,
        apply=apply,
        parameters=parameters,
        work=lambda _i, out, at: 2 * out[0] * columns(out, at) // as_int(at["groups"]),
        workspace=columns,
    )


def _linear_shape(inputs: Sequence[Shape], at: Attributes) -> Shape:
    need_size(inputs[0][-1], as_int(at["in_features"]), "in_features")
    return (*inputs[0][:-1], as_int(at["out_features"]))


def _two_channels(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Gives a grey image (1, h, w) a second channel of zeros, with zero weights, on a CPU.

    One channel fits both memory layouts and torch then takes the one in which it pools at an eighth of the speed; with
    two channels the layout of the weights (`Extractor`) decides. Measured in benchmarks/extractor.py.
    """
    if x.device.type != "cpu" or x.shape[0] != 1:
        return x, weight
    x = torch.stack((x[0], torch.zeros_like(x[0])), dim=-1).permute(2, 0, 1)
    weight = torch.stack((weight[:, 0], torch.zeros_like(weight[:, 0])), dim=-1).permute(0, 3, 1, 2)
    return x, weight


_LINEAR = Operation(
    name="linear",
    about="nn.Linear",
    attributes={"in_features": extent, "out_features": extent, "bias": boolean},
    shape=_linear_shape,
    apply=lambda x, _at, w: functional.linear(x[0], w["weight"], w.get("bias")),
    parameters=lambda at: {
        "weight": (as_int(at["out_features"]), as_int(at["in_features"])),
        **({"bias": (as_int(at["out_features"]),)} if at["bias"] else {}),
    },
    work=lambda _i, out, at: 2 * math.prod(out) * as_int(at["in_features"]),
)


def _batch_norm_shape(inputs: Sequence[Shape], at: Attributes) -> Shape:
    need_size(inputs[0][0], as_int(at["channels"]), "channels")
    return inputs[0]


def _batch_norm(x: Sequence[Tensor], at: Attributes, w: Mapping[str, Tensor]) -> Tensor:
    # Frozen statistics make batch norm a per-channel affine map; written so, it cannot see another record.
    gain = torch.rsqrt(w["running_var"] + as_float(at["eps"]))
    if "weight" in w:
        gain = gain * w["weight"]
    bias = -w["running_mean"] * gain
    if "bias" in w:
        bias = bias + w["bias"]
    return adapters.channel_affine_record(x[0], gain, bias)


_BATCH_NORM = Operation(
    name="batch_norm",
    about="nn.BatchNorm1d / nn.BatchNorm2d in eval mode (frozen statistics)",
    attributes={"channels": extent, "eps": small_epsilon, "affine": boolean},
    shape=_batch_norm_shape,
    apply=_batch_norm,
    parameters=lambda at: (
        {"weight": (as_int(at["channels"]),), "bias": (as_int(at["channels"]),)} if at["affine"] else {}
    ),
    buffers=lambda at: {"running_mean": (as_int(at["channels"]),), "running_var": (as_int(at["channels"]),)},
    work=lambda _i, out, _a: 2 * math.prod(out),
)


def _group_norm_shape(inputs: Sequence[Shape], at: Attributes) -> Shape:
    need_size(inputs[0][0], as_int(at["channels"]), "channels")
    if as_int(at["channels"]) % as_int(at["groups"]):
        raise InvalidValue("groups must divide channels")
    if math.prod(inputs[0]) == as_int(at["groups"]):
        raise InvalidValue("a group of one value has no variance; use fewer groups or another norm")
    return inputs[0]


_GROUP_NORM = Operation(
    name="group_norm",
    about="nn.GroupNorm; nn.InstanceNorm1d / 2d without running statistics (one group a channel)",
    attributes={"channels": extent, "groups": extent, "eps": small_epsilon, "affine": boolean},
    shape=_group_norm_shape,
    apply=lambda x, at, w: functional.group_norm(
        x[0].unsqueeze(0), as_int(at["groups"]), w.get("weight"), w.get("bias"), as_float(at["eps"])
    ).squeeze(0),
    parameters=lambda at: (
        {"weight": (as_int(at["channels"]),), "bias": (as_int(at["channels"]),)} if at["affine"] else {}
    ),
    work=lambda _i, out, _a: 8 * math.prod(out),
)


def _layer_norm_shape(inputs: Sequence[Shape], at: Attributes) -> Shape:
    normalised = as_tuple(at["shape"])
    if inputs[0][-len(normalised) :] != normalised:
        raise InvalidValue(f"normalised shape {normalised} must end the record's shape {inputs[0]}")
    return inputs[0]


def _layer_norm_parameters(at: Attributes) -> dict[str, Shape]:
    shape = as_tuple(at["shape"])
    return {**({"weight": shape} if at["affine"] else {}), **({"bias": shape} if at["bias"] else {})}


_LAYER_NORM = Operation(
    name="layer_norm",
    about="nn.LayerNorm",
    attributes={
        "shape": integers(1, 65536, length=(1, 3)),
        "eps": small_epsilon,
        "affine": boolean,
        "bias": boolean,
    },
    shape=_layer_norm_shape,
    apply=lambda x, at, w: functional.layer_norm(
        x[0], list(as_tuple(at["shape"])), w.get("weight"), w.get("bias"), as_float(at["eps"])
    ),
    parameters=_layer_norm_parameters,
    work=lambda _i, out, _a: 8 * math.prod(out),
)


def _image_shape(inputs: Sequence[Shape], at: Attributes) -> Shape:
    need_rank(inputs[0], 3, "affine_warp2d")
    return same(inputs, at)


_AFFINE_WARP = Operation(
    name="affine_warp2d",
    about="adapters.AffineWarp2d: six numbers, bilinear",
    attributes={},
    shape=_image_shape,
    apply=lambda x, _at, w: adapters.affine_warp2d_record(x[0], w["theta"]),
    parameters=lambda _: {"theta": (2, 3)},
    work=lambda _i, out, _a: 40 * math.prod(out),
    workspace=lambda out, _: 2 * math.prod(out[1:]),
)

_CHANNEL_AFFINE = Operation(
    name="channel_affine",
    about="adapters.ChannelAffine: a gain and a bias a channel",
    attributes={"channels": extent},
    shape=_batch_norm_shape,
    apply=lambda x, _at, w: adapters.channel_affine_record(x[0], w["gain"], w["bias"]),
    parameters=lambda at: {"gain": (as_int(at["channels"]),), "bias": (as_int(at["channels"]),)},
    work=lambda _i, out, _a: 2 * math.prod(out),
)


def _features_shape(inputs: Sequence[Shape], at: Attributes) -> Shape:
    need_size(inputs[0][-1], as_int(at["features"]), "features")
    return inputs[0]


def _low_rank_shape(inputs: Sequence[Shape], at: Attributes) -> Shape:
    if as_int(at["rank"]) > as_int(at["features"]):
        raise InvalidValue(f"rank {at['rank']} is more than the {at['features']} features")
    return _features_shape(inputs, at)


_FEATURE_AFFINE = Operation(
    name="feature_affine",
    about="adapters.FeatureAffine: a gain and a bias a feature",
    attributes={"features": extent},
    shape=_features_shape,
    apply=lambda x, _at, w: x[0] * w["gain"] + w["bias"],
    parameters=lambda at: {"gain": (as_int(at["features"]),), "bias": (as_int(at["features"]),)},
    work=lambda _i, out, _a: 2 * math.prod(out),
)

_LOW_RANK_AFFINE = Operation(
    name="low_rank_affine",
    about="adapters.LowRankAffine: identity plus a product of two thin matrices",
    attributes={"features": extent, "rank": extent},
    shape=_low_rank_shape,
    apply=lambda x, _at, w: adapters.low_rank_affine(x[0], w["left"], w["right"], w["bias"]),
    parameters=lambda at: {
        "left": (as_int(at["features"]), as_int(at["rank"])),
        "right": (as_int(at["rank"]), as_int(at["features"])),
        "bias": (as_int(at["features"]),),
    },
    work=lambda _i, out, at: 4 * math.prod(out) * as_int(at["rank"]),
)


def _columns_shape(inputs: Sequence[Shape], at: Attributes) -> Shape:
    need_size(inputs[0][-1], as_int(at["columns"]), "columns")
    return inputs[0]


_MONOTONE_COLUMNS = Operation(
    name="monotone_columns",
    about="adapters.MonotoneColumns: an increasing piecewise-linear map a column",
    attributes={"columns": extent, "knots": integer(2, MAX_KNOTS)},
    shape=_columns_shape,
    apply=lambda x, _at, w: adapters.monotone_columns(x[0], w["knots"], w["log_slope"], w["offset"]),
    parameters=lambda at: {
        "log_slope": (as_int(at["columns"]), as_int(at["knots"]) + 1),
        "offset": (as_int(at["columns"]),),
    },
    buffers=lambda at: {"knots": (as_int(at["columns"]), as_int(at["knots"]))},
    work=lambda _i, out, at: 6 * math.prod(out) * as_int(at["knots"]),
    workspace=lambda out, at: 3 * math.prod(out) * as_int(at["knots"]),
)

LAYERS: tuple[Operation, ...] = (
    _convolution(1),
    _convolution(2),
    _LINEAR,
    _BATCH_NORM,
    _GROUP_NORM,
    _LAYER_NORM,
    _AFFINE_WARP,
    _CHANNEL_AFFINE,
    _FEATURE_AFFINE,
    _LOW_RANK_AFFINE,
    _MONOTONE_COLUMNS,
)
