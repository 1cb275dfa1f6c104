"""The audit of a delivered file: it stands in the certificate, verify goes on, and a fault is refuted."""

from __future__ import annotations

import json
import shutil

import pytest
from click.testing import CliRunner

from benchmarks.audit.faults import fault
from dpswd.public_client.cli.main import main
from dpswd.public_client.curator.verify import LEDGER_KEY_FILE
from dpswd.public_client.evidence.certificate import NOT_AUDITED
from dpswd.public_client.generation import Gaussian
from dpswd.public_client.generation.generating import generate, plan_generator
from dpswd.public_client.testing import audit
from dpswd.public_client.testing.audit import write_audit
from dpswd.public_client.testing.canaries import DESIGNS
from dpswd.public_client.testing.mock import MockCurator, mock_description

FILE = "made.safetensors"


def fitted(folder, method):
    description = mock_description(records=2000, record_shape=(6,), epsilon=8.0, delta=1e-5, classes=3)
    curator = MockCurator(description, randomness=lambda n: bytes(n))
    plan, _ = plan_generator(curator, method, epsilon=4.0)
    generate(curator, plan, seed=1, device="cpu", progress=False).save(folder / FILE)
    (folder / LEDGER_KEY_FILE).write_text(curator.describe().ledger_public_key)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("audited")
    fitted(folder, Gaussian(low=0.0, high=1.0, typical=0.7))
    return folder


@pytest.fixture
def copied(made, tmp_path):
    return shutil.copytree(made, tmp_path / "copied")


def asked(command, folder, *more):
    key = ["--key", str(folder / LEDGER_KEY_FILE), *(["--trials", "8"] if command == "audit" else [])]
    result = CliRunner().invoke(main, [command, str(folder / FILE), *key, "--format", "json", *more])
    return result.exit_code, json.loads(result.stdout)


@pytest.fixture(scope="module")
def audit_of_it(made, tmp_path_factory):
    """The folder of a copy of the file that was audited, and how that ended; beside other copies no audit stands."""
    folder = shutil.copytree(made, tmp_path_factory.mktemp("audit") / "copied")
    return folder, asked("audit", folder)


@pytest.fixture(scope="module")
def said(audit_of_it):
    return audit_of_it[1][1]


def figures(said):
    """Of all attacks what does not depend on the day."""
    rows = said["audited"]
    return [{name: value for name, value in row.items() if name not in ("seconds", "day")} for row in rows]


def certificate(folder):
    return json.loads((folder / "made.certificate.json").read_text())


@pytest.mark.long
def test_what_is_proved_stands_in_the_certificate_beside_what_was_charged(made, audit_of_it, tmp_path):
    before = certificate(made)
    assert before["audited"] == NOT_AUDITED
    folder, (code, said) = audit_of_it
    assert code == 0
    row, *attacks = said["audited"]
    assert (row["mechanism"], row["canaries"], row["confidence"]) == ("class_statistics", 2000, 0.95)
    assert 0.6 * row["claim"] < row["lower_bound"] < row["claim"] == before["releases"][0]["epsilon_alone"]
    claim = before["privacy"]["epsilon"]
    assert [(each["attack"], each["claim"], each["trials"]) for each in attacks] == [
        ("membership", claim, 8), ("attribute", claim, 8)
    ]  # fmt: skip
    assert certificate(folder) == before | {"audited": said["audited"]}
    code, again = asked("audit", shutil.copytree(folder, tmp_path / "again"))
    assert (code, figures(again)) == (0, figures(said)), "the same evidence gives the same figures"


def test_verify_still_derives_the_file_bit_for_bit(audit_of_it):
    folder, _ = audit_of_it
    key = ["--key", str(folder / LEDGER_KEY_FILE)]
    result = CliRunner().invoke(main, ["check", str(folder / FILE), *key])
    assert result.exit_code == 0, result.output
    assert "derived again, bit for bit" in result.output


@pytest.mark.parametrize(
    "planted", ["noise halved", pytest.param("noise left out", marks=pytest.mark.exhaustive), "clipped for additions"]
)
@pytest.mark.long
def test_a_fault_of_this_software_refutes_the_claim_and_nothing_is_written(copied, planted):
    before = (copied / FILE).read_bytes()
    with fault(planted):
        code, said = asked("audit", copied)
    assert code == 13
    assert said["audited"][0]["refuted"]
    assert (copied / FILE).read_bytes() == before


@pytest.mark.parametrize(
    "change", [{"claim": 9.0}, {"run": "another"}, {"run": None}, {"refuted": True}, None, "all is well"], ids=str
)
@pytest.mark.long
def test_an_audit_of_something_else_is_detected(copied, said, change):
    row = said["audited"][0]
    rows = [row | change] if isinstance(change, dict) else [change]
    write_audit(copied / FILE, certificate(copied), rows)
    code, answer = asked("check", copied)
    assert code == 13
    assert "its audit is of" in answer["findings"][0]["text"]


@pytest.mark.long
def test_figures_that_were_written_by_hand_are_replaced(copied, said):
    write_audit(copied / FILE, certificate(copied), [said["audited"][0] | {"lower_bound": 0.001}])
    code, again = asked("audit", copied)
    assert "says otherwise" in again["findings"][0]
    assert code == 13
    code, again = asked("audit", copied)
    assert (code, figures(again)) == (0, figures(said))


def test_a_mechanism_without_canaries_is_said_to_have_none(copied, monkeypatch):
    others = {name: design for name, design in DESIGNS.items() if name != "class_statistics"}
    monkeypatch.setattr(audit, "DESIGNS", others)  # one put back would be the last, for other tests, too
    key = ["--key", str(copied / LEDGER_KEY_FILE)]
    result = CliRunner().invoke(main, ["audit", str(copied / FILE), *key, "--trials", "8"])
    assert result.exit_code == 0, result.output
    assert "not audited: no canaries are made for it" in result.output
    assert "lower_bound" not in certificate(copied)["audited"][0]
