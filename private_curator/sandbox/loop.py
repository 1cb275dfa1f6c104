"""The worker's side: loads extractors, evaluates the records of one sample, answers.

Messages and their answers (see `process` for the other side)::

    load       graph and weights in a file      -> ok, or field and text of what is wrong with them
    check      the same, kept by nobody         -> the same, after the test that no row sees another
    begin      records in the arena             -> features in the arena
    gradients  cotangents in the arena          -> per-record gradients in the arena
    forget     ends a step before its gradients -> ok
    probe      tries what is forbidden          -> what it could do

An unexpected error is answered with its type and frames, never with its text: that may quote a record.
"""

from __future__ import annotations

import ctypes
import os
import socket
from collections import OrderedDict
from collections.abc import Callable, Mapping
from math import prod
from typing import Any

import torch
from torch import Tensor

from dpswd.private_curator.sandbox import confinement
from dpswd.private_curator.sandbox.arena import Arena, FloatArray, Slot
from dpswd.private_curator.sandbox.channel import ChannelClosed, receive, send
from dpswd.private_curator.sandbox.error_chain import error_chain
from dpswd.shared.core.errors import InvalidValue
from dpswd.shared.sandbox.building import Extractor, RowsDepend, check_row_independence
from dpswd.shared.sandbox.graph import ExtractorGraph
from dpswd.shared.sandbox.session import DirectSession
from dpswd.shared.sandbox.weights import weights_from_bytes

Message = dict[str, Any]
Operation = Callable[[Message, list[int]], Message]


class Refused(Exception):
    """A graph or weights that are not what they should be; made of a client's bytes and no record."""

    def __init__(self, field: str, text: str) -> None:
        super().__init__(text)
        self.answer: Message = {"refused": {"field": field, "text": text}}


def built(graph_bytes: bytes, weights_bytes: bytes, *, device: torch.device) -> Extractor:
    """An extractor from a client's bytes.

    Raises:
        Refused: they are not valid; the text names the layer.
    """
    try:
        graph = ExtractorGraph.from_bytes(graph_bytes)
    except InvalidValue as error:
        raise Refused("graph", str(error)) from error
    try:
        return Extractor(graph, weights_from_bytes(weights_bytes, graph), device=device)
    except InvalidValue as error:
        raise Refused("weights", str(error)) from error


def proven(graph_bytes: bytes, weights_bytes: bytes, *, device: torch.device) -> None:
    """Builds an upload, and proves on made records that no row of it sees another.

    Raises:
        Refused: the bytes are not valid, or made records cannot be evaluated: shapes alone decide that.
        RowsDepend: this device cannot be used.
    """
    extractor = built(graph_bytes, weights_bytes, device=device)
    try:
        check_row_independence(extractor)
    except Exception as error:
        if isinstance(error, RowsDepend) or _out_of_memory(error):
            raise
        where = "".join(getattr(error, "__notes__", ()))
        raise Refused("graph", f"cannot be evaluated on made records: {type(error).__name__} {where}") from error


