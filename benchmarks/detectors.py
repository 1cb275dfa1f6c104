"""Extractors that bring chosen operations into trouble for chosen records: the attack on the time of a reply.

Number i of a record is broadcast into many numbers of every trouble (negative, saturating, huge, missing), and one
operation is applied to them, often. With zero in its place the operation meets zeros.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from benchmarks.operation_times import Case, weights_of
from dpswd.shared.sandbox.graph import ExtractorGraph, Node
from dpswd.shared.sandbox.vocabulary import VOCABULARY

INPUTS = 8
"""Numbers of a record."""
FEATURES = 4
_TROUBLES = torch.tensor([1.0, 1.0, 100.0, -1e30, 3e38])


@dataclass(frozen=True)
class Detector:
    """An extractor.

    Attributes:
        graph: of records of `INPUTS` numbers and `FEATURES` features.
        weights: the graph's.
    """

    graph: ExtractorGraph
    weights: dict[str, Tensor]


def detector_for(cases: Sequence[Case], *, times: int) -> Detector:
    """An extractor in which operation i meets its trouble where number i of a record is not zero.

    Args:
        cases: at most `INPUTS` operations.
        times: how often each is applied, to the same numbers.
    """
    generator = torch.Generator().manual_seed(1)
    nodes: list[Node] = []
    weights: dict[str, Tensor] = {}

    def add(operation: str, inputs: tuple[int, ...], path: str = "", **attributes: object) -> int:
        nodes.append(Node(operation, inputs, path, attributes))
        return len(nodes)

    def linear(source: int, path: str, weight: Tensor) -> int:
        weights[f"{path}.weight"] = weight
        return add("linear", (source,), path, in_features=weight.shape[1], out_features=weight.shape[0], bias=False)

    ends = []
    for number, case in enumerate(cases):
        size = int(np.prod(case.shapes[0]))
        pick = torch.zeros(1, INPUTS)
        pick[0, number] = 1.0
        picked = linear(0, f"pick{number}", pick)
        trouble = torch.randn(size, 1, generator=generator)
        trouble *= _TROUBLES[torch.randint(len(_TROUBLES), (size, 1), generator=generator)]
        trouble = trouble.clamp(-3e38, 3e38)
        spread = linear(picked, f"spread{number}", trouble)
        inputs = []
        for shape in case.shapes:
            flat = spread
            if np.prod(shape) != size:  # a gate of one number for each channel, a row that is added to each
                flat = linear(picked, f"gate{number}", trouble[: int(np.prod(shape))])
            inputs.append(add("reshape", (flat,), shape=shape))
        tensors = weights_of(case, generator)
        path = f"under{number}" if VOCABULARY[case.operation].tensors(case.attributes) else ""
        weights |= {f"{path}.{name}": tensor for name, tensor in tensors.items()}
        outputs = [add(case.operation, tuple(inputs), path, **case.attributes) for _ in range(times)]
        total = outputs[0]
        for output in outputs[1:]:
            total = add("add", (total, output))
        width = int(np.prod(VOCABULARY[case.operation].shape(list(case.shapes), case.attributes)))
        flat = add("reshape", (total,), shape=(width,))
        ends.append(linear(flat, f"last{number}", 0.01 * torch.randn(FEATURES, width, generator=generator)))
    total = ends[0]
    for end in ends[1:]:
        total = add("add", (total, end))
    graph = ExtractorGraph(tuple(nodes), (INPUTS,))
    return Detector(graph, {name: weights[name] for name in graph.tensor_shapes})
