"""A team's model as it comes, in the two parts that a hospital's records go through, and its records as batches."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dpswd.public_client.data.checks import require_finite
from dpswd.public_client.data.datasets import Batches, Labelled
from dpswd.public_client.data.source import source_loader
from dpswd.public_client.extractor.adapter_layers import filled_linear
from dpswd.public_client.extractor.tracing import evaluating, without_parametrizations
from dpswd.public_client.models.packing import SMALLEST_SHARE, with_two_classes
from dpswd.public_client.models.trees import OfEstimator, as_module
from dpswd.public_client.onnx.network import read_onnx
from dpswd.public_client.tools.pretrained import is_pretrained, network_of
from dpswd.public_client.training.sites import Model
from dpswd.shared.core.errors import DataInvalid, InvalidValue
from dpswd.shared.protocol.contract import DataContract

_COMPARED = 8  # records by which a split is checked
_DRAWN = 10_000  # rows of a generator
_NUMBERS = "fiub"  # kinds of NumPy's types
_SAME = 1e-4  # relative difference of the scores: sums in another order
_WRAPPED = {"OptimizedModule": "_orig_mod", "DataParallel": "module", "DistributedDataParallel": "module"}


def split(model: Any, records: Tensor, *, head: str | None = None) -> Model:
    """Finds where a whole model splits into extractor and classifier.

    Args:
        model: an `nn.Module` from records to scores, or its ONNX file; a classifier of transformers, or a folder of one
            or of timm's; (extractor, classifier); or a fitted scikit-learn, LightGBM or XGBoost classifier.
        records: (m, ...) public ones, to check the split by.
        head: path of the last linear layer, where it is not found (``"fc"``, ``"classifier.3"``).

    Returns:
        Its parts, from records to scores: without a softmax or sigmoid layer at its end; of a network with one score,
        the log-odds of class 1, with two.

    Raises:
        InvalidValue: the model is of another kind, or no layer splits it.
    """
    if isinstance(model, Model):
        return model
    if isinstance(model, (tuple, list)) and len(model) == 2 and all(isinstance(part, nn.Module) for part in model):
        return Model(*model)
    model = network_of(model, records) if is_pretrained(model) else model
    model = read_onnx(model, records) if isinstance(model, (str, Path)) else model
    model = getattr(model, "best_estimator_", model)  # of a search
    model = getattr(model, _WRAPPED.get(type(model).__name__, ""), model)
    if isinstance(model, OfEstimator):
        return Model(model, nn.Identity())
    if isinstance(model, nn.Module):
        if not _looks_up(model, shown := records[:_COMPARED]):
            return _split_at_head(model, shown, head)
        parts = _split_at_head(model, shown.long(), head)
        return Model(nn.Sequential(WholeNumbers(), parts.extractor), parts.classifier)
    if hasattr(model, "predict_proba"):
        return Model(as_module(model).eval(), nn.Identity())
    raise InvalidValue(
        f"a {type(model).__name__} cannot be adapted; pass an nn.Module from records to scores, a pair (extractor, "
        "classifier), an ONNX file, a folder of Hugging Face, or a classifier of scikit-learn, LightGBM or XGBoost "
        "with predict_proba, or send its scores as records: dpswd-curator records embed"
    )


def _split_at_head(model: nn.Module, records: Tensor, head: str | None) -> Model:
    """The last linear layer whose outputs are the scores, and everything before it."""
    require_finite(model, type(model).__name__)
    if isinstance(model, torch.jit.ScriptModule):
        raise InvalidValue(f"a {type(model).__name__} is compiled already; pass the module it was made of, or its ONNX")
    if any(own.is_floating_point() and own.dtype != torch.float32 for own in model.state_dict().values()):
        model = copy.deepcopy(model).float()
    try:
        with evaluating(model), torch.no_grad():
            scores = model(records)
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        shape, why = tuple(records.shape[1:]), str(error) or "its forward is not written; pass the network inside"
        raise DataInvalid(f"{type(model).__name__} takes no records of shape {shape}: {why}") from error
    if not isinstance(scores, Tensor) or scores.dim() not in (1, 2):
        raise InvalidValue(
            f"the model returns {type(scores).__name__} of shape {tuple(getattr(scores, 'shape', ()))}; it must return "
            "scores of shape (records, classes)"
        )
    model, scores = _bare(without_parametrizations(model), records, scores.reshape(len(scores), -1))
    linear = [name for name, part in model.named_modules() if isinstance(part, nn.Linear)]
    fitting = [name for name in linear if model.get_submodule(name).out_features == scores.shape[1]]
    for name in [head] if head is not None else reversed(fitting):
        if (split := _without(model, name)) is None:
            continue
        with evaluating(split.extractor), torch.no_grad():
            features = split.extractor(records)
            if isinstance(features, Tensor) and features.dim() == 2 and _alike(split.classifier(features), scores):
                return split if scores.shape[1] > 1 else Model(split.extractor, _of_two(split.classifier))
    if head is None and not fitting and float(scores.max()) > 1.0:  # of convolutions, an ensemble: no probabilities
        return Model(model, nn.Identity())
    shares = scores.exp() if (logs := float(scores.max()) <= 0.0) else scores
    if head is None and float((shares.sum(dim=1) - 1.0).abs().max()) < _SAME and float(shares.min()) >= 0.0:
        return Model(model if logs else nn.Sequential(model, Logarithms()), nn.Identity())  # by a function, at its end
    raise InvalidValue(
        f"no linear layer of the model is its last step{f' ({head!r} is not)' if head else ''}; return its scores, "
        "not probabilities, name the layer (head=...), or pass (extractor, classifier). Its linear layers: "
        f"{', '.join(linear) or 'none'}"
    )


class Logarithms(nn.Module):
    """Scores of probabilities."""

    def forward(self, probabilities: Tensor) -> Tensor:
        """The same shape."""
        return torch.log(torch.clamp(probabilities, SMALLEST_SHARE, 1.0))


class WholeNumbers(nn.Module):
    """What a curator holds as floats, for a network that looks words or codes up."""

    def forward(self, records: Tensor) -> Tensor:
        """The same, int64."""
        return records.long()


def _looks_up(model: nn.Module, records: Tensor) -> bool:
    """Whether it takes whole numbers alone, as of words."""
    if not any(isinstance(part, nn.Embedding) for part in model.modules()):
        return False
    try:
        with evaluating(model), torch.no_grad():
            model(records)
    except RuntimeError:  # of the type; another one is met again by whole numbers, and told
        return True
    return False


def _alike(these: Tensor, those: Tensor) -> bool:
    return these.shape == those.shape and torch.allclose(these, those, _SAME, _SAME * float(those.abs().max()))


def _bare(model: nn.Module, records: Tensor, scores: Tensor) -> tuple[nn.Module, Tensor]:
    """The network without a softmax or sigmoid layer at its end, and what it then returns."""
    ends = nn.Sigmoid if scores.shape[1] == 1 else (nn.Softmax, nn.LogSoftmax)
    for name in [name for name, part in model.named_modules() if isinstance(part, ends)][-1:]:
        if (bare := _without(model, name)) is not None:
            with evaluating(bare.extractor), torch.no_grad():
                before = bare.extractor(records).reshape(scores.shape)
                if _alike(bare.classifier(before), scores):
                    return bare.extractor, before
    return model, scores


def _of_two(head: nn.Module) -> nn.Linear:
    """The scores (0, log-odds) of two classes, in the place of one."""
    weight, *bias = (own.detach() for own in head.parameters())
    return filled_linear(*with_two_classes(weight, bias[0] if bias else weight.new_zeros(1), "log-odds"))


def _without(model: nn.Module, name: str) -> Model | None:
    """A copy whose layer of this name is the identity, and the layer."""
    if not name:
        return Model(nn.Flatten(), copy.deepcopy(model))
    extractor = copy.deepcopy(model)
    if (layer := dict(extractor.named_modules()).get(name)) is None:
        return None
    parent, _, own = name.rpartition(".")
    setattr(extractor.get_submodule(parent), own, nn.Identity())
    return Model(extractor, layer)


def as_batches(source: Any, *, label: str | None = None, seed: int = 0, model: Any = None) -> Batches:
    """Labelled public records as batches.

    Args:
        source: a loader of (records, labels) batches; a pair (records, labels) of arrays, tensors or a data frame; a
            frame with a column of labels; or a `Generator` of the hospital's.
        label: name of the data frame's column of labels.
        seed: of the shuffling, where there is any.
        model: that was fitted on it, where it knows names of columns and classes, in their order.

    Raises:
        DataInvalid: it is none of these, or holds what is no number or no label.
    """
    if isinstance(source, (tuple, list)) and len(source) == 2:
        # The same batches on every pass: a ladder that goes on after a crash comes to the same model.
        records, labels = _values(source[0], model), np.asarray(source[1])
        labels = labels[:, 0] if labels.ndim == 2 and labels.shape[1] == 1 else labels
        if np.isin(labels, classes := getattr(model, "classes_", ())).all():
            labels = np.searchsorted(classes, labels)
        return list(source_loader(_labelled(records, labels), seed=seed))
    if hasattr(source, "columns"):
        if label not in source.columns:
            raise DataInvalid(f"label is {label!r}; name the column of labels: {', '.join(map(str, source.columns))}")
        return as_batches((source[[n for n in source.columns if n != label]], source[label]), seed=seed, model=model)
    if hasattr(source, "batches") and hasattr(source, "sample"):
        return source.batches(_DRAWN, seed=seed)  # type: ignore[no-any-return]
    if isinstance(source, Iterable):
        return source
    raise DataInvalid(
        f"the source is a {type(source).__name__}; pass a loader of (records, labels), a pair of arrays, a data frame "
        "with label=..., or a generator"
    )


def declared(contract: DataContract | None, source: Any, label: str | None, model: Any) -> DataContract | None:
    """What a team declares; where it names none a frame's columns, and classes of the estimator or an image folder."""
    frame = source[0] if isinstance(source, (tuple, list)) and len(source) == 2 else source
    data = getattr(source, "dataset", None)  # of a loader, or of a part of it
    classes = getattr(model, "classes_", getattr(getattr(data, "dataset", data), "classes", ()))
    named = [n for n in getattr(frame, "columns", ()) if n != label], list(classes)
    columns, classes = (tuple(map(str, ns)) if all(isinstance(n, str) for n in ns) else () for ns in named)
    own = contract or DataContract()
    more = replace(own, column_names=own.column_names or columns, class_names=own.class_names or classes)
    return contract if more == own or more.broken_structure() else more


