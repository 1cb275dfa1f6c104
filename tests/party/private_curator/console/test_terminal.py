"""Who signs in for commands: acts bear the subject, in the console's roles; nothing forged or stolen counts."""

from __future__ import annotations

import json
import os
import shutil
import ssl
import subprocess
import sys
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import httpx
import numpy as np
import pytest
from click.testing import CliRunner
from console_home import made_home_without_a_past
from made_home import made_home

pytest.importorskip("authlib", reason="dpswd[oidc] is not installed")

from forging_provider import CLAIMS, FORGERIES, with_roles, write_settings

from dpswd.private_curator.books.operators import Operator
from dpswd.private_curator.cli.main import main
from dpswd.private_curator.console import terminal
from dpswd.private_curator.console.people import SignInRefused
from dpswd.private_curator.operator import acts
from dpswd.private_curator.operator.record import Record
from dpswd.private_curator.storage.home_directory import HomeDirectory

FREEZE = ("budget", "--freeze", "--reason", "a look")
EXTEND = ("budget", "--extend", "60", "--reason", "a second study", "--confirm", "epsilon 60, delta 1e-05")


class Terminal:
    """An operator's account on the curator's machine, with a browser that keeps nothing."""

    def __init__(self, home: HomeDirectory, provider, folder: Path, monkeypatch) -> None:
        self.home, self.provider, self._folder, self._monkeypatch = home, provider, folder, monkeypatch
        self.trusted = ssl.create_default_context(cafile=provider.folder / "ca.pem")

    def run(self, *command: str, credential: Path | None = None):
        own = [] if credential is None else ["--credential", str(credential)]
        return CliRunner().invoke(main, [*own, *command, "--home", str(self.home.path)])

    def go(self, address: str) -> str:
        """Where the provider sends a browser that comes with this address."""
        return httpx.get(address, verify=self.trusted).headers["location"]

    def sign_in(self, change=lambda ended: ended):
        return terminal.sign_in(self.home, "127.0.0.1:8466", ask=lambda address: change(self.go(address)))

    @property
    def note(self) -> Path:
        return terminal.note_of(self.home)

    def refused(self, *command: str, because: str, **more) -> None:
        head, done = self.home.read_ledger().head, self.run(*command, **more)
        assert done.exit_code != 0, done.output
        assert because in done.output
        assert self.home.read_ledger().head == head


@pytest.fixture
def at(tmp_path, provider, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "states"))
    home = made_home(tmp_path, np.zeros((64, 3), dtype=np.float32))
    write_settings(home, provider.issuer, provider.folder / "ca.pem", 'role_claim = "realm_access.roles"')
    provider.forgery, provider.claims = "", dict(CLAIMS)
    return Terminal(home, provider, tmp_path, monkeypatch)


def test_whoever_signs_in_acts_under_their_own_number_and_no_longer_after_signing_out(at):
    at.refused(*FREEZE, because="sign in with `dpswd-curator operators --sign-in`")
    person, _ = at.sign_in()
    assert person.subject["name"] == "Dr. Anna Weiss"
    assert at.note.stat().st_mode & 0o777 == 0o600
    assert at.note.parent.stat().st_mode & 0o777 == 0o700
    fields = {"home", "user", "issuer", "sub", "name", "roles", "until", "signature"}
    assert set(json.loads(at.note.read_text())) == fields  # no token of the provider's
    assert at.run(*FREEZE).exit_code == 0
    by = at.home.read_ledger().entries[-1].payload["by"]
    assert by["subject"] == {"issuer": at.provider.issuer, "sub": "7f3a", "name": "Dr. Anna Weiss"}
    assert "Dr. Anna Weiss (7f3a at https://localhost" in Record(at.home).history[-1].who
    for _ in range(2):
        assert at.run("operators", "--sign-out").output == "nobody is signed in\n"
    at.refused("budget", "--unfreeze", "--reason", "x", because="have not signed in")


def test_the_answer_goes_to_the_loopback_with_all_that_guards_it(at):
    shown: list[str] = []
    terminal.sign_in(at.home, "127.0.0.1:8466", ask=lambda address: shown.append(address) or f" {at.go(address)}\n")
    asked = parse_qs(urlsplit(shown[0]).query)
    assert asked["redirect_uri"] == ["http://127.0.0.1:8466/sign-in/answer"]
    assert asked["code_challenge_method"] == ["S256"]
    assert asked["response_type"] == ["code"]
    assert len(asked["state"][0]) >= 20
    assert len(asked["nonce"][0]) >= 20


