"""What an ML team may set for good: one tree of settings with its sources.

Sources, later wins: ``dpswd-client.toml`` in the working directory (or the file that DPSWD_CLIENT_SETTINGS names),
environment variables ``DPSWD_CLIENT_<GROUP>__<FIELD>`` (with ``_FILE`` behind it the variable names a file with the
value), the command line. What one training is, stands in an experiment file and not here. This tree makes
docs/reference/settings.md.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from pydantic_settings import SettingsConfigDict

from dpswd.shared.configuration import SettingsGroup, SettingsTree, setting
from dpswd.shared.core.errors import SettingsError

SETTINGS_FILE = "dpswd-client.toml"
SETTINGS_VARIABLE = "DPSWD_CLIENT_SETTINGS"


class DefaultCurator(SettingsGroup):
    """The curator that commands speak to where `--curator` is left out."""

    address: str | None = setting(
        None,
        "Where it listens. `train` rehearses on this machine all the same unless --curator is given.",
        allowed="host:port or none",
        pattern=r"^.+:[0-9]+$",
    )
    credentials: Path | None = setting(None, "Directory with ca.crt, client.crt and client.key; the key is no setting.")
    server_name: str | None = setting(
        None,
        "The name in the curator's certificate, where it differs from the address (a tunnel).",
        min_length=1,
        max_length=253,
    )


class ConnectionSettings(SettingsGroup):
    """How long the client waits, and how often it comes back."""

    timeout_seconds: float = setting(
        120.0, "Deadline of one attempt; a step on large records takes long.", unit="seconds", gt=0, le=3600
    )
    patience_seconds: float = setting(
        180.0, "How long a curator that cannot be reached is tried again.", unit="seconds", ge=0, le=86_400
    )
    site_patience_seconds: float = setting(
        15.0,
        "The same for each of several hospitals that are trained with together: then it is set aside.",
        unit="seconds",
        ge=0,
        le=86_400,
    )
    start_seconds: float | None = setting(
        None,
        "How long a curator that starts slowly is waited for; by default 10, or the patience if that is less.",
        unit="seconds",
        ge=0,
        le=86_400,
    )
    straggler_seconds: float = setting(
        20.0,
        "Of several hospitals asked together, each has twice as long as half of them took, and so many seconds more.",
        unit="seconds",
        ge=0,
        le=86_400,
    )
    absent_sites: Literal["set aside", "refuse"] = setting(
        "set aside", "Where one of several hospitals is down before anything is charged: set aside, or refuse."
    )


class ClientSettings(SettingsTree):
    """The whole tree; see the groups."""

    model_config = SettingsConfigDict(env_prefix="DPSWD_CLIENT_")

    curator: DefaultCurator = DefaultCurator()
    connection: ConnectionSettings = ConnectionSettings()


def settings_file() -> Path:
    """The file that is read; it need not exist unless it is named."""
    return Path(os.environ.get(SETTINGS_VARIABLE) or SETTINGS_FILE)


def load(overrides: Mapping[str, str] | None = None) -> ClientSettings:
    """Reads the settings.

    Args:
        overrides: values from the command line by dotted name.

    Raises:
        SettingsError: a file that was named is not there or unreadable, an unknown field, or a value out of range.
    """
    if os.environ.get(SETTINGS_VARIABLE) and not settings_file().is_file():
        raise SettingsError(
            f"{SETTINGS_VARIABLE} names {settings_file()}, which does not exist; correct it, or unset it"
        )
    return ClientSettings.from_sources(settings_file(), overrides)
