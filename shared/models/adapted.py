"""An adapted model as one file: two graphs of the closed vocabulary and their weights, as safetensors.

Nothing in the file is code. Whoever loads it (a team, or the hospital on its own records) rebuilds both modules from
the vocabulary (`model_file`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dpswd.shared.core.errors import DataInvalid, InvalidValue
from dpswd.shared.files import write_public
from dpswd.shared.models.model_file import below, json_object, model_bytes, read_model_file, rebuilt
from dpswd.shared.models.source_statistics import SourceStatistics
from dpswd.shared.sandbox.building import Extractor
from dpswd.shared.sandbox.graph import ExtractorGraph, Node, operation_of

FORMAT = "dpswd-adapted-1"
PARTS = ("extractor", "classifier")
STATISTICS = "statistics"
CERTIFICATE = "certificate"

_MAX_PLAN_CHARACTERS = 100_000


@dataclass(frozen=True)
class AdaptedModel:
    """A loaded model.

    Attributes:
        extractor: target records to features.
        classifier: features to scores.
        plan: how it was trained, and at what cost.
        statistics: of the public source, for drift reports; None where the file has none.
    """

    extractor: Extractor
    classifier: Extractor
    plan: dict[str, Any]
    statistics: SourceStatistics | None = None

    @property
    def record_shape(self) -> tuple[int, ...]:
        """The shape of one record."""
        return self.extractor.graph.input_shape

    @property
    def classes(self) -> int:
        """Number of scores for each record."""
        return self.classifier.graph.feature_dimension

    def scores(self, records: Any) -> Tensor:
        """(n, ...) float32 records, a tensor or an array, to (n, classes)."""
        return self.classifier.features(self.extractor.features(torch.as_tensor(records)))

    def predict(self, records: Any) -> Tensor:
        """(n, ...) float32 records, a tensor or an array, to classes (n,)."""
        return self.scores(records).argmax(dim=1)

    def composed(self) -> tuple[ExtractorGraph, dict[str, Tensor]]:
        """The whole model as one graph from a record to its scores, with its weights."""
        graph = compose(self.extractor.graph, self.classifier.graph)
        return graph, compose_weights(self.extractor.weights, self.classifier.weights)


def write_adapted(
    path: Path,
    *,
    extractor: tuple[ExtractorGraph, Mapping[str, Tensor]],
    classifier: tuple[ExtractorGraph, Mapping[str, Tensor]],
    plan: Mapping[str, Any],
    statistics: SourceStatistics | None = None,
    certify: Callable[[bytes], str] | None = None,
) -> None:
    """Writes both graphs with their weights to one file.

    Args:
        path: the file.
        extractor: records to features (d,), and its tensors.
        classifier: (d,) to scores, and its tensors.
        plan: plain values that say how the model was trained.
        statistics: of the public source.
        certify: makes the certificate that is put into the file, of the bytes of the file without one; "" for none.
    """
    tensors = compose_weights(extractor[1], classifier[1])
    tensors = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    metadata = {
        "format": FORMAT,
        "extractor": extractor[0].to_bytes().decode("ascii"),
        "classifier": classifier[0].to_bytes().decode("ascii"),
        "plan": json.dumps(dict(plan), sort_keys=True),
    }
    if statistics is not None:
        tensors |= {f"{STATISTICS}.{name}": tensor.contiguous() for name, tensor in statistics.tensors().items()}
        metadata[STATISTICS] = json.dumps(statistics.facts(), sort_keys=True)
    data = model_bytes(tensors, metadata)
    certificate = "" if certify is None else certify(data)
    if certificate:
        data = model_bytes(tensors, metadata | {CERTIFICATE: certificate})
    # Whole or not at all: a full disk or Ctrl-C must not leave half a model under the model's name.
    write_public(path, data)


def read_adapted(path: str | Path, *, device: torch.device | str = "cpu") -> AdaptedModel:
    """Reads what `write_adapted` wrote; the file may come from anybody.

    Raises:
        DataInvalid: the file is something else; the message says what does not hold.
    """
    path = Path(path)
    metadata, tensors = read_model_file(path, kind="an adapted model", form=FORMAT, writer="dpswd-client train --save")
    try:
        return _model(metadata, tensors, torch.device(device))
    except InvalidValue as error:
        raise DataInvalid(f"{path} is not an adapted model: {error}") from error


def _model(metadata: Mapping[str, str], tensors: Mapping[str, Tensor], device: torch.device) -> AdaptedModel:
    extractor, classifier = (rebuilt(part, metadata, tensors, device) for part in PARTS)
    compose(extractor.graph, classifier.graph)  # refuses two parts that do not fit together
    statistics = None
    if STATISTICS in metadata:
        values, features = math.prod(extractor.graph.input_shape), extractor.graph.feature_dimension
        statistics = SourceStatistics.from_parts(
            metadata[STATISTICS], below(STATISTICS, tensors), record_values=values, features=features
        )
    return AdaptedModel(
        extractor, classifier, json_object("plan", metadata.get("plan", "{}"), most=_MAX_PLAN_CHARACTERS), statistics
    )


def compose(extractor: ExtractorGraph, classifier: ExtractorGraph) -> ExtractorGraph:
    """The graph of classifier(extractor(record)); tensors are renamed to ``extractor.NAME`` and ``classifier.NAME``.

    Args:
        extractor: records to features (d,).
        classifier: (d,) to scores (e,).

    Returns:
        Records to scores (e,).

    Raises:
        InvalidValue: the classifier takes something else than the extractor computes, or the two are too large.
    """
    if classifier.input_shape != (extractor.feature_dimension,):
        raise InvalidValue(
            f"the classifier takes {classifier.input_shape}, the extractor computes ({extractor.feature_dimension},)"
        )
    nodes = [_renamed(node, "extractor", 0) for node in extractor.nodes]
    nodes += [_renamed(node, "classifier", len(extractor.nodes)) for node in classifier.nodes]
    return ExtractorGraph(tuple(nodes), extractor.input_shape)


def compose_weights(extractor: Mapping[str, Tensor], classifier: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of both graphs under the names that `compose` gives them.

    Args:
        extractor: its tensors by name.
        classifier: its tensors by name.
    """
    parts = {"extractor": extractor, "classifier": classifier}
    return {f"{part}.{name}": tensor for part, weights in parts.items() for name, tensor in weights.items()}


def _renamed(node: Node, part: str, offset: int) -> Node:
    """The node with its inputs counted from `offset` (where the second graph's record, value 0, stands)."""
    has_tensors = bool(operation_of(node).tensors(node.attributes))
    path = f"{part}.{node.path}".rstrip(".") if has_tensors else ""
    return replace(node, path=path, inputs=tuple(number + offset for number in node.inputs))
