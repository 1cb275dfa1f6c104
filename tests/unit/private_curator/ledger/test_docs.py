"""docs/reference/ledger.md fails here when it is false."""

from __future__ import annotations

import re
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from toy_accounting import ToyAccounting, ToyBudget

from dpswd.private_curator.books.backup import restore
from dpswd.private_curator.books.ledger import Ledger
from dpswd.private_curator.books.operators import Operator
from dpswd.private_curator.core.ledger.statements import Kind, Request

ROOT = Path(__file__).parents[4]
DOCUMENT = ROOT / "docs" / "reference" / "ledger.md"


def test_every_kind_has_the_documented_fields(ledger, open_run, answer, path, key, reopen):
    """A ledger with an entry of every kind, held against the table."""
    rows = re.findall(r"^\| `([a-z-]+)` \| (.*) \|$", DOCUMENT.read_text(), flags=re.MULTILINE)
    documented = {kind: set(re.findall(r"`(\w+)`", fields)) for kind, fields in rows}
    assert set(documented) == {kind.value for kind in Kind}

    run = open_run(ledger, steps=2)
    ledger.abandon_step(ledger.begin_step(Request(client="alice", request_id="1", digest="d" * 64), run_id=run.run_id))
    answer(ledger, run, "1")
    ledger.quantum("2" * 64, milliseconds=50)
    ledger.prune_replies(run.run_id, reason="x")
    ledger.add_client("bob", "b" * 64, ToyBudget(0.5))
    ledger.renew_client("bob", "c" * 64)
    ledger.add_certificate("bob", "e" * 64)
    ledger.revoke_certificate("bob", "c" * 64, reason="x")
    ledger.set_share("bob", ToyBudget(0.4), reason="x")
    ledger.pause_client("bob", reason="x")
    ledger.resume_client("bob", reason="x")
    ledger.set_cap("bob", 0.1, reason="x")
    ledger.set_cap("bob", 0.3, reason="x", year=True)
    asked = ledger.request_budget(client="bob", epsilon=0.2, purpose="y")
    ledger.decide_request(asked.number, granted=0.1, reason="x")
    ledger.revoke_client("bob", reason="x")
    ledger.lower_budget(ToyBudget(0.9), reason="x")
    ledger.extend_budget(ToyBudget(1.9), reason="x")
    ledger.approve_extractor("1" * 64)
    ledger.revoke_extractor("1" * 64)
    ledger.backup(path.with_name("copy"))
    with Ledger.open(path.with_name("copy"), key=key, accounting=ToyAccounting()) as served:
        released = open_run(served, request_id="2").receipt.entry
    ledger.count_copies([released], reason="x")
    ledger.accept_state(reason="accepted by the board of ethics on 3 May")
    ledger.record_statement("legal-basis", "x")
    ledger.update_records(120, reason="x")
    ledger.freeze(reason="x")
    ledger.unfreeze(reason="x")
    ledger.end(reason="x")
    anna = Operator("anna", Ed25519PrivateKey.generate())
    ledger.close()
    ledger = reopen(by=anna)
    ledger.enrol("anna", anna.credential)
    ledger.remove_operator("anna", reason="x")
    ledger.backup(path.with_name("backup"))
    ledger.close()
    restore(path.with_name("backup"), path, key=key, accounting=ToyAccounting())
    ledger = reopen()
    ledger.change_key(Ed25519PrivateKey.generate(), reason="x")
    written = {entry.kind: set(entry.payload) for entry in ledger.history()}
    assert written == documented


def test_the_named_tests_exist():
    names = set(re.findall(r"`((?:tests/[\w/]+/)?test_\w+\.py)`", DOCUMENT.read_text()))
    assert len(names) >= 8
    for name in names:
        pattern = name if "/" in name else f"tests/*/private_curator/ledger/{name}"
        assert list(ROOT.glob(pattern)), name
