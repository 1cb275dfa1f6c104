"""Extractors as data: a traced closed-vocabulary graph, its weights, and their evaluation record by record.

The ML team traces (`trace`, `validate`), adapts (`adapt_for_target`) and serialises; the curator parses
(`ExtractorGraph.from_bytes`, `weights_from_bytes`) and evaluates (`Extractor`). No code travels.
"""

from shared.extractor.adapters import (
    AffineWarp2d,
    ChannelAffine,
    FeatureAffine,
    LowRankAffine,
    MonotoneColumns,
    adapter_parameter_names,
)
from shared.extractor.adapting import adapt_for_target, adapter_size, input_adapter, insert_adapter, source_knots
from shared.extractor.building import Extractor, RowsDepend, check_row_independence, split_gradient
from shared.extractor.graph import ExtractorGraph, Node
from shared.extractor.lowering import Problem
from shared.extractor.tracing import trace, validate
from shared.extractor.weights import (
    check_weights,
    module_weights,
    weights_digest,
    weights_from_bytes,
    weights_to_bytes,
)

__all__ = [
    "AffineWarp2d",
    "ChannelAffine",
    "Extractor",
    "ExtractorGraph",
    "FeatureAffine",
    "LowRankAffine",
    "MonotoneColumns",
    "Node",
    "Problem",
    "RowsDepend",
    "adapt_for_target",
    "adapter_parameter_names",
    "adapter_size",
    "check_row_independence",
    "check_weights",
    "input_adapter",
    "insert_adapter",
    "module_weights",
    "source_knots",
    "split_gradient",
    "trace",
    "validate",
    "weights_digest",
    "weights_from_bytes",
    "weights_to_bytes",
]
