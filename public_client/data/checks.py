"""A team's own labelled batches, checked as they come: refused in clear words, and before anything is charged."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sized
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from dpswd.public_client.data.datasets import Batches
from dpswd.public_client.extractor.tracing import evaluating
from dpswd.shared.core.errors import DataInvalid, InvalidValue
from dpswd.shared.protocol.contract import DataContract

NO_BATCHES = "the source loader gives no batches; with drop_last=True its data set must hold one batch"
_BYTES = 32.0
"""Images that reach beyond it from 0 are on the scale of bytes: no usual normalisation comes near."""
_CONSTANT = 1e-6  # of the largest feature: float32 sums of one number differ by so much
_USED_UP = "the source is used up after one pass, as a generator is; several are needed; pass a DataLoader or a list"


class CheckedBatches:
    """The same batches; each is checked before it is given on.

    Args:
        batches: (records, labels), that can be iterated again and again.
        extractor: records to features.
        classifier: features to scores.
        device: where the modules are.
        unlabelled: whether a label may be -1, of a record whose class is not known.

    Attributes:
        record_shape: of one record.
        classes: of the classifier.

    Raises:
        DataInvalid: the first batch is not what it should be, or the modules do not take its records.
        InvalidValue: there are no batches, or they can be iterated once only; a weight is not finite.
    """

    def __init__(
        self, batches: Batches, extractor: nn.Module, classifier: nn.Module, *, device: torch.device | None = None,
        unlabelled: bool = False,
    ) -> None:  # fmt: skip
        if isinstance(batches, Iterator):
            raise InvalidValue(_USED_UP)
        self._batches = batches
        self._least = -1 if unlabelled else 0
        with undisturbed(batches):
            first: Any = next(iter(batches), None)
        if first is None:
            raise InvalidValue(NO_BATCHES)
        records, _ = parts_of(first, 1)
        _refuse(1, _wrong_records(records))
        require_finite(extractor, "extractor")
        require_finite(classifier, "classifier")
        self.record_shape = tuple(records.shape[1:])
        self.classes = _classes(extractor, classifier, records[:1].to(device))
        self._check(first, 1)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        number = 0
        for number, batch in enumerate(self._batches, start=1):
            yield self._check(batch, number)
        if not number:  # there was one when this was made
            raise InvalidValue(_USED_UP)

    def __len__(self) -> int:
        """Batches of a pass, by counting where the loader does not know."""
        if isinstance(self._batches, Sized):
            try:
                return len(self._batches)
            except TypeError:  # a DataLoader of an IterableDataset
                pass
        with undisturbed(self._batches):
            return sum(1 for _ in self._batches)

    def check_all(self) -> None:
        """Looks at a whole pass.

        Raises:
            DataInvalid: a batch is not what it should be.
        """
        with undisturbed(self._batches):
            for _ in self:
                pass

    def require_shape(self, record_shape: tuple[int, ...]) -> None:
        """Refuses a source whose records are not shaped as a hospital's.

        Raises:
            DataInvalid: they are not.
        """
        if tuple(record_shape) != self.record_shape:
            raise DataInvalid(
                f"the source's records have shape {self.record_shape}, the hospital's {tuple(record_shape)}; bring the "
                "source to the hospital's shape. Nothing was spent"
            )

    def _check(self, batch: Any, number: int) -> tuple[Tensor, Tensor]:
        records, labels = parts_of(batch, number)
        wrong = _wrong_records(records, self.record_shape)
        _refuse(number, wrong or _wrong_labels(labels, len(records), self.classes, self._least))
        return records, labels


def checked(
    batches: Batches, extractor: nn.Module, classifier: nn.Module, *, device: torch.device | None = None,
    unlabelled: bool = False,
) -> CheckedBatches:  # fmt: skip
    """The batches with their checks; those that have them stay as they are. See `CheckedBatches`."""
    if isinstance(batches, CheckedBatches):
        return batches
    return CheckedBatches(batches, extractor, classifier, device=device, unlabelled=unlabelled)


def require_records(records: Tensor, shape: tuple[int, ...]) -> None:
    """Refuses records (n, ...) of another shape.

    Raises:
        DataInvalid: they are.
    """
    if tuple(records.shape[1:]) != shape:
        raise DataInvalid(f"records have shape {tuple(records.shape)}; needed is (n, {', '.join(map(str, shape))})")


def require_contract(
    batches: Batches, contract: DataContract, own: DataContract | None, record_shape: tuple[int, ...]
) -> None:
    """Refuses a source that is not on the scale that a hospital declares, or whose columns or classes are others.

    Args:
        batches: of records of the hospital's shape.
        contract: the hospital's.
        own: the team's, of its source; what it leaves out is not compared.
        record_shape: of a record.

    Raises:
        DataInvalid: they differ; with both in words.
    """
    own = own or DataContract()
    wrong = contract.disagreements(own)
    if contract.value_range or (len(record_shape) == 3 and not own.value_range):
        ends = []
        with undisturbed(batches):
            for records, _ in batches:
                by_channel = records.flatten(2) if records.dim() > 2 else records.reshape(len(records), 1, -1)
                ends.append((by_channel.amin(dim=(0, 2)), by_channel.amax(dim=(0, 2))))
        lows, highs = (torch.stack(end) for end in zip(*ends, strict=True))
        least, most = (end.double().cpu().numpy() for end in (lows.amin(dim=0), highs.amax(dim=0)))
        wrong += filter(None, [contract.differences(least, most, record_shape, own)])
        if not contract.value_range and most.max() > _BYTES and least.min() >= 0.0:
            wrong.append(
                f"the source's images reach from {least.min():g} to {most.max():g}, the scale of bytes, and the "
                "hospital declares no range: divide by 255, as records are served from 0 to 1; or, where its operator "
                "says that it serves bytes, declare the range of your source (contract.value_range)"
            )
    if wrong:
        raise DataInvalid(f"{'; '.join(wrong)}. Bring it to that scale; the model can normalise. Nothing was spent")


_LOOKING = threading.RLock()


@contextmanager
def undisturbed(batches: object) -> Iterator[None]:
    """Looks at a loader without changing what its seed draws next: of torch's generator and of its own."""
    with _LOOKING:  # else one thread would save what another has drawn in between
        while isinstance(batches, CheckedBatches):
            batches = batches._batches
        owners = (batches, getattr(batches, "sampler", None))
        own = [g for owner in owners if isinstance(g := getattr(owner, "generator", None), torch.Generator)]
        states = [(generator, generator.get_state()) for generator in own]
        everyone = torch.get_rng_state()
        try:
            yield
        finally:
            torch.set_rng_state(everyone)
            for generator, state in states:
                generator.set_state(state)