@pytest.mark.parametrize("forgery", FORGERIES)
def test_what_the_provider_did_not_sign_for_this_sign_in_is_refused(at, forgery):
    at.provider.forgery = forgery
    with pytest.raises(SignInRefused) as refused:
        at.sign_in()
    assert "another.example" not in str(refused.value)
    assert not at.note.exists()
    at.refused(*FREEZE, because="sign in with")


def test_an_answer_is_good_for_its_own_sign_in_once(at):
    ended = []
    at.sign_in(lambda address: ended.append(address) or address)
    at.run("operators", "--sign-out")
    for change in (
        lambda _: ended[0],  # replayed
        lambda address: address.replace(parse_qs(urlsplit(address).query)["state"][0], "guessed"),
        lambda address: address.replace(parse_qs(urlsplit(address).query)["code"][0], "guessed"),
        lambda address: f"{address.partition('?')[0]}?error=access_denied",
        lambda _: "",
    ):
        with pytest.raises(SignInRefused, match="vouches for nobody"):
            at.sign_in(change)
        assert not at.note.exists()


@pytest.mark.parametrize("roles", [(), ("nurse",)])
def test_without_a_role_nobody_is_signed_in(at, roles):
    with_roles(at.provider, *roles)
    with pytest.raises(SignInRefused, match="no role here"):
        at.sign_in()
    assert not at.note.exists()


LOOKS = (
    ("budget",), ("clients",), ("requests",), ("history",), ("runs",), ("report",), ("operators",), ("extractors",),
    ("incidents",), ("settings",),
)  # fmt: skip
ACTS = (
    FREEZE, EXTEND, ("budget", "--lower", "1", "--reason", "x"), ("clients", "ml-team", "--pause", "--reason", "x"),
    ("requests", "1", "--deny", "--reason", "x"), ("extractors", "ab" * 32, "--approve"),
    ("report", "--state", "legal-basis", "x"), ("records", "accept", "--reason", "x"),
    ("certificates", "--renew-server"), ("certificates", "--rotate-ledger-key", "x"),
    ("ledger", "restore", "--as-it-is", "--reason", "x"),
)  # fmt: skip


def test_without_a_sign_in_everybody_looks_and_nobody_acts(at, tmp_path):
    for command in LOOKS:
        assert at.run(*command).exit_code == 0, command
    assert at.run("ledger", "backup", str(tmp_path / "copy.db")).exit_code == 0  # a job of the night
    signed = (("ledger", "verify"), ("ledger", "export"), ("report", "page", str(tmp_path / "page.html")))
    for command in (*ACTS, *signed):
        at.refused(*command, because="sign in with `dpswd-curator operators --sign-in`")
    made = Operator.make(tmp_path / "mine", "mine")
    at.refused(*FREEZE, because="sign in with", credential=tmp_path / "mine")  # enrolled nowhere
    assert made.credential not in str(at.home.read_ledger().entries)


@pytest.mark.parametrize("role", ["viewer", "auditor", "second"])
def test_a_role_holds_for_commands_as_on_the_console(at, role, tmp_path):
    with_roles(at.provider, role)
    at.sign_in()
    for command in LOOKS:
        assert at.run(*command).exit_code == 0, command
    said = "what another operator has noted" if role == "second" else f"the role {role} does not do this"
    for command in ACTS:
        if role != "second" or command[0] not in ("requests", "records"):  # of which there is nothing to decide here
            at.refused(*command, because=said)
    for command in (("ledger", "verify"), ("ledger", "export"), ("report", "page", str(tmp_path / "page.html"))):
        done = at.run(*command)
        assert (done.exit_code == 0) is (role == "auditor"), done.output
        assert role == "auditor" or f"the role {role} does not do this" in done.output


def test_a_sign_in_ends(at, monkeypatch):
    monkeypatch.setattr(terminal, "SESSION_S", 0.0)
    at.sign_in()
    at.refused(*FREEZE, because="your sign-in has ended")


