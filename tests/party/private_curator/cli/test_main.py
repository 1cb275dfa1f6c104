from __future__ import annotations

import contextlib
import json
import os
import re
import stat
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from dpswd.private_curator.cli.common import EXIT_CODES
from dpswd.private_curator.cli.main import main
from dpswd.private_curator.settings import tree as settings
from dpswd.private_curator.storage.home_directory import HomeDirectory
from dpswd.private_curator.storage.incidents import IncidentBook
from dpswd.public_client.curator.identity import make_identity
from dpswd.shared.certificates import request_fingerprint

RECORDS = np.random.default_rng(2).normal(size=(40, 3)).astype(np.float32)


class Operator:
    """Runs commands in this process; the end-to-end tests run them as processes."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.home = HomeDirectory(directory / "home")
        np.save(directory / "records.npy", RECORDS)

    def run(self, *arguments: object, status: int = 0) -> str:
        environment = {"DPSWD_CURATOR_HOME": str(self.home.path)}
        result = CliRunner().invoke(main, [str(argument) for argument in arguments], env=environment)
        assert result.exit_code == status, (result.output, result.exception)
        return result.output

    def json(self, *arguments: object):
        return json.loads(self.run(*arguments, "--format", "json"))

    def init(self, *arguments: object, status: int = 0) -> str:
        records = self.directory / "records.npy"
        return self.run("init", "--records", records, "--epsilon", 2, "--delta", 1e-5, *arguments, status=status)


@pytest.fixture
def bare(tmp_path):
    return Operator(tmp_path)


@pytest.fixture
def operator(bare):
    bare.init()
    return bare


def test_init_declares_the_range_and_preflight_minds_where_there_is_none(bare, tmp_path):
    bare.init("--value-range", "-9,9")
    (row,) = (row for row in bare.json("preflight") if row["check"] == "data contract")
    assert (row["ok"], row["mind"], row["finding"]) == (True, False, "-9 to 9")
    assert "value_range = [" in (bare.home.path / "curator.toml").read_text()
    (tmp_path / "other").mkdir()
    other = Operator(tmp_path / "other")
    assert "must be two finite numbers" in other.init("--value-range", "9,-9", status=3)
    other.init()
    (row,) = (row for row in other.json("preflight") if row["check"] == "data contract")
    assert (row["ok"], row["mind"]) == (True, True)
    text = other.run("preflight")
    assert "  mind   data contract" in text
    assert text.splitlines()[-1] == "14 of 15 checks are well, 1 to mind: this curator can serve"


@pytest.mark.parametrize(
    ("options", "declared"),
    [((), (0.0, 1.0)), (("--scale-to", -1, 1), (-1.0, 1.0)), (("--value-range", "0,0.5"), (0.0, 0.5)),
     (("--scale-from", 0, 100), None)],
)  # fmt: skip
def test_init_declares_what_bytes_are_mapped_to(bare, options, declared):
    """Else a team whose transform normalises for another network is charged before anybody notices."""
    np.save(bare.directory / "records.npy", np.random.default_rng(0).integers(0, 128, (60, 4), dtype=np.uint8))
    text = bare.init(*options)
    assert settings.load(bare.home.path).records.value_range == declared
    assert declared is None or re.search("value range +{:g} to {:g}".format(*declared), text)
    (row,) = (row for row in bare.json("preflight") if row["check"] == "data contract")
    assert row["mind"] == (declared is None)


def test_init_tells_whose_labels_have_no_classes(bare):
    """Else a team's `--evaluate-epsilon` fails later, and nobody here knows why."""
    labels = bare.directory / "labels.npy"
    np.save(labels, np.arange(40) % 2)
    assert "nothing that reads labels" in bare.init("--labels-file", labels)
    (row,) = (row for row in bare.json("preflight") if row["check"] == "records")
    assert (row["ok"], row["mind"]) == (True, True)
    assert "declare records.classes" in row["finding"]


