"""What an ONNX file says of itself, read without onnxruntime, and what in it is refused before that sees the bytes.

ONNX is a protocol buffer (onnx/onnx.proto, fields by number). The parts that decide something are declared here; a
parser passes over the rest, and onnxruntime reads the same bytes by the same rules.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from dpswd.shared.core.errors import InvalidValue

MAX_MODEL_BYTES = (1 << 31) - 1
"""A protocol buffer is not longer; larger models keep their weights in files beside, which are refused."""
_SHOWN = 20  # inputs, outputs and operators that are told
_NAME = 60  # characters of a name that are told
_STANDARD = ("", "ai.onnx")
_RUNTIME = ("ai.onnx", "com.microsoft", "com.ms", "org.pytorch")
"""Domains, with all below them, in which onnxruntime may have operators of its own."""
_RANDOM = frozenset(
    ("RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Multinomial", "Bernoulli")
)
"""onnxruntime draws them from a generator as old as the session: one record would move another's feature."""
_EXTERNAL = 1  # TensorProto.DataLocation.EXTERNAL
FLOAT32, INT32, INT64 = 1, 6, 7
TYPES = {FLOAT32: "float32", INT32: "int32", INT64: "int64", 10: "float16", 11: "float64", 2: "uint8", 9: "bool"}
"""Names of TensorProto.DataType."""

# message -> field -> (number, type; "*" in front where it is repeated)
_MESSAGES = {
    "Model": {"ir_version": (1, "int64"), "graph": (7, "Graph"), "opset_import": (8, "*OperatorSet"),
              "training_info": (20, "*Training"), "functions": (25, "*Function")},
    "OperatorSet": {"domain": (1, "string"), "version": (2, "int64")},
    "Training": {"initialization": (1, "Graph"), "algorithm": (2, "Graph")},
    "Function": {"name": (1, "string"), "node": (7, "*Node"), "domain": (10, "string"),
                 "attribute_proto": (11, "*Attribute")},
    "Graph": {"node": (1, "*Node"), "name": (2, "string"), "initializer": (5, "*Tensor"), "input": (11, "*Value"),
              "output": (12, "*Value"), "sparse_initializer": (15, "*SparseTensor")},
    "Node": {"input": (1, "*string"), "output": (2, "*string"), "op_type": (4, "string"),
             "attribute": (5, "*Attribute"), "domain": (7, "string")},
    "Attribute": {"name": (1, "string"), "i": (3, "int64"), "t": (5, "Tensor"), "g": (6, "Graph"),
                  "ints": (8, "*int64"), "tensors": (10, "*Tensor"), "graphs": (11, "*Graph"), "type": (20, "int32"),
                  "sparse_tensor": (22, "SparseTensor"), "sparse_tensors": (23, "*SparseTensor")},
    "SparseTensor": {"values": (1, "Tensor"), "indices": (2, "Tensor")},
    "Tensor": {"dims": (1, "*int64"), "data_type": (2, "int32"), "name": (8, "string"), "raw_data": (9, "bytes"),
               "external_data": (13, "*Entry"), "data_location": (14, "int32")},
    "Entry": {"key": (1, "string"), "value": (2, "string")},
    "Value": {"name": (1, "string"), "type": (2, "Type")},
    "Type": {"tensor_type": (1, "TensorType")},
    "TensorType": {"elem_type": (1, "int32"), "shape": (2, "Shape")},
    "Shape": {"dim": (1, "*Dimension")},
    "Dimension": {"dim_value": (1, "int64"), "dim_param": (2, "string")},
}  # fmt: skip


def message_classes() -> dict[str, Any]:
    """The parts of ONNX's messages that are read here, as classes of protocol buffers, by name."""
    field_type = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="dpswd-onnx.proto", package="dpswd_onnx", syntax="proto2")
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, (number, kind) in fields.items():
            plain = kind.removeprefix("*")
            added = message.field.add(name=field, number=number)
            added.label = field_type.LABEL_REPEATED if kind != plain else field_type.LABEL_OPTIONAL
            if plain in _MESSAGES:
                added.type, added.type_name = field_type.TYPE_MESSAGE, f".dpswd_onnx.{plain}"
            else:
                added.type = field_type.Type.Value(f"TYPE_{plain.upper()}")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"dpswd_onnx.{name}")) for name in _MESSAGES
    }


