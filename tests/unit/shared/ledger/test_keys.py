"""A ledger's keys: who pinned one finds the others by entries that both keys signed, and by nothing else."""

from __future__ import annotations

from dataclasses import replace

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from dpswd.shared.books.chain_checks import check_chain
from dpswd.shared.books.view import read_view, write_view
from dpswd.shared.core.errors import InvalidValue
from dpswd.shared.core.ledger.keys import KEY_CHANGED, LedgerKeys, is_key_change, key_change
from dpswd.shared.core.ledger.receipts import SignedEntry

FIRST, SECOND, THIRD, THIEF = (Ed25519PrivateKey.from_private_bytes(bytes([each]) * 32) for each in (1, 2, 3, 4))
PUBLIC = [key.public_key().public_bytes_raw() for key in (FIRST, SECOND, THIRD)]


class Chain:
    """A chain that several keys write."""

    def __init__(self) -> None:
        self.entries: list[SignedEntry] = []

    def add(self, key: Ed25519PrivateKey, kind: str = "frozen", payload: dict | None = None) -> SignedEntry:
        last = self.entries[-1] if self.entries else None
        self.entries.append(
            SignedEntry.following(last, kind=kind, payload=payload or {}, time="2026-01-01T00:00:00Z", sign=key.sign)
        )
        return self.entries[-1]

    def change(self, old: Ed25519PrivateKey, new: Ed25519PrivateKey) -> SignedEntry:
        return self.add(old, KEY_CHANGED, key_change(self.entries[-1], ledger="one", old=old, new=new))


@pytest.fixture
def chain():
    """Three keys, two entries each beside the changes: 1 2 | 3 | 4 5 | 6 | 7 8."""
    made = Chain()
    for key, after in ((FIRST, SECOND), (SECOND, THIRD), (THIRD, None)):
        made.add(key)
        made.add(key)
        if after is not None:
            made.change(key, after)
    return made


@pytest.mark.parametrize("pinned", PUBLIC)
def test_each_key_leads_to_all_others(chain, pinned):
    keys = LedgerKeys.of(pinned, chain.entries)
    assert keys.every == tuple(PUBLIC)
    assert keys.newest == PUBLIC[2]
    assert [PUBLIC.index(keys.at(seq)) for seq in range(1, 10)] == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert check_chain(chain.entries, pinned) == []
    assert LedgerKeys.from_text(keys.to_text()) == keys
    lines = write_view(chain.entries, client="a", time="2026-01-02", sign=THIRD.sign)
    assert read_view(lines, pinned)[1] == []
    # Another header than the newest key's was not signed for this length.
    forged = write_view(chain.entries, client="a", time="2026-01-02", sign=FIRST.sign)
    assert [finding.tampering.value for finding in read_view(forged, pinned)[1]] == ["forged"]


def test_a_key_signs_its_own_part_of_the_chain_alone(chain):
    """Whoever steals a key later writes nothing behind its change."""
    keys = LedgerKeys.of(PUBLIC[0], chain.entries)
    stolen = Chain()
    stolen.entries = chain.entries[:-1]
    late = stolen.add(FIRST)
    assert late.seq == 8
    assert not late.signed_by(keys)
    assert [finding.seq for finding in check_chain(stolen.entries, PUBLIC[0])] == [8]
    assert all(entry.signed_by(keys) for entry in chain.entries)


def test_one_signature_changes_nothing(chain):
    """A thief of the old key names their own; a thief of the new one puts it behind another key, or elsewhere."""
    last = chain.entries[1]
    named = key_change(last, ledger="one", old=FIRST, new=THIEF)
    by_old = {**named, "proof": FIRST.sign(b"dpswd-1 key\0").hex()}
    elsewhere = key_change(replace(last, seq=7), ledger="one", old=FIRST, new=THIEF)
    for payload, signer in ((by_old, FIRST), (named, THIEF), (elsewhere, FIRST), ({**named, "ledger": "two"}, FIRST)):
        forged = Chain()
        forged.entries = chain.entries[:2]
        entry = forged.add(signer, KEY_CHANGED, payload)
        assert not is_key_change(entry)
        assert LedgerKeys.of(PUBLIC[0], forged.entries).every == (PUBLIC[0],)
    for payload in ({}, {**named, "public_key": 7}, {**named, "proof": "zz"}, {**named, "replaces": "00"}):
        forged.entries = chain.entries[:2]
        assert not is_key_change(forged.add(FIRST, KEY_CHANGED, payload))
    for kind in ("a-change", "run-opened"):  # with a change's own payload, which both keys sign
        forged.entries = chain.entries[:2]
        assert not is_key_change(forged.add(FIRST, kind, key_change(last, ledger="one", old=FIRST, new=THIEF)))
    assert LedgerKeys.of(PUBLIC[0], chain.entries[3:]).every == (PUBLIC[0],)  # a link is missing


def test_two_ways_out_of_one_key_are_never_both_believed(chain):
    keys = LedgerKeys.of(PUBLIC[0], chain.entries[:3])
    other = Chain()
    other.entries = chain.entries[:2]
    other.change(FIRST, THIRD)
    assert keys.joined(other.entries).every == (PUBLIC[0], PUBLIC[1])


def test_a_file_holds_one_key_and_changes_of_it(chain):
    for text in ("", "zz", PUBLIC[0].hex() * 2, f"{PUBLIC[0].hex()}\nnonsense"):
        with pytest.raises(InvalidValue):
            LedgerKeys.from_text(text)
    with pytest.raises(InvalidValue, match="no change"):
        LedgerKeys.from_text(f"{PUBLIC[0].hex()}\n{chain.entries[5].to_json()}")