def test_a_refusal_names_the_option_that_was_typed_and_the_values_of_the_file(bare):
    table = bare.directory / "t.csv"
    table.write_text("age;sick\n60,5;yes\n61,5;no\n")
    words = ("init", "--records", table, "--epsilon", 2, "--delta", 1e-5)
    text = bare.run(*words, "--labels-array", "sick", "--classes", "no,yess", status=4)
    assert text.endswith("name the classes in order in --classes (found: 'no', 'yes')\n")
    assert "the labels' in --labels-array (first at" in bare.run(*words, status=4)
    assert "Error: --delimiter is" in bare.run(*words, "--delimiter", ";;", status=3)
    assert "no column 'sik'; it has 'age', 'sick'; did you mean 'sick'?" in bare.run(
        "records", "inspect", table, "--labels-array", "sik", status=4
    )
    assert "set PATH to a file of records" in bare.run("records", "inspect", bare.directory / "t.cs", status=4)


def test_init_makes_a_curator_that_passes_preflight(operator):
    shown = operator.json("budget")
    assert (shown["records"], shown["epsilon"], shown["delta"], shown["epsilon_spent"]) == (40, 2.0, 1e-5, 0.0)
    assert all(row["ok"] for row in operator.json("preflight"))
    assert stat.S_IMODE(operator.home.ledger_key.stat().st_mode) == 0o600


def test_init_asks_for_the_data_sets_name(bare, tmp_path, monkeypatch):
    """Or says which it took, where nobody is there to be asked."""
    assert "named 'records', after its file" in bare.init()
    monkeypatch.setattr("click.testing._NamedTextIOWrapper.isatty", lambda _: True)
    words = [
        "init",
        "--home",
        tmp_path / "other",
        "--records",
        tmp_path / "records.npy",
        "--epsilon",
        2,
        "--delta",
        1e-5,
    ]
    asked = CliRunner().invoke(main, [str(word) for word in words], input="ward 7\n")
    assert "which teams and boards read [records]: " in asked.output
    assert 'name = "ward 7"' in (tmp_path / "other" / "curator.toml").read_text()


def test_init_never_overwrites(operator):
    before = operator.home.ledger_key.read_bytes()
    assert "nothing is ever overwritten" in operator.init(status=3)
    assert operator.home.ledger_key.read_bytes() == before


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (("--array", "x", "--record-shape", "1,2"), 4),
        (("--record-shape", "1,a"), 3),
        (("--san", "no name"), 3),
        (("--address", "nowhere"), 3),
        (("--scale-from", "1", "0"), 3),
        (("--epsilon", "-1"), 9),
        (("--delta", "2"), 9),
        (("--delta", "0.025"), 3),  # 1/n
        (("--epsilon", "11", "--confirm", "epsilon 11"), 3),
        (("--device", "tpu"), 2),
    ],
)
def test_a_refused_init_says_why_and_leaves_nothing(bare, arguments, status):
    output = bare.init(*arguments, status=status)
    assert "Error" in output
    assert "Traceback" not in output
    assert list(bare.home.path.rglob("*.*")) == []


def test_init_writes_its_options(bare):
    bare.init(
        "--name", "ward 7", "--record-shape", "1,3", "--scale-from", -4, 4, "--address", "0.0.0.0:7000",
        "--device", "cpu", "--approve", "listed", "--san", "curator.example.org",
    )  # fmt: skip
    values = {row["name"]: row["value"] for row in bare.json("settings")}
    assert values["records.name"] == "ward 7"
    assert values["records.record_shape"] == [1, 3]
    assert (values["listen.host"], values["listen.port"]) == ("0.0.0.0", 7000)
    assert (values["compute.device"], values["extractors.approval"]) == ("cpu", "listed")
    assert all(row["ok"] for row in bare.json("preflight"))