def _values(records: Any, model: Any) -> np.ndarray[Any, Any]:
    """Of an array, or of a data frame, of pandas or polars, whose columns are the model's."""
    if not hasattr(records, "columns"):
        return np.asarray(records)
    own, names = list(records.columns), getattr(model, "feature_names_in_", None)
    if words := [str(name) for name in own if np.asarray(records[name]).dtype.kind not in _NUMBERS]:
        raise DataInvalid(f"columns {', '.join(words)} hold no numbers; encode them as the hospital's records are")
    if names is not None and list(names) != own:
        raise DataInvalid(
            f"columns are {', '.join(map(str, own))}, the model's were {', '.join(names)}: order them like the model's"
        )
    return np.asarray(records, dtype=np.float32)


def _labelled(records: np.ndarray[Any, Any], labels: np.ndarray[Any, Any]) -> Labelled:
    """What is wrong is said here, by its place: batches are shuffled."""
    if records.shape[:1] != labels.shape or not labels.size:
        raise DataInvalid(f"records have shape {records.shape}, labels {labels.shape}; each record needs one label")
    if records.dtype.kind not in _NUMBERS:
        raise DataInvalid(f"records are of type {records.dtype}; they must be numbers")
    if labels.dtype.kind not in _NUMBERS or (labels % 1 != 0).any():
        raise DataInvalid(
            f"labels are of type {labels.dtype}, the first {labels[0]!r}; they must be class numbers from 0, in the "
            "order of the model's scores; numpy.unique(labels, return_inverse=True) numbers words"
        )
    wrong = np.argwhere(~np.isfinite(records))
    if len(wrong):
        raise DataInvalid(
            f"record {wrong[0, 0]} of the source holds NaN or infinity at {tuple(wrong[0, 1:].tolist())}; fill in what "
            "is missing as the hospital does (dpswd.as_module(estimator, missing=...) reads such a number as missing)"
        )
    if len(np.unique(labels)) < 2:
        raise DataInvalid(f"all labels of the source are {labels[0]}; a model tells two classes apart, or more")
    return Labelled(torch.from_numpy(records.astype(np.float32)), torch.from_numpy(labels.astype(np.int64)))
