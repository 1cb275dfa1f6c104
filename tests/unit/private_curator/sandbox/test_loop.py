"""What a worker makes of an upload that no shape rule refuses and torch does."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from dpswd.private_curator.sandbox import loop
from dpswd.private_curator.steps.local import LocalEngine
from dpswd.public_client.extractor.tracing import weights_to_bytes
from dpswd.shared.core.errors import RequestInvalid
from dpswd.shared.sandbox import building
from dpswd.shared.sandbox.graph import ExtractorGraph, Node
from dpswd.shared.sandbox.vocabulary import VOCABULARY

CPU = torch.device("cpu")
GRAPH = ExtractorGraph((Node("relu", (0,)),), (3,)).to_bytes()
WEIGHTS = weights_to_bytes({})


@pytest.fixture
def failing(monkeypatch):
    def fail(error):
        def apply(*_):
            raise error

        broken = replace(VOCABULARY["relu"], apply=apply)
        monkeypatch.setattr(building, "operation_of", lambda _: broken)

    return fail


def test_an_evaluation_that_fails_is_refused_with_its_node(failing):
    """Attack: 284 of 56,789 random graphs ended as incidents, and each upload wrote one."""
    failing(RuntimeError("words of torch's"))
    with pytest.raises(RequestInvalid) as refused:
        LocalEngine(device=CPU).check(GRAPH, WEIGHTS, client="ml-team")
    assert refused.value.violations == (
        ("graph", "cannot be evaluated on made records: RuntimeError in node 0 (relu)"),
    )


@pytest.mark.parametrize("error", [building.RowsDepend("rows"), MemoryError()], ids=["rows depend", "no memory"])
def test_what_shapes_do_not_decide_stays_what_it_is(failing, error):
    failing(error)
    with pytest.raises(type(error)):
        loop.proven(GRAPH, WEIGHTS, device=CPU)


def test_a_parameter_before_an_embedding_is_no_parameter_of_a_run(make_hospital):
    """Attack: a run that adapts one was admitted, and its trial ended as an incident."""
    at = {"num_embeddings": 5, "embedding_dim": 3}
    nodes = Node("feature_affine", (0,), "a", {"features": 4}), Node("embedding", (1,), "e", at)
    graph = ExtractorGraph((*nodes, Node("reshape", (2,), "", {"shape": (12,)})), (4,))
    hospital = make_hospital(np.zeros((24, 4), np.float32))
    weights = weights_to_bytes({name: torch.ones(shape) for name, shape in graph.tensor_shapes.items()})
    facts = hospital.extractors.check(graph.to_bytes(), weights, record_shape=(4,), client="ml-team")
    assert set(facts.parameter_shapes) == {"e.weight"}
