"""The logistic loss of a domain critic, on either side: z is the logit of "this record is the target's".

Target records pay log(1 + exp(-z)), source records log(1 + exp(z)) (Goodfellow and others 2014; Ganin and others 2016).
Each record's loss depends on its own logit alone, which is what the price rests on (docs/privacy/critic-gradients.md).
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from dpswd.shared.core.errors import InvalidValue
from dpswd.shared.core.noise.clipping import neutralise


def target_cotangents(logits: Tensor) -> Tensor:
    """The derivative of each target record's loss in its logit, -1 / (1 + exp(z)).

    Args:
        logits: (b, 1); NaN and infinities count as 0.

    Returns:
        (b, 1), between -1 and 0, row by row.

    Raises:
        InvalidValue: another shape.
    """
    if logits.dim() != 2 or logits.shape[1] != 1:
        raise InvalidValue(f"logits have shape {tuple(logits.shape)}; a critic computes one for each record, (b, 1)")
    return -torch.sigmoid(-neutralise(logits))


def source_loss(logits: Tensor) -> Tensor:
    """Mean of log(1 + exp(z)) over logits of any shape; differentiable."""
    return functional.softplus(logits).mean()