def test_the_life_of_a_client(operator, tmp_path):
    added = operator.json("add", "ml-team", "--out", tmp_path / "a", "--epsilon", 1)
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == [
        "ca.crt",
        "client.crt",
        "client.key",
        "ledger.pub",
    ]
    (listed,) = operator.json("clients")
    assert (listed["name"], listed["fingerprint"], listed["share"]) == ("ml-team", added["fingerprint"], 1.0)
    operator.run("clients", "ml-team", "--share", 0.5, "--reason", "less is enough")
    renewed = operator.json("add", "--renew", "ml-team", "--out", tmp_path / "b")
    operator.run("add", "--renew", "ml-team", "--out", tmp_path / "b", status=3)
    operator.run("clients", "--revoke", "ml-team", "--reason", "left")
    (listed,) = operator.json("clients")
    assert (listed["state"], listed["share"], listed["fingerprint"]) == ("revoked", 0.5, renewed["fingerprint"])
    operator.run("add", "ml-team", "--out", tmp_path / "c", status=9)
    assert not (tmp_path / "c").exists()
    operator.run("clients", "--revoke", "nobody", "--reason", "x", status=7)


def test_caps_are_set_and_taken_away_for_a_day_and_a_year(operator, tmp_path):
    operator.run("add", "ml-team", "--out", tmp_path / "a")
    operator.run("clients", "ml-team", "--cap", 0.25, "--reason", "a brake")
    assert "ml-team may spend epsilon 0.4 a year" in operator.run(
        "clients", "ml-team", "--cap", 0.4, "--year", "--reason", "it watches its model"
    )
    (row,) = operator.json("clients")
    assert [row[name] for name in ("cap_day", "spent_day", "cap_year", "spent_year")] == [0.25, 0.0, 0.4, 0.0]
    operator.run("clients", "ml-team", "--cap", 0, "--reason", "no brake")
    assert "ml-team has no cap for a year" in operator.run(
        "clients", "ml-team", "--cap", 0, "--year", "--reason", "over"
    )
    (row,) = operator.json("clients")
    assert (row["cap_day"], row["cap_year"]) == (None, None)
    operator.run("clients", "ml-team", "--share", 0.5, "--year", "--reason", "x", status=2)


def test_records_are_updated_by_an_act_with_its_doubts(operator):
    """Another number is refused but as an update; a delta of one over it has to be typed out."""
    grown = np.zeros((120_000, 1), dtype=np.float32)
    np.save(operator.directory / "records.npy", np.load(operator.directory / "records.npy")[:30])
    assert "--update" in operator.run("records", "accept", "--reason", "fewer", status=3)
    operator.run("records", "accept", "--update", "--reason", "ten withdrew their consent")
    assert operator.json("budget")["records"] == 30
    assert "updated the records: 30 from now on" in operator.run("history")
    assert all(row["ok"] for row in operator.json("preflight"))
    np.save(operator.directory / "records.npy", grown)
    words = ("records", "accept", "--update", "--reason", "a larger cohort")
    assert "1/n or more of 120000 records" in operator.run(*words, status=3)
    assert operator.json("budget")["records"] == 30
    operator.run(*words, "--confirm", "epsilon 2, delta 1e-05")
    assert operator.json("budget")["records"] == 120_000


def test_a_clients_key_never_comes_here(operator, tmp_path):
    request = make_identity("hospital-b", tmp_path / "b")
    fingerprint = ("--fingerprint", request_fingerprint(request.read_bytes()))
    approval = ("approve", request, "--out", tmp_path / "signed")
    assert "over another way" in operator.run(*approval, status=3)
    assert "another one was told" in operator.run(*approval, "--fingerprint", "0" * 16, status=3)
    shown = operator.json(*approval, *fingerprint)
    assert sorted(path.name for path in (tmp_path / "signed").iterdir()) == ["ca.crt", "client.crt", "ledger.pub"]
    assert "stays" in shown["key"]
    assert "is a client already" in operator.run("approve", request, "--out", tmp_path / "x", *fingerprint, status=10)
    operator.run("approve", tmp_path / "none.csr", "--out", tmp_path / "x", status=3)
    assert [row["name"] for row in operator.json("clients")] == ["hospital-b"]


