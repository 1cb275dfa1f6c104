"""Probes change nothing until they are moved, and what is delivered is what the probed network computes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from text_networks import WORDS, Codes, D, T
from torch import nn
from vision_blocks import NormAct

from dpswd.public_client.extractor.made_records import made_records
from dpswd.public_client.extractor.tracing import module_weights, trace
from dpswd.public_client.ladder.whole_model import WholeNumbers
from dpswd.public_client.normalisation.reference import Reference
from dpswd.public_client.probes.probes import INPUT, Probed, find_places, statistics_of
from dpswd.shared.core.errors import InvalidValue
from dpswd.shared.sandbox.building import Extractor


class _Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.gru = nn.GRU(3, 8, batch_first=True)
        self.scores = nn.Linear(8, 4)

    def forward(self, x):
        return self.scores(self.gru(x)[0][:, -1])


class _Tokens(nn.Module):
    """A block of tokens with layer normalisations, as in a transformer."""

    def __init__(self):
        super().__init__()
        self.into = nn.Linear(5, 8)
        self.norm = nn.LayerNorm(8)
        self.mixed = nn.Linear(8, 8)
        self.last = nn.LayerNorm(8)
        self.scores = nn.Linear(8, 4)

    def forward(self, x):
        x = self.into(x)
        x = x + torch.relu(self.mixed(self.norm(x)))
        return self.scores(self.last(x).mean(dim=1))


class _Encoded(nn.Module):
    """Torch's own encoder, which in evaluation calls none of its layers."""

    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 12, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.scores = nn.Linear(8, 4)

    def forward(self, x):
        padding = x[:, :, 0] < -2.0
        return self.scores(self.encoder(x, src_key_padding_mask=padding).mean(dim=1))


def _batch_norms(dimensions):
    conv, norm, pool = (
        (nn.Conv1d, nn.BatchNorm1d, nn.AdaptiveAvgPool1d)
        if dimensions == 1
        else (nn.Conv2d, nn.BatchNorm2d, nn.AdaptiveAvgPool2d)
    )
    return nn.Sequential(
        conv(2, 6, 3, padding=1), norm(6), nn.ReLU(), conv(6, 4, 3), norm(4, affine=False), nn.ReLU(), pool(1),
        nn.Flatten(), nn.Linear(4, 4),
    )  # fmt: skip


NETWORKS = {
    "images": (lambda: _batch_norms(2), (2, 9, 9), ["1", "4"]),
    "sequences": (lambda: _batch_norms(1), (2, 12), [INPUT, "1", "4"]),
    "table": (
        lambda: nn.Sequential(nn.Linear(5, 7), nn.BatchNorm1d(7), nn.ReLU(), nn.Linear(7, 3)), (5,), [INPUT, "1"],
    ),
    "no normalisation": (
        lambda: nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 5, 3), nn.ReLU(), nn.Flatten(), nn.Linear(80, 3)
        ),
        (1, 8, 8), ["0", "2"],
    ),
    "groups": (
        lambda: nn.Sequential(nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3)),
        (1, 8, 8), ["1"],
    ),
    "norm and activation": (
        lambda: nn.Sequential(
            nn.Conv2d(2, 6, 3), NormAct(6), nn.Conv2d(6, 4, 3), NormAct(4, nn.SiLU), nn.Flatten(), nn.Linear(100, 4)
        ),
        (2, 9, 9), ["1", "3"],
    ),
    "recurrent": (_Recurrent, (7, 3), [INPUT, "scores"]),
    "encoder": (_Encoded, (6, 8), [INPUT, *(f"encoder.layers.{i}.norm{j}" for i in (0, 1) for j in (1, 2))]),
    "tokens": (_Tokens, (6, 5), [INPUT, "norm", "last"]),
}  # fmt: skip


