"""A hospital that serves nobody: a real home with records, and what its operator does with a proposal."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import nn

from dpswd.private_curator.operator.publishing import Publishing, check_out, description_json, write_out
from dpswd.private_curator.serving.server import CuratorServer
from dpswd.private_curator.settings import tree as settings
from dpswd.private_curator.settings.groups import RecordsSettings
from dpswd.private_curator.storage import home_directory as homes
from dpswd.private_curator.storage.home_directory import HomeDirectory
from dpswd.public_client.curator.description import Description
from dpswd.public_client.experiments.preparing import prepare
from dpswd.public_client.methods import Method, Replay
from dpswd.shared.core.wire.v1 import curator_pb2 as pb
from dpswd.shared.protocol.publications import Proposal, Publication

CLIENT, PURPOSE = "spring", "the spring study"
SHAPE, RECORDS, CLASSES = (6,), 120, 3
METHOD = Replay(directions=8, tuning_steps=30)


def source(count: int = 300) -> tuple[torch.Tensor, torch.Tensor]:
    """Labelled public records, three clouds."""
    generator = torch.Generator().manual_seed(1)
    labels = torch.arange(count) % CLASSES
    return torch.randn((count, *SHAPE), generator=generator) * 0.3 + labels[:, None] * 0.5, labels


def network() -> tuple[nn.Module, nn.Module]:
    """An extractor, the same at every call, and a classifier."""
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(6, 5), nn.ReLU()).eval(), nn.Linear(5, CLASSES)


class Site:
    """One hospital.

    Args:
        directory: where its home and its files are made.
        shift: of its records from the source.
        epsilon: its budget.
        approval: of extractors.
        records: how many.
        labelled: whether it has labels too.
        unknown: how many of its records have none then.
    """

    def __init__(
        self,
        directory: Path,
        *,
        shift: float = 0.2,
        epsilon: float = 3.0,
        approval: str = "any",
        records: int = RECORDS,
        labelled: bool = False,
        unknown: int = 0,
    ) -> None:
        directory.mkdir(exist_ok=True)
        self.directory = directory
        labels = {"labels_file": directory / "labels.npy", "classes": CLASSES} if labelled else {}
        labels |= {"unlabelled": "-1"} if unknown else {}
        numbers = source(records)[1].numpy()
        numbers[:unknown] = -1
        np.save(directory / "labels.npy", numbers)
        np.save(directory / "records.npy", source(records)[0].numpy() + np.float32(shift))
        self.home: HomeDirectory = homes.create(
            directory / "home",
            records=RecordsSettings(file=directory / "records.npy", name=directory.name, **labels),
            epsilon=epsilon,
            delta=1e-5,
            names=["localhost"],
            groups={
                "clients": {"published_mechanisms": True},
                "compute": {"device": "cpu", "isolation": "in-process"},
                "extractors": {"approval": approval},
            },
        )
        with self.home.open_ledger() as books:
            books.add_client(CLIENT, "ab" * 32)
            self.key = books.public_key
        self.key_file = directory / "ledger.pub"
        self.key_file.write_text(self.key.hex() + "\n")

    @contextmanager
    def server(self, **options):
        """The curator's parts, listening nowhere."""
        with CuratorServer(self.home, settings.load(self.home.path), **options) as server:
            yield server

    def description(self) -> Description:
        with self.server() as server:
            return Description.from_json(
                description_json(server.service.ask("Describe", pb.DescribeRequest(), client=CLIENT))
            )

    def proposal(
        self, method: Method = METHOD, *, epsilon: float = 1.0, extractor: nn.Module | None = None
    ) -> Proposal:
        """What a team prepares for this hospital."""
        model = extractor or network()[0]
        seen = model(source(250)[0]).detach()  # another training's map is another
        words = {"epsilon": epsilon, "purpose": "does the model carry over?"}
        return prepare(self.description(), method, extractor=model, source_features=seen, **words)

    def publish(
        self, proposal: Proposal, out: Path, *, client: str = CLIENT, purpose: str = PURPOSE, **options
    ) -> bool:
        """What `dpswd-curator publish --yes` does; whether it charged."""
        asked = Publishing(self.home, proposal, client)
        made = asked.read_copy()
        if check_out(out, made, purpose=purpose):
            return False
        charged = False
        if made is None:
            with self.server(**options) as server:
                service = server.ready()
                if charged := not asked.charged(service):
                    asked.preview(service)
                made = asked.publish(service, purpose=purpose)
        write_out(out, made)
        return charged

    def published(self, name: str = "spring.dpswd", **options) -> Path:
        """A published release of a fresh proposal."""
        out = self.directory / name
        self.publish(self.proposal(**options), out)
        return out

    def spent(self) -> tuple[float, int]:
        """Epsilon and runs, by the ledger, which must verify."""
        with self.home.open_ledger() as books:
            assert books.verify().ok
            status = books.status()
            return status.data_set.epsilon_spent, status.runs


def changed(made: Publication, **fields) -> pb.Publication:
    """A copy of a publication's message with other fields."""
    message = pb.Publication()
    message.CopyFrom(made.message)
    for name, value in fields.items():
        getattr(message, name).CopyFrom(value) if hasattr(value, "CopyFrom") else setattr(message, name, value)
    return message


def with_parameters(proposal: Proposal, **fields) -> Proposal:
    """A proposal whose run declares something else."""
    return replace(proposal, parameters=replace(proposal.parameters, **fields))
