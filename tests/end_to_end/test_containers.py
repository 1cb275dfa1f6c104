"""Both sites in containers on a real Docker engine: docker-compose.yml as a user starts it, then what can go wrong.

The engine is DPSWD_DOCKER_HOST's or DOCKER_HOST's if one answers there, else one of our own (root; Debian's docker.io).
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import docker
import pytest

sys.path.insert(0, str(Path(__file__).parent))  # under importlib mode a test directory is no package

from engine import ROOT, NoEngine, build_images, compose_command, engine, say

pytestmark = [pytest.mark.end_to_end, pytest.mark.containers, pytest.mark.timeout(900)]

CURATOR, CLIENT = "dpswd-curator:test", "dpswd-client:test"
MAX_IMAGE_BYTES = 1.2e9
STORY_S, TRAINING_S = 420, 180
CONNECT = "--curator curator:50051 --credentials credentials"
STEPS = 40
TRAIN = f"train {CONNECT} --epsilon 1 --source-epochs 1 --parameters adapters --steps {STEPS} --batch 256"
UNIT = {"HOME": "/var/lib/dpswd", "OMP_NUM_THREADS": "1"}


@dataclass
class Sites:
    """The running project."""

    docker: docker.DockerClient
    project: str
    story: str
    seconds: float

    def container(self, service: str):
        found = self.docker.containers.list(all=True, filters={"label": self.labels(service)})
        assert found, f"the service {service} has no container"
        return found[0]

    def labels(self, service: str) -> list[str]:
        return [f"com.docker.compose.project={self.project}", f"com.docker.compose.service={service}"]

    def name(self, short: str) -> str:
        """A network's or volume's name in the engine."""
        return f"{self.project}_{short}"

    def words(self, service: str) -> str:
        return self.container(service).logs().decode()

    def operator(self, *command: str) -> str:
        """One of the operator's commands, on the hospital's files and without a network."""
        return self.docker.containers.run(
            CURATOR, list(command), remove=True, network_mode="none", read_only=True,
            volumes={self.name("hospital-home"): {"bind": "/var/lib/dpswd", "mode": "rw"}},
        ).decode()  # fmt: skip

    def team(self, command: str, *, volumes: dict | None = None, entrypoint: str | None = None):
        """One of the ML team's commands, started as the service `client` is."""
        return self.docker.containers.run(
            CLIENT, command, entrypoint=entrypoint, detach=True, network=self.name("crossing"), read_only=True,
            cap_drop=["ALL"], security_opt=["no-new-privileges:true"], tmpfs={"/tmp": "mode=1777"}, environment=UNIT,
            volumes=volumes or {self.name("team-home"): {"bind": "/var/lib/dpswd", "mode": "rw"}},
        )  # fmt: skip

    def budget(self) -> dict:
        return json.loads(self.operator("budget", "show", "--format", "json"))


@pytest.fixture(scope="module")
def address():
    try:
        with engine() as found:
            yield found
    except NoEngine as reason:
        pytest.skip(f"NO CONTAINER TEST RAN: no Docker engine here and none can be started. {reason}")


@pytest.fixture(scope="module")
def sites(address):
    build_images(address)
    project = f"dpswdtest{os.getpid()}"
    compose = [*compose_command(), "--project-name", project, "--file", str(ROOT / "docker-compose.yml")]
    environment = {**os.environ, "DOCKER_HOST": address, "DPSWD_VERSION": "test", "COMPOSE_HTTP_TIMEOUT": "300"}

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*compose, *arguments],
            env=environment,
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=STORY_S,
            check=False,
        )

    try:
        begun = time.monotonic()
        # `run` starts everything that the report depends on, in order, and ends with the report.
        told = run("run", "--rm", "hospital-report")
        seconds = time.monotonic() - begun
        say(f"story: {seconds:.0f} s")
        logs = run("logs", "--no-color").stdout
        assert told.returncode == 0, f"{told.stdout[-2000:]}\n{told.stderr[-2000:]}\n{logs[-6000:]}"
        made = Sites(docker.DockerClient(base_url=address, timeout=120), project, told.stdout, seconds)
        yield made
    finally:
        run("down", "--volumes", "--timeout", "5")


@pytest.fixture
def more_budget(sites):
    """The operator extends the budget, as a second study would ask for."""
    spent = sites.budget()["epsilon_spent"]
    sites.operator(
        "budget", "extend", "--epsilon", str(sites.budget()["epsilon"] + spent + 4), "--reason", "next study"
    )
    return sites


def _finish(container) -> str:
    """Waits for a training's end; its whole output, which must be one of success."""
    try:
        status = container.wait(timeout=TRAINING_S)["StatusCode"]
        words = container.logs().decode()
        assert status == 0, words[-3000:]
        return words
    finally:
        container.remove(force=True)


def _steps_used(sites) -> int:
    return sites.budget()["steps_used"]


def _wait(what: str, condition, *, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds:.0f} s: {what}"
        time.sleep(0.2)


def _answers_in(sites) -> int:
    return sites.words("curator").count("ReleaseQuantiles for ml-team: OK")