class Loop:
    """Answers messages until the curator closes the channel.

    Args:
        channel: to the curator.
        device: where extractors are evaluated.
        operations: more messages than the module lists; tests run code inside a worker this way.
    """

    def __init__(
        self, channel: socket.socket, *, device: torch.device, operations: Mapping[str, Operation] | None = None
    ) -> None:
        self._channel = channel
        self._device = device
        self._extractors: OrderedDict[str, Extractor] = OrderedDict()
        self._arena: Arena | None = None
        self._session: DirectSession | None = None  # of the step that is evaluated
        self._kind: tuple[object, ...] = ()  # of the last step: what its memory was asked for
        self._operations: dict[str, Operation] = {
            "load": self._load,
            "check": self._check,
            "begin": self._begin,
            "gradients": self._gradients,
            "forget": self._forget,
            "probe": lambda message, _: confinement.probe(port=message["port"], secret=message["secret"]),
            **(operations or {}),
        }

    def run(self) -> None:
        """Returns when the curator has closed the channel, or has gone."""
        while True:
            try:
                message, files = receive(self._channel)
                send(self._channel, self._answer(message, files))
            except ChannelClosed:
                return

    def _answer(self, message: Message, files: list[int]) -> Message:
        try:
            return self._operations[message["op"]](message, files)
        except Refused as refusal:
            return refusal.answer
        except Exception as error:  # noqa: BLE001 - the boundary: no text of an error leaves the worker
            self._session = None
            if _out_of_memory(error):
                return {"stopped": "memory"}
            return {"failed": [described for _, described in error_chain(error)]}

    def _load(self, message: Message, files: list[int]) -> Message:
        for key in message["drop"]:
            self._extractors.pop(key, None)
        self._extractors[message["key"]] = built(*_sent(message, files), device=self._device)
        return {}

    def _check(self, message: Message, files: list[int]) -> Message:
        proven(*_sent(message, files), device=self._device)
        return {}

    def _begin(self, message: Message, files: list[int]) -> Message:
        self._session = None
        kind = (message["key"], message["names"], message["records"][1])
        if kind != self._kind:
            # What another kind of step has left counts against this one's limit of memory.
            _give_back_memory()
            self._kind = kind
        if files:
            if self._arena is not None:
                self._arena.close()
            self._arena = Arena.attach(files[0])
        self._session = DirectSession(self._extractors[message["key"]])
        features = self._session.features(
            self._array(message["records"]),
            adapted=self._array(message["adapted"]) if message["adapted"] else None,
            names=tuple(message["names"]),
            differentiable=message["differentiable"],
        )
        self._write(message["features"], features)
        return {}

    def _gradients(self, message: Message, _files: list[int]) -> Message:
        assert self._session is not None
        cotangents = torch.from_numpy(self._array(message["cotangents"]))
        self._write(message["gradients"], self._session.gradients(cotangents))
        return {}

    def _forget(self, _message: Message, _files: list[int]) -> Message:
        self._session = None
        return {}

    def _array(self, slot: list[Any]) -> FloatArray:
        assert self._arena is not None
        return self._arena.array(Slot(*slot))

    def _write(self, slot: list[Any], values: Tensor) -> None:
        if values.numel() != prod(slot[1]):
            raise RuntimeError("the extractor's values have another size than its graph states")
        torch.from_numpy(self._array(slot)).copy_(values.reshape(slot[1]))


def warm_up(device: torch.device) -> None:
    """Evaluates and differentiates something, so that threads are started and libraries loaded before the limits."""
    layer = torch.nn.Conv2d(1, 2, 3, device=device)
    records = torch.randn(4, 1, 8, 8, device=device)
    own = layer.weight.detach().expand(4, *layer.weight.shape).requires_grad_()

    def one(record: Tensor, weight: Tensor) -> Tensor:
        return torch.nn.functional.conv2d(record[None], weight).flatten().tanh()

    out = torch.func.vmap(one)(records, own)
    torch.autograd.grad(out, own, torch.ones_like(out))
    (records.flatten(1) @ records.flatten(1).T).sort(dim=0)


def _sent(message: Message, files: list[int]) -> tuple[bytes, bytes]:
    """The graph and the weights that came in a file in memory, which is then closed."""
    _give_back_memory()
    (descriptor,) = files
    with os.fdopen(descriptor, "rb") as file:
        file.seek(0)
        return file.read(message["graph"]), file.read(message["weights"])


_TRIM = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's; other allocators keep nothing that we asked for


def _give_back_memory() -> None:
    """Returns to the system what is free, but for the holes between what is not."""
    if _TRIM is not None:
        _TRIM(0)


def _out_of_memory(error: BaseException) -> bool:
    """Whether an allocation failed; torch's CPU allocator says so in words only."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and ("can't allocate memory" in str(error) or "bad_alloc" in str(error))
