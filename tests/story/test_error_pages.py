"""docs/errors and docs/exit-codes.md: they tell what the program's tables say, and are typed as written."""

from __future__ import annotations

import functools
import json
import os
import re
import shutil
import signal
import sqlite3
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))  # under importlib mode a test directory is no package

from desk import PROGRAMS, Desk
from drawn_steps import new_step
from pages import ROOT, Command, Meanwhile, Session, section, steps

from dpswd.private_curator.cli.common import EXIT_CODES
from dpswd.private_curator.sandbox.pool import WorkerPool
from dpswd.private_curator.serving import server
from dpswd.private_curator.storage import incidents
from dpswd.public_client.cli import main as client_cli
from dpswd.public_client.curator.stub import Curator
from dpswd.shared.accounting import crosscheck
from dpswd.shared.certificates import request_fingerprint
from dpswd.shared.core.errors import LedgerCorrupt
from dpswd.shared.protocol.status import REASONS

pytestmark = [pytest.mark.timeout(300)]

DOCS = ROOT / "docs"
ERRORS = {page.stem: page for page in sorted((DOCS / "errors").glob("*.md"))}
CODES_PAGE = DOCS / "exit-codes.md"
CODES = re.findall(r"^## Exit code (\d+)$", CODES_PAGE.read_text(), re.MULTILINE)
SECTIONS = ["What is seen", "What was spent", "Causes", "The ML team", "The operator"]
PROGRAMS_CODES = {
    "dpswd-curator": {0, 1, 2} | {code for _, code in EXIT_CODES},
    "dpswd-client": {0, 1, 2, 13, 130} | {code for _, code in client_cli._EXIT_CODES},
}


