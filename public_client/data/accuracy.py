"""Accuracy of an extractor with its classifier, in chunks so that memory does not depend on the data set."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from public_client.data.datasets import Labelled

_CHUNK = 2000  # images; bounds memory, changes nothing else


@torch.no_grad()
def accuracy(extractor: nn.Module, classifier: nn.Module, data: Labelled) -> float:
    """Share of correct labels, in percent. Both modules are put in evaluation mode and back."""
    modes = (extractor.training, classifier.training)
    extractor.eval()
    classifier.eval()
    correct = 0
    for start in range(0, len(data), _CHUNK):
        scores = classifier(extractor(data.images[start : start + _CHUNK]))
        correct += int((scores.argmax(dim=1) == data.labels[start : start + _CHUNK]).sum())
    extractor.train(modes[0])
    classifier.train(modes[1])
    return 100.0 * correct / len(data)


@torch.no_grad()
def features(extractor: nn.Module, images: Tensor) -> Tensor:
    """Features (n, d) of images (n, ...), in chunks, without gradients, in evaluation mode."""
    mode = extractor.training
    extractor.eval()
    chunks = [extractor(images[start : start + _CHUNK]) for start in range(0, len(images), _CHUNK)]
    extractor.train(mode)
    return torch.cat(chunks)
