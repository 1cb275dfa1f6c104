"""``dpswd-curator serve``, ``settings`` and ``preflight``: the commands around the serving process."""

from __future__ import annotations

import logging
import os
import textwrap
from pathlib import Path

import click

from dpswd.private_curator.cli import common
from dpswd.private_curator.cli.showing import chosen_format, format_option, format_option_of, show
from dpswd.private_curator.observability import logs
from dpswd.private_curator.settings import tree as configuration
from dpswd.private_curator.settings.groups import LogSettings
from dpswd.private_curator.settings.tree import CuratorSettings
from dpswd.private_curator.storage.home_directory import HomeDirectory
from dpswd.shared.configuration import explained, help_lines, markdown
from dpswd.shared.core.errors import SettingsError

_log = logging.getLogger(__name__)

set_option = click.option(
    "--set", "assignments", multiple=True, metavar="SECTION.FIELD=VALUE", help="Overrides any setting; repeat."
)
"""``--set section.field=value``, repeated; arrives as `assignments`."""


class ExplainsSettings(click.Command):
    """A command whose ``--help`` explains every setting."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the settings below the options."""
        super().format_epilog(ctx, formatter)
        with formatter.section("Settings (curator.toml; DPSWD_CURATOR_SECTION__FIELD; --set section.field=value)"):
            formatter.write_dl(help_lines(CuratorSettings), col_max=34)


@click.command(cls=ExplainsSettings)
@common.home_option
@click.option("--address", help="host:port to listen on; port 0 takes a free one. Overrides the settings.")
@common.device_option
@common.field_option(LogSettings, "level", "--log-level", note="[default: the settings']")
@set_option
def serve(
    home: HomeDirectory, address: str | None, device: str | None, log_level: str | None, assignments: tuple[str, ...]
) -> None:
    """Serves until SIGTERM or Ctrl-C; prints one line, "listening on host:port", once it is ready."""
    # gRPC logs what it then raises; the error that is shown names the setting.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    from dpswd.private_curator.operator.preflight import check_before_serving
    from dpswd.private_curator.serving import server

    overrides = _assigned(assignments)
    overrides |= {f"listen.{name}": str(value) for name, value in parse_address(address).items()}
    if device is not None:
        overrides["compute.device"] = device
    if log_level is not None:
        overrides["log.level"] = log_level
    chosen = configuration.load(home.path, overrides)
    logs.configure(chosen.log)
    findings, ledger = check_before_serving(home, overrides)
    with ledger:
        for finding in findings:
            _log.warning("%s: %s", finding.check, finding.text)
        server.serve(home, chosen, ledger=ledger)


@click.command()
@common.optional_home_option("Shows this curator's values; without it, the defaults.")
@set_option
@format_option_of(
    "text", "json", "markdown", meaning="text for people, json for programs, markdown for docs/reference/settings.md."
)
def settings(home: Path | None, assignments: tuple[str, ...]) -> None:
    """Every setting: its value now, its default, unit and range, and what it means."""
    if chosen_format() == "markdown":
        click.echo(markdown(CuratorSettings))
        return
    rows = explained(CuratorSettings, None if home is None else configuration.load(home, _assigned(assignments)))
    if chosen_format() == "text":  # names of variables follow from names of settings
        rows = [{name: value for name, value in row.items() if name != "environment"} for row in rows]
    show(rows, title=f"Settings of {home}" if home is not None else "Settings and their defaults")


@click.command()
@common.home_option
@set_option
@format_option
@click.pass_context
def preflight(context: click.Context, home: HomeDirectory, assignments: tuple[str, ...]) -> None:
    """Checks that this curator could serve, and says how to mend what it finds; exit code 3 if anything is wrong."""
    from dpswd.private_curator.operator.preflight import check

    with common.verifying() as progress:
        findings = check(home, _assigned(assignments), progress=progress)
    wrong = [finding.check for finding in findings if not finding.ok]
    if chosen_format() == "json":
        show([{"check": f.check, "ok": f.ok, "mind": f.mind, "finding": f.text} for f in findings])
    else:
        click.echo(f"Preflight of {home.path}")
        for finding in findings:
            lead = f"  {'mind ' if finding.mind else 'well ' if finding.ok else 'WRONG'}  {finding.check:<18} "
            # As wide as a terminal's window, wherever it goes.
            click.echo(textwrap.fill(finding.text, 100, initial_indent=lead, subsequent_indent=" " * len(lead)))
        mend = f"mend {', '.join(wrong)} before serving" if wrong else "this curator can serve"
        minded = sum(finding.mind for finding in findings)
        mind = f", {minded} to mind" * bool(minded)
        click.echo(f"{len(findings) - len(wrong) - minded} of {len(findings)} checks are well{mind}: {mend}")
    if not all(finding.ok for finding in findings):
        context.exit(3)


def parse_address(text: str | None) -> dict[str, object]:
    """The settings in [listen] that ``--address host:port`` gives; raises SettingsError: it is no host and port."""
    if text is None:
        return {}
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit():
        raise SettingsError(f"--address is {text!r}; write host:port, for example 127.0.0.1:50051")
    return {"host": host.strip("[]"), "port": int(port)}


def _assigned(assignments: tuple[str, ...]) -> dict[str, str]:
    for text in assignments:
        if "=" not in text:
            raise SettingsError(f"--set {text!r} assigns nothing; write section.field=value, for example listen.port=0")
    return dict(text.split("=", 1) for text in assignments)
