"""What a request means, as one SHA-256: the same function at both parties.

The curator binds a request id to this digest, and its receipts state it; the client computes it from what it sent. So
a receipt proves which request was charged and answered, not only which id it had. Two requests with one id must
agree in it.
"""

from __future__ import annotations

import hashlib

from shared.protocol.messages import RunParameters


def run_digest(parameters: RunParameters) -> str:
    """SHA-256 of a declaration, hexadecimal, from its re-encoded values."""
    return hashlib.sha256(parameters.to_bytes()).hexdigest()


def step_digest(*, run_id: str, payload: bytes) -> str:
    """SHA-256 of a step's request, hexadecimal; the run's id with its length, so that no two requests run together.

    Args:
        run_id: the run.
        payload: the mechanism's request as it was sent.
    """
    digest = hashlib.sha256(len(run_id).to_bytes(8, "little") + run_id.encode())
    digest.update(payload)
    return digest.hexdigest()
