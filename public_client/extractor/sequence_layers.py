"""Lowering of attention, transformers, recurrent layers and tensors that a module owns itself."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from dpswd.public_client.extractor.lowering import UNKNOWN, Builder, Refused, Traced
from dpswd.public_client.extractor.masks import as_scores
from dpswd.public_client.extractor.unlowered import Last, place

_CAUSAL = "register a mask as a buffer of truths, torch.ones(t, t).triu(1).bool(), and pass it"
_FIRST = "make it with batch_first=True: a record is (t, d), the batch stands before it"


def attend(
    builder: Builder, q: Traced, k: Traced, v: Traced, scale: float | None = None, masks: tuple[Traced, ...] = ()
) -> Traced:
    """Scaled dot products of (..., t, d): each place of q looks at every place of k that masks leave."""
    sides = list(range(len(k.shape)))
    turned = builder.emit("permute", k, order=(*sides[:-2], sides[-1], sides[-2]))
    scores = builder.emit("matmul", q, turned)
    scores = builder.emit("scale_shift", scores, gain=scale or 1.0 / math.sqrt(q.shape[-1]), shift=0.0)
    for mask in masks:
        scores = builder.emit("add", scores, mask)
    return builder.emit("matmul", builder.emit("softmax", scores), v)


def scaled_dot_product_attention(
    builder: Builder, query: Traced, key: Traced, value: Traced, attn_mask: Any = None, dropout_p: float = 0.0,
    is_causal: bool = False, scale: float | None = None,
) -> Traced:  # fmt: skip
    """F.scaled_dot_product_attention; a truth of the mask says where to look."""
    if is_causal:
        raise Refused("is_causal is not in the vocabulary", _CAUSAL)
    if dropout_p:
        raise Refused("dropout in evaluation mode makes features random", "pass dropout_p=0.0 where not training")
    masks = () if attn_mask is None else (as_scores(builder, attn_mask, len(query.shape), keep=True),)
    return attend(builder, query, key, value, scale, masks)


def _masks(builder: Builder, attn_mask: Any, padding: Any, is_causal: bool | None) -> tuple[Traced, ...]:
    """Masks of nn.MultiheadAttention, for scores (heads, t, t); a truth says where not to look."""
    if is_causal and attn_mask is None:
        raise Refused("is_causal without a mask is not in the vocabulary", _CAUSAL)
    return tuple(as_scores(builder, mask, 3, keep=False) for mask in (attn_mask, padding) if mask is not None)


def multihead(builder: Builder, layer: Any, path: str, x: Traced, masks: tuple[Traced, ...] = ()) -> Traced:
    """nn.MultiheadAttention of a record with itself."""
    if not layer.batch_first:
        raise Refused("attention over the first dimension would mix the records of a batch", _FIRST)
    if not layer._qkv_same_embed_dim or layer.bias_k is not None or layer.add_zero_attn:
        raise Refused("attention with kdim, vdim, add_bias_kv or add_zero_attn", "leave it out")
    if x is UNKNOWN:
        return UNKNOWN
    t, heads = x.shape[0], layer.num_heads
    bias = layer.in_proj_bias is not None
    whole = builder.emit("in_projection", x, path=path, embed_dim=layer.embed_dim, bias=bias)
    d = layer.embed_dim
    parts = []
    for i in range(3):
        part = builder.emit("slice", whole, axis=1, begin=i * d, end=(i + 1) * d)
        by_head = builder.reshape(part, (t, heads, d // heads))
        parts.append(builder.emit("permute", by_head, order=(1, 0, 2)))
    seen = builder.emit("permute", attend(builder, parts[0], parts[1], parts[2], masks=masks), order=(1, 0, 2))
    return linear_layer(
        builder, layer.out_proj, f"{path}.out_proj" if path else "out_proj", builder.reshape(seen, (t, d))
    )


def self_attention(
    builder: Builder, layer: Any, path: str, query: Any = None, key: Any = None, value: Any = None,
    key_padding_mask: Any = None, attn_mask: Any = None, is_causal: bool = False, **_: Any,
) -> Any:  # fmt: skip
    """A call of nn.MultiheadAttention: the same tensor three times; (output, None)."""
    if query is UNKNOWN:
        return multihead(builder, layer, path, UNKNOWN), None
    if key is not query or value is not query or not isinstance(query, Traced):
        raise Refused("attention between two sequences is not in the vocabulary", "call it with (x, x, x)")
    return multihead(builder, layer, path, query, _masks(builder, attn_mask, key_padding_mask, is_causal)), None


class EncoderLayer(nn.TransformerEncoderLayer):
    """What torch's computes, norms before or after; torch's own forward branches on values and calls no layer."""

    def forward(
        self, src: Tensor, src_mask: Any = None, src_key_padding_mask: Any = None, is_causal: bool = False
    ) -> Tensor:
        """See torch's."""
        masks = {"attn_mask": src_mask, "key_padding_mask": src_key_padding_mask, "is_causal": is_causal}

        def attended(x: Tensor) -> Any:
            return self.dropout1(self.self_attn(x, x, x, need_weights=False, **masks)[0])

        def fed(x: Tensor) -> Any:
            return self.dropout2(self.linear2(self.dropout(self.activation(self.linear1(x)))))

        if self.norm_first:
            src = src + attended(self.norm1(src))
            src = src + fed(self.norm2(src))
        else:
            src = self.norm1(src + attended(src))
            src = self.norm2(src + fed(src))
        return src


