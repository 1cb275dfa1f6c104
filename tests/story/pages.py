"""Runs the console blocks of documentation pages as written: real programs, in order, in one directory."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import short_tuning
from click.testing import CliRunner

from dpswd.private_curator.cli.main import main as curator
from dpswd.public_client.cli.main import main as client

PROGRAMS = {"dpswd-curator": curator, "dpswd-client": client}
STARTED = {"dpswd-curator": ("-m", "dpswd.private_curator.cli"), "dpswd-client": (short_tuning.__file__,)}
AS_INSTALLED = {"dpswd-curator init", "next/bin/dpswd-curator --version", "dpswd-client init"}
"""Commands that are typed into a shell the first time; the others start quickly (`forked_starts`), as processes too."""
_SHELLS_OWN = re.compile(r"[|&;<>()$`*?{}~#!\n]|(^|\s)[A-Z_]+=")  # what only a shell understands
ROOT = Path(__file__).resolve().parents[2]
START_S = 90.0
COMMAND_S = 900.0


@dataclass
class Command:
    """One line after ``$``.

    Attributes:
        line: as written, without a comment.
        expected: the lines that follow it on the page; ``...`` stands for anything.
        code: the exit code that the page names, else 0.
    """

    line: str
    expected: list[str] = field(default_factory=list)
    code: int = 0


@dataclass
class Meanwhile:
    """What somebody else does between two commands: ``<!-- meanwhile: NAME -->``, invisible on the page."""

    name: str


@dataclass
class Session:
    """A block ``pycon``: lines typed at Python's prompt, and what it answers."""

    text: str = ""


Step = Command | Meanwhile | Session


