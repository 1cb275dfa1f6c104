"""What an adapted model follows from: the team's model, its source's digest, settings, and what a curator answered.

Everything behind a curator's signed replies is computed from public values; whoever has these can compute it again.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor
from torch.utils.data import DataLoader

from dpswd.public_client.curator.recording import Stored, StoredRun, read_exchanges, runs_of
from dpswd.public_client.data.datasets import Batches
from dpswd.public_client.extractor.tracing import trace
from dpswd.public_client.training.sites import Model
from dpswd.shared.core.errors import DataInvalid, InvalidValue
from dpswd.shared.core.ledger.receipts import canonical_json
from dpswd.shared.models.adapted import PARTS, compose_weights
from dpswd.shared.models.model_file import below, in_one_spelling, metadata_of, model_bytes
from dpswd.shared.sandbox.weights import module_weights

FORMAT = "dpswd-evidence-1"
_EXCHANGES = "exchanges"


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Torch and the algebra libraries on one thread: sums are then taken in one order on any number of cores."""
    threads = torch.get_num_threads()
    limits: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
    if importlib.util.find_spec("threadpoolctl") is not None:  # comes with scikit-learn
        from threadpoolctl import threadpool_limits

        limits = threadpool_limits(limits=1)
    try:
        with limits:
            torch.set_num_threads(1)
            yield
    finally:
        torch.set_num_threads(threads)


class SamePasses:
    """A loader whose passes all begin with one seed, however often it was iterated before.

    Args:
        loader: of batches; one that shuffles has its own generator, or torch's.
        seed: of each pass.
    """

    def __init__(self, loader: DataLoader[tuple[Tensor, Tensor]], seed: int) -> None:
        self._loader, self._seed = loader, seed

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        if self._loader.generator is not None:
            self._loader.generator.manual_seed(self._seed)
        return iter(self._loader)

    def __len__(self) -> int:
        return len(self._loader)


def digest_of(batches: Batches, *, seed: int) -> str:
    """SHA-256 of the records and labels of one pass, in their order.

    Args:
        batches: of the public source.
        seed: of torch's generator, where a loader has none of its own.
    """
    torch.manual_seed(seed)
    digest = hashlib.sha256()
    for records, labels in batches:
        for part, kind in ((records, "<f4"), (labels, "<i8")):
            values = np.ascontiguousarray(torch.as_tensor(part).cpu().numpy(), dtype=kind)
            digest.update(canonical_json(list(values.shape)) + values.tobytes())
    return digest.hexdigest()


@dataclass(frozen=True)
class Evidence:
    """Of one adapted model.

    Attributes:
        graphs: of the team's model, canonical bytes as text, by part.
        weights: its tensors, by part and name.
        settings: what `adapt` was given: epsilon, evaluate_epsilon, seed, batch_size, contract, device.
        source: SHA-256 of the public source.
        exchanges: with the curator, in lines.
    """

    graphs: Mapping[str, str]
    weights: Mapping[str, Tensor]
    settings: Mapping[str, Any]
    source: str
    exchanges: bytes

    @classmethod
    def of(
        cls, start: Model, record_shape: tuple[int, ...], settings: Mapping[str, Any], source: str, exchanges: bytes
    ) -> Evidence:
        """The evidence of a climb.

        Args:
            start: the team's model.
            record_shape: of one record.
            settings: see the class, as the rest.
            source: see the class.
            exchanges: see the class.

        Raises:
            ExtractorUnsupported: the model cannot be written as data.
        """
        graph = trace(start.extractor, record_shape)
        head = trace(start.classifier, (graph.feature_dimension,))
        weights = compose_weights(module_weights(start.extractor, graph), module_weights(start.classifier, head))
        graphs = {part: each.to_bytes().decode("ascii") for part, each in zip(PARTS, (graph, head), strict=True)}
        return cls(graphs, weights, settings, source, exchanges)

    def to_bytes(self) -> bytes:
        """The content of a file; the same evidence gives the same bytes."""
        tensors = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in self.weights.items()}
        tensors[_EXCHANGES] = torch.frombuffer(bytearray(self.exchanges), dtype=torch.uint8)
        facts = {"settings": canonical_json(dict(self.settings)).decode("ascii"), "source": self.source}
        return model_bytes(tensors, {"format": FORMAT, **self.graphs, **facts})

    @classmethod
    def from_bytes(cls, data: bytes) -> Evidence:
        """The inverse of `to_bytes`.

        Raises:
            DataInvalid: they are none, or spelled otherwise.
        """
        try:
            metadata = metadata_of(data)
            tensors = load(data)
            spelled = in_one_spelling(data)
            exchanges = bytes(tensors.pop(_EXCHANGES).numpy())
            graphs = {part: metadata[part] for part in PARTS}
            evidence = cls(graphs, tensors, json.loads(metadata["settings"]), metadata["source"], exchanges)
            evidence.runs()
        except (InvalidValue, SafetensorError, KeyError, ValueError, TypeError) as error:
            raise DataInvalid(f"this is no evidence of an adapted model: {error}") from error
        if spelled != data or metadata["format"] != FORMAT:
            raise DataInvalid(f"this is no evidence of format {FORMAT}, as it is written")
        return evidence

    def stored(self) -> list[Stored]:
        """The exchanges."""
        return read_exchanges(self.exchanges)

    def runs(self) -> list[StoredRun]:
        """The charged runs."""
        return runs_of(self.stored())

    def give(self, model: Model, record_shape: tuple[int, ...]) -> None:
        """Gives modules the weights of the team's model, in place.

        Raises:
            InvalidValue: they have other layers.
        """
        sides = record_shape
        for part, module in zip(PARTS, (model.extractor.eval(), model.classifier.eval()), strict=True):
            graph = trace(module, sides)
            if graph.to_bytes().decode("ascii") != self.graphs[part]:
                raise InvalidValue(
                    f"the network's {part} has other layers than the one that was adapted; name the team's network "
                    "with --network FILE.py:NAME, or its fitted model with --model"
                )
            module.load_state_dict(below(part, self.weights), strict=False)  # what else it has computes nothing
            sides = (graph.feature_dimension,)
