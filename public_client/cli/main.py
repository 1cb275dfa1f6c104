"""``dpswd-client``: what an ML team types. Commands are imported when they run, so that the small ones start fast."""

from __future__ import annotations

import errno
import os
import sys
from importlib import import_module
from typing import Any, ClassVar

import click

from dpswd.shared.command_line import Commands
from dpswd.shared.core import errors

_COMMANDS = {
    "describe": ("dpswd.public_client.cli.hospital", "describe"),
    "plan": ("dpswd.public_client.cli.hospital", "plan"),
    "init": ("dpswd.public_client.cli.certificates", "init"),
    "certificate": ("dpswd.public_client.cli.certificates", "certificate"),
    "check": ("dpswd.public_client.cli.checking", "check"),
    "audit": ("dpswd.public_client.cli.checking", "audit"),
    "prepare": ("dpswd.public_client.cli.preparing", "prepare"),
    "train": ("dpswd.public_client.cli.training", "train"),
    "requests": ("dpswd.public_client.cli.budgets", "requests"),
    "generate": ("dpswd.public_client.cli.generating", "generate"),
    "evaluate": ("dpswd.public_client.cli.evaluating", "evaluate"),
    "export": ("dpswd.public_client.cli.exporting", "export"),
    "settings": ("dpswd.public_client.cli.configuring", "settings"),
    "demo": ("dpswd.public_client.cli.demonstration", "demo"),
}
_EXIT_SETTINGS = 3
# The first class that fits decides; docs/exit-codes has a page for each code.
_EXIT_CODES: tuple[tuple[type[errors.DpswdError], int], ...] = (
    (errors.SettingsError, _EXIT_SETTINGS),
    (errors.DataInvalid, 4),
    (errors.GrantNotHeld, 7),
    (errors.PrivacyError, 8),
    (errors.InvalidValue, 9),
    (errors.RequestInvalid, 9),
    (errors.CuratorUnavailable, 11),
    (errors.CredentialsInvalid, 12),
    (errors.DpswdError, 10),
)
_FULL = "free some space and repeat the command; a training with --checkpoint goes on with --resume"
_FOREIGN = "it is somebody else's: ask the owner, or choose a place of your own"
_TAKEN = "something else stands there: move it away, or choose another place"
_STORAGE_ADVICE = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT, errno.EFBIG), _FULL),
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), _FOREIGN),
    **dict.fromkeys((errno.EEXIST, errno.EISDIR, errno.ENOTDIR, errno.ENOTEMPTY), _TAKEN),
}
"""What to do about a file that cannot be read or written; other errors of the system are defects."""


class _LazyGroup(Commands):
    """A group whose commands are imported by name."""

    sections: ClassVar = {
        "Every day": ("describe", "plan", "train", "evaluate", "generate", "check"),
        "Sometimes": ("demo", "init", "requests", "prepare", "export", "certificate", "audit"),
        "Rarely": ("settings",),
    }

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Imports a command."""
        if cmd_name not in _COMMANDS:
            return None
        module, name = _COMMANDS[cmd_name]
        command: click.Command = getattr(import_module(module), name)
        return command

    def invoke(self, ctx: click.Context) -> Any:
        """Runs a command; an error that dpswd raises on purpose becomes one sentence and an exit code."""
        # gRPC logs each failed handshake; the error that is raised at the end names the cause.
        os.environ.setdefault("GRPC_VERBOSITY", "NONE")
        try:
            return super().invoke(ctx)
        except errors.DpswdError as error:
            click.echo(f"dpswd-client: {error}", err=True)
            if (page := page_of(error)) is not None:
                click.echo(f"see {page}", err=True)
            sys.exit(exit_code(error))
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except Exception as error:
            if isinstance(error, OSError) and error.errno in _STORAGE_ADVICE:
                place = error.filename or "a file could not be written"
                click.echo(f"dpswd-client: {place}: {error.strerror}; {_STORAGE_ADVICE[error.errno]}", err=True)
                sys.exit(_EXIT_SETTINGS)
            if os.environ.get("DPSWD_TRACEBACK"):
                raise
            text = f"{type(error).__name__}: {error}".splitlines()[0]
            click.echo(f"dpswd-client: a defect, please report it ({text}); DPSWD_TRACEBACK=1 shows more", err=True)
            sys.exit(1)
        except KeyboardInterrupt:
            click.echo("dpswd-client: interrupted", err=True)
            sys.exit(130)


def exit_code(error: errors.DpswdError) -> int:
    """The process's exit code for an error."""
    return next(code for kind, code in _EXIT_CODES if isinstance(error, kind))


def page_of(error: errors.DpswdError) -> str | None:
    """The page about a refusal that a curator sends; None where the error's own words are all there is to say."""
    from dpswd.shared.protocol.status import reason_for  # loads gRPC, which commands without a curator do without

    if type(error) is errors.CuratorUnavailable:  # the curator's ledger, or no curator at all
        return f"docs/exit-codes.md#exit-code-{exit_code(error)}"
    row = reason_for(error)
    return None if row is None else f"docs/errors/{row.reason}.md"


@click.group(
    cls=_LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="Exit codes: 0 done, 2 wrong usage, 3 settings, 4 data, 7 no such run, 8 refused by the accountant, "
    "9 wrong value, 10 any other refusal, 11 curator unavailable, 12 credentials refused, 13 check or audit found "
    "something, 1 a defect, 130 interrupted.",
)
@click.version_option(package_name="dpswd", prog_name="dpswd-client")
def main() -> None:
    """Adapts models to private records that a curator keeps."""


if __name__ == "__main__":
    main()
