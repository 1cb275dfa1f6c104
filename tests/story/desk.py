"""The operator and the ML team at one desk: what their pages say is typed in this process, against a real curator.

The commands run through click's runner and the curator serves from a thread, with its certificates, its ledger and its
sockets, so that a page takes a second and not ten. What no command line can provoke (a defect, a disk that is full) is
done to the curator between two commands.
"""

from __future__ import annotations

import contextlib
import doctest
import io
import json
import re
import shlex
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
import torch
from click.testing import CliRunner
from declarations import quantiles
from drawn_steps import new_step, parameters
from free_ports import own_port
from pages import PROGRAMS, Command, Meanwhile, Session, compare, steps
from torch import nn

from dpswd.private_curator.books.ledger import Ledger
from dpswd.private_curator.core.ledger.sqlite import file_lock, write_lock
from dpswd.private_curator.operator import preflight
from dpswd.private_curator.serving import server
from dpswd.private_curator.settings.tree import CuratorSettings
from dpswd.private_curator.storage.home_directory import HomeDirectory
from dpswd.public_client.curator.stub import Curator
from dpswd.public_client.curator.values import new_request_id
from dpswd.public_client.extractor.tracing import module_weights, trace, weights_to_bytes
from dpswd.shared.certificates import request_fingerprint

torch.set_num_threads(1)

ALLOWED = ("dpswd-curator", "dpswd-client", "cp", "df", "ls")
RECORDS, SHAPE = 300, (1, 8, 8)
PATIENCE_S = 0.0  # a curator that is meant to refuse is asked once
SETTINGS = {
    "DPSWD_CURATOR_COMPUTE__DEVICE": "cpu",
    "DPSWD_CURATOR_COMPUTE__ISOLATION": "in-process",  # workers have tests of their own and take seconds to start
    "DPSWD_CURATOR_LISTEN__PORT": "0",  # of preflight; another test may listen on the default one
    "DPSWD_CURATOR_LEDGER__LOCK_SECONDS": "0.3",
    "DPSWD_CURATOR_LIMITS__CLIENT_REQUESTS": "2",
    "DPSWD_CURATOR_LIMITS__MAX_STEP_ATTEMPTS": "3",
    "DPSWD_CLIENT_CONNECTION__PATIENCE_SECONDS": str(PATIENCE_S),
}
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


