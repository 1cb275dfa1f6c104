"""What teams write around recurrent layers, attention and buffers travels, or is refused with what to write."""

from __future__ import annotations

import math

import pytest
import torch
from sequence_models import VitTiny
from torch import nn
from torch.nn import functional

from dpswd.public_client.extractor.tracing import module_weights, trace, validate, without_parametrizations
from dpswd.shared.core.errors import ExtractorUnsupported
from dpswd.shared.sandbox.building import Extractor


class Net(nn.Module):
    def __init__(self, after, layer=None):
        super().__init__()
        self.after = after
        self.layer = layer or nn.Linear(8, 24)
        self.places = nn.Embedding(9, 8)
        self.register_buffer("ids", torch.arange(5))
        self.register_buffer("odd", torch.tensor([0, 2, 4, 6, 8]))
        self.register_buffer("mean", torch.linspace(0.1, 0.8, 8))

    def forward(self, x):
        return self.after(self, x)


def heads(m, x):
    b, n, c = x.shape
    return m.layer(x).reshape(b, n, 3, 2, c // 2).permute(2, 0, 3, 1, 4)


def fused(m, x):
    q, k, v = heads(m, x)
    return functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(x.size(0), -1)


def by_root(m, x):
    q, k, v = heads(m, x).contiguous().unbind(0)
    return (torch.softmax(q @ k.transpose(-2, -1) / math.sqrt(q.size(-1)), dim=-1) @ v).transpose(1, 2).flatten(1)


def cell(kind=nn.GRU, **options):
    return kind(8, 4, batch_first=True, **options)


def encoder_layer(**options):
    return nn.TransformerEncoderLayer(8, 2, 12, batch_first=True, **options)


def positions(x):
    return torch.arange(x.size(1), device=x.device)


def masked_mean(m, x):
    seen = (x[:, :, 0] > 0).unsqueeze(-1).expand(x.size()).float()
    return (x * seen).sum(1) / torch.clamp(seen.sum(1), min=1e-9)


class Own(nn.Module):
    """Tensors of its own, as teams of tables and of images hold them."""

    def __init__(self, after):
        super().__init__()
        self.after = after
        self.matrix, self.each = nn.Parameter(torch.randn(4, 4)), nn.Parameter(torch.randn(3, 4, 5))
        self.row, self.places = nn.Parameter(torch.randn(4)), nn.Parameter(torch.randn(1, 3, 4))
        self.project, self.norm = nn.Linear(4, 4), nn.RMSNorm(4)
        self.even, self.pad = nn.Conv1d(3, 2, 4, padding="same"), nn.ConstantPad1d((1, 2), 0.5)

    def forward(self, x):
        return self.after(self, x).flatten(1)


def beside_the_batch(m, x, first):
    """Heads merged into the batch, as FT-Transformer does."""
    b, n, d = x.shape

    def split(of):
        return of.reshape(b, n, 2, d // 2).transpose(1, 2).reshape(first(b) if first else -1, n, d // 2)

    q, k = split(m.project(x)), split(x)
    seen = functional.dropout(functional.softmax(q @ k.transpose(1, 2) / 2.0, dim=-1), 0.1, m.training) @ split(x)
    return seen.reshape(b, 2, n, d // 2).transpose(1, 2).reshape(b, n, d)


def made_on_the_way(m, x):
    q, k, v = map(lambda of: of + 1.0, m.project(torch.cat([x] * 3, 1)).chunk(3, dim=1))  # noqa: C417 - as it is written
    return nn.Softmax(dim=-1)(q @ k.mT) @ v


OWN = {
    "len": lambda m, x: torch.cat([m.row.expand(len(x), 1, -1), x], 1),
    "repeat": lambda m, x: torch.cat([m.places.repeat(x.shape[0], 1, 1), x], 1),
    "branch on the batch": lambda m, x: x if x.shape[0] > 1 else 2.0 * x,
    "addcmul": lambda m, x: torch.addcmul(m.row, m.matrix, x[..., None]),
    "constants of its own": lambda m, x: torch.sin(2.0 * math.pi * m.row * x) / (m.row**2 + 1.0),
    "gate": lambda m, x: x * torch.sigmoid(m.row) - functional.softplus(m.places * m.row),
    "matrix of its own": lambda m, x: x[:, 0] @ m.matrix + x[:, 1] @ m.matrix.T @ m.matrix,
    "matrix for each place": lambda m, x: (x.transpose(0, 1) @ m.each).transpose(0, 1),
    "columns": lambda m, x: torch.column_stack([x[:, 0], x[:, 2]]),
    "powers": lambda m, x: x**2 + x.pow(3) - x.square() * (x * x + 1.0).sqrt() + torch.rsqrt(x.exp()),
    "spread": lambda m, x: (x - x.mean(1, keepdim=True)) / (x.std(1, keepdim=True) + 0.1) + x.var(-1, False)[..., None],
    "norms": lambda m, x: m.norm(x),
    "even kernel": lambda m, x: m.even(m.pad(x)),
    "einsum": lambda m, x: torch.einsum("btd,de->bet", x, m.matrix),
    "einsum of two": lambda m, x: torch.einsum("bid,bjd->bij", x, x * 0.5),
    "einsum of heads": lambda m, x: torch.einsum("b h i d, b h j d -> b i h j", *[x.reshape(-1, 3, 2, 2)] * 2),
    "einsum of rows": lambda m, x: torch.einsum("btd,btd->bt", x, m.project(x)),
    "einsum of products": lambda m, x: torch.einsum("bi,bj->bij", x[:, 0], x[:, 1]),
    "heads beside the batch": lambda m, x: beside_the_batch(m, x, lambda b: 2 * b),
    "heads before an unknown": lambda m, x: beside_the_batch(m, x, None),
    "moments beside the batch": lambda m, x: m.norm(m.project(x.view(-1, 4)).relu()).view(x.size(0), 3, 4).mean(1),
    "made on the way": made_on_the_way,
}


@pytest.mark.parametrize("after", OWN.values(), ids=OWN)
def test_tensors_of_one_s_own_and_sizes_are_computed_with(after):
    torch.manual_seed(1)
    agrees(Own(after), (3, 4))


@pytest.mark.parametrize("equation", ["btd->bt", "b...d,de->b...e", "btt,btd->btd", "btd,ef->btd"])
def test_an_einsum_of_another_kind_is_refused_in_words(equation):
    def after(m, x):
        return torch.einsum(equation, *[x, m.matrix if "e" in equation else x][: 1 + equation.count(",")])

    (problem,) = validate(Own(after).eval(), (4, 4))
    assert "einsum" in str(problem)


def test_weights_that_are_normed_or_bounded_travel_once_they_are_plain():
    with pytest.warns(FutureWarning, match="weight_norm"):
        first = nn.utils.weight_norm(nn.Linear(4, 6))
    network = nn.Sequential(first, nn.ReLU(), nn.utils.parametrizations.weight_norm(nn.Linear(6, 3))).eval()
    records = torch.randn(5, 4)
    with torch.no_grad():
        expected = network(records)
    plain = without_parametrizations(network)
    torch.testing.assert_close(plain(records), expected)
    agrees(plain, (4,))
    assert {name for name, _ in plain.named_parameters()} == {"0.weight", "0.bias", "2.weight", "2.bias"}
    assert hasattr(network[2], "parametrizations"), "the given network is left as it was"


def agrees(module, shape):
    graph = trace(module.eval(), shape)
    records = torch.randn(3, *shape)
    seen = Extractor(graph, module_weights(module, graph)).features(records)
    with torch.no_grad():
        torch.testing.assert_close(seen, module(records), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("after", "layer"),
    [
        (lambda m, x: m.layer(x)[1].squeeze(0), cell()),
        (lambda m, x: m.layer(x)[1][0], cell()),
        (lambda m, x: m.layer(x)[1][0].squeeze(0), cell(nn.LSTM)),
        (lambda m, x: torch.cat([m.layer(x)[1][-2], m.layer(x)[1][-1]], 1), cell(bidirectional=True)),
        (fused, None),
        (by_root, None),
        (lambda m, x: (x + m.places(m.ids)).flatten(1), None),
        (lambda m, x: (x + m.places(m.ids[None, : x.size(1)].expand(x.size(0), -1))).flatten(1), None),
        (lambda m, x: (x - m.mean[None, None]).flatten(1), None),
        (lambda m, x: (x.abs() - torch.abs(x - m.mean)).flatten(1), None),
        (lambda m, x: (x - m.mean.to(x.device).type_as(x).view(1, 1, 8)).to(x).flatten(1), None),
        (lambda m, x: (x + m.places(torch.arange(5))).flatten(1), None),
        (lambda m, x: (x + m.places(torch.arange(2, 2 + x.size(1), device=x.device).unsqueeze(0))).flatten(1), None),
        (lambda m, x: (x + m.places(positions(x).unsqueeze(0).expand(x.size(0), -1))).flatten(1), None),
        (lambda m, x: (torch.softmax(m.layer(x), dim=1) * x).sum(1), nn.Linear(8, 1)),
        (lambda m, x: m.layer(x).unflatten(2, (4, 6)).softmax(2).flatten(1), None),
        (masked_mean, None),
        (
            lambda m, x: (
                x[:, :, :1].expand(-1, -1, 11).flatten(1) + x.mean(2, keepdim=True).expand(-1, 5, 11).flatten(1)
            ),
            None,
        ),
        (lambda m, x: m.mean[None, None].expand(x.size(0), 5, -1).mul(x).flatten(1), None),
        (
            lambda m, x: (x.clamp(min=0.1) + x.clamp(max=-0.2) + torch.clip(x, -1, 1) + x.clamp_min(-0.5)).flatten(1),
            None,
        ),
        (lambda m, x: m.layer(x).flatten(1), encoder_layer(norm_first=True)),
        (lambda m, x: m.layer(x).mean(1), encoder_layer(activation=functional.silu)),
        (lambda m, x: m.layer(x).mean(1), nn.TransformerEncoder(encoder_layer(), 2, nn.LayerNorm(8))),
    ],
)
def test_an_idiom_is_accepted_and_computes_the_same(after, layer):
    agrees(Net(after, layer), (5, 8))


@pytest.mark.parametrize(
    ("after", "layer", "words"),
    [
        *(
            (after, cell(), "'layer': h is (layers, batch, features)")
            for after in (
                lambda m, x: m.layer(x)[1].squeeze(),
                lambda m, x: m.layer(x)[1].transpose(0, 1).flatten(1),
                lambda m, x: m.layer(x)[1].permute(1, 0, 2),
                lambda m, x: m.layer(x)[1].mean(0),
                lambda m, x: torch.relu(m.layer(x)[1])[-1],
                lambda m, x: m.layer(x)[1].view(-1, 4),
                lambda m, x: m.layer(x)[1],
            )
        ),
        (lambda m, x: m.layer(x)[1].squeeze(0), cell(num_layers=2), "write h[-1]"),
        (lambda m, x: torch.cat([m.layer(x)[1][0][-1], m.layer(x)[1][1][-1]], 1), cell(nn.LSTM), "the cell state c"),
        (lambda m, x: m.layer(x)[1].squeeze(0), cell(nn.LSTM), "(h, c)"),
        (lambda m, x: torch.relu(heads(m, x)), None, "qkv.unbind(0)"),
        (lambda m, x: (x + m.places(m.odd)).flatten(1), None, "consecutive rows"),
        (lambda m, x: (x + m.ids[:, None]).flatten(1), None, "register the buffer as float32"),
        (lambda m, x: (x + torch.arange(8)).flatten(1), None, "rows of an nn.Embedding"),
        (lambda m, x: m.mean[torch.arange(5)] + x[:, 0, :5], None, "is not in the vocabulary"),
        (lambda m, x: x.expand(2, -1, -1).flatten(1), None, "only sides of 1 are copied"),
        (lambda m, x: x[:, :2].expand(-1, 4, 8).flatten(1), None, "only sides of 1 are copied"),
    ],
)
def test_what_has_no_word_is_refused_in_words_that_help(after, layer, words):
    problems = validate(Net(after, layer).eval(), (5, 8))
    assert words in "\n".join(map(str, problems))


def test_the_hint_of_a_frozen_backbone_stands_only_where_an_operation_has_no_word():
    with pytest.raises(ExtractorUnsupported) as refusal:
        trace(nn.Sequential(nn.BatchNorm1d(4)).train(), (4,))
    assert "records embed" not in str(refusal.value)


def test_a_vision_transformer_of_usual_width_computes_the_same():
    torch.manual_seed(0)
    agrees(VitTiny(), (1, 28, 28))
