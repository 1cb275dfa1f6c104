"""One setting chooses where tensors live, at either party."""

from __future__ import annotations

import torch

from dpswd.shared.core.errors import SettingsError

DEVICES = ("auto", "cpu", "cuda")


def compute_in_full_float32() -> None:
    """Keeps CUDA's convolutions and products in this process from TF32's 10 bits, and makes them repeatable.

    A hospital's features should be those that the client's own machine computes, but for the order of float32 sums; and
    the same step twice should have the same ones.
    """
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.deterministic = True


def resolve_device(name: str) -> torch.device:
    """The torch device for "cpu", "cuda" or "auto" (cuda where there is one).

    Raises:
        SettingsError: unknown name, or cuda where there is none.
    """
    if name not in DEVICES:
        raise SettingsError(f"there is no device {name!r}; allowed: {', '.join(DEVICES)}")
    available = torch.cuda.is_available()
    if name == "cuda" and not available:
        raise SettingsError(
            "device cuda was asked for (compute.device at a curator), but torch sees no CUDA device; install a CUDA "
            "build of torch and the driver, or choose cpu or auto"
        )
    return torch.device("cuda" if available and name != "cpu" else "cpu")
