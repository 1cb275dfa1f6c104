"""Extractors by digest: checked when they are uploaded, found again in the store, approved by the operator.

The curator's own process reads a graph's shapes and no more. Graphs are built and evaluated, one record at a time, by
an engine (private_curator/sandbox): in a process of its own, or in this one.
"""

from __future__ import annotations

import functools

from dpswd.private_curator.books.ledger import Ledger
from dpswd.private_curator.core.steps.evaluating import ExtractorSource
from dpswd.private_curator.sandbox.process import LimitReached
from dpswd.private_curator.steps.engine import Engine
from dpswd.private_curator.storage.uploads import Kind, UploadStore
from dpswd.shared.core.errors import ExtractorNotApproved, ExtractorUnknown, InvalidValue
from dpswd.shared.core.mechanisms.interface import ModelFacts
from dpswd.shared.core.wire.checks import invalid
from dpswd.shared.core.wire.messages import RunParameters
from dpswd.shared.sandbox.graph import ExtractorGraph

MAX_REMEMBERED = 64  # extractors whose shapes are remembered; a few kilobytes each


class ExtractorCatalogue:
    """Finds extractors by what a run declares.

    Args:
        uploads: where clients' graphs and weights are kept.
        approval: "any", or "listed" for the operator's list in the ledger.
        ledger: holds that list.
        engine: builds extractors and evaluates them.
    """

    def __init__(self, uploads: UploadStore, *, approval: str, ledger: Ledger, engine: Engine) -> None:
        self._uploads = uploads
        self._approval = approval
        self._ledger = ledger
        self._engine = engine
        remembered = functools.lru_cache(maxsize=MAX_REMEMBERED)
        self._cached = remembered(lambda graph, client: _facts(self._read(Kind.GRAPH, graph, client)))

    def check(self, graph: bytes, weights: bytes, *, record_shape: tuple[int, ...], client: str) -> ModelFacts:
        """Builds an uploaded extractor and proves on synthetic records that no row of it sees another.

        Raises:
            RequestInvalid: the graph or the weights are not what they should be (the layer's path is named), or
                exceed the operator's limits of time or memory.
            ExtractionStopped: the process that checks it has ended; the upload may be repeated.
        """
        facts = _facts(graph)
        if facts.input_shape != record_shape:
            raise invalid("graph", f"takes records of shape {facts.input_shape}; this data set's have {record_shape}")
        try:
            self._engine.check(graph, weights, client=client)
        except LimitReached as error:
            raise invalid("graph", f"cannot be checked here, use a smaller extractor: {error}") from error
        return facts

    def get(self, parameters: RunParameters, *, client: str) -> ExtractorSource:
        """The extractor that a run declares.

        Raises:
            ExtractorUnknown: this client has not uploaded its graph or its weights.
        """
        graph, weights = parameters.graph_digest, parameters.weights_digest
        for kind, digest in ((Kind.GRAPH, graph), (Kind.WEIGHTS, weights)):
            if not self._uploads.owns(kind, digest, client=client):
                raise _unknown(kind)
        read = functools.partial(self._read_both, graph, weights, client)
        return ExtractorSource(key=f"{graph} {weights}", facts=self._cached(graph, client), read=read)

    def check_approved(self, graph_digest: str) -> None:
        """Lets a graph pass that the operator allows to run.

        Raises:
            ExtractorNotApproved: the operator lists graphs, and this one is not listed.
        """
        if self._approval == "listed" and graph_digest not in self._ledger.approved_extractors():
            raise ExtractorNotApproved(
                f"the operator has not approved the graph {graph_digest}; send this digest to the operator"
            )

    def _read_both(self, graph: str, weights: str, client: str) -> tuple[bytes, bytes]:
        return self._read(Kind.GRAPH, graph, client), self._read(Kind.WEIGHTS, weights, client)

    def _read(self, kind: Kind, digest: str, client: str) -> bytes:
        data = self._uploads.get(kind, digest, client=client)
        if data is None:
            raise _unknown(kind)
        return data


def _facts(graph_bytes: bytes) -> ModelFacts:
    try:
        return ModelFacts.of(ExtractorGraph.from_bytes(graph_bytes))
    except InvalidValue as error:
        raise invalid("graph", str(error)) from error


def _unknown(kind: Kind) -> ExtractorUnknown:
    return ExtractorUnknown(f"no {kind.value} with this digest was uploaded by this client; upload the extractor first")
