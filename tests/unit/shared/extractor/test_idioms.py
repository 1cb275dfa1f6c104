"""What teams write around recurrent layers, attention and buffers travels, or is refused with what to write."""

from __future__ import annotations

import math

import pytest
import torch
from sequence_models import VitTiny
from torch import nn
from torch.nn import functional

from dpswd.public_client.extractor.tracing import module_weights, trace, validate
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
