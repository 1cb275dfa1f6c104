"""What a delivered file follows from: the team's model, its source's digest, settings, and what a curator answered.

Everything behind a curator's signed replies is computed from public values; whoever has these can compute it again.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor, nn
from torch.utils.data import DataLoader

from dpswd.public_client.curator.recording import Recording, Stored, StoredRun, read_exchanges, runs_of
from dpswd.public_client.curator.stub import Curator
from dpswd.public_client.data.datasets import Batches
from dpswd.public_client.data.ranks import Ranks
from dpswd.public_client.extractor.tracing import module_weights, trace
from dpswd.public_client.plans.plan import Plan
from dpswd.public_client.plans.recipe import Recipe
from dpswd.shared.core.errors import DataInvalid, InvalidValue
from dpswd.shared.core.ledger.receipts import canonical_json
from dpswd.shared.models.adapted import PARTS
from dpswd.shared.models.model_file import below, in_one_spelling, metadata_of, model_bytes

FORMAT = "dpswd-evidence-2"
LADDER, METHOD, GENERATOR = "ladder", "method", "generator"
"""What made the file: `adapt`, a plan of a named method, or a method of generation."""
EXCHANGES = "exchanges"
_PARTS = {LADDER: PARTS, METHOD: PARTS, GENERATOR: ("features",)}


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


@contextlib.contextmanager
def recorded(curator: Curator, directory: Path | None, *, begun: bool) -> Iterator[Recording | None]:
    """What a curator is asked and answers meanwhile; nothing where it is recorded now.

    Args:
        curator: the connection; of several processes each records what all are answered.
        directory: keeps the exchanges of the first process; None for memory alone.
        begun: whether what was asked in the directory goes on.
    """
    if isinstance(curator.transport, Recording):
        yield None
        return
    path = None if directory is None or not Ranks.current().first else directory / EXCHANGES
    if path is not None and not begun:
        path.unlink(missing_ok=True)
    before, curator.transport = curator.transport, Recording(curator.transport, path)
    try:
        yield curator.transport
    finally:
        curator.transport = before


def by_processes() -> str | None:
    """Why a file that several processes made cannot be derived again; None where there is one."""
    size = Ranks.current().size
    return f"no: {size} processes made it, each from a share of the source" if size > 1 else None


def plan_text(plan: Plan) -> str:
    """A plan as settings hold it: a text, since some of its numbers may be infinite."""
    return json.dumps(plan.to_json(), sort_keys=True)


def planned(settings: Mapping[str, Any], kinds: Mapping[str, type[Recipe]]) -> Plan:
    """The inverse of `plan_text`, by the kinds of methods, by name."""
    values = json.loads(settings["plan"])
    return Plan.from_json(values, method=kinds[values["method"]["name"]])


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


def begin_again(batches: object, seed: int) -> None:
    """Seeds torch's generator and a loader's own: what is drawn from here on is the same each time."""
    torch.manual_seed(seed)
    if isinstance(own := getattr(batches, "generator", None), torch.Generator):
        own.manual_seed(seed)


def digest_of(batches: Batches, *, seed: int) -> str:
    """SHA-256 of the records and labels of one pass, in their order; of several processes that of all their shares'.

    Args:
        batches: of the public source.
        seed: of torch's generator, where a loader has none of its own.
    """
    begin_again(batches, seed)
    digest = hashlib.sha256()
    for records, labels in batches:
        for part, kind in ((records, "<f4"), (labels, "<i8")):
            values = np.ascontiguousarray(torch.as_tensor(part).cpu().numpy(), dtype=kind)
            digest.update(canonical_json(list(values.shape)) + values.tobytes())
    if (ranks := Ranks.current()).size > 1:
        every = ranks.gather(torch.tensor([list(digest.digest())]))
        digest = hashlib.sha256(bytes(every.flatten().tolist()))
    return digest.hexdigest()


@dataclass(frozen=True)
class Evidence:
    """Of one file.

    Attributes:
        graphs: of what the team brought, canonical bytes as text, by part, one behind the other.
        weights: their tensors, by part and name.
        settings: `kind`, and what was given: epsilon, evaluate_epsilon, seed, batch_size, contract, device, the plan of
            a named method, and in `apart` why a file cannot be derived again, where it cannot.
        source: SHA-256 of the public source; empty where there is none.
        replies: exchanges with the curator, in lines.
    """

    graphs: Mapping[str, str]
    weights: Mapping[str, Tensor]
    settings: Mapping[str, Any]
    source: str
    replies: bytes

    @classmethod
    def of(
        cls,
        start: Sequence[nn.Module],
        shape: tuple[int, ...],
        settings: Mapping[str, Any],
        source: str,
        replies: bytes,
    ) -> Evidence:
        """The evidence of a training.

        Args:
            start: what the team brought: extractor and classifier, or what a generator's records go through.
            shape: of one record.
            settings: see the class, as the rest.
            source: see the class.
            replies: see the class.

        Raises:
            ExtractorUnsupported: the model cannot be written as data.
        """
        graphs: dict[str, str] = {}
        weights: dict[str, Tensor] = {}
        for part, module in zip(_PARTS[settings["kind"]], start, strict=True):
            graph = trace(module, shape)
            weights |= {f"{part}.{name}": tensor for name, tensor in module_weights(module, graph).items()}
            graphs[part], shape = graph.to_bytes().decode("ascii"), (graph.feature_dimension,)
        return cls(graphs, weights, settings, source, replies)

    def to_bytes(self) -> bytes:
        """The content of a file; the same evidence gives the same bytes."""
        tensors = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in self.weights.items()}
        tensors[EXCHANGES] = torch.frombuffer(bytearray(self.replies), dtype=torch.uint8)
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
            exchanges, settings = bytes(tensors.pop(EXCHANGES).numpy()), json.loads(metadata["settings"])
            graphs = {part: metadata[part] for part in _PARTS[settings["kind"]]}
            evidence = cls(graphs, tensors, settings, metadata["source"], exchanges)
            evidence.runs()
        except (InvalidValue, SafetensorError, KeyError, ValueError, TypeError) as error:
            raise DataInvalid(f"this is no evidence of a model or a generator: {error}") from error
        if spelled != data or metadata.get("format") != FORMAT:
            raise DataInvalid(f"this is no evidence of format {FORMAT}, as it is written")
        return evidence

    def stored(self) -> list[Stored]:
        """The exchanges."""
        return read_exchanges(self.replies)

    def runs(self) -> list[StoredRun]:
        """The charged runs."""
        return runs_of(self.stored())

    def give(self, modules: Sequence[nn.Module], shape: tuple[int, ...]) -> None:
        """Gives modules the weights of what the team brought, in place.

        Raises:
            InvalidValue: they have other layers.
        """
        for part, module in zip(self.graphs, modules, strict=True):
            graph = trace(module.eval(), shape)
            if graph.to_bytes().decode("ascii") != self.graphs[part]:
                raise InvalidValue(
                    f"the network's {part} has other layers than the one that was adapted; name the team's network "
                    "with --network FILE.py:NAME, or its fitted model with --model"
                )
            module.load_state_dict(below(part, self.weights), strict=False)  # what else it has computes nothing
            shape = (graph.feature_dimension,)
