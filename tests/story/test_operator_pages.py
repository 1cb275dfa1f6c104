"""The operator's and the ML team's pages, run as written: every command, every exit code, the output that is shown."""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # under importlib mode a test directory is no package

from free_ports import own_port
from pages import ROOT, Command, Shell, steps

from dpswd.private_curator.core.ledger.statements import Request
from dpswd.private_curator.storage.home_directory import HomeDirectory
from dpswd.shared.certificates import request_fingerprint
from dpswd.shared.core.errors import LedgerCorrupt

pytestmark = [pytest.mark.timeout(900), pytest.mark.usefixtures("short_tuning")]

OPERATOR = ROOT / "docs" / "operator"
TEAM_PAGE = ROOT / "docs" / "ml-team" / "first-hour.md"
# The first and the last are held to the programs' options (tests/unit/documentation; what the last does is in
# test_cluster.py), the second run by tests/party/private_curator/cli, the third by test_publish_page.py.
ELSEWHERE = {"apply.md", "replicas.md", "publish.md", "cluster.md"}
TRAIN = (
    "dpswd-client train --data digits --curator localhost:50051 --credentials {credentials} --epsilon 0.5 "
    "--method normalisation --source-epochs 1 --checkpoint {run}"
)
AGAIN = {
    "dpswd-client init ": (3, "it is not overwritten, choose another directory"),
    "dpswd-client plan --curator ": (8, "it does NOT fit"),  # what the training has left is less
    "dpswd-client train --data digits --epsilon 2 ": None,  # a rehearsal, which leaves nothing behind
    "--checkpoint run ": (3, "holds a run already; continue it with --resume, or choose another directory"),
    "dpswd-curator records convert ": (3, "exists and is not overwritten; choose another name"),
    "dpswd-curator init ": (3, "nothing is ever overwritten; choose another directory"),
    "dpswd-curator approve ": (10, "make sure who asks and give --renew"),
}
"""Commands of the first hours that do something else the second time: the exit code, and what to do instead."""


def type_again(shell: Shell, page: list) -> None:
    """Every command of a page once more, in the directory where all of it was typed before.

    What is there already is what counts, so these run in the test's own process.
    """
    unused = [words for words in AGAIN if words.startswith(page[0].line.split()[0]) and not _types(page, words)]
    assert not unused, "no command of the page begins like this any more"
    for step in page:
        if isinstance(step, Command):
            answer = next((value for words, value in AGAIN.items() if words in step.line), (step.code, ""))
            if answer is not None:
                code, advice = answer
                shell.do(Command(step.line, [f"...{advice}..."], code), {}, where="typed again", here=True)


def _types(page: list, words: str) -> bool:
    return any(words in step.line for step in page if isinstance(step, Command))


class Hour:
    """Both sites on one machine; the pages are read one after the other and go on where the last one stopped."""

    def __init__(self, directory: Path) -> None:
        port = own_port()
        self.operator = Shell(directory / "hospital-site", port=port)
        self.team = Shell(directory / "team-site", port=port)
        self.done = set()

    @property
    def home(self) -> Path:
        return self.operator.directory / "hospital"

    def asks(self, line: str) -> list[dict]:
        command = Command(f"{line} --format json")
        return json.loads(self.operator.do(command, {}, where="test", here=True))

    def train(self, run: str, credentials: str = "client") -> None:
        self.team.do(Command(TRAIN.format(run=run, credentials=credentials)), {}, where="test", here=True)

    def hand_over(self, file: str, name: str) -> None:
        shutil.copy(self.team.directory / file, self.operator.directory / name)

    def fingerprint(self, name: str) -> Callable[[], str]:
        """What the team reads out of a request's fingerprint."""
        return lambda: request_fingerprint((self.operator.directory / name).read_bytes())[:16]

    def receive(self, folder: str, into: str) -> None:
        for path in (self.operator.directory / folder).iterdir():
            shutil.copy(path, self.team.directory / into)


@pytest.fixture(scope="module")
def hour(tmp_path_factory):
    made = Hour(tmp_path_factory.mktemp("pages"))
    yield made
    made.operator.stop()


def test_the_first_hour_of_both(hour):
    parts = iter(range(2))

    def request_and_pause() -> None:
        """The team's page begins; where the operator is needed, the operator's page goes on, and then the rest."""
        hour.hand_over("client/client.csr", "client.csr")
        hour.operator.read(
            OPERATOR / "first-hour.md", {"the team trains": the_rest}, {"TOLD": hour.fingerprint("client.csr")}
        )

    def the_rest() -> None:
        assert next(parts) == 0
        hour.receive("for-ml-team", "client")
        for step in remaining:
            if isinstance(step, Command):
                hour.team.do(step, {}, where=TEAM_PAGE.name)
            else:
                assert step.name == "the operator exports the ledger"
                view = hour.operator.directory / "view.jsonl"
                hour.operator.do(
                    Command("dpswd-curator ledger export --client ml-team --out view.jsonl"),
                    {},
                    where="test",
                )
                shutil.copy(view, hour.team.directory)
        type_again(hour.team, page)

    page = steps(TEAM_PAGE)
    pause = next(i for i, step in enumerate(page) if not isinstance(step, Command))
    remaining = page[pause + 1 :]
    for step in page[:pause]:
        hour.team.do(step, {}, where=TEAM_PAGE.name)
    request_and_pause()
    assert next(parts) == 1  # the team's page was read to its end
    type_again(hour.operator, steps(OPERATOR / "first-hour.md"))
    spent = hour.asks("dpswd-curator budget")
    assert 1 <= spent["runs"] <= 4  # rungs
    assert 0.1 < spent["epsilon_spent"] <= 1.0
    assert spent["epsilon"] == 3.0
    hour.done.add("first hour")


