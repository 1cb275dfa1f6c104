"""What all commands share: the curator's directory, its ledger, errors as exit codes."""

from __future__ import annotations

import contextlib
import functools
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args, get_origin

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from dpswd.private_curator.books.operators import Operator
from dpswd.private_curator.cli.showing import chosen_format, remember
from dpswd.private_curator.operator.telling import ProgressReporter
from dpswd.private_curator.settings import tree as configuration
from dpswd.private_curator.settings.groups import ComputeSettings
from dpswd.private_curator.storage.certificates import DEFAULT_NAMES
from dpswd.private_curator.storage.home_directory import HomeDirectory
from dpswd.shared.command_line import Commands
from dpswd.shared.configuration import SettingsGroup
from dpswd.shared.core import errors
from dpswd.shared.records.problems import RecordsRefused

if TYPE_CHECKING:
    from dpswd.private_curator.books.audit import Progress as VerificationProgress
    from dpswd.private_curator.operator.guards import Effect
    from dpswd.private_curator.operator.record import Record

_F = TypeVar("_F", bound=Callable[..., Any])

FILE = click.Path(path_type=Path, dir_okay=False)
"""The type of an option that names a file."""
SERVING = "serve"
"""The command whose output is a log."""
_OF_NOBODY = {SERVING, "preflight", "console", "backup"}
"""Commands in which nobody acts; the console says by itself who does."""
_OPERATOR = f"{__name__}.operator"
_CREDENTIAL = f"{__name__}.credential"
_TYPED = f"{__name__}.typed"
EXIT_DEFECT = 1
LEAST_DIGITS = 4
"""Of an id that stand for all of it."""

# The first class that fits decides; docs/exit-codes has a page for each code.
EXIT_CODES: tuple[tuple[type[errors.DpswdError], int], ...] = (
    (errors.SettingsError, 3),
    (errors.DataInvalid, 4),
    (errors.LedgerUnavailable, 5),
    (errors.LedgerCorrupt, 6),
    (errors.RestoreRefused, 6),
    (errors.GrantNotHeld, 7),
    (errors.PrivacyError, 8),
    (errors.InvalidValue, 9),
    (errors.DpswdError, 10),
)


