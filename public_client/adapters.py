"""What a plan adapts, by name, and the copy of an extractor that carries the adapters."""

from __future__ import annotations

import copy

from torch import nn

from shared.errors import InvalidValue
from shared.extractor import adapt_for_target, adapter_parameter_names


def with_adapters(extractor: nn.Module, record_shape: tuple[int, ...]) -> nn.Module:
    """A copy of the extractor with adapters at the usual places; one that brings its own is copied as it is.

    Args:
        extractor: records to features.
        record_shape: of one record.
    """
    if adapter_parameter_names(extractor):
        return copy.deepcopy(extractor).eval()
    return adapt_for_target(extractor, record_shape)


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
