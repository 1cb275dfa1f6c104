"""A model's certificate: it is derived again bit for bit, and no change of model, certificate or replies passes."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from exploring import tried
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from dpswd import adapt
from dpswd.public_client.adaptation.hospital import Hospital
from dpswd.public_client.cli.main import main
from dpswd.public_client.curator.recording import Stored, read_exchanges
from dpswd.public_client.evidence import evidence as evidences
from dpswd.public_client.evidence.certificate import NOT_MEASURED, certificate_of
from dpswd.public_client.evidence.evidence import Evidence, SamePasses, one_thread
from dpswd.public_client.ladder.check import check, derive
from dpswd.public_client.methods import normalisation
from dpswd.public_client.testing.mock import MockCurator, mock_description
from dpswd.public_client.training.saved_model import load_adapted
from dpswd.public_client.training.sites import Model
from dpswd.shared.core.errors import DataInvalid
from dpswd.shared.core.wire.messages import StepRelease
from dpswd.shared.core.wire.v1 import curator_pb2 as pb
from dpswd.shared.models.adapted import CERTIFICATE
from dpswd.shared.models.model_file import in_one_spelling, model_bytes

COLUMNS, CLASSES, SEED = 6, 3, 4
FILES = ("adapted.safetensors", "adapted.certificate.json", "adapted.evidence")


def network(seed: int = 0) -> Model:
    torch.manual_seed(seed)
    body = nn.Sequential(nn.Linear(COLUMNS, 8), nn.BatchNorm1d(8), nn.ReLU())
    return Model(body.eval(), nn.Linear(8, CLASSES).eval())


def rows(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(CLASSES, (count,), generator=generator)
    return torch.randn(count, COLUMNS, generator=generator) + labels[:, None], labels


SOURCE = rows(600, 1)


def mock() -> MockCurator:
    description = mock_description(records=2000, record_shape=(COLUMNS,), epsilon=8.0, delta=1e-5)
    return MockCurator(description, records=(1.5 * rows(2000, 2)[0] + 2.0).numpy(), randomness=lambda n: bytes(n))


@pytest.fixture(scope="module", autouse=True)
def no_columns():
    """Layers are asked one by one, too: evidence of more than one step."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(normalisation, "INPUT", "no module's path")
        yield


def adapted(curator, **more):
    return adapt(network(), SOURCE, Hospital(curator), epsilon=8.0, seed=SEED, device="cpu", progress=False, **more)


@pytest.fixture(scope="module")
def delivered(tmp_path_factory):
    """A folder with a model, its certificate, its evidence and the ledger's key."""
    folder, curator = tmp_path_factory.mktemp("delivered"), mock()
    model = adapted(curator)
    assert model.changed
    model.save(folder / FILES[0])
    (folder / "ledger.pub").write_text(curator.describe().ledger_public_key + "\n")
    return folder


@pytest.fixture
def copied(delivered, tmp_path):
    shutil.copytree(delivered, tmp_path, dirs_exist_ok=True)
    return tmp_path


def key_of(folder):
    return bytes.fromhex((folder / "ledger.pub").read_text())


def findings_of(folder, source=SOURCE):
    """The findings' texts, in one."""
    checked = check(folder / FILES[0], key=key_of(folder))
    if not checked.findings:
        derive(folder / FILES[0], checked, network(9), source)
    assert checked.derived is not bool(checked.findings)
    return "; ".join(finding.text for finding in checked.findings)


def certify_again(folder, *, evidence=None, tensors=None, changes=None):
    """Does what a forger can: makes digests and certificate anew for what was changed."""
    data = (folder / FILES[0]).read_bytes()
    metadata = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["__metadata__"]
    bare = model_bytes(tensors or load(data), {name: text for name, text in metadata.items() if name != CERTIFICATE})
    evidence = evidence or Evidence.from_bytes((folder / FILES[2]).read_bytes())
    content = json.loads(certificate_of(evidence, model=bare, comparison=None)) | (changes or {})
    certificate = json.dumps(content, sort_keys=True, separators=(",", ":"))
    (folder / FILES[1]).write_text(certificate)
    (folder / FILES[2]).write_bytes(evidence.to_bytes())
    (folder / FILES[0]).write_bytes(model_bytes(tensors or load(data), metadata | {CERTIFICATE: certificate}))


