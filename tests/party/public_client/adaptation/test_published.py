"""A release that is a file: verified before anything is read of it, trained from offline, never another run."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st
from published_site import CLIENT, METHOD, Site, changed, network, source, with_parameters
from torch import nn

from dpswd import DomainAdaptation, Federation, PublishedHospital, Replay, Rows, Statistics
from dpswd.public_client.cli.main import main
from dpswd.public_client.curator.release_file import ReleaseFile
from dpswd.public_client.data.datasets import Labelled
from dpswd.public_client.data.source import source_loader
from dpswd.public_client.experiments.connect import published
from dpswd.public_client.experiments.file import read_experiment
from dpswd.public_client.plans.declarable import Declarable
from dpswd.shared.core import errors
from dpswd.shared.core.wire.messages import RunParameters
from dpswd.shared.core.wire.v1 import curator_pb2 as pb
from dpswd.shared.files import write_private
from dpswd.shared.protocol.publications import PUBLICATION, Publication

GUIDE = Path(__file__).resolve().parents[4] / "docs" / "ml-team" / "guide.md"


@pytest.fixture(scope="module")
def sites(tmp_path_factory):
    """Two hospitals that published releases prepared with one extractor; the first published two."""
    directory = tmp_path_factory.mktemp("published")
    north, south = Site(directory / "north"), Site(directory / "south", shift=0.6)
    return north, south, north.published(), south.published()


@pytest.fixture(scope="module")
def made(sites):
    return Publication.read(sites[2])


def loader():
    return source_loader(Labelled(*source()), batch_size=50, seed=0)


def trained(hospital, plan) -> DomainAdaptation:
    extractor, classifier = network()
    model = DomainAdaptation(extractor, classifier, hospital=hospital, plan=plan, device="cpu", source_epochs=0)
    return model.fit(loader(), progress=False)


# -- verifying --------------------------------------------------------------------------------------------------------


def test_what_was_published_verifies_under_its_hospitals_key_alone(sites, made):
    north, south = sites[:2]
    assert made.problems(north.key) == []
    assert any("another ledger's key" in text for text in made.problems(south.key))
    assert any("not signed" in text for text in made.problems(south.key))
    with pytest.raises(errors.ProtocolError, match="does not verify"):
        PublishedHospital.read(sites[2], key=south.key_file)


@given(place=st.floats(0.0, 1.0, exclude_max=True), flip=st.integers(1, 255))
def test_no_byte_can_be_changed(sites, made, place, flip):
    data = bytearray(made.to_file())
    data[int(place * len(data))] ^= flip
    try:
        read = Publication.from_file(bytes(data))
    except errors.InvalidValue:
        return
    assert read.problems(sites[0].key)


@given(cut=st.integers(1, 400))
def test_no_end_can_be_cut_off_or_put_on(sites, made, cut):
    for data in (made.to_file()[:-cut], made.to_file() + b"\0" * cut):
        try:
            read = Publication.from_file(data)
        except errors.InvalidValue:
            continue
        assert read.problems(sites[0].key)


def test_not_even_the_hospital_can_sign_parts_that_do_not_belong_together(sites, made):
    """Each part is bound to the receipts by a digest: under the right key too, nothing can be exchanged."""
    north, other = sites[0], Publication.read(sites[3])
    own = made.proposal
    sign = north.home.read_ledger_key().sign
    forged = {
        "the receipt of the charge": changed(made, proposal=with_parameters(own, batch_size=7).to_message()),
        "the receipt of the answer": changed(made, proposal=replace(own, payload=b"\x0a\x00").to_message()),
        "its reply's SHA-256": changed(made, step=pb.DrawStepResponse(
            step_release=replace(made.release, payload=b"x").to_bytes(), receipt=made.message.step.receipt
        )),
        "its signature": changed(made, step=other.message.step, run=other.message.run),
        "its request id": changed(made, step_request_id=made.message.run_request_id, run_request_id="x"),
        "it is not whole": changed(made, proposal=pb.Proposal()),
    }  # fmt: skip
    for words, message in forged.items():
        problems = "; ".join(Publication.signed(message, sign=sign).problems(north.key))
        assert words in problems or "no receipt" in problems or "is not whole" in problems, (words, problems)
    assert Publication.signed(made.message, sign=sign).problems(north.key) == []
    stranger = Publication.signed(made.message, sign=Ed25519PrivateKey.generate().sign)
    assert stranger.problems(north.key) == ["it is not signed by the ledger's key, or was changed afterwards"]


def test_verify_tells_what_it_is_and_what_is_wrong(sites, made, tmp_path):
    north, south, path, _ = sites
    result = CliRunner().invoke(main, ["check", str(path), "--key", str(north.key_file)])
    assert result.exit_code == 0, result.output
    assert result.output.startswith("all of it verifies\n")
    assert "one release of all 120 records of 'north', epsilon" in result.output
    assert "published for: the spring study" in result.output
    assert "2 receipts: 1 runs charged, 1 steps answered" in result.output
    with north.home.open_ledger() as books:
        (tmp_path / "whole.jsonl").write_text("".join(f"{line}\n" for line in books.export()))
    against = ["--ledger", str(tmp_path / "whole.jsonl")]
    assert CliRunner().invoke(main, ["check", str(path), "--key", str(north.key_file), *against]).exit_code == 0
    write_private(tmp_path / "alone", made.to_file())  # no key lies beside it
    wrong = CliRunner().invoke(main, ["check", str(tmp_path / "alone"), "--key", str(south.key_file)])
    assert wrong.exit_code == 13
    assert " FINDINGS; keep every file and tell the operator" in wrong.output.splitlines()[0]
    assert "it is not signed by the ledger's key" in wrong.output
    write_private(tmp_path / "cut", made.to_file()[:200])  # in the middle of its first field
    broken = CliRunner().invoke(main, ["check", str(tmp_path / "cut"), "--key", str(north.key_file)])
    assert broken.exit_code == 4
    assert "is no publication" in broken.output


# -- training ---------------------------------------------------------------------------------------------------------


def test_one_file_trains_a_model_and_nothing_is_charged(sites):
    north, _, path, _ = sites
    before = north.spent()
    hospital = PublishedHospital.read(path, key=north.key_file)
    plan = hospital.plan(METHOD)
    assert plan.epsilon == Publication.read(path).message.run.epsilon
    model = trained(hospital, plan)
    (report,) = model.reports
    assert (report["state"], report["steps"], report["charged_epsilon"]) == ("finished", 1, plan.epsilon)
    assert model.predict(source()[0]).shape == (300,)
    assert north.spent() == before
    # The map and the receipts are the hospital's, whatever this training's source would have made.
    (site,) = model.sites.values()
    assert site.run.run.parameters == hospital.release.proposal.parameters


def test_files_of_several_hospitals_train_together(sites, tmp_path):
    north, south, one, two = sites
    hospitals = Federation(
        {
            "north": PublishedHospital.read(one, key=north.key_file, run_directory=tmp_path / "north"),
            "south": PublishedHospital.read(two, key=south.key_file, run_directory=tmp_path / "south"),
        }
    )
    model = trained(hospitals, hospitals.plan(METHOD, epsilon=1.0))
    assert [(report["site"], report["state"]) for report in model.reports] == [
        ("north", "finished"),
        ("south", "finished"),
    ]
    for name, site in (("north", north), ("south", south)):
        result = CliRunner().invoke(main, ["check", str(tmp_path / name), "--key", str(site.key_file)])
        assert result.exit_code == 0, result.output


def test_a_release_of_labelled_statistics_trains_a_head(tmp_path):
    """Another mechanism of one step: the same file, and hospitals whose maps are one map add up."""
    method = Statistics(moments="no")
    north, south = (
        Site(tmp_path / name, shift=shift, labelled=True, unknown=unknown, epsilon=9.0)
        for name, shift, unknown in (("north", 0.2, 0), ("south", 0.3, 12))
    )
    files = [site.published(method=method, epsilon=8.0) for site in (north, south)]
    hospitals = {
        name: PublishedHospital.read(path, key=site.key_file)
        for name, path, site in zip(("north", "south"), files, (north, south), strict=True)
    }
    records, labels = source()
    alone = trained(hospitals["north"], hospitals["north"].plan(method))
    assert (alone.predict(records + 0.2) == labels).float().mean() > 0.55  # by chance 0.33
    both = Federation(hospitals)
    plans = both.plan(method, epsilon=8.0)
    assert [plan.partly_labelled for plan in plans.values()] == [False, True]
    together = trained(both, plans)
    assert [report["state"] for report in together.reports] == ["finished", "finished"]
    assert north.spent()[1] == south.spent()[1] == 1


def test_a_loop_of_ones_own_reads_the_same_release_again_and_again(sites):
    hospital = PublishedHospital.read(sites[2], key=sites[0].key_file)
    extractor, _ = network()
    values = []
    for _ in range(2):
        with hospital.open(hospital.plan(METHOD), extractor) as run:
            values.append(run.draw().reply.to_bytes())
    assert values[0] == values[1]


def test_whoever_has_the_file_has_the_extractor(sites):
    hospital = PublishedHospital.read(sites[2], key=sites[0].key_file)
    torch.manual_seed(99)
    fresh = nn.Sequential(nn.Linear(6, 5), nn.ReLU())
    hospital.load_extractor(fresh)
    assert Declarable.of(fresh, (6,)).weights == hospital.release.proposal.weights
    with pytest.raises(errors.InvalidValue, match="has other layers"):
        hospital.load_extractor(nn.Sequential(nn.Linear(6, 4), nn.ReLU()))


def test_the_guides_lines_run(tmp_path, monkeypatch):
    site = Site(tmp_path / "page")
    site.publish(site.proposal(replace(Replay(), tuning_steps=30)), tmp_path / "spring.dpswd")
    shutil.copy(site.key_file, tmp_path / "ledger.pub")
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    (code,) = (block for block in blocks if "PublishedHospital" in block)
    extractor, classifier = network()
    names = {"extractor": extractor, "classifier": classifier, "source_loader": loader()}
    exec(compile(code, str(GUIDE), "exec"), names)
    assert names["model"].reports[0]["state"] == "finished"


# -- refusing ---------------------------------------------------------------------------------------------------------


def test_another_plan_is_refused_in_words(sites):
    hospital = PublishedHospital.read(sites[2], key=sites[0].key_file)
    with pytest.raises(errors.InvalidValue, match="prepared with other settings"):
        hospital.plan(replace(METHOD, coefficients=2))
    with pytest.raises(errors.InvalidValue, match="a release of 'quantiles' that was prepared with other settings"):
        hospital.plan(Rows())
    with pytest.raises(errors.InvalidValue, match=r"steps is 4; .* holds one release with steps 1"):
        hospital.plan(METHOD, steps=4)
    with pytest.raises(errors.InvalidValue, match="batch_size is 60"):
        hospital.plan(METHOD, batch_size=60)
    with pytest.raises(errors.InvalidValue, match="other settings"):
        hospital.plan(Replay())


def test_another_extractor_is_refused_in_words(sites):
    hospital = PublishedHospital.read(sites[2], key=sites[0].key_file)
    plan = hospital.plan(METHOD)
    torch.manual_seed(6)
    other = nn.Sequential(nn.Linear(6, 5), nn.ReLU()).eval()
    with pytest.raises(errors.RequestInvalid, match=r"weights: is not that of the extractor .*load_extractor"):
        DomainAdaptation(other, nn.Linear(5, 3), hospital=hospital, plan=plan, source_epochs=0).fit(
            loader(), progress=False
        )


def test_the_transport_answers_what_was_asked_and_nothing_else(sites, made):
    release = ReleaseFile(sites[2], key=sites[0].key)
    prepared: RunParameters = release.proposal.parameters

    def opened(**fields):
        asked = pb.OpenRunRequest(parameters=replace(prepared, **fields).to_message())
        return release.exchange("OpenRun", asked)

    assert opened().reply.run_id == made.message.run.run_id
    assert opened().request.request_id == made.message.run_request_id
    for fields in ({"steps": 2}, {"batch_size": 60}, {"mechanism": "rows"}, {"weights_digest": "0" * 64}):
        with pytest.raises(errors.RequestInvalid, match=f"differs in {next(iter(fields))}"):
            opened(**fields)
    run_id = made.message.run.run_id
    for step in (pb.DrawStepRequest(run_id="other"), pb.DrawStepRequest(run_id=run_id, payload=b"\x0a\x00")):
        with pytest.raises(errors.RequestInvalid, match="holds the answer to one request, and this is another"):
            release.exchange("DrawStep", step)
    assert release.exchange("DrawStep", pb.DrawStepRequest(run_id=run_id)).reply == made.message.step


def test_the_description_says_nothing_of_what_others_spent(sites, made):
    description = made.message.description
    for budget in (description.data_set_budget, description.client_budget, made.message.run.data_set_budget):
        assert (budget.epsilon, budget.epsilon_spent, budget.epsilon_remaining) == (made.message.run.epsilon,) * 2 + (
            0,
        )
    assert description.client_name == CLIENT


def test_the_command_line_wants_a_key_for_each_release_and_no_curator_beside(sites):
    path, key = str(sites[2]), str(sites[0].key_file)
    result = CliRunner().invoke(main, ["train", "--release", path])
    assert (result.exit_code, "--release is given 1 times and --key 0 times" in result.output) == (3, True)
    result = CliRunner().invoke(main, ["train", "--release", path, "--key", key, "--dry-run"])
    assert (result.exit_code, "releases are trained from by themselves" in result.output) == (3, True)
    result = CliRunner().invoke(main, ["train", "--release", path, "--key", key, "--method", "coral"])
    assert (result.exit_code, "there is no method 'coral'" in result.output) == (9, True)
    with pytest.raises(errors.SettingsError, match="each must be given once"):
        read_experiment(None, {"releases": [{"file": "a", "key": "k", "name": "x"}] * 2})


def test_releases_of_different_extractors_are_not_mixed(sites, tmp_path):
    north, south, one, _ = sites
    south.publish(south.proposal(extractor=nn.Sequential(nn.Linear(6, 5), nn.ReLU()).eval()), tmp_path / "two")
    keys = {"north": north.key_file, "south": south.key_file}
    groups = [{"name": n, "file": f, "key": keys[n]} for n, f in (("north", one), ("south", tmp_path / "two"))]
    with pytest.raises(errors.SettingsError, match="the release of south was made with another extractor"):
        published(read_experiment(None, {"releases": groups}))


def test_the_format_is_its_first_line(made):
    assert made.to_file().startswith(PUBLICATION)
    assert PUBLICATION == b"dpswd-publication-1\n"
