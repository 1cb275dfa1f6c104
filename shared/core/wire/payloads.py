"""Payloads on the wire: one protobuf message each, parsed and written in one place."""

from __future__ import annotations

from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, ClassVar, Self, TypeVar, get_args, get_origin, get_type_hints

import numpy as np
import numpy.typing as npt
from google.protobuf.message import DecodeError, Message

from dpswd.shared.core.errors import RequestInvalid
from dpswd.shared.core.noise.feature_map import FeatureMap
from dpswd.shared.core.noise.noise import GridArray
from dpswd.shared.core.wire import arrays
from dpswd.shared.core.wire.checks import Violation, invalid
from dpswd.shared.core.wire.limits import MAX_MESSAGE_BYTES
from dpswd.shared.core.wire.v1 import curator_pb2 as pb

_M = TypeVar("_M", bound=Message)


@dataclass(frozen=True)
class Wire:
    """How one attribute of a payload travels, where its own name and type do not say it.

    Attributes:
        name: of the message's field; "" where the attribute's name.
        shape: of an array: numbers as they are, a name for each size that may vary, equal names for equal sizes; None
            for any.
        most: values of an array.
    """

    name: str = ""
    shape: tuple[int | str, ...] | None = None
    most: int = MAX_MESSAGE_BYTES // 4

    def check(self, shape: tuple[int, ...], *, field: str) -> None:
        """Holds an array to the declared shape.

        Raises:
            RequestInvalid: it has another one.
        """
        if self.shape is None:
            return
        sizes = dict(zip(self.shape, shape, strict=False))
        if shape != tuple(sizes.get(size) if isinstance(size, str) else size for size in self.shape):
            raise invalid(field, f"has shape {shape}; needed is ({', '.join(map(str, self.shape))})")


class MessagePayload:
    """A frozen dataclass that travels as one protobuf message.

    Each attribute travels in the field of its name: numbers, texts, bytes, tuples of them, arrays, feature maps, and
    other such payloads. ``Annotated[type, Wire(...)]`` says what differs. Where the type allows None, None is an absent
    message, or no bytes of a flat array.

    Args:
        message: the protobuf message.
        field: the path of the whole payload in refusals.
    """

    _message: ClassVar[type[Message]]
    _field: ClassVar[str]
    _layout: ClassVar[dict[str, tuple[Wire, tuple[Any, ...]]]]

    def __init_subclass__(cls, *, message: type[Message], field: str) -> None:
        super().__init_subclass__()
        cls._message, cls._field, cls._layout = message, field, _layout(cls)

    def broken_structure(self) -> list[Violation]:
        """Rules that the payload breaks by itself, besides those of its arrays, each with the message's field."""
        return []

    def to_message(self) -> Any:
        """The protobuf message."""
        sent, descriptor = {}, self._message.DESCRIPTOR
        for attribute, (wire, _) in self._layout.items():
            value, name = getattr(self, attribute), wire.name
            match value:
                case GridArray():
                    value = arrays.encode_grid(value)
                case FeatureMap():
                    value = arrays.encode_map(value)
                case MessagePayload():
                    value = value.to_message()
                case np.ndarray() if descriptor.fields_by_name[name].message_type is None:
                    value = float_bytes(value)
                case np.ndarray():
                    value = arrays.encode_floats(value)
            sent[name] = value
        return self._message(**sent)

    def to_bytes(self) -> bytes:
        """Canonical bytes: equal values give equal bytes."""
        return written(self.to_message())

    @classmethod
    def from_message(cls, message: Message, field: str = "") -> Self:
        """The inverse of `to_message`.

        Args:
            message: from the wire.
            field: its path in refusals, where it is part of another payload.

        Raises:
            RequestInvalid: an array or a map is none, or the payload breaks rules of its own; each is named.
        """
        field = field or cls._field
        payload = cls(**{name: _decoded(message, *layout, field) for name, layout in cls._layout.items()})
        if broken := payload.broken_structure():
            raise RequestInvalid(tuple((f"{field}.{name}", text) for name, text in broken))
        return payload

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """The inverse of `to_bytes`.

        Raises:
            RequestInvalid: the bytes are no such message, hold fields that it does not have, or see `from_message`.
        """
        return cls.from_message(parsed(cls._message, data, field=cls._field))


