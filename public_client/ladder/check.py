"""Whether a model or a generator is what its certificate says, offline: by receipts, and by deriving it again."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load

from dpswd.public_client.adaptation.domain_adaptation import DomainAdaptation
from dpswd.public_client.adaptation.hospital import Hospital
from dpswd.public_client.curator.recording import Replaying
from dpswd.public_client.curator.stub import Curator
from dpswd.public_client.data.datasets import Batches, Labelled
from dpswd.public_client.data.source import collect, source_loader
from dpswd.public_client.evidence.certificate import (
    CERTIFICATE_SUFFIX,
    EVIDENCE_SUFFIX,
    NOT_MEASURED,
    certificate_of,
    described,
    disagreements,
    gain_of,
    software,
)
from dpswd.public_client.evidence.evidence import GENERATOR, LADDER, Evidence, digest_of, planned
from dpswd.public_client.generation import Generator, generation_kinds, load_generator
from dpswd.public_client.generation.generating import generate
from dpswd.public_client.ladder.adapt import adapt
from dpswd.public_client.methods import method_kinds
from dpswd.shared.books.chain_checks import Finding, Tampering
from dpswd.shared.core.errors import DataInvalid, DpswdError, InvalidValue, rounded
from dpswd.shared.core.ledger.keys import LedgerKeys, PinnedKey
from dpswd.shared.core.ledger.receipts import SignedEntry, sha256
from dpswd.shared.models.adapted import CERTIFICATE, STATISTICS, read_adapted
from dpswd.shared.models.model_file import in_one_spelling, metadata_of
from dpswd.shared.protocol.contract import DataContract

_USUAL_BATCH, _DRAWN = 128, 1000


@dataclass
class Checked:
    """What a check found of one model.

    Attributes:
        certificate: as it stands beside the model.
        evidence: see `Evidence`.
        findings: everything that is wrong.
        derived: whether the model was derived again, and came out bit for bit.
    """

    certificate: Mapping[str, Any]
    evidence: Evidence
    findings: list[Finding] = field(default_factory=list)
    derived: bool = False

    def __str__(self) -> str:
        """In one line, where nothing is wrong."""
        of = self.certificate["privacy"]
        last = self.evidence.settings.get("apart") or "not derived again (--source)"
        last = "derived again, bit for bit" if self.derived else last
        cost = f"epsilon {rounded(of['epsilon'], up=True)} at delta {of['delta']:g}"
        return f"made from {len(self.entries)} receipts, {cost}; {last}"

    @property
    def entries(self) -> list[SignedEntry]:
        """The receipts, to be held against a ledger."""
        return [entry for run in self.evidence.runs() for entry in run.entries]

    def note(self, text: str, kind: Tampering = Tampering.INCONSISTENT) -> None:
        """One finding more."""
        self.findings.append(Finding(tampering=kind, seq=0, text=text))


def check(path: str | Path, *, key: PinnedKey) -> Checked:
    """Holds a model's file, its certificate and its evidence against each other and against the ledger's key.

    Args:
        path: of the model; certificate and evidence stand beside it.
        key: the ledger's raw Ed25519 key, 32 bytes, as the hospital gave it over another way, or its keys.

    Raises:
        DataInvalid: a file is missing, or is none of its kind.
    """
    path = Path(path)
    data, beside, evidence_data = (
        _read(file) for file in (path, path.with_suffix(CERTIFICATE_SUFFIX), path.with_suffix(EVIDENCE_SUFFIX))
    )
    evidence = Evidence.from_bytes(evidence_data)
    try:
        certificate = json.loads(beside)
        bare, spelled = in_one_spelling(data, without=CERTIFICATE), in_one_spelling(data)
        inside = str(metadata_of(data).get(CERTIFICATE, "")).encode()
        listed = {each["run"]: each for each in certificate["releases"]}
        stated = {name: certificate[name] for name in ("model", "evidence", "source", "software")}
    except (InvalidValue, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataInvalid(f"{path} has no certificate that can be read: {error!r}") from error
    checked = Checked(certificate, evidence)
    if inside != beside:
        checked.note("the certificate in the model's file is not the one beside it")
    if spelled != data:
        checked.note("the model's file is spelled otherwise than it was written")
    if stated["model"] != sha256(bare):
        checked.note("the model is not the one that was certified: a weight, a graph or its plan was changed")
    if stated["evidence"] != sha256(evidence_data):
        checked.note("the evidence is not the one that was certified")
    keys = LedgerKeys.of(key, (own := described(evidence)).key_changes)
    if bytes.fromhex(own.ledger_public_key) not in keys.every:
        checked.note("the replies are of a curator with another ledger's key", Tampering.FORGED)
    for run in evidence.runs():
        for text in run.problems(keys):
            checked.note(text, Tampering.FORGED)
        if run.opening.reply.run_id not in listed:
            checked.note(f"run {run.opening.reply.run_id} was charged, and the certificate does not list it")
    if not checked.findings:
        again = json.loads(certificate_of(evidence, model=bare, comparison=None))
        for text in disagreements(certificate, again):
            checked.note(text)
    return checked


def derive(path: str | Path, checked: Checked, model: Any = None, source: Any = None) -> None:
    """Derives a checked file again from the stored replies, and notes where it comes out otherwise.

    Args:
        path: of the model or the generator.
        checked: without findings.
        model: the team's network, for its layers; its weights are the evidence's. Of a generator, an extractor of the
            team's own, with its weights.
        source: the public source: as it was given, or a pair of its records and labels. A generator has none.
    """
    path, settings, evidence = Path(path), checked.evidence.settings, checked.evidence
    if settings.get("apart"):
        return
    batches: Batches = source
    if isinstance(source, (tuple, list)) and len(source) == 2:
        pair = Labelled(torch.as_tensor(source[0]).float(), torch.as_tensor(source[1]).long())
        batches = source_loader(pair, batch_size=settings["batch_size"] or _USUAL_BATCH, seed=settings["seed"])
        if settings["kind"] == LADDER or settings["batch_size"] is None:
            batches = list(batches)
    if settings["kind"] != GENERATOR and digest_of(batches, seed=settings["seed"]) != evidence.source:
        checked.note("the source is another one than the model was adapted with")
        return
    replaying = Replaying(evidence.stored(), published=json.loads(settings.get("plan", "{}")).get("published", False))
    with tempfile.TemporaryDirectory() as folder:
        again, gain = Path(folder) / path.name, NOT_MEASURED
        try:
            if settings["kind"] == GENERATOR:
                _generated(settings, replaying, model).save(again)
            else:
                gain = _derived(settings, evidence, replaying, model, batches, path, again)
        except DpswdError as error:
            checked.note(f"the file cannot be derived again: {error}{_elsewhere(checked)}")
            return
        bare = in_one_spelling(path.read_bytes(), without=CERTIFICATE)
        same = again.read_bytes() == bare and not replaying.differences
        checked.derived = same and gain == checked.certificate["gain"]
        if gain != checked.certificate["gain"]:
            checked.note("the gain is not the one that the hospital released")
        if not same:
            differing = (*_distances(path, again, None if settings["kind"] == GENERATOR else batches),)
            reasons = "; ".join(dict.fromkeys((*differing, *replaying.differences)))
            checked.note(f"derived again the model is another: {reasons}{_elsewhere(checked)}")


def _derived(
    settings: Mapping[str, Any], evidence: Evidence, replies: Replaying, model: Any, batches: Batches, path: Path,
    to: Path,
) -> Any:  # fmt: skip
    """Writes the model that follows from the replies, and gives its measured gain."""
    shape, hospital = tuple(collect(batches, most=1).images.shape[1:]), Hospital(Curator(replies))
    evidence.give((model.extractor, model.classifier), shape)
    contract = settings["contract"] and DataContract.from_bytes(bytes.fromhex(settings["contract"]))
    common: dict[str, Any] = {"contract": contract, "device": settings["device"], "seed": settings["seed"]}
    if settings["kind"] == LADDER:
        priced = {name: settings[name] for name in ("epsilon", "evaluate_epsilon")}
        reached = adapt(model, batches, hospital, **priced, **common, progress=False)
        reached.evidence = None
        reached.save(to)
        return gain_of(reached.comparison)
    plan = planned(settings, method_kinds())
    adaptation = DomainAdaptation(
        model.extractor, model.classifier, hospital=hospital, plan=plan, source_epochs=0, **common
    ).fit(batches, progress=False)
    adaptation.save(to, summed_up=STATISTICS in metadata_of(path.read_bytes()), certify=False)
    return NOT_MEASURED


def _generated(settings: Mapping[str, Any], replies: Replaying, extractor: Any) -> Generator:
    """The generator that follows from the replies."""
    plan = planned(settings, generation_kinds())
    if settings["own"] and extractor is None:
        raise InvalidValue("it was fitted with an extractor of the team's own; name it (--network, --model)")
    curator = Curator(replies, purpose=settings["purpose"])
    made = generate(
        curator, plan, extractor=extractor, seed=settings["seed"], device=settings["device"], progress=False
    )
    return replace(made, evidence=None)


def _distances(path: Path, again: Path, batches: Batches | None) -> Iterator[str]:
    """How far what was derived is from the file at hand."""
    if batches is None:
        here, there = (load(file.read_bytes()) for file in (path, again))
        shared = [name for name in here if name in there and here[name].shape == there[name].shape]
        furthest = max((float((here[name] - there[name]).abs().max()) for name in shared), default=0.0)
        labels = [load_generator(file).sample(_DRAWN)[1] for file in (path, again)]
        share = float((labels[0] == labels[1]).double().mean())
        yield f"numbers differ by at most {furthest:.3g}, {100 * share:.2f}% of the labels drawn are equal"
        return
    own, derived = read_adapted(path), read_adapted(again)
    (graph, weights), (other, others) = own.composed(), derived.composed()
    if graph != other:
        yield "its layers differ"
        return
    furthest = max((float((weights[name] - others[name]).abs().max()) for name in weights), default=0.0)
    same = [own.predict(part.float()) == derived.predict(part.float()) for part, _ in batches]
    share = float(torch.cat(same).double().mean())
    yield f"weights differ by at most {furthest:.3g}, {100 * share:.2f}% of the predictions on the source are equal"
    if own.plan != derived.plan:
        yield "its plan differs"


def _elsewhere(checked: Checked) -> str:
    """What of the software is not as in the certificate, in words."""
    theirs, here = checked.certificate["software"], software(str(checked.evidence.settings["device"]))
    differing = [f"{name} {here[name]} ({theirs[name]} there)" for name in here if here[name] != theirs[name]]
    return f"; here is {', '.join(differing)}" if differing else "; software and processor are those of the certificate"


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise DataInvalid(
            f"{file} cannot be read ({error.strerror}); a model, its certificate and its evidence stand side by side"
        ) from error
