"""Structure-aware mutations of protobuf messages, of the JSON graph and the safetensors file inside them, and of bytes.

A mutated request still looks like one: mutations happen at the fields of the descriptor, with the values at which
parsers and arithmetic break (ends of the integer types, NaN, infinities, denormals, sizes that do not match), and with
parts of other valid requests. One in sixteen is broken on the wire as well.
"""

from __future__ import annotations

import json
import math
import random
import struct
import uuid
from collections.abc import Iterator
from typing import Any

from google.protobuf.descriptor import FieldDescriptor as Field
from google.protobuf.message import DecodeError, Message
from google.protobuf.unknown_fields import UnknownFieldSet

from dpswd.shared.core.wire.v1 import curator_pb2 as pb

_INTEGERS = (0, 1, 2, 3, 7, 64, 127, 128, 255, 256, 1000, 65535, 65536, 2**20, 2**24, 2**31 - 1)
_UNSIGNED = (2**31, 2**32 - 1)
_LONG = (2**32, 2**53, 2**63 - 1, 2**64 - 1)
_NUMBERS = (
    0.0, -0.0, 1.0, -1.0, 5e-324, 2.2e-308, 1e-300, 1e-30, 1e-6, 0.5, 2.0, 60_000.0, 1e6, 1e30, 1e300, 1.8e308,
    math.nan, math.inf, -math.inf, math.pi,
)  # fmt: skip
_TEXTS = ("", " ", "\x00", "0" * 64, "f" * 64, "é", "𝕏" * 20, "../../etc/passwd", "%s%n", "' OR 1=1 --", "A" * 5000)
_INTO = 0.7  # of the mutations go into the bytes that a mechanism reads, which have most of the fields
_FLOATS = tuple(struct.pack("<f", value) for value in (0.0, -0.0, math.nan, math.inf, 1e38, 1e-45, 1.0))
_INSIDE: dict[str, tuple[type[Message], ...]] = {
    "declaration": (
        pb.SlicedDeclaration, pb.GradientDeclaration, pb.EvaluationDeclaration,
        pb.ClassStatisticsDeclaration, pb.LabelledGradientDeclaration, pb.ScoreStatisticsDeclaration,
    ),
    "payload": (
        pb.SlicedRequest, pb.GradientRequest, pb.LossGradientRequest, pb.EvaluationRequest, pb.ScoreStatisticsRequest,
    ),
}  # fmt: skip
"""Messages that travel as bytes of other messages, by the field's name."""