def test_the_budget_changes_by_explicit_acts_only(operator):
    operator.run("budget", "--lower", 1, "--reason", "a new rule")
    operator.run("budget", "--lower", 3, "--reason", "x", status=9)
    operator.run("budget", "--extend", 0.5, "--reason", "x", status=9)
    refused = operator.run("budget", "--extend", 4, "--reason", "the board agreed", status=3)
    assert "factor 2" in refused
    assert "2.72 times as probable" in refused  # the effect is shown
    operator.run("budget", "--extend", 4, "--reason", "x", "--confirm", "epsilon 4", status=3)
    words = ("--confirm", "epsilon 4, delta 1e-05")
    operator.run("--as", "Dr. Weber", "budget", "--extend", 4, "--reason", "the board agreed", *words)
    (extended,) = operator.json("history", "--who", "Dr. Weber")
    assert (extended["kind"], extended["why"], extended["epsilon"]) == ("budget-extended", "the board agreed", 4.0)
    assert operator.json("budget")["epsilon"] == 4.0
    for act, state in (("freeze", "frozen"), ("unfreeze", "open")):
        assert "it was so before" not in operator.run("budget", f"--{act}", "--reason", "an inquiry")
        assert operator.json("budget")["state"] == state
        assert "it was so before" in operator.run("budget", f"--{act}", "--reason", "another")
    operator.run("budget", "--end", "--reason", "over", "--yes")
    assert operator.json("budget")["state"] == "ended"
    operator.run("budget", "--unfreeze", "--reason", "x", status=9)
    operator.run("budget", "--lower", 1, status=2)


def test_one_act_at_a_time_and_each_with_what_it_needs(operator, tmp_path):
    before = operator.json("budget")["ledger_head"]
    for words, message in (
        (("budget", "--freeze", "--end", "--reason", "x"), "--freeze and --end are two acts"),
        (("budget", "--freeze"), "Missing option '--reason'"),
        (("budget", "--reason", "x"), "name one: --freeze, --unfreeze, --lower, --extend, --end"),
        (("budget", "--freeze", "--delta", "1e-6", "--reason", "x"), "--delta is of --lower and --extend"),
        (("clients", "--pause", "--reason", "x"), "--pause needs the client's NAME"),
        (("clients", "ml-team", "--cap", "1", "--delta", "1e-6", "--reason", "x"), "--delta is of --share"),
        (("requests", "--deny", "--reason", "x"), "--deny needs the request's NUMBER"),
        (("requests", "1", "--deny", "--epsilon", "1", "--reason", "x"), "--epsilon is of --approve"),
        (("runs", "--prune", "--reason", "x"), "--prune needs the run's RUN_ID"),
        (("extractors", "--approve"), "--approve needs the graph's DIGEST"),
        (("operators", "--remove", "--reason", "x"), "--remove needs the operator's NAME"),
        (("operators", "anna", "--remove"), "Missing option '--reason'"),
        (("certificates", "--make", "--renew-server"), "are two acts"),
        (("ledger", "restore"), "--as-it-is"),
        (("ledger", "restore", "--as-it-is"), "Missing option '--reason'"),
        (("add", "ml-team", "--replace", "--out", "x"), "--replace is of --renew"),
        (("add", "ml-team", "--renew", "--epsilon", "1", "--out", "x"), "clients NAME --share"),
    ):
        assert message in operator.run(*words, status=2), words
    assert "Aborted" in operator.run("budget", "--end", "--reason", "over", status=1)  # nobody typed yes
    assert operator.json("budget")["ledger_head"] == before


