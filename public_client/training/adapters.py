"""What a plan adapts, by name, and the copy of an extractor that carries the adapters."""

from __future__ import annotations

import copy

import torch
from torch import nn

from public_client.data.source import Batches, collect
from public_client.plans.plan import Plan
from shared.errors import InvalidValue
from shared.extractor import (
    MonotoneColumns,
    adapt_for_target,
    adapter_parameter_names,
    input_adapter,
    insert_adapter,
    source_knots,
)

_KNOT_RECORDS = 20_000  # source records whose quantiles place the knots of monotone maps


def with_adapters(
    extractor: nn.Module,
    record_shape: tuple[int, ...],
    *,
    plan: Plan | None = None,
    source: Batches | None = None,
    own: nn.Module | None = None,
) -> nn.Module:
    """A copy of the extractor with adapters in it; one that brings its own is copied as it is.

    Args:
        extractor: records to features.
        record_shape: of one record.
        plan: says which adapter; the usual ones by default.
        source: labelled public batches; monotone maps take their knots from them, or, without, from [-1, 1].
        own: a module of the caller's own, records to records, in the place of the plan's.

    Raises:
        InvalidValue: the adapter does not fit the records.
    """
    if own is not None:
        return insert_adapter(extractor, record_shape, own)
    if adapter_parameter_names(extractor):
        return copy.deepcopy(extractor).eval()
    if plan is None or plan.adapter == "auto":
        return adapt_for_target(extractor, record_shape)
    if plan.adapter == "monotone" and len(record_shape) == 1:
        columns = torch.linspace(-1.0, 1.0, plan.adapter_knots).repeat(record_shape[0], 1).T  # (knots, d)
        if source is not None:
            columns = collect(source, most=_KNOT_RECORDS).images
        return insert_adapter(extractor, record_shape, MonotoneColumns(source_knots(columns, plan.adapter_knots)))
    return insert_adapter(extractor, record_shape, input_adapter(plan.adapter, record_shape, rank=plan.adapter_rank))


def adapted_names(module: nn.Module, parameters: str) -> tuple[str, ...]:
    """Names of what a plan adapts: "adapters", "all" or "none".

    Raises:
        InvalidValue: the module has no adapters, or nothing to train.
    """
    if parameters == "none":
        return ()
    names = adapter_parameter_names(module) if parameters == "adapters" else [n for n, _ in module.named_parameters()]
    if not names:
        raise InvalidValue(
            f"the extractor has no parameters to adapt as {parameters!r}; add layers of shared.extractor.adapters"
        )
    return tuple(names)