def test_the_story_is_told_to_its_end(sites):
    team = sites.words("client")
    assert "known here as 'ml-team'" in team  # describe
    assert "charged as a whole when training starts" in team  # plan
    spent = float(re.findall(r"epsilon +([0-9.]+) spent", team)[-1])  # train
    assert 0.9 < spent <= 1.01
    right = float(re.search(r"own records: ([0-9.]+)% right", sites.words("hospital-trial"))[1])
    # Source-only training gets 54%, chance 10%; the adapted model 82% to 96% over seeds.
    assert right > 70
    assert "The ledger verifies" in sites.story
    assert sites.budget()["epsilon_spent"] == pytest.approx(spent, abs=1e-3)


def test_a_request_beyond_the_budget_is_refused_as_the_user_sees_it(sites):
    team = sites.words("client")
    assert "the data set's privacy budget does not allow this run: it would cost epsilon" in team
    assert re.search(r"spent so far [0-9.]+, remaining [0-9.]+", team)
    assert "exit code 8" in team
    assert sites.budget()["runs"] == 1  # nothing was charged for it


def test_a_curator_that_is_killed_in_mid_run_goes_on_where_it_was(more_budget):
    sites = more_budget
    curator, used, answered = sites.container("curator"), _steps_used(sites), _answers_in(sites)
    training = sites.team(TRAIN)
    _wait("a few steps", lambda: _answers_in(sites) >= answered + 3)
    curator.kill("SIGKILL")
    curator.reload()
    assert curator.status == "exited"
    assert _answers_in(sites) < answered + STEPS, "the run was over before the curator was killed"
    curator.start()
    _finish(training)
    # Every step was charged once: a repeated request is no new step.
    assert _steps_used(sites) == used + STEPS
    assert json.loads(sites.operator("ledger", "verify", "--format", "json"))["ok"]


def test_a_network_that_is_cut_and_healed_costs_nothing_but_time(more_budget):
    sites = more_budget
    _wait("a healthy curator", lambda: _health(sites) == "healthy")
    used, answered = _steps_used(sites), _answers_in(sites)
    training = sites.team(TRAIN)
    _wait("a few steps", lambda: _answers_in(sites) >= answered + 3)
    crossing = sites.docker.networks.get(sites.name("crossing"))
    crossing.disconnect(training, force=True)
    time.sleep(1.0)  # what was on its way has arrived
    cut = _answers_in(sites)
    time.sleep(2.0)
    assert _answers_in(sites) == cut < answered + STEPS
    crossing.connect(training)
    _finish(training)
    assert _steps_used(sites) == used + STEPS


def test_the_health_check_asks_the_running_curator(sites):
    curator = sites.container("curator")
    assert curator.exec_run(["dpswd-curator-health"]).output.decode().strip() == "SERVING"
    lonely = sites.docker.containers.run(
        CURATOR, [], entrypoint=["dpswd-curator-health"], detach=True, network_mode="none", read_only=True
    )
    assert lonely.wait(timeout=60)["StatusCode"] == 1
    lonely.remove()


def test_a_certificate_of_another_authority_is_refused(sites):
    """The team's own key and the right authority, but a certificate that another hospital's operator signed."""
    script = (
        'mkdir -p /tmp/other && cd /tmp && python -c \'import numpy; numpy.save("r.npy", numpy.zeros((9, 2), "f4"))\' '
        "&& dpswd-curator init --home /tmp/other/home --records /tmp/r.npy --epsilon 1 --delta 1e-5 >/dev/null "
        "&& dpswd-curator client add ml-team --home /tmp/other/home --out /tmp/other/issued >/dev/null "
        "&& cp /var/lib/dpswd/credentials/ca.crt /tmp/other/issued/ "
        "&& python -c 'from pathlib import Path; from public_client.curator import Curator; "
        'Curator.connect("curator:50051", credentials=Path("/tmp/other/issued"), patience_s=2)\''
    )
    stranger = sites.team(f"-euc '{_quoted(script)}'", entrypoint="sh")
    status = stranger.wait(timeout=TRAINING_S)["StatusCode"]
    words = stranger.logs().decode()
    stranger.remove()
    assert status != 0, words
    assert re.search(r"CuratorUnavailable|CredentialsInvalid", words), words
    # The same call with the certificate that was issued is answered, so that the refusal is the certificate's doing.
    _finish(sites.team(f"describe {CONNECT}"))


def _quoted(script: str) -> str:
    return script.replace("'", "'\"'\"'")


def _health(sites) -> str:
    curator = sites.container("curator")
    return curator.attrs["State"]["Health"]["Status"]


_TRY = """
import socket, sys
for target in sys.argv[1:]:
    host, port = target.rsplit(":", 1)
    try:
        socket.create_connection((host, int(port)), timeout=4).close()
        print(target, "CONNECTED")
    except OSError as error:
        print(target, type(error).__name__, error.errno)
"""


