"""Certificates of named methods, generators and published releases: derived again, and no exchange of parts passes."""

from __future__ import annotations

import contextlib
import functools
import json
import math
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from published_site import METHOD, Site
from published_site import network as prepared_network
from published_site import source as prepared_source
from safetensors.torch import load
from signed_by_team import credentials_in
from torch import nn

from deploy import certificate_picture
from dpswd import AllWeights, DomainAdaptation, PublishedHospital, Replay, Statistics, adapt
from dpswd.public_client.adaptation.hospital import Hospital
from dpswd.public_client.curator import recording
from dpswd.public_client.data.datasets import Labelled
from dpswd.public_client.data.source import source_loader
from dpswd.public_client.evidence import certificate
from dpswd.public_client.evidence.certificate import certificate_of
from dpswd.public_client.evidence.evidence import Evidence
from dpswd.public_client.evidence.signature import NOBODY, SIGNED
from dpswd.public_client.generation import Column, Gaussian, Replayed, Schema, Tabular, load_generator
from dpswd.public_client.generation.generating import generate, plan_generator
from dpswd.public_client.ladder.check import check, derive
from dpswd.public_client.replay.views import FeatureView
from dpswd.public_client.testing.mock import MockCurator, mock_description
from dpswd.public_client.training.sites import Model
from dpswd.shared.core.errors import DataInvalid, InvalidValue
from dpswd.shared.core.ledger.receipts import canonical_json
from dpswd.shared.models.adapted import CERTIFICATE
from dpswd.shared.models.model_file import metadata_of, model_bytes
from dpswd.shared.protocol.contract import DataContract

pytestmark = pytest.mark.usefixtures("short_tuning")
COLUMNS, CLASSES, SEED, RECORDS = 6, 3, 4, 2000
FILE = "made.safetensors"


