"""What a request means, as one SHA-256: the same function at both parties.

The curator binds a request id to this digest, and its receipts state it; the client computes it from what it sent. So
a receipt proves which request was charged and answered, not only which id it had. Two requests with one id must
agree in it. Unknown fields, field order and the way in which the source travels (inline or by digest) do not count.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from shared.protocol.messages import PublicMap, RunParameters


def run_digest(parameters: RunParameters) -> str:
    """SHA-256 of a declaration's meaning, hexadecimal, from its re-encoded values."""
    return hashlib.sha256(parameters.to_message().SerializeToString(deterministic=True)).hexdigest()


def step_digest(
    *,
    operation: str,
    run_id: str,
    adapted: bytes,
    feature_map: PublicMap | None,
    source: str | None,
    more: Sequence[bytes] = (),
) -> str:
    """SHA-256 of a step's meaning, hexadecimal; each part with its length, so that no two requests run together.

    Args:
        operation: the RPC's name.
        run_id: the run.
        adapted: flat adapted parameters, float32 little-endian bytes; empty for the uploaded values.
        feature_map: replaces the run's map for this step, or None.
        source: SHA-256 of the source features' float32 little-endian bytes, hexadecimal, or None.
        more: what else an operation brings, in a fixed order.
    """
    parts = [operation.encode(), run_id.encode(), adapted]
    if feature_map is None:
        parts.append(b"run's map")
    else:
        parts += [b"own map", feature_map.center.astype("<f4").tobytes(), feature_map.scale.astype("<f4").tobytes()]
    parts.append(b"no source" if source is None else b"source " + source.encode())
    parts += more
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.hexdigest()