def test_a_certificate_is_replaced_under_the_same_demands(operator, tmp_path):
    request = make_identity("ml-team", tmp_path / "a")
    fingerprint = ("--fingerprint", request_fingerprint(request.read_bytes()))
    approval = ("approve", request, "--out", tmp_path / "out", *fingerprint)
    assert "no certificate to replace" in operator.run(*approval, "--replace", status=3)
    operator.run(*approval)
    again = make_identity("ml-team", tmp_path / "b")
    replaced = ("approve", again, "--out", tmp_path / "again", "--renew", "--replace")
    assert "over another way" in operator.run(*replaced, status=3)
    operator.run(*replaced, "--fingerprint", request_fingerprint(again.read_bytes()))
    (left,) = operator.json("certificates")
    assert (left["name"], left["state"]) == ("ml-team", "valid")
    assert operator.json("clients", "ml-team")["fingerprint"] == left["fingerprint"]
    operator.run("clients", "ml-teem", status=7)


def test_a_home_that_nobody_named_is_asked_for_by_both_names(bare):
    for words in (["budget"], ["report", "page", "r.html"], ["operators"], ["serve"]):
        result = CliRunner().invoke(main, words)
        assert result.exit_code == 2
        assert "--home" in result.output
        assert "DPSWD_CURATOR_HOME" in result.output
    made = CliRunner().invoke(main, ["operators", "anna", "--make", str(bare.directory / "anna")])
    assert made.exit_code == 0  # one's own credential takes no home


def test_help_shows_commands_by_how_often_they_are_typed(bare):
    for title in main.sections:
        assert f"{title}:" in bare.run("--help")


def test_extractors_are_approved_and_withdrawn(operator):
    digest = "ab" * 32
    operator.run("extractors", "--approve", digest)
    assert operator.json("extractors") == [{"digest": digest}]
    operator.run("extractors", "--withdraw", digest)
    assert operator.json("extractors") == []
    operator.run("extractors", "--approve", "LeNet", status=9)


def test_the_ledger_is_verified_exported_backed_up_and_restored(operator, tmp_path):
    assert operator.json("ledger", "verify")["ok"] is True
    operator.run("ledger", "export", "--out", tmp_path / "export.jsonl")
    operator.run("ledger", "export", "--out", tmp_path / "export.jsonl", status=3)
    assert len((tmp_path / "export.jsonl").read_text().splitlines()) == operator.json("budget")["ledger_entries"]
    operator.run("ledger", "backup", tmp_path / "backup.db")
    assert operator.json("ledger", "verify", "--last-signature", "--file", tmp_path / "backup.db")["ok"] is True
    operator.run("budget", "--freeze", "--reason", "later than the backup")
    refused = operator.run("ledger", "restore", tmp_path / "backup.db", status=6)
    assert "would be forgotten" in refused
    loss = "I accept that the freeze of today is forgotten, it was a test"
    operator.run("ledger", "restore", tmp_path / "backup.db", "--accept-loss", loss)
    assert operator.json("budget")["state"] == "open"


def test_an_edited_ledger_has_its_own_exit_code(operator, tmp_path):
    operator.run("ledger", "export", "--out", tmp_path / "export.jsonl")
    data = bytearray(operator.home.ledger.read_bytes())
    place = data.find(b'"epsilon":2.0')
    data[place : place + 13] = b'"epsilon":9.0'
    operator.home.ledger.write_bytes(bytes(data))
    assert "edited" in operator.run("ledger", "verify", status=6)
    operator.run("ledger", "verify", "--last-signature", status=6)  # the chain of hashes is broken


def test_without_a_home_every_command_says_what_to_do(bare):
    for command in (("budget",), ("clients",), ("serve",), ("settings",), ("runs",)):
        assert "dpswd-curator init" in bare.run(*command, status=3)


def test_preflight_names_every_problem_and_its_remedy(operator):
    operator.home.ledger_key.chmod(0o644)
    np.save(operator.directory / "records.npy", RECORDS[:30])
    output = operator.run("preflight", "--format", "json", status=3)
    bad = {row["check"]: row["finding"] for row in json.loads(output) if not row["ok"]}
    assert "chmod 600" in bad["key files"]
    assert "restore the file" in bad["records"]
    assert set(bad) == {"key files", "records"}


