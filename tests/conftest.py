"""Settings of the whole suite, and what several parts of it share."""

import os
import sys
from pathlib import Path

import pytest
from hypothesis import settings

sys.path.insert(0, str(Path(__file__).parent))  # under importlib mode a test directory is no package

# The suite must give one commit one answer, so examples are drawn from the test's own source. To look for new ones:
# HYPOTHESIS_PROFILE=explore make test
settings.register_profile("fixed", derandomize=True, deadline=None)
settings.register_profile("explore", deadline=None, max_examples=1000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fixed"))

_NO_POSTGRES: list[str] = []


@pytest.fixture(scope="session")
def postgres():
    """A real PostgreSQL server of this session's own. Where there can be none, the tests that ask are skipped."""
    from postgres_server import NoServer, PostgresServer

    try:
        server = PostgresServer()
    except NoServer as error:
        _NO_POSTGRES.append(str(error))
        pytest.skip(f"no PostgreSQL server: {error}")
    yield server
    server.close()


def pytest_terminal_summary(terminalreporter):
    for reason in _NO_POSTGRES:
        terminalreporter.write_sep("=", "THE LEDGER ON POSTGRESQL WAS NOT TESTED", red=True)
        terminalreporter.write_line(f"no PostgreSQL server: {reason}")
