"""Train, be killed in mid-epoch, resume, and compare with an uninterrupted run.

Everything that needs scikit-learn, matplotlib or tqdm is imported when the command runs, so that
the package works without them.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
import time
from pathlib import Path
from typing import Any

from .plan import Plan

__all__ = ["add_arguments", "run"]

#: modules that the demo needs beyond the package's own, and what they are called when installed
_NEEDED = {"sklearn": "scikit-learn", "matplotlib": "matplotlib", "tqdm": "tqdm"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("demo_output"),
        metavar="DIR",
        help="where picture, facts and checkpoints are written (default: %(default)s)",
    )
    parser.add_argument(
        "--epochs",
        type=_positive,
        default=6,
        metavar="N",
        help="length of the training (default: %(default)s)",
    )


def run(options: argparse.Namespace) -> int:
    """Tell the story with both DataLoaders; 0 if ours was exact."""
    missing = [name for module, name in _NEEDED.items() if not importlib.util.find_spec(module)]
    if missing:
        print(
            f"The demo needs {', '.join(missing)}: "
            "install them with `pip install 'picklable-loader[demo]'`.",
            file=sys.stderr,
        )
        return 2
    begin = time.monotonic()
    from .digits import BATCHES

    plan = Plan(options.output.resolve(), options.epochs, BATCHES)
    ...


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"should be from 1, got {text}")
    return number
