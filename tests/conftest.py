"""Settings of the whole suite, and what several parts of it share."""

import functools
import gc
import os
import sys
from pathlib import Path

import pytest
from hypothesis import settings

sys.path.insert(0, str(Path(__file__).parent))  # under importlib mode a test directory is no package

# A worker and a second accountant get a bare environment, and a program is forked from one that has read the same.
for _name in [name for name in os.environ if name.startswith("OPENBLAS_")]:
    del os.environ[_name]

# One commit has one answer: examples are drawn from the test's own source. `make test-exhaustive` looks for new ones; a
# test says how many it tries by `exploring.tried`.
settings.register_profile("fixed", derandomize=True, deadline=None)
settings.register_profile("explore", deadline=None, max_examples=1000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fixed"))

# What libraries, test modules and thousands of collected tests leave in memory stays to the end. Searches for garbage
# that went through all of it each time took a seventh of the suite's time.
gc.disable()


def pytest_collection_finish():
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def _quick_starts():
    """What a test starts is forked from a process that has loaded torch; see `forked_starts`."""
    from forked_starts import in_force

    with in_force():
        yield


@pytest.fixture
def true_starts():
    """For a test of how a program comes up: what it starts loads all it needs."""
    from forked_starts import suspended

    with suspended():
        yield


@pytest.fixture(scope="module")
def short_tuning():
    """For a module in which the ladder is climbed, or replays are tuned, whose length proves nothing."""
    from short_tuning import shortened

    with shortened():
        yield


@pytest.fixture(scope="module")
def extractors_in_process():
    """For curators whose workers are not what a module tests: they start in a third of the time without them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DPSWD_CURATOR_COMPUTE__ISOLATION", "in-process")
        yield


@pytest.fixture(scope="session")
def postgres():
    """A real PostgreSQL server of this session's own. Where there can be none, the tests that ask are skipped."""
    from postgres_server import NoServer, PostgresServer

    try:
        server = PostgresServer()
    except NoServer as error:
        pytest.skip(f"no PostgreSQL server: {error}")
    yield server
    server.close()


@pytest.fixture
def make_hospital(tmp_path):
    """Makes hospitals in memory; a second call reopens the first one's home."""
    from hospital import Hospital

    opened: list[Hospital] = []

    def make(records, *, directory: Path = tmp_path, **options) -> Hospital:
        for earlier in opened:
            earlier.close()
        directory.mkdir(exist_ok=True)
        opened.append(Hospital(directory, records, **options))
        return opened[-1]

    yield make
    for hospital in opened:
        hospital.close()


@pytest.fixture
def no_noise():
    """A source of noise of value zero."""
    from hospital import NoNoise

    return NoNoise()


LONGEST = (
    "containers",
    "story/test_operator_pages.py",
    "story/test_run_again.py",
    "story/test_curator_process.py",
    "postgres",
    "story/test_training.py",
    "party/public_client/adaptation/test_domain_adaptation.py",
    "party/public_client/adaptation/test_federation.py",
    "party/public_client/training/test_distributed.py",
    "story/test_federation.py",
    "story/test_worker.py",
    "story/test_readme.py",
)
"""What takes longest, so that no process ends with it alone while the others are done."""


def pytest_collection_modifyitems(items):
    """In several processes: the longest first, and within a file as written."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        places = {name: place for place, name in enumerate(LONGEST)}
        items.sort(key=lambda item: places.get(_together(item.nodeid).removeprefix("tests/"), len(LONGEST)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """With several workers: a file's tests run in one of them, in order; so do all that share an engine or a server."""
    from xdist.scheduler import LoadScopeScheduling

    class OneOfEach(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return _together(nodeid)

    config.option.loadscopereorder = False  # the order is LONGEST's
    return OneOfEach(config, log)


def _together(nodeid: str) -> str:
    """Tests of the same name here run in one process. The air gap's have an engine of their own, beside the sites'.

    A browser drops what it asks for when an engine's network comes or goes: its tests run while none does.
    """
    file = nodeid.partition("::")[0]
    if _moves_networks(file) and not file.endswith("test_air_gap.py"):
        return "containers"
    return "postgres" if "postgres" in nodeid else file


@functools.cache
def _moves_networks(file: str) -> bool:
    text = (Path(__file__).resolve().parents[1] / file).read_text()
    return "pytest.mark.containers" in text or "from real_browser import" in text


_LOUD = {
    "NO FULL DISK WAS TRIED": "A PUBLICATION ON A FULL DISK WAS NOT TESTED",
    "BUT NOT WITHOUT A NETWORK": "PUBLICATIONS WERE NOT TESTED WITHOUT A NETWORK",
    "NO CONTAINER TEST RAN": "THE CONTAINERS WERE NOT TESTED",
    "NO BROWSER LOOKED": "THE CONSOLE WAS NOT LOOKED AT IN A BROWSER",
    "no PostgreSQL server": "THE LEDGER ON POSTGRESQL WAS NOT TESTED",
}


def pytest_terminal_summary(terminalreporter):
    """What was left out is said where nobody can miss it; the workers' own words do not reach the terminal."""
    reports = [report for kind in ("passed", "failed", "error", "") for report in terminalreporter.stats.get(kind, [])]
    text = [text for report in reports for name, text in getattr(report, "user_properties", []) if name == "containers"]
    if text:
        terminalreporter.write_sep("-", "containers")
        for line in dict.fromkeys(text):
            terminalreporter.write_line(line)
    reasons = [str(report.longrepr[2]) for report in terminalreporter.stats.get("skipped", [])]
    for words, title in _LOUD.items():
        left_out = [reason for reason in reasons if words in reason]
        if left_out:
            terminalreporter.write_sep("=", f"{title}: {len(left_out)} tests were skipped", red=True, bold=True)
            terminalreporter.write_line(left_out[0])
