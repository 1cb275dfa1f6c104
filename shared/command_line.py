"""What both programs' lists of commands share: what is typed every day stands before what is rare."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import click


class Commands(click.Group):
    """A group whose help lists its commands by how often they are typed; each command belongs to one of the lists."""

    sections: ClassVar[Mapping[str, Sequence[str]]] = {}

    def invoke(self, ctx: click.Context) -> Any:
        """Runs a command; a reader that closes the pipe early ends it in silence, as it ends other programs."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is left in its buffer goes nowhere
            return ctx.exit(128 + signal.SIGPIPE)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All commands, those of every day first."""
        return [name for names in self.sections.values() for name in names] or super().list_commands(ctx)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the lists."""
        if not self.sections:
            super().format_commands(ctx, formatter)
        for title, names in self.sections.items():
            commands = [(name, command) for name in names if (command := self.get_command(ctx, name)) is not None]
            room = formatter.width - 6 - max(len(name) for name, _ in commands)
            with formatter.section(title):
                formatter.write_dl([(name, command.get_short_help_str(room)) for name, command in commands])