def with_exchanges(evidence, stored):
    lines = b"".join(one.line() + b"\n" for one in stored)
    return Evidence(evidence.graphs, evidence.weights, evidence.settings, evidence.source, lines)


def steps_of(evidence):
    return [one for one in evidence.stored() if one.method == "DrawStep"]


@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.long
def test_the_model_is_derived_again_bit_for_bit(delivered, threads):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        assert findings_of(delivered) == ""
        assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)


def test_the_certificate_says_what_the_receipts_state_and_nothing_of_a_gain_that_was_not_measured(delivered):
    content = json.loads((delivered / FILES[1]).read_text())
    evidence = Evidence.from_bytes((delivered / FILES[2]).read_bytes())
    assert 0.0 < content["privacy"]["epsilon"] <= 8.0
    assert content["gain"] == NOT_MEASURED
    assert [each["run"] for each in content["releases"]] == [run.opening.reply.run_id for run in evidence.runs()]
    assert set(content) == {
        "format", "made_by", "model", "team_model", "source", "evidence", "hospital", "privacy", "releases", "gain",
        "conditions", "derivable", "audited", "signed",
        "software",
    }  # fmt: skip


def test_a_climb_that_goes_on_gives_the_same_three_files(tmp_path):
    curator = mock()
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        adapted(curator, directory=tmp_path / "run").save(tmp_path / name / FILES[0])
    assert len(curator.charges) > 0
    for file in FILES:
        assert (tmp_path / "first" / file).read_bytes() == (tmp_path / "second" / file).read_bytes()


def test_a_changed_weight_is_detected_before_and_after_it_is_certified_anew(copied):
    path = copied / FILES[0]
    tensors = load(path.read_bytes())
    tensors["classifier.bias"][0] += 2.0**-10
    data = path.read_bytes()
    metadata = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["__metadata__"]
    path.write_bytes(model_bytes(tensors, metadata))
    assert "not the one that was certified" in findings_of(copied)
    certify_again(copied, tensors=tensors)
    text = findings_of(copied)
    assert "derived again the model is another: weights differ by at most 0.000977" in text
    assert "software and processor are those of the certificate" in text


def test_a_swapped_reply_is_detected(copied):
    evidence = Evidence.from_bytes((copied / FILES[2]).read_bytes())
    last = steps_of(evidence)[-1]
    reply = pb.DrawStepResponse.FromString(last.reply)
    release = StepRelease.from_bytes(reply.step_release)
    changed = bytearray(release.payload)
    changed[-1] ^= 1
    reply.step_release = StepRelease(release.run_id, release.step, bytes(changed)).to_bytes()
    swapped = Stored(last.method, last.request, reply.SerializeToString())
    stored = [swapped if each == last else each for each in evidence.stored()]
    certify_again(copied, evidence=with_exchanges(evidence, stored))
    assert "its reply's SHA-256 is" in findings_of(copied)


def test_a_reply_from_another_run_is_detected(copied):
    evidence = Evidence.from_bytes((copied / FILES[2]).read_bytes())
    first, other = steps_of(evidence)[0], steps_of(evidence)[-1]
    mixed = Stored(first.method, first.request, other.reply)
    stored = [mixed if each == first else each for each in evidence.stored()]
    (copied / FILES[2]).write_bytes(with_exchanges(evidence, stored).to_bytes())
    assert "its reply is of run" in findings_of(copied)


def test_replies_of_another_training_are_detected(copied):
    other = adapted(mock())
    other.save(copied / "other.safetensors")
    shutil.copy(copied / "other.evidence", copied / FILES[2])
    assert "ledger's key" in findings_of(copied)


def test_an_unlisted_release_is_detected(copied):
    listed = json.loads((copied / FILES[1]).read_text())["releases"]
    certify_again(copied, changes={"releases": listed[:-1]})
    assert f"run {listed[-1]['run']} was charged, and the certificate does not list it" in findings_of(copied)


def test_another_source_is_detected(delivered, copied):
    assert "the source is another one" in findings_of(delivered, rows(600, 7))
    assert "the source is another one" in findings_of(delivered, (SOURCE[0].flip(0), SOURCE[1].flip(0)))


