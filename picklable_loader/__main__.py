"""``python -m picklable_loader COMMAND``: one sub-command per module, imported when it is run."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Protocol, cast

__all__ = ["main"]


class Command(Protocol):
    """A module that is a sub-command."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the command's options."""

    def run(self, options: argparse.Namespace) -> int:
        """Do it.

        Returns:
            The process's exit status.
        """


#: where each command is, and what it does: the first line of its docstring
COMMANDS = {
    "inspect": (
        "tools.commands.inspect",
        "Show what is in a checkpoint, without running it; that it looks harmless is no proof.",
    ),
    "diff": (
        "tools.commands.diff",
        "Compare two checkpoints, or states, path by path, without running anything of them.",
    ),
    "skip": (
        "tools.commands.skip",
        "Write a checkpoint anew with its state moved on by a number of batches.",
    ),
    "verify": (
        "tools.commands.verify",
        "Check that a loader of yours resumes exactly, and find where it does not.",
    ),
    "doctor": (
        "tools.commands.doctor",
        "Show what this machine has of what the loader uses, and what that means.",
    ),
    "demo": (
        "tools.demo.command",
        "Train, be killed in mid-epoch, resume, and compare with an uninterrupted run.",
    ),
    "bench": (
        "tools.bench.command",
        "Measure your own loader against torch's, and suggest num_workers and prefetch_budget.",
    ),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the sub-command that the arguments name.

    Args:
        arguments: without the program's name; None for the process's own.

    Returns:
        The exit status: 0 if all went well; 141 if nobody reads what it prints.
    """
    given = sys.argv[1:] if arguments is None else list(arguments)
    command = _command(given[0]) if given and given[0] in COMMANDS else None
    options = _parser(given[0] if given else "", command).parse_args(given)
    assert command is not None  # any other name has ended the program
    try:
        status = command.run(options)
        sys.stdout.flush()
        return status
    except BrokenPipeError:  # whoever read it has seen enough; Python would flush once more
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _NOBODY_READS


#: what a shell says of a program that has written to nobody
_NOBODY_READS = 128 + signal.SIGPIPE


def _command(name: str) -> Command:
    return cast(Command, import_module(f"{__package__}.{COMMANDS[name][0]}"))


def _parser(chosen: str, command: Command | None) -> argparse.ArgumentParser:
    """A parser that knows all commands by name, and the options of the chosen one."""
    parser = argparse.ArgumentParser("python -m picklable_loader")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (_, says) in COMMANDS.items():
        added = commands.add_parser(name, help=says, description=says)
        if name == chosen and command is not None:
            command.add_arguments(added)
    return parser


if __name__ == "__main__":
    sys.exit(main())
