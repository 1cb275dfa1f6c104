"""The extractor's graph: frozen, validated when made, with canonical bytes and a digest.

Values are numbered: 0 is the record, i + 1 is the output of node i, and the last node's output is the feature vector. A
node may only name values before it, so a graph has neither cycles nor forward references by construction.

Canonical bytes are JSON with sorted keys and no white space. Parsing re-serialises and compares, so each graph has
exactly one spelling, and its SHA-256 is what an operator approves. **The meaning of `FORMAT`, field by field and word
by word, must never change**: approvals and audit records hold digests. A new meaning is a new format.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import NoReturn

from dpswd.shared.core.errors import InvalidValue
from dpswd.shared.sandbox.attributes import MAX_EXTENT, Attributes, integers
from dpswd.shared.sandbox.operations import Operation, Shape, Tensors
from dpswd.shared.sandbox.vocabulary import VOCABULARY

FORMAT = "dpswd-extractor-graph-1"

MAX_GRAPH_BYTES = 512_000  # bytes; ResNet-152 takes about 120,000
MAX_NODES = 2_048
"""ResNet-152 has about 520 nodes, DenseNet-201 about 700."""
MAX_PATH = 200  # characters
MAX_PARAMETERS = 2**26
"""67 million numbers, 256 MiB: ResNet-152 has 58 million. A larger extractor cannot be uploaded anyway."""
MAX_INPUT_VALUES = 2**20
"""Numbers of one record: a 3 x 512 x 512 image fits."""
MAX_FEATURES = 2**16
"""Largest feature dimension; directions are drawn as a (features, k) matrix."""
MAX_ACTIVATION_VALUES = 2**26
"""Numbers in all intermediate values of one record together, 256 MiB: ResNet-152 at 224 x 224 has about 60 million."""
MAX_WORKSPACE_VALUES = 2**26
"""Scratch numbers that any one operation may need for one record (an unfolded convolution), 256 MiB."""
MAX_STEPS = 10_240
"""Of one graph: parts that come one after the other cost time by themselves. Four recurrent layers of the longest
sequences, and as many nodes as there may be."""
MAX_WORK = 2**35
"""Floating point operations for one record, about a second on one core: ResNet-152 at 224 x 224 takes 2.3e10."""

_SIDES = integers(1, MAX_EXTENT, length=(1, 3))
_PATH = re.compile(r"(?:[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)*)?")
_NODE_KEYS = {"operation", "inputs", "path", "attributes"}
_GRAPH_KEYS = {"format", "input_shape", "nodes"}


@dataclass(frozen=True)
class Node:
    """One operation of a graph.

    Attributes:
        operation: a name in `VOCABULARY`.
        inputs: numbers of earlier values.
        path: the layer's path in the traced module, the prefix of its tensors' names; empty for operations without
            tensors. Two nodes with one path share the tensors that both name.
        attributes: values by name; never changed.
    """

    operation: str
    inputs: tuple[int, ...]
    path: str = ""
    attributes: Attributes = field(default_factory=dict)


@dataclass(frozen=True)
class Cost:
    """What one record costs, from declared sizes alone.

    Attributes:
        parameters: numbers in all weights.
        activations: numbers in the record and all intermediate values, those inside of operations too.
        workspace: scratch numbers of the greediest operation.
        work: floating point operations of one forward pass.
        steps: parts of a forward pass that come one after the other, however small.
    """

    parameters: int
    activations: int
    workspace: int
    work: int
    steps: int


@dataclass(frozen=True)
class ExtractorGraph:
    """A validated graph; making an invalid one raises InvalidValue.

    Attributes:
        nodes: in order of evaluation.
        input_shape: of one record, without a batch dimension: (d,), (c, l) or (c, h, w).
    """

    nodes: tuple[Node, ...]
    input_shape: Shape

    def __post_init__(self) -> None:
        _check_input_shape(self.input_shape)
        if len(self.nodes) > MAX_NODES:
            raise InvalidValue(f"a graph may have at most {MAX_NODES} nodes, got {len(self.nodes)}")
        final = self.shapes[-1]
        if len(final) != 1:
            raise InvalidValue(f"the output must be a vector per record, got shape {final}; flatten it")
        if final[0] > MAX_FEATURES:
            raise InvalidValue(f"the graph computes {final[0]} features, at most {MAX_FEATURES} are allowed")
        used = {number for node in self.nodes for number in node.inputs}
        unused = [i for i in range(1, len(self.nodes)) if i not in used]
        if unused:
            raise InvalidValue(f"nodes {[i - 1 for i in unused[:5]]} compute values that nothing uses")
        _check_limits(self.cost)

    @property
    def feature_dimension(self) -> int:
        """Length of the feature vector."""
        return self.shapes[-1][0]

    @cached_property
    def shapes(self) -> tuple[Shape, ...]:
        """Shape of each value, the record's first."""
        shapes: list[Shape] = [self.input_shape]
        owners: dict[str, tuple[str, Attributes]] = {}
        total = math.prod(self.input_shape)
        for position, node in enumerate(self.nodes):
            try:
                shape = infer(node, shapes)
            except InvalidValue as error:
                raise InvalidValue(f"node {position} ({_label(node)}): {error}") from error
            total += self._numbers(node, shapes, shape)
            if total > MAX_ACTIVATION_VALUES:  # stop at once: later sizes could only grow
                raise InvalidValue(f"node {position}: the values of one record exceed {MAX_ACTIVATION_VALUES} numbers")
            own, layer = operation_of(node).tensors(node.attributes), (node.operation, node.attributes)
            if any(owners.setdefault(tensor_name(node.path, name), layer) != layer for name in own):
                raise InvalidValue(f"node {position}: path {node.path!r} names two different layers")
            if node.path and not own:
                raise InvalidValue(f"node {position}: {node.operation} has no tensors and takes no path")
            shapes.append(shape)
        return tuple(shapes)

    @cached_property
    def parameter_shapes(self) -> Mapping[str, Shape]:
        """Shape of each trainable tensor, in order of first use."""
        return MappingProxyType(self._tensors(lambda operation: operation.parameters))

    @cached_property
    def learnable(self) -> Mapping[str, Shape]:
        """The trainable tensors that a gradient reaches: no comparison or look-up stands behind each use."""
        reached, names = {len(self.nodes)}, set()
        for number in range(len(self.nodes), 0, -1):
            node = self.nodes[number - 1]
            if number in reached:
                operation = operation_of(node)
                names |= {tensor_name(node.path, name) for name in operation.parameters(node.attributes)}
                reached |= set(node.inputs if operation.differentiable else ())
        return {name: shape for name, shape in self.parameter_shapes.items() if name in names}

    @cached_property
    def buffer_shapes(self) -> Mapping[str, Shape]:
        """Shape of each stored tensor that is never trained (running statistics)."""
        return MappingProxyType(self._tensors(lambda operation: operation.buffers))

    @property
    def tensor_shapes(self) -> Mapping[str, Shape]:
        """Parameters and buffers together: exactly what a weights file must hold."""
        return {**self.parameter_shapes, **self.buffer_shapes}

    def _tensors(self, which: Callable[[Operation], Tensors]) -> dict[str, Shape]:
        return {
            tensor_name(node.path, name): shape
            for node in self.nodes
            for name, shape in which(operation_of(node))(node.attributes).items()
        }

    @cached_property
    def cost(self) -> Cost:
        """Size and work of one record."""
        activations, work, steps, workspace = math.prod(self.input_shape), 0, 0, 0
        for node, out in zip(self.nodes, self.shapes[1:], strict=True):
            operation, at = operation_of(node), node.attributes
            activations += self._numbers(node, self.shapes, out)
            work += operation.work([self.shapes[i] for i in node.inputs], out, at)
            steps += operation.steps(out, at)
            workspace = max(workspace, operation.workspace(out, at))
        return Cost(sum(map(math.prod, self.tensor_shapes.values())), activations, workspace, work, steps)

    def _numbers(self, node: Node, shapes: Sequence[Shape], out: Shape) -> int:
        """What a node adds; another shape of what is there already nothing, unless it copies a slice."""
        before = node.inputs[0] if node.inputs else 0
        if node.operation == "reshape" and (before == 0 or self.nodes[before - 1].operation != "slice"):
            return 0
        return math.prod(out) + operation_of(node).inner([shapes[i] for i in node.inputs], out, node.attributes)

    def to_bytes(self) -> bytes:
        """The one canonical spelling."""
        document = {"format": FORMAT, "input_shape": self.input_shape, "nodes": [vars(node) for node in self.nodes]}
        return json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False).encode("ascii")

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the canonical bytes, in hexadecimal: what an operator approves."""
        return hashlib.sha256(self.to_bytes()).hexdigest()

    @classmethod
    def from_bytes(cls, data: bytes) -> ExtractorGraph:
        """Parses untrusted bytes.

        Raises:
            InvalidValue: anything but the canonical spelling of a valid graph within the limits.
        """
        if len(data) > MAX_GRAPH_BYTES:
            raise InvalidValue(f"a graph may take at most {MAX_GRAPH_BYTES} bytes, got {len(data)}")
        try:
            document = json.loads(data.decode("ascii"), parse_constant=_refuse_constant)
        except (ValueError, RecursionError) as error:
            raise InvalidValue("a graph must be canonical JSON in ASCII") from error
        if not isinstance(document, dict) or set(document) != _GRAPH_KEYS:
            raise InvalidValue(f"a graph must be an object with the keys {sorted(_GRAPH_KEYS)}")
        if document["format"] != FORMAT:
            raise InvalidValue(f"only format {FORMAT!r} is understood")
        nodes = document["nodes"]
        if type(nodes) is not list or len(nodes) > MAX_NODES:
            raise InvalidValue(f"nodes must be a list of at most {MAX_NODES}")
        graph = cls(tuple(_parse_node(node) for node in nodes), _integers(document["input_shape"], "input_shape"))
        if graph.to_bytes() != data:
            raise InvalidValue("a graph must be spelled canonically (sorted keys, no white space, no duplicates)")
        return graph


def tensor_name(path: str, name: str) -> str:
    """Name of a layer's tensor, as `nn.Module.state_dict` spells it; a tensor that is no layer's is its path."""
    return f"{path}.{name}" if path and name else path or name


def operation_of(node: Node) -> Operation:
    """The vocabulary's entry; raises InvalidValue for an unknown name."""
    operation = VOCABULARY.get(node.operation) if isinstance(node.operation, str) else None
    if operation is None:
        raise InvalidValue(f"unknown operation; the vocabulary is {sorted(VOCABULARY)}")
    return operation