def require_features(features: Tensor) -> None:
    """Refuses features that say nothing: a release of them would be paid for and tell of no record.

    Args:
        features: (m, d) of public source records.

    Raises:
        InvalidValue: at most one of them differs from record to record; of two, or one, none.
    """
    if len(features) < 2:
        return
    spread = features.std(dim=0)
    constant = spread <= _CONSTANT * features.abs().amax().clamp(min=1e-12)
    d, dead = features.shape[1], int(constant.sum())
    if d - dead < max(1, min(2, d - 1)):  # the first of two scores may be 0 for every record
        raise InvalidValue(
            f"{dead} of the extractor's {d} features are the same for all of {len(features)} source records, so a "
            "release of them would say nothing. Look for an activation that is always at its bound (such as "
            "nn.Hardtanh(5, 6)), dead ReLUs, or records on another scale than the extractor was trained for. "
            "Nothing was spent"
        )


def require_finite(module: nn.Module, called: str) -> None:
    """Raises `InvalidValue` where a weight is not finite."""
    for name, weights in module.named_parameters():
        if not bool(torch.isfinite(weights).all()):
            raise InvalidValue(
                f"the {called}'s {name} holds NaN or infinity; load other weights, or train with a smaller learning "
                "rate. Nothing was spent"
            )


def _refuse(number: int, wrong: str) -> None:
    if wrong:
        raise DataInvalid(f"batch {number} of the source {wrong}")


def parts_of(batch: Any, number: int) -> tuple[Tensor, Tensor]:
    """Two tensors, or raises `DataInvalid`: records but for bytes as float32, whole labels (m,) or (m, 1) as int64."""
    if not isinstance(batch, tuple | list) or len(batch) != 2:
        size = f" of {len(batch)}" if isinstance(batch, tuple | list) else ""
        _refuse(number, f"is a {type(batch).__name__}{size}; needed is (records, labels)")
    for name, part in zip(("records", "labels"), batch, strict=True):
        if not isinstance(part, Tensor):
            needed = "needed are tensors, as a DataLoader gives them (torch.as_tensor makes one)"
            _refuse(number, f"has {name} of type {type(part).__name__}; {needed}")
    records, labels = batch[0], batch[1].squeeze(1) if batch[1].dim() == 2 else batch[1]
    labels = labels.long() if bool((labels == labels.long()).all()) else labels  # a loss on log-odds takes floats
    return records.float() if records.element_size() > 1 else records, labels


def _wrong_records(records: Tensor, shape: tuple[int, ...] | None = None) -> str:
    """What is wrong with records, which have this shape each in the first batch, if it is known."""
    if records.dim() < 2 or not len(records):
        return f"has shape {tuple(records.shape)}; needed is (m, ...), m >= 1"
    if records.dtype != torch.float32:
        return f"has records of type {records.dtype}; needed are floats, on the scale of the hospital's records"
    finite = torch.isfinite(records)
    if not bool(finite.all()):
        first = torch.nonzero(~finite)[0].tolist()
        where = f"first in record {first[0]} at {tuple(first[1:])}"
        return f"holds NaN or infinity, {where}; fill in what is missing first"
    if shape is not None and tuple(records.shape[1:]) != shape:
        return f"has records of shape {tuple(records.shape[1:])}, the first batch of {shape}"
    return ""


def _wrong_labels(labels: Tensor, records: int, classes: int, least: int) -> str:
    """What is wrong with labels of so many records."""
    if labels.shape != (records,):
        return f"has labels of shape {tuple(labels.shape)} for {records} records; needed is a class number for each"
    if labels.dtype != torch.int64:
        return f"has labels of type {labels.dtype}; needed are class numbers: whole, from 0"
    low, high = int(labels.min()), int(labels.max())
    if low < least or high >= classes:
        allowed = f"the classifier has {classes} scores, so labels are 0 to {classes - 1}"
        allowed += ", and -1 where none is known" if least < 0 else ""
        return f"has the label {low if low < least else high}; {allowed}"
    return ""


def _classes(extractor: nn.Module, classifier: nn.Module, record: Tensor) -> int:
    """C, by one record through both modules, which stay in the mode that they are in."""
    try:
        with torch.no_grad(), evaluating(extractor), evaluating(classifier):
            scores = classifier(extractor(record))
    except (RuntimeError, ValueError, TypeError) as error:
        shape = tuple(record.shape[1:])
        raise DataInvalid(f"extractor and classifier do not take source records of shape {shape}: {error}") from error
    if not isinstance(scores, Tensor) or scores.dim() != 2 or len(scores) != 1:
        said = tuple(scores.shape) if isinstance(scores, Tensor) else type(scores).__name__
        raise DataInvalid(f"the classifier gives {said} for one record; needed is (1, C), a score for each class")
    return scores.shape[1]
