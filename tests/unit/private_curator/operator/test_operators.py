"""What one operator, with the curator's whole directory and its key, cannot make another one have done."""

from __future__ import annotations

import datetime as dt
import json
import os
from dataclasses import replace

import numpy as np
import pytest
from made_home import made_home

from dpswd.private_curator.books.operators import Operator
from dpswd.private_curator.core.ledger.statements import Kind
from dpswd.private_curator.core.ledger.store import append_entry, utc_now
from dpswd.private_curator.operator.acts import enrol_operator, extend_budget, remove_operator, verify_ledger
from dpswd.private_curator.operator.seconding import WAITS, seconded
from dpswd.private_curator.storage.home_directory import HomeDirectory
from dpswd.shared.core.errors import LedgerCorrupt, SettingsError
from dpswd.shared.core.privacy.budget import PrivacyBudget

STUDY = "second study"


@pytest.fixture
def homes(tmp_path):
    """The curator's directory as anna, ben and eve act on it; eve is not enrolled."""
    home = made_home(tmp_path, np.zeros((64, 2), dtype=np.float32), epsilon=1.0, clients={})
    home.settings.write_text(home.settings.read_text() + '\n[operators]\nsecond = ["extend"]\n')
    made = {
        name: HomeDirectory(home.path, operator=Operator.make(tmp_path / name, name)) for name in ("anna", "ben", "eve")
    }
    for name in ("anna", "ben"):
        with made["anna"].open_ledger() as books:
            books.enrol(name, made[name].acting.credential)
    return made


def noted_by(home: HomeDirectory, epsilon: float = 1.5):
    with pytest.raises(SettingsError, match=f"noted for {home.acting.name}"):
        extend_budget(home, epsilon=epsilon, reason=STUDY)
    (file,) = home.noted_acts.iterdir()
    return file


def forged(home: HomeDirectory, kind: Kind, payload: dict) -> None:
    """An entry straight into the ledger, under its key."""
    with home.open_ledger() as books, books._database.write() as session:
        append_entry(session, kind, payload, key=home.read_ledger_key(), clock=utc_now)


@pytest.mark.parametrize(
    "change",
    [
        {"operator": "anna", "credential": "anna"},
        {"operator": "anna"},
        {"operator": "eve", "credential": "eve"},
        {"arguments": {"epsilon": 9.0, "delta": None}},
        {"reason": "another"},
        {"nonce": "0" * 32},
        {"signature": "00" * 64},
        {"ledger": "0" * 32},
        {"more": 1},
    ],
    ids=str,
)
def test_a_note_that_another_one_made_or_changed_is_none(homes, change):
    """Ben writes what anna should have wanted: it is his own wish then, and waits for her."""
    made = homes["ben"].acting.wish(
        "extend", {"epsilon": 1.5, "delta": None}, reason=STUDY,
        ledger=homes["anna"].read_ledger().books.ledger_id, time=dt.datetime.now(dt.UTC).isoformat(),
    )  # fmt: skip
    if change.get("operator") is None:  # hers, changed
        file = noted_by(homes["anna"])
        made = json.loads(file.read_text())
    else:
        file = noted_by(homes["ben"])
    change = {key: homes[value].acting.credential if key == "credential" else value for key, value in change.items()}
    file.write_text(json.dumps({**made, **change}))
    with pytest.raises(SettingsError, match="noted for ben and not done"):
        extend_budget(homes["ben"], epsilon=1.5, reason=STUDY)
    assert homes["ben"].read_ledger().status.data_set.epsilon == 1.0


def test_a_wish_is_done_once_and_not_for_ever(homes):
    file = noted_by(homes["anna"])
    wish = file.read_text()
    with (
        pytest.raises(SettingsError, match="noted for ben"),
        seconded(
            homes["ben"], "extend", json.loads(wish)["arguments"], reason=STUDY, now=dt.datetime.now(dt.UTC) + 2 * WAITS
        ),
    ):
        pass
    file.write_text(wish)
    extend_budget(homes["ben"], epsilon=1.5, reason=STUDY)
    with homes["anna"].open_ledger() as books:
        books.lower_budget(replace(_budget(books), epsilon=1.2), reason="x")
    file.write_text(wish)
    with pytest.raises(SettingsError, match="noted for ben and not done"):
        extend_budget(homes["ben"], epsilon=1.5, reason=STUDY)
    assert homes["ben"].read_ledger().status.data_set.epsilon == 1.2


def _budget(books):
    return books._books.account.budget


@pytest.mark.parametrize("kind", ["name", "other key", "old signature", "foreign first"])
def test_an_entry_that_says_another_one_acted_is_detected(homes, kind):
    """Whoever has the ledger's key can write entries; they sign for nobody else."""
    anna, ben = homes["anna"], homes["ben"]
    with anna.open_ledger() as books:
        books.freeze(reason="x")
        books.unfreeze(reason="x")
    hers = anna.read_ledger().entries[-1].payload["by"]
    by = {
        "name": {"operator": "anna", "credential": None},
        "other key": {**hers, "credential": ben.acting.credential},
        "old signature": hers,
        "foreign first": {"operator": "anna", "credential": None, "first": {"operator": "ben"}},
    }[kind]
    forged(ben, Kind.UNFROZEN, {"reason": "x", "by": by})
    with pytest.raises(LedgerCorrupt, match="was not acted by who it says"):
        ben.open_ledger()
    assert not verify_ledger(ben).ok