def test_incidents_are_listed_by_number(operator):
    try:
        raise ValueError("patient 4711")
    except ValueError as error:
        number = IncidentBook(operator.home.incidents).record(error, operation="AlignTarget", client="ml-team")
    assert operator.json("incidents")[0]["number"] == number
    shown = operator.run("incidents", number, "--format", "json")
    assert "test_main.py" in shown
    assert "patient" not in shown
    assert "4711" not in shown.replace(number, "")  # random digits
    operator.run("incidents", "0", status=9)


def test_every_command_has_help_and_exit_codes_have_their_page(bare):
    def walk(command, path):
        assert command.help, path
        for name, inner in getattr(command, "commands", {}).items():
            assert "Usage" in bare.run(*path, name, "--help")
            walk(inner, (*path, name))

    walk(main, ())
    page = (Path(__file__).resolve().parents[4] / "docs" / "exit-codes.md").read_text()
    rows = re.findall(r"^\| \[(\d+)\]\(#exit-code-\1\) \| (.*?) ?\|", page, flags=re.MULTILINE)
    documented = {int(code) for code, meaning in rows if meaning}
    assert documented == {0, 1, 2} | {code for _, code in EXIT_CODES}


def test_chosen_acts_take_two_operators(operator, tmp_path):
    """Two credentials, not two names: and the ledger states both."""
    settings = operator.home.settings
    settings.write_text(settings.read_text() + '\n[operators]\nsecond = ["extend", "approve", "restore"]\n')
    extension = ("budget", "--extend", 3, "--reason", "second study")
    for name in ("anna", "ben"):
        assert "0 are enrolled" in operator.run("--as", name, *extension, status=3)
    keys = {}
    for name in ("anna", "ben", "eve"):
        made = operator.run("operators", name, "--make", tmp_path / name)
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600
        keys[name] = re.search(r"operators '(\w+)' --add ([0-9a-f]{64})", made)[2]
    anna, ben, eve = (("--credential", tmp_path / name) for name in keys)
    operator.run("operators", "anna", "--add", keys["anna"], status=3)
    operator.run(*anna, "operators", "anna", "--add", keys["anna"])
    assert "1 are enrolled" in operator.run(*anna, *extension, status=3)
    operator.run("--as", "anna", "operators", "ben", "--add", keys["ben"], status=3)  # a name is none
    operator.run(*eve, "operators", "eve", "--add", keys["eve"], status=3)
    operator.run(*anna, "operators", "ben", "--add", keys["anna"], status=9)  # one key is one person
    operator.run(*anna, "operators", "ben", "--add", keys["ben"])
    assert "noted for anna and not done" in operator.run(*anna, "operators", "eve", "--add", keys["eve"], status=3)

    assert "noted for anna and not done" in operator.run(*anna, *extension, status=3)
    assert "noted for anna" in operator.run(*anna, *extension, status=3)  # nobody seconds oneself
    for other in (("--as", "ben"), eve, ("--as", "anna, seconded by ben")):
        operator.run(*other, *extension, status=3)
    assert "leave --as out" in operator.run("--as", "ben", *anna, *extension, status=3)
    other = ("budget", "--extend", 3.5, "--reason", "second study")
    assert "noted for ben" in operator.run(*ben, *other, status=3)  # another act
    assert operator.json("budget")["epsilon"] == 2.0
    operator.run(*ben, *extension)
    assert operator.json("budget")["epsilon"] == 3.0
    (extended,) = [event for event in operator.json("history") if event["kind"] == "budget-extended"]
    both = f"anna ({keys['anna'][:8]}), seconded by ben ({keys['ben'][:8]})"
    assert extended["who"] == both
    request = make_identity("ml-team", tmp_path / "team")
    approve = ("approve", request, "--out", tmp_path / "out")
    approve += ("--fingerprint", request_fingerprint(request.read_bytes())[:16])
    operator.run(*anna, *approve, status=3)
    assert operator.json("clients") == []
    operator.run(*ben, *approve)
    operator.run("ledger", "backup", tmp_path / "copy")
    restore = ("ledger", "restore", tmp_path / "copy")
    operator.run("--as", "anna", *restore, status=3)
    operator.run(*anna, *restore, status=3)
    operator.run(*ben, *restore)
    assert operator.json("history")[-1]["who"] == both
    remove = ("operators", "--remove", "ben", "--reason", "has left")
    operator.run(*ben, *remove, status=3)
    operator.run(*anna, *remove)
    assert [row["operator"] for row in operator.json("operators")] == ["anna"]
    operator.run(*ben, "budget", "--lower", 2.5, "--reason", "x", status=3)
    operator.run(*anna, "budget", "--lower", 2.5, "--reason", "x")
    assert operator.json("ledger", "verify")["ok"]


