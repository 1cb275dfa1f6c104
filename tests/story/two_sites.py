"""Both sites in containers, as docker-compose.yml makes them, for the tests of this directory."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import tarfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import docker
from engine import ROOT, compose_command
from free_ports import own_port

CURATOR, CLIENT = "dpswd-curator:test", "dpswd-client:test"
STORY_S, TRAINING_S = 600, 240
COMPOSE_FILES = ("docker-compose.yml", "tests/story/short/compose.yml")
"""The story as users start it, and what shortens its training."""

CONNECT = "--curator curator:50051 --credentials credentials"
STEPS = 20  # each takes a quantum of the reply times, at least: enough to be killed and cut off in the middle
TRAIN = f"train {CONNECT} --epsilon 1 --source-epochs 1 --method all-weights --steps {STEPS} --batch 256"
LEAST_RIGHT = 17.0
"""Percent that a delivered model must get right; records or classes mixed up give 10 +- 1, the team's own 53 to 57.

What a climb delivers of 898 records varies with the noise: of 19 climbs without labels at epsilon 0.6 one was below the
team's own, by 4. So what is asked here is that a model arrives whole, not how good it is.
"""
UNIT = {"HOME": "/var/lib/dpswd", "OMP_NUM_THREADS": "1"}


@dataclass
class Sites:
    """The running project.

    Attributes:
        docker: the engine's client.
        address: of the engine.
        project: compose's name for it.
        story: what the first hospital's report printed.
        after_story: the first hospital's budget when the story had ended.
        seconds: how long each of the stories took, by the service that ends it.
        console_port: of the loopback, at which the first hospital's console is published.
    """

    docker: docker.DockerClient
    address: str
    project: str
    story: str = ""
    after_story: dict[str, Any] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    console_port: int = field(default_factory=own_port)

    def compose(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """docker-compose with the project's name, on this engine, with the images under test."""
        files = [word for file in COMPOSE_FILES for word in ("--file", str(ROOT / file))]
        command = [*compose_command(), "--project-name", self.project, *files]
        return subprocess.run(
            [*command, *arguments],
            env=self.environment(), cwd=ROOT, capture_output=True, text=True, timeout=STORY_S, check=False,
        )  # fmt: skip

    def environment(self) -> dict[str, str]:
        """Of whatever asks this engine for this project's containers."""
        return {
            **os.environ, "DOCKER_HOST": self.address, "DPSWD_VERSION": "test", "COMPOSE_HTTP_TIMEOUT": "300",
            "CONSOLE_PORT": str(self.console_port), "PUBLISHED_MECHANISMS": "true",
        }  # fmt: skip

    def tell(self, report: str, *profile: str) -> str:
        """Runs everything that this report depends on, in order, and then the report; what it printed."""
        begun = time.monotonic()
        done = self.compose(*profile, "run", "--rm", report)
        self.seconds[report] = time.monotonic() - begun
        if done.returncode != 0:
            logs = self.compose(*profile, "logs", "--no-color").stdout
            raise AssertionError(f"{done.stdout[-2000:]}\n{done.stderr[-2000:]}\n{logs[-6000:]}")
        return done.stdout

    def container(self, service: str):
        containers = self.docker.containers.list(all=True, filters={"label": self.labels(service)})
        assert containers, f"the service {service} has no container"
        return containers[0]

    def labels(self, service: str) -> list[str]:
        return [f"com.docker.compose.project={self.project}", f"com.docker.compose.service={service}"]

    def name(self, short: str) -> str:
        """A network's or volume's name in the engine."""
        return f"{self.project}_{short}"

    def words(self, service: str) -> str:
        return self.container(service).logs().decode()

    def operator(self, *command: str, home: str = "hospital-home", handed: str | None = None) -> str:
        """One of an operator's commands, on its hospital's files and without a network.

        `handed` is a volume through which files are handed over, at /exchange.
        """
        volumes = {self.name(home): {"bind": "/var/lib/dpswd", "mode": "rw"}}
        if handed is not None:
            volumes[handed] = {"bind": "/exchange", "mode": "rw"}
        return self.docker.containers.run(
            CURATOR, list(command), remove=True, network_mode="none", read_only=True, volumes=volumes
        ).decode()

    def team(self, command: str | list[str], *, volumes: dict | None = None, entrypoint: str | None = None):
        """One of the ML team's commands, started as the service `client` is."""
        return self.docker.containers.run(
            CLIENT, command, entrypoint=entrypoint, detach=True, network=self.name("crossing"), read_only=True,
            cap_drop=["ALL"], security_opt=["no-new-privileges:true"], tmpfs={"/tmp": "mode=1777"}, environment=UNIT,
            volumes=volumes or {self.name("team-home"): {"bind": "/var/lib/dpswd", "mode": "rw"}},
        )  # fmt: skip

    def budget(self, home: str = "hospital-home") -> dict:
        return json.loads(self.operator("budget", "--format", "json", home=home))

    def leave(self, epsilon: float) -> None:
        """The operator of the first hospital sets its budget to so much above what is spent."""
        now = self.budget()
        total = now["epsilon_spent"] + epsilon
        change = "extend" if total > now["epsilon"] else "lower"
        confirmed = ("--confirm", f"epsilon {total:g}, delta {now['delta']:g}") if change == "extend" else ()
        self.operator("budget", f"--{change}", str(total), "--reason", "next study", *confirmed)

    def health(self, service: str = "curator") -> str:
        return self.container(service).attrs["State"]["Health"]["Status"]

    @property
    def answers(self) -> int:
        """Steps that the first curator has begun, by its ledger's own table: this is asked again and again."""
        used = "sqlite3.connect('ledger.db').execute('SELECT sum(steps_used) FROM runs')"
        count = f"import sqlite3; print(*{used}.fetchone())"
        program = ["/usr/bin/python3", "-I", "-S", "-c", count]
        curator = self.container("curator")
        if curator.status == "running":
            output = curator.exec_run(program).output
        else:
            volumes = {self.name("hospital-home"): {"bind": "/var/lib/dpswd", "mode": "rw"}}
            output = self.docker.containers.run(
                CURATOR, program[1:], entrypoint=program[:1], remove=True, network_mode="none", read_only=True,
                volumes=volumes,
            )  # fmt: skip
        return int(output)


def finish(container, *, handed: Mapping[str, Path] = MappingProxyType({})) -> str:
    """Waits for a container's end; its whole output, which must be one of success.

    Args:
        container: running.
        handed: files of it that are copied out, and where to.
    """
    try:
        status = container.wait(timeout=TRAINING_S)["StatusCode"]
        words = container.logs().decode()
        assert status == 0, words[-3000:]
        for inside, outside in handed.items():
            chunks, _ = container.get_archive(inside)
            with tarfile.open(fileobj=io.BytesIO(b"".join(chunks))) as archive:
                outside.write_bytes(archive.extractfile(Path(inside).name).read())
        return words
    finally:
        container.remove(force=True)


def wait(what: str, condition, *, seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds:.0f} s: {what}"
        time.sleep(0.2)


def percentage(words: str) -> float:
    """What a hospital found when it applied the delivered model to its own records."""
    match = re.search(r"accuracy on own labels +([0-9.]+)", words)
    assert match, words
    return 100 * float(match[1])
