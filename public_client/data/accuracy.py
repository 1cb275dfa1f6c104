"""Accuracy of an extractor with its classifier, in chunks so that memory does not depend on the data set."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dpswd.public_client.data.datasets import Labelled
from dpswd.public_client.extractor.tracing import evaluating

_CHUNK = 2000  # images; bounds memory, changes nothing else


@torch.no_grad()
def accuracy(extractor: nn.Module, classifier: nn.Module, data: Labelled) -> float:
    """Share of correct labels, in percent. Both modules are put in evaluation mode and back."""
    scores = features(nn.Sequential(extractor, classifier), data.images)
    return 100.0 * int((scores.argmax(dim=1) == data.labels).sum()) / len(data)


@torch.no_grad()
def features(extractor: nn.Module, images: Tensor) -> Tensor:
    """Features (n, d) of images (n, ...), in chunks, without gradients, in evaluation mode."""
    with evaluating(extractor):
        return torch.cat([extractor(chunk) for chunk in torch.split(images, _CHUNK)])
