"""Values while a traced module is lowered to a graph, and the builder that collects nodes and problems."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from dpswd.shared.core.errors import InvalidValue
from dpswd.shared.sandbox.graph import Node, infer
from dpswd.shared.sandbox.operations import Shape
from dpswd.shared.sandbox.vocabulary import VOCABULARY


@dataclass(frozen=True)
class Problem:
    """One reason why a module cannot travel as data.

    Attributes:
        path: the layer's path in the module; empty for the module itself.
        reason: what is not possible.
        instead: what to use.
    """

    path: str
    reason: str
    instead: str

    @property
    def outside(self) -> bool:
        """Whether an operation has no word, so that the records' features could be computed at the hospital."""
        return "not in the vocabulary" in self.reason or "tracing failed" in self.reason

    def __str__(self) -> str:
        """One line for a person."""
        return f"{self.path or '(the module itself)'}: {self.reason}; {self.instead}"


class Refused(Exception):
    """A traced operation has no word in the vocabulary.

    Attributes:
        reason: what is not possible.
        instead: what to use.
    """

    def __init__(self, reason: str, instead: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.instead = instead


@dataclass(frozen=True)
class Batch:
    """Stands for the batch size in a call; only its place can matter, never its value.

    Attributes:
        windows: of each record that stand beside the batch.
    """

    windows: int = 1


BATCH: Final = Batch()


@dataclass(frozen=True)
class Traced:
    """A tensor with a leading batch dimension in the traced program.

    Attributes:
        number: of the graph's value; -1 after a refusal.
        shape: of one record.
    """

    number: int
    shape: Shape


@dataclass(frozen=True)
class Truth(Traced):
    """What a comparison gives: 1.0 where it is so, which a mask of attention takes otherwise than a number."""


UNKNOWN: Final = Traced(-1, ())
"""The value of whatever follows a refusal: it spreads, and causes no further refusals by itself."""


class Builder:
    """Collects nodes; the shapes of what was refused stay unknown, so that all problems are found in one pass."""

    def __init__(self, input_shape: Shape) -> None:
        self.nodes: list[Node] = []
        self._shapes: list[Shape] = [input_shape]

    def record(self) -> Traced:
        """The graph's input."""
        return Traced(0, self._shapes[0])

    def emit(self, name: str, *inputs: Traced, path: str = "", **arguments: Any) -> Traced:
        """Appends one node.

        Args:
            name: of the operation, in the vocabulary.
            inputs: what it takes.
            path: of the layer in the module; no part of the node where the operation has no tensors.
            arguments: the attributes as torch takes them.

        Raises:
            Refused: the attributes are not allowed, or the shapes do not fit.
        """
        if any(value is UNKNOWN for value in inputs):
            return UNKNOWN
        operation = VOCABULARY[name]
        attributes = {key: operation.attributes[key].read(value) for key, value in arguments.items()}
        own_path = path if operation.tensors(attributes) else ""
        node = Node(name, tuple(value.number for value in inputs), own_path, attributes)
        try:
            shape = infer(node, self._shapes)
        except InvalidValue as error:
            raise Refused(str(error), "check the layer's settings and the declared input shape") from error
        self.nodes.append(node)
        self._shapes.append(shape)
        return Traced(len(self._shapes) - 1, shape)

    def reshape(self, value: Traced, shape: Shape) -> Traced:
        """A reshape of one record, or nothing where the shape is already that."""
        return value if value is UNKNOWN or value.shape == shape else self.emit("reshape", value, shape=shape)
