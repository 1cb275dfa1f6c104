"""Signed entries and their offline verification, on chains made here."""

from __future__ import annotations

import hashlib
import json

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from held_receipts import verify_receipts
from hypothesis import given
from hypothesis import strategies as st

from dpswd.shared.books.chain_checks import Finding, Tampering, check_chain, read_export
from dpswd.shared.core.errors import InvalidValue
from dpswd.shared.core.ledger.receipts import (
    FORMAT,
    GENESIS,
    MAX_STATEMENT_BYTES,
    Receipt,
    Signed,
    SignedEntry,
    canonical_json,
)
from dpswd.shared.protocol.receipts import receipt_problems

KEY = Ed25519PrivateKey.from_private_bytes(b"c" * 32)
PUBLIC = KEY.public_key().public_bytes_raw()
REPLY = b"released bytes"


def statement(seq=1, previous=GENESIS, kind="step-answered", **payload):
    fields = {"run": "r", "client": "alice", "request_id": f"q{seq}", "digest": "d" * 64, "step": seq,
              "reply": hashlib.sha256(REPLY).hexdigest()}  # fmt: skip
    return {"format": FORMAT, "kind": kind, "payload": {**fields, **payload}, "previous": previous, "seq": seq,
            "time": "2026-05-01T00:00:00.000000Z"}  # fmt: skip


def signed(value, key=KEY):
    data = canonical_json(value)
    return SignedEntry.parse(data, key.sign(Signed.ENTRY.over(data)))


def chain(length, **payload):
    entries, previous = [], GENESIS
    for seq in range(1, length + 1):
        entries.append(signed(statement(seq, previous, **payload)))
        previous = hashlib.sha256(entries[-1].statement).hexdigest()
    return entries


def kinds(findings):
    return [(finding.tampering, finding.seq) for finding in findings]


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


class TestCanonicalJson:
    @given(json_values)
    def test_is_a_fixed_point_and_loses_nothing(self, value):
        data = canonical_json(value)
        assert canonical_json(json.loads(data)) == data
        assert json.loads(data) == value

    def test_does_not_depend_on_the_order_of_keys(self):
        assert (
            canonical_json({"b": 1, "a": [1.5, "é"]})
            == canonical_json({"a": [1.5, "é"], "b": 1})
            == b'{"a":[1.5,"\\u00e9"],"b":1}'
        )

    @pytest.mark.parametrize("value", [float("nan"), float("inf"), b"bytes", {1, 2}, object()])
    def test_refuses_what_is_not_json(self, value):
        with pytest.raises(InvalidValue):
            canonical_json(value)


class TestSignedEntry:
    def test_survives_a_file(self):
        entry = chain(1)[0]
        assert SignedEntry.from_json(entry.to_json()) == entry
        assert "\n" not in entry.to_json()
        assert entry.signed_by(PUBLIC)
        assert not entry.signed_by(Ed25519PrivateKey.generate().public_key().public_bytes_raw())

    def test_reference_value(self):
        """The layout that must never change, byte for byte."""
        entry = signed(statement())
        assert entry.statement.decode() == (
            '{"format":"dpswd-ledger-1","kind":"step-answered","payload":{"client":"alice","digest":"'
            + "d" * 64
            + '","reply":"2f9e0acbd320f87ceff2b9d259c99ec87830fc87d99bf914cef87394294a6682",'
            + '"request_id":"q1","run":"r","step":1},"previous":"'
            + "0" * 64
            + '","seq":1,"time":"2026-05-01T00:00:00.000000Z"}'
        )
        # sha256sum of that text. Signed is `dpswd-1 entry`, a zero and that text: Ed25519 (RFC 8032) is deterministic.
        assert entry.hash == "51644b0c90dc6be42c793a0963b09d47d306b5d636f8076ae7ab51350361c4f5"
        assert hashlib.sha256(entry.signature).hexdigest().startswith("cbc49eb97023dee4")

    @pytest.mark.parametrize(
        "change",
        [
            {"seq": 0}, {"seq": -1}, {"seq": True}, {"seq": 1.0}, {"seq": "1"}, {"previous": "x"},
            {"previous": GENESIS[:-1]}, {"previous": "A" * 64}, {"kind": None}, {"time": 0}, {"payload": []},
            {"format": "dpswd-ledger-2"}, {"more": 1},
        ],
    )  # fmt: skip
    def test_refuses_other_statements(self, change):
        with pytest.raises(InvalidValue):
            signed({**statement(), **change})

    @pytest.mark.parametrize("key", ["seq", "previous", "kind", "time", "payload", "format"])
    def test_refuses_a_missing_key(self, key):
        value = statement()
        del value[key]
        with pytest.raises(InvalidValue):
            signed(value)

    def test_refuses_a_second_spelling(self):
        """Two byte strings for one statement would be two entries for one fact."""
        data = json.dumps(statement()).encode()
        with pytest.raises(InvalidValue, match="canonical"):
            SignedEntry.parse(data, KEY.sign(Signed.ENTRY.over(data)))

    @pytest.mark.parametrize(
        "data", [b"", b"[]", b"null", b"\xff", b'{"seq":NaN}', b"[" * 100_000, b" " * (MAX_STATEMENT_BYTES + 1)]
    )
    def test_refuses_bytes(self, data):
        with pytest.raises(InvalidValue):
            SignedEntry.parse(data, b"")

    @given(st.binary(max_size=200))
    def test_never_raises_anything_else(self, data):
        for read in (lambda: SignedEntry.parse(data, b""), lambda: SignedEntry.from_json(data.decode("latin-1"))):
            with pytest.raises(InvalidValue):
                read()

    def test_public_key_must_be_one(self):
        with pytest.raises(InvalidValue, match="32 raw bytes"):
            chain(1)[0].signed_by(b"short")


