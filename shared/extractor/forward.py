"""One forward pass whose per-record gradients can be taken later, after a release has been made from it.

Each record is evaluated together with its own copy of the declared tensors, under vmap; autograd through the vmapped
function then leaves in each copy the gradient of its own record. A copy is used by its record alone, so the rows are
independent by construction, and the whole batch costs one backward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from shared.errors import InvalidValue


class ForwardPass:
    """Features of a batch of records, and on demand the gradient of each record by itself.

    Attributes:
        outputs: (b, d), the features of each record, detached.
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

    def gradients(self, cotangents: Tensor) -> Tensor:
        """The gradient of <cotangent, features> for each record.

        Frees what was kept; a second call evaluates the records again.

        Args:
            cotangents: (b, d), one for each record.

        Returns:
            (b, p), flattened in the order in which the tensors were declared.

        Raises:
            InvalidValue: the cotangents have another shape than the outputs.
        """
        if cotangents.shape != self.outputs.shape:
            raise InvalidValue(f"cotangents must have the outputs' shape {tuple(self.outputs.shape)}")
        kept, self._kept = self._kept, []
        parts = []
        of_chunks = torch.split(cotangents, len(self._chunks[0]))
        for position, (chunk, rows) in enumerate(zip(self._chunks, of_chunks, strict=True)):
            if kept:
                out, copies = kept[position]
                kept[position] = (out.detach(), [])  # lets the graph go as soon as it is used
            else:
                with torch.enable_grad():
                    out, copies = self._forward(chunk)
            gradients = torch.autograd.grad(
                out, copies, rows.detach().to(out), allow_unused=True, materialize_grads=True
            )
            parts.append(torch.cat([gradient.reshape(len(chunk), -1) for gradient in gradients], dim=1))
        return torch.cat(parts)

    def _forward(self, chunk: Tensor) -> tuple[Tensor, list[Tensor]]:
        copies = {
            name: tensor.detach().expand(len(chunk), *tensor.shape).requires_grad_()
            for name, tensor in self._declared.items()
        }
        return self._evaluate(chunk, copies), list(copies.values())