def test_a_credential_is_a_file_of_ones_own(operator, tmp_path):
    file = tmp_path / "anna"
    operator.run("operators", "anna", "--make", file)
    operator.run("operators", "anna", "--make", file, status=3)  # nothing is overwritten
    freeze = ("budget", "--freeze", "--reason", "x")
    file.chmod(0o640)
    assert "yours alone" in operator.run("--credential", file, *freeze, status=3)
    file.chmod(0o600)
    operator.run("--credential", file, *freeze)
    secret = json.loads(file.read_text())["key"]
    file.write_text(json.dumps({"format": "dpswd-operator-1", "operator": "anna", "key": f"{secret}x"}))
    refused = operator.run("--credential", file, *freeze, status=3)
    assert "no operator's credential" in refused
    assert secret not in refused


def test_the_report_is_made_and_checked(operator, tmp_path):
    out = tmp_path / "report.html"
    operator.run("--as", "anna", "report", "page", out)
    assert "by <bdi>anna</bdi>." in out.read_text()
    operator.run("report", "page", out, status=3)
    operator.run("add", "ml-team", "--out", tmp_path / "team")
    assert "is as it was signed" in operator.run("report", "page", out, "--check", tmp_path / "team" / "ledger.pub")
    out.write_text(out.read_text().replace("<bdi>anna", "<bdi>ben"))
    operator.run("report", "page", out, "--check", tmp_path / "team" / "ledger.pub", status=4)


def test_requests_that_are_not_there(operator):
    assert operator.json("requests") == []
    assert "does not exist" in operator.run("requests", "--approve", 1, "--reason", "x", status=9)
    assert "does not exist" in operator.run("requests", "--deny", 1, "--reason", "x", status=9)
    operator.run("runs", "0" * 32, status=7)


def test_looking_works_on_a_read_only_home_without_key_and_records(operator, tmp_path):
    operator.run("add", "ml-team", "--out", tmp_path / "team")
    operator.run("ledger", "verify")
    operator.home.ledger_key.rename(tmp_path / "key")
    (operator.directory / "records.npy").unlink()
    before = {path: path.read_bytes() for path in operator.home.path.rglob("*") if path.is_file()}
    (operator.home.path / "ledger.db.lock").unlink()
    before.pop(operator.home.path / "ledger.db.lock")
    looks = [("budget",), ("clients",), ("runs",), ("extractors",), ("requests",)]
    with mounted_read_only(operator.home.path):
        for look in [*looks, ("history",)]:
            operator.json(*look)
            operator.run(*look)
    assert {path: path.read_bytes() for path in operator.home.path.rglob("*") if path.is_file()} == before


@contextlib.contextmanager
def mounted_read_only(directory):
    """A directory that this process, root or not, cannot write to."""
    before = os.access

    def refused(path, mode, **options):
        return before(path, mode, **options) and not (mode & os.W_OK and Path(path) == directory)

    directory.chmod(0o500)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "access", refused)
        yield
    directory.chmod(0o700)
