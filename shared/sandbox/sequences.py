"""The vocabulary's words of sequence models: attention's parts, embeddings, recurrent layers, tensors of one's own.

A record is a sequence (t, d), or heads of it (h, t, d). Everything is of one record, and takes as long for some numbers
as for others (`steady`): an embedding is a product with a one-hot matrix, since a look-up would tell by the cache which
rows a record needs; a recurrent layer goes through the whole record, whatever is in it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.nn import functional

from dpswd.shared.core.errors import InvalidValue
from dpswd.shared.sandbox import steady
from dpswd.shared.sandbox.attributes import MAX_EXTENT, Attributes, extent, flag, integer, integers, real
from dpswd.shared.sandbox.layers import weight_and_bias
from dpswd.shared.sandbox.operations import Operation, Shape, declared, need_rank, same

MAX_STEPS = 2048
"""Longest sequence of a recurrent layer: its steps come one after the other."""
_MAX_LAYERS = 16


def _permuted(inputs: Sequence[Shape], at: Attributes) -> Shape:
    order = at["order"]
    if sorted(order) != list(range(len(inputs[0]))):
        raise InvalidValue(f"order {order} must name each of the {len(inputs[0])} sides of a record once")
    return tuple(inputs[0][side] for side in order)


def _sliced(inputs: Sequence[Shape], at: Attributes) -> Shape:
    shape, axis, begin, end = inputs[0], at["axis"], at["begin"], at["end"]
    if axis >= len(shape) or not begin < end <= shape[axis]:
        raise InvalidValue(f"places {begin} to {end} of side {axis} are not in a record of shape {shape}")
    return (*shape[:axis], end - begin, *shape[axis + 1 :])


def _product(inputs: Sequence[Shape], _at: Attributes) -> Shape:
    a, b = inputs
    if len(a) != len(b) or len(a) < 2 or a[:-2] != b[:-2] or a[-1] != b[-2]:
        raise InvalidValue(f"matrices of shapes {a} and {b} cannot be multiplied record by record")
    return (*a[:-1], b[-1])


def _axis(inputs: Sequence[Shape], at: Attributes) -> Shape:
    if at["axis"] >= len(inputs[0]):
        raise InvalidValue(f"a record of shape {inputs[0]} has no side {at['axis']}")
    return inputs[0]


def _own_shape(_inputs: Sequence[Shape], at: Attributes) -> Shape:
    shape: Shape = at["shape"]
    if len(shape) == 4 and shape[0] != 1:
        raise InvalidValue(f"a tensor of shape {shape} is none of one record's; its first side must be 1")
    return shape[1:] if len(shape) == 4 else shape


def _own(name: str, about: str, *, trained: bool) -> Operation:
    """A tensor that the module owns itself; its name is the node's path."""

    def held(at: Attributes) -> dict[str, Shape]:
        return {"": at["shape"]}

    return Operation(
        name=name,
        about=about,
        attributes={"shape": integers(1, MAX_EXTENT, length=(1, 4))},
        shape=_own_shape,
        apply=lambda _x, at, w: w[""].reshape(_own_shape((), at)),
        parameters=held if trained else lambda _: {},
        buffers=(lambda _: {}) if trained else held,
        work=lambda _i, _o, _a: 0,
        inputs=(0, 0),
    )


def _embedded(inputs: Sequence[Shape], at: Attributes) -> Shape:
    if len(inputs[0]) > 2:
        raise InvalidValue(f"an embedding takes records of one or two sides, got {inputs[0]}")
    return (*inputs[0], at["embedding_dim"])


def _rows(table: Tensor, places: Tensor) -> Tensor:
    """Rows of a table (n, d) at each of the places, zeros where that is none of them, as a product."""
    numbers = torch.arange(table.shape[0], device=places.device, dtype=places.dtype)
    return (places.unsqueeze(-1) == numbers).to(table.dtype) @ table


def _look_up_shape(inputs: Sequence[Shape], _at: Attributes) -> Shape:
    table, places = inputs
    if len(table) != 2 or len(places) != 1:
        raise InvalidValue(f"rows are looked up in a table of two sides at places of one, got {table} and {places}")
    return (places[0], table[1])


def _padded(inputs: Sequence[Shape], at: Attributes) -> Shape:
    shape, axis = _axis(inputs, at), at["axis"]
    return (*shape[:axis], shape[axis] + at["before"] + at["after"], *shape[axis + 1 :])


