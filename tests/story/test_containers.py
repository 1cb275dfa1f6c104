"""Both sites in containers on a real Docker engine: docker-compose.yml as a user starts it, then what can go wrong.

The engine is DPSWD_DOCKER_HOST's or DOCKER_HOST's if one answers there, else one of our own (root; Debian's docker.io).
"""

from __future__ import annotations

import json
import re
import sys
import time
from pathlib import Path

import httpx
import pytest

sys.path.insert(0, str(Path(__file__).parent))  # under importlib mode a test directory is no package

from two_sites import CONNECT, CURATOR, LEAST_RIGHT, STEPS, TRAIN, TRAINING_S, finish, percentage, wait

from dpswd.public_client.data.datasets import load_task
from dpswd.public_client.training.saved_model import load_adapted

pytestmark = [
    pytest.mark.containers,
    pytest.mark.timeout(1800),
]


@pytest.fixture(scope="module")
def more_budget(sites):
    """The operator extends the budget, as further studies would ask for."""
    sites.leave(6)
    return sites


def test_the_story_goes_to_its_end(sites):
    team = sites.words("client")
    assert "known here as 'ml-team'" in team  # describe
    assert "Recommended for digits: the ladder, because" in team  # plan
    spent = float(re.findall(r"data set +([0-9.]+) spent", team)[-1])  # train
    assert 0.1 < spent <= 1.01
    assert percentage(sites.words("hospital-trial")) > LEAST_RIGHT
    assert "The ledger verifies" in sites.story
    assert sites.after_story["epsilon_spent"] == pytest.approx(spent, abs=1e-3)


def test_a_request_beyond_the_budget_is_refused_as_the_user_sees_it(sites):
    team = sites.words("client")
    assert "the data set's privacy budget does not allow this run: it would cost epsilon" in team
    assert re.search(r"spent so far [0-9.]+, left [0-9.]+", team)
    assert "exit code 8" in team
    assert 1 <= sites.after_story["runs"] <= 4  # rungs of the one training: nothing was charged for the refused one
    assert sites.after_story["epsilon_spent"] <= 1.0


@pytest.mark.parametrize(
    "delivered",
    [
        pytest.param(True, id="after the story"),
        # The training is resumed from its checkpoint, and the release replayed once more, which takes its time.
        pytest.param(False, id="as after Ctrl-C before the delivery", marks=pytest.mark.exhaustive),
    ],
)
def test_a_second_up_on_the_same_volumes_goes_on_and_charges_nothing(sites, delivered):
    before = sites.budget()
    if not delivered:
        volumes = {sites.name("delivery"): {"bind": "/delivery", "mode": "rw"}}
        finish(sites.team("-c 'rm /delivery/adapted.safetensors'", entrypoint="sh", volumes=volumes))
    report = sites.tell("hospital-report")
    assert "The ledger verifies" in report
    assert percentage(sites.words("hospital-trial")) > LEAST_RIGHT
    after = sites.budget()
    for figure in ("runs", "steps_used", "epsilon_spent"):
        assert after[figure] == before[figure]


def test_the_hospitals_labels_teach_a_model_for_the_teams_own_records(more_budget, tmp_path):
    """Optimal transport (dpda): one release of class statistics, then the story's own digits, 30 of them with a label.

    Over eight releases on the mock curator 67.2 +- 2.4 percent were right, where chance is 10: a false alarm is
    seven deviations away.
    """
    words = "--epsilon 2 --method dpda --set data.labelled=30 --set method.settings.points=20"
    words += " --set method.settings.updates=200 --save own.safetensors --format json"
    training = more_budget.team(f"train {CONNECT} {words}")
    model = tmp_path / "own.safetensors"
    output = finish(training, handed={"/var/lib/dpswd/own.safetensors": model})
    (site,) = json.loads(output[output.index("{") :])["runs"][0]["sites"]
    assert (site["state"], site["steps"]) == ("finished", 1)
    assert 1.9 < site["charged_epsilon"] <= 2.0
    own = load_task("digits").source
    right = load_adapted(model, device="cpu").predict(own.images) == own.labels
    assert 100.0 * float(right.double().mean()) > LEAST_RIGHT


def test_a_curator_that_is_killed_in_mid_run_goes_on_where_it_was(more_budget):
    sites = more_budget
    curator, used, answered = sites.container("curator"), sites.budget()["steps_used"], sites.answers
    training = sites.team(TRAIN)
    wait("a few steps", lambda: sites.answers >= answered + 3)
    curator.kill("SIGKILL")
    curator.reload()
    assert curator.status == "exited"
    assert sites.answers < answered + STEPS, "the run was over before the curator was killed"
    curator.start()
    finish(training)
    # Every step was charged once: a repeated request is no new step.
    assert sites.budget()["steps_used"] == used + STEPS
    assert json.loads(sites.operator("ledger", "verify", "--format", "json"))["ok"]