def section(page: Path, heading: str) -> str:
    """The part of a page below one of its headings of the second level."""
    (part,) = re.findall(rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", page.read_text(), re.MULTILINE | re.DOTALL)
    return part


def steps(page: Path, heading: str | None = None) -> list[Step]:
    """The commands, the lines typed at Python's prompt and what happens between them, in order.

    Args:
        page: a Markdown file.
        heading: only what is below this heading of the second level.
    """
    typed: list[Step] = []
    inside = False
    session: Session | None = None
    for raw in (page.read_text() if heading is None else section(page, heading)).splitlines():
        line = raw.strip()
        if mark := re.fullmatch(r"<!-- meanwhile: (.+) -->", line):
            typed.append(Meanwhile(mark[1]))
        elif line.startswith("```"):
            inside = line == "```console"
            session = Session() if line == "```pycon" else None
            if session is not None:
                typed.append(session)
        elif session is not None:
            session.text += f"{raw}\n"
        elif inside and line.startswith("$ "):
            text, _, comment = line[2:].partition("   # ")
            code = re.search(r"exit code (\d+)", comment)
            typed.append(Command(text, code=int(code[1]) if code else 0))
        elif inside and line:
            last = typed[-1]
            assert isinstance(last, Command), f"{page.name}: output before any command: {line}"
            last.expected.append(line)
    return typed


def compare(command: Command, output: str, *, port: int, where: str) -> None:
    """Holds a command's output to the page's, if the page shows any."""
    if command.expected:
        expected = "\n".join(command.expected).replace("50051", str(port))
        pattern = ".*".join(map(re.escape, expected.split("...")))
        printed = "\n".join(text.strip() for text in output.splitlines() if text.strip())
        assert re.fullmatch(pattern.replace(r"\ ", " +"), printed, re.DOTALL), f"{where}\n{output[-3000:]}"


class Shell:
    """One person at one machine.

    Args:
        directory: where the commands run.
        port: takes the place of the pages' 50051.
    """

    def __init__(self, directory: Path, *, port: int) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self.port = port
        self.ran: list[str] = []
        self._entered: set[str] = set()
        self.serving: subprocess.Popen[str] | None = None
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        self.environment = {**os.environ, "PATH": path, "COLUMNS": "200"}

    def read(
        self,
        page: Path,
        meanwhile: Mapping[str, Callable[[], None]] | None = None,
        replacements: Mapping[str, Callable[[], str]] | None = None,
        *,
        here: bool = False,
    ) -> None:
        """Does what the page says.

        Args:
            page: a Markdown file.
            meanwhile: what others do, by name.
            replacements: what a reader puts in the place of a word in capitals.
            here: as in `do`.
        """
        for step in steps(page):
            if isinstance(step, Meanwhile):
                (meanwhile or {})[step.name]()
            else:
                assert isinstance(step, Command), f"{page.name}: at a shell there is no Python prompt"
                self.do(step, replacements or {}, where=page.name, here=here)

    def do(
        self, command: Command, replacements: Mapping[str, Callable[[], str]], *, where: str, here: bool = False
    ) -> str:
        """One command: its exit code and its output must be the page's.

        Args:
            command: what is typed and expected.
            replacements: what a reader puts in the place of a word in capitals.
            where: named when it fails.
            here: our own programs run in this process, which takes a fraction of the time, in the same directory.
        """
        line = command.line.replace("50051", str(self.port))
        for word, value in replacements.items():
            if re.search(rf"\b{word}\b", line):
                line = re.sub(rf"\b{word}\b", value(), line)
        self.ran.append(line)
        if setting := re.fullmatch(r"export (\w+)=(\S+)", line):
            self.environment[setting[1]] = setting[2].replace("$PWD", str(self.directory))
            return ""
        if line.startswith("bash deploy/set-up.sh "):
            # The environment that these tests run in was made by this very command; it is not made twice.
            (self.directory / line.split()[-1]).symlink_to(sys.prefix)
            return ""
        if " serve " in f"{line} " and command.code == 0:
            output = self._serve(line)
        elif here and (program := PROGRAMS.get(line.split()[0])) is not None:
            with contextlib.chdir(self.directory):
                result = CliRunner().invoke(program, shlex.split(line)[1:], env=self._settings)
            output = result.output
            assert result.exit_code == command.code, f"{where}: {line}: exit code {result.exit_code}\n{output[-3000:]}"
        else:
            done = subprocess.run(
                self._words(line), cwd=self.directory, env=self.environment, text=True, timeout=COMMAND_S,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
            )  # fmt: skip
            output = done.stdout
            assert done.returncode == command.code, f"{where}: {line}: exit code {done.returncode}\n{output[-3000:]}"
        compare(command, output, port=self.port, where=f"{where}: {line}")
        return output

    @property
    def _settings(self) -> dict[str, str]:
        return {name: value for name, value in self.environment.items() if name == "COLUMNS" or "DPSWD" in name}

    def _words(self, line: str) -> list[str]:
        """What to start for a line: a shell, or the program's module without one."""
        program, command = line.split()[0].removeprefix("next/bin/"), " ".join(line.split()[:2])
        plain = _SHELLS_OWN.search(line) is None
        if plain and program in STARTED and command not in AS_INSTALLED - self._entered:
            return [sys.executable, *STARTED[program], *shlex.split(line)[1:]]
        self._entered.add(command)
        return ["bash", "-c", f"exec {line}" if plain else line]

    def _serve(self, line: str) -> str:
        self.stop()
        log = (self.directory / "serve.log").open("w+")
        self.serving = subprocess.Popen(
            self._words(line), cwd=self.directory, env=self.environment, text=True, stdout=log,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        deadline = time.monotonic() + START_S
        while "listening" not in (log_text := (self.directory / "serve.log").read_text()):
            assert self.serving.poll() is None, f"{line}: ended with {self.serving.returncode}"
            assert time.monotonic() < deadline, f"{line}: does not serve"
            time.sleep(0.1)
        return log_text

    def stop(self) -> None:
        """Ctrl-C where the curator serves."""
        if self.serving is not None:
            self.serving.send_signal(signal.SIGINT)
            assert self.serving.wait(timeout=60) == 0
            self.serving = None