class Incidents:
    """What happens between the commands of a page, and what a reader puts in the place of words in capitals."""

    def __init__(self, desk: Desk, stack: ExitStack, patch: pytest.MonkeyPatch) -> None:
        self.desk, self.stack, self.patch = desk, stack, patch
        self.resume = threading.Event()
        self.meanwhile: dict[str, Callable[[], None]] = {name.replace("_", " "): getattr(self, name) for name in EVENTS}
        self.replacements: dict[str, Callable[[], str]] = {
            "FINGERPRINT": lambda: desk.json("dpswd-curator certificates")[0]["fingerprint"],
            "RUN": lambda: desk.json("dpswd-curator runs")[-1]["run_id"],
            "NUMBER": lambda: desk.json("dpswd-curator incidents")[-1]["number"],
            "DIGEST": self._digest,
            "TOLD": lambda: request_fingerprint(Path("client-again/client.csr").read_bytes()),
        }

    def _digest(self) -> str:
        match = re.search(r"[0-9a-f]{64}", self.desk.output)
        assert match, self.desk.output
        return match[0]

    def _failing(self, error: Exception, *, at: str = "extracted") -> None:
        def checkpoint(name: str) -> None:
            if name == at:
                raise error

        self.desk.at = checkpoint

    def _once(self, act: Callable[[], None], *, at: str) -> None:
        def checkpoint(name: str) -> None:
            if name == at:
                self.desk.at = server.no_checkpoint
                act()

        self.desk.at = checkpoint

    def _waiting(self, *, times: int) -> None:
        """Steps are sent elsewhere; the first one waits in the middle of its computation."""
        reached = threading.Event()

        def wait() -> None:
            reached.set()
            assert self.resume.wait(timeout=60)

        self.desk.connect()
        self._once(wait, at="sampled")
        self.desk.send_elsewhere(times=times)
        assert reached.wait(timeout=60)
        deadline = time.monotonic() + 60
        while self.desk.under_way < times:
            assert time.monotonic() < deadline, "a request did not arrive"
            time.sleep(0.01)

    # -- named by the pages ----------------------------------------------------------------------------------------

    def the_team_has_a_run_open(self) -> None:
        self.desk.connect()

    def the_certificate_is_withdrawn(self) -> None:
        fingerprint = self.replacements["FINGERPRINT"]()
        self.desk.type(f"dpswd-curator clients ml-team --revoke-certificate {fingerprint} --reason stolen")

    def the_new_identity_takes_the_place_of_the_old_one(self) -> None:
        shutil.rmtree("client")
        shutil.move("client-again", "client")

    def the_operator_freezes_the_data_set_during_the_first_step(self) -> None:
        def freeze() -> None:
            with self.desk.home.open_ledger() as ledger:
                ledger.freeze(reason="a question of the ethics board")

        self._once(freeze, at="stored")

    def the_operator_approves_graphs_one_by_one(self) -> None:
        self.desk.serve("extractors.approval=listed")

    def the_two_accountants_differ(self) -> None:
        theirs = crosscheck._theorem_27
        self.patch.setattr(crosscheck, "_theorem_27", lambda step: tuple(cost / 2 for cost in theirs(step)))

    def the_first_attempt_is_still_being_computed(self) -> None:
        self._waiting(times=1)

    def the_first_attempt_is_done(self) -> None:
        self.resume.set()
        self.desk.elsewhere_done()

    def the_team_has_two_steps_under_way(self) -> None:
        self._waiting(times=2)

    def the_steps_are_answered(self) -> None:
        self.the_first_attempt_is_done()

    def another_program_holds_the_ledger(self) -> None:
        self.stack.enter_context(self.desk.locked())

    def the_ledger_is_free_again(self) -> None:
        self.stack.close()

    def a_worker_is_killed_during_the_step(self) -> None:
        desk = self.desk
        desk.connect()
        desk.serve("compute.isolation=process")
        desk.link()

        def kill() -> None:
            engine = desk.running._engine
            assert isinstance(engine, WorkerPool)
            os.kill(engine.pids[0], signal.SIGKILL)

        self._once(kill, at="sampled")

    def the_step_fails_every_time(self) -> None:
        self.desk.connect()
        self._failing(ArithmeticError("words that may quote a record"))

    def the_cause_is_gone(self) -> None:
        self.desk.at = server.no_checkpoint

    def a_step_meets_a_defect(self) -> None:
        def fail() -> None:
            raise ArithmeticError("words that may quote a record")

        self._once(fail, at="extracted")

    def both_programs_have_a_defect(self) -> None:
        def broken(_: object) -> None:
            raise ValueError("words that may quote a record")

        self.patch.setattr(incidents.IncidentBook, "all", broken)
        self.patch.setitem(client_cli._COMMANDS, "describe", ("dpswd.public_client.no_such_module", "describe"))

    def a_file_of_records_has_a_gap(self) -> None:
        records = np.zeros((20, 3), dtype=np.float32)
        records[7, 1] = np.nan
        np.savez("gap.npz", records=records)
        np.savez("strange.npz", x=records)

    def somebody_edits_a_copy_of_the_ledger(self) -> None:
        self.desk.type("dpswd-curator ledger backup copy.db")
        with closing(sqlite3.connect("copy.db")) as database:
            names = database.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall()
            for (name,) in names:
                database.execute(f"DROP TRIGGER {name}")
            database.execute(
                "UPDATE entries SET statement = CAST(replace(CAST(statement AS TEXT), ?, ?) AS BLOB) WHERE seq = 1",
                ('"epsilon":3.0', '"epsilon":9.0'),
            )
            database.commit()

    def the_ledger_is_put_back_to_an_older_state(self) -> None:
        desk = self.desk
        desk.connect()
        terms = desk.names["parameters"]
        desk.stop()
        older = {file: file.read_bytes() for file in (desk.home.ledger, desk.home.ledger_witness())}
        connect = functools.partial(
            Curator.connect, f"localhost:{desk.port}", credentials="client", run_directory="seen"
        )
        desk.serve()
        with connect() as hospital:
            hospital.open_run(terms)
        desk.stop()
        for file, content in older.items():
            file.write_bytes(content)
        desk.serve()
        with pytest.raises(LedgerCorrupt):
            connect()

    def the_operator_stops_the_curator(self) -> None:
        self.desk.stop()

    def a_receipt_is_edited(self) -> None:
        self.desk.connect()
        address, parameters = f"localhost:{self.desk.port}", self.desk.names["parameters"]
        with Curator.connect(address, credentials="client", run_directory="run") as hospital:
            hospital.send(new_step(hospital.open_run(parameters)))
        shutil.copytree("run", "run-kept")
        receipts = Path("run/receipts.jsonl")
        first, *others = receipts.read_text().splitlines(keepends=True)
        receipts.write_text("".join([_edited(first), *others]))

    def the_team_interrupts_it(self) -> None:
        def pressed(*_: object, **__: object) -> None:
            raise KeyboardInterrupt

        self.patch.setattr("dpswd.public_client.curator.stub.Curator.connect", pressed)


