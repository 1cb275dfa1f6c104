"""Two graphs as one: what an extractor and a head (a classifier, a critic) compute together of one record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from torch import Tensor

from shared.errors import InvalidValue
from shared.extractor.graph import ExtractorGraph, Node, operation_of


def compose(
    first: ExtractorGraph, second: ExtractorGraph, *, names: tuple[str, str] = ("extractor", "classifier")
) -> ExtractorGraph:
    """The graph of second(first(record)); tensors are renamed to ``NAME.their name``.

    Args:
        first: records to features (d,).
        second: (d,) to (e,).
        names: prefixes of the two graphs' tensors.

    Raises:
        InvalidValue: the second takes something else than the first computes, or the two together are too large.
    """
    if second.input_shape != (first.feature_dimension,):
        raise InvalidValue(
            f"the {names[1]} takes {second.input_shape}, the {names[0]} computes ({first.feature_dimension},)"
        )
    offset = len(first.nodes)
    nodes = [_named(node, names[0], 0) for node in first.nodes]
    nodes += [_named(node, names[1], offset) for node in second.nodes]
    return ExtractorGraph(tuple(nodes), first.input_shape, second.feature_dimension)


def compose_weights(
    first: Mapping[str, Tensor],
    second: Mapping[str, Tensor],
    *,
    names: tuple[str, str] = ("extractor", "classifier"),
) -> dict[str, Tensor]:
    """The tensors of both graphs under the names that `compose` gives them."""
    return {
        f"{name}.{key}": tensor
        for name, part in zip(names, (first, second), strict=True)
        for key, tensor in part.items()
    }


def _named(node: Node, name: str, offset: int) -> Node:
    """The node with its inputs counted from `offset` (where the second graph's record, value 0, stands)."""
    has_tensors = bool(operation_of(node).tensors(node.at))
    path = (f"{name}.{node.path}" if node.path else name) if has_tensors else ""
    return replace(node, path=path, inputs=tuple(number + offset for number in node.inputs))
