"""A release as a file: made once, charged once, whatever happens in between; and what is refused before a charge."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from declarations import gradient, quantiles, rows
from hospital import NoNoise
from published_site import CLIENT, METHOD, PURPOSE, Site, network, source, with_parameters
from torch import nn

from dpswd.private_curator.cli.main import main
from dpswd.private_curator.operator.publishing import Publishing
from dpswd.public_client.curator.description import Description
from dpswd.public_client.published_methods import AllWeights, PseudoLabels
from dpswd.shared.core import errors
from dpswd.shared.core.mechanisms.evaluation.mechanism import EvaluationDeclaration
from dpswd.shared.protocol.publications import Proposal, Publication
from dpswd.shared.published_mechanisms import ALL_MECHANISMS
from dpswd.shared.published_mechanisms.clipped_sum import ClippedSum
from dpswd.shared.published_mechanisms.gradient.mechanism import GradientRequest

ROOT = Path(__file__).resolve().parents[4]
QUANTILES = ALL_MECHANISMS["quantiles"]
STOPS = Path(__file__).with_name("publish_with_stops.py")


@pytest.fixture
def site(tmp_path):
    return Site(tmp_path / "north")


def write(site: Site, proposal: Proposal) -> Path:
    path = site.directory / "proposal.dpswd"
    path.write_bytes(proposal.to_file())
    return path


def publish(site: Site, *arguments: object, typed: str = ""):
    words = ["publish", site.directory / "proposal.dpswd", "--home", site.home.path, "--client", CLIENT, *arguments]
    return CliRunner().invoke(main, [*map(str, words), "--purpose", PURPOSE], input=typed)


def test_a_client_with_a_share_sees_what_it_adds_to_that_and_what_is_left_of_it(site):
    write(site, site.proposal())
    words = ["clients", CLIENT, "--home", site.home.path, "--share", "1.2", "--reason", "spring study"]
    assert CliRunner().invoke(main, [*map(str, words)]).exit_code == 0
    shown = publish(site, "--out", site.directory / "spring.dpswd", typed="no\n").output
    assert re.search(rf"adds to {CLIENT}'s share +0\.8\d+", shown)
    assert re.search(rf"left to {CLIENT} now +1\.2000", shown)


def test_it_shows_charges_and_writes_once(site):
    write(site, site.proposal())
    out = site.directory / "spring.dpswd"
    shown = publish(site, "--out", out, typed="no\n")
    assert shown.exit_code == 1
    assert "sliced quantile coefficients (3 in each of 8 directions), of all 120 records" in shown.output
    assert re.search(rf"left to {CLIENT} now +3\.0000", shown.output)
    assert "share" not in shown.output
    assert not out.exists()
    assert site.spent() == (0.0, 0)

    assert publish(site, "--out", out, typed="publish\n").exit_code == 0
    made = Publication.read(out)
    assert made.problems(site.key) == []
    epsilon, runs = site.spent()
    assert runs == 1
    assert 0.9 < epsilon <= 1.0
    assert made.message.run.epsilon == pytest.approx(epsilon)

    again = publish(site, "--out", site.directory / "copy.dpswd", "--yes", "--format", "json")
    assert '"charged_now": false' in again.output
    assert (site.directory / "copy.dpswd").read_bytes() == out.read_bytes()
    assert "is there already" in publish(site, "--out", out, "--yes").output
    assert site.spent() == (epsilon, 1)


def test_the_price_is_that_of_one_run_and_what_the_team_expected(site):
    proposal = site.proposal()
    with site.server() as server:
        preview = Publishing(site.home, proposal, CLIENT).preview(server.ready())
    assert preview.epsilon == pytest.approx(preview.expected) == pytest.approx(proposal.epsilon)
    assert preview.fits
    assert (preview.records, preview.spent, preview.remaining) == (120, 0.0, 3.0)


def test_nothing_is_overwritten_and_a_purpose_stands(site):
    proposal = site.proposal()
    out = site.directory / "spring.dpswd"
    out.write_bytes(b"something else")
    with pytest.raises(errors.SettingsError, match="nothing is ever overwritten"):
        site.publish(proposal, out)
    assert site.spent()[1] == 0
    assert out.read_bytes() == b"something else"
    assert site.publish(proposal, site.directory / "new.dpswd")
    with pytest.raises(errors.SettingsError, match="published for the purpose 'the spring study'"):
        site.publish(proposal, site.directory / "third.dpswd", purpose="another")
    with pytest.raises(errors.SettingsError, match="is no folder"):
        site.publish(proposal, site.directory / "nowhere" / "third.dpswd")


def test_what_is_no_whole_step_is_refused_in_words(site, tmp_path):
    proposal = site.proposal()
    with pytest.raises(errors.DataInvalid, match=r"parameters.steps: is 3; a publication is one step"):
        Proposal.read(write(site, with_parameters(proposal, steps=3)))
    with pytest.raises(errors.RequestInvalid, match="is 60; a publication is of all 120 records"):
        site.publish(with_parameters(proposal, batch_size=60), tmp_path / "out")
    with pytest.raises(errors.DataInvalid, match="weights: is another one than the declaration names"):
        Proposal.read(write(site, replace(proposal, weights=proposal.weights + b" ")))
    with pytest.raises(errors.DataInvalid, match="does not begin with dpswd-proposal-1"):
        Proposal.read(site.home.ledger)
    with pytest.raises(errors.GrantNotHeld, match="no client named 'autumn'"):
        site.publish(proposal, tmp_path / "out", client="autumn")
    with pytest.raises(errors.InvalidValue, match="is one release; prepare with replay"):
        site.proposal(AllWeights())
    with pytest.raises(errors.InvalidValue, match="which proposals and published releases do not carry"):
        site.proposal(PseudoLabels())
    assert site.spent() == (0.0, 0)
    assert not (tmp_path / "out").exists()


def test_the_operators_list_and_budget_hold(tmp_path):
    listed = Site(tmp_path / "listed", approval="listed")
    proposal = listed.proposal()
    with pytest.raises(errors.ExtractorNotApproved, match=proposal.parameters.graph_digest):
        listed.publish(proposal, tmp_path / "out")
    with listed.home.open_ledger() as books:
        books.approve_extractor(proposal.parameters.graph_digest)
    assert listed.publish(proposal, tmp_path / "out")

    poor = Site(tmp_path / "poor", epsilon=0.5)
    with pytest.raises(errors.BudgetExhausted):
        poor.publish(listed.proposal(epsilon=2.0), tmp_path / "never")
    assert poor.spent() == (0.0, 0)
    assert not (tmp_path / "never").exists()


SLICED = quantiles(2, 3.0, directions=4)
ONE_STEP = {
    "rows": (rows(30.0, directions=4), b""),
    "gradient": (gradient(SLICED, ClippedSum(("0.bias",), 0.5, 8.0)), GradientRequest(source(20)[0][:, :5].numpy())),
}


@pytest.mark.parametrize("name", ONE_STEP)
def test_any_mechanism_is_published_by_its_own_bytes(site, tmp_path, name):
    """The hospital knows no mechanism by name: what a step brings stands in the proposal."""
    (mechanism, declared), payload = ONE_STEP[name]
    module = nn.Sequential(nn.Linear(6, 5), nn.ReLU()).eval()
    base = site.proposal(extractor=module)
    declared = replace(
        with_parameters(base, mechanism=mechanism, declaration=declared.to_bytes()),
        payload=payload if isinstance(payload, bytes) else payload.to_bytes(),
    )
    assert site.publish(declared, tmp_path / "out")
    made = Publication.read(tmp_path / "out")
    assert made.problems(site.key) == []
    ALL_MECHANISMS[name].reply.from_bytes(made.release.payload)
    assert site.spent()[0] == pytest.approx(made.message.run.epsilon)


def test_what_needs_labels_is_refused_where_there_are_none(site, tmp_path):
    declared = EvaluationDeclaration(classes=3, bins=0, correct_sigma=5.0)
    asked = with_parameters(site.proposal(), mechanism="evaluation", declaration=declared.to_bytes())
    with pytest.raises(errors.RequestInvalid, match="'evaluation' is not offered"):
        site.publish(asked, tmp_path / "out")


def test_the_operators_description_is_what_a_client_would_receive(site):
    shown = site.description()
    assert (shown.records, shown.record_shape, shown.data_set, shown.client_name) == (120, (6,), "north", CLIENT)
    assert (shown.remaining, shown.data_set_budget.delta, shown.ledger_public_key) == (3.0, 1e-5, site.key.hex())
    out = site.directory / "hospital.json"
    words = ["describe", "--home", site.home.path, "--client", CLIENT, "--out", out]
    assert CliRunner().invoke(main, [*map(str, words)]).exit_code == 0
    assert Description.from_json(json.loads(out.read_text())) == shown
    assert "nothing is ever overwritten" in CliRunner().invoke(main, [*map(str, words)]).output
    words[4] = "autumn"
    assert "`dpswd-curator add` registers one" in CliRunner().invoke(main, [*map(str, words[:5])]).output


def test_another_proposal_is_another_charge(site, tmp_path):
    assert site.publish(site.proposal(), tmp_path / "one")
    other = nn.Sequential(nn.Linear(6, 5), nn.ReLU())
    assert site.publish(site.proposal(extractor=other.eval()), tmp_path / "two")
    assert site.spent()[1] == 2


def test_a_curator_that_serves_is_not_disturbed(site, tmp_path):
    proposal = site.proposal()
    with site.server() as serving:
        serving.ready()
        with pytest.raises(errors.LedgerUnavailable):
            site.publish(proposal, tmp_path / "out")
    assert site.publish(proposal, tmp_path / "out")


def test_a_damaged_copy_is_made_again_from_the_ledger(site, tmp_path):
    proposal = site.proposal()
    site.publish(proposal, tmp_path / "first")
    (copy,) = site.home.publications.iterdir()
    copy.write_bytes(copy.read_bytes()[:-1] + b"?")
    assert not site.publish(proposal, tmp_path / "second")
    assert (tmp_path / "second").read_bytes() == (tmp_path / "first").read_bytes()
    assert site.spent()[1] == 1


@pytest.mark.long
@pytest.mark.parametrize(
    ("point", "charged"),
    [
        ("open_run:written", 0),
        pytest.param("begin_step:begun", 1, marks=pytest.mark.exhaustive),
        pytest.param("sampled", 1, marks=pytest.mark.exhaustive),
        ("stored", 1),
        pytest.param("kept", 1, marks=pytest.mark.exhaustive),
    ],
)
def test_a_kill_loses_nothing_and_costs_nothing(site, tmp_path, point, charged):
    proposal = site.proposal()
    out = tmp_path / "spring.dpswd"
    program = [sys.executable, str(STOPS), str(site.home.path), str(write(site, proposal)), str(out), point]
    paths = os.pathsep.join([str(ROOT), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")])
    killed = subprocess.run(program, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()[-2000:]
    assert not out.exists()
    assert site.spent()[1] == charged
    assert site.publish(proposal, out) == (not charged)
    assert site.spent()[1] == 1
    made = Publication.read(out)
    assert made.problems(site.key) == []
    assert not site.publish(proposal, tmp_path / "again.dpswd")
    assert (tmp_path / "again.dpswd").read_bytes() == out.read_bytes()


@pytest.mark.long
def test_a_full_disk_loses_nothing_and_costs_nothing(site, tmp_path):
    wide = nn.Sequential(nn.Linear(6, 4000), nn.ReLU(), nn.Linear(4000, 5))  # 200 kB, more than the disk below
    proposal = site.proposal(METHOD, extractor=wide.eval())
    small = tmp_path / "small"
    small.mkdir()
    words = [write(site, proposal), "--home", site.home.path, "--client", CLIENT, "--purpose", PURPOSE, "--yes"]
    command = [sys.executable, "-m", "dpswd.private_curator.cli", "publish", *words, "--out", small / "spring.dpswd"]
    # sh's first argument is the folder, the others are the command.
    namespace = ["unshare", "-rm", "sh", "-c", 'mount -t tmpfs -o size=64k none "$0" && exec "$@"', small]
    if subprocess.run([*namespace, "true"], capture_output=True, check=False).returncode:
        pytest.skip("NO FULL DISK WAS TRIED: this machine allows no mount namespace")
    full = subprocess.run([*namespace, *command], cwd=ROOT, capture_output=True, text=True, check=False)
    assert full.returncode == 3, full.stderr
    assert "cannot be written (No space left on device). Nothing is lost" in full.stderr
    assert site.spent()[1] == 1
    assert not site.publish(proposal, tmp_path / "spring.dpswd")
    assert Publication.read(tmp_path / "spring.dpswd").problems(site.key) == []
    assert site.spent()[1] == 1


def test_the_release_is_of_the_records(site, tmp_path):
    """The file holds the mechanism's answer for exactly these records, under the map and the noise that it declares."""
    out = tmp_path / "out"
    site.publish(site.proposal(epsilon=2.9), out)
    made = Publication.read(out)
    declared = QUANTILES.declaration.from_bytes(made.proposal.parameters.declaration)
    reply = QUANTILES.reply.from_bytes(made.release.payload)
    raw = network()[0](source(120)[0] + 0.2).detach()
    U = reply.directions(raw)
    exact = QUANTILES.released(declared.feature_map.clipped(raw), U, replace(declared, sigma=1e-6), NoNoise())
    noise = reply.values.to_numpy() - exact.to_numpy()
    # 24 values: one is beyond seven deviations, roundings included, in fewer than one of 1e10 runs.
    assert abs(noise).max() < 7.0 * declared.sigma
    assert abs(noise).max() > 0.1 * declared.sigma  # all 24 within a tenth: probability below 1e-26
