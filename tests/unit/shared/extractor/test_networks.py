"""Networks in the idioms of libraries, by name: they travel, compute the same record by record, and learn the same."""

from __future__ import annotations

import pytest
import torch
from text_networks import WORDS, Bert, CausalAttention, Codes, FusedAttention, PaddedEncoder, Rnn, T, TextCnn
from torch import nn
from torch.nn import functional
from vision_blocks import ConvNext, Inverted, NormAct, SameConv, Swin, Vit

from dpswd.public_client.extractor.tracing import module_weights, trace, validate, weights_to_bytes
from dpswd.shared.core.errors import InvalidValue
from dpswd.shared.sandbox.building import Extractor, check_row_independence
from dpswd.shared.sandbox.graph import ExtractorGraph
from dpswd.shared.sandbox.weights import weights_from_bytes

IMAGES = {
    "vit": Vit,
    "beit": lambda: Vit(positions=17),
    "efficientnet": Inverted,
    "convnext": ConvNext,
    "swin": Swin,
}
TEXTS = {
    "padded encoder": PaddedEncoder,
    "causal attention": CausalAttention,
    "fused attention": FusedAttention,
    "bert": Bert,
    "rnn": Rnn,
    "rnn, relu": lambda: Rnn("relu"),
    "text cnn": TextCnn,
    "codes of a table": Codes,
}


def made(name):
    """In eval mode, with statistics and records; of texts, the ends of two are padding."""
    torch.manual_seed(0)
    module = (IMAGES | TEXTS)[name]().eval()
    for key, tensor in module.named_buffers():
        if key.endswith("running_mean"):
            tensor.normal_(std=0.3)
    if name in IMAGES:
        return module, torch.randn(3, 3, 16, 16)
    records = torch.randint(1, WORDS, (3, T)).float()
    records[:2, 8:] = 0.0
    return module, records


class Normalize(nn.Module):
    """As torchvision's transform of this name: lists, no tensors, and a forward that asks what it is given."""

    def __init__(self, mean, std):
        super().__init__()
        self.mean, self.std = mean, std

    def forward(self, x):
        if not isinstance(x, torch.Tensor):
            raise TypeError(f"img should be Tensor Image. Got {type(x)}")
        mean, std = (torch.as_tensor(of).view(-1, 1, 1) for of in (self.mean, self.std))
        return x.clone().sub_(mean).div_(std)