class Encoder(nn.TransformerEncoder):
    """The same."""

    def forward(
        self, src: Tensor, mask: Any = None, src_key_padding_mask: Any = None, is_causal: bool | None = None
    ) -> Tensor:
        """See torch's."""
        for layer in self.layers:
            src = layer(src, src_mask=mask, src_key_padding_mask=src_key_padding_mask, is_causal=bool(is_causal))
        return src if self.norm is None else self.norm(src)


class RmsNorm(nn.RMSNorm):
    """The same, over the last sides."""

    def forward(self, x: Tensor) -> Tensor:
        """See torch's."""
        sides = tuple(range(-len(self.normalized_shape), 0))
        least = torch.finfo(torch.float32).eps if self.eps is None else self.eps
        normal = x * torch.rsqrt((x * x).mean(sides, keepdim=True) + least)
        return normal if self.weight is None else normal * self.weight


_WRITTEN_OUT: dict[type[nn.Module], type[nn.Module]]
_WRITTEN_OUT = {nn.TransformerEncoderLayer: EncoderLayer, nn.TransformerEncoder: Encoder, nn.RMSNorm: RmsNorm}


def written_out(module: nn.Module) -> type[nn.Module] | None:
    """The class whose forward calls each layer of an encoder of torch's; None for other modules."""
    return next((made for kind, made in _WRITTEN_OUT.items() if type(module).forward is kind.forward), None)


def recurrent(builder: Builder, layer: Any, path: str, x: Traced) -> Any:
    """nn.RNN, nn.GRU and nn.LSTM: (outputs, last states)."""
    if not layer.batch_first:
        raise Refused("a recurrent layer over the first dimension would mix the records of a batch", _FIRST)
    if getattr(layer, "proj_size", 0):
        raise Refused("proj_size is not in the vocabulary", "use an nn.Linear behind the layer")
    if x is UNKNOWN:
        return UNKNOWN, UNKNOWN
    name, states = type(layer).__name__.lower(), []
    if name == "rnn" and layer.nonlinearity == "relu":
        name = "rnn_relu"
    for number in range(layer.num_layers):
        outputs = []
        for reverse in (False, True)[: 1 + layer.bidirectional]:
            out = builder.emit(
                name, x, path=path, input_size=x.shape[-1], hidden_size=layer.hidden_size,
                layer=number, reverse=reverse, bias=layer.bias,
            )  # fmt: skip
            outputs.append(out)
            states.append(place(builder, out, 0, 0 if reverse else x.shape[0] - 1))
        x = outputs[0] if len(outputs) == 1 else _joined(builder, outputs)
    last = Last(path, tuple(states))
    return x, ((last, Last(path, ())) if name == "lstm" else last)


def _joined(builder: Builder, outputs: list[Traced]) -> Traced:
    """(t, a) and (t, b) as (t, a + b): `concat` joins first sides."""
    turned = [builder.emit("permute", out, order=(1, 0)) for out in outputs]
    return builder.emit("permute", builder.emit("concat", *turned), order=(1, 0))


def linear_layer(builder: Builder, layer: Any, path: str, x: Traced) -> Traced:
    """nn.Linear."""
    return builder.emit(
        "linear", x, path=path, in_features=layer.in_features, out_features=layer.out_features, bias=layer.bias
    )
