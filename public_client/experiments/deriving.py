"""A delivered file's check by files alone: certificate, evidence, public source and the team's network."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dpswd.public_client.data.networks import ready_network
from dpswd.public_client.data.own_files import load_own
from dpswd.public_client.evidence.evidence import GENERATOR
from dpswd.public_client.experiments.own_model import network_of, own_model
from dpswd.public_client.ladder.check import Checked, check, derive
from dpswd.public_client.training.sites import Model
from dpswd.shared.core.ledger.keys import PinnedKey
from dpswd.shared.protocol.contract import DataContract
from dpswd.shared.records.batches import Reading

_SHOWN = 256  # source records by which a network is split, as in a training


def check_adapted(
    path: Path, *, key: PinnedKey, credentials: Path | None, ledger: Sequence[str], **given: Any
) -> Checked:
    """Checks a model or a generator, and derives it again where what it needs is given and nothing else is wrong.

    Args:
        path: of the model.
        key: see `check`.
        credentials: see `check`.
        ledger: see `check`.
        given: see `begun_with`.

    Raises:
        DataInvalid, SettingsError: a file is missing, or is none of its kind.
    """
    checked = check(path, key=key, credentials=credentials, ledger=ledger)
    if not checked.findings and (needed := begun_with(checked, **given)) is not None:
        derive(path, checked, *needed)
    return checked


def begun_with(
    checked: Checked, *, source: Path | None, label: str | None, network: str | None, model: Path | None
) -> tuple[Any, Any] | None:
    """The team's network and the public source, with which a checked file is derived again; a generator has no source.

    Args:
        checked: without findings.
        source: the public source's file; without one a model cannot be derived.
        label: its column of labels.
        network: FILE.py:NAME of the team's own network; None for a ready one.
        model: the team's fitted classifier, or None.

    Raises:
        DataInvalid, SettingsError: a file is missing, or is none of its kind.
    """
    if checked.evidence.settings["kind"] == GENERATOR:
        return None if network is None else network_of(network), None
    if source is None:
        return None
    declared = checked.evidence.settings["contract"]
    contract = DataContract.from_bytes(bytes.fromhex(declared)) if declared else DataContract()
    own = load_own(source, Reading(contract.column_names or None, label), classes=contract.class_names)
    records, labels = own.data.images, own.data.labels
    start = None if network is None and model is None else own_model(network, model, records[:_SHOWN])
    return start or Model(*ready_network(tuple(records.shape[1:]), int(labels.max()) + 1)), (records, labels)
