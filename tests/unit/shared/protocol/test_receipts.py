from __future__ import annotations

import zlib

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from dpswd.shared.core.errors import InvalidValue
from dpswd.shared.core.ledger.receipts import (
    FORMAT,
    MAX_STATEMENT_BYTES,
    Receipt,
    Signed,
    SignedEntry,
    canonical_json,
    sha256,
)
from dpswd.shared.core.wire.v1 import curator_pb2 as pb
from dpswd.shared.protocol import receipts
from dpswd.shared.protocol.receipts import decode_receipt, encode_receipt

KEY = Ed25519PrivateKey.from_private_bytes(b"k" * 32)


NAMES = {"run_id": "0b7e52a4c1d94f6e8a3b5d7f90123456", "request_id": "5f2b6a70-9f0e-4c58-a9b4-2f7e1c6d8a01"}


def receipt(client: str = "ml-team", step: int = 3) -> Receipt:
    payload = {name: sha256(name.encode()) for name in ("audit", "digest", "reply")}
    names = {"client": client, "request_id": NAMES["request_id"], "run": NAMES["run_id"]}
    statement = canonical_json(
        {"format": FORMAT, "kind": "step-answered", "payload": payload | names | {"step": step},
         "previous": sha256(b"previous"), "seq": 812, "time": "2026-01-31T12:00:00.000000Z"}
    )  # fmt: skip
    return Receipt.of(SignedEntry.parse(statement, KEY.sign(Signed.ENTRY.over(statement))))


@given(st.text(max_size=80), st.integers(1, 10**9))
def test_a_receipt_survives_the_wire_bit_by_bit(client, step):
    sent = receipt(client, step)
    assert decode_receipt(pb.Receipt.FromString(encode_receipt(sent).SerializeToString()), **NAMES) == sent


def test_a_receipt_travels_in_two_fifths_of_its_size():
    assert len(encode_receipt(receipt()).packed_statement) < 0.4 * len(receipt().entry.statement)


@pytest.mark.parametrize("names", [NAMES | {"run_id": "f" * 32}, NAMES | {"request_id": "e" * 36}])
def test_a_receipt_for_another_run_or_request_does_not_hold(names):
    try:
        decoded = decode_receipt(encode_receipt(receipt()), **names)
    except InvalidValue:
        return
    assert not decoded.entry.signed_by(KEY.public_key().public_bytes_raw())


@given(st.binary(max_size=200))
def test_other_bytes_are_refused(data):
    with pytest.raises(InvalidValue):
        decode_receipt(pb.Receipt(packed_statement=data), **NAMES)


def test_a_bomb_and_trailing_bytes_are_refused():
    packer = zlib.compressobj(level=9, wbits=-15, zdict=receipts._dictionary(**NAMES))
    bomb = packer.compress(b" " * (MAX_STATEMENT_BYTES * 4)) + packer.flush()
    assert len(bomb) < 10_000
    for packed in (bomb, encode_receipt(receipt()).packed_statement + b"x"):
        with pytest.raises(InvalidValue, match="one whole stream"):
            decode_receipt(pb.Receipt(packed_statement=packed), **NAMES)
