"""The operator's declaration of the records' values, and whether the records keep to it."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from dpswd.private_curator.records.fingerprint import Fingerprint
from dpswd.private_curator.records.labels import class_count, class_names
from dpswd.private_curator.records.opening import open_source
from dpswd.private_curator.records.target import Target
from dpswd.private_curator.settings.groups import RecordsSettings
from dpswd.shared.core.errors import SettingsError
from dpswd.shared.protocol.contract import DataContract
from dpswd.shared.records.problems import RecordsRefused

_AT_A_TIME = 2**22  # values that are looked at together
_NAMES = ("value_range", "channel_mean", "channel_std", "column_names", "units", "class_names")
NO_RANGE = (
    "no range of values is declared, so clients cannot tell whether their records are on your scale: declare "
    "records.value_range (docs/operator/records.md)"
)


def contract_of(settings: RecordsSettings, *, record_shape: tuple[int, ...], home: Path) -> DataContract:
    """What the operator declares; public.

    Args:
        settings: with the declaration.
        record_shape: of a served record.
        home: where paths of the settings that are not absolute start.

    Raises:
        SettingsError: it breaks a rule, does not fit the records' shape or classes, or names other columns than the
            file.
    """
    made = DataContract(
        **{name: getattr(settings, name) or () for name in _NAMES} | {"class_names": _classes(settings)}
    )
    if wrong := made.problems(record_shape):
        raise SettingsError("; ".join(f"records.{one}" for one in wrong))
    columns = open_source(settings, home=home).layout.columns if made.column_names else ()
    if columns and tuple(columns) != made.column_names:
        raise SettingsError(
            f"records.column_names are {', '.join(made.column_names)}; the file's columns are {', '.join(columns)}: "
            "declare those, in their order, or choose them with records.columns"
        )
    return made


def _classes(settings: RecordsSettings) -> tuple[str, ...]:
    """Their names in order, as `records.classes` or `records.class_names` declares them."""
    named, names, count = settings.class_names or (), class_names(settings), class_count(settings)
    if named and (names not in ((), named) or len(named) != count):
        raise SettingsError(
            f"records.class_names has {len(named)} names; give one for each of the {count} classes that "
            "records.classes declares, in their order, or leave it out where records.classes names them"
        )
    return named or names


def require_contract(settings: RecordsSettings, data: Target, *, home: Path) -> DataContract:
    """What the operator declares, where the records keep it: what a curator needs before it serves.

    A pass over all records is made once for a declaration, and kept beside the check of the records.

    Args:
        settings: with the declaration.
        data: the records as they are served.
        home: the curator's directory.

    Raises:
        SettingsError: the records do not keep it, or see `contract_of`; nothing about a record is told.
    """
    contract = contract_of(settings, record_shape=data.record_shape, home=home)
    if not contract.value_range:
        return contract
    stored, path = Fingerprint.read(home), home / settings.file
    declared = _digest(contract, data)
    checked = stored is not None and stored.covers(settings, path)
    if stored is not None and checked and stored.contract == declared:
        return contract
    if _first_outside(contract, data) is not None:
        raise SettingsError("the records do not keep the declared contract; run `dpswd-curator preflight`")
    if stored is not None and checked:
        with contextlib.suppress(OSError):  # then the pass is made at each start
            replace(stored, contract=declared).write(home)
    return contract


def _digest(contract: DataContract, data: Target) -> str:
    """Of a declaration, and of how stored values become served ones."""
    promises = (contract.value_range, contract.channel_mean, contract.channel_std)
    return hashlib.sha256(repr((promises, data.record_shape, data.scale, data.offset)).encode()).hexdigest()


def _first_outside(contract: DataContract, data: Target) -> int | None:
    """The number of the first record outside of the declared range; private."""
    step = max(1, _AT_A_TIME // max(1, int(np.prod(data.record_shape))))
    for start in range(0, data.count, step):
        part = data.take(np.arange(start, min(start + step, data.count), dtype=np.int64))
        if contract.outside(part):
            return start + next(i for i in range(len(part)) if contract.outside(part[i : i + 1]))
    return None


def check_contract(settings: RecordsSettings, load: Callable[[], Target], *, home: Path) -> str:
    """Holds every record to the declaration, where there is one.

    Args:
        settings: with the declaration.
        load: gives the records as they are served.
        home: where paths of the settings that are not absolute start.

    Returns:
        What was found, in words.

    Raises:
        SettingsError: the declaration breaks a rule, or names other columns than the file.
        RecordsRefused: a record lies outside the declared range; the place is for the operator's terminal.
    """
    if not class_names(settings) and all(getattr(settings, name) is None for name in _NAMES):
        return NO_RANGE
    data = load()
    contract = contract_of(settings, record_shape=data.record_shape, home=home)
    if not contract.value_range:
        return f"{contract}; {NO_RANGE}"
    first = _first_outside(contract, data)
    if first is not None:
        raise RecordsRefused(
            f"records lie outside of what records.value_range declares ({contract}); declare the range that they may "
            "have, or mend them",
            location=f"record {first}, counted from 0",
        )
    return str(contract)
