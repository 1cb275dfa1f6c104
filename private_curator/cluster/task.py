"""What a node is told of a shard, and what it answers: bytes, read strictly, and no code.

A task says which release of the software and which code of its sums, which torch and which records it is meant for: a
node that has others refuses, for its sums would be another data set's, or in other units, or differ in their last bits.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dpswd import shared
from dpswd.private_curator.records.labels import Labels
from dpswd.private_curator.records.target import Target
from dpswd.shared.core.errors import InvalidValue
from dpswd.shared.core.mechanisms.interface import AnyMechanism, DataSetFacts, Facts, ModelFacts
from dpswd.shared.core.mechanisms.linear import AnyLinearRun, Integers, LinearMechanism, LinearRun, Shard, ShardSum

_LABELS_AT_A_TIME = 1 << 20

SUM, STOPPED, LOST, FAILED = b"S", b"L", b"E", b"F"
"""First byte of an answer: the sum; a limit that the extractor met; a worker that ended; anything else, as words."""


@dataclass(frozen=True)
class Meant:
    """Whom a task is meant for.

    Attributes:
        records: SHA-256 of the records' values, as they are stored.
        record_shape: of a record as extractors see it.
        scale: from stored to served values, and
        offset: added after it.
        labels: SHA-256 of their class numbers; "" where there are none.
        software: versions of what computes, and a digest of the code that both sides of a sum must share.
        threads: of torch's arithmetic.
    """

    records: str
    record_shape: tuple[int, ...]
    scale: float
    offset: float
    labels: str
    software: str
    threads: int

    @classmethod
    def here(cls, records: Target, *, digest: str, labels: Labels | None) -> Meant:
        """This process, with these records.

        Args:
            records: opened.
            digest: SHA-256 of their stored values.
            labels: of them.
        """
        software = f"dpswd {version('dpswd')} ({_code()}), torch {torch.__version__}"
        of_labels, threads = _digest(labels, records.count), torch.get_num_threads()
        return cls(digest, records.record_shape, records.scale, records.offset, of_labels, software, threads)

    def differs(self, other: Meant) -> str:
        """What of another is different, in words; "" for nothing.

        Nothing of the records is in them, not even a digest: whoever knows all records but one could try that one's.
        """
        mine, theirs = asdict(self), asdict(other)
        return ", ".join(
            f"other {name}"
            if name in ("records", "labels")
            else f"{name}: {theirs[name]!r} here, {mine[name]!r} at the curator"
            for name in mine
            if mine[name] != theirs[name]
        )


@functools.cache
def _code() -> str:
    """A digest of what both sides of a sum share: above all the unit of rounded features, which scales each record."""
    root = Path(shared.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def to_bytes(run: AnyLinearRun, shard: Shard, meant: Meant) -> bytes:
    """A task, but for the extractor's bytes."""
    return json.dumps(
        {
            "mechanism": run.mechanism.name,
            "declared": run.declaration.to_bytes().hex(),
            "data": asdict(run.facts.data),
            "input_shape": list(run.facts.model.input_shape),
            "features": run.facts.model.feature_dimension,
            "shard": [shard.start, shard.stop],
            "meant": asdict(meant),
        }
    ).encode()


def from_bytes(task: bytes, mechanisms: Mapping[str, AnyMechanism]) -> tuple[AnyLinearRun, Shard, Meant]:
    """The inverse.

    Raises:
        InvalidValue: it is no task for these mechanisms.
    """
    try:
        fields: dict[str, Any] = json.loads(task)
        mechanism = mechanisms[fields["mechanism"]]
        if not isinstance(mechanism, LinearMechanism):
            raise InvalidValue(f"{fields['mechanism']!r} is no sum over every record")
        facts = Facts(
            DataSetFacts(**fields["data"] | {"record_shape": tuple(fields["data"]["record_shape"])}),
            ModelFacts(tuple(fields["input_shape"]), int(fields["features"]), {}),
        )
        start, stop = fields["shard"]
        declared = mechanism.declaration.from_bytes(bytes.fromhex(fields["declared"]))
        meant = Meant(**fields["meant"] | {"record_shape": tuple(fields["meant"]["record_shape"])})
        return LinearRun(mechanism, declared, facts), Shard(int(start), int(stop)), meant
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidValue(f"not a shard's task ({type(error).__name__})") from error


def sum_to_bytes(part: ShardSum) -> bytes:
    """A sum, for another process of the same curator."""
    head = [part.shard.start, part.shard.stop, *(each.size for each in part.sums)]
    return np.concatenate([head, *(each.ravel() for each in part.sums)]).astype("<i8").tobytes()


def sum_from_bytes(data: bytes, *, shard: Shard, like: tuple[Integers, ...]) -> ShardSum:
    """The inverse.

    Args:
        data: as another process made them.
        shard: of which this must be the sum.
        like: arrays of the expected shapes.

    Raises:
        InvalidValue: another shard, or other sizes than the mechanism's; the text names no value.
    """
    sizes = [each.size for each in like]
    head = [shard.start, shard.stop, *sizes]
    if len(data) != 8 * (len(head) + sum(sizes)):
        raise InvalidValue(f"a shard's sum has {len(data)} bytes; this mechanism's have {8 * (len(head) + sum(sizes))}")
    values = np.frombuffer(data, dtype="<i8").astype(np.int64)
    if values[:2].tolist() != head[:2]:
        raise InvalidValue("a shard's sum is that of another shard")
    if values[: len(head)].tolist() != head:
        raise InvalidValue(f"a shard's sum holds arrays of other sizes than {sizes}")
    parts = np.split(values[len(head) :], np.cumsum(sizes)[:-1])
    return ShardSum(shard, tuple(part.reshape(each.shape) for part, each in zip(parts, like, strict=True)))


def _digest(labels: Labels | None, count: int) -> str:
    if labels is None:
        return ""
    hashed = hashlib.sha256()
    for start in range(0, count, _LABELS_AT_A_TIME):
        part = labels[np.arange(start, min(start + _LABELS_AT_A_TIME, count))]
        hashed.update(part.astype("<i2").tobytes())
    return hashed.hexdigest()
