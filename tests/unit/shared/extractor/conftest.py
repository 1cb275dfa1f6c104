"""Common networks, written as their authors write them, and the devices they are tested on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dpswd.public_client.extractor.adapter_layers import (
    AffineWarp2d,
    ChannelAffine,
    FeatureAffine,
)
from dpswd.public_client.extractor.tracing import module_weights, trace
from dpswd.shared.sandbox.building import Extractor


class LeNet(nn.Module):
    """LeCun et al. 1998, as in PyTorch's tutorial: functional pooling, flatten by view."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 6, 5, padding=2)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.fc1 = nn.Linear(16 * 5 * 5, 120)
        self.fc2 = nn.Linear(120, 84)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.conv1(x)), (2, 2))
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = x.view(-1, self.num_flat_features(x))
        return F.relu(self.fc2(F.relu(self.fc1(x))))

    def num_flat_features(self, x: Tensor) -> int:
        features = 1
        for size in (x.size(1), x.size(2), x.size(3)):
            features = features * size
        return features


class DigitsExtractor(nn.Module):
    """The DP-SWD paper's network for digits: 320 features."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, kernel_size=5)
        self.conv2 = nn.Conv2d(32, 20, kernel_size=5)
        self.drop = nn.Dropout2d()

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(F.max_pool2d(self.conv1(x), 2))
        x = F.relu(F.max_pool2d(self.drop(self.conv2(x)), 2))
        return x.view(-1, 320)


class BasicBlock(nn.Module):
    """He et al. 2016, as torchvision writes it: in-place ReLU, shared activation, optional projection."""

    def __init__(self, inside: int, outside: int, stride: int, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, stride=stride, padding=1, bias=False)
        self.bn1 = norm(outside)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(outside, outside, 3, padding=1, bias=False)
        self.bn2 = norm(outside)
        self.downsample = None
        if stride != 1 or inside != outside:
            self.downsample = nn.Sequential(nn.Conv2d(inside, outside, 1, stride=stride, bias=False), norm(outside))

    def forward(self, x: Tensor) -> Tensor:
        identity = x
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        if self.downsample is not None:
            identity = self.downsample(x)
        out += identity
        return self.relu(out)


class ResNet(nn.Module):
    """A small ResNet with adaptive average pooling."""

    def __init__(self, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 7, stride=2, padding=3, bias=False)
        self.bn1 = norm(8)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        self.layer1 = nn.Sequential(BasicBlock(8, 8, 1, norm), BasicBlock(8, 8, 1, norm))
        self.layer2 = nn.Sequential(BasicBlock(8, 16, 2, norm), BasicBlock(16, 16, 1, norm))
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.avgpool(self.layer2(self.layer1(x)))
        return torch.flatten(x, 1)


class Branches(nn.Module):
    """Concatenation, a gate, a shared layer called twice, arithmetic with constants, a global mean."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 4, 3, padding="same")
        self.shared = nn.Conv2d(4, 4, 3, padding=1)
        self.gate = nn.Conv2d(8, 8, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem((x - 0.1307) / 0.3081)
        y = torch.cat([self.shared(x), self.shared(torch.tanh(x))], dim=1)
        y = y * torch.sigmoid(self.gate(y.mean(dim=(2, 3), keepdim=True)))
        n, c = y.shape[0], y.size(1)
        return torch.cat((y.mean([2, 3]), F.adaptive_max_pool2d(y, 2).reshape(n, c * 4)), 1)


def mlp() -> nn.Module:
    """An MLP on tabular features with a layer norm and dropout."""
    return nn.Sequential(
        nn.Linear(13, 32), nn.LayerNorm(32), nn.GELU(), nn.Dropout(0.5), nn.Linear(32, 16), nn.Softplus()
    )


def signal() -> nn.Module:
    """A one-dimensional convolutional network."""
    return nn.Sequential(
        nn.Conv1d(2, 6, 5, stride=2, dilation=2),
        nn.BatchNorm1d(6),
        nn.LeakyReLU(0.1),
        nn.MaxPool1d(2),
        nn.Conv1d(6, 6, 3, groups=3),
        nn.ELU(),
        nn.AvgPool1d(2, ceil_mode=True),
        nn.AdaptiveAvgPool1d(3),
        nn.Flatten(),
    )


def activations() -> nn.Module:
    """Every remaining activation, norm and pool once."""
    return nn.Sequential(
        nn.Unflatten(1, (1, 12, 12)),
        nn.Conv2d(1, 4, 3),
        nn.InstanceNorm2d(4, affine=True),
        nn.SiLU(),
        nn.AvgPool2d(3, stride=2, padding=1, count_include_pad=False),
        nn.Hardswish(),
        nn.GroupNorm(2, 4),
        nn.ReLU6(),
        nn.AdaptiveMaxPool2d((3, None)),
        nn.Flatten(),
        nn.Linear(60, 9, bias=False),
        nn.SELU(),
        nn.Hardtanh(-0.5, 2.0),
        nn.Mish(),
        nn.GELU(approximate="tanh"),
        nn.Hardsigmoid(),
        nn.Tanh(),
        nn.Sigmoid(),
        nn.Identity(),
    )


def every_adapter_image() -> nn.Module:
    """Adapters for images around a convolution."""
    return nn.Sequential(
        AffineWarp2d(),
        ChannelAffine(1),
        nn.Conv2d(1, 3, 3),
        ChannelAffine(3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(192, 5),
    )


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "lenet": (LeNet, (1, 28, 28)),
    "digits": (DigitsExtractor, (1, 28, 28)),
    "resnet-frozen-batch-norm": (lambda: ResNet(nn.BatchNorm2d), (3, 32, 32)),
    "resnet-group-norm": (lambda: ResNet(lambda c: nn.GroupNorm(4, c)), (3, 32, 32)),
    "branches": (Branches, (1, 8, 8)),
    "mlp": (mlp, (13,)),
    "signal": (signal, (2, 40)),
    "activations": (activations, (144,)),
    "adapters-image": (every_adapter_image, (1, 10, 10)),
    "features": (lambda: nn.Sequential(FeatureAffine(6), nn.Linear(6, 4)), (6,)),
    "one-layer": (lambda: nn.Linear(7, 3), (7,)),
    "identity": (nn.Identity, (5,)),
}


@dataclass(frozen=True)
class Example:
    """A network in eval mode with random weights and statistics, and synthetic records for it."""

    name: str
    module: nn.Module
    input_shape: tuple[int, ...]

    def records(self, count: int, seed: int = 1) -> Tensor:
        return torch.randn(count, *self.input_shape, generator=torch.Generator().manual_seed(seed))

    def extractor(self, device: str = "cpu") -> Extractor:
        graph = trace(self.module, self.input_shape)
        return Extractor(graph, module_weights(self.module, graph), device=device)


def make_example(name: str) -> Example:
    factory, shape = MODELS[name]
    torch.manual_seed(7)
    module = factory().eval()
    for child in module.modules():
        for key, tensor in child.named_buffers(recurse=False):
            if key == "running_mean":
                tensor.normal_(std=0.3)
            elif key == "running_var":
                tensor.uniform_(0.5, 2.0)
    with torch.no_grad():  # away from the identity and from zero, so that every parameter matters
        for parameter in module.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    return Example(name, module, shape)


@pytest.fixture(params=list(MODELS))
def example(request) -> Example:
    """Each of the common networks."""
    return make_example(request.param)


@pytest.fixture
def digits() -> Example:
    """The paper's network for digits."""
    return make_example("digits")


@pytest.fixture
def build() -> Callable[[str], Example]:
    """Makes one of the common networks by name."""
    return make_example


@pytest.fixture(
    params=[
        "cpu",
        pytest.param(
            "cuda",
            marks=[
                pytest.mark.cuda,
                pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine"),
            ],
        ),
    ]
)
def device(request, monkeypatch) -> str:
    """Each device; cuda is skipped, visibly, where there is none. Results are compared in full float32 there."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    return request.param