def rows(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(CLASSES, (count,), generator=generator)
    return torch.rand(count, COLUMNS, generator=generator) * 0.4 + 0.2 * labels[:, None], labels


SOURCE = rows(300, 1)


def network(seed: int = 0) -> Model:
    torch.manual_seed(seed)
    return Model(nn.Sequential(nn.Linear(COLUMNS, 8), nn.Tanh()).eval(), nn.Linear(8, CLASSES).eval())


def mock(shape: tuple[int, ...] = (COLUMNS,)) -> MockCurator:
    description = mock_description(records=RECORDS, record_shape=shape, epsilon=8.0, delta=1e-5, classes=CLASSES)
    records, labels = rows(RECORDS, 2)
    held = (0.5 * records).repeat(1, math.prod(shape) // COLUMNS).reshape(-1, *shape)
    curator = MockCurator(description, records=lambda n: held[:n], labels=labels.numpy(), randomness=lambda n: bytes(n))
    curator.credentials = credentials()
    return curator


@functools.cache
def credentials() -> Path:
    return credentials_in(Path(tempfile.mkdtemp()))


@dataclass
class Made:
    """A delivered file, and what derives it again."""

    key: bytes
    model: object = None
    source: object = None
    kind: str = ""


def trained(curator, method, *, seed=SEED, **options):
    hospital = Hospital(curator)
    steps = 3 if method.mechanism.whole is False else None
    plan = hospital.plan(method, epsilon=4.0, steps=steps)
    start = network()
    adaptation = DomainAdaptation(
        start.extractor,
        start.classifier,
        hospital=hospital,
        plan=plan,
        device="cpu",
        seed=seed,
        source_epochs=1,
        **options,
    )
    return adaptation.fit(source_loader(Labelled(*SOURCE), batch_size=50, seed=seed), progress=False)


def of_method(method):
    def make(folder):
        curator = mock()
        trained(curator, method).save(folder / FILE)
        return Made(bytes.fromhex(curator.describe().ledger_public_key), network(9), SOURCE)

    return make


def of_generator(method, shape=(COLUMNS,)):
    def make(folder):
        curator = mock(shape)
        plan, _ = plan_generator(curator, method, epsilon=4.0)
        generate(curator, plan, seed=1, device="cpu", progress=False).save(folder / FILE)
        return Made(bytes.fromhex(curator.describe().ledger_public_key))

    return make


def of_climb(folder, **options):
    """As the command climbs: with a contract that declares nothing."""
    curator, common = mock(), {"contract": DataContract(), "progress": False}
    reached = adapt(network(), SOURCE, Hospital(curator), epsilon=2.0, **common, **options)
    reached.save(folder / FILE)
    assert (reached.comparison is not None) == bool(options)
    return Made(bytes.fromhex(curator.describe().ledger_public_key), network(), SOURCE)


def of_publication(folder):
    site = Site(folder / "site")
    hospital = PublishedHospital.read(site.published(), key=site.key_file)
    extractor, classifier = prepared_network()
    adaptation = DomainAdaptation(
        extractor, classifier, hospital=hospital, plan=hospital.plan(METHOD), device="cpu", seed=SEED, source_epochs=0
    )
    batches = source_loader(Labelled(*prepared_source()), batch_size=50, seed=SEED)
    adaptation.fit(batches, progress=False).save(folder / FILE)
    return Made(site.key, Model(*prepared_network()), prepared_source())


GAUSSIAN = Gaussian(low=0.0, high=1.0, typical=0.7)
IMAGES = Replayed(
    low=0.0, axes=20, coordinates=10, waves=12, width=4, pretraining=3, updates=6, images=30, looked=9, tries=2
)
TABLE = tuple(Column(name=f"x{i}", kind="numeric", low=0.0, high=1.0, bins=4) for i in range(COLUMNS))
QUICK = Replay(directions=20, tuning_steps=20, source_records=300)
KINDS = {
    "replay": of_method(QUICK),
    "statistics": of_method(Statistics()),
    "all weights": of_method(AllWeights(directions=8)),
    "gaussian": of_generator(GAUSSIAN),
    "replayed": of_generator(IMAGES, (1, 8, 9)),
    "tabular": of_generator(Tabular(schema=Schema(TABLE), fitted_rows=500, updates=5)),
    "climb": of_climb,
    "compared climb": functools.partial(of_climb, evaluate_epsilon=0.5),
    "publication": of_publication,
}


@pytest.fixture(scope="module", params=KINDS)
def made(request, tmp_path_factory):
    """A folder with a file of each kind."""
    folder = tmp_path_factory.mktemp("made")
    own = KINDS[request.param](folder)
    own.kind = request.param
    return folder, own


def findings_of(folder, made):
    checked = check(folder / FILE, key=made.key)
    if not checked.findings:
        derive(folder / FILE, checked, made.model, made.source)
    assert checked.derived is not bool(checked.findings)
    return "; ".join(finding.text for finding in checked.findings)


@pytest.mark.parametrize("threads", [1, 4])
def test_a_file_is_derived_again_bit_for_bit(made, threads):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        assert findings_of(*made) == ""
    finally:
        torch.set_num_threads(before)


def test_the_readmes_picture_says_each_of_its_fields(made):
    fields = json.loads((made[0] / "made.certificate.json").read_text())
    assert set(certificate_picture.ROWS) == set(fields) - {"format", "made_by"}


def test_a_changed_number_is_detected_before_and_after_it_is_certified_anew(made, tmp_path):
    folder, own = made
    for file in folder.glob("made.*"):
        shutil.copy(file, tmp_path)
    path = tmp_path / FILE
    data = path.read_bytes()
    tensors, metadata = load(data), json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["__metadata__"]
    name = next(name for name, tensor in tensors.items() if tensor.dtype == torch.float32 and tensor.numel())
    first = tensors[name].view(-1)
    first[0] += 2.0**-10 * max(1.0, float(first[0].abs()))  # numbers of a table's steps are a million
    path.write_bytes(model_bytes(tensors, metadata))
    assert "not the one that was certified" in findings_of(tmp_path, own)
    evidence = Evidence.from_bytes((tmp_path / "made.evidence").read_bytes())
    del metadata[CERTIFICATE]
    anew = certificate_of(evidence, model=model_bytes(tensors, metadata), comparison=None)
    path.with_suffix(".certificate.json").write_bytes(anew)
    path.write_bytes(model_bytes(tensors, metadata | {CERTIFICATE: anew.decode()}))
    assert "derived again the model is another" in findings_of(tmp_path, own)


def test_another_source_or_another_ledger_is_detected(made):
    folder, own = made
    if own.source is not None:
        records, labels = own.source
        assert "the source is another one" in findings_of(folder, Made(own.key, own.model, (records + 0.5, labels)))
    assert "another ledger's key" in findings_of(folder, Made(bytes(32), own.model, own.source))


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory):
    folder = tmp_path_factory.mktemp("elsewhere")
    of_method(QUICK)(folder)
    return folder


def test_replies_of_another_run_are_detected(made, elsewhere, tmp_path):
    folder, own = made
    for file in folder.glob("made.*"):
        shutil.copy(file, tmp_path)
    shutil.copy(elsewhere / "made.evidence", tmp_path)
    assert "the evidence is not the one that was certified" in findings_of(tmp_path, own)


@pytest.mark.parametrize("made", [kind for kind in KINDS if kind != "publication"], indirect=True)
def test_one_seed_gives_one_file(made, tmp_path):
    """On other threads; of two ledgers, whose keys and run ids differ: all but certificate and receipts."""
    folder, own = made
    before = torch.get_num_threads()
    torch.set_num_threads(4 if before == 1 else 1)
    try:
        KINDS[own.kind](tmp_path)
    finally:
        torch.set_num_threads(before)
    first, second = (load((place / FILE).read_bytes()) for place in (folder, tmp_path))
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("name", [b"format", b"kind", b"source", b"settings"])
def test_evidence_without_one_of_its_names_is_none(made, tmp_path, name):
    data = (made[0] / "made.evidence").read_bytes()
    for quote in (b'"', b'\\"'):  # of the metadata, and of what is JSON in it
        data = data.replace(quote + name + quote + b":", quote + name[::-1] + quote + b":")
    assert data != (made[0] / "made.evidence").read_bytes()
    with pytest.raises(DataInvalid, match="no evidence"):
        Evidence.from_bytes(data)


def other(rng, value):
    """A value of JSON in which one thing was changed at random."""
    if isinstance(value, dict) and value:
        name = rng.choice(sorted(value))
        return value | {name: other(rng, value[name])}
    if isinstance(value, list) and value:
        place = int(rng.integers(len(value)))
        return [*value[:place], other(rng, value[place]), *value[place + 1 :]]
    if isinstance(value, str) and value:
        place = int(rng.integers(len(value)))
        return value[:place] + chr((ord(value[place]) - 31) % 95 + 32) + value[place + 1 :]
    return value + 1.0 if isinstance(value, float) else [value]


@pytest.mark.exhaustive
def test_no_random_change_of_what_is_signed_passes(made, tmp_path):
    """10^4 in all, of gain, software and audit alone, beside the file and in it; a signed line is named."""
    folder, own = made
    rng = np.random.default_rng(0)
    for file in folder.glob("made.*"):
        shutil.copy(file, tmp_path)
    data, content = (tmp_path / FILE).read_bytes(), json.loads((tmp_path / "made.certificate.json").read_text())
    tensors, metadata = load(data), metadata_of(data)
    for _ in range(10_000 // len(KINDS) + 1):
        name = rng.choice(["gain", "software", "audited"])
        anew = canonical_json(content | {name: other(rng, content[name])})
        (tmp_path / "made.certificate.json").write_bytes(anew)
        (tmp_path / FILE).write_bytes(model_bytes(tensors, metadata | {CERTIFICATE: anew.decode()}))
        texts = "; ".join(finding.text for finding in check(tmp_path / FILE, key=own.key).findings)
        if content[SIGNED] != NOBODY:
            assert f"changed after it was signed: {name}" in texts


@pytest.mark.exhaustive
def test_no_random_change_passes(made, tmp_path):
    """10^4 in all, of model, certificate and receipts."""
    folder, own = made
    rng = np.random.default_rng(0)
    contents = {file.name: file.read_bytes() for file in folder.glob("made.*")}
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    for _ in range(10_000 // len(KINDS) + 1):
        name = rng.choice(sorted(contents))
        changed = bytearray(contents[name])
        for place in rng.integers(0, len(changed), size=rng.integers(1, 4)):
            changed[place] ^= int(rng.integers(1, 256))
        if changed == contents[name]:
            continue
        (tmp_path / name).write_bytes(changed)
        with contextlib.suppress(DataInvalid):
            assert check(tmp_path / FILE, key=own.key).findings
        (tmp_path / name).write_bytes(contents[name])


def test_evidence_that_nobody_would_send_along_is_not_stored(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(recording, "MOST_BYTES", 1000)
    trained(mock(), Statistics()).save(tmp_path / FILE)
    assert "no certificate: more than" in caplog.text
    assert not (tmp_path / "made.evidence").exists()


def test_receipts_that_say_too_little_do_not_cost_the_model(tmp_path, monkeypatch, caplog):
    def refuse(*_, **__):
        raise InvalidValue("the receipts do not state what was charged")

    monkeypatch.setattr(certificate, "certificate_of", refuse)
    for name, make in (("model", of_method(Statistics())), ("generator", of_generator(GAUSSIAN))):
        (tmp_path / name).mkdir()
        make(tmp_path / name)
        assert [file.name for file in (tmp_path / name).iterdir()] == [FILE]
    assert caplog.text.count("has no certificate: the receipts do not state what was charged") == 2


def test_what_no_file_holds_is_said(tmp_path):
    curator = mock()
    trained(curator, QUICK, view=FeatureView(torch.ones(8))).save(tmp_path / FILE)
    made = Made(bytes.fromhex(curator.describe().ledger_public_key), network(9), SOURCE)
    checked = check(tmp_path / FILE, key=made.key)
    derive(tmp_path / FILE, checked, made.model, made.source)
    assert (checked.findings, checked.derived) == ([], False)
    assert "a view of the team's own" in str(checked)
    assert "a view of the team's own" in json.loads((tmp_path / "made.certificate.json").read_text())["derivable"]


def test_a_generator_that_was_read_is_drawn_from_and_has_no_evidence(tmp_path):
    of_generator(GAUSSIAN)(tmp_path)
    assert load_generator(tmp_path / FILE).evidence is None
    assert np.isfinite(load_generator(tmp_path / FILE).sample(10)[0].numpy()).all()