def test_the_upgrade(hour):
    assert "first hour" in hour.done, "the pages go on from one another; run the whole file"
    before = hour.asks("dpswd-curator budget")
    # The upgrade's last step is the team's.
    page = steps(OPERATOR / "upgrade.md")
    for step in page:
        who = hour.team if step.line.startswith("dpswd-client") else hour.operator
        who.do(step, {}, where="upgrade.md")
    assert hour.asks("dpswd-curator budget")["ledger_head"] == before["ledger_head"]


def test_backup_and_restore(hour):
    assert "first hour" in hour.done, "the pages go on from one another; run the whole file"

    backed_up = hour.asks("dpswd-curator budget")["epsilon_spent"]
    spent = 0.0

    def train_and_stop() -> None:
        nonlocal spent
        hour.train("after-monday")
        spent = hour.asks("dpswd-curator budget")["epsilon_spent"]
        hour.operator.stop()

    def lose_the_disk() -> None:
        shutil.rmtree(hour.home)
        hour.home.mkdir(mode=0o700)
        hour.hand_over("after-monday/receipts.jsonl", "receipts.jsonl")

    hour.operator.read(
        OPERATOR / "backup.md",
        {
            "the team trains once more": train_and_stop,
            "the disk is lost": lose_the_disk,
            "somebody copies the home": lambda: shutil.copytree(hour.home, hour.operator.directory / "copied"),
        },
        here=True,
    )
    assert hour.asks("dpswd-curator budget")["epsilon_spent"] >= spent > backed_up
    assert json.loads((hour.home / "checks.json").read_text())["verify"]["ok"]


def test_incidents(hour):
    assert "first hour" in hour.done, "the pages go on from one another; run the whole file"
    fingerprints = []

    def new_key() -> None:
        fingerprints.append(hour.asks("dpswd-curator certificates")[0]["fingerprint"])
        hour.team.do(Command("dpswd-client init ml-team --out client-again"), {}, where="test")
        hour.hand_over("client-again/client.csr", "new.csr")

    def serve_a_copy() -> None:
        """A disk that was copied whole, or a lie, and a client that kept what it got."""
        copy = HomeDirectory(Path(shutil.copytree(hour.home, hour.operator.directory / "copy")))
        with copy.open_ledger(here=False) as ledger:
            asked = Request(client="ml-team", request_id="at the copy", digest="d" * 64)
            last = ledger.runs()[-1]
            released = ledger.open_run(asked, event=last.event, parameters=last.parameters)
        with HomeDirectory(hour.home).open_ledger() as ledger, pytest.raises(LedgerCorrupt, match="lacks entry"):
            ledger.hold_to(released.receipt.entry)

    def edit_the_ledger() -> None:
        hour.operator.do(Command("dpswd-curator ledger backup last-night.db"), {}, where="test")
        hour.hand_over("run/receipts.jsonl", "receipts.jsonl")
        with closing(sqlite3.connect(hour.home / "ledger.db")) as database:
            (name,) = database.execute(
                "SELECT name FROM sqlite_master WHERE type = 'trigger' AND sql LIKE '%UPDATE ON entries%'"
            ).fetchone()
            database.execute(f"DROP TRIGGER {name}")
            database.execute(
                "UPDATE entries SET statement = "
                "CAST(replace(CAST(statement AS TEXT), 'third study', 'first study') AS BLOB)"
            )
            database.commit()

    hour.operator.read(
        OPERATOR / "incidents.md",
        {
            "the team makes a new key": new_key,
            "a copy serves": serve_a_copy,
            "somebody edits the ledger": edit_the_ledger,
        },
        {
            "FINGERPRINT": lambda: fingerprints[0],
            "TOLD": hour.fingerprint("new.csr"),
            "RUN": lambda: hour.asks("dpswd-curator runs")[-1]["run_id"],
        },
        here=True,
    )
    assert hour.asks("dpswd-curator budget")["state"] == "ended"


def test_every_operator_page_with_a_session_is_run() -> None:
    tested = Path(__file__).read_text()
    for page in OPERATOR.glob("*.md"):
        session = steps(page)
        if page.name in ELSEWHERE or not session:
            continue
        assert f'"{page.name}"' in tested
        for step in session:
            if isinstance(step, Command):
                assert re.match(
                    r"(dpswd-curator|dpswd-client|next/bin/dpswd-curator|bash|export|python|tar|chmod|cp) ", step.line
                )