@dataclass(frozen=True)
class NoPayload:
    """What a step brings where it brings nothing."""

    def to_bytes(self) -> bytes:
        """No bytes."""
        return b""

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """The inverse of `to_bytes`.

        Raises:
            RequestInvalid: there are bytes.
        """
        if data:
            raise invalid("payload", f"has {len(data)} bytes; a step of this run's mechanism brings none")
        return cls()


def _layout(payload: type[MessagePayload]) -> dict[str, tuple[Wire, tuple[Any, ...]]]:
    """How each attribute travels, with its field's name, and the types that it may have."""
    layout = {}
    for attribute, hint in get_type_hints(payload, include_extras=True).items():
        if get_origin(hint) is ClassVar:
            continue
        kind, wire = get_args(hint) if get_origin(hint) is Annotated else (hint, Wire())
        named = Wire(wire.name or attribute, wire.shape, wire.most)
        layout[attribute] = (named, get_args(kind) if isinstance(kind, UnionType) else (kind,))
    return layout


def _decoded(message: Message, wire: Wire, types: tuple[Any, ...], field: str) -> Any:
    """The value of one attribute; `field` is the message's path."""
    name, path = wire.name, f"{field}.{wire.name}"
    value = getattr(message, name)
    if isinstance(value, Message) and NoneType in types and not message.HasField(name):
        return None
    match value:
        case pb.GridArray():
            grid = arrays.decode_grid(value, field=path, max_values=wire.most)
            wire.check(grid.values.shape, field=path)
            return grid
        case pb.FloatArray():
            return arrays.decode_floats(value, field=path, max_values=wire.most)
        case pb.FeatureMap():
            return arrays.decode_map(value, field=path)
        case Message():
            return types[0].from_message(value, path)
        case bytes() if bytes not in types:
            return floats(value, field=path)
        case int() | float() | str() | bytes():
            return value
    return tuple(value)


def parsed(kind: type[_M], data: bytes, *, field: str) -> _M:
    """The message of these bytes, all of which it understands: another mechanism's payload is not read as an empty one.

    Raises:
        RequestInvalid: they are none.
    """
    message = kind()
    try:
        message.ParseFromString(data)
    except DecodeError as error:
        raise invalid(field, f"is no {kind.DESCRIPTOR.name} that can be parsed") from error
    size = message.ByteSize()
    message.DiscardUnknownFields()
    if message.ByteSize() != size:
        raise invalid(field, f"has fields that no {kind.DESCRIPTOR.name} has; send what this run's mechanism reads")
    return message


def written(message: Message) -> bytes:
    """Canonical bytes of a message."""
    return message.SerializeToString(deterministic=True)


def float_bytes(values: npt.NDArray[np.float32] | None) -> bytes:
    """A flat vector as float32, little-endian; no bytes for None."""
    return b"" if values is None else np.ascontiguousarray(values, dtype="<f4").tobytes()


def floats(data: bytes, *, field: str) -> npt.NDArray[np.float32] | None:
    """The inverse of `float_bytes`, owning its memory.

    Raises:
        RequestInvalid: not whole float32 values, or one that is not finite.
    """
    if not data:
        return None
    if len(data) % 4:
        raise invalid(field, f"has {len(data)} bytes; float32 values take 4 bytes each")
    values = np.frombuffer(data, dtype="<f4").astype(np.float32)
    if not np.isfinite(values).all():
        raise invalid(field, "holds NaN or infinite values; send finite values only")
    return values
