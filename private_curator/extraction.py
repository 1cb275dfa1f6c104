"""Extractors by digest: checked when they are uploaded, built again from the store, approved by the operator.

The evaluation itself, one record at a time, is `shared.extractor.building`.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass

import torch

from private_curator.admission import ExtractorFacts
from private_curator.denormals import flushed_denormals
from private_curator.ledger import Ledger
from private_curator.uploads import Kind, UploadStore
from shared.errors import ExtractorNotApproved, ExtractorUnknown, InvalidValue, RequestInvalid
from shared.extractor.building import Extractor, check_row_independence
from shared.extractor.graph import ExtractorGraph
from shared.extractor.weights import weights_from_bytes
from shared.protocol.messages import RunParameters

MAX_CACHED = 4  # built extractors kept in memory: one for each of a few concurrent runs, at most 256 MB each


@dataclass(frozen=True)
class BuiltExtractor:
    """An extractor that can be run, and what admission needs to know of it.

    Attributes:
        module: evaluates records one by one.
        facts: its shapes.
    """

    module: Extractor
    facts: ExtractorFacts


class ExtractorCatalogue:
    """Finds extractors by what a run declares.

    Args:
        uploads: where clients' graphs and weights are kept.
        approval: "any", or "listed" for the operator's list in the ledger.
        ledger: holds that list.
        device: where extractors are built.
    """

    def __init__(self, uploads: UploadStore, *, approval: str, ledger: Ledger, device: torch.device) -> None:
        self._uploads = uploads
        self._approval = approval
        self._ledger = ledger
        self._device = device
        self._built: OrderedDict[tuple[str, str], BuiltExtractor] = OrderedDict()
        self._lock = threading.Lock()

    def check(self, graph: bytes, weights: bytes, *, record_shape: tuple[int, ...]) -> ExtractorFacts:
        """Builds an uploaded extractor and proves on synthetic records that no row of it sees another.

        Raises:
            RequestInvalid: the graph or the weights are not what they should be; the layer's path is named.
            RowsDepend: the rows of this extractor depend on each other on this machine.
        """
        built = self._build(graph, weights)
        if built.facts.input_shape != record_shape:
            text = f"takes records of shape {built.facts.input_shape}; this data set's have {record_shape}"
            raise RequestInvalid((("graph", text),))
        with flushed_denormals():
            check_row_independence(built.module)
        return built.facts

    def get(self, parameters: RunParameters, *, client: str) -> BuiltExtractor:
        """The extractor that a run declares.

        Raises:
            ExtractorUnknown: this client has not uploaded its graph or its weights.
        """
        key = (parameters.graph_digest, parameters.weights_digest)
        owned = self._uploads.owns(Kind.GRAPH, key[0], client=client) and self._uploads.owns(
            Kind.WEIGHTS, key[1], client=client
        )
        with self._lock:
            if owned and key in self._built:
                self._built.move_to_end(key)
                return self._built[key]
        graph = self._uploads.get(Kind.GRAPH, key[0], client=client)
        weights = self._uploads.get(Kind.WEIGHTS, key[1], client=client)
        if graph is None or weights is None:
            missing = "graph" if graph is None else "weights"
            raise ExtractorUnknown(
                f"no {missing} with this digest was uploaded by this client; upload the extractor first"
            )
        built = self._build(graph, weights)
        with self._lock:
            self._built[key] = built
            while len(self._built) > MAX_CACHED:
                self._built.popitem(last=False)
        return built

    def check_approved(self, graph_digest: str) -> None:
        """Lets a graph pass that the operator allows to run.

        Raises:
            ExtractorNotApproved: the operator lists graphs, and this one is not listed.
        """
        if self._approval == "listed" and graph_digest not in self._ledger.approved_extractors():
            raise ExtractorNotApproved(
                f"the operator has not approved the graph {graph_digest}; send this digest to the operator"
            )

    def _build(self, graph_bytes: bytes, weights_bytes: bytes) -> BuiltExtractor:
        try:
            graph = ExtractorGraph.from_bytes(graph_bytes)
        except InvalidValue as error:
            raise RequestInvalid((("graph", str(error)),)) from error
        try:
            weights = weights_from_bytes(weights_bytes, graph.tensor_shapes)
            module = Extractor.from_graph(graph, weights, device=self._device)
        except InvalidValue as error:
            raise RequestInvalid((("weights", str(error)),)) from error
        facts = ExtractorFacts(
            input_shape=graph.input_shape,
            feature_dimension=graph.feature_dimension,
            parameter_shapes=graph.parameter_shapes,
        )
        return BuiltExtractor(module=module, facts=facts)