class Program(Commands):
    """A group whose errors are one line on standard error and a documented exit code, never a traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        """Runs the command."""
        try:
            return super().invoke(ctx)
        except (click.exceptions.Exit, click.ClickException, click.Abort):
            raise
        except Exception as error:  # noqa: BLE001 - the boundary of the program
            # What serves writes to a log that others may read; the place of an offence is for a terminal.
            text = _explain(error, placed=ctx.invoked_subcommand != SERVING)
            click.echo(f"Error: {_as_typed(text, ctx.meta.get(_TYPED, {}))}", err=True)
            ctx.exit(exit_code(error))


def name_options(section: str) -> None:
    """From here on an error names the running command's options in the place of that section's settings."""
    context = click.get_current_context()
    options = [each for each in context.command.params if isinstance(each, click.Option)]
    # A command whose file is no option has it as its argument.
    named = {"file": "PATH"} | {each.name: each.opts[0] for each in options}
    context.meta[_TYPED] = {f"{section}{dot}{name}": flag for name, flag in named.items() for dot in (".", ": ")}


def _as_typed(text: str, options: Mapping[str, str]) -> str:
    return re.sub(r"\b\w+(?:\.|: )\w+\b", lambda match: options.get(match[0], match[0]), text)


@contextlib.contextmanager
def verifying() -> Iterator[VerificationProgress]:
    """Shows on standard error how far a ledger's verification is: a bar on a terminal, else a line now and then."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield ProgressReporter(functools.partial(click.echo, err=True))
        return
    columns = (TextColumn("verifying the ledger"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as shown:
        task = shown.add_task("", total=None)
        yield lambda done, total: shown.update(task, completed=done, total=total)


def exit_code(error: BaseException) -> int:
    """The documented exit code of an error."""
    return next((code for kind, code in EXIT_CODES if isinstance(error, kind)), EXIT_DEFECT)


def _explain(error: Exception, *, placed: bool) -> str:
    if isinstance(error, RecordsRefused):
        return error.in_full() if placed else f"{error}; `dpswd-curator records inspect` names the place"
    if isinstance(error, errors.DpswdError):
        return str(error)
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename or 'a file'}: {error.strerror}"
    # The text of an unexpected error may quote a record; the place says where to look.
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"unexpected {type(error).__qualname__} at {Path(frame.filename).name}:{frame.lineno}; please report it"


def optional_home_option(meaning: str, **attributes: Any) -> Callable[[_F], _F]:
    """``--home`` of a command that also works without a curator; arrives as an absolute path, or None."""
    kind = click.Path(path_type=Path, file_okay=False, resolve_path=True)
    text = f"{meaning}  [env: DPSWD_CURATOR_HOME]"
    return click.option("--home", envvar="DPSWD_CURATOR_HOME", type=kind, help=text, **attributes)


def _home_if_given(context: click.Context, _parameter: click.Parameter, value: Path | None) -> HomeDirectory | None:
    """The directory, for whoever acts."""
    if value is None:
        return None
    name, file = context.meta.get(_OPERATOR), context.meta.get(_CREDENTIAL)
    credential = None if file is None else Operator.read(file)
    if name is not None and credential is not None and name != credential.name:
        raise errors.SettingsError(f"--as is {name!r}, and the credential is of {credential.name!r}; leave --as out")
    home = HomeDirectory(value, operator=credential or name)
    return (
        home if context.info_name in _OF_NOBODY else HomeDirectory(value, operator=lambda: _whoever_acts(home, context))
    )


def _whoever_acts(home: HomeDirectory, context: click.Context) -> Operator:
    chosen = configuration.load(home.path).console
    if chosen.client_id is None:
        return home.acting
    from dpswd.private_curator.console.terminal import remembered

    above = [] if context.parent is None or context.parent.parent is None else [context.parent.info_name]
    names = [*above, context.info_name, *(["state"] if context.params.get("words") else [])]
    return remembered(home, chosen, "".join(f"/{name}" for name in names))


def needed(home: HomeDirectory | None) -> HomeDirectory:
    """The directory.

    Raises:
        click.UsageError: none was named.
    """
    if home is None:
        raise click.UsageError("name the curator's directory: with --home, or for all commands in DPSWD_CURATOR_HOME")
    return home


def _home(context: click.Context, parameter: click.Parameter, value: Path | None) -> HomeDirectory:
    return needed(_home_if_given(context, parameter, value))


home_option = optional_home_option("The curator's directory.", callback=_home)
home_if_given_option = optional_home_option("The curator's directory.", callback=_home_if_given)
"""``--home`` of a command of which not every act needs one."""


credential_option = click.option(
    "--credential",
    type=FILE,
    envvar="DPSWD_CURATOR_CREDENTIAL",
    show_envvar=True,
    expose_value=False,
    callback=remember(_CREDENTIAL),
    help="Your own credential, from `operators NAME --make`: proves who acts where the ledger has operators.",
)
"""``--credential FILE`` of the program, before the command."""
operator_option = click.option(
    "--as",
    "operator",
    envvar="DPSWD_CURATOR_OPERATOR",
    show_envvar=True,
    expose_value=False,
    callback=remember(_OPERATOR),
    help="Who acts; each act in the ledger states the name.  [default: the system's user]",
)
"""``--as NAME`` of the program, before the command."""


def record_of(home: HomeDirectory) -> Record:
    """What there is to see: needs no key and writes nothing, so that it works on a read-only copy of a home."""
    from dpswd.private_curator.operator.record import Record

    record = Record(home)
    _warn(record)
    return record


def chosen_act(**acts: object) -> str | None:
    """Which of these acts was asked for, each by the option of its name; None where there is only to look.

    `reason`, if it is given, is what each of them needs.

    Raises:
        click.UsageError: two at once, or no reason, or a reason for nothing.
    """
    needs_reason, reason = "reason" in acts, acts.pop("reason", None)
    names = [f"--{name.replace('_', '-')}" for name, value in acts.items() if value is not None and value is not False]
    if len(names) > 1:
        raise click.UsageError(f"{names[0]} and {names[1]} are two acts; do one at a time")
    if names and needs_reason and reason is None:
        raise click.UsageError("Missing option '--reason'.")
    if not names and reason is not None:
        listed = ", ".join(f"--{name.replace('_', '-')}" for name in acts)
        raise click.UsageError(f"--reason is of an act; name one: {listed}")
    return names[0] if names else None


def full_id(given: str, ids: Iterable[str]) -> str:
    """The one id that begins with the given digits, at least `LEAST_DIGITS`; where none does, what was given.

    Raises:
        InvalidValue: several do.
    """
    begun = [each for each in ids if len(given) >= LEAST_DIGITS and each.startswith(given.lower())]
    if len(begun) > 1:
        raise errors.InvalidValue(f"{len(begun)} ids begin with {given!r}; give more digits")
    return begun[0] if begun else given


def _warn(record: Record) -> None:
    """Says on standard error that the figures may not be trusted."""
    health = record.health
    if not health.head_signed:
        click.echo("WARNING: the ledger's last entry is not signed by its own key; run `ledger verify`", err=True)
    if health.witness_holds is False:
        click.echo(f"WARNING: noted is {health.witness}; see docs/operator/incidents.md", err=True)


def field_option(
    group: type[SettingsGroup], field: str, flag: str = "", *, note: str = "", **attributes: Any
) -> Callable[[_F], _F]:
    """An option of a setting's type and meaning, and a note; arrives as None where it is left out."""
    info = group.model_fields[field]
    kind: Any = None
    if get_origin(info.annotation) is Literal:
        kind = click.Choice(get_args(info.annotation))
    elif info.annotation == Path | None:
        kind = click.Path(path_type=Path, dir_okay=False, resolve_path=True)
    name = flag or f"--{field.replace('_', '-')}"
    return click.option(name, type=kind, default=None, help=f"{info.description}  {note}".strip(), **attributes)


device_option = field_option(ComputeSettings, "device", note="[default: the settings', or auto]")
reason_option = click.option("--reason", help="Why; each act needs it, and it stands in the ledger for good.")
confirm_option = click.option(
    "--confirm", "typed", help="The words that a doubtful act asks for, for scripts; else they are typed when asked."
)
fingerprint_option = click.option(
    "--fingerprint", help="The request's fingerprint, or its first digits, as the team told it another way."
)
san_option = click.option(
    "--san",
    "names",
    multiple=True,
    default=DEFAULT_NAMES,
    show_default=True,
    help="Name or address of the server; repeat.",
)


def confirmed(effect: Effect, typed: str | None) -> str | None:
    """Shows an act's effect, and asks for the words that it needs where somebody is there to type them."""
    if chosen_format() == "text":
        for line in effect.preview:
            click.echo(f"  {line}", err=True)
    if effect.doubts and typed is None and sys.stdin.isatty():
        for line in effect.doubts:
            click.echo(f"  {line}", err=True)
        typed = str(click.prompt(f"Type {effect.words!r} to go on", err=True))
    effect.confirm(typed)
    return typed
