"""What an operator may choose: one tree of settings with its sources.

Sources, later wins: ``curator.toml`` in the home directory, environment variables ``DPSWD_CURATOR_<SECTION>__<FIELD>``
(two underscores between section and field; with ``_FILE`` behind it the variable names a file with the value), the
command line. Paths that are not absolute start at the home directory. What the ledger promises (epsilon, delta,
clients) is no setting: it stands in the ledger alone. docs/settings.md is made from this tree.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, Field, ValidationError, model_validator
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)
from pydantic_settings import SettingsError as SourceError

from private_curator.settings.groups import (
    ComputeSettings,
    ExtractorSettings,
    LedgerSettings,
    LimitSettings,
    ListenSettings,
    LogSettings,
    MetricsSettings,
    RecordsSettings,
    TracingSettings,
)
from shared.configuration import Environment, explain_error, from_command_line, settings_of
from shared.errors import SettingsError

ENVIRONMENT_PREFIX = "DPSWD_CURATOR_"
SETTINGS_FILE = "curator.toml"

__all__ = [
    "ENVIRONMENT_PREFIX",
    "SECRETS",
    "SETTINGS_FILE",
    "ComputeSettings",
    "CuratorSettings",
    "ExtractorSettings",
    "LedgerSettings",
    "LimitSettings",
    "ListenSettings",
    "LogSettings",
    "MetricsSettings",
    "RecordsSettings",
    "TracingSettings",
    "check_section",
    "load",
]


class CuratorSettings(BaseSettings):
    """The whole tree; see the sections."""

    model_config = SettingsConfigDict(
        env_prefix=ENVIRONMENT_PREFIX, env_nested_delimiter="__", extra="forbid", frozen=True
    )

    home: Path = Field(description="The curator's directory: settings, ledger, certificates, uploads, incidents.")
    listen: ListenSettings = Field(default_factory=ListenSettings, description="Where the curator listens.")
    records: RecordsSettings = Field(description="The private records, and how they become float32.")
    compute: ComputeSettings = Field(default_factory=ComputeSettings, description="What the steps run on.")
    extractors: ExtractorSettings = Field(
        default_factory=ExtractorSettings, description="Which extractors may see records."
    )
    limits: LimitSettings = Field(
        default_factory=LimitSettings, description="Bounds on requests, at most the protocol's own."
    )
    ledger: LedgerSettings = Field(
        default_factory=LedgerSettings, description="Where the ledger stands: in a file, or in PostgreSQL for replicas."
    )
    log: LogSettings = Field(default_factory=LogSettings, description="What the serving curator writes to its log.")
    metrics: MetricsSettings = Field(
        default_factory=MetricsSettings,
        description="Prometheus metrics. They ask for no password: keep them on an inner network.",
    )
    tracing: TracingSettings = Field(
        default_factory=TracingSettings, description="OpenTelemetry traces; need `dpswd[tracing]`."
    )

    @model_validator(mode="after")
    def _absolute_paths(self) -> CuratorSettings:
        if not self.home.is_absolute():
            object.__setattr__(self, "home", self.home.resolve())
        return self

    @property
    def records_file(self) -> Path:
        """The records' file as an absolute path."""
        return self.home / self.records.file

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - the signature is pydantic's
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Command line, then environment, then the file in the home directory; the first that has a value wins."""
        home = init_settings.init_kwargs["home"]  # type: ignore[attr-defined]
        return (
            init_settings,
            Environment(settings_cls),
            TomlConfigSettingsSource(settings_cls, Path(home) / SETTINGS_FILE),
        )


SECRETS = frozenset(setting.name for setting in settings_of(CuratorSettings) if setting.secret)


def load(home: Path, overrides: Mapping[str, str] | None = None) -> CuratorSettings:
    """Reads the settings of the curator in `home`.

    Args:
        home: the curator's directory; must hold curator.toml.
        overrides: values from the command line by dotted name, for example ``{"listen.port": "0"}``.

    Raises:
        SettingsError: no curator.toml, unreadable, an unknown field, or a value out of range; all at once.
    """
    if not (home / SETTINGS_FILE).is_file():
        raise SettingsError(
            f"{home} holds no {SETTINGS_FILE}; make a curator with `dpswd-curator init --home {home} ...`"
        )
    tree: dict[str, Any] = from_command_line(overrides or {})
    try:
        return CuratorSettings(home=home.resolve(), **tree)
    except ValidationError as error:
        raise SettingsError(explain_error(error, secrets=SECRETS)) from None
    except SourceError as error:  # a list in the environment that is no JSON
        raise SettingsError(f"the environment: {error}; write lists as JSON, for example [1, 28, 28]") from None
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"{home / SETTINGS_FILE} is not valid TOML: {error}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{home / SETTINGS_FILE} cannot be read ({type(error).__name__})") from error


_SectionType = TypeVar("_SectionType", bound=BaseModel)


def check_section(kind: type[_SectionType], name: str, fields: Mapping[str, object]) -> _SectionType:
    """One section from plain values, as `dpswd-curator init` gets them.

    Raises:
        SettingsError: every value that is out of range.
    """
    try:
        return kind.model_validate({key: value for key, value in fields.items() if value is not None})
    except ValidationError as error:
        raise SettingsError(f"{name}: {explain_error(error)}") from error
