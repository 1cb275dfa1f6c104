"""The lowest tier: no process, no socket. What needs one belongs into `party`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc import _channel as channels

_NEEDED = {"lscpu", "ldconfig", "/sbin/ldconfig", "gcc", "ld"}
"""What libraries ask about this machine when they are loaded."""
_EVENTS = ("socket.bind", "socket.connect", "os.fork", "os.forkpty", "os.posix_spawn", "os.system")
_running = False


def _refuse(what: str) -> None:
    if _running:
        pytest.fail(f"a unit test may not use {what}: it belongs into tests/party, or works without", pytrace=True)


def _refusing(usual: Any, what: str) -> Any:
    def guarded(*given: Any, **named: Any) -> Any:
        if what != "a process" or str(named.get("args", given[1])[0]) not in _NEEDED:
            _refuse(what)
        return usual(*given, **named)

    return guarded


subprocess.Popen.__init__ = _refusing(subprocess.Popen.__init__, "a process")  # type: ignore[method-assign]
grpc.server = _refusing(grpc.server, "a gRPC server")
channels.Channel.__init__ = _refusing(channels.Channel.__init__, "a gRPC channel")
sys.addaudithook(lambda event, _: _refuse(event) if event in _EVENTS else None)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_setup(item):
    yield from _guarded(item)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call(item):
    yield from _guarded(item)


def _guarded(item):
    """A test of this tier and its fixtures; not what is cleared away after it, which may be the whole session's."""
    global _running
    _running = Path(__file__).parent in item.path.parents
    yield
    _running = False