def test_another_epsilon_or_gain_is_detected(copied):
    privacy = json.loads((copied / FILES[1]).read_text())["privacy"]
    certify_again(copied, changes={"privacy": privacy | {"epsilon": 0.1}})
    assert "says otherwise than its evidence: privacy" in findings_of(copied)
    certify_again(copied, changes={"gain": "12 points"})
    assert "the gain is not the one" in findings_of(copied)


def test_another_team_model_is_detected(copied):
    evidence = Evidence.from_bytes((copied / FILES[2]).read_bytes())
    weights = {name: 1.01 * tensor for name, tensor in evidence.weights.items()}
    own = Evidence(evidence.graphs, weights, evidence.settings, evidence.source, evidence.replies)
    certify_again(copied, evidence=own)
    assert "was declared with another weights_digest" in findings_of(copied)


def test_on_another_machine_it_says_what_differs(copied, monkeypatch):
    software = json.loads((copied / FILES[1]).read_text())["software"]
    tensors = load((copied / FILES[0]).read_bytes())
    tensors["classifier.bias"][0] += 1e-6
    certify_again(copied, tensors=tensors, changes={"software": software | {"torch": "2.7.0", "threads": "8"}})
    text = findings_of(copied)
    assert "here is torch" in text
    assert "threads 1 (8 there)" in text
    assert "100.00% of the predictions on the source are equal" in text


@settings(max_examples=tried(150), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_no_random_change_passes(delivered, tmp_path_factory, data):
    folder = tmp_path_factory.getbasetemp() / "changed"
    shutil.copytree(delivered, folder, dirs_exist_ok=True)
    file = folder / data.draw(st.sampled_from(FILES))
    content = bytearray(file.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(content) - 1))
        content[place] ^= data.draw(st.integers(1, 255))
    if bytes(content) == file.read_bytes():
        return
    file.write_bytes(content)
    try:
        assert check(folder / FILES[0], key=key_of(folder)).findings
    except DataInvalid:
        return


def test_a_key_of_another_ledger_is_detected(delivered):
    other = Ed25519PrivateKey.generate().public_key().public_bytes_raw()
    assert "another ledger's key" in check(delivered / FILES[0], key=other).findings[0].text


def test_passes_of_a_loader_begin_alike_and_threads_are_given_back():
    shuffled = torch.Generator().manual_seed(3)
    passes = SamePasses(DataLoader(TensorDataset(*SOURCE), batch_size=50, shuffle=True, generator=shuffled), 3)
    first, second = evidences.digest_of(passes, seed=0), evidences.digest_of(passes, seed=0)
    assert first == second
    assert len(passes) == 12
    with one_thread():
        assert torch.get_num_threads() == 1


def test_the_client_verifies_a_model_by_files_alone(copied):
    records, labels = (part.numpy() for part in SOURCE)
    np.savez(copied / "source.npz", x=records, y=labels)
    code = (
        "from torch import nn\n"
        f"def own():\n    body = nn.Sequential(nn.Linear({COLUMNS}, 8), nn.BatchNorm1d(8), nn.ReLU()).eval()\n"
        f"    return body, nn.Linear(8, {CLASSES}).eval()\n"
    )
    (copied / "own.py").write_text(code)
    path, more = str(copied / FILES[0]), ["--source", str(copied / "source.npz"), "--network", f"{copied}/own.py:own"]
    result = CliRunner().invoke(main, ["check", path, *more])
    assert result.exit_code == 0, result.output
    assert "derived again, bit for bit" in result.output
    assert "not derived again" in CliRunner().invoke(main, ["check", path]).output
    np.savez(copied / "source.npz", x=records + 1, y=labels)
    assert CliRunner().invoke(main, ["check", path, *more]).exit_code == 13


def test_lines_that_a_crash_cut_short_are_left_out(delivered):
    evidence = Evidence.from_bytes((delivered / FILES[2]).read_bytes())
    assert read_exchanges(evidence.replies[:-3]) == evidence.stored()[:-1]


def test_a_model_file_has_one_spelling(delivered):
    data = (delivered / FILES[0]).read_bytes()
    assert in_one_spelling(data) == data
    model = load_adapted(delivered / FILES[0], device="cpu")
    assert model.classes == CLASSES
    assert model.predict(np.zeros((2, *model.record_shape), dtype=np.float32)).shape == (2,)