def _made(name):
    make, shape, paths = NETWORKS[name]
    torch.manual_seed(2)
    model, records = make(), 0.5 + 1.5 * torch.randn(64, *shape)
    model.train()(records)  # running statistics of their own
    model.eval()
    return model, records, paths


@pytest.mark.parametrize("name", NETWORKS)
def test_layers_are_listed_in_order_and_still_probes_change_nothing(name):
    model, records, paths = _made(name)
    places = find_places(model, records)
    assert [place.path for place in places] == paths
    probed = Probed(model, places)
    first, whole = probed.delivered()
    with torch.no_grad():
        expected = model(records)
        torch.testing.assert_close(whole(records if first is None else first(records)), expected, atol=1e-4, rtol=1e-4)
        sizes = [*(2 * place.channels for place in places), len(expected.T), 1]
        *_, shares, squares = torch.split(probed(records), sizes, dim=1)
    torch.testing.assert_close(shares, torch.softmax(expected, dim=1), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(squares, shares.square().sum(dim=1, keepdim=True))


@pytest.mark.parametrize(
    ("network", "paths"),
    [
        (lambda: nn.Sequential(Codes(), nn.Linear(8, 3)), ["0.norm"]),
        (lambda: nn.Sequential(WholeNumbers(), nn.Embedding(WORDS, D), nn.LayerNorm(D), nn.Flatten()), ["2"]),
        (lambda: nn.Sequential(nn.LayerNorm(T), nn.Linear(T, 3)), [INPUT, "0"]),
    ],
)
def test_codes_and_words_are_no_measurements(network, paths):
    model = network().eval()
    records = made_records(model, (16, T))
    assert [place.path for place in find_places(model, records)] == paths


class _Turned(nn.Module):
    """A network that turns its records before it reads them."""

    def __init__(self, first):
        super().__init__()
        self.first, self.scores = first, nn.Linear(6, 4)

    def forward(self, x):
        x = self.first(x.transpose(1, 2))
        x = x[0] if isinstance(x, tuple) else x.transpose(1, 2)
        return self.scores(x.mean(dim=1))


class _Planes(nn.Module):
    """A network that reads a sequence as one plane, as EEGNet does: no layer is as wide as either side."""

    def __init__(self):
        super().__init__()
        self.read, self.scores = nn.Conv2d(1, 8, (1, 3)), nn.Linear(8, 5)

    def forward(self, x):
        return self.scores(self.read(x.unsqueeze(1)).mean(dim=(2, 3)))


@pytest.mark.parametrize(
    ("network", "shape", "last"),
    [
        (_Turned(nn.Conv1d(3, 6, 3)), (20, 3), True),
        (_Turned(nn.Sequential(nn.BatchNorm1d(3), nn.Conv1d(3, 6, 3))), (20, 3), True),
        (_Turned(nn.GRU(3, 6, batch_first=True)), (3, 20), False),
        (_batch_norms(1), (2, 12), False),
        (_Recurrent(), (7, 3), True),
        (_Planes(), (4, 20), False),
        (_Planes(), (20, 4), True),
    ],
)
def test_the_channels_of_a_sequence_are_the_side_that_the_first_layer_is_as_wide_as_or_the_shorter(
    network, shape, last
):
    first = find_places(network.eval(), torch.randn(32, *shape))[0]
    assert (first.path, first.last, first.channels) == (INPUT, last, shape[1] if last else shape[0])


@pytest.mark.parametrize("name", NETWORKS)
def test_a_record_that_grows_without_bound_leaves_weights_that_a_curator_takes(name):
    model, records, _ = _made(name)
    probed = Probed(model, find_places(model, records))
    records[0] *= 1e9
    vectors = statistics_of(probed, records).double().numpy()
    reference = Reference.of(vectors, np.arange(len(records)) % 4)
    assert np.abs(vectors).max() <= 1e4
    for weights in (reference.scale, reference.scale / reference.radius):
        assert 1e-6 < weights.min() < weights.max() < 1e6


@pytest.mark.parametrize("name", NETWORKS)
def test_what_is_delivered_computes_what_the_moved_probes_do_and_travels(name):
    model, records, _ = _made(name)
    probed = Probed(model, find_places(model, records))
    generator = torch.Generator().manual_seed(5)
    for probe in probed.probes:
        c = probe.place.channels
        signs = torch.randn(c, generator=generator).sign() if probe.place.path == INPUT else 1.0  # records are inverted
        if not probe.place.scores:  # never moved
            probe.move(torch.randn(c, generator=generator), signs * (0.5 + torch.rand(c, generator=generator)))
    first, whole = probed.delivered()
    delivered = whole if first is None else nn.Sequential(first, whole)
    with torch.no_grad():
        moved = probed.model(records if probed.first is None else probed.first(records))
        torch.testing.assert_close(delivered(records), moved, atol=1e-3, rtol=1e-3)
        assert float((moved - model(records)).abs().max()) > 1e-2
    graph = trace(delivered.eval(), tuple(records.shape[1:]))
    again = Extractor(graph, module_weights(delivered, graph), device=torch.device("cpu"))
    torch.testing.assert_close(again.features(records), moved, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("name", NETWORKS)
def test_the_travelling_graph_computes_the_same_statistics_under_moved_values(name):
    """What the curator evaluates under a step's values is what the client's own probes tell."""
    model, records, _ = _made(name)
    probed = Probed(model, find_places(model, records))
    graph = trace(probed, tuple(records.shape[1:]))
    travelling = Extractor(graph, module_weights(probed, graph), device=torch.device("cpu"))
    probed.probes[0].move(torch.full((probed.probes[0].place.channels,), 0.4), torch.tensor(1.3))
    values = dict(probed.named_parameters())
    names = [name for name in probed.adapted_names() if name in graph.parameter_shapes]
    with torch.no_grad():
        expected = probed(records)
    adapted = torch.cat([values[name].detach().flatten() for name in names]) if names else None
    computed = travelling.features(records, names=names, adapted=adapted)
    torch.testing.assert_close(computed, expected, atol=1e-3, rtol=1e-3)


def test_an_offset_and_a_scale_of_channels_are_undone():
    model, records, _ = _made("images")
    probed = Probed(model, find_places(model, records))
    shifted = _batch_norms(2).eval()
    shifted.load_state_dict(model.state_dict())
    with torch.no_grad():  # the first layer's channels come in with another offset and scale
        shifted[0].weight *= 1.5
        shifted[0].bias.copy_(1.5 * shifted[0].bias + 0.8)
    place = probed.probes[0].place
    offset = (1.5 * place.center + 0.8 - place.center) / place.spread
    probed.probes[0].move(offset, torch.full((place.channels,), 1.5))
    with torch.no_grad():
        probed.model[0].weight.copy_(shifted[0].weight)
        probed.model[0].bias.copy_(shifted[0].bias)
        torch.testing.assert_close(probed.model(records), model(records), atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("kind", NETWORKS)
def test_moves_that_the_probes_undo_leave_the_scores_as_they_were(kind):
    model, records, _ = _made(kind)
    probed = Probed(model, find_places(model, records))
    draws = torch.Generator().manual_seed(3)
    moves = [0.5 * torch.randn(2, probe.place.channels, generator=draws) for probe in probed.probes]
    for probe, (offset, log) in zip(probed.probes, moves, strict=True):
        probe.move(offset, (0.5 * log).exp())
    with torch.no_grad():
        expected, moved = model(records), probed.where(moves, undone=False)(records)
        torch.testing.assert_close(probed.where(moves, undone=True)(records), expected, atol=1e-4, rtol=1e-4)
        assert (moved - expected).abs().max() > 1e-2


def test_a_model_without_channels_is_refused():
    with pytest.raises(InvalidValue, match="no layer with channels"):
        find_places(nn.Sequential(nn.Flatten()), torch.randn(4, 1, 3, 3))
