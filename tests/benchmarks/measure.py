"""One measurement: one loader, one workload, in a process of its own.

    python -m benchmarks.measure SIDE WORKLOAD [--quick]

prints one line of JSON, the workload's figures. A loader that is not measured is not imported: its
workers, which import what this process has, should not pay for it.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import warnings
from collections.abc import Sequence

from .suite import WORKLOADS
from .workload import SIDES, Side

__all__ = ["main"]

_CLASSES = {
    "torch": ("torch.utils.data", "DataLoader"),
    "torchdata": ("torchdata.stateful_dataloader", "StatefulDataLoader"),
    "picklable_loader": ("picklable_loader", "DataLoader"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and print the figures."""
    parser = argparse.ArgumentParser("python -m benchmarks.measure")
    parser.add_argument("side", choices=SIDES)
    parser.add_argument("workload", choices=WORKLOADS)
    parser.add_argument("--quick", action="store_true")
    asked = parser.parse_args(arguments)
    warnings.filterwarnings("ignore", message="This DataLoader will create")
    module, name = _CLASSES[asked.side]
    side = Side(asked.side, getattr(importlib.import_module(module), name))
    print(json.dumps(WORKLOADS[asked.workload].measure(side, asked.quick)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
