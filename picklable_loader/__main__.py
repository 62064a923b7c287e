"""``python -m picklable_loader COMMAND``: one sub-command per module."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Protocol

from .bench import command as bench
from .demo import command as demo

__all__ = ["main"]


class Command(Protocol):
    """A module that is a sub-command; the first line of its docstring is its help."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the command's options."""

    def run(self, options: argparse.Namespace) -> int:
        """Do it.

        Returns:
            The process's exit status.
        """


COMMANDS: dict[str, Command] = {"demo": demo, "bench": bench}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the sub-command that the arguments name.

    Args:
        arguments: without the program's name; None for the process's own.

    Returns:
        The exit status: 0 if all went well.
    """
    options = _parser().parse_args(arguments)
    return COMMANDS[options.command].run(options)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m picklable_loader")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, command in COMMANDS.items():
        first = (command.__doc__ or "").splitlines()[0]
        added = commands.add_parser(name, help=first, description=first)
        command.add_arguments(added)
    return parser


if __name__ == "__main__":
    sys.exit(main())