def infer(node: Node, shapes: list[Shape]) -> Shape:
    """Checks one node against the values before it and returns its output's shape (no tensor is made)."""
    operation = operation_of(node)
    if not isinstance(node.path, str) or len(node.path) > MAX_PATH or not _PATH.fullmatch(node.path):
        raise InvalidValue(
            f"a layer's path must be dotted names of letters, digits, _ and -, at most {MAX_PATH} characters"
        )
    fewest, most = operation.inputs
    if not fewest <= len(node.inputs) <= most:
        raise InvalidValue(f"takes {fewest} to {most} inputs, got {len(node.inputs)}")
    for number in node.inputs:
        if type(number) is not int or not 0 <= number < len(shapes):
            raise InvalidValue(f"inputs must be numbers of earlier values (0 to {len(shapes) - 1})")
    operation.check_attributes(node.attributes)
    shape = operation.shape([shapes[i] for i in node.inputs], node.attributes)
    if not 1 <= len(shape) <= 3 or min(shape) < 1 or math.prod(shape) > MAX_ACTIVATION_VALUES:
        raise InvalidValue(f"output shape {shape} must have 1 to 3 sides and at most {MAX_ACTIVATION_VALUES} values")
    return shape


def _check_input_shape(shape: Shape) -> None:
    try:
        _SIDES.check(shape)
    except InvalidValue as error:
        raise InvalidValue(f"input_shape, one record's (d,), (c, l) or (c, h, w), {error}") from error
    if math.prod(shape) > MAX_INPUT_VALUES:
        raise InvalidValue(f"input_shape {shape} has too many values for one record; at most {MAX_INPUT_VALUES}")


