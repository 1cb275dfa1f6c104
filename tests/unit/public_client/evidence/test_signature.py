"""Who signed a certificate is said, and a changed line is named, whether or not it follows from the evidence."""

from __future__ import annotations

import json
import shutil

import pytest
from click.testing import CliRunner
from safetensors.torch import load
from signed_by_team import TEAM, credentials_in

from dpswd.public_client.cli.main import main
from dpswd.public_client.curator.identity import CERTIFICATE, read_certificate
from dpswd.public_client.curator.verify import LEDGER_KEY_FILE
from dpswd.public_client.evidence.signature import NOBODY, SIGNED, signature_problems, signed
from dpswd.public_client.generation import Gaussian
from dpswd.public_client.generation.generating import generate, plan_generator
from dpswd.public_client.ladder.check import check
from dpswd.public_client.testing.mock import MockCurator, mock_description
from dpswd.shared import certificates
from dpswd.shared.core.ledger.receipts import SignedEntry, canonical_json
from dpswd.shared.models import adapted
from dpswd.shared.models.model_file import metadata_of, model_bytes

FILE = "made.safetensors"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with a signed generator, its ledger's key and the team's credentials."""
    folder = tmp_path_factory.mktemp("signed")
    description = mock_description(records=500, record_shape=(6,), epsilon=8.0, delta=1e-5, classes=3)
    curator = MockCurator(description)
    curator.credentials = credentials_in(folder)
    plan, _ = plan_generator(curator, Gaussian(low=0.0, high=1.0, typical=0.7), epsilon=4.0)
    generate(curator, plan, seed=1, device="cpu", progress=False).save(folder / FILE)
    (folder / LEDGER_KEY_FILE).write_text(curator.describe().ledger_public_key)
    return folder


@pytest.fixture
def copied(made, tmp_path):
    return shutil.copytree(made, tmp_path / "copied")


def certificate(folder):
    return json.loads((folder / "made.certificate.json").read_text())


def rewrite(folder, content):
    """Puts a certificate beside the file and into it, as whoever passes it on can."""
    text, data = canonical_json(content), (folder / FILE).read_bytes()
    metadata = metadata_of(data) | {adapted.CERTIFICATE: text.decode()}
    (folder / FILE).write_bytes(model_bytes(load(data), metadata))
    (folder / "made.certificate.json").write_bytes(text)


def asked(command, folder, *more):
    key = ["--key", str(folder / LEDGER_KEY_FILE)]
    return CliRunner().invoke(main, [command, str(folder / FILE), *key, *map(str, more)])


def findings(folder, **more):
    key = bytes.fromhex((folder / LEDGER_KEY_FILE).read_text())
    return "; ".join(finding.text for finding in check(folder / FILE, key=key, **more).findings)


def test_it_is_said_who_signed(made):
    result = asked("check", made, "--credentials", made / "credentials")
    assert result.exit_code == 0, result.output
    fingerprint = certificates.fingerprint(read_certificate(made / "credentials" / CERTIFICATE))
    assert f"signed by '{TEAM}' (certificate {fingerprint[:16]})" in result.output


@pytest.mark.parametrize(
    ("line", "value"), [("gain", "12 points"), ("audited", []), ("software", {"torch": "1.0"}), ("more", "words")]
)
def test_a_changed_line_is_named(copied, line, value):
    rewrite(copied, certificate(copied) | {line: value})
    assert f"changed after it was signed: {line}" in findings(copied)
    assert asked("check", copied).exit_code == 13
    assert asked("audit", copied).exit_code == 13


def test_digests_made_anew_are_not_what_was_signed(copied):
    content = certificate(copied) | {"gain": "12 points"}
    lines = json.loads(signed(content, copied / "credentials"))[SIGNED]["lines"]
    rewrite(copied, content | {SIGNED: content[SIGNED] | {"lines": lines}})
    assert "not signed by the key of the certificate that it names" in findings(copied)


def test_somebody_else_of_the_same_name_does_not_pass_the_authority_nor_the_ledger(copied, tmp_path):
    content = certificate(copied)
    theirs = read_certificate(copied / "credentials" / CERTIFICATE)
    rewrite(copied, json.loads(signed(content | {"gain": "12 points"}, credentials_in(tmp_path / "other"))))
    assert findings(copied) == ""
    assert "was not certified by the authority" in findings(copied, credentials=copied / "credentials")
    payload = {"client": TEAM, "fingerprint": certificates.fingerprint(theirs)}
    entry = SignedEntry.following(None, kind="client-added", payload=payload, time="", sign=lambda _: bytes(64))
    assert "the ledger never bound 'ml-team'" in "".join(signature_problems(certificate(copied), TEAM, None, [entry]))
    assert list(signature_problems(content, TEAM, copied / "credentials", [entry])) == []


def test_a_signature_that_was_taken_out_or_is_another_clients_is_a_finding(made):
    content = certificate(made)
    assert "nobody signed" in "".join(signature_problems(content | {SIGNED: NOBODY}, TEAM, None, []))
    assert list(signature_problems(content | {SIGNED: NOBODY}, None, None, [])) == []
    assert "the receipts are those of 'others'" in "".join(signature_problems(content, "others", None, []))


@pytest.mark.parametrize("broken", [{}, "by hand", None, {"certificate": 3, "lines": {}, "signature": ""}], ids=str)
def test_what_is_no_signature_is_a_finding(copied, broken):
    rewrite(copied, certificate(copied) | {SIGNED: broken})
    assert "its signature does not hold" in findings(copied)


def test_an_audit_is_signed_by_the_same_key_or_not_written(copied):
    before = certificate(copied)
    result = asked("audit", copied, "--trials", 8)
    assert result.exit_code == 0, result.output
    assert "not written into the certificate" in result.output
    assert certificate(copied) == before
    result = asked("audit", copied, "--trials", 8, "--credentials", copied / "credentials")
    assert result.exit_code == 0, result.output
    assert certificate(copied)["audited"] != before["audited"]
    assert findings(copied) == ""


def test_a_key_that_is_gone_does_not_cost_the_model(tmp_path, caplog):
    curator = MockCurator(mock_description(records=500, record_shape=(6,), epsilon=8.0, delta=1e-5, classes=3))
    curator.credentials = tmp_path / "nowhere"
    plan, _ = plan_generator(curator, Gaussian(low=0.0, high=1.0, typical=0.7), epsilon=4.0)
    generate(curator, plan, seed=1, device="cpu", progress=False).save(tmp_path / FILE)
    assert "has no certificate" in caplog.text
    assert [file.name for file in tmp_path.iterdir()] == [FILE]