def test_the_curator_reaches_nothing_outside(sites):
    team = sites.docker.networks.get(sites.name("team"))
    gateway = team.attrs["IPAM"]["Config"][0]["Gateway"]
    with socket.create_server(("0.0.0.0", 0)) as listener:
        listener.listen(16)
        port = listener.getsockname()[1]
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as route:
            route.connect(("198.51.100.1", 9))  # sends nothing; tells the host's own outward address
            outward = route.getsockname()[0]
        targets = [f"{gateway}:{port}", f"{outward}:{port}", "198.51.100.1:443", "1.1.1.1:53", "example.com:443"]
        control = sites.docker.containers.run(
            CLIENT, ["-c", _TRY, targets[0]], entrypoint=["python"], remove=True, network=sites.name("team")
        ).decode()
        tried = sites.container("curator").exec_run(["python", "-c", _TRY, *targets]).output.decode()
    assert "CONNECTED" in control  # from a network with a way out the same attempt succeeds
    assert len(tried.splitlines()) == len(targets), tried
    assert "CONNECTED" not in tried
    assert _ways_out(sites) == []


def _ways_out(sites) -> list[str]:
    """Gateways of the curator that a machine answers for; an engine may set a route to an empty address."""
    table = sites.container("curator").exec_run(["cat", "/proc/net/route"]).output.decode().splitlines()[1:]
    gateways = [line.split()[2] for line in table if line.split()[1] == "00000000"]
    known = sites.container("curator").exec_run(["cat", "/proc/net/arp"]).output.decode().splitlines()[1:]
    answering = {line.split()[0] for line in known if line.split()[2] != "0x0"}
    dotted = [socket.inet_ntoa(bytes.fromhex(gateway)[::-1]) for gateway in gateways]
    return [gateway for gateway in dotted if gateway in answering]


def test_the_sites_share_one_network_and_no_volume_with_records(sites):
    curator, client = sites.container("curator"), sites.container("client")
    networks = [set(c.attrs["NetworkSettings"]["Networks"]) for c in (curator, client)]
    assert networks[0] & networks[1] == {sites.name("crossing")}
    for name in networks[0]:
        assert sites.docker.networks.get(name).attrs["Internal"]
    private = {sites.name("hospital-records"), sites.name("hospital-home")}
    assert {m["Name"] for m in curator.attrs["Mounts"]} == private
    for service in ("client", "team-init"):
        mounted = {m.get("Name") for m in sites.container(service).attrs["Mounts"]}
        assert mounted
        assert not mounted & private
    for path in ("/records/records.npz", "/var/lib/dpswd/ledger.db", "/var/lib/dpswd/ledger.key"):
        # The client's own container is gone by now; one with its very mounts looks.
        volumes = {
            mount["Name"]: {"bind": mount["Destination"], "mode": "ro"}
            for mount in client.attrs["Mounts"]
            if mount["Type"] == "volume"
        }
        looked = sites.team(f"-c 'test ! -e {path}'", entrypoint="sh", volumes=volumes)
        _finish(looked)


def test_images_are_small_and_ship_no_tools(sites):
    for name in (CURATOR, CLIENT):
        image = sites.docker.images.get(name)
        say(f"{name}: {image.attrs['Size'] / 1e9:.2f} GB")
        assert image.attrs["Size"] < MAX_IMAGE_BYTES
        assert image.attrs["Config"]["User"] == "dpswd"
        missing = "for tool in pip gcc cc make curl wget git; do ! command -v $tool || exit 1; done"
        sites.docker.containers.run(name, ["-c", missing], entrypoint=["sh"], remove=True, network_mode="none")


def test_every_container_is_an_ordinary_user_on_a_read_only_root(sites):
    services = (
        "hospital-records",
        "hospital-init",
        "hospital-approve",
        "curator",
        "team-init",
        "client",
        "hospital-trial",
    )
    for service in services:
        attrs = sites.container(service).attrs
        assert attrs["Config"]["User"] == "10001:10001", service
        host = attrs["HostConfig"]
        assert host["ReadonlyRootfs"], service
        assert host["CapDrop"] == ["ALL"], service
        assert "no-new-privileges:true" in host["SecurityOpt"], service
        assert not host["Privileged"], service
        assert not host["PortBindings"], service
    curator = sites.container("curator")
    status = curator.exec_run(["cat", "/proc/1/status"]).output.decode()
    assert re.search(r"^Uid:\t10001\t10001\t10001\t10001$", status, re.MULTILINE)
    assert re.search(r"^CapEff:\t0+$", status, re.MULTILINE)
    assert re.search(r"^NoNewPrivs:\t1$", status, re.MULTILINE)
    for path in ("/opt/dpswd/bin/x", "/usr/bin/x", "/records/x", "/etc/x"):
        assert curator.exec_run(["touch", path]).exit_code != 0, path


def test_a_curator_that_is_asked_to_stop_ends_cleanly(sites):
    curator = sites.container("curator")
    begun = time.monotonic()
    curator.stop(timeout=30)
    curator.reload()
    assert curator.attrs["State"]["ExitCode"] == 0
    assert time.monotonic() - begun < 30
    curator.start()
    _wait("serving again", lambda: curator.exec_run(["dpswd-curator-health"]).exit_code == 0)
