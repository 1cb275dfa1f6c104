"""A team's model as it comes, in the two parts that a hospital's records go through, and its records as batches."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dpswd.public_client.data.datasets import Batches, Labelled
from dpswd.public_client.data.source import source_loader
from dpswd.public_client.extractor.tracing import evaluating
from dpswd.public_client.onnx.network import read_onnx
from dpswd.public_client.tools.pretrained import is_pretrained, network_of
from dpswd.public_client.training.sites import Model
from dpswd.shared.core.errors import DataInvalid, InvalidValue

_COMPARED = 8  # records by which a split is checked
_DRAWN = 10_000  # rows of a generator
_SAME = 1e-4  # relative difference of the scores: sums in another order


def split(model: Any, records: Tensor, *, head: str | None = None) -> Model:
    """Finds where a whole model splits into extractor and classifier.

    Args:
        model: an `nn.Module` from records to scores, or its ONNX file; a classifier of transformers, or a folder of one
            or of timm's; (extractor, classifier); or a fitted scikit-learn, LightGBM or XGBoost classifier.
        records: (m, ...) public ones, to check the split by.
        head: path of the last linear layer, where it is not found (``"fc"``, ``"classifier.3"``).

    Raises:
        InvalidValue: the model is of another kind, or no layer splits it.
    """
    if isinstance(model, Model):
        return model
    if isinstance(model, (tuple, list)) and len(model) == 2 and all(isinstance(part, nn.Module) for part in model):
        return Model(*model)
    if is_pretrained(model):
        model = network_of(model, records)
    if isinstance(model, (str, Path)):
        model = read_onnx(model, records)
    model = getattr(model, "best_estimator_", model)  # of a search
    if isinstance(model, nn.Module):
        return _split_at_head(model, records[:_COMPARED], head)
    if hasattr(model, "predict_proba"):
        from dpswd.public_client.models.trees import as_module  # scikit-learn is loaded where it is used

        return Model(as_module(model).eval(), nn.Identity())
    raise InvalidValue(
        f"a {type(model).__name__} cannot be adapted; pass an nn.Module from records to scores, a pair (extractor, "
        "classifier), an ONNX file, a folder of Hugging Face, or a classifier of scikit-learn, LightGBM or XGBoost, or "
        "send its scores as records: dpswd-curator records embed"
    )


def _split_at_head(model: nn.Module, records: Tensor, head: str | None) -> Model:
    """The last linear layer whose outputs are the scores, and everything before it."""
    try:
        with evaluating(model), torch.no_grad():
            scores = model(records)
    except (RuntimeError, ValueError, TypeError) as error:
        shape, why = tuple(records.shape[1:]), str(error) or "its forward is not written; pass the network inside"
        raise DataInvalid(f"{type(model).__name__} takes no records of shape {shape}: {why}") from error
    if not isinstance(scores, Tensor) or scores.dim() != 2:
        raise InvalidValue(
            f"the model returns {type(scores).__name__} of shape {tuple(getattr(scores, 'shape', ()))}; it must return "
            "scores of shape (records, classes)"
        )
    linear = [name for name, part in model.named_modules() if isinstance(part, nn.Linear)]
    fitting = [name for name in linear if model.get_submodule(name).out_features == scores.shape[1]]
    for name in [head] if head is not None else reversed(fitting):
        split = _without(model, name)
        if split is None:
            continue
        with evaluating(split.extractor), torch.no_grad():
            features = split.extractor(records)
            if not isinstance(features, Tensor) or features.dim() != 2:
                continue
            again = split.classifier(features)
        if torch.allclose(again, scores, rtol=_SAME, atol=_SAME * float(scores.abs().max())):
            return split
    raise InvalidValue(
        f"no linear layer of the model is its last step{f' ({head!r} is not)' if head else ''}; name the layer "
        f"(head=...), or pass (extractor, classifier). Its linear layers: {', '.join(linear) or 'none'}"
    )


def _without(model: nn.Module, name: str) -> Model | None:
    """A copy whose layer of this name is the identity, and the layer."""
    if not name:
        return Model(nn.Flatten(), copy.deepcopy(model))
    extractor = copy.deepcopy(model)
    layer = dict(extractor.named_modules()).get(name)
    if layer is None:
        return None
    parent, _, own = name.rpartition(".")
    setattr(extractor.get_submodule(parent), own, nn.Identity())
    return Model(extractor, layer)


def as_batches(source: Any, *, label: str | None = None, seed: int = 0) -> Batches:
    """Labelled public records as batches.

    Args:
        source: a loader of (records, labels) batches; a pair (records, labels) of arrays or tensors; a data frame with
            a column of labels; or a `Generator` of the hospital's.
        label: name of the data frame's column of labels.
        seed: of the shuffling, where there is any.

    Raises:
        DataInvalid: it is none of these.
    """
    if isinstance(source, (tuple, list)) and len(source) == 2:
        records, labels = (torch.as_tensor(np.asarray(part)) for part in source)
        # The same batches on every pass: a ladder that goes on after a crash comes to the same model.
        return list(source_loader(Labelled(records.float(), labels.long()), seed=seed))
    if hasattr(source, "columns") and hasattr(source, "drop"):
        if label is None or label not in source.columns:
            raise DataInvalid(f"label is {label!r}; name the column of labels, one of {', '.join(map(str, source))}")
        return as_batches((source.drop(columns=[label]).to_numpy(np.float32), source[label].to_numpy()), seed=seed)
    if hasattr(source, "batches") and hasattr(source, "sample"):
        batches: Batches = source.batches(_DRAWN, seed=seed)
        return batches
    if isinstance(source, Iterable):
        return source
    raise DataInvalid(
        f"the source is a {type(source).__name__}; pass a loader of (records, labels), a pair of arrays, a data frame "
        "with label=..., or a generator"
    )
