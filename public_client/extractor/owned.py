"""Lowering of functions that take their weights: F.linear, F.conv2d, F.layer_norm and others.

Subclasses of torch's layers call them. A weight is a tensor of the module that forward reads; where it and its bias are
called `weight` and `bias` of one module, as in torch's own layers, the call is that layer's.
"""

from __future__ import annotations

from typing import Any

from dpswd.public_client.extractor.lowering import Builder, Refused, Traced
from dpswd.public_client.extractor.unlowered import Held

TRAIN_MODE = (
    "train-mode batch norm mixes the records of a batch",
    "call module.eval() so that its statistics are frozen, or use nn.GroupNorm",
)
_NAMES = "hold the weights as .weight and .bias of one module, as nn.Linear and nn.Conv2d do"


def _owner(weight: Any, bias: Any = None, **others: Any) -> str:
    """Path of the module that tensors belong to, all of them whole.

    Args:
        weight: of the call.
        bias: of the call.
        others: by the name that they must have.
    """
    path: str | None = None
    for name, tensor in {"weight": weight, "bias": bias, **others}.items():
        if tensor is None:
            continue
        if not isinstance(tensor, Held) or tensor.part is not None or tensor.shape != tensor.stored:
            raise Refused(f"{name} is computed or a part of a tensor, which is not in the vocabulary", _NAMES)
        own, _, last = tensor.path.rpartition(".")
        if last != name or path not in (None, own):
            raise Refused(f"{tensor.path!r} as {name} of another tensor is not in the vocabulary", _NAMES)
        path = own
    return path or ""


def linear(builder: Builder, input: Traced, weight: Any, bias: Any = None) -> Traced:
    """F.linear; the bias may be any value."""
    if isinstance(bias, Held) and bias.part is not None:  # put together, as queries' and values' of timm's BEiT
        bias = bias.beside(builder, 1)
    beside = isinstance(bias, Traced)
    path = _owner(weight, None if beside else bias)
    rows, columns = weight.stored
    sizes = {"in_features": columns, "out_features": rows, "bias": bias is not None and not beside}
    out = builder.emit("linear", input, path=path, **sizes)
    if beside:
        out = builder.emit("add", out, builder.reshape(bias, (1,) * (len(out.shape) - 1) + (rows,)))
    return out


def convolution(dimensions: int) -> Any:
    """F.conv1d / F.conv2d."""

    def lower(
        builder: Builder, input: Traced, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0,
        dilation: Any = 1, groups: int = 1,
    ) -> Traced:  # fmt: skip
        path = _owner(weight, bias)
        if isinstance(padding, str):
            raise Refused(f"padding={padding!r} of a function is not in the vocabulary", "give its size")
        out, inside, *kernel = weight.stored
        options = {"kernel_size": kernel, "stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
        sizes = {"in_channels": inside * groups, "out_channels": out, "bias": bias is not None}
        return builder.emit(f"conv{dimensions}d", input, path=path, **sizes, **options)

    return lower


def layer_norm(
    builder: Builder, input: Traced, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Traced:
    """F.layer_norm."""
    there = {"elementwise_affine": weight is not None, "bias": bias is not None}
    path = _owner(weight, bias)
    return builder.emit("layer_norm", input, path=path, normalized_shape=normalized_shape, eps=eps, **there)


def group_norm(
    builder: Builder, input: Traced, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Traced:
    """F.group_norm."""
    if (weight is None) != (bias is None):
        raise Refused("group_norm with a weight or a bias alone", "give both or none")
    channels = {"num_channels": input.shape[0], "num_groups": num_groups}
    return builder.emit("group_norm", input, path=_owner(weight, bias), **channels, eps=eps, affine=weight is not None)


def batch_norm(
    builder: Builder, input: Traced, running_mean: Any, running_var: Any, weight: Any = None, bias: Any = None,
    training: bool = False, momentum: float = 0.1, eps: float = 1e-5,
) -> Traced:  # fmt: skip
    """F.batch_norm with frozen statistics."""
    if training or running_mean is None or running_var is None:
        raise Refused(*TRAIN_MODE)
    path = _owner(weight, bias, running_mean=running_mean, running_var=running_var)
    return builder.emit(
        "batch_norm", input, path=path, num_features=running_mean.stored[0], eps=eps, affine=weight is not None
    )


def embedding(
    builder: Builder, input: Traced, weight: Any, padding_idx: Any = None, max_norm: Any = None, *_: Any, **__: Any
) -> Traced:
    """F.embedding."""
    if max_norm is not None:
        raise Refused("an embedding with max_norm changes its weights as it is read", "leave max_norm out")
    rows, columns = weight.stored if isinstance(weight, Held) else (0, 0)
    return builder.emit("embedding", input, path=_owner(weight), num_embeddings=rows, embedding_dim=columns)
