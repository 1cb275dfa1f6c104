"""One forward pass whose per-record gradients can be taken later, after a release has been made from it.

Each record is evaluated together with its own copy of the declared tensors, under vmap; autograd through the vmapped
function then leaves in each copy the gradient of its own record. A copy is used by its record alone, so the rows are
independent by construction, and the whole batch costs one backward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.func import vmap

from shared.errors import InvalidValue

OneRecord = Callable[[Tensor], Tensor]
"""A function of one record's vector that closes over public tensors only."""


class ForwardPass:
    """Vectors of a batch of records, and on demand the gradient of each record by itself.

    Attributes:
        outputs: (b, d'), head(features) of each record, detached.
    """

    def __init__(
        self,
        *,
        evaluate: Callable[[Tensor, dict[str, Tensor]], Tensor],
        records: Tensor,
        declared: Mapping[str, Tensor],
        chunk_size: int,
        keep: bool,
    ) -> None:
        self._evaluate = evaluate
        self._declared = declared
        if not len(records):
            raise InvalidValue("a forward pass needs at least one record")
        self._chunks = torch.split(records, chunk_size)
        self._kept: list[tuple[Tensor, list[Tensor]]] = []
        outputs = []
        for chunk in self._chunks:
            with torch.set_grad_enabled(keep):
                out, copies = self._forward(chunk)
            outputs.append(out.detach())
            if keep:
                self._kept.append((out, copies))
        self.outputs = torch.cat(outputs)

    def gradients(self, cotangent: Tensor | OneRecord) -> Tensor:
        """The gradient of <cotangent, outputs> for each record.

        Frees what was kept; a second call evaluates the records again.

        Args:
            cotangent: (b, d'), or a function of ONE record's output (d',) -> (d',) over public tensors only.

        Returns:
            (b, p), flattened in the order in which the tensors were declared.
        """
        if not callable(cotangent) and cotangent.shape != self.outputs.shape:
            raise InvalidValue(f"cotangents must have the outputs' shape {tuple(self.outputs.shape)}")
        kept, self._kept = self._kept, []
        parts, start = [], 0
        for position, chunk in enumerate(self._chunks):
            if kept:
                out, copies = kept[position]
                kept[position] = (out.detach(), [])  # lets the graph go as soon as it is used
            else:
                with torch.enable_grad():
                    out, copies = self._forward(chunk)
            with torch.no_grad():
                rows = (
                    vmap(cotangent)(out.detach())
                    if callable(cotangent)
                    else cotangent[start : start + len(chunk)].detach().to(out)
                )
            gradients = torch.autograd.grad(out, copies, rows, allow_unused=True, materialize_grads=True)
            parts.append(torch.cat([gradient.reshape(len(chunk), -1) for gradient in gradients], dim=1))
            start += len(chunk)
        return torch.cat(parts)

    def _forward(self, chunk: Tensor) -> tuple[Tensor, list[Tensor]]:
        copies = {
            name: tensor.detach().expand(len(chunk), *tensor.shape).requires_grad_()
            for name, tensor in self._declared.items()
        }
        return self._evaluate(chunk, copies), list(copies.values())
