"""Torment training runs until there were enough faults; compare them with quiet ones."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from random import SystemRandom

from .campaign import Campaign, quiet_run
from .journal import Batches
from .kinds import KINDS, Kind
from .processes import adopt_orphans
from .rivals import table
from .tally import Tally

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run campaigns.

    Returns:
        0; 1 if anything was wrong.
    """
    asked = _parser().parse_args(arguments)
    if asked.rivals:
        adopt_orphans()
        print(f"\n{table()}")
        return 0
    seed = SystemRandom().randrange(10**6) if asked.seed is None else asked.seed
    kinds = [KINDS[name] for name in asked.only or KINDS]
    print(f"seed {seed}", flush=True)
    adopt_orphans()
    began, tally = time.monotonic(), Tally()
    quiet: dict[str, Batches] = {}
    for turn in count():
        _campaign(kinds[turn % len(kinds)], seed + turn, asked.most, tally, quiet)
        minutes = (time.monotonic() - began) / 60
        if tally.all_faults >= asked.faults or minutes >= asked.minutes:
            break
    print(f"\n{tally.table()}\n{minutes:.1f} minutes, seed {seed}")
    print(*tally.failures, sep="\n\n", file=sys.stderr)
    return 1 if tally.failures else 0


def _campaign(kind: Kind, seed: int, most: int, tally: Tally, quiet: dict[str, Batches]) -> None:
    """One of them; what is left of one that fails is kept."""
    folder = Path(tempfile.mkdtemp(prefix=f"chaos-{kind.name}-{seed}-"))
    if kind.name not in quiet:
        (folder / "quiet").mkdir()
        quiet[kind.name] = quiet_run(kind, folder / "quiet")
    faults = tally.all_faults
    wrong = Campaign(kind, quiet[kind.name], seed, folder, most, tally).run()
    print(f"{kind.name:26s} seed {seed:6d} {tally.all_faults - faults:4d} faults", flush=True)
    if not wrong:
        shutil.rmtree(folder)
        return
    again = f"--only {kind.name} --seed {seed} --most {most} --faults 1"
    tally.failures.append("\n".join([*wrong, f"see {folder}; again: python -m chaos {again}"]))
    print(f"FAILED: {tally.failures[-1]}", flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m chaos", description=__doc__)
    add = parser.add_argument
    add("--seed", type=int, metavar="N", help="default: another one each time")
    add("--faults", type=int, default=3000, metavar="N", help="default: %(default)s")
    add("--minutes", type=float, default=60.0, metavar="M", help="no longer than that")
    add("--most", type=int, default=150, metavar="N", help="faults a run (default: %(default)s)")
    add("--rivals", action="store_true", help="single faults against torch and torchdata instead")
    names = ", ".join(KINDS)
    add("--only", nargs="+", choices=list(KINDS), metavar="KIND", help=f"some of: {names}")
    return parser


if __name__ == "__main__":
    sys.exit(main())