def test_a_note_counts_in_its_own_home_for_its_own_account_as_it_was_written(at, tmp_path, monkeypatch):
    at.sign_in()
    written = at.note.read_bytes()
    (tmp_path / "other").mkdir()
    other = Terminal(made_home_without_a_past(tmp_path / "other"), at.provider, tmp_path, monkeypatch)
    other.home.settings.write_text(at.home.settings.read_text())
    copied = Terminal(HomeDirectory(tmp_path / "copied"), at.provider, tmp_path, monkeypatch)
    shutil.copytree(at.home.path, copied.home.path)
    for stolen, said in ((other, "is no sign-in of this curator"), (copied, "is of another home")):
        stolen.note.write_bytes(written)
        stolen.refused(*FREEZE, because=said)
    for changed in ({"sub": "99ab"}, {"until": "2999-01-01T00:00:00+00:00"}, {"home": "x"}, {"roles": ["auditor"]}):
        at.note.write_text(json.dumps(json.loads(written) | changed))
        at.refused(*FREEZE, because="is no sign-in of this curator")
    for broken in ("", "{}", "[]", '{"signature": 7}', '{"signature": "ab"}', "\x00"):
        at.note.write_text(broken)
        at.refused(*FREEZE, because="is no sign-in of this curator")
    at.note.write_bytes(written)
    with monkeypatch.context() as patched:
        patched.setattr(terminal.os, "geteuid", lambda: os.getuid() + 1)
        at.refused(*FREEZE, because="is of another home, account or provider")
    assert at.run(*FREEZE).exit_code == 0
    at.home.settings.write_text(at.home.settings.read_text().replace("https://localhost", "https://elsewhere"))
    at.refused("budget", "--unfreeze", "--reason", "x", because="is of another home, account or provider")


def test_two_different_people_extend_by_commands_and_one_of_them_does_not_twice(
    enrolled, provider, tmp_path, monkeypatch
):
    home, _ = enrolled
    its = tmp_path / "console"
    at = Terminal(home, provider, tmp_path, monkeypatch)

    def come(account: str, *roles: str, **who: str) -> None:
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / account))
        with_roles(provider, *roles, **who)
        at.sign_in()

    come("braun", "second", sub="99ab", name="Dr. Braun")
    at.refused(*EXTEND, because="what another operator has noted", credential=its)
    come("weiss", "operator", "second")
    for _ in range(2):
        at.refused(*EXTEND, because="noted for Dr. Anna Weiss and not done", credential=its)
    come("weiss on another day", "operator", name="A. Weiss")  # the number is the person
    at.refused(*EXTEND, because="and not done", credential=its)
    at.refused(*EXTEND, because="give it (--credential FILE)")  # the ledger's operators still have credentials
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "braun"))
    assert at.run(*EXTEND, credential=its).exit_code == 0
    assert home.read_ledger().books.account.budget.epsilon == 60.0
    said = Record(home).history[-1].who
    assert "Weiss (7f3a at https://localhost" in said
    assert "seconded by Dr. Braun (99ab at https://localhost" in said
    assert acts.verify_ledger(home).ok


def test_a_person_who_is_enrolled_needs_no_sign_in_and_whoever_speaks_for_others_does(
    enrolled, provider, tmp_path, monkeypatch
):
    home, _ = enrolled
    at = Terminal(home, provider, tmp_path, monkeypatch)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "nobody"))
    assert at.run(*FREEZE, credential=tmp_path / "anna").exit_code == 0
    at.refused("budget", "--unfreeze", "--reason", "x", because="sign in with", credential=tmp_path / "console")


def test_without_a_provider_there_is_nothing_to_sign_in_to(tmp_path):
    home = made_home_without_a_past(tmp_path)
    done = CliRunner().invoke(main, ["operators", "--sign-in", "--home", str(home.path)])
    assert (done.exit_code, "no provider signs people in here" in done.output) == (3, True)


def test_the_program_signs_in_at_a_provider_of_others(published, tmp_path):
    issuer, ca = published
    home = made_home_without_a_past(tmp_path)
    (tmp_path / "secret").write_text("of this client\n")
    write_settings(home, issuer, ca, f'client_secret_file = "{tmp_path}/secret"')
    trusted = ssl.create_default_context(cafile=ca)
    assert httpx.put(f"{issuer}/users/u7", json={"name": "Dr. Berg", "roles": ["dpswd-operator"]}, verify=trusted)
    environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "states"), "DPSWD_CURATOR_HOME": str(home.path)}
    program = [sys.executable, "-m", "dpswd.private_curator.cli"]
    signing = subprocess.Popen(
        [*program, "operators", "--sign-in"],
        env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    address = signing.stdout.readline().removeprefix("open in a browser: ").strip()
    back = httpx.post(address, data={"sub": "u7"}, verify=trusted).headers["location"]
    said, _ = signing.communicate(f"{back}\n", timeout=60)
    assert "you are Dr. Berg (operator) until" in said
    subprocess.run([*program, *FREEZE], env=environment, check=True)
    by = home.read_ledger().entries[-1].payload["by"]
    assert by["subject"] == {"issuer": issuer, "sub": "u7", "name": "Dr. Berg"}
