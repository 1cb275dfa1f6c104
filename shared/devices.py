"""One setting chooses where tensors live, at either party."""

from __future__ import annotations

import torch

from dpswd.shared.core.errors import SettingsError

DEVICES = ("auto", "cpu", "cuda")


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