@pytest.mark.parametrize(("mean", "std"), [([0.485, 0.456, 0.406], (0.229, 0.224, 0.225)), ([0.5], [0.5])])
def test_a_transform_that_normalises_may_stand_in_front(monkeypatch, mean, std):
    """A team takes its normalisation out of the loader, where the hospital's pixels are from 0 to 1."""
    module = nn.Sequential(Normalize(mean, std), nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    assert "img should be Tensor Image" in str(validate(module, (3, 8, 8))[0]), "of a module that is not known"
    monkeypatch.setattr(Normalize, "__module__", "torchvision.transforms.transforms")
    graph, records = trace(module, (3, 8, 8)), torch.rand(5, 3, 8, 8)
    extractor = Extractor(graph, module_weights(module, graph))
    torch.testing.assert_close(extractor.features(records), module(records))
    check_row_independence(extractor)


@pytest.mark.parametrize("name", [*IMAGES, *TEXTS])
def test_a_network_travels_computes_and_learns_the_same(name):
    module, records = made(name)
    traced = trace(module, tuple(records.shape[1:]))
    graph = ExtractorGraph.from_bytes(traced.to_bytes())
    weights = weights_from_bytes(weights_to_bytes(module_weights(module, traced)), graph)
    extractor = Extractor(graph, weights)
    with torch.no_grad():
        torch.testing.assert_close(extractor.features(records), module(records), rtol=1e-4, atol=1e-5)
    check_row_independence(extractor)
    names = [key for key, _ in module.named_parameters() if key in graph.learnable]
    chosen = [names[0], names[len(names) // 2], names[-1]]
    forward = extractor.begin(records, chosen)
    own = forward.gradients(torch.ones_like(forward.outputs))
    for i in range(len(records)):
        expected = torch.autograd.grad(module(records[i : i + 1]).sum(), [module.get_parameter(key) for key in chosen])
        torch.testing.assert_close(own[i], torch.cat([g.flatten() for g in expected]), rtol=1e-3, atol=1e-4)


class Net(nn.Module):
    def __init__(self, after):
        super().__init__()
        self.after = after
        self.layer = nn.Linear(4, 4)
        self.norm = nn.LayerNorm(4)
        self.register_buffer("never", torch.full((4,), float("-inf")))

    def forward(self, x):
        return self.after(self, x)


@pytest.mark.parametrize(
    "after",
    [
        lambda m, x: functional.softmax(m.layer(x), dim=-1).flatten(1),
        lambda m, x: m.layer(x).max(dim=1).values,
        lambda m, x: m.layer(x).max(2, keepdim=True)[0].flatten(1),
        lambda m, x: torch.sum(x, dim=(1, 2), keepdim=True).flatten(1),
        lambda m, x: torch.stack([x, m.layer(x)], dim=1).flatten(1),
        lambda m, x: functional.linear(x, m.layer.weight).amax(dim=-1),
        lambda m, x: functional.group_norm(x, 5).flatten(1),
        lambda m, x: functional.pad(x, (1, 0, 0, 2), value=0.5).roll(1, 2).flatten(1),
        lambda m, x: (x[:, None, :, 1:] * 2)[..., None, 0].flatten(1),
        lambda m, x: x.flatten(1) if x.shape[1] == 5 and x.dim() == 3 else x.sum(1),
    ],
)
def test_an_idiom_computes_the_same(after):
    torch.manual_seed(0)
    module, records = Net(after).eval(), torch.randn(3, 5, 4)
    graph = trace(module, (5, 4))
    seen = Extractor(graph, module_weights(module, graph)).features(records)
    torch.testing.assert_close(seen, module(records).detach(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("after", "words"),
    [
        (lambda m, x: m.layer(x).max(dim=1).indices, "x.max(dim=1).values"),
        (lambda m, x: m.layer(x).max(dim=0).values, "mixes records"),
        (lambda m, x: functional.linear(x, m.layer.weight, m.norm.bias).flatten(1), "weight and .bias of one module"),
        (lambda m, x: torch.roll(x, 1, 0).flatten(1), "mixes records"),
        (lambda m, x: functional.pad(x, (1, 1), mode="reflect").flatten(1), "by a constant"),
        (lambda m, x: (x + m.never).flatten(1), "NaN or infinity"),
        (lambda m, x: functional.scaled_dot_product_attention(x, x, x, is_causal=True).flatten(1), "triu(1).bool()"),
        (lambda m, x: x.flatten(1)[:, 0] * 2.0, "keep its side: x[:, i : i + 1]"),
        (lambda m, x: torch.stack([x, x], 0).flatten(1), "mixes the records of a batch"),
    ],
)
def test_what_has_no_word_is_refused_in_words_that_help(after, words):
    assert words in "\n".join(map(str, validate(Net(after).eval(), (5, 4))))


def test_a_parameter_before_an_embedding_is_refused_by_name():
    class Looked(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(T, T), nn.Embedding(9, 4)

        def forward(self, x):
            return self.b(self.a(x).long()).flatten(1)

    module = Looked().eval()
    with torch.no_grad():
        module.a.weight.copy_(torch.eye(T))
        module.a.bias.zero_()
    graph = trace(module, (T,))
    extractor = Extractor(graph, module_weights(module, graph))
    with pytest.raises(InvalidValue, match=r"no gradient reaches \['a.weight'\]: an embedding"):
        extractor.begin(torch.ones(2, T), ["b.weight", "a.weight"])


@pytest.mark.parametrize(
    ("module", "words"),
    [
        (nn.Sequential(SameConv(3, 4, 3), NormAct(4)).train(), "call module.eval()"),
        (nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(0)), "mixes the records"),
    ],
)
def test_a_subclass_is_held_to_the_same_rules(module, words):
    assert words in "\n".join(map(str, validate(module, (3, 8, 8))))