def _pad(x: Sequence[Tensor], at: Attributes, _w: Mapping[str, Tensor]) -> Tensor:
    around = [0, 0] * (x[0].dim() - at["axis"] - 1) + [at["before"], at["after"]]
    return functional.pad(x[0], around, value=at["value"])


def _rearranged(inputs: Sequence[Shape], at: Attributes) -> Shape:
    sides, order = at["sides"], at["order"]
    if math.prod(sides) != math.prod(inputs[0]) or sorted(order) != list(range(len(sides))):
        raise InvalidValue(f"{inputs[0]} seen as {sides} cannot have its sides in the order {order}")
    return (math.prod(sides),)


def _recurrent_shape(inputs: Sequence[Shape], at: Attributes) -> Shape:
    need_rank(inputs[0], 2, "a recurrent layer")
    declared("input_size", -1)(inputs, at)
    if inputs[0][0] > MAX_STEPS:
        raise InvalidValue(f"a sequence has {inputs[0][0]} steps; a recurrent layer takes at most {MAX_STEPS}")
    return (inputs[0][0], at["hidden_size"])


def _recurrent(name: str, about: str, gates: int, step: steady.Step) -> Operation:
    """One layer in one direction, with the names that torch gives its tensors."""

    def tensors(at: Attributes) -> dict[str, Shape]:
        end = f"l{at['layer']}" + ("_reverse" if at["reverse"] else "")
        rows, hidden = gates * at["hidden_size"], at["hidden_size"]
        made = {f"weight_ih_{end}": (rows, at["input_size"]), f"weight_hh_{end}": (rows, hidden)}
        return made | ({f"bias_ih_{end}": (rows,), f"bias_hh_{end}": (rows,)} if at["bias"] else {})

    def apply(x: Sequence[Tensor], at: Attributes, w: Mapping[str, Tensor]) -> Tensor:
        end = f"l{at['layer']}" + ("_reverse" if at["reverse"] else "")
        given = functional.linear(x[0], w[f"weight_ih_{end}"], w.get(f"bias_ih_{end}"))  # (t, gates hidden)
        states: tuple[Tensor, ...] = (x[0].new_zeros(at["hidden_size"]),) * (1 + (gates == 4))
        outputs = []
        parts = given.unbind()  # once and for all: backwards, each index would make zeros for the whole sequence
        for part in reversed(parts) if at["reverse"] else parts:
            recurrent = functional.linear(states[0], w[f"weight_hh_{end}"], w.get(f"bias_hh_{end}"))
            states = step(part, recurrent, states)
            outputs.append(states[0])
        return torch.stack(outputs[::-1] if at["reverse"] else outputs)

    def work(_inputs: Sequence[Shape], out: Shape, at: Attributes) -> int:
        return out[0] * gates * int(at["hidden_size"]) * (2 * int(at["input_size"] + at["hidden_size"]) + 16)

    return Operation(
        name=name,
        about=f"nn.{about}, one layer in one direction",
        attributes={
            "input_size": extent,
            "hidden_size": extent,
            "layer": integer(0, _MAX_LAYERS - 1),
            "reverse": flag,
            "bias": flag,
        },
        shape=_recurrent_shape,
        apply=apply,
        parameters=tensors,
        work=work,
        inner=lambda _i, out, _a: 6 * gates * math.prod(out),
        steps=lambda out, _: out[0],
    )


