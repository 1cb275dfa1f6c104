"""How long a fit takes on this machine: what a plan says before anything is asked."""

from __future__ import annotations

import copy
import time

import torch
from torch import nn

from dpswd.public_client.training.sites import Model

_RECORDS, _TIMES = 32, 3


def pass_seconds(model: Model, record_shape: tuple[int, ...]) -> float:
    """Seconds of one record forward and backward through a model, where its parameters are: the shortest of three.

    Args:
        model: in two parts; it stays as it is.
        record_shape: of one record.
    """
    module = copy.deepcopy(model.whole()).requires_grad_(True)
    device = next(module.parameters(), torch.zeros(0)).device
    return min(_update(module, torch.zeros(_RECORDS, *record_shape, device=device)) for _ in range(_TIMES))


def _update(module: nn.Module, records: torch.Tensor) -> float:
    begun = time.perf_counter()
    scores: torch.Tensor = module(records)
    if scores.requires_grad:
        torch.autograd.backward(scores.square().mean())
        float(next(p.grad.sum() for p in module.parameters() if p.grad is not None))  # waits for a device
    return (time.perf_counter() - begun) / len(records)


def in_words(seconds: float) -> str:
    """To a minute, or less than one."""
    return f"about {seconds / 60.0:.0f} min" if seconds >= 90.0 else "about a minute or less"