def test_what_was_acted_verifies_and_states_the_credential(homes):
    noted_by(homes["anna"])
    extend_budget(homes["ben"], epsilon=1.5, reason=STUDY)
    by = homes["anna"].read_ledger().entries[-1].payload["by"]
    assert by["credential"] == homes["ben"].acting.credential
    assert by["first"]["credential"] == homes["anna"].acting.credential
    assert verify_ledger(homes["eve"]).ok


def test_the_ledger_remembers_that_an_act_takes_two(homes):
    """Attack: the directory's owner emptied ``operators.second``, and one credential extended the budget."""
    anna, ben = homes["anna"], homes["ben"]
    noted_by(anna)
    extend_budget(ben, epsilon=1.5, reason=STUDY)
    settings = anna.settings.read_text()
    anna.settings.write_text(settings.replace('["extend"]', "[]"))
    noted_by(anna, epsilon=1.6)
    with anna.open_ledger() as books, pytest.raises(SettingsError, match="extend takes two operators here"):
        books.extend_budget(PrivacyBudget(epsilon=1.6, delta=1e-5), reason=STUDY)
    with anna.open_ledger() as books, books._database.write() as session:  # past the program
        budget = {"budget": {"epsilon": 9.0, "delta": 1e-5, "relation": "replace-one"}, "filter": None, "reason": STUDY}
        acted = anna.acting.acting(session, Kind.BUDGET_EXTENDED, budget, None)
        append_entry(session, Kind.BUDGET_EXTENDED, acted, key=anna.read_ledger_key(), clock=utc_now)
    with pytest.raises(LedgerCorrupt, match="extend takes two operators here"):
        anna.open_ledger()


def test_the_first_operator_enrols_themselves_and_alone_does_nothing_that_takes_two(tmp_path):
    """Attack: the first enrolment took nobody's credential; and past the program one who was enrolled alone acted."""
    home = made_home(tmp_path, np.zeros((64, 2), dtype=np.float32), epsilon=1.0, clients={})
    home.settings.write_text(home.settings.read_text() + '\n[operators]\nsecond = ["extend"]\n')
    anna, eve = (HomeDirectory(home.path, operator=Operator.make(tmp_path / name, name)) for name in ("anna", "eve"))
    for by in (home, HomeDirectory(home.path, operator="anna"), eve):
        with pytest.raises(
            SettingsError, match="first operator enrols themselves: give the --credential FILE of 'anna'"
        ):
            enrol_operator(by, "anna", anna.acting.credential)
    enrol_operator(anna, "anna", anna.acting.credential)
    with anna.open_ledger() as books, pytest.raises(SettingsError, match="extend takes two operators here"):
        books.extend_budget(PrivacyBudget(epsilon=1.6, delta=1e-5), reason=STUDY)
    enrol_operator(anna, "eve", eve.acting.credential)
    noted_by(anna)
    extend_budget(eve, epsilon=1.5, reason=STUDY)
    assert verify_ledger(home).ok


def test_a_first_enrolment_that_nobody_signed_is_detected(tmp_path):
    home = made_home(tmp_path, np.zeros((64, 2), dtype=np.float32), epsilon=1.0, clients={})
    key, by = Operator.make(tmp_path / "anna", "anna").credential, {"operator": "anna", "credential": None}
    forged(home, Kind.OPERATOR_ADDED, {"operator": "anna", "key": key, "second": [], "by": by})
    with pytest.raises(LedgerCorrupt, match="first operator enrols themselves"):
        home.open_ledger()


def test_a_credential_of_somebody_else_is_none(tmp_path, monkeypatch):
    """The administrator may read ben's file, and is not ben."""
    Operator.make(tmp_path / "ben", "ben")
    monkeypatch.setattr(os, "geteuid", lambda: (tmp_path / "ben").stat().st_uid + 1)
    with pytest.raises(SettingsError, match="must be yours alone"):
        Operator.read(tmp_path / "ben")


def test_enrolment_states_what_takes_two_and_two_can_lower_it(homes):
    anna, ben, eve = homes["anna"], homes["ben"], homes["eve"]
    settings = anna.settings.read_text()

    def by_two(act):
        with pytest.raises(SettingsError, match="noted for anna"):
            act(anna)
        act(ben)

    by_two(lambda home: enrol_operator(home, "eve", eve.acting.credential))
    assert anna.read_ledger().books.operators.second == {"extend"}
    anna.settings.write_text(settings.replace('["extend"]', "[]"))
    with pytest.raises(SettingsError, match="noted for anna"):
        remove_operator(anna, "eve", reason="left")
    remove_operator(ben, "eve", reason="left")  # two, under settings that name no act
    assert anna.read_ledger().books.operators.second == set()
    extend_budget(anna, epsilon=1.5, reason=STUDY)
    assert anna.read_ledger().status.data_set.epsilon == 1.5