def _edited(line: str) -> str:
    """A receipt with another number of steps, as somebody without the key would edit it."""
    entry = json.loads(line)
    return json.dumps(entry | {"statement": re.sub(r'"steps":\d+', '"steps":9', entry["statement"])}) + "\n"


EVENTS = [name for name in vars(Incidents) if not name.startswith("_")]


@pytest.fixture(scope="module")
def desk(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        made = Desk(tmp_path_factory.mktemp("desk"), patch)
        made.serve()
        yield made
        made.stop()


@pytest.fixture
def happening(desk, monkeypatch):
    with ExitStack() as stack:
        made = Incidents(desk, stack, monkeypatch)
        before = desk.running
        yield made
        made.resume.set()
    desk.at = server.no_checkpoint
    if desk.running is not before:
        desk.serve()


@pytest.mark.parametrize("reason", ERRORS)
def test_the_page_of_a_reason_is_typed_as_written(desk, happening, reason):
    assert any(isinstance(step, Command | Session) for step in steps(ERRORS[reason]))
    desk.read(ERRORS[reason], happening.meanwhile, happening.replacements)


@pytest.mark.parametrize("code", CODES)
def test_an_exit_code_is_typed_as_written(desk, happening, code):
    desk.read(CODES_PAGE, happening.meanwhile, happening.replacements, heading=f"Exit code {code}")


@pytest.mark.parametrize("row", REASONS, ids=lambda row: row.reason)
def test_each_reason_has_its_page(row):
    page = ERRORS[row.reason].read_text()
    assert page.startswith(f"# {row.reason}\n")
    code = client_cli.exit_code(row.error.__new__(row.error))
    again = "yes" if row.retryable else "no"
    link = f"[{code}](exit-codes.md#exit-code-{code})"
    named = (
        f"| [`{row.reason}`](errors/{row.reason}.md) | {row.code.name} | `{row.error.__name__}` | {link} | {again} |"
    )
    assert named in (DOCS / "errors.md").read_text()
    assert re.findall("^## (.+)$", page, re.MULTILINE) == SECTIONS
    # What the page shows was said by the programs: the texts are compared while it is typed.
    shown = [step for step in steps(ERRORS[row.reason]) if not isinstance(step, Meanwhile)]
    text = "\n".join(step.text if isinstance(step, Session) else "\n".join(step.expected) for step in shown)
    assert f"dpswd.shared.core.errors.{row.error.__name__}: " in text or f"see docs/errors/{row.reason}.md" in text


def test_no_page_is_left_over():
    assert set(ERRORS) == {row.reason for row in REASONS}
    assert set(map(int, CODES)) == set.union(*PROGRAMS_CODES.values())


@pytest.mark.parametrize("code", CODES)
def test_each_exit_code_says_which_program_ends_with_it_and_shows_it(code):
    text = section(CODES_PAGE, f"Exit code {code}")
    programs = set(re.findall("^### `(dpswd-.+)`$", text, re.MULTILINE))
    assert programs == {name for name, codes in PROGRAMS_CODES.items() if int(code) in codes}
    assert set(PROGRAMS) >= programs
    shown = {step.code for step in steps(CODES_PAGE, f"Exit code {code}") if isinstance(step, Command)}
    assert int(code) in shown


def test_what_happens_between_commands_is_all_used():
    pages = (*ERRORS.values(), CODES_PAGE)
    named = {step.name for page in pages for step in steps(page) if isinstance(step, Meanwhile)}
    assert named == {name.replace("_", " ") for name in EVENTS}
