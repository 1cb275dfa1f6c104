"""One setting chooses where tensors live."""

from __future__ import annotations

import torch

from shared.errors import SettingsError

DEVICES = ("auto", "cpu", "cuda")


def resolve_device(name: str) -> torch.device:
    """The torch device for "cpu", "cuda" or "auto" (cuda where there is one).

    Raises:
        SettingsError: unknown name, or cuda where there is none.
    """
    if name not in DEVICES:
        raise SettingsError(f"there is no device {name!r}; allowed: {', '.join(DEVICES)}")
    if name == "cuda" and not torch.cuda.is_available():
        raise SettingsError("device cuda was asked for, but torch sees no CUDA device; use cpu or auto")
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(name)
