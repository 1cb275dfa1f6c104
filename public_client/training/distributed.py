"""Training in several processes (torchrun): each has a share of the source, rank 0 alone talks to the curator.

::

    # torchrun --nproc-per-node 4 train.py
    torch.distributed.init_process_group("gloo")
    with Hospital.connect("hospital:50051", credentials="client/") as hospital:
        plan = hospital.plan(epsilon=1.0)
        model = DomainAdaptation(extractor, classifier, hospital=hospital, plan=plan)
        model.fit(loader_of_this_rank)  # such as one with a DistributedSampler
        if Ranks.current().first:
            model.save("adapted.safetensors")
    torch.distributed.destroy_process_group()

Every rank runs the same program. What rank 0 is answered, an error included, all ranks are answered; so each step is
asked, charged and applied once, and the model is the same everywhere. With equal shares the result is that of one
process with the batches of all ranks together. All ranks ask several hospitals in one
order, one after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from google.protobuf.message import Message

from dpswd.public_client.curator.connection import Patience
from dpswd.public_client.curator.stub import Curator
from dpswd.public_client.curator.transport import REPLIES, Exchange, Transport
from dpswd.public_client.data.ranks import Ranks
from dpswd.shared.core.errors import SettingsError

_Answer = TypeVar("_Answer")


class SharedTransport:
    """A `Transport` of all ranks: rank 0 asks, all are answered alike.

    Args:
        own: the connection of rank 0; None on the others.
    """

    def __init__(self, own: Transport | None) -> None:
        self._own = own
        self._ranks = Ranks.current()
        if (own is None) == self._ranks.first:
            raise SettingsError("rank 0, and it alone, holds the connection; use Hospital.connect")

    def exchange(self, method: str, request: Message, *, patience: Patience | None = None) -> Exchange:
        """See `Transport`; rank 0's request is everybody's, sent once for all."""

        def act() -> tuple[bytes, bytes]:
            assert self._own is not None, "rank 0 holds the connection"
            sent = self._own.exchange(method, request, patience=patience)
            return sent.request.SerializeToString(), sent.reply.SerializeToString()

        asked, reply = self._ranks.share(act)
        return Exchange(type(request).FromString(asked), REPLIES[method].FromString(reply))

    def close(self) -> None:
        """Closes rank 0's connection."""
        if self._own is not None:
            self._own.close()


def shared_curators(connect: Callable[[], Mapping[str, Curator]]) -> dict[str, Curator]:
    """Curators of all ranks, by name, over the connections that rank 0 makes; receipts are kept by rank 0."""
    if Ranks.current().size == 1:
        return dict(connect())
    made: dict[str, Curator] = {}

    def act() -> list[str]:
        made.update(connect())
        return list(made)

    return {name: _shared(made.get(name)) for name in Ranks.current().share(act)}


def _shared(own: Curator | None) -> Curator:
    if own is None:
        return Curator(SharedTransport(None))
    transport = SharedTransport(own.transport)
    return Curator(transport, receipts=own.receipts, purpose=own.purpose, credentials=own.credentials)
