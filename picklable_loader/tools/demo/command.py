"""Train, be killed in mid-epoch, resume, and compare with an uninterrupted run.

The parts that need scikit-learn, matplotlib or tqdm are imported when the command runs: the
package works without them.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..table import Table, complain, number_from, show

if TYPE_CHECKING:
    from .train import Plan

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
        type=number_from(1, int),
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
    from .compare import compare
    from .picture import draw
    from .train import KINDS, ROLES, Plan

    begin, output = time.monotonic(), options.output
    plan = Plan(output / "runs", options.epochs)
    plan.folder.mkdir(parents=True, exist_ok=True)
    for kind in KINDS:
        for role in ROLES:
            status = _do(plan, kind, role)
            if status != (-signal.SIGKILL if role == "killed" else 0):
                said = f"the run {kind!r}, {role!r} ended with status {status}"
                print(f"{said}: its messages are above", file=sys.stderr)
                return 1
    compared = {kind: compare(plan, kind) for kind in KINDS}
    draw(plan, compared, output / "demo.png")
    course = {name: getattr(plan, name) for name in ("epochs", "steps", "saved_at", "killed_at")}
    facts = {str(kind): each.facts for kind, each in compared.items()}
    (output / "summary.json").write_text(json.dumps({**course, **facts}, indent=2) + "\n")
    table = _summary(plan, facts)
    table.rows.append(("picture", output / "demo.png", f"{time.monotonic() - begin:.0f} s in all"))
    show([table], facts, as_json=False)
    return 0 if facts["picklable_loader"]["exact"] else 1


def _do(plan: Plan, kind: str, role: str) -> int:
    """Do one run in a process of its own; returns its exit status."""
    arguments = [kind, role, str(plan.folder), str(plan.epochs)]
    command = [sys.executable, "-m", "picklable_loader.tools.demo.train", *arguments]
    run = subprocess.Popen(command, start_new_session=True)
    try:
        status = run.wait()
    finally:
        # Torch's workers look whether their parent lives. Under forkserver, the default from Python
        # 3.14 on, this is the server, which lives while they do. Python's resource tracker ignores
        # SIGTERM: it removes their semaphores from /dev/shm, and ends.
        with suppress(ProcessLookupError):
            os.killpg(run.pid, signal.SIGTERM)
    if role == "killed":
        print("   SIGKILL", file=sys.stderr)  # at the end of its progress bar
    return status


# --- the screen ----------------------------------------------------------------------------------

_ROWS: dict[str, Callable[[dict[str, Any]], str]] = {
    "later losses equal, to the last bit": lambda f: f"{f['steps_equal']} of {f['steps_compared']}",
    "largest difference of a loss": lambda f: f"{f['largest_difference']:.3g}",
    "final weights equal, to the last bit": lambda f: "yes" if f["weights_equal"] else "no",
    "samples repeated": lambda f: f"{f['repeated']:,}",
    "samples missed": lambda f: f"{f['missed']:,}",
    "accuracy on 261 test images": lambda f: f"{f['uninterrupted_accuracy']:.2%}",
    "the same, killed and resumed": lambda f: f"{f['accuracy']:.2%}",
}


def _summary(plan: Plan, facts: dict[str, dict[str, Any]]) -> Table:
    """The facts of both kinds, next to each other."""
    ours = facts["picklable_loader"]
    verdict = "With picklable_loader the resumed run is the uninterrupted one, bit for bit"
    if not ours["exact"]:
        verdict = "FAILED: the resumed run is not the uninterrupted one. Please report this"
    rows: list[tuple[Any, ...]] = [
        (f"checkpoint after step {plan.saved_at} of {plan.steps}", "picklable_loader", "torch"),
        *((label, *map(value, facts.values())) for label, value in _ROWS.items()),
        ("position in the checkpoint", f"{ours['state_bytes']:,} bytes"),
        ("checkpoint written in", f"{ours['save_ms']:.0f} ms", "while workers ran"),
    ]
    return Table(verdict, rows)
