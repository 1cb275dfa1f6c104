"""Receipts on the wire: the signed JSON, deflated.

Names, digests in hexadecimal and times make half a kilobyte of text, more than some steps release. A preset dictionary
holds what every statement says, and behind it the ids of the run and of the request, which the client knows. Digests
travel: what a receipt says of a reply must be told apart from what the client expects. Noised values are not
compressed: there is nothing to gain on noise.
"""

from __future__ import annotations

import zlib

from dpswd.shared.core.errors import InvalidValue
from dpswd.shared.core.ledger.keys import PinnedKey
from dpswd.shared.core.ledger.receipts import MAX_STATEMENT_BYTES, Receipt, SignedEntry, sha256
from dpswd.shared.core.wire.v1 import curator_pb2 as pb

# Part of the contract, with the two ids behind it: another dictionary is another protocol version. In each half the
# most likely text stands last.
_DICTIONARY = (
    b'0123456789abcdef{"format":"dpswd-ledger-1","kind":"run-opened","payload":{"client":"","digest":"","event":"'
    b'","parameters":"","prices":{"client":null,"data-set":{"epsilon":"renyi":[","request_id":"-4","run":"","steps":'
    b'{"format":"dpswd-ledger-1","kind":"step-answered","payload":{"audit":"","client":"ml-team","digest":"","reply":"'
    b'","request_id":"","run":"","step":1},"previous":"","seq":,"time":"2026-01-01T00:00:00.000000Z"}'
)
_RAW = -zlib.MAX_WBITS  # no header and no checksum: the signature is the checksum


def encode_receipt(receipt: Receipt) -> pb.Receipt:
    """The receipt as it travels."""
    packer = zlib.compressobj(level=9, wbits=_RAW, zdict=_dictionary(receipt.run_id, receipt.request_id))
    return pb.Receipt(
        packed_statement=packer.compress(receipt.entry.statement) + packer.flush(), signature=receipt.entry.signature
    )


def decode_receipt(message: pb.Receipt, *, run_id: str, request_id: str) -> Receipt:
    """Reads a receipt that has travelled. Nothing is verified yet; at most MAX_STATEMENT_BYTES are unpacked.

    Args:
        message: the receipt.
        run_id: of the reply that it came with.
        request_id: of the request that was answered.

    Raises:
        InvalidValue: the bytes are no statement of a charge or an answer.
    """
    unpacker = zlib.decompressobj(wbits=_RAW, zdict=_dictionary(run_id, request_id))
    try:
        statement = unpacker.decompress(message.packed_statement, MAX_STATEMENT_BYTES + 1)
    except zlib.error as error:
        raise InvalidValue("a statement travels as raw DEFLATE with the contract's dictionary") from error
    if not unpacker.eof or unpacker.unused_data:
        raise InvalidValue(f"a packed statement is one whole stream of at most {MAX_STATEMENT_BYTES} bytes")
    return Receipt.of(SignedEntry.parse(statement, message.signature))


def _dictionary(run_id: str, request_id: str) -> bytes:
    """The contract's dictionary, and behind it, where a match is cheapest, what both sides know without it."""
    return _DICTIONARY + (run_id + request_id).encode()


def receipt_problems(
    receipt: Receipt,
    *,
    public_key: PinnedKey,
    run_id: str,
    request_id: str,
    reply: bytes | None,
    step: int | None = None,
    request_digest: str | None = None,
) -> list[str]:
    """What is wrong with a receipt for the reply that came with it; empty when it holds.

    Args:
        receipt: as it came.
        public_key: the ledger's raw Ed25519 key, 32 bytes, as the client pinned it, or its keys.
        run_id: the run that the client asked about.
        request_id: the client's id of the request.
        reply: the released bytes that the client received; None for the opening of a run, which releases none.
        step: the number of the step as the reply itself states it; 0 for the opening of a run.
        request_digest: SHA-256 of the request as the client computed it (`dpswd.shared.core.wire.messages`).

    Returns:
        One sentence for each disagreement.
    """
    expected = [
        ("run", receipt.run_id, run_id),
        ("request id", receipt.request_id, request_id),
        ("reply's SHA-256", receipt.reply_digest, None if reply is None else sha256(reply)),
        ("step", receipt.step, receipt.step if step is None else step),
        ("request's SHA-256", receipt.request_digest, request_digest or receipt.request_digest),
    ]
    problems = [
        f"its {what} is {stated!r}, expected {target!r}" for what, stated, target in expected if stated != target
    ]
    if not receipt.entry.signed_by(public_key):
        problems.append("its signature is not by the curator's ledger key, or is another request's")
    return problems
