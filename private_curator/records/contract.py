"""The operator's declaration of the records' values, and whether the records keep to it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from private_curator.records.opening import open_source
from private_curator.records.problems import RecordsRefused
from private_curator.records.target import Target
from private_curator.settings.groups import RecordsSettings
from shared.errors import SettingsError
from shared.protocol.contract import DataContract

_AT_A_TIME = 2**22  # values that are looked at together
_NAMES = ("value_range", "channel_mean", "channel_std", "column_names", "units")


def contract_of(settings: RecordsSettings, *, record_shape: tuple[int, ...], home: Path) -> DataContract:
    """What the operator declares; public.

    Args:
        settings: with the declaration.
        record_shape: of a served record.
        home: where paths of the settings that are not absolute start.

    Raises:
        SettingsError: it breaks a rule, does not fit the records' shape, or names other columns than the file.
    """
    made = DataContract(**{name: getattr(settings, name) or () for name in _NAMES})
    if wrong := made.problems(record_shape):
        raise SettingsError("; ".join(f"records.{one}" for one in wrong))
    columns = open_source(settings, home=home).layout.columns if made.column_names else ()
    if columns and tuple(columns) != made.column_names:
        raise SettingsError(
            f"records.column_names are {', '.join(made.column_names)}; the file's columns are {', '.join(columns)}: "
            "declare those, in their order, or choose them with records.columns"
        )
    return made


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
    if all(getattr(settings, name) is None for name in _NAMES):
        return "no range, names or units are declared; clients cannot tell whether their records are on your scale"
    data = load()
    contract = contract_of(settings, record_shape=data.record_shape, home=home)
    if contract.value_range:
        step = max(1, _AT_A_TIME // max(1, int(np.prod(data.record_shape))))
        for start in range(0, data.count, step):
            part = data.take(np.arange(start, min(start + step, data.count), dtype=np.int64))
            if contract.outside(part):
                first = next(i for i in range(len(part)) if contract.outside(part[i : i + 1]))
                raise RecordsRefused(
                    f"records lie outside of what records.value_range declares ({contract}); declare the range that "
                    "they may have, or mend them",
                    location=f"record {start + first}, counted from 0",
                )
    return str(contract)
