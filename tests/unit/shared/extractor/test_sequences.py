"""Attention, embeddings, recurrent layers and tensors of one's own travel as data and compute what the module does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from sequence_models import WORDS, D, Recurrent, T, Text, Vit
from torch import nn
from torch.nn import functional

from dpswd.public_client.extractor.tracing import module_weights, trace, validate, weights_to_bytes
from dpswd.shared.core.errors import ExtractorUnsupported, InvalidValue
from dpswd.shared.sandbox import steady
from dpswd.shared.sandbox.building import Extractor, check_row_independence
from dpswd.shared.sandbox.graph import ExtractorGraph, Node
from dpswd.shared.sandbox.weights import weights_from_bytes

GOLDEN = Path(__file__).parent / "golden_sequence_digests.json"


def made(name):
    torch.manual_seed(0)
    return {
        "vit": (Vit(), torch.randn(3, 1, 8, 8)),
        "text": (Text(), torch.randint(WORDS, (3, T)).float()),
        "gru": (Recurrent(nn.GRU), torch.randn(3, T, 3)),
        "lstm": (Recurrent(nn.LSTM), torch.randn(3, T, 3)),
    }[name]


@pytest.mark.parametrize("name", ["vit", "text", "gru", "lstm"])
def test_a_model_travels_and_computes_the_same_record_by_record(name):
    module, records = made(name)
    module.eval()
    graph = ExtractorGraph.from_bytes(trace(module, tuple(records.shape[1:])).to_bytes())
    weights = weights_from_bytes(weights_to_bytes(module_weights(module, graph)), graph)
    extractor = Extractor(graph, weights)
    with torch.no_grad():
        torch.testing.assert_close(extractor.features(records), module(records), rtol=1e-4, atol=1e-5)
    check_row_independence(extractor)
    names = [name for name, _ in module.named_parameters()]
    assert set(graph.parameter_shapes) == set(names)
    chosen = names[:1] + names[-1:]
    forward = extractor.begin(records, chosen)
    own = forward.gradients(torch.ones_like(forward.outputs))
    for i in range(len(records)):
        tensors = [dict(module.named_parameters())[name] for name in chosen]
        expected = torch.autograd.grad(module(records[i : i + 1]).sum(), tensors)
        torch.testing.assert_close(own[i], torch.cat([g.flatten() for g in expected]), rtol=1e-3, atol=1e-4)


def test_digests_never_change():
    """As in test_graph: operators approve digests, so attention, softmax, embeddings and cells keep theirs."""
    golden = json.loads(GOLDEN.read_text())
    graphs = {name: trace(made(name)[0].eval(), tuple(made(name)[1].shape[1:])) for name in golden}
    assert {name: graph.digest for name, graph in graphs.items()} == golden
    used = {node.operation for graph in graphs.values() for node in graph.nodes}
    assert used >= {
        "in_projection",
        "matmul",
        "softmax",
        "embedding",
        "gru",
        "lstm",
        "normalize",
        "layer_norm",
        "parameter",
    }


def test_the_steady_forms_are_the_functions():
    x = 4 * torch.randn(5, 7)
    torch.testing.assert_close(steady.softmax(x), torch.softmax(x, dim=-1))
    weighed, x_ = torch.randn(5, 7), x.clone().requires_grad_()
    mine, torch_s = (
        torch.autograd.grad((function(x_, -1) * weighed).sum(), x_)[0]
        for function in (lambda values, _: steady.softmax(values), torch.softmax)
    )
    torch.testing.assert_close(mine, torch_s)  # where the largest is, too
    far = steady.softmax(torch.tensor([[1e30, 0.0]]))
    torch.testing.assert_close(far, torch.tensor([[1.0, 0.0]]), atol=1e-30, rtol=0)
    torch.testing.assert_close(steady.normalize(x, 1, 1e-12), functional.normalize(x, dim=1))
    assert torch.equal(steady.normalize(torch.zeros(2, 3), 1, 1e-12), torch.zeros(2, 3))
    graph = ExtractorGraph((Node("embedding", (0,), "e", {"num_embeddings": 3, "embedding_dim": 2}),
                            Node("reshape", (1,), "", {"shape": (8,)})), (4,))  # fmt: skip
    table = torch.arange(1.0, 7.0).reshape(3, 2)
    seen = Extractor(graph, {"e.weight": table}).features(torch.tensor([[2.0, 0.0, 7.0, float("nan")]]))
    assert seen.tolist() == [[5.0, 6.0, 1.0, 2.0, 0.0, 0.0, 0.0, 0.0]]  # no such word gives zeros


class Calls(nn.Module):
    def __init__(self, function, **layers):
        super().__init__()
        self.function = function
        for name, layer in layers.items():
            setattr(self, name, layer)

    def forward(self, x):
        return self.function(self, x)


@pytest.mark.parametrize(
    ("module", "words"),
    [
        (nn.GRU(D, 4), "batch_first=True"),
        (Calls(lambda m, x: m.a(x, x, x)[0].flatten(1), a=nn.MultiheadAttention(D, 2)), "mix the records of a batch"),
        (
            Calls(lambda m, x: m.a(x, x + 1, x)[0].flatten(1), a=nn.MultiheadAttention(D, 2, batch_first=True)),
            "(x, x, x)",
        ),
        (Calls(lambda m, x: m.t(x).permute(1, 0, 2), t=nn.Tanh()), "moves the batch"),
        (Calls(lambda m, x: m.t(x)[0], t=nn.Tanh()), "x[:, 0]"),
        (Calls(lambda m, x: m.t(x)[:, ::2].flatten(1), t=nn.Tanh()), "without a step"),
        (Calls(lambda m, x: torch.softmax(m.t(x), dim=0), t=nn.Tanh()), "use dim=-1"),
        (
            Calls(lambda m, x: (m.t(x) + m.p).flatten(1), t=nn.Tanh(), p=nn.Parameter(torch.ones(2, T, D))),
            "a leading 1",
        ),
        (Calls(lambda m, x: torch.cat([x, m.t(x)], dim=0), t=nn.Tanh()), "mixes records"),
    ],
)
def test_what_would_mix_records_is_refused_with_what_to_use(module, words):
    problems = validate(module.eval(), (T, D))
    assert problems
    assert words in "\n".join(map(str, problems))


def test_hostile_graphs_are_refused():
    held = Node("parameter", (), "a.weight", {"shape": (4,)})
    taken = Node("linear", (1,), "a", {"in_features": 4, "out_features": 1, "bias": False})
    with pytest.raises(InvalidValue, match="two different layers"):
        ExtractorGraph((held, taken), (4,))
    at = {"input_size": 1, "hidden_size": 1, "layer": 0, "reverse": False, "bias": True}
    with pytest.raises(InvalidValue, match="at most 2048"):
        ExtractorGraph((Node("gru", (0,), "g", at),), (4096, 1))
    with pytest.raises(ExtractorUnsupported, match="float32"):
        trace(Calls(lambda m, x: x * m.p, p=nn.Parameter(torch.ones(3, dtype=torch.float64))), (3,))
