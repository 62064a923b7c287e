"""Train, be killed in mid-epoch, resume, and compare with an uninterrupted run.

The parts that need scikit-learn, matplotlib or tqdm are imported when the command runs: the
package works without them.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from pathlib import Path

from ..table import complain

#: what the demo imports beyond the package's own needs, and how it is called when installed
_NEEDED = {"sklearn": "scikit-learn", "matplotlib": "matplotlib", "tqdm": "tqdm"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("demo_output"),
        metavar="DIR",
        help="where the picture, the facts and the checkpoints go (default: %(default)s)",
    )
    parser.add_argument(
        "--epochs",
        type=_positive,
        default=6,
        metavar="N",
        help="length of the training (default: %(default)s)",
    )


def run(options: argparse.Namespace) -> int:
    """Show the demo.

    Returns:
        0 if the resumed run was the uninterrupted one, bit for bit; 1 if not, or if a run went
        wrong; 2 if something that the demo needs is not installed.
    """
    missing = [name for module, name in _NEEDED.items() if not importlib.util.find_spec(module)]
    if missing:
        return complain(
            f"The demo needs {' and '.join(missing)}, which "
            f"{'is' if len(missing) == 1 else 'are'} not installed here: "
            "pip install 'picklable-loader[demo]'"
        )
    from .show import RunFailed, show

    try:
        return 0 if show(options.output, options.epochs) else 1
    except RunFailed as error:
        print(error, file=sys.stderr)
        return 1


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"should be from 1, got {text}")
    return number
