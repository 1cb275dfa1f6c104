"""Whether a model or a generator is what its certificate says, offline: by receipts, and by deriving it again."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load

from dpswd.public_client.adaptation.domain_adaptation import DomainAdaptation
from dpswd.public_client.adaptation.hospital import Hospital
from dpswd.public_client.curator.recording import Replaying
from dpswd.public_client.curator.stub import Curator
from dpswd.public_client.curator.transport import Transport
from dpswd.public_client.data.datasets import Batches, Labelled
from dpswd.public_client.data.source import collect, source_loader
from dpswd.public_client.evidence import certificate as certificates
from dpswd.public_client.evidence.evidence import GENERATOR, LADDER, Evidence, digest_of, planned
from dpswd.public_client.evidence.signature import DRY_RUN, signature_problems, signer_in_words
from dpswd.public_client.generation import Generator, generation_kinds, load_generator
from dpswd.public_client.generation.generating import generate
from dpswd.public_client.ladder.adapt import adapt
from dpswd.public_client.methods import method_kinds
from dpswd.shared.books.chain_checks import Finding, Tampering, read_export
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
        return f"made from {len(self.entries)} receipts, {cost}; {signer_in_words(self.certificate)}; {last}"

    @property
    def entries(self) -> list[SignedEntry]:
        """The receipts, to be held against a ledger."""
        return [entry for run in self.evidence.runs() for entry in run.entries]

    def note(self, *texts: str, kind: Tampering = Tampering.INCONSISTENT) -> None:
        """Findings more."""
        self.findings += [Finding(tampering=kind, seq=0, text=text) for text in texts]


def check(path: str | Path, *, key: PinnedKey, credentials: Path | None = None, ledger: Sequence[str] = ()) -> Checked:
    """Holds a model's file, its certificate and its evidence against each other and against the ledger's key.

    Args:
        path: of the model; certificate and evidence stand beside it.
        key: the ledger's raw Ed25519 key, 32 bytes, as the hospital gave it over another way, or its keys.
        credentials: directory with ca.crt, the hospital's authority, against which the signer is held.
        ledger: lines of a view or an export, against which the signer is held.

    Raises:
        DataInvalid: a file is missing, or is none of its kind.
    """
    path = Path(path)
    files = (path, path.with_suffix(certificates.CERTIFICATE_SUFFIX), path.with_suffix(certificates.EVIDENCE_SUFFIX))
    try:
        data, beside, evidence_data = (file.read_bytes() for file in files)
    except OSError as error:
        how = "model, certificate and evidence stand side by side"
        raise DataInvalid(f"{error.filename} cannot be read ({error.strerror}); {how}") from error
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
    changed = {
        "the certificate in the model's file is not the one beside it": inside != beside,
        "the model's file is spelled otherwise than it was written": spelled != data,
        "the model is not the one that was certified: weights, graph or plan differ": stated["model"] != sha256(bare),
        "the evidence is not the one that was certified": stated["evidence"] != sha256(evidence_data),
    }
    checked.note(*(text for text, wrong in changed.items() if wrong))
    keys = LedgerKeys.of(key, (own := certificates.described(evidence)).key_changes)
    if bytes.fromhex(own.ledger_public_key) not in keys.every:
        checked.note("the replies are of a curator with another ledger's key", kind=Tampering.FORGED)
    for run in evidence.runs():
        checked.note(*run.problems(keys), kind=Tampering.FORGED)
        if run.opening.reply.run_id not in listed:
            checked.note(f"run {run.opening.reply.run_id} was charged, and the certificate does not list it")
    entries = [entry for entry in read_export(ledger)[0] if entry.signed_by(keys)]
    signed = signature_problems(certificate, _signing_client(checked), credentials, entries)
    checked.note(*signed, kind=Tampering.FORGED)
    if not checked.findings:
        again = json.loads(certificates.certificate_of(evidence, model=bare, comparison=None))
        checked.note(*certificates.disagreements(certificate, again))
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
    batches = source_batches(settings, source)
    if settings["kind"] != GENERATOR and digest_of(batches, seed=settings["seed"]) != evidence.source:
        checked.note("the source is another one than the model was adapted with")
        return
    replaying = Replaying(evidence.stored(), published=_published(settings))
    with tempfile.TemporaryDirectory() as folder:
        again, summed_up = Path(folder) / path.name, STATISTICS in metadata_of(path.read_bytes())
        try:
            gain = derive_by(replaying, evidence, again, model=model, batches=batches, summed_up=summed_up)
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


def source_batches(settings: Mapping[str, Any], source: Any) -> Batches:
    """The public source as the file was made with it.

    Args:
        settings: of the evidence.
        source: see `derive`.
    """
    batches: Batches = source
    if isinstance(source, (tuple, list)) and len(source) == 2:
        pair = Labelled(torch.as_tensor(source[0]).float(), torch.as_tensor(source[1]).long())
        batches = source_loader(pair, batch_size=settings["batch_size"] or _USUAL_BATCH, seed=settings["seed"])
        if settings["kind"] == LADDER or settings["batch_size"] is None:
            batches = list(batches)
    return batches


def _published(settings: Mapping[str, Any]) -> bool:
    return bool(json.loads(settings.get("plan", "{}")).get("published", False))


def _signing_client(checked: Checked) -> str | None:
    """Whose receipts they are, where that client has a key; a published release is read by anybody."""
    if checked.findings or _published(checked.evidence.settings):
        return None
    client = str(checked.entries[0].payload.get("client"))
    return None if client == DRY_RUN else client


def derive_by(
    answers: Transport, evidence: Evidence, to: Path, *, model: Any, batches: Batches, summed_up: bool
) -> Any:
    """Writes the file that follows from a curator's answers, without a certificate.

    Args:
        answers: the stored ones, or a curator that is asked alike.
        evidence: of the file that was delivered; its own replies are not read.
        to: where the file is written.
        model: see `derive`.
        batches: of the public source; a generator has none.
        summed_up: whether statistics of the source stand in it.

    Returns:
        Its measured gain, as a certificate states it.
    """
    settings = evidence.settings
    if settings["kind"] == GENERATOR:
        _generated(settings, answers, model).save(to)
        return certificates.NOT_MEASURED
    shape, hospital = tuple(collect(batches, most=1).images.shape[1:]), Hospital(Curator(answers))
    evidence.give((model.extractor, model.classifier), shape)
    stated = settings["contract"]  # empty where it declares nothing
    contract = None if stated is None else DataContract.from_bytes(bytes.fromhex(stated))
    common: dict[str, Any] = {"contract": contract, "device": settings["device"], "seed": settings["seed"]}
    if settings["kind"] == LADDER:
        priced = {name: settings[name] for name in ("epsilon", "evaluate_epsilon")}
        reached = adapt(model, batches, hospital, **priced, **common, progress=False)
        reached.evidence = None
        reached.save(to)
        return certificates.gain_of(reached.comparison)
    common |= {"hospital": hospital, "plan": planned(settings, method_kinds()), "source_epochs": 0}
    adaptation = DomainAdaptation(model.extractor, model.classifier, **common).fit(batches, progress=False)
    adaptation.save(to, summed_up=summed_up, certify=False)
    return certificates.NOT_MEASURED


def _generated(settings: Mapping[str, Any], answers: Transport, extractor: Any) -> Generator:
    """The generator that follows from a curator's answers."""
    plan = planned(settings, generation_kinds())
    if settings["own"] and extractor is None:
        raise InvalidValue("it was fitted with an extractor of the team's own; name it (--network, --model)")
    curator = Curator(answers, purpose=settings["purpose"])
    own = {name: settings[name] for name in ("seed", "device")}
    return replace(generate(curator, plan, extractor=extractor, progress=False, **own), evidence=None)


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
    theirs, here = checked.certificate["software"], certificates.software(str(checked.evidence.settings["device"]))
    differing = [f"{name} {here[name]} ({theirs[name]} there)" for name in here if here[name] != theirs[name]]
    return f"; here is {', '.join(differing)}" if differing else "; software and processor are those of the certificate"
