"""What an ML team may set for good: one tree of settings with its sources.

Sources, later wins: ``dpswd-client.toml`` in the working directory (or the file that DPSWD_CLIENT_SETTINGS names),
environment variables ``DPSWD_CLIENT_<SECTION>__<FIELD>`` (with ``_FILE`` behind it the variable names a file with the
value), the command line. What one training is, stands in an experiment file and not here. docs/settings.md is made from
this tree.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, TomlConfigSettingsSource
from pydantic_settings import SettingsError as SourceError

from shared.configuration import Environment, explain_error, from_command_line
from shared.errors import SettingsError

ENVIRONMENT_PREFIX = "DPSWD_CLIENT_"
SETTINGS_FILE = "dpswd-client.toml"
SETTINGS_VARIABLE = "DPSWD_CLIENT_SETTINGS"


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class CuratorSection(_Section):
    """The curator that commands speak to where ``--curator`` is left out."""

    address: str | None = Field(
        default=None,
        pattern=r"^.+:[0-9]+$",
        json_schema_extra={"allowed": "host:port or none"},
        description="Where it listens. `train` rehearses on this machine all the same unless --curator is given.",
    )
    credentials: Path | None = Field(
        default=None,
        description="Directory with ca.crt, client.crt and client.key; the key is no setting.",
    )
    server_name: str | None = Field(
        default=None,
        min_length=1,
        max_length=253,
        description="The name in the curator's certificate, where it differs from the address (a tunnel).",
    )


class ConnectionSettings(_Section):
    """How long the client waits, and how often it comes back; a request is always repeated under its own id."""

    timeout_seconds: float = Field(
        default=120.0,
        gt=0,
        le=3600,
        json_schema_extra={"unit": "seconds"},
        description="Deadline of one attempt; a step on large records takes long.",
    )
    patience_seconds: float = Field(
        default=180.0,
        ge=0,
        le=86_400,
        json_schema_extra={"unit": "seconds"},
        description="How long a curator that cannot be reached is tried again.",
    )


class ClientSettings(BaseSettings):
    """The whole tree; see the sections."""

    model_config = SettingsConfigDict(
        env_prefix=ENVIRONMENT_PREFIX, env_nested_delimiter="__", extra="forbid", frozen=True
    )

    curator: CuratorSection = Field(
        default_factory=CuratorSection, description="The curator that commands speak to where `--curator` is left out."
    )
    connection: ConnectionSettings = Field(
        default_factory=ConnectionSettings, description="How long the client waits, and how often it comes back."
    )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - the signature is pydantic's
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Command line, then environment, then the file; the first that has a value wins."""
        return (init_settings, Environment(settings_cls), TomlConfigSettingsSource(settings_cls, settings_file()))


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
    tree: dict[str, Any] = from_command_line(overrides or {})
    try:
        return ClientSettings(**tree)
    except ValidationError as error:
        raise SettingsError(explain_error(error)) from None
    except SourceError as error:
        raise SettingsError(f"the environment: {error}; write lists as JSON") from None
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"{settings_file()} is not valid TOML: {error}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{settings_file()} cannot be read ({type(error).__name__})") from error
