"""Training in several processes (torchrun): each has a share of the source, rank 0 alone talks to the curator.

::

    # torchrun --nproc-per-node 4 train.py
    torch.distributed.init_process_group("gloo")
    with SharedCurator.connect("hospital:50051", credentials="client/") as hospital:
        plan = hospital.plan(epsilon=1.0)
        model = DomainAdaptation(extractor, classifier, curator=hospital, plan=plan)
        model.fit(loader_of_this_rank)  # such as one with a DistributedSampler
        if Ranks.current().first:
            model.save("adapted.safetensors")
    torch.distributed.destroy_process_group()

Every rank runs the same program. What rank 0 is answered, an error included, all ranks are answered; so each step is
asked, charged and applied once, and the model is the same everywhere. With equal shares the result is that of one
process with the batches of all ranks together.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

import grpc
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from public_client.curator.description import Description
from public_client.curator.stub import Curator
from public_client.curator.values import PendingStep, Quote, Run, StepKind, UploadedExtractor
from public_client.training.checkpoint import Checkpoint
from shared.errors import DpswdError, InvalidValue, SettingsError
from shared.protocol.critics import CriticRelease
from shared.protocol.messages import PublicMap, RunParameters, StepRelease

if dist.is_available():
    # Its functions' default arguments are the process group at the moment of import, and the first optimizer imports
    # it. Were that after the group began, gloo's threads would outlive `destroy_process_group`, and one that is late
    # drops its tensors while Python ends: "terminate called without an active exception".
    import torch.distributed.nn

_Answer = TypeVar("_Answer")


@dataclass(frozen=True)
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
        """Lets rank 0 act; every rank returns its answer or raises its error."""
        if self.size == 1:
            return act()
        outcome: list[Any] = [None, None]
        if self.first:
            try:
                outcome[0] = act()
            except DpswdError as error:
                outcome[1] = _packed(error)
        dist.broadcast_object_list(outcome, src=0)
        if outcome[1] is not None:
            raise _unpacked(*outcome[1])
        return cast(_Answer, outcome[0])

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


class SharedCurator(Curator):
    """A `Curator` of all ranks: rank 0 asks, all are answered alike.

    Args:
        own: the connection of rank 0; None on the others.
    """

    def __init__(self, own: Curator | None) -> None:
        super().__init__(cast("grpc.Channel", _NoChannel()))
        self._own = own
        self._ranks = Ranks.current()
        if (own is None) == self._ranks.first:
            raise SettingsError("rank 0, and it alone, holds the connection; use SharedCurator.connect")

    @classmethod
    def connect(cls, address: str, **options: Any) -> SharedCurator:
        """Connects from rank 0; the arguments are those of `Curator.connect`."""
        ranks = Ranks.current()
        connected: list[Curator] = []

        def connect() -> None:
            connected.append(Curator.connect(address, **options))

        ranks.share(connect)
        return cls(connected[0] if connected else None)

    def close(self) -> None:
        """Closes rank 0's connection."""
        if self._own is not None:
            self._own.close()

    def describe(self) -> Description:
        """See `Curator.describe`."""
        return self._shared(lambda own: own.describe())

    def upload_extractor(self, graph: bytes, weights: bytes) -> UploadedExtractor:
        """See `Curator.upload_extractor`; rank 0's bytes count."""
        return self._shared(lambda own: own.upload_extractor(graph, weights))

    def upload_source(self, features: npt.ArrayLike) -> str:
        """See `Curator.upload_source`; rank 0's features count."""
        return self._shared(lambda own: own.upload_source(features))

    def price_run(self, parameters: RunParameters) -> Quote:
        """See `Curator.price_run`."""
        return self._shared(lambda own: own.price_run(parameters))

    def open_run(self, parameters: RunParameters, *, request_id: str | None = None) -> Run:
        """See `Curator.open_run`; charged once for all ranks."""
        return self._shared(lambda own: own.open_run(parameters, request_id=request_id))

    def prepare_step(
        self,
        run: Run,
        *,
        source: str | npt.ArrayLike | None = None,
        adapted_parameters: npt.ArrayLike | None = None,
        feature_map: PublicMap | None = None,
        request_id: str | None = None,
        kind: StepKind | None = None,
    ) -> PendingStep:
        """See `Curator.prepare_step`; rank 0's request is everybody's."""
        return self._shared(
            lambda own: own.prepare_step(
                run,
                source=source,
                adapted_parameters=adapted_parameters,
                feature_map=feature_map,
                request_id=request_id,
                kind=kind,
            )
        )

    def send(self, pending: PendingStep) -> StepRelease:
        """See `Curator.send`; sent once for all ranks."""
        return self._shared(lambda own: own.send(pending))

    def send_critic(self, pending: PendingStep) -> CriticRelease:
        """See `Curator.send_critic`; sent once for all ranks."""
        return self._shared(lambda own: own.send_critic(pending))

    def _shared(self, ask: Callable[[Curator], _Answer]) -> _Answer:
        def act() -> _Answer:
            assert self._own is not None, "rank 0 holds the connection"
            return ask(self._own)

        return self._ranks.share(act)