class Desk:
    """One directory with the hospital's home, the team's credentials and whatever the pages write.

    Args:
        directory: the working directory of all commands.
        patch: lasts as long as the desk.
    """

    def __init__(self, directory: Path, patch: pytest.MonkeyPatch) -> None:
        self.directory = directory
        self.home = HomeDirectory(directory / "hospital")
        self.output = ""  # by the last command
        self.at: Callable[[str], None] = server.no_checkpoint
        self.names: dict[str, Any] = {}
        self.running: server.CuratorServer | None = None
        self._threads: list[threading.Thread] = []
        self._module = nn.Sequential(nn.Flatten(), nn.Linear(64, 8))
        self.port = own_port()
        patch.chdir(directory)
        patch.setenv("DPSWD_CURATOR_HOME", str(self.home.path))
        for name, value in SETTINGS.items():
            patch.setenv(name, value)
        patch.delitem(preflight.CHECKS, "extraction worker")  # takes seconds; tested beside the worker
        patch.setattr(server, "serve", self._serve)
        self._set_up()

    def _set_up(self) -> None:
        generator = np.random.default_rng(3)
        records = generator.normal(size=(RECORDS, *SHAPE)).astype(np.float32).clip(-1, 1)
        np.savez("records.npz", records=records)
        self.type("dpswd-curator init --records records.npz --epsilon 3 --delta 1e-5 --san localhost")
        self.type("dpswd-client init ml-team --out client")
        fingerprint = f"--fingerprint {request_fingerprint(Path('client/client.csr').read_bytes())}"
        self.type(f"dpswd-curator approve client/client.csr {fingerprint} --out for-ml-team")
        self.type("cp for-ml-team/ca.crt for-ml-team/client.crt for-ml-team/ledger.pub client")

    def serve(self, *settings: str) -> None:
        """Starts the curator, or another one in its place."""
        words = " ".join(f"--set {setting}" for setting in settings)
        self.type(f"dpswd-curator serve --address localhost:50051 {words}")

    def stop(self) -> None:
        """Ends what runs; the home stays."""
        for thread in self._threads:
            thread.join(timeout=60)
            assert not thread.is_alive()
        self._threads.clear()
        if (hospital := self.names.pop("hospital", None)) is not None:
            hospital.close()
        if self.running is not None:
            self.running.stop()
            self.running = None

    def read(
        self,
        page: Path,
        meanwhile: dict[str, Callable[[], None]],
        replacements: dict[str, Callable[[], str]],
        *,
        heading: str | None = None,
    ) -> None:
        """Does what the page says, in its order.

        Args:
            page: a Markdown file.
            meanwhile: what happens between two commands, by name.
            replacements: what a reader puts in the place of a word in capitals.
            heading: only what is below this heading of the second level.
        """
        for step in steps(page, heading):
            match step:
                case Meanwhile(name):
                    meanwhile[name]()
                case Command():
                    self.type(
                        step.line, code=step.code, expected=step.expected, replacements=replacements, where=page.name
                    )
                case Session(text):
                    self.python(text, where=page.name)

    def type(
        self,
        line: str,
        *,
        code: int = 0,
        expected: list[str] | None = None,
        replacements: dict[str, Callable[[], str]] | None = None,
        where: str = "test",
    ) -> str:
        """One command: its exit code and its output must be the page's."""
        line = line.replace("50051", str(self.port))
        for word, value in (replacements or {}).items():
            if re.search(rf"\b{word}\b", line):
                line = re.sub(rf"\b{word}\b", value(), line)
        program, *words = shlex.split(line)
        assert program in ALLOWED, f"{where}: {line}"
        if program in PROGRAMS:
            result = CliRunner().invoke(PROGRAMS[program], words, prog_name=program)
            status, output = result.exit_code, result.output
        else:
            done = subprocess.run([program, *words], capture_output=True, text=True, check=False)
            status, output = done.returncode, done.stdout + done.stderr
        assert status == code, f"{where}: {line}: exit code {status}\n{output[-3000:]}"
        compare(Command(line, expected or [], code), output, port=self.port, where=f"{where}: {line}")
        self.output = output
        return output

    def json(self, line: str) -> Any:
        """What a command says to a program."""
        return json.loads(self.type(f"{line} --format json"))

    def python(self, text: str, *, where: str) -> None:
        """Lines at Python's prompt, with `hospital` connected and what the pages' index names."""
        if "hospital" not in self.names:
            self.connect()
        heard = io.StringIO()
        test = doctest.DocTestParser().get_doctest(text, self.names, where, where, 0)
        result = doctest.DocTestRunner(optionflags=OPTIONS).run(test, out=heard.write, clear_globs=False)
        assert result.attempted, f"{where}: nothing was typed"
        assert not result.failed, heard.getvalue()
        self.names.update(test.globs)

    def link(self) -> Curator:
        """Connects the team's Python."""
        made = Curator.connect(f"localhost:{self.port}", credentials="client", patience_s=PATIENCE_S)
        self.names["hospital"] = made
        return made

    def connect(self, *, steps: int = 4) -> None:
        """Connects the team's Python, and opens a run of its own."""
        hospital = self.link()
        graph = trace(self._module, SHAPE)
        sent = graph.to_bytes(), weights_to_bytes(module_weights(self._module, graph))
        uploaded = hospital.upload_extractor(*sent)
        declared = parameters(uploaded, quantiles(2, 10.0, directions=10), batch_size=30, steps=steps)
        run = hospital.open_run(declared)
        self.names |= {
            "parameters": declared, "run": run, "new_step": new_step, "pending": new_step(run), "graph": sent[0],
            "weights": sent[1], "new_request_id": new_request_id,
            "replace": replace,
        }  # fmt: skip

    def send_elsewhere(self, *, times: int = 1) -> None:
        """As many threads send steps of the open run, the first one `pending`; they end when they are answered."""
        hospital, run, pending = (self.names[name] for name in ("hospital", "run", "pending"))
        for index in range(times):
            step = pending if index == 0 else new_step(run)
            self._threads.append(threading.Thread(target=hospital.send, args=(step,)))
            self._threads[-1].start()

    @property
    def under_way(self) -> int:
        """Requests that the curator has in hand."""
        assert self.running is not None
        return self.running._service.turns._places.held.total()

    def elsewhere_done(self) -> None:
        """Waits for what was sent elsewhere."""
        for thread in self._threads:
            thread.join(timeout=60)
            assert not thread.is_alive()
        self._threads.clear()

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """While the block runs, another program holds the ledger."""
        with file_lock(write_lock(self.home.ledger), timeout_s=5, held_by="a test"):
            yield

    def _serve(self, home: HomeDirectory, settings: CuratorSettings, *, ledger: Ledger) -> None:
        """In the place of `server.serve`, which would not return before a signal; `ledger` is closed by then."""
        self.stop()
        self.at = server.no_checkpoint
        self.running = server.CuratorServer(home, settings, checkpoint=lambda name: self.at(name))
        click.echo(f"listening on {self.running.start()}")