def _check_limits(cost: Cost) -> None:
    limits = (
        ("parameters", cost.parameters, MAX_PARAMETERS),
        ("workspace numbers", cost.workspace, MAX_WORKSPACE_VALUES),
        ("floating point operations per record", cost.work, MAX_WORK),
        ("steps that come one after the other", cost.steps, MAX_STEPS),
    )
    for what, actual, allowed in limits:
        if actual > allowed:
            raise InvalidValue(
                f"the graph needs {actual} {what}, at most {allowed} are allowed; use a smaller extractor"
            )


def _parse_node(document: object) -> Node:
    if not isinstance(document, dict) or set(document) != _NODE_KEYS:
        raise InvalidValue(f"a node must be an object with the keys {sorted(_NODE_KEYS)}")
    attributes = document["attributes"]
    if not isinstance(attributes, dict):
        raise InvalidValue("a node's attributes must be an object")
    return Node(
        operation=document["operation"],
        inputs=_integers(document["inputs"], "inputs"),
        path=document["path"],
        attributes={key: tuple(value) if isinstance(value, list) else value for key, value in attributes.items()},
    )


def _integers(value: object, what: str) -> tuple[int, ...]:
    if type(value) is not list or any(type(entry) is not int for entry in value):
        raise InvalidValue(f"{what} must be a list of integers")
    return tuple(value)


def _refuse_constant(_: str) -> NoReturn:
    raise InvalidValue("NaN and infinities are not allowed")


def _label(node: Node) -> str:
    """The node for a message, cut: both parts may come from outside."""
    place = f" at {str(node.path)[:MAX_PATH]}" if node.path else ""
    return str(node.operation)[:40] + place
