"""The features of methods that read a record's values themselves."""

from __future__ import annotations

from torch import Tensor, nn

from dpswd.shared.core.noise.clipping import RECORD_NORM


class Scaled(nn.Module):
    """Records flat, low at 0, brought to a norm where theirs is `typical` times the range.

    Args:
        low: least value of a record.
        high: largest.
        typical: norm of a typical record's values less low, in units of high - low.
        norm: to which it is brought; by default the clip norm.
    """

    def __init__(self, low: float, high: float, typical: float, *, norm: float = RECORD_NORM) -> None:
        super().__init__()
        self.low, self.typical = low, typical
        self.gain = norm / ((high - low) * typical)
        self.flat = nn.Flatten()

    def forward(self, x: Tensor) -> Tensor:
        """(b, ...) to (b, values)."""
        flat: Tensor = self.flat((x - self.low) * self.gain)
        return flat
