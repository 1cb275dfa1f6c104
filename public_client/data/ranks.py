"""The processes of one job under torch.distributed (torchrun): what they share, average and gather."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from dpswd.shared.core.errors import DpswdError, InvalidValue

if dist.is_available():
    # Its functions' default arguments are the process group at the moment of import, and the first optimizer imports
    # it. Were that after the group began, gloo's threads would outlive `destroy_process_group`, and one that is late
    # drops its tensors while Python ends: "terminate called without an active exception".
    import torch.distributed.nn

_Answer = TypeVar("_Answer")


@dataclasses.dataclass(frozen=True)
class Ranks:
    """The processes of one job; one alone where torch.distributed was not begun.

    Attributes:
        rank: this process, from 0.
        size: how many there are.
    """

    rank: int = 0
    size: int = 1

    @classmethod
    def current(cls) -> Ranks:
        """Those of the process group that was begun, if one was."""
        if not (dist.is_available() and dist.is_initialized()):
            return cls()
        return cls(dist.get_rank(), dist.get_world_size())

    @property
    def first(self) -> bool:
        """Whether this is rank 0."""
        return self.rank == 0

    def share(self, act: Callable[[], _Answer]) -> _Answer:
        """Lets rank 0 act; every rank returns its answer or raises its error.

        Args:
            act: its answer can be pickled; a later rank has its tensors on its own device.

        Raises:
            Exception: what rank 0 raised; on other ranks a `DpswdError` as it was, of others their text.
        """
        if self.size == 1:
            return act()
        if not self.first:
            heard: list[Any] = [None]
            dist.broadcast_object_list(heard, src=0)
            return cast(_Answer, _heard(heard[0]))
        answer, error = _tried(act)
        dist.broadcast_object_list([_to_bytes(answer, error)], src=0)
        if error is not None:
            raise error
        return cast(_Answer, answer)

    def parallel(self, module: nn.Module) -> nn.Module:
        """The module with gradients averaged over ranks at each backward pass."""
        return module if self.size == 1 else DistributedDataParallel(module)

    def synchronise(self, *modules: nn.Module) -> None:
        """Gives every rank rank 0's weights and statistics."""
        if self.size > 1:
            for module in modules:
                for tensor in [*module.parameters(), *module.buffers()]:
                    dist.broadcast(tensor.detach(), src=0)

    def average_gradients(self, parameters: Sequence[Tensor]) -> None:
        """Puts the mean over ranks in each gradient's place."""
        for parameter in parameters:
            if self.size > 1 and parameter.grad is not None:
                parameter.grad = self.mean(parameter.grad)

    def mean(self, values: Tensor) -> Tensor:
        """The mean over ranks, the same everywhere; `values` have one shape on all."""
        if self.size == 1:
            return values
        total = values.clone()
        dist.all_reduce(total)
        return total / self.size

    def require_equal(self, value: int, what: str) -> None:
        """Refuses a number that is not the same on all ranks, where some would wait for the others for ever.

        Raises:
            InvalidValue: on every rank alike.
        """
        values = self.gather(torch.tensor([value])).tolist()
        if len(set(values)) > 1:
            listed = ", ".join(f"{one} on rank {rank}" for rank, one in enumerate(values))
            raise InvalidValue(f"{what} differ ({listed}); give every rank as many")

    def divided(self, count: int, act: Callable[[int], _Answer]) -> list[_Answer]:
        """What ``act`` returns for 0 to count - 1, on every rank: each is computed by one of them.

        Args:
            count: the same on all ranks.
            act: its answer can be pickled.

        Raises:
            Exception: of any rank's part, on every rank, as `share` does.
        """
        if self.size == 1:
            return [act(number) for number in range(count)]
        own, error = _tried(lambda: {number: act(number) for number in range(self.rank, count, self.size)})
        parts: list[Any] = [None] * self.size
        dist.all_gather_object(parts, _to_bytes(own, error))
        if error is not None:
            raise error
        together = {number: answer for part in parts for number, answer in _heard(part).items()}
        return [together[number] for number in range(count)]

    def gather(self, rows: Tensor) -> Tensor:
        """All ranks' rows, in the order of ranks; differentiable in this rank's own.

        The gradient that comes back is that of a loss which every rank computes from all rows, so that the mean over
        ranks of the parameters' gradients is the whole gradient.

        Args:
            rows: (m, ...); m may differ between ranks, the rest may not.
        """
        if self.size == 1:
            return rows
        gathered: Tensor = _Gather.apply(rows, self)  # type: ignore[no-untyped-call]
        return gathered


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, ranks: Ranks) -> Tensor:
        counts = [torch.zeros(1, dtype=torch.int64) for _ in range(ranks.size)]
        dist.all_gather(counts, torch.tensor([len(rows)]))
        sizes = [int(count) for count in counts]
        padded = rows.new_zeros((max(sizes), *rows.shape[1:]))
        padded[: len(rows)] = rows
        parts = [torch.zeros_like(padded) for _ in sizes]
        dist.all_gather(parts, padded)
        start = sum(sizes[: ranks.rank])
        ctx.own, ctx.size = slice(start, start + len(rows)), ranks.size
        return torch.cat([part[:count] for part, count in zip(parts, sizes, strict=True)])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0][ctx.own] * ctx.size, None


def _tried(act: Callable[[], Any]) -> tuple[Any, Exception | None]:
    """An act's answer, or its error: nobody may wait for a rank that failed."""
    try:
        return act(), None
    except Exception as error:  # noqa: BLE001 - whatever it is, the others must hear of it
        return None, error


def _to_bytes(answer: Any, error: Exception | None) -> bytes:
    """The same for other ranks; see `_heard`."""
    packed = io.BytesIO()
    torch.save((answer, None if error is None else _packed(error)), packed)
    return packed.getvalue()


def _heard(packed: bytes) -> Any:
    """What another rank's act came to.

    Raises:
        Exception: its error.
    """
    answer, error = torch.load(io.BytesIO(packed), map_location=_own_device, weights_only=False)
    if error is not None:
        raise _unpacked(*error)
    return answer


def _own_device(storage: Any, place: str) -> Any:
    """Where a tensor of another rank comes to lie: what was on its GPU on this rank's, in the place of the same one."""
    return storage.cuda() if place.startswith("cuda") and torch.cuda.is_available() else storage


def _packed(error: Exception) -> tuple[type[Exception], dict[str, Any], str]:
    """An error as values that pickle: errors that are dataclasses are rebuilt from their fields."""
    if not isinstance(error, DpswdError):
        return RuntimeError, {}, f"another process of this job failed: {error!r}"
    fields: dict[str, Any] = {}
    if dataclasses.is_dataclass(error):
        fields = {f.name: getattr(error, f.name) for f in dataclasses.fields(error)}
    return type(error), fields, str(error)


def _unpacked(kind: type[Exception], fields: dict[str, Any], text: str) -> Exception:
    return kind(**fields) if fields else kind(text)