@pytest.mark.exhaustive
def test_a_network_that_is_cut_and_healed_costs_nothing_but_time(more_budget):
    sites = more_budget
    wait("a healthy curator", lambda: sites.health() == "healthy")
    used, answered = sites.budget()["steps_used"], sites.answers
    training = sites.team(TRAIN)
    wait("a few steps", lambda: sites.answers >= answered + 3)
    crossing = sites.docker.networks.get(sites.name("crossing"))
    crossing.disconnect(training, force=True)
    cut, deadline = -1, time.monotonic() + 60.0
    while cut != sites.answers and time.monotonic() < deadline:  # what was on its way arrives
        cut = sites.answers
        time.sleep(2.0)
    assert sites.answers == cut < answered + STEPS
    crossing.connect(training)
    finish(training)
    assert sites.budget()["steps_used"] == used + STEPS


def test_the_health_check_asks_the_running_curator(sites):
    curator = sites.container("curator")
    assert curator.exec_run(["dpswd-curator-health"]).output.decode().strip() == "SERVING"
    issued = curator.exec_run(["ls", "certificates/issued"]).output.decode().split()
    clients = json.loads(sites.operator("clients", "--format", "json"))
    assert len(issued) <= len(clients), "the check leaves certificates behind"
    lonely = sites.docker.containers.run(
        CURATOR, [], entrypoint=["dpswd-curator-health"], detach=True, network_mode="none", read_only=True
    )
    assert lonely.wait(timeout=60)["StatusCode"] == 1
    lonely.remove()


def test_the_console_shows_the_story_on_the_loopback_and_is_on_no_network(sites):
    up = sites.compose("up", "--detach", "--no-deps", "hospital-console", "hospital-console-door")
    assert up.returncode == 0, up.stderr
    wait("an address to sign in at", lambda: "token=" in sites.words("hospital-console"))
    console = f"http://127.0.0.1:{sites.console_port}"
    once = re.findall(rf"sign in once at {console}/sign-in\?token=(\S+)", sites.words("hospital-console"))[-1]
    with httpx.Client(base_url=console, headers={"Origin": console}, timeout=30) as browser:
        wait("the door", lambda: _answers(browser))
        assert browser.get("/").status_code == 303
        assert browser.post("/sign-in", data={"token": once}).status_code == 303
        shown = re.sub(r"<p class=.hint.>.*?</p>", "", browser.get("/").text)
        assert f">{sites.budget()['runs']}</dd>" in shown
        assert "ml-team" in browser.get("/clients").text
        assert "BUDGET_EXHAUSTED" in browser.get("/history?kind=refusal").text
        assert browser.get("/", headers={"Host": "evil.example"}).status_code == 421
    private, door = sites.container("hospital-console").attrs, sites.container("hospital-console-door").attrs
    assert private["HostConfig"]["NetworkMode"] == "none"
    assert [mount["Name"] for mount in door["Mounts"]] == [sites.name("hospital-console")]
    assert [port["HostIp"] for port in door["HostConfig"]["PortBindings"]["8466/tcp"]] == ["127.0.0.1"]
    for attributes in (private, door):
        assert attributes["Config"]["User"] == "10001:10001"
        assert attributes["HostConfig"]["ReadonlyRootfs"]
        assert attributes["HostConfig"]["CapDrop"] == ["ALL"]


def _answers(browser: httpx.Client) -> bool:
    try:
        return browser.get("/sign-in").status_code == 200
    except httpx.TransportError:
        return False


@pytest.mark.exhaustive  # make test has the same over processes and sockets: test_curator_process.py
def test_a_certificate_of_another_authority_is_refused(sites):
    """The team's own key and the right authority, but a certificate that another hospital's operator signed."""
    script = (
        'mkdir -p /tmp/other && cd /tmp && python -c \'import numpy; numpy.save("r.npy", numpy.zeros((9, 2), "f4"))\' '
        "&& dpswd-curator init --home /tmp/other/home --records /tmp/r.npy --epsilon 1 --delta 1e-5 >/dev/null "
        "&& dpswd-curator add ml-team --home /tmp/other/home --out /tmp/other/issued >/dev/null "
        "&& cp /var/lib/dpswd/credentials/ca.crt /tmp/other/issued/ "
        "&& python -c 'from pathlib import Path; from dpswd.public_client.curator.stub import Curator; "
        'Curator.connect("curator:50051", credentials=Path("/tmp/other/issued"), patience_s=2)\''
    )
    stranger = sites.team(f"-euc '{_quoted(script)}'", entrypoint="sh")
    status = stranger.wait(timeout=TRAINING_S)["StatusCode"]
    words = stranger.logs().decode()
    stranger.remove()
    assert status != 0, words
    assert re.search(r"CuratorUnavailable|CredentialsInvalid", words), words
    # The same call with the certificate that was issued is answered, so that the refusal is the certificate's doing.
    finish(sites.team(f"describe {CONNECT}"))


def _quoted(script: str) -> str:
    return script.replace("'", "'\"'\"'")


def test_a_curator_that_is_asked_to_stop_ends_cleanly(sites):
    curator = sites.container("curator")
    lines_before = curator.logs().count(b"listening")
    begun = time.monotonic()
    curator.stop(timeout=30)
    curator.reload()
    assert curator.attrs["State"]["ExitCode"] == 0
    assert time.monotonic() - begun < 30
    curator.start()
    wait("listening again", lambda: curator.logs().count(b"listening") > lines_before)  # a check starts an interpreter
    wait("serving again", lambda: curator.exec_run(["dpswd-curator-health"]).exit_code == 0)