class SharedCheckpoint(Checkpoint):
    """A `Checkpoint` that rank 0 writes and reads for all; each rank keeps its own batch beside it.

    Args:
        directory: on a file system that all ranks see.
    """

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._ranks = Ranks.current()
        self.writes = self._ranks.first
        self._batch = f"batch-{self._ranks.rank}.pt"

    @property
    def begun(self) -> bool:
        """Whether a run was declared here, as rank 0 sees it."""
        return self._ranks.share(lambda: super(SharedCheckpoint, self).begun)

    def read_run(self) -> dict[str, Any]:
        """See `Checkpoint.read_run`."""
        return self._ranks.share(lambda: super(SharedCheckpoint, self).read_run())

    def read_pending(self) -> PendingStep | None:
        """See `Checkpoint.read_pending`."""
        return self._ranks.share(lambda: super(SharedCheckpoint, self).read_pending())

    def read_start(self) -> dict[str, Any] | None:
        """See `Checkpoint.read_start`."""
        return self._ranks.share(lambda: super(SharedCheckpoint, self).read_start())

    def read_state(self) -> dict[str, Any] | None:
        """See `Checkpoint.read_state`."""
        return self._ranks.share(lambda: super(SharedCheckpoint, self).read_state())

    def read_critic(self) -> dict[str, Any] | None:
        """See `Checkpoint.read_critic`."""
        return self._ranks.share(lambda: super(SharedCheckpoint, self).read_critic())

    def write_critic(self, critic: Mapping[str, Any]) -> None:
        """See `Checkpoint.write_critic`."""
        self._ranks.share(lambda: super(SharedCheckpoint, self).write_critic(critic))

    def write_run(self, run: Mapping[str, Any]) -> None:
        """See `Checkpoint.write_run`; rank 0 alone writes, and nobody goes on before it has."""
        self._ranks.share(lambda: super(SharedCheckpoint, self).write_run(run))

    def write_pending(self, pending: PendingStep) -> None:
        """See `Checkpoint.write_pending`."""
        self._ranks.share(lambda: super(SharedCheckpoint, self).write_pending(pending))

    def write_start(self, start: Mapping[str, Any]) -> None:
        """See `Checkpoint.write_start`."""
        self._ranks.share(lambda: super(SharedCheckpoint, self).write_start(start))

    def write_state(self, state: Mapping[str, Any]) -> None:
        """See `Checkpoint.write_state`."""
        self._ranks.share(lambda: super(SharedCheckpoint, self).write_state(state))


class _NoChannel:
    """All requests go through rank 0's own connection; what is not shared is refused."""

    def unary_unary(self, method: str, *_: Any, **__: Any) -> Any:
        def refuse(*_: Any, **__: Any) -> Any:
            raise SettingsError(f"{method.rsplit('/', 1)[-1]} is not shared between ranks; ask it from rank 0 alone")

        return refuse


def _packed(error: DpswdError) -> tuple[type[DpswdError], dict[str, Any], str]:
    """An error as values that pickle: errors that are dataclasses are rebuilt from their fields."""
    fields: dict[str, Any] = {}
    if dataclasses.is_dataclass(error):
        fields = {f.name: getattr(error, f.name) for f in dataclasses.fields(error)}
    return type(error), fields, str(error)


def _unpacked(kind: type[DpswdError], fields: dict[str, Any], text: str) -> DpswdError:
    return kind(**fields) if fields else kind(text)
