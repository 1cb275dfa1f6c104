"""What a promise for records is worth to a person who has several, by group privacy.

All that a ledger ever lets out is one mechanism, and it is (epsilon, delta)-private for replacing one record. Between
two data sets that differ in k records lie k such replacements; their inequalities, one put into the next, give

    P(S) <= e^(k epsilon) Q(S) + delta (1 + e^epsilon + ... + e^((k-1) epsilon))

(Dwork & Roth 2014, Theorem 2.2, with the geometric sum kept; docs/privacy/persons.md). Nothing else is used of the
mechanism, so this holds for samples, random directions and whatever was chosen adaptively.
"""

from __future__ import annotations

import math

from dpswd.shared.core.errors import InvalidValue

MOST_RECORDS = 1000
"""Of one person. With more, hardly any budget is left to a record, or hardly any promise to the person."""
_ROOM = 1e-11  # relative; above the rounding of logarithms of up to 700, beyond which delta is 0 or 1


def check_records_per_person(records: int) -> None:
    """Holds k to be a number that is priced.

    Raises:
        InvalidValue: it is not from 1 to `MOST_RECORDS`.
    """
    if type(records) is not int or not 1 <= records <= MOST_RECORDS:
        raise InvalidValue(
            f"a person has 1 to {MOST_RECORDS} records, not {records!r}; keep fewer of each person (`dpswd-curator "
            "records convert --person COLUMN --most K`)"
        )


def promised_to_person(epsilon: float, delta: float, records: int) -> tuple[float, float]:
    """What (epsilon, delta) for a record promises a person with at most `records` of them, rounded up.

    Args:
        epsilon: for a record.
        delta: the same.
        records: k.

    Returns:
        k epsilon, and delta (e^(k epsilon) - 1) / (e^epsilon - 1), at most 1.
    """
    check_records_per_person(records)
    if records == 1 or epsilon <= 0.0:
        return epsilon, min(1.0, delta * records)
    whole = records * epsilon
    grown = math.log(delta) + _log_sum(epsilon, whole)
    return whole * (1 + _ROOM), 1.0 if grown >= 0.0 else math.exp(grown) * (1 + _ROOM)


def allowed_for_record(epsilon: float, delta: float, records: int) -> tuple[float, float]:
    """The budget of a record under which a person with at most `records` of them is promised (epsilon, delta).

    The inverse of `promised_to_person`, rounded down.
    """
    check_records_per_person(records)
    if records == 1:
        return epsilon, delta
    each = epsilon / records * (1 - 2 * _ROOM)
    shrunk = math.log(delta) - _log_sum(epsilon / records, epsilon)
    return each, math.exp(shrunk) * (1 - 4 * _ROOM)


def _log_sum(epsilon: float, whole: float) -> float:
    """Logarithm of (e^whole - 1) / (e^epsilon - 1)."""
    return whole - epsilon + math.log(-math.expm1(-whole)) - math.log(-math.expm1(-epsilon))
