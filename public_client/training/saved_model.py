"""The adapted model as the client writes and reads it; the file's format is `dpswd.shared.models.adapted`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import nn

from dpswd.public_client.extractor.tracing import module_weights, trace
from dpswd.public_client.plans.plan import Plan
from dpswd.shared.devices import resolve_device
from dpswd.shared.models.adapted import AdaptedModel, read_adapted, write_adapted
from dpswd.shared.models.source_statistics import SourceStatistics


def save_adapted(
    path: Path,
    *,
    extractor: nn.Module,
    classifier: nn.Module,
    record_shape: tuple[int, ...],
    plan: Plan | Mapping[str, Any],
    statistics: SourceStatistics | None = None,
    certify: Callable[[bytes], str] | None = None,
) -> None:
    """Writes both modules to one file.

    Args:
        path: the file; a folder that is missing is made.
        extractor: records to features.
        classifier: features to scores.
        record_shape: of one record.
        plan: how it was trained.
        statistics: of the public source, for the hospital's drift report.
        certify: see `write_adapted`.

    Raises:
        ExtractorUnsupported: the classifier uses something outside the closed vocabulary.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    graph = trace(extractor, record_shape)
    head = trace(classifier, (graph.feature_dimension,))
    write_adapted(
        path,
        extractor=(graph, module_weights(extractor, graph)),
        classifier=(head, module_weights(classifier, head)),
        plan=plan if isinstance(plan, Mapping) else plan.to_json(),
        statistics=statistics,
        certify=certify,
    )


def load_adapted(path: str | Path, *, device: str = "auto") -> AdaptedModel:
    """Reads a saved model (`DomainAdaptation.save`); no code of the file's is run.

    Args:
        path: the file, safetensors.
        device: "auto", "cpu" or "cuda".

    Returns:
        The model; `predict` takes records (n, ...), float32, and gives classes (n,).

    Raises:
        DataInvalid: the file is something else.
    """
    return read_adapted(path, device=resolve_device(device))
