"""An adapted model as one file: two graphs of the closed vocabulary and their weights, as safetensors.

Nothing in the file is code. Whoever loads it (a team, or the hospital on its own records) rebuilds both modules from
the vocabulary.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from public_client.devices import resolve_device
from public_client.planning import Plan
from shared.errors import DataInvalid
from shared.extractor.building import Extractor
from shared.extractor.graph import ExtractorGraph
from shared.extractor.tracing import trace
from shared.extractor.weights import module_weights

FORMAT = "dpswd-adapted-1"
_PARTS = ("extractor", "classifier")


@dataclass(frozen=True)
class AdaptedModel:
    """A loaded model.

    Attributes:
        extractor: target records to features.
        classifier: features to scores.
        plan: how it was trained, and at what cost.
    """

    extractor: Extractor
    classifier: Extractor
    plan: dict[str, Any]

    def scores(self, records: Tensor) -> Tensor:
        """(n, ...) float32 records to (n, classes)."""
        return self.classifier.features(self.extractor.features(records))

    def predict(self, records: Tensor) -> Tensor:
        """(n, ...) float32 records to classes (n,)."""
        return self.scores(records).argmax(dim=1)


def save_adapted(
    path: Path, *, extractor: nn.Module, classifier: nn.Module, record_shape: tuple[int, ...], plan: Plan
) -> None:
    """Writes both modules to one file.

    Raises:
        ExtractorUnsupported: the classifier uses something outside the closed vocabulary.
    """
    graph = trace(extractor, record_shape)
    head = trace(classifier, (graph.feature_dimension,))
    tensors = {}
    for part, module, shape in zip(_PARTS, (extractor, classifier), (graph, head), strict=True):
        for name, tensor in module_weights(module, shape).items():
            tensors[f"{part}.{name}"] = tensor.cpu().contiguous().clone()
    metadata = {
        "format": FORMAT,
        "extractor": graph.to_bytes().decode("ascii"),
        "classifier": head.to_bytes().decode("ascii"),
        "plan": json.dumps(plan.to_json(), sort_keys=True),
    }
    save_file(tensors, path, metadata=metadata)


def load_adapted(path: str | Path, *, device: str = "auto") -> AdaptedModel:
    """Reads what `save_adapted` wrote.

    Raises:
        DataInvalid: the file is something else.
    """
    place = resolve_device(device)
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
    except (OSError, safetensors.SafetensorError) as error:
        raise DataInvalid(f"{path} is not a safetensors file") from error
    if metadata.get("format") != FORMAT:
        raise DataInvalid(f"{path} is not an adapted model of format {FORMAT}")
    extractor, classifier = (_rebuilt(part, metadata, tensors, place) for part in _PARTS)
    return AdaptedModel(extractor=extractor, classifier=classifier, plan=json.loads(metadata["plan"]))


def _rebuilt(part: str, metadata: dict[str, str], tensors: dict[str, Tensor], device: torch.device) -> Extractor:
    graph = ExtractorGraph.from_bytes(metadata[part].encode("ascii"))
    own = {name.removeprefix(f"{part}."): t for name, t in tensors.items() if name.startswith(f"{part}.")}
    return Extractor.from_graph(graph, own, device=device)