class TestReceipt:
    def expect(self, receipt, **changes):
        expected = {"public_key": PUBLIC, "run_id": "r", "request_id": "q1", "reply": REPLY, "step": 1}
        return receipt_problems(receipt, **{**expected, **changes})

    def test_holds_for_its_reply(self):
        receipt = Receipt.of(chain(1)[0])
        assert self.expect(receipt) == []
        assert Receipt.of(SignedEntry.parse(receipt.entry.statement, receipt.entry.signature)) == receipt

    @pytest.mark.parametrize(
        ("changes", "problem"),
        [
            ({"reply": REPLY + b"!"}, "SHA-256"),
            ({"run_id": "s"}, "run"),
            ({"request_id": "q2"}, "request id"),
            ({"step": 2}, "step"),
            ({"public_key": Ed25519PrivateKey.generate().public_key().public_bytes_raw()}, "signature"),
        ],
    )
    def test_names_what_does_not_fit(self, changes, problem):
        problems = self.expect(Receipt.of(chain(1)[0]), **changes)
        assert len(problems) == 1
        assert problem in problems[0]

    def test_opening_of_a_run(self):
        receipt = Receipt.of(signed(statement(kind="run-opened", steps=5)))
        assert (receipt.step, receipt.reply_digest) == (0, None)

    @pytest.mark.parametrize("payload", [{"step": -1}, {"step": "1"}, {"step": True}, {"reply": None}, {"run": 1}])
    def test_refuses_malformed_payloads(self, payload):
        with pytest.raises(InvalidValue):
            Receipt.of(signed(statement(**payload)))

    def test_refuses_other_kinds(self):
        with pytest.raises(InvalidValue, match="frozen"):
            Receipt.of(signed(statement(kind="frozen")))


class TestVerification:
    def test_a_sound_chain(self):
        entries = chain(5)
        assert check_chain(entries, PUBLIC) == []
        assert verify_receipts(entries, reversed(entries), PUBLIC) == ()
        assert verify_receipts([], [], PUBLIC) == ()

    def test_edit(self):
        entries = chain(5)
        value = json.loads(entries[2].statement)
        value["payload"]["reply"] = "0" * 64
        entries[2] = SignedEntry.parse(canonical_json(value), entries[2].signature)
        assert kinds(check_chain(entries, PUBLIC)) == [(Tampering.EDITED, 3), (Tampering.RELINKED, 4)]

    def test_edit_by_a_stranger_with_a_key_of_its_own(self):
        entries = chain(5)
        entries[2] = signed(json.loads(entries[2].statement), key=Ed25519PrivateKey.generate())
        assert kinds(check_chain(entries, PUBLIC)) == [(Tampering.EDITED, 3)]

    @pytest.mark.parametrize("place", range(4))
    def test_deletion(self, place):
        entries = chain(5)
        gone = entries.pop(place)
        assert (Tampering.MISSING, gone.seq + 1) in kinds(check_chain(entries, PUBLIC))
        assert (Tampering.MISSING, gone.seq) in kinds(verify_receipts(entries, [gone], PUBLIC))

    @pytest.mark.parametrize("place", range(4))
    def test_reordering(self, place):
        entries = chain(5)
        entries[place], entries[place + 1] = entries[place + 1], entries[place]
        assert {tampering for tampering, _ in kinds(check_chain(entries, PUBLIC))} >= {Tampering.REORDERED}

    def test_repetition(self):
        entries = chain(3)
        assert (Tampering.REORDERED, 3) in kinds(check_chain([*entries, entries[-1]], PUBLIC))

    @pytest.mark.parametrize("length", range(5))
    def test_truncation_and_rollback(self, length):
        entries = chain(5)
        findings = verify_receipts(entries[:length], [entries[4]], PUBLIC)
        assert kinds(findings) == [(Tampering.TRUNCATED, 5)]
        assert str(length) in findings[0].text

    def test_a_history_rewritten_with_the_key(self):
        held, rewritten = chain(5)[3], chain(5, client="bob")
        assert check_chain(rewritten, PUBLIC) == []
        assert kinds(verify_receipts(rewritten, [held], PUBLIC)) == [(Tampering.REWRITTEN, 4)]

    def test_a_relinked_entry(self):
        entries = chain(3)
        entries[2] = signed(statement(3, "0" * 63 + "1"))
        assert kinds(check_chain(entries, PUBLIC)) == [(Tampering.RELINKED, 3)]

    def test_a_forged_receipt_accuses_nobody(self):
        entries = chain(3)
        forged = signed(statement(9), key=Ed25519PrivateKey.generate())
        assert kinds(verify_receipts(entries, [forged], PUBLIC)) == [(Tampering.FORGED, 9)]

    def test_reading_an_export(self):
        entries = chain(3)
        lines = [entries[0].to_json() + "\n", "\n", "nonsense", entries[1].to_json(), '{"statement":1,"signature":""}']
        read, findings = read_export(lines)
        assert read == entries[:2]
        assert kinds(findings) == [(Tampering.UNREADABLE, 3), (Tampering.UNREADABLE, 5)]
        assert all(isinstance(finding, Finding) for finding in findings)

    @given(st.data())
    def test_any_changed_bit_of_an_export_is_detected(self, data):
        entries = chain(3)
        text = "\n".join(entry.to_json() for entry in entries)
        place = data.draw(st.integers(0, len(text) - 1))
        letter = data.draw(st.characters(min_codepoint=32, max_codepoint=126).filter(lambda c: c != text[place]))
        read, findings = read_export((text[:place] + letter + text[place + 1 :]).split("\n"))
        same = [(e.statement, e.signature) for e in read] == [(e.statement, e.signature) for e in entries]
        assert same or findings or verify_receipts(read, entries, PUBLIC)