SEQUENCES: tuple[Operation, ...] = (
    Operation(
        name="permute",
        about="x.transpose(1, 2), x.permute(0, 2, 1): sides of a record, never the batch",
        attributes={"order": integers(0, 2, length=(2, 3))},
        shape=_permuted,
        apply=lambda x, at, _w: x[0].permute(at["order"]).contiguous(),
        work=lambda _i, _o, _a: 0,
    ),
    Operation(
        name="rearrange",
        about="x.view(...).permute(...) with more sides than a value has: windows, heads",
        attributes={"sides": integers(1, MAX_EXTENT, length=(2, 7)), "order": integers(0, 6, length=(2, 7))},
        shape=_rearranged,
        apply=lambda x, at, _w: x[0].reshape(at["sides"]).permute(at["order"]).reshape(-1),
        work=lambda _i, _o, _a: 0,
    ),
    Operation(
        name="slice",
        about="x[:, 0], x[:, a:b], x.chunk(3, dim=-1), x.split(...)",
        attributes={"axis": integer(0, 2), "begin": integer(0, MAX_EXTENT), "end": integer(1, MAX_EXTENT)},
        shape=_sliced,
        apply=lambda x, at, _w: x[0].narrow(at["axis"], at["begin"], at["end"] - at["begin"]),
        work=lambda _i, _o, _a: 0,
    ),
    Operation(
        name="matmul",
        about="x @ y, torch.matmul, torch.bmm of two values of the record",
        shape=_product,
        apply=lambda x, _at, _w: torch.matmul(x[0], x[1]),
        work=lambda inputs, out, _a: 2 * math.prod(out) * inputs[0][-1],
        inputs=(2, 2),
    ),
    Operation(
        name="softmax",
        about="nn.Softmax(-1), F.softmax(x, dim=-1); in nn.MultiheadAttention, F.scaled_dot_product_attention",
        shape=same,
        apply=lambda x, _at, _w: steady.softmax(x[0]),
        work=lambda _i, out, _a: 16 * math.prod(out),
    ),
    Operation(
        name="normalize",
        about="F.normalize(x, dim=...)",
        attributes={"axis": integer(0, 2), "eps": real(1e-12, 1.0)},
        shape=_axis,
        apply=lambda x, at, _w: steady.normalize(x[0], at["axis"], at["eps"]),
        work=lambda _i, out, _a: 4 * math.prod(out),
    ),
    _own("parameter", "nn.Parameter of one's own (positions, class tokens) in +, -, *, / and torch.cat", trained=True),
    _own("buffer", "register_buffer of one's own (mean, std), never trained", trained=False),
    Operation(
        name="embedding",
        about="nn.Embedding of whole numbers in a float32 record; another number gives zeros",
        attributes={"num_embeddings": extent, "embedding_dim": extent},
        shape=_embedded,
        apply=lambda x, _at, w: _rows(w["weight"], x[0]),
        parameters=lambda at: {"weight": (at["num_embeddings"], at["embedding_dim"])},
        work=lambda _i, out, at: 2 * math.prod(out) * int(at["num_embeddings"]),
        inner=lambda _i, out, at: 2 * math.prod(out[:-1]) * int(at["num_embeddings"]),
        differentiable=False,
    ),
    Operation(
        name="look_up",
        about="a tensor of one's own at the places of a buffer: table[self.index] (relative positions)",
        shape=_look_up_shape,
        apply=lambda x, _at, _w: _rows(table=x[0], places=x[1]),
        work=lambda inputs, out, _a: 2 * math.prod(out) * inputs[0][0],
        inner=lambda inputs, out, _a: 2 * inputs[0][0] * out[0],
        inputs=(2, 2),
    ),
    Operation(
        name="pad",
        about="F.pad with a constant, of one side",
        attributes={
            "axis": integer(0, 2),
            "before": integer(0, MAX_EXTENT),
            "after": integer(0, MAX_EXTENT),
            "value": real(-1e6, 1e6),
        },
        shape=_padded,
        apply=_pad,
    ),
    Operation(
        name="in_projection",
        about="queries, keys and values of nn.MultiheadAttention, nn.TransformerEncoderLayer (batch_first=True)",
        attributes={"embed_dim": extent, "bias": flag},
        shape=lambda inputs, at: (*declared("embed_dim", -1)(inputs, at)[:-1], 3 * at["embed_dim"]),
        apply=lambda x, _at, w: functional.linear(x[0], w["in_proj_weight"], w.get("in_proj_bias")),
        parameters=weight_and_bias(lambda at: (3 * at["embed_dim"], at["embed_dim"]), prefix="in_proj_"),
        work=lambda _i, out, at: 2 * math.prod(out) * int(at["embed_dim"]),
    ),
    _recurrent("rnn", "RNN(batch_first=True)", 1, steady.rnn_step(steady.tanh)),
    _recurrent("rnn_relu", "RNN(nonlinearity='relu', batch_first=True)", 1, steady.rnn_step(torch.relu)),
    _recurrent("gru", "GRU(batch_first=True)", 3, steady.gru_step),
    _recurrent("lstm", "LSTM(batch_first=True)", 4, steady.lstm_step),
)
"""Their order is that of the list in docs/ml-team/extractors.md."""
