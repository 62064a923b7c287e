"""Torture loaders until it is stopped, and print a script for each failure."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from datetime import datetime, timezone
from random import SystemRandom

from chaos.processes import adopt_orphans

from .campaign import Campaign
from .kinds import KINDS


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a campaign.

    Returns:
        0; 1 if anything failed.
    """
    asked = _parser().parse_args(arguments)
    adopt_orphans()
    promised = [name for name, kind in KINDS.items() if kind.promise != "none"]
    campaign = Campaign(asked.seed, asked.only or promised, lambda text: print(text, flush=True))
    print(f"seed {asked.seed}", flush=True)
    try:
        campaign.run(60 * asked.minutes, asked.trials)
    except KeyboardInterrupt:
        pass
    print(campaign.summary())
    return 1 if campaign.failures else 0


def _seed(text: str) -> int:
    return int(f"{datetime.now(timezone.utc):%Y%m%d}") if text == "today" else int(text)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m torture", description=__doc__)
    add = parser.add_argument
    another = str(SystemRandom().randrange(10**6))
    add("--seed", type=_seed, default=another, metavar="N", help='or "today": the date, in UTC')
    add("--minutes", type=float, default=float("inf"), metavar="M", help="default: no end")
    add("--trials", type=int, default=sys.maxsize, metavar="N", help="default: no end")
    add(
        "--only",
        nargs="+",
        choices=list(KINDS),
        metavar="KIND",
        help="default: all of which something is promised",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
