"""What an operator may choose: one tree of settings with its sources.

Sources, later wins: ``curator.toml`` in the home directory, environment variables ``DPSWD_CURATOR_<GROUP>__<FIELD>``
(two underscores between group and field; with ``_FILE`` behind it the variable names a file with the value), the
command line. Paths that are not absolute start at the home directory. What the ledger promises (epsilon, delta,
clients) is no setting: it stands in the ledger alone. docs/reference/settings.md is made from this tree.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pydantic_settings import SettingsConfigDict

from dpswd.private_curator.settings import groups
from dpswd.shared.configuration import SettingsTree
from dpswd.shared.core.errors import SettingsError

SETTINGS_FILE = "curator.toml"


class CuratorSettings(SettingsTree):
    """The whole tree; see the groups."""

    model_config = SettingsConfigDict(env_prefix="DPSWD_CURATOR_")

    listen: groups.ListenSettings = groups.ListenSettings()
    records: groups.RecordsSettings
    compute: groups.ComputeSettings = groups.ComputeSettings()
    cluster: groups.ClusterSettings = groups.ClusterSettings()
    extractors: groups.ExtractorSettings = groups.ExtractorSettings()
    clients: groups.PermissionSettings = groups.PermissionSettings()
    limits: groups.LimitSettings = groups.LimitSettings()
    ledger: groups.LedgerSettings = groups.LedgerSettings()
    operators: groups.OperatorSettings = groups.OperatorSettings()
    console: groups.ConsoleSettings = groups.ConsoleSettings()
    log: groups.LogSettings = groups.LogSettings()
    syslog: groups.SyslogSettings = groups.SyslogSettings()
    metrics: groups.MetricsSettings = groups.MetricsSettings()
    tracing: groups.TracingSettings = groups.TracingSettings()

    @property
    def records_file(self) -> Path:
        """The records' file as an absolute path."""
        return self.file.parent / self.records.file


def load(home: Path, overrides: Mapping[str, str] | None = None) -> CuratorSettings:
    """Reads the settings of the curator in `home`.

    Args:
        home: the curator's directory; must hold curator.toml.
        overrides: values from the command line by dotted name, for example ``{"listen.port": "0"}``.

    Raises:
        SettingsError: no curator.toml, unreadable, an unknown field, or a value out of range; all at once.
    """
    file = home.resolve() / SETTINGS_FILE
    if not file.is_file():
        raise SettingsError(
            f"{home} holds no {SETTINGS_FILE}; make a curator with `dpswd-curator init --home {home} ...`"
        )
    return CuratorSettings.from_sources(file, overrides)