@dataclass(frozen=True)
class Tensor:
    """An input or an output.

    Attributes:
        name: as the file has it.
        type: of `TYPES`' numbers; 0 where the file does not say.
        shape: with None for a size that the file leaves open; None as a whole where it says nothing.
    """

    name: str
    type: int
    shape: tuple[int | None, ...] | None

    def __str__(self) -> str:
        sizes = ("n" if size is None else str(size) for size in self.shape or ())
        shape = "of any shape" if self.shape is None else " x ".join(sizes) or "one value"
        return f"{printable(self.name)}: {TYPES.get(self.type, 'another type')} {shape}"


@dataclass(frozen=True)
class OnnxModel:
    """What the file says.

    Attributes:
        inputs: without those that are weights.
        outputs: of the graph.
        operators: how often each stands in it.
        weights: numbers in all initial tensors.
    """

    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    operators: dict[str, int]
    weights: int

    def summarise(self) -> dict[str, Any]:
        """For the operator's terminal; names are cut and made printable."""
        counts = Counter(self.operators).most_common()
        names = [f"{printable(name)} {count}" for name, count in counts[:_SHOWN]]
        return {
            "weights": self.weights,
            "inputs": "; ".join(map(str, self.inputs[:_SHOWN])),
            "outputs": "; ".join(map(str, self.outputs[:_SHOWN])),
            "operators": ", ".join([*names, "..."] if len(counts) > _SHOWN else names),
        }


def read_model(data: bytes) -> OnnxModel:
    """Reads a file's bytes.

    Raises:
        InvalidValue: they are no ONNX model, or one that needs other files or operators than ONNX's own.
    """
    try:
        model = message_classes()["Model"].FromString(data)
    except DecodeError as error:
        raise InvalidValue("this is no ONNX model, or a damaged one; export it anew") from error
    graph = model.graph
    if not graph.node:
        raise InvalidValue("this is no ONNX model: it holds no graph of operators; export the network to ONNX")
    for function in model.functions:
        if _registered(function.domain):  # onnxruntime would take an operator of its own by that name
            raise InvalidValue(
                f"it defines a function {printable(function.name)} in the domain {printable(function.domain)!r}, where "
                "onnxruntime may have an operator of that name; export the model without fused operators"
            )
    own = {(function.domain, function.name) for function in model.functions}
    operators: Counter[str] = Counter()
    for part in _parts(model):
        kind = part.DESCRIPTOR.name
        if kind == "Tensor" and (part.data_location == _EXTERNAL or part.external_data):
            raise InvalidValue(
                "weights lie in another file, which is not read; export the model with its weights inside "
                "(torch.onnx.export: external_data=False)"
            )
        if kind == "Node":
            if part.domain not in _STANDARD and (part.domain, part.op_type) not in own:
                raise InvalidValue(
                    f"the operator {printable(part.op_type)} of {printable(part.domain)} is not one of ONNX's own; "
                    "export the model without custom or fused operators"
                )
            if part.op_type in _RANDOM or (part.op_type == "Dropout" and any(part.input[2:])):
                raise InvalidValue(
                    f"the operator {part.op_type} may be random: what it draws depends on what it was asked before, "
                    "and a feature must follow from its own record; export the model in evaluation mode (model.eval())"
                )
            operators[part.op_type] += 1
    held = {tensor.name for tensor in graph.initializer} | {one.values.name for one in graph.sparse_initializer}
    return OnnxModel(
        inputs=tuple(_tensor(value) for value in graph.input if value.name not in held),
        outputs=tuple(_tensor(value) for value in graph.output),
        operators=dict(operators),
        weights=sum(_size(tensor.dims) for tensor in graph.initializer),
    )


def _registered(domain: str) -> bool:
    return domain in _STANDARD or any(domain == one or domain.startswith(f"{one}.") for one in _RUNTIME)


def printable(text: str) -> str:
    """A name or a message of a file's making, for a terminal: no control characters, not long."""
    plain = "".join(sign if sign.isascii() and sign.isprintable() else "?" for sign in text[: _NAME + 1])
    return plain if len(plain) <= _NAME else f"{plain[:_NAME]}..."


def _parts(message: Any) -> Iterator[Any]:
    """The message and every message in it, whichever field it stands in."""
    waiting = [message]
    while waiting:
        current = waiting.pop()
        yield current
        for field, value in current.ListFields():
            if field.message_type is not None:
                waiting.extend([value] if hasattr(value, "DESCRIPTOR") else value)


def _tensor(value: Any) -> Tensor:
    kind = value.type.tensor_type
    if not kind.HasField("shape"):
        return Tensor(value.name, kind.elem_type, None)
    shape = tuple(int(one.dim_value) if one.HasField("dim_value") else None for one in kind.shape.dim)
    return Tensor(value.name, kind.elem_type, shape)


def _size(dims: Any) -> int:
    size = 1
    for dim in dims:
        size *= max(0, int(dim))
    return size
