"""What a hospital's own systems hold, as records: SQL, OMOP, FHIR, DICOM, NIfTI. Opened by `records convert` alone."""

from __future__ import annotations

import hashlib
from collections import Counter


class First:
    """Lets the first records of each person through; remembers 8 bytes of a person's digest, and no person."""

    def __init__(self, most: int) -> None:
        self._most, self._seen = most, Counter[bytes]()

    def take(self, person: object) -> bool:
        """Whether this is among the first of that person."""
        digest = hashlib.blake2b(str(person).encode(), digest_size=8).digest()
        self._seen[digest] += 1
        return self._seen[digest] <= self._most


def words_of(lost: Counter[str]) -> str:
    """What was left out, in words."""
    return ", ".join(f"{count:,} {why}" for why, count in lost.most_common() if count)
