"""A hospital that published one release as a file: plans and trainings from it, without a network and at no price.

Usage::

    hospital = PublishedHospital.read("spring.dpswd", key="ledger.pub")
    hospital.load_extractor(extractor)
    model = DomainAdaptation(extractor, classifier, hospital=hospital, plan=hospital.plan(), source_epochs=0)

Several of them stand in a `Federation` like any hospitals, where all were prepared with one extractor.
"""

from __future__ import annotations

from pathlib import Path

from torch import nn

from dpswd.public_client.adaptation.hospital import Hospital
from dpswd.public_client.curator.receipts import RECEIPTS_FILE, ReceiptFile, read_pinned
from dpswd.public_client.curator.release_file import ReleaseFile, same_but_for_map
from dpswd.public_client.curator.stub import Curator
from dpswd.public_client.curator.values import UploadedExtractor
from dpswd.public_client.extractor.tracing import trace
from dpswd.public_client.methods.replay import Replay
from dpswd.public_client.plans.plan import Plan
from dpswd.public_client.training.method import Method
from dpswd.shared.core.errors import InvalidValue
from dpswd.shared.protocol.publications import Proposal
from dpswd.shared.sandbox.graph import ExtractorGraph
from dpswd.shared.sandbox.weights import weights_from_bytes


class PublishedHospital(Hospital):
    """A `Hospital` that is a file.

    Args:
        release: verified.
        run_directory: where receipts.jsonl is written; nowhere by default.
    """

    def __init__(self, release: ReleaseFile, *, run_directory: Path | None = None) -> None:
        receipts = None if run_directory is None else ReceiptFile(run_directory / RECEIPTS_FILE)
        super().__init__(Curator(release, receipts=receipts))
        self.release = release
        if receipts is not None:
            receipts.pin(self.describe().ledger_keys)

    @classmethod
    def read(cls, path: str | Path, *, key: str | Path, run_directory: str | Path | None = None) -> PublishedHospital:
        """Reads and verifies a release.

        Args:
            path: the file, as the hospital published it.
            key: a file with the ledger's public key, 64 hexadecimal digits, which came over another way.
            run_directory: where receipts.jsonl is written; nowhere by default.

        Returns:
            The hospital.

        Raises:
            DataInvalid: the file cannot be read, or is no publication.
            SettingsError: the key's file holds none.
            ProtocolError: the file does not verify under this key.
        """
        release = ReleaseFile(Path(path), key=read_pinned(Path(key)))
        return cls(release, run_directory=None if run_directory is None else Path(run_directory))

    def load_extractor(self, extractor: nn.Module) -> None:
        """Gives a module the weights that the release was made with, in place, and its evaluation mode.

        Args:
            extractor: of the layers that were prepared.

        Raises:
            InvalidValue: it has other layers.
            ExtractorUnsupported: it cannot travel as data at all.
        """
        with_weights(extractor, self.release.proposal, path=self.release.path)

    def plan(
        self,
        method: Method | None = None,
        *,
        epsilon: float | None = None,  # noqa: ARG002 - paid for by the hospital; nothing more is spent
        steps: int | None = None,
        batch_size: int | None = None,
        extractor: nn.Module | None = None,  # noqa: ARG002 - nobody is asked; the file holds its own
        classifier: nn.Module | None = None,  # noqa: ARG002 - as the extractor
    ) -> Plan:
        """The plan that was prepared, paid for by the hospital; training by it spends nothing further.

        Args:
            method: whose run is this release; `Replay()` by default.
            epsilon: without meaning here: the price is paid.
            steps: 1, if it is given.
            batch_size: the data set's records, if it is given.
            extractor: without meaning here; see `load_extractor`.
            classifier: without meaning here.

        Raises:
            InvalidValue: the method, or a number, asks for another release than the file holds.
        """
        chosen, described, proposal = Replay() if method is None else method, self.describe(), self.release.proposal
        prepared = proposal.parameters
        for name, given, held in (("steps", steps, prepared.steps), ("batch_size", batch_size, prepared.batch_size)):
            if given not in (None, held):
                raise InvalidValue(f"{name} is {given}; {self.release.path} holds one release with {name} {held}")
        plan = Plan(
            method=chosen,
            epsilon=self.release.publication.message.run.epsilon,
            delta=described.data_set_budget.delta,
            **vars(described.facts),
            steps=prepared.steps,
            batch_size=prepared.batch_size,
            feature_dimension=self.release.graph.feature_dimension,
            gradient_parameters=0,
            noise=proposal.noise,
            published=True,
        )
        extractor_of = UploadedExtractor(prepared.graph_digest, prepared.weights_digest)
        same = chosen.mechanism.name == prepared.mechanism
        if not same or not same_but_for_map(plan.parameters(extractor_of), prepared):
            raise InvalidValue(
                f"{self.release.path} holds a release of {prepared.mechanism!r} that was prepared with other settings "
                f"than those of {chosen!r}; give the method and the settings (--setting) of the proposal"
            )
        return plan


def with_weights(extractor: nn.Module, proposal: Proposal, *, path: Path) -> None:
    """Gives a module a proposal's weights, in place, and its evaluation mode.

    Args:
        extractor: of the layers that were prepared.
        proposal: with them.
        path: of its file, for the error.

    Raises:
        InvalidValue: it has other layers.
        ExtractorUnsupported: it cannot travel as data at all.
    """
    extractor.eval()
    graph = ExtractorGraph.from_bytes(proposal.graph)
    if trace(extractor, graph.input_shape) != graph:
        raise InvalidValue(
            f"the extractor has other layers than the one that {path} was made with; build the module that the team "
            "prepared, or name it (--network)"
        )
    weights = weights_from_bytes(proposal.weights, graph)
    extractor.load_state_dict(weights, strict=False)  # what else a module keeps does not enter its features
