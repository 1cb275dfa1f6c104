"""Receipts on the wire: the signed JSON, deflated.

Names, digests in hexadecimal and times make half a kilobyte of text, more than some steps release. A preset dictionary
holds what every statement says, and behind it the ids of the run and of the request, which the client knows. Digests
travel: what a receipt says of a reply must be told apart from what the client expects. Noised values are not
compressed: there is nothing to gain on noise.
"""

from __future__ import annotations

import zlib

from dpswd.shared.core.errors import InvalidValue
from dpswd.shared.core.ledger.receipts import MAX_STATEMENT_BYTES, Receipt, SignedEntry
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
