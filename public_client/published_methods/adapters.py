"""Target-side adapters: the copy of an extractor that carries them, and their parameters by name."""

from __future__ import annotations

import copy

import torch
from torch import nn

from dpswd.public_client.data.datasets import Batches
from dpswd.public_client.data.source import collect
from dpswd.public_client.extractor.adapter_layers import MonotoneColumns, adapter_parameter_names
from dpswd.public_client.published_methods.adapting import adapt_for_target, input_adapter, insert_adapter, source_knots
from dpswd.shared.core.errors import InvalidValue

ADAPTERS = ("auto", "warp", "channels", "features", "low-rank", "monotone")
"""Kinds of target-side adapters (`dpswd.public_client.published_methods.adapting`)."""

_KNOT_RECORDS = 20_000  # source records whose quantiles place the knots of monotone maps


def with_adapters(
    extractor: nn.Module,
    record_shape: tuple[int, ...],
    *,
    kind: str = "auto",
    rank: int = 4,
    knots: int = 5,
    source: Batches | None = None,
    own: nn.Module | None = None,
) -> nn.Module:
    """A copy of the extractor with adapters in it; one that brings its own is copied as it is.

    Args:
        extractor: records to features.
        record_shape: of one record.
        kind: one of `ADAPTERS`; the usual ones of the records' shape by default.
        rank: of a "low-rank" adapter.
        knots: of each column of a "monotone" adapter.
        source: labelled public batches; monotone maps take their knots from them, or, without, from [-1, 1].
        own: a module of the caller's own, records to records, in the place of the plan's.

    Raises:
        InvalidValue: the adapter does not fit the records.
    """
    if own is not None:
        return insert_adapter(extractor, record_shape, own)
    if adapter_parameter_names(extractor):
        return copy.deepcopy(extractor).eval()
    if kind == "auto":
        return adapt_for_target(extractor, record_shape)
    if kind == "monotone" and len(record_shape) == 1:
        columns = torch.linspace(-1.0, 1.0, knots).repeat(record_shape[0], 1).T  # (knots, d)
        if source is not None:
            columns = collect(source, most=_KNOT_RECORDS).images
        return insert_adapter(extractor, record_shape, MonotoneColumns(source_knots(columns, knots)))
    return insert_adapter(extractor, record_shape, input_adapter(kind, record_shape, rank=rank))


def adapter_names(module: nn.Module) -> tuple[str, ...]:
    """Names of the parameters of a module's adapters.

    Raises:
        InvalidValue: it has none.
    """
    names = tuple(adapter_parameter_names(module))
    if not names:
        raise InvalidValue("the extractor has no adapters; add layers of dpswd.shared.sandbox.adapters (with_adapters)")
    return names