class Mutator:
    """Draws mutated requests.

    Args:
        seeds: valid requests by kind.
        rng: every draw comes from it.
    """

    def __init__(self, seeds: dict[str, list[Message]], rng: random.Random) -> None:
        self._seeds = seeds
        self._rng = rng
        self._parts: dict[str, list[Message]] = {}
        self._texts: list[str] = list(_TEXTS)
        self._bytes: list[bytes] = [b""]
        for messages in seeds.values():
            for message in messages:
                self._learn(message)

    def _learn(self, message: Message) -> None:
        """Collects parts of valid requests, to be put where they do not belong."""
        self._parts.setdefault(message.DESCRIPTOR.full_name, []).append(message)
        for field, value in message.ListFields():
            for element in value if field.is_repeated else [value]:
                if field.type == Field.TYPE_MESSAGE:
                    self._learn(element)
                elif field.type == Field.TYPE_STRING:
                    self._texts.append(element)
                elif field.type == Field.TYPE_BYTES:
                    self._bytes.append(element)
                    for inner in _inside(field.name, element):
                        self._learn(inner)

    def request(self, kind: str) -> bytes:
        """The bytes of one mutated request of a kind."""
        rng = self._rng
        message = type(seed := rng.choice(self._seeds[kind]))()
        message.CopyFrom(seed)
        self._refresh(message)
        while True:
            self._mutate(message)
            if rng.random() < 0.5:
                break
        data = message.SerializeToString()
        return self._on_the_wire(data) if not data or rng.random() < 1 / 16 else data

    def _refresh(self, message: Message) -> None:
        """Most requests come under an id of their own; the others repeat one."""
        if self._rng.random() < 0.8 and "request_id" in message.DESCRIPTOR.fields_by_name:
            message.request_id = str(uuid.UUID(int=self._rng.getrandbits(128), version=4))  # type: ignore[attr-defined]

    def _mutate(self, message: Message) -> None:
        places = list(_places(message))
        if not places:  # Describe has no fields
            return
        inner = [place for place in places if place[1].name in _INSIDE]
        holder, field = self._rng.choice(inner if inner and self._rng.random() < _INTO else places)
        try:
            self._change(holder, field)
        except ValueError:  # strings protobuf itself refuses to hold; such bytes are made on the wire
            holder.ClearField(field.name)

    def _change(self, holder: Message, field: Field) -> None:
        rng = self._rng
        if rng.random() < 0.1:
            holder.ClearField(field.name)
        elif field.is_repeated:
            self._change_repeated(getattr(holder, field.name), field)
        elif field.type == Field.TYPE_MESSAGE:
            getattr(holder, field.name).CopyFrom(self._part(field))
        else:
            setattr(holder, field.name, self._value(field, getattr(holder, field.name)))

    def _change_repeated(self, values: Any, field: Field) -> None:
        rng = self._rng
        kind = rng.randrange(5)
        if kind == 0 and values:
            del values[rng.randrange(len(values))]
        elif kind == 1:
            values.extend(list(values)[:50])
        elif kind == 2:
            values.extend([self._value(field, None) for _ in range(rng.choice((1, 2, 70)))])
        elif values:
            at = rng.randrange(len(values))
            values[at] = self._value(field, values[at])

    def _part(self, field: Field) -> Message:
        parts = self._parts.get(field.message_type.full_name)
        return self._rng.choice(parts) if parts else field.message_type._concrete_class()

    def _value(self, field: Field, old: Any) -> Any:
        rng = self._rng
        if field.type in (Field.TYPE_UINT32, Field.TYPE_INT32):
            return rng.choice(_INTEGERS + (_UNSIGNED if field.type == Field.TYPE_UINT32 else (-1, -(2**31))))
        if field.type in (Field.TYPE_UINT64, Field.TYPE_INT64):
            return rng.choice(_INTEGERS + _UNSIGNED + _LONG[: 4 if field.type == Field.TYPE_UINT64 else 3])
        if field.type == Field.TYPE_DOUBLE:
            return rng.choice(_NUMBERS) if rng.random() < 0.8 else math.exp(rng.uniform(-40, 40))
        if field.type == Field.TYPE_BOOL:
            return not old
        if field.type == Field.TYPE_ENUM:
            return rng.choice((0, 1, 2, 3, 100, 2**31 - 1))
        if field.type == Field.TYPE_STRING:
            return self._text(old or "")
        return self._change_bytes(field.name, old or b"")

    def _text(self, old: str) -> str:
        rng = self._rng
        kind = rng.randrange(4)
        if kind == 0 or not old:
            return rng.choice(self._texts)
        if kind == 1:
            return old[: rng.randrange(len(old))]
        if kind == 2:
            return old.upper() if old != old.upper() else old + old
        at = rng.randrange(len(old))
        return old[:at] + chr(rng.choice((0, 48, 97, 0x7F, 0x100, 0x10FFFF))) + old[at + 1 :]

    def _change_bytes(self, name: str, old: bytes) -> bytes:
        rng = self._rng
        if rng.random() < 0.7:
            if name == "graph" and old.startswith(b"{"):
                return self._graph(old)
            if name == "weights" and len(old) > 8:
                return self._safetensors(old)
            if types := _inside(name, old):
                inner = rng.choice(types)
                self._mutate(inner)
                return inner.SerializeToString()
        kind = rng.randrange(6)
        if kind == 0:
            return rng.choice(self._bytes)
        if kind == 1:
            return old[: rng.randrange(len(old) + 1)]
        if kind == 2:
            return old + rng.randbytes(rng.choice((1, 3, 4, 1000)))
        if kind == 3 and len(old) >= 4:  # one float32 of an array
            at = 4 * rng.randrange(len(old) // 4)
            return old[:at] + rng.choice(_FLOATS) + old[at + 4 :]
        return self._on_the_wire(old)

    def _graph(self, old: bytes) -> bytes:
        """Changes one value anywhere in the graph's JSON, spelled canonically again in most cases."""
        document = json.loads(old)
        places = list(_json_places(document))
        for _ in range(self._rng.choice((1, 1, 1, 2, 5))):
            holder, key = self._rng.choice(places)
            if isinstance(holder, dict) and self._rng.random() < 0.1:
                holder["another"] = holder.pop(key, None)
            elif isinstance(holder, list) and self._rng.random() < 0.3 and holder:
                holder.insert(self._rng.randrange(len(holder) + 1), self._rng.choice(holder))
            elif (isinstance(holder, dict) and key in holder) or (isinstance(holder, list) and key < len(holder)):
                holder[key] = self._json_value(holder[key])
        separators = (",", ":") if self._rng.random() < 0.9 else (", ", ": ")
        return json.dumps(document, sort_keys=True, separators=separators).encode()

    def _json_value(self, old: object) -> object:
        rng = self._rng
        if isinstance(old, bool) or old is None:
            return rng.choice((True, False, None, 0, 1, ""))
        if isinstance(old, int):
            return rng.choice((old + 1, old - 1, -old, 0, 1, 2**31, 2**63, 2**64, 10**30, old * 1000, 1.5, True, None))
        if isinstance(old, float):
            return rng.choice((0.0, -1.0, 1e308, 5e-324, "x", None))
        if isinstance(old, str):
            return rng.choice((*self._texts, "relu", "linear", "conv2d", "flatten", "__import__", old + "x"))
        if isinstance(old, list):
            return rng.choice(([], old + old, old[:-1], [old], [-1], [2**40], None))
        return rng.choice(({}, [], None, 3))

    def _safetensors(self, old: bytes) -> bytes:
        """Changes the header's length, its JSON, or the data behind it."""
        rng = self._rng
        (length,) = struct.unpack("<Q", old[:8])
        header, data = old[8 : 8 + length], old[8 + length :]
        kind = rng.randrange(4)
        if kind == 0:
            return (
                struct.pack(
                    "<Q", rng.choice((0, 1, (length - 1) % 2**64, (length + 1) % 2**64, 2**32, 2**63, 2**64 - 1))
                )
                + old[8:]
            )
        if kind == 1:
            at = 4 * rng.randrange(max(1, len(data) // 4))
            return old[: 8 + length] + data[:at] + rng.choice(_FLOATS) + data[at + 4 :]
        if kind == 2:
            return old[:-1] if rng.random() < 0.5 else old + b"\0" * 4
        try:
            document = json.loads(header)
        except ValueError:
            return self._on_the_wire(old)
        holder, key = rng.choice(list(_json_places(document)) or [(document, "x")])
        holder[key] = self._json_value(holder[key] if not isinstance(holder, dict) else holder.get(key))
        spelled = json.dumps(document).encode()
        return struct.pack("<Q", len(spelled)) + spelled + data

    def _on_the_wire(self, data: bytes) -> bytes:
        rng = self._rng
        out = bytearray(data)
        for _ in range(rng.choice((1, 1, 2, 8))):
            kind, at = rng.randrange(4), rng.randrange(len(out) + 1)
            if kind == 0 and at < len(out):
                out[at] ^= 1 << rng.randrange(8)
            elif kind == 1:
                out[at:at] = rng.randbytes(rng.choice((1, 2, 10)))
            elif kind == 2:
                del out[at : at + rng.choice((1, 4, 100))]
            else:
                out[at : at + 1] = b"\xff" * rng.choice((1, 9))
        return bytes(out)


def _inside(name: str, data: bytes) -> list[Message]:
    """The messages that the bytes of such a field may be."""
    messages = []
    for kind in _INSIDE.get(name, ()):
        message = kind()
        try:
            message.ParseFromString(data)
        except DecodeError:
            continue
        messages.append(message)
    # Bytes of another kind leave some of them as unknown fields, or unread.
    return [message for message in messages if not UnknownFieldSet(message)] or messages


def _places(message: Message) -> Iterator[tuple[Message, Field]]:
    """Every field of the message and of the messages that are set within it."""
    for field in message.DESCRIPTOR.fields:
        yield message, field
        if field.type == Field.TYPE_MESSAGE and not field.is_repeated and message.HasField(field.name):
            yield from _places(getattr(message, field.name))


def _json_places(document: Any) -> Iterator[tuple[Any, Any]]:
    items = document.items() if isinstance(document, dict) else enumerate(document)
    for key, value in list(items):
        yield document, key
        if isinstance(value, (dict, list)):
            yield from _json_places(value)
