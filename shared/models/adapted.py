"""An adapted model as one file: two graphs of the closed vocabulary and their weights, as safetensors.

Nothing in the file is code. Whoever loads it (a team, or the hospital on its own records) rebuilds both modules from
the vocabulary. The file comes from outside: what is read of it is checked as an upload is.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
import torch
from safetensors.torch import save_file
from torch import Tensor

from shared.errors import DataInvalid, InvalidValue
from shared.extractor.building import Extractor
from shared.extractor.composing import compose, compose_weights
from shared.extractor.graph import MAX_PARAMETERS, ExtractorGraph
from shared.models.source_statistics import SourceStatistics

FORMAT = "dpswd-adapted-1"
PARTS = ("extractor", "classifier")
STATISTICS = "statistics"

MAX_FILE_BYTES = 3 * 4 * MAX_PARAMETERS
"""Two graphs at their limit, and statistics and names beside them."""
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

    def scores(self, records: Tensor) -> Tensor:
        """(n, ...) float32 records to (n, classes)."""
        return self.classifier.features(self.extractor.features(records))

    def predict(self, records: Tensor) -> Tensor:
        """(n, ...) float32 records to classes (n,)."""
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
) -> None:
    """Writes both graphs with their weights to one file.

    Args:
        path: the file.
        extractor: records to features (d,), and its tensors.
        classifier: (d,) to scores, and its tensors.
        plan: plain values that say how the model was trained.
        statistics: of the public source.
    """
    tensors = {}
    for part, (_, weights) in zip(PARTS, (extractor, classifier), strict=True):
        for name, tensor in weights.items():
            tensors[f"{part}.{name}"] = tensor.detach().cpu().contiguous().clone()
    metadata = {
        "format": FORMAT,
        "extractor": extractor[0].to_bytes().decode("ascii"),
        "classifier": classifier[0].to_bytes().decode("ascii"),
        "plan": json.dumps(dict(plan), sort_keys=True),
    }
    if statistics is not None:
        tensors |= {f"{STATISTICS}.{name}": tensor.contiguous() for name, tensor in statistics.tensors().items()}
        metadata[STATISTICS] = json.dumps(statistics.facts(), sort_keys=True)
    save_file(tensors, path, metadata=metadata)


def read_adapted(path: str | Path, *, device: torch.device | str = "cpu") -> AdaptedModel:
    """Reads what `write_adapted` wrote; the file may come from anybody.

    Raises:
        DataInvalid: the file is something else; the message says what does not hold.
    """
    path = Path(path)
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise DataInvalid(f"{path} has more than {MAX_FILE_BYTES} bytes; no adapted model is as large")
        with safetensors.safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            if metadata.get("format") != FORMAT:
                raise DataInvalid(f"{path} is not an adapted model of format {FORMAT}")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
    except (OSError, safetensors.SafetensorError) as error:
        raise DataInvalid(f"{path} is not a safetensors file, or cannot be read") from error
    try:
        return _model(metadata, tensors, torch.device(device))
    except InvalidValue as error:
        raise DataInvalid(f"{path} is not an adapted model: {error}") from error


def _model(metadata: Mapping[str, str], tensors: Mapping[str, Tensor], device: torch.device) -> AdaptedModel:
    extractor, classifier = (_rebuilt(part, metadata, tensors, device) for part in PARTS)
    compose(extractor.graph, classifier.graph)  # refuses two parts that do not fit together
    return AdaptedModel(
        extractor=extractor,
        classifier=classifier,
        plan=_plan(metadata.get("plan", "{}")),
        statistics=_statistics(metadata, tensors, extractor.graph),
    )


def _rebuilt(part: str, metadata: Mapping[str, str], tensors: Mapping[str, Tensor], device: torch.device) -> Extractor:
    try:
        spelled = metadata[part].encode("ascii")
    except (KeyError, UnicodeEncodeError) as error:
        raise InvalidValue(f"its {part} is missing or no graph") from error
    graph = ExtractorGraph.from_bytes(spelled)
    own = {name.removeprefix(f"{part}."): t for name, t in tensors.items() if name.startswith(f"{part}.")}
    return Extractor.from_graph(graph, own, device=device)


def _statistics(
    metadata: Mapping[str, str], tensors: Mapping[str, Tensor], graph: ExtractorGraph
) -> SourceStatistics | None:
    if STATISTICS not in metadata:
        return None
    prefix = f"{STATISTICS}."
    own = {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
    return SourceStatistics.from_parts(
        metadata[STATISTICS], own, record_values=math.prod(graph.input_shape), features=graph.feature_dimension
    )


def _plan(text: str) -> dict[str, Any]:
    try:
        plan = json.loads(text) if len(text) <= _MAX_PLAN_CHARACTERS else None
    except (ValueError, RecursionError) as error:
        raise InvalidValue("its plan is not JSON") from error
    if not isinstance(plan, dict):
        raise InvalidValue(f"its plan is no object of at most {_MAX_PLAN_CHARACTERS} characters")
    return plan
